//! The bytes of the samples in a column.

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray};
use arrow::datatypes::{DataType, Float32Type, Int16Type, UInt8Type};

/// Where the bytes of each sample are.
pub(super) enum Samples<'a> {
    Bytes(Box<dyn Fn(usize) -> Option<&'a [u8]> + 'a>),
    Numbers { bytes: &'a [u8], size: usize, width: usize, list: &'a FixedSizeListArray },
}

impl<'a> Samples<'a> {
    pub(super) fn of(column: &'a ArrayRef) -> Self {
        fn present<'a>(array: &'a dyn Array, row: usize, value: &'a [u8]) -> Option<&'a [u8]> {
            array.is_valid(row).then_some(value)
        }
        match column.data_type() {
            DataType::LargeBinary => {
                let array = column.as_binary::<i64>();
                Self::Bytes(Box::new(move |row| present(array, row, array.value(row))))
            }
            DataType::BinaryView => {
                let array = column.as_binary_view();
                Self::Bytes(Box::new(move |row| present(array, row, array.value(row))))
            }
            DataType::FixedSizeList(_, width) => {
                let list = column.as_fixed_size_list();
                let (bytes, size) = match list.value_type() {
                    DataType::Int16 => {
                        (list.values().as_primitive::<Int16Type>().values().inner().as_slice(), 2)
                    }
                    DataType::Float32 => {
                        (list.values().as_primitive::<Float32Type>().values().inner().as_slice(), 4)
                    }
                    _ => (list.values().as_primitive::<UInt8Type>().values().inner().as_slice(), 1),
                };
                Self::Numbers { bytes, size, width: *width as usize, list }
            }
            _ => {
                let array = column.as_binary::<i32>();
                Self::Bytes(Box::new(move |row| present(array, row, array.value(row))))
            }
        }
    }

    pub(super) fn get(&self, row: usize) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(of_row) => of_row(row),
            Self::Numbers { bytes, size, width, list } => {
                let start = list.value_offset_at(row);
                list.is_valid(row).then(|| &bytes[start * size..(start + width) * size])
            }
        }
    }
}
