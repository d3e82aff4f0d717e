//! What can be ingested. Tells the kinds of input apart, checks what can be checked without reading everything, and
//! gives the rows out in one fixed order. Knows nothing of shards or of mixing, and never writes a file.

mod archive;
mod csv;
mod folder;
mod images;
mod parquet;
mod tree;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use self::archive::ArchiveSource;
use self::csv::CsvSource;
use self::folder::FolderSource;
use self::images::Pending;
use self::parquet::ParquetSource;
use self::tree::Tree;
use super::{IngestConfig, IngestError, canonical};
use crate::digest::Digest;
use crate::manifest::InputDigest;

/// An input that was recognised and looked through: its schema is known, its rows are not read yet.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    schema: SchemaRef,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Parquet(ParquetSource),
    Csv(CsvSource),
    Folder(FolderSource),
    Archive(ArchiveSource),
}

/// Some rows in input order, as the source gives them: cheap to produce, so that all dear work (decoding, casting,
/// encoding) can be done in parallel by [`Source::rows`].
pub(super) enum Piece {
    /// Rows as their file has them.
    Rows(RecordBatch),
    /// Encoded images that nobody has looked at yet.
    Images(Vec<Pending>),
}

impl Source {
    /// Recognises what lies at `path`, by content first and by extension where the content says nothing, and reads
    /// its schema: the footers of Parquet files, all of a CSV file (its column types are those of all its rows), the
    /// names in a directory or archive (the folders are the labels).
    ///
    /// # Errors
    /// When there is nothing there that can be ingested; the message names the file and what would be accepted.
    pub fn open(path: &Path, config: &IngestConfig) -> Result<Source, IngestError> {
        config.check()?;
        let under = config.folder()?;
        let metadata = fs::metadata(path).map_err(|error| read_error(path, error))?;
        if metadata.is_dir() {
            return Self::open_directory(path, under.as_deref());
        }
        let kind = recognise(path)?;
        if let (Some(under), Form::Parquet | Form::Csv { .. }) = (&under, &kind) {
            return Err(IngestError::NotUnder {
                path: path.to_owned(),
                under: under.clone(),
                there: "it is a single file, leave `under` out".to_owned(),
            });
        }
        let (schema, kind) = match kind {
            Form::Parquet => Self::parquet(path, vec![tree::single(path, metadata.len())?])?,
            Form::Csv { delimiter } => {
                let (schema, source) = CsvSource::open(tree::single(path, metadata.len())?, delimiter)?;
                (schema, Kind::Csv(source))
            }
            Form::Tar { gzip } => {
                let (schema, source) =
                    ArchiveSource::open(tree::single(path, metadata.len())?, gzip, under.as_deref())?;
                (schema, Kind::Archive(source))
            }
        };
        Ok(Source { path: path.to_owned(), schema, kind })
    }

    /// The columns of the samples, in plain types.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Where it lies, as given to [`Source::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it was recognised as, for people.
    pub fn description(&self) -> &'static str {
        match &self.kind {
            Kind::Parquet(_) => "Parquet",
            Kind::Csv(_) => "CSV",
            Kind::Folder(_) => "directory of images",
            Kind::Archive(_) => "archive of images",
        }
    }

    /// How many rows it has, before [`IngestConfig::take`].
    pub fn sample_count(&self) -> u64 {
        match &self.kind {
            Kind::Parquet(source) => source.row_count(),
            Kind::Csv(source) => source.row_count(),
            Kind::Folder(source) => source.image_count(),
            Kind::Archive(source) => source.image_count(),
        }
    }

    /// How many files were passed over because they are no samples, such as a `README.md` beside images.
    pub fn skipped_count(&self) -> u64 {
        match &self.kind {
            Kind::Parquet(source) => source.skipped_count(),
            Kind::Csv(_) => 0,
            Kind::Folder(source) => source.skipped_count(),
            Kind::Archive(source) => source.skipped_count(),
        }
    }

    /// Gives out all rows in input order, in pieces of a few MiB, and returns the digests of the files read.
    pub(super) fn pieces(
        &self,
        push: &mut dyn FnMut(Piece) -> Result<(), IngestError>,
    ) -> Result<Vec<InputDigest>, IngestError> {
        match &self.kind {
            Kind::Parquet(source) => source.pieces(push),
            Kind::Csv(source) => source.pieces(push),
            Kind::Folder(source) => source.pieces(push),
            Kind::Archive(source) => source.pieces(push),
        }
    }

    /// The rows of a piece, checked and in plain types. May be called from any thread.
    pub(super) fn rows(&self, piece: Piece) -> Result<RecordBatch, IngestError> {
        match piece {
            Piece::Rows(batch) => canonical::canonical_batch(&self.path, &batch, &self.schema),
            Piece::Images(images) => images::checked(&self.path, images, &self.schema),
        }
    }

    fn open_directory(path: &Path, under: Option<&str>) -> Result<Source, IngestError> {
        let tree = Tree::walk(path, under)?;
        let parquet = tree.files.iter().find(|file| parquet::is_named(&file.name));
        let image = tree.files.iter().find(|file| images::is_named(&file.name));
        let (schema, kind) = match (parquet, image) {
            (Some(parquet), Some(image)) => {
                return Err(IngestError::Ambiguous {
                    path: path.to_owned(),
                    parquet: parquet.name.clone(),
                    image: image.name.clone(),
                });
            }
            (Some(_), None) => Self::parquet(path, tree.files)?,
            (None, Some(_)) => {
                let (schema, source) = FolderSource::open(path, under, tree)?;
                (schema, Kind::Folder(source))
            }
            (None, None) => {
                return Err(IngestError::NoSamples { path: path.to_owned(), found: tree.describe() });
            }
        };
        Ok(Source { path: path.to_owned(), schema, kind })
    }

    fn parquet(path: &Path, files: Vec<tree::FoundFile>) -> Result<(SchemaRef, Kind), IngestError> {
        let (schema, source) = ParquetSource::open(path, files)?;
        Ok((schema, Kind::Parquet(source)))
    }
}

/// What a single file is.
enum Form {
    Parquet,
    Csv { delimiter: u8 },
    Tar { gzip: bool },
}

/// Tells what a file is by its first bytes, or by its extension when they say nothing.
fn recognise(path: &Path) -> Result<Form, IngestError> {
    let mut head = Vec::with_capacity(512);
    File::open(path)
        .and_then(|file| file.take(512).read_to_end(&mut head))
        .map_err(|error| read_error(path, error))?;
    if head.starts_with(b"PAR1") {
        return Ok(Form::Parquet);
    }
    if head.starts_with(&[0x1f, 0x8b]) {
        return Ok(Form::Tar { gzip: true });
    }
    if head.get(257..262) == Some(b"ustar") {
        return Ok(Form::Tar { gzip: false });
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let named = |extensions: &[&str]| extensions.iter().any(|extension| name.ends_with(extension));
    if named(&[".csv"]) {
        return Ok(Form::Csv { delimiter: b',' });
    }
    if named(&[".tsv"]) {
        return Ok(Form::Csv { delimiter: b'\t' });
    }
    if parquet::is_named(&name) {
        return Ok(Form::Parquet);
    }
    if named(&[".tar"]) {
        return Ok(Form::Tar { gzip: false });
    }
    if named(&[".tar.gz", ".tgz"]) {
        return Err(IngestError::Archive { path: path.to_owned(), reason: "it is not gzip".to_owned() });
    }
    let found = if images::is_named(&name) {
        "a single image is no dataset".to_owned()
    } else if head.is_empty() {
        "the file is empty".to_owned()
    } else {
        match path.extension() {
            Some(extension) => format!("unknown kind of file (.{})", extension.to_string_lossy()),
            None => "unknown kind of file".to_owned(),
        }
    };
    Err(IngestError::Unknown { path: path.to_owned(), found })
}

/// BLAKE3 and length of a file, read once from start to end.
fn digest_file(path: &Path, name: &str) -> Result<InputDigest, IngestError> {
    let mut hasher = blake3::Hasher::new();
    let read = File::open(path).and_then(|file| hasher.update_reader(file).map(|hasher| hasher.count()));
    let bytes = read.map_err(|error| read_error(path, error))?;
    Ok(InputDigest { name: name.to_owned(), bytes, digest: Digest(hasher.finalize().into()) })
}

/// Runs a reader of someone else's making on bytes of someone else's making: `None` if it panicked, which has then not
/// read anything. What it was working on must not be used again.
fn caught<T>(read: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(read)).ok()
}

fn read_error(path: &Path, source: io::Error) -> IngestError {
    match source.kind() {
        ErrorKind::NotFound => IngestError::Missing { path: path.to_owned() },
        _ => IngestError::Read { path: path.to_owned(), source },
    }
}
