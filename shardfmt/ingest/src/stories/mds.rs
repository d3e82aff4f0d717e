//! MosaicML shards: those in `testdata/mds` were written by its own writer.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Float16Type, Float32Type, Float64Type, Int16Type, Int64Type, UInt8Type,
    UInt64Type,
};
use proptest::prelude::*;

use super::*;

pub(super) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/mds").join(name)
}

/// A copy that can be spoilt.
fn copy(name: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(golden(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
    }
    directory
}

fn values<T: ArrowPrimitiveType>(ingested: &Ingested, column: &str) -> Vec<T::Native> {
    ingested.column(column).as_primitive::<T>().values().to_vec()
}

#[test]
fn every_encoding_of_the_writer_is_read_however_it_is_compressed() {
    for name in ["plain", "zstd", "gz"] {
        let source = Source::open(&golden(name), &sequential()).unwrap();
        assert_eq!((source.kind(), source.sample_count(), source.skipped_count()), (Kind::Mds, Some(7), 0));
        let ingested = run_source(source, &sequential(), 2).unwrap();
        let count = 0..7u8;
        assert_eq!(ingested.binaries("bytes"), count.clone().map(|i| vec![i, 255 - i]).collect::<Vec<_>>());
        assert_eq!(
            ingested.texts("text"),
            count.clone().map(|i| format!("sample {i} ü")).collect::<Vec<_>>()
        );
        assert_eq!(values::<Int64Type>(&ingested, "int"), [0, -1, -2, -3, -4, -5, -6]);
        assert_eq!(values::<UInt8Type>(&ingested, "u8"), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(values::<Int16Type>(&ingested, "i16"), [0, -1000, -2000, -3000, -4000, -5000, -6000]);
        let f16: Vec<f32> =
            values::<Float16Type>(&ingested, "f16").iter().map(|value| value.to_f32()).collect();
        assert_eq!(f16, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
        assert_eq!(values::<Float32Type>(&ingested, "f32")[6], 1.5);
        assert_eq!(values::<Float64Type>(&ingested, "f64")[6], 0.75);
        assert_eq!(values::<UInt64Type>(&ingested, "u64")[6], (1 << 63) + 6);
        assert_eq!(ingested.texts("decimal")[3], "0.375");
        assert_eq!(ingested.texts("big")[1], "1000000000000000000000000000001");
        assert_eq!(ingested.texts("real")[2], "2.5");
        assert_eq!(ingested.texts("json")[1], r#"{"i": 1, "half": [0.5, null]}"#);
        for column in ["jpeg", "png"] {
            let image = image::load_from_memory(&ingested.binaries(column)[5]).unwrap();
            assert_eq!((image.width(), image.height()), (6, 5));
        }
        let shape = |column| ingested.metadata(column, "ARROW:extension:metadata").unwrap_or_default();
        assert_eq!(
            (shape("fixed").as_str(), shape("alike").as_str()),
            (r#"{"shape":[2,3]}"#, r#"{"shape":[3,2]}"#)
        );
        let fixed = ingested.column("fixed");
        let fixed = fixed.as_fixed_size_list().values().as_primitive::<Float32Type>().values().to_vec();
        assert_eq!(fixed, count.clone().flat_map(|i| [f32::from(i); 6]).collect::<Vec<_>>());
        let ragged = ingested.column("ragged");
        let ragged = ragged.as_list::<i32>().value(3).as_primitive::<Int64Type>().values().to_vec();
        assert_eq!(ragged, [1, 2, 3, 4]);
        // Of several types, and so as they were written: type, dimensions, shape, values.
        assert_eq!(ingested.binaries("mixed")[1][..6], [17, 2 << 2, 1, 2, 1, 0]);
        let views = ingested.column("views");
        let lengths: Vec<usize> = views.as_list::<i32>().iter().map(|views| views.unwrap().len()).collect();
        assert_eq!(lengths, [0, 1, 2, 0, 1, 2, 0]);
        let names: Vec<&str> = ingested.provenance.inputs.iter().map(|input| input.name.as_str()).collect();
        assert_eq!((names.len(), names[0]), (3, "index.json"));
        for input in &ingested.provenance.inputs {
            let bytes = fs::read(golden(name).join(&input.name)).unwrap();
            assert_eq!(input.digest, shardfmt::Digest::of(&bytes));
        }
    }
}

#[test]
fn pickles_are_refused_and_can_be_left_out() {
    let text = refusal(&golden("pickled"), &sequential());
    assert!(text.contains("\"code\" is pickled") && text.contains("run code"), "{text}");
    let config = IngestConfig { columns: Some(vec!["label".to_owned()]), ..sequential() };
    assert_eq!(run(&golden("pickled"), &config, 1).unwrap().integers("label"), [7]);
    let config = IngestConfig { columns: Some(vec!["lable".to_owned()]), ..sequential() };
    assert!(refusal(&golden("pickled"), &config).contains("\"lable\"; its columns are code, label"));
}

#[test]
fn images_become_tensors_encoded_or_not() {
    assert!(refusal(&golden("pil"), &sequential()).contains("\"raw\" has images that are not encoded"));
    let decode = IngestConfig { decode: true, ..sequential() };
    let pil = run(&golden("pil"), &decode, 1).unwrap();
    let DataType::FixedSizeList(_, bytes) = pil.column("raw").data_type().clone() else {
        panic!("no tensor")
    };
    assert_eq!(bytes, 2 * 4 * 3);
    let pixels =
        pil.column("raw").as_fixed_size_list().values().as_primitive::<UInt8Type>().values().to_vec();
    assert_eq!(pixels[..3], [10, 20, 30]);
    assert_eq!(pixels[48..51], [10, 20, 32], "alpha is dropped");
    let plain = run(&golden("plain"), &decode, 2).unwrap();
    assert_eq!(plain.metadata("png", "ARROW:extension:metadata").as_deref(), Some(r#"{"shape":[5,6,3]}"#));
    let decode = IngestConfig { resize: Some("4x4".parse().unwrap()), ..decode };
    let resized = run(&golden("zstd"), &decode, 2).unwrap();
    assert_eq!(resized.metadata("jpeg", "ARROW:extension:metadata").as_deref(), Some(r#"{"shape":[4,4,3]}"#));
}

#[test]
fn a_shard_that_is_not_what_its_index_says_is_refused_or_left_out() {
    type Spoil = fn(&mut Vec<u8>);
    let spoil: [(&str, Spoil, &str); 4] = [
        ("shard.00001.mds", |bytes| _ = bytes.pop(), "bytes, its index says"),
        ("shard.00001.mds", |bytes| bytes[4000] ^= 1, "its sha1 is"),
        ("shard.00000.mds", |bytes| bytes[0] = 9, "it has 9 samples, its index says 4"),
        ("index.json", |bytes| bytes.truncate(100), "not a readable MDS file"),
    ];
    for (name, spoil, reason) in spoil {
        let directory = copy("plain");
        let path = directory.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        spoil(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let text = refusal(directory.path(), &sequential());
        assert!(text.contains(name) && text.contains(reason), "{text}");
        if name != "index.json" {
            let skipped = run(directory.path(), &skipping(), 2).unwrap();
            assert_eq!(skipped.left_out(), [name]);
            assert_eq!(skipped.manifest.sample_count(), if name.contains('1') { 4 } else { 3 });
        }
    }
    let directory = copy("zstd");
    let path = directory.path().join("shard.00001.mds.zstd");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, [&bytes[..bytes.len() - 1], &[0]].concat()).unwrap();
    assert!(refusal(directory.path(), &sequential()).contains("shard.00001.mds.zstd"));
    fs::remove_file(&path).unwrap();
    assert!(
        refusal(directory.path(), &sequential())
            .contains("\"shard.00001.mds.zstd\", which it lists, is not there")
    );
    fs::remove_file(directory.path().join("index.json")).unwrap();
    assert!(refusal(directory.path(), &sequential()).contains("without their index.json"));
}

/// A shard of samples with these fields, as the writer lays it out, and its index.
fn shard(encoding: &str, size: &str, samples: &[&[u8]]) -> TempDir {
    let header = if size == "null" { 4 } else { 0 };
    let mut end = 4 + 4 * (samples.len() + 1);
    let mut bytes = (samples.len() as u32).to_le_bytes().to_vec();
    bytes.extend((end as u32).to_le_bytes());
    for sample in samples {
        end += header + sample.len();
        bytes.extend((end as u32).to_le_bytes());
    }
    for sample in samples {
        bytes.extend(&(sample.len() as u32).to_le_bytes()[..header]);
        bytes.extend_from_slice(sample);
    }
    let (count, length) = (samples.len(), bytes.len());
    let index = format!(
        r#"{{"version": 2, "shards": [{{"version": 2, "format": "mds", "samples": {count}, "compression": null, "hashes": [],
        "column_names": ["x"], "column_encodings": ["{encoding}"], "column_sizes": [{size}], "size_limit": null,
        "raw_data": {{"basename": "shard.00000.mds", "bytes": {length}, "hashes": {{}}}}, "zip_data": null}}]}}"#
    );
    directory(&[("index.json", index.into_bytes()), ("shard.00000.mds", bytes)])
}

#[test]
fn a_bad_sample_is_named_by_number_and_column() {
    for (encoding, bad, reason) in [
        ("str", b"\xff".as_slice(), "is not UTF-8"),
        ("json", b"{", "is no JSON"),
        ("jpeg", b"none", "no image"),
        ("list[png]", b"\0\0\0\0\x01\0\0\0", "cut off"),
        ("ndarray:int8", b"\x08\x02\x02\x01", "shape [2, 2] with 1 bytes"),
    ] {
        let good: &[u8] = match encoding {
            "jpeg" => &picture(ImageFormat::Jpeg, 1),
            "list[png]" => b"\0\0\0\0\0\0\0\0",
            "ndarray:int8" => b"\x04\x01\x07",
            _ => b"1",
        };
        let directory = shard(encoding, "null", &[good, bad, good]);
        let text = refusal(directory.path(), &sequential());
        assert!(text.contains("sample 1, column x") && text.contains(reason), "{text}");
        let skipped = run(directory.path(), &skipping(), 1).unwrap();
        assert_eq!(
            (skipped.manifest.sample_count(), skipped.left_out()),
            (2, vec!["shard.00000.mds, sample 1, column x".to_owned()])
        );
    }
    for (encoding, reason) in
        [("list[pil]", "is encoded as \"list[pil]\""), ("ndarray:complex64", "complex64")]
    {
        assert!(refusal(shard(encoding, "null", &[b"1"]).path(), &sequential()).contains(reason));
    }
}

#[test]
fn other_formats_and_versions_of_the_index_are_refused() {
    for (from, to, reason) in [
        ("\"format\": \"mds\"", "\"format\": \"json\"", "of format \"json\""),
        ("\"version\": 2", "\"version\": 3", "of version 3"),
        ("\"column_sizes\": [8]", "\"column_sizes\": []", "more names than encodings"),
        ("shard.00000.mds", "../shard.00000.mds", "is not there"),
        ("\"compression\": null", "\"compression\": \"br\"", ""),
    ] {
        let directory = shard("int", "8", &[&[0; 8]]);
        let path = directory.path().join("index.json");
        fs::write(&path, fs::read_to_string(&path).unwrap().replacen(from, to, 1)).unwrap();
        if reason.is_empty() {
            // Compressed once, but the file that is there is not.
            run(directory.path(), &sequential(), 1).unwrap();
            continue;
        }
        let text = refusal(directory.path(), &sequential());
        assert!(text.contains(reason), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_damaged_shard_gives_an_error_or_fewer_rows(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        is_skipping: bool,
    ) {
        // Without hashes, which would find it all at once.
        let array = [18, 2 << 2, 1, 2, 0, 60, 0, 61];
        let directory = shard("ndarray", "null", &[&array, &array, &array]);
        let ingested = run_changed(directory.path(), "shard.00000.mds", &changes, is_skipping);
        prop_assert!(ingested.map_or(true, |ingested| ingested.manifest.sample_count() <= 3));
    }
}
