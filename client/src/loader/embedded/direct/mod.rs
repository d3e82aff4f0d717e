//! Rows of shards that the memory does not hold, read past the page cache into memory of the loader's own.
//!
//! The kernel finds memory for the pages of a file one by one, in the thread that asks, and keeps those it read last, which a
//! shuffled order uses last. The order says which rows come next: these are read by many threads at once, or picked from
//! sweeps over all shards, whichever is faster on this disk ([`way`]), and kept until they are used. All that is kept stays
//! within a budget, but for the rows that a reader waits for. Where the file system gives nothing past its cache, rows are
//! read through it.
//!
//! # What can be had
//!
//! Of D bytes in an order that is random, with M bytes of memory for rows, a disk gives at most the largest of these, where it
//! reads S bytes a second from begin to end and R in single rows:
//!
//! - R, by reading each row alone;
//! - 2 M/D x S, by sweeps. A turn of a shard brings its rows of the next W bytes of the order. They are used one by one until its
//!   next turn, so half of them are in memory on average, of all shards W/2: a pass over D gives W = 2 M. Turns of all shards
//!   are equally far apart: memory that one shard has more than another saves fewer reads of it than it costs of the other. Nor
//!   does it help to keep a part f of the shards for good: the rest is read (1 - f)^2 / 2 (m - f) times, m = M/D, which is least at
//!   f = 0 for m < 1/2.
//!
//! No record batch can be skipped unless W is a few rows of each. The first pass gives half as much as the others, for it begins
//! with nothing in memory: the rows of its time are read alone, of fewer and fewer shards. All this holds if all wait for the
//! disk. So a part is read into huge pages, a row costs a copy and two entries in lists that are used in order, and threads that
//! read parts do nothing else.

mod ahead;
mod blocks;
mod bundles;
mod probe;
mod sweeps;
#[cfg(test)]
mod tests;
mod way;
mod workers;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use shardfmt::Shard;
use shardfmt::row::RowEncoder;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::super::LoadError;
use super::memory::{for_rows, room};
use ahead::{Ahead, Key};
use blocks::{HUGE, PAGE};
use bundles::Bundle;
use sweeps::{Pick, Sweeps, Turn};
use way::{Data, Disk, choose};
pub(super) use way::{Way, is_much_too_large, is_too_large};
pub(super) use workers::Kept;
use workers::{Done, Job, Meter, Sizes, Workers};

/// Whether rows of this size are kept here until they are used. Larger ones are read into their batch, when it is
/// [gathered](super::super::late).
pub(super) fn is_small(row_bytes: u64) -> bool {
    row_bytes < SMALL_ROW
}

const SMALL_ROW: u64 = 32 << 10;

/// Rows that are read at once: small ones keep a disk busy only if there are many.
const ROWS_AT_ONCE: usize = 48;

/// How much of a shard is read in a piece, and how many pieces at once; of little memory they take no more than this part.
const PART: u64 = 4 << 20;
const PARTS_AT_ONCE: u64 = 3;
const PARTS_OF_MEMORY: u64 = 8;

/// Rows are read by themselves no further ahead than this, nor than this part of the memory.
const AHEAD: u64 = 64 << 20;
const AHEAD_OF_MEMORY: u64 = 4;

/// Memory of dropped rows that is kept for the next, since the kernel fills a fresh page with zeros first; of little memory no
/// more than this part.
const FREE: u64 = 4 << 20;
const FREE_OF_MEMORY: u64 = 16;

/// With how many shards a disk is measured.
const MEASURED: usize = 6;

/// Parts are given to the threads while they have fewer than this to do.
const PARTS_WAITING: u64 = 4 * PARTS_AT_ONCE;

/// A row that is read alone takes this much more memory than it has bytes: it is read in whole pages.
const PAGES: u64 = 8 << 10;

/// Nor are more rows than this read ahead by themselves.
const ROWS_AHEAD: u64 = 32 << 10;

/// After how many windows the memory is looked at again, and how often while it is filled.
const LOOK_AGAIN: u32 = 64;
const LOOKS_WHILE_FILLING: u64 = 16;

/// How often a wait looks whether the loader was closed.
const LOOK: Duration = Duration::from_millis(500);

/// Rows that were made ready for a window, by their shards and their numbers there.
pub(super) type Own = HashMap<Key, (Arc<Kept>, u32), BuildHasherDefault<KeyHasher>>;

/// Spreads keys, which are small numbers of our own, in a few instructions.
#[derive(Debug, Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = self.0.rotate_left(32) ^ u64::from(number);
    }

    fn finish(&self) -> u64 {
        let product = u128::from(self.0) * 0x9E37_79B9_7F4A_7C15;
        product as u64 ^ (product >> 64) as u64
    }
}

/// Where a row lies that was made ready.
#[inline]
pub(super) fn place<'a>(own: &'a Own, key: &Key) -> Option<(&'a RowEncoder, usize)> {
    own.get(key).map(|(kept, row)| (&kept.encoder, *row as usize))
}

/// Reads rows ahead of their use. One thread uses it.
pub(super) struct Direct {
    data: Data,
    /// What rows that are kept may take, in bytes: at most, and as it seems now, since others take memory, too.
    most: u64,
    budget: u64,
    /// What they took when the memory was last looked at, and how many windows ago that was.
    looked_at: (u64, u32),
    part_bytes: u64,
    bundle: Bundle,
    workers: Workers,
    meter: Arc<Meter>,
    stop: CancellationToken,
    /// The shards that are read so, by their numbers.
    shards: Vec<Option<Arc<Shard>>>,
    /// The rows that were announced or asked for, and not made ready.
    rows: Ahead<(Arc<Kept>, u32)>,
    /// How many of them a reader waits for.
    waiting: u64,
    /// The horizon that was last asked for: who knows all that it asks for knows that more rows may come.
    horizon: u64,
    reading: Reading,
    /// Parts on their way.
    parts_coming: u64,
    /// Some row was not the announced one, which was logged.
    is_out_of_order: bool,
}

/// How rows are read ahead.
enum Reading {
    /// The disk is being measured, or about to be: only rows that are waited for are read.
    Undecided {
        is_measuring: bool,
    },
    /// Each by itself: those before this place were asked for.
    Rows {
        next: u64,
    },
    Sweeps {
        sweeps: Sweeps,
        parts: VecDeque<Job>,
    },
    /// The file system gives nothing past its cache.
    Impossible,
}

impl Reading {
    /// Reading those rows that were not taken.
    fn in_way<T>(way: Way, data: &Data, rows: &Ahead<T>) -> Self {
        match way {
            Way::Rows => Self::Rows { next: rows.taken() },
            Way::Sweeps { window } => {
                let mut sweeps = Sweeps::new(data.shards as usize, window, rows.taken());
                for seq in rows.taken()..rows.known() {
                    let (number, row) = rows.key(seq).expect("was announced and not taken");
                    sweeps.expect(number, Pick { seq, row });
                }
                Self::Sweeps { sweeps, parts: VecDeque::new() }
            }
        }
    }
}

/// What all shards have together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Totals {
    pub(super) bytes: u64,
    pub(super) row_bytes: u64,
    pub(super) rows: u64,
    pub(super) shards: usize,
}

impl Direct {
    /// With this much memory for rows that are kept. The disk is measured to find the best way, if none is given.
    pub(super) fn new(
        totals: Totals,
        memory: u64,
        way: Option<Way>,
        stop: CancellationToken,
    ) -> Result<Self, LoadError> {
        let Totals { bytes, row_bytes, rows, shards } = totals;
        let row_bytes = row_bytes.max(1);
        let part_bytes = match PART.min(memory / PARTS_OF_MEMORY / PARTS_AT_ONCE) {
            large @ HUGE.. => large / HUGE * HUGE,
            small => small.next_multiple_of(PAGE).max(PAGE),
        };
        // A window has at least as many rows as the memory.
        let of_part = u128::from(memory / row_bytes) * u128::from(part_bytes) / u128::from(bytes.max(1));
        let bundle = Bundle::new(row_bytes, u64::try_from(of_part).unwrap_or(u64::MAX));
        let shards = shards.max(1);
        let data = Data {
            bytes,
            row_bytes,
            kept_bytes: bundle.row_bytes(),
            rows: rows.max(1),
            shards: shards as u64,
        };
        let free = FREE.min(memory / FREE_OF_MEMORY);
        let most = memory.saturating_sub(part_bytes * PARTS_AT_ONCE + free);
        let meter = Arc::new(Meter::default());
        let rows = Ahead::default();
        let reading =
            way.map_or(Reading::Undecided { is_measuring: false }, |way| Reading::in_way(way, &data, &rows));
        let sizes = Sizes {
            rows_at_once: ROWS_AT_ONCE,
            parts_at_once: PARTS_AT_ONCE as usize,
            part_bytes,
            bundle,
            memory,
            free,
            row_bytes,
        };
        let workers = Workers::start(sizes, Arc::clone(&meter))?;
        workers.limit(most);
        Ok(Self {
            data,
            most,
            budget: most,
            looked_at: (0, 0),
            part_bytes,
            bundle,
            workers,
            meter,
            stop,
            shards: vec![None; shards],
            rows,
            waiting: 0,
            horizon: 0,
            reading,
            parts_coming: 0,
            is_out_of_order: false,
        })
    }

    /// Reads rows of this shard from now on. Its values are of one size or bytes, and it is neither compressed nor in
    /// memory.
    pub(super) fn add(&mut self, number: u32, shard: &Arc<Shard>) {
        if !matches!(self.reading, Reading::Impossible) {
            self.workers.know(number, shard);
            self.shards[number as usize] = Some(Arc::clone(shard));
        }
    }

    /// Reads no more rows of this shard.
    pub(super) fn remove(&mut self, number: u32) {
        self.shards[number as usize] = None;
        self.workers.forget(number);
    }

    /// What rows take that are in memory, or on their way there.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.meter.bytes()
    }

    /// Whether it reads rows of this shard.
    pub(super) fn reads(&self, number: u32) -> bool {
        self.shards[number as usize].is_some()
    }

    /// How many rows it wants to know of beyond those that are made ready. Few at first: knowing takes a while.
    pub(super) fn horizon(&mut self) -> u64 {
        let alone = AHEAD.min(self.budget / AHEAD_OF_MEMORY) / (self.data.row_bytes + PAGES);
        let (alone, taken) = (alone.clamp(1, ROWS_AHEAD), self.rows.taken());
        self.horizon = match &self.reading {
            Reading::Sweeps { sweeps, .. } => sweeps.horizon(taken, alone.max(2 * taken)),
            _ => alone,
        };
        self.horizon
    }

    /// Rows that will be made ready after all that were announced before. Does not wait for them.
    pub(super) fn expect(&mut self, rows: impl Iterator<Item = Key>) {
        for key in rows {
            self.announce(key);
        }
        // More may follow, up to the horizon: a turn that began now would pick those of its window that are known so far.
        if let Reading::Rows { .. } = self.reading {
            self.read_ahead();
        }
    }

    fn announce(&mut self, key: Key) {
        let seq = self.rows.announce(key);
        if let Reading::Sweeps { sweeps, .. } = &mut self.reading {
            sweeps.expect(key.0, Pick { seq, row: key.1 });
        }
    }

    /// Makes ready those of the rows that are of shards which it [reads](Self::reads); blocks until they are. Rows come in
    /// the order in which they were announced; others that were not may follow if no more were.
    pub(super) fn prepare(&mut self, rows: impl Iterator<Item = Key>) -> Result<Own, LoadError> {
        let start = self.rows.taken();
        let mut end = start;
        for key in rows {
            if end == self.rows.known() {
                self.announce(key);
            }
            if self.rows.key(end) != Some(key) && !std::mem::replace(&mut self.is_out_of_order, true) {
                warn!(row = end, announced = ?self.rows.key(end), asked_for = ?key,
                      "rows are read in another order than was announced: such rows come through the page \
                      cache, slowly; please report this");
            }
            end += 1;
        }
        self.waiting = end - start;
        self.looked_at.1 += 1;
        self.measure();
        let (mut at, mut done) = (start, self.workers.take_done());
        loop {
            for done in done {
                self.receive(done)?;
            }
            self.read_ahead();
            while at < end && self.is_ready(at) {
                at += 1;
            }
            if at == end {
                break;
            }
            if !self.rows.is_asked_for(at) && !self.comes_with_sweeps(at) {
                self.read_alone(at..end);
            }
            if self.stop.is_cancelled() {
                return Err(LoadError::Stopped);
            }
            done = self.workers.await_done(LOOK);
        }
        self.waiting = 0;
        let taken = self.rows.take(end - start);
        let mut own = Own::with_capacity_and_hasher((end - start) as usize, BuildHasherDefault::default());
        own.extend(taken.filter_map(|(key, place)| Some((key, place?))));
        Ok(own)
    }

    /// The place behind the rows that were taken, or are waited for.
    fn asked_for(&self) -> u64 {
        self.rows.taken() + self.waiting
    }

    /// Whether a row is here, or not to be read.
    fn is_ready(&self, seq: u64) -> bool {
        self.rows.is_here(seq) || self.rows.key(seq).is_none_or(|(number, _)| !self.reads(number))
    }

    /// Whether a turn will pick the row, and turns are so far and under way that it will soon.
    fn comes_with_sweeps(&self, seq: u64) -> bool {
        let (Reading::Sweeps { sweeps, .. }, Some((number, _))) = (&self.reading, self.rows.key(seq)) else {
            return false;
        };
        sweeps.are_round() && self.parts_coming > 0 && sweeps.is_pending(number, seq)
    }

    /// Whether there is memory for this many bytes more.
    fn has_room(&mut self, more: u64) -> bool {
        let (bytes, (before, windows)) = (self.meter.bytes(), self.looked_at);
        if windows >= LOOK_AGAIN || bytes > before + self.most / LOOKS_WHILE_FILLING {
            // What is kept is not in the room.
            self.budget = self.most.min(bytes.saturating_add(for_rows(room(), 1, 0)));
            self.looked_at = (bytes, 0);
            self.workers.limit(self.budget);
        }
        bytes + more <= self.budget
    }

    fn receive(&mut self, done: Done) -> Result<(), LoadError> {
        match done {
            Done::Failed(error) => return Err(error),
            Done::Rows { rows, is_part } => {
                self.parts_coming -= u64::from(is_part);
                rows.into_iter().for_each(|(seq, kept, row)| self.rows.came(seq, (kept, row)));
            }
            Done::Probed(disk) => self.decide(disk),
            Done::Unprobed => self.reading = Reading::Undecided { is_measuring: false },
        }
        Ok(())
    }

    fn decide(&mut self, disk: Option<Disk>) {
        let way = disk.map(|disk| choose(&self.data, self.budget, &disk));
        debug!(?disk, ?way, "the disk was measured past the page cache");
        self.reading = way.map_or(Reading::Impossible, |way| Reading::in_way(way, &self.data, &self.rows));
        if let Reading::Impossible = self.reading {
            self.shards.fill(None);
            self.rows.forget();
        }
    }

    /// Has the disk measured, once there are shards to do so with.
    fn measure(&mut self) {
        let Reading::Undecided { is_measuring } = &mut self.reading else { return };
        let there: Vec<&Arc<Shard>> = self.shards.iter().flatten().collect();
        if !*is_measuring && !there.is_empty() {
            *is_measuring = true;
            let shards = there.iter().step_by(there.len().div_ceil(MEASURED));
            let shards = shards.map(|shard| Arc::clone(shard)).collect();
            self.workers.give([Job::Probe { shards, data: self.data, memory: self.budget }]);
        }
    }

    /// Asks for those of the rows that are not on their way, whatever memory there is: a reader waits.
    fn read_alone(&mut self, rows: Range<u64>) {
        let jobs: Vec<Job> = rows.filter_map(|seq| self.row(seq)).collect();
        self.workers.give(jobs);
    }

    /// The reading of a row, if it is not on its way already.
    fn row(&mut self, seq: u64) -> Option<Job> {
        let (number, row) = self.rows.key(seq)?;
        let shard = Arc::clone(self.shards[number as usize].as_ref()?);
        if !self.rows.ask(seq) {
            return None;
        }
        let reserved = self.data.row_bytes + PAGES;
        self.meter.add(reserved);
        Some(Job::Row { number, pick: Pick { seq, row }, shard, reserved })
    }

    /// Gives the threads what they may read ahead.
    fn read_ahead(&mut self) {
        let mut jobs = Vec::new();
        match &self.reading {
            Reading::Rows { .. } => {
                while self.has_room(1)
                    && let Some(seq) = self.next_alone()
                {
                    jobs.extend(self.row(seq));
                }
            }
            Reading::Sweeps { .. } => {
                while self.parts_coming < PARTS_WAITING
                    && let Some(part) = self.next_part()
                {
                    self.parts_coming += 1;
                    jobs.push(part);
                }
            }
            Reading::Undecided { .. } | Reading::Impossible => {}
        }
        self.workers.give(jobs);
    }

    /// The next of the rows that are read by themselves which is neither ready nor waited for.
    fn next_alone(&mut self) -> Option<u64> {
        let (asked_for, known) = (self.asked_for(), self.rows.known());
        let Reading::Rows { next } = &mut self.reading else { return None };
        let seq = asked_for.max(*next);
        *next = (seq + 1).min(known);
        (seq < known).then_some(seq)
    }

    /// The next part of a sweep, if there is room for what it picks.
    fn next_part(&mut self) -> Option<Job> {
        loop {
            let Reading::Sweeps { sweeps, parts } = &mut self.reading else { return None };
            if let Some(part) = parts.pop_front() {
                return Some(part);
            }
            // Who plans has announced as many rows as it was asked for, if there are as many.
            let (read, known) = (self.rows.taken(), self.rows.known());
            let all = known - (read + self.waiting) < self.horizon;
            let count = sweeps.next_count(read, known, all)?;
            let parts = self.data.bytes.div_ceil(self.data.shards).div_ceil(self.part_bytes);
            let reserved = self.bundle.bytes_of(count as u64, parts);
            if count > 0 && !self.has_room(reserved) {
                return None;
            }
            let Reading::Sweeps { sweeps, .. } = &mut self.reading else { return None };
            let Turn { shard, mut picks } = sweeps.next(read, count);
            // Of one that is not checked yet, rows are read when they are used.
            let Some(of) = self.shards[shard as usize].as_ref().map(Arc::clone) else { continue };
            // What a reader waits for may have been asked for alone.
            picks.retain(|pick| self.rows.ask(pick.seq));
            let jobs = self.parts_of(shard, &of, &picks);
            if let Reading::Sweeps { parts, .. } = &mut self.reading {
                parts.extend(jobs);
            }
        }
    }

    /// The reading of some rows of a shard, in parts that follow each other in its file.
    fn parts_of(&self, number: u32, shard: &Arc<Shard>, picks: &[Pick]) -> Vec<Job> {
        let stored: Vec<_> = shard.stored().collect();
        let batch_of = |pick: &Pick| stored.partition_point(|batch| batch.rows.end <= pick.row);
        let mut picked = vec![0u32; stored.len()];
        picks.iter().for_each(|pick| picked[batch_of(pick)] += 1);
        let mut parts: Vec<Range<usize>> = Vec::new();
        for (index, _) in picked.iter().enumerate().filter(|(_, picked)| **picked > 0) {
            match parts.last_mut() {
                // Reads are of whole pages.
                Some(part)
                    if part.end == index
                        && stored[index].bytes.end - stored[part.start].bytes.start + 2 * PAGE
                            <= self.part_bytes =>
                {
                    part.end = index + 1;
                }
                _ => parts.push(index..index + 1),
            }
        }
        let mut of_parts: Vec<Vec<Pick>> = vec![Vec::new(); parts.len()];
        for pick in picks {
            let batch = batch_of(pick);
            of_parts[parts.partition_point(|part| part.end <= batch)].push(*pick);
        }
        let job = |(part, picks): (Range<usize>, Vec<Pick>)| {
            let reserved = self.bundle.bytes_of(picks.len() as u64, 1);
            self.meter.add(reserved);
            let (shard, first, batches) = (Arc::clone(shard), part.start, stored[part].to_vec());
            Job::Part { number, shard, first, batches, picks, reserved }
        };
        parts.into_iter().zip(of_parts).map(job).collect()
    }
}
