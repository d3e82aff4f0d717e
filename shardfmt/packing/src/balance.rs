//! Deals the sequences of a step to micro-batches: as many to each, and about equal costs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::packed::Piece;

/// Swaps of the refinement, per way.
const SWAPS: usize = 8;

/// The cost of a sequence: `token * tokens + square * sum of squared piece lengths`.
///
/// The first part is that of matrix products, the second that of attention inside of pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// The cost of a token.
    pub token: u64,
    /// The cost of a pair of tokens of one piece.
    pub square: u64,
}

impl CostModel {
    /// The operations of a transformer layer of this width, with a feed-forward part of four times the width, divided by
    /// `2 * width`: `24 width^2` operations per token and `2 width` per pair under a causal mask (Narayanan et al.,
    /// "Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021, appendix, halved for the mask).
    pub fn of_width(width: u32) -> Self {
        Self { token: 12 * u64::from(width), square: 1 }
    }

    /// The cost of a sequence of these pieces; 2^64 - 1 if it is larger.
    pub fn cost(&self, pieces: &[Piece]) -> u64 {
        pieces.iter().fold(0, |cost, piece| {
            let length = u64::from(piece.length);
            let squares = length.saturating_mul(length).saturating_mul(self.square);
            cost.saturating_add(length.saturating_mul(self.token)).saturating_add(squares)
        })
    }
}

/// The way of each item, from 0: each way gets equally many items, or one more, and the largest sum of costs is small.
///
/// The rule is the balanced largest differencing method, followed by swaps (Yakir, "The differencing algorithm LDM for
/// partitioning", 1996; Michiels et al., "Performance ratios for the Karmarkar-Karp differencing method", 2003). Groups of
/// `ways` items of neighbouring costs are merged, the most uneven first, largest to smallest. Then the way with the largest
/// sum swaps an item for a smaller one of another way, while that helps and at most `8 * ways` times. A swap costs `n`
/// comparisons, and the steps before `n log n`.
///
/// The sums of the ways depend on the set of costs, not on their order. Way 0 has item 0, and each way's first item comes
/// behind that of the way before. Ways without an item come last. Items of equal cost are dealt in their order.
///
/// ```
/// use std::num::NonZeroU32;
///
/// let ways = NonZeroU32::new(2).expect("not zero");
/// assert_eq!(shardd_packing::balance(&[9, 1, 5, 5], ways), [0, 0, 1, 1]);
/// ```
pub fn balance(costs: &[u64], ways: NonZeroU32) -> Vec<u32> {
    let ways = (ways.get() as usize).min(costs.len());
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by_key(|&item| Reverse(costs[item]));
    let sorted: Vec<u64> = order.iter().map(|&item| costs[item]).collect();
    let mut bundles = merge_all(&sorted, ways);
    refine(&sorted, &mut bundles);

    let mut bundle_of = vec![0; costs.len()];
    for (bundle, ranks) in bundles.iter().enumerate() {
        for &rank in &ranks.ranks {
            bundle_of[order[rank]] = bundle;
        }
    }
    number_by_first(&bundle_of, ways)
}

/// The largest sum of costs of a way over the mean sum of all `ways`; 1 if all costs are 0.
///
/// # Panics
/// If an item has no way, or a way of `ways` or more.
pub fn imbalance(costs: &[u64], assignment: &[u32], ways: NonZeroU32) -> f64 {
    assert_eq!(costs.len(), assignment.len(), "each item has a way");
    let mut sums = vec![0u128; ways.get() as usize];
    for (&cost, &way) in costs.iter().zip(assignment) {
        sums[way as usize] += u128::from(cost);
    }
    let total: u128 = sums.iter().sum();
    let largest = sums.into_iter().max().unwrap_or(0);
    if total == 0 { 1.0 } else { largest as f64 * f64::from(ways.get()) / total as f64 }
}

/// The items of a way, as ranks in the order of falling costs.
#[derive(Clone, Debug, Default)]
struct Bundle {
    sum: u128,
    ranks: Vec<usize>,
}

/// Merges groups of `ways` ranks, the most uneven pair of groups first, until one group of bundles is left.
fn merge_all(sorted: &[u64], ways: usize) -> Vec<Bundle> {
    let mut groups: Vec<Vec<Bundle>> = Vec::new();
    let mut queue = BinaryHeap::new();
    let add = |group: Vec<Bundle>, groups: &mut Vec<Vec<Bundle>>, queue: &mut BinaryHeap<_>| {
        let spread = group[0].sum - group[group.len() - 1].sum;
        queue.push((spread, Reverse(groups.len())));
        groups.push(group);
    };
    for first in (0..sorted.len()).step_by(ways.max(1)) {
        let bundle = |rank: usize| match sorted.get(rank) {
            Some(&cost) => Bundle { sum: u128::from(cost), ranks: vec![rank] },
            None => Bundle::default(),
        };
        add((first..first + ways).map(bundle).collect(), &mut groups, &mut queue);
    }
    loop {
        let Some((_, Reverse(left))) = queue.pop() else { return Vec::new() };
        let left = std::mem::take(&mut groups[left]);
        let Some((_, Reverse(right))) = queue.pop() else { return left };
        let right = std::mem::take(&mut groups[right]);
        add(merge(left, right), &mut groups, &mut queue);
    }
}

/// The bundles of two groups in pairs, the largest of one with the smallest of the other, by falling sum.
fn merge(left: Vec<Bundle>, right: Vec<Bundle>) -> Vec<Bundle> {
    let pair = |(mut large, small): (Bundle, Bundle)| {
        large.sum += small.sum;
        large.ranks.extend(small.ranks);
        large
    };
    let mut group: Vec<Bundle> = left.into_iter().zip(right.into_iter().rev()).map(pair).collect();
    group.sort_by_key(|bundle| Reverse(bundle.sum));
    group
}

/// Lowers the largest sum by swaps of two ways' items.
fn refine(sorted: &[u64], bundles: &mut [Bundle]) {
    for bundle in bundles.iter_mut() {
        bundle.ranks.sort_unstable();
    }
    for _ in 0..SWAPS * bundles.len() {
        let Some(high) = (0..bundles.len()).max_by_key(|&way| (bundles[way].sum, Reverse(way))) else {
            return;
        };
        let best = (0..bundles.len())
            .filter_map(|low| Some((best_swap(sorted, &bundles[high], &bundles[low])?, low)))
            .min_by_key(|(swap, low)| (swap.larger, *low));
        let Some((swap, low)) = best else { return };
        apply(sorted, bundles, high, low, swap);
    }
}

/// An item of one way for an item of another.
#[derive(Clone, Copy, Debug)]
struct Swap {
    /// The larger sum of the two ways afterwards.
    larger: u128,
    give: usize,
    /// None if the way with the lower sum has fewer items.
    take: Option<usize>,
}

/// The swap of two ways with the least larger sum, if that is below the sum of `high`.
fn best_swap(sorted: &[u64], high: &Bundle, low: &Bundle) -> Option<Swap> {
    let gap = high.sum.checked_sub(low.sum).filter(|&gap| gap > 0)?;
    let mut best: Option<Swap> = None;
    let mut consider = |give: usize, take: Option<usize>| {
        let moved = u128::from(sorted[give]).saturating_sub(take.map_or(0, |rank| u128::from(sorted[rank])));
        let larger = (high.sum - moved).max(low.sum + moved);
        if moved > 0 && moved < gap && best.is_none_or(|best| larger < best.larger) {
            best = Some(Swap { larger, give, take });
        }
    };
    let mut place = 0;
    for &give in &high.ranks {
        // The costs of both lists fall: the partner that moves half of the gap is further on for a cheaper item.
        let wanted = u128::from(sorted[give]).saturating_sub(gap / 2);
        while place < low.ranks.len() && u128::from(sorted[low.ranks[place]]) > wanted {
            place += 1;
        }
        for near in [place.checked_sub(1), Some(place)].into_iter().flatten() {
            if let Some(&take) = low.ranks.get(near) {
                consider(give, Some(take));
            }
        }
        if high.ranks.len() > low.ranks.len() {
            consider(give, None);
        }
    }
    best
}

fn apply(sorted: &[u64], bundles: &mut [Bundle], high: usize, low: usize, swap: Swap) {
    let given = u128::from(sorted[swap.give]);
    let taken = swap.take.map_or(0, |rank| u128::from(sorted[rank]));
    replace(&mut bundles[high].ranks, Some(swap.give), swap.take);
    replace(&mut bundles[low].ranks, swap.take, Some(swap.give));
    bundles[high].sum = bundles[high].sum - given + taken;
    bundles[low].sum = bundles[low].sum - taken + given;
}

/// Removes a rank, adds another, and keeps the order.
fn replace(ranks: &mut Vec<usize>, old: Option<usize>, new: Option<usize>) {
    ranks.retain(|&rank| Some(rank) != old);
    if let Some(new) = new {
        ranks.insert(ranks.partition_point(|&rank| rank < new), new);
    }
}

/// Numbers bundles in the order of their first items.
fn number_by_first(bundle_of: &[usize], bundles: usize) -> Vec<u32> {
    let mut numbers: Vec<Option<u32>> = vec![None; bundles];
    let mut next = 0;
    let mut number = |&bundle: &usize| {
        *numbers[bundle].get_or_insert_with(|| {
            next += 1;
            next - 1
        })
    };
    bundle_of.iter().map(&mut number).collect()
}

#[cfg(test)]
mod tests;
