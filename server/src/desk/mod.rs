//! The cluster's desk: where nodes get their certificates, and lose them.
//!
//! The first node signs, as it has the authority's key; what was signed, which secrets may join and which keys are revoked is
//! in the metastore, so that every node can say it and act by it. Decides; knows neither HTTP nor QUIC.

mod register;
mod revoked;
mod secrets;

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use shardd_client::certificates::{Authority, CertificateInfo, Host, Request, check_certificate};
use shardd_client::metastore::{MetaError, Metastore};
use shardd_client::node::NodeId;
use shardfmt::digest::Digest;

use crate::identity::{Cluster, JoinReply, JoinRequest, Secret};
use crate::membership;

pub(crate) use register::key as register_key;
pub use register::{CertificateRecord, Register};
pub use revoked::Revoked;
pub use secrets::{JoinSecrets, Spent};

/// Where nodes join and have their certificates renewed.
pub struct Desk {
    /// Signs, unless certificates are made elsewhere.
    pub authority: Option<Authority>,
    /// The authority's certificate (PEM).
    pub authority_pem: String,
    /// What those may show who can read the first node's file, if there is one.
    pub standing: Option<Secret>,
    /// What they are told of the cluster.
    pub cluster: Cluster,
    /// Where it is all written down.
    pub metastore: Arc<dyn Metastore>,
    /// How long certificates are good.
    pub lifetime: Duration,
}

/// Why somebody gets nothing.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// The secret is not good.
    #[error(transparent)]
    Secret(#[from] Spent),
    /// The key was revoked.
    #[error("the key of node {0} was revoked; start it with an empty --data directory, and a new join token")]
    Revoked(NodeId),
    /// What was sent is no certificate, and no request for one.
    #[error("the certificate request: {0}")]
    BadRequest(String),
    /// A live node has the name.
    #[error("{0}")]
    Taken(String),
    /// The authority's key is not here.
    #[error(
        "the first node does not have the authority's key; make the certificate where it is, with `shardctl certs issue {0}`, \
         and put it into the node's <data>/tls"
    )]
    NoAuthority(NodeId),
    /// Not now.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

impl Desk {
    /// Lets a node join, once for each secret.
    ///
    /// # Errors
    /// [`DeskError`]; then nothing was signed, and the secret is as good as before.
    pub async fn join(&self, asked: JoinRequest) -> Result<JoinReply, DeskError> {
        let JoinRequest { secret, csr, id, hosts } = asked;
        let secrets = JoinSecrets::in_metastore(Arc::clone(&self.metastore));
        let is_standing = self.standing.as_ref().is_some_and(|standing| standing.is(&secret));
        if !is_standing {
            secrets.check(&secret).await?;
        }
        let request = self.read(&id, &csr)?;
        let key = request.key();
        if Revoked::holds(self.metastore.as_ref(), key).await? {
            return Err(DeskError::Revoked(id));
        }
        if let Some(other) = membership::other_holder(self.metastore.as_ref(), &id, key).await? {
            return Err(DeskError::Taken(other));
        }
        if !is_standing {
            secrets.spend(&secret, &id, key).await?;
        }
        let certificate = match request {
            Asked::Csr(request) => self.sign(&id, &hosts, &request).await?,
            Asked::Has(_) => csr,
        };
        tracing::info!(node = %id, "a node joined");
        let (authority, cluster) = (self.authority_pem.clone(), self.cluster.clone());
        Ok(JoinReply { certificate, authority, cluster })
    }

    /// The next certificate (PEM) of `node`, which has shown that it has `key`.
    ///
    /// # Errors
    /// [`DeskError`].
    pub async fn renew(
        &self,
        node: &NodeId,
        key: Digest,
        csr: &str,
        hosts: &[Host],
    ) -> Result<String, DeskError> {
        let request = Request::parse(csr).map_err(|error| DeskError::BadRequest(error.to_string()))?;
        if request.key() != key {
            return Err(DeskError::BadRequest(
                "it is for another key than that of the connection".to_owned(),
            ));
        }
        if Revoked::holds(self.metastore.as_ref(), key).await? {
            return Err(DeskError::Revoked(node.clone()));
        }
        tracing::info!(%node, "certificate renewed");
        self.sign(node, hosts, &request).await
    }

    async fn sign(&self, node: &NodeId, hosts: &[Host], request: &Request) -> Result<String, DeskError> {
        let authority = self.authority.as_ref().ok_or_else(|| DeskError::NoAuthority(node.clone()))?;
        let bad = |error: &dyn std::fmt::Display| DeskError::BadRequest(error.to_string());
        let pem = authority.sign(node, hosts, request, self.lifetime).map_err(|error| bad(&error))?;
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| bad(&error))?;
        let info = CertificateInfo::of(&certificate).map_err(|error| bad(&error))?;
        Register::in_metastore(Arc::clone(&self.metastore)).note(&info).await?;
        Ok(pem)
    }

    fn read(&self, node: &NodeId, csr: &str) -> Result<Asked, DeskError> {
        if csr.contains("-----BEGIN CERTIFICATE-----") {
            let bad = |reason: String| DeskError::BadRequest(reason);
            let certificate =
                CertificateDer::from_pem_slice(csr.as_bytes()).map_err(|error| bad(error.to_string()))?;
            let ca = CertificateDer::from_pem_slice(self.authority_pem.as_bytes())
                .map_err(|error| bad(error.to_string()))?;
            let key = CertificateInfo::of(&certificate).map_err(bad)?.key;
            let info = check_certificate(&certificate, &ca, key).map_err(bad)?;
            return match info.node == *node {
                true => Ok(Asked::Has(info.key)),
                false => Err(bad(format!("the certificate names {}, not {node}", info.node))),
            };
        }
        Request::parse(csr)
            .map(|request| Asked::Csr(Box::new(request)))
            .map_err(|error| DeskError::BadRequest(error.to_string()))
    }
}

/// What a node comes with.
enum Asked {
    /// A key to be signed.
    Csr(Box<Request>),
    /// A certificate of the authority, for this key.
    Has(Digest),
}

impl Asked {
    fn key(&self) -> Digest {
        match self {
            Asked::Csr(request) => request.key(),
            Asked::Has(key) => *key,
        }
    }
}

#[cfg(test)]
mod tests;
