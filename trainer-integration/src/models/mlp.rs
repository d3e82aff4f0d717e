//! A perceptron of any depth.

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::conv::before_relu;
use crate::block::{Block, Pass};
use crate::model::Chain;
use crate::nn::linear_layer;
use crate::weights::Init;

/// Linear layers with ReLU between them, of these widths: inputs, hidden ones, classes.
#[derive(Module, Debug)]
pub struct Mlp {
    layers: Vec<MlpLayer>,
}

/// A layer of an [`Mlp`].
#[derive(Module, Debug)]
struct MlpLayer {
    linear: Linear,
    is_last: bool,
}

impl Mlp {
    /// Of these widths.
    ///
    /// # Panics
    /// If there are fewer than two, or one is 0.
    pub fn new(widths: &[usize], device: &Device) -> Mlp {
        assert!(widths.len() >= 2 && !widths.contains(&0), "{widths:?} are not the widths of a perceptron");
        let last = widths.len() - 2;
        let layer = |(index, pair): (usize, &[usize])| {
            let linear = LinearConfig::new(pair[0], pair[1]).with_initializer(Initializer::Zeros);
            MlpLayer { linear: linear.init(device), is_last: index == last }
        };
        Mlp { layers: widths.windows(2).enumerate().map(layer).collect() }
    }

    /// A block for each linear layer: `[rows, inputs]` to logits `[rows, classes]`.
    pub fn into_chain(self) -> Chain<Tensor<2>, Tensor<2>> {
        let mut layers = self.layers.into_iter();
        let chain = Chain::start(layers.next().expect("at least one layer"));
        layers.fold(chain, |chain, layer| chain.then(layer))
    }
}

impl Block for Mlp {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>, pass: &mut Pass) -> Tensor<2> {
        self.layers.iter().fold(input, |hidden, layer| layer.forward(hidden, pass))
    }

    fn init(&self, path: &str, shape: &[usize]) -> Option<Init> {
        before_relu(path, shape)
    }
}

impl Block for MlpLayer {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>, _: &mut Pass) -> Tensor<2> {
        let output = linear_layer(&self.linear, input);
        if self.is_last { output } else { relu(output) }
    }

    fn init(&self, path: &str, shape: &[usize]) -> Option<Init> {
        before_relu(path, shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_a_block_for_each_layer() {
        let model = Mlp::new(&[784, 256, 256, 10], &Device::flex()).into_chain().into_model();
        assert_eq!(model.stages.len(), 3);
        assert_eq!(model.parameter_count(), 784 * 256 + 256 + 256 * 256 + 256 + 2560 + 10);
    }
}
