//! A manifest comes back as it was, whole or in parts; damage is noticed or does no harm; totals are those of the shards.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StructArray, UInt32Array};
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;
use proptest::prelude::*;
use shardd_strategies::record_batch;

use super::labels::Names;
use super::tree::TREE_FROM;
use super::*;
use crate::digest::{Digest, ShardId};
use crate::merkle::NodeHash;
use crate::shard::IpcFile;
use crate::statistics::{ColumnStatistics, MEASURED_COLUMNS, Measure, Quantiles, Spread, Statistics};

fn entry() -> impl Strategy<Value = ShardEntry> {
    let labels = prop::option::of(prop::collection::btree_map(
        "[a-z\"\\\\é]{0,4}".prop_map(Arc::from),
        any::<u64>(),
        0..4,
    ));
    (any::<[u8; 32]>(), 1..u32::MAX, any::<u64>(), any::<u64>(), any::<[u8; 32]>(), any::<u128>(), labels)
        .prop_map(|(id, rows, bytes, row_bytes, root, sum, labels)| ShardEntry {
            id: ShardId(Digest(id)),
            rows,
            bytes,
            row_bytes,
            root: NodeHash(root),
            digest_sum: DigestSum(sum),
            labels,
            statistics: None,
        })
}

/// Statistics as samples of the schema may have them.
fn statistics(schema: &Schema, rows: u32, seed: u64) -> Statistics {
    let seed = (seed % 100_000) as u32;
    let column = |field: &Arc<Field>| {
        let count = rows / (1 + seed % 2);
        let at = f64::from(seed);
        let spread = Spread { min: at - 1.5, max: at + 1e9, mean: at, variance: at / 3.0 };
        let measured = Measure::of(field.data_type()) != Measure::Nothing && count > 0;
        ColumnStatistics { count: count.into(), spread: measured.then_some(spread) }
    };
    let columns = schema.fields().iter().take(MEASURED_COLUMNS).map(column).collect();
    let row_bytes = Quantiles::from([1, 2, 3, 4, 5, 6].map(|at| at * (seed + 1)));
    Statistics { row_bytes, columns }
}

/// With statistics of all shards, of some or of none.
fn manifest() -> impl Strategy<Value = Manifest> {
    let shards = prop::collection::vec(entry(), 0..6);
    (record_batch(1), shards, any::<u64>(), "[a-z/]{1,9}", 1..4u64).prop_map(
        |(batch, mut shards, seed, name, known)| {
            let schema = batch.schema();
            for (at, shard) in
                shards.iter_mut().enumerate().filter(|(at, _)| (*at as u64).is_multiple_of(known))
            {
                shard.statistics = Some(statistics(&schema, shard.rows, seed ^ at as u64));
            }
            let nested = serde_json::json!({ "b": [1, null], "a": name });
            let config = serde_json::json!({ "seed": seed, "mix": "random", "nested": nested });
            Manifest::new(schema, shards, config)
        },
    )
}

/// The manifest with its shards listed often enough that it has a tree.
fn long(manifest: Manifest, times: usize) -> Manifest {
    let shards = manifest.shards.iter().cycle().take(times * manifest.shards.len()).cloned().collect();
    Manifest { shards, ..manifest }
}

/// A manifest in memory with its tree, and its reads.
#[derive(Clone)]
struct Memory {
    file: Vec<u8>,
    tree: Option<Vec<u8>>,
    wholes: Arc<AtomicU64>,
}

impl Memory {
    fn of(file: Vec<u8>) -> Self {
        Self { tree: tree_of(&file), file, wholes: Arc::default() }
    }

    fn wholes(&self) -> u64 {
        self.wholes.load(Ordering::Relaxed)
    }
}

fn part_of(bytes: &[u8], range: Range<u64>) -> Vec<u8> {
    let end = range.end.min(bytes.len() as u64) as usize;
    bytes.get(range.start as usize..end).unwrap_or_default().to_vec()
}

impl ManifestBytes for Memory {
    fn whole(&self) -> io::Result<Vec<u8>> {
        self.wholes.fetch_add(1, Ordering::Relaxed);
        Ok(self.file.clone())
    }

    fn part(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        Ok(part_of(&self.file, range))
    }

    fn tree(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        match &self.tree {
            Some(tree) => Ok(part_of(tree, range)),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Asks a manifest everything, and compares its answers with the truth.
fn agree(file: &ManifestFile, truth: &Manifest) -> Result<(), TestCaseError> {
    prop_assert_eq!(file.schema(), &truth.schema);
    prop_assert_eq!(file.config(), &truth.config);
    let totals = file.totals();
    prop_assert_eq!(totals.shards, truth.shards.len() as u64);
    prop_assert_eq!(totals.samples, truth.sample_count());
    prop_assert_eq!((totals.bytes, totals.row_bytes), (truth.bytes(), truth.row_bytes()));
    prop_assert_eq!(totals.digest_sum, truth.digest_sum());
    let all_known = truth.shards.iter().all(|shard| shard.statistics.is_some());
    prop_assert_eq!(totals.statistics.is_some(), all_known && !truth.shards.is_empty());
    prop_assert_eq!(file.labels().expect("labels"), truth.labels());
    let rows: Vec<u32> = truth.shards.iter().map(|shard| shard.rows).collect();
    prop_assert_eq!(file.shard_rows().expect("rows"), rows);
    prop_assert_eq!(&file.entries(0..totals.shards).expect("all shards"), &truth.shards);
    for (index, shard) in truth.shards.iter().enumerate().step_by(997) {
        prop_assert_eq!(&file.entry(index as u64).expect("a shard"), shard);
    }
    prop_assert!(file.entry(totals.shards).is_err());
    let mut first = 0;
    for (index, shard) in (0..).zip(&truth.shards) {
        if index % 1009 == 0 || index + 1 == totals.shards {
            prop_assert_eq!(file.find_sample(first).expect("a sample"), Some((index, 0)));
            let last = first + u64::from(shard.rows) - 1;
            prop_assert_eq!(file.find_sample(last).expect("a sample"), Some((index, shard.rows - 1)));
        }
        first += u64::from(shard.rows);
    }
    prop_assert_eq!(file.find_sample(first).expect("none"), None);
    Ok(())
}

proptest! {
    #[test]
    fn manifests_come_back_as_they_were(manifest in manifest()) {
        let bytes = manifest.encode();
        let back = Manifest::decode(&bytes).expect("own manifest");
        prop_assert_eq!(&back, &manifest);
        prop_assert_eq!(back.id(), VersionId::of(&bytes), "and so does their name");
        let memory = Memory::of(bytes);
        let file = ManifestFile::open(back.id(), memory.clone()).expect("own manifest");
        agree(&file, &manifest)?;
        prop_assert_eq!(memory.wholes(), 1, "short ones are read whole");
    }

    #[test]
    fn damaged_manifests_never_panic(manifest in manifest(), at: prop::sample::Index, to: u8, cut: prop::sample::Index) {
        let mut bytes = manifest.encode();
        prop_assert!(Manifest::decode(&bytes[..cut.index(bytes.len())]).is_err());
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(other) = Manifest::decode(&bytes) {
            other.sample_count();
            other.bytes();
            other.encode();
        }
        // As someone would write it who means harm, and names it rightly.
        if let Ok(file) = ManifestFile::open(VersionId::of(&bytes), Memory::of(bytes)) {
            let _ = (file.labels(), file.shard_rows(), file.manifest());
            for index in 0..file.totals().shards.min(10) {
                let _ = (file.entry(index), file.find_sample(index));
            }
        }
    }

    #[test]
    fn garbage_is_no_manifest(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Manifest::decode(&bytes).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn parts_of_a_long_manifest_are_those_of_the_whole(manifest in manifest(), times in 1200..2000usize) {
        let manifest = long(manifest, times);
        let memory = Memory::of(manifest.encode());
        let file = ManifestFile::open(VersionId::of(&memory.file), memory.clone()).expect("own manifest");
        agree(&file, &manifest)?;
        let indexed = manifest.shards.iter().any(|shard| shard.statistics.is_some());
        prop_assert_eq!(memory.wholes(), u64::from(!(indexed && memory.tree.is_some())), "only then");
        prop_assert_eq!(&file.manifest().expect("own manifest"), &manifest);
    }

    #[test]
    fn a_damaged_byte_is_noticed_or_does_no_harm(
        manifest in manifest(),
        times in 1200..2000usize,
        in_tree: bool,
        at: prop::sample::Index,
        flip in 1..=255u8,
    ) {
        let manifest = long(manifest, times);
        let mut memory = Memory::of(manifest.encode());
        let id = VersionId::of(&memory.file);
        match &mut memory.tree {
            Some(tree) if in_tree => {
                let at = at.index(tree.len());
                tree[at] ^= flip;
                // A wrong tree costs reading the whole, and nothing else.
                agree(&ManifestFile::open(id, memory).expect("the file is right"), &manifest)?;
            }
            _ => {
                let at = at.index(memory.file.len());
                memory.file[at] ^= flip;
                if let Ok(file) = ManifestFile::open(id, memory) {
                    for (index, shard) in (0..).zip(&manifest.shards).step_by(501) {
                        prop_assert!(file.entry(index).is_ok_and(|found| found == *shard) || file.manifest().is_err());
                    }
                    prop_assert!(file.labels().map_or(true, |labels| labels == manifest.labels()));
                    prop_assert!(file.manifest().is_err(), "the whole has another digest");
                }
            }
        }
    }
}

fn small() -> Manifest {
    let metadata = BTreeMap::from([(CLASSES_KEY.to_owned(), r#"["cat","dog"]"#.to_owned())]);
    let label = Field::new("label", DataType::Int64, false).with_metadata(metadata);
    let schema = Schema::new(vec![label]);
    let shard = |content: &[u8], rows| ShardEntry {
        id: ShardId::of(content),
        rows,
        bytes: 1000,
        row_bytes: 900,
        root: NodeHash([7; 32]),
        digest_sum: DigestSum(u128::MAX),
        labels: Some(BTreeMap::from([("0".into(), 1), (rows.to_string().into(), 2)])),
        statistics: Some(statistics(&schema, rows, 5)),
    };
    let config = serde_json::json!({ "b": 1, "a": 2 });
    let shards = vec![shard(b"a", 1), shard(b"b", 2)];
    Manifest::new(Arc::new(schema), shards, config)
}

fn without_statistics(mut manifest: Manifest) -> Manifest {
    manifest.shards.iter_mut().for_each(|shard| shard.statistics = None);
    manifest
}

#[test]
fn totals_are_those_of_the_shards() {
    let manifest = small();
    assert_eq!((manifest.sample_count(), manifest.bytes(), manifest.row_bytes()), (3, 2000, 1800));
    assert_eq!(manifest.digest_sum(), DigestSum(u128::MAX - 1), "it wraps");
    let labels = manifest.labels().expect("both have labels");
    assert_eq!(labels.into_iter().collect::<Vec<_>>(), [("0".into(), 2), ("1".into(), 2), ("2".into(), 2)]);
    assert_eq!(manifest.label_column(), Some("label"));
    assert_eq!(manifest.class_names(), Some(vec!["cat".to_owned(), "dog".to_owned()]));
}

#[test]
fn totals_that_are_not_those_of_the_shards_are_found() {
    let bytes = small().encode();
    // The text lies in the file twice; the last is in the footer.
    let replace = |from: &str, to: &str| {
        let mut bytes = bytes.clone();
        let last = bytes.windows(from.len()).rposition(|at| at == from.as_bytes()).expect("it is there");
        bytes[last..last + from.len()].copy_from_slice(to.as_bytes());
        bytes
    };
    for (from, to, key) in [
        (r#""samples":3"#, r#""samples":4"#, "shardd.totals"),
        (r#""row_bytes":1800"#, r#""row_bytes":1801"#, "shardd.totals"),
        ("[[2,3]]", "[[1,3]]", "shardd.batches"),
        ("[[1,1],[1,2]]", "[[1,2],[1,1]]", "shardd.rows"),
        (r#"{"0":2,"1":2,"2":2}"#, r#"{"0":2,"1":1,"2":3}"#, "shardd.labels"),
    ] {
        let error = Manifest::decode(&replace(from, to)).expect_err(from).to_string();
        assert!(error.contains(key) && error.contains("not true of its shards"), "{from}: {error}");
    }
}

#[test]
fn the_order_of_configuration_keys_does_not_matter() {
    let other = Manifest { config: serde_json::json!({ "a": 2, "b": 1 }), ..small() };
    assert_eq!(small().id(), other.id());
    let changed = Manifest { config: serde_json::json!({ "a": 2, "b": 2 }), ..small() };
    assert_ne!(small().id(), changed.id());
}

#[test]
fn millions_of_shards_are_many_record_batches() {
    let shards = vec![small().shards[0].clone(); 10_000];
    let manifest = Manifest { shards, ..small() };
    for (manifest, record_batches) in [(manifest.clone(), 2), (without_statistics(manifest), 3)] {
        let bytes = manifest.encode();
        assert_eq!(IpcFile::parse(&bytes).expect("own file").blocks.len(), record_batches);
        assert_eq!(Manifest::decode(&bytes).expect("own manifest"), manifest);
    }
}

#[test]
fn long_lists_are_not_read_when_a_manifest_is_opened() {
    // No two neighbours are alike, so that each has a run of its own.
    let shards: Vec<_> = small().shards.into_iter().cycle().take(20_000).collect();
    let manifest = Manifest { shards, ..small() };
    let memory = Memory::of(manifest.encode());
    let file = ManifestFile::open(VersionId::of(&memory.file), memory.clone()).expect("own manifest");
    assert!(memory.file.len() > 3_000_000 && memory.wholes() == 0, "{} bytes", memory.file.len());
    assert!(file.bytes_read() < 100_000, "{} bytes were read", file.bytes_read());
    assert_eq!(file.shard_rows().expect("rows").len(), 20_000);
    assert!(
        (120_000..300_000).contains(&file.bytes_read()),
        "{} bytes were read: the runs too",
        file.bytes_read()
    );
    assert_eq!(file.entry(15_000).expect("a shard"), manifest.shards[15_000]);
    assert!(file.bytes_read() < 5_000_000 && memory.wholes() == 0, "{} bytes were read", file.bytes_read());
    assert_eq!(file.manifest().expect("own manifest"), manifest);
    assert_eq!(Manifest::decode(&memory.file).expect("own manifest").encode(), memory.file);
}

#[test]
fn a_manifest_lies_on_disk_with_its_tree() {
    let manifest = Manifest { shards: vec![small().shards[0].clone(); 5000], ..small() };
    let (bytes, id) = (manifest.encode(), manifest.id());
    assert!(bytes.len() as u64 > TREE_FROM);
    let dir = tempfile::tempdir().expect("temporary directory");
    let local = LocalManifest { file: dir.path().join("m.arrow"), tree: dir.path().join("m.tree") };
    let missing = ManifestFile::open(id, local.clone()).expect_err("it is not there");
    assert!(matches!(missing, ManifestError::Unread { .. }), "{missing}");
    std::fs::write(&local.file, &bytes).expect("written");
    for with_tree in [false, true] {
        if with_tree {
            std::fs::write(&local.tree, tree_of(&bytes).expect("it is long")).expect("written");
        }
        let file = ManifestFile::open(id, local.clone()).expect("own manifest");
        assert_eq!(file.bytes_read() < bytes.len() as u64, with_tree);
        assert_eq!(file.entry(4999).expect("a shard"), manifest.shards[4999]);
        assert!(format!("{file:?}").contains(&id.short()), "it says which it is");
        let beyond = file.entry(5000).expect_err("there are 5000").to_string();
        assert!(beyond.contains("no shard 5000") && beyond.contains("lists 5000"), "{beyond}");
    }
    std::fs::write(&local.file, &bytes[..bytes.len() / 2]).expect("written");
    let cut = ManifestFile::open(id, local).expect_err("half of it is gone");
    assert!(matches!(cut, ManifestError::Corrupt(_)), "{cut}");
}

/// The texts of a manifest, and one that is not known here.
fn texts_and_more(manifest: &Manifest) -> BTreeMap<String, String> {
    let texts = index::Index::of(manifest, &index::cut(manifest, true)).texts().expect("plain data");
    let mut texts: BTreeMap<_, _> = texts.map(|(key, text)| (key.to_owned(), text)).into();
    for (key, text) in [
        (footer::FORMAT_KEY, footer::FORMAT.to_owned()),
        (footer::SCHEMA_KEY, footer::schema_text(&manifest.schema)),
        (footer::CONFIG_KEY, manifest.config.to_string()),
        ("shardd.more", "\u{1F980}".to_owned()),
    ] {
        texts.insert(key.to_owned(), text);
    }
    texts
}

#[test]
fn columns_that_no_row_could_have_are_refused() {
    let wide =
        |data_type, size| DataType::FixedSizeList(Arc::new(Field::new("item", data_type, false)), size);
    // A value would be 2^65 bytes long.
    let more = wide(wide(DataType::UInt64, i32::MAX), i32::MAX);
    let fields = columns::fields(&small().schema, true).into_iter();
    let fields = fields.chain([Field::new("more", more, false)]).collect();
    let no_batches = std::iter::empty::<fn(SchemaRef) -> Result<RecordBatch, ArrowError>>();
    let bytes = footer::write(fields, texts_and_more(&small()), true, no_batches).expect("no values");
    let error = Manifest::decode(&bytes).expect_err("no such column");
    assert!(matches!(&error, ManifestError::Corrupt(reason) if reason.contains("1 GiB")), "{error}");
}

#[test]
fn statistics_are_known_by_the_names_of_their_columns() {
    let manifest = small();
    let schema = Arc::new(Schema::new(columns::fields(&manifest.schema, true)));
    let batch = columns::record_batch(schema, &manifest.schema, &manifest.shards).expect("columns fit");
    let statistics = batch.column_by_name("statistics").expect("all have them").as_struct();
    let part = |name: &str| statistics.column_by_name(name).expect("both have it").clone();
    let named =
        |name: &str, array: ArrayRef| (Arc::new(Field::new(name, array.data_type().clone(), false)), array);
    // A column of which the samples know nothing, before theirs.
    let count: ArrayRef = Arc::new(UInt32Array::from(vec![0; batch.num_rows()]));
    let more: ArrayRef = Arc::new(StructArray::from(vec![named("count", count)]));
    let label = part("columns").as_struct().column(0).clone();
    let of_columns = StructArray::from(vec![named("more", more), named("label", label)]);
    let parts = vec![named("row_bytes", part("row_bytes")), named("columns", Arc::new(of_columns))];
    let columns = batch.schema_ref().fields().iter().cloned().zip(batch.columns().iter().cloned());
    let columns = columns.filter(|(field, _)| field.name() != "statistics");
    let columns = columns.chain([named("statistics", Arc::new(StructArray::from(parts)))]);
    let batch = RecordBatch::from(StructArray::from(columns.collect::<Vec<_>>()));
    assert_eq!(columns::check(batch.schema_ref(), &manifest.schema), Ok(()));
    let entries = columns::entries(&batch, &manifest.schema, &mut Names::default());
    assert_eq!(entries, Ok(manifest.shards));
}

#[test]
fn columns_and_texts_that_a_later_program_added_are_passed_over() {
    let columns = columns::fields(&small().schema, true);
    let more = Field::new("more", DataType::UInt32, false);
    let fields: Vec<Field> = [more].into_iter().chain(columns.iter().cloned()).collect();
    let manifest = small();
    let batches = index::cut(&manifest, true);
    let batches = batches.into_iter().map(|batch| {
        |schema: SchemaRef| {
            let known = Arc::new(Schema::new(columns.clone()));
            let known = columns::record_batch(known, &manifest.schema, &manifest.shards[batch])?;
            let more: ArrayRef = Arc::new(UInt32Array::from(vec![7; known.num_rows()]));
            RecordBatch::try_new(schema, [more].into_iter().chain(known.columns().iter().cloned()).collect())
        }
    });
    let bytes = footer::write(fields, texts_and_more(&manifest), true, batches).expect("columns fit");
    assert_eq!(Manifest::decode(&bytes).expect("a manifest and more"), manifest);
}

#[test]
fn other_arrow_files_are_told_from_manifests() {
    let shard = {
        let column: ArrayRef = Arc::new(UInt32Array::from(vec![1]));
        let batch = RecordBatch::try_from_iter([("x", column)]).expect("one column");
        let mut writer = crate::ShardWriter::new(batch.schema()).expect("a plain schema");
        writer.push(&batch).expect("the batch fits");
        writer.finish().expect("there are rows").bytes
    };
    assert!(matches!(Manifest::decode(&shard), Err(ManifestError::NoManifest { .. })));
    // The format number is text of the schema, which lies in the file twice.
    let mut newer = small().encode();
    let key = footer::FORMAT_KEY.as_bytes();
    let keys: Vec<_> =
        newer.windows(key.len()).enumerate().filter(|(_, at)| *at == key).map(|(at, _)| at).collect();
    assert_eq!(keys.len(), 2);
    for at in keys {
        let value = newer[at - 40..at + 40].windows(6).position(|bytes| bytes == b"\x01\0\0\x002\0");
        newer[at - 40 + value.expect("the value lies beside its key") + 4] = b'3';
    }
    let error = Manifest::decode(&newer).expect_err("a later format").to_string();
    assert!(error.contains("format \"3\""), "{error}");
}
