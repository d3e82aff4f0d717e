//! Samples that have rows around their own, of another kind of input. Rows of that are read on any thread, and cut into windows in
//! their order; at most the rows of the longest window and those of a piece are held.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, RecordBatch, UInt8Array, UInt64Array};
use arrow::compute::{concat, concat_batches, partition, take, take_record_batch};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use shardfmt::InputDigest;

use super::arrays::{as_tensors, tensor_shape};
use super::{About, Feed, Format, PIECE_BYTES, PIECE_ROWS, Piece, no_column};
use crate::{Edges, IngestError, Windows, pipeline};

/// The end of the name of a column that marks the rows beyond the ends of a sequence.
const IS_PAD: &str = "_is_pad";

/// Another input, whose samples have windows.
#[derive(Debug)]
pub(super) struct Windowed {
    about: About,
    path: PathBuf,
    inner: Box<dyn Format>,
    cut: Cut,
}

/// How rows are cut into windows.
#[derive(Debug)]
struct Cut {
    /// The column whose changes end a sequence.
    by: Option<usize>,
    /// By column of the input its window, if it has one.
    columns: Vec<Option<Column>>,
    stride: u64,
    edges: Edges,
    /// How many rows before and after its own a sample has at most.
    back: u64,
    ahead: u64,
    /// The bytes of a sample, without those of values of any size.
    bytes: u64,
    /// Samples of a piece.
    samples: usize,
    schema: SchemaRef,
}

#[derive(Debug)]
struct Column {
    offsets: Vec<i64>,
    /// The tensors of a window.
    tensors: FieldRef,
}

impl Windowed {
    /// # Errors
    /// If there is no such column, or it has no numbers of one shape; if a window is larger than a sample may be.
    pub(super) fn open(
        path: &Path,
        inner: Box<dyn Format>,
        windows: &Windows,
    ) -> Result<Windowed, IngestError> {
        let About { schema, rows, passed_over } = inner.about();
        let index = |name: &str| schema.index_of(name).map_err(|_| no_column(path, name, schema));
        let mut columns: Vec<Option<Column>> = schema.fields().iter().map(|_| None).collect();
        for (name, offsets) in &windows.columns {
            let column = index(name)?;
            let offsets: Vec<i64> = offsets.rows().iter().copied().map(i64::from).collect();
            let tensors = tensors(schema.field(column), offsets.len())?;
            columns[column] = Some(Column { offsets, tensors });
        }
        let by = windows.by.as_deref().map(index).transpose()?;
        if let Some(by) = by.map(|by| schema.field(by))
            && by.data_type().is_nested()
        {
            return Err(refused(format!(
                "column {:?} has values of type {}, and a sequence ends where a number or a text changes",
                by.name(),
                by.data_type()
            )));
        }
        let mut fields = Vec::new();
        for (field, column) in schema.fields().iter().zip(&columns) {
            let Some(column) = column else {
                fields.push(Arc::clone(field));
                continue;
            };
            fields.push(Arc::clone(&column.tensors));
            if windows.edges == Edges::Repeat {
                let name = format!("{}{IS_PAD}", field.name());
                if schema.index_of(&name).is_ok() {
                    return Err(refused(format!(
                        "column {name:?} of the input has the name of a column of padding"
                    )));
                }
                fields.push(pads(name, column.offsets.len())?);
            }
        }
        let bytes: u64 = fields.iter().map(|field| width(field.data_type())).sum();
        let all = || columns.iter().flatten().flat_map(|column| &column.offsets);
        let cut = Cut {
            by,
            stride: windows.stride.map_or(1, |stride| stride.get().into()),
            edges: windows.edges,
            back: all().map(|offset| (-offset).max(0)).max().unwrap_or(0) as u64,
            ahead: all().map(|offset| (*offset).max(0)).max().unwrap_or(0) as u64,
            bytes,
            samples: PIECE_ROWS.min(PIECE_BYTES / bytes.max(1)).max(1) as usize,
            schema: Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())),
            columns,
        };
        let is_each_row = cut.stride == 1 && cut.edges == Edges::Repeat;
        let rows = rows.filter(|_| is_each_row);
        let about = About { schema: Arc::clone(&cut.schema), rows, passed_over: *passed_over };
        Ok(Windowed { about, path: path.to_owned(), inner, cut })
    }
}

impl Format for Windowed {
    fn about(&self) -> &About {
        &self.about
    }

    fn turned_out(&self) -> Option<crate::kind::Kind> {
        self.inner.turned_out()
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        let mut name = self.path.display().to_string();
        feed.check_row(&name, self.cut.bytes)?;
        let (mut sequence, mut made) = (Sequence::new(&self.cut), Made::new(&self.cut));
        let (on_error, largest_row) = (feed.on_error, feed.largest_row);
        let digests = pipeline::in_order(
            2 * rayon::current_num_threads() + 1,
            |push| self.inner.pieces(&mut Feed { push, on_error, largest_row }),
            |piece: Piece<'s>| piece.read(on_error),
            |(batch, faults)| {
                name = faults.piece().to_owned();
                feed.pass_on(faults)?;
                let Some(batch) = batch else { return Ok(()) };
                let refused = |reason| IngestError::Row {
                    path: self.path.clone(),
                    reason: format!("{name}: {reason}"),
                };
                self.cut.check(&batch).map_err(refused)?;
                sequence.add(&batch, &mut |samples| made.push(samples, &name, feed))
            },
        )?;
        sequence.end(&mut |samples| made.push(samples, &name, feed))?;
        made.list(&name, feed)?;
        if !made.has_any && sequence.has_rows {
            let rows = self.cut.back + self.cut.ahead + 1;
            return Err(IngestError::Config {
                setting: "window",
                reason: format!("no window of {rows} rows lies whole in a sequence"),
                way_out: "take shorter windows, or keep the edges at `repeat`",
            });
        }
        Ok(digests)
    }
}

/// Samples that are no whole piece yet: sequences may be short.
struct Made<'c> {
    cut: &'c Cut,
    /// Whether there ever was one.
    has_any: bool,
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: u64,
}

impl<'c> Made<'c> {
    fn new(cut: &'c Cut) -> Self {
        Self { cut, has_any: false, batches: Vec::new(), rows: 0, bytes: 0 }
    }

    fn push(&mut self, samples: RecordBatch, name: &str, feed: &mut Feed<'_, '_>) -> Result<(), IngestError> {
        self.has_any |= samples.num_rows() > 0;
        self.rows += samples.num_rows();
        self.bytes += samples.get_array_memory_size() as u64;
        self.batches.push(samples);
        if self.rows >= self.cut.samples || self.bytes >= PIECE_BYTES {
            self.list(name, feed)
        } else {
            Ok(())
        }
    }

    /// Lists them as a piece.
    fn list(&mut self, name: &str, feed: &mut Feed<'_, '_>) -> Result<(), IngestError> {
        if self.batches.is_empty() {
            return Ok(());
        }
        let (batches, schema) = (std::mem::take(&mut self.batches), Arc::clone(&self.cut.schema));
        (self.rows, self.bytes) = (0, 0);
        feed.piece(name, move |_| concat_batches(&schema, &batches).map_err(too_large))
    }
}

/// Rows of a sequence whose windows are not given out yet.
struct Sequence<'c> {
    cut: &'c Cut,
    /// Whether the input has a row.
    has_rows: bool,
    /// The rows that windows still need.
    rows: Option<RecordBatch>,
    /// The number in the sequence of the first of them.
    first: u64,
    /// How many rows the sequence has so far.
    len: u64,
    /// The row of the next sample.
    next: u64,
    /// The last row's value of the column that ends a sequence.
    last: Option<ArrayRef>,
}

/// Takes samples that are made.
type Give<'g> = dyn FnMut(RecordBatch) -> Result<(), IngestError> + 'g;

impl<'c> Sequence<'c> {
    fn new(cut: &'c Cut) -> Self {
        Self { cut, has_rows: false, rows: None, first: 0, len: 0, next: 0, last: None }
    }

    /// Takes the next rows of the input, of one or more sequences, and gives the samples that are complete.
    fn add(&mut self, batch: &RecordBatch, give: &mut Give<'_>) -> Result<(), IngestError> {
        let Some(by) = self.cut.by.filter(|_| batch.num_rows() > 0) else {
            return self.extend(batch.clone(), give);
        };
        let values = batch.column(by);
        // Together with the row before, so that a sequence continues in the next batch.
        let before = self.last.take();
        let known = usize::from(before.is_some());
        let joined = match &before {
            Some(before) => concat(&[before, values]).expect("one column's values"),
            None => Arc::clone(values),
        };
        self.last = Some(values.slice(values.len() - 1, 1));
        let ranges = partition(&[joined]).expect("a column that can be compared").ranges();
        for (number, range) in ranges.iter().enumerate() {
            if number > 0 {
                self.end(give)?;
            }
            let (start, end) = (range.start.max(known) - known, range.end - known);
            if start < end {
                self.extend(batch.slice(start, end - start), give)?;
            }
        }
        Ok(())
    }

    /// Takes further rows of the sequence.
    fn extend(&mut self, rows: RecordBatch, give: &mut Give<'_>) -> Result<(), IngestError> {
        self.has_rows |= rows.num_rows() > 0;
        self.len += rows.num_rows() as u64;
        let rows = match self.rows.take() {
            Some(held) => concat_batches(&rows.schema(), [&held, &rows]).map_err(too_large)?,
            None => rows,
        };
        self.rows = Some(rows);
        self.give(self.len.saturating_sub(self.cut.ahead), give)
    }

    /// Gives the samples that the sequence still has, and begins another one.
    fn end(&mut self, give: &mut Give<'_>) -> Result<(), IngestError> {
        let end = match self.cut.edges {
            Edges::Repeat => self.len,
            Edges::Drop => self.len.saturating_sub(self.cut.ahead),
        };
        self.give(end, give)?;
        (self.rows, self.first, self.len, self.next) = (None, 0, 0, 0);
        Ok(())
    }

    /// Gives the samples of the rows before `end`, and drops the rows that no later window has.
    fn give(&mut self, end: u64, give: &mut Give<'_>) -> Result<(), IngestError> {
        let Cut { stride, back, edges, samples, .. } = *self.cut;
        if edges == Edges::Drop {
            self.next = self.next.max(back.next_multiple_of(stride));
        }
        let Some(rows) = &self.rows else { return Ok(()) };
        let samples = samples.min(self.cut.fitting(rows));
        while self.next < end {
            let of: Vec<u64> = (self.next..end).step_by(stride as usize).take(samples).collect();
            self.next += of.len() as u64 * stride;
            give(self.cut.samples(rows, self.first, self.len, &of))?;
        }
        let needed = self.next.min(self.len).saturating_sub(back);
        let passed = (needed - self.first.min(needed)) as usize;
        self.rows = Some(rows.slice(passed, rows.num_rows() - passed));
        self.first += passed as u64;
        Ok(())
    }
}

impl Cut {
    /// Whether all rows have what windows need.
    fn check(&self, batch: &RecordBatch) -> Result<(), String> {
        for (values, column) in batch.columns().iter().zip(&self.columns) {
            let of = values.as_fixed_size_list_opt().map(FixedSizeListArray::values);
            let nulls = values.null_count() + of.map_or(0, |items| items.null_count());
            if let (Some(column), 1..) = (column, nulls) {
                let name = column.tensors.name();
                return Err(format!("column {name:?} has a null, and its windows have none: fill it first"));
            }
        }
        Ok(())
    }

    /// How many samples of these rows a piece may have, by the bytes of the columns without windows.
    fn fitting(&self, rows: &RecordBatch) -> usize {
        let others = rows.columns().iter().zip(&self.columns).filter(|(_, column)| column.is_none());
        let bytes: usize =
            others.map(|(values, _)| values.to_data().get_slice_memory_size().unwrap_or(usize::MAX)).sum();
        (PIECE_BYTES as usize / (bytes / rows.num_rows().max(1)).max(1)).max(1)
    }

    /// The samples of the rows with these numbers. The held rows begin with number `first` of the `len` that are known.
    fn samples(&self, rows: &RecordBatch, first: u64, len: u64, of: &[u64]) -> RecordBatch {
        let own = UInt64Array::from_iter_values(of.iter().map(|row| row - first));
        let others = take_record_batch(rows, &own).expect("rows that are held");
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        for (number, column) in self.columns.iter().enumerate() {
            let Some(Column { offsets, tensors }) = column else {
                columns.push(Arc::clone(others.column(number)));
                continue;
            };
            let wanted = || of.iter().flat_map(|row| offsets.iter().map(|offset| *row as i64 + offset));
            let end = len as i64;
            let places = wanted().map(|row| row.clamp(0, end - 1) as u64 - first);
            let taken = take(rows.column(number), &UInt64Array::from_iter_values(places), None);
            columns.push(joined(&taken.expect("rows that are held"), tensors));
            if self.edges == Edges::Repeat {
                let pads = wanted().map(|row| u8::from(!(0..end).contains(&row)));
                let pads: ArrayRef = Arc::new(UInt8Array::from_iter_values(pads));
                columns.push(joined(&pads, &self.schema.fields()[columns.len()]));
            }
        }
        RecordBatch::try_new(Arc::clone(&self.schema), columns).expect("the columns of its schema")
    }
}

/// Values one after the other as the tensors of a field.
fn joined(values: &ArrayRef, tensors: &Field) -> ArrayRef {
    let DataType::FixedSizeList(item, size) = tensors.data_type() else {
        unreachable!("windows are tensors")
    };
    let items = values.as_fixed_size_list_opt().map_or(values, FixedSizeListArray::values);
    Arc::new(
        FixedSizeListArray::try_new(Arc::clone(item), *size, Arc::clone(items), None)
            .expect("items of one type, without nulls"),
    )
}

/// The windows of a column, as a column.
fn tensors(field: &Field, rows: usize) -> Result<FieldRef, IngestError> {
    let (item, size, shape) = match field.data_type() {
        DataType::FixedSizeList(item, size) if item.data_type().is_numeric() => {
            (item.data_type(), *size, tensor_shape(field).unwrap_or_else(|| vec![*size as u64]))
        }
        number if number.is_numeric() => (number, 1, Vec::new()),
        DataType::List(item) | DataType::LargeList(item) if item.data_type().is_numeric() => {
            return Err(IngestError::Config {
                setting: "window",
                reason: format!(
                    "column {:?} has lists of any length, {}, and windows are of lists of one length",
                    field.name(),
                    field.data_type()
                ),
                way_out: "write the column with the length in its type: `pyarrow.list_(pyarrow.float32(), 7)` before a Parquet file is written, or `--type 'NAME=FixedSizeList(7 x Float32)'` for lines of JSON",
            });
        }
        other => {
            return Err(refused(format!(
                "column {:?} has values of type {other}, and windows are of numbers, or of lists of numbers of one length",
                field.name()
            )));
        }
    };
    tensor_field(field.name(), item, size, rows, &shape)
}

fn pads(name: String, rows: usize) -> Result<FieldRef, IngestError> {
    tensor_field(&name, &DataType::UInt8, 1, rows, &[])
}

fn tensor_field(
    name: &str,
    item: &DataType,
    size: i32,
    rows: usize,
    shape: &[u64],
) -> Result<FieldRef, IngestError> {
    let items = i64::from(size) * rows as i64;
    let items = i32::try_from(items)
        .map_err(|_| refused(format!("a window of column {name:?} has {items} numbers, more than 2^31")))?;
    let lists = Field::new(name, DataType::new_fixed_size_list(item.clone(), items, false), false);
    let shape: Vec<u64> = [rows as u64].into_iter().chain(shape.iter().copied()).collect();
    Ok(Arc::new(as_tensors(lists, &shape)))
}

/// The bytes of a value of a type of one size; 0 of others.
fn width(data_type: &DataType) -> u64 {
    match data_type {
        DataType::FixedSizeList(item, size) => width(item.data_type()) * *size as u64,
        other => other.primitive_width().unwrap_or(0) as u64,
    }
}

/// Rows that Arrow's offsets cannot hold together.
fn too_large(error: ArrowError) -> IngestError {
    refused(format!("the rows of a window are too large together: {error}"))
}

fn refused(reason: String) -> IngestError {
    IngestError::Config {
        setting: "window",
        reason,
        way_out: "see the types of the columns with `shardctl info`; `decode` makes tensors of images",
    }
}

#[cfg(test)]
mod tests;
