//! The cluster's certificate authority: issues the certificates of nodes when they join, and renews them.
//!
//! The first node signs, since it has the authority's key. Issued certificates, join secrets and revoked keys
//! are in the metastore, so that every node can list and enforce them. Decides only: knows neither HTTP nor
//! QUIC.

mod register;
mod secrets;

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use shardd_api::node::NodeId;
use shardd_api::problem::Kind;
use shardd_certificates::{self, Authority, CertificateInfo, Host, Request, check_certificate};
use shardd_store::metastore::{MetaError, Metastore};
use shardfmt::digest::Digest;

use crate::identity::{Cluster, JoinReply, JoinRequest, KeyRevoked, Revoked, Secret, other_holder};

pub(crate) use register::rotation_key;
pub use register::{CertificateRecord, Register, Rotation, Signing};
pub use secrets::{JoinSecrets, Spent};

/// The most hosts that a certificate is good for.
const MOST_HOSTS: usize = 64;

/// Issues and renews the certificates of nodes.
pub struct CertificateIssuer {
    /// The authority's key, unless it is kept on another machine.
    pub authority: Option<Authority>,
    /// The authority's certificate (PEM).
    pub authority_pem: String,
    /// The reusable secret of the first node's token file, if there is one.
    pub standing: Option<Secret>,
    /// Digest of the first node's key: no other key gets its name.
    pub first_key: Digest,
    /// The description of the cluster that a joining node gets.
    pub cluster: Cluster,
    /// Holds issued certificates, join secrets and revoked keys.
    pub metastore: Arc<dyn Metastore>,
    /// The lifetime of issued certificates.
    pub lifetime: Duration,
}

/// Why a certificate is not issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The secret is not good.
    #[error(transparent)]
    Secret(#[from] Spent),
    /// The key was revoked.
    #[error(transparent)]
    Revoked(#[from] KeyRevoked),
    /// The request is neither a certificate nor a request for one.
    #[error("the certificate request: {0}")]
    BadRequest(String),
    /// One of its addresses is not a host.
    #[error("hosts: {0}")]
    BadHosts(String),
    /// The name is another's.
    #[error("{0}")]
    Taken(String),
    /// The authority's key is not here.
    #[error(
        "the first node does not have the authority's key; make the certificate where it is, with `shardctl certs issue {0}`, \
         and put it into the node's <data>/tls"
    )]
    NoAuthority(NodeId),
    /// The first node is one that signs, and its key is missing.
    #[error("{0} has no tls/ca.key: it signs nothing; put the key there and restart it")]
    Keyless(NodeId),
    /// Not now.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

impl From<&IssueError> for Kind {
    fn from(error: &IssueError) -> Kind {
        match error {
            IssueError::Secret(_) | IssueError::Revoked(_) => Kind::Forbidden,
            IssueError::BadRequest(_) => Kind::Malformed,
            IssueError::BadHosts(_) => Kind::Invalid,
            IssueError::Taken(_) => Kind::Conflict,
            IssueError::NoAuthority(_) | IssueError::Keyless(_) => Kind::Misdirected,
            IssueError::Meta(error) => Kind::from(error),
        }
    }
}

impl CertificateIssuer {
    /// Lets a node join, once for each secret.
    ///
    /// # Errors
    /// [`IssueError`]; then the secret is as good as before, unless the metastore failed when it was to be noted.
    pub async fn join(&self, asked: JoinRequest) -> Result<JoinReply, IssueError> {
        let JoinRequest { secret, csr, id, hosts } = asked;
        let secrets = JoinSecrets::in_metastore(Arc::clone(&self.metastore));
        let is_standing = self.standing.as_ref().is_some_and(|standing| standing.is(&secret));
        if !is_standing {
            secrets.check(&secret).await?;
        }
        let given = match csr.contains("-----BEGIN CERTIFICATE-----") {
            true => Given { info: self.check_held(&id, &csr)?, pem: csr },
            false => self.sign(&id, &parse_hosts(&hosts)?, &parse_request(&csr)?)?,
        };
        let key = given.info.key;
        if Revoked::holds(self.metastore.as_ref(), key).await? {
            return Err(KeyRevoked(id).into());
        }
        if id == self.cluster.first && key != self.first_key {
            return Err(IssueError::Taken(format!(
                "node id {id} is that of the first node; use another --id"
            )));
        }
        if let Some(other) = other_holder(self.metastore.as_ref(), &id, key).await? {
            return Err(IssueError::Taken(other));
        }
        if !is_standing {
            secrets.spend(&secret, &id, key).await?;
        }
        self.register().note(&given.info).await?;
        tracing::info!(node = %id, "a node joined");
        let (authority, cluster) = (self.authority_pem.clone(), self.cluster.clone());
        Ok(JoinReply { certificate: given.pem, authority, cluster })
    }

    /// The next certificate (PEM) of `node`, which has shown that it has `key`.
    ///
    /// # Errors
    /// [`IssueError`].
    pub async fn renew(
        &self,
        node: &NodeId,
        key: Digest,
        csr: &str,
        hosts: &[Host],
    ) -> Result<String, IssueError> {
        let request = parse_request(csr)?;
        if request.key() != key {
            return Err(IssueError::BadRequest(
                "it is for another key than that of the connection".to_owned(),
            ));
        }
        if Revoked::holds(self.metastore.as_ref(), key).await? {
            return Err(KeyRevoked(node.clone()).into());
        }
        check_number(hosts.len())?;
        let given = self.sign(node, hosts, &request)?;
        self.register().note(&given.info).await?;
        tracing::info!(%node, "certificate renewed");
        Ok(given.pem)
    }

    fn register(&self) -> Register {
        Register::in_metastore(Arc::clone(&self.metastore))
    }

    fn sign(&self, node: &NodeId, hosts: &[Host], request: &Request) -> Result<Given, IssueError> {
        let authority = self.authority.as_ref().ok_or_else(|| IssueError::NoAuthority(node.clone()))?;
        let bad = |error: &dyn std::fmt::Display| IssueError::BadRequest(error.to_string());
        let signed = authority.sign(node, hosts, request, self.lifetime).map_err(|error| bad(&error))?;
        let info = CertificateInfo::of(signed.der()).map_err(|error| bad(&error))?;
        Ok(Given { pem: signed.pem(), info })
    }

    /// The contents of a certificate that a node has from the authority already. That it has the key to it
    /// shows at its first connection; here it gets nothing that helps without.
    fn check_held(&self, node: &NodeId, pem: &str) -> Result<CertificateInfo, IssueError> {
        let bad = |reason: String| IssueError::BadRequest(reason);
        let certificate =
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| bad(error.to_string()))?;
        let ca = CertificateDer::from_pem_slice(self.authority_pem.as_bytes())
            .map_err(|error| bad(error.to_string()))?;
        let key = CertificateInfo::of(&certificate).map_err(bad)?.key;
        let info = check_certificate(&certificate, &ca, key).map_err(bad)?;
        match info.node == *node {
            true => Ok(info),
            false => Err(bad(format!("the certificate names {}, not {node}", info.node))),
        }
    }
}

/// A certificate, and its contents.
struct Given {
    pem: String,
    info: CertificateInfo,
}

fn parse_request(csr: &str) -> Result<Request, IssueError> {
    Request::parse(csr).map_err(|error| IssueError::BadRequest(error.to_string()))
}

fn parse_hosts(hosts: &[String]) -> Result<Vec<Host>, IssueError> {
    check_number(hosts.len())?;
    let hosts: Result<_, _> = hosts.iter().map(|host| host.parse()).collect();
    hosts.map_err(|error: shardd_certificates::BadHost| IssueError::BadHosts(error.to_string()))
}

fn check_number(hosts: usize) -> Result<(), IssueError> {
    match hosts <= MOST_HOSTS {
        true => Ok(()),
        false => {
            Err(IssueError::BadHosts(format!("{hosts} are too many; at most {MOST_HOSTS} can be named")))
        }
    }
}

#[cfg(test)]
mod tests;
