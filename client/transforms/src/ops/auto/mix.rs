//! AugMix.

use serde::{Deserialize, Serialize};

use super::{Primitive, space};
use crate::{
    draws::Draws,
    image::Image,
    ops::{
        distributions::dirichlet,
        geometry::{Fill, Interpolation},
    },
};

/// How many strengths there are.
const BINS: u32 = 10;

/// A mixture of a picture and several chains of operations on it, after "AugMix: A Simple Data Processing
/// Method to Improve Robustness and Uncertainty" (Hendrycks et al., 2020).
///
/// Draws [`dirichlet`] of `[alpha, alpha]`, the weights of the picture and of all chains; then [`dirichlet`]
/// of `mixture_width` times `alpha`, the shares of the chains. For each chain follow `below(3)`, its depth
/// minus 1, if `chain_depth` is not positive; then, for each operation, `below(13)` (`below(9)` without
/// `all_ops`), the operation in torchvision's order; then, if it has a strength, `below(severity)`; then, if
/// it has a sign, `chance(0.5)`: that it is negative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AugMix {
    /// The strongest operation, from 1 to 10. Beyond is as the nearest of them.
    pub severity: u32,
    /// How many chains.
    pub mixture_width: u32,
    /// How many operations a chain has. Random from 1 to 3 if not positive.
    pub chain_depth: i64,
    /// The concentration of the weights, above 0: the larger, the more equal they are.
    pub alpha: f64,
    /// Whether brightness, colour, contrast and sharpness are among the operations.
    pub all_ops: bool,
    /// That of geometric operations.
    pub interpolation: Interpolation,
    /// What pixels from outside become.
    pub fill: Fill,
}

impl Default for AugMix {
    fn default() -> Self {
        Self {
            severity: 3,
            mixture_width: 3,
            chain_depth: -1,
            alpha: 1.0,
            all_ops: true,
            interpolation: Interpolation::Bilinear,
            fill: Fill::None,
        }
    }
}

impl AugMix {
    /// Whether torchvision takes these arguments, else why not.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=BINS).contains(&self.severity) {
            return Err(format!("severity {} is not between 1 and {BINS}", self.severity));
        }
        let message = || format!("alpha {} is not above 0", self.alpha);
        (self.alpha > 0.0).then_some(()).ok_or_else(message)
    }

    /// The chains and weights for a picture of `[height, width]`.
    pub fn mixture(&self, size: [usize; 2], draws: &mut Draws) -> Mixture {
        let weights = dirichlet(draws, &[self.alpha; 2]);
        let shares = dirichlet(draws, &vec![self.alpha; self.mixture_width as usize]);
        let mut chain =
            |share| Chain { weight: share as f32 * weights[1] as f32, primitives: self.chain(size, draws) };
        Mixture { original: weights[0] as f32, chains: shares.into_iter().map(&mut chain).collect() }
    }

    fn chain(&self, size: [usize; 2], draws: &mut Draws) -> Vec<Primitive> {
        let space = if self.all_ops { &space::MIX } else { &space::MIX_PARTIAL };
        let depth = if self.chain_depth > 0 { self.chain_depth } else { 1 + draws.below(3) as i64 };
        let mut primitive = |_| {
            let kind = space.kind(draws);
            let severity = self.severity.clamp(1, BINS);
            let bin = if kind.has_magnitude() { draws.below(severity as usize) as u32 } else { 0 };
            space.primitive(kind, [bin, BINS], size, draws)
        };
        (0..depth).map(&mut primitive).collect()
    }

    /// The mixture of the picture and of the chains.
    pub fn apply(&self, image: Image<u8>, draws: &mut Draws) -> Image<u8> {
        let mixture = self.mixture([image.height(), image.width()], draws);
        mixture.apply(&image, self.interpolation, self.fill.values())
    }
}

/// What [`AugMix`] does to a picture. The weights are positive and have the sum 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// The weight of the picture as it is.
    pub original: f32,
    /// What else is mixed.
    pub chains: Vec<Chain>,
}

/// Operations of a [`Mixture`], one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// The weight of the result.
    pub weight: f32,
    /// The operations.
    pub primitives: Vec<Primitive>,
}

impl Mixture {
    /// The weighted sum in `f32`, cut to whole numbers as in torchvision. `fill` is as [`Fill::values`] gives
    /// it.
    pub fn apply(&self, image: &Image<u8>, interpolation: Interpolation, fill: &[f32]) -> Image<u8> {
        let mut sums: Vec<f32> =
            image.pixels().iter().map(|&value| self.original * f32::from(value)).collect();
        for Chain { weight, primitives } in &self.chains {
            let chain = Primitive::apply_all(primitives, image.clone(), interpolation, fill);
            for (sum, &value) in sums.iter_mut().zip(chain.pixels()) {
                *sum += weight * f32::from(value);
            }
        }
        Image::new(image.shape(), sums.into_iter().map(|sum| sum as u8).collect())
    }
}
