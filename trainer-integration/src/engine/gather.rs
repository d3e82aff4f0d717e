//! Weights as tensors: this rank's own, or those of a block from everybody's slices.

use blake3::Hasher;
use burn::tensor::{Device, Tensor, TensorData};
use shardfmt::digest::Digest;

use super::{Engine, Zero};
use crate::block::Pass;
use crate::collective::CollectiveError;
use crate::collective::sums::gather_pieces;
use crate::device::Precision;
use crate::flow::Part;
use crate::ledger::{Held, Kind};
use crate::reduce::Pending;
use crate::stage::{Use, to_numbers};
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
        self.device == Device::flex() && self.precision == Precision::F32
    }

    fn tensor(&self, values: Vec<f32>) -> Tensor<1> {
        let length = values.len();
        let tensor = Tensor::<1>::from_data(TensorData::new(values, [length]), &self.device);
        tensor.cast(self.precision.dtype())
    }

    /// The weights, which are away until they are given back if tensors can have their memory.
    pub(super) fn lend(&mut self) -> Lent {
        let is_shared = self.shares_memory();
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for block in 0..self.blocks.len() {
            let weights = &mut self.blocks[block].weights;
            let memory = match is_shared {
                true => weights.lend(),
                false => weights.stretches().map(|(_, numbers)| numbers.to_vec()).collect(),
            };
            blocks.push(memory.into_iter().map(|values| self.tensor(values)).collect());
        }
        let count: usize = self.blocks.iter().map(|block| block.ownership.all).sum();
        let copies = (!is_shared).then(|| self.ledger.hold(Kind::Gathered, count * self.precision.bytes()));
        Lent { blocks, copies }
    }

    /// Takes the weights back, whose tensors nobody looks at any more.
    pub(super) fn take_back(&mut self, lent: Lent) {
        if lent.copies.is_none() {
            for (block, tensors) in self.blocks.iter_mut().zip(lent.blocks) {
                block.weights.give_back(tensors.into_iter().map(to_numbers).collect());
            }
        }
    }

    /// Has all parameters of a block gathered, in memory of their own each.
    pub(super) fn gather(&mut self, block: usize) -> Pending<Vec<Vec<f32>>> {
        let state = &self.blocks[block];
        let (ownership, parameters) = (state.ownership, state.parameters.clone());
        let mut memory = self.spare.gathered(parameters.iter().map(ExactSizeIterator::len));
        for (range, numbers) in parameters.iter().zip(&mut memory) {
            for (start, kept) in state.weights.stretches() {
                let (from, to) = (range.start.max(start), range.end.min(start + kept.len()));
                if from < to {
                    numbers[from - range.start..to - range.start]
                        .copy_from_slice(&kept[from - start..to - start]);
                }
            }
        }
        let (tracer, group) = (self.tracer.clone(), self.mesh.group().to_vec());
        self.comm.submit(move |collective| {
            let _span = tracer.span(Lane::Communication, || format!("gather block {block}"));
            gather_pieces(collective, &group, ownership.cut(&parameters, &mut memory, ownership.all))?;
            Ok(memory)
        })
    }

    /// As tensors.
    pub(super) fn gathered(&self, memory: Vec<Vec<f32>>) -> Vec<Tensor<1>> {
        memory.into_iter().map(|values| self.tensor(values)).collect()
    }

    /// Takes back the memory of gathered parameters; not that of tensors somebody has kept, or that live elsewhere.
    pub(super) fn release(&mut self, tensors: Vec<Tensor<1>>, is_kept: bool) {
        if self.shares_memory() && !is_kept {
            self.spare.keep_gathered(tensors.into_iter().map(to_numbers).collect());
        } else {
            self.spare.lose_gathered(tensors.iter().map(|tensor| tensor.shape().num_elements()));
        }
    }

    /// All numbers of a block. All ranks call it together.
    fn whole(&self, block: usize) -> Result<Vec<f32>, CollectiveError> {
        let state = &self.blocks[block];
        if self.zero != Zero::Parameters {
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
            if self.zero == Zero::Parameters {
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

    /// What the model makes of an input, by these running numbers. Where parameters are sliced, all ranks call it together, those without an
    /// input as well.
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
            let parameters = self.blocks[block].parameters.iter();
            let parameters: Vec<Tensor<1>> =
                parameters.map(|range| self.tensor(whole[range.clone()].to_vec())).collect();
            let mut pass = Pass::new(None, shelf, None);
            activation = Some(stage.load(&parameters, running, Use::Evaluation).forward(input, &mut pass));
            (shelf, _) = pass.leave();
        }
        let plain = |parts: Vec<Part>| parts.into_iter().map(|part| part.cast(Precision::F32.dtype()));
        Ok(activation.map(|parts| plain(parts).collect()))
    }
}
