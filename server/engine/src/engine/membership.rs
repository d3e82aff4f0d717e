//! Follows the metastore: which nodes live, which runs are being read, who hosts what. When the metastore is
//! lost, the node continues with its last known state; only changes wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use shardd_api::node::{NodeId, NodeRecord};
use shardd_api::placement::{MOST_AT_ONCE, place, preferences, step};
use shardd_api::protocol::{Placement, RanksRecord, RunId};
use shardd_store::catalog::FORGOTTEN;
use shardd_store::metastore::{Expected, Following, Listing, MetaError};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::balancer::BALANCER;
use super::keys::{COPIED, DRAINING, MEMBERS, NODES, PLACEMENTS, RANKS, RUNS, entries};
use super::overrides::EXCHANGE;
use super::run::RunState;
use super::value::{pack, parse, understood};
use super::{Engine, EngineError, blocking};

/// How long to wait before asking a lost metastore again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

impl Engine {
    /// Follows the metastore until `stop`, then waits for everything this engine started and closes the cache.
    pub async fn run_until(self: Arc<Self>, stop: CancellationToken) {
        let follow = |prefix, take: fn(&Arc<Self>, Listing, &CancellationToken)| {
            let (engine, stop) = (Arc::clone(&self), stop.clone());
            self.lifecycle.tasks.spawn(async move { engine.follow(prefix, take, stop).await });
        };
        follow(BALANCER, |engine, listing, _| engine.take_balancer(&listing));
        follow(EXCHANGE, |engine, listing, _| engine.list_overrides(&listing));
        follow(NODES, |engine, listing, _| engine.take_nodes(listing));
        follow(MEMBERS, |engine, listing, _| engine.take_members(&listing));
        follow(RANKS, |engine, listing, stop| engine.take_ranks(listing, stop));
        follow(RUNS, |engine, listing, stop| engine.take_runs(&listing, stop));
        follow(PLACEMENTS, |engine, listing, _| engine.take_placements(listing));
        follow(DRAINING, |engine, listing, _| engine.take_draining(&listing));
        follow(COPIED, |engine, listing, _| engine.take_copied(&listing, None));
        follow(FORGOTTEN, |engine, _, stop| engine.take_forgotten(stop));
        let (engine, recall_stop) = (Arc::clone(&self), stop.clone());
        self.lifecycle.tasks.spawn(async move {
            engine.outage.recalled.follow(&engine.meta, AGAIN_AFTER, recall_stop).await
        });
        let (engine, tell_stop) = (Arc::clone(&self), stop.clone());
        self.lifecycle.tasks.spawn(async move { engine.tell_what_was_missed(tell_stop).await });
        let (engine, seen_stop) = (Arc::clone(&self), stop.clone());
        self.lifecycle.tasks.spawn(async move { engine.note_seen_forever(seen_stop).await });
        let (engine, health_stop) = (Arc::clone(&self), stop.clone());
        self.lifecycle.tasks.spawn(async move { engine.watch_health(health_stop).await });
        let (engine, settle_stop) = (Arc::clone(&self), stop.clone());
        self.lifecycle.tasks.spawn(async move { engine.settle_forever(settle_stop).await });
        stop.cancelled().await;
        self.lifecycle.stop.cancel();
        self.lifecycle.tasks.close();
        self.lifecycle.tasks.wait().await;
        let engine = Arc::clone(&self);
        if let Err(error) = blocking(move || engine.cache.close()).await {
            warn!(%error, "the cache was not closed in order; its grains will be verified at their next \
                reading");
        }
    }

    async fn follow(
        self: Arc<Self>,
        prefix: &'static str,
        take: fn(&Arc<Self>, Listing, &CancellationToken),
        stop: CancellationToken,
    ) {
        let mut lost = false;
        let following = async {
            let mut listings = Following::new(self.meta.as_ref(), prefix, AGAIN_AFTER);
            loop {
                match listings.next().await {
                    Ok(listing) => {
                        if lost {
                            info!(prefix, "the metastore answers again");
                            lost = false;
                        }
                        take(&self, listing, &stop);
                    }
                    Err(error) => {
                        if !lost {
                            warn!(prefix, %error, "the metastore does not answer; continuing with the last \
                                known state");
                            lost = true;
                        }
                    }
                }
            }
        };
        stop.run_until_cancelled(following).await;
    }

    fn take_nodes(&self, listing: Listing) {
        let nodes: BTreeMap<NodeId, NodeRecord> = entries(NODES, &listing).collect();
        let has_changed = self.watched.nodes.send_if_modified(|known| {
            let changed = *known != nodes;
            self.neighbours.absent.note(known, &nodes);
            *known = nodes;
            changed
        });
        if has_changed {
            self.runs.news.fetch_add(1, Relaxed);
        }
    }

    fn take_ranks(self: &Arc<Self>, listing: Listing, stop: &CancellationToken) {
        let launches: BTreeMap<RunId, RanksRecord> = entries(RANKS, &listing).collect();
        let before = self.watched.launches.send_replace(launches.clone());
        if !before.keys().eq(launches.keys()) {
            self.runs.news.fetch_add(1, Relaxed);
        }
        {
            let mut driven = self.runs.driven.lock().expect("no panic while held");
            driven.retain(|run, ended| {
                let active = launches.contains_key(run);
                if !active {
                    ended.cancel();
                    self.spawn_forget_copied(run);
                }
                active
            });
            for run in launches.keys() {
                if !driven.contains_key(run) {
                    driven.insert(run.clone(), self.spawn_drive(run, stop));
                }
            }
        }
        for (run, ranks) in &launches {
            if let Some(state) = self.known_run(run) {
                state.launched(ranks);
            }
        }
    }

    /// Drives a run until what this returns is cancelled.
    pub(super) fn spawn_drive(self: &Arc<Self>, run: &RunId, stop: &CancellationToken) -> CancellationToken {
        let (ended, stop) = (CancellationToken::new(), stop.clone());
        let (engine, run, until) = (Arc::clone(self), run.clone(), ended.clone());
        self.lifecycle.tasks.spawn(async move { engine.open_and_drive(run, until, stop).await });
        ended
    }

    async fn open_and_drive(self: Arc<Self>, id: RunId, ended: CancellationToken, stop: CancellationToken) {
        let run = loop {
            match self.run(&id).await {
                Ok(run) => break run,
                Err(error) => warn!(run = %id, %error, "a run could not be opened; trying again"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = ended.cancelled() => return,
                () = tokio::time::sleep(AGAIN_AFTER) => {}
            }
        };
        if let Some(ranks) = self.watched.launches.borrow().get(&id) {
            run.launched(ranks);
        }
        self.drive(Arc::clone(&run), ended, stop).await;
        run.filling.stop();
    }

    fn take_placements(&self, listing: Listing) {
        for (run, placement) in entries::<RunId, Placement>(PLACEMENTS, &listing) {
            if let Some(state) = self.known_run(&run) {
                state.set_placement(placement.clone());
            }
            self.watched.placements.send_modify(|placements| drop(placements.insert(run, placement)));
        }
        // Those of runs that were removed.
        let keys: BTreeSet<&str> = listing.entries.iter().map(|(key, _)| &key[PLACEMENTS.len()..]).collect();
        self.watched
            .placements
            .send_modify(|placements| placements.retain(|run, _| keys.contains(run.as_str())));
        self.runs.news.fetch_add(1, Relaxed);
    }

    /// Looks up the placement if this node goes by an older one than `generation`. Without the metastore it
    /// stays with that: grains hosted elsewhere are then misses.
    pub(crate) async fn know_placement(&self, run: &RunState, generation: u64) {
        if let Err(error) = self.look_up_placement(run, generation).await {
            debug!(run = run.name(), generation, %error, "the placement could not be looked up");
        }
    }

    /// The same, for those who cannot do without.
    pub(super) async fn look_up_placement(&self, run: &RunState, generation: u64) -> Result<(), EngineError> {
        if run.generation() >= generation {
            return Ok(());
        }
        let key = format!("{PLACEMENTS}{}", run.record.id);
        if let Some(entry) = self.meta.get(&key).await? {
            run.set_placement(understood(&key, &entry)?);
        }
        Ok(())
    }

    /// Keeps every active run's placement on live nodes that are not drained.
    async fn settle_forever(self: Arc<Self>, stop: CancellationToken) {
        let mut nodes = self.watched.nodes.subscribe();
        let mut launches = self.watched.launches.subscribe();
        let mut draining = self.watched.draining.subscribe();
        let mut copied = self.watched.copied.subscribe();
        let mut balancer = self.balancer.known.subscribe();
        loop {
            let active: Vec<(RunId, RanksRecord)> = launches
                .borrow_and_update()
                .iter()
                .map(|(run, ranks)| (run.clone(), ranks.clone()))
                .collect();
            nodes.mark_unchanged();
            draining.mark_unchanged();
            copied.mark_unchanged();
            balancer.mark_unchanged();
            for (run, ranks) in active {
                let settled = async {
                    let state = self.run(&run).await?;
                    self.settle(&state, &ranks, false).await
                };
                if let Err(error) = settled.await {
                    warn!(run = %run, %error, "the placement could not be brought up to date");
                }
            }
            self.rid_finished_runs().await;
            tokio::select! {
                () = stop.cancelled() => return,
                _ = nodes.changed() => {}
                _ = launches.changed() => {}
                _ = draining.changed() => {}
                _ = copied.changed() => {}
                _ = balancer.changed() => {}
            }
        }
    }

    /// Makes the next step towards the placement that fits nodes and ranks, unless that is in force already, nodes are still
    /// copying what the last step moved, or the launch is still gathering its ranks (`even_if_gathering` places what there is).
    ///
    /// The last news may be old, while others decide by newer news: two nodes that believe different things
    /// would undo each other's placements without end. So a step is decided again by what the metastore says
    /// now.
    pub(crate) async fn settle(
        &self,
        run: &RunState,
        ranks: &RanksRecord,
        even_if_gathering: bool,
    ) -> Result<(), EngineError> {
        let key = format!("{PLACEMENTS}{}", run.record.id);
        loop {
            let entry = self.meta.get(&key).await?;
            let current: Option<Placement> = entry.as_ref().and_then(parse);
            if let Some(current) = &current {
                run.set_placement(current.clone());
            }
            if self.next_step(run, ranks, current.as_ref(), even_if_gathering).is_none() {
                return Ok(());
            }
            let Some(ranks) = self.look_again(run).await? else { return Ok(()) };
            let Some(next) = self.next_step(run, &ranks, current.as_ref(), even_if_gathering) else {
                return Ok(());
            };
            let expected = entry.as_ref().map_or(Expected::Absent, |entry| Expected::At(entry.revision));
            let (value, moved) = (pack(&next), next.moved.len());
            match self.meta.put(&key, value, expected, None).await {
                Ok(_) => {
                    info!(run = run.name(), generation = next.generation, moved, "placed");
                    run.set_placement(next);
                    return Ok(());
                }
                // Another node was faster: look at its decision.
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn next_step(
        &self,
        run: &RunState,
        ranks: &RanksRecord,
        current: Option<&Placement>,
        even_if_gathering: bool,
    ) -> Option<Placement> {
        let live: Vec<NodeId> = self.watched.nodes.borrow().keys().cloned().collect();
        // A rank that was lost is not waited for.
        let is_awaited = |(rank, node): (u32, &Option<NodeId>)| node.is_none() && !ranks.lost.contains(&rank);
        let gathering = (0..).zip(&ranks.nodes).any(is_awaited);
        let is_orphaned = |now: &Placement| now.hosts.iter().any(|host| live.binary_search(host).is_err());
        let waits = (gathering && !even_if_gathering) || (current.is_some() && self.balancer_is_foreign());
        if live.is_empty() || (waits && !current.is_some_and(is_orphaned)) {
            return None;
        }
        let preferred = preferences(&run.plan, run.record.virtual_ranks, ranks);
        let target = place(&self.hosts(run, &live), &preferred, current)?;
        let Some(current) = current else { return Some(target) };
        let most = if self.is_copying(run, current, &live) { 0 } else { MOST_AT_ONCE };
        step(current, target, &live, most)
    }

    /// Brings up to date what placements are decided by. The ranks of the run, if it is still being read.
    async fn look_again(&self, run: &RunState) -> Result<Option<RanksRecord>, EngineError> {
        self.take_nodes(self.meta.list(NODES).await?);
        self.take_draining(&self.meta.list(DRAINING).await?);
        self.take_balancer(&self.meta.list(BALANCER).await?);
        self.take_copied(
            &self.meta.list(&format!("{COPIED}{}/", run.record.id)).await?,
            Some(&run.record.id),
        );
        Ok(self.ranks(&run.record.id).await?.map(|(ranks, _)| ranks))
    }
}
