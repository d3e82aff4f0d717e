//! Trainings of which some parameters are frozen.

use std::collections::BTreeMap;

use burn::tensor::Device;

use super::*;
use crate::model::FreezeError;
use crate::models::gpt;

pub(super) const GPT: GptSize = GptSize { layers: 4, heads: 4, width: 32 };

pub(super) fn patterns(texts: &[&str]) -> Vec<NamePattern> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

pub(super) fn gpt_config(size: GptSize, freeze: &[&str]) -> TrainConfig {
    let model = ModelOptions { kind: ModelKind::Gpt(size), dropout: 0.1, ..ModelOptions::default() };
    TrainConfig {
        virtual_ranks: 4,
        epochs: 1,
        model,
        freeze: patterns(freeze),
        optimizer: Optimizer::adamw(0.1),
        rate: 1e-3,
        warm_up_epochs: 0.0,
        compare_every: 0,
        ..TrainConfig::default()
    }
}

/// The results of a training of this many epochs over these rows, 32 in a step, on all ranks.
pub(super) fn on_rows(
    world: u32,
    config: &TrainConfig,
    start: &Start,
    rows: &RecordBatch,
    epochs: u32,
) -> Vec<Trained> {
    spawn(world, |collective: ThreadCollective| {
        let (rank, ranks) = (collective.rank(), VirtualRanks { count: 4, world });
        let mut source = MemorySteps::new(rows.clone(), ranks, rank, 8, epochs);
        let persistence = Persistence { start: start.clone(), ..Persistence::default() };
        let outcome = train_with(config, persistence, Box::new(collective), &mut source, None, &mut |_| ());
        let Outcome::Trained(trained) = outcome.unwrap() else { panic!("it got no stop signal") };
        *trained
    })
}

fn by_name(trained: &Trained) -> BTreeMap<String, Vec<f32>> {
    let weights = trained.weights.as_ref().unwrap();
    weights.0.iter().map(|named| (named.name.clone(), named.values.clone())).collect()
}

/// The names of the tensors that differ.
pub(super) fn moved(before: &Trained, after: &Trained) -> Vec<String> {
    let (before, after) = (by_name(before), by_name(after));
    assert!(before.keys().eq(after.keys()));
    before.into_iter().filter(|(name, values)| after[name] != *values).map(|(name, _)| name).collect()
}

#[test]
fn frozen_parameters_stay_and_the_others_are_the_same_for_any_ranks_and_stage() {
    let images = |norm, freeze: &[&str]| {
        let model = ModelOptions { norm, ..ModelOptions::default() };
        let optimizer = Optimizer::adamw(0.1);
        TrainConfig { model, optimizer, rate: 1e-3, freeze: patterns(freeze), epochs: 1, ..config() }
    };
    let (text, digits) = (sequences(96, 9), digits_like_rows(96, 1));
    for (config, rows, trained_names) in [
        // The first blocks, whose tokens the head uses again; with precision of 16 bits as well.
        (gpt_config(GPT, &["embed", "layer[0-2]"]), &text, vec!["head", "layer3"]),
        (
            TrainConfig { precision: Precision::Bf16, ..gpt_config(GPT, &["embed", "layer[0-2]"]) },
            &text,
            vec!["head", "layer3"],
        ),
        // Others in between, which gradients pass.
        (gpt_config(GPT, &["layer[12]", "*.bias"]), &text, vec!["embed", "head", "layer0", "layer3"]),
        // All but one kind of parameter.
        (
            gpt_config(GPT, &["embed", "head", "layer?.[!n]*"]),
            &text,
            vec!["layer0", "layer1", "layer2", "layer3"],
        ),
        (images(Norm::Batch, &["1"]), &digits, vec!["2", "head"]),
        (images(Norm::Sync, &["1"]), &digits, vec!["2", "head"]),
    ] {
        let initial = on_rows(1, &config, &Start::Seed, rows, 0).remove(0);
        let alone = on_rows(1, &config, &Start::Seed, rows, 1).remove(0);
        let is_frozen = |name: &str| config.freeze.iter().any(|pattern| pattern.matches(name));
        let moved = moved(&initial, &alone);
        let modules: BTreeSet<&str> = (moved.iter().filter(|name| !name.contains("running_")))
            .map(|name| name.split('.').next().unwrap())
            .collect();
        assert!(modules.into_iter().eq(trained_names), "{moved:?}");
        assert!(moved.iter().all(|name| name.contains("running_") || !is_frozen(name)), "{moved:?}");
        assert_eq!(alone.memory.moments, 2 * 4 * alone.trained_parameters, "no state of frozen ones");
        assert!(alone.trained_parameters < alone.parameters);
        for zero in Zero::ALL {
            for world in [1, 2, 3] {
                let config = TrainConfig { slicing: zero.into(), ..config.clone() };
                for trained in on_rows(world, &config, &Start::Seed, rows, 1) {
                    assert_eq!(
                        (trained.digest, &trained.loss_per_epoch),
                        (alone.digest, &alone.loss_per_epoch),
                        "{zero:?}, W={world}, {:?}",
                        config.freeze
                    );
                }
            }
        }
    }
}

#[test]
fn gradients_of_frozen_blocks_are_not_sent() {
    let (rows, steps) = (sequences(96, 9), 3);
    for zero in [Zero::Nothing, Zero::Moments, Zero::Gradients] {
        // The bytes of all ranks in a step: those of two epochs, less those of one.
        let of_step = |freeze: &[&str]| {
            let config = TrainConfig { slicing: zero.into(), ..gpt_config(GPT, freeze) };
            let sent = |epochs| -> (u64, usize) {
                let all = on_rows(2, &config, &Start::Seed, &rows, epochs);
                (all.iter().map(|trained| trained.bytes_sent).sum(), all[0].trained_parameters)
            };
            let ((one, trained), (two, _)) = (sent(1), sent(2));
            ((two - one) / steps, trained as u64)
        };
        let (all, everything) = of_step(&[]);
        let (some, trained) = of_step(&["embed", "layer[0-2]"]);
        assert_eq!(trained, 12 * 32 * 32 + 13 * 32 + 2 * 32, "a layer and the head");
        println!("{zero:?}: {all} bytes a step for {everything} numbers, {some} for {trained}");
        // Each of two ranks sends half of its gradients' sums, of eight bytes each, and half of the rounded ones.
        assert!(all >= 12 * everything && some >= 12 * trained, "{all}, {some}");
        assert!(some < 12 * trained + 2_000, "{some} bytes for {trained} numbers");
    }
}

/// A training that writes a checkpoint every two steps, and resumes from the newest one, on all ranks.
pub(super) fn kept(
    world: u32,
    config: &TrainConfig,
    place: &StorePlace,
    epochs: u32,
) -> Vec<Result<Trained, TrainError>> {
    spawn(world, |mut collective: ThreadCollective| {
        let shelf = CheckpointStore::open(place, &"frozen".parse().unwrap()).unwrap();
        let checkpoint = load(&mut collective, &shelf, &Resume::Auto, config.slicing).unwrap();
        let start =
            checkpoint.as_ref().map_or((0, 0), |it| (it.manifest.place.epoch, it.manifest.place.position));
        let persistence = Persistence {
            start: checkpoint.map_or(Start::Seed, |checkpoint| Start::Checkpoint(Box::new(checkpoint))),
            checkpoints: Some(Checkpoints { shelf, every_steps: Some(2), every: None, keep: 2 }),
            ..Persistence::default()
        };
        let ranks = VirtualRanks { count: 4, world };
        let mut source = MemorySteps::new(sequences(128, 9), ranks, collective.rank(), 8, epochs).from(start);
        let outcome = train_with(config, persistence, Box::new(collective), &mut source, None, &mut |_| ())?;
        let Outcome::Trained(trained) = outcome else { panic!("it got no stop signal") };
        Ok(*trained)
    })
}

/// Whether these are the bytes of a number of numbers in objects, whose headers are small.
pub(super) fn about(numbers: usize, bytes: u64) {
    let expected = 4 * numbers as u64;
    assert!((expected..expected + 8_000).contains(&bytes), "{bytes} for {numbers} numbers");
}

/// Its figures are in the documentation (docs/TRAINER.md, "Checkpoints").
#[test]
fn the_second_checkpoint_of_a_training_has_only_what_is_trained() {
    let size = GptSize { layers: 6, heads: 4, width: 128 };
    let run = |freeze: &[&str], zero: Zero, world| {
        let directory = tempfile::tempdir().unwrap();
        let place = StorePlace::Directory(directory.path().to_owned());
        let config = TrainConfig { slicing: zero.into(), ..gpt_config(size, freeze) };
        let trained = kept(world, &config, &place, 1).remove(0).unwrap();
        assert_eq!(trained.checkpoint_bytes.iter().map(|it| it.step).collect::<Vec<_>>(), [2, 4]);
        let total = |of: fn(&CheckpointBytes) -> u64| trained.checkpoint_bytes.iter().map(of).sum::<u64>();
        let costs = trained.checkpoints;
        assert_eq!(
            (total(|it| it.written_bytes), total(|it| it.present_bytes)),
            (costs.written_bytes, costs.present_bytes)
        );
        trained
    };
    for (zero, world) in [
        (Zero::Nothing, 1),
        (Zero::Nothing, 2),
        (Zero::Moments, 2),
        (Zero::Gradients, 3),
        (Zero::Parameters, 2),
    ] {
        let trained = run(&["embed", "layer[0-4]"], zero, world);
        let (all, moving) = (trained.parameters, trained.trained_parameters);
        let [first, second] = trained.checkpoint_bytes[..] else { panic!("two checkpoints") };
        println!("{zero:?}, W={world}: {first:?}, then {second:?}");
        // Three numbers of each trained weight with Adam, one of each frozen one.
        about(all + 2 * moving, first.written_bytes);
        about(3 * moving, second.written_bytes);
        about(all - moving, second.present_bytes);
        assert_eq!(first.present_bytes, 0);
    }
    let whole = run(&[], Zero::Nothing, 1);
    let [first, second] = whole.checkpoint_bytes[..] else { panic!("two checkpoints") };
    println!("nothing frozen: {first:?}, then {second:?}");
    assert_eq!((first.written_bytes, second.present_bytes), (second.written_bytes, 0));
}

#[test]
fn a_training_resumes_with_the_same_frozen_parameters_alone() {
    let frozen = TrainConfig { epochs: 2, ..gpt_config(GPT, &["embed", "layer[0-2]"]) };
    let rows = sequences(128, 9);
    let whole = on_rows(1, &frozen, &Start::Seed, &rows, 2).remove(0);
    let directory = tempfile::tempdir().unwrap();
    let place = StorePlace::Directory(directory.path().to_owned());
    // It ends after one epoch of two, as if its source had.
    kept(3, &TrainConfig { slicing: Zero::Parameters.into(), ..frozen.clone() }, &place, 1);
    for freeze in [&["embed"][..], &[], &["embed", "layer[0-3]"]] {
        let other = TrainConfig { freeze: patterns(freeze), ..frozen.clone() };
        let error = chain(&kept(1, &other, &place, 2).remove(0).unwrap_err());
        assert!(error.contains("of another training: frozen (") && error.contains("layer2"), "{error}");
    }
    // Other patterns of the same parameters are the same setting.
    let same = TrainConfig { freeze: patterns(&["embed.*", "layer0", "layer[!03].*"]), ..frozen };
    for trained in kept(2, &same, &place, 2) {
        let trained = trained.unwrap();
        assert_eq!((trained.digest, &trained.loss_per_epoch), (whole.digest, &whole.loss_per_epoch));
        assert!(trained.samples_here < whole.samples, "it did not begin again");
        // The objects that three ranks wrote by slices serve two ranks that have everything.
        about(trained.parameters - trained.trained_parameters, trained.checkpoint_bytes[0].present_bytes);
    }
}

#[test]
fn ranks_that_freeze_different_parameters_do_not_start() {
    let rows = sequences(96, 9);
    let errors = spawn(2, |collective: ThreadCollective| {
        let freeze: &[&str] = if collective.rank() == 0 { &["embed"] } else { &["layer0"] };
        let mut source =
            MemorySteps::new(rows.clone(), VirtualRanks { count: 4, world: 2 }, collective.rank(), 8, 1);
        train(&gpt_config(GPT, freeze), Box::new(collective), &mut source, None, &mut |_| ())
            .unwrap_err()
            .to_string()
    });
    for error in errors {
        assert!(
            error.contains(r#"rank 1 differs from rank 0 in frozen (["layer0"] against ["embed"])"#),
            "{error}"
        );
    }
}

#[test]
fn patterns_that_freeze_nothing_or_everything_are_refused() {
    let model = || gpt(11, 8, GPT, 0.0, &Device::flex()).into_model();
    let error = model().freeze(&patterns(&["layer0", "layers.1"])).unwrap_err();
    let FreezeError::NoMatch { pattern, names } = &error else { panic!("{error}") };
    assert_eq!(pattern, "layers.1");
    for name in ["embed.tokens", "layer3.attention.mix.bias", "head.norm.gamma"] {
        assert!(names.contains(name), "{names}");
    }
    for all in [&["*"][..], &["embed", "layer?", "head"]] {
        let error = model().freeze(&patterns(all)).unwrap_err();
        assert!(matches!(error, FreezeError::Everything { .. }), "{error}");
        assert!(error.to_string().contains("leave some to be trained"), "{error}");
    }
    let mut some = model();
    some.freeze(&patterns(&["embed", "layer[12]", "*.beta"])).unwrap();
    assert_eq!(
        some.frozen(),
        [
            "embed",
            "layer0.norm1.beta",
            "layer0.norm2.beta",
            "layer1",
            "layer2",
            "layer3.norm1.beta",
            "layer3.norm2.beta",
            "head.norm.beta"
        ]
    );
    assert_eq!(model().frozen(), [""; 0]);
    let error = run(
        &TrainConfig { freeze: patterns(&["tail"]), ..config() },
        Box::new(spawn(1, |collective: ThreadCollective| collective).remove(0)),
        ROWS,
    );
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no parameter matches --freeze tail; the model has 1.conv.weight"), "{error}");
}

#[test]
fn a_new_head_begins_by_the_seed_on_a_trained_body_that_is_frozen() {
    let rows = digits_like_rows(96, 1);
    let before = on_rows(1, &TrainConfig { epochs: 1, ..config() }, &Start::Seed, &rows, 1).remove(0);
    let weights = Weights::import(&before.weights.as_ref().unwrap().to_safetensors().unwrap()).unwrap();
    // The other task has more classes, and the head other dimensions.
    let input = InputOptions { classes: Some(12), ..InputOptions::default() };
    let other = TrainConfig { input, seed: 5, freeze: patterns(&["1", "2"]), epochs: 1, ..config() };
    let start = |skip: &[&str]| Start::Partly { weights: weights.clone(), skip: patterns(skip) };
    let seeded = on_rows(1, &other, &Start::Seed, &rows, 0).remove(0);
    for world in [1, 3] {
        let begun = on_rows(world, &other, &start(&["head"]), &rows, 0).remove(0);
        let (begun_with, of_file, of_seed) = (by_name(&begun), by_name(&before), by_name(&seeded));
        for (name, values) in &begun_with {
            let expected = if name.starts_with("head.") { &of_seed[name] } else { &of_file[name] };
            assert_eq!(values, expected, "{name}, W={world}");
        }
        let trained = on_rows(world, &other, &start(&["head"]), &rows, 1).remove(0);
        let moved = moved(&begun, &trained);
        assert!(moved.iter().all(|name| name.starts_with("head.") || name.contains("running_")), "{moved:?}");
        assert!(moved.iter().any(|name| name.starts_with("head.")));
    }
    let refused = |start: Start| {
        let mut source = MemorySteps::new(rows.clone(), VirtualRanks { count: 4, world: 1 }, 0, 8, 1);
        let persistence = Persistence { start, ..Persistence::default() };
        let alone = spawn(1, |collective: ThreadCollective| collective).remove(0);
        let outcome = train_with(&other, persistence, Box::new(alone), &mut source, None, &mut |_| ());
        chain(&outcome.unwrap_err())
    };
    let error = refused(Start::Weights(weights.clone()));
    assert!(error.contains("tensor head.") && error.contains("the model's is"), "{error}");
    let error = refused(start(&["head", "tail"]));
    assert!(error.contains("no tensor matches tail; the file has "), "{error}");
}
