//! When ranks of a run were last heard of, for people who look whether it is still being trained. Written down every minute at most, by
//! whichever node hears of them first; nothing else depends on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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

/// How a rank leaves its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    /// Its loader was closed.
    Detached,
    /// Its process has ended otherwise.
    Lost,
}

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

    /// A rank leaves its launch, and with the last one the launch ends. Whether it was attached; a lost one
    /// leaves only this node.
    pub(super) async fn leave(
        &self,
        id: &RunId,
        rank: u32,
        departure: Departure,
    ) -> Result<bool, EngineError> {
        let [was_attached, has_lost, has_ended] = [const { AtomicBool::new(false) }; 3];
        self.change_ranks(id, |ranks| {
            [&was_attached, &has_lost, &has_ended].into_iter().for_each(|said| said.store(false, Relaxed));
            let mut ranks = ranks?;
            let node = ranks.nodes.get_mut(rank as usize);
            let leaves = node.filter(|node| match departure {
                Departure::Detached => node.is_some(),
                Departure::Lost => node.as_ref() == Some(&self.node),
            });
            was_attached.store(leaves.is_some(), Relaxed);
            if let Some(node) = leaves {
                *node = None;
                if departure == Departure::Lost {
                    ranks.lost.push(rank);
                }
            }
            has_lost.store(!ranks.lost.is_empty(), Relaxed);
            let stays = ranks.nodes.iter().any(Option::is_some);
            has_ended.store(!stays, Relaxed);
            stays.then_some(ranks)
        })
        .await?;
        match (has_ended.into_inner(), was_attached.load(Relaxed)) {
            (true, _) => self.note_left(id, |_| Some(has_lost.load(Relaxed))).await?,
            // Of a launch that ended before, this may have been left out.
            (false, false) => self.note_left(id, |run| run.left.is_none().then_some(false)).await?,
            (false, true) => {}
        }
        Ok(was_attached.into_inner())
    }

    /// Writes down that no rank of a run is attached any more, if that is so, and whether it was `interrupted`.
    async fn note_left(
        &self,
        run: &RunId,
        interrupted: impl Fn(&RunRecord) -> Option<bool>,
    ) -> Result<(), EngineError> {
        let key = format!("{RUNS}{run}");
        loop {
            if self.ranks(run).await?.is_some() {
                return Ok(());
            }
            let Some(entry) = self.meta.get(&key).await? else { return Ok(()) };
            let there: RunRecord = understood(&key, &entry)?;
            let Some(interrupted) = interrupted(&there) else { return Ok(()) };
            let record = RunRecord { left: Some(now()), interrupted, ..there };
            match self.meta.put(&key, pack(&record), Expected::At(entry.revision), None).await {
                Ok(_) => return Ok(()),
                // It is being removed, or was noted by another rank.
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
