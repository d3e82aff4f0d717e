//! A metastore in memory, on tokio's clock: exact and instant, also under a paused clock. Nothing survives the process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;

use super::bookkeeping::{Deletions, Leases, wait_for_change};
use super::{Entry, Expected, LeaseId, Listing, MetaError, Metastore, check_key, check_value};

/// A [`Metastore`] in this process's memory.
pub struct MemoryMetastore {
    state: Mutex<State>,
    revision: watch::Sender<u64>,
}

impl MemoryMetastore {
    /// An empty metastore at revision 0.
    pub fn new() -> Self {
        Self { state: Mutex::default(), revision: watch::Sender::new(0) }
    }

    /// Runs `change` on the state as it is now (lapsed leases gone) and wakes those who wait for changes.
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        state.lapse(Instant::now());
        let result = change(&mut state);
        let revision = state.revision;
        drop(state);
        self.revision.send_if_modified(|known| {
            // Two changes may arrive here in the other order: the counter never goes back.
            let newer = revision > *known;
            *known = revision.max(*known);
            newer
        });
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }
}

impl Default for MemoryMetastore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Metastore for MemoryMetastore {
    async fn get(&self, key: &str) -> Result<Option<Entry>, MetaError> {
        check_key(key)?;
        Ok(self.with(|state| state.entries.get(key).map(|stored| stored.entry.clone())))
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
        self.with(|state| state.put(key, value, expected, lease))
    }

    async fn delete(&self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        check_key(key)?;
        self.with(|state| state.delete(key, expected))
    }

    async fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        Ok(self.with(|state| Listing {
            entries: state.under(prefix).map(|(key, stored)| (key.clone(), stored.entry.clone())).collect(),
            revision: state.revision,
        }))
    }

    async fn lasting(&self) -> Result<Listing, MetaError> {
        Ok(self.with(|state| {
            let lasting = state.under("").filter(|(_, stored)| stored.lease.is_none());
            let entries = lasting.map(|(key, stored)| (key.clone(), stored.entry.clone())).collect();
            Listing { entries, revision: state.revision }
        }))
    }

    async fn changed(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        let look =
            async || Ok(self.with(|state| (state.newest_under(prefix, since), state.leases.next_lapse())));
        wait_for_change(&self.revision, since, look).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        Ok(self.with(|state| {
            state.last_lease += 1;
            let lease = LeaseId(state.last_lease);
            state.leases.grant(lease, ttl, Instant::now());
            lease
        }))
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.with(|state| state.leases.renew(lease, Instant::now()))
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.with(|state| state.end(lease));
        Ok(())
    }
}

#[derive(Default)]
struct State {
    revision: u64,
    entries: BTreeMap<String, Stored>,
    deletions: Deletions,
    leases: Leases,
    last_lease: u64,
}

struct Stored {
    entry: Entry,
    lease: Option<LeaseId>,
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
        expected.check(key, self.revision_of(key))?;
        self.revision += 1;
        let entry = Entry { value, revision: self.revision };
        let before = self.entries.insert(key.to_owned(), Stored { entry, lease });
        self.leases.rehang(key, before.and_then(|stored| stored.lease), lease);
        Ok(self.revision)
    }

    fn delete(&mut self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        expected.check(key, self.revision_of(key))?;
        let Some(stored) = self.entries.remove(key) else { return Ok(self.revision) };
        self.leases.rehang(key, stored.lease, None);
        self.revision += 1;
        self.deletions.record(self.revision, key.to_owned());
        Ok(self.revision)
    }

    /// Ends `lease`: each of its keys is deleted with a revision.
    fn end(&mut self, lease: LeaseId) {
        for key in self.leases.keys(lease).unwrap_or_default() {
            self.delete(&key, Expected::Any).expect("any state is expected");
        }
        self.leases.end(lease);
    }

    fn lapse(&mut self, now: Instant) {
        while let Some(lease) = self.leases.lapsed(now) {
            self.end(lease);
        }
    }

    fn revision_of(&self, key: &str) -> Option<u64> {
        self.entries.get(key).map(|stored| stored.entry.revision)
    }

    fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a String, &'a Stored)> {
        self.entries.range(prefix.to_owned()..).take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// The newest revision of a change under `prefix`, among changes after `since`.
    fn newest_under(&self, prefix: &str, since: u64) -> u64 {
        if self.deletions.have_forgotten(since) {
            return self.revision;
        }
        let put = self.under(prefix).map(|(_, stored)| stored.entry.revision).max();
        put.unwrap_or(0).max(self.deletions.newest_under(prefix, since))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::bookkeeping::DELETIONS_REMEMBERED;
    use super::super::conformance;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn memory_keeps_the_promises_of_a_metastore() {
        conformance::all(async || Arc::new(MemoryMetastore::new()) as Arc<dyn Metastore>).await;
    }

    #[tokio::test]
    async fn a_since_older_than_the_memory_wakes_rather_than_misses() {
        let store = MemoryMetastore::new();
        for _ in 0..=DELETIONS_REMEMBERED {
            store.put("a/x", vec![], Expected::Absent, None).await.expect("put");
            store.delete("a/x", Expected::Any).await.expect("delete");
        }
        assert!(store.changed("b/", 0).await.expect("wakes") > 0);
        let now = store.list("b/").await.expect("lists").revision;
        let mut wait = std::pin::pin!(store.changed("b/", now));
        assert!(futures::poll!(&mut wait).is_pending());
    }
}
