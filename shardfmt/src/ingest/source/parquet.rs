//! A Parquet file, or a directory of them with the same columns.

use std::fs::File;
use std::path::{Path, PathBuf};

use ::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use ::parquet::errors::ParquetError;
use arrow::datatypes::SchemaRef;

use super::tree::FoundFile;
use super::{Piece, caught, digest_file, read_error};
use crate::ingest::error::one_line;
use crate::ingest::{IngestError, canonical};
use crate::manifest::InputDigest;

/// What a piece of rows should weigh in memory.
const PIECE_BYTES: u64 = 4 << 20;
/// Enough rows to amortise the work per piece, few enough to spread over threads.
const MOST_ROWS: u64 = 8192;

#[derive(Debug)]
pub(super) struct ParquetSource {
    files: Vec<ParquetFile>,
    skipped: u64,
}

#[derive(Debug)]
struct ParquetFile {
    path: PathBuf,
    name: String,
    metadata: ArrowReaderMetadata,
}

/// Whether the name is one that Parquet files have.
pub(super) fn is_named(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".parquet", ".parq", ".pq"].iter().any(|extension| name.ends_with(extension))
}

impl ParquetSource {
    /// Reads the footers of those of the files that are Parquet (a single file always is) and compares their columns.
    pub(super) fn open(
        root: &Path,
        found: Vec<FoundFile>,
    ) -> Result<(SchemaRef, ParquetSource), IngestError> {
        let single = found.len() == 1;
        let count = found.len() as u64;
        let mut files = Vec::new();
        let mut common: Option<(SchemaRef, String)> = None;
        for file in found.into_iter().filter(|file| single || is_named(&file.name)) {
            let metadata = open_metadata(&file.path)?;
            let schema = canonical::canonical_schema(&file.path, metadata.schema())?;
            common = Some(match common {
                None => (schema, file.name.clone()),
                Some((first, name)) => match canonical::difference(&first, &schema) {
                    None => (canonical::widen(&first, &schema), name),
                    Some(difference) => {
                        return Err(IngestError::Schemas { path: file.path, first: name.into(), difference });
                    }
                },
            });
            files.push(ParquetFile { path: file.path, name: file.name, metadata });
        }
        let skipped = count - files.len() as u64;
        let source = ParquetSource { files, skipped };
        match common {
            Some((schema, _)) if source.row_count() > 0 && !schema.fields().is_empty() => {
                Ok((schema, source))
            }
            _ => Err(IngestError::NoSamples {
                path: root.to_owned(),
                found: "the Parquet has no rows".to_owned(),
            }),
        }
    }

    pub(super) fn row_count(&self) -> u64 {
        self.files.iter().map(ParquetFile::row_count).sum()
    }

    pub(super) fn skipped_count(&self) -> u64 {
        self.skipped
    }

    pub(super) fn pieces(
        &self,
        push: &mut dyn FnMut(Piece) -> Result<(), IngestError>,
    ) -> Result<Vec<InputDigest>, IngestError> {
        self.files.iter().map(|file| file.pieces(push)).collect()
    }
}

impl ParquetFile {
    fn row_count(&self) -> u64 {
        u64::try_from(self.metadata.metadata().file_metadata().num_rows()).unwrap_or(0)
    }

    fn pieces(
        &self,
        push: &mut dyn FnMut(Piece) -> Result<(), IngestError>,
    ) -> Result<InputDigest, IngestError> {
        let file = File::open(&self.path).map_err(|error| read_error(&self.path, error))?;
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
            .with_batch_size(self.rows_per_piece());
        let build = caught(|| builder.build()).unwrap_or_else(gave_up);
        let mut reader = build.map_err(|error| self.error(error))?;
        let mut rows = 0;
        while let Some(batch) = caught(|| reader.next()).unwrap_or_else(|| Some(gave_up())) {
            let batch = batch.map_err(|error| self.error(error))?;
            rows += batch.num_rows() as u64;
            push(Piece::Rows(batch))?;
        }
        if rows != self.row_count() {
            return Err(self.error(format!("it has {rows} rows, its footer says {}", self.row_count())));
        }
        digest_file(&self.path, &self.name)
    }

    fn rows_per_piece(&self) -> usize {
        let groups = self.metadata.metadata().row_groups();
        let bytes: u64 = groups.iter().map(|group| u64::try_from(group.total_byte_size()).unwrap_or(0)).sum();
        let row_bytes = (bytes / self.row_count().max(1)).max(1);
        (PIECE_BYTES / row_bytes).clamp(1, MOST_ROWS) as usize
    }

    fn error(&self, reason: impl std::fmt::Display) -> IngestError {
        IngestError::Parquet { path: self.path.clone(), reason: one_line(reason) }
    }
}

fn open_metadata(path: &Path) -> Result<ArrowReaderMetadata, IngestError> {
    let file = File::open(path).map_err(|error| read_error(path, error))?;
    caught(|| ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()))
        .unwrap_or_else(gave_up)
        .map_err(|error| IngestError::Parquet { path: path.to_owned(), reason: one_line(error) })
}

/// What a reader that panicked has to say.
fn gave_up<T, E: From<ParquetError>>() -> Result<T, E> {
    Err(ParquetError::General("its reader gave up".to_owned()).into())
}
