//! Answers loaders: where are these grains? It names a segment where loaders may map it, and sends bytes
//! otherwise; missing grains are fetched first. Loaders verify every grain against the manifest, so only the
//! grains that a loader doubts are verified here too. To verify all would read each grain twice.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use shardd_api::explain::Wanted;
use shardd_api::local_transport::Transport;
use shardd_api::protocol::{LocateReply, LocateRequest, Located, MAX_EPOCH, RunId};
use shardd_plan::GrainNo;
use shardfmt::GrainKey;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::counters::micros;
use super::obtain::Keep;
use super::run::RunState;
use super::{Counters, Engine, EngineError, blocking};
use crate::cache::{CacheError, Location};

/// How long a grain is waited for that the exchange has yet to bring, while the rank that asks is still in the epoch before.
const EARLY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long it is waited for once its epoch has begun; then it is a miss like any other.
const DUE_TIMEOUT: Duration = Duration::from_millis(300);

impl Engine {
    /// Notes how far a rank has come and says where grains are; the second value holds the inline ones' bytes, in order.
    ///
    /// # Errors
    /// [`EngineError::UnknownRun`], a rank outside the world, grain numbers outside the plan, and what reading the store gives.
    pub async fn locate(
        self: &Arc<Self>,
        run: &RunId,
        request: LocateRequest,
    ) -> Result<(LocateReply, Vec<Bytes>), EngineError> {
        let run = self.run(run).await?;
        run.plan.check_ranks(request.world, run.record.virtual_ranks)?;
        if request.rank >= request.world {
            return Err(EngineError::RankOutside { rank: request.rank, world: request.world });
        }
        if request.for_epoch > request.epoch.saturating_add(1) || request.for_epoch >= MAX_EPOCH {
            return Err(EngineError::EpochOutside { epoch: request.for_epoch, reached: request.epoch });
        }
        if let Some(grain) = request.grains.iter().find(|grain| **grain >= run.plan.grain_count()) {
            return Err(EngineError::NoSuchGrain { grain: *grain, grains: run.plan.grain_count() });
        }
        self.know_placement(&run, 1).await;
        run.ranks.report(request.rank, request.world, request.epoch, request.position);
        run.ranks.note_transport(request.rank, request.transport);
        if let Some(time) = request.loop_time {
            let samples = run.plan.sample_count();
            run.ranks.note_loop_time(request.rank, time, samples, (request.epoch, request.position));
        } else if request.grains.is_empty() {
            run.ranks.reported_without_time(request.rank);
        }

        let grains: Vec<GrainNo> = request.grains.iter().copied().map(GrainNo).collect();
        if request.doubted {
            run.checked.doubt(grains.iter().copied());
        }
        let reading = self.reads.begin(&run, &self.cache, &grains);
        let mut passing = self.passing_by(&run, request.for_epoch, &grains, &request.rows);
        let kept = |passing: &BTreeMap<GrainNo, Vec<u32>>| -> Vec<GrainNo> {
            grains.iter().copied().filter(|grain| !passing.contains_key(grain)).collect()
        };
        self.await_exchange(&run, &request, &kept(&passing)).await;
        let late = self.bring_late(&run, request.for_epoch, &grains, &request.rows, &mut passing).await;
        let kept: Vec<GrainNo> =
            kept(&passing).into_iter().filter(|grain| !late.contains_key(grain)).collect();
        let (mut loose, sparse) = tokio::try_join!(
            self.obtain_for(
                (Wanted::ToRead, Keep::NotOfHosts),
                &run,
                request.for_epoch,
                kept.iter().copied()
            ),
            self.read_past(&run, request.for_epoch, &passing),
        )?;
        if request.doubted {
            self.check(&run, request.for_epoch, &kept, &mut loose).await?;
        }
        loose.extend(late);

        let lent = |grain: &GrainNo| match request.transport {
            Transport::Stream => None,
            Transport::Files | Transport::Ring => {
                let at = self.cache.get(&run.key(*grain))?;
                Some(Located::File { segment: self.pass(&at.segment)?, offset: at.offset, len: at.len })
            }
        };
        let whole = || grains.iter().copied().filter(|grain| !sparse.contains_key(grain));
        let files: BTreeMap<GrainNo, Located> =
            whole().filter_map(|grain| Some((grain, lent(&grain)?))).collect();
        let sent = whole().filter(|grain| !files.contains_key(grain) && !loose.contains_key(grain));
        let read = self.read_cached(&run, sent).await;
        loose.extend(read);

        let mut reply = Vec::with_capacity(grains.len());
        let mut inline = Vec::new();
        let len = |bytes: &Bytes| u32::try_from(bytes.len()).expect("a grain is smaller than 4 GiB");
        for grain in grains {
            if let Some(bytes) = sparse.get(&grain) {
                inline.push(bytes.clone());
                reply.push(Located::Rows { len: len(bytes) });
                continue;
            }
            let located = match files.get(&grain) {
                Some(file) => file.clone(),
                None => {
                    let bytes = match loose.get(&grain) {
                        Some(bytes) => bytes.clone(),
                        // Dropped in between: rare, and one more miss.
                        None => self.fetch_bytes(&run, request.for_epoch, grain).await?,
                    };
                    inline.push(bytes.clone());
                    Located::Inline { len: len(&bytes) }
                }
            };
            reply.push(located);
        }
        self.reads.end(reading, reply.iter().map(Located::len));
        let by_rows = self.is_short(&run, request.for_epoch);
        let reply = LocateReply {
            generation: run.generation(),
            grains: reply,
            by_rows,
            takes_loop_time: true,
            takes_notes: true,
        };
        Ok((reply, inline))
    }

    /// The bytes of grains, checked against the manifest, for someone who reads along.
    pub(crate) async fn bytes_of(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        epoch: u32,
        grains: &[GrainNo],
    ) -> Result<HashMap<GrainNo, Bytes>, EngineError> {
        let mut all =
            self.obtain_for((Wanted::ToRead, Keep::All), run, epoch, grains.iter().copied()).await?;
        self.check(run, epoch, grains, &mut all).await?;
        let cached = grains.iter().copied().filter(|grain| !all.contains_key(grain));
        let read = self.read_cached(run, cached).await;
        all.extend(read);
        for grain in grains {
            if !all.contains_key(grain) {
                all.insert(*grain, self.fetch_bytes(run, epoch, *grain).await?);
            }
        }
        Ok(all)
    }

    /// Waits for grains that the exchange is about to bring, within bounds.
    async fn await_exchange(&self, run: &Arc<RunState>, request: &LocateRequest, grains: &[GrainNo]) {
        let Some(before) = request.for_epoch.checked_sub(1) else { return };
        let Some(placement) = run.placement() else { return };
        let (view, view_before) = (run.epochs.view(request.for_epoch), run.epochs.view(before));
        let live = self.live_nodes();
        let coming: Vec<GrainNo> = grains
            .iter()
            .copied()
            .filter(|grain| {
                let from = placement.host(view_before.partition_of(*grain));
                let to = placement.host(view.partition_of(*grain));
                let comes = to == &self.node && from != to && live.contains(from);
                comes && self.keeps(run, request.for_epoch, *grain) && !self.is_resident(run, *grain)
            })
            .collect();
        if coming.is_empty() {
            return;
        }
        let early = Instant::now() + EARLY_TIMEOUT;
        let mut progress = run.ranks.progress.subscribe();
        let is_due = |progress: &super::run::ranks::Progress| {
            progress.rank(request.rank).is_none_or(|(epoch, _)| epoch >= request.for_epoch)
        };
        let began = tokio::select! {
            () = self.arrival(run, &coming) => return,
            _ = timeout_at(early, progress.wait_for(is_due)) => Instant::now(),
        };
        let _ = timeout_at(began + DUE_TIMEOUT, self.arrival(run, &coming)).await;
        let waited = began.elapsed();
        Counters::add_time(&self.counters.stalled_micros, waited);
        self.counters.exchange(run.name(), before, |counts| counts.waited_micros += micros(waited));
    }

    async fn arrival(&self, run: &RunState, coming: &[GrainNo]) {
        loop {
            let mut arrived = std::pin::pin!(run.arrived.notified());
            arrived.as_mut().enable();
            if coming.iter().all(|grain| self.is_resident(run, *grain)) {
                return;
            }
            arrived.await;
        }
    }

    /// Checks the cached bytes of grains not yet checked in this epoch; corrupt ones are dropped and fetched
    /// again.
    async fn check(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        epoch: u32,
        grains: &[GrainNo],
        loose: &mut HashMap<GrainNo, Bytes>,
    ) -> Result<(), EngineError> {
        let unchecked: Vec<GrainNo> = grains
            .iter()
            .copied()
            .filter(|grain| !run.checked.was_checked(*grain, epoch) && !loose.contains_key(grain))
            .collect();
        if unchecked.is_empty() {
            return Ok(());
        }
        let corrupt = self.discard_corrupt(run, epoch, unchecked).await;
        if !corrupt.is_empty() {
            loose.extend(self.obtain_for((Wanted::ToRead, Keep::All), run, epoch, corrupt).await?);
        }
        Ok(())
    }

    /// Checks the cached bytes of grains that have not been checked in this epoch, and drops those that are corrupt: these are
    /// returned.
    pub(crate) async fn discard_corrupt(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        epoch: u32,
        grains: Vec<GrainNo>,
    ) -> Vec<GrainNo> {
        let (engine, state) = (Arc::clone(self), Arc::clone(run));
        let is_bad = move |grain: &GrainNo| {
            let key = state.key(*grain);
            if state.checked.was_checked(*grain, epoch) {
                return false;
            }
            let Some((at, read)) = engine.read_now(&key) else { return false };
            let bad = match read {
                Ok(bytes) => state.verify(*grain, &bytes).err().map(|error| error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            match bad {
                None => {
                    state.checked.mark(*grain, epoch);
                    engine.cache.mark_verified(&key);
                    false
                }
                Some(reason) => {
                    warn!(grain = %key, segment = %at.segment.display(), offset = at.offset, reason,
                          "a cached grain is corrupt; dropped, fetching it again");
                    engine.cache.discard(&key);
                    true
                }
            }
        };
        let (engine, state) = (Arc::clone(self), Arc::clone(run));
        let check = move || {
            let keys: Vec<GrainKey> = grains.iter().map(|grain| state.key(*grain)).collect();
            engine.begin_to_read(&keys);
            grains.into_iter().filter(is_bad).collect::<Vec<_>>()
        };
        let corrupt = blocking(check).await;
        Counters::add(&self.counters.corrupt_on_disk, corrupt.len());
        corrupt
    }

    async fn fetch_bytes(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        epoch: u32,
        grain: GrainNo,
    ) -> Result<Bytes, EngineError> {
        loop {
            if let Some(bytes) = self.read_cached(run, [grain]).await.remove(&grain) {
                return Ok(bytes);
            }
            if let Some(bytes) =
                self.obtain_for((Wanted::ToRead, Keep::All), run, epoch, [grain]).await?.remove(&grain)
            {
                return Ok(bytes);
            }
        }
    }

    /// The bytes of those of the grains that are in the cache, unverified: the receiver verifies.
    pub(crate) async fn read_cached(
        self: &Arc<Self>,
        run: &RunState,
        grains: impl IntoIterator<Item = GrainNo>,
    ) -> HashMap<GrainNo, Bytes> {
        let wanted: Vec<(GrainNo, GrainKey)> =
            grains.into_iter().map(|grain| (grain, run.key(grain))).collect();
        if wanted.is_empty() {
            return HashMap::new();
        }
        let engine = Arc::clone(self);
        let read = move || {
            engine.begin_to_read(wanted.iter().map(|(_, key)| key));
            let read = |(grain, key): &(GrainNo, GrainKey)| Some((*grain, engine.read_or_discard(key)?));
            wanted.iter().filter_map(read).collect()
        };
        blocking(read).await
    }

    /// Has the disk read these grains side by side. One that is alone is read at once anyway.
    fn begin_to_read<'a>(&self, keys: impl IntoIterator<Item = &'a GrainKey>) {
        let places: Vec<Location> = keys.into_iter().filter_map(|key| self.cache.get(key)).collect();
        if places.len() > 1 {
            places.iter().for_each(|at| self.cache.will_need(at));
        }
    }

    /// The place of a grain and its bytes. One that is moved to another segment meanwhile is not gone: it is
    /// read there.
    fn read_now(&self, key: &GrainKey) -> Option<(Location, Result<Bytes, CacheError>)> {
        loop {
            let at = self.cache.get(key)?;
            let began = Instant::now();
            match self.cache.read(&at) {
                Err(CacheError::Gone { .. }) if self.cache.get(key).as_ref() != Some(&at) => {}
                read => {
                    self.neighbours.health.read_took(began.elapsed());
                    return Some((at, read));
                }
            }
        }
    }

    /// The same, blocking. What cannot be read is no longer here.
    fn read_or_discard(&self, key: &GrainKey) -> Option<Bytes> {
        let (_, read) = self.read_now(key)?;
        match read {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                if !self.upkeep.trouble_logged.swap(true, Relaxed) {
                    warn!(grain = %key, %error, "a cached grain could not be read");
                }
                self.cache.discard(key);
                None
            }
        }
    }
}
