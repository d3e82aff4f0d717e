//! Which keys are revoked. Kept in the metastore and followed from there by every node, which goes on with what it knows when
//! the metastore is away.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardd_client::certificates::now;
use shardd_client::metastore::{Expected, MetaError, Metastore};
use shardd_client::node::NodeId;
use shardfmt::digest::Digest;
use tokio_util::sync::CancellationToken;

/// Where they are kept.
const PREFIX: &str = "revoked/";
/// After this a metastore that was away is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// The keys whose certificates are not believed any more, whatever these say.
#[derive(Default)]
pub struct Revoked(RwLock<BTreeSet<Digest>>);

/// What is written down for a key.
#[derive(Serialize, Deserialize)]
struct Record {
    node: NodeId,
    revoked_at: u64,
}

impl Revoked {
    /// Whether a key is known to be revoked.
    #[must_use]
    pub fn contains(&self, key: Digest) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(&key)
    }

    /// Whether no key is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Keeps up with the metastore until `stop`.
    pub async fn follow(self: Arc<Revoked>, metastore: Arc<dyn Metastore>, stop: CancellationToken) {
        let following = async {
            loop {
                let followed = async {
                    let revision = self.load(metastore.as_ref()).await?;
                    metastore.changed(PREFIX, revision).await
                };
                if followed.await.is_err() {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        stop.run_until_cancelled(following).await;
    }

    /// Reads what the metastore has.
    ///
    /// # Errors
    /// When the metastore cannot; then what was known stays known.
    pub async fn load(&self, metastore: &dyn Metastore) -> Result<u64, MetaError> {
        let listing = metastore.list(PREFIX).await?;
        let keys = listing.entries.iter().filter_map(|(key, _)| key.strip_prefix(PREFIX)?.parse().ok());
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys.collect();
        Ok(listing.revision)
    }

    /// Whether a key is revoked, by the metastore.
    ///
    /// # Errors
    /// When the metastore cannot say.
    pub async fn holds(metastore: &dyn Metastore, key: Digest) -> Result<bool, MetaError> {
        Ok(metastore.get(&format!("{PREFIX}{key}")).await?.is_some())
    }

    /// Revokes the key of a node, for ever.
    ///
    /// # Errors
    /// When the metastore cannot keep it; then it is as good as before.
    pub async fn revoke(metastore: &dyn Metastore, node: &NodeId, key: Digest) -> Result<(), MetaError> {
        let record = Record { node: node.clone(), revoked_at: now() };
        let value = serde_json::to_vec(&record).expect("a record is plain data");
        metastore.put(&format!("{PREFIX}{key}"), value, Expected::Any, None).await.map(drop)
    }
}
