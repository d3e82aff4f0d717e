//! Weights as tensors: this rank's own, or those of a block from everybody's slices.

use blake3::Hasher;
use burn::tensor::{Device, Tensor};
use shardfmt::digest::Digest;

use super::Engine;
use super::block::BlockState;
use super::computed::{Computed, Gathering, gather};
use crate::block::Pass;
use crate::collective::CollectiveError;
use crate::collective::sums::gather_pieces;
use crate::device::Precision;
use crate::flow::Part;
use crate::ledger::{Held, Kind};
use crate::reduce::Pending;
use crate::stage::Use;
use crate::trace::Lane;
use crate::weights::Running;

/// All weights as tensors, one for each parameter, by block.
pub(super) struct Lent {
    pub(super) blocks: Vec<Vec<Tensor<1>>>,
    /// The tensors are copies.
    copies: Option<Held>,
}

impl Engine {
    /// Whether tensors can have the memory that the weights are kept in.
    fn shares_memory(&self) -> bool {
        self.device == Device::flex()
    }

    /// The weights, which are away until they are given back if tensors can have their memory.
    pub(super) fn lend(&mut self) -> Lent {
        let (is_host, precision, device) = (self.shares_memory(), self.precision, &self.device);
        let (mut blocks, mut copied) = (Vec::with_capacity(self.blocks.len()), 0);
        for BlockState { weights, computed, ownership, .. } in &mut self.blocks {
            let memory = match computed {
                Some(computed) if is_host => std::mem::replace(computed, Computed::F32(Vec::new())),
                Some(computed) => computed.clone(),
                None if is_host && precision == Precision::F32 => Computed::F32(weights.lend()),
                None => Computed::F32(weights.stretches().map(|(_, numbers)| numbers.to_vec()).collect()),
            };
            if !is_host || computed.is_none() && precision != Precision::F32 {
                copied += ownership.all * precision.bytes();
            }
            blocks.push(memory.into_tensors(precision, device));
        }
        let copies = (copied > 0).then(|| self.ledger.hold(Kind::Gathered, copied));
        Lent { blocks, copies }
    }

    /// Takes the weights back, whose tensors nobody looks at any more.
    pub(super) fn take_back(&mut self, lent: Lent) {
        if lent.copies.is_some() {
            return;
        }
        for (block, tensors) in self.blocks.iter_mut().zip(lent.blocks) {
            match (&mut block.computed, Computed::of_tensors(tensors, self.precision)) {
                (Some(computed), memory) => *computed = memory,
                (None, Computed::F32(memory)) => block.weights.give_back(memory),
                (None, Computed::Bf16(_)) => unreachable!("weights themselves have 32 bits"),
            }
        }
    }

    /// Has all parameters of a block gathered.
    pub(super) fn gather(&mut self, block: usize) -> Pending<Computed> {
        let state = &self.blocks[block];
        let (ownership, parameters) = (state.ownership, state.parameters.clone());
        let mut memory = self.spare.gathered(self.precision, &parameters);
        for (start, kept) in state.weights.stretches() {
            memory.copy_from(&parameters, start, kept);
        }
        let (tracer, group) = (self.tracer.clone(), self.mesh.group().to_vec());
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
        memory.into_tensors(self.precision, &self.device)
    }

    /// Takes back the memory of gathered parameters; not that of tensors somebody has kept, or that live elsewhere.
    pub(super) fn release(&mut self, tensors: Vec<Tensor<1>>, is_kept: bool) {
        if self.shares_memory() && !is_kept {
            self.spare.keep_gathered(Computed::of_tensors(tensors, self.precision));
        } else {
            let count: usize = tensors.iter().map(|tensor| tensor.shape().num_elements()).sum();
            self.spare.lose_gathered(count * self.precision.bytes());
        }
    }

    /// All numbers of a block. All ranks call it together.
    fn whole(&self, block: usize) -> Result<Vec<f32>, CollectiveError> {
        let state = &self.blocks[block];
        if !self.gathers() {
            let stretches = state.weights.stretches().map(|(_, numbers)| numbers);
            return Ok(stretches.collect::<Vec<_>>().concat());
        }
        let (ownership, all) = (state.ownership, 0..state.ownership.all);
        let mut memory = vec![vec![0.0; all.len()]];
        for (start, kept) in state.weights.stretches() {
            memory[0][start..start + kept.len()].copy_from_slice(kept);
        }
        let group = self.mesh.group().to_vec();
        self.comm.run(move |collective| {
            gather_pieces(collective, &group, ownership.cut(&[all], &mut memory, ownership.all))?;
            Ok(memory.remove(0))
        })
    }

    /// The parameters, by block: all of them, on every rank. All ranks call it together.
    ///
    /// # Errors
    /// When another rank is gone or late.
    pub fn parameters(&self) -> Result<Vec<Vec<f32>>, CollectiveError> {
        (0..self.blocks.len()).map(|block| self.whole(block)).collect()
    }

    /// The same on rank 0 alone.
    pub(crate) fn parameters_of_first(&self) -> Result<Option<Vec<Vec<f32>>>, CollectiveError> {
        let mut all = Vec::new();
        for block in 0..self.blocks.len() {
            let whole = self.whole(block)?;
            if self.comm.rank() == 0 {
                all.push(whole);
            }
        }
        Ok((self.comm.rank() == 0).then_some(all))
    }

    /// The digest of each block's parameters. All ranks call it together.
    ///
    /// # Errors
    /// When another rank is gone or late.
    pub fn digests(&self) -> Result<Vec<Digest>, CollectiveError> {
        let digest = |block: usize| {
            if self.gathers() {
                return Ok(Digest::of(bytemuck::cast_slice(&self.whole(block)?)));
            }
            let mut hasher = Hasher::new();
            for (_, numbers) in self.blocks[block].weights.stretches() {
                hasher.update(bytemuck::cast_slice(numbers));
            }
            Ok(Digest(hasher.finalize().into()))
        };
        (0..self.blocks.len()).map(digest).collect()
    }

    /// What the model makes of an input, by these running numbers. Where weights are [gathered](Engine::gathers), all ranks call it together,
    /// those without an input as well.
    ///
    /// # Errors
    /// When another rank is gone or late.
    pub fn output(
        &self,
        input: Option<Vec<Part>>,
        running: &Running,
    ) -> Result<Option<Vec<Part>>, CollectiveError> {
        let (mut activation, mut shelf) =
            (input.map(|input| self.at_precision(input)), std::collections::BTreeMap::new());
        for (block, (stage, running)) in self.model.stages.iter().zip(running).enumerate() {
            let whole = self.whole(block)?;
            let Some(input) = activation.take() else { continue };
            let ranges = &self.blocks[block].parameters;
            let mut memory = Computed::zeros(self.precision, ranges);
            memory.copy_from(ranges, 0, &whole);
            drop(whole);
            let parameters = self.gathered(memory);
            let mut pass = Pass::new(None, shelf, None);
            activation = Some(stage.load(&parameters, running, Use::Evaluation).forward(input, &mut pass));
            (shelf, _) = pass.leave();
        }
        let plain = |parts: Vec<Part>| parts.into_iter().map(|part| part.cast(Precision::F32.dtype()));
        Ok(activation.map(|parts| plain(parts).collect()))
    }
}
