//! The name of an object: the digest and the number of its bytes. Pure.

use serde::{Deserialize, Serialize};
use shardfmt::Digest;

/// An object as a manifest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Of its bytes.
    pub digest: Digest,
    /// How many there are.
    pub bytes: u64,
}

impl Part {
    /// That of these bytes.
    pub(super) fn of(bytes: &[u8]) -> Part {
        Part { digest: Digest::of(bytes), bytes: bytes.len() as u64 }
    }
}
