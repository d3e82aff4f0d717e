//! What a segment file looks like. Encodes, decodes, and hops over the records of a file; keeps nothing.
//!
//! ```text
//! segment  magic "SHARDSEG", u16 format, u16 0, u32 class length, 16 bytes check, class as JSON, zeros to 64 bytes
//! record   magic "GRN1", u16 format, u16 0, 8 bytes class id, 32 bytes shard, u32 g, u32 index, u32 length, 4 bytes check
//!          then the grain, then zeros to 8 bytes
//! ```
//!
//! Numbers are little-endian, checks are the first bytes of the BLAKE3 digest of what lies before them (for a segment:
//! of its first 16 bytes and the class); every later format has this check where it is. A grain needs no check here: it carries its path to the root in the manifest.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use shardfmt::{Digest, GrainKey, ShardId};

use super::Class;

const SEGMENT_MAGIC: &[u8; 8] = b"SHARDSEG";
const RECORD_MAGIC: &[u8; 4] = b"GRN1";
const FORMAT: u16 = 1;
const SEGMENT_PREFIX: usize = 32;
const MAX_CLASS_BYTES: usize = 4096;

/// Bytes before each grain.
pub(super) const RECORD_HEADER: u64 = shardd_api::capacity::RECORD_HEADER;
/// No grain takes more bytes of the cache, beside its own, than this: the header of a new segment, its own, and filling.
pub(super) const MOST_OVERHEAD: u64 = (SEGMENT_PREFIX + MAX_CLASS_BYTES) as u64 + 63 + RECORD_HEADER + 7;

/// The start of a segment file for grains of `class`.
pub(super) fn segment_header(class: &Class) -> Vec<u8> {
    let json = class_json(class);
    let mut bytes = Vec::with_capacity(SEGMENT_PREFIX + json.len() + 63);
    bytes.extend_from_slice(SEGMENT_MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&u32::try_from(json.len()).expect("a class is short").to_le_bytes());
    let check = segment_check(&bytes, &json);
    bytes.extend_from_slice(&check);
    bytes.extend_from_slice(&json);
    bytes.resize(bytes.len().next_multiple_of(64), 0);
    bytes
}

/// The same, as a later release might write it.
#[cfg(test)]
pub(super) fn later_segment_header(class: &Class, format: u16) -> Vec<u8> {
    let mut bytes = segment_header(class);
    bytes[8..10].copy_from_slice(&format.to_le_bytes());
    let check = segment_check(&bytes[..16], &class_json(class));
    bytes[16..32].copy_from_slice(&check);
    bytes
}

/// Whether a segment can hold `class`: its run's name must not be absurdly long.
pub(super) fn class_fits(class: &Class) -> bool {
    class_json(class).len() <= MAX_CLASS_BYTES
}

/// The header of a record.
pub(super) fn record_header(class: &Class, key: &GrainKey, len: u32) -> [u8; RECORD_HEADER as usize] {
    let mut bytes = [0; RECORD_HEADER as usize];
    bytes[..4].copy_from_slice(RECORD_MAGIC);
    bytes[4..6].copy_from_slice(&FORMAT.to_le_bytes());
    bytes[8..16].copy_from_slice(&class_id(class));
    bytes[16..48].copy_from_slice(&key.shard.0.0);
    bytes[48..52].copy_from_slice(&key.rows.to_le_bytes());
    bytes[52..56].copy_from_slice(&key.index.to_le_bytes());
    bytes[56..60].copy_from_slice(&len.to_le_bytes());
    let check = Digest::of(&bytes[..60]);
    bytes[60..].copy_from_slice(&check.0[..4]);
    bytes
}

/// How much of a segment a record with a grain of `len` bytes takes.
pub(super) fn record_bytes(len: u64) -> u64 {
    (RECORD_HEADER + len).next_multiple_of(8)
}

/// A record as found in a file.
pub(super) struct Found {
    pub(super) key: GrainKey,
    /// Where the grain begins.
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// The header of a segment file.
pub(super) enum Contents {
    /// A class and its records up to the end of the file or to the first that was not completely written. The header and the records
    /// end at `end`.
    Segment { class: Class, records: Vec<Found>, end: u64 },
    /// Not even its header was completely written.
    Torn,
    /// A later format than this program knows.
    TooNew(u16),
}

/// Reads the headers in `file`: 64 bytes per record, not the grains.
pub(super) fn read_contents(file: &File) -> io::Result<Contents> {
    let end = file.metadata()?.len();
    let Some(prefix) = read::<SEGMENT_PREFIX>(file, 0, end)? else { return Ok(Contents::Torn) };
    if &prefix[..8] != SEGMENT_MAGIC {
        return Ok(Contents::Torn);
    }
    let class_len = u32_at(&prefix, 12) as usize;
    if class_len > MAX_CLASS_BYTES || (SEGMENT_PREFIX + class_len) as u64 > end {
        return Ok(Contents::Torn);
    }
    let mut json = vec![0; class_len];
    file.read_exact_at(&mut json, SEGMENT_PREFIX as u64)?;
    if prefix[16..32] != segment_check(&prefix[..16], &json) {
        return Ok(Contents::Torn);
    }
    // Checked when its bytes are known to be those written: a bit that flipped on the disk is no later
    // release.
    let format = u16::from_le_bytes([prefix[8], prefix[9]]);
    if format > FORMAT {
        return Ok(Contents::TooNew(format));
    }
    let Ok(class) = serde_json::from_slice::<Class>(&json) else { return Ok(Contents::Torn) };

    let class_id = class_id(&class);
    let mut records = Vec::new();
    let mut at = ((SEGMENT_PREFIX + class_len) as u64).next_multiple_of(64);
    while let Some(header) = read::<{ RECORD_HEADER as usize }>(file, at, end)? {
        let Some((key, len)) = parse_record_header(&header, class_id) else { break };
        let offset = at + RECORD_HEADER;
        if offset + u64::from(len) > end {
            break;
        }
        records.push(Found { key, offset, len });
        at += record_bytes(u64::from(len));
    }
    Ok(Contents::Segment { class, records, end: at })
}

fn parse_record_header(bytes: &[u8; RECORD_HEADER as usize], class_id: [u8; 8]) -> Option<(GrainKey, u32)> {
    let intact = bytes[..4] == *RECORD_MAGIC
        && bytes[4..6] == FORMAT.to_le_bytes()
        && bytes[8..16] == class_id
        && bytes[60..] == Digest::of(&bytes[..60]).0[..4];
    intact.then(|| {
        let mut shard = [0; 32];
        shard.copy_from_slice(&bytes[16..48]);
        let key =
            GrainKey { shard: ShardId(Digest(shard)), rows: u32_at(bytes, 48), index: u32_at(bytes, 52) };
        (key, u32_at(bytes, 56))
    })
}

/// The `N` bytes at `at`, or `None` when the file ends before them.
fn read<const N: usize>(file: &File, at: u64, end: u64) -> io::Result<Option<[u8; N]>> {
    if at + N as u64 > end {
        return Ok(None);
    }
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at)?;
    Ok(Some(bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn class_json(class: &Class) -> Vec<u8> {
    serde_json::to_vec(class).expect("a class is plain data")
}

fn class_id(class: &Class) -> [u8; 8] {
    let mut id = [0; 8];
    id.copy_from_slice(&Digest::of(&class_json(class)).0[..8]);
    id
}

fn segment_check(prefix: &[u8], json: &[u8]) -> [u8; 16] {
    let mut check = [0; 16];
    check.copy_from_slice(&Digest::of(&[prefix, json].concat()).0[..16]);
    check
}
