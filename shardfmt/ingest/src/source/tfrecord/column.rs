//! A column, and the values of features on their way into it.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, FixedSizeListArray, ListArray, StringArray};
use arrow::buffer::{Buffer, MutableBuffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, FieldRef};
use shardfmt::row::MAX_ROW_BYTES;

use super::example::{Entry, Feature, Kind};
use super::wire::Reason;
use crate::IngestError;
use crate::source::arrays;

/// A column to be made of a feature or a feature list.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) nullable: bool,
    /// Whether it is a feature list: a list of what follows.
    pub(super) is_list: bool,
    pub(super) kind: Kind,
    pub(super) each: Each,
    /// The type of a value.
    pub(super) item: DataType,
}

/// What the values of a feature make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Each {
    One,
    /// A tensor of this many.
    Tensor(i32),
    List,
}

impl Column {
    pub(super) fn field(&self) -> Field {
        let data_type = match self.is_list {
            true => DataType::List(item_field(self.each_type())),
            false => self.each_type(),
        };
        let field = Field::new(&self.name, data_type, self.nullable);
        match (self.each, self.is_list) {
            (Each::Tensor(length), false) => arrays::as_tensors(field, &[u64::from(length.unsigned_abs())]),
            _ => field,
        }
    }

    fn each_type(&self) -> DataType {
        match self.each {
            Each::One => self.item.clone(),
            Each::Tensor(length) => DataType::FixedSizeList(item_field(self.item.clone()), length),
            Each::List => DataType::List(item_field(self.item.clone())),
        }
    }

    /// Has values become another type, which the settings name.
    pub(super) fn choose(&mut self, chosen: &DataType) -> Result<(), IngestError> {
        let is_possible = match self.kind {
            Kind::Bytes => matches!(chosen, DataType::Binary | DataType::Utf8),
            Kind::Float => matches!(chosen, DataType::Float32 | DataType::Float64),
            Kind::Int64 => chosen.is_integer() || *chosen == DataType::Boolean,
        };
        if is_possible {
            self.item = chosen.clone();
            return Ok(());
        }
        Err(IngestError::Config {
            setting: "types",
            reason: format!(
                "{:?} has values of type {}, which make no {chosen}",
                self.name,
                self.kind.name()
            ),
            way_out: "name the type of a value: Binary or Utf8 for bytes, Float32 or Float64 for float, an integer or \
                      Boolean for int64",
        })
    }

    /// The bytes that a null takes, at least.
    pub(super) fn null_bytes(&self) -> u64 {
        match self.each {
            Each::Tensor(length) if !self.is_list => {
                u64::from(length.unsigned_abs()) * arrays::width(&self.item) as u64
            }
            _ => arrays::width(&self.item) as u64,
        }
    }

    /// Refuses content that is none of this column.
    pub(super) fn check(&self, entry: Option<Entry<'_>>) -> Result<(), String> {
        let named = |reason: &str| format!("has a feature {:?} that {reason}", self.name);
        let (mut bytes, mut misfit) = (0u64, None);
        let mut check = |feature: Feature<'_>| {
            bytes =
                bytes.saturating_add((feature.count as u64).saturating_mul(arrays::width(&self.item) as u64));
            if misfit.is_none() {
                misfit = self.misfit(feature).transpose();
            }
        };
        match entry {
            None if self.nullable => {}
            None => return Err(format!("has no feature {:?}, unlike the records before it", self.name)),
            Some(Entry::Feature(feature)) if !self.is_list => check(feature),
            Some(Entry::Steps(steps)) if self.is_list => {
                let looked_through = steps.each(|step| {
                    check(step);
                    Ok(())
                });
                looked_through.map_err(named)?;
            }
            Some(_) => return Err(named("is one value in some records and a list of steps in others")),
        }
        if let Some(misfit) = misfit {
            return Err(named(&misfit?));
        }
        if bytes > MAX_ROW_BYTES as u64 {
            return Err(named(&format!("takes {bytes} bytes, the most is {MAX_ROW_BYTES}")));
        }
        Ok(())
    }

    /// Why the values of a feature do not belong here, if they do not.
    fn misfit(&self, feature: Feature<'_>) -> Result<Option<String>, String> {
        if feature.kind.is_some_and(|kind| kind != self.kind) {
            let found = feature.kind.map_or("nothing", Kind::name);
            return Ok(Some(format!(
                "has values of type {found}, and {} in records before",
                self.kind.name()
            )));
        }
        let expected = match self.each {
            Each::One => Some(1),
            Each::Tensor(length) => Some(length.unsigned_abs() as usize),
            Each::List => None,
        };
        if let Some(expected) = expected.filter(|expected| *expected != feature.count) {
            return Ok(Some(format!("has {} values, and {expected} in records before", feature.count)));
        }
        let mut unfit = None;
        match &self.item {
            DataType::Utf8 => feature.each_bytes(|bytes| {
                if str::from_utf8(bytes).is_err() {
                    unfit = Some("is not UTF-8".to_owned());
                }
            })?,
            item if self.kind == Kind::Int64 => feature.each_int(|number| {
                if as_type(number, item).is_none() {
                    unfit = Some(format!("has the value {number}, which is no {item}"));
                }
            })?,
            _ => {}
        }
        Ok(unfit)
    }
}

/// A number as the bytes of a type, if that holds it.
fn as_type(number: i64, item: &DataType) -> Option<[u8; 8]> {
    let fits = match item {
        DataType::Int64 => true,
        DataType::Int32 => i32::try_from(number).is_ok(),
        DataType::Int16 => i16::try_from(number).is_ok(),
        DataType::Int8 => i8::try_from(number).is_ok(),
        DataType::UInt64 => number >= 0,
        DataType::UInt32 => u32::try_from(number).is_ok(),
        DataType::UInt16 => u16::try_from(number).is_ok(),
        DataType::UInt8 => u8::try_from(number).is_ok(),
        DataType::Boolean => number == 0 || number == 1,
        _ => false,
    };
    fits.then(|| number.to_le_bytes())
}

fn item_field(item: DataType) -> FieldRef {
    Arc::new(Field::new_list_field(item, false))
}

/// The values of a column, row by row.
#[derive(Debug)]
pub(super) struct Values<'c> {
    column: &'c Column,
    /// All values: numbers, or bytes one behind the other.
    items: MutableBuffer,
    /// How long each of those bytes is.
    lengths: Vec<usize>,
    /// How many values each feature has.
    counts: Vec<usize>,
    /// How many steps each row has.
    steps: Vec<usize>,
    present: Vec<bool>,
}

impl<'c> Values<'c> {
    pub(super) fn new(column: &'c Column) -> Values<'c> {
        Values {
            column,
            items: MutableBuffer::with_capacity(0),
            lengths: Vec::new(),
            counts: Vec::new(),
            steps: Vec::new(),
            present: Vec::new(),
        }
    }

    /// Adds a row, which [`Column::check`] let pass.
    pub(super) fn push(&mut self, entry: Option<Entry<'_>>) -> Result<(), Reason> {
        self.present.push(entry.is_some());
        match entry {
            Some(Entry::Feature(feature)) => self.add(feature)?,
            Some(Entry::Steps(steps)) => {
                let before = self.counts.len();
                steps.each(|step| self.add(step))?;
                self.steps.push(self.counts.len() - before);
            }
            None if self.column.is_list => self.steps.push(0),
            None => match self.column.kind {
                Kind::Bytes if self.column.each == Each::One => self.lengths.push(0),
                Kind::Bytes => self.counts.push(0),
                _ if self.column.each == Each::List => self.counts.push(0),
                _ => self.items.extend_zeros(self.column.null_bytes() as usize),
            },
        }
        Ok(())
    }

    fn add(&mut self, feature: Feature<'_>) -> Result<(), Reason> {
        self.counts.push(feature.count);
        let (items, item) = (&mut self.items, &self.column.item);
        match (feature.kind, item) {
            (None, _) => Ok(()),
            (Some(Kind::Bytes), _) => feature.each_bytes(|bytes| {
                items.extend_from_slice(bytes);
                self.lengths.push(bytes.len());
            }),
            (Some(Kind::Float), DataType::Float64) => feature.each_floats(|floats| {
                for float in floats.as_chunks().0 {
                    items.extend_from_slice(&f64::from(f32::from_le_bytes(*float)).to_le_bytes());
                }
            }),
            (Some(Kind::Float), _) => feature.each_floats(|floats| items.extend_from_slice(floats)),
            (Some(Kind::Int64), item) => {
                let width = arrays::width(item);
                feature.each_int(|number| items.extend_from_slice(&number.to_le_bytes()[..width]))
            }
        }
    }

    /// The column.
    pub(super) fn finish(self) -> ArrayRef {
        let Values { column, items, lengths, counts, steps, present } = self;
        let nulls = present.contains(&false).then(|| NullBuffer::from(present));
        let of_each = nulls.clone().filter(|_| !column.is_list);
        let of_values = of_each.clone().filter(|_| column.each == Each::One);
        let values: ArrayRef = match &column.item {
            DataType::Binary => Arc::new(BinaryArray::new(offsets(lengths), items.into(), of_values)),
            DataType::Utf8 => {
                let (offsets, items) = (offsets(lengths), Buffer::from(items));
                Arc::new(StringArray::new(offsets, items, of_values))
            }
            item => arrays::numbers(item, items, of_values),
        };
        let item = || item_field(column.item.clone());
        let each: ArrayRef = match column.each {
            Each::One => values,
            Each::Tensor(length) => Arc::new(FixedSizeListArray::new(item(), length, values, of_each)),
            Each::List => Arc::new(ListArray::new(item(), offsets(counts), values, of_each)),
        };
        match column.is_list {
            true => Arc::new(ListArray::new(item_field(column.each_type()), offsets(steps), each, nulls)),
            false => each,
        }
    }
}

fn offsets(lengths: Vec<usize>) -> OffsetBuffer<i32> {
    OffsetBuffer::from_lengths(lengths)
}
