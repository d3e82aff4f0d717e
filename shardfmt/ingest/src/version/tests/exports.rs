//! Exports can be ingested again.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, TimeUnit};
use proptest::prelude::*;
use shardd_strategies::record_batch;
use shardfmt::member::{Members, SCHEMA_MEMBER};

use super::*;

const PARQUET: ExportFormat = ExportFormat::Parquet { zstd: true };

fn exported(
    manifest: &Manifest,
    memory: &Memory,
    to: &Path,
    format: ExportFormat,
    size: u64,
) -> Result<Exported, ExportError> {
    export(manifest, memory, to, ExportOptions { format, file_size: ByteSize(size) }, 2, &NoProgress)
}

/// Whether Parquet holds any value of the type. It cuts off the digits that a decimal has beyond its precision, which
/// random ones have.
fn is_in_parquet(data_type: &DataType) -> bool {
    match data_type {
        DataType::Decimal128(..) | DataType::Decimal256(..) => false,
        DataType::Interval(unit) => *unit != IntervalUnit::MonthDayNano,
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => is_in_parquet(field.data_type()),
        DataType::Struct(fields) => fields.iter().all(|field| is_in_parquet(field.data_type())),
        _ => true,
    }
}

/// The rows in the tars of a directory, by their keys, which must ascend.
fn rows_of_tars(dir: &Path) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> =
        fs::read_dir(dir).expect("exported").map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    let mut rows = Vec::new();
    for path in paths {
        let mut tar = tar::Archive::new(fs::File::open(path).expect("a tar"));
        let (mut members, mut samples) = (None, BTreeMap::<String, Vec<(String, Vec<u8>)>>::new());
        for entry in tar.entries().expect("a tar") {
            let mut entry = entry.expect("a member");
            let name = entry.path().expect("a name").to_str().expect("text").to_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).expect("its content");
            if name == SCHEMA_MEMBER {
                members = Some(Members::of_schema_member(&content).expect("it was exported"));
                continue;
            }
            let (key, suffix) = name.split_once('.').expect("a key");
            assert!(samples.last_key_value().is_none_or(|(last, _)| last.as_str() <= key), "in order");
            samples.entry(key.to_owned()).or_default().push((suffix.to_owned(), content));
        }
        let members = members.expect("the schema comes first");
        for (key, sample) in samples {
            assert_eq!(key.parse::<usize>(), Ok(rows.len()), "keys count the samples");
            let parts: Vec<(&str, &[u8])> =
                sample.iter().map(|(suffix, content)| (suffix.as_str(), content.as_slice())).collect();
            let mut row = Vec::new();
            members.read(&parts, &mut row).expect("as it was written");
            rows.push(row);
        }
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn parquet_gives_the_same_samples_back_or_is_refused(batch in record_batch(100), lengths in prop::collection::vec(1..40usize, 1..4), size in 1..20_000u64) {
        let memory = Memory::default();
        let manifest = version(&batch, &lengths, &memory);
        let dir = tempfile::tempdir().expect("a temporary directory");
        let to = dir.path().join("out");
        let fits = batch.schema().fields().iter().all(|field| is_in_parquet(field.data_type()));
        match exported(&manifest, &memory, &to, PARQUET, size) {
            Ok(_) => {
                let again = ingested(&to, &config(Mix::Sequential, size), &memory);
                prop_assert_eq!(rows(&again, &memory), rows_of(&batch));
                prop_assert_eq!(&again.schema, &manifest.schema);
                let found = diff(base(&manifest), base(&again), &memory, &NoProgress).expect("intact");
                prop_assert!(found.is_same_content());
            }
            Err(ExportError::Parquet { reason, .. }) => {
                prop_assert!(!fits, "{}: {:?}", reason, batch.schema());
                prop_assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 0, "nothing is left");
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn tars_give_the_same_samples_back(batch in record_batch(100), lengths in prop::collection::vec(1..40usize, 1..4), size in 1..20_000u64) {
        let memory = Memory::default();
        let manifest = version(&batch, &lengths, &memory);
        let dir = tempfile::tempdir().expect("a temporary directory");
        let done = exported(&manifest, &memory, &dir.path().join("out"), ExportFormat::WebDataset, size);
        let done = done.expect("every type can be written");
        prop_assert_eq!(rows_of_tars(&dir.path().join("out")), rows_of(&batch));
        prop_assert_eq!(done.files, fs::read_dir(dir.path().join("out")).expect("readable").count() as u64);
    }
}

#[test]
fn types_and_shapes_survive_parquet() {
    let tensor = [
        ("ARROW:extension:name", "arrow.fixed_shape_tensor"),
        ("ARROW:extension:metadata", r#"{"shape":[2,2]}"#),
    ];
    let items = Arc::new(Field::new("item", DataType::Float32, false));
    let images = FixedSizeListArray::new(
        items,
        4,
        Arc::new(Float32Array::from_iter_values((0..8).map(|i| i as f32))),
        None,
    );
    let times = TimestampSecondArray::from(vec![1, -1]).with_timezone("Europe/Zurich");
    let prices = Decimal256Array::from(vec![Some(arrow::datatypes::i256::MINUS_ONE), None])
        .with_precision_and_scale(60, 7)
        .expect("in range");
    let metadata = tensor.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let fields = vec![
        Field::new("x", images.data_type().clone(), false).with_metadata(BTreeMap::from(metadata)),
        Field::new("t", DataType::Timestamp(TimeUnit::Second, Some("Europe/Zurich".into())), false),
        Field::new("p", prices.data_type().clone(), true),
    ];
    let columns: Vec<ArrayRef> = vec![Arc::new(images), Arc::new(times), Arc::new(prices)];
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("it fits");
    let memory = Memory::default();
    let manifest = version(&batch, &[1], &memory);
    let dir = tempfile::tempdir().expect("a temporary directory");
    exported(&manifest, &memory, &dir.path().join("out"), ExportFormat::Parquet { zstd: false }, 1 << 20)
        .expect("it fits");
    let again = ingested(&dir.path().join("out"), &config(Mix::Sequential, 1 << 20), &memory);
    assert_eq!(again.schema, manifest.schema);
    assert_eq!(rows(&again, &memory), rows_of(&batch));
}

#[test]
fn a_shard_is_a_row_group_and_files_have_about_the_size_asked_for() {
    let memory = Memory::default();
    let manifest = version(&table(0..100), &[10], &memory);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let size = manifest.shards.iter().map(|shard| shard.row_bytes).max().expect("ten") * 4;
    let done = exported(&manifest, &memory, &dir.path().join("out"), PARQUET, size).expect("it fits");
    assert_eq!(done.files, 3);
    let groups = |name: &str| {
        let file = fs::File::open(dir.path().join("out").join(name)).expect("exported");
        let reader = parquet::file::reader::SerializedFileReader::new(file).expect("Parquet");
        parquet::file::reader::FileReader::metadata(&reader)
            .row_groups()
            .iter()
            .map(|group| group.num_rows())
            .collect::<Vec<_>>()
    };
    assert_eq!(groups("part-000000.parquet"), [10; 4]);
    assert_eq!(groups("part-000002.parquet"), [10; 2]);
}

#[test]
fn an_export_is_whole_or_not_there() {
    let memory = Memory::default();
    let manifest = version(&table(0..100), &[10], &memory);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let to = dir.path().join("out");
    let there = || {
        fs::read_dir(dir.path())
            .expect("readable")
            .map(|entry| entry.expect("an entry").file_name())
            .collect::<Vec<_>>()
    };
    for format in [PARQUET, ExportFormat::WebDataset] {
        let last = manifest.shards[9].id;
        let file = memory.get(last, File::Shard).expect("put");
        memory.flip(last, File::Shard, 3000);
        let failed = exported(&manifest, &memory, &to, format, 1000).expect_err("a shard is damaged");
        assert!(failed.to_string().contains(&last.to_string()), "{failed}");
        assert!(there().is_empty(), "{:?}", there());
        memory.change(last, File::Shard, |bytes| {
            *bytes = file;
            true
        });
        // An empty directory is as good as none.
        fs::create_dir(&to).expect("room");
        exported(&manifest, &memory, &to, format, 1000).expect("it fits");
        let occupied = exported(&manifest, &memory, &to, format, 1000).expect_err("it is there");
        assert!(matches!(occupied, ExportError::Occupied { .. }), "{occupied}");
        assert_eq!(there(), ["out"]);
        fs::remove_dir_all(&to).expect("it is there");
    }
    let staging = dir.path().join("out.tmp");
    fs::create_dir(&staging).expect("room");
    let held = fs::File::open(&staging).and_then(|lock| lock.lock().map(|()| lock)).expect("an export");
    let unfinished = exported(&manifest, &memory, &to, PARQUET, 1000).expect_err("someone is at it");
    assert!(unfinished.to_string().contains("out.tmp: another export is writing it"), "{unfinished}");
    drop(held);
    for (name, others) in [("part-000000.parquet", None), ("notes.txt", Some(".shardd-export"))] {
        // Of another program, whether an export was killed there or not.
        fs::write(staging.join(name), "mine").expect("room");
        others.map(|name| fs::write(staging.join(name), "")).transpose().expect("room");
        let foreign = exported(&manifest, &memory, &to, PARQUET, 1000).expect_err("it is not ours");
        assert!(foreign.to_string().contains("out.tmp: exists, and is not from an export"), "{foreign}");
        assert_eq!(fs::read(staging.join(name)).expect("there"), b"mine", "foreign files stay");
        fs::remove_file(staging.join(name)).expect("there");
    }
    // As an export leaves it that was killed.
    fs::write(staging.join("part-000007.parquet"), "half").expect("room");
    exported(&manifest, &memory, &to, PARQUET, 1000).expect("no export is at it");
    assert_eq!(there(), ["out"]);
    let whole: Vec<_> =
        fs::read_dir(&to).expect("there").map(|entry| entry.expect("one").file_name()).collect();
    assert!(whole.iter().all(|name| name != "part-999999.parquet" && name != ".shardd-export"), "{whole:?}");
    fs::remove_dir_all(&to).expect("it is there");
    assert!(exported(&manifest, &memory, &dir.path().join("none/out"), PARQUET, 1000).is_err());
    assert!(matches!(exported(&manifest, &memory, &to, PARQUET, 0), Err(ExportError::NoSize)));
}

#[test]
fn the_same_version_exports_to_the_same_bytes() {
    let memory = Memory::default();
    let manifest = version(&table(0..100), &[10, 3], &memory);
    let other =
        reshard(base(&manifest), ByteSize(700), None, &memory, 2, &memory, &NoProgress).expect("intact");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let read = |manifest: &Manifest, name: &str, format| {
        let to = dir.path().join(name);
        exported(manifest, &memory, &to, format, 2000).expect("it fits");
        let files = fs::read_dir(to).expect("exported").map(|entry| entry.expect("a file").path());
        files
            .map(|path| (path.file_name().map(ToOwned::to_owned), fs::read(path).expect("a file")))
            .collect::<BTreeMap<_, _>>()
    };
    assert_eq!(read(&manifest, "a", PARQUET), read(&manifest, "b", PARQUET));
    let tars = read(&manifest, "c", ExportFormat::WebDataset);
    assert_eq!(tars, read(&other, "d", ExportFormat::WebDataset), "however it is cut into shards");
}
