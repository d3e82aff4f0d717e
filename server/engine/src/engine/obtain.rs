//! Brings grains to this node: from the host of their partition, from the host before, from the shard's reader, from a few
//! neighbours that may have read them while a host was away, and at last from the store. Each is asked once, the peers for two seconds in all; everything that arrives is verified.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use futures::future::join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use shardd_api::explain::{MissSource, Wanted};
use shardd_api::node::NodeId;
use shardd_api::timeline::Work;
use shardd_plan::GrainNo;
use shardfmt::{GrainKey, Manifest, RowCodec, ShardEntry};
use tokio::time::{Duration, Instant, sleep, timeout};
use tracing::{Instrument, debug, debug_span, warn};

use super::health::FAIR_TIMEOUT;
use super::misses::Given;
use super::run::RunState;
use super::run::in_flight::Claim;
use super::{Counters, Engine, EngineError, blocking};
use crate::cache::{CacheError, Class};
use crate::peers::{FetchMode, FetchRequest, PEER_TIMEOUT, PeerError, READER_TIMEOUT};

/// The node that may have a grain.
type Candidate<'a> = Box<dyn Fn(GrainNo) -> Option<NodeId> + Send + 'a>;

/// The outcome of verified grains that were offered to the cache.
#[derive(Debug, Default)]
pub(crate) struct Absorbed {
    /// Grains now in the cache.
    pub(crate) stored: Vec<GrainNo>,
    /// Good grains for which there was no room.
    pub(crate) unstored: Vec<(GrainNo, Bytes)>,
    /// Grains whose bytes do not match the manifest.
    pub(crate) corrupt: Vec<GrainNo>,
}

/// The rule for keeping grains from other nodes here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// Whatever there is room for: it will be asked for here again.
    All,
    /// Grains from their host in the epoch are not: they stay there, and was asked for here because the host
    /// was late.
    NotOfHosts,
}

impl Engine {
    /// Brings `grains` into the cache for `epoch`. Returns the bytes of those that the cache has no room for.
    ///
    /// Grains that another task on this node is already fetching are waited for, not fetched twice.
    pub(crate) async fn obtain(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        epoch: u32,
        grains: impl IntoIterator<Item = GrainNo>,
    ) -> Result<HashMap<GrainNo, Bytes>, EngineError> {
        self.obtain_for((Wanted::ToKeep, Keep::All), run, epoch, grains).await
    }

    /// The same, and says what for.
    pub(super) async fn obtain_for(
        self: &Arc<Self>,
        (wanted_for, keep): (Wanted, Keep),
        run: &Arc<RunState>,
        epoch: u32,
        grains: impl IntoIterator<Item = GrainNo>,
    ) -> Result<HashMap<GrainNo, Bytes>, EngineError> {
        let wanted: Vec<GrainNo> =
            grains.into_iter().filter(|grain| !self.is_resident(run, *grain)).collect();
        let (missing, began) = (wanted.len() as u64, Instant::now());
        if missing == 0 {
            return Ok(HashMap::new());
        }
        let span = debug_span!("obtain", run = run.name(), epoch, grains = missing);
        let loose = self.obtain_missing((wanted_for, keep), run, epoch, wanted).instrument(span).await?;
        if wanted_for == Wanted::ToRead {
            run.stretches.note(Work::Fetch, epoch, None, missing, began);
        }
        Ok(loose)
    }

    async fn obtain_missing(
        self: &Arc<Self>,
        (wanted_for, keep): (Wanted, Keep),
        run: &Arc<RunState>,
        epoch: u32,
        mut wanted: Vec<GrainNo>,
    ) -> Result<HashMap<GrainNo, Bytes>, EngineError> {
        let mut loose = HashMap::new();
        while !wanted.is_empty() {
            let (claim, others) = run.in_flight.claim(wanted);
            // Between the look into the cache and the claim another fetch may have ended.
            let mine: BTreeSet<GrainNo> =
                claim.grains.iter().copied().filter(|grain| !self.is_resident(run, *grain)).collect();
            if !mine.is_empty() {
                self.fetch((wanted_for, keep), run, epoch, mine, &mut loose).await?;
            }
            drop(claim);
            run.in_flight.landed(&others).await;
            wanted = others.into_iter().filter(|grain| !self.is_resident(run, *grain)).collect();
        }
        Ok(loose)
    }

    async fn fetch(
        self: &Arc<Self>,
        (wanted, keep): (Wanted, Keep),
        run: &Arc<RunState>,
        epoch: u32,
        mut left: BTreeSet<GrainNo>,
        loose: &mut HashMap<GrainNo, Bytes>,
    ) -> Result<(), EngineError> {
        let deadline = Instant::now() + PEER_TIMEOUT;
        let is_short = self.is_short(run, epoch);
        let mut asked: BTreeSet<(NodeId, GrainNo)> = BTreeSet::new();
        let given = |source| Given { epoch, wanted, source, from: None };
        for (source, candidates) in self.candidates(run, epoch) {
            let by_node = group(left.iter().filter_map(|grain| {
                let node = candidates(*grain)?;
                (node != self.node && asked.insert((node.clone(), *grain))).then_some((node, *grain))
            }));
            if by_node.is_empty() {
                continue;
            }
            let patience = deadline.saturating_duration_since(Instant::now());
            self.ask(run, given(source), keep, by_node, FetchMode::Cached, patience, &mut left, loose).await;
        }

        // Where there is no room for all, a shard read whole would be read again for the grains not kept of
        // it.
        let for_reader = left.iter().filter(|_| !is_short);
        let by_shard = group(for_reader.map(|grain| (run.shard_of(*grain), *grain)));
        let mut by_reader: BTreeMap<NodeId, Vec<GrainNo>> = BTreeMap::new();
        let mut own = Vec::new();
        for (shard, grains) in by_shard {
            match run.reader(shard, epoch) {
                Some(reader) if reader == self.node => own.push(self.read_own(run, epoch, shard, grains)),
                Some(reader) => by_reader.entry(reader).or_default().extend(grains),
                None => {}
            }
        }
        // A step has rows of many shards. One after the other, each would cost a round trip to the store, and the
        // filling of the cache would wait for all of them: their grains are claimed here.
        let mut read = stream::iter(own).buffer_unordered(shards_at_once(&run.manifest));
        while let Some(absorbed) = read.try_next().await? {
            self.note_missed(run, given(MissSource::Store), &absorbed);
            settle(absorbed, &mut left, loose);
        }
        let reader = given(MissSource::Reader);
        self.ask(run, reader, keep, by_reader, FetchMode::Read, READER_TIMEOUT, &mut left, loose).await;

        // The grains forwarded during our request are here now.
        left.retain(|grain| !self.is_resident(run, *grain));
        // During a host's absence others may have read the grains it lacks now, for its ranks.
        // Of a run without a placement they know nothing, and what a cache without room lacks they keep no more than this one.
        let is_of_use = run.generation() > 0 && !(is_short && wanted == Wanted::ToKeep);
        let neighbours = if is_of_use { self.neighbours() } else { Vec::new() };
        for neighbour in neighbours {
            let unasked = left.iter().copied().filter(|grain| asked.insert((neighbour.clone(), *grain)));
            let by_node = group(unasked.map(|grain| (neighbour.clone(), grain)));
            let patience = deadline.saturating_duration_since(Instant::now());
            let neighbour = given(MissSource::Neighbour);
            self.ask(run, neighbour, keep, by_node, FetchMode::Cached, patience, &mut left, loose).await;
        }
        for (shard, mut grains) in group(left.iter().map(|grain| (run.shard_of(*grain), *grain))) {
            debug!(run = run.name(), epoch, shard, grains = grains.len(), first = %grains[0], "no node gave grains; reading them from the store");
            let neighbours = self.claim_neighbours(run, epoch, shard, &grains);
            grains.extend(&neighbours.grains);
            Counters::add(&self.counters.misses_from_origin, grains.len());
            let absorbed = self.read_and_absorb(run, epoch, shard, &grains).await?;
            if let Some(grain) = absorbed.corrupt.first() {
                return Err(EngineError::CorruptOrigin { grain: run.key(*grain) });
            }
            self.note_missed(run, given(MissSource::Store), &absorbed);
            settle(absorbed, &mut left, loose);
        }
        debug_assert!(left.is_empty(), "the origin has every grain");
        Ok(())
    }

    /// Grains of a shard whose reader is this node, cut from the whole shard. None of them if it is not read whole.
    async fn read_own(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        epoch: u32,
        shard: u32,
        grains: Vec<GrainNo>,
    ) -> Result<Absorbed, EngineError> {
        let Some(whole) = self.read_as_reader(run, shard, epoch, None).await else {
            return Ok(Absorbed::default());
        };
        let built = grains
            .iter()
            .map(|grain| Ok((*grain, whole.grain(run, *grain)?)))
            .collect::<Result<_, EngineError>>()?;
        Ok(self.absorb(run, epoch, built).await)
    }

    /// A few other live nodes, the next ones by name.
    pub(super) fn neighbours(&self) -> Vec<NodeId> {
        let live = self.live_nodes();
        let (before, after): (Vec<NodeId>, Vec<NodeId>) =
            live.into_iter().filter(|node| *node != self.node).partition(|node| *node < self.node);
        after.into_iter().chain(before).take(NEIGHBOURS).collect()
    }

    /// Claims what else of the shard the wanted grains' partitions hold and this node keeps and lacks: a rank
    /// that reads one grain of a partition here will read them all, and together they cost the store fewer
    /// requests and bytes. What there is no room for would be read for nothing.
    fn claim_neighbours<'a>(
        &self,
        run: &'a RunState,
        epoch: u32,
        shard: u32,
        grains: &[GrainNo],
    ) -> Claim<'a> {
        let view = run.epochs.view(epoch);
        let partitions: BTreeSet<u32> = grains.iter().map(|grain| view.partition_of(*grain)).collect();
        let on_disk = self.cache.disk_room().unwrap_or(u64::MAX);
        let room = if run.keeping.is_out_of_room(epoch) { 0 } else { self.cache.free().min(on_disk) };
        let lacking = run.grains_of_shard(shard).filter(|grain| {
            partitions.contains(&view.partition_of(*grain))
                && !self.is_resident(run, *grain)
                && self.keeps(run, epoch, *grain)
        });
        let mut fits = fits_into(run, room);
        let fitting = lacking.take_while(|grain| fits(grain));
        run.in_flight.claim(fitting).0
    }

    /// Who may have a grain, in the order in which they are asked.
    fn candidates<'a>(&self, run: &'a RunState, epoch: u32) -> Vec<(MissSource, Candidate<'a>)> {
        let placements = run.placement.borrow().clone();
        let now = run.epochs.view(epoch);
        let mut candidates: Vec<(MissSource, Candidate<'a>)> = Vec::new();
        if let Some(placement) = placements.now {
            if run.keeping.have_some_left(epoch) {
                let next = run.epochs.view(epoch.saturating_add(1));
                let placement = Arc::clone(&placement);
                let host = move |grain| {
                    let has_left = run.keeping.has_left(epoch, grain);
                    has_left.then(|| placement.host(next.partition_of(grain)).clone())
                };
                candidates.push((MissSource::HostNext, Box::new(host)));
            }
            let (now, placement_now) = (Arc::clone(&now), Arc::clone(&placement));
            let host = move |grain| Some(placement_now.host(now.partition_of(grain)).clone());
            candidates.push((MissSource::Host, Box::new(host)));
            if epoch > 0 {
                let before = run.epochs.view(epoch - 1);
                let host = move |grain| Some(placement.host(before.partition_of(grain)).clone());
                candidates.push((MissSource::HostBefore, Box::new(host)));
            }
        }
        if let Some(placement) = placements.before {
            let host = move |grain| Some(placement.host(now.partition_of(grain)).clone());
            candidates.push((MissSource::FormerHost, Box::new(host)));
        }
        candidates
    }

    /// Notes the grains fetched here as misses.
    fn note_missed(&self, run: &RunState, given: Given, absorbed: &Absorbed) {
        let lies = |grain: &GrainNo| self.cache.get(&run.key(*grain)).map_or(0, |at| at.len as usize);
        let stored: usize = absorbed.stored.iter().map(lies).sum();
        let loose: usize = absorbed.unstored.iter().map(|(_, bytes)| bytes.len()).sum();
        let unstored = absorbed.unstored.iter().map(|(grain, _)| *grain);
        let grains: Vec<GrainNo> = absorbed.stored.iter().copied().chain(unstored).collect();
        let view = run.epochs.view(given.epoch);
        run.misses.note(given, grains.into_iter(), stored + loose, |grain| view.partition_of(grain));
    }

    /// Asks several nodes at once and takes their grains.
    #[expect(clippy::too_many_arguments, reason = "one step of `fetch`, which owns all of these")]
    pub(super) async fn ask(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        given_by: Given,
        keep: Keep,
        by_node: BTreeMap<NodeId, Vec<GrainNo>>,
        effort: FetchMode,
        patience: Duration,
        left: &mut BTreeSet<GrainNo>,
        loose: &mut HashMap<GrainNo, Bytes>,
    ) {
        let epoch = given_by.epoch;
        // A node that did not answer is asked again when it has sent something.
        let live: BTreeSet<NodeId> = self.live_nodes().into_iter().filter(|node| self.talks(node)).collect();
        if patience.is_zero() {
            return;
        }
        let asks =
            by_node.into_iter().filter(|(node, _)| live.contains(node)).map(|(node, grains)| async move {
                let request = run.request(epoch, &grains, effort);
                let began = Instant::now();
                let answer = match timeout(patience, self.fetch_from(&node, request)).await {
                    Ok(Ok(answer)) => answer,
                    Ok(Err(error)) => {
                        self.neighbours.health.unanswered(&node, began.elapsed());
                        debug!(peer = %node, %error, "a peer could not be asked for grains");
                        return (node, Vec::new());
                    }
                    Err(_) => {
                        self.neighbours.health.unanswered(&node, patience);
                        if patience >= FAIR_TIMEOUT {
                            self.fell_silent(run, &node);
                        }
                        warn!(peer = %node, ?patience, "a peer did not answer in time; asking elsewhere");
                        return (node, Vec::new());
                    }
                };
                // A reader may have to read the shard first.
                if effort == FetchMode::Cached {
                    let bytes = answer.iter().flatten().map(Bytes::len).sum();
                    self.neighbours.health.answered(&node, began.elapsed(), bytes);
                }
                let given = grains.into_iter().zip(answer).filter_map(|(grain, bytes)| Some((grain, bytes?)));
                (node, given.collect::<Vec<_>>())
            });
        for (node, given) in join_all(asks).await {
            let count = given.len();
            let bytes = given.iter().map(|(_, bytes)| bytes.len()).sum();
            Counters::add(&self.counters.miss_bytes_from_peers, bytes);
            let absorbed = match (given_by.source, keep) {
                (MissSource::Host, Keep::NotOfHosts) => self.pass_on(run, given).await,
                _ => self.absorb(run, epoch, given).await,
            };
            if !absorbed.corrupt.is_empty() {
                Counters::add(&self.counters.corrupt_from_peers, absorbed.corrupt.len());
                self.neighbours.health.gave_wrong(&node, absorbed.corrupt.len());
                warn!(peer = %node, grain = %run.key(absorbed.corrupt[0]), count = absorbed.corrupt.len(),
                      "a peer sent grains that do not match the manifest; asking elsewhere");
                self.spawn_doubt(run, epoch, node.clone(), &absorbed.corrupt);
            }
            Counters::add(&self.counters.misses_from_peers, count - absorbed.corrupt.len());
            self.note_missed(run, Given { from: Some(node), ..given_by.clone() }, &absorbed);
            settle(absorbed, left, loose);
        }
    }

    /// Reports a wrong grain to the node that sent it, so that it stops sending it. No caller waits for it.
    fn spawn_doubt(self: &Arc<Self>, run: &RunState, epoch: u32, node: NodeId, grains: &[GrainNo]) {
        let request = run.request(epoch, grains, FetchMode::Doubt);
        let engine = Arc::clone(self);
        self.lifecycle.tasks.spawn(async move {
            let told = timeout(PEER_TIMEOUT, engine.peers.fetch(&node, request));
            if let Some(Ok(Err(error))) = engine.lifecycle.stop.run_until_cancelled(told).await {
                debug!(peer = %node, %error, "a peer could not be notified that it sent a wrong grain");
            }
        });
    }

    /// Asks a node; while this one has just started, and may not have met it yet, again and again.
    async fn fetch_from(
        &self,
        node: &NodeId,
        request: FetchRequest,
    ) -> Result<Vec<Option<Bytes>>, PeerError> {
        loop {
            match self.peers.fetch(node, request.clone()).await {
                Err(PeerError::Unreachable { .. }) if self.lifecycle.started.elapsed() < MEETING => {}
                answer => return answer,
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Verifies grains and puts them into the cache, off the async threads.
    pub(crate) async fn absorb(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        epoch: u32,
        grains: Vec<(GrainNo, Bytes)>,
    ) -> Absorbed {
        if grains.is_empty() {
            return Absorbed::default();
        }
        let (engine, run) = (Arc::clone(self), Arc::clone(run));
        let work = move || {
            let mut absorbed = Absorbed::default();
            for (grain, bytes) in grains {
                if run.verify(grain, &bytes).is_err() {
                    absorbed.corrupt.push(grain);
                } else if engine.keep(&run, epoch, grain, &bytes) {
                    absorbed.stored.push(grain);
                } else {
                    absorbed.unstored.push((grain, bytes));
                }
            }
            absorbed
        };
        blocking(work).await
    }

    /// Verifies grains that are not put into the cache, off the async threads.
    async fn pass_on(&self, run: &Arc<RunState>, grains: Vec<(GrainNo, Bytes)>) -> Absorbed {
        let run = Arc::clone(run);
        let verify = move || {
            let (good, corrupt): (Vec<_>, Vec<_>) =
                grains.into_iter().partition(|(grain, bytes)| run.verify(*grain, bytes).is_ok());
            let corrupt = corrupt.into_iter().map(|(grain, _)| grain).collect();
            Absorbed { stored: Vec::new(), unstored: good, corrupt }
        };
        blocking(verify).await
    }

    /// Puts a verified grain into the cache; makes room from grains that only runs without readers wanted.
    /// False: no room.
    pub(crate) fn keep(&self, run: &RunState, epoch: u32, grain: GrainNo, bytes: &[u8]) -> bool {
        if !self.keeps(run, epoch, grain) {
            return false;
        }
        let class = self.class(run, grain, epoch);
        // Before it takes room: the peak is at no instant below the bytes in use.
        run.held.note(run.epochs.view(epoch).partition_of(grain), epoch);
        let key = run.key(grain);
        let is_kept_as_well = |kept: Class| {
            kept.run == class.run
                && kept.departs >= class.departs
                && (class.is_of_guests() || !kept.is_of_guests())
        };
        let put = || match self.cache.class_of(&key).is_some_and(|kept| !is_kept_as_well(kept)) {
            true => self.cache.put_under(key, &class, bytes),
            false => self.cache.put(key, &class, bytes),
        };
        let put = match put() {
            Err(error) if error.is_full() => {
                let need = self.room_for(bytes.len() as u64, &error);
                // Guests make no room for each other: each is read again by its next reader.
                match class.is_of_guests() {
                    true => _ = self.cache.evict(&self.active_runs(), need, self.hosted_class(None)),
                    false => self.make_room(run, need),
                }
                put()
            }
            put => put,
        };
        match put {
            Ok(_) => true,
            // Nothing is amiss when guests have no room, or when rows were forgotten.
            Err(error) if class.is_of_guests() && error.is_full() => false,
            Err(CacheError::Forgotten { .. }) => false,
            Err(error) => {
                // A grain that comes for the next epoch may find room in it.
                if run.ranks.progress.borrow().furthest().is_none_or(|(furthest, _)| epoch <= furthest) {
                    run.keeping.finds_no_room(epoch, grain);
                }
                if !self.upkeep.trouble_logged.swap(true, Relaxed) {
                    warn!(%error, "the cache takes no more grains; reading continues from peers and the \
                        store");
                }
                false
            }
        }
    }

    /// How many bytes have to be free for `bytes` that found no room. Where the disk is full before the cache is, as many more than now.
    pub(super) fn room_for(&self, bytes: u64, why: &CacheError) -> u64 {
        match why {
            CacheError::Full { .. } => bytes,
            _ => self.cache.free().saturating_add(bytes),
        }
    }

    /// Makes `need` bytes free if it can: evicts grains of runs without readers, then guests, and at last, once for each placement and
    /// epoch, grains of partitions that other nodes host since.
    pub(super) fn make_room(&self, run: &RunState, need: u64) {
        let hosted = self.hosted_class(None);
        self.cache.evict(&self.active_runs(), need, &hosted);
        let runs = self.active_run_states();
        // The grains that the exchange has brought already, for the epoch after.
        let is_next = |key: &GrainKey| {
            runs.iter().find_map(|run| {
                let (grain, (epoch, _)) = (run.grain(key)?, run.ranks.progress.borrow().furthest()?);
                let next = epoch.checked_add(1)?;
                let stays = run.is_hosted_by(&self.node, grain, next) && self.keeps(run, next, grain);
                stays.then(|| self.class(run, grain, next))
            })
        };
        let wanted = |key: &GrainKey| hosted(key).or_else(|| is_next(key));
        self.cache.evict_guests(need, wanted);
        let epoch = run.ranks.progress.borrow().furthest().map_or(0, |(epoch, _)| epoch);
        if self.cache.free() < need && run.filling.is_first_tidied(run.generation(), epoch) {
            match self.is_short(run, epoch) {
                // To move most of a full cache about would make no room.
                true => _ = self.cache.clear(|key, _| wanted(key), false),
                false => _ = self.cache.evict(&BTreeSet::new(), need, wanted),
            }
        }
    }

    /// Single grains from the store, verified and kept. Those that come over a network and are wrong are read a second time.
    async fn read_and_absorb(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        epoch: u32,
        shard: u32,
        grains: &[GrainNo],
    ) -> Result<Absorbed, EngineError> {
        let read = match self.read_ranges(run, shard, grains).await {
            Err(EngineError::Origin(error)) => return Err(error.into()),
            Err(error) if self.origin.may_reread() => {
                warn!(%error, shard, "grains from the store make no rows; reading them again");
                self.read_ranges(run, shard, grains).await?
            }
            read => read?,
        };
        let bytes = read.iter().map(|(_, bytes)| bytes.len()).sum();
        Counters::add(&self.counters.miss_bytes_from_origin, bytes);
        let mut absorbed = self.absorb(run, epoch, read).await;
        if !absorbed.corrupt.is_empty() && self.origin.may_reread() {
            let wrong = std::mem::take(&mut absorbed.corrupt);
            warn!(shard, first = %wrong[0], "grains from the store are wrong; reading them again");
            let read = self.read_ranges(run, shard, &wrong).await?;
            let Absorbed { stored, unstored, corrupt } = self.absorb(run, epoch, read).await;
            absorbed.stored.extend(stored);
            absorbed.unstored.extend(unstored);
            absorbed.corrupt = corrupt;
        }
        Ok(absorbed)
    }

    /// Single grains from the store: the shard's sidecar once, then only the bytes of the rows wanted.
    pub(super) async fn read_ranges(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        shard: u32,
        grains: &[GrainNo],
    ) -> Result<Vec<(GrainNo, Bytes)>, EngineError> {
        let known = self.known_shard(run, shard).await?;
        let entry = run.entry(shard);
        let rows: Vec<Range<u32>> = grains.iter().map(|grain| rows_of(run, *grain)).collect();
        let plan = known.sidecar.read_plan(&run.manifest.schema, &rows)?;
        // Where all of a shard has room, what lies between costs less than another request.
        let epoch = run.ranks.progress.borrow().furthest().map_or(0, |(epoch, _)| epoch);
        let fetched = match self.is_short(run, epoch) {
            true => self.origin.read_ranges_apart(&entry.id, plan.ranges()).await?,
            false => self.origin.read_ranges(&entry.id, plan.ranges()).await?,
        };
        let grains = grains.to_vec();
        let run = Arc::clone(run);
        let build = move || {
            let batches = plan.decode(&fetched)?;
            let codec = RowCodec::new(Arc::clone(&run.manifest.schema))?;
            let mut built = Vec::with_capacity(grains.len());
            for (grain, batches) in grains.into_iter().zip(&batches) {
                let mut rows = Vec::with_capacity(run.plan.document().grain_rows as usize);
                for batch in batches {
                    let encoder = codec.encoder(batch)?;
                    for row in 0..batch.num_rows() {
                        let mut bytes = Vec::new();
                        encoder.encode(row, &mut bytes)?;
                        rows.push(bytes);
                    }
                }
                let path = known.tree.path(run.plan.locate_grain(grain).index);
                let bytes = shardfmt::grain::build(rows.iter().map(Vec::as_slice), &path);
                built.push((grain, Bytes::from(bytes)));
            }
            Ok(built)
        };
        blocking(build).await
    }

    pub(crate) fn is_resident(&self, run: &RunState, grain: GrainNo) -> bool {
        self.cache.get(&run.key(grain)).is_some()
    }

    /// Fetches every grain that this node hosts in `epoch`, keeps and does not have, a shard's worth at a time.
    pub(crate) async fn ensure(self: &Arc<Self>, run: &Arc<RunState>, epoch: u32) -> Result<(), EngineError> {
        let missing: Vec<GrainNo> = run
            .hosted_grains(&self.node, epoch)
            .into_iter()
            .filter(|grain| self.keeps(run, epoch, *grain) && !self.is_resident(run, *grain))
            .collect();
        let by_shard = group(missing.iter().map(|grain| (run.shard_of(*grain), *grain)));
        debug!(run = run.name(), epoch, grains = missing.len(), shards = by_shard.len(), "filling the cache");
        if missing.is_empty() {
            return Ok(());
        }
        let _filling = Filling::begin(&self.runs.filling);
        let began = Instant::now();
        let is_full = AtomicBool::new(false);
        let filled = stream::iter(by_shard.into_values().map(Ok))
            .try_for_each_concurrent(shards_at_once(&run.manifest), |grains| async {
                // Grains without room are not read twice: they will be misses in their turn.
                if is_full.load(Relaxed) {
                    return Ok(());
                }
                let (all, fitting) = (grains.len(), self.that_fit(run, epoch, grains).await);
                if fitting.len() < all || !self.obtain(run, epoch, fitting).await?.is_empty() {
                    is_full.store(true, Relaxed);
                }
                Ok(())
            })
            .await;
        run.stretches.note(Work::Fill, epoch, None, missing.len() as u64, began);
        filled
    }

    /// Those of `grains`, the first of them, that the cache takes, at once or when room has been made. A placement changes many
    /// times while nodes come and go, and each is filled for: otherwise all that a full disk does not take would be read for each.
    async fn that_fit(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        epoch: u32,
        mut grains: Vec<GrainNo>,
    ) -> Vec<GrainNo> {
        let bytes = grains.iter().map(|grain| run.resting_bytes(*grain)).sum::<u64>();
        if self.is_short(run, epoch) {
            // What was cut off would be a shard read again.
            grains.truncate(if self.cache.free() >= bytes { grains.len() } else { 0 });
            return grains;
        }
        // By the plan there is room under the limit, for each grain when it comes.
        if self.cache.disk_room().is_none_or(|room| room >= bytes) {
            return grains;
        }
        let (engine, state) = (Arc::clone(self), Arc::clone(run));
        let make_room = move || {
            let lacking = bytes.saturating_sub(engine.cache.disk_room().unwrap_or(bytes));
            engine.make_room(&state, engine.cache.free().saturating_add(lacking));
            engine.cache.disk_room()
        };
        let mut fits = fits_into(run, blocking(make_room).await.unwrap_or(bytes));
        let count = grains.iter().take_while(|grain| fits(grain)).count();
        grains.truncate(count);
        grains
    }

    /// Checks what this node hosts in `epoch`, little by little while it is being read, and brings again what its disk has
    /// spoilt: so that it is not missed when it is due. Ends with the epoch; loaders verify what they read
    /// of the unreached grains.
    pub(crate) async fn scrub(self: &Arc<Self>, run: &Arc<RunState>, epoch: u32) -> Result<(), EngineError> {
        let hosted = run.hosted_grains(&self.node, epoch);
        for some in hosted.chunks(SCRUBBED_AT_ONCE) {
            if run.ranks.progress.borrow().furthest().is_none_or(|(furthest, _)| furthest > epoch) {
                break;
            }
            let began = Instant::now();
            let unchecked =
                some.iter().copied().filter(|grain| !run.checked.was_checked(*grain, epoch)).collect();
            let corrupt = self.discard_corrupt(run, epoch, unchecked).await;
            if !corrupt.is_empty() {
                self.obtain(run, epoch, corrupt).await?;
            }
            sleep((began.elapsed() * SCRUB_REST).max(SCRUB_PAUSE)).await;
        }
        Ok(())
    }
}

/// Counts one fill for as long as it lives.
struct Filling<'a>(&'a AtomicUsize);

impl<'a> Filling<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// How long after its start a node may not have met all others yet, and how soon it tries again.
const MEETING: Duration = Duration::from_secs(3);
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// How many nodes are asked that need not have a grain, before the store is.
const NEIGHBOURS: usize = 3;

/// How many shards are read at once, to fill a cache or for a step: four large ones, and up to sixteen small ones.
/// A link of 400 Mbit/s holds 5 MB in a round trip of 100 ms, and each shard costs two of these.
pub(super) const SHARDS_AT_ONCE: RangeInclusive<u32> = 4..=16;

/// The largest size of a small shard, in bytes.
const SMALL_SHARD: u64 = 4 << 20;

/// How many of the [most](SHARDS_AT_ONCE) shards at once this one counts for, by the memory that it takes.
pub(super) fn permits_of(shard: &ShardEntry) -> u32 {
    permits_of_bytes(shard.bytes.max(shard.row_bytes))
}

fn permits_of_bytes(bytes: u64) -> u32 {
    let large = SHARDS_AT_ONCE.end() / SHARDS_AT_ONCE.start();
    u32::try_from(bytes.div_ceil(SMALL_SHARD)).unwrap_or(large).clamp(1, large)
}

/// How many grains are checked in one go, how many times as long as that took nothing is checked then, and for how long at least.
const SCRUBBED_AT_ONCE: usize = 64;
const SCRUB_REST: u32 = 20;
const SCRUB_PAUSE: Duration = Duration::from_millis(20);

/// How many shards of this version are read at once, by the largest one.
fn shards_at_once(manifest: &Manifest) -> usize {
    let most = manifest.shards.iter().map(permits_of).max().unwrap_or(1);
    (SHARDS_AT_ONCE.end() / most) as usize
}

fn rows_of(run: &RunState, grain: GrainNo) -> Range<u32> {
    let place = run.plan.locate_grain(grain);
    let first = place.index * run.plan.document().grain_rows;
    first..first + place.rows
}

/// Whether a grain fits into what the grains before it have left of `room` bytes.
fn fits_into(run: &RunState, mut room: u64) -> impl FnMut(&GrainNo) -> bool {
    move |grain| {
        let left = room.checked_sub(run.resting_bytes(*grain));
        room = left.unwrap_or(0);
        left.is_some()
    }
}

fn settle(absorbed: Absorbed, left: &mut BTreeSet<GrainNo>, loose: &mut HashMap<GrainNo, Bytes>) {
    for grain in absorbed.stored {
        left.remove(&grain);
    }
    for (grain, bytes) in absorbed.unstored {
        left.remove(&grain);
        loose.insert(grain, bytes);
    }
}

/// Collects values by key, both in order.
pub(crate) fn group<K: Ord, V>(pairs: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, Vec<V>> {
    let mut groups: BTreeMap<K, Vec<V>> = BTreeMap::new();
    for (key, value) in pairs {
        groups.entry(key).or_default().push(value);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_small_shards_or_four_large_ones_are_read_at_once() {
        let at_once = |bytes| SHARDS_AT_ONCE.end() / permits_of_bytes(bytes);
        assert_eq!([0, 1, SMALL_SHARD, 2 * SMALL_SHARD].map(at_once), [16, 16, 16, 8]);
        assert_eq!([4 * SMALL_SHARD, u64::MAX].map(at_once), [4, 4]);
    }
}
