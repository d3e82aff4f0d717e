//! The small network for images.

use std::fmt;
use std::str::FromStr;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{GroupNorm, GroupNormConfig, Initializer, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::ImageShape;
use crate::block::{Block, Pass};
use crate::model::Chain;
use crate::nn::norm::group_norm;
use crate::nn::{BatchNorm, Dropout, SyncBatchNorm, conv2d_layer, linear_layer};
use crate::weights::Init;

/// The normalisation between layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// Batch normalisation by the micro-batch of a virtual rank.
    #[default]
    Batch,
    /// Batch normalisation by the global batch.
    Sync,
    /// Group normalisation (Wu and He, ECCV 2018), eight channels to a group: no sample depends on another.
    Group,
}

impl FromStr for Norm {
    type Err = String;

    fn from_str(text: &str) -> Result<Norm, String> {
        match text {
            "batch" => Ok(Norm::Batch),
            "sync" => Ok(Norm::Sync),
            "group" => Ok(Norm::Group),
            _ => Err(format!("no normalisation is called {text:?}; give batch, sync or group")),
        }
    }
}

impl fmt::Display for Norm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Norm::Batch => "batch",
            Norm::Sync => "sync",
            Norm::Group => "group",
        })
    }
}

/// Two 3x3 convolutions with stride 2 (24 and 48 channels), each with normalisation and ReLU, then one linear layer: images
/// `[rows, channels, height, width]` to logits `[rows, classes]`.
pub fn conv_net(
    input: ImageShape,
    classes: usize,
    norm: Norm,
    dropout: f32,
    device: &Device,
) -> Chain<Tensor<4>, Tensor<2>> {
    const WIDTHS: [usize; 2] = [24, 48];
    let [channels, height, width] = input;
    let conv = |from, to| conv2d(from, to, 3, 2, device);
    let pixels = height.div_ceil(2).div_ceil(2) * width.div_ceil(2).div_ceil(2);
    let head = Head::new(WIDTHS[1] * pixels, classes, dropout, device);
    let [first, second] = WIDTHS;
    match norm {
        Norm::Sync => Chain::start(Conv { conv: conv(channels, first) })
            .named("1")
            .then(SyncNorm { norm: SyncBatchNorm::new(first, device) })
            .named("1")
            .then(Conv { conv: conv(first, second) })
            .named("2")
            .then(SyncNorm { norm: SyncBatchNorm::new(second, device) })
            .named("2")
            .then(head)
            .named("head"),
        Norm::Batch | Norm::Group => {
            let block = |from, to| ConvNorm { conv: conv(from, to), norm: LocalNorm::new(norm, to, device) };
            Chain::start(block(channels, first))
                .named("1")
                .then(block(first, second))
                .named("2")
                .then(head)
                .named("head")
        }
    }
}

/// A convolution without bias, padded so that stride 1 keeps height and width, and stride 2 halves them, rounded up.
pub(super) fn conv2d(from: usize, to: usize, kernel: usize, stride: usize, device: &Device) -> Conv2d {
    let padding = kernel / 2;
    Conv2dConfig::new([from, to], [kernel, kernel])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(padding, padding, padding, padding))
        .with_bias(false)
        .with_initializer(Initializer::Zeros)
        .init(device)
}

/// He's initialisation of a kernel or matrix, whose variance ReLU keeps (ICCV 2015); others as they are.
pub(super) fn before_relu(path: &str, shape: &[usize]) -> Option<Init> {
    let fan_in: usize = match shape {
        [inputs, _] => *inputs,
        [_, kernel @ ..] if !kernel.is_empty() => kernel.iter().product(),
        _ => return None,
    };
    path.ends_with("weight").then_some(Init::Uniform { bound: (6.0 / fan_in as f32).sqrt() })
}

#[derive(Module, Debug)]
struct Conv {
    conv: Conv2d,
}

impl Block for Conv {
    type Input = Tensor<4>;
    type Output = Tensor<4>;

    fn forward(&self, input: Tensor<4>, _: &mut Pass) -> Tensor<4> {
        conv2d_layer(&self.conv, input)
    }

    fn init(&self, path: &str, shape: &[usize]) -> Option<Init> {
        before_relu(path, shape)
    }
}

/// Normalisation by the global batch, and ReLU.
#[derive(Module, Debug)]
struct SyncNorm {
    norm: SyncBatchNorm,
}

impl Block for SyncNorm {
    type Input = Tensor<4>;
    type Output = Tensor<4>;

    fn forward(&self, input: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        relu(self.norm.forward(input, pass.total()))
    }

    fn summarise(&self, input: &Tensor<4>) -> Option<Tensor<1>> {
        Some(self.norm.summarise(input.clone()))
    }

    fn summary_len(&self) -> usize {
        self.norm.summary_len()
    }
}

/// A convolution, normalisation that needs no other virtual rank, and ReLU.
#[derive(Module, Debug)]
pub(super) struct ConvNorm {
    pub(super) conv: Conv2d,
    pub(super) norm: LocalNorm,
}

#[derive(Module, Debug)]
pub(super) enum LocalNorm {
    Batch(BatchNorm),
    Group(GroupNorm),
}

impl LocalNorm {
    /// # Panics
    /// If it is not local.
    pub(super) fn new(norm: Norm, channels: usize, device: &Device) -> LocalNorm {
        const GROUP: usize = 8;
        match norm {
            Norm::Batch => LocalNorm::Batch(BatchNorm::new(channels, device)),
            Norm::Group => LocalNorm::Group(GroupNormConfig::new(channels / GROUP, channels).init(device)),
            Norm::Sync => panic!("synchronised normalisation is a block of its own"),
        }
    }

    pub(super) fn forward(&self, input: Tensor<4>, pass: &Pass) -> Tensor<4> {
        match self {
            LocalNorm::Batch(norm) => norm.forward(input, pass),
            LocalNorm::Group(norm) => group_norm(norm, input),
        }
    }
}

impl Block for ConvNorm {
    type Input = Tensor<4>;
    type Output = Tensor<4>;

    fn forward(&self, input: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        relu(self.norm.forward(conv2d_layer(&self.conv, input), pass))
    }

    fn init(&self, path: &str, shape: &[usize]) -> Option<Init> {
        before_relu(path, shape)
    }
}

/// Dropout, then a linear layer with bias: one output per class.
#[derive(Module, Debug)]
pub(super) struct Head<const D: usize> {
    dropout: Dropout,
    linear: Linear,
}

impl<const D: usize> Head<D> {
    pub(super) fn new(inputs: usize, classes: usize, dropout: f32, device: &Device) -> Head<D> {
        let linear = LinearConfig::new(inputs, classes).with_initializer(Initializer::Zeros).init(device);
        Head { dropout: Dropout::new(dropout), linear }
    }
}

impl<const D: usize> Block for Head<D> {
    type Input = Tensor<D>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<D>, pass: &mut Pass) -> Tensor<2> {
        let features: Tensor<2> = input.flatten(1, D - 1);
        linear_layer(&self.linear, self.dropout.forward(features, pass))
    }

    fn init(&self, path: &str, _: &[usize]) -> Option<Init> {
        let inputs = self.linear.weight.dims()[0];
        path.ends_with("weight").then_some(Init::Uniform { bound: 1.0 / (inputs as f32).sqrt() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_conv_net_has_the_size_of_its_description() {
        let count =
            |input, norm| conv_net(input, 10, norm, 0.0, &Device::flex()).into_model().parameter_count();
        let digits = 9 * 24 + 48 + 24 * 9 * 48 + 96 + 192 * 10 + 10;
        for norm in [Norm::Batch, Norm::Sync, Norm::Group] {
            assert_eq!(count([1, 8, 8], norm), digits);
            assert_eq!(count([1, 7, 5], norm), digits, "odd sizes are rounded up");
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for norm in [Norm::Batch, Norm::Sync, Norm::Group] {
            assert_eq!(norm.to_string().parse(), Ok(norm));
        }
        assert!("layer".parse::<Norm>().unwrap_err().contains("batch, sync or group"));
    }
}
