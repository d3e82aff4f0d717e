//! `shardtrain run` as a process: its output, and the files of its ranks.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::common::DigitsStore;

/// A launcher, its output, and the files of its rank 0. Killed when dropped, and its ranks with it.
pub(crate) struct Launcher {
    pub(crate) process: Child,
    pub(crate) said: Receiver<String>,
    pub(crate) progress: Receiver<String>,
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Lines as they come. All of them are read, or a full pipe would stop who writes.
fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = sync_channel(100_000);
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    receive
}

impl Launcher {
    pub(crate) fn start(store: &DigitsStore, launch: &[&str], arguments: &[&str]) -> Launcher {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
        command.arg("run").args(launch).arg("--").arg("--store").arg(store.path());
        command.args(["--plan", &store.plan.to_string(), "--test-dataset", "digits-test"]);
        command.args(["--progress", "-", "--report"]).arg(report_of(store)).args(arguments);
        command.env("RAYON_NUM_THREADS", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let said = lines(process.stderr.take().unwrap());
        let progress = lines(process.stdout.take().unwrap());
        Launcher { process, said, progress }
    }

    /// The processes of the next world, which has a number of ranks.
    pub(crate) fn world(&self, ranks: usize) -> Vec<Pid> {
        for line in &self.said {
            println!("{line}");
            if let Some((_, pids)) = line.split_once("processes ") {
                let pids: Vec<Pid> =
                    pids.split(' ').map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect();
                assert_eq!(pids.len(), ranks, "{line}");
                return pids;
            }
        }
        panic!("no world of {ranks} ranks");
    }

    /// Waits for rank 0 to have trained a number of further steps.
    pub(crate) fn train(&self, steps: usize) {
        assert_eq!(self.progress.iter().take(steps).count(), steps, "it continues training");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Waits for the end: its exit code, and its output.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let said: Vec<String> = self.said.iter().collect();
        (self.process.wait().unwrap().code(), said.join("\n"))
    }
}

pub(crate) fn report_of(store: &DigitsStore) -> PathBuf {
    store.path().join("report.json")
}

pub(crate) fn read_report(store: &DigitsStore) -> Value {
    serde_json::from_slice(&std::fs::read(report_of(store)).unwrap()).unwrap()
}

/// What no training with other ranks or interruptions may differ in.
pub(crate) fn outcome(report: &Value) -> [&Value; 5] {
    ["weights_digest", "loss_per_epoch", "test_loss", "steps", "samples"].map(|name| &report[name])
}

/// What a training gives that nothing happens to.
pub(crate) fn undisturbed(store: &DigitsStore, arguments: &[&str]) -> Value {
    let (code, said) = Launcher::start(store, &["--nproc", "1"], arguments).end();
    assert_eq!(code, Some(0), "{said}");
    let whole = read_report(store);
    assert_eq!(whole["samples"].as_u64(), Some(6 * store.manifest.sample_count()));
    whole
}
