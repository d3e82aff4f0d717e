use std::collections::BTreeMap;

use super::rows::{Named, NodeRows, RowOrder, RowState};
use super::*;
use crate::drain::{Drained, NodeState};
use crate::exchange::{EpochCount, EpochExchange};
use crate::health::{Ailment, HealthIssue, Measured};
use crate::hot::HotOrder;
use crate::local_transport::Transport;
use crate::loop_time::{LoopTime, RecentTime};
use crate::machine::{Directory, DiskStatus};
use crate::node::NodeRecord;
use crate::status::{CounterView, Reader, RunRate};

const NOW: u64 = 1_800_000_000;
const GIB: u64 = 1 << 30;

fn id(name: &str) -> NodeId {
    name.parse().expect("a name")
}

fn record(name: &str) -> NodeRecord {
    NodeRecord {
        id: id(name),
        http: format!("http://{name}:7700"),
        quic: ([127, 0, 0, 1], 7701).into(),
        cache_bytes: 10 * GIB,
        started_at: NOW - 3600,
        socket: None,
        metastore: None,
    }
}

fn status(name: &str) -> NodeStatus {
    NodeStatus {
        node: id(name),
        cache_used_bytes: 4 * GIB,
        cache_limit_bytes: 10 * GIB,
        cache_grains: 1000,
        cache_peak_bytes: 5 * GIB,
        origin_bytes: GIB,
        origin_requests: 10,
        origin_reread: 0,
        origin_wire: None,
        store_epochs: Vec::new(),
        measured: Measured::default(),
        health_issues: Vec::new(),
        exchange_now: crate::exchange::ExchangeNow::default(),
        readers: Vec::new(),
        metadata: None,
        machine: Some(MachineStatus {
            release: "0.1.0".to_owned(),
            start: NOW - 3600,
            disks: vec![DiskStatus {
                directory: Directory::Cache,
                path: "/data/cache".to_owned(),
                size_bytes: 100 * GIB,
                free_bytes: 50 * GIB,
                full: None,
            }],
            certificate_ends: Some(NOW + 60 * 86_400),
            ..MachineStatus::default()
        }),
        counters: CounterView::default(),
    }
}

fn node(name: &str, change: impl FnOnce(&mut NodeStatus)) -> NodeReport {
    let mut status = status(name);
    change(&mut status);
    NodeReport {
        state: NodeState {
            record: record(name),
            draining: None,
            drained: Drained { hosted: 12, copying: 0 },
            health_issues: Vec::new(),
        },
        status: Some(status),
        unanswered: None,
    }
}

/// A rank that waits for a part of its time.
fn reader(rank: u32, waits: &[(Stage, f64)]) -> Reader {
    let wait_shares: BTreeMap<Stage, f64> =
        Stage::ALL.into_iter().map(|stage| (stage, 0.0)).chain(waits.iter().copied()).collect();
    let exposed: f64 = wait_shares.values().sum();
    Reader {
        run: "r1".parse().expect("a name"),
        rank,
        epoch: 3,
        transport: Transport::Files,
        position: 40_000,
        epoch_samples: 100_000,
        loop_time: Some(LoopTime { steps: 100, ..LoopTime::default() }),
        recent: Some(RecentTime {
            over_s: 60.0,
            samples_per_second: 250.0,
            steps_per_second: 4.0,
            compute_share: 1.0 - exposed,
            ranks_share: 0.0,
            wait_shares,
        }),
        run_rate: Some(RunRate { least: 900.0, most: 1100.0 }),
        exposed_since: (exposed > EXPOSED).then_some(NOW - 300),
    }
}

fn healthy() -> Vec<NodeReport> {
    (0..4)
        .map(|n| node(&format!("n{n}"), |status| status.readers = vec![reader(n, &[(Stage::Disk, 0.01)])]))
        .collect()
}

fn view(nodes: &[NodeReport]) -> Overview {
    overview(&Observed { now: NOW, nodes, lost: &[], metadata_trouble: None })
}

fn kinds(view: &Overview) -> Vec<&str> {
    view.findings.iter().map(|finding| finding.kind.as_str()).collect()
}

#[test]
fn a_healthy_cluster_has_no_finding_and_its_run_a_forecast() {
    let view = view(&healthy());
    assert_eq!(view.findings, []);
    assert_eq!(view.nodes, NodeCounts { live: 4, ..NodeCounts::default() });
    let run = &view.runs[0];
    assert_eq!((run.ranks, run.epoch, run.position, run.samples_per_second), (4, 3, 40_000, Some(1000.0)));
    let ends = run.epoch_ends.expect("ranks report");
    assert!((ends.in_s - 60.0).abs() < 0.1 && ends.earliest_s < 60.0 && ends.latest_s > 60.0, "{ends:?}");
    let waits = run.waits.as_ref().expect("ranks report");
    assert!(!waits.is_straggler && waits.exposed_share < EXPOSED && waits.since.is_none());
}

#[test]
fn a_rank_that_waits_alone_is_the_straggler_with_its_stage_node_and_time() {
    let mut nodes = healthy();
    nodes[2] =
        node("n2", |status| status.readers = vec![reader(2, &[(Stage::Disk, 0.41), (Stage::Decode, 0.02)])]);
    let view = view(&nodes);
    assert_eq!(kinds(&view), ["straggler"]);
    let finding = &view.findings[0];
    assert_eq!(
        (finding.rank, finding.node.clone(), finding.since),
        (Some(2), Some(id("n2")), Some(NOW - 300))
    );
    assert_eq!(finding.title, "rank 2 of r1 slows every step: it waits for its disk");
    assert!(finding.cause.contains("43 % of its time"), "{}", finding.cause);
    let waits = view.runs[0].waits.as_ref().expect("ranks report");
    assert!(waits.is_straggler && waits.stage == Some(Stage::Disk));
    assert_eq!(view.runs[0].readers[0].rank, 2, "the one that waits most is first");
}

#[test]
fn ranks_that_all_wait_are_no_stragglers() {
    let all = [(Stage::Network, 0.5)];
    let nodes: Vec<NodeReport> =
        (0..4).map(|n| node(&format!("n{n}"), |status| status.readers = vec![reader(n, &all)])).collect();
    let view = view(&nodes);
    assert_eq!(kinds(&view), ["waits_for_data"]);
    assert_eq!(view.findings[0].title, "run r1 waits for the network");
}

#[test]
fn a_rank_that_reports_to_several_nodes_counts_once_as_it_was_heard_last() {
    let mut nodes = healthy();
    let mut older = reader(0, &[(Stage::Python, 0.9)]);
    older.loop_time = Some(LoopTime { steps: 50, ..LoopTime::default() });
    nodes[3] = node("n3", |status| status.readers = vec![older, reader(3, &[])]);
    let view = view(&nodes);
    assert_eq!((view.runs[0].ranks, view.runs[0].readers.len()), (4, 4));
    assert_eq!(kinds(&view), Vec::<&str>::new());
}

#[test]
fn a_rank_belongs_to_its_own_node_alone_and_so_does_its_trouble() {
    let mut nodes = healthy();
    // It reads at n2, and n0, n1 and n3 host some of its partitions: they hear how far it is, once before and once after n2.
    let is_heard_elsewhere = |ahead: u64| Reader {
        loop_time: None,
        recent: None,
        position: 40_000 + ahead,
        transport: Transport::Stream,
        ..reader(2, &[])
    };
    for (n, ahead) in [(0, 500), (1, 0), (3, 900)] {
        nodes[n] = node(&format!("n{n}"), |status| {
            status.readers = vec![reader(u32::try_from(n).expect("small"), &[]), is_heard_elsewhere(ahead)];
        });
    }
    nodes[2] = node("n2", |status| status.readers = vec![reader(2, &[(Stage::Disk, 0.5)])]);
    let seen = view(&nodes);
    assert_eq!(seen.findings[0].node, Some(id("n2")));
    let ranks_of = |nodes: &[NodeReport]| -> Vec<usize> {
        let rows = NodeRows::of(nodes, &[], RowOrder::Name, Named::Containing(""), 0, 9).rows;
        rows.iter().map(|row| row.ranks).collect()
    };
    assert_eq!(ranks_of(&nodes), [1, 1, 1, 1]);
    assert_eq!(nodes[3].status.as_ref().expect("it answers").own_ranks(), 1);
    // Nodes that hear the same of it: the one that lends it files.
    let streamed = Reader { transport: Transport::Stream, ..reader(2, &[(Stage::Disk, 0.5)]) };
    nodes[3] = node("n3", |status| status.readers = vec![reader(3, &[]), streamed]);
    assert_eq!(view(&nodes).findings[0].node, Some(id("n2")));
    assert_eq!(ranks_of(&nodes), [1, 1, 1, 1]);
}

#[test]
fn a_corrupt_grain_counts_where_it_lay_and_not_where_it_was_refused() {
    let mut nodes = healthy();
    nodes[1] = node("n1", |status| status.counters.corrupt_from_peers = 7);
    nodes[2] = node("n2", |status| status.counters.corrupt_on_disk = 2);
    let rows = NodeRows::of(&nodes, &[], RowOrder::Name, Named::Containing(""), 0, 9).rows;
    let corrupt: Vec<u64> =
        rows.iter().map(|row| row.numbers.as_ref().expect("it answers").corrupt_grains).collect();
    assert_eq!(corrupt, [0, 0, 2, 0]);
}

#[test]
fn a_disk_that_is_mostly_empty_has_no_finding_whatever_its_trend() {
    let with = |free_bytes, in_s| {
        let mut nodes = healthy();
        nodes[0] = node("n0", |status| {
            let disk = &mut status.machine.as_mut().expect("there is one").disks[0];
            disk.free_bytes = free_bytes;
            disk.full = Some(Forecast { in_s, earliest_s: in_s / 2.0, latest_s: 2.0 * in_s });
        });
        view(&nodes).findings.first().map(|finding| finding.severity)
    };
    assert_eq!(with(41 * GIB, 60.0), None, "of 100 GiB");
    assert_eq!(with(39 * GIB, 60.0), Some(Severity::Warning));
    assert_eq!(with(19 * GIB, 60.0), Some(Severity::Critical));
    assert_eq!(with(19 * GIB, 3600.0), Some(Severity::Warning));
    assert_eq!(with(19 * GIB, 5.0 * 3600.0), None);
}

#[test]
fn each_fault_is_one_finding_with_its_node_and_the_worst_is_first() {
    let mut nodes = healthy();
    nodes[1] = node("n1", |status| status.counters.corrupt_on_disk = 3);
    nodes[2] = node("n2", |status| {
        let disk = &mut status.machine.as_mut().expect("there is one").disks[0];
        (disk.free_bytes, disk.full) =
            (9 * GIB, Some(Forecast { in_s: 7000.0, earliest_s: 6000.0, latest_s: 9000.0 }));
    });
    nodes[3].state.health_issues = ["n0", "n1"]
        .map(|by| HealthIssue {
            node: id("n3"),
            what: Ailment::SlowReads,
            by: id(by),
            measured: 40_000,
            others: 1_000,
        })
        .to_vec();
    let lost = [Lost { record: record("n4"), last_seen: Some(NOW - 60) }];
    let view =
        overview(&Observed { now: NOW, nodes: &nodes, lost: &lost, metadata_trouble: Some("no answer") });
    assert_eq!(kinds(&view), ["metastore_down", "node_lost", "corrupt_grains", "disk_fills_up", "slow_disk"]);
    let of = |kind: &str| view.findings.iter().find(|finding| finding.kind == kind).expect(kind);
    assert!(
        of("disk_fills_up")
            .cause
            .ends_with("It will be full in 117 min (100 min to 2 h), by the last minutes."),
        "{}",
        of("disk_fills_up").cause
    );
    assert!(of("slow_disk").cause.starts_with("2 nodes report it; node n0:"), "{}", of("slow_disk").cause);
    assert_eq!(of("node_lost").since, Some(NOW - 60));
    assert_eq!(view.nodes, NodeCounts { live: 4, lost: 1, unhealthy: 1, ..NodeCounts::default() });
    assert_eq!(view.totals.corrupt_grains, 3);
}

#[test]
fn a_disk_that_the_plans_will_fill_is_named_before_it_fills() {
    let mut nodes = healthy();
    nodes[0] = node("n0", |status| {
        status.cache_peak_bytes = 9 * GIB;
        status.machine.as_mut().expect("there is one").disks[0].free_bytes = 4 * GIB;
    });
    let found = view(&nodes);
    assert_eq!(kinds(&found), ["disk_fills_up"]);
    assert!(found.findings[0].cause.contains("will take 5.0 GiB more"), "{}", found.findings[0].cause);
    nodes[0] =
        node("n0", |status| status.machine.as_mut().expect("there is one").disks[0].free_bytes = GIB / 2);
    assert_eq!(view(&nodes).findings[0].severity, Severity::Critical);
}

#[test]
fn a_full_disk_is_the_cache_s_fault_where_the_cache_takes_most_of_it() {
    let remedy = |cached| {
        let mut nodes = healthy();
        nodes[0] = node("n0", |status| {
            status.cache_used_bytes = cached;
            status.machine.as_mut().expect("there is one").disks[0].free_bytes = 0;
        });
        view(&nodes).findings[0].remedy.clone()
    };
    assert_eq!(
        remedy(40 * GIB),
        "Free space on the disk: other files take most of it. The cache has 40.0 GiB of the 100.0 GiB in use."
    );
    assert!(remedy(60 * GIB).contains("`shardctl evict --all --node n0`"), "{}", remedy(60 * GIB));
}

#[test]
fn directories_on_one_disk_are_one_finding() {
    let mut nodes = healthy();
    nodes[0] = node("n0", |status| {
        let disks = &mut status.machine.as_mut().expect("there is one").disks;
        disks[0].free_bytes = GIB;
        let same = DiskStatus { directory: Directory::Data, free_bytes: GIB + 4096, ..disks[0].clone() };
        let other = DiskStatus {
            directory: Directory::Store,
            size_bytes: 50 * GIB,
            free_bytes: 0,
            ..disks[0].clone()
        };
        disks.extend([same, other]);
    });
    let titles: Vec<String> = view(&nodes).findings.iter().map(|finding| finding.title.clone()).collect();
    assert_eq!(
        titles,
        ["the cache disk of node n0 is nearly full", "the store disk of node n0 is nearly full"]
    );
}

#[test]
fn a_rank_that_computes_slowly_is_no_rank_that_waits_for_data() {
    let view_of = |ranks: [(f64, f64); 4]| {
        let mut nodes = healthy();
        for (node, (exposed, for_ranks)) in nodes.iter_mut().zip(ranks) {
            let status = node.status.as_mut().expect("it answered");
            let rank = status.readers[0].rank;
            status.readers = vec![reader(rank, &[(Stage::Network, exposed)])];
            let recent = status.readers[0].recent.as_mut().expect("it reports");
            recent.ranks_share = for_ranks;
            recent.compute_share -= for_ranks;
        }
        view(&nodes)
    };
    // Rank 2 works all of its time, and the others wait for it.
    let view = view_of([(0.01, 0.3), (0.01, 0.28), (0.01, 0.02), (0.01, 0.31)]);
    assert_eq!(kinds(&view), ["slow_rank"]);
    let slow = view.runs[0].slow.as_ref().expect("it is slow");
    assert_eq!((slow.rank, slow.node.as_str(), slow.others_wait_share), (2, "n2", 0.3));
    assert!(view.findings[0].cause.contains("works 97 % of its time"), "{}", view.findings[0].cause);
    assert!(view.findings[0].title.starts_with("rank 2 of r1 slows every step"));

    // The others wait for rank 2, which waits for data: that is the cause.
    assert_eq!(kinds(&view_of([(0.01, 0.3), (0.01, 0.28), (0.3, 0.0), (0.01, 0.31)])), ["straggler"]);
    // All wait for each other a little, or one waits for the rest.
    assert!(kinds(&view_of([(0.01, 0.05), (0.01, 0.04), (0.01, 0.02), (0.01, 0.05)])).is_empty());
    assert!(kinds(&view_of([(0.01, 0.0), (0.01, 0.0), (0.01, 0.0), (0.01, 0.5)])).is_empty());
}

#[test]
fn a_certificate_ends_soon_by_its_own_lifetime() {
    let severity = |issued: Option<u64>, ends: u64| {
        let mut nodes = healthy();
        nodes[1] = node("n1", |status| {
            let machine = status.machine.as_mut().expect("there is one");
            (machine.certificate_issued, machine.certificate_ends) = (issued, Some(ends));
        });
        view(&nodes).findings.first().map(|finding| finding.severity)
    };
    let (hour, day) = (3600, 86_400);
    // Of one day: renewed when eight hours are left.
    assert_eq!(severity(Some(NOW - 16 * hour), NOW + 8 * hour), None);
    assert_eq!(severity(Some(NOW - 19 * hour), NOW + 5 * hour), Some(Severity::Warning));
    assert_eq!(severity(Some(NOW - 23 * hour), NOW + hour), Some(Severity::Critical));
    // Of 30 days, known or not.
    for (issued, days, expected) in [
        (Some(NOW - 22 * day), 8, None),
        (Some(NOW - 23 * day), 7, Some(Severity::Warning)),
        (None, 8, None),
        (None, 7, Some(Severity::Warning)),
    ] {
        assert_eq!(severity(issued, NOW + days * day), expected, "{days} days of {issued:?}");
    }
    assert_eq!(severity(Some(NOW - 29 * day), NOW + day), Some(Severity::Critical));
    assert_eq!(severity(Some(NOW - 1), NOW - 1), Some(Severity::Critical), "it has ended");
}

#[test]
fn caches_certificates_copies_exchanges_and_releases_are_looked_at() {
    let mut nodes = healthy();
    nodes[0] = node("n0", |status| status.cache_peak_bytes = 11 * GIB);
    nodes[1] = node("n1", |status| {
        status.machine.as_mut().expect("there is one").certificate_ends = Some(NOW + 86_400)
    });
    nodes[2] = node("n2", |status| {
        status.machine.as_mut().expect("there is one").release = "0.2.0".to_owned();
        status.counters.exchange = vec![EpochCount {
            run: "r1".to_owned(),
            epoch: 2,
            counts: EpochExchange { sending_micros: 100, waited_micros: 30, ..EpochExchange::default() },
        }];
        status.readers = vec![reader(2, &[])];
    });
    nodes[3] = node("n3", |status| {
        status.metadata = Some(crate::status::MetadataStatus {
            epoch: 1,
            trouble: None,
            copied_at: None,
            copy_bytes: 0,
            is_behind: true,
            lag_s: 90,
            copy_trouble: Some("no space".to_owned()),
        });
    });
    let view = view(&nodes);
    let expected = [
        "certificate_expiry",
        "cache_too_small",
        "metadata_copy_lags",
        "exchange_not_hidden",
        "mixed_releases",
    ];
    assert_eq!(kinds(&view), expected);
    assert_eq!(view.findings[0].severity, Severity::Critical);
    assert!(view.findings[3].cause.contains("30 % of the latest exchange"), "{}", view.findings[3].cause);
}

#[test]
fn a_node_that_does_not_answer_is_counted_and_named() {
    let mut nodes = healthy();
    (nodes[1].status, nodes[1].unanswered) = (None, Some("timed out".to_owned()));
    let view = view(&nodes);
    assert_eq!(kinds(&view), ["node_unanswered"]);
    assert_eq!((view.nodes.unanswered, view.runs[0].ranks), (1, 3));
}

#[test]
fn orders_and_severities_have_one_name() {
    let json = |value: serde_json::Result<serde_json::Value>| value.expect("a name");
    use RowOrder::{Cache, Disk, Name, Origin, Processors, State};
    for order in [Name, State, Cache, Disk, Origin, Processors] {
        assert_eq!(json(serde_json::to_value(order)), order.name());
    }
    for order in [HotOrder::Reads, HotOrder::Bytes, HotOrder::Misses, HotOrder::Latency] {
        assert_eq!(json(serde_json::to_value(order)), order.name());
    }
    for severity in [Severity::Info, Severity::Warning, Severity::Critical] {
        assert_eq!(json(serde_json::to_value(severity)), severity.name());
    }
}

#[test]
fn a_view_of_a_cluster_in_much_trouble_is_bounded_and_counts_the_rest() {
    let nodes: Vec<NodeReport> = (0..1000)
        .map(|n| {
            node(&format!("n{n}"), |status| {
                status.readers = vec![Reader {
                    run: format!("r{n}").parse().expect("a name"),
                    ..reader(0, &[(Stage::Disk, 0.9)])
                }];
                status.counters.corrupt_on_disk = 1;
            })
        })
        .collect();
    let view = view(&nodes);
    assert_eq!((view.runs.len(), view.more_runs), (MOST_RUNS, 1000 - MOST_RUNS));
    assert_eq!(view.findings.len(), MOST_FINDINGS);
    assert!(view.more_findings >= 1000 - MOST_FINDINGS, "{}", view.more_findings);
    let bytes = serde_json::to_vec(&view).expect("plain data").len();
    assert!(bytes < 120_000, "{bytes} bytes");
}

#[test]
fn rows_are_sorted_searched_and_cut() {
    let mut nodes: Vec<NodeReport> =
        (0..50).rev().map(|n| node(&format!("n{n:02}"), |status| status.origin_bytes = n)).collect();
    (nodes[7].status, nodes[7].unanswered) = (None, Some("timed out".to_owned()));
    let lost = [Lost { record: record("zz"), last_seen: None }];
    let names = |order, search: &str, offset, limit| {
        let rows = NodeRows::of(&nodes, &lost, order, Named::Containing(search), offset, limit);
        (rows.total, rows.rows.iter().map(|row| row.id.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(names(RowOrder::Name, "", 1, 2), (51, vec!["n01".to_owned(), "n02".to_owned()]));
    assert_eq!(names(RowOrder::Origin, "n4", 0, 2), (10, vec!["n49".to_owned(), "n48".to_owned()]));
    assert_eq!(names(RowOrder::State, "", 0, 2), (51, vec!["zz".to_owned(), "n42".to_owned()]));
    assert_eq!(names(RowOrder::Origin, "", 49, 9).1, ["n42", "zz"], "those without numbers come last");
    assert_eq!(names(RowOrder::Disk, "none", 0, 9), (0, vec![]));
    let rows = NodeRows::of(&nodes, &lost, RowOrder::State, Named::Containing(""), 0, 1);
    assert_eq!(rows.rows[0].state, RowState::Lost);
    nodes[48].state.draining = Some(crate::drain::Drain::Asked);
    let rows = NodeRows::of(&nodes, &lost, RowOrder::State, Named::Exactly(&id("n01")), 0, 9);
    assert_eq!((rows.total, rows.rows[0].draining), (1, true));
    assert!(NodeRows::of(&nodes, &lost, RowOrder::Name, Named::Exactly(&id("n0")), 0, 9).rows.is_empty());
    let text =
        serde_json::to_string(&NodeRows::of(&nodes, &lost, RowOrder::Name, Named::Containing(""), 0, 50))
            .expect("plain data");
    assert!(text.len() < 50 * 600, "{} bytes", text.len());
    assert_eq!(serde_json::from_str::<NodeRows>(&text).expect("as written").rows.len(), 50);
}
