//! Nodes that are to host nothing, and how far they are.

use serde::{Deserialize, Serialize};

use crate::health::HealthIssue;
use crate::node::NodeRecord;

/// Why a node is to host nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Drain {
    /// An operator asked for it; it lasts until an operator ends it.
    Asked,
    /// It is about to stop, and hosts again when it is back.
    Stopping,
    /// It stops as soon as it hosts nothing, and hosts again when it is back.
    Leaving,
}

/// How far a node is from hosting nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Drained {
    /// Partitions that it hosts, of all runs that are being read.
    pub hosted: usize,
    /// Partitions that are being copied between nodes.
    pub copying: usize,
}

impl Drained {
    /// Whether the node may go without anybody missing it.
    pub fn is_done(&self) -> bool {
        self.hosted == 0 && self.copying == 0
    }
}

/// A node, and the requests to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeState {
    /// Its own record.
    #[serde(flatten)]
    pub record: NodeRecord,
    /// Whether it is to host nothing, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<Drain>,
    /// Its partitions, and the copies under way in its cluster.
    #[serde(flatten)]
    pub drained: Drained,
    /// The faults that nodes report of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health_issues: Vec<HealthIssue>,
}
