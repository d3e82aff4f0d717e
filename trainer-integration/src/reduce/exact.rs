//! The exact all-reduce: every rank brings the sums of its subtrees, every rank takes the sum of all.
//!
//! Reduce-scatter by direct exchange (the owner of a slice receives everyone's partial sums of it and adds them in tree
//! order), then all-gather. Both halves are one exchange each; short vectors skip the first and are added by everyone.

use std::ops::{Add, Range};

use bytemuck::Pod;

use super::tree::{Partials, VirtualRanks};
use crate::collective::{Collective, CollectiveError, Message};

/// Below this many bytes a second round trip costs more than sending everything to everyone.
const DIRECT_BYTES: usize = 8 << 10;

/// The part of `length` numbers that `rank` of `world` owns.
///
/// # Panics
/// If `rank` is outside the world.
pub fn slice_of(length: usize, rank: u32, world: u32) -> Range<usize> {
    assert!(rank < world, "rank {rank} outside world of {world}");
    let bound = |rank: u32| (length as u128 * u128::from(rank) / u128::from(world)) as usize;
    bound(rank)..bound(rank + 1)
}

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
        return Ok(total_of(mine));
    }
    let length = mine.sums()[0].1.len();
    if length * size_of::<T>() <= DIRECT_BYTES {
        let partials = joined(&mine, 0..length);
        let received = collective.all_gather(bytemuck::cast_slice(&partials))?;
        return combine(ranks, &received, length);
    }

    let outgoing: Vec<Vec<T>> = (0..world).map(|to| joined(&mine, slice_of(length, to, world))).collect();
    drop(mine);
    let outgoing_bytes: Vec<&[u8]> = outgoing.iter().map(|part| bytemuck::cast_slice(part)).collect();
    let received = collective.exchange(&outgoing_bytes)?;
    drop(outgoing);
    let owned = combine::<T>(ranks, &received, slice_of(length, rank, world).len())?;
    drop(received);

    let slices = collective.all_gather(bytemuck::cast_slice(&owned))?;
    let mut total = Vec::with_capacity(length);
    for (from, message) in slices.iter().enumerate() {
        let expected = slice_of(length, from as u32, world).len();
        total.extend_from_slice(&numbers_of::<T>(message, from, expected)?);
    }
    Ok(total)
}

/// The same range of every partial sum, one after the other.
fn joined<T: Pod + Add<Output = T>>(partials: &Partials<T>, range: Range<usize>) -> Vec<T> {
    let mut numbers = Vec::with_capacity(partials.sums().len() * range.len());
    for (_, sum) in partials.sums() {
        numbers.extend_from_slice(&sum[range.clone()]);
    }
    numbers
}

/// Adds what all ranks sent in tree order. The spans need not travel: they follow from the rank.
fn combine<T: Pod + Add<Output = T>>(
    ranks: VirtualRanks,
    received: &[Message],
    length: usize,
) -> Result<Vec<T>, CollectiveError> {
    let mut total = Partials::new(ranks.count);
    for (from, message) in received.iter().enumerate() {
        let subtrees = ranks.subtrees_of(from as u32);
        let numbers = numbers_of::<T>(message, from, subtrees.len() * length)?;
        for (index, span) in subtrees.into_iter().enumerate() {
            total.push_subtree(span, numbers[index * length..(index + 1) * length].to_vec());
        }
    }
    Ok(total_of(total))
}

fn total_of<T: Pod + Add<Output = T>>(partials: Partials<T>) -> Vec<T> {
    partials.into_total().unwrap_or_else(|_| unreachable!("the subtrees of all ranks make up the tree"))
}

fn numbers_of<T: Pod>(
    message: &Message,
    from: usize,
    expected: usize,
) -> Result<std::borrow::Cow<'_, [T]>, CollectiveError> {
    let numbers = message.numbers::<T>().filter(|numbers| numbers.len() == expected);
    numbers.ok_or_else(|| CollectiveError::Malformed {
        rank: from as u32,
        what: format!(
            "{} bytes of partial sums, {} expected",
            message.bytes().len(),
            expected * size_of::<T>()
        ),
    })
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
        assert!(results.iter().all(|result| matches!(result, Err(CollectiveError::Malformed { .. }))));
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

        #[test]
        fn slices_cover_every_number_once(length in 0..10_000usize, world in 1..64u32) {
            let mut next = 0;
            for rank in 0..world {
                let slice = slice_of(length, rank, world);
                prop_assert_eq!(slice.start, next);
                next = slice.end;
            }
            prop_assert_eq!(next, length);
        }
    }
}
