//! The thread that talks to other ranks while this one computes.
//!
//! Operations run one at a time in the order in which they were submitted, which must be the same on every rank.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::collective::{Collective, CollectiveError};

type Operation = Box<dyn FnOnce(&mut dyn Collective) + Send>;

/// Operations that may wait; a step submits one per block, so deep models wait a little instead of queueing without end.
const QUEUE: usize = 256;

/// Owns the collective and runs operations on it in the background.
///
/// Dropping it finishes submitted operations and closes the collective.
#[derive(Debug)]
pub struct Comm {
    rank: u32,
    world: u32,
    hosts: Vec<u32>,
    operations: Option<SyncSender<Operation>>,
    thread: Option<JoinHandle<()>>,
}

/// The result of an operation that may still be under way.
#[derive(Debug)]
#[must_use = "an operation's error is only seen by waiting for it"]
pub struct Pending<T>(Receiver<Result<T, CollectiveError>>);

impl<T> Pending<T> {
    /// Waits for the operation; ends with it, at the latest after the collective's timeout.
    ///
    /// # Errors
    /// The operation's.
    pub fn wait(self) -> Result<T, CollectiveError> {
        self.0.recv().expect("the comm thread answers every operation")
    }
}

impl Comm {
    /// Starts the thread.
    ///
    /// # Panics
    /// If the system has no thread left to give.
    pub fn new(mut collective: Box<dyn Collective>) -> Comm {
        let (rank, world) = (collective.rank(), collective.world());
        let hosts = collective.hosts().to_vec();
        let (operations, queue) = sync_channel::<Operation>(QUEUE);
        let thread = std::thread::Builder::new()
            .name(format!("comm {rank}"))
            .spawn(move || queue.iter().for_each(|operation| operation(&mut *collective)))
            .expect("a thread per rank is available");
        Comm { rank, world, hosts, operations: Some(operations), thread: Some(thread) }
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// The machine of every rank ([`Collective::hosts`]).
    pub fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    /// Queues an operation; waits only while very many are queued already.
    pub fn submit<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut dyn Collective) -> Result<T, CollectiveError> + Send + 'static,
    ) -> Pending<T> {
        let (done, result) = sync_channel(1);
        let operation: Operation = Box::new(move |collective| {
            // Its submitter may have given up on it.
            let _ = done.send(operation(collective));
        });
        let queue = self.operations.as_ref().expect("taken only on drop");
        queue.send(operation).expect("the comm thread runs until this is dropped");
        Pending(result)
    }

    /// Runs an operation after those already queued and waits for it.
    ///
    /// # Errors
    /// The operation's.
    pub fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut dyn Collective) -> Result<T, CollectiveError> + Send + 'static,
    ) -> Result<T, CollectiveError> {
        self.submit(operation).wait()
    }

    /// Tells the other ranks why this one stops.
    pub fn abort(&self, reason: String) {
        let told = self.submit(move |collective| {
            collective.abort(&reason);
            Ok(())
        });
        let _ = told.wait();
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        self.operations = None;
        if let Some(thread) = self.thread.take() {
            // A panic in an operation has already reached its waiter.
            let _ = thread.join();
        }
    }
}
