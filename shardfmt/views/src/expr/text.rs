//! Functions of strings, and the lengths of strings, lists and binaries.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, GenericStringArray, Int64Array, LargeStringBuilder, OffsetSizeTrait,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::compute::kernels::{comparison, length};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

use super::fold;
use super::types::Class;
use super::value::Value;

/// Case of letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    Lower,
    Upper,
}

/// Where one string is looked for in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    Contains,
    EndsWith,
    StartsWith,
}

/// Runs `$body` with `$array` as the one of the three types of strings that it has.
macro_rules! with_strings {
    ($array:expr, $strings:ident => $body:expr) => {
        match $array.data_type() {
            DataType::Utf8 => {
                let $strings = $array.as_string::<i32>();
                $body
            }
            DataType::LargeUtf8 => {
                let $strings = $array.as_string::<i64>();
                $body
            }
            DataType::Utf8View => {
                let $strings = $array.as_string_view();
                $body
            }
            other => return Err(ArrowError::InvalidArgumentError(format!("{other} is no string"))),
        }
    };
}
pub(super) use with_strings;

/// The strings in lower or upper case, of the same type.
pub(super) fn recase(case: Case, array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let ascii = match array.data_type() {
        DataType::Utf8 => recase_ascii(case, array.as_string::<i32>()),
        DataType::LargeUtf8 => recase_ascii(case, array.as_string::<i64>()),
        _ => None,
    };
    if let Some(ascii) = ascii {
        return Ok(ascii);
    }
    let mut recased = LargeStringBuilder::with_capacity(array.len(), 16 * array.len());
    let mut buffer = String::new();
    with_strings!(array, strings => for text in strings.iter() {
        match text {
            None => recased.append_null(),
            Some(text) => {
                buffer.clear();
                recase_into(case, text, &mut buffer);
                recased.append_value(&buffer);
            }
        }
    });
    cast(&recased.finish(), array.data_type())
}

/// All strings at once, if all bytes are ASCII.
fn recase_ascii<O: OffsetSizeTrait>(case: Case, array: &GenericStringArray<O>) -> Option<ArrayRef> {
    let offsets = array.value_offsets();
    let (first, last) = (*offsets.first()?, *offsets.last()?);
    let bytes = &array.value_data()[first.as_usize()..last.as_usize()];
    if !bytes.is_ascii() {
        return None;
    }
    let recased = match case {
        Case::Lower => bytes.to_ascii_lowercase(),
        Case::Upper => bytes.to_ascii_uppercase(),
    };
    let offsets = OffsetBuffer::new(offsets.iter().map(|offset| *offset - first).collect());
    Some(Arc::new(GenericStringArray::new(offsets, recased.into(), array.nulls().cloned())))
}

/// Appends `text` in the given case. Each character becomes one character, as with DuckDB's `lower` and
/// `upper`: the simple mappings of Unicode, and `ß` becomes `ẞ`.
pub(super) fn recase_into(case: Case, text: &str, buffer: &mut String) {
    if text.is_ascii() {
        let start = buffer.len();
        buffer.push_str(text);
        match case {
            Case::Lower => buffer[start..].make_ascii_lowercase(),
            Case::Upper => buffer[start..].make_ascii_uppercase(),
        }
        return;
    }
    match case {
        Case::Lower => buffer.extend(text.chars().map(lower)),
        Case::Upper => buffer.extend(text.chars().map(upper)),
    }
}

/// The simple lower case of a character.
pub(crate) fn lower(c: char) -> char {
    if c == 'İ' { 'i' } else { only(c.to_lowercase(), c) }
}

fn upper(c: char) -> char {
    if c == 'ß' { 'ẞ' } else { only(c.to_uppercase(), c) }
}

/// The mapping's character if there is but one, else the character itself.
fn only(mut mapped: impl Iterator<Item = char>, c: char) -> char {
    match (mapped.next(), mapped.next()) {
        (Some(one), None) => one,
        _ => c,
    }
}

/// Characters of strings, items of lists, bytes of binaries.
pub(super) fn lengths(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    if Class::of(array.data_type()) != Class::Text {
        return cast(&length::length(array)?, &DataType::Int64);
    }
    let count = |text: &str| i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let counts = with_strings!(array, strings => Int64Array::from_unary(strings, count));
    Ok(Arc::new(counts))
}

/// Whether `left` contains, begins with or ends with `right`. Both have the same type of strings.
pub(super) fn search(search: Search, left: &Value, right: &Value) -> Result<Value, ArrowError> {
    let found = match search {
        Search::Contains => comparison::contains(left, right)?,
        Search::EndsWith => comparison::ends_with(left, right)?,
        Search::StartsWith => comparison::starts_with(left, right)?,
    };
    Ok(Value { array: Arc::new(found), is_scalar: left.is_scalar && right.is_scalar })
}

/// A LIKE pattern in the language of Arrow's kernel, in which a backslash escapes.
///
/// # Errors
/// The pattern ends with its escape character.
pub(super) fn arrow_pattern(
    pattern: &str,
    escape: Option<char>,
    ignore_case: bool,
) -> Result<String, &'static str> {
    let mut lowered = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        let literal = if Some(c) == escape {
            chars.next().ok_or("the pattern ends with its escape character")?
        } else if c == '%' || c == '_' {
            lowered.push(c);
            continue;
        } else {
            c
        };
        let literal = if ignore_case { lower(literal) } else { literal };
        if matches!(literal, '%' | '_' | '\\') {
            lowered.push('\\');
        }
        lowered.push(literal);
    }
    Ok(lowered)
}

/// Whether each string matches the pattern of [`arrow_pattern`].
pub(super) fn like(array: &ArrayRef, pattern: &str, ignore_case: bool) -> Result<ArrayRef, ArrowError> {
    let lowered;
    let array = if ignore_case {
        lowered = recase(Case::Lower, array)?;
        &lowered
    } else {
        array
    };
    let pattern = fold::string(array.data_type(), pattern)
        .ok_or_else(|| ArrowError::InvalidArgumentError(format!("{} is no string", array.data_type())))?;
    Ok(Arc::new(comparison::like(array, &Value::scalar(pattern))?))
}
