//! Numbers dealt to partitions like cards, each partition's then numbered on from those of the one before.
//! Does not know the numbered things.

use super::Partition;

/// How many of some numbers each partition has: `large` the `larger` partitions from `first` on (partition 0 follows the
/// last), the others `small`, one less. Partition `first` comes first, and has the lowest numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub(crate) partitions: u64,
    pub(crate) first: u64,
    pub(crate) larger: u64,
    pub(crate) large: u64,
    pub(crate) small: u64,
}

impl Split {
    /// `total` numbers dealt one by one, the first to the partition that follows when `before` were dealt already.
    pub(crate) fn dealt(before: u64, total: u64, partitions: u64) -> Self {
        let small = total / partitions;
        Split { partitions, first: before % partitions, larger: total % partitions, large: small + 1, small }
    }

    /// How many partitions come before this one.
    #[inline]
    fn place(&self, partition: Partition) -> u64 {
        let m = u64::from(partition.0);
        debug_assert!(m < self.partitions);
        if m >= self.first { m - self.first } else { m + self.partitions - self.first }
    }

    fn at_place(&self, place: u64) -> Partition {
        let m = place + self.first;
        Partition(if m >= self.partitions { m - self.partitions } else { m } as u32)
    }

    /// 0 for the partitions with the larger number, 1 for the others.
    pub(crate) fn class(&self, partition: Partition) -> usize {
        usize::from(self.place(partition) >= self.larger)
    }

    pub(crate) fn of(&self, partition: Partition) -> u64 {
        [self.large, self.small][self.class(partition)]
    }

    /// The lowest number of a partition.
    pub(crate) fn start(&self, partition: Partition) -> u64 {
        let place = self.place(partition);
        place.min(self.larger) * self.large + place.saturating_sub(self.larger) * self.small
    }

    pub(crate) fn total(&self) -> u64 {
        self.larger * self.large + (self.partitions - self.larger) * self.small
    }

    /// Whose `number` is, and which of its own.
    pub(crate) fn find(&self, number: u64) -> (Partition, u64) {
        let first = self.larger * self.large;
        if number < first {
            return (self.at_place(number / self.large), number % self.large);
        }
        let rest = number - first;
        (self.at_place(self.larger + rest / self.small), rest % self.small)
    }

    /// As which number, from 0, the partition was dealt its own number `nth`.
    pub(crate) fn dealt_as(&self, partition: Partition, nth: u64) -> u64 {
        self.place(partition) + nth * self.partitions
    }
}
