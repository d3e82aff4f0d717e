//! Manifests: which shards make up one version of a dataset.
//!
//! A manifest is one Arrow IPC file with a row for each shard, so that any Arrow reader can query it. What concerns the
//! whole (format number, the samples' schema, the layout of samples in shards, totals) is metadata of its schema. Its bytes
//! are deterministic, and their digest names the version. What the samples were read from is no part of it: that is their
//! [provenance](crate::provenance).
//!
//! [`Manifest`] is all of it in memory. [`ManifestFile`] reads no more of it than is asked, so that opening a version of
//! millions of shards takes a few reads; [`tree_of`] is what lies beside the file so that each of them can be verified.

mod columns;
mod file;
mod footer;
mod index;
mod labels;
mod local;
#[cfg(test)]
mod tests;
mod tree;
mod verified;

use std::collections::BTreeMap;
use std::io;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use serde_json::Value;

use crate::digest::VersionId;
use crate::row::DigestSum;

pub use crate::shard::{LABEL_COLUMN, Labels, ShardEntry};
pub use file::ManifestFile;
pub use footer::{parse_schema_message, schema_message};
pub use index::Totals;
pub use local::LocalManifest;
pub use tree::tree_of;
pub use verified::ManifestBytes;

/// The metadata key of the label column whose value is a JSON array of class names.
pub const CLASSES_KEY: &str = "shardd.classes";

/// One version of a dataset.
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
/// use shardfmt::Manifest;
///
/// let config = serde_json::json!({ "mix": "sequential" });
/// let manifest = Manifest::new(rows.schema(), vec![finished.entry], config);
/// assert_eq!(manifest.sample_count(), 5);
///
/// let read = Manifest::decode(&manifest.encode())?;
/// assert_eq!(read.id(), manifest.id());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The schema of the samples.
    pub schema: SchemaRef,
    /// The shards in order: sample numbers count through them.
    pub shards: Vec<ShardEntry>,
    /// How the samples were laid into shards: with the samples, all that decides the shards.
    pub config: Value,
}

impl Manifest {
    /// A version of these shards.
    pub fn new(schema: SchemaRef, shards: Vec<ShardEntry>, config: Value) -> Self {
        Self { schema, shards, config }
    }

    /// The bytes of the manifest's file: the same for equal manifests.
    pub fn encode(&self) -> Vec<u8> {
        self.write().expect("a manifest's own columns fit its own schema, in memory")
    }

    fn write(&self) -> Result<Vec<u8>, ArrowError> {
        let mut texts = BTreeMap::from([
            (footer::FORMAT_KEY.to_owned(), footer::FORMAT.to_owned()),
            (footer::SCHEMA_KEY.to_owned(), footer::schema_text(&self.schema)),
            (footer::CONFIG_KEY.to_owned(), sorted(&self.config).to_string()),
        ]);
        // A manifest without statistics is written as before there were any, and so keeps its name.
        let indexed =
            !self.schema.fields().is_empty() && self.shards.iter().any(|shard| shard.statistics.is_some());
        let batches = index::cut(self, indexed);
        if indexed {
            let mut index = index::Index::of(self, &batches);
            index.totals.statistics = index::statistics(&self.shards);
            let index = index.texts().map_err(footer::external)?;
            texts.extend(index.map(|(key, text)| (key.to_owned(), text)));
        }
        let batches = batches
            .into_iter()
            .map(|batch| |columns| columns::record_batch(columns, &self.schema, &self.shards[batch]));
        footer::write(columns::fields(&self.schema, indexed), texts, indexed, batches)
    }

    /// Names the version: the digest of the encoding. A manifest that was read is named by the digest of the
    /// read bytes.
    pub fn id(&self) -> VersionId {
        VersionId::of(&self.encode())
    }

    /// How many samples there are.
    pub fn sample_count(&self) -> u64 {
        self.shards.iter().map(|shard| u64::from(shard.rows)).sum()
    }

    /// How many samples each shard has: what a plan is made from.
    pub fn shard_rows(&self) -> Vec<u32> {
        self.shards.iter().map(|shard| shard.rows).collect()
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
    pub fn labels(&self) -> Option<Labels> {
        let mut all = Labels::new();
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
        label_column(&self.schema)
    }

    /// The names of the classes, where the label column says them.
    pub fn class_names(&self) -> Option<Vec<String>> {
        class_names(&self.schema)
    }
}

fn label_column(schema: &Schema) -> Option<&str> {
    schema.field_with_name(LABEL_COLUMN).ok().map(|field| field.name().as_str())
}

fn class_names(schema: &Schema) -> Option<Vec<String>> {
    let field = schema.field_with_name(LABEL_COLUMN).ok()?;
    serde_json::from_str(field.metadata().get(CLASSES_KEY)?).ok()
}

/// The same JSON with the keys of all objects in order.
pub(crate) fn sorted(value: &Value) -> Value {
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
///
/// ```
/// use shardfmt::{Manifest, ManifestError};
///
/// assert!(matches!(Manifest::decode(b"no Arrow file"), Err(ManifestError::Corrupt(_))));
/// ```
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum ManifestError {
    /// The bytes are damaged, or were never a manifest. Fetch it again, from elsewhere.
    #[error("manifest is corrupt: {0}")]
    Corrupt(String),
    /// The bytes cannot be had. Try again, or elsewhere.
    #[error("manifest cannot be read")]
    Unread { source: io::Error },
    /// It is an Arrow file, but no manifest.
    #[error("an Arrow file, but not a manifest: its schema lacks {key:?}")]
    NoManifest { key: &'static str },
    /// A later program wrote it. Use that or a later one.
    #[error("manifest has format {found:?}, and this program reads format {supported:?}: use a newer one")]
    TooNew { found: String, supported: &'static str },
    /// It lists no such shard.
    #[error("there is no shard {index} in the manifest, which lists {shards}")]
    NoSuchShard { index: u64, shards: u64 },
}
