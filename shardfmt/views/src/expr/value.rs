//! A column of values while an expression is evaluated, and its conversions.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Datum, Decimal128Array, Float32Array, Float64Array,
    PrimitiveArray,
};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{cast, take};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Date32Type, Date64Type, Decimal128Type, Float64Type};
use arrow::datatypes::{
    TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow::error::ArrowError;

use super::types::{Conversion, WIDE, nanoseconds};

/// Powers of ten, each rounded once.
#[rustfmt::skip]
const POWERS: [f64; 39] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19,
    1e20, 1e21, 1e22, 1e23, 1e24, 1e25, 1e26, 1e27, 1e28, 1e29, 1e30, 1e31, 1e32, 1e33, 1e34, 1e35, 1e36, 1e37, 1e38,
];

/// One value a row, or one value for all rows.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub(super) array: ArrayRef,
    pub(super) is_scalar: bool,
}

impl Datum for Value {
    fn get(&self) -> (&dyn Array, bool) {
        (self.array.as_ref(), self.is_scalar)
    }
}

impl Value {
    pub(super) fn scalar(array: ArrayRef) -> Self {
        Self { array, is_scalar: true }
    }

    pub(super) fn column(array: ArrayRef) -> Self {
        Self { array, is_scalar: false }
    }

    /// The same rows with the values of `array`.
    pub(super) fn with(&self, array: ArrayRef) -> Self {
        Self { array, is_scalar: self.is_scalar }
    }

    /// The values as booleans. A value of type Null is NULL.
    pub(super) fn booleans(&self) -> Result<BooleanArray, ArrowError> {
        match self.array.data_type() {
            DataType::Boolean => Ok(self.array.as_boolean().clone()),
            _ => Ok(cast(&self.array, &DataType::Boolean)?.as_boolean().clone()),
        }
    }

    /// The booleans, one for each of `rows` rows.
    pub(super) fn boolean_rows(&self, rows: usize) -> Result<BooleanArray, ArrowError> {
        let values = self.booleans()?;
        Ok(match self.is_scalar {
            false => values,
            true if values.is_null(0) => BooleanArray::new_null(rows),
            true if values.value(0) => BooleanBuffer::new_set(rows).into(),
            true => BooleanBuffer::new_unset(rows).into(),
        })
    }

    /// The value without a dictionary around it.
    pub(super) fn flat(&self) -> Result<Self, ArrowError> {
        match self.array.data_type() {
            DataType::Dictionary(_, values) => Ok(self.with(cast(&self.array, values)?)),
            _ => Ok(self.clone()),
        }
    }

    pub(super) fn convert(&self, conversion: &Conversion) -> Result<Self, ArrowError> {
        match conversion {
            Conversion::None => self.flat(),
            Conversion::Cast(to) if self.array.data_type() == to => Ok(self.clone()),
            Conversion::Cast(to) => Ok(self.with(cast(&self.array, to)?)),
            Conversion::Float64 => Ok(self.with(Arc::new(float64(&self.flat()?.array)?))),
            Conversion::Float32 => Ok(self.with(Arc::new(float32(&self.flat()?.array)?))),
            Conversion::Nanoseconds => Ok(self.with(Arc::new(ticks(&self.flat()?.array)?))),
        }
    }

    /// Applies `f`, which looks at each value alone. Of a dictionary that is shorter than the rows, it sees
    /// each value once.
    pub(super) fn map(
        &self,
        f: impl FnOnce(&ArrayRef) -> Result<ArrayRef, ArrowError>,
    ) -> Result<Self, ArrowError> {
        let array = match self.array.as_any_dictionary_opt() {
            Some(dictionary) if dictionary.values().len() <= dictionary.len() => {
                take(&f(dictionary.values())?, dictionary.keys(), None)?
            }
            Some(_) => f(&self.flat()?.array)?,
            None => f(&self.array)?,
        };
        Ok(self.with(array))
    }
}

/// Decimals are divided by a power of ten, as DuckDB does; other numbers are cast.
#[expect(clippy::cast_precision_loss, reason = "a float is the nearest number")]
fn float64(array: &ArrayRef) -> Result<Float64Array, ArrowError> {
    let DataType::Decimal128(_, scale) = array.data_type() else {
        return Ok(cast(array, &DataType::Float64)?.as_primitive::<Float64Type>().clone());
    };
    let power = POWERS.get(usize::from(scale.unsigned_abs())).copied().unwrap_or(f64::INFINITY);
    let values = array.as_primitive::<Decimal128Type>();
    Ok(match *scale >= 0 {
        true => values.unary(|value| value as f64 / power),
        false => values.unary(|value| value as f64 * power),
    })
}

#[expect(clippy::cast_possible_truncation, reason = "a float is the nearest number")]
fn float32(array: &ArrayRef) -> Result<Float32Array, ArrowError> {
    match array.data_type() {
        DataType::Float64 | DataType::Decimal128(..) => Ok(float64(array)?.unary(|value| value as f32)),
        _ => Ok(cast(array, &DataType::Float32)?.as_primitive().clone()),
    }
}

/// Nanoseconds since 1970, exact in 128 bits.
fn ticks(array: &ArrayRef) -> Result<Decimal128Array, ArrowError> {
    fn times<T: ArrowPrimitiveType>(array: &ArrayRef, nanos: i128) -> Decimal128Array
    where
        i128: From<T::Native>,
    {
        let values: &PrimitiveArray<T> = array.as_primitive();
        values.unary::<_, Decimal128Type>(|value| i128::from(value) * nanos).with_data_type(WIDE)
    }
    let nanos = nanoseconds(array.data_type()).unwrap_or(1);
    let times = match array.data_type() {
        DataType::Date32 => times::<Date32Type>,
        DataType::Date64 => times::<Date64Type>,
        DataType::Timestamp(TimeUnit::Second, _) => times::<TimestampSecondType>,
        DataType::Timestamp(TimeUnit::Millisecond, _) => times::<TimestampMillisecondType>,
        DataType::Timestamp(TimeUnit::Microsecond, _) => times::<TimestampMicrosecondType>,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => times::<TimestampNanosecondType>,
        other => return Err(ArrowError::CastError(format!("{other} is no date and no timestamp"))),
    };
    Ok(times(array, nanos))
}
