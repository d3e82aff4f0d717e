//! Groups of ranks that take over from each other, and checkpoints that go from any to any.

use std::num::NonZeroU32;
use std::ops::Range;

use shardd_client::loader::Deliveries;

use super::*;
use crate::checkpoint::{CheckpointId, StopFlag, hand_over};
use crate::data::{MemoryRows, Rows, RowsError};
use crate::device::Precision;

/// How a group is made to end before the training does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Until {
    TheEnd,
    /// All stop after a step, when the last rank has trained this number.
    Paused(u64),
    /// This rank's data fails after a number of steps, in the middle of everybody else's next one.
    Lost(u32, u64),
    /// This rank's test data fails, when all has been trained.
    Unevaluated(u32),
}

/// Rows of which none can be read, on request.
struct Unreadable(MemoryRows, bool);

impl Rows for Unreadable {
    fn schema(&self) -> arrow::datatypes::SchemaRef {
        self.0.schema()
    }

    fn row_count(&self) -> u64 {
        self.0.row_count()
    }

    fn read(&self, range: Range<u64>) -> Result<Vec<RecordBatch>, RowsError> {
        if self.1 { Err("gone".into()) } else { self.0.read(range) }
    }
}

/// Steps that end with an error.
struct Failing(MemorySteps, Option<u64>);

impl StepSource for Failing {
    fn schema(&self) -> arrow::datatypes::SchemaRef {
        self.0.schema()
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn steps_per_epoch(&self) -> u64 {
        self.0.steps_per_epoch()
    }

    fn next_step(&mut self) -> Result<Option<Step>, SourceError> {
        if self.1 == Some(0) {
            return Err("gone".into());
        }
        self.1 = self.1.map(|left| left - 1);
        self.0.next_step()
    }

    fn audits(&self) -> Vec<Audit> {
        self.0.audits()
    }

    fn waited(&self) -> Duration {
        self.0.waited()
    }
}

/// A group of ranks with what these have of the groups before; by rank, after which step it continued, if it
/// was handed anything, and its outcome.
fn group(
    config: &TrainConfig,
    ranks: &[StateTransfer],
    until: Until,
) -> Vec<(Option<u64>, Result<Outcome, TrainError>)> {
    let world = ranks.len() as u32;
    spawn(world, |mut collective: ThreadCollective| {
        let rank = collective.rank();
        let legacy = &ranks[rank as usize];
        let mut remains = legacy.take();
        let handed = hand_over(&mut collective, None, &mut remains, config.slicing, None).unwrap();
        let place = handed.as_ref().map(|it| it.manifest.place).unwrap_or_default();
        let step = handed.as_ref().map(|it| it.manifest.step);
        if let Some(handed) = &handed {
            let progress = &handed.manifest.progress;
            assert_eq!(progress.delivered, delivered_in(handed.manifest.step), "counted over all groups");
        }
        let pause = StopFlag::default();
        let persistence = Persistence {
            start: handed.map_or(Start::Seed, |handed| Start::Checkpoint(Box::new(handed))),
            pause: Some(pause.clone()),
            legacy: Some(legacy.clone()),
            ..Persistence::default()
        };
        let share = VirtualRanks { count: 4, world };
        let source = MemorySteps::new(digits_like_rows(ROWS, 1), share, rank, 8, EPOCHS);
        let source = source.from((place.epoch, place.position)).counted();
        let fails_after = match until {
            Until::Lost(lost, steps) if lost == rank => Some(steps),
            _ => None,
        };
        let mut source = Failing(source, fails_after);
        let test = Unreadable(MemoryRows::new(digits_like_rows(300, 2)), until == Until::Unevaluated(rank));
        let mut steps = 0;
        let mut observe = |_: Progress| {
            steps += 1;
            if Until::Paused(steps) == until && rank + 1 == world {
                pause.raise();
            }
        };
        let outcome =
            train_with(config, persistence, Box::new(collective), &mut source, Some(&test), &mut observe);
        (step, outcome)
    })
}

/// The samples of virtual ranks in a number of steps.
fn delivered_in(steps: u64) -> Deliveries {
    let alone = VirtualRanks { count: 4, world: 1 };
    let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), alone, 0, 8, EPOCHS).counted();
    let mut delivered = Deliveries::default();
    for _ in 0..steps {
        let step = source.next_step().unwrap().unwrap();
        delivered.add(step.start.0, step.start.1, Some(&step.delivered));
    }
    delivered
}

fn nobodys(count: usize) -> Vec<StateTransfer> {
    (0..count).map(|_| StateTransfer::default()).collect()
}

/// Adam, and a model without running statistics.
fn without_statistics() -> TrainConfig {
    let model = ModelOptions { norm: Norm::Group, dropout: 0.2, ..ModelOptions::default() };
    TrainConfig { model, optimizer: Optimizer::adamw(0.1), rate: 1e-3, clip: Some(1.0), ..config() }
}

fn ends_like(whole: &Trained, config: &TrainConfig, ranks: &[StateTransfer], step: Option<u64>) {
    for (from, outcome) in group(config, ranks, Until::TheEnd) {
        let Ok(Outcome::Trained(trained)) = outcome else { panic!("{outcome:?}") };
        assert_eq!((from, trained.digest), (step, whole.digest), "{:?}", config.slicing);
        assert_eq!(trained.loss_per_epoch, whole.loss_per_epoch);
        assert_eq!((trained.steps, trained.samples), (whole.steps, whole.samples));
    }
    assert!(ranks.iter().all(|rank| rank.take().is_none()), "nothing is kept of ended groups");
}

#[test]
fn groups_that_pause_hand_over_all_there_is_without_a_store() {
    let with_statistics = TrainConfig { optimizer: Optimizer::adam(0.0), rate: 1e-3, ..config() };
    for (config, zero, precision) in [
        (with_statistics.clone(), Zero::Nothing, Precision::F32),
        (with_statistics, Zero::Gradients, Precision::Bf16),
        (without_statistics(), Zero::Moments, Precision::F32),
        (without_statistics(), Zero::Parameters, Precision::F32),
    ] {
        println!("{zero:?} {precision:?}");
        let plain = TrainConfig { precision, ..config };
        let whole = on_threads(1, &plain).remove(0);
        let config = TrainConfig { slicing: zero.into(), ..plain };
        let mut ranks = nobodys(1);
        let mut step = None;
        for (world, steps) in [(1, 5), (3, 4), (3, 3), (4, 1)] {
            ranks.extend(nobodys(world - ranks.len()));
            for (from, outcome) in group(&config, &ranks, Until::Paused(steps)) {
                // A rank hears of it one step later.
                let so_far = step.unwrap_or(0) + steps + 1;
                assert!(matches!(outcome, Ok(Outcome::Paused(after)) if after == so_far), "{outcome:?}");
                assert_eq!(from, step);
            }
            step = Some(step.unwrap_or(0) + steps + 1);
            // In any order: they take over from each other.
            ranks.reverse();
        }
        ends_like(&whole, &config, &ranks, step);
    }
}

#[test]
fn those_that_are_left_go_on_if_they_have_every_number() {
    let config = without_statistics();
    let whole = on_threads(1, &config).remove(0);
    let lose = |config: &TrainConfig, mut ranks: Vec<StateTransfer>, lost: u32, after: u64| {
        for (rank, (_, outcome)) in (0..).zip(group(config, &ranks, Until::Lost(lost, after))) {
            match outcome {
                Err(TrainError::Source(_)) => assert_eq!(rank, lost),
                Err(TrainError::Collective(_)) => assert_ne!(rank, lost),
                other => panic!("{other:?}"),
            }
        }
        ranks.remove(lost as usize);
        ranks
    };
    let left = |config: &TrainConfig, lost: u32| lose(config, nobodys(4), lost, 7);
    // A state handed over and not yet trained on is handed on.
    ends_like(&whole, &config, &lose(&config, left(&config, 3), 1, 0), Some(7));
    for lost in [0, 2] {
        // Everything is with everybody.
        ends_like(&whole, &config, &left(&config, lost), Some(7));
        // Each slice is with two.
        for zero in [Zero::Moments, Zero::Gradients, Zero::Parameters] {
            let sliced = Slicing { zero, group: NonZeroU32::new(2) };
            let ranks = left(&TrainConfig { slicing: sliced, ..config.clone() }, lost);
            ends_like(&whole, &TrainConfig { slicing: zero.into(), ..config.clone() }, &ranks, Some(7));
        }
        // A slice is lost with its owner.
        let sliced = TrainConfig { slicing: Zero::Gradients.into(), ..config.clone() };
        ends_like(&whole, &sliced, &left(&sliced, lost), None);
    }
    // And running statistics are with one rank each.
    let with_statistics = super::config();
    let whole = on_threads(1, &with_statistics).remove(0);
    ends_like(&whole, &with_statistics, &left(&with_statistics, 1), None);
}

#[test]
fn what_is_trained_is_evaluated_by_those_that_are_left() {
    let plain = without_statistics();
    let whole = on_threads(1, &plain).remove(0);
    let sliced = Slicing { zero: Zero::Parameters, group: NonZeroU32::new(2) };
    for (slicing, next) in [(Slicing::default(), Slicing::default()), (sliced, Zero::Parameters.into())] {
        let mut ranks = nobodys(4);
        for (rank, (_, outcome)) in
            (0..).zip(group(&TrainConfig { slicing, ..plain.clone() }, &ranks, Until::Unevaluated(1)))
        {
            match outcome {
                Ok(Outcome::Trained(trained)) => {
                    let is_lost = matches!(trained.unevaluated.as_deref(), Some(TrainError::Collective(_)));
                    assert_eq!((is_lost, trained.digest), (rank != 1, whole.digest), "{rank}");
                }
                // It hears of it before it evaluates itself.
                Err(TrainError::Collective(_)) => assert_ne!(rank, 1),
                other => panic!("{other:?}"),
            }
        }
        ranks.remove(1);
        ends_like(&whole, &TrainConfig { slicing: next, ..plain.clone() }, &ranks, Some(whole.steps));
    }
}

/// The name of the newest checkpoint.
fn newest(place: &StorePlace) -> CheckpointId {
    CheckpointStore::open(place, &"parts".parse().unwrap()).unwrap().list().unwrap()[0]
}

#[test]
fn a_checkpoint_of_four_slices_is_that_of_one_rank_that_has_everything_and_back() {
    for (precision, group) in [
        (Precision::F32, None),
        (Precision::F32, NonZeroU32::new(2)),
        (Precision::Bf16, None),
        (Precision::Bf16, NonZeroU32::new(2)),
    ] {
        println!("{precision:?}, groups of {group:?}");
        let adam = Optimizer::adamw(0.1);
        let alone = TrainConfig { precision, optimizer: adam, rate: 1e-3, clip: Some(1.0), ..config() };
        let sliced = TrainConfig { slicing: Slicing { zero: Zero::Parameters, group }, ..alone.clone() };
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [there, elsewhere] = directories.each_ref().map(|it| StorePlace::Directory(it.path().to_owned()));
        // Names are digests of all numbers: where they are the same, everything is.
        for ((config, world), (other, worlds), steps) in
            [((&sliced, 4), (&alone, 1), 6), ((&alone, 1), (&sliced, 4), 4), ((&sliced, 4), (&alone, 1), 2)]
        {
            in_parts(world, config, &there, Some(steps));
            in_parts(worlds, other, &elsewhere, Some(steps));
            assert_eq!(newest(&there), newest(&elsewhere));
        }
        let read = |config: &TrainConfig, world| {
            spawn(world, |mut collective: ThreadCollective| {
                let shelf = CheckpointStore::open(&there, &"parts".parse().unwrap()).unwrap();
                load(&mut collective, &shelf, &Resume::Auto, config.slicing).unwrap().unwrap().state
            })
        };
        let whole = read(&alone, 1).remove(0);
        let bits = |numbers: &[f32]| numbers.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
        let mut count = 0;
        for it in read(&sliced, 4).iter().flat_map(|state| &state.numbers) {
            let of_whole = whole.numbers(it.block, it.kind, &it.range()).unwrap();
            assert_eq!(bits(&it.values), bits(&of_whole));
            count += it.values.len();
        }
        let all: usize = whole.numbers.iter().map(|it| it.values.len()).sum();
        assert_eq!(count, all * group.map_or(1, |group| 4 / group.get() as usize));
    }
}
