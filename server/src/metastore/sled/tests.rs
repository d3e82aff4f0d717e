use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use proptest::prelude::*;
use shardd_store::metastore::conformance;
use tempfile::TempDir;

use super::*;

fn open(directory: &TempDir) -> SledMetastore {
    SledMetastore::open(directory.path()).expect("opens")
}

#[tokio::test(start_paused = true)]
async fn sled_keeps_the_promises_of_a_metastore() {
    let kept = Mutex::new(vec![]);
    conformance::all(async || {
        let directory = TempDir::new().expect("a directory");
        let store = Arc::new(open(&directory)) as Arc<dyn Metastore>;
        kept.lock().expect("no panic while held").push(directory);
        store
    })
    .await;
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_restart_and_revisions_go_on() {
    let directory = TempDir::new().expect("a directory");
    let store = open(&directory);
    store.put("refs/a", b"one".to_vec(), Expected::Absent, None).await.expect("put");
    store.put("refs/b", b"two".to_vec(), Expected::Absent, None).await.expect("put");
    let last = store.delete("refs/a", Expected::Any).await.expect("delete");
    drop(store);

    let store = open(&directory);
    let listing = store.list("refs/").await.expect("list");
    assert_eq!(listing.revision, last);
    assert_eq!(listing.entries, [("refs/b".to_owned(), Entry { value: b"two".to_vec(), revision: 2 })]);
    assert_eq!(store.put("refs/a", vec![], Expected::Absent, None).await, Ok(last + 1));
    let actual = Some(2);
    let conflict = store.put("refs/b", vec![], Expected::At(1), None).await;
    assert_eq!(conflict, Err(MetaError::Conflict { key: "refs/b".into(), actual }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn whoever_reads_beside_commits_sees_all_that_were_acknowledged_and_never_an_older_state_after_a_newer()
{
    let directory = TempDir::new().expect("a directory");
    let store = Arc::new(open(&directory));
    let first = store.put("refs/a", vec![], Expected::Absent, None).await.expect("put");
    let acknowledged = Arc::new(AtomicU64::new(first));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (store, acknowledged) = (Arc::clone(&store), Arc::clone(&acknowledged));
            tokio::spawn(async move {
                let mut newest = 0;
                while newest < first + 200 {
                    newest = newest.max(acknowledged.load(SeqCst));
                    let entry = store.get("refs/a").await.expect("get").expect("there");
                    assert!(entry.revision >= newest, "{} after {newest}", entry.revision);
                    newest = entry.revision;
                    let listed = store.list("refs/").await.expect("list").revision;
                    assert!(listed >= newest, "{listed} after {newest}");
                    newest = listed;
                }
            })
        })
        .collect();
    for seen in first..first + 200 {
        let put = store.put("refs/a", vec![], Expected::At(seen), None).await.expect("put");
        acknowledged.store(put, SeqCst);
    }
    for reader in readers {
        reader.await.expect("no older state was seen");
    }
}

#[tokio::test(start_paused = true)]
async fn leases_live_on_over_a_restart_with_their_full_time() {
    let directory = TempDir::new().expect("a directory");
    let store = open(&directory);
    let lease = store.grant(Duration::from_secs(5)).await.expect("grant");
    store.put("nodes/a", vec![1], Expected::Absent, Some(lease)).await.expect("put");
    drop(store);

    let store = open(&directory);
    tokio::time::advance(Duration::from_secs(4)).await;
    assert!(store.get("nodes/a").await.expect("get").is_some());
    store.renew(lease).await.expect("the holder continues as before");
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(store.get("nodes/a").await, Ok(None));
    assert_eq!(store.renew(lease).await, Err(MetaError::LeaseLost { lease }));
    assert_ne!(store.grant(Duration::from_secs(1)).await.expect("grant"), lease);
}

#[test]
fn a_directory_that_is_no_metastore_is_explained() {
    let directory = TempDir::new().expect("a directory");
    std::fs::write(directory.path().join("meta"), b"a file").expect("write");
    let error = SledMetastore::open(&directory.path().join("meta")).err().expect("refused").to_string();
    assert!(error.contains("meta cannot be opened") && error.contains("backup"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_damaged_file_gives_an_error_with_the_way_out_or_opens(at: prop::sample::Index, flip in 1..=255u8, cut: bool) {
        let directory = TempDir::new().expect("a directory");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let store = open(&directory);
            for n in 0..20u8 {
                let value = vec![n; 1000];
                store.put(&format!("refs/{n}"), value, Expected::Absent, None).await.expect("put");
            }
        });
        let path = directory.path().join("db");
        let mut bytes = std::fs::read(&path).expect("sled's file");
        // Behind the last byte that is not zero, there is nothing.
        let length = bytes.iter().rposition(|byte| *byte != 0).expect("not empty") + 1;
        let at = at.index(length);
        match cut {
            true => bytes.truncate(at),
            false => bytes[at] ^= flip,
        }
        std::fs::write(&path, bytes).expect("write");
        match runtime.block_on(async { SledMetastore::open(directory.path()) }) {
            Ok(store) => drop(runtime.block_on(store.list(""))),
            Err(error) => {
                let error = error.to_string();
                prop_assert!(error.contains("--recover") && error.lines().count() == 1, "{}", error);
            }
        }
    }
}

#[tokio::test]
async fn what_is_made_of_a_snapshot_holds_the_same_and_gives_no_number_out_again() {
    let (before, after) = (TempDir::new().expect("a directory"), TempDir::new().expect("a directory"));
    let store = open(&before);
    let lease = store.grant(Duration::from_secs(60)).await.expect("grant");
    store.put("refs/a", b"one".to_vec(), Expected::Absent, None).await.expect("put");
    store.put("nodes/a", b"here".to_vec(), Expected::Absent, Some(lease)).await.expect("put");
    store.set_epoch(3).await.expect("put");
    let snapshot = store.snapshot().await.expect("reads");
    assert_eq!((snapshot.entries.len(), snapshot.epoch, snapshot.settled), (1, 3, 1));
    let late = store.put("refs/a", b"two".to_vec(), Expected::Any, None).await.expect("put");
    let later = store.grant(Duration::from_secs(60)).await.expect("grant");

    let path = after.path().join("meta");
    SledMetastore::make(&path, &snapshot).expect("made");
    let store = SledMetastore::open(&path).expect("opens");
    let listing = store.list("").await.expect("lists");
    assert_eq!(listing.entries, [("refs/a".to_owned(), Entry { value: b"one".to_vec(), revision: 1 })]);
    assert_eq!(store.epoch().await, Ok(3));
    assert!(store.put("refs/b", vec![], Expected::Absent, None).await.expect("put") > late);
    assert!(store.grant(Duration::from_secs(1)).await.expect("grant") > later);
}

#[tokio::test]
async fn only_what_hangs_on_no_lease_is_settled() {
    let directory = TempDir::new().expect("a directory");
    let store = open(&directory);
    let settled = store.settled();
    let first = store.put("refs/a", vec![], Expected::Absent, None).await.expect("put");
    let lease = store.grant(Duration::from_secs(60)).await.expect("grant");
    store.put("nodes/a", vec![], Expected::Absent, Some(lease)).await.expect("put");
    store.revoke(lease).await.expect("revoke");
    assert_eq!(*settled.borrow(), first);
    let last = store.delete("refs/a", Expected::Any).await.expect("delete");
    assert_eq!(*settled.borrow(), last);
}
