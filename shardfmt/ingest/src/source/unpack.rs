//! Files made ready to be read in any order: a compressed or remote file goes to a temporary file first, so
//! that it is fetched and decompressed once. Does not know their contents.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use shardfmt::InputDigest;
use shardfmt::size::ByteSize;

use super::compressed::{Compression, decompressed};
use crate::IngestError;
use crate::error::one_line;
use crate::input::{InputFile, OpenInput, spool_error};

/// The allowed size of any unpacked file, and the allowed multiple of its own size beyond that. Tars of texts
/// shrink to a hundredth; what shrinks to less was made to fill disks.
const ALWAYS_ALLOWED: u64 = if cfg!(test) { 2 << 20 } else { 1 << 30 };
const MOST_TIMES: u64 = 250;
const CHUNK: usize = 1 << 20;

/// The content of a file that was unpacked.
#[derive(Debug)]
pub(super) struct Unpacked {
    pub(super) content: OpenInput,
    /// Of the file as it lies.
    pub(super) digest: InputDigest,
    /// Why the content ends early, if it does.
    pub(super) damage: Option<String>,
}

/// Temporary files without a name, in which content lies one after the other: as many as are filled at a time.
#[derive(Debug, Default)]
pub(super) struct Spool(Mutex<Vec<SpoolFile>>);

#[derive(Debug)]
struct SpoolFile {
    file: Arc<File>,
    end: u64,
}

impl Spool {
    /// The content of the file, if it must be unpacked before it can be read in any order. Its first bytes say whether it
    /// is compressed, unless it is known not to be.
    pub(super) fn unpack(
        &self,
        file: &InputFile,
        may_be_compressed: bool,
    ) -> Result<Option<Unpacked>, IngestError> {
        if file.is_near() && (!may_be_compressed || Compression::of(&file.head(4)?).is_none()) {
            return Ok(None);
        }
        self.fill(|spool| spool.unpack(file, may_be_compressed)).map(Some)
    }

    /// The bytes read of the file by an unpacker, and why that ends early, if it does. `most` are the bytes
    /// that it may still expand to.
    pub(super) fn part(
        &self,
        file: &InputFile,
        part: impl Read,
        most: &mut u64,
    ) -> Result<(OpenInput, Option<String>), IngestError> {
        let (content, broken) = self.fill(|spool| spool.copy(file, part, *most))?;
        *most -= content.bytes();
        Ok((content, broken))
    }

    fn fill<T>(&self, fill: impl FnOnce(&mut SpoolFile) -> Result<T, IngestError>) -> Result<T, IngestError> {
        let idle = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut spool = match idle {
            Some(spool) => spool,
            None => SpoolFile { file: Arc::new(tempfile::tempfile().map_err(spool_error)?), end: 0 },
        };
        let filled = fill(&mut spool)?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(spool);
        Ok(filled)
    }
}

/// The allowed unpacked size of a file.
pub(super) fn most_unpacked(file: &InputFile) -> u64 {
    ALWAYS_ALLOWED.saturating_add(file.bytes.saturating_mul(MOST_TIMES))
}

/// The refusal of a file that expands to more.
pub(super) fn expands(file: &InputFile) -> IngestError {
    let (path, bytes, most) = (file.path.clone(), ByteSize(file.bytes), ByteSize(most_unpacked(file)));
    IngestError::Expands { path, bytes, most }
}

impl SpoolFile {
    fn unpack(&mut self, file: &InputFile, may_be_compressed: bool) -> Result<Unpacked, IngestError> {
        let mut stream = file.stream()?;
        let (content, damage) = {
            let source = BufReader::with_capacity(CHUNK, &mut stream);
            let (content, is_compressed): (Box<dyn Read>, bool) = match may_be_compressed {
                true => decompressed(source).map_err(|error| file.error(error))?,
                false => (Box::new(source), false),
            };
            self.copy(file, content, if is_compressed { most_unpacked(file) } else { u64::MAX })?
        };
        Ok(Unpacked { content, digest: file.finish(stream)?, damage })
    }

    /// Copies content of the file to its end, and says why that comes early, if it does.
    fn copy(
        &mut self,
        file: &InputFile,
        mut content: impl Read,
        most: u64,
    ) -> Result<(OpenInput, Option<String>), IngestError> {
        let (start, mut broken, mut chunk) = (self.end, None, vec![0; CHUNK]);
        loop {
            let read = match content.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    broken = Some(damage(&error));
                    break;
                }
            };
            if self.end - start + read as u64 > most {
                return Err(expands(file));
            }
            (&*self.file).write_all(&chunk[..read]).map_err(spool_error)?;
            self.end += read as u64;
        }
        Ok((file.unpacked(self.file.clone(), start, self.end - start), broken))
    }
}

/// The error of a reader about invalid content.
pub(super) fn damage(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => "it ends too early".to_owned(),
        _ => one_line(error),
    }
}
