//! How the ranks of a run talk: one small trait that everything above is written against.
//!
//! The single primitive is [`Collective::exchange`], a personalised all-to-all; gathering, broadcasting and barriers
//! follow from it. [`threads`] runs ranks inside one process, [`tcp`] connects processes; both keep the promises that
//! [`conformance`] states. Nothing here knows what a gradient is.

pub mod conformance;
mod inbox;
mod mesh;
pub mod tcp;
pub mod threads;

use std::borrow::Cow;
use std::time::Duration;

use thiserror::Error;

pub use mesh::Mesh;
pub use tcp::TcpCollective;
pub use threads::{ThreadCollective, spawn};

/// Numbers cross the wire as they lie in memory, and the format is little-endian.
const _: () = assert!(cfg!(target_endian = "little"), "the collective's wire format is little-endian");

/// How long a rank waits for the others before it calls them late, unless told otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// An operation that all ranks of a world take part in, in the same order.
///
/// Guarantees, for every implementation: messages arrive whole, unchanged and exactly once; an operation either succeeds
/// or names the rank at fault, and never waits longer than the timeout it was made with; once an operation has failed,
/// every later one fails with the same error.
pub trait Collective: Send {
    /// This rank, from 0.
    fn rank(&self) -> u32;

    /// How many ranks there are.
    fn world(&self) -> u32;

    /// Hands `outgoing[r]` to rank r and returns what every rank handed to this one, in rank order. Lengths are free and
    /// may be zero; the own slot comes back as it was.
    ///
    /// # Errors
    /// Names the rank that is gone, late or out of step.
    ///
    /// # Panics
    /// If `outgoing` has not one message for every rank.
    fn exchange(&mut self, outgoing: &[&[u8]]) -> Result<Vec<Message>, CollectiveError>;

    /// Tells the other ranks why this one cannot go on; they fail with [`CollectiveError::Aborted`] instead of waiting.
    fn abort(&mut self, reason: &str);

    /// Payload bytes sent to other ranks so far.
    fn bytes_sent(&self) -> u64;

    /// What every rank passed as `mine`, in rank order.
    ///
    /// # Errors
    /// As [`Collective::exchange`].
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Message>, CollectiveError> {
        let outgoing = vec![mine; self.world() as usize];
        self.exchange(&outgoing)
    }

    /// What `root` passed, on every rank; the others' argument is ignored.
    ///
    /// # Errors
    /// As [`Collective::exchange`].
    fn broadcast(&mut self, root: u32, bytes: &[u8]) -> Result<Message, CollectiveError> {
        assert!(root < self.world(), "rank {root} outside world of {}", self.world());
        let mine: &[u8] = if self.rank() == root { bytes } else { &[] };
        let outgoing = vec![mine; self.world() as usize];
        Ok(self.exchange(&outgoing)?.swap_remove(root as usize))
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// As [`Collective::exchange`].
    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.all_gather(&[]).map(drop)
    }
}

/// What one rank handed to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message(Vec<u8>);

impl Message {
    pub(crate) fn new(bytes: Vec<u8>) -> Message {
        Message(bytes)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The message as numbers; `None` when its length is not a whole number of them.
    pub fn numbers<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&self) -> Option<Cow<'_, [T]>> {
        if !self.0.len().is_multiple_of(size_of::<T>()) {
            return None;
        }
        // The allocator aligns whole messages well enough, so this borrows; the copy is for the odd one that is not.
        Some(match bytemuck::try_cast_slice(&self.0) {
            Ok(numbers) => Cow::Borrowed(numbers),
            Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(&self.0)),
        })
    }
}

/// Why a collective operation failed. The world is of no further use: every later operation fails alike.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum CollectiveError {
    /// The process or thread of a rank ended, or its connection broke. Start the run again from its last cursor.
    #[error("rank {rank} is gone: {how}")]
    Gone { rank: u32, how: String },
    /// A rank said that it cannot go on, or was found gone by another rank first.
    #[error("rank {rank} stopped the run: {reason}")]
    Aborted { rank: u32, reason: String },
    /// Ranks are connected but did not come to the operation. Look at what they are doing, or allow more time.
    #[error("rank {} not at operation {operation} after {waited:?} (the limit is --timeout)", names(ranks))]
    Late { ranks: Vec<u32>, operation: u64, waited: Duration },
    /// Ranks do not run the same program with the same settings.
    #[error(
        "rank {rank} is at operation {theirs} while this rank is at {ours}: the ranks run different programs"
    )]
    OutOfStep { rank: u32, theirs: u64, ours: u64 },
    /// A rank sent bytes that no rank of this program sends.
    #[error("rank {rank} sent a message that makes no sense: {what}")]
    Malformed { rank: u32, what: String },
}

impl CollectiveError {
    /// The rank at fault; of several late ones the first.
    pub fn rank(&self) -> u32 {
        match self {
            Self::Gone { rank, .. }
            | Self::Aborted { rank, .. }
            | Self::OutOfStep { rank, .. }
            | Self::Malformed { rank, .. } => *rank,
            Self::Late { ranks, .. } => ranks.first().copied().unwrap_or_default(),
        }
    }
}

fn names(ranks: &[u32]) -> String {
    ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
