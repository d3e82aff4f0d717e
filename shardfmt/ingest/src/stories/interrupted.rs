//! Ingests that stop halfway and are run again, in little memory.

use std::sync::{Arc, OnceLock};

use arrow::array::{BinaryArray, Int64Array};
use proptest::prelude::*;
use shardfmt::provenance::SKIPPED_LISTED;
use shardfmt::size::ByteSize;

use super::*;

/// Keeps shards, and refuses after a number of them, like a store that goes away.
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

/// The names of the kept files of the only ingest that left something here.
fn kept_in(work: &Path) -> Vec<String> {
    let [kept] = &fs::read_dir(work).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()[..]
    else {
        panic!("not just one ingest left something in {}", work.display());
    };
    let names = fs::read_dir(kept).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    sorted(names.collect())
}

/// 64 MiB in lines of 32 KiB, some of which have a column too many.
fn large_text(directory: &TempDir) -> PathBuf {
    let path = directory.path().join("large.csv");
    let mut text = "label,blob\n".to_owned();
    for row in 0..2048 {
        let odd = if row % 13 == 0 { ",1" } else { "" };
        text += &format!("{},x{}{odd}\n", row % 7, hex(&blake3_bytes(row, 16 << 10)));
    }
    fs::write(&path, text).unwrap();
    path
}

fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Copies the files that an ingest keeps when it has read a number of rows: those that a kill would leave.
struct Snapshot {
    work: PathBuf,
    copy: TempDir,
    after: u64,
    rows: AtomicU64,
}

impl Snapshot {
    fn after(rows: u64, work: &Path) -> Snapshot {
        let copy = tempfile::tempdir().unwrap();
        Snapshot { work: work.to_owned(), copy, after: rows, rows: AtomicU64::new(0) }
    }

    fn take(&self) {
        for kept in fs::read_dir(&self.work).unwrap() {
            let kept = kept.unwrap();
            let copy = self.copy.path().join(kept.file_name());
            fs::create_dir(&copy).unwrap();
            for file in fs::read_dir(kept.path()).unwrap() {
                let file = file.unwrap();
                // In the middle of the next step.
                let bytes = [fs::read(file.path()).unwrap(), b"{\"checkpoint\":".to_vec()].concat();
                fs::write(copy.join(file.file_name()), bytes).unwrap();
            }
        }
    }
}

impl Progress for Snapshot {
    fn advanced(&self, rows: u64, _bytes: u64, _phase: &str) {
        let before = self.rows.fetch_add(rows, Ordering::SeqCst);
        if (before..before + rows).contains(&self.after) {
            self.take();
        }
    }
}

/// The content of the first message, which is the state at the beginning.
#[derive(Default)]
struct Beginning(OnceLock<u64>);

impl Progress for Beginning {
    fn advanced(&self, rows: u64, _bytes: u64, _phase: &str) {
        self.0.get_or_init(|| rows);
    }
}

fn mixes() -> [Mix; 4] {
    [Mix::Random, Mix::Sequential, Mix::Stratified("label".to_owned()), Mix::Hash]
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
        let much =
            ingest(open(), &config, &Resources::threads(2), &Kept::default(), &NoProgress).unwrap().manifest;
        let sink = Failing::after(5);
        let failed = ingest(open(), &config, &little, &sink, &NoProgress).expect_err("the store went away");
        assert!(matches!(failed, IngestError::Sink { .. }), "{failed}");
        assert_eq!(kept_in(work.path()), ["journal", "rows-0"], "the work is kept, in few files");
        // A continued ingest reads no piece again, and makes only missing shards.
        sink.left.store(u64::MAX, Ordering::SeqCst);
        let again = ingest(open(), &config, &little, &sink, &NoProgress).unwrap().manifest;
        assert_eq!(again.id(), much.id());
        assert_eq!(sink.stored.load(Ordering::SeqCst), much.shards.len() as u64);
        assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0, "nothing is left behind");
    }
}

#[test]
fn whenever_it_was_killed_it_goes_on_with_other_threads_memory_and_shard_size() {
    let directory = directory(&[]);
    let path = large_text(&directory);
    let parts = [HashRange::parts(7, 0, 7, 10), HashRange::parts(7, 7, 10, 10)];
    for (mix, after) in mixes().into_iter().zip([1100, 1400, 1800, 1300]) {
        let config = IngestConfig { mix, on_error: OnError::Skip, ..IngestConfig::default() };
        let version = |resources: &Resources, shard_size: u64, progress: &dyn Progress| {
            let source = Source::open(&path, &config).unwrap();
            let read = Ingest::read(source, &config, &parts, resources, progress).unwrap();
            let written = read.write(Some(ByteSize(shard_size)), &Kept::default(), &NoProgress).unwrap();
            written.finish().iter().map(|version| version.manifest.id()).collect::<Vec<_>>()
        };
        let work = tempfile::tempdir().unwrap();
        let killed = Snapshot::after(after, work.path());
        let with = |threads, times, work: &Path| Resources {
            threads,
            memory: ByteSize(times * Resources::LEAST_MEMORY.0),
            work: Some(work.to_owned()),
        };
        version(&with(2, 1, work.path()), 2 << 20, &killed);
        let beginning = Beginning::default();
        let again = version(&with(1, 2, killed.copy.path()), 3 << 20, &beginning);
        assert_ne!(beginning.0.get(), Some(&0), "it continues where it was");
        assert_eq!(again, version(&Resources::threads(2), 3 << 20, &NoProgress));
    }
}

#[test]
fn shards_of_another_cut_are_not_taken_for_those_of_this_one() {
    let directory = directory(&[]);
    let path = large_file(&directory);
    let row = (1 + 8) + (1 + 4 + (48 << 10));
    // By hash, shards have no counts of their own.
    for mix in mixes().into_iter().filter(|mix| *mix != Mix::Hash) {
        let config = IngestConfig { mix, ..IngestConfig::default() };
        let work = tempfile::tempdir().unwrap();
        let resources =
            Resources { threads: 2, memory: Resources::LEAST_MEMORY, work: Some(work.path().to_owned()) };
        let write = |rows: u64, sink: &Failing| {
            let source = Source::open(&path, &config).unwrap();
            let read = Ingest::read(source, &config, &[], &resources, &NoProgress).unwrap();
            let written = read.write(Some(ByteSize(rows * row)), sink, &NoProgress)?;
            Ok::<_, IngestError>(written.finish().pop().unwrap().manifest)
        };
        // Shard 292 has four rows in both: one in the middle of 512 shards, and the rest for the last of 293.
        let sink = Failing::after(400);
        write(4, &sink).expect_err("the store went away");
        sink.left.store(u64::MAX, Ordering::SeqCst);
        let again = write(7, &sink).unwrap();
        assert_eq!(again.shards.len(), 293);
        assert_eq!(again.id(), write(7, &Failing::after(u64::MAX)).unwrap().id());
    }
}

#[test]
fn rows_that_are_gone_are_read_anew() {
    let directory = directory(&[]);
    let path = large_file(&directory);
    let work = tempfile::tempdir().unwrap();
    let resources =
        Resources { threads: 2, memory: Resources::LEAST_MEMORY, work: Some(work.path().to_owned()) };
    let config = IngestConfig::default();
    let open = || Source::open(&path, &config).unwrap();
    let undisturbed =
        ingest(open(), &config, &Resources::threads(2), &Kept::default(), &NoProgress).unwrap().manifest;
    for length in [None, Some(1 << 20)] {
        ingest(open(), &config, &resources, &Failing::after(0), &NoProgress).expect_err("no store");
        let kept = fs::read_dir(work.path()).unwrap().next().unwrap().unwrap().path();
        match length {
            None => fs::remove_file(kept.join("rows-0")).unwrap(),
            Some(length) => {
                File::options().write(true).open(kept.join("rows-0")).unwrap().set_len(length).unwrap()
            }
        }
        let beginning = Beginning::default();
        let manifest = ingest(open(), &config, &resources, &Kept::default(), &beginning).unwrap().manifest;
        assert_eq!((manifest.id(), beginning.0.get()), (undisturbed.id(), Some(&0)));
    }
}

#[test]
fn nothing_is_kept_of_what_fails_every_time() {
    let directory = directory(&[("a.png", png(1)), ("b.png", b"no image".to_vec())]);
    let work = tempfile::tempdir().unwrap();
    let resources = Resources { work: Some(work.path().to_owned()), ..Resources::threads(2) };
    let config = IngestConfig { decode: true, ..IngestConfig::default() };
    let config = IngestConfig { resize: Some("4x4".parse().unwrap()), ..config };
    let source = Source::open(directory.path(), &config).unwrap();
    let failed = ingest(source, &config, &resources, &Kept::default(), &NoProgress).unwrap_err();
    assert!(failed.to_string().contains("b.png"), "{failed}");
    assert_eq!(fs::read_dir(work.path()).unwrap().count(), 0);
}

#[test]
fn what_was_left_out_is_counted_and_listed_as_far_as_provenances_list() {
    let lines: String = (0..3 * SKIPPED_LISTED / 2).map(|line| format!("{line}\n{line},1\n")).collect();
    let (_directory, path) = one_file("all.csv", format!("number\n{lines}").as_bytes());
    let skipped = run(&path, &skipping(), 2).unwrap().provenance.skipped;
    assert_eq!(skipped.count, 3 * SKIPPED_LISTED as u64 / 2);
    assert_eq!(skipped.first.len(), SKIPPED_LISTED);
    assert!(skipped.first[SKIPPED_LISTED - 1].name.ends_with(&format!("line {}", 2 * SKIPPED_LISTED + 1)));
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
    // Another store has none of the listed shards.
    let other = Failing::after(u64::MAX);
    let manifest = ingest(open(), &config, &resources, &other, &NoProgress).unwrap().manifest;
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
    let manifest = ingest(open(), &config, &resources, &Kept::default(), &NoProgress).unwrap().manifest;
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
        let undisturbed = ingest(open(), &config, &Resources::threads(1), &Kept::default(), &NoProgress).unwrap().manifest;
        let sink = Failing::after(0);
        for stop in stops {
            sink.left.store(stop, Ordering::SeqCst);
            let ended = ingest(open(), &config, &resources, &sink, &NoProgress);
            // Unless there was no more to write.
            prop_assert!(ended.is_err() || sink.stored.load(Ordering::SeqCst) >= undisturbed.shards.len() as u64);
        }
        sink.left.store(u64::MAX, Ordering::SeqCst);
        prop_assert_eq!(ingest(open(), &config, &resources, &sink, &NoProgress).unwrap().manifest.id(), undisturbed.id());
    }
}
