//! How often a derived version takes each row: a fraction, a count, in proportion to weights, or balanced
//! over classes.
//!
//! Rows are put in the order of a hash of the seed and their digest, so that a row's place does not depend on
//! its place in the version. Rows with equal digests follow one another in row order. All shares are computed
//! in integers.

mod multiplicities;
#[cfg(test)]
mod tests;
mod weights;

use serde::{Deserialize, Serialize};

use crate::decimal::Decimal;
use crate::key::{Digest, Order, Purpose};

pub use multiplicities::Multiplicities;
pub use weights::{Weights, WeightsError};

/// A rule for how often to take each row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Sample {
    /// The nearest whole number to `fraction` times the rows, each once: exact, and not stable under append.
    Fraction {
        /// From 0 to 1.
        fraction: Decimal,
    },
    /// Each row once with this chance, decided by its hash alone: stable under append, and exact in
    /// expectation only.
    Bernoulli {
        /// From 0 to 1.
        fraction: Decimal,
    },
    /// This number of rows, each once.
    Count {
        /// At most the rows of the version.
        count: u64,
    },
    /// `total` rows, each in proportion to its weight.
    Weighted {
        /// The column of weights: numbers that are not negative.
        weights: String,
        /// Rows of the derived version.
        total: u64,
    },
    /// `total` rows, the same number from each class.
    Balanced {
        /// The column of classes. NULL is a class.
        by: String,
        /// Rows of the derived version.
        total: u64,
    },
}

impl Sample {
    /// How often each row is taken. `labels` are the classes of a balanced sample and `weights` the weights of a weighted one, both
    /// by row; others need none.
    ///
    /// # Errors
    /// Those of the function of the kind.
    pub fn draw(
        &self,
        seed: u64,
        rows: &[Digest],
        labels: &[Digest],
        weights: &[u64],
    ) -> Result<Multiplicities, SampleError> {
        match self {
            Self::Fraction { fraction } => self::fraction(seed, rows, *fraction),
            Self::Bernoulli { fraction } => bernoulli(seed, rows, *fraction),
            Self::Count { count } => self::count(seed, rows, *count),
            Self::Weighted { total, .. } => weighted(seed, rows, weights, *total),
            Self::Balanced { total, .. } => balanced(seed, rows, labels, *total),
        }
    }
}

/// Why there is no such sample.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// A fraction above 1.
    #[error("the fraction is {fraction}: take 0 to 1, or a balanced or weighted sample to repeat rows")]
    Fraction {
        /// The fraction.
        fraction: Decimal,
    },
    /// More rows than there are.
    #[error("{count} rows are wanted of {rows}: take fewer, or a balanced or weighted sample to repeat rows")]
    TooFew {
        /// The wanted rows.
        count: u64,
        /// Rows of the version.
        rows: u64,
    },
    /// Rows are wanted and no row has a weight, or there is none.
    #[error("{total} rows are wanted and no row has a weight above 0: check the column of weights")]
    Nothing {
        /// The wanted rows.
        total: u64,
    },
    /// Labels or weights are not one for each row.
    #[error("there are {rows} rows and {found} {things}: give one for each row")]
    Lengths {
        /// Rows of the version.
        rows: usize,
        /// What came with them.
        found: usize,
        /// Labels or weights.
        things: &'static str,
    },
    /// A row would be taken more than 2^32 - 1 times, or shares need more than 127 bits.
    #[error("a total of {total} rows is too much for these rows: take a smaller one")]
    TooMuch {
        /// The wanted rows.
        total: u64,
    },
}

/// round(fraction · n) rows by hash order, each once.
///
/// # Errors
/// [`SampleError::Fraction`].
pub fn fraction(seed: u64, rows: &[Digest], fraction: Decimal) -> Result<Multiplicities, SampleError> {
    if fraction > Decimal::ONE {
        return Err(SampleError::Fraction { fraction });
    }
    count(seed, rows, fraction.of(rows.len() as u64))
}

/// Rows whose hash is below `fraction` of all hashes. Each row is looked at alone, so that pieces of a
/// version can be sampled one by one.
///
/// # Errors
/// [`SampleError::Fraction`].
pub fn bernoulli(seed: u64, rows: &[Digest], fraction: Decimal) -> Result<Multiplicities, SampleError> {
    if fraction > Decimal::ONE {
        return Err(SampleError::Fraction { fraction });
    }
    let (numerator, denominator) = fraction.ratio();
    let limit = (u128::from(numerator) << 64) / u128::from(denominator);
    let order = Order::new(Purpose::Sample, seed);
    Ok(rows.iter().map(|row| u32::from(u128::from(order.position(row)) < limit)).collect())
}

/// The first `count` rows by hash order, each once.
///
/// # Errors
/// [`SampleError::TooFew`].
pub fn count(seed: u64, rows: &[Digest], count: u64) -> Result<Multiplicities, SampleError> {
    let wanted = usize::try_from(count).ok().filter(|wanted| *wanted <= rows.len());
    let Some(wanted) = wanted else { return Err(SampleError::TooFew { count, rows: rows.len() as u64 }) };
    let order = Order::new(Purpose::Sample, seed);
    let mut places: Vec<(u64, usize)> = rows.iter().map(|row| order.position(row)).zip(0..).collect();
    if wanted < places.len() {
        places.select_nth_unstable(wanted);
    }
    let mut times = vec![0; rows.len()];
    places[..wanted].iter().for_each(|&(_, row)| times[row] = 1);
    Ok(times.into_iter().collect())
}

/// `total` rows in proportion to `weights`: a row of weight w is taken ⌊s⌋ or ⌈s⌉ times, where its exact
/// share s is total · w / (sum of weights). The sum of all is `total`.
///
/// This is systematic sampling (Madow and Madow, "On the Theory of Systematic Sampling", 1944): the rows lie
/// on a line in hash order, each as long as its weight, and `total` marks at equal distances take the rows
/// under them. The first mark follows from the seed, so that the expectation of a row is its share.
///
/// # Errors
/// [`SampleError::Lengths`], [`SampleError::Nothing`] and [`SampleError::TooMuch`].
pub fn weighted(
    seed: u64,
    rows: &[Digest],
    weights: &[u64],
    total: u64,
) -> Result<Multiplicities, SampleError> {
    if weights.len() != rows.len() {
        return Err(SampleError::Lengths { rows: rows.len(), found: weights.len(), things: "weights" });
    }
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    if total == 0 {
        return Ok(std::iter::repeat_n(0, rows.len()).collect());
    }
    if sum == 0 {
        return Err(SampleError::Nothing { total });
    }
    let too_much = || SampleError::TooMuch { total };
    sum.checked_mul(u128::from(total) + 1).filter(|product| *product >> 127 == 0).ok_or_else(too_much)?;
    let order = Order::new(Purpose::Sample, seed);
    let mut places: Vec<(u64, usize)> = rows.iter().map(|row| order.position(row)).zip(0..).collect();
    places.sort_unstable();
    // A mark lies at each multiple of `sum`; lengths are multiplied by `total`.
    let start = u128::from(Order::new(Purpose::SampleStart, seed).position(&[0; 32]));
    // start · sum / 2^64, below `sum`.
    let mut end = start * (sum >> 64) + ((start * (sum & u128::from(u64::MAX))) >> 64);
    let mut times = vec![0; rows.len()];
    for (_, row) in places {
        let start = end;
        end += u128::from(weights[row]) * u128::from(total);
        times[row] = u32::try_from(end / sum - start / sum).map_err(|_| too_much())?;
    }
    Ok(times.into_iter().collect())
}

/// `total` rows, of which each class has an equal number; numbers differ by one if the classes do not divide
/// `total`.
///
/// A class's rows share its number equally: each is taken ⌊s⌋ or ⌈s⌉ times, where s is total / (classes ·
/// rows of the class). Rows that come first by hash order get the remainder.
///
/// # Errors
/// [`SampleError::Lengths`], [`SampleError::Nothing`] without rows, and [`SampleError::TooMuch`].
pub fn balanced(
    seed: u64,
    rows: &[Digest],
    labels: &[Digest],
    total: u64,
) -> Result<Multiplicities, SampleError> {
    if labels.len() != rows.len() {
        return Err(SampleError::Lengths { rows: rows.len(), found: labels.len(), things: "labels" });
    }
    if rows.is_empty() && total > 0 {
        return Err(SampleError::Nothing { total });
    }
    let of_rows = Order::new(Purpose::Sample, seed);
    let of_classes = Order::new(Purpose::Balance, seed);
    let places: Vec<u64> = rows.iter().map(|row| of_rows.position(row)).collect();
    let mut sorted: Vec<usize> = (0..rows.len()).collect();
    sorted.sort_unstable_by_key(|&row| (labels[row], places[row], row));
    let mut classes: Vec<&[usize]> = sorted.chunk_by(|&a, &b| labels[a] == labels[b]).collect();
    classes.sort_by_cached_key(|class| {
        class.first().map(|&row| (of_classes.position(&labels[row]), labels[row]))
    });
    let mut times = vec![0; rows.len()];
    let count = classes.len();
    for (class, share) in classes.into_iter().zip(equal_shares(total, count)) {
        for (&row, share) in class.iter().zip(equal_shares(share, class.len())) {
            times[row] = u32::try_from(share).map_err(|_| SampleError::TooMuch { total })?;
        }
    }
    Ok(times.into_iter().collect())
}

/// `total` in `count` shares that differ by at most one, larger ones first.
fn equal_shares(total: u64, count: usize) -> impl Iterator<Item = u64> {
    let count = (count as u64).max(1);
    (0..count).map(move |index| total / count + u64::from(index < total % count))
}
