//! What a training asks of its store, before it begins: requests by the class that services bill, and bytes, epoch by epoch.
//!
//! Nodes read each shard whole, once for all of them, where their caches have room. A node whose cache lacks room keeps the set
//! of grains that [`shardd_api::capacity::Kept`] gives it, which it reads by range in the first epoch, and reads each other row
//! by itself in every epoch. Counted here are the same sets and ranges, on the same placement. Knows no prices.
//!
//! Not in it are requests of chance: repetitions of failed ones, hedged reads, and rows that lie side by side and are due together,
//! which share one.

use std::collections::BTreeMap;
use std::ops::{Add, AddAssign, Range};

use serde::Serialize;
use shardd_api::capacity::{Kept, Needs, ShardRows, resting_bytes_of};
use shardd_plan::{Epoch, GrainNo, Order, Plan, SlotTable};
use shardfmt::joined::joined;

use super::cluster::Cluster;
use super::{LinkRate, Scenario, ScenarioError};

/// Requests of a training besides those for its data, as nodes and loaders make them.
mod fixed {
    use super::Asked;

    /// A node lists forgotten rows, and probes the store.
    pub(super) const NODE_STARTS: Asked = Asked { class_a: 2, class_b: 0, read_bytes: 0 };
    /// The one with the metadata looks for commits and for copies of the metadata, and copies its own.
    pub(super) const FIRST_NODE_STARTS: Asked = Asked { class_a: 3, class_b: 1, read_bytes: 0 };
    /// A rank reads plan and manifest twice through its node, and asks for the size of the manifest once.
    pub(super) const READS_OF_RANK: u64 = 2;
    pub(super) const SIZES_OF_RANK: u64 = 1;
    /// A node reads plan and manifest for a run; beside others twice, as peers ask it before it is done.
    pub(super) const READS_OF_NODE: [u64; 2] = [1, 2];
    /// The metadata is copied to the store when the run begins and when it ends...
    pub(super) const COPIES_OF_RUN: u64 = 2;
    /// ...and in each epoch.
    pub(super) const COPIES_OF_EPOCH: u64 = 1;
    /// While nothing changes, its keeper looks every five seconds whether another node keeps it now.
    pub(super) const LOOKS_PER_HOUR: u64 = 720;
}

/// A shard in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredShard {
    /// Its samples.
    pub rows: u32,
    /// Bytes of its file.
    pub bytes: u64,
    /// Bytes of its canonical rows.
    pub row_bytes: u64,
}

/// What reading one row by itself takes: its columns lie apart, and of a compressed record batch all is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRead {
    /// Ranges of the shard's file, each a request.
    pub ranges: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A training over stored shards.
#[derive(Clone, Debug)]
pub struct StoreScenario<'a> {
    /// The shards, in the order of the manifest.
    pub shards: &'a [StoredShard],
    /// A row that is read by itself.
    pub row: RowRead,
    /// Bytes of plan and manifest.
    pub document_bytes: u64,
    /// Nodes, each with one rank of the run.
    pub nodes: u32,
    /// Bytes of each node's cache for the run.
    pub cache_bytes: u64,
    /// Epochs that are trained.
    pub epochs: u32,
}

/// Requests, and the bytes of their answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Asked {
    /// PUT, COPY, POST and LIST.
    pub class_a: u64,
    /// GET and HEAD.
    pub class_b: u64,
    /// Bytes of bodies received.
    pub read_bytes: u64,
}

/// What a training asks of its store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoreReads {
    /// The caches need this number of bytes together to have room for all...
    pub needed_bytes: u64,
    /// ...and have this one.
    pub cache_bytes: u64,
    /// Nodes whose caches have no room for all that they host.
    pub short_nodes: u32,
    /// Bytes of all shards.
    pub stored_bytes: u64,
    /// When the nodes start.
    pub nodes_start: Asked,
    /// When the run begins, and when it ends.
    pub run: Asked,
    /// Each epoch.
    pub epochs: Vec<Asked>,
    /// In an hour in which nothing changes: polls of the node that keeps the metadata.
    pub per_hour: Asked,
    /// An epoch in which each rank reads every shard from the store by itself.
    pub naive_epoch: Asked,
}

impl Add for Asked {
    type Output = Asked;

    fn add(self, other: Asked) -> Asked {
        Asked {
            class_a: self.class_a.saturating_add(other.class_a),
            class_b: self.class_b.saturating_add(other.class_b),
            read_bytes: self.read_bytes.saturating_add(other.read_bytes),
        }
    }
}

impl AddAssign for Asked {
    fn add_assign(&mut self, other: Asked) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Asked {
    fn sum<I: Iterator<Item = Asked>>(all: I) -> Asked {
        all.fold(Asked::default(), Add::add)
    }
}

impl Asked {
    /// The same this number of times.
    #[must_use]
    pub fn times(self, times: u64) -> Asked {
        Asked {
            class_a: self.class_a.saturating_mul(times),
            class_b: self.class_b.saturating_mul(times),
            read_bytes: self.read_bytes.saturating_mul(times),
        }
    }

    /// All requests.
    #[must_use]
    pub fn requests(self) -> u64 {
        self.class_a.saturating_add(self.class_b)
    }

    fn gets(class_b: u64, read_bytes: u64) -> Asked {
        Asked { class_a: 0, class_b, read_bytes }
    }
}

impl StoreReads {
    /// The run from its first request to its last, without the start of the nodes and without polls.
    #[must_use]
    pub fn of_run(&self) -> Asked {
        self.run + self.epochs.iter().copied().sum()
    }

    /// The run when each rank reads every shard by itself, in every epoch.
    #[must_use]
    pub fn naive_run(&self) -> Asked {
        self.naive_epoch.times(self.epochs.len() as u64)
    }
}

/// Predicts the requests of a training.
///
/// # Errors
/// [`ScenarioError`] if the nodes cannot share the plan's partitions, or there are no epochs.
///
/// # Panics
/// If the shards are not those of the plan.
pub fn store_reads(plan: &Plan, scenario: &StoreScenario<'_>) -> Result<StoreReads, ScenarioError> {
    assert_eq!(scenario.shards.len(), plan.shard_count() as usize, "the shards are those of the plan");
    let link: LinkRate = "1Gbit/s".parse().expect("a rate");
    Scenario::healthy(scenario.nodes, scenario.epochs, link).check(plan, u64::MAX)?;
    let hosted = Hosted::of(plan, scenario);
    let (first, later) = hosted.epochs();
    let copies = |count| Asked { class_a: count, ..Asked::default() };
    let [first, later] = [first, later].map(|asked| asked + copies(fixed::COPIES_OF_EPOCH));
    let nodes = u64::from(scenario.nodes);
    let reads = nodes * (fixed::READS_OF_RANK + fixed::READS_OF_NODE[usize::from(nodes > 1)]);
    // Of the strata of a plan as of the plan itself.
    let documents = 2 + u64::from(plan.document().strata.is_some());
    let sizes = nodes * fixed::SIZES_OF_RANK;
    let opening = Asked::gets(reads * documents + sizes, reads.saturating_mul(scenario.document_bytes));
    let (shards, bytes) = (scenario.shards.len() as u64, sum(scenario.shards, |shard| shard.bytes));
    Ok(StoreReads {
        needed_bytes: hosted.needed_bytes,
        cache_bytes: scenario.cache_bytes.saturating_mul(nodes),
        short_nodes: hosted.rooms.iter().flatten().count() as u32,
        stored_bytes: bytes,
        nodes_start: fixed::NODE_STARTS.times(nodes) + fixed::FIRST_NODE_STARTS,
        run: opening + copies(fixed::COPIES_OF_RUN),
        epochs: (0..scenario.epochs).map(|epoch| if epoch == 0 { first } else { later }).collect(),
        per_hour: Asked::gets(fixed::LOOKS_PER_HOUR, 0),
        naive_epoch: Asked::gets(shards, bytes).times(nodes),
    })
}

/// Which node hosts which grain when the run begins, and which of them it keeps.
struct Hosted<'a> {
    plan: &'a Plan,
    scenario: &'a StoreScenario<'a>,
    /// The host of each grain.
    hosts: Vec<u16>,
    /// Of each host the bytes that it keeps, where it has no room for all.
    rooms: Vec<Option<u64>>,
    kept: Kept,
    needed_bytes: u64,
}

impl<'a> Hosted<'a> {
    fn of(plan: &'a Plan, scenario: &'a StoreScenario<'a>) -> Self {
        let cluster = Cluster::new(plan, scenario.nodes);
        let placement = cluster.placement();
        let shards = || scenario.shards.iter().map(rows_of);
        let needs = Needs::of(plan, shards());
        let hosted = |host: u16| placement.of_partition.iter().filter(|of| **of == host).count() as u64;
        let count = placement.hosts.len();
        let room = |host| needs.kept_bytes(hosted(host), scenario.cache_bytes, count as u64);
        let rooms: Vec<Option<u64>> = (0..count as u16).map(room).collect();
        let mut hosts = vec![0; usize::try_from(plan.grain_count()).expect("grain numbers fit in memory")];
        if rooms.iter().any(Option::is_some) {
            let table = SlotTable::at(plan, Epoch(0));
            for partition in plan.partitions() {
                let host = placement.of_partition[partition.0 as usize];
                table.grains_of(plan, partition).for_each(|grain| hosts[grain.0 as usize] = host);
            }
        }
        let grain_rows = plan.document().grain_rows;
        let resting = |grain| {
            let place = plan.locate_grain(grain);
            resting_bytes_of(place.rows, rows_of(&scenario.shards[place.shard as usize]), grain_rows)
        };
        let kept = Kept::of(plan, |grain| usize::from(hosts[grain.0 as usize]), &rooms, resting, Some(0));
        let partitions = u64::from(plan.document().partitions);
        let needed_bytes = needs.partition_bytes.saturating_mul(partitions);
        Self { plan, scenario, hosts, rooms, kept, needed_bytes }
    }

    /// The first epoch, and each later one.
    fn epochs(&self) -> (Asked, Asked) {
        let shards = self.scenario.shards;
        let whole = Asked::gets(shards.len() as u64, sum(shards, |shard| shard.bytes));
        match self.rooms.iter().filter(|room| room.is_some()).count() {
            0 => (whole, Asked::default()),
            // Those with room read the shards whole, and forward nothing to those without.
            short => {
                let (filling, past) = self.short();
                let wholes = if short < self.rooms.len() { whole } else { Asked::default() };
                (wholes + filling + past, past)
            }
        }
    }

    /// The rows that nodes without room read in the first epoch alone, and those that they read past their caches in each.
    fn short(&self) -> (Asked, Asked) {
        let (mut filling, mut past) = (Asked::default(), Asked::default());
        for shard in 0..self.plan.shard_count() {
            // Of each host the kept ranges of rows.
            let mut kept: BTreeMap<u16, Vec<Range<u64>>> = BTreeMap::new();
            let mut at = 0;
            for grain in self.grains_of(shard) {
                let (host, rows) =
                    (self.hosts[grain.0 as usize], u64::from(self.plan.locate_grain(grain).rows));
                let (from, to) = (at, at + rows);
                at = to;
                if self.rooms[usize::from(host)].is_none() {
                    continue;
                }
                let ranges = kept.entry(host).or_default();
                match self.kept.has(grain) {
                    true => match ranges.last_mut().filter(|range| range.end == from) {
                        Some(range) => range.end = to,
                        None => ranges.push(from..to),
                    },
                    false => past += self.past(shard, rows),
                }
            }
            // Each host reads the sidecar once.
            let sidecar = u64::from(self.scenario.shards[shard as usize].rows) * 16;
            filling += Asked::gets(1, sidecar).times(kept.len() as u64);
            let reads = kept.values().flat_map(|ranges| joined(ranges));
            filling += reads.map(|range| self.read(shard, range.end - range.start)).sum();
        }
        (filling, past)
    }

    fn grains_of(&self, shard: u32) -> impl Iterator<Item = GrainNo> + use<> {
        let rows = self.scenario.shards[shard as usize].rows;
        let (first, count) = (self.plan.grain_no(shard, 0).0, rows.div_ceil(self.plan.document().grain_rows));
        (first..first + u64::from(count)).map(GrainNo)
    }

    /// A grain's rows, past a cache: each by itself, as they are due at unrelated positions; or together, as blocks are read.
    fn past(&self, shard: u32, rows: u64) -> Asked {
        match self.plan.document().order {
            Order::Samples => self.read(shard, 1).times(rows),
            Order::Blocked { .. } => self.read(shard, rows),
        }
    }

    /// Rows that follow each other, read at once.
    fn read(&self, shard: u32, rows: u64) -> Asked {
        let (RowRead { ranges, bytes }, shard) = (self.scenario.row, &self.scenario.shards[shard as usize]);
        let mean = bytes.min(shard.bytes / u64::from(shard.rows.max(1)));
        Asked::gets(ranges, bytes + rows.saturating_sub(1) * mean)
    }
}

fn rows_of(shard: &StoredShard) -> ShardRows {
    ShardRows { rows: shard.rows, row_bytes: shard.row_bytes }
}

fn sum(shards: &[StoredShard], of: impl Fn(&StoredShard) -> u64) -> u64 {
    shards.iter().map(of).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardd_plan::{PlanDocument, PlanOptions, Shape};
    use shardfmt::VersionId;
    use shardfmt::joined::SPARE;

    use super::*;

    const ROW: u64 = 1000;

    fn shards(count: u32, rows: u32) -> Vec<StoredShard> {
        let bytes = u64::from(rows) * ROW;
        vec![StoredShard { rows, bytes: bytes + 500, row_bytes: bytes }; count as usize]
    }

    fn plan(shards: &[StoredShard], options: PlanOptions) -> Plan {
        let shard_rows: Vec<u32> = shards.iter().map(|shard| shard.rows).collect();
        let shape = Shape { row_bytes: sum(shards, |shard| shard.row_bytes), shard_rows };
        let options = PlanOptions { partitions: Some(24), ..options };
        let document = PlanDocument::with_defaults(VersionId::of(b"some"), &shape, options).expect("a plan");
        Plan::new(document, &shape.shard_rows).expect("a plan")
    }

    fn options(grain_rows: u32) -> PlanOptions {
        let q = "0.1".parse().expect("a share");
        PlanOptions { q, grain_rows: Some(grain_rows), ..PlanOptions::default() }
    }

    fn scenario(shards: &[StoredShard], nodes: u32, cache_bytes: u64, epochs: u32) -> StoreScenario<'_> {
        let row = RowRead { ranges: 1, bytes: ROW };
        StoreScenario { shards, row, document_bytes: 300, nodes, cache_bytes, epochs }
    }

    #[test]
    fn caches_with_room_read_each_shard_once_however_many_nodes_there_are() {
        let shards = shards(40, 500);
        let plan = plan(&shards, options(2));
        for nodes in [1, 2, 8, 24] {
            let reads = store_reads(&plan, &scenario(&shards, nodes, 1 << 40, 3)).expect("it fits");
            let data: Vec<(u64, u64)> =
                reads.epochs.iter().map(|epoch| (epoch.class_b, epoch.read_bytes)).collect();
            assert_eq!(data, [(40, reads.stored_bytes), (0, 0), (0, 0)], "{nodes} nodes");
            assert_eq!(reads.naive_run().class_b, 3 * 40 * u64::from(nodes));
            assert_eq!(reads.short_nodes, 0);
        }
    }

    #[test]
    fn a_row_of_several_columns_takes_a_request_for_each() {
        let shards = shards(10, 500);
        let plan = plan(&shards, options(1));
        let one = scenario(&shards, 2, 1_000_000, 2);
        let two = StoreScenario { row: RowRead { ranges: 2, bytes: ROW }, ..one.clone() };
        let [one, two] = [one, two].map(|scenario| store_reads(&plan, &scenario).expect("it fits").epochs[1]);
        assert_eq!((two.class_b, two.read_bytes), (2 * one.class_b, one.read_bytes));
    }

    #[test]
    fn blocks_take_a_request_for_each_grain_and_samples_one_for_each_row() {
        let shards = shards(10, 512);
        let blocked = PlanOptions { order: Order::Blocked { slots: 4 }, ..options(8) };
        let [rows, grains] = [options(8), blocked].map(|options| {
            let plan = plan(&shards, options);
            store_reads(&plan, &scenario(&shards, 1, 1_000_000, 2)).expect("it fits").epochs[1]
        });
        assert_eq!((rows.class_b, rows.read_bytes), (8 * grains.class_b, grains.read_bytes));
    }

    #[test]
    fn what_cannot_be_shared_is_refused() {
        let shards = shards(10, 500);
        let plan = plan(&shards, options(1));
        let refused = |nodes, epochs| store_reads(&plan, &scenario(&shards, nodes, 0, epochs)).unwrap_err();
        assert!(matches!(refused(25, 1), ScenarioError::TooManyNodes { .. }));
        assert!(matches!(refused(0, 1), ScenarioError::NoNodes));
        assert!(matches!(refused(1, 0), ScenarioError::Epochs { .. }));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

        /// Rows that are kept and rows that are read past the cache are all rows; an epoch reads those that the caches cannot hold, and no more
        /// than all; a larger cache asks for no more.
        #[test]
        fn an_epoch_reads_what_the_caches_lack(
            count in 4..12u32, rows in 200..600u32, log_rows in 0..3u32, nodes in prop_oneof![Just(1u32), Just(2), Just(3)],
            part in 1..99u64,
        ) {
            let shards = shards(count, rows);
            let plan = plan(&shards, options(1 << log_rows));
            let samples = plan.sample_count();
            let needed = store_reads(&plan, &scenario(&shards, nodes, 0, 1)).expect("it fits").needed_bytes;
            let of = |part: u64| {
                let cache = needed * part / 100 / u64::from(nodes);
                store_reads(&plan, &scenario(&shards, nodes, cache, 2)).expect("it fits")
            };
            let reads = of(part);
            let past = reads.epochs[1];
            prop_assert_eq!(past.read_bytes, past.class_b * ROW);
            prop_assert!(past.class_b <= samples);
            // The rest was read into the caches: with at most a fiftieth beside it, and sidecars.
            let filled = reads.epochs[0].read_bytes - past.read_bytes;
            let sidecars = 16 * samples * u64::from(nodes);
            let kept = (samples - past.class_b) * ROW;
            prop_assert!(filled >= kept && filled <= kept + kept / SPARE + sidecars, "{} {}", filled, kept);
            prop_assert!(reads.epochs[0].class_b <= samples + u64::from(nodes * count));
            let held = needed * part / 100;
            let least = (samples * ROW).saturating_sub(held) as f64;
            prop_assert!(past.read_bytes as f64 >= least, "{} of {}", past.read_bytes, least);
            prop_assert!(of(part + 1).epochs[1].class_b <= past.class_b);
        }
    }
}
