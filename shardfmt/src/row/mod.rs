//! Canonical rows: the one way to write a sample as bytes, and back.
//!
//! A row is written column by column in schema order, little-endian, with nothing that depends on which record batch,
//! file or machine it came from; so equal rows have equal bytes, and the digest of a row names its content. Grains,
//! caches and peers carry rows in this form; `docs/FORMAT.md` fixes it to the bit. Knows nothing of shards.

mod decode;
mod encode;
mod gather;
mod plain;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::{DigestError, from_hex, from_text, to_hex};
use crate::keyed::KeyedHash;

pub use encode::RowEncoder;
pub use gather::{CopyValues, Fresh, Lent, Memory, Rows};
use plain::Shape;
pub use plain::{plain_batch, plain_schema};

/// The most bytes one canonical row may have: 1 GiB.
pub const MAX_ROW_BYTES: usize = 1 << 30;

/// The digest of a canonical row: the first 16 bytes of its BLAKE3 hash under a key of its own.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::RowDigest;
///
/// let digest = RowDigest::of(b"a canonical row");
/// assert_eq!(digest.to_string().parse::<RowDigest>()?, digest);
/// assert_eq!(RowDigest::of_each(&[b"a canonical row"]), [digest]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowDigest(pub [u8; 16]);

static DIGEST: LazyLock<KeyedHash> = LazyLock::new(|| KeyedHash::new("shardfmt 2026 row v1"));

impl RowDigest {
    /// The digest of the row whose canonical bytes are given.
    pub fn of(canonical: &[u8]) -> Self {
        Self::from_hash(&DIGEST.of(canonical))
    }

    /// The digest of each row. Several times as fast as one by one where rows are small.
    pub fn of_each(canonical: &[&[u8]]) -> Vec<Self> {
        DIGEST.of_each(canonical).iter().map(Self::from_hash).collect()
    }

    fn from_hash(hash: &[u8; 32]) -> Self {
        Self(*hash.first_chunk().expect("a hash has 32 bytes"))
    }
}

impl FromStr for RowDigest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let mut bytes = [0; 16];
        from_hex(text, &mut bytes)?;
        Ok(Self(bytes))
    }
}

impl Serialize for RowDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RowDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl fmt::Display for RowDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl fmt::Debug for RowDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The wrapping sum of row digests: a fingerprint of a multiset of rows, whatever their order.
///
/// Two sets of rows with equal sums are equal unless someone went to great lengths: it detects faults, it does not
/// prove anything against an adversary. Written as 32 hexadecimal digits, most significant first.
///
/// ```
/// use shardfmt::{DigestSum, RowDigest};
///
/// let rows = [RowDigest::of(b"one"), RowDigest::of(b"two"), RowDigest::of(b"three")];
/// let sum: DigestSum = rows.into_iter().sum();
/// assert_eq!(rows.into_iter().rev().sum::<DigestSum>(), sum);
/// assert_ne!(rows[1..].iter().copied().sum::<DigestSum>(), sum);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DigestSum(pub u128);

impl From<RowDigest> for DigestSum {
    fn from(row: RowDigest) -> Self {
        Self(u128::from_le_bytes(row.0))
    }
}

impl Add for DigestSum {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }
}

impl<T: Into<DigestSum>> AddAssign<T> for DigestSum {
    fn add_assign(&mut self, other: T) {
        *self = *self + other.into();
    }
}

impl<T: Into<DigestSum>> Sum<T> for DigestSum {
    fn sum<I: Iterator<Item = T>>(parts: I) -> Self {
        parts.fold(Self::default(), |sum, part| sum + part.into())
    }
}

impl fmt::Display for DigestSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for DigestSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DigestSum {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let mut bytes = [0; 16];
        from_hex(text, &mut bytes)?;
        Ok(Self(u128::from_be_bytes(bytes)))
    }
}

impl Serialize for DigestSum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DigestSum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// Writes and reads the canonical rows of one schema.
///
/// The schema must be *plain*: no dictionaries, views, run-end encoding or unions ([`plain_schema`] makes it so).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// # use std::sync::Arc;
/// # let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
/// # let rows = RecordBatch::try_from_iter([("label", labels)])?;
/// use shardfmt::RowCodec;
///
/// let codec = RowCodec::new(rows.schema())?;
/// let mut canonical = Vec::new();
/// codec.encode(&rows, 2, &mut canonical)?;
/// assert_eq!(codec.decode([canonical.as_slice()])?, rows.slice(2, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RowCodec {
    schema: SchemaRef,
    columns: Arc<[Shape]>,
}

impl RowCodec {
    /// A codec for rows of `schema`.
    ///
    /// # Errors
    ///
    /// [`RowError::Unsupported`] when a column has a type that rows cannot hold.
    pub fn new(schema: SchemaRef) -> Result<Self, RowError> {
        let columns = schema
            .fields()
            .iter()
            .map(|field| Shape::of(field, field.name(), 0))
            .collect::<Result<_, _>>()?;
        Ok(Self { schema, columns })
    }

    /// The schema of the rows.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The digest of a row of a record batch.
    ///
    /// # Errors
    ///
    /// Those of [`encode`](Self::encode).
    ///
    /// # Panics
    ///
    /// If the record batch has no such row.
    pub fn digest(&self, batch: &RecordBatch, row: usize) -> Result<RowDigest, RowError> {
        let mut canonical = Vec::new();
        self.encode(batch, row, &mut canonical)?;
        Ok(RowDigest::of(&canonical))
    }

    /// The fewest bytes that a row takes in memory, even where all its values are null.
    pub(crate) fn least_row_bytes(&self) -> usize {
        self.columns.iter().map(Shape::least_bytes).fold(0, usize::saturating_add)
    }

    /// A writer of the rows of `batch`; the way to encode many.
    ///
    /// # Errors
    ///
    /// [`RowError::Mismatch`] when the batch's columns are not those of the schema.
    pub fn encoder(&self, batch: &RecordBatch) -> Result<RowEncoder, RowError> {
        RowEncoder::new(&self.schema, &self.columns, batch)
    }

    /// Appends the canonical bytes of one row to `out`.
    ///
    /// # Errors
    ///
    /// [`RowError::Mismatch`] as [`encoder`](Self::encoder), [`RowError::TooLarge`] when the row has more than
    /// [`MAX_ROW_BYTES`].
    ///
    /// # Panics
    ///
    /// If the batch has no such row.
    pub fn encode(&self, batch: &RecordBatch, row: usize, out: &mut Vec<u8>) -> Result<(), RowError> {
        self.encoder(batch)?.encode(row, out)
    }

    /// Gathers canonical rows into one record batch. Equal rows in equal order always give a record batch with the
    /// same buffers, byte for byte.
    ///
    /// # Errors
    ///
    /// When a row is not a canonical row of this schema, or the batch would exceed what Arrow's offsets can hold.
    pub fn decode<'a>(&self, rows: impl IntoIterator<Item = &'a [u8]>) -> Result<RecordBatch, RowError> {
        self.gather(&Rows::Canonical(rows.into_iter().collect()), &Fresh)
    }
}

/// Why a row could not be written or read.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::arrow::datatypes::{DataType, Field, Schema};
/// use shardfmt::{RowCodec, RowError, row};
///
/// // A view is not plain.
/// let schema = Schema::new(vec![Field::new("word", DataType::Utf8View, false)]);
/// let plain = row::plain_schema(&schema)?;
/// assert!(matches!(RowCodec::new(schema.into()), Err(RowError::Unsupported { .. })));
/// assert!(RowCodec::new(plain).is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum RowError {
    /// The schema has a type that rows cannot hold. Cast the column first.
    #[error("column {column:?} has type {data_type}, {reason}")]
    Unsupported { column: String, data_type: String, reason: &'static str },
    /// The record batch is of another schema.
    #[error("record batch does not fit the schema: {reason}")]
    Mismatch { reason: String },
    /// The row has more bytes than a row may have.
    #[error("a row has more than {} bytes, the most a row may have", MAX_ROW_BYTES)]
    TooLarge,
    /// The bytes are no row of this schema.
    #[error("malformed row: column {column:?} {reason}")]
    Malformed { column: String, reason: String },
    /// The row has bytes after its last column.
    #[error("malformed row: row {row} has {bytes} bytes after its last column")]
    TrailingBytes { row: usize, bytes: usize },
    /// The disk does not give values, or not all of them.
    #[error("values of column {column:?} could not be read")]
    Read { column: String, source: io::Error },
    /// Arrow refused.
    #[error("arrow refused the rows")]
    Arrow(#[from] ArrowError),
}
