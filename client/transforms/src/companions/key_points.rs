//! Key points and their moves, with the numbers of torchvision's kernels for `float32`.

use super::Coordinates;

/// Key points of one picture. They may be outside of it: nothing cuts them off.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyPoints {
    /// x and y of each.
    pub points: Vec<[f32; 2]>,
}

impl KeyPoints {
    /// From two numbers for each.
    pub(super) fn of(numbers: &[f32]) -> Result<Self, String> {
        match numbers.as_chunks() {
            (points, []) => Ok(Self { points: points.to_vec() }),
            _ => Err(format!("has {} numbers, and a key point has two", numbers.len())),
        }
    }
}

impl Coordinates for KeyPoints {
    /// The first pixel becomes the last: unlike the sides of boxes, key points are at pixels.
    fn mirror(&mut self, axis: usize, side: usize) {
        let last = side as f32 - 1.0;
        self.points.iter_mut().for_each(|point| point[axis] = last - point[axis]);
    }

    fn scale(&mut self, [across, down]: [f32; 2]) {
        self.points.iter_mut().for_each(|point| *point = [point[0] * across, point[1] * down]);
    }

    fn shift(&mut self, [right, down]: [f32; 2], _: [usize; 2]) {
        self.points.iter_mut().for_each(|point| *point = [point[0] + right, point[1] + down]);
    }

    fn map(&mut self, map: impl Fn([f32; 2]) -> [f32; 2], _: [usize; 2]) {
        self.points.iter_mut().for_each(|point| *point = map(*point));
    }

    fn map_pixels(&mut self, map: impl Fn([f32; 2]) -> [f32; 2], size: [usize; 2]) {
        self.map(|point| map(point.map(f32::trunc)), size);
    }
}
