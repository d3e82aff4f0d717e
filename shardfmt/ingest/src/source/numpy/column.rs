//! Values as NumPy lays them out, as Arrow's arrays. Pure: bytes in, columns out.

use std::sync::Arc;

use arrow::array::{
    ArrayData, ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, StringArray, StructArray, make_array,
};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field, TimeUnit};
use npyz::{DType, Endianness, TimeUnits, TypeChar, TypeStr};

use super::super::arrays::as_tensors;
use super::super::npy;

/// The column that values of a type make. More than one dimension is a tensor.
///
/// # Errors
/// The fault, in words, when Arrow has no such type.
pub(super) fn field(name: &str, dtype: &DType) -> Result<Field, String> {
    let DType::Array(..) = dtype else {
        return Ok(Field::new(name, data_type(dtype)?, is_time(dtype)));
    };
    let (shape, item) = flatten(dtype);
    let size = shape.iter().try_fold(1u64, |size, &dimension| size.checked_mul(dimension));
    let size = size.and_then(|size| i32::try_from(size).ok()).filter(|&size| size > 0);
    let size = size.ok_or_else(|| format!("a tensor of shape {shape:?} has too many values, or none"))?;
    let list = DataType::new_fixed_size_list(data_type(item)?, size, is_time(item));
    Ok(as_tensors(Field::new(name, list, false), &shape))
}

/// The fields of a structured type. Those without a name are what aligns the others.
pub(super) fn fields(record: &[npyz::Field]) -> Result<Vec<Field>, String> {
    record.iter().filter(|part| !part.name.is_empty()).map(|part| field(&part.name, &part.dtype)).collect()
}

/// `count` values of a type, which lie one after the other and fill the bytes.
///
/// # Errors
/// When a value is none, such as a text of code points that do not exist.
pub(super) fn column(dtype: &DType, bytes: Vec<u8>, count: usize) -> Result<ArrayRef, String> {
    match dtype {
        DType::Plain(plain) => scalars(plain, bytes, count),
        DType::Array(..) => {
            let (shape, item) = flatten(dtype);
            let size: u64 = shape.iter().product();
            let items = column(item, bytes, count * size as usize)?;
            let item = Arc::new(Field::new_list_field(items.data_type().clone(), is_time(item)));
            let tensors = FixedSizeListArray::try_new(item, size as i32, items, None);
            Ok(Arc::new(tensors.map_err(|error| error.to_string())?))
        }
        DType::Record(record) => {
            let columns = columns(record, &bytes, count)?;
            let structs = StructArray::try_new(fields(record)?.into(), columns, None);
            Ok(Arc::new(structs.map_err(|error| error.to_string())?))
        }
    }
}

/// A column for each field of a structured type.
pub(super) fn columns(record: &[npyz::Field], bytes: &[u8], count: usize) -> Result<Vec<ArrayRef>, String> {
    let size = |dtype: &DType| dtype.num_bytes().expect("checked with the header");
    let stride: usize = record.iter().map(|part| size(&part.dtype)).sum();
    let (mut columns, mut start) = (Vec::new(), 0);
    for part in record {
        let end = start + size(&part.dtype);
        if !part.name.is_empty() {
            let values = bytes.chunks_exact(stride).flat_map(|row| &row[start..end]).copied().collect();
            columns.push(column(&part.dtype, values, count)?);
        }
        start = end;
    }
    Ok(columns)
}

/// All dimensions of a type, and what stands at each place.
fn flatten(mut dtype: &DType) -> (Vec<u64>, &DType) {
    let mut shape = Vec::new();
    while let DType::Array(size, inner) = dtype {
        shape.push(*size);
        dtype = inner;
    }
    (shape, dtype)
}

fn is_time(dtype: &DType) -> bool {
    matches!(dtype, DType::Plain(plain) if matches!(plain.type_char(), TypeChar::DateTime | TypeChar::TimeDelta))
}

fn data_type(dtype: &DType) -> Result<DataType, String> {
    let plain = match dtype {
        DType::Plain(plain) => plain,
        DType::Array(..) => return Ok(field("", dtype)?.data_type().clone()),
        DType::Record(record) => return Ok(DataType::Struct(fields(record)?.into())),
    };
    let unit = plain.time_units().and_then(|units| match units {
        TimeUnits::Second => Some(TimeUnit::Second),
        TimeUnits::Millisecond => Some(TimeUnit::Millisecond),
        TimeUnits::Microsecond => Some(TimeUnit::Microsecond),
        TimeUnits::Nanosecond => Some(TimeUnit::Nanosecond),
        _ => None,
    });
    if let Some(number) = npy::number(plain.type_char(), plain.size_field()) {
        return Ok(number);
    }
    Ok(match (plain.type_char(), plain.size_field(), unit) {
        (TypeChar::DateTime, _, Some(unit)) => DataType::Timestamp(unit, None),
        (TypeChar::TimeDelta, _, Some(unit)) => DataType::Duration(unit),
        (TypeChar::ByteStr, ..) => DataType::Binary,
        (TypeChar::UnicodeStr, ..) => DataType::Utf8,
        (TypeChar::RawData, size @ 1..=0x7fff_ffff, _) => DataType::FixedSizeBinary(size as i32),
        (TypeChar::Complex, ..) => {
            return Err(format!("complex numbers ({plain}) have no type in Arrow; save .real and .imag"));
        }
        (TypeChar::DateTime | TypeChar::TimeDelta, ..) => {
            return Err(format!(
                "times of {plain} have no type in Arrow; convert them to seconds, ms, us or ns"
            ));
        }
        _ => return Err(format!("values of {plain} have no type in Arrow; convert them with astype")),
    })
}

fn scalars(plain: &TypeStr, mut bytes: Vec<u8>, count: usize) -> Result<ArrayRef, String> {
    let size = plain.num_bytes().expect("checked with the header");
    match plain.type_char() {
        TypeChar::Bool => {
            return Ok(Arc::new(bytes.iter().map(|&byte| Some(byte != 0)).collect::<BooleanArray>()));
        }
        TypeChar::ByteStr => {
            let values = (0..count).map(|row| trimmed(&bytes[row * size..(row + 1) * size]));
            return Ok(Arc::new(BinaryArray::from_iter_values(values)));
        }
        TypeChar::UnicodeStr => {
            let texts = (0..count).map(|row| text(&bytes[row * size..(row + 1) * size], plain.endianness()));
            return Ok(Arc::new(StringArray::from_iter_values(texts.collect::<Result<Vec<_>, _>>()?)));
        }
        TypeChar::RawData => {}
        _ if plain.endianness() == Endianness::Irrelevant
            || plain.endianness() == Endianness::of_machine() => {}
        _ => bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse),
    }
    let data_type = data_type(&DType::Plain(plain.clone()))?;
    // What NumPy calls "not a time" is Arrow's null.
    let nulls = is_time(&DType::Plain(plain.clone()))
        .then(|| NullBuffer::from_iter(bytes.chunks_exact(8).map(|time| time != i64::MIN.to_ne_bytes())));
    let data = ArrayData::builder(data_type)
        .len(count)
        .add_buffer(Buffer::from_vec(bytes))
        .nulls(nulls.filter(|nulls| nulls.null_count() > 0))
        .align_buffers(true)
        .build();
    Ok(make_array(data.map_err(|error| error.to_string())?))
}

/// A value without the zeros that fill its place.
fn trimmed(value: &[u8]) -> &[u8] {
    &value[..value.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)]
}

fn text(value: &[u8], endianness: Endianness) -> Result<String, String> {
    let points: Vec<u32> = value
        .chunks_exact(4)
        .map(|point| {
            let point = [point[0], point[1], point[2], point[3]];
            if endianness == Endianness::Big { u32::from_be_bytes(point) } else { u32::from_le_bytes(point) }
        })
        .collect();
    let length = points.iter().rposition(|&point| point != 0).map_or(0, |last| last + 1);
    let text = points[..length].iter().map(|&point| char::from_u32(point));
    text.collect::<Option<String>>()
        .ok_or_else(|| "a text of it has a code point that is no character".to_owned())
}
