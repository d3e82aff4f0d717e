//! Ranks whose processes end without detaching. A loader keeps a connection to a node open, which the kernel closes
//! when the process ends, however it ends. A rank that does not connect again soon is lost: it leaves its run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use shardd_api::duration::now;
use shardd_api::protocol::{Attach, RanksRecord, RunId};
use tracing::{info, warn};

use super::away::is_away;
use super::run::connections::Disconnected;
use super::seen::Departure;
use super::{Engine, EngineError, RunState};

/// How long a rank may be without a connection. Loaders whose connection breaks open another one at once.
const RECONNECT_WITHIN: Duration = Duration::from_secs(5);

/// How long to wait before telling a metastore again that did not answer.
const TELL_AGAIN: Duration = Duration::from_secs(2);

/// A connection of a rank to this node. Drop it when the connection ends.
pub struct RankConnection {
    engine: Arc<Engine>,
    run: Arc<RunState>,
    rank: u32,
    /// Whether no other one is expected after this.
    is_last: bool,
}

impl RankConnection {
    /// Ends it without a successor being expected: the rank may be of a loader that keeps none.
    pub(super) fn end(mut self) {
        self.is_last = true;
    }
}

impl Drop for RankConnection {
    fn drop(&mut self) {
        let disconnected = self.run.connections.close(self.rank);
        let Some(disconnected) = disconnected.filter(|_| !self.is_last) else { return };
        let (engine, run, rank) = (Arc::clone(&self.engine), Arc::clone(&self.run), self.rank);
        // A node that stops has closed the connection itself.
        self.engine.lifecycle.tasks.spawn(async move {
            let losing = engine.lose(&run, rank, disconnected);
            engine.lifecycle.stop.run_until_cancelled(losing).await;
        });
    }
}

impl Engine {
    /// Keeps a rank attached to this node as long as its process keeps the connection. The rank may have been
    /// attached to another node, which its loader does not reach any more.
    ///
    /// When the result is dropped and the rank does not connect again within 5 s, it counts as lost and leaves
    /// its run.
    ///
    /// # Errors
    /// An unknown run, or ranks that do not fit it.
    pub async fn connect(
        self: &Arc<Self>,
        id: &RunId,
        rank: u32,
        attach: Attach,
    ) -> Result<RankConnection, EngineError> {
        let run = self.run_as_recorded(id).await?;
        super::check_rank(&run, rank, attach)?;
        let connection = self.connection(&run, rank);
        match self.keep_attached(&run, rank, attach).await {
            Err(error) if !is_away(&error) => Err(error),
            // Without the metastore nothing changes: the rank is attached as it was.
            _ => Ok(connection),
        }
    }

    pub(super) fn connection(self: &Arc<Self>, run: &Arc<RunState>, rank: u32) -> RankConnection {
        run.connections.open(rank);
        RankConnection { engine: Arc::clone(self), run: Arc::clone(run), rank, is_last: false }
    }

    async fn keep_attached(&self, run: &RunState, rank: u32, attach: Attach) -> Result<(), EngineError> {
        // A loss that is under way comes first, and is undone.
        let _turn = run.connections.turn().await;
        let id = &run.record.id;
        let launch = self.next_launch().await?;
        let moves = AtomicBool::new(false);
        self.change_ranks(id, |ranks| {
            let mut ranks = ranks.unwrap_or_else(|| RanksRecord::begun(launch, attach.world, attach.epoch));
            let node = ranks.nodes.get_mut(rank as usize);
            // A launch with another number of ranks has begun: this rank is none of it.
            let node = node.filter(|node| ranks.world == attach.world && **node != Some(self.node.clone()));
            moves.store(node.is_some(), Relaxed);
            if let Some(node) = node {
                *node = Some(self.node.clone());
                ranks.lost.retain(|lost| *lost != rank);
                ranks.seen = Some(now());
            }
            Some(ranks)
        })
        .await?;
        if moves.into_inner() {
            info!(run = %id, rank, "a rank is attached to this node now: it has lost the connection to the one it had");
        }
        self.confirm_attached(id, rank).await
    }

    /// Gives up a rank that has no connection any more, unless it connects again in time.
    async fn lose(&self, run: &Arc<RunState>, rank: u32, disconnected: Disconnected) {
        tokio::time::sleep(RECONNECT_WITHIN).await;
        let id = &run.record.id;
        // A run of the same name may be another one by now.
        let is_known = || self.known_run(id).is_some_and(|known| Arc::ptr_eq(&known, run));
        while is_known() {
            let turn = run.connections.turn().await;
            if !run.connections.is_still(disconnected) {
                return;
            }
            // What it said during an outage of the metastore is not true any more.
            self.forget_attached_meanwhile(id, rank);
            let left = self.leave(id, rank, Departure::Lost).await;
            drop(turn);
            match left {
                Ok(false) => return,
                Ok(true) => {
                    warn!(run = %id, rank, "the process of a rank has ended without detaching: the rank has left its run");
                    return run.ranks.leave(rank);
                }
                Err(error) if is_away(&error) => tokio::time::sleep(TELL_AGAIN).await,
                Err(error) => return warn!(run = %id, rank, %error, "a lost rank could not leave its run"),
            }
        }
    }
}
