mod compression;
mod freeze;
mod lora;
mod regroup;
mod step_losses;

use std::collections::BTreeSet;

use arrow::array::{FixedSizeListArray, UInt8Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use shardd_store::catalog::StorePlace;

use super::*;
use crate::checkpoint::{CheckpointStore, Resume, load};
use crate::collective::tcp::{Rendezvous, TcpOptions, connect};
use crate::collective::{ThreadCollective, spawn};
use crate::data::MemoryRows;
use crate::models::{GptSize, ModelKind, ModelOptions, Norm};
use crate::optim::ReduceOnPlateau;
use crate::source::{SourceError, Step};
use crate::testkit::{MemorySteps, digits_like_rows, pattern_images, pattern_vectors};
use crate::weights::Named;

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
fn what_ranks_keep_slices_of_changes_nothing_that_is_learnt() {
    let adamw = Optimizer::adamw(0.01);
    for (precision, norm, optimizer) in [
        (Precision::F32, Norm::Batch, adamw),
        (Precision::F32, Norm::Sync, adamw),
        (Precision::Bf16, Norm::Group, adamw),
        (Precision::Bf16, Norm::Group, Optimizer::lamb(0.01)),
        (Precision::F16, Norm::Sync, adamw),
    ] {
        let model = ModelOptions { norm, dropout: 0.2, ..ModelOptions::default() };
        let config = TrainConfig { model, precision, optimizer, rate: 0.01, clip: Some(1.0), ..config() };
        let alone = on_threads(1, &config).remove(0);
        for zero in Zero::ALL {
            for world in [1, 3, 4] {
                for (rank, trained) in
                    on_threads(world, &TrainConfig { slicing: zero.into(), ..config.clone() })
                        .iter()
                        .enumerate()
                {
                    let scaled = |it: &Trained| (it.overflows, it.loss_scale);
                    let figures =
                        |it: &Trained| (it.digest, it.loss_per_epoch.clone(), it.evaluation, scaled(it));
                    assert_eq!(figures(trained), figures(&alone), "{zero:?}, W={world}, {norm}, {precision}");
                    let is_whole =
                        zero == Zero::Nothing || zero < Zero::Parameters && precision == Precision::F32;
                    assert_eq!(trained.weights.is_some(), rank == 0 || is_whole);
                    let less = trained.memory.moments < alone.memory.moments;
                    assert_eq!(less, world > 1 && zero > Zero::Nothing, "{:?}", trained.memory);
                }
            }
        }
    }
}

#[test]
fn the_parts_of_all_steps_are_the_time_of_the_training() {
    for trained in spawn(2, |collective: ThreadCollective| {
        let ranks = VirtualRanks { count: 4, world: 2 };
        let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), ranks, collective.rank(), 8, EPOCHS);
        let mut steps = Vec::new();
        let mut note = |progress: Progress| steps.push(progress);
        let trained = train(&config(), Box::new(collective), &mut source, None, &mut note).unwrap();
        (trained, steps)
    }) {
        let (trained, steps) = trained;
        let times = steps.iter().map(|it| it.time);
        let parts: Vec<f64> =
            times.flat_map(|it| [it.wait_s, it.decode_s, it.compute_s, it.update_s]).collect();
        assert!(parts.iter().all(|part| *part >= 0.0), "{parts:?}");
        assert!(
            steps.iter().all(|it| (0.0..=it.time.update_s).contains(&it.time.reduce_s)),
            "a part of a part"
        );
        let left: Vec<f64> = steps.iter().map(|it| it.left_s).collect();
        assert!(left[0] > 0.0 && left[32] == 0.0, "{left:?}");
        // Laps follow each other without a gap, so nothing is left but the error of adding them.
        let (sum, train_s) = (parts.iter().sum::<f64>(), trained.train_s);
        assert!(0.0 < train_s && (sum - train_s).abs() <= 1e-6 * train_s, "{sum} of {train_s}");
    }
}

#[test]
fn a_slow_rank_is_named_while_it_trains() {
    let config = TrainConfig { compare_every: 4, ..config() };
    for steps in spawn(2, |collective: ThreadCollective| {
        let (rank, ranks) = (collective.rank(), VirtualRanks { count: 4, world: 2 });
        let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), ranks, rank, 8, EPOCHS);
        let mut steps = Vec::new();
        let mut note = |progress: Progress| {
            // Rank 1 takes several times as long for a step.
            let (now, work) = (Instant::now(), progress.time.compute_s + progress.time.update_s);
            while rank == 1 && now.elapsed().as_secs_f64() < 3.0 * work + 0.005 {
                std::thread::yield_now();
            }
            steps.push(progress);
        };
        train(&config, Box::new(collective), &mut source, None, &mut note).unwrap();
        steps
    }) {
        assert!(steps[..3].iter().all(|step| step.straggler.is_none()), "nothing was compared");
        let named: Vec<u32> = steps[4..].iter().filter_map(|step| Some(step.straggler?.rank)).collect();
        assert!(named.len() > 20 && named.iter().all(|rank| *rank == 1), "{named:?}");
    }
}

#[test]
fn what_is_made_on_the_device_a_step_ahead_trains_the_same_weights() {
    for augmentation in [Augmentation::None, Augmentation::CropFlip] {
        let here = TrainConfig { augmentation, ..config() };
        let there = TrainConfig { preparation: Some(Preparation::Device), ..here.clone() };
        let here = on_threads(1, &here).remove(0);
        for (world, threads) in [(1, Some(1)), (1, None), (3, Some(2))] {
            for rank in on_threads(world, &TrainConfig { threads, ..there.clone() }) {
                assert_eq!((rank.digest, &rank.loss_per_epoch), (here.digest, &here.loss_per_epoch));
                assert_eq!(rank.audits.len(), here.audits.len());
            }
        }
    }
}

#[test]
fn a_row_that_cannot_be_used_ends_the_training_wherever_it_is_looked_at() {
    let messages = [Preparation::Host, Preparation::Device].map(|place| {
        let input = InputOptions { classes: Some(9), ..InputOptions::default() };
        let config = TrainConfig { preparation: Some(place), input, ..config() };
        let fails = |collective| run(&config, Box::new(collective), ROWS).unwrap_err().to_string();
        spawn(1, |collective: ThreadCollective| fails(collective)).remove(0)
    });
    assert!(messages[0].contains("label 9 of the sample at position"), "{messages:?}");
    assert_eq!(messages[0], messages[1]);
}

#[test]
fn sixteen_bits_learn_as_well_and_the_same_on_any_number_of_ranks() {
    for precision in [Precision::Bf16, Precision::F16] {
        // So low a scale that no step is lost.
        let config = TrainConfig { precision, loss_scale: LossScale::of_exponent(4), ..config() };
        let alone = on_threads(1, &config).remove(0);
        let full = on_threads(1, &TrainConfig { precision: Precision::F32, ..config.clone() }).remove(0);
        assert_ne!(alone.digest, full.digest);
        let of = |trained: &Trained| trained.loss_per_epoch[0];
        println!("{precision}: {:?}, in 32 bits {:?}", alone.loss_per_epoch, full.loss_per_epoch);
        assert!((of(&alone) - of(&full)).abs() < 0.05 * of(&full), "{} against {}", of(&alone), of(&full));
        assert!(alone.evaluation.unwrap().accuracy() > 0.8, "{:?}", alone.evaluation);
        assert_eq!((alone.skipped_steps, full.loss_scale), (0, None));
        let bf16 = |weight: f32| half::bf16::from_f32(weight).to_f32();
        let f16 = |weight: f32| half::f16::from_f32(weight).to_f32();
        let rounded = |weight| if precision == Precision::F16 { f16(weight) } else { bf16(weight) };
        let parameters = &alone.weights.as_ref().unwrap().0[0].values;
        let are_rounded = parameters.iter().all(|weight| rounded(*weight) == *weight);
        assert!(!are_rounded, "the weights themselves have 32 bits");
        for world in 2..=4 {
            for rank in on_threads(world, &config) {
                assert_eq!((rank.digest, rank.evaluation), (alone.digest, alone.evaluation), "W={world}");
            }
        }
        let fast = TrainConfig { reduction: Reduction::Fast(Default::default()), ..config };
        let fast = on_threads(2, &fast);
        assert_eq!(fast[0].digest, fast[1].digest);
        assert!((of(&fast[0]) - of(&alone)).abs() < 0.01 * of(&alone));
    }
}

#[test]
fn a_scale_that_is_far_too_high_falls_and_is_the_same_on_any_number_of_ranks() {
    let config =
        TrainConfig { precision: Precision::F16, loss_scale: LossScale::of_exponent(22), ..config() };
    let told = |world: u32| {
        spawn(world, |collective: ThreadCollective| {
            let ranks = VirtualRanks { count: 4, world };
            let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), ranks, collective.rank(), 8, EPOCHS);
            let mut told = Vec::new();
            let mut observe = |progress: Progress| told.push((progress.is_skipped, progress.loss_scale));
            let trained = train(&config, Box::new(collective), &mut source, None, &mut observe).unwrap();
            (told, trained.overflows, trained.skipped_steps, trained.loss_scale, trained.digest)
        })
    };
    let alone = told(1).remove(0);
    let (steps, overflows, skipped, scale, _) = &alone;
    println!("{overflows} of {} steps were too large; the scale in the end: {scale:?}", steps.len());
    assert!(*overflows >= 3 && overflows == skipped);
    let mut expected = LossScale::of_exponent(22);
    for (is_skipped, told) in steps {
        assert_eq!(*told, Some(expected.factor()));
        expected = if *is_skipped { expected.fallen() } else { expected.held() };
    }
    assert_eq!(*scale, Some(expected));
    for world in 2..=4 {
        assert!(told(world).iter().all(|rank| *rank == alone), "W={world}");
    }
}

#[test]
fn what_no_scale_brings_into_sixteen_bits_is_a_bad_step() {
    // Weights that are infinite in 16 bits, whatever gradients are multiplied by.
    let trained = on_threads(1, &config()).remove(0);
    let mut weights = trained.weights.unwrap();
    weights.0[0].values.fill(1e6);
    let lowest = LossScale::of_exponent(LossScale::LOWEST + 2);
    let config = TrainConfig { precision: Precision::F16, loss_scale: lowest, ..config() };
    let persistence = Persistence { start: Start::Weights(weights), ..Persistence::default() };
    let errors = spawn(2, |collective: ThreadCollective| {
        let ranks = VirtualRanks { count: 4, world: 2 };
        let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), ranks, collective.rank(), 8, EPOCHS);
        let mut skipped = 0;
        let mut observe = |progress: Progress| skipped += u32::from(progress.is_skipped);
        let outcome =
            train_with(&config, persistence.clone(), Box::new(collective), &mut source, None, &mut observe);
        (outcome.unwrap_err().to_string(), skipped)
    });
    for (error, skipped) in errors {
        assert_eq!(skipped, 2, "as often as the scale could be lower");
        assert!(error.contains("epoch 0, step 2") && error.contains("as little as it may be"), "{error}");
    }
}

#[test]
fn columns_that_sixteen_bits_do_not_hold_are_standardised_before() {
    let scaled = |precision| {
        // Values of 0 to 255 in the rows become 0 to 25,500,000.
        let input = InputOptions { input_max: Some(1e-5), ..InputOptions::default() };
        let (loss_scale, epochs) = (LossScale::of_exponent(4), 2);
        let config = TrainConfig { precision, input, loss_scale, epochs, ..config() };
        let mut trained = spawn(2, |collective: ThreadCollective| {
            let ranks = VirtualRanks { count: 4, world: 2 };
            let rows = pattern_vectors(256, 12, 3);
            let mut source = MemorySteps::new(rows, ranks, collective.rank(), 8, epochs);
            train(&config, Box::new(collective), &mut source, None, &mut |_| ()).unwrap()
        });
        assert_eq!(trained[0].digest, trained[1].digest);
        trained.remove(0).loss_per_epoch
    };
    let full = scaled(Precision::F32);
    for precision in [Precision::Bf16, Precision::F16] {
        let found = scaled(precision);
        println!("{precision}: {found:?}, in 32 bits {full:?}");
        assert!((found[0] - full[0]).abs() < 0.02 * full[0], "{precision}: {found:?} against {full:?}");
    }
}

#[test]
fn every_layer_can_be_computed_in_sixteen_bits() {
    let images = |model| (digits_like_rows(64, 1), model);
    let with = |norm| ModelOptions { norm, dropout: 0.2, ..ModelOptions::default() };
    let gpt = ModelKind::Gpt(GptSize { layers: 1, heads: 2, width: 16 });
    let cases = [
        images(with(Norm::Batch)),
        images(with(Norm::Sync)),
        images(with(Norm::Group)),
        images(ModelOptions { kind: ModelKind::Resnet18, ..with(Norm::Batch) }),
        images(ModelOptions { kind: ModelKind::Resnet18, ..with(Norm::Group) }),
        (sequences(64, 9), ModelOptions { kind: gpt, ..with(Norm::Batch) }),
    ];
    for (rows, model) in cases {
        let losses = [Precision::F32, Precision::Bf16, Precision::F16].map(|precision| {
            let config = TrainConfig {
                model,
                precision,
                loss_scale: LossScale::of_exponent(4),
                epochs: 1,
                rate: 0.01,
                virtual_ranks: 2,
                ..TrainConfig::default()
            };
            let trained = spawn(2, |collective: ThreadCollective| {
                let ranks = VirtualRanks { count: 2, world: 2 };
                let mut source = MemorySteps::new(rows.clone(), ranks, collective.rank(), 8, 1);
                train(&config, Box::new(collective), &mut source, None, &mut |_| ()).unwrap()
            });
            assert_eq!(trained[0].digest, trained[1].digest);
            trained[0].loss_per_epoch[0]
        });
        println!("{:?}, {}: {losses:?}", model.kind, model.norm);
        for sixteen in &losses[1..] {
            assert!((losses[0] - sixteen).abs() < 0.03 * losses[0], "{model:?}: {losses:?}");
        }
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

/// A loss is lower only if it is below a millionth of the lowest.
fn on_any_plateau() -> LrDecay {
    LrDecay::Plateau(ReduceOnPlateau {
        factor: 0.5,
        patience: 0,
        threshold: 1.0 - 1e-6,
        ..ReduceOnPlateau::default()
    })
}

#[test]
fn the_rate_falls_after_an_epoch_whose_loss_is_no_lower_and_the_steps_say_so() {
    for world in [1, 3] {
        let rates = spawn(world, |collective: ThreadCollective| {
            let ranks = VirtualRanks { count: 4, world };
            let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), ranks, collective.rank(), 8, EPOCHS);
            let config = TrainConfig { decline: on_any_plateau(), ..config() };
            let mut rates = Vec::new();
            let mut note = |progress: Progress| rates.push(progress.rate);
            let trained = train(&config, Box::new(collective), &mut source, None, &mut note).unwrap();
            (trained.loss_per_epoch, rates)
        });
        for (losses, rates) in rates {
            // Warm-up is the first epoch, and the lowest loss before it is infinite.
            assert!(rates[..11].is_sorted() && rates[11..22].iter().all(|rate| *rate == 0.1), "{rates:?}");
            assert!(rates[22..].iter().all(|rate| *rate == 0.05), "{rates:?} after {losses:?}");
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
        TrainConfig { optimizer: Optimizer::lamb(0.01), rate: 0.01, ..config() },
        TrainConfig { optimizer: Optimizer::lars(5e-4), rate: 1.0, ..config() },
        TrainConfig { clip: Some(0.05), ..config() },
        TrainConfig { model: ModelOptions { dropout: 0.2, ..ModelOptions::default() }, ..config() },
        TrainConfig { model: ModelOptions { dropout: 0.2, ..ModelOptions::default() }, seed: 9, ..config() },
        TrainConfig { decline: LrDecay::Linear, ..config() },
        TrainConfig { decline: LrDecay::Step { epochs: 1, factor: 0.5 }, ..config() },
        TrainConfig { decline: on_any_plateau(), ..config() },
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
fn a_bad_step_undoes_those_since_the_checkpoint_also_in_a_training_that_is_interrupted() {
    let guard = GuardConfig { on_bad_step: OnBadStep::RollBack, spike: Some(0.02) };
    let config = TrainConfig { guard, rate: 0.02, ..config() };
    let trained = |outcomes: Vec<Outcome>| match outcomes.into_iter().next() {
        Some(Outcome::Trained(trained)) => trained,
        other => panic!("it got no stop signal: {other:?}"),
    };
    let place = |directory: &tempfile::TempDir| StorePlace::Directory(directory.path().to_owned());
    let directory = tempfile::tempdir().unwrap();
    let whole = trained(in_parts(1, &config, &place(&directory), None));
    println!("{} steps were bad, {} undone", whole.skipped_steps, whole.undone_steps);
    assert!(whole.skipped_steps > 0 && whole.undone_steps > 0);
    assert_ne!(
        whole.digest,
        on_threads(1, &TrainConfig { guard: GuardConfig::default(), ..config.clone() }).remove(0).digest
    );
    let directory = tempfile::tempdir().unwrap();
    for (world, stop_after) in [(3, 11), (2, 9), (4, 3), (1, 2)] {
        in_parts(world, &config, &place(&directory), Some(stop_after));
    }
    let interrupted = trained(in_parts(2, &config, &place(&directory), None));
    assert_eq!(interrupted.digest, whole.digest);
    assert_eq!(interrupted.loss_per_epoch, whole.loss_per_epoch);
    assert_eq!(
        (interrupted.skipped_steps, interrupted.undone_steps),
        (whole.skipped_steps, whole.undone_steps)
    );
    let without =
        spawn(1, |collective: ThreadCollective| run(&config, Box::new(collective), ROWS).unwrap_err());
    assert!(without[0].to_string().contains("--checkpoint-every"), "{}", without[0]);
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

/// A training of `world` ranks in threads that resumes from the stored state, and is asked to stop after a
/// number of steps.
fn in_parts(world: u32, config: &TrainConfig, place: &StorePlace, stop_after: Option<u64>) -> Vec<Outcome> {
    spawn(world, |mut collective: ThreadCollective| {
        let shelf = CheckpointStore::open(place, &"parts".parse().unwrap()).unwrap();
        let checkpoint = load(&mut collective, &shelf, &Resume::Auto, config.slicing).unwrap();
        let start =
            checkpoint.as_ref().map_or((0, 0), |it| (it.manifest.place.epoch, it.manifest.place.position));
        let persistence = Persistence {
            start: checkpoint.map_or(Start::Seed, |checkpoint| Start::Checkpoint(Box::new(checkpoint))),
            checkpoints: Some(Checkpoints { shelf, every_steps: Some(5), every: None, keep: 2 }),
            ..Persistence::default()
        };
        let rank = collective.rank();
        let ranks = VirtualRanks { count: 4, world };
        let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), ranks, rank, 8, EPOCHS).from(start);
        let test = MemoryRows::new(digits_like_rows(300, 2));
        let mut steps = 0;
        let stop = persistence.stop.clone();
        let mut observe = |_: Progress| {
            steps += 1;
            if Some(steps) == stop_after && rank == world - 1 {
                stop.raise();
            }
        };
        train_with(config, persistence, Box::new(collective), &mut source, Some(&test), &mut observe).unwrap()
    })
}

#[test]
fn a_training_that_is_stopped_and_goes_on_with_other_ranks_gives_the_same() {
    let adam = TrainConfig { optimizer: Optimizer::adam(0.0), rate: 1e-3, ..config() };
    // So small a spike that some steps are skipped, and not ten in a row.
    let skips = GuardConfig { on_bad_step: OnBadStep::Skip, spike: Some(0.02) };
    for config in [
        TrainConfig {
            model: ModelOptions { dropout: 0.2, ..ModelOptions::default() },
            clip: Some(1.0),
            ..config()
        },
        TrainConfig { guard: skips, rate: 0.02, ..config() },
        adam.clone(),
        TrainConfig { optimizer: Optimizer::adamw(0.01), ..adam.clone() },
        TrainConfig { optimizer: Optimizer::lion(0.1), rate: 1e-4, ..config() },
        TrainConfig { optimizer: Optimizer::lamb(0.01), rate: 0.01, ..config() },
        TrainConfig { optimizer: Optimizer::lars(5e-4), rate: 1.0, ..config() },
        // So high a threshold that the rate falls after every epoch but the first, and one of the parts ends between
        // two epochs.
        TrainConfig { decline: on_any_plateau(), ..config() },
        // So high a scale that the first steps are skipped.
        TrainConfig { precision: Precision::F16, loss_scale: LossScale::of_exponent(22), ..config() },
    ] {
        let whole = on_threads(1, &config).remove(0);
        let skips = config.guard == skips || config.precision == Precision::F16;
        assert_eq!(whole.skipped_steps > 0, skips, "{}", whole.skipped_steps);
        let directory = tempfile::tempdir().unwrap();
        let place = StorePlace::Directory(directory.path().to_owned());
        let mut steps = 0;
        // A rank hears of it one step later. The second part ends where an epoch does, the third begins there.
        for (world, stop_after) in [(3, 6), (2, 14), (4, 1), (1, 3)] {
            for outcome in in_parts(world, &config, &place, Some(stop_after)) {
                let Outcome::Stopped(stopped) = outcome else { panic!("it was asked to stop") };
                assert_eq!((stopped.steps, stopped.of), (steps + stop_after + 1, 33));
            }
            steps += stop_after + 1;
        }
        for outcome in in_parts(2, &config, &place, None) {
            let Outcome::Trained(trained) = outcome else { panic!("it got no stop signal") };
            assert_eq!(trained.digest, whole.digest, "{config:?}");
            assert_eq!(trained.loss_per_epoch, whole.loss_per_epoch);
            assert_eq!(trained.evaluation, whole.evaluation);
            assert_eq!((trained.steps, trained.samples), (whole.steps, whole.samples));
            assert_eq!(trained.skipped_steps, whole.skipped_steps);
            assert_eq!((trained.overflows, trained.loss_scale), (whole.overflows, whole.loss_scale));
            assert!(trained.samples_here < whole.samples / 4, "it did not begin again");
        }
        // Where nothing is left to do, nothing is done.
        for outcome in in_parts(3, &config, &place, None) {
            let Outcome::Trained(trained) = outcome else { panic!("it got no stop signal") };
            assert_eq!((trained.digest, trained.samples_here), (whole.digest, 0));
        }
    }
}

#[test]
fn a_training_goes_on_at_any_stage_of_zero_from_a_checkpoint_whose_name_does_not_tell_the_stage() {
    let lars = Optimizer::Lars { momentum: 0.9, trust_coefficient: 0.02, weight_decay: 5e-4 };
    for (optimizer, rate) in [(Optimizer::adamw(0.1), 1e-3), (Optimizer::lamb(0.01), 0.01), (lars, 0.5)] {
        goes_on_at_any_stage(&TrainConfig { optimizer, rate, clip: Some(1.0), ..config() });
    }
}

fn goes_on_at_any_stage(config: &TrainConfig) {
    let whole = on_threads(1, config).remove(0);
    let mut names = BTreeSet::new();
    for (zero, world) in [
        (Zero::Nothing, 1),
        (Zero::Nothing, 3),
        (Zero::Moments, 2),
        (Zero::Gradients, 4),
        (Zero::Parameters, 1),
        (Zero::Parameters, 2),
        (Zero::Parameters, 3),
        (Zero::Parameters, 4),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let place = StorePlace::Directory(directory.path().to_owned());
        let sliced = TrainConfig { slicing: zero.into(), ..config.clone() };
        for outcome in in_parts(world, &sliced, &place, Some(8)) {
            assert!(matches!(outcome, Outcome::Stopped(_)), "{zero:?}, W={world}: {outcome:?}");
        }
        let shelf = CheckpointStore::open(&place, &"parts".parse().unwrap()).unwrap();
        names.insert(shelf.list().unwrap().first().copied());
        // On with another stage, other ranks.
        let next = Zero::ALL[(zero.stage() as usize + 1 + world as usize) % 4];
        for outcome in
            in_parts(5 - world, &TrainConfig { slicing: next.into(), ..config.clone() }, &place, None)
        {
            let Outcome::Trained(trained) = outcome else { panic!("it got no stop signal") };
            assert_eq!(trained.digest, whole.digest, "{zero:?}, W={world}, then {next:?}");
            assert!(trained.samples_here < whole.samples, "it did not begin again");
            assert!(trained.checkpoints.count > 0 && trained.checkpoints.written_bytes > 0);
        }
    }
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn a_store_that_fails_ends_no_training_but_one_that_is_to_stop() {
    let whole = on_threads(1, &config()).remove(0);
    for stops in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let place = StorePlace::Directory(directory.path().to_owned());
        let outcomes = spawn(2, |collective: ThreadCollective| {
            let shelf = CheckpointStore::open(&place, &"fails".parse().unwrap()).unwrap();
            let checkpoints = Checkpoints { shelf, every_steps: Some(5), every: None, keep: 2 };
            let persistence = Persistence { checkpoints: Some(checkpoints), ..Persistence::default() };
            let (rank, ranks) = (collective.rank(), VirtualRanks { count: 4, world: 2 });
            let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), ranks, rank, 8, EPOCHS);
            let mut steps = 0;
            let stop = persistence.stop.clone();
            let mut observe = |_: Progress| {
                steps += 1;
                // From now on nothing can be put there.
                if steps == 2 && rank == 0 {
                    std::fs::write(directory.path().join("runs"), b"in the way").unwrap();
                }
                if steps == 12 && stops {
                    stop.raise();
                }
            };
            train_with(&config(), persistence, Box::new(collective), &mut source, None, &mut observe)
        });
        for outcome in outcomes {
            match outcome {
                Ok(Outcome::Trained(trained)) if !stops => assert_eq!(trained.digest, whole.digest),
                Err(error) if stops => {
                    let error = error.to_string();
                    assert!(error.contains("checkpoint of step 13 could not be written"), "{error}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn checkpoints_by_the_clock_are_those_of_steps_that_all_ranks_agree_on() {
    let whole = on_threads(1, &config()).remove(0);
    let directory = tempfile::tempdir().unwrap();
    let place = StorePlace::Directory(directory.path().to_owned());
    let run = "clock".parse().unwrap();
    for trained in spawn(3, |collective: ThreadCollective| {
        let shelf = CheckpointStore::open(&place, &run).unwrap();
        // Rank 0's clock counts, and it is always time.
        let every = (collective.rank() == 0).then_some(std::time::Duration::ZERO);
        let checkpoints = Checkpoints { shelf, every_steps: None, every, keep: 1_000 };
        let persistence = Persistence { checkpoints: Some(checkpoints), ..Persistence::default() };
        let (rank, ranks) = (collective.rank(), VirtualRanks { count: 4, world: 3 });
        let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), ranks, rank, 8, EPOCHS);
        train_with(&config(), persistence, Box::new(collective), &mut source, None, &mut |_| ()).unwrap()
    }) {
        let Outcome::Trained(trained) = trained else { panic!("it got no stop signal") };
        assert_eq!(trained.digest, whole.digest);
    }
    // Every step but the first, after which ranks have not yet heard of each other, and the last.
    let shelf = CheckpointStore::open(&place, &run).unwrap();
    let mut steps: Vec<u64> = shelf.list().unwrap().iter().map(|id| id.step).collect();
    steps.reverse();
    assert_eq!(steps, (2..=33).collect::<Vec<_>>());
}

#[test]
fn a_checkpoint_of_another_training_is_refused_with_what_differs() {
    let directory = tempfile::tempdir().unwrap();
    let place = StorePlace::Directory(directory.path().to_owned());
    in_parts(2, &config(), &place, Some(3));
    let refused = |config: &TrainConfig| {
        let place = &place;
        spawn(1, |mut collective: ThreadCollective| {
            let shelf = CheckpointStore::open(place, &"parts".parse().unwrap()).unwrap();
            let checkpoint = load(&mut collective, &shelf, &Resume::Auto, Zero::Nothing).unwrap().unwrap();
            let start = (checkpoint.manifest.place.epoch, checkpoint.manifest.place.position);
            let start = MemorySteps::new(
                digits_like_rows(ROWS, 1),
                VirtualRanks { count: 4, world: 1 },
                0,
                8,
                EPOCHS,
            )
            .from(start);
            let persistence =
                Persistence { start: Start::Checkpoint(Box::new(checkpoint)), ..Persistence::default() };
            let mut source = start;
            train_with(config, persistence, Box::new(collective), &mut source, None, &mut |_| ())
                .err()
                .map(|error| error.to_string())
        })
        .remove(0)
    };
    for (config, what) in [
        (TrainConfig { seed: 3, ..config() }, "seed (0 against 3)"),
        (TrainConfig { rate: 0.2, ..config() }, "learning rate (0.1 against 0.2)"),
        (
            TrainConfig { model: ModelOptions { dropout: 0.2, ..ModelOptions::default() }, ..config() },
            "dropout",
        ),
        (TrainConfig { epochs: EPOCHS + 1, ..config() }, "epochs (3 against 4)"),
    ] {
        let error = refused(&config).expect("refused");
        assert!(error.contains(what) && error.contains("another --run"), "{error}");
    }
    let skips = GuardConfig { on_bad_step: OnBadStep::Skip, spike: None };
    assert_eq!(refused(&TrainConfig { guard: skips, compare_every: 3, ..config() }), None, "that may change");
}

#[test]
fn a_source_that_begins_elsewhere_than_the_checkpoint_ends_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let place = StorePlace::Directory(directory.path().to_owned());
    in_parts(2, &config(), &place, Some(3));
    let errors = spawn(1, |mut collective: ThreadCollective| {
        let shelf = CheckpointStore::open(&place, &"parts".parse().unwrap()).unwrap();
        let checkpoint = load(&mut collective, &shelf, &Resume::Auto, Zero::Nothing).unwrap().unwrap();
        let persistence =
            Persistence { start: Start::Checkpoint(Box::new(checkpoint)), ..Persistence::default() };
        let ranks = VirtualRanks { count: 4, world: 1 };
        let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), ranks, 0, 8, EPOCHS);
        train_with(&config(), persistence, Box::new(collective), &mut source, None, &mut |_| ()).unwrap_err()
    });
    let error = errors[0].to_string();
    assert!(
        error.contains("begins at position 0 of epoch 0, the one before ended at position 128"),
        "{error}"
    );
}

#[test]
fn weights_of_a_file_are_what_a_training_begins_with() {
    let trained = on_threads(1, &config()).remove(0);
    let with = |weights: Weights, epochs: u32| {
        spawn(2, |collective: ThreadCollective| {
            let persistence =
                Persistence { start: Start::Weights(weights.clone()), ..Persistence::default() };
            let (rank, ranks) = (collective.rank(), VirtualRanks { count: 4, world: 2 });
            let mut source = MemorySteps::new(digits_like_rows(ROWS, 1), ranks, rank, 8, epochs);
            train_with(&config(), persistence, Box::new(collective), &mut source, None, &mut |_| ())
        })
        .remove(0)
    };
    let read = Weights::import(&trained.weights.as_ref().unwrap().to_safetensors().unwrap()).unwrap();
    // Nothing is learnt in no epoch: the output is the input, statistics among it.
    let Outcome::Trained(same) = with(read.clone(), 0).unwrap() else { panic!("it got no stop signal") };
    assert_eq!(same.digest, trained.digest);
    let Outcome::Trained(further) = with(read.clone(), 1).unwrap() else { panic!("it got no stop signal") };
    assert!(further.loss_per_epoch[0] < trained.loss_per_epoch[0] / 4.0, "{:?}", further.loss_per_epoch);

    let changed = |change: fn(&mut Vec<Named>)| {
        let mut weights = read.clone();
        change(&mut weights.0);
        chain(&with(weights, 1).unwrap_err())
    };
    let error = changed(|tensors| tensors.retain(|tensor| tensor.name != "1.conv.weight"));
    assert!(error.contains("no tensor 1.conv.weight"), "{error}");
    let error = changed(|tensors| tensors[0].name.push('s'));
    assert!(error.contains("no tensor"), "{error}");
    let error =
        changed(|tensors| tensors.push(Named { name: "more".into(), shape: vec![1], values: vec![0.0] }));
    assert!(error.contains("the model has no tensor more"), "{error}");
    let error = changed(|tensors| tensors.iter_mut().for_each(|tensor| tensor.shape.reverse()));
    assert!(error.contains("is ["), "{error}");
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

    fn name(&self) -> String {
        self.source.name()
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

/// Rows of `width` tokens, each one more than the last, modulo 11.
fn sequences(count: usize, width: i32) -> RecordBatch {
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let tokens = (0..count as i32).flat_map(|row| (0..width).map(move |at| ((row + at) % 11) as u8));
    let tokens = UInt8Array::from_iter_values(tokens);
    let lists = FixedSizeListArray::new(Arc::clone(&item), width, Arc::new(tokens), None);
    let schema = Schema::new(vec![Field::new("tokens", DataType::FixedSizeList(item, width), false)]);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(lists)]).unwrap()
}
