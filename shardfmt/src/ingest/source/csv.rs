//! A CSV file with a header line. Column types are inferred from all of its rows, so that a late "n/a" makes a column
//! text instead of ending the ingest.

use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use arrow::csv::ReaderBuilder;
use arrow::csv::reader::Format as CsvFormat;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;

use super::{Feed, Format, canonical_rows};
use crate::ingest::error::one_line;
use crate::ingest::input::{InputFile, Inputs};
use crate::ingest::{IngestError, canonical};
use crate::manifest::InputDigest;

const ROWS_PER_PIECE: usize = 4096;

#[derive(Debug)]
pub(super) struct CsvSource {
    file: InputFile,
    format: CsvFormat,
    inferred: SchemaRef,
    schema: SchemaRef,
    rows: u64,
}

impl CsvSource {
    /// Reads the whole file once to find its columns and their types.
    pub(super) fn open(inputs: Inputs, delimiter: u8) -> Result<CsvSource, IngestError> {
        let file = inputs.files.into_iter().next().expect("a CSV source is one file");
        let format = CsvFormat::default().with_header(true).with_delimiter(delimiter);
        let (inferred, rows) =
            format.infer_schema(file.stream()?, None).map_err(|error| csv_error(&file.path, error))?;
        if rows == 0 {
            let found = "the CSV has no row below its header".to_owned();
            return Err(IngestError::NoSamples { path: file.path, found });
        }
        let inferred = Arc::new(without_nulls(&inferred));
        let schema = canonical::canonical_schema(&file.path, &inferred)?;
        Ok(CsvSource { file, format, inferred, schema, rows: rows as u64 })
    }
}

impl Format for CsvSource {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn row_count(&self) -> Option<u64> {
        Some(self.rows)
    }

    fn skipped_count(&self) -> u64 {
        0
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        let path = &self.file.path;
        let mut stream = self.file.stream()?;
        let reader = ReaderBuilder::new(self.inferred.clone())
            .with_format(self.format.clone())
            .with_batch_size(ROWS_PER_PIECE)
            .build_buffered(BufReader::new(&mut stream))
            .map_err(|error| csv_error(path, error))?;
        for batch in reader {
            let batch = batch.map_err(|error| csv_error(path, error))?;
            feed.piece(&self.file.name, move |_| canonical_rows(path, &batch, &self.schema))?;
        }
        Ok(vec![self.file.finish(stream)?])
    }
}

/// A column without a single value has no type; it is taken as text.
fn without_nulls(inferred: &Schema) -> Schema {
    let fields = inferred.fields().iter().map(|field| match field.data_type() {
        DataType::Null => Arc::new(Field::new(field.name(), DataType::Utf8, true)),
        _ => field.clone(),
    });
    Schema::new(fields.collect::<Vec<_>>())
}

/// The reader says what is wrong only in words. A row of the wrong length is the commonest fault, so it gets a
/// variant of its own, with the line an editor would show.
fn csv_error(path: &Path, error: ArrowError) -> IngestError {
    let reason = match error {
        ArrowError::CsvError(reason) => reason,
        other => other.to_string(),
    };
    if reason.contains("unequal lengths") {
        let numbers: Vec<u64> =
            reason.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        if let &[expected, found, line] = numbers.as_slice() {
            return IngestError::Columns { path: path.to_owned(), line, found: found.to_string(), expected };
        }
    }
    IngestError::Csv { path: path.to_owned(), reason: one_line(reason) }
}
