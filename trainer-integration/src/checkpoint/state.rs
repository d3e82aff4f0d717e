//! The part of a training's state that one rank has. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use super::layout::Kind;
use super::pieces::Stretch;
use super::plan::within;
use crate::compress::RankResidual;

/// The state read from a checkpoint for one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Of what all ranks have in common, by block, kind and place; none overlap.
    pub numbers: Vec<Numbers>,
    /// Of each virtual rank of this rank, its number and its running statistics, the blocks' one after the other.
    pub statistics: Vec<(u32, Vec<f32>)>,
    /// The unsent gradients with which this rank continues, if gradients are compressed: its own, or those of the ranks of
    /// another world that it inherits.
    pub residuals: Vec<RankResidual>,
}

/// Some of a block's numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    /// Which block.
    pub block: usize,
    /// Which numbers.
    pub kind: Kind,
    /// The place of the first.
    pub start: usize,
    /// From there on.
    pub values: Vec<f32>,
}

impl Numbers {
    /// Where they lie in the block.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.values.len()
    }
}

impl State {
    /// With zeros for these stretches, which are in order.
    pub(super) fn blank(stretches: Vec<Stretch>) -> State {
        let zeros = |Stretch { block, kind, range }: Stretch| Numbers {
            block,
            kind,
            start: range.start,
            values: vec![0.0; range.len()],
        };
        State {
            numbers: stretches.into_iter().map(zeros).collect(),
            statistics: Vec::new(),
            residuals: Vec::new(),
        }
    }

    /// Takes over the numbers of a piece's run, those that have a place.
    pub(super) fn place(&mut self, piece: &[Stretch], run: &Range<usize>, values: &[f32]) {
        for (at, Stretch { block, kind, range }) in within(piece, run) {
            let first = self.numbers.partition_point(|it| {
                (it.block, it.kind) < (block, kind)
                    || (it.block, it.kind) == (block, kind) && it.range().end <= range.start
            });
            for it in self.numbers[first..].iter_mut().take_while(|it| (it.block, it.kind) == (block, kind)) {
                let (from, to) = (it.start.max(range.start), it.range().end.min(range.end));
                if from >= to {
                    break;
                }
                let start = at + from - range.start;
                it.values[from - it.start..to - it.start].copy_from_slice(&values[start..start + to - from]);
            }
        }
    }

    /// Where these are to be, each in one stretch that is there, by block, kind and start.
    pub(super) fn places<'a>(
        &mut self,
        all: impl Iterator<Item = &'a Stretch>,
    ) -> BTreeMap<(usize, Kind, usize), &mut [f32]> {
        let mut asked: BTreeMap<(usize, Kind), Vec<&Range<usize>>> = BTreeMap::new();
        for Stretch { block, kind, range } in all {
            asked.entry((*block, *kind)).or_default().push(range);
        }
        asked.values_mut().for_each(|ranges| ranges.sort_unstable_by_key(|range| range.start));
        let mut places = BTreeMap::new();
        for it in &mut self.numbers {
            let (key, has) = ((it.block, it.kind), it.range());
            let (mut rest, mut at) = (&mut it.values[..], has.start);
            let ranges = asked.get(&key).into_iter().flatten();
            for range in ranges.filter(|range| has.start <= range.start && range.end <= has.end) {
                let (_, after) = rest.split_at_mut(range.start - at);
                let (place, after) = after.split_at_mut(range.len());
                places.insert((it.block, it.kind, range.start), place);
                (rest, at) = (after, range.end);
            }
        }
        places
    }

    /// The numbers of a kind of a block that lie in this range, if all of them are there.
    pub(crate) fn numbers(&self, block: usize, kind: Kind, range: &Range<usize>) -> Option<Vec<f32>> {
        let found: Vec<f32> = self.pieces_of(block, kind, range).flatten().copied().collect();
        (found.len() == range.len()).then_some(found)
    }

    /// The same, no longer kept here if they lie in one place and are all that does: nothing is copied then.
    pub(crate) fn take(&mut self, block: usize, kind: Kind, range: &Range<usize>) -> Option<Vec<f32>> {
        let is_it = |it: &&mut Numbers| (it.block, it.kind) == (block, kind) && it.range() == *range;
        match self.numbers.iter_mut().find(is_it) {
            Some(it) => Some(std::mem::take(&mut it.values)),
            None => self.numbers(block, kind, range),
        }
    }

    /// How many there are that all ranks have in common.
    pub(crate) fn bytes(&self) -> usize {
        self.numbers.iter().map(|it| size_of_val(&it.values[..])).sum()
    }

    /// The numbers of a stretch that lies in one that is there.
    pub(super) fn stretch(&self, Stretch { block, kind, range }: &Stretch) -> Option<&[f32]> {
        let holds = |it: &&Numbers| {
            let has = it.range();
            (it.block, it.kind) == (*block, *kind) && has.start <= range.start && range.end <= has.end
        };
        let it = self.numbers.iter().find(holds)?;
        Some(&it.values[range.start - it.start..range.end - it.start])
    }

    /// Whether all of these are there.
    pub(crate) fn has(&self, block: usize, kind: Kind, range: &Range<usize>) -> bool {
        self.pieces_of(block, kind, range).map(<[f32]>::len).sum::<usize>() == range.len()
    }

    /// The present ones of these, in order.
    fn pieces_of(&self, block: usize, kind: Kind, range: &Range<usize>) -> impl Iterator<Item = &[f32]> {
        let of_block = self.numbers.iter().filter(move |it| (it.block, it.kind) == (block, kind));
        let (first, last) = (range.start, range.end);
        of_block.map(move |it| {
            let place = |at: usize| at.clamp(it.start, it.range().end) - it.start;
            &it.values[place(first)..place(last)]
        })
    }
}
