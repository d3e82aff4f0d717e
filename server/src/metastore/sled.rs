//! A metastore in a directory of this machine, kept by sled.
//!
//! One tree holds the values, one the counter and the leases; every change is one sled transaction. sled never calls
//! fsync, so this module does, after every change and before it is acknowledged. Time runs in this process only: after
//! a restart every lease has its full time to live again, so its holder can renew it as if nothing had happened.
//!
//! sled may read from the disk, so it is asked on a thread that may wait. An entry that hangs on no lease is answered from
//! the view of what was read lately: it gets there under the lock of the state and leaves it under the same lock, when its
//! change is durable and before that is acknowledged. So a read sees what is acknowledged, and does not wait for a commit.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use shardd_client::metastore::bookkeeping::{Deletions, Leases, wait_for_change};
use shardd_client::metastore::{
    Entry, Expected, LeaseId, Listing, MetaError, Metastore, check_key, check_value,
};
use sled::transaction::{ConflictableTransactionError, TransactionError, Transactional};
use sled::{IVec, Tree};
use tokio::sync::watch;
use tokio::time::Instant;

use super::OpenError;
use super::view::View;

/// No lease lives longer without being renewed.
const LONGEST_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Of sled's page cache; the metadata is small.
const PAGE_CACHE_BYTES: u64 = 16 << 20;
pub(super) const FORMAT: u64 = 1;

const KEY_FORMAT: &[u8] = b"format";
const KEY_REVISION: &[u8] = b"revision";
const KEY_LAST_LEASE: &[u8] = b"last-lease";
const LEASES: &[u8] = b"lease/";

/// A [`Metastore`] in a directory. What was acknowledged survives a crash of the process and of the machine.
pub struct SledMetastore {
    shared: Arc<Shared>,
}

impl SledMetastore {
    /// Opens or creates the metastore in `directory`. Blocks; needs tokio's clock.
    ///
    /// # Errors
    /// [`OpenError`], with the way out.
    pub fn open(directory: &Path) -> Result<SledMetastore, OpenError> {
        let path = directory.to_owned();
        let bad = |error: sled::Error| OpenError::Sled { path: path.clone(), reason: error.to_string() };
        let db = sled::Config::new().path(directory).cache_capacity(PAGE_CACHE_BYTES).open().map_err(bad)?;
        let values = db.open_tree("values").map_err(bad)?;
        let meta = db.open_tree("meta").map_err(bad)?;
        match number(&meta, KEY_FORMAT).map_err(bad)? {
            Some(FORMAT) => {}
            Some(found) => return Err(OpenError::TooNew { path, found }),
            None => drop(meta.insert(KEY_FORMAT, &FORMAT.to_le_bytes()).map_err(bad)?),
        }
        db.flush().map_err(bad)?;
        let sync = |source| OpenError::Sync { path: path.clone(), source };
        let file = File::open(directory.join("db")).map_err(sync)?;
        file.sync_all().map_err(sync)?;
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(sync)?;

        let revision = number(&meta, KEY_REVISION).map_err(bad)?.unwrap_or(0);
        let mut state = State {
            name: directory.display().to_string(),
            last_lease: number(&meta, KEY_LAST_LEASE).map_err(bad)?.unwrap_or(0),
            values,
            meta,
            file,
            revision,
            // What was deleted before the restart is not known any more.
            deletions: Deletions::forgotten_until(revision),
            leases: Leases::default(),
            view: Arc::default(),
            failed: None,
        };
        state
            .grant_again(Instant::now())
            .map_err(|error| OpenError::Sled { path, reason: error.to_string() })?;
        let view = Arc::clone(&state.view);
        let shared = Shared { state: Mutex::new(state), view, revision: watch::Sender::new(revision) };
        Ok(SledMetastore { shared: Arc::new(shared) })
    }

    /// Runs `change` on the state as it is now (lapsed leases gone), where blocking is allowed, and wakes those who wait.
    /// Once begun it ends, even if the caller is dropped.
    async fn with<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, MetaError> + Send + 'static,
    ) -> Result<T, MetaError> {
        let (shared, now) = (Arc::clone(&self.shared), Instant::now());
        let result = tokio::task::spawn_blocking(move || {
            let mut state = shared.state.lock().expect("no panic while held");
            let result = state.lapse(now).and_then(|()| change(&mut state));
            let revision = state.revision;
            shared.revision.send_if_modified(|known| std::mem::replace(known, revision) != revision);
            result
        });
        result.await.unwrap_or_else(|error| {
            Err(MetaError::Unavailable { store: "of this node".into(), reason: error.to_string() })
        })
    }
}

#[async_trait]
impl Metastore for SledMetastore {
    async fn get(&self, key: &str) -> Result<Option<Entry>, MetaError> {
        check_key(key)?;
        if let Some(entry) = self.shared.view.get(key) {
            return Ok(Some(entry));
        }
        let key = key.to_owned();
        self.with(move |state| {
            let Some(Stored { entry, lease }) = state.stored(&key)? else { return Ok(None) };
            // What hangs on a lease ends by time alone, without anybody who forgets it here.
            if lease.is_none() {
                state.view.keep(&key, &entry);
            }
            Ok(Some(entry))
        })
        .await
    }

    async fn put(
        &self,
        key: &str,
        value: Vec<u8>,
        expected: Expected,
        lease: Option<LeaseId>,
    ) -> Result<u64, MetaError> {
        check_key(key)?;
        check_value(key, &value)?;
        let key = key.to_owned();
        self.with(move |state| state.put(&key, value, expected, lease)).await
    }

    async fn delete(&self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        check_key(key)?;
        let key = key.to_owned();
        self.with(move |state| {
            let stored = state.stored(&key)?;
            expected.check(&key, stored.as_ref().map(|stored| stored.entry.revision))?;
            match stored {
                Some(_) => state.remove(vec![key], None),
                None => Ok(state.revision),
            }
        })
        .await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        let prefix = prefix.to_owned();
        self.with(move |state| {
            let entries = state.under(&prefix).map(|found| found.map(|(key, stored)| (key, stored.entry)));
            Ok(Listing { entries: entries.collect::<Result<_, _>>()?, revision: state.revision })
        })
        .await
    }

    async fn changed(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        let look = async || {
            let under = prefix.to_owned();
            self.with(move |state| Ok((state.newest_under(&under, since)?, state.leases.next_lapse()))).await
        };
        wait_for_change(&self.shared.revision, since, look).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        let ttl = ttl.min(LONGEST_TTL);
        self.with(move |state| state.grant(ttl, Instant::now())).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.with(move |state| state.leases.renew(lease, Instant::now())).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.with(move |state| state.end(lease)).await
    }
}

struct Shared {
    state: Mutex<State>,
    view: Arc<View>,
    revision: watch::Sender<u64>,
}

struct State {
    name: String,
    values: Tree,
    meta: Tree,
    file: File,
    revision: u64,
    last_lease: u64,
    deletions: Deletions,
    leases: Leases,
    /// Changed under the lock that guards this state, read without it.
    view: Arc<View>,
    /// Why the last change could not be made durable: nothing is written any more.
    failed: Option<String>,
}

struct Stored {
    entry: Entry,
    lease: Option<LeaseId>,
}

/// What one transaction writes; `None` removes.
#[derive(Default)]
struct Change {
    values: Vec<(String, Option<Vec<u8>>)>,
    meta: Vec<(Vec<u8>, Option<u64>)>,
}

impl State {
    fn put(
        &mut self,
        key: &str,
        value: Vec<u8>,
        expected: Expected,
        lease: Option<LeaseId>,
    ) -> Result<u64, MetaError> {
        self.leases.check(lease)?;
        let before = self.stored(key)?;
        expected.check(key, before.as_ref().map(|stored| stored.entry.revision))?;
        let revision = self.revision + 1;
        let stored = Stored { entry: Entry { value, revision }, lease };
        self.write(&Change {
            values: vec![(key.to_owned(), Some(stored.encode()))],
            meta: vec![(KEY_REVISION.to_vec(), Some(revision))],
        })?;
        self.revision = revision;
        self.leases.rehang(key, before.and_then(|stored| stored.lease), lease);
        Ok(revision)
    }

    /// Removes keys that are there, each with a revision of its own, and the lease they hung on.
    fn remove(&mut self, keys: Vec<String>, lease: Option<LeaseId>) -> Result<u64, MetaError> {
        let revision = self.revision + keys.len() as u64;
        let mut change = Change::default();
        change.meta.push((KEY_REVISION.to_vec(), Some(revision)));
        change.meta.extend(lease.map(|lease| (lease_key(lease), None)));
        change.values.extend(keys.iter().map(|key| (key.clone(), None)));
        let leases = keys.iter().map(|key| Ok(self.stored(key)?.and_then(|stored| stored.lease)));
        let leases: Vec<Option<LeaseId>> = leases.collect::<Result<_, MetaError>>()?;
        self.write(&change)?;
        for (key, lease) in keys.into_iter().zip(leases) {
            self.leases.rehang(&key, lease, None);
            self.revision += 1;
            self.deletions.record(self.revision, key);
        }
        if let Some(lease) = lease {
            self.leases.end(lease);
        }
        Ok(self.revision)
    }

    fn grant(&mut self, ttl: Duration, now: Instant) -> Result<LeaseId, MetaError> {
        let id = LeaseId(self.last_lease + 1);
        let ttl_ms = u64::try_from(ttl.as_millis()).expect("thirty days fit");
        let meta = vec![(KEY_LAST_LEASE.to_vec(), Some(id.0)), (lease_key(id), Some(ttl_ms))];
        self.write(&Change { values: vec![], meta })?;
        self.last_lease = id.0;
        self.leases.grant(id, ttl, now);
        Ok(id)
    }

    /// After a restart: every lease begins anew, with the keys that hang on it.
    fn grant_again(&mut self, now: Instant) -> Result<(), MetaError> {
        for found in self.meta.scan_prefix(LEASES) {
            let (key, ttl) = found.map_err(|error| self.damaged("leases", error))?;
            let id = key[LEASES.len()..].try_into().map(u64::from_be_bytes);
            let ttl = ttl.as_ref().try_into().map(u64::from_le_bytes);
            let (Ok(id), Ok(ttl)) = (id, ttl) else { return Err(self.damaged("leases", "wrong length")) };
            let ttl = Duration::from_millis(ttl).min(LONGEST_TTL);
            self.leases.grant(LeaseId(id), ttl, now);
        }
        let leased: Vec<(String, LeaseId)> = self
            .under("")
            .filter_map(|found| found.map(|(key, stored)| stored.lease.map(|lease| (key, lease))).transpose())
            .collect::<Result<_, _>>()?;
        for (key, lease) in leased {
            if self.leases.check(Some(lease)).is_err() {
                return Err(self.damaged(&key, "it hangs on a lease that is not there"));
            }
            self.leases.rehang(&key, None, Some(lease));
        }
        Ok(())
    }

    fn end(&mut self, lease: LeaseId) -> Result<(), MetaError> {
        let Some(keys) = self.leases.keys(lease) else { return Ok(()) };
        self.remove(keys, Some(lease)).map(drop)
    }

    fn lapse(&mut self, now: Instant) -> Result<(), MetaError> {
        while let Some(lease) = self.leases.lapsed(now) {
            self.end(lease)?;
        }
        Ok(())
    }

    fn stored(&self, key: &str) -> Result<Option<Stored>, MetaError> {
        let bytes = self.values.get(key).map_err(|error| self.damaged(key, error))?;
        bytes.map(|bytes| self.decode(key, &bytes)).transpose()
    }

    fn under(&self, prefix: &str) -> impl Iterator<Item = Result<(String, Stored), MetaError>> + use<'_> {
        self.values.scan_prefix(prefix).map(|found| {
            let (key, bytes) = found.map_err(|error| self.damaged("values", error))?;
            let key = std::str::from_utf8(&key).map_err(|error| self.damaged("a key", error))?.to_owned();
            let stored = self.decode(&key, &bytes)?;
            Ok((key, stored))
        })
    }

    /// The newest revision of a change under `prefix`, as far as changes after `since` are concerned.
    fn newest_under(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        if self.deletions.have_forgotten(since) {
            return Ok(self.revision);
        }
        let mut newest = self.deletions.newest_under(prefix, since);
        for found in self.under(prefix) {
            newest = newest.max(found?.1.entry.revision);
        }
        Ok(newest)
    }

    /// Writes a change whole, and durably: sled's own flush stops short of that.
    fn write(&mut self, change: &Change) -> Result<(), MetaError> {
        if let Some(reason) = &self.failed {
            let reason = format!("{reason}; restart this node");
            return Err(MetaError::Unavailable { store: self.name.clone(), reason });
        }
        let written = (&self.values, &self.meta).transaction(|(values, meta)| {
            for (key, value) in &change.values {
                match value {
                    Some(value) => values.insert(key.as_bytes(), value.as_slice())?,
                    None => values.remove(key.as_bytes())?,
                };
            }
            for (key, number) in &change.meta {
                match number {
                    Some(number) => meta.insert(key.as_slice(), &number.to_le_bytes())?,
                    None => meta.remove(key.as_slice())?,
                };
            }
            Ok::<(), ConflictableTransactionError<std::convert::Infallible>>(())
        });
        let durable = match written {
            Ok(()) => match self.values.flush() {
                Ok(_) => self.file.sync_data().map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            },
            Err(TransactionError::Storage(error)) => Err(error.to_string()),
            Err(TransactionError::Abort(never)) => match never {},
        };
        for (key, _) in &change.values {
            self.view.forget(key);
        }
        durable.map_err(|reason| {
            // What is on disk is not known any more; a restart reads it again.
            self.failed = Some(reason.clone());
            MetaError::Unavailable { store: self.name.clone(), reason }
        })
    }

    fn decode(&self, key: &str, bytes: &IVec) -> Result<Stored, MetaError> {
        Stored::decode(bytes).ok_or_else(|| self.damaged(key, "it is too short"))
    }

    fn damaged(&self, what: &str, reason: impl ToString) -> MetaError {
        MetaError::Damaged { store: self.name.clone(), what: what.to_owned(), reason: reason.to_string() }
    }
}

impl Stored {
    fn encode(&self) -> Vec<u8> {
        let lease = self.lease.map_or(0, |lease| lease.0);
        [&self.entry.revision.to_le_bytes(), &lease.to_le_bytes(), self.entry.value.as_slice()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Stored> {
        let (revision, rest) = bytes.split_first_chunk::<8>()?;
        let (lease, value) = rest.split_first_chunk::<8>()?;
        let lease = Some(u64::from_le_bytes(*lease)).filter(|lease| *lease != 0).map(LeaseId);
        let entry = Entry { value: value.to_vec(), revision: u64::from_le_bytes(*revision) };
        Some(Stored { entry, lease })
    }
}

fn lease_key(lease: LeaseId) -> Vec<u8> {
    [LEASES, &lease.0.to_be_bytes()].concat()
}

fn number(tree: &Tree, key: &[u8]) -> sled::Result<Option<u64>> {
    let bytes = tree.get(key)?;
    match bytes.map(|bytes| bytes.as_ref().try_into().map(u64::from_le_bytes)) {
        None => Ok(None),
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) => Err(sled::Error::Unsupported("a counter of the wrong length".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use shardd_client::metastore::conformance;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use tempfile::TempDir;

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
        store.renew(lease).await.expect("the holder goes on as before");
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
            // Behind the last byte that is not zero, nothing is said.
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
                    prop_assert!(error.contains("move it away") && error.lines().count() == 1, "{}", error);
                }
            }
        }
    }
}
