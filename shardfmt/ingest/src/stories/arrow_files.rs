//! Arrow IPC: files and streams, ours and others'.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, DictionaryArray, Int64Array, LargeStringArray, ListArray, NullArray, StringArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn file(batches: &[RecordBatch], compression: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.into_inner().unwrap()
}

fn stream(batches: &[RecordBatch], compression: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.into_inner().unwrap()
}

fn batch(rows: std::ops::Range<i64>) -> RecordBatch {
    let texts = rows.clone().map(|row| (row % 3 > 0).then(|| format!("text {row}")));
    let lists = rows.clone().map(|row| (row % 4 > 0).then(|| vec![Some(row as i32), None]));
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("label", Arc::new(Int64Array::from_iter_values(rows)), false),
        ("text", Arc::new(texts.collect::<StringArray>()), true),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists)), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

#[test]
fn what_pyarrow_wrote_is_read_with_its_dictionaries_resolved() {
    for name in ["lz4.feather", "zstd.feather"] {
        let ingested = run(&theirs(name), &sequential(), 2).unwrap();
        let types: Vec<String> = ingested.types().into_iter().map(|(_, text)| text).collect();
        assert_eq!(types[..3], ["Int64", "Utf8", "Utf8"]);
        let rows = ingested.json();
        assert_eq!(
            (rows.len(), &rows[0], &rows[2], &rows[5]),
            (
                6,
                &json!({"label": 0, "class": "cat", "view": "a text too long to be inlined", "nested": [{"a": 1}], "tags": ["x"]}),
                &json!({"label": 2, "class": null, "view": "b", "nested": null, "tags": null}),
                &json!({"label": 5, "class": "dog", "view": "d", "nested": [{"a": 2}, {"a": 3}], "tags": ["x"]}),
            )
        );
        assert_eq!(rows[3]["nested"], json!([null]));
    }
    let ingested = run(&theirs("dictionaries.arrows"), &sequential(), 2).unwrap();
    let classes: Vec<Value> = ingested.json().into_iter().map(|row| row["class"].clone()).collect();
    assert_eq!(Value::from(classes), json!(["cat", null, "cat", "dog", null, "bird", null]));
}

#[test]
fn files_of_a_directory_follow_each_other_and_shards_are_such_files() {
    let lz4 = Some(CompressionType::LZ4_FRAME);
    let directory = directory(&[
        ("c.arrows", stream(&[batch(20..22)], None)),
        ("a.arrow", file(&[batch(0..5), batch(5..9)], None)),
        ("b/x.feather", file(&[batch(9..20)], lz4)),
        ("readme.txt", Vec::new()),
    ]);
    let ingested = run(directory.path(), &sequential(), 2).unwrap();
    assert_eq!(ingested.integers("label"), (0..22).collect::<Vec<_>>());
    assert_eq!(ingested.skipped, 1);
    let shards: Vec<(String, Vec<u8>)> = ingested
        .manifest
        .shards
        .iter()
        .map(|shard| (format!("{}.arrow", shard.id), ingested.shards.0.lock().unwrap()[&shard.id].to_vec()))
        .collect();
    let shards: Vec<(&str, Vec<u8>)> = shards.iter().map(|(name, bytes)| (&**name, bytes.clone())).collect();
    let again = run(super::directory(&shards).path(), &sequential(), 2).unwrap();
    assert_eq!(again.rows(), ingested.rows());
    assert_eq!(again.manifest.schema, ingested.manifest.schema);
}

#[test]
fn a_large_record_batch_is_cut() {
    let rows: i64 = 700_000;
    let numbers = Arc::new(Int64Array::from_iter_values(0..rows));
    let large = RecordBatch::try_from_iter([("label", numbers as ArrayRef)]).unwrap();
    let directory = directory(&[("all.arrow", file(&[large], Some(CompressionType::ZSTD)))]);
    let path = directory.path().join("all.arrow");
    let ingested = run(&path, &sequential(), 2).unwrap();
    assert_eq!(ingested.integers("label"), (0..rows).collect::<Vec<_>>());
    assert_eq!(run(&path, &sequential(), 1).unwrap().manifest.id(), ingested.manifest.id());
}

#[test]
fn values_that_are_shared_take_no_room_without_end() {
    // A MiB of text that 4,000 rows have, and a row that has it 4,000 times.
    let text: ArrayRef = Arc::new(LargeStringArray::from(vec!["x".repeat(1 << 20)]));
    let shared = |count: usize| DictionaryArray::<Int32Type>::new(vec![0; count].into(), text.clone());
    let column = Arc::new(shared(4000)) as ArrayRef;
    let many = RecordBatch::try_from_iter([("text", column)]).unwrap();
    let item = Arc::new(Field::new_list_field(shared(0).data_type().clone(), false));
    let list = ListArray::new(item, OffsetBuffer::from_lengths([4000]), Arc::new(shared(4000)), None);
    let one = RecordBatch::try_from_iter([("text", Arc::new(list) as ArrayRef)]).unwrap();
    let directory = directory(&[("many.arrow", file(&[many], None)), ("one.arrow", file(&[one], None))]);
    assert!(refusal(&directory.path().join("one.arrow"), &sequential()).contains("a row of it has"));
    let source = Source::open(&directory.path().join("many.arrow"), &sequential()).unwrap();
    let mut pieces = 0;
    source
        .pieces(Resources::threads(1).largest_row(), &mut |piece| {
            pieces += 1;
            if pieces == 1 {
                let (rows, _) = source.read(piece).unwrap();
                assert!(rows.unwrap().get_array_memory_size() < 40 << 20);
            }
            Ok(())
        })
        .unwrap();
    assert!(pieces > 100, "{pieces} pieces");
}

#[test]
fn what_is_no_arrow_is_refused_by_name() {
    let whole = file(&[batch(0..50), batch(50..99)], None);
    let streamed = stream(&[batch(0..50), batch(50..99)], None);
    let mut claims = file(&[batch(0..50)], Some(CompressionType::ZSTD));
    // A compressed buffer begins with its length when decompressed; this one says an exabyte.
    let at = claims.windows(8).position(|eight| eight == 400u64.to_le_bytes()).unwrap();
    claims[at + 7] = 0x0f;
    let mut trailing = streamed.clone();
    trailing.extend(b"more");
    let nulls = RecordBatch::try_new(
        Arc::new(Schema::new(vec![Field::new("x", DataType::Null, true)])),
        vec![Arc::new(NullArray::new(3))],
    );
    let directory = directory(&[
        ("cut.arrow", whole[..whole.len() - 20].to_vec()),
        ("cut.arrows", streamed[..streamed.len() - 100].to_vec()),
        ("trailing.arrows", trailing),
        ("claims.arrow", claims),
        ("old.feather", b"FEA1 and so on, and on and on".to_vec()),
        ("other.arrow", b"<html>not found</html>".to_vec()),
        ("empty.arrow", Vec::new()),
        ("nulls.arrow", file(&[nulls.unwrap()], None)),
    ]);
    let refused = |name: &str, words: &str| {
        let text = refusal(&directory.path().join(name), &sequential());
        assert!(text.contains(name) && text.contains(words), "{words:?} not in {text}");
    };
    refused("cut.arrow", "cut off");
    refused("cut.arrows", "too early");
    refused("trailing.arrows", "4 bytes follow its end");
    refused("claims.arrow", "when decompressed");
    refused("old.feather", "version 1");
    refused("other.arrow", "Arrow");
    refused("empty.arrow", "empty");
    refused("nulls.arrow", "no column has a value");
    let ingested = run(&directory.path().join("cut.arrows"), &skipping(), 2).unwrap();
    assert_eq!(ingested.integers("label"), (0..50).collect::<Vec<_>>());
    assert_eq!(ingested.skipped_names(), ["cut.arrows"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn rows_out_are_the_rows_in(cuts in prop::collection::vec(0..300i64, 1..5), is_stream: bool, compression in 0..3usize) {
        let compression = [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)][compression];
        let mut from = 0;
        let batches: Vec<RecordBatch> = cuts.iter().map(|&rows| {
            from += rows;
            batch(from - rows..from)
        }).collect();
        prop_assume!(from > 0);
        let bytes = if is_stream { stream(&batches, compression) } else { file(&batches, compression) };
        let directory = directory(&[("all.ipc", bytes)]);
        let ingested = run(&directory.path().join("all.ipc"), &sequential(), 2).unwrap();
        let codec = RowCodec::new(batches[0].schema()).unwrap();
        let expected: Vec<Vec<u8>> = batches.iter().flat_map(|batch| canonical_rows(&codec, batch)).collect();
        prop_assert_eq!(ingested.rows(), expected);
    }
}
