//! Ingests that stop halfway and are run again, in little memory.

use std::sync::Arc;

use arrow::array::{BinaryArray, Int64Array};
use proptest::prelude::*;

use super::*;
use crate::size::ByteSize;

/// Keeps shards, and refuses after so many, like a store that goes away.
struct Failing {
    kept: Kept,
    left: AtomicU64,
    stored: AtomicU64,
}

impl Failing {
    fn after(shards: u64) -> Failing {
        Failing { kept: Kept::default(), left: AtomicU64::new(shards), stored: AtomicU64::new(0) }
    }
}

impl Sink for Failing {
    fn put_shard(&self, shard: FinishedShard) -> io::Result<()> {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.map_err(|_| io::Error::other("the store is gone"))?;
        self.stored.fetch_add(1, Ordering::SeqCst);
        self.kept.put_shard(shard)
    }

    fn has_shard(&self, id: &ShardId) -> io::Result<bool> {
        self.kept.has_shard(id)
    }
}

/// 96 MiB in rows of 48 KiB: more than the least memory holds.
fn large_file(directory: &TempDir) -> PathBuf {
    let path = directory.path().join("large.parquet");
    let rows = 2048i64;
    let blob = |row: i64| blake3_bytes(row as u64, 48 << 10);
    let columns: Vec<(&str, arrow::array::ArrayRef)> = vec![
        ("label", Arc::new(Int64Array::from_iter_values((0..rows).map(|row| row % 7)))),
        ("blob", Arc::new(BinaryArray::from_iter_values((0..rows).map(blob)))),
    ];
    write_parquet(path.clone(), &RecordBatch::try_from_iter(columns).unwrap());
    path
}

fn blake3_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

fn mixes() -> [Mix; 3] {
    [Mix::Random, Mix::Sequential, Mix::Stratified("label".to_owned())]
}

#[test]
fn memory_does_not_matter_and_an_interrupted_ingest_goes_on() {
    let directory = directory(&[]);
    let path = large_file(&directory);
    let work = tempfile::tempdir().unwrap();
    let little =
        Resources { threads: 2, memory: Resources::LEAST_MEMORY, work: Some(work.path().to_owned()) };
    for mix in mixes() {
        let config = IngestConfig { mix, shard_size: Some(ByteSize(4 << 20)), ..IngestConfig::default() };
        let open = || Source::open(&path, &config).unwrap();
        let much = ingest(open(), &config, &Resources::threads(2), &Kept::default(), &NoProgress).unwrap();
        let sink = Failing::after(5);
        let failed = ingest(open(), &config, &little, &sink, &NoProgress).expect_err("the store went away");
        assert!(matches!(failed, IngestError::Sink { .. }), "{failed}");
        assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 1, "what was done is kept");
        // Going on reads no piece again, and makes only what is missing.
        sink.left.store(u64::MAX, Ordering::SeqCst);
        let again = ingest(open(), &config, &little, &sink, &NoProgress).unwrap();
        assert_eq!(again.id(), much.id());
        assert_eq!(sink.stored.load(Ordering::SeqCst), much.shards.len() as u64);
        assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0, "nothing is left behind");
    }
}

#[test]
fn a_shard_that_is_gone_is_made_again() {
    let directory = directory(&[]);
    let path = large_file(&directory);
    let work = tempfile::tempdir().unwrap();
    let resources =
        Resources { threads: 2, memory: Resources::LEAST_MEMORY, work: Some(work.path().to_owned()) };
    let config = IngestConfig { shard_size: Some(ByteSize(4 << 20)), ..IngestConfig::default() };
    let open = || Source::open(&path, &config).unwrap();
    let first = Failing::after(5);
    ingest(open(), &config, &resources, &first, &NoProgress).expect_err("the store went away");
    // Another store has none of what is on the list.
    let other = Failing::after(u64::MAX);
    let manifest = ingest(open(), &config, &resources, &other, &NoProgress).unwrap();
    assert_eq!(other.stored.load(Ordering::SeqCst), manifest.shards.len() as u64);
}

#[test]
fn an_input_that_changed_is_read_anew() {
    let directory = directory(&[]);
    let path = large_file(&directory);
    let work = tempfile::tempdir().unwrap();
    let resources =
        Resources { threads: 2, memory: Resources::LEAST_MEMORY, work: Some(work.path().to_owned()) };
    let config = IngestConfig { shard_size: Some(ByteSize(4 << 20)), ..IngestConfig::default() };
    let sink = Failing::after(0);
    let open = || Source::open(&path, &config).unwrap();
    ingest(open(), &config, &resources, &sink, &NoProgress).expect_err("the store went away");
    let columns: Vec<(&str, arrow::array::ArrayRef)> =
        vec![("label", Arc::new(Int64Array::from(vec![1, 2, 3])))];
    write_parquet(path.clone(), &RecordBatch::try_from_iter(columns).unwrap());
    let manifest = ingest(open(), &config, &resources, &Kept::default(), &NoProgress).unwrap();
    assert_eq!(manifest.sample_count(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Stops anywhere in the writing, several times; whatever was done, the end is the same.
    #[test]
    fn any_number_of_interruptions_give_the_same_version(stops in prop::collection::vec(0..12u64, 1..4), threads in 1..4usize) {
        let directory = directory(&[]);
        let path = large_file(&directory);
        let work = tempfile::tempdir().unwrap();
        let resources =
            Resources { threads, memory: Resources::LEAST_MEMORY, work: Some(work.path().to_owned()) };
        let config = IngestConfig { shard_size: Some(ByteSize(4 << 20)), ..IngestConfig::default() };
        let open = || Source::open(&path, &config).unwrap();
        let undisturbed = ingest(open(), &config, &Resources::threads(1), &Kept::default(), &NoProgress).unwrap();
        let sink = Failing::after(0);
        for stop in stops {
            sink.left.store(stop, Ordering::SeqCst);
            prop_assert!(ingest(open(), &config, &resources, &sink, &NoProgress).is_err());
        }
        sink.left.store(u64::MAX, Ordering::SeqCst);
        prop_assert_eq!(ingest(open(), &config, &resources, &sink, &NoProgress).unwrap().id(), undisturbed.id());
    }
}
