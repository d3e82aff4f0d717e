//! Boxes and their moves, with the numbers of torchvision's kernels for `float32`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Coordinates;

/// The meaning of the four numbers of a box: torchvision's `BoundingBoxFormat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum BoxFormat {
    /// Left, top, right, bottom.
    Xyxy,
    /// Left, top, width, height.
    Xywh,
    /// The middle's x and y, width, height.
    Cxcywh,
}

impl fmt::Display for BoxFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Xyxy => "XYXY",
            Self::Xywh => "XYWH",
            Self::Cxcywh => "CXCYWH",
        })
    }
}

impl BoxFormat {
    /// Left, top, right and bottom of a box in this format.
    fn sides(self, [a, b, c, d]: [f32; 4]) -> [f32; 4] {
        match self {
            Self::Xyxy => [a, b, c, d],
            Self::Xywh => [a, b, a + c, b + d],
            Self::Cxcywh => {
                let [left, top] = [a - c / 2.0, b - d / 2.0];
                [left, top, c + left, d + top]
            }
        }
    }

    /// The box in this format with these sides.
    fn of_sides(self, [left, top, right, bottom]: [f32; 4]) -> [f32; 4] {
        let [width, height] = [right - left, bottom - top];
        match self {
            Self::Xyxy => [left, top, right, bottom],
            Self::Xywh => [left, top, width, height],
            Self::Cxcywh => [(left * 2.0 + width) / 2.0, (top * 2.0 + height) / 2.0, width, height],
        }
    }
}

/// Boxes of one picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Boxes {
    /// The meaning of their numbers.
    pub format: BoxFormat,
    /// One after the other.
    pub boxes: Vec<[f32; 4]>,
}

impl Boxes {
    /// From four numbers for each.
    pub(super) fn of(format: BoxFormat, numbers: &[f32]) -> Result<Self, String> {
        match numbers.as_chunks() {
            (boxes, []) => Ok(Self { format, boxes: boxes.to_vec() }),
            _ => Err(format!("has {} numbers, and a box has four", numbers.len())),
        }
    }

    /// Left, top, right and bottom of each.
    pub fn sides(&self) -> impl Iterator<Item = [f32; 4]> {
        self.boxes.iter().map(|own| self.format.sides(*own))
    }

    /// Writes them in another format.
    pub(crate) fn convert(&mut self, to: BoxFormat) {
        use BoxFormat::{Cxcywh, Xywh};
        let from = std::mem::replace(&mut self.format, to);
        if from == to {
            return;
        }
        for own in &mut self.boxes {
            let [x, y, width, height] = *own;
            *own = match (from, to) {
                // Not through their sides, which would round once more.
                (Xywh, Cxcywh) => [x + width / 2.0, y + height / 2.0, width, height],
                (Cxcywh, Xywh) => [x - width / 2.0, y - height / 2.0, width, height],
                _ => to.of_sides(from.sides(*own)),
            };
        }
    }

    /// Cuts off their parts outside of a picture of this height and width.
    pub(crate) fn clamp(&mut self, size: [usize; 2]) {
        self.change_sides(|sides| sides, size);
    }

    /// Makes boxes of no size, at the top left, of those of which this is true.
    pub(crate) fn collapse(&mut self, is_gone: &[bool]) {
        let gone = self.boxes.iter_mut().zip(is_gone).filter(|(_, is_gone)| **is_gone);
        gone.for_each(|(own, _)| *own = [0.0; 4]);
    }

    /// Which of them are inside a picture of this height and width, and no smaller than this: torchvision's rule.
    pub(crate) fn sound(&self, [height, width]: [usize; 2], min_size: f64, min_area: f64) -> Vec<bool> {
        let [height, width] = [height as f32, width as f32];
        let [min_size, min_area] = [min_size as f32, min_area as f32];
        let is_sound = |sides @ [left, top, right, bottom]: [f32; 4]| {
            let [across, down] = [right - left, bottom - top];
            let is_large = across >= min_size && down >= min_size && across * down >= min_area;
            let is_inside = left <= width && right <= width && top <= height && bottom <= height;
            is_large && is_inside && sides.iter().all(|side| *side >= 0.0)
        };
        self.sides().map(is_sound).collect()
    }

    /// Changes the sides, then cuts off parts outside of a picture of this height and width.
    fn change_sides(&mut self, change: impl Fn([f32; 4]) -> [f32; 4], [height, width]: [usize; 2]) {
        let format = self.format;
        let within = |side: f32, most: usize| side.clamp(0.0, most as f32);
        for own in &mut self.boxes {
            let [left, top, right, bottom] = change(format.sides(*own));
            *own = format.of_sides([
                within(left, width),
                within(top, height),
                within(right, width),
                within(bottom, height),
            ]);
        }
    }
}

impl Coordinates for Boxes {
    fn mirror(&mut self, axis: usize, side: usize) {
        let (side, far) = (side as f32, axis + 2);
        for own in &mut self.boxes {
            match self.format {
                BoxFormat::Xyxy => (own[axis], own[far]) = (side - own[far], side - own[axis]),
                BoxFormat::Xywh => own[axis] = side - (own[axis] + own[far]),
                BoxFormat::Cxcywh => own[axis] = side - own[axis],
            }
        }
    }

    fn scale(&mut self, [across, down]: [f32; 2]) {
        for [a, b, c, d] in &mut self.boxes {
            (*a, *b, *c, *d) = (*a * across, *b * down, *c * across, *d * down);
        }
    }

    fn shift(&mut self, [right, down]: [f32; 2], size: [usize; 2]) {
        let far = if self.format == BoxFormat::Xyxy { [right, down] } else { [0.0; 2] };
        for [a, b, c, d] in &mut self.boxes {
            (*a, *b, *c, *d) = (*a + right, *b + down, *c + far[0], *d + far[1]);
        }
        self.clamp(size);
    }

    /// Each becomes the box around its four corners.
    fn map(&mut self, map: impl Fn([f32; 2]) -> [f32; 2], size: [usize; 2]) {
        let around = |[left, top, right, bottom]: [f32; 4]| {
            let corners = [[left, top], [right, top], [right, bottom], [left, bottom]].map(&map);
            let bound = |axis: usize, or: fn(f32, f32) -> f32| {
                let [first, rest @ ..] = corners.map(|corner| corner[axis]);
                rest.into_iter().fold(first, or)
            };
            [bound(0, f32::min), bound(1, f32::min), bound(0, f32::max), bound(1, f32::max)]
        };
        self.change_sides(around, size);
    }

    fn map_pixels(&mut self, map: impl Fn([f32; 2]) -> [f32; 2], size: [usize; 2]) {
        self.map(|point| map(point.map(f32::ceil)), size);
    }
}
