//! A version of a million shards: what it costs to open its manifest, to ask it things, and to read it whole.
//! `cargo bench -p shardd-benches --bench manifest` prints one table. Needs 2 GiB of memory and 0.4 GB of temporary disk.

use std::fs::File;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::{DataType, Field, Schema};
use shardfmt::manifest::{LocalManifest, tree_of};
use shardfmt::plan::{Plan, PlanDocument, PlanOptions, Shape};
use shardfmt::row::DigestSum;
use shardfmt::statistics::{ColumnStatistics, Quantiles, Spread, Statistics};
use shardfmt::{Digest, InputDigest, Manifest, ManifestFile, NodeHash, ShardEntry, ShardId, VersionId};

const SHARDS: u64 = 1_000_000;
const ROWS: u32 = 512;

fn main() {
    let manifest = images(SHARDS);
    println!("{:<58} {:>10} {:>14}", format!("{SHARDS} shards of images with 10 labels"), "ms", "bytes read");
    let (bytes, ms) = timed(|| manifest.encode());
    row("write the manifest", ms, None);
    let (tree, ms) = timed(|| tree_of(&bytes).expect("it is long"));
    row("make its tree", ms, None);
    let id = VersionId::of(&bytes);
    println!("{:<58} {:>10} {:>14}", "its bytes, and those of its tree", bytes.len(), tree.len());

    let dir = tempfile::tempdir().expect("a temporary directory");
    let local = LocalManifest { file: dir.path().join("m.arrow"), tree: dir.path().join("m.tree") };
    std::fs::write(&local.file, &bytes).expect("disk space");
    std::fs::write(&local.tree, &tree).expect("disk space");
    drop(bytes);

    for (state, cold) in [("cold", true), ("warm", false)] {
        if cold {
            forget(&local);
        }
        let (file, ms) = timed(|| ManifestFile::open(id, local.clone()).expect("our manifest"));
        row(&format!("open it, {state}: schema, configuration, totals"), ms, Some(file.bytes_read()));
        assert_eq!(file.totals().shards, SHARDS);
        let ask = |what: &str, ask: &dyn Fn()| {
            let before = file.bytes_read();
            let ((), ms) = timed(ask);
            row(&format!("… {what}"), ms, Some(file.bytes_read() - before));
        };
        ask("labels of all samples", &|| drop(black_box(file.labels().expect("labels"))));
        ask("a shard", &|| drop(black_box(file.entry(654_321).expect("a shard"))));
        ask("the shard that a sample lies in", &|| {
            black_box(file.find_sample(123_456_789).expect("a sample"));
        });
        ask("a plan of its 512 million samples", &|| drop(black_box(plan(&file))));
        ask("the digest of each of 1000 inputs", &|| drop(black_box(file.inputs().expect("inputs"))));
    }

    let (whole, ms) = timed(|| std::fs::read(&local.file).expect("it is there"));
    row("read it whole", ms, Some(whole.len() as u64));
    let (found, ms) = timed(|| VersionId::of(&whole));
    row("… verify that", ms, None);
    let (decoded, ms) = timed(|| Manifest::decode(&whole).expect("our manifest"));
    row("… and decode it", ms, None);
    assert!(found == id && decoded == manifest);
}

/// A version as an ingest of images makes it.
fn images(shards: u64) -> Manifest {
    let schema = Arc::new(Schema::new(vec![
        Field::new("image", DataType::Binary, false),
        Field::new("label", DataType::Int64, false),
        Field::new("path", DataType::Utf8, false),
    ]));
    let names: Vec<Arc<str>> = (0..10).map(|label| label.to_string().into()).collect();
    let shard = |number: u64| {
        let digest = Digest::of(&number.to_le_bytes());
        let rows = if number + 1 == shards { ROWS - 1 } else { ROWS };
        let labels =
            (0u64..).zip(&names).map(|(label, name)| (name.clone(), 40 + (number + label) % 25)).collect();
        let column = |min: f64, max: f64| {
            let mean = min + (max - min) * (number % 1000) as f64 / 1000.0;
            let spread = Spread { min, max, mean, variance: max - mean };
            ColumnStatistics { count: rows.into(), spread: Some(spread) }
        };
        let row_bytes =
            [1000, 2000, 3000, 4000, 9000, 9999].map(|length: u32| length + (number % 997) as u32);
        ShardEntry {
            id: ShardId(digest),
            rows,
            bytes: 2_000_000 + number % 1000,
            row_bytes: 1_900_000,
            root: NodeHash(digest.0),
            digest_sum: DigestSum(u128::from(number) << 64),
            labels: Some(labels),
            statistics: Some(Statistics {
                row_bytes: Quantiles::from(row_bytes),
                columns: vec![column(900.0, 9900.0), column(0.0, 9.0), column(12.0, 40.0)],
            }),
        }
    };
    let input = |number: u32| InputDigest {
        name: format!("train-{number:05}.tar"),
        bytes: 1 << 30,
        digest: Digest::of(&number.to_le_bytes()),
    };
    let config = serde_json::json!({ "mix": "random", "seed": 0 });
    Manifest::new(schema, (0..shards).map(shard).collect(), config, (0..1000).map(input).collect())
}

fn plan(file: &ManifestFile) -> Plan {
    let shape = Shape { shard_rows: file.shard_rows().expect("rows"), row_bytes: file.totals().row_bytes };
    let document =
        PlanDocument::with_defaults(file.id(), &shape, PlanOptions::default()).expect("defaults fit");
    Plan::new(document, &shape.shard_rows).expect("the document is of this shape")
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let began = Instant::now();
    let made = black_box(work());
    (made, began.elapsed().as_secs_f64() * 1e3)
}

fn row(what: &str, ms: f64, bytes: Option<u64>) {
    println!("{what:<58} {ms:>10.2} {:>14}", bytes.map(|bytes| bytes.to_string()).unwrap_or_default());
}

/// Has the system forget what it holds of the files in memory.
fn forget(local: &LocalManifest) {
    for path in [&local.file, &local.tree] {
        let file = File::open(path).expect("it is there");
        file.sync_all().expect("written out");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice is taken");
    }
}
