//! Gathers rows into one record batch, straight from where they lie into memory that the caller lends.
//!
//! Column by column: values of one size are copied one after the other, bytes and text by their lengths. Other columns,
//! and those with nulls, take the way through canonical rows. Equal rows give equal columns whichever way they came.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::alloc::Allocation;
use arrow::array::{ArrayData, ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::FieldRef;
use arrow::error::ArrowError;

use super::decode::{decode_column, offsets};
use super::encode::RowEncoder;
use super::plain::{Kind, Shape};
use super::{RowCodec, RowError};
use crate::size::MAX_SHARD_BYTES;

/// Rows to gather, wherever they lie.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// # use std::sync::Arc;
/// # let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
/// # let rows = RecordBatch::try_from_iter([("label", labels)])?;
/// use shardfmt::RowCodec;
/// use shardfmt::row::{Fresh, Rows};
///
/// let codec = RowCodec::new(rows.schema())?;
/// let encoder = codec.encoder(&rows)?;
/// let picked = Rows::Columns(vec![(&encoder, 4), (&encoder, 0)]);
/// let batch = codec.gather(&picked, &Fresh)?;
/// assert_eq!(batch.slice(0, 1), rows.slice(4, 1));
/// assert_eq!(batch.slice(1, 1), rows.slice(0, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub enum Rows<'a> {
    /// Canonical rows.
    Canonical(Vec<&'a [u8]>),
    /// Rows of record batches: the encoder of each one's batch, and its number there.
    Columns(Vec<(&'a RowEncoder, usize)>),
}

impl Rows<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Canonical(rows) => rows.len(),
            Self::Columns(rows) => rows.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// These rows, and then those.
    #[must_use]
    pub fn followed_by(self, others: Self) -> Self {
        match (self, others) {
            (Self::Canonical(rows), Self::Canonical(others)) => Self::Canonical([rows, others].concat()),
            (Self::Columns(rows), Self::Columns(others)) => Self::Columns([rows, others].concat()),
            (rows, others) if others.is_empty() => rows,
            (rows, others) if rows.is_empty() => others,
            _ => unreachable!("one source gives rows of one kind"),
        }
    }

    /// The canonical bytes of each row, one after the other.
    ///
    /// # Errors
    ///
    /// [`RowError::TooLarge`] when a row has more than [`MAX_ROW_BYTES`](super::MAX_ROW_BYTES).
    pub fn for_each_canonical(&self, mut each: impl FnMut(&[u8])) -> Result<(), RowError> {
        match self {
            Self::Canonical(rows) => rows.iter().for_each(|row| each(row)),
            Self::Columns(rows) => {
                let mut bytes = Vec::new();
                for (encoder, row) in rows {
                    bytes.clear();
                    encoder.encode(*row, &mut bytes)?;
                    each(&bytes);
                }
            }
        }
        Ok(())
    }
}

/// Lends the memory that batches are gathered into.
///
/// Fresh memory is written at a tenth of the speed of memory that was written before, so an implementation for many batches
/// lends the memory of dropped batches.
pub trait Memory {
    /// At least `len` writable bytes from a multiple of 64 on, whatever they hold.
    ///
    /// # Errors
    ///
    /// When there is no memory to be had.
    fn lend(&self, len: usize) -> io::Result<Lent>;
}

/// Copies the values of a column's rows from this number on, in the order of the rows, to memory that is as long as all of them:
/// one after the other, of a row without a value nothing. The values lie where the encoders of the rows have them. Without such
/// memory they are read where they lie, next, and it brings them there.
///
/// For rows in mapped files, of which perhaps no page was read: the owner of the files reads the values from there.
pub type CopyValues<'a> = dyn Fn(usize, &[&[u8]], Option<&mut [u8]>) -> io::Result<()> + 'a;

/// Memory from the allocator, new for each batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fresh;

impl Memory for Fresh {
    fn lend(&self, len: usize) -> io::Result<Lent> {
        Ok(Lent(Place::Own(MutableBuffer::from_len_zeroed(len))))
    }
}

/// Memory to gather into; it goes back to its owner with the last of the arrays that lie in it.
pub struct Lent(Place);

enum Place {
    Own(MutableBuffer),
    Foreign { start: NonNull<u8>, len: usize, owner: Arc<dyn Allocation> },
}

// SAFETY: the maker of the foreign place has promised that no other code refers to its bytes; its owner may
// be sent itself.
unsafe impl Send for Place {}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").finish_non_exhaustive()
    }
}

impl Lent {
    /// The `len` bytes from `start` on, which are there for as long as `owner` is.
    ///
    /// # Safety
    ///
    /// The bytes are initialised and writable, `start` is a multiple of 64, and no other code reads or writes
    /// them before `owner` is dropped.
    pub unsafe fn new(start: NonNull<u8>, len: usize, owner: Arc<dyn Allocation>) -> Self {
        debug_assert_eq!(start.addr().get() % 64, 0, "Arrow's buffers begin at multiples of 64");
        Self(Place::Foreign { start, len, owner })
    }

    /// The bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Place::Own(buffer) => buffer.as_slice_mut(),
            // SAFETY: `Lent::new` requires that these are writable and exclusive.
            Place::Foreign { start, len, .. } => unsafe {
                std::slice::from_raw_parts_mut(start.as_ptr(), *len)
            },
        }
    }

    /// The first `len` bytes, which no code writes any more.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn into_buffer(self, len: usize) -> Buffer {
        let whole = match self.0 {
            Place::Own(buffer) => buffer.into(),
            // SAFETY: `Lent::new` requires that they live as long as their owner.
            Place::Foreign { start, len, owner } => unsafe {
                Buffer::from_custom_allocation(start, len, owner)
            },
        };
        if whole.len() == len { whole } else { whole.slice_with_length(0, len) }
    }
}

impl RowCodec {
    /// Gathers rows into one record batch, whose large columns lie in memory that `memory` lends.
    ///
    /// # Errors
    ///
    /// When a row is not a row of this schema, no memory is lent, or the batch would exceed what Arrow's offsets can hold.
    pub fn gather(&self, rows: &Rows<'_>, memory: &dyn Memory) -> Result<RecordBatch, RowError> {
        self.gather_by(rows, memory, None)
    }

    /// As [`gather`](Self::gather), but values of rows of record batches that are bytes, or of one size, are copied by `copy`.
    ///
    /// # Errors
    ///
    /// As [`gather`](Self::gather), and [`RowError::Read`] with what `copy` gives.
    pub fn gather_with(
        &self,
        rows: &Rows<'_>,
        memory: &dyn Memory,
        copy: &CopyValues<'_>,
    ) -> Result<RecordBatch, RowError> {
        self.gather_by(rows, memory, Some(copy))
    }

    fn gather_by(
        &self,
        rows: &Rows<'_>,
        memory: &dyn Memory,
        copy: Option<&CopyValues<'_>>,
    ) -> Result<RecordBatch, RowError> {
        let columns = match rows {
            Rows::Canonical(rows) => self.gather_canonical(rows.clone(), memory)?,
            Rows::Columns(rows) => self.gather_columns(rows, memory, copy)?,
        };
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }

    fn gather_canonical(&self, mut rows: Vec<&[u8]>, memory: &dyn Memory) -> Result<Vec<ArrayRef>, RowError> {
        let mut room = usize::try_from(MAX_SHARD_BYTES).unwrap_or(usize::MAX);
        let columns = self.each_column(|_, shape| {
            match Form::of(shape) {
                Form::Flat { levels, width } if are_flat(&rows, levels, width) => {
                    let cells: Vec<&[u8]> = rows.iter().map(|row| &row[levels..levels + width]).collect();
                    rows.iter_mut().for_each(|row| *row = &row[levels + width..]);
                    return flat_column(shape, &cells, width, memory, None);
                }
                Form::Bytes { large } => {
                    let split: Option<Vec<(&[u8], &[u8])>> =
                        rows.iter().map(|row| split_bytes(row)).collect();
                    if let Some(split) = split {
                        let cells: Vec<&[u8]> = split.iter().map(|(cell, _)| *cell).collect();
                        rows.iter_mut().zip(&split).for_each(|(row, (_, rest))| *row = rest);
                        return bytes_column(shape, &cells, large, memory, None);
                    }
                }
                Form::Flat { .. } | Form::Other => {}
            }
            Ok(decode_column(shape, &mut rows, &mut room)?)
        })?;
        match rows.iter().position(|rest| !rest.is_empty()) {
            Some(row) => Err(RowError::TrailingBytes { row, bytes: rows[row].len() }),
            None => Ok(columns),
        }
    }

    fn gather_columns<'a>(
        &self,
        rows: &[(&'a RowEncoder, usize)],
        memory: &dyn Memory,
        by: Option<&CopyValues<'_>>,
    ) -> Result<Vec<ArrayRef>, RowError> {
        let mut room = usize::try_from(MAX_SHARD_BYTES).unwrap_or(usize::MAX);
        self.each_column(|index, shape| {
            // Where each value lies is worked out before any is copied, and once.
            match Form::of(shape) {
                Form::Flat { width, .. } => {
                    let cell =
                        |(of, row): &(&'a RowEncoder, usize)| Some(&of.flat(index)?[row * width..][..width]);
                    if let Some(cells) = rows.iter().map(cell).collect::<Option<Vec<&[u8]>>>() {
                        return flat_column(shape, &cells, width, memory, by);
                    }
                }
                Form::Bytes { large } => {
                    let cells = rows.iter().map(|(of, row)| of.bytes(index, *row));
                    if let Some(cells) = cells.collect::<Option<Vec<&[u8]>>>() {
                        return bytes_column(shape, &cells, large, memory, by);
                    }
                }
                Form::Other => {}
            }
            let (mut canonical, mut ends) = (Vec::new(), Vec::with_capacity(rows.len()));
            let mut encode = |rows: &[(&'a RowEncoder, usize)]| {
                for (of, row) in rows {
                    of.encode_cell(index, *row, &mut canonical);
                    ends.push(canonical.len());
                }
            };
            match by {
                None => encode(rows),
                Some(by) => {
                    let value = |(of, row): &(&'a RowEncoder, usize)| {
                        of.memory_of_value(index, *row).unwrap_or_default()
                    };
                    // They are encoded from where they lie, a few as soon as these were read.
                    let mut first = 0;
                    for some in stretches(rows, |at| value(at).len()) {
                        by(first, &some.iter().map(value).collect::<Vec<_>>(), None)?;
                        encode(some);
                        first += some.len();
                    }
                }
            }
            let starts = [0].into_iter().chain(ends.iter().copied());
            let mut cells: Vec<&[u8]> =
                starts.zip(&ends).map(|(start, end)| &canonical[start..*end]).collect();
            Ok(decode_column(shape, &mut cells, &mut room)?)
        })
    }

    fn each_column(
        &self,
        mut gather: impl FnMut(usize, &Shape) -> Result<ArrayRef, Failure>,
    ) -> Result<Vec<ArrayRef>, RowError> {
        let columns = self.columns.iter().zip(self.schema.fields()).enumerate();
        let column = |(index, (shape, field)): (usize, (&Shape, &FieldRef))| {
            gather(index, shape).map_err(|failure| failure.of(field.name().clone()))
        };
        columns.map(column).collect()
    }
}

/// The target size, in bytes, of a stretch of values. The rows of a stretch are read, and then encoded at once.
const STRETCH: usize = 4 << 20;

/// Cuts rows into stretches whose values have at least [`STRETCH`] bytes together, but for the last one.
fn stretches<T>(rows: &[T], len: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let mut bytes = 0;
    rows.split_inclusive(move |row| {
        bytes += len(row);
        let is_last = bytes >= STRETCH;
        bytes = if is_last { 0 } else { bytes };
        is_last
    })
}

/// Why a column cannot be gathered.
enum Failure {
    Malformed(String),
    Unread(io::Error),
}

impl Failure {
    fn of(self, column: String) -> RowError {
        match self {
            Self::Malformed(reason) => RowError::Malformed { column, reason },
            Self::Unread(source) => RowError::Read { column, source },
        }
    }
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self::Malformed(reason)
    }
}

impl From<&str> for Failure {
    fn from(reason: &str) -> Self {
        Self::Malformed(reason.to_owned())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Unread(error)
    }
}

/// The copied part of a value.
enum Form {
    /// `width` bytes, after as many bytes of presence as there are levels.
    Flat { levels: usize, width: usize },
    /// As many bytes as it has.
    Bytes { large: bool },
    /// More than bytes.
    Other,
}

impl Form {
    fn of(shape: &Shape) -> Self {
        match &shape.kind {
            Kind::Fixed { width } => Self::Flat { levels: 1, width: *width },
            Kind::FixedList { size, items } => match Self::of(items) {
                Self::Flat { levels, width } => Self::Flat { levels: levels + 1, width: width * size },
                _ => Self::Other,
            },
            Kind::Bytes { large } => Self::Bytes { large: *large },
            _ => Self::Other,
        }
    }
}

/// Whether every row begins with a value that is there wholly, without a null.
fn are_flat(rows: &[&[u8]], levels: usize, width: usize) -> bool {
    rows.iter().all(|row| row.len() >= levels + width && row[..levels].iter().all(|level| *level == 1))
}

/// The bytes that a row begins with, and the rest of it; `None` for a null and for bytes that are not a row.
#[inline]
fn split_bytes(row: &[u8]) -> Option<(&[u8], &[u8])> {
    let (1, rest) = row.split_first()? else { return None };
    let (length, rest) = rest.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

fn flat_column(
    shape: &Shape,
    cells: &[&[u8]],
    width: usize,
    memory: &dyn Memory,
    by: Option<&CopyValues<'_>>,
) -> Result<ArrayRef, Failure> {
    let count = cells.len();
    let len = count.checked_mul(width).ok_or("is too large for this machine")?;
    let mut lent = lend(memory, len)?;
    let out = &mut lent.as_mut_slice()[..len];
    match (by, width) {
        (Some(by), _) => by(0, cells, Some(out))?,
        (None, 1) => copy_small::<1>(cells, out),
        (None, 2) => copy_small::<2>(cells, out),
        (None, 4) => copy_small::<4>(cells, out),
        (None, 8) => copy_small::<8>(cells, out),
        (None, 16) => copy_small::<16>(cells, out),
        (None, _) => copy(cells, out.chunks_exact_mut(width)),
    }
    finish(flat_data(shape, lent.into_buffer(len), count))
}

fn flat_data(shape: &Shape, values: Buffer, count: usize) -> Result<ArrayData, ArrowError> {
    let array = ArrayData::builder(shape.data_type.clone()).len(count);
    match &shape.kind {
        Kind::FixedList { size, items } => {
            array.add_child_data(flat_data(items, values, count * size)?).build()
        }
        _ => array.add_buffer(values).build(),
    }
}

fn bytes_column(
    shape: &Shape,
    cells: &[&[u8]],
    large: bool,
    memory: &dyn Memory,
    by: Option<&CopyValues<'_>>,
) -> Result<ArrayRef, Failure> {
    let count = cells.len();
    let mut end = 0u64;
    let ends = cells.iter().map(|cell| {
        end += cell.len() as u64;
        end
    });
    let offsets = offsets(&ends.collect::<Vec<_>>(), shape)?;
    debug_assert_eq!(offsets.len(), (count + 1) * if large { 8 } else { 4 });
    let len = usize::try_from(end).map_err(|_| "is too large for this machine")?;
    let mut lent = lend(memory, len)?;
    let mut rest = &mut lent.as_mut_slice()[..len];
    match by {
        Some(by) => by(0, cells, Some(rest))?,
        None => {
            let places =
                cells.iter().map(|cell| rest.split_off_mut(..cell.len()).expect("as long as all of them"));
            copy(cells, places);
        }
    }
    let array = ArrayData::builder(shape.data_type.clone()).len(count);
    finish(array.add_buffer(offsets).add_buffer(lent.into_buffer(len)).build())
}

fn lend(memory: &dyn Memory, len: usize) -> Result<Lent, String> {
    let lent =
        memory.lend(len).map_err(|error| format!("needs {len} bytes that are not to be had: {error}"))?;
    Ok(lent)
}

fn finish(array: Result<ArrayData, ArrowError>) -> Result<ArrayRef, Failure> {
    let array = array.map_err(|error| format!("does not have the expected content: {error}"))?;
    Ok(make_array(array))
}

/// Values that fit a register.
fn copy_small<const WIDTH: usize>(cells: &[&[u8]], out: &mut [u8]) {
    for (to, cell) in out.as_chunks_mut::<WIDTH>().0.iter_mut().zip(cells) {
        to.copy_from_slice(cell);
    }
}

/// How many values ahead are fetched into the processor's cache: they lie anywhere, which it cannot foresee.
/// This number covers the time that memory takes, of the smallest for which it matters.
const AHEAD: usize = 8;
/// Of a long value its beginning is enough; the processor continues by itself, and has a limited number of
/// requests on their way at once.
const FETCHED: usize = 256;

fn copy<'b>(cells: &[&[u8]], places: impl Iterator<Item = &'b mut [u8]>) {
    cells.iter().take(AHEAD).for_each(|cell| fetch(cell));
    for (at, (cell, to)) in cells.iter().zip(places).enumerate() {
        if let Some(next) = cells.get(at + AHEAD) {
            fetch(next);
        }
        to.copy_from_slice(cell);
    }
}

/// Asks the processor to have these bytes at hand soon.
#[inline]
fn fetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes[..bytes.len().min(FETCHED)].chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which changes nothing but time wherever it points; it points into a slice.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn stretches_are_all_rows_in_order_and_none_is_longer_than_it_must_be(
            sizes in prop::collection::vec(0usize..(2 * STRETCH), 0..50),
        ) {
            let cut: Vec<&[usize]> = stretches(&sizes, |size| *size).collect();
            prop_assert_eq!(&cut.concat(), &sizes);
            for (number, stretch) in cut.iter().enumerate() {
                let (last, others) = stretch.split_last().expect("none is empty");
                let before: usize = others.iter().sum();
                prop_assert!(before < STRETCH && (before + last >= STRETCH || number + 1 == cut.len()));
            }
        }
    }
}
