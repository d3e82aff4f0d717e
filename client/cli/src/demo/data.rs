//! What the demo trains and tests on: the digits that ship with shardd, or the user's own data.

use std::fs;
use std::path::{Path, PathBuf};

use shardd_ingest::{HashRange, IngestConfig, Resources, Source};
use shardd_store::catalog::{Catalog, HttpCatalog};
use shardfmt::{ByteSize, DatasetName, Message};

use crate::failure::Failure;
use crate::human::{count, plural};
use crate::ingest::{Ingested, into_dataset, processors};
use crate::progress::IngestProgress;

/// UCI optical recognition of handwritten digits, CC BY 4.0; see `client/data/digits`.
const DIGITS_TRAIN: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../data/digits/train.parquet"));
const DIGITS_TEST: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../data/digits/test.parquet"));

/// The darkest pixel of a digit.
const DIGITS_LARGEST: u32 = 16;

/// Small enough that the few digits fill several shards.
const DIGITS_SHARD: ByteSize = ByteSize(16 << 10);

/// The training set and the test set, both ingested through the first node.
pub(crate) struct Datasets {
    catalog: HttpCatalog,
    pub(crate) train_name: DatasetName,
    pub(crate) test_name: DatasetName,
    pub(crate) train: Ingested,
    pub(crate) test: Ingested,
    /// The value in a tensor that means 1, where that is known.
    pub(crate) input_max: Option<u32>,
}

/// One side of the split.
struct Part {
    path: PathBuf,
    config: IngestConfig,
}

impl Datasets {
    /// Ingests the data at `path`, or the digits, through the node at `server`.
    pub(crate) fn ingest(path: Option<&Path>, home: &Path, server: &str) -> Result<Datasets, Failure> {
        let catalog = HttpCatalog::new(server);
        let name = path.map_or_else(|| "digits".to_owned(), name_of);
        let train_name: DatasetName = name.parse()?;
        let test_name: DatasetName = format!("{name}-test").parse()?;
        let (train, test) = match path {
            None => digits(home)?,
            Some(path) => split(path)?,
        };
        let resources = Resources::threads(processors());
        let put = |name: &DatasetName, part: &Part| {
            let source = Source::open(&part.path, &part.config)?;
            let (silent, message) = (IngestProgress::silent(), Message::default());
            into_dataset(&catalog, name, source, &part.config, &resources, &silent, message)
        };
        let train = put(&train_name, &train)?;
        let test = put(&test_name, &test)?;
        let input_max = path.is_none().then_some(DIGITS_LARGEST);
        Ok(Datasets { catalog, train_name, test_name, train, test, input_max })
    }

    pub(crate) fn catalog(&self) -> &dyn Catalog {
        &self.catalog
    }

    pub(crate) fn describe(&self) -> String {
        let train = &self.train.manifest;
        format!(
            "{}: {} in {} ({}), {} held out",
            self.train_name,
            plural(train.sample_count(), "sample"),
            plural(train.shards.len() as u64, "shard"),
            ByteSize(train.bytes()),
            count(self.test.manifest.sample_count())
        )
    }
}

fn digits(home: &Path) -> Result<(Part, Part), Failure> {
    let dir = home.join("digits");
    fs::create_dir_all(&dir)?;
    let part = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        fs::write(&path, bytes)?;
        let config = IngestConfig { shard_size: Some(DIGITS_SHARD), ..IngestConfig::default() };
        Ok::<_, Failure>(Part { path, config })
    };
    Ok((part("train.parquet", DIGITS_TRAIN)?, part("test.parquet", DIGITS_TEST)?))
}

/// `train` and `test` (or `val`) in the directory or archive if both are there, else four fifths and one fifth by hash.
fn split(path: &Path) -> Result<(Part, Part), Failure> {
    let under = |folder: &str| IngestConfig { under: Some(folder.to_owned()), ..IngestConfig::default() };
    let opens = |config: &IngestConfig| Source::open(path, config).is_ok();
    let part = |config| Part { path: path.to_owned(), config };
    if opens(&under("train")) {
        let held_out = ["test", "val", "validation", "valid"].into_iter().map(under).find(opens);
        if let Some(held_out) = held_out {
            return Ok((part(under("train")), part(held_out)));
        }
    }
    let fifths =
        |from, to| IngestConfig { take: Some(HashRange::parts(0, from, to, 5)), ..IngestConfig::default() };
    // The source reports its own errors here.
    let source = Source::open(path, &IngestConfig::default())?;
    labelled(&source)?;
    Ok((part(fifths(0, 4)), part(fifths(4, 5))))
}

/// The demo trains a classifier.
fn labelled(source: &Source) -> Result<(), Failure> {
    if source.schema().field_with_name("label").is_ok() {
        return Ok(());
    }
    let columns: Vec<&str> = source.schema().fields().iter().map(|field| field.name().as_str()).collect();
    Err(Failure::usage(format!(
        "{} has no column `label`, only {}; the demo trains a classifier: give images in a folder for each class, \
         or rows with a column `label`",
        source.path().display(),
        columns.join(", ")
    )))
}

/// A dataset name made of what the user calls the data.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let stem = name.split('.').next().unwrap_or_default();
    let safe: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(50).collect();
    let safe = safe.trim_matches('-');
    if safe.is_empty() { "data".to_owned() } else { safe.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datasets_are_named_for_their_files() {
        let name = |path: &str| name_of(Path::new(path));
        assert_eq!(name("/x/CIFAR10 jpeg.tar.gz"), "cifar10-jpeg");
        assert_eq!(name("/x/bilder/"), "bilder");
        assert_eq!(name("/"), "data");
        assert!(name("/x/Übung").parse::<DatasetName>().is_ok());
    }

    #[test]
    fn data_without_labels_is_refused_with_what_to_give() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let path = home.path().join("play.txt");
        fs::write(&path, "To be, or not to be").expect("writes");
        let Err(Failure::Usage(refusal)) = split(&path) else { panic!("text has no label") };
        assert!(
            refusal.contains("no column `label`, only text") && refusal.contains("a folder for each class"),
            "{refusal}"
        );
    }
}
