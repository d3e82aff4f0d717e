//! Crops that keep enough of some box.

use serde::{Deserialize, Serialize};

use super::arguments::{black, ordered};
use super::boxes::needs_boxes;
use super::crop::{Frame, PaddingMode};
use crate::companions::{Boxes, Companions};
use crate::draws::Draws;
use crate::image::Region;
use crate::operation::{At, Motion, Operation, follow};
use crate::value::{Kind, Value};

/// How often an overlap is chosen, and a rectangle looked for, before the picture stays whole.
const ROUNDS: usize = 50;

/// The most trials of a round.
const MOST_TRIALS: usize = 1000;

/// Cuts a random rectangle out that has the middle of a box in it, and overlaps such a box enough (Liu et al., "SSD: single shot
/// multibox detector", ECCV 2016). The overlap is the intersection over the union of both.
///
/// Boxes whose middles are outside become `[0, 0, 0, 0]`. Put
/// [`SanitizeBoundingBoxes`](super::boxes::SanitizeBoundingBoxes) behind it, which drops them.
///
/// Random numbers, at most 50 times: `below(options)` for the least overlap; if that is less than 1, then at most `trials`
/// times `between(scale)` for the width and `between(scale)` for the height, and if their ratio fits, `uniform()` for the
/// place across and `uniform()` for that down. A picture without boxes stays, and so does one for which all these fail;
/// torchvision would try without end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomIoUCrop {
    /// The least part of the width and of the height, from 0.
    #[serde(default = "RandomIoUCrop::min_scale")]
    pub min_scale: f64,
    /// The largest part of the width and of the height, up to 1.
    #[serde(default = "RandomIoUCrop::max_scale")]
    pub max_scale: f64,
    /// The least ratio of width to height.
    #[serde(default = "RandomIoUCrop::min_aspect_ratio")]
    pub min_aspect_ratio: f64,
    /// The largest ratio of width to height.
    #[serde(default = "RandomIoUCrop::max_aspect_ratio")]
    pub max_aspect_ratio: f64,
    /// The overlaps among which it chooses; from 1 on, the picture stays as it is. 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1 if there
    /// are none.
    #[serde(default)]
    pub sampler_options: Option<Vec<f64>>,
    /// How many rectangles it tries for an overlap.
    #[serde(default = "RandomIoUCrop::trials")]
    pub trials: usize,
}

/// A rectangle, and for each box whether its middle is outside.
struct Crop {
    region: Region,
    is_outside: Vec<bool>,
}

impl RandomIoUCrop {
    fn min_scale() -> f64 {
        0.3
    }

    fn max_scale() -> f64 {
        1.0
    }

    fn min_aspect_ratio() -> f64 {
        0.5
    }

    fn max_aspect_ratio() -> f64 {
        2.0
    }

    fn trials() -> usize {
        40
    }

    fn options(&self) -> &[f64] {
        self.sampler_options.as_deref().unwrap_or(&[0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
    }

    /// The rectangle in a picture of this height and width; none if all of it stays.
    fn crop(&self, size: [usize; 2], boxes: &Boxes, draws: &mut Draws) -> Option<Crop> {
        if boxes.boxes.is_empty() {
            return None;
        }
        for _ in 0..ROUNDS {
            let options = self.options();
            let least = options[draws.below(options.len())];
            if least >= 1.0 {
                return None;
            }
            let mut regions = (0..self.trials).filter_map(|_| self.region(size, draws));
            if let Some(crop) = regions.find_map(|region| overlapping(region, boxes, least as f32)) {
                return Some(crop);
            }
        }
        None
    }

    /// A rectangle in a picture of this height and width, if its ratio fits.
    fn region(&self, [height, width]: [usize; 2], draws: &mut Draws) -> Option<Region> {
        let mut part = |side: usize| (side as f64 * draws.between(self.min_scale, self.max_scale)) as usize;
        let [w, h] = [part(width), part(height)];
        let ratio = w as f64 / h as f64;
        if w == 0 || h == 0 || !(self.min_aspect_ratio..=self.max_aspect_ratio).contains(&ratio) {
            return None;
        }
        let mut first = |spare: usize| (spare as f64 * draws.uniform()) as usize;
        let (left, top) = (first(width - w), first(height - h));
        Some(Region { top, left, height: h, width: w })
    }
}

/// The rectangle as a crop, if it has the middle of a box that overlaps it by this or more.
fn overlapping(region: Region, boxes: &Boxes, least: f32) -> Option<Crop> {
    let Region { top, left, height, width } = region;
    let own = [left, top, left + width, top + height].map(|side| side as f32);
    let is_outside = |[left, top, right, bottom]: [f32; 4]| {
        let [x, y] = [0.5 * (left + right), 0.5 * (top + bottom)];
        !(own[0] < x && x < own[2] && own[1] < y && y < own[3])
    };
    let overlap = boxes
        .sides()
        .filter(|sides| !is_outside(*sides))
        .map(|sides| intersection_over_union(sides, own))
        .reduce(f32::max)?;
    (overlap >= least).then(|| Crop { region, is_outside: boxes.sides().map(is_outside).collect() })
}

/// The overlap of two boxes, 0 to 1, of their sides.
fn intersection_over_union(one: [f32; 4], other: [f32; 4]) -> f32 {
    let area = |[left, top, right, bottom]: [f32; 4]| (right - left) * (bottom - top);
    let along = |axis: usize| (one[axis + 2].min(other[axis + 2]) - one[axis].max(other[axis])).max(0.0);
    let common = along(0) * along(1);
    common / (area(one) + area(other) - common)
}

impl Operation for RandomIoUCrop {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        needs_boxes(input)?;
        ordered([self.min_scale, self.max_scale], "a scale", 0.0, 1.0)?;
        ordered([self.min_aspect_ratio, self.max_aspect_ratio], "an aspect ratio", 0.0, f64::INFINITY)?;
        if self.options().is_empty() || !self.options().iter().all(|option| option.is_finite()) {
            return Err(
                "has no sampler_options, or some that are not finite: give overlaps from 0 to 1".into()
            );
        }
        if !(1..=MOST_TRIALS).contains(&self.trials) {
            return Err(format!("has {} trials: give 1 to {MOST_TRIALS}", self.trials));
        }
        Ok(Kind { size: None, ..input })
    }

    /// Without boxes, all of the picture stays.
    fn apply(&self, value: Value, _: At) -> Result<Value, String> {
        Ok(value)
    }

    fn apply_with(&self, value: Value, companions: &mut Companions, at: At) -> Result<Value, String> {
        let crop = companions.boxes().and_then(|boxes| self.crop(value.size(), boxes, &mut at.draws()));
        let Some(Crop { region, is_outside }) = crop else { return Ok(value) };
        let frame = Frame { margins: None, fill: &black(), mode: PaddingMode::Constant, cut: Some(region) };
        let value = frame.picture(value)?;
        follow(companions, &frame, value.size())?;
        if let Some(boxes) = companions.boxes_mut() {
            boxes.collapse(&is_outside);
        }
        Ok(value)
    }
}
