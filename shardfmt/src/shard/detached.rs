//! Rows of a mapped shard in memory of their own, read by other means than the map: past the page cache, say.
//!
//! The map says where in the file bytes lie, and the caller reads them. Small values, validity and offsets are
//! copied from the map.

use std::io;
use std::ops::Range;

use arrow::array::{
    Array, ArrayData, ArrayDataBuilder, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, make_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, ToByteSlice};

use super::{Shard, ShardError, ipc, populate};

/// Values of fewer bytes are copied from the map: the page of one has those of many rows, so it is read once.
const SMALL: usize = 2 << 10;

/// A record batch in the file of its shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBatch {
    /// Its bytes in the file.
    pub bytes: Range<u64>,
    /// Its rows.
    pub rows: Range<u32>,
}

impl Shard {
    /// Where the record batches lie in the shard's file, in order. Each is decoded by
    /// [`decode_stored`](Self::decode_stored).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
    /// # use shardfmt::arrow::buffer::Buffer;
    /// # use std::sync::Arc;
    /// # let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
    /// # let rows = RecordBatch::try_from_iter([("label", labels)])?;
    /// # let mut writer = shardfmt::ShardWriter::new(rows.schema())?;
    /// # writer.push(&rows)?;
    /// # let file = writer.finish()?.bytes;
    /// let shard = shardfmt::Shard::from_bytes(file.clone())?;
    /// let stored = shard.stored().next().ok_or("a record batch")?;
    /// assert_eq!(stored.rows, 0..5);
    /// let bytes = file.slice(stored.bytes.start as usize..stored.bytes.end as usize);
    /// assert_eq!(shard.decode_stored(0, &bytes.into())?, rows);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stored(&self) -> impl Iterator<Item = StoredBatch> {
        let rows = self.starts.windows(2).map(|rows| rows[0]..rows[1]);
        self.blocks.iter().zip(rows).map(|(block, rows)| {
            let bytes = block.metadata.start as u64..block.body.end as u64;
            StoredBatch { bytes, rows }
        })
    }

    /// Record batch `index`, of the bytes that the file has in [its place](Self::stored): checked as those of an opened
    /// shard are.
    ///
    /// # Errors
    ///
    /// [`ShardError::Corrupt`] when the bytes are not such a record batch.
    ///
    /// # Panics
    ///
    /// If there is no such record batch, or the bytes are not as many as those of its place.
    pub fn decode_stored(&self, index: usize, bytes: &Buffer) -> Result<RecordBatch, ShardError> {
        let block = &self.blocks[index];
        assert_eq!(bytes.len(), block.body.end - block.metadata.start, "the bytes of its place");
        let body = bytes.slice_with_length(block.body.start - block.metadata.start, block.body.len());
        let batch = ipc::unpack_block(self.schema(), &bytes[..block.metadata.len()], &body, &mut 0);
        let corrupt = |reason: String| ShardError::Corrupt {
            shard: self.name.clone(),
            reason: format!("record batch {index}: {reason}"),
        };
        let batch = batch.map_err(corrupt)?;
        let (found, rows) = (batch.num_rows(), (self.starts[index + 1] - self.starts[index]) as usize);
        match found == rows {
            true => Ok(batch),
            false => Err(corrupt(format!("it has {found} rows instead of {rows}"))),
        }
    }

    /// One row in memory of its own. `read` is given ranges of the file and answers with their bytes, which begin at the
    /// same remainder of 64 as they do in the file; values of less than two kilobytes are copied from the map.
    ///
    /// # Errors
    ///
    /// [`ShardError::Io`] of `read` or the disk, [`ShardError::Unsupported`] when a column is neither of bytes nor of one
    /// size.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn detach(
        &self,
        row: u32,
        mut read: impl FnMut(Range<u64>) -> io::Result<Buffer>,
    ) -> Result<RecordBatch, ShardError> {
        assert!(row < self.rows(), "row {row} of {}", self.rows());
        let index = self.starts.partition_point(|start| *start <= row) - 1;
        let failed = |source| ShardError::Io { shard: self.name.clone(), source };
        let batch = &self.record_batches[index];
        // A slice counts the nulls of its values.
        batch.columns().iter().try_for_each(nulls_in_memory).map_err(failed)?;
        let batch = batch.slice((row - self.starts[index]) as usize, 1);
        let mut moved = Vec::with_capacity(batch.num_columns());
        let mut fetch = |bytes: &[u8]| -> io::Result<Buffer> {
            let at = bytes.as_ptr().addr().checked_sub(self.bytes.as_ptr().addr());
            match at.filter(|at| at + bytes.len() <= self.bytes.len()) {
                Some(at) if bytes.len() >= SMALL => read(at as u64..(at + bytes.len()) as u64),
                _ => {
                    in_memory(bytes)?;
                    Ok(Buffer::from(bytes))
                }
            }
        };
        for column in batch.columns() {
            moved.push(make_array(detached(&column.to_data(), &mut fetch).map_err(failed)?));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        RecordBatch::try_new_with_options(batch.schema(), moved, &options)
            .map_err(|error| ShardError::Corrupt { shard: self.name.clone(), reason: error.to_string() })
    }
}

/// The same values, in the buffers that `fetch` gives for those of `data`.
fn detached(data: &ArrayData, fetch: &mut impl FnMut(&[u8]) -> io::Result<Buffer>) -> io::Result<ArrayData> {
    let (offset, count) = (data.offset(), data.len());
    let array = ArrayData::builder(data.data_type().clone()).len(count);
    let array = array.nulls(data.nulls().map(copied));
    let array = match data.data_type() {
        DataType::Binary => bytes_of(data.buffers(), data.buffer::<i32>(0), count, fetch)?.fold(array),
        DataType::LargeBinary => bytes_of(data.buffers(), data.buffer::<i64>(0), count, fetch)?.fold(array),
        DataType::FixedSizeList(_, size) => {
            let size = size.as_usize();
            let items = data.child_data()[0].slice(offset * size, count * size);
            array.add_child_data(detached(&items, fetch)?)
        }
        other => {
            let width = match other {
                DataType::FixedSizeBinary(width) => Some(width.as_usize()),
                other => other.primitive_width(),
            };
            let width = width.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
            array.add_buffer(fetch(&data.buffers()[0][offset * width..][..count * width])?)
        }
    };
    array.build().map_err(io::Error::other)
}

/// The offsets and the values of bytes.
struct Bytes(Buffer, Buffer);

impl Bytes {
    fn fold(self, array: ArrayDataBuilder) -> ArrayDataBuilder {
        array.add_buffer(self.0).add_buffer(self.1)
    }
}

fn bytes_of<O: ArrowNativeType + std::ops::Sub<Output = O>>(
    buffers: &[Buffer],
    offsets: &[O],
    count: usize,
    fetch: &mut impl FnMut(&[u8]) -> io::Result<Buffer>,
) -> io::Result<Bytes> {
    let offsets = &offsets[..=count];
    in_memory(offsets.to_byte_slice())?;
    let (first, last) = (offsets[0], offsets[count]);
    let values = fetch(&buffers[1][first.as_usize()..last.as_usize()])?;
    Ok(Bytes(Buffer::from_vec(offsets.iter().map(|offset| *offset - first).collect()), values))
}

fn nulls_in_memory(array: &ArrayRef) -> io::Result<()> {
    if let Some(nulls) = array.nulls() {
        in_memory(nulls.validity())?;
    }
    array.as_fixed_size_list_opt().map_or(Ok(()), |list| nulls_in_memory(list.values()))
}

fn copied(nulls: &NullBuffer) -> NullBuffer {
    NullBuffer::new(BooleanBuffer::collect_bool(nulls.len(), |at| nulls.is_valid(at)))
}

/// Has mapped bytes read: touching those beyond the end of a file is fatal.
fn in_memory(bytes: &[u8]) -> io::Result<()> {
    populate(bytes).map_err(|error| {
        let reason = format!("its map cannot be read, as if the file was cut off or the disk fails: {error}");
        io::Error::new(error.kind(), reason)
    })
}
