//! Where an ingest keeps what it has done so far, so that one that was killed goes on where it was: rows that did not fit
//! memory, and the list of shards that were stored.
//!
//! A directory for each ingest, named for its input and settings, locked while it runs. `journal` has a line of JSON for
//! each step; a line without its end was being written and does not count. Rows are synced before the line that speaks
//! of them.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::IngestError;
use super::files::FileChain;
use super::sorter::{Buckets, Runs, Spilled};
use crate::manifest::{InputDigest, ShardEntry};

/// Nobody comes back for work older than this.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// The directory of one ingest; without one, what does not fit memory goes to unlinked temporary files.
#[derive(Debug)]
pub(super) struct Work {
    directory: Option<PathBuf>,
    /// Locked, and at its end.
    journal: Option<Mutex<File>>,
}

/// One line of the journal.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Checkpoint(Checkpoint),
    Shard { part: usize, index: usize, entry: Box<ShardEntry> },
}

/// How far the reading was when all rows were on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    /// Pieces of the input that were read.
    pub(super) pieces: u64,
    /// Rows in them.
    pub(super) rows: u64,
    /// What could not be read: name and reason.
    pub(super) skipped: Vec<(String, String)>,
    /// The files that pieces read.
    pub(super) files: FileChain,
    /// One for each part of the input that is kept.
    pub(super) parts: Vec<PartCheckpoint>,
    /// After the last piece: the digests of the input.
    pub(super) inputs: Option<Vec<InputDigest>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PartCheckpoint {
    pub(super) buckets: Buckets,
    pub(super) spilled: Spilled,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// The classes of a stratified mix, in order of appearance, and how many rows each has.
    pub(super) classes: Vec<(Option<String>, u64)>,
}

/// What an earlier attempt left.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) shards: Vec<(usize, usize, ShardEntry)>,
}

impl Work {
    /// Opens the directory named `name` in `parent`, with what an earlier attempt left in it. Without a parent, or when
    /// someone else works there, nothing is kept and nothing is found.
    pub(super) fn open(parent: Option<&Path>, name: &str) -> Result<(Work, Left), IngestError> {
        let nothing = || (Work { directory: None, journal: None }, Left::default());
        let Some(parent) = parent else { return Ok(nothing()) };
        let refused = |source| IngestError::Spill { directory: parent.to_owned(), source };
        let directory = parent.join(name);
        fs::create_dir_all(&directory).map_err(refused)?;
        let mut journal = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join("journal"))
            .map_err(refused)?;
        match journal.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(nothing()),
            Err(TryLockError::Error(error)) => return Err(refused(error)),
        }
        remove_forgotten(parent, name);
        let left = replay(&mut journal).map_err(refused)?;
        Ok((Work { directory: Some(directory), journal: Some(Mutex::new(journal)) }, left))
    }

    /// Notes that all rows read so far are on disk.
    pub(super) fn checkpoint(&self, checkpoint: Checkpoint) -> io::Result<()> {
        self.append(&Line::Checkpoint(checkpoint))
    }

    /// Notes that a shard was stored.
    pub(super) fn shard(&self, part: usize, index: usize, entry: &ShardEntry) -> io::Result<()> {
        if self.journal.is_none() {
            return Ok(());
        }
        self.append(&Line::Shard { part, index, entry: Box::new(entry.clone()) })
    }

    fn append(&self, line: &Line) -> io::Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let mut journal = journal.lock().expect("no panic while held");
        journal.write_all(&text)?;
        journal.sync_data()
    }

    /// Where the runs of a part of the input go.
    pub(super) fn runs(&self, part: usize) -> RunFiles {
        RunFiles { directory: self.directory.clone(), part }
    }

    /// The runs that an earlier attempt wrote.
    pub(super) fn open_runs(&self, part: usize, count: u32) -> io::Result<Vec<File>> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        (0..count).map(|run| File::open(run_path(directory, part, run))).collect()
    }

    /// Removes everything: the version is committed, or will never be.
    pub(super) fn remove(self) {
        // What stays is removed by a later ingest, when nobody has come back for it.
        if let Some(directory) = &self.directory {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// Creates the files of runs.
pub(super) struct RunFiles {
    directory: Option<PathBuf>,
    part: usize,
}

impl RunFiles {
    /// Files that nobody else can open, gone when they are closed.
    pub(super) fn unlinked() -> RunFiles {
        RunFiles { directory: None, part: 0 }
    }
}

impl Runs for RunFiles {
    fn create(&mut self, run: u32) -> io::Result<File> {
        match &self.directory {
            None => tempfile::tempfile(),
            Some(directory) => {
                let path = run_path(directory, self.part, run);
                OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)
            }
        }
    }
}

fn run_path(directory: &Path, part: usize, run: u32) -> PathBuf {
    directory.join(format!("rows-{part}-{run}"))
}

/// Reads the journal and cuts off a line without an end.
fn replay(journal: &mut File) -> io::Result<Left> {
    let mut text = Vec::new();
    journal.read_to_end(&mut text)?;
    let (mut left, mut whole) = (Left::default(), 0);
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(Line::Checkpoint(checkpoint)) if line.ends_with(b"\n") => left.checkpoint = Some(checkpoint),
            Ok(Line::Shard { part, index, entry }) if line.ends_with(b"\n") => {
                left.shards.push((part, index, *entry));
            }
            _ => break,
        }
        whole += line.len();
    }
    journal.set_len(whole as u64)?;
    journal.seek(SeekFrom::End(0))?;
    Ok(left)
}

/// Removes the work of ingests that nobody came back for. That it cannot be removed is no reason not to ingest.
fn remove_forgotten(parent: &Path, but: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let journal = entry.path().join("journal");
        let changed = fs::metadata(&journal).and_then(|metadata| metadata.modified());
        let is_old = changed.is_ok_and(|changed| {
            SystemTime::now().duration_since(changed).is_ok_and(|age| age > FORGOTTEN_AFTER)
        });
        let is_free = || File::open(&journal).is_ok_and(|file| file.try_lock().is_ok());
        if entry.file_name() != *but && is_old && is_free() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(pieces: u64) -> Checkpoint {
        Checkpoint {
            pieces,
            rows: 10 * pieces,
            skipped: Vec::new(),
            files: FileChain::new(),
            parts: Vec::new(),
            inputs: None,
        }
    }

    #[test]
    fn the_last_whole_line_counts() {
        let parent = tempfile::tempdir().unwrap();
        let open = || Work::open(Some(parent.path()), "x").unwrap();
        let (work, left) = open();
        assert!(left.checkpoint.is_none());
        work.checkpoint(checkpoint(1)).unwrap();
        work.checkpoint(checkpoint(2)).unwrap();
        drop(work);
        let journal = parent.path().join("x/journal");
        let text = fs::read(&journal).unwrap();
        fs::write(&journal, [&text[..], br#"{"checkpoint":{"pieces":3"#].concat()).unwrap();
        let (work, left) = open();
        assert_eq!(left.checkpoint.unwrap().pieces, 2);
        work.checkpoint(checkpoint(4)).unwrap();
        drop(work);
        let (work, left) = open();
        assert_eq!(left.checkpoint.unwrap().pieces, 4);
        work.remove();
        assert!(!journal.exists());
    }

    #[test]
    fn who_comes_second_keeps_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let (first, _) = Work::open(Some(parent.path()), "x").unwrap();
        let (second, left) = Work::open(Some(parent.path()), "x").unwrap();
        second.checkpoint(checkpoint(1)).unwrap();
        assert!(left.checkpoint.is_none());
        second.remove();
        assert!(parent.path().join("x/journal").exists());
        drop(first);
    }
}
