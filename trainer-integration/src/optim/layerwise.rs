//! Steps in proportion to the length of each parameter tensor: LAMB (You et al., "Large batch optimization for deep
//! learning: training BERT in 76 minutes", ICLR 2020, arXiv:1904.00962) and LARS (You, Gitman and Ginsburg, "Large
//! batch training of convolutional networks", 2017, arXiv:1708.03888). Pure: who owns which numbers, and how they
//! travel, is the engine's.
//!
//! Both multiply a tensor's step by its trust ratio, a quotient of two lengths. Their squares are added in double
//! precision, piece by piece in order. A piece lies in one [`CHUNK`], which one rank always owns. So the
//! bits depend neither on threads, nor on ranks, nor on slices.

use std::ops::Range;

use rayon::prelude::*;

use super::{CHUNK, Moments, Optimizer, power};

/// The numbers of a parameter that lie in `within`, cut at multiples of [`CHUNK`].
pub fn pieces(parameter: &Range<usize>, within: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let (start, end) = (parameter.start.max(within.start), parameter.end.min(within.end));
    let mut at = start;
    std::iter::from_fn(move || {
        let piece = at..((at / CHUNK + 1) * CHUNK).min(end);
        at = piece.end;
        (piece.start < piece.end).then_some(piece)
    })
}

/// Consecutive numbers of one parameter, at most a [`CHUNK`] of them.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Before the step.
    pub weights: &'a [f32],
    /// How much of the weight decay applies.
    pub decay: f32,
    /// The place of the first one in the gradient, and in the moments.
    pub at: usize,
}

/// The two sums of squares of a piece: of its weights, and of the numbers that they are compared with.
pub type Squares = [f64; 2];

impl Moments {
    /// The sums of each piece, in their order. Nothing is moved.
    ///
    /// # Panics
    /// If a piece is longer than a [`CHUNK`], or lies outside the gradient; if the optimizer has no trust ratio.
    pub fn squares(
        &self,
        optimizer: Optimizer,
        pieces: &[Piece<'_>],
        gradient: &[f32],
        factor: f32,
    ) -> Vec<Squares> {
        let of = |piece: &Piece<'_>| {
            let Piece { weights, decay, at } = *piece;
            let range = at..at + weights.len();
            let gradient = &gradient[range.clone()];
            let weights_squared = weights.iter().map(|&weight| square(weight)).sum();
            let compared = match optimizer {
                Optimizer::Lars { .. } => gradient.iter().map(|&number| square(number * factor)).sum(),
                Optimizer::Lamb { .. } => {
                    let lamb = Lamb::of(optimizer, decay, self.steps + 1);
                    let (first, second) = (remembered(&self.first, &range), remembered(&self.second, &range));
                    let numbers = weights.iter().zip(gradient).zip(first.iter().zip(second));
                    numbers
                        .map(|((&weight, &gradient), (&first, &second))| {
                            let (first, second) = lamb.moments(gradient * factor, first, second);
                            square(lamb.step(weight, first, second))
                        })
                        .sum()
                }
                _ => unreachable!("{optimizer:?} has no trust ratio"),
            };
            [weights_squared, compared]
        };
        pieces.par_iter().with_min_len(16).map(of).collect()
    }
}

/// Moments before the first update are zeros.
fn remembered<'a>(moments: &'a [f32], range: &Range<usize>) -> &'a [f32] {
    static ZEROS: [f32; CHUNK] = [0.0; CHUNK];
    if moments.is_empty() { &ZEROS[..range.len()] } else { &moments[range.clone()] }
}

fn square(number: f32) -> f64 {
    f64::from(number) * f64::from(number)
}

impl Optimizer {
    /// Whether steps are in proportion to the length of their parameter.
    pub fn has_trust_ratio(self) -> bool {
        matches!(self, Optimizer::Lamb { .. } | Optimizer::Lars { .. })
    }

    /// Whether the ratio applies to a parameter of this shape. Biases and the parameters of normalisation have one
    /// dimension: they are excluded from it, and from weight decay, as in the reference implementations of both papers.
    pub fn adapts(self, shape: &[usize]) -> bool {
        self.has_trust_ratio() && shape.len() > 1
    }

    /// The factor of a parameter's step, by the sums of all its pieces in order: 1 where one of the lengths is zero, or
    /// no number.
    pub fn trust_ratio(self, pieces: &[Squares], decay: f32) -> f32 {
        let length = |which: usize| pieces.iter().map(|squares| squares[which]).sum::<f64>().sqrt();
        let (weights, compared) = (length(0), length(1));
        if !(weights > 0.0 && compared > 0.0) {
            return 1.0;
        }
        match self {
            Optimizer::Lars { trust_coefficient, weight_decay, .. } => {
                let decay = f64::from(decay * weight_decay);
                (f64::from(trust_coefficient) * weights / (compared + decay * weights)) as f32
            }
            Optimizer::Lamb { .. } => (weights / compared) as f32,
            _ => 1.0,
        }
    }
}

/// LAMB's numbers for one parameter and update.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lamb {
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    decay: f32,
    correct1: f32,
    correct2: f32,
}

impl Lamb {
    /// Of update number `steps`, from 1.
    pub(super) fn of(optimizer: Optimizer, decay: f32, steps: u32) -> Lamb {
        let Optimizer::Lamb { beta1, beta2, epsilon, weight_decay } = optimizer else {
            unreachable!("{optimizer:?} is not LAMB");
        };
        let correct = |beta| (1.0 - power(beta, steps)) as f32;
        let (correct1, correct2) = (correct(beta1), correct(beta2));
        Lamb { beta1, beta2, epsilon, decay: decay * weight_decay, correct1, correct2 }
    }

    /// After this gradient.
    pub(super) fn moments(&self, gradient: f32, first: f32, second: f32) -> (f32, f32) {
        let &Lamb { beta1, beta2, .. } = self;
        (beta1 * first + (1.0 - beta1) * gradient, beta2 * second + (1.0 - beta2) * gradient * gradient)
    }

    /// The step without rate and ratio, of the weight before it and the moments after the gradient.
    pub(super) fn step(&self, weight: f32, first: f32, second: f32) -> f32 {
        let adam = (first / self.correct1) / ((second / self.correct2).sqrt() + self.epsilon);
        adam + self.decay * weight
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::optim::Stretch;

    fn numbers(count: usize, seed: u32, size: f32) -> Vec<f32> {
        let number = |at: usize| ((at as u32 + 1).wrapping_mul(seed | 1) as f32 / 1e6).sin() * size;
        (0..count).map(number).collect()
    }

    /// A model of a matrix and a bias, as the engine moves it: weights and moments after these updates.
    fn after(optimizer: Optimizer, gradients: &[Vec<f32>], matrix: usize, rate: f32) -> Vec<f32> {
        let count = gradients[0].len();
        let mut weights = numbers(count, 77, 0.5);
        let mut moments = Moments::default();
        for gradient in gradients {
            let of_matrix: Vec<_> = pieces(&(0..matrix), &(0..count)).collect();
            let of_matrix: Vec<_> = of_matrix
                .into_iter()
                .map(|range| Piece { weights: &weights[range.clone()], decay: 1.0, at: range.start })
                .collect();
            let squares = moments.squares(optimizer, &of_matrix, gradient, 0.5);
            let trust = optimizer.trust_ratio(&squares, 1.0);
            let (decayed, kept) = weights.split_at_mut(matrix);
            let stretches = vec![
                Stretch { weights: decayed, decay: 1.0, trust },
                Stretch { weights: kept, decay: 0.0, trust: 1.0 },
            ];
            moments.update(optimizer, rate, stretches, gradient, 0.5);
        }
        weights
    }

    fn length(numbers: &[f64]) -> f64 {
        numbers.iter().map(|number| number * number).sum::<f64>().sqrt()
    }

    fn assert_close(found: &[f32], expected: &[f64]) {
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!(
                (f64::from(*found) - expected).abs() < 2e-5,
                "number {at}: {found} instead of {expected}"
            );
        }
    }

    fn gradients(count: usize) -> Vec<Vec<f32>> {
        (0..4).map(|step| numbers(count, 1_000 + step * 7, 0.3)).collect()
    }

    const MATRIX: usize = 2_500;
    const COUNT: usize = MATRIX + 40;

    /// Algorithm 2 of the paper, in double precision, with the identity for its function of lengths.
    #[test]
    fn lamb_moves_each_tensor_by_the_formula_of_its_paper() {
        let (beta1, beta2, epsilon, decay, rate) = (0.9, 0.999, 1e-6, 0.1, 0.02);
        let mut weights: Vec<f64> = numbers(COUNT, 77, 0.5).into_iter().map(f64::from).collect();
        let (mut first, mut second) = (vec![0.0; COUNT], vec![0.0; COUNT]);
        for (step, gradient) in gradients(COUNT).iter().enumerate() {
            let steps = step as i32 + 1;
            let mut moves = vec![0.0; COUNT];
            for at in 0..COUNT {
                let gradient = f64::from(gradient[at]) * 0.5;
                first[at] = beta1 * first[at] + (1.0 - beta1) * gradient;
                second[at] = beta2 * second[at] + (1.0 - beta2) * gradient * gradient;
                let first = first[at] / (1.0 - beta1.powi(steps));
                let second: f64 = second[at] / (1.0 - beta2.powi(steps));
                let decay = if at < MATRIX { decay } else { 0.0 };
                moves[at] = first / (second.sqrt() + epsilon) + decay * weights[at];
            }
            let ratio = length(&weights[..MATRIX]) / length(&moves[..MATRIX]);
            for at in 0..COUNT {
                weights[at] -= rate * if at < MATRIX { ratio } else { 1.0 } * moves[at];
            }
        }
        let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.1 };
        assert_close(&after(lamb, &gradients(COUNT), MATRIX, 0.02), &weights);
    }

    /// Algorithm 1 of the paper, in double precision.
    #[test]
    fn lars_moves_each_tensor_by_the_formula_of_its_paper() {
        let (momentum, trust, decay, rate) = (0.9, 0.02, 0.1, 0.5);
        let mut weights: Vec<f64> = numbers(COUNT, 77, 0.5).into_iter().map(f64::from).collect();
        let mut velocity = vec![0.0; COUNT];
        for gradient in gradients(COUNT) {
            let gradient: Vec<f64> = gradient.iter().map(|number| f64::from(*number) * 0.5).collect();
            let of_weights = length(&weights[..MATRIX]);
            let local = trust * of_weights / (length(&gradient[..MATRIX]) + decay * of_weights);
            for at in 0..COUNT {
                let (local, decay) = if at < MATRIX { (local, decay) } else { (1.0, 0.0) };
                velocity[at] = momentum * velocity[at] + rate * local * (gradient[at] + decay * weights[at]);
                weights[at] -= velocity[at];
            }
        }
        let lars = Optimizer::Lars { momentum: 0.9, trust_coefficient: 0.02, weight_decay: 0.1 };
        assert_close(&after(lars, &gradients(COUNT), MATRIX, 0.5), &weights);
    }

    #[test]
    fn a_length_of_nothing_or_of_no_number_leaves_the_rate_as_it_is() {
        for optimizer in [Optimizer::lamb(0.01), Optimizer::lars(5e-4)] {
            for squares in [[0.0, 4.0], [4.0, 0.0], [f64::NAN, 1.0], [1.0, f64::NAN]] {
                assert_eq!(optimizer.trust_ratio(&[squares], 1.0), 1.0, "{optimizer:?} {squares:?}");
            }
            assert!(optimizer.adapts(&[3, 1]) && !optimizer.adapts(&[3]));
        }
        assert_eq!(Optimizer::lamb(0.01).trust_ratio(&[[9.0, 0.0], [7.0, 4.0]], 1.0), 2.0);
        assert!(!Optimizer::sgd(0.0).adapts(&[3, 1]));
    }

    proptest! {
        #[test]
        fn the_pieces_of_slices_are_those_of_the_whole(
            lengths in prop::collection::vec(0usize..3_000, 1..6), cuts in prop::collection::vec(0usize..12, 0..4)
        ) {
            let all: usize = lengths.iter().sum();
            let mut start = 0;
            let parameters: Vec<Range<usize>> = lengths.iter().map(|length| {
                start += length;
                start - length..start
            }).collect();
            let in_slice = |slice: Range<usize>| -> Vec<Range<usize>> {
                parameters.iter().flat_map(|parameter| pieces(parameter, &slice)).collect()
            };
            let mut bounds: Vec<usize> = cuts.iter().map(|cut| (cut * CHUNK).min(all)).chain([0, all]).collect();
            bounds.sort_unstable();
            let slices = bounds.windows(2).flat_map(|pair| in_slice(pair[0]..pair[1]));
            let slices: Vec<Range<usize>> = slices.collect();
            prop_assert_eq!(&slices, &in_slice(0..all));
            prop_assert!(slices.iter().all(|piece| piece.start / CHUNK == (piece.end - 1) / CHUNK));
            prop_assert_eq!(slices.iter().map(ExactSizeIterator::len).sum::<usize>(), all);
        }
    }
}
