//! Equal shares of a step of a plan. Knows which virtual rank owns a position, not who asks.
//!
//! A stretch of whole rounds is owned in equal shares where V divides B and P/V is a power of two; anywhere else, and most of
//! all in the last rounds of an epoch, which only the larger partitions have, some virtual ranks own more of a step than
//! others. [`deal`](super::deal) evens that out; here it is done from counts, so that a rank works out its own share alone.

use std::ops::Range;

use super::deal::{deal, room};
use super::{Partition, Plan, Read, SlotTable, VirtualRank};

impl Plan {
    /// The reads of each of the virtual ranks `own`, of `virtual_ranks`, in the step of `positions`, by
    /// position. No two shares of the step differ by more than one sample. Positions past the end of the
    /// epoch are not read.
    ///
    /// Costs the reads, and min(positions, P); where a virtual rank of `own` owns too little, also what those
    /// own that own too much.
    ///
    /// # Panics
    /// If `own` has a virtual rank that is not below `virtual_ranks`.
    pub fn step_shares(
        &self,
        table: &SlotTable,
        positions: Range<u64>,
        virtual_ranks: u32,
        own: Range<u32>,
    ) -> Vec<Vec<Read>> {
        let step = self.within_epoch(positions);
        let owned = self.owned(&step, virtual_ranks);
        let room = room(&owned);
        let lacks = |v: u32| room[v as usize].saturating_sub(owned[v as usize]) as usize;
        let first = |v: u32| {
            let mut reads = self.step_reads(table, step.clone(), self.partitions_owned(v, virtual_ranks));
            reads.truncate(room[v as usize] as usize);
            reads
        };
        let mut shares: Vec<Vec<Read>> = own.clone().map(first).collect();
        if own.clone().all(|v| lacks(v) == 0) {
            return shares;
        }
        let surplus = self.surplus(&step, &owned, &room);
        let mut from: usize = (0..own.start).map(lacks).sum();
        for (share, v) in shares.iter_mut().zip(own) {
            let until = from + lacks(v);
            share.extend(surplus[from..until].iter().map(|position| self.read(table, *position)));
            share.sort_unstable_by_key(|read| read.position);
            from = until;
        }
        shares
    }

    /// The virtual rank, of `virtual_ranks`, that reads each position of the step of `positions`, in their order. Positions past
    /// the end of the epoch have none.
    pub fn step_readers(&self, positions: Range<u64>, virtual_ranks: u32) -> Vec<VirtualRank> {
        let owner = |position| self.virtual_rank_of(self.at_position(position).0, virtual_ranks).0;
        let owners: Vec<u32> = self.within_epoch(positions).map(owner).collect();
        deal(&owners, virtual_ranks).into_iter().map(VirtualRank).collect()
    }

    /// The same for one position of the step, in O(P).
    ///
    /// # Panics
    /// If `position` is not in the step, or past the end of the epoch.
    pub fn step_reader(&self, positions: Range<u64>, position: u64, virtual_ranks: u32) -> VirtualRank {
        let step = self.within_epoch(positions);
        assert!(step.contains(&position), "position {position} is not in the step {step:?}");
        let owner = self.virtual_rank_of(self.at_position(position).0, virtual_ranks);
        let owned = self.owned(&step, virtual_ranks);
        let (room, before) = (room(&owned), self.owned(&(step.start..position), virtual_ranks));
        if before[owner.0 as usize] < room[owner.0 as usize] {
            return owner;
        }
        let mut nth: u64 = before.iter().zip(&room).map(|(before, room)| before.saturating_sub(*room)).sum();
        for ((v, room), owned) in (0..).zip(&room).zip(&owned) {
            match nth.checked_sub(room.saturating_sub(*owned)) {
                None => return VirtualRank(v),
                Some(left) => nth = left,
            }
        }
        unreachable!("there is as much room as surplus")
    }

    fn within_epoch(&self, positions: Range<u64>) -> Range<u64> {
        let end = positions.end.min(self.sample_count());
        positions.start.min(end)..end
    }

    /// How many positions of a step each virtual rank owns.
    fn owned(&self, step: &Range<u64>, virtual_ranks: u32) -> Vec<u64> {
        let mut owned = vec![0; virtual_ranks as usize];
        let mut add = |partition, count| {
            owned[self.virtual_rank_of(partition, virtual_ranks).0 as usize] += count;
        };
        if step.end - step.start < u64::from(self.document().partitions) {
            step.clone().for_each(|position| add(self.at_position(position).0, 1));
        } else {
            self.partitions().for_each(|partition| {
                let visits = self.visits(partition, step);
                add(partition, visits.end - visits.start);
            });
        }
        owned
    }

    /// The positions that their owners have no room for, in order.
    fn surplus(&self, step: &Range<u64>, owned: &[u64], room: &[u64]) -> Vec<u64> {
        let virtual_ranks = owned.len() as u32;
        let mut surplus = Vec::new();
        for v in (0..virtual_ranks).filter(|v| owned[*v as usize] > room[*v as usize]) {
            let partitions = self.partitions_owned(v, virtual_ranks).map(Partition);
            let mut positions: Vec<u64> =
                partitions.flat_map(|m| self.visits(m, step).map(move |j| self.position_of(m, j))).collect();
            positions.sort_unstable();
            surplus.extend_from_slice(&positions[room[v as usize] as usize..]);
        }
        surplus.sort_unstable();
        surplus
    }

    /// The partitions whose [`virtual_rank_of`](Self::virtual_rank_of) is `v`, for V that do not divide P, too.
    fn partitions_owned(&self, v: u32, virtual_ranks: u32) -> Range<u32> {
        let partitions = u64::from(self.document().partitions);
        let bound = |v: u64| (v * partitions).div_ceil(u64::from(virtual_ranks)) as u32;
        bound(v.into())..bound(u64::from(v) + 1)
    }
}
