//! What a training asks of its store, before it begins: requests by the class that services bill, and bytes, epoch by epoch.
//!
//! Nodes read each shard whole, once for all of them, where their caches have room. A node whose cache lacks room keeps the set
//! of grains that [`shardd_api::capacity::Kept`] gives it, which it reads by range in the first epoch, and reads each other row
//! by itself in every epoch. Counted here are the same sets and ranges, on the same placement. Knows no prices.
//!
//! Which rows share a request depends on their places in the shard's file, which the caller looks up for one shard; the others are
//! taken to be like it. Not in it are requests of chance: repetitions of failed ones, and hedged reads.

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
    /// Of metadata in the store, a node at rest looks for changes once a second, reads it three times every five seconds, and renews
    /// its lease every twenty seconds.
    pub(super) const NODE_OF_STORE_PER_HOUR: Asked = Asked { class_a: 180, class_b: 5760, read_bytes: 0 };
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

/// What reading some rows of a shard together takes: their columns lie apart, and of a compressed record batch all is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsRead {
    /// Requests.
    pub requests: u64,
    /// Bytes of their answers.
    pub bytes: u64,
}

/// Why nothing is predicted.
#[derive(Debug, thiserror::Error)]
pub enum StoreReadsError<E> {
    /// The cluster does not fit the plan.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// What reading rows takes is not known.
    #[error(transparent)]
    Rows(E),
}

/// A training over stored shards.
#[derive(Clone, Debug)]
pub struct StoreScenario<'a> {
    /// The shards, in the order of the manifest.
    pub shards: &'a [StoredShard],
    /// Samples of a rank that its loader asks for together.
    pub window: u64,
    /// Bytes of plan and manifest.
    pub document_bytes: u64,
    /// Nodes, each with one rank of the run.
    pub nodes: u32,
    /// Bytes of each node's cache for the run.
    pub cache_bytes: u64,
    /// Epochs that are trained.
    pub epochs: u32,
    /// Where the metadata is.
    pub metadata: KeptIn,
}

/// Where the cluster's metadata is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeptIn {
    /// In sled of the first node, which copies it to the store.
    #[default]
    Sled,
    /// In the store.
    Store,
    /// In etcd, which asks nothing of the store.
    Etcd,
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
    /// In an hour in which nothing changes: looks at the metadata, or at its copy.
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

/// Predicts the requests of a training. `read` says what reading ascending ranges of rows of a shard together takes; it is called
/// for one shard, where caches lack room.
///
/// # Errors
/// [`StoreReadsError::Scenario`] if the nodes cannot share the plan's partitions, or there are no epochs;
/// [`StoreReadsError::Rows`] if `read` fails.
///
/// # Panics
/// If the shards are not those of the plan.
pub fn store_reads<E>(
    plan: &Plan,
    scenario: &StoreScenario<'_>,
    read: impl FnMut(u32, &[Range<u32>]) -> Result<RowsRead, E>,
) -> Result<StoreReads, StoreReadsError<E>> {
    assert_eq!(scenario.shards.len(), plan.shard_count() as usize, "the shards are those of the plan");
    let link: LinkRate = "1Gbit/s".parse().expect("a rate");
    Scenario::healthy(scenario.nodes, scenario.epochs, link).check(plan, u64::MAX)?;
    let hosted = Hosted::of(plan, scenario);
    let (first, later) = hosted.epochs(read).map_err(StoreReadsError::Rows)?;
    // Where there are no copies, a change is a request itself; etcd asks nothing.
    let copies = |count| match scenario.metadata {
        KeptIn::Sled | KeptIn::Store => Asked { class_a: count, ..Asked::default() },
        KeptIn::Etcd => Asked::default(),
    };
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
        per_hour: match scenario.metadata {
            KeptIn::Sled => Asked::gets(fixed::LOOKS_PER_HOUR, 0),
            KeptIn::Store => fixed::NODE_OF_STORE_PER_HOUR.times(nodes),
            KeptIn::Etcd => Asked::default(),
        },
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
    fn epochs<E>(
        &self,
        read: impl FnMut(u32, &[Range<u32>]) -> Result<RowsRead, E>,
    ) -> Result<(Asked, Asked), E> {
        let shards = self.scenario.shards;
        let whole = Asked::gets(shards.len() as u64, sum(shards, |shard| shard.bytes));
        match self.rooms.iter().filter(|room| room.is_some()).count() {
            0 => Ok((whole, Asked::default())),
            // Those with room read the shards whole, and forward nothing to those without.
            short => {
                let (filling, past) = self.short(read)?;
                let wholes = if short < self.rooms.len() { whole } else { Asked::default() };
                Ok((wholes + filling + past, past))
            }
        }
    }

    /// The rows that nodes without room read in the first epoch alone, and those that they read past their caches in each.
    fn short<E>(
        &self,
        mut read: impl FnMut(u32, &[Range<u32>]) -> Result<RowsRead, E>,
    ) -> Result<(Asked, Asked), E> {
        // All shards are taken to be like the first one of which some rows are read past a cache.
        let has_past = |shard: &u32| Part::rows(&self.parts(*shard)).past > 0;
        let sampled = (0..self.plan.shard_count()).find(has_past).unwrap_or(0);
        let like = self.like(sampled, &self.parts(sampled), &mut read)?;
        let (mut filling, mut past) = ((0.0, 0.0), (0.0, 0.0));
        let mut sidecars = Asked::default();
        for shard in 0..self.plan.shard_count() {
            let parts = self.parts(shard);
            // Each host reads the sidecar once.
            let sidecar = u64::from(self.scenario.shards[shard as usize].rows) * 16;
            sidecars += Asked::gets(1, sidecar).times(parts.len() as u64);
            let (rows, ranges) = (Part::rows(&parts), Part::joined_ranges(&parts));
            let scale = self.mean_row(shard) / like.mean.max(1.0);
            past.0 += rows.past as f64 * like.past.0;
            past.1 += rows.past as f64 * like.past.1 * scale;
            filling.0 += ranges as f64 * like.kept.0;
            filling.1 += rows.kept as f64 * like.kept.1 * scale;
        }
        let asked =
            |(requests, bytes): (f64, f64)| Asked::gets(requests.round() as u64, bytes.round() as u64);
        Ok((asked(filling) + sidecars, asked(past)))
    }

    /// What reads of a shard take, measured.
    fn like<E>(
        &self,
        shard: u32,
        parts: &BTreeMap<u16, Part>,
        read: &mut impl FnMut(u32, &[Range<u32>]) -> Result<RowsRead, E>,
    ) -> Result<Like, E> {
        let (mut kept, mut past) = ((0, 0), (0, 0));
        for (host, part) in parts {
            if !part.kept.is_empty() {
                let RowsRead { requests, bytes } = read(shard, &part.kept)?;
                kept = (kept.0 + requests, kept.1 + bytes);
            }
            for window in self.windows(*host, part) {
                let RowsRead { requests, bytes } = read(shard, &window)?;
                past = (past.0 + requests, past.1 + bytes);
            }
        }
        let (rows, ranges) = (Part::rows(parts), Part::joined_ranges(parts));
        let each = |sum: u64, count: u64| sum as f64 / count.max(1) as f64;
        // Of a shard of which nothing is kept: one request for each range, of all columns together.
        let kept = match rows.kept {
            0 => (1.0, self.mean_row(shard)),
            _ => (each(kept.0, ranges), each(kept.1, rows.kept)),
        };
        Ok(Like {
            past: (each(past.0, rows.past), each(past.1, rows.past)),
            kept,
            mean: self.mean_row(shard),
        })
    }

    /// The rows that are read past a cache, by the window in which they are due: it is as good as drawn. Of blocks, whole grains are
    /// due together.
    fn windows(&self, host: u16, part: &Part) -> Vec<Vec<Range<u32>>> {
        let hosted = self.hosted_samples(host);
        let count = hosted.div_ceil(self.scenario.window.max(1)).max(1);
        let is_blocked = matches!(self.plan.document().order, Order::Blocked { .. });
        let mut windows: BTreeMap<u64, Vec<Range<u32>>> = BTreeMap::new();
        for grain in &part.past {
            let rows = if is_blocked {
                vec![grain.clone()]
            } else {
                grain.clone().map(|row| row..row + 1).collect()
            };
            for rows in rows {
                windows.entry(drawn(host, rows.start) % count).or_default().push(rows);
            }
        }
        windows.into_values().collect()
    }

    fn hosted_samples(&self, host: u16) -> u64 {
        let grains = (0..self.plan.grain_count()).map(GrainNo);
        let hosted = grains.filter(|grain| self.hosts[grain.0 as usize] == host);
        hosted.map(|grain| u64::from(self.plan.locate_grain(grain).rows)).sum()
    }

    /// Of each host without room that has some of a shard, what it keeps and what it reads past its cache.
    fn parts(&self, shard: u32) -> BTreeMap<u16, Part> {
        let mut parts: BTreeMap<u16, Part> = BTreeMap::new();
        let mut at = 0;
        for grain in self.grains_of(shard) {
            let (host, rows) = (self.hosts[grain.0 as usize], self.plan.locate_grain(grain).rows);
            let rows = at..at + rows;
            at = rows.end;
            if self.rooms[usize::from(host)].is_none() {
                continue;
            }
            let part = parts.entry(host).or_default();
            match self.kept.has(grain) {
                false => part.past.push(rows),
                true => match part.kept.last_mut().filter(|range| range.end == rows.start) {
                    Some(range) => range.end = rows.end,
                    None => part.kept.push(rows),
                },
            }
        }
        parts
    }

    fn grains_of(&self, shard: u32) -> impl Iterator<Item = GrainNo> + use<> {
        let rows = self.scenario.shards[shard as usize].rows;
        let (first, count) = (self.plan.grain_no(shard, 0).0, rows.div_ceil(self.plan.document().grain_rows));
        (first..first + u64::from(count)).map(GrainNo)
    }

    fn mean_row(&self, shard: u32) -> f64 {
        let shard = &self.scenario.shards[shard as usize];
        shard.bytes as f64 / f64::from(shard.rows.max(1))
    }
}

/// A number as good as drawn, for a row.
fn drawn(host: u16, row: u32) -> u64 {
    let mut material = [0; 6];
    material[..2].copy_from_slice(&host.to_le_bytes());
    material[2..].copy_from_slice(&row.to_le_bytes());
    let key = blake3::derive_key("shardd store reads 2026 v1 window", &material);
    u64::from_le_bytes(key[..8].try_into().expect("8 bytes"))
}

/// What one node has of a shard: ranges of rows.
#[derive(Debug, Default)]
struct Part {
    /// Kept ones, as long as they are.
    kept: Vec<Range<u32>>,
    /// Grains that are read past the cache.
    past: Vec<Range<u32>>,
}

/// Rows of a shard.
struct PartRows {
    kept: u64,
    past: u64,
}

/// Requests and bytes of the rows of a shard: of each row that is read past a cache; of each joined range, and of each row, that is
/// kept.
#[derive(Clone, Copy, Debug)]
struct Like {
    past: (f64, f64),
    kept: (f64, f64),
    /// Bytes of a row of the shard's file.
    mean: f64,
}

impl Part {
    fn rows(parts: &BTreeMap<u16, Part>) -> PartRows {
        let rows = |ranges: &[Range<u32>]| {
            ranges.iter().map(|range| u64::from(range.end - range.start)).sum::<u64>()
        };
        PartRows {
            kept: parts.values().map(|part| rows(&part.kept)).sum(),
            past: parts.values().map(|part| rows(&part.past)).sum(),
        }
    }

    /// Ranges to keep, the closest of them joined.
    fn joined_ranges(parts: &BTreeMap<u16, Part>) -> u64 {
        let wide = |range: &Range<u32>| u64::from(range.start)..u64::from(range.end);
        let joined = |part: &Part| joined(&part.kept.iter().map(wide).collect::<Vec<_>>()).len() as u64;
        parts.values().map(joined).sum()
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
    use std::convert::Infallible;

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
        StoreScenario {
            shards,
            window: 1,
            document_bytes: 300,
            nodes,
            cache_bytes,
            epochs,
            metadata: KeptIn::Sled,
        }
    }

    /// Rows of as many columns as there are, each of which lies apart; ranges of a column are joined.
    fn rows_of_columns(columns: u64) -> impl Fn(u32, &[Range<u32>]) -> Result<RowsRead, Infallible> {
        move |_, ranges| {
            let wide = |range: &Range<u32>| u64::from(range.start)..u64::from(range.end);
            let reads = joined(&ranges.iter().map(wide).collect::<Vec<_>>());
            let rows: u64 = reads.iter().map(|read| read.end - read.start).sum();
            Ok(RowsRead { requests: columns * reads.len() as u64, bytes: rows * ROW })
        }
    }

    fn reads(plan: &Plan, scenario: &StoreScenario<'_>) -> StoreReads {
        store_reads(plan, scenario, rows_of_columns(1)).expect("it fits")
    }

    #[test]
    fn caches_with_room_read_each_shard_once_however_many_nodes_there_are() {
        let shards = shards(40, 500);
        let plan = plan(&shards, options(2));
        for nodes in [1, 2, 8, 24] {
            let reads = reads(&plan, &scenario(&shards, nodes, 1 << 40, 3));
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
        // Windows of a row: no two share a request.
        let scenario = scenario(&shards, 2, 1_000_000, 2);
        let [one, two] = [1, 2].map(|columns| {
            store_reads(&plan, &scenario, rows_of_columns(columns)).expect("it fits").epochs[1]
        });
        assert!(two.class_b.abs_diff(2 * one.class_b) <= 1 && one.class_b > 1000, "{one:?} {two:?}");
        assert_eq!(two.read_bytes, one.read_bytes);
    }

    #[test]
    fn neighbours_in_a_window_share_a_request() {
        let shards = shards(10, 500);
        let plan = plan(&shards, options(1));
        let of = |window| {
            let scenario = StoreScenario { window, ..scenario(&shards, 2, 1_000_000, 2) };
            reads(&plan, &scenario).epochs[1].class_b
        };
        let requests = [1, 256, 100_000].map(of);
        assert!(requests.is_sorted_by(|more, fewer| more > fewer), "{requests:?}");
    }

    #[test]
    fn an_unknown_file_is_an_error() {
        let shards = shards(10, 500);
        let plan = plan(&shards, options(1));
        let unknown = |_: u32, _: &[Range<u32>]| Err("no such shard");
        let short = store_reads(&plan, &scenario(&shards, 2, 1_000_000, 2), unknown);
        assert!(matches!(short, Err(StoreReadsError::Rows("no such shard"))));
        assert!(
            store_reads(&plan, &scenario(&shards, 2, 1 << 40, 2), unknown).is_ok(),
            "no row is read by itself"
        );
    }

    #[test]
    fn blocks_take_a_request_for_each_grain_and_samples_one_for_each_row() {
        let shards = shards(10, 512);
        let blocked = PlanOptions { order: Order::Blocked { slots: 4 }, ..options(8) };
        let [rows, grains] = [options(8), blocked].map(|options| {
            let plan = plan(&shards, options);
            reads(&plan, &scenario(&shards, 1, 1_000_000, 2)).epochs[1]
        });
        let ratio = rows.class_b as f64 / grains.class_b as f64;
        assert!((7.5..=8.0).contains(&ratio), "{rows:?} {grains:?}");
        assert_eq!(rows.read_bytes, grains.read_bytes);
    }

    #[test]
    fn what_cannot_be_shared_is_refused() {
        let shards = shards(10, 500);
        let plan = plan(&shards, options(1));
        let refused = |nodes, epochs| match store_reads(
            &plan,
            &scenario(&shards, nodes, 0, epochs),
            rows_of_columns(1),
        ) {
            Err(StoreReadsError::Scenario(error)) => error,
            other => panic!("{other:?}"),
        };
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
            let needed = reads(&plan, &scenario(&shards, nodes, 0, 1)).needed_bytes;
            let of = |part: u64| {
                let cache = needed * part / 100 / u64::from(nodes);
                reads(&plan, &scenario(&shards, nodes, cache, 2))
            };
            let reads = of(part);
            let past = reads.epochs[1];
            let past_rows = past.read_bytes / ROW;
            prop_assert!(past.class_b <= past_rows && past_rows <= samples);
            // The rest was read into the caches: with at most a fiftieth beside it, and sidecars.
            let filled = reads.epochs[0].read_bytes - past.read_bytes;
            let sidecars = 16 * samples * u64::from(nodes);
            let kept = (samples - past_rows) * ROW;
            // All shards are taken to be like the first.
            let about = 1.05 * (kept + kept / SPARE) as f64;
            prop_assert!(filled >= kept && filled as f64 <= about + sidecars as f64, "{} {}", filled, kept);
            prop_assert!(reads.epochs[0].class_b <= samples + u64::from(nodes * count));
            let held = needed * part / 100;
            let least = (samples * ROW).saturating_sub(held) as f64;
            prop_assert!(past.read_bytes as f64 >= least, "{} of {}", past.read_bytes, least);
            prop_assert!(of(part + 1).epochs[1].read_bytes <= past.read_bytes);
        }
    }
}
