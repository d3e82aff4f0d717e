//! The directory behind a files metastore: every operation under its lock, every change durable when it returns. Where this
//! process may only read, operations that read do without the lock, and see each key as it was before or after a change.
//!
//! The counter is written before the change it counts, so a crash between the two skips a revision and never uses one
//! twice; a deletion that was counted and did not happen wakes someone without cause, nothing worse.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::records::{self, KeyRecord};
use crate::durable;
use crate::metastore::records::{LeaseRecord, RevisionRecord, decode, encode};
use crate::metastore::{Entry, Expected, LeaseId, Listing, MetaError};

const COUNTER: &str = "counter";

pub(super) struct Directory {
    root: PathBuf,
    keys: PathBuf,
    leases: PathBuf,
}

impl Directory {
    pub(super) fn at(root: &Path) -> Self {
        // Errors name it, wherever this process works.
        let root = std::path::absolute(root).unwrap_or_else(|_| root.into());
        Self { keys: root.join("keys"), leases: root.join("leases"), root }
    }

    pub(super) fn open(root: &Path) -> Result<Self, MetaError> {
        let directory = Self::at(root);
        let create = || -> io::Result<()> {
            fs::create_dir_all(&directory.keys)?;
            fs::create_dir_all(&directory.leases)?;
            directory.lock_file()?;
            durable::sync_dir(&directory.root)
        };
        match create() {
            Ok(()) => Ok(directory),
            // Reading takes no more than that they are there.
            Err(error) if may_only_read(&error) && directory.is_readable() => Ok(directory),
            Err(error) => Err(directory.unavailable(format!("it cannot be made or read ({error})"))),
        }
    }

    fn is_readable(&self) -> bool {
        [&self.keys, &self.leases].iter().all(|dir| fs::read_dir(dir).is_ok())
    }

    /// Waits for the directory's lock and ends the leases that have lapsed at `now`.
    pub(super) fn lock(&self, now: SystemTime) -> Result<Locked<'_>, MetaError> {
        // A file opened here locks out other operations of this process too: the lock belongs to the open file.
        let hold = match self.lock_file() {
            Ok(lock) => {
                lock.lock().map_err(|error| self.unavailable(error))?;
                Hold::Locked { _lock: lock }
            }
            Err(error) if may_only_read(&error) => Hold::Nothing { reason: error.to_string() },
            Err(error) => return Err(self.unavailable(error)),
        };
        // Without the lock, changes that come after this are there or not, and are asked for again by who waits for them.
        let counter = self.read_counter()?;
        let lapsed = BTreeSet::new();
        let mut locked = Locked { at: self, hold, counter, now, lapsed, next_lapse: None, changed: false };
        locked.end_lapsed()?;
        Ok(locked)
    }

    /// The revision as last written, without waiting for the lock.
    pub(super) fn peek_revision(&self) -> Result<u64, MetaError> {
        Ok(self.read_counter()?.revision)
    }

    /// Removes the directory, unless something was written to it: then, the counter is there.
    pub(super) fn remove_unused(&self) -> io::Result<()> {
        let lock = self.lock_file()?;
        lock.lock()?;
        if self.root.join(COUNTER).exists() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        fs::remove_dir(&self.keys)?;
        fs::remove_dir(&self.leases)?;
        fs::remove_file(self.root.join("lock"))?;
        fs::remove_dir(&self.root)
    }

    fn read_counter(&self) -> Result<RevisionRecord, MetaError> {
        match self.read(&self.root.join(COUNTER))? {
            Some(bytes) => decode(&bytes).map_err(|reason| self.damaged(COUNTER, reason)),
            None => Ok(RevisionRecord::default()),
        }
    }

    fn lock_file(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.root.join("lock"))
    }

    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, MetaError> {
        durable::read(path).map_err(|error| self.unavailable(error))
    }

    pub(super) fn unavailable(&self, reason: impl ToString) -> MetaError {
        MetaError::Unavailable { store: self.root.display().to_string(), reason: reason.to_string() }
    }

    fn damaged(&self, what: &str, reason: String) -> MetaError {
        MetaError::Damaged { store: self.root.display().to_string(), what: what.to_owned(), reason }
    }
}

/// Whether this process may not write there, though others may.
fn may_only_read(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

/// The lock that keeps others from changing the directory.
enum Hold {
    /// Its lock.
    Locked { _lock: File },
    /// This process may only read.
    Nothing { reason: String },
}

/// The directory while this holds its lock, or only reads.
pub(super) struct Locked<'a> {
    at: &'a Directory,
    hold: Hold,
    counter: RevisionRecord,
    now: SystemTime,
    /// Leases that have lapsed and are still there, as this process may only read. Their keys are not.
    lapsed: BTreeSet<LeaseId>,
    next_lapse: Option<SystemTime>,
    changed: bool,
}

impl Locked<'_> {
    pub(super) fn revision(&self) -> u64 {
        self.counter.revision
    }

    /// When the first of the leases lapses.
    pub(super) fn next_lapse(&self) -> Option<SystemTime> {
        self.next_lapse
    }

    /// Whether anything was changed under this lock.
    pub(super) fn has_changed(&self) -> bool {
        self.changed
    }

    pub(super) fn get(&self, key: &str) -> Result<Option<Entry>, MetaError> {
        Ok(self.read_key(key)?.map(|record| record.entry))
    }

    pub(super) fn put(
        &mut self,
        key: &str,
        value: Vec<u8>,
        expected: Expected,
        lease: Option<LeaseId>,
    ) -> Result<u64, MetaError> {
        self.check_writable()?;
        let lease_record = lease.map(|lease| self.live_lease(lease)).transpose()?;
        let before = self.read_key(key)?.map(|record| record.entry.revision);
        expected.check(key, before)?;
        self.counter.revision += 1;
        self.write_counter()?;
        if let (Some(lease), Some(mut record)) = (lease, lease_record) {
            // Before the key: a leased key that its lease does not know would never lapse.
            record.keys.insert(key.to_owned());
            self.write_lease(lease, &record)?;
        }
        let entry = Entry { value, revision: self.counter.revision };
        let record = KeyRecord { key: key.to_owned(), entry, lease };
        self.write(&self.at.keys, &records::file_name(key), &records::encode_key(&record))?;
        Ok(self.counter.revision)
    }

    pub(super) fn delete(&mut self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        self.check_writable()?;
        let before = self.read_key(key)?.map(|record| record.entry.revision);
        expected.check(key, before)?;
        if before.is_some() {
            self.delete_all(&[key.to_owned()])?;
        }
        Ok(self.counter.revision)
    }

    pub(super) fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        let mut entries: Vec<_> =
            self.under(prefix)?.into_iter().map(|record| (record.key, record.entry)).collect();
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(Listing { entries, revision: self.counter.revision })
    }

    /// The entries without a lease.
    pub(super) fn lasting(&self) -> Result<Listing, MetaError> {
        let lasting = self.under("")?.into_iter().filter(|record| record.lease.is_none());
        let mut entries: Vec<_> = lasting.map(|record| (record.key, record.entry)).collect();
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(Listing { entries, revision: self.counter.revision })
    }

    /// The newest revision of a change under `prefix`, among changes after `since`.
    pub(super) fn newest_under(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        if since >= self.counter.revision {
            return Ok(0);
        }
        if since < self.counter.forgotten {
            return Ok(self.counter.revision);
        }
        let put = self.under(prefix)?.iter().map(|record| record.entry.revision).max();
        Ok(put.max(self.counter.newest_deletion(prefix)).unwrap_or(0))
    }

    pub(super) fn grant(&mut self, ttl: Duration) -> Result<LeaseId, MetaError> {
        self.check_writable()?;
        self.counter.last_lease += 1;
        self.write_counter()?;
        let lease = LeaseId(self.counter.last_lease);
        self.write_lease(lease, &LeaseRecord::new(ttl, self.now))?;
        Ok(lease)
    }

    pub(super) fn renew(&mut self, lease: LeaseId) -> Result<(), MetaError> {
        self.check_writable()?;
        let mut record = self.live_lease(lease)?;
        record.renew(self.now);
        self.write_lease(lease, &record)
    }

    pub(super) fn revoke(&mut self, lease: LeaseId) -> Result<(), MetaError> {
        self.check_writable()?;
        match self.read_lease(&lease.to_string())? {
            Some(record) => self.end(lease, record),
            None => Ok(()),
        }
    }

    fn check_writable(&self) -> Result<(), MetaError> {
        let Hold::Nothing { reason } = &self.hold else { return Ok(()) };
        let store = self.at.root.display().to_string();
        let reason =
            format!("this process may only read it ({reason}); a user who may write there can change it");
        Err(MetaError::Unchangeable { store, reason })
    }

    fn end_lapsed(&mut self) -> Result<(), MetaError> {
        let mut lapsed = Vec::new();
        for name in self.names_in(&self.at.leases)? {
            let Ok(lease) = name.parse().map(LeaseId) else { continue };
            let Some(record) = self.read_lease(&name)? else { continue };
            if record.has_lapsed(self.now) {
                lapsed.push((lease, record));
            } else {
                self.next_lapse = self.next_lapse.into_iter().chain([record.expires()]).min();
            }
        }
        lapsed.sort_by_key(|(lease, _)| *lease);
        if let Hold::Nothing { .. } = self.hold {
            self.lapsed = lapsed.into_iter().map(|(lease, _)| lease).collect();
            return Ok(());
        }
        self.remove_unfinished(&self.at.leases)?;
        lapsed.into_iter().try_for_each(|(lease, record)| self.end(lease, record))
    }

    /// Deletes the keys that hang on `lease`, then the lease.
    fn end(&mut self, lease: LeaseId, record: LeaseRecord) -> Result<(), MetaError> {
        let mut keys = Vec::new();
        for key in record.keys {
            // A later put may have taken the key off this lease.
            if self.read_key(&key)?.is_some_and(|record| record.lease == Some(lease)) {
                keys.push(key);
            }
        }
        self.delete_all(&keys)?;
        durable::remove(&self.at.leases.join(lease.to_string())).map_err(|error| self.at.unavailable(error))
    }

    fn delete_all(&mut self, keys: &[String]) -> Result<(), MetaError> {
        if keys.is_empty() {
            return Ok(());
        }
        keys.iter().for_each(|key| self.counter.record_deletion(key));
        self.write_counter()?;
        for key in keys {
            let path = self.at.keys.join(records::file_name(key));
            durable::remove(&path).map_err(|error| self.at.unavailable(error))?;
        }
        Ok(())
    }

    /// All records whose key starts with `prefix`, in no order.
    fn under(&self, prefix: &str) -> Result<Vec<KeyRecord>, MetaError> {
        let name_prefix = records::name_prefix(prefix);
        let mut found = Vec::new();
        for name in self.names_in(&self.at.keys)? {
            if !name.starts_with(&name_prefix) {
                continue;
            }
            if let Some(record) = self.read_key_file(&name)?.filter(|record| record.key.starts_with(prefix)) {
                found.push(record);
            }
        }
        Ok(found)
    }

    fn names_in(&self, dir: &Path) -> Result<Vec<String>, MetaError> {
        let names = || -> io::Result<Vec<String>> {
            fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
        };
        let mut names = names().map_err(|error| self.at.unavailable(error))?;
        names.retain(|name| !name.starts_with(durable::UNFINISHED));
        Ok(names)
    }

    /// Removes what a process left that was killed while it wrote: under the lock only this one writes. A lease's name
    /// does not come again, so that no later write would replace it.
    fn remove_unfinished(&self, dir: &Path) -> Result<(), MetaError> {
        let remove = || -> io::Result<()> {
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                if entry.file_name().to_string_lossy().starts_with(durable::UNFINISHED) {
                    fs::remove_file(entry.path())?;
                }
            }
            Ok(())
        };
        remove().map_err(|error| self.at.unavailable(error))
    }

    fn read_key(&self, key: &str) -> Result<Option<KeyRecord>, MetaError> {
        let name = records::file_name(key);
        let record = self.read_key_file(&name)?;
        if let Some(other) = record.as_ref().filter(|record| record.key != key) {
            let reason = format!("the file is of key {}", other.key);
            return Err(self.at.damaged(&format!("keys/{name}"), reason));
        }
        Ok(record)
    }

    fn read_key_file(&self, name: &str) -> Result<Option<KeyRecord>, MetaError> {
        let Some(bytes) = self.at.read(&self.at.keys.join(name))? else { return Ok(None) };
        let record = records::decode_key(&bytes);
        let record = record.map_err(|reason| self.at.damaged(&format!("keys/{name}"), reason))?;
        Ok(Some(record).filter(|record| !record.lease.is_some_and(|lease| self.lapsed.contains(&lease))))
    }

    fn live_lease(&self, lease: LeaseId) -> Result<LeaseRecord, MetaError> {
        self.read_lease(&lease.to_string())?.ok_or(MetaError::LeaseLost { lease })
    }

    fn read_lease(&self, name: &str) -> Result<Option<LeaseRecord>, MetaError> {
        let Some(bytes) = self.at.read(&self.at.leases.join(name))? else { return Ok(None) };
        let record = decode(&bytes);
        record.map(Some).map_err(|reason| self.at.damaged(&format!("leases/{name}"), reason))
    }

    fn write_lease(&mut self, lease: LeaseId, record: &LeaseRecord) -> Result<(), MetaError> {
        self.write(&self.at.leases, &lease.to_string(), &encode(record))
    }

    fn write_counter(&mut self) -> Result<(), MetaError> {
        self.changed = true;
        self.write(&self.at.root, COUNTER, &encode(&self.counter))
    }

    fn write(&self, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), MetaError> {
        durable::replace(dir, name, bytes).map_err(|error| self.at.unavailable(error))
    }
}
