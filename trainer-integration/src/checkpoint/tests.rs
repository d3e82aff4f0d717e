//! Objects and manifests by themselves; tests of [`train`](crate::train) resume from them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use shardd_store::catalog::StorePlace;
use shardfmt::Digest;

use super::codec::{decode, encode_piece, encode_statistics};
use super::manifest::PARTS;
use super::objects::{Object, share};
use super::pieces::{GROUP, PIECE, SMALL, length, pieces};
use super::plan::turns;
use super::*;
use crate::collective::{Collective, ThreadCollective, spawn};
use crate::exact::Exact;
use crate::ledger::Ledger;
use crate::reduce::{Comm, Partials, VirtualRanks};
use crate::weights::{Named, Weights};
use crate::zero::mesh::Mesh;
use crate::zero::{Slicing, Zero};

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// A block of these numbers of trained and frozen parameters, with an optimizer of two moments after its
/// first step, or before it.
fn block(index: usize, (trained, frozen): (usize, usize), has_moments: bool) -> BlockLayout {
    let moments = if has_moments { trained } else { 0 };
    let name = |what: &str| format!("{index}.{what}");
    BlockLayout {
        parameters: vec![(name("trained"), vec![trained]), (name("frozen"), vec![frozen])],
        weights: trained + frozen,
        trained,
        first: moments,
        second: moments,
        updates: 3,
        statistics: 2,
        buffers: vec![(name("mean"), vec![1]), (name("variance"), vec![1])],
    }
}

fn layout(blocks: &[(usize, usize)], has_moments: bool) -> Layout {
    let blocks = blocks.iter().enumerate();
    Layout { blocks: blocks.map(|(index, &lengths)| block(index, lengths, has_moments)).collect() }
}

/// Lengths around every cut.
fn length_of_any_kind() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 0usize..40,
        2 => 1_000usize..9_000,
        2 => SMALL - 2..SMALL + 2,
        1 => GROUP - 2..GROUP + 2,
        1 => PIECE - 2..PIECE + 2,
        1 => 2 * PIECE..3 * PIECE,
    ]
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let block = (length_of_any_kind(), length_of_any_kind());
    (prop::collection::vec(block, 1..8), any::<bool>()).prop_map(|(blocks, has)| layout(&blocks, has))
}

/// A layout whose numbers are soon written.
fn short_layout() -> impl Strategy<Value = Layout> {
    let length = prop_oneof![4 => 0usize..40, 3 => 1_000usize..5_000, 1 => SMALL - 2..SMALL + 2];
    let block = (length.clone(), length);
    (prop::collection::vec(block, 1..5), any::<bool>()).prop_map(|(blocks, has)| layout(&blocks, has))
}

/// Any slices, shared by any groups that these ranks can form.
fn any_holding(worlds: &'static [u32]) -> impl Strategy<Value = Holding> {
    let group = (prop::sample::select(worlds), any::<prop::sample::Index>());
    (group, any::<bool>(), any::<bool>()).prop_map(|((world, index), weights, moments)| {
        let sizes: Vec<u32> = (1..=world).filter(|size| world.is_multiple_of(*size)).collect();
        let size = NonZeroU32::new(sizes[index.index(sizes.len())]);
        Holding::of(&Mesh::new(&vec![0; world as usize], size, 0).unwrap(), weights, moments)
    })
}

fn all_ranks(zero: Zero, world: u32) -> Holding {
    Holding::needed(zero.into(), &vec![0; world as usize], 0)
}

fn any_zero() -> impl Strategy<Value = Zero> {
    prop::sample::select(&Zero::ALL[..])
}

proptest! {
    #[test]
    fn pieces_are_every_number_once_and_neither_large_nor_many(layout in any_layout()) {
        let mut seen: BTreeMap<(usize, Kind), Vec<std::ops::Range<usize>>> = BTreeMap::new();
        let pieces = pieces(&layout);
        for piece in &pieces {
            prop_assert!((1..=PIECE).contains(&length(piece)));
            prop_assert!(piece.len() == 1 || length(piece) <= GROUP);
            prop_assert!(piece.len() == 1 || piece.iter().all(|stretch| stretch.range.len() < SMALL));
            let is_frozen = |stretch: &Stretch| {
                stretch.kind == Kind::Weights && stretch.range.start >= layout.blocks[stretch.block].trained
            };
            let frozen = piece.iter().filter(|stretch| is_frozen(stretch)).count();
            prop_assert!(frozen == 0 || frozen == piece.len(), "what never changes lies apart");
            for Stretch { block, kind, range } in piece {
                seen.entry((*block, *kind)).or_default().push(range.clone());
            }
        }
        let mut most = 0;
        for (index, block) in layout.blocks.iter().enumerate() {
            for kind in Kind::ALL {
                let mut ranges = seen.remove(&(index, kind)).unwrap_or_default();
                ranges.sort_by_key(|range| range.start);
                let mut next = 0;
                for range in ranges {
                    prop_assert_eq!(range.start, next);
                    next = range.end;
                }
                prop_assert_eq!(next, block.count(kind));
                most += block.count(kind);
            }
        }
        prop_assert!(seen.is_empty());
        // Of any two groups that follow each other, one is more than half full; a long row has a short end.
        let rows = 4 * layout.blocks.len();
        let long = seen_long(&layout);
        prop_assert!(pieces.len() <= long.len() + most / PIECE + 2 * (most / GROUP) + 4, "{} of {rows} rows", pieces.len());
    }

    #[test]
    fn what_is_written_is_brought_together_from_who_has_it_and_evenly(
        layout in any_layout(), holding in any_holding(&[1, 2, 3, 4, 5, 6, 7, 8]),
    ) {
        let world = holding.world();
        let pieces = pieces(&layout);
        let turns = turns(&holding, &layout, &pieces);
        let mut written = vec![0; world as usize];
        for (piece, turn) in pieces.iter().zip(&turns) {
            let mut covered: Vec<_> = turn.sources.iter().map(|(_, run)| run.clone()).collect();
            covered.sort_by_key(|run| run.start);
            let mut next = 0;
            for run in covered {
                prop_assert_eq!(run.start, next);
                next = run.end;
            }
            prop_assert_eq!(next, length(piece));
            let has = |rank: u32| holding.runs(&layout, piece, rank);
            for (rank, run) in &turn.sources {
                prop_assert!(has(*rank).iter().any(|held| held.start <= run.start && run.end <= held.end));
            }
            let count = |rank: u32| has(rank).iter().map(ExactSizeIterator::len).sum::<usize>();
            prop_assert!((0..world).all(|rank| count(rank) <= count(turn.rank)), "who has most of it");
            if holding == Holding::everything(world) {
                prop_assert_eq!(&turn.sources, &vec![(turn.rank, 0..length(piece))], "nothing is sent");
            }
            written[turn.rank as usize] += length(piece);
        }
        if holding == Holding::everything(world) {
            let (least, most) = (written.iter().min().unwrap(), written.iter().max().unwrap());
            prop_assert!(most - least <= PIECE, "{written:?}");
        }
    }

    #[test]
    fn an_object_keeps_every_bit(
        numbers in prop::collection::vec(any::<u32>(), 2..50),
        own in prop::collection::vec(any::<u32>(), 0..50),
        cut_at in any::<prop::sample::Index>(),
    ) {
        let floats = |bits: &[u32]| bits.iter().map(|&bits| f32::from_bits(bits)).collect::<Vec<f32>>();
        let middle = cut_at.index(numbers.len() - 1) + 1;
        let stretch = |block, range| Stretch { block, kind: Kind::First, range };
        let piece = vec![stretch(10, 7..7 + middle), stretch(2, 0..numbers.len() - middle)];
        let bytes = encode_piece(&piece, &floats(&numbers));
        prop_assert_eq!(&bytes, &encode_piece(&piece, &floats(&numbers)));
        let part = Part::of(&bytes);
        let tensors = piece.iter().map(|stretch| (stretch.name(), vec![stretch.clone()])).collect();
        let object = Object { part, tensors, statistics: None };
        let (read, none) = decode(&bytes, &object).unwrap();
        prop_assert_eq!((bits(&read), none.len()), (numbers, 0));
        prop_assert!(decode(&bytes[..cut_at.index(bytes.len())], &object).is_err());
        let bytes = encode_statistics(&floats(&own));
        let object = Object { part, tensors: Vec::new(), statistics: Some((0, own.len())) };
        prop_assert_eq!(bits(&decode(&bytes, &object).unwrap().1), own.clone());
        let object = Object { part, tensors: Vec::new(), statistics: Some((0, own.len() + 1)) };
        prop_assert!(decode(&bytes, &object).is_err());
    }

    #[test]
    fn numbers_in_json_keep_every_bit(number in any::<u64>().prop_map(f64::from_bits)) {
        let json = serde_json::to_string(&Exact(number)).unwrap();
        prop_assert_eq!(serde_json::from_str::<Exact>(&json).unwrap(), Exact(number));
    }
}

/// Rows that have objects of their own.
fn seen_long(layout: &Layout) -> Vec<usize> {
    let rows = layout
        .blocks
        .iter()
        .flat_map(|block| [block.trained, block.weights - block.trained, block.first, block.second]);
    rows.filter(|row| *row >= SMALL).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn what_some_ranks_write_at_any_stage_any_others_read_at_any_other(
        layout in short_layout(), writers in any_holding(&[1, 2, 3, 5, 8]), readers in 1u32..9, read_by in any_zero(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let shelf = shelf(directory.path(), "any");
        let written = manifest(&layout, 8, 7);
        let ids = spawn(writers.world(), |collective| write(collective, &shelf, &written, &writers));
        let read = spawn(readers, |mut collective: ThreadCollective| {
            (collective.rank(), load(&mut collective, &shelf, &Resume::Auto, read_by).unwrap().unwrap())
        });
        for (rank, checkpoint) in read {
            let holding = all_ranks(read_by, readers);
            let asked = holding.all_of(&layout, rank);
            prop_assert_eq!(asked.len(), checkpoint.state.numbers.len());
            for (Stretch { block, kind, range }, found) in asked.into_iter().zip(&checkpoint.state.numbers) {
                prop_assert_eq!((found.block, found.kind, found.range()), (block, kind, range.clone()));
                let values: Vec<f32> = range.map(|index| number(block, kind, index)).collect();
                prop_assert_eq!(bits(&found.values), bits(&values));
            }
            let hosted = VirtualRanks { count: 8, world: readers }.of(rank);
            let own = hosted.map(|rank| (rank, statistics_of(rank, written.layout.statistics())));
            prop_assert_eq!(checkpoint.state.statistics, own.collect::<Vec<_>>());
            prop_assert_eq!(Some(checkpoint.id), ids[0]);
        }
        // The name does not tell who wrote it.
        let alone = tempfile::tempdir().unwrap();
        let shelf = self::shelf(alone.path(), "any");
        let by_one = spawn(1, |collective| write(collective, &shelf, &written, &Holding::everything(1)));
        prop_assert_eq!(by_one[0], ids[0]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_left_is_handed_to_any_ranks_if_it_is_whole_and_else_to_none(
        mut layout in short_layout(), givers in any_holding(&[1, 2, 3, 4, 6]), has_statistics: bool,
        is_lost in prop::collection::vec(prop::bool::weighted(0.2), 6), ahead in 0usize..8, takers in 1u32..9, taken_by in any_zero(),
    ) {
        if !has_statistics {
            layout.blocks.iter_mut().for_each(|block| block.statistics = 0);
        }
        let hosts = VirtualRanks { count: 8, world: givers.world() };
        let count = layout.statistics();
        let left = (0..givers.world()).filter(|giver| !is_lost[*giver as usize]).take(takers as usize);
        // One may have come a step further than the others.
        let remains: Vec<PeerCheckpoint> = left.enumerate().map(|(index, giver)| PeerCheckpoint {
            manifest: manifest(&layout, 8, if index == ahead { 8 } else { 7 }),
            state: State {
                numbers: held_by(&layout, &givers, giver),
                statistics: hosts.of(giver).map(|of| (of, statistics_of(of, count))).collect(),
                residuals: Vec::new(),
            },
        }).collect();
        let is_whole = |step: u64| {
            let of_step: Vec<&State> = remains.iter().filter(|it| it.manifest.step == step).map(|it| &it.state).collect();
            let has = |block, kind, index| of_step.iter().any(|state| state.has(block, kind, &(index..index + 1)));
            let all = layout.blocks.iter().enumerate().all(|(block, of)| {
                Kind::ALL.into_iter().all(|kind| (0..of.count(kind)).all(|index| has(block, kind, index)))
            });
            let hosted: usize = of_step.iter().map(|state| state.statistics.len()).sum();
            all && !of_step.is_empty() && (!has_statistics || hosted == 8)
        };
        let expected = [8, 7].into_iter().find(|step| is_whole(*step));
        let handed = spawn(takers, |mut collective: ThreadCollective| {
            let rank = collective.rank();
            let mut remains = remains.get(rank as usize).cloned();
            (rank, hand_over(&mut collective, None, &mut remains, taken_by, None).unwrap())
        });
        for (rank, handed) in handed {
            prop_assert_eq!(handed.as_ref().map(|it| it.manifest.step), expected);
            let Some(Checkpoint { state, .. }) = handed else { continue };
            for (Stretch { block, kind, range }, found) in
                all_ranks(taken_by, takers).all_of(&layout, rank).into_iter().zip(&state.numbers)
            {
                prop_assert_eq!((found.block, found.kind, found.range()), (block, kind, range.clone()));
                let values: Vec<f32> = range.map(|index| number(block, kind, index)).collect();
                prop_assert_eq!(bits(&found.values), bits(&values));
            }
            let hosted = VirtualRanks { count: 8, world: takers }.of(rank);
            let own: Vec<_> = hosted.map(|rank| (rank, statistics_of(rank, count))).collect();
            prop_assert_eq!(state.statistics, own);
        }
    }
}

fn shelf(directory: &std::path::Path, run: &str) -> CheckpointStore {
    CheckpointStore::open(&StorePlace::Directory(directory.to_owned()), &run.parse().unwrap()).unwrap()
}

/// The number at a place in any training of these tests.
fn number(block: usize, kind: Kind, index: usize) -> f32 {
    (block * 1_000 + index * 10 + kind as usize) as f32 * 0.5 - 3.0
}

fn statistics_of(rank: u32, count: usize) -> Vec<f32> {
    (0..count).map(|index| (rank as f32 + 1.0) / (index as f32 + 3.0)).collect()
}

fn manifest(layout: &Layout, virtual_ranks: u32, step: u64) -> Manifest {
    Manifest {
        format: Manifest::FORMAT,
        run: "any".to_owned(),
        step,
        place: Place { epoch: 1, position: 20 },
        virtual_ranks,
        settings: BTreeMap::from([("seed".to_owned(), "1".to_owned())]),
        progress: crate::progress::ProgressSoFar::default(),
        layout: layout.clone(),
        pieces: Vec::new(),
        statistics: Vec::new(),
        residuals: Vec::new(),
        parts: Vec::new(),
    }
}

/// A rank's state, in more stretches than it need be, as an engine has it.
fn held_by(layout: &Layout, holding: &Holding, rank: u32) -> Vec<Numbers> {
    let numbers = |Stretch { block, kind, range }: Stretch| {
        let middle = range.start + range.len() / 3;
        [range.start..middle, middle..range.end].map(|range| Numbers {
            block,
            kind,
            start: range.start,
            values: range.map(|index| number(block, kind, index)).collect(),
        })
    };
    holding.all_of(layout, rank).into_iter().flat_map(numbers).collect()
}

/// A keeper of one rank.
fn keeper(collective: ThreadCollective, shelf: &CheckpointStore, ranks: VirtualRanks) -> CheckpointManager {
    keeper_of(Arc::new(Comm::new(Box::new(collective))), shelf, ranks)
}

fn keeper_of(comm: Arc<Comm>, shelf: &CheckpointStore, ranks: VirtualRanks) -> CheckpointManager {
    let checkpoints = Checkpoints { shelf: shelf.clone(), every_steps: None, every: None, keep: 2 };
    CheckpointManager::new(comm, ranks, Slicing::default(), Some(checkpoints), StopFlag::default(), None)
}

fn snapshot<'a>(
    manifest: &Manifest,
    holding: &Holding,
    numbers: &'a [Numbers],
    hosted: std::ops::Range<u32>,
) -> Snapshot<'a> {
    let held =
        |it: &'a Numbers| Held { block: it.block, kind: it.kind, start: it.start, numbers: &it.values };
    Snapshot {
        before: None,
        ledger: Ledger::default(),
        manifest: manifest.clone(),
        holding: holding.clone(),
        held: numbers.iter().map(held).collect(),
        residual: None,
        statistics: hosted.map(|rank| statistics_of(rank, manifest.layout.statistics())).collect(),
    }
}

/// As one rank; what there is afterwards.
fn write(
    collective: ThreadCollective,
    shelf: &CheckpointStore,
    manifest: &Manifest,
    holding: &Holding,
) -> Option<CheckpointId> {
    let (rank, world) = (collective.rank(), collective.world());
    let ranks = VirtualRanks { count: manifest.virtual_ranks, world };
    let numbers = held_by(&manifest.layout, holding, rank);
    let mut keeper = keeper(collective, shelf, ranks);
    keeper.finish(manifest.step, || Ok(snapshot(manifest, holding, &numbers, ranks.of(rank)))).unwrap();
    assert_eq!(keeper.last_step(), Some(manifest.step));
    shelf.list().unwrap().first().copied()
}

#[test]
fn long_blocks_are_cut_and_come_back_to_any_ranks() {
    let layout = layout(&[(2 * PIECE + 12_345, 0), (10, 20), (SMALL, PIECE + 1)], true);
    let written = manifest(&layout, 3, 4);
    let mut ids = Vec::new();
    for (world, zero) in [(1, Zero::Nothing), (3, Zero::Moments), (2, Zero::Parameters)] {
        let directory = tempfile::tempdir().unwrap();
        let shelf = shelf(directory.path(), "any");
        ids.extend(spawn(world, |collective| write(collective, &shelf, &written, &all_ranks(zero, world))));
        let manifest = shelf.manifest(ids.last().unwrap().unwrap()).unwrap();
        // Three pieces of each of three kinds, one of each and two frozen ones, and a group of each sort.
        assert_eq!(manifest.pieces.len(), 3 * 3 + 3 + 2 + 2);
        for state in spawn(3, |mut collective: ThreadCollective| {
            let state = load(&mut collective, &shelf, &Resume::Auto, Zero::Gradients).unwrap().unwrap().state;
            (collective.rank(), state)
        }) {
            let found = &state.1.numbers;
            let expected = held_by(&layout, &all_ranks(Zero::Gradients, 3), state.0);
            let flat = |of: &[Numbers]| of.iter().flat_map(|it| it.values.clone()).collect::<Vec<f32>>();
            assert!(flat(found) == flat(&expected), "rank {}", state.0);
        }
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[test]
fn a_slow_store_is_waited_for_with_word_to_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let shelf = shelf(directory.path(), "any");
    let layout = layout(&[(10, 0)], true);
    let (written, holding) = (manifest(&layout, 2, 1), Holding::everything(2));
    let (release, before) = tokio::sync::oneshot::channel();
    let (release, before) = (Mutex::new(Some(release)), Mutex::new(Some(before)));
    let take = |rank: u32| if rank == 0 { before.lock().unwrap().take() } else { None };
    spawn(2, |collective: ThreadCollective| {
        let rank = collective.rank();
        let comm = Arc::new(Comm::new(Box::new(collective)));
        let ranks = VirtualRanks { count: 2, world: 2 };
        let numbers = held_by(&layout, &holding, rank);
        let mut keeper = keeper_of(Arc::clone(&comm), &shelf, ranks);
        std::thread::scope(|scope| {
            if rank == 1 {
                // Nothing is put before rank 1 has heard of rank 0 several times since it began to wait.
                scope.spawn(|| {
                    let sent = || comm.run(|collective| Ok(collective.bytes_sent())).unwrap();
                    let (mut last, mut words) = (sent(), 0);
                    while words < 4 {
                        let now = sent();
                        words += u32::from(now > last);
                        last = now;
                    }
                    release.lock().unwrap().take().unwrap().send(()).unwrap();
                });
            }
            let snapshot = || {
                Ok(Snapshot { before: take(rank), ..snapshot(&written, &holding, &numbers, ranks.of(rank)) })
            };
            keeper.finish(1, snapshot).unwrap();
            assert_eq!(keeper.last_step(), Some(1));
        });
    });
}

#[test]
fn copies_are_counted_until_they_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let shelf = shelf(directory.path(), "any");
    let layout = layout(&[(PIECE + 7, 20)], false);
    let written = manifest(&layout, 2, 1);
    let most = spawn(2, |collective: ThreadCollective| {
        let (rank, ledger) = (collective.rank(), Ledger::default());
        let (ranks, holding) = (VirtualRanks { count: 2, world: 2 }, all_ranks(Zero::Moments, 2));
        let numbers = held_by(&layout, &holding, rank);
        let snapshot = || {
            let snapshot = snapshot(&written, &holding, &numbers, ranks.of(rank));
            Ok(Snapshot { ledger: ledger.clone(), ..snapshot })
        };
        keeper(collective, &shelf, ranks).finish(1, snapshot).unwrap();
        assert_eq!(ledger.now().all, 0);
        ledger.most().copies
    });
    let all = Kind::ALL.into_iter().map(|kind| layout.blocks[0].count(kind) * 4).sum::<usize>();
    assert!(most.iter().sum::<usize>() >= all, "{most:?} of {all}");
}

#[test]
fn only_what_has_changed_is_written_again() {
    let lengths = [(70_000, 0), (66_000, 0), (0, 80_000), (0, 500)];
    for world in [1, 2] {
        let directory = tempfile::tempdir().unwrap();
        let shelf = shelf(directory.path(), "any");
        let layout = layout(&lengths, true);
        let costs = spawn(world, |collective| {
            let (rank, ranks) = (collective.rank(), VirtualRanks { count: 2, world });
            let holding = Holding::everything(world);
            let mut numbers = held_by(&layout, &holding, rank);
            let mut keeper = keeper(collective, &shelf, ranks);
            let mut costs = Vec::new();
            for step in 1..=4 {
                if step == 3 {
                    let of_block = numbers.iter_mut().filter(|it| it.block == 1);
                    of_block.for_each(|it| it.values.iter_mut().for_each(|value| *value += 1.0));
                }
                let manifest = manifest(&layout, 2, step);
                keeper.finish(step, || Ok(snapshot(&manifest, &holding, &numbers, ranks.of(rank)))).unwrap();
                costs.push(keeper.costs());
            }
            costs
        });
        // Bytes of an object beside its numbers: the header, which names them.
        let object = |name: &str, numbers: usize| {
            let header = format!(
                r#"{{"{name}":{{"dtype":"F32","shape":[{numbers}],"data_offsets":[0,{}]}}}}"#,
                4 * numbers
            );
            (8 + header.len().next_multiple_of(8) + 4 * numbers) as u64
        };
        let of_block = |block: usize, count: usize| {
            ["weights", "first", "second"]
                .iter()
                .map(|kind| object(&format!("{block}.{kind}.0"), count))
                .sum::<u64>()
        };
        let frozen = object("2.weights.0", 80_000) + object("3.weights.0", 500);
        let statistics = 2 * object("statistics", 8);
        let all = of_block(0, 70_000) + of_block(1, 66_000) + frozen + statistics;
        for costs in costs {
            let found: Vec<_> =
                costs.iter().map(|it| (it.count, it.written_bytes, it.present_bytes)).collect();
            let one = of_block(1, 66_000);
            assert_eq!(
                found,
                [(1, all, 0), (2, all, all), (3, all + one, 2 * all - one), (4, all + one, 3 * all - one)]
            );
        }
        assert_eq!(shelf.list().unwrap().len(), 2, "two are kept");
        // Nothing of the block as it was is left, and all of the others.
        assert_eq!(files(directory.path()).len(), 2 + 3 + 3 + 2 + 2);
        assert_eq!(loaded(&shelf, &Resume::Step(3)).unwrap().unwrap().id.step, 3);
    }
}

/// The size of a model of which a snapshot is a hundred megabytes; its cost is printed, and only bytes are
/// asserted.
#[test]
fn of_a_gpt_with_one_trained_block_the_second_checkpoint_is_that_block() {
    let (width, blocks) = (384, 12);
    let of_block = 12 * width * width + 13 * width;
    let lengths: Vec<(usize, usize)> =
        (0..blocks).map(|index| if index + 1 == blocks { (of_block, 0) } else { (0, of_block) }).collect();
    let layout = layout(&lengths, true);
    let directory = tempfile::tempdir().unwrap();
    let shelf = shelf(directory.path(), "any");
    let costs = spawn(1, |collective| {
        let (ranks, holding) = (VirtualRanks { count: 2, world: 1 }, Holding::everything(1));
        let mut numbers = held_by(&layout, &holding, 0);
        let mut keeper = keeper(collective, &shelf, ranks);
        let mut costs = Vec::new();
        for step in 1..=2 {
            let manifest = manifest(&layout, 2, step);
            keeper.finish(step, || Ok(snapshot(&manifest, &holding, &numbers, 0..2))).unwrap();
            costs.push(keeper.costs());
            let trained = numbers.iter_mut().filter(|it| it.block + 1 == blocks);
            trained.for_each(|it| it.values.iter_mut().for_each(|value| *value += 0.5));
        }
        costs
    })
    .remove(0);
    let copied = 4 * (blocks + 2) * of_block;
    println!("{copied} bytes of numbers are copied in {:.1} ms", costs[0].copied_s * 1e3);
    let (first, second) = (costs[0].written_bytes, costs[1].written_bytes - costs[0].written_bytes);
    println!("{first} bytes are written first, {second} then");
    let numbers = 4 * 3 * of_block as u64;
    assert!((numbers..numbers + 2_000).contains(&second), "{second} for {numbers}");
    assert!(first > copied as u64 && costs[1].present_bytes > copied as u64 - numbers);
}

#[test]
fn what_is_gone_or_cut_short_is_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let shelf = shelf(directory.path(), "any");
    let layout = layout(&[(70_000, 0), (0, 500)], true);
    let costs = spawn(1, |collective| {
        let ranks = VirtualRanks { count: 2, world: 1 };
        let holding = Holding::everything(1);
        let numbers = held_by(&layout, &holding, 0);
        let mut keeper = keeper(collective, &shelf, ranks);
        for step in 1..=2 {
            let manifest = manifest(&layout, 2, step);
            keeper.finish(step, || Ok(snapshot(&manifest, &holding, &numbers, 0..2))).unwrap();
            if step == 1 {
                let objects: Vec<_> =
                    files(directory.path()).into_iter().filter(|file| is_object(file)).collect();
                std::fs::remove_file(&objects[0]).unwrap();
                std::fs::write(&objects[1], b"short").unwrap();
            }
        }
        keeper.costs()
    });
    assert_eq!(loaded(&shelf, &Resume::Auto).unwrap().unwrap().id.step, 2);
    assert!(costs[0].written_bytes > costs[0].present_bytes, "{costs:?}");
}

fn is_object(file: &std::path::Path) -> bool {
    file.extension().is_some_and(|extension| extension == "safetensors")
}

/// A part as format 1 had it.
fn old_part(common: &[f32], statistics: &[f32]) -> Vec<u8> {
    let tensors = [("common", common), ("statistics", statistics)].map(|(name, numbers)| {
        let (shape, bytes) = (vec![numbers.len()], bytemuck::cast_slice(numbers));
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, bytes).unwrap())
    });
    safetensors::serialize(tensors, None).unwrap()
}

#[test]
fn checkpoints_of_format_1_are_read() {
    let (virtual_ranks, statistics) = (3, 4);
    let old = |weights: usize, first: usize| BlockLayout {
        parameters: vec![("weight".to_owned(), vec![weights])],
        weights,
        trained: 0,
        first,
        second: 0,
        updates: 3,
        statistics: 2,
        buffers: Vec::new(),
    };
    let layout = Layout { blocks: vec![old(30, 30), old(5, 0)] };
    let mut common = Vec::new();
    for (index, block) in layout.blocks.iter().enumerate() {
        for kind in [Kind::Weights, Kind::First] {
            common.extend((0..block.count(kind)).map(|at| number(index, kind, at)));
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let place = |folder: &str| directory.path().join("runs/any").join(folder);
    ["parts", "checkpoints"].iter().for_each(|folder| std::fs::create_dir_all(place(folder)).unwrap());
    let part = |rank: u32| {
        let (share, own) = (share(common.len(), virtual_ranks, rank), statistics_of(rank, statistics));
        let bytes = old_part(&common[share], &own);
        let part = Part::of(&bytes);
        std::fs::write(place("parts").join(format!("{}.safetensors", part.digest)), bytes).unwrap();
        part
    };
    let parts = (0..virtual_ranks).map(part).collect();
    let written = Manifest { format: PARTS, parts, ..manifest(&layout, virtual_ranks, 6) };
    let id = written.id();
    std::fs::write(place("checkpoints").join(format!("{id}.json")), written.to_bytes()).unwrap();
    let shelf = shelf(directory.path(), "any");
    for zero in Zero::ALL {
        for (rank, read) in spawn(2, |mut collective: ThreadCollective| {
            (collective.rank(), load(&mut collective, &shelf, &Resume::Auto, zero).unwrap().unwrap())
        }) {
            assert_eq!(read.id, id);
            let found: Vec<f32> = read.state.numbers.iter().flat_map(|it| it.values.clone()).collect();
            assert_eq!(found, common, "it is given everything");
            let own = VirtualRanks { count: 3, world: 2 }
                .of(rank)
                .map(|rank| (rank, statistics_of(rank, statistics)));
            assert_eq!(read.state.statistics, own.collect::<Vec<_>>());
        }
    }
    let error = export(&shelf, None, &directory.path().join("weights")).unwrap_err().to_string();
    assert!(error.contains("format 1") && error.contains("--resume"), "{error}");
    assert!(!directory.path().join("weights").exists());
}

#[test]
fn weights_are_exported_as_they_are_saved() {
    let directory = tempfile::tempdir().unwrap();
    let shelf = shelf(directory.path(), "any");
    let layout = layout(&[(SMALL + 3, 7), (0, 5), (12, 0)], true);
    let manifest = manifest(&layout, 7, 3);
    spawn(3, |collective| write(collective, &shelf, &manifest, &all_ranks(Zero::Parameters, 3)));
    let mut sums = Partials::new(7);
    (0..7).for_each(|rank| sums.push(rank, statistics_of(rank, layout.statistics())));
    let averages: Vec<f32> = sums.into_total().unwrap().iter().map(|sum| sum / 7.0).collect();
    let (mut named, mut buffers, mut at) = (Vec::new(), Vec::new(), 0);
    for (index, block) in layout.blocks.iter().enumerate() {
        let mut next = 0;
        for (name, shape) in &block.parameters {
            let values = (next..next + shape[0]).map(|at| number(index, Kind::Weights, at)).collect();
            next += shape[0];
            named.push(Named { name: name.clone(), shape: shape.clone(), values });
        }
        for (name, shape) in &block.buffers {
            buffers.push(Named { name: name.clone(), shape: shape.clone(), values: vec![averages[at]] });
            at += 1;
        }
    }
    named.append(&mut buffers);
    let saved = Weights(named).to_safetensors().unwrap();
    let file = directory.path().join("weights.safetensors");
    for step in [None, Some(3)] {
        assert_eq!(export(&shelf, step, &file).unwrap().step, 3);
        assert!(std::fs::read(&file).unwrap() == saved, "other bytes");
    }
    let error = export(&shelf, Some(4), &file).unwrap_err().to_string();
    assert!(error.contains("no checkpoint 4; there are 3"), "{error}");
    // One that is damaged leaves the file as it was, and nothing beside it.
    let manifest = shelf.manifest(shelf.list().unwrap()[0]).unwrap();
    let object = format!("runs/any/parts/{}.safetensors", manifest.pieces[0].digest);
    std::fs::write(directory.path().join(object), b"damaged").unwrap();
    assert!(export(&shelf, None, &file).is_err());
    assert!(std::fs::read(&file).unwrap() == saved, "it is as it was");
    assert_eq!(
        std::fs::read_dir(directory.path())
            .unwrap()
            .filter(|it| it.as_ref().unwrap().path().is_file())
            .count(),
        1
    );
}

/// Checkpoints of these steps by one rank.
fn written(directory: &std::path::Path, steps: &[u64]) -> (CheckpointStore, Vec<CheckpointId>) {
    let shelf = shelf(directory, "any");
    let write = |&step: &u64| {
        let manifest = manifest(&layout(&[(30 + step as usize, 5)], true), 3, step);
        spawn(1, |collective| write(collective, &shelf, &manifest, &Holding::everything(1)))
            .remove(0)
            .unwrap()
    };
    let ids = steps.iter().map(write).collect();
    (shelf, ids)
}

fn files(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let folder = |name: &str| directory.join("runs/any").join(name);
    let entries = ["checkpoints", "parts"].map(|name| std::fs::read_dir(folder(name)).unwrap());
    entries.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
}

fn loaded(shelf: &CheckpointStore, resume: &Resume) -> Result<Option<Checkpoint>, String> {
    let mut all = spawn(2, |mut collective: ThreadCollective| {
        load(&mut collective, shelf, resume, Zero::Nothing).map_err(|error| crate::causes::chain(&error))
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
    // Of each a manifest and the numbers; of both the statistics of three ranks.
    assert_eq!(files(directory.path()).len(), 2 + 2 + 2 + 3);
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
        for kind in ["manifest", "piece", "statistics"] {
            let directory = tempfile::tempdir().unwrap();
            let (shelf, ids) = written(directory.path(), &[1, 2]);
            let file = |id: CheckpointId| {
                let manifest = shelf.manifest(id).unwrap();
                let part = if kind == "piece" { manifest.pieces[0] } else { manifest.statistics[1] }.digest;
                directory.path().join("runs/any").join(match kind {
                    "manifest" => format!("checkpoints/{id}.json"),
                    _ => format!("parts/{part}.safetensors"),
                })
            };
            let (newer, older) = (file(ids[1]), file(ids[0]));
            damage(&newer);
            if newer == older {
                assert!(loaded(&shelf, &Resume::Auto).is_err(), "both need it");
                continue;
            }
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
    let statistics = vec![Part { digest: Digest::of(b"part"), bytes: 400 }; 3];
    let pieces = vec![statistics[0]];
    let manifest = Manifest { pieces, statistics, ..manifest(&layout(&[(4, 0)], true), 3, 9) };
    let (id, bytes) = (manifest.id(), manifest.to_bytes());
    assert_eq!(Manifest::from_bytes(id, &bytes).unwrap(), manifest);
    assert_eq!(id.to_string().parse(), Ok(id));
    let text = String::from_utf8(bytes).unwrap();
    let later = text.replace("\"format\":2", "\"format\":4");
    let error = Manifest::from_bytes(id, later.as_bytes()).unwrap_err();
    assert!(matches!(error, CheckpointError::TooNew { found: 4, .. }), "{error}");
    for other in [text.replace("\"step\":9", "\"step\":8"), text.replace("20", "21"), text[..60].to_owned()] {
        let error = Manifest::from_bytes(id, other.as_bytes()).unwrap_err();
        assert!(matches!(error, CheckpointError::Damaged { .. }), "{error}");
    }
}

#[test]
fn the_name_of_a_checkpoint_stays_what_it_was() {
    let statistics = (0..2u8).map(|rank| Part::of(&encode_statistics(&[f32::from(rank), -0.0])));
    let manifest = Manifest { statistics: statistics.collect(), ..manifest(&layout(&[(2, 1)], true), 2, 12) };
    let pieces = pieces(&manifest.layout);
    let encoded = pieces.iter().map(|piece| Part::of(&encode_piece(piece, &vec![-1.5; length(piece)])));
    let manifest = Manifest { pieces: encoded.collect(), ..manifest };
    assert_eq!(manifest.id().to_string(), GOLDEN, "{}", String::from_utf8(manifest.to_bytes()).unwrap());
}

const GOLDEN: &str = "000000000012-36a010ba0f0f03ce148b52087c40c2ea59cccee6e9a9fc6aabb698e24ad47fe6";

#[test]
fn a_manifest_of_format_1_keeps_its_name() {
    let part = |rank: f32| Part { digest: Digest::of(&old_part(&[1.0, -0.0], &[rank])), bytes: 1 };
    let parts = vec![part(0.0), part(1.0)];
    let old = BlockLayout {
        parameters: vec![("weight".to_owned(), vec![2])],
        weights: 2,
        trained: 0,
        first: 2,
        second: 0,
        updates: 3,
        statistics: 2,
        buffers: Vec::new(),
    };
    let manifest = manifest(&Layout { blocks: vec![old] }, 2, 12);
    let manifest = Manifest { format: PARTS, parts, ..manifest };
    assert_eq!(manifest.id().to_string(), GOLDEN_1, "{}", String::from_utf8(manifest.to_bytes()).unwrap());
    let parts = manifest.parts.iter().map(|part| Part { bytes: 64, ..*part }).collect();
    let manifest = Manifest { parts, ..manifest };
    assert_eq!(Manifest::from_bytes(manifest.id(), &manifest.to_bytes()).unwrap(), manifest);
}

#[test]
fn a_manifest_whose_layout_no_object_has_room_for_is_damaged() {
    let part = |bytes| Part { digest: Digest::of(b"part"), bytes };
    let block = |weights, shape| BlockLayout {
        parameters: vec![("weight".to_owned(), shape)],
        weights,
        ..BlockLayout::default()
    };
    let of_two = |blocks, parts| {
        let whole = Manifest { pieces: vec![part(parts)], ..manifest(&Layout { blocks }, 1, 7) };
        let old = Manifest { format: PARTS, pieces: Vec::new(), parts: vec![part(parts)], ..whole.clone() };
        [whole, old]
    };
    for sound in of_two(vec![block(6, vec![2, 3])], 64) {
        assert_eq!(Manifest::from_bytes(sound.id(), &sound.to_bytes()).unwrap(), sound);
    }
    let large = 1 << 61;
    let numbers = BlockLayout { first: 7, ..block(6, vec![6]) };
    for (blocks, bytes) in [
        (vec![block(large, vec![large])], 64),
        (vec![block(large, vec![large])], u64::MAX),
        (vec![block(usize::MAX, vec![usize::MAX])], 1 << 40),
        (vec![block(large, vec![large]); 9], 1 << 40),
        (vec![block(6, vec![large, 64])], 64),
        (vec![block(6, vec![2])], 64),
        (vec![numbers], 640),
        (vec![block(6, vec![6])], 8),
    ] {
        for unsound in of_two(blocks.clone(), bytes) {
            let error = Manifest::from_bytes(unsound.id(), &unsound.to_bytes()).unwrap_err();
            assert!(matches!(error, CheckpointError::Damaged { .. }), "{error}: {unsound:?}");
        }
    }
}

/// As an earlier version wrote it.
const GOLDEN_1: &str = "000000000012-b5ba1ba103d336fc806ad2623d3d7689ab0feef16114d53373cacef719fd39ff";
