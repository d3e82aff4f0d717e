//! The one binary tree in which the V virtual ranks of a run are summed. Pure: no ranks, no messages.
//!
//! The left subtree of a span is the largest power of two below its length, so the tree of V is made of the
//! trees of its binary digits. Additions happen in this tree only, on any rank: floating-point addition
//! commutes but does not associate, so the same tree gives the same bits.

use std::ops::{Add, Range};

use crate::collective::numbers::add_right;
use crate::ledger::Numbers;

/// A node of the tree, by the virtual ranks below it.
pub type Span = Range<u32>;

/// Which virtual ranks a process hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualRanks {
    /// V.
    pub count: u32,
    /// W.
    pub world: u32,
}

impl VirtualRanks {
    /// The contiguous virtual ranks of `rank`: [floor(rank V / W), floor((rank + 1) V / W)).
    ///
    /// # Panics
    /// If `rank` is outside the world, or the world larger than the number of virtual ranks.
    pub fn of(self, rank: u32) -> Span {
        let VirtualRanks { count, world } = self;
        assert!(rank < world, "rank {rank} outside world of {world}");
        assert!(world <= count, "{world} ranks cannot share {count} virtual ranks");
        let bound = |rank: u32| (u64::from(rank) * u64::from(count) / u64::from(world)) as u32;
        bound(rank)..bound(rank + 1)
    }

    /// The subtrees whose sums `rank` holds, in order: the maximal ones among its virtual ranks.
    ///
    /// # Panics
    /// As [`VirtualRanks::of`].
    pub fn subtrees_of(self, rank: u32) -> Vec<Span> {
        let mut found = Vec::new();
        maximal_subtrees(0..self.count, &self.of(rank), &mut found);
        found
    }
}

fn maximal_subtrees(node: Span, within: &Span, found: &mut Vec<Span>) {
    if node.start >= within.end || node.end <= within.start {
        return;
    }
    if within.start <= node.start && node.end <= within.end {
        return found.push(node);
    }
    let middle = split(&node);
    maximal_subtrees(node.start..middle, within, found);
    maximal_subtrees(middle..node.end, within, found);
}

/// Where the children of a node of at least two virtual ranks meet.
fn split(node: &Span) -> u32 {
    let length = node.end - node.start;
    debug_assert!(length >= 2, "a leaf has no children");
    node.start + (1 << (length - 1).ilog2())
}

/// Whether `left` and `right` are the children of one node of the tree of `count` virtual ranks.
fn are_siblings(count: u32, left: &Span, right: &Span) -> bool {
    debug_assert_eq!(left.end, right.start, "spans are added in order");
    let parent = left.start..right.end;
    let mut node = 0..count;
    while node != parent {
        if node.end - node.start < 2 {
            return false;
        }
        let middle = split(&node);
        if parent.end <= middle {
            node.end = middle;
        } else if parent.start >= middle {
            node.start = middle;
        } else {
            return false; // the parent would straddle two subtrees
        }
    }
    split(&parent) == left.end
}

/// Sums of consecutive subtrees, joined as soon as two siblings have met: at most one more per binary digit of V.
#[derive(Clone, Debug, PartialEq)]
pub struct Partials<T> {
    count: u32,
    sums: Vec<(Span, Numbers<T>)>,
}

impl<T: Copy + Add<Output = T>> Partials<T> {
    /// Nothing summed yet, for a run of `count` virtual ranks.
    pub fn new(count: u32) -> Partials<T> {
        Partials { count, sums: Vec::new() }
    }

    /// The numbers of one virtual rank of `count`.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn of(count: u32, virtual_rank: u32, numbers: impl Into<Numbers<T>>) -> Partials<T> {
        let mut partials = Partials::new(count);
        partials.push(virtual_rank, numbers);
        partials
    }

    /// Adds the numbers of one virtual rank.
    ///
    /// # Panics
    /// If virtual ranks do not come one after the other, or lengths differ.
    pub fn push(&mut self, virtual_rank: u32, numbers: impl Into<Numbers<T>>) {
        self.push_subtree(virtual_rank..virtual_rank + 1, numbers);
    }

    /// Adds the sum of a subtree.
    ///
    /// # Panics
    /// As [`Partials::push`].
    pub fn push_subtree(&mut self, span: Span, numbers: impl Into<Numbers<T>>) {
        let numbers = numbers.into();
        assert!(span.end <= self.count, "span {span:?} outside {} virtual ranks", self.count);
        if let Some((last, sum)) = self.sums.last() {
            assert_eq!(last.end, span.start, "virtual ranks are summed in order");
            assert_eq!(sum.len(), numbers.len(), "all virtual ranks have the same parameters");
        }
        self.sums.push((span, numbers));
        self.join_siblings();
    }

    /// Adds the sum of a subtree, of which a copy is made only where its sibling is not there.
    ///
    /// # Panics
    /// As [`Partials::push`].
    pub(super) fn add_subtree(&mut self, span: Span, numbers: &[T]) {
        match self.sums.last_mut() {
            Some((left, sum)) if left.end == span.start && are_siblings(self.count, left, &span) => {
                assert_eq!(sum.len(), numbers.len(), "all virtual ranks have the same parameters");
                left.end = span.end;
                add_right(sum, numbers);
                self.join_siblings();
            }
            _ => self.push_subtree(span, numbers.to_vec()),
        }
    }

    fn join_siblings(&mut self) {
        while let [.., (left, _), (right, _)] = &self.sums[..]
            && are_siblings(self.count, left, right)
        {
            let (right, addends) = self.sums.pop().expect("matched above");
            let (left, sum) = self.sums.last_mut().expect("matched above");
            left.end = right.end;
            add_right(sum, &addends);
        }
    }

    /// The subtrees and their sums, in order.
    pub fn sums(&self) -> &[(Span, Numbers<T>)] {
        &self.sums
    }

    /// As [`Partials::sums`], to be used up.
    pub(super) fn into_sums(self) -> Vec<(Span, Numbers<T>)> {
        self.sums
    }

    /// The sum over all virtual ranks, or the partial sums when some are missing.
    ///
    /// # Errors
    /// Hands the incomplete sums back.
    pub fn into_total(mut self) -> Result<Numbers<T>, Partials<T>> {
        match &self.sums[..] {
            [(span, _)] if *span == (0..self.count) => Ok(self.sums.pop().expect("matched above").1),
            _ => Err(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, word for word.
    fn sum_of(node: Span, leaf: &impl Fn(u32) -> f32) -> f32 {
        match node.end - node.start {
            1 => leaf(node.start),
            length => {
                let left = (1..length).rev().find(|below: &u32| below.is_power_of_two()).unwrap();
                sum_of(node.start..node.start + left, leaf) + sum_of(node.start + left..node.end, leaf)
            }
        }
    }

    #[test]
    fn six_virtual_ranks_are_four_and_two() {
        let of = |world, rank| VirtualRanks { count: 6, world }.subtrees_of(rank);
        assert_eq!(of(1, 0), vec![0..6; 1]);
        assert_eq!(of(2, 0), [0..2, 2..3]);
        assert_eq!(of(2, 1), [3..4, 4..6]);
    }

    #[test]
    fn aligned_ranks_hold_one_subtree_each() {
        for world in [1, 2, 4, 8, 16] {
            let ranks = VirtualRanks { count: 16, world };
            assert!((0..world).all(|rank| ranks.subtrees_of(rank).len() == 1));
        }
    }

    proptest! {
        #[test]
        fn ranks_share_the_virtual_ranks_in_order(count in 1..200u32, share in 0.0..1.0f64) {
            let world = 1 + (f64::from(count) * share) as u32;
            let ranks = VirtualRanks { count, world };
            let mut next = 0;
            for rank in 0..world {
                let span = ranks.of(rank);
                prop_assert_eq!(span.start, next);
                prop_assert!(!span.is_empty());
                next = span.end;
            }
            prop_assert_eq!(next, count);
        }

        #[test]
        fn accumulating_leaves_exactly_the_maximal_subtrees(count in 1..64u32, world in 1..64u32) {
            prop_assume!(world <= count);
            let ranks = VirtualRanks { count, world };
            for rank in 0..world {
                let mut partials = Partials::new(count);
                ranks.of(rank).for_each(|virtual_rank| partials.push(virtual_rank, vec![1.0f32]));
                let spans: Vec<Span> = partials.sums().iter().map(|(span, _)| span.clone()).collect();
                prop_assert_eq!(spans, ranks.subtrees_of(rank));
            }
        }

        #[test]
        fn every_grouping_gives_the_bits_of_the_tree(numbers in prop::collection::vec(-1e6f32..1e6, 1..=48)) {
            let count = numbers.len() as u32;
            let expected = sum_of(0..count, &|leaf| numbers[leaf as usize]);
            for world in 1..=count {
                let ranks = VirtualRanks { count, world };
                let mut total = Partials::new(count);
                for rank in 0..world {
                    let mut partials = Partials::new(count);
                    ranks.of(rank).for_each(|leaf| partials.push(leaf, vec![numbers[leaf as usize]]));
                    for (span, sum) in partials.sums {
                        total.push_subtree(span, sum);
                    }
                }
                let total = total.into_total().expect("all were pushed");
                prop_assert_eq!(total[0].to_bits(), expected.to_bits(), "world of {}", world);
            }
        }
    }
}
