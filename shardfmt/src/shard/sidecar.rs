//! The sidecar of a shard: the digests of its rows, and a map of its file.
//!
//! It lies beside the shard in a store. The digests give every grain its path without the shard being read.
//! The map holds the small parts (for each record batch its metadata, the offsets of its variable columns and
//! its validity bitmaps), so that the bytes of single rows can be named at once and fetched by range; of a
//! compressed record batch, which is fetched whole, only the metadata. The digests are checked against the
//! manifest's Merkle root, the rows against the digests; the map need not be trusted.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::Schema;

use super::ipc::{self, ColumnPlace, IpcFile, Layout};
use super::{MAX_SHARD_BYTES, ShardError};
use crate::digest::ShardId;
use crate::merkle::{self, NodeHash};
use crate::row::RowDigest;

const MAGIC: &[u8; 8] = b"SHARDROW";
const FORMAT: u32 = 1;

/// The digests of a shard's rows and where they lie in its file.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// # use std::sync::Arc;
/// # let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
/// # let rows = RecordBatch::try_from_iter([("label", labels)])?;
/// # let mut writer = shardfmt::ShardWriter::new(rows.schema())?;
/// # writer.push(&rows)?;
/// # let finished = writer.finish()?;
/// use shardfmt::Sidecar;
///
/// let sidecar = Sidecar::decode(&finished.sidecar.encode())?;
/// assert_eq!(sidecar.shard, finished.id);
/// assert_eq!(sidecar.rows.len(), 5);
/// assert_eq!(sidecar.root(), finished.entry.root);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sidecar {
    /// The shard whose sidecar this is.
    pub shard: ShardId,
    /// The digest of every row.
    pub rows: Vec<RowDigest>,
    pub(super) blocks: Vec<Arc<Block>>,
}

/// A record batch in its file, and all of it but its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) rows: u32,
    /// Where its metadata begins in the file; the body follows.
    pub(super) offset: u64,
    pub(super) body_bytes: u64,
    pub(super) metadata: Vec<u8>,
    pub(super) small: Vec<SmallBuffer>,
}

/// A buffer kept here rather than fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SmallBuffer {
    /// Where it lies in the body.
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

impl Sidecar {
    /// The sidecar of the shard whose file and row digests are given.
    pub(super) fn of(shard: ShardId, bytes: &[u8], rows: Vec<RowDigest>) -> Result<Self, ShardError> {
        let corrupt = |reason| ShardError::Corrupt { shard: shard.short(), reason };
        let file = IpcFile::parse(bytes).map_err(corrupt)?;
        let mut unpacked = 0;
        let blocks = file.blocks.iter().map(|place| {
            let metadata = &bytes[place.metadata.clone()];
            let body = &bytes[place.body.clone()];
            ipc::check_block(&file.schema, metadata, body, &mut unpacked)?;
            let small_of = |range: Range<u64>| SmallBuffer {
                offset: range.start,
                bytes: body[range.start as usize..range.end as usize].to_vec(), // inside the body: checked
            };
            let layout = layout(&file.schema, metadata, body.len() as u64)?;
            let small = layout.columns.iter().flat_map(small_ranges).filter(|range| !range.is_empty());
            Ok(Arc::new(Block {
                rows: layout.rows,
                offset: place.metadata.start as u64,
                body_bytes: body.len() as u64,
                metadata: metadata.to_vec(),
                small: small.map(small_of).collect(),
            }))
        });
        let blocks = blocks.collect::<Result<_, String>>().map_err(corrupt)?;
        Ok(Self { shard, rows, blocks })
    }

    /// The Merkle root over the rows: the manifest's, if the digests are those of the shard.
    pub fn root(&self) -> NodeHash {
        merkle::root(&self.rows)
    }

    /// The bytes of the sidecar's file.
    pub fn encode(&self) -> Vec<u8> {
        let small_bytes = |small: &SmallBuffer| small.bytes.len() + 12;
        let block_bytes = |block: &Arc<Block>| {
            block.metadata.len() + 28 + block.small.iter().map(small_bytes).sum::<usize>()
        };
        let length =
            8 + 4 + 32 + 8 + self.rows.len() * 16 + self.blocks.iter().map(block_bytes).sum::<usize>() + 32;
        let count = |count: usize| u32::try_from(count).expect("a shard has less than 4 GiB").to_le_bytes();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&self.shard.0.0);
        bytes.extend_from_slice(&count(self.rows.len()));
        bytes.extend_from_slice(&count(self.blocks.len()));
        for row in &self.rows {
            bytes.extend_from_slice(&row.0);
        }
        for block in &self.blocks {
            bytes.extend_from_slice(&block.rows.to_le_bytes());
            bytes.extend_from_slice(&block.offset.to_le_bytes());
            bytes.extend_from_slice(&block.body_bytes.to_le_bytes());
            bytes.extend_from_slice(&count(block.metadata.len()));
            bytes.extend_from_slice(&block.metadata);
            bytes.extend_from_slice(&count(block.small.len()));
            for small in &block.small {
                bytes.extend_from_slice(&small.offset.to_le_bytes());
                bytes.extend_from_slice(&count(small.bytes.len()));
                bytes.extend_from_slice(&small.bytes);
            }
        }
        let digest = blake3::hash(&bytes);
        bytes.extend_from_slice(digest.as_bytes());
        bytes
    }

    /// Reads a sidecar's file.
    ///
    /// # Errors
    ///
    /// [`ShardError::Sidecar`] when the bytes are no sidecar, damaged, or of a later format.
    pub fn decode(bytes: &[u8]) -> Result<Self, ShardError> {
        let mut shard = "that is unknown".to_owned();
        Self::decode_named(bytes, &mut shard).map_err(|reason| ShardError::Sidecar { shard, reason })
    }

    fn decode_named(bytes: &[u8], name: &mut String) -> Result<Self, String> {
        let Some((content, digest)) = bytes.split_last_chunk::<32>() else {
            return Err("it is cut off".to_owned());
        };
        let mut rest = Rest(content);
        if rest.take(8)? != MAGIC {
            return Err("it is no sidecar".to_owned());
        }
        let format = rest.u32()?;
        if format != FORMAT {
            return Err(format!(
                "it has format {format}, and this program reads format {FORMAT}: use a newer one"
            ));
        }
        let shard = ShardId(crate::Digest(rest.take(32)?.try_into().expect("32 bytes")));
        *name = shard.short();
        if blake3::hash(content) != blake3::Hash::from_bytes(*digest) {
            return Err("its digest is not that of its content".to_owned());
        }
        let (row_count, block_count) = (rest.u32()?, rest.u32()?);
        let digests = rest.take((row_count as usize).checked_mul(16).ok_or("it is cut off")?)?;
        let rows = digests.as_chunks().0.iter().map(|digest| RowDigest(*digest)).collect();
        let mut blocks = Vec::new();
        for _ in 0..block_count {
            blocks.push(Arc::new(rest.block()?));
        }
        if !rest.0.is_empty() {
            return Err(format!("{} bytes follow its end", rest.0.len()));
        }
        let in_blocks: u64 = blocks.iter().map(|block| u64::from(block.rows)).sum();
        if in_blocks != u64::from(row_count) {
            return Err(format!("it has {row_count} rows, and its record batches {in_blocks}"));
        }
        Ok(Self { shard, rows, blocks })
    }
}

/// Where the values of a record batch lie.
pub(super) fn layout(schema: &Schema, metadata: &[u8], body_bytes: u64) -> Result<Layout, String> {
    Layout::of(schema, ipc::parse_message(metadata)?, body_bytes)
}

/// The buffers of a column that a sidecar keeps.
fn small_ranges(column: &ColumnPlace) -> Vec<Range<u64>> {
    match column {
        ColumnPlace::Fixed { validity, .. } | ColumnPlace::Bits { validity, .. } => vec![validity.clone()],
        ColumnPlace::Bytes { validity, offsets, .. } => vec![validity.clone(), offsets.clone()],
        ColumnPlace::Null | ColumnPlace::Whole { .. } => Vec::new(),
    }
}

/// The rest of the bytes.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (head, rest) = self.0.split_at_checked(length).ok_or("it is cut off")?;
        self.0 = rest;
        Ok(head)
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("4 bytes")))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("8 bytes")))
    }

    fn sized(&mut self) -> Result<Vec<u8>, String> {
        let length = self.u32()? as usize;
        Ok(self.take(length)?.to_vec())
    }

    fn block(&mut self) -> Result<Block, String> {
        let (rows, offset, body_bytes) = (self.u32()?, self.u64()?, self.u64()?);
        let metadata = self.sized()?;
        let end = offset.checked_add(metadata.len() as u64).and_then(|start| start.checked_add(body_bytes));
        if end.is_none_or(|end| end > MAX_SHARD_BYTES) {
            return Err("a record batch lies outside of any shard".to_owned());
        }
        let mut small = Vec::new();
        for _ in 0..self.u32()? {
            let (offset, bytes) = (self.u64()?, self.sized()?);
            if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > body_bytes) {
                return Err("a buffer lies outside its record batch".to_owned());
            }
            small.push(SmallBuffer { offset, bytes });
        }
        Ok(Block { rows, offset, body_bytes, metadata, small })
    }
}
