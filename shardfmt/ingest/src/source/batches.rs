//! Record batches that a program gives one after the other. Their rows lie in no file, and can be read only once.
//!
//! The digest of the input is that of an Arrow IPC stream of the same batches.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use shardfmt::InputDigest;
use shardfmt::digest::Digest;

use super::{About, Feed, Format, canonical_rows, growth};
use crate::error::one_line;
use crate::{IngestError, canonical};

/// What gives the batches.
type Batches = dyn Iterator<Item = io::Result<RecordBatch>> + Send;

pub(super) struct BatchSource {
    name: PathBuf,
    about: About,
    /// The columns as they are given.
    columns: SchemaRef,
    /// Taken when they are read.
    batches: Mutex<Option<Box<Batches>>>,
}

impl BatchSource {
    pub(super) fn open(
        name: &str,
        columns: SchemaRef,
        batches: Box<Batches>,
    ) -> Result<BatchSource, IngestError> {
        let name = PathBuf::from(name);
        let schema = canonical::canonical_schema(&name, &columns)?;
        let about = About { schema, rows: None, passed_over: 0 };
        Ok(BatchSource { name, about, columns, batches: Mutex::new(Some(batches)) })
    }

    fn list<'s>(
        &'s self,
        number: usize,
        batch: RecordBatch,
        feed: &mut Feed<'_, 's>,
    ) -> Result<(), IngestError> {
        let path = &self.name;
        if batch.schema() != self.columns {
            let reason = format!("record batch {number} has other columns than the first");
            return Err(IngestError::Damaged { path: path.clone(), kind: "Arrow", reason });
        }
        let reason = |reason| IngestError::Row { path: path.clone(), reason };
        for slice in growth::slices(batch).map_err(reason)? {
            let name = format!("{}, record batch {number}", path.display());
            feed.piece(name, move |_| canonical_rows(path, &slice, &self.about.schema))?;
        }
        Ok(())
    }
}

impl fmt::Debug for BatchSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchSource")
            .field("name", &self.name)
            .field("about", &self.about)
            .finish_non_exhaustive()
    }
}

impl Format for BatchSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        let batches = self.batches.lock().expect("no panic while held").take();
        let batches = batches.ok_or_else(|| IngestError::Changed {
            path: self.name.clone(),
            what: "its record batches were read before".to_owned(),
        })?;
        let unwritable = |error| unwritable(&self.name, &error);
        let mut stream = StreamWriter::try_new(Hashed::default(), &self.columns).map_err(unwritable)?;
        for (number, batch) in batches.enumerate() {
            let batch = batch.map_err(|source| IngestError::Read { path: self.name.clone(), source })?;
            stream.write(&batch).map_err(unwritable)?;
            self.list(number, batch, feed)?;
        }
        let Hashed { hasher, bytes } = stream.into_inner().map_err(unwritable)?;
        let name = self.name.to_string_lossy().into_owned();
        Ok(vec![InputDigest { name, bytes, digest: Digest(hasher.finalize().into()) }])
    }
}

fn unwritable(path: &Path, error: &ArrowError) -> IngestError {
    IngestError::Damaged { path: path.to_owned(), kind: "Arrow", reason: one_line(error) }
}

/// Hashes and counts the bytes written to it, and keeps none.
#[derive(Default)]
struct Hashed {
    hasher: blake3::Hasher,
    bytes: u64,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
