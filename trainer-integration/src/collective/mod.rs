//! How the ranks of a run talk: one small trait that everything above is written against.
//!
//! The single primitive is [`Collective::transfer`]: all that a rank sends and receives in one step of an algorithm, at
//! once. Gathering, broadcasting, exchanging and barriers follow from it here; sums over all ranks, and the algorithms to choose among for them, are in
//! [`reduce`](crate::reduce). [`threads`] runs ranks inside one process, [`tcp`] connects processes; both keep the promises
//! that [`conformance`] states. [`nccl`] adds up gradients between GPUs, beside it. Nothing else here knows what a gradient is.

pub mod conformance;
#[cfg(test)]
pub(crate) mod counted;
mod group_state;
mod message;
pub mod nccl;
pub(crate) mod numbers;
mod pieces;
mod straggler;
pub mod sums;
pub mod tcp;
pub mod threads;

use std::time::Duration;

use thiserror::Error;

pub use message::Message;
pub use numbers::{Number, slice_of};
pub use pieces::PIECE_BYTES;
pub use straggler::{Straggler, StragglerWatch, straggler, waited_for};
pub use tcp::TcpCollective;
pub use threads::{ThreadCollective, spawn};

/// Numbers cross the wire as they lie in memory, and the format is little-endian.
const _: () = assert!(cfg!(target_endian = "little"), "the collective's wire format is little-endian");

/// How long a rank waits for the others before it calls them late, by default.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// A message for another rank.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Whom it is for.
    pub to: u32,
    /// Its contents.
    pub bytes: &'a [u8],
}

/// A message that is expected of another rank.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// Who sends it.
    pub from: u32,
    /// Its destination.
    pub into: Place<'a>,
}

/// Where a message goes.
#[derive(Debug)]
pub enum Place<'a> {
    /// Over these bytes. It has exactly as many.
    Slice(&'a mut [u8]),
    /// In place of the present bytes, of any length.
    Whole(&'a mut Vec<u8>),
    /// To the transfer's sink, piece by piece. It has this number of bytes.
    Sink(usize),
}

/// A part of a message of [`Place::Sink`], in memory that is aligned for numbers of up to 8 bytes if the sender's is.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Which of the expected messages it is a part of, by its place in their list.
    pub incoming: usize,
    /// Where in the message it begins.
    pub offset: usize,
    /// [`PIECE_BYTES`], or the rest of the message.
    pub bytes: &'a [u8],
}

/// Takes pieces as they come: the first piece of every message that goes there, in the order of the list, then the second
/// of each, and so on. So messages of the same length can be added to one another in a fixed order, a piece at a time, while
/// the pieces are in the processor's cache.
pub type Sink<'a> = &'a mut dyn FnMut(Piece<'_>);

/// Who takes part in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// Every rank of the world, in the same order of operations.
    All,
    /// Two ranks, whatever the others do.
    Two,
}

/// The kind of link, where it matters for the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Ranks read each other's memory.
    Memory,
    /// Ranks write to sockets.
    Network,
}

/// The ranks of a run, as one of them sees the others.
///
/// Guarantees, for every implementation: messages arrive whole, unchanged and exactly once; an operation either succeeds
/// or names the rank at fault, and never waits longer than the timeout it was made with; once an operation has failed,
/// every later one fails with the same error; a rank that aborts is noticed by each rank that waits for
/// another one.
pub trait Collective: Send {
    /// This rank, from 0.
    fn rank(&self) -> u32;

    /// How many ranks there are.
    fn world(&self) -> u32;

    /// The machine of every rank, in rank order: ranks with the same number share one.
    fn hosts(&self) -> &[u32];

    /// The link of messages.
    fn link(&self) -> Link;

    /// An operation begins: the transfers until the next one are its steps, and its time runs from now on.
    fn begin(&mut self, among: Among);

    /// Sends and receives these messages, all at the same time; done when every one of them is. The messages from one rank to
    /// another are identified by their order in the lists of the two.
    ///
    /// # Errors
    /// Names the rank that is gone, late or out of step. Half of a message may then have been written to its place.
    ///
    /// # Panics
    /// If a message is for this rank or from it, or for one outside the world.
    fn transfer(
        &mut self,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        sink: Sink<'_>,
    ) -> Result<(), CollectiveError>;

    /// Tells the other ranks why this one cannot continue; they fail with [`CollectiveError::Aborted`]
    /// instead of waiting.
    fn abort(&mut self, reason: &str);

    /// Payload bytes sent to other ranks so far.
    fn bytes_sent(&self) -> u64;

    /// How long this rank has waited for each rank so far: from when it first expected something of it in an operation until
    /// the first byte was there, over all operations.
    fn waits(&self) -> &[Duration];

    /// How long this rank has waited for others so far. A time in which it waited for several counts once.
    fn waited(&self) -> Duration;

    /// Hands `outgoing[r]` to rank r and returns what every rank handed to this one, in rank order. Lengths are free and
    /// may be zero; the own slot comes back as it was.
    ///
    /// # Errors
    /// As [`Collective::transfer`].
    ///
    /// # Panics
    /// If `outgoing` has not one message for every rank.
    fn exchange(&mut self, outgoing: &[&[u8]]) -> Result<Vec<Message>, CollectiveError> {
        self.begin(Among::All);
        let (rank, world) = (self.rank() as usize, self.world() as usize);
        assert_eq!(outgoing.len(), world, "one message for every rank");
        let sends: Vec<_> =
            others(rank, world).map(|to| Outgoing { to: to as u32, bytes: outgoing[to] }).collect();
        let mut received = vec![Vec::new(); world];
        received[rank] = outgoing[rank].to_vec();
        let mut places: Vec<_> = received
            .iter_mut()
            .enumerate()
            .filter(|(from, _)| *from != rank)
            .map(|(from, bytes)| Incoming { from: from as u32, into: Place::Whole(bytes) })
            .collect();
        self.transfer(&sends, &mut places, &mut |_| {})?;
        Ok(received.into_iter().map(Message::new).collect())
    }

    /// The `mine` of every rank, in rank order.
    ///
    /// # Errors
    /// As [`Collective::transfer`].
    fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Message>, CollectiveError> {
        let outgoing = vec![mine; self.world() as usize];
        self.exchange(&outgoing)
    }

    /// What `root` passed, on every rank; the others' argument is ignored. It travels down a binomial tree, so `root` sends it
    /// to as many ranks as the world size has binary digits.
    ///
    /// # Errors
    /// As [`Collective::transfer`].
    ///
    /// # Panics
    /// If `root` is outside the world.
    fn broadcast(&mut self, root: u32, bytes: &[u8]) -> Result<Message, CollectiveError> {
        let world = self.world();
        assert!(root < world, "rank {root} outside world of {world}");
        self.begin(Among::All);
        let place = (self.rank() + world - root) % world;
        let at = |place: u32| (place + root) % world;
        let mut message = Vec::new();
        // The parent is the place without its lowest one; the children add one below that.
        let reach = if place == 0 { world.next_power_of_two() } else { place & place.wrapping_neg() };
        if place == 0 {
            message.extend_from_slice(bytes);
        } else {
            let mut parent = [Incoming { from: at(place - reach), into: Place::Whole(&mut message) }];
            self.transfer(&[], &mut parent, &mut |_| {})?;
        }
        // The child with the most below it first.
        let children = (0..reach.ilog2()).rev().map(|digit| place + (1 << digit));
        let sends: Vec<_> = children
            .filter(|&child| child < world)
            .map(|child| Outgoing { to: at(child), bytes: &message })
            .collect();
        self.transfer(&sends, &mut [], &mut |_| {})?;
        Ok(Message::new(message))
    }

    /// Returns once every rank has called it: in round k each rank hears of the one 2ᵏ below it and through it of all that
    /// that one has heard of (Hensgen, Finkel and Manber's dissemination).
    ///
    /// # Errors
    /// As [`Collective::transfer`].
    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.begin(Among::All);
        let (rank, world) = (self.rank(), self.world());
        let mut distance = 1;
        while distance < world {
            let to = [Outgoing { to: (rank + distance) % world, bytes: &[] }];
            let from = (rank + world - distance) % world;
            self.transfer(&to, &mut [Incoming { from, into: Place::Slice(&mut []) }], &mut |_| {})?;
            distance *= 2;
        }
        Ok(())
    }

    /// Sends a message to one rank, which calls [`Collective::receive`]; returns when it has been sent, over TCP perhaps before it is
    /// received.
    ///
    /// # Errors
    /// As [`Collective::transfer`].
    fn send(&mut self, to: u32, bytes: &[u8]) -> Result<(), CollectiveError> {
        self.begin(Among::Two);
        self.transfer(&[Outgoing { to, bytes }], &mut [], &mut |_| {})
    }

    /// The next message of one rank, which calls [`Collective::send`].
    ///
    /// # Errors
    /// As [`Collective::transfer`].
    fn receive(&mut self, from: u32) -> Result<Message, CollectiveError> {
        self.begin(Among::Two);
        let mut message = Vec::new();
        let mut incoming = [Incoming { from, into: Place::Whole(&mut message) }];
        self.transfer(&[], &mut incoming, &mut |_| {})?;
        Ok(Message::new(message))
    }
}

/// All ranks but `rank`, the next one first: when every rank follows this order, no two begin with the same one.
fn others(rank: usize, world: usize) -> impl Iterator<Item = usize> {
    (1..world).map(move |distance| (rank + distance) % world)
}

/// Why a collective operation failed. The world is of no further use: every later operation fails alike.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum CollectiveError {
    /// The process or thread of a rank ended, or its connection broke. Start the run again from its last cursor.
    #[error("rank {rank} is gone: {how}")]
    Gone { rank: u32, how: String },
    /// A rank reported that it cannot continue, or was found gone by another rank first.
    #[error("rank {rank} stopped the run: {reason}")]
    Aborted { rank: u32, reason: String },
    /// Ranks are connected but did not reach the operation. Look at their state, or allow more time.
    #[error("rank {} not at {} after {waited:?} (the limit is --timeout)", names(ranks), named(*operation))]
    Late { ranks: Vec<u32>, operation: u64, waited: Duration },
    /// Ranks do not run the same program with the same settings.
    #[error(
        "rank {rank} is at {} while this rank is at {}: the ranks run different programs",
        named(*theirs),
        named(*ours)
    )]
    OutOfStep { rank: u32, theirs: u64, ours: u64 },
    /// A rank sent bytes that no rank of this program sends.
    #[error("rank {rank} sent an invalid message: {what}")]
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

    /// The message to the other ranks: the cause itself, not that it was passed on.
    fn reason(&self) -> String {
        match self {
            Self::Aborted { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }
}

fn named(operation: u64) -> String {
    if operation == group_state::OF_TWO {
        "a message of two ranks".to_owned()
    } else {
        format!("operation {operation}")
    }
}

fn names(ranks: &[u32]) -> String {
    ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
