//! In what units rows are read from a disk that is asked for them one by one: each row by itself if it is large, or if the order goes
//! here and there in all that there is; whole grains if the order stays among few of them for a while (`blocked`), so that
//! the rest of a grain is used soon after its first row.

use std::collections::HashMap;
use std::ops::Range;

/// Consecutive rows of a shard, by its number.
pub(super) type Rows = (u32, Range<u32>);

/// Which units have been met. Each row is met once in an epoch, more or less, so a unit is forgotten when as many were met as it
/// has; and the rest of an epoch, when the next one begins.
#[derive(Debug, Default)]
pub(super) struct Met {
    epoch: u32,
    /// Of a unit, by its shard and first row, how many rows are still to be met.
    left: HashMap<(u32, u32), u32>,
}

impl Met {
    /// The unit of a row, of `unit` rows in a shard that has `rows`, if this is the first row that is met of it.
    pub(super) fn first(
        &mut self,
        epoch: u32,
        (shard, row): (u32, u32),
        unit: u32,
        rows: u32,
    ) -> Option<Rows> {
        if unit <= 1 {
            return Some((shard, row..row + 1));
        }
        if epoch != self.epoch {
            self.left.clear();
            self.epoch = epoch;
        }
        let start = row / unit * unit;
        let end = start.saturating_add(unit).min(rows);
        match self.left.get_mut(&(shard, start)) {
            Some(1) => {
                self.left.remove(&(shard, start));
                None
            }
            Some(left) => {
                *left -= 1;
                None
            }
            None => {
                if end - start > 1 {
                    self.left.insert((shard, start), end - start - 1);
                }
                Some((shard, start..end))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_unit_is_read_once_in_an_epoch_and_nothing_is_remembered_after_it(
            unit in 1u32..9, rows in prop::collection::vec(1u32..40, 1..4), seed in any::<u64>(),
        ) {
            let mut all: Vec<(u32, u32)> =
                (0u32..).zip(&rows).flat_map(|(shard, rows)| (0..*rows).map(move |row| (shard, row))).collect();
            let mut met = Met::default();
            for epoch in 0..3 {
                all.sort_by_key(|(shard, row)| (u64::from(*shard) << 32 | u64::from(*row) ^ seed).wrapping_mul(seed | 1).rotate_left(epoch + 7));
                let read: Vec<Rows> =
                    all.iter().filter_map(|at| met.first(epoch, *at, unit, rows[at.0 as usize])).collect();
                let mut each: Vec<(u32, u32)> =
                    read.iter().flat_map(|(shard, rows)| rows.clone().map(|row| (*shard, row))).collect();
                each.sort_unstable();
                let mut expected = all.clone();
                expected.sort_unstable();
                prop_assert_eq!(each, expected);
                prop_assert!(met.left.is_empty());
            }
        }
    }

    #[test]
    fn what_an_epoch_leaves_is_read_again_in_the_next() {
        let mut met = Met::default();
        assert_eq!(met.first(0, (3, 5), 4, 100), Some((3, 4..8)));
        assert_eq!(met.first(0, (3, 6), 4, 100), None);
        assert_eq!(met.first(1, (3, 6), 4, 100), Some((3, 4..8)));
        assert_eq!(met.first(1, (3, 99), 8, 100), Some((3, 96..100)));
    }
}
