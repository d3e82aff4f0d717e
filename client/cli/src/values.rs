//! Values of samples as short text.

use arrow::array::{Array, AsArray};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use shardd_api::media::Media;

/// A text longer than this is cut.
const MOST_CHARS: usize = 48;

/// A list longer than this is cut.
const MOST_ITEMS: usize = 6;

/// A value on one line: long texts and lists are cut, and bytes are named by their kind and size.
pub(crate) fn shown(array: &dyn Array, row: usize) -> String {
    if array.is_null(row) {
        return "null".to_owned();
    }
    match array.data_type() {
        DataType::Utf8 => text(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => text(array.as_string::<i64>().value(row)),
        DataType::Utf8View => text(array.as_string_view().value(row)),
        DataType::Binary => bytes(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => bytes(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => bytes(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => bytes(array.as_fixed_size_binary().value(row)),
        DataType::List(_) => list(&*array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => list(&*array.as_list::<i64>().value(row)),
        DataType::FixedSizeList(_, _) => list(&*array.as_fixed_size_list().value(row)),
        DataType::Struct(fields) => {
            let values = array.as_struct();
            let field =
                |(index, name): (usize, &String)| format!("{name}: {}", shown(values.column(index), row));
            let names = fields.iter().map(|field| field.name());
            format!("{{{}}}", names.enumerate().map(field).collect::<Vec<_>>().join(", "))
        }
        _ => scalar(array, row),
    }
}

fn scalar(array: &dyn Array, row: usize) -> String {
    let options = FormatOptions::default();
    match ArrayFormatter::try_new(array, &options).map(|formatter| formatter.value(row).try_to_string()) {
        Ok(Ok(value)) => text(&value),
        _ => array.data_type().to_string(),
    }
}

fn text(value: &str) -> String {
    let mut shown: String = value.chars().take(MOST_CHARS).flat_map(escaped).collect();
    if value.chars().nth(MOST_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

/// Control characters would break the line, or steer the terminal; marks of direction (UAX #9) would reorder it.
fn escaped(character: char) -> impl Iterator<Item = char> {
    let escape = (character.is_control() || is_direction(character)).then(|| character.escape_default());
    let plain = escape.is_none().then_some(character);
    escape.into_iter().flatten().chain(plain)
}

fn is_direction(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn list(values: &dyn Array) -> String {
    let items: Vec<String> = (0..values.len().min(MOST_ITEMS)).map(|index| shown(values, index)).collect();
    let items = items.join(", ");
    match values.len() > MOST_ITEMS {
        true => format!("[{items}, …] ({} {})", values.len(), values.data_type()),
        false => format!("[{items}]"),
    }
}

fn bytes(value: &[u8]) -> String {
    let kind = Media::of(value).map_or("bytes", |media| media.name);
    format!("{kind} of {}", shardfmt::ByteSize(value.len() as u64))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, BinaryArray, FixedSizeListArray, Float32Array, Int64Array, StringArray, StructArray,
    };
    use arrow::datatypes::Float32Type;

    use super::*;

    fn all(array: &dyn Array) -> Vec<String> {
        (0..array.len()).map(|row| shown(array, row)).collect()
    }

    #[test]
    fn every_value_is_one_short_line() {
        let long = "x".repeat(100);
        let texts = StringArray::from(vec![Some("a\nb\u{1b}[2J\u{202e}c"), None, Some(&long)]);
        assert_eq!(all(&texts), ["a\\nb\\u{1b}[2J\\u{202e}c", "null", &format!("{}…", "x".repeat(48))]);
        assert_eq!(all(&Int64Array::from(vec![7, -1])), ["7", "-1"]);
        let bytes = BinaryArray::from(vec![&b"\xff\xd8\xff\xe0rest"[..], b"RIFF....WAVEfmt ", b"abc"]);
        assert_eq!(all(&bytes), ["JPEG of 8 B", "WAV of 16 B", "bytes of 3 B"]);
    }

    #[test]
    fn lists_are_cut_and_name_their_length_and_type() {
        let long = (0..10).map(|n| Some(n as f32));
        let lists = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
            [Some(long.collect::<Vec<_>>())],
            10,
        );
        assert_eq!(all(&lists), ["[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, …] (10 Float32)"]);
        let x: ArrayRef = Arc::new(Float32Array::from(vec![1.5]));
        let fields = StructArray::try_from(vec![("x", x)]).expect("one column");
        assert_eq!(all(&fields), ["{x: 1.5}"]);
    }
}
