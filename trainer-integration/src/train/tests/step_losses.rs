//! The losses of a step's samples.

use super::*;
use crate::train::step_losses::{SampleLoss, StepLosses};

/// The digest of the weights, the mean loss of the step, and the losses of its samples, of each rank.
fn watched(
    world: u32,
    config: &TrainConfig,
    rows: &RecordBatch,
    step: u64,
) -> Vec<(Digest, f64, Vec<SampleLoss>)> {
    spawn(world, |collective: ThreadCollective| {
        let ranks = VirtualRanks { count: 4, world };
        let mut source = MemorySteps::new(rows.clone(), ranks, collective.rank(), 8, 2);
        let losses = StepLosses::of(step);
        let persistence = Persistence { step_losses: Some(losses.clone()), ..Persistence::default() };
        let mut mean = None;
        let mut observe = |progress: Progress| {
            if u64::from(progress.epoch) * progress.steps + progress.step == step {
                mean = Some(progress.loss);
            }
        };
        let collective = Box::new(collective);
        let outcome = train_with(config, persistence, collective, &mut source, None, &mut observe);
        let Outcome::Trained(trained) = outcome.unwrap() else { panic!("it got no stop signal") };
        (trained.digest, mean.unwrap_or(f64::NAN), losses.found())
    })
}

/// They are of the step's positions, add up to its loss, and are the same on any number of ranks. They change nothing.
fn holds(config: &TrainConfig, rows: &RecordBatch, step: u64, positions: std::ops::Range<u64>) {
    let (plain, _, none) = watched(1, config, rows, u64::MAX).remove(0);
    assert!(none.is_empty());
    let mut alone = None;
    for world in [1, 3, 4] {
        let ranks = watched(world, config, rows, step);
        let mut all: Vec<SampleLoss> = Vec::new();
        for (digest, mean, found) in &ranks {
            assert_eq!(*digest, plain, "W={world}");
            assert!((mean - ranks[0].1).abs() == 0.0);
            all.extend(found);
        }
        all.sort_by_key(|loss| loss.position);
        assert!(all.iter().map(|loss| loss.position).eq(positions.clone()), "W={world}: {all:?}");
        let answers: u64 = all.iter().map(|loss| loss.answers).sum();
        let sum: f64 = all.iter().map(|loss| loss.loss * loss.answers as f64).sum();
        assert!((sum / answers as f64 - ranks[0].1).abs() < 1e-9, "{sum} of {answers}, and {}", ranks[0].1);
        assert_eq!(*alone.get_or_insert_with(|| all.clone()), all, "W={world}");
    }
    let losses = alone.expect("three trainings");
    assert!(losses.iter().any(|loss| loss.loss != losses[0].loss), "each sample has its own");
}

#[test]
fn the_losses_of_samples_add_up_to_that_of_their_step() {
    let rows = digits_like_rows(ROWS, 1);
    for (norm, dropout) in [(Norm::Batch, 0.3), (Norm::Sync, 0.0)] {
        let model = ModelOptions { norm, dropout, ..ModelOptions::default() };
        let config = TrainConfig { model, epochs: 2, augmentation: Augmentation::CropFlip, ..config() };
        holds(&config, &rows, 3, 96..128);
        // The last of an epoch, which has 13 samples.
        holds(&config, &rows, 21, 320..333);
    }
    // Of a sequence it is the mean of its tokens.
    let config = TrainConfig { epochs: 2, ..freeze::gpt_config(freeze::GPT, &[]) };
    holds(&config, &sequences(96, 9), 1, 32..64);
}
