//! Softmax, and the unit of the error function (GELU, Hendrycks and Gimpel, 2016), with their gradients.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::elementary::{erf, exp};
use crate::level::Level;
use crate::sum::sums;

/// Numbers per task of a thread, about.
const TASK: usize = 1 << 13;

/// Softmax of each row of `columns` numbers: e to the power of each number less the row's largest, divided by the [sum](crate#sums) of
/// these.
///
/// ```
/// use shardd_kernels::{Level, softmax};
///
/// assert_eq!(softmax(Level::best(), &[1.0, 1.0, f32::NEG_INFINITY, 7.0], 2), [0.5, 0.5, 0.0, 1.0]);
/// ```
///
/// # Panics
/// If the numbers are no whole rows.
pub fn softmax(level: Level, input: &[f32], columns: usize) -> Vec<f32> {
    by_rows(level, [input, input], columns, Softmax)
}

/// The gradient of the input of [`softmax`] from its output, and the gradient of that.
///
/// # Panics
/// If the numbers are no whole rows, or not as many.
pub fn softmax_gradient(level: Level, output: &[f32], gradient: &[f32], columns: usize) -> Vec<f32> {
    by_rows(level, [output, gradient], columns, SoftmaxGradient)
}

/// `x (1 + erf(x / sqrt 2)) / 2` of each number.
///
/// ```
/// use shardd_kernels::{Level, gelu};
///
/// let found = gelu(Level::best(), &[0.0, 1.0, 10.0]);
/// assert!(found[0] == 0.0 && (found[1] - 0.841345).abs() < 1e-6 && found[2] == 10.0);
/// ```
pub fn gelu(level: Level, input: &[f32]) -> Vec<f32> {
    by_rows(level, [input, input], 1, Gelu)
}

/// The gradient of the input of [`gelu`] from that input, and the gradient of the output.
///
/// # Panics
/// If there are not as many.
pub fn gelu_gradient(level: Level, input: &[f32], gradient: &[f32]) -> Vec<f32> {
    by_rows(level, [input, gradient], 1, GeluGradient)
}

/// A function of a row of two inputs. A closure would be compiled without the instructions of a level.
trait OfRow: Copy + Sync {
    fn apply(self, inputs: [&[f32]; 2], output: &mut [f32]);
}

#[derive(Clone, Copy)]
struct Softmax;

impl OfRow for Softmax {
    #[inline(always)]
    fn apply(self, [row, _]: [&[f32]; 2], output: &mut [f32]) {
        let largest = row.iter().fold(f32::NEG_INFINITY, |largest, &x| if x > largest { x } else { largest });
        for (output, &x) in output.iter_mut().zip(row) {
            *output = exp(x - largest);
        }
        let [sum] = sums(output.len(), |at| [output[at]]);
        for share in output {
            *share /= sum;
        }
    }
}

#[derive(Clone, Copy)]
struct SoftmaxGradient;

impl OfRow for SoftmaxGradient {
    #[inline(always)]
    fn apply(self, [shares, gradient]: [&[f32]; 2], output: &mut [f32]) {
        let [sum] = sums(shares.len(), |at| [shares[at] * gradient[at]]);
        for ((output, share), gradient) in output.iter_mut().zip(shares).zip(gradient) {
            *output = share * (gradient - sum);
        }
    }
}

#[derive(Clone, Copy)]
struct Gelu;

impl OfRow for Gelu {
    #[inline(always)]
    fn apply(self, [input, _]: [&[f32]; 2], output: &mut [f32]) {
        for (output, &x) in output.iter_mut().zip(input) {
            *output = 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
        }
    }
}

#[derive(Clone, Copy)]
struct GeluGradient;

impl OfRow for GeluGradient {
    #[inline(always)]
    fn apply(self, [input, gradient]: [&[f32]; 2], output: &mut [f32]) {
        /// 1 / sqrt(2 pi).
        const DENSITY: f32 = 0.398_942_3;
        for ((output, &x), gradient) in output.iter_mut().zip(input).zip(gradient) {
            let share = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
            *output = gradient * (x * DENSITY).mul_add(exp(-0.5 * x * x), share);
        }
    }
}

/// Applies it to rows of `columns` numbers, or, to single numbers, many at once.
fn by_rows(level: Level, inputs: [&[f32]; 2], columns: usize, function: impl OfRow) -> Vec<f32> {
    struct Rows<'a, F>([&'a [f32]; 2], &'a mut [f32], usize, F);
    impl<F: OfRow> WithSimd for Rows<'_, F> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Rows([one, other], output, columns, function) = self;
            let rows = one.chunks_exact(columns).zip(other.chunks_exact(columns));
            for ((one, other), output) in rows.zip(output.chunks_exact_mut(columns)) {
                function.apply([one, other], output);
            }
        }
    }
    assert_eq!(inputs[0].len(), inputs[1].len(), "as many numbers of both");
    let mut output = vec![0.0; inputs[0].len()];
    if output.is_empty() {
        return output;
    }
    assert!(columns > 0 && output.len().is_multiple_of(columns), "whole rows");
    let (level, task) = (level.narrow(), (TASK / columns).max(1) * columns);
    let one = |[one, other]: [&[f32]; 2], output: &mut [f32]| {
        let columns = if columns == 1 { output.len() } else { columns };
        level.run(Rows([one, other], output, columns, function));
    };
    let tasks = inputs[0].par_chunks(task).zip(inputs[1].par_chunks(task)).zip(output.par_chunks_mut(task));
    tasks.for_each(|((first, second), output)| one([first, second], output));
    output
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testkit::{bits, numbers};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_level_computes_the_same_bits(seed: u64, rows in 1usize..9, columns in 1usize..200) {
            let (input, gradient) = (numbers(seed, rows * columns), numbers(seed ^ 7, rows * columns));
            let all = |level| {
                let shares = softmax(level, &input, columns);
                let back = softmax_gradient(level, &shares, &gradient, columns);
                [bits(&shares), bits(&back), bits(&gelu(level, &input)), bits(&gelu_gradient(level, &input, &gradient))]
            };
            let expected = all(Level::best());
            for level in Level::available() {
                prop_assert_eq!(&all(level), &expected, "{}", level);
            }
        }

        #[test]
        fn shares_are_those_of_doubles_but_for_rounding(seed: u64, columns in 1usize..300) {
            let input = numbers(seed, columns);
            let found = softmax(Level::best(), &input, columns);
            let largest = input.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let powers: Vec<f64> = input.iter().map(|&x| f64::from(x - largest).exp()).collect();
            let sum: f64 = powers.iter().sum();
            for (found, power) in found.iter().zip(powers) {
                prop_assert!((f64::from(*found) - power / sum).abs() <= 1e-6 * (power / sum), "{found}");
            }
        }

        #[test]
        fn gradients_are_slopes(seed: u64, columns in 2usize..12) {
            const STEP: f32 = 1.0 / 256.0;
            let small = |seed| numbers(seed, columns).into_iter().map(|x| x / 8.0).collect::<Vec<f32>>();
            let (input, gradient) = (small(seed), small(seed ^ 3));
            let level = Level::best();
            let value = |of: &dyn Fn(&[f32]) -> Vec<f32>, at: usize, by: f32| -> f64 {
                let mut moved = input.clone();
                moved[at] += by;
                of(&moved).iter().zip(&gradient).map(|(y, g)| f64::from(*y) * f64::from(*g)).sum()
            };
            let shares = softmax(level, &input, columns);
            let of_softmax = softmax_gradient(level, &shares, &gradient, columns);
            let of_gelu = gelu_gradient(level, &input, &gradient);
            for at in 0..columns {
                for (found, of) in [
                    (of_softmax[at], &(|x: &[f32]| softmax(level, x, columns)) as &dyn Fn(&[f32]) -> Vec<f32>),
                    (of_gelu[at], &|x: &[f32]| gelu(level, x)),
                ] {
                    let slope = (value(of, at, STEP) - value(of, at, -STEP)) / f64::from(2.0 * STEP);
                    prop_assert!((f64::from(found) - slope).abs() < 2e-3, "{found} of {slope}");
                }
            }
        }
    }

    #[test]
    fn many_rows_are_those_of_one_by_one() {
        let input = numbers(5, 40_000);
        let one_by_one: Vec<f32> =
            input.chunks(100).flat_map(|row| softmax(Level::best(), row, 100)).collect();
        assert_eq!(bits(&softmax(Level::best(), &input, 100)), bits(&one_by_one));
        assert!(softmax(Level::best(), &[], 3).is_empty());
        let single: Vec<f32> = input.iter().flat_map(|x| gelu(Level::best(), &[*x])).collect();
        assert_eq!(bits(&gelu(Level::best(), &input)), bits(&single));
    }
}
