//! CIFAR-10 through real nodes: every sample exactly once, the same order however many ranks and nodes there are, every byte
//! read from the store about once, whatever dies on the way.
//!
//! The data is `../shared/data/cifar10-jpeg.tar.gz`; without it these stories are skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::Value;
use shardd_api::protocol::Placement;
use shardd_plan::{Epoch, Partition, Plan, SlotTable};
use shardd_store::catalog::{Catalog, HttpCatalog};
use shardd_tests::{
    Cluster, Delivered, Node, RankProcess, Reading, binary, is_quick, python, run, shared_data, wait_until,
};
use shardfmt::GrainKey;

const VIRTUAL_RANKS: u32 = 4;
const BATCH_SIZE: u32 = 64;

/// The data, and the turn of the story that reads it: each has the machine to itself, for their measurements.
fn cifar() -> Option<(PathBuf, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    if is_quick() {
        return None;
    }
    let tar = shared_data("cifar10-jpeg.tar.gz")?;
    Some((tar, TURN.lock().unwrap_or_else(PoisonError::into_inner)))
}

fn ingest(mut shardctl: Command, tar: &Path) {
    run(shardctl.args(["ingest"]).arg(tar).args(["--under", "train", "--name", "cifar10"]));
}

fn partition(mut shardctl: Command, q: &str) -> String {
    let text = run(shardctl.args(["--json", "partition", "cifar10", "--q", q]));
    let answer: Value = serde_json::from_str(&text).expect("partition prints JSON");
    answer["plan"].as_str().expect("the plan's id").to_owned()
}

fn store(root: &Path) -> Command {
    let mut command = Command::new(binary("shardctl"));
    command.arg("--store").arg(root);
    command
}

fn reading(plan: &str, run: &str, world: u32, epochs: std::ops::Range<u32>) -> Reading {
    Reading {
        plan: plan.into(),
        run: run.into(),
        world,
        virtual_ranks: VIRTUAL_RANKS,
        batch_size: BATCH_SIZE,
        start_epoch: epochs.start,
        end_epoch: epochs.end,
    }
}

/// The sum of the row digests of all samples, from the source itself by other code: Python's tarfile.
fn independent_sum(tar: &Path) -> Option<(u64, u128)> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/source_digest.py");
    let text = run(Command::new(python()?).arg(script).arg(tar).arg("train"));
    let (samples, sum) = text.trim().split_once(' ').expect("a count and a sum");
    Some((samples.parse().expect("a number"), u128::from_str_radix(sum, 16).expect("hexadecimal digits")))
}

/// Each epoch was delivered exactly once, and equals the source.
fn assert_exactly_once(delivered: &Delivered, source: Option<(u64, u128)>, epochs: std::ops::Range<u32>) {
    assert_eq!(
        delivered.epochs.keys().copied().collect::<Vec<_>>(),
        epochs.map(u64::from).collect::<Vec<_>>()
    );
    for (epoch, (samples, sum)) in &delivered.epochs {
        assert_eq!(*samples, 50_000, "epoch {epoch}");
        if let Some(source) = source {
            assert_eq!((*samples, *sum), source, "epoch {epoch} is not the source, each sample once");
        }
    }
}

/// The same batches without any daemon: what every run over the plan must deliver.
fn embedded(root: &Path, tar: &Path, q: &str, plan: &str, epochs: std::ops::Range<u32>) -> Delivered {
    ingest(store(root), tar);
    assert_eq!(partition(store(root), q), plan, "the same input and flags give the same plan anywhere");
    let rank = RankProcess::start(store(root), &reading(plan, "embedded", 1, epochs), 0);
    Delivered::collect(vec![rank], |_, _| {})
}

#[test]
fn ingest_gives_one_version_and_pyarrow_finds_every_image() {
    let Some((tar, _turn)) = cifar() else { return };
    let root = tempfile::TempDir::new().expect("a temporary directory can be made");
    let mut versions = Vec::new();
    for threads in ["1", "2"] {
        let dir = root.path().join(threads);
        let began = Instant::now();
        run(store(&dir).arg("ingest").arg(&tar).args([
            "--under",
            "train",
            "--name",
            "cifar10",
            "--threads",
            threads,
        ]));
        let seconds = began.elapsed().as_secs_f64();
        let info: Value = serde_json::from_str(&run(store(&dir).args(["--json", "info", "cifar10"])))
            .expect("info prints JSON");
        let bytes = info["bytes"].as_f64().expect("a size");
        println!("{threads} threads: 50,000 images in {seconds:.2} s, {:.1} MB/s", bytes / 1e6 / seconds);
        versions.push(info["version"].as_str().expect("a version").to_owned());
    }
    assert_eq!(versions[0], versions[1]);
    let Some(python) = python() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/shards_hold.py");
    let store = root.path().join("1/store");
    let found = run(Command::new(python).arg(script).arg(store).arg(&versions[0]).arg(&tar).arg("train"));
    assert_eq!(found.trim(), "50000");
}

#[test]
fn batches_depend_on_the_plan_alone() {
    let Some((tar, _turn)) = cifar() else { return };
    let source = independent_sum(&tar);
    let cluster = Cluster::start(3);
    ingest(cluster.shardctl(), &tar);
    for (q, epochs) in [("0.1", 0..3), ("1", 0..2)] {
        let plan = partition(cluster.shardctl(), q);
        let local = cluster.root().join(format!("embedded-{q}"));
        let expected = embedded(&local, &tar, q, &plan, epochs.clone());
        assert_exactly_once(&expected, source, epochs.clone());
        println!("Q = {q}: embedded done");
        for world in 1..=4 {
            let read = reading(&plan, &format!("q{q}-w{world}"), world, epochs.clone());
            let delivered = Delivered::collect(cluster.read(&read), |_, _| {});
            assert_eq!(delivered, expected, "Q = {q}, {world} ranks over 3 nodes");
            println!("Q = {q}: {world} ranks over 3 nodes deliver the same {} steps", delivered.steps.len());
        }
        reference_agrees(&local, &plan, &expected, epochs);
    }
}

/// Compares steps with the Python reference of the plan, which reads the shards with pyarrow.
fn reference_agrees(store: &Path, plan: &str, expected: &Delivered, epochs: std::ops::Range<u32>) {
    let Some(python) = python() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/steps.py");
    let text = run(Command::new(python).arg(script).arg(store.join("store")).args([
        plan.to_owned(),
        epochs.start.to_string(),
        epochs.end.to_string(),
        (VIRTUAL_RANKS * BATCH_SIZE).to_string(),
    ]));
    let mut steps = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| fields[at].parse::<u64>().expect("a number");
        let sum = u128::from_str_radix(fields[3], 16).expect("hexadecimal digits");
        steps.insert((number(0), number(1)), (number(2), sum));
    }
    assert_eq!(steps, expected.steps, "the Python reference orders the same samples into the same steps");
    println!("the Python reference agrees on {} steps", steps.len());
}

#[test]
fn one_and_two_nodes_deliver_what_three_do() {
    let Some((tar, _turn)) = cifar() else { return };
    let mut all = Vec::new();
    for nodes in 1..=2 {
        let cluster = Cluster::start(nodes);
        ingest(cluster.shardctl(), &tar);
        let plan = partition(cluster.shardctl(), "0.1");
        let delivered = Delivered::collect(cluster.read(&reading(&plan, "r", 2, 0..2)), |_, _| {});
        let expected = embedded(&cluster.root().join("embedded"), &tar, "0.1", &plan, 0..2);
        assert_eq!(delivered, expected, "{nodes} nodes");
        all.push(delivered);
    }
    assert_eq!(all[0], all[1]);
}

#[test]
fn the_store_is_read_once() {
    let Some((tar, _turn)) = cifar() else { return };
    for start in [0, 3] {
        let cluster = Cluster::start(3);
        ingest(cluster.shardctl(), &tar);
        let plan = partition(cluster.shardctl(), "0.1");
        let data = dataset_bytes(&cluster);
        let ranks = cluster.read(&reading(&plan, "r", 3, start..start + 5));
        let mut blocked = false;
        let shards = cluster.nodes[0].data.join("store/shards");
        let away = shards.with_extension("away");
        let delivered = Delivered::collect(ranks, |epoch, _| {
            if epoch == u64::from(start) + 1 && !blocked {
                std::fs::rename(&shards, &away).expect("the store can be moved away");
                blocked = true;
            }
        });
        assert!(blocked);
        assert_exactly_once(&delivered, None, start..start + 5);
        let share = cluster.origin_bytes() as f64 / data as f64;
        println!(
            "5 epochs from epoch {start} with empty caches, store gone after the first: {share:.3} x the data set read"
        );
        assert!(share <= 1.05, "{share} x the data set was read from the store");
    }
}

#[test]
fn losing_one_disk_of_three_costs_its_share_only() {
    let Some((tar, _turn)) = cifar() else { return };
    let mut cluster = Cluster::start(3);
    ingest(cluster.shardctl(), &tar);
    let plan = partition(cluster.shardctl(), "0.1");
    let data = dataset_bytes(&cluster);
    let ranks = cluster.read(&reading(&plan, "r", 3, 0..5));
    let mut before = None;
    let delivered = Delivered::collect(ranks, |epoch, step| {
        if (epoch, step) == (2, 60) {
            let victim = &mut cluster.nodes[1];
            before = Some(victim.origin_bytes());
            victim.kill();
            std::fs::remove_dir_all(victim.data.join("cache")).expect("its disk can be lost");
            victim.restart();
        }
    });
    assert_exactly_once(&delivered, None, 0..5);
    let read = cluster.origin_bytes() + before.expect("the disk was lost on the way");
    let share = read as f64 / data as f64;
    println!("5 epochs, one disk of three lost in the third: {share:.3} x the data set read");
    // A third is lost: the node reads it again, and the other nodes read of it what ranks want while the node is away,
    // which is the more the faster ranks are. Neither reads anything twice.
    assert!(share <= 1.05 + 2.0 / 3.0, "{share} x the data set was read from the store");
}

#[test]
fn any_node_may_die_in_the_middle_of_an_epoch() {
    let Some((tar, _turn)) = cifar() else { return };
    let source = independent_sum(&tar);
    let mut expected = None;
    for victim in 0..3 {
        let mut cluster = Cluster::start(3);
        ingest(cluster.shardctl(), &tar);
        let plan = partition(cluster.shardctl(), "0.1");
        if expected.is_none() {
            expected = Some(embedded(&cluster.root().join("embedded"), &tar, "0.1", &plan, 0..3));
        }
        let ranks = cluster.read(&reading(&plan, "r", 3, 0..3));
        let delivered = Delivered::collect(ranks, |epoch, step| {
            if (epoch, step) == (1, 80) {
                cluster.nodes[victim].kill();
            }
        });
        assert!(!cluster.nodes[victim].is_running());
        assert_exactly_once(&delivered, source, 0..3);
        assert_eq!(Some(&delivered), expected.as_ref(), "n{} killed: batches are unchanged", victim + 1);
        println!("n{} killed in epoch 1: 3 epochs exactly once, batches unchanged", victim + 1);
    }
}

#[test]
fn the_cache_directories_hold_what_the_plan_moves() {
    let Some((tar, _turn)) = cifar() else { return };
    for q in ["0.1", "1"] {
        let cluster = Cluster::start(3);
        ingest(cluster.shardctl(), &tar);
        let plan = partition(cluster.shardctl(), q);
        let run = format!("moved-{q}");
        let mut held: Vec<Vec<BTreeSet<GrainKey>>> = Vec::new();
        let mut expected: Vec<Vec<BTreeSet<GrainKey>>> = Vec::new();
        for epoch in 0..2 {
            Delivered::collect(cluster.read(&reading(&plan, &run, 3, epoch..epoch + 1)), |_, _| {});
            let hosted = hosted(&cluster, &plan, &run, epoch + 1);
            // The last of the exchange is sent when the readers are done; departed grains are dropped then.
            let settled = || {
                held.truncate(epoch as usize);
                held.push(cluster.nodes.iter().map(residents).collect());
                held[epoch as usize] == hosted
            };
            wait_until("the caches hold what the next epoch reads", settled);
            expected.push(hosted);
        }
        let grains: usize = expected[0].iter().map(BTreeSet::len).sum();
        let moved = |nodes: &[Vec<BTreeSet<GrainKey>>]| -> usize {
            nodes[1].iter().zip(&nodes[0]).map(|(after, before)| after.difference(before).count()).sum()
        };
        let (measured, predicted) = (moved(&held), moved(&expected));
        let share = |count: usize| count as f64 / grains as f64;
        println!(
            "Q = {q}: {measured} of {grains} grains moved between nodes ({:.4}), {predicted} by the plan ({:.4}), Q(1 - 1/3) = {:.4}",
            share(measured),
            share(predicted),
            q.parse::<f64>().expect("a share") * 2.0 / 3.0
        );
        assert!(measured.abs_diff(predicted) * 100 <= predicted, "{measured} moved, {predicted} predicted");
    }
}

/// The grains that each node hosts in an epoch, by the plan and the run's placement.
fn hosted(cluster: &Cluster, plan: &str, run: &str, epoch: u32) -> Vec<BTreeSet<GrainKey>> {
    let catalog = HttpCatalog::new(&cluster.nodes[0].http);
    let document = catalog.plan(plan.parse().expect("a plan id")).expect("the plan is there");
    let manifest = catalog.manifest(document.version).expect("the manifest is there");
    let shard_rows: Vec<u32> = manifest.shards.iter().map(|shard| shard.rows).collect();
    let grain_rows = document.grain_rows;
    let plan = Plan::new(document, &shard_rows).expect("the plan fits");
    let table = SlotTable::at(&plan, Epoch(epoch));
    let view = cluster.nodes[0].get(&format!("/v1/runs/{run}"));
    let placement: Placement = serde_json::from_value(view["placement"].clone()).expect("the run is placed");
    let of_node = |node: &Node| {
        let id = node.id.parse().expect("a node id");
        let partitions: Vec<u32> = placement.hosted_by(&id).collect();
        let grains =
            partitions.into_iter().flat_map(|p| table.grains_of(&plan, Partition(p)).collect::<Vec<_>>());
        grains
            .map(|grain| {
                let place = plan.locate_grain(grain);
                let shard = manifest.shards[place.shard as usize].id;
                GrainKey { shard, rows: grain_rows, index: place.index }
            })
            .collect()
    };
    cluster.nodes.iter().map(of_node).collect()
}

/// The grains in a node's cache directory, read from the files themselves.
fn residents(node: &Node) -> BTreeSet<GrainKey> {
    let found = shardd_engine::cache::scan(node.data.join("cache")).expect("a cache directory can be read");
    found.into_iter().map(|(key, _, _)| key).collect()
}

fn dataset_bytes(cluster: &Cluster) -> u64 {
    cluster.nodes[0].get("/v1/datasets/cifar10")["bytes"].as_u64().expect("a dataset has a size")
}
