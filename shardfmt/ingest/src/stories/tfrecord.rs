//! TFRecord files of `tf.train.Example`, written here byte by byte; `tests/reference/tfrecords.py` has them written by
//! others.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float32Type};
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// The values of a feature.
#[derive(Clone, Debug)]
enum Of {
    Bytes(Vec<Vec<u8>>),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Nothing,
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2], varint(bytes.len() as u64).as_slice(), bytes].concat()
}

fn feature(values: &Of) -> Vec<u8> {
    match values {
        Of::Nothing => Vec::new(),
        Of::Bytes(values) => field(1, &values.iter().flat_map(|value| field(1, value)).collect::<Vec<_>>()),
        Of::Floats(values) => {
            field(2, &field(1, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>()))
        }
        Of::Ints(values) => {
            let packed: Vec<u8> = values.iter().flat_map(|&value| varint(value.cast_unsigned())).collect();
            field(3, &field(1, &packed))
        }
    }
}

fn entry(name: &str, message: &[u8]) -> Vec<u8> {
    field(1, &[field(1, name.as_bytes()), field(2, message)].concat())
}

/// `tf.train.Example`.
fn example(features: &[(&str, Of)]) -> Vec<u8> {
    let map: Vec<u8> = features.iter().flat_map(|(name, values)| entry(name, &feature(values))).collect();
    field(1, &map)
}

/// `tf.train.SequenceExample`.
fn sequence(context: &[(&str, Of)], lists: &[(&str, Vec<Of>)]) -> Vec<u8> {
    let list = |steps: &[Of]| steps.iter().flat_map(|step| field(1, &feature(step))).collect::<Vec<u8>>();
    let map: Vec<u8> = lists.iter().flat_map(|(name, steps)| entry(name, &list(steps))).collect();
    [example(context), field(2, &map)].concat()
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    let bit = |crc: u32, _| (crc >> 1) ^ ((crc & 1) * 0x82f6_3b78);
    let crc = !bytes.iter().fold(!0, |crc: u32, &byte| (0..8).fold(crc ^ u32::from(byte), bit));
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// The file of some records.
fn framed(records: &[Vec<u8>]) -> Vec<u8> {
    let frame = |record: &Vec<u8>| {
        let length = (record.len() as u64).to_le_bytes();
        [&length[..], &checksum(&length), record, &checksum(record)].concat()
    };
    records.iter().flat_map(frame).collect()
}

fn ints(values: &[i64]) -> Of {
    Of::Ints(values.to_vec())
}

fn bytes(values: &[&str]) -> Of {
    Of::Bytes(values.iter().map(|value| value.as_bytes().to_vec()).collect())
}

fn ingest_records(records: &[Vec<u8>], config: &IngestConfig) -> Result<Ingested, IngestError> {
    let (_directory, path) = one_file("all.tfrecord", &framed(records));
    run(&path, config, 2)
}

fn refused(records: &[Vec<u8>], config: &IngestConfig) -> String {
    let (_directory, path) = one_file("all.tfrecord", &framed(records));
    refusal(&path, config)
}

/// Two labelled images.
fn images() -> [Vec<u8>; 2] {
    let image = |label, box_: [f32; 4], tags: &[&str]| {
        example(&[
            ("image", bytes(&["jpeg"])),
            ("label", ints(&[label])),
            ("box", Of::Floats(box_.to_vec())),
            ("tags", bytes(tags)),
            ("codes", ints(&vec![-label; tags.len()])),
        ])
    };
    [image(3, [0.0, 0.5, 1.0, 1.5], &["a", "b"]), image(-4, [2.0; 4], &[])]
}

#[test]
fn features_are_columns_of_one_value_a_tensor_or_a_list() {
    let ingested = ingest_records(&images(), &sequential()).unwrap();
    let names: Vec<String> = ingested.types().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["box", "codes", "image", "label", "tags"], "by name, as their order has no meaning");
    let list = |item| DataType::new_list(item, false);
    let schema = &ingested.manifest.schema;
    let types: Vec<&DataType> = schema.fields().iter().map(|field| field.data_type()).collect();
    let tensor = DataType::new_fixed_size_list(DataType::Float32, 4, false);
    assert_eq!(
        types,
        [&tensor, &list(DataType::Int64), &DataType::Binary, &DataType::Int64, &list(DataType::Binary)]
    );
    assert!(schema.fields().iter().all(|field| !field.is_nullable()));
    assert_eq!(ingested.metadata("box", "ARROW:extension:metadata").as_deref(), Some(r#"{"shape":[4]}"#));
    assert_eq!(ingested.integers("label"), [3, -4]);
    let boxes = ingested.column("box");
    let boxes = boxes.as_fixed_size_list().values().as_primitive::<Float32Type>().values().to_vec();
    assert_eq!(boxes, [0.0, 0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0]);
    let rows = ingested.json();
    assert_eq!((&rows[0]["codes"], &rows[1]["codes"]), (&json!([-3, -3]), &json!([])));
    assert_eq!((&rows[0]["tags"], &rows[1]["tags"]), (&json!(["61", "62"]), &json!([])));
}

#[test]
fn what_some_records_lack_is_null_there() {
    let records = [
        example(&[("a", ints(&[1])), ("b", bytes(&["x"])), ("t", ints(&[1, 2])), ("never", Of::Nothing)]),
        example(&[("b", Of::Nothing), ("l", Of::Floats(vec![]))]),
        example(&[("a", ints(&[2])), ("l", Of::Floats(vec![0.5]))]),
    ];
    let config = typed(&[("b", "Utf8")]);
    let ingested = ingest_records(&records, &config).unwrap();
    assert_eq!(
        ingested.json(),
        [
            json!({"a": 1, "b": "x", "l": null, "t": [1, 2]}),
            json!({"a": null, "b": null, "l": [], "t": null}),
            json!({"a": 2, "b": null, "l": [0.5], "t": null}),
        ]
    );
    let config = IngestConfig { columns: Some(vec!["t".to_owned(), "a".to_owned()]), ..sequential() };
    assert_eq!(
        ingest_records(&records, &config).unwrap().json()[1..],
        [json!({"t": null, "a": null}), json!({"t": null, "a": 2})]
    );
    let text = refused(&records, &IngestConfig { columns: Some(vec!["x".to_owned()]), ..sequential() });
    assert!(text.contains("\"x\"; its columns are a, b, l, t"), "{text}");
}

#[test]
fn types_of_values_can_be_chosen() {
    let config = typed(&[("tags", "Utf8"), ("label", "Int8"), ("box", "Float64"), ("codes", "Int16")]);
    let ingested = ingest_records(&images(), &config).unwrap();
    assert_eq!(ingested.json()[0]["tags"], json!(["a", "b"]));
    assert_eq!(ingested.json()[0]["box"], json!([0.0, 0.5, 1.0, 1.5]));
    assert_eq!(ingested.column("label").data_type(), &DataType::Int8);
    let flags = [example(&[("x", ints(&[0]))]), example(&[("x", ints(&[1]))]), example(&[("x", ints(&[2]))])];
    let ingested = ingest_records(&flags[..2], &typed(&[("x", "Boolean")])).unwrap();
    assert_eq!(ingested.json(), [json!({"x": false}), json!({"x": true})]);
    let text = refused(&flags, &typed(&[("x", "Boolean")]));
    let named = format!("record 2 (at byte {})", framed(&flags[..2]).len());
    assert!(text.contains(&named) && text.contains("the value 2, which is no Boolean"), "{text}");
    let skipped =
        ingest_records(&flags, &IngestConfig { on_error: OnError::Skip, ..typed(&[("x", "Boolean")]) });
    assert_eq!(skipped.unwrap().left_out(), [format!("all.tfrecord, {named}")]);
    let odd = [example(&[("b", Of::Bytes(vec![vec![0xff]]))])];
    assert!(refused(&odd, &typed(&[("b", "Utf8")])).contains("\"b\" that is not UTF-8"));
    assert!(
        refused(&odd, &typed(&[("b", "Int64")]))
            .contains("\"b\" has values of type bytes, which make no Int64")
    );
    assert!(refused(&odd, &typed(&[("c", "Int64")])).contains("its columns are b"));
}

#[test]
fn feature_lists_are_lists_of_their_steps() {
    let context = [("id", ints(&[7]))];
    let records = [
        sequence(
            &context,
            &[
                ("frames", vec![bytes(&["x"]), bytes(&["y"])]),
                ("points", vec![Of::Floats(vec![1.0, 2.0]), Of::Floats(vec![3.0, 4.0])]),
                ("words", vec![ints(&[1, 2]), ints(&[])]),
            ],
        ),
        sequence(&context, &[("frames", vec![]), ("points", vec![]), ("words", vec![ints(&[3])])]),
        example(&context),
    ];
    let ingested = ingest_records(&records, &typed(&[("frames", "Utf8")])).unwrap();
    assert_eq!(
        ingested.json(),
        [
            json!({"frames": ["x", "y"], "id": 7, "points": [[1.0, 2.0], [3.0, 4.0]], "words": [[1, 2], []]}),
            json!({"frames": [], "id": 7, "points": [], "words": [[3]]}),
            json!({"frames": null, "id": 7, "points": null, "words": null}),
        ]
    );
    let points = DataType::new_list(DataType::new_fixed_size_list(DataType::Float32, 2, false), false);
    assert_eq!(ingested.column("points").data_type(), &points);
    let text = refused(&[example(&[("frames", ints(&[1]))]), records[0].clone()], &sequential());
    assert!(text.contains("has \"frames\" as a feature list, and records before as a feature"), "{text}");
}

#[test]
fn a_file_is_recognised_by_its_first_bytes_and_a_directory_by_its_names() {
    let [first, second] = images();
    let (_directory, path) = one_file("train-00000-of-00001", &framed(&[first.clone(), second.clone()]));
    let source = Source::open(&path, &sequential()).unwrap();
    assert_eq!((source.kind(), source.sample_count()), (Kind::TfRecord, Some(2)));
    let files = [
        ("x.tfrecord-00000-of-00003", framed(std::slice::from_ref(&first))),
        ("x.tfrecord-00001-of-00003", Vec::new()),
        ("x.tfrecord-00002-of-00003", framed(&[second])),
        ("dataset_info.json", b"{}".to_vec()),
        ("labels.txt", b"cat".to_vec()),
    ];
    let directory = directory(&files);
    let ingested = run(directory.path(), &sequential(), 2).unwrap();
    assert_eq!((ingested.integers("label"), ingested.skipped), (vec![3, -4], 2));
    assert_eq!(ingested.provenance.inputs.len(), 3);
    for (name, bytes) in [
        ("a.tfrecord.gz", gzip(&files[0].1)),
        ("a.tfrecords", zstd(&files[0].1)),
        ("a.tfrecord.zst", zstd(&files[0].1)),
    ] {
        let (_directory, path) = one_file(name, &bytes);
        assert_eq!(run(&path, &sequential(), 2).unwrap().integers("label"), [3], "{name}");
    }
    let zlib = [&[0x78, 0x9c][..], &[7; 40]].concat();
    let (_directory, path) = one_file("a.tfrecord", &zlib);
    assert!(refusal(&path, &sequential()).contains("ZLIB"));
    let (_directory, path) = one_file("a.tfrecord", b"");
    assert!(refusal(&path, &sequential()).contains("there is no record"));
    let (_directory, path) = one_file("a.tfrecord", &framed(&[b"\x1a\x03abc".to_vec()]));
    assert!(refusal(&path, &sequential()).contains("none of 1 records has a feature of tf.train.Example"));
}

#[test]
fn a_damaged_record_is_named_and_can_be_left_out() {
    let records: Vec<Vec<u8>> = (0..5).map(|number| example(&[("x", ints(&[number]))])).collect();
    let length = framed(&records).len() / 5;
    let spoilt = |at: usize| {
        let mut bytes = framed(&records);
        bytes[at] ^= 1;
        one_file("all.tfrecord", &bytes)
    };
    let (_directory, path) = spoilt(2 * length + 15);
    let text = refusal(&path, &sequential());
    let named = format!("record 2 (at byte {})", 2 * length);
    assert!(text.contains(&named) && text.contains("is damaged: its bytes have another checksum"), "{text}");
    let skipped = run(&path, &skipping(), 2).unwrap();
    assert_eq!(
        (skipped.integers("x"), skipped.left_out()),
        (vec![0, 1, 3, 4], vec![format!("all.tfrecord, {named}")])
    );
    // Where a length is damaged, nothing tells where the next record begins.
    let (_directory, path) = spoilt(2 * length);
    let text = refusal(&path, &sequential());
    assert!(text.contains(&format!("record 2, which begins at byte {}", 2 * length)), "{text}");
    let skipped = run(&path, &skipping(), 2).unwrap();
    assert_eq!((skipped.integers("x"), skipped.left_out()), (vec![0, 1], vec!["all.tfrecord".to_owned()]));
    let (_directory, path) = one_file("all.tfrecord", &framed(&records)[..4 * length - 1]);
    assert!(refusal(&path, &sequential()).contains("it ends within record 3"));
    assert_eq!(run(&path, &skipping(), 2).unwrap().integers("x"), [0, 1, 2]);
}

#[test]
fn records_that_do_not_fit_those_before_are_named_or_left_out() {
    let x = |values: Of| example(&[("x", values)]);
    let records =
        [x(ints(&[1])), x(bytes(&["a"])), x(ints(&[2])), b"\x0a\x05abc".to_vec(), x(Of::Floats(vec![0.5]))];
    let text = refused(&records, &sequential());
    assert!(
        text.contains("record 1 (at byte") && text.contains("\"x\" as bytes, and records before as int64"),
        "{text}"
    );
    let ingested = ingest_records(&records, &skipping()).unwrap();
    assert_eq!((ingested.integers("x"), ingested.left_out().len()), (vec![1, 2], 3));
    assert!(refused(&records[3..], &sequential()).contains("is no tf.train.Example"));
    // A column that is left out may have any values.
    let mixed = [
        example(&[("x", ints(&[1])), ("y", ints(&[1]))]),
        example(&[("x", bytes(&["a"])), ("y", ints(&[2]))]),
    ];
    let config = IngestConfig { columns: Some(vec!["y".to_owned()]), ..sequential() };
    assert_eq!(ingest_records(&mixed, &config).unwrap().integers("y"), [1, 2]);
}

#[test]
fn a_tensor_that_most_records_lack_does_not_fill_memory() {
    let tensor = example(&[("t", Of::Floats(vec![1.0; 1 << 20])), ("x", ints(&[0]))]);
    let others = (1..300).map(|number| example(&[("x", ints(&[number]))]));
    let records: Vec<Vec<u8>> = [tensor].into_iter().chain(others).collect();
    let ingested = ingest_records(&records, &sequential()).unwrap();
    assert_eq!(ingested.integers("x"), (0..300).collect::<Vec<i64>>());
    assert_eq!(ingested.column("t").null_count(), 299);
}

fn of() -> impl Strategy<Value = Of> {
    prop_oneof![
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 0..3).prop_map(Of::Bytes),
        prop::collection::vec(any::<i16>().prop_map(f32::from), 0..3).prop_map(Of::Floats),
        prop::collection::vec(any::<i64>(), 0..3).prop_map(Of::Ints),
        Just(Of::Nothing),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_written_is_read_in_files_of_any_size(
        rows in prop::collection::vec((any::<i64>(), prop::option::of(prop::collection::vec(any::<i64>(), 0..3))), 1..40),
        at: prop::sample::Index,
    ) {
        let records: Vec<Vec<u8>> = rows.iter().map(|(x, list)| {
            let list = list.clone().map_or(Of::Nothing, Of::Ints);
            example(&[("x", ints(&[*x])), ("list", list)])
        }).collect();
        let (left, right) = records.split_at(at.index(records.len()));
        let files = directory(&[("1.tfrecord", framed(left)), ("2.tfrecord.gz", gzip(&framed(right)))]);
        let ingested = run(files.path(), &sequential(), 2).unwrap();
        prop_assert_eq!(ingested.integers("x"), rows.iter().map(|(x, _)| *x).collect::<Vec<_>>());
        let whole = ingest_records(&records, &sequential()).unwrap();
        prop_assert_eq!(ingested.rows(), whole.rows());
    }

    #[test]
    fn any_mixture_of_features_is_read_or_refused(
        records in prop::collection::vec(prop::collection::btree_map("[abc]", of(), 0..3), 1..6),
    ) {
        let records: Vec<Vec<u8>> = records.iter().map(|features| {
            let features: Vec<(&str, Of)> = features.iter().map(|(name, of)| (name.as_str(), of.clone())).collect();
            example(&features)
        }).collect();
        let whole = ingest_records(&records, &sequential());
        let skipped = ingest_records(&records, &skipping());
        if let Ok(whole) = whole {
            prop_assert_eq!(whole.rows(), skipped.unwrap().rows());
            prop_assert_eq!(whole.manifest.sample_count(), records.len() as u64);
        }
    }

    #[test]
    fn a_damaged_file_gives_an_error_or_fewer_rows(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut: prop::sample::Index,
        is_skipping: bool,
    ) {
        let mut file = framed(&images());
        change(&mut file, &changes);
        file.truncate(cut.index(file.len()) + 1);
        let (_directory, path) = one_file("a.tfrecord", &file);
        let config = if is_skipping { skipping() } else { sequential() };
        let ingested = run(&path, &config, 1);
        prop_assert!(ingested.map_or(true, |ingested| ingested.manifest.sample_count() <= 2));
    }
}
