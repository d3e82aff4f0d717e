//! Which numbers of a block are whose. Pure.
//!
//! A block's trained numbers are cut at multiples of [`CHUNK`], so that whatever is computed chunk by chunk has the same bits wherever the cuts
//! are, and as evenly as that allows. Blocks begin with another rank each, so that small ones do not all go to the same.

use std::ops::Range;

use crate::collective::slice_of;
use crate::optim::CHUNK;

/// Ranks that share the numbers of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owners {
    /// How many.
    pub count: u32,
}

impl Owners {
    /// The part that the owner of this place keeps of `length` numbers of a block; perhaps nothing.
    ///
    /// # Panics
    /// If there are fewer owners.
    pub fn slice(self, block: usize, length: usize, place: u32) -> Range<usize> {
        let Owners { count } = self;
        assert!(place < count, "place {place} of {count}");
        let first = (block % count as usize) as u32;
        let turned = (place + count - first) % count;
        // Counted from the end: where there are fewer chunks than owners, the first ones have them.
        let chunks = slice_of(length.div_ceil(CHUNK), count - 1 - turned, count);
        let all = length.div_ceil(CHUNK);
        let bound = |chunk: usize| (chunk * CHUNK).min(length);
        bound(all - chunks.end)..bound(all - chunks.start)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_blocks_go_round() {
        let owner = |block| {
            let places = (0..3).filter(|&place| !Owners { count: 3 }.slice(block, 10, place).is_empty());
            places.collect::<Vec<_>>()
        };
        assert_eq!([0, 1, 2, 3].map(owner), [[0], [1], [2], [0]]);
    }

    proptest! {
        #[test]
        fn every_number_has_one_owner_and_no_owner_many_more(count in 1..20u32, block in 0..40usize, length in 0..100 * CHUNK) {
            let owners = Owners { count };
            let mut slices: Vec<_> = (0..count).map(|place| owners.slice(block, length, place)).collect();
            let most = slices.iter().map(ExactSizeIterator::len).max().unwrap();
            prop_assert!(most <= length.div_ceil(CHUNK).div_ceil(count as usize) * CHUNK);
            slices.retain(|slice| !slice.is_empty());
            slices.sort_by_key(|slice| slice.start);
            let mut next = 0;
            for slice in slices {
                prop_assert_eq!(slice.start, next);
                prop_assert!(slice.start.is_multiple_of(CHUNK));
                next = slice.end;
            }
            prop_assert_eq!(next, length);
        }
    }
}
