//! Divides rows into named parts, such as train and test, by a hash of a key.
//!
//! The key's hash is a place on a circle of 2^64 steps, cut once, and each part has an interval as long as
//! its weight, in the order of the parts. So a row's part follows from its key, the seed and the parts alone:
//! rows that are appended later move no other row, and rows with equal keys share a part.
//!
//! To change the weights, move as few ends of intervals as you can. `train=0.8,test=0.2` and
//! `train=0.9,test=0.1` differ in a tenth of the rows. A part that is put between others shifts the ends to
//! its right: use [`Split::carve`] to cut a new part out of one that is there, which moves only the rows of
//! the new part. [`Split::moved`] gives the exact share.
//!
//! Proportions hold in the limit of many keys: of n keys, a part of weight w gets w·n ± √(w(1-w)n). Within
//! each label they hold in the same sense, so that rare labels can be off by much. [`Split::assign_exact`]
//! keeps them within one row for each label and part. For that, it needs all rows at once and is not stable
//! under append.

#[cfg(test)]
mod tests;

use std::fmt;

use arrow::array::RecordBatch;
use serde::{Deserialize, Serialize};

use crate::decimal::{Decimal, DecimalError};
use crate::expr::nearest;
use crate::key::{Digest, Key, KeyError, Order, Purpose};

/// The length of the circle.
const CIRCLE: u128 = 1 << 64;

/// Named parts with their weights. At least one weight is not 0, and no two names are equal.
///
/// The text, and the form in JSON, is `train=0.9,test=0.1`. Weights need no particular sum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Parts {
    parts: Vec<(String, Decimal)>,
    /// Where each part ends, in steps of the circle.
    ends: Vec<u128>,
}

/// Why parts make no split.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The text has another form.
    #[error("{text:?} is no part: write name=weight, as in train=0.9,test=0.1")]
    Form {
        /// The piece between commas.
        text: String,
    },
    /// A weight is no decimal.
    #[error("the weight of part {part} cannot be read")]
    Weight {
        /// Name of the part.
        part: String,
        /// The reason.
        #[source]
        source: DecimalError,
    },
    /// No part has a weight.
    #[error("no part gets a row: give at least one part a weight above 0")]
    Nothing,
    /// Two parts have one name.
    #[error("two parts are named {part}: join them, or rename one")]
    Twice {
        /// The name.
        part: String,
    },
    /// A name that would not survive a command line.
    #[error("{part:?} is no name of a part: use letters, digits, - _ and . without spaces")]
    Name {
        /// The name.
        part: String,
    },
    /// The sum of the weights has too many digits.
    #[error("the weights add up to more than 10^19 steps of the finest one: use fewer digits")]
    TooFine,
    /// There is no such part.
    #[error("there is no part {part}: {way_out}")]
    NoPart {
        /// The name that was asked for.
        part: String,
        /// The nearest name, or all.
        way_out: String,
    },
    /// A new part would be larger than the part that it is cut from.
    #[error("part {part} has weight {has} and cannot give {wanted}: take at most {has}")]
    TooLarge {
        /// The part that is there.
        part: String,
        /// Its weight.
        has: Decimal,
        /// The weight of the new part.
        wanted: Decimal,
    },
    /// The caller's labels are not one for each row.
    #[error("there are {rows} rows and {labels} labels: give one label for each row")]
    Labels {
        /// Number of rows.
        rows: usize,
        /// Number of labels.
        labels: usize,
    },
}

impl Parts {
    /// Checks names and weights.
    ///
    /// # Errors
    /// [`SplitError::Nothing`], [`SplitError::Twice`], [`SplitError::Name`] and [`SplitError::TooFine`].
    pub fn new(parts: Vec<(String, Decimal)>) -> Result<Self, SplitError> {
        for (index, (name, _)) in parts.iter().enumerate() {
            let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
            if name.is_empty() || !name.chars().all(fits) {
                return Err(SplitError::Name { part: name.clone() });
            }
            if parts[..index].iter().any(|(other, _)| other == name) {
                return Err(SplitError::Twice { part: name.clone() });
            }
        }
        let weights = whole_weights(&parts)?;
        let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
        if total == 0 {
            return Err(SplitError::Nothing);
        }
        if total >= CIRCLE {
            return Err(SplitError::TooFine);
        }
        let mut sum = 0;
        let ends = weights.iter().map(|weight| {
            sum += u128::from(*weight);
            sum * CIRCLE / total
        });
        Ok(Self { ends: ends.collect(), parts })
    }

    /// Parses `name=weight,name=weight`.
    ///
    /// # Errors
    /// [`SplitError::Form`], [`SplitError::Weight`], and those of [`Parts::new`].
    pub fn parse(text: &str) -> Result<Self, SplitError> {
        let part = |piece: &str| {
            let form = || SplitError::Form { text: piece.chars().take(60).collect() };
            let (name, weight) = piece.split_once('=').ok_or_else(form)?;
            let name = name.trim().to_string();
            match weight.parse() {
                Ok(weight) => Ok((name, weight)),
                Err(source) => Err(SplitError::Weight { part: name, source }),
            }
        };
        Self::new(text.split(',').map(part).collect::<Result<_, _>>()?)
    }

    /// Names and weights, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Decimal)> {
        self.parts.iter().map(|(name, weight)| (name.as_str(), *weight))
    }

    /// Number of parts.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Never: there is at least one part.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The number of the part named `name`, from 0.
    ///
    /// # Errors
    /// [`SplitError::NoPart`] with the nearest name.
    pub fn index(&self, name: &str) -> Result<usize, SplitError> {
        self.parts.iter().position(|(part, _)| part == name).ok_or_else(|| {
            let names: Vec<_> = self.iter().map(|(name, _)| name).collect();
            SplitError::NoPart { part: name.into(), way_out: nearest::way_out(name, &names, "parts") }
        })
    }

    /// The part at a place on the circle.
    fn at(&self, position: u64) -> usize {
        self.ends.partition_point(|end| *end <= u128::from(position))
    }
}

impl TryFrom<String> for Parts {
    type Error = SplitError;

    fn try_from(text: String) -> Result<Self, SplitError> {
        Self::parse(&text)
    }
}

impl From<Parts> for String {
    fn from(parts: Parts) -> Self {
        parts.to_string()
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, weight)) in self.iter().enumerate() {
            write!(f, "{}{name}={weight}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The weights in units of the finest one.
fn whole_weights(parts: &[(String, Decimal)]) -> Result<Vec<u64>, SplitError> {
    let unit = parts.iter().map(|(_, weight)| weight.ratio().1).max().unwrap_or(1);
    parts
        .iter()
        .map(|(_, weight)| {
            let (numerator, denominator) = weight.ratio();
            numerator.checked_mul(unit / denominator).ok_or(SplitError::TooFine)
        })
        .collect()
}

/// A division of rows into parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// The parts, in the order of their intervals.
    pub parts: Parts,
    /// Rows with equal keys share a part.
    pub by: Key,
    /// Another seed is another division.
    pub seed: u64,
}

impl Split {
    /// The part of each key, as an index into [`Split::parts`]. Each key is looked at alone.
    pub fn assign(&self, keys: &[Digest]) -> Vec<u32> {
        let order = Order::new(Purpose::Split, self.seed);
        keys.iter().map(|key| index(self.parts.at(order.position(key)))).collect()
    }

    /// The part of each row. `rows` are digests of the rows' content, needed for [`Key::Row`] only.
    ///
    /// # Errors
    /// Those of [`Key::digests`].
    pub fn assign_batch(&self, batch: &RecordBatch, rows: &[Digest]) -> Result<Vec<u32>, KeyError> {
        Ok(self.assign(&self.by.digests(batch, rows)?))
    }

    /// The part of each row of a whole version, with the same proportions within each label.
    ///
    /// Rows of one label are put in the order of their hashes, and rows with equal digests in the order of
    /// rows. The first rows go to the first part, and so on. A label with n rows gives a part of share w
    /// either ⌊w·n⌋ or ⌈w·n⌉ rows; the method of largest remainders decides, and the earlier part of two with
    /// equal remainders. Labels with fewer rows than parts therefore give their rows to the heaviest parts.
    /// Equal labels for all rows give exact proportions of the version.
    ///
    /// Unlike [`Split::assign`], this is not stable under append, and rows with equal digests can part.
    ///
    /// # Errors
    /// [`SplitError::Labels`] if there is not one label for each row.
    pub fn assign_exact(&self, labels: &[Digest], rows: &[Digest]) -> Result<Vec<u32>, SplitError> {
        if labels.len() != rows.len() {
            return Err(SplitError::Labels { rows: rows.len(), labels: labels.len() });
        }
        let weights = whole_weights(&self.parts.parts)?;
        let order = Order::new(Purpose::SplitExact, self.seed);
        let places: Vec<u64> = rows.iter().map(|row| order.position(row)).collect();
        let mut sorted: Vec<usize> = (0..rows.len()).collect();
        sorted.sort_unstable_by_key(|&row| (labels[row], places[row], row));
        let mut assigned = vec![0; rows.len()];
        for class in sorted.chunk_by(|&a, &b| labels[a] == labels[b]) {
            let mut rest = class;
            for (part, count) in largest_remainders(&weights, class.len()).into_iter().enumerate() {
                let (head, tail) = rest.split_at(count.min(rest.len()));
                head.iter().for_each(|&row| assigned[row] = index(part));
                rest = tail;
            }
        }
        Ok(assigned)
    }

    /// A split with a new part, cut from the end of the part `from`. Only rows of the new part change their
    /// part.
    ///
    /// # Errors
    /// [`SplitError::NoPart`], [`SplitError::TooLarge`], and those of [`Parts::new`] for the new name.
    pub fn carve(&self, from: &str, name: &str, weight: Decimal) -> Result<Self, SplitError> {
        let at = self.parts.index(from)?;
        let has = self.parts.parts[at].1;
        let too_large = || SplitError::TooLarge { part: from.into(), has, wanted: weight };
        let rest = minus(has, weight).ok_or_else(too_large)?;
        let mut parts = self.parts.parts.clone();
        parts[at].1 = rest;
        parts.insert(at + 1, (name.into(), weight));
        Ok(Self { parts: Parts::new(parts)?, ..self.clone() })
    }

    /// The share of keys whose part has another name in `other`, in steps of 2^-64; parts go by their names.
    ///
    /// It is 2^64, that is all, if the seeds or the keys differ.
    pub fn moved(&self, other: &Self) -> u128 {
        if self.seed != other.seed || self.by != other.by {
            return CIRCLE;
        }
        let mut ends: Vec<u128> = self.parts.ends.iter().chain(&other.parts.ends).copied().collect();
        ends.sort_unstable();
        let name = |parts: &Parts, start: u128| {
            u64::try_from(start)
                .ok()
                .and_then(|start| parts.parts.get(parts.at(start)))
                .map(|(name, _)| name.clone())
        };
        let mut start = 0;
        let mut moved = 0;
        for end in ends {
            if end > start && name(&self.parts, start) != name(&other.parts, start) {
                moved += end - start;
            }
            start = end;
        }
        moved
    }
}

/// `count` divided in proportion to `weights`, each share rounded up or down, by the method of Hamilton.
fn largest_remainders(weights: &[u64], count: usize) -> Vec<usize> {
    let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let Some(total) = std::num::NonZeroU128::new(total) else { return vec![0; weights.len()] };
    let exact = |weight: u64| u128::from(weight) * count as u128;
    let mut counts: Vec<usize> =
        weights.iter().map(|&weight| usize::try_from(exact(weight) / total).unwrap_or(count)).collect();
    let left = count.saturating_sub(counts.iter().sum());
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by_key(|&part| (std::cmp::Reverse(exact(weights[part]) % total), part));
    for part in by_remainder.into_iter().take(left) {
        counts[part] += 1;
    }
    counts
}

/// `a - b`, if that is not negative.
fn minus(a: Decimal, b: Decimal) -> Option<Decimal> {
    let ((a, a_unit), (b, b_unit)) = (a.ratio(), b.ratio());
    let unit = a_unit.max(b_unit);
    let difference = a.checked_mul(unit / a_unit)?.checked_sub(b.checked_mul(unit / b_unit)?)?;
    let width = usize::try_from(unit.ilog10()).ok()?;
    let digits = format!("{difference:0width$}", width = width + 1);
    let (whole, fraction) = digits.split_at(digits.len() - width);
    format!("{whole}.{fraction}0").parse().ok()
}

/// Parts are counted in 32 bits.
fn index(part: usize) -> u32 {
    u32::try_from(part).unwrap_or(u32::MAX)
}
