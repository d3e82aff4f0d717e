//! What every slot holds in one epoch, as a table: made once, advanced from epoch to epoch. Knows no samples' order.

use std::sync::OnceLock;

use rayon::prelude::*;

use super::order::LocalOrder;
use super::split::Split;
use super::{Epoch, Exchange, GrainNo, Partition, Plan};
use crate::digest::PlanId;

/// Grains from which on chunks are worked out side by side, by as many threads as there are.
const LARGE: u64 = 1 << 20;

/// The grain in every slot of every partition in one epoch: 4 bytes a grain (8 above 2^32 grains).
///
/// A pure function of the plan and the epoch, so it may be thrown away and made again at any time. It also keeps the
/// reading orders of the epoch as they are needed, which makes [`Plan::read`] and [`Plan::step_reads`] cheap.
#[derive(Clone, Debug)]
pub struct SlotTable {
    plan: PlanId,
    epoch: Epoch,
    slots: Split,
    held: Held,
    orders: Vec<OnceLock<LocalOrder>>,
}

#[derive(Clone, Debug)]
enum Held {
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

impl SlotTable {
    /// The table of epoch 0.
    pub fn initial(plan: &Plan) -> Self {
        let slots = *plan.homes.slots();
        let mut held = if plan.grain_count() <= 1 << 32 {
            Held::Narrow(vec![0; slots.total() as usize])
        } else {
            Held::Wide(vec![0; slots.total() as usize])
        };
        plan.homes.each(|full, (partition, slot)| {
            held.set(slots.start(partition) + slot, plan.grains.of_full(full));
        });
        let orders = vec![OnceLock::new(); plan.document().partitions as usize];
        SlotTable { plan: plan.id(), epoch: Epoch(0), slots, held, orders }
    }

    /// The table of `epoch`, advanced from that of epoch 0: O(everything moved before).
    pub fn at(plan: &Plan, epoch: Epoch) -> Self {
        let mut table = SlotTable::initial(plan);
        while table.epoch < epoch {
            table.advance(plan);
        }
        table
    }

    /// Becomes the table of the next epoch: O(what moves).
    ///
    /// # Panics
    /// If the table is of another plan, or of the last epoch that has a number.
    pub fn advance(&mut self, plan: &Plan) {
        assert_eq!(self.plan, plan.id(), "the table is of another plan");
        assert!(self.epoch < self.epoch.next(), "no epoch after {}", self.epoch);
        let exchange = plan.exchange(self.epoch);
        let chunks: Vec<u32> = (0..plan.document().chunks).collect();
        let are_long = plan.full_grain_count() >= LARGE;
        let abreast = if are_long { rayon::current_num_threads() } else { 1 };
        for chunks in chunks.chunks(abreast) {
            let arrivals: Vec<_> = match are_long {
                true => chunks.par_iter().map(|chunk| self.arrivals(&exchange, *chunk)).collect(),
                false => chunks.iter().map(|chunk| self.arrivals(&exchange, *chunk)).collect(),
            };
            // No slot is in two chunks, so writing some leaves the others to read.
            for (slot, grain) in arrivals.into_iter().flatten() {
                self.held.set(slot, grain);
            }
        }
        self.epoch = self.epoch.next();
        self.orders.iter_mut().for_each(|order| *order = OnceLock::new());
    }

    /// Which slots a chunk fills, and with what.
    fn arrivals(&self, exchange: &Exchange<'_>, chunk: u32) -> Vec<(u64, GrainNo)> {
        exchange.moves(chunk).map(|m| (self.index(m.to), self.grain(m.from.0, m.from.1))).collect()
    }

    /// The epoch whose slots these are.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The plan whose slots these are.
    pub fn plan_id(&self) -> PlanId {
        self.plan
    }

    /// The grain in a slot.
    #[inline]
    pub fn grain(&self, partition: Partition, slot: u64) -> GrainNo {
        debug_assert!(slot < self.slots.of(partition), "partition {partition} has no slot {slot}");
        self.held.get(self.index((partition, slot)))
    }

    /// The grains a partition holds: those in its slots, in order, then its short ones.
    ///
    /// # Panics
    /// If the plan has no such partition.
    pub fn grains_of<'t>(
        &'t self,
        plan: &'t Plan,
        partition: Partition,
    ) -> impl Iterator<Item = GrainNo> + 't {
        let slots = 0..plan.slot_count(partition);
        slots.map(move |slot| self.grain(partition, slot)).chain(plan.short_grains(partition).iter().copied())
    }

    /// The order in which a partition is read in this epoch.
    pub(super) fn order(&self, plan: &Plan, partition: Partition) -> &LocalOrder {
        debug_assert_eq!(self.plan, plan.id(), "the table is of another plan");
        self.orders[partition.0 as usize].get_or_init(|| plan.local_order(self.epoch, partition))
    }

    fn index(&self, (partition, slot): (Partition, u64)) -> u64 {
        self.slots.start(partition) + slot
    }
}

impl Held {
    #[inline]
    fn get(&self, slot: u64) -> GrainNo {
        match self {
            Held::Narrow(grains) => GrainNo(grains[slot as usize].into()),
            Held::Wide(grains) => GrainNo(grains[slot as usize]),
        }
    }

    #[inline]
    fn set(&mut self, slot: u64, grain: GrainNo) {
        match self {
            Held::Narrow(grains) => grains[slot as usize] = grain.0 as u32,
            Held::Wide(grains) => grains[slot as usize] = grain.0,
        }
    }
}
