//! Types of arguments that several operations have.

use serde::{Deserialize, Serialize};

/// A number for all, or one for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "give a number or a list of numbers, whole and from 0 for pixels")]
pub enum OneOrMany<T> {
    /// For all.
    One(T),
    /// For each.
    Many(Vec<T>),
}

impl<T: Copy> OneOrMany<T> {
    /// All of them.
    pub fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// A height and a width: a number for both, or a list of one or of both.
pub type Size = OneOrMany<usize>;

/// The longest side of a picture that an operation makes.
pub(crate) const LONGEST_SIDE: usize = 1 << 15;

/// The most pixels of one, as of a decoded one by default.
pub(crate) const MOST_PIXELS: usize = 178_956_970;

/// A height and width, unless a picture of them would be too large.
pub(crate) fn bounded(size @ [height, width]: [usize; 2]) -> Result<[usize; 2], String> {
    match size.iter().all(|side| (1..=LONGEST_SIDE).contains(side)) && height * width <= MOST_PIXELS {
        true => Ok(size),
        false => Err(format!(
            "makes pictures of {height}x{width}: give sides from 1 to {LONGEST_SIDE}, and {MOST_PIXELS} pixels in all at most"
        )),
    }
}

impl Size {
    /// Height and width.
    pub(crate) fn height_and_width(&self) -> Result<[usize; 2], String> {
        let size = match *self.as_slice() {
            [both] => [both, both],
            [height, width] => [height, width],
            _ => return Err("has a size of other than one or two numbers: give height and width".into()),
        };
        bounded(size)
    }
}

/// The value of each channel, from one for all or one for each.
pub(crate) fn for_channels(values: &OneOrMany<f64>, channels: usize, of: &str) -> Result<Vec<f64>, String> {
    match values.as_slice() {
        [one] => Ok(vec![*one; channels]),
        many if many.len() == channels => Ok(many.to_vec()),
        many => Err(format!(
            "has {} values of {of} for {channels} channels: give one, or one for each",
            many.len()
        )),
    }
}

/// A probability.
pub(crate) fn probability(p: f64) -> Result<(), String> {
    match (0.0..=1.0).contains(&p) {
        true => Ok(()),
        false => Err(format!("has p = {p}: give a probability from 0 to 1")),
    }
}

/// Two finite numbers of which the first is not the larger one.
pub(crate) fn ordered([low, high]: [f64; 2], of: &str, least: f64, most: f64) -> Result<(), String> {
    match low <= high && low >= least && high <= most && low.is_finite() && high.is_finite() {
        true => Ok(()),
        false if most.is_finite() => {
            Err(format!("has {of} from {low} to {high}: give two ascending numbers from {least} to {most}"))
        }
        false => Err(format!("has {of} from {low} to {high}: give two ascending numbers from {least}")),
    }
}

/// Pixels from outside a picture: a number for all channels, or one for each.
pub type Fill = OneOrMany<f64>;

/// The default of torchvision: black.
pub(crate) fn black() -> Fill {
    OneOrMany::One(0.0)
}

/// 0.5.
pub(crate) fn half() -> f64 {
    0.5
}

/// Python's `round`, by which torchvision makes whole numbers: a half goes to the even neighbour.
pub(crate) fn round(number: f64) -> f64 {
    number.round_ties_even()
}
