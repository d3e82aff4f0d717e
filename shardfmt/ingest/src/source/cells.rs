//! Columns made of encoded values: a member of an archive, a field of a sample. Each value is checked when it comes, all of
//! a row before the row counts. Knows nothing of where values come from.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, BinaryBuilder, Int64Array, ListBuilder, RecordBatch, StringArray};
use arrow::buffer::{MutableBuffer, NullBuffer};
use arrow::datatypes::{DataType, Field, SchemaRef};
use serde::de::IgnoredAny;

use super::arrays::{self, Arrays};
use super::picture::{Pictures, Unfit};
use crate::IngestError;
use crate::error::one_line;

/// The type of a column's values, before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Values {
    /// Bytes, as they are.
    Bytes,
    /// UTF-8, as it is.
    Text,
    /// JSON, which stays text.
    Json,
    /// Integers in decimal digits.
    Integer,
    /// Numbers of this type, as their bytes.
    Number(DataType),
    /// Encoded images.
    Picture(Pictures),
    /// Some encoded images each.
    Pictures,
    /// Arrays of numbers.
    Arrays(Arrays),
}

/// A column to be made.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) nullable: bool,
    pub(super) values: Values,
}

/// A value that was checked.
#[derive(Clone, Debug)]
pub(super) enum Cell<'c> {
    Null,
    Bytes(Cow<'c, [u8]>),
    Integer(i64),
    Parts(Vec<&'c [u8]>),
}

/// Why a value does not belong into its column.
#[derive(Debug)]
pub(super) enum Misfit {
    Picture(Unfit),
    Other(String),
}

impl Misfit {
    /// The same, with the name of what the value is of.
    pub(super) fn named(self, path: &Path, entry: &str) -> IngestError {
        match self {
            Misfit::Picture(unfit) => unfit.named(path, entry),
            Misfit::Other(reason) => {
                IngestError::Member { path: path.to_owned(), entry: entry.to_owned(), reason }
            }
        }
    }
}

impl From<Unfit> for Misfit {
    fn from(unfit: Unfit) -> Misfit {
        Misfit::Picture(unfit)
    }
}

impl From<String> for Misfit {
    fn from(reason: String) -> Misfit {
        Misfit::Other(reason)
    }
}

impl From<&str> for Misfit {
    fn from(reason: &str) -> Misfit {
        Misfit::Other(reason.to_owned())
    }
}

impl Values {
    /// Checks a value. Arrays and lists of images are taken apart by those who know how they are packed.
    pub(super) fn cell<'c>(&self, bytes: &'c [u8]) -> Result<Cell<'c>, Misfit> {
        let as_they_are = Ok(Cell::Bytes(Cow::Borrowed(bytes)));
        match self {
            Values::Bytes | Values::Pictures | Values::Arrays(_) => as_they_are,
            Values::Text => match std::str::from_utf8(bytes) {
                Ok(_) => as_they_are,
                Err(_) => Err("is not UTF-8".into()),
            },
            Values::Json => match serde_json::from_slice::<IgnoredAny>(bytes) {
                Ok(_) => as_they_are,
                Err(error) => Err(format!("is no JSON ({})", one_line(error)).into()),
            },
            Values::Integer => {
                let text = std::str::from_utf8(bytes).ok().map(str::trim_ascii);
                let integer = text.and_then(|text| text.parse().ok());
                integer.map(Cell::Integer).ok_or_else(|| "is no integer of 64 bits".into())
            }
            Values::Number(item) if bytes.len() == arrays::width(item) => as_they_are,
            Values::Number(item) => Err(format!("has {} bytes, which is no {item}", bytes.len()).into()),
            Values::Picture(pictures) => Ok(Cell::Bytes(match pictures.read(bytes)? {
                Some(pixels) => Cow::Owned(pixels),
                None => Cow::Borrowed(bytes),
            })),
        }
    }

    fn field(&self, name: &str, nullable: bool) -> Field {
        let data_type = match self {
            Values::Arrays(arrays) => return arrays.field(name, nullable),
            Values::Picture(pictures) => return arrays::picture_field(name, *pictures, nullable),
            Values::Bytes => DataType::Binary,
            Values::Text | Values::Json => DataType::Utf8,
            Values::Integer => DataType::Int64,
            Values::Number(item) => item.clone(),
            Values::Pictures => DataType::new_list(DataType::Binary, true),
        };
        Field::new(name, data_type, nullable)
    }

    fn array(&self, cells: &[Cell<'_>]) -> ArrayRef {
        let bytes = cells.iter().map(|cell| match cell {
            Cell::Bytes(bytes) => Some(bytes.as_ref()),
            Cell::Null | Cell::Integer(_) | Cell::Parts(_) => None,
        });
        match self {
            Values::Bytes => Arc::new(BinaryArray::from_iter(bytes)),
            Values::Text | Values::Json => {
                let texts =
                    bytes.map(|bytes| bytes.map(|bytes| str::from_utf8(bytes).expect("checked as a cell")));
                Arc::new(StringArray::from_iter(texts))
            }
            Values::Integer => Arc::new(Int64Array::from_iter(cells.iter().map(|cell| match cell {
                Cell::Integer(integer) => Some(*integer),
                Cell::Null | Cell::Bytes(_) | Cell::Parts(_) => None,
            }))),
            Values::Number(item) => {
                let mut values = MutableBuffer::with_capacity(cells.len() * arrays::width(item));
                for number in bytes.clone() {
                    match number {
                        Some(number) => values.extend_from_slice(number),
                        None => values.extend_zeros(arrays::width(item)),
                    }
                }
                let nulls = NullBuffer::from_iter(bytes.map(|number| number.is_some()));
                arrays::numbers(item, values, Some(nulls).filter(|nulls| nulls.null_count() > 0))
            }
            Values::Picture(pictures) => arrays::pixels(*pictures).column(bytes),
            Values::Arrays(arrays) => arrays.column(bytes),
            Values::Pictures => {
                let mut lists = ListBuilder::new(BinaryBuilder::new());
                for cell in cells {
                    if let Cell::Parts(parts) = cell {
                        parts.iter().for_each(|part| lists.values().append_value(part));
                    }
                    lists.append(matches!(cell, Cell::Parts(_)));
                }
                Arc::new(lists.finish())
            }
        }
    }
}

impl Column {
    pub(super) fn field(&self) -> Field {
        self.values.field(&self.name, self.nullable)
    }
}

/// The rows of a piece in the making, column by column.
#[derive(Debug)]
pub(super) struct Table<'c> {
    columns: &'c [Column],
    cells: Vec<Vec<Cell<'c>>>,
}

impl<'c> Table<'c> {
    pub(super) fn new(columns: &'c [Column]) -> Table<'c> {
        Table { columns, cells: columns.iter().map(|_| Vec::new()).collect() }
    }

    /// Adds a row, of one cell for each column.
    pub(super) fn push(&mut self, row: Vec<Cell<'c>>) {
        assert_eq!(row.len(), self.columns.len(), "a cell for each column");
        self.cells.iter_mut().zip(row).for_each(|(cells, cell)| cells.push(cell));
    }

    /// All rows, under a schema that was made of the columns.
    pub(super) fn finish(self, path: &Path, schema: &SchemaRef) -> Result<RecordBatch, IngestError> {
        let arrays = self.columns.iter().zip(self.cells).map(|(column, cells)| column.values.array(&cells));
        RecordBatch::try_new(schema.clone(), arrays.collect())
            .map_err(|error| IngestError::Row { path: path.to_owned(), reason: one_line(error) })
    }
}
