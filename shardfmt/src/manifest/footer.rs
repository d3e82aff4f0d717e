//! The footer of a manifest's file: the totals, and the places of the rest.
//!
//! Texts are metadata of the schema. A long one, such as the rows of each shard, lies before the footer instead:
//! opening a manifest reads its footer, and need not read that.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc;
use arrow::ipc::writer::{DictionaryTracker, FileWriter, IpcDataGenerator, IpcWriteOptions};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::index::{LABELS_KEY, ROWS_KEY};
use super::labels::Names;
use super::verified::VerifiedFile;
use super::{ManifestError, ShardEntry, columns};
use crate::digest::{from_hex, to_hex};
use crate::row::RowCodec;
use crate::shard::{BlockPlace, IpcFile, TRAILER_BYTES};

/// The format this release writes.
pub(super) const FORMAT: &str = "2";
/// What it reads: the first listed inputs, too, which no one reads any more.
const FORMATS: [&str; 2] = ["1", FORMAT];
pub(super) const FORMAT_KEY: &str = "shardd.format";
pub(super) const SCHEMA_KEY: &str = "shardd.schema";
pub(super) const CONFIG_KEY: &str = "shardd.config";
const TAIL_KEY: &str = "shardd.tail";

/// Texts that lie before the footer when they are long, in this order.
const MAY_BE_LONG: [&str; 2] = [LABELS_KEY, ROWS_KEY];

/// The longest text of those in the metadata.
const SHORT: usize = 64 << 10;

/// The bytes read of the end of a file at first: mostly, all of the footer.
const FIRST_READ: u64 = 64 << 10;

/// A footer that was read.
#[derive(Debug)]
pub(super) struct Footer {
    /// The schema of the samples.
    pub(super) schema: SchemaRef,
    pub(super) config: Value,
    pub(super) blocks: Vec<BlockPlace>,
    /// The schema of the file.
    columns: SchemaRef,
    /// Where the texts before the footer lie.
    tail: BTreeMap<String, Range<u64>>,
}

impl Footer {
    pub(super) fn read(file: &VerifiedFile) -> Result<Self, ManifestError> {
        let (end_start, end) = file.end(FIRST_READ)?;
        let length = end_start as usize + end.len();
        let start = IpcFile::footer_start(&end, length).map_err(ManifestError::Corrupt)?;
        match start.checked_sub(end_start as usize) {
            Some(at) => Self::parse(&end[at..end.len() - TRAILER_BYTES], start),
            None => Self::parse(&file.read(start as u64..(length - TRAILER_BYTES) as u64)?, start),
        }
    }

    fn parse(footer: &[u8], start: usize) -> Result<Self, ManifestError> {
        let file = IpcFile::from_footer(footer, start).map_err(ManifestError::Corrupt)?;
        let text = |key| file.schema.metadata().get(key).ok_or(ManifestError::NoManifest { key });
        let format = text(FORMAT_KEY)?;
        if !FORMATS.contains(&format.as_str()) {
            let found = format.chars().take(20).collect();
            return Err(ManifestError::TooNew { found, supported: FORMAT });
        }
        let config = parse_json(CONFIG_KEY, text(CONFIG_KEY)?)?;
        let schema = parse_schema(text(SCHEMA_KEY)?).map_err(ManifestError::Corrupt)?;
        // Of its own columns, too, which may be more than are known here.
        RowCodec::new(file.schema.clone()).map_err(|error| ManifestError::Corrupt(error.to_string()))?;
        columns::check(&file.schema, &schema).map_err(ManifestError::Corrupt)?;
        let tail = match text(TAIL_KEY) {
            Ok(tail) => places(parse_json(TAIL_KEY, tail)?, start as u64)?,
            Err(_) => BTreeMap::new(),
        };
        Ok(Self { schema, config, blocks: file.blocks, columns: file.schema, tail })
    }

    /// Whether there is such a text.
    pub(super) fn has(&self, key: &str) -> bool {
        self.columns.metadata().contains_key(key) || self.tail.contains_key(key)
    }

    /// The text under `key`, parsed; `None` if there is none.
    pub(super) fn json<T: DeserializeOwned>(
        &self,
        file: &VerifiedFile,
        key: &'static str,
    ) -> Result<Option<T>, ManifestError> {
        if let Some(text) = self.columns.metadata().get(key) {
            return parse_json(key, text).map(Some);
        }
        let Some(place) = self.tail.get(key) else { return Ok(None) };
        let text = file.read(place.clone())?;
        let text = str::from_utf8(&text)
            .map_err(|error| ManifestError::Corrupt(format!("{key} is no text: {error}")))?;
        parse_json(key, text).map(Some)
    }

    /// The shards of a record batch.
    pub(super) fn shards(
        &self,
        file: &VerifiedFile,
        batch: usize,
        names: &mut Names,
    ) -> Result<Vec<ShardEntry>, ManifestError> {
        let BlockPlace { metadata, body } = &self.blocks[batch];
        let block = file.read(metadata.start as u64..body.end as u64)?;
        let (metadata, body) = (&block[..metadata.len()], block.slice(metadata.len()));
        crate::shard::decode_block(&self.columns, metadata, &body)
            .and_then(|batch| columns::entries(&batch, &self.schema, names))
            .map_err(ManifestError::Corrupt)
    }
}

/// Where texts of these lengths lie, one after the other up to `end`.
fn places(tail: Vec<(String, u64)>, end: u64) -> Result<BTreeMap<String, Range<u64>>, ManifestError> {
    let mut end = end;
    let mut places = BTreeMap::new();
    for (key, length) in tail.into_iter().rev() {
        let start = end
            .checked_sub(length)
            .ok_or_else(|| ManifestError::Corrupt(format!("{TAIL_KEY}: {key:?} is longer than the file")))?;
        places.insert(key, start..end);
        end = start;
    }
    Ok(places)
}

/// The file of some record batches and texts. With `tail`, long texts lie before the footer.
pub(super) fn write(
    fields: Vec<arrow::datatypes::Field>,
    mut texts: BTreeMap<String, String>,
    tail: bool,
    batches: impl Iterator<Item = impl FnOnce(SchemaRef) -> Result<RecordBatch, ArrowError>>,
) -> Result<Vec<u8>, ArrowError> {
    let long = |key: &&str| texts.get(*key).is_some_and(|text| text.len() > SHORT);
    let long: Vec<&str> = if tail { MAY_BE_LONG.into_iter().filter(long).collect() } else { Vec::new() };
    let long: Vec<(&str, String)> =
        long.into_iter().filter_map(|key| Some((key, texts.remove(key)?))).collect();
    if !long.is_empty() {
        let lengths: Vec<(&str, usize)> = long.iter().map(|(key, text)| (*key, text.len())).collect();
        let lengths = serde_json::to_string(&lengths).map_err(external)?;
        texts.insert(TAIL_KEY.to_owned(), lengths);
    }

    let schema = Arc::new(Schema::new(fields).with_metadata(texts));
    let options = IpcWriteOptions::try_new(64, false, ipc::MetadataVersion::V5)?;
    let mut file = FileWriter::try_new_with_options(Vec::new(), &schema, options)?;
    for batch in batches {
        file.write(&batch(schema.clone())?)?;
    }
    file.finish()?;
    let mut bytes = file.into_inner()?;
    if !long.is_empty() {
        let start = IpcFile::footer_start(&bytes, bytes.len()).map_err(ArrowError::IpcError)?;
        let length: usize = long.iter().map(|(_, text)| text.len()).sum();
        // The footer stays aligned.
        let padding = " ".repeat(length.next_multiple_of(8) - length);
        let texts =
            padding.into_bytes().into_iter().chain(long.into_iter().flat_map(|(_, text)| text.into_bytes()));
        bytes.splice(start..start, texts);
    }
    Ok(bytes)
}

pub(super) fn external(error: serde_json::Error) -> ArrowError {
    ArrowError::ExternalError(error.into())
}

/// The schema in hexadecimal.
pub(super) fn schema_text(schema: &Schema) -> String {
    to_hex(&schema_message(schema))
}

/// The schema as an encapsulated Arrow IPC message: what `pyarrow.ipc.read_schema` reads.
pub fn schema_message(schema: &Schema) -> Vec<u8> {
    let options = IpcWriteOptions::default();
    let mut dictionaries = DictionaryTracker::new(true);
    let generator = IpcDataGenerator::default();
    let message =
        generator.schema_to_bytes_with_dictionary_tracker(schema, &mut dictionaries, &options).ipc_message;
    let mut framed = vec![0xff; 4];
    framed.extend_from_slice(
        &u32::try_from(message.len()).expect("a schema has less than 4 GiB").to_le_bytes(),
    );
    framed.extend_from_slice(&message);
    framed
}

fn parse_schema(hex: &str) -> Result<SchemaRef, String> {
    let mut bytes = vec![0; hex.len() / 2];
    from_hex(hex, &mut bytes).map_err(|_| "its schema is not hexadecimal".to_owned())?;
    parse_schema_message(&bytes)
}

/// The schema that [`schema_message`] wrote, checked to be one that rows can have.
///
/// # Errors
///
/// The fault in one line, when the bytes are no such message or rows cannot have the schema.
pub fn parse_schema_message(bytes: &[u8]) -> Result<SchemaRef, String> {
    let message: Range<usize> = 8..bytes.len();
    let message = bytes.get(message).ok_or("its schema is cut off")?;
    let message = ipc::root_as_message(message).map_err(|error| format!("its schema: {error}"))?;
    let schema = message.header_as_schema().ok_or("its schema is none")?;
    let schema = Arc::new(crate::shard::schema_from(schema)?);
    RowCodec::new(schema.clone()).map_err(|error| error.to_string())?;
    Ok(schema)
}

fn parse_json<T: DeserializeOwned>(key: &'static str, text: &str) -> Result<T, ManifestError> {
    serde_json::from_str(text).map_err(|error| ManifestError::Corrupt(format!("{key}: {error}")))
}
