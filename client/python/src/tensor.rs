//! Numbers of one shape, as they lie in memory.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, FieldRef};
use shardd_client::loader::BFLOAT16;

/// Numbers one after the other.
pub(crate) struct Tensor {
    pub(crate) values: Buffer,
    pub(crate) number: Number,
    /// Rows first.
    pub(crate) shape: Vec<usize>,
}

/// A type of numbers, as NumPy and DLPack name it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number {
    /// `b`, `i`, `u` or `f`; [`BFLOAT`] for floats of 16 bits with 8 bits of exponent.
    pub(crate) kind: u8,
    pub(crate) bytes: usize,
}

/// The kind of numbers for which NumPy has no type.
pub(crate) const BFLOAT: u8 = b'B';

impl Number {
    pub(crate) fn of(data_type: &DataType) -> Option<Self> {
        let number = |kind, bytes| Some(Self { kind, bytes });
        match data_type {
            DataType::Boolean => number(b'b', 1),
            DataType::Int8 => number(b'i', 1),
            DataType::Int16 => number(b'i', 2),
            DataType::Int32 | DataType::Date32 | DataType::Time32(_) => number(b'i', 4),
            DataType::Int64
            | DataType::Date64
            | DataType::Time64(_)
            | DataType::Timestamp(..)
            | DataType::Duration(_) => number(b'i', 8),
            DataType::UInt8 => number(b'u', 1),
            DataType::UInt16 => number(b'u', 2),
            DataType::UInt32 => number(b'u', 4),
            DataType::UInt64 => number(b'u', 8),
            DataType::Float16 => number(b'f', 2),
            DataType::Float32 => number(b'f', 4),
            DataType::Float64 => number(b'f', 8),
            _ => None,
        }
    }

    /// Its name, as libraries of arrays have it: `uint8`, `float32`.
    pub(crate) fn name(self) -> String {
        let bits = 8 * self.bytes;
        match self.kind {
            b'b' => "bool".to_owned(),
            b'i' => format!("int{bits}"),
            b'u' => format!("uint{bits}"),
            BFLOAT => format!("bfloat{bits}"),
            _ => format!("float{bits}"),
        }
    }

    /// As NumPy writes it, which has the bits of bfloat16 as `uint16`.
    pub(crate) fn text(self) -> String {
        let order = if self.bytes == 1 { '|' } else { '<' };
        let kind = if self.kind == BFLOAT { b'u' } else { self.kind };
        format!("{order}{}{}", char::from(kind), self.bytes)
    }
}

impl Tensor {
    pub(crate) fn of(field: &FieldRef, array: &ArrayRef) -> Option<Self> {
        let mut shape = vec![array.len()];
        let mut values = Arc::clone(array);
        loop {
            if values.null_count() > 0 {
                return None;
            }
            let inner = match values.data_type() {
                DataType::FixedSizeList(_, size) => {
                    shape.push(usize::try_from(*size).ok()?);
                    Arc::clone(values.as_fixed_size_list().values())
                }
                _ => break,
            };
            values = inner;
        }
        if let [rows, width] = shape[..]
            && let Some(inner) = tensor_shape(field)
            && inner.iter().product::<usize>() == width
        {
            shape = [vec![rows], inner].concat();
        }
        let (values, number) = match values.data_type() {
            DataType::Boolean => {
                let bytes: Vec<u8> = values.as_boolean().values().iter().map(u8::from).collect();
                (Buffer::from_vec(bytes), Number { kind: b'b', bytes: 1 })
            }
            DataType::FixedSizeBinary(width) => {
                shape.push(usize::try_from(*width).ok()?);
                (plain(&values, shape.iter().product()), Number { kind: b'u', bytes: 1 })
            }
            data_type => {
                let mut number = Number::of(data_type)?;
                if *data_type == DataType::UInt16
                    && field.metadata().get(BFLOAT16[0]).is_some_and(|dtype| dtype == BFLOAT16[1])
                {
                    number.kind = BFLOAT;
                }
                (plain(&values, shape.iter().product::<usize>() * number.bytes), number)
            }
        };
        Some(Self { values, number, shape })
    }
}

/// The first `len` bytes of an array's values.
fn plain(array: &ArrayRef, len: usize) -> Buffer {
    let data = array.to_data();
    let width = len / array.len().max(1);
    data.buffers()[0].slice_with_length(data.offset() * width, len)
}

/// The shape in the metadata of an `arrow.fixed_shape_tensor`.
fn tensor_shape(field: &FieldRef) -> Option<Vec<usize>> {
    let metadata = field.metadata();
    if metadata.get("ARROW:extension:name")? != "arrow.fixed_shape_tensor" {
        return None;
    }
    let tensor: serde_json::Value = serde_json::from_str(metadata.get("ARROW:extension:metadata")?).ok()?;
    tensor["shape"].as_array()?.iter().map(|size| usize::try_from(size.as_u64()?).ok()).collect()
}
