//! Exact decimals for weights, fractions and thresholds: no float takes part in a decision.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Most digits before and after the point together.
const MAX_DIGITS: usize = 18;

/// An exact decimal that is not negative, as in `0.9` or `3`. In JSON it is a string. `0.90` equals `0.9`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Decimal {
    /// Below 10^18, and no multiple of ten unless `scale` is 0.
    mantissa: u64,
    /// Digits after the point, at most 18.
    scale: u32,
}

/// A text that is no decimal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no decimal: write digits with at most one point, as in 0.25, and at most {MAX_DIGITS} digits"
)]
pub struct DecimalError {
    text: String,
}

impl Decimal {
    /// Zero.
    pub const ZERO: Self = Self { mantissa: 0, scale: 0 };
    /// One.
    pub const ONE: Self = Self { mantissa: 1, scale: 0 };

    /// `numerator / denominator`, exact; the denominator is a power of ten.
    pub fn ratio(self) -> (u64, u64) {
        (self.mantissa, 10u64.pow(self.scale))
    }

    /// Whether the decimal is 0.
    pub fn is_zero(self) -> bool {
        self.mantissa == 0
    }

    /// The whole number nearest to `self * count`; halves are rounded up. At most [`u64::MAX`].
    pub fn of(self, count: u64) -> u64 {
        let (numerator, denominator) = self.ratio();
        let twice = u128::from(numerator) * u128::from(count) * 2 + u128::from(denominator);
        u64::try_from(twice / (2 * u128::from(denominator))).unwrap_or(u64::MAX)
    }

    /// The smallest whole number that is not less than `self * count`. At most [`u64::MAX`].
    pub fn ceil_of(self, count: u64) -> u64 {
        let (numerator, denominator) = self.ratio();
        let product = u128::from(numerator) * u128::from(count);
        u64::try_from(product.div_ceil(u128::from(denominator))).unwrap_or(u64::MAX)
    }

    /// The nearest float.
    #[expect(clippy::cast_precision_loss, reason = "a float is the nearest number")]
    pub fn to_f64(self) -> f64 {
        let (numerator, denominator) = self.ratio();
        numerator as f64 / denominator as f64
    }
}

impl FromStr for Decimal {
    type Err = DecimalError;

    fn from_str(text: &str) -> Result<Self, DecimalError> {
        parse(text.trim()).ok_or_else(|| DecimalError { text: text.chars().take(60).collect() })
    }
}

fn parse(text: &str) -> Option<Decimal> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let all_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    if whole.len() + fraction.len() > MAX_DIGITS {
        return None;
    }
    let digits = format!("0{whole}{fraction}");
    Some(Decimal { mantissa: digits.parse().ok()?, scale: u32::try_from(fraction.len()).ok()? })
}

impl TryFrom<String> for Decimal {
    type Error = DecimalError;

    fn try_from(text: String) -> Result<Self, DecimalError> {
        text.parse()
    }
}

impl From<Decimal> for String {
    fn from(decimal: Decimal) -> Self {
        decimal.to_string()
    }
}

impl From<u32> for Decimal {
    fn from(value: u32) -> Self {
        Self { mantissa: value.into(), scale: 0 }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.mantissa / self.ratio().1, self.mantissa % self.ratio().1);
        match usize::try_from(self.scale) {
            Ok(width) if width > 0 => write!(f, "{whole}.{fraction:0width$}"),
            _ => write!(f, "{whole}"),
        }
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let ((a, b), (c, d)) = (self.ratio(), other.ratio());
        (u128::from(a) * u128::from(d)).cmp(&(u128::from(c) * u128::from(b)))
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
