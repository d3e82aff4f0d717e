//! The metadata of a cluster moves from sled on its first node to another place, and between its store and etcd, while a training
//! reads.

use std::process::{Command, Output};
#[cfg(feature = "cluster-etcd")]
use std::sync::{Arc, Mutex};
#[cfg(feature = "cluster-etcd")]
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;
use shardd_tests::{Cluster, Delivered, RankProcess, Reading, binary, digits, error_line, wait_until};
#[cfg(feature = "cluster-etcd")]
use shardd_tests::{Etcd, Node, Repeated};

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

/// The names of tags, as `shardctl tag` lists them.
fn tags(listed: &Value) -> Vec<String> {
    let tags = listed.as_array().expect("a list").iter();
    tags.map(|tag| tag["tag"].as_str().expect("a name").to_owned()).collect()
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

/// Puts tags through a node until it is dropped, and adds those that were acknowledged to `kept`.
#[cfg(feature = "cluster-etcd")]
fn tagging(cluster: &Cluster, node: usize, prefix: &str, kept: &Arc<Mutex<Vec<String>>>) -> Repeated {
    let (http, prefix, kept) = (cluster.nodes[node].http.clone(), prefix.to_owned(), Arc::clone(kept));
    let mut tags = (0..).map(move |n| format!("{prefix}{n}"));
    let mut last = Instant::now();
    Repeated::every(Duration::ZERO, move || {
        let tag = tags.next().expect("numbers do not end");
        let mut command = Command::new(binary("shardctl"));
        if command.args(["--server", &http, "tag", "digits", &tag]).output().expect("starts").status.success()
        {
            println!("{tag} after {:.2} s", last.elapsed().as_secs_f64());
            last = Instant::now();
            kept.lock().expect("no panic").push(tag);
        }
    })
}

#[cfg(feature = "cluster-etcd")]
#[test]
fn metadata_moves_from_the_store_to_etcd_and_back_while_nodes_serve() {
    let Some(etcd) = Etcd::start(3) else { return };
    let mut cluster = Cluster::start_over(3, Some("store"));
    let digits = digits("train");
    cluster.ask(0, &["ingest", &digits, "--name", "digits", "--shard-size", "16KiB"]);
    let plan = cluster.ask(1, &["partition", "digits", "--q", "0.1", "--partitions", "4"]);
    let url = etcd.url("moved");
    let refused = |words: &[&str]| {
        let output = cluster.shardctl_at(1, words).output().expect("starts");
        assert!(!output.status.success(), "{words:?}");
        error_line(&output)
    };
    let there = refused(&["metastore", "migrate", "--to", "store"]);
    assert!(there.contains("the metadata is in store already"), "{there}");
    let bad = refused(&["metastore", "migrate", "--to", "s3://bucket"]);
    assert!(bad.contains("to: write sled, store, or etcd://"), "{bad}");
    let back = refused(&["metastore", "migrate", "--to", "sled"]);
    assert!(back.contains("does not move back to one node"), "{back}");

    let reading = Reading { batch_size: 50, ..Reading::alone(&plan, 4) };
    let mut command = Command::new(binary("shardctl"));
    command.args(["--server", &cluster.nodes[1].http]);
    let kept = Arc::new(Mutex::new(vec![]));
    let delivered = Delivered::collect(vec![RankProcess::start(command, &reading, 0)], |epoch, step| {
        let (to, prefix) = match (epoch, step) {
            (1, 2) => (url.as_str(), "to-etcd"),
            (2, 2) => ("store", "to-store"),
            _ => return,
        };
        // One node misses the move.
        cluster.nodes[2].stop();
        let tagging = tagging(&cluster, 1, prefix, &kept);
        let moved = cluster.ask(0, &["metastore", "migrate", "--to", to]);
        assert_eq!(moved["at"], to);
        assert!(moved["entries"].as_u64().expect("a number") > 3, "{moved}");
        for node in [0, 1] {
            wait_until("changes are made through every node", || {
                let tag = format!("{prefix}-at-{node}");
                let put = cluster.shardctl_at(node, &["tag", "digits", &tag]).output().expect("starts");
                put.status.success()
            });
            kept.lock().expect("no panic").push(format!("{prefix}-at-{node}"));
        }
        cluster.nodes[2].restart();
        let late = format!("{prefix}-late");
        cluster.ask(2, &["tag", "digits", &late]);
        kept.lock().expect("no panic").push(late);
        drop(tagging);
    });
    assert!(delivered.epochs.values().all(|(samples, _)| *samples == 1437), "{:?}", delivered.epochs);
    let mut kept = kept.lock().expect("no panic").clone();
    kept.sort();
    for node in 0..3 {
        let mut there = tags(&cluster.ask(node, &["tag", "digits"]));
        there.sort();
        assert_eq!(there, kept, "node {node} sees each change that was acknowledged");
    }

    // The others do without the first node. It comes back, though its settings name the place before, and a node that joins hears of
    // the present one.
    cluster.ask(1, &["metastore", "migrate", "--to", &url]);
    wait_until("the first node has followed", || {
        let kept = std::fs::read_to_string(cluster.nodes[0].data.join("metastore")).expect("it has a place");
        kept.trim() == url
    });
    cluster.nodes[0].kill();
    cluster.ask(1, &["tag", "digits", "without"]);
    cluster.nodes[0].restart();
    assert!(cluster.nodes[0].log().contains("--metastore names the place that the metadata has left"));
    let token = cluster.nodes[0].data.join("join-token");
    let joined = Node::start(cluster.root(), "n4", Some(&token));
    let known = std::fs::read(joined.data.join("tls/cluster.json")).expect("it has joined");
    let known: Value = serde_json::from_slice(&known).expect("JSON");
    assert_eq!(known["metastore"], url);
    cluster.nodes.push(joined);
    assert!(tags(&cluster.ask(3, &["tag", "digits"])).contains(&"without".to_owned()));
}
