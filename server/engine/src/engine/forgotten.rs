//! Rows that were forgotten: what this node's cache has of their shards goes, at its start and whenever rows were forgotten since.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Engine, EngineError, blocking};
use crate::cache::Dropped;

/// How soon a store is asked again for its marks that did not answer.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

impl Engine {
    /// Looks which shards are marked in the store, and drops their grains here.
    pub(super) fn take_forgotten(self: &Arc<Self>, stop: &CancellationToken) {
        // A web server does not list its files.
        if self.origin.is_read_only() {
            return;
        }
        let (engine, stop) = (Arc::clone(self), stop.clone());
        self.lifecycle.tasks.spawn(async move { stop.run_until_cancelled(engine.drop_forgotten()).await });
    }

    /// Tries until it is done.
    async fn drop_forgotten(self: Arc<Self>) {
        let mut has_failed = false;
        loop {
            match self.try_drop_forgotten().await {
                Ok(Dropped { segments: 0, .. }) => return,
                Ok(Dropped { segments, bytes, lost, .. }) => {
                    return info!(
                        segments,
                        bytes, lost, "rows were forgotten, with the cached grains of their shards"
                    );
                }
                Err(error) => {
                    if !has_failed {
                        warn!(%error, "the cached grains of forgotten shards cannot be dropped yet; trying \
                            again");
                        has_failed = true;
                    }
                }
            }
            sleep(AGAIN_AFTER).await;
        }
    }

    async fn try_drop_forgotten(self: &Arc<Self>) -> Result<Dropped, EngineError> {
        let forgotten = self.origin.forgotten().await?;
        if forgotten.is_empty() {
            return Ok(Dropped::default());
        }
        let _one_after_the_other = self.upkeep.clearing.lock().await;
        let engine = Arc::clone(self);
        Ok(blocking(move || engine.cache.forget(&forgotten)).await?)
    }
}
