//! CSV files with a header line and the same columns. Column types are inferred from all rows, so that a late "n/a" makes
//! a column text instead of ending the ingest.

use std::io::{BufRead, Read};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchReader};
use arrow::compute::{cast, concat_batches};
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::Format as CsvFormat;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use shardfmt::InputDigest;

use super::alike::Alike;
use super::lines::{self, Block, Blocks, Grammar, Records};
use super::{About, Faults, Feed, Format, PIECE_BYTES, PIECE_ROWS, canonical_rows, column_types};
use crate::config::{Delimiter, OnError};
use crate::error::one_line;
use crate::input::InputFile;
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError, canonical};

#[derive(Debug)]
pub(super) struct CsvSource {
    about: About,
    files: Alike<(InputFile, Header)>,
    grammar: Grammar,
    /// The schema given to the reader of CSV.
    read_as: SchemaRef,
}

/// The first line of a CSV file. It is put before every block of rows: what begins a text may be a byte order mark, and
/// the number of columns follows from the first line.
#[derive(Debug)]
struct Header {
    line: Vec<u8>,
    delimiter: u8,
    format: CsvFormat,
    names: SchemaRef,
}

impl CsvSource {
    /// Reads all files once to find the types of their columns.
    pub(super) fn open(kind: Kind, inputs: Inputs, config: &IngestConfig) -> Result<CsvSource, IngestError> {
        let path = inputs.path.clone();
        let usual = if kind == Kind::Tsv { Delimiter::Tab } else { Delimiter::Comma };
        let delimiter = config.delimiter.unwrap_or(usual);
        let record = match delimiter {
            Delimiter::Comma => record::<b','>,
            Delimiter::Semicolon => record::<b';'>,
            Delimiter::Tab => record::<b'\t'>,
            Delimiter::Pipe => record::<b'|'>,
        };
        let (files, passed_over) = kind.files(inputs, config);
        let files = lines::near(files)?;
        let files = Alike::open(files, config, |file| {
            let header = Header::of(&file, delimiter.byte(), record)?;
            let names = header.names.clone();
            Ok(((file, header), names))
        })?;
        let no_rows = || IngestError::NoSamples {
            path: path.clone(),
            found: "the CSV has no row below its header".to_owned(),
        };
        let Some((_, header)) = files.files.first() else { return Err(no_rows()) };
        let columns = header.names.fields().len().max(1) as u64;
        let rows = (PIECE_BYTES / (8 * columns)).clamp(1, PIECE_ROWS) as usize;
        let grammar = Grammar { record, has_header: true, rows, longest: lines::LONGEST_RECORD };
        let mut known = vec![Seen::default(); header.names.fields().len()];
        let mut count = 0;
        for (file, _) in &files.files {
            lines::survey(
                file,
                grammar,
                config.on_error,
                |block| header.look(&file.path, config.on_error, &block),
                |(seen, rows)| {
                    known.iter_mut().zip(&seen).for_each(|(known, seen)| known.merge(seen));
                    count += rows;
                    Ok(())
                },
            )?;
        }
        if count == 0 {
            return Err(no_rows());
        }
        let chosen = column_types(&path, &header.names, config)?;
        let fields = header.names.fields().iter().zip(known).map(|(field, known)| {
            let data_type = chosen.get(field.name()).cloned().unwrap_or_else(|| known.data_type());
            Field::new(field.name(), data_type, true)
        });
        let read_as = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        header.check_types(&read_as)?;
        let schema = canonical::canonical_schema(&path, &read_as)?;
        let rows = (config.on_error == OnError::Fail).then_some(count);
        Ok(CsvSource { about: About { schema, rows, passed_over }, files, grammar, read_as })
    }

    fn read(
        &self,
        (file, header): &(InputFile, Header),
        block: &Block,
        faults: &mut Faults,
    ) -> Result<RecordBatch, IngestError> {
        let mut batches = Vec::new();
        lines::by_halves(
            block.records(),
            &|records| header.read(&self.read_as, records),
            &mut |batch| batches.push(batch),
            &mut |records, reason| {
                let name = format!("{}, line {}", file.name, records.line());
                faults.add(name, header.fault(&file.path, records, reason))
            },
        )?;
        let batch = concat_batches(&self.read_as, &batches).map_err(|error| damaged(&file.path, error))?;
        canonical_rows(&file.path, &batch, &self.about.schema)
    }
}

impl Format for CsvSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        self.files.pieces(feed, |file, feed| {
            lines::pieces(&file.0, self.grammar, feed, move |block, faults| self.read(file, block, faults))
        })
    }
}

impl Header {
    fn of(
        file: &InputFile,
        delimiter: u8,
        record: fn(&[u8]) -> Option<usize>,
    ) -> Result<Header, IngestError> {
        let grammar = Grammar { record, has_header: false, rows: 1, longest: lines::LONGEST_RECORD };
        let Some(line) = Blocks::new(file, file.stream()?, grammar)?.header()? else {
            return Err(damaged(&file.path, "it has no row, and no header"));
        };
        let mut line = line.records().text().to_vec();
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        let format = CsvFormat::default().with_header(true).with_delimiter(delimiter);
        let (names, _) =
            format.infer_schema(line.as_slice(), Some(0)).map_err(|error| damaged(&file.path, error))?;
        Ok(Header { line, delimiter, format, names: Arc::new(names) })
    }

    fn before<'t>(&'t self, records: Records<'t>) -> impl BufRead + 't {
        self.line.as_slice().chain(records.text())
    }

    /// The types of a block's values, and its number of rows. Records that are none are passed over, if they
    /// will be skipped.
    fn look(&self, path: &Path, on_error: OnError, block: &Block) -> Result<(Vec<Seen>, u64), IngestError> {
        let (mut known, mut rows) = (vec![Seen::default(); self.names.fields().len()], 0);
        lines::by_halves(
            block.records(),
            &|records| self.infer(records),
            &mut |(seen, count)| {
                known.iter_mut().zip(&seen).for_each(|(known, seen)| known.merge(seen));
                rows += count as u64;
            },
            &mut |records, reason| match on_error {
                OnError::Fail => Err(self.fault(path, records, reason)),
                OnError::Skip => Ok(()),
            },
        )?;
        Ok((known, rows))
    }

    fn infer(&self, records: Records<'_>) -> Result<(Vec<Seen>, usize), String> {
        self.check_quotes(records)?;
        let (schema, rows) = self.format.infer_schema(self.before(records), None).map_err(words)?;
        check_rows(records, rows)?;
        let types = schema.fields().iter().map(|field| field.data_type().clone());
        let mut seen: Vec<Seen> = types.map(Seen::of).collect();
        // A text that only looks like a time is known when it is read.
        let moments: Vec<usize> = (0..seen.len()).filter(|&column| seen[column].is_moment()).collect();
        if !moments.is_empty() {
            let texts =
                self.names.fields().iter().map(|field| Field::new(field.name(), DataType::Utf8, true));
            let texts = Arc::new(Schema::new(texts.collect::<Vec<_>>()));
            let texts = self.values(&texts, Some(&moments), records)?;
            moments
                .iter()
                .zip(texts.columns())
                .for_each(|(&column, texts)| seen[column].check_moments(texts));
        }
        Ok((seen, rows))
    }

    fn read(&self, schema: &SchemaRef, records: Records<'_>) -> Result<RecordBatch, String> {
        self.check_quotes(records)?;
        let batch = self.values(schema, None, records)?;
        check_rows(records, batch.num_rows())?;
        Ok(batch)
    }

    /// The values of all columns, or some.
    fn values(
        &self,
        schema: &SchemaRef,
        columns: Option<&[usize]>,
        records: Records<'_>,
    ) -> Result<RecordBatch, String> {
        let mut builder = ReaderBuilder::new(schema.clone())
            .with_format(self.format.clone())
            .with_batch_size(records.len());
        if let Some(columns) = columns {
            builder = builder.with_projection(columns.to_vec());
        }
        let reader = builder.build_buffered(self.before(records)).map_err(words)?;
        let schema = reader.schema();
        let batches = reader.collect::<Result<Vec<_>, _>>().map_err(words)?;
        concat_batches(&schema, &batches).map_err(words)
    }

    /// Refuses a quoted value that does not end, which readers of CSV take for one that ends with the file.
    fn check_quotes(&self, records: Records<'_>) -> Result<(), String> {
        let last = records.iter().last().map_or(&[][..], |(_, record)| record);
        let state = last.iter().fold(State::Start, |state, &byte| state.after(byte, self.delimiter));
        if state == State::Quoted {
            return Err("a quoted value of this row does not end".to_owned());
        }
        Ok(())
    }

    /// The fault of a single record.
    fn fault(&self, path: &Path, record: Records<'_>, reason: String) -> IngestError {
        let (path, line) = (path.to_owned(), record.line());
        let reason = self.infer(record).err().unwrap_or(reason);
        // The commonest fault has a variant of its own; the reader has only words for it.
        if reason.contains("unequal lengths") {
            let mut numbers =
                reason.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u64>().ok());
            if let (Some(expected), Some(found)) = (numbers.next(), numbers.next()) {
                return IngestError::Columns { path, line, found: found.to_string(), expected };
            }
        }
        IngestError::Line { path, line, reason }
    }

    /// Refuses types that no text is read as: by reading a row of nothing.
    fn check_types(&self, schema: &SchemaRef) -> Result<(), IngestError> {
        let delimiter = char::from(self.delimiter).to_string();
        let record = vec!["\"\""; schema.fields().len()].join(&delimiter);
        let block = Block::of(record.into_bytes());
        self.read(schema, block.records()).map(|_| ()).map_err(|reason| IngestError::Config {
            setting: "types",
            reason,
            way_out: "give each column a type of one value, such as Int32, Float32 or Utf8",
        })
    }
}

/// The type of some values of a column.
#[derive(Clone, Debug)]
struct Seen {
    inferred: DataType,
    /// Whether they are moments of which some lie too far from 1970 to be counted in nanoseconds.
    is_far: bool,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen::of(DataType::Null)
    }
}

impl Seen {
    fn of(inferred: DataType) -> Seen {
        Seen { inferred, is_far: false }
    }

    fn is_moment(&self) -> bool {
        matches!(self.inferred, DataType::Date32 | DataType::Timestamp(..))
    }

    /// Makes moments texts if one of them is none, such as day 0, or has an offset, which would be lost.
    fn check_moments(&mut self, texts: &ArrayRef) {
        let is_plain = |text: &str| {
            text.bytes().skip(11).all(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.'))
        };
        let read_as = |data_type| {
            cast(texts, data_type).is_ok_and(|moments| moments.null_count() == texts.null_count())
        };
        if !texts.as_string::<i32>().iter().flatten().all(is_plain) || !read_as(&self.inferred) {
            self.inferred = DataType::Utf8;
        } else {
            self.is_far = !read_as(&DataType::Timestamp(TimeUnit::Nanosecond, None));
        }
    }

    fn merge(&mut self, seen: &Seen) {
        merge(&mut self.inferred, &seen.inferred);
        self.is_far |= seen.is_far;
    }

    /// The type of column that holds them all.
    fn data_type(self) -> DataType {
        match self.inferred {
            DataType::Null => DataType::Utf8,
            DataType::Timestamp(TimeUnit::Nanosecond, _) if self.is_far => DataType::Utf8,
            inferred => inferred,
        }
    }
}

/// The type of the values of two blocks: what Arrow's inference says of both together.
fn merge(known: &mut DataType, seen: &DataType) {
    use DataType::{Date32, Float64, Int64, Null, Timestamp, Utf8};
    let precision = |data_type: &DataType| match data_type {
        Date32 => Some(0),
        Timestamp(TimeUnit::Second, None) => Some(1),
        Timestamp(TimeUnit::Millisecond, None) => Some(2),
        Timestamp(TimeUnit::Microsecond, None) => Some(3),
        Timestamp(TimeUnit::Nanosecond, None) => Some(4),
        _ => None,
    };
    *known = match (&*known, seen) {
        (known, Null) => known.clone(),
        (Null, seen) => seen.clone(),
        (known, seen) if known == seen => return,
        (Int64 | Float64, Int64 | Float64) => Float64,
        (known, seen) => match (precision(known), precision(seen)) {
            (Some(a), Some(b)) => if a < b { seen } else { known }.clone(),
            _ => Utf8,
        },
    };
}

/// The reader and this file must agree on what a row is. A blank line is none.
fn check_rows(records: Records<'_>, rows: usize) -> Result<(), String> {
    let is_row = |(_, record): &(u64, &[u8])| !record.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
    let expected = records.iter().filter(is_row).count();
    if rows == expected { Ok(()) } else { Err(format!("is read as {rows} rows instead of {expected}")) }
}

/// The length of the first record of a text with its end: a line, unless a quoted value continues in the
/// next.
fn record<const DELIMITER: u8>(text: &[u8]) -> Option<usize> {
    let mut state = State::Start;
    for (index, &byte) in text.iter().enumerate() {
        state = state.after(byte, DELIMITER);
        if state == State::End {
            return Some(index + 1);
        }
    }
    None
}

/// The meaning of the next byte of a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It begins a value.
    Start,
    Plain,
    Quoted,
    /// It follows a quote in a quoted value: the end of the value, or the first of two.
    Quote,
    End,
}

impl State {
    fn after(self, byte: u8, delimiter: u8) -> State {
        match (self, byte) {
            (State::Quoted, b'"') => State::Quote,
            (State::Quoted, _) | (State::Start | State::Quote, b'"') => State::Quoted,
            (_, b'\n' | b'\r') => State::End,
            (_, byte) if byte == delimiter => State::Start,
            _ => State::Plain,
        }
    }
}

/// The error of a reader, without its own line number.
fn words(error: ArrowError) -> String {
    let words = match error {
        ArrowError::CsvError(words) | ArrowError::ParseError(words) => words,
        other => other.to_string(),
    };
    words.split(" at line ").next().unwrap_or_default().to_owned()
}

fn damaged(path: &Path, reason: impl std::fmt::Display) -> IngestError {
    IngestError::Damaged { path: path.to_owned(), kind: "CSV", reason: one_line(reason) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All rows of a text, however many values each has.
    fn read(text: &[u8]) -> RecordBatch {
        let fields = (0..64).map(|index| Field::new(index.to_string(), DataType::Utf8, true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let reader =
            ReaderBuilder::new(schema.clone()).with_truncated_rows(true).build_buffered(text).unwrap();
        concat_batches(&schema, &reader.collect::<Result<Vec<_>, _>>().unwrap()).unwrap()
    }

    fn infer(rows: &[&str]) -> DataType {
        let text = rows.join("\n") + "\n";
        let (schema, _) = CsvFormat::default().infer_schema(text.as_bytes(), None).unwrap();
        schema.field(0).data_type().clone()
    }

    proptest! {
        #[test]
        fn rows_end_where_the_reader_ends_them(text in prop::collection::vec(prop::sample::select(b"\"\"\",,\n\n\ra1".to_vec()), 0..60)) {
            let (mut parts, mut rest) = (Vec::new(), text.as_slice());
            while !rest.is_empty() {
                let (first, others) = rest.split_at(record::<b','>(rest).unwrap_or(rest.len()));
                parts.push(read(first));
                rest = others;
            }
            let whole = read(&text);
            prop_assert_eq!(concat_batches(&whole.schema(), &parts).unwrap(), whole);
        }

        #[test]
        fn types_of_parts_are_merged_to_those_of_the_whole(
            rows in prop::collection::vec(prop::sample::select(vec![
                "true", "1", "-7", "0.5", "1e9", "nan", "2020-01-02", "2020-01-02T03:04:05", "2020-01-02 03:04:05.123",
                "2020-01-02T03:04:05.123456", "2020-01-02T03:04:05.123456789", "99999999999999999999", "a", "n/a",
            ]), 1..6),
            at: prop::sample::Index,
        ) {
            let (left, right) = rows.split_at(at.index(rows.len()));
            let mut merged = DataType::Null;
            for part in [left, right].into_iter().filter(|part| !part.is_empty()) {
                merge(&mut merged, &infer(part));
            }
            prop_assert_eq!(merged, infer(&rows));
        }
    }
}
