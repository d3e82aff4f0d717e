//! Drains nodes: their partitions move away a few at a time, each copied before the next ones follow. A
//! draining node keeps its grains until others have them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardd_api::drain::{Drain, Drained, NodeState};
use shardd_api::node::{NodeId, NodeRecord};
use shardd_api::placement::{Host, without};
use shardd_api::protocol::{Placement, RunId};
use shardd_store::metastore::{Expected, Listing, MetaError};
use tracing::debug;

use super::keys::{COPIED, DRAINING, PLACEMENTS, entries};
use super::run::RunState;
use super::value::{pack, understood};
use super::{Engine, EngineError};

/// The request to a node, as the metastore keeps it under `draining/<node>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DrainRecord {
    why: Drain,
    /// The process that it is asked of ([`NodeRecord::started_at`]): one that stops is no reason for the next to host nothing.
    started_at: u64,
}

impl Engine {
    /// The live nodes, the requests to them and their partitions, as this one knows them.
    pub fn node_states(&self) -> Vec<NodeState> {
        let (draining, placed, copying) = (self.draining(), self.placed(), self.copying());
        let state = |record: NodeRecord| NodeState {
            draining: draining.get(&record.id).copied(),
            drained: Drained { hosted: hosted(&placed, &record.id), copying },
            health_issues: self.neighbours.health.of(&record.id),
            record,
        };
        self.nodes().into_iter().map(state).collect()
    }

    /// Lets `node` host nothing from now on, as fast as others can take it over. `None` lets it host again.
    ///
    /// # Errors
    /// A node that is not there, or the only one that hosts anything; a lost metastore.
    pub async fn drain(&self, node: &NodeId, drain: Option<Drain>) -> Result<(), EngineError> {
        let key = format!("{DRAINING}{node}");
        let Some(why) = drain else {
            self.meta.delete(&key, Expected::Any).await?;
            self.watched.draining.send_if_modified(|draining| draining.remove(node).is_some());
            return Ok(());
        };
        let Some(started_at) = self.watched.nodes.borrow().get(node).map(|record| record.started_at) else {
            return Err(EngineError::UnknownNode { node: node.clone() });
        };
        let draining = self.draining();
        if self.live_nodes().iter().all(|live| live == node || draining.contains_key(live)) {
            return Err(EngineError::OnlyNode { node: node.clone() });
        }
        let record = DrainRecord { why, started_at };
        let value = serde_json::to_vec(&record).expect("a record is plain data");
        self.meta.put(&key, value, Expected::Any, None).await?;
        // The next reader here sees it; the others hear of it from the metastore.
        self.watched
            .draining
            .send_if_modified(|draining| draining.insert(node.clone(), record) != Some(record));
        Ok(())
    }

    /// The live nodes that are to host nothing, and why.
    pub(super) fn draining(&self) -> BTreeMap<NodeId, Drain> {
        let nodes = self.watched.nodes.borrow();
        let holds = |node: &NodeId, record: &DrainRecord| {
            let process = nodes.get(node).map(|node| node.started_at);
            record.why == Drain::Asked || process == Some(record.started_at)
        };
        let draining = self.watched.draining.borrow();
        let in_force = draining.iter().filter(|(node, record)| holds(node, record));
        in_force.map(|(node, record)| (node.clone(), record.why)).collect()
    }

    /// How far `node` is from hosting nothing, as this one knows it.
    pub fn drained(&self, node: &NodeId) -> Drained {
        Drained { hosted: hosted(&self.placed(), node), copying: self.copying() }
    }

    /// The placements of the runs that ranks are attached to.
    fn placed(&self) -> Vec<Arc<Placement>> {
        self.active_run_states().iter().filter_map(|run| run.placement()).collect()
    }

    /// How many partitions are being copied, of all runs and nodes.
    fn copying(&self) -> usize {
        let live: Vec<NodeId> = self.live_nodes().into_iter().collect();
        let of_run = |run: Arc<RunState>| Some(self.being_copied(&run, &*run.placement()?, &live).count());
        self.active_run_states().into_iter().filter_map(of_run).sum()
    }

    /// Waits until this node hosts nothing any more.
    pub async fn until_drained(&self) {
        let mut placements = self.watched.placements.subscribe();
        let mut copied = self.watched.copied.subscribe();
        let mut launches = self.watched.launches.subscribe();
        loop {
            placements.mark_unchanged();
            copied.mark_unchanged();
            launches.mark_unchanged();
            if self.drained(&self.node).is_done() {
                return;
            }
            // They live as long as the engine.
            tokio::select! {
                _ = placements.changed() => {}
                _ = copied.changed() => {}
                _ = launches.changed() => {}
            }
        }
    }

    /// Waits until this node is asked to leave.
    pub async fn until_asked_to_leave(&self) {
        let mut asked = self.watched.draining.subscribe();
        let mut nodes = self.watched.nodes.subscribe();
        loop {
            asked.mark_unchanged();
            nodes.mark_unchanged();
            if self.draining().get(&self.node) == Some(&Drain::Leaving) {
                return;
            }
            // They live as long as the engine.
            tokio::select! {
                _ = asked.changed() => {}
                _ = nodes.changed() => {}
            }
        }
    }

    /// The nodes that may host partitions of a run, and how many each: those that live and are not drained; all that live, if
    /// all are. The balancer may leave some less than they have room for.
    pub(super) fn hosts(&self, run: &RunState, live: &[NodeId]) -> Vec<Host> {
        let draining = self.draining();
        let free = self.free_for(run);
        let mut staying: Vec<NodeId> =
            live.iter().filter(|node| !draining.contains_key(node)).cloned().collect();
        if staying.is_empty() {
            staying = live.to_vec();
        }
        let caps = self.balanced_caps(run, &staying);
        let room = |node: &NodeId| {
            let free = free.get(node).copied().unwrap_or(0);
            run.needs.room_in(free).min(caps.get(node).copied().unwrap_or(usize::MAX))
        };
        staying.into_iter().map(|node| Host { room: room(&node), node }).collect()
    }

    /// Lets the placements of runs without readers name no node that is drained: it hosts nothing of them any
    /// more, and when they are gone on with they are placed on others.
    pub(super) async fn rid_finished_runs(&self) {
        let (live, active) = (self.live_nodes(), self.watched.launches.borrow().clone());
        let leaves = |node: &NodeId, record: &DrainRecord| match record.why {
            Drain::Asked => true,
            Drain::Stopping => false,
            // It counts for the process that was asked, also when that has gone.
            Drain::Leaving => {
                self.watched.nodes.borrow().get(node).is_none_or(|live| live.started_at == record.started_at)
            }
        };
        let leaving: BTreeSet<NodeId> = {
            let draining = self.watched.draining.borrow();
            draining
                .iter()
                .filter(|(node, record)| leaves(node, record))
                .map(|(node, _)| node.clone())
                .collect()
        };
        if leaving.is_empty() {
            return;
        }
        let staying: Vec<NodeId> = live.difference(&leaving).cloned().collect();
        let finished = self.placements().into_iter().filter(|(run, _)| !active.contains_key(run));
        for (run, placement) in finished {
            if without(&placement, &leaving, &staying).is_some()
                && let Err(error) = self.rid(&run, &leaving, &staying).await
            {
                debug!(run = %run, %error, "the placement of a run that has ended still names a drained node");
            }
        }
    }

    async fn rid(
        &self,
        run: &RunId,
        leaving: &BTreeSet<NodeId>,
        staying: &[NodeId],
    ) -> Result<(), EngineError> {
        let key = format!("{PLACEMENTS}{run}");
        let Some(entry) = self.meta.get(&key).await? else { return Ok(()) };
        let current: Placement = understood(&key, &entry)?;
        // It may have begun again meanwhile, and those who read it decide then.
        if self.ranks(run).await?.is_some() {
            return Ok(());
        }
        let Some(next) = without(&current, leaving, staying) else { return Ok(()) };
        match self.meta.put(&key, pack(&next), Expected::At(entry.revision), None).await {
            // Another node was faster.
            Ok(_) | Err(MetaError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the last step of a run's placement has not been followed yet.
    pub(super) fn is_copying(&self, run: &RunState, placement: &Placement, live: &[NodeId]) -> bool {
        self.being_copied(run, placement, live).next().is_some()
    }

    pub(super) fn being_copied<'a>(
        &self,
        run: &RunState,
        placement: &'a Placement,
        live: &'a [NodeId],
    ) -> impl Iterator<Item = u32> + use<'a> {
        let id = run.record.id.clone();
        let copied: BTreeMap<NodeId, u64> = self
            .watched
            .copied
            .borrow()
            .iter()
            .filter(|((run, _), _)| *run == id)
            .map(|((_, node), generation)| (node.clone(), *generation))
            .collect();
        placement.moved.iter().copied().filter(move |partition| {
            let host = placement.host(*partition);
            let has_it = copied.get(host).is_some_and(|generation| *generation >= placement.generation);
            live.binary_search(host).is_ok() && !has_it
        })
    }

    /// Publishes that the partitions moved here by `generation` are here. Only the next step waits for it.
    pub(super) async fn tell_copied(self: &Arc<Self>, run: &RunState, generation: u64) {
        let Some(placement) = run.placement() else { return };
        let was_given = placement.moved.iter().any(|partition| *placement.host(*partition) == self.node);
        if placement.generation != generation || !was_given {
            return;
        }
        let key = format!("{COPIED}{}/{}", run.record.id, self.node);
        let value = generation.to_string().into_bytes();
        // The next fill tells it again.
        if let Err(error) = self.meta.put(&key, value, Expected::Any, None).await {
            debug!(run = run.name(), generation, %error, "the copied partitions could not be published");
        }
    }

    /// The notes about an ended run have no further use.
    pub(super) fn spawn_forget_copied(self: &Arc<Self>, run: &RunId) {
        if !self.watched.copied.borrow().contains_key(&(run.clone(), self.node.clone())) {
            return;
        }
        let (engine, key) = (Arc::clone(self), format!("{COPIED}{run}/{}", self.node));
        self.lifecycle.tasks.spawn(async move {
            let forgotten =
                engine.lifecycle.stop.run_until_cancelled(engine.meta.delete(&key, Expected::Any)).await;
            if let Some(Err(error)) = forgotten {
                debug!(key, %error, "a note about an ended run stays in the metastore");
            }
        });
    }

    pub(super) fn take_draining(&self, listing: &Listing) {
        let draining: BTreeMap<NodeId, DrainRecord> = entries(DRAINING, listing).collect();
        self.watched.draining.send_if_modified(|known| {
            let changed = *known != draining;
            *known = draining;
            changed
        });
    }

    /// The copied partitions, of one run or of all.
    pub(super) fn take_copied(&self, listing: &Listing, of: Option<&RunId>) {
        let pair = |key: &str| {
            let (run, node) = key.strip_prefix(COPIED)?.split_once('/')?;
            Some((run.parse::<RunId>().ok()?, node.parse::<NodeId>().ok()?))
        };
        let listed = listing.entries.iter().filter_map(|(key, entry)| {
            Some((pair(key)?, std::str::from_utf8(&entry.value).ok()?.parse().ok()?))
        });
        let mut copied: BTreeMap<(RunId, NodeId), u64> = listed.collect();
        self.watched.copied.send_if_modified(|known| {
            if let Some(of) = of {
                copied.extend(
                    known.iter().filter(|((run, _), _)| run != of).map(|(key, at)| (key.clone(), *at)),
                );
            }
            let changed = *known != copied;
            *known = copied;
            changed
        });
    }
}

/// How many partitions a node hosts.
fn hosted(placed: &[Arc<Placement>], node: &NodeId) -> usize {
    placed.iter().map(|placement| placement.hosted_by(node).count()).sum()
}
