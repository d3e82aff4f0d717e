//! The certificates of a cluster: its [`Authority`], the certificates it signs for nodes, and the private
//! files of both. X.509 (RFC 5280) by rcgen, webpki and x509-parser; knows nothing of sockets, and of
//! joining.
//!
//! A node's certificate names the node, for its peers, and the hosts under which its HTTP API is reached, for everybody
//! else. It is good for 30 days and renewed after 20; the key stays.

mod authority;
mod fetch;
mod files;
mod host;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{KeyPair, PublicKeyData};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use serde::{Deserialize, Serialize};
use shardd_api::node::NodeId;
use shardfmt::digest::Digest;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

pub use authority::{Authority, Request};
pub use fetch::{FetchError, Fetched, digest_of, fetch};
pub use files::{key_in, private_directory, read, write_private, write_public};
pub use host::{BadHost, Host};

/// The authority's key; where it is, certificates are signed.
pub const CA_KEY: &str = "ca.key";
/// The authority's certificate, which everybody may have.
pub const CA_CERTIFICATE: &str = "ca.pem";
/// A node's key.
pub const NODE_KEY: &str = "node.key";
/// A node's certificate.
pub const NODE_CERTIFICATE: &str = "node.pem";

/// The default lifetime of a certificate.
pub const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// How far behind the clock of one who looks at a new certificate may be.
pub const SKEW: Duration = Duration::from_secs(3600);

/// Why there is no certificate or key.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum CertificateError {
    /// A file cannot be read or written.
    #[error("cannot read or write {path}")]
    Io { path: PathBuf, source: std::io::Error },
    /// A file has wrong contents.
    #[error("{path} is damaged ({reason}); restore it, or start this node in a new --data directory")]
    Damaged { path: PathBuf, reason: String },
    /// Half of an authority.
    #[error(
        "there is {certificate} without its key ca.key; put that there too, or node.key and node.pem of `shardctl certs issue`"
    )]
    NoKey { certificate: PathBuf },
    /// There is something already.
    #[error("{path} exists; name another directory")]
    Exists { path: PathBuf },
    /// A certificate cannot be made.
    #[error("cannot make a certificate")]
    Unmakable(#[from] rcgen::Error),
}

/// The contents of a node's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateInfo {
    /// The node.
    pub node: NodeId,
    /// Digest of its public key.
    pub key: Digest,
    /// The hosts under which its HTTP API is reached.
    pub hosts: Vec<Host>,
    /// From when it is good, in seconds since 1970.
    pub not_before: u64,
    /// Until when it is good, in seconds since 1970.
    pub not_after: u64,
}

impl CertificateInfo {
    /// Reads a certificate, or reports the error in it. Who signed it is not looked at.
    ///
    /// # Errors
    /// One line.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<CertificateInfo, String> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
        let names = parsed.subject_alternative_name().map_err(|error| error.to_string())?;
        let names = names.map_or(&[][..], |extension| &extension.value.general_names);
        let (mut node, mut hosts) = (None, vec![]);
        for name in names {
            match name {
                GeneralName::DNSName(name) => match node_named(name) {
                    Some(named) => node = Some(named),
                    None => hosts.extend(name.parse()),
                },
                GeneralName::IPAddress(bytes) => hosts.extend(Host::of_bytes(bytes)),
                _ => {}
            }
        }
        let seconds = |at: x509_parser::time::ASN1Time| u64::try_from(at.timestamp()).unwrap_or(0);
        Ok(CertificateInfo {
            node: node.ok_or("it names no node")?,
            key: Digest::of(parsed.public_key().raw),
            hosts,
            not_before: seconds(parsed.validity().not_before),
            not_after: seconds(parsed.validity().not_after),
        })
    }

    /// When it was made: certificates begin earlier, as clocks differ.
    #[must_use]
    pub fn issued(&self) -> u64 {
        self.not_before.saturating_add(SKEW.as_secs())
    }

    /// When it is time for the next one: two thirds of its time are over.
    #[must_use]
    pub fn due(&self) -> u64 {
        self.not_after - self.not_after.saturating_sub(self.issued()) / 3
    }

    /// Whether it is not good yet at `now`, in seconds since 1970: the clock of who made it was ahead.
    #[must_use]
    pub fn is_early(&self, now: u64) -> bool {
        now < self.not_before
    }

    /// Whether all of these hosts are in it.
    #[must_use]
    pub fn covers(&self, hosts: &[Host]) -> bool {
        hosts.iter().all(|host| self.hosts.contains(host))
    }
}

/// The name that a node's certificate carries for its peers. Underscores keep every id a valid label.
#[must_use]
pub fn certificate_name(node: &NodeId) -> String {
    format!("_{node}_.node.shardd")
}

fn node_named(name: &str) -> Option<NodeId> {
    name.strip_prefix('_')?.strip_suffix("_.node.shardd")?.parse().ok()
}

/// The node that a certificate names, and the digest of its key.
#[must_use]
pub fn holder_of(certificate: &CertificateDer<'_>) -> Option<(NodeId, Digest)> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let node = certificate.valid_dns_names().find_map(node_named)?;
    Some((node, Digest::of(certificate.subject_public_key_info().as_ref())))
}

/// The digest of the key that a certificate is for.
pub(crate) fn key_of(certificate: &CertificateDer<'_>) -> Option<Digest> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    Some(Digest::of(certificate.subject_public_key_info().as_ref()))
}

/// Digest of a public key.
#[must_use]
pub fn key_digest(key: &impl PublicKeyData) -> Digest {
    Digest::of(&key.subject_public_key_info())
}

/// Checks that `ca` signed `certificate` for this `key`, or reports the error. Whether it is still good is
/// not looked at.
///
/// # Errors
/// One line.
pub fn check_certificate(
    certificate: &CertificateDer<'_>,
    ca: &CertificateDer<'_>,
    key: Digest,
) -> Result<CertificateInfo, String> {
    let info = CertificateInfo::of(certificate)?;
    let anchor = webpki::anchor_from_trusted_cert(ca).map_err(|error| format!("its authority: {error}"))?;
    let leaf = webpki::EndEntityCert::try_from(certificate).map_err(|error| error.to_string())?;
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms.all;
    let usage = webpki::KeyUsage::client_auth();
    let within = UnixTime::since_unix_epoch(Duration::from_secs(info.not_before));
    leaf.verify_for_usage(algorithms, &[anchor], &[], within, usage, None, None)
        .map_err(|error| format!("not signed by the cluster's authority: {error}"))?;
    match info.key == key {
        true => Ok(info),
        false => Err("it is for another key".into()),
    }
}

/// Makes a key for `node` in the directory `to`, has the authority in `authority` sign it, and leaves all there that a node
/// wants of its `<data>/tls`. A key that is there already is signed again: its certificate is renewed.
///
/// # Errors
/// [`CertificateError`]; [`CertificateError::Exists`] when `to` is another node's, or an authority's.
pub fn issue(
    authority: &Path,
    node: &NodeId,
    hosts: &[Host],
    lifetime: Duration,
    to: &Path,
) -> Result<CertificateInfo, CertificateError> {
    let authority = Authority::open(authority)?;
    let path = to.join(NODE_CERTIFICATE);
    let is_others =
        path.exists() && holder_of(&read_certificate(&path)?).is_none_or(|(holder, _)| holder != *node);
    if is_others || to.join(CA_KEY).exists() {
        return Err(CertificateError::Exists { path: to.to_owned() });
    }
    private_directory(to)?;
    let key = key_in(&to.join(NODE_KEY))?;
    let certificate = authority.certify(node, hosts, &key, lifetime)?;
    write_public(&to.join(CA_CERTIFICATE), authority.pem().as_bytes())?;
    write_private(&path, certificate.pem().as_bytes())?;
    CertificateInfo::of(certificate.der()).map_err(|reason| CertificateError::Damaged { path, reason })
}

/// The first certificate of a PEM file.
///
/// # Errors
/// [`CertificateError`], naming the file.
pub fn read_certificate(path: &Path) -> Result<CertificateDer<'static>, CertificateError> {
    CertificateDer::from_pem_slice(&read(path)?)
        .map_err(|error| CertificateError::Damaged { path: path.to_owned(), reason: error.to_string() })
}

/// The key of a PEM file.
///
/// # Errors
/// [`CertificateError`], naming the file.
pub fn read_key(path: &Path) -> Result<KeyPair, CertificateError> {
    let text = String::from_utf8_lossy(&read(path)?).into_owned();
    KeyPair::from_pem(&text)
        .map_err(|error| CertificateError::Damaged { path: path.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
mod tests;
