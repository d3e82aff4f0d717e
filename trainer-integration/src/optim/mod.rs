//! Optimizers on flat buffers, element by element and therefore in any order; the learning rate over time
//! ([`schedule`]), the length of gradients ([`clip`]), and that of each parameter ([`layerwise`]).

pub mod clip;
pub mod layerwise;
pub mod plateau;
pub mod schedule;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

pub use clip::{Norm, squares_of};
use layerwise::Lamb;
pub use plateau::{Plateau, ReduceOnPlateau};
pub use schedule::{LrDecay, Scaling, Schedule};

/// Numbers of a block that one rank always owns together, so that sums over them have the same bits for any number of ranks.
pub const CHUNK: usize = 1 << 10;

/// Numbers that a thread moves at a time. They are moved one by one, so the bits do not depend on it.
const STRETCH: usize = 1 << 14;

/// Which optimizer, with its constants.
///
/// ```
/// use shardd_trainer::Optimizer;
///
/// match Optimizer::adamw(0.01) {
///     Optimizer::AdamW { beta1, weight_decay, .. } => assert_eq!((beta1, weight_decay), (0.9, 0.01)),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "name")]
pub enum Optimizer {
    /// Stochastic gradient descent: v = momentum v + g + decay w, w -= rate v.
    Sgd {
        /// Share of the last velocity that is kept.
        momentum: f32,
        /// Pull of decaying parameters towards zero.
        weight_decay: f32,
    },
    /// Adam (Kingma and Ba, ICLR 2015), weight decay added to the gradient.
    Adam {
        /// Memory of the first moment.
        beta1: f32,
        /// Memory of the second moment.
        beta2: f32,
        /// Keeps the division finite.
        epsilon: f32,
        /// Pull of decaying parameters towards zero.
        weight_decay: f32,
    },
    /// Adam with its weight decay apart from the gradient (Loshchilov and Hutter, ICLR 2019): w -= rate decay w before the step.
    AdamW {
        /// Memory of the first moment.
        beta1: f32,
        /// Memory of the second moment.
        beta2: f32,
        /// Keeps the division finite.
        epsilon: f32,
        /// Pull of decaying parameters towards zero.
        weight_decay: f32,
    },
    /// Steps of one size, by the sign of the momentum (Chen et al., "Symbolic discovery of optimization algorithms", 2023):
    /// w -= rate (sign(beta1 m + (1 - beta1) g) + decay w), then m = beta2 m + (1 - beta2) g. Wants a rate 3 to 10 times
    /// smaller than Adam's, and as much more decay.
    Lion {
        /// Share of the momentum in a step.
        beta1: f32,
        /// Memory of the momentum.
        beta2: f32,
        /// Pull of decaying parameters towards zero.
        weight_decay: f32,
    },
    /// AdamW's step, brought to the length of its parameter (You et al., ICLR 2020, arXiv:1904.00962):
    /// u = m / (sqrt(v) + epsilon) + decay w with corrected moments, w -= rate |w| / |u| u. The paper's function of
    /// lengths is the identity. See [`layerwise`] for the parameters that are excluded.
    Lamb {
        /// Memory of the first moment.
        beta1: f32,
        /// Memory of the second moment.
        beta2: f32,
        /// Keeps the division finite.
        epsilon: f32,
        /// Pull of decaying parameters towards zero.
        weight_decay: f32,
    },
    /// Momentum of steps in proportion to their parameter (You, Gitman and Ginsburg, 2017, arXiv:1708.03888):
    /// v = momentum v + rate trust |w| / (|g| + decay |w|) (g + decay w), w -= v. The rate is part of the velocity.
    /// See [`layerwise`] for the parameters that are excluded.
    Lars {
        /// Share of the last velocity that is kept.
        momentum: f32,
        /// Length of a step, at rate 1, as a share of its parameter's length.
        trust_coefficient: f32,
        /// Pull of decaying parameters towards zero.
        weight_decay: f32,
    },
}

impl Optimizer {
    /// Gradient descent with momentum 0.9.
    pub fn sgd(weight_decay: f32) -> Optimizer {
        Optimizer::Sgd { momentum: 0.9, weight_decay }
    }

    /// Adam with its authors' constants.
    pub fn adam(weight_decay: f32) -> Optimizer {
        Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay }
    }

    /// AdamW with Adam's constants.
    pub fn adamw(weight_decay: f32) -> Optimizer {
        Optimizer::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay }
    }

    /// Lion with its authors' constants.
    pub fn lion(weight_decay: f32) -> Optimizer {
        Optimizer::Lion { beta1: 0.9, beta2: 0.99, weight_decay }
    }

    /// LAMB with its authors' constants.
    pub fn lamb(weight_decay: f32) -> Optimizer {
        Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay }
    }

    /// LARS with its authors' constants.
    pub fn lars(weight_decay: f32) -> Optimizer {
        Optimizer::Lars { momentum: 0.9, trust_coefficient: 1e-3, weight_decay }
    }
}

/// How a step's gradient moves the weights.
///
/// ```
/// use shardd_trainer::Optimizer;
/// use shardd_trainer::optim::Rule;
///
/// let rule = Rule { clip: Some(1.0), ..Optimizer::sgd(5e-4).into() };
/// assert_eq!(Rule { clip: None, ..rule }, Rule::from(Optimizer::sgd(5e-4)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// By which rule of each number.
    pub optimizer: Optimizer,
    /// A longer gradient, all blocks together, is brought to this length first.
    pub clip: Option<f32>,
}

impl From<Optimizer> for Rule {
    /// Without clipping.
    fn from(optimizer: Optimizer) -> Rule {
        Rule { optimizer, clip: None }
    }
}

/// Weights of one parameter that follow each other, and are moved alike.
#[derive(Debug)]
pub struct Stretch<'a> {
    /// The weights.
    pub weights: &'a mut [f32],
    /// How much of the weight decay applies.
    pub decay: f32,
    /// The parameter's [trust ratio](Optimizer::trust_ratio). Other optimizers take no notice of it.
    pub trust: f32,
}

/// An optimizer's state of one block.
#[derive(Clone, Debug, Default)]
pub struct Moments {
    /// By parameter; empty before the first update.
    pub(crate) first: Vec<f32>,
    /// The same, of an optimizer that has two.
    pub(crate) second: Vec<f32>,
    /// Updates so far.
    pub(crate) steps: u32,
}

impl Moments {
    /// Moves weights against `gradient` multiplied by `factor`. The weights are stretches that follow each other.
    ///
    /// # Panics
    /// If there are not as many of them as numbers in the gradient.
    pub fn update(
        &mut self,
        optimizer: Optimizer,
        rate: f32,
        stretches: Vec<Stretch<'_>>,
        gradient: &[f32],
        factor: f32,
    ) {
        let count = stretches.iter().map(|stretch| stretch.weights.len()).sum();
        assert_eq!(gradient.len(), count, "one gradient per weight");
        self.steps += 1;
        self.first.resize(count, 0.0);
        if optimizer.has_second_moment() {
            self.second.resize(count, 0.0);
        }
        let steps = self.steps;
        let mut end = 0;
        for Stretch { weights, decay, trust } in stretches {
            let range = end..end + weights.len();
            end = range.end;
            let turn = Turn { rate, decay, trust, factor, steps };
            // Optimizers of one moment have no second to move.
            let second = self.second.get_mut(range.clone()).unwrap_or_default();
            let stretches = weights
                .par_chunks_mut(STRETCH)
                .zip(gradient[range.clone()].par_chunks(STRETCH))
                .zip(self.first[range].par_chunks_mut(STRETCH));
            if second.is_empty() {
                stretches.for_each(|((weights, gradient), first)| {
                    optimizer.by_one_moment(turn, weights, gradient, first);
                });
            } else {
                stretches.zip(second.par_chunks_mut(STRETCH)).for_each(
                    |(((weights, gradient), first), second)| {
                        optimizer.by_two_moments(turn, weights, gradient, first, second);
                    },
                );
            }
        }
    }

    /// Bytes of the remembered state.
    pub(crate) fn bytes(&self) -> usize {
        (self.first.capacity() + self.second.capacity()) * size_of::<f32>()
    }
}

/// How a parameter is moved this time.
#[derive(Clone, Copy, Debug)]
struct Turn {
    rate: f32,
    /// How much of the weight decay applies.
    decay: f32,
    /// The trust ratio.
    trust: f32,
    /// By which the gradient is multiplied.
    factor: f32,
    /// Updates so far, with this one.
    steps: u32,
}

impl Optimizer {
    /// Whether it remembers two numbers for each weight.
    pub(crate) fn has_second_moment(self) -> bool {
        matches!(self, Optimizer::Adam { .. } | Optimizer::AdamW { .. } | Optimizer::Lamb { .. })
    }

    /// The shares of their final size that Adam's moments have after this number of updates; 1 for other optimizers.
    pub(crate) fn corrections(self, steps: u32) -> [f32; 2] {
        match self {
            // In the first steps the difference has few bits left: it is rounded once, and last.
            Optimizer::Adam { beta1, beta2, .. } | Optimizer::AdamW { beta1, beta2, .. } => {
                [beta1, beta2].map(|beta| (1.0 - power(beta, steps)) as f32)
            }
            _ => [1.0; 2],
        }
    }

    fn by_one_moment(self, turn: Turn, weights: &mut [f32], gradient: &[f32], first: &mut [f32]) {
        let Turn { rate, factor, .. } = turn;
        let numbers = weights.iter_mut().zip(gradient).zip(first);
        match self {
            Optimizer::Sgd { momentum, weight_decay } => {
                let decay = turn.decay * weight_decay;
                for ((weight, &gradient), velocity) in numbers {
                    *velocity = momentum * *velocity + (gradient * factor + decay * *weight);
                    *weight -= rate * *velocity;
                }
            }
            Optimizer::Lion { beta1, beta2, weight_decay } => {
                let decay = turn.decay * weight_decay;
                for ((weight, &gradient), momentum) in numbers {
                    let gradient = gradient * factor;
                    let step = sign(beta1 * *momentum + (1.0 - beta1) * gradient);
                    *weight -= rate * (step + decay * *weight);
                    *momentum = beta2 * *momentum + (1.0 - beta2) * gradient;
                }
            }
            Optimizer::Lars { momentum, weight_decay, .. } => {
                let (decay, rate) = (turn.decay * weight_decay, rate * turn.trust);
                for ((weight, &gradient), velocity) in numbers {
                    *velocity = momentum * *velocity + rate * (gradient * factor + decay * *weight);
                    *weight -= *velocity;
                }
            }
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } | Optimizer::Lamb { .. } => {
                unreachable!("they have two moments")
            }
        }
    }

    fn by_two_moments(
        self,
        turn: Turn,
        weights: &mut [f32],
        gradient: &[f32],
        first: &mut [f32],
        second: &mut [f32],
    ) {
        let Turn { rate, decay, trust, factor, steps } = turn;
        if let Optimizer::Lamb { .. } = self {
            let (lamb, rate) = (Lamb::of(self, decay, steps), rate * trust);
            let numbers = weights.iter_mut().zip(gradient).zip(first.iter_mut().zip(second));
            for ((weight, &gradient), (first, second)) in numbers {
                (*first, *second) = lamb.moments(gradient * factor, *first, *second);
                *weight -= rate * lamb.step(*weight, *first, *second);
            }
            return;
        }
        let (Optimizer::Adam { beta1, beta2, epsilon, weight_decay }
        | Optimizer::AdamW { beta1, beta2, epsilon, weight_decay }) = self
        else {
            unreachable!("the others have one moment")
        };
        let decay = decay * weight_decay;
        let is_apart = matches!(self, Optimizer::AdamW { .. });
        let (inside, apart) = if is_apart { (0.0, rate * decay) } else { (decay, 0.0) };
        let [correct1, correct2] = self.corrections(steps);
        for (((weight, &gradient), first), second) in weights.iter_mut().zip(gradient).zip(first).zip(second)
        {
            let gradient = gradient * factor + inside * *weight;
            *weight -= apart * *weight;
            *first = beta1 * *first + (1.0 - beta1) * gradient;
            *second = beta2 * *second + (1.0 - beta2) * gradient * gradient;
            *weight -= rate * (*first / correct1) / ((*second / correct2).sqrt() + epsilon);
        }
    }
}

/// -1, 0 or 1; of NaN, NaN.
fn sign(number: f32) -> f32 {
    if number == 0.0 { 0.0 } else { number.signum() }
}

/// By repeated squaring of doubles, the same on every machine; the platform's `powi` need not be.
fn power(base: f32, exponent: u32) -> f64 {
    let (mut result, mut factor, mut left) = (1.0f64, f64::from(base), exponent);
    while left > 0 {
        if left & 1 == 1 {
            result *= factor;
        }
        factor *= factor;
        left >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(weights: &mut [f32], decay: f32) -> Stretch<'_> {
        Stretch { weights, decay, trust: 1.0 }
    }

    fn after(optimizer: Optimizer, rate: f32, gradients: &[[f32; 2]]) -> [f32; 2] {
        let mut weights = [1.0, 1.0];
        let mut moments = Moments::default();
        for gradient in gradients {
            let (decayed, kept) = weights.split_at_mut(1);
            let stretches = vec![stretch(decayed, 1.0), stretch(kept, 0.0)];
            moments.update(optimizer, rate, stretches, gradient, 1.0);
        }
        weights
    }

    fn assert_close(found: [f32; 2], expected: [f64; 2]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} instead of {expected}");
        }
    }

    #[test]
    fn momentum_and_decay_by_hand() {
        let sgd = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.1 };
        // v = .5 + .1 = .6, w = 1 - .06; then v = .54 + .5 + .094 = 1.134, w = .94 - .1134. Without decay: .95, .855.
        assert_close(after(sgd, 0.1, &[[0.5, 0.5]]), [0.94, 0.95]);
        assert_close(after(sgd, 0.1, &[[0.5, 0.5], [0.5, 0.5]]), [0.8266, 0.855]);
    }

    #[test]
    fn adam_by_hand() {
        let adam = Optimizer::adam(0.0);
        // The first step is the rate against the sign, whatever the size.
        assert_close(after(adam, 0.01, &[[0.5, -3.0]]), [0.99, 1.01]);
        // Second: m = (.09 x .5 + .1 x 1) / .19, v = (.000999 x .25 + .001 x 1) / .001999 for the first number.
        let (m, v) = (0.145f64 / 0.19, (0.000_249_75f64 + 0.001) / 0.001_999);
        let second = 0.99 - 0.01 * m / (v.sqrt() + 1e-8);
        assert_close(after(adam, 0.01, &[[0.5, -3.0], [1.0, -3.0]]), [second, 1.02]);
    }

    #[test]
    fn adam_decays_only_what_decays() {
        let gradients = [[0.0, 0.0]; 3];
        let [decayed, kept] = after(Optimizer::adam(0.5), 0.01, &gradients);
        assert!(decayed < 1.0);
        assert_eq!(kept, 1.0);
    }

    #[test]
    fn a_share_of_the_decay_is_that_much_decay() {
        for (optimizer, half) in [
            (Optimizer::sgd(0.5), Optimizer::sgd(0.25)),
            (Optimizer::adam(0.5), Optimizer::adam(0.25)),
            (Optimizer::adamw(0.5), Optimizer::adamw(0.25)),
            (Optimizer::lion(0.5), Optimizer::lion(0.25)),
            (Optimizer::lamb(0.5), Optimizer::lamb(0.25)),
            (Optimizer::lars(0.5), Optimizer::lars(0.25)),
        ] {
            let after = |optimizer, share: f32| {
                let mut weights = [1.0, -2.0];
                let stretches = vec![stretch(&mut weights, share)];
                Moments::default().update(optimizer, 0.01, stretches, &[0.5, -3.0], 1.0);
                weights
            };
            assert_eq!(after(optimizer, 0.5), after(half, 1.0), "{optimizer:?}");
        }
    }

    #[test]
    fn decay_apart_from_the_gradient_by_hand() {
        // Without a gradient the moments stay zero, and only decay moves: 1 (1 - .01 x .5) three times.
        let gradients = [[0.0, 0.0]; 3];
        assert_close(after(Optimizer::adamw(0.5), 0.01, &gradients), [0.995f64.powi(3), 1.0]);
        // With one, the step is Adam's without decay.
        let step = |optimizer| after(optimizer, 0.01, &[[0.5, -3.0], [1.0, -3.0]]);
        let [decayed, kept] = step(Optimizer::adamw(0.5));
        assert_eq!(kept, step(Optimizer::adam(0.0))[1]);
        assert!(decayed < step(Optimizer::adam(0.0))[0]);
    }

    #[test]
    fn lion_by_hand() {
        let lion = Optimizer::Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.1 };
        // sign(.1 x .5) = 1, decay .1: w = 1 - .01 x 1.1. Then m = .005, and .9 x .005 - .1 x .04 = .0005 is still above zero.
        assert_close(after(lion, 0.01, &[[0.5, -3.0]]), [0.989, 1.01]);
        assert_close(after(lion, 0.01, &[[0.5, -3.0], [-0.04, 0.0]]), [0.989 - 0.01 * (1.0 + 0.0989), 1.02]);
        // Against a larger gradient the momentum loses; without any nothing moves.
        assert_close(after(lion, 0.01, &[[0.5, 0.0], [-0.05, 0.0]]), [0.989 + 0.01 * (1.0 - 0.0989), 1.0]);
    }

    #[test]
    fn what_is_not_a_number_stays_one_and_is_not_hidden() {
        for optimizer in [
            Optimizer::sgd(0.0),
            Optimizer::adam(0.0),
            Optimizer::adamw(0.0),
            Optimizer::lion(0.0),
            Optimizer::lamb(0.0),
            Optimizer::lars(0.0),
        ] {
            assert!(after(optimizer, 0.01, &[[f32::NAN, 1.0]])[0].is_nan(), "{optimizer:?}");
        }
    }
}
