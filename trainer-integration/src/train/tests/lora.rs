//! Trainings of adapters (LoRA).

use burn::tensor::Device;

use super::freeze::{GPT, about, gpt_config, kept, moved, on_rows, patterns};
use super::*;
use crate::checkpoint::{Exported, export, export_as};
use crate::flat_block::to_numbers;
use crate::models::{Gpt, adapted_model};
use crate::nn::Lora;
use crate::tensor_tree::Part;

fn lora_config(size: GptSize, lora: Lora) -> TrainConfig {
    TrainConfig { lora: Some(lora), rate: 0.02, ..gpt_config(size, &[]) }
}

#[test]
fn adapters_learn_beside_weights_that_stay_and_the_same_for_any_ranks_and_stage() {
    let rows = sequences(96, 9);
    let base = on_rows(1, &gpt_config(GPT, &[]), &Start::Seed, &rows, 1).remove(0);
    let base_weights = base.weights.clone().unwrap();
    let start = Start::Weights(Weights::import(&base_weights.to_safetensors().unwrap()).unwrap());
    let config = TrainConfig { epochs: 4, ..lora_config(GPT, Lora { alpha: 8.0, ..Lora::of_rank(4) }) };
    let begun = on_rows(1, &config, &start, &rows, 0).remove(0);
    let of = |trained: &Trained, name: &str| {
        let named = trained.weights.as_ref().unwrap().0.iter().find(|named| named.name == name);
        named.unwrap_or_else(|| panic!("there is {name}")).clone()
    };
    for named in &base_weights.0 {
        assert_eq!(of(&begun, &named.name), *named, "the weights of the file");
    }
    let (first, second) =
        (of(&begun, "layer1.attention.mix.lora_a"), of(&begun, "layer1.attention.mix.lora_b"));
    assert_eq!((&first.shape[..], &second.shape[..]), (&[32, 4][..], &[4, 96][..]));
    assert!(
        first.values.iter().any(|number| *number != 0.0) && second.values.iter().all(|number| *number == 0.0)
    );

    let alone = on_rows(1, &config, &start, &rows, 4).remove(0);
    assert_eq!(alone.trained_parameters, 4 * (4 * (32 + 96) + 4 * (32 + 32)));
    let moved = moved(&begun, &alone);
    assert_eq!(moved.len(), 4 * 2 * 2, "{moved:?}");
    assert!(moved.iter().all(|name| name.contains(".lora_")), "{moved:?}");
    let losses = &alone.loss_per_epoch;
    assert!(losses[3] < losses[0] - 0.05, "it learns: {losses:?}");
    let other_scale = lora_config(GPT, Lora { alpha: 4.0, ..Lora::of_rank(4) });
    let other_scale = TrainConfig { epochs: 4, ..other_scale };
    assert_ne!(on_rows(1, &other_scale, &start, &rows, 4)[0].digest, alone.digest);
    for zero in Zero::ALL {
        for world in [1, 2, 3] {
            let config = TrainConfig { slicing: zero.into(), ..config.clone() };
            for trained in on_rows(world, &config, &start, &rows, 4) {
                let found = (trained.digest, &trained.loss_per_epoch);
                assert_eq!(found, (alone.digest, losses), "{zero:?}, W={world}");
            }
        }
    }
}

/// The logits of a model with these weights for one row.
fn logits(weights: &Weights, options: ModelOptions, lora: Option<&Lora>) -> Vec<f32> {
    let shape = |name: &str| weights.0.iter().find(|named| named.name == name).unwrap().shape[0];
    let (vocabulary, length) = (shape("embed.tokens"), shape("embed.positions"));
    let device = Device::flex();
    let model = adapted_model(InputShape::Tokens(length), vocabulary, options, lora, &device).unwrap();
    let alone = spawn(1, |collective: ThreadCollective| collective).remove(0);
    let (ranks, comm) = (VirtualRanks { count: 1, world: 1 }, Arc::new(Comm::new(Box::new(alone))));
    let mut engine =
        Engine::blank(model, Zero::Nothing, device.clone(), ranks, Optimizer::sgd(0.0), Key::new(0), comm);
    engine.begin_with(weights, &[]).unwrap();
    let input = Part::ints((0..length as i64).map(|at| at * 3 % 11).collect(), &[1, length], &device);
    let running = engine.averaged_running().unwrap();
    let output = engine.output(Some(vec![input]), &running).unwrap().unwrap();
    to_numbers(output[0].float().unwrap().clone())
}

#[test]
fn a_checkpoint_has_the_adapters_and_merged_they_give_the_same_logits() {
    let size = GptSize { layers: 6, heads: 4, width: 128 };
    let lora = Lora { alpha: 16.0, ..Lora::of_rank(8) };
    let config = lora_config(size, lora.clone());
    let directory = tempfile::tempdir().unwrap();
    let place = StorePlace::Directory(directory.path().to_owned());
    let trained = kept(2, &TrainConfig { slicing: Zero::Parameters.into(), ..config.clone() }, &place, 1);
    let trained = trained.into_iter().next().unwrap().unwrap();
    let (all, moving) = (trained.parameters, trained.trained_parameters);
    assert_eq!(moving, 6 * 8 * (128 + 384 + 128 + 128));
    let [first, second] = trained.checkpoint_bytes[..] else { panic!("two checkpoints") };
    println!("{all} numbers, {moving} of adapters: {first:?}, then {second:?}");
    about(all + 2 * moving, first.written_bytes);
    about(3 * moving, second.written_bytes);
    about(all - moving, second.present_bytes);

    let shelf = CheckpointStore::open(&place, &"frozen".parse().unwrap()).unwrap();
    let read = |what| {
        let file = directory.path().join("exported.safetensors");
        export_as(&shelf, None, what, &file).unwrap();
        Weights::import(&std::fs::read(&file).unwrap()).unwrap()
    };
    let (whole, merged, adapters) = (read(Exported::All), read(Exported::Merged), read(Exported::Adapters));
    let is_adapter = |name: &str| name.ends_with(".lora_a") || name.ends_with(".lora_b");
    assert_eq!(whole.0.len(), merged.0.len() + adapters.0.len());
    assert!(adapters.0.iter().all(|named| is_adapter(&named.name) && whole.0.contains(named)));
    assert!(merged.0.iter().all(|named| !is_adapter(&named.name)));

    let (adapted, plain) = (logits(&whole, config.model, Some(&lora)), logits(&merged, config.model, None));
    let base = Weights(whole.0.into_iter().filter(|named| !is_adapter(&named.name)).collect());
    let unmerged = logits(&base, config.model, None);
    let furthest = |one: &[f32], other: &[f32]| {
        one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0f32, f32::max)
    };
    println!("merged {}, without adapters {}", furthest(&adapted, &plain), furthest(&adapted, &unmerged));
    assert!(furthest(&adapted, &plain) < 1e-5);
    assert!(furthest(&adapted, &unmerged) > 1e-3, "adapters do something");
}

#[test]
fn adapters_that_do_not_fit_are_refused() {
    let adapted = |lora: Lora| {
        let gpt = Gpt::new(11, 8, GPT, 0.0, &Device::flex());
        gpt.adapted(&lora, &Device::flex()).unwrap_err().to_string()
    };
    for rank in [0, 33] {
        let error = adapted(Lora::of_rank(rank));
        assert!(error.contains(&format!("rank {rank} does not fit layer0.attention.mix")), "{error}");
        assert!(error.contains("from 1 to 32"), "{error}");
    }
    let error = adapted(Lora { targets: patterns(&["*.attention", "*.query"]), ..Lora::of_rank(4) });
    assert!(
        error.contains("no linear layer matches *.query; the model has layer0.attention.mix, "),
        "{error}"
    );
    let images = TrainConfig { lora: Some(Lora::of_rank(4)), ..config() };
    let alone = spawn(1, |collective: ThreadCollective| collective).remove(0);
    let error = run(&images, Box::new(alone), ROWS).unwrap_err().to_string();
    assert!(error.contains("adapters are for transformers"), "{error}");

    let directory = tempfile::tempdir().unwrap();
    let place = StorePlace::Directory(directory.path().to_owned());
    kept(1, &gpt_config(GPT, &["embed"]), &place, 1);
    let shelf = CheckpointStore::open(&place, &"frozen".parse().unwrap()).unwrap();
    let file = directory.path().join("exported.safetensors");
    for what in [Exported::Merged, Exported::Adapters] {
        let error = export_as(&shelf, None, what, &file).unwrap_err().to_string();
        assert!(error.contains("without adapters"), "{error}");
    }
    export(&shelf, None, &file).unwrap();
    // A training of adapters is another training.
    let error = kept(1, &lora_config(GPT, Lora::of_rank(4)), &place, 1).remove(0).unwrap_err().to_string();
    assert!(error.contains("lora ("), "{error}");
}
