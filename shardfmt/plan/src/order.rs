//! In what order samples are read: within a partition by a keyed permutation, across partitions round by round.
//! Knows which slot or short grain a sample of a partition lies in, and takes a slot table for what the slot holds.

use std::ops::Range;

use super::{Epoch, GrainNo, Partition, Plan, SlotTable};

/// A row of a partition: in one of its slots, or in one of its short grains.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// # let version = VersionId::of(b"a manifest");
/// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// # let plan = Plan::new(document, &shape.shard_rows)?;
/// use shardd_plan::{Epoch, Local, Partition};
///
/// let grain = match plan.local(Epoch(2), Partition(1), 0) {
///     Local::Slot { slot, .. } => plan.grain_in_slot(Epoch(2), Partition(1), slot),
///     Local::Short { grain, .. } => grain,
/// };
/// assert_eq!(plan.partition_of_grain_at(Epoch(2), grain).partition(), Partition(1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Local {
    /// In the grain that is in a slot in this epoch.
    Slot {
        /// Which slot of the partition.
        slot: u64,
        /// Which row of the grain.
        row: u32,
    },
    /// In a grain that never moves.
    Short {
        /// Which grain.
        grain: GrainNo,
        /// Which row of it.
        row: u32,
    },
}

/// One sample to read.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// # let version = VersionId::of(b"a manifest");
/// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// # let plan = Plan::new(document, &shape.shard_rows)?;
/// use shardd_plan::{Epoch, SlotTable};
///
/// let table = SlotTable::at(&plan, Epoch(2));
/// let read = plan.read(&table, 17);
/// assert_eq!(plan.sample(read.grain, read.row), plan.sample_at(Epoch(2), 17));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Read {
    /// Its position in the epoch.
    pub position: u64,
    /// The partition that holds it in this epoch.
    pub partition: Partition,
    /// The grain it lies in.
    pub grain: GrainNo,
    /// Its row in the grain.
    pub row: u32,
}

impl Plan {
    /// The partition read at `position`, and how many of its samples were read before.
    pub fn at_position(&self, position: u64) -> (Partition, u64) {
        self.rounds.at(position)
    }

    /// The position at which sample `j` (in reading order) of `partition` is read.
    pub fn position_of(&self, partition: Partition, j: u64) -> u64 {
        self.rounds.position(self.known(partition), j)
    }

    /// Which row of a partition is read as its `j`-th in `epoch`.
    pub fn local(&self, epoch: Epoch, partition: Partition, j: u64) -> Local {
        let row = self.local_order(epoch, self.known(partition)).row(j, &mut None);
        self.locate_local(partition, row)
    }

    /// The sample read at `position` of the table's epoch.
    pub fn read(&self, table: &SlotTable, position: u64) -> Read {
        let (partition, j) = self.at_position(position);
        let order = table.order(self, partition);
        let mut block = order.last_block();
        let row = order.row(j, &mut block);
        order.keep_block(block);
        self.resolve(table, position, partition, row)
    }

    /// Which of its samples, in reading order, a partition has at positions of the epoch.
    pub(super) fn visits(&self, partition: Partition, positions: &Range<u64>) -> Range<u64> {
        let before = |position| self.rounds.visits_before(partition, position);
        before(positions.start)..before(positions.end)
    }

    /// What `partitions` have at some positions, by position: the owners' part of a step, of which
    /// [`step_shares`](Self::step_shares) gives their reads. Costs as much as is read.
    /// Positions past the end of the epoch and partitions past the last are not read.
    pub fn step_reads(&self, table: &SlotTable, positions: Range<u64>, partitions: Range<u32>) -> Vec<Read> {
        let end = positions.end.min(self.sample_count());
        let start = positions.start.min(end);
        let mut reads = vec![];
        for partition in (partitions.start..partitions.end.min(self.document.partitions)).map(Partition) {
            let visits = self.visits(partition, &(start..end));
            if visits.is_empty() {
                continue;
            }
            let order = table.order(self, partition);
            let mut block = order.last_block();
            reads.extend(visits.map(|j| {
                let row = order.row(j, &mut block);
                self.resolve(table, self.rounds.position(partition, j), partition, row)
            }));
            order.keep_block(block);
        }
        reads.sort_unstable_by_key(|read| read.position);
        reads
    }

    fn resolve(&self, table: &SlotTable, position: u64, partition: Partition, row: u64) -> Read {
        let (grain, row) = match self.locate_local(partition, row) {
            Local::Slot { slot, row } => (table.grain(self, partition, slot), row),
            Local::Short { grain, row } => (grain, row),
        };
        Read { position, partition, grain, row }
    }

    /// Rows of a partition are numbered slot by slot, then short grain by short grain.
    fn locate_local(&self, partition: Partition, row: u64) -> Local {
        let grain_rows = u64::from(self.document.grain_rows);
        let in_slots = self.slot_count(partition) * grain_rows;
        if row < in_slots {
            return Local::Slot { slot: row / grain_rows, row: (row % grain_rows) as u32 };
        }
        let (grain, row) = self.homes.short_at(partition, row - in_slots);
        Local::Short { grain, row }
    }
}
