//! The progress of a training, as checkpoints keep it. Pure.

use serde::{Deserialize, Serialize};
use shardd_client::loader::Deliveries;

use crate::exact::Exact;
use crate::optim::Plateau;
use crate::reduce::fixed::GradientRanges;
use crate::scaling::LossScale;

/// The state of a training in a checkpoint besides its numbers.
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
    /// Losses of the last steps that were taken, which show the usual loss.
    pub usual: Vec<Exact>,
    /// Steps that were skipped since.
    pub skipped_in_a_row: u32,
    /// Steps that were undone, when the weights became those of an earlier checkpoint.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub undone: u64,
    /// How often they became those of the checkpoint before this one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rolled_back: u32,
    /// Steps whose gradients were too large for 16 bits, or for the range of exact sums; they are among those that were skipped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overflows: u64,
    /// The factor of the gradients of the next step, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// The range of the gradients of the next step, where they are added up in whole numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_ranges: Option<GradientRanges>,
    /// The learning rate and what decides its next fall, where the losses of epochs do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plateau: Option<Plateau>,
    /// The samples given to virtual ranks in the epoch under way and the one before, if they are counted.
    #[serde(default, skip_serializing_if = "Deliveries::is_empty")]
    pub delivered: Deliveries,
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}
