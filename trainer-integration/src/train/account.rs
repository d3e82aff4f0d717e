//! The totals of a training so far, in this process and, after a checkpoint, in those before it. Pure.

use std::collections::BTreeMap;

use shardd_client::loader::{Delivered, Deliveries};

use crate::engine::StepLoss;
use crate::exact::Exact;
use crate::progress::ProgressSoFar;
use crate::source::Step;

/// The data of the training up to now.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) steps: u64,
    pub(super) skipped: u64,
    pub(super) undone: u64,
    pub(super) overflows: u64,
    pub(super) samples: u64,
    /// By epoch: sum of losses, of a number of answers.
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

    /// The samples given to all virtual ranks in a step, used or not; `None` if a rank does not count it.
    pub(super) fn deliver(&mut self, step: &Step, given: Option<&[Delivered]>) {
        self.delivered.add(step.start.0, step.start.1, given);
    }

    /// A step that nothing was learnt from: it is counted, its loss is not.
    pub(super) fn skip(&mut self, step: &Step) {
        self.steps += 1;
        self.skipped += 1;
        self.samples += step.global_samples;
    }

    /// The same where gradients were too large for 16 bits or for exact sums.
    pub(super) fn overflow(&mut self, step: &Step) {
        self.skip(step);
        self.overflows += 1;
    }

    /// The mean loss of each epoch.
    pub(super) fn means(&self) -> Vec<f64> {
        self.epochs.values().map(|(sum, answers)| sum / (*answers).max(1) as f64).collect()
    }

    /// That of one epoch, if anything was learnt in it.
    pub(super) fn mean(&self, epoch: u32) -> Option<f64> {
        self.epochs
            .get(&epoch)
            .filter(|(_, answers)| *answers > 0)
            .map(|(sum, answers)| sum / *answers as f64)
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
