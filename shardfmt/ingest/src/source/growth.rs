//! Values that rows share, as those of a dictionary are, and the room that they take when every row has its own: a small file
//! may have more of them than memory holds. Pure: arrays in, numbers out.

use arrow::array::{Array, AsArray, OffsetSizeTrait, RecordBatch, make_array};
use arrow::datatypes::{DataType, Field};
use shardfmt::row::MAX_ROW_BYTES;

use super::{LARGE_BYTES, PIECE_ROWS};

/// The parts of a record batch, each small enough for a piece as plain rows.
///
/// # Errors
/// The fault, in words, when a row is too large for any piece.
pub(crate) fn slices(batch: RecordBatch) -> Result<Vec<RecordBatch>, String> {
    let mut slices = Vec::new();
    cut(batch, LARGE_BYTES, &mut slices)?;
    Ok(slices)
}

/// Cuts a record batch into parts of at most this number of bytes, or a single row.
fn cut(batch: RecordBatch, most: u64, slices: &mut Vec<RecordBatch>) -> Result<(), String> {
    let rows = batch.num_rows();
    let bytes = batch.columns().iter().map(|column| plain_bytes(column)).fold(0, u64::saturating_add);
    if rows as u64 <= PIECE_ROWS && bytes <= most || rows == 1 && bytes <= MAX_ROW_BYTES as u64 {
        slices.push(batch);
        return Ok(());
    }
    if rows <= 1 {
        return Err(format!("a row of it has {bytes} bytes, the most is {MAX_ROW_BYTES}"));
    }
    cut(batch.slice(0, rows / 2), most, slices)?;
    cut(batch.slice(rows / 2, rows - rows / 2), most, slices)
}

/// Whether values of a type may take more as plain values than they do in the file: because they can be shared.
pub(super) fn grows(data_type: &DataType) -> bool {
    let field = |field: &Field| grows(field.data_type());
    match data_type {
        DataType::Dictionary(..)
        | DataType::RunEndEncoded(..)
        | DataType::Utf8View
        | DataType::BinaryView
        | DataType::ListView(_)
        | DataType::LargeListView(_) => true,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => field(item),
        DataType::Struct(fields) => fields.iter().any(|item| field(item)),
        _ => false,
    }
}

/// The size of an array's values as plain values, or more.
fn plain_bytes(array: &dyn Array) -> u64 {
    let each = |values: &dyn Array| (array.len() as u64).saturating_mul(widest(values));
    match array.data_type() {
        DataType::Dictionary(..) => each(array.as_any_dictionary().values()),
        DataType::RunEndEncoded(..) => {
            array.to_data().child_data().last().map_or(0, |values| each(&make_array(values.clone())))
        }
        DataType::Utf8View => array.as_string_view().lengths().map(u64::from).sum(),
        DataType::BinaryView => array.as_binary_view().lengths().map(u64::from).sum(),
        DataType::ListView(_) => {
            let list = array.as_list_view::<i32>();
            let items: u64 = list.sizes().iter().map(|&size| u64::try_from(size).unwrap_or(0)).sum();
            items.saturating_mul(widest(list.values()))
        }
        DataType::LargeListView(_) => {
            let list = array.as_list_view::<i64>();
            let sizes = list.sizes().iter().map(|&size| u64::try_from(size).unwrap_or(0));
            sizes.fold(0, u64::saturating_add).saturating_mul(widest(list.values()))
        }
        DataType::List(_) => {
            let (list, offsets) = (array.as_list::<i32>(), array.as_list::<i32>().offsets());
            let (first, last) = (offsets[0] as usize, offsets[offsets.len() - 1] as usize);
            plain_bytes(&list.values().slice(first, last - first))
        }
        DataType::LargeList(_) => {
            let (list, offsets) = (array.as_list::<i64>(), array.as_list::<i64>().offsets());
            let (first, last) = (offsets[0] as usize, offsets[offsets.len() - 1] as usize);
            plain_bytes(&list.values().slice(first, last - first))
        }
        DataType::Map(..) => {
            let (map, offsets) = (array.as_map(), array.as_map().offsets());
            let (first, last) = (offsets[0] as usize, offsets[offsets.len() - 1] as usize);
            plain_bytes(&map.entries().slice(first, last - first))
        }
        DataType::FixedSizeList(..) => plain_bytes(array.as_fixed_size_list().values()),
        DataType::Struct(_) => {
            let columns = array.as_struct().columns().iter();
            columns.map(|column| plain_bytes(column)).fold(0, u64::saturating_add)
        }
        _ => array.to_data().get_slice_memory_size().map_or(u64::MAX, |bytes| bytes as u64),
    }
}

/// The largest size of an array's value as a plain value, or more.
fn widest(array: &dyn Array) -> u64 {
    fn between<O: OffsetSizeTrait>(offsets: &[O]) -> u64 {
        offsets.windows(2).map(|pair| (pair[1] - pair[0]).as_usize() as u64).max().unwrap_or(0)
    }
    match array.data_type() {
        DataType::Utf8 => between(array.as_string::<i32>().offsets()),
        DataType::Binary => between(array.as_binary::<i32>().offsets()),
        DataType::LargeUtf8 => between(array.as_string::<i64>().offsets()),
        DataType::LargeBinary => between(array.as_binary::<i64>().offsets()),
        other => match other.primitive_width() {
            Some(width) => width as u64,
            None => {
                let values = (0..array.len()).map(|index| plain_bytes(&array.slice(index, 1)));
                values.max().unwrap_or(0)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, DictionaryArray, Int32Array, ListArray, StringArray, StringViewArray};
    use arrow::buffer::OffsetBuffer;
    use arrow::compute::cast;
    use arrow::datatypes::Int32Type;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_part_is_larger_than_was_thought(
            values in prop::collection::vec("[a-z]{0,40}", 1..5),
            keys in prop::collection::vec(prop::option::of(0..100i32), 1..60),
            counts in prop::collection::vec(0..9usize, 1..20),
            most in 1..2000u64,
        ) {
            let keys: Int32Array = keys.iter().map(|key| key.map(|key| key % values.len() as i32)).collect();
            let all = keys.len();
            let dictionary = DictionaryArray::<Int32Type>::new(keys, Arc::new(StringArray::from(values)));
            let plain = cast(&dictionary, &DataType::Utf8).unwrap();
            let views = StringViewArray::from_iter(plain.as_string::<i32>());
            let mut left = all;
            let counts = counts.iter().map(|&count| {
                let count = count.min(left);
                left -= count;
                count
            });
            let offsets = OffsetBuffer::<i32>::from_lengths(counts.collect::<Vec<_>>());
            let item = Arc::new(Field::new_list_field(dictionary.data_type().clone(), true));
            let lists: ArrayRef = Arc::new(ListArray::new(item, offsets, Arc::new(dictionary.clone()), None));
            let columns: [(ArrayRef, DataType); 3] = [
                (Arc::new(dictionary), DataType::Utf8),
                (Arc::new(views), DataType::Utf8),
                (lists, DataType::new_list(DataType::Utf8, true)),
            ];
            for (column, plain) in columns {
                prop_assert!(grows(column.data_type()) && !grows(&plain));
                let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
                let mut parts = Vec::new();
                cut(batch.clone(), most, &mut parts).unwrap();
                prop_assert_eq!(parts.iter().map(RecordBatch::num_rows).sum::<usize>(), batch.num_rows());
                for part in parts {
                    let plain = cast(part.column(0), &plain).unwrap();
                    let texts = plain.as_list_opt::<i32>().map_or(plain.clone(), |list| list.values().clone());
                    let bytes = texts.as_string::<i32>().value_data().len() as u64;
                    prop_assert!(bytes <= plain_bytes(part.column(0)));
                    prop_assert!(bytes <= most || part.num_rows() == 1);
                }
            }
        }
    }
}
