//! A fleet of nodes that train while some of them are slow, with the balancer and without it. The balancer and the
//! placement are those of nodes; only speeds, copies and time are modelled here.
//!
//! Time passes in looks of ten seconds. In a look a step takes as long as the slowest node needs for its partitions, or as
//! long as the computation, whichever is longer. Copies take the time that a link needs for their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shardd_api::balancer::{BalancerRecord, Look, Mode, NodeLoad, Settings, caps, decide, slowness};
use shardd_api::health::Disk;
use shardd_api::node::NodeId;
use shardd_api::placement::{Host, MOST_AT_ONCE, place, step};
use shardd_api::protocol::Placement;

use crate::cluster::name;

/// The time between looks.
const LOOK: Duration = Duration::from_secs(10);
/// Partitions for each node at the beginning.
pub const PARTITIONS: usize = 16;
/// What a disk of usual speed takes for a grain.
const READ_MICROS: f64 = 8_000.0;
/// The time that nodes need for the data of a step, in times of its computation: the rest is slack.
const DATA: f64 = 0.5;
/// A fleet has recovered when a step takes no longer than this, in times of its computation.
const RECOVERED: f64 = 1.5;

/// The nodes, and their speeds.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// Nodes at the beginning.
    pub nodes: usize,
    /// Looks that are played.
    pub looks: usize,
    /// The bytes of a partition.
    pub partition_bytes: u64,
    /// What a node can copy in a second.
    pub link: u64,
    /// How far measurements stray from the truth: 0.2 is a fifth to both sides.
    pub noise: f64,
    /// The part of measurements that are ten times too high.
    pub hiccups: f64,
    /// Decides the noise.
    pub seed: u64,
}

/// The state of a node at a look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Speed {
    /// It takes as many times as long as usual.
    Times(f64),
    /// It is not there.
    Gone,
}

/// The result of a play.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Played {
    /// The time of the steps beyond their computation, as a part of the whole time.
    pub lost: f64,
    /// Partitions that were moved.
    pub moved: usize,
    /// Of these, those whose host had gone.
    pub orphans: usize,
    /// Changes of shares.
    pub decisions: usize,
    /// Bytes that decisions were expected to move.
    pub decided_bytes: u64,
    /// Looks from the last change of speeds until a step took no longer than 1.5 times its computation; `None` if it
    /// still takes longer.
    pub recovered: Option<usize>,
}

/// Plays a fleet in which node `n` is at look `l` as `speed(n, l)` has it.
pub fn play(fleet: &Fleet, mode: Mode, speed: impl Fn(usize, usize) -> Speed) -> Played {
    let all: Vec<NodeId> = (0..fleet.nodes as u32).map(name).collect();
    let speeds_at = |look: usize| -> Speeds {
        let times = |(number, node): (usize, &NodeId)| match speed(number, look) {
            Speed::Times(times) => Some((node.clone(), times)),
            Speed::Gone => None,
        };
        all.iter().enumerate().filter_map(times).collect()
    };
    let mut play = Play::begin(fleet, mode, &all);
    let (mut trained, mut before, mut changed) = (0.0, Speeds::new(), 0);
    for number in 0..fleet.looks {
        let speeds = speeds_at(number);
        if speeds != before {
            (play.played.recovered, changed) = (None, number);
        }
        play.decide(&speeds, number);
        play.place(&speeds, speeds.keys().ne(before.keys()));
        let step = (play.time(&speeds) * DATA).max(1.0);
        trained += 1.0 / step;
        if step <= RECOVERED {
            play.played.recovered.get_or_insert(number - changed);
        }
        before = speeds;
    }
    Played { lost: 1.0 - trained / fleet.looks as f64, ..play.played }
}

/// The nodes that are there, and how many times as long as usual each takes.
type Speeds = BTreeMap<NodeId, f64>;

/// A fleet at a look.
struct Play<'f> {
    fleet: &'f Fleet,
    partitions: usize,
    /// Each node has a rank, which reads the partitions that it begins with.
    preferred: Vec<Option<NodeId>>,
    record: BalancerRecord,
    since_written: Duration,
    caps: BTreeMap<NodeId, usize>,
    placement: Option<Placement>,
    /// Whether nothing more is to be moved with these nodes and limits.
    is_settled: bool,
    /// How long the copies under way take from now on.
    copying: Duration,
    played: Played,
}

impl<'f> Play<'f> {
    fn begin(fleet: &'f Fleet, mode: Mode, all: &[NodeId]) -> Self {
        let settings = Settings { mode, ..Settings::default() };
        let partitions = fleet.nodes * PARTITIONS;
        Self {
            fleet,
            partitions,
            preferred: (0..partitions).map(|partition| Some(all[partition / PARTITIONS].clone())).collect(),
            record: BalancerRecord { settings, ..BalancerRecord::default() },
            since_written: LOOK,
            caps: BTreeMap::new(),
            placement: None,
            is_settled: false,
            copying: Duration::ZERO,
            played: Played::default(),
        }
    }

    fn decide(&mut self, speeds: &Speeds, number: usize) {
        let nodes: Vec<NodeId> = speeds.keys().cloned().collect();
        let look = Look {
            at: number as u64 * LOOK.as_secs(),
            elapsed: self.since_written,
            partitions: self.partitions,
            bytes: self.fleet.partition_bytes * self.partitions as u64,
            slowness: slowness(&self.fleet.measured(speeds, number as u64), &[]),
            samples_per_second: None,
            nodes,
        };
        self.since_written += LOOK;
        if let Some(next) = decide(&self.record, &look) {
            self.since_written = LOOK;
            let decisions = next.journal.iter().filter(|decision| decision.look == next.look);
            self.played.decisions += decisions.clone().count();
            self.played.decided_bytes += decisions.map(|decision| decision.forecast.bytes).sum::<u64>();
            self.record = next;
        }
    }

    /// Makes the next step of the placement, once the copies of the last one are there.
    fn place(&mut self, speeds: &Speeds, has_other_nodes: bool) {
        self.copying = self.copying.saturating_sub(LOOK);
        let live: Vec<NodeId> = speeds.keys().cloned().collect();
        let caps = caps(self.partitions, &self.record.shares_in_force(live.iter()));
        if self.is_settled && !has_other_nodes && caps == self.caps {
            return;
        }
        let room = |node: &NodeId| caps.get(node).copied().unwrap_or(usize::MAX);
        let hosts: Vec<Host> =
            live.iter().map(|node| Host { node: node.clone(), room: room(node) }).collect();
        let target = place(&hosts, &self.preferred, self.placement.as_ref());
        (self.is_settled, self.caps) = (target.is_none(), caps);
        let Some(target) = target else { return };
        let Some(current) = &self.placement else {
            self.placement = Some(target);
            return;
        };
        let most = if self.copying > Duration::ZERO { 0 } else { MOST_AT_ONCE };
        let Some(next) = step(current, target, &live, most) else { return };
        self.played.moved += next.moved.len();
        let is_orphan = |partition: &&u32| !speeds.contains_key(current.host(**partition));
        self.played.orphans += next.moved.iter().filter(is_orphan).count();
        self.copying = self.copying.max(self.fleet.copies(&next, current, speeds));
        self.placement = Some(next);
    }

    /// The time of the node that takes longest, in times of one with an even share and the usual speed.
    fn time(&self, speeds: &Speeds) -> f64 {
        let placement = self.placement.as_ref().expect("it was placed at the first look");
        let mut hosted = vec![0_usize; placement.hosts.len()];
        placement.of_partition.iter().for_each(|host| hosted[usize::from(*host)] += 1);
        let even = self.partitions as f64 / speeds.len() as f64;
        let of = |(node, hosted): (&NodeId, &usize)| {
            speeds.get(node).map_or(0.0, |times| *hosted as f64 / even * times)
        };
        placement.hosts.iter().zip(&hosted).map(of).fold(0.0, f64::max)
    }
}

impl Fleet {
    /// What nodes measure about their disks.
    fn measured(&self, speeds: &Speeds, look: u64) -> BTreeMap<NodeId, NodeLoad> {
        let load = |(number, (node, times)): (u64, (&NodeId, &f64))| {
            let stray = 1.0 + self.noise * (2.0 * random(self.seed, look, number) - 1.0);
            let is_hiccup = random(self.seed ^ 1, look, number) < self.hiccups;
            let stray = if is_hiccup { 10.0 * stray } else { stray };
            let read_micros = Some((READ_MICROS * times * stray).round() as u64);
            let disk = Disk { read_micros, sync_micros: None };
            (node.clone(), NodeLoad { disk, ..NodeLoad::default() })
        };
        (0..).zip(speeds).map(load).collect()
    }

    /// How long the copies of a step of the placement take: nodes copy side by side, as fast as the slower end.
    fn copies(&self, next: &Placement, current: &Placement, speeds: &Speeds) -> Duration {
        let mut given: BTreeMap<&NodeId, f64> = BTreeMap::new();
        for partition in &next.moved {
            let slower = speeds.get(current.host(*partition)).copied().unwrap_or(1.0);
            *given.entry(next.host(*partition)).or_default() += slower.max(1.0);
        }
        let most = given.into_values().fold(0.0, f64::max);
        Duration::from_secs_f64(most * self.partition_bytes as f64 / self.link as f64)
    }
}

/// From 0 to 1, the same for the same numbers.
fn random(seed: u64, look: u64, number: u64) -> f64 {
    let mut hasher = blake3::Hasher::new();
    for part in [seed, look, number] {
        hasher.update(&part.to_le_bytes());
    }
    let bytes = hasher.finalize().as_bytes()[..8].try_into().expect("eight bytes");
    u64::from_le_bytes(bytes) as f64 / u64::MAX as f64
}

/// The fewest partitions that have to move when nodes come and go: those of the nodes that have gone, and the share of those
/// that have come.
pub fn fewest_moves(before: &BTreeSet<usize>, after: &BTreeSet<usize>) -> usize {
    let partitions = before.len() * PARTITIONS;
    let gone = before.difference(after).count() * PARTITIONS;
    let come = after.difference(before).count();
    gone.max(come * partitions / after.len().max(1))
}

#[cfg(test)]
mod tests;
