//! Shards: immutable Arrow IPC files of samples, named by the digest of their bytes.
//!
//! [`ShardWriter`] turns rows into a shard, always the same bytes for the same rows; [`Shard`] reads one, in
//! memory or mapped; [`Sidecar`] holds the digests of its rows and the map for reading single grains by byte
//! range. Knows nothing of stores and datasets.

mod compression;
mod detached;
mod entry;
mod ipc;
mod pages;
mod ranges;
mod sidecar;
#[cfg(test)]
mod tests;
mod writer;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use memmap2::Mmap;

use crate::digest::{Digest, ShardId};
use crate::grain;
use crate::merkle::{self, GrainTree};
use crate::row::{RowCodec, RowDigest, RowEncoder, RowError};

pub use crate::size::MAX_SHARD_BYTES;
pub use compression::{Compression, CompressionError, ZstdLevel};
pub use detached::StoredBatch;
pub use entry::{LABEL_COLUMN, Labels, ShardEntry};
pub use ipc::schema_from;
pub(crate) use ipc::{BlockPlace, IpcFile, TRAILER_BYTES, decode_block};
pub use pages::{are_resident, file_will_need, nothing_beside, populate, seem_resident, will_need};
pub use ranges::RangePlan;
pub use sidecar::Sidecar;
pub use writer::{FinishedShard, ShardWriter};

/// About as many bytes of rows are hashed side by side: they fit a processor's cache.
const HASHED_AT_ONCE: usize = 1 << 18;

/// A shard that was read and checked: its record batches are valid Arrow data of its schema.
///
/// That its bytes are those of a certain id is checked by [`verify`](Self::verify) only.
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
/// use shardfmt::{RowDigest, Shard};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join(finished.id.to_string());
/// std::fs::write(&path, &finished.bytes)?;
///
/// let shard = Shard::open(&path)?;
/// shard.verify(finished.id)?;
/// let mut canonical = Vec::new();
/// shard.encode_row(2, &mut canonical)?;
/// assert_eq!(RowDigest::of(&canonical), finished.sidecar.rows[2]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Shard {
    name: String,
    /// Its file, if it is mapped.
    path: Option<PathBuf>,
    bytes: Buffer,
    codec: RowCodec,
    /// Where each record batch lies.
    blocks: Vec<BlockPlace>,
    record_batches: Vec<RecordBatch>,
    encoders: Vec<RowEncoder>,
    /// The first row of each record batch, and the number of rows.
    starts: Vec<u32>,
    /// The bytes in memory of its own: its file, if that is not mapped, and decompressed values.
    heap_bytes: u64,
}

impl Shard {
    /// Maps a shard's file into memory and checks its structure.
    ///
    /// The file must not be changed while it is open: published shards never are. Its pages are read at once, so that a
    /// broken disk is an error here and not a fault later.
    ///
    /// # Errors
    ///
    /// [`ShardError::Io`] when the file cannot be read, [`ShardError::Corrupt`] and [`ShardError::Unsupported`] when it
    /// is not a shard.
    pub fn open(path: &Path) -> Result<Self, ShardError> {
        Self::open_with(path, populate)
    }

    /// As [`open`](Self::open), but of its pages `read` has those read that it likes, before any is looked at: for a shard of
    /// which only some rows may be wanted. Touching a page that the disk does not give is fatal, so others are to be
    /// [asked for](populate) before they are used.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and what `read` gives.
    pub fn open_with(path: &Path, read: impl FnOnce(&[u8]) -> io::Result<()>) -> Result<Self, ShardError> {
        let name = path.display().to_string();
        let bytes = map(path)
            .and_then(|bytes| read(&bytes).map(|()| bytes))
            .map_err(|source| ShardError::Io { shard: name.clone(), source })?;
        Ok(Self { path: Some(path.into()), ..Self::read(bytes, name)? })
    }

    /// Reads a shard from its bytes, without copying them. Takes a `Vec<u8>`, `Bytes` or Arrow buffer.
    ///
    /// # Errors
    ///
    /// [`ShardError::Corrupt`] and [`ShardError::Unsupported`] when the bytes are not a shard; they are named by their
    /// digest.
    pub fn from_bytes(bytes: impl Into<Buffer>) -> Result<Self, ShardError> {
        let bytes = bytes.into();
        let shared = bytes.clone();
        let read = Self::read(bytes, String::new());
        let mut shard = read.map_err(|error| error.of_shard(Digest::of(&shared).short()))?;
        shard.heap_bytes += shared.len() as u64;
        Ok(shard)
    }

    fn read(bytes: Buffer, name: String) -> Result<Self, ShardError> {
        let corrupt = |reason| ShardError::Corrupt { shard: name.clone(), reason };
        if bytes.len() as u64 > MAX_SHARD_BYTES {
            return Err(ShardError::TooLarge { shard: name, bytes: bytes.len() as u64 });
        }
        let file = IpcFile::parse(&bytes).map_err(corrupt)?;
        let codec = RowCodec::new(file.schema.clone())
            .map_err(|source| ShardError::Unsupported { shard: name.clone(), source: Box::new(source) })?;
        let mut record_batches = Vec::with_capacity(file.blocks.len());
        let mut starts = vec![0u32];
        let mut unpacked = 0;
        for (index, block) in file.blocks.iter().enumerate() {
            let body = bytes.slice_with_length(block.body.start, block.body.len());
            let metadata = &bytes[block.metadata.clone()];
            let record_batch = ipc::unpack_block(&file.schema, metadata, &body, &mut unpacked)
                .map_err(|reason| corrupt(format!("record batch {index}: {reason}")))?;
            let rows = u32::try_from(record_batch.num_rows()).ok();
            let next = rows.and_then(|rows| starts[index].checked_add(rows));
            starts.push(next.ok_or_else(|| corrupt("it has 2^32 rows or more".to_owned()))?);
            record_batches.push(record_batch);
        }
        let encoders = record_batches.iter().map(|batch| codec.encoder(batch)).collect::<Result<_, _>>();
        let encoders = encoders.map_err(|error: RowError| corrupt(error.to_string()))?;
        let blocks = file.blocks;
        let (path, heap_bytes) = (None, unpacked);
        Ok(Self { name, path, bytes, codec, blocks, record_batches, encoders, starts, heap_bytes })
    }

    /// Checks that the shard's bytes are those that `id` names.
    ///
    /// # Errors
    ///
    /// [`ShardError::WrongDigest`] if not: their source is at fault.
    pub fn verify(&self, id: ShardId) -> Result<(), ShardError> {
        let found = self.id();
        if found == id { Ok(()) } else { Err(ShardError::WrongDigest { expected: id, found }) }
    }

    /// The digest of the shard's bytes, computed.
    pub fn id(&self) -> ShardId {
        ShardId::of(&self.bytes)
    }

    /// The path of the shard's file, if it is mapped.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The shard's file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How much memory of its own it takes: of one that is mapped, what its record batches have decompressed.
    pub fn heap_bytes(&self) -> u64 {
        self.heap_bytes
    }

    /// How many rows the shard has.
    pub fn rows(&self) -> u32 {
        self.starts[self.starts.len() - 1]
    }

    /// The schema of the samples.
    pub fn schema(&self) -> &SchemaRef {
        self.codec.schema()
    }

    /// Writes and reads canonical rows of this shard's schema.
    pub fn codec(&self) -> &RowCodec {
        &self.codec
    }

    /// The rows as Arrow data, in order.
    pub fn record_batches(&self) -> &[RecordBatch] {
        &self.record_batches
    }

    /// Appends the canonical bytes of `row` to `out`.
    ///
    /// # Errors
    ///
    /// [`ShardError::Row`] when the row is larger than a row may be.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn encode_row(&self, row: u32, out: &mut Vec<u8>) -> Result<(), ShardError> {
        let (encoder, row) = self.place(row);
        encoder.encode(row, out).map_err(|source| self.row_error(source))
    }

    /// Where a row lies: the encoder of its record batch, and its number there.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    #[inline]
    pub fn place(&self, row: u32) -> (&RowEncoder, usize) {
        assert!(row < self.rows(), "row {row} of {}", self.rows());
        let batch = self.starts.partition_point(|start| *start <= row) - 1;
        (&self.encoders[batch], (row - self.starts[batch]) as usize)
    }

    /// The memory that the values of consecutive rows lie in, if they are bytes or of one size.
    ///
    /// # Panics
    ///
    /// If there are no such rows.
    pub fn memory_of(&self, rows: Range<u32>) -> impl Iterator<Item = &[u8]> {
        assert!(rows.end <= self.rows(), "rows {rows:?} of {}", self.rows());
        let first = self.starts.partition_point(|start| *start <= rows.start).saturating_sub(1);
        let batches = self.encoders.iter().zip(self.starts.windows(2)).skip(first);
        batches.take_while(move |(_, starts)| starts[0] < rows.end).flat_map(move |(encoder, starts)| {
            let within = rows.start.max(starts[0])..rows.end.min(starts[1]);
            encoder.memory_of((within.start - starts[0]) as usize..(within.end - starts[0]) as usize)
        })
    }

    /// The digests of all rows, computed.
    ///
    /// # Errors
    ///
    /// [`ShardError::Row`] when a row is larger than a row may be.
    pub fn row_digests(&self) -> Result<Vec<RowDigest>, ShardError> {
        let mut digests = Vec::with_capacity(self.rows() as usize);
        let (mut canonical, mut ends) = (Vec::new(), Vec::new());
        for (batch, encoder) in self.record_batches.iter().zip(&self.encoders) {
            for row in 0..batch.num_rows() {
                encoder.encode(row, &mut canonical).map_err(|source| self.row_error(source))?;
                ends.push(canonical.len());
                if canonical.len() >= HASHED_AT_ONCE || row + 1 == batch.num_rows() {
                    digests.extend(RowDigest::of_each(&cut(&canonical, &ends)));
                    canonical.clear();
                    ends.clear();
                }
            }
        }
        Ok(digests)
    }

    /// The sidecar of the shard, computed.
    ///
    /// # Errors
    ///
    /// [`ShardError::Row`] when a row is larger than a row may be.
    pub fn sidecar(&self) -> Result<Sidecar, ShardError> {
        Sidecar::of(self.id(), &self.bytes, self.row_digests()?)
    }

    /// The bytes of one grain, with its path. To make many, make a [`GrainTree`] and use
    /// [`grain_in`](Self::grain_in).
    ///
    /// # Errors
    ///
    /// [`ShardError::Row`] when the grain is larger than a grain may be.
    ///
    /// # Panics
    ///
    /// If the digests are not as many as the rows, `grain_rows` is no power of two, or there is no such grain.
    pub fn grain(&self, digests: &[RowDigest], grain_rows: u32, index: u32) -> Result<Vec<u8>, ShardError> {
        assert_eq!(digests.len(), self.rows() as usize, "one digest for each row");
        self.grain_in(&GrainTree::new(digests, grain_rows), index)
    }

    /// The bytes of grain `index` of the tree, which is this shard's.
    ///
    /// # Errors
    ///
    /// [`ShardError::Row`] when the grain is larger than a grain may be.
    ///
    /// # Panics
    ///
    /// If there is no such grain.
    pub fn grain_in(&self, tree: &GrainTree, index: u32) -> Result<Vec<u8>, ShardError> {
        let rows = self.grain_rows(tree.grain_rows(), index);
        let mut canonical = Vec::new();
        let mut ends = Vec::with_capacity(rows.len());
        for row in rows {
            self.encode_row(row, &mut canonical)?;
            if canonical.len() as u64 > MAX_SHARD_BYTES {
                return Err(ShardError::TooLarge { shard: self.name.clone(), bytes: canonical.len() as u64 });
            }
            ends.push(canonical.len());
        }
        Ok(grain::build(cut(&canonical, &ends).into_iter(), &tree.path(index)))
    }

    /// The rows of the shard that make up a grain.
    fn grain_rows(&self, grain_rows: u32, index: u32) -> Range<u32> {
        let count = merkle::rows_in_grain(self.rows(), grain_rows, index);
        let count =
            count.unwrap_or_else(|| panic!("no grain {index} of {grain_rows} rows in {} rows", self.rows()));
        index * grain_rows..index * grain_rows + count
    }

    fn row_error(&self, source: RowError) -> ShardError {
        ShardError::Row { shard: self.name.clone(), source: Box::new(source) }
    }
}

/// The rows that lie one after the other and end where `ends` says.
fn cut<'a>(rows: &'a [u8], ends: &[usize]) -> Vec<&'a [u8]> {
    let starts = [0].into_iter().chain(ends.iter().copied());
    starts.zip(ends).map(|(start, end)| &rows[start..*end]).collect()
}

/// Maps a file.
fn map(path: &Path) -> io::Result<Buffer> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(Buffer::from_vec(Vec::<u8>::new())); // nothing cannot be mapped
    }
    // SAFETY: published shards are never truncated or rewritten, only unlinked, which leaves a map intact.
    let map = unsafe { Mmap::map(&file)? };
    let (start, length) = (NonNull::from(&map[..]).cast::<u8>(), map.len());
    // SAFETY: the map is `length` readable bytes from `start`, does not move, and lives as long as the buffer owns it.
    Ok(unsafe { Buffer::from_custom_allocation(start, length, Arc::new(map)) })
}

/// Why a shard or sidecar could not be written or read.
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
/// use shardfmt::{Shard, ShardError, ShardId};
///
/// let other = ShardId::of(b"another shard's file");
/// let refused = Shard::from_bytes(finished.bytes)?.verify(other);
/// assert!(matches!(refused, Err(ShardError::WrongDigest { found, .. }) if found == finished.id));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum ShardError {
    /// The file could not be read.
    #[error("shard {shard} cannot be read")]
    Io { shard: String, source: io::Error },
    /// The bytes are not those of a shard. Fetch it again, from elsewhere.
    #[error("shard {shard} is corrupt: {reason}")]
    Corrupt { shard: String, reason: String },
    /// The bytes are those of another shard. Fetch it again, from elsewhere.
    #[error("shard {expected} is corrupt: its bytes have the digest {found}")]
    WrongDigest { expected: ShardId, found: ShardId },
    /// The file is an Arrow file, but holds what shards cannot. Ingest it instead.
    #[error("shard {shard} is an Arrow file that shardd did not write: ingest it first")]
    Unsupported { shard: String, source: Box<RowError> },
    /// There would be too many bytes for one shard. Make more and smaller ones.
    #[error("shard {shard} has {bytes} bytes, more than the {MAX_SHARD_BYTES} a shard may have")]
    TooLarge { shard: String, bytes: u64 },
    /// A shard needs at least one row.
    #[error("a shard needs at least one row, and none was written")]
    Empty,
    /// The sidecar is not one, or of another shard or format.
    #[error("sidecar of shard {shard} is corrupt: {reason}")]
    Sidecar { shard: String, reason: String },
    /// The rows asked for are not in the shard.
    #[error("rows {start}..{end} are not in shard {shard}, which has {rows}")]
    NoSuchRows { shard: String, start: u32, end: u32, rows: u32 },
    /// The fetched bytes are not the requested ones.
    #[error("range {range} of shard {shard} has {found} bytes instead of {expected}")]
    Fetched { shard: String, range: usize, expected: u64, found: u64 },
    /// A row could not be written or read.
    #[error("shard {shard}: a row cannot be written or read")]
    Row { shard: String, source: Box<RowError> },
}

impl ShardError {
    /// The same error of the shard with the given name.
    fn of_shard(mut self, name: String) -> Self {
        match &mut self {
            Self::Io { shard, .. }
            | Self::Corrupt { shard, .. }
            | Self::Unsupported { shard, .. }
            | Self::TooLarge { shard, .. }
            | Self::Sidecar { shard, .. }
            | Self::NoSuchRows { shard, .. }
            | Self::Fetched { shard, .. }
            | Self::Row { shard, .. } => *shard = name,
            Self::WrongDigest { .. } | Self::Empty => {}
        }
        self
    }
}
