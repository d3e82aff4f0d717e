//! Mirrors.

use serde::{Deserialize, Serialize};

use super::arguments::{half, probability};
use crate::image::Image;
use crate::operation::{At, Operation};
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

macro_rules! flip {
    ($(#[$doc:meta])* $name:ident, $flip:ident) => {
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

        impl Operation for $name {
            fn kind(&self, input: Kind) -> Result<Kind, String> {
                probability(self.p).map(|()| input)
            }

            fn apply(&self, value: Value, at: At) -> Result<Value, String> {
                Ok(if at.draws().chance(self.p) { each!(value, image => $flip(image)) } else { value })
            }
        }
    };
}

flip! {
    /// Swaps left and right of some pictures.
    RandomHorizontalFlip, horizontal_flip
}

flip! {
    /// Swaps above and below in some pictures.
    RandomVerticalFlip, vertical_flip
}
