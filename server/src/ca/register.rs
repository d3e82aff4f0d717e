//! The register of certificates, by node and key: administrators see expiry dates, request renewals, and
//! revoke all certificates of a name, on any machine.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardd_api::duration::now;
use shardd_api::node::NodeId;
use shardd_api::schema;
use shardd_certificates::{CertificateInfo, Host};
use shardd_store::metastore::{Entry, Expected, MetaError, Metastore};
use shardfmt::digest::Digest;

/// Where the records are kept, as `certificates/<node>/<key>`.
const RECORDS: &str = "certificates/";
/// Where it is kept which certificates are to be renewed, as `rotations/<node>`.
const ROTATIONS: &str = "rotations/";
/// Where it is kept whether the first node signs.
const SIGNING: &str = "signing";

/// The newest certificate of a node's key.
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
    /// When it was made, in seconds since 1970, by the clock of who signed it.
    pub issued_at: u64,
    /// Until when it is good, in seconds since 1970.
    pub expires_at: u64,
}

impl CertificateRecord {
    fn of(info: &CertificateInfo) -> CertificateRecord {
        CertificateRecord {
            node: info.node.clone(),
            key: info.key,
            hosts: info.hosts.clone(),
            issued_at: info.issued(),
            expires_at: info.not_after,
        }
    }
}

/// A wish that certificates be renewed. All times are those of the signer, so that no clocks are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Rotation {
    /// Those that were made then or before, in seconds since 1970.
    pub issued_until: u64,
}

/// Whether the first node signs, so that every node refuses at once what would wait for a signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signing {
    /// The first node.
    pub node: NodeId,
    /// Whether it has the authority's key.
    pub signs: bool,
    /// Whether a first node of this cluster has ever had the key. If none had, the owner keeps the authority on
    /// another machine, and signs the nodes' certificates there.
    pub has_signed: bool,
}

impl Signing {
    /// The present state of the first node, after the last one noted.
    #[must_use]
    pub fn of(node: &NodeId, signs: bool, noted: Option<&Signing>) -> Signing {
        let has_signed = signs || noted.is_some_and(|noted| noted.has_signed);
        Signing { node: node.clone(), signs, has_signed }
    }

    /// Whether the first node needs the authority's key and does not have it: after a promotion, or a loss.
    #[must_use]
    pub fn lacks_its_key(&self) -> bool {
        self.has_signed && !self.signs
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

    /// Writes down a certificate in place of the one before of the same key, and forgets those of the node that have lapsed.
    ///
    /// # Errors
    /// When the metastore cannot.
    pub async fn note(&self, info: &CertificateInfo) -> Result<(), MetaError> {
        let value = serde_json::to_vec(&CertificateRecord::of(info)).expect("a record is plain data");
        let key = record_key(&info.node, info.key);
        // A node notes its certificate at every start: a certificate already there is no change.
        if self.0.get(&key).await?.is_none_or(|noted| noted.value != value) {
            self.0.put(&key, value, Expected::Any, None).await?;
        }
        for old in self.of(&info.node).await? {
            if old.expires_at < now() && old.key != info.key {
                self.0.delete(&record_key(&old.node, old.key), Expected::Any).await?;
            }
        }
        Ok(())
    }

    /// All of them, by node.
    ///
    /// # Errors
    /// When the metastore cannot.
    pub async fn list(&self) -> Result<Vec<CertificateRecord>, MetaError> {
        let listing = self.0.list(RECORDS).await?;
        Ok(listing.entries.iter().filter_map(|(_, entry)| read(entry)).collect())
    }

    /// Those of one node: one for each machine that was given its name.
    ///
    /// # Errors
    /// When the metastore cannot.
    pub async fn of(&self, node: &NodeId) -> Result<Vec<CertificateRecord>, MetaError> {
        let listing = self.0.list(&format!("{RECORDS}{node}/")).await?;
        Ok(listing.entries.iter().filter_map(|(_, entry)| read(entry)).collect())
    }

    /// Asks a node to have its certificate renewed. `None`: no certificate of it is known.
    ///
    /// # Errors
    /// When the metastore cannot.
    pub async fn rotate(&self, node: &NodeId) -> Result<Option<Rotation>, MetaError> {
        let newest = self.of(node).await?.iter().map(|record| record.issued_at).max();
        let Some(rotation) = newest.map(|issued_until| Rotation { issued_until }) else { return Ok(None) };
        let value = serde_json::to_vec(&rotation).expect("a wish is plain data");
        self.0.put(&rotation_key(node), value, Expected::Any, None).await?;
        Ok(Some(rotation))
    }

    /// The last request to a node.
    ///
    /// # Errors
    /// When the metastore cannot.
    pub async fn rotation(&self, node: &NodeId) -> Result<Option<Rotation>, MetaError> {
        Ok(self.0.get(&rotation_key(node)).await?.as_ref().and_then(read))
    }

    /// Notes whether the first node signs.
    ///
    /// # Errors
    /// When the metastore cannot.
    pub async fn note_signing(&self, first: &NodeId, signs: bool) -> Result<(), MetaError> {
        let noted = self.signing().await?;
        let signing = Signing::of(first, signs, noted.as_ref());
        if noted.as_ref() != Some(&signing) {
            let value = serde_json::to_vec(&signing).expect("a note is plain data");
            self.0.put(SIGNING, value, Expected::Any, None).await?;
        }
        Ok(())
    }

    /// Whether the first node signs, as it noted at its last start.
    ///
    /// # Errors
    /// When the metastore cannot.
    pub async fn signing(&self) -> Result<Option<Signing>, MetaError> {
        Ok(self.0.get(SIGNING).await?.as_ref().and_then(read))
    }

    /// Forgets that of a node's key.
    ///
    /// # Errors
    /// When the metastore cannot.
    pub async fn forget(&self, node: &NodeId, key: Digest) -> Result<(), MetaError> {
        self.0.delete(&record_key(node, key), Expected::Any).await.map(drop)
    }
}

/// The key of the request to a node.
pub(crate) fn rotation_key(node: &NodeId) -> String {
    format!("{ROTATIONS}{node}")
}

fn record_key(node: &NodeId, key: Digest) -> String {
    format!("{RECORDS}{node}/{key}")
}

fn read<T: serde::de::DeserializeOwned>(entry: &Entry) -> Option<T> {
    serde_json::from_slice(&entry.value).ok()
}
