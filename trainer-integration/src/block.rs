//! What models are made of: [`Block`]s, each a burn module of the user with one autodiff graph of its own. A block knows its own layers, not
//! its neighbours, the optimizer or other ranks.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::Tensor;

use crate::random::Key;
use crate::tensor_tree::{Part, TensorTree, from_parts, parts_of};
use crate::weights::Init;

/// A stretch of layers between two others of a model.
///
/// Every block is differentiated on its own, and its gradient is on its way to the other ranks while earlier blocks still go backward: a model
/// of several blocks hides its communication, one of a single block cannot. [`block!`](crate::block!) writes this implementation in one line.
///
/// Its parameters are those of the burn module: those that are frozen stay as they are, and what lies in a
/// [`RunningState`](burn::module::RunningState) is kept for each virtual rank and averaged when the model is evaluated or saved. Randomness comes from
/// [`Pass::key`], not from the device: only so a pass gives the same numbers wherever it is computed.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::Linear;
/// use burn::tensor::Tensor;
/// use shardd_trainer::nn::linear_layer;
/// use shardd_trainer::{Block, Pass};
///
/// #[derive(Module, Debug)]
/// struct Dense {
///     linear: Linear,
/// }
///
/// impl Block for Dense {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///
///     fn forward(&self, input: Tensor<2>, _pass: &mut Pass) -> Tensor<2> {
///         linear_layer(&self.linear, input)
///     }
///     fn decay(&self, _path: &str, _shape: &[usize]) -> f32 {
///         0.0
///     }
/// }
/// # let linear = burn::nn::LinearConfig::new(4, 2).init(&burn::tensor::Device::flex());
/// assert_eq!(Dense { linear }.decay("linear.weight", &[4, 2]), 0.0);
/// ```
pub trait Block: Module + 'static {
    /// Its input.
    type Input: TensorTree;

    /// Its output.
    type Output: TensorTree;

    /// One pass over at least one row.
    fn forward(&self, input: Self::Input, pass: &mut Pass) -> Self::Output;

    /// How a parameter starts, by its path in the module and its shape; with `None` as the module was made. Default `None`.
    fn init(&self, _path: &str, _shape: &[usize]) -> Option<Init> {
        None
    }

    /// How much of the optimizer's weight decay applies to a parameter: 0 none, 1 all of it. Default 1 to matrices and kernels, 0 to biases
    /// and normalisation. [`Chain::decay`](crate::Chain::decay) overrules it from outside.
    fn decay(&self, _path: &str, shape: &[usize]) -> f32 {
        if shape.len() >= 2 { 1.0 } else { 0.0 }
    }

    /// Numbers of this input of which the block wants the sum over *all* virtual ranks before it goes forward ([`Pass::total`]), such as those
    /// that synchronised batch normalisation needs; the same count for every input, and a function of the input alone. Gradients flow back
    /// through the sum. Default `None`.
    ///
    /// Virtual ranks then go through the model side by side, all of them through a block before any enters the next, and a rank keeps the
    /// activations of all its virtual ranks at once.
    fn summarise(&self, _input: &Self::Input) -> Option<Tensor<1>> {
        None
    }

    /// Whether the first block of a model is given its input in 32 bits, whatever is computed in: raw numbers may be too large for 16, or lose in them
    /// what tells them apart. Its output has the precision of its parameters. Default no.
    fn wants_full_input(&self) -> bool {
        false
    }

    /// How many numbers [`Block::summarise`] gives, 0 if none. Default 0.
    fn summary_len(&self) -> usize {
        0
    }
}

/// Writes [`Block`] for a module.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::Linear;
/// use burn::tensor::{Tensor, activation::relu};
/// use shardd_trainer::nn::linear_layer;
///
/// #[derive(Module, Debug)]
/// struct Hidden {
///     linear: Linear,
/// }
/// shardd_trainer::block!(Hidden, |self, input: Tensor<2>| -> Tensor<2> { relu(linear_layer(&self.linear, input)) });
/// ```
#[macro_export]
macro_rules! block {
    ($name:ty, |$this:ident, $input:ident: $from:ty| -> $to:ty $body:block) => {
        $crate::block!($name, |$this, $input: $from, _pass| -> $to $body);
    };
    ($name:ty, |$this:ident, $input:ident: $from:ty, $pass:ident| -> $to:ty $body:block) => {
        impl $crate::block::Block for $name {
            type Input = $from;
            type Output = $to;

            fn forward(&$this, $input: $from, $pass: &mut $crate::block::Pass) -> $to {
                $body
            }
        }
    };
}

/// A block's view of the pass that it is part of.
///
/// ```
/// # use burn::module::Module;
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Tensor};
/// # #[derive(Module, Debug)]
/// # struct Dense {
/// #     linear: Linear,
/// # }
/// # shardd_trainer::block!(Dense, |self, input: Tensor<2>| -> Tensor<2> { self.linear.forward(input) });
/// use shardd_trainer::{Block, Pass};
///
/// let device = Device::flex();
/// let dense = Dense { linear: LinearConfig::new(4, 2).init(&device) };
/// let mut pass = Pass::evaluation();
/// assert!(!pass.is_training());
/// assert_eq!(dense.forward(Tensor::zeros([3, 4], &device), &mut pass).dims(), [3, 2]);
/// ```
#[derive(Debug)]
pub struct Pass {
    key: Option<Key>,
    draws: u64,
    total: Option<Tensor<1>>,
    /// The values that earlier blocks have kept for later ones.
    shelf: Shelf,
    /// The values that this block keeps.
    pub(crate) kept: BTreeMap<&'static str, Part>,
    /// The values that this block took from the shelf, as the beginnings of its graph.
    pub(crate) recalled: BTreeMap<&'static str, Part>,
    /// Whether there is a graph, if it trains.
    has_graph: bool,
    /// Whether gradients flow back into the block: not where it and all blocks before it are frozen.
    is_gone_back: bool,
}

/// The values that blocks keep for later ones, by name.
pub(crate) type Shelf = BTreeMap<&'static str, Shelved>;

/// A value on the shelf.
#[derive(Clone, Debug)]
pub(crate) struct Shelved {
    pub(crate) part: Part,
    /// Whether the block that kept it takes a gradient of it.
    wants_gradient: bool,
}

impl Pass {
    /// A pass that trains, with the random numbers of the key, or one that evaluates.
    pub(crate) fn new(key: Option<Key>, shelf: Shelf, total: Option<Tensor<1>>) -> Pass {
        let (kept, recalled) = (BTreeMap::new(), BTreeMap::new());
        Pass { key, draws: 0, total, shelf, kept, recalled, has_graph: true, is_gone_back: true }
    }

    /// The same, if there is no backward pass through it.
    pub(crate) fn without_graph(self) -> Pass {
        Pass { has_graph: false, ..self }
    }

    /// The same, of a block into which gradients flow back, or do not.
    pub(crate) fn gone_back(self, is_gone_back: bool) -> Pass {
        Pass { is_gone_back, ..self }
    }

    /// One that trains a whole model as a single block, outside a trainer.
    pub fn training(key: Key) -> Pass {
        Pass::new(Some(key), BTreeMap::new(), None)
    }

    /// One that evaluates a whole model as a single block, outside a trainer.
    pub fn evaluation() -> Pass {
        Pass::new(None, BTreeMap::new(), None)
    }

    /// The shelf with the kept values, and the rest of the pass.
    pub(crate) fn leave(mut self) -> (Shelf, Pass) {
        let mut shelf = std::mem::take(&mut self.shelf);
        for (name, part) in &self.kept {
            let shelved = Shelved { part: part.clone().inner(), wants_gradient: self.is_gone_back };
            let earlier = shelf.insert(name, shelved);
            assert!(earlier.is_none(), "two blocks keep {name:?}");
        }
        (shelf, self)
    }

    /// Whether it is for training: layers then use the statistics of the micro-batch, and leave numbers out.
    pub fn is_training(&self) -> bool {
        self.key.is_some()
    }

    /// A key for random numbers of this step, virtual rank and block, another one at every call; `None` in an evaluation.
    pub fn key(&mut self) -> Option<Key> {
        let key = self.key?.of(self.draws);
        self.draws += 1;
        Some(key)
    }

    /// The sum over all virtual ranks of what [`Block::summarise`] made of their inputs. `None` in an evaluation.
    pub fn total(&self) -> Option<Tensor<1>> {
        self.total.clone()
    }

    /// Keeps a tensor for later blocks, under a name of its own: a skip connection, or a weight that is used twice. Its gradient comes back from
    /// all who recall it.
    ///
    /// # Panics
    /// If `tensor` is several tensors, or none.
    pub fn keep<F: TensorTree>(&mut self, name: &'static str, tensor: F) {
        let mut parts = parts_of(tensor).into_iter();
        let (Some(part), None) = (parts.next(), parts.next()) else {
            panic!("one tensor is kept under the name {name:?}");
        };
        self.kept.insert(name, part);
    }

    /// The value that an earlier block has kept, or this one.
    ///
    /// # Panics
    /// If none has, or it is of another shape.
    pub fn recall<F: TensorTree>(&mut self, name: &'static str) -> F {
        if let Some(own) = self.kept.get(name) {
            return from_parts(vec![own.clone()]);
        }
        let part = self.recalled.entry(name).or_insert_with(|| {
            let shelved = self.shelf.get(name);
            let shelved = shelved.unwrap_or_else(|| panic!("no earlier block keeps {name:?}"));
            let part = shelved.part.clone();
            if self.key.is_some() { part.leaf(self.has_graph && shelved.wants_gradient) } else { part }
        });
        from_parts(vec![part.clone()])
    }
}
