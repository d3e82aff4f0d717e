//! The kinds of input, and the names of their files.

use serde::{Deserialize, Serialize};

/// Endings of the names of images that we read.
const IMAGE_ENDINGS: &[&str] = &[".png", ".jpg", ".jpeg", ".webp", ".bmp"];

/// A kind of input.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::{IngestConfig, Inputs, Kind, Source};
///
/// let config = IngestConfig { format: Some(Kind::JsonLines), ..IngestConfig::default() };
/// let source = Source::new(Inputs::in_memory("numbers", "{\"n\": 1}\n"), &config)?;
/// assert_eq!(source.kind(), Kind::JsonLines);
/// assert_eq!(source.kind().description(), "JSON Lines");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// Parquet files.
    Parquet,
    /// Arrow IPC, as files (Feather) or streams.
    Arrow,
    /// Comma-separated values with a header line.
    Csv,
    /// Tab-separated values with a header line.
    Tsv,
    /// JSON Lines: an object on each line.
    #[serde(rename = "jsonl")]
    JsonLines,
    /// Arrays of NumPy: `.npy`, and `.npz` with several.
    Numpy,
    /// libsvm or SVMlight: labels and the features that are not zero.
    Libsvm,
    /// Plain text: documents.
    Text,
    /// A directory of images, whose folders are the labels.
    Images,
    /// Tar archives of images, plain or compressed.
    Archive,
    /// Tar archives of samples whose members share a key, plain or compressed.
    #[serde(rename = "webdataset")]
    WebDataset,
    /// A directory of MosaicML shards with its index.
    Mds,
    /// A directory of LitData's chunks with its index.
    #[serde(rename = "litdata")]
    LitData,
    /// TFRecord files of `tf.train.Example`.
    #[serde(rename = "tfrecord")]
    TfRecord,
}

impl Kind {
    /// All kinds there are.
    pub const ALL: &[Kind] = &[
        Kind::Parquet,
        Kind::Arrow,
        Kind::Csv,
        Kind::Tsv,
        Kind::JsonLines,
        Kind::Numpy,
        Kind::Libsvm,
        Kind::Text,
        Kind::Images,
        Kind::Archive,
        Kind::WebDataset,
        Kind::Mds,
        Kind::LitData,
        Kind::TfRecord,
    ];

    /// Its name.
    pub fn description(self) -> &'static str {
        match self {
            Kind::Parquet => "Parquet",
            Kind::Arrow => "Arrow",
            Kind::Csv => "CSV",
            Kind::Tsv => "TSV",
            Kind::JsonLines => "JSON Lines",
            Kind::Numpy => "NumPy",
            Kind::Libsvm => "libsvm",
            Kind::Text => "text",
            Kind::Images => "images",
            Kind::Archive => "archive of images",
            Kind::WebDataset => "WebDataset",
            Kind::Mds => "MDS",
            Kind::LitData => "LitData",
            Kind::TfRecord => "TFRecord",
        }
    }

    /// The endings of the names of its files, in lower case; text and TFRecord may have `.gz` or `.zst` after it.
    pub(crate) fn endings(self) -> &'static [&'static str] {
        match self {
            Kind::Parquet => &[".parquet", ".parq", ".pq"],
            Kind::Arrow => &[".arrow", ".feather", ".ipc", ".arrows"],
            Kind::Csv => &[".csv"],
            Kind::Tsv => &[".tsv"],
            Kind::JsonLines => &[".jsonl", ".ndjson"],
            Kind::Numpy => &[".npy", ".npz"],
            Kind::Libsvm => &[".libsvm", ".svm", ".svmlight"],
            Kind::Text => &[".txt"],
            Kind::Images => IMAGE_ENDINGS,
            Kind::Archive | Kind::WebDataset => &[".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"],
            Kind::Mds => &[".mds", ".mds.zstd", ".mds.gz"],
            Kind::LitData => &[".bin"],
            Kind::TfRecord => &[".tfrecord", ".tfrecords"],
        }
    }

    /// Whether its files are read from their beginning to their end, so that they may be compressed.
    fn may_be_compressed(self) -> bool {
        let is_text = matches!(self, Kind::Csv | Kind::Tsv | Kind::JsonLines | Kind::Libsvm | Kind::Text);
        is_text || self == Kind::TfRecord
    }

    /// Whether a file of this name is of this kind.
    pub(crate) fn names(self, name: &str) -> bool {
        let stem = [".gz", ".zst"].iter().find_map(|ending| without_ending(name, ending));
        let name = stem.filter(|_| self.may_be_compressed()).unwrap_or(name);
        let name = match self {
            Kind::TfRecord => without_part(name),
            // Anything may end in `.bin`.
            Kind::LitData if !name.rsplit('/').next().is_some_and(|name| name.starts_with("chunk-")) => {
                return false;
            }
            _ => name,
        };
        self.endings().iter().any(|ending| without_ending(name, ending).is_some())
    }
}

/// The part before the ending, in whatever case it is written.
fn without_ending<'n>(name: &'n str, ending: &str) -> Option<&'n str> {
    let (stem, found) = name.split_at_checked(name.len().checked_sub(ending.len())?)?;
    found.eq_ignore_ascii_case(ending).then_some(stem)
}

/// The part before a number such as `-00000-of-00008`, which TensorFlow puts behind the ending.
fn without_part(name: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let stem = name
        .rsplit_once("-of-")
        .filter(|(_, all)| is_number(all))
        .and_then(|(rest, _)| rest.rsplit_once('-'));
    stem.filter(|(_, part)| is_number(part)).map_or(name, |(stem, _)| stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_endings_compressed_or_numbered() {
        for name in [
            "a.tfrecord",
            "a.TFRecords",
            "a.tfrecord.gz",
            "a/b.tfrecord-00003-of-00010",
            "a.tfrecord-0-of-1.zst",
        ] {
            assert!(Kind::TfRecord.names(name), "{name}");
        }
        for name in [
            "tfrecord",
            "a.tfrecord-of-10",
            "a.tfrecord-x-of-1",
            "a.csv",
            "a-00000-of-00001",
            "a.tfrecord-1-of-",
        ] {
            assert!(!Kind::TfRecord.names(name), "{name}");
        }
        assert!(Kind::LitData.names("x/chunk-0-1.zstd.bin") && !Kind::LitData.names("chunk-0/batch.bin"));
        assert!(Kind::Csv.names("a.csv.gz") && !Kind::Parquet.names("a.parquet.gz"));
    }
}
