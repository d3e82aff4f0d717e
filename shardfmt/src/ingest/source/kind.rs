//! Which kind of input some files are: by their first bytes where those are telling, by their names otherwise.

use serde::{Deserialize, Serialize};

use super::compressed::Compression;
use super::csv::CsvSource;
use super::folder::FolderSource;
use super::ipc::IpcSource;
use super::json::JsonSource;
use super::libsvm::LibsvmSource;
use super::mds::MdsSource;
use super::numpy::NumpySource;
use super::parquet::ParquetSource;
use super::text::TextSource;
use super::{Format, archive, images, tars};
use crate::ingest::config::Documents;
use crate::ingest::input::{InputFile, Inputs};
use crate::ingest::{IngestConfig, IngestError};

/// A kind of input.
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
    ];

    /// What it is called.
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
        }
    }

    /// The endings of the names of its files, in lower case; text may have `.gz` or `.zst` after it.
    pub(super) fn endings(self) -> &'static [&'static str] {
        match self {
            Kind::Parquet => &[".parquet", ".parq", ".pq"],
            Kind::Arrow => &[".arrow", ".feather", ".ipc", ".arrows"],
            Kind::Csv => &[".csv"],
            Kind::Tsv => &[".tsv"],
            Kind::JsonLines => &[".jsonl", ".ndjson"],
            Kind::Numpy => &[".npy", ".npz"],
            Kind::Libsvm => &[".libsvm", ".svm", ".svmlight"],
            Kind::Text => &[".txt"],
            Kind::Images => images::ENDINGS,
            Kind::Archive | Kind::WebDataset => &[".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"],
            Kind::Mds => &[".mds", ".mds.zstd", ".mds.gz"],
        }
    }

    /// Whether its files are text, which may be compressed.
    fn is_text(self) -> bool {
        matches!(self, Kind::Csv | Kind::Tsv | Kind::JsonLines | Kind::Libsvm | Kind::Text)
    }

    /// Whether a file of this name is of this kind.
    pub(super) fn names(self, name: &str) -> bool {
        let stem = [".gz", ".zst"].iter().find_map(|ending| without_ending(name, ending));
        let name = stem.filter(|_| self.is_text()).unwrap_or(name);
        self.endings().iter().any(|ending| without_ending(name, ending).is_some())
    }

    /// What the input is: what the user says, or what it looks like.
    pub(super) fn of(inputs: &Inputs, config: &IngestConfig) -> Result<Kind, IngestError> {
        match (config.format, inputs.files.as_slice()) {
            (Some(kind), _) => Ok(kind),
            (None, [file]) if inputs.is_file => Self::of_file(file),
            (None, files) => Self::of_directory(inputs, files),
        }
    }

    /// Those of the files that are of this kind, and how many others there are. A single file always is, and so are all,
    /// if the user said so and the names say nothing.
    pub(super) fn files(self, inputs: Inputs, config: &IngestConfig) -> (Vec<InputFile>, u64) {
        let count = inputs.files.len();
        let all = inputs.is_file
            || config.format.is_some() && !inputs.files.iter().any(|file| self.names(&file.name));
        let files: Vec<_> = inputs.files.into_iter().filter(|file| all || self.names(&file.name)).collect();
        let others = (count - files.len()) as u64;
        (files, others)
    }

    pub(super) fn open(self, inputs: Inputs, config: &IngestConfig) -> Result<Box<dyn Format>, IngestError> {
        self.check_settings(config)?;
        let is_archive = matches!(self, Kind::Archive | Kind::WebDataset);
        if let (true, Some(under), false) = (inputs.is_file, &inputs.under, is_archive) {
            return Err(IngestError::NotUnder {
                path: inputs.path,
                under: under.clone(),
                there: "it is a single file, leave `under` out".to_owned(),
            });
        }
        let has_images = is_archive || matches!(self, Kind::Images | Kind::Mds);
        if config.decode && !has_images {
            return Err(IngestError::Config {
                setting: "decode",
                reason: format!("{} has no encoded images to find", self.description()),
                way_out: "leave it out",
            });
        }
        Ok(match self {
            Kind::Parquet => Box::new(ParquetSource::open(inputs, config)?),
            Kind::Arrow => Box::new(IpcSource::open(inputs, config)?),
            Kind::Csv | Kind::Tsv => Box::new(CsvSource::open(self, inputs, config)?),
            Kind::JsonLines => Box::new(JsonSource::open(inputs, config)?),
            Kind::Numpy => Box::new(NumpySource::open(inputs, config)?),
            Kind::Libsvm => Box::new(LibsvmSource::open(inputs, config)?),
            Kind::Text => Box::new(TextSource::open(inputs, config)?),
            Kind::Images => Box::new(FolderSource::open(inputs, config)?),
            Kind::Archive | Kind::WebDataset => archive::open(inputs, config)?,
            Kind::Mds => Box::new(MdsSource::open(inputs, config)?),
        })
    }

    /// Refuses settings that are about other kinds: nobody should think that they did something.
    pub(super) fn check_settings(self, config: &IngestConfig) -> Result<(), IngestError> {
        let is_typed =
            matches!(self, Kind::Csv | Kind::Tsv | Kind::JsonLines | Kind::Archive | Kind::WebDataset);
        let is_other = self != Kind::Text;
        let of_others = [
            ("types", !is_typed && !config.types.is_empty()),
            ("tokenizer", is_other && config.tokenizer.is_some()),
            ("sequence_length", is_other && config.sequence_length.is_some()),
            ("documents", is_other && config.documents != Documents::default()),
        ];
        match of_others.into_iter().find(|(_, is_set)| *is_set) {
            None => Ok(()),
            Some((setting, _)) => Err(IngestError::Config {
                setting,
                reason: format!("it means nothing for {}", self.description()),
                way_out: "leave it out, or say with `format` what the files are",
            }),
        }
    }

    /// What a single file is.
    fn of_file(file: &InputFile) -> Result<Kind, IngestError> {
        let head = file.head(512)?;
        let magic: [(&[u8], Kind); 4] = [
            (b"PAR1", Kind::Parquet),
            (b"ARROW1", Kind::Arrow),
            (b"\xff\xff\xff\xff", Kind::Arrow),
            (b"\x93NUMPY", Kind::Numpy),
        ];
        if let Some((_, kind)) = magic.iter().find(|(magic, _)| head.starts_with(magic)) {
            return Ok(*kind);
        }
        let named = |kind: &&Kind| **kind != Kind::Images && kind.names(&file.name);
        let named = Kind::ALL.iter().find(named).copied();
        if tars::is_tar(&head) {
            return Ok(Kind::Archive);
        }
        if let Some(kind) = named {
            return Ok(kind);
        }
        if Compression::of(&head).is_some() && tars::is_compressed_tar(file)? {
            return Ok(Kind::Archive);
        }
        let found = if Kind::Images.names(&file.name) {
            "a single image is no dataset".to_owned()
        } else if head.is_empty() {
            "the file is empty".to_owned()
        } else {
            match file.path.extension() {
                Some(extension) => format!("unknown kind of file (.{})", extension.to_string_lossy()),
                None => "unknown kind of file".to_owned(),
            }
        };
        Err(IngestError::Unknown { path: file.path.clone(), found })
    }

    /// What the files of a directory are; files of no kind are passed over.
    fn of_directory(inputs: &Inputs, files: &[InputFile]) -> Result<Kind, IngestError> {
        let first_of = |kind: Kind| Some((kind, files.iter().find(|file| kind.names(&file.name))?));
        // Notes lie beside any data: they are the data only where there is no other.
        let is_telling = |kind: &Kind| !matches!(kind, Kind::WebDataset | Kind::Text);
        let mut kinds = Kind::ALL.iter().copied().filter(is_telling).filter_map(first_of);
        match (kinds.next().or_else(|| first_of(Kind::Text)), kinds.next()) {
            (Some((kind, _)), None) => Ok(kind),
            (Some((_, first)), Some((_, second))) => Err(IngestError::Ambiguous {
                path: inputs.path.clone(),
                first: first.name.clone(),
                second: second.name.clone(),
            }),
            (None, _) => {
                let found = format!("no samples found, {}", describe(files));
                Err(IngestError::Unknown { path: inputs.path.clone(), found })
            }
        }
    }
}

/// What comes before the ending, in whatever case it is written.
fn without_ending<'n>(name: &'n str, ending: &str) -> Option<&'n str> {
    let (stem, found) = name.split_at_checked(name.len().checked_sub(ending.len())?)?;
    found.eq_ignore_ascii_case(ending).then_some(stem)
}

/// What is there, for someone who expected samples.
fn describe(files: &[InputFile]) -> String {
    match files {
        [] => "the directory is empty".to_owned(),
        [file] => format!("only {}", file.name),
        [file, rest @ ..] => format!("only {} and {} more files", file.name, rest.len()),
    }
}
