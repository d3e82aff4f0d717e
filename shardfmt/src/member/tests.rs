//! Every sample of every schema comes back from its members; other files are read or refused by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{Float32Type, Int32Type, Schema};
use proptest::prelude::*;
use shardd_strategies::record_batch;

use super::*;
use crate::row::RowCodec;

fn rows(batch: &RecordBatch) -> Vec<Vec<u8>> {
    let codec = RowCodec::new(batch.schema()).expect("a plain schema");
    let encoder = codec.encoder(batch).expect("its own schema");
    let encode = |row| {
        let mut bytes = Vec::new();
        encoder.encode(row, &mut bytes).expect("a small row");
        bytes
    };
    (0..batch.num_rows()).map(encode).collect()
}

fn read(members: &Members, written: &[Member]) -> Result<Vec<u8>, MemberError> {
    let parts: Vec<(&str, &[u8])> =
        written.iter().map(|member| (member.suffix.as_str(), member.content.as_slice())).collect();
    let mut row = Vec::new();
    members.read(&parts, &mut row).map(|()| row)
}

proptest! {
    #[test]
    fn every_sample_comes_back_from_its_members(batch in record_batch(12)) {
        let members = Members::new(batch.schema()).expect("no two fields have one name");
        for row in rows(&batch) {
            let written = members.write(&row).expect("a row of the schema");
            prop_assert!(!written.is_empty());
            prop_assert_eq!(read(&members, &written), Ok(row), "{:?}", written);
        }
    }

    #[test]
    fn members_from_elsewhere_make_rows_of_the_schema_or_an_error(
        batch in record_batch(3),
        at: prop::sample::Index,
        byte: prop::sample::Index,
        to in prop::sample::select(&b"0\"[]{},:n9-.e\x00\x02\xff"[..]),
        cut: bool,
    ) {
        let members = Members::new(batch.schema()).expect("no two fields have one name");
        let codec = RowCodec::new(batch.schema()).expect("a plain schema");
        for row in rows(&batch) {
            let mut written = members.write(&row).expect("a row of the schema");
            let at = at.index(written.len());
            let content = &mut written[at].content;
            if !content.is_empty() {
                let byte = byte.index(content.len());
                content[byte] = to;
                content.truncate(if cut { byte } else { content.len() });
            }
            if let Ok(other) = read(&members, &written) {
                let decoded = codec.decode([other.as_slice()]).expect("the read bytes are a row");
                prop_assert_eq!(rows(&decoded), [other], "and in its one form");
            }
        }
    }
}

/// The members of the first row, as text where they are.
fn first(columns: Vec<(&str, ArrayRef)>) -> BTreeMap<String, String> {
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length");
    let written = Members::new(batch.schema()).expect("plain").write(&rows(&batch)[0]).expect("a row");
    written
        .into_iter()
        .map(|member| (member.suffix, String::from_utf8_lossy(&member.content).into()))
        .collect()
}

#[test]
fn members_are_what_readers_of_webdataset_expect() {
    let written = first(vec![
        ("image", Arc::new(BinaryArray::from(vec![&b"\xff\xd8\xff\xe0"[..]]))),
        ("mask", Arc::new(LargeBinaryArray::from(vec![&b"\x89PNG\r\n\x1a\n.."[..]]))),
        ("blob", Arc::new(BinaryArray::from(vec![&b"RIFF"[..]]))),
        ("label", Arc::new(Int64Array::from(vec![-7]))),
        ("a.b/c%", Arc::new(StringArray::from(vec!["ü\n"]))),
        ("weight", Arc::new(Float32Array::from(vec![0.1]))),
        ("gone", Arc::new(Int8Array::from(vec![None]))),
        ("tokens", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1), Some(-1)])]))),
        (
            "holes",
            Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>([Some([Some(f32::NAN), None])])),
        ),
    ]);
    let names: Vec<&str> = written.keys().map(String::as_str).collect();
    let expected = [
        "a.b%2Fc%25.txt",
        "blob.bin",
        "holes.json",
        "image.jpg",
        "label.cls",
        "mask.png",
        "tokens.npy",
        "weight.json",
    ];
    assert_eq!(names, expected);
    assert_eq!(written["label.cls"], "-7");
    assert_eq!(written["a.b%2Fc%25.txt"], "ü\n");
    assert_eq!(written["weight.json"], "0.1");
    assert_eq!(written["holes.json"], r#"["NaN",null]"#);
    let npy = &written["tokens.npy"];
    assert!(npy.contains("{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }"), "{npy}");
    assert_eq!(
        first(vec![("gone", Arc::new(Int8Array::from(vec![None])))]).keys().collect::<Vec<_>>(),
        ["__null__"]
    );
}

#[test]
fn a_tensor_keeps_the_shape_that_its_metadata_says() {
    let metadata = [
        ("ARROW:extension:name", "arrow.fixed_shape_tensor"),
        ("ARROW:extension:metadata", r#"{"shape":[2,3]}"#),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let items = Arc::new(Field::new("item", DataType::UInt8, false));
    let column = FixedSizeListArray::new(items, 6, Arc::new(UInt8Array::from_iter_values(0..6)), None);
    let field = Field::new("x", column.data_type().clone(), false).with_metadata(BTreeMap::from(metadata));
    let schema = Arc::new(Schema::new(vec![field]));
    let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(column)]).expect("one column");
    let members = Members::new(schema).expect("plain");
    let mut written = members.write(&rows(&batch)[0]).expect("a row");
    let text = String::from_utf8_lossy(&written[0].content).into_owned();
    assert!(text.contains("'descr': '|u1'") && text.contains("'shape': (2, 3)"), "{text}");
    assert_eq!(written[0].content.len(), 128 + 6);
    written[0].content.truncate(130);
    let error = read(&members, &written).expect_err("values are missing").to_string();
    assert!(error.contains("x.npy") && error.contains("2 bytes"), "{error}");
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let fields = vec![
        Field::new("label", DataType::UInt8, false),
        Field::new("text", DataType::Utf8, true),
        Field::new("price", DataType::Decimal128(5, 2), true),
    ];
    let members = Members::new(Arc::new(Schema::new(fields))).expect("plain");
    let refused = |parts: &[(&str, &[u8])]| {
        let mut row = vec![9];
        let error = members.read(parts, &mut row).expect_err("it does not fit").to_string();
        assert_eq!(row, [9], "nothing was appended");
        error
    };
    assert!(refused(&[]).contains("\"label\" is missing"));
    assert!(refused(&[("label.cls", b"256")]).contains("too large for UInt8"));
    assert!(refused(&[("label.cls", b"x")]).contains("label.cls"));
    assert!(refused(&[("label.json", b"1")]).contains("cannot have"));
    assert!(refused(&[("label.cls", b"1"), ("label.txt", b"1")]).contains("second"));
    assert!(refused(&[("label.cls", b"1"), ("other.txt", b"1")]).contains("no column"));
    assert!(refused(&[("label.cls", b"1"), ("text.txt", b"\xff")]).contains("UTF-8"));
    for wrong in ["1.5", "\"1.5\"", "\"1.50", "\"1e1.50\"", "\"--1.50\"", "\"1.500\""] {
        assert!(
            refused(&[("label.cls", b"1"), ("price.json", wrong.as_bytes())]).contains("price.json"),
            "{wrong}"
        );
    }
    let pair: Vec<Field> = vec![Field::new("a", DataType::Int8, true); 2];
    let twice = Field::new("pair", DataType::Struct(pair.into()), true);
    let error = Members::new(Arc::new(Schema::new(vec![twice]))).expect_err("two fields of one name");
    assert!(error.to_string().contains("\"pair\"") && error.to_string().contains("\"a\""), "{error}");
}

#[test]
fn floats_and_decimals_have_one_text() {
    let text = |column: ArrayRef| first(vec![("x", column)]).remove("x.json").expect("written as JSON");
    let float = |value: f64| text(Arc::new(Float64Array::from(vec![value])));
    assert_eq!(float(-0.0), "-0.0");
    assert_eq!(float(1e300), "1e300");
    assert_eq!(float(f64::NEG_INFINITY), r#""-Infinity""#);
    assert_eq!(float(f64::NAN), r#""NaN""#);
    assert_eq!(float(-f64::NAN), r#""NaN:fff8000000000000""#);
    let decimal = |value, scale| {
        let column =
            Decimal128Array::from(vec![value]).with_precision_and_scale(20, scale).expect("in range");
        text(Arc::new(column))
    };
    assert_eq!(decimal(-5, 2), r#""-0.05""#);
    assert_eq!(decimal(12340, 3), r#""12.340""#);
    assert_eq!(decimal(7, 0), r#""7""#);
    assert_eq!(decimal(7, -2), r#""700""#);
}
