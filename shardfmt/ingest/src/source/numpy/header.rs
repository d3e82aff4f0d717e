//! What the header of an `.npy` file says, checked before it is believed. Pure: bytes in, numbers out.

use std::io::Read;

use npyz::{DType, NpyHeader, Order};
use shardfmt::row::MAX_ROW_BYTES;

use super::super::npy;

/// An array of rows.
#[derive(Clone, Debug)]
pub(super) struct Header {
    /// Where the values begin.
    pub(super) length: u64,
    pub(super) rows: u64,
    /// The kind of a row.
    pub(super) row: DType,
    pub(super) row_bytes: usize,
    /// The dimensions of a row, for those whose values lie in Fortran order: with rows as the fastest of all.
    pub(super) fortran: Option<Vec<u64>>,
    /// The bytes of one value.
    pub(super) item_bytes: usize,
}

impl Header {
    /// Reads the header at the beginning of an array that has `bytes` bytes, header and all.
    ///
    /// # Errors
    /// The fault, in words.
    pub(super) fn read(array: &mut dyn Read, bytes: u64) -> Result<Header, String> {
        let (header, length) = npy::header(array)?;
        Self::check(&header, length, bytes)
    }

    fn check(header: &NpyHeader, length: u64, bytes: u64) -> Result<Header, String> {
        let [rows, row @ ..] = header.shape() else {
            return Err("it is a single value, not an array of rows".to_owned());
        };
        let item_bytes = match header.dtype().num_bytes() {
            Some(bytes) => bytes,
            None if header.uses_pickled_array() => {
                return Err("it holds Python objects; save it with a type of numbers or texts".to_owned());
            }
            None => return Err("its type is too large".to_owned()),
        };
        let row_bytes = row.iter().try_fold(item_bytes as u64, |bytes, &size| bytes.checked_mul(size));
        let row_bytes = row_bytes.filter(|&bytes| bytes <= MAX_ROW_BYTES as u64);
        let row_bytes =
            row_bytes.ok_or_else(|| format!("a row of it has more than {MAX_ROW_BYTES} bytes"))?;
        if row_bytes == 0 {
            return Err("its rows have no bytes".to_owned());
        }
        let expected = rows.checked_mul(row_bytes).and_then(|values| values.checked_add(length));
        if expected != Some(bytes) {
            let shape: Vec<String> = header.shape().iter().map(u64::to_string).collect();
            return Err(format!("its {bytes} bytes are not those of a shape ({})", shape.join(", ")));
        }
        let is_fortran = header.order() == Order::Fortran && !row.is_empty();
        Ok(Header {
            length,
            rows: *rows,
            row: row.iter().rev().fold(header.dtype(), |inner, &size| DType::Array(size, Box::new(inner))),
            row_bytes: row_bytes as usize,
            fortran: is_fortran.then(|| row.to_vec()),
            item_bytes,
        })
    }

    /// Where each value of a row, in C order, stands in Fortran order.
    pub(super) fn places(row: &[u64]) -> impl Iterator<Item = u64> {
        let count: u64 = row.iter().product();
        (0..count).map(move |mut index| {
            let (mut stride, mut place) = (count, 0);
            for &size in row.iter().rev() {
                stride /= size;
                place += index % size * stride;
                index /= size;
            }
            place
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str, values: u64) -> Result<Header, String> {
        let mut file = b"\x93NUMPY\x01\0".to_vec();
        file.extend((text.len() as u16).to_le_bytes());
        file.extend(text.as_bytes());
        let bytes = file.len() as u64 + values;
        Header::read(&mut file.as_slice(), bytes)
    }

    fn shape(shape: &str) -> String {
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n")
    }

    #[test]
    fn headers_are_compared_with_what_is_there() {
        let header = read(&shape("(3, 2)"), 24).unwrap();
        assert_eq!((header.rows, header.row_bytes, header.item_bytes), (3, 8, 4));
        for (text, reason) in [
            (shape("(4, 2)"), "not those of a shape"),
            (shape("()"), "single value"),
            (shape("(3, 0)"), "no bytes"),
            (shape("(0, 4611686018427387904, 4)"), "a row of it"),
            (shape("(18446744073709551615, 4)"), "not those of a shape"),
            (shape("(6,)").replace("<f4", "|O"), "Python objects"),
            (shape("(6,)").replace("'<f4'", "'<f4"), "parse"),
            ("(".repeat(5000), "too deep"),
            ("{".repeat(5000), "dictionary in a dictionary"),
            ("[((".to_owned(), "parse"),
        ] {
            let refused = read(&text, 24).unwrap_err();
            assert!(refused.contains(reason), "{reason:?} not in {refused:?}");
        }
        let mut file = b"\x93NUMPY\x02\0\xff\xff\xff\xff".to_vec();
        file.resize(100, b' ');
        assert!(Header::read(&mut file.as_slice(), 100).unwrap_err().contains("the most is"));
    }

    #[test]
    fn places_are_those_of_a_transposed_array() {
        // Of a row of shape (2, 3), value (i, j) stands at i + 2 j when the first index changes fastest.
        assert_eq!(Header::places(&[2, 3]).collect::<Vec<_>>(), [0, 2, 4, 1, 3, 5]);
    }

    proptest! {
        #[test]
        fn no_header_is_a_panic(bytes in prop::collection::vec(prop::sample::select(b"{}[]()'\",: <f48descrshape\\".to_vec()), 0..80)) {
            let _ = read(std::str::from_utf8(&bytes).unwrap(), 8);
            let damaged = shape("(3, 2)").replace("'shape'", std::str::from_utf8(&bytes).unwrap());
            let _ = read(&damaged, 24);
        }
    }
}
