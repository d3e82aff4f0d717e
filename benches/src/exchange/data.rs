//! The data set of a pair of processes, its plan, and who they are.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use arrow::array::{BinaryArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use serde::{Deserialize, Serialize};
use shardd_api::node::NodeId;
use shardd_certificates::{Authority, LIFETIME, issue};
use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
use shardd_store::origin::Origin;
use shardfmt::{Manifest, ShardWriter};

/// Bytes of samples in a shard.
const SHARD: u64 = 16 << 20;

/// A data set whose every grain moves, and half of them to the other node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Set {
    /// Bytes of a grain, without its proof.
    pub grain_bytes: usize,
    /// Grains that go each way in a chunk...
    pub chunk_grains: u64,
    /// ...of this number.
    pub chunks: u32,
}

impl Set {
    /// Makes it in `home`, with a store, a plan, an authority and what two nodes need of it.
    ///
    /// # Errors
    /// When there is no room on the disk.
    pub fn make(home: &Path, sample: usize, bytes: u64) -> Result<Set> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let authority = home.join("ca");
        shardd_certificates::private_directory(&authority)?;
        Authority::found(&authority)?;
        for number in 0..2 {
            let hosts = ["127.0.0.1".parse()?];
            issue(&authority, &name(number), &hosts, LIFETIME, &home.join(format!("tls{number}")))?;
        }
        let origin = Origin::open_dir(&home.join("store"))?;
        let schema = Arc::new(Schema::new(vec![Field::new("blob", DataType::Binary, false)]));
        let mut noise = blake3::Hasher::new().finalize_xof();
        let (rows, mut shards) = ((SHARD / sample as u64).max(1), Vec::new());
        for _ in 0..bytes.div_ceil(rows * sample as u64) {
            let mut bytes = vec![0; rows as usize * sample];
            noise.fill(&mut bytes);
            let blobs = BinaryArray::from_iter_values(bytes.chunks(sample));
            let mut writer = ShardWriter::new(Arc::clone(&schema))?;
            writer.push(&RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(blobs)])?)?;
            let shard = writer.finish()?;
            runtime.block_on(origin.put_shard(&shard))?;
            shards.push(shard.entry);
        }
        let manifest = Manifest::new(schema, shards, serde_json::json!({}));
        let version = runtime.block_on(origin.put_manifest(&manifest))?;
        let shape = Shape {
            shard_rows: manifest.shards.iter().map(|shard| shard.rows).collect(),
            row_bytes: manifest.row_bytes(),
        };
        let options = PlanOptions { q: "1".parse()?, partitions: Some(2), ..PlanOptions::default() };
        let document = PlanDocument::with_defaults(version, &shape, options)?;
        runtime.block_on(origin.put_plan(&document))?;
        std::fs::write(home.join("plan"), document.id().to_string())?;
        let (chunks, plan) = (document.chunks, Plan::new(document, &shape.shard_rows)?);
        // A quarter of it goes each way: half of what each of the two has.
        let grain_bytes = usize::try_from(manifest.row_bytes() / plan.grain_count())?;
        let set = Set { grain_bytes, chunk_grains: plan.grain_count() / 4 / u64::from(chunks), chunks };
        std::fs::write(home.join("set"), serde_json::to_vec(&set)?)?;
        Ok(set)
    }

    /// The data made in `home`.
    ///
    /// # Errors
    /// When nothing was made there.
    pub fn read(home: &Path) -> Result<Set> {
        Ok(serde_json::from_slice(&std::fs::read(home.join("set"))?)?)
    }
}

/// The name of a node.
///
/// # Panics
/// Never for the numbers 0 and 1.
pub fn name(number: usize) -> NodeId {
    format!("n{number}").parse().expect("a good name")
}

/// Processor time of this process so far, in seconds: ticks of user and system time, hundredths on Linux.
pub fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = |index: usize| stat.rsplit(')').next()?.split_whitespace().nth(index)?.parse::<u64>().ok();
    (ticks(11).unwrap_or(0) + ticks(12).unwrap_or(0)) as f64 / 100.0
}
