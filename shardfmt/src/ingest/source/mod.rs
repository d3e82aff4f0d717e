//! What can be ingested. Tells the kinds of input apart, checks what can be checked without reading everything, and
//! gives the rows out in one fixed order. Knows nothing of shards or of mixing.
//!
//! Each kind is a [`Format`] in a file of its own. It lists its *pieces*: some rows that can be read on any thread
//! without regard to the others. The order of pieces, and where one ends, depend on the input alone.

mod archive;
mod csv;
mod folder;
mod images;
mod kind;
mod parquet;

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};

pub use self::kind::Kind;
use super::config::OnError;
use super::error::one_line;
use super::input::{Inputs, Trouble};
use super::{IngestConfig, IngestError, canonical};
use crate::manifest::InputDigest;

/// What the rows of a piece should weigh in memory.
const PIECE_BYTES: u64 = 4 << 20;
/// Enough rows to amortise the work per piece, few enough to spread over threads.
const PIECE_ROWS: u64 = 8192;

/// An input that was recognised and looked through: its schema is known, its rows are not read yet.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    kind: Kind,
    format: Box<dyn Format>,
    /// The columns of the samples: those of the format, or the ones asked for.
    schema: SchemaRef,
    /// Where the format has those columns; `None` if all, in order.
    projection: Option<Vec<usize>>,
    on_error: OnError,
    bytes: u64,
    /// Changes when the input does, as far as can be told without reading it.
    stamp: blake3::Hash,
    trouble: Trouble,
}

/// One kind of input, opened.
pub(super) trait Format: Debug + Send + Sync {
    /// The columns of its rows, in plain types.
    fn schema(&self) -> &SchemaRef;

    /// How many rows there are, if that is known before they are read.
    fn row_count(&self) -> Option<u64>;

    /// How many files were passed over because they are no samples, such as a `README.md` beside images.
    fn skipped_count(&self) -> u64;

    /// Lists all rows in input order, piece by piece, and returns the digests of the files read.
    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError>;
}

/// Some rows in input order that nobody has read yet: cheap to list, so that all dear work (reading, decompressing,
/// decoding) is done in parallel.
pub(super) struct Piece<'s> {
    /// What it is of, for the list of what was skipped.
    name: String,
    read: Box<Read<'s>>,
}

/// Reads a piece: its rows, if there are any, and what could not be read.
type Read<'s> = dyn FnOnce(&mut Faults) -> Result<Option<RecordBatch>, IngestError> + Send + 's;

/// Takes the pieces that a format lists.
pub(super) struct Feed<'f, 's> {
    push: &'f mut dyn FnMut(Piece<'s>) -> Result<(), IngestError>,
    on_error: OnError,
}

impl<'f, 's> Feed<'f, 's> {
    /// Adds a piece named for what it is of: a file, or a part of one. `read` gives its rows in the plain types of the
    /// format's schema; parts of it that cannot be read are [`Faults::add`]ed, and an error gives up on all of it.
    pub(super) fn piece(
        &mut self,
        name: impl Into<String>,
        read: impl FnOnce(&mut Faults) -> Result<RecordBatch, IngestError> + Send + 's,
    ) -> Result<(), IngestError> {
        let read = Box::new(move |faults: &mut Faults| read(faults).map(Some));
        (self.push)(Piece { name: name.into(), read })
    }

    /// Something that cannot be read, and of which there will be no piece. Returns the error unless such things are to
    /// be skipped.
    pub(super) fn fault(&mut self, name: &str, error: IngestError) -> Result<(), IngestError> {
        if self.on_error == OnError::Fail || !error.is_about_content() {
            return Err(error);
        }
        let skipped = name.to_owned();
        (self.push)(Piece {
            name: skipped.clone(),
            read: Box::new(move |faults| faults.add(skipped, error).map(|()| None)),
        })
    }
}

/// What could not be read of a piece.
#[derive(Debug)]
pub(super) struct Faults {
    on_error: OnError,
    /// Name and reason of each, in input order.
    pub(super) skipped: Vec<(String, String)>,
}

impl Faults {
    /// Something that cannot be read: a member, a line. Returns the error unless such things are to be skipped.
    pub(super) fn add(&mut self, name: impl Into<String>, error: IngestError) -> Result<(), IngestError> {
        if self.on_error == OnError::Fail || !error.is_about_content() {
            return Err(error);
        }
        self.skipped.push((name.into(), one_line(error)));
        Ok(())
    }
}

impl Source {
    /// Recognises what lies at `path` on this machine; see [`Source::new`].
    ///
    /// # Errors
    /// As [`Source::new`], and when there is nothing.
    pub fn open(path: &Path, config: &IngestConfig) -> Result<Source, IngestError> {
        Self::new(Inputs::local(path, config.under.as_deref())?, config)
    }

    /// Recognises the files, by content first and by extension where the content says nothing, and reads their schema:
    /// the footers of Parquet files, all of a CSV file (its column types are those of all its rows), the names in a
    /// directory or archive (the folders are the labels).
    ///
    /// # Errors
    /// When there is nothing that can be ingested; the message names the file and what would be accepted.
    pub fn new(inputs: Inputs, config: &IngestConfig) -> Result<Source, IngestError> {
        config.check()?;
        let kind = Kind::of(&inputs, config)?;
        let (path, bytes, stamp) = (inputs.path.clone(), inputs.bytes(), stamp(&inputs));
        let trouble = inputs.trouble.clone();
        let opened = kind.open(inputs, config);
        let format = trouble.error().map_or(opened, Err)?;
        let (schema, projection) = project(&path, format.schema(), config.columns.as_deref())?;
        Ok(Source {
            path,
            kind,
            format,
            schema,
            projection,
            on_error: config.on_error,
            bytes,
            stamp,
            trouble,
        })
    }

    /// The columns of the samples, in plain types.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Where it lies, as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it was recognised as.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// How many rows it has, before [`IngestConfig::take`], if that is known before they are read.
    pub fn sample_count(&self) -> Option<u64> {
        self.format.row_count()
    }

    /// The bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many files were passed over because they are no samples, such as a `README.md` beside images.
    pub fn skipped_count(&self) -> u64 {
        self.format.skipped_count()
    }

    /// Changes when the input does, as far as can be told without reading it.
    pub(super) fn stamp(&self) -> blake3::Hash {
        self.stamp
    }

    /// Gives out all rows in input order, piece by piece, and returns the digests of the files read.
    pub(super) fn pieces<'s>(
        &'s self,
        push: &mut dyn FnMut(Piece<'s>) -> Result<(), IngestError>,
    ) -> Result<Vec<InputDigest>, IngestError> {
        let listed = self.format.pieces(&mut Feed { push, on_error: self.on_error });
        self.trouble.error().map_or(listed, Err)
    }

    /// The rows of a piece, of which there may be none, and what could not be read. May be called from any thread.
    pub(super) fn read(&self, piece: Piece<'_>) -> Result<(Option<RecordBatch>, Faults), IngestError> {
        let mut faults = Faults { on_error: self.on_error, skipped: Vec::new() };
        let read = (piece.read)(&mut faults);
        if let Some(trouble) = self.trouble.error() {
            return Err(trouble);
        }
        let batch = match read {
            Ok(batch) => batch,
            Err(error) => {
                faults.add(piece.name, error)?;
                None
            }
        };
        let projected = batch.map(|batch| match &self.projection {
            None => batch,
            Some(columns) => batch.project(columns).expect("columns of the format's schema"),
        });
        Ok((projected, faults))
    }
}

/// The columns asked for, and where they are.
fn project(
    path: &Path,
    schema: &SchemaRef,
    columns: Option<&[String]>,
) -> Result<(SchemaRef, Option<Vec<usize>>), IngestError> {
    let Some(columns) = columns else { return Ok((schema.clone(), None)) };
    let index = |column: &String| {
        schema.index_of(column).map_err(|_| {
            let there: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            IngestError::NoColumn { path: path.to_owned(), column: column.clone(), there: there.join(", ") }
        })
    };
    let indices = columns.iter().map(index).collect::<Result<Vec<_>, _>>()?;
    let fields: Vec<_> = indices.iter().map(|&index| schema.fields()[index].clone()).collect();
    Ok((Arc::new(Schema::new(fields)), Some(indices)))
}

fn stamp(inputs: &Inputs) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_derive_key("shardfmt 2026 input stamp v1");
    for file in &inputs.files {
        for part in [&*file.path.to_string_lossy(), &file.name, &file.stamp] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        hasher.update(&file.bytes.to_le_bytes());
    }
    hasher.finalize()
}

/// The rows of a file in plain types.
fn canonical_rows(path: &Path, batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, IngestError> {
    canonical::canonical_batch(path, batch, schema)
}

/// Runs a reader of someone else's making on bytes of someone else's making: `None` if it panicked, which has then not
/// read anything. What it was working on must not be used again.
fn caught<T>(read: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(read)).ok()
}
