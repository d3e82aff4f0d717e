//! From bytes to normalised floats.

use serde::{Deserialize, Serialize};

use super::arguments::{OneOrMany, for_channels};
use crate::image::Image;
use crate::operation::{At, Operation};
use crate::placed::Placed;
use crate::value::{Dtype, Kind, Value};

macro_rules! unchanged {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {}

        impl Operation for $name {
            fn kind(&self, input: Kind) -> Result<Kind, String> {
                Ok(input)
            }

            fn apply(&self, value: Value, _: At) -> Result<Value, String> {
                Ok(value)
            }

            fn place(&self, _: &mut Placed<'_>, _: At) -> bool {
                true
            }
        }
    };
}

unchanged! {
    /// Changes nothing.
    Identity
}

unchanged! {
    /// Changes nothing: pictures are tensors from the beginning.
    ToImage
}

unchanged! {
    /// Changes nothing: batches are plain tensors at the end.
    ToPureTensor
}

/// Gives the numbers another type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToDtype {
    /// The type. Floats of 16 bits are rounded at the end of the chain; before, they have 32 bits.
    pub dtype: Dtype,
    /// Whether 255 becomes 1.0.
    #[serde(default)]
    pub scale: bool,
}

impl ToDtype {
    /// The float of a byte.
    fn float(&self, byte: u8) -> f32 {
        let factor = if self.scale { (1.0_f64 / 255.0) as f32 } else { 1.0 };
        f32::from(byte) * factor
    }
}

impl Operation for ToDtype {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        match (input.dtype, self.dtype) {
            (from, to) if from != Dtype::Uint8 && to == Dtype::Uint8 => {
                Err(format!("makes uint8 of {from}: leave it out, and the ToDtype before it"))
            }
            (_, to) => Ok(Kind { dtype: to, ..input }),
        }
    }

    fn apply(&self, value: Value, _: At) -> Result<Value, String> {
        Ok(match value {
            Value::Bytes(image) if self.dtype != Dtype::Uint8 => {
                let floats = image.pixels().iter().map(|byte| self.float(*byte)).collect();
                Value::Floats(Image::new(image.shape(), floats))
            }
            same => same,
        })
    }
}

/// Subtracts the mean of each channel, and divides by its standard deviation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalize {
    /// The mean of all channels or of each.
    pub mean: OneOrMany<f64>,
    /// The standard deviation of all channels or of each.
    pub std: OneOrMany<f64>,
    /// Accepted as torchvision has it; nothing else would see the numbers before.
    #[serde(default)]
    pub inplace: bool,
}

impl Normalize {
    /// Mean and standard deviation of each channel.
    fn of(&self, channels: usize) -> Result<Vec<[f32; 2]>, String> {
        let [mean, std] =
            [for_channels(&self.mean, channels, "mean")?, for_channels(&self.std, channels, "std")?];
        let values: Vec<[f32; 2]> =
            mean.into_iter().zip(std).map(|(mean, std)| [mean as f32, std as f32]).collect();
        match values.iter().all(|[mean, std]| mean.is_finite() && std.is_normal()) {
            true => Ok(values),
            false => Err("has a mean or std that is not finite in 32 bits, or a std of 0".into()),
        }
    }
}

impl Operation for Normalize {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        if input.dtype == Dtype::Uint8 {
            return Err("takes floats, and gets uint8: put ToDtype(float32, scale=True) before it".into());
        }
        self.of(input.channels).map(|_| input)
    }

    fn apply(&self, value: Value, _: At) -> Result<Value, String> {
        let Value::Floats(mut image) = value else { unreachable!("a checked chain gives floats") };
        let channels = self.of(image.channels())?;
        for pixel in image.pixels_mut().chunks_exact_mut(channels.len()) {
            for (number, [mean, std]) in pixel.iter_mut().zip(&channels) {
                *number = (*number - mean) / std;
            }
        }
        Ok(Value::Floats(image))
    }
}
