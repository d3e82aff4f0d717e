//! The three kinds of files of a files metastore, as text and back. Does no I/O.
//!
//! Each begins with one line of words (`shardd-meta`, format, facts, digest of the rest), so `cat` shows what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use shardfmt::Digest;

use super::super::{Entry, LeaseId};

const MAGIC: &str = "shardd-meta";
const FORMAT: u32 = 1;

/// How many deletions the counter remembers; waits for changes since before them wake without cause.
const DELETIONS_REMEMBERED: usize = 256;

/// The revision, and what cannot be seen from the keys that exist.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counter {
    pub(super) revision: u64,
    pub(super) last_lease: u64,
    /// Deletions up to this revision are forgotten.
    pub(super) forgotten: u64,
    pub(super) deletions: BTreeMap<u64, String>,
}

impl Counter {
    pub(super) fn record_deletion(&mut self, key: &str) {
        self.revision += 1;
        self.deletions.insert(self.revision, key.to_owned());
        while self.deletions.len() > DELETIONS_REMEMBERED {
            self.forgotten = self.deletions.pop_first().expect("not empty").0;
        }
    }
}

/// A key, its entry and the lease it hangs on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeyRecord {
    pub(super) key: String,
    pub(super) entry: Entry,
    pub(super) lease: Option<LeaseId>,
}

#[derive(Serialize, Deserialize)]
struct KeyHeader {
    key: String,
    revision: u64,
    lease: Option<LeaseId>,
}

/// A lease and the keys that were put with it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
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

    pub(super) fn renew(&mut self, now: SystemTime) {
        self.expires_ms = since_1970(now).saturating_add(self.ttl_ms);
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

pub(super) fn encode_key(record: &KeyRecord) -> Vec<u8> {
    let KeyRecord { key, entry, lease } = record;
    let header = KeyHeader { key: key.clone(), revision: entry.revision, lease: *lease };
    let mut body = serde_json::to_vec(&header).expect("a header is plain data");
    body.push(b'\n');
    body.extend_from_slice(&entry.value);
    seal(&body)
}

pub(super) fn decode_key(bytes: &[u8]) -> Result<KeyRecord, String> {
    let body = open(bytes)?;
    let header_end = body.iter().position(|byte| *byte == b'\n').ok_or("the header has no end")?;
    let header: KeyHeader =
        serde_json::from_slice(&body[..header_end]).map_err(|error| format!("header: {error}"))?;
    let entry = Entry { value: body[header_end + 1..].to_vec(), revision: header.revision };
    Ok(KeyRecord { key: header.key, entry, lease: header.lease })
}

/// Puts magic, format, length and digest before `body`.
fn seal(body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{MAGIC} {FORMAT} {} {}\n", body.len(), Digest::of(body)).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn open(bytes: &[u8]) -> Result<&[u8], String> {
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

/// The file name for `key`. Different keys have different names; a key's name begins with the escaped beginning of the
/// key.
pub(super) fn file_name(key: &str) -> String {
    /// File systems allow 255 bytes.
    const MAX_NAME: usize = 200;
    let name = escape(key);
    if name.len() <= MAX_NAME {
        return name;
    }
    format!("{}%{}", &name[..ESCAPED_AT_LEAST], Digest::of(key.as_bytes()))
}

/// A beginning that the names of all keys under `prefix` have (and perhaps others).
pub(super) fn name_prefix(prefix: &str) -> String {
    let mut name = escape(prefix);
    name.truncate(ESCAPED_AT_LEAST);
    name
}

/// Every name has at least this many bytes of the escaped key, if the key has them.
const ESCAPED_AT_LEAST: usize = 120;

/// Percent-encodes all but letters, digits, `_`, `-` and inner dots.
fn escape(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 8);
    for (at, byte) in key.bytes().enumerate() {
        if byte.is_ascii_alphanumeric() || b"_-".contains(&byte) || (byte == b'.' && at > 0) {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_key_record_reads_back(key in "[^\\x00-\\x1f]{1,100}", value: Vec<u8>, revision: u64, lease: Option<u64>) {
            let record = KeyRecord { key, entry: Entry { value, revision }, lease: lease.map(LeaseId) };
            prop_assert_eq!(decode_key(&encode_key(&record)), Ok(record));
        }

        #[test]
        fn no_flipped_byte_goes_unnoticed(value: Vec<u8>, at: prop::sample::Index, flip in 1..=255u8) {
            let entry = Entry { value, revision: 7 };
            let mut bytes = encode_key(&KeyRecord { key: "k".to_owned(), entry, lease: None });
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(decode_key(&bytes).is_err());
        }

        #[test]
        fn names_tell_keys_apart_and_begin_with_their_prefix(
            a in "[a-zA-Z./%~é-]{1,300}", b in "[a-zA-Z./%~é-]{1,300}", cut: prop::sample::Index,
        ) {
            prop_assert_eq!(a == b, file_name(&a) == file_name(&b));
            prop_assert!(file_name(&a).len() <= 200);
            prop_assert!(!file_name(&a).starts_with(['.', '~']));
            let prefix: String = a.chars().take(cut.index(a.chars().count())).collect();
            prop_assert!(file_name(&a).starts_with(&name_prefix(&prefix)));
        }
    }
}
