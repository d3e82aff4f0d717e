//! The identity of a node, and the record that it publishes. Knows nothing of how nodes talk.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

#[cfg(feature = "openapi")]
use crate::schema::text_schema;

/// The name of a node: `[a-z0-9-]{1,40}`, so that it is safe in a key, a host name and a certificate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct NodeId(String);

impl NodeId {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeId {
    type Err = NodeIdError;

    fn from_str(text: &str) -> Result<Self, NodeIdError> {
        const MAX_LENGTH: usize = 40;
        let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        if (1..=MAX_LENGTH).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NodeIdError { text: text.chars().take(60).collect() })
        }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl<'de> Deserialize<'de> for NodeId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "openapi")]
text_schema! {
    NodeId: "^[a-z0-9-]{1,40}$", "The name of a node";
}

/// A text that cannot name a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} cannot name a node: use 1 to 40 characters of a-z, 0-9 and '-'")]
pub struct NodeIdError {
    text: String,
}

/// A node's record for the others, as the leased value of the metastore key [`NodeRecord::key`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeRecord {
    /// Its name.
    pub id: NodeId,
    /// Where its HTTP API answers: a URL such as `http://127.0.0.1:7700`.
    pub http: String,
    /// Where its peers connect.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub quic: SocketAddr,
    /// Space its cache may take, in bytes.
    pub cache_bytes: u64,
    /// When this process of the node started, in seconds since 1970: tells a restarted node from the one before.
    pub started_at: u64,
    /// Where it lends the grains of its cache to loaders of its machine, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub socket: Option<LocalSocket>,
    /// Of the first node: where the metadata is, unless it keeps it itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub metastore: Option<String>,
}

/// A Unix-domain socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LocalSocket {
    /// The machine it is on, by the name of its running kernel.
    pub host: String,
    /// Its path there.
    pub path: String,
}

impl NodeRecord {
    /// All keys of nodes begin with this.
    pub const PREFIX: &'static str = "nodes/";

    /// The prefix of the records of nodes that have registered and not left since, live or not.
    pub const MEMBERS: &'static str = "members/";

    /// The metastore key of that.
    pub fn member_key(id: &NodeId) -> String {
        format!("{}{id}", Self::MEMBERS)
    }

    /// The metastore key of the node's record.
    pub fn key(id: &NodeId) -> String {
        format!("{}{id}", Self::PREFIX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_in_keys_and_certificates() {
        for good in ["n1", "gpu-7", "0", &"x".repeat(40)] {
            assert_eq!(good.parse::<NodeId>().expect(good).as_str(), good);
        }
        for bad in ["", "N1", "a.b", "a/b", "é", &"x".repeat(41)] {
            assert!(bad.parse::<NodeId>().is_err(), "{bad}");
            assert!(serde_json::from_value::<NodeId>(bad.into()).is_err(), "{bad}");
        }
    }
}
