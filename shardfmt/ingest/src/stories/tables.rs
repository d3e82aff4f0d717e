//! Parquet and CSV.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, DictionaryArray, FixedSizeListArray, Float64Array, Int64Array, ListArray, MapArray,
    NullArray, StringArray, StringViewArray, StructArray, UInt8Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Int32Type, Schema};

use super::*;

fn table(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

fn numbers(range: std::ops::Range<i64>) -> RecordBatch {
    table(vec![("label", Arc::new(Int64Array::from_iter_values(range)))])
}

#[test]
fn files_of_a_directory_follow_each_other_by_name() {
    let directory = directory(&[("notes.txt", b"hello".to_vec())]);
    std::fs::create_dir(directory.path().join("b")).unwrap();
    write_parquet(directory.path().join("c.parquet"), &numbers(200..250));
    write_parquet(directory.path().join("b/2.PARQUET"), &numbers(100..200));
    write_parquet(directory.path().join("a.parquet"), &numbers(0..100));
    let ingested = run(directory.path(), &sequential(), 2).unwrap();
    assert_eq!(ingested.integers("label"), (0..250).collect::<Vec<_>>());
    assert_eq!(ingested.skipped, 1);
    let names: Vec<&str> = ingested.provenance.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["a.parquet", "b/2.PARQUET", "c.parquet"]);
    let labels = ingested.manifest.shards[0].labels.as_ref().unwrap();
    assert_eq!(labels.len(), 250);
    let part = run(directory.path(), &under("b"), 1).unwrap();
    assert_eq!(part.integers("label"), (100..200).collect::<Vec<_>>());
}

#[test]
fn columns_become_plain_and_metadata_of_fields_stays() {
    let tensor = Field::new("image", DataType::new_fixed_size_list(DataType::UInt8, 4, false), false)
        .with_metadata(HashMap::from([
            ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
            ("ARROW:extension:metadata".to_owned(), r#"{"shape":[1,2,2]}"#.to_owned()),
        ]));
    let schema = Schema::new_with_metadata(
        vec![
            tensor,
            Field::new("label", DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into()), true),
            Field::new("view", DataType::Utf8View, true),
            Field::new("long", DataType::LargeUtf8, true),
        ],
        HashMap::from([("pandas".to_owned(), "{}".to_owned())]),
    );
    let DataType::FixedSizeList(item, _) = schema.field(0).data_type().clone() else { unreachable!() };
    let values = Arc::new(UInt8Array::from_iter_values(0..8));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeListArray::new(item, 4, values, None)),
        Arc::new(DictionaryArray::<Int32Type>::from_iter(["cat", "dog"])),
        Arc::new(StringViewArray::from_iter_values(["a text too long to be inlined", "b"])),
        Arc::new(arrow::array::LargeStringArray::from_iter_values(["c", "d"])),
    ];
    let directory = directory(&[]);
    let path = directory.path().join("all.parquet");
    write_parquet(path.clone(), &RecordBatch::try_new(Arc::new(schema), columns).unwrap());
    let ingested = run(&path, &sequential(), 2).unwrap();
    let types: Vec<&DataType> =
        ingested.manifest.schema.fields().iter().map(|field| field.data_type()).collect();
    assert_eq!(types[1..], [&DataType::Utf8, &DataType::Utf8, &DataType::LargeUtf8]);
    assert_eq!(
        ingested.metadata("image", "ARROW:extension:name").as_deref(),
        Some("arrow.fixed_shape_tensor")
    );
    assert_eq!(
        ingested.metadata("image", "ARROW:extension:metadata").as_deref(),
        Some(r#"{"shape":[1,2,2]}"#)
    );
    assert!(!ingested.manifest.schema.metadata().contains_key("pandas"));
    assert_eq!(ingested.texts("label"), ["cat", "dog"]);
    assert_eq!(ingested.texts("view"), ["a text too long to be inlined", "b"]);
    let labels = ingested.manifest.shards[0].labels.clone().unwrap();
    assert_eq!(labels, BTreeMap::from([("cat".into(), 1), ("dog".into(), 1)]));
}

#[test]
fn numbers_that_a_file_gives_its_fields_are_dropped_at_any_depth() {
    let numbered = |field: Field, number: usize| {
        field.with_metadata([("PARQUET:field_id".to_owned(), number.to_string())])
    };
    let batch = |first: usize| {
        let part = numbered(Field::new("part", DataType::Int64, false), first);
        let item = numbered(Field::new_list_field(DataType::Struct(vec![part].into()), true), first + 1);
        let field = numbered(Field::new("list", DataType::List(Arc::new(item.clone())), true), first + 2);
        let DataType::Struct(fields) = item.data_type().clone() else { unreachable!() };
        let parts = StructArray::new(fields, vec![Arc::new(Int64Array::from(vec![1, 2]))], None);
        let lists = ListArray::new(Arc::new(item), OffsetBuffer::from_lengths([2]), Arc::new(parts), None);
        RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![Arc::new(lists)]).unwrap()
    };
    let directory = directory(&[]);
    write_parquet(directory.path().join("a.parquet"), &batch(1));
    write_parquet(directory.path().join("b.parquet"), &batch(7));
    let ingested = run(directory.path(), &sequential(), 2).unwrap();
    assert_eq!(ingested.rows()[0], ingested.rows()[1]);
    let fields = ingested.manifest.schema.flattened_fields();
    assert!(fields.iter().all(|field| field.metadata().is_empty()), "{fields:?}");
}

#[test]
fn rows_of_a_table_that_change_between_the_readings_and_keep_their_lengths_are_refused() {
    let config = IngestConfig { mix: Mix::Hash, ..IngestConfig::default() };
    let (counted, other) = (numbers(0..50), numbers(1..51));
    let table = crate::Table::new("rows", counted.schema(), &config).unwrap();
    let all = table.measure(&counted).unwrap();
    let version = |rows: &RecordBatch| {
        let (index, shard) = table.shard(std::slice::from_ref(rows), 1).unwrap().unwrap();
        table.version(all, vec![(index, shard.entry)])
    };
    assert!(version(&counted).is_ok());
    let error = version(&other).unwrap_err().to_string();
    assert!(error.contains("changed while it was read") && error.contains("other values"), "{error}");
}

/// Rows with a list and a map, whose items have these names.
fn nested(item: &str, [entries, key, value]: [&str; 3]) -> RecordBatch {
    let numbers = || Arc::new(Int64Array::from_iter_values(0..6)) as ArrayRef;
    let offsets = || OffsetBuffer::from_lengths([1, 2, 3]);
    let list = ListArray::new(Arc::new(Field::new(item, DataType::Int64, true)), offsets(), numbers(), None);
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(["a", "b", "c", "d", "e", "f"]));
    let pairs = StructArray::from(vec![
        (Arc::new(Field::new(key, DataType::Utf8, false)), texts),
        (Arc::new(Field::new(value, DataType::Int64, true)), numbers()),
    ]);
    let field = Arc::new(Field::new(entries, pairs.data_type().clone(), false));
    let map = MapArray::new(field, offsets(), pairs, None, false);
    table(vec![("list", Arc::new(list)), ("map", Arc::new(map))])
}

#[test]
fn names_that_writers_give_to_items_do_not_matter() {
    let config = IngestConfig { mix: Mix::Hash, ..IngestConfig::default() };
    let arrow = nested("item", ["entries", "key", "value"]);
    let version = |rows: &RecordBatch| {
        let table = crate::Table::new("rows", rows.schema(), &config).unwrap();
        let (_, shard) = table.shard(std::slice::from_ref(rows), 1).unwrap().unwrap();
        let all = table.measure(rows).unwrap();
        table.version(all, vec![(0, shard.entry)]).unwrap().manifest
    };
    let expected = version(&arrow);
    assert_eq!(expected.schema.fields(), arrow.schema().fields());
    for other in [
        nested("element", ["entries", "key", "value"]),
        nested("array", ["key_value", "keys", "values"]),
        nested("l", ["map", "k", "v"]),
    ] {
        assert_eq!(version(&other).id(), expected.id());
    }
    let directory = directory(&[]);
    for (file, rows) in [("a", &arrow), ("b", &nested("element", ["key_value", "k", "v"]))] {
        write_parquet(directory.path().join(file).with_extension("parquet"), rows);
    }
    let both = run(directory.path(), &sequential(), 2).unwrap();
    assert_eq!(both.manifest.schema.fields(), arrow.schema().fields());
}

#[test]
fn columns_without_a_value_are_no_rows() {
    let (none, label) = (Arc::new(NullArray::new(3)), Arc::new(Int64Array::from(vec![1, 2, 3])));
    let rows = [("none", none as ArrayRef, true), ("label", label as ArrayRef, true)];
    let rows = RecordBatch::try_from_iter_with_nullable(rows).unwrap();
    let directory = directory(&[]);
    let path = directory.path().join("all.parquet");
    write_parquet(path.clone(), &rows);
    assert_eq!(run(&path, &sequential(), 1).unwrap().integers("label"), [1, 2, 3]);
    let config = IngestConfig { columns: Some(vec!["none".to_owned()]), ..sequential() };
    let refused = Source::open(&path, &config).expect_err("refused before anything is read").to_string();
    assert!(refused.contains("no column has a value"), "{refused}");
}

#[test]
fn a_csv_becomes_typed_columns() {
    let csv = b"\xef\xbb\xbflabel,weight,note\n1,0.5,\"a, b\"\n2,1,\n3,2.5,n/a\n".to_vec();
    let directory = directory(&[("all.csv", csv), ("all.tsv", b"x\ty\n1\t2\n".to_vec())]);
    let ingested = run(&directory.path().join("all.csv"), &sequential(), 2).unwrap();
    assert_eq!(ingested.integers("label"), [1, 2, 3]);
    let batches = ingested.batches();
    let weight = batches[0].column_by_name("weight").unwrap();
    assert_eq!(weight.as_primitive(), &Float64Array::from(vec![0.5, 1.0, 2.5]));
    let note = batches[0].column_by_name("note").unwrap();
    assert_eq!(note.as_string(), &StringArray::from(vec![Some("a, b"), None, Some("n/a")]));
    assert_eq!(run(&directory.path().join("all.tsv"), &sequential(), 2).unwrap().integers("y"), [2]);
}

#[test]
fn a_column_without_values_or_of_no_number_there_is_becomes_text() {
    let csv = b"x,empty,huge\n1,,1\n2,,99999999999999999999999999\n".to_vec();
    let directory = directory(&[("all.csv", csv)]);
    let ingested = run(&directory.path().join("all.csv"), &sequential(), 1).unwrap();
    assert_eq!(ingested.manifest.schema.field(1).data_type(), &DataType::Utf8);
    assert_eq!(ingested.texts("huge"), ["1", "99999999999999999999999999"]);
}

#[test]
fn the_demo_data_keeps_its_tensors_and_classes() {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../client/data/digits");
    let train = run(&digits.join("train.parquet"), &IngestConfig::default(), 2).unwrap();
    let test = run(&digits.join("test.parquet"), &IngestConfig::default(), 2).unwrap();
    assert_eq!((train.manifest.sample_count(), test.manifest.sample_count()), (1437, 360));
    assert_eq!(train.metadata("image", "ARROW:extension:name").as_deref(), Some("arrow.fixed_shape_tensor"));
    let shape = train.metadata("image", "ARROW:extension:metadata").unwrap();
    let shape: serde_json::Value = serde_json::from_str(&shape).unwrap();
    assert_eq!(shape["shape"], serde_json::json!([1, 8, 8]));
    assert_eq!(train.manifest.class_names().unwrap(), ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
}

#[test]
fn what_is_no_table_is_refused_by_name() {
    let rows = b"x,y\n1,2\n3,4,5\n".to_vec();
    let directory = directory(&[
        ("bad.parquet", b"PAR1 and then nothing".to_vec()),
        ("other.parquet", b"<html>not found</html>".to_vec()),
        ("long.csv", rows),
        ("short.csv", b"x,y\n1,2\n\"a\nb\",4\n3\n".to_vec()),
        ("latin.csv", b"x\ncaf\xe9\n".to_vec()),
        ("header.csv", b"x,y\n".to_vec()),
        ("empty.csv", Vec::new()),
        ("twice.csv", b"x,x\n1,2\n".to_vec()),
        ("data.json", b"[]".to_vec()),
        ("one.png", png(1)),
    ]);
    let refused = |name: &str, words: &[&str]| {
        let text = refusal(&directory.path().join(name), &sequential());
        assert!(text.contains(name), "{text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{word:?} not in {text}"));
    };
    refused("bad.parquet", &["Parquet"]);
    refused("other.parquet", &["Parquet"]);
    refused("long.csv", &["line 3", "3 columns", "has 2"]);
    refused("short.csv", &["line 5", "1 columns"]);
    refused("latin.csv", &["UTF-8"]);
    refused("header.csv", &["no row"]);
    refused("empty.csv", &["no row"]);
    refused("twice.csv", &["same name"]);
    refused("data.json", &[".json", ".parquet", ".csv", ".tar.gz", "webp"]);
    refused("one.png", &["single image"]);
    refused("absent.parquet", &["no such file"]);
    assert!(refusal(&directory.path().join("long.csv"), &under("train")).contains("leave `under` out"));
}

#[test]
fn files_with_different_columns_are_refused_with_the_difference() {
    let directory = directory(&[]);
    write_parquet(directory.path().join("a.parquet"), &numbers(0..3));
    let other = table(vec![("label", Arc::new(StringArray::from(vec!["x"])) as ArrayRef)]);
    write_parquet(directory.path().join("b.parquet"), &other);
    let text = refusal(directory.path(), &sequential());
    assert!(
        text.contains("b.parquet: column \"label\" is Utf8 instead of Int64, unlike a.parquet"),
        "{text}"
    );
}

#[test]
fn a_directory_of_two_kinds_or_none_is_refused() {
    let mixed = directory(&[("a.png", png(1))]);
    write_parquet(mixed.path().join("b.parquet"), &numbers(0..3));
    assert!(refusal(mixed.path(), &sequential()).contains("a.png"));
    let other = directory(&[("a.json", b"[]".to_vec()), ("b.md", Vec::new())]);
    assert!(refusal(other.path(), &sequential()).contains("only a.json and 1 more"));
    assert!(refusal(directory(&[]).path(), &sequential()).contains("empty"));
    let text = refusal(mixed.path(), &under("train"));
    assert!(text.contains("no folders"), "{text}");
}
