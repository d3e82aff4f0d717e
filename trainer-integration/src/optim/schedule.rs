//! The learning rate over time, and what becomes of it when a step has more samples. Pure.

use serde::{Deserialize, Serialize};

use super::plateau::ReduceOnPlateau;

/// How the learning rate falls once it was highest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "name")]
pub enum LrDecay {
    /// Half a cosine down to zero (Loshchilov and Hutter, "SGDR", ICLR 2017).
    #[default]
    Cosine,
    /// In a straight line to zero.
    Linear,
    /// Not at all.
    Constant,
    /// By a factor after each number of epochs, those of warm-up counted in.
    Step {
        /// How many.
        epochs: u32,
        /// The factor of the rate.
        factor: f32,
    },
    /// When the mean loss of epochs no longer falls. A [`Plateau`](super::Plateau) decides it, and [`Schedule::rate`]
    /// is the limit until then.
    Plateau(ReduceOnPlateau),
}

/// The learning rate: a linear rise, then what [`LrDecay`] says.
///
/// ```
/// use shardd_trainer::optim::schedule::{LrDecay, Schedule};
///
/// let decline = LrDecay::Linear;
/// let schedule = Schedule { peak: 0.1, warm_up_steps: 10, steps: 110, steps_per_epoch: 10, decline };
/// assert!(schedule.rate(0) < schedule.rate(9));
/// assert!(schedule.rate(109) < schedule.rate(50));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The highest rate.
    pub peak: f32,
    /// Steps until it is reached.
    pub warm_up_steps: u64,
    /// Steps in all.
    pub steps: u64,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// The decay after warm-up.
    pub decline: LrDecay,
}

impl Schedule {
    /// The rate of `step`, from 0.
    pub fn rate(&self, step: u64) -> f32 {
        let peak = f64::from(self.peak);
        if step < self.warm_up_steps {
            return (peak * (step + 1) as f64 / self.warm_up_steps as f64) as f32;
        }
        let length = self.steps.saturating_sub(self.warm_up_steps).max(1);
        let done = ((step - self.warm_up_steps) as f64 / length as f64).min(1.0);
        let share = match self.decline {
            LrDecay::Cosine => 0.5 * (1.0 + libm::cos(std::f64::consts::PI * done)),
            LrDecay::Linear => 1.0 - done,
            LrDecay::Constant | LrDecay::Plateau(_) => 1.0,
            LrDecay::Step { epochs, factor } => {
                let every = u64::from(epochs).saturating_mul(self.steps_per_epoch).max(1);
                super::power(factor, u32::try_from(step / every).unwrap_or(u32::MAX))
            }
        };
        (peak * share) as f32
    }
}

/// The scaling of a learning rate from one number of samples in a step to another.
///
/// ```
/// use shardd_trainer::optim::schedule::Scaling;
///
/// assert_eq!(Scaling::Linear.rate(0.1, 512, 128), 0.4);
/// assert_eq!(Scaling::Sqrt.rate(0.1, 512, 128), 0.2);
/// assert_eq!(Scaling::None.rate(0.1, 512, 128), 0.1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scaling {
    /// It stays.
    #[default]
    None,
    /// In proportion, which wants warm-up (Goyal et al., "Accurate, large minibatch SGD", 2017).
    Linear,
    /// With the square root, which keeps the noise of Adam's steps (Malladi et al., "On the SDEs and scaling rules for adaptive
    /// gradient algorithms", NeurIPS 2022).
    Sqrt,
}

impl Scaling {
    /// The rate for `samples` in a step, of one that was found for `base`.
    pub fn rate(self, rate: f32, samples: u64, base: u64) -> f32 {
        let ratio = samples as f64 / base.max(1) as f64;
        let factor = match self {
            Self::None => 1.0,
            Self::Linear => ratio,
            Self::Sqrt => ratio.sqrt(),
        };
        (f64::from(rate) * factor) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(decline: LrDecay) -> Schedule {
        Schedule { peak: 0.4, warm_up_steps: 4, steps: 20, steps_per_epoch: 4, decline }
    }

    fn rates(decline: LrDecay) -> Vec<f32> {
        (0..=20).map(|step| schedule(decline).rate(step)).collect()
    }

    #[test]
    fn the_rate_rises_whatever_comes_after_it() {
        for decline in [LrDecay::Cosine, LrDecay::Linear, LrDecay::Constant] {
            assert_eq!(rates(decline)[..5], [0.1, 0.2, 0.3, 0.4, 0.4], "{decline:?}");
        }
    }

    #[test]
    fn a_cosine_and_a_line_fall_to_zero() {
        for decline in [LrDecay::Cosine, LrDecay::Linear] {
            let rates = rates(decline);
            assert!(rates[4..].windows(2).all(|pair| pair[1] < pair[0]));
            assert!((rates[12] - 0.2).abs() < 1e-6, "half-way down at half time");
            assert_eq!(rates[20], 0.0);
        }
        assert!((rates(LrDecay::Linear)[8] - 0.3).abs() < 1e-6);
        assert!(rates(LrDecay::Cosine)[8] > 0.3, "a cosine begins slowly");
    }

    #[test]
    fn a_constant_stays_and_steps_fall_at_once() {
        assert!(rates(LrDecay::Constant)[4..].iter().all(|rate| *rate == 0.4));
        let rates = rates(LrDecay::Step { epochs: 2, factor: 0.1 });
        for (step, rate) in rates.iter().enumerate().skip(4) {
            let expected = [0.4, 0.04, 0.004][step / 8];
            assert!((rate - expected).abs() < 1e-7, "{step}: {rate}");
        }
    }

    #[test]
    fn a_schedule_without_warm_up_or_steps_is_fine() {
        let short = |warm_up_steps, steps, decline| {
            Schedule { peak: 1.0, warm_up_steps, steps, steps_per_epoch: 0, decline }.rate(0)
        };
        assert_eq!(short(0, 0, LrDecay::Cosine), 1.0);
        assert_eq!(short(2, 1, LrDecay::Cosine), 0.5);
        assert_eq!(short(0, 4, LrDecay::Step { epochs: 0, factor: 0.5 }), 1.0);
    }

    #[test]
    fn a_rate_is_scaled_as_its_rule_says() {
        assert_eq!(Scaling::None.rate(0.1, 2048, 256), 0.1);
        assert!((Scaling::Linear.rate(0.1, 2048, 256) - 0.8).abs() < 1e-6);
        assert!((Scaling::Sqrt.rate(0.1, 2048, 512) - 0.2).abs() < 1e-6);
        assert!((Scaling::Linear.rate(0.1, 64, 256) - 0.025).abs() < 1e-6, "also for fewer");
    }
}
