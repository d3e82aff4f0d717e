//! Random sizes, by margins or by resizing. End a chain with them by a crop or a `Resize`: a batch has one size.

use serde::{Deserialize, Serialize};

use super::arguments::{Fill, OneOrMany, Size, black, bounded, half, ordered, probability};
use super::crop::{Frame, PaddingMode, check_fill};
use super::resize::{Interpolation, Resize, Resized};
use crate::operation::{At, Mover, bytes_only};
use crate::value::Kind;

/// Puts some pictures at a random place on a larger canvas (Liu et al., "SSD: single shot multibox detector", ECCV 2016).
///
/// Random numbers: `chance(p)`; then `between(side_range)` for the factor of the sides, `uniform()` for the part of the new
/// pixels at the left, and `uniform()` for that above.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomZoomOut {
    /// The value of the new pixels.
    #[serde(default = "black")]
    pub fill: Fill,
    /// The least and the largest factor of the sides, from 1.
    #[serde(default = "RandomZoomOut::side_range")]
    pub side_range: [f64; 2],
    /// The probability of it.
    #[serde(default = "half")]
    pub p: f64,
}

impl RandomZoomOut {
    fn side_range() -> [f64; 2] {
        [1.0, 4.0]
    }
}

impl Mover for RandomZoomOut {
    type Motion<'a> = Frame<'a>;

    fn kind(&self, input: Kind) -> Result<Kind, String> {
        probability(self.p)?;
        ordered(self.side_range, "a side_range", 1.0, f64::INFINITY)?;
        check_fill(&self.fill, input)?;
        Ok(Kind { size: None, ..input })
    }

    fn motion(&self, [height, width]: [usize; 2], at: At) -> Result<Option<Frame<'_>>, String> {
        let mut draws = at.draws();
        if !draws.chance(self.p) {
            return Ok(None);
        }
        let factor = draws.between(self.side_range[0], self.side_range[1]);
        let [canvas_height, canvas_width] =
            bounded([height, width].map(|side| (side as f64 * factor) as usize))?;
        let mut before = |spare: usize| (spare as f64 * draws.uniform()) as usize;
        let (left, top) = (before(canvas_width - width), before(canvas_height - height));
        let margins = [left, top, canvas_width - width - left, canvas_height - height - top];
        Ok(Some(Frame { margins: Some(margins), fill: &self.fill, mode: PaddingMode::Constant, cut: None }))
    }
}

/// The sides times a factor, cut to whole pixels.
fn times([height, width]: [usize; 2], factor: f64) -> Result<[usize; 2], String> {
    bounded([height, width].map(|side| ((side as f64 * factor) as usize).max(1)))
}

/// The motion to this height and width, if it is another one.
fn resized(from: [usize; 2], to: [usize; 2], interpolation: Interpolation) -> Option<Resized> {
    (from != to).then_some(Resized { region: None, to, interpolation })
}

/// Refuses sizes of no pixel or of too many.
fn check_sizes<'a>(sizes: impl IntoIterator<Item = &'a usize>) -> Result<(), String> {
    sizes.into_iter().try_for_each(|size| bounded([*size, 1]).map(drop))
}

/// Gives the shorter side one of some lengths, and keeps the ratio of the sides.
///
/// Random numbers: `below(lengths)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomShortestSize {
    /// The length of the shorter side, or some of which it gets one.
    pub min_size: OneOrMany<usize>,
    /// The most that the longer side becomes.
    #[serde(default)]
    pub max_size: Option<usize>,
    /// How pixels between pixels are found.
    #[serde(default)]
    pub interpolation: Interpolation,
}

impl Mover for RandomShortestSize {
    type Motion<'a> = Resized;

    fn kind(&self, input: Kind) -> Result<Kind, String> {
        if self.min_size.as_slice().is_empty() {
            return Err("has no min_size: give one length of the shorter side, or more".into());
        }
        check_sizes(self.min_size.as_slice().iter().chain(&self.max_size))?;
        bytes_only(Kind { size: None, ..input })
    }

    fn motion(&self, size @ [height, width]: [usize; 2], at: At) -> Result<Option<Resized>, String> {
        let lengths = self.min_size.as_slice();
        let factor = lengths[at.draws().below(lengths.len())] as f64 / height.min(width) as f64;
        let most = self.max_size.map_or(f64::INFINITY, |most| most as f64 / height.max(width) as f64);
        Ok(resized(size, times(size, factor.min(most))?, self.interpolation))
    }
}

/// Resizes by a random factor, relative to a size into which pictures fit (Ghiasi et al., "Simple copy-paste is a strong data
/// augmentation method for instance segmentation", CVPR 2021).
///
/// Random numbers: `between(scale_range)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleJitter {
    /// Width and height of the size, as torchvision divides by them, whose documentation has them the other way round.
    pub target_size: [usize; 2],
    /// The least and the largest factor.
    #[serde(default = "ScaleJitter::scale_range")]
    pub scale_range: [f64; 2],
    /// How pixels between pixels are found.
    #[serde(default)]
    pub interpolation: Interpolation,
}

impl ScaleJitter {
    fn scale_range() -> [f64; 2] {
        [0.1, 2.0]
    }
}

impl Mover for ScaleJitter {
    type Motion<'a> = Resized;

    fn kind(&self, input: Kind) -> Result<Kind, String> {
        check_sizes(&self.target_size)?;
        ordered(self.scale_range, "a scale_range", f64::MIN_POSITIVE, f64::INFINITY)?;
        bytes_only(Kind { size: None, ..input })
    }

    fn motion(&self, size @ [height, width]: [usize; 2], at: At) -> Result<Option<Resized>, String> {
        let scale = at.draws().between(self.scale_range[0], self.scale_range[1]);
        let [across, down] = self.target_size.map(|side| side as f64);
        let fitting = (down / height as f64).min(across / width as f64);
        Ok(resized(size, times(size, fitting * scale)?, self.interpolation))
    }
}

/// Gives the shorter side a random length, and keeps the ratio of the sides.
///
/// Random numbers: `below(max_size - min_size)`, to which `min_size` is added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomResize {
    /// The least length.
    pub min_size: usize,
    /// The first length that is too large.
    pub max_size: usize,
    /// How pixels between pixels are found.
    #[serde(default)]
    pub interpolation: Interpolation,
}

impl Mover for RandomResize {
    type Motion<'a> = Resized;

    fn kind(&self, input: Kind) -> Result<Kind, String> {
        check_sizes([&self.min_size, &self.max_size])?;
        if self.min_size >= self.max_size {
            return Err(format!(
                "has sizes from {} to {}: give a max_size above min_size",
                self.min_size, self.max_size
            ));
        }
        bytes_only(Kind { size: None, ..input })
    }

    fn motion(&self, size: [usize; 2], at: At) -> Result<Option<Resized>, String> {
        let length = self.min_size + at.draws().below(self.max_size - self.min_size);
        let resize =
            Resize { size: Some(Size::One(length)), interpolation: self.interpolation, max_size: None };
        Ok(resized(size, resize.size_of(size)?, self.interpolation))
    }
}
