//! What the disk is asked for: ahead of its use, and nothing beside it.

use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{Access, access};
use shardfmt::shard::{are_resident, populate, seem_resident, will_need};
use shardfmt::{Shard, ShardError};

use super::super::super::LoadError;
use super::super::super::clocks::On;
use super::super::units::{Met, Rows};
use super::{LARGE_ROW, ShardFiles};

/// Of shards that the memory does not hold, at most this many bytes are read ahead of its use, nor than this
/// part of the memory, which the loaders of this machine share.
const AHEAD: u64 = 64 << 20;
const AHEAD_OF_MEMORY: u64 = 8;

/// Nor more than this number of rows, which have to be planned first.
const ROWS_AHEAD: u64 = 32 << 10;

/// After how many windows it is looked again whether a shard is in memory.
const LOOK_EVERY: u64 = 64;

/// How many rows to know of ahead of those that are prepared, where the memory does not hold everything but has this room.
pub(super) fn horizon(room: u64, row_bytes: u64) -> u64 {
    (AHEAD.min(room / AHEAD_OF_MEMORY) / row_bytes.max(1)).clamp(1, ROWS_AHEAD)
}

impl ShardFiles {
    /// Finds out now and then which shards are in memory, if it has room for all of them.
    pub(super) fn look(&mut self, wanted: &[u32]) {
        for number in wanted.iter().filter(|_| self.fits) {
            let used = &mut self.used[*number as usize];
            if used.by_row
                && !used.is_resident
                && used.look_again <= self.window
                && let Some(shard) = &self.open.shards[*number as usize]
            {
                used.is_resident = are_resident(shard.bytes());
                used.look_again = self.window + LOOK_EVERY;
                if used.is_resident {
                    Arc::make_mut(&mut self.open.late).remove(*number);
                }
            }
        }
    }

    /// Has large rows of mapped shards that were opened read when they are gathered.
    pub(super) fn read_late(&mut self, opened: &[u32]) {
        for number in opened.iter().filter(|_| self.reads_late) {
            let row_bytes = self.stored[self.listed[*number as usize].0 as usize].row_bytes();
            let is_direct = self.direct.as_ref().is_some_and(|direct| direct.reads(*number));
            if let Some(shard) = &self.open.shards[*number as usize]
                && shard.path().is_some()
                && shard.heap_bytes() == 0
                && row_bytes >= LARGE_ROW
                && !is_direct
            {
                let (leaves_resident, late) = (self.leaves_resident, Arc::make_mut(&mut self.open.late));
                late.add(*number, shard, row_bytes, || leaves_resident && lies_in_memory(shard));
            }
        }
    }

    /// Has the rows of shards that were opened read past the page cache, unless they lie in it.
    pub(super) fn read_directly(&mut self, opened: &[u32]) {
        let Some(mut direct) = self.direct.take() else { return };
        for number in opened {
            if let Some(shard) = &self.open.shards[*number as usize]
                && self.used[*number as usize].by_row
                && shard.heap_bytes() == 0
                && self.is_plain(*number)
                && !(self.leaves_resident && lies_in_memory(shard))
            {
                direct.add(*number, shard);
            }
        }
        self.direct = Some(direct);
    }

    /// Has rows read that will be prepared later, if the memory does not hold everything; does not wait for them.
    pub(crate) fn expect(&mut self, epoch: u32, rows: impl Iterator<Item = (u32, u32)> + Clone) {
        if self.horizon == 0 && self.direct.is_none() {
            return;
        }
        let began = Instant::now();
        if let Some(direct) = &mut self.direct {
            direct.expect(rows.clone());
        }
        let mut asked = std::mem::take(&mut self.asked);
        self.ask_for(&self.units_of(&mut asked, epoch, rows));
        self.asked = asked;
        self.clocks.add(On::Disk, began.elapsed());
    }

    /// The units, not met before, of those rows that are read one by one and may not be in memory.
    pub(super) fn units_of(
        &self,
        met: &mut Met,
        epoch: u32,
        rows: impl Iterator<Item = (u32, u32)>,
    ) -> Vec<Rows> {
        let from_disk = rows.filter(|(number, _)| {
            let used = &self.used[*number as usize];
            let is_direct = || self.direct.as_ref().is_some_and(|direct| direct.reads(*number));
            // Alone, they are asked for when they are gathered.
            let is_late =
                || self.units[self.listed[*number as usize].0 as usize] == 1 && self.is_late(*number);
            used.by_row && !used.is_resident && self.open.has(*number) && !is_direct() && !is_late()
        });
        let first = |at: (u32, u32)| {
            let unit = self.units[self.listed[at.0 as usize].0 as usize];
            met.first(epoch, at, unit, self.entry(at.0).1.rows)
        };
        from_disk.filter_map(first).collect()
    }

    fn is_late(&self, number: u32) -> bool {
        self.open.late.of(number).is_some()
    }

    /// Has units read; does not wait for them.
    fn ask_for(&self, units: &[Rows]) {
        let memory = |(number, rows): &Rows| self.open.memory_of(*number, rows.clone());
        units.iter().flat_map(memory).for_each(will_need);
    }

    /// Has units read: all are asked for before any is waited for. Those of rows that are read late are only asked for.
    pub(super) fn read(&self, units: &[Rows]) -> Result<(), LoadError> {
        self.ask_for(units);
        for (number, rows) in units.iter().filter(|(number, _)| !self.is_late(*number)) {
            let failed = |source| ShardError::Io { shard: self.entry(*number).1.id.to_string(), source };
            self.open.memory_of(*number, rows.clone()).try_for_each(populate).map_err(failed)?;
        }
        Ok(())
    }
}

/// Whether a shard lies in the page cache, as it seems. Of files that this user may not change the kernel does not tell it.
fn lies_in_memory(shard: &Shard) -> bool {
    shard.path().is_some_and(|path| access(path, Access::WRITE_OK).is_ok()) && seem_resident(shard.bytes())
}
