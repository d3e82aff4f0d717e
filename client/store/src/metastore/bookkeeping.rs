//! What the metastores that keep time themselves have in common: which leases live and what hangs on them, which keys
//! were deleted lately, and waiting for a change. In memory only, and knows nothing of values: what of it must last, and
//! how, is each implementation's own affair.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::{LeaseId, MetaError};

/// How many deletions are remembered for [`Metastore::changed`](super::Metastore::changed); older `since` revisions wake
/// without cause.
pub const DELETIONS_REMEMBERED: usize = 4096;

/// The leases that have not lapsed, and their keys.
#[derive(Default)]
pub struct Leases {
    leases: BTreeMap<LeaseId, Lease>,
}

struct Lease {
    ttl: Duration,
    expires: Instant,
    keys: BTreeSet<String>,
}

impl Leases {
    /// Begins a lease of this name at `now`.
    pub fn grant(&mut self, id: LeaseId, ttl: Duration, now: Instant) {
        self.leases.insert(id, Lease { ttl, expires: now + ttl, keys: BTreeSet::new() });
    }

    /// Gives the lease its full time again.
    ///
    /// # Errors
    /// [`MetaError::LeaseLost`] when it is gone.
    pub fn renew(&mut self, lease: LeaseId, now: Instant) -> Result<(), MetaError> {
        let held = self.leases.get_mut(&lease).ok_or(MetaError::LeaseLost { lease })?;
        held.expires = now + held.ttl;
        Ok(())
    }

    /// Refuses a lease that is gone; none at all will do.
    ///
    /// # Errors
    /// [`MetaError::LeaseLost`].
    pub fn check(&self, lease: Option<LeaseId>) -> Result<(), MetaError> {
        match lease.filter(|lease| !self.leases.contains_key(lease)) {
            Some(lease) => Err(MetaError::LeaseLost { lease }),
            None => Ok(()),
        }
    }

    /// Lets `key`, which hung on `before`, hang on `after`; either may be no lease, or one that is gone.
    pub fn rehang(&mut self, key: &str, before: Option<LeaseId>, after: Option<LeaseId>) {
        if let Some(held) = before.and_then(|lease| self.leases.get_mut(&lease)) {
            held.keys.remove(key);
        }
        if let Some(held) = after.and_then(|lease| self.leases.get_mut(&lease)) {
            held.keys.insert(key.to_owned());
        }
    }

    /// The keys that hang on `lease`; `None` when it is gone.
    #[must_use]
    pub fn keys(&self, lease: LeaseId) -> Option<Vec<String>> {
        self.leases.get(&lease).map(|lease| lease.keys.iter().cloned().collect())
    }

    /// Ends `lease`. Its keys are the caller's to delete.
    pub fn end(&mut self, lease: LeaseId) {
        self.leases.remove(&lease);
    }

    /// A lease whose time is over.
    #[must_use]
    pub fn lapsed(&self, now: Instant) -> Option<LeaseId> {
        self.leases.iter().find(|(_, lease)| lease.expires <= now).map(|(id, _)| *id)
    }

    /// When the next lease lapses that takes a key along.
    #[must_use]
    pub fn next_lapse(&self) -> Option<Instant> {
        self.leases.values().filter(|lease| !lease.keys.is_empty()).map(|lease| lease.expires).min()
    }
}

/// The newest deletions.
#[derive(Default)]
pub struct Deletions {
    by_revision: BTreeMap<u64, String>,
    /// Deletions up to this revision are forgotten.
    forgotten: u64,
}

impl Deletions {
    /// None are known, and there may have been some up to `revision`.
    #[must_use]
    pub fn forgotten_until(revision: u64) -> Self {
        Self { by_revision: BTreeMap::new(), forgotten: revision }
    }

    /// `key` was deleted at `revision`.
    pub fn record(&mut self, revision: u64, key: String) {
        self.by_revision.insert(revision, key);
        while self.by_revision.len() > DELETIONS_REMEMBERED {
            self.forgotten = self.by_revision.pop_first().expect("not empty").0;
        }
    }

    /// Whether there may have been deletions after `since` that are forgotten.
    #[must_use]
    pub fn have_forgotten(&self, since: u64) -> bool {
        since < self.forgotten
    }

    /// The newest deletion under `prefix` after `since`, or 0.
    #[must_use]
    pub fn newest_under(&self, prefix: &str, since: u64) -> u64 {
        let after = self.by_revision.range(since.saturating_add(1)..);
        after.rev().find(|(_, key)| key.starts_with(prefix)).map_or(0, |(revision, _)| *revision)
    }
}

/// Waits until `look` finds a revision greater than `since`: asks it now, whenever `revision` moves, and when the lapse
/// is due that it foresees.
///
/// # Errors
/// What `look` gives.
pub async fn wait_for_change<F: Future<Output = Result<(u64, Option<Instant>), MetaError>>>(
    revision: &watch::Sender<u64>,
    since: u64,
    look: impl Fn() -> F,
) -> Result<u64, MetaError> {
    // Subscribed before the first look: a change after the look wakes the wait.
    let mut moved = revision.subscribe();
    loop {
        moved.borrow_and_update();
        let (newest, next_lapse) = look().await?;
        if newest > since {
            return Ok(newest);
        }
        let lapse = async {
            match next_lapse {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            moved = moved.changed() => moved.expect("the sender outlives the wait"),
            () = lapse => {}
        }
    }
}
