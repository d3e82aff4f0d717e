//! The definition in plain Rust, and numbers to try it with.

use crate::sum::CHAINS;

use crate::CHUNK;

/// The sum of some products.
pub(crate) fn product(steps: impl Iterator<Item = (f32, f32)>) -> f32 {
    let steps: Vec<(f32, f32)> = steps.collect();
    let sum = |steps: &[(f32, f32)]| steps.iter().fold(0.0_f32, |sum, (one, other)| one.mul_add(*other, sum));
    steps.chunks(CHUNK).map(sum).reduce(|sum, next| sum + next).unwrap_or(0.0)
}

/// Numbers of either sign over some orders of magnitude, so that another order of additions gives another sum.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32
    };
    (0..count)
        .map(|_| {
            let (mantissa, exponent) = (next(), next() % 9);
            (mantissa as f32 / (1 << 23) as f32 - 1.0) * 2.0_f32.powi(exponent as i32 - 4)
        })
        .collect()
}

pub(crate) fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// The definition of a sum.
pub(crate) fn plainly(row: impl Iterator<Item = f32>) -> f32 {
    let mut chains = [0.0_f32; CHAINS];
    row.enumerate().for_each(|(at, number)| chains[at % CHAINS] += number);
    let mut half = CHAINS / 2;
    while half > 0 {
        (0..half).for_each(|chain| chains[chain] += chains[chain + half]);
        half /= 2;
    }
    chains[0]
}
