//! A files metastore keeps the promises of the seam, does what the one in memory does, and survives reopening.

use std::sync::Mutex;

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::conformance;
use super::super::model::{does_what_memory_does, operation};
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
    let error = store.get("refs/mnist").await.expect_err("the value is not the one that was put");
    assert!(matches!(&error, MetaError::Damaged { what, .. } if what == "keys/refs%2Fmnist"), "{error}");
}

#[tokio::test]
async fn what_a_crash_left_half_written_is_not_there() {
    let dir = TempDir::new().expect("temporary directory");
    let store = FilesMetastore::open(&dir).expect("opens");
    std::fs::write(dir.path().join("keys/~k"), b"half").expect("writes");
    // A lease of that number does not come again, so that no later write would replace it.
    std::fs::write(dir.path().join("leases/~77"), b"half").expect("writes");
    assert_eq!(store.list("").await.expect("lists").entries, []);
    assert!(!dir.path().join("leases/~77").exists(), "it is cleared away");
    store.put("k", b"whole".to_vec(), Expected::Absent, None).await.expect("absent");
    assert_eq!(store.list("").await.expect("lists").entries.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn files_do_what_memory_does(operations in prop::collection::vec(operation(), 1..30)) {
        let dir = TempDir::new().expect("temporary directory");
        does_what_memory_does(operations, |clock| {
            Box::new(FilesMetastore::open_with_clock(&dir, clock).expect("opens"))
        });
    }
}
