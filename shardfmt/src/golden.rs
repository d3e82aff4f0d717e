//! Released files stay readable: the files in `testdata/`, byte for byte. Shards and sidecars have format 1, manifests 2.
//!
//! When one of these tests fails, the format has changed and every id of every existing dataset with it. A change that
//! is meant gets a new format number and its own files; these stay. `testdata/check_golden.py` reads the same files
//! without a line of this code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::OffsetBuffer;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, Schema, TimeUnit};

use crate::grain::{Grain, GrainKey};
use crate::manifest::{CLASSES_KEY, LocalManifest, Manifest, ManifestFile, ShardEntry, tree_of};
use crate::shard::{FinishedShard, Shard, ShardWriter, Sidecar};
use crate::statistics::Spread;
use crate::{ShardId, VersionId};

const SHARD: &str = "bb7fba1542a8d38349eb34ace55ad0addb929870aa476b45e1979e7031a0e121";
const LZ4_SHARD: &str = "b1c38084d40604aef2510ace5494e4bbc351789060c88098c423feceadffc4fa";
const ZSTD_SHARD: &str = "02e74d816e8fad15239e3730c9f70b9b9c8e9186ce96c0446a8ae7bdf73d8e81";
const VERSION: &str = "96c3ef6c829fa38204e780b79207a6031cca8fc9d56ce7799f3bb34c58cd6a3e";
/// A version whose manifest has statistics, an index, and a text long enough to lie apart.
const INDEXED: &str = "d152107acb86fc4a89b376b803b97eb3d2cce20248f848bff9e6d0a7376cc6bf";
/// The same of format 1, which listed the inputs, and some that were skipped.
const VERSION_1: &str = "8c47a4f61d25e5fff79cc498562f0a6aec1a67790b32c1584b8a794fd8c1fa82";
const INDEXED_1: &str = "b5cef59d0ed441477cc55145baaa03ab78b2d3a611f1a05bfb02159029b1f9ee";
const ROWS: usize = 21;

/// The shard of the golden rows in each compression: its files are `<name>.arrow` and `<name>.rows`.
fn golden_shards() -> [(&'static str, &'static str, FinishedShard); 3] {
    let of = |compression: &str| {
        let rows = golden_rows();
        let compression = compression.parse().expect("a compression");
        let mut writer = ShardWriter::with_compression(rows.schema(), compression).expect("a plain schema");
        writer.push(&rows).expect("the rows fit");
        writer.finish().expect("there are rows")
    };
    [
        ("golden", SHARD, of("none")),
        ("golden.lz4", LZ4_SHARD, of("lz4")),
        ("golden.zstd", ZSTD_SHARD, of("zstd")),
    ]
}

#[test]
fn shards_are_written_as_ever() {
    for (name, id, shard) in golden_shards() {
        assert_eq!(shard.id.to_string(), id, "{name}");
        assert_same(&format!("{name}.arrow"), &shard.bytes);
        assert_same(&format!("{name}.rows"), &shard.sidecar.encode());
    }
}

/// Small buffers do not show all that a compressor does. When this fails, one of them was updated and does it otherwise:
/// a dataset ingested again with compression gets another version id, which the changelog has to say.
#[test]
fn compressors_write_what_they_wrote() {
    let words = ["shard", "grain", "sample", "epoch", "cursor", "plan", "node", "order"];
    let text = |row: usize| (0..row % 97).map(|at| words[(row * row + at * at * 7) % 8]).collect::<String>();
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..9000).map(text)));
    let numbers: ArrayRef =
        Arc::new(Float64Array::from_iter_values((0..9000).map(|row| f64::from(row).sqrt())));
    let rows = RecordBatch::try_from_iter([("text", texts), ("number", numbers)]).expect("columns fit");
    for (compression, bytes, id) in [
        ("lz4", 196_330, "bfd67f666e7d"),
        ("zstd:1", 99_050, "54e3f5b956a2"),
        ("zstd", 96_746, "8541fa62966e"),
        ("zstd:9", 120_682, "0cfdd597c7fc"),
        ("zstd:19", 85_418, "2f5bafda2a74"),
    ] {
        let compression = compression.parse().expect("a compression");
        let mut writer = ShardWriter::with_compression(rows.schema(), compression).expect("a plain schema");
        writer.push(&rows).expect("the rows fit");
        let shard = writer.finish().expect("there are rows");
        assert_eq!((shard.bytes.len(), shard.id.short().as_str()), (bytes, id), "{compression}");
    }
}

#[test]
fn manifests_are_written_as_ever() {
    let manifest = golden_manifest();
    assert_eq!(manifest.id().to_string(), VERSION);
    assert_same("golden.manifest2.arrow", &manifest.encode());
}

#[test]
fn shards_of_format_1_are_read() {
    for (name, id) in [("golden", SHARD), ("golden.lz4", LZ4_SHARD), ("golden.zstd", ZSTD_SHARD)] {
        let shard = Shard::open(&testdata(&format!("{name}.arrow"))).expect("a shard of format 1");
        shard.verify(id.parse().expect("a digest")).expect("its bytes");
        let rows = concat_batches(shard.schema(), shard.record_batches()).expect("one schema");
        assert_eq!(rows, golden_rows(), "{name}");
        let sidecar = Sidecar::decode(&read(&format!("{name}.rows"))).expect("a sidecar of format 1");
        assert_eq!(sidecar.rows, shard.row_digests().expect("small rows"));
        let plan = sidecar.read_plan(shard.schema(), std::slice::from_ref(&(8..16))).expect("its rows");
        let fetched = plan.ranges().iter().map(|at| &shard.bytes()[at.start as usize..at.end as usize]);
        let rows = plan.decode(&fetched.collect::<Vec<_>>()).expect("its bytes");
        assert_eq!(rows, [[golden_rows().slice(8, 8)]], "{name}");
    }
}

#[test]
fn manifests_of_format_1_are_read() {
    let bytes = read("golden.manifest.arrow");
    assert_eq!(VersionId::of(&bytes).to_string(), VERSION_1);
    let manifest = Manifest::decode(&bytes).expect("a manifest of format 1");
    assert_eq!(manifest, golden_manifest());

    let bytes = read("golden.indexed.arrow");
    let manifest = Manifest::decode(&bytes).expect("a manifest of format 1");
    assert_eq!(manifest.shards, indexed_shards());
    let local =
        LocalManifest { file: testdata("golden.indexed.arrow"), tree: testdata("golden.indexed.tree") };
    let file = ManifestFile::open(INDEXED_1.parse().expect("a digest"), local).expect("its tree leads to it");
    assert_eq!(file.entry(2).expect("it has three"), indexed_shards()[2]);
}

#[test]
fn manifests_are_read() {
    let manifest = Manifest::decode(&read("golden.manifest2.arrow")).expect("a manifest of format 2");
    assert_eq!(manifest, golden_manifest());
}

#[test]
fn manifests_with_statistics_are_written_as_ever() {
    let manifest = indexed_manifest();
    assert_eq!(manifest.id().to_string(), INDEXED);
    let bytes = manifest.encode();
    assert_same("golden.indexed2.arrow", &bytes);
    assert_same("golden.indexed2.tree", &tree_of(&bytes).expect("it is long"));
}

#[test]
fn manifests_with_statistics_are_read() {
    let bytes = read("golden.indexed2.arrow");
    assert_eq!(Manifest::decode(&bytes).expect("a manifest of format 2"), indexed_manifest());
    let local =
        LocalManifest { file: testdata("golden.indexed2.arrow"), tree: testdata("golden.indexed2.tree") };
    let file = ManifestFile::open(INDEXED.parse().expect("a digest"), local).expect("a manifest of format 2");
    assert_eq!(file.entry(2).expect("it has three"), indexed_manifest().shards[2]);
    assert_eq!(file.find_sample(45).expect("it has 63"), Some((2, 3)));
    assert_eq!(file.labels().expect("labels"), indexed_manifest().labels());
}

#[test]
fn grains_of_format_1_are_read() {
    let grain = read("golden.grain");
    let entry = &golden_manifest().shards[0];
    let key = GrainKey { shard: entry.id, rows: 4, index: 2 };
    let view = Grain::parse(&grain).expect("a grain of format 1");
    view.verify(key, entry.rows, entry.root).expect("rows 8 to 11");
    let shard = Shard::open(&testdata("golden.arrow")).expect("a shard of format 1");
    assert_same(
        "golden.grain",
        &shard.grain(&shard.row_digests().expect("small rows"), 4, 2).expect("small rows"),
    );
}

/// Writes the files. Only ever right for a new format.
#[test]
#[ignore = "writes the golden files of a new format"]
fn write_golden_files() {
    let write = |name: &str, bytes: &[u8]| std::fs::write(testdata(name), bytes).expect("it can be written");
    let shards = golden_shards();
    for (name, _, shard) in &shards {
        write(&format!("{name}.arrow"), &shard.bytes);
        write(&format!("{name}.rows"), &shard.sidecar.encode());
        println!("{name}: shard {}", shard.id);
    }
    let [(_, _, shard), ..] = shards;
    let read = Shard::from_bytes(shard.bytes).expect("own shard");
    write("golden.grain", &read.grain(&shard.sidecar.rows, 4, 2).expect("small rows"));
    write("golden.manifest2.arrow", &golden_manifest().encode());
    write("golden.indexed2.arrow", &indexed_manifest().encode());
    write("golden.indexed2.tree", &tree_of(&indexed_manifest().encode()).expect("it is long"));
    println!("version {}, indexed {}", golden_manifest().id(), indexed_manifest().id());
}

/// As manifests were when there were no statistics.
fn golden_manifest() -> Manifest {
    let [(_, _, mut shard), ..] = golden_shards();
    shard.entry.statistics = None;
    let other = {
        let mut other = shard.entry.clone();
        other.id = ShardId::of(b"another");
        other.labels = None;
        other
    };
    let config = serde_json::json!({ "mix": "random", "seed": 7, "a": { "z": null, "b": [true, "é"] } });
    Manifest::new(golden_rows().schema(), vec![shard.entry, other], config)
}

fn indexed_manifest() -> Manifest {
    let mut shards = indexed_shards();
    // As many as lie outside of the metadata.
    let many = (0..4096).map(|class| (format!("class {class:040}").into(), 1));
    shards[1].labels = Some(many.collect());
    Manifest { shards, ..golden_manifest() }
}

fn indexed_shards() -> Vec<ShardEntry> {
    let [(_, _, FinishedShard { entry, .. }), ..] = golden_shards();
    let another = |of: &[u8]| ShardEntry { id: ShardId::of(of), ..entry.clone() };
    let mut shards = vec![entry.clone(), another(b"another"), another(b"a third")];
    let statistics = shards[2].statistics.as_mut().expect("a writer knows them");
    statistics.row_bytes.max = u32::MAX;
    let extreme = Spread { min: f64::MIN, max: 1.5e22, mean: 1e-7, variance: f64::MAX };
    statistics.columns[0].spread = Some(extreme);
    shards
}

/// Rows with something of everything: what images, tensors, tokens and tables are made of, and nulls in all of them.
fn golden_rows() -> RecordBatch {
    let some = |row: usize, every: usize| row % every != every - 1;
    let rows = 0..ROWS;
    let label = Int64Array::from_iter_values(rows.clone().map(|row| (row % 3) as i64));
    let image = BinaryArray::from_iter(rows.clone().map(|row| some(row, 7).then(|| vec![row as u8; row])));
    let path = StringArray::from_iter_values(rows.clone().map(|row| format!("train/{row:03}é.png")));
    let flag = BooleanArray::from_iter(rows.clone().map(|row| some(row, 4).then_some(row % 2 == 0)));
    let tensor = FixedSizeListArray::new(
        Arc::new(Field::new("item", DataType::Float32, false)),
        4,
        Arc::new(Float32Array::from_iter_values((0..ROWS * 4).map(|at| at as f32 / 2.0))),
        None,
    );
    let vector = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
        rows.clone().map(|row| some(row, 5).then(|| [Some(row as f32), some(row, 3).then_some(0.5)])),
        2,
    );
    let tokens = ListArray::from_iter_primitive::<Int32Type, _, _>(
        rows.clone()
            .map(|row| some(row, 6).then(|| (0..row % 4).map(move |at| (at != 2).then_some(at as i32)))),
    );
    let boxed = StructArray::from(vec![
        (
            Arc::new(Field::new("x", DataType::UInt16, false)),
            Arc::new(UInt16Array::from_iter_values(rows.clone().map(|row| row as u16))) as ArrayRef,
        ),
        (
            Arc::new(Field::new("name", DataType::LargeUtf8, true)),
            Arc::new(LargeStringArray::from_iter(
                rows.clone().map(|row| some(row, 2).then(|| "b".repeat(row % 3))),
            )),
        ),
    ]);
    let boxes = {
        let offsets = OffsetBuffer::from_lengths(rows.clone().map(|row| row % 3));
        let values = boxed.slice(0, ROWS.min(offsets[ROWS] as usize));
        let field = Arc::new(Field::new("item", boxed.data_type().clone(), false));
        ListArray::new(field, offsets, Arc::new(values), None)
    };
    let taken = TimestampMillisecondArray::from_iter(
        rows.clone().map(|row| some(row, 9).then_some(1_700_000_000_000 + row as i64)),
    )
    .with_timezone("UTC");
    let price = Decimal128Array::from_iter_values(rows.clone().map(|row| row as i128 * 1000 - 5000))
        .with_precision_and_scale(12, 2)
        .expect("a precision");
    let hash = FixedSizeBinaryArray::try_from_iter(rows.map(|row| [row as u8; 5])).expect("five bytes each");
    let classes = BTreeMap::from([
        (CLASSES_KEY.to_owned(), r#"["cat","dog","owl"]"#.to_owned()),
        ("another".to_owned(), "key".to_owned()),
    ]);
    let shape = BTreeMap::from([
        ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
        ("ARROW:extension:metadata".to_owned(), r#"{"shape":[2,2]}"#.to_owned()),
    ]);
    let columns: Vec<(&str, ArrayRef, bool, BTreeMap<String, String>)> = vec![
        ("image", Arc::new(image), true, BTreeMap::new()),
        ("label", Arc::new(label), false, classes),
        ("path", Arc::new(path), false, BTreeMap::new()),
        ("flag", Arc::new(flag), true, BTreeMap::new()),
        ("tensor", Arc::new(tensor), false, shape),
        ("vector", Arc::new(vector), true, BTreeMap::new()),
        ("tokens", Arc::new(tokens), true, BTreeMap::new()),
        ("box", Arc::new(boxed), true, BTreeMap::new()),
        ("boxes", Arc::new(boxes), true, BTreeMap::new()),
        ("taken", Arc::new(taken), true, BTreeMap::new()),
        ("price", Arc::new(price), true, BTreeMap::new()),
        ("hash", Arc::new(hash), true, BTreeMap::new()),
        ("nothing", Arc::new(NullArray::new(ROWS)), true, BTreeMap::new()),
    ];
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, column, nullable, metadata)| {
            Field::new(*name, column.data_type().clone(), *nullable).with_metadata(metadata.clone())
        })
        .collect();
    debug_assert!(matches!(fields[9].data_type(), DataType::Timestamp(TimeUnit::Millisecond, Some(_))));
    let columns = columns.into_iter().map(|(_, column, ..)| column).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("columns fit")
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(testdata(name)).unwrap_or_else(|error| panic!("testdata/{name}: {error}"))
}

fn assert_same(name: &str, bytes: &[u8]) {
    let golden = read(name);
    let differs = golden.iter().zip(bytes).position(|(golden, byte)| golden != byte);
    assert!(
        golden == bytes,
        "{name} differs at byte {differs:?}, lengths {} and {}",
        golden.len(),
        bytes.len()
    );
}
