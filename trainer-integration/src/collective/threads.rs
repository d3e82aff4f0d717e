//! Ranks as threads of one process: messages are handed over in memory.

use std::sync::Arc;
use std::time::Duration;

use super::inbox::{Frame, Inbox};
use super::mesh::{Link, Mesh};
use super::{CollectiveError, DEFAULT_TIMEOUT};

/// A [`Collective`](super::Collective) between threads; see [`world`] and [`spawn`].
pub type ThreadCollective = Mesh<ThreadLink>;

/// The way from one thread's rank to the inboxes of the others.
#[derive(Debug)]
pub struct ThreadLink {
    rank: usize,
    inboxes: Arc<[Arc<Inbox>]>,
}

impl Link for ThreadLink {
    fn send(&self, to: usize, frame: Frame) -> Result<(), CollectiveError> {
        self.inboxes[to].deliver(self.rank, frame);
        Ok(())
    }

    fn abort(&self, to: usize, rank: u32, reason: &str) {
        self.inboxes[to].end(self.rank, CollectiveError::Aborted { rank, reason: reason.to_owned() });
    }
}

impl Drop for ThreadLink {
    /// Whoever still waits for this rank must not wait for ever.
    fn drop(&mut self) {
        let how = if std::thread::panicking() { "its thread panicked" } else { "its thread ended" };
        for (to, inbox) in self.inboxes.iter().enumerate() {
            if to != self.rank {
                inbox.end(self.rank, CollectiveError::Gone { rank: self.rank as u32, how: how.to_owned() });
            }
        }
    }
}

/// The members of a world of `ranks`, in rank order; give each to a thread of its own.
pub fn world(ranks: u32, timeout: Duration) -> Vec<ThreadCollective> {
    let ranks = ranks as usize;
    let inboxes: Arc<[Arc<Inbox>]> = (0..ranks).map(|rank| Arc::new(Inbox::new(rank, ranks))).collect();
    (0..ranks)
        .map(|rank| {
            let link = ThreadLink { rank, inboxes: Arc::clone(&inboxes) };
            Mesh::new(rank, ranks, link, Arc::clone(&inboxes[rank]), timeout)
        })
        .collect()
}

/// Runs `rank` once for every rank of a world of threads and returns what they returned, in rank order.
///
/// # Panics
/// If a rank panics, after all have ended: the others fail with [`CollectiveError::Gone`] instead of waiting for it.
pub fn spawn<R: Send>(ranks: u32, rank: impl Fn(ThreadCollective) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = world(ranks, DEFAULT_TIMEOUT)
            .into_iter()
            .map(|member| scope.spawn(move || rank(member)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Collective, conformance};

    #[test]
    fn threads_keep_the_promises_of_a_collective() {
        conformance::run(&|ranks, timeout| {
            world(ranks, timeout).into_iter().map(|member| Box::new(member) as Box<dyn Collective>).collect()
        });
    }
}
