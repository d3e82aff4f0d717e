//! How fast this machine trains a model: a few steps of it, with the clock in hand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use serde::Serialize;

use crate::collective::threads;
use crate::data::Samples;
use crate::device::Precision;
use crate::engine::{Engine, EngineError, StepPlan};
use crate::models::{GptSize, InputShape, gpt};
use crate::optim::Optimizer;
use crate::random::Key;
use crate::reduce::{Comm, VirtualRanks};
use crate::train::feed::share_of;
use crate::zero::Zero;
use crate::zero::formula::Transformer;

/// Seconds: the least of a few steps.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Profile {
    /// Forward and back, for each sample of a micro-batch.
    pub sample_s: f64,
    /// The same where graphs are made again (stage 3).
    pub sample_again_s: f64,
    /// The update, for each parameter.
    pub parameter_s: f64,
}

/// Tokens of a sample of the model that stands for others, at most.
const USUAL_LENGTH: usize = 128;

impl Profile {
    /// Of a transformer with a number of parameters, and of tokens in a sample: those of a small one, and as
    /// much more as there are more parameters times tokens.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn guess(
        parameters: usize,
        length: usize,
        optimizer: Optimizer,
        precision: Precision,
    ) -> Result<Profile, EngineError> {
        let (vocabulary, size) = (256, GptSize { layers: 2, heads: 4, width: 256 });
        let measured = of_gpt(vocabulary, length.min(USUAL_LENGTH), size, 4, optimizer, precision)?;
        let blocks = Transformer::gpt(vocabulary, length.min(USUAL_LENGTH), size).1;
        let times = (parameters as f64 * length as f64)
            / (blocks.iter().sum::<usize>() as f64 * length.min(USUAL_LENGTH) as f64);
        Ok(Profile {
            sample_s: times * measured.sample_s,
            sample_again_s: times * measured.sample_again_s,
            parameter_s: measured.parameter_s,
        })
    }
}

/// Steps that are timed, after one that is not.
const STEPS: u64 = 3;

/// Times a [`gpt`] on micro-batches of a number of samples, alone on this machine's processors.
///
/// # Errors
/// As [`Engine::step`].
///
/// # Panics
/// If there is no model of this size.
pub fn of_gpt(
    vocabulary: usize,
    length: usize,
    size: GptSize,
    samples: usize,
    optimizer: Optimizer,
    precision: Precision,
) -> Result<Profile, EngineError> {
    let device = Device::flex();
    let timed = |zero| -> Result<(f64, f64, usize), EngineError> {
        let model = gpt(vocabulary, length, size, 0.0, &device).into_model();
        let (weights, parameters) = (model.initial(0), model.parameter_count());
        let alone = threads::world(1, Duration::from_secs(60)).remove(0);
        let comm = Arc::new(Comm::new(Box::new(alone)));
        let ranks = VirtualRanks { count: 1, world: 1 };
        let mut engine = Engine::blank(model, zero, device.clone(), ranks, optimizer, Key::new(0), comm)
            .with_precision(precision);
        weights.iter().enumerate().for_each(|(block, weights)| engine.begin_block(block, weights));
        let (mut passes, mut updates) = (f64::INFINITY, f64::INFINITY);
        for number in 0..=STEPS {
            let token = |at: usize| at.wrapping_mul(0x9e37_79b9) % vocabulary;
            let features = (0..samples * length).map(|at| token(at) as f32).collect();
            let labels = (0..samples * length).map(|at| token(at + 1) as u32).collect();
            let share = share_of(Samples { features, labels }, InputShape::Tokens(length), &device);
            let began = Instant::now();
            engine.step(vec![share], StepPlan { number, epoch: 0, rate: 1e-4 }, |_| true)?;
            let (all, update) = (began.elapsed(), engine.updating());
            if number > 0 {
                passes = passes.min((all.saturating_sub(update)).as_secs_f64());
                updates = updates.min(update.as_secs_f64());
            }
        }
        Ok((passes, updates, parameters))
    };
    let (passes, updates, parameters) = timed(Zero::Nothing)?;
    let (again, ..) = timed(Zero::Parameters)?;
    let samples = samples as f64;
    let parameter_s = updates / parameters as f64;
    Ok(Profile { sample_s: passes / samples, sample_again_s: again / samples, parameter_s })
}
