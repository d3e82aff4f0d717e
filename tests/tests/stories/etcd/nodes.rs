//! Nodes whose metadata is in etcd.

use std::process::{Command, Output};

use serde_json::Value;
use shardd_tests::{
    Cluster, Delivered, Etcd, RankProcess, Reading, binary, digits, error_line, run, wait_until,
};

fn attempt(cluster: &Cluster, node: usize, args: &[&str]) -> Output {
    cluster.shardctl_at(node, args).output().expect("shardctl starts")
}

fn start(etcd: &Etcd, nodes: usize) -> Cluster {
    let version = run(Command::new(binary("shardd")).arg("--version"));
    assert!(
        version.contains("etcd"),
        "shardd is built without etcd: run tests/run, or build it with --features shardd/cluster-etcd"
    );
    Cluster::start_over(nodes, Some(&etcd.url("cluster")))
}

fn reading(plan: &Value, epochs: u32) -> Reading {
    Reading { batch_size: 50, ..Reading::alone(plan, epochs) }
}

/// Reads all epochs through one node alone, calling `at` at every step.
fn read(cluster: &Cluster, node: usize, reading: &Reading, at: impl FnMut(u64, u64)) -> Delivered {
    let mut command = Command::new(binary("shardctl"));
    command.args(["--server", &cluster.nodes[node].http]);
    Delivered::collect(vec![RankProcess::start(command, reading, 0)], at)
}

#[test]
fn a_cluster_outlives_the_node_that_founded_it() {
    let Some(etcd) = Etcd::start(1) else { return };
    let mut cluster = start(&etcd, 2);
    cluster.ask(0, &["ingest", &digits("train"), "--name", "digits", "--shard-size", "16KiB"]);
    cluster.nodes[0].kill();

    // No command needs it: for new names, new versions and new plans, for reading, or to start.
    cluster.ask(1, &["tag", "digits", "after"]);
    cluster.ask(1, &["ingest", &digits("test"), "--name", "more"]);
    cluster.nodes[1].stop();
    cluster.nodes[1].restart();
    let plan = cluster.ask(1, &["partition", "digits@after", "--q", "0.1", "--partitions", "4"]);
    let delivered = read(&cluster, 1, &reading(&plan, 2), |_, _| {});
    assert_eq!(delivered.epochs.values().map(|(samples, _)| *samples).collect::<Vec<_>>(), [1437, 1437]);

    // It comes back as before, without a new setting for the metadata.
    cluster.nodes[0].forget_metastore();
    cluster.nodes[0].restart();
    let listed = cluster.ask(0, &["tag", "digits"]);
    assert_eq!(listed[0]["tag"], "after", "{listed}");
    assert!(!cluster.nodes[0].data.join("meta").exists(), "no sled beside the etcd");
}

#[test]
fn without_etcd_reading_goes_on_and_changes_wait() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let cluster = start(&etcd, 2);
    cluster.ask(0, &["ingest", &digits("train"), "--name", "digits", "--shard-size", "16KiB"]);
    let plan = cluster.ask(1, &["partition", "digits", "--q", "0.1", "--partitions", "4"]);
    let delivered = read(&cluster, 1, &reading(&plan, 3), |epoch, step| {
        if (epoch, step) == (0, 2) {
            etcd.kill(0);
        }
    });
    assert_eq!(delivered.epochs.len(), 3);
    assert!(delivered.epochs.values().all(|(samples, _)| *samples == 1437), "{:?}", delivered.epochs);

    let refused = attempt(&cluster, 1, &["tag", "digits", "away"]);
    let error = error_line(&refused);
    assert!(!refused.status.success(), "{error}");
    assert!(error.contains("metastore etcd://") && error.contains("is unavailable"), "{error}");
    println!("{error}");

    etcd.restart(0);
    wait_until("changes are made again", || {
        attempt(&cluster, 1, &["tag", "digits", "back"]).status.success()
    });
}
