//! A value of a sample as people look at it: text, numbers and files, cut to what fits a page. Pure.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde::Serialize;
use shardd_api::media::Media;
use utoipa::ToSchema;

use super::super::hex;

/// Characters of a text.
const MOST_CHARACTERS: usize = 2000;
/// Bytes shown of a value that is none of the known kinds of files.
const MOST_HEX: usize = 64;
/// Numbers of a list.
const MOST_NUMBERS: usize = 4096;
/// Elements of a nested list or map, and how deep they are shown.
const MOST_ELEMENTS: usize = 64;
const DEEPEST: usize = 6;
/// The largest integer below which all are exact in JSON (RFC 8259, 6).
const EXACT: u64 = 1 << 53;

/// A value of a sample, cut.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Value {
    /// A number, as text where JSON has none that is equal.
    Number {
        /// The number.
        #[schema(value_type = Object)]
        value: serde_json::Value,
        /// Of a label: the name of its class.
        #[serde(skip_serializing_if = "Option::is_none")]
        class: Option<String>,
    },
    /// True or false.
    Bool {
        /// Which.
        value: bool,
    },
    /// A text.
    Text {
        /// Its beginning, at most 2,000 characters.
        text: String,
        /// The bytes of the whole.
        length: usize,
    },
    /// A picture, a sound or a video.
    Media {
        /// Its media type.
        media_type: &'static str,
        /// Its bytes.
        length: usize,
    },
    /// Other bytes.
    Bytes {
        /// The first of them, in hexadecimal.
        hex: String,
        /// How many they are.
        length: usize,
    },
    /// A list of numbers.
    List {
        /// The Arrow type of an element.
        #[serde(rename = "type")]
        data_type: String,
        /// How many elements it has.
        length: usize,
        /// The first of them, at most 4,096.
        #[schema(value_type = Vec<Object>)]
        values: Vec<serde_json::Value>,
    },
    /// A struct, a map, or a list of anything else.
    Nested {
        /// The value.
        #[schema(value_type = Object)]
        json: serde_json::Value,
        /// Whether something of it is left out.
        is_cut: bool,
    },
    /// A moment or a span.
    Time {
        /// As text: a moment by ISO 8601.
        text: String,
    },
}

/// How much an answer may still show, in bytes of texts and elements of lists. Without room, values have their lengths alone.
#[derive(Debug)]
pub(super) struct Room(usize);

impl Room {
    /// Of one answer.
    pub(super) fn new() -> Self {
        Self(4 << 20)
    }

    /// As much as there is of `wanted`.
    fn take(&mut self, wanted: usize) -> usize {
        let taken = wanted.min(self.0);
        self.0 -= taken;
        taken
    }
}

impl Value {
    /// The value of a row of a column; none if it is missing.
    pub(super) fn of(array: &dyn Array, row: usize, classes: &[String], room: &mut Room) -> Option<Value> {
        if array.is_null(row) {
            return None;
        }
        if let Some(bytes) = bytes(array, row) {
            return Some(Self::of_bytes(bytes, room));
        }
        if let Some(text) = text(array, row) {
            let (text, length) = (cut(text, room), text.len());
            return Some(Self::Text { text, length });
        }
        Some(match array.data_type() {
            DataType::Boolean => Self::Bool { value: array.as_boolean().value(row) },
            kind if is_number(kind) => {
                let value = number(array, row);
                let class =
                    value.as_u64().and_then(|label| classes.get(usize::try_from(label).ok()?).cloned());
                Self::Number { value, class }
            }
            kind if kind.is_temporal() => Self::Time { text: plain(array, row) },
            _ => match elements(array, row) {
                Some(values) if is_number(values.data_type()) => {
                    let shown = room.take(values.len().min(MOST_NUMBERS) * 8) / 8;
                    Self::List {
                        data_type: values.data_type().to_string(),
                        length: values.len(),
                        values: (0..shown).map(|at| number_or_null(&*values, at)).collect(),
                    }
                }
                _ => {
                    let mut is_cut = false;
                    let json = nested(array, row, DEEPEST, room, &mut is_cut);
                    Self::Nested { json, is_cut }
                }
            },
        })
    }

    fn of_bytes(bytes: &[u8], room: &mut Room) -> Self {
        let length = bytes.len();
        match Media::of(bytes) {
            Some(media) => Self::Media { media_type: media.media_type, length },
            None => Self::Bytes { hex: hex(&bytes[..room.take(length.min(MOST_HEX))]), length },
        }
    }
}

/// The bytes of a value of a binary or text column, and their media type.
pub(super) fn content(array: &dyn Array, row: usize) -> Option<(&[u8], &'static str)> {
    let found = bytes(array, row)
        .map(|bytes| (bytes, Media::of(bytes).map_or("application/octet-stream", |media| media.media_type)));
    found.or_else(|| text(array, row).map(|text| (text.as_bytes(), "text/plain; charset=utf-8")))
}

fn bytes(array: &dyn Array, row: usize) -> Option<&[u8]> {
    Some(match array.data_type() {
        DataType::Binary => array.as_binary::<i32>().value(row),
        DataType::LargeBinary => array.as_binary::<i64>().value(row),
        DataType::BinaryView => array.as_binary_view().value(row),
        DataType::FixedSizeBinary(_) => array.as_fixed_size_binary().value(row),
        _ => return None,
    })
}

fn text(array: &dyn Array, row: usize) -> Option<&str> {
    Some(match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value(row),
        DataType::LargeUtf8 => array.as_string::<i64>().value(row),
        DataType::Utf8View => array.as_string_view().value(row),
        _ => return None,
    })
}

/// The elements of a list.
fn elements(array: &dyn Array, row: usize) -> Option<ArrayRef> {
    Some(match array.data_type() {
        DataType::List(_) => array.as_list::<i32>().value(row),
        DataType::LargeList(_) => array.as_list::<i64>().value(row),
        DataType::FixedSizeList(..) => array.as_fixed_size_list().value(row),
        _ => return None,
    })
}

fn is_number(kind: &DataType) -> bool {
    kind.is_numeric() && !kind.is_temporal()
}

fn number_or_null(array: &dyn Array, row: usize) -> serde_json::Value {
    if array.is_null(row) { serde_json::Value::Null } else { number(array, row) }
}

/// A number as JSON has it; as text where that would be another one.
fn number(array: &dyn Array, row: usize) -> serde_json::Value {
    let of_float = |value: f64| serde_json::Number::from_f64(value).map(serde_json::Value::Number);
    let found = match array.data_type() {
        // The shortest digits of 32 bits, not those of the 64 that they become.
        DataType::Float32 => {
            array.as_primitive::<Float32Type>().value(row).to_string().parse().ok().and_then(of_float)
        }
        DataType::Float64 => of_float(array.as_primitive::<Float64Type>().value(row)),
        _ => {
            let digits = plain(array, row);
            match digits.parse::<i64>() {
                Ok(value) if value.unsigned_abs() <= EXACT => Some(value.into()),
                Ok(_) => None,
                Err(_) => digits.parse().ok().filter(|_| digits.contains('.')).and_then(of_float),
            }
        }
    };
    found.unwrap_or_else(|| plain(array, row).into())
}

/// A value as Arrow prints it.
fn plain(array: &dyn Array, row: usize) -> String {
    let options = FormatOptions::default();
    let text = ArrayFormatter::try_new(array, &options).map(|formatter| formatter.value(row).try_to_string());
    match text {
        Ok(Ok(text)) => text,
        _ => format!("a value of type {}", array.data_type()),
    }
}

fn cut(text: &str, room: &mut Room) -> String {
    let end = text.char_indices().nth(MOST_CHARACTERS).map_or(text.len(), |(at, _)| at);
    let mut end = room.take(end);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Any value as JSON. What is too deep or too long is left out.
fn nested(
    array: &dyn Array,
    row: usize,
    deep: usize,
    room: &mut Room,
    is_cut: &mut bool,
) -> serde_json::Value {
    if array.is_null(row) {
        return serde_json::Value::Null;
    }
    if deep == 0 || room.take(16) < 16 {
        *is_cut = true;
        return "…".into();
    }
    if let Some(bytes) = bytes(array, row) {
        *is_cut |= bytes.len() > MOST_HEX;
        return hex(&bytes[..room.take(bytes.len().min(MOST_HEX))]).into();
    }
    if let Some(whole) = text(array, row) {
        let shown = cut(whole, room);
        *is_cut |= shown.len() < whole.len();
        return shown.into();
    }
    match array.data_type() {
        DataType::Boolean => array.as_boolean().value(row).into(),
        kind if is_number(kind) => number(array, row),
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns().iter();
            let named = fields.iter().zip(columns);
            named
                .map(|(field, column)| (field.name().clone(), nested(column, row, deep - 1, room, is_cut)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        }
        DataType::Map(..) => {
            let entries = array.as_map().value(row);
            list(&entries, deep, room, is_cut)
        }
        _ => match elements(array, row) {
            Some(values) => list(&*values, deep, room, is_cut),
            None => plain(array, row).into(),
        },
    }
}

fn list(values: &dyn Array, deep: usize, room: &mut Room, is_cut: &mut bool) -> serde_json::Value {
    *is_cut |= values.len() > MOST_ELEMENTS;
    let shown = values.len().min(MOST_ELEMENTS);
    (0..shown).map(|at| nested(values, at, deep - 1, room, is_cut)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        BinaryArray, BooleanArray, FixedSizeListArray, Float32Array, Float64Array, Int64Array, ListArray,
        StringArray, StructArray, TimestampSecondArray, UInt64Array,
    };
    use arrow::datatypes::{Float32Type, Int32Type};
    use serde_json::json;

    use super::*;

    fn all(array: &dyn Array) -> Vec<serde_json::Value> {
        let mut room = Room::new();
        (0..array.len()).map(|row| json!(Value::of(array, row, &[], &mut room))).collect()
    }

    #[test]
    fn a_number_is_exact_or_text() {
        let large = Int64Array::from(vec![Some(-3), Some(1 << 53), Some((1 << 53) + 1), None]);
        let number = |value: serde_json::Value| json!({ "kind": "number", "value": value });
        let wanted =
            [number(json!(-3)), number(json!(1u64 << 53)), number(json!("9007199254740993")), json!(null)];
        assert_eq!(all(&large), wanted);
        assert_eq!(all(&UInt64Array::from(vec![u64::MAX])), [number(json!("18446744073709551615"))]);
        assert_eq!(all(&Float32Array::from(vec![0.1, f32::NAN])), [number(json!(0.1)), number(json!("NaN"))]);
        assert_eq!(all(&Float64Array::from(vec![f64::INFINITY])), [number(json!("inf"))]);
        assert_eq!(all(&BooleanArray::from(vec![true])), [json!({ "kind": "bool", "value": true })]);
    }

    #[test]
    fn a_label_has_the_name_of_its_class() {
        let classes = ["cat".to_owned(), "<b>dog</b>".to_owned()];
        let labels = Int64Array::from(vec![1, 2, -1]);
        let class = |row| match Value::of(&labels, row, &classes, &mut Room::new()) {
            Some(Value::Number { class, .. }) => class,
            other => panic!("{other:?}"),
        };
        assert_eq!([class(0), class(1), class(2)], [Some("<b>dog</b>".to_owned()), None, None]);
    }

    #[test]
    fn texts_and_bytes_are_cut_and_keep_their_length() {
        let long = "é".repeat(3000);
        let texts = all(&StringArray::from(vec!["a\n", &long]));
        assert_eq!(texts[0], json!({ "kind": "text", "text": "a\n", "length": 2 }));
        assert_eq!(texts[1], json!({ "kind": "text", "text": "é".repeat(2000), "length": 6000 }));
        let bytes = BinaryArray::from(vec![&b"\xff\xd8\xff\xe0"[..], b"\x01\xab", &[7; 100]]);
        let wanted = [
            json!({ "kind": "media", "media_type": "image/jpeg", "length": 4 }),
            json!({ "kind": "bytes", "hex": "01ab", "length": 2 }),
            json!({ "kind": "bytes", "hex": "07".repeat(64), "length": 100 }),
        ];
        assert_eq!(all(&bytes), wanted);
    }

    #[test]
    fn a_list_of_numbers_is_a_list_and_others_are_nested() {
        let numbers = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
            [Some(vec![Some(0.5), None]), None],
            2,
        );
        let wanted = json!({ "kind": "list", "type": "Float32", "length": 2, "values": [0.5, null] });
        assert_eq!(all(&numbers), [wanted, json!(null)]);
        let long = ListArray::from_iter_primitive::<Int32Type, _, _>([Some((0..5000).map(Some))]);
        let Value::List { length, values, .. } = Value::of(&long, 0, &[], &mut Room::new()).expect("a list")
        else {
            panic!("no list")
        };
        assert_eq!((length, values.len()), (5000, 4096));
        let boxes: ArrayRef = Arc::new(numbers);
        let name: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
        let fields = StructArray::try_from(vec![("box", boxes), ("name", name)]).expect("two columns");
        let wanted =
            json!({ "kind": "nested", "json": { "box": [0.5, null], "name": "a" }, "is_cut": false });
        assert_eq!(all(&fields)[0], wanted);
        let moments = TimestampSecondArray::from(vec![86_400]);
        assert_eq!(all(&moments), [json!({ "kind": "time", "text": "1970-01-02T00:00:00" })]);
    }

    #[test]
    fn what_an_answer_shows_is_bounded() {
        let mut room = Room(20);
        let texts = StringArray::from(vec!["x".repeat(15), "ééé".to_owned(), "y".to_owned()]);
        let shown = |row, room: &mut Room| match Value::of(&texts, row, &[], room) {
            Some(Value::Text { text, length }) => (text.len(), length),
            other => panic!("{other:?}"),
        };
        assert_eq!(shown(0, &mut room), (15, 15));
        assert_eq!(shown(1, &mut room), (4, 6));
        assert_eq!(shown(2, &mut room), (0, 1));
        let mut deep: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        for _ in 0..20 {
            deep = Arc::new(StructArray::try_from(vec![("in", deep)]).expect("a column"));
        }
        let Some(Value::Nested { is_cut, json }) = Value::of(&*deep, 0, &[], &mut Room::new()) else {
            panic!("not nested")
        };
        assert!(is_cut && json.to_string().len() < 100, "{json}");
    }
}
