//! The exact sums over all ranks: every rank brings the sums of its subtrees; each number is added up, in tree order, by the rank that owns it.
//!
//! [`reduce_scatter`] leaves it at that; [`all_reduce`] then gathers the sums; short vectors skip that and
//! are added by every rank. All ranks exchange at once. Only a piece is copied at a time: sums are sent in
//! place, and received numbers are added while they are in the processor's cache.

use std::ops::{Add, Range};

use bytemuck::Pod;

use super::tree::{Partials, Span, VirtualRanks};
use crate::collective::numbers::{numbers, slice_of};
use crate::collective::sums::{Team, gather_slices};
use crate::collective::{Among, Collective, CollectiveError, Incoming, Outgoing, PIECE_BYTES, Piece, Place};
use crate::ledger::Numbers;

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
) -> Result<Numbers<T>, CollectiveError> {
    let world = collective.world();
    let length = mine.sums().first().map_or(0, |(_, sum)| sum.len());
    let is_short = length * size_of::<T>() <= DIRECT_BYTES;
    let owned = |rank| vec![if is_short { 0..length } else { slice_of(length, rank, world) }];
    let mut total = among_all(collective, ranks, mine, &owned, is_short)?;
    if world > 1 && !is_short {
        gather_slices(collective, &mut total)?;
    }
    Ok(total)
}

/// The same for the numbers that this rank owns; the others are of no use afterwards. `owned` tells the ranges of every rank: each number is in
/// one of them at most.
///
/// # Errors
/// As [`all_reduce`].
///
/// # Panics
/// As [`all_reduce`].
pub fn reduce_scatter<T: Pod + Add<Output = T>>(
    collective: &mut dyn Collective,
    ranks: VirtualRanks,
    mine: Partials<T>,
    owned: &dyn Fn(u32) -> Vec<Range<usize>>,
) -> Result<Numbers<T>, CollectiveError> {
    among_all(collective, ranks, mine, owned, false)
}

/// All ranks together have the whole tree.
fn among_all<T: Pod + Add<Output = T>>(
    collective: &mut dyn Collective,
    ranks: VirtualRanks,
    mine: Partials<T>,
    owned: &dyn Fn(u32) -> Vec<Range<usize>>,
    is_shared: bool,
) -> Result<Numbers<T>, CollectiveError> {
    let world = collective.world();
    assert_eq!(ranks.world, world, "the virtual ranks are shared by this world");
    if world == 1 {
        return Ok(mine.into_total().unwrap_or_else(|_| unreachable!("one rank has the whole tree")));
    }
    let owned: Vec<Vec<Range<usize>>> = (0..world).map(owned).collect();
    let subtrees: Vec<Vec<Span>> = (0..world).map(|rank| ranks.subtrees_of(rank)).collect();
    collective.begin(Among::All);
    let team = &mut Team::of_all(collective);
    let (total, more) = exchange(team, ranks.count, &subtrees, mine, &owned, is_shared)?;
    debug_assert!(more.is_empty(), "the subtrees of all ranks make up the tree");
    Ok(total)
}

/// Every member of a team sends every other what that one owns of the sums of its subtrees, as a step of an operation that has begun. With `is_shared`,
/// all own everything. Members come in the order of their virtual ranks, which follow each other; their
/// numbers make up one subtree or more.
///
/// The sum of the first of these is in place of what this rank brought, in the ranges that it owns, and the rest of no use; those of the others have these ranges alone, one after
/// the other.
pub(super) fn exchange<T: Pod + Add<Output = T>>(
    team: &mut Team<'_>,
    count: u32,
    subtrees: &[Vec<Span>],
    mine: Partials<T>,
    owned: &[Vec<Range<usize>>],
    is_shared: bool,
) -> Result<(Numbers<T>, Vec<Numbers<T>>), CollectiveError> {
    let (rank, world) = (team.rank(), team.world());
    assert!(
        mine.sums().iter().map(|(span, _)| span).eq(&subtrees[rank as usize]),
        "rank {rank} sums its own virtual ranks"
    );
    const { assert!(PIECE_BYTES.is_multiple_of(size_of::<T>()), "a piece holds whole numbers") };
    let owned = without_empty(owned);

    // The first sum's memory becomes the total's: of its ranges, some are written and the others are sent.
    let mut sums = mine.into_sums();
    let (_, mut total) = sums.remove(0);
    let own_len: usize = owned[rank as usize].iter().map(ExactSizeIterator::len).sum();
    let mut more: Vec<Numbers<T>> = (1..joined(count, subtrees)).map(|_| total.another(own_len)).collect();
    more.iter_mut().for_each(|sum| sum.growing().resize(own_len, T::zeroed()));
    let copy = is_shared.then(|| total.to_vec());
    let (own, mut others) = match &copy {
        Some(copy) => (vec![&mut total[..]], vec![vec![&copy[..]]; world as usize]),
        None => split(&mut total, &owned, rank),
    };
    let mut outgoing = Vec::new();
    for to in team.others() {
        let firsts = std::mem::take(&mut others[to as usize]);
        for (first, range) in firsts.into_iter().zip(&owned[to as usize]) {
            let more = sums.iter().map(|(_, sum)| &sum[range.clone()]);
            let bytes = std::iter::once(first).chain(more).map(bytemuck::cast_slice);
            outgoing.extend(bytes.map(|bytes| Outgoing { to, bytes }));
        }
    }
    let of_others = (0..world).filter(|&from| from != rank);
    let senders: Vec<u32> =
        of_others.flat_map(|from| std::iter::repeat_n(from, subtrees[from as usize].len())).collect();
    let (mut incoming, mut adders) = (Vec::new(), Vec::new());
    let mut rests: Vec<&mut [T]> = more.iter_mut().map(|sum| &mut sum[..]).collect();
    for (own, range) in own.into_iter().zip(&owned[rank as usize]) {
        let into = size_of_val(own);
        incoming.extend(senders.iter().map(|&from| Incoming { from, into: Place::Sink(into) }));
        let brought: Vec<&[T]> = sums.iter().map(|(_, sum)| &sum[range.clone()]).collect();
        let mut totals = vec![own];
        for rest in &mut rests {
            let (total, after) = std::mem::take(rest).split_at_mut(range.len());
            totals.push(total);
            *rest = after;
        }
        adders.push(Adder::new(count, subtrees, rank, &brought, totals));
    }
    team.transfer(&mut outgoing, &mut incoming, &mut |piece| {
        adders[piece.incoming / senders.len()].add(piece);
    })?;
    drop((adders, outgoing, rests));
    Ok((total, more))
}

/// By owner, the ranges that have numbers: of others no message is sent.
pub(super) fn without_empty(owned: &[Vec<Range<usize>>]) -> Vec<Vec<Range<usize>>> {
    let some = |range: &&Range<usize>| !range.is_empty();
    owned.iter().map(|ranges| ranges.iter().filter(some).cloned().collect()).collect()
}

/// Of how many subtrees those of all members are made up.
fn joined(count: u32, subtrees: &[Vec<Span>]) -> usize {
    let mut all = Partials::<f32>::new(count);
    subtrees.iter().flatten().for_each(|span| all.push_subtree(span.clone(), Vec::new()));
    all.sums().len()
}

/// One list of borrowed ranges for every rank.
pub(super) type Ranges<'a, T> = Vec<Vec<&'a [T]>>;

/// The ranges of one rank, to be written, and those of the others, by rank.
pub(super) fn split<'a, T>(
    mut all: &'a mut [T],
    owned: &[Vec<Range<usize>>],
    rank: u32,
) -> (Vec<&'a mut [T]>, Ranges<'a, T>) {
    let with_owner = |(owner, ranges): (usize, &Vec<Range<usize>>)| {
        let placed = ranges.iter().cloned().enumerate();
        placed.map(move |(place, range)| (range.start, range.end, owner, place)).collect::<Vec<_>>()
    };
    let mut in_order: Vec<_> = owned.iter().enumerate().flat_map(with_owner).collect();
    in_order.sort_unstable();
    let mut own: Vec<(usize, &mut [T])> = Vec::new();
    let mut others: Vec<Vec<(usize, &[T])>> = owned.iter().map(|_| Vec::new()).collect();
    let mut position = 0;
    for (start, end, owner, place) in in_order {
        let rest = std::mem::take(&mut all);
        let (range, rest) = rest[start - position..].split_at_mut(end - start);
        (all, position) = (rest, end);
        if owner == rank as usize {
            own.push((place, range));
        } else {
            others[owner].push((place, range));
        }
    }
    own.sort_unstable_by_key(|(place, _)| *place);
    others.iter_mut().for_each(|ranges| ranges.sort_unstable_by_key(|(place, _)| *place));
    let plain = |ranges: Vec<(usize, &'a [T])>| ranges.into_iter().map(|(_, range)| range).collect();
    (own.into_iter().map(|(_, range)| range).collect(), others.into_iter().map(plain).collect())
}

/// Adds the pieces of all subtrees in tree order: those that come, and between them those that this rank has.
struct Adder<'a, T> {
    /// The subtrees of all members, in order.
    subtrees: Vec<(Span, Source<'a, T>)>,
    /// How many of them are in `sum`.
    added: usize,
    count: u32,
    sum: Partials<T>,
    /// This rank's part of its first subtree, piece by piece replaced by that of the first total; then the other totals.
    totals: Vec<&'a mut [T]>,
}

/// Where the numbers of a subtree come from.
enum Source<'a, T> {
    Another,
    Total,
    Own(&'a [T]),
}

impl<'a, T: Pod + Add<Output = T>> Adder<'a, T> {
    /// The first of `totals` holds this rank's first subtree, `more` are the others.
    fn new(
        count: u32,
        of_members: &[Vec<Span>],
        rank: u32,
        more: &[&'a [T]],
        totals: Vec<&'a mut [T]>,
    ) -> Adder<'a, T> {
        let mut subtrees = Vec::new();
        for (other, spans) in of_members.iter().enumerate() {
            for (index, span) in spans.iter().enumerate() {
                let source = match index {
                    _ if other != rank as usize => Source::Another,
                    0 => Source::Total,
                    _ => Source::Own(more[index - 1]),
                };
                subtrees.push((span.clone(), source));
            }
        }
        Adder { subtrees, added: 0, count, sum: Partials::new(count), totals }
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
            let sums = std::mem::replace(&mut self.sum, Partials::new(self.count)).into_sums();
            debug_assert_eq!(sums.len(), self.totals.len(), "as many as were counted");
            for (total, (_, sum)) in self.totals.iter_mut().zip(sums) {
                total[range.clone()].copy_from_slice(&sum);
            }
            self.added = 0;
        }
    }

    fn add_own(&mut self, range: &Range<usize>) {
        while let Some((span, source)) = self.subtrees.get(self.added) {
            let own = match source {
                Source::Another => return,
                Source::Total => &self.totals[0][range.clone()],
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

    /// Each rank's part of a number of values: stretches of 300 in turn, in an order of its own.
    fn owned(length: usize, rank: u32, world: u32) -> Vec<Range<usize>> {
        let starts = (0..length).step_by(300).skip(rank as usize).step_by(world as usize);
        let mut ranges: Vec<Range<usize>> = starts.map(|start| start..(start + 300).min(length)).collect();
        ranges.reverse();
        ranges
    }

    #[test]
    fn who_owns_numbers_has_the_sums_of_all() {
        for (count, length) in [(1, 5), (3, 2_500), (8, 0), (8, 70_000), (13, 2_500)] {
            let alone = reduced(count, 1, length).remove(0);
            for world in 1..=count.min(5) {
                let ranks = VirtualRanks { count, world };
                let found = spawn(world, |mut collective| {
                    let rank = collective.rank();
                    let mut mine = Partials::new(count);
                    ranks.of(rank).for_each(|it| mine.push(it, numbers(it, length)));
                    let of = |rank| owned(length, rank, world);
                    let total = reduce_scatter(&mut collective, ranks, mine, &of).unwrap();
                    let bits = |range: Range<usize>| total[range].iter().map(|it| it.to_bits()).collect();
                    of(rank).into_iter().map(|range| (range.clone(), bits(range))).collect::<Vec<_>>()
                });
                for (range, bits) in found.into_iter().flatten() {
                    let bits: Vec<u32> = bits;
                    assert_eq!(bits, alone[range.clone()], "V={count} W={world} {range:?}");
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
        // The first to find it out notifies the other.
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
