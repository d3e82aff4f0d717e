//! A language model in the manner of GPT.

use burn::module::{Module, Param};
use burn::nn::{Initializer, LayerNorm, LayerNormConfig, LinearConfig};
use burn::tensor::module::embedding;
use burn::tensor::{Bool, Device, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::ModelError;
use crate::block::{Block, Pass};
use crate::model::Chain;
use crate::name_pattern::{listed, without_match};
use crate::nn::lora::adapter_init;
use crate::nn::norm::layer_norm;
use crate::nn::{AdaptedLinear, Dropout, Lora, gelu, matmul, softmax};
use crate::tensor_tree::TensorTree;
use crate::weights::Init;

/// How large a [`gpt`] is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GptSize {
    /// Transformer layers, each a block. Default 4.
    pub layers: usize,
    /// Attention heads. Default 4.
    pub heads: usize,
    /// Numbers per token, a multiple of the heads. Default 128.
    pub width: usize,
}

impl Default for GptSize {
    /// 0.8 million parameters: a small model for bytes.
    fn default() -> GptSize {
        GptSize { layers: 4, heads: 4, width: 128 }
    }
}

impl GptSize {
    /// Why there is no model of this size.
    pub fn refusal(self) -> Option<String> {
        let GptSize { layers, heads, width } = self;
        let is_whole = layers > 0 && heads > 0 && width > 0 && width.is_multiple_of(heads);
        (!is_whole).then(|| {
            format!("a transformer of {layers} layers, {heads} heads and width {width} cannot be made: all are at least 1, and the width is a multiple of the heads")
        })
    }
}

/// Sequences of tokens of documents: a token attends to itself and to the tokens before it from a place on. So several documents
/// share a sequence, and each gets the logits that it would get in a sequence of its own (Krell et al., "Efficient Sequence
/// Packing without Cross-contamination", 2021).
#[derive(Clone, Debug)]
pub struct PackedTokens {
    /// Numbers of tokens, `[rows, length]`.
    pub tokens: Tensor<2, Int>,
    /// Of each token the place of the first one to which it attends, from 0 in its row, likewise: the beginning of its document.
    /// Its learned position counts from there.
    pub begins: Tensor<2, Int>,
}

crate::tensor_tree!(PackedTokens { tokens, begins });

/// A decoder of transformer layers (Radford et al., "Language models are unsupervised multitask learners", 2019): tokens `[rows, length]` to logits
/// `[rows x length, vocabulary]` of the token that follows each. Normalisation before attention and before the perceptron of four times the width (GELU), learned
/// positions, the matrix of the tokens used again for the logits.
///
/// # Panics
/// If there is no model of this size ([`GptSize::refusal`]).
pub fn gpt(
    vocabulary: usize,
    length: usize,
    size: GptSize,
    dropout: f32,
    device: &Device,
) -> Chain<Tensor<2, Int>, Tensor<2>> {
    Gpt::new(vocabulary, length, size, dropout, device).into_chain()
}

/// [`gpt`] as one module, which is also a block: in one piece it has one graph, and nothing of it travels before all of it is differentiated.
#[derive(Module, Debug)]
pub struct Gpt {
    embed: Embed,
    layers: Vec<Layer>,
    head: TiedHead,
}

impl Gpt {
    /// See [`gpt`].
    ///
    /// # Panics
    /// As [`gpt`].
    pub fn new(vocabulary: usize, length: usize, size: GptSize, dropout: f32, device: &Device) -> Gpt {
        let GptSize { layers, width, .. } = size;
        assert_eq!(size.refusal(), None);
        let zeros = |shape: [usize; 2]| Param::from_tensor(Tensor::zeros(shape, device));
        let embed = Embed {
            tokens: zeros([vocabulary, width]),
            positions: zeros([length, width]),
            dropout: Dropout::new(dropout),
        };
        let layers = (0..layers).map(|_| Layer::new(size, dropout, device)).collect();
        Gpt { embed, layers, head: TiedHead { norm: LayerNormConfig::new(width).init(device) } }
    }

    /// The same with adapters for its linear layers ([`Lora`]): those of `layerN.attention` (`mix` and `project`),
    /// `layerN.widen` and `layerN.narrow`.
    ///
    /// # Errors
    /// When the rank is 0 or larger than the matrices, or a target matches none of these layers.
    pub fn adapted(mut self, lora: &Lora, device: &Device) -> Result<Gpt, ModelError> {
        let mut layers: Vec<(String, &mut AdaptedLinear)> = Vec::new();
        for (index, Layer { attention: Attention { mix, project, .. }, widen, narrow, .. }) in
            self.layers.iter_mut().enumerate()
        {
            let named = [
                ("attention.mix", mix),
                ("attention.project", project),
                ("widen", widen),
                ("narrow", narrow),
            ];
            layers.extend(named.map(|(name, layer)| (format!("layer{index}.{name}"), layer)));
        }
        let names: Vec<&str> = layers.iter().map(|(name, _)| name.as_str()).collect();
        if let Some(target) = without_match(&lora.targets, &names) {
            let names = listed(&names);
            return Err(ModelError::Lora(format!("no linear layer matches {target}; the model has {names}")));
        }
        for (name, layer) in layers {
            if !lora.targets.iter().any(|target| target.matches(&name)) {
                continue;
            }
            let [inputs, outputs] = layer.dims();
            if lora.rank == 0 || lora.rank > inputs.min(outputs) {
                let rank = lora.rank;
                return Err(ModelError::Lora(format!(
                    "an adapter of rank {rank} does not fit {name} of {inputs} x {outputs}; give a rank from 1 to {}",
                    inputs.min(outputs)
                )));
            }
            *layer = layer.clone().adapted(lora, device);
        }
        Ok(self)
    }

    /// A block for the tokens, one for each layer, one for the logits.
    pub fn into_chain(self) -> Chain<Tensor<2, Int>, Tensor<2>> {
        followed(Chain::start(self.embed), self.layers, self.head)
    }

    /// The same, with the same parameters, for sequences of several documents.
    pub fn into_packed_chain(self) -> Chain<PackedTokens, Tensor<2>> {
        let Gpt { embed: Embed { tokens, positions, dropout }, mut layers, head } = self;
        layers.iter_mut().for_each(|layer| layer.attention.is_packed = true);
        followed(Chain::start(PackedEmbed { tokens, positions, dropout }), layers, head)
    }
}

fn followed<Input: TensorTree>(
    embed: Chain<Input, Tensor<3>>,
    layers: Vec<Layer>,
    head: TiedHead,
) -> Chain<Input, Tensor<2>> {
    let mut chain = embed.named("embed");
    for (index, layer) in layers.into_iter().enumerate() {
        chain = chain.then(layer).named(&format!("layer{index}"));
    }
    chain.then(head).named("head")
}

impl Block for Gpt {
    type Input = Tensor<2, Int>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2, Int>, pass: &mut Pass) -> Tensor<2> {
        let hidden = self.embed.forward(input, pass);
        let hidden = self.layers.iter().fold(hidden, |hidden, layer| layer.forward(hidden, pass));
        self.head.forward(hidden, pass)
    }

    fn init(&self, path: &str, shape: &[usize]) -> Option<Init> {
        match path.split_once('.') {
            Some(("embed", path)) => self.embed.init(path, shape),
            Some(("layers", path)) => {
                let (index, path) = path.split_once('.')?;
                self.layers.get(index.parse::<usize>().ok()?)?.init(path, shape)
            }
            _ => None,
        }
    }
}

/// Of about a normal distribution of deviation 0.02.
const SMALL: Init = Init::Uniform { bound: 0.034_641_016 };

/// Under which name the matrix of the tokens is kept for the head.
const TOKENS: &str = "tokens";

/// Under which name the tokens that are hidden from each other are kept for the layers.
const HIDDEN: &str = "hidden";

#[derive(Module, Debug)]
struct Embed {
    tokens: Param<Tensor<2>>,
    positions: Param<Tensor<2>>,
    dropout: Dropout,
}

impl Block for Embed {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;

    fn forward(&self, input: Tensor<2, Int>, pass: &mut Pass) -> Tensor<3> {
        let [_, length] = input.dims();
        pass.keep(TOKENS, self.tokens.val());
        let positions = self.positions.val().slice(0..length).unsqueeze_dim(0);
        self.dropout.forward(embedding(self.tokens.val(), input) + positions, pass)
    }

    fn init(&self, _: &str, _: &[usize]) -> Option<Init> {
        Some(SMALL)
    }
}

/// [`Embed`] of sequences of several documents.
#[derive(Module, Debug)]
struct PackedEmbed {
    tokens: Param<Tensor<2>>,
    positions: Param<Tensor<2>>,
    dropout: Dropout,
}

impl Block for PackedEmbed {
    type Input = PackedTokens;
    type Output = Tensor<3>;

    fn forward(&self, PackedTokens { tokens, begins }: PackedTokens, pass: &mut Pass) -> Tensor<3> {
        let [rows, length] = tokens.dims();
        pass.keep(TOKENS, self.tokens.val());
        pass.keep(HIDDEN, outside(begins.clone()));
        let places = places(length, &begins.device()).reshape([1, length]).expand([rows, length]);
        let positions = embedding(self.positions.val(), places - begins);
        self.dropout.forward(embedding(self.tokens.val(), tokens) + positions, pass)
    }

    fn init(&self, _: &str, _: &[usize]) -> Option<Init> {
        Some(SMALL)
    }
}

/// 0, 1, .. up to `length`.
fn places(length: usize, device: &Device) -> Tensor<1, Int> {
    Tensor::arange(0..length as i64, device)
}

#[derive(Module, Debug)]
struct Layer {
    norm1: LayerNorm,
    attention: Attention,
    norm2: LayerNorm,
    widen: AdaptedLinear,
    narrow: AdaptedLinear,
    dropout: Dropout,
    layers: usize,
}

impl Layer {
    fn new(GptSize { layers, heads, width }: GptSize, dropout: f32, device: &Device) -> Layer {
        let norm = || LayerNormConfig::new(width).init(device);
        Layer {
            norm1: norm(),
            attention: Attention {
                mix: linear(width, 3 * width, device),
                project: linear(width, width, device),
                heads,
                is_packed: false,
            },
            norm2: norm(),
            widen: linear(width, 4 * width, device),
            narrow: linear(4 * width, width, device),
            dropout: Dropout::new(dropout),
            layers,
        }
    }
}

fn linear(from: usize, to: usize, device: &Device) -> AdaptedLinear {
    AdaptedLinear::plain(LinearConfig::new(from, to).with_initializer(Initializer::Zeros).init(device))
}

impl Block for Layer {
    type Input = Tensor<3>;
    type Output = Tensor<3>;

    fn forward(&self, input: Tensor<3>, pass: &mut Pass) -> Tensor<3> {
        let attended = self.attention.forward(layer_norm(&self.norm1, input.clone()), pass);
        let hidden = input + self.dropout.forward(attended, pass);
        let thought = self.narrow.forward(gelu(self.widen.forward(layer_norm(&self.norm2, hidden.clone()))));
        hidden + self.dropout.forward(thought, pass)
    }

    fn init(&self, path: &str, shape: &[usize]) -> Option<Init> {
        if let Some(init) = adapter_init(path, shape) {
            return Some(init);
        }
        let adds_to_the_input = path.starts_with("attention.project") || path.starts_with("narrow");
        match (shape.len(), SMALL) {
            (2, Init::Uniform { bound }) if adds_to_the_input => {
                Some(Init::Uniform { bound: bound / (2.0 * self.layers as f32).sqrt() })
            }
            (2, small) => Some(small),
            _ => None,
        }
    }
}

/// Each token attends to those before it and to itself; of packed sequences, within its document.
#[derive(Module, Debug)]
struct Attention {
    /// To queries, keys and values.
    mix: AdaptedLinear,
    project: AdaptedLinear,
    heads: usize,
    is_packed: bool,
}

impl Attention {
    fn forward(&self, input: Tensor<3>, pass: &mut Pass) -> Tensor<3> {
        let [rows, length, width] = input.dims();
        let by_head = width / self.heads;
        let mixed = self.mix.forward(input).reshape([rows, length, 3 * self.heads, by_head]).swap_dims(1, 2);
        let part = |at: usize| mixed.clone().narrow(1, at * self.heads, self.heads);
        let (queries, keys, values) = (part(0), part(1), part(2));
        let scores = matmul(queries, keys.transpose()) * (by_head as f32).sqrt().recip();
        let hidden = match self.is_packed {
            true => pass.recall(HIDDEN),
            false => later(length, &scores.device()),
        };
        let scores = scores.mask_fill(hidden, f32::NEG_INFINITY);
        let attended = matmul(softmax(scores), values);
        self.project.forward(attended.swap_dims(1, 2).reshape([rows, length, width]))
    }
}

/// Which tokens are behind another one, `[1, 1, length, length]`.
fn later(length: usize, device: &Device) -> Tensor<4, Bool> {
    Tensor::<2, Bool>::tril_mask([length, length], 0, device).unsqueeze()
}

/// Which tokens are behind another one, or before the first to which it attends, `[rows, 1, length, length]`.
fn outside(begins: Tensor<2, Int>) -> Tensor<4, Bool> {
    let ([rows, length], device) = (begins.dims(), begins.device());
    let shape = [rows, 1, length, length];
    let places = places(length, &device).reshape([1, 1, 1, length]).expand(shape);
    let before = places.lower(begins.reshape([rows, 1, length, 1]).expand(shape));
    later(length, &device).expand(shape).bool_or(before)
}

/// Normalisation, and logits by the matrix of the tokens.
#[derive(Module, Debug)]
struct TiedHead {
    norm: LayerNorm,
}
crate::block!(TiedHead, |self, input: Tensor<3>, pass| -> Tensor<2> {
    let [rows, length, width] = input.dims();
    let tokens: Tensor<2> = pass.recall(TOKENS);
    let normalised = layer_norm(&self.norm, input).reshape([rows * length, width]);
    matmul(normalised, tokens.transpose())
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::threads;
    use crate::device::Precision;
    use crate::loss::{CrossEntropy, IGNORED};
    use crate::optim::Optimizer;
    use crate::trainer::Trainer;

    fn trainer(precision: Precision) -> Trainer<Tensor<2, Int>, Tensor<2>, CrossEntropy> {
        let size = GptSize { layers: 2, heads: 2, width: 32 };
        let alone = threads::world(1, crate::collective::DEFAULT_TIMEOUT).remove(0);
        Trainer::new(gpt(11, 12, size, 0.0, &Device::flex()), CrossEntropy, Box::new(alone))
            .optimizer(Optimizer::adamw(0.01))
            .precision(precision)
            .build()
            .unwrap()
    }

    fn tokens(values: [i32; 12]) -> Tensor<2, Int> {
        Tensor::<1, Int>::from_ints(values, &Device::flex()).reshape([1, 12])
    }

    #[test]
    fn no_token_looks_ahead() {
        let mut trainer = trainer(Precision::F32);
        let mut logits =
            |values| trainer.output(tokens(values)).unwrap().into_data().try_into_vec::<f32>().unwrap();
        let (one, other) =
            (logits([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1]), logits([1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0]));
        assert_eq!(one[..6 * 11], other[..6 * 11]);
        assert_ne!(one[6 * 11..], other[6 * 11..]);
        assert!(one.iter().all(|number| number.is_finite()));
    }

    #[test]
    fn documents_that_share_a_sequence_are_trained_as_each_by_itself() {
        let size = GptSize { layers: 2, heads: 2, width: 32 };
        fn of<Input: TensorTree>(chain: Chain<Input, Tensor<2>>) -> Trainer<Input, Tensor<2>, CrossEntropy> {
            let alone = threads::world(1, crate::collective::DEFAULT_TIMEOUT).remove(0);
            let trainer = Trainer::new(chain, CrossEntropy, Box::new(alone));
            trainer.optimizer(Optimizer::adamw(0.01)).build().unwrap()
        }
        let gpt = || Gpt::new(11, 12, size, 0.0, &Device::flex());
        let (mut packed, mut plain) = (of(gpt().into_packed_chain()), of(gpt().into_chain()));
        let ints = |values: &[i32]| {
            Tensor::<1, Int>::from_ints(values, &Device::flex()).reshape([1, values.len() as i32])
        };
        // Documents of 5 and 4 tokens, and padding.
        let [first, second] = [&[1, 2, 3, 4, 5][..], &[7, 8, 9, 10]];
        let together = || PackedTokens {
            tokens: ints(&[first, second, &[0, 0, 0]].concat()),
            begins: ints(&[0, 0, 0, 0, 0, 5, 5, 5, 5, 9, 10, 11]),
        };
        let labels = [2, 3, 4, 5, IGNORED, 8, 9, 10, IGNORED, IGNORED, IGNORED, IGNORED];
        for step in 0..5 {
            let numbers = |tensor: Tensor<2>| tensor.into_data().try_into_vec::<f32>().unwrap();
            let logits = numbers(packed.output(together()).unwrap());
            let [one, other] = [first, second].map(|document| numbers(plain.output(ints(document)).unwrap()));
            let alone = [one, other].concat();
            let apart = logits.iter().zip(&alone).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-5, "step {step}: {apart}");
            let loss = packed.step(0.01, |_| [(together(), labels.to_vec())]).unwrap();
            let parts = [(ints(first), labels[..5].to_vec()), (ints(second), labels[5..9].to_vec())];
            let expected = plain.step(0.01, |_| parts.clone()).unwrap();
            assert_eq!((loss.samples, expected.samples), (7, 7));
            assert!((loss.mean() - expected.mean()).abs() < 1e-5, "step {step}");
        }
    }

    #[test]
    fn it_learns_what_follows() {
        // Three more than the last, modulo 11: the first token decides all others.
        let row = |first: i32| [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].map(|at| (first + 3 * at) % 11);
        let trained = |precision| {
            let (mut trainer, mut overflows, mut losses) = (trainer(precision), 0, Vec::new());
            for step in 0..150 {
                let row = row(step % 11);
                let next = row.map(|token| (token as u32 + 3) % 11).to_vec();
                let loss = trainer.step(0.01, |_| [(tokens(row), next.clone())]).unwrap();
                overflows += u32::from(loss.is_overflow);
                losses.push(loss.mean());
            }
            (overflows, losses)
        };
        let full = trained(Precision::F32);
        assert_eq!(full.0, 0);
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            let (overflows, losses) = trained(precision);
            let (last, of_full) = (losses[149], full.1[149]);
            println!("{precision}: {overflows} overflows, {last} in the end, in 32 bits {of_full}");
            assert!(last < 0.1, "{precision}: {last}");
        }
    }
}
