//! What a rank keeps of one block.

use std::ops::Range;

use burn::tensor::{Device, Tensor};

use super::computed::Computed;
use super::segments::{Ownership, Segments};
use super::{Owners, Zero};
use crate::device::Precision;
use crate::flat_block::FlatBlock;
use crate::ledger::{Held, Kind, Ledger};
use crate::optim::layerwise::{Piece, Squares, pieces};
use crate::optim::{Moments, Optimizer, Stretch};
use crate::resident::Resident;
use crate::weights::ranges;

/// A trained parameter.
#[derive(Debug)]
struct Trained {
    range: Range<usize>,
    /// How much of the weight decay applies.
    decay: f32,
    shape: Vec<usize>,
}

/// The numbers of one block.
#[derive(Debug)]
pub(super) struct BlockState {
    /// By parameter, the trained ones first; or this rank's slices.
    pub(super) weights: Segments,
    /// All of them in fewer bits, where weights are slices but parameters are not.
    pub(super) computed: Option<Computed>,
    /// All parameters.
    pub(super) parameters: Vec<Range<usize>>,
    /// The trained ones.
    trained: Vec<Trained>,
    pub(super) ownership: Ownership,
    /// Of the trained numbers, those that this rank moves.
    pub(super) slice: Range<usize>,
    /// Of these.
    pub(super) moments: Moments,
    /// The same weights and moments on a device.
    resident: Option<Resident>,
    /// Whether weights and moments are not those of the device, but of no use.
    is_behind: bool,
    /// Weights and moments.
    held: [Held; 2],
}

impl BlockState {
    /// Without any numbers yet.
    pub(super) fn new(
        stage: &dyn FlatBlock,
        block: usize,
        (zero, precision): (Zero, Precision),
        (place, owners): (u32, u32),
        ledger: &Ledger,
    ) -> BlockState {
        let parameters = ranges(stage.parameters());
        let with_ranges = stage.parameters().iter().zip(&parameters).filter(|(it, _)| it.is_trained);
        let trained = with_ranges.map(|(it, range)| Trained {
            range: range.clone(),
            decay: it.decay,
            shape: it.shape.clone(),
        });
        let trained: Vec<Trained> = trained.collect();
        let ownership = Ownership {
            owners: Owners { count: owners },
            block,
            trained: trained.last().map_or(0, |it| it.range.end),
            all: parameters.last().map_or(0, |range| range.end),
        };
        let slice = ownership.trained_of(place);
        let zeros = vec![0.0; ownership.all];
        // Weights in full precision are needed only of moved ones, if blocks compute in fewer bits.
        let is_computed = matches!(zero, Zero::Moments | Zero::Gradients) && precision != Precision::F32;
        let weights = if is_computed || zero == Zero::Parameters {
            Segments::of([slice.clone(), ownership.frozen_of(place)], &zeros)
        } else {
            Segments::of(parameters.clone(), &zeros)
        };
        let computed = is_computed.then(|| Computed::zeros(precision, &parameters));
        let bytes = weights.bytes() + computed.as_ref().map_or(0, Computed::bytes);
        let held = [ledger.hold(Kind::Weights, bytes), ledger.hold(Kind::Moments, 0)];
        let moments = Moments::default();
        BlockState {
            weights,
            computed,
            parameters,
            trained,
            ownership,
            slice,
            moments,
            resident: None,
            is_behind: false,
            held,
        }
    }

    /// Takes over what of these numbers, which begin at `start` in the block, this rank keeps.
    pub(super) fn begin(&mut self, start: usize, numbers: &[f32]) {
        self.come_home();
        self.weights.copy_from(start, numbers);
        if let Some(computed) = &mut self.computed {
            computed.copy_from(&self.parameters, start, numbers);
        }
    }

    /// How many of its numbers are trained.
    pub(super) fn trained_len(&self) -> usize {
        self.ownership.trained
    }

    /// How many parameters are trained.
    pub(super) fn trained_count(&self) -> usize {
        self.trained.len()
    }

    /// How many numbers each trained parameter has.
    pub(super) fn trained_lengths(&self) -> impl Iterator<Item = usize> {
        self.trained.iter().map(|it| it.range.len())
    }

    /// The trained parameters whose steps have a trust ratio, each with its pieces in a slice of the block.
    fn adapted(
        &self,
        optimizer: Optimizer,
        slice: Range<usize>,
    ) -> impl Iterator<Item = (&Trained, Vec<Range<usize>>)> {
        let adapted = self.trained.iter().filter(move |it| optimizer.adapts(&it.shape));
        adapted.map(move |it| (it, pieces(&it.range, &slice).collect()))
    }

    /// How many sums [`BlockState::squares`] has for a slice.
    pub(super) fn squares_len(&self, optimizer: Optimizer, slice: Range<usize>) -> usize {
        self.adapted(optimizer, slice).map(|(_, pieces)| pieces.len()).sum()
    }

    /// For the lengths of parameters and their steps: the sums of the pieces in this rank's slice, in order.
    pub(super) fn squares(&self, optimizer: Optimizer, gradient: &[f32], factor: f32) -> Vec<Squares> {
        let (mut ranges, mut decays) = (Vec::new(), Vec::new());
        for (Trained { decay, .. }, pieces) in self.adapted(optimizer, self.slice.clone()) {
            decays.extend(pieces.iter().map(|_| *decay));
            ranges.extend(pieces);
        }
        let weights = self.weights.ranges(ranges.iter().cloned());
        let pieces = weights.into_iter().zip(&ranges).zip(decays);
        let start = self.slice.start;
        let pieces =
            pieces.map(|((weights, range), decay)| Piece { weights, decay, at: range.start - start });
        self.moments.squares(optimizer, &pieces.collect::<Vec<_>>(), gradient, factor)
    }

    /// The trust ratio of each trained parameter, from the sums of all pieces of the block in order.
    pub(super) fn trust(&self, optimizer: Optimizer, mut squares: &[Squares]) -> Vec<f32> {
        let of = |it: &Trained| {
            if !optimizer.adapts(&it.shape) {
                return 1.0;
            }
            let count = pieces(&it.range, &(0..self.ownership.trained)).count();
            let (own, rest) = squares.split_at(count);
            squares = rest;
            optimizer.trust_ratio(own, it.decay)
        };
        self.trained.iter().map(of).collect()
    }

    /// Moves this rank's numbers against their gradient, each parameter with its trust ratio.
    pub(super) fn update(
        &mut self,
        optimizer: Optimizer,
        rate: f32,
        gradient: &[f32],
        factor: f32,
        trust: &[f32],
    ) {
        let BlockState { weights, trained, slice, moments, .. } = self;
        let moved = trained.iter().enumerate().filter_map(|(index, it)| {
            let range = it.range.start.max(slice.start)..it.range.end.min(slice.end);
            let trust = trust.get(index).copied().unwrap_or(1.0);
            (!range.is_empty()).then_some((range, (it.decay, trust)))
        });
        let (ranges, how): (Vec<_>, Vec<(f32, f32)>) = moved.unzip();
        let stretches = weights.ranges_mut(ranges.into_iter()).into_iter().zip(how);
        let stretches = stretches.map(|(weights, (decay, trust))| Stretch { weights, decay, trust });
        moments.update(optimizer, rate, stretches.collect(), gradient, factor);
        self.count_moments();
    }

    /// Takes over the optimizer's memory of this rank's slice.
    pub(super) fn remember(&mut self, moments: Moments) {
        self.come_home();
        self.moments = moments;
        self.count_moments();
    }

    /// The weights as tensors of this precision on a device, where they are from now on.
    pub(super) fn tensors_there(&mut self, device: &Device, precision: Precision) -> Vec<Tensor<1>> {
        let tensors = self.there(device).views(precision).to_vec();
        self.count_there();
        tensors
    }

    /// Moves the weights on a device against the numbers of a gradient from `start` on.
    pub(super) fn update_there(
        &mut self,
        device: &Device,
        optimizer: Optimizer,
        rate: f32,
        gradient: (&Tensor<1>, usize),
        factor: f32,
    ) {
        self.there(device).update(optimizer, rate, gradient, factor);
        self.moments.steps += 1;
        self.leave_home();
        self.count_there();
    }

    fn there(&mut self, device: &Device) -> &mut Resident {
        if self.resident.is_none() {
            let weights: Vec<&[f32]> = self.weights.stretches().map(|(_, numbers)| numbers).collect();
            let trained: Vec<_> = self.trained.iter().map(|it| (it.range.clone(), it.decay)).collect();
            self.resident = Some(Resident::new(device, &weights, &trained, &self.moments));
            self.leave_home();
        }
        self.resident.as_mut().expect("just made")
    }

    /// Lets go of the host's numbers, which the device has.
    fn leave_home(&mut self) {
        self.is_behind = true;
        drop(self.weights.lend());
        (self.moments.first, self.moments.second) = (Vec::new(), Vec::new());
    }

    /// Has the host's numbers be those of the device.
    pub(super) fn fetch(&mut self) {
        let Some(resident) = self.resident.as_ref().filter(|_| self.is_behind) else { return };
        self.weights.give_back(resident.weights());
        self.moments = resident.moments();
        self.is_behind = false;
        self.count_there();
    }

    /// The same, and the device has none any more.
    fn come_home(&mut self) {
        self.fetch();
        if self.resident.take().is_some() {
            self.held[0].set(self.weights.bytes());
            self.count_moments();
        }
    }

    fn count_there(&mut self) {
        let Some(resident) = &self.resident else { return };
        let (mut weights, mut moments) = resident.bytes();
        if !self.is_behind {
            weights += self.weights.bytes();
            moments += self.moments.bytes();
        }
        self.held[0].set(weights);
        self.held[1].set(moments);
    }

    fn count_moments(&mut self) {
        self.held[1].set(self.moments.bytes());
    }
}
