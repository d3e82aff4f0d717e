//! How fast a directory is: durable small writes, and reading a few MB back. The file has no name, so that nothing is left
//! of it, however the program ends.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

use super::finding::{Check, Finding, Group, doc};
use super::limit::within;
use crate::human::duration;

/// How long it may take.
const LIMIT: Duration = Duration::from_secs(20);
/// Durable writes that are timed, and for how long at most.
const WRITES: usize = 16;
const WRITING: Duration = Duration::from_secs(2);
/// The bytes of each.
const WRITE: usize = 4 << 10;
/// The bytes that are read back.
const READ: usize = 8 << 20;
/// A disk that takes longer to make a write durable slows every change of the metadata.
const SLOW_SYNC: Duration = Duration::from_millis(100);
/// A disk that reads fewer bytes a second than this makes ranks wait.
const SLOW_READ: f64 = 50e6;

/// The times of a directory.
#[derive(Debug, Clone)]
pub(super) struct Speed {
    /// Of each durable write, the shortest first; one at least.
    pub(super) syncs: Vec<Duration>,
    /// Bytes read in a second.
    pub(super) read_rate: f64,
}

/// All of them.
pub(super) fn check(group: Group, directory: &Path) -> Vec<Finding> {
    let writes_check = Check::new(group, "disk_writes", doc::SLOW);
    let reads_check = Check::new(group, "disk_reads", doc::SLOW);
    let place = directory.to_owned();
    match within(LIMIT, move || measure(&place)) {
        None => vec![writes_check.given_up(LIMIT)],
        Some(Err(error)) => vec![
            writes_check
                .error(format!("{} takes no {} MiB: {error}", directory.display(), READ >> 20))
                .mend("Free space on the disk, or look for its errors in `dmesg`."),
        ],
        Some(Ok(speed)) => vec![
            writes(writes_check, directory, &speed.syncs),
            reads(reads_check, directory, speed.read_rate),
        ],
    }
}

fn writes(check: Check, directory: &Path, syncs: &[Duration]) -> Finding {
    let (middle, last) = (syncs.get(syncs.len() / 2), syncs.last());
    let [middle, last] = [middle, last].map(|time| time.copied().unwrap_or_default());
    let evidence = format!(
        "{} makes a write of {} KiB durable in {} (the slowest of {}: {})",
        directory.display(),
        WRITE >> 10,
        duration(middle),
        syncs.len(),
        duration(last)
    );
    match middle > SLOW_SYNC {
        true => check
            .warning(evidence)
            .mend("Look at what else uses the disk (`iostat -x 1`), or put the data directory on an SSD."),
        false => check.ok(evidence),
    }
}

fn reads(check: Check, directory: &Path, rate: f64) -> Finding {
    let evidence = format!("{} reads {:.0} MB/s ({} MiB)", directory.display(), rate / 1e6, READ >> 20);
    match rate < SLOW_READ {
        true => check
            .warning(evidence)
            .mend("Look at what else uses the disk (`iostat -x 1`), or put the data directory on an SSD."),
        false => check.ok(evidence),
    }
}

/// Measures a directory with a few MB.
pub(super) fn measure(directory: &Path) -> io::Result<Speed> {
    let mut file = tempfile::tempfile_in(directory)?;
    let (bytes, began) = (vec![0x5a; WRITE], Instant::now());
    let mut syncs = Vec::new();
    while syncs.is_empty() || syncs.len() < WRITES && began.elapsed() < WRITING {
        let start = Instant::now();
        file.write_all(&bytes)?;
        file.sync_data()?;
        syncs.push(start.elapsed());
    }
    syncs.sort_unstable();
    Ok(Speed { syncs, read_rate: read_rate(&mut file)? })
}

fn read_rate(file: &mut File) -> io::Result<f64> {
    let mut bytes: Vec<u8> = (0..READ).map(|at| (at / 7) as u8).collect();
    file.rewind()?;
    file.write_all(&bytes)?;
    file.sync_data()?;
    // Only a wish: a file system in memory keeps its pages.
    let _ = fadvise(&*file, 0, None, Advice::DontNeed);
    file.rewind()?;
    let start = Instant::now();
    file.read_exact(&mut bytes)?;
    Ok(READ as f64 / start.elapsed().as_secs_f64().max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Ok as Fine, Warning};
    use super::*;

    #[test]
    fn slow_disks_are_named_with_their_times() {
        let check = Check::new(Group::Directory, "x", doc::SLOW);
        let times = |middle| [1, middle, 900].map(Duration::from_millis);
        assert_eq!(writes(check, Path::new("/srv"), &times(20)).severity, Fine);
        let found = writes(check, Path::new("/srv"), &times(300));
        assert_eq!(found.severity, Warning);
        assert!(found.evidence.contains("300 ms") && found.evidence.contains("900 ms"), "{found:?}");
        assert_eq!(writes(check, Path::new("/srv"), &[]).severity, Fine);
        assert_eq!(reads(check, Path::new("/srv"), 2e9).severity, Fine);
        assert_eq!(reads(check, Path::new("/srv"), 8e6).severity, Warning);
    }

    #[test]
    fn a_directory_is_measured_without_a_trace() {
        let root = tempfile::TempDir::new().expect("a directory");
        let speed = measure(root.path()).expect("it can be written");
        assert!(!speed.syncs.is_empty() && speed.read_rate > 0.0);
        assert_eq!(std::fs::read_dir(root.path()).expect("readable").count(), 0);
        assert_eq!(super::check(Group::Directory, Path::new("/not/there"))[0].severity.name(), "error");
    }
}
