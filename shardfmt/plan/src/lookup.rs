//! Where one grain or sample is in any epoch, traced move by move without a slot table.
//!
//! With cyclic selection a trace jumps from one exchange of the slot to the next, O(epoch x Q) of them; with
//! independent selection it asks every epoch.

use super::{Epoch, GrainNo, Local, Partition, Plan, SampleNo, Selection};

/// Where a grain is in an epoch.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// # let version = VersionId::of(b"a manifest");
/// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// # let plan = Plan::new(document, &shape.shard_rows)?;
/// use shardd_plan::{Epoch, GrainHome, GrainNo};
///
/// match plan.partition_of_grain_at(Epoch(4), GrainNo(7)) {
///     GrainHome::Slot(partition, slot) => {
///         assert_eq!(plan.grain_in_slot(Epoch(4), partition, slot), GrainNo(7));
///     }
///     GrainHome::Short(partition) => assert!(plan.short_grains(partition).contains(&GrainNo(7))),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrainHome {
    /// In a slot of a partition.
    Slot(Partition, u64),
    /// A short grain, with its lasting partition.
    Short(Partition),
}

impl GrainHome {
    /// The partition that holds the grain.
    pub fn partition(self) -> Partition {
        match self {
            GrainHome::Slot(partition, _) | GrainHome::Short(partition) => partition,
        }
    }
}

impl Plan {
    /// Where a grain is in `epoch`.
    pub fn partition_of_grain_at(&self, epoch: Epoch, grain: GrainNo) -> GrainHome {
        let Some(full) = self.grains.full_index(grain) else {
            let before = self.grains.full_before_end(grain).saturating_sub(1);
            return GrainHome::Short(self.homes.slot_of(before).0);
        };
        let (mut partition, mut slot) = self.homes.slot_of(full);
        let mut now = Epoch(0);
        while let Some((next, turn)) = self.leaves(partition, slot, now, epoch) {
            (partition, slot) = self.destination(next, (partition, slot), turn);
            now = next.next();
        }
        GrainHome::Slot(partition, slot)
    }

    /// The grain that is in a slot in `epoch`.
    ///
    /// # Panics
    /// If the partition has no such slot.
    pub fn grain_in_slot(&self, epoch: Epoch, partition: Partition, slot: u64) -> GrainNo {
        assert!(slot < self.slot_count(partition), "partition {partition} has no slot {slot}");
        let (mut partition, mut slot, mut now) = (partition, slot, epoch);
        while let Some((last, turn)) = self.arrived(partition, slot, now) {
            (partition, slot) = self.source(last, (partition, slot), turn);
            now = last;
        }
        self.grains.of_full(self.homes.full_in(partition, slot))
    }

    /// The sample at `position` of `epoch`.
    pub fn sample_at(&self, epoch: Epoch, position: u64) -> SampleNo {
        let (partition, j) = self.at_position(position);
        match self.local(epoch, partition, j) {
            Local::Slot { slot, row } => self.sample(self.grain_in_slot(epoch, partition, slot), row),
            Local::Short { grain, row } => self.sample(grain, row),
        }
    }

    /// The position in `epoch` at which a sample is read.
    pub fn position_of_sample(&self, epoch: Epoch, sample: SampleNo) -> u64 {
        let grain_rows = u64::from(self.document.grain_rows);
        let (grain, row) = self.grain_of(sample);
        let home = self.partition_of_grain_at(epoch, grain);
        let partition = home.partition();
        let first = match home {
            GrainHome::Slot(_, slot) => slot * grain_rows,
            GrainHome::Short(_) => {
                self.slot_count(partition) * grain_rows + self.homes.short_rows_before(partition, grain)
            }
        };
        let j = self.local_order(epoch, partition).turn_of(first + u64::from(row));
        self.position_of(partition, j)
    }

    /// The first exchange in `from..until` that takes the slot, and its turn in it.
    fn leaves(&self, partition: Partition, slot: u64, from: Epoch, until: Epoch) -> Option<(Epoch, u64)> {
        match self.document.selection {
            Selection::Cyclic => self.next_turn(partition, slot, from).filter(|(epoch, _)| *epoch < until),
            Selection::Independent => (from.0..until.0)
                .find_map(|epoch| Some((Epoch(epoch), self.drawn_turn(Epoch(epoch), partition, slot)?))),
        }
    }

    /// The last exchange before `before` that filled the slot, and its turn in it.
    fn arrived(&self, partition: Partition, slot: u64, before: Epoch) -> Option<(Epoch, u64)> {
        match self.document.selection {
            Selection::Cyclic => self.last_turn(partition, slot, before),
            Selection::Independent => (0..before.0)
                .rev()
                .find_map(|epoch| Some((Epoch(epoch), self.drawn_turn(Epoch(epoch), partition, slot)?))),
        }
    }
}
