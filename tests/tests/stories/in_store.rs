//! A cluster whose metadata is in its store: no node is special, and while the store does not answer only changes wait for it.

use std::process::{Command, Output};

use serde_json::Value;
use shardd_tests::s3::S3;
use shardd_tests::{Cluster, Delivered, RankProcess, Reading, binary, digits, error_line, run, wait_until};

fn attempt(cluster: &Cluster, node: usize, args: &[&str]) -> Output {
    cluster.shardctl_at(node, args).output().expect("shardctl starts")
}

/// What the nodes have in their environment: the store in the bucket, and that the metadata is there, too.
pub(super) fn in_bucket(s3: &S3) -> Vec<(&'static str, String)> {
    let variables = s3.variables().into_iter().map(|(name, value)| (name, value.to_owned()));
    let own = [("SHARDD_STORE", "s3://data/cluster"), ("SHARDD_METASTORE", "store")];
    variables.chain(own.map(|(name, value)| (name, value.to_owned()))).collect()
}

fn read(cluster: &Cluster, node: usize, plan: &Value, epochs: u32, at: impl FnMut(u64, u64)) -> Vec<u64> {
    let reading = Reading { batch_size: 50, ..Reading::alone(plan, epochs) };
    let mut command = Command::new(binary("shardctl"));
    command.args(["--server", &cluster.nodes[node].http]);
    let delivered = Delivered::collect(vec![RankProcess::start(command, &reading, 0)], at);
    delivered.epochs.values().map(|(samples, _)| *samples).collect()
}

#[test]
fn a_cluster_on_a_bucket_outlives_each_of_its_nodes() {
    let Some(s3) = S3::empty_moto() else { return };
    let mut cluster = Cluster::start_with(3, &in_bucket(&s3));
    cluster.ask(0, &["ingest", &digits("train"), "--name", "digits", "--shard-size", "16KiB"]);
    cluster.nodes[0].kill();

    // No command needs the node that founded it: for new names, new versions and new plans, for reading, or to start.
    cluster.ask(1, &["tag", "digits", "after"]);
    cluster.ask(2, &["ingest", &digits("test"), "--name", "more"]);
    cluster.nodes[1].stop();
    cluster.nodes[1].restart();
    let plan = cluster.ask(1, &["partition", "digits@after", "--q", "0.1", "--partitions", "4"]);
    assert_eq!(read(&cluster, 2, &plan, 2, |_, _| {}), [1437, 1437]);

    // It comes back as before, without a setting for the metadata.
    cluster.nodes[0].forget_metastore();
    cluster.nodes[0].restart();
    let listed = cluster.ask(0, &["tag", "digits"]);
    assert_eq!(listed[0]["tag"], "after", "{listed}");
    assert!(!cluster.nodes[0].data.join("meta").exists(), "no sled beside the store's metadata");
    // Who uses the bucket without a node has the same names.
    let mut embedded = Command::new(binary("shardctl"));
    embedded.envs(s3.variables()).args(["--store", "s3://data/cluster", "--json", "ls"]);
    let names = run(&mut embedded);
    assert!(names.contains("\"digits\"") && names.contains("\"more\""), "{names}");
}

#[test]
fn while_the_bucket_is_away_reading_continues_and_changes_wait() {
    let Some(s3) = S3::empty_moto() else { return };
    let cluster = Cluster::start_with(2, &in_bucket(&s3));
    cluster.ask(0, &["ingest", &digits("train"), "--name", "digits", "--shard-size", "16KiB"]);
    let plan = cluster.ask(1, &["partition", "digits", "--q", "0.1", "--partitions", "4"]);
    let paused = read(&cluster, 1, &plan, 4, |epoch, step| {
        // By now each sample is in a cache.
        if (epoch, step) == (1, 2) {
            s3.pause();
        }
    });
    assert_eq!(paused, [1437; 4]);

    let refused = attempt(&cluster, 1, &["tag", "digits", "away"]);
    let error = error_line(&refused);
    assert!(!refused.status.success(), "{error}");
    assert!(error.contains("metastore in s3://data/cluster is unavailable"), "{error}");
    println!("{error}");

    s3.resume();
    wait_until("changes are made again", || {
        attempt(&cluster, 1, &["tag", "digits", "back"]).status.success()
    });
}

#[test]
fn a_store_with_the_metadata_of_another_cluster_is_refused() {
    let store = tempfile::TempDir::new().expect("a temporary directory can be made");
    let shared = store.path().join("store").display().to_string();
    let variables = [("SHARDD_STORE", shared), ("SHARDD_METASTORE", "store".to_owned())];
    let _first = Cluster::start_with(1, &variables);
    let mut other = Command::new(binary("shardd"));
    other.args(["serve", "--http", "127.0.0.1:0", "--data"]).arg(store.path().join("other"));
    let refused = other.envs(variables).output().expect("starts");
    let error = error_line(&refused);
    assert!(!refused.status.success() && error.contains("has the metadata of another cluster"), "{error}");
}
