//! Trainings that read from nodes: their ranks meet through them, wherever they run.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use shardd_tests::{Cluster, binary, run};

/// Killed when dropped, and its ranks with it.
struct Launcher(Child);

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn report(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("it is written")).expect("JSON")
}

#[test]
fn launchers_at_different_nodes_meet_again_after_a_rank_has_died() {
    let cluster = Cluster::start(2);
    let data = format!("{}/../client/data/digits/train.parquet", env!("CARGO_MANIFEST_DIR"));
    run(cluster.shardctl().args(["ingest", &data, "--name", "digits"]));
    run(cluster.shardctl().args(["partition", "digits", "--partitions", "8", "--q", "0.2"]));
    let kept = cluster.root().join("kept");
    let train = |command: &mut Command, server: usize, name: &str| {
        command.args(["--server", &cluster.nodes[server].http, "--dataset", "digits", "--epochs", "6"]);
        command.args(["--virtual-ranks", "4", "--run", name, "--report"]).arg(cluster.root().join(name));
        command.env("RAYON_NUM_THREADS", "1");
    };
    let mut alone = Command::new(binary("shardtrain"));
    train(&mut alone, 0, "whole");
    run(&mut alone);

    // Each machine has as many ranks as it likes.
    let counts = ["1", "3"];
    let launch = |node: usize| {
        let mut command = Command::new(binary("shardtrain"));
        command.args(["run", "--nproc", counts[node], "--nodes", "2", "--node", &node.to_string(), "--"]);
        train(&mut command, node, "cut");
        command.arg("--checkpoints").arg(&kept).args(["--checkpoint-every", "3", "--progress", "-"]);
        Launcher(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"))
    };
    let mut launchers = [launch(0), launch(1)];
    let mut said = launchers.each_mut().map(|it| BufReader::new(it.0.stderr.take().expect("piped")).lines());
    let mut progress = BufReader::new(launchers[0].0.stdout.take().expect("piped")).lines();
    let started = said[1].next().expect("it starts its ranks").expect("text");
    assert!(started.contains("ranks 1 to 3 of 4 at where the servers say"), "{started}");
    for _ in 0..20 {
        progress.next().expect("it trains").expect("text");
    }
    let rank = started.rsplit(' ').next().expect("a process");
    run(Command::new("kill").args(["-KILL", rank]));
    std::thread::scope(|scope| {
        scope.spawn(move || progress.for_each(drop));
        for ((launcher, said), count) in launchers.iter_mut().zip(said).zip(counts) {
            let said: Vec<String> = said.map_while(Result::ok).collect();
            println!("{}", said.join("\n"));
            assert!(launcher.0.wait().expect("it ends").success(), "{said:?}");
            let again = format!("continuing with 4 ranks, {count} of them on this machine");
            assert!(said.iter().any(|line| line.contains(&again)), "{said:?}");
        }
    });
    let [whole, cut] = ["whole", "cut"].map(|name| report(&cluster.root().join(name)));
    assert!(cut["resumed_from"].as_u64() > Some(0), "{cut}");
    for figure in ["weights_digest", "loss_per_epoch", "steps", "samples"] {
        assert_eq!(cut[figure], whole[figure], "{figure}");
    }
}
