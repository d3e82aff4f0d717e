//! What the metastore is at one moment: counters, leases, values, and each change to them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shardd_store::metastore::bookkeeping::{Deletions, Leases};
use shardd_store::metastore::{CopiedEntry, Entry, Expected, LeaseId, MetaError};
use sled::IVec;
use tokio::time::Instant;

use super::ahead::Ahead;
use super::disk::{Change, Disk};
use super::{JUMP, LONGEST_TTL, Snapshot};
use crate::metastore::OpenError;
use crate::metastore::view::View;

const KEY_REVISION: &[u8] = b"revision";
const KEY_LAST_LEASE: &[u8] = b"last-lease";
const KEY_EPOCH: &[u8] = b"epoch";
const LEASES: &[u8] = b"lease/";
/// How much of a copy is written in one transaction.
const FILLED_AT_ONCE: usize = 256;

pub(super) struct State {
    disk: Disk,
    ahead: Ahead,
    pub(super) revision: u64,
    /// The revision of the last change to what hangs on no lease.
    pub(super) settled: u64,
    last_lease: u64,
    deletions: Deletions,
    pub(super) leases: Leases,
    /// Changed under the lock that guards this state, read without it.
    pub(super) view: Arc<View>,
}

pub(super) struct Stored {
    pub(super) entry: Entry,
    pub(super) lease: Option<LeaseId>,
}

impl State {
    pub(super) fn open(directory: &Path, ahead: Ahead) -> Result<State, OpenError> {
        let mut state = State {
            disk: Disk::open(directory)?,
            ahead,
            revision: 0,
            settled: 0,
            last_lease: 0,
            deletions: Deletions::default(),
            leases: Leases::default(),
            view: Arc::default(),
        };
        let read = state.read(Instant::now());
        read.map_err(|error| OpenError::Sled { path: directory.to_owned(), reason: error.to_string() })?;
        Ok(state)
    }

    /// Takes the disk's state. Earlier deletions are not known any more, and every lease begins again.
    fn read(&mut self, now: Instant) -> Result<(), MetaError> {
        self.revision = self.disk.number(KEY_REVISION)?.unwrap_or(0);
        self.last_lease = self.disk.number(KEY_LAST_LEASE)?.unwrap_or(0);
        self.settled = self.revision;
        self.deletions = Deletions::forgotten_until(self.revision);
        self.leases = Leases::default();
        self.view.clear();
        self.grant_again(now)
    }

    /// After a failure: continues from the disk's state, as soon as it lets itself be read, and written.
    pub(super) fn recover(&mut self, now: Instant) {
        let acknowledged = self.revision;
        if !self.disk.recover(now) {
            return;
        }
        let read = self.read(now);
        if let Err(error) = read {
            self.revision = acknowledged;
            return self.disk.give_up(error.to_string());
        }
        if self.revision < acknowledged {
            let reason = format!(
                "its files came back at revision {}, and {acknowledged} was acknowledged; restart this node",
                self.revision
            );
            self.revision = acknowledged;
            self.disk.give_up(reason);
        }
    }

    pub(super) fn trouble(&self) -> Option<&str> {
        self.disk.trouble()
    }

    pub(super) fn put(
        &mut self,
        key: &str,
        value: Vec<u8>,
        expected: Expected,
        lease: Option<LeaseId>,
    ) -> Result<u64, MetaError> {
        self.leases.check(lease)?;
        let before = self.stored(key)?;
        expected.check(key, before.as_ref().map(|stored| stored.entry.revision))?;
        let revision = self.revision + 1;
        let stored = Stored { entry: Entry { value, revision }, lease };
        let is_settled = lease.is_none() || before.as_ref().is_some_and(|stored| stored.lease.is_none());
        self.write(
            &Change {
                values: vec![(key.to_owned(), Some(stored.encode()))],
                meta: vec![(KEY_REVISION.to_vec(), Some(revision))],
            },
            is_settled,
        )?;
        self.advance(revision, is_settled);
        self.leases.rehang(key, before.and_then(|stored| stored.lease), lease);
        Ok(revision)
    }

    /// Removes keys that are there, each with a revision of its own, and the lease they hung on.
    pub(super) fn remove(&mut self, keys: Vec<String>, lease: Option<LeaseId>) -> Result<u64, MetaError> {
        let revision = self.revision + keys.len() as u64;
        let mut change = Change::default();
        change.meta.push((KEY_REVISION.to_vec(), Some(revision)));
        change.meta.extend(lease.map(|lease| (lease_key(lease), None)));
        change.values.extend(keys.iter().map(|key| (key.clone(), None)));
        let leases = keys.iter().map(|key| Ok(self.stored(key)?.and_then(|stored| stored.lease)));
        let leases: Vec<Option<LeaseId>> = leases.collect::<Result<_, MetaError>>()?;
        let is_settled = leases.iter().any(Option::is_none);
        self.write(&change, is_settled)?;
        for (key, lease) in keys.into_iter().zip(leases) {
            self.leases.rehang(&key, lease, None);
            self.advance(self.revision + 1, is_settled);
            self.deletions.record(self.revision, key);
        }
        if let Some(lease) = lease {
            self.leases.end(lease);
        }
        Ok(self.revision)
    }

    fn advance(&mut self, revision: u64, is_settled: bool) {
        self.revision = revision;
        if is_settled {
            self.settled = revision;
        }
    }

    pub(super) fn grant(&mut self, ttl: Duration, now: Instant) -> Result<LeaseId, MetaError> {
        let id = LeaseId(self.last_lease + 1);
        let ttl_ms = u64::try_from(ttl.as_millis()).expect("thirty days fit");
        let meta = vec![(KEY_LAST_LEASE.to_vec(), Some(id.0)), (lease_key(id), Some(ttl_ms))];
        self.write(&Change { values: vec![], meta }, false)?;
        self.last_lease = id.0;
        self.leases.grant(id, ttl, now);
        Ok(id)
    }

    /// After a restart: every lease begins again, with the keys that hang on it.
    fn grant_again(&mut self, now: Instant) -> Result<(), MetaError> {
        for found in self.disk.scan_numbers(LEASES)? {
            let (key, ttl) = found.map_err(|error| self.damaged("leases", error))?;
            let id = key[LEASES.len()..].try_into().map(u64::from_be_bytes);
            let ttl = ttl.as_ref().try_into().map(u64::from_le_bytes);
            let (Ok(id), Ok(ttl)) = (id, ttl) else { return Err(self.damaged("leases", "wrong length")) };
            let ttl = Duration::from_millis(ttl).min(LONGEST_TTL);
            self.leases.grant(LeaseId(id), ttl, now);
        }
        let leased: Vec<(String, LeaseId)> = self
            .under("")?
            .filter_map(|found| found.map(|(key, stored)| stored.lease.map(|lease| (key, lease))).transpose())
            .collect::<Result<_, _>>()?;
        for (key, lease) in leased {
            if self.leases.check(Some(lease)).is_err() {
                return Err(self.damaged(&key, "it hangs on a lease that is not there"));
            }
            self.leases.rehang(&key, None, Some(lease));
        }
        Ok(())
    }

    pub(super) fn end(&mut self, lease: LeaseId) -> Result<(), MetaError> {
        let Some(keys) = self.leases.keys(lease) else { return Ok(()) };
        self.remove(keys, Some(lease)).map(drop)
    }

    pub(super) fn lapse(&mut self, now: Instant) -> Result<(), MetaError> {
        while let Some(lease) = self.leases.lapsed(now) {
            self.end(lease)?;
        }
        Ok(())
    }

    pub(super) fn stored(&self, key: &str) -> Result<Option<Stored>, MetaError> {
        let bytes = self.disk.values()?.get(key).map_err(|error| self.damaged(key, error))?;
        bytes.map(|bytes| self.decode(key, &bytes)).transpose()
    }

    pub(super) fn under(
        &self,
        prefix: &str,
    ) -> Result<impl Iterator<Item = Result<(String, Stored), MetaError>> + use<'_>, MetaError> {
        Ok(self.disk.values()?.scan_prefix(prefix).map(|found| {
            let (key, bytes) = found.map_err(|error| self.damaged("values", error))?;
            let key = std::str::from_utf8(&key).map_err(|error| self.damaged("a key", error))?.to_owned();
            let stored = self.decode(&key, &bytes)?;
            Ok((key, stored))
        }))
    }

    /// The newest revision of a change under `prefix`, among changes after `since`.
    pub(super) fn newest_under(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        if self.deletions.have_forgotten(since) {
            return Ok(self.revision);
        }
        let mut newest = self.deletions.newest_under(prefix, since);
        for found in self.under(prefix)? {
            newest = newest.max(found?.1.entry.revision);
        }
        Ok(newest)
    }

    pub(super) fn snapshot(&self) -> Result<Snapshot, MetaError> {
        let mut entries = Vec::new();
        for found in self.under("")? {
            let (key, stored) = found?;
            if stored.lease.is_none() {
                let Entry { value, revision } = stored.entry;
                entries.push(CopiedEntry { key, revision, value });
            }
        }
        Ok(Snapshot {
            epoch: self.epoch()?,
            settled: self.settled,
            revision: self.revision,
            last_lease: self.last_lease,
            entries,
        })
    }

    /// Takes over what another metastore held.
    pub(super) fn fill(&mut self, snapshot: &Snapshot) -> Result<(), MetaError> {
        for entries in snapshot.entries.chunks(FILLED_AT_ONCE) {
            let stored = entries.iter().map(|CopiedEntry { key, revision, value }| {
                let entry = Entry { value: value.clone(), revision: *revision };
                (key.clone(), Some(Stored { entry, lease: None }.encode()))
            });
            self.write(&Change { values: stored.collect(), meta: vec![] }, true)?;
        }
        let meta = vec![
            (KEY_REVISION.to_vec(), Some(snapshot.revision.saturating_add(JUMP))),
            (KEY_LAST_LEASE.to_vec(), Some(snapshot.last_lease.saturating_add(JUMP))),
            (KEY_EPOCH.to_vec(), Some(snapshot.epoch)),
        ];
        self.write(&Change { values: vec![], meta }, true)
    }

    pub(super) fn note_copied(&mut self, settled: u64) {
        if settled >= self.settled {
            self.ahead.clear();
        }
    }

    pub(super) fn epoch(&self) -> Result<u64, MetaError> {
        Ok(self.disk.number(KEY_EPOCH)?.unwrap_or(0))
    }

    pub(super) fn set_epoch(&mut self, epoch: u64) -> Result<(), MetaError> {
        self.write(&Change { values: vec![], meta: vec![(KEY_EPOCH.to_vec(), Some(epoch))] }, false)
    }

    fn write(&mut self, change: &Change, is_settled: bool) -> Result<(), MetaError> {
        if is_settled && let Err(error) = self.ahead.set() {
            let reason = format!("its data directory cannot be written: {error}");
            return Err(MetaError::Unavailable { store: self.disk.name(), reason });
        }
        let written = self.disk.write(change);
        for (key, _) in &change.values {
            self.view.forget(key);
        }
        written
    }

    fn decode(&self, key: &str, bytes: &IVec) -> Result<Stored, MetaError> {
        Stored::decode(bytes).ok_or_else(|| self.damaged(key, "it is too short"))
    }

    fn damaged(&self, what: &str, reason: impl ToString) -> MetaError {
        self.disk.damaged(what, reason)
    }
}

impl Stored {
    fn encode(&self) -> Vec<u8> {
        let lease = self.lease.map_or(0, |lease| lease.0);
        [&self.entry.revision.to_le_bytes(), &lease.to_le_bytes(), self.entry.value.as_slice()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Stored> {
        let (revision, rest) = bytes.split_first_chunk::<8>()?;
        let (lease, value) = rest.split_first_chunk::<8>()?;
        let lease = Some(u64::from_le_bytes(*lease)).filter(|lease| *lease != 0).map(LeaseId);
        let entry = Entry { value: value.to_vec(), revision: u64::from_le_bytes(*revision) };
        Some(Stored { entry, lease })
    }
}

fn lease_key(lease: LeaseId) -> Vec<u8> {
    [LEASES, &lease.0.to_be_bytes()].concat()
}
