//! Which types there are for an expression, and which go together.

use arrow::datatypes::{DECIMAL256_MAX_PRECISION, DataType, TimeUnit};

/// Precision of an integer of 64 bits, signed or not.
const INTEGER_DIGITS: i32 = 20;

/// 128-bit integers.
pub(super) const WIDE: DataType = DataType::Decimal128(38, 0);

/// What an expression can do with a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Null,
    Bool,
    Integer,
    Decimal {
        precision: u8,
        scale: i8,
    },
    Float32,
    Float64,
    Text,
    Bytes,
    /// Dates, and timestamps with or without a time zone.
    Instant,
    List,
    Other,
}

impl Class {
    /// The class of `data_type`, from which a dictionary was taken off.
    pub(super) fn of(data_type: &DataType) -> Self {
        use DataType as T;
        match data_type {
            T::Null => Self::Null,
            T::Boolean => Self::Bool,
            integer if integer.is_integer() => Self::Integer,
            T::Decimal128(precision, scale) => Self::Decimal { precision: *precision, scale: *scale },
            T::Float32 => Self::Float32,
            T::Float64 => Self::Float64,
            T::Utf8 | T::LargeUtf8 | T::Utf8View => Self::Text,
            T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => Self::Bytes,
            T::Date32 | T::Date64 | T::Timestamp(..) => Self::Instant,
            T::List(_) | T::LargeList(_) | T::FixedSizeList(..) | T::ListView(_) | T::LargeListView(_) => {
                Self::List
            }
            _ => Self::Other,
        }
    }

    pub(super) fn is_number(self) -> bool {
        matches!(self, Self::Integer | Self::Decimal { .. } | Self::Float32 | Self::Float64)
    }

    /// The noun for errors, with its article.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Null => "NULL",
            Self::Bool => "a boolean",
            Self::Integer => "an integer",
            Self::Decimal { .. } => "a decimal",
            Self::Float32 | Self::Float64 => "a float",
            Self::Text => "a string",
            Self::Bytes => "a binary",
            Self::Instant => "a date or timestamp",
            Self::List => "a list",
            Self::Other => "a value of another type",
        }
    }
}

/// How values get the type in which they are compared or computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Conversion {
    /// No change but for a dictionary, of which the values are taken.
    None,
    /// An Arrow cast that loses nothing.
    Cast(DataType),
    /// To a float of 32 bits, from any number.
    Float32,
    /// To a float of 64 bits, from any number.
    Float64,
    /// To nanoseconds since 1970, as a 128-bit integer.
    Nanoseconds,
}

impl Conversion {
    /// Casts unless the type is there already.
    pub(super) fn to(from: &DataType, to: &DataType) -> Self {
        if from == to { Self::None } else { Self::Cast(to.clone()) }
    }
}

/// Conversions of the left and the right side under which they can be compared. `None` if nothing does.
pub(super) fn comparable(left: &DataType, right: &DataType) -> Option<(Conversion, Conversion)> {
    let (l, r) = (Class::of(left), Class::of(right));
    let both = |to: DataType| Some((Conversion::to(left, &to), Conversion::to(right, &to)));
    match (l, r) {
        _ if l.is_number() && r.is_number() => numbers(left, right),
        _ if left == right && matches!(l, Class::Bool | Class::Text | Class::Bytes | Class::Instant) => {
            Some((Conversion::None, Conversion::None))
        }
        (Class::Text, Class::Text) => both(DataType::LargeUtf8),
        (Class::Bytes, Class::Bytes) => both(DataType::LargeBinary),
        (Class::Instant, Class::Instant) => Some((Conversion::Nanoseconds, Conversion::Nanoseconds)),
        _ => None,
    }
}

fn numbers(left: &DataType, right: &DataType) -> Option<(Conversion, Conversion)> {
    let to = match common_number(left, right)? {
        DataType::Float64 => {
            return Some((float(left, Conversion::Float64), float(right, Conversion::Float64)));
        }
        DataType::Float32 => {
            return Some((float(left, Conversion::Float32), float(right, Conversion::Float32)));
        }
        exact => exact,
    };
    Some((Conversion::to(left, &to), Conversion::to(right, &to)))
}

fn float(from: &DataType, conversion: Conversion) -> Conversion {
    match (from, &conversion) {
        (DataType::Float64, Conversion::Float64) | (DataType::Float32, Conversion::Float32) => {
            Conversion::None
        }
        _ => conversion,
    }
}

/// The type that holds all values of two types of numbers, exactly unless one of them is a float.
pub(super) fn common_number(left: &DataType, right: &DataType) -> Option<DataType> {
    let (l, r) = (Class::of(left), Class::of(right));
    if !l.is_number() || !r.is_number() {
        return None;
    }
    if l == Class::Float64 || r == Class::Float64 {
        return Some(DataType::Float64);
    }
    if l == Class::Float32 || r == Class::Float32 {
        return Some(DataType::Float32);
    }
    if l == Class::Integer && r == Class::Integer {
        return Some(common_integer(left, right));
    }
    let (left_digits, left_scale) = digits(l);
    let (right_digits, right_scale) = digits(r);
    let scale = left_scale.max(right_scale);
    let precision = (left_digits.max(right_digits) + i32::from(scale)).max(1);
    let precision = u8::try_from(precision).ok()?;
    match precision {
        0..=38 => Some(DataType::Decimal128(precision, scale)),
        39..=DECIMAL256_MAX_PRECISION => Some(DataType::Decimal256(precision, scale)),
        _ => None,
    }
}

fn common_integer(left: &DataType, right: &DataType) -> DataType {
    if left == right {
        return left.clone();
    }
    let wide = [left, right].contains(&&DataType::UInt64);
    if !wide {
        DataType::Int64
    } else if left.is_unsigned_integer() && right.is_unsigned_integer() {
        DataType::UInt64
    } else {
        WIDE
    }
}

/// Digits before the point, and the scale.
fn digits(class: Class) -> (i32, i8) {
    match class {
        Class::Decimal { precision, scale } => (i32::from(precision) - i32::from(scale), scale),
        _ => (INTEGER_DIGITS, 0),
    }
}

/// The type of `value` without a dictionary around it, and in one of the types that kernels know.
pub(super) fn plain(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => plain(values),
        DataType::Float16 => DataType::Float32,
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            DataType::Decimal128(*precision, *scale)
        }
        other => other.clone(),
    }
}

/// Nanoseconds of one step of a date or timestamp.
pub(super) fn nanoseconds(data_type: &DataType) -> Option<i128> {
    Some(match data_type {
        DataType::Date32 => super::instant::DAY,
        DataType::Date64 | DataType::Timestamp(TimeUnit::Millisecond, _) => 1_000_000,
        DataType::Timestamp(TimeUnit::Second, _) => 1_000_000_000,
        DataType::Timestamp(TimeUnit::Microsecond, _) => 1_000,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => 1,
        _ => return None,
    })
}
