//! Records as values of the metastore: JSON, and where that is long, compressed (Zstandard, RFC 8878): the placement of 4,096
//! partitions on 4,096 nodes is longer than a value may be, and most of it repeats.

use std::io::Read;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Entry;

/// JSON that is longer is compressed. Shorter is left for people to read.
const LONG: usize = 16 << 10;
/// The longest JSON that is read: some hundred bytes for each of 65,536 nodes.
const LONGEST: u64 = 16 << 20;
/// The first bytes of compressed values, and no JSON does (RFC 8878, 3.1.1).
pub const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// A record as a value.
pub fn pack(record: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_vec(record).expect("a record is plain data");
    match json.len() {
        ..=LONG => json,
        _ => zstd::bulk::compress(&json, zstd::DEFAULT_COMPRESSION_LEVEL).unwrap_or(json),
    }
}

/// The record in a value; `None` if it is of another format.
pub fn parse<V: DeserializeOwned>(entry: &Entry) -> Option<V> {
    if !entry.value.starts_with(&MAGIC) {
        return serde_json::from_slice(&entry.value).ok();
    }
    let mut json = Vec::new();
    let reader = zstd::stream::read::Decoder::with_buffer(entry.value.as_slice()).ok()?;
    reader.take(LONGEST).read_to_end(&mut json).ok()?;
    serde_json::from_slice(&json).ok()
}
