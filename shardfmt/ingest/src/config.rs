//! What decides the bytes of a version, apart from the input itself. Knows nothing of threads, paths or speed: two
//! runs with equal settings and equal input make the same version.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};
use shardd_packing::chat::Now;
use shardd_packing::{Long, Packing, Strategy};
use shardfmt::row::RowDigest;
use shardfmt::shard::Compression;
use shardfmt::size::ByteSize;

use super::IngestError;
use super::image_size::ImageSize;
use super::kind::Kind;
use super::windows::Windows;

/// A sequence of tokens is a sample, and held in memory as one.
const LONGEST_SEQUENCE: u32 = 1 << 24;

/// In which order the rows of the input are laid into shards.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kept.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let sink = Kept::default();
/// use shardd_ingest::{IngestConfig, IngestError, Inputs, Mix, NoProgress, Resources, Source, ingest};
///
/// let csv: String = (0..1000).fold("n\n".into(), |csv, n| csv + &format!("{n}\n"));
/// let shards = |mix, seed| {
///     let config = IngestConfig { mix, seed, ..IngestConfig::default() };
///     let source = Source::new(Inputs::in_memory("n.csv", csv.clone()), &config)?;
///     let manifest = ingest(source, &config, &Resources::threads(1), &sink, &NoProgress)?.manifest;
///     Ok::<_, IngestError>(manifest.shards)
/// };
/// assert_eq!(shards(Mix::Sequential, 0)?, shards(Mix::Sequential, 1)?);
/// assert_ne!(shards(Mix::Random, 0)?, shards(Mix::Random, 1)?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// A keyed, uniform permutation of the whole input: every shard is a fair sample of it.
    #[default]
    Random,
    /// Random, but each class of this column is spread as evenly as it can be: any two shards differ by at most one row
    /// of each. Missing values are a class too.
    Stratified(String),
    /// The order of the input: files by name, rows as they lie in each.
    Sequential,
    /// The order of a keyed hash of the rows, cut where equal parts of its range end. Random as well, and the only mix that does
    /// not depend on the order of the input: workers of a distributed engine deal rows to shards by it, each by itself. Shards
    /// differ in size as those of independent draws do.
    Hash,
}

/// The action on input that cannot be read: a damaged file, a line or member that makes no row.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::{Ingest, IngestConfig, IngestError, Inputs, NoProgress, OnError, Resources, Source};
///
/// let lines = "{\"n\": 1}\nno JSON\n{\"n\": 2}\n";
/// let count = |on_error| {
///     let config = IngestConfig { on_error, ..IngestConfig::default() };
///     let source = Source::new(Inputs::in_memory("n.jsonl", lines), &config)?;
///     let read = Ingest::read(source, &config, &[], &Resources::threads(1), &NoProgress)?;
///     Ok::<_, IngestError>(read.sample_count())
/// };
/// assert!(count(OnError::Fail).is_err());
/// assert_eq!(count(OnError::Skip)?, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnError {
    /// Stop at the first, with its name.
    #[default]
    Fail,
    /// Leave it out, count it, and list it in the manifest.
    Skip,
}

/// The unit of a document in a text file.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::{Documents, Ingest, IngestConfig, Inputs, NoProgress, Resources, Source};
///
/// for (documents, count) in [(Documents::File, 1), (Documents::Line, 4), (Documents::BlankLine, 2)] {
///     let config = IngestConfig { documents, ..IngestConfig::default() };
///     let source = Source::new(Inputs::in_memory("poem.txt", "one\ntwo\n\nthree\n"), &config)?;
///     let read = Ingest::read(source, &config, &[], &Resources::threads(1), &NoProgress)?;
///     assert_eq!(read.sample_count(), count);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Documents {
    /// A file, just as it is.
    #[default]
    File,
    /// A line, without its end. An empty line is an empty document.
    Line,
    /// Lines up to the next blank one.
    BlankLine,
}

/// The tokens of a conversation that have a loss: those with a 1 in the column `loss_mask`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::{IngestConfig, Loss};
///
/// let config: IngestConfig = serde_json::from_str(r#"{"chat_template": "tokenizer_config.json"}"#)?;
/// assert_eq!(config.loss, Loss::Assistant);
/// let config: IngestConfig = serde_json::from_str(r#"{"loss": "all"}"#)?;
/// assert_eq!(config.loss, Loss::All);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// Those of the assistant: in generation blocks of the template, or else between the text of the messages before, with the
    /// generation prompt, and the end of each message of the assistant.
    #[default]
    Assistant,
    /// All of them.
    All,
}

/// The separator of the fields of a CSV file.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::{Delimiter, IngestConfig, Inputs, Source};
///
/// let config = IngestConfig { delimiter: Some(Delimiter::Semicolon), ..IngestConfig::default() };
/// let source = Source::new(Inputs::in_memory("words.csv", "word;label\ncat;0\n"), &config)?;
/// assert_eq!(source.schema().fields().len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each name is its format")]
pub enum Delimiter {
    Comma,
    Semicolon,
    Tab,
    Pipe,
}

impl Delimiter {
    pub(super) fn byte(self) -> u8 {
        match self {
            Delimiter::Comma => b',',
            Delimiter::Semicolon => b';',
            Delimiter::Tab => b'\t',
            Delimiter::Pipe => b'|',
        }
    }
}

/// Settings of an ingest. Recorded in the provenance with the shard size that was used, and those of the layout in the
/// manifest.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::{IngestConfig, Inputs, Source};
/// use shardfmt::arrow::datatypes::DataType;
///
/// let config = IngestConfig {
///     columns: Some(vec!["label".into()]),
///     types: [("label".into(), "Int32".into())].into(),
///     ..IngestConfig::default()
/// };
/// let source = Source::new(Inputs::in_memory("words.csv", "word,label\ncat,0\ndog,1\n"), &config)?;
/// assert_eq!(source.schema().fields().len(), 1);
/// assert_eq!(source.schema().field(0).data_type(), &DataType::Int32);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IngestConfig {
    /// Order of the rows. Default: random.
    pub mix: Mix,
    /// Key of the random order; without meaning for [`Mix::Sequential`]. Default 0.
    pub seed: u64,
    /// Size that shards aim at, in canonical bytes. Default: a 64th of the data, between 1 and 64 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard_size: Option<ByteSize>,
    /// How the bodies of shards are compressed. Default: not.
    #[serde(skip_serializing_if = "is_default")]
    pub compression: Compression,
    /// Read only this folder of a directory or an archive, such as `train`. Default: all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub under: Option<String>,
    /// Keep only the rows whose hash falls in this range. Default: all rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub take: Option<HashRange>,
    /// The kind of the files, where their names and first bytes say another or none. Default: the kind they
    /// look like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<Kind>,
    /// Keep only these columns, in this order. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// Types of columns whose type would be inferred (CSV, JSON Lines, TFRecord), as Arrow writes them: `Int32`, `Float32`,
    /// `Utf8`. Default: what their values look like.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<String, String>,
    /// The separator of the fields of CSV files. Default: tabs in `.tsv`, else commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<Delimiter>,
    /// The action on input that cannot be read. Default: stop.
    #[serde(skip_serializing_if = "is_default")]
    pub on_error: OnError,
    /// A `tokenizer.json` of Hugging Face, or ranks of tiktoken, to make tokens of text. The record has its name; its digest is
    /// among those of the inputs. Default: text stays text, and a sequence is one of bytes.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "file_name")]
    pub tokenizer: Option<PathBuf>,
    /// Pack text into sequences of exactly this many tokens. Default: one sample for each document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence_length: Option<u32>,
    /// Which documents share a sequence. Default: they are joined, and cut where a sequence is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packing: Option<Strategy>,
    /// What happens with documents that are longer than a sequence, where whole documents are packed. Default: they are cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_documents: Option<Long>,
    /// Make tokens of this column of a table. Default: of text files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_column: Option<String>,
    /// A chat template, to make tokens of conversations with a loss mask: a `tokenizer_config.json`, or a
    /// `chat_template.jinja` beside one. The record has its name; digests are among those of the inputs. Default: rows are no
    /// conversations.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "file_name")]
    pub chat_template: Option<PathBuf>,
    /// The column of the messages of a conversation. Default: `messages`, or else `conversations`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_column: Option<String>,
    /// Which tokens of a conversation have a loss. Default: those of the assistant.
    #[serde(skip_serializing_if = "is_default")]
    pub loss: Loss,
    /// The date that a chat template gets from `strftime_now`. Default: a template that asks for it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_date: Option<Now>,
    /// Samples have the rows around their own. Default: their own alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Windows>,
    /// The unit of a document in text files. Default: a file.
    #[serde(skip_serializing_if = "is_default")]
    pub documents: Documents,
    /// Decode images, to tensors of height x width x 3 bytes (RGB). Default: they stay encoded, untouched.
    #[serde(skip_serializing_if = "is_default")]
    pub decode: bool,
    /// Bring decoded images to this size. Default: as they are, which must be one size for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resize: Option<ImageSize>,
    /// Whether a sample of a WebDataset may lack a member that others have, and have a null there. Default: such a
    /// sample cannot be read.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_missing: bool,
}

impl IngestConfig {
    /// As a provenance records them.
    pub(crate) fn record(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("settings are plain values")
    }

    /// The folder to read, without slashes at its ends, checked to lie inside the source.
    pub(super) fn folder(&self) -> Result<Option<String>, IngestError> {
        folder(self.under.as_deref())
    }

    /// Refuses settings that can produce nothing.
    pub(super) fn check(&self) -> Result<(), IngestError> {
        if self.shard_size.is_some_and(|size| size.0 == 0) {
            return Err(IngestError::Config {
                setting: "shard_size",
                reason: "a shard of 0 bytes holds no row".to_owned(),
                way_out: "leave it out, or give a size such as \"4MiB\"",
            });
        }
        if self.resize.is_some() && !self.decode {
            return Err(IngestError::Config {
                setting: "resize",
                reason: "images that stay encoded keep their size".to_owned(),
                way_out: "decode them (`decode`), or leave it out",
            });
        }
        if let Some(take) = &self.take
            && take.to.is_some_and(|to| to <= take.from)
        {
            return Err(IngestError::Config {
                setting: "take",
                reason: "the range is empty".to_owned(),
                way_out: "`to` must be above `from`",
            });
        }
        if let Some(length) = self.sequence_length
            && !(1..=LONGEST_SEQUENCE).contains(&length)
        {
            return Err(IngestError::Config {
                setting: "sequence_length",
                reason: format!("{length} is no length of a sequence"),
                way_out: "give the number of tokens of a sample, from 1 to 16777216, such as 1024",
            });
        }
        let of_packing = [
            ("packing", self.packing.is_some() && self.sequence_length.is_none()),
            ("long_documents", self.long_documents.is_some() && self.packed().is_none()),
        ];
        if let Some((setting, _)) = of_packing.into_iter().find(|(_, is_set)| *is_set) {
            return Err(IngestError::Config {
                setting,
                reason: "whole documents are packed into sequences, and there are none".to_owned(),
                way_out: "give `sequence_length`, and a `packing` other than concat_then_split; or leave it out",
            });
        }
        if self.text_column.is_some() && self.tokenizer.is_none() && self.sequence_length.is_none() {
            return Err(IngestError::Config {
                setting: "text_column",
                reason: "its text becomes tokens, and no tokenizer makes them".to_owned(),
                way_out: "give a `tokenizer`, or a `sequence_length` of bytes; or leave it out",
            });
        }
        self.window.iter().try_for_each(Windows::check)?;
        if self.window.is_some() && self.on_error == OnError::Skip {
            return Err(IngestError::Config {
                setting: "window",
                reason: "a row that cannot be read would be missing in the windows of others".to_owned(),
                way_out: "leave out `on_error` skip",
            });
        }
        self.check_chat()
    }

    fn check_chat(&self) -> Result<(), IngestError> {
        let refused = |setting, reason: &str, way_out| {
            Err(IngestError::Config { setting, reason: reason.to_owned(), way_out })
        };
        let of_chat = [
            ("messages_column", self.messages_column.is_some()),
            ("loss", self.loss != Loss::default()),
            ("chat_date", self.chat_date.is_some()),
        ];
        match of_chat.into_iter().find(|(_, is_set)| *is_set && self.chat_template.is_none()) {
            Some((setting, _)) => refused(
                setting,
                "it is about conversations, and no chat template makes text of them",
                "give a `chat_template`, or leave it out",
            ),
            None if self.chat_template.is_some() && self.tokenizer.is_none() => refused(
                "chat_template",
                "its text becomes tokens, and no tokenizer makes them",
                "give the `tokenizer` of the model",
            ),
            None if self.chat_template.is_some() && self.text_column.is_some() => refused(
                "text_column",
                "the rows are conversations, whose text the chat template makes",
                "name their column with `messages_column`, or leave `chat_template` out",
            ),
            None => Ok(()),
        }
    }
}

impl IngestConfig {
    /// How whole documents are packed, if they are.
    pub(super) fn packed(&self) -> Option<Packing> {
        let strategy = self.packing.filter(|strategy| *strategy != Strategy::ConcatThenSplit)?;
        let long = self.long_documents.unwrap_or_default();
        Some(Packing { strategy, long, ..Packing::new(self.sequence_length?) })
    }
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Writes only the name of a file: where it lies decides nothing.
fn file_name<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    let name = path.as_deref().and_then(Path::file_name).unwrap_or_default();
    serializer.serialize_str(&name.to_string_lossy())
}

/// A folder of a source, without slashes at its ends, checked to lie inside.
pub(super) fn folder(under: Option<&str>) -> Result<Option<String>, IngestError> {
    let Some(under) = under else { return Ok(None) };
    let steps: Vec<&str> = under.split('/').filter(|step| !step.is_empty() && *step != ".").collect();
    if under.starts_with('/') || steps.contains(&"..") {
        return Err(IngestError::Config {
            setting: "under",
            reason: format!("{under:?} leaves the source"),
            way_out: "give a folder relative to it, such as \"train\"",
        });
    }
    Ok((!steps.is_empty()).then(|| steps.join("/")))
}

/// A part of the rows, chosen by content: those whose keyed 64-bit hash lies in `[from, to)`.
///
/// Ranges of one seed that do not overlap share no row, and ranges that cover `0..2^64` lose none: the way to make a
/// training set and its hold-out from one source. Equal rows always fall on the same side.
///
/// ```
/// use shardd_ingest::HashRange;
/// use shardfmt::RowDigest;
///
/// let (training, held_out) = (HashRange::parts(7, 0, 9, 10), HashRange::parts(7, 9, 10, 10));
/// for row in (0..100_u8).map(|n| RowDigest::of(&[n])) {
///     assert_ne!(training.holds(&row), held_out.holds(&row));
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HashRange {
    /// Key of the hash. Ranges are only disjoint under the same seed.
    pub seed: u64,
    /// First hash kept.
    pub from: u64,
    /// First hash no longer kept; `None` is 2^64, so that the last range loses nothing.
    pub to: Option<u64>,
}

impl HashRange {
    /// Parts `from..to` of `of` equal parts: `parts(7, 0, 9, 10)` keeps nine tenths, `parts(7, 9, 10, 10)` the rest.
    ///
    /// # Panics
    /// Unless `from < to <= of`.
    pub fn parts(seed: u64, from: u32, to: u32, of: u32) -> HashRange {
        assert!(from < to && to <= of, "parts {from}..{to} of {of}");
        let bound = |part: u32| (u128::from(part) << 64).div_ceil(u128::from(of));
        let first = u64::try_from(bound(from)).expect("from < of, so below 2^64");
        HashRange { seed, from: first, to: u64::try_from(bound(to)).ok() }
    }

    /// Whether a row belongs to the range.
    pub fn holds(&self, row: &RowDigest) -> bool {
        let mut hasher = blake3::Hasher::new_derive_key("shardfmt 2026 take v1");
        hasher.update(&self.seed.to_le_bytes());
        hasher.update(&row.0);
        let mut first = [0; 8];
        hasher.finalize_xof().fill(&mut first);
        let hash = u64::from_le_bytes(first);
        self.from <= hash && self.to.is_none_or(|to| hash < to)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_are_disjoint_and_cover(seed: u64, row: [u8; 16], of in 1..40u32) {
            let row = RowDigest(row);
            let holding = (0..of).filter(|&part| HashRange::parts(seed, part, part + 1, of).holds(&row)).count();
            prop_assert_eq!(holding, 1);
        }
    }

    #[test]
    fn settings_round_trip_and_refuse_unknown_keys() {
        let config = IngestConfig {
            shard_size: Some(ByteSize(1 << 20)),
            take: Some(HashRange::parts(1, 9, 10, 10)),
            under: Some("train".to_owned()),
            ..IngestConfig::default()
        };
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<IngestConfig>(&text).unwrap(), config);
        assert!(serde_json::from_str::<IngestConfig>(r#"{"mx":"random"}"#).is_err());
    }

    #[test]
    fn a_folder_outside_the_source_is_refused() {
        let under =
            |text: &str| IngestConfig { under: Some(text.to_owned()), ..IngestConfig::default() }.folder();
        assert_eq!(under("./train/images/").unwrap().as_deref(), Some("train/images"));
        assert_eq!(under(".").unwrap(), None);
        assert!(under("../other").is_err());
        assert!(under("/etc").is_err());
    }
}
