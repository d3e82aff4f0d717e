//! The secrets of join tokens: each is good for one node, and for some time. Only their digests are kept.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardd_api::duration::now;
use shardd_api::node::NodeId;
use shardd_store::metastore::{Entry, Expected, MetaError, Metastore};
use shardfmt::digest::Digest;

use super::IssueError;
use crate::identity::Secret;

/// Where they are kept.
const PREFIX: &str = "joins/";
/// How long it is remembered that one was used or lapsed, so that its holder learns which.
const REMEMBERED: u64 = 7 * 24 * 3600;

/// The join secrets of a cluster.
pub struct JoinSecrets(Arc<dyn Metastore>);

/// The record of a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    made_at: u64,
    expires_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    used: Option<Used>,
}

/// Who used it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Used {
    node: NodeId,
    key: Digest,
    at: u64,
}

/// Why a secret lets no node join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Spent {
    /// There is none like it.
    #[error(
        "the secret is not that of a join token of this cluster; make one with `shardctl token create --join`"
    )]
    Unknown,
    /// Its time is over.
    #[error("the join token expired {ago} s ago; make another with `shardctl token create --join`")]
    Expired {
        /// For how many seconds.
        ago: u64,
    },
    /// Another node has used it.
    #[error(
        "node {node} has joined with this join token, and each is for one; make another with `shardctl token create --join`"
    )]
    Used {
        /// That node.
        node: NodeId,
    },
}

impl JoinSecrets {
    /// Those that this metastore keeps.
    #[must_use]
    pub fn in_metastore(metastore: Arc<dyn Metastore>) -> JoinSecrets {
        JoinSecrets(metastore)
    }

    /// Makes one, with a lifetime. Returns its end, in seconds since 1970.
    ///
    /// # Errors
    /// When the metastore cannot keep it; then there is none.
    pub async fn create(&self, lifetime: Duration) -> Result<(Secret, u64), MetaError> {
        self.clear().await?;
        let (secret, made_at) = (Secret::random(), now());
        let expires_at = made_at.saturating_add(lifetime.as_secs());
        let record = Record { made_at, expires_at, used: None };
        let value = serde_json::to_vec(&record).expect("a record is plain data");
        self.0.put(&key(&secret.reveal()), value, Expected::Absent, None).await?;
        Ok((secret, expires_at))
    }

    /// Whether a secret is one, and its time is not over.
    ///
    /// # Errors
    /// [`Spent::Unknown`], [`Spent::Expired`].
    pub async fn check(&self, secret: &str) -> Result<(), IssueError> {
        self.find(secret).await.map(drop)
    }

    /// Uses a secret up: from now on it is good for this node with this key alone, which may not have heard
    /// that it was let in.
    ///
    /// # Errors
    /// [`Spent`].
    pub async fn spend(&self, secret: &str, node: &NodeId, its_key: Digest) -> Result<(), IssueError> {
        loop {
            let (entry, mut record) = self.find(secret).await?;
            match &record.used {
                Some(used) if used.node == *node && used.key == its_key => return Ok(()),
                Some(used) => return Err(Spent::Used { node: used.node.clone() }.into()),
                None => record.used = Some(Used { node: node.clone(), key: its_key, at: now() }),
            }
            let value = serde_json::to_vec(&record).expect("a record is plain data");
            match self.0.put(&key(secret), value, Expected::At(entry.revision), None).await {
                Ok(_) => return Ok(()),
                // Two came with the same one: the slower hears who was faster.
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn find(&self, secret: &str) -> Result<(Entry, Record), IssueError> {
        let entry = self.0.get(&key(secret)).await?.ok_or(Spent::Unknown)?;
        let record: Record = serde_json::from_slice(&entry.value).map_err(|_| Spent::Unknown)?;
        match now().checked_sub(record.expires_at) {
            Some(ago) => Err(Spent::Expired { ago }.into()),
            None => Ok((entry, record)),
        }
    }

    /// Forgets those that ended long ago.
    async fn clear(&self) -> Result<(), MetaError> {
        for (key, entry) in self.0.list(PREFIX).await?.entries {
            let record = serde_json::from_slice::<Record>(&entry.value);
            if record.is_ok_and(|record| record.expires_at.saturating_add(REMEMBERED) < now()) {
                self.0.delete(&key, Expected::Any).await?;
            }
        }
        Ok(())
    }
}

/// Where a secret is, by its digest: the stored form lets no node join.
fn key(secret: &str) -> String {
    format!("{PREFIX}{}", Digest::of(secret.as_bytes()))
}
