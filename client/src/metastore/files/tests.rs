//! A files metastore keeps the promises of the seam, does what the one in memory does, and survives reopening.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::{MemoryMetastore, conformance};
use super::*;

#[tokio::test]
async fn files_keep_the_promises_of_a_metastore() {
    let kept = Mutex::new(Vec::new());
    conformance::all(async || {
        let dir = TempDir::new().expect("temporary directory");
        let store = FilesMetastore::open(&dir).expect("opens");
        kept.lock().expect("no panic while held").push(dir);
        Arc::new(store) as Arc<dyn Metastore>
    })
    .await;
}

#[tokio::test]
async fn two_openings_of_one_directory_are_one_store() {
    let dir = TempDir::new().expect("temporary directory");
    let open = || FilesMetastore::open(&dir).expect("opens");
    let (ours, theirs) = (open(), open());
    let mut wait = ours.changed("k", 0);
    assert!(futures::poll!(&mut wait).is_pending());
    let revision = theirs.put("k", b"1".to_vec(), Expected::Absent, None).await.expect("absent");
    assert_eq!(tokio::time::timeout(Duration::from_secs(30), wait).await.expect("wakes"), Ok(revision));
    let late = ours.put("k", b"2".to_vec(), Expected::Absent, None).await;
    assert_eq!(late, Err(MetaError::Conflict { key: "k".to_owned(), actual: Some(revision) }));
    drop((ours, theirs));
    assert_eq!(open().get("k").await, Ok(Some(Entry { value: b"1".to_vec(), revision })));
}

#[tokio::test]
async fn of_creates_through_many_openings_exactly_one_wins() {
    let dir = TempDir::new().expect("temporary directory");
    let stores: Vec<_> = (0..4).map(|_| FilesMetastore::open(&dir).expect("opens")).collect();
    let creates = stores.iter().map(|store| store.put("k", vec![], Expected::Absent, None));
    let outcomes = futures::future::join_all(creates).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
}

#[tokio::test]
async fn a_damaged_file_is_named() {
    let dir = TempDir::new().expect("temporary directory");
    let store = FilesMetastore::open(&dir).expect("opens");
    store.put("refs/mnist", b"pointer".to_vec(), Expected::Any, None).await.expect("puts");
    let path = dir.path().join("keys/refs%2Fmnist");
    let mut bytes = std::fs::read(&path).expect("the key's file");
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(&path, bytes).expect("writes");
    let error = store.get("refs/mnist").await.expect_err("the value is not what was put");
    assert!(matches!(&error, MetaError::Damaged { what, .. } if what == "keys/refs%2Fmnist"), "{error}");
}

#[tokio::test]
async fn what_a_crash_left_half_written_is_not_there() {
    let dir = TempDir::new().expect("temporary directory");
    let store = FilesMetastore::open(&dir).expect("opens");
    std::fs::write(dir.path().join("keys/~k"), b"half").expect("writes");
    assert_eq!(store.list("").await.expect("lists").entries, []);
    store.put("k", b"whole".to_vec(), Expected::Absent, None).await.expect("absent");
    assert_eq!(store.list("").await.expect("lists").entries.len(), 1);
}

/// One operation on either store; leases and revisions are named by the order in which they were given out.
#[derive(Debug, Clone)]
enum Operation {
    Put { key: &'static str, expected: Guess, lease: Option<usize> },
    Delete { key: &'static str, expected: Guess },
    Grant { ttl_ms: u64 },
    Renew(usize),
    Revoke(usize),
    Pass { ms: u64 },
    Reopen,
}

#[derive(Debug, Clone)]
enum Guess {
    Any,
    Absent,
    Right,
    Wrong,
}

fn operation() -> impl Strategy<Value = Operation> {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn files_do_what_memory_does(operations in prop::collection::vec(operation(), 1..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("runtime").block_on(compare(operations));
    }
}

async fn compare(operations: Vec<Operation>) {
    let dir = TempDir::new().expect("temporary directory");
    let elapsed_ms = Arc::new(AtomicU64::new(1_000_000));
    let clock: SystemClock = {
        let elapsed_ms = elapsed_ms.clone();
        Arc::new(move || SystemTime::UNIX_EPOCH + Duration::from_millis(elapsed_ms.load(Ordering::SeqCst)))
    };
    let open = || FilesMetastore::open_with_clock(&dir, clock.clone()).expect("opens");
    let (memory, mut files) = (MemoryMetastore::new(), open());
    let mut leases = [LeaseId(77); 4];
    let mut granted = 0;
    for operation in operations {
        match operation {
            Operation::Put { key, expected, lease } => {
                let expected = guess(&memory, key, expected).await;
                let lease = lease.map(|n| leases[n]);
                let value = format!("{key} {expected:?}").into_bytes();
                let put = memory.put(key, value.clone(), expected, lease).await;
                assert_eq!(files.put(key, value, expected, lease).await, put);
            }
            Operation::Delete { key, expected } => {
                let expected = guess(&memory, key, expected).await;
                assert_eq!(files.delete(key, expected).await, memory.delete(key, expected).await);
            }
            Operation::Grant { ttl_ms } => {
                let ttl = Duration::from_millis(ttl_ms);
                let lease = memory.grant(ttl).await.expect("grants");
                assert_eq!(files.grant(ttl).await, Ok(lease));
                leases[granted % 4] = lease;
                granted += 1;
            }
            Operation::Renew(n) => assert_eq!(files.renew(leases[n]).await, memory.renew(leases[n]).await),
            Operation::Revoke(n) => assert_eq!(files.revoke(leases[n]).await, memory.revoke(leases[n]).await),
            Operation::Pass { ms } => {
                tokio::time::advance(Duration::from_millis(ms)).await;
                elapsed_ms.fetch_add(ms, Ordering::SeqCst);
            }
            Operation::Reopen => files = open(),
        }
        assert_eq!(files.list("").await, memory.list("").await);
        assert_eq!(files.list("a").await, memory.list("a").await);
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
