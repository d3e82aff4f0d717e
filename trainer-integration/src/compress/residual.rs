//! The gradients that a rank has not sent yet, and the rank that continues with them. Pure.

use crate::buckets::Places;
use crate::collective::slice_of;

/// The part of a rank's numbers that compression has not sent, which error feedback adds to the next ones: of one bucket, or of
/// all of a model's trained numbers in the order of the blocks.
///
/// The law: for each number, the sent part of a step and the kept part are together the part kept before and the gradient (with
/// momentum: the velocity). With `topk` and `dgc` either is all of that, bit for bit, and the other is 0.
/// With the other formats the difference is rounded once: at most 2⁻²⁴ of the kept part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Residual {
    /// Of its own gradients, or with `dgc` of its velocities. Empty before the first step.
    pub gradients: Vec<f32>,
    /// With `dgc`, the velocity of each number: the gradients with momentum. Else empty.
    pub velocity: Vec<f32>,
    /// Of the sums that it sends as the owner of a slice of each bucket, bucket by bucket. Empty with `topk` and `dgc`.
    pub sums: Vec<f32>,
}

/// The residual of a rank of some world, over all buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct RankResidual {
    /// The rank that kept it.
    pub rank: u32,
    /// The number of ranks then, which decides the slices of [`Residual::sums`].
    pub world: u32,
    /// The numbers.
    pub residual: Residual,
}

/// Who continues with the residual of a rank of `writers` in a world of `world`: in the same world the rank itself.
pub(crate) fn heir(rank: u32, writers: u32, world: u32) -> u32 {
    (u64::from(rank) * u64::from(world) / u64::from(writers)) as u32
}

/// All buckets' residuals as one. `count` is that of all trained numbers.
pub(crate) fn joined(of_buckets: &[Residual], buckets: &[Places], count: usize) -> Residual {
    let mut all = Residual::default();
    for (residual, places) in of_buckets.iter().zip(buckets) {
        for (from, to) in [(&residual.gradients, &mut all.gradients), (&residual.velocity, &mut all.velocity)]
        {
            if from.is_empty() {
                continue;
            }
            to.resize(count, 0.0);
            for (all, bucket) in places {
                to[all.clone()].copy_from_slice(&from[bucket.clone()]);
            }
        }
        all.sums.extend_from_slice(&residual.sums);
    }
    all
}

/// The residuals of the buckets with which rank `rank` of `world` continues, if it inherits these. In the same world
/// they are the numbers themselves. Else all of them are added up, with the unsent part of each former owner's sums: what all
/// ranks together have not sent stays the same, but for the rounding of these additions.
///
/// # Errors
/// When they are of another model.
pub(crate) fn inherited(
    kept: &[RankResidual],
    (rank, world): (u32, u32),
    buckets: &[Places],
    count: usize,
) -> Result<Vec<Residual>, String> {
    let lengths: Vec<usize> =
        buckets.iter().map(|places| places.iter().map(|(all, _)| all.len()).sum()).collect();
    let slices = |rank: u32, world: u32| lengths.iter().map(move |&length| slice_of(length, rank, world));
    let mut found: Vec<Residual> = vec![Residual::default(); buckets.len()];
    for RankResidual { rank: of, world: among, residual } in kept {
        let Residual { gradients, velocity, sums } = residual;
        let of_slices: usize = slices(*of, *among).map(|slice| slice.len()).sum();
        let fits = |numbers: &Vec<f32>, count: usize| numbers.is_empty() || numbers.len() == count;
        if !fits(gradients, count) || !fits(velocity, count) || !fits(sums, of_slices) {
            return Err("residuals of other numbers than it trains".to_owned());
        }
        let mut sums = &sums[..];
        for (((found, places), slice), &length) in
            found.iter_mut().zip(buckets).zip(slices(*of, *among)).zip(&lengths)
        {
            for (from, to) in [(gradients, &mut found.gradients), (velocity, &mut found.velocity)] {
                if !from.is_empty() {
                    to.resize(length, 0.0);
                    for (all, bucket) in places {
                        add(&mut to[bucket.clone()], &from[all.clone()]);
                    }
                }
            }
            let (own, rest) = sums.split_at(if sums.is_empty() { 0 } else { slice.len() });
            sums = rest;
            if (*of, *among) == (rank, world) {
                found.sums.resize(own.len(), 0.0);
                add(&mut found.sums, own);
            } else if !own.is_empty() {
                found.gradients.resize(length, 0.0);
                add(&mut found.gradients[slice], own);
            }
        }
    }
    Ok(found)
}

fn add(to: &mut [f32], numbers: &[f32]) {
    // 0 + -0 would be 0.
    to.iter_mut().zip(numbers).for_each(|(to, number)| *to = if *to == 0.0 { *number } else { *to + number });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two buckets of two blocks each, the last block of each first.
    fn buckets(lengths: [usize; 4]) -> (Vec<Places>, usize) {
        let starts = [0, lengths[0], lengths[0] + lengths[1], lengths[0] + lengths[1] + lengths[2]];
        let all = |block: usize| starts[block]..starts[block] + lengths[block];
        let bucket = |first: usize, last: usize| {
            vec![(all(last), 0..lengths[last]), (all(first), lengths[last]..lengths[last] + lengths[first])]
        };
        (vec![bucket(2, 3), bucket(0, 1)], lengths.iter().sum())
    }

    proptest! {
        #[test]
        fn every_residual_has_one_heir_and_in_the_same_world_that_is_its_rank(writers in 1..64u32, world in 1..64u32) {
            let heirs: Vec<u32> = (0..writers).map(|rank| heir(rank, writers, world)).collect();
            prop_assert!(heirs.iter().all(|heir| *heir < world));
            prop_assert!(writers != world || heirs.iter().copied().eq(0..world));
        }

        #[test]
        fn what_all_ranks_have_not_sent_is_the_same_in_any_world(
            writers in 1..6u32, world in 1..6u32, lengths in prop::array::uniform4(0..9usize), seed in 0..1000usize, is_deep: bool,
        ) {
            let (buckets, count) = buckets(lengths);
            let number = |rank: u32, at: usize| ((seed + 31 * rank as usize + 7 * at) % 201) as f32 - 100.0;
            let numbers = |rank: u32, salt: usize, count: usize| (0..count).map(|at| number(rank, salt + at)).collect::<Vec<f32>>();
            let of = |rank: u32| {
                let owned = |places: &Places| slice_of(places.iter().map(|(all, _)| all.len()).sum(), rank, writers).len();
                let owned: usize = buckets.iter().map(owned).sum();
                let residual = Residual {
                    gradients: numbers(rank, 0, count),
                    velocity: numbers(rank, 50, if is_deep { count } else { 0 }),
                    sums: numbers(rank, 99, if is_deep { 0 } else { owned }),
                };
                RankResidual { rank, world: writers, residual }
            };
            let kept: Vec<RankResidual> = (0..writers).map(of).collect();
            let after: Vec<RankResidual> = (0..world).map(|rank| {
                let mine: Vec<RankResidual> =
                    kept.iter().filter(|it| heir(it.rank, writers, world) == rank).cloned().collect();
                let found = inherited(&mine, (rank, world), &buckets, count).unwrap();
                RankResidual { rank, world, residual: joined(&found, &buckets, count) }
            }).collect();
            // All that is not sent, by number: gradients, and sums at their places. Whole numbers are exact.
            let unsent = |all: &[RankResidual]| {
                let (mut sums, mut velocity) = (vec![0.0; count], vec![0.0; count]);
                for RankResidual { rank, world, residual } in all {
                    residual.gradients.iter().zip(&mut sums).for_each(|(number, sum)| *sum += number);
                    residual.velocity.iter().zip(&mut velocity).for_each(|(number, sum)| *sum += number);
                    let mut left = residual.sums.iter();
                    for places in &buckets {
                        let row: Vec<usize> = places.iter().flat_map(|(all, _)| all.clone()).collect();
                        for at in slice_of(row.len(), *rank, *world) {
                            sums[row[at]] += left.next().copied().unwrap_or_default();
                        }
                    }
                }
                (sums, velocity)
            };
            prop_assert_eq!(unsent(&after), unsent(&kept));
            prop_assert!(world != writers || after == kept, "in the same world nothing moves");
            let other = inherited(&kept, (0, world), &buckets, count + 1);
            prop_assert!(other.is_err() || count == 0, "a residual of another model is refused");
        }
    }
}
