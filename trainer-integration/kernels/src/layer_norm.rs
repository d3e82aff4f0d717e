//! Layer normalisation (Ba, Kiros and Hinton, arXiv:1607.06450) and its gradient.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::level::Level;
use crate::norm::NormGradient;
use crate::sum::sums;

/// Rows whose gradients of scale and shift are added up before those of others, in order.
const STRETCH: usize = 32;

/// Layer normalisation of rows of `columns` numbers: each by its own mean and variance.
///
/// Sums over a row are [defined](crate#sums). The gradients of scale and shift are added up row by row in stretches of 32 rows, and the sums
/// of the stretches in order, in 64 bits.
///
/// ```
/// use shardd_kernels::{LayerNorm, Level};
///
/// let norm = LayerNorm { columns: 2, epsilon: 0.0 };
/// assert_eq!(norm.forward(Level::best(), &[1.0, 3.0], &[10.0, 1.0], &[5.0, 0.0]), [-5.0, 1.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Of each row, at least one.
    pub columns: usize,
    /// Added to the variance, which is the biased one.
    pub epsilon: f32,
}

impl LayerNorm {
    /// Normalises each row, then multiplies each column by its `scale` and adds its `shift`.
    ///
    /// # Panics
    /// If the numbers are no whole rows, or scale and shift have others than `columns`.
    pub fn forward(&self, level: Level, input: &[f32], scale: &[f32], shift: &[f32]) -> Vec<f32> {
        self.check(input, [scale, shift]);
        let (level, mut output) = (level.narrow(), vec![0.0; input.len()]);
        let stretches =
            output.par_chunks_mut(STRETCH * self.columns).zip(input.par_chunks(STRETCH * self.columns));
        stretches.for_each(|(output, input)| level.run(Forward { norm: *self, input, scale, shift, output }));
        output
    }

    /// The gradients of input, scale and shift from that of the output.
    ///
    /// # Panics
    /// As [`LayerNorm::forward`], or if there are not as many numbers of the output.
    pub fn backward(&self, level: Level, input: &[f32], output: &[f32], scale: &[f32]) -> NormGradient {
        self.check(input, [scale, scale]);
        assert_eq!(input.len(), output.len(), "a gradient for each number");
        let (level, stretch) = (level.narrow(), STRETCH * self.columns);
        let mut of_input = vec![0.0; input.len()];
        let stretches =
            of_input.par_chunks_mut(stretch).zip(input.par_chunks(stretch)).zip(output.par_chunks(stretch));
        let sums: Vec<[Vec<f32>; 2]> = stretches
            .map(|((of_input, input), output)| {
                let mut sums = [vec![0.0; self.columns], vec![0.0; self.columns]];
                let [of_scale, of_shift] = sums.each_mut().map(Vec::as_mut_slice);
                level.run(Backward { norm: *self, input, output, scale, of_input, of_scale, of_shift });
                sums
            })
            .collect();
        let total = |which: usize| {
            let mut totals = vec![0.0_f64; self.columns];
            for stretch in &sums {
                totals.iter_mut().zip(&stretch[which]).for_each(|(total, sum)| *total += f64::from(*sum));
            }
            totals.into_iter().map(|total| total as f32).collect()
        };
        NormGradient { scale: total(0), shift: total(1), input: of_input }
    }

    fn check(&self, numbers: &[f32], of_columns: [&[f32]; 2]) {
        assert!(self.columns > 0 && numbers.len().is_multiple_of(self.columns), "whole rows");
        assert!(of_columns.iter().all(|it| it.len() == self.columns), "a scale and a shift for each column");
    }

    /// The mean of a row, and the inverse of its standard deviation.
    #[inline(always)]
    fn statistics(&self, row: &[f32]) -> (f32, f32) {
        let count = row.len() as f32;
        let [sum] = sums(row.len(), |at| [row[at]]);
        let mean = sum / count;
        let [squares] = sums(row.len(), |at| [(row[at] - mean) * (row[at] - mean)]);
        (mean, 1.0 / (squares / count + self.epsilon).sqrt())
    }
}

/// Of some rows.
struct Forward<'a> {
    norm: LayerNorm,
    input: &'a [f32],
    scale: &'a [f32],
    shift: &'a [f32],
    output: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Forward { norm, input, scale, shift, output } = self;
        let rows = input.chunks_exact(norm.columns).zip(output.chunks_exact_mut(norm.columns));
        for (input, output) in rows {
            let (mean, inverse) = norm.statistics(input);
            for (((output, x), scale), shift) in output.iter_mut().zip(input).zip(scale).zip(shift) {
                *output = (x - mean) * inverse * scale + shift;
            }
        }
    }
}

/// Of some rows; adds to the gradients of scale and shift.
struct Backward<'a> {
    norm: LayerNorm,
    input: &'a [f32],
    output: &'a [f32],
    scale: &'a [f32],
    of_input: &'a mut [f32],
    of_scale: &'a mut [f32],
    of_shift: &'a mut [f32],
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Backward { norm, input, output, scale, of_input, of_scale, of_shift } = self;
        let (columns, count) = (norm.columns, norm.columns as f32);
        let (scale, of_scale, of_shift) =
            (&scale[..columns], &mut of_scale[..columns], &mut of_shift[..columns]);
        let rows = input.chunks_exact(columns).zip(output.chunks_exact(columns));
        for ((input, output), of_input) in rows.zip(of_input.chunks_exact_mut(columns)) {
            let (mean, inverse) = norm.statistics(input);
            let [sum, projected] = sums(columns, |at| {
                let gradient = output[at] * scale[at];
                [gradient, gradient * ((input[at] - mean) * inverse)]
            });
            let (sum, projected) = (sum / count, projected / count);
            for at in 0..columns {
                let normalised = (input[at] - mean) * inverse;
                of_input[at] = inverse * ((output[at] * scale[at] - sum) - normalised * projected);
                of_scale[at] += output[at] * normalised;
                of_shift[at] += output[at];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testkit::{bits, numbers, plainly};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_level_computes_the_definition(seed: u64, rows in 1usize..80, columns in 1usize..150) {
            let norm = LayerNorm { columns, epsilon: 1e-5 };
            let (input, gradient) = (numbers(seed, rows * columns), numbers(!seed, rows * columns));
            let (scale, shift) = (numbers(seed ^ 2, columns), numbers(seed ^ 4, columns));
            let (mut output, mut of_input) = (Vec::new(), Vec::new());
            let mut totals = [vec![0.0_f64; columns], vec![0.0_f64; columns]];
            for (input, gradient) in input.chunks(STRETCH * columns).zip(gradient.chunks(STRETCH * columns)) {
                let mut of_stretch = [vec![0.0_f32; columns], vec![0.0_f32; columns]];
                for (x, g) in input.chunks(columns).zip(gradient.chunks(columns)) {
                    let mean = plainly(x.iter().copied()) / columns as f32;
                    let variance = plainly(x.iter().map(|x| (x - mean) * (x - mean))) / columns as f32;
                    let inverse = 1.0 / (variance + 1e-5).sqrt();
                    let normalised: Vec<f32> = x.iter().map(|x| (x - mean) * inverse).collect();
                    let scaled: Vec<f32> = g.iter().zip(&scale).map(|(g, s)| g * s).collect();
                    let sum = plainly(scaled.iter().copied()) / columns as f32;
                    let products = scaled.iter().zip(&normalised).map(|(g, x)| g * x);
                    let projected = plainly(products) / columns as f32;
                    for at in 0..columns {
                        output.push(normalised[at] * scale[at] + shift[at]);
                        of_input.push(inverse * ((scaled[at] - sum) - normalised[at] * projected));
                        of_stretch[0][at] += g[at] * normalised[at];
                        of_stretch[1][at] += g[at];
                    }
                }
                for (totals, of_stretch) in totals.iter_mut().zip(&of_stretch) {
                    totals.iter_mut().zip(of_stretch).for_each(|(total, sum)| *total += f64::from(*sum));
                }
            }
            let [of_scale, of_shift] = totals.map(|of| of.into_iter().map(|it| it as f32).collect::<Vec<_>>());
            for level in Level::available() {
                prop_assert_eq!(bits(&norm.forward(level, &input, &scale, &shift)), bits(&output), "{}", level);
                let found = norm.backward(level, &input, &gradient, &scale);
                prop_assert_eq!(bits(&found.input), bits(&of_input), "{}", level);
                prop_assert_eq!(bits(&found.scale), bits(&of_scale), "{}", level);
                prop_assert_eq!(bits(&found.shift), bits(&of_shift), "{}", level);
            }
        }

        #[test]
        fn gradients_are_slopes(seed: u64, columns in 2usize..12) {
            const STEP: f32 = 1.0 / 64.0;
            let norm = LayerNorm { columns, epsilon: 1.0 };
            let small = |seed| numbers(seed, columns).into_iter().map(|x| x / 8.0).collect::<Vec<f32>>();
            let (input, gradient, scale, shift) = (small(seed), small(seed ^ 3), small(seed ^ 5), small(seed ^ 9));
            let value = |input: &[f32], scale: &[f32], shift: &[f32]| -> f64 {
                let output = norm.forward(Level::best(), input, scale, shift);
                output.iter().zip(&gradient).map(|(y, g)| f64::from(*y) * f64::from(*g)).sum()
            };
            let found = norm.backward(Level::best(), &input, &gradient, &scale);
            for at in 0..columns {
                let moved = |numbers: &[f32], by: f32| {
                    let mut moved = numbers.to_vec();
                    moved[at] += by;
                    moved
                };
                let slopes = [STEP, -STEP].map(|by| [
                    value(&moved(&input, by), &scale, &shift),
                    value(&input, &moved(&scale, by), &shift),
                    value(&input, &scale, &moved(&shift, by)),
                ]);
                let gradients = [found.input[at], found.scale[at], found.shift[at]];
                for (which, gradient) in gradients.into_iter().enumerate() {
                    let slope = (slopes[0][which] - slopes[1][which]) / f64::from(2.0 * STEP);
                    prop_assert!((f64::from(gradient) - slope).abs() < 2e-3 * slope.abs().max(1.0), "{which}: {gradient} {slope}");
                }
            }
        }
    }
}
