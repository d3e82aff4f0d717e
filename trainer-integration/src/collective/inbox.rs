//! Where messages to a rank wait until it asks for them. Knows how to wait, not how messages travel.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::{CollectiveError, Message};

/// A message with the number of the operation that it belongs to.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) operation: u64,
    pub(super) bytes: Vec<u8>,
}

/// The messages that other ranks have sent to one rank, and which of them will send no more.
///
/// Bounded by the protocol: a rank sends for operation n + 1 only after it has received this rank's message for
/// operation n, so at most two frames of each rank wait here.
#[derive(Debug)]
pub(super) struct Inbox {
    rank: usize,
    senders: Mutex<Vec<Sender>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Sender {
    frames: VecDeque<Frame>,
    /// Why nothing more will come.
    ended: Option<CollectiveError>,
}

impl Inbox {
    pub(super) fn new(rank: usize, world: usize) -> Inbox {
        let senders = (0..world).map(|_| Sender::default()).collect();
        Inbox { rank, senders: Mutex::new(senders), changed: Condvar::new() }
    }

    pub(super) fn deliver(&self, from: usize, frame: Frame) {
        self.senders()[from].frames.push_back(frame);
        self.changed.notify_all();
    }

    /// Nothing more comes from `from`; the first reason given stays.
    pub(super) fn end(&self, from: usize, why: CollectiveError) {
        self.senders()[from].ended.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Waits for the message of every other rank for `operation`; the own slot is left empty.
    pub(super) fn collect(&self, operation: u64, timeout: Duration) -> Result<Vec<Message>, CollectiveError> {
        let started = Instant::now();
        let mut senders = self.senders();
        loop {
            let missing: Vec<usize> = (0..senders.len())
                .filter(|&from| from != self.rank && senders[from].frames.is_empty())
                .collect();
            if missing.is_empty() {
                return self.take(&mut senders, operation);
            }
            if let Some(why) = first_cause(&senders, &missing) {
                return Err(why);
            }
            let waited = started.elapsed();
            if waited >= timeout {
                let ranks = missing.iter().map(|&rank| rank as u32).collect();
                return Err(CollectiveError::Late { ranks, operation, waited: timeout });
            }
            senders = self
                .changed
                .wait_timeout(senders, timeout - waited)
                .expect("no panic while the inbox is locked")
                .0;
        }
    }

    fn take(&self, senders: &mut [Sender], operation: u64) -> Result<Vec<Message>, CollectiveError> {
        let mut messages = Vec::with_capacity(senders.len());
        for (from, sender) in senders.iter_mut().enumerate() {
            let Some(frame) = sender.frames.pop_front() else {
                debug_assert_eq!(from, self.rank, "every other rank has a frame waiting");
                messages.push(Message::default());
                continue;
            };
            if frame.operation != operation {
                let (theirs, ours) = (frame.operation, operation);
                return Err(CollectiveError::OutOfStep { rank: from as u32, theirs, ours });
            }
            messages.push(Message::new(frame.bytes));
        }
        Ok(messages)
    }

    fn senders(&self) -> MutexGuard<'_, Vec<Sender>> {
        self.senders.lock().expect("no panic while the inbox is locked")
    }
}

/// Why the missing will not come: any rank's abort says more than a missing rank's closed connection.
fn first_cause(senders: &[Sender], missing: &[usize]) -> Option<CollectiveError> {
    let mut reasons = senders.iter().filter_map(|sender| sender.ended.as_ref());
    let abort = reasons.find(|why| matches!(why, CollectiveError::Aborted { .. }));
    abort.or_else(|| missing.iter().find_map(|&from| senders[from].ended.as_ref())).cloned()
}
