//! Which partitions a virtual rank owns, and which virtual ranks a rank owns. Pure functions of (P, V, W). How many virtual ranks
//! a run has by default, a function of P and its global batch, so that its weights do not depend on how many ranks it has.

use std::ops::Range;

use super::divisors::{divisors, smallest_divisor_from};
use super::{Partition, Plan, PlanError, VirtualRank};

/// The virtual ranks of a default, at most: 1, 2, 3, 4, 6, 8, 12 and 24 ranks have equal shares of this
/// number.
const MOST: u64 = 24;
/// The samples of a virtual rank in a step of a default, at least: batch normalisation loses accuracy with fewer than 16.
const SAMPLES: u64 = 16;
/// Up to this number of virtual ranks, for the accelerators of one machine...
const OF_A_MACHINE: u64 = 8;
/// ...there may be fewer samples, at least this number.
const SAMPLES_OF_A_MACHINE: u64 = 8;

/// The virtual ranks of a run over `partitions` partitions in steps of `global_batch` samples, if nothing else is asked for: the
/// largest divisor of the partitions that is at most 24 and leaves each 16 samples of a step, or is at most 8 and leaves each 8.
///
/// ```
/// use shardd_plan::default_virtual_ranks;
///
/// // 16 samples for each virtual rank.
/// assert_eq!(default_virtual_ranks(96, 256), 16);
/// assert_eq!(default_virtual_ranks(96, 1), 1);
/// ```
pub fn default_virtual_ranks(partitions: u32, global_batch: u64) -> u32 {
    let of_a_machine = OF_A_MACHINE.min(global_batch / SAMPLES_OF_A_MACHINE);
    let most = MOST.min(global_batch / SAMPLES).max(of_a_machine);
    divisors(partitions).rfind(|divisor| u64::from(*divisor) <= most).unwrap_or(1)
}

impl Plan {
    /// The partitions that virtual rank `v` of `virtual_ranks` owns: [vP/V, (v+1)P/V).
    pub fn partitions_of(&self, v: VirtualRank, virtual_ranks: u32) -> Range<u32> {
        share(v.0, virtual_ranks, self.document().partitions)
    }

    /// The virtual rank, of `virtual_ranks`, that owns `partition`.
    pub fn virtual_rank_of(&self, partition: Partition, virtual_ranks: u32) -> VirtualRank {
        let partitions = u64::from(self.document().partitions);
        VirtualRank((u64::from(partition.0) * u64::from(virtual_ranks) / partitions) as u32)
    }

    /// The virtual ranks that rank `rank` of `world` owns: [rV/W, (r+1)V/W), rounded down.
    pub fn virtual_ranks_of(rank: u32, world: u32, virtual_ranks: u32) -> Range<u32> {
        share(rank, world, virtual_ranks)
    }

    /// The virtual ranks of a run in steps of `global_batch` samples, if nothing else is asked for: see
    /// [`default_virtual_ranks`].
    pub fn default_virtual_ranks(&self, global_batch: u64) -> u32 {
        default_virtual_ranks(self.document().partitions, global_batch)
    }

    /// The smallest global batch whose default virtual ranks `world` ranks can share; `None` if no default has as many.
    pub fn least_global_batch(&self, world: u32) -> Option<u64> {
        (1..=MOST * SAMPLES).find(|batch| self.default_virtual_ranks(*batch) >= world)
    }

    /// The fewest virtual ranks that `world` ranks can share: the smallest divisor of P that is no less; P itself if the world
    /// is larger, which [`check_ranks`](Self::check_ranks) then refuses.
    pub fn fewest_virtual_ranks(&self, world: u32) -> u32 {
        let partitions = self.document().partitions;
        smallest_divisor_from(partitions, world.max(1)).unwrap_or(partitions)
    }

    /// The fewest virtual ranks of which none reads more than `micro_batch` samples of a step of `global_batch`; `None` if even
    /// P read more.
    pub fn virtual_ranks_of_at_most(&self, micro_batch: u64, global_batch: u64) -> Option<u32> {
        divisors(self.document().partitions).find(|v| global_batch.div_ceil(u64::from(*v)) <= micro_batch)
    }

    /// Whether `world` ranks can run with `virtual_ranks` over this plan.
    ///
    /// # Errors
    /// [`PlanError::VirtualRanks`] if V does not divide P, [`PlanError::World`] if W is 0 or above V; both name the
    /// numbers that fit.
    pub fn check_ranks(&self, world: u32, virtual_ranks: u32) -> Result<(), PlanError> {
        let partitions = self.document().partitions;
        if virtual_ranks == 0 || !partitions.is_multiple_of(virtual_ranks) {
            let above = smallest_divisor_from(partitions, virtual_ranks.max(1));
            let below = divisors(partitions).rfind(|d| *d < virtual_ranks);
            let fitting: Vec<_> = below.into_iter().chain(above).collect();
            return Err(PlanError::VirtualRanks { virtual_ranks, partitions, fitting: list(fitting) });
        }
        if world == 0 || world > virtual_ranks {
            let equal = list(divisors(virtual_ranks).collect());
            return Err(PlanError::World { world, virtual_ranks, partitions, equal });
        }
        Ok(())
    }
}

/// Part `index` of `parts` equal parts of `0..whole`, rounded down; empty where there is no such part.
fn share(index: u32, parts: u32, whole: u32) -> Range<u32> {
    let parts = parts.max(1);
    let bound = |i: u64| (i.min(parts.into()) * u64::from(whole) / u64::from(parts)) as u32;
    bound(index.into())..bound(u64::from(index) + 1)
}

/// "1, 2 or 4"
fn list(numbers: Vec<u32>) -> String {
    let texts: Vec<_> = numbers.iter().map(u32::to_string).collect();
    match texts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}
