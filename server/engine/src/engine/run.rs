//! One run on one node: its plan and manifest, its placement, the progress of its loaders, and the grains on
//! their way here.

pub(crate) mod keeping;
pub(crate) mod known_shards;
pub(crate) mod outbox;
pub(crate) mod reading;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use shardd_api::local_transport::Transport;
use shardd_api::node::NodeId;
use shardd_api::protocol::{Placement, RanksRecord, RunRecord};
use shardd_api::status::Reader;
use shardd_plan::{GrainNo, NextMove, Partition, Plan};
use shardfmt::grain::GrainError;
use shardfmt::{Grain, GrainKey, Manifest, ShardEntry, ShardId};
use tokio::sync::{Notify, watch};
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::capacity::Needs;
use super::epochs::Epochs;
use super::misses::Misses;
use super::timeline::Stretches;
use crate::cache::{Class, resting_bytes};
use crate::peers::{FetchMode, FetchRequest};
use keeping::KeptGrains;
use known_shards::KnownShards;
use outbox::Outbox;
use reading::Reading;

pub(crate) struct RunState {
    pub(crate) record: RunRecord,
    pub(crate) plan: Arc<Plan>,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) epochs: Epochs,
    pub(crate) needs: Needs,
    shard_numbers: HashMap<ShardId, u32>,
    /// The placement in force and the one before it, whose hosts may still have their grains.
    pub(crate) placement: watch::Sender<Placements>,
    /// When a rank was last heard of on this node.
    heard: Mutex<Instant>,
    pub(crate) progress: watch::Sender<Progress>,
    /// Grains being fetched, so that no grain is fetched twice.
    pub(crate) in_flight: InFlight,
    /// Woken whenever peers brought grains.
    pub(crate) arrived: Notify,
    /// For each grain the epoch, plus one, in which its bytes in the cache were last checked.
    checked: Vec<AtomicU32>,
    /// Shards that this node read whole: it does not read them whole again.
    pub(crate) shards_read: Mutex<HashSet<u32>>,
    pub(crate) reading: Mutex<HashMap<u32, Arc<Reading>>>,
    pub(crate) known_shards: Mutex<KnownShards>,
    /// The placement and the epoch for which the cache was last looked through for what this node hosts no more.
    tidied: Mutex<Option<(u64, u32)>>,
    /// Grains that left by plan but whose new host has not acknowledged them, by the epoch after which they left.
    unacknowledged: Mutex<BTreeMap<u32, BTreeSet<GrainNo>>>,
    /// The fill under way, while the run is being driven.
    filling: Mutex<Filling>,
    /// The grains that were not here when wanted.
    pub(crate) misses: Misses,
    /// The work done for it, with its times.
    pub(crate) stretches: Stretches,
    /// The queue of grains to send, while the run is being driven.
    outbox: Mutex<Weak<Outbox>>,
    /// Cancelled when it was removed: nothing more is brought here for it.
    pub(super) removed: CancellationToken,
    /// How the ranks that read here get their grains.
    transports: Mutex<BTreeMap<u32, Transport>>,
    /// The grains kept here, where there is no room for all.
    pub(super) keeping: KeptGrains,
}

/// Grains that leave with this number of parts of an exchange lie apart.
const MOST_CLASSES: u32 = 16;

/// The epoch and the generation for which the hosted grains are fetched, and whether the last attempt at it
/// has ended.
#[derive(Debug, Default)]
struct Filling {
    attempt: u64,
    goal: Option<(u32, u64)>,
    is_done: bool,
}

/// The placement in force, and the one it replaced.
#[derive(Debug, Clone, Default)]
pub(crate) struct Placements {
    pub(crate) now: Option<Arc<Placement>>,
    pub(crate) before: Option<Arc<Placement>>,
}

/// How far each rank that reads here has come, and where the launch began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    world: u32,
    /// The launch that the reports belong to.
    launch: u64,
    /// The furthest that any rank has come; ranks that leave do not turn it back.
    furthest: Option<(u32, u64)>,
    ranks: BTreeMap<u32, (u32, u64)>,
}

impl Progress {
    fn of_launch(launch: u64, world: u32, epoch: u32) -> Self {
        Self { world, launch, furthest: Some((epoch, 0)), ranks: BTreeMap::new() }
    }

    /// The (epoch, position) of the rank that is ahead: what the exchange is timed by.
    pub(crate) fn furthest(&self) -> Option<(u32, u64)> {
        self.furthest
    }

    /// The epoch of the rank that is behind: what came before may be forgotten.
    /// A rank that asked here once, when its own node was away, holds nothing up: the one before the furthest counts at least.
    pub(crate) fn slowest_epoch(&self) -> Option<u32> {
        let slowest = self.ranks.values().map(|(epoch, _)| *epoch).min()?;
        Some(slowest.max(self.furthest.map_or(0, |(epoch, _)| epoch.saturating_sub(1))))
    }

    pub(crate) fn rank(&self, rank: u32) -> Option<(u32, u64)> {
        self.ranks.get(&rank).copied()
    }
}

impl RunState {
    /// A request for `grains` to another node.
    pub(crate) fn request(&self, epoch: u32, grains: &[GrainNo], effort: FetchMode) -> FetchRequest {
        FetchRequest {
            run: self.record.id.clone(),
            version: self.record.version,
            epoch,
            generation: self.generation(),
            keys: grains.iter().map(|grain| self.key(*grain)).collect(),
            effort,
        }
    }

    pub(crate) fn new(record: RunRecord, plan: Plan, manifest: Arc<Manifest>) -> Self {
        let plan = Arc::new(plan);
        let grains = usize::try_from(plan.grain_count()).expect("grain numbers fit in memory");
        let shard_numbers =
            (0u32..).zip(&manifest.shards).map(|(number, shard)| (shard.id, number)).collect();
        Self {
            record,
            epochs: Epochs::new(Arc::clone(&plan)),
            needs: Needs::of(&plan, &manifest),
            plan,
            manifest,
            shard_numbers,
            placement: watch::Sender::new(Placements::default()),
            heard: Mutex::new(Instant::now()),
            progress: watch::Sender::new(Progress::default()),
            in_flight: InFlight::default(),
            arrived: Notify::new(),
            checked: (0..grains).map(|_| AtomicU32::new(0)).collect(),
            shards_read: Mutex::default(),
            reading: Mutex::default(),
            known_shards: Mutex::default(),
            tidied: Mutex::default(),
            unacknowledged: Mutex::default(),
            filling: Mutex::default(),
            misses: Misses::default(),
            stretches: Stretches::default(),
            outbox: Mutex::default(),
            removed: CancellationToken::new(),
            transports: Mutex::default(),
            keeping: KeptGrains::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.record.id.as_str()
    }

    pub(crate) fn key(&self, grain: GrainNo) -> GrainKey {
        let place = self.plan.locate_grain(grain);
        GrainKey {
            shard: self.manifest.shards[place.shard as usize].id,
            rows: self.plan.document().grain_rows,
            index: place.index,
        }
    }

    /// The grain a key names, if it is one of this run's plan.
    pub(crate) fn grain(&self, key: &GrainKey) -> Option<GrainNo> {
        let shard = *self.shard_numbers.get(&key.shard)?;
        let entry = &self.manifest.shards[shard as usize];
        let known = key.rows == self.plan.document().grain_rows && key.index < entry.rows.div_ceil(key.rows);
        known.then(|| self.plan.grain_no(shard, key.index))
    }

    pub(crate) fn shard_of(&self, grain: GrainNo) -> u32 {
        self.plan.locate_grain(grain).shard
    }

    pub(crate) fn entry(&self, shard: u32) -> &ShardEntry {
        &self.manifest.shards[shard as usize]
    }

    /// Checks a grain's bytes against the manifest.
    pub(crate) fn verify(&self, grain: GrainNo, bytes: &[u8]) -> Result<(), GrainError> {
        let entry = self.entry(self.shard_of(grain));
        Grain::parse(bytes)?.verify(self.key(grain), entry.rows, entry.root)
    }

    pub(crate) fn was_checked(&self, grain: GrainNo, epoch: u32) -> bool {
        self.checked[grain.0 as usize].load(Relaxed) > epoch
    }

    pub(crate) fn mark_checked(&self, grain: GrainNo, epoch: u32) {
        self.checked[grain.0 as usize].fetch_max(epoch + 1, Relaxed);
    }

    /// Whatever was checked has to be checked again.
    pub(crate) fn doubt(&self, grains: impl IntoIterator<Item = GrainNo>) {
        grains.into_iter().for_each(|grain| self.checked[grain.0 as usize].store(0, Relaxed));
    }

    pub(crate) fn keep_unacknowledged(&self, epoch: u32, grains: impl IntoIterator<Item = GrainNo>) {
        let mut all = self.unacknowledged.lock().expect("no panic while held");
        all.entry(epoch).or_default().extend(grains);
    }

    /// Their next host has these grains, which leave after `epoch`.
    pub(crate) fn acknowledged(&self, epoch: u32, grains: &[GrainNo]) {
        let mut all = self.unacknowledged.lock().expect("no panic while held");
        if let Some(left) = all.get_mut(&epoch) {
            grains.iter().for_each(|grain| {
                left.remove(grain);
            });
        }
    }

    /// Whether the grain left a partition of this node and its next host may not have it yet.
    pub(crate) fn is_unacknowledged(&self, grain: GrainNo) -> bool {
        let all = self.unacknowledged.lock().expect("no panic while held");
        all.values().any(|grains| grains.contains(&grain))
    }

    /// Takes the unacknowledged grains of the epochs up to `through`.
    pub(crate) fn take_unacknowledged(&self, through: u32) -> BTreeSet<GrainNo> {
        let mut all = self.unacknowledged.lock().expect("no panic while held");
        let later = all.split_off(&(through + 1));
        std::mem::replace(&mut *all, later).into_values().flatten().collect()
    }

    /// The hosted grains are being fetched for an epoch and a generation: the number of this attempt.
    pub(crate) fn begins_to_fill(&self, epoch: u32, generation: u64) -> u64 {
        let mut filling = self.filling.lock().expect("no panic while held");
        filling.attempt += 1;
        (filling.goal, filling.is_done) = (Some((epoch, generation)), false);
        filling.attempt
    }

    /// An attempt has fetched all it could. It does not count for attempts begun since.
    pub(crate) fn has_brought(&self, attempt: u64) {
        let mut filling = self.filling.lock().expect("no panic while held");
        filling.is_done |= filling.attempt == attempt;
    }

    /// No task fetches any more.
    pub(crate) fn fills_no_more(&self) {
        let mut filling = self.filling.lock().expect("no panic while held");
        filling.attempt += 1;
        (filling.goal, filling.is_done) = (None, false);
    }

    /// Whether the hosted grains of an epoch and generation were fetched, where possible.
    pub(crate) fn has_filled(&self, epoch: u32, generation: u64) -> bool {
        let filling = self.filling.lock().expect("no panic while held");
        filling.is_done && filling.goal == Some((epoch, generation))
    }

    /// From now on it is sent from there.
    pub(super) fn sends_from(&self, outbox: &Arc<Outbox>) {
        *self.outbox.lock().expect("no panic while held") = Arc::downgrade(outbox);
    }

    /// Bytes that have yet to be sent.
    pub(crate) fn bytes_to_send(&self) -> u64 {
        let outbox = self.outbox.lock().expect("no panic while held").upgrade();
        outbox.map_or(0, |outbox| outbox.backlog())
    }

    /// The placement in force.
    pub(crate) fn placement(&self) -> Option<Arc<Placement>> {
        self.placement.borrow().now.clone()
    }

    /// The generation of the placement in force; 0 before the first.
    pub(crate) fn generation(&self) -> u64 {
        self.placement().map_or(0, |placement| placement.generation)
    }

    pub(crate) fn set_placement(&self, next: Placement) {
        self.placement.send_if_modified(|placements| {
            let newer = placements.now.as_ref().is_none_or(|now| now.generation < next.generation);
            if newer {
                placements.before = placements.now.replace(Arc::new(next));
            }
            newer
        });
    }

    /// A launch began, or came further: forget what ranks of an earlier one reported.
    pub(crate) fn launched(&self, ranks: &RanksRecord) {
        self.progress.send_if_modified(|progress| {
            let begins = progress.launch < ranks.launch;
            // Where no rank reports, the others' word counts.
            let moves = progress.ranks.is_empty() && progress.furthest < Some((ranks.reached, 0));
            if begins || moves {
                *progress = Progress::of_launch(ranks.launch, ranks.world, ranks.reached);
            }
            if begins {
                self.keeping.begin();
            }
            begins || moves
        });
    }

    /// A rank says how far it has come. Late reports change nothing; one of another world is the first that is heard of its
    /// launch.
    pub(crate) fn report(&self, rank: u32, world: u32, epoch: u32, position: u64) {
        *self.heard.lock().expect("no panic while held") = Instant::now();
        self.progress.send_if_modified(|progress| {
            if progress.world != world {
                *progress = Progress::of_launch(progress.launch, world, epoch);
            }
            let before = progress.ranks.get(&rank).copied();
            let now = before.max(Some((epoch, position)));
            progress.ranks.insert(rank, now.expect("Some is the greater"));
            progress.furthest = progress.furthest.max(now);
            now != before
        });
    }

    /// How a rank gets its grains from here, as it says itself.
    pub(crate) fn note_transport(&self, rank: u32, transport: Transport) {
        self.transports.lock().expect("no panic while held").insert(rank, transport);
    }

    /// The ranks of which was heard here, in their order.
    pub(crate) fn readers(&self) -> Vec<Reader> {
        let transports = self.transports.lock().expect("no panic while held").clone();
        let reader = |(rank, (epoch, _)): (&u32, &(u32, u64))| Reader {
            run: self.record.id.clone(),
            rank: *rank,
            epoch: *epoch,
            transport: transports.get(rank).copied().unwrap_or_default(),
        };
        self.progress.borrow().ranks.iter().map(reader).collect()
    }

    /// How long ago a rank was heard of on this node.
    pub(crate) fn quiet_for(&self) -> Duration {
        self.heard.lock().expect("no panic while held").elapsed()
    }

    /// Whether ranks that read here were heard of within this time.
    pub(crate) fn was_heard_within(&self, time: Duration) -> bool {
        !self.progress.borrow().ranks.is_empty() && self.quiet_for() < time
    }

    /// A rank has gone: no node waits for it any more.
    pub(crate) fn rank_left(&self, rank: u32) {
        self.progress.send_if_modified(|progress| progress.ranks.remove(&rank).is_some());
    }

    /// Whether `node` hosts the grain in `epoch`.
    pub(crate) fn is_hosted_by(&self, node: &NodeId, grain: GrainNo, epoch: u32) -> bool {
        let partition = self.epochs.view(epoch).partition_of(grain);
        self.placement().is_some_and(|placement| placement.host(partition) == node)
    }

    /// The class under which a grain is kept for `epoch`: it leaves when the plan moves it, also where it is only kept for a
    /// host that cannot be reached.
    pub(crate) fn class(&self, grain: GrainNo, epoch: u32) -> Class {
        let departs = self.epochs.view(epoch).departs(&self.plan, grain);
        Class::until(self.name(), departs)
    }

    /// The same on a node that has no room for all that it hosts: grains that leave the node together share segments, down to the
    /// chunk, so that grains that have left make room for arriving ones while the epoch is still being read.
    /// A grain that moves from one of its partitions to another stays in its place.
    pub(crate) fn class_on(&self, node: &NodeId, grain: GrainNo, epoch: u32) -> Class {
        let view = self.epochs.view(epoch);
        let Some(placement) = self.placement() else { return self.class(grain, epoch) };
        if placement.host(view.partition_of(grain)) != node {
            return self.class(grain, epoch);
        }
        let is_here = |partition: Partition| placement.host(partition.0) == node;
        let leaves = match placement.hosts.len() {
            1 => None,
            _ => view.leaves(&self.plan, grain, is_here),
        };
        match leaves {
            Some(NextMove { epoch, chunk, .. }) => {
                let chunks = self.plan.document().chunks;
                let together = u64::from(chunk) * u64::from(chunks.min(MOST_CLASSES)) / u64::from(chunks);
                Class { chunk: u32::try_from(together).ok(), ..Class::until(self.name(), epoch.0) }
            }
            None => Class::until(self.name(), Class::NEVER),
        }
    }

    /// How many bytes of a cache a grain takes, by the mean row of its shard.
    pub(crate) fn resting_bytes(&self, grain: GrainNo) -> u64 {
        let place = self.plan.locate_grain(grain);
        let entry = self.entry(place.shard);
        let resting = resting_bytes(entry.rows, entry.row_bytes, self.plan.document().grain_rows);
        (u128::from(resting) * u128::from(place.rows)).div_ceil(u128::from(entry.rows.max(1))) as u64
    }

    /// These rows of a grain, in order and each once; `None` if there are none, or some are not in the grain.
    pub(super) fn some_rows(&self, grain: GrainNo, rows: &[u32]) -> Option<Vec<u32>> {
        let count = self.plan.locate_grain(grain).rows;
        let are_some = !rows.is_empty() && rows.iter().all(|row| *row < count);
        let in_order = || rows.iter().copied().collect::<BTreeSet<u32>>().into_iter().collect();
        are_some.then(in_order)
    }

    /// Whether the cache has not been looked through yet for this placement and epoch; from now on it has.
    pub(crate) fn is_first_tidied(&self, generation: u64, epoch: u32) -> bool {
        let mut tidied = self.tidied.lock().expect("no panic while held");
        tidied.replace((generation, epoch)) != Some((generation, epoch))
    }

    /// The nodes that host a grain of the shard in `epoch`, sorted.
    pub(crate) fn hosts_of_shard(&self, shard: u32, epoch: u32) -> BTreeSet<NodeId> {
        let Some(placement) = self.placement() else { return BTreeSet::new() };
        let view = self.epochs.view(epoch);
        self.grains_of_shard(shard).map(|grain| placement.host(view.partition_of(grain)).clone()).collect()
    }

    /// The shard's reader: its only host, or one of its hosts by rendezvous hashing (Thaler and Ravishankar, 1998).
    pub(crate) fn reader(&self, shard: u32, epoch: u32) -> Option<NodeId> {
        let id = self.entry(shard).id;
        let score = |node: &NodeId| {
            let mut hasher = blake3::Hasher::new_derive_key("shardd 2026 shard reader v1");
            hasher.update(&id.0.0).update(node.as_str().as_bytes());
            *hasher.finalize().as_bytes()
        };
        self.hosts_of_shard(shard, epoch).into_iter().max_by_key(score)
    }

    pub(crate) fn grains_of_shard(&self, shard: u32) -> impl Iterator<Item = GrainNo> + use<> {
        let first = self.plan.grain_no(shard, 0).0;
        let count = self.entry(shard).rows.div_ceil(self.plan.document().grain_rows);
        (first..first + u64::from(count)).map(GrainNo)
    }

    /// The grains that `node` hosts in `epoch`, ascending.
    pub(crate) fn hosted_grains(&self, node: &NodeId, epoch: u32) -> Vec<GrainNo> {
        let Some(placement) = self.placement() else { return Vec::new() };
        let view = self.epochs.view(epoch);
        (0..self.plan.grain_count())
            .map(GrainNo)
            .filter(|grain| placement.host(view.partition_of(*grain)) == node)
            .collect()
    }
}

/// The set of grains that tasks on this node are fetching.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    grains: Mutex<HashSet<GrainNo>>,
    done: Notify,
}

impl InFlight {
    /// Claims those of `wanted` that no task fetches yet; the others are returned beside the claim.
    pub(crate) fn claim(&self, wanted: impl IntoIterator<Item = GrainNo>) -> (Claim<'_>, Vec<GrainNo>) {
        let mut grains = self.grains.lock().expect("no panic while held");
        let (mine, others) = wanted.into_iter().partition(|grain| grains.insert(*grain));
        (Claim { in_flight: self, grains: mine }, others)
    }

    /// Waits until none of `grains` is in flight.
    pub(crate) async fn landed(&self, grains: &[GrainNo]) {
        loop {
            let mut notified = std::pin::pin!(self.done.notified());
            notified.as_mut().enable();
            let busy = {
                let flying = self.grains.lock().expect("no panic while held");
                grains.iter().any(|grain| flying.contains(grain))
            };
            if !busy {
                return;
            }
            notified.await;
        }
    }
}

/// Grains that the holder fetches. Dropping it, also halfway, lets others try.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    in_flight: &'a InFlight,
    pub(crate) grains: Vec<GrainNo>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut grains = self.in_flight.grains.lock().expect("no panic while held");
        for grain in &self.grains {
            grains.remove(grain);
        }
        drop(grains);
        self.in_flight.done.notify_waiters();
    }
}
