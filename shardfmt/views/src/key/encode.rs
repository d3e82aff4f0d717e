//! Bytes of a value that do not depend on how Arrow stores it.
//!
//! A value is a tag and its bytes; strings, binaries and lists begin with their length. So no two lists of
//! values have the same bytes.

use arrow::array::{Array, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::datatypes::*;

/// Appends the bytes of the value in a row.
pub(super) type Encode<'a> = Box<dyn Fn(usize, &mut Vec<u8>) + 'a>;

/// Tags. They are part of what digests mean: a change gives keys other digests.
const NULL: u8 = 0;
const BOOLEAN: u8 = 1;
const INTEGER: u8 = 2;
const FLOAT: u8 = 3;
const DECIMAL: u8 = 4;
const TEXT: u8 = 5;
const BINARY: u8 = 6;
const DAY: u8 = 7;
const INSTANT: u8 = 8;
const TIME: u8 = 9;
const DURATION: u8 = 10;
const LIST: u8 = 11;
const STRUCT: u8 = 12;

/// Bits of the one NaN.
const NAN: u64 = 0x7ff8_0000_0000_0000;

/// The encoder of a column; `None` for unions, intervals, run-end-encoded and decimals of 256 bits.
pub(super) fn encoder(array: &dyn Array) -> Option<Encode<'_>> {
    let value = value(array)?;
    if array.null_count() == 0 {
        return Some(value);
    }
    Some(Box::new(move |row, bytes| if array.is_null(row) { bytes.push(NULL) } else { value(row, bytes) }))
}

/// The encoder of the values that are not NULL.
fn value(array: &dyn Array) -> Option<Encode<'_>> {
    Some(match array.data_type() {
        DataType::Null => Box::new(|_, bytes| bytes.push(NULL)),
        DataType::Boolean => {
            let array = array.as_boolean();
            Box::new(|row, bytes| bytes.extend([BOOLEAN, u8::from(array.value(row))]))
        }
        DataType::Float16 => float(array.as_primitive::<Float16Type>(), |value| value.to_f64()),
        DataType::Float32 => float(array.as_primitive::<Float32Type>(), f64::from),
        DataType::Float64 => float(array.as_primitive::<Float64Type>(), |value| value),
        DataType::Decimal32(_, scale) => decimal(array.as_primitive::<Decimal32Type>(), *scale),
        DataType::Decimal64(_, scale) => decimal(array.as_primitive::<Decimal64Type>(), *scale),
        DataType::Decimal128(_, scale) => decimal(array.as_primitive::<Decimal128Type>(), *scale),
        DataType::Utf8 => sized(TEXT, |row| array.as_string::<i32>().value(row).as_bytes()),
        DataType::LargeUtf8 => sized(TEXT, |row| array.as_string::<i64>().value(row).as_bytes()),
        DataType::Utf8View => sized(TEXT, |row| array.as_string_view().value(row).as_bytes()),
        DataType::Binary => sized(BINARY, |row| array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => sized(BINARY, |row| array.as_binary::<i64>().value(row)),
        DataType::BinaryView => sized(BINARY, |row| array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => sized(BINARY, |row| array.as_fixed_size_binary().value(row)),
        DataType::Dictionary(..) => dictionary(array)?,
        DataType::Struct(_) => fields(array)?,
        DataType::List(_)
        | DataType::LargeList(_)
        | DataType::FixedSizeList(..)
        | DataType::ListView(_)
        | DataType::LargeListView(_)
        | DataType::Map(..) => list(array)?,
        _ => return whole(array),
    })
}

/// Integers, and what Arrow stores as integers.
fn whole(array: &dyn Array) -> Option<Encode<'_>> {
    fn times<T: ArrowPrimitiveType>(array: &dyn Array, tag: u8, factor: i128) -> Encode<'_>
    where
        i128: From<T::Native>,
    {
        let array: &PrimitiveArray<T> = array.as_primitive();
        Box::new(move |row, bytes| tagged(bytes, tag, i128::from(array.value(row)) * factor))
    }
    const NANOS: [i128; 4] = [1_000_000_000, 1_000_000, 1_000, 1];
    Some(match array.data_type() {
        DataType::Int8 => times::<Int8Type>(array, INTEGER, 1),
        DataType::Int16 => times::<Int16Type>(array, INTEGER, 1),
        DataType::Int32 => times::<Int32Type>(array, INTEGER, 1),
        DataType::Int64 => times::<Int64Type>(array, INTEGER, 1),
        DataType::UInt8 => times::<UInt8Type>(array, INTEGER, 1),
        DataType::UInt16 => times::<UInt16Type>(array, INTEGER, 1),
        DataType::UInt32 => times::<UInt32Type>(array, INTEGER, 1),
        DataType::UInt64 => times::<UInt64Type>(array, INTEGER, 1),
        DataType::Date32 => times::<Date32Type>(array, DAY, 86_400_000),
        DataType::Date64 => times::<Date64Type>(array, DAY, 1),
        DataType::Timestamp(TimeUnit::Second, _) => times::<TimestampSecondType>(array, INSTANT, NANOS[0]),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            times::<TimestampMillisecondType>(array, INSTANT, NANOS[1])
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            times::<TimestampMicrosecondType>(array, INSTANT, NANOS[2])
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            times::<TimestampNanosecondType>(array, INSTANT, NANOS[3])
        }
        DataType::Time32(TimeUnit::Second) => times::<Time32SecondType>(array, TIME, NANOS[0]),
        DataType::Time32(TimeUnit::Millisecond) => times::<Time32MillisecondType>(array, TIME, NANOS[1]),
        DataType::Time64(TimeUnit::Microsecond) => times::<Time64MicrosecondType>(array, TIME, NANOS[2]),
        DataType::Time64(TimeUnit::Nanosecond) => times::<Time64NanosecondType>(array, TIME, NANOS[3]),
        DataType::Duration(TimeUnit::Second) => times::<DurationSecondType>(array, DURATION, NANOS[0]),
        DataType::Duration(TimeUnit::Millisecond) => {
            times::<DurationMillisecondType>(array, DURATION, NANOS[1])
        }
        DataType::Duration(TimeUnit::Microsecond) => {
            times::<DurationMicrosecondType>(array, DURATION, NANOS[2])
        }
        DataType::Duration(TimeUnit::Nanosecond) => {
            times::<DurationNanosecondType>(array, DURATION, NANOS[3])
        }
        _ => return None,
    })
}

fn tagged(bytes: &mut Vec<u8>, tag: u8, value: i128) {
    bytes.push(tag);
    bytes.extend(value.to_le_bytes());
}

/// Floats of all widths by their value; -0 as 0, and all NaN as one.
fn float<'a, T: ArrowPrimitiveType>(
    array: &'a PrimitiveArray<T>,
    widen: impl Fn(T::Native) -> f64 + 'a,
) -> Encode<'a> {
    Box::new(move |row, bytes| {
        let value = widen(array.value(row));
        let bits = if value.is_nan() { NAN } else { (value + 0.0).to_bits() };
        bytes.push(FLOAT);
        bytes.extend(bits.to_le_bytes());
    })
}

/// Decimals by their value: zeros at the end of the fraction do not count.
fn decimal<T: ArrowPrimitiveType>(array: &PrimitiveArray<T>, scale: i8) -> Encode<'_>
where
    i128: From<T::Native>,
{
    Box::new(move |row, bytes| {
        let mut value = i128::from(array.value(row));
        let mut scale = scale;
        while value != 0 && value % 10 == 0 && scale > i8::MIN {
            value /= 10;
            scale -= 1;
        }
        tagged(bytes, DECIMAL, value);
        bytes.extend((if value == 0 { 0 } else { scale }).to_le_bytes());
    })
}

fn sized<'a>(tag: u8, value: impl Fn(usize) -> &'a [u8] + 'a) -> Encode<'a> {
    Box::new(move |row, bytes| {
        let value = value(row);
        bytes.push(tag);
        bytes.extend((value.len() as u64).to_le_bytes());
        bytes.extend_from_slice(value);
    })
}

fn dictionary(array: &dyn Array) -> Option<Encode<'_>> {
    let array = array.as_any_dictionary_opt()?;
    if array.values().is_empty() {
        return Some(Box::new(|_, bytes| bytes.push(NULL)));
    }
    let keys = array.normalized_keys();
    let value = encoder(array.values().as_ref())?;
    Some(Box::new(move |row, bytes| value(keys[row], bytes)))
}

fn fields(array: &dyn Array) -> Option<Encode<'_>> {
    let children: Option<Vec<_>> =
        array.as_struct_opt()?.columns().iter().map(|child| encoder(child.as_ref())).collect();
    let children = children?;
    Some(Box::new(move |row, bytes| {
        bytes.push(STRUCT);
        bytes.extend((children.len() as u64).to_le_bytes());
        for child in &children {
            child(row, bytes);
        }
    }))
}

/// Start and length of a row's items.
type Range<'a> = Box<dyn Fn(usize) -> (usize, usize) + 'a>;

/// Lists of all kinds, and maps as lists of their entries.
fn list(array: &dyn Array) -> Option<Encode<'_>> {
    let (items, range): (&dyn Array, Range<'_>) = match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            (
                list.values(),
                Box::new(|row| {
                    (whole_number(list.value_offsets()[row]), whole_number(list.value_length(row)))
                }),
            )
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            (list.values(), Box::new(|row| (long(list.value_offsets()[row]), long(list.value_length(row)))))
        }
        DataType::FixedSizeList(_, size) => {
            let (list, size) = (array.as_fixed_size_list(), whole_number(*size));
            (list.values(), Box::new(move |row| (row * size, size)))
        }
        DataType::ListView(_) => {
            let list = array.as_list_view::<i32>();
            (
                list.values(),
                Box::new(|row| (whole_number(list.value_offset(row)), whole_number(list.value_size(row)))),
            )
        }
        DataType::LargeListView(_) => {
            let list = array.as_list_view::<i64>();
            (list.values(), Box::new(|row| (long(list.value_offset(row)), long(list.value_size(row)))))
        }
        DataType::Map(..) => {
            let map = array.as_map();
            (
                map.entries(),
                Box::new(|row| (whole_number(map.value_offsets()[row]), whole_number(map.value_length(row)))),
            )
        }
        _ => return None,
    };
    let item = encoder(items)?;
    Some(Box::new(move |row, bytes| {
        let (start, length) = range(row);
        bytes.push(LIST);
        bytes.extend((length as u64).to_le_bytes());
        (start..start + length).for_each(|index| item(index, bytes));
    }))
}

/// Offsets and lengths of valid arrays are not negative.
fn whole_number(value: i32) -> usize {
    usize::try_from(value).unwrap_or(0)
}

fn long(value: i64) -> usize {
    usize::try_from(value).unwrap_or(0)
}
