//! Reading canonical rows into Arrow arrays.
//!
//! Works column by column over all rows, so that what depends on the type is decided once per column and not
//! once per value: a fixed-size column is a loop of copies of known width. The bytes come from outside: every
//! length is checked against the remaining bytes before anything is allocated for it.

use std::borrow::Cow;
use std::iter;

use arrow::array::{ArrayData, ArrayRef, BooleanBufferBuilder, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer};

use super::plain::{Kind, Shape};

type Reason = String;

/// Takes one column's cell off the front of every row. Nulls take no bytes in a row, but the size of their type in an
/// array: that is taken from `room`.
pub(super) fn decode_column(shape: &Shape, rows: &mut [&[u8]], room: &mut usize) -> Result<ArrayRef, Reason> {
    let mut column = Builder::new(shape, rows.len());
    match (&shape.kind, &mut column.values) {
        (Kind::Fixed { width }, Values::Fixed(values)) => {
            let presence = &mut column.presence;
            match width {
                1 => fixed_cells::<1>(rows, presence, values)?,
                2 => fixed_cells::<2>(rows, presence, values)?,
                4 => fixed_cells::<4>(rows, presence, values)?,
                8 => fixed_cells::<8>(rows, presence, values)?,
                16 => fixed_cells::<16>(rows, presence, values)?,
                _ => wide_cells(rows, *width, presence, values, room)?,
            }
        }
        (Kind::Bytes { .. }, Values::Bytes { ends, values }) => {
            byte_cells(rows, &mut column.presence, ends, values)?;
        }
        _ => {
            column.reserve(rows.len(), rows.iter().map(|row| row.len()).sum());
            for row in rows.iter_mut() {
                column.append_run(row, 1, None, room)?;
            }
        }
    }
    column.finish()
}

fn fixed_cells<const WIDTH: usize>(
    rows: &mut [&[u8]],
    presence: &mut Presence,
    values: &mut MutableBuffer,
) -> Result<(), Reason> {
    values.reserve(rows.len() * WIDTH);
    for row in rows.iter_mut() {
        let mut value = [0; WIDTH];
        if cell_is_present(row, presence)? {
            let (head, rest) = row.split_first_chunk::<WIDTH>().ok_or_else(|| too_short(WIDTH, row))?;
            (value, *row) = (*head, rest);
        }
        values.extend_from_slice(&value);
    }
    Ok(())
}

fn wide_cells(
    rows: &mut [&[u8]],
    width: usize,
    presence: &mut Presence,
    values: &mut MutableBuffer,
    room: &mut usize,
) -> Result<(), Reason> {
    let there: usize = rows.iter().map(|row| row.len()).sum();
    values.reserve(rows.len().saturating_mul(width).min(there));
    for row in rows.iter_mut() {
        match cell_is_present(row, presence)? {
            true => values.extend_from_slice(take(row, width)?),
            false => {
                take_room(room, width)?;
                values.extend_zeros(width);
            }
        }
    }
    Ok(())
}

/// Two passes: the first reads the lengths, so that the second copies into a buffer of exactly the right size.
fn byte_cells(
    rows: &mut [&[u8]],
    presence: &mut Presence,
    ends: &mut Vec<u64>,
    values: &mut MutableBuffer,
) -> Result<(), Reason> {
    let mut end = 0;
    for row in rows.iter_mut() {
        if cell_is_present(row, presence)? {
            let length = take_length(row)?;
            if length > row.len() {
                return Err(too_short(length, row));
            }
            end += length as u64;
        }
        ends.push(end);
    }
    values.reserve(usize::try_from(end).map_err(|_| "is too large for this machine".to_owned())?);
    let mut start = 0;
    for (row, end) in rows.iter_mut().zip(ends) {
        let length = usize::try_from(*end - start).expect("checked against the row");
        values.extend_from_slice(take(row, length)?);
        start = *end;
    }
    Ok(())
}

fn take_room(room: &mut usize, bytes: usize) -> Result<(), Reason> {
    *room = room.checked_sub(bytes).ok_or("has nulls that take more memory than a shard may")?;
    Ok(())
}

#[inline]
fn cell_is_present(row: &mut &[u8], presence: &mut Presence) -> Result<bool, Reason> {
    match row.split_first() {
        Some((1, rest)) => {
            *row = rest;
            presence.append(1, true);
            Ok(true)
        }
        Some((0, rest)) => {
            *row = rest;
            presence.append(1, false);
            Ok(false)
        }
        Some((other, _)) => Err(unknown_presence(*other)),
        None => Err(too_short(1, row)),
    }
}

/// Which values are present. Costs nothing until the first null.
#[derive(Default)]
struct Presence {
    len: usize,
    bits: Option<BooleanBufferBuilder>,
}

impl Presence {
    #[inline]
    fn append(&mut self, count: usize, present: bool) {
        if !present && self.bits.is_none() {
            let mut bits = BooleanBufferBuilder::new(self.len + count);
            bits.append_n(self.len, true);
            self.bits = Some(bits);
        }
        if let Some(bits) = &mut self.bits {
            bits.append_n(count, present);
        }
        self.len += count;
    }

    fn append_bitmap(&mut self, bitmap: &[u8], count: usize) {
        let bits = BooleanBuffer::new(Buffer::from(bitmap), 0, count);
        if self.bits.is_none() {
            let mut all = BooleanBufferBuilder::new(self.len + count);
            all.append_n(self.len, true);
            self.bits = Some(all);
        }
        if let Some(all) = &mut self.bits {
            all.append_buffer(&bits);
        }
        self.len += count;
    }

    fn finish(self) -> Option<NullBuffer> {
        self.bits.map(|mut bits| NullBuffer::new(bits.finish())).filter(|nulls| nulls.null_count() > 0)
    }
}

/// An array in the making.
struct Builder<'s> {
    shape: &'s Shape,
    presence: Presence,
    values: Values<'s>,
}

enum Values<'s> {
    Null,
    Bool(BooleanBufferBuilder),
    Fixed(MutableBuffer),
    Bytes { ends: Vec<u64>, values: MutableBuffer },
    FixedList(Box<Builder<'s>>),
    List { ends: Vec<u64>, items: Box<Builder<'s>> },
    Struct(Vec<Builder<'s>>),
}

impl<'s> Builder<'s> {
    fn new(shape: &'s Shape, rows: usize) -> Self {
        let values = match &shape.kind {
            Kind::Null => Values::Null,
            Kind::Bool => Values::Bool(BooleanBufferBuilder::new(rows)),
            Kind::Fixed { .. } => Values::Fixed(MutableBuffer::new(0)),
            Kind::Bytes { .. } => {
                Values::Bytes { ends: Vec::with_capacity(rows), values: MutableBuffer::new(0) }
            }
            Kind::FixedList { items, .. } => Values::FixedList(Box::new(Self::new(items, 0))),
            Kind::List { items, .. } => {
                Values::List { ends: Vec::with_capacity(rows), items: Box::new(Self::new(items, 0)) }
            }
            Kind::Struct { fields } => {
                Values::Struct(fields.iter().map(|field| Self::new(field, rows)).collect())
            }
        };
        Self { shape, presence: Presence::default(), values }
    }

    /// Makes room for `count` values at once, where their size is known; but for no more bytes than there are to read.
    fn reserve(&mut self, count: usize, most_bytes: usize) {
        match (&mut self.values, &self.shape.kind) {
            (Values::Fixed(values), Kind::Fixed { width }) => {
                values.reserve(count.saturating_mul(*width).min(most_bytes));
            }
            (Values::FixedList(items), Kind::FixedList { size, .. }) => {
                items.reserve(count.saturating_mul(*size), most_bytes);
            }
            (Values::Struct(fields), _) => {
                fields.iter_mut().for_each(|field| field.reserve(count, most_bytes))
            }
            _ => {}
        }
    }

    /// Takes a run of `count` values off the front of `bytes`. Those that `hidden` says lie beneath a null, and have to be
    /// written as such: a row has one form only.
    fn append_run(
        &mut self,
        bytes: &mut &[u8],
        count: usize,
        hidden: Option<&[bool]>,
        room: &mut usize,
    ) -> Result<(), Reason> {
        if count == 0 {
            return Ok(());
        }
        let is_null_type = matches!(self.values, Values::Null);
        let null_where_hidden = hidden.filter(|_| self.shape.nullable || is_null_type);
        let mut blank = hidden.map(Cow::Borrowed);
        match take(bytes, 1)?[0] {
            0 if count == 1 => {
                self.check_nullable()?;
                take_room(room, self.shape.least_bytes())?;
                self.append_blank(1);
                return Ok(());
            }
            1 if !is_null_type => {
                if null_where_hidden.is_some_and(|hidden| hidden.contains(&true)) {
                    return Err(beneath_a_null());
                }
                self.presence.append(count, true);
            }
            2 if count > 1 => {
                self.check_nullable()?;
                let bitmap = take(bytes, count.div_ceil(8))?;
                let padding = (8 - count % 8) % 8;
                if padding > 0
                    && bitmap[bitmap.len() - 1].leading_zeros() < u32::try_from(padding).unwrap_or(8)
                {
                    return Err("has a bitmap that is longer than its values".to_owned());
                }
                let null: Vec<bool> = (0..count).map(|at| bitmap[at / 8] >> (at % 8) & 1 == 0).collect();
                if is_null_type && null.contains(&false) || !null.contains(&true) {
                    return Err("has a bitmap that is not about its nulls".to_owned());
                }
                if null_where_hidden.is_some_and(|hidden| hidden.iter().zip(&null).any(|(h, n)| *h && !n)) {
                    return Err(beneath_a_null());
                }
                self.presence.append_bitmap(bitmap, count);
                blank = Some(Cow::Owned(null)); // hidden values are among them
            }
            other => return Err(unknown_presence(other)),
        }
        self.append_values(bytes, count, blank.as_deref(), room)
    }

    fn append_values(
        &mut self,
        bytes: &mut &[u8],
        count: usize,
        blank: Option<&[bool]>,
        room: &mut usize,
    ) -> Result<(), Reason> {
        let is_blank = |at: usize| blank.is_some_and(|blank| blank[at]);
        match (&mut self.values, &self.shape.kind) {
            (Values::Bool(values), _) => {
                for (at, value) in take(bytes, count)?.iter().enumerate() {
                    match value {
                        1 if is_blank(at) => return Err(beneath_a_null()),
                        0 | 1 => values.append(*value == 1),
                        other => return Err(format!("has {other} where a boolean should be")),
                    }
                }
            }
            (Values::Fixed(values), Kind::Fixed { width }) => {
                let length = count.checked_mul(*width).ok_or_else(|| too_short(usize::MAX, bytes))?;
                let taken = take(bytes, length)?;
                let is_zero = |value: &[u8]| value.iter().all(|byte| *byte == 0);
                if blank.is_some()
                    && taken
                        .chunks_exact(*width)
                        .enumerate()
                        .any(|(at, value)| is_blank(at) && !is_zero(value))
                {
                    return Err(beneath_a_null());
                }
                values.extend_from_slice(taken);
            }
            (Values::Bytes { ends, values }, _) => {
                let length = append_lengths(ends, bytes, count, blank)?;
                values.extend_from_slice(take(bytes, length)?);
            }
            (Values::FixedList(items), Kind::FixedList { size, .. }) => {
                let count = count.checked_mul(*size).ok_or_else(|| too_short(usize::MAX, bytes))?;
                // No item takes less than a bit.
                if count.div_ceil(8) > bytes.len() {
                    return Err(too_short(count.div_ceil(8), bytes));
                }
                let hidden = blank.map(|blank| {
                    blank.iter().flat_map(|blank| iter::repeat_n(*blank, *size)).collect::<Vec<_>>()
                });
                items.append_run(bytes, count, hidden.as_deref(), room)?;
            }
            (Values::List { ends, items }, _) => {
                let count = append_lengths(ends, bytes, count, blank)?;
                items.append_run(bytes, count, None, room)?;
            }
            (Values::Struct(fields), _) => {
                for field in fields {
                    field.append_run(bytes, count, blank, room)?;
                }
            }
            (Values::Null, _) => {}
            (Values::Fixed(_) | Values::FixedList(_), _) => unreachable!("values are made from the kind"),
        }
        Ok(())
    }

    /// Appends values that no bytes stand for, as they lie beneath a null: nulls if they may be, and else zeros.
    fn append_blank(&mut self, count: usize) {
        self.presence.append(count, !self.shape.nullable && !matches!(self.values, Values::Null));
        match (&mut self.values, &self.shape.kind) {
            (Values::Bool(values), _) => values.append_n(count, false),
            (Values::Fixed(values), Kind::Fixed { width }) => values.extend_zeros(count * width),
            (Values::Bytes { ends, .. } | Values::List { ends, .. }, _) => {
                let end = ends.last().copied().unwrap_or(0);
                ends.extend(iter::repeat_n(end, count));
            }
            (Values::FixedList(items), Kind::FixedList { size, .. }) => items.append_blank(count * size),
            (Values::Struct(fields), _) => fields.iter_mut().for_each(|field| field.append_blank(count)),
            (Values::Null, _) => {}
            (Values::Fixed(_) | Values::FixedList(_), _) => unreachable!("values are made from the kind"),
        }
    }

    fn check_nullable(&self) -> Result<(), Reason> {
        match self.shape.nullable || matches!(self.values, Values::Null) {
            true => Ok(()),
            false => Err("has a null where none may be".to_owned()),
        }
    }

    fn finish(self) -> Result<ArrayRef, Reason> {
        self.finish_data().map(make_array)
    }

    fn finish_data(self) -> Result<ArrayData, Reason> {
        let len = self.presence.len;
        // An array of nulls says so by its type alone.
        let nulls = self.presence.finish().filter(|_| !matches!(self.values, Values::Null));
        if nulls.is_some() && !self.shape.nullable {
            return Err("has a null where none may be".to_owned());
        }
        let array = ArrayData::builder(self.shape.data_type.clone()).len(len).nulls(nulls);
        let array = match self.values {
            Values::Null => array,
            Values::Bool(mut values) => array.add_buffer(values.finish().into_inner()),
            Values::Fixed(values) => array.add_buffer(values.into()),
            Values::Bytes { ends, values } => {
                array.add_buffer(offsets(&ends, self.shape)?).add_buffer(values.into())
            }
            Values::FixedList(items) => array.add_child_data(items.finish_data()?),
            Values::List { ends, items } => {
                array.add_buffer(offsets(&ends, self.shape)?).add_child_data(items.finish_data()?)
            }
            Values::Struct(fields) => {
                let children = fields.into_iter().map(Self::finish_data).collect::<Result<_, _>>()?;
                array.child_data(children)
            }
        };
        array.build().map_err(|error| format!("does not have the expected content: {error}"))
    }
}

/// Takes the lengths of `count` values, zero where they are `blank`, and returns their sum.
fn append_lengths(
    ends: &mut Vec<u64>,
    bytes: &mut &[u8],
    count: usize,
    blank: Option<&[bool]>,
) -> Result<usize, Reason> {
    let lengths = take(bytes, count.checked_mul(4).ok_or_else(|| too_short(usize::MAX, bytes))?)?;
    let start = ends.last().copied().unwrap_or(0);
    let mut end = start;
    ends.reserve(count);
    for (at, length) in lengths.as_chunks::<4>().0.iter().enumerate() {
        let length = u32::from_le_bytes(*length);
        if length > 0 && blank.is_some_and(|blank| blank[at]) {
            return Err(beneath_a_null());
        }
        end += u64::from(length);
        ends.push(end);
    }
    usize::try_from(end - start).map_err(|_| "is too large for this machine".to_owned())
}

/// Arrow's offsets: a zero and then every end.
pub(super) fn offsets(ends: &[u64], shape: &Shape) -> Result<Buffer, Reason> {
    if matches!(shape.kind, Kind::Bytes { large: true } | Kind::List { large: true, .. }) {
        return Ok([0].into_iter().chain(ends.iter().map(|end| *end as i64)).collect::<Vec<i64>>().into());
    }
    match ends.last() {
        Some(end) if i32::try_from(*end).is_err() => Err(format!(
            "has {end} values or bytes in these rows, more than {} can hold: use fewer rows at a time",
            shape.data_type
        )),
        _ => Ok([0].into_iter().chain(ends.iter().map(|end| *end as i32)).collect::<Vec<i32>>().into()),
    }
}

#[inline]
fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Reason> {
    let (head, rest) = bytes.split_at_checked(length).ok_or_else(|| too_short(length, bytes))?;
    *bytes = rest;
    Ok(head)
}

#[inline]
fn take_length(bytes: &mut &[u8]) -> Result<usize, Reason> {
    let (head, rest) = bytes.split_first_chunk::<4>().ok_or_else(|| too_short(4, bytes))?;
    *bytes = rest;
    Ok(u32::from_le_bytes(*head) as usize)
}

#[cold]
fn too_short(needed: usize, found: &[u8]) -> Reason {
    format!("needs {needed} bytes and {} are left", found.len())
}

#[cold]
fn beneath_a_null() -> Reason {
    "has a value beneath a null".to_owned()
}

#[cold]
fn unknown_presence(found: u8) -> Reason {
    format!("has {found} where its presence should be")
}
