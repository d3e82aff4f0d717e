//! Checkpoints: the state of a training after a number of steps, in a store, from which it resumes with any
//! number of ranks as if it had never stopped.
//!
//! A checkpoint is a [`Manifest`] and objects that hold its numbers, all named by their BLAKE3 digest. What
//! all ranks have in common (weights and moments) is cut into pieces at places that follow from the model
//! alone; the running statistics of each virtual rank are an object of their own. So neither the world size
//! nor the stage of [ZeRO](crate::zero) leaves a trace: a checkpoint of the same step has the same name for
//! any writer, and shares its unchanged objects with the previous one. Random numbers are functions of seed,
//! step and virtual rank ([`random`](crate::random)): seed and step are all there is to keep of them.
//!
//! - `manifest.rs`: the document, `pieces.rs`: which numbers lie in which object, `part.rs`: its bytes, and `plan.rs`:
//!   which rank writes or reads it, and what ranks send each other for that. Pure.
//! - `checkpoint_store.rs`: the objects of a run in a store: parts first, then the manifest, the oldest away.
//! - `manager.rs`: writes in the background; ranks agree on a checkpoint without waiting for each other. A step waits
//!   for `capture.rs` alone; `upload.rs` runs in the background.
//! - `load.rs`: all ranks together read the newest that is whole; each gets its part (`state.rs`).
//! - `handover.rs`: without a store, from the ranks of one group to those of the next.
//! - `export.rs`: the weights as one file.

mod capture;
mod checkpoint_store;
mod codec;
mod export;
mod handover;
mod layout;
mod load;
mod manager;
mod manifest;
mod objects;
mod part;
mod peer_checkpoint;
mod pieces;
mod plan;
mod state;
mod upload;

use std::collections::BTreeSet;

use shardd_store::origin::OriginError;
use thiserror::Error;

use crate::collective::CollectiveError;
use crate::weights::WeightsError;

pub(crate) use capture::Held;
pub use checkpoint_store::CheckpointStore;
pub use export::{Exported, export, export_as};
pub use handover::hand_over;
pub use layout::Kind;
pub use layout::{BlockLayout, Layout};
pub use load::{Checkpoint, Resume, load};
pub use manager::{CheckpointBytes, CheckpointCosts, Checkpoints, StopFlag};
pub(crate) use manager::{CheckpointManager, Next, Snapshot};
pub use manifest::{CheckpointId, Manifest, Place, Settings};
pub use part::Part;
pub use peer_checkpoint::PeerCheckpoint;
pub use pieces::Stretch;
pub(crate) use plan::Holding;
pub use state::{Numbers, State};

/// Why a checkpoint cannot be written or read.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum CheckpointError {
    /// The store cannot be asked, or does not take new objects.
    #[error(transparent)]
    Store(#[from] OriginError),
    /// There is no runtime to ask the store with.
    #[error("the thread for checkpoints could not be started")]
    Threads(#[source] std::io::Error),
    /// The bytes are not a checkpoint of this program.
    #[error("checkpoint {id} is damaged: {reason}")]
    Damaged { id: String, reason: String },
    /// A later version of this program wrote it.
    #[error("checkpoint {id} has format {found}, this program reads {known}; use the program that wrote it")]
    TooNew { id: String, found: u64, known: u32 },
    /// There are checkpoints, but none that is whole.
    #[error(
        "no checkpoint of run {run} in {store} can be read ({reasons}); restore one, or begin another --run"
    )]
    NoneWhole { run: String, store: String, reasons: String },
    /// The one that is wanted is not there.
    #[error("run {run} in {store} has no checkpoint {wanted}; there are {present}")]
    NoSuch { wanted: String, run: String, store: String, present: String },
    /// The run is to begin, but has begun before.
    #[error(
        "run {run} has checkpoints in {store} already, the newest {newest}; resume from it (--resume auto), \
        or give another --run"
    )]
    HasBegun { run: String, store: String, newest: String },
    /// The training was another one.
    #[error(
        "checkpoint {id} is of another training: {differences}; give the same settings, or another --run"
    )]
    Settings { id: String, differences: String },
    /// Its running numbers have no names, which the file needs.
    #[error(
        "checkpoint {id} has format {format}, which does not say what its running statistics are called; \
        resume from it with this program (shardtrain --resume) and export the checkpoint that it writes"
    )]
    Unnamed { id: String, format: u32 },
    /// The training has no adapters.
    #[error("checkpoint {id} is of a training without adapters (--lora); export all of its weights")]
    NoAdapters { id: String },
    /// The weights do not fit into a file.
    #[error("the weights cannot be saved")]
    Weights(#[from] WeightsError),
    /// The file cannot be written.
    #[error("cannot write {path}")]
    File { path: String, source: std::io::Error },
    /// Another rank could not read or write.
    #[error("rank {rank}: {reason}")]
    Elsewhere { rank: u32, reason: String },
    /// Another rank is gone or late.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

/// The differences of two sets of settings, theirs first; empty if there are none.
pub(crate) fn differences(ours: &Settings, theirs: &Settings) -> String {
    let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let value = |settings: &Settings, name| {
        settings.get(name).map_or_else(|| "nothing".to_owned(), |it| as_given(it))
    };
    let differing = names.into_iter().filter(|name| ours.get(*name) != theirs.get(*name));
    let said =
        differing.map(|name| format!("{name} ({} against {})", value(theirs, name), value(ours, name)));
    said.collect::<Vec<_>>().join(", ")
}

/// A number of 32 bits as it was given, not with the digits that it has in 64 bits.
fn as_given(value: &str) -> String {
    let number = value.parse::<f64>().ok().map(|number| (number, number as f32));
    match number.filter(|(number, short)| f64::from(*short) == *number) {
        Some((_, short)) if short.to_string().len() < value.len() => short.to_string(),
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests;
