//! Pictures of bytes that are a part of a larger one, perhaps mirrored: cuts and flips that touch no pixel until the picture is
//! written.

use crate::image::{Image, Region};

/// A part of a picture, as it is seen behind cuts and flips.
#[derive(Clone, Debug)]
pub(crate) struct Placed<'a> {
    pixels: &'a [u8],
    shape: [usize; 3],
    /// The part, in the whole picture.
    region: Region,
    /// Whether left and right are swapped.
    across: bool,
    /// Whether above and below are swapped.
    down: bool,
}

impl<'a> Placed<'a> {
    /// All of a picture of this shape: rows, columns, channels.
    pub(crate) fn whole(pixels: &'a [u8], shape: [usize; 3]) -> Self {
        let region = Region { top: 0, left: 0, height: shape[0], width: shape[1] };
        Self { pixels, shape, region, across: false, down: false }
    }

    /// `[height, width]`.
    pub(crate) fn size(&self) -> [usize; 2] {
        [self.region.height, self.region.width]
    }

    pub(crate) fn channels(&self) -> usize {
        self.shape[2]
    }

    /// Whether it is the picture as it lies in memory.
    pub(crate) fn is_whole(&self) -> bool {
        self.size() == self.shape[..2] && !self.across && !self.down
    }

    /// Takes a part of what is seen, if it is inside.
    pub(crate) fn cut(&mut self, part: Region) -> bool {
        let [height, width] = self.size();
        if part.top + part.height > height || part.left + part.width > width {
            return false;
        }
        let flipped =
            |is: bool, first: usize, len: usize, side: usize| if is { side - first - len } else { first };
        self.region = Region {
            top: self.region.top + flipped(self.down, part.top, part.height, height),
            left: self.region.left + flipped(self.across, part.left, part.width, width),
            height: part.height,
            width: part.width,
        };
        true
    }

    /// Swaps left and right.
    pub(crate) fn flip_across(&mut self) {
        self.across = !self.across;
    }

    /// Swaps above and below.
    pub(crate) fn flip_down(&mut self) {
        self.down = !self.down;
    }

    /// Whether rows are to be read from their ends.
    pub(crate) fn is_mirrored(&self) -> bool {
        self.across
    }

    /// The rows from above, each as it lies in memory.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'a [u8]> {
        let ([_, width, channels], Region { top, left, height, width: own }) = (self.shape, self.region);
        let (pixels, down) = (self.pixels, self.down);
        (0..height).map(move |row| {
            let row = top + if down { height - 1 - row } else { row };
            &pixels[(row * width + left) * channels..][..own * channels]
        })
    }

    /// A copy as a picture of its own.
    pub(crate) fn to_image(&self) -> Image<u8> {
        let ([height, width], channels) = (self.size(), self.channels());
        let mut pixels = Vec::with_capacity(height * width * channels);
        for row in self.rows() {
            match (self.across, channels) {
                (false, _) => pixels.extend_from_slice(row),
                (true, 3) => pixels.extend(row.as_chunks::<3>().0.iter().rev().flatten()),
                (true, _) => pixels.extend(row.chunks_exact(channels).rev().flatten()),
            }
        }
        Image::new([height, width, channels], pixels)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ops::flip::{horizontal_flip, vertical_flip};

    /// A cut of at most these numbers of pixels from each side, or a flip.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Cut([usize; 4]),
        Across,
        Down,
    }

    proptest! {
        #[test]
        fn it_is_what_cuts_and_flips_of_pixels_make(
            height in 1..9_usize,
            width in 1..9_usize,
            channels in prop_oneof![Just(1_usize), Just(3)],
            steps in prop::collection::vec(
                prop_oneof![prop::array::uniform4(0..3_usize).prop_map(Step::Cut), Just(Step::Across), Just(Step::Down)],
                0..6,
            ),
        ) {
            let pixels: Vec<u8> = (0..height * width * channels).map(|number| number as u8).collect();
            let mut image = Image::new([height, width, channels], pixels.clone());
            let mut placed = Placed::whole(&pixels, [height, width, channels]);
            for step in steps {
                match step {
                    Step::Cut([top, left, below, right]) => {
                        let [height, width, _] = image.shape();
                        let (top, left) = (top.min(height - 1), left.min(width - 1));
                        let region = Region {
                            top,
                            left,
                            height: height - top - below.min(height - 1 - top),
                            width: width - left - right.min(width - 1 - left),
                        };
                        image = image.cut(region);
                        prop_assert!(placed.cut(region));
                        let is_outside = !placed.clone().cut(Region { top: 1, ..Region::all_of(&image) });
                        prop_assert!(is_outside);
                    }
                    Step::Across => {
                        image = horizontal_flip(image);
                        placed.flip_across();
                    }
                    Step::Down => {
                        image = vertical_flip(image);
                        placed.flip_down();
                    }
                }
            }
            prop_assert_eq!(placed.to_image(), image.clone());
            if placed.is_whole() {
                prop_assert_eq!(image.pixels(), &pixels[..]);
            }
        }
    }
}
