//! The test kit: real processes of shardd on loopback, started, asked, killed and cleaned up by the tests that tell stories.
//!
//! Everything here runs the binaries that users run. `tests/run` builds them first; a test that finds none says how to.

pub mod blocks;
mod etcd;
pub mod faults;
pub mod machines;
pub mod metered;
mod ports;
pub mod s3;
pub mod services;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub use etcd::Etcd;

/// A binary of this workspace, built in the same profile as the test that asks.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let path = test.parent().and_then(Path::parent).expect("tests lie in target/PROFILE/deps").join(name);
    assert!(
        path.exists(),
        "{} is not built: run tests/run, or `cargo build --release --bins` first",
        path.display()
    );
    path
}

/// The folder of shared inputs beside the repository, if it is here.
pub fn shared_data(file: &str) -> Option<PathBuf> {
    let root = match std::env::var_os("SHARDD_SHARED") {
        Some(root) => PathBuf::from(root),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
    };
    let path = root.join("data").join(file);
    if !path.exists() {
        println!(
            "skipped: {} is not here (set SHARDD_SHARED to the folder that holds data/)",
            path.display()
        );
        return None;
    }
    Some(path)
}

/// A Python with the packages of `tests/requirements.txt`, as `tests/run` installs it.
pub fn python() -> Option<PathBuf> {
    let python = std::env::var_os("SHARDD_PYTHON").map(PathBuf::from);
    if python.is_none() {
        println!(
            "skipped: SHARDD_PYTHON is not set (tests/run sets it to a Python with the packages of tests/requirements.txt)"
        );
    }
    python
}

/// Whether only the short tests should run.
pub fn is_quick() -> bool {
    let quick = std::env::var_os("SHARDD_QUICK").is_some();
    if quick {
        println!("skipped: this is a --quick run");
    }
    quick
}

/// Runs a command to its end; its output must be a success.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(
        output.status.success(),
        "{command:?} ended with {}\nstdout: {}\nstderr: {}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("output is text")
}

/// Runs a command that has to end by itself, and kills it if it does not.
///
/// # Panics
/// When it does not.
pub fn ended(command: &mut Command) -> Output {
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let began = Instant::now();
    while child.try_wait().expect("a child can be asked").is_none() {
        if began.elapsed() > Duration::from_secs(60) {
            child.kill().expect("a child can be killed");
            panic!("{command:?} does not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().expect("it has ended")
}

/// One `shardd serve` with its own data directory. Killed when dropped.
pub struct Node {
    /// Its name.
    pub id: String,
    /// Its data directory.
    pub data: PathBuf,
    /// Where its HTTP API is.
    pub http: String,
    child: Option<Child>,
    join: Option<PathBuf>,
    variables: Vec<(String, String)>,
}

impl Node {
    /// Starts a node and waits until it says that it is ready.
    pub fn start(root: &Path, id: &str, join: Option<&Path>) -> Self {
        Self::start_with(root, id, join, &[])
    }

    /// Starts a node with a `--metastore` of its own.
    pub fn start_over(root: &Path, id: &str, join: Option<&Path>, metastore: Option<&str>) -> Self {
        let metastore = metastore.map(|url| ("SHARDD_METASTORE", url.to_owned()));
        Self::start_with(root, id, join, metastore.as_slice())
    }

    /// The same, with these variables in its environment.
    pub fn start_with(root: &Path, id: &str, join: Option<&Path>, variables: &[(&str, String)]) -> Self {
        let data = root.join(id);
        let join = join.map(Path::to_owned);
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let mut node = Self { id: id.into(), data, http: String::new(), child: None, join, variables };
        node.restart();
        node
    }

    /// Starts the process again over the same data directory.
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "{} is running", self.id);
        let mut command = Command::new(binary("shardd"));
        command.args(["serve", "--id", &self.id, "--data"]).arg(&self.data);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        // A node that comes back keeps its address, as it would on a real machine.
        let first = || format!("127.0.0.1:{}", ports::lasting());
        let http = self.http.split_once("://").map_or_else(first, |(_, address)| address.to_owned());
        command.args(["--http", &http, "--quic", "127.0.0.1:0"]);
        if let Some(token) = &self.join {
            command.arg("--join").arg(format!("@{}", token.display()));
        }
        std::fs::create_dir_all(&self.data).expect("the data directory can be made");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.data.with_extension("log"))
            .expect("a log file can be made");
        command.stdout(Stdio::piped()).stderr(log).stdin(Stdio::null());
        let mut child = command.spawn().expect("shardd starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(" ready: ")));
        let Some(Ok(ready)) = ready else {
            let log = std::fs::read_to_string(self.data.with_extension("log")).unwrap_or_default();
            panic!("{} did not become ready; its log:\n{log}", self.id);
        };
        let at = ready.find(" http ").expect("the ready line names the address") + " http ".len();
        self.http = ready[at..].split([',', ' ']).next().expect("not empty").to_owned();
        // Keep the pipe drained, so that the node never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        self.child = Some(child);
    }

    /// From its next start it does not know any more where the metadata is.
    pub fn forget_metastore(&mut self) {
        self.variables.retain(|(name, _)| name != "SHARDD_METASTORE");
    }

    /// SIGKILL: no farewell, no flush.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a killed child is reaped");
        }
    }

    /// SIGTERM, and how long it took to stop with which success.
    pub fn stop(&mut self) -> (Duration, bool) {
        let mut child = self.child.take().expect("running");
        let pid = rustix::process::Pid::from_child(&child);
        let began = Instant::now();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a child can be signalled");
        let status = child.wait().expect("a child is reaped");
        (began.elapsed(), status.success())
    }

    /// Its process, which runs.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    /// Whether the process runs.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// A JSON document of its HTTP API.
    pub fn get(&self, path: &str) -> Value {
        let text = self.text(path);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("GET {}{path}: {error}", self.http))
    }

    /// The body of the response to a GET request.
    pub fn text(&self, path: &str) -> String {
        let url = format!("{}{path}", self.http);
        let mut answer = ureq::get(&url).call().unwrap_or_else(|error| panic!("GET {url}: {error}"));
        answer.body_mut().read_to_string().unwrap_or_else(|error| panic!("GET {url}: {error}"))
    }

    /// Bytes of shard data that this process has read from the store.
    pub fn origin_bytes(&self) -> u64 {
        self.get("/v1/status")["origin_bytes"].as_u64().expect("status counts origin bytes")
    }

    /// The log of the node so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.data.with_extension("log")).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(25).collect();
            eprintln!("--- end of the log of {}", self.id);
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// Nodes on loopback; the first has the store, and the sled if there is one.
pub struct Cluster {
    /// The nodes, in the order of their numbers.
    pub nodes: Vec<Node>,
    root: TempDir,
}

impl Cluster {
    /// Starts `count` nodes.
    pub fn start(count: usize) -> Self {
        Self::start_with(count, &[])
    }

    /// The same, each with these variables in its environment.
    pub fn start_with(count: usize, variables: &[(&str, String)]) -> Self {
        let root = TempDir::new().expect("a temporary directory can be made");
        let first = Node::start_with(root.path(), "n1", None, variables);
        Self::around(root, first, count, variables)
    }

    /// Starts `count` nodes, the first of them with this `--metastore`.
    pub fn start_over(count: usize, metastore: Option<&str>) -> Self {
        let root = TempDir::new().expect("a temporary directory can be made");
        let first = Node::start_over(root.path(), "n1", None, metastore);
        Self::around(root, first, count, &[])
    }

    fn around(root: TempDir, first: Node, count: usize, variables: &[(&str, String)]) -> Self {
        let mut nodes = vec![first];
        let token = nodes[0].data.join("join-token");
        let join = |n| Node::start_with(root.path(), &format!("n{n}"), Some(&token), variables);
        nodes.extend((2..=count).map(join));
        Self { nodes, root }
    }

    /// A folder that goes away with the cluster.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// `shardctl --server <first node>`.
    pub fn shardctl(&self) -> Command {
        let mut command = Command::new(binary("shardctl"));
        command.args(["--server", &self.nodes[0].http]);
        command
    }

    /// `shardctl --json` with these words, through the node with this number.
    pub fn shardctl_at(&self, node: usize, words: &[&str]) -> Command {
        let mut command = Command::new(binary("shardctl"));
        command.args(["--server", &self.nodes[node].http, "--json"]).args(words);
        command
    }

    /// The last value that it prints.
    pub fn ask(&self, node: usize, words: &[&str]) -> Value {
        let text = run(&mut self.shardctl_at(node, words));
        serde_json::from_str(text.lines().last().expect("a value")).expect("JSON")
    }

    /// Bytes read from the store by all running nodes.
    pub fn origin_bytes(&self) -> u64 {
        self.nodes.iter().filter(|node| node.is_running()).map(Node::origin_bytes).sum()
    }

    /// Starts the ranks of a run, each at its node first, all others after it.
    pub fn read(&self, read: &Reading) -> Vec<RankProcess> {
        (0..read.world)
            .map(|rank| {
                let own = rank as usize * self.nodes.len() / read.world as usize;
                let mut servers: Vec<&str> = self.nodes.iter().map(|node| node.http.as_str()).collect();
                servers.rotate_left(own);
                let mut command = Command::new(binary("shardctl"));
                command.args(["--server", &servers.join(",")]);
                RankProcess::start(command, read, rank)
            })
            .collect()
    }
}

/// What `shardctl read` is asked to read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The plan's id.
    pub plan: String,
    /// The run's name.
    pub run: String,
    /// How many ranks.
    pub world: u32,
    /// V.
    pub virtual_ranks: u32,
    /// Samples a virtual rank reads in a step.
    pub batch_size: u32,
    /// The epoch to start with.
    pub start_epoch: u32,
    /// The epoch before which to stop.
    pub end_epoch: u32,
}

impl Reading {
    /// One rank of two virtual ranks reads a plan, as `shardctl --json partition` printed it, from epoch 0 on in run `r`.
    pub fn alone(plan: &Value, epochs: u32) -> Reading {
        Reading {
            plan: plan["plan"].as_str().expect("the plan's id").to_owned(),
            run: "r".to_owned(),
            world: 1,
            virtual_ranks: 2,
            batch_size: 4,
            start_epoch: 0,
            end_epoch: epochs,
        }
    }
}

/// A running `shardctl read`. Killed when dropped.
pub struct RankProcess {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    log: PathBuf,
    _log_dir: TempDir,
}

impl RankProcess {
    /// Starts one rank with `command` being `shardctl` and its global flags.
    pub fn start(mut command: Command, read: &Reading, rank: u32) -> Self {
        let log_dir = TempDir::new().expect("a temporary directory can be made");
        let log = log_dir.path().join("stderr");
        command.args(["--json", "read", "--plan", &read.plan, "--run", &read.run]);
        command.args(["--rank", &rank.to_string(), "--world", &read.world.to_string()]);
        command.args(["--virtual-ranks", &read.virtual_ranks.to_string()]);
        command.args(["--batch-size", &read.batch_size.to_string()]);
        command.args([
            "--start",
            &format!("{}:0", read.start_epoch),
            "--epochs",
            &read.end_epoch.to_string(),
        ]);
        command.stdout(Stdio::piped()).stdin(Stdio::null());
        command.stderr(std::fs::File::create(&log).expect("a log file can be made"));
        let mut child = command.spawn().expect("shardctl starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines, log, _log_dir: log_dir }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line it prints; `None` at its successful end.
    pub fn next_line(&mut self) -> Option<Value> {
        match self.lines.next() {
            Some(line) => {
                let line = line.expect("output is text");
                Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("not JSON ({error}): {line}")))
            }
            None => {
                let status = self.child.wait().expect("a child is reaped");
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                assert!(status.success(), "a rank ended with {status}:\n{log}");
                None
            }
        }
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What all ranks of a run were given, put together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivered {
    /// For each (epoch, step): samples, and the sum of the digests of (position, row) of every row delivered.
    pub steps: BTreeMap<(u64, u64), (u64, u128)>,
    /// For each epoch: samples, and the sum of the digests of every row delivered.
    pub epochs: BTreeMap<u64, (u64, u128)>,
}

impl Delivered {
    /// Takes one line of a rank.
    pub fn take(&mut self, line: &Value) {
        if line["event"] == "done" {
            for audit in line["audits"].as_array().expect("done tells the audits") {
                let epoch = self.epochs.entry(audit["epoch"].as_u64().expect("a number")).or_default();
                epoch.0 += audit["samples"].as_u64().expect("a number");
                epoch.1 = epoch.1.wrapping_add(hex128(&audit["digest_sum"]));
            }
        } else if line["sum"].is_string() {
            let key = (line["epoch"].as_u64().expect("a number"), line["step"].as_u64().expect("a number"));
            let step = self.steps.entry(key).or_default();
            step.0 += line["samples"].as_u64().expect("a number");
            step.1 = step.1.wrapping_add(hex128(&line["sum"]));
        }
    }

    /// Reads all ranks to their end, calling `at` once for every step that rank 0 has taken.
    pub fn collect(ranks: Vec<RankProcess>, mut at: impl FnMut(u64, u64)) -> Self {
        let mut ranks = ranks.into_iter();
        let mut first = ranks.next().expect("a run has a rank");
        let others: Vec<_> = ranks
            .map(|mut rank| {
                std::thread::spawn(move || {
                    let mut delivered = Self::default();
                    while let Some(line) = rank.next_line() {
                        delivered.take(&line);
                    }
                    delivered
                })
            })
            .collect();
        let mut all = Self::default();
        while let Some(line) = first.next_line() {
            all.take(&line);
            if line["sum"].is_string() {
                at(line["epoch"].as_u64().expect("a number"), line["step"].as_u64().expect("a number"));
            }
        }
        for other in others {
            all.add(&other.join().expect("a rank was read to its end"));
        }
        all
    }

    fn add(&mut self, other: &Self) {
        for (key, (samples, sum)) in &other.steps {
            let step = self.steps.entry(*key).or_default();
            *step = (step.0 + samples, step.1.wrapping_add(*sum));
        }
        for (key, (samples, sum)) in &other.epochs {
            let epoch = self.epochs.entry(*key).or_default();
            *epoch = (epoch.0 + samples, epoch.1.wrapping_add(*sum));
        }
    }
}

/// Looks again and again until something is so; fails after 30 s.
pub fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    wait_until_within(30, what, is_so);
}

/// The same, with another limit, in seconds.
pub fn wait_until_within(seconds: u64, what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(seconds), "waited {seconds} s in vain until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The file of a part of the digits, `train` or `test`.
pub fn digits(part: &str) -> String {
    format!("{}/../client/data/digits/{part}.parquet", env!("CARGO_MANIFEST_DIR"))
}

/// A self-signed certificate of `localhost` and its key, as PEM files in a folder.
pub fn certificate_of_localhost(folder: &Path) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    (write("cert.pem", made.cert.pem()), write("key.pem", made.signing_key.serialize_pem()))
}

/// Looks twenty times a second until something is there. `standstill` gets the time for which `progress` has
/// not changed: let it panic when that is too long.
pub fn look_until<T, P: PartialEq>(
    mut look: impl FnMut() -> Option<T>,
    mut progress: impl FnMut() -> P,
    mut standstill: impl FnMut(Duration),
) -> T {
    let mut last = (Instant::now(), progress());
    loop {
        if let Some(found) = look() {
            return found;
        }
        let now = progress();
        if now != last.1 {
            last = (Instant::now(), now);
        }
        standstill(last.0.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Does something again and again in a thread of its own, until it is dropped, and then once more.
pub struct Repeated {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Repeated {
    /// Does it this often.
    pub fn every(pause: Duration, mut action: impl FnMut() + Send + 'static) -> Self {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                action();
                std::thread::sleep(pause);
            }
            action();
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic has reported its fault.
            let _ = thread.join();
        }
    }
}

/// A 128-bit number written as hexadecimal digits.
pub fn hex128(value: &Value) -> u128 {
    let text = value.as_str().unwrap_or_else(|| panic!("{value} is not text"));
    u128::from_str_radix(text, 16).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The last lines of a failing command's output.
pub fn error_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
