//! The structure of an Arrow IPC file, checked before Arrow's decoder sees it.
//!
//! FlatBuffers verification shows that the metadata is well formed, not that it is true: buffers may lie outside the
//! body, lengths may be negative, a few bytes may claim to be gigabytes when decompressed. Arrow's decoder trusts some of
//! that; so every node and buffer is compared with the schema and the body first. Only plain schemas
//! (`row::plain_schema`) pass.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::ipc;

use super::MAX_SHARD_BYTES;

type Reason = String;

const MAGIC: &[u8; 6] = b"ARROW1";

/// Where the parts of an Arrow IPC file lie.
pub(crate) struct IpcFile {
    pub(crate) schema: SchemaRef,
    pub(crate) blocks: Vec<BlockPlace>,
}

/// Where a record batch lies in its file.
#[derive(Debug)]
pub(crate) struct BlockPlace {
    pub(crate) metadata: Range<usize>,
    pub(crate) body: Range<usize>,
}

/// The bytes after the footer: its length and the magic.
pub(crate) const TRAILER_BYTES: usize = 10;

impl IpcFile {
    /// Reads the footer of a whole file.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        if !bytes.starts_with(MAGIC) {
            return Err("it is no Arrow IPC file, or cut off".to_owned());
        }
        let start = Self::footer_start(bytes, bytes.len())?;
        Self::from_footer(&bytes[start..bytes.len() - TRAILER_BYTES], start)
    }

    /// Where the footer of a file of `length` bytes begins, by its last bytes, at least [`TRAILER_BYTES`].
    pub(crate) fn footer_start(end: &[u8], length: usize) -> Result<usize, Reason> {
        let corrupt = |reason: &str| Err(reason.to_owned());
        let Some(rest) = end.strip_suffix(MAGIC) else {
            return corrupt("it is no Arrow IPC file, or cut off");
        };
        let Some((_, footer)) = rest.split_last_chunk() else { return corrupt("it is cut off") };
        let footer = usize::try_from(i32::from_le_bytes(*footer)).ok();
        let start = footer.and_then(|footer| length.checked_sub(footer)?.checked_sub(TRAILER_BYTES));
        start.filter(|start| *start >= 8).ok_or_else(|| "its footer is longer than the file".to_owned())
    }

    /// Reads a footer that begins at `start` of its file.
    pub(crate) fn from_footer(footer: &[u8], start: usize) -> Result<Self, Reason> {
        let corrupt = |reason: &str| Err(reason.to_owned());
        let footer = ipc::root_as_footer(footer).map_err(|error| format!("footer: {error}"))?;
        if footer.version() != ipc::MetadataVersion::V5 {
            return corrupt("it has an old format version: ingest it again");
        }
        if footer.dictionaries().is_some_and(|dictionaries| !dictionaries.is_empty()) {
            return corrupt("it has dictionaries, which shards do not");
        }
        let Some(schema) = footer.schema() else { return corrupt("it has no schema") };
        let schema = schema_from(schema)?;
        let mut blocks: Vec<BlockPlace> = Vec::new();
        let mut end = 0;
        for block in footer.recordBatches().into_iter().flatten() {
            let place = BlockPlace::parse(block, start)
                .ok_or_else(|| format!("record batch {} lies outside the file", blocks.len()))?;
            // Lest a short file has the same bytes again and again.
            if place.metadata.start < end {
                return Err(format!("record batch {} lies before the end of another", blocks.len()));
            }
            end = place.body.end;
            blocks.push(place);
        }
        Ok(Self { schema: Arc::new(schema), blocks })
    }
}

impl BlockPlace {
    fn parse(block: &ipc::Block, end_of_data: usize) -> Option<Self> {
        let start = usize::try_from(block.offset()).ok()?;
        let middle = start.checked_add(usize::try_from(block.metaDataLength()).ok()?)?;
        let end = middle.checked_add(usize::try_from(block.bodyLength()).ok()?)?;
        (end <= end_of_data).then_some(Self { metadata: start..middle, body: middle..end })
    }
}

/// A schema from its FlatBuffers form.
///
/// # Errors
///
/// The fault in one line, when the schema is big-endian or Arrow cannot convert it.
pub fn schema_from(schema: ipc::Schema<'_>) -> Result<Schema, Reason> {
    if schema.endianness() != ipc::Endianness::Little {
        return Err("it is big-endian".to_owned());
    }
    ipc::convert::try_fb_to_schema(schema).map_err(|error| format!("schema: {error}"))
}

/// Decodes one record batch of a file that is not compressed. `metadata` is the encapsulated message before the body.
pub(crate) fn decode_block(
    schema: &SchemaRef,
    metadata: &[u8],
    body: &Buffer,
) -> Result<RecordBatch, Reason> {
    match parse_message(metadata)?.compression() {
        Some(_) => Err("its body is compressed, which it must not be".to_owned()),
        None => unpack_block(schema, metadata, body, &mut 0),
    }
}

/// Decodes one record batch, compressed or not. What decompressing takes is added to `unpacked`, which stays within the
/// size of a shard.
pub(super) fn unpack_block(
    schema: &SchemaRef,
    metadata: &[u8],
    body: &Buffer,
    unpacked: &mut u64,
) -> Result<RecordBatch, Reason> {
    let batch = check_block(schema, metadata, body, unpacked)?;
    let (dictionaries, version) = (HashMap::new(), ipc::MetadataVersion::V5);
    ipc::reader::RecordBatchDecoder::try_new(body, batch, schema.clone(), &dictionaries, &version)
        .and_then(ipc::reader::RecordBatchDecoder::read_record_batch)
        .map_err(|error| error.to_string())
}

/// Compares a record batch with its schema and its body, and adds to `unpacked` what decompressing it takes: nothing
/// where it is not compressed.
pub(super) fn check_block<'a>(
    schema: &Schema,
    metadata: &'a [u8],
    body: &[u8],
    unpacked: &mut u64,
) -> Result<ipc::RecordBatch<'a>, Reason> {
    let batch = parse_message(metadata)?;
    let Some(compression) = batch.compression() else {
        return Layout::of(schema, batch, body.len() as u64).map(|_| batch);
    };
    *unpacked = unpacked.saturating_add(check_compressed(schema, batch, body, compression)?);
    match *unpacked <= MAX_SHARD_BYTES {
        true => Ok(batch),
        false => {
            Err(format!("decompressed there are more than {MAX_SHARD_BYTES} bytes, the most of a shard"))
        }
    }
}

/// Compares a compressed record batch with its schema and its body, and says how many bytes it has when decompressed.
fn check_compressed(
    schema: &Schema,
    batch: ipc::RecordBatch<'_>,
    body: &[u8],
    compression: ipc::BodyCompression<'_>,
) -> Result<u64, Reason> {
    if compression.method() != ipc::BodyCompressionMethod::BUFFER {
        return Err("its buffers are not compressed one by one".to_owned());
    }
    // The most bytes that one byte can become.
    let expansion = match compression.codec() {
        ipc::CompressionType::LZ4_FRAME => 255, // a byte adds at most 255 to the length of a match
        ipc::CompressionType::ZSTD => 128 << 10 >> 2, // a block has 4 bytes at least, and 128 KiB at most become of it
        other => return Err(format!("it has compression {}, which shards have not", other.0)),
    };
    let place = |buffer: &ipc::Buffer| {
        let stored = inside(buffer, body.len() as u64)?;
        let bytes = unpacked(&body[stored.start as usize..stored.end as usize], expansion)?;
        Ok(BufferPlace { stored, bytes })
    };
    let places: Vec<Result<BufferPlace, Reason>> = batch.buffers().into_iter().flatten().map(place).collect();
    let bytes = places.iter().flatten().map(|place| place.bytes).fold(0, u64::saturating_add);
    walk(schema, batch, row_count(batch, bytes)?, places.into_iter())?;
    Ok(bytes)
}

/// How many bytes become of a compressed buffer, whose first eight say so.
fn unpacked(buffer: &[u8], expansion: u64) -> Result<u64, Reason> {
    if buffer.is_empty() {
        return Ok(0);
    }
    let Some((length, rest)) = buffer.split_first_chunk() else {
        return Err("a compressed buffer is cut off".to_owned());
    };
    let rest = rest.len() as u64;
    match i64::from_le_bytes(*length) {
        -1 => Ok(rest), // as it is: it would not have become smaller
        length => match u64::try_from(length) {
            Ok(length) if length <= rest.saturating_mul(expansion) => Ok(length),
            _ => Err(format!("{rest} compressed bytes cannot become {length}")),
        },
    }
}

/// The record batch that an encapsulated message describes.
pub(super) fn parse_message(metadata: &[u8]) -> Result<ipc::RecordBatch<'_>, Reason> {
    let corrupt = |reason: &str| Err(reason.to_owned());
    let Some(rest) = metadata.strip_prefix(&[0xff; 4]) else { return corrupt("it has no message") };
    let Some((length, rest)) = rest.split_first_chunk() else { return corrupt("its message has no length") };
    let message = usize::try_from(i32::from_le_bytes(*length)).ok().and_then(|length| rest.get(..length));
    let Some(message) = message else { return corrupt("its message is cut off") };
    let message = ipc::root_as_message(message).map_err(|error| format!("message: {error}"))?;
    if message.version() != ipc::MetadataVersion::V5 {
        return corrupt("its message has another format version");
    }
    let Some(batch) = message.header_as_record_batch() else {
        return corrupt("its message is no record batch");
    };
    Ok(batch)
}

/// Where the values of a record batch lie in its body: checked, so that all of it is inside.
pub(super) struct Layout {
    pub(super) rows: u32,
    pub(super) columns: Vec<ColumnPlace>,
}

/// Where one column of a record batch lies in the body.
pub(super) enum ColumnPlace {
    /// No bytes at all.
    Null,
    /// Values of `width` bytes.
    Fixed { validity: Range<u64>, width: u64, values: Range<u64> },
    /// Values of one bit.
    Bits { validity: Range<u64>, values: Range<u64> },
    /// Values between offsets of 4 or 8 bytes.
    Bytes { validity: Range<u64>, large: bool, offsets: Range<u64>, values: Range<u64> },
    /// Anything nested, and all that is compressed: only to be had as a whole.
    Whole { all: Range<u64> },
}

impl Layout {
    /// Compares the record batch with its schema and the length of its body. Of a compressed one, only the number of
    /// rows is known before the body is.
    pub(super) fn of(schema: &Schema, batch: ipc::RecordBatch<'_>, body: u64) -> Result<Self, Reason> {
        if batch.compression().is_some() {
            let rows = row_count(batch, u64::MAX)?;
            return Ok(Self { rows, columns: vec![ColumnPlace::Whole { all: 0..body }] });
        }
        let rows = row_count(batch, body)?;
        let places = batch.buffers().into_iter().flatten().map(|buffer| {
            let stored = inside(buffer, body)?;
            Ok(BufferPlace { bytes: span(&stored), stored })
        });
        Ok(Self { rows, columns: walk(schema, batch, rows, places)? })
    }
}

/// The number of rows of a record batch with this number of bytes of values.
fn row_count(batch: ipc::RecordBatch<'_>, bytes: u64) -> Result<u32, Reason> {
    let rows =
        u32::try_from(batch.length()).map_err(|_| format!("it cannot have {} rows", batch.length()))?;
    // Every row takes a bit at least, lest a few bytes claim billions of rows.
    match u64::from(rows) > bytes.saturating_mul(8) {
        true => Err(format!("it has {rows} rows in {bytes} bytes")),
        false => Ok(rows),
    }
}

/// Where a buffer lies in a body.
fn inside(buffer: &ipc::Buffer, body: u64) -> Result<Range<u64>, Reason> {
    let (start, length) = (u64::try_from(buffer.offset()).ok(), u64::try_from(buffer.length()).ok());
    let end = start.zip(length).and_then(|(start, length)| start.checked_add(length));
    match (start, end) {
        (Some(start), Some(end)) if end <= body => Ok(start..end),
        _ => Err("it lies outside the body".to_owned()),
    }
}

/// Where a buffer lies in the body, and how many bytes it has, decompressed.
struct BufferPlace {
    stored: Range<u64>,
    bytes: u64,
}

/// Compares nodes and buffers with the schema; where each column lies.
fn walk(
    schema: &Schema,
    batch: ipc::RecordBatch<'_>,
    rows: u32,
    buffers: impl Iterator<Item = Result<BufferPlace, Reason>>,
) -> Result<Vec<ColumnPlace>, Reason> {
    let mut walk = Walk { nodes: batch.nodes().into_iter().flatten(), buffers, end: 0, hull: None };
    let mut columns = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let (length, column) = walk.field(field).map_err(|reason| {
            let name: String = field.name().chars().take(100).collect();
            format!("column {name:?}: {reason}")
        })?;
        if length != u64::from(rows) {
            return Err(format!("a column has {length} values for {rows} rows"));
        }
        let hull = walk.hull.take().unwrap_or(0..0);
        columns.push(if matches!(column, ColumnPlace::Whole { .. }) {
            ColumnPlace::Whole { all: hull }
        } else {
            column
        });
    }
    if walk.nodes.next().is_some() || walk.buffers.next().is_some() {
        return Err("it has more columns than its schema".to_owned());
    }
    if batch.variadicBufferCounts().is_some_and(|counts| !counts.is_empty()) {
        return Err("it has views, which shards do not".to_owned());
    }
    Ok(columns)
}

struct Walk<N, B> {
    nodes: N,
    buffers: B,
    /// Where the last buffer with any bytes ends.
    end: u64,
    /// From the first byte to the last of the buffers of a column.
    hull: Option<Range<u64>>,
}

impl<'a, N, B> Walk<N, B>
where
    N: Iterator<Item = &'a ipc::FieldNode>,
    B: Iterator<Item = Result<BufferPlace, Reason>>,
{
    /// The number of values of the next column and where they lie.
    fn field(&mut self, field: &Field) -> Result<(u64, ColumnPlace), Reason> {
        let node = self.nodes.next().ok_or("it has fewer columns than its schema")?;
        let length = u64::try_from(node.length()).ok().filter(|length| *length <= u64::from(u32::MAX));
        let length = length.ok_or_else(|| format!("it cannot have {} values", node.length()))?;
        let nulls = u64::try_from(node.null_count()).ok().filter(|nulls| *nulls <= length);
        let nulls = nulls.ok_or_else(|| format!("it cannot have {} nulls", node.null_count()))?;
        if *field.data_type() == DataType::Null {
            return Ok((length, ColumnPlace::Null));
        }
        let validity = self.buffer()?;
        if nulls > 0 && validity.bytes < length.div_ceil(8) {
            return Err("its validity is cut off".to_owned());
        }
        // Without nulls the bitmap is not looked at.
        let validity = if nulls > 0 { validity.stored } else { 0..0 };
        let place = match field.data_type() {
            DataType::Boolean => {
                let values = self.buffer()?;
                if values.bytes < length.div_ceil(8) {
                    return Err("its values are cut off".to_owned());
                }
                ColumnPlace::Bits { validity, values: values.stored }
            }
            DataType::Binary | DataType::Utf8 => self.bytes(validity, length, false)?,
            DataType::LargeBinary | DataType::LargeUtf8 => self.bytes(validity, length, true)?,
            DataType::List(items) | DataType::Map(items, _) => {
                self.offsets(length, 4)?;
                self.items(items, None)?;
                ColumnPlace::Whole { all: 0..0 }
            }
            DataType::LargeList(items) => {
                self.offsets(length, 8)?;
                self.items(items, None)?;
                ColumnPlace::Whole { all: 0..0 }
            }
            DataType::FixedSizeList(items, size) => {
                let size = u64::try_from(*size).map_err(|_| "its size is negative")?;
                match self.items(items, Some(length * size))? {
                    ColumnPlace::Fixed { validity: none, width, values } if none.is_empty() => {
                        let width = width.checked_mul(size).ok_or("its values are too wide")?;
                        ColumnPlace::Fixed { validity, width, values }
                    }
                    _ => ColumnPlace::Whole { all: 0..0 },
                }
            }
            DataType::Struct(fields) => {
                for field in fields {
                    self.items(field, Some(length))?;
                }
                ColumnPlace::Whole { all: 0..0 }
            }
            other => {
                let width = match other {
                    DataType::FixedSizeBinary(width) => usize::try_from(*width).ok(),
                    other => other.primitive_width(),
                };
                let width = width.ok_or_else(|| format!("shards do not hold {other}"))? as u64;
                let values = self.buffer()?;
                if length.checked_mul(width) != Some(values.bytes) {
                    return Err(format!("{length} values of {width} bytes are not {} bytes", values.bytes));
                }
                ColumnPlace::Fixed { validity, width, values: values.stored }
            }
        };
        Ok((length, place))
    }

    fn items(&mut self, field: &Field, expected: Option<u64>) -> Result<ColumnPlace, Reason> {
        let (length, place) = self.field(field)?;
        match expected {
            Some(expected) if expected != length => Err(format!("{length} items instead of {expected}")),
            _ => Ok(place),
        }
    }

    fn bytes(&mut self, validity: Range<u64>, length: u64, large: bool) -> Result<ColumnPlace, Reason> {
        let offsets = self.offsets(length, if large { 8 } else { 4 })?;
        Ok(ColumnPlace::Bytes { validity, large, offsets, values: self.buffer()?.stored })
    }

    fn offsets(&mut self, length: u64, width: u64) -> Result<Range<u64>, Reason> {
        let offsets = self.buffer()?;
        let none = length == 0 && offsets.bytes == 0;
        match none || offsets.bytes == (length + 1) * width {
            true => Ok(offsets.stored),
            false => Err(format!("{} bytes are not the offsets of {length} values", offsets.bytes)),
        }
    }

    /// The next buffer, which lies inside the body and shares no bytes with those before it: what one byte of a file
    /// becomes in memory is bounded.
    fn buffer(&mut self) -> Result<BufferPlace, Reason> {
        let buffer = self.buffers.next().ok_or("it has fewer buffers than its schema")??;
        let Range { start, end } = buffer.stored;
        if start < end {
            if start < self.end {
                return Err("a buffer begins before the end of another".to_owned());
            }
            self.end = end;
        }
        let hull = self.hull.take().unwrap_or(start..end);
        self.hull = Some(hull.start.min(start)..hull.end.max(end));
        Ok(buffer)
    }
}

fn span(range: &Range<u64>) -> u64 {
    range.end - range.start
}
