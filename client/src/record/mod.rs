//! Run records: what a training was, and what each of its steps came to, kept in a store under the name of their digest.
//!
//! A [`Record`] says which data in which order, all settings, who computed it and how it ended; its steps table has for each
//! step the exact loss, the length of the gradient, the digest of the weights after it, and of every virtual rank the digest of what it was
//! given, its loss and the digest of its gradient. Whoever has two of them can tell where two trainings parted.
//!
//! The table is cut at every [`STEPS_PER_PART`] steps into parts that are named by their digest as well, so a training that goes on
//! writes the end of it alone, two records of the same training have the same parts, and who compares two reads the first that
//! differ. Nothing in the table depends on how many ranks there were.
//!
//! - `document.rs`: the record; `steps.rs`: the bytes of its table; `compare.rs`: what differs. Pure.
//! - `shelf.rs`: the records of a store, beside the checkpoints of their runs; `stored.rs`: what each run has there.

mod compare;
mod document;
mod shelf;
mod steps;
pub(crate) mod stored;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub use compare::{
    Comparison, Differing, SettingDifference, StepDifference, first_difference, setting_differences,
};
pub use document::{Data, Ending, FORMAT, Launch, Record, RecordId, StepsTable};
pub use shelf::{Listed, Records, compare};
pub use steps::{Digest128, STEPS_PER_PART, ShareRow, StepRow, decode_part, encode_part};
pub use stored::StoredRun;

use crate::origin::OriginError;

/// Why a record cannot be read, written or found.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum RecordError {
    /// The store cannot be asked, does not take what it is given, or has other bytes than were put.
    #[error(transparent)]
    Store(#[from] OriginError),
    /// The bytes are no record of this program.
    #[error("{what} is damaged: {reason}")]
    Damaged { what: String, reason: String },
    /// A later version of this program wrote it.
    #[error("record {id} has format {found}, this program reads {known}; use the program that wrote it")]
    TooNew { id: String, found: u64, known: u32 },
    /// Name one that there is.
    #[error("there is no record {asked} in {store}: there is {present}")]
    NoSuch { asked: String, store: String, present: String },
    /// Give more of the name.
    #[error("{count} records in {store} are called {asked}: {fitting}; give more of the id")]
    Ambiguous { asked: String, store: String, count: usize, fitting: String },
}
