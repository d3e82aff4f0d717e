//! Forward and backward where every rank keeps slices of the parameters: block by block, all virtual ranks and micro-batches of this rank through one
//! block before the next. So a block's parameters are gathered twice in a call, however many micro-batches there are, and its gradient is on its way before the
//! next block's begins.
//!
//! On the way forward only what enters a block is kept; on the way back its graph is made again. The block after is gathered while one is computed, and its
//! gradient is added up meanwhile. The last block goes forward and back at once.

use burn::tensor::Tensor;

use super::computed::Computed;
use super::memory::at_once;
use super::passes::Closing;
use super::walk::{Open, Walk};
use super::{Engine, EngineError, Measure, MicroBatch, Share, StepInProgress};
use crate::collective::CollectiveError;
use crate::flat_block::Use;
use crate::reduce::Pending;
use crate::trace::Lane;

/// A micro-batch, or that a virtual rank has none.
struct Slot<'a> {
    /// Which virtual rank of this rank.
    index: usize,
    walk: Option<Walk>,
    measure: Option<(Measure<'a>, usize)>,
    /// The gradient of its virtual rank is complete with it.
    is_last: bool,
}

/// The parameters of a block on their way.
struct Arriving {
    block: usize,
    memory: Pending<Computed>,
}

impl Engine {
    pub(super) fn run_sliced(
        &mut self,
        shares: Vec<Share<'_>>,
        begun: &mut StepInProgress,
        closing: Closing,
    ) -> Result<(), EngineError> {
        let longest = shares.iter().map(Vec::len).max().unwrap_or(0);
        let most = self.largest(longest, begun.number, closing.is_complete)?;
        if most == 0 {
            if closing.sends {
                self.deliver_nothing(begun)?;
            }
            return Ok(());
        }
        // Sums over all virtual ranks are those of one micro-batch of each.
        let rounds = if self.is_side_by_side() { most } else { 1 };
        let mut shares: Vec<_> = shares.into_iter().map(Vec::into_iter).collect();
        for round in 1..=rounds {
            let mut slots = Vec::new();
            for (index, share) in shares.iter_mut().enumerate() {
                let count = if rounds == 1 { share.len() } else { 1 };
                let mut of_share: Vec<_> =
                    (0..count.max(1)).map(|_| self.slot(index, share.next(), begun)).collect();
                if let Some(last) = of_share.last_mut() {
                    last.is_last = closing.sends && round == rounds;
                }
                slots.append(&mut of_share);
            }
            let rows = slots.iter().filter_map(|slot| Some(slot.measure.as_ref()?.1)).sum();
            self.begin_proof(rows);
            at_once(rows, || self.round(slots, begun))?;
            self.end_proof(rows);
        }
        Ok(())
    }

    fn slot<'a>(&self, index: usize, next: Option<MicroBatch<'a>>, begun: &mut StepInProgress) -> Slot<'a> {
        let Some(micro_batch) = next else {
            return Slot { index, walk: None, measure: None, is_last: false };
        };
        let rows = micro_batch.rows().unwrap_or(1);
        let MicroBatch { input, measure, .. } = micro_batch;
        let (input, key) = (self.at_precision(input), self.next_key(begun, index));
        let walk = Walk::new(input, key, self.no_gradient(), self.compute.scale);
        Slot { index, walk: Some(walk), measure: Some((measure, rows)), is_last: false }
    }

    /// All slots forward and back.
    fn round(&mut self, mut slots: Vec<Slot<'_>>, begun: &mut StepInProgress) -> Result<(), CollectiveError> {
        let last = self.model.stages.len() - 1;
        let mut arriving = Some(self.begin_gather(0));
        // By block, of which parameters are still needed after it.
        let mut kept = Vec::with_capacity(last);
        for block in 0..last {
            let parameters = self.arrived(arriving.take(), block)?;
            arriving = Some(self.begin_gather(block + 1));
            let total = self.summary(block, &parameters, walks(&slots))?;
            for slot in &mut slots {
                let (index, Some(walk)) = (slot.index, &mut slot.walk) else { continue };
                let _span = self.times.tracer.span(Lane::Compute, || format!("forward {block}"));
                let running = &mut self.running[index][block];
                let loaded = self.model.stages[block].load(&parameters, running, Use::Forward);
                let before = std::mem::take(running);
                let is_gone_back = block >= self.compute.first_trained;
                *running = walk.pass_by(block, &*loaded, total.clone(), before, is_gone_back);
            }
            let is_kept = walks(&slots).any(|(_, walk)| walk.is_some_and(Walk::keeps));
            let count = is_kept.then(|| self.kept_parameters(block, walks(&slots)));
            kept.push(self.release(parameters, count));
        }
        let parameters = self.arrived(arriving.take(), last)?;
        let total = self.summary(last, &parameters, walks(&slots))?;
        let gathers = |block: &usize| *block >= self.compute.first_trained;
        let mut arriving = last.checked_sub(1).filter(gathers).map(|next| self.begin_gather(next));
        let mut open = Vec::new();
        for slot in &mut slots {
            let Some(walk) = &mut slot.walk else {
                open.push(None);
                continue;
            };
            self.forward(walk, slot.index, last, &parameters, total.clone());
            let (measure, rows) = slot.measure.take().expect("a walk is measured once");
            begun.measure(slot.index, walk.turn(|output| measure(output, 0..rows, rows)));
            open.push(self.backward(walk, last));
        }
        self.back_through(last, &mut slots, open, parameters, begun)?;
        for block in (self.compute.first_trained..last).rev() {
            let parameters = self.arrived(arriving.take(), block)?;
            let gathers = |block: &usize| *block >= self.compute.first_trained;
            arriving = block.checked_sub(1).filter(gathers).map(|next| self.begin_gather(next));
            let mut open = Vec::new();
            for slot in &mut slots {
                let Some(walk) = &mut slot.walk else {
                    open.push(None);
                    continue;
                };
                let span = self.times.tracer.span(Lane::Compute, || format!("forward {block} again"));
                let loaded = self.model.stages[block].load(&parameters, walk.running(), Use::Training);
                walk.again(block, loaded, block > self.compute.first_trained);
                drop(span);
                open.push(self.backward(walk, block));
            }
            kept.truncate(block);
            self.back_through(block, &mut slots, open, parameters, begun)?;
        }
        for block in (0..self.compute.first_trained.min(last)).rev() {
            self.deliver_block(block, &mut slots, begun)?;
        }
        Ok(())
    }

    /// The work once all slots have gone back through a block.
    fn back_through(
        &mut self,
        block: usize,
        slots: &mut [Slot<'_>],
        open: Vec<Option<Open>>,
        parameters: Vec<Tensor<1>>,
        begun: &mut StepInProgress,
    ) -> Result<(), CollectiveError> {
        self.close(block, slots.iter_mut().map(|slot| slot.walk.as_mut()), open)?;
        self.release(parameters, None);
        self.deliver_block(block, slots, begun)
    }

    /// Hands over the bucket that is complete with this block.
    fn deliver_block(
        &mut self,
        block: usize,
        slots: &mut [Slot<'_>],
        begun: &mut StepInProgress,
    ) -> Result<(), CollectiveError> {
        let Some(bucket) = self.reducer.buckets.completed_by(block) else { return Ok(()) };
        for slot in slots {
            let gradient = slot.walk.as_mut().map(|walk| walk.gradient.take());
            self.deliver(begun, slot.index, bucket, gradient, slot.is_last)?;
        }
        Ok(())
    }

    /// How many numbers there are in the block's parameters that the walks keep for later blocks, all of them the same; what else they keep is
    /// an activation.
    fn kept_parameters<'a>(
        &self,
        block: usize,
        walks: impl Iterator<Item = (usize, Option<&'a Walk>)>,
    ) -> usize {
        let parameters = self.model.stages[block].parameters();
        let is_one = |shape: &&[usize]| parameters.iter().any(|it| it.shape == *shape);
        let of_walk =
            |walk: &Walk| walk.kept().filter(is_one).map(|shape| shape.iter().product::<usize>()).sum();
        walks.filter_map(|(_, walk)| walk).map(of_walk).max().unwrap_or(0)
    }

    fn begin_gather(&mut self, block: usize) -> Arriving {
        Arriving { block, memory: self.gather(block) }
    }

    /// The parameters of a block, once they are there.
    fn arrived(
        &mut self,
        arriving: Option<Arriving>,
        block: usize,
    ) -> Result<Vec<Tensor<1>>, CollectiveError> {
        let Arriving { block: came, memory } = arriving.expect("a block is asked for before it is computed");
        debug_assert_eq!(came, block, "blocks come in order");
        let _span = self.times.tracer.span(Lane::Compute, || format!("wait for block {block}"));
        Ok(self.gathered(memory.wait()?))
    }
}

/// The walks of all slots, of which each virtual rank has one wherever sums over them are asked for.
fn walks<'a>(slots: &'a [Slot<'_>]) -> impl Iterator<Item = (usize, Option<&'a Walk>)> {
    slots.iter().map(|slot| (slot.index, slot.walk.as_ref()))
}
