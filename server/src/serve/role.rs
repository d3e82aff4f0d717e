//! A node's role in its cluster: the first node, or one that has joined.
//!
//! At start a node founds a cluster, joins one, or keeps its role. It may also take over the metadata, or
//! come back as a member after another node was promoted.

use std::path::Path;
use std::sync::Arc;

use shardd_api::node::NodeId;
use shardd_api::protocol::Health;
use shardd_certificates::{Authority, CA_CERTIFICATE, CA_KEY};
use shardd_store::metastore::{CopyShelf, MetastoreAddress};
use tracing::{info, warn};

use super::{STORE_TIMEOUT, ServeError, check_protection};
use crate::config::Config;
use crate::identity::{self, Cluster, ClusterRole, Identity, IdentityError, JoinToken, Site, Term};
use crate::keeping::{self, KeepError};
use crate::metastore::{self, MetastoreUrl};

/// The name of a first node that was given none.
const FIRST: &str = "n1";

/// A node's role in its cluster.
pub(super) enum NodeRole {
    First {
        identity: Arc<Identity>,
        authority: Option<Authority>,
        metastore: MetastoreUrl,
        /// The cluster that it was a member of before its promotion, with the store.
        promoted: Option<Box<Cluster>>,
        /// Whether it founds its cluster at this start.
        is_new: bool,
    },
    Joined {
        identity: Arc<Identity>,
        cluster: Box<Cluster>,
        metastore: MetastoreUrl,
    },
}

impl NodeRole {
    pub(super) fn identity(&self) -> &Arc<Identity> {
        match self {
            NodeRole::First { identity, .. } | NodeRole::Joined { identity, .. } => identity,
        }
    }

    /// Whether this node reaches the metadata through another node.
    pub(super) fn has_metastore_node(&self) -> bool {
        matches!(self, NodeRole::Joined { metastore: MetastoreUrl::Sled, .. })
    }

    /// The cluster that it joined, also after a promotion.
    pub(super) fn cluster(&self) -> Option<&Cluster> {
        match self {
            NodeRole::First { promoted, .. } => promoted.as_deref(),
            NodeRole::Joined { cluster, .. } => Some(cluster),
        }
    }
}

/// Opens the node's identity, founds a cluster, or joins one.
pub(super) async fn take_role(config: &Config) -> Result<NodeRole, ServeError> {
    check_protection(config).map_err(ServeError::Unprotected)?;
    let config = config.clone();
    let role = tokio::task::spawn_blocking(move || {
        let (tls, id) = (config.data.join("tls"), config.id.clone());
        let term = Term { hosts: config.hosts(), lifetime: config.certificate_lifetime };
        let first = |identity: Identity, authority: Option<Authority>, is_new| {
            let metastore = metastore::of_first(&config.data, config.metastore.as_ref())?;
            let promoted =
                Cluster::kept(&tls).filter(|cluster| cluster.first == *identity.node()).map(Box::new);
            tell_of_authority(&identity, authority.is_some())?;
            Ok::<_, ServeError>(NodeRole::First {
                identity: Arc::new(identity),
                authority,
                metastore,
                promoted,
                is_new,
            })
        };
        let joined = |identity, cluster: Box<Cluster>| {
            config.check_protection(cluster.tls, cluster.asks_tokens).map_err(ServeError::Unprotected)?;
            let metastore =
                metastore::of_joined(&config.data, cluster.metastore.as_deref(), config.metastore.as_ref())?;
            Ok::<_, ServeError>(NodeRole::Joined { identity: Arc::new(identity), cluster, metastore })
        };
        let join = |token: &JoinToken| {
            let (identity, cluster) = identity::join(&tls, token, id.clone(), &term.hosts)?;
            joined(identity, Box::new(cluster))
        };
        let is_promoted = |identity: &Identity| {
            Cluster::kept(&tls).is_some_and(|cluster| cluster.first == *identity.node())
        };
        // The token with which a first node comes back, if another is the first by now. A promoted node may start with the flags that
        // it joined with: where no other first node answers at the token's address, it still is the first.
        let replaced_by = |identity: &Identity| {
            let Some(token) = &config.join else { return Ok(None) };
            let is_of_cluster = identity.authority() == token.authority;
            if is_of_cluster && first_at(token, &tls).is_some_and(|first| first != *identity.node()) {
                return Ok(Some(token));
            }
            if is_of_cluster && is_promoted(identity) {
                info!("--join is ignored: this node was promoted and keeps the metadata");
                return Ok(None);
            }
            Err(ServeError::AlreadyFirst { path: config.data.clone() })
        };
        let come_back = |token: &JoinToken| {
            keeping::retire(&tls)?;
            let role = join(token).inspect_err(|_| {
                let _ = keeping::unretire(&tls);
            })?;
            keeping::set_aside(&config.data.join("meta"), "before")?;
            for file in ["meta.ahead", "join-token"] {
                let _ = std::fs::remove_file(config.data.join(file));
            }
            Ok::<_, ServeError>(role)
        };
        let role = match (Identity::open(&tls)?, &config.join) {
            (ClusterRole::New | ClusterRole::Issued(_), None) if config.metadata.promote => {
                return Err(KeepError::NoMember.into());
            }
            (ClusterRole::First(identity, authority), _) => match replaced_by(&identity)? {
                Some(token) => come_back(token)?,
                None => {
                    if let Some(ahead) = identity.is_early() {
                        warn!(%ahead, "the certificate of this node begins in the future, as its clock was \
                            ahead when it was made: a new one is signed");
                    }
                    if identity.is_due(&term.hosts) {
                        identity.renew(&authority, &term)?;
                    }
                    first(identity, Some(authority), false)?
                }
            },
            (ClusterRole::Joined(identity, _), _) if is_promoted(&identity) => {
                match replaced_by(&identity)? {
                    Some(token) => come_back(token)?,
                    None => {
                        identity.check_time()?;
                        first(identity, None, false)?
                    }
                }
            }
            (ClusterRole::Joined(identity, _), Some(token)) if identity.authority() != token.authority => {
                return Err(IdentityError::OtherCluster.into());
            }
            (ClusterRole::Joined(identity, cluster), token) => match (identity.check_time(), token) {
                (Ok(()), token) => {
                    if let Some(ahead) = identity.is_early() {
                        warn!(%ahead, "the certificate of this node begins in the future, as a clock was ahead when it was made: other nodes refuse it until then");
                        if let Some(token) = token {
                            return join(token);
                        }
                    }
                    joined(identity, cluster)?
                }
                (Err(_), Some(token)) => join(token)?,
                (Err(lapsed), None) => return Err(lapsed.into()),
            },
            (ClusterRole::Issued(identity), None) => {
                identity.check_time()?;
                first(identity, None, true)?
            }
            (ClusterRole::New, None) => {
                let node = id.clone().unwrap_or_else(|| FIRST.parse().expect("a good name"));
                let (identity, authority) = Identity::found(&tls, node, &term)?;
                first(identity, Some(authority), true)?
            }
            (ClusterRole::New | ClusterRole::Issued(_), Some(token)) => join(token)?,
        };
        let found = role.identity().node().clone();
        match id {
            Some(asked) if asked != found => Err(IdentityError::OtherNode { found, asked }.into()),
            _ => Ok(role),
        }
    });
    role.await?
}

/// Says who signs certificates, if this first node does not.
fn tell_of_authority(identity: &Identity, signs: bool) -> Result<(), ServeError> {
    let did_sign = identity.note_signing(signs)?;
    match (signs, did_sign) {
        (true, _) => {}
        (false, true) => warn!(
            "tls/ca.key is lost: no node can join, and no certificate is renewed; put your copy of it back, or found a cluster over the same store in another --data directory before the certificates lapse"
        ),
        (false, false) => info!(
            "this first node has no tls/ca.key: it signs nothing, and no node joins without a certificate \
            of `shardctl certs issue`; put the key there if this node is to sign"
        ),
    }
    Ok(())
}

/// The node that answers at the address of a join token, if its authority is the one that the token pins.
fn first_at(token: &JoinToken, tls: &Path) -> Option<NodeId> {
    let url = format!("{}/v1/health", token.site);
    let asked = identity::ask(&url, &tls.join(CA_CERTIFICATE), STORE_TIMEOUT, |client| {
        client.get_json::<Health>(&url)
    });
    Some(asked.ok()?.id)
}

/// Makes a joined node the one that holds the metadata. Its description of the cluster stays, with a new
/// first node.
pub(super) async fn take_over(
    config: &Config,
    role: NodeRole,
    shelf: &CopyShelf,
    me: &MetastoreAddress,
    site: Site,
) -> Result<NodeRole, ServeError> {
    let (identity, mut cluster) = match role {
        NodeRole::Joined { identity, cluster, metastore: MetastoreUrl::Sled } => (identity, cluster),
        NodeRole::Joined { .. }
        | NodeRole::First { metastore: MetastoreUrl::Etcd(_) | MetastoreUrl::Store, .. } => {
            return Err(KeepError::NotInSled.into());
        }
        NodeRole::First { promoted: Some(_), .. } => return Err(KeepError::Already(me.node.clone()).into()),
        NodeRole::First { .. } => return Err(KeepError::NoMember.into()),
    };
    let tls = config.data.join("tls");
    // A key that is no good is found before another node is fenced.
    let authority = tls.join(CA_KEY).exists().then(|| Authority::open(&tls)).transpose()?;
    keeping::promote(&config.data, shelf, me).await?;
    (cluster.first, cluster.http, cluster.tls, cluster.quic) =
        (me.node.clone(), site.address, site.tls, me.quic);
    cluster.save(&tls)?;
    tell_of_authority(&identity, authority.is_some())?;
    let (metastore, promoted) = (MetastoreUrl::Sled, Some(cluster));
    Ok(NodeRole::First { identity, authority, metastore, promoted, is_new: false })
}
