//! TFRecord files of `tf.train.Example`: each feature is a column.
//!
//! Types are those of all records together, so files are read twice, as JSON Lines are.

mod column;
mod example;
pub(crate) mod frame;
mod records;
mod survey;
mod wire;

use std::collections::BTreeSet;
use std::path::Path;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
use shardfmt::InputDigest;

use self::column::{Column, Values};
use self::example::{Example, MOST_FEATURES};
use self::records::{Block, Record};
use self::survey::Survey;
use super::{About, Faults, Feed, Format, LARGE_BYTES, PIECE_ROWS, Stopped, column_types, lines};
use crate::config::OnError;
use crate::error::one_line;
use crate::input::InputFile;
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError, canonical};

#[derive(Debug)]
pub(super) struct TfRecordSource {
    about: About,
    files: Vec<InputFile>,
    columns: Vec<Column>,
    /// The most records that are read at a time: all may lack tensors, whose nulls take their room.
    at_once: usize,
}

/// Whether a file begins with these bytes as one of records does: the length of the first, and its checksum.
pub(super) fn is_head(head: &[u8]) -> bool {
    head.first_chunk().is_some_and(|head| frame::length(*head).is_some())
}

impl TfRecordSource {
    /// Reads all files once to find their columns.
    pub(super) fn open(inputs: Inputs, config: &IngestConfig) -> Result<TfRecordSource, IngestError> {
        let path = inputs.path.clone();
        let (files, passed_over) = Kind::TfRecord.files(inputs, config);
        let files = lines::near(files)?;
        let survey = survey(&files, config)?;
        let mut columns = survey.columns();
        if columns.is_empty() {
            let found = match survey.records {
                0 => "there is no record".to_owned(),
                records => format!("none of {records} records has a feature of tf.train.Example"),
            };
            return Err(IngestError::NoSamples { path, found });
        }
        let types = column_types(&path, &schema(&columns), config)?;
        for column in &mut columns {
            types.get(&column.name).map_or(Ok(()), |chosen| column.choose(chosen))?;
        }
        let found = canonical::canonical_schema(&path, &schema(&columns))?;
        let (schema, asked) = super::project(&path, &found, config.columns.as_deref())?;
        if let Some(asked) = asked {
            columns = asked.into_iter().map(|index| columns[index].clone()).collect();
        }
        let nulls: u64 = columns.iter().map(Column::null_bytes).fold(0, u64::saturating_add);
        let at_once = (LARGE_BYTES / nulls.max(1)).clamp(1, PIECE_ROWS) as usize;
        let rows = (config.on_error == OnError::Fail).then_some(survey.records);
        Ok(TfRecordSource { about: About { schema, rows, passed_over }, files, columns, at_once })
    }

    fn read(&self, file: &InputFile, block: &Block, faults: &mut Faults) -> Result<RecordBatch, IngestError> {
        let mut values: Vec<Values<'_>> = self.columns.iter().map(Values::new).collect();
        let mut rows = 0;
        for record in block.records() {
            match self.add(&record, &mut values) {
                Ok(()) => rows += 1,
                Err(reason) => {
                    faults.add(
                        format!("{}, {}", file.name, record.name()),
                        fault(&file.path, &record, reason),
                    )?;
                }
            }
        }
        let columns: Vec<ArrayRef> = values.into_iter().map(Values::finish).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.about.schema.clone(), columns, &options)
            .map_err(|error| IngestError::Row { path: file.path.clone(), reason: one_line(error) })
    }

    /// Adds a record as a row; nothing of it if it is none.
    fn add(&self, record: &Record<'_>, values: &mut [Values<'_>]) -> Result<(), String> {
        let example = Example::parse(record.content()?)?;
        self.columns.iter().try_for_each(|column| column.check(example.get(&column.name)))?;
        for (values, column) in values.iter_mut().zip(&self.columns) {
            values.push(example.get(&column.name))?;
        }
        Ok(())
    }
}

impl Format for TfRecordSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        let digests = self.files.iter().map(|file| {
            let mut stream = file.stream()?;
            let visited = records::each_block(file, &mut stream, self.at_once, &mut |block| {
                let name = format!("{}, from record {}", file.name, block.first);
                feed.piece(name, move |faults| self.read(file, &block, faults)).map_err(Stopped::Elsewhere)
            });
            feed.visited(&file.name, visited)?;
            file.finish(stream)
        });
        digests.collect()
    }
}

/// The features of all records. Records that are no rows are passed over, if they will be skipped.
fn survey(files: &[InputFile], config: &IngestConfig) -> Result<Survey, IngestError> {
    let asked: Option<BTreeSet<&str>> =
        config.columns.as_ref().map(|columns| columns.iter().map(String::as_str).collect());
    let is_asked_for = |name: &str| asked.as_ref().is_none_or(|asked| asked.contains(name));
    let add = |known: &mut Survey, record: &Record<'_>| {
        known.add(&Example::parse(record.content()?)?, is_asked_for)
    };
    let mut known = Survey::default();
    for file in files {
        let look = |block: Block| {
            let mut seen = Survey::default();
            let seen = block.records().try_for_each(|record| add(&mut seen, &record)).map(|()| seen);
            Ok((block, seen))
        };
        let each = |visit: &mut dyn FnMut(Block) -> Result<(), Stopped>| {
            records::each_block(file, file.stream()?, PIECE_ROWS as usize, visit)
        };
        lines::survey_blocks(config.on_error, each, look, |(block, seen)| {
            match seen {
                Ok(seen) if known.fits(&seen, is_asked_for) => known.merge(&seen),
                // Some record is bad, or does not fit those before: which, is known when they are added one by one.
                _ => {
                    for record in block.records() {
                        match add(&mut known, &record) {
                            Err(reason) if config.on_error == OnError::Fail => {
                                return Err(fault(&file.path, &record, reason));
                            }
                            Ok(()) | Err(_) => {}
                        }
                    }
                }
            }
            if known.len() > MOST_FEATURES {
                let reason =
                    format!("its records have more than {MOST_FEATURES} features; are their names data?");
                return Err(IngestError::Damaged { path: file.path.clone(), kind: "TFRecord", reason });
            }
            Ok(())
        })?;
    }
    Ok(known)
}

fn schema(columns: &[Column]) -> SchemaRef {
    Schema::new(columns.iter().map(Column::field).collect::<Vec<Field>>()).into()
}

fn fault(path: &Path, record: &Record<'_>, reason: String) -> IngestError {
    IngestError::Member { path: path.to_owned(), entry: record.name(), reason }
}
