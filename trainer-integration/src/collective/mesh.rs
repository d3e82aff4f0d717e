//! A collective over any link that can carry a frame from each rank to each other rank. Knows no sockets and no threads.

use std::sync::Arc;
use std::time::Duration;

use super::inbox::{Frame, Inbox};
use super::{Collective, CollectiveError, Message};

/// Carries frames and farewells from this rank to the others; what comes in arrives in the rank's [`Inbox`].
pub(super) trait Link: Send {
    /// Hands the frame over without waiting for it to arrive.
    fn send(&self, to: usize, frame: Frame) -> Result<(), CollectiveError>;
    /// Tells `to` that the run is over because of `rank`; a peer that cannot be told is left to find out.
    fn abort(&self, to: usize, rank: u32, reason: &str);
}

/// A [`Collective`] in which every rank reaches every other one directly.
#[expect(
    private_bounds,
    reason = "links are this module's own; callers name ThreadCollective or TcpCollective"
)]
pub struct Mesh<L: Link> {
    rank: usize,
    world: usize,
    link: L,
    inbox: Arc<Inbox>,
    timeout: Duration,
    operation: u64,
    bytes_sent: u64,
    failed: Option<CollectiveError>,
}

#[expect(private_bounds, reason = "as above")]
impl<L: Link> Mesh<L> {
    pub(super) fn new(rank: usize, world: usize, link: L, inbox: Arc<Inbox>, timeout: Duration) -> Mesh<L> {
        assert!(rank < world, "rank {rank} outside world of {world}");
        Mesh { rank, world, link, inbox, timeout, operation: 0, bytes_sent: 0, failed: None }
    }

    #[cfg(test)]
    pub(super) fn with_link(&self, act: impl FnOnce(&L)) {
        act(&self.link);
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<L> {
        let rank = self.rank;
        (0..self.world).filter(move |&other| other != rank)
    }

    fn attempt(&mut self, outgoing: &[&[u8]]) -> Result<Vec<Message>, CollectiveError> {
        let operation = self.operation;
        self.operation += 1;
        for to in self.others() {
            self.link.send(to, Frame { operation, bytes: outgoing[to].to_vec() })?;
            self.bytes_sent += outgoing[to].len() as u64;
        }
        let mut messages = self.inbox.collect(operation, self.timeout)?;
        messages[self.rank] = Message::new(outgoing[self.rank].to_vec());
        Ok(messages)
    }
}

impl<L: Link> Collective for Mesh<L> {
    fn rank(&self) -> u32 {
        self.rank as u32
    }

    fn world(&self) -> u32 {
        self.world as u32
    }

    fn exchange(&mut self, outgoing: &[&[u8]]) -> Result<Vec<Message>, CollectiveError> {
        assert_eq!(outgoing.len(), self.world, "one message for every rank");
        if let Some(why) = &self.failed {
            return Err(why.clone());
        }
        self.attempt(outgoing).inspect_err(|why| {
            // The others may still be waiting for a rank that is alive but will never get there: tell them the cause.
            let reason = match why {
                CollectiveError::Aborted { reason, .. } => reason.clone(),
                other => other.to_string(),
            };
            for to in self.others() {
                self.link.abort(to, why.rank(), &reason);
            }
            self.failed = Some(why.clone());
        })
    }

    fn abort(&mut self, reason: &str) {
        if self.failed.is_some() {
            return;
        }
        let rank = self.rank as u32;
        for to in self.others() {
            self.link.abort(to, rank, reason);
        }
        self.failed = Some(CollectiveError::Aborted { rank, reason: reason.to_owned() });
    }

    fn bytes_sent(&self) -> u64 {
        self.bytes_sent
    }
}
