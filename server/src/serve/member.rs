//! A node as a member of its cluster: registered under its name, found by the others.

use std::sync::Arc;

use shardd_api::duration::now;
use shardd_api::local_transport::Share;
use shardd_api::node::NodeRecord;
use shardd_engine::engine::Passes;
use shardd_store::metastore::LeaseId;
use tracing::warn;

use super::network::Network;
use super::role::NodeRole;
use super::storage::Storage;
use super::{STORE_TIMEOUT, ServeError};
use crate::config::Config;
use crate::identity::Cluster;
use crate::lend::LocalListener;
use crate::membership::{Finder, Membership, MembershipError};
use crate::metastore::MetastoreUrl;

/// The socket for loaders of this machine, in the data directory.
const SOCKET: &str = "shardd.sock";

/// A node under its name.
pub(super) struct Member {
    pub(super) record: NodeRecord,
    pub(super) membership: Membership,
    /// `None` if the metastore did not answer at the start.
    pub(super) lease: Option<LeaseId>,
    /// Finds the metadata when another node has them.
    pub(super) finder: Option<Arc<Finder>>,
    pub(super) local: Option<LocalListener>,
}

impl Member {
    /// Registers the node.
    pub(super) async fn register(
        config: &Config,
        role: &NodeRole,
        network: &Network,
        storage: &Storage,
    ) -> Result<Self, ServeError> {
        let metastore = &storage.metadata.metastore;
        let (identity, transport) = (role.identity(), &network.transport);
        let local = open_local_listener(config)?;
        let record = NodeRecord {
            id: identity.node().clone(),
            http: network.site.to_string(),
            quic: transport.address(),
            cache_bytes: config.cache_size.0,
            started_at: now(),
            socket: local.as_ref().and_then(LocalListener::record),
            metastore: None,
        };
        let movable = &storage.metadata.movable;
        let announces = matches!(role, NodeRole::First { .. }) && movable.place() != MetastoreUrl::Sled;
        let metastore_node = storage.metastore_node.clone().filter(|_| role.has_metastore_node());
        let membership = Membership {
            metastore: Arc::clone(metastore),
            record: record.clone(),
            announced: announces.then(|| Arc::clone(movable)),
            key: identity.key_digest(),
            revoked: Arc::clone(&network.revoked),
            metastore_node: metastore_node.map(|node| (Arc::clone(transport), node)),
        };
        // Before any connection; without the metastore by the state known at the last stop.
        let known = tokio::time::timeout(STORE_TIMEOUT, network.revoked.load(metastore.as_ref())).await;
        if !matches!(known, Ok(Ok(_))) {
            warn!("the recently revoked keys are not known yet");
        }
        let lease = match membership.register().await {
            Ok(lease) => Some(lease),
            Err(error @ (MembershipError::Taken(_) | MembershipError::Revoked(_))) => {
                return Err(error.into());
            }
            // It serves its objects and registers when the metastore is back.
            Err(MembershipError::Meta(_)) => None,
        };
        let finder = match (role, &storage.metastore_node) {
            (NodeRole::Joined { cluster, .. }, Some(metastore_node)) => Some(Finder::new(
                Arc::clone(transport),
                Cluster::clone(cluster),
                config.data.join("tls"),
                storage.shelf.clone(),
                Arc::clone(metastore_node),
                record.id.clone(),
            )),
            _ => None,
        };
        Ok(Self { record, membership, lease, finder, local })
    }
}

/// Opens the Unix socket for loaders of this machine, unless `--share none` switches it off. They can read
/// over HTTP instead, so a failure is an error only if `--socket` names the path.
fn open_local_listener(config: &Config) -> Result<Option<LocalListener>, ServeError> {
    if config.share == Share::None {
        return Ok(None);
    }
    let path = config.socket.clone().unwrap_or_else(|| config.data.join(SOCKET));
    match LocalListener::open(&path) {
        Ok(listener) => Ok(Some(listener)),
        Err(source) if config.socket.is_some() => Err(ServeError::Socket { path, source }),
        Err(error) => {
            warn!(path = %path.display(), %error,
                  "loaders of this machine are sent bytes instead of being lent files; name another place by --socket");
            Ok(None)
        }
    }
}

/// The passes of this process: of a secret key.
pub(super) fn passes() -> Passes {
    let mut key = [0; 32];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(&mut key).expect("the system gives random bytes");
    Passes::new(key)
}
