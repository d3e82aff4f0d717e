//! A metastore of plain files, shared by the processes of one machine through a directory.
//!
//! One file per key, replaced atomically and fsynced; `flock` on one lock file makes each operation exclusive, in this
//! process and across processes, and the kernel releases it when a process dies. Leases carry their expiry as system
//! time: a clock set forward makes them lapse early, one set back makes them live longer. Waits poll a counter file
//! every 20 ms (changes made through the same value wake them at once); that is the price of having no daemon.

mod directory;
mod records;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{Entry, Expected, LeaseId, Listing, MetaError, Metastore, check_key, check_value};
use directory::{Directory, Locked};

/// How often a wait looks for changes that other processes made.
const POLL: Duration = Duration::from_millis(20);

/// Says what time it is. Leases are stored with an expiry, so this is the time all processes agree on.
pub type SystemClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// A [`Metastore`] in a directory. Its futures run on a tokio runtime.
pub struct FilesMetastore {
    directory: Arc<Directory>,
    clock: SystemClock,
    /// Wakes the waits of this value without polling.
    touched: watch::Sender<()>,
}

impl FilesMetastore {
    /// Opens the metastore in `dir`, which is created when missing. One that is there and may only be read, as it is another
    /// user's or on a file system that takes no writes, is read: changes are refused as [`MetaError::Unchangeable`].
    ///
    /// # Errors
    ///
    /// [`MetaError::Unavailable`] when the directory can be neither made nor read.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, MetaError> {
        Self::open_with_clock(dir, Arc::new(SystemTime::now))
    }

    /// Removes the metastore in `dir`, if nothing was ever written to it.
    pub fn remove_unused(dir: impl AsRef<Path>) {
        // Not being able to is no reason to fail anyone.
        let _ = Directory::at(dir.as_ref()).remove_unused();
    }

    /// As [`open`](Self::open), with a clock of the caller's.
    pub fn open_with_clock(dir: impl AsRef<Path>, clock: SystemClock) -> Result<Self, MetaError> {
        let directory = Arc::new(Directory::open(dir.as_ref())?);
        Ok(Self { directory, clock, touched: watch::Sender::new(()) })
    }

    /// Performs `operation` under the directory's lock.
    async fn locked<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Locked<'_>) -> Result<T, MetaError> + Send + 'static,
    ) -> Result<T, MetaError> {
        let (clock, touched) = (self.clock.clone(), self.touched.clone());
        self.blocking(move |directory| {
            let mut locked = directory.lock((*clock)())?;
            let result = operation(&mut locked);
            if locked.has_changed() {
                touched.send_replace(());
            }
            result
        })
        .await
    }

    /// Performs `operation` on a thread that may block. Once begun it ends, even if the future is dropped.
    async fn blocking<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Directory) -> Result<T, MetaError> + Send + 'static,
    ) -> Result<T, MetaError> {
        let directory = self.directory.clone();
        let done = spawn_blocking(move || operation(&directory)).await;
        done.map_err(|error| self.directory.unavailable(format!("the operation did not finish: {error}")))?
    }
}

#[async_trait]
impl Metastore for FilesMetastore {
    async fn get(&self, key: &str) -> Result<Option<Entry>, MetaError> {
        check_key(key)?;
        let key = key.to_owned();
        self.locked(move |store| store.get(&key)).await
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
        self.locked(move |store| store.put(&key, value, expected, lease)).await
    }

    async fn delete(&self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        check_key(key)?;
        let key = key.to_owned();
        self.locked(move |store| store.delete(&key, expected)).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        let prefix = prefix.to_owned();
        self.locked(move |store| store.list(&prefix)).await
    }

    async fn lasting(&self) -> Result<Listing, MetaError> {
        self.locked(move |store| store.lasting()).await
    }

    async fn changed(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        // Subscribed before the first look: a change after the look wakes the wait.
        let mut touched = self.touched.subscribe();
        loop {
            touched.mark_unchanged();
            let looked_under = prefix.to_owned();
            let (newest, revision, next_lapse) = self
                .locked(move |store| {
                    let newest = store.newest_under(&looked_under, since)?;
                    Ok((newest, store.revision(), store.next_lapse()))
                })
                .await?;
            if newest > since {
                return Ok(newest);
            }
            loop {
                tokio::select! {
                    changed = touched.changed() => changed.expect("the sender lives in self"),
                    () = sleep(POLL) => {}
                }
                let lapsed = next_lapse.is_some_and(|lapse| lapse <= (*self.clock)());
                if lapsed || self.blocking(Directory::peek_revision).await? != revision {
                    break;
                }
            }
        }
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        self.locked(move |store| store.grant(ttl)).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.locked(move |store| store.renew(lease)).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.locked(move |store| store.revoke(lease)).await
    }
}

#[cfg(test)]
mod tests;
