//! Stories of damage, and of how far it can be mended.

use super::*;

struct Story {
    directory: tempfile::TempDir,
    memory: Memory,
    manifest: Manifest,
    settings: IngestConfig,
}

impl Story {
    fn new() -> Story {
        let (directory, memory) = (tempfile::tempdir().expect("a temporary directory"), Memory::default());
        write_parquet(&directory.path().join("t.parquet"), &table(0..400));
        let made = made(&directory.path().join("t.parquet"), &config(Mix::Random, 4000), &memory);
        assert!(made.manifest.shards.len() > 5);
        let settings = settings_of(&made);
        Story { directory, memory, manifest: made.manifest, settings }
    }

    fn findings(&self) -> Vec<Finding> {
        let all: Vec<usize> = (0..self.manifest.shards.len()).collect();
        verify(&self.manifest, &all, &self.memory, 2, &NoProgress).expect("threads")
    }

    fn repair(&self) -> Repair<'_> {
        Repair::new(&self.manifest, &self.findings(), &self.memory, &self.memory).expect("room")
    }

    fn id(&self, shard: usize) -> ShardId {
        self.manifest.shards[shard].id
    }

    fn mend_from_source(&self, repair: &Repair<'_>, config: &IngestConfig) {
        let source = Source::open(&self.directory.path().join("t.parquet"), config).expect("a source");
        let read = repair.search_source("t.parquet", |sink| {
            ingest(source, config, &Resources::threads(2), sink, &NoProgress)
        });
        read.expect("room").expect("it is sound");
    }
}

#[test]
fn damage_of_every_kind_is_named() {
    let story = Story::new();
    assert_eq!(story.findings(), []);
    story.memory.flip(story.id(0), File::Shard, 5000);
    story.memory.remove(story.id(1), File::Shard);
    story.memory.remove(story.id(2), File::Sidecar);
    story.memory.flip(story.id(3), File::Sidecar, 100);
    // The sidecar of another shard, itself intact.
    let other = story.memory.get(story.id(5), File::Sidecar).expect("put");
    story.memory.change(story.id(4), File::Sidecar, |bytes| {
        *bytes = other;
        true
    });
    let findings = story.findings();
    let said: Vec<_> =
        findings.iter().map(|found| (found.shard, found.file, found.damage.to_string())).collect();
    let expected = [
        (File::Shard, "have the digest"),
        (File::Shard, "is missing"),
        (File::Sidecar, "is missing"),
        (File::Sidecar, "is corrupt"),
        (File::Sidecar, "it is of shard"),
    ];
    assert_eq!(said.len(), expected.len());
    for (index, ((shard, file, damage), (of, text))) in said.into_iter().zip(expected).enumerate() {
        assert_eq!((shard, file), (story.id(index), of));
        assert!(damage.contains(text), "{damage}");
    }
    let half: Vec<usize> = sample(story.manifest.shards.len(), 3, 1);
    let found = verify(&story.manifest, &half, &story.memory, 1, &NoProgress).expect("threads");
    assert!(found.iter().all(|found| half.iter().any(|shard| story.id(*shard) == found.shard)));
}

#[test]
fn a_sidecar_is_made_of_its_shard() {
    let story = Story::new();
    let before = story.memory.get(story.id(2), File::Sidecar);
    story.memory.remove(story.id(2), File::Sidecar);
    let (mended, lost) = story.repair().finish();
    assert_eq!((mended.len(), lost.len()), (1, 0));
    assert_eq!(story.memory.get(story.id(2), File::Sidecar), before);
    assert_eq!(story.findings(), []);
}

#[test]
fn a_lost_shard_is_remade_of_the_same_samples_in_another_version() {
    let story = Story::new();
    let store = &story.memory;
    let other =
        reshard(base(&story.manifest), ByteSize(1500), None, store, 2, store, &NoProgress).expect("intact");
    story.memory.remove(story.id(0), File::Shard);
    story.memory.flip(story.id(3), File::Shard, 3000);
    let repair = story.repair();
    assert!(!repair.is_done());
    repair.search_version(&other, store, "the other version", &NoProgress).expect("room");
    let (mended, lost) = repair.finish();
    assert_eq!((mended.len(), lost.as_slice()), (2, [].as_slice()));
    assert!(mended.iter().all(|mended| mended.from == "the other version"));
    assert_eq!(story.findings(), []);
}

#[test]
fn the_source_brings_back_what_no_copy_has() {
    let story = Story::new();
    story.memory.remove(story.id(0), File::Shard);
    story.memory.remove(story.id(0), File::Sidecar);
    story.memory.remove(story.id(1), File::Shard);
    let repair = story.repair();
    // In another order the source has the rows of the one, and nothing says which the other had.
    story.mend_from_source(&repair, &config(Mix::Sequential, 9000));
    let (mended, lost) = repair.finish();
    assert_eq!(mended, [Mended { shard: story.id(1), from: "t.parquet".to_owned() }]);
    assert!(
        matches!(lost.as_slice(), [one] if one.shard == story.id(0) && one.reason.contains("sidecar is lost too"))
    );
    // As it was ingested, it makes the very shards.
    let repair = story.repair();
    story.mend_from_source(&repair, &story.settings);
    assert!(repair.is_done());
    assert_eq!(story.findings(), []);
}

#[test]
fn what_is_left_of_a_shard_counts() {
    let story = Story::new();
    let bytes = story.memory.get(story.id(0), File::Shard).expect("put");
    // A bit between two buffers, where no value lies: all rows are still there.
    let marker = bytes.len() - 6 - 4;
    let zeros = (64..marker).rev().find(|at| bytes[at - 8..at + 8] == [0; 16]).expect("padding");
    story.memory.change(story.id(0), File::Shard, |bytes| {
        bytes[zeros] = 1;
        true
    });
    assert_eq!(story.findings().len(), 1);
    let (mended, _) = story.repair().finish();
    assert_eq!(mended, [Mended { shard: story.id(0), from: "the rest of the shard".to_owned() }]);
    assert_eq!(story.findings(), []);
}

#[test]
fn what_cannot_be_mended_is_left_as_it_is_and_said() {
    let story = Story::new();
    story.memory.change(story.id(0), File::Shard, |bytes| {
        bytes.truncate(bytes.len() / 2);
        true
    });
    let damaged = story.memory.get(story.id(0), File::Shard);
    let stranger = Memory::default();
    version(&table(900..950), &[10], &stranger);
    let puts = story.memory.puts();
    let repair = story.repair();
    repair.search_store(&stranger, "a stranger").expect("room");
    let (mended, lost) = repair.finish();
    assert_eq!((mended.len(), story.memory.puts()), (0, puts));
    assert!(lost[0].reason.contains("rows were found; give another store"), "{}", lost[0].reason);
    assert_eq!(story.memory.get(story.id(0), File::Shard), damaged, "nothing was made worse");
}

#[test]
fn a_copy_that_is_damaged_itself_is_no_copy() {
    let (story, other) = (Story::new(), Story::new());
    story.memory.remove(story.id(0), File::Shard);
    other.memory.flip(story.id(0), File::Shard, 777);
    let repair = story.repair();
    repair.search_store(&other.memory, "the other").expect("room");
    assert!(!repair.is_done());
    // But its remains are not looked at: it may be anything.
    assert_eq!(repair.finish().0, []);
}

#[test]
fn a_sink_that_fails_is_reported() {
    struct Full;
    impl Sink for Full {
        fn put_shard(&self, _: FinishedShard) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn has_shard(&self, _: &ShardId) -> io::Result<bool> {
            Ok(false)
        }
    }
    let (story, copy) = (Story::new(), Story::new());
    story.memory.remove(story.id(0), File::Shard);
    let repair = Repair::new(&story.manifest, &story.findings(), &story.memory, &Full).expect("room");
    repair.search_store(&copy.memory, "the copy").expect("room");
    let (mended, lost) = repair.finish();
    assert_eq!(mended, []);
    assert!(lost[0].reason.contains("cannot be stored"), "{}", lost[0].reason);
}
