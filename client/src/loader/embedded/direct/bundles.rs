//! How many rows are kept together, and what that takes. Pure: sizes in, sizes out.
//!
//! The memory of rows that are kept together is free again when the last of them was used. The rows that a part of a shard gives
//! are spread over a window of the order, so they are kept in bundles of rows that follow each other in it: with n bundles, a row
//! takes 1/n more memory than it needs. Each bundle costs a little by itself.

use super::blocks::{ALIGNMENT, PAGE};
use super::sweeps::Pick;

/// Into how many bundles the rows of a part go, if they are no smaller than they may be.
pub(super) const BUNDLES: u64 = 16;

/// How large a bundle is at most, and at least, unless two rows take more.
const MOST: u64 = (64 << 10) - BETWEEN;
const LEAST: u64 = 8 << 10;

/// The columns of a bundle begin at even addresses.
const BETWEEN: u64 = 128;

/// A bundle has at most this many times as many rows as it has room for of the average size: some values lie elsewhere, and do
/// not fill it.
const MOST_ROWS: u64 = 2;

/// Some rows in a block of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bundle {
    /// How many of the average size, at least 2.
    pub(super) rows: u64,
    /// The size of the block, in whole pages.
    pub(super) bytes: u64,
}

impl Bundle {
    /// For rows of this size on average, of which a part gives about `picked`.
    pub(super) fn new(row_bytes: u64, picked: u64) -> Self {
        let row_bytes = row_bytes.max(1);
        let bytes = (picked / BUNDLES).saturating_mul(row_bytes).clamp(LEAST, MOST);
        // A block of one row would have no room for a larger one.
        let bytes = bytes.max(row_bytes.saturating_mul(2));
        let bytes = (bytes + BETWEEN).next_multiple_of(PAGE);
        Self { rows: (bytes - BETWEEN) / row_bytes, bytes }
    }

    /// About what some rows take that come from this number of parts: of rows of many sizes, half of one does not fit any more.
    pub(super) fn bytes_of(&self, rows: u64, parts: u64) -> u64 {
        let fragments = parts.min(rows);
        ((2 * (rows - fragments)).div_ceil(2 * self.rows - 1) + fragments) * self.bytes
    }

    /// What a row takes, in bundles that are full.
    pub(super) fn row_bytes(&self) -> u64 {
        self.bytes.div_ceil(self.rows)
    }

    /// The picks of each bundle. One that is not full is the first: it will be free again soon. `sizes` has the bytes of each
    /// column of a row.
    pub(super) fn of<'p, S: Iterator<Item = u64>>(
        &self,
        picks: &'p [Pick],
        sizes: impl Fn(&Pick) -> S,
    ) -> Vec<Filled<'p>> {
        let (mut bundles, mut end, mut columns) = (Vec::new(), picks.len(), Columns::default());
        let mut bytes = 0;
        for (at, pick) in picks.iter().enumerate().rev() {
            columns.add(sizes(pick));
            let rows = (end - at - 1) as u64;
            if rows > 0 && (columns.bytes() > self.bytes || rows >= MOST_ROWS * self.rows) {
                bundles.push(Filled { picks: &picks[at + 1..end], bytes });
                end = at + 1;
                columns.0.clear();
                columns.add(sizes(pick));
            }
            bytes = columns.bytes();
        }
        if end > 0 {
            bundles.push(Filled { picks: &picks[..end], bytes });
        }
        bundles.reverse();
        bundles
    }
}

/// The picks of a bundle, at least one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Filled<'p> {
    pub(super) picks: &'p [Pick],
    /// What they take, more than the size of the block only if it is a single one.
    pub(super) bytes: u64,
}

/// How many bytes some rows have in each column.
#[derive(Debug, Default)]
struct Columns(Vec<u64>);

impl Columns {
    fn add(&mut self, row: impl Iterator<Item = u64>) {
        for (column, bytes) in row.enumerate() {
            match self.0.get_mut(column) {
                Some(before) => *before += bytes,
                None => self.0.push(bytes),
            }
        }
    }

    /// What they take, each from an even address on.
    fn bytes(&self) -> u64 {
        self.0.iter().map(|bytes| bytes.next_multiple_of(ALIGNMENT as u64)).sum()
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
            prop_assert!(bundle.rows >= 2 && bundle.rows * row_bytes <= bundle.bytes - BETWEEN);
            prop_assert!(bundle.bytes.is_multiple_of(PAGE));
            prop_assert!(bundle.bytes <= MOST.max(2 * row_bytes) + BETWEEN + PAGE);
            let mut taken = 0;
            for count in &parts {
                let picks: Vec<Pick> = (0..*count).map(|seq| Pick { seq, row: seq as u32 }).collect();
                let bundles = bundle.of(&picks, |_| [row_bytes / 3, row_bytes - row_bytes / 3].into_iter());
                prop_assert_eq!(&bundles.iter().map(|filled| filled.picks).collect::<Vec<_>>().concat(), &picks);
                prop_assert!(bundles.iter().skip(1).all(|filled| filled.picks.len() as u64 >= bundle.rows));
                taken += bundles.len() as u64 * bundle.bytes;
            }
            prop_assert!(taken <= bundle.bytes_of(parts.iter().sum(), parts.len() as u64));
            prop_assert!(bundle.row_bytes() >= row_bytes);
        }

        /// Rows of half to one and a half times the average size.
        #[test]
        fn rows_of_many_sizes_fill_their_blocks_and_do_not_overflow_them(
            row_bytes in 64u64..40_000, picked in 0u64..20_000, halves in prop::collection::vec(0u64..=1000, 100..400),
        ) {
            let bundle = Bundle::new(row_bytes, picked);
            let size = |half: u64| row_bytes / 2 + row_bytes * half / 1000;
            let picks: Vec<Pick> = (0..halves.len()).map(|at| Pick { seq: at as u64, row: at as u32 }).collect();
            let bundles = bundle.of(&picks, |pick| [8, size(halves[pick.row as usize])].into_iter());
            prop_assert_eq!(&bundles.iter().map(|filled| filled.picks).collect::<Vec<_>>().concat(), &picks);
            for two in bundles.windows(2) {
                let (before, after) = (two[0].picks, &two[1]);
                prop_assert!(after.bytes <= bundle.bytes);
                let next = size(halves[before[before.len() - 1].row as usize]);
                let is_full = after.bytes + next + 8 + 2 * ALIGNMENT as u64 > bundle.bytes;
                prop_assert!(is_full || after.picks.len() as u64 == MOST_ROWS * bundle.rows, "as many as fit");
            }
        }
    }

    #[test]
    fn a_row_that_is_larger_than_a_block_is_by_itself_and_values_that_lie_elsewhere_are_bounded() {
        let bundle = Bundle { rows: 4, bytes: 4096 };
        let picks: Vec<Pick> = (0..9).map(|seq| Pick { seq, row: seq as u32 }).collect();
        let sizes = [1000u64, 900, 5000, 1100, 1000, 1000, 900, 2100, 30];
        let bundles = bundle.of(&picks, |pick| std::iter::once(sizes[pick.seq as usize]));
        let found: Vec<_> = bundles.iter().map(|filled| (filled.picks.len(), filled.bytes)).collect();
        assert_eq!(found, [(2, 1920), (1, 5056), (2, 2112), (4, 4032)]);
        let empty: Vec<_> =
            bundle.of(&picks, |_| std::iter::empty()).iter().map(|filled| filled.picks.len()).collect();
        assert_eq!(empty, [1, 8]);
        assert_eq!(bundle.of(&[], |_| std::iter::once(1)), []);
    }

    #[test]
    fn small_rows_share_a_bundle_and_few_do_not_fill_one() {
        assert_eq!(Bundle::new(3080, 350), Bundle { rows: 21, bytes: 64 << 10 });
        assert_eq!(Bundle::new(3080, 10), Bundle { rows: 3, bytes: 12 << 10 });
        assert_eq!(Bundle::new(30_000, 40), Bundle { rows: 2, bytes: 60 << 10 });
        assert_eq!(Bundle::new(12_000, 1), Bundle { rows: 2, bytes: 24 << 10 });
    }
}
