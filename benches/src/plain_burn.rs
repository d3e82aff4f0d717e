//! A loop of burn without any of shardd, over the same modules: the yardstick of the trainer's engine.

use std::fmt;

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use shardd_trainer::random::Key;
use shardd_trainer::{Block, Pass};

use crate::picks;

/// Numbers from -0.5 to 0.5 without a pattern, the same on every run.
pub fn floats<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    let count = shape.iter().product();
    let values: Vec<f32> =
        picks(count, 1 << 16).into_iter().map(|pick| pick as f32 / 65_536.0 - 0.5).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

/// Classes below `bound` without a pattern, the same on every run.
pub fn classes(count: usize, bound: usize) -> Vec<u32> {
    picks(count, bound).into_iter().map(|class| class as u32).collect()
}

/// Matrices that begin by their block's initialisation are made as zeros, which the engine fills. So does this: a GELU of zeros takes no time.
struct Begin;

impl ModuleMapper for Begin {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let is_zero = |tensor: &Tensor<D>| tensor.clone().abs().max().into_scalar::<f32>() == 0.0;
        parameter.map(|tensor| {
            if D == 1 || !is_zero(&tensor) {
                return tensor;
            }
            tensor.random_like(Distribution::Uniform(-0.035, 0.035))
        })
    }
}

/// The loop of burn's own book, with AdamW.
pub struct Plain<M: Module> {
    model: Option<M>,
    optimizer: ModuleOptimizer,
    rate: f32,
}

impl<M: Module> fmt::Debug for Plain<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plain").field("rate", &self.rate).finish_non_exhaustive()
    }
}

impl<M: Block<Output = Tensor<2>>> Plain<M> {
    /// The loop over a model, at a learning rate.
    pub fn new(model: M, rate: f32) -> Plain<M> {
        let optimizer = AdamWConfig::new().with_weight_decay(0.01).init();
        Plain { model: Some(model.map(&mut Begin).valid().train()), optimizer, rate }
    }

    /// Takes a step over a batch.
    ///
    /// # Panics
    /// If a step before panicked.
    pub fn step(&mut self, input: M::Input, labels: &[u32]) {
        let model = self.model.take().expect("put back after every step");
        let logits = model.forward(input, &mut Pass::training(Key::new(0)));
        let labels: Vec<i64> = labels.iter().map(|&label| label.into()).collect();
        let labels = Tensor::<1, Int>::from_data(&labels[..], &logits.device());
        let loss = CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        // The progress of a loop.
        std::hint::black_box(loss.into_scalar::<f32>());
        self.model = Some(self.optimizer.step(f64::from(self.rate), model, gradients));
    }
}
