//! What has been trained on so far, in this process and, after a checkpoint, in those before it. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardd_client::loader::{Delivered, Deliveries};

use crate::checkpoint::Exact;
use crate::engine::{LossScale, StepLoss};
use crate::source::Step;

/// What a checkpoint keeps of a training besides its numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgressSoFar {
    /// Steps, those that were skipped among them.
    pub steps: u64,
    /// Those that were skipped.
    pub skipped: u64,
    /// All ranks' samples, all epochs.
    pub samples: u64,
    /// By epoch: its number, the sum of its losses, and of how many samples (of sequences: tokens) these are.
    pub epochs: Vec<(u32, Exact, u64)>,
    /// Losses of the last steps that were taken, which say what is usual.
    pub usual: Vec<Exact>,
    /// Steps that were skipped since.
    pub skipped_in_a_row: u32,
    /// Steps that were undone, when the weights became those of an earlier checkpoint.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub undone: u64,
    /// How often they became those of the checkpoint before this one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rolled_back: u32,
    /// Steps whose gradients were too large for 16 bits; they are among those that were skipped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overflows: u64,
    /// What the gradients of the next step are multiplied by, where they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// What virtual ranks were given of the epoch under way and of the one before, if that is counted.
    #[serde(default, skip_serializing_if = "Deliveries::is_empty")]
    pub delivered: Deliveries,
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

/// What has been trained on so far.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) steps: u64,
    pub(super) skipped: u64,
    pub(super) undone: u64,
    pub(super) overflows: u64,
    pub(super) samples: u64,
    /// By epoch: sum of losses, of so many answers.
    epochs: BTreeMap<u32, (f64, u64)>,
    delivered: Deliveries,
}

impl Account {
    /// That of the processes before this one.
    pub(super) fn resumed(so_far: &ProgressSoFar) -> Account {
        let epochs = so_far.epochs.iter().map(|(epoch, sum, samples)| (*epoch, (sum.0, *samples)));
        Account {
            steps: so_far.steps,
            skipped: so_far.skipped,
            undone: so_far.undone,
            overflows: so_far.overflows,
            samples: so_far.samples,
            epochs: epochs.collect(),
            delivered: so_far.delivered.clone(),
        }
    }

    pub(super) fn add(&mut self, step: &Step, loss: &StepLoss) {
        self.steps += 1;
        self.samples += step.global_samples;
        let (sum, answers) = self.epochs.entry(step.epoch).or_default();
        *sum += loss.sum;
        *answers += loss.samples;
    }

    /// What all virtual ranks were given of a step, whatever is learnt from it; `None` if a rank does not count it.
    pub(super) fn deliver(&mut self, step: &Step, given: Option<&[Delivered]>) {
        self.delivered.add(step.start.0, step.start.1, given);
    }

    /// A step that nothing was learnt from: it is counted, its loss is not.
    pub(super) fn skip(&mut self, step: &Step) {
        self.steps += 1;
        self.skipped += 1;
        self.samples += step.global_samples;
    }

    /// The same where gradients were too large for 16 bits.
    pub(super) fn overflow(&mut self, step: &Step) {
        self.skip(step);
        self.overflows += 1;
    }

    /// The mean loss of each epoch.
    pub(super) fn means(&self) -> Vec<f64> {
        self.epochs.values().map(|(sum, answers)| sum / *answers as f64).collect()
    }

    /// For a checkpoint, without what the guard remembers.
    pub(super) fn so_far(&self) -> ProgressSoFar {
        let epochs = self.epochs.iter().map(|(epoch, (sum, samples))| (*epoch, Exact(*sum), *samples));
        ProgressSoFar {
            steps: self.steps,
            skipped: self.skipped,
            undone: self.undone,
            overflows: self.overflows,
            samples: self.samples,
            epochs: epochs.collect(),
            delivered: self.delivered.clone(),
            ..ProgressSoFar::default()
        }
    }
}
