//! Small, consistent, shared facts: which version a name points at, which nodes live, which run is where.
//!
//! A metastore holds *pointers*: every value is below 64 KiB, and large documents are content-addressed objects in the
//! store. Losing it stops changes, never reading or training. This module is the seam: the trait, its guarantees and
//! its errors. It does not know what the keys mean.
//!
//! | implementation | where the facts live | who can share it |
//! |---|---|---|
//! | [`MemoryMetastore`] | in this process | tasks of one process (tests, simulations) |
//! | [`FilesMetastore`] | one file per key in a directory | processes of one machine (embedded use) |
//! | [`BucketMetastore`] | one object in a store | all who can use the store (embedded use, clusters) |
//!
//! Servers add others. [`conformance`] states the guarantees as tests that each implementation passes.

mod backup;
pub mod bookkeeping;
mod bucket;
pub mod conformance;
pub mod copy;
mod files;
mod follow;
mod memory;
#[cfg(test)]
mod model;
pub mod packed;
mod recalled;
mod records;
pub mod relocation;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use shardd_api::problem::Kind;

pub use backup::{Backup, BadBackup};
pub use bucket::BucketMetastore;
pub use copy::{CopiedEntry, CopyShelf, MetadataCopy, MetastoreAddress};
pub use files::{FilesMetastore, SystemClock};
pub use follow::Following;
pub use memory::MemoryMetastore;
pub use recalled::Recalled;
pub use relocation::OWNER;

/// Begins the name of a store that has the metadata of a cluster.
const OF_CLUSTER: &str = "in ";
/// No value may be longer than this.
pub const MAX_VALUE_BYTES: usize = 64 * 1024;
/// No key may be longer than this.
pub const MAX_KEY_BYTES: usize = 512;

/// A small consistent store of `key -> value` with compare-and-swap, leases and change notification.
///
/// Every change (a put, a delete, the lapse of a leased key) takes the next **revision** of one counter per store, so
/// revisions order all changes and are never reused. Operations are linearisable. Every future may be dropped
/// halfway: a dropped read has no effect, a dropped change happens entirely or not at all.
///
/// The way to follow a prefix without missing anything:
///
/// ```
/// # use shardd_store::metastore::{Metastore, MetaError};
/// # async fn follow(metastore: &dyn Metastore) -> Result<(), MetaError> {
/// loop {
///     let nodes = metastore.list("nodes/").await?;
///     // … act on `nodes` …
///     metastore.changed("nodes/", nodes.revision).await?;
/// }
/// # }
/// ```
#[async_trait]
pub trait Metastore: Send + Sync {
    /// The entry at `key`, if there is one.
    async fn get(&self, key: &str) -> Result<Option<Entry>, MetaError>;

    /// Writes `value` at `key` if the key is as `expected`; returns the new revision.
    ///
    /// With a lease the key vanishes when the lease lapses or is revoked; without one it stays, even if an earlier
    /// put of the key named a lease.
    ///
    /// # Errors
    ///
    /// [`MetaError::Conflict`] when the key is not as expected, [`MetaError::TooLarge`] and [`MetaError::BadKey`] for
    /// what cannot be stored, [`MetaError::LeaseLost`] when the lease is gone. Nothing has changed then.
    async fn put(
        &self,
        key: &str,
        value: Vec<u8>,
        expected: Expected,
        lease: Option<LeaseId>,
    ) -> Result<u64, MetaError>;

    /// Removes `key` if it is as `expected`; returns the revision of the deletion. Removing a missing key
    /// (with [`Expected::Any`] or [`Expected::Absent`]) changes nothing and returns the present revision.
    async fn delete(&self, key: &str, expected: Expected) -> Result<u64, MetaError>;

    /// All entries whose key starts with `prefix`, ordered by key, and the revision at which they were read.
    async fn list(&self, prefix: &str) -> Result<Listing, MetaError>;

    /// All entries that hang on no lease, ordered by key, and the revision at which they were read: the facts that outlive
    /// their nodes, as a backup has them.
    async fn lasting(&self) -> Result<Listing, MetaError>;

    /// Waits until something under `prefix` has a revision greater than `since` (deletes and lapses count); returns a
    /// revision that includes it. Returns at once if that has already happened, so nothing is missed between a
    /// [`list`](Self::list) and this wait. May also wake without cause: for a `since` so old that the store has
    /// forgotten which keys were deleted since.
    async fn changed(&self, prefix: &str, since: u64) -> Result<u64, MetaError>;

    /// A new lease that lapses when `ttl` passes without [`renew`](Self::renew): never earlier, and as much later as the
    /// implementation says.
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError>;

    /// Gives the lease its full time to live again.
    ///
    /// # Errors
    ///
    /// [`MetaError::LeaseLost`] when it has lapsed: grant a new one and put its keys again.
    async fn renew(&self, lease: LeaseId) -> Result<(), MetaError>;

    /// Ends the lease now: its keys vanish, each with a new revision or all with the same. Revoking a lease that is gone
    /// changes nothing.
    async fn revoke(&self, lease: LeaseId) -> Result<(), MetaError>;
}

/// The content of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The bytes last put.
    pub value: Vec<u8>,
    /// The revision of that put.
    pub revision: u64,
}

/// Entries under a prefix, and when they were read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// Keys and entries, ordered by key.
    pub entries: Vec<(String, Entry)>,
    /// The store's revision at the read: pass it to [`Metastore::changed`].
    pub revision: u64,
}

/// The state of its key that a change expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expected {
    /// Whatever it is.
    Any,
    /// There is no such key.
    Absent,
    /// The key was last put at this revision.
    At(u64),
}

impl Expected {
    /// The expected state of a key last read at `revision`: that, or absent if it was not there.
    pub fn unchanged(revision: Option<u64>) -> Self {
        revision.map_or(Self::Absent, Self::At)
    }

    /// Refuses a change of `key`, last put at `actual`, that expects something else.
    pub fn check(self, key: &str, actual: Option<u64>) -> Result<(), MetaError> {
        let met = match self {
            Self::Any => true,
            Self::Absent => actual.is_none(),
            Self::At(revision) => actual == Some(revision),
        };
        if met { Ok(()) } else { Err(MetaError::Conflict { key: key.to_owned(), actual }) }
    }
}

/// Names a lease of one metastore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The effects of an outage of a cluster's metastore. A directory or bucket that is worked on without nodes
/// is no service to wait for.
fn unavailable(store: &str, reason: &str) -> String {
    let is_server = store.starts_with("etcd://") || store.starts_with(OF_CLUSTER);
    let is_place = !is_server && (store.starts_with('/') || store.contains("://"));
    match is_place {
        true => format!("{store} cannot be used: {reason}"),
        false => format!(
            "metastore {store} is unavailable ({reason}); runs continue, but you cannot begin or change \
            anything before it is back"
        ),
    }
}

/// Why a metastore did not carry out a request. Crosses the wire as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "error", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum MetaError {
    /// Someone else changed the key first. Read it again, decide again.
    #[error("key {key} is not as expected: {}", match actual {
        Some(revision) => format!("it was changed at revision {revision}"),
        None => "it does not exist".to_owned(),
    })]
    Conflict { key: String, actual: Option<u64> },
    /// The value is no pointer. Store it as an object and put its digest.
    #[error(
        "value of key {key} has {bytes} bytes, the limit is {limit}: store it as an object and point at it"
    )]
    TooLarge { key: String, bytes: u64, limit: u64 },
    /// The key cannot be stored.
    #[error("{key:?} cannot be a key: use 1 to {MAX_KEY_BYTES} bytes without control characters")]
    BadKey { key: String },
    /// The lease lapsed or was revoked. Grant a new one and put its keys again.
    #[error("lease {lease} has lapsed or was revoked")]
    LeaseLost { lease: LeaseId },
    /// The metastore cannot be reached or cannot write. Retry later; reading and training continue.
    #[error("{}", unavailable(store, reason))]
    Unavailable { store: String, reason: String },
    /// Nothing can be changed there, now or later: it is only read, or cannot compare and swap.
    #[error("{store} takes no changes: {reason}")]
    Unchangeable { store: String, reason: String },
    /// The value of the key is damaged. Restore it from a backup or delete the key.
    #[error("metastore {store} is damaged at {what}: {reason}")]
    Damaged { store: String, what: String, reason: String },
}

impl From<&MetaError> for Kind {
    fn from(error: &MetaError) -> Self {
        match error {
            MetaError::Conflict { .. } => Self::Conflict,
            MetaError::TooLarge { .. } | MetaError::BadKey { .. } | MetaError::Unchangeable { .. } => {
                Self::Invalid
            }
            MetaError::LeaseLost { .. } | MetaError::Unavailable { .. } => Self::Unavailable,
            MetaError::Damaged { .. } => Self::Corrupt,
        }
    }
}

/// Refuses keys that some implementation could not store.
pub fn check_key(key: &str) -> Result<(), MetaError> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES || key.chars().any(char::is_control) {
        return Err(MetaError::BadKey { key: key.chars().take(80).collect() });
    }
    Ok(())
}

/// Refuses values that are no pointers.
pub fn check_value(key: &str, value: &[u8]) -> Result<(), MetaError> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(MetaError::TooLarge {
            key: key.to_owned(),
            bytes: value.len() as u64,
            limit: MAX_VALUE_BYTES as u64,
        });
    }
    Ok(())
}
