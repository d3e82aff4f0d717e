//! When ranks of a run were last heard of, for people who look whether it is still being trained. Written down every minute at most, by
//! whichever node hears of them first; nothing else depends on it.

use std::sync::Arc;
use std::time::Duration;

use shardd_api::duration::now;
use shardd_api::protocol::{RanksRecord, RunId, RunRecord};
use shardd_store::metastore::{Expected, MetaError};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::keys::RUNS;
use super::value::{pack, understood};
use super::{Engine, EngineError};

/// How often it is written down that ranks are heard of.
const NOTED_EVERY: Duration = Duration::from_secs(60);

impl Engine {
    /// Writes down which runs this node hears of, until `stop`.
    pub(super) async fn note_seen_forever(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(NOTED_EVERY)).await.is_some() {
            for run in self.active_run_states() {
                if !run.ranks.was_heard_within(NOTED_EVERY) {
                    continue;
                }
                if let Err(error) = self.note_seen(&run.record.id).await {
                    debug!(run = run.name(), %error, "the signs of life of ranks could not be recorded");
                }
            }
        }
    }

    async fn note_seen(&self, run: &RunId) -> Result<(), EngineError> {
        let at = now();
        let is_due = |ranks: &RanksRecord| {
            ranks.seen.is_none_or(|seen| at.saturating_sub(seen) >= NOTED_EVERY.as_secs())
        };
        if !self.watched.launches.borrow().get(run).is_some_and(is_due) {
            return Ok(());
        }
        self.change_ranks(run, |ranks| {
            ranks.map(|ranks| RanksRecord { seen: ranks.seen.max(Some(at)), ..ranks })
        })
        .await
    }

    /// Writes down that no rank of a run is attached any more, if that is so.
    pub(super) async fn note_left(&self, run: &RunId) -> Result<(), EngineError> {
        if self.ranks(run).await?.is_some() {
            return Ok(());
        }
        let key = format!("{RUNS}{run}");
        let Some(entry) = self.meta.get(&key).await? else { return Ok(()) };
        let record = RunRecord { left: Some(now()), ..understood(&key, &entry)? };
        match self.meta.put(&key, pack(&record), Expected::At(entry.revision), None).await {
            // Another rank that left was faster, or it is being removed.
            Ok(_) | Err(MetaError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
