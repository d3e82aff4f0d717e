//! The working directory of an ingest, from which a killed one resumes: rows that did not fit memory, and the
//! list of stored shards.
//!
//! A directory for each ingest, named for its input and settings, private, and locked while in use. `rows-N`
//! has the rows of part N that memory did not hold. `journal` has a line of JSON for each step, with its
//! changes; a line without an end is incomplete and does not count. Rows are synced before the line that
//! speaks of them.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use shardfmt::manifest::ShardEntry;
use shardfmt::{InputDigest, SkippedList};

use super::IngestError;
use super::files::FileChain;
use super::order::Classes;
use super::sorter::{Buckets, Spill, Spilled};
use super::spill_file::Place;

/// No ingest comes back for work older than this.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// Digits of the name of a directory, which are hexadecimal: a directory with another name is not ours to
/// remove.
pub(super) const NAME_DIGITS: usize = 32;

/// The directory of one ingest; without one, rows that do not fit memory go to unlinked temporary files.
#[derive(Debug)]
pub(super) struct Work {
    /// Where temporary files go.
    parent: Option<PathBuf>,
    directory: Option<PathBuf>,
    /// Locked, and at its end.
    journal: Option<Mutex<File>>,
}

/// One line of the journal.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Checkpoint(Checkpoint),
    Shard(StoredShard),
}

/// All rows are on disk that were read until now: their count, and the news since the checkpoint before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    /// Pieces of the input that were read.
    pub(super) pieces: u64,
    /// Rows in them.
    pub(super) rows: u64,
    /// The files that pieces read.
    pub(super) files: FileChain,
    /// After the last piece: the digests of the input.
    pub(super) inputs: Option<Vec<InputDigest>>,
    /// The unreadable parts: their number by now, and the new entries of the list.
    pub(super) skipped: SkippedList,
    /// One for each part of the input that is kept.
    pub(super) parts: Vec<PartCheckpoint>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PartCheckpoint {
    pub(super) buckets: Buckets,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// The rows that were written.
    pub(super) spill: Spill,
    /// Their classes, if the mix is stratified, new ones in order of appearance.
    pub(super) classes: Vec<(Option<String>, u64)>,
}

/// A shard that is in the sink: which one it is depends on the cut as well.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredShard {
    pub(super) part: usize,
    pub(super) rows_per_shard: u64,
    pub(super) index: usize,
    pub(super) entry: ShardEntry,
}

/// The work of an earlier attempt.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) read: Option<ReadSoFar>,
    pub(super) shards: Vec<StoredShard>,
}

/// The sum of all checkpoints.
#[derive(Debug)]
pub(super) struct ReadSoFar {
    pub(super) pieces: u64,
    pub(super) rows: u64,
    pub(super) files: FileChain,
    pub(super) inputs: Option<Vec<InputDigest>>,
    pub(super) skipped: SkippedList,
    pub(super) parts: Vec<PartSoFar>,
}

#[derive(Debug)]
pub(super) struct PartSoFar {
    pub(super) buckets: Buckets,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) spilled: Spilled,
    pub(super) classes: Classes,
}

impl Work {
    /// Opens the directory named `name` in `parent`, with what an earlier attempt left in it. Without a parent, or when
    /// someone else works there, nothing is kept and nothing is found.
    pub(super) fn open(parent: Option<&Path>, name: &str) -> Result<(Work, Left), IngestError> {
        let nothing =
            || (Work { parent: parent.map(Path::to_owned), directory: None, journal: None }, Left::default());
        let Some(parent) = parent else { return Ok(nothing()) };
        let refused = |source| IngestError::Spill { directory: parent.to_owned(), source };
        let directory = parent.join(name);
        private_directory(&directory).map_err(refused)?;
        let journal = OpenOptions::new()
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
        let left = replay(&directory, &journal).map_err(refused)?;
        let journal = Some(Mutex::new(journal));
        Ok((Work { parent: Some(parent.to_owned()), directory: Some(directory), journal }, left))
    }

    /// Notes that all rows read so far are on disk. When this returns, so is the note.
    pub(super) fn checkpoint(&self, checkpoint: Checkpoint) -> io::Result<()> {
        self.append(&Line::Checkpoint(checkpoint))?;
        let Some(journal) = &self.journal else { return Ok(()) };
        journal.lock().expect("no panic while held").sync_data()
    }

    /// Notes that a shard was stored. A note that is lost with the power costs making the shard again.
    pub(super) fn shard(&self, shard: StoredShard) -> io::Result<()> {
        self.append(&Line::Shard(shard))
    }

    fn append(&self, line: &Line) -> io::Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        journal.lock().expect("no panic while held").write_all(&text)
    }

    /// Where the rows of a part of the input go.
    pub(super) fn rows(&self, part: usize) -> Place {
        match &self.directory {
            Some(directory) => Place::Kept(rows_path(directory, part)),
            None => self.unkept(),
        }
    }

    /// Where rows go that only this process needs.
    pub(super) fn unkept(&self) -> Place {
        Place::Unlinked(self.directory.clone().or_else(|| self.parent.clone()))
    }

    /// Ends with an error: the work is kept if the next attempt can continue from it.
    pub(super) fn end(self, error: IngestError) -> IngestError {
        if !error.may_pass() {
            self.remove();
        }
        error
    }

    /// Removes everything: the version is committed, or will never be.
    pub(super) fn remove(self) {
        // A later ingest removes the rest, when no ingest has come back for it.
        if let Some(directory) = &self.directory {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

fn rows_path(directory: &Path, part: usize) -> PathBuf {
    directory.join(format!("rows-{part}"))
}

/// Makes a directory that only this user can use, or finds one; in it, names may be predictable.
///
/// # Errors
/// When something lies there that is not this user's own directory, such as a link that someone else laid.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::private_directory;
///
/// let dir = tempfile::tempdir()?;
/// std::fs::write(dir.path().join("taken"), "a file")?;
/// private_directory(&dir.path().join("free"))?;
/// assert!(private_directory(&dir.path().join("taken")).is_err());
/// # Ok(())
/// # }
/// ```
pub fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        let reason = format!("{} is there already and is not your own directory", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Reads the journal and cuts off a line without an end. If rows are gone that it speaks of, so is everything.
fn replay(directory: &Path, journal: &File) -> io::Result<Left> {
    let (mut left, mut whole) = (Left::default(), 0);
    let (mut lines, mut line) = (BufReader::new(journal), Vec::new());
    while lines.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        match serde_json::from_slice(&line) {
            Ok(Line::Checkpoint(checkpoint)) => match &mut left.read {
                Some(read) => read.add(checkpoint),
                None => left.read = Some(ReadSoFar::new(checkpoint)),
            },
            Ok(Line::Shard(shard)) => left.shards.push(shard),
            Err(_) => break,
        }
        whole += line.len() as u64;
        line.clear();
    }
    if left.read.as_ref().is_some_and(|read| !read.has_rows(directory)) {
        (left, whole) = (Left::default(), 0);
    }
    let mut journal = journal;
    journal.set_len(whole)?;
    journal.seek(SeekFrom::End(0))?;
    Ok(left)
}

impl ReadSoFar {
    fn new(first: Checkpoint) -> ReadSoFar {
        let part = |part: &PartCheckpoint| PartSoFar {
            buckets: part.buckets,
            rows: 0,
            bytes: 0,
            spilled: Spilled::default(),
            classes: Classes::default(),
        };
        let mut read = ReadSoFar {
            pieces: 0,
            rows: 0,
            files: FileChain::new(),
            inputs: None,
            skipped: SkippedList::default(),
            parts: first.parts.iter().map(part).collect(),
        };
        read.add(first);
        read
    }

    /// Takes in the next checkpoint.
    fn add(&mut self, next: Checkpoint) {
        (self.pieces, self.rows, self.files, self.inputs) = (next.pieces, next.rows, next.files, next.inputs);
        self.skipped.count = next.skipped.count;
        self.skipped.first.extend(next.skipped.first);
        for (part, next) in self.parts.iter_mut().zip(next.parts) {
            (part.rows, part.bytes) = (next.rows, next.bytes);
            part.spilled.add(&next.spill);
            part.classes.add(&next.classes);
            part.classes.news();
        }
    }

    /// Whether all rows are still there.
    fn has_rows(&self, directory: &Path) -> bool {
        self.parts.iter().enumerate().all(|(index, part)| {
            let length = fs::metadata(rows_path(directory, index)).map_or(0, |found| found.len());
            length >= part.spilled.length()
        })
    }
}

/// Removes the work of ingests that did not come back. That it cannot be removed is no reason not to ingest.
fn remove_forgotten(parent: &Path, but: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let journal = entry.path().join("journal");
        let changed = fs::metadata(&journal).and_then(|metadata| metadata.modified());
        let is_old = changed.is_ok_and(|changed| {
            SystemTime::now().duration_since(changed).is_ok_and(|age| age > FORGOTTEN_AFTER)
        });
        let is_free = || File::open(&journal).is_ok_and(|file| file.try_lock().is_ok());
        let name = entry.file_name();
        let is_ours = name.len() == NAME_DIGITS && name.as_encoded_bytes().iter().all(u8::is_ascii_hexdigit);
        if is_ours && name != *but && is_old && is_free() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use shardfmt::Skipped;
    use shardfmt::size::ByteSize;

    use super::super::sorter::{Block, Sorter};
    use super::*;

    fn checkpoint(pieces: u64) -> Checkpoint {
        Checkpoint {
            pieces,
            rows: 10 * pieces,
            files: FileChain::new(),
            inputs: None,
            skipped: SkippedList::default(),
            parts: Vec::new(),
        }
    }

    #[test]
    fn the_last_whole_line_counts() {
        let parent = tempfile::tempdir().unwrap();
        let open = || Work::open(Some(parent.path()), "x").unwrap();
        let (work, left) = open();
        assert!(left.read.is_none());
        work.checkpoint(checkpoint(1)).unwrap();
        work.checkpoint(checkpoint(2)).unwrap();
        drop(work);
        let journal = parent.path().join("x/journal");
        let text = fs::read(&journal).unwrap();
        fs::write(&journal, [&text[..], br#"{"checkpoint":{"pieces":3"#].concat()).unwrap();
        let (work, left) = open();
        assert_eq!(left.read.unwrap().pieces, 2);
        work.checkpoint(checkpoint(4)).unwrap();
        drop(work);
        let (work, left) = open();
        assert_eq!(left.read.unwrap().pieces, 4);
        work.remove();
        assert!(!journal.exists());
    }

    #[test]
    fn who_comes_second_keeps_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let (first, _) = Work::open(Some(parent.path()), "x").unwrap();
        let (second, left) = Work::open(Some(parent.path()), "x").unwrap();
        second.checkpoint(checkpoint(1)).unwrap();
        assert!(left.read.is_none());
        second.remove();
        assert!(parent.path().join("x/journal").exists());
        drop(first);
    }

    #[test]
    fn a_checkpoint_says_what_is_new_and_all_together_say_all() {
        let parent = tempfile::tempdir().unwrap();
        let open = || Work::open(Some(parent.path()), "x").unwrap();
        let (work, _) = open();
        let buckets = Buckets::Spread { count: 16 };
        let mut sorter = Sorter::new(buckets, ByteSize(1), u64::MAX, work.rows(0));
        let mut spilled = Spilled::default();
        for pieces in 1..=3 {
            let bytes = vec![7; 1000];
            sorter.add(Block {
                bytes,
                rows: (1..=10).map(|row| (row << 60, row, 100 * row as usize)).collect(),
            });
            let spill = sorter.spill().unwrap();
            spilled.add(&spill);
            let skipped = Skipped { name: format!("file {pieces}"), reason: "no reason".to_owned() };
            let classes = vec![(Some(format!("class {}", pieces % 2)), 10)];
            work.checkpoint(Checkpoint {
                skipped: SkippedList { count: pieces, first: vec![skipped] },
                parts: vec![PartCheckpoint {
                    buckets,
                    rows: 10 * pieces,
                    bytes: 1000 * pieces,
                    spill,
                    classes,
                }],
                ..checkpoint(pieces)
            })
            .unwrap();
        }
        let journal = fs::read_to_string(parent.path().join("x/journal")).unwrap();
        let lengths: Vec<usize> = journal.lines().map(str::len).collect();
        assert!(lengths[2] < lengths[0] + 10, "{lengths:?}");
        drop(work);
        let read = open().1.read.unwrap();
        assert_eq!((read.pieces, read.rows, read.skipped.count, read.skipped.first.len()), (3, 30, 3, 3));
        let part = &read.parts[0];
        assert_eq!((part.rows, part.bytes, &part.spilled), (30, 3000, &spilled));
        assert_eq!(part.classes.sizes(), [20, 10]);
    }

    #[test]
    fn what_is_kept_is_for_this_user_alone() {
        let parent = tempfile::tempdir().unwrap();
        let (there, link) = (parent.path().join("there"), parent.path().join("link"));
        fs::create_dir(&there).unwrap();
        fs::set_permissions(&there, Permissions::from_mode(0o755)).unwrap();
        Work::open(Some(parent.path()), "there").unwrap();
        assert_eq!(fs::metadata(&there).unwrap().mode() & 0o777, 0o700);
        std::os::unix::fs::symlink(&there, &link).unwrap();
        let refused = Work::open(Some(parent.path()), "link").unwrap_err();
        assert!(matches!(refused, IngestError::Spill { .. }), "{refused}");
    }

    #[test]
    fn only_forgotten_work_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - FORGOTTEN_AFTER - Duration::from_secs(60);
        let (forgotten, recent) = ("0".repeat(NAME_DIGITS), "1".repeat(NAME_DIGITS));
        for (name, is_old) in [(&*forgotten, true), (&*recent, false), ("letters", true)] {
            fs::create_dir(parent.path().join(name)).unwrap();
            let journal = File::create(parent.path().join(name).join("journal")).unwrap();
            journal.set_modified(if is_old { old } else { SystemTime::now() }).unwrap();
        }
        Work::open(Some(parent.path()), "x").unwrap();
        let is_there = |name: &str| parent.path().join(name).exists();
        assert!(!is_there(&forgotten) && is_there(&recent) && is_there("letters"));
    }

    #[test]
    fn rows_of_this_process_alone_lie_where_work_is_kept() {
        let parent = tempfile::tempdir().unwrap();
        let (first, _) = Work::open(Some(parent.path()), "x").unwrap();
        let (second, _) = Work::open(Some(parent.path()), "x").unwrap();
        let lies_in =
            |place: Place, path: &Path| matches!(place, Place::Unlinked(Some(found)) if found == path);
        assert!(lies_in(first.unkept(), &parent.path().join("x")));
        assert!(lies_in(second.unkept(), parent.path()) && lies_in(second.rows(0), parent.path()));
    }
}
