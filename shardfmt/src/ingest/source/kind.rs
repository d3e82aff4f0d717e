//! Which kind of input some files are: by their first bytes where those are telling, by their names otherwise.

use serde::{Deserialize, Serialize};

use super::archive::ArchiveSource;
use super::csv::CsvSource;
use super::folder::FolderSource;
use super::parquet::ParquetSource;
use super::{Format, images};
use crate::ingest::input::{InputFile, Inputs};
use crate::ingest::{IngestConfig, IngestError};

/// A kind of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// Parquet files.
    Parquet,
    /// Comma-separated values with a header line.
    Csv,
    /// Tab-separated values with a header line.
    Tsv,
    /// A directory of images, whose folders are the labels.
    Images,
    /// A tar archive of images, plain or compressed.
    Archive,
}

impl Kind {
    /// All kinds there are.
    pub const ALL: &[Kind] = &[Kind::Parquet, Kind::Csv, Kind::Tsv, Kind::Images, Kind::Archive];

    /// What it is called.
    pub fn description(self) -> &'static str {
        match self {
            Kind::Parquet => "Parquet",
            Kind::Csv => "CSV",
            Kind::Tsv => "TSV",
            Kind::Images => "images",
            Kind::Archive => "archive of images",
        }
    }

    /// The endings of the names of its files, in lower case.
    pub(super) fn endings(self) -> &'static [&'static str] {
        match self {
            Kind::Parquet => &[".parquet", ".parq", ".pq"],
            Kind::Csv => &[".csv"],
            Kind::Tsv => &[".tsv"],
            Kind::Images => images::ENDINGS,
            Kind::Archive => &[".tar", ".tar.gz", ".tgz"],
        }
    }

    /// Whether a file of this name is of this kind.
    pub(super) fn names(self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        self.endings().iter().any(|ending| name.ends_with(ending))
    }

    /// What the input is: what the user says, or what it looks like.
    pub(super) fn of(inputs: &Inputs, config: &IngestConfig) -> Result<Kind, IngestError> {
        match (config.format, inputs.files.as_slice()) {
            (Some(kind), _) => Ok(kind),
            (None, [file]) if inputs.is_file => Self::of_file(file),
            (None, files) => Self::of_directory(inputs, files),
        }
    }

    pub(super) fn open(self, inputs: Inputs, config: &IngestConfig) -> Result<Box<dyn Format>, IngestError> {
        if let (true, Some(under), false) = (inputs.is_file, &inputs.under, self == Kind::Archive) {
            return Err(IngestError::NotUnder {
                path: inputs.path,
                under: under.clone(),
                there: "it is a single file, leave `under` out".to_owned(),
            });
        }
        Ok(match self {
            Kind::Parquet => Box::new(ParquetSource::open(inputs, config)?),
            Kind::Csv => Box::new(CsvSource::open(inputs, b',')?),
            Kind::Tsv => Box::new(CsvSource::open(inputs, b'\t')?),
            Kind::Images => Box::new(FolderSource::open(inputs)?),
            Kind::Archive => Box::new(ArchiveSource::open(inputs)?),
        })
    }

    /// What a single file is.
    fn of_file(file: &InputFile) -> Result<Kind, IngestError> {
        let head = file.head(512)?;
        if head.starts_with(b"PAR1") {
            return Ok(Kind::Parquet);
        }
        if head.starts_with(&[0x1f, 0x8b]) || head.get(257..262) == Some(b"ustar") {
            return Ok(Kind::Archive);
        }
        let named = |kind: &&Kind| **kind != Kind::Images && kind.names(&file.name);
        if let Some(kind) = Kind::ALL.iter().find(named) {
            return Ok(*kind);
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
        let mut kinds = [Kind::Parquet, Kind::Images].into_iter().filter_map(first_of);
        match (kinds.next(), kinds.next()) {
            (Some((kind, _)), None) => Ok(kind),
            (Some((_, first)), Some((_, second))) => Err(IngestError::Ambiguous {
                path: inputs.path.clone(),
                first: first.name.clone(),
                second: second.name.clone(),
            }),
            (None, _) => Err(IngestError::NoSamples { path: inputs.path.clone(), found: describe(files) }),
        }
    }
}

/// What is there, for someone who expected samples.
fn describe(files: &[InputFile]) -> String {
    match files {
        [] => "the directory is empty".to_owned(),
        [file] => format!("only {}", file.name),
        [file, rest @ ..] => format!("only {} and {} more files", file.name, rest.len()),
    }
}
