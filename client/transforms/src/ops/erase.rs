//! Rectangles that are overwritten.

use serde::{Deserialize, Serialize};

use super::arguments::{OneOrMany, for_channels, half, ordered, probability, round};
use super::distributions::normal;
use crate::draws::Draws;
use crate::image::{Image, Region};
use crate::operation::{At, Operation};
use crate::value::{Dtype, Kind, Value};

/// With which numbers a rectangle is overwritten.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Erased {
    /// One for all channels, or one for each.
    Values(OneOrMany<f64>),
    /// Each with its own, of a standard normal distribution; for floats.
    Noise(Noise),
}

/// The word for noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Noise {
    /// `"random"`.
    Random,
}

/// Overwrites a rectangle of random place, size and ratio in some pictures (Zhong et al., "Random erasing data augmentation",
/// AAAI 2020).
///
/// Random numbers: `chance(p)`; then, at most ten times, `between(scale)` for the part of the area, `between(ln ratio)` for the
/// logarithm of height over width, and if that rectangle fits, `below(...)` for its first row and `below(...)` for its first column;
/// then, with `value="random"`, normal numbers, row by row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomErasing {
    /// The probability of it.
    #[serde(default = "half")]
    pub p: f64,
    /// The least and the largest part of the area.
    #[serde(default = "RandomErasing::scale")]
    pub scale: [f64; 2],
    /// The least and the largest ratio of height to width.
    #[serde(default = "RandomErasing::ratio")]
    pub ratio: [f64; 2],
    /// The numbers that are written.
    #[serde(default = "RandomErasing::value")]
    pub value: Erased,
    /// Accepted as torchvision has it; nothing else would see the numbers before.
    #[serde(default)]
    pub inplace: bool,
}

impl RandomErasing {
    fn scale() -> [f64; 2] {
        [0.02, 0.33]
    }

    fn ratio() -> [f64; 2] {
        [0.3, 3.3]
    }

    fn value() -> Erased {
        Erased::Values(OneOrMany::One(0.0))
    }

    /// The rectangle in a picture of this height and width; none if ten random ones did not fit.
    pub fn region(&self, [height, width]: [usize; 2], draws: &mut Draws) -> Option<Region> {
        for _ in 0..10 {
            let part = (height * width) as f64 * draws.between(self.scale[0], self.scale[1]);
            let ratio = libm::exp(draws.between(libm::log(self.ratio[0]), libm::log(self.ratio[1])));
            let [h, w] = [part * ratio, part / ratio].map(|square| round(square.sqrt()) as usize);
            if h < height && w < width {
                let (top, left) = (draws.below(height - h + 1), draws.below(width - w + 1));
                return Some(Region { top, left, height: h, width: w });
            }
        }
        None
    }
}

impl Operation for RandomErasing {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        probability(self.p)?;
        ordered(self.scale, "a scale", 0.0, 1.0)?;
        ordered(self.ratio, "a ratio", f64::MIN_POSITIVE, f64::INFINITY)?;
        match (&self.value, input.dtype) {
            (Erased::Values(values), _) => _ = for_channels(values, input.channels, "value")?,
            (Erased::Noise(_), Dtype::Uint8) => {
                return Err(
                    "writes normal numbers into uint8 pictures: put it behind ToDtype, or give a value"
                        .into(),
                );
            }
            (Erased::Noise(_), _) => (),
        }
        Ok(input)
    }

    fn apply(&self, value: Value, at: At) -> Result<Value, String> {
        let mut draws = at.draws();
        let [height, width, channels] = value.shape();
        if !draws.chance(self.p) {
            return Ok(value);
        }
        let Some(region) = self.region([height, width], &mut draws) else { return Ok(value) };
        let values = match &self.value {
            Erased::Values(values) => for_channels(values, channels, "value")?,
            Erased::Noise(_) => Vec::new(),
        };
        Ok(match value {
            Value::Bytes(image) => Value::Bytes(overwritten(image, region, |channel| values[channel] as u8)),
            Value::Floats(image) if values.is_empty() => {
                Value::Floats(overwritten(image, region, |_| normal(&mut draws) as f32))
            }
            Value::Floats(image) => {
                Value::Floats(overwritten(image, region, |channel| values[channel] as f32))
            }
        })
    }
}

fn overwritten<T: Copy>(mut image: Image<T>, region: Region, mut number: impl FnMut(usize) -> T) -> Image<T> {
    let [_, width, channels] = image.shape();
    for row in image.pixels_mut().chunks_exact_mut(width * channels).skip(region.top).take(region.height) {
        for pixel in row[region.left * channels..][..region.width * channels].chunks_exact_mut(channels) {
            pixel.iter_mut().enumerate().for_each(|(channel, value)| *value = number(channel));
        }
    }
    image
}
