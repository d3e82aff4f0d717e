//! Other colours.

use serde::{Deserialize, Serialize};

use super::arguments::{OneOrMany, half, ordered, probability};
use super::{blur, color};
use crate::image::Image;
use crate::operation::{At, Operation, bytes_only};
use crate::value::{Kind, Value};

/// Operations that change some pictures, with a probability: their arguments, and the change.
macro_rules! random {
    (
        $(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }
        if $p:literal, $check:expr, $change:expr
    ) => {
        $(#[$doc])*
        ///
        /// Random numbers: `chance(p)`.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// The probability of it.
            #[serde(default = $p)]
            pub p: f64,
        }

        impl Operation for $name {
            fn kind(&self, input: Kind) -> Result<Kind, String> {
                probability(self.p)?;
                let check: fn(&Self) -> Result<(), String> = $check;
                check(self)?;
                bytes_only(input)
            }

            fn apply(&self, value: Value, at: At) -> Result<Value, String> {
                let change: fn(&Self, &mut Image<u8>) = $change;
                Ok(if at.draws().chance(self.p) { in_place(value, |image| change(self, image)) } else { value })
            }
        }
    };
}

fn in_place(value: Value, change: impl FnOnce(&mut Image<u8>)) -> Value {
    value.bytes(|mut image| {
        change(&mut image);
        image
    })
}

random! {
    /// Replaces each number by 255 minus it.
    RandomInvert {}
    if "half", |_| Ok(()), |_, image| color::invert(image)
}

random! {
    /// Keeps the highest bits of each number.
    RandomPosterize {
        /// How many bits: 0 to 8.
        bits: u32,
    }
    if "half",
    |own| if own.bits <= 8 { Ok(()) } else { Err(format!("keeps {} bits: give 0 to 8", own.bits)) },
    |own, image| color::posterize(image, own.bits)
}

random! {
    /// Inverts the numbers that are not below a threshold.
    RandomSolarize {
        /// The lowest number that is inverted.
        threshold: f64,
    }
    if "half",
    |own| if own.threshold <= 255.0 { Ok(()) } else { Err(format!("has a threshold of {}: give 255 or less", own.threshold)) },
    |own, image| color::solarize(image, own.threshold)
}

random! {
    /// Stretches each channel so that its darkest pixel is 0 and its brightest 255.
    RandomAutocontrast {}
    if "half", |_| Ok(()), |_, image| color::autocontrast(image)
}

random! {
    /// Makes all values of a channel about equally frequent.
    RandomEqualize {}
    if "half", |_| Ok(()), |_, image| color::equalize(image)
}

random! {
    /// Blurs or sharpens: 0 is smooth, 1 as it was, 2 twice as sharp.
    RandomAdjustSharpness {
        /// The factor, from 0.
        sharpness_factor: f64,
    }
    if "half",
    |own| factor(own.sharpness_factor),
    |own, image| blur::adjust_sharpness(image, own.sharpness_factor)
}

random! {
    /// Makes colours grey; the number of channels stays.
    RandomGrayscale {}
    if "tenth", |_| Ok(()), |_, image| grey(image)
}

fn tenth() -> f64 {
    0.1
}

fn grey(image: &mut Image<u8>) {
    let channels = image.channels();
    let empty = Image::filled(1, 1, &[0]);
    *image = color::grayscale(std::mem::replace(image, empty), channels);
}

fn factor(factor: f64) -> Result<(), String> {
    match factor.is_finite() && factor >= 0.0 {
        true => Ok(()),
        false => Err(format!("has a factor of {factor}: give one from 0")),
    }
}

/// Makes colours grey.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grayscale {
    /// 1, or 3 equal ones.
    #[serde(default = "one")]
    pub num_output_channels: usize,
}

fn one() -> usize {
    1
}

impl Operation for Grayscale {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        match self.num_output_channels {
            channels @ (1 | 3) => bytes_only(Kind { channels, ..input }),
            other => Err(format!("makes {other} channels: give 1 or 3")),
        }
    }

    fn apply(&self, value: Value, _: At) -> Result<Value, String> {
        Ok(value.bytes(|image| color::grayscale(image, self.num_output_channels)))
    }
}

/// Gives grey pictures three equal channels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RGB {}

impl Operation for RGB {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        bytes_only(Kind { channels: 3, ..input })
    }

    fn apply(&self, value: Value, _: At) -> Result<Value, String> {
        Ok(value.bytes(|image| if image.channels() == 3 { image } else { color::grayscale(image, 3) }))
    }
}

/// Changes brightness, contrast, saturation and hue in random order.
///
/// Random numbers: `order(4)` for the order of those four, then `between(...)` for the factor of each that is given, in the order
/// of the arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColorJitter {
    /// A number `b` for factors from `max(0, 1 - b)` to `1 + b`, or the least and the largest factor.
    #[serde(default)]
    pub brightness: Option<OneOrMany<f64>>,
    /// As for `brightness`.
    #[serde(default)]
    pub contrast: Option<OneOrMany<f64>>,
    /// As for `brightness`.
    #[serde(default)]
    pub saturation: Option<OneOrMany<f64>>,
    /// A number `h` for shifts from `-h` to `h`, or the least and the largest shift, in turns of the colour wheel: -0.5 to 0.5.
    #[serde(default)]
    pub hue: Option<OneOrMany<f64>>,
}

impl ColorJitter {
    /// The least and the largest of each, if it is given and not without an effect.
    fn ranges(&self) -> Result<[Option<[f64; 2]>; 4], String> {
        let range = |name: &str, value: &Option<OneOrMany<f64>>, center: f64, least: f64, most: f64| {
            let Some(value) = value else { return Ok(None) };
            let [low, high] = match *value.as_slice() {
                [by] if by < 0.0 => {
                    return Err(format!(
                        "has {name} = {by}: give a number from 0, or the least and the largest"
                    ));
                }
                [by] => [(center - by).max(least), center + by],
                [low, high] => [low, high],
                _ => return Err(format!("has {name} of other than one or two numbers")),
            };
            ordered([low, high], name, least, most)?;
            Ok(Some([low, high]).filter(|range| *range != [center; 2]))
        };
        Ok([
            range("brightness", &self.brightness, 1.0, 0.0, f64::INFINITY)?,
            range("contrast", &self.contrast, 1.0, 0.0, f64::INFINITY)?,
            range("saturation", &self.saturation, 1.0, 0.0, f64::INFINITY)?,
            range("hue", &self.hue, 0.0, -0.5, 0.5)?,
        ])
    }
}

/// Changes the colours by a factor: brightness, contrast, saturation, hue.
const ADJUST: [fn(&mut Image<u8>, f64); 4] =
    [color::adjust_brightness, color::adjust_contrast, color::adjust_saturation, color::adjust_hue];

impl Operation for ColorJitter {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        self.ranges()?;
        bytes_only(input)
    }

    fn apply(&self, value: Value, at: At) -> Result<Value, String> {
        let mut draws = at.draws();
        let order = draws.order(4);
        let factors = self.ranges()?.map(|range| range.map(|[low, high]| draws.between(low, high)));
        Ok(in_place(value, |image| {
            for which in order {
                if let Some(factor) = factors[which] {
                    ADJUST[which](image, factor);
                }
            }
        }))
    }
}

/// Changes brightness, contrast, saturation, hue and the order of channels, each in some pictures (Liu et al., "SSD: single shot
/// multibox detector", ECCV 2016).
///
/// Random numbers: for brightness, contrast, saturation and hue `chance(p)`, and `between(...)` of those that are changed; then
/// `chance(0.5)` for contrast as the first or the last but one; then `chance(p)` and `order(channels)` for the channels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomPhotometricDistort {
    /// The least and the largest factor.
    #[serde(default = "little")]
    pub brightness: [f64; 2],
    /// The least and the largest factor.
    #[serde(default = "much")]
    pub contrast: [f64; 2],
    /// The least and the largest factor.
    #[serde(default = "much")]
    pub saturation: [f64; 2],
    /// The least and the largest shift, in turns of the colour wheel.
    #[serde(default = "shift")]
    pub hue: [f64; 2],
    /// The probability of each change.
    #[serde(default = "half")]
    pub p: f64,
}

fn little() -> [f64; 2] {
    [0.875, 1.125]
}

fn much() -> [f64; 2] {
    [0.5, 1.5]
}

fn shift() -> [f64; 2] {
    [-0.05, 0.05]
}

impl Operation for RandomPhotometricDistort {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        probability(self.p)?;
        ordered(self.brightness, "brightness", 0.0, f64::INFINITY)?;
        ordered(self.contrast, "contrast", 0.0, f64::INFINITY)?;
        ordered(self.saturation, "saturation", 0.0, f64::INFINITY)?;
        ordered(self.hue, "hue", -0.5, 0.5)?;
        bytes_only(input)
    }

    fn apply(&self, value: Value, at: At) -> Result<Value, String> {
        let mut draws = at.draws();
        let ranges = [self.brightness, self.contrast, self.saturation, self.hue];
        let factors = ranges.map(|[low, high]| draws.chance(self.p).then(|| draws.between(low, high)));
        let order = if draws.chance(0.5) { [0, 1, 2, 3] } else { [0, 2, 3, 1] };
        let channels = value.shape()[2];
        let channels = draws.chance(self.p).then(|| draws.order(channels));
        Ok(in_place(value, |image| {
            for which in order {
                if let Some(factor) = factors[which] {
                    ADJUST[which](image, factor);
                }
            }
            if let Some(order) = channels {
                color::permute_channels(image, &order);
            }
        }))
    }
}

/// Puts the channels into random order.
///
/// Random numbers: `order(channels)`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomChannelPermutation {}

impl Operation for RandomChannelPermutation {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        bytes_only(input)
    }

    fn apply(&self, value: Value, at: At) -> Result<Value, String> {
        let order = at.draws().order(value.shape()[2]);
        Ok(in_place(value, |image| color::permute_channels(image, &order)))
    }
}

/// Blurs by a Gaussian of random width.
///
/// Random numbers: `between(sigma)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GaussianBlur {
    /// Pixels of the kernel, odd: of both sides, or `[across, down]`.
    pub kernel_size: OneOrMany<usize>,
    /// The standard deviation in pixels, or the least and the largest one.
    #[serde(default = "GaussianBlur::sigma")]
    pub sigma: OneOrMany<f64>,
}

impl GaussianBlur {
    fn sigma() -> OneOrMany<f64> {
        OneOrMany::Many(vec![0.1, 2.0])
    }

    /// The kernel's sides, and the least and the largest standard deviation.
    fn arguments(&self) -> Result<([usize; 2], [f64; 2]), String> {
        let kernel = match *self.kernel_size.as_slice() {
            [both] => [both, both],
            [across, down] => [across, down],
            _ => return Err("has a kernel_size of other than one or two numbers".into()),
        };
        if !kernel.iter().all(|side| side % 2 == 1 && *side < 1 << 12) {
            return Err(format!("has a kernel of {}x{}: give odd numbers below 4096", kernel[0], kernel[1]));
        }
        let sigma = match *self.sigma.as_slice() {
            [one] => [one, one],
            [low, high] => [low, high],
            _ => return Err("has a sigma of other than one or two numbers".into()),
        };
        ordered(sigma, "sigma", f64::MIN_POSITIVE, f64::INFINITY)?;
        Ok((kernel, sigma))
    }
}

impl Operation for GaussianBlur {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        self.arguments()?;
        bytes_only(input)
    }

    fn apply(&self, value: Value, at: At) -> Result<Value, String> {
        let (kernel, [low, high]) = self.arguments()?;
        let sigma = at.draws().between(low, high);
        Ok(in_place(value, |image| blur::gaussian_blur(image, kernel, [sigma; 2])))
    }
}
