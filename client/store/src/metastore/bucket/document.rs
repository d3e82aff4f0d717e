//! What the one object of a bucket's metastore holds, and what each operation makes of it. Does no I/O, knows no clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::super::records::{LeaseRecord, RevisionRecord};
use super::super::relocation::{RELOCATION, is_of_place};
use super::super::{Entry, Expected, LeaseId, Listing, MetaError};

/// How many writes are remembered by their marks: more than can happen while one of them is found out about.
const MARKS_REMEMBERED: usize = 256;

/// Everything there is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Document {
    counter: RevisionRecord,
    /// How often it was written.
    writes: u64,
    /// The marks of the last writes, the newest at the end. Each is as good as unique.
    marks: VecDeque<u64>,
    leases: BTreeMap<LeaseId, LeaseRecord>,
    keys: BTreeMap<String, Stored>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    revision: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<LeaseId>,
    value: Value,
}

/// A value: text where it is text, for a person who looks at the object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Bytes(Vec<u8>),
}

impl Value {
    fn of(bytes: Vec<u8>) -> Value {
        String::from_utf8(bytes).map_or_else(|error| Value::Bytes(error.into_bytes()), Value::Text)
    }

    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Value::Text(text) => text.clone().into_bytes(),
            Value::Bytes(bytes) => bytes.clone(),
        }
    }
}

impl Stored {
    fn entry(&self) -> Entry {
        Entry { value: self.value.to_bytes(), revision: self.revision }
    }
}

/// How far counters are ahead of those of metadata that was moved here.
const JUMP: u64 = 1 << 32;
/// No counter comes this far by counting.
const FAR: u64 = 1 << 62;

impl Document {
    /// Refuses numbers that cannot be counted on from.
    pub(super) fn checked(self) -> Result<Document, String> {
        let RevisionRecord { revision, last_lease, forgotten, .. } = self.counter;
        match [revision, last_lease, forgotten, self.writes].iter().all(|count| *count < FAR) {
            true => Ok(self),
            false => Err("its counters are too high to be true".to_owned()),
        }
    }

    /// The same, to be written with this mark.
    pub(super) fn marked(mut self, mark: u64) -> Document {
        self.writes += 1;
        self.marks.push_back(mark);
        while self.marks.len() > MARKS_REMEMBERED {
            self.marks.pop_front();
        }
        self
    }

    /// Whether the write with this mark led here; `None` if that cannot be known, when it was made to an
    /// object that had been written `base` times.
    pub(super) fn descends_from(&self, mark: u64, base: u64) -> Option<bool> {
        let is_remembered = self.writes.saturating_sub(base) <= MARKS_REMEMBERED as u64;
        match self.marks.contains(&mark) {
            true => Some(true),
            false => is_remembered.then_some(false),
        }
    }

    /// How often it was written.
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    pub(super) fn get(&self, key: &str) -> Option<Entry> {
        self.keys.get(key).map(Stored::entry)
    }

    pub(super) fn list(&self, prefix: &str) -> Listing {
        let entries = self.under(prefix).map(|(key, stored)| (key.clone(), stored.entry())).collect();
        Listing { entries, revision: self.counter.revision }
    }

    /// The entries without a lease.
    pub(super) fn lasting(&self) -> Listing {
        let lasting = self.keys.iter().filter(|(_, stored)| stored.lease.is_none());
        let entries = lasting.map(|(key, stored)| (key.clone(), stored.entry())).collect();
        Listing { entries, revision: self.counter.revision }
    }

    /// Deletes entries without a lease that are not among these, and puts those that differ, or whose revision is not above that.
    pub(super) fn replace_lasting(
        &mut self,
        entries: &BTreeMap<String, Vec<u8>>,
        above: u64,
    ) -> Result<(), MetaError> {
        for (key, Entry { value, revision }) in self.lasting().entries {
            if !is_of_place(&key) && entries.get(&key) != Some(&value) {
                self.delete(&key, Expected::At(revision))?;
            }
        }
        for (key, value) in entries {
            if self.get(key).is_none_or(|entry| entry.value != *value || entry.revision <= above) {
                self.put(key, value, Expected::Any, None)?;
            }
        }
        Ok(())
    }

    /// The newest revision of a change under `prefix`, among changes after `since`.
    pub(super) fn newest_under(&self, prefix: &str, since: u64) -> u64 {
        if since < self.counter.forgotten {
            return self.counter.revision;
        }
        let put = self.under(prefix).map(|(_, stored)| stored.revision).max();
        put.max(self.counter.newest_deletion(prefix)).unwrap_or(0)
    }

    pub(super) fn put(
        &mut self,
        key: &str,
        value: &[u8],
        expected: Expected,
        lease: Option<LeaseId>,
    ) -> Result<u64, MetaError> {
        if let Some(lease) = lease {
            self.live(lease)?;
        }
        expected.check(key, self.revision_of(key))?;
        if let Some(record) = lease.and_then(|lease| self.leases.get_mut(&lease)) {
            record.keys.insert(key.to_owned());
        }
        self.counter.revision += 1;
        let revision = self.counter.revision;
        self.keys.insert(key.to_owned(), Stored { revision, lease, value: Value::of(value.to_vec()) });
        Ok(revision)
    }

    pub(super) fn delete(&mut self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        expected.check(key, self.revision_of(key))?;
        if self.keys.remove(key).is_some() {
            self.counter.record_deletion(key);
        }
        Ok(self.counter.revision)
    }

    pub(super) fn grant(&mut self, ttl: Duration, now: SystemTime) -> LeaseId {
        self.counter.last_lease += 1;
        let lease = LeaseId(self.counter.last_lease);
        self.leases.insert(lease, LeaseRecord::new(ttl, now));
        lease
    }

    pub(super) fn renew(&mut self, lease: LeaseId, now: SystemTime) -> Result<(), MetaError> {
        self.live(lease)?.renew(now);
        Ok(())
    }

    /// Counts on from numbers that were given out elsewhere, and some more that may have been.
    pub(super) fn continue_after(&mut self, revision: u64, last_lease: u64) {
        self.counter.revision = self.counter.revision.max(revision.saturating_add(JUMP));
        self.counter.last_lease = self.counter.last_lease.max(last_lease.saturating_add(JUMP));
        self.counter.forgotten = self.counter.revision;
    }

    /// Whether the lease is there.
    pub(super) fn has_lease(&self, lease: LeaseId) -> bool {
        self.leases.contains_key(&lease)
    }

    /// The note that the metadata moves, if there is one.
    pub(super) fn relocation(&self) -> Option<Entry> {
        self.get(RELOCATION)
    }

    /// Ends all leases.
    pub(super) fn revoke_all(&mut self) {
        self.lapse(|_, _| true);
    }

    /// Ends the lease: each of its keys is deleted with a revision.
    pub(super) fn revoke(&mut self, lease: LeaseId) {
        let Some(record) = self.leases.remove(&lease) else { return };
        for key in record.keys {
            // A later put may have taken the key off this lease.
            if self.keys.get(&key).is_some_and(|stored| stored.lease == Some(lease)) {
                self.keys.remove(&key);
                self.counter.record_deletion(&key);
            }
        }
    }

    /// Ends the leases whose time is over.
    pub(super) fn lapse(&mut self, is_over: impl Fn(LeaseId, &LeaseRecord) -> bool) {
        let lapsed = self.leases.iter().filter(|(lease, record)| is_over(**lease, record));
        let lapsed: Vec<LeaseId> = lapsed.map(|(lease, _)| *lease).collect();
        lapsed.into_iter().for_each(|lease| self.revoke(lease));
    }

    /// Whether a lease is over that took keys along.
    pub(super) fn is_stale(&self, is_over: impl Fn(LeaseId, &LeaseRecord) -> bool) -> bool {
        self.leases.iter().any(|(lease, record)| !record.keys.is_empty() && is_over(*lease, record))
    }

    /// The leases and their stamps.
    pub(super) fn stamps(&self) -> impl Iterator<Item = (LeaseId, u64)> {
        self.leases.iter().map(|(lease, record)| (*lease, record.stamp()))
    }

    /// Whether there is such a key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// When the next lease lapses that takes keys along.
    pub(super) fn next_lapse(&self) -> Option<SystemTime> {
        let holding = self.leases.values().filter(|record| !record.keys.is_empty());
        holding.map(LeaseRecord::expires).min()
    }

    fn live(&mut self, lease: LeaseId) -> Result<&mut LeaseRecord, MetaError> {
        self.leases.get_mut(&lease).ok_or(MetaError::LeaseLost { lease })
    }

    fn revision_of(&self, key: &str) -> Option<u64> {
        self.keys.get(key).map(|stored| stored.revision)
    }

    fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a String, &'a Stored)> {
        self.keys.range(prefix.to_owned()..).take_while(move |(key, _)| key.starts_with(prefix))
    }
}

#[cfg(test)]
impl Document {
    /// One that no counting leads to.
    pub(super) fn high() -> Document {
        Document { writes: u64::MAX, ..Document::default() }
    }
}
