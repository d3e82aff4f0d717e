//! Rows of shards that the memory does not hold, read past the page cache into memory of the loader's own.
//!
//! The kernel finds memory for the pages of a file one by one, in the thread that asks, and keeps those it read last, which a
//! shuffled order uses last. The order says which rows come next: these are read by many threads at once, or picked from
//! sweeps over all shards, whichever is faster on this disk ([`way`]), and kept until they are used. All that is kept stays
//! within a budget, but for the rows that a reader waits for. Where the file system gives nothing past its cache, rows are
//! read through it.

mod file;
mod probe;
mod sweeps;
mod way;
mod workers;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shardfmt::Shard;
use shardfmt::row::RowEncoder;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::super::LoadError;
use super::memory::{for_rows, room};
use sweeps::{Pick, Sweeps, Turn};
use way::{Data, Disk, choose};
pub(super) use way::{Way, is_too_large};
pub(super) use workers::Kept;
use workers::{Done, Job, Key, Meter, Workers};

/// Whether rows of this size are read faster past the page cache: of large ones the kernel's cache gives more, as measured
/// (benches/README.md, "From disk").
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

/// A row takes this much more memory than it has bytes: it is read in whole pages.
const PAGES: u64 = 8 << 10;

/// Nor are more rows than this read ahead by themselves.
const ROWS_AHEAD: u64 = 32 << 10;

/// After how many windows the memory is looked at again, and how often while it is filled.
const LOOK_AGAIN: u32 = 64;
const LOOKS_WHILE_FILLING: u64 = 16;

/// How often a wait looks whether the loader was closed.
const LOOK: Duration = Duration::from_millis(500);

/// Rows that were made ready for a window, by their shards and their numbers there.
pub(super) type Own = HashMap<Key, (Arc<Kept>, u32)>;

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
    workers: Workers,
    meter: Arc<Meter>,
    stop: CancellationToken,
    /// The shards that are read so.
    shards: HashMap<u32, Arc<Shard>>,
    /// How many rows were announced or asked for, and how many of these were made ready.
    known: u64,
    ready: u64,
    /// How many rows a reader waits for.
    waiting: u64,
    /// The horizon that was last asked for: who knows all that it asks for knows that more rows may come.
    horizon: u64,
    reading: Reading,
    rows: HashMap<Key, Row>,
    /// Parts on their way.
    parts_coming: u64,
}

/// How rows are read ahead.
enum Reading {
    /// The disk is being measured, or about to be: only rows that are waited for are read.
    Undecided {
        is_measuring: bool,
        queue: VecDeque<(u32, Pick)>,
    },
    /// The rows that were announced and not asked for yet, in their order, with the numbers of their shards.
    Rows {
        queue: VecDeque<(u32, Pick)>,
    },
    Sweeps {
        sweeps: Sweeps,
        parts: VecDeque<Job>,
    },
    /// The file system gives nothing past its cache.
    Impossible,
}

impl Reading {
    /// Reading rows from the `ready`th on.
    fn in_way(way: Way, data: &Data, ready: u64) -> Self {
        match way {
            Way::Rows => Self::Rows { queue: VecDeque::new() },
            Way::Sweeps { window } => {
                let sweeps = Sweeps::new(data.shards as usize, window, ready);
                Self::Sweeps { sweeps, parts: VecDeque::new() }
            }
        }
    }
}

/// A row that is wanted this number of times.
enum Row {
    Coming { uses: u32 },
    Here { kept: Arc<Kept>, row: u32, uses: u32 },
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
        let data = Data { bytes, row_bytes, rows: rows.max(1), shards: shards.max(1) as u64 };
        let part_bytes = PART.min(memory / PARTS_OF_MEMORY / PARTS_AT_ONCE).max(1);
        let free = FREE.min(memory / FREE_OF_MEMORY);
        let most = memory.saturating_sub(part_bytes * PARTS_AT_ONCE + free);
        let meter = Arc::new(Meter::default());
        let reading = way.map_or_else(
            || Reading::Undecided { is_measuring: false, queue: VecDeque::new() },
            |way| Reading::in_way(way, &data, 0),
        );
        Ok(Self {
            data,
            most,
            budget: most,
            looked_at: (0, 0),
            part_bytes,
            workers: Workers::start(
                ROWS_AT_ONCE,
                PARTS_AT_ONCE as usize,
                row_bytes,
                memory,
                free,
                Arc::clone(&meter),
            )?,
            meter,
            stop,
            shards: HashMap::new(),
            known: 0,
            ready: 0,
            waiting: 0,
            horizon: 0,
            reading,
            rows: HashMap::new(),
            parts_coming: 0,
        })
    }

    /// Reads rows of this shard from now on. Its values are of one size or bytes, and it is neither compressed nor in
    /// memory.
    pub(super) fn add(&mut self, number: u32, shard: &Arc<Shard>) {
        if !matches!(self.reading, Reading::Impossible) {
            self.shards.insert(number, Arc::clone(shard));
        }
    }

    /// Reads no more rows of this shard.
    pub(super) fn remove(&mut self, number: u32) {
        self.shards.remove(&number);
        self.workers.forget(number);
    }

    /// What rows take that are in memory, or on their way there.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.meter.bytes()
    }

    /// Whether it reads rows of this shard.
    pub(super) fn reads(&self, number: u32) -> bool {
        self.shards.contains_key(&number)
    }

    /// How many rows it wants to know of beyond those that are made ready. Few at first: knowing takes a while.
    pub(super) fn horizon(&mut self) -> u64 {
        let alone = AHEAD.min(self.budget / AHEAD_OF_MEMORY) / (self.data.row_bytes + PAGES);
        let alone = alone.clamp(1, ROWS_AHEAD);
        self.horizon = match &self.reading {
            Reading::Sweeps { sweeps, .. } => sweeps.horizon().min(alone.max(2 * self.ready)),
            _ => alone,
        };
        self.horizon
    }

    /// Rows that will be made ready after all that were announced before. Does not wait for them.
    pub(super) fn expect(&mut self, rows: impl Iterator<Item = Key>) {
        for (number, row) in rows {
            let pick = Pick { seq: self.known, row };
            self.known += 1;
            match &mut self.reading {
                Reading::Undecided { queue, .. } | Reading::Rows { queue } => queue.push_back((number, pick)),
                Reading::Sweeps { sweeps, .. } => sweeps.expect(number, pick),
                Reading::Impossible => {}
            }
        }
        if let Reading::Rows { .. } = self.reading {
            self.read_ahead();
        }
    }

    /// Makes ready those of the rows that are of shards which it [reads](Self::reads); blocks until they are. Rows come in
    /// the order in which they were announced; others that were not may follow if no more were.
    pub(super) fn prepare(&mut self, rows: impl Iterator<Item = Key>) -> Result<Own, LoadError> {
        let wanted: Vec<Key> = rows.collect();
        self.waiting = wanted.len() as u64;
        self.looked_at.1 += 1;
        self.known = self.known.max(self.ready + self.waiting);
        self.measure();
        let (mut at, mut done) = (0, self.workers.take_done());
        loop {
            for done in done {
                self.receive(done)?;
            }
            self.read_ahead();
            let is_here = |(number, row): &Key| {
                !self.reads(*number) || matches!(self.rows.get(&(*number, *row)), Some(Row::Here { .. }))
            };
            at += wanted[at..].iter().take_while(|key| is_here(key)).count();
            let Some(first) = wanted.get(at) else { break };
            if !self.rows.contains_key(first) && !self.comes_with_sweeps(*first) {
                self.read_alone(&wanted[at..]);
            }
            if self.stop.is_cancelled() {
                return Err(LoadError::Stopped);
            }
            done = self.workers.await_done(LOOK);
        }
        self.ready += std::mem::take(&mut self.waiting);
        let mut own = Own::with_capacity(wanted.len());
        for key in wanted {
            self.take(key, &mut own);
        }
        Ok(own)
    }

    /// Whether a turn will pick the row, and turns are so far and under way that it will soon.
    fn comes_with_sweeps(&self, (number, row): Key) -> bool {
        let Reading::Sweeps { sweeps, .. } = &self.reading else { return false };
        let asked_for = self.ready + self.waiting;
        sweeps.are_round() && self.parts_coming > 0 && sweeps.is_pending(number, row, asked_for)
    }

    /// Whether there is memory for this many bytes more.
    fn has_room(&mut self, more: u64) -> bool {
        let (bytes, (before, windows)) = (self.meter.bytes(), self.looked_at);
        if windows >= LOOK_AGAIN || bytes > before + self.most / LOOKS_WHILE_FILLING {
            // What is kept is not in the room.
            self.budget = self.most.min(bytes.saturating_add(for_rows(room(), 1, 0)));
            self.looked_at = (bytes, 0);
        }
        bytes + more <= self.budget
    }

    /// Moves a row to those that are ready, and forgets it if it is not wanted again.
    fn take(&mut self, key: Key, own: &mut Own) {
        let Entry::Occupied(mut entry) = self.rows.entry(key) else { return };
        if let Row::Here { kept, row, uses } = entry.get_mut() {
            own.entry(key).or_insert_with(|| (Arc::clone(kept), *row));
            *uses -= 1;
            if *uses == 0 {
                entry.remove();
            }
        }
    }

    fn receive(&mut self, done: Done) -> Result<(), LoadError> {
        match done {
            Done::Failed(error) => return Err(error),
            Done::Rows { rows, reserved, is_part } => {
                self.meter.take(reserved);
                self.parts_coming -= u64::from(is_part);
                for (key, kept, row) in rows {
                    if let Some(place @ Row::Coming { .. }) = self.rows.get_mut(&key) {
                        let Row::Coming { uses } = *place else { unreachable!("matched above") };
                        *place = Row::Here { kept, row, uses };
                    }
                }
            }
            Done::Probed(disk) => self.decide(disk),
        }
        Ok(())
    }

    fn decide(&mut self, disk: Option<Disk>) {
        let way = disk.map(|disk| choose(&self.data, self.budget, &disk));
        debug!(?disk, ?way, "the disk was measured past the page cache");
        let decided = way.map_or(Reading::Impossible, |way| Reading::in_way(way, &self.data, self.ready));
        let before = std::mem::replace(&mut self.reading, decided);
        match (before, &mut self.reading) {
            (Reading::Undecided { queue: before, .. }, Reading::Rows { queue }) => *queue = before,
            (Reading::Undecided { queue: before, .. }, Reading::Sweeps { sweeps, .. }) => {
                before.into_iter().for_each(|(number, pick)| sweeps.expect(number, pick));
            }
            (_, Reading::Impossible) => {
                self.shards.clear();
                self.rows.clear();
            }
            _ => {}
        }
    }

    /// Has the disk measured, once there are shards to do so with.
    fn measure(&mut self) {
        let Reading::Undecided { is_measuring, queue } = &mut self.reading else { return };
        while queue.front().is_some_and(|(_, pick)| pick.seq < self.ready) {
            queue.pop_front();
        }
        if !*is_measuring && !self.shards.is_empty() {
            *is_measuring = true;
            let mut numbers: Vec<&u32> = self.shards.keys().collect();
            numbers.sort_unstable();
            let step = numbers.len().div_ceil(MEASURED);
            let shards = numbers.iter().step_by(step).map(|number| Arc::clone(&self.shards[number]));
            let probe = Job::Probe { shards: shards.collect(), row_bytes: self.data.row_bytes };
            self.workers.give([probe]);
        }
    }

    /// Asks for those of the rows that are not on their way, whatever memory there is: a reader waits.
    fn read_alone(&mut self, rows: &[Key]) {
        let mut jobs = Vec::new();
        for key in rows {
            if !self.rows.contains_key(key) {
                jobs.extend(self.row(*key));
            }
        }
        self.workers.give(jobs);
    }

    /// The reading of a row, if it is not on its way already.
    fn row(&mut self, key: Key) -> Option<Job> {
        let shard = Arc::clone(self.shards.get(&key.0)?);
        if !self.want(key) {
            return None;
        }
        let reserved = self.data.row_bytes + PAGES;
        self.meter.add(reserved);
        Some(Job::Row { number: key.0, row: key.1, shard, reserved })
    }

    /// Counts a use of a row; whether it has to be read for it.
    fn want(&mut self, key: Key) -> bool {
        match self.rows.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(Row::Coming { uses: 1 });
                true
            }
            Entry::Occupied(mut entry) => {
                let (Row::Coming { uses } | Row::Here { uses, .. }) = entry.get_mut();
                *uses += 1;
                false
            }
        }
    }

    /// Gives the threads what they may read ahead.
    fn read_ahead(&mut self) {
        let mut jobs = Vec::new();
        match &self.reading {
            Reading::Rows { .. } => {
                while self.has_room(1)
                    && let Some((number, pick)) = self.next_alone()
                {
                    jobs.extend(self.row((number, pick.row)));
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
    fn next_alone(&mut self) -> Option<(u32, Pick)> {
        let Reading::Rows { queue } = &mut self.reading else { return None };
        while queue.front().is_some_and(|(_, pick)| pick.seq < self.ready + self.waiting) {
            queue.pop_front();
        }
        queue.pop_front()
    }

    /// The next part of a sweep, if there is room for what it picks.
    fn next_part(&mut self) -> Option<Job> {
        loop {
            let Reading::Sweeps { sweeps, parts } = &mut self.reading else { return None };
            if let Some(part) = parts.pop_front() {
                return Some(part);
            }
            // Who plans has announced as many rows as it was asked for, if there are as many.
            let asked_for = self.ready + self.waiting;
            let all = self.known - asked_for < self.horizon;
            let count = sweeps.next_count(self.ready, self.known, all)?;
            let reserved = count as u64 * self.data.row_bytes;
            if count > 0 && !self.has_room(reserved) {
                return None;
            }
            let Reading::Sweeps { sweeps, .. } = &mut self.reading else { return None };
            let Turn { shard, mut picks } = sweeps.next(count);
            // Of one that is not checked yet, rows are read when they are used.
            let Some(of) = self.shards.get(&shard).map(Arc::clone) else { continue };
            picks.retain(|pick| {
                // What a reader waits for may have been asked for alone.
                let key = (shard, pick.row);
                !(pick.seq < asked_for && self.rows.contains_key(&key)) && self.want(key)
            });
            let jobs = self.parts_of(shard, &of, picks);
            if let Reading::Sweeps { parts, .. } = &mut self.reading {
                parts.extend(jobs);
            }
        }
    }

    /// The reading of some rows of a shard, in parts that follow each other in its file.
    fn parts_of(&self, number: u32, shard: &Arc<Shard>, picks: Vec<Pick>) -> Vec<Job> {
        let stored: Vec<_> = shard.stored().collect();
        let mut picked: Vec<Vec<Pick>> = vec![Vec::new(); stored.len()];
        for pick in picks {
            picked[stored.partition_point(|batch| batch.rows.end <= pick.row)].push(pick);
        }
        let mut jobs = Vec::new();
        let mut index = 0;
        while index < stored.len() {
            let (first, mut picks) = (index, Vec::new());
            while index < stored.len()
                && !picked[index].is_empty()
                && (first == index || stored[index].bytes.end - stored[first].bytes.start <= self.part_bytes)
            {
                picks.append(&mut picked[index]);
                index += 1;
            }
            if picks.is_empty() {
                index += 1; // a record batch of which nothing is wanted
                continue;
            }
            picks.sort_unstable_by_key(|pick| pick.seq);
            let reserved = picks.len() as u64 * self.data.row_bytes;
            self.meter.add(reserved);
            let (shard, batches) = (Arc::clone(shard), stored[first..index].to_vec());
            jobs.push(Job::Part { number, shard, first, batches, picks, reserved });
        }
        jobs
    }
}
