//! Where one shard ends and the next begins, and which rows it holds. Pure: numbers in, numbers out.

use std::ops::Range;

use shardfmt::size::ByteSize;

const SMALLEST_DEFAULT: u64 = 1 << 20;
const LARGEST_DEFAULT: u64 = 64 << 20;
/// The default is this part of the data, so that a plan can spread even a small dataset over many partitions.
const SHARDS_AT_LEAST: u64 = 64;
/// Shards count their rows in 32 bits.
const MOST_ROWS: u64 = 1 << 31;

/// How the rows of an ingest are cut into shards of equal row counts. The last may be shorter; or, where rows are dealt
/// to shards, the first have one more; or, where keys decide, counts are equal in the mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The size aimed at, recorded as configuration.
    pub(super) size: ByteSize,
    rows: u64,
    rows_per_shard: u64,
    filling: Filling,
}

/// Which rows a shard gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filling {
    /// As many as any other, and the last the rest.
    InTurn,
    /// Dealt one by one: the first shards have one more.
    Dealt,
    /// Those whose keys lie in its part of their range.
    ByKey,
}

impl Cut {
    /// Cuts `rows` rows of `bytes` canonical bytes in all, by their mean size.
    ///
    /// Row counts are rounded down to a power of two that costs at most a sixteenth of the size: grains, which are
    /// powers of two of rows, then fit without a short one at the end.
    pub(crate) fn new(rows: u64, bytes: u64, wanted: Option<ByteSize>) -> Cut {
        let default = (bytes / SHARDS_AT_LEAST).clamp(SMALLEST_DEFAULT, LARGEST_DEFAULT);
        let size = wanted.unwrap_or(ByteSize(default));
        let fitting = u128::from(size.0) * u128::from(rows) / u128::from(bytes.max(1));
        if fitting >= u128::from(rows) && rows <= MOST_ROWS {
            return Cut { size, rows, rows_per_shard: rows.max(1), filling: Filling::InTurn };
        }
        let fitting = u64::try_from(fitting).unwrap_or(u64::MAX).clamp(1, MOST_ROWS);
        let step = if fitting < 16 { 1 } else { 1 << (fitting / 16).ilog2().min(12) };
        let shards = rows.div_ceil(fitting - fitting % step);
        let rows_per_shard = rows.div_ceil(shards).next_multiple_of(step);
        Cut { size, rows, rows_per_shard, filling: Filling::InTurn }
    }

    /// The same shards, filled by dealing rows to them in turn.
    pub(super) fn dealt(self) -> Cut {
        Cut { filling: Filling::Dealt, ..self }
    }

    /// The same shards, filled with the rows whose keys lie in equal parts of the range of keys.
    pub(super) fn by_key(self) -> Cut {
        Cut { filling: Filling::ByKey, ..self }
    }

    pub(crate) fn shard_count(&self) -> usize {
        usize::try_from(self.rows.div_ceil(self.rows_per_shard))
            .expect("as many as the manifest lists in memory")
    }

    /// The key that distinguishes cuts of the same rows.
    pub(super) fn rows_per_shard(&self) -> u64 {
        self.rows_per_shard
    }

    /// The keys of all rows of the shards up to `index`, and of no others, are below this; `None` if counts decide.
    pub(super) fn keys_below(&self, index: usize) -> Option<u128> {
        let end = (index as u128 + 1) << 64;
        (self.filling == Filling::ByKey).then(|| end.div_ceil(self.shard_count() as u128))
    }

    /// The positions, in mixed order, of the rows of shard `index`, if counts decide.
    pub(crate) fn positions(&self, index: usize) -> Range<u64> {
        if self.filling == Filling::Dealt {
            let (shards, index) = (self.shard_count() as u64, index as u64);
            let start = |index: u64| index * (self.rows / shards) + index.min(self.rows % shards);
            return start(index)..start(index + 1);
        }
        let start = index as u64 * self.rows_per_shard;
        start..(start + self.rows_per_shard).min(self.rows)
    }
}

/// The shard of a key among this number of shards that are filled by key.
pub(super) fn shard_of_key(key: u64, shards: u64) -> u64 {
    ((u128::from(key) * u128::from(shards)) >> 64) as u64
}

/// The rows of each shard that an ingest makes of `rows` rows of `bytes` canonical bytes in all with the
/// default sizes, in manifest order.
///
/// ```
/// use shardd_ingest::default_shard_rows;
///
/// let shards = default_shard_rows(60_000, 60_000 * 785);
/// assert_eq!(shards.iter().sum::<u32>(), 60_000);
/// assert!(shards.len() > 1);
/// ```
pub fn default_shard_rows(rows: u64, bytes: u64) -> Vec<u32> {
    let cut = Cut::new(rows, bytes, None);
    let rows_of = |index| {
        let positions = cut.positions(index);
        u32::try_from(positions.end - positions.start).expect("shards count their rows in 32 bits")
    };
    (0..cut.shard_count()).map(rows_of).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shards_cover_all_rows_once_and_are_equal(rows in 1..5_000u64, row_bytes in 1..100_000u64, size in prop::option::of(1..4_000_000u64)) {
            let cut = Cut::new(rows, rows * row_bytes, size.map(ByteSize));
            let mut next = 0;
            let equal = cut.positions(0).end;
            for index in 0..cut.shard_count() {
                let positions = cut.positions(index);
                prop_assert_eq!(positions.start, next);
                prop_assert!(!positions.is_empty());
                let last = index + 1 == cut.shard_count();
                prop_assert!(last || positions.end - positions.start == equal);
                prop_assert!(positions.end - positions.start <= equal);
                next = positions.end;
            }
            prop_assert_eq!(next, rows);
            prop_assert!(equal == 1 || equal * row_bytes <= cut.size.0);
        }
    }

    proptest! {
        #[test]
        fn dealt_shards_differ_by_one(rows in 1..5_000u64, size in 1..400_000u64) {
            let cut = Cut::new(rows, rows * 100, Some(ByteSize(size))).dealt();
            let sizes: Vec<u64> = (0..cut.shard_count()).map(|index| cut.positions(index)).map(|positions| positions.end - positions.start).collect();
            prop_assert_eq!(sizes.iter().sum::<u64>(), rows);
            prop_assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes[0] - sizes[sizes.len() - 1] <= 1);
        }
    }

    proptest! {
        #[test]
        fn a_key_is_below_the_end_of_its_shard_alone(key: u64, rows in 1..5_000u64, size in 1..400_000u64) {
            let cut = Cut::new(rows, rows * 100, Some(ByteSize(size))).by_key();
            let shards = cut.shard_count();
            let shard = shard_of_key(key, shards as u64) as usize;
            prop_assert!(u128::from(key) < cut.keys_below(shard).unwrap());
            prop_assert!(shard == 0 || u128::from(key) >= cut.keys_below(shard - 1).unwrap());
            prop_assert_eq!(cut.keys_below(shards - 1), Some(1 << 64));
        }
    }

    #[test]
    fn by_default_there_are_at_least_64_shards_of_1_to_64_mib() {
        let size = |bytes: u64| Cut::new(1 << 30, bytes, None).size.0;
        assert_eq!(size(1000), 1 << 20);
        assert_eq!(size(1 << 30), 16 << 20);
        assert_eq!(size(1 << 40), 64 << 20);
    }

    #[test]
    fn what_fits_one_shard_is_one_shard() {
        assert_eq!(Cut::new(1437, 1437 * 80, None).shard_count(), 1);
        assert_eq!(Cut::new(1, 1 << 40, None).shard_count(), 1);
    }

    #[test]
    fn row_counts_are_kind_to_grains() {
        let cut = Cut::new(50_000, 50_000 * 940, None);
        assert_eq!(cut.positions(0).end % 64, 0);
    }
}
