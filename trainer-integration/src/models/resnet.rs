//! ResNet-18 for small images.

use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::ImageShape;
use super::conv::{ConvNorm, Head, LocalNorm, Norm, before_relu, conv2d};
use crate::block::{Block, Pass};
use crate::model::Chain;
use crate::nn::conv2d_layer;
use crate::weights::Init;

/// ResNet-18 (He et al., CVPR 2016) as it is used for images of 32 pixels: a 3x3 convolution to 64 channels, four times two residual blocks of 64, 128,
/// 256 and 512 channels, of which all but the first begin with stride 2, the mean over all pixels, one linear layer. Images `[rows, channels, height,
/// width]` to logits `[rows, classes]`; 11.2 million parameters for ten classes. Ten blocks.
///
/// # Panics
/// If the norm is [`Norm::Sync`], for which the blocks would have to end in other places.
pub fn resnet18(
    input: ImageShape,
    classes: usize,
    norm: Norm,
    dropout: f32,
    device: &Device,
) -> Chain<Tensor<4>, Tensor<2>> {
    Resnet18::new(input, classes, norm, dropout, device).into_chain()
}

/// [`resnet18`] as one module, which is also a block: in one piece it has one graph, and nothing of it travels before all of it is differentiated.
#[derive(Module, Debug)]
pub struct Resnet18 {
    stem: ConvNorm,
    layers: Vec<Residual>,
    head: PooledHead,
}

impl Resnet18 {
    /// See [`resnet18`].
    ///
    /// # Panics
    /// As [`resnet18`].
    pub fn new(input: ImageShape, classes: usize, norm: Norm, dropout: f32, device: &Device) -> Resnet18 {
        let stem =
            ConvNorm { conv: conv2d(input[0], 64, 3, 1, device), norm: LocalNorm::new(norm, 64, device) };
        let mut layers = Vec::new();
        let mut from = 64;
        for to in [64, 128, 256, 512] {
            for stride in [if from == to { 1 } else { 2 }, 1] {
                layers.push(Residual::new(from, to, stride, norm, device));
                from = to;
            }
        }
        let head = PooledHead { head: Head::new(from, classes, dropout, device) };
        Resnet18 { stem, layers, head }
    }

    /// In ten blocks.
    pub fn into_chain(self) -> Chain<Tensor<4>, Tensor<2>> {
        let mut chain = Chain::start(self.stem).named("stem");
        for (index, block) in self.layers.into_iter().enumerate() {
            chain = chain.then(block).named(&format!("layer{}.{}", index / 2 + 1, index % 2));
        }
        chain.then(self.head).named("head")
    }
}

impl Block for Resnet18 {
    type Input = Tensor<4>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let hidden = self.stem.forward(input, pass);
        let hidden = self.layers.iter().fold(hidden, |hidden, block| block.forward(hidden, pass));
        self.head.forward(hidden, pass)
    }

    fn init(&self, path: &str, shape: &[usize]) -> Option<Init> {
        match path.strip_prefix("head.") {
            Some(path) => self.head.init(path, shape),
            None => before_relu(path, shape),
        }
    }
}

/// Two 3x3 convolutions around which the input passes unchanged, or through a 1x1 convolution where its shape
/// changes.
#[derive(Module, Debug)]
struct Residual {
    conv1: Conv2d,
    norm1: LocalNorm,
    conv2: Conv2d,
    norm2: LocalNorm,
    shortcut: Option<Shortcut>,
}

#[derive(Module, Debug)]
struct Shortcut {
    conv: Conv2d,
    norm: LocalNorm,
}

impl Residual {
    fn new(from: usize, to: usize, stride: usize, norm: Norm, device: &Device) -> Residual {
        let local = || LocalNorm::new(norm, to, device);
        let shortcut = || Shortcut { conv: conv2d(from, to, 1, stride, device), norm: local() };
        Residual {
            conv1: conv2d(from, to, 3, stride, device),
            norm1: local(),
            conv2: conv2d(to, to, 3, 1, device),
            norm2: local(),
            shortcut: (stride > 1 || from != to).then(shortcut),
        }
    }
}

impl Block for Residual {
    type Input = Tensor<4>;
    type Output = Tensor<4>;

    fn forward(&self, input: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        let hidden = relu(self.norm1.forward(conv2d_layer(&self.conv1, input.clone()), pass));
        let hidden = self.norm2.forward(conv2d_layer(&self.conv2, hidden), pass);
        let around = match &self.shortcut {
            Some(Shortcut { conv, norm }) => norm.forward(conv2d_layer(conv, input), pass),
            None => input,
        };
        relu(hidden + around)
    }

    fn init(&self, path: &str, shape: &[usize]) -> Option<Init> {
        before_relu(path, shape)
    }
}

/// The mean over all pixels, then the head.
#[derive(Module, Debug)]
struct PooledHead {
    head: Head<2>,
}

impl Block for PooledHead {
    type Input = Tensor<4>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let [rows, channels, height, width] = input.dims();
        let means = input.reshape([rows, channels, height * width]).mean_dim(2).squeeze_dim(2);
        self.head.forward(means, pass)
    }

    fn init(&self, path: &str, shape: &[usize]) -> Option<Init> {
        self.head.init(path, shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_the_parameters_and_names_of_its_description() {
        let model = resnet18([3, 32, 32], 10, Norm::Batch, 0.0, &Device::flex()).into_model();
        assert_eq!(model.parameter_count(), 11_173_962, "that of the usual implementation in PyTorch");
        assert_eq!(model.stages.len(), 10);
        assert_eq!(model.stages[3].parameters()[0].name, "layer2.0.conv1.weight");
    }
}
