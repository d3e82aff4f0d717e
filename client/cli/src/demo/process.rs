//! Starts, watches and stops the processes of the demo. Does not know their work.
//!
//! None of them outlives the demo: they are stopped in order when it ends for any reason, and on Linux the kernel kills
//! them when the demo itself is killed (`PR_SET_PDEATHSIG`). Other systems have no such promise: after a SIGKILL of
//! the demo they must be stopped by hand there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often a process is asked whether it has ended: the system has no wait with a time limit.
const POLL: Duration = Duration::from_millis(10);

/// The processes that the demo has started, in order.
pub(crate) struct Processes {
    logs: PathBuf,
    running: Vec<Process>,
}

struct Process {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
}

/// A process that ended without a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    /// The executable could not be started.
    #[error("cannot start {program}")]
    Start { program: String, source: io::Error },
    /// It ended before its work was done.
    #[error("{name} ended too early ({status}); {log}")]
    Ended { name: String, status: ExitStatus, log: String },
}

impl Processes {
    /// No processes yet; each will write to `<logs>/<name>.log`.
    pub(crate) fn new(logs: &Path) -> io::Result<Processes> {
        fs::create_dir_all(logs)?;
        Ok(Processes { logs: logs.to_owned(), running: Vec::new() })
    }

    /// Starts `command` under `name`, with its output in its log.
    ///
    /// Call it from a thread that lives as long as the demo: on Linux the death of the *thread* that started a process
    /// counts as the death of its parent.
    pub(crate) fn start(&mut self, name: &str, mut command: Command) -> Result<(), ProcessError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let start = |source| ProcessError::Start { program: program.clone(), source };
        let log = File::create(self.log_path(name)).map_err(start)?;
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(start)?).stderr(log);
        die_with_parent(&mut command);
        let child = command.spawn().map_err(start)?;
        self.running.push(Process { name: name.to_owned(), child, ended: None });
        Ok(())
    }

    /// Fails if a process has ended, unless it ended well and `may_end` says that it may.
    pub(crate) fn check(&mut self, may_end: impl Fn(&str) -> bool) -> Result<(), ProcessError> {
        let ended = self.running.iter_mut().find_map(|process| {
            let status = process.poll()?;
            (!status.success() || !may_end(&process.name)).then(|| (process.name.clone(), status))
        });
        ended.map_or(Ok(()), |(name, status)| Err(self.ended(&name, status)))
    }

    /// Whether the process has ended.
    pub(crate) fn is_done(&mut self, name: &str) -> bool {
        self.running.iter_mut().any(|process| process.name == name && process.poll().is_some())
    }

    /// Kills the process at once, as a power cut would, and forgets it.
    pub(crate) fn kill(&mut self, name: &str) -> io::Result<()> {
        let Some(index) = self.running.iter().position(|process| process.name == name) else {
            return Ok(());
        };
        let mut process = self.running.remove(index);
        process.child.kill()?;
        process.child.wait().map(drop)
    }

    /// Asks all processes to stop, the last started first, and kills those still there after `grace`.
    /// Says which had to be killed.
    pub(crate) fn stop(&mut self, grace: Duration) -> Vec<String> {
        let deadline = Instant::now() + grace;
        for process in self.running.iter_mut().rev() {
            process.terminate();
        }
        let mut killed = Vec::new();
        for mut process in self.running.drain(..).rev() {
            while process.poll().is_none() {
                if Instant::now() >= deadline {
                    killed.push(process.name.clone());
                    // It may end by itself in between: then there is nothing left to kill.
                    let _ = process.child.kill();
                    let _ = process.child.wait();
                    break;
                }
                std::thread::sleep(POLL);
            }
        }
        killed
    }

    /// The last lines the process has written, on one line.
    pub(crate) fn last_words(&self, name: &str) -> String {
        last_lines(&fs::read_to_string(self.log_path(name)).unwrap_or_default(), 5)
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    fn ended(&self, name: &str, status: ExitStatus) -> ProcessError {
        ProcessError::Ended { name: name.to_owned(), status, log: self.last_words(name) }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.stop(Duration::from_secs(5));
    }
}

impl Process {
    fn poll(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    fn terminate(&mut self) {
        if self.poll().is_some() {
            return;
        }
        // Not reaped yet, so the id is still this process's own.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}

/// Its own process group, so that Ctrl-C reaches the demo alone and the demo stops the others in order; and, on Linux,
/// SIGKILL when the demo dies.
fn die_with_parent(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
    #[cfg(target_os = "linux")]
    {
        let parent = rustix::process::getpid();
        let hook = move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The parent may have died before the line above took effect.
            match rustix::process::getppid() == Some(parent) {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error())),
            }
        };
        // SAFETY: the hook makes two system calls (prctl, getppid) and neither allocates nor takes a lock.
        unsafe { command.pre_exec(hook) };
    }
}

/// The last `count` non-empty lines, without ANSI colours, joined by ` | `.
fn last_lines(text: &str, count: usize) -> String {
    let plain = without_colours(text);
    let lines: Vec<&str> = plain.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let tail = &lines[lines.len().saturating_sub(count)..];
    match tail {
        [] => "it wrote nothing".to_owned(),
        tail => format!("its last lines: {}", tail.join(" | ")),
    }
}

/// Leaves out escape sequences such as `ESC [ 32 m`.
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| plain + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn wait_until(mut is_true: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_true() {
            assert!(Instant::now() < deadline, "waited too long");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_process_that_fails_is_reported_with_its_last_words() {
        let logs = tempfile::tempdir().unwrap();
        let mut processes = Processes::new(logs.path()).unwrap();
        processes.start("n1", shell("echo one; echo two >&2; exit 3")).unwrap();
        let mut error = None;
        wait_until(|| processes.check(|_| true).map_err(|e| error = Some(e)).is_err());
        let text = error.unwrap().to_string();
        assert!(text.starts_with("n1 ended too early (exit status: 3)"), "{text}");
        assert!(text.ends_with("its last lines: one | two"), "{text}");
    }

    #[test]
    fn stopping_asks_first_and_kills_who_does_not_listen() {
        let logs = tempfile::tempdir().unwrap();
        let mut processes = Processes::new(logs.path()).unwrap();
        processes
            .start("polite", shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done"))
            .unwrap();
        processes.start("deaf", shell("trap '' TERM; echo ready; while :; do sleep 0.01; done")).unwrap();
        for name in ["polite", "deaf"] {
            wait_until(|| processes.last_words(name).contains("ready"));
        }
        assert_eq!(processes.stop(Duration::from_millis(500)), ["deaf"]);
    }

    #[test]
    fn a_finished_process_is_done_and_a_killed_one_is_forgotten() {
        let logs = tempfile::tempdir().unwrap();
        let mut processes = Processes::new(logs.path()).unwrap();
        processes.start("quick", shell("exit 0")).unwrap();
        processes.start("slow", shell("sleep 60")).unwrap();
        wait_until(|| processes.is_done("quick"));
        assert!(!processes.is_done("slow"));
        assert!(processes.check(|name| name == "quick").is_ok());
        assert!(processes.check(|_| false).is_err());
        processes.kill("slow").unwrap();
        assert!(processes.check(|_| true).is_ok());
    }

    #[test]
    fn last_words_are_the_last_lines_without_colours() {
        assert_eq!(last_lines("a\nb\n\u{1b}[32m INFO\u{1b}[0m c\n\n", 2), "its last lines: b | INFO c");
        assert_eq!(last_lines("", 2), "it wrote nothing");
    }

    #[test]
    fn a_missing_program_is_named() {
        let logs = tempfile::tempdir().unwrap();
        let mut processes = Processes::new(logs.path()).unwrap();
        let error = processes.start("x", Command::new("/no/such/program")).unwrap_err();
        assert_eq!(error.to_string(), "cannot start /no/such/program");
    }
}
