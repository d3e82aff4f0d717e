//! Slots of the partitions, and what they hold in epoch 0. Knows nothing of epochs after that.

use super::grains::Grains;
use super::key::{Tag, key};
use super::{GrainNo, InitialPlacement, Partition, Permutation, PlanDocument};

/// Consecutive numbers dealt to partitions in order: `large` to each of the first `larger`, `small` to the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub(crate) partitions: u64,
    pub(crate) larger: u64,
    pub(crate) large: u64,
    pub(crate) small: u64,
}

impl Split {
    /// As equal as can be.
    fn even(total: u64, partitions: u64) -> Self {
        let small = total / partitions;
        Split { partitions, larger: total % partitions, large: small + 1, small }
    }

    /// 0 for the first kind of partition, 1 for the second.
    pub(crate) fn class(&self, partition: Partition) -> usize {
        usize::from(u64::from(partition.0) >= self.larger)
    }

    pub(crate) fn of(&self, partition: Partition) -> u64 {
        [self.large, self.small][self.class(partition)]
    }

    pub(crate) fn start(&self, partition: Partition) -> u64 {
        let m = u64::from(partition.0);
        debug_assert!(m <= self.partitions);
        m.min(self.larger) * self.large + m.saturating_sub(self.larger) * self.small
    }

    pub(crate) fn total(&self) -> u64 {
        self.larger * self.large + (self.partitions - self.larger) * self.small
    }

    /// Whose `number` is, and which of its own.
    pub(crate) fn find(&self, number: u64) -> (Partition, u64) {
        let first = self.larger * self.large;
        if number < first {
            return (Partition((number / self.large) as u32), number % self.large);
        }
        let rest = number - first;
        (Partition((self.larger + rest / self.small) as u32), rest % self.small)
    }
}

/// Where every grain is in epoch 0: the full ones in slots, the short ones beside them for ever.
#[derive(Clone, Debug)]
pub(crate) struct Homes {
    slots: Split,
    placement: Placement,
    shorts: Shorts,
}

#[derive(Clone, Debug)]
enum Placement {
    /// `first[i]` is the first full grain of range i, which lies in `partition[i]`; `range` is the inverse.
    Shards {
        first: Vec<u64>,
        partition: Vec<u32>,
        range: Vec<u32>,
    },
    Random(Permutation),
}

/// Short grains of all partitions: `grain[start[m]..start[m + 1]]` are those of m.
#[derive(Clone, Debug)]
struct Shorts {
    start: Vec<usize>,
    grain: Vec<GrainNo>,
    /// Rows of the short grains of the same partition up to and including this one.
    rows_through: Vec<u64>,
}

impl Homes {
    pub(crate) fn new(document: &PlanDocument, grains: &Grains) -> Self {
        let partitions = u64::from(document.partitions);
        let slots = Split::even(grains.full_count(), partitions);
        let placement = match document.placement {
            InitialPlacement::Shards => {
                let rho = Permutation::new(&key(document.seed, Tag::Ranges, 0, 0), partitions);
                let partition: Vec<u32> = (0..partitions).map(|i| rho.apply(i) as u32).collect();
                let range = (0..partitions).map(|m| rho.invert(m) as u32).collect();
                let sizes = partition.iter().map(|m| slots.of(Partition(*m)));
                let first = sizes.scan(0, |next, size| Some(std::mem::replace(next, *next + size))).collect();
                Placement::Shards { first, partition, range }
            }
            InitialPlacement::Random => {
                Placement::Random(Permutation::new(&key(document.seed, Tag::Grains, 0, 0), slots.total()))
            }
        };
        let shorts = Shorts { start: vec![0; partitions as usize + 1], grain: vec![], rows_through: vec![] };
        let mut homes = Homes { slots, placement, shorts };
        homes.settle_shorts(grains);
        homes
    }

    /// A short grain stays where the last full grain before it begins, so that it is filled with its neighbours.
    fn settle_shorts(&mut self, grains: &Grains) {
        let mut settled: Vec<_> = grains
            .short_grains()
            .map(|(grain, rows, full_before)| (self.slot_of(full_before.saturating_sub(1)).0, grain, rows))
            .collect();
        settled.sort_unstable();
        let mut rows_through = 0;
        for (at, (partition, grain, rows)) in settled.iter().enumerate() {
            let is_first = at == 0 || settled[at - 1].0 != *partition;
            rows_through = u64::from(*rows) + if is_first { 0 } else { rows_through };
            self.shorts.start[partition.0 as usize + 1] += 1;
            self.shorts.grain.push(*grain);
            self.shorts.rows_through.push(rows_through);
        }
        for m in 1..self.shorts.start.len() {
            self.shorts.start[m] += self.shorts.start[m - 1];
        }
    }

    pub(crate) fn slots(&self) -> &Split {
        &self.slots
    }

    /// The full grain that a slot holds in epoch 0.
    pub(crate) fn full_in(&self, partition: Partition, slot: u64) -> u64 {
        match &self.placement {
            Placement::Shards { first, range, .. } => first[range[partition.0 as usize] as usize] + slot,
            Placement::Random(permutation) => permutation.apply(self.slots.start(partition) + slot),
        }
    }

    /// The slot that holds a full grain in epoch 0.
    pub(crate) fn slot_of(&self, full: u64) -> (Partition, u64) {
        match &self.placement {
            Placement::Shards { first, partition, .. } => {
                let range = first.partition_point(|start| *start <= full) - 1;
                (Partition(partition[range]), full - first[range])
            }
            Placement::Random(permutation) => self.slots.find(permutation.invert(full)),
        }
    }

    pub(crate) fn shorts_of(&self, partition: Partition) -> &[GrainNo] {
        let m = partition.0 as usize;
        &self.shorts.grain[self.shorts.start[m]..self.shorts.start[m + 1]]
    }

    pub(crate) fn short_rows(&self, partition: Partition) -> u64 {
        self.rows_through(partition).last().copied().unwrap_or(0)
    }

    fn rows_through(&self, partition: Partition) -> &[u64] {
        let m = partition.0 as usize;
        &self.shorts.rows_through[self.shorts.start[m]..self.shorts.start[m + 1]]
    }

    /// The short grain, and the row in it, of row `row` of all short grains of a partition.
    pub(crate) fn short_at(&self, partition: Partition, row: u64) -> (GrainNo, u32) {
        let through = self.rows_through(partition);
        let at = through.partition_point(|end| *end <= row);
        let before = if at == 0 { 0 } else { through[at - 1] };
        (self.shorts_of(partition)[at], (row - before) as u32)
    }

    /// Rows of the partition's short grains before `grain`, one of them.
    pub(crate) fn short_rows_before(&self, partition: Partition, grain: GrainNo) -> u64 {
        let at = self.shorts_of(partition).partition_point(|other| *other < grain);
        if at == 0 { 0 } else { self.rows_through(partition)[at - 1] }
    }
}
