//! The columns of runs, nodes and shards.

use shardd_api::duration::about;
use shardd_api::overview::rows::{NodeRow, RowNumbers, RowState};
use shardd_api::overview::{EXPOSED, RankOverview, RunOverview};
use shardfmt::ByteSize;

use super::paint::{Column, Tone, Toned};
use super::words::{bar, forecast, part, range, rate, share, stages, time};
use crate::human::count;
use crate::top::state::HotRow;

/// A wait for more than this part of the time is shown as critical.
const MUCH: f64 = 0.25;
/// A disk with more than these parts in use is shown as a warning, and as critical.
const FILLED: (f64, f64) = (0.9, 0.98);

fn usual(text: String) -> Toned {
    (text, Tone::Usual)
}

fn none() -> Toned {
    ("-".to_owned(), Tone::Dim)
}

pub(super) const RUNS: [Column<RunOverview>; 8] = [
    Column { title: "epoch", width: 5, is_right: true, from: 0, cell: |run| usual(run.epoch.to_string()) },
    Column { title: "progress", width: 14, is_right: false, from: 50, cell: progress },
    Column { title: "samples", width: 10, is_right: true, from: 70, cell: samples },
    Column { title: "exposed", width: 7, is_right: true, from: 0, cell: exposed },
    Column { title: "waits for", width: 10, is_right: false, from: 60, cell: waits_for },
    Column { title: "left", width: 12, is_right: true, from: 40, cell: left },
    Column { title: "likely", width: 20, is_right: true, from: 130, cell: likely },
    Column { title: "rank that waits most", width: 24, is_right: false, from: 110, cell: who_waits },
];

pub(super) fn run_name(run: &RunOverview) -> Toned {
    usual(run.run.to_string())
}

fn progress(run: &RunOverview) -> Toned {
    let read = part(run.position, run.epoch_samples);
    usual(format!("{} {:>5}", bar(read, 8), share(read)))
}

fn samples(run: &RunOverview) -> Toned {
    run.samples_per_second.map_or_else(none, |per_second| usual(rate(per_second)))
}

fn exposed(run: &RunOverview) -> Toned {
    run.waits.as_ref().map_or_else(none, |waits| {
        let tone = match waits.exposed_share {
            share if share > MUCH => Tone::Critical,
            share if share > EXPOSED => Tone::Warning,
            _ => Tone::Good,
        };
        (share(waits.exposed_share), tone)
    })
}

/// The rank that waits most.
fn first_rank(run: &RunOverview) -> Option<&RankOverview> {
    run.readers.first()
}

fn waits_for(run: &RunOverview) -> Toned {
    first_rank(run).map_or_else(none, |rank| usual(stages(&rank.wait_shares, 10)))
}

fn left(run: &RunOverview) -> Toned {
    run.epoch_ends.as_ref().map_or_else(none, |ends| usual(range(ends)))
}

fn likely(run: &RunOverview) -> Toned {
    run.epoch_ends.as_ref().map_or_else(none, |ends| usual(forecast(ends)))
}

fn who_waits(run: &RunOverview) -> Toned {
    run.waits.as_ref().map_or_else(none, |waits| {
        let mark = if waits.is_straggler { ", alone" } else { "" };
        usual(format!("{} of {} at {}{mark}", waits.rank, run.ranks, waits.node))
    })
}

pub(super) const NODES: [Column<NodeRow>; 14] = [
    Column { title: "state", width: 9, is_right: false, from: 0, cell: state },
    Column { title: "cache", width: 6, is_right: true, from: 0, cell: cache },
    Column { title: "disk", width: 5, is_right: true, from: 0, cell: disk },
    Column {
        title: "origin",
        width: 10,
        is_right: true,
        from: 56,
        cell: |node| bytes(node, |of| of.origin_bytes),
    },
    Column { title: "procs", width: 6, is_right: true, from: 44, cell: processors },
    Column {
        title: "memory",
        width: 10,
        is_right: true,
        from: 68,
        cell: |node| bytes(node, |of| of.resident_bytes),
    },
    Column {
        title: "ranks",
        width: 5,
        is_right: true,
        from: 76,
        cell: |node| usual(count(node.ranks as u64)),
    },
    Column { title: "corrupt", width: 7, is_right: true, from: 90, cell: corrupt },
    Column {
        title: "hosts",
        width: 6,
        is_right: true,
        from: 100,
        cell: |node| usual(count(node.hosted_partitions as u64)),
    },
    Column {
        title: "served",
        width: 10,
        is_right: true,
        from: 110,
        cell: |node| bytes(node, |of| of.served_bytes),
    },
    Column {
        title: "misses",
        width: 9,
        is_right: true,
        from: 120,
        cell: |node| number(node, |of| of.misses),
    },
    Column {
        title: "cache of",
        width: 10,
        is_right: true,
        from: 134,
        cell: |node| bytes(node, |of| of.cache_limit_bytes),
    },
    Column { title: "release", width: 8, is_right: false, from: 144, cell: release },
    Column { title: "started", width: 8, is_right: false, from: 156, cell: started },
];

pub(super) fn node_name(node: &NodeRow) -> Toned {
    usual(node.id.to_string())
}

fn numbers(node: &NodeRow, cell: impl FnOnce(&RowNumbers) -> Toned) -> Toned {
    node.numbers.as_ref().map_or_else(none, cell)
}

fn bytes(node: &NodeRow, of: fn(&RowNumbers) -> u64) -> Toned {
    numbers(node, |numbers| usual(ByteSize(of(numbers)).to_string()))
}

fn number(node: &NodeRow, of: fn(&RowNumbers) -> u64) -> Toned {
    numbers(node, |numbers| usual(count(of(numbers))))
}

fn state(node: &NodeRow) -> Toned {
    let (text, tone) = match node.state {
        RowState::Live => ("live", Tone::Good),
        RowState::Draining => ("draining", Tone::Warning),
        RowState::Unhealthy => ("unhealthy", Tone::Warning),
        RowState::Unanswered => ("no answer", Tone::Warning),
        RowState::Lost => ("lost", Tone::Critical),
    };
    (text.to_owned(), tone)
}

fn cache(node: &NodeRow) -> Toned {
    numbers(node, |of| usual(share(of.cache_share())))
}

/// How much of the disk is in use.
fn disk(node: &NodeRow) -> Toned {
    numbers(node, |of| {
        if of.disk_size_bytes == 0 {
            return none();
        }
        let used = of.disk_share();
        let tone = match used {
            used if used > FILLED.1 => Tone::Critical,
            used if used > FILLED.0 => Tone::Warning,
            _ => Tone::Usual,
        };
        (share(used.clamp(0.0, 1.0)), tone)
    })
}

fn processors(node: &NodeRow) -> Toned {
    numbers(node, |of| usual(format!("{:.1}", of.processors)))
}

fn corrupt(node: &NodeRow) -> Toned {
    numbers(node, |of| {
        let tone = if of.corrupt_grains > 0 { Tone::Critical } else { Tone::Usual };
        (count(of.corrupt_grains), tone)
    })
}

fn release(node: &NodeRow) -> Toned {
    numbers(node, |of| usual(of.release.clone()))
}

fn started(node: &NodeRow) -> Toned {
    numbers(node, |of| usual(time(of.start)))
}

pub(super) const SHARDS: [Column<HotRow>; 5] = [
    Column { title: "reads", width: 9, is_right: true, from: 0, cell: |row| decayed(row.what.heat.reads) },
    Column { title: "misses", width: 8, is_right: true, from: 40, cell: |row| decayed(row.what.heat.misses) },
    Column {
        title: "bytes",
        width: 10,
        is_right: true,
        from: 56,
        cell: |row| usual(ByteSize(row.what.heat.bytes as u64).to_string()),
    },
    Column { title: "latency", width: 8, is_right: true, from: 48, cell: latency },
    Column { title: "nodes", width: 22, is_right: false, from: 76, cell: holders },
];

pub(super) fn shard_name(row: &HotRow) -> Toned {
    usual(row.what.shard.to_string())
}

/// A count that decays, and is no whole number.
fn decayed(value: f64) -> Toned {
    match value {
        value if !value.is_finite() => none(),
        value if value < 10.0 => usual(format!("{value:.1}")),
        value => usual(count(value as u64)),
    }
}

fn latency(row: &HotRow) -> Toned {
    row.what.heat.miss_seconds.filter(|seconds| seconds.is_finite()).map_or_else(none, |seconds| {
        usual(match seconds {
            seconds if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
            seconds => about(seconds),
        })
    })
}

fn holders(row: &HotRow) -> Toned {
    let named: Vec<&str> = row.nodes.iter().take(2).map(|node| node.as_str()).collect();
    let more = row.nodes.len() - named.len();
    usual(match more {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    })
}
