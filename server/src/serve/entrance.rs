//! Who gets in: users by tokens, other nodes by certificates.

use std::net::IpAddr;
use std::sync::Arc;

use shardd_certificates::{CA_CERTIFICATE, CertificateError, Host};
use shardd_store::metastore::Metastore;
use shardd_store::stores::StoreOptions;
use tokio_util::sync::CancellationToken;

use super::ServeError;
use super::network::Network;
use super::role::NodeRole;
use super::storage::{Storage, store_options};
use crate::access::{Mark, Tokens, owner, private};
use crate::ca::CertificateIssuer;
use crate::config::{Auth, Config};
use crate::http::{Access, Bootstrap, TokensAsked};
use crate::identity::{Cluster, JoinToken, Site};
use crate::keeping::Promotion;
use crate::membership::Finder;
use crate::metastore::{MetastoreNode, MetastoreUrl};
use crate::renewal::{Renewal, Signer};

/// The means to let users and nodes in.
pub(super) struct Entrance {
    pub(super) access: Access,
    pub(super) bootstrap: Bootstrap,
    /// Of a node that may take over the metadata: how.
    pub(super) promotion: Option<Arc<Promotion>>,
    pub(super) renewal: Renewal,
}

impl Entrance {
    /// Opens tokens and certificates.
    pub(super) async fn open(
        config: &Config,
        role: NodeRole,
        network: &Network,
        storage: &Storage,
        finder: Option<Arc<Finder>>,
    ) -> Result<Self, ServeError> {
        let (identity, metastore) = (Arc::clone(role.identity()), &storage.metadata.metastore);
        let (transport, node) = (&network.transport, identity.node().clone());
        let access = open_access(config, &role, metastore, transport.address().ip()).await?;
        let promotion = role.has_metastore_node().then(|| {
            let (tls, asked) = (config.data.join("tls"), CancellationToken::new());
            Arc::new(Promotion { shelf: storage.shelf.clone(), node: node.clone(), tls, asked })
        });
        let bootstrap = open_bootstrap(config, role, network, storage, access.is_required(), finder)?;
        let signer = match &bootstrap.issuer {
            Some(issuer) => Signer::Here(Arc::clone(issuer)),
            None => {
                let first = storage.metastore_node.clone().unwrap_or_else(|| MetastoreNode::new(node));
                Signer::First(Arc::clone(transport), first)
            }
        };
        let renewal = Renewal { identity, hosts: config.hosts(), signer, metastore: Arc::clone(metastore) };
        Ok(Self { access, bootstrap, promotion, renewal })
    }
}

/// Who may ask over HTTP. Where a token is asked, the first node leaves an administrator's for who owns its machine, and any node
/// where there is none.
async fn open_access(
    config: &Config,
    role: &NodeRole,
    metastore: &Arc<dyn Metastore>,
    quic: IpAddr,
) -> Result<Access, ServeError> {
    let mark = Mark::in_data(&config.data);
    let was_asked = mark.is_set();
    let tokens = Tokens::open(Arc::clone(metastore), Some(mark)).await;
    let is_first = matches!(role, NodeRole::First { .. });
    // Tokens that a first node does not know any more went with its metadata: the node still asks for tokens.
    let are_lost = is_first && was_asked && !tokens.is_away() && !tokens.any();
    let of_cluster = role.cluster().is_some_and(|cluster| cluster.asks_tokens);
    let asked = match config.auth {
        Some(Auth::Tokens) => TokensAsked::Always,
        Some(Auth::None) => TokensAsked::Never,
        None if of_cluster || are_lost => TokensAsked::Always,
        None => TokensAsked::OnceThereIsOne,
    };
    let own = [quic, config.http.ip()].map(|address| Host::Address(address.to_canonical()));
    let hosts = [config.hosts(), own.to_vec(), config.allowed_hosts.clone()].concat();
    let access = Access { tokens, asked, hosts };
    if access.is_required() {
        private::close(&config.data);
    }
    let (tokens, is_away) = (&access.tokens, access.tokens.is_away());
    if access.is_required() && !is_away && (is_first || !tokens.has_administrator(None)) {
        owner::keep(&config.data, tokens).await?;
    }
    Ok(access)
}

/// Assembles the data of the join endpoints; nodes join at the first one. While only its own machine can
/// reach the first node, it keeps a reusable token in a file. Otherwise each joining node needs a token of
/// its own.
fn open_bootstrap(
    config: &Config,
    role: NodeRole,
    network: &Network,
    storage: &Storage,
    asks_tokens: bool,
    finder: Option<Arc<Finder>>,
) -> Result<Bootstrap, ServeError> {
    let digest = role.identity().authority();
    let ca = config.data.join("tls").join(CA_CERTIFICATE);
    let pem = std::fs::read_to_string(&ca).map_err(|source| CertificateError::Io { path: ca, source })?;
    // Those that its store was opened with: a promoted node has them from the cluster.
    let store_options = store_options(config, role.cluster());
    let movable = Arc::clone(&storage.metadata.movable);
    let (identity, authority) = match role {
        NodeRole::Joined { cluster, .. } => {
            return Ok(Bootstrap {
                authority: pem,
                digest,
                cluster: *cluster,
                issuer: None,
                finder,
                movable,
            });
        }
        NodeRole::First { identity, authority, .. } => (identity, authority),
    };
    let metastore = Some(movable.place()).filter(|place| *place != MetastoreUrl::Sled).map(Box::new);
    let path = config.data.join("join-token");
    let standing = match network.is_alone() {
        true => Some(JoinToken::keep(&path, network.site, digest)?.secret),
        false => {
            // One that lasts is for those who share the machine.
            let _ = std::fs::remove_file(&path);
            None
        }
    };
    let store = match storage.origin.name() {
        url if url.contains("://") => url.to_owned(),
        path => {
            let path = std::path::absolute(path);
            let path = path.map_err(|source| ServeError::Data { path: config.data.clone(), source })?;
            path.display().to_string()
        }
    };
    let store_options = StoreOptions { ca: None, bandwidth: None, ..store_options };
    let (first, quic) = (identity.node().clone(), network.transport.address());
    let Site { address: http, tls } = network.site;
    let cluster = Cluster { store, store_options, first, http, tls, quic, asks_tokens, metastore };
    let issuer = CertificateIssuer {
        authority,
        authority_pem: pem.clone(),
        standing,
        first_key: identity.key_digest(),
        cluster: cluster.clone(),
        metastore: Arc::clone(&storage.metadata.metastore),
        lifetime: config.certificate_lifetime,
    };
    Ok(Bootstrap { authority: pem, digest, cluster, issuer: Some(Arc::new(issuer)), finder: None, movable })
}
