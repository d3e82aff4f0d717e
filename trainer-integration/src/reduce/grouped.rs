//! The exact sums in two steps: inside groups of ranks first, and then across them. What leaves a group, of a machine say, is the sum of its virtual
//! ranks and not those of each of its ranks: as many times fewer bytes as it has ranks. The bits are those of the one tree, as ever.

use std::ops::{Add, Range};

use bytemuck::Pod;

use super::exact::exchange;
use super::tree::{Partials, Span, VirtualRanks};
use crate::collective::numbers::slice_of;
use crate::collective::sums::{Team, gather_more};
use crate::collective::{Among, Collective, CollectiveError};
use crate::ledger::Numbers;

/// The sums of what this rank keeps; the others are of no use afterwards.
///
/// Groups are of `size` ranks that follow each other; `kept` tells the ranges that the rank of each place in a group keeps. Each place adds up its ranges
/// over the group. The ranks of one place then add up a part of them each, over the groups, and give each other the sums.
///
/// # Errors
/// As [`all_reduce`](super::all_reduce).
///
/// # Panics
/// If groups are not several ranks each, `mine` are not the virtual ranks of this rank, or a number is in several ranges.
pub(crate) fn reduce_scatter_by_groups<T: Pod + Add<Output = T>>(
    collective: &mut dyn Collective,
    ranks: VirtualRanks,
    mine: Partials<T>,
    size: u32,
    kept: &[Vec<Range<usize>>],
) -> Result<Numbers<T>, CollectiveError> {
    let (rank, world) = (collective.rank(), collective.world());
    assert!(size > 1 && world.is_multiple_of(size), "{world} ranks in groups of {size}");
    let (group, place, groups) = (rank / size, rank % size, world / size);
    collective.begin(Among::All);

    let members: Vec<u32> = (group * size..(group + 1) * size).collect();
    let subtrees: Vec<Vec<Span>> = members.iter().map(|member| ranks.subtrees_of(*member)).collect();
    let team = &mut Team::of(collective, members);
    let (mut whole, more) = exchange(team, ranks.count, &subtrees, mine, kept, false)?;

    // The virtual ranks of a group follow each other, and are those of a rank in a world of as many ranks as there are groups.
    let by_group = VirtualRanks { count: ranks.count, world: groups };
    let own = &kept[place as usize];
    let subtrees: Vec<Vec<Span>> = (0..groups).map(|group| by_group.subtrees_of(group)).collect();
    let replicas: Vec<u32> = (0..groups).map(|group| group * size + place).collect();
    let mut across = |of_group, ranges: &[Range<usize>]| {
        let owned: Vec<Vec<Range<usize>>> = (0..groups).map(|group| parts(ranges, group, groups)).collect();
        let team = &mut Team::of(collective, replicas.clone());
        let (mut sums, more) = exchange(team, ranks.count, &subtrees, of_group, &owned, false)?;
        debug_assert!(more.is_empty(), "the subtrees of all groups make up the tree");
        gather_more(collective, &replicas, with_owners(&mut sums, owned.iter()))?;
        Ok(sums)
    };
    let spans = &subtrees[group as usize];
    if let [span] = &spans[..]
        && subtrees.iter().all(|spans| spans.len() == 1)
    {
        let mut of_group = Partials::new(ranks.count);
        of_group.push_subtree(span.clone(), whole);
        return across(of_group, own);
    }
    // Several sums of a group have the numbers of this rank alone, one range after the other.
    let mut first = whole.another(own.iter().map(ExactSizeIterator::len).sum());
    own.iter().for_each(|range| first.growing().extend_from_slice(&whole[range.clone()]));
    let mut of_group = Partials::new(ranks.count);
    for (span, sum) in spans.iter().cloned().zip(std::iter::once(first).chain(more)) {
        of_group.push_subtree(span, sum);
    }
    let places: Vec<Range<usize>> = places_of(own).collect();
    let sums = across(of_group, &places)?;
    for (range, place) in own.iter().zip(places) {
        whole[range.clone()].copy_from_slice(&sums[place]);
    }
    Ok(whole)
}

/// Where these ranges lie if one follows the other.
pub(super) fn places_of(ranges: &[Range<usize>]) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0;
    ranges.iter().map(move |range| {
        end += range.len();
        end - range.len()..end
    })
}

/// The part of these ranges that the rank of a group adds up.
pub(super) fn parts(ranges: &[Range<usize>], group: u32, groups: u32) -> Vec<Range<usize>> {
    let part = |range: &Range<usize>| {
        let part = slice_of(range.len(), group, groups);
        range.start + part.start..range.start + part.end
    };
    ranges.iter().map(part).collect()
}

/// The ranges of numbers that each owner has, in order.
pub(crate) fn with_owners<'a, 'b, T>(
    numbers: &'a mut [T],
    owned: impl Iterator<Item = &'b Vec<Range<usize>>>,
) -> Vec<(u32, &'a mut [T])> {
    let with_owner = |(owner, ranges): (usize, &'b Vec<Range<usize>>)| {
        ranges.iter().map(move |range| (range.start, range.end, owner as u32))
    };
    let mut in_order: Vec<_> = owned.enumerate().flat_map(with_owner).collect();
    in_order.sort_unstable();
    let (mut rest, mut position) = (numbers, 0);
    let cut = |(start, end, owner): (usize, usize, u32)| {
        let (range, after) = std::mem::take(&mut rest)[start - position..].split_at_mut(end - start);
        (rest, position) = (after, end);
        (owner, range)
    };
    in_order.into_iter().filter(|(start, end, _)| start < end).map(cut).collect()
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;
    use crate::collective::spawn;
    use crate::reduce::all_reduce;

    fn numbers(virtual_rank: u32, length: usize) -> Vec<f32> {
        // Magnitudes far apart, so that another order of additions shows.
        let number = |index: u32| {
            let bits = index.wrapping_mul(2_654_435_761).wrapping_add(virtual_rank.wrapping_mul(40_503_701));
            (f64::from(bits & 0xffff) / 32_768.0 - 1.0) * (f64::from(bits >> 28) - 8.0).exp2()
        };
        (0..length as u32).map(|index| number(index) as f32).collect()
    }

    fn partials<T: Copy + Add<Output = T>>(
        ranks: VirtualRanks,
        rank: u32,
        length: usize,
        of: fn(f32) -> T,
    ) -> Partials<T> {
        let mut mine = Partials::new(ranks.count);
        let leaf = |it| numbers(it, length).into_iter().map(of).collect::<Vec<T>>();
        ranks.of(rank).for_each(|it| mine.push(it, leaf(it)));
        mine
    }

    /// The parts that the ranks of a group keep of a number of values: stretches of 300 in turn, those of
    /// each in an order of its own, and an empty one.
    fn kept(length: usize, size: u32) -> Vec<Vec<Range<usize>>> {
        let of = |place: u32| {
            let starts = (0..length).step_by(300).skip(place as usize).step_by(size as usize);
            let mut ranges: Vec<Range<usize>> =
                starts.map(|start| start..(start + 300).min(length)).collect();
            ranges.reverse();
            ranges.push(0..0);
            ranges
        };
        (0..size).map(of).collect()
    }

    fn in_groups<T: Pod + Send + Sync + Add<Output = T> + PartialEq>(
        count: u32,
        (groups, size): (u32, u32),
        length: usize,
        of: fn(f32) -> T,
    ) {
        let alone = VirtualRanks { count, world: 1 };
        let expected = spawn(1, |mut collective| {
            all_reduce(&mut collective, alone, partials(alone, 0, length, of)).unwrap()
        })
        .remove(0);
        let ranks = VirtualRanks { count, world: groups * size };
        let kept = kept(length, size);
        let found = spawn(groups * size, |mut collective| {
            let mine = partials(ranks, collective.rank(), length, of);
            reduce_scatter_by_groups(&mut collective, ranks, mine, size, &kept).unwrap()
        });
        for (rank, sums) in found.iter().enumerate() {
            for range in &kept[rank % size as usize] {
                let is_same = sums[range.clone()] == expected[range.clone()];
                assert!(is_same, "V={count}, {groups} groups of {size}, rank {rank}, {range:?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn groups_of_any_size_give_the_bits_of_the_tree(groups in 1u32..5, size in 2u32..4, more in 0u32..12, length in 0usize..2_500) {
            let count = groups * size + more;
            in_groups(count, (groups, size), length, |number| number);
            in_groups(count, (groups, size), length, bf16::from_f32);
        }
    }
}
