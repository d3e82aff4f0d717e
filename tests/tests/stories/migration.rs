//! The metadata of a cluster moves from sled on its first node to another place, while a training reads.

use std::process::{Command, Output};
use std::time::Instant;

use serde_json::Value;
#[cfg(feature = "cluster-etcd")]
use shardd_tests::Etcd;
use shardd_tests::{Cluster, Delivered, RankProcess, Reading, binary, digits, error_line, wait_until};

/// `shardd metastore migrate` where the first node has its data.
fn migrate(cluster: &Cluster, to: &str) -> Output {
    let mut command = Command::new(binary("shardd"));
    command.args(["metastore", "migrate", "--to", to, "--data"]).arg(&cluster.nodes[0].data);
    command.output().expect("shardd starts")
}

#[test]
fn metadata_moves_to_the_store_under_a_training() {
    moves("store");
}

#[cfg(feature = "cluster-etcd")]
#[test]
fn metadata_moves_to_etcd_under_a_training() {
    let Some(etcd) = Etcd::start(1) else { return };
    moves(&etcd.url("moved"));
}

fn moves(to: &str) {
    let mut cluster = Cluster::start(3);
    let digits = digits("train");
    cluster.ask(0, &["ingest", &digits, "--name", "digits", "--shard-size", "16KiB"]);
    cluster.ask(1, &["tag", "digits", "before"]);
    let plan = cluster.ask(1, &["partition", "digits", "--q", "0.1", "--partitions", "4"]);
    let refused = migrate(&cluster, to);
    assert!(!refused.status.success() && error_line(&refused).contains("is in use by another shardd"));

    let reading = Reading { batch_size: 50, ..Reading::alone(&plan, 4) };
    let mut command = Command::new(binary("shardctl"));
    command.args(["--server", &cluster.nodes[1].http]);
    let mut pause = None;
    let delivered = Delivered::collect(vec![RankProcess::start(command, &reading, 0)], |epoch, step| {
        if (epoch, step) == (1, 2) {
            let begun = Instant::now();
            cluster.nodes[0].stop();
            let moved = migrate(&cluster, to);
            assert!(moved.status.success(), "{}", error_line(&moved));
            println!("{}", String::from_utf8_lossy(&moved.stdout).trim());
            cluster.nodes[0].restart();
            wait_until("changes are made through another node", || {
                cluster
                    .shardctl_at(2, &["tag", "digits", "meanwhile"])
                    .output()
                    .expect("starts")
                    .status
                    .success()
            });
            pause = Some(begun.elapsed());
        }
    });
    println!("to {to}: changes waited {:.1} s", pause.expect("it was moved").as_secs_f64());
    assert!(delivered.epochs.values().all(|(samples, _)| *samples == 1437), "{:?}", delivered.epochs);
    let tags = |listed: &Value| {
        let tags = listed.as_array().expect("a list").iter();
        tags.map(|tag| tag["tag"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(tags(&cluster.ask(0, &["tag", "digits"])), ["before", "meanwhile"]);
    assert!(!cluster.nodes[0].data.join("meta").exists(), "sled is set aside");
    assert!(!migrate(&cluster, to).status.success(), "there is nothing left to move");

    // From their next start on, the others do without the first node.
    wait_until("the others have heard of it", || {
        let known = std::fs::read(cluster.nodes[2].data.join("tls/cluster.json")).expect("it has joined");
        serde_json::from_slice::<Value>(&known).is_ok_and(|known| known["metastore"].is_string())
    });
    cluster.nodes[2].stop();
    cluster.nodes[2].restart();
    cluster.nodes[0].kill();
    cluster.ask(2, &["tag", "digits", "without"]);
    assert_eq!(tags(&cluster.ask(2, &["tag", "digits"])), ["before", "meanwhile", "without"]);
}
