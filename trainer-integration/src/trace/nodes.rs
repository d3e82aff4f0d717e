//! What the nodes did meanwhile, as further processes of a trace: a row for what each fills, sends, receives and fetches, and more rows where one
//! thing of a kind began before another had ended. Pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use shardd_api::timeline::{Stretch, Timeline, Work};

/// Nodes are numbered from here: no world has that many ranks.
const FIRST_NODE: u64 = 1 << 20;

/// Rows of a kind; further simultaneous events share the last.
const MOST_ROWS: usize = 64;

/// The work of nodes since a time, in millionths of a second since 1970 by their clocks, in the Trace Event
/// Format.
pub fn node_events(timelines: &[Timeline], since_micros: u64) -> Vec<Value> {
    let of = |(timeline, pid): (&Timeline, u64)| {
        let mut stretches: Vec<&Stretch> = timeline.stretches.iter().collect();
        stretches.retain(|stretch| stretch.began_micros + stretch.took_micros >= since_micros);
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
    };
    timelines.iter().zip(FIRST_NODE..).flat_map(of).collect()
}

/// The first row that is free when this begins, and whether it is new. `ends` are when the rows become free.
fn row_for(ends: &mut Vec<u64>, stretch: &Stretch) -> (usize, bool) {
    let end = stretch.began_micros + stretch.took_micros;
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

    proptest! {
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
