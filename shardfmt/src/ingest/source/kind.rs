//! Which kind of input some files are: by their first bytes where those are telling, by their names otherwise.

use serde::{Deserialize, Serialize};

use super::csv::CsvSource;
use super::folder::FolderSource;
use super::mds::MdsSource;
use super::parquet::ParquetSource;
use super::{Format, archive, images, tars};
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
    pub const ALL: &[Kind] =
        &[Kind::Parquet, Kind::Csv, Kind::Tsv, Kind::Images, Kind::Archive, Kind::WebDataset, Kind::Mds];

    /// What it is called.
    pub fn description(self) -> &'static str {
        match self {
            Kind::Parquet => "Parquet",
            Kind::Csv => "CSV",
            Kind::Tsv => "TSV",
            Kind::Images => "images",
            Kind::Archive => "archive of images",
            Kind::WebDataset => "WebDataset",
            Kind::Mds => "MDS",
        }
    }

    /// The endings of the names of its files, in lower case.
    pub(super) fn endings(self) -> &'static [&'static str] {
        match self {
            Kind::Parquet => &[".parquet", ".parq", ".pq"],
            Kind::Csv => &[".csv"],
            Kind::Tsv => &[".tsv"],
            Kind::Images => images::ENDINGS,
            Kind::Archive | Kind::WebDataset => &[".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"],
            Kind::Mds => &[".mds", ".mds.zstd", ".mds.gz"],
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
            Kind::Csv => Box::new(CsvSource::open(inputs, b',')?),
            Kind::Tsv => Box::new(CsvSource::open(inputs, b'\t')?),
            Kind::Images => Box::new(FolderSource::open(inputs, config)?),
            Kind::Archive | Kind::WebDataset => archive::open(inputs, config)?,
            Kind::Mds => Box::new(MdsSource::open(inputs, config)?),
        })
    }

    /// What a single file is.
    fn of_file(file: &InputFile) -> Result<Kind, IngestError> {
        let head = file.head(512)?;
        if head.starts_with(b"PAR1") {
            return Ok(Kind::Parquet);
        }
        if tars::is_tar(file, &head)? {
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
        let mut kinds =
            [Kind::Parquet, Kind::Images, Kind::Archive, Kind::Mds].into_iter().filter_map(first_of);
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
