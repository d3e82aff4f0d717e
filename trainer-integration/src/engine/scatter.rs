//! The sums of a bucket for those who keep slices of it.

use std::ops::{Add, Range};

use bytemuck::Pod;

use crate::collective::{Collective, CollectiveError, sums};
use crate::ledger::{Kind, Ledger, Numbers};
use crate::reduce::fixed::{self, FixedSum};
use crate::reduce::grouped::{reduce_scatter_by_groups, with_owners};
use crate::reduce::{Partials, VirtualRanks, reduce_scatter};

/// Who adds up what of a bucket, and who keeps it.
#[derive(Debug)]
pub(super) struct Scatter {
    /// By rank: the ranges it adds up, if each sends to each.
    pub(super) owned: Vec<Vec<Range<usize>>>,
    /// By place in a group: what the ranks of this place keep.
    pub(super) kept: Vec<Vec<Range<usize>>>,
    /// This rank's.
    pub(super) place: u32,
    /// The ranks that keep what this one keeps.
    pub(super) replicas: Vec<u32>,
    /// Whether groups add up their own numbers first.
    pub(super) is_by_groups: bool,
    /// Whether the memory of the whole bucket stays that of the sums.
    pub(super) outlives: bool,
}

impl Scatter {
    /// The sums of what this rank keeps: in their places in a whole bucket, or one slice after the other, besides the memory of the bucket.
    pub(super) fn sums<T: Pod + Add<Output = T>>(
        &self,
        collective: &mut dyn Collective,
        ranks: VirtualRanks,
        partials: Partials<T>,
    ) -> Result<(Numbers<T>, Option<Numbers<T>>), CollectiveError> {
        let whole = if self.is_by_groups {
            let size = self.kept.len() as u32;
            reduce_scatter_by_groups(collective, ranks, partials, size, &self.kept)?
        } else {
            let whole = reduce_scatter(collective, ranks, partials, &|rank| self.owned_by(rank))?;
            self.gathered(collective, whole)?
        };
        Ok(self.kept_of(whole))
    }

    /// The same of sums in whole numbers.
    pub(super) fn fixed_sums(
        &self,
        collective: &mut dyn Collective,
        ranks: VirtualRanks,
        mine: FixedSum,
    ) -> Result<(Numbers<f32>, Option<Numbers<f32>>), CollectiveError> {
        let whole = if self.is_by_groups {
            let size = self.kept.len() as u32;
            fixed::reduce_scatter_by_groups(collective, ranks, mine, size, &self.kept)?
        } else {
            let whole = fixed::reduce_scatter(collective, ranks, mine, &|rank| self.owned_by(rank))?;
            self.gathered(collective, whole)?
        };
        Ok(self.kept_of(whole))
    }

    fn owned_by(&self, rank: u32) -> Vec<Range<usize>> {
        self.owned[rank as usize].clone()
    }

    /// With the sums of the other ranks that keep what this one keeps.
    fn gathered<T: Pod>(
        &self,
        collective: &mut dyn Collective,
        mut whole: Numbers<T>,
    ) -> Result<Numbers<T>, CollectiveError> {
        if self.replicas.len() > 1 {
            let parts = self.replicas.iter().map(|rank| &self.owned[*rank as usize]);
            sums::gather_more(collective, &self.replicas, with_owners(&mut whole, parts))?;
        }
        Ok(whole)
    }

    /// The same of the sums of a whole bucket, which are fetched range by range.
    pub(super) fn kept_there(
        &self,
        length: usize,
        ledger: &Ledger,
        fetch: impl Fn(Range<usize>) -> Vec<f32>,
    ) -> Numbers<f32> {
        let own = self.kept[self.place as usize].iter().filter(|range| !range.is_empty());
        let count = if self.outlives { length } else { own.clone().map(ExactSizeIterator::len).sum() };
        let mut sums = Numbers::with_capacity(ledger, Kind::Gradients, count);
        if self.outlives {
            sums.growing().resize(length, 0.0);
            own.for_each(|range| sums[range.clone()].copy_from_slice(&fetch(range.clone())));
        } else {
            own.for_each(|range| sums.growing().extend(fetch(range.clone())));
        }
        sums
    }

    fn kept_of<T: Pod>(&self, whole: Numbers<T>) -> (Numbers<T>, Option<Numbers<T>>) {
        if self.outlives {
            return (whole, None);
        }
        let own = &self.kept[self.place as usize];
        let mut sums = whole.another(own.iter().map(ExactSizeIterator::len).sum());
        own.iter().for_each(|range| sums.growing().extend_from_slice(&whole[range.clone()]));
        (sums, Some(whole))
    }
}
