//! Explanations for operators: where partitions are and why, and which grains a node did not have when it needed them.

use serde::{Deserialize, Serialize};
use shardfmt::PlanId;

use crate::drain::Drain;
use crate::node::NodeId;
use crate::placement::explain::{Because, Why};
use crate::protocol::RunId;

/// Who hosts what of a run, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlacementExplained {
    /// The run.
    pub run: RunId,
    /// Its plan.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::Digest))]
    pub plan: PlanId,
    /// The placement's generation; 0: there is none yet.
    pub generation: u64,
    /// The epoch that the ranks have reached, as this node knows it.
    pub epoch: u32,
    /// Bytes of one partition, about, with what caches keep beside them.
    pub partition_bytes: u64,
    /// Bytes that are read in an epoch at other nodes than where they are hosted...
    pub remote_bytes_per_epoch: u64,
    /// ...and once all of `moves` are made.
    pub remote_bytes_per_epoch_then: u64,
    /// The nodes that host partitions, or may.
    pub nodes: Vec<NodeExplained>,
    /// Each partition.
    pub partitions: Vec<PartitionExplained>,
    /// The moves still to come.
    pub moves: Vec<MoveExplained>,
    /// The reason why moves wait; `None`: for their turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub waits: Option<Waits>,
}

/// The reason why moves wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Waits {
    /// No rank is attached: no reader would notice.
    NoRanks,
    /// Not all ranks of the launch are attached yet.
    Gathering,
    /// The partitions of the last step are being copied.
    Copying,
}

/// A node's part in a placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeExplained {
    /// The node.
    pub node: NodeId,
    /// Partitions that it hosts.
    pub hosts: u64,
    /// Partitions that its cache has room for, beside other runs.
    pub room: u64,
    /// Ranks that read there.
    pub ranks: Vec<u32>,
    /// Whether it lives.
    pub is_live: bool,
    /// Whether it is to host nothing, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub draining: Option<Drain>,
}

/// Where a partition is, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PartitionExplained {
    /// The partition.
    pub partition: u32,
    /// The node that hosts it.
    pub node: NodeId,
    /// The rank that reads it, if one is attached...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub rank: Option<u32>,
    /// ...and the node where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub reads_at: Option<NodeId>,
    /// Why it is there.
    pub why: Why,
}

/// A partition that is to move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MoveExplained {
    /// The partition.
    pub partition: u32,
    /// From this node.
    pub from: NodeId,
    /// To this one.
    pub to: NodeId,
    /// Why.
    pub because: Because,
    /// Bytes that are copied once.
    pub copied_bytes: u64,
    /// Bytes fewer that are read elsewhere in each epoch from then on.
    pub saved_bytes_per_epoch: u64,
    /// Bytes more that are.
    pub added_bytes_per_epoch: u64,
}

/// Who gave a grain that was not here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MissSource {
    /// The host of its partition in this epoch.
    Host,
    /// The host of the partition that it was in in the epoch before.
    HostBefore,
    /// Who hosted its partition by the placement before.
    FormerHost,
    /// The host of the partition that it is in in the next epoch, which had it already: where room is short, it lies there only.
    HostNext,
    /// The reader of its shard.
    Reader,
    /// A node that had it by chance.
    Neighbour,
    /// The store.
    Store,
}

/// Whom it was brought for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// A loader, which waited.
    ToRead,
    /// This node's cache, or the exchange: before anybody waited.
    ToKeep,
}

/// Grains that were not here, by epoch, reason and source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MissCount {
    /// The epoch that they were wanted for.
    pub epoch: u32,
    /// The reason.
    pub wanted: Wanted,
    /// Who gave them.
    pub source: MissSource,
    /// Its name, if it is a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub from: Option<NodeId>,
    /// How many.
    pub grains: u64,
    /// Their bytes, proofs included.
    pub bytes: u64,
}

/// A grain that a loader waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MissedGrain {
    /// The epoch.
    pub epoch: u32,
    /// Its number in the plan.
    pub grain: u64,
    /// The partition that has it in that epoch.
    pub partition: u32,
    /// Who gave it.
    pub source: MissSource,
    /// Its name, if it is a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub from: Option<NodeId>,
}

/// The grains of a run that a node missed, since the node started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MissesExplained {
    /// The node.
    pub node: NodeId,
    /// By epoch, reason and source.
    pub counts: Vec<MissCount>,
    /// The last of those that a loader waited for, the newest last.
    pub latest: Vec<MissedGrain>,
}
