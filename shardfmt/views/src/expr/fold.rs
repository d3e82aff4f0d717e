//! Brings a constant into the type of the column that it is compared with, so that the column needs no cast.
//!
//! The comparison stays exact: `i8 > 2.5` becomes `i8 > 2`, and `i8 < 1000` becomes "not NULL".

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, LargeStringArray, PrimitiveArray,
    StringArray, StringViewArray,
};
use arrow::datatypes::*;

use super::instant;
use super::tree::{Comparison, Literal};
use super::types::{Class, nanoseconds};
use super::value::Value;

/// A comparison of a column with a constant.
pub(super) enum Folded {
    /// Compare with this value, which has the column's type.
    Test(Comparison, Value),
    /// All values that are not NULL have this answer.
    Always(bool),
    /// No shorter way: convert both sides.
    General,
    /// The constant makes no sense for the column: the problem and the way out.
    Wrong(String, String),
}

/// Folds `column op literal`, where the column has `data_type`. The literal is not NULL.
pub(super) fn constant(op: Comparison, data_type: &DataType, literal: &Literal) -> Folded {
    match (Class::of(data_type), literal) {
        (Class::Integer, Literal::Integer(_) | Literal::Decimal { .. }) => number(op, data_type, 0, literal),
        (Class::Decimal { scale, .. }, Literal::Integer(_) | Literal::Decimal { .. }) => {
            number(op, data_type, scale, literal)
        }
        (Class::Instant, Literal::Text(text)) => point(op, data_type, text),
        (Class::Float64, _) => test(op, float64(literal).map(one::<Float64Type>)),
        (Class::Float32, Literal::Integer(_) | Literal::Decimal { .. }) => {
            test(op, float32(literal).map(one::<Float32Type>))
        }
        (Class::Text, Literal::Text(text)) => test(op, string(data_type, text)),
        (Class::Bool, Literal::Bool(value)) => test(op, Some(Arc::new(BooleanArray::from(vec![*value])))),
        _ => Folded::General,
    }
}

/// An array of one value of type `T`.
fn one<T: ArrowPrimitiveType>(value: T::Native) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_value(value, 1))
}

fn test(op: Comparison, value: Option<ArrayRef>) -> Folded {
    value.map_or(Folded::General, |array| Folded::Test(op, Value::scalar(array)))
}

/// A string of one of the three types.
pub(super) fn string(data_type: &DataType, text: &str) -> Option<ArrayRef> {
    Some(match data_type {
        DataType::Utf8 => Arc::new(StringArray::from(vec![text])),
        DataType::LargeUtf8 => Arc::new(LargeStringArray::from(vec![text])),
        DataType::Utf8View => Arc::new(StringViewArray::from(vec![text])),
        _ => return None,
    })
}

/// The number nearest to the literal.
pub(super) fn float64(literal: &Literal) -> Option<f64> {
    match literal {
        Literal::Float(value) => Some(*value),
        Literal::Integer(_) | Literal::Decimal { .. } => literal.to_string().parse().ok(),
        _ => None,
    }
}

/// As [`float64`], in 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "a float literal has 64 bits and gets the nearest of 32")]
pub(super) fn float32(literal: &Literal) -> Option<f32> {
    match literal {
        Literal::Float(value) => Some(*value as f32),
        Literal::Integer(_) | Literal::Decimal { .. } => literal.to_string().parse().ok(),
        _ => None,
    }
}

/// Where a constant lies among the steps of a column's type.
enum Step {
    Below,
    /// Just there, or between this step and the next.
    At {
        floor: i128,
        exact: bool,
    },
    Above,
}

/// `steps · 10^-scale` against the literal.
fn number(op: Comparison, data_type: &DataType, scale: i8, literal: &Literal) -> Folded {
    let (mantissa, literal_scale) = match literal {
        Literal::Integer(value) => (*value, 0),
        Literal::Decimal { mantissa, scale } => (*mantissa, i32::from(*scale)),
        _ => return Folded::General,
    };
    let shift = i32::from(scale) - literal_scale;
    let power = 10i128.checked_pow(shift.unsigned_abs());
    let step = match power {
        Some(power) if shift >= 0 => match mantissa.checked_mul(power) {
            Some(floor) => Step::At { floor, exact: true },
            None => beyond(mantissa),
        },
        Some(power) => Step::At { floor: mantissa.div_euclid(power), exact: mantissa.rem_euclid(power) == 0 },
        None if mantissa == 0 => Step::At { floor: 0, exact: true },
        None if shift > 0 => beyond(mantissa),
        None => Step::At { floor: if mantissa < 0 { -1 } else { 0 }, exact: false },
    };
    settle(op, data_type, step)
}

fn beyond(value: i128) -> Step {
    if value < 0 { Step::Below } else { Step::Above }
}

fn point(op: Comparison, data_type: &DataType, text: &str) -> Folded {
    let Some(nanos) = nanoseconds(data_type) else { return Folded::General };
    let Some(instant) = instant::parse(text) else {
        let way_out =
            "write '2024-01-31', '2024-01-31 12:00:00' or '2024-01-31T12:00:00.5Z', with days that exist";
        return Folded::Wrong(format!("'{text}' is no date and no timestamp"), way_out.into());
    };
    if instant.has_offset && !matches!(data_type, DataType::Timestamp(_, Some(_))) {
        let problem = format!("'{text}' has an offset from UTC and the column has no time zone");
        return Folded::Wrong(
            problem,
            "leave the offset out, and write the time as the column has it".into(),
        );
    }
    let floor = instant.nanos.div_euclid(nanos);
    settle(op, data_type, Step::At { floor, exact: instant.nanos.rem_euclid(nanos) == 0 })
}

fn settle(op: Comparison, data_type: &DataType, step: Step) -> Folded {
    use Comparison::{Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual};
    let (floor, exact) = match step {
        Step::At { floor, exact } => (floor, exact),
        Step::Below => return Folded::Always(matches!(op, NotEqual | Greater | GreaterEqual)),
        Step::Above => return Folded::Always(matches!(op, NotEqual | Less | LessEqual)),
    };
    let op = match op {
        op if exact => op,
        Equal => return Folded::Always(false),
        NotEqual => return Folded::Always(true),
        Less | LessEqual => LessEqual,
        Greater | GreaterEqual => Greater,
    };
    match integer(data_type, floor) {
        Some(array) => Folded::Test(op, Value::scalar(array)),
        None => settle(op, data_type, beyond(floor)),
    }
}

/// One value of an integer, decimal, date or timestamp type; `None` if it is out of range.
pub(super) fn integer(data_type: &DataType, value: i128) -> Option<ArrayRef> {
    fn make<T: ArrowPrimitiveType>(data_type: &DataType, value: i128) -> Option<ArrayRef>
    where
        T::Native: TryFrom<i128>,
    {
        let value = T::Native::try_from(value).ok()?;
        Some(Arc::new(PrimitiveArray::<T>::from_value(value, 1).with_data_type(data_type.clone())))
    }
    let make = match data_type {
        DataType::Int8 => make::<Int8Type>,
        DataType::Int16 => make::<Int16Type>,
        DataType::Int32 => make::<Int32Type>,
        DataType::Int64 => make::<Int64Type>,
        DataType::UInt8 => make::<UInt8Type>,
        DataType::UInt16 => make::<UInt16Type>,
        DataType::UInt32 => make::<UInt32Type>,
        DataType::UInt64 => make::<UInt64Type>,
        DataType::Decimal128(..) => make::<Decimal128Type>,
        DataType::Date32 => make::<Date32Type>,
        DataType::Date64 => make::<Date64Type>,
        DataType::Timestamp(TimeUnit::Second, _) => make::<TimestampSecondType>,
        DataType::Timestamp(TimeUnit::Millisecond, _) => make::<TimestampMillisecondType>,
        DataType::Timestamp(TimeUnit::Microsecond, _) => make::<TimestampMicrosecondType>,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => make::<TimestampNanosecondType>,
        _ => return None,
    };
    make(data_type, value)
}

/// The constant as an array of one value of its natural type: Int64, Decimal128, Float64, Utf8, Boolean or
/// Null.
pub(super) fn natural(literal: &Literal) -> Value {
    let array: ArrayRef = match literal {
        Literal::Null => arrow::array::new_null_array(&DataType::Null, 1),
        Literal::Bool(value) => Arc::new(BooleanArray::from(vec![*value])),
        Literal::Float(value) => one::<Float64Type>(*value),
        Literal::Text(text) => Arc::new(StringArray::from(vec![text.as_str()])),
        Literal::Integer(value) => match i64::try_from(*value) {
            Ok(value) => one::<Int64Type>(value),
            Err(_) => decimal(*value, 0),
        },
        Literal::Decimal { mantissa, scale } => decimal(*mantissa, *scale),
    };
    Value::scalar(array)
}

fn decimal(mantissa: i128, scale: u8) -> ArrayRef {
    let digits = mantissa.unsigned_abs().checked_ilog10().map_or(1, |log| log + 1);
    let precision = u8::try_from(digits).unwrap_or(38).max(scale).clamp(1, 38);
    let data_type = DataType::Decimal128(precision, i8::try_from(scale).unwrap_or(38));
    Arc::new(PrimitiveArray::<Decimal128Type>::from_value(mantissa, 1).with_data_type(data_type))
}

/// The literal of an array of one value, if its type is one of those that [`natural`] makes.
pub(super) fn literal(array: &dyn Array) -> Option<Literal> {
    if array.len() != 1 {
        return None;
    }
    if array.is_null(0) || array.data_type() == &DataType::Null {
        return Some(Literal::Null);
    }
    Some(match array.data_type() {
        DataType::Boolean => Literal::Bool(array.as_boolean().value(0)),
        DataType::Int64 => Literal::Integer(array.as_primitive::<Int64Type>().value(0).into()),
        DataType::Float64 => Literal::Float(array.as_primitive::<Float64Type>().value(0)),
        DataType::Utf8 => Literal::Text(array.as_string::<i32>().value(0).into()),
        DataType::LargeUtf8 => Literal::Text(array.as_string::<i64>().value(0).into()),
        DataType::Decimal128(_, scale) => {
            let mantissa = array.as_primitive::<Decimal128Type>().value(0);
            match u8::try_from(*scale).ok()? {
                0 => Literal::Integer(mantissa),
                scale => Literal::Decimal { mantissa, scale },
            }
        }
        _ => return None,
    })
}
