//! A virtual rank's way through the model and back: one autodiff graph for each block, gradients handed from block to block as values. A block's
//! graph is kept from the way forward, or made again from the block's input on the way back (Chen et al., "Training deep nets with sublinear memory
//! cost", 2016).

use std::collections::BTreeMap;

use burn::tensor::{FloatDType, Gradients, Tensor};

use crate::arithmetic::seed;
use crate::block::{Pass, Shelf};
use crate::flat_block::Loaded;
use crate::ledger::Numbers;
use crate::loss::Measured;
use crate::random::Key;
use crate::scaling::LossScale;
use crate::tensor_tree::Part;

/// A micro-batch on its way.
#[derive(Debug)]
pub(super) struct Walk {
    key: Key,
    activation: Vec<Part>,
    shelf: Shelf,
    kept: Vec<Kept>,
    /// Of the blocks whose graphs are to be made again.
    passed: Vec<Passed>,
    /// Of the loss, with respect to what the last block on the way back was given.
    upstream: Vec<Option<Tensor<1>>>,
    shelf_gradients: BTreeMap<&'static str, Tensor<1>>,
    /// Of the blocks of the bucket that is being filled.
    pub(super) gradient: Gradient,
    /// By how much gradients are multiplied on their way.
    scale: Option<LossScale>,
}

/// Of the blocks of a bucket, the last block first.
#[derive(Debug)]
pub(super) enum Gradient {
    Host(Numbers<f32>),
    /// Flat, one after the other.
    Device(Vec<Tensor<1>>),
}

impl Gradient {
    /// The values so far; nothing is left.
    pub(super) fn take(&mut self) -> Gradient {
        match self {
            Gradient::Host(numbers) => Gradient::Host(std::mem::take(numbers)),
            Gradient::Device(tensors) => Gradient::Device(std::mem::take(tensors)),
        }
    }
}

/// The inputs for a second graph of a block.
#[derive(Debug)]
struct Passed {
    input: Vec<Part>,
    total: Option<Tensor<1>>,
    /// The running numbers that it went forward with, which may have moved since.
    running: Vec<Tensor<1>>,
    /// The values it kept for later blocks.
    names: Vec<&'static str>,
}

/// A block between forward and backward.
#[derive(Debug)]
struct Kept {
    loaded: Box<dyn Loaded>,
    input: Vec<Part>,
    output: Vec<Part>,
    pass: Pass,
    total: Option<Tensor<1>>,
}

/// A block whose gradient with respect to a sum over all virtual ranks is not complete.
#[derive(Debug)]
pub(super) struct Open {
    loaded: Box<dyn Loaded>,
    input: Vec<Part>,
    /// This virtual rank's share of it.
    pub(super) share: Tensor<1>,
}

impl Walk {
    /// Begins with this input, and an empty gradient where it is to be; on the way back gradients are multiplied by the scale.
    pub(super) fn new(input: Vec<Part>, key: Key, gradient: Gradient, scale: Option<LossScale>) -> Walk {
        Walk {
            key,
            activation: input,
            shelf: Shelf::new(),
            kept: Vec::new(),
            passed: Vec::new(),
            upstream: Vec::new(),
            shelf_gradients: BTreeMap::new(),
            gradient,
            scale,
        }
    }

    /// The values that the next block sums over all virtual ranks.
    pub(super) fn summary(&self, next: &dyn Loaded) -> Tensor<1> {
        let input = self.activation.iter().map(|part| part.clone().leaf(false)).collect();
        next.summarise(input).inner().cast(FloatDType::F32)
    }

    /// Through the next block, which has these running numbers and whose graph is made on the way back, if gradients flow back into
    /// it; says what became of them.
    pub(super) fn pass_by(
        &mut self,
        block: usize,
        loaded: &dyn Loaded,
        total: Option<Tensor<1>>,
        running: Vec<Tensor<1>>,
        is_gone_back: bool,
    ) -> Vec<Tensor<1>> {
        let input = if is_gone_back { self.activation.clone() } else { Vec::new() };
        let names = self.without_graph(block, loaded, total.clone(), is_gone_back);
        self.passed.push(Passed { input, total, running, names });
        loaded.buffers()
    }

    /// Through the next block, which nothing flows back into: it is frozen, and so are all blocks before it. Nothing
    /// of it is kept but its output. Says what became of its running numbers.
    pub(super) fn pass_frozen(
        &mut self,
        block: usize,
        loaded: &dyn Loaded,
        total: Option<Tensor<1>>,
    ) -> Vec<Tensor<1>> {
        self.without_graph(block, loaded, total, false);
        loaded.buffers()
    }

    /// Through the next block; the names of the values that it keeps for later ones.
    fn without_graph(
        &mut self,
        block: usize,
        loaded: &dyn Loaded,
        total: Option<Tensor<1>>,
        is_gone_back: bool,
    ) -> Vec<&'static str> {
        let key = self.key.of(block as u64);
        let beginning = std::mem::take(&mut self.activation).into_iter().map(|part| part.leaf(false));
        let (shelf, there) = (std::mem::take(&mut self.shelf), total.map(Tensor::autodiff));
        let mut pass = Pass::new(Some(key), shelf, there).without_graph().gone_back(is_gone_back);
        let output = loaded.forward(beginning.collect(), &mut pass);
        let (shelf, pass) = pass.leave();
        self.shelf = shelf;
        self.activation = output.into_iter().map(Part::inner).collect();
        pass.kept.into_keys().collect()
    }

    /// The running numbers with which the last block that was passed by went forward.
    pub(super) fn running(&self) -> &[Tensor<1>] {
        &self.passed.last().expect("as often again as passed by").running
    }

    /// Through the last block that was passed by, once more.
    pub(super) fn again(&mut self, block: usize, loaded: Box<dyn Loaded>, wants_gradient: bool) {
        let Passed { input, total, names, .. } = self.passed.pop().expect("as often again as passed by");
        for name in names {
            self.shelf.remove(name);
        }
        self.activation = input;
        self.forward(block, loaded, wants_gradient, total);
        self.activation.clear();
    }

    /// Whether the last block that was passed by keeps something for later ones.
    pub(super) fn keeps(&self) -> bool {
        self.passed.last().is_some_and(|passed| !passed.names.is_empty())
    }

    /// The shapes of what the last block that was passed by keeps for later ones.
    pub(super) fn kept(&self) -> impl Iterator<Item = &[usize]> {
        let names = self.passed.last().into_iter().flat_map(|passed| &passed.names);
        names.filter_map(|name| self.shelf.get(name)).map(|shelved| shelved.part.shape())
    }

    /// Through the next block; says what became of its running numbers.
    pub(super) fn forward(
        &mut self,
        block: usize,
        loaded: Box<dyn Loaded>,
        wants_gradient: bool,
        total: Option<Tensor<1>>,
    ) -> Vec<Tensor<1>> {
        let key = self.key.of(block as u64);
        let activation = std::mem::take(&mut self.activation);
        let input: Vec<Part> = activation.into_iter().map(|part| part.leaf(wants_gradient)).collect();
        let total = total.map(|total| total.autodiff().require_grad());
        let mut pass = Pass::new(Some(key), std::mem::take(&mut self.shelf), total.clone());
        let output = loaded.forward(input.clone(), &mut pass);
        let (shelf, pass) = pass.leave();
        self.shelf = shelf;
        self.activation = output.iter().map(|part| part.clone().inner()).collect();
        let running = loaded.buffers();
        self.kept.push(Kept { loaded, input, output, pass, total });
        running
    }

    /// Turns round where the objective stands, which is given 32 bits.
    pub(super) fn turn(&mut self, measure: impl FnOnce(Vec<Part>) -> Measured) -> Measured {
        if self.passed.is_empty() {
            self.shelf.clear();
        }
        let output = std::mem::take(&mut self.activation).into_iter();
        let mut measured = measure(output.map(|part| part.cast(FloatDType::F32)).collect());
        self.upstream = std::mem::take(&mut measured.gradient);
        if let Some(scale) = self.scale {
            for gradient in self.upstream.iter_mut().flatten() {
                *gradient = gradient.clone() * scale.factor();
            }
        }
        measured
    }

    /// Back through the last block that has not been gone back through, whose gradient is added to the bucket that is being filled.
    pub(super) fn backward(&mut self) -> Option<Open> {
        let Kept { loaded, input, output, pass, total } = self.kept.pop().expect("as often back as forward");
        let names: Vec<&str> = pass.kept.keys().copied().collect();
        let mut found = self.graph(output, pass.kept);
        for name in names {
            self.shelf.remove(name);
        }
        match &mut self.gradient {
            Gradient::Host(numbers) => {
                let before = numbers.len();
                loaded.take_gradient(found.as_mut(), &mut numbers.growing());
                if let Some(scale) = self.scale {
                    numbers[before..].iter_mut().for_each(|number| *number *= scale.inverse());
                }
            }
            Gradient::Device(tensors) => {
                let before = tensors.len();
                loaded.take_gradient_there(found.as_mut(), tensors);
                if let Some(scale) = self.scale {
                    for tensor in &mut tensors[before..] {
                        *tensor = tensor.clone() * scale.inverse();
                    }
                }
            }
        }
        let mut of = |tensor: &Tensor<1>| tensor.grad_remove(found.as_mut()?);
        self.upstream = input.iter().map(|part| of(part.float()?)).collect();
        for (name, part) in &pass.recalled {
            let Some(gradient) = part.float().and_then(&mut of) else { continue };
            match self.shelf_gradients.remove(name) {
                Some(earlier) => self.shelf_gradients.insert(name, earlier + gradient),
                None => self.shelf_gradients.insert(name, gradient),
            };
        }
        let total = total?;
        let share = of(&total).unwrap_or_else(|| total.inner().zeros_like());
        Some(Open { loaded, input, share })
    }

    /// Adds what flows back through the sum over all virtual ranks, of which `gradient` is that of the loss.
    pub(super) fn close(&mut self, open: Open, gradient: Tensor<1>) {
        let input: Vec<Part> = open.input.into_iter().map(|part| part.leaf(true)).collect();
        let summary = open.loaded.summarise(input.clone());
        if !summary.is_tracked() {
            return; // of integers, say
        }
        let gradient = gradient.cast(FloatDType::from(summary.dtype()));
        let mut found = seed(summary, gradient).backward();
        for (part, upstream) in input.iter().zip(&mut self.upstream) {
            let Some(more) = part.float().and_then(|tensor| tensor.grad_remove(&mut found)) else { continue };
            *upstream = Some(match upstream.take() {
                Some(direct) => direct + more,
                None => more,
            });
        }
    }

    /// The gradients of a block's graph, if anything of it has a part in the loss. Each output's gradient is `upstream`.
    fn graph(&mut self, output: Vec<Part>, kept: BTreeMap<&'static str, Part>) -> Option<Gradients> {
        let upstream = std::mem::take(&mut self.upstream);
        let mut root: Option<Tensor<1>> = None;
        let mut add = |part: &Part, gradient: Option<Tensor<1>>| {
            let (Some(tensor), Some(gradient)) = (part.float(), gradient) else { return };
            if tensor.is_tracked() {
                let gradient = gradient.cast(FloatDType::from(tensor.dtype()));
                let term = seed(tensor.clone(), gradient);
                root = Some(match root.take() {
                    Some(root) => root + term,
                    None => term,
                });
            }
        };
        for (part, gradient) in output.iter().zip(upstream) {
            add(part, gradient);
        }
        for (name, part) in &kept {
            add(part, self.shelf_gradients.remove(name));
        }
        root.map(|root| root.backward())
    }
}
