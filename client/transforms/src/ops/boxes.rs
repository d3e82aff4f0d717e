//! Operations on boxes alone.

use serde::{Deserialize, Serialize};

use crate::companions::{BoxFormat, Companions};
use crate::operation::{At, Operation};
use crate::value::{Kind, Value};

/// The error of operations that need boxes.
pub(super) fn needs_boxes(input: Kind) -> Result<(), String> {
    match input.companions.boxes {
        Some(_) => Ok(()),
        None => Err("needs boxes: declare their column in the companions of the transforms".into()),
    }
}

/// Drops boxes that are too small or not all inside of their picture, their labels, and their planes of masks.
///
/// Which boxes are left is in [`Companions::kept`]. A mask of `[planes, height, width]` with as many planes as there are boxes
/// has one for each; other masks stay, and so do key points. Nothing is cut off: put [`ClampBoundingBoxes`] before it for
/// boxes that no operation moved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SanitizeBoundingBoxes {
    /// The least width and height in pixels, from 1.
    #[serde(default = "one")]
    pub min_size: f64,
    /// The least area in pixels, from 1.
    #[serde(default = "one")]
    pub min_area: f64,
}

fn one() -> f64 {
    1.0
}

impl Operation for SanitizeBoundingBoxes {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        for (name, value) in [("min_size", self.min_size), ("min_area", self.min_area)] {
            if !value.is_finite() || value < 1.0 {
                return Err(format!("has {name} = {value}: give a number from 1"));
            }
        }
        needs_boxes(input).map(|()| input)
    }

    fn apply(&self, value: Value, _: At) -> Result<Value, String> {
        Ok(value)
    }

    fn carry(&self, companions: &mut Companions, to: [usize; 2], _: At) -> Result<(), String> {
        if let Some(boxes) = companions.boxes() {
            let sound = boxes.sound(to, self.min_size, self.min_area);
            companions.retain(&sound);
        }
        Ok(())
    }
}

/// How far boxes may be outside of their picture. For boxes that are not rotated, all modes but none are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClampingMode {
    /// As the boxes have it: torchvision's default is soft.
    Auto,
    /// No box is outside.
    Soft,
    /// No box is outside.
    Hard,
}

/// Cuts off the parts of boxes outside of their picture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClampBoundingBoxes {
    /// Whether to do so: `null` leaves all boxes as they are.
    #[serde(default = "auto")]
    pub clamping_mode: Option<ClampingMode>,
}

#[expect(clippy::unnecessary_wraps, reason = "serde wants the type of the field")]
fn auto() -> Option<ClampingMode> {
    Some(ClampingMode::Auto)
}

impl Operation for ClampBoundingBoxes {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        Ok(input)
    }

    fn apply(&self, value: Value, _: At) -> Result<Value, String> {
        Ok(value)
    }

    fn carry(&self, companions: &mut Companions, to: [usize; 2], _: At) -> Result<(), String> {
        if let (Some(_), Some(boxes)) = (self.clamping_mode, companions.boxes_mut()) {
            boxes.clamp(to);
        }
        Ok(())
    }
}

/// Writes boxes in another format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvertBoundingBoxFormat {
    /// The format.
    pub format: BoxFormat,
}

impl Operation for ConvertBoundingBoxFormat {
    fn kind(&self, mut input: Kind) -> Result<Kind, String> {
        input.companions.boxes = input.companions.boxes.map(|_| self.format);
        Ok(input)
    }

    fn apply(&self, value: Value, _: At) -> Result<Value, String> {
        Ok(value)
    }

    fn carry(&self, companions: &mut Companions, _: [usize; 2], _: At) -> Result<(), String> {
        if let Some(boxes) = companions.boxes_mut() {
            boxes.convert(self.format);
        }
        Ok(())
    }
}
