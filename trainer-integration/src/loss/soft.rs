//! Cross-entropy against a share of each class, for samples that are mixed of several.

use std::ops::Range;

use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use rayon::prelude::*;

use super::{Loss, Losses, Measured, Objective, STRETCH};
use crate::flat_block::to_numbers;

/// Cross-entropy of logits `[rows, classes]` against the share of each class in each row, `rows * classes` numbers whose sum in a row
/// is 1. A row is a sample; its answer is right if its largest logit is that of the largest share. On the CPU it is computed in double
/// precision and in order; on other devices in 32 bits.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use shardd_trainer::{CrossEntropy, Objective, SoftCrossEntropy};
///
/// let logits = || Tensor::<2>::from_floats([[2.0, 0.0, 1.0]], &Device::flex());
/// let of = |class: u32| CrossEntropy.measure(logits(), &vec![class]).losses.read().0;
/// let (mixed, correct) = SoftCrossEntropy.measure(logits(), &vec![0.75, 0.25, 0.0]).losses.read();
/// assert!((mixed - (0.75 * of(0) + 0.25 * of(1))).abs() < 1e-9);
/// assert_eq!(correct, 1);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftCrossEntropy;

impl Objective<Tensor<2>> for SoftCrossEntropy {
    type Target = Vec<f32>;

    fn measure(&self, output: Tensor<2>, shares: &Vec<f32>) -> Measured {
        let (device, [rows, classes]) = (output.device(), output.dims());
        assert_eq!(shares.len(), rows * classes, "a share for every logit");
        if device != Device::flex() {
            return measure_there(output, shares);
        }
        let Loss { sum, correct, gradient } = soft_cross_entropy(&to_numbers(output), shares, classes);
        let count = [gradient.len()];
        let gradient = Tensor::from_data(TensorData::new(gradient, count), &device);
        Measured {
            losses: Losses::Here { sum, correct },
            samples: rows as u64,
            gradient: vec![Some(gradient)],
        }
    }

    fn of_rows(&self, shares: &Vec<f32>, rows: Range<usize>, of: usize) -> Option<Vec<f32>> {
        let each = shares.len() / of.max(1);
        Some(shares[rows.start * each..rows.end * each].to_vec())
    }
}

/// The same where the logits are.
fn measure_there(logits: Tensor<2>, shares: &[f32]) -> Measured {
    let (device, [rows, classes]) = (logits.device(), logits.dims());
    let shares = TensorData::new(shares.to_vec(), [rows, classes]);
    let shares = Tensor::<2>::from_data(shares, (&device, DType::F32));
    let logits = logits.cast(FloatDType::F32);
    let logs = log_softmax(logits.clone(), 1);
    let right = logits.argmax(1).equal(shares.clone().argmax(1)).int().sum().float().cast(FloatDType::F32);
    let sum = (logs.clone() * shares.clone()).sum().neg();
    let gradient = (logs.exp() - shares).reshape([rows * classes]);
    let losses = Losses::There(Box::new(Tensor::cat(vec![sum, right], 0)));
    Measured { losses, samples: rows as u64, gradient: vec![Some(gradient)] }
}

/// The loss of rows of `classes` logits on the host.
fn soft_cross_entropy(logits: &[f32], shares: &[f32], classes: usize) -> Loss {
    let mut gradient = vec![0.0; logits.len()];
    let stretches: Vec<(f64, u64)> = gradient
        .par_chunks_mut(STRETCH * classes)
        .zip(logits.par_chunks(STRETCH * classes))
        .zip(shares.par_chunks(STRETCH * classes))
        .map(|((gradient, logits), shares)| of_stretch(gradient, logits, shares, classes))
        .collect();
    let sum = stretches.iter().map(|(sum, _)| sum).sum();
    let correct = stretches.iter().map(|(_, correct)| correct).sum();
    Loss { sum, correct, gradient }
}

/// Writes the gradient of some rows; their losses and how many are answered rightly.
fn of_stretch(gradient: &mut [f32], logits: &[f32], shares: &[f32], classes: usize) -> (f64, u64) {
    let (mut sum, mut correct) = (0.0, 0);
    let mut powers = vec![0.0f64; classes];
    let rows = logits.chunks_exact(classes).zip(gradient.chunks_exact_mut(classes));
    for ((row, gradient), shares) in rows.zip(shares.chunks_exact(classes)) {
        let answer = largest(row);
        let shifted = |logit: f32| f64::from(logit) - f64::from(row[answer]);
        powers.iter_mut().zip(row).for_each(|(power, &logit)| *power = libm::exp(shifted(logit)));
        let total: f64 = powers.iter().sum();
        for ((gradient, power), (&share, &logit)) in
            gradient.iter_mut().zip(&powers).zip(shares.iter().zip(row))
        {
            if share != 0.0 {
                sum += f64::from(share) * (libm::log(total) - shifted(logit));
            }
            *gradient = (power / total - f64::from(share)) as f32;
        }
        correct += u64::from(answer == largest(shares));
    }
    (sum, correct)
}

/// The index of the largest number, the first of equals.
pub(crate) fn largest(numbers: &[f32]) -> usize {
    (1..numbers.len()).fold(0, |best, index| if numbers[index] > numbers[best] { index } else { best })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::loss::cross_entropy;

    proptest! {
        #[test]
        fn shares_weigh_the_losses_and_gradients_of_their_classes(
            logits in prop::collection::vec(-9.0f32..9.0, 12), share in 0.0f32..1.0, one in 0..4u32, other in 0..4u32,
        ) {
            let shares: Vec<f32> = (0..12).map(|at| {
                let class = at % 4;
                f32::from(u8::from(class == one)) * share + f32::from(u8::from(class == other)) * (1.0 - share)
            }).collect();
            let mixed = soft_cross_entropy(&logits, &shares, 4);
            let [one, other] = [one, other].map(|class| cross_entropy(&logits, &[class; 3], 4));
            let (first, second) = (f64::from(share), f64::from(1.0 - share));
            prop_assert!((mixed.sum - (first * one.sum + second * other.sum)).abs() < 1e-5);
            for (gradient, (one, other)) in mixed.gradient.iter().zip(one.gradient.iter().zip(&other.gradient)) {
                prop_assert!((gradient - (share * one + (1.0 - share) * other)).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn a_logit_that_is_no_number_shows_in_the_loss() {
        assert!(!soft_cross_entropy(&[f32::NAN, 0.0], &[0.5, 0.5], 2).sum.is_finite());
    }

    #[test]
    fn rows_are_cut_with_their_shares() {
        let shares = vec![1.0, 0.0, 0.5, 0.5, 0.0, 1.0];
        assert_eq!(SoftCrossEntropy.of_rows(&shares, 1..3, 3), Some(vec![0.5, 0.5, 0.0, 1.0]));
    }
}
