//! The files of keys of a files metastore: their names and contents. Does no I/O.

use serde::{Deserialize, Serialize};
use shardfmt::Digest;

use super::super::records::{open, seal};
use super::super::{Entry, LeaseId};

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
    use proptest::prelude::*;

    use super::*;

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
