//! Arrow IPC: files (Feather version 2, shards) and streams, compressed or not, with the same columns.
//!
//! Both are messages one after the other: a schema, dictionaries, record batches. A record batch is a piece,
//! if it is not large; one that is larger in memory than in the file is cut by the size of its rows.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc;
use arrow::ipc::reader::{RecordBatchDecoder, read_dictionary};
use shardfmt::InputDigest;

use super::alike::Alike;
use super::growth::{self, grows};
use super::{About, Feed, Format, LARGE_BYTES, MANY_ROWS, MOST_ROWS, canonical_rows, caught};
use crate::error::one_line;
use crate::input::{InputFile, OpenInput};
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError, canonical};

const MAGIC: &[u8] = b"ARROW1";
/// The length of a footer, and the magic again.
const TRAILER: u64 = 10;
/// The first bytes of every message except those of old writers.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Longer descriptions of schemas and record batches are refused.
const LONGEST_METADATA: u64 = 256 << 20;
/// A record batch is read and decoded as a whole, so larger ones are refused.
const LARGEST_BATCH: u64 = 2 << 30;

#[derive(Debug)]
pub(super) struct IpcSource {
    about: About,
    files: Alike<IpcFile>,
}

#[derive(Debug)]
struct IpcFile {
    file: InputFile,
    is_stream: bool,
    /// The columns as they are written.
    columns: SchemaRef,
}

/// Where a message lies in a file.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    metadata: u64,
    body: u64,
}

/// A message that was read.
struct Message {
    metadata: Vec<u8>,
    body: Buffer,
}

type Reason = String;

impl IpcSource {
    /// Reads the schemas of all files and compares them.
    pub(super) fn open(inputs: Inputs, config: &IngestConfig) -> Result<IpcSource, IngestError> {
        let path = inputs.path.clone();
        let (files, passed_over) = Kind::Arrow.files(inputs, config);
        let files = Alike::open(files, config, IpcFile::open)?;
        match files.schema.clone() {
            Some(schema) => Ok(IpcSource { about: About { schema, rows: None, passed_over }, files }),
            None => {
                let found = "none of the Arrow files can be read".to_owned();
                Err(IngestError::NoSamples { path, found })
            }
        }
    }
}

impl Format for IpcSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        self.files.pieces(feed, |file, feed| file.pieces(&self.about.schema, feed))
    }
}

impl IpcFile {
    fn open(file: InputFile) -> Result<(IpcFile, SchemaRef), IngestError> {
        let head = file.head(MAGIC.len() as u64)?;
        let input = file.open()?;
        let is_stream = head != MAGIC;
        let columns = if head.starts_with(b"FEA1") {
            Err("it is Feather of version 1; write it again in version 2".to_owned())
        } else if is_stream {
            stream_schema(&input)
        } else {
            with_footer(&input, |footer| schema_from(footer.schema()))
        };
        let columns = Arc::new(columns.map_err(|reason| damaged(&file.path, reason))?);
        let schema = canonical::canonical_schema(&file.path, &columns)?;
        Ok((IpcFile { file, is_stream, columns }, schema))
    }

    fn pieces<'s>(
        &'s self,
        schema: &'s SchemaRef,
        feed: &mut Feed<'_, 's>,
    ) -> Result<InputDigest, IngestError> {
        let whole = self.file.open_whole()?;
        let mut reading = Reading { file: self, schema, dictionaries: Arc::default(), batches: 0 };
        if let Err(stopped) = reading.all(&whole.input, feed) {
            match stopped {
                Stopped::Reading(reason) => feed.fault(&self.file.name, damaged(&self.file.path, reason))?,
                Stopped::Elsewhere(error) => return Err(error),
            }
        }
        whole.digest()
    }
}

/// Why not all of a file was listed.
enum Stopped {
    /// The rest cannot be read.
    Reading(Reason),
    Elsewhere(IngestError),
}

impl<R: Into<Reason>> From<R> for Stopped {
    fn from(reason: R) -> Stopped {
        Stopped::Reading(reason.into())
    }
}

/// A file being read from its first message to its last.
struct Reading<'s> {
    file: &'s IpcFile,
    schema: &'s SchemaRef,
    /// Those that hold for the next record batch: a stream may replace them.
    dictionaries: Arc<HashMap<i64, ArrayRef>>,
    batches: u64,
}

impl<'s> Reading<'s> {
    fn all(&mut self, input: &OpenInput, feed: &mut Feed<'_, 's>) -> Result<(), Stopped> {
        if !self.file.is_stream {
            for place in with_footer(input, |footer| places(input, footer))? {
                self.message(Message::read(input, place)?, feed)?;
            }
            return Ok(());
        }
        let mut offset = 0;
        while let Some(place) = Place::in_stream(input, offset)? {
            let is_schema = offset == 0;
            offset = place.end();
            if !is_schema {
                self.message(Message::read(input, place)?, feed)?;
            }
        }
        Ok(())
    }

    fn message(&mut self, message: Message, feed: &mut Feed<'_, 's>) -> Result<(), Stopped> {
        let parsed = parse(&message.metadata)?;
        if let Some(dictionary) = parsed.header_as_dictionary_batch() {
            let data = dictionary.data().ok_or("a dictionary of it has no values")?;
            check_buffers(data, &message.body)?;
            let (known, columns) = (Arc::make_mut(&mut self.dictionaries), &self.file.columns);
            let read = || read_dictionary(&message.body, dictionary, columns, known, &parsed.version());
            return Ok(decoded(read)?);
        }
        let Some(batch) = parsed.header_as_record_batch() else {
            return Err(Stopped::Reading("it has a message that is no record batch".to_owned()));
        };
        let bytes = check_buffers(batch, &message.body)?;
        let rows = u64::try_from(batch.length()).ok().filter(|&rows| rows <= MOST_ROWS);
        let rows = rows.ok_or_else(|| format!("a record batch of it says it has {} rows", batch.length()))?;
        let name = format!("{}, record batch {}", self.file.file.name, self.batches);
        self.batches += 1;
        let (file, schema, dictionaries) = (self.file, self.schema, self.dictionaries.clone());
        let may_grow = file.columns.fields().iter().any(|field| grows(field.data_type()));
        if bytes <= LARGE_BYTES && rows <= MANY_ROWS && !may_grow {
            let read = move |_: &mut _| file.canonical(&message.decode(&file.columns, &dictionaries), schema);
            return feed.piece(name, read).map_err(Stopped::Elsewhere);
        }
        let slices = message
            .decode(&file.columns, &dictionaries)
            .and_then(|batch| caught(|| growth::slices(batch)).ok_or(GAVE_UP)?);
        let listed = match slices {
            Ok(slices) => slices
                .into_iter()
                .try_for_each(|slice| feed.piece(name.clone(), move |_| file.canonical(&Ok(slice), schema))),
            Err(reason) => feed.fault(&name, damaged(&file.file.path, reason)),
        };
        listed.map_err(Stopped::Elsewhere)
    }
}

impl IpcFile {
    fn canonical(
        &self,
        batch: &Result<RecordBatch, Reason>,
        schema: &SchemaRef,
    ) -> Result<RecordBatch, IngestError> {
        let path = &self.file.path;
        let batch = batch.as_ref().map_err(|reason| damaged(path, reason))?;
        caught(|| canonical_rows(path, batch, schema)).unwrap_or_else(|| Err(damaged(path, GAVE_UP)))
    }
}

impl Place {
    fn end(self) -> u64 {
        self.offset + self.metadata + self.body
    }

    /// Of a block in a footer; `None` if that lies outside of the file.
    fn of(block: &ipc::Block, bytes: u64) -> Option<Place> {
        let offset = u64::try_from(block.offset()).ok()?;
        let metadata = u64::try_from(block.metaDataLength()).ok()?;
        let body = u64::try_from(block.bodyLength()).ok()?;
        let end = offset.checked_add(metadata)?.checked_add(body)?;
        (end <= bytes).then_some(Place { offset, metadata, body })
    }

    /// Of the message of a stream at this offset; `None` at its end.
    fn in_stream(input: &OpenInput, offset: u64) -> Result<Option<Place>, Reason> {
        if offset == input.bytes() {
            return Ok(None);
        }
        let cut_off = || "it ends too early".to_owned();
        let number = |offset| -> Result<[u8; 4], Reason> {
            let part = input.part(offset, 4).map_err(|_| cut_off())?;
            Ok(part.try_into().expect("four bytes"))
        };
        let (first, mut prefix) = (number(offset)?, 4);
        let length = if first == CONTINUATION {
            prefix = 8;
            number(offset + 4)?
        } else {
            first
        };
        let length = u64::try_from(i32::from_le_bytes(length)).map_err(|_| "it is no Arrow data")?;
        if length == 0 {
            let rest = input.bytes() - offset - prefix;
            return if rest == 0 { Ok(None) } else { Err(format!("{rest} bytes follow its end")) };
        }
        let place = Place { offset, metadata: prefix + length, body: 0 };
        let metadata = Message::metadata(input, place)?;
        let body = u64::try_from(parse(&metadata)?.bodyLength()).map_err(|_| cut_off())?;
        let end = place.end().checked_add(body).filter(|&end| end <= input.bytes());
        end.map(|_| Some(Place { body, ..place })).ok_or_else(cut_off)
    }
}

impl Message {
    fn read(input: &OpenInput, place: Place) -> Result<Message, Reason> {
        if place.body > LARGEST_BATCH {
            return Err(format!(
                "a record batch has {} bytes, the most is {LARGEST_BATCH}; write smaller ones",
                place.body
            ));
        }
        let metadata = Self::metadata(input, place)?;
        let body = input.part(place.offset + place.metadata, place.body as usize).map_err(one_line)?;
        Ok(Message { metadata, body: Buffer::from_vec(body) })
    }

    fn metadata(input: &OpenInput, place: Place) -> Result<Vec<u8>, Reason> {
        if place.metadata > LONGEST_METADATA {
            return Err(format!("a message has {} bytes of metadata", place.metadata));
        }
        input.part(place.offset, place.metadata as usize).map_err(|_| "it ends too early".to_owned())
    }

    fn decode(
        &self,
        columns: &SchemaRef,
        dictionaries: &HashMap<i64, ArrayRef>,
    ) -> Result<RecordBatch, Reason> {
        let parsed = parse(&self.metadata)?;
        let batch = parsed.header_as_record_batch().ok_or("it is no record batch")?;
        decoded(|| {
            let version = parsed.version();
            RecordBatchDecoder::try_new(&self.body, batch, columns.clone(), dictionaries, &version)?
                .read_record_batch()
        })
    }
}

/// The message in its encapsulation.
fn parse(metadata: &[u8]) -> Result<ipc::Message<'_>, Reason> {
    let message = match metadata.strip_prefix(&CONTINUATION) {
        Some(rest) => rest.get(4..),
        None => metadata.get(4..),
    };
    ipc::root_as_message(message.unwrap_or_default()).map_err(|error| format!("message: {error}"))
}

fn stream_schema(input: &OpenInput) -> Result<Schema, Reason> {
    let place = Place::in_stream(input, 0)?.ok_or("it is empty")?;
    let metadata = Message::metadata(input, place)?;
    schema_from(parse(&metadata)?.header_as_schema())
}

fn schema_from(schema: Option<ipc::Schema<'_>>) -> Result<Schema, Reason> {
    let schema = schema.ok_or("it has no schema")?;
    if !schema.endianness().equals_to_target_endianness() {
        return Err("it is of the other byte order; write it again on this kind of machine".to_owned());
    }
    decoded(|| ipc::convert::try_fb_to_schema(schema))
}

fn with_footer<T>(
    input: &OpenInput,
    read: impl FnOnce(ipc::Footer<'_>) -> Result<T, Reason>,
) -> Result<T, Reason> {
    let cut_off = || "it is cut off".to_owned();
    let trailer = input.bytes().checked_sub(TRAILER).ok_or_else(cut_off)?;
    let length: [u8; 10] = match input.part(trailer, TRAILER as usize).map_err(one_line)?.try_into() {
        Ok(trailer) => trailer,
        Err(_) => return Err(cut_off()),
    };
    let length = ipc::reader::read_footer_length(length).map_err(|_| cut_off())? as u64;
    let start = trailer.checked_sub(length).filter(|_| length <= LONGEST_METADATA).ok_or_else(cut_off)?;
    let footer = input.part(start, length as usize).map_err(one_line)?;
    read(ipc::root_as_footer(&footer).map_err(|error| format!("footer: {error}"))?)
}

/// All dictionaries, then all record batches.
fn places(input: &OpenInput, footer: ipc::Footer<'_>) -> Result<Vec<Place>, Reason> {
    let blocks =
        footer.dictionaries().into_iter().flatten().chain(footer.recordBatches().into_iter().flatten());
    let places = blocks.map(|block| Place::of(block, input.bytes()));
    places.collect::<Option<_>>().ok_or_else(|| "a record batch of it lies outside the file".to_owned())
}

/// Checks that all buffers of a record batch lie in its body, and returns how many bytes they have when decompressed.
fn check_buffers(batch: ipc::RecordBatch<'_>, body: &[u8]) -> Result<u64, Reason> {
    let mut bytes: u64 = 0;
    for buffer in batch.buffers().into_iter().flatten() {
        let range = || -> Option<Range<usize>> {
            let start = usize::try_from(buffer.offset()).ok()?;
            Some(start..start.checked_add(usize::try_from(buffer.length()).ok()?)?)
        };
        let buffer =
            range().and_then(|range| body.get(range)).ok_or("a buffer lies outside of its record batch")?;
        let claimed = match (batch.compression(), buffer.first_chunk()) {
            (Some(_), Some(length)) => match i64::from_le_bytes(*length) {
                -1 => buffer.len() as u64,
                length => u64::try_from(length).map_err(|_| "a compressed buffer has a negative length")?,
            },
            _ => buffer.len() as u64,
        };
        bytes = bytes.saturating_add(claimed);
    }
    if bytes > LARGEST_BATCH {
        return Err(format!(
            "a record batch has {bytes} bytes when decompressed, the most is {LARGEST_BATCH}; write smaller ones"
        ));
    }
    Ok(bytes)
}

const GAVE_UP: &str = "its reader gave up";

/// Runs Arrow's decoder, which trusts some of its input.
fn decoded<T>(read: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, Reason> {
    caught(read).ok_or(GAVE_UP)?.map_err(one_line)
}

fn damaged(path: &Path, reason: impl std::fmt::Display) -> IngestError {
    IngestError::Damaged { path: path.to_owned(), kind: "Arrow", reason: one_line(reason) }
}
