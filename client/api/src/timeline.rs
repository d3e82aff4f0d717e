//! The timeline of a run on one node: for a trace that shows trainers and nodes side by side.

mod events;

use serde::{Deserialize, Serialize};

pub use events::{DRAWN, NodeTrace, RunTrace, TraceFacts, node_events};

use crate::node::NodeId;

/// The kinds of work of a node for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// It fetches the missing grains of its partitions.
    Fill,
    /// It sends grains to their next host.
    Send,
    /// It takes grains that others send, until they are durable.
    Receive,
    /// It brings grains for which a loader waits.
    Fetch,
}

/// Something that a node did for a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stretch {
    /// What.
    pub work: Work,
    /// The epoch that it was done for; for grains sent and received, the one in which the grains leave.
    pub epoch: u32,
    /// The node at the other end, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub peer: Option<NodeId>,
    /// How many grains it was about.
    pub grains: u64,
    /// When it began, by the node's clock: millionths of a second since 1970.
    pub began_micros: u64,
    /// How long it took, in millionths of a second.
    pub took_micros: u64,
}

/// The last that a node did for a run, since it started, in the order in which it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Timeline {
    /// The node.
    pub node: NodeId,
    /// Its activities.
    pub stretches: Vec<Stretch>,
}
