//! Where training data comes from: steps of micro-batches, in the order of the plan. The trainer knows no more of
//! loaders than this.

use std::error::Error;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use serde::Serialize;
use shardd_client::loader::{Delivered, TrainerNotes};

/// Why no further step could be read; what failed is the source's own error.
pub type SourceError = Box<dyn Error + Send + Sync>;

/// The samples of a virtual rank in one step.
#[derive(Clone, Debug)]
pub struct MicroBatch {
    /// Whose it is.
    pub virtual_rank: u32,
    /// The rows' positions in the epoch's order, ascending.
    pub positions: Vec<u64>,
    /// The rows; none when a short step has none left for this virtual rank.
    pub rows: RecordBatch,
}

/// This rank's data of one optimizer update.
#[derive(Clone, Debug)]
pub struct Step {
    /// From 0.
    pub epoch: u32,
    /// In the epoch, from 0.
    pub step: u64,
    /// Samples of the step on all ranks.
    pub global_samples: u64,
    /// Where it begins: (epoch, position), the same on every rank.
    pub start: (u32, u64),
    /// Where the next one does. A source that is opened there continues with it.
    pub next: (u32, u64),
    /// One for each virtual rank of this rank, ascending.
    pub micro_batches: Vec<MicroBatch>,
    /// The samples given to each of them, counted and digested; empty when the source keeps no account.
    pub delivered: Vec<Delivered>,
}

/// The reads of this rank in an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// From 0.
    pub epoch: u32,
    /// How many samples.
    pub samples: u64,
    /// Sum of the samples' digests: the fingerprint of the set.
    pub digest_sum: String,
}

/// A source of steps, for one rank.
pub trait StepSource: Send {
    /// The columns of the rows.
    fn schema(&self) -> SchemaRef;

    /// A name for the data read, in which order and in which steps: the same for any rank and number of
    /// ranks, another one where the steps of an epoch have other samples.
    fn name(&self) -> String;

    /// Steps of an epoch.
    fn steps_per_epoch(&self) -> u64;

    /// The next step, or `None` after the last epoch.
    ///
    /// # Errors
    /// Whatever keeps the source from reading on.
    fn next_step(&mut self) -> Result<Option<Step>, SourceError>;

    /// The samples read, by epoch; empty when the source keeps no account.
    fn audits(&self) -> Vec<Audit>;

    /// How long [`StepSource::next_step`] made the trainer wait.
    fn waited(&self) -> Duration;

    /// Where the trainer notes how its steps go; none where it is of no use to anyone.
    fn notes(&self) -> Option<TrainerNotes> {
        None
    }

    /// How many samples had a picture or a sound that could not be made, and have zeros for it.
    fn replaced(&self) -> u64 {
        0
    }
}
