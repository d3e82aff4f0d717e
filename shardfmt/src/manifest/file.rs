//! A manifest that is read on demand: opening it reads its footer, a shard the record batch that lists it.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::footer::Footer;
use super::index::{BATCHES_KEY, Index, LABELS_KEY, ROWS_KEY, TOTALS_KEY, Totals};
use super::labels::Names;
use super::verified::{ManifestBytes, VerifiedFile};
use super::{Labels, Manifest, ManifestError, ShardEntry, class_names, label_column};
use crate::digest::VersionId;

/// The bytes of a manifest's fixed columns for one shard.
const LEAST_BYTES_PER_SHARD: u64 = 100;

/// The manifest of a version, of which only the requested parts are read. Everything read is verified against
/// the version's id. Methods that return a `Result` may read, and wait for it.
///
/// A manifest written before there were totals is read whole when it is opened.
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
/// use shardfmt::ManifestFile;
/// use shardfmt::manifest::LocalManifest;
///
/// let dir = tempfile::tempdir()?;
/// let place = LocalManifest { file: dir.path().join("manifest"), tree: dir.path().join("tree") };
/// std::fs::write(&place.file, manifest.encode())?;
///
/// let file = ManifestFile::open(manifest.id(), place)?;
/// assert_eq!(file.totals().samples, 5);
/// assert_eq!(file.find_sample(4)?, Some((0, 4)));
/// # Ok(())
/// # }
/// ```
pub struct ManifestFile {
    id: VersionId,
    file: VerifiedFile,
    footer: Footer,
    totals: Totals,
    batches: Vec<Batch>,
    /// The facts that follow from the shards, where the file does not say it.
    found: Option<Index>,
    /// The record batch that was read last.
    last: Mutex<Option<(usize, Arc<Vec<ShardEntry>>)>>,
}

/// A record batch by the counts before it.
#[derive(Debug)]
struct Batch {
    first_shard: u64,
    first_sample: u64,
}

impl fmt::Debug for ManifestFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManifestFile")
            .field("id", &self.id)
            .field("totals", &self.totals)
            .finish_non_exhaustive()
    }
}

impl ManifestFile {
    /// Opens the manifest of version `id`.
    ///
    /// # Errors
    ///
    /// [`ManifestError`] when the bytes cannot be had, are not those of the version, or no manifest.
    pub fn open(id: VersionId, bytes: impl ManifestBytes + 'static) -> Result<Self, ManifestError> {
        let file = VerifiedFile::open(id, Box::new(bytes))?;
        let footer = Footer::read(&file)?;
        if footer.has(TOTALS_KEY) {
            let totals: Totals = needed(&footer, &file, TOTALS_KEY)?;
            let batches = batches(&needed::<Vec<_>>(&footer, &file, BATCHES_KEY)?, &totals, &footer)?;
            return Ok(Self { id, file, footer, totals, batches, found: None, last: Mutex::default() });
        }
        file.whole()?;
        let (_, index) = decode(&file, &footer)?;
        let batches = batches(&index.batches, &index.totals, &footer)?;
        let totals = index.totals.clone();
        Ok(Self { id, file, footer, totals, batches, found: Some(index), last: Mutex::default() })
    }

    /// The version.
    pub fn id(&self) -> VersionId {
        self.id
    }

    /// The schema of the samples.
    pub fn schema(&self) -> &SchemaRef {
        &self.footer.schema
    }

    /// How the samples were laid into shards.
    pub fn config(&self) -> &Value {
        &self.footer.config
    }

    /// The totals of all shards.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The column with the labels of a classification.
    pub fn label_column(&self) -> Option<&str> {
        label_column(self.schema())
    }

    /// The names of the classes, where the label column has them.
    pub fn class_names(&self) -> Option<Vec<String>> {
        class_names(self.schema())
    }

    /// How often each label occurs; `None` where samples have no labels, or too many different ones to count.
    ///
    /// # Errors
    ///
    /// [`ManifestError`] when that cannot be read.
    pub fn labels(&self) -> Result<Option<Labels>, ManifestError> {
        match &self.found {
            Some(index) => Ok(index.labels.clone()),
            None => needed(&self.footer, &self.file, LABELS_KEY),
        }
    }

    /// How many samples each shard has, in order: what a plan is made from.
    ///
    /// # Errors
    ///
    /// [`ManifestError`] when that cannot be read.
    pub fn shard_rows(&self) -> Result<Vec<u32>, ManifestError> {
        let read: Vec<(u64, u32)>;
        let runs = match &self.found {
            Some(index) => &index.rows,
            None => {
                read = needed(&self.footer, &self.file, ROWS_KEY)?;
                &read
            }
        };
        let shards = runs.iter().try_fold(0u64, |sum, (shards, _)| sum.checked_add(*shards));
        let samples = runs
            .iter()
            .try_fold(0u64, |sum, (shards, rows)| sum.checked_add(shards.checked_mul(u64::from(*rows))?));
        if (shards, samples) != (Some(self.totals.shards), Some(self.totals.samples)) {
            return Err(untrue(ROWS_KEY));
        }
        // No more than were found to fit into the file.
        Ok(runs.iter().flat_map(|(shards, rows)| std::iter::repeat_n(*rows, *shards as usize)).collect())
    }

    /// The manifest's entry of shard `index`.
    ///
    /// # Errors
    ///
    /// [`ManifestError::NoSuchShard`], and others when it cannot be read.
    pub fn entry(&self, index: u64) -> Result<ShardEntry, ManifestError> {
        let mut entries = self.entries(index..index.saturating_add(1))?;
        entries.pop().ok_or(ManifestError::NoSuchShard { index, shards: self.totals.shards })
    }

    /// The manifest's entries of some consecutive shards.
    ///
    /// # Errors
    ///
    /// [`ManifestError::NoSuchShard`], and others when it cannot be read.
    pub fn entries(&self, shards: Range<u64>) -> Result<Vec<ShardEntry>, ManifestError> {
        if shards.end > self.totals.shards {
            let index = shards.start.max(self.totals.shards);
            return Err(ManifestError::NoSuchShard { index, shards: self.totals.shards });
        }
        let mut entries = Vec::new();
        let mut at = shards.start;
        while at < shards.end {
            let batch = self.batches.partition_point(|batch| batch.first_shard <= at) - 1;
            let first = self.batches[batch].first_shard;
            let listed = self.batch(batch)?;
            let end = (shards.end - first).min(listed.len() as u64);
            entries.extend_from_slice(&listed[(at - first) as usize..end as usize]);
            at = first + end;
        }
        Ok(entries)
    }

    /// The shard that a sample lies in and its row there, for numbers below [`Totals::samples`].
    ///
    /// # Errors
    ///
    /// [`ManifestError`] when that cannot be read.
    pub fn find_sample(&self, sample: u64) -> Result<Option<(u64, u32)>, ManifestError> {
        if sample >= self.totals.samples {
            return Ok(None);
        }
        let batch = self.batches.partition_point(|batch| batch.first_sample <= sample) - 1;
        let Batch { mut first_shard, mut first_sample } = self.batches[batch];
        for shard in self.batch(batch)?.iter() {
            if sample - first_sample < u64::from(shard.rows) {
                return Ok(Some((first_shard, (sample - first_sample) as u32)));
            }
            first_shard += 1;
            first_sample += u64::from(shard.rows);
        }
        unreachable!("the samples of a record batch were counted when it was read")
    }

    /// All of it.
    ///
    /// # Errors
    ///
    /// [`ManifestError`] when it cannot be read, or its totals are not those of its shards.
    pub fn manifest(&self) -> Result<Manifest, ManifestError> {
        self.file.whole()?;
        Ok(decode(&self.file, &self.footer)?.0)
    }

    /// The bytes of the file, whose digest is the version.
    ///
    /// # Errors
    ///
    /// [`ManifestError`] when it cannot be read.
    pub fn file_bytes(&self) -> Result<&[u8], ManifestError> {
        Ok(self.file.whole()?.as_slice())
    }

    /// The bytes that were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.file.bytes_read()
    }

    /// The shards of a record batch.
    fn batch(&self, batch: usize) -> Result<Arc<Vec<ShardEntry>>, ManifestError> {
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, shards)) = last().as_ref().filter(|(last, _)| *last == batch) {
            return Ok(shards.clone());
        }
        let shards = Arc::new(self.footer.shards(&self.file, batch, &mut Names::default())?);
        let Batch { first_shard, first_sample } = self.batches[batch];
        let (next_shard, next_sample) = match self.batches.get(batch + 1) {
            Some(next) => (next.first_shard, next.first_sample),
            None => (self.totals.shards, self.totals.samples),
        };
        let samples: u64 = shards.iter().map(|shard| u64::from(shard.rows)).sum();
        if (shards.len() as u64, samples) != (next_shard - first_shard, next_sample - first_sample) {
            return Err(untrue(BATCHES_KEY));
        }
        *last() = Some((batch, shards.clone()));
        Ok(shards)
    }
}

impl Manifest {
    /// Reads a manifest's file.
    ///
    /// # Errors
    ///
    /// [`ManifestError`] when the bytes are no manifest or of a later format, or the totals are not those of the shards.
    /// That they are those of a certain version is for the caller to check, by their digest.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        // A copy, as Arrow wants its data aligned and shared.
        let file = VerifiedFile::unnamed(Buffer::from(bytes));
        Ok(decode(&file, &Footer::read(&file)?)?.0)
    }
}

/// All of a manifest, and what follows from its shards: the same as it says itself, if it does.
fn decode(file: &VerifiedFile, footer: &Footer) -> Result<(Manifest, Index), ManifestError> {
    let mut shards = Vec::new();
    let (mut batches, mut names) = (Vec::new(), Names::default());
    for batch in 0..footer.blocks.len() {
        let start = shards.len();
        shards.append(&mut footer.shards(file, batch, &mut names)?);
        batches.push(start..shards.len());
    }
    let manifest = Manifest::new(footer.schema.clone(), shards, footer.config.clone());
    let index = Index::of(&manifest, &batches);
    if footer.has(TOTALS_KEY) {
        compare(footer, file, &manifest, &index)?;
    }
    Ok((manifest, index))
}

/// Where record batches begin, if this number of shards fits into them and together are all.
fn batches(counts: &[(u64, u64)], totals: &Totals, footer: &Footer) -> Result<Vec<Batch>, ManifestError> {
    let mut batches = Vec::with_capacity(counts.len());
    let (mut first_shard, mut first_sample) = (0u64, 0u64);
    for ((shards, samples), block) in counts.iter().zip(&footer.blocks) {
        batches.push(Batch { first_shard, first_sample });
        let fits =
            shards.checked_mul(LEAST_BYTES_PER_SHARD).is_some_and(|least| least <= block.body.len() as u64);
        let next = first_shard.checked_add(*shards).zip(first_sample.checked_add(*samples));
        (first_shard, first_sample) = next.filter(|_| fits).ok_or_else(|| untrue(BATCHES_KEY))?;
    }
    let all = counts.len() == footer.blocks.len();
    match all && (first_shard, first_sample) == (totals.shards, totals.samples) {
        true => Ok(batches),
        false => Err(untrue(BATCHES_KEY)),
    }
}

fn needed<T: DeserializeOwned>(
    footer: &Footer,
    file: &VerifiedFile,
    key: &'static str,
) -> Result<T, ManifestError> {
    footer.json(file, key)?.ok_or(ManifestError::NoManifest { key })
}

/// Whether what a manifest says of its shards is true of them. How much of it is written out is for the writer to choose,
/// and adding up statistics again would take longer than all else, though no one relies on them.
fn compare(
    footer: &Footer,
    file: &VerifiedFile,
    manifest: &Manifest,
    index: &Index,
) -> Result<(), ManifestError> {
    let Totals { statistics, .. } = index.totals.clone();
    let said: Totals = needed(footer, file, TOTALS_KEY)?;
    if (Totals { statistics, ..said }) != index.totals {
        return Err(untrue(TOTALS_KEY));
    }
    if needed::<Vec<(u64, u64)>>(footer, file, BATCHES_KEY)? != index.batches {
        return Err(untrue(BATCHES_KEY));
    }
    let rows: Vec<(u64, u32)> = needed(footer, file, ROWS_KEY)?;
    let rows = rows.iter().flat_map(|(shards, rows)| (0..*shards).map(|_| *rows));
    if !rows.eq(manifest.shards.iter().map(|shard| shard.rows)) {
        return Err(untrue(ROWS_KEY));
    }
    let labels: Option<Labels> = needed(footer, file, LABELS_KEY)?;
    match labels.zip(index.labels.as_ref()) {
        Some((labels, found)) if labels != *found => Err(untrue(LABELS_KEY)),
        _ => Ok(()),
    }
}

fn untrue(key: &str) -> ManifestError {
    ManifestError::Corrupt(format!("{key} is not true of its shards"))
}
