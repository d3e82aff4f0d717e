//! Optimizers on flat buffers, element by element and therefore in any order; and the learning rate over time.

use serde::{Deserialize, Serialize};

/// Which optimizer, with its constants.
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
    /// Adam (Kingma and Ba), weight decay added to the gradient.
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
}

/// What an optimizer remembers of one block.
#[derive(Clone, Debug, Default)]
pub struct Moments {
    first: Vec<f32>,
    second: Vec<f32>,
    steps: u32,
}

impl Moments {
    /// Moves `weights` against `gradient`; `decays` says of each number whether weight decay applies.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn update(
        &mut self,
        optimizer: Optimizer,
        rate: f32,
        decays: &[bool],
        weights: &mut [f32],
        gradient: &[f32],
    ) {
        assert!(weights.len() == gradient.len() && weights.len() == decays.len(), "one gradient per weight");
        self.steps += 1;
        self.first.resize(weights.len(), 0.0);
        let numbers = weights.iter_mut().zip(gradient).zip(decays).zip(&mut self.first);
        match optimizer {
            Optimizer::Sgd { momentum, weight_decay } => {
                for (((weight, &gradient), &decays), velocity) in numbers {
                    let pull = if decays { weight_decay * *weight } else { 0.0 };
                    *velocity = momentum * *velocity + (gradient + pull);
                    *weight -= rate * *velocity;
                }
            }
            Optimizer::Adam { beta1, beta2, epsilon, weight_decay } => {
                self.second.resize(gradient.len(), 0.0);
                let correct1 = 1.0 - power(beta1, self.steps);
                let correct2 = 1.0 - power(beta2, self.steps);
                for ((((weight, &gradient), &decays), first), second) in numbers.zip(&mut self.second) {
                    let gradient = gradient + if decays { weight_decay * *weight } else { 0.0 };
                    *first = beta1 * *first + (1.0 - beta1) * gradient;
                    *second = beta2 * *second + (1.0 - beta2) * gradient * gradient;
                    *weight -= rate * (*first / correct1) / ((*second / correct2).sqrt() + epsilon);
                }
            }
        }
    }
}

/// By repeated squaring of doubles, the same on every machine; the platform's `powi` need not be.
fn power(base: f32, exponent: u32) -> f32 {
    let (mut result, mut factor, mut left) = (1.0f64, f64::from(base), exponent);
    while left > 0 {
        if left & 1 == 1 {
            result *= factor;
        }
        factor *= factor;
        left >>= 1;
    }
    result as f32
}

/// The learning rate: a linear rise, then half a cosine down to zero.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The highest rate.
    pub peak: f32,
    /// Steps until it is reached.
    pub warm_up_steps: u64,
    /// Steps in all; the rate after the last is zero.
    pub steps: u64,
}

impl Schedule {
    /// The rate of `step`, from 0.
    pub fn rate(&self, step: u64) -> f32 {
        let peak = f64::from(self.peak);
        let rate = if step < self.warm_up_steps {
            peak * (step + 1) as f64 / self.warm_up_steps as f64
        } else {
            let length = self.steps.saturating_sub(self.warm_up_steps).max(1);
            let done = ((step - self.warm_up_steps) as f64 / length as f64).min(1.0);
            peak * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
        };
        rate as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(optimizer: Optimizer, rate: f32, gradients: &[[f32; 2]]) -> [f32; 2] {
        let mut weights = [1.0, 1.0];
        let mut moments = Moments::default();
        for gradient in gradients {
            moments.update(optimizer, rate, &[true, false], &mut weights, gradient);
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
    fn the_rate_rises_then_falls_to_zero() {
        let schedule = Schedule { peak: 0.4, warm_up_steps: 4, steps: 20 };
        let rates: Vec<f32> = (0..=20).map(|step| schedule.rate(step)).collect();
        assert_eq!(rates[..5], [0.1, 0.2, 0.3, 0.4, 0.4]);
        assert!(rates[4..].windows(2).all(|pair| pair[1] < pair[0]));
        assert!((rates[12] - 0.2).abs() < 1e-6, "half-way down at half time");
        assert_eq!(rates[20], 0.0);
    }

    #[test]
    fn a_schedule_without_warm_up_or_steps_is_fine() {
        assert_eq!(Schedule { peak: 1.0, warm_up_steps: 0, steps: 0 }.rate(0), 1.0);
        assert_eq!(Schedule { peak: 1.0, warm_up_steps: 2, steps: 1 }.rate(0), 0.5);
    }
}
