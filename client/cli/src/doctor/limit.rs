//! Time limits for probes. The system has calls that nothing interrupts, as those to a network mount that hangs.

use std::io::{self, Read};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

/// How often a process is asked whether it has ended: the system has no wait with a time limit.
const POLL: Duration = Duration::from_millis(10);

/// A probe at work.
pub(crate) struct Pending<T> {
    result: Receiver<T>,
    until: Instant,
}

/// Starts a probe on a thread of its own. Its limit counts from now on.
pub(crate) fn start<T: Send + 'static>(
    limit: Duration,
    probe: impl FnOnce() -> T + Send + 'static,
) -> Pending<T> {
    let (sender, result) = sync_channel(1);
    // One that hangs in the kernel cannot be waited for: it ends with the process.
    std::thread::spawn(move || {
        // No receiver is left when the limit has passed.
        let _ = sender.send(probe());
    });
    Pending { result, until: Instant::now() + limit }
}

impl<T> Pending<T> {
    /// Its result; `None` when the limit has passed.
    pub(crate) fn wait(self) -> Option<T> {
        self.result.recv_timeout(self.until.saturating_duration_since(Instant::now())).ok()
    }
}

/// The result of a probe; `None` when the limit has passed.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    probe: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    start(limit, probe).wait()
}

/// Runs a program that prints a page at most. It is killed when the limit has passed.
///
/// # Errors
/// When it does not start, or takes too long.
pub(crate) fn output(command: &mut Command, limit: Duration) -> io::Result<Output> {
    let began = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // Both at once: a program whose pipe is full waits for its reader.
    let reader = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // The bytes that were read until then count.
            let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
            bytes
        })
    };
    let stdout = reader(child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let stderr = reader(child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if began.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not end"));
        }
        std::thread::sleep(POLL);
    };
    let joined = |thread: std::thread::JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
    Ok(Output { status, stdout: joined(stdout), stderr: joined(stderr) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_that_hangs_is_given_up() {
        let (held, probe) = sync_channel::<()>(0);
        assert_eq!(within(Duration::from_millis(20), move || probe.recv().is_ok()), None);
        drop(held);
        assert_eq!(within(Duration::from_secs(20), || 7), Some(7));
    }

    #[test]
    fn a_program_is_run_to_its_end_or_killed() {
        let shell = |script: &str, limit| {
            output(Command::new("sh").args(["-c", script]), Duration::from_millis(limit))
        };
        let done = shell("echo out; echo err >&2; exit 3", 20_000).expect("it runs");
        assert_eq!(
            (done.status.code(), &*done.stdout, &*done.stderr),
            (Some(3), &b"out\n"[..], &b"err\n"[..])
        );
        assert_eq!(shell("exec sleep 60", 50).expect_err("too long").kind(), io::ErrorKind::TimedOut);
        assert!(output(&mut Command::new("/not/there"), Duration::ZERO).is_err());
    }
}
