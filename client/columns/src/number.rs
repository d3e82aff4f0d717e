//! Arguments that are numbers of any type, and other single values.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A finite number. An integer keeps all its digits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Number {
    /// Of 64 bits.
    Integer(i64),
    /// One over the largest of these.
    Unsigned(u64),
    /// With a point or an exponent.
    Float(f64),
}

impl Number {
    /// The nearest float.
    pub fn float(self) -> f64 {
        match self {
            Self::Integer(number) => number as f64,
            Self::Unsigned(number) => number as f64,
            Self::Float(number) => number,
        }
    }

    /// The integer that it is, if it is one.
    pub fn integer(self) -> Option<i128> {
        match self {
            Self::Integer(number) => Some(number.into()),
            Self::Unsigned(number) => Some(number.into()),
            // The cast is exact below 2^127, and no type of a column reaches beyond.
            Self::Float(number) => {
                (number == number.trunc() && number.abs() < 1e38).then_some(number as i128)
            }
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => write!(f, "{number}"),
            Self::Unsigned(number) => write!(f, "{number}"),
            Self::Float(number) => write!(f, "{number}"),
        }
    }
}

/// A value of a column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Scalar {
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// Text; of a column of binary values, the bytes of its UTF-8.
    Text(String),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value}"),
            Self::Text(value) => write!(f, "{value:?}"),
        }
    }
}

/// One number, or one for each place in a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Numbers {
    /// One for all.
    One(f64),
    /// One for each place in the last dimension of a column of one shape.
    Each(Vec<f64>),
}

impl Numbers {
    /// The numbers for rows with this last dimension, or one.
    ///
    /// # Errors
    /// Another count, which ends the sentence that begins with the operation's name.
    pub(crate) fn for_last(&self, name: &str, last: Option<usize>) -> Result<Vec<f64>, String> {
        match (self, last) {
            (Self::One(number), _) => Ok(vec![*number]),
            (Self::Each(numbers), Some(last)) if numbers.len() == last && last > 0 => Ok(numbers.clone()),
            (Self::Each(numbers), Some(last)) => Err(format!(
                "has {} numbers as {name}, and rows have {last}: give one number, or {last}",
                numbers.len()
            )),
            (Self::Each(_), None) => {
                Err(format!("has a list as {name}, and rows have no common length: give one number"))
            }
        }
    }
}
