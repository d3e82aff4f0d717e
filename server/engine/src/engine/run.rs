//! One run on one node: its plan and manifest, its placement, the progress of its loaders, and the grains on
//! their way here.

pub(crate) mod checked;
pub(crate) mod connections;
pub(crate) mod filling;
pub(crate) mod held;
pub(crate) mod in_flight;
pub(crate) mod keeping;
pub(crate) mod known_shards;
pub(crate) mod outbox;
mod rank_pace;
pub(crate) mod ranks;
pub(crate) mod reading;
pub(crate) mod store_epochs;
pub(crate) mod unacknowledged;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};

use shardd_api::capacity::{Needs, ShardRows, resting_bytes_of};
use shardd_api::node::NodeId;
use shardd_api::protocol::{Placement, RanksRecord, RunRecord};
use shardd_api::status::Reader;
use shardd_plan::{GrainNo, NextMove, Partition, Plan};
use shardfmt::grain::GrainError;
use shardfmt::{Grain, GrainKey, Manifest, ShardEntry, ShardId};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::epochs::Epochs;
use super::misses::Misses;
use super::timeline::Stretches;
use crate::cache::Class;
use crate::peers::{FetchMode, FetchRequest};
use checked::Checked;
use connections::Connections;
use filling::Filling;
use held::Held;
use in_flight::InFlight;
use keeping::KeptGrains;
use known_shards::KnownShards;
use outbox::Outbox;
use ranks::Ranks;
use reading::Reading;
use store_epochs::StoreEpochs;
use unacknowledged::Unacknowledged;

pub(crate) struct RunState {
    pub(crate) record: RunRecord,
    pub(crate) plan: Arc<Plan>,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) epochs: Epochs,
    pub(crate) needs: Needs,
    shard_numbers: HashMap<ShardId, u32>,
    /// The placement in force and the one before it, whose hosts may still have their grains.
    pub(crate) placement: watch::Sender<Placements>,
    /// The ranks that read here.
    pub(crate) ranks: Ranks,
    /// The connections that they keep open to this node.
    pub(crate) connections: Connections,
    /// Grains being fetched, so that no grain is fetched twice.
    pub(crate) in_flight: InFlight,
    /// Woken whenever peers brought grains.
    pub(crate) arrived: Notify,
    /// The grains whose bytes in the cache were checked.
    pub(crate) checked: Checked,
    /// The shards read from the store.
    pub(crate) shards: ShardReads,
    /// Grains that left by plan but whose new host has not acknowledged them.
    pub(crate) unacknowledged: Unacknowledged,
    /// The fill under way, while the run is being driven.
    pub(crate) filling: Filling,
    /// The grains that were not here when wanted.
    pub(crate) misses: Misses,
    /// The work done for it, with its times.
    pub(crate) stretches: Stretches,
    /// The traffic to the store by epoch.
    pub(crate) store_epochs: StoreEpochs,
    /// The queue of grains to send, while the run is being driven.
    outbox: Mutex<Weak<Outbox>>,
    /// Cancelled when it was removed: nothing more is brought here for it.
    pub(super) removed: CancellationToken,
    /// The grains kept here, where there is no room for all.
    pub(super) keeping: KeptGrains,
    /// The partitions whose grains are here.
    pub(super) held: Held,
}

/// The shards that this node reads, or has read, from the store.
#[derive(Default)]
pub(crate) struct ShardReads {
    /// Those that it read whole: it does not read them whole again.
    pub(crate) whole: Mutex<HashSet<u32>>,
    /// Those that it is reading.
    pub(crate) under_way: Mutex<HashMap<u32, Arc<Reading>>>,
    /// Those of which it knows where each grain lies.
    pub(crate) known: Mutex<KnownShards>,
}

/// Grains that leave with this number of parts of an exchange lie apart.
const MOST_CLASSES: u32 = 16;

/// The placement in force, and the one it replaced.
#[derive(Debug, Clone, Default)]
pub(crate) struct Placements {
    pub(crate) now: Option<Arc<Placement>>,
    pub(crate) before: Option<Arc<Placement>>,
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
            held: Held::of(plan.document().partitions),
            needs: Needs::of(&plan, manifest.shards.iter().map(rows_of)),
            plan,
            manifest,
            shard_numbers,
            placement: watch::Sender::new(Placements::default()),
            ranks: Ranks::new(),
            connections: Connections::default(),
            in_flight: InFlight::default(),
            arrived: Notify::new(),
            checked: Checked::of(grains),
            shards: ShardReads::default(),
            unacknowledged: Unacknowledged::default(),
            filling: Filling::default(),
            misses: Misses::default(),
            stretches: Stretches::default(),
            store_epochs: StoreEpochs::default(),
            outbox: Mutex::default(),
            removed: CancellationToken::new(),
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
        let shard = self.shard_number(key.shard)?;
        let entry = &self.manifest.shards[shard as usize];
        let known = key.rows == self.plan.document().grain_rows && key.index < entry.rows.div_ceil(key.rows);
        known.then(|| self.plan.grain_no(shard, key.index))
    }

    /// The number of a shard in the version, if it has it.
    pub(crate) fn shard_number(&self, shard: ShardId) -> Option<u32> {
        self.shard_numbers.get(&shard).copied()
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
        self.ranks.launched(ranks, || self.keeping.begin());
    }

    /// The ranks of which was heard here, in their order.
    pub(crate) fn readers(&self) -> Vec<Reader> {
        self.ranks.readers(&self.record.id, self.plan.sample_count())
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
        resting_bytes_of(place.rows, rows_of(self.entry(place.shard)), self.plan.document().grain_rows)
    }

    /// These rows of a grain, in order and each once; `None` if there are none, or some are not in the grain.
    pub(super) fn some_rows(&self, grain: GrainNo, rows: &[u32]) -> Option<Vec<u32>> {
        let count = self.plan.locate_grain(grain).rows;
        let are_some = !rows.is_empty() && rows.iter().all(|row| *row < count);
        let in_order = || rows.iter().copied().collect::<BTreeSet<u32>>().into_iter().collect();
        are_some.then(in_order)
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

/// The shard as a cache sees it.
pub(super) fn rows_of(shard: &ShardEntry) -> ShardRows {
    ShardRows { rows: shard.rows, row_bytes: shard.row_bytes }
}
