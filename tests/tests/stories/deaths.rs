//! Two of the processes that a training consists of die at random moments: the first node (with the
//! metadata), another node, a rank, the launcher. The weights do not change by a bit.
//!
//! Nodes that die stay dead. A launcher that dies takes its ranks along, and is started again with the same arguments, as a service
//! manager would; so is one that ends with an error. Each pair of victims is tried once with each seed;
//! `SHARDD_DEATHS=20 cargo test --release --test stories deaths -- --nocapture` tries twenty and prints a table.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::Value;
use shardd_tests::{Cluster, binary, is_quick, run};

const EPOCHS: u64 = 8;
/// Where a launcher ends with an error more often than this, the training has failed.
const LAUNCHES: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    FirstNode,
    OtherNode,
    Rank,
    Launcher,
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Victim::FirstNode => "first node",
            Victim::OtherNode => "other node",
            Victim::Rank => "rank",
            Victim::Launcher => "launcher",
        })
    }
}

const PAIRS: [[Victim; 2]; 6] = [
    [Victim::FirstNode, Victim::OtherNode],
    [Victim::FirstNode, Victim::Rank],
    [Victim::FirstNode, Victim::Launcher],
    [Victim::OtherNode, Victim::Rank],
    [Victim::OtherNode, Victim::Launcher],
    [Victim::Rank, Victim::Launcher],
];

#[test]
fn any_two_may_die_and_the_weights_are_the_same() {
    if is_quick() {
        return;
    }
    let seeds: u64 = std::env::var("SHARDD_DEATHS").map_or(1, |runs| runs.parse().expect("a number"));
    let undisturbed = Training::new().tell(&[]);
    println!("undisturbed: {:.1} s, {}", undisturbed.seconds, undisturbed.weights);
    println!(
        "{:<26} {:>4}  {:>16}  {:>8}  {:>14}",
        "pair", "runs", "same weights", "launches", "seconds lost"
    );
    for (number, pair) in PAIRS.into_iter().enumerate() {
        let mut lost = Vec::new();
        let mut launches = 0;
        for seed in 0..seeds {
            let deaths = deaths(pair, seed * PAIRS.len() as u64 + number as u64, undisturbed.steps);
            let outcome = Training::new().tell(&deaths);
            assert_eq!(outcome.weights, undisturbed.weights, "{pair:?}, seed {seed}, {deaths:?}");
            lost.push(outcome.seconds - undisturbed.seconds);
            launches = launches.max(outcome.launches);
        }
        lost.sort_by(f64::total_cmp);
        let name = format!("{} + {}", pair[0], pair[1]);
        let (median, most) = (lost[lost.len() / 2], lost[lost.len() - 1]);
        println!(
            "{name:<26} {seeds:>4}  {:>16}  {launches:>8}  {median:>5.1}, at most {most:.1}",
            lost.len()
        );
    }
}

/// A death when rank 0 has taken this step of the training, or a later one.
#[derive(Debug, Clone, Copy)]
struct Death {
    step: u64,
    victim: Victim,
}

impl fmt::Debug for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Both deaths of a pair, in either order, from the second step to the last but one.
fn deaths(pair: [Victim; 2], seed: u64, steps: u64) -> [Death; 2] {
    let drawn = blake3_numbers(seed);
    let step = |number: u64| 1 + number % (steps - 2);
    let mut at = [step(drawn[0]), step(drawn[1])];
    at.sort_unstable();
    let order = if drawn[2].is_multiple_of(2) { pair } else { [pair[1], pair[0]] };
    [Death { step: at[0], victim: order[0] }, Death { step: at[1], victim: order[1] }]
}

fn blake3_numbers(seed: u64) -> [u64; 3] {
    let digest = shardfmt::Digest::of(&seed.to_le_bytes()).to_string();
    [0, 16, 32].map(|from| u64::from_str_radix(&digest[from..from + 16], 16).expect("hexadecimal digits"))
}

struct Outcome {
    seconds: f64,
    launches: usize,
    steps: u64,
    weights: String,
}

/// Three nodes over a store that is on none of them, and three ranks that read from them, the first node last.
struct Training {
    cluster: Cluster,
    servers: String,
    report: PathBuf,
    checkpoints: PathBuf,
    store: tempfile::TempDir,
}

impl Training {
    fn new() -> Training {
        let store = tempfile::TempDir::new().expect("a temporary directory can be made");
        let url = format!("file://{}", store.path().display());
        let cluster = Cluster::start_with(3, &[("SHARDD_STORE", url)]);
        let data = format!("{}/../client/data/digits/train.parquet", env!("CARGO_MANIFEST_DIR"));
        run(cluster.shardctl().args(["ingest", &data, "--name", "digits"]));
        run(cluster.shardctl().args(["partition", "digits", "--partitions", "24", "--q", "0.2"]));
        let servers: Vec<&str> = [1, 2, 0].map(|n: usize| cluster.nodes[n].http.as_str()).to_vec();
        Training {
            servers: servers.join(","),
            report: store.path().join("report.json"),
            checkpoints: store.path().join("checkpoints"),
            cluster,
            store,
        }
    }

    /// Trains to the end, with these deaths on the way.
    fn tell(mut self, deaths: &[Death]) -> Outcome {
        let began = Instant::now();
        let mut left = deaths.iter().copied();
        let mut next = left.next();
        for launches in 1..=LAUNCHES {
            let mut launcher = Launcher::start(&self);
            let mut killed = false;
            while let Some(step) = launcher.next_step() {
                while let Some(death) = next.filter(|death| !killed && step >= death.step) {
                    killed = death.victim == Victim::Launcher;
                    self.kill(death.victim, &mut launcher);
                    next = left.next();
                }
            }
            let ended = launcher.end();
            if ended.success() && !killed {
                assert!(next.is_none(), "the training was over before {next:?}");
                return self.outcome(began.elapsed().as_secs_f64(), launches);
            }
        }
        panic!(
            "the training has not ended after {LAUNCHES} launches; {deaths:?}; its store: {}",
            self.store.path().display()
        );
    }

    fn kill(&mut self, victim: Victim, launcher: &mut Launcher) {
        match victim {
            Victim::FirstNode => self.cluster.nodes[0].kill(),
            Victim::OtherNode => self.cluster.nodes[1].kill(),
            Victim::Rank => launcher.kill_a_rank(),
            Victim::Launcher => launcher.process.kill().expect("a child can be killed"),
        }
    }

    fn outcome(&self, seconds: f64, launches: usize) -> Outcome {
        let report = std::fs::read(&self.report).expect("rank 0 writes a report");
        let report: Value = serde_json::from_slice(&report).expect("JSON");
        let weights = report["weights_digest"].as_str().expect("a digest").to_owned();
        Outcome { seconds, launches, steps: report["steps"].as_u64().expect("a number"), weights }
    }
}

/// A launcher and its ranks, which end with it. Killed when dropped.
struct Launcher {
    process: Child,
    progress: Receiver<String>,
    ranks: Arc<Mutex<Vec<String>>>,
    log: std::thread::JoinHandle<Vec<String>>,
}

impl Launcher {
    fn start(training: &Training) -> Launcher {
        let mut command = Command::new(binary("shardtrain"));
        command.args(["run", "--nproc", "3", "--grace", "2", "--"]);
        command.args(["--server", &training.servers, "--dataset", "digits", "--run", "deaths"]);
        command.args(["--epochs", &EPOCHS.to_string(), "--virtual-ranks", "12", "--batch-size", "4"]);
        command.args(["--checkpoint-every", "7", "--progress", "-"]);
        command.arg("--checkpoints").arg(&training.checkpoints).arg("--report").arg(&training.report);
        command.env("RAYON_NUM_THREADS", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("shardtrain starts");
        let (send, progress) = sync_channel(100_000);
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
        let ranks = Arc::new(Mutex::new(Vec::new()));
        let errors = BufReader::new(process.stderr.take().expect("piped")).lines();
        let world = Arc::clone(&ranks);
        let log = std::thread::spawn(move || {
            let note = |line: &String| {
                if let Some((_, pids)) = line.split_once("processes ") {
                    *world.lock().expect("no panic while held") =
                        pids.split(' ').map(str::to_owned).collect();
                }
            };
            errors.map_while(Result::ok).inspect(note).collect()
        });
        Launcher { process, progress, ranks, log }
    }

    /// Waits for rank 0 to take a step: its number in the whole training. `None` when no more come.
    fn next_step(&mut self) -> Option<u64> {
        let line = self.progress.recv().ok()?;
        let at: Value = serde_json::from_str(&line).expect("progress is JSON");
        let number = |name: &str| at[name].as_u64().unwrap_or_else(|| panic!("no {name} in {line}"));
        Some(number("epoch") * number("steps") + number("step"))
    }

    /// SIGKILL to the last rank.
    fn kill_a_rank(&mut self) {
        let pid =
            self.ranks.lock().expect("no panic while held").pop().expect("the launcher names its ranks");
        // It may have ended by itself by now, with another.
        let _ = Command::new("kill").args(["-KILL", &pid]).stderr(Stdio::null()).status();
    }

    fn end(mut self) -> ExitStatus {
        let status = self.process.wait().expect("a child is reaped");
        let log = self.log.join().expect("a log is read to its end");
        if !status.success() {
            println!("    a launcher ended with {status}: {}", log.join(" | "));
        }
        status
    }
}
