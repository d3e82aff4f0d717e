//! Random schemas and random rows of them, for laws that tests state with proptest. No program depends on this crate.

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Fields, IntervalUnit, Schema, TimeUnit};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// A record batch of 1 to `rows` rows of a random plain schema.
pub fn record_batch(rows: usize) -> impl Strategy<Value = RecordBatch> {
    let columns = prop::collection::vec((data_type(), any::<bool>()), 1..6);
    (columns, 1..rows + 1, any::<u64>()).prop_map(|(columns, rows, seed)| batch_of(columns, rows, seed))
}

/// Another record batch of the schema.
pub fn another(like: &RecordBatch, rows: usize, seed: u64) -> RecordBatch {
    let mut chance = Chance::new(seed);
    let columns = like.schema().fields().iter().map(|field| array(field, rows, &mut chance)).collect();
    RecordBatch::try_new(like.schema(), columns).expect("columns fit")
}

fn batch_of(columns: Vec<(DataType, bool)>, rows: usize, seed: u64) -> RecordBatch {
    let mut fields: Vec<Field> = columns
        .into_iter()
        .enumerate()
        .map(|(index, (data_type, nullable))| field(&format!("c{index}"), data_type, nullable))
        .collect();
    // A column that is never without bytes.
    fields.push(Field::new("row", DataType::UInt16, false));
    let empty = RecordBatch::new_empty(Arc::new(Schema::new(fields)));
    another(&empty, rows, seed)
}

/// A field that may be null at least where it cannot be anything else.
fn field(name: &str, data_type: DataType, nullable: bool) -> Field {
    let nullable = nullable || data_type == DataType::Null;
    Field::new(name, data_type, nullable)
}

fn data_type() -> impl Strategy<Value = DataType> {
    let item = |data_type, nullable| Arc::new(field("item", data_type, nullable));
    leaf_type().prop_recursive(3, 8, 3, move |inner| {
        let fields = prop::collection::vec((inner.clone(), any::<bool>()), 1..3);
        let fields = fields.prop_map(|fields| {
            let named = fields.into_iter().enumerate();
            named
                .map(|(index, (data_type, nullable))| field(&format!("f{index}"), data_type, nullable))
                .collect()
        });
        prop_oneof![
            (inner.clone(), any::<bool>()).prop_map(move |(t, n)| DataType::List(item(t, n))),
            (inner.clone(), any::<bool>()).prop_map(move |(t, n)| DataType::LargeList(item(t, n))),
            (inner.clone(), any::<bool>(), 1..4)
                .prop_map(move |(t, n, size)| DataType::FixedSizeList(item(t, n), size)),
            fields.prop_map(DataType::Struct),
            (inner, any::<bool>()).prop_map(|(values, nullable)| {
                let pair = vec![Field::new("key", DataType::Utf8, false), field("value", values, nullable)];
                DataType::Map(Arc::new(Field::new("entries", DataType::Struct(pair.into()), false)), false)
            }),
        ]
    })
}

fn leaf_type() -> impl Strategy<Value = DataType> {
    let leaves = vec![
        DataType::Null,
        DataType::Boolean,
        DataType::Int8,
        DataType::UInt16,
        DataType::Int32,
        DataType::Int64,
        DataType::UInt64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Date32,
        DataType::Time64(TimeUnit::Nanosecond),
        DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        DataType::Interval(IntervalUnit::MonthDayNano),
        DataType::Decimal128(20, 3),
        DataType::Decimal256(50, 3),
        DataType::FixedSizeBinary(7),
        DataType::Binary,
        DataType::Utf8,
        DataType::LargeBinary,
        DataType::LargeUtf8,
    ];
    prop::sample::select(leaves)
}

/// A source of random bytes that one seed decides.
struct Chance(TestRunner);

impl Chance {
    fn new(seed: u64) -> Self {
        let mut full = [0; 32];
        full[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &full);
        Self(TestRunner::new_with_rng(Config::default(), rng))
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.rng().fill_bytes(&mut bytes);
        bytes
    }

    fn below(&mut self, bound: usize) -> usize {
        (0..bound).new_tree(&mut self.0).expect("a range has values").current()
    }
}

/// `count` random values, with garbage beneath their nulls, as real data has.
fn array(field: &Field, count: usize, chance: &mut Chance) -> ArrayRef {
    let nulls = (field.is_nullable() && chance.below(4) > 0).then(|| {
        let present: Vec<bool> = chance.bytes(count).into_iter().map(|byte| byte > 60).collect();
        NullBuffer::from(present)
    });
    let offsets = |chance: &mut Chance| -> Vec<usize> {
        let mut end = 0;
        let more = chance.bytes(count).into_iter().map(|byte| {
            end += usize::from(byte % 5);
            end
        });
        [0].into_iter().chain(more).collect()
    };
    let small =
        |offsets: &[usize]| OffsetBuffer::new(ScalarBuffer::from_iter(offsets.iter().map(|end| *end as i32)));
    let large =
        |offsets: &[usize]| OffsetBuffer::new(ScalarBuffer::from_iter(offsets.iter().map(|end| *end as i64)));
    let text = |chance: &mut Chance, count: usize| -> Buffer {
        Buffer::from_vec(chance.bytes(count).into_iter().map(|byte| b'a' + byte % 26).collect::<Vec<u8>>())
    };
    match field.data_type() {
        DataType::Null => Arc::new(NullArray::new(count)),
        DataType::Boolean => {
            let values: BooleanBuffer = chance.bytes(count).into_iter().map(|byte| byte % 2 == 1).collect();
            Arc::new(BooleanArray::new(values, nulls))
        }
        DataType::Utf8 => {
            let offsets = offsets(chance);
            Arc::new(StringArray::new(small(&offsets), text(chance, offsets[count]), nulls))
        }
        DataType::Binary => {
            let offsets = offsets(chance);
            Arc::new(BinaryArray::new(small(&offsets), chance.bytes(offsets[count]).into(), nulls))
        }
        DataType::LargeUtf8 => {
            let offsets = offsets(chance);
            Arc::new(LargeStringArray::new(large(&offsets), text(chance, offsets[count]), nulls))
        }
        DataType::LargeBinary => {
            let offsets = offsets(chance);
            Arc::new(LargeBinaryArray::new(large(&offsets), chance.bytes(offsets[count]).into(), nulls))
        }
        DataType::FixedSizeList(items, size) => {
            let values = array(items, count * *size as usize, chance);
            Arc::new(FixedSizeListArray::new(items.clone(), *size, values, nulls))
        }
        DataType::List(items) => {
            let offsets = offsets(chance);
            let values = array(items, offsets[count], chance);
            Arc::new(ListArray::new(items.clone(), small(&offsets), values, nulls))
        }
        DataType::LargeList(items) => {
            let offsets = offsets(chance);
            let values = array(items, offsets[count], chance);
            Arc::new(LargeListArray::new(items.clone(), large(&offsets), values, nulls))
        }
        DataType::Map(entries, sorted) => {
            let offsets = offsets(chance);
            let values = array(entries, offsets[count], chance);
            let values = values.as_struct().clone();
            Arc::new(MapArray::new(entries.clone(), small(&offsets), values, nulls, *sorted))
        }
        DataType::Struct(fields) => struct_array(fields, count, nulls, chance),
        fixed => {
            let width = match fixed {
                DataType::FixedSizeBinary(width) => *width as usize,
                other => other.primitive_width().expect("only primitive types are left"),
            };
            let data = ArrayData::builder(fixed.clone()).len(count).nulls(nulls);
            make_array(
                data.add_buffer(Buffer::from(chance.bytes(count * width).as_slice()))
                    .build()
                    .expect("values fit"),
            )
        }
    }
}

fn struct_array(fields: &Fields, count: usize, nulls: Option<NullBuffer>, chance: &mut Chance) -> ArrayRef {
    let columns = fields.iter().map(|field| array(field, count, chance)).collect();
    Arc::new(StructArray::new(fields.clone(), columns, nulls))
}
