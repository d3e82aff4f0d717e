use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::health::{Ailment, Disk, HealthIssue};
use crate::machine::PressureShares;

const LOOK: Duration = Duration::from_secs(10);
const GIB: u64 = 1 << 30;

fn node(number: usize) -> NodeId {
    format!("n{number:04}").parse().expect("a name")
}

fn on() -> BalancerRecord {
    let settings = Settings { mode: Mode::On, ..Settings::default() };
    BalancerRecord { settings, ..BalancerRecord::default() }
}

/// A look at nodes that take this many times as long as the others.
fn look(times: &[f64], bytes: u64) -> Look {
    let nodes: Vec<NodeId> = (0..times.len()).map(node).collect();
    let slow = |times: &f64| Slowness { signal: Signal::DiskReads, times: *times };
    Look {
        elapsed: LOOK,
        partitions: 96,
        bytes,
        slowness: nodes.iter().cloned().zip(times.iter().map(slow)).collect(),
        nodes,
        ..Look::default()
    }
}

fn looks(record: BalancerRecord, look: &Look, count: usize) -> BalancerRecord {
    let (mut record, mut elapsed) = (record, Duration::ZERO);
    for _ in 0..count {
        elapsed += LOOK;
        if let Some(next) = decide(&record, &Look { elapsed, ..look.clone() }) {
            (record, elapsed) = (next, Duration::ZERO);
        }
    }
    record
}

fn shares(record: &BalancerRecord, nodes: usize) -> Vec<u8> {
    (0..nodes).map(|number| record.share(&node(number)).eighths()).collect()
}

#[test]
fn a_slow_node_gets_the_share_with_which_it_is_as_fast_and_its_own_when_it_is_well() {
    let (slow, well) = (look(&[1.0, 4.0, 1.0, 1.0], GIB), look(&[1.0; 4], GIB));
    let record = looks(on(), &slow, 2);
    assert_eq!(shares(&record, 4), [8; 4], "two looks may err");
    let record = looks(record, &slow, 1);
    assert_eq!(shares(&record, 4), [8, 2, 8, 8]);
    let decision = record.journal.last().expect("written down").clone();
    assert_eq!((decision.node, decision.from, decision.to), (node(1), Share::FULL, Share::of(4.0)));
    let Forecast { bytes, time_before, time_after } = decision.forecast;
    // It had 8 of 32 eighths, and has 2 of 26.
    assert_eq!(bytes, (GIB as f64 * (0.25 - 2.0 / 26.0)).round() as u64);
    assert!((time_before - 4.0).abs() < 1e-9 && (time_after - 32.0 / 26.0).abs() < 1e-9);

    let record = looks(record, &well, 11);
    assert_eq!(shares(&record, 4), [8, 2, 8, 8]);
    let record = looks(record, &well, 1);
    assert_eq!(shares(&record, 4), [8; 4]);
    let a_day = 24 * 360;
    assert_eq!(looks(record, &well, a_day + 2).nodes, BTreeMap::new(), "nothing is left to remember");
}

#[test]
fn nothing_is_written_down_of_nodes_that_are_alike() {
    let well = look(&[1.0, 1.3, 1.7, 1.0], GIB);
    assert_eq!(decide(&on(), &well), None);
    let off = BalancerRecord { settings: Settings { mode: Mode::Off, ..Settings::default() }, ..on() };
    assert_eq!(decide(&off, &look(&[1.0, 8.0], GIB)), None);
    assert_eq!(decide(&on(), &look(&[8.0], GIB)), None, "it is alone");
}

#[test]
fn what_is_only_observed_is_written_down_and_not_in_force() {
    let observe = BalancerRecord::default();
    assert_eq!(observe.settings.mode, Mode::Observe);
    let record = looks(observe, &look(&[1.0, 8.0, 1.0], GIB), 3);
    assert_eq!(record.share(&node(1)), Share::LEAST, "8 times");
    assert!(!record.journal.last().expect("written down").carried_out);
    let nodes: Vec<NodeId> = (0..3).map(node).collect();
    assert!(record.shares_in_force(nodes.iter()).values().all(|share| share.is_full()));
    let on = record.with(Settings { mode: Mode::On, ..Settings::default() });
    assert_eq!(on.nodes, BTreeMap::new());
    assert_eq!(on.journal.len(), 1);
}

#[test]
fn a_smaller_share_that_shortens_nothing_is_not_given() {
    // With an eighth it takes 2.4 times as long as a node that is well with an even share.
    let record = looks(on(), &look(&[1.0, 1.0, 15.0, 1.0], GIB), 5);
    assert_eq!(shares(&record, 4), [8, 8, 1, 8]);
    let record = looks(record, &look(&[1.0, 1.0, 15.0, 2.0], GIB), 50);
    assert_eq!(shares(&record, 4), [8, 8, 1, 8], "all wait for the other one anyway");
    let record = looks(record, &look(&[1.0, 1.0, 15.0, 8.0], GIB), 5);
    assert_eq!(shares(&record, 4), [8, 8, 1, 1]);
}

#[test]
fn a_node_that_is_slower_by_far_hosts_nothing_and_is_tried_again() {
    let mut seen = look(&[1.0, 40.0, 1.0, 1.0], GIB);
    let record = looks(on(), &seen, 3);
    assert_eq!(shares(&record, 4), [8, 0, 8, 8]);
    assert_eq!(caps(96, &record.shares_in_force(seen.nodes.iter())).get(&node(1)), Some(&0));
    let record = looks(record, &seen, 100);
    assert_eq!(shares(&record, 4), [8, 0, 8, 8], "it still shows that it is slow");
    // It measures nothing any more.
    seen.slowness.remove(&node(1));
    let record = looks(record, &seen, 60);
    assert_eq!(shares(&record, 4), [8, 1, 8, 8], "a trial");
    let record = looks(record, &look(&[1.0, 40.0, 1.0, 1.0], GIB), 6);
    assert_eq!(shares(&record, 4), [8, 0, 8, 8]);
    let record = looks(record, &seen, 239);
    assert_eq!(shares(&record, 4), [8, 0, 8, 8], "the next trial is later");
    let record = looks(record, &look(&[1.0; 4], GIB), 1);
    assert_eq!(shares(&record, 4), [8, 1, 8, 8]);
    let record = looks(record, &look(&[1.0; 4], GIB), 12);
    assert_eq!(shares(&record, 4), [8; 4]);
}

#[test]
fn the_budget_is_kept_and_a_change_too_large_for_it_is_made_in_parts() {
    let slow = look(&[1.0, 8.0, 1.0, 1.0], 160 * GIB);
    let record = looks(on(), &slow, 3);
    assert_eq!(shares(&record, 4), [8; 4], "half a minute's worth of four nodes is 2 GiB");
    let record = looks(record, &slow, 40);
    let decisions: Vec<u64> = record.journal.iter().map(|decision| decision.forecast.bytes).collect();
    assert!(decisions.len() > 1, "{decisions:?}");
    assert!(decisions.iter().sum::<u64>() <= 43 * 4 * GIB / 6);
}

#[test]
fn partitions_that_are_larger_than_any_budget_move_one_step_at_a_time() {
    let slow = look(&[1.0, 8.0, 1.0, 1.0], 10 << 40);
    let record = looks(on(), &slow, 6 * 5 + 1);
    assert_eq!(shares(&record, 4), [8, 7, 8, 8]);
    assert!(record.budget_bytes < 0);
    // A step is 248 GiB, and a minute 4.
    assert_eq!(shares(&looks(record.clone(), &slow, 6 * 60), 4), [8, 7, 8, 8], "the debt comes first");
    assert_eq!(shares(&looks(record, &slow, 6 * 65), 4), [8, 6, 8, 8]);
}

#[test]
fn the_effect_of_a_decision_is_noted() {
    let at_speed = |times: &[f64], speed| Look { samples_per_second: Some(speed), ..look(times, GIB) };
    let record = looks(on(), &at_speed(&[1.0, 8.0, 1.0], 100.0), 3);
    let record = looks(record, &at_speed(&[1.0, 8.0, 1.0], 250.0), 18);
    let decision = record.journal.last().expect("written down");
    assert_eq!(decision.samples_per_second, Some(100.0));
    assert_eq!(decision.outcome, Some(Outcome { samples_per_second: 250.0 }));
}

#[test]
fn nodes_are_compared_by_their_worst_signal() {
    let reads = |micros| NodeLoad {
        disk: Disk { read_micros: Some(micros), sync_micros: None },
        ..NodeLoad::default()
    };
    let waits =
        |io| NodeLoad { pressure: Some(PressureShares { io, ..PressureShares::default() }), ..reads(1) };
    let of = |loads: &[NodeLoad], issues: &[HealthIssue]| {
        let loads = (0..).zip(loads).map(|(number, load)| (node(number), *load)).collect();
        let all = slowness(&loads, issues);
        all.values().map(|slow| (slow.signal, (slow.times * 100.0).round() / 100.0)).collect::<Vec<_>>()
    };
    use Signal::{Answers, DiskReads, IoPressure};
    let well = (DiskReads, 1.0);
    assert_eq!(of(&[reads(7_000), reads(70_000), reads(7_000)], &[]), [well, (DiskReads, 10.0), well]);
    assert_eq!(of(&[reads(10), reads(4_000), reads(20)], &[]), [well; 3], "all are fast");
    assert_eq!(of(&[waits(0.6), waits(0.9), waits(0.6)], &[]), [well, (IoPressure, 4.0), well]);
    assert_eq!(of(&[waits(0.1), waits(0.4), waits(0.2)], &[]), [well; 3], "none waits much");
    assert_eq!(of(&[reads(7_000)], &[]), [], "there is no other");
    let report = |by: usize| HealthIssue {
        node: node(2),
        what: Ailment::SlowAnswers,
        by: node(by),
        measured: 900_000,
        others: 100_000,
    };
    assert_eq!(of(&[reads(1); 3], &[report(0)]), [well; 3], "one report may be of a bad link");
    assert_eq!(of(&[reads(1); 3], &[report(0), report(1)]), [well, well, (Answers, 9.0)]);
}

proptest! {
    /// A change back takes twice as long each time: in any course of speeds there are few changes.
    #[test]
    fn a_node_that_wavers_is_left_alone(
        phases in prop::collection::vec((1usize..60, prop::sample::select(vec![1.0, 2.0, 4.0, 10.0, 40.0])), 40..80),
    ) {
        let mut record = on();
        let (mut changes, mut all) = (0, 0);
        for (length, times) in phases {
            let seen = look(&[1.0, times, 1.0, 1.0, 1.0], 1 << 20);
            for _ in 0..length {
                if let Some(next) = decide(&record, &seen) {
                    changes += next.journal.iter().filter(|decision| decision.look == next.look).count();
                    record = next;
                }
                all += 1;
            }
        }
        // To turn back takes as long as it took the times before together, and a change is made in few parts.
        let most = 3 * (all as f64 / 15.0).log2().ceil() as usize + 8;
        prop_assert!(changes <= most, "{changes} changes in {all} looks");
    }

    #[test]
    fn moved_bytes_stay_within_the_budget(
        courses in prop::collection::vec(prop::collection::vec(1.0f64..12.0, 6), 10..120), gib in 1u64..200,
    ) {
        let mut record = on();
        let mut moved = 0;
        for (number, times) in (1u64..).zip(&courses) {
            if let Some(next) = decide(&record, &look(times, gib * GIB)) {
                moved += next.journal.iter().filter(|decision| decision.look == next.look)
                    .map(|decision| decision.forecast.bytes).sum::<u64>();
                record = next;
            }
            // Six nodes, and six looks in a minute. A step that is larger than the budget takes an eighth of a share.
            prop_assert!(moved <= number * GIB + gib * GIB / 36);
        }
    }

    #[test]
    fn caps_leave_the_rest_to_the_others(
        eighths in prop::collection::vec(0u8..=8, 2..50), partitions in 50usize..5000,
    ) {
        let all: BTreeMap<NodeId, Share> = (0..).map(node).zip(eighths.iter().copied().map(Share)).collect();
        let caps = caps(partitions, &all);
        prop_assert_eq!(caps.len(), eighths.iter().filter(|eighths| **eighths < 8).count());
        let sum: usize = eighths.iter().map(|eighths| usize::from(*eighths)).sum();
        for (node, cap) in caps {
            let part = partitions as f64 * f64::from(all[&node].eighths()) / sum as f64;
            prop_assert!((cap as f64 - part).abs() <= 1.0 && (cap > 0) == (all[&node] > Share::NONE));
        }
    }
}
