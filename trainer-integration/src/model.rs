//! A model: blocks in the order in which a sample passes them, each with a name.

use std::marker::PhantomData;

use thiserror::Error;

use crate::block::Block;
use crate::flat_block::{FlatBlock, stage};
use crate::name_pattern::{NamePattern, listed, without_match};
use crate::tensor_tree::TensorTree;
use crate::weights::{Named, Parameter, Running, Weights, ranges};

/// Blocks that fit together: each takes what the one before it makes, which the compiler checks.
///
/// ```
/// # use burn::module::Module;
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Tensor};
/// # use shardd_trainer::model::Chain;
/// # #[derive(Module, Debug)]
/// # struct Dense { linear: Linear }
/// # shardd_trainer::block!(Dense, |self, input: Tensor<2>| -> Tensor<2> { self.linear.forward(input) });
/// let device = Device::flex();
/// let dense = |from, to| Dense { linear: LinearConfig::new(from, to).init(&device) };
/// let model = Chain::start(dense(64, 32)).then(dense(32, 10)).named("head").into_model();
/// assert_eq!(model.parameter_count(), 64 * 32 + 32 + 32 * 10 + 10);
/// assert_eq!(model.stages[1].parameters()[0].name, "head.linear.weight");
/// ```
#[derive(Debug)]
pub struct Chain<Input, Output> {
    stages: Vec<Box<dyn FlatBlock>>,
    types: PhantomData<fn(Input) -> Output>,
}

impl<Input: TensorTree, Output: TensorTree> Chain<Input, Output> {
    /// The first block. A block's name is its place, from 0, unless it is given [another](Chain::named).
    pub fn start<B: Block<Input = Input, Output = Output>>(block: B) -> Chain<Input, Output> {
        Chain { stages: vec![stage(block, "0")], types: PhantomData }
    }

    /// The next block.
    #[must_use]
    pub fn then<B: Block<Input = Output>>(mut self, block: B) -> Chain<Input, B::Output> {
        self.stages.push(stage(block, &self.stages.len().to_string()));
        Chain { stages: self.stages, types: PhantomData }
    }

    /// Names the last block: its parameters are saved as `name.path`.
    #[must_use]
    pub fn named(mut self, name: &str) -> Chain<Input, Output> {
        if let Some(last) = self.stages.last_mut() {
            last.rename(name);
        }
        self
    }

    /// Says, for every trained parameter so far, how much of the optimizer's weight decay applies to it, by its name and shape: 0 none, 1 all of
    /// it. Without this, what [`Block::decay`] says.
    #[must_use]
    pub fn decay(mut self, share: impl Fn(&str, &[usize]) -> f32) -> Chain<Input, Output> {
        self.stages.iter_mut().for_each(|stage| stage.decay(&share));
        self
    }

    /// Freezes the trained parameters so far whose names these are, as PyTorch's `requires_grad_(False)` does: they
    /// have no gradient, no optimizer state, no weight decay and no update.
    #[must_use]
    pub fn freeze(mut self, is_frozen: impl Fn(&str) -> bool) -> Chain<Input, Output> {
        self.stages.iter_mut().for_each(|stage| stage.freeze(&is_frozen));
        self
    }

    /// The model, without its types.
    pub fn into_model(self) -> Model {
        Model { stages: self.stages }
    }
}

/// Why parameters cannot be frozen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FreezeError {
    /// A pattern is of no parameter.
    #[error("no parameter matches --freeze {pattern}; the model has {names}")]
    NoMatch {
        /// Which.
        pattern: String,
        /// The names of all parameters.
        names: String,
    },
    /// Nothing is left to train.
    #[error("all parameters of the model are frozen (--freeze {patterns}); leave some to be trained")]
    Everything {
        /// The patterns.
        patterns: String,
    },
}

/// Blocks in the order in which a sample passes them.
#[derive(Debug)]
pub struct Model {
    /// The blocks.
    pub stages: Vec<Box<dyn FlatBlock>>,
}

impl Model {
    /// The reason why it cannot be trained on any number of ranks with the same bits, or saved.
    pub(crate) fn objection(&self) -> Option<String> {
        let mut seen = std::collections::BTreeSet::new();
        let names = self.stages.iter().flat_map(|stage| {
            let parameters = stage.parameters().iter().map(|parameter| parameter.name.as_str());
            parameters.chain(stage.buffers().iter().map(|buffer| buffer.name.as_str()))
        });
        let twice = names.into_iter().find(|name| !seen.insert(*name));
        let twice = twice.map(|name| format!("two tensors are called {name}; give their blocks other names"));
        let mut parameters = self.stages.iter().flat_map(|stage| stage.parameters());
        let growing = parameters.find(|parameter| !(parameter.decay.is_finite() && parameter.decay >= 0.0));
        let growing = growing.map(|Parameter { name, decay, .. }| {
            format!("{decay} of the weight decay applies to {name}; give 0, 1 or another share")
        });
        twice.or(growing).or_else(|| self.stages.iter().find_map(|stage| stage.objection()))
    }

    /// Freezes the parameters that match one of these patterns. Nothing has changed after an error but the frozen
    /// parameters.
    ///
    /// # Errors
    /// When a pattern matches no parameter, or none is left to train.
    pub fn freeze(&mut self, patterns: &[NamePattern]) -> Result<(), FreezeError> {
        if patterns.is_empty() {
            return Ok(());
        }
        let names = self.parameter_names();
        if let Some(pattern) = without_match(patterns, &names) {
            return Err(FreezeError::NoMatch { pattern: pattern.to_string(), names: listed(&names) });
        }
        let is_frozen = |name: &str| patterns.iter().any(|pattern| pattern.matches(name));
        self.stages.iter_mut().for_each(|stage| stage.freeze(&is_frozen));
        if self.trained_count() == 0 {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            return Err(FreezeError::Everything { patterns: patterns.join(" --freeze ") });
        }
        Ok(())
    }

    /// The names of all parameters.
    pub(crate) fn parameter_names(&self) -> Vec<&str> {
        let parameters = self.stages.iter().flat_map(|stage| stage.parameters());
        parameters.map(|parameter| parameter.name.as_str()).collect()
    }

    /// The frozen parameters by name: of a block that is frozen completely, the common beginning of its names.
    /// The same list means the same frozen parameters.
    pub(crate) fn frozen(&self) -> Vec<String> {
        let mut frozen = Vec::new();
        for stage in &self.stages {
            let parameters = stage.parameters();
            if let Some(first) = parameters.first().filter(|_| parameters.iter().all(|it| !it.is_trained)) {
                let ends = first.name.match_indices('.').map(|(end, _)| end).chain([first.name.len()]);
                let is_common = |end: &usize| {
                    let starts_so = |it: &Parameter| it.name.get(..*end) == Some(&first.name[..*end]);
                    let ends_so = |it: &Parameter| matches!(it.name.as_bytes().get(*end), None | Some(b'.'));
                    parameters.iter().all(|it| starts_so(it) && ends_so(it))
                };
                let common = ends.rev().find(is_common).map_or("", |end| &first.name[..end]);
                frozen.push(common.to_owned());
            } else {
                let of_block = parameters.iter().filter(|parameter| !parameter.is_trained);
                frozen.extend(of_block.map(|parameter| parameter.name.clone()));
            }
        }
        frozen
    }

    /// How many numbers are trained.
    pub fn trained_count(&self) -> usize {
        let parameters = self.stages.iter().flat_map(|stage| stage.parameters());
        parameters.filter(|parameter| parameter.is_trained).map(Parameter::len).sum()
    }

    /// How many parameters there are.
    pub fn parameter_count(&self) -> usize {
        self.parameter_counts().sum()
    }

    /// The same, block by block.
    pub(crate) fn parameter_counts(&self) -> impl Iterator<Item = usize> {
        self.stages.iter().map(|stage| stage.parameters().iter().map(|parameter| parameter.len()).sum())
    }

    /// The first values of every block's flat buffer.
    pub fn initial(&self, seed: u64) -> Vec<Vec<f32>> {
        self.stages.iter().map(|stage| stage.initial(seed)).collect()
    }

    /// The first values of every block's running numbers.
    pub fn initial_running(&self) -> Running {
        let initial =
            |stage: &dyn FlatBlock| stage.buffers().iter().map(|buffer| buffer.initial.clone()).collect();
        self.stages.iter().map(|stage| initial(&**stage)).collect()
    }

    /// Names for the numbers: all parameters, then all running numbers.
    pub fn name_weights(&self, parameters: Vec<Vec<f32>>, running: &Running) -> Weights {
        let mut named = Vec::new();
        // A block's are gone before the next one's are copied.
        for (stage, flat) in self.stages.iter().zip(parameters) {
            for (parameter, range) in stage.parameters().iter().zip(ranges(stage.parameters())) {
                let (name, shape) = (parameter.name.clone(), parameter.shape.clone());
                named.push(Named { name, shape, values: flat[range].to_vec() });
            }
        }
        for (stage, running) in self.stages.iter().zip(running) {
            for (buffer, values) in stage.buffers().iter().zip(running) {
                let (name, shape) = (buffer.name.clone(), buffer.shape.clone());
                named.push(Named { name, shape, values: values.clone() });
            }
        }
        Weights(named)
    }
}
