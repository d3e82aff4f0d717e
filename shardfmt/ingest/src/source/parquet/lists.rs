//! Lists of numbers, as samples often are: read page by page in order, and decoded in parts on any thread.
//!
//! Parquet keeps with every number of a list two levels that say where lists begin and whether they are there; of
//! long lists without nulls both are a few long runs. [`ListColumn`] walks through these runs, not through the
//! numbers, to find where rows end; [`ListPart`] then decodes the numbers of its rows to where they stay. The
//! `parquet` crate's reader of nested columns unpacks both levels of each number, on one thread.

use std::sync::Arc;

use ::parquet::basic::{Encoding, Type};
use ::parquet::column::page::{Page, PageReader};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::ColumnChunkMetaData;
use arrow::array::{ArrayData, ArrayRef, BooleanBufferBuilder, make_array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field};
use bytes::Bytes;
use shardfmt::row::MAX_ROW_BYTES;

use super::hybrid::{Run, next_run, unpacked};
use crate::source::caught;

type Reason = String;

/// Lists with fewer items on the average are read by the general reader: their levels are not long runs.
const LONG_LIST: u64 = 16;

/// How a column of lists is stored, and the array it becomes.
#[derive(Clone, Debug)]
pub(super) struct ListShape {
    data_type: DataType,
    nullable: bool,
    item_nullable: bool,
    /// Bytes of an item in an array, of a number in the file.
    item_bytes: usize,
    stored_bytes: usize,
}

impl ListShape {
    /// Of a column of this field, stored in this way; `None` if the general reader has to read it.
    pub(super) fn of(field: &Field, column: &ColumnChunkMetaData, rows: u64) -> Option<Self> {
        let item = match field.data_type() {
            DataType::List(item) | DataType::LargeList(item) => item,
            DataType::FixedSizeList(item, size) if *size > 0 => item,
            _ => return None,
        };
        let item_bytes = item.data_type().primitive_width()?;
        let stored_bytes = match (column.column_type(), item.data_type()) {
            (Type::INT32, DataType::Int8 | DataType::Int16 | DataType::Int32) => 4,
            (Type::INT32, DataType::UInt8 | DataType::UInt16 | DataType::UInt32) => 4,
            (Type::FLOAT, DataType::Float32) => 4,
            (Type::INT64, DataType::Int64 | DataType::UInt64) => 8,
            (Type::DOUBLE, DataType::Float64) => 8,
            _ => return None,
        };
        let (nullable, item_nullable) = (field.is_nullable(), item.is_nullable());
        let shape =
            Self { data_type: field.data_type().clone(), nullable, item_nullable, item_bytes, stored_bytes };
        let levels = column.column_descr();
        let as_declared = levels.max_rep_level() == 1 && levels.max_def_level() as u32 == shape.item_level();
        let known = |encoding| {
            matches!(
                encoding,
                Encoding::PLAIN | Encoding::RLE | Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY
            )
        };
        let is_long = u64::try_from(column.num_values()).unwrap_or(0) / rows.max(1) >= LONG_LIST;
        (as_declared && is_long && column.encodings().all(known)).then_some(shape)
    }

    /// Bytes of a list with this number of items in an array, where it is at least as long as its type says.
    pub(super) fn row_bytes(&self, items: u64) -> u64 {
        let items = match self.data_type {
            DataType::FixedSizeList(_, size) => items.max(u64::try_from(size).unwrap_or(0)),
            _ => items,
        };
        items.saturating_mul(self.item_bytes as u64)
    }

    /// The definition level of an item that is there.
    fn item_level(&self) -> u32 {
        self.slot_level() + u32::from(self.item_nullable)
    }

    /// That of an item, there or null; the one below is that of an empty list.
    fn slot_level(&self) -> u32 {
        u32::from(self.nullable) + 1
    }
}

/// A column of lists in a row group, read in order.
pub(super) struct ListColumn<R> {
    shape: Arc<ListShape>,
    pages: R,
    dictionary: Option<Arc<[u8]>>,
    page: Option<DataPage>,
    /// How many levels the footer counts that no page had yet.
    levels: u64,
}

/// A page in the reading.
struct DataPage {
    repetitions: Levels,
    definitions: Levels,
    levels_left: usize,
    values: Arc<Values>,
    /// Numbers of it that parts have taken.
    taken: usize,
}

/// The numbers of a page.
struct Values {
    bytes: Bytes,
    /// What its indices stand for, each as an item of an array; without it the numbers themselves are there.
    dictionary: Option<Arc<[u8]>>,
}

/// Some rows of a column, not decoded yet.
pub(super) struct ListPart {
    shape: Arc<ListShape>,
    /// For each row where its items end.
    ends: Vec<usize>,
    rows: Presence,
    items: Presence,
    segments: Vec<Segment>,
}

/// Numbers that follow each other in a page.
struct Segment {
    values: Arc<Values>,
    start: usize,
    count: usize,
}

impl<R: PageReader> ListColumn<R> {
    /// A column whose pages have this many levels in all.
    pub(super) fn new(shape: ListShape, pages: R, levels: u64) -> Self {
        Self { shape: Arc::new(shape), pages, dictionary: None, page: None, levels }
    }

    /// After all rows: whether that was all.
    ///
    /// # Errors
    /// The fault, in words.
    pub(super) fn finish(&mut self) -> Result<(), Reason> {
        if self.page()?.is_some() {
            return Err("a column has more levels than its rows".to_owned());
        }
        match self.levels {
            0 => Ok(()),
            lacking => Err(format!("a column lacks {lacking} levels that its footer counts")),
        }
    }

    /// The next `rows` rows, or fewer where these have about `most_bytes` bytes, or none are left.
    ///
    /// # Errors
    /// The fault, in words. The column is then of no further use.
    pub(super) fn take(&mut self, rows: usize, most_bytes: usize) -> Result<ListPart, Reason> {
        let shape = Arc::clone(&self.shape);
        let (item_level, slot_level) = (shape.item_level(), shape.slot_level());
        let most_items = most_bytes / shape.item_bytes;
        let mut part = ListPart::new(shape);
        while let Some(page) = self.page()? {
            let (repetition, repeated) = page.repetitions.next()?;
            let (definition, defined) = page.definitions.next()?;
            let mut count = repeated.min(defined).min(page.levels_left);
            if repetition == 0 {
                let wanted = rows.saturating_sub(part.ends.len());
                if wanted == 0 || part.items.len >= most_items {
                    break;
                }
                count = count.min(wanted);
            }
            if definition > item_level || repetition > 1 {
                return Err("a level is larger than it can be".to_owned());
            }
            let has_slot = definition >= slot_level;
            match repetition {
                0 => part.begin(count, has_slot, definition + 1 >= slot_level),
                _ => part.extend(count, has_slot)?,
            }
            if has_slot {
                let is_there = definition == item_level;
                part.items.append(count, is_there);
                if is_there {
                    part.take_values(page, count);
                }
            }
            page.repetitions.pass(count);
            page.definitions.pass(count);
            page.levels_left -= count;
        }
        Ok(part)
    }

    /// The page with the next level, if there is one.
    fn page(&mut self) -> Result<Option<&mut DataPage>, Reason> {
        while self.page.as_ref().is_none_or(|page| page.levels_left == 0) {
            let read = caught(|| self.pages.get_next_page());
            let page =
                read.unwrap_or_else(super::gave_up).map_err(|error: ParquetError| error.to_string())?;
            match page {
                None => return Ok(None),
                Some(Page::DictionaryPage { buf, num_values, encoding, .. }) => {
                    if !matches!(encoding, Encoding::PLAIN | Encoding::PLAIN_DICTIONARY) {
                        return Err(format!("a dictionary is encoded as {encoding}"));
                    }
                    let numbers = plain(&buf, num_values as usize, self.shape.stored_bytes)?;
                    let mut items = vec![0; num_values as usize * self.shape.item_bytes];
                    narrow(numbers, self.shape.stored_bytes, &mut items, self.shape.item_bytes);
                    self.dictionary = Some(items.into());
                }
                Some(page) => {
                    let page = self.data_page(page)?;
                    let left = self.levels.checked_sub(page.levels_left as u64);
                    self.levels = left.ok_or("a column has more levels than its footer counts")?;
                    self.page = Some(page);
                }
            }
        }
        Ok(self.page.as_mut())
    }

    fn data_page(&self, page: Page) -> Result<DataPage, Reason> {
        let (repetitions, definitions, values, count, encoding) = match page {
            Page::DataPage {
                mut buf, num_values, encoding, def_level_encoding, rep_level_encoding, ..
            } => {
                for encoding in [def_level_encoding, rep_level_encoding] {
                    if encoding != Encoding::RLE {
                        return Err(format!("levels are encoded as {encoding}"));
                    }
                }
                let (repetitions, definitions) = (sized(&mut buf)?, sized(&mut buf)?);
                (repetitions, definitions, buf, num_values, encoding)
            }
            Page::DataPageV2 {
                mut buf,
                num_values,
                encoding,
                def_levels_byte_len,
                rep_levels_byte_len,
                ..
            } => {
                let repetitions = cut(&mut buf, rep_levels_byte_len as usize)?;
                let definitions = cut(&mut buf, def_levels_byte_len as usize)?;
                (repetitions, definitions, buf, num_values, encoding)
            }
            Page::DictionaryPage { .. } => unreachable!("the caller has handled it"),
        };
        let dictionary = match encoding {
            Encoding::PLAIN => None,
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => {
                Some(self.dictionary.clone().ok_or("a page refers to a dictionary that is not there")?)
            }
            other => return Err(format!("values are encoded as {other}, which its footer does not say")),
        };
        let width = 32 - self.shape.item_level().leading_zeros();
        Ok(DataPage {
            repetitions: Levels::new(repetitions, 1),
            definitions: Levels::new(definitions, width),
            levels_left: count as usize,
            values: Arc::new(Values { bytes: values, dictionary }),
            taken: 0,
        })
    }
}

/// The levels of a page, run by run.
struct Levels {
    bytes: Bytes,
    width: u32,
    at: usize,
    /// The run that `at` is behind, and how many of its values have passed.
    run: Run,
    passed: usize,
    /// A level that was found in a packed run, and up to which place of the run it follows itself.
    found: Option<(u32, usize)>,
}

impl Levels {
    fn new(bytes: Bytes, width: u32) -> Self {
        Self { bytes, width, at: 0, run: Run::Same { value: 0, count: 0 }, passed: 0, found: None }
    }

    /// The next level, and how many follow each other that are the same.
    fn next(&mut self) -> Result<(u32, usize), Reason> {
        loop {
            match &self.run {
                Run::Same { value, count } if self.passed < *count => {
                    return Ok((*value, count - self.passed));
                }
                Run::Packed { place, count } if self.passed < *count => {
                    // The caller may pass them one by one: looking for the end each time would take the square of their number.
                    if let Some((value, end)) = self.found.filter(|(_, end)| self.passed < *end) {
                        return Ok((value, end - self.passed));
                    }
                    let packed = &self.bytes[place.clone()];
                    let value = unpacked(packed, self.passed, self.width);
                    let rest = self.passed + 1..*count;
                    let same = rest.take_while(|index| unpacked(packed, *index, self.width) == value);
                    let end = self.passed + 1 + same.count();
                    self.found = Some((value, end));
                    return Ok((value, end - self.passed));
                }
                _ => {}
            }
            let run = next_run(&self.bytes, &mut self.at, self.width)?;
            self.run = run.ok_or("a page has fewer levels than it says")?;
            (self.passed, self.found) = (0, None);
        }
    }

    fn pass(&mut self, count: usize) {
        self.passed += count;
    }
}

/// Which of some values are there. Costs nothing until one is not.
#[derive(Default)]
struct Presence {
    len: usize,
    bits: Option<BooleanBufferBuilder>,
}

impl Presence {
    fn append(&mut self, count: usize, is_there: bool) {
        if !is_there && self.bits.is_none() {
            let mut bits = BooleanBufferBuilder::new(self.len + count);
            bits.append_n(self.len, true);
            self.bits = Some(bits);
        }
        if let Some(bits) = &mut self.bits {
            bits.append_n(count, is_there);
        }
        self.len += count;
    }

    fn finish(self) -> Option<NullBuffer> {
        self.bits.map(|mut bits| NullBuffer::new(bits.finish()))
    }
}

impl ListPart {
    fn new(shape: Arc<ListShape>) -> Self {
        let (rows, items) = (Presence::default(), Presence::default());
        Self { shape, ends: Vec::new(), rows, items, segments: Vec::new() }
    }

    /// How many rows there are.
    pub(super) fn rows(&self) -> usize {
        self.ends.len()
    }

    /// Begins rows, each with an item or without.
    fn begin(&mut self, count: usize, has_slot: bool, is_there: bool) {
        let start = self.items.len;
        let step = usize::from(has_slot);
        self.ends.extend((1..=count).map(|row| start + row * step));
        self.rows.append(count, is_there);
    }

    /// Adds items to the row that began last.
    fn extend(&mut self, count: usize, has_slot: bool) -> Result<(), Reason> {
        let start = self.ends.len().checked_sub(2).map_or(0, |before| self.ends[before]);
        let Some(end) = self.ends.last_mut() else { return Err("a list begins in its middle".to_owned()) };
        if !has_slot || *end == start {
            return Err("a list continues that is not there".to_owned());
        }
        *end += count;
        if (*end - start).saturating_mul(self.shape.item_bytes) > MAX_ROW_BYTES {
            return Err(format!("a row of it has more than {MAX_ROW_BYTES} bytes"));
        }
        Ok(())
    }

    fn take_values(&mut self, page: &mut DataPage, count: usize) {
        match self.segments.last_mut() {
            Some(last) if Arc::ptr_eq(&last.values, &page.values) => last.count += count,
            _ => {
                let values = Arc::clone(&page.values);
                self.segments.push(Segment { values, start: page.taken, count });
            }
        }
        page.taken += count;
    }

    /// The rows as an array.
    ///
    /// # Errors
    /// The fault, in words.
    pub(super) fn decode(self) -> Result<ArrayRef, Reason> {
        let Self { shape, ends, rows, items, segments } = self;
        let width = shape.item_bytes;
        let present: usize = segments.iter().map(|segment| segment.count).sum();
        let mut values = vec![0; present * width];
        let mut rest = values.as_mut_slice();
        for segment in &segments {
            let (out, others) = rest.split_at_mut(segment.count * width);
            segment.decode(&shape, out)?;
            rest = others;
        }
        let (slots, row_nulls, item_nulls) = (items.len, rows.finish(), items.finish());
        let values = match &item_nulls {
            None => values,
            Some(nulls) => spread(&values, width, slots, nulls.valid_indices()),
        };
        let list = ArrayData::builder(shape.data_type.clone()).len(ends.len()).nulls(row_nulls.clone());
        let array = match &shape.data_type {
            DataType::List(item) => {
                let ends: Result<Vec<i32>, _> = ends.iter().map(|end| i32::try_from(*end)).collect();
                let ends = ends.map_err(|_| "its lists are too long for their type")?;
                let offsets = Buffer::from_iter([0].into_iter().chain(ends));
                list.add_buffer(offsets).add_child_data(numbers(item, slots, values, item_nulls)?)
            }
            DataType::LargeList(item) => {
                let offsets = Buffer::from_iter([0].into_iter().chain(ends.iter().map(|end| *end as i64)));
                list.add_buffer(offsets).add_child_data(numbers(item, slots, values, item_nulls)?)
            }
            DataType::FixedSizeList(item, size) => {
                let size = *size as usize; // positive
                let is_there = |row: usize| row_nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
                let starts = [0].into_iter().chain(ends.iter().copied());
                for (row, (start, end)) in starts.zip(&ends).enumerate() {
                    if end - start != if is_there(row) { size } else { 0 } {
                        return Err(format!("a list has {} items instead of {size}", end - start));
                    }
                }
                let (values, item_nulls) = match &row_nulls {
                    None => (values, item_nulls),
                    Some(rows) => {
                        let room = ends.len().checked_mul(size * width).filter(|room| *room <= MAX_ROW_BYTES);
                        room.ok_or("its lists that are null take too much room")?;
                        let there = || rows.valid_indices();
                        let nulls = item_nulls.map(|items| {
                            let mut all = BooleanBufferBuilder::new(ends.len() * size);
                            all.append_n(ends.len() * size, false);
                            for (from, to) in there().enumerate() {
                                for item in 0..size {
                                    all.set_bit(to * size + item, items.is_valid(from * size + item));
                                }
                            }
                            NullBuffer::new(all.finish())
                        });
                        (spread(&values, size * width, ends.len(), there()), nulls)
                    }
                };
                list.add_child_data(numbers(item, ends.len() * size, values, item_nulls)?)
            }
            _ => unreachable!("a shape is that of a list"),
        };
        array.build().map(make_array).map_err(|error| error.to_string())
    }
}

/// The items of lists.
fn numbers(
    item: &Field,
    len: usize,
    values: Vec<u8>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayData, Reason> {
    let values = Buffer::from_vec(values);
    let array = ArrayData::builder(item.data_type().clone()).len(len).add_buffer(values).nulls(nulls);
    array.align_buffers(true).build().map_err(|error| error.to_string())
}

/// The values at their places among `count`, with zeros between them.
fn spread(values: &[u8], width: usize, count: usize, places: impl Iterator<Item = usize>) -> Vec<u8> {
    let mut all = vec![0; count * width];
    for (value, place) in values.chunks_exact(width).zip(places) {
        all[place * width..][..width].copy_from_slice(value);
    }
    all
}

impl Segment {
    /// Writes its numbers as items of an array.
    fn decode(&self, shape: &ListShape, out: &mut [u8]) -> Result<(), Reason> {
        let Values { bytes, dictionary } = &*self.values;
        let Some(dictionary) = dictionary else {
            let numbers = plain(bytes, self.start + self.count, shape.stored_bytes)?;
            let numbers = &numbers[self.start * shape.stored_bytes..];
            narrow(numbers, shape.stored_bytes, out, shape.item_bytes);
            return Ok(());
        };
        match shape.item_bytes {
            1 => self.look_up::<1>(bytes, dictionary, out),
            2 => self.look_up::<2>(bytes, dictionary, out),
            4 => self.look_up::<4>(bytes, dictionary, out),
            _ => self.look_up::<8>(bytes, dictionary, out),
        }
    }

    fn look_up<const N: usize>(&self, bytes: &[u8], dictionary: &[u8], out: &mut [u8]) -> Result<(), Reason> {
        let (items, mut out) = (dictionary.as_chunks::<N>().0, out.as_chunks_mut::<N>().0);
        let unknown = || "an index lies outside of its dictionary".to_owned();
        let width = match bytes.first() {
            Some(width) if *width <= 32 => u32::from(*width),
            Some(width) => return Err(format!("indices have {width} bits")),
            None if out.is_empty() => return Ok(()),
            None => return Err("a page ends before its values".to_owned()),
        };
        let bytes = &bytes[1..];
        // Any index of a byte finds an item; whether it is one of the dictionary is seen by the largest.
        let of_byte: [[u8; N]; 256] =
            std::array::from_fn(|index| items.get(index).copied().unwrap_or([0; N]));
        let (mut at, mut skip) = (0, self.start);
        while !out.is_empty() {
            let run = next_run(bytes, &mut at, width)?.ok_or("a page has fewer values than levels")?;
            let (Run::Same { count, .. } | Run::Packed { count, .. }) = run;
            if count <= skip {
                skip -= count;
                continue;
            }
            let taken = (count - skip).min(out.len());
            let (these, others) = out.split_at_mut(taken);
            match run {
                Run::Same { value, .. } => these.fill(*items.get(value as usize).ok_or_else(unknown)?),
                Run::Packed { place, .. } if width == 8 => {
                    let indices = &bytes[place][skip..skip + taken];
                    if items.len() < 256 && indices.iter().any(|index| usize::from(*index) >= items.len()) {
                        return Err(unknown());
                    }
                    for (item, index) in these.iter_mut().zip(indices) {
                        *item = of_byte[usize::from(*index)];
                    }
                }
                Run::Packed { place, .. } => {
                    let packed = &bytes[place];
                    for (at, item) in these.iter_mut().enumerate() {
                        let index = unpacked(packed, skip + at, width) as usize;
                        *item = *items.get(index).ok_or_else(unknown)?;
                    }
                }
            }
            (out, skip) = (others, 0);
        }
        Ok(())
    }
}

/// The first `count` numbers of a page that has them as they are.
fn plain(bytes: &[u8], count: usize, width: usize) -> Result<&[u8], Reason> {
    let numbers = count.checked_mul(width).and_then(|length| bytes.get(..length));
    numbers.ok_or_else(|| "a page has fewer values than levels".to_owned())
}

/// Numbers of `from` bytes as items of `to` bytes, of which the lowest are kept.
fn narrow(numbers: &[u8], from: usize, items: &mut [u8], to: usize) {
    match (from, to) {
        (4, 1) => {
            items.iter_mut().zip(numbers.as_chunks::<4>().0).for_each(|(item, number)| *item = number[0])
        }
        (4, 2) => {
            let items = items.as_chunks_mut::<2>().0;
            let numbers = numbers.as_chunks::<4>().0;
            items.iter_mut().zip(numbers).for_each(|(item, number)| *item = [number[0], number[1]]);
        }
        _ => items.copy_from_slice(&numbers[..items.len()]),
    }
}

/// The first `length` bytes, taken off.
fn cut(bytes: &mut Bytes, length: usize) -> Result<Bytes, Reason> {
    match length <= bytes.len() {
        true => Ok(bytes.split_to(length)),
        false => Err("a page ends within its levels".to_owned()),
    }
}

/// Bytes after their length, taken off.
fn sized(bytes: &mut Bytes) -> Result<Bytes, Reason> {
    let length = cut(bytes, 4)?;
    let length = u32::from_le_bytes(length[..].try_into().expect("4 bytes"));
    cut(bytes, length as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looking for the end of a run each time would take hours.
    #[test]
    fn levels_of_a_packed_run_may_be_passed_one_by_one() {
        let groups = 1 << 17;
        let mut bytes = Vec::new();
        let mut header: u32 = groups << 1 | 1;
        while header > 0x7F {
            bytes.push(header as u8 | 0x80);
            header >>= 7;
        }
        bytes.push(header as u8);
        bytes.resize(bytes.len() + groups as usize, 0xFF);
        let mut levels = Levels::new(bytes.into(), 1);
        for left in (1..=8 * groups as usize).rev() {
            assert_eq!(levels.next(), Ok((1, left)));
            levels.pass(1);
        }
        assert!(levels.next().is_err(), "no more");
    }
}
