//! Other people's programs read what shardd writes: pyarrow, DuckDB and polars find in a shard, compressed or not, the
//! values that were put in, and in a manifest its shards.
//!
//! The values are formulas over the number of the row, here and once more in `reference/compat.py`: nothing but the files
//! goes from one to the other.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use arrow::array::builder::{Int32Builder, MapBuilder, StringBuilder};
use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, Schema};
use shardd_tests::{python, run};
use shardfmt::{FinishedShard, Manifest, ShardWriter};
use tempfile::TempDir;

/// Enough for several record batches.
const ROWS: usize = 5000;
const COMPRESSIONS: [&str; 4] = ["none", "lz4", "zstd", "zstd:19"];
const READERS: [&str; 3] = ["pyarrow", "duckdb", "polars"];

#[test]
fn pyarrow_duckdb_and_polars_find_every_value_of_a_shard() {
    let Some(python) = python() else { return };
    let root = TempDir::new().expect("a temporary directory can be made");
    let rows = rows();
    let mut sizes = Vec::new();
    for compression in COMPRESSIONS {
        let shard = shard(&rows, compression);
        std::fs::write(root.path().join(format!("{compression}.arrow")), &shard.bytes).expect("written");
        sizes.push(shard.bytes.len());
    }
    assert!(sizes.is_sorted_by(|larger, smaller| larger > smaller), "{sizes:?}");
    for compression in COMPRESSIONS {
        let file = root.path().join(format!("{compression}.arrow"));
        let found = run(Command::new(&python).arg(script()).arg("shard").arg(file));
        // DuckDB has no floats of 16 bits.
        let columns = |reader| rows.num_columns() - usize::from(reader == "duckdb");
        let expected = READERS.map(|reader| format!("{reader}: {ROWS} rows, {} columns", columns(reader)));
        assert_eq!(found.lines().collect::<Vec<_>>(), expected, "{compression}");
    }
}

#[test]
fn the_golden_files_are_what_the_page_about_the_format_says() {
    let Some(python) = python() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shardfmt/testdata/check_golden.py");
    assert!(run(Command::new(python).arg(script)).contains("as described"));
}

#[test]
fn pyarrow_duckdb_and_polars_read_manifests_as_tables() {
    let Some(python) = python() else { return };
    let root = TempDir::new().expect("a temporary directory can be made");
    let rows = rows();
    let mut entries = Vec::new();
    for (index, compression) in COMPRESSIONS.into_iter().enumerate() {
        let shard = shard(&rows.slice(index * 1000, 1000 - index), compression);
        std::fs::write(root.path().join(format!("{index}.arrow")), &shard.bytes).expect("written");
        entries.push(shard.entry);
    }
    let config = serde_json::json!({ "mix": "sequential" });
    let manifest = Manifest::new(rows.schema(), entries, config);
    std::fs::write(root.path().join("manifest.arrow"), manifest.encode()).expect("written");
    let found = run(Command::new(&python).arg(script()).arg("manifest").arg(root.path()));
    let expected = READERS.map(|reader| format!("{reader}: 4 shards of 3994 rows"));
    assert_eq!(found.lines().collect::<Vec<_>>(), expected);
    // Also one whose statistics are many and whose long texts lie apart.
    let indexed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shardfmt/testdata/golden.indexed2.arrow");
    std::fs::copy(indexed, root.path().join("manifest.arrow")).expect("it is there");
    let found = run(Command::new(&python).arg(script()).arg("table").arg(root.path().join("manifest.arrow")));
    assert_eq!(
        found.lines().collect::<Vec<_>>(),
        READERS.map(|reader| format!("{reader}: 3 shards of 63 rows"))
    );
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/compat.py")
}

fn shard(rows: &RecordBatch, compression: &str) -> FinishedShard {
    let compression = compression.parse().expect("a compression");
    let mut writer = ShardWriter::with_compression(rows.schema(), compression).expect("plain columns");
    writer.push(rows).expect("the rows fit");
    writer.finish().expect("there are rows")
}

/// Of every `every` rows the last has none.
fn some(row: usize, every: usize) -> bool {
    row % every != every - 1
}

fn nulls(every: usize) -> Option<NullBuffer> {
    Some((0..ROWS).map(|row| some(row, every)).collect::<Vec<_>>().into())
}

/// What samples are made of: every kind of column that all three readers know.
fn rows() -> RecordBatch {
    let mut columns = numbers();
    columns.extend(texts());
    columns.extend(times());
    columns.extend(nested());
    let shape = HashMap::from([
        ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
        ("ARROW:extension:metadata".to_owned(), r#"{"shape":[2,3]}"#.to_owned()),
    ]);
    let fields = columns.iter().map(|(name, column)| {
        let nullable = column.is_nullable() || *column.data_type() == DataType::Null;
        let field = Field::new(*name, column.data_type().clone(), nullable);
        if *name == "tensor" { field.with_metadata(shape.clone()) } else { field }
    });
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    RecordBatch::try_new(schema, columns.into_iter().map(|(_, column)| column).collect())
        .expect("columns fit")
}

fn numbers() -> Vec<(&'static str, ArrayRef)> {
    let rows = 0..ROWS as i64;
    let float = Float32Array::from_iter_values(rows.clone().map(|row| (row % 2048) as f32 / 4.0 - 100.0));
    let price = rows.clone().map(|row| some(row as usize, 13).then_some(i128::from(row) * 100 - 5));
    let large = rows.clone().map(|row| i128::from(row) * 10_i128.pow(33) - 7);
    vec![
        ("label", Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| row % 10)))),
        (
            "i8",
            Arc::new(Int8Array::from_iter(
                rows.clone().map(|row| some(row as usize, 7).then_some(row as i8)),
            )),
        ),
        ("i16", Arc::new(Int16Array::from_iter_values(rows.clone().map(|row| (row * 31) as i16)))),
        ("i32", Arc::new(Int32Array::from_iter_values(rows.clone().map(|row| row as i32 * -400_003)))),
        ("i64", Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| row * -1_800_000_000_000_007)))),
        ("u8", Arc::new(UInt8Array::from_iter_values(rows.clone().map(|row| row as u8)))),
        ("u16", Arc::new(UInt16Array::from_iter_values(rows.clone().map(|row| row as u16 * 13)))),
        ("u32", Arc::new(UInt32Array::from_iter_values(rows.clone().map(|row| row as u32 * 800_000)))),
        ("u64", Arc::new(UInt64Array::from_iter_values(rows.clone().map(|row| u64::MAX - row as u64)))),
        ("f16", cast(&float, &DataType::Float16).expect("halves of small numbers are exact")),
        ("f32", Arc::new(float)),
        ("f64", Arc::new(Float64Array::from_iter_values(rows.clone().map(|row| row as f64 / 7.0)))),
        (
            "flag",
            Arc::new(BooleanArray::from_iter(rows.map(|row| some(row as usize, 5).then_some(row % 3 == 0)))),
        ),
        ("price", decimals(Decimal128Array::from_iter(price), 12, 2)),
        ("large", decimals(Decimal128Array::from_iter_values(large), 38, 10)),
        ("nothing", Arc::new(NullArray::new(ROWS))),
    ]
}

fn decimals(values: Decimal128Array, precision: u8, scale: i8) -> ArrayRef {
    Arc::new(values.with_precision_and_scale(precision, scale).expect("a precision and scale"))
}

fn texts() -> Vec<(&'static str, ArrayRef)> {
    let text = |row: usize| format!("row {row} é{}", "x".repeat(row % 50));
    let bytes = |row: usize| vec![row as u8; row % 20];
    vec![
        ("text", Arc::new(StringArray::from_iter((0..ROWS).map(|row| some(row, 11).then(|| text(row)))))),
        (
            "long_text",
            Arc::new(LargeStringArray::from_iter_values(
                (0..ROWS).map(|row| if row % 4 == 0 { String::new() } else { text(row) }),
            )),
        ),
        ("bytes", Arc::new(BinaryArray::from_iter((0..ROWS).map(|row| some(row, 6).then(|| bytes(row)))))),
        ("long_bytes", Arc::new(LargeBinaryArray::from_iter_values((0..ROWS).map(bytes)))),
        (
            "hash",
            Arc::new(
                FixedSizeBinaryArray::try_from_iter((0..ROWS).map(|row| [row as u8; 5])).expect("five each"),
            ),
        ),
    ]
}

fn times() -> Vec<(&'static str, ArrayRef)> {
    const START: i64 = 1_700_000_000;
    let rows = 0..ROWS as i64;
    let seconds = TimestampSecondArray::from_iter_values(rows.clone().map(|row| START + row));
    let millis = rows.clone().map(|row| some(row as usize, 9).then_some(START * 1000 - row));
    let micros = TimestampMicrosecondArray::from_iter_values(rows.clone().map(|row| START * 1_000_000 + row));
    let nanos =
        TimestampNanosecondArray::from_iter_values(rows.clone().map(|row| START * 1_000_000_000 + row));
    vec![
        ("day", Arc::new(Date32Array::from_iter_values(rows.clone().map(|row| row as i32 - 2000)))),
        (
            "clock",
            Arc::new(Time64MicrosecondArray::from_iter_values(rows.clone().map(|row| row * 17_000_003))),
        ),
        ("seconds", Arc::new(seconds)),
        ("millis", Arc::new(TimestampMillisecondArray::from_iter(millis).with_timezone("UTC"))),
        ("micros", Arc::new(micros)),
        ("nanos", Arc::new(nanos)),
        ("took", Arc::new(DurationMicrosecondArray::from_iter_values(rows.map(|row| row * 1001)))),
    ]
}

fn nested() -> Vec<(&'static str, ArrayRef)> {
    let item = |data_type: DataType, nullable| Arc::new(Field::new("item", data_type, nullable));
    let tensor =
        Float32Array::from_iter_values((0..ROWS * 6).map(|at| (at / 6) as f32 + (at % 6) as f32 / 8.0));
    let tensor = FixedSizeListArray::new(item(DataType::Float32, false), 6, Arc::new(tensor), None);
    let pair = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
        (0..ROWS).map(|row| some(row, 9).then(|| [Some(row as f32), some(row, 4).then_some(0.5)])),
        2,
    );
    let tokens = (0..ROWS)
        .map(|row| some(row, 6).then(|| (0..row % 4).map(move |at| (at != 2).then_some((row + at) as i32))));
    let words: Vec<String> =
        (0..ROWS).flat_map(|row| (0..row % 3).map(move |at| format!("{row}/{at}"))).collect();
    let words = LargeListArray::new(
        item(DataType::Utf8, false),
        OffsetBuffer::from_lengths((0..ROWS).map(|row| row % 3)),
        Arc::new(StringArray::from(words)),
        None,
    );
    vec![
        ("tensor", Arc::new(tensor)),
        ("pair", Arc::new(pair)),
        ("tokens", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(tokens))),
        ("words", Arc::new(words)),
        ("features", features()),
        ("box", boxes()),
        ("counts", counts()),
    ]
}

/// Ragged lists of pairs, as sparse samples have them.
fn features() -> ArrayRef {
    let lengths = || (0..ROWS).map(|row| row % 5);
    let index: UInt32Array = lengths().flat_map(|length| (0..length as u32).map(|at| at * 1000)).collect();
    let value = Float32Array::from_iter_values((0..index.len()).map(|at| at as f32 / 2.0));
    let pairs = StructArray::from(vec![
        (Arc::new(Field::new("index", DataType::UInt32, false)), Arc::new(index) as ArrayRef),
        (Arc::new(Field::new("value", DataType::Float32, false)), Arc::new(value)),
    ]);
    let item = Arc::new(Field::new("item", pairs.data_type().clone(), false));
    Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths()), Arc::new(pairs), None))
}

/// A struct in a struct.
fn boxes() -> ArrayRef {
    let field =
        |name: &str, column: &ArrayRef| Field::new(name, column.data_type().clone(), column.is_nullable());
    let x: ArrayRef = Arc::new(UInt16Array::from_iter_values((0..ROWS).map(|row| row as u16)));
    let deep: ArrayRef = Arc::new(BooleanArray::from_iter((0..ROWS).map(|row| Some(row % 2 == 0))));
    let name: ArrayRef =
        Arc::new(StringArray::from_iter((0..ROWS).map(|row| some(row, 3).then(|| "b".repeat(row % 6)))));
    let inner = StructArray::new(
        vec![field("deep", &deep), field("name", &name)].into(),
        vec![deep, name],
        nulls(10),
    );
    let inner: ArrayRef = Arc::new(inner);
    Arc::new(StructArray::new(vec![field("x", &x), field("inner", &inner)].into(), vec![x, inner], nulls(8)))
}

fn counts() -> ArrayRef {
    let mut counts = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    for row in 0..ROWS {
        for at in 0..row % 3 {
            counts.keys().append_value(format!("k{at}"));
            counts.values().append_option(some(row, 4).then_some(row as i32));
        }
        counts.append(some(row, 12)).expect("as many keys as values");
    }
    Arc::new(counts.finish())
}
