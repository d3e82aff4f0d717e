//! Run records while training. Every rank notes what its virtual ranks were given and what came of it; rank 0 hears of it while the next
//! step is under way, and writes it down beside the checkpoints, or compares it with what another training had written down.
//!
//! - `recorder.rs`: what all ranks do after a step.
//! - `writer.rs`: rank 0's record, from one publication to the next; a training that resumes from a checkpoint
//!   continues its record.
//! - `check.rs`: rank 0 of a rerun.
//! - `machine.rs`: what rank 0 runs on.
//!
//! The format is [`shardd_store::record`]'s. Digests do not change the training.

mod check;
mod machine;
mod recorder;
mod writer;

use shardd_store::record::{Data, Record, RecordId};
use shardfmt::Digest;

use crate::checkpoint::CheckpointStore;

pub(crate) use recorder::{Noted, Recorder, digest_of};
pub(crate) use writer::Beginning;

/// The use of the record.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Where records are.
    pub shelf: CheckpointStore,
    /// Weights, gradients and inputs are digested in every so-many-th step, at least 1; the same on all ranks.
    pub every: u64,
    /// Its purpose; the same on all ranks.
    pub purpose: Purpose,
}

/// The purpose of the notes on steps.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// A record of this training.
    Write(About),
    /// To see whether they are those of that record, as long as it lasts. The training ends with the last of
    /// them.
    Compare(RecordId, Box<Record>),
}

/// The facts of a record that the training itself does not know.
#[derive(Clone, Debug)]
pub struct About {
    /// The data of the training.
    pub data: Data,
    /// The trainer's settings, beside data, virtual ranks, and where everything is.
    pub arguments: Vec<String>,
}

/// One digest for those of all blocks.
pub(crate) fn weights_digest(blocks: &[Digest]) -> Digest {
    let bytes: Vec<u8> = blocks.iter().flat_map(|digest| digest.0).collect();
    Digest::of(&bytes)
}

#[cfg(test)]
mod tests;
