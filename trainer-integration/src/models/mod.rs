//! Models for common kinds of data.

mod conv;
mod gpt;
mod mlp;
mod perceptron;
mod resnet;

use burn::tensor::Device;

pub use conv::{Norm, conv_net};
pub use gpt::{Gpt, GptSize, gpt};
pub use mlp::Mlp;
pub use perceptron::perceptron;
pub use resnet::{Resnet18, resnet18};

use crate::model::Model;

/// Channels, height and width of an image.
pub type ImageShape = [usize; 3];

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

    /// The dimensions of so many of them.
    pub fn rows(self, count: usize) -> Vec<usize> {
        match self {
            InputShape::Image([channels, height, width]) => vec![count, channels, height, width],
            InputShape::Features(columns) => vec![count, columns],
        }
    }
}

/// The small model for this kind of input: [`conv_net`] or [`perceptron`], with dropout of a share before its last layer.
pub fn small(shape: InputShape, classes: usize, norm: Norm, dropout: f32, device: &Device) -> Model {
    match shape {
        InputShape::Image(shape) => conv_net(shape, classes, norm, dropout, device).into_model(),
        InputShape::Features(count) => perceptron(count, classes, dropout, device).into_model(),
    }
}
