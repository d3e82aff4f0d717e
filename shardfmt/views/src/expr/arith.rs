//! Arithmetic: checked on integers and decimals, IEEE 754 on floats, and NULL where a divisor is zero.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, PrimitiveArray, new_null_array,
};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::{DataType, Decimal128Type, Float32Type, Float64Type, Int64Type};

use super::tree::Operator;
use super::value::Value;

/// One more than the largest number of 38 digits.
const LIMIT: i128 = 10i128.pow(38);

/// The result of one operation is fine, NULL, or out of range.
const FINE: u8 = 0;
const NULL: u8 = 1;
const OVERFLOW: u8 = 2;

/// The type in which an operation computes. Both sides have it already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Domain {
    /// Integers of 64 bits.
    Integer,
    /// Decimals. The sides are multiplied by these factors first; the result has this type.
    Decimal {
        factors: (i128, i128),
        result: DataType,
    },
    Float32,
    Float64,
}

impl Domain {
    /// Type of the results.
    pub(super) fn result(&self) -> DataType {
        match self {
            Self::Integer => DataType::Int64,
            Self::Decimal { result, .. } => result.clone(),
            Self::Float32 => DataType::Float32,
            Self::Float64 => DataType::Float64,
        }
    }

    /// Whether a result can leave the range.
    pub(super) fn can_fail(&self) -> bool {
        matches!(self, Self::Integer | Self::Decimal { .. })
    }

    /// The range, in words.
    pub(super) fn range(&self) -> &'static str {
        match self {
            Self::Decimal { .. } => "38 digits",
            _ => "64-bit integers",
        }
    }
}

/// Rows that count: an overflow elsewhere is NULL, since an `AND` or `OR` has settled that row.
pub(super) type Active<'a> = Option<&'a BooleanBuffer>;

/// The first active row that left the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutOfRange {
    pub(super) row: usize,
}

/// `left operator right` for each row.
pub(super) fn binary(
    operator: Operator,
    domain: &Domain,
    left: &Value,
    right: &Value,
    active: Active<'_>,
) -> Result<Value, OutOfRange> {
    match domain {
        Domain::Integer => integer(operator, left, right, active),
        Domain::Decimal { factors, result } => {
            let computed = decimal(operator, *factors, left, right, active)?;
            let typed =
                computed.array.as_primitive::<Decimal128Type>().clone().with_data_type(result.clone());
            Ok(computed.with(Arc::new(typed)))
        }
        Domain::Float32 => float::<Float32Type>(operator, left, right, active),
        Domain::Float64 => float::<Float64Type>(operator, left, right, active),
    }
}

fn integer(operator: Operator, l: &Value, r: &Value, active: Active<'_>) -> Result<Value, OutOfRange> {
    type T = Int64Type;
    let flag = |(value, overflow): (i64, bool)| (value, if overflow { OVERFLOW } else { FINE });
    match operator {
        Operator::Add => combine::<T>(l, r, active, |a, b| flag(a.overflowing_add(b))),
        Operator::Subtract => combine::<T>(l, r, active, |a, b| flag(a.overflowing_sub(b))),
        Operator::Multiply => combine::<T>(l, r, active, |a, b| flag(a.overflowing_mul(b))),
        Operator::Remainder => combine::<T>(l, r, active, |a, b| match b {
            0 => (0, NULL),
            _ => (a.wrapping_rem(b), FINE),
        }),
        Operator::Divide | Operator::DivideWhole => combine::<T>(l, r, active, |a, b| match b {
            0 => (0, NULL),
            _ => flag(a.overflowing_div(b)),
        }),
    }
}

fn decimal(
    operator: Operator,
    (left, right): (i128, i128),
    l: &Value,
    r: &Value,
    active: Active<'_>,
) -> Result<Value, OutOfRange> {
    combine::<Decimal128Type>(l, r, active, |a, b| {
        let (Some(a), Some(b)) = (a.checked_mul(left), b.checked_mul(right)) else { return (0, OVERFLOW) };
        let result = match operator {
            Operator::Add => a.checked_add(b),
            Operator::Subtract => a.checked_sub(b),
            Operator::Multiply => a.checked_mul(b),
            Operator::Remainder | Operator::Divide | Operator::DivideWhole if b == 0 => return (0, NULL),
            Operator::Remainder => Some(a.wrapping_rem(b)),
            Operator::Divide | Operator::DivideWhole => a.checked_div(b),
        };
        match result {
            Some(value) if value > -LIMIT && value < LIMIT => (value, FINE),
            _ => (0, OVERFLOW),
        }
    })
}

fn float<T: ArrowPrimitiveType>(
    operator: Operator,
    l: &Value,
    r: &Value,
    active: Active<'_>,
) -> Result<Value, OutOfRange>
where
    T::Native: ArrowNativeTypeOp,
{
    let zero = |b: T::Native| b.is_zero();
    match operator {
        Operator::Add => combine::<T>(l, r, active, |a, b| (a.add_wrapping(b), FINE)),
        Operator::Subtract => combine::<T>(l, r, active, |a, b| (a.sub_wrapping(b), FINE)),
        Operator::Multiply => combine::<T>(l, r, active, |a, b| (a.mul_wrapping(b), FINE)),
        Operator::Remainder => {
            combine::<T>(l, r, active, |a, b| (a.mod_wrapping(b), if zero(b) { NULL } else { FINE }))
        }
        Operator::Divide | Operator::DivideWhole => {
            combine::<T>(l, r, active, |a, b| (a.div_wrapping(b), if zero(b) { NULL } else { FINE }))
        }
    }
}

/// Absolute values. The sides are integers, decimals or floats of the domain.
pub(super) fn absolute(domain: &Domain, value: &Value, active: Active<'_>) -> Result<Value, OutOfRange> {
    match domain {
        Domain::Integer => {
            let zero = Value::scalar(Arc::new(PrimitiveArray::<Int64Type>::from_value(0, 1)));
            combine::<Int64Type>(value, &zero, active, |a, _| match a.overflowing_abs() {
                (value, false) => (value, FINE),
                (value, true) => (value, OVERFLOW),
            })
        }
        Domain::Decimal { .. } => {
            let array = value.array.as_primitive::<Decimal128Type>();
            let absolute = array.unary::<_, Decimal128Type>(i128::wrapping_abs);
            Ok(value.with(Arc::new(absolute.with_data_type(array.data_type().clone()))))
        }
        Domain::Float32 => {
            let array = value.array.as_primitive::<Float32Type>();
            Ok(value.with(Arc::new(array.unary::<_, Float32Type>(f32::abs))))
        }
        Domain::Float64 => {
            let array = value.array.as_primitive::<Float64Type>();
            Ok(value.with(Arc::new(array.unary::<_, Float64Type>(f64::abs))))
        }
    }
}

/// `f` of each pair. The usual case, in which each result is fine, is one loop without branches.
fn combine<T: ArrowPrimitiveType>(
    left: &Value,
    right: &Value,
    active: Active<'_>,
    f: impl Fn(T::Native, T::Native) -> (T::Native, u8),
) -> Result<Value, OutOfRange> {
    let (l, r) = (left.array.as_primitive::<T>(), right.array.as_primitive::<T>());
    let is_scalar = left.is_scalar && right.is_scalar;
    let len = if left.is_scalar { r.len() } else { l.len() };
    let make = |array: ArrayRef| Value { array, is_scalar };
    let constant_null = |value: &Value| value.is_scalar && value.array.is_null(0);
    if constant_null(left) || constant_null(right) {
        return Ok(make(new_null_array(&T::DATA_TYPE, len)));
    }
    let nulls = match (left.is_scalar, right.is_scalar) {
        (false, false) => NullBuffer::union(l.nulls(), r.nulls()),
        (false, true) => l.nulls().cloned(),
        (true, false) => r.nulls().cloned(),
        (true, true) => None,
    };
    let mut seen = FINE;
    let mut note = |(value, flag): (T::Native, u8)| {
        seen |= flag;
        value
    };
    let (a, b) = (l.values(), r.values());
    let values: Vec<T::Native> = match (left.is_scalar, right.is_scalar) {
        (false, true) => {
            let y = b[0];
            a.iter().map(|&x| note(f(x, y))).collect()
        }
        (true, false) => {
            let x = a[0];
            b.iter().map(|&y| note(f(x, y))).collect()
        }
        _ => a.iter().zip(b.iter()).map(|(&x, &y)| note(f(x, y))).collect(),
    };
    let nulls = if seen == FINE {
        nulls
    } else {
        let flag = |row: usize| {
            let (x, y) = (if left.is_scalar { 0 } else { row }, if right.is_scalar { 0 } else { row });
            f(a[x], b[y]).1
        };
        Some(settle(len, nulls.as_ref(), active, flag)?)
    };
    Ok(make(Arc::new(PrimitiveArray::<T>::new(values.into(), nulls))))
}

/// Which rows are valid, if some have no result.
fn settle(
    len: usize,
    nulls: Option<&NullBuffer>,
    active: Active<'_>,
    flag: impl Fn(usize) -> u8,
) -> Result<NullBuffer, OutOfRange> {
    let mut failed = None;
    let valid = BooleanBuffer::collect_bool(len, |row| {
        if nulls.is_some_and(|nulls| nulls.is_null(row)) {
            return false;
        }
        let flag = flag(row);
        if flag == OVERFLOW && failed.is_none() && active.is_none_or(|active| active.value(row)) {
            failed = Some(row);
        }
        flag == FINE
    });
    match failed {
        Some(row) => Err(OutOfRange { row }),
        None => Ok(NullBuffer::new(valid)),
    }
}
