//! Trainings as threads whose records are written, gone on with and compared.

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use shardd_store::catalog::StorePlace;
use shardd_store::record::{Comparison, Differing, Ending, RecordError, StepRow, compare};
use shardfmt::{Digest, PlanId, VersionId};
use tempfile::TempDir;

use super::*;
use crate::checkpoint::{Checkpoints, Resume, load};
use crate::collective::sums::Algorithm;
use crate::collective::{Collective, ThreadCollective, spawn};
use crate::compress::Compression;
use crate::error::TrainError;
use crate::models::ModelOptions;
use crate::optim::LrDecay;
use crate::reduce::{AllReduce, Reduction, VirtualRanks};
use crate::source::StepSource;
use crate::testkit::{MemorySteps, digits_like_rows, pattern_vectors};
use crate::train::{Outcome, Persistence, Progress, Start, TrainConfig, Trained, train_with};
use crate::zero::Zero;

const V: u32 = 4;

/// A place, and a training that can run there more than once.
struct Lab {
    directory: TempDir,
    config: TrainConfig,
    rows: RecordBatch,
    batch_size: u64,
    every: u64,
}

/// The fate of a training.
#[derive(Clone, Copy, Default)]
struct Fate {
    /// It is asked to stop after a number of its own steps.
    stops: Option<u64>,
    /// A rank is gone after a number of them.
    dies: Option<u64>,
    /// It keeps a checkpoint at intervals of this number.
    checkpoints: Option<u64>,
    /// It goes back to the checkpoint of this step.
    back_to: Option<u64>,
}

impl Lab {
    /// 33 steps of digits, with all that is random.
    fn new() -> Lab {
        let model = ModelOptions { dropout: 0.2, ..ModelOptions::default() };
        let config = TrainConfig { virtual_ranks: V, epochs: 3, model, ..TrainConfig::default() };
        let directory = tempfile::tempdir().unwrap();
        Lab { directory, config, rows: digits_like_rows(333, 1), batch_size: 8, every: 1 }
    }

    fn shelf(&self, run: &str) -> CheckpointStore {
        let place = StorePlace::Directory(self.directory.path().to_owned());
        CheckpointStore::open(&place, &run.parse().unwrap()).unwrap()
    }

    fn about(&self) -> Purpose {
        let data = Data {
            dataset: Some("digits".to_owned()),
            version: VersionId(Digest::of(b"version")),
            plan: PlanId(Digest::of(b"plan")),
            q: "0.1".to_owned(),
            seed: 0,
            samples: self.rows.num_rows() as u64,
        };
        Purpose::Write(About { data, arguments: vec!["--epochs=3".to_owned()] })
    }

    fn source(&self, world: u32, rank: u32) -> MemorySteps {
        let ranks = VirtualRanks { count: V, world };
        MemorySteps::new(self.rows.clone(), ranks, rank, self.batch_size, self.config.epochs)
    }

    /// Trains on a number of ranks.
    fn train(
        &self,
        run: &str,
        world: u32,
        purpose: &Purpose,
        fate: Fate,
    ) -> Vec<Result<Outcome, TrainError>> {
        spawn(world, |mut collective: ThreadCollective| {
            let (shelf, rank) = (self.shelf(run), collective.rank());
            let resume = fate.back_to.map_or(Resume::Auto, Resume::Step);
            let checkpoint = load(&mut collective, &shelf, &resume, Zero::Nothing).unwrap();
            let place = checkpoint.as_ref().map(|it| it.manifest.place).unwrap_or_default();
            let kept =
                Checkpoints { shelf: shelf.clone(), every_steps: fate.checkpoints, every: None, keep: 3 };
            let persistence = Persistence {
                start: checkpoint.map_or(Start::Seed, |checkpoint| Start::Checkpoint(Box::new(checkpoint))),
                checkpoints: (fate.checkpoints.is_some() || fate.stops.is_some()).then_some(kept),
                recording: Some(Recording { shelf, every: self.every, purpose: purpose.clone() }),
                ..Persistence::default()
            };
            let source = self.source(world, rank).from((place.epoch, place.position));
            let dies = fate.dies.filter(|_| rank == world - 1);
            let mut source = Mortal { source, left: dies.unwrap_or(u64::MAX) };
            let mut steps = 0;
            let stop = persistence.stop.clone();
            let mut observe = |_: Progress| {
                steps += 1;
                if Some(steps) == fate.stops {
                    stop.raise();
                }
            };
            train_with(&self.config, persistence, Box::new(collective), &mut source, None, &mut observe)
        })
    }

    /// The only record of a run.
    fn record(&self, run: &str) -> (RecordId, Record) {
        let mut all = self.records(run);
        assert_eq!(all.len(), 1, "one record: {all:?}");
        all.remove(0)
    }

    fn records(&self, run: &str) -> Vec<(RecordId, Record)> {
        let (shelf, run) = (self.shelf(run), run.parse().unwrap());
        let records = shelf.records();
        let read = async {
            let mut all = Vec::new();
            for listed in records.list(Some(&run)).await? {
                all.push((listed.id, records.read(&listed).await?));
            }
            Ok::<_, RecordError>(all)
        };
        shelf.handle().block_on(read).unwrap()
    }

    fn steps(&self, record: &Record) -> Vec<StepRow> {
        let shelf = self.shelf(record.run.as_str());
        let numbers = 0..record.steps.parts.len() as u64;
        let read = |number| shelf.handle().block_on(shelf.records().steps(record, number)).unwrap();
        numbers.flat_map(read).collect()
    }

    fn compare(&self, a: &Record, b: &Record) -> Comparison {
        let shelf = self.shelf("any");
        let records = shelf.records();
        shelf.handle().block_on(compare((&records, a), (&records, b))).unwrap()
    }
}

/// Gives a number of steps, then fails.
struct Mortal {
    source: MemorySteps,
    left: u64,
}

impl StepSource for Mortal {
    fn schema(&self) -> arrow::datatypes::SchemaRef {
        self.source.schema()
    }

    fn name(&self) -> String {
        self.source.name()
    }

    fn steps_per_epoch(&self) -> u64 {
        self.source.steps_per_epoch()
    }

    fn next_step(&mut self) -> Result<Option<crate::source::Step>, crate::source::SourceError> {
        self.left = self.left.checked_sub(1).ok_or("the cable is out")?;
        self.source.next_step()
    }

    fn audits(&self) -> Vec<crate::source::Audit> {
        self.source.audits()
    }

    fn waited(&self) -> std::time::Duration {
        self.source.waited()
    }
}

fn trained(outcomes: Vec<Result<Outcome, TrainError>>) -> Trained {
    match outcomes.into_iter().next().unwrap().unwrap() {
        Outcome::Trained(trained) => *trained,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_same_steps_on_any_number_of_ranks_and_the_weights_of_a_training_without() {
    let lab = Lab::new();
    let plain = spawn(1, |collective: ThreadCollective| {
        let mut source = lab.source(1, 0);
        crate::train::train(&lab.config, Box::new(collective), &mut source, None, &mut |_| ()).unwrap()
    });
    let mut tables = Vec::new();
    for world in 1..=V {
        let run = format!("of-{world}");
        let outcome = trained(lab.train(&run, world, &lab.about(), Fate::default()));
        assert_eq!(outcome.digest, plain[0].digest, "digests change nothing");
        let (id, record) = lab.record(&run);
        assert_eq!(id, record.id());
        assert_eq!((record.weights, &record.ending), (Some(outcome.digest), &Ending::Trained));
        assert_eq!((record.steps.end, record.virtual_ranks, record.launches[0].world), (33, V, world));
        if cfg!(target_os = "linux") {
            let memory = record.launches[0].memory_bytes;
            assert!(memory.is_some_and(|bytes| bytes > 1 << 20), "{memory:?}");
        }
        let steps = lab.steps(&record);
        for row in &steps {
            assert_eq!(row.shares.len(), V as usize);
            assert_eq!(row.samples, row.shares.iter().map(|share| share.samples).sum::<u64>());
            assert!(row.weights.is_some() && row.shares.iter().all(|share| share.gradient.is_some()));
        }
        let mean = |epoch: u32| {
            let rows = || steps.iter().filter(|row| row.epoch == epoch);
            rows().map(|row| row.loss).sum::<f64>() / rows().map(|row| row.samples).sum::<u64>() as f64
        };
        assert_eq!((0..3).map(mean).collect::<Vec<f64>>(), outcome.loss_per_epoch);
        tables.push(record.steps);
    }
    assert!(tables.windows(2).all(|pair| pair[0] == pair[1]), "{tables:?}");
}

#[test]
fn a_training_in_parts_has_the_steps_of_one_that_nothing_happened_to() {
    let lab = Lab::new();
    trained(lab.train("whole", 1, &lab.about(), Fate::default()));
    let whole = lab.record("whole").1;
    let checkpoints = Some(5);
    // Whether the checkpoint of a launch that fails is still written, its end decides: each launch comes further than the one before it
    // even from the last that is certain, so that its record tells more.
    let fates = [
        (4, Fate { dies: Some(8), checkpoints, ..Fate::default() }),
        (3, Fate { stops: Some(9), checkpoints, ..Fate::default() }),
        (2, Fate { dies: Some(3), checkpoints, ..Fate::default() }),
        (3, Fate { dies: Some(12), checkpoints, ..Fate::default() }),
    ];
    for (world, fate) in fates {
        let outcomes = lab.train("parts", world, &lab.about(), fate);
        let (_, record) = lab.record("parts");
        println!("{} steps, {}: {:?}", record.steps.end, record.ending, outcomes.first());
        match &record.ending {
            Ending::Stopped => assert!(fate.stops.is_some()),
            Ending::Failed { reason } => assert!(reason.contains("the cable is out"), "{reason}"),
            other => panic!("{other:?}"),
        }
        let compared = lab.compare(&whole, &record);
        assert!(compared.is_same() && compared.steps == [0, record.steps.end], "{compared:?}");
    }
    let last = trained(lab.train("parts", 1, &lab.about(), Fate { checkpoints, ..Fate::default() }));
    let (id, record) = lab.record("parts");
    assert_eq!((record.steps.clone(), record.weights), (whole.steps, Some(last.digest)));
    // A launch of which no checkpoint was left has no part in it.
    let worlds: Vec<u32> = record.launches.iter().map(|launch| launch.world).collect();
    assert!(worlds.len() >= 3 && worlds.last() == Some(&1), "{worlds:?}");
    let steps: Vec<&str> = record.checkpoints.iter().filter_map(|name| name.split('-').next()).collect();
    assert!(steps.is_sorted() && steps.last() == Some(&"000000000033"), "{steps:?}");
    // It has when and how the checkpoints were written, also those of earlier launches.
    let writes = &record.checkpoint_writes;
    let last_launch = record.launches.last().unwrap();
    assert!(writes.first().is_some_and(|first| first.step <= last_launch.first_step), "{writes:?}");
    assert!(writes.is_sorted_by_key(|it| it.step) && writes.last().unwrap().step == 33, "{writes:?}");
    for write in writes {
        assert!(record.checkpoints.contains(&write.name), "{write:?}");
        assert!(write.bytes >= write.written_bytes && write.bytes > 0, "{write:?}");
        assert!(write.at >= record.launches[0].started && write.at <= last_launch.until, "{write:?}");
    }
    // Where nothing is left to do, the record stays unchanged.
    trained(lab.train("parts", 2, &lab.about(), Fate { checkpoints, ..Fate::default() }));
    assert_eq!(lab.record("parts").0, id);
    // Who goes back begins a record of its own with the steps that were the same.
    let back = Fate { checkpoints, back_to: Some(30), ..Fate::default() };
    trained(lab.train("parts", 2, &lab.about(), back));
    let records = lab.records("parts");
    assert_eq!(records.len(), 2);
    assert!(records.iter().all(|(_, other)| other.steps == record.steps), "{records:?}");
}

#[test]
fn a_record_without_those_of_the_steps_before_says_from_where_it_tells() {
    let lab = Lab::new();
    trained(lab.train("whole", 1, &lab.about(), Fate::default()));
    lab.train("late", 2, &lab.about(), Fate { stops: Some(9), ..Fate::default() });
    std::fs::remove_dir_all(lab.directory.path().join("runs/late/records")).unwrap();
    trained(lab.train("late", 3, &lab.about(), Fate::default()));
    let (whole, late) = (lab.record("whole").1, lab.record("late").1);
    assert_eq!((late.steps.first, late.steps.end), (10, 33));
    let compared = lab.compare(&whole, &late);
    assert!(compared.is_same() && compared.steps == [10, 33], "{compared:?}");
}

#[test]
fn long_trainings_are_cut_into_parts_that_do_not_depend_on_what_happened() {
    let rows = pattern_vectors(64, 4, 3);
    let config = TrainConfig { virtual_ranks: V, epochs: 70, ..TrainConfig::default() };
    let lab = Lab { config, rows, batch_size: 1, every: 7, ..Lab::new() };
    trained(lab.train("whole", 1, &lab.about(), Fate::default()));
    lab.train("parts", 2, &lab.about(), Fate { stops: Some(1_023), ..Fate::default() });
    lab.train("parts", 3, &lab.about(), Fate { stops: Some(30), ..Fate::default() });
    trained(lab.train("parts", 1, &lab.about(), Fate::default()));
    let (whole, parts) = (lab.record("whole").1, lab.record("parts").1);
    assert_eq!((whole.steps.end, whole.steps.parts.len()), (1_120, 2));
    assert_eq!((&whole.steps, whole.weights), (&parts.steps, parts.weights));
    for row in lab.steps(&whole) {
        assert_eq!(row.weights.is_some(), (row.step + 1).is_multiple_of(7));
        assert_eq!(row.shares[1].input.is_some(), row.weights.is_some());
    }
    // Nothing is left of the records on the way.
    let files = std::fs::read_dir(lab.directory.path().join("runs/parts/steps")).unwrap().count();
    assert_eq!(files, 2);
}

#[test]
fn a_rerun_is_the_same_on_any_number_of_ranks_or_ends_where_it_is_not() {
    let lab = Lab::new();
    trained(lab.train("whole", 2, &lab.about(), Fate::default()));
    lab.train("short", 2, &lab.about(), Fate { stops: Some(10), ..Fate::default() });
    let (id, whole) = lab.record("whole");
    let again = Purpose::Compare(id, Box::new(whole.clone()));
    for world in [1, 3] {
        assert_eq!(Some(trained(lab.train("again", world, &again, Fate::default())).digest), whole.weights);
    }
    // Of a training that was stopped, up to its end.
    let (id, short) = lab.record("short");
    for outcome in lab.train("again", 3, &Purpose::Compare(id, Box::new(short)), Fate::default()) {
        assert!(matches!(outcome, Ok(Outcome::Stopped(stopped)) if stopped.steps == 11));
    }

    let differs = |lab: &Lab| {
        let errors = lab.train("again", 2, &again, Fate::default());
        let TrainError::Rerun(said) = errors.into_iter().next().unwrap().unwrap_err() else {
            panic!("it differs")
        };
        said
    };
    let lab = Lab { rows: with_another_label(&lab.rows, 200), ..lab };
    let (step, rank) = first_use(&lab, 200);
    let said = differs(&lab);
    assert!(
        said.starts_with(&format!(
            "step {step} (epoch 0) is the first that differs, in virtual rank {rank}: other samples"
        )),
        "{said}"
    );
    let lab = Lab { rows: digits_like_rows(333, 1), ..lab };
    let lab = Lab { config: TrainConfig { seed: 3, ..lab.config.clone() }, ..lab };
    let said = differs(&lab);
    assert!(said.contains("not the training of record") && said.contains("seed (0 against 3)"), "{said}");
    assert!(lab.records("again").is_empty(), "a rerun writes nothing");
}

#[test]
fn what_two_trainings_part_by_is_told_with_step_and_virtual_rank() {
    let lab = Lab::new();
    trained(lab.train("whole", 1, &lab.about(), Fate::default()));
    let whole = lab.record("whole").1;
    let rows = lab.rows.clone();
    let mut lab = lab;
    let mut parts_by = |name: &str, config: TrainConfig, rows: RecordBatch| {
        lab.config = config;
        lab.rows = rows;
        trained(lab.train(name, 3, &lab.about(), Fate::default()));
        let other = lab.record(name).1;
        let compared = lab.compare(&whole, &other);
        assert!(!compared.is_same());
        let names: Vec<String> = compared.settings.iter().map(|setting| setting.name.clone()).collect();
        (compared.first.unwrap(), compared.began_differently.unwrap(), names)
    };
    let config = || TrainConfig {
        virtual_ranks: V,
        epochs: 3,
        model: ModelOptions { dropout: 0.2, ..ModelOptions::default() },
        ..TrainConfig::default()
    };

    let (found, began, names) = parts_by("seed", TrainConfig { seed: 1, ..config() }, rows.clone());
    assert!(began && names == ["seed"], "{names:?}");
    assert_eq!((found.step, found.what, found.virtual_ranks), (0, Differing::Forward, vec![0, 1, 2, 3]));

    let decline = LrDecay::Step { epochs: 1, factor: 0.5 };
    let (found, began, names) = parts_by("decline", TrainConfig { decline, ..config() }, rows.clone());
    assert!(!began && names == ["schedule"], "{names:?}");
    // Both warm up for an epoch, of 11 steps.
    assert_eq!((found.step, found.what), (11, Differing::Rate));

    let (found, _, names) = parts_by("clip", TrainConfig { clip: Some(0.1), ..config() }, rows.clone());
    assert_eq!((found.step, found.what, names), (0, Differing::Update, vec!["clipping".to_owned()]));

    let (found, _, names) = parts_by("label", config(), with_another_label(&rows, 300));
    assert_eq!((found.what, names.len()), (Differing::Input, 0));
    assert_eq!(found.virtual_ranks.len(), 1, "{found:?}");

    let fast = TrainConfig { reduction: Reduction::Fast(Compression::Bf16), ..config() };
    let (found, _, names) = parts_by("fast", fast, rows);
    assert_eq!((found.step, found.what, names), (0, Differing::Reduction, vec!["reduction".to_owned()]));
}

#[test]
fn a_record_of_another_reduction_promises_nothing_and_is_one_all_the_same() {
    let lab = Lab::new();
    let config = TrainConfig { reduction: Reduction::Fast(Compression::None), ..lab.config.clone() };
    let lab = Lab { config, ..lab };
    trained(lab.train("fast", 3, &lab.about(), Fate::default()));
    let record = lab.record("fast").1;
    assert!(!record.is_exact);
    assert!(lab.steps(&record).iter().all(|row| row.shares.iter().all(|share| share.gradient.is_some())));
}

#[test]
fn a_rerun_adds_up_by_the_algorithms_of_the_record() {
    let lab = Lab::new();
    let with = |lab: Lab, algorithm| {
        let all_reduce = AllReduce::Only(algorithm);
        let reduction = Reduction::Fast(Compression::None);
        let config = TrainConfig { reduction, all_reduce, ..lab.config.clone() };
        Lab { config, ..lab }
    };
    let lab = with(lab, Algorithm::Ring);
    trained(lab.train("ring", 4, &lab.about(), Fate::default()));
    let (id, record) = lab.record("ring");
    assert_eq!(record.settings["all-reduce"], r#"{"first":"ring"}"#);
    let lab = with(lab, Algorithm::Direct);
    let again = Purpose::Compare(id, Box::new(record.clone()));
    let repeated = trained(lab.train("again", 4, &again, Fate::default()));
    assert_eq!(Some(repeated.digest), record.weights);
    assert_eq!(repeated.all_reduce.unwrap().to_string(), "ring (as recorded)");
}

#[test]
fn a_record_that_tells_more_outlives_one_that_tells_less() {
    let lab = Lab::new();
    let ends = |lab: &Lab| {
        let mut ends: Vec<u64> = lab.records("again").iter().map(|(_, record)| record.steps.end).collect();
        ends.sort_unstable();
        ends
    };
    let fails = |after| {
        let fate = Fate { dies: Some(after), ..Fate::default() };
        let outcomes = lab.train("again", 1, &lab.about(), fate);
        assert!(outcomes[0].is_err());
    };
    fails(20);
    assert_eq!(ends(&lab), [20]);
    fails(3);
    assert_eq!(ends(&lab), [3, 20], "each is all that there is of its training");
    fails(25);
    assert_eq!(ends(&lab), [25]);
}

#[test]
fn a_store_that_fails_costs_the_record_and_not_the_training() {
    let lab = Lab::new();
    let shelf = lab.shelf("lost");
    std::fs::write(lab.directory.path().join("runs"), b"in the way").unwrap();
    drop(shelf);
    trained(lab.train_unkept("lost", 2));
    std::fs::remove_file(lab.directory.path().join("runs")).unwrap();
    assert!(lab.records("lost").is_empty());
}

impl Lab {
    /// Without looking for checkpoints.
    fn train_unkept(&self, run: &str, world: u32) -> Vec<Result<Outcome, TrainError>> {
        spawn(world, |collective: ThreadCollective| {
            let recording = Recording { shelf: self.shelf(run), every: self.every, purpose: self.about() };
            let persistence = Persistence { recording: Some(recording), ..Persistence::default() };
            let mut source = self.source(world, collective.rank());
            train_with(&self.config, persistence, Box::new(collective), &mut source, None, &mut |_| ())
        })
    }
}

fn with_another_label(rows: &RecordBatch, row: usize) -> RecordBatch {
    let mut labels: Vec<i64> = rows.column(1).as_primitive::<Int64Type>().values().to_vec();
    labels[row] = (labels[row] + 1) % 10;
    let labels: ArrayRef = std::sync::Arc::new(Int64Array::from(labels));
    RecordBatch::try_new(rows.schema(), vec![rows.column(0).clone(), labels]).unwrap()
}

/// The first step and the virtual rank that are given what lab's rows differ in from the plain ones.
fn first_use(lab: &Lab, row: usize) -> (u64, u32) {
    let plain = Lab {
        rows: digits_like_rows(333, 1),
        directory: tempfile::tempdir().unwrap(),
        config: lab.config.clone(),
        ..*lab
    };
    assert_ne!(plain.rows.slice(row, 1), lab.rows.slice(row, 1));
    let (mut ours, mut theirs) = (lab.source(1, 0), plain.source(1, 0));
    loop {
        let (a, b) = (ours.next_step().unwrap().unwrap(), theirs.next_step().unwrap().unwrap());
        let differs = a.micro_batches.iter().zip(&b.micro_batches).find(|(a, b)| a.rows != b.rows);
        if let Some((differing, _)) = differs {
            return (a.step, differing.virtual_rank);
        }
    }
}
