//! Masks: class numbers of a picture's pixels, in one plane or several.

use super::keep;
use crate::decode::decode_indices;
use crate::image::Image;

/// A mask of one picture. Its pixels move as those of the picture, each from the nearest; those from outside are 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Mask {
    /// Of one channel each, all of the picture's size.
    planes: Vec<Image<u8>>,
    is_stack: bool,
}

impl Mask {
    /// From the pixels of a mask of `[height, width]` or `[planes, height, width]`, for a picture of this size.
    pub(super) fn of_pixels(shape: &[usize], bytes: &[u8], size: [usize; 2]) -> Result<Self, String> {
        let (is_stack, own) = match *shape {
            [height, width] => (false, [height, width]),
            [_, height, width] => (true, [height, width]),
            _ => {
                return Err(format!(
                    "has the shape {shape:?}: give [height, width] or [planes, height, width]"
                ));
            }
        };
        if own != size {
            return Err(format!(
                "has {}x{} pixels, and its picture has {}x{}",
                own[0], own[1], size[0], size[1]
            ));
        }
        let [height, width] = own;
        let count = if is_stack { shape[0] } else { 1 };
        if count.checked_mul(height * width) != Some(bytes.len()) {
            return Err(format!("has {} bytes for the shape {shape:?}", bytes.len()));
        }
        let plane = |pixels: &[u8]| Image::new([height, width, 1], pixels.to_vec());
        Ok(Self { planes: bytes.chunks_exact(height * width).map(plane).collect(), is_stack })
    }

    /// From a PNG, for a picture of this size.
    pub(super) fn decode(bytes: &[u8], size: [usize; 2]) -> Result<Self, String> {
        let plane = decode_indices(bytes, size).map_err(|error| format!("cannot be decoded: {error}"))?;
        Ok(Self { planes: vec![plane], is_stack: false })
    }

    /// Its planes, of one channel each: one, unless it is a [stack](Self::is_stack).
    pub fn planes(&self) -> &[Image<u8>] {
        &self.planes
    }

    /// Whether its shape is `[planes, height, width]`, not `[height, width]`.
    pub fn is_stack(&self) -> bool {
        self.is_stack
    }

    /// All pixels, plane by plane and row by row.
    pub fn into_pixels(self) -> Vec<u8> {
        self.planes.into_iter().flat_map(Image::into_pixels).collect()
    }

    /// Changes each plane.
    pub(crate) fn change(
        &mut self,
        change: impl Fn(Image<u8>) -> Result<Image<u8>, String>,
    ) -> Result<(), String> {
        self.planes = std::mem::take(&mut self.planes).into_iter().map(change).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Keeps the planes of which this is true, if there is one plane for each.
    pub(super) fn retain(&mut self, is_kept: &[bool]) {
        if self.is_stack && self.planes.len() == is_kept.len() {
            keep(&mut self.planes, is_kept);
        }
    }
}
