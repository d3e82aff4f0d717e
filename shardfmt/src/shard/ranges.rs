//! Reading some rows of a shard by byte range.
//!
//! [`RangePlan`] names the ranges; the caller fetches them; the plan then puts the bytes in place in
//! otherwise empty record batches, decodes these with all of Arrow's checks, and cuts out the rows. The
//! result is valid Arrow data, but only as true as the fetched bytes: the caller compares row digests.

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::MmapMut;

use super::ipc::{self, ColumnPlace, Layout};
use super::sidecar::{self, Block, Sidecar};
use super::{MAX_SHARD_BYTES, ShardError};

/// Ranges closer than this are fetched as one. Small: a store for which requests are dear joins ranges that are further apart.
const WORTHWHILE_GAP: u64 = 256;

/// The ranges of a shard's file for some rows, and the way to make rows of them.
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
/// // Fetch rows 1 and 2 of a shard that lies elsewhere.
/// let plan = finished.sidecar.read_plan(&rows.schema(), &[1..3])?;
/// let mut fetched = Vec::new();
/// for range in plan.ranges() {
///     fetched.push(&finished.bytes[range.start as usize..range.end as usize]);
/// }
/// let parts = plan.decode(&fetched)?;
/// assert_eq!(parts[0], [rows.slice(1, 2)]);
/// assert!(plan.bytes() < finished.entry.bytes);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RangePlan {
    shard: String,
    schema: SchemaRef,
    ranges: Vec<Range<u64>>,
    blocks: Vec<BlockRead>,
    /// For every range asked for, in order: which of the blocks have some of it, and which of their rows.
    outputs: Vec<Vec<(usize, Range<u32>)>>,
}

/// A record batch of which some is read.
#[derive(Debug)]
struct BlockRead {
    block: Arc<Block>,
    /// Parts of the file that are needed.
    pieces: Vec<Range<u64>>,
}

impl Sidecar {
    /// The bytes of the shard's file for some ranges of rows: rows of fixed size exactly, texts and bytes
    /// exactly, columns with lists, structs or maps, and all that is compressed, as whole record batches.
    ///
    /// # Errors
    ///
    /// [`ShardError::NoSuchRows`] when the shard has no such rows, [`ShardError::Sidecar`] when the map does not fit
    /// the schema.
    pub fn read_plan(&self, schema: &SchemaRef, rows: &[Range<u32>]) -> Result<RangePlan, ShardError> {
        RangePlan::new(self, schema, rows)
    }
}

impl RangePlan {
    pub(super) fn new(
        sidecar: &Sidecar,
        schema: &SchemaRef,
        rows: &[Range<u32>],
    ) -> Result<Self, ShardError> {
        let shard = sidecar.shard.short();
        let row_count = sidecar.rows.len() as u32; // it was read from 32 bits
        let mut starts = vec![0u32];
        for block in &sidecar.blocks {
            starts.push(starts[starts.len() - 1].saturating_add(block.rows));
        }
        let mut wanted: Vec<Vec<Range<u32>>> = vec![Vec::new(); sidecar.blocks.len()];
        let mut outputs = Vec::with_capacity(rows.len());
        for range in rows {
            if range.start > range.end || range.end > row_count {
                let (start, end) = (range.start, range.end);
                return Err(ShardError::NoSuchRows { shard, start, end, rows: row_count });
            }
            let first = starts.partition_point(|start| *start <= range.start) - 1;
            let mut parts = Vec::new();
            for block in first..sidecar.blocks.len() {
                let (start, end) = (starts[block].max(range.start), starts[block + 1].min(range.end));
                if start >= range.end {
                    break;
                }
                if start < end {
                    let local = start - starts[block]..end - starts[block];
                    wanted[block].push(local.clone());
                    parts.push((block, local));
                }
            }
            outputs.push(parts);
        }
        let mut read_index = vec![usize::MAX; wanted.len()];
        let mut blocks = Vec::new();
        for (index, wanted) in wanted.iter().enumerate().filter(|(_, wanted)| !wanted.is_empty()) {
            let block = sidecar.blocks[index].clone();
            let pieces = pieces_of(&block, schema, wanted)
                .map_err(|reason| ShardError::Sidecar { shard: shard.clone(), reason })?;
            read_index[index] = blocks.len();
            blocks.push(BlockRead { block, pieces });
        }
        for (block, _) in outputs.iter_mut().flatten() {
            *block = read_index[*block];
        }
        let ranges = coalesced(blocks.iter().flat_map(|read| read.pieces.iter().cloned()).collect());
        Ok(Self { shard, schema: schema.clone(), ranges, blocks, outputs })
    }

    /// The byte ranges of the shard's file to fetch: ascending, apart from each other, none empty.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// How many bytes there are to fetch.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// The rows of each range asked for, in the order asked for, from the bytes of [`ranges`](Self::ranges) in that order.
    /// A range that lies in several record batches of the shard gives as many, an empty one gives none.
    ///
    /// # Errors
    ///
    /// [`ShardError::Fetched`] when the bytes are not as many as asked for, [`ShardError::Corrupt`] when they are no
    /// valid Arrow data.
    pub fn decode<B: AsRef<[u8]>>(&self, fetched: &[B]) -> Result<Vec<Vec<RecordBatch>>, ShardError> {
        for (index, range) in self.ranges.iter().enumerate() {
            let expected = range.end - range.start;
            let found = fetched.get(index).map_or(0, |bytes| bytes.as_ref().len() as u64);
            if found != expected {
                return Err(ShardError::Fetched { shard: self.shard.clone(), range: index, expected, found });
            }
        }
        let mut unpacked = 0;
        let batches = self.blocks.iter().map(|read| self.decode_block(read, fetched, &mut unpacked));
        let batches = batches.collect::<Result<Vec<_>, _>>()?;
        let part = |(block, rows): &(usize, Range<u32>)| {
            let length = (rows.end - rows.start) as usize;
            batches[*block].slice(rows.start as usize, length)
        };
        Ok(self.outputs.iter().map(|parts| parts.iter().map(part).collect()).collect())
    }

    fn decode_block<B: AsRef<[u8]>>(
        &self,
        read: &BlockRead,
        fetched: &[B],
        unpacked: &mut u64,
    ) -> Result<RecordBatch, ShardError> {
        let block = &read.block;
        let corrupt = |reason| ShardError::Corrupt { shard: self.shard.clone(), reason };
        let length = block.body_bytes as usize; // checked with the sidecar to be below 4 GiB
        let no_memory = |source| ShardError::Io { shard: self.shard.clone(), source };
        let mut body = Sparse::new(length).map_err(no_memory)?;
        for small in &block.small {
            body[small.offset as usize..][..small.bytes.len()].copy_from_slice(&small.bytes);
        }
        let body_start = block.offset + block.metadata.len() as u64;
        for piece in &read.pieces {
            let index = self.ranges.partition_point(|range| range.start <= piece.start) - 1;
            let source = &fetched[index].as_ref()[(piece.start - self.ranges[index].start) as usize..];
            let length = (piece.end - piece.start) as usize;
            body[(piece.start - body_start) as usize..][..length].copy_from_slice(&source[..length]);
        }
        let batch = ipc::unpack_block(&self.schema, &block.metadata, &body.into_buffer(), unpacked);
        let batch = batch.map_err(corrupt)?;
        match batch.num_rows() == block.rows as usize {
            true => Ok(batch),
            false => Err(corrupt(format!(
                "a record batch has {} rows instead of {}",
                batch.num_rows(),
                block.rows
            ))),
        }
    }
}

/// Zeros, of which only the pages take memory that something is put into: most of a record batch is not read, and a sidecar that
/// lies about lengths costs nothing. An allocator promises that for fresh memory alone.
struct Sparse(Option<MmapMut>);

impl Sparse {
    fn new(length: usize) -> io::Result<Self> {
        if length == 0 {
            return Ok(Self(None));
        }
        let memory = MmapMut::map_anon(length)?;
        // A huge page is two megabytes, whatever is put into it. Kernels without any refuse the advice.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(Advice::NoHugePage);
        Ok(Self(Some(memory)))
    }

    fn into_buffer(self) -> Buffer {
        let Some(memory) = self.0 else { return Buffer::from_vec(Vec::<u8>::new()) };
        let (start, length) = (NonNull::from(&memory[..]).cast(), memory.len());
        // SAFETY: the memory is mapped for as long as its owner lives, and no code writes to it any more.
        unsafe { Buffer::from_custom_allocation(start, length, Arc::new(memory)) }
    }
}

impl Deref for Sparse {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Sparse {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().unwrap_or_default()
    }
}

/// The parts of the file that hold the values of the wanted rows of a record batch.
fn pieces_of(block: &Block, schema: &SchemaRef, wanted: &[Range<u32>]) -> Result<Vec<Range<u64>>, String> {
    let layout: Layout = sidecar::layout(schema, &block.metadata, block.body_bytes)?;
    if layout.rows != block.rows {
        return Err(format!("a record batch has {} rows instead of {}", layout.rows, block.rows));
    }
    let mut pieces = Vec::new();
    for column in &layout.columns {
        match column {
            ColumnPlace::Null => {}
            ColumnPlace::Whole { all } => pieces.push(all.clone()),
            ColumnPlace::Fixed { width, values, .. } => pieces.extend(wanted.iter().map(|rows| {
                values.start + u64::from(rows.start) * width..values.start + u64::from(rows.end) * width
            })),
            ColumnPlace::Bits { values, .. } => pieces.extend(wanted.iter().map(|rows| {
                values.start + u64::from(rows.start / 8)..values.start + u64::from(rows.end.div_ceil(8))
            })),
            ColumnPlace::Bytes { large, offsets, values, .. } => {
                let kept = block.small.iter().find(|small| small.offset == offsets.start);
                let kept = kept.filter(|small| small.bytes.len() as u64 == offsets.end - offsets.start);
                let kept = &kept.ok_or("the offsets of a column are missing")?.bytes;
                for rows in wanted {
                    let (start, end) = (offset(kept, *large, rows.start), offset(kept, *large, rows.end));
                    match (start, end) {
                        (Some(start), Some(end)) if start <= end && end <= values.end - values.start => {
                            pieces.push(values.start + start..values.start + end);
                        }
                        _ => return Err("the offsets of a column lead astray".to_owned()),
                    }
                }
            }
        }
    }
    let body_start = block.offset + block.metadata.len() as u64;
    pieces.retain(|piece| !piece.is_empty());
    for piece in &mut pieces {
        *piece = piece.start + body_start..piece.end + body_start;
        debug_assert!(piece.end <= MAX_SHARD_BYTES, "the layout was checked against the body");
    }
    Ok(pieces)
}

fn offset(offsets: &[u8], large: bool, row: u32) -> Option<u64> {
    let row = row as usize;
    match large {
        true => u64::try_from(i64::from_le_bytes(*offsets.as_chunks().0.get(row)?)).ok(),
        false => u64::try_from(i32::from_le_bytes(*offsets.as_chunks().0.get(row)?)).ok(),
    }
}

/// Sorted, and those that touch or nearly touch made one.
fn coalesced(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(WORTHWHILE_GAP) => {
                last.end = last.end.max(range.end)
            }
            _ => merged.push(range),
        }
    }
    merged
}
