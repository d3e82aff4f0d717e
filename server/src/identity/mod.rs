//! Who a node is: its name, its key and the certificate that binds the two, kept in `<data>/tls`.
//!
//! The first node founds the cluster: it makes the certificate authority ([`Authority`]), signs itself and writes a
//! join token. Every other node makes its own key and has the first one sign it ([`join()`]). Keys never leave the
//! machine that made them. Knows nothing of sockets other than the one request a join is.

mod authority;
mod files;
mod join;
mod token;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rcgen::{KeyPair, PublicKeyData};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use serde::{Deserialize, Serialize};
use shardd_client::node::NodeId;
use shardd_client::stores::StoreOptions;
use shardfmt::digest::Digest;

use crate::metastore::EtcdUrl;

pub use authority::Authority;
pub(crate) use files::write_private;
pub use join::{JoinReply, JoinRequest, join};
pub use token::{JoinToken, Secret};

const CA_KEY: &str = "ca.key";
const CA_CERTIFICATE: &str = "ca.pem";
const NODE_KEY: &str = "node.key";
const NODE_CERTIFICATE: &str = "node.pem";
const CLUSTER: &str = "cluster.json";

/// A node's name, key and certificate, and the authority its peers are checked against.
pub struct Identity {
    node: NodeId,
    ca: CertificateDer<'static>,
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

/// What a joined node keeps of the first one, to find it again without a token.
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
    /// Where the first node was last seen speaking QUIC.
    #[schema(value_type = String)]
    pub quic: SocketAddr,
    /// Whether nodes ask for a token over HTTP, unless they are told otherwise.
    #[serde(default, skip_serializing_if = "is_default")]
    pub asks_tokens: bool,
    /// The etcd that keeps the metadata; without one the first node does, and so it was before there was a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub metastore: Option<Box<EtcdUrl>>,
}

/// What a data directory says about its node's part in a cluster.
pub enum Standing {
    /// Nothing yet: found a cluster or join one.
    New,
    /// It founded the cluster and keeps its authority.
    First(Identity, Authority),
    /// It joined.
    Joined(Identity, Box<Cluster>),
}

/// Why a node has no identity.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum IdentityError {
    /// A file of the identity cannot be read or written.
    #[error("cannot read or write {path}")]
    Io { path: PathBuf, source: std::io::Error },
    /// A file of the identity does not hold what it should.
    #[error("{path} is damaged ({reason}); restore it, or start this node in a new --data directory")]
    Damaged { path: PathBuf, reason: String },
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
    /// A certificate could not be made.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// The first node cannot be reached.
    #[error("cannot join at http://{http}: {reason}; is the first node running?")]
    JoinUnreachable { http: SocketAddr, reason: String },
    /// The first node said no.
    #[error("cannot join at http://{http}: {reason}")]
    JoinRefused { http: SocketAddr, reason: String },
    /// Whoever answered is not the node that wrote the token.
    #[error(
        "cannot join at http://{http}: its authority {found} is not {pinned}, which the token pins; someone else answers \
         there, or the token is of an older cluster"
    )]
    WrongAuthority { http: SocketAddr, pinned: Digest, found: Digest },
}

impl Identity {
    /// Reads what `tls` holds, if anything.
    ///
    /// # Errors
    /// [`IdentityError`] when a file is unreadable, damaged or does not fit the others.
    pub fn open(tls: &Path) -> Result<Standing, IdentityError> {
        if !tls.join(NODE_CERTIFICATE).exists() {
            return Ok(Standing::New);
        }
        let key = read_key(&tls.join(NODE_KEY))?;
        let ca = read_certificate(&tls.join(CA_CERTIFICATE))?;
        let path = tls.join(NODE_CERTIFICATE);
        let certificate = read_certificate(&path)?;
        let damaged = |reason: String| IdentityError::Damaged { path: path.clone(), reason };
        check_certificate(&certificate, &ca, &key).map_err(damaged)?;
        let node = node_of(&certificate).ok_or_else(|| damaged("it names no node".into()))?;
        let identity = Identity { node, ca, certificate, key };
        if tls.join(CA_KEY).exists() {
            let authority = Authority::open(tls)?;
            return Ok(Standing::First(identity, authority));
        }
        let path = tls.join(CLUSTER);
        let cluster = serde_json::from_slice(&files::read(&path)?)
            .map_err(|error| IdentityError::Damaged { path, reason: error.to_string() })?;
        Ok(Standing::Joined(identity, Box::new(cluster)))
    }

    /// Founds a cluster: makes its authority and the first node's key and certificate. Repeating it after a crash
    /// continues where it stopped.
    ///
    /// # Errors
    /// [`IdentityError`] when files cannot be written.
    pub fn found(tls: &Path, node: NodeId) -> Result<(Identity, Authority), IdentityError> {
        files::private_directory(tls)?;
        let authority = Authority::found(tls)?;
        let key = files::key(&tls.join(NODE_KEY))?;
        let certificate = authority.certify(&node, &key)?;
        files::write_private(&tls.join(NODE_CERTIFICATE), certificate.pem().as_bytes())?;
        let identity =
            Identity { node, ca: authority.certificate().clone(), certificate: certificate.into(), key };
        Ok((identity, authority))
    }

    /// The node's name.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Digest of the node's public key: the same over restarts, different for every data directory.
    #[must_use]
    pub fn key_digest(&self) -> Digest {
        key_digest(&self.key)
    }

    /// Digest of the cluster's authority, as join tokens pin it.
    #[must_use]
    pub fn authority(&self) -> Digest {
        Digest::of(&self.ca)
    }

    /// The certificate that peers' certificates must be signed by.
    pub(crate) fn ca(&self) -> &CertificateDer<'static> {
        &self.ca
    }

    /// What this node shows its peers.
    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone()]
    }

    /// The key to the certificate.
    pub(crate) fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()))
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Cluster {
    /// Remembers where the first node is, for the next start.
    ///
    /// # Errors
    /// [`IdentityError::Io`] when it cannot be written.
    pub fn save(&self, tls: &Path) -> Result<(), IdentityError> {
        let text = serde_json::to_vec_pretty(self).expect("a cluster is plain data");
        files::write_private(&tls.join(CLUSTER), &text)
    }
}

/// The name that a node's certificate carries. Underscores keep every id a valid label.
pub(crate) fn certificate_name(node: &NodeId) -> String {
    format!("_{node}_.node.shardd")
}

/// The node that a certificate names.
pub(crate) fn node_of(certificate: &CertificateDer<'_>) -> Option<NodeId> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    certificate
        .valid_dns_names()
        .find_map(|name| name.strip_prefix('_')?.strip_suffix("_.node.shardd")?.parse().ok())
}

/// Digest of a public key.
pub(crate) fn key_digest(key: &impl PublicKeyData) -> Digest {
    Digest::of(&key.subject_public_key_info())
}

/// Checks that `ca` signed `certificate` for this `key`, or says what is wrong.
fn check_certificate(
    certificate: &CertificateDer<'_>,
    ca: &CertificateDer<'_>,
    key: &KeyPair,
) -> Result<(), String> {
    let anchor = webpki::anchor_from_trusted_cert(ca).map_err(|error| format!("its authority: {error}"))?;
    let leaf = webpki::EndEntityCert::try_from(certificate).map_err(|error| error.to_string())?;
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms.all;
    let usage = webpki::KeyUsage::client_auth();
    leaf.verify_for_usage(algorithms, &[anchor], &[], UnixTime::now(), usage, None, None)
        .map_err(|error| format!("not signed by the cluster's authority: {error}"))?;
    if leaf.subject_public_key_info().as_ref() != key.subject_public_key_info() {
        return Err("it is for another key".into());
    }
    Ok(())
}

fn read_certificate(path: &Path) -> Result<CertificateDer<'static>, IdentityError> {
    CertificateDer::from_pem_slice(&files::read(path)?)
        .map_err(|error| IdentityError::Damaged { path: path.to_owned(), reason: error.to_string() })
}

fn read_key(path: &Path) -> Result<KeyPair, IdentityError> {
    let text = String::from_utf8_lossy(&files::read(path)?).into_owned();
    KeyPair::from_pem(&text)
        .map_err(|error| IdentityError::Damaged { path: path.to_owned(), reason: error.to_string() })
}

/// Identities for the tests of other modules.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    impl Identity {
        /// One who believes whom `self` believes, but shows what `other` shows.
        pub(crate) fn showing(&self, other: &Identity) -> Identity {
            let key = KeyPair::from_pem(&other.key.serialize_pem()).expect("a key");
            Identity {
                node: other.node.clone(),
                ca: self.ca.clone(),
                certificate: other.certificate.clone(),
                key,
            }
        }
    }

    /// Nodes of one new cluster; the first founded it.
    pub(crate) fn cluster(names: &[&str]) -> Vec<Identity> {
        let directory = tempfile::TempDir::new().expect("a directory");
        let (first, authority) =
            Identity::found(directory.path(), names[0].parse().unwrap()).expect("founded");
        let joined = names[1..].iter().map(|name| {
            let node: NodeId = name.parse().expect("a good name");
            let key = KeyPair::generate().expect("a key");
            let certificate = authority.certify(&node, &key).expect("signed").into();
            Identity { node, ca: authority.certificate().clone(), certificate, key }
        });
        let joined: Vec<Identity> = joined.collect();
        std::iter::once(first).chain(joined).collect()
    }
}

#[cfg(test)]
mod tests;
