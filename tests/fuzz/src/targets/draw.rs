//! Decisions drawn from bytes, so that the fuzzer makes them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, SchemaRef, TimeUnit};

/// How deep drawn types are nested.
const DEPTH: u32 = 4;

/// The bytes that are still to be used. At their end everything drawn is 0.
pub(crate) struct Draw<'a>(&'a [u8]);

impl<'a> Draw<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Draw(bytes)
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn u32(&mut self) -> u32 {
        self.bytes(4).iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
    }

    /// The next `count` bytes, or as many as there are.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All that is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// One to four columns of any type that shards hold.
    pub(crate) fn schema(&mut self) -> SchemaRef {
        let columns = 1 + self.u8() % 4;
        let fields = (0..columns).map(|index| self.field(&format!("c{index}"), DEPTH));
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    fn field(&mut self, name: &str, depth: u32) -> Field {
        let byte = self.u8();
        let data_type = self.data_type(byte & 0x7f, depth);
        let nullable = byte & 0x80 != 0 || data_type == DataType::Null;
        Field::new(name, data_type, nullable)
    }

    fn data_type(&mut self, kind: u8, depth: u32) -> DataType {
        let item = |draw: &mut Self| Arc::new(draw.field("item", depth - 1));
        match kind % if depth == 0 { 24 } else { 29 } {
            0 => DataType::Null,
            1 => DataType::Boolean,
            2 => DataType::Int8,
            3 => DataType::UInt16,
            4 => DataType::Int32,
            5 => DataType::UInt64,
            6 => DataType::Float16,
            7 => DataType::Float32,
            8 => DataType::Float64,
            9 => DataType::Date32,
            10 => DataType::Date64,
            11 => DataType::Time32(TimeUnit::Millisecond),
            12 => DataType::Time64(TimeUnit::Nanosecond),
            13 => DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into())),
            14 => DataType::Duration(TimeUnit::Second),
            15 => DataType::Interval(IntervalUnit::MonthDayNano),
            16 => DataType::Interval(IntervalUnit::DayTime),
            17 => DataType::Decimal128(20, 3),
            18 => DataType::Decimal256(50, 3),
            19 => DataType::FixedSizeBinary(1 + i32::from(self.u8() % 32)),
            20 => DataType::Binary,
            21 => DataType::Utf8,
            22 => DataType::LargeBinary,
            23 => DataType::LargeUtf8,
            24 => DataType::List(item(self)),
            25 => DataType::LargeList(item(self)),
            26 => {
                let size = 1 + i32::from(self.u8() % 8);
                DataType::FixedSizeList(item(self), size)
            }
            27 => {
                let count = 1 + self.u8() % 3;
                let fields = (0..count).map(|index| self.field(&format!("f{index}"), depth - 1));
                DataType::Struct(fields.collect::<Vec<_>>().into())
            }
            _ => {
                let pair = vec![Field::new("keys", DataType::Utf8, false), self.field("values", depth - 1)];
                DataType::Map(Arc::new(Field::new("entries", DataType::Struct(pair.into()), false)), false)
            }
        }
    }
}
