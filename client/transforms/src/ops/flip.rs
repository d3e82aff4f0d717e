//! Mirrors.

use serde::{Deserialize, Serialize};

use super::arguments::{half, probability};
use crate::companions::Coordinates;
use crate::image::Image;
use crate::operation::{At, Motion, Mover};
use crate::placed::Placed;
use crate::value::{Kind, Value, each};

/// Swaps left and right.
pub fn horizontal_flip<T: Copy>(mut image: Image<T>) -> Image<T> {
    let [_, width, channels] = image.shape();
    for row in image.pixels_mut().chunks_exact_mut(width * channels) {
        match channels {
            1 => row.reverse(),
            3 => row.as_chunks_mut::<3>().0.reverse(),
            _ => {
                row.reverse();
                row.chunks_exact_mut(channels).for_each(<[T]>::reverse);
            }
        }
    }
    image
}

/// Swaps above and below.
pub fn vertical_flip<T: Copy>(mut image: Image<T>) -> Image<T> {
    let [height, width, channels] = image.shape();
    let len = width * channels;
    let (above, below) = image.pixels_mut().split_at_mut(height / 2 * len);
    for (above, below) in above.chunks_exact_mut(len).zip(below.chunks_exact_mut(len).rev()) {
        above.swap_with_slice(below);
    }
    image
}

/// The motion of a flip.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flip {
    /// Of left and right.
    Across,
    /// Of above and below.
    Down,
}

impl Flip {
    fn image<T: Copy>(self, image: Image<T>) -> Image<T> {
        match self {
            Self::Across => horizontal_flip(image),
            Self::Down => vertical_flip(image),
        }
    }
}

impl Motion for Flip {
    fn picture(&self, value: Value) -> Result<Value, String> {
        Ok(each!(value, image => self.image(image)))
    }

    fn place(&self, placed: &mut Placed<'_>) -> bool {
        match self {
            Self::Across => placed.flip_across(),
            Self::Down => placed.flip_down(),
        }
        true
    }

    fn mask(&self, plane: Image<u8>) -> Result<Image<u8>, String> {
        Ok(self.image(plane))
    }

    fn coordinates(&self, all: &mut impl Coordinates, [height, width]: [usize; 2], _: [usize; 2]) {
        match self {
            Self::Across => all.mirror(0, width),
            Self::Down => all.mirror(1, height),
        }
    }
}

macro_rules! flip {
    ($(#[$doc:meta])* $name:ident, $flip:expr) => {
        $(#[$doc])*
        ///
        /// Random numbers: `chance(p)`.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// The probability of it.
            #[serde(default = "half")]
            pub p: f64,
        }

        impl Mover for $name {
            type Motion<'a> = Flip;

            const PLACES: bool = true;

            fn kind(&self, input: Kind) -> Result<Kind, String> {
                probability(self.p).map(|()| input)
            }

            fn motion(&self, _: [usize; 2], at: At) -> Result<Option<Flip>, String> {
                Ok(at.draws().chance(self.p).then_some($flip))
            }
        }
    };
}

flip! {
    /// Swaps left and right of some pictures.
    RandomHorizontalFlip, Flip::Across
}

flip! {
    /// Swaps above and below in some pictures.
    RandomVerticalFlip, Flip::Down
}
