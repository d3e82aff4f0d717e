//! A cluster loses its machines, and is made again of its store, a backup of its metadata and the `tls/` of its first node.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
#[cfg(feature = "cluster-etcd")]
use shardd_tests::Etcd;
use shardd_tests::s3::S3;
use shardd_tests::{Cluster, Delivered, RankProcess, Reading, binary, digits, error_line, run};

use super::in_store::in_bucket;

fn back_up(cluster: &Cluster, node: usize, file: &Path) -> Output {
    let args = ["metastore", "backup", file.to_str().expect("UTF-8")];
    cluster.shardctl_at(node, &args).output().expect("shardctl starts")
}

/// `shardd metastore restore` where the first node has its data, with the settings that it serves with.
fn restore(cluster: &Cluster, variables: &[(&str, String)], file: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(binary("shardd"));
    command.args(["metastore", "restore"]).arg(file).arg("--data").arg(&cluster.nodes[0].data).args(more);
    command.envs(variables.iter().map(|(name, value)| (*name, value.clone())));
    command.output().expect("shardd starts")
}

#[test]
fn a_cluster_with_sled_returns_from_its_backup() {
    let mut cluster = Cluster::start(2);
    returns(&mut cluster, &[]);
}

#[test]
fn a_cluster_with_its_metadata_in_the_store_returns_from_its_backup() {
    let Some(s3) = S3::empty_moto() else { return };
    let variables = in_bucket(&s3);
    let mut cluster = Cluster::start_with(2, &variables);
    returns(&mut cluster, &variables);
}

#[cfg(feature = "cluster-etcd")]
#[test]
fn a_cluster_with_etcd_returns_from_its_backup() {
    let Some(etcd) = Etcd::start(1) else { return };
    let variables = [("SHARDD_METASTORE", etcd.url("restored"))];
    let mut cluster = Cluster::start_with(2, &variables);
    returns(&mut cluster, &variables);
}

fn returns(cluster: &mut Cluster, variables: &[(&str, String)]) {
    let digits = digits("train");
    cluster.ask(0, &["ingest", &digits, "--name", "digits", "--shard-size", "16KiB"]);
    cluster.ask(1, &["tag", "digits", "before"]);
    let plan = cluster.ask(1, &["partition", "digits", "--q", "0.1", "--partitions", "4"]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("metadata");
    // A node without the metadata has it from the one that has it.
    let made = back_up(cluster, 1, &file);
    assert!(made.status.success(), "{}", error_line(&made));
    let report: Value = serde_json::from_slice(&made.stdout).expect("JSON");
    assert!(report["entries"].as_u64().is_some_and(|entries| entries > 2), "{report}");
    let again = back_up(cluster, 1, &file);
    assert!(error_line(&again).contains("exists; remove it"), "{}", error_line(&again));

    // Someone removes what was needed, and adds what was not.
    run(&mut cluster.shardctl_at(0, &["rm", "digits", "--yes"]));
    cluster.ask(0, &["ingest", &digits, "--name", "mistake"]);
    let refused = restore(cluster, variables, &file, &[]);
    assert!(error_line(&refused).contains("is in use by another shardd"), "{}", error_line(&refused));
    for node in &mut cluster.nodes {
        node.kill();
    }
    let cut = folder.path().join("cut");
    let bytes = fs::read(&file).expect("reads");
    fs::write(&cut, &bytes[..bytes.len() - 1]).expect("writes");
    let refused = restore(cluster, variables, &cut, &["--replace"]);
    assert!(error_line(&refused).contains("is no backup of metadata"), "{}", error_line(&refused));
    let refused = restore(cluster, variables, &file, &[]);
    assert!(error_line(&refused).contains("add --replace"), "{}", error_line(&refused));

    // The first machine is lost; its keys are put back, and the store where it was there.
    let data = cluster.nodes[0].data.clone();
    for entry in fs::read_dir(&data).expect("lists") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("tls") && !path.ends_with("store") {
            fs::remove_dir_all(&path).expect("removed");
        }
    }
    for _ in 0..2 {
        let restored = restore(cluster, variables, &file, &["--replace"]);
        assert!(restored.status.success(), "{}", error_line(&restored));
    }
    for node in &mut cluster.nodes {
        node.restart();
    }
    let names: Vec<Value> = cluster.ask(1, &["ls"]).as_array().expect("a list").clone();
    let names: Vec<&str> = names.iter().map(|entry| entry["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["digits"]);
    assert_eq!(cluster.ask(1, &["tag", "digits"])[0]["tag"], "before");
    let reading = Reading { batch_size: 50, ..Reading::alone(&plan, 2) };
    let mut command = Command::new(binary("shardctl"));
    command.args(["--server", &cluster.nodes[1].http]);
    let delivered = Delivered::collect(vec![RankProcess::start(command, &reading, 0)], |_, _| {});
    assert!(delivered.epochs.values().all(|(samples, _)| *samples == 1437), "{:?}", delivered.epochs);
    // Changes are made as before, also with the numbers that follow.
    cluster.ask(1, &["tag", "digits", "after"]);
}

#[test]
fn a_backup_of_another_cluster_is_refused() {
    let (other, mut cluster) = (Cluster::start(1), Cluster::start(1));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("metadata");
    let made = back_up(&other, 0, &file);
    assert!(made.status.success(), "{}", error_line(&made));
    cluster.nodes[0].kill();
    let refused = restore(&cluster, &[], &file, &["--replace"]);
    assert!(error_line(&refused).contains("is of another cluster"), "{}", error_line(&refused));
    cluster.nodes[0].restart();
}
