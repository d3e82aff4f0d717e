//! Audits survive deaths: a training that is killed and resumed, on another number of ranks, reports whole
//! epochs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use shardd_tests::{Cluster, binary, run};

const EPOCHS: u64 = 4;

/// Killed when dropped, and its ranks with it.
struct Launcher {
    process: Child,
    progress: std::io::Lines<BufReader<std::process::ChildStdout>>,
    said: std::sync::mpsc::Receiver<String>,
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
        command.arg("run").args(launch).args(["--", "--server", &cluster.nodes[1].http]);
        command.args(["--server", &cluster.nodes[0].http, "--dataset", "digits", "--run", name]);
        command.args(["--epochs", &EPOCHS.to_string(), "--virtual-ranks", "4", "--batch-size", "8"]);
        command.args(["--progress", "-"]).args(more).env("RAYON_NUM_THREADS", "1");
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let progress = BufReader::new(process.stdout.take().expect("piped")).lines();
        let lines = BufReader::new(process.stderr.take().expect("piped")).lines();
        let (say, said) = std::sync::mpsc::sync_channel(1 << 12);
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(say.try_send(line))));
        Launcher { process, progress, said }
    }

    /// Waits until a step of this epoch has been trained, well within it.
    fn until_within(&mut self, epoch: u64) {
        let is_within = |line: &Value| {
            let step = line["step"].as_u64().expect("a number");
            line["epoch"] == epoch && step > 3 && step % 7 == 3
        };
        let mut lines = self.progress.by_ref().map(|line| line.expect("text"));
        let found = lines.find(|line| is_within(&serde_json::from_str(line).expect("JSON")));
        assert!(found.is_some(), "it ended before epoch {epoch}:\n{}", self.all_said());
    }

    /// The processes of its ranks.
    fn ranks(&self) -> Vec<String> {
        let line = self.said.iter().find(|line| line.contains("processes ")).expect("it says its processes");
        let pids = line.rsplit_once("processes ").expect("just found").1;
        pids.split(' ').map(str::to_owned).collect()
    }

    fn all_said(&self) -> String {
        self.said.try_iter().collect::<Vec<_>>().join("\n")
    }

    /// SIGKILL to the launcher; returns when its ranks are gone, too.
    fn kill(mut self) {
        self.process.kill().expect("it runs");
        self.progress.by_ref().for_each(drop);
    }

    fn end(mut self) {
        self.progress.by_ref().for_each(drop);
        let status = self.process.wait().expect("it ends");
        assert!(status.success(), "{}", self.all_said());
    }
}

fn with_digits() -> Cluster {
    let cluster = Cluster::start(2);
    let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../client/data/digits/train.parquet"));
    run(cluster.shardctl().arg("ingest").arg(data).args(["--name", "digits"]));
    run(cluster.shardctl().args(["partition", "digits", "--partitions", "8", "--q", "0.2"]));
    cluster
}

/// The verdicts on every epoch; all of it was read exactly once.
fn verified(cluster: &Cluster, name: &str) -> Value {
    let said = run(cluster.shardctl().args(["--json", "audit", "verify", "--run", name]));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["epochs"].as_array().map(Vec::len), Some(EPOCHS as usize), "{said}");
    said
}

#[test]
fn the_audit_of_a_run_that_was_killed_holds_on_any_number_of_ranks() {
    let cluster = with_digits();
    let kept = cluster.root().join("kept");
    let kept = ["--checkpoints", kept.to_str().expect("text"), "--checkpoint-every", "7"];
    for (ranks, killed_in) in [("2", Some(0)), ("2", Some(2)), ("3", None)] {
        let mut launcher = Launcher::start(&cluster, "cut", &["--nproc", ranks], &kept);
        match killed_in {
            Some(epoch) => {
                launcher.until_within(epoch);
                launcher.kill();
            }
            None => launcher.end(),
        }
    }
    verified(&cluster, "cut");
}

#[test]
fn the_audit_holds_when_ranks_go_on_without_one_that_died() {
    let cluster = with_digits();
    // Running statistics are with one rank each; a model without any continues from the memory of the
    // remaining ones.
    let launch = ["--nproc", "3", "--elastic"];
    let mut launcher = Launcher::start(&cluster, "stay", &launch, &["--norm", "group", "--timeout", "20"]);
    let ranks = launcher.ranks();
    launcher.until_within(1);
    run(Command::new("kill").args(["-KILL", &ranks[1]]));
    launcher.end();
    verified(&cluster, "stay");
}
