//! Weights as tensors: this rank's own, or those of a block from everybody's slices.

use blake3::Hasher;
use burn::tensor::{Device, Tensor};
use shardfmt::digest::Digest;

use super::block::BlockState;
use super::computed::{Computed, Gathering, gather};
use super::{Engine, running_there};
use crate::block::Pass;
use crate::collective::CollectiveError;
use crate::collective::sums::gather_pieces;
use crate::device::Precision;
use crate::flat_block::Use;
use crate::ledger::{Held, Kind, Numbers};
use crate::reduce::Pending;
use crate::tensor_tree::Part;
use crate::trace::Lane;
use crate::weights::Running;

/// Weights as tensors, one for each parameter, by block: of the requested blocks.
pub(super) struct Lent {
    blocks: Vec<Option<Vec<Tensor<1>>>>,
    /// Of those that are copies.
    copies: Held,
    /// Whether they are the device's own, and not to be given back.
    are_there: bool,
}

impl Engine {
    /// Whether tensors can have the memory that the weights are kept in.
    fn shares_memory(&self) -> bool {
        self.compute.device == Device::flex()
    }

    /// Nothing yet.
    pub(super) fn lend(&self) -> Lent {
        let blocks = self.blocks.iter().map(|_| None).collect();
        Lent { blocks, copies: self.ledger.hold(Kind::Gathered, 0), are_there: self.is_resident() }
    }

    /// A block's weights, once they are there. They are gone until they are given back if tensors can have
    /// their memory.
    pub(super) fn tensors<'a>(
        &mut self,
        lent: &'a mut Lent,
        block: usize,
    ) -> Result<&'a [Tensor<1>], CollectiveError> {
        if lent.blocks[block].is_none() {
            if lent.are_there {
                let (precision, device) = (self.compute.precision, &self.compute.device);
                let tensors = self.blocks[block].tensors_there(device, precision);
                return Ok(lent.blocks[block].insert(tensors));
            }
            self.arrive(self.reducer.buckets.with(block))?;
            let (is_host, precision, device) =
                (self.shares_memory(), self.compute.precision, &self.compute.device);
            let BlockState { weights, computed, ownership, .. } = &mut self.blocks[block];
            let is_copied = !is_host || computed.is_none() && precision != Precision::F32;
            let memory = match computed {
                Some(computed) if is_host => std::mem::replace(computed, Computed::F32(Vec::new())),
                Some(computed) => computed.clone(),
                None if !is_copied => Computed::F32(weights.lend()),
                None => Computed::F32(weights.stretches().map(|(_, numbers)| numbers.to_vec()).collect()),
            };
            if is_copied {
                lent.copies.set(lent.copies.bytes() + ownership.all * precision.bytes());
            }
            lent.blocks[block] = Some(memory.into_tensors(precision, device));
        }
        Ok(lent.blocks[block].as_deref().expect("just made"))
    }

    /// Takes the weights back, whose tensors have no users any more.
    pub(super) fn take_back(&mut self, lent: Lent) {
        if lent.copies.bytes() > 0 || lent.are_there {
            return;
        }
        for (block, tensors) in self.blocks.iter_mut().zip(lent.blocks) {
            let Some(tensors) = tensors else { continue };
            match (&mut block.computed, Computed::of_tensors(tensors, self.compute.precision)) {
                (Some(computed), memory) => *computed = memory,
                (None, Computed::F32(memory)) => block.weights.give_back(memory),
                (None, _) => unreachable!("weights themselves have 32 bits"),
            }
        }
    }

    /// Has all parameters of a block gathered.
    pub(super) fn gather(&mut self, block: usize) -> Pending<Computed> {
        let state = &self.blocks[block];
        let (ownership, parameters) = (state.ownership, state.parameters.clone());
        let mut memory = self.spare.gathered(self.compute.precision, &parameters);
        for (start, kept) in state.weights.stretches() {
            memory.copy_from(&parameters, start, kept);
        }
        let (tracer, group) = (self.times.tracer.clone(), self.slices.mesh.group().to_vec());
        self.comm.submit(move |collective| {
            let _span = tracer.span(Lane::Communication, || format!("gather block {block}"));
            let mut block = [Gathering { memory, parameters, end: ownership.all, ownership }];
            gather(collective, &group, &mut block)?;
            let [Gathering { memory, .. }] = block;
            Ok(memory)
        })
    }

    /// As tensors.
    pub(super) fn gathered(&self, memory: Computed) -> Vec<Tensor<1>> {
        memory.into_tensors(self.compute.precision, &self.compute.device)
    }

    /// Takes back the memory of gathered parameters; not that of tensors that a caller has kept, or that live
    /// elsewhere. Of these, a number are parameters, which are counted until the returned value is dropped.
    pub(super) fn release(&mut self, tensors: Vec<Tensor<1>>, kept: Option<usize>) -> Option<Held> {
        if self.shares_memory() && kept.is_none() {
            self.spare.keep_gathered(Computed::of_tensors(tensors, self.compute.precision));
        } else {
            let count: usize = tensors.iter().map(|tensor| tensor.shape().num_elements()).sum();
            self.spare.lose_gathered(count * self.compute.precision.bytes());
        }
        let bytes = kept? * self.compute.precision.bytes();
        Some(self.ledger.hold(Kind::Gathered, bytes))
    }

    /// All numbers of a block. All ranks call it together.
    fn whole(&mut self, block: usize) -> Result<Numbers<f32>, CollectiveError> {
        self.settle()?;
        // Otherwise there would be a block more than in a step.
        self.spare.forget_gathered();
        self.blocks[block].fetch();
        let (state, ledger) = (&self.blocks[block], self.ledger.clone());
        let on_ledger = |numbers| Numbers::of(&ledger, Kind::Gathered, numbers);
        if !self.gathers() {
            let stretches = state.weights.stretches().map(|(_, numbers)| numbers);
            return Ok(on_ledger(stretches.collect::<Vec<_>>().concat()));
        }
        let (ownership, all) = (state.ownership, 0..state.ownership.all);
        let mut whole = on_ledger(vec![0.0; all.len()]);
        for (start, kept) in state.weights.stretches() {
            whole[start..start + kept.len()].copy_from_slice(kept);
        }
        let group = self.slices.mesh.group().to_vec();
        self.comm.run(move |collective| {
            let mut memory = whole.growing();
            let pieces = ownership.cut(&[all], std::slice::from_mut(&mut memory), ownership.all);
            gather_pieces(collective, &group, pieces)?;
            drop(memory);
            Ok(whole)
        })
    }

    /// The parameters, by block: all of them, on every rank. All ranks call it together.
    ///
    /// # Errors
    /// When another rank is gone or late.
    pub fn parameters(&mut self) -> Result<Vec<Vec<f32>>, CollectiveError> {
        (0..self.blocks.len()).map(|block| Ok(self.whole(block)?.into_values())).collect()
    }

    /// The same on rank 0 alone.
    pub(crate) fn parameters_of_first(&mut self) -> Result<Option<Vec<Vec<f32>>>, CollectiveError> {
        let mut all = Vec::new();
        for block in 0..self.blocks.len() {
            let whole = self.whole(block)?;
            if self.comm.rank() == 0 {
                all.push(whole.into_values());
            }
        }
        Ok((self.comm.rank() == 0).then_some(all))
    }

    /// The digest of each block's parameters. All ranks call it together.
    ///
    /// # Errors
    /// When another rank is gone or late.
    pub fn digests(&mut self) -> Result<Vec<Digest>, CollectiveError> {
        self.settle()?;
        let mut digests = Vec::with_capacity(self.blocks.len());
        for block in 0..self.blocks.len() {
            if self.gathers() {
                digests.push(Digest::of(bytemuck::cast_slice(&self.whole(block)?)));
                continue;
            }
            self.blocks[block].fetch();
            let mut hasher = Hasher::new();
            for (_, numbers) in self.blocks[block].weights.stretches() {
                hasher.update(bytemuck::cast_slice(numbers));
            }
            digests.push(Digest(hasher.finalize().into()));
        }
        Ok(digests)
    }

    /// The model's output for an input, with these running numbers. Where weights are
    /// [gathered](Engine::gathers), all ranks call it together, those without an input as well.
    ///
    /// # Errors
    /// When another rank is gone or late.
    pub fn output(
        &mut self,
        input: Option<Vec<Part>>,
        running: &Running,
    ) -> Result<Option<Vec<Part>>, CollectiveError> {
        let (mut activation, mut shelf) =
            (input.map(|input| self.at_precision(input)), std::collections::BTreeMap::new());
        for (block, running) in running_there(running, &self.compute.device).iter().enumerate() {
            let parameters = if self.is_resident() {
                self.blocks[block].tensors_there(&self.compute.device, self.compute.precision)
            } else {
                let whole = self.whole(block)?;
                let ranges = &self.blocks[block].parameters;
                let mut memory = Computed::zeros(self.compute.precision, ranges);
                memory.copy_from(ranges, 0, &whole);
                drop(whole);
                self.gathered(memory)
            };
            let Some(input) = activation.take() else { continue };
            let mut pass = Pass::new(None, shelf, None);
            let loaded = self.model.stages[block].load(&parameters, running, Use::Evaluation);
            activation = Some(loaded.forward(input, &mut pass));
            (shelf, _) = pass.leave();
        }
        let plain = |parts: Vec<Part>| parts.into_iter().map(|part| part.cast(Precision::F32.dtype()));
        Ok(activation.map(|parts| plain(parts).collect()))
    }
}
