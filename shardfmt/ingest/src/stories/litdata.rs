//! LitData's chunks, written here byte by byte; `tests/reference/litdata_chunks.py` has them written by LitData.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, StringArray};
use arrow::datatypes::DataType;
use arrow::ipc::writer::FileWriter;
use proptest::prelude::*;
use serde_json::json;

use super::*;

const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

/// The table of a chunk, and its samples.
fn chunk(samples: &[Vec<u8>]) -> Vec<u8> {
    let mut end = 8 + 4 * samples.len();
    let mut bytes = (samples.len() as u32).to_le_bytes().to_vec();
    bytes.extend((end as u32).to_le_bytes());
    for sample in samples {
        end += sample.len();
        bytes.extend((end as u32).to_le_bytes());
    }
    samples.iter().for_each(|sample| bytes.extend(sample));
    bytes
}

/// The sizes of values, and the values.
fn sample(values: &[&[u8]]) -> Vec<u8> {
    let sizes: Vec<u8> = values.iter().flat_map(|value| (value.len() as u32).to_le_bytes()).collect();
    [sizes, values.concat()].concat()
}

/// The tree of a dictionary with these keys.
fn dictionary(keys: &[&str]) -> String {
    let leaves = vec![LEAF; keys.len()].join(",");
    let context = json!(json!(keys).to_string());
    format!(r#"[1, {{"type": "builtins.dict", "context": {context}, "children_spec": [{leaves}]}}]"#)
}

/// A directory of chunks. Each is its name, how many samples it has, the bytes the index says, and its file.
fn chunks(
    chunks: &[(&str, usize, usize, Vec<u8>)],
    formats: &[&str],
    spec: &str,
    more: &[(&str, Value)],
) -> TempDir {
    let listed: Vec<Value> = chunks
        .iter()
        .map(|(name, count, bytes, _)| {
            json!({"chunk_bytes": bytes, "chunk_size": count, "dim": null, "filename": name})
        })
        .collect();
    let mut config = json!({
        "compression": null, "chunk_size": null, "chunk_bytes": 64, "data_format": formats, "data_spec": spec,
        "encryption": null, "item_loader": "PyTreeLoader",
    });
    more.iter().for_each(|(key, value)| config[*key] = value.clone());
    let index = json!({"chunks": listed, "config": config}).to_string();
    let mut files = vec![("index.json", index.into_bytes())];
    files.extend(chunks.iter().map(|(name, _, _, bytes)| (*name, bytes.clone())));
    directory(&files)
}

fn one(formats: &[&str], keys: &[&str], samples: &[Vec<u8>]) -> TempDir {
    let bytes = chunk(samples);
    chunks(&[("chunk-0-0.bin", samples.len(), bytes.len(), bytes)], formats, &dictionary(keys), &[])
}

/// A text and a list of numbers.
fn words(number: i64) -> Vec<u8> {
    let numbers: Vec<u8> = (0..number).flat_map(i64::to_le_bytes).collect();
    sample(&[format!("w{number}").as_bytes(), &numbers, &number.to_le_bytes()])
}

const WORDS: [&str; 3] = ["str", "no_header_tensor:18", "int"];

#[test]
fn values_of_every_format_are_columns() {
    let float = 0.5f64.to_le_bytes();
    let numpy =
        [[2u32, 2, 1, 2].map(u32::to_le_bytes).concat(), [7i32, -7].map(i32::to_le_bytes).concat()].concat();
    let tensor = [[11u32, 2, 1, 3].map(u32::to_be_bytes).concat(), vec![1, 2, 3]].concat();
    let jpeg = picture(ImageFormat::Jpeg, 3);
    let images = [&1u32.to_le_bytes()[..], &(jpeg.len() as u32).to_le_bytes(), &jpeg].concat();
    let values: [(&str, &str, &[u8]); 10] = [
        ("int", "id", &7i64.to_le_bytes()),
        ("float", "score", &float),
        ("bool", "flag", &[1]),
        ("str", "text", "ü".as_bytes()),
        ("bytes", "raw", &[255, 0]),
        ("jpeg", "picture", &jpeg),
        ("image:png", "png", &png(2)),
        ("jpeg_array", "views", &images),
        ("numpy", "matrix", &numpy),
        ("tensor", "pixels", &tensor),
    ];
    let formats = values.map(|(format, ..)| format);
    let (names, bytes) = (values.map(|(_, name, _)| name), values.map(|(_, _, bytes)| bytes));
    let directory = one(&formats, &names, &[sample(&bytes), sample(&bytes)]);
    let source = Source::open(directory.path(), &sequential()).unwrap();
    assert_eq!((source.kind(), source.sample_count(), source.skipped_count()), (Kind::LitData, Some(2), 0));
    let ingested = run_source(source, &sequential(), 2).unwrap();
    let mut row = ingested.json().remove(1);
    for (column, expected) in [("picture", &jpeg), ("png", &png(2))] {
        assert_eq!(&ingested.binaries(column)[1], expected);
        row.as_object_mut().unwrap().shift_remove(column);
    }
    assert_eq!(row.as_object_mut().unwrap().shift_remove("views").unwrap().as_array().unwrap().len(), 1);
    assert_eq!(
        row,
        json!({"id": 7, "score": 0.5, "flag": true, "text": "ü", "raw": "ff00", "matrix": [7, -7], "pixels": [1, 2, 3]})
    );
    let shape = |column| ingested.metadata(column, "ARROW:extension:metadata").unwrap();
    assert_eq!(
        (shape("matrix").as_str(), shape("pixels").as_str()),
        (r#"{"shape":[1,2]}"#, r#"{"shape":[1,3]}"#)
    );
    let names: Vec<&str> = ingested.provenance.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["index.json", "chunk-0-0.bin"]);
    let decoded = IngestConfig { decode: true, columns: Some(vec!["png".to_owned()]), ..sequential() };
    let decoded = run(directory.path(), &decoded, 1).unwrap();
    assert_eq!(decoded.metadata("png", "ARROW:extension:metadata").as_deref(), Some(r#"{"shape":[5,6,3]}"#));
}

#[test]
fn chunks_are_read_in_the_order_of_the_index_however_they_are_compressed() {
    let (first, second) = ([words(0), words(2)], [words(3)]);
    let plain = |name, samples: &[Vec<u8>]| (name, samples.len(), chunk(samples).len(), chunk(samples));
    let directory = chunks(
        &[plain("chunk-1-0.bin", &first), plain("chunk-0-0.bin", &second)],
        &WORDS,
        &dictionary(&["text", "list", "id"]),
        &[("compression_level", json!("chunk"))],
    );
    let expected = [
        json!({"text": "w0", "list": [], "id": 0}),
        json!({"text": "w2", "list": [0, 1], "id": 2}),
        json!({"text": "w3", "list": [0, 1, 2], "id": 3}),
    ];
    assert_eq!(run(directory.path(), &sequential(), 2).unwrap().json(), expected);
    let all = [first.to_vec(), second.to_vec()].concat();
    let whole = chunk(&all);
    let each = chunk(&all.iter().map(|sample| zstd(sample)).collect::<Vec<_>>());
    for (name, bytes, file, level) in [
        ("chunk-0-0.zstd.bin", whole.len(), zstd(&whole), Value::Null),
        ("chunk-0-0.bin", each.len(), each, json!("sample")),
    ] {
        let directory = chunks(
            &[(name, 3, bytes, file)],
            &WORDS,
            &dictionary(&["text", "list", "id"]),
            &[("compression", json!("zstd")), ("compression_level", level)],
        );
        assert_eq!(run(directory.path(), &sequential(), 2).unwrap().json(), expected, "{name}");
    }
}

#[test]
fn tokens_are_rows_as_they_were_written() {
    let tokens = |from: i32, to: i32| (from..to).flat_map(i32::to_le_bytes).collect::<Vec<u8>>();
    let bytes = chunk(&[tokens(0, 5), tokens(5, 8)]);
    let directory = chunks(
        &[("chunk-0-0.bin", 2, bytes.len(), bytes)],
        &["no_header_tensor:16"],
        &format!("[1, {LEAF}]"),
        &[("item_loader", json!("TokensLoader"))],
    );
    let ingested = run(directory.path(), &sequential(), 2).unwrap();
    assert_eq!(ingested.json(), [json!({"data": [0, 1, 2, 3, 4]}), json!({"data": [5, 6, 7]})]);
    assert_eq!(ingested.column("data").data_type(), &DataType::new_list(DataType::Int32, false));
}

#[test]
fn rows_that_lie_in_an_arrow_file_are_read_from_there() {
    let file = |from: i64| {
        let columns: [(&str, ArrayRef); 2] = [
            ("id", Arc::new(Int64Array::from_iter_values(from..from + 2))),
            ("text", Arc::new(StringArray::from_iter_values((from..from + 2).map(|id| format!("row {id}"))))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut writer = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        let arrow = writer.into_inner().unwrap();
        let length = (arrow.len() as u32).to_le_bytes();
        [chunk(&[Vec::new(), Vec::new()]), arrow, length.to_vec(), b"LDARW01\0".to_vec()].concat()
    };
    let (first, second) = (file(0), file(2));
    let directory = chunks(
        &[("chunk-0-0.bin", 2, first.len(), first), ("chunk-0-1.bin", 2, second.len(), second.clone())],
        &["int", "str"],
        &dictionary(&["id", "text"]),
        &[],
    );
    let ingested = run(directory.path(), &sequential(), 2).unwrap();
    assert_eq!((ingested.integers("id"), ingested.texts("text")[3].as_str()), (vec![0, 1, 2, 3], "row 3"));
    let recorded = ingested.provenance.inputs.iter().find(|input| input.name == "chunk-0-1.bin").unwrap();
    assert_eq!(recorded.digest, shardfmt::Digest::of(&second), "of the whole chunk");
    assert_eq!(ingested.provenance.inputs.len(), 3);
}

#[test]
fn formats_that_are_not_read_are_refused_by_name_and_can_be_left_out() {
    let directory = one(&["pickle", "int"], &["code", "id"], &[sample(&[b"x", &7i64.to_le_bytes()])]);
    let text = refusal(directory.path(), &sequential());
    assert!(text.contains("\"code\" is pickled") && text.contains("run code"), "{text}");
    let config = IngestConfig { columns: Some(vec!["id".to_owned()]), ..sequential() };
    assert_eq!(run(directory.path(), &config, 1).unwrap().integers("id"), [7]);
    for (format, reason) in [
        ("json", "is of format \"json\", which is not read"),
        ("video:mp4", "\"video:mp4\""),
        ("no_header_tensor:10", "arrays of type 10"),
        ("pil", "`decode`"),
    ] {
        let directory = one(&[format], &["x"], &[sample(&[b"x"])]);
        let text = refusal(directory.path(), &sequential());
        assert!(text.contains("\"x\"") && text.contains(reason), "{text}");
    }
    let parquet = chunks(&[], &["int"], &dictionary(&["x"]), &[("item_loader", json!("ParquetLoader"))]);
    fs::write(parquet.path().join("chunk-0.bin"), b"").unwrap();
    assert!(refusal(parquet.path(), &sequential()).contains("ingest those themselves"));
}

#[test]
fn a_chunk_that_is_not_what_its_index_says_is_refused_or_left_out() {
    let bad = sample(&[b"\xff", b"", &[0; 8]]);
    let directory = one(&WORDS, &["text", "list", "id"], &[words(1), bad, words(2)]);
    let text = refusal(directory.path(), &sequential());
    assert!(text.contains("sample 1, column text") && text.contains("is not UTF-8"), "{text}");
    let skipped = run(directory.path(), &skipping(), 1).unwrap();
    assert_eq!(
        (skipped.integers("id"), skipped.left_out()),
        (vec![1, 2], vec!["chunk-0-0.bin, sample 1, column text".to_owned()])
    );
    let path = directory.path().join("chunk-0-0.bin");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let text = refusal(directory.path(), &sequential());
    assert!(text.contains("not a readable LitData file") && text.contains("bytes, its index says"), "{text}");
    fs::remove_file(&path).unwrap();
    fs::write(directory.path().join("chunk-0-1.bin"), b"").unwrap();
    assert!(
        refusal(directory.path(), &sequential()).contains("\"chunk-0-0.bin\", which it lists, is not there")
    );
    fs::remove_file(directory.path().join("index.json")).unwrap();
    assert!(refusal(directory.path(), &sequential()).contains("chunks of LitData without their index.json"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_damaged_chunk_gives_an_error_or_fewer_rows(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        is_skipping: bool,
    ) {
        let directory = one(&WORDS, &["text", "list", "id"], &[words(1), words(2), words(3)]);
        let ingested = run_changed(directory.path(), "chunk-0-0.bin", &changes, is_skipping);
        prop_assert!(ingested.map_or(true, |ingested| ingested.manifest.sample_count() <= 3));
    }
}
