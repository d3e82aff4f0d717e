//! Checkpoints: what a training is after so many steps, in a store, from which it goes on with any number of ranks as if it had
//! never stopped.
//!
//! A checkpoint is a [`Manifest`] and one part for each virtual rank, all named by their BLAKE3 digest. A part is an equal share of
//! what all ranks have in common (weights and moments, as one row of numbers) and the running statistics that are the virtual
//! rank's own, so the world size leaves no trace: W ranks write the parts of the virtual ranks they host, W' ranks read them, and a
//! checkpoint of the same step has the same name whoever wrote it. Random numbers are functions of seed, step and virtual rank
//! ([`random`](crate::random)): seed and step are all there is to keep of them.
//!
//! - `manifest.rs`: the document, and `part.rs`: how numbers are cut into parts. Pure.
//! - `shelf.rs`: the objects of a run in a store: parts first, then the manifest, the oldest away.
//! - `keeper.rs`: writes while training goes on; ranks agree on what is written without waiting for each other.
//! - `load.rs`: all ranks together read the newest that is whole.

mod keeper;
mod load;
mod manifest;
mod part;
mod shelf;

use std::collections::BTreeSet;

use shardd_client::origin::OriginError;
use thiserror::Error;

pub use keeper::{Checkpoints, StopFlag};
pub(crate) use keeper::{Keeper, Next, Snapshot};
pub use load::{Checkpoint, Resume, load};
pub use manifest::{BlockLayout, CheckpointId, Exact, Layout, Manifest, Place, Settings};
pub use part::{Part, State};
pub use shelf::Shelf;

use crate::collective::CollectiveError;

/// Why a checkpoint cannot be written or read.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum CheckpointError {
    /// The store cannot be asked, or does not take what it is given.
    #[error(transparent)]
    Store(#[from] OriginError),
    /// There is no runtime to ask the store with.
    #[error("no thread for checkpoints")]
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
        "run {run} has checkpoints in {store} already, the newest {newest}; go on from it (--resume auto), or give another --run"
    )]
    HasBegun { run: String, store: String, newest: String },
    /// The training was another one.
    #[error(
        "checkpoint {id} is of another training: {differences}; give the same settings, or another --run"
    )]
    Settings { id: String, differences: String },
    /// Another rank could not read or write.
    #[error("rank {rank}: {reason}")]
    Elsewhere { rank: u32, reason: String },
    /// Another rank is gone or late.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

/// What two sets of settings differ in, theirs first; empty if in nothing.
pub(crate) fn differences(ours: &Settings, theirs: &Settings) -> String {
    let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let value =
        |settings: &Settings, name| settings.get(name).cloned().unwrap_or_else(|| "nothing".to_owned());
    let differing = names.into_iter().filter(|name| ours.get(*name) != theirs.get(*name));
    let said =
        differing.map(|name| format!("{name} ({} against {})", value(theirs, name), value(ours, name)));
    said.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
