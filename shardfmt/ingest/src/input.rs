//! The files of an input, wherever they lie: on this machine, or, through [`Content`], in a store that
//! someone else opens. Does not know their contents.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{ChunkReader, Length};
use bytes::Bytes;
use shardfmt::InputDigest;
use shardfmt::digest::Digest;

use super::error::one_line;
use super::{IngestError, LargestRow, parallel_digest};

/// How much a sequential reader asks for at a time: much for a store far away, little for memory.
const READ_AHEAD: usize = 1 << 20;

/// The bytes of one input file, to be opened when they are needed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use bytes::Bytes;
/// use shardd_ingest::{Content, IngestConfig, InputFile, Inputs, ReadAt, Source};
/// use std::io;
/// use std::sync::Arc;
///
/// #[derive(Debug)]
/// struct Text(&'static str);
///
/// impl Content for Text {
///     fn open(&self) -> io::Result<Arc<dyn ReadAt>> {
///         Ok(Arc::new(Bytes::from(self.0)))
///     }
///     fn is_near(&self) -> bool {
///         true
///     }
/// }
///
/// let csv = "word\ncat\n";
/// let file = InputFile::new("words.csv", "words.csv", csv.len() as u64, "", Arc::new(Text(csv)));
/// let inputs = Inputs::of_files("words.csv", vec![file], true, None)?;
/// assert_eq!(Source::new(inputs, &IngestConfig::default())?.schema().field(0).name(), "word");
/// # Ok(())
/// # }
/// ```
pub trait Content: fmt::Debug + Send + Sync {
    /// Opens it. Called several times: for a look at its beginning, and for each pass over it.
    ///
    /// # Errors
    /// When it is gone or out of reach.
    fn open(&self) -> io::Result<Arc<dyn ReadAt>>;

    /// Whether reading it twice costs little. A distant file is copied to a temporary file before it is read
    /// in any order, so that it is fetched once.
    fn is_near(&self) -> bool;
}

/// Bytes that can be read anywhere, from several threads.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use bytes::Bytes;
/// use shardd_ingest::ReadAt;
///
/// let (bytes, mut buffer) = (Bytes::from("a cat"), [0; 8]);
/// assert_eq!(bytes.read_at(&mut buffer, 2)?, 3);
/// assert_eq!(&buffer[..3], b"cat");
///
/// let mut part = Vec::with_capacity(5);
/// assert_eq!(bytes.append_at(&mut part, 0)?, 5);
/// assert_eq!(part, b"a cat");
/// # Ok(())
/// # }
/// ```
pub trait ReadAt: Send + Sync {
    /// Reads up to the length of `buffer` from `offset` on; 0 only at the end. Who wants all of a small file asks for
    /// it at once, from the beginning, and for the next one by name after that: a distant file may be fetched ahead.
    ///
    /// # Errors
    /// When they cannot be read; [`ErrorKind::StaleNetworkFileHandle`] when they are no longer those that were listed.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Appends up to as many bytes from `offset` on as `bytes` has spare capacity, as [`read_at`](Self::read_at)
    /// reads them. Implement it where the spare capacity need not be filled before.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at); `bytes` is then as it was.
    fn append_at(&self, bytes: &mut Vec<u8>, offset: u64) -> io::Result<usize> {
        let start = bytes.len();
        bytes.resize(bytes.capacity(), 0);
        let read = self.read_at(&mut bytes[start..], offset);
        bytes.truncate(start + read.as_ref().map_or(0, |read| *read));
        read
    }
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn append_at(&self, bytes: &mut Vec<u8>, offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(self, rustix::buffer::spare_capacity(bytes), offset)?)
    }
}

impl ReadAt for Bytes {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

/// One file of the input.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::Inputs;
///
/// // Read two files in memory as those of a folder.
/// let mut files = Inputs::in_memory("a.csv", "word\ncat\n").into_files();
/// let other = Inputs::in_memory("a.csv", "word\ndog\n").into_files();
/// files.extend(other.into_iter().map(|file| file.named("b.csv")));
///
/// let inputs = Inputs::of_files("words", files, false, None)?;
/// assert_eq!(inputs.bytes(), 18);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct InputFile {
    /// Where it lies, for messages.
    pub(super) path: PathBuf,
    /// The name that versions record: relative to what the user gave, with `/` between folders, so that it
    /// does not matter where the input lay.
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Changes when the content does, by its metadata: the hash of that metadata, as there may
    /// be millions of files.
    pub(super) stamp: [u8; 16],
    content: Arc<dyn Content>,
    pub(super) trouble: Trouble,
    /// A row of more bytes is refused before it is read to its end.
    pub(super) largest_row: LargestRow,
    /// Why nothing is read of it, if that shows without opening it.
    pub(super) unfit: Option<Unfit>,
}

/// An entry of a folder that is not a file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// It would have to be waited for, or never ends.
    Special(&'static str),
    /// A link to this file or folder, which lies elsewhere.
    LeadsOut(PathBuf),
}

/// Which links in a folder are followed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::{IngestConfig, IngestError, Inputs, Links, Source};
///
/// let (folder, elsewhere) = (tempfile::tempdir()?, tempfile::tempdir()?);
/// let target = elsewhere.path().join("words.txt");
/// std::fs::write(&target, "cat")?;
/// std::os::unix::fs::symlink(&target, folder.path().join("words.txt"))?;
///
/// let config = IngestConfig::default();
/// let open = |links| Source::new(Inputs::local(folder.path(), None, links)?, &config);
/// assert!(matches!(open(Links::Within), Err(IngestError::LeadsOut { .. })));
/// assert_eq!(open(Links::Followed)?.bytes(), Some(3));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Those to what lies in the folder, too.
    #[default]
    Within,
    /// All.
    Followed,
}

impl InputFile {
    /// A file of `bytes` bytes. `path` is shown to people, `name` recorded in the version; `stamp` changes with the
    /// content (an entity tag, a time of modification): an interrupted ingest continues only if it has not.
    pub fn new(
        path: impl Into<PathBuf>,
        name: impl Into<String>,
        bytes: u64,
        stamp: impl AsRef<str>,
        content: Arc<dyn Content>,
    ) -> InputFile {
        let mut hash = [0; 16];
        blake3::Hasher::new().update(stamp.as_ref().as_bytes()).finalize_xof().fill(&mut hash);
        let (path, name, trouble) = (path.into(), name.into(), Trouble::default());
        let largest_row = LargestRow::ANY;
        InputFile { path, name, bytes, stamp: hash, content, trouble, largest_row, unfit: None }
    }

    /// An entry that can be named and not be read: neither a file nor a folder.
    pub(super) fn special(path: &Path, name: String, kind: fs::FileType) -> InputFile {
        let what = if kind.is_fifo() {
            "a named pipe"
        } else if kind.is_socket() {
            "a socket"
        } else if kind.is_block_device() || kind.is_char_device() {
            "a device"
        } else {
            "neither file nor folder"
        };
        Self::unread_at(path, name, Unfit::Special(what))
    }

    /// A link that leads out of the folder that was given.
    pub(super) fn leading_out(path: &Path, name: String, target: PathBuf) -> InputFile {
        Self::unread_at(path, name, Unfit::LeadsOut(target))
    }

    fn unread_at(path: &Path, name: String, unfit: Unfit) -> InputFile {
        let file = Self::new(path, name, 0, "", Arc::new(LocalFile(path.to_owned())));
        InputFile { unfit: Some(unfit), ..file }
    }

    /// Why nothing is read of it, if that shows without opening it.
    pub(super) fn unfit(&self) -> Option<IngestError> {
        let path = self.path.clone();
        self.unfit.as_ref().map(|unfit| match unfit {
            Unfit::Special(what) => IngestError::Special { path, what },
            Unfit::LeadsOut(target) => IngestError::LeadsOut { path, target: target.clone() },
        })
    }

    /// Where it lies, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The record for versions.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same file, recorded under another name.
    pub fn named(self, name: impl Into<String>) -> InputFile {
        InputFile { name: name.into(), ..self }
    }

    /// A file of this machine.
    pub(super) fn local(path: &Path, name: String, metadata: &fs::Metadata) -> InputFile {
        let stamp = format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec());
        Self::new(path, name, metadata.len(), stamp, Arc::new(LocalFile(path.to_owned())))
    }

    /// Whether reading it twice costs little.
    pub(super) fn is_near(&self) -> bool {
        self.content.is_near()
    }

    /// Opens the file to read parts of it.
    pub(super) fn open(&self) -> Result<OpenInput, IngestError> {
        let content = self.content.open().map_err(|error| self.error(error))?;
        Ok(OpenInput { content, file: Arc::new(self.clone()), bytes: self.bytes })
    }

    /// The content of this file as it was unpacked: a part of a temporary file.
    pub(super) fn unpacked(&self, copy: Arc<File>, start: u64, bytes: u64) -> OpenInput {
        let content = Arc::new(PartOf { of: copy, start, bytes });
        OpenInput { content, file: Arc::new(self.clone()), bytes }
    }

    /// A part of this file, as a file of its own with its name.
    pub(super) fn part(&self, start: u64, bytes: u64) -> InputFile {
        let content = Arc::new(Part { of: self.content.clone(), start, bytes });
        InputFile { content, bytes, ..self.clone() }
    }

    /// The same file on this machine, for what reads it more than once: itself, or a temporary copy.
    pub(super) fn near(&self) -> Result<InputFile, IngestError> {
        if self.content.is_near() {
            return Ok(self.clone());
        }
        let (copy, _) = spool(self.open()?.read_from(0), |error| self.error(error))?;
        Ok(InputFile { content: Arc::new(Copied(Arc::new(copy))), ..self.clone() })
    }

    /// Opens the file to read all of it, in any order, and at the end learn its digest.
    pub(super) fn open_whole(&self) -> Result<WholeInput, IngestError> {
        let input = self.open()?;
        if self.content.is_near() {
            return Ok(WholeInput { file: self.clone(), input, digest: None });
        }
        let mut hashed = Hashed::new(input.read_from(0));
        let (copy, bytes) = spool(&mut hashed, |error| self.error(error))?;
        let input = OpenInput { content: Arc::new(copy), file: Arc::new(self.clone()), bytes };
        let digest = self.digest_of(&hashed)?;
        Ok(WholeInput { file: self.clone(), input, digest: Some(digest) })
    }

    /// Reads the file from its beginning; the digest is known at its end.
    pub(super) fn stream(&self) -> Result<Stream, IngestError> {
        let input = self.open()?;
        Ok(Hashed::new(BufReader::with_capacity(READ_AHEAD, input.read_from(0))))
    }

    /// The digest of a stream of this file that was read, of which the rest is read now.
    pub(super) fn finish(&self, mut stream: Stream) -> Result<InputDigest, IngestError> {
        io::copy(&mut stream, &mut io::sink()).map_err(|error| self.error(error))?;
        self.digest_of(&stream)
    }

    /// The whole content, which must have the size that was listed and at most `most` bytes.
    pub(super) fn read_all(&self, most: u64) -> Result<Vec<u8>, IngestError> {
        if self.bytes > most {
            return Err(IngestError::TooLarge { path: self.path.clone(), bytes: self.bytes, most });
        }
        // All in one request where it lies far away, and one more byte, to see that there is none.
        let size = usize::try_from(self.bytes).expect("a limit that fits memory");
        let (mut bytes, mut filled) = (vec![0; size + 1], 0);
        let mut reader = self.open()?.read_from(0);
        // A file of this machine gives all it has at once: that it gave no more was seen.
        while filled < size || filled == size && !self.is_near() {
            match reader.read(&mut bytes[filled..]).map_err(|error| self.error(error))? {
                0 => break,
                read => filled += read,
            }
        }
        self.check_size(filled as u64)?;
        bytes.truncate(size);
        Ok(bytes)
    }

    /// The first bytes, by which many kinds of files are recognised.
    pub(super) fn head(&self, length: u64) -> Result<Vec<u8>, IngestError> {
        let mut head = Vec::new();
        let reader = self.open()?.read_from(0);
        reader.take(length).read_to_end(&mut head).map_err(|error| self.error(error))?;
        Ok(head)
    }

    /// The facts of the system, or the store, about this file.
    pub(super) fn error(&self, error: io::Error) -> IngestError {
        match self.trouble.error() {
            Some(trouble) => trouble,
            None => self.unread(error),
        }
    }

    fn unread(&self, source: io::Error) -> IngestError {
        let path = self.path.clone();
        match source.kind() {
            ErrorKind::StaleNetworkFileHandle => IngestError::Changed { path, what: one_line(source) },
            _ if !self.content.is_near() => IngestError::Fetch { path, source },
            _ => read_error(&path, source),
        }
    }

    fn digest_of<R>(&self, hashed: &Hashed<R>) -> Result<InputDigest, IngestError> {
        let (bytes, digest) = hashed.digest();
        self.check_size(bytes)?;
        Ok(InputDigest { name: self.name.clone(), bytes, digest })
    }

    fn check_size(&self, bytes: u64) -> Result<(), IngestError> {
        if bytes == self.bytes {
            return Ok(());
        }
        let what = format!("it had {} bytes, now {bytes}", self.bytes);
        Err(IngestError::Changed { path: self.path.clone(), what })
    }
}

/// The facts of the system about a file or directory of this machine.
pub(super) fn read_error(path: &Path, source: io::Error) -> IngestError {
    match source.kind() {
        ErrorKind::NotFound => IngestError::Missing { path: path.to_owned() },
        _ => IngestError::Read { path: path.to_owned(), source },
    }
}

/// The first time that a file of an input could not be read. Readers of formats give their own error, such as
/// an archive that ends too early: distinct from a damaged file, and never to be skipped as one.
#[derive(Clone, Debug, Default)]
pub(super) struct Trouble(Arc<OnceLock<(InputFile, ErrorKind, String)>>);

impl Trouble {
    /// Takes note of the error and gives one of its kind to the reader.
    fn note(&self, file: &InputFile, error: io::Error) -> io::Error {
        let (kind, text) = (error.kind(), error.to_string());
        if kind == ErrorKind::Interrupted {
            return error;
        }
        let noted = InputFile { trouble: Trouble::default(), ..file.clone() };
        let _ = self.0.set((noted, kind, text.clone()));
        io::Error::new(kind, text)
    }

    /// The error, if any.
    pub(super) fn error(&self) -> Option<IngestError> {
        let (file, kind, text) = self.0.get()?;
        Some(file.unread(io::Error::new(*kind, text.clone())))
    }
}

/// Copies all of it to a temporary file without a name, and counts its bytes.
fn spool(
    mut reader: impl Read,
    failed: impl Fn(io::Error) -> IngestError,
) -> Result<(File, u64), IngestError> {
    let (mut copy, mut bytes) = (tempfile::tempfile().map_err(spool_error)?, 0);
    let mut buffer = vec![0; READ_AHEAD];
    loop {
        let read = reader.read(&mut buffer).map_err(&failed)?;
        if read == 0 {
            return Ok((copy, bytes));
        }
        bytes += read as u64;
        io::Write::write_all(&mut copy, &buffer[..read]).map_err(spool_error)?;
    }
}

pub(super) fn spool_error(source: io::Error) -> IngestError {
    IngestError::Spill { directory: std::env::temp_dir(), source }
}

/// A file read from start to end while it is hashed.
pub(super) type Stream = Hashed<BufReader<ReadFrom>>;

/// An open file.
#[derive(Clone)]
pub(super) struct OpenInput {
    content: Arc<dyn ReadAt>,
    file: Arc<InputFile>,
    bytes: u64,
}

impl OpenInput {
    /// How long it is.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads on from `offset`.
    pub(super) fn read_from(&self, offset: u64) -> ReadFrom {
        ReadFrom { input: self.clone(), offset }
    }

    /// A part of it, which must be there.
    pub(super) fn part(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let end = offset.checked_add(length as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let OpenInput { content, file, .. } = self;
        let mut part = Vec::with_capacity(length);
        while part.len() < length {
            let at = offset + part.len() as u64;
            match content.append_at(&mut part, at) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(file.trouble.note(file, error)),
            }
        }
        part.truncate(length); // a vector may have more room than was asked for
        Ok(part)
    }
}

impl Length for OpenInput {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for OpenInput {
    type T = BufReader<ReadFrom>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(BufReader::new(self.read_from(start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        Ok(self.part(start, length)?.into())
    }
}

impl fmt::Debug for OpenInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenInput({} bytes of {})", self.file.bytes, self.file.name)
    }
}

/// A reader of an open file that keeps its own place.
pub(super) struct ReadFrom {
    input: OpenInput,
    offset: u64,
}

impl Read for ReadFrom {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let OpenInput { content, file, .. } = &self.input;
        let read = content.read_at(buffer, self.offset).map_err(|error| file.trouble.note(file, error))?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Seek for ReadFrom {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(distance) => self.input.bytes.checked_add_signed(distance),
            SeekFrom::Current(distance) => self.offset.checked_add_signed(distance),
        };
        self.offset = target.ok_or(ErrorKind::InvalidInput)?;
        Ok(self.offset)
    }
}

/// A file that is read in any order, all of it, and its digest.
pub(super) struct WholeInput {
    file: InputFile,
    pub(super) input: OpenInput,
    digest: Option<InputDigest>,
}

impl WholeInput {
    /// Its digest: from the copy that was made, or by reading it once more.
    pub(super) fn digest(self) -> Result<InputDigest, IngestError> {
        match self.digest {
            Some(digest) => Ok(digest),
            None => match self.parallel_digest().map_err(|error| self.file.error(error))? {
                Some(digest) => Ok(InputDigest { name: self.file.name, bytes: self.input.bytes, digest }),
                None => {
                    // No longer as long as it was listed: the error says how long it is.
                    let mut hashed = Hashed::new(self.input.read_from(0));
                    let mut buffer = vec![0; READ_AHEAD];
                    while hashed.read(&mut buffer).map_err(|error| self.file.error(error))? > 0 {}
                    self.file.digest_of(&hashed)
                }
            },
        }
    }

    /// The digest of as many bytes as were listed; `None` if there are more or fewer.
    fn parallel_digest(&self) -> io::Result<Option<Digest>> {
        let OpenInput { content, file, bytes } = &self.input;
        let read = |buffer: &mut [u8], offset| {
            content.read_at(buffer, offset).map_err(|error| file.trouble.note(file, error))
        };
        let digest = match parallel_digest::digest(&read, *bytes, parallel_digest::PART) {
            Ok(digest) => digest,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && file.trouble.error().is_none() => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let ended = self.input.read_from(*bytes).read(&mut [0])? == 0;
        Ok(ended.then(|| Digest(digest.into())))
    }
}

/// A reader that hashes what passes through it.
pub(super) struct Hashed<R> {
    reader: R,
    hasher: blake3::Hasher,
}

impl<R> Hashed<R> {
    pub(super) fn new(reader: R) -> Self {
        Hashed { reader, hasher: blake3::Hasher::new() }
    }

    /// How many bytes passed, and their digest.
    pub(super) fn digest(&self) -> (u64, Digest) {
        (self.hasher.count(), Digest(self.hasher.finalize().into()))
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

#[derive(Debug)]
struct LocalFile(PathBuf);

impl Content for LocalFile {
    fn open(&self) -> io::Result<Arc<dyn ReadAt>> {
        Ok(Arc::new(File::open(&self.0)?))
    }

    fn is_near(&self) -> bool {
        true
    }
}

/// A temporary copy of what lies far away.
#[derive(Debug)]
struct Copied(Arc<File>);

impl Content for Copied {
    fn open(&self) -> io::Result<Arc<dyn ReadAt>> {
        Ok(self.0.clone())
    }

    fn is_near(&self) -> bool {
        true
    }
}

/// Bytes that lie in another file.
#[derive(Debug)]
struct Part {
    of: Arc<dyn Content>,
    start: u64,
    bytes: u64,
}

impl Content for Part {
    fn open(&self) -> io::Result<Arc<dyn ReadAt>> {
        Ok(Arc::new(PartOf { of: self.of.open()?, start: self.start, bytes: self.bytes }))
    }

    fn is_near(&self) -> bool {
        self.of.is_near()
    }
}

/// Bytes that lie among others.
struct PartOf {
    of: Arc<dyn ReadAt>,
    start: u64,
    bytes: u64,
}

impl ReadAt for PartOf {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(self.bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = rest.min(buffer.len());
        if length == 0 {
            return Ok(0);
        }
        self.of.read_at(&mut buffer[..length], self.start + offset)
    }
}
