//! The totals of a manifest, so that it can be opened without reading the entry of each shard.
//!
//! All of it follows from the shards, and a reader that has read them all compares the two.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Labels, Manifest, ShardEntry};
use crate::row::DigestSum;
use crate::statistics::{MEASURED_COLUMNS, Statistics};

pub(super) const TOTALS_KEY: &str = "shardd.totals";
pub(super) const BATCHES_KEY: &str = "shardd.batches";
pub(super) const ROWS_KEY: &str = "shardd.rows";
pub(super) const LABELS_KEY: &str = "shardd.labels";

/// Shards in one record batch of a manifest without an index.
const SHARDS_PER_RECORD_BATCH: usize = 4096;

/// A record batch of a manifest with an index is closed by the shard that brings it to this weight.
const RECORD_BATCH_WEIGHT: u64 = 1 << 20;

/// More different labels than these are not added up: they are no classes.
const MOST_LABELS: usize = 1 << 16;

/// The totals of all shards of a version.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// # use std::sync::Arc;
/// # let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
/// # let rows = RecordBatch::try_from_iter([("label", labels)])?;
/// # let mut writer = shardfmt::ShardWriter::new(rows.schema())?;
/// # writer.push(&rows)?;
/// # let finished = writer.finish()?;
/// # let config = serde_json::json!({});
/// # let manifest = shardfmt::Manifest::new(rows.schema(), vec![finished.entry.clone()], config);
/// # use shardfmt::ManifestFile;
/// # use shardfmt::manifest::LocalManifest;
/// # let dir = tempfile::tempdir()?;
/// # let place = LocalManifest { file: dir.path().join("manifest"), tree: dir.path().join("tree") };
/// # std::fs::write(&place.file, manifest.encode())?;
/// # let file = ManifestFile::open(manifest.id(), place)?;
/// let totals = file.totals();
/// assert_eq!((totals.shards, totals.samples), (1, 5));
/// assert_eq!(totals.digest_sum, finished.entry.digest_sum);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// How many shards there are.
    pub shards: u64,
    /// How many samples.
    pub samples: u64,
    /// The bytes of all shard files.
    pub bytes: u64,
    /// The bytes of all canonical rows.
    pub row_bytes: u64,
    /// The fingerprint of all samples, whatever their order.
    pub digest_sum: DigestSum,
    /// The statistics of the samples, if every shard has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Statistics>,
}

/// The facts that follow from the shards, in the order in which they are listed.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) totals: Totals,
    /// The shards and samples of each record batch.
    pub(super) batches: Vec<(u64, u64)>,
    /// How many shards that follow each other have how many rows.
    pub(super) rows: Vec<(u64, u32)>,
    /// How often each label occurs, if all shards know and there are not too many.
    pub(super) labels: Option<Labels>,
}

impl Index {
    /// Of a manifest with these record batches; without statistics.
    pub(super) fn of(manifest: &Manifest, batches: &[Range<usize>]) -> Self {
        let shards = &manifest.shards;
        let totals = Totals {
            shards: shards.len() as u64,
            samples: manifest.sample_count(),
            bytes: manifest.bytes(),
            row_bytes: manifest.row_bytes(),
            digest_sum: manifest.digest_sum(),
            statistics: None,
        };
        let samples = |shards: &[ShardEntry]| shards.iter().map(|shard| u64::from(shard.rows)).sum();
        let batches =
            batches.iter().map(|batch| (batch.len() as u64, samples(&shards[batch.clone()]))).collect();
        let runs = shards.chunk_by(|left, right| left.rows == right.rows);
        let rows = runs.map(|run| (run.len() as u64, run[0].rows)).collect();
        Self { totals, batches, rows, labels: labels(shards) }
    }

    /// The texts by which it is written.
    pub(super) fn texts(&self) -> serde_json::Result<[(&'static str, String); 4]> {
        Ok([
            (TOTALS_KEY, serde_json::to_string(&self.totals)?),
            (BATCHES_KEY, serde_json::to_string(&self.batches)?),
            (ROWS_KEY, serde_json::to_string(&self.rows)?),
            (LABELS_KEY, serde_json::to_string(&self.labels)?),
        ])
    }
}

fn labels(shards: &[ShardEntry]) -> Option<Labels> {
    let mut all = Labels::new();
    for shard in shards {
        for (label, count) in shard.labels.as_ref()? {
            if let Some(total) = all.get_mut(label) {
                *total = u64::saturating_add(*total, *count);
            } else if all.len() < MOST_LABELS {
                all.insert(label.clone(), *count);
            } else {
                return None;
            }
        }
    }
    Some(all)
}

/// The statistics of all samples, if every shard has them.
pub(super) fn statistics(shards: &[ShardEntry]) -> Option<Statistics> {
    let known = shards.iter().map(|shard| Some((u64::from(shard.rows), shard.statistics.as_ref()?)));
    known.clone().all(|known| known.is_some()).then(|| Statistics::merged(known.flatten())).flatten()
}

/// Where the record batches of a manifest end: decided by the shards alone.
pub(super) fn cut(manifest: &Manifest, indexed: bool) -> Vec<Range<usize>> {
    let columns = manifest.schema.fields().len().min(MEASURED_COLUMNS) as u64;
    let mut batches = Vec::new();
    // Without an index, labels were only ever kept from being more than a column can hold.
    let heaviest = if indexed { RECORD_BATCH_WEIGHT } else { 1 << 30 };
    let (mut start, mut weight) = (0, 0);
    for (at, shard) in manifest.shards.iter().enumerate() {
        let labels = shard.labels.iter().flatten().map(|(label, _)| label.len() as u64 + 12);
        weight += 128 + 36 * columns + labels.sum::<u64>();
        let full = !indexed && at + 1 - start == SHARDS_PER_RECORD_BATCH;
        if full || weight >= heaviest {
            batches.push(start..at + 1);
            (start, weight) = (at + 1, 0);
        }
    }
    if start < manifest.shards.len() {
        batches.push(start..manifest.shards.len());
    }
    batches
}
