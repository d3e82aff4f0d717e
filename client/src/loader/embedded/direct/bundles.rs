//! How many rows are kept together, and what that takes. Pure: sizes in, sizes out.
//!
//! The memory of rows that are kept together is free again when the last of them was used. The rows that a part of a shard gives
//! are spread over a window of the order, so they are kept in bundles of rows that follow each other in it: with n bundles, a row
//! takes 1/n more memory than it needs. Each bundle costs a little by itself.

use super::blocks::PAGE;
use super::sweeps::Pick;

/// Into how many bundles the rows of a part go, if they are no smaller than they may be.
pub(super) const BUNDLES: u64 = 16;

/// How large a bundle is at most, and at least, if it has more than one row.
const MOST: u64 = (64 << 10) - BETWEEN;
const LEAST: u64 = 8 << 10;

/// The columns of a bundle begin at even addresses.
const BETWEEN: u64 = 128;

/// Some rows in a block of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bundle {
    /// How many.
    pub(super) rows: u64,
    /// The size of the block, in whole pages.
    pub(super) bytes: u64,
}

impl Bundle {
    /// For rows of this size on average, of which a part gives about `picked`.
    pub(super) fn new(row_bytes: u64, picked: u64) -> Self {
        let row_bytes = row_bytes.max(1);
        let bytes = (picked / BUNDLES).saturating_mul(row_bytes).clamp(LEAST, MOST).max(row_bytes);
        let bytes = (bytes + BETWEEN).next_multiple_of(PAGE);
        Self { rows: (bytes - BETWEEN) / row_bytes, bytes }
    }

    /// What some rows take at most that come from this number of parts.
    pub(super) fn bytes_of(&self, rows: u64, parts: u64) -> u64 {
        let fragments = parts.min(rows);
        ((rows - fragments).div_ceil(self.rows) + fragments) * self.bytes
    }

    /// What a row takes, in bundles that are full.
    pub(super) fn row_bytes(&self) -> u64 {
        self.bytes.div_ceil(self.rows)
    }

    /// The picks of each bundle. One that is not full is the first: it will be free again soon.
    pub(super) fn of<'p>(&self, picks: &'p [Pick]) -> impl Iterator<Item = &'p [Pick]> {
        let rows = usize::try_from(self.rows).unwrap_or(usize::MAX);
        let (first, rest) = picks.split_at(picks.len() % rows);
        (!first.is_empty()).then_some(first).into_iter().chain(rest.chunks(rows))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bundles_have_all_picks_in_their_order_and_take_what_was_foreseen(
            row_bytes in 1u64..100_000, picked in 0u64..100_000, parts in prop::collection::vec(0u64..500, 1..8),
        ) {
            let bundle = Bundle::new(row_bytes, picked);
            prop_assert!(bundle.rows > 0 && bundle.rows * row_bytes <= bundle.bytes - BETWEEN);
            prop_assert!(bundle.bytes.is_multiple_of(PAGE));
            prop_assert!(bundle.bytes <= MOST.max(row_bytes) + BETWEEN + PAGE);
            let mut taken = 0;
            for count in &parts {
                let picks: Vec<Pick> = (0..*count).map(|seq| Pick { seq, row: seq as u32 }).collect();
                let bundles: Vec<&[Pick]> = bundle.of(&picks).collect();
                prop_assert_eq!(&bundles.concat(), &picks);
                prop_assert!(bundles.iter().skip(1).all(|picks| picks.len() as u64 == bundle.rows));
                taken += bundles.len() as u64 * bundle.bytes;
            }
            prop_assert!(taken <= bundle.bytes_of(parts.iter().sum(), parts.len() as u64));
            prop_assert!(bundle.row_bytes() >= row_bytes);
        }
    }

    #[test]
    fn small_rows_share_a_bundle_and_few_do_not_fill_one() {
        assert_eq!(Bundle::new(3080, 350), Bundle { rows: 21, bytes: 64 << 10 });
        assert_eq!(Bundle::new(3080, 10), Bundle { rows: 3, bytes: 12 << 10 });
        assert_eq!(Bundle::new(30_000, 40), Bundle { rows: 2, bytes: 60 << 10 });
    }
}
