//! A rank that works slowly, beside others that wait for it: it has its data, and is named all the same.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde_json::Value;
use shardd_tests::{Cluster, Repeated, binary, run, wait_until};

/// A launcher with three ranks, until it is dropped.
struct Training {
    launcher: Child,
    ranks: Vec<String>,
}

impl Training {
    fn start(cluster: &Cluster) -> Training {
        let servers: Vec<&str> = cluster.nodes.iter().map(|node| node.http.as_str()).collect();
        let mut command = Command::new(binary("shardtrain"));
        command.args(["run", "--nproc", "3", "--", "--server", &servers.join(","), "--dataset", "digits"]);
        command.args(["--run", "slow", "--epochs", "100000", "--virtual-ranks", "3", "--batch-size", "32"]);
        command.env("RAYON_NUM_THREADS", "1").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut launcher = command.spawn().expect("shardtrain starts");
        let mut lines = BufReader::new(launcher.stderr.take().expect("piped")).lines().map_while(Result::ok);
        let named = lines.find_map(|line| {
            let (_, pids) = line.split_once("processes ")?;
            Some(pids.split(' ').map(str::to_owned).collect())
        });
        let ranks = named.expect("the launcher names its ranks");
        std::thread::spawn(move || lines.for_each(drop));
        Training { launcher, ranks }
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

fn signal(name: &str, pid: &str) {
    let _ = Command::new("kill").args([name, pid]).stderr(Stdio::null()).status();
}

#[test]
fn a_rank_that_works_slowly_is_named_although_it_has_its_data() {
    let cluster = Cluster::start(2);
    let data = format!("{}/../client/data/digits/train.parquet", env!("CARGO_MANIFEST_DIR"));
    run(cluster.shardctl().args(["ingest", &data, "--name", "digits"]));
    let training = Training::start(&cluster);
    // Another program takes four fifths of the processor of rank 1, in turns.
    let (pid, is_stopped) = (training.ranks[1].clone(), Arc::new(AtomicBool::new(false)));
    let mut turn = 0u32;
    let throttled = Repeated::every(Duration::from_millis(10), {
        let (pid, is_stopped) = (pid.clone(), Arc::clone(&is_stopped));
        move || {
            turn += 1;
            let stop = !turn.is_multiple_of(5);
            if is_stopped.swap(stop, Relaxed) != stop {
                signal(if stop { "-STOP" } else { "-CONT" }, &pid);
            }
        }
    });
    let finding = |view: &Value| -> Option<Value> {
        let found = view["findings"].as_array()?.iter().find(|finding| finding["kind"] == "slow_rank")?;
        Some(found.clone())
    };
    let mut found = None;
    wait_until("the overview names the rank that works slowly", || {
        let view = cluster.nodes[0].get("/v1/overview");
        found = finding(&view).filter(|found| found["rank"] == 1);
        found.is_some()
    });
    let found = found.expect("it was found");
    assert!(found["cause"].as_str().is_some_and(|cause| cause.contains("has its data")), "{found}");
    let metrics = cluster.nodes.iter().map(|node| node.text("/metrics")).collect::<String>();
    for name in ["shardd_rank_collective_wait_seconds_total", "shardd_rank_loss"] {
        assert!(metrics.contains(&format!("{name}{{run=\"slow\",rank=\"0\"}}")), "{name} is missing");
    }
    drop(throttled);
    signal("-CONT", &pid);
}
