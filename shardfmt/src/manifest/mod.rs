//! Manifests: which shards make up one version of a dataset.
//!
//! A manifest is one Arrow IPC file with a row for each shard, so that any Arrow reader can query it and it can be read
//! by range when there are millions. What concerns the whole (format number, the samples' schema, the configuration of
//! the ingest and the digest of every input) is metadata of its schema. Its bytes are deterministic, and their digest
//! names the version.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type, UInt64Type};
use arrow::error::ArrowError;
use arrow::ipc;
use arrow::ipc::writer::{DictionaryTracker, FileWriter, IpcDataGenerator, IpcWriteOptions};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::{Digest, ShardId, VersionId, from_hex, to_hex};
use crate::merkle::NodeHash;
use crate::row::{DigestSum, RowCodec};
use crate::shard::IpcFile;

/// The column that holds the labels of a classification, if there is one.
pub const LABEL_COLUMN: &str = "label";

/// The metadata key of the label column whose value is a JSON array of class names.
pub const CLASSES_KEY: &str = "shardd.classes";

const FORMAT: &str = "1";
const FORMAT_KEY: &str = "shardd.format";
const SCHEMA_KEY: &str = "shardd.schema";
const CONFIG_KEY: &str = "shardd.config";
const INPUTS_KEY: &str = "shardd.inputs";
const SKIPPED_KEY: &str = "shardd.skipped";

/// How many of the skipped rows and files a manifest lists at most; all are counted.
pub const SKIPPED_LISTED: usize = 10_000;

/// Shards in one record batch of the manifest.
const SHARDS_PER_RECORD_BATCH: usize = 4096;

/// What a manifest says of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardEntry {
    /// The digest of the shard's file.
    pub id: ShardId,
    /// How many samples it has.
    pub rows: u32,
    /// The bytes of its file.
    pub bytes: u64,
    /// The bytes of its canonical rows.
    pub row_bytes: u64,
    /// The Merkle root over its rows.
    pub root: NodeHash,
    /// The sum of the digests of its rows.
    pub digest_sum: DigestSum,
    /// How often each label occurs, where samples have labels; missing labels are not counted.
    pub labels: Option<BTreeMap<String, u64>>,
}

/// A file that was ingested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputDigest {
    /// Its name within the source.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The digest of its content.
    pub digest: Digest,
}

/// One version of a dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The schema of the samples.
    pub schema: SchemaRef,
    /// The shards in order: sample numbers count through them.
    pub shards: Vec<ShardEntry>,
    /// The configuration of the ingest: with the inputs, all that decides the shards.
    pub config: Value,
    /// What was ingested.
    pub inputs: Vec<InputDigest>,
    /// What was not, because it could not be read: the first [`SKIPPED_LISTED`] in input order.
    pub skipped: Vec<Skipped>,
    /// How much was skipped in all.
    pub skipped_count: u64,
}

/// A file, member or row of the input that could not be read and was passed over, as the ingest was told to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// Which one.
    pub name: String,
    /// Why, in one line.
    pub reason: String,
}

/// [`Manifest::skipped`] as it is written.
#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct SkippedList {
    count: u64,
    first: Vec<Skipped>,
}

impl Manifest {
    /// A version of which nothing was skipped.
    pub fn new(schema: SchemaRef, shards: Vec<ShardEntry>, config: Value, inputs: Vec<InputDigest>) -> Self {
        Self { schema, shards, config, inputs, skipped: Vec::new(), skipped_count: 0 }
    }

    /// The bytes of the manifest's file: the same for equal manifests.
    pub fn encode(&self) -> Vec<u8> {
        self.write().expect("a manifest's own columns fit its own schema, in memory")
    }

    fn write(&self) -> Result<Vec<u8>, ArrowError> {
        let inputs =
            serde_json::to_value(&self.inputs).map_err(|error| ArrowError::ExternalError(error.into()))?;
        let mut metadata = BTreeMap::from([
            (FORMAT_KEY.to_owned(), FORMAT.to_owned()),
            (SCHEMA_KEY.to_owned(), to_hex(&schema_message(&self.schema))),
            (CONFIG_KEY.to_owned(), sorted(&self.config).to_string()),
            (INPUTS_KEY.to_owned(), inputs.to_string()),
        ]);
        if self.skipped_count > 0 {
            let skipped = SkippedList { count: self.skipped_count, first: self.skipped.clone() };
            let skipped =
                serde_json::to_string(&skipped).map_err(|error| ArrowError::ExternalError(error.into()))?;
            metadata.insert(SKIPPED_KEY.to_owned(), skipped);
        }
        let schema = Arc::new(Schema::new(columns()).with_metadata(metadata));
        let options = IpcWriteOptions::try_new(64, false, ipc::MetadataVersion::V5)?;
        let mut file = FileWriter::try_new_with_options(Vec::new(), &schema, options)?;
        for shards in self.shards.chunks(SHARDS_PER_RECORD_BATCH) {
            file.write(&RecordBatch::try_new(schema.clone(), columns_of(shards)?)?)?;
        }
        file.finish()?;
        file.into_inner()
    }

    /// Reads a manifest's file.
    ///
    /// # Errors
    ///
    /// [`ManifestError`] when the bytes are no manifest or of a later format. That they are those of a certain version
    /// is for the caller to check, by their digest.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        // A copy, as Arrow wants its data aligned and shared.
        let bytes = Buffer::from(bytes);
        let file = IpcFile::parse(&bytes).map_err(ManifestError::Corrupt)?;
        let text = |key| file.schema.metadata().get(key).ok_or(ManifestError::NoManifest { key });
        let format = text(FORMAT_KEY)?;
        if format != FORMAT {
            let found = format.chars().take(20).collect();
            return Err(ManifestError::TooNew { found, supported: FORMAT });
        }
        let (found, expected) = (file.schema.fields(), columns());
        if !found.iter().map(AsRef::as_ref).eq(expected.iter()) {
            return Err(ManifestError::Corrupt("its columns are not those of a manifest".to_owned()));
        }
        let config = parse_json(CONFIG_KEY, text(CONFIG_KEY)?)?;
        let inputs = parse_json(INPUTS_KEY, text(INPUTS_KEY)?)?;
        let skipped = match file.schema.metadata().get(SKIPPED_KEY) {
            Some(text) => parse_json(SKIPPED_KEY, text)?,
            None => SkippedList::default(),
        };
        let schema = parse_schema(text(SCHEMA_KEY)?).map_err(ManifestError::Corrupt)?;
        let mut shards = Vec::new();
        for block in &file.blocks {
            let body = bytes.slice_with_length(block.body.start, block.body.len());
            let batch = crate::shard::decode_block(&file.schema, &bytes[block.metadata.clone()], &body);
            let entries = entries_of(&batch.map_err(ManifestError::Corrupt)?);
            shards.extend(entries.map_err(ManifestError::Corrupt)?);
        }
        let SkippedList { count: skipped_count, first: skipped } = skipped;
        Ok(Self { schema, shards, config, inputs, skipped, skipped_count })
    }

    /// Names the version: the digest of the encoding. A manifest that was read is named by the digest of what was read.
    pub fn id(&self) -> VersionId {
        VersionId::of(&self.encode())
    }

    /// How many samples there are.
    pub fn sample_count(&self) -> u64 {
        self.shards.iter().map(|shard| u64::from(shard.rows)).sum()
    }

    /// The bytes of all shard files.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes).fold(0, u64::saturating_add)
    }

    /// The bytes of all canonical rows.
    pub fn row_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.row_bytes).fold(0, u64::saturating_add)
    }

    /// The fingerprint of all samples, whatever their order.
    pub fn digest_sum(&self) -> DigestSum {
        self.shards.iter().map(|shard| shard.digest_sum).sum()
    }

    /// How often each label occurs; `None` where samples have no labels.
    pub fn labels(&self) -> Option<BTreeMap<String, u64>> {
        let mut all = BTreeMap::new();
        for shard in &self.shards {
            for (label, count) in shard.labels.as_ref()? {
                let total: &mut u64 = all.entry(label.clone()).or_default();
                *total = total.saturating_add(*count);
            }
        }
        Some(all)
    }

    /// The column with the labels of a classification.
    pub fn label_column(&self) -> Option<&str> {
        self.schema.field_with_name(LABEL_COLUMN).ok().map(|field| field.name().as_str())
    }

    /// The names of the classes, where the label column says them.
    pub fn class_names(&self) -> Option<Vec<String>> {
        let field = self.schema.field_with_name(LABEL_COLUMN).ok()?;
        serde_json::from_str(field.metadata().get(CLASSES_KEY)?).ok()
    }
}

fn columns() -> Vec<Field> {
    vec![
        Field::new("shard", DataType::FixedSizeBinary(32), false),
        Field::new("rows", DataType::UInt32, false),
        Field::new("bytes", DataType::UInt64, false),
        Field::new("row_bytes", DataType::UInt64, false),
        Field::new("root", DataType::FixedSizeBinary(32), false),
        Field::new("digest_sum", DataType::FixedSizeBinary(16), false),
        Field::new("labels", DataType::Utf8, true),
    ]
}

fn columns_of(shards: &[ShardEntry]) -> Result<Vec<ArrayRef>, ArrowError> {
    let labels = shards.iter().map(|shard| shard.labels.as_ref().map(label_text));
    Ok(vec![
        fixed(32, shards.iter().map(|shard| shard.id.0.0))?,
        Arc::new(UInt32Array::from_iter_values(shards.iter().map(|shard| shard.rows))),
        Arc::new(UInt64Array::from_iter_values(shards.iter().map(|shard| shard.bytes))),
        Arc::new(UInt64Array::from_iter_values(shards.iter().map(|shard| shard.row_bytes))),
        fixed(32, shards.iter().map(|shard| shard.root.0))?,
        fixed(16, shards.iter().map(|shard| shard.digest_sum.0.to_le_bytes()))?,
        Arc::new(labels.collect::<StringArray>()),
    ])
}

fn fixed<const N: usize>(width: i32, values: impl Iterator<Item = [u8; N]>) -> Result<ArrayRef, ArrowError> {
    let values: Vec<u8> = values.flatten().collect();
    Ok(Arc::new(FixedSizeBinaryArray::try_new(width, values.into(), None)?))
}

fn label_text(labels: &BTreeMap<String, u64>) -> String {
    let labels = labels.iter().map(|(label, count)| (label.clone(), Value::from(*count)));
    Value::Object(labels.collect()).to_string()
}

fn entries_of(batch: &RecordBatch) -> Result<Vec<ShardEntry>, String> {
    // The columns have their types: the schema was compared.
    let (ids, roots, sums) = (batch.column(0), batch.column(4), batch.column(5));
    let (ids, roots, sums) =
        (ids.as_fixed_size_binary(), roots.as_fixed_size_binary(), sums.as_fixed_size_binary());
    let rows = batch.column(1).as_primitive::<UInt32Type>();
    let bytes = batch.column(2).as_primitive::<UInt64Type>();
    let row_bytes = batch.column(3).as_primitive::<UInt64Type>();
    let labels = batch.column(6).as_string::<i32>();
    let entry = |index: usize| {
        let id = ShardId(Digest(ids.value(index).try_into().expect("32 bytes by its type")));
        if rows.value(index) == 0 {
            return Err(format!("shard {} has no rows", id.short()));
        }
        let labels = match labels.is_valid(index) {
            true => serde_json::from_str(labels.value(index))
                .map_err(|error| format!("the labels of shard {}: {error}", id.short()))?,
            false => None,
        };
        Ok(ShardEntry {
            id,
            rows: rows.value(index),
            bytes: bytes.value(index),
            row_bytes: row_bytes.value(index),
            root: NodeHash(roots.value(index).try_into().expect("32 bytes by its type")),
            digest_sum: DigestSum(u128::from_le_bytes(
                sums.value(index).try_into().expect("16 bytes by its type"),
            )),
            labels,
        })
    };
    (0..batch.num_rows()).map(entry).collect()
}

/// The schema as an Arrow IPC message without its envelope: what `pyarrow.ipc.read_schema` reads.
pub(crate) fn schema_message(schema: &Schema) -> Vec<u8> {
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
pub(crate) fn parse_schema_message(bytes: &[u8]) -> Result<SchemaRef, String> {
    let message: Range<usize> = 8..bytes.len();
    let message = bytes.get(message).ok_or("its schema is cut off")?;
    let message = ipc::root_as_message(message).map_err(|error| format!("its schema: {error}"))?;
    let schema = message.header_as_schema().ok_or("its schema is none")?;
    let schema = Arc::new(crate::shard::schema_from(schema)?);
    RowCodec::new(schema.clone()).map_err(|error| error.to_string())?;
    Ok(schema)
}

fn parse_json<T: serde::de::DeserializeOwned>(key: &'static str, text: &str) -> Result<T, ManifestError> {
    serde_json::from_str(text).map_err(|error| ManifestError::Corrupt(format!("{key}: {error}")))
}

/// The same JSON with the keys of all objects in order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(sorted).collect(),
        Value::Object(fields) => {
            let fields: BTreeMap<&String, Value> =
                fields.iter().map(|(key, value)| (key, sorted(value))).collect();
            Value::Object(fields.into_iter().map(|(key, value)| (key.clone(), value)).collect())
        }
        other => other.clone(),
    }
}

/// Why some bytes are no manifest.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum ManifestError {
    /// The bytes are damaged, or were never a manifest. Fetch it again, from elsewhere.
    #[error("manifest is corrupt: {0}")]
    Corrupt(String),
    /// It is an Arrow file, but no manifest.
    #[error("an Arrow file, but no manifest: its schema lacks {key:?}")]
    NoManifest { key: &'static str },
    /// A later program wrote it. Use that or a later one.
    #[error("manifest has format {found:?}, and this program reads format {supported:?}: use a newer one")]
    TooNew { found: String, supported: &'static str },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::strategies::record_batch;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = ShardEntry> {
        let labels = prop::option::of(prop::collection::btree_map("[a-z\"\\\\é]{0,4}", any::<u64>(), 0..4));
        (any::<[u8; 32]>(), 1..u32::MAX, any::<u64>(), any::<u64>(), any::<[u8; 32]>(), any::<u128>(), labels)
            .prop_map(|(id, rows, bytes, row_bytes, root, sum, labels)| ShardEntry {
                id: ShardId(Digest(id)),
                rows,
                bytes,
                row_bytes,
                root: NodeHash(root),
                digest_sum: DigestSum(sum),
                labels,
            })
    }

    fn manifest() -> impl Strategy<Value = Manifest> {
        let shards = prop::collection::vec(entry(), 0..6);
        (record_batch(1), shards, any::<u64>(), "[a-z/]{1,9}", 0..3u64).prop_map(
            |(batch, shards, seed, name, skipped_count)| Manifest {
                schema: batch.schema(),
                shards,
                config: serde_json::json!({ "seed": seed, "mix": "random", "nested": { "b": [1, null], "a": name } }),
                skipped: (0..skipped_count.min(1))
                    .map(|_| Skipped { name: name.clone(), reason: "it is cut off".to_owned() })
                    .collect(),
                skipped_count,
                inputs: vec![InputDigest { name, bytes: seed, digest: Digest::of(b"input") }],
            },
        )
    }

    proptest! {
        #[test]
        fn manifests_come_back_as_they_were(manifest in manifest()) {
            let bytes = manifest.encode();
            let back = Manifest::decode(&bytes).expect("own manifest");
            prop_assert_eq!(&back, &manifest);
            prop_assert_eq!(back.id(), VersionId::of(&bytes), "and so does their name");
        }

        #[test]
        fn damaged_manifests_never_panic(manifest in manifest(), at: prop::sample::Index, to: u8, cut: prop::sample::Index) {
            let mut bytes = manifest.encode();
            prop_assert!(Manifest::decode(&bytes[..cut.index(bytes.len())]).is_err());
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(other) = Manifest::decode(&bytes) {
                other.sample_count();
                other.bytes();
                other.encode();
            }
        }

        #[test]
        fn garbage_is_no_manifest(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Manifest::decode(&bytes).is_err());
        }
    }

    fn small() -> Manifest {
        let metadata = BTreeMap::from([(CLASSES_KEY.to_owned(), r#"["cat","dog"]"#.to_owned())]);
        let label = Field::new("label", DataType::Int64, false).with_metadata(metadata);
        let shard = |content: &[u8], rows| ShardEntry {
            id: ShardId::of(content),
            rows,
            bytes: 1000,
            row_bytes: 900,
            root: NodeHash([7; 32]),
            digest_sum: DigestSum(u128::MAX),
            labels: Some(BTreeMap::from([("0".to_owned(), 1), (rows.to_string(), 2)])),
        };
        let config = serde_json::json!({ "b": 1, "a": 2 });
        Manifest::new(
            Arc::new(Schema::new(vec![label])),
            vec![shard(b"a", 1), shard(b"b", 2)],
            config,
            Vec::new(),
        )
    }

    #[test]
    fn totals_are_those_of_the_shards() {
        let manifest = small();
        assert_eq!((manifest.sample_count(), manifest.bytes(), manifest.row_bytes()), (3, 2000, 1800));
        assert_eq!(manifest.digest_sum(), DigestSum(u128::MAX - 1), "it wraps");
        let labels = manifest.labels().expect("both have labels");
        assert_eq!(
            labels.into_iter().collect::<Vec<_>>(),
            [("0".into(), 2), ("1".into(), 2), ("2".into(), 2)]
        );
        assert_eq!(manifest.label_column(), Some("label"));
        assert_eq!(manifest.class_names(), Some(vec!["cat".to_owned(), "dog".to_owned()]));
    }

    #[test]
    fn the_order_of_configuration_keys_does_not_matter() {
        let other = Manifest { config: serde_json::json!({ "a": 2, "b": 1 }), ..small() };
        assert_eq!(small().id(), other.id());
        let changed = Manifest { config: serde_json::json!({ "a": 2, "b": 2 }), ..small() };
        assert_ne!(small().id(), changed.id());
    }

    #[test]
    fn millions_of_shards_are_several_record_batches() {
        let shards = vec![small().shards[0].clone(); 10_000];
        let manifest = Manifest { shards, ..small() };
        let bytes = manifest.encode();
        assert_eq!(IpcFile::parse(&bytes).expect("own file").blocks.len(), 3);
        assert_eq!(Manifest::decode(&bytes).expect("own manifest"), manifest);
    }

    #[test]
    fn other_arrow_files_are_told_from_manifests() {
        let shard = {
            let column: ArrayRef = Arc::new(UInt32Array::from(vec![1]));
            let batch = RecordBatch::try_from_iter([("x", column)]).expect("one column");
            let mut writer = crate::ShardWriter::new(batch.schema()).expect("a plain schema");
            writer.push(&batch).expect("the batch fits");
            writer.finish().expect("there are rows").bytes
        };
        assert!(matches!(Manifest::decode(&shard), Err(ManifestError::NoManifest { .. })));
        // The format number is text of the schema, which lies in the file twice.
        let mut newer = small().encode();
        let key = FORMAT_KEY.as_bytes();
        let keys: Vec<_> =
            newer.windows(key.len()).enumerate().filter(|(_, at)| *at == key).map(|(at, _)| at).collect();
        assert_eq!(keys.len(), 2);
        for at in keys {
            let value = newer[at - 40..at + 40].windows(6).position(|bytes| bytes == b"\x01\0\0\x001\0");
            newer[at - 40 + value.expect("the value lies beside its key") + 4] = b'2';
        }
        let error = Manifest::decode(&newer).expect_err("a later format").to_string();
        assert!(error.contains("format \"2\""), "{error}");
    }
}
