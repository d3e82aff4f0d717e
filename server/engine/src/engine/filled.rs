//! The progress of filling the cache for a run, for clients that wait for it before the training.

use std::sync::Arc;

use shardd_api::protocol::RunId;
use shardd_api::status::Filled;

use super::{Engine, EngineError, blocking};

impl Engine {
    /// How much of what this node hosts of a run is here.
    ///
    /// # Errors
    /// An unknown run, a lost metastore.
    pub async fn filled(self: &Arc<Self>, id: &RunId) -> Result<Filled, EngineError> {
        let run = self.run(id).await?;
        self.know_placement(&run, 1).await;
        let epoch = run.ranks.progress.borrow().furthest().map_or(0, |(epoch, _)| epoch);
        let generation = run.generation();
        let is_done = run.filling.has_filled(epoch, generation);
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
