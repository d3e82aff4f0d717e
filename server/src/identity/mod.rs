//! Who a node is: its name, its key and the certificate that binds the two, kept in `<data>/tls`.
//!
//! The first node founds the cluster: it makes the certificate authority, signs itself and writes a join
//! token. Every other node makes its own key and has the first one sign it ([`join()`]), unless an owner of
//! the authority has put a certificate there before. Keys never leave the machine that made them. Knows
//! nothing of sockets other than the requests a join is.
//!
//! The metastore has the public key of each live node's name, and the [`Revoked`] keys.

mod cert_resolver;
mod join;
mod names;
mod revoked;
mod token;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rcgen::KeyPair;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use shardd_api::duration::{Span, now};
use shardd_api::node::NodeId;
use shardd_certificates::{
    self, Authority, CA_CERTIFICATE, CA_KEY, CertificateError, CertificateInfo, Host, NODE_CERTIFICATE,
    NODE_KEY, Request, check_certificate, read_certificate, read_key, write_private,
};
use shardd_store::stores::StoreOptions;
use shardfmt::digest::Digest;

use crate::metastore::MetastoreUrl;

pub use cert_resolver::CertResolver;
pub(crate) use join::ask;
pub use join::{JoinReply, JoinRequest, join};
pub(crate) use names::{holder, name_key, other_holder};
pub use revoked::{KeyRevoked, Revoked};
pub use token::{JoinToken, Secret, Site};

/// The file in `<data>/tls` with what a joined node knows of its cluster.
pub(crate) const CLUSTER: &str = "cluster.json";
/// The file in `<data>/tls` of a node that has had the authority's key.
const SIGNS: &str = "signs";

/// A node's name, key and certificate, and the authority its peers are checked against.
pub struct Identity {
    node: NodeId,
    ca: CertificateDer<'static>,
    key: KeyPair,
    resolver: Arc<CertResolver>,
    info: RwLock<CertificateInfo>,
    tls: PathBuf,
}

/// The notes of a joined node on the first one, to find it again without a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Cluster {
    /// URL of the store that the cluster shares.
    pub store: String,
    /// How the first node reaches that store; certificates are each machine's own.
    #[serde(default, skip_serializing_if = "is_default")]
    pub store_options: StoreOptions,
    /// Name of the first node, which signs, and keeps the metadata unless etcd does.
    pub first: NodeId,
    /// Where the first node speaks HTTP.
    #[schema(value_type = String)]
    pub http: SocketAddr,
    /// Whether it does so behind TLS, as the others do by default.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tls: bool,
    /// Where the first node was last seen speaking QUIC.
    #[schema(value_type = String)]
    pub quic: SocketAddr,
    /// Whether nodes ask for a token over HTTP, by default.
    #[serde(default, skip_serializing_if = "is_default")]
    pub asks_tokens: bool,
    /// Where the metadata is; if it is not said, the first node keeps it, and so it was before there was a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub metastore: Option<Box<MetastoreUrl>>,
}

/// The part of a data directory's node in a cluster.
pub enum ClusterRole {
    /// Nothing yet: found a cluster or join one.
    New,
    /// The holder of the authority has put a certificate there: it may found a cluster, whose authority is
    /// elsewhere, or join one.
    Issued(Identity),
    /// It founded the cluster and keeps its authority.
    First(Identity, Authority),
    /// It joined.
    Joined(Identity, Box<Cluster>),
}

/// Why a node has no identity.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum IdentityError {
    /// A file of the identity cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The directory belongs to a node of another name.
    #[error(
        "data directory belongs to node {found}, not {asked}; drop --id, or use another --data directory"
    )]
    OtherNode { found: NodeId, asked: NodeId },
    /// The directory belongs to a node of another cluster.
    #[error(
        "data directory already belongs to another cluster; drop --join, or use another --data directory"
    )]
    OtherCluster,
    /// The certificate has lapsed: without one no node renews it.
    #[error(
        "the certificate of node {node} lapsed {ago} ago, as the first node could not renew it in time; join again: start it \
         with --join and what `shardctl token create --join` prints, or give it one of `shardctl certs issue` (if it did not lapse, set this machine's clock right)"
    )]
    Lapsed { node: NodeId, ago: Span },
    /// The first node cannot be reached.
    #[error("cannot join at {site}: {reason}; is the first node running?")]
    JoinUnreachable { site: Site, reason: String },
    /// The first node refused.
    #[error("cannot join at {site}: {reason}")]
    JoinRefused { site: Site, reason: String },
    /// The answering server is not the node that wrote the token.
    #[error(
        "cannot join at {site}: its authority {found} is not {pinned}, which the token pins; someone else answers there, or \
         the token is of an older cluster"
    )]
    WrongAuthority { site: Site, pinned: Digest, found: Digest },
}

impl Identity {
    /// Reads what `tls` holds, if anything.
    ///
    /// # Errors
    /// [`IdentityError`] when a file is unreadable, damaged or does not fit the others.
    pub fn open(tls: &Path) -> Result<ClusterRole, IdentityError> {
        let path = tls.join(NODE_CERTIFICATE);
        if !path.exists() {
            return Ok(ClusterRole::New);
        }
        let key = read_key(&tls.join(NODE_KEY))?;
        let ca = read_certificate(&tls.join(CA_CERTIFICATE))?;
        let identity = Identity::of(tls, ca, key, read_certificate(&path)?)
            .map_err(|reason| CertificateError::Damaged { path, reason })?;
        let (path, has_key) = (tls.join(CLUSTER), tls.join(CA_KEY).exists());
        let cluster: Option<Cluster> = match path.exists() {
            true => Some(
                serde_json::from_slice(&shardd_certificates::read(&path)?)
                    .map_err(|error| CertificateError::Damaged { path, reason: error.to_string() })?,
            ),
            false => None,
        };
        match cluster {
            // The key of a node that is to be promoted waits there until then.
            Some(cluster) if !has_key || cluster.first != *identity.node() => {
                Ok(ClusterRole::Joined(identity, Box::new(cluster)))
            }
            None if !has_key => Ok(ClusterRole::Issued(identity)),
            _ => Ok(ClusterRole::First(identity, Authority::open(tls)?)),
        }
    }

    /// Founds a cluster: makes its authority and the first node's key and certificate. Repeating it after a crash
    /// continues where it stopped.
    ///
    /// # Errors
    /// [`IdentityError`] when files cannot be written.
    pub fn found(tls: &Path, node: NodeId, term: &Term) -> Result<(Identity, Authority), IdentityError> {
        shardd_certificates::private_directory(tls)?;
        let authority = Authority::found(tls)?;
        let key = shardd_certificates::key_in(&tls.join(NODE_KEY))?;
        let certificate =
            authority.certify(&node, &term.hosts, &key, term.lifetime).map_err(CertificateError::from)?;
        write_private(&tls.join(NODE_CERTIFICATE), certificate.pem().as_bytes())?;
        let identity = Identity::of(tls, authority.certificate().clone(), key, certificate.into())
            .map_err(|reason| CertificateError::Damaged { path: tls.join(NODE_CERTIFICATE), reason })?;
        Ok((identity, authority))
    }

    /// Checks that everything fits together, or reports the misfit.
    fn of(
        tls: &Path,
        ca: CertificateDer<'static>,
        key: KeyPair,
        certificate: CertificateDer<'static>,
    ) -> Result<Identity, String> {
        let info = check_certificate(&certificate, &ca, shardd_certificates::key_digest(&key))?;
        let resolver =
            CertResolver::new(vec![certificate], &private(&key)).map_err(|error| error.to_string())?;
        let node = info.node.clone();
        Ok(Identity {
            node,
            ca,
            key,
            resolver: Arc::new(resolver),
            info: RwLock::new(info),
            tls: tls.to_owned(),
        })
    }

    /// The node's name.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Digest of the node's public key: the same over restarts, different for every data directory.
    #[must_use]
    pub fn key_digest(&self) -> Digest {
        shardd_certificates::key_digest(&self.key)
    }

    /// Digest of the cluster's authority, as join tokens pin it.
    #[must_use]
    pub fn authority(&self) -> Digest {
        Digest::of(&self.ca)
    }

    /// The certificate that peers' certificates must be signed by.
    #[must_use]
    pub fn ca(&self) -> &CertificateDer<'static> {
        &self.ca
    }

    /// Gives TLS the current certificate of this node.
    #[must_use]
    pub fn cert_resolver(&self) -> Arc<CertResolver> {
        Arc::clone(&self.resolver)
    }

    /// The contents of the certificate.
    #[must_use]
    pub fn info(&self) -> CertificateInfo {
        self.info.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the certificate should be replaced now, if it should.
    #[must_use]
    pub fn is_due(&self, hosts: &[Host]) -> bool {
        let info = self.info();
        now() >= info.due() || !info.covers(hosts) || info.is_early(now())
    }

    /// How long it is until the certificate is good, if it was made by a clock that was ahead.
    #[must_use]
    pub fn is_early(&self) -> Option<Span> {
        let (info, now) = (self.info(), now());
        let ahead = std::time::Duration::from_secs(info.not_before.saturating_sub(now));
        info.is_early(now).then_some(Span(ahead))
    }

    /// Notes that this node has the authority's key; or, if it has none, says whether it had.
    ///
    /// # Errors
    /// When the note cannot be written.
    pub fn note_signing(&self, signs: bool) -> Result<bool, CertificateError> {
        let path = self.tls.join(SIGNS);
        let had = path.exists();
        if signs && !had {
            write_private(&path, b"this node has the authority's key, ca.key\n")?;
        }
        Ok(had)
    }

    /// Refuses a certificate whose time is over.
    ///
    /// # Errors
    /// [`IdentityError::Lapsed`].
    pub fn check_time(&self) -> Result<(), IdentityError> {
        match now().checked_sub(self.info().not_after) {
            Some(ago) => {
                let ago = Span(std::time::Duration::from_secs(ago));
                Err(IdentityError::Lapsed { node: self.node.clone(), ago })
            }
            None => Ok(()),
        }
    }

    /// A request for the next certificate, for the same key.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn request(&self) -> Result<String, CertificateError> {
        Ok(Request::make(&self.key)?)
    }

    /// Has its own authority sign the next certificate.
    ///
    /// # Errors
    /// When it cannot be made or kept.
    pub fn renew(&self, authority: &Authority, term: &Term) -> Result<(), IdentityError> {
        let signed = authority.certify(&self.node, &term.hosts, &self.key, term.lifetime);
        let pem = signed.map_err(CertificateError::from)?.pem();
        let path = self.tls.join(NODE_CERTIFICATE);
        self.take(&pem).map_err(|reason| CertificateError::Damaged { path, reason }.into())
    }

    /// Shows this certificate (PEM) from now on, and keeps it.
    ///
    /// # Errors
    /// One line: it is not this node's, or cannot be kept. Then everything is as before.
    pub fn take(&self, pem: &str) -> Result<(), String> {
        let info = self.show(pem.as_bytes())?;
        let path = self.tls.join(NODE_CERTIFICATE);
        write_private(&path, pem.as_bytes()).map_err(|error| format!("{:#}", anyhow::Error::from(error)))?;
        *self.info.write().unwrap_or_else(PoisonError::into_inner) = info;
        Ok(())
    }

    /// Looks whether the operator has put another certificate of this node in the place of the one it has,
    /// and shows that.
    ///
    /// # Errors
    /// One line: it is not this node's. Then the one before is shown.
    pub fn look_again(&self) -> Result<bool, String> {
        let pem = std::fs::read(self.tls.join(NODE_CERTIFICATE)).map_err(|error| error.to_string())?;
        let kept = CertificateDer::from_pem_slice(&pem).map_err(|error| error.to_string())?;
        if kept == self.resolver.leaf() {
            return Ok(false);
        }
        let info = self.show(&pem)?;
        *self.info.write().unwrap_or_else(PoisonError::into_inner) = info;
        Ok(true)
    }

    fn show(&self, pem: &[u8]) -> Result<CertificateInfo, String> {
        let certificate = CertificateDer::from_pem_slice(pem).map_err(|error| error.to_string())?;
        let info = check_certificate(&certificate, &self.ca, self.key_digest())?;
        if info.node != self.node {
            return Err(format!("it names {}, not {}", info.node, self.node));
        }
        self.resolver.replace(vec![certificate], &self.private_key()).map_err(|error| error.to_string())?;
        Ok(info)
    }

    /// The key to the certificate.
    pub(crate) fn private_key(&self) -> PrivateKeyDer<'static> {
        private(&self.key)
    }
}

/// The requested term of a certificate.
#[derive(Clone, Debug)]
pub struct Term {
    /// The hosts it is to be good for.
    pub hosts: Vec<Host>,
    /// How long it is to be good.
    pub lifetime: std::time::Duration,
}

fn private(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()))
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Cluster {
    /// The cluster kept in `tls`, if anything can be read there.
    #[must_use]
    pub fn kept(tls: &Path) -> Option<Cluster> {
        serde_json::from_slice(&std::fs::read(tls.join(CLUSTER)).ok()?).ok()
    }

    /// Whether `tls` is that of a node that has joined.
    #[must_use]
    pub fn is_kept(tls: &Path) -> bool {
        tls.join(CLUSTER).exists()
    }

    /// Remembers where the first node is, for the next start.
    ///
    /// # Errors
    /// [`CertificateError::Io`] when it cannot be written.
    pub fn save(&self, tls: &Path) -> Result<(), CertificateError> {
        let text = serde_json::to_vec_pretty(self).expect("a cluster is plain data");
        write_private(&tls.join(CLUSTER), &text)
    }

    /// Where the first node's HTTP API is.
    #[must_use]
    pub fn site(&self) -> Site {
        Site { address: self.http, tls: self.tls }
    }
}

/// Identities for the tests of other modules.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    impl Identity {
        /// One who believes whom `self` believes, but shows what `other` shows.
        pub(crate) fn showing(&self, other: &Identity) -> Identity {
            Identity {
                node: other.node.clone(),
                ca: self.ca.clone(),
                key: KeyPair::from_pem(&other.key.serialize_pem()).expect("a key"),
                resolver: other.cert_resolver(),
                info: RwLock::new(other.info()),
                tls: other.tls.clone(),
            }
        }
    }

    /// A certificate for a month, for loopback.
    pub(crate) fn term() -> Term {
        Term { hosts: vec!["127.0.0.1".parse().expect("a host")], lifetime: shardd_certificates::LIFETIME }
    }

    /// Nodes of one new cluster; the first founded it. Nothing of them is kept.
    pub(crate) fn cluster(names: &[&str]) -> Vec<Identity> {
        let directory = tempfile::TempDir::new().expect("a directory");
        let (first, authority) =
            Identity::found(directory.path(), names[0].parse().unwrap(), &term()).expect("founded");
        let joined = names[1..].iter().map(|name| {
            let key = KeyPair::generate().expect("a key");
            let node = name.parse().expect("a good name");
            let certificate = authority.certify(&node, &term().hosts, &key, term().lifetime).expect("signed");
            let ca = authority.certificate().clone();
            Identity::of(directory.path(), ca, key, certificate.into()).expect("fits")
        });
        let joined: Vec<Identity> = joined.collect();
        std::iter::once(first).chain(joined).collect()
    }
}

#[cfg(test)]
mod tests;
