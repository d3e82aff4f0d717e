//! A directory of whole shards that all processes of a machine share, when no node runs there.
//!
//! ```text
//! DIR/lock              locked by whoever changes what is there
//! DIR/shards/ID         a shard, whole
//! DIR/shards/ID.part    one on its way, locked by the process that fetches it
//! DIR/used/ID           nothing; when it was changed says when the shard was last asked for
//! DIR/holds/NAME        what a process reads, locked by it for as long as it lives
//! DIR/verified/BOOT     which files were checked since the machine was started
//! DIR/slots/            slot tables, which have files and a limit of their own
//! ```
//!
//! All locks are the kernel's (`flock`): they end with their process, so a killed process leaves nothing to
//! clean up, and none waits for it. Its half-fetched file is overwritten by the next process that needs the
//! shard, or removed when room is needed. Shards are named by their content, so runs and versions share them;
//! and users, if they may write to the directory and believe each other's word on which files were checked
//! and on slot tables.
//!
//! Knows no stores: the caller fetches missing shards.

mod holds;
mod slots;
mod verified;

pub use verified::Seen;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use rustix::fs::{FlockOperation, flock, statvfs};
use shardfmt::{ByteSize, ShardId};
use tracing::{debug, warn};

use holds::Holds;
use verified::Verified;

pub use slots::{SlotTables, Turn};

use crate::fork;

/// How long another process may take to fetch a shard before this one fetches it for itself.
const LEASE: Duration = Duration::from_secs(30);
/// How often it is looked whether the other process is done.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A directory of shards that the processes of a machine share.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_client::shared_cache::{SharedCache, SharedCacheError};
/// use shardfmt::ByteSize;
///
/// # let directory = tempfile::tempdir()?;
/// let cache = SharedCache::open(directory.path(), Some(ByteSize::mib(64)))?;
/// assert_eq!(cache.used()?, 0);
/// // The shard that is read and the one that is fetched must both fit.
/// cache.check(32 << 20)?;
/// assert!(matches!(cache.check(33 << 20), Err(SharedCacheError::TooSmall { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SharedCache {
    dir: PathBuf,
    limit: ByteSize,
    holds: Mutex<Holds>,
    verified: Mutex<Verified>,
}

/// The result of a request for a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// It lies here until it is released.
    Here(PathBuf),
    /// It finds no room beside what processes read.
    NoRoom,
}

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum SharedCacheError {
    /// It cannot be made, read or written.
    #[error("{}: the cache cannot be used; name another directory with cache_dir or SHARDD_CACHE_DIR", .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// No shard of a dataset would fit.
    #[error("a cache of {limit} is too small for shards of {shard}: allow at least {least}")]
    TooSmall { limit: ByteSize, shard: ByteSize, least: ByteSize },
}

impl SharedCache {
    /// Opens the cache in `dir`, which is made when missing; all its shards together have at most `limit` bytes, or, if that
    /// is `None`, nine tenths of their present bytes and the free bytes of the disk.
    ///
    /// # Errors
    /// When the directory cannot be made, read or written.
    pub fn open(dir: impl Into<PathBuf>, limit: Option<ByteSize>) -> Result<Self, SharedCacheError> {
        let dir = dir.into();
        let failed = |source| SharedCacheError::Io { path: dir.clone(), source };
        for part in ["shards", "used", "holds", "verified"] {
            DirBuilder::new().recursive(true).mode(0o777).create(dir.join(part)).map_err(failed)?;
        }
        let holds = Mutex::new(Holds::new(dir.join("holds")));
        let verified = Mutex::new(Verified::open(&dir.join("verified")));
        let mut cache = Self { dir, limit: ByteSize(0), holds, verified };
        cache.limit = match limit {
            Some(limit) => limit,
            None => {
                let disk = statvfs(&cache.dir).map_err(|error| cache.failed("", error.into()))?;
                ByteSize((cache.used()? + disk.f_bavail * disk.f_frsize) / 10 * 9)
            }
        };
        Ok(cache)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The most bytes that its shards have together.
    pub fn limit(&self) -> ByteSize {
        self.limit
    }

    /// Whether shards of `largest` bytes can be kept at all: the one that is read, and the one that is fetched.
    ///
    /// # Errors
    /// [`SharedCacheError::TooSmall`] with the size that is needed.
    pub fn check(&self, largest: u64) -> Result<(), SharedCacheError> {
        let least = ByteSize(largest.saturating_mul(2));
        match least <= self.limit {
            true => Ok(()),
            false => Err(SharedCacheError::TooSmall { limit: self.limit, shard: ByteSize(largest), least }),
        }
    }

    /// Where a shard of `bytes` bytes lies; if it does not, what `fetch` gives is put there, once for all processes that ask
    /// at the same time. It is held for this process until it is [released](Self::release). Blocks, but for no longer than a
    /// lease on another process; while it does, `go_on` is asked again and again.
    ///
    /// # Errors
    /// What `fetch` and `go_on` give, and what the disk says.
    pub fn get<E: From<SharedCacheError>>(
        &self,
        id: ShardId,
        bytes: u64,
        go_on: impl Fn() -> Result<(), E>,
        fetch: impl FnOnce() -> Result<Bytes, E>,
    ) -> Result<Fetched, E> {
        let path = self.path_of(id);
        match self.hold(id) {
            Err(SharedCacheError::Io { source, .. }) if is_full(&source) => return Ok(Fetched::NoRoom),
            held => held?,
        }
        if self.is_there(&path, bytes) {
            return Ok(Fetched::Here(path));
        }
        let Some(part) = self.begin(&path, bytes, go_on)? else { return Ok(Fetched::Here(path)) };
        let kept = self.fill(&path, &part, bytes, fetch);
        if !matches!(kept, Ok(Fetched::Here(_))) {
            // Remaining files are removed when room is needed.
            let _ = fs::remove_file(&part.path);
            self.release(id);
        }
        kept
    }

    /// Whether a shard of `bytes` bytes is there. It may be gone a moment later.
    pub fn has(&self, id: ShardId, bytes: u64) -> bool {
        fs::metadata(self.path_of(id)).is_ok_and(|file| file.len() == bytes)
    }

    fn path_of(&self, id: ShardId) -> PathBuf {
        self.dir.join("shards").join(id.to_string())
    }

    /// Removes a file that was found not to be the shard it should be. A process that has it mapped keeps its
    /// map.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn discard(&self, path: &Path) -> Result<(), SharedCacheError> {
        let _changing = self.lock()?;
        match fs::remove_file(path) {
            // Another process has found it out, too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|source| SharedCacheError::Io { path: path.to_owned(), source }),
        }
    }

    /// Removes shards, whole or half fetched, also those that processes read: these keep their maps. How many
    /// files there were.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn forget(&self, shards: &BTreeSet<ShardId>) -> Result<usize, SharedCacheError> {
        let _changing = self.lock()?;
        let mut removed = 0;
        for file in self.files()? {
            // ID, ID.part or ID.NAME.part.
            let id = file.name.split('.').next().and_then(|name| name.parse::<ShardId>().ok());
            if !id.is_some_and(|id| shards.contains(&id)) {
                continue;
            }
            for path in [self.used_of(&file.path), file.path] {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    gone => gone.map_err(|source| SharedCacheError::Io { path, source })?,
                }
            }
            removed += 1;
        }
        Ok(removed)
    }

    /// The shard is not read by this process any more, and may make room.
    pub fn release(&self, id: ShardId) {
        let mut holds = self.holds.lock().expect("no panic while held");
        // A stale note only keeps a shard for longer.
        if let Err(error) = holds.release(id) {
            debug!(%id, %error, "a shard could not be released");
        }
    }

    /// Whether the file was found to be the shard since the machine was started, and has not changed since.
    pub fn is_verified(&self, id: ShardId, path: &Path) -> bool {
        self.verified.lock().expect("no panic while held").has(id, path)
    }

    /// The file was found to be the shard, which it may not be any more if it has changed since it was seen.
    pub fn note_verified(&self, id: ShardId, path: &Path, seen: Seen) {
        self.verified.lock().expect("no panic while held").note(id, path, seen);
    }

    /// Bytes of all shards, whole or on their way.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn used(&self) -> Result<u64, SharedCacheError> {
        Ok(self.files()?.iter().map(|file| file.bytes).sum())
    }

    fn hold(&self, id: ShardId) -> Result<(), SharedCacheError> {
        let mut holds = self.holds.lock().expect("no panic while held");
        if holds.has(id) {
            return Ok(());
        }
        // A process that makes room reads all holds under the same lock, so it sees this one or has removed
        // the shard before.
        let _changing = self.lock()?;
        holds.hold(id).map_err(|source| self.failed("holds", source))
    }

    fn is_there(&self, path: &Path, bytes: u64) -> bool {
        let there = fs::metadata(path).is_ok_and(|file| file.len() == bytes);
        if there {
            // The shard's own times are left alone: they tell whether it was changed. Of no consequence if it fails.
            let _ = File::create(self.used_of(path));
        }
        there
    }

    /// The file whose date is that of the last request for the shard.
    fn used_of(&self, path: &Path) -> PathBuf {
        self.dir.join("used").join(path.file_name().unwrap_or_default())
    }

    /// The file to fetch a shard into, locked; `None` when another process has fetched it meanwhile.
    fn begin<E: From<SharedCacheError>>(
        &self,
        path: &Path,
        bytes: u64,
        go_on: impl Fn() -> Result<(), E>,
    ) -> Result<Option<Part>, E> {
        let shared = path.with_extension("part");
        let began = Instant::now();
        loop {
            let part = Part::lock(shared.clone())?;
            if self.is_there(path, bytes) {
                if let Some(part) = part {
                    let _ = fs::remove_file(&part.path);
                }
                return Ok(None);
            }
            if part.is_some() {
                return Ok(part);
            }
            if began.elapsed() > LEASE {
                warn!(shard = %path.display(), "another process takes too long to fetch a shard; fetching it here");
                // No other process has a part of that name.
                return Ok(Part::lock(path.with_extension(format!("{}.part", holds::name())))?);
            }
            go_on()?;
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn fill<E: From<SharedCacheError>>(
        &self,
        path: &Path,
        part: &Part,
        bytes: u64,
        fetch: impl FnOnce() -> Result<Bytes, E>,
    ) -> Result<Fetched, E> {
        if !self.reserve(part, bytes)? {
            return Ok(Fetched::NoRoom);
        }
        let shard = fetch()?;
        let written = (&part.file.file).write_all(&shard);
        // A process that counts the files would otherwise find it under neither name.
        let _changing = self.lock()?;
        match written.and_then(|()| fs::rename(&part.path, path)) {
            Ok(()) => Ok(Fetched::Here(path.to_owned())),
            Err(error) if is_full(&error) => {
                warn!(dir = %self.dir.display(), "the disk of the cache is full; the grains that do not fit \
                    are fetched each time");
                Ok(Fetched::NoRoom)
            }
            // A process that had waited for a whole lease has taken it away.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Fetched::NoRoom),
            Err(source) => Err(SharedCacheError::Io { path: part.path.clone(), source }.into()),
        }
    }

    /// Makes the file as long as the shard will be, if that leaves the limit as it is; removes unread shards
    /// where it must, the least recently used first.
    fn reserve(&self, part: &Part, bytes: u64) -> Result<bool, SharedCacheError> {
        let _changing = self.lock()?;
        let mut files = self.files()?;
        files.retain(|file| file.path != part.path); // what an earlier process left in it is overwritten
        let mut used: u64 = files.iter().map(|file| file.bytes).sum();
        if used.saturating_add(bytes) > self.limit.0 {
            files.sort_by_key(|file| file.used);
            let held = holds::all(&self.dir.join("holds")).map_err(|source| self.failed("holds", source))?;
            for file in files {
                if used.saturating_add(bytes) <= self.limit.0 {
                    break;
                }
                // While this one has the lock of a dead process's download, no other process begins it.
                let abandoned = match file.name.parse::<ShardId>() {
                    Ok(id) if held.contains(&id) => continue,
                    Ok(_) => None,
                    Err(_) => match Part::lock(file.path.clone())? {
                        None => continue,
                        abandoned => abandoned,
                    },
                };
                if fs::remove_file(&file.path).is_ok() {
                    used -= file.bytes;
                    let _ = fs::remove_file(self.used_of(&file.path));
                }
                drop(abandoned);
            }
        }
        if used.saturating_add(bytes) > self.limit.0 {
            return Ok(false);
        }
        let failed = |source| SharedCacheError::Io { path: part.path.clone(), source };
        part.file.file.set_len(bytes).map_err(failed)?;
        Ok(true)
    }

    /// The shards, whole or on their way.
    fn files(&self) -> Result<Vec<Kept>, SharedCacheError> {
        let shards = self.dir.join("shards");
        let failed = |source| SharedCacheError::Io { path: shards.clone(), source };
        let mut files = Vec::new();
        for entry in fs::read_dir(&shards).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // One that has gone since the directory was read takes no room.
            let Ok(metadata) = entry.metadata() else { continue };
            let name = entry.file_name().to_string_lossy().into_owned();
            let used = fs::metadata(self.used_of(&entry.path())).and_then(|used| used.modified());
            let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
            files.push(Kept { name, path: entry.path(), bytes: metadata.len(), used });
        }
        Ok(files)
    }

    /// The lock for changes of the files, which takes a moment; who does not get it within a lease gives up.
    fn lock(&self) -> Result<Locked, SharedCacheError> {
        let path = self.dir.join("lock");
        let failed = |source| SharedCacheError::Io { path: path.clone(), source };
        let open = || OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let began = Instant::now();
        loop {
            match Locked::new(open().map_err(failed)?) {
                Some(locked) => return Ok(locked),
                None if began.elapsed() > LEASE => return Err(failed(io::ErrorKind::TimedOut.into())),
                None => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn failed(&self, part: &str, source: io::Error) -> SharedCacheError {
        SharedCacheError::Io { path: self.dir.join(part), source }
    }
}

/// A file of the cache.
struct Kept {
    name: String,
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// A file on its way, which this process fetches or works out.
#[derive(Debug)]
struct Part {
    file: Locked,
    path: PathBuf,
}

impl Part {
    /// Makes the file and locks it; `None` if another process has it.
    fn lock(path: PathBuf) -> Result<Option<Self>, SharedCacheError> {
        let failed = |source| SharedCacheError::Io { path: path.clone(), source };
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        let Some(file) = Locked::new(file) else { return Ok(None) };
        // Between opening and locking it may have become the shard, or been removed to make room.
        let part = Self { file, path };
        Ok(part.is_at_path().then_some(part))
    }

    /// Whether the file still has this name.
    fn is_at_path(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|there| {
            self.file.file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (there.dev(), there.ino()))
        })
    }
}

/// A file that this process has locked. A lock is the opened file's: a process that is forked meanwhile has it, too, and would
/// keep it after this one has closed the file. So it is given up explicitly.
#[derive(Debug)]
struct Locked {
    file: File,
    generation: u32,
}

impl Locked {
    /// `None` if another process has it locked.
    fn new(file: File) -> Option<Self> {
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(Self { file, generation: fork::generation() })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests;
