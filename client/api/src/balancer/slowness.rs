//! How slow nodes are beside each other.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::health::{Ailment, Disk, HealthIssue};
use crate::machine::PressureShares;
use crate::node::NodeId;

/// A disk that reads a grain in less is not slow, however much faster others are.
pub const FAST_READ_MICROS: u64 = 5_000;
/// More waiting than this is taken for this: a task that waits all the time would be infinitely slow.
const MOST_WAITING: f64 = 0.95;
/// Less waiting than this is none: it wavers between nodes that are well.
const LITTLE_WAITING: f64 = 0.5;

/// What a node measures about itself, as it publishes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeLoad {
    /// Its disk.
    #[serde(flatten)]
    pub disk: Disk,
    /// The parts of the last minute in which tasks of its machine waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure: Option<PressureShares>,
    /// The samples that its ranks read, per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
}

/// What shows that a node is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// The time of its disk for a grain.
    DiskReads,
    /// The time that others wait for its answers.
    Answers,
    /// Tasks of its machine wait for a processor (PSI).
    CpuPressure,
    /// For storage.
    IoPressure,
    /// For memory.
    MemoryPressure,
    /// None: the node hosts nothing, and is tried again.
    Trial,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DiskReads => "disk reads",
            Self::Answers => "answers",
            Self::CpuPressure => "CPU pressure",
            Self::IoPressure => "I/O pressure",
            Self::MemoryPressure => "memory pressure",
            Self::Trial => "trial",
        })
    }
}

/// The time by a signal, in units of its own.
type TimeOf = fn(&NodeLoad) -> Option<f64>;

/// How slow a node is, and by which signal: 1 is as fast as the median of the others, 2 takes twice the time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slowness {
    /// The worst of its signals.
    pub signal: Signal,
    /// Its time, in times of the others. Not less than 1.
    pub times: f64,
}

/// The slowness of each node that measures anything. `issues` are the reports of nodes on each other.
pub fn slowness(loads: &BTreeMap<NodeId, NodeLoad>, issues: &[HealthIssue]) -> BTreeMap<NodeId, Slowness> {
    let mut all = BTreeMap::new();
    let signals: [(Signal, TimeOf); 4] = [
        (Signal::DiskReads, |load| load.disk.read_micros.map(|micros| micros.max(FAST_READ_MICROS) as f64)),
        (Signal::CpuPressure, |load| load.pressure.map(|pressure| stretched(pressure.cpu))),
        (Signal::IoPressure, |load| load.pressure.map(|pressure| stretched(pressure.io))),
        (Signal::MemoryPressure, |load| load.pressure.map(|pressure| stretched(pressure.memory))),
    ];
    for (signal, time) in signals {
        let times: Vec<(&NodeId, f64)> =
            loads.iter().filter_map(|(node, load)| Some((node, time(load)?))).collect();
        let mut sorted: Vec<f64> = times.iter().map(|(_, time)| *time).collect();
        sorted.sort_by(f64::total_cmp);
        for (node, time) in times {
            if let Some(others) = median_without(&sorted, time) {
                worst(&mut all, node, Slowness { signal, times: (time / others).max(1.0) });
            }
        }
    }
    for (node, times) in answers(issues) {
        if loads.contains_key(&node) {
            worst(&mut all, &node, Slowness { signal: Signal::Answers, times });
        }
    }
    all
}

/// For each node that others report as slow to answer, how slow: the median of their reports, if there are two.
/// One alone may have a bad link itself.
fn answers(issues: &[HealthIssue]) -> BTreeMap<NodeId, f64> {
    let mut reports: BTreeMap<NodeId, Vec<f64>> = BTreeMap::new();
    for issue in issues.iter().filter(|issue| issue.what == Ailment::SlowAnswers) {
        let times = issue.measured as f64 / issue.others.max(1) as f64;
        reports.entry(issue.node.clone()).or_default().push(times);
    }
    let of_several = reports.into_iter().filter(|(_, times)| times.len() > 1);
    of_several
        .map(|(node, mut times)| {
            times.sort_by(f64::total_cmp);
            (node, times[(times.len() - 1) / 2].max(1.0))
        })
        .collect()
}

/// The time that work takes which waits for this part of it: 2 if it waits half of the time.
pub fn stretched(waiting: f64) -> f64 {
    if waiting < LITTLE_WAITING { 1.0 } else { 1.0 / (1.0 - waiting.min(MOST_WAITING)) }
}

/// The median of sorted values but one of `value`; the smaller of two in the middle.
fn median_without(sorted: &[f64], value: f64) -> Option<f64> {
    let middle = sorted.len().checked_sub(2)? / 2;
    let at = sorted.partition_point(|other| *other < value);
    Some(sorted[if middle < at { middle } else { middle + 1 }])
}

fn worst(all: &mut BTreeMap<NodeId, Slowness>, node: &NodeId, slowness: Slowness) {
    let known = all.entry(node.clone()).or_insert(slowness);
    if slowness.times > known.times {
        *known = slowness;
    }
}
