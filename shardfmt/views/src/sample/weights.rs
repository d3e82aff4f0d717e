//! A column of weights as integers of one unit.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, UInt64Type};
use arrow::error::ArrowError;

/// Bits of the largest integer weight that stands for a float.
const FLOAT_BITS: i32 = 52;

/// Collects the weights of a version's rows, record batch by record batch.
///
/// Integers and decimals are exact. Floats become multiples of 2^(e-52), where 2^e is the largest power of
/// two that is not above the largest weight. That weight loses nothing, and weights below 2^-54 of it count
/// as 0.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    exact: Vec<u64>,
    floats: Vec<f64>,
    data_type: Option<DataType>,
}

/// Why a column has no weights.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A value is NULL, negative, infinite or NaN.
    #[error("row {row} has the weight {value}: weights are numbers from 0; filter such rows first")]
    Value {
        /// The row, from 0, over all record batches.
        row: u64,
        /// Its value.
        value: String,
    },
    /// The column has no numbers, or not the same type as before.
    #[error("the column of weights is {data_type}: use one column of integers, decimals or floats")]
    Type {
        /// Its type.
        data_type: DataType,
    },
    /// An Arrow kernel refused its input.
    #[error("the column of weights cannot be read")]
    Arrow(#[from] ArrowError),
}

impl Weights {
    /// No rows yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the weights of the next rows.
    ///
    /// # Errors
    /// [`WeightsError`]; rows before the named one may have been taken.
    pub fn push(&mut self, column: &ArrayRef) -> Result<(), WeightsError> {
        let column = match column.data_type() {
            DataType::Dictionary(_, values) => &cast(column, values)?,
            _ => column,
        };
        let data_type = column.data_type();
        let wrong = || WeightsError::Type { data_type: data_type.clone() };
        if self.data_type.get_or_insert_with(|| data_type.clone()) != data_type {
            return Err(wrong());
        }
        match data_type {
            float if float.is_floating() => self.push_floats(column),
            integer if integer.is_integer() => self.push_integers(column),
            DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) => {
                self.push_decimals(column)
            }
            _ => Err(wrong()),
        }
    }

    fn push_floats(&mut self, column: &ArrayRef) -> Result<(), WeightsError> {
        let values = cast(column, &DataType::Float64)?;
        for value in values.as_primitive::<Float64Type>() {
            match value {
                Some(value) if value.is_finite() && value >= 0.0 => self.floats.push(value),
                other => return Err(self.refuse(other)),
            }
        }
        Ok(())
    }

    fn push_integers(&mut self, column: &ArrayRef) -> Result<(), WeightsError> {
        // Negative integers become NULL.
        let values = cast(column, &DataType::UInt64)?;
        for (index, value) in values.as_primitive::<UInt64Type>().iter().enumerate() {
            match value {
                Some(value) => self.exact.push(value),
                None if column.is_null(index) => return Err(self.refuse(None::<u64>)),
                None => return Err(self.refuse(Some("below 0"))),
            }
        }
        Ok(())
    }

    fn push_decimals(&mut self, column: &ArrayRef) -> Result<(), WeightsError> {
        let scale = match column.data_type() {
            DataType::Decimal32(_, scale)
            | DataType::Decimal64(_, scale)
            | DataType::Decimal128(_, scale) => *scale,
            _ => 0,
        };
        // All values have one scale: the mantissas are weights of the same proportions.
        let values = cast(column, &DataType::Decimal128(38, scale))?;
        for value in values.as_primitive::<Decimal128Type>() {
            match value.map(u64::try_from) {
                Some(Ok(value)) => self.exact.push(value),
                _ => return Err(self.refuse(value)),
            }
        }
        Ok(())
    }

    fn refuse(&self, value: Option<impl ToString>) -> WeightsError {
        let row = (self.exact.len() + self.floats.len()) as u64;
        WeightsError::Value { row, value: value.map_or("NULL".into(), |value| value.to_string()) }
    }

    /// The weights of all rows, in one unit.
    pub fn finish(self) -> Vec<u64> {
        if self.floats.is_empty() {
            return self.exact;
        }
        let largest = self.floats.iter().copied().fold(0.0, f64::max);
        // Two steps, since one power of two may be out of range.
        let shift = FLOAT_BITS - exponent(largest);
        let (first, second) = (power_of_two(shift / 2), power_of_two(shift - shift / 2));
        self.floats.into_iter().map(|value| whole(value * first * second)).collect()
    }
}

/// The nearest integer; the value is not negative and below 2^53.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the value is from 0 to 2^53")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// e, where 2^e is the largest power of two that is not above `value`; for 0 and for subnormal values, the
/// least of normal ones.
fn exponent(value: f64) -> i32 {
    let biased = (value.to_bits() >> 52) & 0x7ff;
    i32::try_from(biased.max(1)).unwrap_or(1) - 1023
}

/// 2^exponent, for exponents of normal floats.
fn power_of_two(exponent: i32) -> f64 {
    let biased = u64::try_from((exponent + 1023).clamp(1, 2046)).unwrap_or(1);
    f64::from_bits(biased << 52)
}
