//! Tables that a distributed engine (Ray, Spark) holds in parts: its workers measure the parts, deal their rows to shards
//! and write these. Their version is the one that an ingest of all rows with [`Mix::Hash`](crate::Mix::Hash) makes.
//!
//! A row's shard follows from the row alone, so parts may come in any order, twice, or cut in another way. The engine brings
//! the rows of a shard together, and starts work again that a killed worker had. Knows nothing of engines and stores.

use std::path::PathBuf;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use shardfmt::Provenance;
use shardfmt::manifest::{Manifest, ShardEntry};
use shardfmt::row::{DigestSum, RowCodec, RowDigest};
use shardfmt::shard::{FinishedShard, ShardError, ShardWriter};
use shardfmt::size::ByteSize;

use crate::cut::{Cut, shard_of_key};
use crate::layout::Layout;
use crate::order::HashKeys;
use crate::source::growth;
use crate::version::{AppendError, Base, appending, check_columns, grown};
use crate::{IngestConfig, IngestError, Ingested, Mix, canonical};

/// The columns of a table, and how its rows are laid into shards.
///
/// ```
/// use std::sync::Arc;
///
/// use shardd_ingest::{Amount, IngestConfig, Mix, Table};
/// use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let part = |numbers: std::ops::Range<i64>| {
///     let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
///     RecordBatch::try_from_iter([("number", numbers)])
/// };
/// let parts = [part(0..700)?, part(700..1000)?];
/// let config = IngestConfig { mix: Mix::Hash, shard_size: Some("4KiB".parse()?), ..IngestConfig::default() };
/// let table = Table::new("numbers", parts[0].schema(), &config)?;
///
/// // What workers do, each with some parts.
/// let mut all = Amount::default();
/// for part in &parts {
///     all += table.measure(part)?;
/// }
/// let dealt = table.deal(&parts[0], all.shards(&config))?;
/// assert!(dealt.iter().all(|shard| *shard < all.shards(&config)));
/// # Ok(())
/// # }
/// ```
pub struct Table {
    name: PathBuf,
    /// As they are given.
    columns: SchemaRef,
    codec: RowCodec,
    config: IngestConfig,
    keys: HashKeys,
}

/// How much rows are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many there are.
    pub rows: u64,
    /// Their canonical bytes.
    pub bytes: u64,
    /// The sum of their digests, whatever their order.
    pub sum: DigestSum,
}

impl std::ops::AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.rows += other.rows;
        self.bytes += other.bytes;
        self.sum += other.sum;
    }
}

impl Amount {
    /// How many shards these rows make: some may get no row where rows are few.
    pub fn shards(self, config: &IngestConfig) -> u32 {
        u32::try_from(self.cut(config).shard_count()).unwrap_or(u32::MAX)
    }

    fn cut(self, config: &IngestConfig) -> Cut {
        Cut::new(self.rows, self.bytes, config.shard_size).by_key()
    }
}

impl Table {
    /// A table of these columns; `name` stands for it in messages.
    ///
    /// # Errors
    /// [`IngestError::Column`] for a column that shards cannot hold, [`IngestError::Config`] for another mix than by hash, or for
    /// settings of reading.
    pub fn new(name: &str, columns: SchemaRef, config: &IngestConfig) -> Result<Self, IngestError> {
        let layout = Layout::of(config).over(IngestConfig::default());
        if *config != layout || config.mix != Mix::Hash {
            return Err(IngestError::Config {
                setting: "mix",
                reason: "parts of a table come in no order, and are read already".to_owned(),
                way_out: "use \"hash\", with a seed, a size of shards and a compression only",
            });
        }
        config.check()?;
        let name = PathBuf::from(name);
        let schema = canonical::canonical_schema(&name, &columns)?;
        let codec = RowCodec::new(schema).map_err(|error| canonical::row_error(&name, error))?;
        Ok(Self { name, columns, codec, config: config.clone(), keys: HashKeys::new(config.seed) })
    }

    /// A table of these columns whose rows are appended to a version, in shards like the ones there, but of `shard_size` if it
    /// is given.
    ///
    /// # Errors
    /// [`AppendError::Schema`] when the version has other columns, and those of [`Table::new`]: above all, when the samples of the
    /// version do not lie by a hash of their rows.
    pub fn appending(
        name: &str,
        columns: SchemaRef,
        base: Base<'_>,
        shard_size: Option<ByteSize>,
    ) -> Result<Self, AppendError> {
        let mut config = Layout::of(&appending(base)).over(IngestConfig::default());
        config.shard_size = shard_size.or(config.shard_size);
        if config.mix != Mix::Hash {
            return Err(AppendError::Ingest(IngestError::Config {
                setting: "mix",
                reason: "parts of a table come in no order, and the samples of the version lie otherwise than by a hash of \
                         their rows"
                    .to_owned(),
                way_out: "use `shardctl append`, or make the dataset with the mix \"hash\"",
            }));
        }
        let mut table = Self::new(name, columns, &config)?;
        let schema = &base.manifest.schema;
        check_columns(schema, &table.name, table.schema())?;
        if table.schema().fields() != schema.fields() {
            let codec = RowCodec::new(schema.clone());
            table.codec = codec.map_err(|error| canonical::row_error(&table.name, error))?;
        }
        Ok(table)
    }

    /// The columns of its shards.
    pub fn schema(&self) -> &SchemaRef {
        self.codec.schema()
    }

    /// How its rows are laid into shards.
    pub fn config(&self) -> &IngestConfig {
        &self.config
    }

    /// How much the rows of a part are.
    ///
    /// # Errors
    /// When the part has other columns.
    pub fn measure(&self, part: &RecordBatch) -> Result<Amount, IngestError> {
        let mut amount = Amount { rows: part.num_rows() as u64, ..Amount::default() };
        self.each(part, |row| {
            amount.bytes += row.len() as u64;
            amount.sum += RowDigest::of(row);
        })?;
        Ok(amount)
    }

    /// The shard of each row of a part, among this number of shards.
    ///
    /// # Errors
    /// When the part has other columns.
    pub fn deal(&self, part: &RecordBatch, shards: u32) -> Result<Vec<u32>, IngestError> {
        let mut dealt = Vec::with_capacity(part.num_rows());
        self.each(part, |row| dealt.push(shard_of(self.key(row), shards)))?;
        Ok(dealt)
    }

    fn key(&self, row: &[u8]) -> (u64, u64) {
        self.keys.of(RowDigest::of(row))
    }

    /// The shard of all rows that were dealt to one of this number of shards, in any order.
    ///
    /// # Errors
    /// When a part has other columns, or there are rows of different shards, or too many.
    pub fn shard(
        &self,
        parts: &[RecordBatch],
        shards: u32,
    ) -> Result<Option<(u32, FinishedShard)>, IngestError> {
        let (mut bytes, mut rows) = (Vec::new(), Vec::new());
        for part in parts {
            self.each(part, |row| {
                let start = bytes.len();
                bytes.extend_from_slice(row);
                rows.push((self.key(row), start..bytes.len()));
            })?;
        }
        rows.sort_unstable_by_key(|(key, _)| *key);
        let (Some((first, _)), Some((last, _))) = (rows.first(), rows.last()) else { return Ok(None) };
        let (index, other) = (shard_of(*first, shards), shard_of(*last, shards));
        if index != other {
            let reason = format!("rows of the shards {index} and {other} came together");
            return Err(IngestError::Row { path: self.name.clone(), reason });
        }
        let schema = self.schema().clone();
        let written =
            ShardWriter::with_compression(schema, self.config.compression).and_then(|mut writer| {
                writer.push_rows(rows.iter().map(|(_, place)| &bytes[place.clone()]))?;
                writer.finish()
            });
        let shard =
            written.map_err(|source: ShardError| IngestError::Shard { index: index as usize, source })?;
        Ok(Some((index, shard)))
    }

    /// The version of these shards, each with its number: the rows of `all`.
    ///
    /// # Errors
    /// [`IngestError::Changed`] if the shards do not have these rows.
    pub fn version(&self, all: Amount, mut shards: Vec<(u32, ShardEntry)>) -> Result<Ingested, IngestError> {
        shards.sort_by_key(|(index, _)| *index);
        let twice = shards.windows(2).any(|pair| pair[0].0 == pair[1].0);
        let found = shards.iter().fold(Amount::default(), |mut sum, (_, entry)| {
            sum += Amount { rows: entry.rows.into(), bytes: entry.row_bytes, sum: entry.digest_sum };
            sum
        });
        if twice || found != all {
            return Err(IngestError::Changed { path: self.name.clone(), what: difference(all, found) });
        }
        let config = IngestConfig { shard_size: Some(all.cut(&self.config).size), ..self.config.clone() };
        let entries = shards.into_iter().map(|(_, entry)| entry).collect();
        let manifest = Manifest::new(self.schema().clone(), entries, Layout::of(&config).config());
        Ok(Ingested { manifest, provenance: Provenance::new(config.record(), Vec::new()) })
    }

    /// The version `base` with these shards, each with its number, after its own: the rows of `all`.
    ///
    /// # Errors
    /// [`IngestError::Changed`] if the shards do not have these rows.
    pub fn appended(
        &self,
        base: Base<'_>,
        all: Amount,
        shards: Vec<(u32, ShardEntry)>,
    ) -> Result<Ingested, IngestError> {
        let added = self.version(all, shards)?.manifest;
        let layout = Layout::recorded(&added).unwrap_or(Layout::of(&self.config));
        let settings = layout.clone().over(appending(base)).record();
        Ok(grown(base, added.shards, layout, Provenance::new(settings, Vec::new())))
    }

    /// Calls back with each row in canonical form.
    fn each(&self, part: &RecordBatch, mut row: impl FnMut(&[u8])) -> Result<(), IngestError> {
        if part.schema_ref().fields() != self.columns.fields() {
            return Err(IngestError::Row {
                path: self.name.clone(),
                reason: "a part has other columns than the table".to_owned(),
            });
        }
        let failed = |error| canonical::row_error(&self.name, error);
        let unfit = |reason| IngestError::Row { path: self.name.clone(), reason };
        let mut columns = self.schema().fields().iter().zip(part.columns());
        if let Some((field, _)) =
            columns.find(|(field, column)| !field.is_nullable() && column.logical_null_count() > 0)
        {
            return Err(unfit(format!(
                "column {:?} has nulls, and shards of the dataset say that it has none",
                field.name()
            )));
        }
        let mut bytes = Vec::new();
        for slice in growth::slices(part.clone()).map_err(unfit)? {
            let plain = canonical::canonical_batch(&self.name, &slice, self.schema())?;
            let encoder = self.codec.encoder(&plain).map_err(failed)?;
            for number in 0..plain.num_rows() {
                bytes.clear();
                encoder.encode(number, &mut bytes).map_err(failed)?;
                row(&bytes);
            }
        }
        Ok(())
    }
}

/// In what the rows that were written differ from those that were counted.
fn difference(counted: Amount, written: Amount) -> String {
    let same = (counted.rows, counted.bytes) == (written.rows, written.bytes);
    if same && counted.sum != written.sum {
        return format!(
            "its {} rows had other values when they were counted than when they were written",
            counted.rows
        );
    }
    format!(
        "it had {} rows of {} bytes when they were counted, and {} of {} when they were written",
        counted.rows, counted.bytes, written.rows, written.bytes
    )
}

/// The shard of a row by its key.
fn shard_of((key, _): (u64, u64), shards: u32) -> u32 {
    u32::try_from(shard_of_key(key, u64::from(shards))).expect("less than their number")
}
