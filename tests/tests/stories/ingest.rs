//! Ingests by `shardctl` that are disturbed: killed with SIGKILL at any moment, or beside each other. The version is the one
//! that an undisturbed ingest makes, and before there is one, nothing is visible.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use shardd_tests::{binary, run};
use tempfile::TempDir;

const ROWS: u32 = 300_000;
const SHARDS: u64 = 100;

/// A table, and a place to ingest it.
struct Desk {
    home: TempDir,
    input: PathBuf,
}

impl Desk {
    fn new() -> Desk {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        let input = home.path().join("table.csv");
        let mut table = "id,text\n".to_owned();
        for row in 0..ROWS {
            let noise = row.wrapping_mul(2_654_435_761);
            writeln!(table, "{row},{noise:032b} and {:064b}", u64::from(noise).pow(2)).expect("to memory");
        }
        std::fs::write(&input, table).expect("written");
        Desk { home, input }
    }

    fn store(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// An ingest of many shards.
    fn ingest(&self, store: &str, more: &[&str]) -> Command {
        let mut command = Command::new(binary("shardctl"));
        command.arg("--store").arg(self.store(store)).args(["--json", "ingest"]).arg(&self.input);
        command.args(["--name", "table", "--shard-size", "256KiB"]).args(more);
        command.env("TMPDIR", self.home.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The same with little memory, so that rows go to disk: into a work directory of its own.
    fn ingest_from_disk(&self, store: &str, more: &[&str]) -> Command {
        let mut command = self.ingest(store, more);
        command.args(["--memory", "64MiB", "--work"]).arg(self.work(store));
        command
    }

    fn work(&self, store: &str) -> PathBuf {
        self.store(&format!("{store}-work"))
    }

    fn datasets(&self, store: &str) -> usize {
        let mut command = Command::new(binary("shardctl"));
        let listed = run(command.arg("--store").arg(self.store(store)).args(["--json", "ls"]));
        serde_json::from_str::<Value>(&listed).expect("JSON").as_array().expect("a list").len()
    }

    /// Bytes that an ingest has left so far: rows in its work directory, and shards.
    fn left(&self, store: &str) -> u64 {
        bytes_below(&self.store(store)) + bytes_below(&self.work(store))
    }
}

/// The bytes of the files below a directory that changes.
fn bytes_below(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

/// What the ingest says at its end.
fn done(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(text.lines().last().expect("it says something")).expect("JSON")
}

/// Runs on until a number of bytes are left, or to its end.
fn until(desk: &Desk, store: &str, child: &mut Child, bytes: u64) {
    while child.try_wait().expect("a child can be asked").is_none() && desk.left(store) < bytes {
        std::thread::yield_now();
    }
}

#[test]
fn an_ingest_that_is_killed_at_five_moments_makes_the_version_it_always_makes() {
    let desk = Desk::new();
    let undisturbed = done(&desk.ingest("undisturbed", &[]).output().expect("shardctl starts"));
    assert!(undisturbed["shards"].as_u64() >= Some(SHARDS), "{undisturbed}");
    // Rows that lie on disk come first, shards after them; five attempts do not reach their end.
    let step = 2 * desk.left("undisturbed") / 6;
    for threads in ["1", "2", "8", "1", "2"] {
        let moment = desk.left("killed") + RandomState::new().hash_one(threads) % step;
        let mut child =
            desk.ingest_from_disk("killed", &["--threads", threads]).spawn().expect("shardctl starts");
        until(&desk, "killed", &mut child, moment);
        child.kill().expect("a child can be killed");
        child.wait().expect("a killed child is reaped");
        println!("killed at {moment} bytes: {} in the store", bytes_below(&desk.store("killed")));
        assert_eq!(desk.datasets("killed"), 0, "nothing is visible before the end");
    }
    let resumed = done(&desk.ingest_from_disk("killed", &[]).output().expect("shardctl starts"));
    assert_eq!(resumed["version"], undisturbed["version"]);
    let mut verify = Command::new(binary("shardctl"));
    run(verify.arg("--store").arg(desk.store("killed")).args(["verify", "table"]));
    assert_eq!(bytes_below(&desk.work("killed")), 0, "nothing is left behind");
}

#[test]
fn an_ingest_that_is_interrupted_says_how_to_go_on_and_going_on_says_from_where() {
    let desk = Desk::new();
    let undisturbed = done(&desk.ingest("undisturbed", &[]).output().expect("shardctl starts"));
    let mut child = desk.ingest_from_disk("interrupted", &[]).spawn().expect("shardctl starts");
    // All rows are on disk by then, and some of the shards.
    until(&desk, "interrupted", &mut child, desk.left("undisturbed") * 3 / 2);
    let pid = Pid::from_raw(child.id().try_into().expect("a process id")).expect("not zero");
    kill_process(pid, Signal::INT).expect("a child can be interrupted");
    let interrupted = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&interrupted.stderr);
    assert_eq!((interrupted.status.code(), desk.datasets("interrupted")), (Some(130), 0), "{said}");
    let last: Value = serde_json::from_str(said.trim_end()).expect("with --json, one object of JSON");
    let words = "interrupted: the same command continues where this one stopped";
    assert_eq!(last, json!({ "error": words, "exit": 130 }));
    let resumed = desk.ingest_from_disk("interrupted", &[]).output().expect("shardctl starts");
    assert_eq!(done(&resumed)["version"], undisturbed["version"]);
    let said = String::from_utf8_lossy(&resumed.stdout);
    assert!(said.contains("continuing where an earlier attempt stopped: 300,000 samples read"), "{said}");
}

#[test]
fn threads_and_memory_do_not_matter() {
    let desk = Desk::new();
    let version = |store, more: &[&str]| {
        done(&desk.ingest(store, more).output().expect("shardctl starts"))["version"].clone()
    };
    let one = version("one", &["--threads", "1"]);
    assert_eq!(version("two", &["--threads", "2", "--memory", "64MiB"]), one);
    assert_eq!(version("eight", &["--threads", "8", "--memory", "200MiB"]), one);
    assert_ne!(version("other", &["--seed", "1"]), one);
}

#[test]
fn of_two_ingests_under_one_name_the_second_is_told() {
    let desk = Desk::new();
    let mut first =
        desk.ingest("store", &["--seed", "1", "--work", &desk.home.path().join("a").display().to_string()]);
    let mut first = first.spawn().expect("shardctl starts");
    until(&desk, "store", &mut first, 1 << 20);
    let pid = Pid::from_child(&first);
    kill_process(pid, Signal::STOP).expect("a child can be stopped");
    let second = done(&desk.ingest("store", &["--seed", "2"]).output().expect("shardctl starts"));
    kill_process(pid, Signal::CONT).expect("and continue");
    let told = first.wait_with_output().expect("a child is reaped");
    let line = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(!told.status.success() && line.contains("table"), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    let mut list = Command::new(binary("shardctl"));
    let listed = run(list.arg("--store").arg(desk.store("store")).args(["--json", "ls"]));
    assert!(listed.contains(second["version"].as_str().expect("an id")), "{listed}");
}
