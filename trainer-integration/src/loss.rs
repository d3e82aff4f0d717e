//! What a model is trained for: losses, with their gradients.

mod soft;

use std::marker::PhantomData;
use std::ops::Range;

use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use rayon::prelude::*;

use crate::arithmetic::cross_entropy_there;
use crate::flat_block::to_numbers;
use crate::tensor_tree::{Part, TensorTree, from_parts, parts_of};

pub use soft::SoftCrossEntropy;
pub(crate) use soft::largest;

/// The label of a row that has no target: it has no loss, no gradient, and is not counted. PyTorch's `ignore_index`.
pub const IGNORED: u32 = u32::MAX;

/// Rows whose losses are added before those of others: a fixed number, so that the bits depend on no threads.
const STRETCH: usize = 64;

/// The measures of a micro-batch's output.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Of its samples.
    pub losses: Losses,
    /// Samples.
    pub samples: u64,
    /// Of the sum of the losses with respect to each tensor of the output, flat; `None` where it has no part in the loss.
    pub gradient: Vec<Option<Tensor<1>>>,
}

/// The losses of a micro-batch's samples.
#[derive(Clone, Debug)]
pub enum Losses {
    /// On the host.
    Here {
        /// Of all samples.
        sum: f64,
        /// Samples whose largest output (the first of equals) is the right one; 0 where nothing is right or wrong.
        correct: u64,
    },
    /// The same two numbers on a device, `[2]`: who reads them waits for it.
    There(Box<Tensor<1>>),
}

impl Losses {
    /// The sum, and how many samples are answered rightly. Waits for the device that has them.
    pub fn read(&self) -> (f64, u64) {
        match self {
            Losses::Here { sum, correct } => (*sum, *correct),
            Losses::There(numbers) => Losses::of(&to_numbers((**numbers).clone())),
        }
    }

    /// By the two numbers.
    pub(crate) fn of(numbers: &[f32]) -> (f64, u64) {
        (f64::from(numbers[0]), numbers[1] as u64)
    }
}

/// The objective of an output.
///
/// The gradient is that of the *sum* over samples; the engine divides by the samples of the whole step, so that every sample weighs the same
/// whatever micro-batch it is in.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use shardd_trainer::{CrossEntropy, Objective};
///
/// let logits = Tensor::<2>::from_floats([[2.0, 0.0], [3.0, 1.0]], &Device::flex());
/// let measured = CrossEntropy.measure(logits, &vec![0, 1]);
/// let (sum, correct) = measured.losses.read();
/// assert_eq!((measured.samples, correct), (2, 1));
/// assert!(sum > 2.0);
/// ```
pub trait Objective<Output: TensorTree> {
    /// The target of the output.
    type Target;

    /// The loss of an output, which is on a device and in no graph.
    ///
    /// # Panics
    /// If output and target do not fit.
    fn measure(&self, output: Output, target: &Self::Target) -> Measured;

    /// The part of a target for some of the rows of an input, of which there are `of`: micro-batches for
    /// which a device has no memory are then [cut](crate::engine::Engine::most_rows). Default `None`: rows
    /// are not to be measured apart from each other.
    fn of_rows(&self, _target: &Self::Target, _rows: Range<usize>, _of: usize) -> Option<Self::Target> {
        None
    }
}

/// Cross-entropy of logits `[rows, classes]` against the classes of the rows; a row is a sample, unless its class is
/// [`IGNORED`]. On the CPU it is computed in double precision and
/// in order, so that its bits depend on nothing else. On other devices logits stay there, in 32 bits, and so do the losses until the step
/// ends: two numbers of a micro-batch come to the host.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use shardd_trainer::{CrossEntropy, Objective};
///
/// let undecided = Tensor::<2>::zeros([1, 4], &Device::flex());
/// let (loss, _) = CrossEntropy.measure(undecided, &vec![3]).losses.read();
/// assert!((loss - 4_f64.ln()).abs() < 1e-9);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy;

impl Objective<Tensor<2>> for CrossEntropy {
    type Target = Vec<u32>;

    fn measure(&self, output: Tensor<2>, labels: &Vec<u32>) -> Measured {
        let (device, [_, classes]) = (output.device(), output.dims());
        if device != Device::flex() {
            return cross_entropy_on_device(output, labels);
        }
        let Loss { sum, correct, gradient } = cross_entropy(&to_numbers(output), labels, classes);
        let count = [gradient.len()];
        let gradient = Tensor::from_data(TensorData::new(gradient, count), &device);
        let losses = Losses::Here { sum, correct };
        Measured { losses, samples: counted(labels), gradient: vec![Some(gradient)] }
    }

    /// Of sequences, each row has as many labels as it has tokens.
    fn of_rows(&self, labels: &Vec<u32>, rows: Range<usize>, of: usize) -> Option<Vec<u32>> {
        let each = labels.len() / of.max(1);
        Some(labels[rows.start * each..rows.end * each].to_vec())
    }
}

/// How many labels are not [`IGNORED`].
pub(crate) fn counted(labels: &[u32]) -> u64 {
    labels.iter().filter(|&&label| label != IGNORED).count() as u64
}

/// The same where the logits are. No gradient is added to another there: each is computed from one logit of its row.
fn cross_entropy_on_device(logits: Tensor<2>, labels: &[u32]) -> Measured {
    let (device, [rows, classes]) = (logits.device(), logits.dims());
    assert_eq!(rows, labels.len(), "a row of logits for every label");
    let fits = |&label: &u32| label == IGNORED || (label as usize) < classes;
    assert!(labels.iter().all(fits), "a label is a class");
    let samples = counted(labels);
    let labels: Vec<i32> = labels.iter().map(|&label| label as i32).collect();
    let labels = Tensor::<1, Int>::from_data(TensorData::new(labels, [rows]), (&device, DType::I32));
    let (gradient, sums) = cross_entropy_there(logits, labels);
    Measured { losses: Losses::There(Box::new(sums)), samples, gradient: vec![Some(gradient)] }
}

/// Any loss that tensors can express: a function from an output and a target to one loss for each sample, `[samples]`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use shardd_trainer::{Objective, SampleLosses};
///
/// let squared = SampleLosses::new(|output: Tensor<1>, target: &Tensor<1>| {
///     let difference = output - target.clone();
///     difference.clone() * difference
/// });
/// let tensor = |values| Tensor::<1>::from_floats(values, &Device::flex());
/// let measured = squared.measure(tensor([1.0, 4.0]), &tensor([1.0, 2.0]));
/// assert_eq!((measured.samples, measured.losses.read().0), (2, 4.0));
/// ```
pub struct SampleLosses<F, Target>(F, PhantomData<fn(&Target)>);

impl<F, Target> SampleLosses<F, Target> {
    /// By this function.
    pub fn new(losses: F) -> SampleLosses<F, Target> {
        SampleLosses(losses, PhantomData)
    }
}

impl<Output: TensorTree, Target, F: Fn(Output, &Target) -> Tensor<1>> Objective<Output>
    for SampleLosses<F, Target>
{
    type Target = Target;

    fn measure(&self, output: Output, target: &Target) -> Measured {
        let leaves: Vec<Part> = parts_of(output).into_iter().map(|part| part.leaf(true)).collect();
        let losses = (self.0)(from_parts(leaves.clone()), target);
        let samples = losses.dims()[0] as u64;
        let found = if losses.device().inner() == Device::flex() {
            let sum = to_numbers(losses.clone()).iter().map(|&loss| f64::from(loss)).sum();
            Losses::Here { sum, correct: 0 }
        } else {
            let sum = losses.clone().inner().cast(FloatDType::F32).sum();
            Losses::There(Box::new(Tensor::cat(vec![sum.clone(), sum.zeros_like()], 0)))
        };
        let mut gradients = losses.is_tracked().then(|| losses.sum().backward());
        let gradient = |leaf: &Part| gradients.as_mut().and_then(|found| leaf.float()?.grad_remove(found));
        Measured { losses: found, samples, gradient: leaves.iter().map(gradient).collect() }
    }
}

/// The loss of some rows of logits, on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// Sum over the rows.
    pub sum: f64,
    /// Rows whose largest logit (the first of equals) is the label's.
    pub correct: u64,
    /// Of `sum` with respect to each logit.
    pub gradient: Vec<f32>,
}

/// The loss of `labels.len()` rows of `classes` logits, without those whose label is [`IGNORED`].
///
/// # Panics
/// If lengths do not match or a label is not a class.
///
/// ```
/// use shardd_trainer::loss::cross_entropy;
///
/// let loss = cross_entropy(&[0.0, 0.0, 5.0, 0.0], &[0, 0], 2);
/// assert_eq!(loss.correct, 2);
/// assert!(loss.sum < 0.7);
/// ```
pub fn cross_entropy(logits: &[f32], labels: &[u32], classes: usize) -> Loss {
    assert_eq!(logits.len(), labels.len() * classes, "a row of logits for every label");
    let mut gradient = vec![0.0; logits.len()];
    let stretches: Vec<(f64, u64)> = gradient
        .par_chunks_mut(STRETCH * classes)
        .zip(logits.par_chunks(STRETCH * classes))
        .zip(labels.par_chunks(STRETCH))
        .map(|((gradient, logits), labels)| cross_entropy_of_stretch(gradient, logits, labels, classes))
        .collect();
    let sum = stretches.iter().map(|(sum, _)| sum).sum();
    let correct = stretches.iter().map(|(_, correct)| correct).sum();
    Loss { sum, correct, gradient }
}

/// Writes the gradient of some rows; their losses and how many are answered rightly.
fn cross_entropy_of_stretch(
    gradient: &mut [f32],
    logits: &[f32],
    labels: &[u32],
    classes: usize,
) -> (f64, u64) {
    let (mut sum, mut correct) = (0.0, 0);
    let mut shares = vec![0.0f64; classes];
    let rows = logits.chunks_exact(classes).zip(gradient.chunks_exact_mut(classes));
    for ((row, gradient), &label) in rows.zip(labels).filter(|(_, label)| **label != IGNORED) {
        let label = label as usize;
        let (largest, top) =
            row.iter().enumerate().fold((0, f32::NEG_INFINITY), |(at, top), (index, &logit)| {
                if logit > top { (index, logit) } else { (at, top) }
            });
        let shifted = |logit: f32| f64::from(logit) - f64::from(top);
        for (share, &logit) in shares.iter_mut().zip(row) {
            *share = libm::exp(shifted(logit));
        }
        let total: f64 = shares.iter().sum();
        sum += libm::log(total) - shifted(row[label]);
        correct += u64::from(largest == label);
        for (gradient, share) in gradient.iter_mut().zip(&shares) {
            *gradient = (share / total) as f32;
        }
        gradient[label] = (shares[label] / total - 1.0) as f32;
    }
    (sum, correct)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_logits_lose_the_logarithm_of_the_classes() {
        let loss = cross_entropy(&[1.0; 8], &[0, 3], 4);
        assert!((loss.sum - 2.0 * 4f64.ln()).abs() < 1e-12);
        assert_eq!(loss.correct, 1, "the first of equals is the answer");
        assert_eq!(loss.gradient[..4], [-0.75, 0.25, 0.25, 0.25]);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let loss = cross_entropy(&[1e30, -1e30], &[0], 2);
        assert_eq!((loss.sum, loss.correct), (0.0, 1));
    }

    #[test]
    fn a_row_without_a_target_is_left_out() {
        let logits = [0.5, 2.0, -1.0, 0.25];
        let (with, alone) = (cross_entropy(&logits, &[IGNORED, 1], 2), cross_entropy(&logits[2..], &[1], 2));
        assert_eq!((with.sum, with.correct), (alone.sum, alone.correct));
        assert_eq!(with.gradient, [&[0.0, 0.0], &alone.gradient[..]].concat());
        let logits = Tensor::<2>::from_floats([[0.5, 2.0], [-1.0, 0.25]], &Device::flex());
        assert_eq!(CrossEntropy.measure(logits, &vec![IGNORED, 1]).samples, 1);
    }

    #[test]
    fn a_logit_that_is_no_number_shows_in_the_loss() {
        assert!(!cross_entropy(&[f32::NAN, 0.0], &[0], 2).sum.is_finite());
    }

    proptest! {
        #[test]
        fn the_gradient_is_the_slope(logits in prop::collection::vec(-3.0f32..3.0, 6), label in 0..3u32, at in 0..6usize) {
            let labels = [label, 2 - label];
            let slope = {
                const STEP: f32 = 1e-2;
                let moved = |by: f32| {
                    let mut moved = logits.clone();
                    moved[at] += by;
                    cross_entropy(&moved, &labels, 3).sum
                };
                (moved(STEP) - moved(-STEP)) / f64::from(2.0 * STEP)
            };
            let gradient = cross_entropy(&logits, &labels, 3).gradient[at];
            prop_assert!((f64::from(gradient) - slope).abs() < 1e-3);
        }
    }
}
