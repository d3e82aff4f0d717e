//! Parquet files with the same columns.
//!
//! A piece is a row group, or some rows of a large one: a reader of flat columns skips to them page by page without
//! looking inside. Nested columns cannot be skipped without being read, so large row groups of those are read in order.

use std::ops::Range;
use std::sync::Arc;

use ::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::RowGroupMetaData;
use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{Schema, SchemaRef};

use super::alike::Alike;
use super::{Feed, Format, Kind, PIECE_BYTES, PIECE_ROWS, caught};
use crate::ingest::error::one_line;
use crate::ingest::input::{InputFile, Inputs, OpenInput};
use crate::ingest::{IngestConfig, IngestError, canonical};
use crate::manifest::InputDigest;

#[derive(Debug)]
pub(super) struct ParquetSource {
    files: Alike<ParquetFile>,
    schema: SchemaRef,
    others: u64,
}

#[derive(Debug)]
struct ParquetFile {
    file: InputFile,
    metadata: ArrowReaderMetadata,
}

impl ParquetSource {
    /// Reads the footers of those of the files that are Parquet (a single file always is) and compares their columns.
    pub(super) fn open(inputs: Inputs, config: &IngestConfig) -> Result<ParquetSource, IngestError> {
        let (path, count) = (inputs.path, inputs.files.len());
        let is_parquet = |file: &InputFile| inputs.is_file || Kind::Parquet.names(&file.name);
        let files = inputs.files.into_iter().filter(is_parquet).collect();
        let files = Alike::open(files, config, ParquetFile::open)?;
        let others = (count - files.count()) as u64;
        let schema = files.schema.clone().unwrap_or_else(|| Arc::new(Schema::empty()));
        let source = ParquetSource { files, schema, others };
        if source.row_count() == Some(0) || source.schema.fields().is_empty() {
            let found = "the Parquet has no rows".to_owned();
            return Err(IngestError::NoSamples { path, found });
        }
        Ok(source)
    }
}

impl Format for ParquetSource {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn row_count(&self) -> Option<u64> {
        self.files.files.iter().map(ParquetFile::row_count).try_fold(0, u64::checked_add)
    }

    fn skipped_count(&self) -> u64 {
        self.others
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        self.files.list_skipped(feed)?;
        self.files.files.iter().map(|file| file.pieces(&self.schema, feed)).collect()
    }
}

impl ParquetFile {
    fn open(file: InputFile) -> Result<(ParquetFile, SchemaRef), IngestError> {
        let input = file.open()?;
        let metadata = caught(|| ArrowReaderMetadata::load(&input, ArrowReaderOptions::new()))
            .unwrap_or_else(gave_up)
            .map_err(|error| damaged(&file, error))?;
        let schema = canonical::canonical_schema(&file.path, metadata.schema())?;
        Ok((ParquetFile { file, metadata }, schema))
    }

    fn row_count(&self) -> u64 {
        u64::try_from(self.metadata.metadata().file_metadata().num_rows()).unwrap_or(0)
    }

    fn pieces<'s>(
        &'s self,
        schema: &'s SchemaRef,
        feed: &mut Feed<'_, 's>,
    ) -> Result<InputDigest, IngestError> {
        let whole = self.file.open_whole()?;
        let mut start: u64 = 0;
        for (index, group) in self.metadata.metadata().row_groups().iter().enumerate() {
            let rows = u64::try_from(group.num_rows()).unwrap_or(0);
            let size = rows_per_piece(group, rows);
            if size < rows && is_nested(group) {
                self.in_order(&whole.input, index, rows, size, schema, feed)?;
            } else {
                for from in (0..rows).step_by(size as usize) {
                    let part = from..(from + size).min(rows);
                    let input = whole.input.clone();
                    let name = format!("{}, rows {}", self.file.name, shown(start, &part));
                    feed.piece(name, move |_| {
                        let batch = self.read(input, index, &part)?;
                        canonical::canonical_batch(&self.file.path, &batch, schema)
                    })?;
                }
            }
            start = start.saturating_add(rows);
        }
        if start != self.row_count() {
            let reason = format!("its row groups have {start} rows, its footer says {}", self.row_count());
            feed.fault(&self.file.name, damaged(&self.file, reason))?;
        }
        whole.digest()
    }

    /// Some rows of a row group.
    fn read(&self, input: OpenInput, group: usize, rows: &Range<u64>) -> Result<RecordBatch, IngestError> {
        let count = rows.end - rows.start;
        let read = caught(|| -> Result<RecordBatch, ParquetError> {
            let batches =
                self.reader(input, group, rows.start, count, count)?.collect::<Result<Vec<_>, _>>()?;
            Ok(concat_batches(self.metadata.schema(), &batches)?)
        });
        let batch = read.unwrap_or_else(gave_up).map_err(|error| damaged(&self.file, error))?;
        self.check_rows(batch.num_rows() as u64, count)?;
        Ok(batch)
    }

    /// A row group read here and now, as its parts cannot be read by themselves.
    fn in_order<'s>(
        &'s self,
        input: &OpenInput,
        group: usize,
        rows: u64,
        size: u64,
        schema: &'s SchemaRef,
        feed: &mut Feed<'_, 's>,
    ) -> Result<(), IngestError> {
        let name = format!("{}, row group {group}", self.file.name);
        let build = caught(|| self.reader(input.clone(), group, 0, rows, size)).unwrap_or_else(gave_up);
        let mut reader = match build {
            Ok(reader) => reader,
            Err(error) => return feed.fault(&name, damaged(&self.file, error)),
        };
        let mut found = 0;
        while let Some(batch) = caught(|| reader.next()).unwrap_or_else(|| Some(gave_up())) {
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => return feed.fault(&name, damaged(&self.file, error)),
            };
            found += batch.num_rows() as u64;
            feed.piece(name.clone(), move |_| canonical::canonical_batch(&self.file.path, &batch, schema))?;
        }
        self.check_rows(found, rows).or_else(|error| feed.fault(&name, error))
    }

    fn reader(
        &self,
        input: OpenInput,
        group: usize,
        from: u64,
        count: u64,
        batch: u64,
    ) -> Result<ParquetRecordBatchReader, ParquetError> {
        ParquetRecordBatchReaderBuilder::new_with_metadata(input, self.metadata.clone())
            .with_row_groups(vec![group])
            .with_offset(from as usize)
            .with_limit(count as usize)
            .with_batch_size(batch as usize)
            .build()
    }

    fn check_rows(&self, found: u64, expected: u64) -> Result<(), IngestError> {
        if found == expected {
            return Ok(());
        }
        Err(damaged(&self.file, format!("{found} rows where its footer says {expected}")))
    }
}

/// How many rows of a row group make a piece.
fn rows_per_piece(group: &RowGroupMetaData, rows: u64) -> u64 {
    let bytes = u64::try_from(group.total_byte_size()).unwrap_or(0);
    if bytes <= PIECE_BYTES && rows <= PIECE_ROWS {
        return rows.max(1);
    }
    let row_bytes = (bytes / rows.max(1)).max(1);
    (PIECE_BYTES / row_bytes).clamp(1, PIECE_ROWS)
}

fn is_nested(group: &RowGroupMetaData) -> bool {
    group.columns().iter().any(|column| column.column_descr().max_rep_level() > 0)
}

fn shown(start: u64, part: &Range<u64>) -> String {
    format!("{}..{}", start.saturating_add(part.start), start.saturating_add(part.end))
}

fn damaged(file: &InputFile, reason: impl std::fmt::Display) -> IngestError {
    IngestError::Parquet { path: file.path.clone(), reason: one_line(reason) }
}

/// What a reader that panicked has to say.
fn gave_up<T, E: From<ParquetError>>() -> Result<T, E> {
    Err(ParquetError::General("its reader gave up".to_owned()).into())
}
