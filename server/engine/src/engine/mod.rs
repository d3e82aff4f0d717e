//! A node: keeps the grains of the partitions it hosts in its cache, exchanges them as the plan says, and tells loaders where
//! they are.
//!
//! The engine reaches its peers and the metastore through traits and knows nothing of sockets. The plan alone
//! decides the samples and their order: the engine can change only the speed. A grain that is not here when
//! it is wanted is a *miss*: slow, never wrong.

mod away;
mod balancer;
mod connection;
mod copies;
mod counters;
mod cursor;
mod drain;
mod epochs;
mod error;
mod evict;
mod exchange;
mod explain;
mod filled;
mod forgotten;
mod gate;
mod health;
mod hot;
mod keeping;
mod keys;
mod late;
mod locate;
mod lost;
mod membership;
mod misses;
mod obtain;
mod overrides;
mod pace;
mod parts;
mod passes;
mod past;
mod peak;
mod plan_reader;
mod reader;
mod reads;
mod removal;
mod rendezvous;
mod run;
mod schedule;
mod seen;
mod silence;
#[cfg(test)]
mod tests;
mod timeline;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use shardd_api::capacity;
use shardd_api::duration::now;
use shardd_api::explain::MissesExplained;
use shardd_api::hot::{Hot, HotOrder};
use shardd_api::node::{NodeId, NodeRecord};
use shardd_api::problem::Kind;
use shardd_api::protocol::{
    Attach, AuditReport, CreateRun, Placement, RanksRecord, RunId, RunRecord, RunView,
};
use shardd_api::status::{NodeStatus, Reader, StoreEpoch};
use shardd_api::timeline::Timeline;
use shardd_api::traffic::SentTo;
use shardd_plan::{GrainNo, Plan};
use shardd_store::catalog::{Guard, RUN_IDLE_TIMEOUT, Reach, StoreOf};
use shardd_store::metastore::{Expected, MetaError, Metastore};
use shardd_store::origin::{Origin, OriginError};
use shardfmt::{GrainKey, PlanId};
use tokio::sync::mpsc;
use tracing::warn;

use crate::cache::Cache;
use crate::peers::{Ack, FetchMode, FetchRequest, PeerError, PeerService, Peers, SendHeader};

use away::is_away;
pub use balancer::ReadPressure;
pub use connection::RankConnection;
use counters::Counters;
pub use error::EngineError;
use keys::{RANKS, RUNS};
use parts::{ExchangeParts, Lifecycle, Neighbours, Outage, RunTable, Upkeep, Watched};
pub use passes::{PassError, Passes};
pub use plan_reader::PlanReader;
pub(crate) use run::RunState;
use run::store_epochs::StoreEpochs;
use seen::Departure;
use value::{parse, understood};

/// How long a rank waits at attach for the other ranks of its launch.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a host that asks waits for what this node is just reading in its stead.
const OWN_READS: Duration = Duration::from_secs(1);

/// A node's engine. Create it with [`Engine::new`], keep [`Engine::run_until`] running, and call the rest from anywhere.
pub struct Engine {
    node: NodeId,
    /// By which loaders of this machine ask for segments, if any are lent.
    passes: OnceLock<Passes>,
    origin: Arc<Origin>,
    cache: Arc<Cache>,
    meta: Arc<dyn Metastore>,
    peers: Arc<dyn Peers>,
    watched: Watched,
    runs: RunTable,
    exchange: ExchangeParts,
    neighbours: Neighbours,
    balancer: balancer::Balancer,
    outage: Outage,
    upkeep: Upkeep,
    counters: Counters,
    reads: reads::Reads,
    pub(crate) lifecycle: Lifecycle,
}

impl Engine {
    /// Puts the parts together; nothing runs yet.
    pub fn new(
        node: NodeId,
        origin: Arc<Origin>,
        cache: Arc<Cache>,
        meta: Arc<dyn Metastore>,
        peers: Arc<dyn Peers>,
    ) -> Arc<Self> {
        Arc::new(Self {
            node,
            passes: OnceLock::new(),
            origin,
            cache,
            meta,
            peers,
            watched: Watched::default(),
            runs: RunTable::default(),
            exchange: ExchangeParts::default(),
            neighbours: Neighbours::default(),
            balancer: balancer::Balancer::default(),
            outage: Outage::default(),
            upkeep: Upkeep::default(),
            counters: Counters::default(),
            reads: reads::Reads::default(),
            lifecycle: Lifecycle::default(),
        })
    }

    /// Makes a run known under its name. Doing it again is harmless. While the metastore is unavailable, a
    /// known run stays known.
    ///
    /// # Errors
    /// A plan that does not exist, V that the plan does not allow, another run of the same name.
    pub async fn create_run(&self, create: CreateRun) -> Result<RunRecord, EngineError> {
        match self.create_run_now(create.clone()).await {
            // It need not be made known that is known.
            Err(error) if is_away(&error) => self.recall_run(&create).await.ok_or(error),
            outcome => outcome,
        }
    }

    async fn create_run_now(&self, create: CreateRun) -> Result<RunRecord, EngineError> {
        // Its plan may be on no list any more: gc is notified before the search for it.
        let reach = Reach { plan: Some(create.plan), ..Reach::default() };
        let guard = Guard::announce(&self.meta, &reach, StoreOf::at(&self.origin)).await?;
        let guard = guard.ok_or_else(|| EngineError::Busy { run: create.id.clone() })?;
        let outcome = self.create_run_guarded(create, &guard).await;
        guard.end().await;
        outcome
    }

    async fn create_run_guarded(&self, create: CreateRun, guard: &Guard) -> Result<RunRecord, EngineError> {
        let (plan, _) = self.plan(create.plan).await?;
        plan.check_ranks(1, create.virtual_ranks)?;
        let record = RunRecord {
            id: create.id,
            plan: create.plan,
            version: plan.document().version,
            virtual_ranks: create.virtual_ranks,
            began: Some(now()),
            left: None,
            interrupted: false,
            removing: false,
        };
        let key = format!("{RUNS}{}", record.id);
        let value = serde_json::to_vec(&record).expect("a run record is plain data");
        guard.renew().await?;
        match self.meta.put(&key, value, Expected::Absent, None).await {
            Ok(_) => Ok(record),
            Err(MetaError::Conflict { .. }) => {
                let there = match self.record(&record.id).await {
                    Err(EngineError::UnknownRun { run }) => return Err(EngineError::BeingRemoved { run }),
                    there => there?,
                };
                if there.is_same_run(&RunRecord { began: there.began, ..record }) {
                    return Ok(there);
                }
                Err(EngineError::RunConflict {
                    run: there.id,
                    plan: there.plan,
                    virtual_ranks: there.virtual_ranks,
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A rank attaches here: its partitions will be hosted here up to the node's even share. Returns once all
    /// ranks of the launch are attached and placed, or after 10 s with those that are.
    ///
    /// # Errors
    /// An unknown run, ranks that do not fit it, a lost metastore.
    pub async fn attach(
        self: &Arc<Self>,
        id: &RunId,
        rank: u32,
        attach: Attach,
    ) -> Result<RunView, EngineError> {
        let run = self.run_as_recorded(id).await?;
        check_rank(&run, rank, attach)?;
        // The process may be killed while it waits here.
        let waiting = self.connection(&run, rank);
        let view = self.attach_and_wait(&run, rank, attach).await?;
        waiting.end();
        Ok(view)
    }

    async fn attach_and_wait(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        rank: u32,
        attach: Attach,
    ) -> Result<RunView, EngineError> {
        let id = &run.record.id;
        match self.change_attached(id, rank, attach).await {
            // Ranks that continue find each other without it, and so do their grains: the others hear of it
            // later.
            Err(error) if is_away(&error) => {
                warn!(run = %id, rank, "a rank attaches while the metastore is unavailable");
                self.attached_meanwhile(id, rank, Some(attach));
                return self.view(id).await;
            }
            changed => changed?,
        }
        let gathered = tokio::time::timeout(ATTACH_TIMEOUT, self.gathered(id)).await;
        let settled = async {
            let ranks = match gathered {
                Ok(ranks) => ranks?,
                Err(_) => self.ranks(id).await?.map(|(ranks, _)| ranks),
            };
            if let Some(ranks) = ranks {
                run.launched(&ranks);
                self.settle(run, &ranks, true).await?;
            }
            Ok(())
        };
        match settled.await {
            Err(error) if is_away(&error) => {}
            settled => settled?,
        }
        self.view(id).await
    }

    async fn change_attached(&self, id: &RunId, rank: u32, attach: Attach) -> Result<(), EngineError> {
        let launch = self.next_launch().await?;
        self.change_ranks(id, |ranks| {
            let mut ranks = ranks
                .filter(|r| r.world == attach.world && r.epoch == attach.epoch)
                // A rank that is there already is one of an earlier launch, which ended without a word.
                .filter(|r| r.nodes[rank as usize].is_none() && !r.lost.contains(&rank))
                .unwrap_or_else(|| RanksRecord::begun(launch, attach.world, attach.epoch));
            ranks.nodes[rank as usize] = Some(self.node.clone());
            ranks.seen = Some(now());
            Some(ranks)
        })
        .await?;
        self.confirm_attached(id, rank).await
    }

    /// Who removes a run marks it, and then looks for ranks: one of the two sees the other.
    async fn confirm_attached(&self, id: &RunId, rank: u32) -> Result<(), EngineError> {
        if let Err(error @ EngineError::UnknownRun { .. }) = self.record(id).await {
            self.leave(id, rank, Departure::Detached).await?;
            return Err(error);
        }
        Ok(())
    }

    /// A number for a launch that is greater than those of all launches before.
    async fn next_launch(&self) -> Result<u64, EngineError> {
        Ok(self.meta.list(RANKS).await?.revision + 1)
    }

    /// A rank leaves: when the last one has, the run is no longer active here or anywhere.
    ///
    /// # Errors
    /// An unknown run, a lost metastore.
    pub async fn detach(self: &Arc<Self>, id: &RunId, rank: u32) -> Result<(), EngineError> {
        self.run(id).await?.ranks.leave(rank);
        match self.change_left(id, rank).await {
            Err(error) if is_away(&error) => {
                self.attached_meanwhile(id, rank, None);
                Ok(())
            }
            changed => changed,
        }
    }

    async fn change_left(&self, id: &RunId, rank: u32) -> Result<(), EngineError> {
        self.leave(id, rank, Departure::Detached).await.map(drop)
    }

    /// The facts about a run that a loader needs. Works without the metastore once the run is known here.
    ///
    /// # Errors
    /// An unknown run.
    pub async fn view(self: &Arc<Self>, id: &RunId) -> Result<RunView, EngineError> {
        let run = self.run(id).await?;
        let placement = run.placement().map(|placement| (*placement).clone());
        let room =
            placement.as_ref().map(|placement| run.needs.room(placement, &self.share_for(&run, placement)));
        let attached = self.attached(id);
        Ok(RunView { run: run.record.clone(), placement, nodes: self.nodes(), room, attached })
    }

    /// How many ranks are attached to a run, anywhere, as this node knows it.
    fn attached(&self, id: &RunId) -> u32 {
        let launches = self.watched.launches.borrow();
        let nodes = launches.get(id).map_or(&[][..], |ranks| &ranks.nodes[..]);
        nodes.iter().flatten().count() as u32
    }

    /// The misses of a run on this node, and their sources.
    ///
    /// # Errors
    /// An unknown run.
    pub async fn misses(&self, id: &RunId) -> Result<MissesExplained, EngineError> {
        Ok(self.run(id).await?.misses.explained(self.node.clone()))
    }

    /// The work of this node for a run, with times: the last of it, since it started.
    ///
    /// # Errors
    /// An unknown run.
    pub async fn timeline(&self, id: &RunId) -> Result<Timeline, EngineError> {
        Ok(self.run(id).await?.stretches.told(self.node.clone()))
    }

    /// The timeline of a run on this node, empty if this node knows no such run.
    pub fn timeline_here(&self, id: &RunId) -> Timeline {
        match self.known_run(id) {
            Some(run) => run.stretches.told(self.node.clone()),
            None => Timeline { node: self.node.clone(), stretches: Vec::new() },
        }
    }

    /// This node.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// The live nodes, as this one knows them.
    pub fn nodes(&self) -> Vec<NodeRecord> {
        self.watched.nodes.borrow().values().cloned().collect()
    }

    /// The room of each live node's cache for a run beside the other runs that are being read.
    pub(crate) fn free_for(&self, run: &RunState) -> BTreeMap<NodeId, u64> {
        capacity::free(self.watched.nodes.borrow().values(), &self.reserved_beside(run))
    }

    /// The need of the other runs that are being read of each node's cache. Those of one plan share.
    fn reserved_beside(&self, run: &RunState) -> BTreeMap<NodeId, u64> {
        let mut reserved = BTreeMap::<NodeId, u64>::new();
        let mut plans = BTreeSet::from([run.record.plan]);
        for other in self.active_run_states() {
            let Some(placement) = other.placement() else { continue };
            if !plans.insert(other.record.plan) {
                continue;
            }
            for host in &placement.hosts {
                let hosted = placement.hosted_by(host).count() as u64;
                let taken = reserved.entry(host.clone()).or_default();
                *taken = taken.saturating_add(hosted.saturating_mul(other.needs.partition_bytes));
            }
        }
        reserved
    }

    /// The placement of every run, as this node knows it.
    pub fn placements(&self) -> BTreeMap<RunId, Placement> {
        self.watched.placements.borrow().clone()
    }

    /// All runs ever created.
    ///
    /// # Errors
    /// A lost metastore.
    pub async fn runs(&self) -> Result<Vec<RunRecord>, EngineError> {
        let listing = self.meta.list(RUNS).await?;
        Ok(listing.entries.iter().filter_map(|(_, entry)| parse(entry)).collect())
    }

    /// Keeps what a rank says it read in an epoch; while the metastore is unavailable, here, until it is
    /// back. The same again changes nothing.
    ///
    /// # Errors
    /// An unknown run, a rank outside its world, another report of that rank, a lost metastore and a disk that takes nothing.
    pub async fn keep_audit(self: &Arc<Self>, run: &RunId, report: AuditReport) -> Result<(), EngineError> {
        match self.put_audit(run, report).await {
            Err(error) if is_away(&error) => self.report_meanwhile(run, report, error).await,
            outcome => outcome,
        }
    }

    async fn put_audit(&self, run: &RunId, report: AuditReport) -> Result<(), EngineError> {
        self.record(run).await?;
        if report.rank >= report.world {
            return Err(EngineError::RankOutside { rank: report.rank, world: report.world });
        }
        let key = format!("audits/{run}/{:06}/{:06}-{:06}", report.epoch, report.world, report.rank);
        let value = serde_json::to_vec(&report).expect("a report is plain data");
        match self.meta.put(&key, value, Expected::Absent, None).await {
            Ok(_) => Ok(()),
            Err(MetaError::Conflict { .. }) => match self.meta.get(&key).await? {
                Some(kept) if parse(&kept).is_some_and(|kept: AuditReport| kept == report) => Ok(()),
                _ => {
                    Err(EngineError::OtherAudit { run: run.clone(), epoch: report.epoch, rank: report.rank })
                }
            },
            Err(error) => Err(error.into()),
        }
    }

    /// The reports of the ranks on their reads, by epoch, world and rank: those in the metastore, and those
    /// that this node keeps for it.
    ///
    /// # Errors
    /// A lost metastore.
    pub async fn audits(&self, run: &RunId) -> Result<Vec<AuditReport>, EngineError> {
        let listing = self.meta.list(&format!("audits/{run}/")).await?;
        let told = listing.entries.iter().filter_map(|(_, entry)| parse(entry));
        let key = |report: &AuditReport| (report.epoch, report.world, report.rank);
        let all = self.reports_meanwhile(run).into_iter().chain(told);
        let all: BTreeMap<_, AuditReport> = all.map(|report| (key(&report), report)).collect();
        Ok(all.into_values().collect())
    }

    /// This node's counters.
    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            node: self.node.clone(),
            cache_used_bytes: self.cache.used(),
            cache_limit_bytes: self.cache.limit(),
            cache_grains: self.cache.len() as u64,
            cache_peak_bytes: self.cache_peak_bytes(),
            origin_bytes: self.origin.bytes_read(),
            origin_requests: self.origin.requests(),
            origin_reread: self.origin.reread(),
            origin_wire: self.origin.wire(),
            store_epochs: self.store_epochs(),
            measured: self.neighbours.health.measured(),
            health_issues: self.neighbours.health.says(),
            exchange_now: self.exchange_now(),
            readers: self.readers(),
            metadata: None,
            machine: None,
            counters: self.counters.view(),
        }
    }

    /// The shards and grains that ranks of this node read most, lately.
    pub fn hot(&self, by: HotOrder, limit: usize) -> Hot {
        self.reads.hot(self.node.clone(), by, limit)
    }

    /// To which nodes this one has sent bytes of a run.
    pub fn receivers(&self, run: &RunId) -> Vec<SentTo> {
        self.counters.receivers(run.as_str())
    }

    /// Why the metadata cannot be reached, if so.
    pub fn metadata_trouble(&self) -> Option<String> {
        let age = self.outage.recalled.age()?;
        Some(format!("it has not answered for {} s", age.as_secs()))
    }

    /// The ranks that read here, by run.
    fn readers(&self) -> Vec<Reader> {
        let mut readers: Vec<Reader> =
            self.active_run_states().iter().flat_map(|run| run.readers()).collect();
        readers.sort_by(|one, other| (&one.run, one.rank).cmp(&(&other.run, other.rank)));
        readers
    }

    /// The traffic to the store by run and epoch, of the runs that were opened here.
    fn store_epochs(&self) -> Vec<StoreEpoch> {
        let runs = self.runs.states.lock().expect("no panic while held");
        runs.values().flat_map(|run| run.store_epochs.of(run.name())).collect()
    }

    /// The reason against new work on this node, if there is one: others do not see it yet, or it is bringing
    /// grains that it hosts.
    pub fn unready(&self) -> Option<String> {
        if !self.watched.nodes.borrow().contains_key(&self.node) {
            return Some(format!("node {} is not among the nodes of its cluster yet", self.node));
        }
        match self.runs.filling.load(Relaxed) {
            0 => None,
            runs => Some(format!("node {} is filling its cache for {runs} of its runs", self.node)),
        }
    }

    /// Where the durable objects are.
    pub fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// The metastore this node goes by.
    pub fn metastore(&self) -> &Arc<dyn Metastore> {
        &self.meta
    }

    async fn plan(&self, id: PlanId) -> Result<(Plan, Arc<shardfmt::Manifest>), EngineError> {
        let document = match self.origin.plan(id).await {
            Err(OriginError::NotFound { .. }) => return Err(EngineError::UnknownPlan { plan: id }),
            document => document?,
        };
        let manifest = Arc::new(self.origin.manifest(document.version).await?);
        let shard_rows: Vec<u32> = manifest.shards.iter().map(|shard| shard.rows).collect();
        Ok((Plan::new(document, &shard_rows)?, manifest))
    }

    async fn record(&self, id: &RunId) -> Result<RunRecord, EngineError> {
        let entry = match self.meta.get(&format!("{RUNS}{id}")).await {
            Err(error @ MetaError::Unavailable { .. }) => {
                return self.recall_record(id).await.ok_or(EngineError::Meta(error));
            }
            entry => entry?,
        };
        let record = entry.as_ref().and_then(parse).filter(|record: &RunRecord| !record.removing);
        record.ok_or_else(|| EngineError::UnknownRun { run: id.clone() })
    }

    /// The run's state on this node, opened on first use.
    pub(crate) async fn run(&self, id: &RunId) -> Result<Arc<RunState>, EngineError> {
        if let Some(run) = self.known_run(id) {
            return Ok(run);
        }
        let record = self.record(id).await?;
        let opened = self.origin.wire().unwrap_or_default();
        let (plan, manifest) = self.plan(record.plan).await?;
        let mut state = RunState::new(record, plan, manifest);
        state.store_epochs = StoreEpochs::opened(opened);
        let state = Arc::new(state);
        if let Some(placement) = self.watched.placements.borrow().get(id) {
            state.set_placement(placement.clone());
        }
        if let Some(ranks) = self.watched.launches.borrow().get(id) {
            state.launched(ranks);
        }
        let mut runs = self.runs.states.lock().expect("no panic while held");
        let run = Arc::clone(runs.entry(id.clone()).or_insert(state));
        self.runs.news.fetch_add(1, Relaxed);
        Ok(run)
    }

    pub(crate) fn known_run(&self, id: &RunId) -> Option<Arc<RunState>> {
        self.runs.states.lock().expect("no panic while held").get(id).cloned()
    }

    /// The live nodes that this node knows, itself too.
    pub fn live_nodes(&self) -> BTreeSet<NodeId> {
        self.watched.nodes.borrow().keys().cloned().collect()
    }

    /// The names of the runs that are being read, by the latest news of this node: their segments are not
    /// evicted.
    pub(crate) fn active_runs(&self) -> BTreeSet<String> {
        let heard =
            self.active_run_states().into_iter().filter(|run| run.ranks.quiet_for() < RUN_IDLE_TIMEOUT);
        heard.map(|run| run.name().to_owned()).collect()
    }

    pub(crate) fn active_run_states(&self) -> Vec<Arc<RunState>> {
        let active: Vec<RunId> = self.watched.launches.borrow().keys().cloned().collect();
        active.iter().filter_map(|run| self.known_run(run)).collect()
    }

    async fn ranks(&self, id: &RunId) -> Result<Option<(RanksRecord, u64)>, EngineError> {
        let key = format!("{RANKS}{id}");
        let Some(entry) = self.meta.get(&key).await? else { return Ok(None) };
        Ok(Some((understood(&key, &entry)?, entry.revision)))
    }

    /// Waits until all ranks of the launch are attached; `None` if the launch is gone.
    async fn gathered(&self, id: &RunId) -> Result<Option<RanksRecord>, EngineError> {
        let key = format!("{RANKS}{id}");
        loop {
            let listing = self.meta.list(&key).await?;
            let ranks =
                listing.entries.iter().find(|(name, _)| *name == key).and_then(|(_, entry)| parse(entry));
            match ranks {
                None => return Ok(None),
                Some(ranks) => {
                    let ranks: RanksRecord = ranks;
                    if ranks.nodes.iter().all(Option::is_some) {
                        return Ok(Some(ranks));
                    }
                }
            }
            self.meta.changed(&key, listing.revision).await?;
        }
    }

    /// Compare-and-swap of the launch's document; `None` deletes it.
    async fn change_ranks(
        &self,
        id: &RunId,
        change: impl Fn(Option<RanksRecord>) -> Option<RanksRecord>,
    ) -> Result<(), EngineError> {
        let key = format!("{RANKS}{id}");
        loop {
            let there = self.ranks(id).await?;
            let expected = there.as_ref().map_or(Expected::Absent, |(_, revision)| Expected::At(*revision));
            let done = match change(there.as_ref().map(|(ranks, _)| ranks.clone())) {
                Some(next) if there.as_ref().is_some_and(|(ranks, _)| *ranks == next) => return Ok(()),
                Some(next) => {
                    let value = value::pack(&next);
                    self.meta.put(&key, value, expected, None).await
                }
                None if there.is_none() => return Ok(()),
                None => self.meta.delete(&key, expected).await,
            };
            match done {
                Ok(_) => return Ok(()),
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Engine {
    /// This node's present reads for the ranks of an absent host are worth waiting for when that host asks:
    /// the store need not be read twice. Only hosts are waited for, so that no two nodes wait for each other.
    async fn await_own_reads(
        &self,
        run: &RunState,
        from: &NodeId,
        epoch: u32,
        missing: &BTreeMap<u32, Vec<(usize, GrainNo)>>,
    ) {
        let grains = missing.values().flatten().map(|(_, grain)| *grain);
        let theirs: Vec<GrainNo> = grains.filter(|grain| run.is_hosted_by(from, *grain, epoch)).collect();
        // After that the asker continues without.
        let _ = tokio::time::timeout(OWN_READS, run.in_flight.landed(&theirs)).await;
    }
}

/// Whether a rank fits a run.
fn check_rank(run: &RunState, rank: u32, attach: Attach) -> Result<(), EngineError> {
    run.plan.check_ranks(attach.world, run.record.virtual_ranks)?;
    if rank >= attach.world {
        return Err(EngineError::RankOutside { rank, world: attach.world });
    }
    Ok(())
}

/// Runs blocking work off the async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down: no task will poll this again.
        Err(_) => std::future::pending().await,
    }
}

#[async_trait]
impl PeerService for Arc<Engine> {
    async fn fetch(&self, from: &NodeId, request: FetchRequest) -> Vec<Option<Bytes>> {
        let nothing = vec![None; request.keys.len()];
        let Ok(run) = self.run(&request.run).await else { return nothing };
        let mut answer = nothing;
        let mut missing = BTreeMap::new();
        if request.effort == FetchMode::Doubt {
            let doubted: Vec<GrainNo> = request.keys.iter().filter_map(|key| run.grain(key)).collect();
            run.checked.doubt(doubted.iter().copied());
            self.discard_corrupt(&run, request.epoch, doubted).await;
            return answer;
        }
        let asked = request.keys.iter().enumerate();
        let asked: Vec<(usize, GrainNo)> =
            asked.filter_map(|(at, key)| Some((at, run.grain(key)?))).collect();
        if request.effort == FetchMode::Probe {
            for (at, grain) in asked {
                answer[at] = self.is_resident(&run, grain).then(Bytes::new);
            }
        } else {
            let read = self.read_cached(&run, asked.iter().map(|(_, grain)| *grain)).await;
            for (at, grain) in asked {
                answer[at] = read.get(&grain).cloned();
                if answer[at].is_none() {
                    missing.entry(run.shard_of(grain)).or_insert_with(Vec::new).push((at, grain));
                }
            }
        }
        if request.effort == FetchMode::Cached {
            self.await_own_reads(&run, from, request.epoch, &missing).await;
            let here = missing.values().flatten().map(|(_, grain)| *grain);
            let read = self.read_cached(&run, here.filter(|grain| self.is_resident(&run, *grain))).await;
            for (at, grain) in missing.values().flatten() {
                answer[*at] = read.get(grain).cloned();
            }
        }
        if request.effort == FetchMode::Read {
            self.know_placement(&run, request.generation).await;
            for (shard, grains) in missing {
                let asked: Vec<_> = grains.iter().map(|(_, grain)| *grain).collect();
                let Some(whole) = self.read_as_reader(&run, shard, request.epoch, Some((from, &asked))).await
                else {
                    continue;
                };
                for (at, grain) in grains {
                    answer[at] = whole.grain(&run, grain).ok();
                }
            }
        }
        Counters::add(
            &self.counters.served_grains,
            answer.iter().flatten().filter(|b| !b.is_empty()).count(),
        );
        let bytes: usize = answer.iter().flatten().map(Bytes::len).sum();
        Counters::add(&self.counters.served_bytes, bytes);
        self.counters.sent_to(run.name(), from, 0, bytes as u64);
        answer
    }

    async fn receive(
        &self,
        from: &NodeId,
        header: SendHeader,
        grains: mpsc::Receiver<(GrainKey, Bytes)>,
    ) -> Result<Ack, PeerError> {
        let run = self.run(&header.run).await.map_err(|error| PeerError::Refused {
            peer: self.node.clone(),
            kind: Kind::from(&error),
            reason: error.to_string(),
        })?;
        let RunRecord { plan, version, .. } = &run.record;
        if (header.plan, header.version) != (*plan, *version) {
            let reason = format!(
                "run {} goes by plan {plan} of version {version} on node {}, not by plan {} of version {}",
                header.run, self.node, header.plan, header.version
            );
            return Err(PeerError::Refused { peer: self.node.clone(), kind: Kind::Conflict, reason });
        }
        Ok(self.take_grains(from, &run, &header, grains).await)
    }
}
