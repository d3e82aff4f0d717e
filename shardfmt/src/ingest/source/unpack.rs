//! Files made ready to be read in any order: what is compressed or far away goes to a temporary file first, so that it
//! is fetched and decompressed once. Knows nothing of what is in them.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use super::compressed::{Compression, decompressed};
use crate::ingest::IngestError;
use crate::ingest::error::one_line;
use crate::ingest::input::{InputFile, OpenInput, spool_error};
use crate::manifest::InputDigest;
use crate::size::ByteSize;

/// What a file may always expand to, and how many times its own size beyond that. Tars of texts shrink to a hundredth;
/// what shrinks to less was made to fill disks.
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
        let idle = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut spool = match idle {
            Some(spool) => spool,
            None => SpoolFile { file: Arc::new(tempfile::tempfile().map_err(spool_error)?), end: 0 },
        };
        let unpacked = spool.unpack(file, may_be_compressed)?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(spool);
        Ok(Some(unpacked))
    }
}

impl SpoolFile {
    fn unpack(&mut self, file: &InputFile, may_be_compressed: bool) -> Result<Unpacked, IngestError> {
        let most = ALWAYS_ALLOWED.saturating_add(file.bytes.saturating_mul(MOST_TIMES));
        let start = self.end;
        let mut stream = file.stream()?;
        let mut broken = None;
        {
            let source = BufReader::with_capacity(CHUNK, &mut stream);
            let (mut content, is_compressed): (Box<dyn Read>, bool) = match may_be_compressed {
                true => decompressed(source).map_err(|error| file.error(error))?,
                false => (Box::new(source), false),
            };
            let mut chunk = vec![0; CHUNK];
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
                (&*self.file).write_all(&chunk[..read]).map_err(spool_error)?;
                self.end += read as u64;
                if is_compressed && self.end - start > most {
                    let (path, bytes, most) = (file.path.clone(), ByteSize(file.bytes), ByteSize(most));
                    return Err(IngestError::Expands { path, bytes, most });
                }
            }
        }
        let content = file.unpacked(self.file.clone(), start, self.end - start);
        Ok(Unpacked { content, digest: file.finish(stream)?, damage: broken })
    }
}

/// What a reader says of content that makes no sense to it.
pub(super) fn damage(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => "it ends too early".to_owned(),
        _ => one_line(error),
    }
}
