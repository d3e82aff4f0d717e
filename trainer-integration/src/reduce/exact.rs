//! The exact all-reduce: every rank brings the sums of its subtrees, every rank takes the sum of all.
//!
//! Reduce-scatter by direct exchange (the owner of a slice receives everyone's partial sums of it and adds them in tree
//! order, a piece at a time), then all-gather; short vectors skip the second and are added by everyone. Nothing is copied but
//! a piece at a time: sums go out from where they are, and what comes in is added while it is in the processor's cache.

use std::ops::{Add, Range};

use bytemuck::Pod;

use super::tree::{Partials, Span, VirtualRanks};
use crate::collective::numbers::{numbers, slice_of};
use crate::collective::sums::gather_slices;
use crate::collective::{Among, Collective, CollectiveError, Incoming, Outgoing, PIECE_BYTES, Piece, Place};

/// Below this many bytes a second round trip costs more than sending everything to everyone.
const DIRECT_BYTES: usize = 8 << 10;

/// The sum over all virtual ranks, bit for bit the same for every world size and on every rank.
///
/// `mine` holds the virtual ranks of this rank, all of the same length as everyone else's.
///
/// # Errors
/// Names the rank that is gone, late, or brings another number of parameters.
///
/// # Panics
/// If `mine` are not the virtual ranks of this rank.
pub fn all_reduce<T: Pod + Add<Output = T>>(
    collective: &mut dyn Collective,
    ranks: VirtualRanks,
    mine: Partials<T>,
) -> Result<Vec<T>, CollectiveError> {
    let (rank, world) = (collective.rank(), collective.world());
    assert_eq!(ranks.world, world, "the virtual ranks are shared by this world");
    assert!(
        mine.sums().iter().map(|(span, _)| span).eq(&ranks.subtrees_of(rank)),
        "rank {rank} sums its own virtual ranks"
    );
    if world == 1 {
        return Ok(mine.into_total().unwrap_or_else(|_| unreachable!("one rank has the whole tree")));
    }
    const { assert!(PIECE_BYTES.is_multiple_of(size_of::<T>()), "a piece holds whole numbers") };
    let length = mine.sums()[0].1.len();
    let is_short = length * size_of::<T>() <= DIRECT_BYTES;
    let owned_by = |rank| if is_short { 0..length } else { slice_of(length, rank, world) };
    let others = || (1..world).map(|distance| (rank + distance) % world);
    collective.begin(Among::All);

    // The first sum's memory becomes the total's: of its slices, one is written and the others are sent.
    let mut sums = mine.into_sums();
    let (_, mut total) = sums.remove(0);
    let copy = is_short.then(|| total.clone());
    let own = owned_by(rank);
    let (before, rest) = total.split_at_mut(own.start);
    let (own_total, after) = rest.split_at_mut(own.len());
    let mut outgoing = Vec::new();
    for to in others() {
        let slice = owned_by(to);
        let first = match &copy {
            Some(copy) => &copy[..],
            None if slice.end <= own.start => &before[slice.clone()],
            None => &after[slice.start - own.end..slice.end - own.end],
        };
        let more = sums.iter().map(|(_, sum)| &sum[slice.clone()]);
        let bytes = std::iter::once(first).chain(more).map(bytemuck::cast_slice);
        outgoing.extend(bytes.map(|bytes| Outgoing { to, bytes }));
    }
    let more: Vec<&[T]> = sums.iter().map(|(_, sum)| &sum[own.clone()]).collect();
    let mut adder = Adder::new(ranks, rank, &more, own_total);
    let bytes = own.len() * size_of::<T>();
    let of_others = (0..world).filter(|&from| from != rank);
    let of_others = of_others.flat_map(|from| std::iter::repeat_n(from, ranks.subtrees_of(from).len()));
    let mut incoming: Vec<_> = of_others.map(|from| Incoming { from, into: Place::Sink(bytes) }).collect();
    collective.transfer(&outgoing, &mut incoming, &mut |piece| adder.add(piece))?;

    if !is_short {
        gather_slices(collective, &mut total)?;
    }
    Ok(total)
}

/// Adds the pieces of all subtrees in tree order: those that come, and between them those that this rank has.
struct Adder<'a, T> {
    /// The subtrees of all ranks, in order.
    subtrees: Vec<(Span, Source<'a, T>)>,
    /// How many of them are in `sum`.
    added: usize,
    sum: Partials<T>,
    /// This rank's part of its first subtree, piece by piece replaced by that of the total.
    total: &'a mut [T],
}

/// Where the numbers of a subtree come from.
enum Source<'a, T> {
    Another,
    Total,
    Own(&'a [T]),
}

impl<'a, T: Pod + Add<Output = T>> Adder<'a, T> {
    /// `total` holds this rank's first subtree, `more` are the others.
    fn new(ranks: VirtualRanks, rank: u32, more: &[&'a [T]], total: &'a mut [T]) -> Adder<'a, T> {
        let mut subtrees = Vec::new();
        for other in 0..ranks.world {
            for (index, span) in ranks.subtrees_of(other).into_iter().enumerate() {
                let source = match index {
                    _ if other != rank => Source::Another,
                    0 => Source::Total,
                    _ => Source::Own(more[index - 1]),
                };
                subtrees.push((span, source));
            }
        }
        Adder { subtrees, added: 0, sum: Partials::new(ranks.count), total }
    }

    fn add(&mut self, piece: Piece<'_>) {
        let numbers = numbers::<T>(piece.bytes);
        let start = piece.offset / size_of::<T>();
        let range = start..start + numbers.len();
        self.add_own(&range);
        let (span, _) = &self.subtrees[self.added];
        self.sum.add_subtree(span.clone(), &numbers);
        self.added += 1;
        self.add_own(&range);
        if self.added == self.subtrees.len() {
            let whole = std::mem::replace(&mut self.sum, Partials::new(self.subtrees[self.added - 1].0.end));
            let whole = whole
                .into_total()
                .unwrap_or_else(|_| unreachable!("the subtrees of all ranks make up the tree"));
            self.total[range].copy_from_slice(&whole);
            self.added = 0;
        }
    }

    fn add_own(&mut self, range: &Range<usize>) {
        while let Some((span, source)) = self.subtrees.get(self.added) {
            let own = match source {
                Source::Another => return,
                Source::Total => &self.total[range.clone()],
                Source::Own(own) => &own[range.clone()],
            };
            self.sum.add_subtree(span.clone(), own);
            self.added += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::collective::spawn;

    fn numbers(virtual_rank: u32, length: usize) -> Vec<f32> {
        // Magnitudes far apart, so that another order of additions shows.
        (0..length as u32)
            .map(|index| {
                let bits =
                    index.wrapping_mul(2_654_435_761).wrapping_add(virtual_rank.wrapping_mul(40_503_701));
                let scale = (f64::from(bits >> 28) - 8.0).exp2();
                (f64::from(bits & 0xffff) / 32_768.0 - 1.0) * scale
            })
            .map(|number| number as f32)
            .collect()
    }

    fn reduced(count: u32, world: u32, length: usize) -> Vec<Vec<u32>> {
        let ranks = VirtualRanks { count, world };
        spawn(world, |mut collective| {
            let mut mine = Partials::new(count);
            ranks
                .of(collective.rank())
                .for_each(|virtual_rank| mine.push(virtual_rank, numbers(virtual_rank, length)));
            let total = all_reduce(&mut collective, ranks, mine).unwrap();
            total.iter().map(|number| number.to_bits()).collect()
        })
    }

    #[test]
    fn every_world_size_gives_the_same_bits() {
        for count in [1, 2, 3, 5, 8, 12, 13] {
            for length in [0, 1, 5, 2_500] {
                let alone = reduced(count, 1, length).remove(0);
                for world in 1..=count {
                    assert!(
                        reduced(count, world, length).iter().all(|total| *total == alone),
                        "V={count} W={world}"
                    );
                }
            }
        }
    }

    #[test]
    fn accumulating_per_rank_first_would_not() {
        let numbers: Vec<Vec<f32>> = (0..13).map(|leaf| numbers(leaf, 500)).collect();
        let flat = |from: usize, to: usize, at: usize| {
            numbers[from..to].iter().fold(0.0f32, |sum, leaf| sum + leaf[at])
        };
        let differing = (0..500).filter(|&at| flat(0, 13, at) != flat(0, 6, at) + flat(6, 13, at)).count();
        assert!(differing > 10, "the numbers of these tests must be hard: only {differing} of 500 differ");
    }

    #[test]
    fn ranks_that_disagree_on_the_length_are_told() {
        let results = spawn(2, |mut collective| {
            let mut mine = Partials::new(2);
            mine.push(collective.rank(), vec![1.0f32; 3 + collective.rank() as usize]);
            all_reduce(&mut collective, VirtualRanks { count: 2, world: 2 }, mine)
        });
        // Whoever finds it out first tells the other.
        assert!(results.iter().all(Result::is_err));
        let says = |error: &CollectiveError| matches!(error, CollectiveError::Malformed { .. });
        assert!(results.iter().any(|result| result.as_ref().is_err_and(says)), "{results:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn any_virtual_ranks_on_any_world_give_the_same_bits(count in 1..=48u32, share in 0.0..1.0f64, length in 0..3_000usize) {
            let world = 1 + (f64::from(count) * share) as u32;
            let alone = reduced(count, 1, length).remove(0);
            for total in reduced(count, world, length) {
                prop_assert!(total == alone);
            }
        }
    }
}
