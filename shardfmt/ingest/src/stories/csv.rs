//! CSV: directories, compression, chosen types, lines that are none.

use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::csv::WriterBuilder as CsvWriter;
use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn files_of_a_directory_are_one_table_with_the_types_of_all() {
    let directory = directory(&[
        ("a.csv", b"x,y\n1,2020-01-01\n".to_vec()),
        ("b.csv.gz", gzip(b"\xef\xbb\xbfx,y\r\n2.5,2020-01-01T10:00:00\r\n\r\n")),
        ("c.csv.zst", zstd(b"\"x\",\"y\"\n3,\n")),
        ("notes.txt", b"about these".to_vec()),
    ]);
    let ingested = run(directory.path(), &sequential(), 2).unwrap();
    let types = [("x", "Float64"), ("y", "Timestamp(s)")];
    assert_eq!(ingested.types(), types.map(|(name, text)| (name.to_owned(), text.to_owned())));
    assert_eq!(
        ingested.json(),
        [
            json!({"x": 1.0, "y": "2020-01-01T00:00:00"}),
            json!({"x": 2.5, "y": "2020-01-01T10:00:00"}),
            json!({"x": 3.0, "y": null}),
        ]
    );
    assert_eq!(ingested.skipped, 1);
    let names: Vec<&str> = ingested.provenance.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["a.csv", "b.csv.gz", "c.csv.zst"]);
    let digest = shardfmt::digest::Digest::of(&fs::read(directory.path().join("b.csv.gz")).unwrap());
    assert_eq!(ingested.provenance.inputs[1].digest, digest);
}

#[test]
fn fields_are_separated_by_what_is_said() {
    let text = b"x;y|z\n\"1;2\";3,5|4\n".to_vec();
    let directory = directory(&[("all.csv", text.clone()), ("all.tsv", text)]);
    for name in ["all.csv", "all.tsv"] {
        let read = |delimiter| {
            let config = IngestConfig { delimiter: Some(delimiter), ..sequential() };
            run(&directory.path().join(name), &config, 1).unwrap().json()
        };
        assert_eq!(read(Delimiter::Semicolon), [json!({"x": "1;2", "y|z": "3,5|4"})]);
        assert_eq!(read(Delimiter::Pipe), [json!({"x;y": "1;2;3,5", "z": 4})]);
        assert_eq!(read(Delimiter::Tab), [json!({"x;y|z": "1;2;3,5|4"})]);
    }
}

#[test]
fn moments_are_texts_where_a_type_would_lose_something() {
    let types = |values: &[&str]| {
        let directory = directory(&[("all.csv", format!("x\n{}\n", values.join("\n")).into_bytes())]);
        let ingested = run(&directory.path().join("all.csv"), &sequential(), 1).unwrap();
        let rows = ingested.json();
        (ingested.types().remove(0).1, rows)
    };
    for texts in [
        ["0000-00-00", "2020-01-02"],
        ["2020-02-30", "2020-01-02"],
        ["2020-01-02 10:00:00 in Rome", "2020-01-02 10:00:00"],
        ["2020-01-02T10:00:00Z", "2020-01-02T10:00:00"],
        ["2020-01-02T10:00:00+02:00", "2020-01-02T10:00:00+01:00"],
        ["2020-01-02", "2020-01-02T10:00:00.5-08:00"],
        ["9999-12-31", "2020-01-02T10:00:00.123456789"],
    ] {
        assert_eq!(types(&texts), ("Utf8".to_owned(), texts.map(|text| json!({"x": text})).to_vec()));
    }
    assert_eq!(types(&["9999-12-31", "0001-01-01"]).0, "Date32");
    assert_eq!(types(&["9999-12-31", "2020-01-02 10:00:00.25"]).0, "Timestamp(ms)");
    assert_eq!(types(&["2020-01-02", "2020-01-02 10:00:00.123456789"]).0, "Timestamp(ns)");
    // Who says so has them as moments of one zone.
    let (_directory, path) = one_file("all.csv", b"x\n2020-01-02T10:00:00+02:00\n2020-01-02T10:00:00Z\n");
    let ingested = run(&path, &typed(&[("x", "Timestamp(s, \"+00:00\")")]), 1).unwrap();
    let moments = ["2020-01-02T08:00:00Z", "2020-01-02T10:00:00Z"];
    assert_eq!(ingested.json(), moments.map(|moment| json!({"x": moment})));
    // Far from each other, and so looked at in different blocks.
    let rows: String = (0..300_000).map(|_| "9999-12-31\n").collect();
    let text = format!("x\n{rows}2020-01-02T10:00:00.123456789\n");
    let directory = directory(&[("all.csv", text.into_bytes())]);
    let ingested = run(&directory.path().join("all.csv"), &sequential(), 2).unwrap();
    assert_eq!(ingested.types()[0].1, "Utf8");
}

#[test]
fn types_can_be_chosen() {
    let csv = b"id,score,day,flag\n007,1,2020-01-02,true\n8,2,,false\n".to_vec();
    let directory = directory(&[("all.csv", csv)]);
    let path = directory.path().join("all.csv");
    let chosen =
        typed(&[("id", "Utf8"), ("score", "Float32"), ("day", "Timestamp(ms)"), ("flag", "Utf8View")]);
    let ingested = run(&path, &chosen, 2).unwrap();
    let types: Vec<String> = ingested.types().into_iter().map(|(_, text)| text).collect();
    assert_eq!(types, ["Utf8", "Float32", "Timestamp(ms)", "Utf8"]);
    assert_eq!(ingested.texts("id"), ["007", "8"]);
    let refused = |types: &[(&str, &str)], words: &str| {
        let text = refusal(&path, &typed(types));
        assert!(text.contains(words), "{words:?} not in {text}");
    };
    refused(&[("nosuch", "Int32")], "no column \"nosuch\"; its columns are id, score, day, flag");
    refused(&[("id", "Integer")], "\"Integer\"");
    refused(&[("id", "List(Int32)")], "Unsupported");
    refused(&[("flag", "Int8")], "line 2: Error while parsing value 'true' as type 'Int8'");
    let parquet = directory.path().join("other.parquet");
    write_parquet(
        parquet.clone(),
        &RecordBatch::try_from_iter([("x", Arc::new(StringArray::from(vec!["a"])) as ArrayRef)]).unwrap(),
    );
    assert!(refusal(&parquet, &typed(&[("x", "Int8")])).contains("means nothing for Parquet"));
}

#[test]
fn lines_that_are_no_rows_are_named_or_left_out() {
    let csv = b"x,y\n1,a\n2,b,c\n3,\"d\ne\"\nseven,f\n5\n6,caf\xe9\n8,\"g\n9,h\n".to_vec();
    let other = b"x,z\n1,2\n".to_vec();
    let directory = directory(&[("a.csv", csv), ("b.csv", other)]);
    let config = IngestConfig { types: typed(&[("x", "Int64")]).types, ..skipping() };
    let ingested = run(directory.path(), &config, 2).unwrap();
    assert_eq!(ingested.integers("x"), [1, 3]);
    assert_eq!(ingested.texts("y"), ["a", "d\ne"]);
    assert_eq!(
        ingested.skipped_names(),
        ["b.csv", "a.csv, line 3", "a.csv, line 6", "a.csv, line 7", "a.csv, line 8", "a.csv, line 9"]
    );
    let reasons: Vec<&str> =
        ingested.provenance.skipped.first.iter().map(|skipped| skipped.reason.as_str()).collect();
    assert!(reasons[0].contains("column 1 is \"z\" instead of \"y\""), "{reasons:?}");
    assert!(reasons[1].contains("3 columns where the header has 2"), "{reasons:?}");
    assert!(reasons[2].contains("parsing value 'seven'"), "{reasons:?}");
    assert!(reasons[4].contains("UTF-8"), "{reasons:?}");
    assert!(reasons[5].contains("does not end"), "{reasons:?}");
    let path = directory.path().join("a.csv");
    assert!(refusal(&path, &sequential()).contains("line 3 has 3 columns"));
    assert!(refusal(directory.path(), &sequential()).contains("unlike a.csv"));
}

#[test]
fn what_was_cut_off_is_an_error_or_left_out() {
    let rows: String = (0..200_000).map(|row| format!("{row},{}\n", row * 7919 % 10_007)).collect();
    let whole = gzip(format!("x,y\n{rows}").as_bytes());
    let directory = directory(&[("all.csv.gz", whole[..whole.len() / 2].to_vec())]);
    let path = directory.path().join("all.csv.gz");
    assert!(refusal(&path, &sequential()).contains("too early"));
    let ingested = run(&path, &skipping(), 2).unwrap();
    assert_eq!(ingested.skipped_names(), ["all.csv.gz"]);
    let rows = ingested.integers("x");
    assert!(rows.len() > 10_000 && rows.len() < 200_000, "{}", rows.len());
    assert_eq!(rows, (0..rows.len() as i64).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn texts_come_back_whatever_is_in_them(rows in prop::collection::vec(("[a-c\",\n\r é]{1,8}", prop::option::of("[xy\"\n,]{1,4}")), 1..60)) {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("x", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.0)))),
            ("y", Arc::new(rows.iter().map(|row| row.1.as_deref()).collect::<StringArray>())),
        ];
        let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap();
        let mut writer = CsvWriter::new().with_header(true).build(Vec::new());
        writer.write(&batch).unwrap();
        let directory = directory(&[("all.csv", writer.into_inner())]);
        let config = typed(&[("x", "Utf8"), ("y", "Utf8")]);
        let ingested = run(&directory.path().join("all.csv"), &config, 2).unwrap();
        let codec = RowCodec::new(batch.schema()).unwrap();
        prop_assert_eq!(ingested.rows(), canonical_rows(&codec, &batch));
    }
}
