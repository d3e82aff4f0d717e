//! Samples of continuous distributions, from uniform numbers.
//!
//! Each sampler is exact but for the rounding of `f64`, and gives the same bits on all CPUs.

#[cfg(test)]
mod tests;

use std::f64::consts::TAU;

use crate::draws::Draws;

/// The smallest and largest shape; others are taken as the nearest of them.
const SHAPES: [f64; 2] = [1e-300, 1e300];

/// A standard normal number: mean 0, deviation 1.
///
/// Takes two `uniform()` (Box and Muller, "A note on the generation of random normal deviates", 1958).
pub fn normal(draws: &mut Draws) -> f64 {
    let radius = libm::sqrt(-2.0 * ln_uniform(draws));
    radius * libm::cos(TAU * draws.uniform())
}

/// A number of the gamma distribution with this shape and scale 1. It can be 0 for a tiny shape.
///
/// Repeats a [`normal`] and a `uniform()` until it accepts them, 95 % of the time or more (Marsaglia and
/// Tsang, "A simple method for generating gamma variables", 2000). If `shape < 1.0`, another `uniform()`
/// follows.
pub fn gamma(draws: &mut Draws, shape: f64) -> f64 {
    libm::exp(ln_gamma(draws, shape))
}

/// A number of the beta distribution: the first of [`dirichlet`] for `[a, b]`.
pub fn beta(draws: &mut Draws, a: f64, b: f64) -> f64 {
    dirichlet(draws, &[a, b])[0]
}

/// Numbers from 0 to 1, with the sum 1, of the Dirichlet distribution with these concentrations.
///
/// Draws as [`gamma`] for each concentration.
pub fn dirichlet(draws: &mut Draws, concentrations: &[f64]) -> Vec<f64> {
    // Logarithms, since all gammas may be too small for `f64` where the concentrations are.
    let logs: Vec<f64> = concentrations.iter().map(|&shape| ln_gamma(draws, shape)).collect();
    let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let parts: Vec<f64> = logs.iter().map(|log| libm::exp(log - most)).collect();
    let sum: f64 = parts.iter().sum();
    parts.iter().map(|part| part / sum).collect()
}

/// The logarithm of a number of the gamma distribution.
fn ln_gamma(draws: &mut Draws, shape: f64) -> f64 {
    let shape = if shape > SHAPES[0] { shape.min(SHAPES[1]) } else { SHAPES[0] };
    if shape >= 1.0 {
        return ln_gamma_from_one(draws, shape);
    }
    let log = ln_gamma_from_one(draws, shape + 1.0);
    log + ln_uniform(draws) / shape
}

/// That for a shape of 1 or more.
fn ln_gamma_from_one(draws: &mut Draws, shape: f64) -> f64 {
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / libm::sqrt(9.0 * d);
    loop {
        let x = normal(draws);
        let root = 1.0 + c * x;
        let log = ln_uniform(draws);
        if root <= 0.0 {
            continue;
        }
        let v = root * root * root;
        if log < 0.5 * x * x + d * (1.0 - v + libm::log(v)) {
            return libm::log(d) + libm::log(v);
        }
    }
}

/// The logarithm of a number in `0.0..=1.0`, but not 0.
fn ln_uniform(draws: &mut Draws) -> f64 {
    libm::log(1.0 - draws.uniform())
}
