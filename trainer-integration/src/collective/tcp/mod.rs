//! Ranks as processes, each connected to each other by one TCP stream. [`rendezvous`](Rendezvous) finds them,
//! this module moves their messages: the calling thread drives all streams itself, straight from and into the
//! caller's memory, and sleeps only while all of them are blocked.
//!
//! With certificates ([`Tls`]) every stream is TLS 1.3, from the first byte of the rendezvous, and both ends prove that
//! they belong together. Without them streams carry checksums, no encryption and no proof of identity: keep them inside
//! a trusted network.

mod callers;
mod connection;
mod machines;
mod peer;
mod rendezvous;
mod session;
mod step;
mod through_nodes;
mod tls;
mod wire;

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};

use super::group_state::GroupState;
use super::{Among, Collective, CollectiveError, DEFAULT_TIMEOUT, Incoming, Link, Outgoing, Sink};
use connection::Connection;
pub use machines::{MOST_LOCAL_RANKS, Machine, MeetError, meet};
use peer::Peer;
pub use rendezvous::{JoinError, Rendezvous, connect};
use step::Step;
pub use through_nodes::{connect_through_nodes, meet_through_nodes};
pub use tls::{Tls, TlsError, TlsFiles};
use wire::{Header, Kind, MAX_TEXT_BYTES};

/// After this time without news a rank looks for aborts behind messages that it does not want yet.
const LONG_WAIT: Duration = Duration::from_millis(200);
/// How long a rank that gives up tries to tell the others, at most.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long before its time is up a rank asks who is not there, at most.
const ROLL_CALL: Duration = Duration::from_secs(1);

/// How a world of processes finds together and how patient it is.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// A name all ranks must share, so that two runs on one address do not mix.
    pub run: String,
    /// How long to wait for all ranks to appear. Default 60 s.
    pub join_timeout: Duration,
    /// How long one operation may wait for the others. Default [`DEFAULT_TIMEOUT`].
    pub timeout: Duration,
    /// A name for the machine, the same for ranks that share it. Default: what the system calls itself until it is started again.
    pub host: Option<String>,
    /// Set by the code that learns that not all ranks will appear: those that wait for them then wait no
    /// longer.
    pub given_up: Arc<AtomicBool>,
    /// The certificates that this rank shows and believes; all ranks have some, or none has. Default: none, plaintext.
    pub tls: Option<Tls>,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            run: String::new(),
            join_timeout: Duration::from_secs(60),
            timeout: DEFAULT_TIMEOUT,
            host: None,
            given_up: Arc::default(),
            tls: None,
        }
    }
}

/// A [`Collective`] between processes; see [`connect`].
#[derive(Debug)]
pub struct TcpCollective {
    standing: GroupState,
    peers: Vec<Option<Peer>>,
    poll: Poll,
    events: Events,
    roll_call: Duration,
    /// The operation that the roll was called in.
    called_in: Option<u64>,
}

/// Puts connections (by rank; the own place is empty) to work.
fn assemble(
    rank: usize,
    connections: Vec<Option<Connection>>,
    hosts: Vec<u32>,
    timeout: Duration,
) -> io::Result<TcpCollective> {
    let poll = Poll::new()?;
    let mut peers = Vec::with_capacity(connections.len());
    for (other, connection) in connections.into_iter().enumerate() {
        peers.push(match connection {
            Some(connection) => {
                let mut peer = Peer::new(other, connection)?;
                let interest = Interest::READABLE | Interest::WRITABLE;
                poll.registry().register(&mut peer.stream, Token(other), interest)?;
                Some(peer)
            }
            None => None,
        });
    }
    let events = Events::with_capacity(2 * peers.len().max(1));
    let standing = GroupState::new(rank, hosts, timeout);
    Ok(TcpCollective {
        standing,
        peers,
        poll,
        events,
        roll_call: ROLL_CALL.min(timeout / 4),
        called_in: None,
    })
}

impl Collective for TcpCollective {
    fn rank(&self) -> u32 {
        self.standing.rank as u32
    }

    fn world(&self) -> u32 {
        self.standing.world as u32
    }

    fn hosts(&self) -> &[u32] {
        &self.standing.hosts
    }

    fn link(&self) -> Link {
        Link::Network
    }

    fn begin(&mut self, among: Among) {
        self.standing.begin(among);
    }

    fn transfer(
        &mut self,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        sink: Sink<'_>,
    ) -> Result<(), CollectiveError> {
        if let Some(why) = &self.standing.failed {
            return Err(why.clone());
        }
        let mut step = Step::new(&self.standing, outgoing, incoming);
        self.perform(&mut step, sink).map_err(|why| {
            // A rank that reported the cause of the end says more than one that has gone because of it.
            let why = if matches!(why, CollectiveError::Gone { .. }) { self.abort_or(why) } else { why };
            // The others may still be waiting for a rank that is alive but will never get there: tell them the cause.
            self.say_farewell(&mut step, why.rank(), &why.reason());
            self.standing.failed = Some(why.clone());
            why
        })
    }

    fn abort(&mut self, reason: &str) {
        if self.standing.failed.is_some() {
            return;
        }
        let rank = self.rank();
        self.say_farewell(&mut Step::new(&self.standing, &[], &mut []), rank, reason);
        self.standing.failed = Some(CollectiveError::Aborted { rank, reason: reason.to_owned() });
    }

    fn bytes_sent(&self) -> u64 {
        self.standing.bytes_sent
    }

    fn waits(&self) -> &[Duration] {
        &self.standing.waits
    }

    fn waited(&self) -> Duration {
        self.standing.waited()
    }
}

impl TcpCollective {
    fn perform(&mut self, step: &mut Step<'_, '_>, sink: Sink<'_>) -> Result<(), CollectiveError> {
        loop {
            let mut is_moving = false;
            for rank in 0..self.peers.len() {
                let Some(peer) = &mut self.peers[rank] else { continue };
                is_moving |= step.send(rank, peer, &mut self.standing)?;
                is_moving |= step.receive(rank, peer, &mut self.standing)?;
                is_moving |= step.deliver(&mut self.peers, sink);
            }
            if step.is_done() {
                return Ok(());
            }
            if is_moving {
                continue;
            }
            let Some(left) = self.standing.remaining() else { return Err(self.late(step)) };
            let operation = Some(self.standing.operation());
            let is_asked = self.peers.iter().flatten().any(|peer| peer.waiting_in == operation);
            let has_called = self.called_in == operation || self.standing.is_of_two();
            if !has_called && (left <= self.roll_call || is_asked) {
                self.called_in = operation;
                self.call_the_roll(step);
                continue;
            }
            let limit = if has_called { left } else { left - self.roll_call };
            let started = Instant::now();
            self.wait(if step.looks_ahead { limit } else { limit.min(LONG_WAIT) })?;
            step.looks_ahead |= started.elapsed() >= LONG_WAIT;
        }
    }

    /// Sleeps until a stream can continue or the time is up.
    fn wait(&mut self, limit: Duration) -> Result<(), CollectiveError> {
        match self.poll.poll(&mut self.events, Some(limit)) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            Err(error) => {
                let rank = self.standing.rank as u32;
                return Err(CollectiveError::Gone {
                    rank,
                    how: format!("it cannot wait for its streams: {error}"),
                });
            }
        }
        for event in &self.events {
            let Some(peer) = self.peers.get_mut(event.token().0).and_then(Option::as_mut) else { continue };
            peer.is_readable |= event.is_readable() || event.is_read_closed() || event.is_error();
            peer.is_writable |= event.is_writable() || event.is_write_closed() || event.is_error();
        }
        Ok(())
    }

    /// Tells everyone that this rank is there and waits: most algorithms wait for a rank that itself waits for another, and
    /// it is the one that says nothing that is late.
    fn call_the_roll(&mut self, step: &mut Step<'_, '_>) {
        let call = Header::of_text(Kind::Waiting, self.standing.operation(), &[]);
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            // A stream in the middle of a piece is one of a rank that could see that this one is there.
            if let Some(peer) = peer
                && !step.is_sending(rank)
            {
                // 48 bytes fit or the rank has not read for long; a stream that broke is found by reading.
                let written = peer.write(&call, &[]).unwrap_or(0);
                step.finish_later(rank, peer, &call, written);
            }
        }
    }

    fn late(&self, step: &Step<'_, '_>) -> CollectiveError {
        let operation = self.standing.operation();
        self.standing.late(&step.waits_for(), |rank| {
            self.standing.has_heard(rank)
                || self.peers[rank].as_ref().is_some_and(|peer| peer.is_at(operation))
        })
    }

    fn abort_or(&mut self, otherwise: CollectiveError) -> CollectiveError {
        let words = self.peers.iter_mut().flatten().map(|peer| peer.last_word(otherwise.clone()));
        words.into_iter().find(|why| matches!(why, CollectiveError::Aborted { .. })).unwrap_or(otherwise)
    }

    /// Finishes the pieces that are half sent and tells every rank that is still reachable why there are no
    /// more.
    fn say_farewell(&mut self, step: &mut Step<'_, '_>, at_fault: u32, reason: &str) {
        let end = reason.floor_char_boundary(MAX_TEXT_BYTES);
        let text = &reason.as_bytes()[..end];
        let mut words = Header::of_text(Kind::Abort, u64::from(at_fault), text).to_vec();
        words.extend_from_slice(text);
        let mut told: Vec<Option<usize>> = self.peers.iter().map(|peer| peer.as_ref().map(|_| 0)).collect();
        let until = Instant::now() + FAREWELL;
        loop {
            for (rank, told) in told.iter_mut().enumerate() {
                let (Some(peer), Some(written)) = (&mut self.peers[rank], *told) else { continue };
                *told = step
                    .finish_piece(rank, peer)
                    .and_then(|is_finished| {
                        let more = if is_finished && peer.is_writable {
                            peer.write(&words[written..], &[])?
                        } else {
                            0
                        };
                        let written = written + more;
                        Ok(Some(written).filter(|&written| written < words.len() || !peer.is_flushed()))
                    })
                    .unwrap_or(None);
            }
            let left = until.saturating_duration_since(Instant::now());
            if told.iter().all(Option::is_none) || left.is_zero() || self.wait(left).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
