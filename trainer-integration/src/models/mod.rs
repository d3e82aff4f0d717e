//! Models for common kinds of data.

mod conv;
mod gpt;
mod mlp;
mod perceptron;
mod resnet;
mod sparse;

use burn::tensor::Device;

pub use conv::{Norm, conv_net};
pub use gpt::{Gpt, GptSize, PackedTokens, gpt};
pub use mlp::Mlp;
pub use perceptron::{linear, perceptron};
pub use resnet::{Resnet18, resnet18};
pub use sparse::{SparseRows, sparse_linear, sparse_perceptron};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::model::Model;
use crate::nn::Lora;
use crate::nn::lora::is_adapter;
use crate::tensor_tree::Part;

/// Channels, height and width of an image.
pub type ImageShape = [usize; 3];

/// The shape of a sample for a model.
///
/// ```
/// use shardd_trainer::models::InputShape;
///
/// assert_eq!(InputShape::Image([3, 32, 32]).len(), 3_072);
/// assert_eq!(InputShape::Image([3, 32, 32]).rows(16), [16, 3, 32, 32]);
/// assert_eq!(InputShape::Tokens(256).answers(), 256);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputShape {
    /// Channels, height, width.
    Image(ImageShape),
    /// A number of columns.
    Features(usize),
    /// A number of columns, of which a row has a few that are not zero.
    Sparse(usize),
    /// A number of tokens; the target of each is the next one.
    Tokens(usize),
    /// A number of tokens of several documents; the target of each is the next one of its document ([`PackedTokens`]).
    PackedTokens(usize),
}

impl InputShape {
    /// Numbers per sample; of a sparse one, those that are zero among them; of packed tokens, two for each.
    pub fn len(self) -> usize {
        match self {
            InputShape::Image(shape) => shape.iter().product(),
            InputShape::Features(count) | InputShape::Sparse(count) | InputShape::Tokens(count) => count,
            InputShape::PackedTokens(count) => 2 * count,
        }
    }

    /// Whether a sample has no numbers at all.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The dimensions of `count` of them.
    pub fn rows(self, count: usize) -> Vec<usize> {
        match self {
            InputShape::Image([channels, height, width]) => vec![count, channels, height, width],
            InputShape::Features(columns) | InputShape::Sparse(columns) => vec![count, columns],
            InputShape::Tokens(length) => vec![count, length],
            InputShape::PackedTokens(length) => vec![count, 2 * length],
        }
    }

    /// How many answers a sample asks for.
    pub fn answers(self) -> usize {
        self.sequence_length().unwrap_or(1)
    }

    /// How many tokens a sample has, if it is a sequence.
    pub fn sequence_length(self) -> Option<usize> {
        match self {
            InputShape::Tokens(length) | InputShape::PackedTokens(length) => Some(length),
            _ => None,
        }
    }

    /// A number of samples for a model's first block, from [`Samples::features`](crate::data::Samples): floats, tokens
    /// as integers, of sparse rows the [`SparseRows`], and of packed ones the [`PackedTokens`].
    pub fn parts(self, values: Vec<f32>, count: usize, device: &Device) -> Vec<Part> {
        let whole = |numbers: Vec<f32>| numbers.into_iter().map(|number| number as i64).collect();
        match self {
            InputShape::Image(_) | InputShape::Features(_) => {
                vec![Part::floats(values, &self.rows(count), device)]
            }
            InputShape::Tokens(_) => vec![Part::ints(whole(values), &self.rows(count), device)],
            InputShape::PackedTokens(length) => {
                let (tokens, begins) = halves(&values, length);
                let dims = [count, length];
                vec![Part::ints(whole(tokens), &dims, device), Part::ints(whole(begins), &dims, device)]
            }
            InputShape::Sparse(_) => {
                let present = values.len() / (2 * count.max(1));
                let (indices, weights) = halves(&values, present);
                let dims = [count, present];
                vec![Part::ints(whole(indices), &dims, device), Part::floats(weights, &dims, device)]
            }
        }
    }
}

/// The first and the last `half` numbers of each row.
fn halves(values: &[f32], half: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for row in values.chunks(2 * half.max(1)) {
        first.extend_from_slice(&row[..half]);
        last.extend_from_slice(&row[half..]);
    }
    (first, last)
}

/// Which model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// The small one for the kind of input: [`conv_net`], [`perceptron`], [`sparse_perceptron`] or [`gpt`].
    #[default]
    Small,
    /// [`linear`] or [`sparse_linear`].
    Linear,
    /// [`resnet18`].
    Resnet18,
    /// [`gpt`] of this size.
    Gpt(GptSize),
}

/// A model that does not fit.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ModelError {
    /// It takes another kind of samples.
    #[error("{model} takes {takes}, and the samples are {given:?}; give --model small, or another data set")]
    Input {
        /// Which model.
        model: &'static str,
        /// Its input.
        takes: &'static str,
        /// The present samples.
        given: InputShape,
    },
    /// Something is asked for that only images have.
    #[error("{what} is for images, and the samples are {given:?}; leave it out")]
    NotOfImages {
        /// What.
        what: &'static str,
        /// The present samples.
        given: InputShape,
    },
    /// It cannot be made.
    #[error("{0}")]
    Size(String),
    /// It cannot have such adapters.
    #[error("{0} (--lora)")]
    Lora(String),
}

/// How a model is to be.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use burn::tensor::Device;
/// use shardd_trainer::models::{InputShape, ModelKind, ModelOptions, model};
///
/// let model_of = |options| model(InputShape::Features(64), 10, options, &Device::flex());
/// assert!(model_of(ModelOptions::default())?.parameter_count() > 640);
/// // A ResNet takes images.
/// let resnet = ModelOptions { kind: ModelKind::Resnet18, ..ModelOptions::default() };
/// assert!(model_of(resnet).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModelOptions {
    /// Which. Default the small one for the kind of input.
    pub kind: ModelKind,
    /// The normalisation between the layers of a model for images. Default batch normalisation by virtual
    /// rank.
    pub norm: Norm,
    /// Which share of what enters the last layer, or what a transformer's layers add, is left out while training. Default 0.
    pub dropout: f32,
}

/// A model from samples of this shape to logits of a number of classes, or tokens.
///
/// # Errors
/// When it does not fit the samples, or cannot be made.
pub fn model(
    shape: InputShape,
    classes: usize,
    options: ModelOptions,
    device: &Device,
) -> Result<Model, ModelError> {
    adapted_model(shape, classes, options, None, device)
}

/// The same with adapters ([`Lora`]), of which alone the parameters are trained.
///
/// # Errors
/// As [`model`], and when the model is no transformer or cannot have such adapters.
pub fn adapted_model(
    shape: InputShape,
    classes: usize,
    ModelOptions { kind, norm, dropout }: ModelOptions,
    lora: Option<&Lora>,
    device: &Device,
) -> Result<Model, ModelError> {
    let input = |model, takes| Err(ModelError::Input { model, takes, given: shape });
    let gpt = |length, size: GptSize| {
        if let Some(refusal) = size.refusal() {
            return Err(ModelError::Size(refusal));
        }
        let mut gpt = Gpt::new(classes, length, size, dropout, device);
        if let Some(lora) = lora {
            gpt = gpt.adapted(lora, device)?;
        }
        let is_frozen = |name: &str| lora.is_some() && !is_adapter(name);
        Ok(match shape {
            InputShape::PackedTokens(_) => gpt.into_packed_chain().freeze(is_frozen).into_model(),
            _ => gpt.into_chain().freeze(is_frozen).into_model(),
        })
    };
    if lora.is_some() && shape.sequence_length().is_none() {
        let what = format!("adapters are for transformers, and the samples are {shape:?}; leave them out");
        return Err(ModelError::Lora(what));
    }
    match (kind, shape) {
        (ModelKind::Small, InputShape::Image(shape)) => {
            Ok(conv_net(shape, classes, norm, dropout, device).into_model())
        }
        (ModelKind::Small, InputShape::Features(count)) => {
            Ok(perceptron(count, classes, dropout, device).into_model())
        }
        (ModelKind::Small, InputShape::Sparse(count)) => {
            Ok(sparse_perceptron(count, classes, dropout, device).into_model())
        }
        (ModelKind::Linear, InputShape::Features(count)) => {
            Ok(linear(count, classes, dropout, device).into_model())
        }
        (ModelKind::Linear, InputShape::Sparse(count)) => {
            Ok(sparse_linear(count, classes, dropout, device).into_model())
        }
        (ModelKind::Small, InputShape::Tokens(length) | InputShape::PackedTokens(length)) => {
            gpt(length, GptSize::default())
        }
        (ModelKind::Resnet18, InputShape::Image(_)) if norm == Norm::Sync => Err(ModelError::Size(
            "resnet18 has no synchronised normalisation; give --norm batch or group".to_owned(),
        )),
        (ModelKind::Resnet18, InputShape::Image(shape)) => {
            Ok(resnet18(shape, classes, norm, dropout, device).into_model())
        }
        (ModelKind::Gpt(size), InputShape::Tokens(length) | InputShape::PackedTokens(length)) => {
            gpt(length, size)
        }
        (ModelKind::Linear, _) => input("linear", "columns or sparse features"),
        (ModelKind::Resnet18, _) => input("resnet18", "images"),
        (ModelKind::Gpt(_), _) => input("gpt", "sequences of tokens"),
    }
}
