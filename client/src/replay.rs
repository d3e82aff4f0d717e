//! Steps given again: the rows that a rank was given for a step, byte for byte, long after the training.
//!
//! The plan names the rows, the manifest has their digests, and the store has their bytes: of each shard,
//! replay reads the sidecar and the byte ranges of the rows. Every row is compared with its digest, and the
//! digests with the manifest. Knows no run, no node, no cache.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use serde::Serialize;
use shardd_api::lookup::{self, Found, LookupError, Step};
use shardd_plan::{Plan, SampleNo};
use shardd_store::catalog::{Catalog, CatalogError};
use shardfmt::row::Fresh;
use shardfmt::{
    Digest, ManifestError, ManifestFile, RowCodec, RowDigest, RowError, Shard, ShardEntry, ShardError,
    ShardId, Sidecar,
};

use crate::loader::{Failed, LoadError, Transformed, Transforms};

/// The cost of a request besides its payload, in bytes: a shard of which much is needed in many pieces is
/// read whole.
const REQUEST: u64 = 16 << 10;

/// Gives steps of one plan again. Keeps the sidecars it has read: 16 bytes for each row of the shards that
/// were met, and the small parts of their files.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_api::lookup::Step;
/// use shardd_client::replay::Replay;
/// use shardd_client::{Catalog, Loader, LoaderConfig, LocalCatalog};
///
/// let mut loader = Loader::open(LoaderConfig::new(source, plan, 32))?;
/// let then = loader.next_step()?.ok_or("no step")?;
///
/// let catalog = LocalCatalog::open(store.path())?;
/// let plan = &loader.sources()[0].plan;
/// let manifest = catalog.open_manifest(plan.document().version)?;
/// let (epoch, position, global_batch_size) = (0, 0, 32);
/// let step = Step { epoch, position, global_batch_size, rank: None, world: 1, virtual_ranks: Some(1) };
/// let again = Replay::new(&catalog, plan, &manifest)?.give(&step, 0)?;
/// assert_eq!(again[0].batch, then.micro_batches[0].batch);
/// # Ok(())
/// # }
/// ```
pub struct Replay<'a> {
    catalog: &'a dyn Catalog,
    plan: &'a Plan,
    manifest: &'a ManifestFile,
    codec: RowCodec,
    transforms: Option<Transforming>,
    shards: BTreeMap<u32, (ShardEntry, Sidecar)>,
}

/// The transforms of a loader, and the rows that they make.
struct Transforming {
    transformed: Transformed,
    codec: RowCodec,
}

/// The rows of one virtual rank in a step.
#[derive(Debug, Clone)]
pub struct MicroBatch {
    /// The virtual rank.
    pub virtual_rank: u32,
    /// The rows, by position.
    pub rows: Vec<Row>,
    /// Their values, in that order: what a loader gave. With transforms, those that it left out are missing.
    pub batch: RecordBatch,
    /// BLAKE3 of the canonical bytes of the stored rows, one after the other.
    pub digest: Digest,
    /// The same of the rows of `batch`, if transforms made them.
    pub transformed: Option<Digest>,
    /// The rows that could not be decoded or changed.
    pub failed: Vec<Failed>,
}

impl MicroBatch {
    /// The rows of `batch`.
    pub fn given(&self) -> impl Iterator<Item = &Row> {
        let is_skipped = |at: usize| self.failed.iter().any(|failed| failed.row == at && failed.skipped);
        self.rows.iter().enumerate().filter(move |(at, _)| !is_skipped(*at)).map(|(_, row)| row)
    }
}

/// One row of a micro-batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Where it was read, and where it lies.
    #[serde(flatten)]
    pub found: Found,
    /// The digest of its canonical bytes.
    pub digest: RowDigest,
}

/// Why a step cannot be given again.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum ReplayError {
    /// The question does not fit the plan.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// A shard or its sidecar is gone or damaged, or the store cannot be asked.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The version's list of shards cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A shard's file is no valid Arrow data any more.
    #[error("{0}; `shardctl verify --repair` mends what can be mended")]
    Shard(#[from] ShardError),
    /// Rows that cannot be put together.
    #[error(transparent)]
    Row(#[from] RowError),
    /// The transforms do not fit the columns, or a sample cannot be changed.
    #[error(transparent)]
    Transforms(#[from] LoadError),
    /// The store has other bytes than were ingested. Mend the shard.
    #[error(
        "row {row} of shard {shard} is not what the manifest says: `shardctl verify --repair` mends what can be mended"
    )]
    Damaged { shard: ShardId, row: u32 },
}

impl<'a> Replay<'a> {
    /// Will give steps of `plan`, whose version has this manifest.
    ///
    /// # Errors
    /// A schema that rows cannot have.
    pub fn new(
        catalog: &'a dyn Catalog,
        plan: &'a Plan,
        manifest: &'a ManifestFile,
    ) -> Result<Self, ReplayError> {
        let codec = RowCodec::new(manifest.schema().clone())?;
        Ok(Self { catalog, plan, manifest, codec, transforms: None, shards: BTreeMap::new() })
    }

    /// Gives the samples as a loader does that has these transforms: pictures and sounds with the same numbers.
    ///
    /// # Errors
    /// [`ReplayError::Transforms`] if they do not fit the columns.
    pub fn with_transforms(mut self, transforms: &Transforms) -> Result<Self, ReplayError> {
        let transformed = Transformed::new(transforms, self.codec.schema(), self.plan.document().seed)?;
        let codec = RowCodec::new(transformed.schema().clone())?;
        self.transforms = Some(Transforming { transformed, codec });
        Ok(self)
    }

    /// The columns of every batch.
    pub fn schema(&self) -> &SchemaRef {
        self.transforms.as_ref().map_or(&self.codec, |transforms| &transforms.codec).schema()
    }

    /// What `rank` of the world of `step` was given for it: a micro-batch for each of its virtual ranks.
    ///
    /// # Errors
    /// [`ReplayError::Lookup`] when there is no such step; the others when its rows cannot be had as they were.
    pub fn give(&mut self, step: &Step, rank: u32) -> Result<Vec<MicroBatch>, ReplayError> {
        let found = lookup::at(self.plan, self.manifest, &Step { rank: Some(rank), ..step.clone() })?;
        let rows = self.read(&found)?;
        let virtual_ranks =
            step.virtual_ranks.unwrap_or_else(|| self.plan.default_virtual_ranks(step.global_batch_size));
        let mut of_rank: BTreeMap<u32, Vec<(Found, Vec<u8>)>> =
            Plan::virtual_ranks_of(rank, step.world, virtual_ranks).map(|v| (v, Vec::new())).collect();
        for (found, row) in found.into_iter().zip(rows) {
            let virtual_rank = found.virtual_rank.expect("it is known how many there are");
            of_rank.entry(virtual_rank).or_default().push((found, row));
        }
        let micro_batch = |(virtual_rank, rows)| self.micro_batch(step.epoch, virtual_rank, rows);
        of_rank.into_iter().map(micro_batch).collect()
    }

    fn micro_batch(
        &self,
        epoch: u32,
        virtual_rank: u32,
        rows: Vec<(Found, Vec<u8>)>,
    ) -> Result<MicroBatch, ReplayError> {
        let batch = self.codec.decode(rows.iter().map(|(_, bytes)| bytes.as_slice()))?;
        let mut hasher = blake3::Hasher::new();
        for (_, bytes) in &rows {
            hasher.update(bytes);
        }
        let digest = Digest(*hasher.finalize().as_bytes());
        let row = |(found, bytes): (Found, Vec<u8>)| Row { found, digest: RowDigest::of(&bytes) };
        let rows: Vec<Row> = rows.into_iter().map(row).collect();
        let mut given =
            MicroBatch { virtual_rank, rows, batch, digest, transformed: None, failed: Vec::new() };
        if let Some(Transforming { transformed, codec }) = &self.transforms {
            let places: Vec<(u32, u64)> = given.rows.iter().map(|row| (epoch, row.found.position)).collect();
            let changed = transformed.apply(&given.batch, &places, &Fresh)?;
            given.transformed = Some(digest_of(codec, &changed.batch)?);
            (given.batch, given.failed) = (changed.batch, changed.failed);
        }
        Ok(given)
    }

    /// The canonical bytes of rows, in their order.
    fn read(&mut self, found: &[Found]) -> Result<Vec<Vec<u8>>, ReplayError> {
        let mut of_shard: BTreeMap<u32, Vec<(u32, usize)>> = BTreeMap::new();
        for (place, one) in found.iter().enumerate() {
            let (shard, row) = self.plan.locate_sample(SampleNo(one.sample));
            of_shard.entry(shard).or_default().push((row, place));
        }
        let mut rows = vec![Vec::new(); found.len()];
        for (shard, mut wanted) in of_shard {
            wanted.sort_unstable();
            let numbers: Vec<u32> = wanted.iter().map(|(row, _)| *row).collect();
            for ((_, place), bytes) in wanted.iter().zip(self.read_shard(shard, &numbers)?) {
                rows[*place] = bytes;
            }
        }
        Ok(rows)
    }

    /// The canonical bytes of some rows of a shard, verified.
    fn read_shard(&mut self, shard: u32, rows: &[u32]) -> Result<Vec<Vec<u8>>, ReplayError> {
        let (entry, sidecar) = match self.shards.entry(shard) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let entry = self.manifest.entry(shard.into())?;
                let sidecar = self.catalog.sidecar(&entry)?;
                new.insert((entry, sidecar))
            }
        };
        let ranges: Vec<_> = rows.iter().map(|row| *row..row + 1).collect();
        let read = sidecar.read_plan(self.codec.schema(), &ranges)?;
        let mut canonical = Vec::with_capacity(rows.len());
        if read.bytes() + read.ranges().len() as u64 * REQUEST < entry.bytes {
            let fetched = self.catalog.shard_ranges(entry.id, read.ranges())?;
            for batch in read.decode(&fetched)?.iter().flatten() {
                let mut bytes = Vec::new();
                self.codec.encode(batch, 0, &mut bytes)?;
                canonical.push(bytes);
            }
        } else {
            let shard = Shard::from_bytes(self.catalog.shard(entry)?)?;
            for row in rows {
                let mut bytes = Vec::new();
                shard.encode_row(*row, &mut bytes)?;
                canonical.push(bytes);
            }
        }
        for (row, bytes) in rows.iter().zip(&canonical) {
            if RowDigest::of(bytes) != sidecar.rows[*row as usize] {
                return Err(ReplayError::Damaged { shard: entry.id, row: *row });
            }
        }
        Ok(canonical)
    }
}

/// Of the canonical bytes of all rows.
fn digest_of(codec: &RowCodec, batch: &RecordBatch) -> Result<Digest, RowError> {
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), Vec::new());
    for row in 0..batch.num_rows() {
        bytes.clear();
        codec.encode(batch, row, &mut bytes)?;
        hasher.update(&bytes);
    }
    Ok(Digest(*hasher.finalize().as_bytes()))
}
