//! Parts and manifests by themselves; trainings that go on from them are tested with [`train`](crate::train).

use std::collections::BTreeMap;

use proptest::prelude::*;
use shardd_client::catalog::StorePlace;
use shardfmt::Digest;

use super::part::{cut, decode, encode, share};
use super::*;
use crate::collective::{Collective, ThreadCollective, spawn};
use crate::reduce::VirtualRanks;

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

proptest! {
    #[test]
    fn shares_cover_all_numbers_once_in_order(count in 0usize..5_000, virtual_ranks in 1u32..70) {
        let mut next = 0;
        for rank in 0..virtual_ranks {
            let share = share(count, virtual_ranks, rank);
            prop_assert_eq!(share.start, next);
            prop_assert!(share.len() <= count / virtual_ranks as usize + 1, "equal shares");
            next = share.end;
        }
        prop_assert_eq!(next, count);
    }

    #[test]
    fn what_is_cut_from_slices_is_what_lies_there(
        lengths in prop::collection::vec(0usize..20, 0..8),
        from in 0usize..100,
        length in 0usize..100,
    ) {
        let all: Vec<f32> = (0..lengths.iter().sum::<usize>()).map(|number| number as f32).collect();
        let mut rest = &all[..];
        let slices: Vec<&[f32]> = lengths.iter().map(|&length| rest.split_off(..length).unwrap()).collect();
        let start = from.min(all.len());
        let end = (start + length).min(all.len());
        prop_assert_eq!(cut(&slices, start..end), &all[start..end]);
    }

    #[test]
    fn a_part_keeps_every_bit(
        common in prop::collection::vec(any::<u32>(), 0..50),
        statistics in prop::collection::vec(any::<u32>(), 0..50),
        cut_at in any::<prop::sample::Index>(),
    ) {
        let numbers = |bits: &[u32]| bits.iter().map(|&bits| f32::from_bits(bits)).collect::<Vec<f32>>();
        let bytes = encode(&numbers(&common), &numbers(&statistics));
        prop_assert_eq!(&bytes, &encode(&numbers(&common), &numbers(&statistics)));
        let [read, own] = decode(&bytes, common.len(), statistics.len()).unwrap();
        prop_assert_eq!((bits(&read), bits(&own)), (common.clone(), statistics.clone()));
        prop_assert!(decode(&bytes, common.len() + 1, statistics.len()).is_err());
        prop_assert!(decode(&bytes[..cut_at.index(bytes.len())], common.len(), statistics.len()).is_err());
    }

    #[test]
    fn numbers_in_json_keep_every_bit(number in any::<u64>().prop_map(f64::from_bits)) {
        let json = serde_json::to_string(&Exact(number)).unwrap();
        prop_assert_eq!(serde_json::from_str::<Exact>(&json).unwrap(), Exact(number));
    }

    #[test]
    fn what_some_ranks_write_any_others_read(
        lengths in prop::collection::vec(0usize..40, 1..5),
        virtual_ranks in 1u32..8,
        writers in 1u32..8,
        readers in 1u32..8,
    ) {
        let (writers, readers) = (writers.min(virtual_ranks), readers.min(virtual_ranks));
        let directory = tempfile::tempdir().unwrap();
        let shelf = shelf(directory.path(), "any");
        let written = manifest(&lengths, virtual_ranks, 7);
        let ids = spawn(writers, |collective| write(collective, &shelf, &written, &lengths));
        let read = spawn(readers, |mut collective: ThreadCollective| {
            (collective.rank(), load(&mut collective, &shelf, &Resume::Auto).unwrap().unwrap())
        });
        let expected: Vec<f32> = (0..written.layout.common()).map(common_number).collect();
        for (rank, checkpoint) in read {
            prop_assert_eq!(&checkpoint.state.common, &expected);
            let hosted = VirtualRanks { count: virtual_ranks, world: readers }.of(rank);
            let own = hosted.map(|rank| (rank, statistics_of(rank, written.layout.statistics())));
            prop_assert_eq!(checkpoint.state.statistics, own.collect::<Vec<_>>());
            prop_assert_eq!(Some(checkpoint.id), ids[0]);
        }
        // The name does not tell who wrote it.
        let alone = tempfile::tempdir().unwrap();
        let shelf = self::shelf(alone.path(), "any");
        let by_one = spawn(1, |collective| write(collective, &shelf, &written, &lengths));
        prop_assert_eq!(by_one[0], ids[0]);
    }
}

fn shelf(directory: &std::path::Path, run: &str) -> Shelf {
    Shelf::open(&StorePlace::Directory(directory.to_owned()), &run.parse().unwrap()).unwrap()
}

fn common_number(index: usize) -> f32 {
    index as f32 * 0.5 - 3.0
}

fn statistics_of(rank: u32, count: usize) -> Vec<f32> {
    (0..count).map(|index| rank as f32 * 100.0 + index as f32).collect()
}

fn manifest(lengths: &[usize], virtual_ranks: u32, step: u64) -> Manifest {
    let block = |&weights: &usize| BlockLayout {
        parameters: vec![("weight".to_owned(), vec![weights])],
        weights,
        first: weights,
        second: 0,
        updates: 3,
        statistics: 2,
    };
    Manifest {
        format: Manifest::FORMAT,
        run: "any".to_owned(),
        step,
        place: Place { epoch: 1, position: 20 },
        virtual_ranks,
        settings: BTreeMap::from([("seed".to_owned(), "1".to_owned())]),
        progress: crate::train::ProgressSoFar::default(),
        layout: Layout { blocks: lengths.iter().map(block).collect() },
        parts: Vec::new(),
    }
}

/// As one rank; what there is afterwards.
fn write(
    collective: ThreadCollective,
    shelf: &Shelf,
    manifest: &Manifest,
    lengths: &[usize],
) -> Option<CheckpointId> {
    let ranks = VirtualRanks { count: manifest.virtual_ranks, world: collective.world() };
    let hosted = ranks.of(collective.rank());
    let comm = std::sync::Arc::new(crate::reduce::Comm::new(Box::new(collective)));
    let checkpoints = Checkpoints { shelf: shelf.clone(), every_steps: None, every: None, keep: 2 };
    let mut keeper = Keeper::new(comm, ranks, Some(checkpoints), StopFlag::default(), None, Vec::new());
    let numbers: Vec<f32> = (0..manifest.layout.common()).map(common_number).collect();
    let mut rest = &numbers[..];
    let snapshot = || Snapshot {
        before: None,
        manifest: manifest.clone(),
        // Cut as an engine has them: not where the parts are.
        common: lengths.iter().map(|&length| rest.split_off(..2 * length).unwrap()).collect(),
        statistics: hosted.map(|rank| statistics_of(rank, manifest.layout.statistics())).collect(),
    };
    keeper.finish(manifest.step, || Ok(snapshot())).unwrap();
    assert_eq!(keeper.last_step(), Some(manifest.step));
    shelf.list().unwrap().first().copied()
}

/// Checkpoints of these steps by one rank.
fn written(directory: &std::path::Path, steps: &[u64]) -> (Shelf, Vec<CheckpointId>) {
    let shelf = shelf(directory, "any");
    let write = |&step: &u64| {
        let manifest = manifest(&[30 + step as usize, 5], 3, step);
        let lengths = [30 + step as usize, 5];
        spawn(1, |collective| write(collective, &shelf, &manifest, &lengths)).remove(0).unwrap()
    };
    let ids = steps.iter().map(write).collect();
    (shelf, ids)
}

fn files(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let folder = |name: &str| directory.join("runs/any").join(name);
    let entries = ["checkpoints", "parts"].map(|name| std::fs::read_dir(folder(name)).unwrap());
    entries.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
}

fn loaded(shelf: &Shelf, resume: &Resume) -> Result<Option<Checkpoint>, String> {
    let mut all = spawn(2, |mut collective: ThreadCollective| {
        load(&mut collective, shelf, resume).map_err(|error| crate::train::chain(&error))
    });
    let (one, other) = (all.remove(1), all.remove(0));
    assert_eq!(one.is_ok(), other.is_ok(), "{one:?} but {other:?}");
    assert_eq!(
        one.as_ref().ok().map(|it| it.as_ref().map(|it| it.id)),
        other.as_ref().ok().map(|it| it.as_ref().map(|it| it.id))
    );
    other
}

#[test]
fn the_newest_stay_and_nothing_is_left_of_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let (shelf, ids) = written(directory.path(), &[1, 2, 3, 4]);
    assert_eq!(shelf.list().unwrap(), [ids[3], ids[2]]);
    assert_eq!(files(directory.path()).len(), 2 + 2 * 3, "two manifests, three parts each");
    assert_eq!(loaded(&shelf, &Resume::Auto).unwrap().unwrap().id, ids[3]);
    assert_eq!(loaded(&shelf, &Resume::Step(3)).unwrap().unwrap().superseded, [ids[3]]);
    let error = loaded(&shelf, &Resume::Step(2)).unwrap_err();
    assert!(error.contains("no checkpoint 2") && error.contains("4, 3"), "{error}");
    let error = loaded(&shelf, &Resume::Never).unwrap_err();
    assert!(error.contains("another --run") && error.contains(&ids[3].short()), "{error}");
    let empty = self::shelf(directory.path(), "another");
    assert_eq!(loaded(&empty, &Resume::Auto), Ok(None));
    assert_eq!(loaded(&empty, &Resume::Never), Ok(None));
}

#[test]
fn what_is_damaged_is_passed_over_for_the_one_before_and_if_none_is_left_said_so() {
    type Damage = fn(&std::path::Path);
    let damages: [(&str, Damage); 3] = [
        ("cut short", |file| {
            let bytes = std::fs::read(file).unwrap();
            std::fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("a bit", |file| {
            let mut bytes = std::fs::read(file).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(file, bytes).unwrap();
        }),
        ("gone", |file| std::fs::remove_file(file).unwrap()),
    ];
    for (what, damage) in damages {
        for kind in ["manifest", "part"] {
            let directory = tempfile::tempdir().unwrap();
            let (shelf, ids) = written(directory.path(), &[1, 2]);
            let file = |id: CheckpointId| {
                let part = shelf.manifest(id).unwrap().parts[1].digest;
                directory.path().join("runs/any").join(match kind {
                    "manifest" => format!("checkpoints/{id}.json"),
                    _ => format!("parts/{part}.safetensors"),
                })
            };
            let (newer, older) = (file(ids[1]), file(ids[0]));
            damage(&newer);
            let found = loaded(&shelf, &Resume::Auto).unwrap().unwrap();
            assert_eq!(found.id, ids[0], "{kind} {what}");
            damage(&older);
            if kind == "manifest" && what == "gone" {
                assert_eq!(loaded(&shelf, &Resume::Auto), Ok(None), "there is no checkpoint any more");
                continue;
            }
            let error = loaded(&shelf, &Resume::Auto).unwrap_err();
            assert!(error.contains("no checkpoint of run any") && error.contains("another --run"), "{error}");
        }
    }
}

#[test]
fn a_manifest_of_later_programs_or_of_another_name_is_told_apart_from_a_damaged_one() {
    let parts = vec![Part { digest: Digest::of(b"part"), bytes: 4 }; 3];
    let manifest = Manifest { parts, ..manifest(&[4], 3, 9) };
    let (id, bytes) = (manifest.id(), manifest.to_bytes());
    assert_eq!(Manifest::from_bytes(id, &bytes).unwrap(), manifest);
    assert_eq!(id.to_string().parse(), Ok(id));
    let text = String::from_utf8(bytes).unwrap();
    let later = text.replace("\"format\":1", "\"format\":2");
    let error = Manifest::from_bytes(id, later.as_bytes()).unwrap_err();
    assert!(matches!(error, CheckpointError::TooNew { found: 2, .. }), "{error}");
    for other in [text.replace("\"step\":9", "\"step\":8"), text.replace("20", "21"), text[..60].to_owned()] {
        let error = Manifest::from_bytes(id, other.as_bytes()).unwrap_err();
        assert!(matches!(error, CheckpointError::Damaged { .. }), "{error}");
    }
}

#[test]
fn the_name_of_a_checkpoint_stays_what_it_was() {
    let parts =
        (0..2u8).map(|part| Part { digest: Digest::of(&encode(&[1.0, -0.0], &[f32::from(part)])), bytes: 1 });
    let manifest = Manifest { parts: parts.collect(), ..manifest(&[2], 2, 12) };
    assert_eq!(manifest.id().to_string(), GOLDEN, "{}", String::from_utf8(manifest.to_bytes()).unwrap());
}

const GOLDEN: &str = "000000000012-b5ba1ba103d336fc806ad2623d3d7689ab0feef16114d53373cacef719fd39ff";
