//! Keys of rows: a digest of some columns or of the whole row, and the order that a seed gives to digests.

mod encode;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::LazyLock;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow::error::ArrowError;
use serde::{Deserialize, Serialize};

use crate::expr::nearest;

/// A BLAKE3 digest: of a row's content, or of a key.
pub type Digest = [u8; 32];

/// What makes two rows belong together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    /// The row's whole content, by the digest that the caller has of it.
    Row,
    /// The values of these columns, in this order. NULL is a value like others, and equal to NULL.
    Columns(Vec<String>),
}

/// Why rows have no keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The schema lacks a column of the key.
    #[error("there is no column {column}: {way_out}")]
    Column {
        /// Name of the column.
        column: String,
        /// The nearest column, or those there are.
        way_out: String,
    },
    /// A key without columns puts all rows together.
    #[error("the key has no columns: name at least one, or take the whole row")]
    Empty,
    /// Values of this type have no digest.
    #[error("column {column} is {data_type} and cannot be part of a key: choose other columns")]
    Type {
        /// Name of the column.
        column: String,
        /// Its type.
        data_type: String,
    },
    /// The caller's digests are not one for each row.
    #[error("the record batch has {rows} rows and {digests} digests came with it: give one for each row")]
    Digests {
        /// Rows of the record batch.
        rows: usize,
        /// Digests of the caller.
        digests: usize,
    },
    /// An Arrow kernel refused its input.
    #[error("the columns of the key cannot be read")]
    Arrow(#[from] ArrowError),
}

impl Key {
    /// Checks that `schema` has the columns, and that their types have digests.
    ///
    /// # Errors
    /// [`KeyError::Column`], [`KeyError::Empty`] and [`KeyError::Type`].
    pub fn check(&self, schema: &Schema) -> Result<(), KeyError> {
        self.digests(&RecordBatch::new_empty(schema.clone().into()), &[]).map(|_| ())
    }

    /// The key of each row of `batch`. `rows` are the digests of the rows' content, which only [`Key::Row`]
    /// needs; give none otherwise.
    ///
    /// Rows have equal keys if, and but by chance of 2^-128 only if, the key's values are equal. Strings are
    /// equal to strings of another width, integers to integers of another width, timestamps to the same
    /// instant in another unit. A dictionary is equal to its values, -0 to 0, NaN to NaN.
    ///
    /// # Errors
    /// As [`Key::check`], and [`KeyError::Digests`].
    pub fn digests<'a>(
        &self,
        batch: &RecordBatch,
        rows: &'a [Digest],
    ) -> Result<Cow<'a, [Digest]>, KeyError> {
        let names = match self {
            Self::Columns(names) => names,
            Self::Row if rows.len() == batch.num_rows() => return Ok(Cow::Borrowed(rows)),
            Self::Row => return Err(KeyError::Digests { rows: batch.num_rows(), digests: rows.len() }),
        };
        if names.is_empty() {
            return Err(KeyError::Empty);
        }
        let columns: Result<Vec<_>, _> = names.iter().map(|name| column(batch, name)).collect();
        let columns = columns?;
        let mut bytes = Vec::new();
        let digests = (0..batch.num_rows()).map(|row| {
            bytes.clear();
            for encode in &columns {
                encode(row, &mut bytes);
            }
            *blake3::keyed_hash(&KEY_OF_COLUMNS, &bytes).as_bytes()
        });
        Ok(Cow::Owned(digests.collect()))
    }
}

/// Separates digests of keys from all others.
static KEY_OF_COLUMNS: LazyLock<Digest> =
    LazyLock::new(|| blake3::derive_key("shardd-views 1 key of columns", &[]));

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<encode::Encode<'a>, KeyError> {
    let Some(array) = batch.column_by_name(name) else {
        let schema = batch.schema();
        let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        return Err(KeyError::Column {
            column: name.into(),
            way_out: nearest::way_out(name, &names, "columns"),
        });
    };
    encode::encoder(array.as_ref())
        .ok_or_else(|| KeyError::Type { column: name.into(), data_type: array.data_type().to_string() })
}

/// The purpose of an order: equal seeds give independent orders for different purposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Split,
    SplitExact,
    Sample,
    SampleStart,
    Balance,
}

impl Purpose {
    fn context(self) -> &'static str {
        match self {
            Self::Split => "shardd-views 1 split",
            Self::SplitExact => "shardd-views 1 exact split",
            Self::Sample => "shardd-views 1 sample",
            Self::SampleStart => "shardd-views 1 start of a weighted sample",
            Self::Balance => "shardd-views 1 order of classes",
        }
    }
}

/// A seeded order of digests: the same for all machines, and independent of where a row stands.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    key: Digest,
}

impl Order {
    pub(crate) fn new(purpose: Purpose, seed: u64) -> Self {
        Self { key: blake3::derive_key(purpose.context(), &seed.to_le_bytes()) }
    }

    /// The digest's place: the first 8 bytes, little-endian, of BLAKE3 keyed by purpose and seed.
    pub(crate) fn position(&self, digest: &Digest) -> u64 {
        let hash = blake3::keyed_hash(&self.key, digest);
        let mut first = [0; 8];
        first.copy_from_slice(&hash.as_bytes()[..8]);
        u64::from_le_bytes(first)
    }
}
