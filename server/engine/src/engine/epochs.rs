//! What the plan says about one epoch, worked out once and shared: where every grain is, and when it leaves.
//!
//! Pure but for the memory it keeps: the last few epochs' tables.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use shardd_plan::{Epoch, GrainNo, NextMove, Partition, Plan, SlotTable};

/// One epoch's contents of every partition, and the way back from a grain to its partition.
#[derive(Debug)]
pub(crate) struct EpochView {
    /// Which grain is in which slot.
    pub(crate) table: SlotTable,
    /// For each grain number its partition.
    partition_of: Vec<u32>,
    /// For each grain number its slot, `NO_SLOT` for the short grains that never move.
    slot_of: Vec<u32>,
}

const NO_SLOT: u32 = u32::MAX;

/// A grain that stays on a node for this number of moves is not followed further.
const MOVES_FOLLOWED: usize = 8;

impl EpochView {
    fn new(plan: &Plan, table: SlotTable) -> Self {
        let grains = usize::try_from(plan.grain_count()).expect("grain numbers fit in memory");
        let mut partition_of = vec![0; grains];
        let mut slot_of = vec![NO_SLOT; grains];
        for partition in 0..plan.document().partitions {
            let slots = plan.slot_count(Partition(partition));
            for (slot, grain) in (0u64..).zip(table.grains_of(plan, Partition(partition))) {
                partition_of[grain.0 as usize] = partition;
                if slot < slots {
                    slot_of[grain.0 as usize] =
                        u32::try_from(slot).expect("fewer than 2^32 slots a partition");
                }
            }
        }
        Self { table, partition_of, slot_of }
    }

    /// The partition that holds `grain` in this epoch.
    pub(crate) fn partition_of(&self, grain: GrainNo) -> u32 {
        self.partition_of[grain.0 as usize]
    }

    /// The first epoch after which `grain` leaves its partition; `u32::MAX` if the plan does not say.
    pub(crate) fn departs(&self, plan: &Plan, grain: GrainNo) -> u32 {
        let Some((partition, slot)) = self.slot(grain) else { return u32::MAX };
        plan.departure(partition, slot, self.table.epoch()).map_or(u32::MAX, |epoch| epoch.0)
    }

    /// How `grain` next moves to a partition that is not one of those that `is_here`: none if the plan does not say, or only
    /// after it has moved so often among these that it is not followed.
    pub(crate) fn leaves(
        &self,
        plan: &Plan,
        grain: GrainNo,
        is_here: impl Fn(Partition) -> bool,
    ) -> Option<NextMove> {
        let (mut at, mut from) = (self.slot(grain)?, self.table.epoch());
        for _ in 0..MOVES_FOLLOWED {
            let next = plan.next_move(at.0, at.1, from)?;
            if !is_here(next.to.0) {
                return Some(next);
            }
            (at, from) = (next.to, next.epoch.next());
        }
        None
    }

    fn slot(&self, grain: GrainNo) -> Option<(Partition, u64)> {
        let slot = self.slot_of[grain.0 as usize];
        (slot != NO_SLOT).then(|| (Partition(self.partition_of(grain)), u64::from(slot)))
    }
}

/// The views of the epochs in use, made on demand and dropped oldest first.
#[derive(Debug)]
pub(crate) struct Epochs {
    plan: Arc<Plan>,
    views: Mutex<BTreeMap<u32, Arc<EpochView>>>,
}

/// The previous, the present and the next epoch, and one more for ranks that are ahead.
const KEPT: usize = 4;

impl Epochs {
    /// No view is made yet.
    pub(crate) fn new(plan: Arc<Plan>) -> Self {
        Self { plan, views: Mutex::default() }
    }

    /// The view of `epoch`: from the epoch before if that is here, which costs what moved; else from the start.
    pub(crate) fn view(&self, epoch: u32) -> Arc<EpochView> {
        let mut views = self.views.lock().expect("no panic while held");
        if let Some(view) = views.get(&epoch) {
            return Arc::clone(view);
        }
        let before = epoch.checked_sub(1).and_then(|before| views.get(&before));
        let table = match before {
            Some(before) => {
                let mut table = before.table.clone();
                table.advance(&self.plan);
                table
            }
            None => SlotTable::at(&self.plan, Epoch(epoch)),
        };
        let view = Arc::new(EpochView::new(&self.plan, table));
        views.insert(epoch, Arc::clone(&view));
        while views.len() > KEPT {
            let far = views.keys().copied().max_by_key(|e| e.abs_diff(epoch)).expect("not empty");
            views.remove(&far);
        }
        view
    }
}
