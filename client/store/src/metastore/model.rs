//! What every metastore does that keeps time by a clock of its own: what the one in memory does, step by step.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tokio::time::Instant;

use super::{Expected, LeaseId, MemoryMetastore, Metastore, SystemClock};

/// One operation on either store; leases and revisions are named by the order in which they were given out.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    Put { key: &'static str, expected: Guess, lease: Option<usize> },
    Delete { key: &'static str, expected: Guess },
    Grant { ttl_ms: u64 },
    Renew(usize),
    Revoke(usize),
    Pass { ms: u64 },
    Reopen,
}

#[derive(Debug, Clone)]
pub(super) enum Guess {
    Any,
    Absent,
    Right,
    Wrong,
}

pub(super) fn operation() -> impl Strategy<Value = Operation> {
    let key = || prop::sample::select(vec!["a", "a/b", "b", "b.c"]);
    let guess = || prop_oneof![2 => Just(Guess::Any), 1 => Just(Guess::Absent), 1 => Just(Guess::Right), 1 => Just(Guess::Wrong)];
    prop_oneof![
        6 => (key(), guess(), prop::option::of(0..4usize))
            .prop_map(|(key, expected, lease)| Operation::Put { key, expected, lease }),
        3 => (key(), guess()).prop_map(|(key, expected)| Operation::Delete { key, expected }),
        2 => (1..500u64).prop_map(|ttl_ms| Operation::Grant { ttl_ms }),
        1 => (0..4usize).prop_map(Operation::Renew),
        1 => (0..4usize).prop_map(Operation::Revoke),
        2 => (1..400u64).prop_map(|ms| Operation::Pass { ms }),
        1 => Just(Operation::Reopen),
    ]
}

/// Does the same to a metastore in memory and to the one that `open` gives, and again after each reopening. Leases of the
/// latter live no longer than asked for, by the clock that `open` is given.
///
/// Takes its time from tokio, whose clock is paused.
pub(super) fn does_what_memory_does(
    operations: Vec<Operation>,
    open: impl Fn(SystemClock) -> Box<dyn Metastore>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("runtime").block_on(compare(operations, open));
}

/// System time that passes as tokio's does.
pub(super) fn clock() -> SystemClock {
    let start = Instant::now();
    Arc::new(move || SystemTime::UNIX_EPOCH + Duration::from_secs(1_000) + start.elapsed())
}

async fn compare(operations: Vec<Operation>, open: impl Fn(SystemClock) -> Box<dyn Metastore>) {
    let clock = clock();
    let (memory, mut other) = (MemoryMetastore::new(), open(clock.clone()));
    let mut leases = [LeaseId(77); 4];
    let mut granted = 0;
    for operation in operations {
        match operation {
            Operation::Put { key, expected, lease } => {
                let expected = guess(&memory, key, expected).await;
                let lease = lease.map(|n| leases[n]);
                let value = format!("{key} {expected:?}").into_bytes();
                let put = memory.put(key, value.clone(), expected, lease).await;
                assert_eq!(other.put(key, value, expected, lease).await, put);
            }
            Operation::Delete { key, expected } => {
                let expected = guess(&memory, key, expected).await;
                assert_eq!(other.delete(key, expected).await, memory.delete(key, expected).await);
            }
            Operation::Grant { ttl_ms } => {
                let ttl = Duration::from_millis(ttl_ms);
                let lease = memory.grant(ttl).await.expect("grants");
                assert_eq!(other.grant(ttl).await, Ok(lease));
                leases[granted % 4] = lease;
                granted += 1;
            }
            Operation::Renew(n) => assert_eq!(other.renew(leases[n]).await, memory.renew(leases[n]).await),
            Operation::Revoke(n) => assert_eq!(other.revoke(leases[n]).await, memory.revoke(leases[n]).await),
            Operation::Pass { ms } => {
                tokio::time::advance(Duration::from_millis(ms)).await;
            }
            Operation::Reopen => other = open(clock.clone()),
        }
        assert_eq!(other.list("").await, memory.list("").await);
        assert_eq!(other.list("a").await, memory.list("a").await);
    }
}

async fn guess(store: &MemoryMetastore, key: &str, guess: Guess) -> Expected {
    let actual = store.get(key).await.expect("gets").map(|entry| entry.revision);
    match guess {
        Guess::Any => Expected::Any,
        Guess::Absent => Expected::Absent,
        Guess::Right => Expected::unchanged(actual),
        Guess::Wrong => Expected::At(actual.map_or(99, |revision| revision + 1)),
    }
}
