//! Takes a version elsewhere: to files that other programs read, and that ingest turns into the same samples again.
//!
//! Everything is written beside its destination and renamed when it is whole and on disk: there is all of it, or nothing.

mod parquet;
mod webdataset;

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use shardfmt::manifest::Manifest;
use shardfmt::member::MemberError;
use shardfmt::size::ByteSize;
use shardfmt::store::Store;

use super::stretch::{Line, Piece};
use super::{VersionError, pool};
use crate::{Cut, Progress};

/// The format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// Parquet files with a row group for each shard.
    Parquet {
        /// Whether columns are compressed, with zstd.
        zstd: bool,
    },
    /// Uncompressed tars with a member for each column of a sample.
    WebDataset,
}

/// How to export.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kept.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::version::{ExportFormat, ExportOptions, export};
/// # use shardd_ingest::{IngestConfig, Inputs, Kind, NoProgress, Resources, Source, ingest};
/// use shardfmt::ByteSize;
/// # let (kept, config) = (Kept::default(), IngestConfig::default());
/// # let source = Source::new(Inputs::in_memory("words.csv", "word\ncat\ndog\n"), &config)?;
/// # let manifest = ingest(source, &config, &Resources::threads(1), &kept, &NoProgress)?.manifest;
///
/// let dir = tempfile::tempdir()?;
/// let to = dir.path().join("words");
/// let format = ExportFormat::Parquet { zstd: true };
/// let options = ExportOptions { format, file_size: ByteSize::mib(64) };
/// let exported = export(&manifest, &kept, &to, options, 1, &NoProgress)?;
/// assert_eq!(exported.files, 1);
/// assert_eq!(Source::open(&to, &IngestConfig::default())?.kind(), Kind::Parquet);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ExportOptions {
    /// The format.
    pub format: ExportFormat,
    /// The size that files aim at, in canonical bytes; a Parquet file holds whole shards, and one at least.
    pub file_size: ByteSize,
}

/// The exported files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    /// How many files.
    pub files: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// Why nothing was exported. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum ExportError {
    /// Something is there already. Give another place.
    #[error("{}: exists, and is not an empty directory; give a new place", .path.display())]
    Occupied { path: PathBuf },
    /// Another export is under way.
    #[error("{}: another export is writing it; wait for that, or give another place", .path.display())]
    Unfinished { path: PathBuf },
    /// The directory for unfinished files is not from an export.
    #[error("{}: exists, and is not from an export; move it away, or give another place", .path.display())]
    Foreign { path: PathBuf },
    /// The file system refused.
    #[error("{}: cannot be written", .path.display())]
    Write { path: PathBuf, source: io::Error },
    /// Parquet cannot hold the samples as they are.
    #[error("{file}: Parquet cannot hold these samples ({reason}); export them as webdataset")]
    Parquet { file: String, reason: String },
    /// A sample cannot be written as members.
    #[error("samples cannot be written as members of a tar; export them as parquet")]
    Member(#[from] MemberError),
    /// No file would hold a sample.
    #[error("a file of 0 bytes holds no sample; give a size such as 256MiB")]
    NoSize,
    /// The version cannot be read.
    #[error(transparent)]
    Version(#[from] VersionError),
}

/// Writes all samples of a version to the directory `to`, in order.
///
/// # Errors
///
/// When `to` is neither empty nor missing, a shard is missing or damaged, the disk is full, or the format cannot hold the
/// samples without loss.
pub fn export(
    manifest: &Manifest,
    store: &dyn Store,
    to: &Path,
    options: ExportOptions,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Exported, ExportError> {
    if options.file_size.0 == 0 {
        return Err(ExportError::NoSize);
    }
    let staging = Staging::create(to)?;
    let line = Line::of(&manifest.shards);
    let job = Job { manifest, line: &line, store, dir: &staging.dir, progress };
    let exported = pool(threads)?.install(|| match options.format {
        ExportFormat::Parquet { zstd } => parquet::write(&job, options.file_size, zstd),
        ExportFormat::WebDataset => webdataset::write(&job, options.file_size),
    })?;
    staging.publish(to)?;
    Ok(exported)
}

/// The needs of the writers of all formats.
struct Job<'a> {
    manifest: &'a Manifest,
    line: &'a Line<'a>,
    store: &'a dyn Store,
    dir: &'a Path,
    progress: &'a dyn Progress,
}

impl Job<'_> {
    /// Parts of the samples of about `size` canonical bytes.
    fn pieces(&self, size: ByteSize) -> Vec<Vec<Piece>> {
        let cut = Cut::new(self.manifest.sample_count(), self.manifest.row_bytes(), Some(size));
        self.line.units((0..cut.shard_count()).map(|index| cut.positions(index)))
    }

    /// Digits that number the samples, and so anything that there is less of.
    fn digits(&self) -> usize {
        self.manifest.sample_count().saturating_sub(1).to_string().len().max(6)
    }

    /// Writes a file, all the way to the disk: its length.
    fn file(
        &self,
        name: &str,
        write: impl FnOnce(&mut File) -> Result<(), ExportError>,
    ) -> Result<u64, ExportError> {
        let path = self.dir.join(name);
        let failed = |source| ExportError::Write { path: path.clone(), source };
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
        write(&mut file)?;
        file.sync_all().and_then(|()| file.metadata()).map(|found| found.len()).map_err(failed)
    }

    /// The error for a file that cannot be written.
    fn failed(&self, name: &str, source: io::Error) -> ExportError {
        ExportError::Write { path: self.dir.join(name), source }
    }
}

/// Runs `write` on all units in parallel; it says how long the files are that it has written.
fn each<T: Send>(
    units: Vec<T>,
    write: impl Fn(T) -> Result<Vec<u64>, ExportError> + Send + Sync,
) -> Result<Exported, ExportError> {
    let lengths = units.into_par_iter().map(write).collect::<Result<Vec<_>, _>>()?.concat();
    Ok(Exported { files: lengths.len() as u64, bytes: lengths.iter().sum() })
}

/// Lies in a directory that an export is writing.
const MARK: &str = ".shardd-export";

/// The directory that becomes the destination; gone with this value unless it has.
struct Staging {
    dir: PathBuf,
    /// Held for as long as this process writes to it: of a process that was killed, the system lets it go.
    _lock: File,
    is_published: bool,
}

impl Staging {
    fn create(to: &Path) -> Result<Self, ExportError> {
        let is_free = match fs::read_dir(to) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        let name = to.file_name().filter(|_| is_free);
        let Some(name) = name else { return Err(ExportError::Occupied { path: to.to_owned() }) };
        let mut name = name.to_owned();
        name.push(".tmp");
        let dir = to.with_file_name(name);
        let failed = |source| ExportError::Write { path: dir.clone(), source };
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            Err(_) if !dir.is_dir() => return Err(ExportError::Foreign { path: dir }),
            Ok(()) | Err(_) => {}
        }
        let lock = File::open(&dir).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ExportError::Unfinished { path: dir }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // The one who held the lock until now may have given the directory another name.
        let is_same = fs::metadata(&dir).and_then(|there| Ok(there.ino() == lock.metadata()?.ino()));
        if !is_same.unwrap_or(false) {
            return Err(ExportError::Unfinished { path: dir });
        }
        if !clear(&dir).map_err(failed)? {
            return Err(ExportError::Foreign { path: dir });
        }
        let staging = Self { dir: dir.clone(), _lock: lock, is_published: false };
        File::create(dir.join(MARK)).map_err(failed)?;
        Ok(staging)
    }

    fn publish(mut self, to: &Path) -> Result<(), ExportError> {
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let sync = |dir: &Path| File::open(dir)?.sync_all();
        // Over an empty directory a directory is renamed as over nothing.
        let published = sync(&self.dir).and_then(|()| fs::rename(&self.dir, to));
        self.is_published = published.is_ok();
        let done = published.and_then(|()| sync(parent)).and_then(|()| fs::remove_file(to.join(MARK)));
        done.map_err(|source| ExportError::Write { path: to.to_owned(), source })
    }
}

/// Removes what an export left that was killed. Returns whether nothing else is there; then, nothing is removed.
fn clear(dir: &Path) -> io::Result<bool> {
    let entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    let names: Vec<_> = entries.iter().map(|entry| entry.file_name()).collect();
    let is_ours = |name: &OsString| {
        let name = name.to_string_lossy();
        let is_part = |start, end| name.starts_with(start) && name.ends_with(end);
        name == MARK || is_part("part-", ".parquet") || is_part("samples-", ".tar")
    };
    let is_marked = names.iter().any(|name| name == MARK);
    if !(names.is_empty() || is_marked && names.iter().all(is_ours)) {
        return Ok(false);
    }
    // The mark last: killed in here, the next export finds it and removes the rest.
    names.iter().filter(|name| *name != MARK).try_for_each(|name| fs::remove_file(dir.join(name)))?;
    Ok(true)
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.is_published {
            // The next export names the files that cannot be removed either.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}
