//! What holds for any rows, cut in any way.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use shardd_strategies::{another, record_batch};
use shardfmt::compare::{Bounds, LeftOut, diff_within};

use super::*;

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..60usize, 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn resharding_keeps_every_sample_under_its_number(batch in record_batch(200), lengths in lengths(), size in 1..4000u64) {
        let memory = Memory::default();
        let old = version(&batch, &lengths, &memory);
        let cut = |manifest: &Manifest, size: u64, threads: usize| {
            reshard(base(manifest), ByteSize(size), None, &memory, threads, &memory, &NoProgress).expect("intact")
        };
        let new = cut(&old, size, 2);
        prop_assert_eq!(rows(&new, &memory), rows_of(&batch));
        prop_assert_eq!(cut(&old, size, 1).id(), new.id(), "threads do not matter");
        prop_assert_eq!(cut(&new, size, 2), new.clone(), "twice is once");
        let through = cut(&cut(&old, size * 3, 2), size, 2);
        prop_assert_eq!(&through.shards, &new.shards, "nor does the way");
        let found = diff(base(&old), base(&new), &memory, &NoProgress).expect("intact");
        prop_assert!(found.is_same_content(), "{:?}", found);
        prop_assert_eq!(found.samples.kept, batch.num_rows() as u64);
        for entry in &new.shards {
            prop_assert_eq!(check(entry, &memory), []);
        }
    }

    #[test]
    fn a_difference_is_the_same_from_either_side(
        batch in record_batch(60),
        picks in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<bool>()), 1..60),
        lengths in lengths(),
        seed: u64,
    ) {
        // Rows of two kinds, with repetitions, some on the one side, some on the other, some on both.
        let other = another(&batch, batch.num_rows(), seed);
        let row = |pick: &prop::sample::Index, new: bool| {
            if new { other.slice(pick.index(other.num_rows()), 1) } else { batch.slice(pick.index(batch.num_rows()), 1) }
        };
        let side = |here: bool| {
            let picked = picks.iter().filter(|(_, to_old, to_new)| if here { *to_old } else { *to_new });
            let mut all: Vec<RecordBatch> = picked.map(|(pick, to_old, _)| row(pick, !to_old)).collect();
            all.push(batch.slice(0, 1));
            arrow::compute::concat_batches(&batch.schema(), &all).expect("one schema")
        };
        let memory = Memory::default();
        let (a, b) = (side(true), side(false));
        let (old, new) = (version(&a, &lengths, &memory), version(&b, &[7], &memory));
        let forth = diff(base(&old), base(&new), &memory, &NoProgress).expect("intact");
        let back = diff(base(&new), base(&old), &memory, &NoProgress).expect("intact");
        prop_assert_eq!(forth.samples, Change { kept: back.samples.kept, added: back.samples.removed, removed: back.samples.added });
        prop_assert_eq!(forth.shards, Change { kept: back.shards.kept, added: back.shards.removed, removed: back.shards.added });
        prop_assert_eq!(forth.same_order, back.same_order);
        prop_assert_eq!(forth.same_order, rows_of(&a) == rows_of(&b));
        prop_assert_eq!(forth.samples.kept + forth.samples.removed, old.sample_count());
        prop_assert_eq!(forth.samples.kept + forth.samples.added, new.sample_count());
        let mut left = rows_of(&b);
        let kept = rows_of(&a).into_iter().filter(|row| {
            let found = left.iter().position(|other| other == row);
            found.map(|at| left.swap_remove(at)).is_some()
        });
        prop_assert_eq!(forth.samples.kept, kept.count() as u64);
        let same = diff(base(&old), base(&old), &memory, &NoProgress).expect("intact");
        prop_assert!(same.is_same_content() && same.shards.is_none());
    }

    #[test]
    fn a_damaged_byte_anywhere_is_found_and_mended_from_a_copy(
        batch in record_batch(80),
        lengths in lengths(),
        which: prop::sample::Index,
        at: usize,
        of_sidecar: bool,
    ) {
        let (memory, copy) = (Memory::default(), Memory::default());
        let manifest = version(&batch, &lengths, &memory);
        prop_assert_eq!(&version(&batch, &lengths, &copy), &manifest);
        let entry = &manifest.shards[which.index(manifest.shards.len())];
        let file = if of_sidecar { File::Sidecar } else { File::Shard };
        memory.flip(entry.id, file, at);
        let findings = check(entry, &memory);
        prop_assert!(matches!(findings.as_slice(), [one] if one.file == file), "{:?}", findings);
        let repair = Repair::new(&manifest, &findings, &memory, &memory).expect("room");
        repair.search_store(&copy, "the copy").expect("room");
        prop_assert!(repair.is_done());
        prop_assert_eq!(repair.finish().1, []);
        prop_assert_eq!(memory.get(entry.id, file), copy.get(entry.id, file));
    }
}

#[test]
fn shards_that_stay_whole_are_neither_read_nor_written() {
    let memory = Memory::default();
    let batch = table(0..64);
    let fine = version(&batch, &[16], &memory);
    let old = Manifest { shards: fine.shards[1..].to_vec(), ..fine };
    // The first two of three shards lose their files; cut into shards of the same size they are not missed.
    old.shards.iter().for_each(|entry| memory.remove(entry.id, File::Shard));
    let puts = memory.puts();
    let size = ByteSize(old.shards.iter().map(|entry| entry.row_bytes).max().expect("three"));
    let new = reshard(base(&old), size, None, &memory, 2, &memory, &NoProgress).expect("nothing is read");
    assert_eq!((new.id(), memory.puts()), (old.id(), puts));
    let error = reshard(base(&old), ByteSize(size.0 * 2), None, &memory, 2, &memory, &NoProgress)
        .expect_err("it is needed");
    assert!(
        error.to_string().contains("is missing") && error.to_string().contains("verify --repair"),
        "{error}"
    );
    assert!(reshard(base(&old), ByteSize(0), None, &memory, 2, &memory, &NoProgress).is_err());
}

#[test]
fn what_is_resharded_is_what_that_size_would_have_made() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("t.parquet");
    write_parquet(&path, &table(0..500));
    let memory = Memory::default();
    for mix in [Mix::Random, Mix::Sequential] {
        let (coarse, fine) = (
            ingested(&path, &config(mix.clone(), 20_000), &memory),
            ingested(&path, &config(mix, 1500), &memory),
        );
        let new =
            reshard(base(&coarse), ByteSize(1500), None, &memory, 2, &memory, &NoProgress).expect("intact");
        assert_eq!(new.shards, fine.shards);
        assert_eq!(settings(&new, None), settings(&fine, None), "and it continues with those settings");
        assert_ne!(new.id(), fine.id(), "but it says where it came from");
        assert_eq!(made_of(&new), Some(coarse.id()));
    }
}

#[test]
fn other_columns_are_other_samples() {
    let memory = Memory::default();
    let batch = table(0..10);
    let old = version(&batch, &[4], &memory);
    let new = version(&batch.project(&[0, 2, 1]).expect("its columns"), &[4], &memory);
    let found = diff(base(&old), base(&new), &memory, &NoProgress).expect("nothing is read");
    assert_eq!(found.samples, Change { kept: 0, added: 10, removed: 10 });
    let said: Vec<String> = found.schema.iter().map(ToString::to_string).collect();
    assert_eq!(said, ["the columns come as label, blob, text instead of label, text, blob"]);
    let fewer = version(&batch.project(&[0, 1]).expect("its columns"), &[4], &memory);
    let found = diff(base(&old), base(&fewer), &memory, &NoProgress).expect("nothing is read");
    assert_eq!(found.schema[0].to_string(), "column \"blob\" (Binary) is missing");
}

#[test]
fn a_bounded_difference_leaves_out_what_takes_too_many_digests() {
    let memory = Memory::default();
    let of = |labels, rows: usize| version(&table(labels), &[rows], &memory);
    let sidecar = |entry: &ShardEntry| read_sidecar(&memory, entry).map(Some);
    let within = |rows: u64, old: &Manifest, new: &Manifest| {
        diff_within(Bounds { rows, ..Bounds::NONE }, old, new, &sidecar, &|_| {}).expect("intact")
    };
    // Two hundred rows are in shards that only one of them has.
    let (old, new) = (of(0..100, 20), of(50..150, 20));
    let all = within(200, &old, &new);
    assert_eq!(all.samples, Some(Change { kept: 50, added: 50, removed: 50 }));
    assert_eq!((all.same_order, all.is_same_content()), (Some(false), Some(false)));
    let some = within(199, &old, &new);
    assert_eq!((some.samples, some.same_order, some.is_same_content()), (None, None, None));
    assert_eq!((all.left_out, some.left_out), (None, Some(LeftOut::Rows)));
    assert_eq!((some.shards, some.inputs), (all.shards, all.inputs));
    // The same shards in another order: their samples are the same, whose numbers take all digests.
    let turned = Manifest { shards: old.shards.iter().rev().cloned().collect(), ..old.clone() };
    let found = within(0, &old, &turned);
    assert_eq!(found.samples, Some(Change { kept: 100, added: 0, removed: 0 }));
    assert_eq!((found.same_order, found.is_same_content()), (None, None));
    assert_eq!(within(160, &old, &turned).is_same_content(), Some(false), "one shard is in its place");
    assert_eq!(within(0, &old, &old).is_same_content(), Some(true));
    assert_eq!(within(200, &old, &of(0..100, 25)).is_same_content(), Some(true));
}

#[test]
fn a_bounded_difference_leaves_out_what_takes_too_many_sidecars_or_too_long() {
    let memory = Memory::default();
    let of = |labels, rows: usize| version(&table(labels), &[rows], &memory);
    let reads = AtomicU64::new(0);
    // Time for this number of sidecars.
    let compared = |bounds: Bounds, time: u64, old: &Manifest, new: &Manifest| {
        reads.store(0, Relaxed);
        let sidecar = |entry: &ShardEntry| match reads.fetch_add(1, Relaxed) < time {
            true => read_sidecar(&memory, entry).map(Some),
            false => Ok(None),
        };
        diff_within(bounds, old, new, &sidecar, &|_| {}).expect("intact")
    };
    // Five shards on each side, and all differ.
    let (old, new) = (of(0..100, 20), of(50..150, 20));
    let shards = |shards: u64| Bounds { shards, ..Bounds::NONE };
    let all = compared(shards(10), 10, &old, &new);
    assert_eq!((all.samples, all.left_out), (Some(Change { kept: 50, added: 50, removed: 50 }), None));
    let few = compared(shards(9), 10, &old, &new);
    assert_eq!((few.samples, few.same_order, few.left_out), (None, None, Some(LeftOut::Shards)));
    assert_eq!((few.shards, few.inputs, reads.load(Relaxed)), (all.shards, all.inputs, 0), "none is read");
    let late = compared(Bounds::NONE, 7, &old, &new);
    assert_eq!((late.samples, late.same_order, late.left_out), (None, None, Some(LeftOut::Time)));
    assert_eq!((late.shards, late.is_same_content()), (all.shards, None));
    // The same samples in other shards: nine sidecars, and once more for the order.
    let same = of(0..100, 25);
    assert_eq!(compared(Bounds::NONE, 18, &old, &same).is_same_content(), Some(true));
    let late = compared(Bounds::NONE, 12, &old, &same);
    assert_eq!(late.samples, Some(Change { kept: 100, added: 0, removed: 0 }));
    assert_eq!((late.same_order, late.left_out), (None, Some(LeftOut::Time)));
    // The same shards in another order: none differs, and four are elsewhere, on each side.
    let turned = Manifest { shards: old.shards.iter().rev().cloned().collect(), ..old.clone() };
    assert_eq!(compared(shards(8), 18, &old, &turned).same_order, Some(false));
    let few = compared(shards(7), 18, &old, &turned);
    assert_eq!((few.same_order, few.left_out), (None, Some(LeftOut::Shards)));
    assert!(few.samples.is_some());
}

#[test]
fn drift_of_labels_is_between_none_and_all() {
    let memory = Memory::default();
    let of = |labels| version(&table(labels), &[100], &memory);
    let (low, high, both) = (of(0..10), of(10..20), of(0..20));
    assert_eq!(drift(&low, &low).label_distance, Some(0.0));
    assert_eq!(drift(&low, &high).label_distance, Some(1.0));
    let half = drift(&low, &both);
    assert!((half.label_distance.expect("both have labels") - 0.5).abs() < 1e-9);
    let share = &half.labels.expect("both have labels")[0];
    assert_eq!((share.label.as_str(), share.old, share.new), ("0", 1, 1));
}

#[test]
fn resharding_measures_shards_from_before_they_were_measured() {
    let memory = Memory::default();
    let measured = version(&table(0..64), &[16], &memory);
    let mut old = measured.clone();
    old.shards.iter_mut().for_each(|shard| shard.statistics = None);
    let size = ByteSize(old.shards.iter().map(|entry| entry.row_bytes).max().expect("four"));
    let new = reshard(base(&old), size, None, &memory, 2, &memory, &NoProgress).expect("intact");
    assert_eq!(new.shards, measured.shards, "the same shards, with the same statistics");
}

#[test]
fn resharding_can_change_the_compression_alone() {
    let memory = Memory::default();
    let old = version(&table(0..300), &[50], &memory);
    let largest = ByteSize(old.shards.iter().map(|entry| entry.row_bytes).max().expect("six"));
    let cut = |manifest: &Manifest, to: &str| {
        let to = Some(to.parse().expect("a compression"));
        reshard(base(manifest), largest, to, &memory, 2, &memory, &NoProgress).expect("intact")
    };
    let small = cut(&old, "zstd");
    assert!(small.bytes() < old.bytes() && small.shards.len() == old.shards.len());
    assert_eq!(rows(&small, &memory), rows_of(&table(0..300)));
    assert_eq!(cut(&small, "none").shards, old.shards);
    assert_eq!(cut(&small, "zstd").id(), small.id(), "nothing changes");
    // A compressed shard is made again from uncompressed rows.
    let lost = small.shards[2].id;
    memory.remove(lost, File::Shard);
    let findings = check(&small.shards[2], &memory);
    let repair = Repair::new(&small, &findings, &memory, &memory).expect("room");
    repair.search_version(&old, &memory, "the other", &NoProgress).expect("room");
    assert_eq!(repair.finish(), (vec![Mended { shard: lost, from: "the other".to_owned() }], Vec::new()));
    assert_eq!(check(&small.shards[2], &memory), []);
}

#[test]
fn drift_of_numbers_is_in_standard_deviations() {
    let memory = Memory::default();
    let of = |labels| version(&table(labels), &[7], &memory);
    let (low, high) = (of(0..100), of(100..200));
    let found = drift(&low, &high);
    let columns = found.columns.expect("both were measured");
    let label = columns.iter().find(|column| column.column == "label").expect("numbers");
    // Both have the deviation of 0 to 99.
    let deviation = ((100.0f64 * 100.0 - 1.0) / 12.0).sqrt();
    assert!((label.difference.expect("they scatter") - 100.0 / deviation).abs() < 1e-9, "{label:?}");
    assert_eq!((label.old.min, label.new.max, label.measured), (Some(0.0), Some(199.0), "values"));
    let blob = columns.iter().find(|column| column.column == "blob").expect("lengths");
    assert_eq!((blob.difference, blob.old.mean, blob.measured), (Some(0.0), Some(40.0), "lengths"));
    let [before, after] = found.row_bytes.expect("both were measured");
    assert!(before.p50 < after.p50, "longer texts");
}
