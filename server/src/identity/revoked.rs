//! Which keys are revoked. The list is in the metastore; every node follows it and keeps a copy in a file,
//! for a start while the metastore is unreachable.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardd_api::duration::now;
use shardd_api::node::NodeId;
use shardd_certificates::write_private;
use shardd_store::metastore::{Expected, Following, Listing, MetaError, Metastore};
use shardfmt::digest::Digest;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Where they are kept.
const PREFIX: &str = "revoked/";
/// After this a metastore that was away is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// The keys whose certificates are not believed any more, whatever these say.
pub struct Revoked {
    keys: watch::Sender<BTreeSet<Digest>>,
    file: Option<PathBuf>,
}

impl Default for Revoked {
    fn default() -> Self {
        Self { keys: watch::Sender::new(BTreeSet::new()), file: None }
    }
}

/// A key is revoked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key of node {0} was revoked; start it with an empty --data directory, and a new join token")]
pub struct KeyRevoked(pub NodeId);

/// The record of a key.
#[derive(Serialize, Deserialize)]
struct Record {
    node: NodeId,
    revoked_at: u64,
}

impl Revoked {
    /// The revoked keys in `file`, which will keep later ones, too.
    #[must_use]
    pub fn remembered(file: &Path) -> Revoked {
        let kept = std::fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Self { keys: watch::Sender::new(kept.unwrap_or_default()), file: Some(file.to_owned()) }
    }

    /// Whether a key is known to be revoked.
    #[must_use]
    pub fn contains(&self, key: Digest) -> bool {
        self.keys.borrow().contains(&key)
    }

    /// Ends when a key is known to be revoked.
    pub async fn revoked(&self, key: Digest) {
        // The sender is here, so it cannot have gone.
        let _ = self.keys.subscribe().wait_for(|keys| keys.contains(&key)).await;
    }

    /// Keeps up with the metastore until `stop`.
    pub async fn follow(self: Arc<Revoked>, metastore: Arc<dyn Metastore>, stop: CancellationToken) {
        let following = async {
            let mut listings = Following::new(metastore.as_ref(), PREFIX, PAUSE);
            loop {
                if let Ok(listing) = listings.next().await {
                    self.take(&listing).await;
                }
            }
        };
        stop.run_until_cancelled(following).await;
    }

    /// Reads the metastore's list.
    ///
    /// # Errors
    /// When the metastore cannot; then the known list stays.
    pub async fn load(&self, metastore: &dyn Metastore) -> Result<(), MetaError> {
        self.take(&metastore.list(PREFIX).await?).await;
        Ok(())
    }

    async fn take(&self, listing: &Listing) {
        let keys = listing.entries.iter().filter_map(|(key, _)| key.strip_prefix(PREFIX)?.parse().ok());
        let keys: BTreeSet<Digest> = keys.collect();
        let has_changed = self.keys.send_if_modified(|known| {
            let has_changed = *known != keys;
            known.clone_from(&keys);
            has_changed
        });
        if let Some(file) = self.file.clone().filter(|_| has_changed) {
            let text = serde_json::to_vec(&keys).expect("digests are plain data");
            let written = tokio::task::spawn_blocking(move || write_private(&file, &text)).await;
            if let Ok(Err(error)) = written {
                warn!(%error, "the list of revoked keys cannot be kept for the next start");
            }
        }
    }

    /// Whether a key is revoked, by the metastore.
    ///
    /// # Errors
    /// When the metastore cannot say.
    pub async fn holds(metastore: &dyn Metastore, key: Digest) -> Result<bool, MetaError> {
        Ok(metastore.get(&format!("{PREFIX}{key}")).await?.is_some())
    }

    /// Revokes the key of a node for good.
    ///
    /// # Errors
    /// When the metastore cannot keep it; then it is as good as before.
    pub async fn revoke(metastore: &dyn Metastore, node: &NodeId, key: Digest) -> Result<(), MetaError> {
        let record = Record { node: node.clone(), revoked_at: now() };
        let value = serde_json::to_vec(&record).expect("a record is plain data");
        metastore.put(&format!("{PREFIX}{key}"), value, Expected::Any, None).await.map(drop)
    }
}
