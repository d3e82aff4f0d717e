//! Writing canonical rows.
//!
//! Everything is a *run*: n values of one type, written as one byte of presence (0: the one value is null; 1: none is
//! null; 2: some of several are, a bitmap follows) and then the values, field by field. A cell of a row is a run of
//! one; the items of a list are a run of as many. Values that are null, or lie beneath a null, are written as zeros.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, SchemaRef};

use super::plain::{Kind, Shape};
use super::{MAX_ROW_BYTES, RowError};

/// Writes the rows of one record batch.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// # use std::sync::Arc;
/// # let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
/// # let rows = RecordBatch::try_from_iter([("label", labels)])?;
/// use shardfmt::{RowCodec, RowDigest};
///
/// let encoder = RowCodec::new(rows.schema())?.encoder(&rows)?;
/// let (mut digests, mut canonical) = (vec![], vec![]);
/// for row in 0..rows.num_rows() {
///     canonical.clear();
///     encoder.encode(row, &mut canonical)?;
///     digests.push(RowDigest::of(&canonical));
/// }
/// assert_eq!(digests[1], digests[3]); // both have label 1
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RowEncoder {
    columns: Vec<Column>,
}

impl RowEncoder {
    pub(super) fn new(schema: &SchemaRef, shapes: &[Shape], batch: &RecordBatch) -> Result<Self, RowError> {
        if batch.num_columns() != shapes.len() {
            let reason = format!("it has {} columns, not {}", batch.num_columns(), shapes.len());
            return Err(RowError::Mismatch { reason });
        }
        for ((shape, field), column) in shapes.iter().zip(schema.fields()).zip(batch.columns()) {
            if *column.data_type() != shape.data_type {
                let reason =
                    format!("column {:?} is {}, not {}", field.name(), column.data_type(), shape.data_type);
                return Err(RowError::Mismatch { reason });
            }
        }
        let columns = shapes.iter().zip(batch.columns()).map(|(shape, column)| Column::new(shape, column));
        Ok(Self { columns: columns.collect() })
    }

    /// Appends the canonical bytes of `row` to `out`.
    ///
    /// # Errors
    ///
    /// [`RowError::TooLarge`] when the row has more than [`MAX_ROW_BYTES`]; `out` is then as it was.
    ///
    /// # Panics
    ///
    /// If the record batch has no such row.
    #[inline]
    pub fn encode(&self, row: usize, out: &mut Vec<u8>) -> Result<(), RowError> {
        let start = out.len();
        for column in &self.columns {
            column.encode_cell(row, out);
            if out.len() - start > MAX_ROW_BYTES {
                out.truncate(start);
                return Err(RowError::TooLarge);
            }
        }
        Ok(())
    }
}

impl RowEncoder {
    /// A column's values one after the other, if all have one size and none is null.
    #[inline]
    pub(super) fn flat(&self, column: usize) -> Option<&[u8]> {
        self.columns[column].flat.as_deref()
    }

    /// The bytes of a value, if that is what the column has, and none is null.
    #[inline]
    pub(super) fn bytes(&self, column: usize, row: usize) -> Option<&[u8]> {
        match &self.columns[column] {
            Column { nulls: None, values: Values::Bytes { offsets, values }, .. } => {
                Some(&values[offsets.range(row)])
            }
            _ => None,
        }
    }

    /// The memory that the values of consecutive rows lie in, if they are bytes or of one size.
    pub fn memory_of(&self, rows: Range<usize>) -> impl Iterator<Item = &[u8]> {
        self.columns.iter().filter_map(move |column| column.memory_of(&rows))
    }

    /// The memory that one value of a row lies in, if it is bytes or of one size.
    pub(super) fn memory_of_value(&self, column: usize, row: usize) -> Option<&[u8]> {
        self.columns[column].memory_of(&(row..row + 1))
    }

    /// Appends the canonical bytes of one value to `out`.
    pub(super) fn encode_cell(&self, column: usize, row: usize, out: &mut Vec<u8>) {
        self.columns[column].encode_cell(row, out);
    }
}

#[derive(Debug)]
struct Column {
    nullable: bool,
    nulls: Option<NullBuffer>,
    values: Values,
    /// All values one after the other, if they have one size and none is null.
    flat: Option<Buffer>,
}

#[derive(Debug)]
enum Values {
    Null,
    Bool(BooleanBuffer),
    Fixed { width: usize, values: Buffer },
    Bytes { offsets: Offsets, values: Buffer },
    FixedList { size: usize, items: Box<Column> },
    List { offsets: Offsets, items: Box<Column> },
    Struct(Vec<Column>),
}

#[derive(Debug)]
enum Offsets {
    Small(OffsetBuffer<i32>),
    Large(OffsetBuffer<i64>),
}

impl Offsets {
    fn range(&self, index: usize) -> Range<usize> {
        self.of_all(&(index..index + 1))
    }

    /// From where the first of several begins to where the last ends.
    fn of_all(&self, values: &Range<usize>) -> Range<usize> {
        match self {
            Self::Small(offsets) => offsets[values.start].as_usize()..offsets[values.end].as_usize(),
            Self::Large(offsets) => offsets[values.start].as_usize()..offsets[values.end].as_usize(),
        }
    }
}

/// Which values a run consists of: some ranges, of which some values may be hidden beneath a null.
struct Run<'a> {
    ranges: &'a [Range<usize>],
    count: usize,
    hidden: Option<&'a [bool]>,
}

impl Run<'_> {
    fn indices(&self) -> impl Iterator<Item = usize> {
        self.ranges.iter().cloned().flatten()
    }
}

impl Column {
    fn new(shape: &Shape, array: &ArrayRef) -> Self {
        let values = match &shape.kind {
            Kind::Null => Values::Null,
            Kind::Bool => Values::Bool(array.as_boolean().values().clone()),
            Kind::Fixed { width } => {
                let data = array.to_data();
                let values = data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width);
                Values::Fixed { width: *width, values }
            }
            Kind::Bytes { large } => {
                let data = array.to_data();
                let values = data.buffers()[1].clone();
                Values::Bytes { offsets: byte_offsets(array, *large), values }
            }
            Kind::FixedList { size, items } => {
                let items = Box::new(Self::new(items, array.as_fixed_size_list().values()));
                Values::FixedList { size: *size, items }
            }
            Kind::List { large: true, items } => {
                let list = array.as_list::<i64>();
                let items = Box::new(Self::new(items, list.values()));
                Values::List { offsets: Offsets::Large(list.offsets().clone()), items }
            }
            Kind::List { large: false, items } => match array.as_map_opt() {
                Some(map) => {
                    let entries: ArrayRef = std::sync::Arc::new(map.entries().clone());
                    let offsets = Offsets::Small(map.offsets().clone());
                    Values::List { offsets, items: Box::new(Self::new(items, &entries)) }
                }
                None => {
                    let list = array.as_list::<i32>();
                    let items = Box::new(Self::new(items, list.values()));
                    Values::List { offsets: Offsets::Small(list.offsets().clone()), items }
                }
            },
            Kind::Struct { fields } => {
                let columns = fields.iter().zip(array.as_struct().columns());
                Values::Struct(columns.map(|(shape, column)| Self::new(shape, column)).collect())
            }
        };
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0).cloned();
        let flat = match &values {
            _ if nulls.is_some() => None,
            Values::Fixed { values, .. } => Some(values.clone()),
            Values::FixedList { items, .. } => items.flat.clone(),
            _ => None,
        };
        Self { nullable: shape.nullable, nulls, values, flat }
    }

    fn memory_of(&self, rows: &Range<usize>) -> Option<&[u8]> {
        match (&self.flat, &self.values) {
            (Some(flat), _) => {
                let width = self.flat_width();
                Some(&flat[rows.start * width..rows.end * width])
            }
            (None, Values::Bytes { offsets, values }) => Some(&values[offsets.of_all(rows)]),
            (None, Values::Fixed { width, values }) => Some(&values[rows.start * width..rows.end * width]),
            _ => None,
        }
    }

    /// How many bytes a value has, of a column whose values all have as many.
    fn flat_width(&self) -> usize {
        match &self.values {
            Values::Fixed { width, .. } => *width,
            Values::FixedList { size, items } => size * items.flat_width(),
            _ => 0,
        }
    }

    fn is_null(&self, index: usize) -> bool {
        matches!(self.values, Values::Null) || self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(index))
    }

    /// A run of the one value at `index`.
    #[inline]
    fn encode_cell(&self, index: usize, out: &mut Vec<u8>) {
        if self.is_null(index) {
            out.push(0);
            return;
        }
        out.push(1);
        match &self.values {
            Values::Null => {}
            Values::Bool(values) => out.push(u8::from(values.value(index))),
            Values::Fixed { width, values } => out.extend_from_slice(&values[index * width..][..*width]),
            Values::Bytes { offsets, values } => {
                let bytes = &values[offsets.range(index)];
                out.extend_from_slice(&length(bytes.len()));
                out.extend_from_slice(bytes);
            }
            Values::FixedList { size, items } => items.encode_range(index * size..(index + 1) * size, out),
            Values::List { offsets, items } => {
                let range = offsets.range(index);
                out.extend_from_slice(&length(range.len()));
                items.encode_range(range, out);
            }
            Values::Struct(fields) => fields.iter().for_each(|field| field.encode_cell(index, out)),
        }
    }

    fn encode_range(&self, range: Range<usize>, out: &mut Vec<u8>) {
        let count = range.len();
        self.encode_run(&Run { ranges: &[range], count, hidden: None }, out);
    }

    fn encode_run(&self, run: &Run<'_>, out: &mut Vec<u8>) {
        if run.count == 0 {
            return;
        }
        // `blank` tells which values are written as zeros; none where nothing is null or hidden.
        let some_null = matches!(self.values, Values::Null)
            || self.nulls.as_ref().is_some_and(|nulls| run.indices().any(|index| nulls.is_null(index)));
        let blank: Option<Vec<bool>> = (some_null || run.hidden.is_some()).then(|| {
            let hidden = |at: usize| run.hidden.is_some_and(|hidden| hidden[at]);
            run.indices().enumerate().map(|(at, index)| hidden(at) || self.is_null(index)).collect()
        });
        let Some(blank) = blank else {
            out.push(1);
            return self.encode_values(run, None, out);
        };
        // A hidden value is null where its field may be, and else a present zero.
        let present = run.indices().enumerate().map(|(at, index)| match run.hidden {
            Some(hidden) if hidden[at] && !matches!(self.values, Values::Null) => !self.nullable,
            _ => !self.is_null(index),
        });
        let present: Vec<bool> = present.collect();
        if present.iter().all(|present| *present) {
            out.push(1);
        } else if run.count == 1 {
            out.push(0);
            return;
        } else {
            out.push(2);
            let bits = present.chunks(8);
            out.extend(bits.map(|bits| bits.iter().rev().fold(0u8, |byte, bit| byte << 1 | u8::from(*bit))));
        }
        self.encode_values(run, Some(&blank), out);
    }

    fn encode_values(&self, run: &Run<'_>, blank: Option<&[bool]>, out: &mut Vec<u8>) {
        let is_blank = |at: usize| blank.is_some_and(|blank| blank[at]);
        match &self.values {
            Values::Null => {}
            Values::Bool(values) => {
                out.extend(
                    run.indices()
                        .enumerate()
                        .map(|(at, index)| u8::from(!is_blank(at) && values.value(index))),
                );
            }
            Values::Fixed { width, values } if blank.is_none() => {
                for range in run.ranges {
                    out.extend_from_slice(&values[range.start * width..range.end * width]);
                }
            }
            Values::Fixed { width, values } => {
                for (at, index) in run.indices().enumerate() {
                    match is_blank(at) {
                        true => out.resize(out.len() + width, 0),
                        false => out.extend_from_slice(&values[index * width..][..*width]),
                    }
                }
            }
            Values::Bytes { offsets, values } => {
                let ranges = run.indices().enumerate().filter(|(at, _)| !is_blank(*at));
                let ranges = ranges.map(|(_, index)| offsets.range(index));
                encode_lengths(run, blank, offsets, out);
                for range in ranges {
                    out.extend_from_slice(&values[range]);
                }
            }
            Values::FixedList { size, items } => {
                let ranges: Vec<_> =
                    run.ranges.iter().map(|range| range.start * size..range.end * size).collect();
                let hidden: Option<Vec<bool>> = blank
                    .map(|blank| blank.iter().flat_map(|blank| std::iter::repeat_n(*blank, *size)).collect());
                items.encode_run(
                    &Run { ranges: &ranges, count: run.count * size, hidden: hidden.as_deref() },
                    out,
                );
            }
            Values::List { offsets, items } => {
                let ranges = run.indices().enumerate().filter(|(at, _)| !is_blank(*at));
                let ranges: Vec<_> = ranges.map(|(_, index)| offsets.range(index)).collect();
                encode_lengths(run, blank, offsets, out);
                let count = ranges.iter().map(ExactSizeIterator::len).sum();
                items.encode_run(&Run { ranges: &ranges, count, hidden: None }, out);
            }
            Values::Struct(fields) => {
                for field in fields {
                    field.encode_run(&Run { ranges: run.ranges, count: run.count, hidden: blank }, out);
                }
            }
        }
    }
}

fn encode_lengths(run: &Run<'_>, blank: Option<&[bool]>, offsets: &Offsets, out: &mut Vec<u8>) {
    for (at, index) in run.indices().enumerate() {
        let blank = blank.is_some_and(|blank| blank[at]);
        out.extend_from_slice(&length(if blank { 0 } else { offsets.range(index).len() }));
    }
}

/// A length as rows hold it. Lengths beyond 32 bits belong to rows that are refused as too large.
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes()
}

fn byte_offsets(array: &ArrayRef, large: bool) -> Offsets {
    match (array.data_type(), large) {
        (DataType::Utf8, _) => Offsets::Small(array.as_string::<i32>().offsets().clone()),
        (DataType::LargeUtf8, _) => Offsets::Large(array.as_string::<i64>().offsets().clone()),
        (_, false) => Offsets::Small(array.as_binary::<i32>().offsets().clone()),
        (_, true) => Offsets::Large(array.as_binary::<i64>().offsets().clone()),
    }
}
