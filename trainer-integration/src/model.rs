//! The models: ordered blocks, chosen by the shape of the input.

use crate::block::{Block, ConvBlock, DenseBlock, DropoutBlock, HeadBlock, ImageShape, StandardiseBlock};
use crate::weights::{Named, Statistics, Weights, ranges};

/// What a sample looks like to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputShape {
    /// Channels, height, width.
    Image(ImageShape),
    /// So many columns.
    Features(usize),
}

impl InputShape {
    /// Numbers per sample.
    pub fn len(self) -> usize {
        match self {
            InputShape::Image(shape) => shape.iter().product(),
            InputShape::Features(count) => count,
        }
    }

    /// Whether a sample has no numbers at all.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Blocks in the order in which a sample passes them; the last one has an output per class.
#[derive(Debug)]
pub struct Model {
    /// The blocks.
    pub blocks: Vec<Box<dyn Block>>,
    /// Numbers per sample.
    pub inputs: usize,
    /// Outputs of the last block.
    pub classes: usize,
}

impl Model {
    /// The small model for this kind of input: [`Model::conv_net`] or [`Model::perceptron`].
    pub fn for_input(shape: InputShape, classes: usize) -> Model {
        match shape {
            InputShape::Image(shape) => Model::conv_net(shape, classes),
            InputShape::Features(count) => Model::perceptron(count, classes),
        }
    }

    /// Two 3x3 convolutions with stride 2 (24 and 48 channels), each with batch normalisation and ReLU, then one linear
    /// layer.
    pub fn conv_net(input: ImageShape, classes: usize) -> Model {
        let first = ConvBlock::new(1, input, 24);
        let second = ConvBlock::new(2, first.output(), 48);
        let features = second.output().iter().product();
        Model {
            blocks: vec![Box::new(first), Box::new(second), Box::new(HeadBlock::new(features, classes))],
            inputs: input.iter().product(),
            classes,
        }
    }

    /// Standardised columns, two linear layers of 64 with batch normalisation and ReLU, then one linear layer.
    pub fn perceptron(features: usize, classes: usize) -> Model {
        const WIDTH: usize = 64;
        Model {
            blocks: vec![
                Box::new(StandardiseBlock::new(features)),
                Box::new(DenseBlock::new(1, features, WIDTH)),
                Box::new(DenseBlock::new(2, WIDTH, WIDTH)),
                Box::new(HeadBlock::new(WIDTH, classes)),
            ],
            inputs: features,
            classes,
        }
    }

    /// The same, with dropout before its last block; as it is, of a share of 0.
    ///
    /// # Panics
    /// As [`DropoutBlock::new`].
    #[must_use]
    pub fn with_dropout(mut self, share: f32) -> Model {
        let dropout = DropoutBlock::new(share);
        if share > 0.0 {
            self.blocks.insert(self.blocks.len() - 1, Box::new(dropout));
        }
        self
    }

    /// How many parameters there are.
    pub fn parameter_count(&self) -> usize {
        self.blocks.iter().flat_map(|block| block.parameters()).map(|parameter| parameter.len()).sum()
    }

    /// The first values of every block's flat buffer.
    pub fn initial(&self, seed: u64) -> Vec<Vec<f32>> {
        let flat = |block: &dyn Block| {
            block.parameters().iter().flat_map(|parameter| parameter.initial(seed)).collect()
        };
        self.blocks.iter().map(|block| flat(&**block)).collect()
    }

    /// What every block's normalisation starts with; empty for a block without.
    pub fn initial_statistics(&self) -> Vec<Statistics> {
        let channels = |block: &dyn Block| block.normalisation().map_or(0, |(_, channels)| channels);
        self.blocks.iter().map(|block| Statistics::new(channels(&**block))).collect()
    }

    /// Names for the numbers: all parameters, then all statistics.
    pub fn name_weights(&self, parameters: &[Vec<f32>], statistics: &[Statistics]) -> Weights {
        let mut named = Vec::new();
        for (block, flat) in self.blocks.iter().zip(parameters) {
            for (parameter, range) in block.parameters().iter().zip(ranges(block.parameters())) {
                let (name, shape) = (parameter.name.clone(), parameter.shape.clone());
                named.push(Named { name, shape, values: flat[range].to_vec() });
            }
        }
        for (block, statistics) in self.blocks.iter().zip(statistics) {
            let Some((norm, channels)) = block.normalisation() else { continue };
            let mut push = |suffix: &str, values: &[f32]| {
                let name = format!("{norm}.{suffix}");
                named.push(Named { name, shape: vec![channels], values: values.to_vec() });
            };
            push("running_mean", &statistics.mean);
            push("running_var", &statistics.variance);
        }
        Weights(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_conv_net_has_the_size_of_its_description() {
        let digits = Model::conv_net([1, 8, 8], 10);
        assert_eq!(digits.parameter_count(), 9 * 24 + 48 + 24 * 9 * 48 + 96 + 192 * 10 + 10);
        let pooled = Model::conv_net([3, 16, 16], 10);
        assert_eq!(pooled.blocks[2].parameters()[0].shape, [768, 10]);
    }

    #[test]
    fn names_are_unique() {
        for model in [Model::conv_net([3, 32, 32], 10), Model::perceptron(5, 3)] {
            let weights = model.name_weights(&model.initial(0), &model.initial_statistics());
            let names: std::collections::BTreeSet<&str> =
                weights.0.iter().map(|named| &named.name[..]).collect();
            assert_eq!(names.len(), weights.0.len());
            let parameters: usize = model.initial(0).iter().map(Vec::len).sum();
            assert_eq!(parameters, model.parameter_count());
        }
    }
}
