//! What a copy holds. Does no I/O.

use serde::{Deserialize, Serialize};

use super::MetastoreAddress;

/// The metadata of a cluster at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataCopy {
    /// Counts the nodes that have kept the metadata one after the other, from 1.
    pub epoch: u64,
    /// The node that keeps it in this epoch.
    pub keeper: MetastoreAddress,
    /// The revision of the last change to the copied keys.
    pub settled: u64,
    /// The revision of the metadata then.
    pub revision: u64,
    /// The last lease that was given out.
    pub last_lease: u64,
    /// When it was taken, in seconds since 1970, by the clock of the keeper.
    pub taken_at: u64,
    /// The entries without a lease, ordered by key.
    pub entries: Vec<CopiedEntry>,
    /// Where the metadata has moved to, if it has: then there are no entries, and no node continues from this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<String>,
}

/// A key, and its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedEntry {
    /// The key.
    pub key: String,
    /// The revision of the put.
    pub revision: u64,
    /// The value: text where it is text, for those who look at the object.
    #[serde(with = "value")]
    pub value: Vec<u8>,
}

/// Text as text, everything else as numbers.
mod value {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Value {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(bytes) {
            Ok(text) => text.serialize(to),
            Err(_) => bytes.serialize(to),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        Ok(match Value::deserialize(from)? {
            Value::Text(text) => text.into_bytes(),
            Value::Bytes(bytes) => bytes,
        })
    }
}
