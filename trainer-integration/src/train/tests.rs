use std::collections::BTreeSet;

use super::*;
use crate::collective::tcp::{Rendezvous, TcpOptions, connect};
use crate::collective::{ThreadCollective, spawn};
use crate::data::MemoryRows;
use crate::models::{ModelOptions, Norm};
use crate::testkit::{MemorySteps, digits_like_rows, pattern_images, pattern_vectors};

const ROWS: usize = 333; // the last step is short: 333 = 10 x 32 + 13
const EPOCHS: u32 = 3;

fn config() -> TrainConfig {
    TrainConfig { virtual_ranks: 4, epochs: EPOCHS, ..TrainConfig::default() }
}

fn run(config: &TrainConfig, collective: Box<dyn Collective>, rows: usize) -> Result<Trained, TrainError> {
    let ranks = VirtualRanks { count: 4, world: collective.world() };
    let mut source = MemorySteps::new(digits_like_rows(rows, 1), ranks, collective.rank(), 8, EPOCHS);
    let test = MemoryRows::new(digits_like_rows(300, 2));
    train(config, collective, &mut source, Some(&test), &mut |_| ())
}

fn on_threads(world: u32, config: &TrainConfig) -> Vec<Trained> {
    spawn(world, |collective: ThreadCollective| run(config, Box::new(collective), ROWS).unwrap())
}

#[test]
fn the_same_weights_and_figures_on_any_number_of_ranks() {
    let alone = on_threads(1, &config()).remove(0);
    assert!(alone.loss_per_epoch[2] < alone.loss_per_epoch[0] / 4.0, "it learns: {:?}", alone.loss_per_epoch);
    // So few steps, and the running statistics still remember the first weights.
    assert!(alone.evaluation.unwrap().accuracy() > 0.8, "{:?}", alone.evaluation);
    assert_eq!((alone.samples, alone.steps), (ROWS as u64 * 3, 33));
    for world in 2..=4 {
        for rank in on_threads(world, &config()) {
            assert_eq!(rank.digest, alone.digest, "W={world}");
            assert_eq!(rank.loss_per_epoch, alone.loss_per_epoch);
            assert_eq!(rank.evaluation, alone.evaluation);
        }
    }
}

#[test]
fn the_same_weights_with_all_that_is_random_or_joined() {
    for (norm, dropout) in [(Norm::Batch, 0.3), (Norm::Sync, 0.0), (Norm::Group, 0.2)] {
        let model = ModelOptions { norm, dropout, ..ModelOptions::default() };
        let config = TrainConfig { model, augmentation: Augmentation::CropFlip, ..config() };
        let alone = on_threads(1, &config).remove(0);
        let plain = TrainConfig { augmentation: Augmentation::None, ..config.clone() };
        assert_ne!(on_threads(1, &plain)[0].digest, alone.digest);
        for world in 2..=4 {
            for rank in on_threads(world, &config) {
                assert_eq!(rank.digest, alone.digest, "{norm}, W={world}");
            }
        }
    }
}

#[test]
fn the_parts_of_all_steps_are_the_time_of_the_training() {
    for trained in spawn(2, |collective: ThreadCollective| {
        let ranks = VirtualRanks { count: 4, world: 2 };
        let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), ranks, collective.rank(), 8, EPOCHS);
        let mut parts = Vec::new();
        let mut note = |progress: Progress| parts.push(progress.time);
        let trained = train(&config(), Box::new(collective), &mut source, None, &mut note).unwrap();
        (trained, parts)
    }) {
        let (trained, parts) = trained;
        let parts: Vec<f64> =
            parts.iter().flat_map(|it| [it.wait_s, it.decode_s, it.compute_s, it.update_s]).collect();
        assert!(parts.iter().all(|part| *part >= 0.0), "{parts:?}");
        let sum = parts.iter().sum::<f64>();
        assert!(0.0 < sum && sum <= trained.train_s + 1e-9, "{sum} of {}", trained.train_s);
    }
}

#[test]
fn the_same_weights_over_tcp() {
    let alone = on_threads(1, &config()).remove(0);
    let rendezvous = Rendezvous::bind("127.0.0.1:0").unwrap();
    let master = rendezvous.address().to_owned();
    let options = TcpOptions::default();
    std::thread::scope(|scope| {
        let host =
            scope.spawn(|| run(&config(), Box::new(rendezvous.host(3, &options).unwrap()), ROWS).unwrap());
        let joined = [1, 2].map(|rank| {
            let (master, options) = (&master, &options);
            scope.spawn(move || {
                run(&config(), Box::new(connect(master, rank, 3, options).unwrap()), ROWS).unwrap()
            })
        });
        for rank in std::iter::once(host).chain(joined) {
            let trained = rank.join().unwrap();
            assert_eq!(trained.digest, alone.digest);
            assert!(trained.bytes_sent > 0);
        }
    });
}

#[test]
fn the_same_weights_on_any_number_of_threads() {
    // Large enough images, matrices and micro-batches for the kernels to share their work among threads.
    for (rows, batch_size) in [(pattern_images(128, 32, 3), 32), (pattern_vectors(256, 2_304, 3), 64)] {
        let trained = |threads: usize| {
            let config =
                TrainConfig { threads: Some(threads), epochs: 1, virtual_ranks: 2, ..TrainConfig::default() };
            spawn(1, |collective: ThreadCollective| {
                let ranks = VirtualRanks { count: 2, world: 1 };
                let mut source = MemorySteps::new(rows.clone(), ranks, 0, batch_size, 1);
                train(&config, Box::new(collective), &mut source, None, &mut |_| ()).unwrap().digest
            })
            .remove(0)
        };
        let one = trained(1);
        for threads in [2, 3] {
            assert_eq!(trained(threads), one, "{threads} threads");
        }
    }
}

#[test]
fn every_rule_gives_its_own_weights_and_the_same_on_any_number_of_ranks() {
    let rules = [
        TrainConfig { seed: 9, ..config() },
        TrainConfig { optimizer: Optimizer::adam(0.0), rate: 1e-3, ..config() },
        TrainConfig { optimizer: Optimizer::adamw(0.01), rate: 1e-3, ..config() },
        TrainConfig { optimizer: Optimizer::lion(0.1), rate: 1e-4, ..config() },
        TrainConfig { clip: Some(0.05), ..config() },
        TrainConfig { model: ModelOptions { dropout: 0.2, ..ModelOptions::default() }, ..config() },
        TrainConfig { model: ModelOptions { dropout: 0.2, ..ModelOptions::default() }, seed: 9, ..config() },
        TrainConfig { decline: Decline::Linear, ..config() },
        TrainConfig { decline: Decline::Step { epochs: 1, factor: 0.5 }, ..config() },
    ];
    let mut digests = BTreeSet::from([on_threads(1, &config()).remove(0).digest]);
    for rule in &rules {
        let alone = on_threads(1, rule).remove(0);
        assert!(digests.insert(alone.digest), "{rule:?} changes nothing");
        assert!(on_threads(3, rule).iter().all(|rank| rank.digest == alone.digest), "{rule:?}");
    }
}

#[test]
fn more_ranks_than_virtual_ranks_are_refused_with_what_fits() {
    let config = TrainConfig { virtual_ranks: 2, ..config() };
    for error in spawn(3, |collective: ThreadCollective| {
        let ranks = VirtualRanks { count: 4, world: 3 };
        let mut source = MemorySteps::new(digits_like_rows(32, 1), ranks, collective.rank(), 8, 1);
        train(&config, Box::new(collective), &mut source, None, &mut |_| ()).unwrap_err()
    }) {
        assert!(error.to_string().contains("at most 2 ranks"), "{error}");
    }
}

#[test]
fn ranks_with_different_settings_do_not_start() {
    let errors = spawn(2, |collective: ThreadCollective| {
        let seed = u64::from(collective.rank());
        run(&TrainConfig { seed, ..config() }, Box::new(collective), ROWS).unwrap_err().to_string()
    });
    assert!(errors.iter().any(|error| error.contains("seed (1 against 0)")), "{errors:?}");
}

#[test]
fn a_rank_that_fails_tells_the_others_why() {
    let errors = spawn(3, |collective: ThreadCollective| {
        let (rank, ranks) = (collective.rank(), VirtualRanks { count: 4, world: 3 });
        let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), ranks, rank, 8, 1);
        let mut broken = Broken { source: &mut source, steps_left: if rank == 1 { 4 } else { u64::MAX } };
        train(&config(), Box::new(collective), &mut broken, None, &mut |_| ()).unwrap_err()
    });
    assert!(matches!(errors[1], TrainError::Source(_)));
    for error in [&errors[0], &errors[2]] {
        let TrainError::Collective(cause) = error else { panic!("{error}") };
        assert_eq!(cause.rank(), 1);
        assert!(cause.to_string().contains("the cable is out"), "{cause}");
    }
}

#[test]
fn a_rate_that_is_too_high_is_said_so() {
    let config = TrainConfig { rate: 1e20, warm_up_epochs: 0.0, ..config() };
    let errors =
        spawn(1, |collective: ThreadCollective| run(&config, Box::new(collective), ROWS).unwrap_err());
    assert!(errors[0].to_string().contains("--lr"), "{}", errors[0]);
}

#[test]
fn bad_steps_are_skipped_until_nothing_gets_better() {
    let skip = GuardConfig { on_bad_step: OnBadStep::Skip, spike: None };
    let config = TrainConfig { rate: 1e20, warm_up_epochs: 0.0, guard: skip, epochs: 4, ..config() };
    let errors = spawn(2, |collective: ThreadCollective| {
        let rank = collective.rank();
        let ranks = VirtualRanks { count: config.virtual_ranks, world: 2 };
        let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), ranks, rank, 8, config.epochs);
        let mut skipped = Vec::new();
        let mut observe = |progress: Progress| skipped.push(progress.is_skipped);
        let error = train(&config, Box::new(collective), &mut source, None, &mut observe).unwrap_err();
        (error.to_string(), skipped)
    });
    for (error, skipped) in &errors {
        assert!(error.contains("lower the learning rate (--lr)"), "{error}");
        assert_eq!(skipped.iter().filter(|is_skipped| **is_skipped).count(), 9, "the tenth ends it");
        assert!(!skipped[0], "the first was a good one");
    }
    assert_eq!(errors[0], errors[1]);
}

#[test]
fn what_differs_between_ranks_is_named_with_rank_and_block() {
    let errors = spawn(3, |collective: ThreadCollective| {
        let rank = collective.rank();
        let comm = Comm::new(Box::new(collective));
        let block = |block: u8| Digest::of(&[block, if block == 2 && rank == 1 { 1 } else { 0 }]);
        let digests: Vec<Digest> = (0..4).map(block).collect();
        compare(&comm, &digests[..2], "at the start").expect("these are the same");
        compare(&comm, &digests, "at the end").unwrap_err()
    });
    for error in errors {
        assert!(matches!(&error, TrainError::Diverged { rank: 1, block: 2, .. }), "{error}");
        assert!(error.to_string().contains("rank 1 holds other weights than rank 0 in block 2"), "{error}");
    }
}

/// Gives some steps, then fails.
struct Broken<'a> {
    source: &'a mut MemorySteps,
    steps_left: u64,
}

impl StepSource for Broken<'_> {
    fn schema(&self) -> arrow::datatypes::SchemaRef {
        self.source.schema()
    }

    fn steps_per_epoch(&self) -> u64 {
        self.source.steps_per_epoch()
    }

    fn next_step(&mut self) -> Result<Option<Step>, SourceError> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or("the cable is out")?;
        self.source.next_step()
    }

    fn audits(&self) -> Vec<Audit> {
        self.source.audits()
    }

    fn waited(&self) -> std::time::Duration {
        self.source.waited()
    }
}
