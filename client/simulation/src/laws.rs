//! What a simulation must find, against slower ways to find the same.

use std::collections::BTreeSet;

use proptest::prelude::*;
use shardd_plan::{
    InitialPlacement, Partition, PlanDocument, PlanOptions, Schedule, Selection, Shape, SlotTable,
};
use shardfmt::VersionId;
use shardfmt::digest::Digest;

use super::matrix::Pairs;
use super::traffic::Traffic;
use super::*;

fn plan(shard_rows: &[u32], options: PlanOptions) -> Plan {
    let shape = Shape { shard_rows: shard_rows.to_vec(), row_bytes: 0 };
    let document = PlanDocument::with_defaults(VersionId(Digest::of(b"simulated")), &shape, options);
    Plan::new(document.expect("the options fit"), shard_rows).expect("the document fits")
}

fn scenario(nodes: u32, epochs: u32, events: &[&str]) -> Scenario {
    Scenario {
        nodes,
        epochs,
        events: events.iter().map(|event| event.parse().expect("an event")).collect(),
        link: "8bit/s".parse().expect("a byte in a second"),
        round_trip: std::time::Duration::ZERO,
        step: None,
        global_batch_size: 32,
    }
}

fn plans() -> impl Strategy<Value = Plan> {
    let share = prop_oneof![Just("0"), Just("0.1"), Just("0.37"), Just("1"), Just("1,0.1")];
    let choices = (share, any::<bool>(), any::<bool>(), any::<u64>());
    (prop::collection::vec(8..60_u32, 1..8), 1..9_u32, 0..3_u32, 1..5_u32, choices).prop_map(
        |(shard_rows, partitions, log_rows, chunks, (q, is_cyclic, is_spread, seed))| {
            let grains = shard_rows.iter().map(|rows| rows >> log_rows).sum::<u32>();
            let options = PlanOptions {
                q: q.parse().expect("a schedule"),
                seed,
                partitions: Some(partitions.min(grains)),
                grain_rows: Some(1 << log_rows),
                chunks: Some(chunks),
                selection: if is_cyclic { Selection::Cyclic } else { Selection::Independent },
                placement: match is_spread {
                    true => InitialPlacement::Random,
                    false => InitialPlacement::Shards,
                },
                ..PlanOptions::default()
            };
            plan(&shard_rows, options)
        },
    )
}

/// The partition of every full grain, read off a table of slots.
fn partitions_of_grains(plan: &Plan, table: &SlotTable) -> Vec<(u64, u32)> {
    let slots = plan.partitions().flat_map(|m| (0..plan.slot_count(m)).map(move |slot| (m, slot)));
    let mut found: Vec<_> = slots.map(|(m, slot)| (table.grain(plan, m, slot).0, m.0)).collect();
    found.sort_unstable();
    found
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn traffic_is_what_differs_between_two_tables_of_slots(plan in plans(), nodes in 1..9_u32, epochs in 1..6_u32) {
        let nodes = nodes.min(plan.document().partitions);
        let cluster = Cluster::new(&plan, nodes);
        let placement = cluster.placement();
        let host = |partition: u32| usize::from(placement.of_partition[partition as usize]);
        let mut table = SlotTable::initial(&plan);
        let first = partitions_of_grains(&plan, &table);
        let (mut every, mut some) = (Homes::following(&plan, u64::MAX, 0), Homes::following(&plan, 0, u64::MAX));
        for epoch in (0..epochs).map(Epoch) {
            let before = partitions_of_grains(&plan, &table);
            let home = before.iter().zip(&first).filter(|(now, first)| now.1 == first.1).count();
            let mixing = every.mixing(epoch);
            prop_assert_eq!(mixing.of_grains, plan.full_grain_count());
            prop_assert!((mixing.counted - home as f64 / before.len() as f64).abs() < 1e-12);
            prop_assert_eq!(some.mixing(epoch), mixing, "looked up grain by grain");
            let mut pairs = Pairs::new(epoch.0, plan.document().partitions);
            before.iter().zip(&first).for_each(|(now, first)| pairs.count(now.1, first.1));
            let matrix = pairs.matrix();
            prop_assert_eq!(&every.matrix(epoch), &matrix);
            prop_assert_eq!(&some.matrix(epoch), &matrix, "looked up grain by grain");

            let traffic = Traffic::count(&plan, epoch, placement, &mut every, &|_| {});
            prop_assert_eq!(&Traffic::count(&plan, epoch, placement, &mut some, &|_| {}), &traffic);
            table.advance(&plan);
            let after = partitions_of_grains(&plan, &table);
            let (mut sent, mut received) = (vec![0; placement.hosts.len()], vec![0; placement.hosts.len()]);
            let mut pairs = BTreeSet::new();
            let mut moved = 0;
            for ((grain, from), (same, to)) in before.iter().zip(&after) {
                prop_assert_eq!(grain, same, "every grain is in one partition, before and after");
                moved += u64::from(from != to);
                let (from, to) = (host(*from), host(*to));
                if from != to {
                    sent[from] += 1;
                    received[to] += 1;
                    pairs.extend([(from, to), (to, from)]);
                }
            }
            prop_assert_eq!(traffic.moved, moved);
            prop_assert_eq!(traffic.sent.iter().sum::<u64>(), traffic.received.iter().sum::<u64>());
            prop_assert_eq!((&traffic.sent, &traffic.received), (&sent, &received));
            let peers: Vec<_> =
                (0..sent.len()).map(|node| pairs.iter().filter(|pair| pair.0 == node).count() as u32).collect();
            prop_assert_eq!(traffic.peers, peers);
            prop_assert_eq!(traffic.exchanged, exchanged(&plan, epoch));
        }
    }

    #[test]
    fn whoever_comes_and_goes_every_partition_has_a_live_host_and_every_moved_sample_a_source(
        plan in plans(), nodes in 1..9_u32, events in prop::collection::vec((0..3_u32, 1..4_u32), 1..6),
    ) {
        let nodes = nodes.min(plan.document().partitions);
        let mut cluster = Cluster::new(&plan, nodes);
        for (epoch, (kind, count)) in (1..).zip(events) {
            let kind = [EventKind::Join, EventKind::Leave, EventKind::Death][kind as usize];
            if kind != EventKind::Join && count >= cluster.live_count() {
                continue;
            }
            let before = cluster.placement().clone();
            let change = cluster.change([Event { kind, epoch, nodes: count }].iter(), 7, epoch);
            let change = change.expect("something happened");
            let now = cluster.placement();
            let moved: Vec<_> =
                plan.partitions().filter(|m| before.host(m.0) != now.host(m.0)).collect();
            let samples: u64 = moved.iter().map(|m| plan.partition_samples(*m)).sum();
            let is_here = |m: &Partition| now.hosts.contains(before.host(m.0));
            let of_those_here: u64 =
                moved.iter().filter(|m| is_here(m)).map(|m| plan.partition_samples(*m)).sum();
            let lost = if kind == EventKind::Death { samples - of_those_here } else { 0 };
            prop_assert_eq!(change.partitions_moved, moved.len() as u64);
            prop_assert_eq!((change.samples_from_peers, change.samples_from_store), (samples - lost, lost));
            let held: u64 = cluster.held().iter().sum();
            prop_assert_eq!(held, plan.sample_count() + of_those_here, "sent grains are kept meanwhile");
        }
    }

    #[test]
    fn the_predicted_home_share_is_within_sampling_error_of_the_counted_one(
        seed in any::<u64>(), q in prop_oneof![Just("0.01"), Just("0.1"), Just("0.3"), Just("1,0.01")],
        is_cyclic in any::<bool>(), epoch in 0..12_u32,
    ) {
        let selection = if is_cyclic { Selection::Cyclic } else { Selection::Independent };
        let q = q.parse::<Schedule>().expect("a schedule");
        let options = PlanOptions {
            q, seed, selection, partitions: Some(16), grain_rows: Some(1), chunks: Some(1), ..PlanOptions::default()
        };
        let plan = plan(&[4_000, 4_000], options);
        let mut homes = Homes::following(&plan, u64::MAX, 0);
        let cluster = Cluster::new(&plan, 4);
        for epoch in (0..epoch).map(Epoch) {
            Traffic::count(&plan, epoch, cluster.placement(), &mut homes, &|_| {});
        }
        let Mixing { predicted, counted, of_grains } = homes.mixing(Epoch(epoch));
        // Six standard deviations, and a slot of each partition for rounding.
        let deviation = (predicted * (1.0 - predicted) / of_grains as f64).sqrt();
        let rounding = 16.0 / of_grains as f64;
        prop_assert!((counted - predicted).abs() <= 6.0 * deviation + rounding, "{predicted} {counted}");
    }
}

#[test]
fn epochs_that_are_too_many_to_count_are_estimated_and_say_so() {
    let options = PlanOptions { partitions: Some(16), grain_rows: Some(1), ..PlanOptions::default() };
    let plan = plan(&[8_000, 8_000], options);
    let scenario = scenario(8, 10, &[]);
    let whole = simulate(&plan, 16_000_000, &scenario, &|_, _| {}).expect("it fits");
    let some = simulate_within(
        Effort { moves: 5_000, ..Effort::default() },
        &plan,
        16_000_000,
        &scenario,
        None,
        &|_, _| {},
    )
    .expect("it fits")
    .0;
    assert_eq!((whole.summary.counted_epochs, some.summary.counted_epochs), (10, 3));
    let counted: Vec<bool> = some.epochs.iter().map(|epoch| epoch.is_counted).collect();
    assert_eq!(
        counted,
        [0, 4, 8].iter().fold(vec![false; 10], |mut all, at| {
            all[*at] = true;
            all
        })
    );
    for (exact, estimated) in whole.epochs.iter().zip(&some.epochs) {
        assert_eq!(exact.grains_exchanged, estimated.grains_exchanged);
        assert!(exact.exchanged_bytes.abs_diff(estimated.exchanged_bytes) < exact.exchanged_bytes / 10);
        assert_eq!(estimated.peers.is_some(), estimated.is_counted);
    }
    assert!(whole.summary.moved_share > 0.09 && whole.summary.moved_share < 0.098);
    let total: u64 = whole.nodes.iter().map(|node| node.sent_bytes).sum();
    assert!(total.abs_diff(whole.summary.exchanged_bytes / 10) <= 8 * 10);
}

#[test]
fn a_death_costs_the_store_what_the_dead_node_held_and_a_join_brings_it_back_from_a_peer() {
    let options = PlanOptions { partitions: Some(8), grain_rows: Some(1), ..PlanOptions::default() };
    let plan = plan(&[800], options);
    let played = simulate(&plan, 800, &scenario(8, 6, &["death:2:1", "join:4:1", "leave:5:1"]), &|_, _| {});
    let played = played.expect("it fits");
    let changes: Vec<Change> = played.epochs.iter().filter_map(|epoch| epoch.change).collect();
    let moved =
        |change: &Change| (change.partitions_moved, change.samples_from_peers, change.samples_from_store);
    assert_eq!(changes.iter().map(moved).collect::<Vec<_>>(), [(1, 0, 100), (1, 100, 0), (1, 100, 0)]);
    assert_eq!(played.epochs.iter().map(|epoch| epoch.nodes).collect::<Vec<_>>(), [8, 8, 7, 7, 8, 7]);
    assert_eq!(played.summary.refetched_from_store, 100);
    assert!(played.nodes.is_empty(), "they are not the same in all epochs");
    // One node hosts two partitions from epoch 2 on.
    assert!(played.summary.peak_node_samples > 200 && played.summary.peak_node_samples < 260);
}

#[test]
fn what_cannot_be_played_is_refused_in_one_line_with_the_way_out() {
    let options = PlanOptions { partitions: Some(8), grain_rows: Some(1), ..PlanOptions::default() };
    let plan = plan(&[800], options);
    let refused = |scenario: Scenario| simulate(&plan, 800, &scenario, &|_, _| {}).unwrap_err().to_string();
    assert!(refused(scenario(9, 2, &[])).contains("with 9 partitions or more"));
    assert!(refused(scenario(0, 2, &[])).contains("at least 1 node"));
    assert!(refused(scenario(4, 0, &[])).contains("0 epochs"));
    assert!(refused(scenario(4, 2, &["death:2:1"])).contains("there are 2 epochs"));
    assert!(refused(scenario(4, 2, &["death:0:1"])).contains("from 1 on"));
    assert!(refused(scenario(4, 3, &["leave:2:3", "death:1:1"])).contains("leave:2:3: there are 3 nodes"));
    assert!(refused(scenario(4, 3, &["join:1:5"])).contains("9 nodes"));
    assert!(refused(scenario(4, 3, &["join:1:4000000000"])).contains("at most 65536"));
    assert!(
        refused(Scenario { global_batch_size: 0, ..scenario(4, 3, &[]) }).contains("global batch size of 1")
    );
    for text in ["", "join", "join:1", "come:1:1", "join:1:x", "join:1:1:1", "death:-1:1"] {
        assert_eq!(text.parse::<Event>(), Err(ScenarioError::EventSyntax), "{text}");
    }
    for text in ["", "fast", "10", "10GB", "bit", "0Gbit", "0Gbit/s", "-1GB/s", "4bit/s", "1bit/s"] {
        assert_eq!(text.parse::<LinkRate>(), Err(ScenarioError::LinkSyntax), "{text}");
    }
    let rate = |text: &str| text.parse::<LinkRate>().expect("a rate").to_string();
    assert_eq!(
        ["10Gbit/s", "1.25GB/s", "400Mbit", "8bit/s"].map(rate),
        ["10 Gbit/s", "10 Gbit/s", "400 Mbit/s", "8 bit/s"]
    );
}

#[test]
fn a_matrix_begins_as_the_identity_and_each_row_sums_to_one() {
    let options = PlanOptions {
        partitions: Some(100),
        grain_rows: Some(1),
        q: "0.5".parse().expect("a share"),
        ..PlanOptions::default()
    };
    let plan = plan(&[8_000], options);
    let of = |epoch: u32| {
        let played =
            simulate_within(Effort::default(), &plan, 8_000, &scenario(4, 12, &[]), Some(epoch), &|_, _| {});
        played.expect("it fits").1.expect("it was asked for")
    };
    let (first, last) = (of(0), of(11));
    assert_eq!(
        (first.rows.len(), first.partitions, first.of_grains),
        (64, 100, 8_000),
        "neighbours share a row"
    );
    for (at, row) in first.rows.iter().enumerate() {
        assert!(
            row.iter().enumerate().all(|(column, share)| *share == f32::from(at == column)),
            "{at}: {row:?}"
        );
    }
    for row in &last.rows {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-4);
        assert!(
            row.iter().all(|share| *share < 0.2),
            "all is mixed after eleven exchanges of a half: {row:?}"
        );
    }
    let beyond =
        simulate_within(Effort::default(), &plan, 8_000, &scenario(4, 12, &[]), Some(12), &|_, _| {});
    assert!(
        beyond.expect_err("12 epochs").to_string().contains("epoch 12 is not played: there are 12 epochs")
    );
}

#[test]
fn no_schedule_has_more_counted_than_allowed_and_the_largest_exchange_is() {
    let of = |q: &str, epochs: u32, moves: u64| {
        let q = q.parse().expect("a schedule");
        let options = PlanOptions { partitions: Some(16), grain_rows: Some(1), q, ..PlanOptions::default() };
        let plan = plan(&[8_000, 8_000], options);
        let effort = Effort { moves, moves_of_epoch: 16_000, followed: 0, lookups: 2_000 };
        let played = simulate_within(effort, &plan, 16_000_000, &scenario(8, epochs, &[]), None, &|_, _| {});
        played.expect("it fits").0
    };
    // The weight lies where every other epoch is counted.
    let alternating = of("0.5,0,0.5,0,0.5,0,0.5,0,0", 40, 17_000);
    let moves = |report: &Report, is_counted: bool| -> u64 {
        let epochs = report.epochs.iter().filter(|epoch| epoch.is_counted == is_counted);
        epochs.map(|epoch| epoch.grains_exchanged).sum()
    };
    assert_eq!((moves(&alternating, true), moves(&alternating, false)), (16_000, 16_000));
    let followed = alternating.epochs.iter().filter_map(|epoch| epoch.home_share).map(|home| home.of_grains);
    assert!(followed.clone().count() > 0 && followed.max() < Some(200), "2,000 steps are for few grains");

    // Nothing is exchanged before the last epoch but one.
    let late = of("0,0,0,1", 5, 16_000);
    assert!(late.epochs[3].is_counted);
    assert!(late.summary.slowest_exchange_seconds > 0.0 && late.summary.hiding_step_seconds > 0.0);
    let estimated = &late.epochs[4];
    assert!(
        !estimated.is_counted
            && estimated.exchanged_bytes.abs_diff(estimated.predicted_exchanged_bytes) < 1_000_000
    );

    let options = PlanOptions {
        partitions: Some(16),
        grain_rows: Some(1),
        q: "1".parse().expect("all"),
        ..PlanOptions::default()
    };
    let plan = plan(&[8_000, 8_000], options);
    let effort = Effort { moves_of_epoch: 15_999, ..Effort::default() };
    let refused = simulate_within(effort, &plan, 16_000_000, &scenario(8, 1, &[]), None, &|_, _| {});
    assert!(
        refused.expect_err("16,000 grains").to_string().contains("16000 grains in one exchange are too many")
    );
}
