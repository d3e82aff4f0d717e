//! A metastore in a directory of this machine, kept by sled.
//!
//! One tree holds the values, one the counter and the leases; every change is one sled transaction, durable before it is
//! acknowledged ([`disk`]). Time runs in this process only: after a restart every lease has its full time to live again, so
//! its holder can renew it as if nothing had happened.
//!
//! sled may read from the disk, so it is asked on a thread that may wait. An entry without a lease is
//! answered from the view of recent reads: it enters and leaves the view under the lock of the state, when
//! its change is durable and before that is acknowledged. So a read sees all acknowledged changes, and does
//! not wait for a commit.

mod ahead;
mod disk;
mod state;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use shardd_store::metastore::bookkeeping::wait_for_change;
use shardd_store::metastore::{
    CopiedEntry, Entry, Expected, LeaseId, Listing, MetaError, Metastore, check_key, check_value,
};
use tokio::sync::watch;
use tokio::time::Instant;

use super::OpenError;
use super::view::View;

use ahead::Ahead;
pub(super) use disk::FORMAT;
use state::{State, Stored};

/// No lease lives longer without being renewed.
const LONGEST_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// How far the counters of a metastore that is made of a copy are ahead of the copy's: changes acknowledged
/// after it was taken used some of the numbers between.
const JUMP: u64 = 1 << 32;

/// A [`Metastore`] in a directory. Acknowledged changes survive a crash of the process and of the machine.
pub struct SledMetastore {
    shared: Arc<Shared>,
}

impl SledMetastore {
    /// Opens or creates the metastore in `directory`. Blocks; needs tokio's clock.
    ///
    /// # Errors
    /// [`OpenError`], with the way out.
    pub fn open(directory: &Path) -> Result<SledMetastore, OpenError> {
        Ok(Self::of(State::open(directory, Ahead::default())?))
    }

    /// The same, for one who copies: the file `ahead` is there whenever something has changed since the last copy.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_copied(directory: &Path, ahead: PathBuf) -> Result<SledMetastore, OpenError> {
        Ok(Self::of(State::open(directory, Ahead::at(ahead))?))
    }

    /// Makes a metastore in `directory`, where there is none, of what another one held. Its counters are far ahead of those
    /// of the other, so that no revision and no lease is given out a second time. Blocks; needs tokio's clock.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn make(directory: &Path, snapshot: &Snapshot) -> Result<(), OpenError> {
        let mut state = State::open(directory, Ahead::default())?;
        let filled = state.fill(snapshot);
        filled.map_err(|error| OpenError::Sled { path: directory.to_owned(), reason: error.to_string() })
    }

    fn of(state: State) -> SledMetastore {
        let (revision, settled) = (state.revision, state.settled);
        let shared = Shared {
            view: Arc::clone(&state.view),
            state: Mutex::new(state),
            revision: watch::Sender::new(revision),
            settled: watch::Sender::new(settled),
            trouble: Mutex::default(),
        };
        SledMetastore { shared: Arc::new(shared) }
    }

    /// Why nothing can be changed here at present, if so.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The revision of the last change to what hangs on no lease: such changes are what a copy is about.
    #[must_use]
    pub fn settled(&self) -> watch::Receiver<u64> {
        self.shared.settled.subscribe()
    }

    /// All that hangs on no lease.
    ///
    /// # Errors
    /// When the metadata cannot be read.
    pub async fn snapshot(&self) -> Result<Snapshot, MetaError> {
        self.with(|state| state.snapshot()).await
    }

    /// The settled state at that revision is copied.
    ///
    /// # Errors
    /// When the metadata cannot be used.
    pub async fn note_copied(&self, settled: u64) -> Result<(), MetaError> {
        self.with(move |state| {
            state.note_copied(settled);
            Ok(())
        })
        .await
    }

    /// How often the cluster's metadata had been promoted when this became where it is kept; 0 before it was ever copied.
    ///
    /// # Errors
    /// When the metadata cannot be read.
    pub async fn epoch(&self) -> Result<u64, MetaError> {
        self.with(|state| state.epoch()).await
    }

    /// Remembers the epoch.
    ///
    /// # Errors
    /// When the metadata cannot be changed.
    pub async fn set_epoch(&self, epoch: u64) -> Result<(), MetaError> {
        self.with(move |state| state.set_epoch(epoch)).await
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
            state.recover(now);
            let result = state.lapse(now).and_then(|()| change(&mut state));
            let (revision, settled) = (state.revision, state.settled);
            shared.revision.send_if_modified(|known| std::mem::replace(known, revision) != revision);
            shared.settled.send_if_modified(|known| std::mem::replace(known, settled) != settled);
            shared.tell(state.trouble());
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
            // Keys of a lease end by time alone, without a removal here.
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
            let entries = state.under(&prefix)?.map(|found| found.map(|(key, stored)| (key, stored.entry)));
            Ok(Listing { entries: entries.collect::<Result<_, _>>()?, revision: state.revision })
        })
        .await
    }

    async fn lasting(&self) -> Result<Listing, MetaError> {
        let Snapshot { entries, revision, .. } = self.snapshot().await?;
        let entry = |CopiedEntry { key, revision, value }| (key, Entry { value, revision });
        Ok(Listing { entries: entries.into_iter().map(entry).collect(), revision })
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

/// The part of a metastore that is worth a copy, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The epoch of who keeps it.
    pub epoch: u64,
    /// The revision of the last change to what hangs on no lease.
    pub settled: u64,
    /// The revision then.
    pub revision: u64,
    /// The last lease that was given out.
    pub last_lease: u64,
    /// The entries without a lease, ordered by key.
    pub entries: Vec<CopiedEntry>,
}

struct Shared {
    state: Mutex<State>,
    view: Arc<View>,
    revision: watch::Sender<u64>,
    settled: watch::Sender<u64>,
    trouble: Mutex<Option<String>>,
}

impl Shared {
    /// Keeps the error for later callers, and logs it once.
    fn tell(&self, now: Option<&str>) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match (trouble.as_deref(), now) {
            (None, Some(reason)) => tracing::error!(reason, "the metadata takes no changes"),
            (Some(_), None) => tracing::info!("the metadata takes changes again"),
            _ => {}
        }
        if trouble.as_deref() != now {
            *trouble = now.map(str::to_owned);
        }
    }
}

#[cfg(test)]
mod tests;
