//! What a rank knows of its world whatever carries its messages: which operation it is at, since when, and whether the
//! world has failed.

use std::time::{Duration, Instant};

use super::{Among, CollectiveError};

/// The number that stands for an operation of two ranks. Those are not counted, as the others do not see them.
pub(super) const OF_TWO: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) rank: usize,
    pub(super) world: usize,
    pub(super) hosts: Vec<u32>,
    pub(super) bytes_sent: u64,
    pub(super) waits: Vec<Duration>,
    /// Waiting for anyone, by the clock on the wall, and until when that was counted.
    waited: Duration,
    counted: Instant,
    pub(super) failed: Option<CollectiveError>,
    timeout: Duration,
    operations: u64,
    /// The present operation, or the last one.
    operation: u64,
    deadline: Instant,
    /// Of whom something has come in this operation.
    heard: Vec<bool>,
}

impl GroupState {
    pub(super) fn new(rank: usize, hosts: Vec<u32>, timeout: Duration) -> GroupState {
        let world = hosts.len();
        assert!(rank < world, "rank {rank} outside world of {world}");
        GroupState {
            rank,
            world,
            hosts,
            bytes_sent: 0,
            waits: vec![Duration::ZERO; world],
            waited: Duration::ZERO,
            counted: Instant::now(),
            failed: None,
            timeout,
            operations: 0,
            operation: OF_TWO,
            deadline: Instant::now() + timeout,
            heard: vec![false; world],
        }
    }

    pub(super) fn begin(&mut self, among: Among) {
        self.deadline = Instant::now() + self.timeout;
        self.heard.fill(false);
        self.operation = match among {
            Among::Two => OF_TWO,
            Among::All => {
                self.operations += 1;
                self.operations - 1
            }
        };
    }

    pub(super) fn operation(&self) -> u64 {
        self.operation
    }

    /// Something of `from`, expected since `since`, is there.
    pub(super) fn hear(&mut self, from: usize, since: Instant) {
        if !std::mem::replace(&mut self.heard[from], true) {
            self.waits[from] += since.elapsed();
            // Waits for several overlap.
            let now = Instant::now();
            self.waited += now.saturating_duration_since(since.max(self.counted));
            self.counted = now;
        }
    }

    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    pub(super) fn has_heard(&self, from: usize) -> bool {
        self.heard[from]
    }

    pub(super) fn is_of_two(&self) -> bool {
        self.operation == OF_TWO
    }

    /// A rank that a message can be for, or from.
    #[track_caller]
    pub(super) fn check_other(&self, other: u32) {
        let GroupState { rank, world, .. } = *self;
        assert!((other as usize) < world, "rank {other} outside world of {world}");
        assert!(other as usize != rank, "rank {rank} has no messages for itself");
    }

    /// How long may still be waited; `None` when the operation's time is up.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Who is late: of those that this rank waits for, those that are not at the operation; else another one,
    /// as most algorithms wait for a rank that itself waits for another.
    pub(super) fn late(&self, waited_for: &[usize], is_there: impl Fn(usize) -> bool) -> CollectiveError {
        let mut silent: Vec<usize> =
            (0..self.world).filter(|&rank| rank != self.rank && !is_there(rank)).collect();
        if silent.iter().any(|rank| waited_for.contains(rank)) {
            silent.retain(|rank| waited_for.contains(rank));
        }
        let ranks = if silent.is_empty() || self.is_of_two() { waited_for } else { &silent };
        let ranks = ranks.iter().map(|&rank| rank as u32).collect();
        CollectiveError::Late { ranks, operation: self.operation, waited: self.timeout }
    }

    /// Checks that a message of `from` belongs to the present operation.
    pub(super) fn check_step(&self, from: usize, theirs: u64) -> Result<(), CollectiveError> {
        let ours = self.operation;
        if theirs == ours {
            Ok(())
        } else {
            Err(CollectiveError::OutOfStep { rank: from as u32, theirs, ours })
        }
    }
}
