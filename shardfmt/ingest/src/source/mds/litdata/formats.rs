//! How LitData writes arrays. Pure functions on bytes from outside.

use arrow::datatypes::DataType;

use crate::source::arrays::{Arrays, Head, width};

type Reason = String;

/// The types of numbers, at the places where LitData lists those of PyTorch. Complex numbers and bfloat16 are not read.
const TORCH: [Option<DataType>; 21] = {
    use DataType::*;
    [
        Some(Float32),
        Some(Float32),
        Some(Float64),
        Some(Float64),
        None,
        None,
        None,
        None,
        Some(Float16),
        Some(Float16),
        None,
        Some(UInt8),
        Some(Int8),
        Some(Int16),
        Some(Int16),
        Some(Int32),
        Some(Int32),
        Some(Int64),
        Some(Int64),
        Some(Boolean),
        Some(UInt16),
    ]
};

/// The same of NumPy. Complex numbers, objects and texts are not read.
const NUMPY: [Option<DataType>; 14] = {
    use DataType::*;
    [
        Some(Int8),
        Some(Int16),
        Some(Int32),
        Some(Int64),
        Some(UInt8),
        Some(UInt16),
        Some(UInt32),
        Some(UInt64),
        Some(Float16),
        Some(Float32),
        Some(Float64),
        None,
        None,
        Some(Boolean),
    ]
};

/// The form of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::source::mds) enum Form {
    /// Type, dimensions and sizes, in little-endian order, and values.
    Numpy,
    /// The same, where the numbers before the values are in big-endian order.
    Torch,
    /// Values of this type, of one dimension.
    Bare(DataType),
}

impl Form {
    /// The form of arrays of a format: its name, and what follows a colon in it. `None` if it has no arrays.
    pub(in crate::source::mds) fn parse(name: &str, detail: Option<&str>) -> Option<Result<Form, Reason>> {
        let types: &[_] = match (name, detail) {
            ("numpy", None) => return Some(Ok(Form::Numpy)),
            ("tensor", None) => return Some(Ok(Form::Torch)),
            ("no_header_numpy", Some(_)) => &NUMPY,
            ("no_header_tensor", Some(_)) => &TORCH,
            _ => return None,
        };
        let place = detail.unwrap_or_default();
        let item = place.parse().ok().and_then(|place| number(place, types));
        let unread = || format!("has arrays of type {place}, which is not read; leave it out (`columns`)");
        Some(item.map(Form::Bare).ok_or_else(unread))
    }

    /// What arrays are, if no sample has one.
    pub(in crate::source::mds) fn of_none(&self) -> Arrays {
        match self {
            Form::Bare(item) => Arrays::Lists(item.clone()),
            Form::Numpy | Form::Torch => Arrays::Mixed,
        }
    }

    /// The header of an array, and its values.
    pub(in crate::source::mds) fn take<'a>(&self, array: &'a [u8]) -> Result<(Head, &'a [u8]), Reason> {
        let cut_off = || "is an array that is cut off".to_owned();
        let (head, values) = match self {
            Form::Bare(item) => {
                let width = width(item);
                if !array.len().is_multiple_of(width) {
                    return Err(format!("is an array of {} bytes, no multiple of {width}", array.len()));
                }
                (Head { item: item.clone(), shape: vec![(array.len() / width) as u64] }, array)
            }
            Form::Numpy | Form::Torch => {
                let word = |bytes: &[u8; 4]| match self {
                    Form::Torch => u32::from_be_bytes(*bytes),
                    _ => u32::from_le_bytes(*bytes),
                };
                let types: &[_] = if *self == Form::Torch { &TORCH } else { &NUMPY };
                let (place, rest) = array.split_first_chunk().ok_or_else(cut_off)?;
                let (dimensions, rest) = rest.split_first_chunk().ok_or_else(cut_off)?;
                let place = word(place);
                let item = number(place, types)
                    .ok_or_else(|| format!("is an array of type {place}, which is not read"))?;
                let sizes =
                    (word(dimensions) as usize).checked_mul(4).and_then(|bytes| rest.split_at_checked(bytes));
                let (sizes, values) = sizes.ok_or_else(cut_off)?;
                let shape = sizes.as_chunks().0.iter().map(|size| u64::from(word(size))).collect();
                (Head { item, shape }, values)
            }
        };
        if head.bytes() != Some(values.len() as u64) {
            return Err(format!(
                "is an array of shape {:?} with {} bytes of values",
                head.shape,
                values.len()
            ));
        }
        Ok((head, values))
    }
}

fn number(place: u32, types: &[Option<DataType>]) -> Option<DataType> {
    types.get(usize::try_from(place).ok()?)?.clone()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn arrays_say_their_type_and_shape() {
        let (head, values) =
            Form::Numpy.take(&[1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 6, 0]).unwrap();
        assert_eq!((head.item, head.shape, values), (DataType::Int16, vec![1, 2], [5, 0, 6, 0].as_slice()));
        let (head, values) = Form::Torch.take(&[0, 0, 0, 18, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!((head.item, head.shape, values.len()), (DataType::Int64, vec![], 8));
        let (head, _) = Form::Bare(DataType::Float32).take(&[0; 12]).unwrap();
        assert_eq!(head.shape, [3]);
        assert!(Form::Bare(DataType::Float32).take(&[0; 11]).unwrap_err().contains("no multiple of 4"));
        assert!(Form::Torch.take(&[0, 0, 0, 10, 0, 0, 0, 0]).unwrap_err().contains("type 10"));
        assert!(Form::Numpy.take(&[1, 0, 0, 0, 255, 255, 255, 255]).unwrap_err().contains("cut off"));
    }

    #[test]
    fn formats_of_arrays_name_their_type() {
        assert_eq!(Form::parse("no_header_numpy", Some("3")), Some(Ok(Form::Bare(DataType::Int64))));
        assert_eq!(Form::parse("no_header_tensor", Some("16")), Some(Ok(Form::Bare(DataType::Int32))));
        assert_eq!(Form::parse("int", None), None);
        for (name, place) in
            [("no_header_tensor", "10"), ("no_header_tensor", "21"), ("no_header_numpy", "x")]
        {
            assert!(Form::parse(name, Some(place)).unwrap().unwrap_err().contains(place));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            for form in [Form::Numpy, Form::Torch, Form::Bare(DataType::Int64)] {
                if let Ok((head, values)) = form.take(&bytes) {
                    prop_assert_eq!(head.bytes(), Some(values.len() as u64));
                }
            }
        }
    }
}
