//! A training on its way, which outlives the group of ranks that it is trained by.

use std::sync::{Arc, Mutex};

use super::account::Account;
use super::agree::kept;
use super::guard::Guard;
use crate::checkpoint::{Manifest, PeerCheckpoint, Place, Settings};
use crate::engine::Engine;
use crate::optim::Plateau;
use crate::progress::ProgressSoFar;

/// Where a rank leaves its state of a training whose group has ended: shared by its clones.
#[derive(Clone, Debug, Default)]
pub struct StateTransfer(Arc<Mutex<Option<PeerCheckpoint>>>);

impl StateTransfer {
    /// The last state left, if no training has begun since.
    pub fn take(&self) -> Option<PeerCheckpoint> {
        self.lock().take()
    }

    /// Leaves this.
    pub fn leave(&self, remains: Option<PeerCheckpoint>) {
        *self.lock() = remains;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<PeerCheckpoint>> {
        self.0.lock().expect("no panic while it is held")
    }
}

/// The state of a training after a step.
pub(super) struct TrainState {
    pub(super) engine: Engine,
    pub(super) account: Account,
    pub(super) guard: Guard,
    /// Where the losses of epochs decide the learning rate.
    pub(super) plateau: Option<Plateau>,
    /// The place where the source resumes, if it has begun.
    pub(super) place: Option<Place>,
    /// Whether all of this is of the same step: not while it goes back to a checkpoint.
    pub(super) is_whole: bool,
}

impl TrainState {
    /// This rank's part of it, with or without the others.
    pub(super) fn remains(self, run: String, settings: &Settings) -> Option<PeerCheckpoint> {
        if !self.is_whole {
            return None;
        }
        let virtual_ranks = self.engine.virtual_rank_count();
        let progress = self.engine.with_scales(self.guard.remember(self.account.so_far()));
        let progress = ProgressSoFar { plateau: self.plateau, ..progress };
        let (layout, state) = self.engine.remains();
        let manifest = Manifest {
            format: if state.residuals.is_empty() {
                Manifest::FORMAT
            } else {
                Manifest::FORMAT_WITH_RESIDUALS
            },
            run,
            step: progress.steps,
            place: self.place.unwrap_or_default(),
            virtual_ranks,
            settings: kept(settings),
            progress,
            layout,
            pieces: Vec::new(),
            statistics: Vec::new(),
            residuals: Vec::new(),
            parts: Vec::new(),
        };
        Some(PeerCheckpoint { manifest, state })
    }
}
