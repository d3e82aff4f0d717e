//! The work of nodes for a run, in the Trace Event Format, which `chrome://tracing` and Perfetto read. A node is a process with a row
//! for each kind of work, and more rows where one piece of work began before another had ended. Its ranks are counters. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Stretch, Timeline, Work};
use crate::node::NodeId;
use crate::protocol::RunId;
use crate::series::{NodeSeries, Series};

/// Nodes are numbered from here: no world has that many ranks.
const FIRST_NODE: u64 = 1 << 20;

/// Rows of a kind; further simultaneous events share the last.
const MOST_ROWS: usize = 64;
/// The most stretches of all nodes of a document, and the most ranks with counters.
const MOST_STRETCHES: usize = 1 << 16;
const MOST_RANKS: usize = 256;

/// The series of a node that a document draws.
pub const DRAWN: [&str; 2] = ["rank_samples_per_second", "rank_wait_share"];

/// What a node knows of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeTrace {
    /// What it did.
    pub timeline: Timeline,
    /// Its series named in [`DRAWN`], if it gave them.
    pub series: Option<NodeSeries>,
}

/// A document of the Trace Event Format.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunTrace {
    /// What happened, each with its time in millionths of a second since 1970.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub trace_events: Vec<Value>,
    /// The unit of times on the screen.
    pub display_time_unit: &'static str,
    /// The nodes of the trace.
    pub other_data: TraceFacts,
}

/// The nodes of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TraceFacts {
    /// The run.
    pub run: RunId,
    /// How many nodes host its partitions.
    pub hosts: usize,
    /// Those in the trace.
    pub nodes: Vec<NodeId>,
    /// Those that were asked and did not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<NodeId>,
    /// Earlier activities of these nodes that the trace has no room for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: usize,
    /// Ranks whose counters the trace has no room for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_ranks: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl RunTrace {
    /// Of what nodes know of a run that has this number of hosts.
    pub fn of(run: &RunId, hosts: usize, mut nodes: Vec<NodeTrace>, unanswered: Vec<NodeId>) -> RunTrace {
        let needs: Vec<usize> = nodes.iter().map(|node| node.timeline.stretches.len()).collect();
        let mut left_out = 0;
        for (node, most) in nodes.iter_mut().zip(shared(MOST_STRETCHES, &needs)) {
            // They come in the order in which they ended.
            let more = node.timeline.stretches.len().saturating_sub(most);
            node.timeline.stretches.drain(..more);
            left_out += more;
        }
        let series = || nodes.iter().filter_map(|node| node.series.as_ref());
        let ranks: BTreeSet<u32> =
            series().flat_map(|of| &of.series).filter_map(|one| rank_of(one, run)).collect();
        let shown: BTreeSet<u32> = ranks.iter().copied().take(MOST_RANKS).collect();
        let mut events: Vec<Value> = Vec::new();
        for (NodeTrace { timeline, series }, pid) in nodes.iter().zip(FIRST_NODE..) {
            events.extend(node_process(timeline, pid, 0));
            events.extend(series.iter().flat_map(|series| counters(series, run, &shown, pid)));
        }
        let more_ranks = ranks.len() - shown.len();
        let nodes = nodes.into_iter().map(|node| node.timeline.node).collect();
        let other_data = TraceFacts { run: run.clone(), hosts, nodes, unanswered, left_out, more_ranks };
        RunTrace { trace_events: events, display_time_unit: "ms", other_data }
    }
}

/// How much of a room each has that needs this much. What one does not need, the others share.
fn shared(room: usize, needs: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..needs.len()).collect();
    order.sort_by_key(|at| needs[*at]);
    let (mut shares, mut left) = (vec![0; needs.len()], room);
    for (before, at) in order.into_iter().enumerate() {
        shares[at] = needs[at].min(left / (needs.len() - before));
        left -= shares[at];
    }
    shares
}

/// The rank of a run that a series is of.
fn rank_of(series: &Series, run: &RunId) -> Option<u32> {
    let is_of_run = series.labels.get("run").is_some_and(|of| of == run.as_str());
    series.labels.get("rank").filter(|_| is_of_run)?.parse().ok()
}

/// The samples of ranks per second, and the part of their time that they wait, as counters.
fn counters(series: &NodeSeries, run: &RunId, ranks: &BTreeSet<u32>, pid: u64) -> Vec<Value> {
    let mut drawn: BTreeMap<(u32, bool), Vec<Option<f64>>> = BTreeMap::new();
    for one in &series.series {
        let Some(rank) = rank_of(one, run).filter(|rank| ranks.contains(rank)) else { continue };
        let waits = match one.name.as_str() {
            "rank_samples_per_second" => false,
            "rank_wait_share" => true,
            _ => continue,
        };
        let sums = drawn.entry((rank, waits)).or_default();
        sums.resize(sums.len().max(one.points.len()), None);
        // The shares of the stages are added up; the series of a node end together.
        for (sum, point) in sums.iter_mut().rev().zip(one.points.iter().rev()) {
            *sum = match (*sum, point) {
                (Some(sum), Some(point)) => Some(sum + point),
                (sum, point) => sum.or(*point),
            };
        }
    }
    let end_micros = series.end as f64 * 1e6;
    let events = drawn.into_iter().flat_map(|((rank, waits), points)| {
        let (name, unit) = if waits { ("waits", "share of its time") } else { ("reads", "samples/s") };
        let count = points.len();
        points.into_iter().enumerate().filter_map(move |(at, value)| {
            let ts = end_micros - (count - 1 - at) as f64 * series.every_s * 1e6;
            let value = value.filter(|value| value.is_finite())?;
            let name = format!("rank {rank} {name}");
            Some(
                json!({"name": name, "ph": "C", "pid": pid, "ts": ts.max(0.0) as u64, "args": {unit: value}}),
            )
        })
    });
    events.collect()
}

/// The work of nodes since a time, in millionths of a second since 1970 by their clocks, in the Trace Event
/// Format.
pub fn node_events(timelines: &[Timeline], since_micros: u64) -> Vec<Value> {
    timelines.iter().zip(FIRST_NODE..).flat_map(|(of, pid)| node_process(of, pid, since_micros)).collect()
}

/// A node as a process.
fn node_process(timeline: &Timeline, pid: u64, since_micros: u64) -> Vec<Value> {
    let mut stretches: Vec<&Stretch> = timeline.stretches.iter().collect();
    stretches.retain(|stretch| stretch.began_micros.saturating_add(stretch.took_micros) >= since_micros);
    stretches.sort_by_key(|stretch| stretch.began_micros);
    let name = format!("node {}", timeline.node);
    let mut events = vec![json!({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}})];
    let mut rows: BTreeMap<Work, Vec<u64>> = BTreeMap::new();
    for stretch in stretches {
        let rows = rows.entry(stretch.work).or_default();
        let (row, is_new) = row_for(rows, stretch);
        let row = stretch.work as usize * MOST_ROWS + row;
        if is_new {
            let name = work_name(stretch.work);
            events.push(
                json!({"name": "thread_name", "ph": "M", "pid": pid, "tid": row, "args": {"name": name}}),
            );
            events.push(json!({"name": "thread_sort_index", "ph": "M", "pid": pid, "tid": row, "args": {"sort_index": row}}));
        }
        events.push(event(stretch, pid, row));
    }
    events
}

/// The first row that is free when this begins, and whether it is new. `ends` are when the rows become free.
fn row_for(ends: &mut Vec<u64>, stretch: &Stretch) -> (usize, bool) {
    let end = stretch.began_micros.saturating_add(stretch.took_micros);
    let free = ends.iter().position(|end| *end <= stretch.began_micros);
    match free {
        Some(row) => {
            ends[row] = end;
            (row, false)
        }
        None if ends.len() < MOST_ROWS => {
            ends.push(end);
            (ends.len() - 1, true)
        }
        None => {
            let last = ends.last_mut().expect("there are many");
            *last = end.max(*last);
            (MOST_ROWS - 1, false)
        }
    }
}

fn event(stretch: &Stretch, pid: u64, row: usize) -> Value {
    let Stretch { work, epoch, peer, grains, began_micros, took_micros } = stretch;
    let name = match (work, peer) {
        (Work::Send, Some(peer)) => format!("epoch {epoch} to {peer}"),
        (Work::Receive, Some(peer)) => format!("epoch {epoch} from {peer}"),
        _ => format!("epoch {epoch}"),
    };
    json!({
        "name": name, "ph": "X", "pid": pid, "tid": row, "ts": began_micros, "dur": took_micros,
        "args": {"grains": grains},
    })
}

fn work_name(work: Work) -> &'static str {
    match work {
        Work::Fill => "fill",
        Work::Send => "exchange, out",
        Work::Receive => "exchange, in",
        Work::Fetch => "fetch for a rank that waits",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stretch(work: Work, began_micros: u64, took_micros: u64) -> Stretch {
        Stretch { work, epoch: 3, peer: Some("n2".parse().unwrap()), grains: 5, began_micros, took_micros }
    }

    fn drawn(events: &[Value]) -> Vec<(u64, u64, u64)> {
        let number = |event: &Value, name: &str| event[name].as_u64().unwrap();
        let spans = events.iter().filter(|event| event["ph"] == "X");
        spans.map(|event| (number(event, "tid"), number(event, "ts"), number(event, "dur"))).collect()
    }

    #[test]
    fn a_node_is_a_process_whose_rows_have_names() {
        let stretches = vec![
            stretch(Work::Send, 10, 5),
            stretch(Work::Receive, 12, 5),
            stretch(Work::Send, 12, 9),
            stretch(Work::Send, 1, 2),
        ];
        let events = node_events(&[Timeline { node: "n1".parse().unwrap(), stretches }], 4);
        assert_eq!(
            drawn(&events),
            [(64, 10, 5), (128, 12, 5), (65, 12, 9)],
            "earlier stretches are left \
            out"
        );
        assert_eq!(events[0]["args"]["name"], "node n1");
        let named = |name: &str| events.iter().filter(|event| event["args"]["name"] == name).count();
        assert_eq!((named("exchange, out"), named("exchange, in")), (2, 1));
        assert!(
            events.iter().any(|event| event["name"] == "epoch 3 from n2" && event["args"]["grains"] == 5)
        );
    }

    fn named(name: &str) -> NodeId {
        name.parse().unwrap()
    }

    fn of_rank(name: &str, rank: u32, stage: Option<&str>, points: &[Option<f64>]) -> Series {
        let labels = [("run", "r".to_owned()), ("rank", rank.to_string())].into_iter();
        let labels = labels.chain(stage.map(|stage| ("stage", stage.to_owned())));
        let labels = labels.map(|(name, value)| (name.to_owned(), value)).collect();
        Series { name: name.to_owned(), labels, points: points.to_vec() }
    }

    #[test]
    fn a_document_has_all_nodes_with_their_ranks_as_counters_and_names_who_is_missing() {
        let mut other = of_rank("rank_samples_per_second", 7, None, &[Some(9.0)]);
        other.labels.insert("run".to_owned(), "another".to_owned());
        let series = NodeSeries {
            node: named("n1"),
            every_s: 30.0,
            end: 100,
            series: vec![
                of_rank("rank_samples_per_second", 3, None, &[None, Some(640.0)]),
                of_rank("rank_wait_share", 3, Some("disk"), &[Some(0.25), Some(0.5)]),
                of_rank("rank_wait_share", 3, Some("network"), &[Some(0.125), None]),
                of_rank("rank_compute_share", 3, None, &[Some(0.5)]),
                other,
            ],
        };
        let of = |node: &str, stretches| Timeline { node: named(node), stretches };
        let nodes = vec![
            NodeTrace { timeline: of("n1", vec![stretch(Work::Send, 10, 5)]), series: Some(series) },
            NodeTrace { timeline: of("n2", vec![stretch(Work::Receive, 12, 5)]), series: None },
        ];
        let trace = RunTrace::of(&"r".parse().unwrap(), 4, nodes, vec![named("n3")]);
        assert_eq!(drawn(&trace.trace_events), [(64, 10, 5), (128, 12, 5)]);
        let counters: Vec<Value> =
            trace.trace_events.iter().filter(|event| event["ph"] == "C").cloned().collect();
        let counter = |name: &str, seconds: u64, args: Value| json!({"name": name, "ph": "C", "pid": FIRST_NODE, "ts": seconds * 1_000_000, "args": args});
        assert_eq!(
            counters,
            [
                counter("rank 3 reads", 100, json!({"samples/s": 640.0})),
                counter("rank 3 waits", 70, json!({"share of its time": 0.375})),
                counter("rank 3 waits", 100, json!({"share of its time": 0.5})),
            ]
        );
        let document = serde_json::to_value(&trace).unwrap();
        assert_eq!(document["displayTimeUnit"], "ms");
        assert_eq!(
            document["otherData"],
            json!({"run": "r", "hosts": 4, "nodes": ["n1", "n2"], "unanswered": ["n3"]})
        );
        let facts: TraceFacts = serde_json::from_value(document["otherData"].clone()).unwrap();
        assert_eq!(facts, trace.other_data);
        assert_eq!(document["traceEvents"].as_array().map(Vec::len), Some(2 + 2 * 3 + 3));
    }

    #[test]
    fn a_document_of_many_nodes_has_the_latest_of_each_and_counts_the_rest() {
        let many = |node: usize| {
            let stretches = (0..2000).map(|at| stretch(Work::Fill, 10 * at, 5)).collect();
            let series = (0..10).map(|rank| {
                of_rank("rank_samples_per_second", (10 * node + rank) as u32, None, &[Some(1.0)])
            });
            let node = named(&format!("n{node}"));
            let series = NodeSeries { node: node.clone(), every_s: 5.0, end: 9, series: series.collect() };
            NodeTrace { timeline: Timeline { node, stretches }, series: Some(series) }
        };
        let trace = RunTrace::of(&"r".parse().unwrap(), 64, (0..64).map(many).collect(), vec![]);
        let drawn = drawn(&trace.trace_events);
        assert_eq!((drawn.len(), trace.other_data.left_out), (MOST_STRETCHES, 64 * (2000 - 1024)));
        assert!(drawn.iter().all(|(_, began, _)| *began >= 9760), "the latest");
        let counters = trace.trace_events.iter().filter(|event| event["ph"] == "C").count();
        assert_eq!((counters, trace.other_data.more_ranks), (MOST_RANKS, 640 - MOST_RANKS));
    }

    #[test]
    fn a_busy_node_has_the_room_that_idle_ones_leave() {
        let of = |node: usize, count: u64| {
            let stretches = (0..count).map(|at| stretch(Work::Fill, 10 * at, 5)).collect();
            NodeTrace { timeline: Timeline { node: named(&format!("n{node}")), stretches }, series: None }
        };
        let nodes = (0..64).map(|node| of(node, if node == 5 { 8192 } else { 3 })).collect();
        let trace = RunTrace::of(&"r".parse().unwrap(), 64, nodes, vec![]);
        assert_eq!((drawn(&trace.trace_events).len(), trace.other_data.left_out), (8192 + 63 * 3, 0));
    }

    proptest! {
        #[test]
        fn nothing_is_left_out_while_there_is_room(
            room in 0usize..500,
            needs in prop::collection::vec(0usize..100, 0..20),
        ) {
            let shares = shared(room, &needs);
            prop_assert_eq!(shares.iter().sum::<usize>(), room.min(needs.iter().sum()));
            let most = shares.iter().max().copied().unwrap_or(0);
            for (share, need) in shares.iter().zip(&needs) {
                prop_assert!(share <= need);
                prop_assert!(share == need || share + 1 >= most, "a short one has as much as any: {:?}", shares);
            }
        }

        #[test]
        fn nothing_overlaps_in_a_row_and_nothing_is_lost(
            times in prop::collection::vec((0u64..1000, 0u64..100), 0..60)
        ) {
            let stretches = times.iter().map(|(began, took)| stretch(Work::Fill, *began, *took)).collect();
            let events = node_events(&[Timeline { node: "n1".parse().unwrap(), stretches }], 0);
            let mut drawn = drawn(&events);
            prop_assert_eq!(drawn.len(), times.len());
            drawn.sort_unstable();
            for pair in drawn.windows(2) {
                let [(row, began, took), (next_row, next, _)] = [pair[0], pair[1]];
                prop_assert!(row != next_row || began + took <= next);
            }
        }
    }
}
