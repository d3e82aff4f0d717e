//! What every slot holds in one epoch, as a table: made once, advanced from epoch to epoch. Knows no samples' order.
//!
//! There are three equivalent kinds: computed, read from [bytes](super::SlotBytes) of another computation, or
//! empty, which traces each grain on request.

mod bytes;

use std::ops::Range;
use std::sync::OnceLock;

use rayon::prelude::*;

use super::local_order::LocalOrder;
use super::split::Split;
use super::{Epoch, Exchange, GrainNo, Partition, Plan};
use crate::digest::PlanId;

pub use bytes::{SlotBytes, SlotBytesError};

/// Grains from which on chunks are worked out side by side, by as many threads as there are.
const LARGE: u64 = 1 << 20;

/// The grain in every slot of every partition in one epoch: 4 bytes a grain (8 above 2^32 grains).
///
/// A pure function of the plan and the epoch, so it may be thrown away and made again at any time. It also keeps the
/// reading orders of the epoch as they are needed, which makes [`Plan::read`] and [`Plan::step_reads`] cheap.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// # let version = VersionId::of(b"a manifest");
/// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// # let plan = Plan::new(document, &shape.shard_rows)?;
/// use shardd_plan::{Epoch, GrainHome, Partition, SlotTable};
///
/// let mut table = SlotTable::initial(&plan);
/// table.advance(&plan);
/// assert_eq!(table.epoch(), Epoch(1));
///
/// let grain = table.grain(&plan, Partition(3), 0);
/// assert_eq!(plan.partition_of_grain_at(Epoch(1), grain), GrainHome::Slot(Partition(3), 0));
/// # Ok(())
/// # }
/// ```
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
    Read(SlotBytes),
    /// Nothing is held: the plan is asked.
    Traced,
}

impl SlotTable {
    /// The table of epoch 0.
    pub fn initial(plan: &Plan) -> Self {
        let slots = *plan.homes.slots();
        let mut held = Held::empty(plan);
        plan.homes.each(|full, (partition, slot)| {
            held.set(slots.start(partition) + slot, plan.grains.of_full(full));
        });
        SlotTable::of(plan, Epoch(0), held)
    }

    /// The table of `epoch`, advanced from that of epoch 0: O(everything moved before).
    pub fn at(plan: &Plan, epoch: Epoch) -> Self {
        let mut table = SlotTable::initial(plan);
        while table.epoch < epoch {
            table.advance(plan);
        }
        table
    }

    /// The table of `epoch` without anything in it: each grain is traced when it is asked for, O(how often it has moved), and
    /// remembered nowhere. There at once, and slow to read much of.
    pub fn traced(plan: &Plan, epoch: Epoch) -> Self {
        SlotTable::of(plan, epoch, Held::Traced)
    }

    /// The table that was computed before and kept. Where these bytes turn out to be damaged, grains are
    /// traced.
    ///
    /// # Panics
    /// If the bytes are of another plan.
    pub fn read(plan: &Plan, bytes: SlotBytes) -> Self {
        assert_eq!(bytes.plan(), plan.id(), "the table is of another plan");
        SlotTable::of(plan, bytes.epoch(), Held::Read(bytes))
    }

    fn of(plan: &Plan, epoch: Epoch, held: Held) -> Self {
        let orders = vec![OnceLock::new(); plan.document().partitions as usize];
        SlotTable { plan: plan.id(), epoch, slots: *plan.homes.slots(), held, orders }
    }

    /// Whether the table has been worked out, and takes the memory that it takes.
    pub fn is_worked_out(&self) -> bool {
        matches!(self.held, Held::Narrow(_) | Held::Wide(_))
    }

    /// Whether there is nothing in it, so that each grain is traced.
    pub fn is_traced(&self) -> bool {
        matches!(self.held, Held::Traced)
    }

    /// Whether it was read, and something in it found to be damaged.
    pub fn is_damaged(&self) -> bool {
        matches!(&self.held, Held::Read(bytes) if bytes.is_damaged())
    }

    /// Works out a table that is not: O(slots) for one that was read, O(slots x how often they have changed) else.
    ///
    /// # Panics
    /// If the table is of another plan.
    pub fn work_out(&mut self, plan: &Plan) {
        assert_eq!(self.plan, plan.id(), "the table is of another plan");
        if self.is_worked_out() {
            return;
        }
        let mut held = Held::empty(plan);
        for (partition, slot) in
            plan.partitions().flat_map(|m| (0..plan.slot_count(m)).map(move |slot| (m, slot)))
        {
            held.set(self.index((partition, slot)), self.grain(plan, partition, slot));
        }
        self.held = held;
    }

    /// How many slots it has, of all partitions.
    pub fn slot_count(&self) -> u64 {
        self.slots.total()
    }

    /// Appends the numbers of the grains in some slots, which are counted through all partitions, one after the other.
    pub(super) fn put(&self, plan: &Plan, slots: Range<u64>, bytes: &mut Vec<u8>) {
        let (range, end) = (slots.start as usize..slots.end as usize, bytes.len());
        match &self.held {
            Held::Narrow(grains) => {
                bytes.resize(end + range.len() * 4, 0);
                for (to, grain) in bytes[end..].as_chunks_mut::<4>().0.iter_mut().zip(&grains[range]) {
                    *to = grain.to_le_bytes();
                }
            }
            Held::Wide(grains) => {
                bytes.resize(end + range.len() * 8, 0);
                for (to, grain) in bytes[end..].as_chunks_mut::<8>().0.iter_mut().zip(&grains[range]) {
                    *to = grain.to_le_bytes();
                }
            }
            Held::Read(_) | Held::Traced => {
                let width = width(plan);
                for (partition, slot) in slots.map(|index| self.slots.find(index)) {
                    bytes.extend(&self.grain(plan, partition, slot).0.to_le_bytes()[..width]);
                }
            }
        }
    }

    /// Becomes the table of the next epoch: O(what moves).
    ///
    /// # Panics
    /// If the table is of another plan, or of the last epoch that has a number.
    pub fn advance(&mut self, plan: &Plan) {
        assert_eq!(self.plan, plan.id(), "the table is of another plan");
        let going_on = self.advance_while(plan, || true);
        debug_assert!(going_on, "there is no stop signal");
    }

    /// As [`advance`](Self::advance), as long as `goes_on` says so, which is asked now and then; whether it did to the end. If
    /// not, the table is of no epoch any more.
    ///
    /// # Panics
    /// As [`advance`](Self::advance).
    #[must_use = "a table that was given up half way is of no epoch"]
    pub fn advance_while(&mut self, plan: &Plan, goes_on: impl Fn() -> bool) -> bool {
        assert_eq!(self.plan, plan.id(), "the table is of another plan");
        assert!(self.epoch < self.epoch.next(), "no epoch after {}", self.epoch);
        self.work_out(plan);
        let exchange = plan.exchange(self.epoch);
        let chunks: Vec<u32> = (0..plan.document().chunks).collect();
        let are_long = plan.full_grain_count() >= LARGE;
        let abreast = if are_long { rayon::current_num_threads() } else { 1 };
        for chunks in chunks.chunks(abreast) {
            if !goes_on() {
                return false;
            }
            let arrivals: Vec<_> = match are_long {
                true => chunks.par_iter().map(|chunk| self.arrivals(plan, &exchange, *chunk)).collect(),
                false => chunks.iter().map(|chunk| self.arrivals(plan, &exchange, *chunk)).collect(),
            };
            // No slot is in two chunks, so writing some leaves the others to read.
            for (slot, grain) in arrivals.into_iter().flatten() {
                self.held.set(slot, grain);
            }
        }
        self.epoch = self.epoch.next();
        self.orders.iter_mut().for_each(|order| *order = OnceLock::new());
        true
    }

    /// Which slots a chunk fills, and with what.
    fn arrivals(&self, plan: &Plan, exchange: &Exchange<'_>, chunk: u32) -> Vec<(u64, GrainNo)> {
        exchange.moves(chunk).map(|m| (self.index(m.to), self.grain(plan, m.from.0, m.from.1))).collect()
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
    ///
    /// # Panics
    /// If the plan has no such slot. It may give the grain of another slot instead.
    #[inline]
    pub fn grain(&self, plan: &Plan, partition: Partition, slot: u64) -> GrainNo {
        debug_assert!(slot < self.slots.of(partition), "partition {partition} has no slot {slot}");
        let held = self.held.get(self.index((partition, slot)));
        held.unwrap_or_else(|| plan.grain_in_slot(self.epoch, partition, slot))
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
        slots
            .map(move |slot| self.grain(plan, partition, slot))
            .chain(plan.short_grains(partition).iter().copied())
    }

    /// The order in which a partition is read in this epoch.
    pub(super) fn order(&self, plan: &Plan, partition: Partition) -> &LocalOrder {
        debug_assert_eq!(self.plan, plan.id(), "the table is of another plan");
        self.orders[partition.0 as usize].get_or_init(|| plan.local_order(self.epoch, partition))
    }

    pub(super) fn index(&self, (partition, slot): (Partition, u64)) -> u64 {
        self.slots.start(partition) + slot
    }
}

impl Held {
    /// Room for the slots of a plan.
    fn empty(plan: &Plan) -> Self {
        let slots = plan.homes.slots().total() as usize;
        match width(plan) {
            4 => Held::Narrow(vec![0; slots]),
            _ => Held::Wide(vec![0; slots]),
        }
    }

    /// `None` where it is not known.
    #[inline]
    fn get(&self, slot: u64) -> Option<GrainNo> {
        match self {
            Held::Narrow(grains) => Some(GrainNo(grains[slot as usize].into())),
            Held::Wide(grains) => Some(GrainNo(grains[slot as usize])),
            Held::Read(bytes) => bytes.get(slot),
            Held::Traced => None,
        }
    }

    #[inline]
    fn set(&mut self, slot: u64, grain: GrainNo) {
        match self {
            Held::Narrow(grains) => grains[slot as usize] = grain.0 as u32,
            Held::Wide(grains) => grains[slot as usize] = grain.0,
            Held::Read(_) | Held::Traced => unreachable!("worked out before it is changed"),
        }
    }
}

/// Bytes that a grain's number takes.
pub(super) fn width(plan: &Plan) -> usize {
    if plan.grain_count() <= 1 << 32 { 4 } else { 8 }
}
