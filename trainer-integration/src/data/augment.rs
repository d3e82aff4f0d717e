//! Images that are never twice the same: cut out at another place, and mirrored, as is usual for CIFAR (Lee et al., "Deeply-supervised nets", AISTATS
//! 2015). Pure: what happens to a sample follows from the seed, the epoch and its position in the epoch's order.

use crate::models::ImageShape;
use crate::random::Key;

/// The augmentation of images while training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Augmentation {
    /// Nothing.
    #[default]
    None,
    /// A margin of an eighth of the side is added in black, an image of the old size is cut out anywhere, and every second one is mirrored.
    CropFlip,
}

impl Augmentation {
    /// Changes images `[rows, channels, height, width]` of an epoch, at these positions of its order.
    ///
    /// # Panics
    /// If there is not an image for every position.
    pub fn apply(self, features: &mut [f32], shape: ImageShape, seed: u64, epoch: u32, positions: &[u64]) {
        let moves = self.moves(shape, seed, epoch, positions);
        if !moves.is_empty() {
            apply(&moves, features, shape);
        }
    }

    /// The change of each image; nothing without augmentation.
    pub(super) fn moves(self, shape: ImageShape, seed: u64, epoch: u32, positions: &[u64]) -> Vec<Move> {
        if self == Augmentation::None {
            return Vec::new();
        }
        let key = Key::for_augmentation(seed).of(epoch.into());
        let [_, height, width] = shape;
        let one = |&position: &u64| {
            let key = key.of(position);
            let shift = |side: usize, place: u64| {
                let margin = (side / 8) as i64;
                (key.at(place) % (2 * margin as u64 + 1)) as i64 - margin
            };
            Move { by: [shift(height, 0), shift(width, 1)], is_mirrored: key.at(2) & 1 == 1 }
        };
        positions.iter().map(one).collect()
    }
}

/// The change of an image: it is moved up and left by these numbers of pixels, then mirrored or not; pixels
/// from outside are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    by: [i64; 2],
    is_mirrored: bool,
}

impl Move {
    /// For a digest of it.
    pub(super) fn to_bytes(self) -> [u8; 17] {
        let mut bytes = [u8::from(self.is_mirrored); 17];
        for (place, by) in bytes[1..].chunks_exact_mut(8).zip(self.by) {
            place.copy_from_slice(&by.to_le_bytes());
        }
        bytes
    }

    /// From which row of an image of this height each row comes; `height` if from outside.
    pub(super) fn rows(self, height: usize) -> impl Iterator<Item = i32> {
        (0..height as i64).map(move |row| inside(row + self.by[0], height))
    }

    /// From which column of an image of this width each column comes; `width` if from outside.
    pub(super) fn columns(self, width: usize) -> impl Iterator<Item = i32> {
        let across = move |column: i64| if self.is_mirrored { width as i64 - 1 - column } else { column };
        (0..width as i64).map(move |column| inside(across(column) + self.by[1], width))
    }
}

fn inside(at: i64, side: usize) -> i32 {
    if (0..side as i64).contains(&at) { at as i32 } else { side as i32 }
}

/// Moves each image of `[rows, channels, height, width]`.
///
/// # Panics
/// If there is not a move for every image.
pub(super) fn apply(moves: &[Move], features: &mut [f32], shape: ImageShape) {
    let size: usize = shape.iter().product();
    assert_eq!(features.len(), size * moves.len(), "a move for every image");
    let mut scratch = vec![0.0; size];
    for (image, &Move { by, is_mirrored }) in features.chunks_exact_mut(size).zip(moves) {
        scratch.copy_from_slice(image);
        crop(&scratch, image, shape, by, is_mirrored);
    }
}

/// Copies an image, moved up and left by these numbers of pixels and then mirrored or not; pixels from
/// outside are 0.
fn crop(
    from: &[f32],
    to: &mut [f32],
    [channels, height, width]: ImageShape,
    by: [i64; 2],
    is_mirrored: bool,
) {
    for channel in 0..channels {
        for row in 0..height {
            let start = (channel * height + row) * width;
            let target = &mut to[start..start + width];
            let source_row = row as i64 + by[0];
            if !(0..height as i64).contains(&source_row) {
                target.fill(0.0);
                continue;
            }
            let start = (channel * height + source_row as usize) * width;
            let source = &from[start..start + width];
            for (column, pixel) in target.iter_mut().enumerate() {
                let column = if is_mirrored { width - 1 - column } else { column } as i64 + by[1];
                *pixel = usize::try_from(column).ok().and_then(|at| source.get(at)).copied().unwrap_or(0.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_moved_and_mirrored_with_black_around_it() {
        let from: Vec<f32> = (1..=9).map(|pixel| pixel as f32).collect();
        let moved = |by, is_mirrored| {
            let mut to = vec![-1.0; 9];
            crop(&from, &mut to, [1, 3, 3], by, is_mirrored);
            to
        };
        assert_eq!(moved([0, 0], false), from);
        assert_eq!(moved([0, 0], true), [3.0, 2.0, 1.0, 6.0, 5.0, 4.0, 9.0, 8.0, 7.0]);
        assert_eq!(moved([1, -1], false), [0.0, 4.0, 5.0, 0.0, 7.0, 8.0, 0.0, 0.0, 0.0]);
        assert_eq!(moved([-1, 1], true), [0.0, 0.0, 0.0, 0.0, 3.0, 2.0, 0.0, 6.0, 5.0]);
    }

    #[test]
    fn what_happens_to_a_sample_follows_from_seed_epoch_and_position() {
        let shape = [3, 16, 16];
        let images: Vec<f32> = (0..4 * 768).map(|pixel| pixel as f32 + 1.0).collect();
        let changed = |seed, epoch, positions: &[u64], images: &[f32]| {
            let mut images = images.to_vec();
            Augmentation::CropFlip.apply(&mut images, shape, seed, epoch, positions);
            images
        };
        let all = changed(1, 2, &[10, 11, 12, 13], &images);
        // In other company it is the same.
        assert_eq!(changed(1, 2, &[12], &images[2 * 768..3 * 768]), all[2 * 768..3 * 768]);
        assert_ne!(all, changed(2, 2, &[10, 11, 12, 13], &images));
        assert_ne!(all, changed(1, 3, &[10, 11, 12, 13], &images));
        assert_ne!(all, images);
        let mut kept = images.clone();
        Augmentation::None.apply(&mut kept, shape, 1, 2, &[10, 11, 12, 13]);
        assert_eq!(kept, images);
    }

    #[test]
    fn every_place_and_both_sides_come_up_about_equally_often() {
        let positions: Vec<u64> = (0..2000).collect();
        let mut images: Vec<f32> = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0].repeat(8 * 2000);
        Augmentation::CropFlip.apply(&mut images, [1, 8, 8], 0, 0, &positions);
        let mirrored = images.chunks(64).filter(|image| image[27] > image[28]).count();
        assert!((900..1100).contains(&mirrored), "{mirrored}");
        let black_above =
            images.chunks(64).filter(|image| image[..8].iter().all(|pixel| *pixel == 0.0)).count();
        assert!((560..770).contains(&black_above), "a third: {black_above}");
    }
}
