//! Lists of numbers as NumPy arrays. The values lie in a canonical row just as NumPy wants them, so this is a
//! header before unchanged bytes; a file must have the very header that would be written.

use arrow::datatypes::{DataType, Field};

use super::tree::{Reason, items, put, put_length, take, take_length};

const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";

/// The metadata of a field that is a tensor of fixed shape.
const EXTENSION: [&str; 2] = ["ARROW:extension:name", "arrow.fixed_shape_tensor"];
const EXTENSION_METADATA: &str = "ARROW:extension:metadata";

/// A column whose values can be arrays.
#[derive(Debug)]
pub(super) struct Dense {
    /// How many lists lie in each other, and how long all of them together are; `None` for one list of any length.
    fixed: Option<(usize, usize)>,
    shape: Vec<usize>,
    descr: &'static str,
    width: usize,
}

impl Dense {
    /// Whether values of the column can be arrays: fixed-size lists of numbers, in each other to any depth, or a list of
    /// them.
    pub(super) fn of(column: &Field) -> Option<Self> {
        let mut shape = Vec::new();
        let mut field = column;
        while let DataType::FixedSizeList(inner, size) = field.data_type() {
            shape.push(usize::try_from(*size).ok()?);
            field = inner;
        }
        let fixed = match shape.as_slice() {
            [] => {
                field = items(column.data_type())?;
                None
            }
            sizes => Some((sizes.len(), sizes.iter().try_fold(1usize, |all, size| all.checked_mul(*size))?)),
        };
        let (descr, width) = numpy_type(field.data_type())?;
        let tensor = fixed.and_then(|(_, length)| tensor_shape(column, length));
        Some(Self { fixed, shape: tensor.unwrap_or(shape), descr, width })
    }

    /// Takes the value off the front of `bytes`, past its presence, and gives it as a file; `None` if there are nulls
    /// in it.
    pub(super) fn take(&self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, Reason> {
        let mut rest = *bytes;
        let (depth, length) = match self.fixed {
            Some(fixed) => fixed,
            None => (1, take_length(&mut rest)?),
        };
        if length > 0 {
            // A run of each list that the next lies in, then that of the numbers.
            for _ in 0..depth {
                if take(&mut rest, 1)? != [1] {
                    return Ok(None);
                }
            }
        }
        let values = take(&mut rest, length.saturating_mul(self.width))?;
        *bytes = rest;
        let mut file = self.header(length);
        file.extend_from_slice(values);
        Ok(Some(file))
    }

    /// Appends the value that a file holds, after its presence.
    pub(super) fn put(&self, file: &[u8], out: &mut Vec<u8>) -> Result<(), Reason> {
        let header = file.strip_prefix(MAGIC).ok_or("is no NumPy 1.0 array")?;
        let (length, rest) = header.split_first_chunk().ok_or("is cut off")?;
        let length = usize::from(u16::from_le_bytes(*length));
        let (header, values) = rest.split_at_checked(length).ok_or("is cut off")?;
        let (depth, length) = self.fixed.unwrap_or((1, values.len() / self.width));
        let expected = self.describe(length);
        if header.trim_ascii() != expected.as_bytes() {
            let found: String = String::from_utf8_lossy(header.trim_ascii()).chars().take(120).collect();
            return Err(format!("is an array {found} instead of {expected}"));
        }
        if Some(values.len()) != length.checked_mul(self.width) {
            return Err(format!("has {} bytes of values for {expected}", values.len()));
        }
        if self.descr == "|b1" && values.iter().any(|value| *value > 1) {
            return Err("has a boolean that is neither 0 nor 1".to_owned());
        }
        if self.fixed.is_none() {
            put_length(length, out)?;
        }
        if length > 0 {
            (0..depth).try_for_each(|_| put(out, &[1]))?;
        }
        put(out, values)
    }

    fn header(&self, length: usize) -> Vec<u8> {
        let text = self.describe(length);
        // Padded with spaces, so that the values begin at a multiple of 64, and ended by a newline.
        let end = (MAGIC.len() + 2 + text.len() + 1).next_multiple_of(64);
        let padded = end - MAGIC.len() - 2;
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(&u16::try_from(padded).expect("at most 32 dimensions").to_le_bytes());
        file.extend_from_slice(text.as_bytes());
        file.resize(end - 1, b' ');
        file.push(b'\n');
        file
    }

    /// The text of the header, as NumPy itself writes it.
    fn describe(&self, length: usize) -> String {
        let shape = match (self.fixed, self.shape.as_slice()) {
            (None, _) => format!("({length},)"),
            (Some(_), [one]) => format!("({one},)"),
            (Some(_), sizes) => {
                format!("({})", sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
            }
        };
        format!("{{'descr': '{}', 'fortran_order': False, 'shape': {shape}, }}", self.descr)
    }
}

fn numpy_type(data_type: &DataType) -> Option<(&'static str, usize)> {
    Some(match data_type {
        DataType::Boolean => ("|b1", 1),
        DataType::Int8 => ("|i1", 1),
        DataType::UInt8 => ("|u1", 1),
        DataType::Int16 => ("<i2", 2),
        DataType::UInt16 => ("<u2", 2),
        DataType::Int32 => ("<i4", 4),
        DataType::UInt32 => ("<u4", 4),
        DataType::Int64 => ("<i8", 8),
        DataType::UInt64 => ("<u8", 8),
        DataType::Float16 => ("<f2", 2),
        DataType::Float32 => ("<f4", 4),
        DataType::Float64 => ("<f8", 8),
        _ => return None,
    })
}

/// The shape that a tensor's metadata says, if it has as many values as the lists.
fn tensor_shape(column: &Field, length: usize) -> Option<Vec<usize>> {
    let metadata = column.metadata();
    if metadata.get(EXTENSION[0]).map(String::as_str) != Some(EXTENSION[1]) {
        return None;
    }
    let said: serde_json::Value = serde_json::from_str(metadata.get(EXTENSION_METADATA)?).ok()?;
    let sizes = said.get("shape")?.as_array()?.iter();
    let sizes: Vec<usize> = sizes.map(|size| usize::try_from(size.as_u64()?).ok()).collect::<Option<_>>()?;
    let all = sizes.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
    (all == Some(length) && (1..=32).contains(&sizes.len())).then_some(sizes)
}
