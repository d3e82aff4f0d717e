//! Arrays of numbers, one in each cell of a column: what NumPy files and MDS say of theirs, what type of column holds all
//! of them, and that column. Knows nothing of where they come from.

use std::sync::Arc;

use arrow::array::{
    ArrayData, ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, ListArray, make_array,
};
use arrow::buffer::{MutableBuffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, FieldRef};
use npyz::{DType, Endianness, Order};

use super::npy;
use super::picture::Pictures;
use crate::image_size::CHANNELS;

/// The bytes read to learn the type of an array: a header longer than this describes no plain numbers.
pub(super) const LONGEST_HEADER: usize = 4 << 10;

/// The facts of an array before its values, which are bytes in little-endian order, the last dimension
/// fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) item: DataType,
    pub(super) shape: Vec<u64>,
}

impl Head {
    /// How many bytes the values take; `None` for more than there can be.
    pub(super) fn bytes(&self) -> Option<u64> {
        let items = self.shape.iter().try_fold(1u64, |all, &size| all.checked_mul(size))?;
        items.checked_mul(width(&self.item) as u64)
    }
}

/// The kind of arrays in a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Arrays {
    /// All have one type and shape.
    Alike(Head),
    /// All have one type and one dimension, but are of different lengths.
    Lists(DataType),
    /// There is no type of column for them all: they stay as they are, encoded.
    Mixed,
}

impl Arrays {
    /// The arrays known so far and another one; `None` for one whose values are not plain numbers in the usual order.
    pub(super) fn and(known: Option<Arrays>, head: Option<Head>) -> Arrays {
        let Some(head) = head else { return Arrays::Mixed };
        let length = head.shape.iter().try_fold(1u64, |all, &size| all.checked_mul(size));
        let is_tensor = length.is_some_and(|length| length > 0 && i32::try_from(length).is_ok());
        match known {
            None if is_tensor => Arrays::Alike(head),
            Some(Arrays::Alike(first)) if first == head => Arrays::Alike(first),
            Some(Arrays::Alike(Head { item, .. }) | Arrays::Lists(item)) if item != head.item => {
                Arrays::Mixed
            }
            Some(Arrays::Alike(first)) if first.shape.len() != 1 => Arrays::Mixed,
            Some(Arrays::Mixed) => Arrays::Mixed,
            _ if head.shape.len() == 1 => Arrays::Lists(head.item),
            _ => Arrays::Mixed,
        }
    }

    /// Whether an array is of this kind, so that its values can stand for it.
    pub(super) fn holds(&self, head: &Head) -> bool {
        match self {
            Arrays::Alike(alike) => alike == head,
            Arrays::Lists(item) => head.item == *item && head.shape.len() == 1,
            Arrays::Mixed => false,
        }
    }

    /// A column of them.
    pub(super) fn field(&self, name: &str, nullable: bool) -> Field {
        match self {
            Arrays::Alike(Head { item, shape }) if shape.is_empty() => {
                Field::new(name, item.clone(), nullable)
            }
            Arrays::Alike(Head { item, shape }) => tensor_field(name, item, shape, nullable),
            Arrays::Lists(item) => Field::new(name, DataType::List(item_field(item)), nullable),
            Arrays::Mixed => Field::new(name, DataType::Binary, nullable),
        }
    }

    /// The column, of the values of each array: its bytes, or `None` for null.
    pub(super) fn column<'v>(&self, cells: impl ExactSizeIterator<Item = Option<&'v [u8]>>) -> ArrayRef {
        let count = cells.len();
        let (item, fixed) = match self {
            Arrays::Mixed => return Arc::new(BinaryArray::from_iter(cells)),
            Arrays::Lists(item) => (item, None),
            Arrays::Alike(head) => {
                (&head.item, Some(head.bytes().expect("as many as memory holds") as usize))
            }
        };
        let mut values = MutableBuffer::with_capacity(0);
        let (mut present, mut lengths) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for cell in cells {
            present.push(cell.is_some());
            match (cell, fixed) {
                (Some(bytes), _) => values.extend_from_slice(bytes),
                (None, Some(bytes)) => values.extend_zeros(bytes),
                (None, None) => {}
            }
            lengths.push(cell.map_or(0, <[u8]>::len) / width(item));
        }
        let nulls = present.contains(&false).then(|| NullBuffer::from(present));
        match self {
            Arrays::Alike(Head { item, shape }) if shape.is_empty() => numbers(item, values, nulls),
            Arrays::Alike(head) => {
                let size = (head.bytes().expect("checked above") as usize / width(item)) as i32;
                let values = numbers(item, values, None);
                Arc::new(FixedSizeListArray::new(item_field(item), size, values, nulls))
            }
            _ => {
                let (item, offsets) = (item_field(item), OffsetBuffer::from_lengths(lengths));
                let values = numbers(item.data_type(), values, None);
                Arc::new(ListArray::new(item, offsets, values, nulls))
            }
        }
    }
}

/// A column of numbers, each of them as its bytes; zeros where there is null.
pub(super) fn numbers(item: &DataType, values: MutableBuffer, nulls: Option<NullBuffer>) -> ArrayRef {
    if *item == DataType::Boolean {
        let values = values.as_slice().iter().map(|&value| value != 0).collect();
        return Arc::new(BooleanArray::new(values, nulls));
    }
    let length = values.len() / width(item);
    let array = ArrayData::builder(item.clone()).len(length).add_buffer(values.into()).nulls(nulls);
    make_array(array.build().expect("as many values as bytes make, aligned for all types"))
}

/// The bytes of a number.
pub(super) fn width(item: &DataType) -> usize {
    item.primitive_width().unwrap_or(1)
}

/// Images as a column: encoded, or the pixels of each.
pub(super) fn picture_field(name: &str, pictures: Pictures, nullable: bool) -> Field {
    match pictures {
        Pictures::Encoded => Field::new(name, DataType::Binary, nullable),
        Pictures::Decoded { .. } => pixels(pictures).field(name, nullable),
    }
}

/// The pixels of decoded images, as arrays; encoded images are none.
pub(super) fn pixels(pictures: Pictures) -> Arrays {
    let Pictures::Decoded { size, .. } = pictures else { return Arrays::Mixed };
    let shape = [size.height(), size.width(), CHANNELS].map(u64::from).to_vec();
    Arrays::Alike(Head { item: DataType::UInt8, shape })
}

/// The type of a NumPy file's array, if that is plain, and where the values begin.
pub(super) fn npy(mut file: &[u8]) -> Result<(Option<Head>, usize), String> {
    let header = npy::header(&mut file).map_err(|reason| format!("is no NumPy array ({reason})"));
    let (header, start) = header?;
    let is_in_order = header.order() == Order::C || header.shape().len() <= 1;
    let item = match header.dtype() {
        DType::Plain(plain) if plain.endianness() != Endianness::Big => {
            npy::number(plain.type_char(), plain.size_field())
        }
        _ => None,
    };
    let head = item.map(|item| Head { item, shape: header.shape().to_vec() });
    Ok((head.filter(|head| is_in_order && head.bytes().is_some()), start as usize))
}

/// The shape that a field of lists of one length has as a field of tensors, if it is one.
pub(super) fn tensor_shape(lists: &Field) -> Option<Vec<u64>> {
    #[derive(serde::Deserialize)]
    struct Metadata {
        shape: Vec<u64>,
    }
    let metadata = lists.metadata().get("ARROW:extension:metadata")?;
    serde_json::from_str(metadata).ok().map(|Metadata { shape }| shape)
}

/// A column of lists, all of one length, as tensors of this shape.
pub(super) fn as_tensors(lists: Field, shape: &[u64]) -> Field {
    lists.with_metadata([
        ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
        ("ARROW:extension:metadata".to_owned(), serde_json::json!({ "shape": shape }).to_string()),
    ])
}

fn tensor_field(name: &str, item: &DataType, shape: &[u64], nullable: bool) -> Field {
    let length = shape.iter().product::<u64>();
    let length = i32::try_from(length).expect("checked when the arrays were compared");
    as_tensors(Field::new(name, DataType::FixedSizeList(item_field(item), length), nullable), shape)
}

fn item_field(item: &DataType) -> FieldRef {
    Arc::new(Field::new_list_field(item.clone(), false))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(item: DataType, shape: &[u64]) -> Option<Head> {
        Some(Head { item, shape: shape.to_vec() })
    }

    fn all(heads: &[Option<Head>]) -> Option<Arrays> {
        heads.iter().cloned().fold(None, |known, head| Some(Arrays::and(known, head)))
    }

    #[test]
    fn arrays_of_a_column_are_tensors_or_lists_or_stay_as_they_are() {
        use DataType::{Float32, Int8};
        let (square, row, long) = (head(Int8, &[2, 2]), head(Int8, &[3]), head(Int8, &[5]));
        let lists = Some(Arrays::Lists(Int8));
        assert_eq!(all(&[square.clone(), square.clone()]), square.clone().map(Arrays::Alike));
        assert_eq!(all(&[row.clone(), row.clone()]), row.clone().map(Arrays::Alike));
        assert_eq!(all(&[row.clone(), long.clone(), row.clone()]), lists);
        assert_eq!(all(&[head(Int8, &[0]), row.clone()]), lists);
        for others in [square.clone(), head(Float32, &[3]), head(Int8, &[]), None, head(Int8, &[u64::MAX, 2])]
        {
            assert_eq!(all(&[row.clone(), long.clone(), others.clone(), row.clone()]), Some(Arrays::Mixed));
            assert_eq!(all(&[others.clone(), row.clone(), others]), Some(Arrays::Mixed));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_after_the_magic_are_read_without_a_panic(version in 0..5u8, bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let file = [b"\x93NUMPY".as_slice(), &[version, 0], &bytes].concat();
            let _ = npy(&file);
        }

        #[test]
        fn any_description_is_read_without_a_panic(text in "\\{'descr': ?'?[<>|]?[biufcV]?[0-9]{0,3}'?, ?'fortran_order': (True|False), 'shape': \\([0-9, ]{0,30}\\), ?\\}") {
            let length = u16::try_from(text.len()).unwrap().to_le_bytes();
            let file = [b"\x93NUMPY\x01\x00".as_slice(), &length, text.as_bytes()].concat();
            if let Ok((Some(head), start)) = npy(&file) {
                prop_assert_eq!(start, file.len());
                prop_assert!(head.bytes().is_some());
            }
        }
    }
}
