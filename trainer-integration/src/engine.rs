//! One training step: every virtual rank's forward and backward, the reduction of their gradients, the update.
//!
//! Each virtual rank is computed on its own, with its own micro-batch and statistics, also where one process hosts many:
//! that is what makes the bits independent of the number of processes. Gradients travel block by block: while the last
//! virtual rank of this process still goes backward through the earlier blocks, the later ones are already being reduced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor, TensorData};
use shardfmt::digest::Digest;

use crate::block::{Block, Mode, to_numbers};
use crate::checkpoint::{BlockLayout, Layout, State};
use crate::collective::CollectiveError;
use crate::data::Samples;
use crate::loss::{Loss, cross_entropy};
use crate::model::Model;
use crate::optim::{Moments, Norm, Rule};
use crate::random::Key;
use crate::reduce::{Comm, Partials, Pending, VirtualRanks, all_reduce};
use crate::weights::{Statistics, Weights, WeightsError, ranges};

/// A model being trained, as one rank holds it.
#[derive(Debug)]
pub struct Engine {
    model: Model,
    device: Device,
    ranks: VirtualRanks,
    rule: Rule,
    key: Key,
    blocks: Vec<BlockState>,
    /// By virtual rank of this rank, then by block.
    statistics: Vec<Vec<Statistics>>,
    comm: Arc<Comm>,
    updating: Duration,
    reducing: Duration,
}

/// The numbers of one block.
#[derive(Debug)]
struct BlockState {
    weights: Vec<f32>,
    decays: Vec<bool>,
    moments: Moments,
}

/// What all ranks know of a step before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepPlan {
    /// How many steps of the training came before it.
    pub number: u64,
    /// Samples of all ranks.
    pub samples: u64,
    /// Learning rate.
    pub rate: f32,
}

/// What a step came to, on all ranks alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLoss {
    /// Sum of the losses of all samples.
    pub sum: f64,
    /// Samples that were answered rightly before the update.
    pub correct: u64,
    /// How many samples there were.
    pub samples: u64,
    /// Length of the gradient, all blocks together, before it was clipped.
    pub gradient_norm: f64,
}

/// Which block's gradient, and the sum of it over all virtual ranks when it is there.
type Reduction = (usize, Pending<Vec<f32>>);

impl Engine {
    /// A model with these first weights (by block, the same on every rank), which draws the random numbers of `key`.
    ///
    /// # Panics
    /// If the weights are not the model's, or the world larger than the number of virtual ranks.
    pub fn new(
        model: Model,
        weights: Vec<Vec<f32>>,
        device: Device,
        ranks: VirtualRanks,
        rule: impl Into<Rule>,
        key: Key,
        comm: Arc<Comm>,
    ) -> Engine {
        assert_eq!(ranks.world, comm.world(), "the virtual ranks are shared by this world");
        assert_eq!(weights.len(), model.blocks.len(), "weights for every block");
        let state = |block: &dyn Block, weights: Vec<f32>| {
            let parameters = block.parameters().iter();
            let decays: Vec<bool> = parameters
                .flat_map(|parameter| std::iter::repeat_n(parameter.decays, parameter.len()))
                .collect();
            assert_eq!(weights.len(), decays.len(), "weights for every parameter");
            BlockState { weights, decays, moments: Moments::default() }
        };
        let blocks =
            model.blocks.iter().zip(weights).map(|(block, weights)| state(&**block, weights)).collect();
        let statistics = ranks.of(comm.rank()).map(|_| model.initial_statistics()).collect();
        let rule = rule.into();
        let (updating, reducing) = (Duration::ZERO, Duration::ZERO);
        Engine { model, device, ranks, rule, key, blocks, statistics, comm, updating, reducing }
    }

    /// How much of the last step came after its last backward pass: waiting for the sums of all ranks, and the update.
    pub fn updating(&self) -> Duration {
        self.updating
    }

    /// Of this, how much was waiting for the sums of all ranks.
    pub fn reducing(&self) -> Duration {
        self.reducing
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The parameters, by block.
    pub fn parameters(&self) -> Vec<Vec<f32>> {
        self.blocks.iter().map(|block| block.weights.clone()).collect()
    }

    /// Trains on a step: one share for each virtual rank of this rank, in order.
    ///
    /// Gradients are those of the mean loss over `samples`, those of all ranks: a virtual rank with fewer
    /// rows weighs less, one without any adds zeros. What the step came to, which is the same on every rank, is shown to `take`
    /// before anything is changed: if it says no, weights, moments and statistics stay as they were.
    ///
    /// # Errors
    /// When another rank is gone or late; the weights are then of no further use.
    ///
    /// # Panics
    /// If there is not one share for each virtual rank.
    pub fn step(
        &mut self,
        shares: &[Samples],
        StepPlan { number, samples: global_samples, rate }: StepPlan,
        take: impl FnOnce(&StepLoss) -> bool,
    ) -> Result<StepLoss, CollectiveError> {
        let hosted = self.ranks.of(self.comm.rank());
        let before = self.statistics.clone();
        assert_eq!(shares.len(), hosted.len(), "a share for every virtual rank");
        let parameters = self.tensors();
        let count = self.ranks.count;
        let mut gradients: Vec<Partials<f32>> =
            (0..self.blocks.len()).map(|_| Partials::new(count)).collect();
        let mut scalars = Partials::<f64>::new(count);
        let mut reductions: Vec<Reduction> = Vec::with_capacity(self.blocks.len());

        for (index, (virtual_rank, samples)) in hosted.clone().zip(shares).enumerate() {
            let is_last = virtual_rank + 1 == hosted.end;
            let mut submit = |block: usize, gradient: Vec<f32>| {
                gradients[block].push(virtual_rank, gradient);
                if is_last {
                    let partials = std::mem::replace(&mut gradients[block], Partials::new(count));
                    reductions.push((block, reduce(&self.comm, self.ranks, partials)));
                }
            };
            let loss = if samples.labels.is_empty() {
                for block in (0..self.blocks.len()).rev() {
                    submit(block, vec![0.0; self.blocks[block].weights.len()]);
                }
                Loss { sum: 0.0, correct: 0, gradient: Vec::new() }
            } else {
                let key = self.key.of(number).of(virtual_rank.into());
                let pass = Pass { model: &self.model, device: &self.device, parameters: &parameters, key };
                pass.run(samples, global_samples, &mut self.statistics[index], &mut submit)
            };
            scalars.push(virtual_rank, vec![loss.sum, loss.correct as f64, samples.labels.len() as f64]);
        }

        let computed = Instant::now();
        let totals = reduce(&self.comm, self.ranks, scalars);
        let mut norm = Norm::default();
        let mut sums = Vec::with_capacity(reductions.len());
        for (block, reduction) in reductions {
            let gradient = reduction.wait()?;
            norm.add(&gradient);
            sums.push((block, gradient));
        }
        let totals = totals.wait()?;
        let loss = StepLoss {
            sum: totals[0],
            correct: totals[1] as u64,
            samples: totals[2] as u64,
            gradient_norm: norm.value(),
        };
        self.reducing = computed.elapsed();
        if take(&loss) {
            self.update(sums, norm, rate);
        } else {
            self.statistics = before;
        }
        self.updating = computed.elapsed();
        Ok(loss)
    }

    /// Moves the weights against the gradient.
    fn update(&mut self, gradient: Vec<(usize, Vec<f32>)>, norm: Norm, rate: f32) {
        let Rule { optimizer, clip } = self.rule;
        let factor = clip.map_or(1.0, |limit| norm.factor(limit));
        for (block, mut gradient) in gradient {
            if factor != 1.0 {
                gradient.iter_mut().for_each(|number| *number *= factor);
            }
            let BlockState { weights, decays, moments } = &mut self.blocks[block];
            moments.update(optimizer, rate, decays, weights, &gradient);
        }
    }

    /// The running statistics averaged over all virtual ranks, in the order of the tree: the same on every rank.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn averaged_statistics(&self) -> Result<Vec<Statistics>, CollectiveError> {
        let mut sums = Partials::new(self.ranks.count);
        for (virtual_rank, blocks) in self.ranks.of(self.comm.rank()).zip(&self.statistics) {
            let flat = blocks.iter().flat_map(|block| block.mean.iter().chain(&block.variance));
            sums.push(virtual_rank, flat.copied().collect());
        }
        let total = reduce(&self.comm, self.ranks, sums).wait()?;
        let mut averages = total.iter().map(|sum| sum / self.ranks.count as f32);
        let mut averaged = self.model.initial_statistics();
        for block in &mut averaged {
            for value in block.mean.iter_mut().chain(&mut block.variance) {
                *value = averages.next().expect("as many sums as statistics");
            }
        }
        Ok(averaged)
    }

    /// Makes the weights those of the same names, and the running statistics of every virtual rank, as far as they are among them.
    ///
    /// # Errors
    /// When they are of another model; then nothing has changed.
    pub(crate) fn begin_with(&mut self, weights: &Weights) -> Result<(), WeightsError> {
        let initial = self.model.initial_statistics();
        let named = self.model.name_weights(&self.parameters(), &initial);
        let parameters: usize = self.model.blocks.iter().map(|block| block.parameters().len()).sum();
        let wanted: Vec<(String, Vec<usize>, bool)> = (named.0.iter().enumerate())
            .map(|(index, named)| (named.name.clone(), named.shape.clone(), index >= parameters))
            .collect();
        let mut values = weights.pick(&wanted)?.into_iter().zip(&named.0);
        let mut next = || values.next().map(|(found, ours)| found.unwrap_or(&ours.values).to_vec());
        for (block, state) in self.model.blocks.iter().zip(&mut self.blocks) {
            state.weights = block.parameters().iter().flat_map(|_| next().unwrap_or_default()).collect();
        }
        let mut statistics = initial;
        for block in statistics.iter_mut().filter(|block| !block.mean.is_empty()) {
            block.mean = next().unwrap_or_default();
            block.variance = next().unwrap_or_default();
        }
        self.statistics.fill(statistics);
        Ok(())
    }

    /// What this rank would have to be given to go on from here: the layout of the numbers, and the numbers, as they lie.
    pub(crate) fn state(&self) -> (Layout, Vec<&[f32]>, Vec<Vec<f32>>) {
        let flat = |block: &Statistics| [&block.mean[..], &block.variance].concat();
        let statistics = self.statistics.iter().map(|blocks| blocks.iter().flat_map(flat).collect());
        let mut numbers = Vec::with_capacity(3 * self.blocks.len());
        for BlockState { weights, moments, .. } in &self.blocks {
            numbers.extend([&weights[..], &moments.first, &moments.second]);
        }
        (self.layout(), numbers, statistics.collect())
    }

    fn layout(&self) -> Layout {
        let layout = |block: &dyn Block, state: &BlockState, statistics: &Statistics| BlockLayout {
            parameters: block.parameters().iter().map(|it| (it.name.clone(), it.shape.clone())).collect(),
            weights: state.weights.len(),
            first: state.moments.first.len(),
            second: state.moments.second.len(),
            updates: state.moments.steps,
            statistics: statistics.mean.len() + statistics.variance.len(),
        };
        let statistics = self.model.initial_statistics();
        let blocks = self.model.blocks.iter().zip(&self.blocks).zip(&statistics);
        let blocks = blocks.map(|((block, state), statistics)| layout(&**block, state, statistics));
        Layout { blocks: blocks.collect() }
    }

    /// Makes this what [`Engine::state`] said of some engine, in the numbers of its layout. The statistics are those of this rank's
    /// virtual ranks, in order.
    ///
    /// # Errors
    /// What of the model differs from the layout; then nothing has changed.
    pub(crate) fn restore(&mut self, layout: &Layout, state: &State) -> Result<(), String> {
        let ours = self.layout();
        if ours.blocks.len() != layout.blocks.len() {
            return Err(format!("{} blocks, and not {}", layout.blocks.len(), ours.blocks.len()));
        }
        for (index, (ours, theirs)) in ours.blocks.iter().zip(&layout.blocks).enumerate() {
            let fits = |count: usize| count == 0 || count == ours.weights;
            if (&ours.parameters, ours.statistics) != (&theirs.parameters, theirs.statistics) {
                let (ours, theirs) = (&ours.parameters, &theirs.parameters);
                return Err(format!("block {index} of {theirs:?}, and not of {ours:?}"));
            }
            if theirs.weights != ours.weights || !fits(theirs.first) || !fits(theirs.second) {
                return Err(format!("block {index} with other numbers than its parameters have"));
            }
        }
        let hosted = self.ranks.of(self.comm.rank());
        if !state.statistics.iter().map(|(rank, _)| *rank).eq(hosted)
            || state.statistics.iter().any(|(_, numbers)| numbers.len() != layout.statistics())
            || state.common.len() != layout.common()
        {
            return Err("other numbers than its layout says".to_owned());
        }
        let mut left = &state.common[..];
        for (block, layout) in self.blocks.iter_mut().zip(&layout.blocks) {
            block.weights = take(&mut left, layout.weights);
            let (first, second) = (take(&mut left, layout.first), take(&mut left, layout.second));
            block.moments = Moments { first, second, steps: layout.updates };
        }
        for (blocks, (_, numbers)) in self.statistics.iter_mut().zip(&state.statistics) {
            let mut left = &numbers[..];
            for Statistics { mean, variance } in blocks {
                *mean = take(&mut left, mean.len());
                *variance = take(&mut left, variance.len());
            }
        }
        Ok(())
    }

    /// The digest of each block's parameters.
    pub fn digests(&self) -> Vec<Digest> {
        self.blocks.iter().map(|block| Digest::of(bytemuck::cast_slice(&block.weights))).collect()
    }

    /// The weights as they stand, with averaged statistics: what is hashed, saved and evaluated.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn weights(&self) -> Result<Weights, CollectiveError> {
        Ok(self.model.name_weights(&self.parameters(), &self.averaged_statistics()?))
    }

    /// The logits of some rows, by these statistics.
    pub fn logits(&self, features: Vec<f32>, statistics: &[Statistics]) -> Vec<f32> {
        let parameters = self.tensors();
        let mut activation = rows(features, self.model.inputs, &self.device);
        for ((block, parameters), statistics) in self.model.blocks.iter().zip(&parameters).zip(statistics) {
            activation = block.forward(parameters, activation, Mode::Evaluate(statistics));
        }
        to_numbers(activation)
    }

    /// One flat tensor per parameter, by block.
    fn tensors(&self) -> Vec<Vec<Tensor<1>>> {
        let tensors = |block: &dyn Block, state: &BlockState| {
            let tensor = |range: std::ops::Range<usize>| {
                let values = state.weights[range].to_vec();
                let length = values.len();
                Tensor::from_data(TensorData::new(values, [length]), &self.device)
            };
            ranges(block.parameters()).into_iter().map(tensor).collect()
        };
        self.model.blocks.iter().zip(&self.blocks).map(|(block, state)| tensors(&**block, state)).collect()
    }
}

/// The next `count` numbers.
fn take(left: &mut &[f32], count: usize) -> Vec<f32> {
    let (taken, rest) = left.split_at(count);
    *left = rest;
    taken.to_vec()
}

fn reduce<T: bytemuck::Pod + Send + std::ops::Add<Output = T>>(
    comm: &Comm,
    ranks: VirtualRanks,
    partials: Partials<T>,
) -> Pending<Vec<T>> {
    comm.submit(move |collective| all_reduce(collective, ranks, partials))
}

fn rows(features: Vec<f32>, width: usize, device: &Device) -> Tensor<2> {
    let count = features.len() / width;
    Tensor::from_data(TensorData::new(features, [count, width]), device)
}

/// One virtual rank's way forward and back.
struct Pass<'a> {
    model: &'a Model,
    device: &'a Device,
    parameters: &'a [Vec<Tensor<1>>],
    key: Key,
}

/// A block between forward and backward.
struct Kept {
    parameters: Vec<Tensor<1>>,
    input: Tensor<2>,
    output: Tensor<2>,
}

impl Pass<'_> {
    /// Hands each block's flat gradient to `submit`, the last block's first.
    fn run(
        &self,
        samples: &Samples,
        global_samples: u64,
        statistics: &mut [Statistics],
        submit: &mut dyn FnMut(usize, Vec<f32>),
    ) -> Loss {
        // Before the first parameters there is nothing to go back for.
        let first = self.parameters.iter().position(|parameters| !parameters.is_empty()).unwrap_or(0);
        let mut kept: Vec<Kept> = Vec::with_capacity(self.model.blocks.len());
        let mut activation = rows(samples.features.clone(), self.model.inputs, self.device);
        for (index, (block, parameters)) in self.model.blocks.iter().zip(self.parameters).enumerate() {
            // Leaves of this block's own graph: nothing connects it to its neighbours but values.
            let leaf = |tensor: &Tensor<1>| tensor.clone().autodiff().require_grad();
            let parameters: Vec<Tensor<1>> = parameters.iter().map(leaf).collect();
            let input = activation.autodiff();
            let input = if index > first { input.require_grad() } else { input };
            let mode = Mode::Train(&mut statistics[index], self.key.of(index as u64));
            let output = block.forward(&parameters, input.clone(), mode);
            activation = output.clone().inner();
            kept.push(Kept { parameters, input, output });
        }

        let loss =
            cross_entropy(&to_numbers(activation), &samples.labels, self.model.classes, global_samples);
        let mut upstream = rows(loss.gradient.clone(), self.model.classes, self.device);
        while let Some(Kept { parameters, input, output }) = kept.pop() {
            let index = kept.len();
            if index < first {
                submit(index, Vec::new());
                continue;
            }
            // The product's gradient with respect to the output is `upstream`; its value is of no interest.
            let mut found = (output * upstream.clone().autodiff()).sum().backward();
            let mut gradient = Vec::new();
            for parameter in &parameters {
                match parameter.grad_remove(&mut found) {
                    Some(values) => gradient.extend(to_numbers(values)),
                    None => gradient.resize(gradient.len() + parameter.dims()[0], 0.0),
                }
            }
            if index > first {
                upstream = input.grad_remove(&mut found).expect("every block depends on its input");
            }
            submit(index, gradient);
        }
        loss
    }
}

#[cfg(test)]
mod tests;
