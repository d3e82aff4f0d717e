//! What was signed, by node: so that administrators see what lapses when, and ask for a new one before.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardd_client::certificates::{CertificateInfo, Host, now};
use shardd_client::metastore::{Entry, Expected, MetaError, Metastore};
use shardd_client::node::NodeId;
use shardd_client::schema;
use shardfmt::digest::Digest;

/// Where the records are kept.
pub(crate) const PREFIX: &str = "certificates/";

/// The newest certificate of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CertificateRecord {
    /// The node.
    pub node: NodeId,
    /// Digest of its public key.
    #[schema(value_type = schema::Digest)]
    pub key: Digest,
    /// The names and addresses under which its HTTP API is reached.
    #[schema(value_type = Vec<String>)]
    pub hosts: Vec<Host>,
    /// When it was made, in seconds since 1970.
    pub issued_at: u64,
    /// Until when it is good, in seconds since 1970.
    pub expires_at: u64,
    /// One that is older than this is to be renewed at once, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub renew_before: Option<u64>,
}

impl CertificateRecord {
    fn of(info: &CertificateInfo) -> CertificateRecord {
        CertificateRecord {
            node: info.node.clone(),
            key: info.key,
            hosts: info.hosts.clone(),
            issued_at: info.issued(),
            expires_at: info.not_after,
            renew_before: None,
        }
    }
}

/// The records of a cluster.
pub struct Register(Arc<dyn Metastore>);

impl Register {
    /// Those that this metastore keeps.
    #[must_use]
    pub fn in_metastore(metastore: Arc<dyn Metastore>) -> Register {
        Register(metastore)
    }

    /// Writes down a certificate in place of the node's one before.
    ///
    /// # Errors
    /// When the metastore cannot.
    pub async fn note(&self, info: &CertificateInfo) -> Result<(), MetaError> {
        let value = serde_json::to_vec(&CertificateRecord::of(info)).expect("a record is plain data");
        self.0.put(&key(&info.node), value, Expected::Any, None).await.map(drop)
    }

    /// All of them, by node.
    ///
    /// # Errors
    /// When the metastore cannot.
    pub async fn list(&self) -> Result<Vec<CertificateRecord>, MetaError> {
        let listing = self.0.list(PREFIX).await?;
        Ok(listing.entries.iter().filter_map(|(_, entry)| read(entry)).collect())
    }

    /// That of one node.
    ///
    /// # Errors
    /// When the metastore cannot.
    pub async fn of(&self, node: &NodeId) -> Result<Option<CertificateRecord>, MetaError> {
        Ok(self.0.get(&key(node)).await?.as_ref().and_then(read))
    }

    /// Asks a node to have its certificate renewed now. `None`: no certificate of it is known.
    ///
    /// # Errors
    /// When the metastore cannot.
    pub async fn rotate(&self, node: &NodeId) -> Result<Option<CertificateRecord>, MetaError> {
        loop {
            let Some(entry) = self.0.get(&key(node)).await? else { return Ok(None) };
            let Some(mut record) = read(&entry) else { return Ok(None) };
            // One that was made in this second is not older than it.
            record.renew_before = Some(now().max(record.issued_at.saturating_add(1)));
            let value = serde_json::to_vec(&record).expect("a record is plain data");
            match self.0.put(&key(node), value, Expected::At(entry.revision), None).await {
                Ok(_) => return Ok(Some(record)),
                // It was renewed meanwhile, maybe for this: look again.
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Forgets that of a node.
    ///
    /// # Errors
    /// When the metastore cannot.
    pub async fn forget(&self, node: &NodeId) -> Result<(), MetaError> {
        self.0.delete(&key(node), Expected::Any).await.map(drop)
    }
}

/// Where the record of a node is.
pub(crate) fn key(node: &NodeId) -> String {
    format!("{PREFIX}{node}")
}

fn read(entry: &Entry) -> Option<CertificateRecord> {
    serde_json::from_slice(&entry.value).ok()
}
