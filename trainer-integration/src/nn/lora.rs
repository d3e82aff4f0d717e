//! Low-rank adapters of linear layers (Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang and Chen, "LoRA: low-rank adaptation
//! of large language models", 2021, arXiv:2106.09685): the weights of a trained model stay, and beside a layer's
//! matrix two small ones are trained, whose product is added to it.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use crate::arithmetic::linear;
use crate::name_pattern::NamePattern;
use crate::weights::Init;

/// The names of an adapter's matrices, beside `weight` and `bias`.
const MATRICES: [&str; 2] = ["lora_a", "lora_b"];

/// Which layers have adapters, and how large they are.
///
/// ```
/// use shardd_trainer::nn::Lora;
///
/// let lora = Lora { alpha: 16.0, ..Lora::of_rank(8) };
/// assert_eq!(lora.scale(), 2.0);
/// assert!(lora.targets[0].matches("layer3.attention.mix"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// Columns of the first matrix, and rows of the second; at least 1.
    pub rank: usize,
    /// The product of the matrices is multiplied by `alpha / rank`. Default the rank.
    pub alpha: f32,
    /// The linear layers that have one, by the names of their modules, each pattern of at least one. Default those of
    /// attention, as in the paper.
    pub targets: Vec<NamePattern>,
}

impl Lora {
    /// Adapters of this rank, with the defaults.
    pub fn of_rank(rank: usize) -> Lora {
        let attention = "*.attention".parse().expect("a pattern");
        Lora { rank, alpha: rank as f32, targets: vec![attention] }
    }

    /// The factor of the product of the matrices.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }
}

/// Whether a parameter is of an adapter.
pub(crate) fn is_adapter(name: &str) -> bool {
    MATRICES.iter().any(|matrix| name.rsplit('.').next() == Some(matrix))
}

/// How a parameter of an adapter begins, if this is one: the first matrix at random, as that of a linear layer, and the
/// second with zeros, so that at first nothing is added.
pub(crate) fn adapter_init(path: &str, shape: &[usize]) -> Option<Init> {
    match (path.rsplit('.').next()?, shape) {
        ("lora_a", [inputs, _]) => Some(Init::Uniform { bound: (*inputs as f32).sqrt().recip() }),
        ("lora_b", _) => Some(Init::Zeros),
        _ => None,
    }
}

/// A linear layer, with or without an adapter.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Tensor};
/// use shardd_trainer::nn::{AdaptedLinear, Lora};
///
/// let device = Device::flex();
/// let plain = AdaptedLinear::plain(LinearConfig::new(4, 2).init(&device));
/// let adapted = plain.clone().adapted(&Lora::of_rank(1), &device);
/// let input = Tensor::<2>::ones([3, 4], &device);
/// assert_eq!(adapted.forward(input.clone()).to_data(), plain.forward(input).to_data(), "its second matrix is zero");
/// ```
#[derive(Module, Debug)]
pub struct AdaptedLinear {
    /// `[inputs, outputs]`.
    weight: Param<Tensor<2>>,
    /// `[outputs]`.
    bias: Option<Param<Tensor<1>>>,
    /// `[inputs, rank]`.
    lora_a: Option<Param<Tensor<2>>>,
    /// `[rank, outputs]`.
    lora_b: Option<Param<Tensor<2>>>,
    scale: f32,
}

impl AdaptedLinear {
    /// The layer without an adapter.
    pub fn plain(layer: Linear) -> AdaptedLinear {
        AdaptedLinear { weight: layer.weight, bias: layer.bias, lora_a: None, lora_b: None, scale: 0.0 }
    }

    /// The layer with a new adapter, all of whose numbers are zero. The block that has it says how they begin.
    #[must_use]
    pub fn adapted(self, lora: &Lora, device: &Device) -> AdaptedLinear {
        let [inputs, outputs] = self.weight.dims();
        let zeros = |shape: [usize; 2]| Some(Param::from_tensor(Tensor::zeros(shape, device)));
        let (lora_a, lora_b) = (zeros([inputs, lora.rank]), zeros([lora.rank, outputs]));
        AdaptedLinear { lora_a, lora_b, scale: lora.scale(), ..self }
    }

    /// Inputs and outputs.
    pub fn dims(&self) -> [usize; 2] {
        self.weight.dims()
    }

    /// `[.., inputs]` to `[.., outputs]`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (weight, bias) = (self.weight.val(), self.bias.as_ref().map(Param::val));
        let (Some(first), Some(second)) = (&self.lora_a, &self.lora_b) else {
            return linear(input, weight, bias);
        };
        let added = linear(linear(input.clone(), first.val(), None), second.val(), None);
        linear(input, weight, bias) + added * self.scale
    }
}

/// Adds an adapter to the weight of its layer: `weight + scale x first x second`, where `weight` is
/// `[first rows, second columns]`, row by row.
///
/// # Panics
/// If the lengths are not those of such matrices.
pub(crate) fn merge(weight: &mut [f32], first: &[f32], second: &[f32], rank: usize, scale: f32) {
    let (inputs, outputs) = (first.len() / rank, second.len() / rank);
    assert_eq!(
        (weight.len(), first.len(), second.len()),
        (inputs * outputs, inputs * rank, rank * outputs),
        "matrices of rank {rank}"
    );
    for (row, of_first) in weight.chunks_mut(outputs).zip(first.chunks(rank)) {
        for (factor, of_second) in of_first.iter().zip(second.chunks(outputs)) {
            row.iter_mut().zip(of_second).for_each(|(number, added)| *number += scale * factor * added);
        }
    }
}
