//! Runs a program and tells what it used. Linux keeps these figures, for as long as the process lives.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// How often the process is looked at. What it used after the last look is not seen.
const LOOK: Duration = Duration::from_millis(2);
/// Ticks in a second, which Linux shows to programs as a hundredth whatever its own clock is.
const TICKS: f64 = 100.0;

/// What a process used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// From its start to its end.
    pub seconds: f64,
    /// Seconds that processors worked for it.
    pub cpu_seconds: f64,
    /// The most memory that was resident at any time, pages of mapped files among it: `VmHWM`.
    pub peak_bytes: u64,
    /// The most that was resident and not of files, as far as it was seen.
    pub peak_anonymous_bytes: u64,
}

/// Runs the command to its end: what it used, and what it printed.
///
/// # Errors
/// When it cannot be started, or fails; its standard error goes where this process's goes.
pub fn run(mut command: Command) -> Result<(Usage, String)> {
    let mut output = tempfile::tempfile()?;
    let (began, mut used) = (Instant::now(), Usage::default());
    let mut child = command.stdin(Stdio::null()).stdout(output.try_clone()?).spawn()?;
    let status = loop {
        look(child.id(), &mut used);
        match child.try_wait()? {
            Some(status) => break status,
            None => thread::sleep(LOOK),
        }
    };
    used.seconds = began.elapsed().as_secs_f64();
    ensure!(status.success(), "{} failed: {status}", command.get_program().display());
    Ok((used, printed(&mut output)?))
}

fn printed(output: &mut File) -> Result<String> {
    let mut text = String::new();
    output.rewind()?;
    output.read_to_string(&mut text)?;
    Ok(text)
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
    // After the name, which is in parentheses and may hold anything, fields 12 and 13 count ticks of user and system time.
    let stat = read("stat");
    let ticks = |index: usize| stat.rsplit(')').next()?.split_whitespace().nth(index)?.parse::<u64>().ok();
    if let (Some(user), Some(system)) = (ticks(11), ticks(12)) {
        used.cpu_seconds = (user + system) as f64 / TICKS;
    }
}
