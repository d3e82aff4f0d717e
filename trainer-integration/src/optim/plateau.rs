//! A learning rate that falls where the loss no longer does: PyTorch's `ReduceLROnPlateau` in its mode `min` with a
//! relative threshold. Pure: the same losses give the same rates on every rank.

use serde::{Deserialize, Serialize};

use crate::exact::Exact;

/// A fall by less than this is none, as in PyTorch.
const LEAST_FALL: f64 = 1e-8;

/// When a [`Plateau`] is one, and the action on it; names and defaults are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReduceOnPlateau {
    /// By which the rate is multiplied. Default 0.1.
    pub factor: f64,
    /// Epochs in a row without a lower loss before the rate falls with the next one. Default 10.
    pub patience: u32,
    /// A loss is lower if it is below the lowest one by more than this share of it. Default 1e-4.
    pub threshold: f64,
    /// Epochs after a fall in which none is counted as one without a lower loss. Default 0.
    pub cooldown: u32,
    /// The lowest rate. Default 0.
    pub min_lr: f64,
}

impl Default for ReduceOnPlateau {
    fn default() -> ReduceOnPlateau {
        ReduceOnPlateau { factor: 0.1, patience: 10, threshold: 1e-4, cooldown: 0, min_lr: 0.0 }
    }
}

/// The rate so far, and what decides the next fall. Serialized, it resumes to the last bit.
///
/// ```
/// use shardd_trainer::optim::plateau::{Plateau, ReduceOnPlateau};
///
/// let mut plateau = Plateau::new(ReduceOnPlateau { patience: 1, ..ReduceOnPlateau::default() }, 0.1);
/// let rates = [3.0, 2.0, 2.0, 2.0].map(|loss| {
///     plateau.observe(loss);
///     plateau.rate()
/// });
/// assert_eq!(rates[..3], [0.1; 3]);
/// assert!(rates[3] < 0.02);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plateau {
    how: ReduceOnPlateau,
    rate: Exact,
    /// The lowest loss; infinite before the first.
    best: Exact,
    /// In a row, without a lower loss.
    bad_epochs: u32,
    /// Epochs that are left of the cooldown.
    cooling: u32,
}

impl Plateau {
    /// Before the first epoch, with this rate.
    pub fn new(how: ReduceOnPlateau, rate: f64) -> Plateau {
        Plateau { how, rate: Exact(rate), best: Exact(f64::INFINITY), bad_epochs: 0, cooling: 0 }
    }

    /// The rate now.
    pub fn rate(&self) -> f64 {
        self.rate.0
    }

    /// The rate of a step, of that which warm-up gives it.
    pub fn limit(&self, rate: f32) -> f32 {
        rate.min(self.rate.0 as f32)
    }

    /// Takes in the loss of an epoch, and finds whether the rate falls after it. A loss that is NaN is not a lower one.
    pub fn observe(&mut self, loss: f64) -> bool {
        let ReduceOnPlateau { factor, patience, threshold, cooldown, min_lr } = self.how;
        if loss < self.best.0 * (1.0 - threshold) {
            self.best = Exact(loss);
            self.bad_epochs = 0;
        } else {
            self.bad_epochs += 1;
        }
        if self.cooling > 0 {
            self.cooling -= 1;
            self.bad_epochs = 0;
        }
        if self.bad_epochs <= patience {
            return false;
        }
        (self.bad_epochs, self.cooling) = (0, cooldown);
        let rate = (self.rate.0 * factor).max(min_lr);
        let falls = self.rate.0 - rate > LEAST_FALL;
        if falls {
            self.rate = Exact(rate);
        }
        falls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: f64 = f64::NAN;
    const INF: f64 = f64::INFINITY;

    /// Settings, the losses of epochs, and the rate after each.
    type Case = (ReduceOnPlateau, &'static [f64], &'static [f64]);

    fn how(factor: f64, patience: u32, threshold: f64, cooldown: u32, min_lr: f64) -> ReduceOnPlateau {
        ReduceOnPlateau { factor, patience, threshold, cooldown, min_lr }
    }

    /// The rates are those of `torch.optim.lr_scheduler.ReduceLROnPlateau` of PyTorch 2.15, as `repr` prints them.
    #[test]
    fn the_rates_are_those_of_pytorch_to_the_last_bit() {
        let cases: [(f64, Case); 5] = [
            (
                0.1,
                (
                    how(0.1, 2, 1e-4, 0, 0.0),
                    &[1.0, 0.9, 0.9, 0.9, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8],
                    &[
                        0.1,
                        0.1,
                        0.1,
                        0.1,
                        0.1,
                        0.1,
                        0.1,
                        0.010000000000000002,
                        0.010000000000000002,
                        0.010000000000000002,
                    ],
                ),
            ),
            (
                0.1,
                (
                    how(0.5, 0, 1e-4, 2, 0.0),
                    &[1.0; 10],
                    &[0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025, 0.0125, 0.0125, 0.0125],
                ),
            ),
            (
                0.4,
                (
                    how(0.25, 1, 0.1, 0, 0.02),
                    &[2.0, 1.95, 1.9, 1.85, 1.8, 1.75, 1.7, 1.65],
                    &[0.4, 0.4, 0.1, 0.1, 0.025, 0.025, 0.025, 0.02],
                ),
            ),
            (
                0.1,
                (
                    how(0.3, 1, 0.0, 1, 1e-3),
                    &[1.0, NAN, NAN, 0.5, NAN, INF, 0.4, 0.4, 0.4],
                    &[0.1, 0.1, 0.03, 0.03, 0.03, 0.009, 0.009, 0.009, 0.0026999999999999997],
                ),
            ),
            (1e-7, (how(0.1, 0, 1e-4, 0, 0.0), &[1.0; 5], &[1e-7, 1e-8, 1e-8, 1e-8, 1e-8])),
        ];
        for (rate, (how, losses, expected)) in cases {
            // One that is written and read after every epoch is no other.
            let (mut plateau, mut resumed) = (Plateau::new(how, rate), Plateau::new(how, rate));
            for (epoch, (loss, expected)) in losses.iter().zip(expected).enumerate() {
                let before = plateau.rate();
                assert_eq!(plateau.observe(*loss), *expected < before, "{how:?}, epoch {epoch}");
                assert_eq!(plateau.rate().to_bits(), expected.to_bits(), "{how:?}, epoch {epoch}");
                resumed.observe(*loss);
                let text = serde_json::to_string(&resumed).unwrap();
                resumed = serde_json::from_str(&text).unwrap();
                assert_eq!(resumed, plateau, "{how:?}, epoch {epoch}");
            }
        }
    }

    #[test]
    fn warm_up_is_limited_by_the_rate_and_not_the_other_way_round() {
        let mut plateau = Plateau::new(how(0.1, 0, 0.0, 0, 0.0), 0.5);
        assert_eq!((plateau.limit(0.25), plateau.limit(0.5)), (0.25, 0.5));
        plateau.observe(1.0);
        assert!(plateau.observe(1.0));
        assert_eq!((plateau.limit(0.025), plateau.limit(0.5)), (0.025, 0.05));
    }
}
