//! Runs a program and measures its resources. Linux keeps these figures, for as long as the process lives.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// How often the process is looked at. Its use after the last look is not seen.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Ticks in a second, which Linux shows to programs as a hundredth whatever its own clock is.
const TICKS: f64 = 100.0;

/// The resources a process used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// From its start to its end.
    pub seconds: f64,
    /// Seconds that processors worked for it.
    pub cpu_seconds: f64,
    /// The most memory that was resident at any time, pages of mapped files among it: `VmHWM`.
    pub peak_bytes: u64,
    /// The most that was resident and not of files, where it was seen.
    pub peak_anonymous_bytes: u64,
}

/// Runs the command to its end: its use of resources, and its output.
///
/// # Errors
/// When it cannot be started, or fails; its standard error goes where this process's goes.
pub fn run(command: Command) -> Result<(Usage, String)> {
    let mut printed = String::new();
    let used = follow(command, |_, line| printed.extend([line, "\n"]))?;
    Ok((used, printed))
}

/// Runs the command to its end, and hands on each line that it prints, with the time since it was started.
///
/// # Errors
/// When it cannot be started, or fails; its standard error goes where this process's goes.
pub fn follow(mut command: Command, mut each: impl FnMut(Duration, &str)) -> Result<Usage> {
    let (began, used) = (Instant::now(), Mutex::new(Usage::default()));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("it was asked for")?).lines();
    let (process, ended) = (child.id(), AtomicBool::new(false));
    let status = thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                look(process, &mut used.lock().expect("no panic while held"));
                thread::sleep(POLL_INTERVAL);
            }
        });
        let read = lines.try_for_each(|line| line.map(|line| each(began.elapsed(), &line)));
        let status = child.wait();
        ended.store(true, Ordering::Relaxed);
        read.and(status)
    })?;
    let mut used = used.into_inner().context("no panic while held")?;
    used.seconds = began.elapsed().as_secs_f64();
    ensure!(status.success(), "{} failed: {status}", command.get_program().display());
    Ok(used)
}

/// Takes note of what the process has used so far. One that has just ended has nothing left to tell.
fn look(process: u32, used: &mut Usage) {
    let read = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
    for line in read("status").lines() {
        let kilobytes = || line.split_whitespace().nth(1)?.parse::<u64>().ok();
        let most = match line.split(':').next() {
            Some("VmHWM") => &mut used.peak_bytes,
            Some("RssAnon") => &mut used.peak_anonymous_bytes,
            _ => continue,
        };
        *most = kilobytes().map_or(0, |kilobytes| kilobytes * 1024).max(*most);
    }
    if let Some(seconds) = cpu_seconds(&read("stat")) {
        used.cpu_seconds = seconds;
    }
}

/// Seconds that processors have worked for this process so far.
///
/// # Panics
/// Where Linux does not tell.
pub fn own_cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("Linux tells about processes");
    cpu_seconds(&stat).expect("a process has times")
}

/// From what `/proc` says: after the name, which is in parentheses and may hold anything, fields 12 and 13 count ticks of user and system time.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let ticks = |index: usize| stat.rsplit(')').next()?.split_whitespace().nth(index)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) as f64 / TICKS)
}
