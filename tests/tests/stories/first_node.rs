//! The first node, which keeps the metadata, dies, and then a rank: what each alone does not end, both together do not.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use shardd_tests::{Cluster, binary, run, wait_until};

const EPOCHS: u64 = 6;

/// Killed when dropped, and its ranks with it.
struct Launcher {
    process: Child,
    progress: std::io::Lines<BufReader<std::process::ChildStdout>>,
    said: std::sync::mpsc::Receiver<String>,
    heard: Vec<String>,
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Launcher {
    fn start(cluster: &Cluster, name: &str, launch: &[&str], more: &[&str]) -> Launcher {
        let mut command = Command::new(binary("shardtrain"));
        command.arg("run").args(launch).arg("--");
        train(&mut command, cluster, name);
        command.args(["--progress", "-"]).args(more);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let progress = BufReader::new(process.stdout.take().expect("piped")).lines();
        let lines = BufReader::new(process.stderr.take().expect("piped")).lines();
        let (say, said) = std::sync::mpsc::sync_channel(1 << 12);
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(say.try_send(line))));
        Launcher { process, progress, said, heard: Vec::new() }
    }

    /// Waits until this step of an epoch has been trained, or one after it.
    fn until(&mut self, epoch: u64, step: u64) {
        let is_there =
            |line: &Value| (line["epoch"].as_u64(), line["step"].as_u64()) >= (Some(epoch), Some(step));
        let mut lines = self.progress.by_ref().map(|line| line.expect("text"));
        let found = lines.find(|line| is_there(&serde_json::from_str(line).expect("JSON")));
        assert!(found.is_some(), "it ended before epoch {epoch}:\n{}", self.all_said());
    }

    /// The processes of its ranks, as it says once.
    fn ranks(&mut self) -> Vec<String> {
        loop {
            let line = self.said.recv().unwrap_or_else(|_| panic!("it ended: {:?}", self.heard));
            self.heard.push(line.clone());
            if let Some((_, pids)) = line.rsplit_once("processes ") {
                return pids.split(' ').map(str::to_owned).collect();
            }
        }
    }

    fn all_said(&mut self) -> String {
        self.heard.extend(self.said.try_iter());
        self.heard.join("\n")
    }

    fn end(mut self) {
        self.progress.by_ref().for_each(drop);
        let status = self.process.wait().expect("it ends");
        assert!(status.success(), "{}", self.all_said());
    }
}

/// Of the other nodes first: the one that dies is the last that is asked.
fn train(command: &mut Command, cluster: &Cluster, name: &str) {
    let servers: Vec<&str> = cluster.nodes.iter().rev().map(|node| node.http.as_str()).collect();
    command.args(["--server", &servers.join(","), "--dataset", "digits", "--run", name]);
    command.args(["--epochs", &EPOCHS.to_string(), "--virtual-ranks", "4", "--batch-size", "8"]);
    command.args(["--norm", "group", "--timeout", "20", "--report"]).arg(cluster.root().join(name));
    command.env("RAYON_NUM_THREADS", "1");
}

/// Three nodes, over a store of the first one or one in a directory of its own.
fn with_digits(store: Option<&Path>) -> Cluster {
    let store = store.map(|store| ("SHARDD_STORE", store.display().to_string()));
    let cluster = Cluster::start_with(3, store.as_slice());
    let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../client/data/digits/train.parquet"));
    run(cluster.shardctl().arg("ingest").arg(data).args(["--name", "digits"]));
    run(cluster.shardctl().args(["partition", "digits", "--partitions", "8", "--q", "0.2"]));
    cluster
}

fn digest(cluster: &Cluster, name: &str) -> Value {
    let report = std::fs::read(cluster.root().join(name)).expect("it is written");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    report["weights_digest"].clone()
}

/// Every epoch was read exactly once, as the node with this number knows once the metadata is back.
fn verified(cluster: &Cluster, node: usize, name: &str) {
    let server = &cluster.nodes[node].http;
    let verify = || {
        let mut command = Command::new(binary("shardctl"));
        command.args(["--server", server, "--json", "audit", "verify", "--run", name]).output()
    };
    wait_until("all reports are there", || {
        let output = verify().expect("it runs");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        output.status.success() && said["epochs"].as_array().map(Vec::len) == Some(EPOCHS as usize)
    });
}

#[test]
fn ranks_form_again_though_the_first_node_is_dead_and_their_reports_are_kept_until_it_is_back() {
    let mut cluster = with_digits(None);
    let mut whole = Command::new(binary("shardtrain"));
    train(&mut whole, &cluster, "whole");
    run(&mut whole);

    let kept = cluster.root().join("kept");
    let kept = ["--checkpoints", kept.to_str().expect("text"), "--checkpoint-every", "7"];
    for (name, launch, more) in
        [("stay", &["--nproc", "3", "--elastic"][..], &[][..]), ("anew", &["--nproc", "3"][..], &kept[..])]
    {
        let mut launcher = Launcher::start(&cluster, name, launch, more);
        let ranks = launcher.ranks();
        launcher.until(1, 3);
        cluster.nodes[0].kill();
        launcher.until(2, 3);
        run(Command::new("kill").args(["-KILL", &ranks[1]]));
        launcher.end();
        assert_eq!(digest(&cluster, name), digest(&cluster, "whole"), "{name}");
        lists_are_old(&cluster);
        cluster.nodes[0].restart();
        verified(&cluster, 0, name);
    }
}

/// The exercise of docs/CLUSTER.md: the first node is lost for good under a training, another one is
/// promoted, and a rank dies on top.
#[test]
fn a_training_outlives_the_first_node_for_ever_with_the_same_weights_and_whole_audits() {
    let store = tempfile::TempDir::new().expect("a directory");
    let mut cluster = with_digits(Some(store.path()));
    let mut whole = Command::new(binary("shardtrain"));
    train(&mut whole, &cluster, "whole");
    run(&mut whole);

    let mut launcher = Launcher::start(&cluster, "orphaned", &["--nproc", "3", "--elastic"], &[]);
    let ranks = launcher.ranks();
    launcher.until(1, 3);
    wait_until("the metadata is copied", || {
        cluster.nodes[0].get("/v1/status")["metadata"]["is_behind"] == false
    });
    cluster.nodes[0].kill();
    launcher.until(2, 3);
    run(Command::new(binary("shardctl")).args(["--server", &cluster.nodes[1].http, "promote", "n2"]));
    launcher.until(3, 3);
    run(Command::new("kill").args(["-KILL", &ranks[1]]));
    launcher.end();
    assert_eq!(digest(&cluster, "orphaned"), digest(&cluster, "whole"));
    for node in [1, 2] {
        verified(&cluster, node, "orphaned");
    }
}

/// The list of another node is from its memory, and it says so.
fn lists_are_old(cluster: &Cluster) {
    for list in ["datasets", "plans", "runs"] {
        let url = format!("{}/v1/{list}", cluster.nodes[1].http);
        let mut answer = ureq::get(&url).call().unwrap_or_else(|error| panic!("{url}: {error}"));
        assert!(answer.headers().contains_key("age") && answer.headers().contains_key("warning"), "{list}");
        let listed: Value = answer.body_mut().read_json().expect("JSON");
        let listed = listed.as_array().expect("a list");
        assert!(!listed.is_empty() && listed.iter().all(|one| one["stale"] == true), "{list}: {listed:?}");
    }
}

#[test]
fn the_others_find_a_first_node_that_has_another_address_now() {
    let store = tempfile::TempDir::new().expect("a temporary directory can be made");
    let mut cluster = Cluster::start_with(2, &[("SHARDD_STORE", store.path().display().to_string())]);
    let digits = format!("{}/../client/data/digits/train.parquet", env!("CARGO_MANIFEST_DIR"));
    run(cluster.shardctl().args(["ingest", &digits, "--name", "digits"]));
    cluster.nodes[0].stop();
    // Another address for clients, and for nodes.
    let before = std::mem::take(&mut cluster.nodes[0].http);
    std::fs::remove_file(cluster.nodes[0].data.join("quic-port")).expect("it keeps its port there");
    cluster.nodes[0].restart();
    assert_ne!(cluster.nodes[0].http, before, "it has another port");
    let tag = |name: &str| {
        let mut command = Command::new(binary("shardctl"));
        command.args(["--server", &cluster.nodes[1].http, "tag", "digits", name]);
        command.output().expect("starts").status.success()
    };
    wait_until("the other finds it", || tag("moved"));
}
