//! Metadata in sled: acknowledged changes survive a kill at any moment, since every change is synced to the
//! disk before it is acknowledged.
//!
//! The writer is this very test binary, started again as a process of its own: it writes, says so, and is killed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shardd::metastore::SledMetastore;
use shardd_store::metastore::{Expected, Listing, Metastore};
use shardd_tests::is_quick;
use shardfmt::Digest;
use tempfile::TempDir;

/// How many write at once, each to keys of its own.
const WRITERS: usize = 4;
/// How many keys each has.
const KEYS: u64 = 8;
/// Tells the test binary that it is the writer: `<directory> <first number of each writer…>`.
const TASK: &str = "SHARDD_TEST_SLED_WRITER";

/// How many changes of each writer there are.
type Progress = [u64; WRITERS];

/// The `n`th change of a writer: its key, and its new value, or none if it is deleted. Each follows from its number.
fn change(writer: usize, n: u64) -> (String, Option<Vec<u8>>) {
    let key = format!("refs/{writer}/{}", n % KEYS);
    let random = u64::from_le_bytes(*Digest::of(&n.to_le_bytes()).0.first_chunk().expect("32 bytes"));
    let length = if random.is_multiple_of(16) { random % 60_000 } else { random % 300 };
    let value = [&n.to_le_bytes()[..], &vec![n as u8; length as usize]].concat();
    (key, (!random.is_multiple_of(5)).then_some(value))
}

/// Not a test but the writer, when its environment asks for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (directory, starts) = task.split_once(' ').expect("a directory and numbers");
    let store = Arc::new(SledMetastore::open(Path::new(directory)).expect("opens"));
    say("opened");
    let writers = starts.split(' ').enumerate().map(|(writer, start)| {
        let (store, start) = (Arc::clone(&store), start.parse::<u64>().expect("a number"));
        tokio::spawn(async move {
            for n in start.. {
                let (key, value) = change(writer, n);
                let revision = match value {
                    Some(value) => store.put(&key, value, Expected::Any, None).await,
                    None => store.delete(&key, Expected::Any).await,
                };
                say(&format!("acknowledged {writer} {n} {}", revision.expect("writes")));
            }
        })
    });
    futures::future::join_all(writers.collect::<Vec<_>>()).await;
}

/// One line, at once and in one piece.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).expect("the reader listens");
}

/// The command that runs the writer over `directory`.
fn writing(mut command: Command, directory: &Path, starts: &[u64]) -> Command {
    let starts: Vec<String> = starts.iter().map(u64::to_string).collect();
    command.args(["sled::writer", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(TASK, format!("{} {}", directory.display(), starts.join(" ")));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

fn this_binary() -> Command {
    Command::new(std::env::current_exe().expect("a test knows its own path"))
}

/// Takes the lines of the writer, from where `until` says that it is enough, to the end of its output when
/// killed.
fn acknowledged(child: &mut Child, mut until: impl FnMut(usize) -> bool) -> Vec<(usize, u64, u64)> {
    let mut told = Vec::new();
    let mut killed = until(0);
    if killed {
        child.kill().expect("a child can be killed");
    }
    for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
        let line = line.expect("text");
        if let Some(rest) = line.strip_prefix("acknowledged ") {
            let words: Vec<u64> = rest.split(' ').map(|word| word.parse().expect("a number")).collect();
            told.push((words[0] as usize, words[1], words[2]));
        }
        if !killed && until(told.len()) {
            child.kill().expect("a child can be killed");
            killed = true;
        }
    }
    child.wait().expect("a killed child is reaped");
    told
}

/// What the metastore holds after the first `progress` changes of each writer.
fn expected(progress: &Progress) -> BTreeMap<String, Vec<u8>> {
    let mut state = BTreeMap::new();
    for (writer, count) in progress.iter().enumerate() {
        for n in count.saturating_sub(KEYS)..*count {
            let (key, value) = change(writer, n);
            if let Some(value) = value {
                state.insert(key, value);
            }
        }
    }
    state
}

/// How far each writer came, by the present state: up to its last answer, or one change further.
fn progress_of(found: &Listing, told: &Progress) -> Progress {
    std::array::from_fn(|writer| {
        let prefix = format!("refs/{writer}/");
        let own: BTreeMap<String, Vec<u8>> = found
            .entries
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix))
            .map(|(key, entry)| (key.clone(), entry.value.clone()))
            .collect();
        let holds = |count: u64| {
            let mut progress = Progress::default();
            progress[writer] = count;
            expected(&progress) == own
        };
        let count = told[writer];
        match (holds(count), holds(count + 1)) {
            (true, _) => count,
            (false, true) => count + 1,
            _ => panic!(
                "writer {writer} got answers to {count} changes, and the state is neither that nor one more"
            ),
        }
    })
}

#[tokio::test]
async fn killed_at_any_moment_sled_opens_with_all_that_was_acknowledged() {
    let rounds = if is_quick() { 10 } else { 100 };
    let directory = TempDir::new().expect("a temporary directory can be made");
    let meta = directory.path().join("meta");
    let (mut progress, mut last_revision, mut unacknowledged) = (Progress::default(), 0, 0);
    let began = Instant::now();
    for round in 0..rounds {
        let random = Digest::of(format!("round {round}").as_bytes()).0;
        // Some are killed while they open it, the others after a number of changes and, within one, of
        // microseconds.
        let (changes, spin) = (usize::from(random[0]) % 32, u64::from(random[1]) * 16);
        let mut child = writing(this_binary(), &meta, &progress).spawn().expect("starts");
        let told = acknowledged(&mut child, |count| {
            let enough = count >= changes;
            let since = Instant::now();
            while enough && since.elapsed() < Duration::from_micros(spin) {
                std::hint::spin_loop();
            }
            enough
        });
        for (writer, n, revision) in told {
            assert_eq!(n, progress[writer], "changes are acknowledged in their order");
            progress[writer] += 1;
            last_revision = last_revision.max(revision);
        }
        let store = SledMetastore::open(&meta).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let found = store.list("refs/").await.expect("lists");
        assert!(
            found.revision >= last_revision,
            "round {round}: revision {} after {last_revision}",
            found.revision
        );
        let came = progress_of(&found, &progress);
        unacknowledged += came.iter().zip(&progress).map(|(came, told)| came - told).sum::<u64>();
        (progress, last_revision) = (came, found.revision);
    }
    let changes: u64 = progress.iter().sum();
    assert!(changes > rounds * 4, "only {changes} changes in {rounds} rounds");
    println!(
        "killed {rounds} times in {:?}: {changes} changes, none acknowledged was lost, {unacknowledged} were there unacknowledged",
        began.elapsed()
    );
}

/// What `strace` saw of the writer, in order.
#[derive(Debug, PartialEq)]
enum Call {
    WriteToSled,
    SyncOfSled,
    Acknowledgement,
}

#[test]
fn every_change_is_synced_before_it_is_acknowledged() {
    const CHANGES: usize = 40;
    let directory = TempDir::new().expect("a temporary directory can be made");
    let (meta, trace) = (directory.path().join("meta"), directory.path().join("trace"));
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "-y",
        "-s",
        "16",
        "-e",
        "trace=write,pwrite64,pwritev,fsync,fdatasync,sync_file_range",
        "-o",
    ]);
    strace.arg(&trace);
    let mut probe = Command::new("strace");
    let works = probe.args(["-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        println!("skipped: strace is not installed, or may not trace here");
        return;
    }
    strace.arg(std::env::current_exe().expect("a test knows its own path"));
    // strace outlives SIGKILL's sender: it is ended by the writer's broken pipe instead.
    let mut child = writing(strace, &meta, &[0]).spawn().expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let told =
        lines.by_ref().filter(|line| line.as_ref().is_ok_and(|line| line.starts_with("acknowledged ")));
    assert_eq!(told.take(CHANGES).count(), CHANGES, "the writer ended early");
    drop(lines);
    child.wait().expect("a child is reaped");

    let calls = calls(&std::fs::read_to_string(&trace).expect("strace wrote"));
    let parts: Vec<&[Call]> = calls.split(|call| *call == Call::Acknowledgement).collect();
    assert!(parts.len() > CHANGES, "{} acknowledgements were seen", parts.len() - 1);
    let mut synced = 0;
    for (n, before) in (0..).zip(&parts[..CHANGES]) {
        // Only deleting a missing key changes nothing.
        let may_be_nothing = change(0, n).1.is_none();
        match before {
            [] if may_be_nothing => {}
            [.., Call::SyncOfSled] if before.contains(&Call::WriteToSled) => synced += 1,
            _ => panic!("change {n} was acknowledged before it was written and synced: {before:?}"),
        }
    }
    assert!(synced > CHANGES / 2, "only {synced} changes were changes");
    println!("{synced} changes, each written, synced and then acknowledged");
}

/// The calls in a trace that matter here, each where it ended.
fn calls(trace: &str) -> Vec<Call> {
    let mut begun: BTreeMap<&str, &str> = BTreeMap::new();
    let mut calls = Vec::new();
    for line in trace.lines() {
        let (process, call) = line.split_once(' ').expect("a process and a call");
        let call = call.trim_start();
        // A call that another thread's interrupts is written in two lines; its subject stands in the first.
        if call.ends_with("<unfinished ...>") {
            begun.insert(process, call);
            continue;
        }
        let about = if call.starts_with("<...") { begun.remove(process).unwrap_or(call) } else { call };
        let name = about.split('(').next().expect("not empty");
        let of_sled = about.contains("/meta/db>");
        match name {
            "write" if about.contains("\"acknowledged ") => calls.push(Call::Acknowledgement),
            "write" | "pwrite64" | "pwritev" if of_sled => calls.push(Call::WriteToSled),
            "fsync" | "fdatasync" if of_sled && call.ends_with("= 0") => calls.push(Call::SyncOfSled),
            _ => {}
        }
    }
    calls
}
