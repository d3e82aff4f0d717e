//! Why a node could not do what a loader or a person asked, and of which kind each reason is.

use shardd_api::node::NodeId;
use shardd_api::problem::Kind;
use shardd_api::protocol::{MAX_EPOCH, RunId};
use shardd_plan::PlanError;
use shardd_store::metastore::MetaError;
use shardd_store::origin::OriginError;
use shardfmt::{GrainKey, PlanId};

use crate::cache::CacheError;

/// Why a node could not do what a loader or a person asked.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum EngineError {
    /// Create it first.
    #[error("run {run} does not exist; create it by attaching a loader to a plan")]
    UnknownRun { run: RunId },
    /// The name is taken by another run.
    #[error("run {run} exists with plan {plan} and {virtual_ranks} virtual ranks; choose another run name")]
    RunConflict { run: RunId, plan: PlanId, virtual_ranks: u32 },
    /// Its name is free again when it is gone.
    #[error(
        "run {run} is being removed; choose another run name, or wait until `shardctl runs rm {run}` has ended"
    )]
    BeingRemoved { run: RunId },
    /// The report stays.
    #[error(
        "rank {rank} of run {run} has reported another sum for epoch {epoch}, and a reported sum is never \
         replaced; another training needs a run name of its own"
    )]
    OtherAudit { run: RunId, epoch: u32, rank: u32 },
    /// Garbage is being deleted, and with it perhaps the plan. Ask again.
    #[error("run {run} cannot begin while garbage is deleted from the store: try again in a minute")]
    Busy { run: RunId },
    /// No such plan here.
    #[error("plan {plan} does not exist; `shardctl plan ls` lists the plans there are")]
    UnknownPlan { plan: PlanId },
    /// No such node lives.
    #[error("node {node} is not among the live nodes; `shardctl status` lists them")]
    UnknownNode { node: NodeId },
    /// No node is left to take over.
    #[error("node {node} is the only host; start another one, or stop this one without a drain")]
    OnlyNode { node: NodeId },
    /// Ranks count from 0.
    #[error("rank {rank} is outside a world of {world}")]
    RankOutside { rank: u32, world: u32 },
    /// Not a request of our loaders.
    #[error(
        "epoch {epoch} cannot be read by a rank that is in epoch {reached} (runs end before epoch {MAX_EPOCH})"
    )]
    EpochOutside { epoch: u32, reached: u32 },
    /// The asker has another plan in mind.
    #[error("grain {grain} is outside the plan's {grains}")]
    NoSuchGrain { grain: u64, grains: u64 },
    /// A cursor of one plan says nothing about another.
    #[error("run {run} is over plan {plan}, and the cursor is of plan {given}")]
    OtherPlan { run: RunId, plan: PlanId, given: PlanId },
    /// The numbers do not fit the plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Changes wait until the metastore is back; reading continues.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// Something in the metastore was written by a later release.
    #[error("this release cannot read {key} in the metastore: upgrade this node")]
    NotUnderstood { key: String },
    /// The store could not be read.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// The cache's disk refused.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The node stops; other nodes take over.
    #[error("the node is stopping; ask another node")]
    Stopping,
    /// The store's bytes cannot be decoded.
    #[error(transparent)]
    Shard(#[from] shardfmt::ShardError),
    /// The version's schema is not one this release can read.
    #[error(transparent)]
    Row(#[from] shardfmt::RowError),
    /// The store gives wrong bytes.
    #[error(
        "grain {grain} read from the store does not match the manifest; `shardctl verify` finds the damaged \
        shards"
    )]
    CorruptOrigin { grain: GrainKey },
}

impl From<&EngineError> for Kind {
    fn from(error: &EngineError) -> Self {
        match error {
            EngineError::UnknownRun { .. }
            | EngineError::UnknownPlan { .. }
            | EngineError::UnknownNode { .. } => Self::NotFound,
            EngineError::RunConflict { .. }
            | EngineError::BeingRemoved { .. }
            | EngineError::OtherAudit { .. }
            | EngineError::OnlyNode { .. } => Self::Conflict,
            EngineError::RankOutside { .. }
            | EngineError::EpochOutside { .. }
            | EngineError::NoSuchGrain { .. }
            | EngineError::OtherPlan { .. }
            | EngineError::Plan(_) => Self::Invalid,
            EngineError::Busy { .. }
            | EngineError::NotUnderstood { .. }
            | EngineError::Stopping
            | EngineError::Cache(_) => Self::Unavailable,
            EngineError::Meta(error) => error.into(),
            EngineError::Origin(error) => error.into(),
            EngineError::Shard(_) | EngineError::Row(_) | EngineError::CorruptOrigin { .. } => Self::Corrupt,
        }
    }
}
