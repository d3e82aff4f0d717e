//! What the headers of NumPy's arrays say, wherever arrays lie: in files of their own, or in archives. Knows nothing of
//! what becomes of the arrays.

use std::io::Read;

use arrow::datatypes::DataType;
use npyz::{NpyHeader, TypeChar};

use super::caught;
use crate::error::one_line;

/// NumPy itself refuses longer headers by default, at 10,000 bytes.
const LONGEST: usize = 64 << 10;
/// Deeper brackets are refused: what parses them calls itself, and looks twice at some.
const DEEPEST: usize = 8;

/// Reads the header that an array begins with, and how many bytes it has.
///
/// # Errors
/// The fault, in words.
pub(super) fn header(array: &mut dyn Read) -> Result<(NpyHeader, u64), String> {
    let mut head = vec![0; 10];
    array.read_exact(&mut head).map_err(|_| "it is too short")?;
    if !head.starts_with(b"\x93NUMPY") {
        return Err("it does not begin like one".to_owned());
    }
    let text = if head[6] == 1 {
        usize::from(u16::from_le_bytes([head[8], head[9]]))
    } else {
        head.resize(12, 0);
        array.read_exact(&mut head[10..]).map_err(|_| "it is too short")?;
        u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize
    };
    if text > LONGEST {
        return Err(format!("its header has {text} bytes, the most is {LONGEST}"));
    }
    let start = head.len();
    head.resize(start + text, 0);
    array.read_exact(&mut head[start..]).map_err(|_| "it ends within its header")?;
    check_brackets(&head[start..])?;
    let header = caught(|| NpyHeader::from_reader(head.as_slice())).ok_or("its header is none")?;
    Ok((header.map_err(one_line)?, head.len() as u64))
}

/// Arrow's type for plain numbers of NumPy, of this number of bytes each; `None` for other types.
pub(super) fn number(kind: TypeChar, bytes: u64) -> Option<DataType> {
    Some(match (kind, bytes) {
        (TypeChar::Bool, 1) => DataType::Boolean,
        (TypeChar::Int, 1) => DataType::Int8,
        (TypeChar::Int, 2) => DataType::Int16,
        (TypeChar::Int, 4) => DataType::Int32,
        (TypeChar::Int, 8) => DataType::Int64,
        (TypeChar::Uint, 1) => DataType::UInt8,
        (TypeChar::Uint, 2) => DataType::UInt16,
        (TypeChar::Uint, 4) => DataType::UInt32,
        (TypeChar::Uint, 8) => DataType::UInt64,
        (TypeChar::Float, 2) => DataType::Float16,
        (TypeChar::Float, 4) => DataType::Float32,
        (TypeChar::Float, 8) => DataType::Float64,
        _ => return None,
    })
}

/// Refuses a header whose brackets are deeper than any that NumPy writes.
fn check_brackets(text: &[u8]) -> Result<(), String> {
    let (mut depth, mut quote, mut is_escaped) = (0usize, None, false);
    for &byte in text {
        match (quote, byte) {
            _ if is_escaped => is_escaped = false,
            (Some(_), b'\\') => is_escaped = true,
            (Some(open), byte) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(byte),
            (None, b'{') if depth > 0 => return Err("its header has a dictionary in a dictionary".to_owned()),
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST {
            return Err("its header has brackets too deep".to_owned());
        }
    }
    Ok(())
}
