//! Run records: the settings of a training and the outcome of each of its steps, kept in a store under the
//! name of their digest.
//!
//! A [`Record`] has the data and its order, all settings, the processes and the end of a training. Its table
//! of steps has for each step the exact loss, the norm of the gradient, the digest of the weights after it,
//! and for every virtual rank the digests of its input and its gradient, and its loss. Two records show the
//! step at which two trainings part.
//!
//! The table is cut at every [`STEPS_PER_PART`] steps into parts that are named by their digest as well. So a
//! resumed training writes the end of it alone, two records of the same training have the same parts, and a
//! comparison reads the first parts that differ. Nothing in the table depends on how many ranks there were.
//!
//! - `document.rs`: the record; `steps.rs`: the bytes of its table; `compare.rs`: what differs;
//!   `course.rs`: what charts show; `losses.rs`: the losses of single samples of a step. Pure.
//! - `shelf.rs`: the records of a store, beside the checkpoints of their runs; `saved.rs`: saved losses beside them; `stored.rs`: what
//!   each run has there.

mod compare;
mod course;
mod document;
mod losses;
pub(crate) mod saved;
mod shelf;
mod steps;
pub(crate) mod stored;
#[cfg(test)]
mod tests;

use thiserror::Error;

use crate::origin::OriginError;

pub use compare::{
    Comparison, Differing, SettingDifference, StepDifference, first_difference, setting_differences,
};
pub use course::{Course, CoursePoint, ShareExplained, StepExplained};
pub use document::{CheckpointWritten, Data, Ending, FORMAT, Launch, Record, RecordId, StepsTable};
pub use losses::{SampleLoss, decode_losses, encode_losses, largest_first};
pub use shelf::{Listed, Records, compare};
pub use steps::{Digest128, STEPS_PER_PART, ShareRow, StepRow, decode_part, encode_part};
pub use stored::StoredRun;

/// Why a record cannot be read, written or found.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum RecordError {
    /// The store cannot be asked, does not take new bytes, or has other bytes than were put.
    #[error(transparent)]
    Store(#[from] OriginError),
    /// The bytes are no record of this program.
    #[error("{what} is damaged: {reason}")]
    Damaged { what: String, reason: String },
    /// A later version of this program wrote it.
    #[error("{what} has format {found}, this program reads {known}; use the program that wrote it")]
    TooNew { what: String, found: u64, known: u32 },
    /// There is nothing to save, or too much for one file.
    #[error("{what} cannot be saved: {reason}")]
    Unfit { what: String, reason: String },
    /// Name one that there is.
    #[error("there is no record {asked} in {store}: there is {present}")]
    NoSuch { asked: String, store: String, present: String },
    /// Give more of the name.
    #[error("{count} records in {store} are called {asked}: {fitting}; give more of the id")]
    Ambiguous { asked: String, store: String, count: usize, fitting: String },
}
