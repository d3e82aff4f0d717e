//! Which Arrow types rows can hold, and how other types are brought to them.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};

use super::RowError;

/// Nesting deeper than this is refused, so that recursion over a type always ends early.
const MAX_DEPTH: usize = 32;

/// The widest fixed-size value.
const MAX_FIXED_BYTES: usize = super::MAX_ROW_BYTES;

/// The form of a column's values in a canonical row.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) data_type: DataType,
    pub(super) nullable: bool,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    Null,
    Bool,
    /// Values of `width` bytes.
    Fixed {
        width: usize,
    },
    /// Binary or text; `large` when Arrow's offsets have 64 bits.
    Bytes {
        large: bool,
    },
    FixedList {
        size: usize,
        items: Box<Shape>,
    },
    /// A list or a map.
    List {
        large: bool,
        items: Box<Shape>,
    },
    Struct {
        fields: Vec<Shape>,
    },
}

impl Shape {
    /// The shape of `field`, which is part of `column`.
    pub(super) fn of(field: &Field, column: &str, depth: usize) -> Result<Self, RowError> {
        let data_type = field.data_type();
        let refuse = |reason| {
            let shown: String = data_type.to_string().chars().take(200).collect();
            Err(RowError::Unsupported { column: column.to_owned(), data_type: shown, reason })
        };
        if depth > MAX_DEPTH {
            return refuse("nested deeper than 32 levels");
        }
        let items = |field: &Field| Self::of(field, column, depth + 1).map(Box::new);
        let kind = match data_type {
            DataType::Null if !field.is_nullable() => {
                return refuse("whose values are null, and must not be");
            }
            DataType::Null => Kind::Null,
            DataType::Boolean => Kind::Bool,
            DataType::Binary | DataType::Utf8 => Kind::Bytes { large: false },
            DataType::LargeBinary | DataType::LargeUtf8 => Kind::Bytes { large: true },
            DataType::FixedSizeBinary(width) => match usize::try_from(*width) {
                Ok(width @ 1..=MAX_FIXED_BYTES) => Kind::Fixed { width },
                _ => return refuse("which must have between 1 byte and 1 GiB"),
            },
            DataType::FixedSizeList(field, size) => {
                let items = items(field)?;
                match usize::try_from(*size) {
                    Ok(size @ 1..) if size.saturating_mul(items.least_bytes()) <= MAX_FIXED_BYTES => {
                        Kind::FixedList { size, items }
                    }
                    _ => return refuse("which must have between 1 value and 1 GiB"),
                }
            }
            DataType::List(field) => Kind::List { large: false, items: items(field)? },
            DataType::LargeList(field) => Kind::List { large: true, items: items(field)? },
            DataType::Map(entries, _) => match entries.data_type() {
                DataType::Struct(pair)
                    if pair.len() == 2 && !entries.is_nullable() && !pair[0].is_nullable() =>
                {
                    Kind::List { large: false, items: items(entries)? }
                }
                _ => return refuse("whose entries must be pairs with a key, none of them null"),
            },
            DataType::Struct(fields) if fields.is_empty() => {
                return refuse("which has no fields: leave it out");
            }
            DataType::Struct(fields) => {
                let fields = fields.iter().map(|field| Self::of(field, column, depth + 1));
                Kind::Struct { fields: fields.collect::<Result<_, _>>()? }
            }
            DataType::Decimal32(precision, _) if !(1..=9).contains(precision) => {
                return refuse("of no such precision");
            }
            DataType::Decimal64(precision, _) if !(1..=18).contains(precision) => {
                return refuse("of no such precision");
            }
            DataType::Decimal128(precision, _) if !(1..=38).contains(precision) => {
                return refuse("of no such precision");
            }
            DataType::Decimal256(precision, _) if !(1..=76).contains(precision) => {
                return refuse("of no such precision");
            }
            other => match other.primitive_width() {
                Some(width) => Kind::Fixed { width },
                None => return refuse("which rows cannot hold: cast it first"),
            },
        };
        Ok(Self { data_type: data_type.clone(), nullable: field.is_nullable(), kind })
    }

    /// The fewest bytes that one value takes in memory.
    pub(super) fn least_bytes(&self) -> usize {
        match &self.kind {
            Kind::Null | Kind::Bool => 1,
            Kind::Fixed { width } => *width,
            Kind::Bytes { .. } | Kind::List { .. } => 4,
            Kind::FixedList { size, items } => size.saturating_mul(items.least_bytes()),
            Kind::Struct { fields } => fields.iter().map(Self::least_bytes).fold(0, usize::saturating_add),
        }
    }
}

/// `schema` with every dictionary, view and run-end encoding replaced by the plain type of its values: what a shard
/// stores.
///
/// # Errors
///
/// [`RowError::Unsupported`] for unions and types without size.
pub fn plain_schema(schema: &Schema) -> Result<SchemaRef, RowError> {
    let fields: Vec<FieldRef> = schema.fields().iter().map(|field| plain_field(field, 0)).collect();
    for field in &fields {
        Shape::of(field, field.name(), 0)?;
    }
    Ok(Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())))
}

fn plain_field(field: &Field, depth: usize) -> FieldRef {
    let plain =
        if depth > MAX_DEPTH { field.data_type().clone() } else { plain_type(field.data_type(), depth) };
    Arc::new(Field::new(field.name(), plain, field.is_nullable()).with_metadata(field.metadata().clone()))
}

fn plain_type(data_type: &DataType, depth: usize) -> DataType {
    let plain = |field: &FieldRef| plain_field(field, depth + 1);
    match data_type {
        DataType::Dictionary(_, values) if depth <= MAX_DEPTH => plain_type(values, depth + 1),
        DataType::RunEndEncoded(_, values) if depth <= MAX_DEPTH => plain_type(values.data_type(), depth + 1),
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(items) | DataType::ListView(items) => DataType::List(plain(items)),
        DataType::LargeList(items) | DataType::LargeListView(items) => DataType::LargeList(plain(items)),
        DataType::FixedSizeList(items, size) => DataType::FixedSizeList(plain(items), *size),
        DataType::Map(entries, sorted) => DataType::Map(plain(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(plain).collect()),
        other => other.clone(),
    }
}

/// `batch` with the columns of `plain`, which [`plain_schema`] made of its schema.
///
/// # Errors
///
/// [`RowError::Mismatch`] when the batch has other columns; Arrow's error when a value does not fit.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::arrow::array::{Array, ArrayRef, DictionaryArray, RecordBatch, StringArray};
/// use shardfmt::arrow::datatypes::Int32Type;
/// use shardfmt::row::{plain_batch, plain_schema};
/// use std::sync::Arc;
///
/// let words: DictionaryArray<Int32Type> = ["cat", "dog", "cat"].into_iter().collect();
/// let batch = RecordBatch::try_from_iter([("word", Arc::new(words) as ArrayRef)])?;
/// let plain = plain_batch(&batch, &plain_schema(&batch.schema())?)?;
/// assert_eq!(plain.column(0).to_data(), StringArray::from(vec!["cat", "dog", "cat"]).to_data());
/// # Ok(())
/// # }
/// ```
pub fn plain_batch(batch: &RecordBatch, plain: &SchemaRef) -> Result<RecordBatch, RowError> {
    if batch.num_columns() != plain.fields().len() {
        let reason = format!("it has {} columns, not {}", batch.num_columns(), plain.fields().len());
        return Err(RowError::Mismatch { reason });
    }
    let columns = plain.fields().iter().enumerate().map(|(index, field)| -> Result<ArrayRef, RowError> {
        let (column, found) = (batch.column(index), batch.schema_ref().field(index));
        if found.name() != field.name() {
            let reason = format!("column {index} is {:?}, not {:?}", found.name(), field.name());
            return Err(RowError::Mismatch { reason });
        }
        if column.data_type() == field.data_type() {
            return Ok(column.clone());
        }
        if !plain_type(column.data_type(), 0).equals_datatype(field.data_type()) {
            let reason =
                format!("column {:?} is {}, not {}", field.name(), column.data_type(), field.data_type());
            return Err(RowError::Mismatch { reason });
        }
        Ok(cast(column, field.data_type())?)
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(plain.clone(), columns, &options)?)
}
