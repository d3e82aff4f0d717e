//! Shards of a store that are read without any node, mapped.
//!
//! The shards of a directory are read where they are. Those of a store elsewhere are fetched whole, once, into a directory
//! that all processes of the machine share ([`SharedCache`]).

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use shardfmt::row::RowEncoder;
use shardfmt::shard::{are_resident, populate, will_need};
use shardfmt::{ByteSize, Manifest, Shard, ShardEntry, ShardError};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::super::LoadError;
use super::super::clocks::{Clocks, On};
use super::memory;
use crate::origin::Origin;
use crate::shared_cache::{Fetched, SharedCache};

/// Rows of at least so many bytes are read from a disk one by one; of smaller ones the whole shard, since a disk takes as
/// long for a row as for many in a row.
const LARGE_ROW: u64 = 16 << 10;

/// Where the footer of a shard lies, and more: at its end.
const FOOTER: usize = 256 << 10;

/// Shards that lie in memory of their own, since they were compressed or found no room on the disk, have no more than this; but
/// for those of one window.
const HEAP: u64 = 1 << 30;

/// In the first windows nothing is looked for that the rows at hand do not need.
const FIRST: u64 = 3;

/// After how many windows it is looked again whether a shard is in memory.
const LOOK_EVERY: u64 = 64;

/// How many shards are fetched or checked at once.
const AT_ONCE: usize = 8;

/// Shards of a store, mapped. Each is checked whole when this machine first reads it, and again after it was changed or the
/// machine was started.
pub(crate) struct ShardFiles {
    origin: Arc<Origin>,
    runtime: Runtime,
    cache: Arc<SharedCache>,
    manifest: Arc<Manifest>,
    open: Open,
    /// Rows are asked of the disk one by one: they are large, or the memory does not hold all of them.
    by_row: bool,
    /// The memory holds all of them.
    fits: bool,
    /// How each shard is used.
    used: Vec<Used>,
    /// Counts the calls of [`prepare`](Self::prepare), from 1.
    window: u64,
    clocks: Arc<Clocks>,
    /// What is on its way is not wanted any more.
    stop: CancellationToken,
}

/// How a shard is used.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    /// The window that it was last read in; 0 if in none.
    window: u64,
    /// It was found in memory whole, so its rows need not be asked for.
    is_resident: bool,
    /// The window from which on that is looked at again.
    look_again: u64,
}

impl ShardFiles {
    pub(crate) fn new(
        origin: Arc<Origin>,
        cache: Arc<SharedCache>,
        manifest: Arc<Manifest>,
        clocks: Arc<Clocks>,
        stop: CancellationToken,
    ) -> Result<Self, LoadError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("shardd-fetch")
            .enable_all()
            .build()
            .map_err(|source| LoadError::Threads { source })?;
        let bytes: u64 = manifest.shards.iter().map(|shard| shard.bytes).sum();
        if manifest.shards.first().is_some_and(|shard| origin.local_path(&shard.id).is_none()) {
            cache.check(manifest.shards.iter().map(|shard| shard.bytes).max().unwrap_or(0))?;
            if bytes > cache.limit().0 {
                let (needed, limit) = (ByteSize(bytes).to_string(), cache.limit().to_string());
                warn!(dir = %cache.dir().display(), needed, limit,
                      "the cache is smaller than the dataset: shards are fetched again and again; raise cache_limit");
            }
        }
        let row_bytes = manifest.row_bytes() / manifest.sample_count().max(1);
        let fits = memory::available().is_none_or(|room| bytes <= room / 5 * 4);
        let by_row = row_bytes >= LARGE_ROW || !fits;
        let (open, used) = (Open::none(manifest.shards.len()), vec![Used::default(); manifest.shards.len()]);
        Ok(Self { origin, runtime, cache, manifest, open, by_row, fits, used, window: 0, clocks, stop })
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
            let opened: Vec<(u32, Option<Arc<Shard>>)> = side_by_side(&left, |number| {
                let entry = &self.manifest.shards[*number as usize];
                Ok((*number, self.open_one(entry, clocks)?))
            })?;
            let open = Arc::make_mut(&mut self.open.0);
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
                    let entry = &self.manifest.shards[*number as usize];
                    let fetched = clocks.time(On::Network, || self.fetch(entry))?;
                    Ok((*number, Arc::new(clocks.time(On::Disk, || Shard::from_bytes(fetched))?)))
                })?;
                let open = Arc::make_mut(&mut self.open.0);
                fetched.into_iter().for_each(|(number, shard)| open[number as usize] = Some(shard));
                return Ok(());
            }
        }
        Ok(())
    }

    /// Opens a shard where it lies, or brings it to this machine; `None` if there is no room for it.
    fn open_one(&self, entry: &ShardEntry, clocks: &Clocks) -> Result<Option<Arc<Shard>>, LoadError> {
        let open_file = |path: &Path| clocks.time(On::Disk, || self.open_file(entry, path));
        if let Some(path) = self.origin.local_path(&entry.id) {
            return open_file(&path).map(Some);
        }
        // Another process may be fetching it.
        let get = || clocks.time(On::Network, || self.cache.get(entry.id, entry.bytes, || self.fetch(entry)));
        let Fetched::Here(path) = get()? else { return Ok(None) };
        match open_file(&path) {
            Err(LoadError::Shard(error @ (ShardError::Corrupt { .. } | ShardError::WrongDigest { .. }))) => {
                warn!(path = %path.display(), %error, "a shard was damaged where it is kept; fetching it again");
                self.cache.discard(&path)?;
                let Fetched::Here(path) = get()? else {
                    return Ok(None);
                };
                open_file(&path).map(Some)
            }
            opened => opened.map(Some),
        }
    }

    fn open_file(&self, entry: &ShardEntry, path: &Path) -> Result<Arc<Shard>, LoadError> {
        let is_verified = self.cache.is_verified(entry.id, path);
        let shard = Shard::open_with(path, |bytes| {
            if is_verified && self.by_row {
                return populate(&bytes[bytes.len().saturating_sub(FOOTER)..]);
            }
            if is_verified && are_resident(bytes) {
                return Ok(());
            }
            will_need(bytes);
            populate(bytes)
        })?;
        if !is_verified {
            shard.verify(entry.id)?;
            self.cache.note_verified(entry.id, path);
        }
        Ok(Arc::new(shard))
    }

    /// A shard from the store, whole; not, once nobody wants it any more.
    fn fetch(&self, entry: &ShardEntry) -> Result<Bytes, LoadError> {
        self.runtime.block_on(async {
            tokio::select! {
                () = self.stop.cancelled() => Err(LoadError::Stopped),
                shard = self.origin.shard(entry) => Ok(shard?),
            }
        })
    }

    /// Lets go of the shards that were read longest ago, but not of those of this window; whether there were any.
    fn make_room(&mut self) -> bool {
        let numbered = (0u32..).zip(self.used.iter().zip(self.open.0.iter()));
        let mut old: Vec<(u64, u32)> = numbered
            .filter(|(_, (used, open))| used.window < self.window && open.is_some())
            .map(|(number, (used, _))| (used.window, number))
            .collect();
        old.sort_unstable();
        old.truncate(AT_ONCE);
        let open = Arc::make_mut(&mut self.open.0);
        for (_, number) in &old {
            open[*number as usize] = None;
            self.used[*number as usize] = Used::default();
            self.cache.release(self.manifest.shards[*number as usize].id);
        }
        !old.is_empty()
    }

    /// Makes rows ready, by the numbers of their shards and in these; blocks until they are. What earlier calls made ready may
    /// be let go of, but for what they have given.
    pub(crate) fn prepare(
        &mut self,
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
        let missing = wanted.iter().copied().filter(|number| self.open.0[*number as usize].is_none());
        self.open_all(&missing.collect::<Vec<_>>())?;
        while self.open.heap_bytes() > HEAP && self.make_room() {}
        if self.by_row {
            let began = Instant::now();
            // Somebody waits for the first rows, and they are few.
            if self.window > FIRST {
                self.look(&wanted);
            }
            self.read_rows(rows.filter(|(number, _)| !self.used[*number as usize].is_resident))?;
            self.clocks.add(On::Disk, began.elapsed());
        }
        Ok(self.open.clone())
    }

    /// Finds out now and then which shards are in memory, if it has room for all of them.
    fn look(&mut self, wanted: &[u32]) {
        for number in wanted.iter().filter(|_| self.fits) {
            let used = &mut self.used[*number as usize];
            if !used.is_resident
                && used.look_again <= self.window
                && let Some(shard) = &self.open.0[*number as usize]
            {
                used.is_resident = are_resident(shard.bytes());
                used.look_again = self.window + LOOK_EVERY;
            }
        }
    }

    /// Has rows read: all are asked for before any is waited for.
    fn read_rows(&self, rows: impl Iterator<Item = (u32, u32)> + Clone) -> Result<(), LoadError> {
        for (shard, row) in rows.clone() {
            let (encoder, row) = self.open.place(shard, row);
            encoder.memory_of(row).for_each(will_need);
        }
        for (number, row) in rows {
            let (encoder, row) = self.open.place(number, row);
            let failed = |source| ShardError::Io {
                shard: self.manifest.shards[number as usize].id.to_string(),
                source,
            };
            encoder.memory_of(row).try_for_each(populate).map_err(failed)?;
        }
        Ok(())
    }
}

/// Shards that are open, by their numbers.
#[derive(Clone)]
pub(crate) struct Open(Arc<Vec<Option<Arc<Shard>>>>);

impl Open {
    fn none(of: usize) -> Self {
        Self(Arc::new(vec![None; of]))
    }

    /// How much memory of their own they take.
    fn heap_bytes(&self) -> u64 {
        self.0.iter().flatten().map(|shard| shard.heap_bytes()).sum()
    }

    /// Where a row lies that was made ready.
    pub(crate) fn place(&self, shard: u32, row: u32) -> (&RowEncoder, usize) {
        self.0[shard as usize].as_ref().expect("made ready").place(row)
    }
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
