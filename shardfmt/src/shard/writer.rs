//! Writing shards.
//!
//! Every row passes through its canonical form, and the record batches of the file are made from that; so the bytes of
//! a shard depend on its rows and its compression alone, not on how the input was cut into record batches or laid out in
//! memory.

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::ipc::MetadataVersion;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use bytes::Bytes;

use super::sidecar::Sidecar;
use super::{Compression, LABEL_COLUMN, Labels, MAX_SHARD_BYTES, Shard, ShardEntry, ShardError, cut};
use crate::digest::{Digest, ShardId};
use crate::merkle;
use crate::row::{RowCodec, RowDigest, RowError, plain_batch, plain_schema};
use crate::statistics::Gatherer;

/// A record batch is closed by the row that brings it to this many bytes.
const RECORD_BATCH_BYTES: usize = 1 << 20;

/// Buffers begin at multiples of this, in the file and so in a map of it.
const ALIGNMENT: usize = 64;

/// A column with more different labels than this is no classification, and gets no histogram.
const MAX_CLASSES: usize = 4096;

/// Nor is one whose different labels have more bytes than this: they are texts.
const MAX_CLASS_BYTES: usize = 256 << 10;

/// Makes one shard of rows.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// # use std::sync::Arc;
/// # let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
/// # let rows = RecordBatch::try_from_iter([("label", labels)])?;
/// use shardfmt::{Compression, Shard, ShardWriter};
///
/// let mut writer = ShardWriter::with_compression(rows.schema(), Compression::Lz4)?;
/// writer.push(&rows)?;
/// writer.push(&rows)?;
/// assert_eq!(writer.rows(), 10);
///
/// let shard = Shard::from_bytes(writer.finish()?.bytes)?;
/// assert_eq!(shard.rows(), 10);
/// # Ok(())
/// # }
/// ```
pub struct ShardWriter {
    codec: RowCodec,
    least_row_bytes: usize,
    file: FileWriter<Vec<u8>>,
    /// The canonical rows of the record batch in the making, and where each ends.
    canonical: Vec<u8>,
    ends: Vec<usize>,
    /// At least what the record batch will take in the file.
    weight: usize,
    digests: Vec<RowDigest>,
    row_bytes: u64,
    labels: Option<Labels>,
    statistics: Gatherer,
    /// The digest of the file written up to now, and its length.
    hasher: blake3::Hasher,
    hashed: usize,
}

/// A shard and all that is known of it. Only made of a shard that was hashed: its parts belong together.
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
/// use shardfmt::digest::Digest;
///
/// // The file, its name, its sidecar and its entry belong together.
/// assert_eq!(Digest::of(&finished.bytes), finished.id.0);
/// assert_eq!(finished.entry.id, finished.id);
/// assert_eq!(finished.sidecar.root(), finished.entry.root);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FinishedShard {
    /// The digest of the shard's file.
    pub id: ShardId,
    /// The shard's file.
    pub bytes: Bytes,
    /// Its sidecar.
    pub sidecar: Sidecar,
    /// Its entry in the manifest.
    pub entry: ShardEntry,
}

impl FinishedShard {
    /// A shard that was read, with its sidecar computed from its rows, to be stored once more.
    ///
    /// # Errors
    ///
    /// [`ShardError::WrongDigest`] when the shard is not that of `entry`, [`ShardError::Corrupt`] when its rows are not,
    /// [`ShardError::Row`] when a row is larger than a row may be.
    pub fn read(shard: &Shard, entry: ShardEntry) -> Result<Self, ShardError> {
        shard.verify(entry.id)?;
        let sidecar = shard.sidecar()?;
        if sidecar.root() != entry.root {
            let reason = format!("the root of its rows is {} and not {}", sidecar.root(), entry.root);
            return Err(ShardError::Corrupt { shard: entry.id.to_string(), reason });
        }
        Ok(Self { id: entry.id, bytes: shard.bytes().to_vec().into(), sidecar, entry })
    }
}

impl ShardWriter {
    /// A writer of a shard with rows of `schema`, made plain: dictionaries, views and run-end encoded columns are
    /// stored as their values.
    ///
    /// # Errors
    ///
    /// [`ShardError::Row`] when a column has a type that shards do not hold, such as a union.
    pub fn new(schema: SchemaRef) -> Result<Self, ShardError> {
        Self::with_compression(schema, Compression::None)
    }

    /// The same, of a shard with this compression.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_compression(schema: SchemaRef, compression: Compression) -> Result<Self, ShardError> {
        let schema = plain_schema(&schema).map_err(unwritten)?;
        let codec = RowCodec::new(schema.clone()).map_err(unwritten)?;
        if schema.fields().iter().all(|field| *field.data_type() == DataType::Null) {
            return Err(unwritten(RowError::Mismatch { reason: "it has no columns with values".to_owned() }));
        }
        let file = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)
            .and_then(|options| compression.applied_to(options))
            .and_then(|options| FileWriter::try_new_with_options(Vec::new(), &schema, options));
        Ok(Self {
            least_row_bytes: codec.least_row_bytes(),
            labels: label_index(&schema).map(|_| Labels::new()),
            statistics: Gatherer::new(&schema),
            codec,
            file: file.map_err(|error| unwritten(error.into()))?,
            canonical: Vec::new(),
            ends: Vec::new(),
            weight: 0,
            digests: Vec::new(),
            row_bytes: 0,
            hasher: blake3::Hasher::new(),
            hashed: 0,
        })
    }

    /// The plain schema, which the shard will have.
    pub fn schema(&self) -> &SchemaRef {
        self.codec.schema()
    }

    /// How many rows there are so far.
    pub fn rows(&self) -> u32 {
        (self.digests.len() + self.ends.len()) as u32 // kept below 2^32 by `count`
    }

    /// The canonical bytes of the rows so far: about the size of the shard.
    pub fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Makes room for rows of `row_bytes` bytes in all: the shard is then made where it stays.
    pub fn reserve(&mut self, row_bytes: u64) {
        // Offsets, padding and footers; a guess, as canonical rows have lengths and marks of their own.
        let file_bytes = row_bytes + row_bytes / 32 + RECORD_BATCH_BYTES as u64 / 16;
        self.file.get_mut().reserve(file_bytes.min(MAX_SHARD_BYTES) as usize);
    }

    /// Appends all rows of a record batch.
    ///
    /// # Errors
    ///
    /// [`ShardError::Row`] when the record batch has other columns or a row is too large, [`ShardError::TooLarge`] when
    /// the shard would be. The shard is then of no further use.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<(), ShardError> {
        let batch = plain_batch(batch, self.codec.schema()).map_err(unwritten)?;
        let encoder = self.codec.encoder(&batch).map_err(unwritten)?;
        for row in 0..batch.num_rows() {
            let start = self.canonical.len();
            encoder.encode(row, &mut self.canonical).map_err(unwritten)?;
            self.row_kept(self.canonical.len() - start)?;
        }
        Ok(())
    }

    /// Appends one row in its canonical form. For many rows there is [`push_rows`](Self::push_rows).
    ///
    /// # Errors
    ///
    /// [`ShardError::Row`] when the bytes are no such row: returned now or by a later call.
    /// [`ShardError::TooLarge`] when the shard would be. The shard is then of no further use.
    pub fn push_row(&mut self, canonical: &[u8]) -> Result<(), ShardError> {
        self.canonical.extend_from_slice(canonical);
        self.row_kept(canonical.len())
    }

    /// Appends rows in their canonical form. The same as one by one, but faster: most rows are not copied before they
    /// are written.
    ///
    /// # Errors
    ///
    /// As [`push_row`](Self::push_row).
    pub fn push_rows<'r>(&mut self, rows: impl IntoIterator<Item = &'r [u8]>) -> Result<(), ShardError> {
        let mut borrowed = Vec::new();
        for row in rows {
            if !self.ends.is_empty() {
                self.push_row(row)?;
                continue;
            }
            borrowed.push(row);
            if self.count(row.len())? {
                self.write_record_batch(&borrowed)?;
                borrowed.clear();
            }
        }
        for row in borrowed {
            self.canonical.extend_from_slice(row);
            self.ends.push(self.canonical.len());
        }
        Ok(())
    }

    /// Closes the shard.
    ///
    /// # Errors
    ///
    /// [`ShardError::Empty`] when it has no rows, [`ShardError::TooLarge`], and what [`push_row`](Self::push_row) left
    /// untold.
    pub fn finish(mut self) -> Result<FinishedShard, ShardError> {
        self.write_kept()?;
        if self.digests.is_empty() {
            return Err(ShardError::Empty);
        }
        self.file.finish().map_err(|error| unwritten(error.into()))?;
        self.hash();
        let id = ShardId(Digest(*self.hasher.finalize().as_bytes()));
        let bytes = self.file.into_inner().map_err(|error| unwritten(error.into()))?;
        check_size(bytes.len() as u64)?;
        let entry = ShardEntry {
            id,
            rows: self.digests.len() as u32, // kept below 2^32 by `count`
            bytes: bytes.len() as u64,
            row_bytes: self.row_bytes,
            root: merkle::root(&self.digests),
            digest_sum: self.digests.iter().copied().sum(),
            labels: self.labels,
            statistics: Some(self.statistics.finish()),
        };
        let sidecar = Sidecar::of(id, &bytes, self.digests)?;
        Ok(FinishedShard { id, bytes: bytes.into(), sidecar, entry })
    }

    /// Takes note of the row that was appended to the canonical bytes.
    fn row_kept(&mut self, length: usize) -> Result<(), ShardError> {
        self.ends.push(self.canonical.len());
        if self.count(length)? { self.write_kept() } else { Ok(()) }
    }

    /// Counts one more row, and tells whether the record batch ends with it.
    fn count(&mut self, length: usize) -> Result<bool, ShardError> {
        // A row has bytes, so there are fewer than 2^32 of them.
        self.row_bytes += length as u64;
        check_size(self.row_bytes)?;
        self.weight += length.max(self.least_row_bytes);
        Ok(self.weight >= RECORD_BATCH_BYTES)
    }

    /// Writes the rows that were kept, if there are any.
    fn write_kept(&mut self) -> Result<(), ShardError> {
        if self.ends.is_empty() {
            return Ok(());
        }
        let (canonical, ends) = (std::mem::take(&mut self.canonical), std::mem::take(&mut self.ends));
        self.write_record_batch(&cut(&canonical, &ends))?;
        (self.canonical, self.ends) = (canonical, ends);
        self.canonical.clear();
        self.ends.clear();
        Ok(())
    }

    fn write_record_batch(&mut self, rows: &[&[u8]]) -> Result<(), ShardError> {
        self.weight = 0;
        self.digests.extend(RowDigest::of_each(rows));
        let batch = self.codec.decode(rows.iter().copied()).map_err(unwritten)?;
        self.file.write(&batch).map_err(|error| unwritten(error.into()))?;
        self.statistics.add(&batch, rows.iter().map(|row| row.len()));
        self.hash();
        if let Some(labels) = &mut self.labels
            && !count_labels(&batch, labels).map_err(unwritten)?
        {
            self.labels = None;
        }
        check_size(self.file.get_ref().len() as u64)
    }

    /// Hashes the bytes written since, while it is still in the processor's cache.
    fn hash(&mut self) {
        self.hasher.update(&self.file.get_ref()[self.hashed..]);
        self.hashed = self.file.get_ref().len();
    }
}

/// Which column has the labels: one of whole numbers, texts or truth values with the agreed name.
pub(crate) fn label_index(schema: &Schema) -> Option<usize> {
    let (index, field) = schema.column_with_name(LABEL_COLUMN)?;
    let data_type = field.data_type();
    let counts = data_type.is_integer()
        || matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Boolean);
    counts.then_some(index)
}

/// Adds the labels of a record batch to the histogram. False when there are too many different ones.
fn count_labels(batch: &RecordBatch, labels: &mut Labels) -> Result<bool, RowError> {
    let Some(index) = label_index(batch.schema_ref()) else { return Ok(false) };
    let column = cast(batch.column(index), &DataType::LargeUtf8)?;
    let mut bytes: usize = labels.keys().map(|label| label.len()).sum();
    for label in column.as_string::<i64>().iter().flatten() {
        if let Some(count) = labels.get_mut(label) {
            *count += 1;
        } else if labels.len() < MAX_CLASSES && bytes + label.len() <= MAX_CLASS_BYTES {
            bytes += label.len();
            labels.insert(label.into(), 1);
        } else {
            return Ok(false);
        }
    }
    Ok(true)
}

fn check_size(bytes: u64) -> Result<(), ShardError> {
    match bytes <= MAX_SHARD_BYTES {
        true => Ok(()),
        false => Err(ShardError::TooLarge { shard: "in the making".to_owned(), bytes }),
    }
}

fn unwritten(source: RowError) -> ShardError {
    ShardError::Row { shard: "in the making".to_owned(), source: Box::new(source) }
}
