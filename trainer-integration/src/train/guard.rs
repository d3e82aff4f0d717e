//! Handles steps whose loss or gradient is infinite, NaN, or far above earlier ones. Pure: its inputs are the
//! same on every rank, so all of them decide alike.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::engine::StepLoss;
use crate::error::BadStep;
use crate::exact::Exact;
use crate::progress::ProgressSoFar;

/// How many losses make up the usual loss, and how many there must be before anything is unusual.
const USUAL: usize = 100;
const AT_LEAST: usize = 20;

/// After this number of skipped steps in a row nothing will get better.
const IN_A_ROW: u32 = 10;

/// After going back so often to one checkpoint neither.
const TO_ONE_CHECKPOINT: u32 = 3;

/// The action on a bad step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnBadStep {
    /// End the training; the weights are those before the step.
    #[default]
    Stop,
    /// Leave the weights as they were before the step and continue; end it after ten in a row.
    Skip,
    /// Go back to the weights of the last checkpoint that was due by steps, and continue with the data after
    /// the bad step; end it after three times to the same one, or ten bad steps in a row.
    #[serde(rename = "roll back")]
    RollBack,
}

/// Which steps are bad, besides those that are no numbers, and what to do about them.
///
/// ```
/// use shardd_trainer::train::TrainConfig;
/// use shardd_trainer::train::guard::{GuardConfig, OnBadStep};
///
/// let guard = GuardConfig { on_bad_step: OnBadStep::Skip, spike: Some(4.0) };
/// let config = TrainConfig { guard, ..TrainConfig::default() };
/// assert_ne!(config.guard, GuardConfig::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GuardConfig {
    /// The action.
    pub on_bad_step: OnBadStep,
    /// A loss is bad that is this many times the mean of the last 100 (once there were 20). `None`: however
    /// high it is.
    pub spike: Option<f32>,
}

impl BadStep {
    /// The fault of a step whose gradients no scale brings into 16 bits.
    pub(crate) fn too_large(step: &StepLoss) -> Option<BadStep> {
        let StepLoss { gradient_norm, scale, .. } = *step;
        let scale = scale.filter(|scale| !scale.can_fall() && !gradient_norm.is_finite())?;
        Some(BadStep::TooLarge { loss: step.mean(), gradient_norm, scale: scale.factor() })
    }
}

/// The verdict on a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    Take,
    /// There was nothing to decide: its gradients were too large for 16 bits or for the range of exact sums, which is no fault of the step.
    Overflow,
    Skip(BadStep),
    RollBack(BadStep),
    Stop(BadStep),
}

/// Watches the steps of a training.
#[derive(Debug)]
pub(super) struct Guard {
    config: GuardConfig,
    /// Of the last steps that were taken.
    losses: VecDeque<f64>,
    skipped_in_a_row: u32,
    /// To the checkpoint that is gone back to now.
    rolled_back: u32,
}

impl Guard {
    pub(super) fn new(config: GuardConfig) -> Guard {
        Guard { config, losses: VecDeque::with_capacity(USUAL), skipped_in_a_row: 0, rolled_back: 0 }
    }

    /// One with the memory of [`Guard::remember`].
    pub(super) fn resumed(config: GuardConfig, so_far: &ProgressSoFar) -> Guard {
        let losses = so_far.usual.iter().map(|loss| loss.0).collect();
        let ProgressSoFar { skipped_in_a_row, rolled_back, .. } = *so_far;
        Guard { config, losses, skipped_in_a_row, rolled_back }
    }

    /// For a checkpoint.
    pub(super) fn remember(&self, so_far: ProgressSoFar) -> ProgressSoFar {
        let usual = self.losses.iter().map(|loss| Exact(*loss)).collect();
        ProgressSoFar {
            usual,
            skipped_in_a_row: self.skipped_in_a_row,
            rolled_back: self.rolled_back,
            ..so_far
        }
    }

    /// Its weights are those of an earlier step again: so is the usual loss.
    pub(super) fn go_back(&mut self, so_far: &ProgressSoFar) {
        self.losses = so_far.usual.iter().map(|loss| loss.0).collect();
    }

    /// There is another checkpoint to go back to.
    pub(super) fn passes_checkpoint(&mut self) {
        self.rolled_back = 0;
    }

    /// The verdict on a step with this outcome.
    pub(super) fn judge(&mut self, step: &StepLoss) -> Verdict {
        let loss = step.mean();
        let Some(bad) = self.wrong(loss, step) else {
            if self.losses.len() == USUAL {
                self.losses.pop_front();
            }
            if step.samples > 0 {
                self.losses.push_back(loss);
            }
            self.skipped_in_a_row = 0;
            return Verdict::Take;
        };
        self.skipped_in_a_row += 1;
        match self.config.on_bad_step {
            _ if self.skipped_in_a_row >= IN_A_ROW => Verdict::Stop(bad),
            OnBadStep::Skip => Verdict::Skip(bad),
            OnBadStep::RollBack if self.rolled_back < TO_ONE_CHECKPOINT => {
                self.rolled_back += 1;
                Verdict::RollBack(bad)
            }
            _ => Verdict::Stop(bad),
        }
    }

    fn wrong(&self, loss: f64, step: &StepLoss) -> Option<BadStep> {
        let gradient_norm = step.gradient_norm;
        if !loss.is_finite() || !gradient_norm.is_finite() {
            return BadStep::too_large(step).or(Some(BadStep::NotFinite { loss, gradient_norm }));
        }
        let factor = self.config.spike?;
        if self.losses.len() < AT_LEAST {
            return None;
        }
        let usual = self.losses.iter().sum::<f64>() / self.losses.len() as f64;
        (loss > usual * f64::from(factor)).then_some(BadStep::Spike { loss, usual, factor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::LossScale;

    fn step(loss: f64, gradient_norm: f64) -> StepLoss {
        let (sum, scale) = (loss * 8.0, None);
        StepLoss { sum, correct: 0, samples: 8, gradient_norm, scale, is_overflow: false }
    }

    fn guard(on_bad_step: OnBadStep, spike: Option<f32>) -> Guard {
        Guard::new(GuardConfig { on_bad_step, spike })
    }

    #[test]
    fn what_is_no_number_stops_the_training_or_is_skipped() {
        for (loss, norm) in [(f64::NAN, 1.0), (f64::INFINITY, 1.0), (1.0, f64::NAN), (1.0, f64::INFINITY)] {
            assert!(matches!(guard(OnBadStep::Stop, None).judge(&step(loss, norm)), Verdict::Stop(_)));
            assert!(matches!(guard(OnBadStep::Skip, None).judge(&step(loss, norm)), Verdict::Skip(_)));
        }
        assert_eq!(
            guard(OnBadStep::Stop, None).judge(&step(1e300, 1e300)),
            Verdict::Take,
            "large, but a number"
        );
    }

    #[test]
    fn what_no_scale_helps_says_so() {
        let lowest = LossScale::of_exponent(LossScale::LOWEST);
        let of = |scale, norm| {
            let step = StepLoss { scale: Some(scale), ..step(f64::NAN, norm) };
            match guard(OnBadStep::Stop, None).judge(&step) {
                Verdict::Stop(bad) => bad.to_string(),
                other => panic!("{other:?}"),
            }
        };
        let said = of(lowest, f64::NAN);
        assert!(said.contains("as little as it may be") && said.contains("--precision bf16"), "{said}");
        assert!(!of(lowest, 1.0).contains("scaled"), "the gradient is fine, so it is not that");
        assert!(!of(LossScale::default(), 1.0).contains("scaled"));
    }

    #[test]
    fn ten_in_a_row_are_too_many_and_one_good_one_begins_anew() {
        let mut guard = guard(OnBadStep::Skip, None);
        for _ in 0..3 {
            for _ in 1..IN_A_ROW {
                assert!(matches!(guard.judge(&step(f64::NAN, 1.0)), Verdict::Skip(_)));
            }
            assert_eq!(guard.judge(&step(1.0, 1.0)), Verdict::Take);
        }
        for _ in 1..IN_A_ROW {
            guard.judge(&step(f64::NAN, 1.0));
        }
        assert!(matches!(guard.judge(&step(f64::NAN, 1.0)), Verdict::Stop(_)));
    }

    #[test]
    fn three_times_to_one_checkpoint_are_enough_and_a_later_one_begins_anew() {
        let mut guard = guard(OnBadStep::RollBack, None);
        for _ in 0..2 {
            for _ in 0..TO_ONE_CHECKPOINT {
                assert_eq!(guard.judge(&step(1.0, 1.0)), Verdict::Take);
                assert!(matches!(guard.judge(&step(f64::NAN, 1.0)), Verdict::RollBack(_)));
            }
            let resumed = Guard::resumed(guard.config, &guard.remember(ProgressSoFar::default()));
            assert!(matches!({ resumed }.judge(&step(f64::NAN, 1.0)), Verdict::Stop(_)));
            guard.passes_checkpoint();
        }
    }

    #[test]
    fn a_spike_is_far_above_what_is_usual_by_then() {
        let mut guard = guard(OnBadStep::Skip, Some(3.0));
        assert_eq!(guard.judge(&step(100.0, 1.0)), Verdict::Take, "nothing is usual yet");
        for _ in 0..USUAL {
            assert_eq!(guard.judge(&step(2.0, 1.0)), Verdict::Take);
        }
        assert_eq!(guard.judge(&step(5.9, 1.0)), Verdict::Take);
        let spike = guard.judge(&step(6.5, 1.0));
        assert!(
            matches!(spike, Verdict::Skip(BadStep::Spike { usual, .. }) if (2.0..2.1).contains(&usual)),
            "{spike:?}"
        );
        // A skipped step is not usual.
        assert!(matches!(guard.judge(&step(6.5, 1.0)), Verdict::Skip(_)));
    }
}
