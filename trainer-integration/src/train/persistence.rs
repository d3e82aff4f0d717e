//! How a training begins, what of it is kept, who may end it, and how it has ended.

use serde_json::Value;

use super::step_losses::StepLosses;
use super::{StateTransfer, Trained};
use crate::checkpoint::{Checkpoint, Checkpoints, StopFlag};
use crate::name_pattern::NamePattern;
use crate::record::Recording;
use crate::trace::Tracer;
use crate::weights::Weights;

/// How a training begins, what of it is kept, and who may end it.
#[derive(Clone, Debug, Default)]
pub struct Persistence {
    /// How it begins; the same on all ranks.
    pub start: Start,
    /// Where checkpoints are kept and when they are written, if they are.
    pub checkpoints: Option<Checkpoints>,
    /// Ends it after a step, with a checkpoint, if there is a place for it. It is enough to raise that of one rank.
    pub stop: StopFlag,
    /// Pauses it after a step, so that it continues in another group of ranks, if all have such a flag. It is
    /// enough to raise that of one rank.
    pub pause: Option<StopFlag>,
    /// Where this rank leaves its state of the training when it has paused, or lost another rank. The next
    /// group continues from there: [`hand_over`](crate::checkpoint::hand_over). Default nowhere.
    pub legacy: Option<StateTransfer>,
    /// Continues this record of the work and its times; by default with a new one, if one is wanted.
    pub tracer: Option<Tracer>,
    /// Whether the outcome of its steps is recorded, or compared with a record.
    pub recording: Option<Recording>,
    /// The step whose samples' losses are wanted. Default none.
    pub step_losses: Option<StepLosses>,
}

/// How a training begins.
#[derive(Clone, Debug, Default)]
pub enum Start {
    /// With weights that follow from the seed.
    #[default]
    Seed,
    /// With these, by name; running statistics that are not among them begin as ever.
    Weights(Weights),
    /// With these, by name, but for the parameters and running statistics that a pattern matches: they begin as with
    /// [`Start::Seed`], and tensors of such a name are ignored, whatever their dimensions. So a model with another head
    /// begins with the rest of a trained one.
    Partly {
        /// The tensors.
        weights: Weights,
        /// The names that are left out, each pattern of at least one.
        skip: Vec<NamePattern>,
    },
    /// Where a checkpoint ends. The source begins there, too.
    Checkpoint(Box<Checkpoint>),
}

/// How a training ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It is done.
    Trained(Box<Trained>),
    /// It was asked to stop.
    Stopped(Stopped),
    /// It was asked to pause, after this number of steps.
    Paused(u64),
}

/// Where a training stopped that was asked to, and where its last checkpoint is.
#[derive(Clone, Debug, PartialEq)]
pub struct Stopped {
    /// Steps that were trained.
    pub steps: u64,
    /// Steps of the whole training.
    pub of: u64,
    /// As [`Trained::trace`].
    pub trace: Vec<Value>,
}
