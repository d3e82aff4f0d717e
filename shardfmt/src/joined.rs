//! Ranges that are read together: the closest of them joined, where what lies between is little beside all that is wanted.
//! A request for each would be dear; all of a shard between them would be read in vain. Pure.

use std::ops::Range;

/// Of what is wanted, one part in this number may be read beside it to save requests.
pub const SPARE: u64 = 50;

/// Ascending ranges that do not overlap, in any unit, the closest of them joined; empty ones are left out.
///
/// ```
/// use shardfmt::joined::joined;
///
/// assert_eq!(joined(&[0..100, 101..200, 900..1000]), [0..200, 900..1000]);
/// ```
#[must_use]
pub fn joined(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let ranges: Vec<&Range<u64>> = ranges.iter().filter(|range| !range.is_empty()).collect();
    let mut gaps: Vec<(u64, usize)> = (1..)
        .zip(ranges.windows(2))
        .map(|(at, pair)| (pair[1].start.saturating_sub(pair[0].end), at))
        .collect();
    gaps.sort_unstable();
    let mut spare = ranges.iter().map(|range| range.end - range.start).sum::<u64>() / SPARE;
    let mut is_joined = vec![false; ranges.len()];
    for (gap, at) in gaps {
        let Some(left) = spare.checked_sub(gap) else { break };
        spare = left;
        is_joined[at] = true;
    }
    let mut reads: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for (range, is_joined) in ranges.into_iter().zip(is_joined) {
        match reads.last_mut().filter(|_| is_joined) {
            Some(last) => last.end = range.end,
            None => reads.push(range.clone()),
        }
    }
    reads
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_range_is_in_a_read_and_little_else_is(
            steps in prop::collection::vec((0u64..5000, 0u64..3000), 1..100),
        ) {
            let mut end = 0;
            let ranges: Vec<Range<u64>> = steps
                .into_iter()
                .map(|(gap, length)| {
                    let start = end + gap;
                    end = start + length;
                    start..end
                })
                .collect();
            let reads = joined(&ranges);
            let bytes = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum::<u64>();
            prop_assert!(bytes(&reads) <= bytes(&ranges) + bytes(&ranges) / SPARE);
            prop_assert!(reads.is_sorted_by(|one, other| one.end <= other.start));
            for range in ranges.iter().filter(|range| !range.is_empty()) {
                prop_assert!(reads.iter().any(|read| read.start <= range.start && range.end <= read.end));
            }
        }
    }
}
