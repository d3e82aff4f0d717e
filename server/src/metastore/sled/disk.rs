//! sled's files: opened, written durably, and opened again after the disk refused a change.
//!
//! sled never calls fsync, so this module does, after every change and before it is acknowledged. After a
//! change that could not be made durable, the state of the disk is unknown: sled is closed and opened again,
//! which reads it as after a crash. Nothing is written to a disk that is full, and so sled meets such a
//! failure seldom.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use shardd_store::metastore::MetaError;
use shardd_store::reserve::Disk as Room;
use sled::transaction::{ConflictableTransactionError, TransactionError, Transactional};
use sled::{IVec, Tree};
use tokio::time::Instant;

use crate::metastore::OpenError;

pub(in crate::metastore) const FORMAT: u64 = 1;
const KEY_FORMAT: &[u8] = b"format";
/// Of sled's page cache; the metadata is small.
const PAGE_CACHE_BYTES: u64 = 16 << 20;
/// How often a disk that refused is asked again.
const ASKED_AGAIN: Duration = Duration::from_secs(1);
/// The bytes the disk must have free before sled writes again: a few of its segments.
const ROOM: u64 = 4 << 20;
/// How long another process may hold the lock of the files: one that ends, or one that was just forked and has yet
/// to leave the descriptors of its parent.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// sled's files in a directory.
pub(super) struct Disk {
    directory: PathBuf,
    /// `None` after a failure, until they can be opened again.
    opened: Option<Opened>,
    trouble: Option<Trouble>,
}

struct Opened {
    values: Tree,
    meta: Tree,
    file: File,
}

/// Why nothing is written.
struct Trouble {
    reason: String,
    asked: Instant,
}

/// The changes of one transaction; `None` removes.
#[derive(Default)]
pub(super) struct Change {
    pub(super) values: Vec<(String, Option<Vec<u8>>)>,
    pub(super) meta: Vec<(Vec<u8>, Option<u64>)>,
}

impl Disk {
    /// Opens or creates the files. Blocks.
    pub(super) fn open(directory: &Path) -> Result<Disk, OpenError> {
        let opened = Some(Opened::at(directory)?);
        Ok(Disk { directory: directory.to_owned(), opened, trouble: None })
    }

    /// Its name in messages.
    pub(super) fn name(&self) -> String {
        self.directory.display().to_string()
    }

    /// Why nothing can be written, if so.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_ref().map(|trouble| trouble.reason.as_str())
    }

    pub(super) fn values(&self) -> Result<&Tree, MetaError> {
        Ok(&self.opened()?.values)
    }

    pub(super) fn number(&self, key: &[u8]) -> Result<Option<u64>, MetaError> {
        let found = number(&self.opened()?.meta, key);
        found.map_err(|error| self.damaged(&String::from_utf8_lossy(key), error))
    }

    pub(super) fn scan_numbers(
        &self,
        prefix: &[u8],
    ) -> Result<impl Iterator<Item = sled::Result<(IVec, IVec)>> + use<>, MetaError> {
        Ok(self.opened()?.meta.scan_prefix(prefix))
    }

    /// Writes a change whole, and durably.
    pub(super) fn write(&mut self, change: &Change) -> Result<(), MetaError> {
        if let Some(trouble) = &self.trouble {
            return Err(self.unavailable(&trouble.reason));
        }
        if Room::of(&self.directory).is_ok_and(|disk| disk.free < ROOM) {
            let reason = "its disk is full; make room there, and changes are taken again".to_owned();
            let error = self.unavailable(&reason);
            self.trouble = Some(Trouble { reason, asked: Instant::now() });
            return Err(error);
        }
        self.opened()?.write(change).map_err(|reason| {
            let reason = format!(
                "the last change could not be written ({reason}); make room on its disk, it is then opened again by itself"
            );
            let error = self.unavailable(&reason);
            // The state of the disk is not known any more.
            self.close();
            self.trouble = Some(Trouble { reason, asked: Instant::now() });
            error
        })
    }

    /// Opens the files again after a failure, when it is time, and takes changes again when there is room. Says whether they
    /// were opened: the known facts about them may be wrong then.
    pub(super) fn recover(&mut self, now: Instant) -> bool {
        let Some(trouble) = &mut self.trouble else { return false };
        if now.saturating_duration_since(trouble.asked) < ASKED_AGAIN {
            return false;
        }
        trouble.asked = now;
        let is_closed = self.opened.is_none();
        if is_closed {
            match Opened::at(&self.directory) {
                Ok(opened) => self.opened = Some(opened),
                Err(error) => {
                    tracing::debug!(%error, "the metadata cannot be opened again yet");
                    return false;
                }
            }
        }
        if Room::of(&self.directory).is_ok_and(|disk| disk.free >= ROOM) {
            self.trouble = None;
        }
        is_closed
    }

    /// Closes the files for good: something in them is not as it was acknowledged.
    pub(super) fn give_up(&mut self, reason: String) {
        self.close();
        self.trouble = Some(Trouble { reason, asked: Instant::now() });
    }

    /// sled writes once more when it is closed, and takes it badly if it cannot.
    fn close(&mut self) {
        let opened = self.opened.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(opened)));
    }

    fn opened(&self) -> Result<&Opened, MetaError> {
        self.opened.as_ref().ok_or_else(|| self.unavailable(self.trouble().unwrap_or("it is closed")))
    }

    fn unavailable(&self, reason: &str) -> MetaError {
        MetaError::Unavailable { store: self.name(), reason: reason.to_owned() }
    }

    pub(super) fn damaged(&self, what: &str, reason: impl ToString) -> MetaError {
        MetaError::Damaged { store: self.name(), what: what.to_owned(), reason: reason.to_string() }
    }
}

impl Opened {
    fn at(directory: &Path) -> Result<Opened, OpenError> {
        let bad = |reason: String| OpenError::Sled { path: directory.to_owned(), reason };
        // Of some damaged files sled does not give an error but panics.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let config = sled::Config::new().path(directory).cache_capacity(PAGE_CACHE_BYTES);
            let db = unless_locked(LOCK_PATIENCE, || config.open())?;
            Ok::<_, sled::Error>((db.open_tree("values")?, db.open_tree("meta")?))
        }));
        let (values, meta) = match opened {
            Ok(opened) => opened.map_err(|error| bad(error.to_string()))?,
            Err(_) => return Err(bad("sled cannot make sense of it".to_owned())),
        };
        let sled = |error: sled::Error| bad(error.to_string());
        match number(&meta, KEY_FORMAT).map_err(sled)? {
            Some(FORMAT) => {}
            Some(found) => return Err(OpenError::TooNew { path: directory.to_owned(), found }),
            None => drop(meta.insert(KEY_FORMAT, &FORMAT.to_le_bytes()).map_err(sled)?),
        }
        meta.flush().map_err(sled)?;
        let sync = |source| OpenError::Sync { path: directory.to_owned(), source };
        let file = File::open(directory.join("db")).map_err(sync)?;
        file.sync_all().map_err(sync)?;
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(sync)?;
        Ok(Opened { values, meta, file })
    }

    /// sled's own flush stops short of the disk.
    fn write(&self, change: &Change) -> Result<(), String> {
        let written = (&self.values, &self.meta).transaction(|(values, meta)| {
            for (key, value) in &change.values {
                match value {
                    Some(value) => values.insert(key.as_bytes(), value.as_slice())?,
                    None => values.remove(key.as_bytes())?,
                };
            }
            for (key, number) in &change.meta {
                match number {
                    Some(number) => meta.insert(key.as_slice(), &number.to_le_bytes())?,
                    None => meta.remove(key.as_slice())?,
                };
            }
            Ok::<(), ConflictableTransactionError<std::convert::Infallible>>(())
        });
        match written {
            Ok(()) => match self.values.flush() {
                Ok(_) => self.file.sync_data().map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            },
            Err(TransactionError::Storage(error)) => Err(error.to_string()),
            Err(TransactionError::Abort(never)) => match never {},
        }
    }
}

/// Tries again for that long while another process holds the lock. Blocks.
fn unless_locked<T>(patience: Duration, mut open: impl FnMut() -> sled::Result<T>) -> sled::Result<T> {
    let until = std::time::Instant::now() + patience;
    loop {
        match open() {
            Err(error) if is_locked(&error) && std::time::Instant::now() < until => {
                std::thread::sleep(LOCK_PAUSE)
            }
            result => return result,
        }
    }
}

/// sled has no kind of error of its own for it.
fn is_locked(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(error) if error.to_string().starts_with("could not acquire lock"))
}

fn number(tree: &Tree, key: &[u8]) -> sled::Result<Option<u64>> {
    let bytes = tree.get(key)?;
    match bytes.map(|bytes| bytes.as_ref().try_into().map(u64::from_le_bytes)) {
        None => Ok(None),
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) => Err(sled::Error::Unsupported("a counter of the wrong length".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(directory: &Path) -> sled::Result<sled::Db> {
        sled::Config::new().path(directory).open()
    }

    #[test]
    fn files_that_another_process_is_about_to_leave_are_opened() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let mut other = Some(open(directory.path()).expect("opens"));
        let opened = unless_locked(Duration::from_secs(60), || {
            let opened = open(directory.path());
            other = None;
            opened
        });
        assert!(opened.is_ok(), "{opened:?}");
    }

    #[test]
    fn files_that_another_process_keeps_are_refused() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let _other = open(directory.path()).expect("opens");
        let refused = unless_locked(Duration::ZERO, || open(directory.path())).expect_err("it is locked");
        assert!(is_locked(&refused), "{refused}");
    }
}
