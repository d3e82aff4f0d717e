//! Damage of the files of a version.

use std::fmt;

use serde::Serialize;

/// One of the two files of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum File {
    /// The shard itself.
    Shard,
    /// Its row digests and the map of it.
    Sidecar,
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shard => "file",
            Self::Sidecar => "sidecar",
        })
    }
}

/// The fault of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "damage", content = "reason", rename_all = "kebab-case")]
pub enum Damage {
    /// It is not there.
    Missing,
    /// It may be there, and cannot be read.
    Unreadable(String),
    /// It is not what the manifest says.
    Corrupt(String),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("is missing"),
            Self::Unreadable(reason) => write!(f, "cannot be read: {reason}"),
            Self::Corrupt(reason) => write!(f, "is corrupt: {reason}"),
        }
    }
}
