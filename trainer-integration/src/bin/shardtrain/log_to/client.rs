//! Logs by a system's own client, which is in Python: only that knows the system's protocol, its stores and its credentials.
//!
//! A child process runs the client (`client.py`, which is part of this program). It reads lines of JSON: a [`Line::Begin`], then
//! facts and points, and [`Line::End`]; if its input ends without one, the training was killed. It writes [`Answer`]s. Points wait for
//! it in a queue, and the training does not: points that find the queue full are dropped and counted.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use tracing::warn;

use super::{Ending, Facts, RunLogger};

const PROGRAM: &str = include_str!("client.py");
/// Runs a program of as many bytes as the first argument says, which come first on the standard input. Folders of the working directory,
/// such as those that clients leave there, are no modules.
const START: &str = "import os, sys; sys.path = [path for path in sys.path if path]; lines = os.fdopen(os.dup(0), 'rb'); \
                     exec(compile(lines.read(int(sys.argv[1])), 'client.py', 'exec')); main(lines, *sys.argv[2:])";
/// Names the Python to run; `python3` by default.
const PYTHON: &str = "SHARDD_PYTHON";
/// How long a child may take until the run is open.
pub(super) const OPENING: Duration = Duration::from_secs(60);
/// How long it may take to complete the log of a training, and of one that others may be waiting for.
const COMPLETING: Duration = Duration::from_secs(60);
const LEAVING: Duration = Duration::from_secs(10);
/// How long to wait for the reason of one that reads no more.
const NOTICING: Duration = Duration::from_secs(1);
/// How often to look whether a child has ended.
const GLANCE: Duration = Duration::from_millis(10);
/// The most points that wait for it.
const QUEUE: usize = 1_000;
/// The most answers: the run is open, and the client fails later.
const ANSWERS: usize = 2;

/// A message to the child.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Line<'a> {
    /// The name of the run among those of many, its name for people, and facts.
    Begin {
        id: &'a str,
        name: &'a str,
        facts: &'a Facts,
    },
    Facts(&'a Facts),
    /// Values by name. NaN and infinities are strings, since JSON has no numbers for them.
    Point {
        step: u64,
        values: Map<String, Value>,
    },
    End(Ending),
}

impl Line<'_> {
    fn to_text(&self) -> String {
        let mut text = serde_json::to_string(self).expect("names, texts and numbers serialize");
        text.push('\n');
        text
    }
}

/// A message of the child.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    /// The run is open.
    Open,
    /// The client is missing or fails, and the child ends.
    Failed(String),
}

/// A log that a child process writes.
pub(super) struct ClientLog {
    /// The system and the name in it, for messages.
    to: String,
    child: Child,
    /// Empty once the log is complete.
    lines: Option<SyncSender<String>>,
    /// The line after all others, which finds a place whatever waits.
    last: Arc<OnceLock<String>>,
    answers: Receiver<Answer>,
    threads: Vec<JoinHandle<()>>,
    dropped: u64,
}

impl ClientLog {
    /// Starts the client of a system, and has it open the run with this id, in the experiment or project `name`.
    ///
    /// # Errors
    /// If there is no Python.
    pub(super) fn start(
        system: &str,
        name: &str,
        id: &str,
        run: &str,
        facts: &Facts,
    ) -> Result<ClientLog, String> {
        let python = std::env::var_os(PYTHON).filter(|python| !python.is_empty());
        let python = python.unwrap_or_else(|| OsString::from("python3"));
        let mut command = Command::new(&python);
        command.args(["-c", START, &PROGRAM.len().to_string(), system, name]);
        let mut log = ClientLog::of(format!("{system}:{name}"), command).map_err(|error| {
            format!(
                "cannot start {}: {error}; name a Python that has {system} in {PYTHON} (`pip install {system}`)",
                python.display()
            )
        })?;
        for line in [PROGRAM.to_owned(), Line::Begin { id, name: run, facts }.to_text()] {
            // A child that has ended already is noticed where its answer is read.
            let _ = log.put(line);
        }
        Ok(log)
    }

    fn of(to: String, mut command: Command) -> io::Result<ClientLog> {
        // In a group of its own: Ctrl-C is for the training, which then says how it ended.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).expect("both are pipes");
        let (lines, waiting) = sync_channel(QUEUE);
        let (heard, answers) = sync_channel(ANSWERS);
        let last = Arc::new(OnceLock::new());
        let its_last = Arc::clone(&last);
        let threads = vec![
            thread::spawn(move || write_lines(stdin, &waiting, &its_last)),
            thread::spawn(move || read_answers(stdout, &heard)),
        ];
        Ok(ClientLog { to, child, lines: Some(lines), last, answers, threads, dropped: 0 })
    }

    /// Waits until the run is open, but no longer than `limit`.
    ///
    /// # Errors
    /// If it cannot be opened: why, and the remedy.
    pub(super) fn wait_until_open(&mut self, limit: Duration) -> Result<(), String> {
        match self.answers.recv_timeout(limit) {
            Ok(Answer::Open) => Ok(()),
            Ok(Answer::Failed(reason)) => Err(reason),
            Err(RecvTimeoutError::Disconnected) => Err(self.reason()),
            Err(RecvTimeoutError::Timeout) => {
                self.kill();
                Err(format!("its client has not opened the run within {} s", limit.as_secs_f64()))
            }
        }
    }

    /// Queues a line, or drops it.
    fn put(&mut self, line: String) -> io::Result<()> {
        let sent = self.lines.as_ref().map(|lines| lines.try_send(line));
        match sent {
            Some(Ok(())) => Ok(()),
            Some(Err(TrySendError::Full(_))) => {
                self.dropped += 1;
                Ok(())
            }
            Some(Err(TrySendError::Disconnected(_))) | None => Err(io::Error::other(self.reason())),
        }
    }

    /// Why the child has ended, or is about to.
    fn reason(&mut self) -> String {
        // An answer may still be on the way.
        while let Ok(answer) = self.answers.recv_timeout(NOTICING) {
            if let Answer::Failed(reason) = answer {
                return reason;
            }
        }
        match self.wait(NOTICING) {
            Some(status) => format!("its client has ended ({status})"),
            None => "its client does not read any more".to_owned(),
        }
    }

    /// Lets the child complete its log, and ends it after `limit`.
    fn complete(&mut self, how: Ending, limit: Duration) -> io::Result<()> {
        let _ = self.last.set(Line::End(how).to_text());
        self.lines = None;
        let status = self.wait(limit);
        if status.is_none() {
            self.kill();
        }
        for thread in self.threads.drain(..) {
            thread.join().expect("threads that copy lines do not panic");
        }
        if self.dropped > 0 {
            let (dropped, to) = (self.dropped, &self.to);
            warn!("{dropped} points are missing in the log {to}, because its client was too slow");
        }
        match status {
            Some(status) if status.success() => Ok(()),
            Some(_) => Err(io::Error::other(self.reason())),
            None => {
                let message = format!("its client was killed {} s after the training", limit.as_secs_f64());
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            }
        }
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => thread::sleep(GLANCE),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }

    /// Ends the child, and with it the threads that wait for it.
    fn kill(&mut self) {
        // An error says that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RunLogger for ClientLog {
    fn describe(&mut self, facts: &Facts) -> io::Result<()> {
        self.put(Line::Facts(facts).to_text())
    }

    fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        let values = values.iter().map(|(name, value)| {
            let text = || Value::String(value.to_string());
            ((*name).to_owned(), Number::from_f64(*value).map_or_else(text, Value::Number))
        });
        self.put(Line::Point { step, values: values.collect() }.to_text())
    }

    fn end(&mut self, how: Ending) -> io::Result<()> {
        self.complete(how, if how == Ending::Trained { COMPLETING } else { LEAVING })
    }
}

impl Drop for ClientLog {
    /// A training that ends without a word has failed.
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            let _ = self.complete(Ending::Failed, LEAVING);
        }
    }
}

/// Writes lines until there are no more, or no reader.
fn write_lines(mut to: ChildStdin, lines: &Receiver<String>, last: &OnceLock<String>) {
    for line in lines {
        if to.write_all(line.as_bytes()).is_err() {
            return;
        }
    }
    if let Some(line) = last.get() {
        let _ = to.write_all(line.as_bytes()); // a child that has ended is known by its status
    }
}

/// Reads answers until the child ends. Lines of anything else that writes there are left out.
fn read_answers(from: ChildStdout, heard: &SyncSender<Answer>) {
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        if let Ok(answer) = serde_json::from_str(&line) {
            let _ = heard.try_send(answer); // there are no more than have room
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> ClientLog {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        ClientLog::of("a shell".to_owned(), command).expect("it starts")
    }

    #[test]
    fn a_client_that_does_not_read_holds_nothing_up_and_is_killed() {
        let mut log = shell("echo '\"open\"'; exec sleep 600");
        log.wait_until_open(OPENING).expect("it says so");
        let values = [("train/loss", 0.5); 16];
        for step in 0..20_000 {
            log.scalars(step, &values).expect("points are dropped silently");
        }
        assert!((1..20_000).contains(&log.dropped), "{} are dropped, and the queue is full", log.dropped);
        let late = log.complete(Ending::Trained, Duration::from_millis(50)).expect_err("it was killed");
        assert_eq!(late.to_string(), "its client was killed 0.05 s after the training");
        assert!(log.child.try_wait().expect("it is waited for").is_some());
    }

    #[test]
    fn a_client_gets_all_lines_and_then_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lines");
        let mut log = shell(&format!("exec cat >'{}'", path.display()));
        log.describe(&Facts::from_iter([("plan".to_owned(), Value::from("p"))])).expect("it runs");
        log.scalars(7, &[("a", 0.1), ("b", f64::NAN), ("c", f64::NEG_INFINITY)]).expect("it runs");
        log.end(Ending::Stopped).expect("it ends well");
        let lines = std::fs::read_to_string(path).expect("it is written");
        let wanted = r#"{"facts":{"plan":"p"}}
{"point":{"step":7,"values":{"a":0.1,"b":"NaN","c":"-inf"}}}
{"end":"stopped"}
"#;
        assert_eq!(lines, wanted);
    }

    #[test]
    fn a_client_that_never_opens_the_run_is_killed() {
        let mut log = shell("exec sleep 600");
        let late = log.wait_until_open(Duration::from_millis(50)).expect_err("it says nothing");
        assert_eq!(late, "its client has not opened the run within 0.05 s");
        assert!(log.child.try_wait().expect("it is waited for").is_some());
    }

    #[test]
    fn a_client_that_fails_says_why_and_one_that_is_killed_has_a_status() {
        let mut log = shell("echo noise; echo '{\"failed\": \"no key\"}'; exit 1");
        assert_eq!(log.wait_until_open(OPENING), Err("no key".to_owned()));
        let mut log = shell("kill -9 $$");
        assert_eq!(
            log.wait_until_open(OPENING),
            Err("its client has ended (signal: 9 (SIGKILL))".to_owned())
        );
        let mut log = shell("echo '\"open\"'; echo '{\"failed\": \"the disk is full\"}'; exit 1");
        log.wait_until_open(OPENING).expect("it says so");
        log.wait(LEAVING).expect("it ends");
        let values = [("train/loss", 0.5)];
        let error = (0..).find_map(|step| log.scalars(step, &values).err()).expect("no line is read");
        assert_eq!(error.to_string(), "the disk is full");
        assert!(log.end(Ending::Trained).is_err(), "the log is not complete");
    }
}
