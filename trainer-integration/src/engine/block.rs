//! What a rank keeps of one block.

use std::ops::Range;

use super::computed::Computed;
use super::segments::{Ownership, Segments};
use super::{Owners, Zero};
use crate::device::Precision;
use crate::flat_block::FlatBlock;
use crate::ledger::{Held, Kind, Ledger};
use crate::optim::{Moments, Optimizer};
use crate::weights::ranges;

/// The numbers of one block.
#[derive(Debug)]
pub(super) struct BlockState {
    /// By parameter, the trained ones first; or this rank's slices.
    pub(super) weights: Segments,
    /// All of them in fewer bits, where weights are slices but parameters are not.
    pub(super) computed: Option<Computed>,
    /// All parameters.
    pub(super) parameters: Vec<Range<usize>>,
    /// The trained ones, and how much of the weight decay applies.
    trained: Vec<(Range<usize>, f32)>,
    pub(super) ownership: Ownership,
    /// Of the trained numbers, those that this rank moves.
    pub(super) slice: Range<usize>,
    /// Of these.
    pub(super) moments: Moments,
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
        let with_decay = stage.parameters().iter().zip(&parameters).filter(|(it, _)| it.is_trained);
        let trained: Vec<_> = with_decay.map(|(it, range)| (range.clone(), it.decay)).collect();
        let ownership = Ownership {
            owners: Owners { count: owners },
            block,
            trained: trained.last().map_or(0, |(range, _)| range.end),
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
        BlockState { weights, computed, parameters, trained, ownership, slice, moments, held }
    }

    /// Takes over what of these numbers, which begin at `start` in the block, this rank keeps.
    pub(super) fn begin(&mut self, start: usize, numbers: &[f32]) {
        self.weights.copy_from(start, numbers);
        if let Some(computed) = &mut self.computed {
            computed.copy_from(&self.parameters, start, numbers);
        }
    }

    /// How many of its numbers are trained.
    pub(super) fn trained_len(&self) -> usize {
        self.ownership.trained
    }

    /// Moves this rank's numbers against their gradient.
    pub(super) fn update(&mut self, optimizer: Optimizer, rate: f32, gradient: &[f32], factor: f32) {
        let BlockState { weights, trained, slice, moments, .. } = self;
        let moved = trained.iter().filter_map(|(range, decay)| {
            let range = range.start.max(slice.start)..range.end.min(slice.end);
            (!range.is_empty()).then_some((range, *decay))
        });
        let (ranges, decays): (Vec<_>, Vec<f32>) = moved.unzip();
        let stretches = weights.ranges_mut(ranges.into_iter()).into_iter().zip(decays).collect();
        moments.update(optimizer, rate, stretches, gradient, factor);
        self.count_moments();
    }

    /// Takes over the optimizer's memory of this rank's slice.
    pub(super) fn remember(&mut self, moments: Moments) {
        self.moments = moments;
        self.count_moments();
    }

    fn count_moments(&mut self) {
        self.held[1].set(self.moments.bytes());
    }
}
