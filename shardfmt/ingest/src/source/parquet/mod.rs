//! Parquet files with the same columns.
//!
//! A piece is a row group, or some rows of a large one: a reader of flat columns skips to them page by page without
//! looking inside. Nested columns cannot be skipped without being read, nor can few large pages: large row groups with
//! such columns are read in order. Of [lists of numbers](lists) only the places of their rows are found in order.

mod hybrid;
mod lists;

use std::ops::Range;
use std::sync::Arc;

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use ::parquet::basic::{PageType, Type};
use ::parquet::column::page::{Page, PageReader};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use ::parquet::file::serialized_reader::SerializedPageReader;
use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::compute::concat_batches;
use arrow::datatypes::{Schema, SchemaRef};
use shardfmt::InputDigest;

use self::lists::{ListColumn, ListPart, ListShape};
use super::alike::Alike;
use super::{About, Feed, Format, LARGE_BYTES, MANY_ROWS, MOST_ROWS, PIECE_BYTES, caught, growth};
use crate::error::one_line;
use crate::input::{InputFile, OpenInput};
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError, canonical};

/// The pages of more than that are not listed before they are read: each costs a look at the file.
const MOST_PAGES: u64 = 4096;
/// The overhead of a row besides its values.
const ROW_OVERHEAD: u64 = 32;

#[derive(Debug)]
pub(super) struct ParquetSource {
    about: About,
    files: Alike<ParquetFile>,
}

#[derive(Debug)]
struct ParquetFile {
    file: InputFile,
    metadata: ArrowReaderMetadata,
}

/// A row group to be read in order.
struct Group {
    /// Its number in the file.
    index: usize,
    /// Rows before it in the file.
    start: u64,
    rows: u64,
    /// How many rows make a piece.
    size: u64,
}

impl ParquetSource {
    /// Reads the footers of those of the files that are Parquet (a single file always is) and compares their columns.
    pub(super) fn open(inputs: Inputs, config: &IngestConfig) -> Result<ParquetSource, IngestError> {
        let path = inputs.path.clone();
        let (files, passed_over) = Kind::Parquet.files(inputs, config);
        let files = Alike::open(files, config, ParquetFile::open)?;
        let schema = files.schema.clone().unwrap_or_else(|| Arc::new(Schema::empty()));
        let rows = files.files.iter().map(ParquetFile::row_count).try_fold(0, u64::checked_add);
        if rows == Some(0) || schema.fields().is_empty() {
            let found = "the Parquet has no rows".to_owned();
            return Err(IngestError::NoSamples { path, found });
        }
        Ok(ParquetSource { about: About { schema, rows, passed_over }, files })
    }
}

impl Format for ParquetSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        self.files.pieces(feed, |file, feed| file.pieces(&self.about.schema, feed))
    }
}

impl ParquetFile {
    fn open(file: InputFile) -> Result<(ParquetFile, SchemaRef), IngestError> {
        let input = file.open()?;
        let options = ArrowReaderOptions::new().with_encoding_stats_as_mask(false);
        let metadata = caught(|| ArrowReaderMetadata::load(&input, options))
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
            let rows = match checked_rows(group) {
                Ok(rows) => rows,
                Err(reason) => {
                    feed.fault(
                        &format!("{}, row group {index}", self.file.name),
                        damaged(&self.file, reason),
                    )?;
                    continue;
                }
            };
            // Pieces are bounded by the bytes of one column of lists.
            let lists = Some(self.lists(group, rows)).filter(|lists| lists.len() == 1).unwrap_or_default();
            let size = self.rows_per_piece(&whole.input, group, &lists, rows);
            if !lists.is_empty() && self.can_skip(group, &lists, rows.div_ceil(size)) {
                self.lists_in_order(&whole.input, &Group { index, start, rows, size }, lists, schema, feed)?;
            } else if size < rows && !self.can_skip(group, &[], rows.div_ceil(size)) {
                self.in_order(&whole.input, &Group { index, start, rows, size }, schema, feed)?;
            } else {
                for part in self.cuts(&whole.input, group, rows, size) {
                    let input = whole.input.clone();
                    let name = format!("{}, rows {}", self.file.name, shown(start, &part));
                    feed.piece(name, move |_| {
                        let batch = self.read(input, index, &part, ProjectionMask::all())?;
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

    /// The columns that are lists of numbers: of each its number in the schema, the number of its only leaf, and how
    /// it is stored.
    fn lists(&self, group: &RowGroupMetaData, rows: u64) -> Vec<(usize, usize, ListShape)> {
        let (schema, leaves) = (self.metadata.schema(), self.metadata.parquet_schema());
        let list = |(leaf, column): (usize, &ColumnChunkMetaData)| {
            let root = leaves.get_column_root_idx(leaf);
            let shape = ListShape::of(schema.fields().get(root)?, column, rows)?;
            Some((root, leaf, shape))
        };
        // A root of several leaves is a struct, or has one: no list of numbers.
        group.columns().iter().enumerate().filter_map(list).collect()
    }

    /// How many rows of a row group make a piece.
    fn rows_per_piece(
        &self,
        input: &OpenInput,
        group: &RowGroupMetaData,
        lists: &[(usize, usize, ListShape)],
        rows: u64,
    ) -> u64 {
        let per_row = |bytes: u64| bytes / rows.max(1);
        let row_bytes = group.columns().iter().enumerate().map(|(leaf, column)| {
            if let Some((_, _, shape)) = lists.iter().find(|(_, of, _)| *of == leaf) {
                let items = u64::try_from(column.num_values()).unwrap_or(0);
                return shape.row_bytes(per_row(items));
            }
            let known = per_row(decoded_bytes(column));
            // Unless even the whole dictionary in every row of a piece would do no harm.
            let most = u64::try_from(column.uncompressed_size()).unwrap_or(0);
            match shares_texts(column) && most.saturating_mul(rows.min(MANY_ROWS)) > PIECE_BYTES {
                true => known.max(self.mean_text(input, column, rows).unwrap_or(0)),
                false => known,
            }
        });
        let row_bytes = row_bytes.fold(ROW_OVERHEAD, u64::saturating_add);
        (PIECE_BYTES / row_bytes).clamp(1, MANY_ROWS).min(rows.max(1))
    }

    /// The pieces of a row group, of at most `size` rows: they end where pages of the column with the most bytes do,
    /// so that no two read one page, unless pages are too large or too many.
    fn cuts(&self, input: &OpenInput, group: &RowGroupMetaData, rows: u64, size: u64) -> Vec<Range<u64>> {
        let widest = group.columns().iter().max_by_key(|column| column.uncompressed_size());
        let ends = match widest.filter(|_| size < rows) {
            Some(column) => page_ends(input, column, rows).unwrap_or_default(),
            None => Vec::new(),
        };
        cuts_at(&ends, rows, size)
    }

    /// The mean length of the texts of a dictionary.
    fn mean_text(&self, input: &OpenInput, column: &ColumnChunkMetaData, rows: u64) -> Option<u64> {
        let first_page = || {
            let input = Arc::new(input.clone());
            SerializedPageReader::new(input, column, rows as usize, None)?.get_next_page()
        };
        // A page that cannot be read is found when its rows are.
        match caught(first_page)?.ok()?? {
            Page::DictionaryPage { buf, num_values, .. } => {
                Some(buf.len() as u64 / u64::from(num_values.max(1)))
            }
            _ => None,
        }
    }

    /// Whether a reader gets to each of the pieces of a row group without reading much of the others, apart from
    /// `lists`.
    fn can_skip(&self, group: &RowGroupMetaData, lists: &[(usize, usize, ListShape)], pieces: u64) -> bool {
        let fields = self.metadata.schema().fields();
        let is_list = |leaf: usize| lists.iter().any(|(_, of, _)| *of == leaf);
        let is_flat = |column: &ColumnChunkMetaData| column.column_descr().max_rep_level() == 0;
        let has_pages = |column| pages(column).is_some_and(|pages| pages.saturating_mul(2) >= pieces);
        // Levels and short values of many rows fit a page: to unpack it for each piece again costs little.
        let is_small = |column: &ColumnChunkMetaData| decoded_bytes(column) <= PIECE_BYTES;
        !fields.iter().any(|field| growth::grows(field.data_type()))
            && group.columns().iter().enumerate().all(|(leaf, column)| {
                is_list(leaf) || is_flat(column) && (has_pages(column) || is_small(column))
            })
    }

    /// Some rows of a row group.
    fn read(
        &self,
        input: OpenInput,
        group: usize,
        rows: &Range<u64>,
        columns: ProjectionMask,
    ) -> Result<RecordBatch, IngestError> {
        let count = rows.end - rows.start;
        let read = caught(|| -> Result<RecordBatch, ParquetError> {
            let reader = self.reader(input, group, rows.start, count, count, columns)?;
            let schema = reader.schema();
            Ok(concat_batches(&schema, &reader.collect::<Result<Vec<_>, _>>()?)?)
        });
        let batch = read.unwrap_or_else(gave_up).map_err(|error| damaged(&self.file, error))?;
        self.check_rows(batch.num_rows() as u64, count)?;
        Ok(batch)
    }

    /// A row group read here and now, as its parts cannot be read by themselves.
    fn in_order<'s>(
        &'s self,
        input: &OpenInput,
        group: &Group,
        schema: &'s SchemaRef,
        feed: &mut Feed<'_, 's>,
    ) -> Result<(), IngestError> {
        let Group { index: group, rows, size, .. } = *group;
        let name = format!("{}, row group {group}", self.file.name);
        let build = caught(|| self.reader(input.clone(), group, 0, rows, size, ProjectionMask::all()));
        let build = build.unwrap_or_else(gave_up);
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
            let slices = match growth::slices(batch) {
                Ok(slices) => slices,
                Err(reason) => return feed.fault(&name, damaged(&self.file, reason)),
            };
            for batch in slices {
                feed.piece(name.clone(), move |_| {
                    canonical::canonical_batch(&self.file.path, &batch, schema)
                })?;
            }
        }
        self.check_rows(found, rows).or_else(|error| feed.fault(&name, error))
    }

    /// A row group whose lists of numbers are walked through here and now, and decoded in pieces together with its
    /// other columns.
    fn lists_in_order<'s>(
        &'s self,
        input: &OpenInput,
        group: &Group,
        lists: Vec<(usize, usize, ListShape)>,
        schema: &'s SchemaRef,
        feed: &mut Feed<'_, 's>,
    ) -> Result<(), IngestError> {
        let Group { index: group, start, rows, size } = *group;
        let group_name = format!("{}, row group {group}", self.file.name);
        let chunks = self.metadata.metadata().row_group(group);
        let others = (0..chunks.num_columns()).filter(|leaf| !lists.iter().any(|(_, of, _)| of == leaf));
        let others = ProjectionMask::leaves(self.metadata.parquet_schema(), others);
        let has_others = lists.len() < chunks.num_columns();
        let mut columns = Vec::with_capacity(lists.len());
        for (root, leaf, shape) in lists {
            let (input, column) = (Arc::new(input.clone()), chunks.column(leaf));
            let pages = caught(|| SerializedPageReader::new(input, column, rows as usize, None));
            match pages.unwrap_or_else(gave_up) {
                Ok(pages) => {
                    let levels = u64::try_from(column.num_values()).unwrap_or(0);
                    columns.push((root, ListColumn::new(shape, pages, levels)));
                }
                Err(error) => return feed.fault(&group_name, damaged(&self.file, error)),
            }
        }
        let mut found = 0;
        while found < rows {
            let mut wanted = size.min(rows - found) as usize;
            let mut parts = Vec::with_capacity(columns.len());
            for (root, column) in &mut columns {
                // The first says how many rows the piece has.
                let most_bytes = if parts.is_empty() { LARGE_BYTES as usize } else { usize::MAX };
                match column.take(wanted, most_bytes) {
                    Ok(part) if parts.is_empty() || part.rows() == wanted => {
                        wanted = part.rows();
                        parts.push((*root, part));
                    }
                    Ok(part) => {
                        let reason = format!("its columns have {wanted} rows and {}", part.rows());
                        return feed.fault(&group_name, damaged(&self.file, reason));
                    }
                    Err(reason) => return feed.fault(&group_name, damaged(&self.file, reason)),
                }
            }
            if wanted == 0 {
                break;
            }
            let part = found..found + wanted as u64;
            found = part.end;
            let name = format!("{}, rows {}", self.file.name, shown(start, &part));
            let (input, others) = (input.clone(), others.clone());
            feed.piece(name, move |_| {
                let others = if has_others { Some(self.read(input, group, &part, others)?) } else { None };
                let batch = self.with_lists(parts, others).map_err(|reason| damaged(&self.file, reason))?;
                canonical::canonical_batch(&self.file.path, &batch, schema)
            })?;
        }
        for (_, column) in columns.iter_mut().filter(|_| found == rows) {
            if let Err(reason) = column.finish() {
                return feed.fault(&group_name, damaged(&self.file, reason));
            }
        }
        self.check_rows(found, rows).or_else(|error| feed.fault(&group_name, error))
    }

    /// The columns of some rows in the order of the schema: lists of numbers, and the others.
    fn with_lists(
        &self,
        lists: Vec<(usize, ListPart)>,
        others: Option<RecordBatch>,
    ) -> Result<RecordBatch, String> {
        let mut columns: Vec<_> = others.iter().flat_map(RecordBatch::columns).cloned().collect();
        for (root, part) in lists {
            columns.insert(root.min(columns.len()), part.decode()?); // ascending, so that those before are there
        }
        RecordBatch::try_new(self.metadata.schema().clone(), columns).map_err(one_line)
    }

    fn reader(
        &self,
        input: OpenInput,
        group: usize,
        from: u64,
        count: u64,
        batch: u64,
        columns: ProjectionMask,
    ) -> Result<ParquetRecordBatchReader, ParquetError> {
        ParquetRecordBatchReaderBuilder::new_with_metadata(input, self.metadata.clone())
            .with_projection(columns)
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

/// The rows of a row group, if it agrees with itself.
fn checked_rows(group: &RowGroupMetaData) -> Result<u64, String> {
    let rows = u64::try_from(group.num_rows()).ok().filter(|rows| *rows <= MOST_ROWS);
    let rows = rows.ok_or_else(|| format!("a row group cannot have {} rows", group.num_rows()))?;
    let differs = |column: &&ColumnChunkMetaData| {
        column.column_descr().max_rep_level() == 0 && column.num_values() != group.num_rows()
    };
    match group.columns().iter().find(differs) {
        None => Ok(rows),
        Some(column) => {
            let (path, values) = (column.column_path(), column.num_values());
            Err(format!("column {path} has {values} values in a row group of {rows} rows"))
        }
    }
}

/// Parts of at most `size` of `rows` rows. Each ends at the last of `ends` that it reaches, unless it would be less
/// than half as large as it may be.
fn cuts_at(ends: &[u64], rows: u64, size: u64) -> Vec<Range<u64>> {
    let (mut cuts, mut from) = (Vec::new(), 0);
    while from < rows {
        let most = from.saturating_add(size).min(rows);
        let last = ends.partition_point(|end| *end <= most).checked_sub(1).map(|last| ends[last]);
        let half = from.saturating_add(size.div_ceil(2)).max(from + 1);
        let end = last.filter(|end| most < rows && *end >= half);
        cuts.push(from..end.unwrap_or(most));
        from = end.unwrap_or(most);
    }
    cuts
}

/// For each page of a flat column the number of rows up to its end: `None` where its writer does not say how many pages
/// there are, or they cannot be listed. A fault of theirs is found when rows are read.
fn page_ends(input: &OpenInput, column: &ColumnChunkMetaData, rows: u64) -> Option<Vec<u64>> {
    let pages = pages(column).filter(|pages| (2..=MOST_PAGES).contains(pages))?;
    let input = Arc::new(input.clone());
    let listed = caught(|| -> Result<Option<Vec<u64>>, ParquetError> {
        let mut reader = SerializedPageReader::new(input, column, rows as usize, None)?;
        let (mut ends, mut end) = (Vec::with_capacity(pages as usize), 0);
        while let Some(page) = reader.peek_next_page()? {
            if !page.is_dict {
                let Some(rows) = page.num_rows.or(page.num_levels) else { return Ok(None) };
                end += rows as u64;
                ends.push(end);
            }
            reader.skip_next_page()?;
        }
        Ok(Some(ends))
    });
    listed?.ok()?
}

/// The decoded size of the values of a column, by its metadata: a dictionary may stand for more.
fn decoded_bytes(column: &ColumnChunkMetaData) -> u64 {
    let positive = |number: i64| u64::try_from(number).unwrap_or(0);
    let width = match column.column_type() {
        Type::BOOLEAN => 1,
        Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
        Type::INT64 | Type::DOUBLE => 8,
        Type::INT96 => 12,
        Type::FIXED_LEN_BYTE_ARRAY => positive(column.column_descr().type_length().into()),
    };
    let fixed = positive(column.num_values()).saturating_mul(width);
    let texts = column.unencoded_byte_array_data_bytes().map_or(0, positive);
    fixed.saturating_add(texts).max(positive(column.uncompressed_size()))
}

/// Whether a column may have values of different lengths of which many share one place.
fn shares_texts(column: &ColumnChunkMetaData) -> bool {
    column.column_type() == Type::BYTE_ARRAY
        && column.dictionary_page_offset().is_some()
        && column.unencoded_byte_array_data_bytes().is_none()
}

/// How many pages the values of a column lie on, if its writer says so.
fn pages(column: &ColumnChunkMetaData) -> Option<u64> {
    let is_data = |kind| matches!(kind, PageType::DATA_PAGE | PageType::DATA_PAGE_V2);
    let stats = column.page_encoding_stats()?.iter().filter(|stats| is_data(stats.page_type));
    Some(stats.map(|stats| u64::try_from(stats.count).unwrap_or(0)).sum())
}

fn shown(start: u64, part: &Range<u64>) -> String {
    format!("{}..{}", start.saturating_add(part.start), start.saturating_add(part.end))
}

fn damaged(file: &InputFile, reason: impl std::fmt::Display) -> IngestError {
    IngestError::Parquet { path: file.path.clone(), reason: one_line(reason) }
}

/// The message of a reader that panicked.
fn gave_up<T, E: From<ParquetError>>() -> Result<T, E> {
    Err(ParquetError::General("its reader gave up".to_owned()).into())
}

#[cfg(test)]
mod tests;
