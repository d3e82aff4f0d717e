//! What the metastores write down that outlive their process: how far they are, which leases live; as text and back. Does
//! no I/O.
//!
//! Every file begins with one line of words (`shardd-meta`, format, length and digest of the rest), so `cat`
//! shows its contents.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use shardfmt::Digest;

const MAGIC: &str = "shardd-meta";
const FORMAT: u32 = 1;

/// How many deletions the counter remembers; waits for changes since before them wake without cause.
const DELETIONS_REMEMBERED: usize = 256;

/// The revision, and what cannot be seen from the keys that exist.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RevisionRecord {
    pub(super) revision: u64,
    pub(super) last_lease: u64,
    /// Deletions up to this revision are forgotten.
    pub(super) forgotten: u64,
    pub(super) deletions: BTreeMap<u64, String>,
}

impl RevisionRecord {
    pub(super) fn record_deletion(&mut self, key: &str) {
        self.revision += 1;
        self.deletions.insert(self.revision, key.to_owned());
        while self.deletions.len() > DELETIONS_REMEMBERED {
            self.forgotten = self.deletions.pop_first().expect("not empty").0;
        }
    }

    /// The newest deletion under `prefix`, if any is remembered.
    pub(super) fn newest_deletion(&self, prefix: &str) -> Option<u64> {
        let mut deletions = self.deletions.iter().rev();
        deletions.find(|(_, key)| key.starts_with(prefix)).map(|(revision, _)| *revision)
    }
}

/// A lease and the keys that were put with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeaseRecord {
    ttl_ms: u64,
    /// Milliseconds since 1970.
    expires_ms: u64,
    pub(super) keys: BTreeSet<String>,
}

impl LeaseRecord {
    pub(super) fn new(ttl: Duration, now: SystemTime) -> Self {
        let mut lease = Self { ttl_ms: millis(ttl), expires_ms: 0, keys: BTreeSet::new() };
        lease.renew(now);
        lease
    }

    /// The full time again, from `now` by this machine's clock. The record differs from that before, whatever the clock says.
    pub(super) fn renew(&mut self, now: SystemTime) {
        let expires_ms = since_1970(now).saturating_add(self.ttl_ms);
        self.expires_ms = expires_ms.saturating_add(u64::from(expires_ms == self.expires_ms));
    }

    /// Tells this renewal from the one before.
    pub(super) fn stamp(&self) -> u64 {
        self.expires_ms
    }

    pub(super) fn lifetime(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    pub(super) fn has_lapsed(&self, now: SystemTime) -> bool {
        self.expires_ms <= since_1970(now)
    }

    pub(super) fn expires(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.expires_ms)).unwrap_or(UNIX_EPOCH)
    }
}

fn since_1970(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, millis)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    seal(&serde_json::to_vec(record).expect("records are plain data"))
}

pub(super) fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(open(bytes)?).map_err(|error| error.to_string())
}

/// Puts magic, format, length and digest before `body`.
pub(super) fn seal(body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{MAGIC} {FORMAT} {} {}\n", body.len(), Digest::of(body)).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

pub(super) fn open(bytes: &[u8]) -> Result<&[u8], String> {
    let line_end = bytes.iter().position(|byte| *byte == b'\n').ok_or("the first line has no end")?;
    let line = std::str::from_utf8(&bytes[..line_end]).map_err(|_| "the first line is no text")?;
    let body = &bytes[line_end + 1..];
    let words: Vec<&str> = line.split(' ').collect();
    let [MAGIC, format, length, digest] = words[..] else {
        return Err("it is not a file of a metastore".to_owned());
    };
    if format != FORMAT.to_string() {
        return Err(format!("it has format {format}, this program reads format {FORMAT}"));
    }
    if length != body.len().to_string() || digest != Digest::of(body).to_string() {
        return Err("its content does not match its digest".to_owned());
    }
    Ok(body)
}
