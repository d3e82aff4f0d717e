//! What can be ingested. Tells the kinds of input apart, checks what can be checked without reading everything, and
//! gives the rows out in one fixed order. Knows nothing of shards or of mixing.
//!
//! Each kind is a [`Format`] in a file of its own. It lists its *pieces*: some rows that can be read on any thread
//! without regard to the others. The order of pieces, and where one ends, depend on the input alone.

mod alike;
mod archive;
mod arrays;
mod batches;
mod caught;
mod cells;
pub(crate) mod chat;
mod compressed;
mod csv;
mod detect;
mod folder;
pub(crate) mod growth;
mod images;
mod ipc;
mod jpeg;
mod json;
mod keyed;
mod libsvm;
mod lines;
mod mds;
mod npy;
mod numpy;
mod open;
mod pack;
mod parquet;
mod picture;
mod sequences;
mod tars;
mod text;
mod text_column;
pub(crate) mod tfrecord;
mod tokens;
mod unpack;
mod webdataset;
mod wide;
mod window;
mod windows;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use shardfmt::InputDigest;

use self::batches::BatchSource;
use self::caught::caught;
use self::chat::Conversations;
use self::chat::template::TemplateFiles;
use self::text_column::TextColumn;
use self::windows::Windowed;
use super::config::OnError;
use super::error::one_line;
use super::files::FileChain;
use super::input::{InputFile, Links, Trouble};
use super::inputs::Inputs;
use super::kind::Kind;
use super::{IngestConfig, IngestError, LargestRow, canonical};

/// The intended memory of a piece's rows.
const PIECE_BYTES: u64 = 4 << 20;
/// Enough rows to amortise the work per piece, few enough to spread over threads.
const PIECE_ROWS: u64 = 8192;
/// Where rows cannot be had by themselves, more bytes than that are decoded in one place and then cut into pieces.
const LARGE_BYTES: u64 = 4 * PIECE_BYTES;
/// More rows than that are never one piece, however small they are.
const MANY_ROWS: u64 = 16 * PIECE_ROWS;
/// More rows than any writer puts side by side: a damaged number.
const MOST_ROWS: u64 = 1 << 31;

/// An input that was recognised and looked through: its schema is known, its rows are not read yet.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::{IngestConfig, Inputs, Kind, Source};
///
/// let inputs = Inputs::in_memory("words.csv", "word,label\ncat,0\ndog,1\n");
/// let source = Source::new(inputs, &IngestConfig::default())?;
/// assert_eq!(source.kind(), Kind::Csv);
/// assert_eq!(source.schema().fields().len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    /// The only folder of it that is read, or `.`.
    folder: String,
    kind: Kind,
    format: Box<dyn Format>,
    /// The columns of the samples: those of the format, or the ones asked for.
    schema: SchemaRef,
    /// Where the format has those columns; `None` if all, in order.
    projection: Option<Vec<usize>>,
    on_error: OnError,
    /// The unreadable entries among the files, where they are skipped: name and reason.
    unfit: Vec<(String, String)>,
    /// The bytes of its files; `None` if there are no files.
    bytes: Option<u64>,
    /// Changes when the input does, by its metadata.
    stamp: blake3::Hash,
    trouble: Trouble,
}

/// The known facts about an input before its rows are read.
#[derive(Debug)]
pub(super) struct About {
    /// The columns of its rows, in plain types.
    schema: SchemaRef,
    /// How many rows there are, if that is known already.
    rows: Option<u64>,
    /// How many files were passed over because they are no samples, such as a `README.md` beside images.
    passed_over: u64,
}

/// One kind of input, opened.
pub(super) trait Format: Debug + Send + Sync {
    /// The facts found at the opening.
    fn about(&self) -> &About;

    /// Its kind, where that shows only when it is opened.
    fn turned_out(&self) -> Option<Kind> {
        None
    }

    /// Lists all rows in input order, piece by piece, and returns the digests of the files read.
    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError>;
}

/// Some rows in input order that no thread has read yet: cheap to list, so that all dear work (reading,
/// decompressing, decoding) is done in parallel.
pub(super) struct Piece<'s> {
    /// The name of its input, for the list of skipped ones.
    name: String,
    read: Box<Read<'s>>,
}

impl Piece<'_> {
    /// Its rows, of which there may be none, and what could not be read.
    fn read(self, on_error: OnError) -> Result<(Option<RecordBatch>, Faults), IngestError> {
        let mut faults = Faults::new(on_error, self.name);
        let batch = match (self.read)(&mut faults) {
            Ok(batch) => batch,
            Err(error) => {
                faults.add(faults.piece.clone(), located(error, &faults.piece))?;
                None
            }
        };
        Ok((batch, faults))
    }
}

/// Reads a piece: its rows, if there are any, and what could not be read.
type Read<'s> = dyn FnOnce(&mut Faults) -> Result<Option<RecordBatch>, IngestError> + Send + 's;

/// Takes the pieces that a format lists.
pub(super) struct Feed<'f, 's> {
    push: &'f mut dyn FnMut(Piece<'s>) -> Result<(), IngestError>,
    on_error: OnError,
    largest_row: LargestRow,
}

impl<'f, 's> Feed<'f, 's> {
    /// Refuses a row that memory does not allow for, before its bytes are read.
    pub(super) fn check_row(&self, name: &str, bytes: u64) -> Result<(), IngestError> {
        self.largest_row.check(name, bytes)
    }

    /// Adds a piece named for its input: a file, or a part of one. `read` gives its rows in the plain types
    /// of the format's schema; parts of it that cannot be read are [`Faults::add`]ed, and an error gives up
    /// on all of it.
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

    /// What could not be read of a piece whose rows are listed otherwise, and the files that it read.
    pub(super) fn pass_on(&mut self, faults: Faults) -> Result<(), IngestError> {
        if faults.skipped.is_empty() && faults.files.is_empty() {
            return Ok(());
        }
        let read = Box::new(move |own: &mut Faults| {
            own.skipped.extend(faults.skipped);
            own.files.extend(faults.files);
            Ok(None)
        });
        (self.push)(Piece { name: faults.piece, read })
    }

    /// A file that was visited, perhaps not to its end.
    pub(super) fn visited(&mut self, name: &str, visited: Result<(), Stopped>) -> Result<(), IngestError> {
        match visited {
            Ok(()) => Ok(()),
            Err(Stopped::Reading(error)) => self.fault(name, error),
            Err(Stopped::Elsewhere(error)) => Err(error),
        }
    }

    /// Things that were left out before: each with its name and the reason.
    pub(super) fn all_left_out(&mut self, things: &[(String, String)]) -> Result<(), IngestError> {
        things.iter().try_for_each(|(name, reason)| self.left_out(name, reason))
    }

    /// Something that is left out and listed as such, whatever is to become of faults.
    pub(super) fn left_out(&mut self, name: &str, reason: &str) -> Result<(), IngestError> {
        let listed = (name.to_owned(), reason.to_owned());
        let read = Box::new(move |faults: &mut Faults| {
            faults.skipped.push(listed);
            Ok(None)
        });
        (self.push)(Piece { name: name.to_owned(), read })
    }
}

/// Why not all of a file was visited.
pub(super) enum Stopped {
    /// The rest cannot be read.
    Reading(IngestError),
    /// The consumer wants no more: that is no fault of the file.
    Elsewhere(IngestError),
}

impl From<IngestError> for Stopped {
    fn from(error: IngestError) -> Stopped {
        Stopped::Reading(error)
    }
}

/// The facts of a piece besides its rows: its unreadable parts, and its files.
#[derive(Debug)]
pub(super) struct Faults {
    on_error: OnError,
    /// The name of the piece.
    piece: String,
    /// Name and reason of each, in input order.
    pub(super) skipped: Vec<(String, String)>,
    /// The files that the piece itself read from end to end, in input order.
    pub(super) files: Vec<InputDigest>,
}

impl Faults {
    fn new(on_error: OnError, piece: String) -> Faults {
        Faults { on_error, piece, skipped: Vec::new(), files: Vec::new() }
    }

    /// The name of the piece.
    pub(super) fn piece(&self) -> &str {
        &self.piece
    }

    /// Something that cannot be read: a member, a line. Returns the error unless such things are to be skipped.
    pub(super) fn add(&mut self, name: impl Into<String>, error: IngestError) -> Result<(), IngestError> {
        if self.on_error == OnError::Fail || !error.is_about_content() {
            return Err(error);
        }
        self.skipped.push((name.into(), one_line(error)));
        Ok(())
    }

    /// A row of the piece that cannot be read.
    pub(super) fn row(&mut self, row: usize, error: IngestError) -> Result<(), IngestError> {
        let name = format!("{}, row {row}", self.piece);
        let error = located(error, &name);
        self.add(name, error)
    }
}

/// The error with the place in its file, which the name of a piece tells.
fn located(error: IngestError, piece: &str) -> IngestError {
    let place = |path: &Path| match piece.split_once(", ") {
        // The message names the file already.
        Some((file, place)) if path.ends_with(file) => place.to_owned(),
        _ => piece.to_owned(),
    };
    match error {
        IngestError::Parquet { path, reason } => {
            IngestError::Parquet { reason: format!("{}: {reason}", place(&path)), path }
        }
        IngestError::Damaged { path, kind, reason } => {
            IngestError::Damaged { reason: format!("{}: {reason}", place(&path)), path, kind }
        }
        IngestError::Row { path, reason } => {
            IngestError::Row { reason: format!("{}: {reason}", place(&path)), path }
        }
        other => other,
    }
}

impl Source {
    /// Recognises what lies at `path` on this machine; see [`Source::new`].
    ///
    /// # Errors
    /// As [`Source::new`], and when there is nothing.
    pub fn open(path: &Path, config: &IngestConfig) -> Result<Source, IngestError> {
        Self::new(Inputs::local(path, config.under.as_deref(), Links::Within)?, config)
    }

    /// Recognises the files, by content first and by extension where the content says nothing, and reads their schema:
    /// the footers of Parquet files, all of a CSV file (its column types are those of all its rows), the names in a
    /// directory or archive (the folders are the labels).
    ///
    /// # Errors
    /// When there is nothing that can be ingested; the message names the file and what would be accepted.
    pub fn new(mut inputs: Inputs, config: &IngestConfig) -> Result<Source, IngestError> {
        config.check()?;
        let unfit = left_out(inputs.take_unfit(), config.on_error)?;
        let kind = Kind::of(&inputs, config)?;
        let (path, bytes) = (inputs.path.clone(), Some(inputs.bytes()));
        let stamp = stamp(inputs.files.iter().chain(&setting_files(config)?));
        let folder = inputs.under.clone().unwrap_or_else(|| ".".to_owned());
        let trouble = inputs.trouble.clone();
        let opened = kind.open(inputs, config);
        let format = trouble.error().map_or(opened, Err)?;
        let format = windowed(&path, tokenized(&path, kind, format, config)?, config)?;
        let kind = format.turned_out().unwrap_or(kind);
        let (schema, projection) = project(&path, &format.about().schema, config.columns.as_deref())?;
        Ok(Source {
            path,
            folder,
            kind,
            format,
            schema,
            projection,
            on_error: config.on_error,
            unfit,
            bytes,
            stamp,
            trouble,
        })
    }

    /// Takes record batches that a program gives, all with the columns of `schema`, in their order. `name` stands for them in
    /// messages and in the version's record of its inputs.
    ///
    /// They are requested on the thread that reads the source, one after the other and once; only a few megabytes of
    /// rows wait to be encoded. An error of the iterator ends the ingest with [`IngestError::Read`], and nothing
    /// is committed. Such an ingest does not continue after a stop.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kept.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sink = Kept::default();
    /// use std::sync::Arc;
    ///
    /// use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    /// use shardd_ingest::{Ingest, IngestConfig, NoProgress, Resources, Source};
    ///
    /// let numbers = |from: i64| Arc::new(Int64Array::from_iter_values(from..from + 100)) as ArrayRef;
    /// let first = RecordBatch::try_from_iter([("n", numbers(0))])?;
    /// let schema = first.schema();
    /// let batches = [Ok(first), Ok(RecordBatch::try_from_iter([("n", numbers(100))])?)];
    ///
    /// let config = IngestConfig::default();
    /// let source = Source::of_batches("numbers", schema, batches.into_iter(), &config)?;
    /// let read = Ingest::read(source, &config, &[], &Resources::threads(1), &NoProgress)?;
    /// assert_eq!(read.write(None, &sink, &NoProgress)?.finish()[0].manifest.sample_count(), 200);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A schema with columns that shards do not hold, and settings that make no sense.
    pub fn of_batches(
        name: &str,
        schema: SchemaRef,
        batches: impl Iterator<Item = io::Result<RecordBatch>> + Send + 'static,
        config: &IngestConfig,
    ) -> Result<Source, IngestError> {
        config.check()?;
        let path = PathBuf::from(name);
        let format = Box::new(BatchSource::open(name, schema, Box::new(batches))?);
        let format = windowed(&path, tokenized(&path, Kind::Arrow, format, config)?, config)?;
        let (schema, projection) = project(&path, &format.about().schema, config.columns.as_deref())?;
        Ok(Source {
            path,
            folder: ".".to_owned(),
            kind: Kind::Arrow,
            format,
            schema,
            projection,
            on_error: config.on_error,
            unfit: Vec::new(),
            bytes: None,
            stamp: blake3::hash(name.as_bytes()),
            trouble: Trouble::default(),
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

    /// The recognised kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// How many rows it has, before [`IngestConfig::take`], if that is known before they are read.
    pub fn sample_count(&self) -> Option<u64> {
        self.format.about().rows
    }

    /// The bytes of its files; `None` if its rows lie in no file.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// How many files were passed over because they are no samples, such as a `README.md` beside images.
    pub fn skipped_count(&self) -> u64 {
        self.format.about().passed_over
    }

    /// Changes when the input does, by its metadata.
    pub(super) fn stamp(&self) -> blake3::Hash {
        self.stamp
    }

    /// Gives out all rows in input order, piece by piece, and returns the digests of the files read. Rows that are larger than
    /// the largest are refused, where their bytes are known before they are read.
    pub(super) fn pieces<'s>(
        &'s self,
        largest_row: LargestRow,
        push: &mut dyn FnMut(Piece<'s>) -> Result<(), IngestError>,
    ) -> Result<Vec<InputDigest>, IngestError> {
        let mut feed = Feed { push, on_error: self.on_error, largest_row };
        feed.all_left_out(&self.unfit)?;
        let listed = self.format.pieces(&mut feed);
        self.trouble.error().map_or(listed, Err)
    }

    /// A version's record of the input: the digests that listing its pieces gave, and one of all files that
    /// pieces read by themselves.
    pub(super) fn inputs(&self, mut listed: Vec<InputDigest>, files: FileChain) -> Vec<InputDigest> {
        listed.extend(files.finish(&self.folder));
        listed
    }

    /// The rows of a piece, of which there may be none, and what could not be read. May be called from any thread.
    pub(super) fn read(&self, piece: Piece<'_>) -> Result<(Option<RecordBatch>, Faults), IngestError> {
        let read = piece.read(self.on_error);
        if let Some(trouble) = self.trouble.error() {
            return Err(trouble);
        }
        let (batch, faults) = read?;
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
    let Some(columns) = columns else { return has_values(path, schema.clone()).map(|schema| (schema, None)) };
    let mut indices = Vec::with_capacity(columns.len());
    for column in columns {
        let index = schema.index_of(column).map_err(|_| no_column(path, column, schema))?;
        if indices.contains(&index) {
            return Err(IngestError::Config {
                setting: "columns",
                reason: format!("{column:?} is there twice"),
                way_out: "name each column once",
            });
        }
        indices.push(index);
    }
    let fields: Vec<_> = indices.iter().map(|&index| schema.fields()[index].clone()).collect();
    Ok((has_values(path, Arc::new(Schema::new(fields)))?, Some(indices)))
}

/// Refuses columns that are null in every row: rows of nothing have no bytes, and no reader could count them.
fn has_values(path: &Path, schema: SchemaRef) -> Result<SchemaRef, IngestError> {
    if schema.fields().iter().any(|field| *field.data_type() != DataType::Null) {
        return Ok(schema);
    }
    Err(IngestError::NoSamples { path: path.to_owned(), found: "no column has a value".to_owned() })
}

/// The types that the user chose for some of the columns.
fn column_types(
    path: &Path,
    schema: &Schema,
    config: &IngestConfig,
) -> Result<BTreeMap<String, DataType>, IngestError> {
    let parse = |(column, text): (&String, &String)| {
        schema.index_of(column).map_err(|_| no_column(path, column, schema))?;
        let data_type = text.parse().map_err(|_| IngestError::Config {
            setting: "types",
            reason: format!("{text:?}, for column {column:?}, is no type that Arrow knows"),
            way_out: "write it as Arrow does: Int32, Float64, Utf8, Boolean, Date32, Timestamp(ms)",
        })?;
        Ok((column.clone(), data_type))
    };
    config.types.iter().map(parse).collect()
}

fn no_column(path: &Path, column: &str, schema: &Schema) -> IngestError {
    let there: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    IngestError::NoColumn { path: path.to_owned(), column: column.to_owned(), there: there.join(", ") }
}

/// The rows with tokens in the place of a column of text, or of conversations.
fn tokenized(
    path: &Path,
    kind: Kind,
    format: Box<dyn Format>,
    config: &IngestConfig,
) -> Result<Box<dyn Format>, IngestError> {
    Ok(match (&config.text_column, &config.chat_template) {
        (Some(column), _) => Box::new(TextColumn::open(path, format, column, config)?),
        (None, Some(_)) if kind != Kind::JsonLines => {
            Box::new(Conversations::of_table(path, format, config)?)
        }
        (None, _) => format,
    })
}

/// The rows with those around them.
fn windowed(
    path: &Path,
    format: Box<dyn Format>,
    config: &IngestConfig,
) -> Result<Box<dyn Format>, IngestError> {
    Ok(match &config.window {
        Some(windows) => Box::new(Windowed::open(path, format, windows)?),
        None => format,
    })
}

/// The tokenizer to use, which is an input too.
fn tokenizer_file(config: &IngestConfig) -> Result<Option<InputFile>, IngestError> {
    let way_out = "give a tokenizer.json of Hugging Face, or ranks of tiktoken";
    config.tokenizer.as_ref().map(|path| setting_file("tokenizer", path, way_out)).transpose()
}

/// The files that settings name, which are inputs too.
fn setting_files(config: &IngestConfig) -> Result<Vec<InputFile>, IngestError> {
    let template = config.chat_template.as_deref().map(TemplateFiles::read).transpose()?;
    let files = template.into_iter().flat_map(|template| template.files);
    Ok(tokenizer_file(config)?.into_iter().chain(files).collect())
}

/// A file that a setting names.
fn setting_file(setting: &'static str, path: &Path, way_out: &'static str) -> Result<InputFile, IngestError> {
    let mut inputs = Inputs::local(path, None, Links::Within)?;
    match inputs.files.pop() {
        Some(file) if inputs.is_file => Ok(file),
        _ => Err(IngestError::Config { setting, reason: format!("{} is no file", path.display()), way_out }),
    }
}

/// The parts left out of an input, if any: name and reason of each.
fn left_out(
    unfit: Vec<(String, IngestError)>,
    on_error: OnError,
) -> Result<Vec<(String, String)>, IngestError> {
    let list = |(name, error): (String, IngestError)| match on_error {
        OnError::Fail => Err(error),
        OnError::Skip => Ok((name, one_line(error))),
    };
    unfit.into_iter().map(list).collect()
}

fn stamp<'f>(files: impl Iterator<Item = &'f InputFile>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_derive_key("shardfmt 2026 input stamp v1");
    for file in files {
        for part in [&*file.path.to_string_lossy(), &file.name] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        hasher.update(&file.stamp).update(&file.bytes.to_le_bytes());
    }
    hasher.finalize()
}

/// The rows of a file in plain types.
fn canonical_rows(path: &Path, batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, IngestError> {
    canonical::canonical_batch(path, batch, schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_where_in_which_file_it_is() {
        let row = |path: &str, piece: &str| {
            let error = IngestError::Row { path: path.into(), reason: "it is too large".to_owned() };
            located(error, piece).to_string()
        };
        let text = row("/data/b/all.parquet", "b/all.parquet, rows 0..10, row 7");
        assert!(
            text.starts_with("/data/b/all.parquet: a row cannot be encoded (rows 0..10, row 7: it is"),
            "{text}"
        );
        // Of a directory, or an archive whose members are all that is named.
        let text = row("/data", "b/all.parquet, rows 0..10, row 7");
        assert!(
            text.starts_with("/data: a row cannot be encoded (b/all.parquet, rows 0..10, row 7: it is"),
            "{text}"
        );
        assert!(row("/data/zoo.tar", "cat/1.png, row 0").contains("(cat/1.png, row 0: it is"));
    }
}
