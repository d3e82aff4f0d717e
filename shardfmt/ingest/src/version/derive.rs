//! A version made of another one by rules: which samples stay, in which columns, and how often. It is made once, so that all plans
//! over it are ordinary ones.

use arrow::array::{AsArray, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::{cast, concat_batches, filter_record_batch, take_record_batch};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use rayon::prelude::*;
use shardd_views::dedup::{Clusters, DedupError, Exact, MinHash, MinHasher};
use shardd_views::expr::{EvaluateError, Predicate};
use shardd_views::key::{Digest, Key, KeyError};
use shardd_views::projection::{Projection, ProjectionError};
use shardd_views::rule::{Dedup, Rule, RuleError};
use shardd_views::sample::{Multiplicities, Sample, SampleError, Weights, WeightsError};
use shardd_views::split::{Split, SplitError};
use shardfmt::Provenance;
use shardfmt::manifest::{Manifest, ShardEntry};
use shardfmt::row::{RowCodec, RowError};
use shardfmt::shard::{Compression, ShardError, ShardWriter};
use shardfmt::size::ByteSize;
use shardfmt::store::Store;

use super::rewrite::Rewrite;
use super::store::{need_shard, need_sidecar};
use super::stretch::{Line, Reader};
use super::{Base, Layout, VersionError, pool, settings};
use crate::{Cut, Progress, Sink};

/// Rows that are encoded to find out how large a selection of columns is.
const MEASURED: usize = 1000;

/// Why no version was made.
#[derive(Debug, thiserror::Error)]
pub enum DeriveError {
    /// A rule does not fit the columns that it gets.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// A rule of the wrong place.
    #[error(
        "a sample decides how often each row is there, so it comes after all rules but a selection of columns"
    )]
    Order,
    /// An expression has no value.
    #[error("shard {shard} of the version: the expression has no value")]
    Evaluate {
        /// The index of the shard.
        shard: usize,
        /// Why.
        source: EvaluateError,
    },
    /// A key cannot be formed.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// More rows than memory has numbers for.
    #[error("{samples} samples are more than this machine's memory can order: take fewer")]
    TooMany {
        /// How many.
        samples: u64,
    },
    /// Columns that are not there.
    #[error(transparent)]
    Select(#[from] ProjectionError),
    /// The split cannot be made.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// Duplicates cannot be found.
    #[error(transparent)]
    Dedup(#[from] DedupError),
    /// The sample cannot be drawn.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// Weights that are none.
    #[error("the sample cannot be drawn")]
    Weights(#[from] WeightsError),
    /// Columns that shards do not hold.
    #[error(transparent)]
    Row(#[from] RowError),
    /// Arrow refuses columns.
    #[error("the rows cannot be read")]
    Arrow(#[from] ArrowError),
    /// The version cannot be read, or the new one not written.
    #[error(transparent)]
    Version(#[from] VersionError),
}

/// A version that was made of another one.
#[derive(Debug)]
pub struct Derived {
    /// The new version.
    pub manifest: Manifest,
    /// What it was made of: what the base was, if that is known.
    pub provenance: Option<Provenance>,
    /// How many rows each rule left, in their order.
    pub left: Vec<u64>,
}

/// The version with the samples that these rules leave, in the order of the base; repeats of a shard's samples follow all of these.
/// Shards have about `size` canonical bytes, by default the size that the base records, or that of an ingest.
///
/// Equal bases and rules make equal versions: they do not depend on threads. Reads the base once for each rule that looks at
/// columns, and at most twice to write. Memory holds 8 bytes a row, two shards for each of `threads` threads, about 100 bytes a row
/// for exact duplicates, strata and samples, and 524 more for near-duplicates.
///
/// # Errors
/// [`DeriveError`] if a rule does not fit, or a shard is missing or damaged. [`VersionError::NothingLeft`] if no sample stays.
pub fn derive(
    base: Base<'_>,
    rules: &[Rule],
    size: Option<ByteSize>,
    store: &dyn Store,
    threads: usize,
    sink: &dyn Sink,
    progress: &dyn Progress,
) -> Result<Derived, DeriveError> {
    let mut schema = base.manifest.schema.clone();
    for (index, rule) in rules.iter().enumerate() {
        schema = rule.check(&schema)?;
        let is_select = |rule: &Rule| matches!(rule, Rule::Select { .. });
        if matches!(rule, Rule::Sample { .. }) && !rules[index + 1..].iter().all(is_select) {
            return Err(DeriveError::Order);
        }
    }
    let pool = pool(threads)?;
    let line = Line::of(&base.manifest.shards);
    let scan = Scan { shards: &base.manifest.shards, line: &line, store, pool: &pool, progress };
    let mut rows: Vec<u64> = (0..base.manifest.sample_count()).collect();
    let (mut times, mut left) = (None, Vec::new());
    for rule in rules {
        match rule {
            Rule::Select { .. } => {}
            Rule::Sample { sample, seed } => times = Some(scan.sample(&rows, sample, *seed)?),
            Rule::Filter { expression } => {
                let predicate = Predicate::new(expression, &base.manifest.schema).map_err(RuleError::from)?;
                rows = scan.filter(&rows, &predicate)?;
            }
            Rule::SplitPart { parts, part, by, stratify, seed } => {
                let wanted = u32::try_from(parts.index(part)?).expect("fewer parts than 2^32");
                let split = Split { parts: parts.clone(), by: by.clone(), seed: *seed };
                rows = scan.part(rows, &split, wanted, stratify.as_deref())?;
            }
            Rule::Dedup { method: Dedup::Exact { by } } => rows = scan.without_equals(rows, by)?,
            Rule::Dedup { method: Dedup::Minhash { column, parameters } } => {
                rows = scan.without_likes(rows, column, parameters)?;
            }
        }
        left.push(times.as_ref().map_or(rows.len() as u64, Multiplicities::total));
    }
    let order = in_order(rows, times.as_ref(), &line)?;
    if order.is_empty() {
        return Err(VersionError::NothingLeft.into());
    }
    let recorded = Layout::recorded(base.manifest).unwrap_or_default();
    let size = size.or(recorded.shard_size);
    let columns = (schema != base.manifest.schema).then_some(schema.clone());
    let compression = recorded.compression;
    let write = Write { base, line: &line, order: &order, columns, compression, store, sink, progress };
    let bytes = write.row_bytes()?.saturating_mul(order.len() as u64);
    let cut = Cut::new(order.len() as u64, bytes, size);
    let shards: Vec<usize> = (0..cut.shard_count()).collect();
    // Those that begin in one shard of the base are written one after the other, so that it is read once or twice.
    let begins_in = |index: usize| line.shard_of(order[cut.positions(index).start as usize]);
    let units: Vec<&[usize]> = shards.chunk_by(|one, next| begins_in(*one) == begins_in(*next)).collect();
    let shards: Result<Vec<Vec<ShardEntry>>, DeriveError> =
        pool.install(|| units.into_par_iter().map(|unit| write.unit(unit, &cut)).collect());
    let shards = shards?.concat();
    let names = |schema: &SchemaRef| schema.fields().iter().map(|field| field.name().clone()).collect();
    let provenance = match &write.columns {
        Some(schema) => settings::provenance_of_columns(base, names(schema)),
        None => base.provenance.cloned(),
    };
    let manifest = Manifest::new(schema, shards, settings::derived(base, rules.to_vec(), size));
    Ok(Derived { manifest, provenance, left })
}

/// The rows in the order of the new version: shard by shard of the base those that are there, then those that are there twice, and
/// so on. So each shard is read once, and a row and its repeats do not lie side by side.
fn in_order(
    rows: Vec<u64>,
    times: Option<&Multiplicities>,
    line: &Line<'_>,
) -> Result<Vec<u64>, DeriveError> {
    let Some(times) = times else { return Ok(rows) };
    let mut order = Vec::new();
    let total = usize::try_from(times.total()).unwrap_or(usize::MAX);
    order.try_reserve_exact(total).map_err(|_| DeriveError::TooMany { samples: times.total() })?;
    let mut counted: Vec<(u64, u32)> =
        rows.into_iter().zip(times.iter()).filter(|(_, times)| *times > 0).collect();
    for rows in counted.chunk_by_mut(|(row, _), (next, _)| line.shard_of(*row) == line.shard_of(*next)) {
        let mut left = rows.to_vec();
        while !left.is_empty() {
            order.extend(left.iter().map(|(row, _)| *row));
            left.iter_mut().for_each(|(_, times)| *times -= 1);
            left.retain(|(_, times)| *times > 0);
        }
    }
    Ok(order)
}

/// Whether a rule looks at the digests of rows, which are in sidecars.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Digests {
    Needed,
    Unneeded,
}

/// Reads the rows that are left.
struct Scan<'a> {
    shards: &'a [ShardEntry],
    line: &'a Line<'a>,
    store: &'a dyn Store,
    pool: &'a rayon::ThreadPool,
    progress: &'a dyn Progress,
}

impl Scan<'_> {
    /// Looks at the record batches of the rows that are left, in parallel: the results in their order. `look` gets the index of the
    /// shard, the rows, and their digests if they are needed.
    fn look<R: Send>(
        &self,
        rows: &[u64],
        digests: Digests,
        look: impl Fn(usize, &RecordBatch, &[Digest]) -> Result<R, DeriveError> + Sync,
    ) -> Result<Vec<R>, DeriveError> {
        let of_shard = |(index, entry): (usize, &ShardEntry)| {
            let all = self.line.samples(index);
            let own = &rows
                [rows.partition_point(|row| *row < all.start)..rows.partition_point(|row| *row < all.end)];
            if own.is_empty() {
                return Ok(Vec::new());
            }
            let digests: Vec<Digest> = match digests {
                Digests::Needed => {
                    need_sidecar(self.store, entry)?.rows.iter().map(|row| wide(row.0)).collect()
                }
                Digests::Unneeded => Vec::new(),
            };
            let (mut found, mut first) = (Vec::new(), all.start);
            for batch in need_shard(self.store, entry)?.record_batches() {
                let end = first + batch.num_rows() as u64;
                let own =
                    &own[own.partition_point(|row| *row < first)..own.partition_point(|row| *row < end)];
                let mut stays = vec![false; batch.num_rows()];
                own.iter().for_each(|row| stays[(row - first) as usize] = true);
                let digest = |row: &u64| digests.get((row - all.start) as usize).copied();
                let kept: Vec<Digest> = own.iter().filter_map(digest).collect();
                let batch = match own.len() == batch.num_rows() {
                    true => batch.clone(),
                    false => filter_record_batch(batch, &BooleanArray::from(stays))?,
                };
                found.push(look(index, &batch, &kept)?);
                first = end;
            }
            self.progress.advanced(u64::from(entry.rows), entry.row_bytes, "searching");
            Ok(found)
        };
        let found: Result<Vec<Vec<R>>, DeriveError> =
            self.pool.install(|| self.shards.par_iter().enumerate().map(of_shard).collect());
        Ok(found?.into_iter().flatten().collect())
    }

    fn filter(&self, rows: &[u64], predicate: &Predicate) -> Result<Vec<u64>, DeriveError> {
        let fits = self.look(rows, Digests::Unneeded, |shard, batch, _| {
            predicate.evaluate(batch).map_err(|source| DeriveError::Evaluate { shard, source })
        })?;
        let fits = fits.iter().flat_map(|fits| fits.iter().map(|fits| fits == Some(true)));
        Ok(rows.iter().zip(fits).filter(|(_, fits)| *fits).map(|(row, _)| *row).collect())
    }

    fn part(
        &self,
        rows: Vec<u64>,
        split: &Split,
        wanted: u32,
        stratify: Option<&[String]>,
    ) -> Result<Vec<u64>, DeriveError> {
        let parts = match stratify {
            None => self
                .look(&rows, Digests::Needed, |_, batch, digests| Ok(split.assign_batch(batch, digests)?))?
                .concat(),
            Some(columns) => {
                let labels = Key::Columns(columns.to_vec());
                let found = self.look(&rows, Digests::Needed, |_, batch, digests| {
                    let (labels, keys) = (labels.digests(batch, digests)?, split.by.digests(batch, digests)?);
                    Ok((labels.into_owned(), keys.into_owned()))
                })?;
                let (labels, keys): (Vec<_>, Vec<_>) = found.into_iter().unzip();
                split.assign_exact(&labels.concat(), &keys.concat())?
            }
        };
        Ok(rows.into_iter().zip(parts).filter(|(_, part)| *part == wanted).map(|(row, _)| row).collect())
    }

    fn without_equals(&self, rows: Vec<u64>, by: &Key) -> Result<Vec<u64>, DeriveError> {
        let keys = self
            .look(&rows, Digests::Needed, |_, batch, digests| Ok(by.digests(batch, digests)?.into_owned()))?;
        let mut exact = Exact::new();
        let is_first: Vec<bool> = keys.iter().flatten().map(|key| exact.insert(key).is_none()).collect();
        Ok(rows.into_iter().zip(is_first).filter(|(_, first)| *first).map(|(row, _)| row).collect())
    }

    fn without_likes(
        &self,
        rows: Vec<u64>,
        column: &str,
        parameters: &MinHash,
    ) -> Result<Vec<u64>, DeriveError> {
        let hasher = MinHasher::new(parameters.clone())?;
        let signatures = self.look(&rows, Digests::Unneeded, |_, batch, _| {
            let texts = Projection::new(vec![column.to_owned()], &batch.schema())?.apply(batch)?;
            let texts = cast(texts.column(0), &DataType::LargeUtf8)?;
            Ok(texts
                .as_string::<i64>()
                .iter()
                .map(|text| hasher.signature(text.unwrap_or_default()))
                .collect::<Vec<_>>())
        })?;
        let mut clusters = Clusters::new(&hasher);
        for (row, signature) in (0..).zip(signatures.iter().flatten()) {
            clusters.insert(row, signature)?;
        }
        let kept = clusters.finish(rows.len() as u64)?.kept;
        Ok(rows.into_iter().zip(kept.iter()).filter(|(_, kept)| *kept).map(|(row, _)| row).collect())
    }

    fn sample(&self, rows: &[u64], sample: &Sample, seed: u64) -> Result<Multiplicities, DeriveError> {
        let labels = match sample {
            Sample::Balanced { by, .. } => Some(Key::Columns(vec![by.clone()])),
            _ => None,
        };
        let weights = match sample {
            Sample::Weighted { weights, .. } => Some(weights.clone()),
            _ => None,
        };
        let found = self.look(rows, Digests::Needed, |_, batch, digests| {
            let label = labels.as_ref().map(|by| by.digests(batch, digests)).transpose()?;
            let weight = match &weights {
                // Copied: a slice would hold its whole shard.
                Some(column) => {
                    let all: UInt32Array = (0..batch.num_rows() as u32).collect();
                    let weights = Projection::new(vec![column.clone()], &batch.schema())?.apply(batch)?;
                    Some(take_record_batch(&weights, &all)?)
                }
                None => None,
            };
            Ok((digests.to_vec(), label.map(|label| label.into_owned()).unwrap_or_default(), weight))
        })?;
        let (mut digests, mut labels, mut weights) = (Vec::new(), Vec::new(), Weights::new());
        for (own, label, weight) in found {
            digests.extend(own);
            labels.extend(label);
            if let Some(weight) = weight {
                weights.push(weight.column(0))?;
            }
        }
        Ok(sample.draw(seed, &digests, &labels, &weights.finish())?)
    }
}

/// A digest of 16 bytes as one of 32.
fn wide(digest: [u8; 16]) -> Digest {
    let mut wide = [0; 32];
    wide[..16].copy_from_slice(&digest);
    wide
}

struct Write<'a> {
    base: Base<'a>,
    line: &'a Line<'a>,
    /// The rows of the base, in the order of the new version.
    order: &'a [u64],
    /// The columns of the new version, if they are not those of the base.
    columns: Option<SchemaRef>,
    compression: Compression,
    store: &'a dyn Store,
    sink: &'a dyn Sink,
    progress: &'a dyn Progress,
}

impl Write<'_> {
    fn unit(&self, unit: &[usize], cut: &Cut) -> Result<Vec<ShardEntry>, DeriveError> {
        let mut reader = Reader::new(self.store, &self.base.manifest.shards);
        unit.iter().map(|index| self.shard(*index, cut, &mut reader)).collect()
    }

    /// The mean size of a row, in canonical bytes: that of the base, or with fewer columns that of the first rows.
    fn row_bytes(&self) -> Result<u64, DeriveError> {
        let Some(columns) = &self.columns else {
            return Ok(self.base.manifest.row_bytes() / self.base.manifest.sample_count().max(1));
        };
        let first = self.line.shard_of(self.order[0]);
        let shard = need_shard(self.store, &self.base.manifest.shards[first])?;
        let Some(batch) = shard.record_batches().first() else { return Ok(1) };
        let batch = self.projection(columns)?.apply(batch)?.with_schema(columns.clone())?;
        let rows = batch.num_rows().min(MEASURED);
        let codec = RowCodec::new(columns.clone())?;
        let encoder = codec.encoder(&batch)?;
        let mut bytes = Vec::new();
        (0..rows).try_for_each(|row| encoder.encode(row, &mut bytes))?;
        Ok((bytes.len() / rows.max(1)).max(1) as u64)
    }

    fn projection(&self, columns: &SchemaRef) -> Result<Projection, ProjectionError> {
        let names = columns.fields().iter().map(|field| field.name().clone()).collect();
        Projection::new(names, &self.base.manifest.schema)
    }

    fn shard(&self, index: usize, cut: &Cut, reader: &mut Reader<'_>) -> Result<ShardEntry, DeriveError> {
        let positions = cut.positions(index);
        let rows = &self.order[positions.start as usize..positions.end as usize];
        let entry = match &self.columns {
            None => self.as_they_are(index, rows, reader)?,
            Some(columns) => self.selected(index, rows, columns, reader)?,
        };
        self.progress.advanced(u64::from(entry.rows), entry.row_bytes, "writing");
        Ok(entry)
    }

    /// Some rows, of which those that follow each other lie in one shard as far as they can.
    fn groups<'r>(&self, rows: &'r [u64]) -> impl Iterator<Item = (usize, u64, &'r [u64])> {
        rows.chunk_by(|row, next| self.line.shard_of(*row) == self.line.shard_of(*next)).map(|rows| {
            let shard = self.line.shard_of(rows[0]);
            (shard, self.line.samples(shard).start, rows)
        })
    }

    fn as_they_are(
        &self,
        index: usize,
        rows: &[u64],
        reader: &mut Reader<'_>,
    ) -> Result<ShardEntry, VersionError> {
        let mut rewrite = Rewrite::new(index, self.base.manifest.schema.clone(), self.compression)?;
        for (part, start, rows) in self.groups(rows) {
            let digests: Vec<_> = {
                let all = reader.digests(part)?;
                rows.iter().map(|row| all[(row - start) as usize]).collect()
            };
            let shard = reader.shard(part)?;
            for (row, digest) in rows.iter().zip(digests) {
                rewrite.push(shard, (row - start) as u32, digest)?;
            }
        }
        rewrite.put(self.sink)
    }

    fn selected(
        &self,
        index: usize,
        rows: &[u64],
        columns: &SchemaRef,
        reader: &mut Reader<'_>,
    ) -> Result<ShardEntry, DeriveError> {
        let failed = |source: ShardError| VersionError::Shard { index, source };
        let projection = self.projection(columns)?;
        let mut writer = ShardWriter::with_compression(columns.clone(), self.compression).map_err(failed)?;
        for (part, start, rows) in self.groups(rows) {
            let batches: Result<Vec<RecordBatch>, ProjectionError> =
                reader.shard(part)?.record_batches().iter().map(|batch| projection.apply(batch)).collect();
            let batch = concat_batches(projection.schema(), &batches?)?;
            let numbers: UInt32Array = rows.iter().map(|row| (row - start) as u32).collect();
            let batch = take_record_batch(&batch, &numbers)?.with_schema(columns.clone())?;
            writer.push(&batch).map_err(failed)?;
        }
        let finished = writer.finish().map_err(failed)?;
        let entry = finished.entry.clone();
        self.sink.put_shard(finished).map_err(|source| VersionError::Sink { shard: entry.id, source })?;
        Ok(entry)
    }
}
