//! The values of a column in one array, apart from the form of its rows.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, GenericListArray, OffsetSizeTrait,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::filter;
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;

use crate::kind::{Form, Kind};

/// The values of all rows, one after the other.
pub(crate) struct Values {
    pub(crate) items: ArrayRef,
    rows: Rows,
}

/// Which values are a row's.
enum Rows {
    One,
    Lists(OffsetBuffer<i32>, Option<NullBuffer>),
    LargeLists(OffsetBuffer<i64>, Option<NullBuffer>),
    Fixed { width: usize, count: usize, nulls: Option<NullBuffer> },
}

/// A value to which an operation gives no result.
#[derive(Debug)]
pub(crate) struct BadValue {
    /// Its row in the batch.
    pub(crate) row: usize,
    /// The end of the sentence that begins with the operation's name.
    pub(crate) reason: String,
}

impl From<ArrowError> for BadValue {
    /// Of a kernel. Its types were checked, so only a batch that is too large for its offsets fails.
    fn from(error: ArrowError) -> Self {
        Self { row: 0, reason: format!("fails: {error}") }
    }
}

impl Values {
    /// The values of a column.
    pub(crate) fn of(column: &ArrayRef) -> Self {
        match column.data_type() {
            DataType::List(_) => {
                let (offsets, items, nulls) = parts(column.as_list::<i32>());
                Self { items, rows: Rows::Lists(offsets, nulls) }
            }
            DataType::LargeList(_) => {
                let (offsets, items, nulls) = parts(column.as_list::<i64>());
                Self { items, rows: Rows::LargeLists(offsets, nulls) }
            }
            DataType::FixedSizeList(_, width) => {
                let lists = column.as_fixed_size_list();
                let (width, count) = (usize::try_from(*width).unwrap_or_default(), lists.len());
                let start = if count == 0 { 0 } else { lists.value_offset_at(0) };
                let items = lists.values().slice(start, count * width);
                Self { items, rows: Rows::Fixed { width, count, nulls: lists.nulls().cloned() } }
            }
            _ => Self { items: Arc::clone(column), rows: Rows::One },
        }
    }

    /// The same rows with other values, of which each row has as many as before.
    pub(crate) fn with_items(self, items: ArrayRef) -> Self {
        Self { items, ..self }
    }

    /// Other values, of which each row has `width`.
    pub(crate) fn with_width(self, items: ArrayRef, width: usize) -> Self {
        let count = self.len();
        Self { items, rows: Rows::Fixed { width, count, nulls: None } }
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        match &self.rows {
            Rows::One => self.items.len(),
            Rows::Lists(offsets, _) => offsets.len() - 1,
            Rows::LargeLists(offsets, _) => offsets.len() - 1,
            Rows::Fixed { count, .. } => *count,
        }
    }

    /// The row of a value.
    pub(crate) fn row_of(&self, item: usize) -> usize {
        match &self.rows {
            Rows::One => item,
            Rows::Lists(offsets, _) => offsets.partition_point(|end| *end as usize <= item) - 1,
            Rows::LargeLists(offsets, _) => offsets.partition_point(|end| *end as usize <= item) - 1,
            Rows::Fixed { width, .. } => item / (*width).max(1),
        }
    }

    /// The first row that is null, or has a null.
    pub(crate) fn null(&self) -> Option<usize> {
        let first = |nulls: &NullBuffer| (0..nulls.len()).find(|at| nulls.is_null(*at));
        let of_rows = match &self.rows {
            Rows::One => None,
            Rows::Lists(_, nulls) | Rows::LargeLists(_, nulls) | Rows::Fixed { nulls, .. } => nulls.as_ref(),
        };
        let row = of_rows.filter(|nulls| nulls.null_count() > 0).and_then(first);
        let item = self.items.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        let item = item.as_ref().and_then(first).map(|item| self.row_of(item));
        row.into_iter().chain(item).min()
    }

    /// With the nulls of rows as those of values: a row that is null has nulls alone, or no values if it is a list.
    pub(crate) fn with_nulls_of_rows_in_values(self) -> Result<Self, ArrowError> {
        let Self { items, rows } = self;
        match rows {
            Rows::Lists(offsets, Some(nulls)) if nulls.null_count() > 0 => {
                let (offsets, items) = without_nulls(&offsets, &nulls, &items)?;
                Ok(Self { items, rows: Rows::Lists(offsets, None) })
            }
            Rows::LargeLists(offsets, Some(nulls)) if nulls.null_count() > 0 => {
                let (offsets, items) = without_nulls(&offsets, &nulls, &items)?;
                Ok(Self { items, rows: Rows::LargeLists(offsets, None) })
            }
            Rows::Fixed { width, count, nulls: Some(nulls) } if nulls.null_count() > 0 => {
                let missing = (0..items.len()).map(|item| nulls.is_null(item / width));
                let items = arrow::compute::nullif(&items, &missing.map(Some).collect())?;
                Ok(Self { items, rows: Rows::Fixed { width, count, nulls: None } })
            }
            rows => Ok(Self { items, rows }),
        }
    }

    /// As a column of this kind, without nulls.
    pub(crate) fn column(self, kind: &Kind) -> Result<ArrayRef, ArrowError> {
        let item = Arc::new(Field::new("item", kind.item.clone(), false));
        Ok(match self.rows {
            Rows::One => self.items,
            Rows::Lists(offsets, nulls) => {
                Arc::new(GenericListArray::try_new(item, offsets, self.items, nulls)?)
            }
            Rows::LargeLists(offsets, nulls) => {
                Arc::new(GenericListArray::try_new(item, offsets, self.items, nulls)?)
            }
            Rows::Fixed { width, count, nulls } => {
                debug_assert!(matches!(kind.form, Form::Fixed(_)), "made of a column of that kind");
                let width =
                    i32::try_from(width).map_err(|error| ArrowError::ComputeError(error.to_string()))?;
                Arc::new(FixedSizeListArray::try_new_with_length(item, width, self.items, nulls, count)?)
            }
        })
    }

    /// The error of an operation about one of the values.
    pub(crate) fn bad(&self, item: usize, reason: String) -> BadValue {
        BadValue { row: self.row_of(item), reason }
    }
}

/// Offsets from 0 on, the values that they refer to, and the nulls of lists.
fn parts<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> (OffsetBuffer<O>, ArrayRef, Option<NullBuffer>) {
    let (first, end) = (lists.offsets()[0], lists.offsets()[lists.len()]);
    let items = lists.values().slice(first.as_usize(), (end - first).as_usize());
    let offsets = if first.as_usize() == 0 {
        lists.offsets().clone()
    } else {
        OffsetBuffer::new(lists.offsets().iter().map(|offset| *offset - first).collect())
    };
    (offsets, items, lists.nulls().cloned())
}

/// Lists of which those that are null are empty.
fn without_nulls<O: OffsetSizeTrait>(
    offsets: &OffsetBuffer<O>,
    nulls: &NullBuffer,
    items: &ArrayRef,
) -> Result<(OffsetBuffer<O>, ArrayRef), ArrowError> {
    let lengths = || offsets.lengths().enumerate();
    let kept = lengths().flat_map(|(row, length)| std::iter::repeat_n(Some(nulls.is_valid(row)), length));
    let left = lengths().map(|(row, length)| if nulls.is_valid(row) { length } else { 0 });
    Ok((OffsetBuffer::from_lengths(left), filter(items, &kept.collect::<BooleanArray>())?))
}
