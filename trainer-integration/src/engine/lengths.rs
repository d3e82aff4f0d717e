//! The lengths that ranks find together: that of the gradient, and those of parameters and their steps. Each rank adds
//! up squares of its slices; all of them are added in the order of the numbers, on every rank.

use std::ops::Range;

use super::Engine;
use crate::collective::CollectiveError;
use crate::ledger::Numbers;
use crate::optim::layerwise::Squares;
use crate::optim::{CHUNK, Norm, Optimizer, squares_of};
use crate::zero::Zero;

impl Engine {
    /// The length of the gradient, from the slices of all ranks: the sums of chunks, each of which one rank has.
    pub(super) fn norm(&self, gradient: &[Numbers<f32>]) -> Result<Norm, CollectiveError> {
        let mut mine = Vec::new();
        for (bucket, sum) in gradient.iter().enumerate() {
            mine.extend(self.slices(bucket, sum).into_iter().flat_map(|(_, slice)| squares_of(slice)));
        }
        let mut norm = Norm::default();
        let all = self.of_all_slices(mine, |_, slice| slice.len().div_ceil(CHUNK))?;
        all.iter().for_each(|(_, squares)| norm.add_squares(squares));
        Ok(norm)
    }

    /// By block, the trust ratio of each trained parameter for a step against this gradient multiplied by `factor`;
    /// nothing for an optimizer without. All weights are there. Nothing is moved.
    pub(super) fn trust_ratios(
        &self,
        optimizer: Optimizer,
        gradient: &[Numbers<f32>],
        factor: f32,
    ) -> Result<Vec<Vec<f32>>, CollectiveError> {
        if !optimizer.has_trust_ratio() {
            return Ok(Vec::new());
        }
        let mut mine: Vec<Squares> = Vec::new();
        for (bucket, sum) in gradient.iter().enumerate() {
            for (block, slice) in self.slices(bucket, sum) {
                mine.extend(self.blocks[block].squares(optimizer, slice, factor));
            }
        }
        let per_slice = |block: usize, slice| 2 * self.blocks[block].squares_len(optimizer, slice);
        let mut ratios = vec![Vec::new(); self.blocks.len()];
        for (block, squares) in self.of_all_slices(mine.into_flattened(), per_slice)? {
            ratios[block] = self.blocks[block].trust(optimizer, squares.as_chunks().0);
        }
        Ok(ratios)
    }

    /// The numbers that ranks have found of their slices, block after block as they lie in buckets, each block's in the
    /// order of its slices. `count` of them are of a slice of a block.
    fn of_all_slices(
        &self,
        mine: Vec<f64>,
        count: impl Fn(usize, Range<usize>) -> usize,
    ) -> Result<Vec<(usize, Vec<f64>)>, CollectiveError> {
        let buckets = 0..self.reducer.buckets.count();
        let blocks = buckets.flat_map(|bucket| self.reducer.buckets.places(bucket)).map(|(block, _)| block);
        let mut found = Vec::new();
        if self.slices.zero == Zero::Nothing {
            let mut left = &mine[..];
            for block in blocks {
                let (own, rest) = left.split_at(count(block, self.blocks[block].slice.clone()));
                left = rest;
                found.push((block, own.to_vec()));
            }
            return Ok(found);
        }
        let all = self.comm.run(move |collective| collective.all_gather(bytemuck::cast_slice(&mine)))?;
        let group = self.slices.mesh.group();
        let numbers: Vec<_> = group.iter().map(|rank| all[*rank as usize].numbers::<f64>()).collect();
        let mut taken = vec![0; group.len()];
        for block in blocks {
            let ownership = &self.blocks[block].ownership;
            let mut slices: Vec<(usize, Range<usize>)> =
                (0..group.len()).map(|place| (place, ownership.trained_of(place as u32))).collect();
            slices.retain(|(_, slice)| !slice.is_empty());
            slices.sort_unstable_by_key(|(_, slice)| slice.start);
            let mut of_block = Vec::new();
            for (place, slice) in slices {
                let from = taken[place];
                taken[place] += count(block, slice);
                let theirs = numbers[place].as_deref().and_then(|all| all.get(from..taken[place]));
                of_block.extend_from_slice(theirs.ok_or_else(|| {
                    let rank = group[place];
                    let what = format!("{} bytes of squares", all[rank as usize].bytes().len());
                    CollectiveError::Malformed { rank, what }
                })?);
            }
            found.push((block, of_block));
        }
        Ok(found)
    }
}
