//! Requests to clear a node's cache, and their answers.

use serde::{Deserialize, Serialize};
use shardfmt::VersionId;

use crate::node::NodeId;

/// Asks a node to clear its cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Evict {
    /// Only of grains of this version; without it, of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<crate::schema::Digest>))]
    pub version: Option<VersionId>,
    /// Only say what would go.
    #[serde(default)]
    pub dry_run: bool,
}

/// The grains evicted from a node's cache, or to evict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Evicted {
    /// The node.
    pub node: NodeId,
    /// The evicted grains.
    #[serde(flatten)]
    pub cleared: Cleared,
    /// Bytes of the cache that are in use now.
    pub used_bytes: u64,
}

/// The cleared grains, or those that would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cleared {
    /// Segments that went.
    pub segments: u64,
    /// Grains that went with them.
    pub grains: u64,
    /// Bytes that came back.
    pub bytes: u64,
}
