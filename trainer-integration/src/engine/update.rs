//! From the sums of all ranks to the next weights.

use std::ops::Range;

use super::block::BlockState;
use super::computed::{Computed, Gathering, gather};
use super::{Engine, GradientSums, Reduced, Reducing, StepInProgress};
use crate::collective::CollectiveError;
use crate::collective::numbers::add_right;
use crate::ledger::Numbers;
use crate::optim::Optimizer;
use crate::reduce::Pending;
use crate::trace::Lane;
use crate::zero::Zero;

/// The memory of a bucket's weights, and whether those of the others have come.
#[derive(Debug)]
pub(super) struct Spread {
    memory: Vec<Computed>,
    outcome: Result<(), CollectiveError>,
}

impl Engine {
    /// Waits for a bucket, and keeps what memory is left of it.
    pub(super) fn wait_for(&mut self, reducing: Reducing) -> Result<Numbers<f32>, CollectiveError> {
        let Reduced { sum, spare } = match reducing {
            Reducing::UnderWay(pending) => pending.wait()?,
            Reducing::Done(reduced) => reduced,
        };
        if let Some(spare) = spare
            && !self.keeps_gradients_there()
        {
            self.spare.keep_gradient(spare);
        }
        Ok(sum)
    }

    /// The sums of all buckets, those of earlier calls among them.
    pub(super) fn sums_of_all(
        &mut self,
        reductions: Vec<Reducing>,
        mut sliced: Vec<Option<Numbers<f32>>>,
    ) -> Result<Vec<Numbers<f32>>, CollectiveError> {
        let mut gradient = Vec::with_capacity(reductions.len());
        for (bucket, reducing) in reductions.into_iter().enumerate() {
            let sum = self.wait_for(reducing)?;
            gradient.push(match sliced[bucket].take() {
                Some(mut before) => {
                    add_right(&mut before, &sum);
                    before
                }
                None => sum,
            });
        }
        Ok(gradient)
    }

    /// This rank's slices of a bucket's sums, with their blocks.
    pub(super) fn slices<'a>(&self, bucket: usize, sum: &'a [f32]) -> Vec<(usize, &'a [f32])> {
        let mut end = 0;
        let slice = |(block, place): (usize, Range<usize>)| {
            let slice = &self.blocks[block].slice;
            // The whole bucket outlives the sum.
            let start = if self.slices.zero <= Zero::Moments { place.start + slice.start } else { end };
            end = start + slice.len();
            (block, &sum[start..end])
        };
        self.reducer.buckets.places(bucket).map(slice).collect()
    }

    /// Adds what this call has sent to what the calls before it have.
    pub(super) fn collect_slices(&mut self, begun: &mut StepInProgress) -> Result<(), CollectiveError> {
        let reductions = std::mem::take(&mut begun.reductions);
        if reductions.is_empty() {
            return Ok(());
        }
        let sliced = std::mem::take(&mut begun.sliced);
        let sums = self.sums_of_all(reductions, sliced)?;
        begun.sliced = sums.into_iter().map(Some).collect();
        Ok(())
    }

    /// Moves the weights of this rank's slices against the gradient, with the trust ratios of each block's parameters
    /// if there are any; all weights are there. Who keeps all of them gets the others' while training continues: those
    /// of the first blocks first, which are the first to be needed.
    pub(super) fn update(
        &mut self,
        optimizer: Optimizer,
        gradient: &GradientSums,
        factor: f32,
        trust: &[Vec<f32>],
        rate: f32,
    ) {
        let tracer = self.times.tracer.clone();
        let _span = tracer.span(Lane::Compute, || "update");
        let gradient = match gradient {
            GradientSums::Host(sums) => sums,
            GradientSums::There(sums) => return self.update_there(optimizer, sums, factor, rate),
        };
        let are_spread = matches!(self.slices.zero, Zero::Moments | Zero::Gradients);
        self.slices.gathering = (0..if are_spread { gradient.len() } else { 0 }).map(|_| None).collect();
        for (bucket, sum) in gradient.iter().enumerate().rev() {
            for (block, slice) in self.slices(bucket, sum) {
                let trust = trust.get(block).map_or(&[][..], Vec::as_slice);
                self.blocks[block].update(optimizer, rate, slice, factor, trust);
            }
            if are_spread && self.reducer.buckets.len(bucket) > 0 {
                self.slices.gathering[bucket] = Some(self.spread(bucket));
            }
        }
    }

    /// Waits for the weights of a bucket that are on their way.
    pub(super) fn arrive(&mut self, bucket: usize) -> Result<(), CollectiveError> {
        let Some(spreading) = self.slices.gathering.get_mut(bucket).and_then(Option::take) else {
            return Ok(());
        };
        let tracer = self.times.tracer.clone();
        let _span = tracer.span(Lane::Compute, || format!("wait for weights of bucket {bucket}"));
        let Spread { memory, outcome } = spreading.wait()?;
        for ((block, _), memory) in self.reducer.buckets.places(bucket).zip(memory) {
            let state = &mut self.blocks[block];
            match (&mut state.computed, memory) {
                (Some(computed), memory) => *computed = memory,
                (None, Computed::F32(memory)) => state.weights.give_back(memory),
                (None, _) => unreachable!("weights themselves have 32 bits"),
            }
        }
        if outcome.is_err() {
            self.slices.stale.insert(bucket);
        }
        outcome
    }

    /// Waits for all weights that are on their way. A reader of the weights waits for it; who times steps
    /// calls it after the last.
    ///
    /// # Errors
    /// When another rank is gone or late.
    pub fn settle(&mut self) -> Result<(), CollectiveError> {
        (0..self.slices.gathering.len()).rev().try_for_each(|bucket| self.arrive(bucket))
    }

    /// Sends this rank's slices of a bucket's weights to all of its group, and takes in theirs; the weights
    /// are unavailable meanwhile.
    fn spread(&mut self, bucket: usize) -> Pending<Spread> {
        let places: Vec<usize> = self.reducer.buckets.places(bucket).map(|(block, _)| block).collect();
        let lent = places.iter().map(|&block| {
            let BlockState { weights, computed, parameters, ownership, .. } = &mut self.blocks[block];
            let memory = match computed {
                Some(computed) => {
                    weights.stretches().for_each(|(start, kept)| computed.copy_from(parameters, start, kept));
                    std::mem::replace(computed, Computed::F32(Vec::new()))
                }
                None => Computed::F32(weights.lend()),
            };
            Gathering {
                memory,
                parameters: parameters.clone(),
                end: ownership.trained,
                ownership: *ownership,
            }
        });
        let mut lent: Vec<_> = lent.collect();
        let (tracer, group) = (self.times.tracer.clone(), self.slices.mesh.group().to_vec());
        self.comm.submit(move |collective| {
            let _span = tracer.span(Lane::Communication, || format!("gather bucket {bucket}"));
            let outcome = gather(collective, &group, &mut lent);
            // This rank's own are still in it.
            Ok(Spread { memory: lent.into_iter().map(|block| block.memory).collect(), outcome })
        })
    }
}
