//! Shards of stores that are read without any node, mapped.
//!
//! The shards of a directory are read where they are. Those of a store elsewhere are fetched whole, once, into a directory
//! that all processes of the machine share ([`SharedCache`]). Until they are here and checked, or where there is no room for them,
//! rows of large shards are asked for one by one ([`singles`](super::singles)). Of shards that the memory does not hold, or whose
//! rows are large, the disk is asked for what the order is about to read ([`units`](super::units)), and for nothing beside it.

mod disk;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use arrow::datatypes::DataType;
use shardd_store::origin::Origin;
use shardfmt::row::RowEncoder;
use shardfmt::shard::{nothing_beside, populate, seem_resident, will_need};
use shardfmt::{ByteSize, Manifest, Shard, ShardEntry, ShardError};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::super::LoadError;
use super::super::clocks::{Clocks, On};
use super::super::late::{LateFile, LateFiles};
use super::bring::Bringer;
use super::direct::{self, Direct, Own, Totals, Way};
use super::singles::{Singles, Size, Spent, Taken, Wanted};
use super::units::Met;
use crate::shared_cache::{Fetched, Seen, SharedCache};

/// Rows of at least this number of bytes are read from a disk one by one; of smaller ones the whole shard,
/// since a disk takes as long for a row as for many in a row.
const LARGE_ROW: u64 = 16 << 10;

/// Where the footer of a shard lies, and more: at its end.
const FOOTER: usize = 256 << 10;

/// Shards that lie in memory of their own, since they were compressed or found no room on the disk, have no more than this; but
/// for those of one window.
const HEAP: u64 = 1 << 30;

/// In the first windows nothing is looked for that the rows at hand do not need.
const FIRST: u64 = 3;

/// How many shards are fetched or opened at once, and checked while rows of them are read.
const AT_ONCE: usize = 8;
const CHECKED_AT_ONCE: usize = 2;

/// Rows that are read together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unit {
    /// How many.
    pub(crate) rows: u32,
    /// How many rows are in use at a time, of all units that are.
    pub(crate) stay: u64,
}

/// A version, and the store that has its shards.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) origin: Arc<Origin>,
    pub(crate) manifest: Arc<Manifest>,
}

impl Stored {
    /// How large a row is on average.
    fn row_bytes(&self) -> u64 {
        self.manifest.row_bytes() / self.manifest.sample_count().max(1)
    }

    /// Its shards are brought to this machine first.
    fn is_elsewhere(&self) -> bool {
        self.manifest.shards.first().is_some_and(|shard| self.origin.local_path(&shard.id).is_none())
    }
}

/// The shards of one or several versions, mapped. Each is checked whole once this machine reads it, and again after it
/// was changed or the machine was started. One that several versions have is there once.
pub(crate) struct ShardFiles {
    stored: Vec<Stored>,
    /// Of each shard a version that has it, and its number there.
    listed: Vec<(u32, u32)>,
    numbers: Arc<Numbers>,
    bringer: Bringer,
    runtime: Runtime,
    open: Open,
    singles: Singles,
    spent: Spent,
    /// Shards that are brought while single rows of them are read; `None` if that would be for nothing: the cache does not hold all
    /// of them, or no reader reads them to the end.
    coming: Option<HashMap<u32, JoinHandle<()>>>,
    /// How many of them are brought at once.
    at_once: Arc<Semaphore>,
    /// The memory holds all of them.
    fits: bool,
    /// Some shard was compressed, so others are, too, and are read whole when they are opened.
    are_packed: AtomicBool,
    /// How many bytes there is room for in memory.
    room: u64,
    /// How many rows to know of ahead of those that are prepared.
    horizon: u64,
    /// Of each version how many rows are read together that are asked for one by one.
    units: Vec<u32>,
    /// The reads requested from the disk, and those waited for.
    asked: Met,
    there: Met,
    /// How each shard is used.
    used: Vec<Used>,
    /// Some shard is read row by row.
    some_by_row: bool,
    /// Large rows are read when they are gathered.
    reads_late: bool,
    /// Reads rows past the page cache, where this is worthwhile.
    direct: Option<Direct>,
    /// Shards that lie in the page cache are read there.
    leaves_resident: bool,
    /// Counts the calls of [`prepare`](Self::prepare), from 1.
    window: u64,
    clocks: Arc<Clocks>,
}

/// The numbers of the shards of several versions, among all that are read.
pub(crate) struct Numbers(Vec<Vec<u32>>);

impl Numbers {
    /// That of a shard by its version's number and its own there.
    pub(crate) fn of(&self, version: usize, shard: u32) -> u32 {
        self.0[version][shard as usize]
    }
}

/// How a shard is used.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    /// Its rows are asked of the disk one by one: they are large, or the memory does not hold all there are.
    by_row: bool,
    /// The window that it was last read in; 0 if in none.
    window: u64,
    /// It was found in memory whole, so its rows need not be asked for.
    is_resident: bool,
    /// The window from which on that is looked at again.
    look_again: u64,
}

impl ShardFiles {
    /// Files of which pages find `room` in memory.
    pub(crate) fn new(
        stored: Vec<Stored>,
        cache: Arc<SharedCache>,
        clocks: Arc<Clocks>,
        stop: CancellationToken,
        room: u64,
    ) -> Result<Self, LoadError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("shardd-fetch")
            .enable_all()
            .build()
            .map_err(|source| LoadError::Threads { source })?;
        let (listed, numbers) = list(&stored);
        let entry =
            |(version, shard): &(u32, u32)| &stored[*version as usize].manifest.shards[*shard as usize];
        let elsewhere: Vec<bool> = stored.iter().map(Stored::is_elsewhere).collect();
        let fetched = listed.iter().filter(|(version, _)| elsewhere[*version as usize]);
        let fetched: Vec<u64> = fetched.map(|shard| entry(shard).bytes).collect();
        let needed: u64 = fetched.iter().sum();
        if let Some(largest) = fetched.iter().max() {
            cache.check(*largest)?;
            if needed > cache.limit().0 {
                let (needed, limit) = (ByteSize(needed).to_string(), cache.limit().to_string());
                warn!(dir = %cache.dir().display(), needed, limit,
                      "the cache is smaller than the data: each epoch fetches shards again; raise \
                      cache_limit");
            }
        }
        let bytes: u64 = listed.iter().map(|shard| entry(shard).bytes).sum();
        let fits = bytes <= room / 5 * 4;
        let row_bytes: Vec<u64> = stored.iter().map(Stored::row_bytes).collect();
        let by_row = |(version, _): &(u32, u32)| !fits || row_bytes[*version as usize] >= LARGE_ROW;
        let used: Vec<Used> =
            listed.iter().map(|shard| Used { by_row: by_row(shard), ..Used::default() }).collect();
        let (open, some_by_row) = (Open::none(listed.len()), used.iter().any(|used| used.by_row));
        let coming = (needed <= cache.limit().0).then(HashMap::new);
        let files = Self {
            singles: Singles::new(stored.iter().map(|stored| &stored.manifest.schema))?,
            spent: Spent::none(listed.len()),
            units: vec![1; stored.len()],
            are_packed: AtomicBool::new(false),
            asked: Met::default(),
            there: Met::default(),
            room,
            horizon: 0,
            // Not the loader's own: a source that has given all rows drops its pending reads, and batches are
            // still gathered.
            bringer: Bringer { cache, runtime: runtime.handle().clone(), stop: stop.child_token() },
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
            numbers: Arc::new(numbers),
            window: 0,
            clocks,
            stored,
            listed,
            runtime,
            open,
            coming,
            fits,
            used,
            some_by_row,
            reads_late: false,
            direct: None,
            leaves_resident: true,
        };
        Ok(files.beside(1))
    }

    /// One of this number of loaders that share the memory.
    pub(crate) fn beside(mut self, loaders: u64) -> Self {
        let largest_row = self.stored.iter().map(Stored::row_bytes).max().unwrap_or_default();
        self.horizon = if self.fits { 0 } else { disk::horizon(self.room / loaders.max(1), largest_row) };
        self
    }

    /// Has large rows of mapped files read when they are gathered: for callers that gather with [`Open::late`].
    pub(crate) fn reading_late(mut self) -> Self {
        self.reads_late = true;
        self
    }

    /// For a reader that asks for some samples and perhaps never for others: only these are fetched.
    pub(crate) fn for_some_samples(mut self) -> Self {
        self.coming = None;
        self
    }

    /// Of rows that are asked for one by one, this number is read together of each version, since its order
    /// uses them soon after each other, if the memory has room for twice as many as `stay` until then.
    pub(crate) fn in_units(mut self, units: impl IntoIterator<Item = Unit>) -> Self {
        let fits = |(Unit { rows, stay }, stored): (Unit, &Stored)| {
            if stay.saturating_mul(stored.row_bytes()) <= self.room / 2 { rows } else { 1 }
        };
        self.units = units.into_iter().zip(&self.stored).map(fits).collect();
        self
    }

    /// Rows that the order reads here and there are read past the page cache, if the memory is much too small for its pages;
    /// small ones are kept until their use, and take no more than `memory`. Large ones are read so only if they are
    /// [read late](Self::reading_late).
    pub(crate) fn past_the_page_cache(mut self, memory: u64) -> Result<Self, LoadError> {
        let totals = self.totals();
        let is_scattered = self.units.iter().all(|unit| *unit == 1);
        match direct::is_small(totals.row_bytes) {
            true if is_scattered && direct::is_too_large(totals.bytes, self.room) => {
                self.with_memory(totals, memory, None)
            }
            false if is_scattered && direct::is_much_too_large(totals.bytes, self.room) => {
                Arc::make_mut(&mut self.open.late).read_past_the_page_cache();
                Ok(self)
            }
            _ => Ok(self),
        }
    }

    fn totals(&self) -> Totals {
        let entries = || (0..self.listed.len() as u32).map(|number| self.entry(number).1);
        let rows: u64 = entries().map(|entry| u64::from(entry.rows)).sum();
        let row_bytes: u64 = entries().map(|entry| entry.row_bytes).sum();
        let bytes = entries().map(|entry| entry.bytes).sum();
        Totals { bytes, row_bytes: row_bytes / rows.max(1), rows, shards: self.listed.len() }
    }

    /// As [`past_the_page_cache`](Self::past_the_page_cache), however large the data is.
    fn with_memory(mut self, totals: Totals, memory: u64, way: Option<Way>) -> Result<Self, LoadError> {
        self.direct = Some(Direct::new(totals, memory, way, self.bringer.stop.clone())?);
        Ok(self)
    }

    /// How many rows it wants to [know of](Self::expect) before they are prepared.
    pub(crate) fn horizon(&mut self) -> u64 {
        self.direct.as_mut().map_or(self.horizon, Direct::horizon)
    }

    /// Whether it wants to know of rows of the next epoch before those of this one are all prepared.
    pub(crate) fn looks_beyond_epochs(&self) -> bool {
        self.direct.is_some()
    }

    /// The numbers by which shards are asked for.
    pub(crate) fn numbers(&self) -> Arc<Numbers> {
        Arc::clone(&self.numbers)
    }

    /// The store of a shard, and its known state.
    fn entry(&self, number: u32) -> (&Arc<Origin>, &ShardEntry) {
        let (version, shard) = self.listed[number as usize];
        let Stored { origin, manifest } = &self.stored[version as usize];
        (origin, &manifest.shards[shard as usize])
    }

    /// Opens shards, or asks for the rows of them alone that are wanted, whichever is less; these are the
    /// ones given.
    fn obtain(
        &mut self,
        missing: Vec<u32>,
        rows: impl Iterator<Item = (u32, u32)>,
    ) -> Result<Taken, LoadError> {
        let (single, mut whole) = self.choose(missing, rows);
        let mut taken = Taken::default();
        if !single.is_empty() {
            self.begin_to_bring(single.keys());
            let Self { listed, stored, singles, bringer, clocks, .. } = self;
            let wanted = single.into_iter().map(|(number, rows)| {
                let (version, shard) = listed[number as usize];
                let Stored { origin, manifest } = &stored[version as usize];
                let (entry, rows) = (&manifest.shards[shard as usize], rows.into_iter().collect());
                Wanted { number, version: version as usize, origin, entry, rows }
            });
            let wanted: Vec<Wanted<'_>> = wanted.collect();
            let is_far = wanted.iter().any(|wanted| wanted.origin.local_path(&wanted.entry.id).is_none());
            let on = if is_far { On::Network } else { On::Disk };
            let (found, others) = clocks.time(on, || bringer.unless_stopped(singles.take(&wanted)))?;
            taken = found;
            whole.extend(others);
        }
        self.open_all(&whole)?;
        Ok(taken)
    }

    /// Of which shards single rows are to be read, and which are to be opened.
    fn choose(
        &mut self,
        missing: Vec<u32>,
        rows: impl Iterator<Item = (u32, u32)>,
    ) -> (BTreeMap<u32, BTreeSet<u32>>, Vec<u32>) {
        let (mut whole, far): (Vec<u32>, Vec<u32>) =
            missing.into_iter().partition(|number| self.is_here(*number));
        let mut single: BTreeMap<u32, BTreeSet<u32>> =
            far.into_iter().map(|number| (number, BTreeSet::new())).collect();
        if !single.is_empty() {
            for (number, row) in rows {
                single.get_mut(&number).into_iter().for_each(|rows| _ = rows.insert(row));
            }
        }
        single.retain(|number, rows| {
            let size = Size::from(self.entry(*number).1);
            // A file of this machine is checked in the meantime, if it is known that others of its rows will be wanted, too.
            let is_worthwhile =
                self.is_being_checked(*number) || self.spent.is_worthwhile(*number, size, rows.len() as u64);
            if !is_worthwhile {
                whole.push(*number);
            }
            is_worthwhile
        });
        (single, whole)
    }

    /// Where a shard lies, if its store is of this machine.
    fn local_path(&self, number: u32) -> Option<PathBuf> {
        let (origin, entry) = self.entry(number);
        origin.local_path(&entry.id)
    }

    /// Whether a shard of this machine is being checked, or is about to be. If that has failed, the next
    /// reader gets the reason.
    fn is_being_checked(&self, number: u32) -> bool {
        let goes_on = |coming: &HashMap<u32, JoinHandle<()>>| {
            coming.get(&number).is_none_or(|check| !check.is_finished())
        };
        self.coming.as_ref().is_some_and(goes_on) && self.local_path(number).is_some()
    }

    /// Whether a shard lies on this machine, ready to be opened: one that is read row by row is checked first, which takes longer
    /// than its first rows should.
    fn is_here(&self, number: u32) -> bool {
        let entry = self.entry(number).1;
        let by_row = self.used[number as usize].by_row;
        match self.local_path(number) {
            Some(path) => !by_row || self.bringer.cache.is_verified(entry.id, &path),
            None => self.bringer.cache.has(entry.id, entry.bytes),
        }
    }

    /// Has shards brought, or checked, while a reader takes rows of them, if it is known that others will be
    /// wanted, too.
    fn begin_to_bring<'a>(&mut self, numbers: impl Iterator<Item = &'a u32>) {
        let Some(mut coming) = self.coming.take() else { return };
        for number in numbers {
            coming.entry(*number).or_insert_with(|| {
                let (origin, entry) = self.entry(*number);
                let (bringer, origin, entry) = (self.bringer.clone(), Arc::clone(origin), entry.clone());
                let (at_once, runtime) = (Arc::clone(&self.at_once), bringer.runtime.clone());
                let (path, fits) = (self.local_path(*number), self.fits);
                let turns = if path.is_some() { AT_ONCE / CHECKED_AT_ONCE } else { 1 } as u32;
                // The threads that wait are others than those of which the runtime itself has some do what takes time.
                self.bringer.runtime.spawn(async move {
                    let Ok(_turns) = at_once.acquire_many_owned(turns).await else { return };
                    if bringer.stop.is_cancelled() {
                        return;
                    }
                    let shard = entry.id;
                    let brought = runtime.spawn_blocking(move || match path {
                        Some(path) => bringer.verify(entry.id, &path, fits),
                        None => bringer.bring(&origin, &entry).map(|_| ()),
                    });
                    // The next reader tries again, and reports the error.
                    if let Ok(Err(error)) = brought.await
                        && !matches!(error, LoadError::Stopped)
                    {
                        warn!(%shard, %error, "a shard could not be fetched or checked ahead of time");
                    }
                })
            });
        }
        self.coming = Some(coming);
    }

    /// Opens shards, several side by side.
    fn open_all(&mut self, numbers: &[u32]) -> Result<(), LoadError> {
        let (began, of_threads) = (Instant::now(), Clocks::default());
        let opened = self.open_timed(numbers, &of_threads);
        self.clocks.add_shared(began.elapsed(), &of_threads);
        opened
    }

    fn open_timed(&mut self, numbers: &[u32], clocks: &Clocks) -> Result<(), LoadError> {
        let mut left = numbers.to_vec();
        while !left.is_empty() {
            let opened: Vec<(u32, Option<Arc<Shard>>)> =
                side_by_side(&left, |number| Ok((*number, self.open_one(*number, clocks)?)))?;
            let open = Arc::make_mut(&mut self.open.shards);
            left = Vec::new();
            for (number, shard) in opened {
                match shard {
                    Some(shard) => open[number as usize] = Some(shard),
                    None => left.push(number),
                }
            }
            if !left.is_empty() && !self.make_room() {
                // The cache is others', or too small for one window: these are read and not kept.
                let fetched = side_by_side(&left, |number| {
                    let (origin, entry) = self.entry(*number);
                    let fetched = clocks.time(On::Network, || self.bringer.fetch(origin, entry))?;
                    Ok((*number, Arc::new(clocks.time(On::Disk, || Shard::from_bytes(fetched))?)))
                })?;
                let open = Arc::make_mut(&mut self.open.shards);
                fetched.into_iter().for_each(|(number, shard)| open[number as usize] = Some(shard));
                return Ok(());
            }
        }
        Ok(())
    }

    /// Opens a shard where it lies, or brings it to this machine; `None` if there is no room for it.
    fn open_one(&self, number: u32, clocks: &Clocks) -> Result<Option<Arc<Shard>>, LoadError> {
        let (origin, entry) = self.entry(number);
        let open_file = |path: &Path| clocks.time(On::Disk, || self.open_file(number, path)).map(Some);
        if let Some(path) = self.local_path(number) {
            return open_file(&path);
        }
        // Another process may be fetching it.
        let bring = || clocks.time(On::Network, || self.bringer.bring(origin, entry));
        let Fetched::Here(path) = bring()? else { return Ok(None) };
        match open_file(&path) {
            Err(LoadError::Shard(error @ (ShardError::Corrupt { .. } | ShardError::WrongDigest { .. }))) => {
                warn!(path = %path.display(), %error, "a shard was damaged where it is kept; fetching it again");
                self.bringer.cache.discard(&path)?;
                let Fetched::Here(path) = bring()? else { return Ok(None) };
                open_file(&path)
            }
            opened => opened,
        }
    }

    fn open_file(&self, number: u32, path: &Path) -> Result<Arc<Shard>, LoadError> {
        let id = self.entry(number).1.id;
        let is_verified = self.bringer.cache.is_verified(id, path);
        if self.used[number as usize].by_row {
            if !is_verified {
                self.bringer.verify(id, path, self.fits)?;
            }
            let are_packed = self.are_packed.load(Ordering::Relaxed);
            let shard = Shard::open_with(path, |bytes| {
                let footer = bytes.len().saturating_sub(FOOTER);
                if !are_packed && self.is_plain(number) {
                    nothing_beside(bytes);
                }
                let needed = if are_packed { bytes } else { &bytes[footer..] };
                will_need(needed);
                populate(needed)
            })?;
            self.are_packed.fetch_or(shard.heap_bytes() > 0, Ordering::Relaxed);
            return Ok(Arc::new(shard));
        }
        let seen = Seen::now(path);
        let shard = Shard::open_with(path, |bytes| {
            if is_verified && seem_resident(bytes) {
                return Ok(());
            }
            will_need(bytes);
            populate(bytes)
        })?;
        if !is_verified {
            shard.verify(id)?;
            self.bringer.cache.note_verified(id, path, seen);
        }
        Ok(Arc::new(shard))
    }

    /// Whether all columns of a shard lie where it is [known](Shard::memory_of), and none has to be read to be opened, as text has.
    fn is_plain(&self, number: u32) -> bool {
        fn is_plain(data_type: &DataType) -> bool {
            match data_type {
                DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => true,
                DataType::FixedSizeList(items, _) => is_plain(items.data_type()),
                other => other.is_primitive(),
            }
        }
        let fields = self.stored[self.listed[number as usize].0 as usize].manifest.schema.fields();
        fields.iter().all(|field| is_plain(field.data_type()))
    }

    /// Lets go of the shards that were read longest ago, but not of those of this window; whether there were any.
    fn make_room(&mut self) -> bool {
        let numbered = (0u32..).zip(self.used.iter().zip(self.open.shards.iter()));
        let mut old: Vec<(u64, u32)> = numbered
            .filter(|(_, (used, open))| used.window < self.window && open.is_some())
            .map(|(number, (used, _))| (used.window, number))
            .collect();
        old.sort_unstable();
        old.truncate(AT_ONCE);
        for (_, number) in &old {
            Arc::make_mut(&mut self.open.shards)[*number as usize] = None;
            let used = &mut self.used[*number as usize];
            *used = Used { by_row: used.by_row, ..Used::default() };
            Arc::make_mut(&mut self.open.late).remove(*number);
            self.bringer.cache.release(self.entry(*number).1.id);
            if let Some(direct) = &mut self.direct {
                direct.remove(*number);
            }
        }
        !old.is_empty()
    }

    /// Makes rows ready, by the numbers of their shards and in these; blocks until they are. The rows made
    /// ready by earlier calls may be dropped, except those already given.
    pub(crate) fn prepare(
        &mut self,
        epoch: u32,
        rows: impl Iterator<Item = (u32, u32)> + Clone,
    ) -> Result<Open, LoadError> {
        self.window += 1;
        let mut wanted = Vec::new();
        for (number, _) in rows.clone() {
            let used = &mut self.used[number as usize];
            if used.window != self.window {
                used.window = self.window;
                wanted.push(number);
            }
        }
        let missing: Vec<u32> = wanted.iter().copied().filter(|number| !self.open.has(*number)).collect();
        let taken =
            if missing.is_empty() { Taken::default() } else { self.obtain(missing.clone(), rows.clone())? };
        while self.open.heap_bytes() > HEAP && self.make_room() {}
        let mut own = Own::default();
        if self.some_by_row {
            let began = Instant::now();
            self.read_directly(&missing);
            self.read_late(&missing);
            if let Some(direct) = &mut self.direct {
                own = direct.prepare(rows.clone())?;
            }
            // A reader waits for the first rows, and they are few.
            if self.window > FIRST {
                self.look(&wanted);
            }
            let mut there = std::mem::take(&mut self.there);
            let read = self.read(&self.units_of(&mut there, epoch, rows));
            self.there = there;
            read?;
            self.clocks.add(On::Disk, began.elapsed());
        }
        let Open { shards, late, .. } = self.open.clone();
        Ok(Open { shards, late, taken: Arc::new(taken), own: Arc::new(own) })
    }
}

impl Drop for ShardFiles {
    /// Pending reads are given up. That is waited for, which takes a moment: nothing may be left that works
    /// on a runtime which ends.
    fn drop(&mut self) {
        self.bringer.stop.cancel();
        let coming = self.coming.take().unwrap_or_default();
        self.runtime.block_on(async {
            for task in coming.into_values() {
                let _ = task.await; // it has reported the error
            }
        });
    }
}

/// Shards that are open, by their numbers, and rows of others.
#[derive(Clone)]
pub(crate) struct Open {
    shards: Arc<Vec<Option<Arc<Shard>>>>,
    late: Arc<LateFiles>,
    taken: Arc<Taken>,
    /// Rows in memory of their own.
    own: Arc<Own>,
}

impl Open {
    fn none(of: usize) -> Self {
        let shards = Arc::new(vec![None; of]);
        Self { shards, late: Arc::default(), taken: Arc::default(), own: Arc::default() }
    }

    fn has(&self, shard: u32) -> bool {
        self.shards[shard as usize].is_some()
    }

    /// How much memory of their own the shards take.
    fn heap_bytes(&self) -> u64 {
        self.shards.iter().flatten().map(|shard| shard.heap_bytes()).sum()
    }

    /// The memory that rows of a shard lie in that is open.
    fn memory_of(&self, shard: u32, rows: Range<u32>) -> impl Iterator<Item = &[u8]> {
        let shard = self.shards[shard as usize].as_deref();
        shard.into_iter().flat_map(move |shard| shard.memory_of(rows.clone()))
    }

    /// Whether some rows are read when they are gathered.
    pub(crate) fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// The file that a row is read from when it is gathered, if it is read then.
    pub(crate) fn late(&self, shard: u32, row: u32) -> Option<&Arc<LateFile>> {
        self.late.of(shard).filter(|_| direct::place(&self.own, &(shard, row)).is_none())
    }

    /// Where a row lies that was made ready.
    #[inline]
    pub(crate) fn place(&self, shard: u32, row: u32) -> (&RowEncoder, usize) {
        if let Some(place) = direct::place(&self.own, &(shard, row)) {
            return place;
        }
        match &self.shards[shard as usize] {
            Some(shard) => shard.place(row),
            None => self.taken.place(shard, row),
        }
    }
}

/// The shards of several versions, each once, and their numbers by version.
fn list(stored: &[Stored]) -> (Vec<(u32, u32)>, Numbers) {
    let (mut listed, mut known) = (Vec::new(), HashMap::new());
    let numbers = (0u32..).zip(stored).map(|(version, Stored { manifest, .. })| {
        let number = |(shard, entry): (u32, &ShardEntry)| {
            *known.entry(entry.id).or_insert_with(|| {
                listed.push((version, shard));
                listed.len() as u32 - 1
            })
        };
        (0u32..).zip(&manifest.shards).map(number).collect()
    });
    let numbers = Numbers(numbers.collect());
    (listed, numbers)
}

/// Does the same for each, some at once; the first error ends it.
fn side_by_side<T: Sync, R: Send>(
    each: &[T],
    work: impl Fn(&T) -> Result<R, LoadError> + Sync,
) -> Result<Vec<R>, LoadError> {
    if let [one] = each {
        return Ok(vec![work(one)?]);
    }
    let (work, part) = (&work, each.len().div_ceil(AT_ONCE).max(1));
    std::thread::scope(|scope| {
        let parts = each
            .chunks(part)
            .map(|part| scope.spawn(move || part.iter().map(work).collect::<Result<Vec<_>, _>>()));
        let parts: Vec<_> = parts.collect();
        let parts = parts.into_iter().map(|part| part.join().expect("opening a shard does not panic"));
        Ok(parts.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    })
}

#[cfg(test)]
mod direct_tests;
#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod tests;
