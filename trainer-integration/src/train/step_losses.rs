//! The losses of the single samples of a step.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use crate::engine::Share;
use crate::source::{MicroBatch, Step};

/// The loss of a sample in a step: of the pass that the step's gradient is of, so after augmentation, with dropout, and by the
/// weights before the step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SampleLoss {
    /// Its position in the epoch.
    pub position: u64,
    /// The virtual rank that read it.
    pub virtual_rank: u32,
    /// The mean loss of its answers.
    pub loss: f64,
    /// One; of sequences, tokens that have a next one in their document.
    pub answers: u64,
}

/// Asks a training for the losses of a step's samples, and has those of this rank when the step is done.
///
/// ```
/// use shardd_trainer::train::Persistence;
/// use shardd_trainer::train::step_losses::StepLosses;
///
/// let losses = StepLosses::of(340);
/// let persistence = Persistence { step_losses: Some(losses.clone()), ..Persistence::default() };
/// // ... train with it
/// assert!(losses.found().is_empty(), "the training has not come to step 340");
/// # drop(persistence);
/// ```
#[derive(Clone, Debug)]
pub struct StepLosses {
    step: u64,
    /// By position.
    found: Arc<Mutex<BTreeMap<u64, SampleLoss>>>,
}

impl StepLosses {
    /// Of this step of the training, counted from 0.
    #[must_use]
    pub fn of(step: u64) -> StepLosses {
        StepLosses { step, found: Arc::default() }
    }

    /// The step.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The losses by position; of a sample without an answer there is none. Empty before the step, and if this rank read no sample.
    #[must_use]
    pub fn found(&self) -> Vec<SampleLoss> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect()
    }

    /// The shares of the step, a micro-batch each, which leave the losses of their rows here.
    pub(super) fn watch(&self, step: &Step, shares: Vec<Share<'static>>) -> Vec<Share<'static>> {
        let watched = |(share, read): (Share<'static>, &MicroBatch)| {
            let (virtual_rank, positions) = (read.virtual_rank, read.positions.clone());
            let found = Arc::clone(&self.found);
            let note = move |row: usize, sum: f64, answers: u64| {
                if answers == 0 {
                    return;
                }
                let (position, loss) = (positions[row], sum / answers as f64);
                let loss = SampleLoss { position, virtual_rank, loss, answers };
                found.lock().unwrap_or_else(PoisonError::into_inner).insert(position, loss);
            };
            let note = Arc::new(note);
            let each = share.into_iter().map(|batch| {
                let note = Arc::clone(&note);
                batch.watched(move |row, sum, answers| note(row, sum, answers))
            });
            each.collect()
        };
        shares.into_iter().zip(&step.micro_batches).map(watched).collect()
    }
}
