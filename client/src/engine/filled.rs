//! How far a node is with bringing here what it hosts of a run: for who waits for it before the trainers come.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Engine, EngineError, blocking};
use crate::node::NodeId;
use crate::protocol::RunId;

/// How much of what a node hosts of a run is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Filled {
    /// The node.
    pub node: NodeId,
    /// The epoch that it is filled for: the one that the run's ranks have reached.
    pub epoch: u32,
    /// The placement's generation; 0: there is none yet.
    pub generation: u64,
    /// Grains that the node hosts in that epoch.
    pub hosted_grains: u64,
    /// Those of them that are in its cache.
    pub held_grains: u64,
    /// Whether it has brought what it could: what is missing then has no room, or could not be read.
    pub is_done: bool,
}

impl Engine {
    /// How much of what this node hosts of a run is here.
    ///
    /// # Errors
    /// An unknown run, a lost metastore.
    pub async fn filled(self: &Arc<Self>, id: &RunId) -> Result<Filled, EngineError> {
        let run = self.run(id).await?;
        self.know_placement(&run, 1).await;
        let epoch = run.progress.borrow().furthest().map_or(0, |(epoch, _)| epoch);
        let generation = run.generation();
        let is_done = run.has_filled(epoch, generation);
        let engine = Arc::clone(self);
        let count = move || {
            let hosted = run.hosted_grains(&engine.node, epoch);
            let held = hosted.iter().filter(|grain| engine.is_resident(&run, **grain)).count();
            (hosted.len() as u64, held as u64)
        };
        let (hosted_grains, held_grains) = blocking(count).await;
        Ok(Filled { node: self.node.clone(), epoch, generation, hosted_grains, held_grains, is_done })
    }
}
