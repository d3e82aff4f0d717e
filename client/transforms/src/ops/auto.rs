//! Automatic augmentation: RandAugment, TrivialAugmentWide, AutoAugment and AugMix of torchvision.
//!
//! Each first makes a list of [`Primitive`] operations from random numbers, then applies them.

mod mix;
mod policies;
mod primitive;
mod space;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::{
    draws::Draws,
    image::Image,
    ops::geometry::{Fill, Interpolation},
};
use policies::Pair;

pub use mix::{AugMix, Chain, Mixture};
pub use primitive::Primitive;

/// A few operations of one strength, after "RandAugment: Practical automated data augmentation with a reduced
/// search space" (Cubuk et al., 2020).
///
/// Draws, for each of `num_ops`: `below(14)`, the operation in torchvision's order; then, if it has a sign,
/// `chance(0.5)`: that it is negative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandAugment {
    /// How many operations, one after the other.
    pub num_ops: u32,
    /// Their strength, from 0: one of the bins. Beyond is as the last.
    pub magnitude: u32,
    /// How many strengths there are, from none to the largest.
    pub num_magnitude_bins: u32,
    /// That of geometric operations.
    pub interpolation: Interpolation,
    /// What pixels from outside become.
    pub fill: Fill,
}

impl Default for RandAugment {
    fn default() -> Self {
        Self {
            num_ops: 2,
            magnitude: 9,
            num_magnitude_bins: 31,
            interpolation: Interpolation::Nearest,
            fill: Fill::None,
        }
    }
}

impl RandAugment {
    /// Whether torchvision takes these arguments, else why not.
    pub fn check(&self) -> Result<(), String> {
        let Self { magnitude, num_magnitude_bins: bins, .. } = self;
        let message = || format!("magnitude {magnitude} is not below num_magnitude_bins {bins}");
        (magnitude < bins).then_some(()).ok_or_else(message)
    }

    /// The operations for a picture of `[height, width]`.
    pub fn primitives(&self, size: [usize; 2], draws: &mut Draws) -> Vec<Primitive> {
        let bin = [self.magnitude, self.num_magnitude_bins];
        let mut primitive = |_| {
            let kind = space::RAND.kind(draws);
            space::RAND.primitive(kind, bin, size, draws)
        };
        (0..self.num_ops).map(&mut primitive).collect()
    }

    /// The picture after the operations.
    pub fn apply(&self, image: Image<u8>, draws: &mut Draws) -> Image<u8> {
        let primitives = self.primitives([image.height(), image.width()], draws);
        Primitive::apply_all(&primitives, image, self.interpolation, self.fill.values())
    }
}

/// One operation of a random strength, after "TrivialAugment: Tuning-free Yet State-of-the-Art Data
/// Augmentation" (Müller and Hutter, 2021).
///
/// Draws `below(14)`, the operation in torchvision's order; then, if it has a strength,
/// `below(num_magnitude_bins)`; then, if it has a sign, `chance(0.5)`: that it is negative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrivialAugmentWide {
    /// How many strengths there are, from none to the largest. 0 is as 1.
    pub num_magnitude_bins: u32,
    /// That of geometric operations.
    pub interpolation: Interpolation,
    /// What pixels from outside become.
    pub fill: Fill,
}

impl Default for TrivialAugmentWide {
    fn default() -> Self {
        Self { num_magnitude_bins: 31, interpolation: Interpolation::Nearest, fill: Fill::None }
    }
}

impl TrivialAugmentWide {
    /// Whether torchvision takes these arguments, else why not.
    pub fn check(&self) -> Result<(), String> {
        (self.num_magnitude_bins > 0).then_some(()).ok_or_else(|| "num_magnitude_bins is 0".into())
    }

    /// The operation for a picture of `[height, width]`.
    pub fn primitive(&self, size: [usize; 2], draws: &mut Draws) -> Primitive {
        let bins = self.num_magnitude_bins.max(1);
        let kind = space::WIDE.kind(draws);
        let bin = if kind.has_magnitude() { draws.below(bins as usize) as u32 } else { 0 };
        space::WIDE.primitive(kind, [bin, bins], size, draws)
    }

    /// The picture after the operation.
    pub fn apply(&self, image: Image<u8>, draws: &mut Draws) -> Image<u8> {
        let primitive = self.primitive([image.height(), image.width()], draws);
        primitive.apply(image, self.interpolation, self.fill.values())
    }
}

/// The data on which a policy of [`AutoAugment`] was learnt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// ImageNet.
    #[default]
    Imagenet,
    /// CIFAR-10.
    Cifar10,
    /// Street View House Numbers.
    Svhn,
}

impl Policy {
    fn pairs(self) -> &'static [Pair; 25] {
        match self {
            Self::Imagenet => &policies::IMAGENET,
            Self::Cifar10 => &policies::CIFAR10,
            Self::Svhn => &policies::SVHN,
        }
    }
}

/// One of 25 learnt pairs of operations, after "AutoAugment: Learning Augmentation Strategies from Data"
/// (Cubuk et al., 2019).
///
/// Draws `below(25)`, the pair in torchvision's order; then, for each of its two operations,
/// `chance(probability)`: that it is applied; then, if it is and has a sign, `chance(0.5)`: that it is
/// negative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AutoAugment {
    /// The pairs among which to choose.
    pub policy: Policy,
    /// That of geometric operations.
    pub interpolation: Interpolation,
    /// What pixels from outside become.
    pub fill: Fill,
}

impl Default for AutoAugment {
    fn default() -> Self {
        Self { policy: Policy::Imagenet, interpolation: Interpolation::Nearest, fill: Fill::None }
    }
}

impl AutoAugment {
    /// The operations for a picture of `[height, width]`: two or fewer.
    pub fn primitives(&self, size: [usize; 2], draws: &mut Draws) -> Vec<Primitive> {
        let pairs = self.policy.pairs();
        let mut primitives = Vec::with_capacity(2);
        for (kind, probability, bin) in pairs[draws.below(pairs.len())] {
            if draws.chance(probability) {
                primitives.push(space::RAND.primitive(kind, [bin, 10], size, draws));
            }
        }
        primitives
    }

    /// The picture after the operations.
    pub fn apply(&self, image: Image<u8>, draws: &mut Draws) -> Image<u8> {
        let primitives = self.primitives([image.height(), image.width()], draws);
        Primitive::apply_all(&primitives, image, self.interpolation, self.fill.values())
    }
}
