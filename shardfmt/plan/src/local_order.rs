//! The order in which the samples of one partition are read in one epoch: a keyed permutation of all of them, or of
//! blocks and then within each block.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::key::{Tag, block_key, key};
use super::{Epoch, Order, Partition, Permutation, Plan};

impl Plan {
    pub(super) fn local_order(&self, epoch: Epoch, partition: Partition) -> LocalOrder {
        let (seed, samples) = (self.document.seed, self.rounds.size(partition));
        let Order::Blocked { slots } = self.document.order else {
            let key = key(seed, Tag::Samples, epoch.0, partition.0);
            return LocalOrder::Samples(Permutation::new(&key, samples));
        };
        let unit_rows = u64::from(self.document.grain_rows);
        let last = samples.div_ceil(unit_rows) - 1;
        let key = key(seed, Tag::Units, epoch.0, partition.0);
        let units = Permutation::new(&key, last + 1);
        let unit_start = units.invert(last) * unit_rows;
        LocalOrder::Blocked(Blocked {
            units,
            unit_rows,
            block_rows: unit_rows * u64::from(slots),
            hole: unit_start + (samples - last * unit_rows)..unit_start + unit_rows,
            last: Arc::default(),
            seed,
            epoch,
            partition,
        })
    }
}

/// The order in which the rows of one partition are read in one epoch.
#[derive(Clone, Debug)]
pub(super) enum LocalOrder {
    Samples(Permutation),
    Blocked(Blocked),
}

/// The permutation within the block met last.
pub(super) type LastBlock = Option<(u64, Permutation)>;

impl LocalOrder {
    /// The row read as the `j`-th.
    #[inline]
    pub(super) fn row(&self, j: u64, last: &mut LastBlock) -> u64 {
        match self {
            LocalOrder::Samples(permutation) => permutation.apply(j),
            LocalOrder::Blocked(blocked) => blocked.row(j, last),
        }
    }

    /// The kept part of the last block, if it is free just now.
    pub(super) fn last_block(&self) -> LastBlock {
        match self {
            LocalOrder::Samples(_) => None,
            LocalOrder::Blocked(blocked) => blocked.last.lock().expect("no panic while held").take(),
        }
    }

    /// Keeps it for who reads on: a step reads few rows of each partition, and making the permutation of a block takes longer than
    /// using it.
    pub(super) fn keep_block(&self, block: LastBlock) {
        if let LocalOrder::Blocked(blocked) = self {
            *blocked.last.lock().expect("no panic while held") = block;
        }
    }

    /// As which a row is read.
    pub(super) fn turn_of(&self, row: u64) -> u64 {
        match self {
            LocalOrder::Samples(permutation) => permutation.invert(row),
            LocalOrder::Blocked(blocked) => blocked.turn_of(row),
        }
    }
}

/// Units of one grain's rows are permuted and cut into blocks, whose rows are permuted. If the last unit is short, the
/// places its missing rows would have had are a hole: "wide" numbers count it, others do not.
#[derive(Clone, Debug)]
pub(super) struct Blocked {
    units: Permutation,
    unit_rows: u64,
    block_rows: u64,
    hole: Range<u64>,
    /// The permutation within the block met last, if it is free.
    last: Arc<Mutex<LastBlock>>,
    seed: u64,
    epoch: Epoch,
    partition: Partition,
}

impl Blocked {
    fn row(&self, j: u64, last: &mut LastBlock) -> u64 {
        let block = self.widen(j) / self.block_rows;
        let rows = self.rows_of(block);
        let permutation = match last {
            Some((of, permutation)) if *of == block => permutation,
            _ => &last.insert((block, self.within(block, &rows))).1,
        };
        let wide = self.widen(rows.start + permutation.apply(j - rows.start));
        self.units.apply(wide / self.unit_rows) * self.unit_rows + wide % self.unit_rows
    }

    fn turn_of(&self, row: u64) -> u64 {
        let wide = self.units.invert(row / self.unit_rows) * self.unit_rows + row % self.unit_rows;
        let block = wide / self.block_rows;
        let rows = self.rows_of(block);
        rows.start + self.within(block, &rows).invert(self.narrow(wide) - rows.start)
    }

    fn within(&self, block: u64, rows: &Range<u64>) -> Permutation {
        let key = block_key(self.seed, self.epoch.0, self.partition.0, block);
        Permutation::new(&key, rows.end - rows.start)
    }

    fn rows_of(&self, block: u64) -> Range<u64> {
        let end = (block + 1) * self.block_rows;
        self.narrow(block * self.block_rows)..self.narrow(end.min(self.units.len() * self.unit_rows))
    }

    fn widen(&self, j: u64) -> u64 {
        if j < self.hole.start { j } else { j + (self.hole.end - self.hole.start) }
    }

    fn narrow(&self, wide: u64) -> u64 {
        if wide < self.hole.end { wide } else { wide - (self.hole.end - self.hole.start) }
    }
}
