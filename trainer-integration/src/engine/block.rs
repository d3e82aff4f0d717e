//! What a rank keeps of one block.

use std::ops::Range;

use super::segments::{Ownership, Segments};
use super::{Owners, Zero};
use crate::ledger::{Held, Kind, Ledger};
use crate::optim::{Moments, Optimizer};
use crate::stage::Stage;
use crate::weights::ranges;

/// The numbers of one block.
#[derive(Debug)]
pub(super) struct BlockState {
    /// By parameter, the trained ones first; with [`Zero::Parameters`], this rank's slices.
    pub(super) weights: Segments,
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
        stage: &dyn Stage,
        block: usize,
        zero: Zero,
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
        let weights = match zero {
            Zero::Parameters => Segments::of([slice.clone(), ownership.frozen_of(place)], &zeros),
            _ => Segments::of(parameters.clone(), &zeros),
        };
        let held = [ledger.hold(Kind::Weights, weights.bytes()), ledger.hold(Kind::Moments, 0)];
        let moments = Moments::default();
        BlockState { weights, parameters, trained, ownership, slice, moments, held }
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
