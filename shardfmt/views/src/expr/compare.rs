//! Comparisons of columns, and membership in long lists.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::kernels::cmp;
use arrow::datatypes::*;
use arrow::error::ArrowError;

use super::text::with_strings;
use super::tree::Comparison;
use super::value::Value;

/// `left op right`. The types are equal, but that one side may be a dictionary.
///
/// Floats compare as in DuckDB and PostgreSQL: -0 equals 0, and NaN equals NaN and is greater than all other
/// numbers.
pub(super) fn compare(op: Comparison, left: &Value, right: &Value) -> Result<Value, ArrowError> {
    let is_scalar = left.is_scalar && right.is_scalar;
    let array: BooleanArray = match right.array.data_type() {
        DataType::Float32 => floats::<Float32Type>(op, &left.flat()?, &right.flat()?),
        DataType::Float64 => floats::<Float64Type>(op, &left.flat()?, &right.flat()?),
        _ => match op {
            Comparison::Equal => cmp::eq(left, right)?,
            Comparison::NotEqual => cmp::neq(left, right)?,
            Comparison::Less => cmp::lt(left, right)?,
            Comparison::LessEqual => cmp::lt_eq(left, right)?,
            Comparison::Greater => cmp::gt(left, right)?,
            Comparison::GreaterEqual => cmp::gt_eq(left, right)?,
        },
    };
    Ok(Value { array: Arc::new(array), is_scalar })
}

fn floats<T: ArrowPrimitiveType>(op: Comparison, left: &Value, right: &Value) -> BooleanArray
where
    T::Native: PartialOrd,
{
    match op {
        Comparison::Equal => pairs::<T>(left, right, equal),
        Comparison::NotEqual => pairs::<T>(left, right, |a, b| !equal(a, b)),
        Comparison::Less => pairs::<T>(left, right, less),
        Comparison::LessEqual => pairs::<T>(left, right, |a, b| !less(b, a)),
        Comparison::Greater => pairs::<T>(left, right, |a, b| less(b, a)),
        Comparison::GreaterEqual => pairs::<T>(left, right, |a, b| !less(a, b)),
    }
}

/// Only NaN differs from itself.
#[expect(clippy::eq_op, reason = "this is the test for NaN")]
fn is_nan<N: PartialOrd + Copy>(value: N) -> bool {
    value != value
}

fn equal<N: PartialOrd + Copy>(a: N, b: N) -> bool {
    (a == b) | (is_nan(a) & is_nan(b))
}

fn less<N: PartialOrd + Copy>(a: N, b: N) -> bool {
    (a < b) | (!is_nan(a) & is_nan(b))
}

fn pairs<T: ArrowPrimitiveType>(
    left: &Value,
    right: &Value,
    f: impl Fn(T::Native, T::Native) -> bool,
) -> BooleanArray {
    let (l, r) = (left.array.as_primitive::<T>(), right.array.as_primitive::<T>());
    let (a, b) = (l.values(), r.values());
    let null = |value: &Value| value.is_scalar && value.array.is_null(0);
    if null(left) || null(right) {
        return BooleanArray::new_null(if left.is_scalar { b.len() } else { a.len() });
    }
    match (left.is_scalar, right.is_scalar) {
        (true, false) => {
            let x = a[0];
            BooleanArray::new(BooleanBuffer::collect_bool(b.len(), |i| f(x, b[i])), r.nulls().cloned())
        }
        (false, true) => {
            let y = b[0];
            BooleanArray::new(BooleanBuffer::collect_bool(a.len(), |i| f(a[i], y)), l.nulls().cloned())
        }
        _ => {
            let len = a.len().min(b.len());
            let nulls = NullBuffer::union(l.nulls(), r.nulls());
            BooleanArray::new(BooleanBuffer::collect_bool(len, |i| f(a[i], b[i])), nulls)
        }
    }
}

/// The values of a long IN list.
#[derive(Debug, Clone)]
pub(super) enum Set {
    /// Integers, decimals, dates and timestamps as the column's type stores them; sorted.
    Numbers(Vec<i128>),
    Texts(HashSet<String, BuildHasherDefault<Words>>),
}

impl Set {
    /// The set of `values`, of one value each and all of one type; `None` if the type has no set.
    pub(super) fn new(values: &[Value]) -> Option<Self> {
        let mut numbers = Vec::new();
        let mut texts = HashSet::default();
        for value in values {
            match stored(&value.array) {
                Some(stored) => numbers.extend(stored.iter().flatten()),
                None => texts.extend(owned(&value.array).ok()?),
            }
        }
        if texts.is_empty() {
            numbers.sort_unstable();
            numbers.dedup();
            return Some(Self::Numbers(numbers));
        }
        numbers.is_empty().then_some(Self::Texts(texts))
    }

    /// Whether each value is in the set; NULL for NULL.
    pub(super) fn contains(&self, array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
        let found: BooleanArray = match self {
            Self::Texts(set) => {
                with_strings!(array, texts => BooleanArray::from_unary(texts, |text| set.contains(text)))
            }
            Self::Numbers(set) => {
                let stored = stored(array).ok_or_else(|| {
                    ArrowError::InvalidArgumentError(format!(
                        "{} is not stored as an integer",
                        array.data_type()
                    ))
                })?;
                let found = |value: i128| set.binary_search(&value).is_ok();
                let values = stored.values();
                let bits = BooleanBuffer::collect_bool(values.len(), |row| found(values[row]));
                BooleanArray::new(bits, stored.nulls().cloned())
            }
        };
        Ok(Arc::new(found))
    }
}

/// A hash of eight bytes at a time. The set has the constants of one expression and is only looked up in, so
/// that chosen data cannot make it slow.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Words(u64);

impl Hasher for Words {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    /// The end mark of a string.
    fn write_u8(&mut self, _end: u8) {}
}

fn owned(array: &ArrayRef) -> Result<Vec<String>, ArrowError> {
    Ok(with_strings!(array, texts => texts.iter().flatten().map(str::to_string).collect()))
}

/// The integers that a column stores; `None` if it stores no integers.
fn stored(array: &ArrayRef) -> Option<PrimitiveArray<Decimal128Type>> {
    fn widen<T: ArrowPrimitiveType>(array: &ArrayRef) -> PrimitiveArray<Decimal128Type>
    where
        i128: From<T::Native>,
    {
        array.as_primitive::<T>().unary(i128::from)
    }
    let widen = match array.data_type() {
        DataType::Int8 => widen::<Int8Type>,
        DataType::Int16 => widen::<Int16Type>,
        DataType::Int32 => widen::<Int32Type>,
        DataType::Int64 => widen::<Int64Type>,
        DataType::UInt8 => widen::<UInt8Type>,
        DataType::UInt16 => widen::<UInt16Type>,
        DataType::UInt32 => widen::<UInt32Type>,
        DataType::UInt64 => widen::<UInt64Type>,
        DataType::Decimal128(..) => widen::<Decimal128Type>,
        DataType::Date32 => widen::<Date32Type>,
        DataType::Date64 => widen::<Date64Type>,
        DataType::Timestamp(TimeUnit::Second, _) => widen::<TimestampSecondType>,
        DataType::Timestamp(TimeUnit::Millisecond, _) => widen::<TimestampMillisecondType>,
        DataType::Timestamp(TimeUnit::Microsecond, _) => widen::<TimestampMicrosecondType>,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => widen::<TimestampNanosecondType>,
        _ => return None,
    };
    Some(widen(array))
}
