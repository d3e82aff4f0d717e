//! The small network for columns.

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::conv::{Head, before_relu};
use crate::block::{Block, Pass};
use crate::model::Chain;
use crate::nn::{BatchNorm, linear_layer};
use crate::weights::Init;

/// Standardised columns, two linear layers of 64 with batch normalisation and ReLU, then one linear layer: `[rows, features]` to logits
/// `[rows, classes]`.
pub fn perceptron(
    features: usize,
    classes: usize,
    dropout: f32,
    device: &Device,
) -> Chain<Tensor<2>, Tensor<2>> {
    const WIDTH: usize = 64;
    Chain::start(Standardise { norm: BatchNorm::new(features, device).without_affine() })
        .named("input")
        .then(Dense::new(features, WIDTH, device))
        .named("1")
        .then(Dense::new(WIDTH, WIDTH, device))
        .named("2")
        .then(Head::<2>::new(WIDTH, classes, dropout, device))
        .named("head")
}

/// Standardised columns, then a linear layer with bias: `[rows, features]` to logits `[rows, classes]`.
pub fn linear(features: usize, classes: usize, dropout: f32, device: &Device) -> Chain<Tensor<2>, Tensor<2>> {
    Chain::start(Standardise { norm: BatchNorm::new(features, device).without_affine() })
        .named("input")
        .then(Head::<2>::new(features, classes, dropout, device))
        .named("head")
}

/// Brings columns of any scale to mean 0 and variance 1.
#[derive(Module, Debug)]
struct Standardise {
    norm: BatchNorm,
}

impl Block for Standardise {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>, pass: &mut Pass) -> Tensor<2> {
        self.norm.forward(input, pass).cast(self.norm.precision())
    }

    fn wants_full_input(&self) -> bool {
        true
    }
}

/// Linear layer, batch normalisation, ReLU.
#[derive(Module, Debug)]
pub(super) struct Dense {
    linear: Linear,
    norm: BatchNorm,
}

impl Dense {
    pub(super) fn new(inputs: usize, outputs: usize, device: &Device) -> Dense {
        let linear = LinearConfig::new(inputs, outputs).with_bias(false);
        Dense {
            linear: linear.with_initializer(Initializer::Zeros).init(device),
            norm: BatchNorm::new(outputs, device),
        }
    }
}

impl Block for Dense {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>, pass: &mut Pass) -> Tensor<2> {
        relu(self.norm.forward(linear_layer(&self.linear, input), pass))
    }

    fn init(&self, path: &str, shape: &[usize]) -> Option<Init> {
        before_relu(path, shape)
    }
}
