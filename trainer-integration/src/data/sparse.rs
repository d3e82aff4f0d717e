//! Rows of which most numbers are zero: lists of (index, value), as ingest makes them of libsvm files.

use arrow::array::{Array, ArrayRef, AsArray, Float32Array, UInt32Array};
use arrow::datatypes::{DataType, Field};

use super::convert::converted;
use super::error::InputError;

/// The most features of a sparse row: numbers on their way have 32 bits, in which indices are exact up to here.
pub(super) const MOST_FEATURES: usize = 1 << 24;

/// The most present features of a row: the first layer picks as many rows of its weights for each row of the micro-batch.
pub(super) const MOST_PRESENT: usize = 1 << 16;

const INDEX: &str = "index";
const VALUE: &str = "value";

/// The present features of rows. All rows are as long as the longest: behind its own features, a row has the first one
/// with value 0.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SparseValues {
    /// Row by row.
    pub(super) indices: Vec<i32>,
    /// Of each index.
    pub(super) values: Vec<f32>,
    /// Of a row, at least 1.
    pub(super) longest: usize,
}

/// Whether a column has lists of structs of an index, which is an integer, and a value, which is a number.
pub(super) fn is_sparse(field: &Field) -> bool {
    let (DataType::List(item) | DataType::LargeList(item)) = field.data_type() else { return false };
    let DataType::Struct(parts) = item.data_type() else { return false };
    let has = |name: &str, fits: fn(&DataType) -> bool| {
        parts.find(name).is_some_and(|(_, part)| fits(part.data_type()))
    };
    parts.len() == 2 && has(INDEX, DataType::is_integer) && has(VALUE, DataType::is_numeric)
}

/// The number of features in the metadata `shardd.features`.
pub(super) fn features(field: &Field) -> Option<usize> {
    field.metadata().get("shardd.features")?.parse().ok()
}

/// Reads the rows of a column of `features` features.
pub(super) fn read(
    column: &str,
    array: &ArrayRef,
    features: usize,
    positions: &[u64],
) -> Result<SparseValues, InputError> {
    let (ends, entries) = lists(array).ok_or_else(|| InputError::Column { column: column.to_owned() })?;
    let (first, last) = (ends[0], ends[ends.len() - 1]);
    let entries = entries.slice(first, last - first);
    let bounds: Vec<usize> = ends.iter().map(|end| end - first).collect();
    let row_of = |entry: usize| bounds.partition_point(|end| *end <= entry) - 1;
    let null = |entry| InputError::Null { column: column.to_owned(), position: positions[row_of(entry)] };
    let part = |name: &str| {
        let part = entries.as_struct_opt().and_then(|entries| entries.column_by_name(name));
        part.ok_or_else(|| InputError::Column { column: format!("{column}.{name}") })
    };
    let (indices, values) = (part(INDEX)?, part(VALUE)?);
    if let Some(entry) =
        (0..entries.len()).find(|&at| entries.is_null(at) || indices.is_null(at) || values.is_null(at))
    {
        return Err(null(entry));
    }
    let indices: UInt32Array = converted(&format!("{column}.{INDEX}"), indices, &DataType::UInt32)?;
    let values: Float32Array = converted(&format!("{column}.{VALUE}"), values, &DataType::Float32)?;
    if let Some(entry) = indices.values().iter().position(|&index| index as usize >= features) {
        let (index, position) = (indices.value(entry), positions[row_of(entry)]);
        return Err(InputError::Index { column: column.to_owned(), index, position, features });
    }
    let lengths = bounds.windows(2).map(|pair| pair[1] - pair[0]);
    if let Some((row, present)) = lengths.clone().enumerate().find(|(_, present)| *present > MOST_PRESENT) {
        let (column, position) = (column.to_owned(), positions[row]);
        return Err(InputError::Present { column, position, present, most: MOST_PRESENT });
    }
    let longest = lengths.max().unwrap_or(0).max(1);
    let count = positions.len() * longest;
    let mut read = SparseValues { indices: vec![0; count], values: vec![0.0; count], longest };
    for (row, pair) in bounds.windows(2).enumerate() {
        for (at, entry) in (row * longest..).zip(pair[0]..pair[1]) {
            read.indices[at] = indices.value(entry) as i32;
            read.values[at] = values.value(entry);
        }
    }
    Ok(read)
}

/// Where each list begins and the last one ends, and the entries of all lists.
pub(super) fn lists(array: &ArrayRef) -> Option<(Vec<usize>, &ArrayRef)> {
    if let Some(lists) = array.as_list_opt::<i32>() {
        return Some((lists.value_offsets().iter().map(|end| *end as usize).collect(), lists.values()));
    }
    let lists = array.as_list_opt::<i64>()?;
    Some((lists.value_offsets().iter().map(|end| *end as usize).collect(), lists.values()))
}

impl SparseValues {
    /// Of each row its indices, then its values.
    pub(super) fn into_features(self) -> Vec<f32> {
        let rows = self.indices.chunks(self.longest).zip(self.values.chunks(self.longest));
        let row = |(indices, values): (&[i32], &[f32])| {
            indices.iter().map(|index| *index as f32).chain(values.iter().copied()).collect::<Vec<f32>>()
        };
        rows.flat_map(row).collect()
    }
}
