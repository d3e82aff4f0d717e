//! The reading of a whole shard, for which several may wait.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use shardd_api::node::NodeId;
use shardd_plan::GrainNo;
use shardfmt::merkle::GrainTree;
use shardfmt::{Shard, ShardError};
use tokio::sync::watch;

use super::RunState;

/// A shard in memory, verified, with the data needed to cut grains from it.
pub(crate) struct WholeShard {
    pub(crate) shard: Shard,
    pub(crate) tree: GrainTree,
}

/// One reading of a shard that several may wait for. It is a task of its own: the first caller may give up.
pub(crate) struct Reading {
    pub(crate) outcome: watch::Sender<Outcome>,
    /// Grains that go to a node as the answer to its question and need no forwarding.
    pub(crate) answered: Mutex<BTreeSet<(NodeId, GrainNo)>>,
}

#[derive(Clone)]
pub(crate) enum Outcome {
    Pending,
    Whole(Arc<WholeShard>),
    /// Others have parts of it, or it could not be read: single grains are read by range, which says why if it fails too.
    NotWhole,
}

impl WholeShard {
    /// A grain of the shard, as it travels and rests.
    pub(crate) fn grain(&self, run: &RunState, grain: GrainNo) -> Result<Bytes, ShardError> {
        Ok(Bytes::from(self.shard.grain_in(&self.tree, run.plan.locate_grain(grain).index)?))
    }
}
