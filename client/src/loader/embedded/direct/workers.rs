//! Threads that read rows of shards past the page cache into memory of their own.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use arrow::buffer::Buffer;
use shardfmt::row::{RowEncoder, Rows};
use shardfmt::shard::{StoredBatch, populate, will_need};
use shardfmt::{Shard, ShardError};

use super::super::super::pool::Pool;
use super::super::super::{LoadError, spawn};
use super::file::DirectFile;
use super::probe;
use super::sweeps::Pick;
use super::way::Disk;

/// A row by its shard's number and its own there.
pub(super) type Key = (u32, u32);

/// How many files are open at most.
const OPEN_FILES: usize = 256;

/// Rows picked from a part of a shard are kept in about this number of bundles, by the time of their use, so that most of their
/// memory is free again soon; but a bundle is no smaller than this part of all memory, since the kernel limits the maps of a process.
const BUNDLES: u64 = 8;
const BUNDLES_OF_MEMORY: u64 = 4096;

/// Memory of dropped bundles that is kept for the next.
const FREE_BUNDLES: usize = 16;

/// Of dropped rows, these numbers at least and at most.
const FEWEST_FREE: u64 = 4;
const MOST_FREE: u64 = 1024;

/// How many bytes of rows are in memory, or on their way there.
#[derive(Debug, Default)]
pub(super) struct Meter(AtomicU64);

impl Meter {
    pub(super) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Relaxed);
    }

    pub(super) fn take(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Relaxed);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Some rows in memory of their own.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(super) encoder: RowEncoder,
    bytes: u64,
    meter: Arc<Meter>,
}

impl Kept {
    fn new(encoder: RowEncoder, bytes: u64, meter: &Arc<Meter>) -> Arc<Self> {
        meter.add(bytes);
        Arc::new(Self { encoder, bytes, meter: Arc::clone(meter) })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.meter.take(self.bytes);
    }
}

/// Work for a thread.
pub(super) enum Job {
    /// Reads a row, for which `reserved` bytes were counted.
    Row { number: u32, row: u32, shard: Arc<Shard>, reserved: u64 },
    /// Reads record batches that follow each other, and keeps the picked rows of them.
    Part {
        number: u32,
        shard: Arc<Shard>,
        first: usize,
        batches: Vec<StoredBatch>,
        picks: Vec<Pick>,
        reserved: u64,
    },
    /// Measures the disk by some of its shards.
    Probe { shards: Vec<Arc<Shard>>, row_bytes: u64 },
}

/// What came of it.
pub(super) enum Done {
    Rows {
        rows: Vec<(Key, Arc<Kept>, u32)>,
        reserved: u64,
        is_part: bool,
    },
    Failed(LoadError),
    /// `None`: these files cannot be read past the page cache.
    Probed(Option<Disk>),
}

/// The threads. Dropping them ends what they are at, which is waited for.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    jobs: Mutex<Jobs>,
    /// There is more to do, or nothing ever again.
    more: Condvar,
    /// Something is done.
    done: Condvar,
    files: Mutex<HashMap<u32, Arc<DirectFile>>>,
    of_rows: Pool,
    of_parts: Pool,
    of_bundles: Pool,
    /// Of a bundle, at least.
    bundle_bytes: u64,
    /// Of a row on average, at least 1.
    row_bytes: u64,
    meter: Arc<Meter>,
    rows_at_once: usize,
    parts_at_once: usize,
}

#[derive(Default)]
struct Jobs {
    /// Rows first: a reader may be waiting for them.
    rows: VecDeque<Job>,
    parts: VecDeque<Job>,
    parts_running: usize,
    done: Vec<Done>,
    is_over: bool,
}

impl Jobs {
    fn next(&mut self, parts_at_once: usize) -> Option<Job> {
        if let Some(row) = self.rows.pop_front() {
            return Some(row);
        }
        let part = self.parts.pop_front_if(|_| self.parts_running < parts_at_once)?;
        self.parts_running += 1;
        Some(part)
    }
}

impl Workers {
    /// Threads that read up to `rows` rows of this size and `parts` parts at once, with this memory for what is kept, of which
    /// `free` bytes are for rows to come.
    pub(super) fn start(
        rows: usize,
        parts: usize,
        row_bytes: u64,
        memory: u64,
        free: u64,
        meter: Arc<Meter>,
    ) -> Result<Self, LoadError> {
        let free_rows = (free / row_bytes).clamp(FEWEST_FREE, MOST_FREE);
        let shared = Shared {
            jobs: Mutex::default(),
            more: Condvar::new(),
            done: Condvar::new(),
            files: Mutex::default(),
            of_rows: Pool::of_pages(free_rows as usize),
            of_bundles: Pool::of_pages(FREE_BUNDLES),
            bundle_bytes: memory / BUNDLES_OF_MEMORY,
            row_bytes,
            of_parts: Pool::new(parts),
            meter,
            rows_at_once: rows,
            parts_at_once: parts,
        };
        let mut workers = Self { shared: Arc::new(shared), threads: Vec::with_capacity(rows) };
        for _ in 0..rows {
            let shared = Arc::clone(&workers.shared);
            workers.threads.push(spawn("shardd-disk", move || shared.work())?);
        }
        Ok(workers)
    }

    /// Closes the file of a shard: one that was removed takes room on the disk while it is open.
    pub(super) fn forget(&self, number: u32) {
        self.shared.files.lock().expect("no panic while held").remove(&number);
    }

    pub(super) fn give(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut waiting = self.shared.lock();
        let mut given = 0;
        for job in jobs {
            match job {
                Job::Row { .. } => waiting.rows.push_back(job),
                Job::Part { .. } | Job::Probe { .. } => waiting.parts.push_back(job),
            }
            given += 1;
        }
        drop(waiting);
        (0..given.min(self.threads.len())).for_each(|_| self.shared.more.notify_one());
    }

    /// What was done since this was last asked.
    pub(super) fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut self.shared.lock().done)
    }

    /// As [`take_done`](Self::take_done), after waiting for something for some time.
    pub(super) fn await_done(&self, longest: Duration) -> Vec<Done> {
        let waiting = self.shared.lock();
        let waited = self.shared.done.wait_timeout_while(waiting, longest, |jobs| jobs.done.is_empty());
        std::mem::take(&mut waited.expect("no panic while held").0.done)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut jobs = self.shared.lock();
        (jobs.is_over, jobs.rows, jobs.parts) = (true, VecDeque::new(), VecDeque::new());
        drop(jobs);
        self.shared.more.notify_all();
        for thread in self.threads.drain(..) {
            // It has nothing that others could clean up.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().expect("no panic while held")
    }

    fn work(&self) {
        let mut jobs = self.lock();
        loop {
            jobs = match jobs.next(self.parts_at_once) {
                Some(job) => {
                    drop(jobs);
                    let is_row = matches!(job, Job::Row { .. });
                    // A reader would wait for ever for one that is gone.
                    let done = catch_unwind(AssertUnwindSafe(|| self.carry_out(job)));
                    let done = done.unwrap_or_else(|_| Err(panicked())).unwrap_or_else(Done::Failed);
                    let mut jobs = self.lock();
                    jobs.parts_running -= usize::from(!is_row);
                    jobs.done.push(done);
                    self.done.notify_one();
                    jobs
                }
                None if jobs.is_over => return,
                None => self.more.wait(jobs).expect("no panic while held"),
            };
        }
    }

    fn carry_out(&self, job: Job) -> Result<Done, LoadError> {
        match job {
            Job::Row { number, row, shard, reserved } => {
                let kept = self.row(number, row, &shard)?;
                Ok(Done::Rows { rows: vec![((number, row), kept, 0)], reserved, is_part: false })
            }
            Job::Part { number, shard, first, batches, picks, reserved } => {
                let rows = self.part(number, &shard, first, &batches, &picks)?;
                Ok(Done::Rows { rows, reserved, is_part: true })
            }
            Job::Probe { shards, row_bytes } => {
                let files = shards.iter().map(|shard| DirectFile::open(shard.path()?).ok());
                let files: Option<Vec<_>> = files.collect();
                let disk = files.and_then(|files| probe::measure(&files, row_bytes, self.rows_at_once));
                Ok(Done::Probed(disk))
            }
        }
    }

    fn row(&self, number: u32, row: u32, shard: &Shard) -> Result<Arc<Kept>, LoadError> {
        let mut bytes = 0;
        let batch = shard.detach(row, |range| {
            let buffer = self.read(number, shard, range, &self.of_rows)?;
            bytes += buffer.capacity() as u64;
            Ok(buffer)
        })?;
        Ok(Kept::new(shard.codec().encoder(&batch)?, bytes, &self.meter))
    }

    fn part(
        &self,
        number: u32,
        shard: &Shard,
        first: usize,
        batches: &[StoredBatch],
        picks: &[Pick],
    ) -> Result<Vec<(Key, Arc<Kept>, u32)>, LoadError> {
        let ([start, ..], [.., end]) = (batches, batches) else { return Ok(Vec::new()) };
        let range = start.bytes.start..end.bytes.end;
        let failed = |source| ShardError::Io { shard: name_of(shard), source };
        let bytes = self.read(number, shard, range.clone(), &self.of_parts).map_err(failed)?;
        let encoders = batches.iter().zip(first..).map(|(stored, index)| {
            let at = (stored.bytes.start - range.start) as usize;
            let bytes = bytes.slice_with_length(at, (stored.bytes.end - stored.bytes.start) as usize);
            Ok(shard.codec().encoder(&shard.decode_stored(index, &bytes)?)?)
        });
        let encoders: Vec<RowEncoder> = encoders.collect::<Result<_, LoadError>>()?;
        let place = |pick: &Pick| {
            let batch = batches.partition_point(|stored| stored.rows.end <= pick.row);
            (&encoders[batch], (pick.row - batches[batch].rows.start) as usize)
        };
        let mut rows = Vec::with_capacity(picks.len());
        let least = self.bundle_bytes / self.row_bytes;
        let bundle = (picks.len() as u64).div_ceil(BUNDLES).max(least).max(1);
        for picks in picks.chunks(usize::try_from(bundle).unwrap_or(usize::MAX)) {
            let bundle =
                shard.codec().gather(&Rows::Columns(picks.iter().map(place).collect()), &self.of_bundles)?;
            let bytes = bundle.get_array_memory_size() as u64;
            let kept = Kept::new(shard.codec().encoder(&bundle)?, bytes, &self.meter);
            rows.extend((0u32..).zip(picks).map(|(at, pick)| ((number, pick.row), Arc::clone(&kept), at)));
        }
        Ok(rows)
    }

    /// Bytes of a shard's file: past the page cache, or where that is not to be had, of its map.
    fn read(
        &self,
        number: u32,
        shard: &Shard,
        range: std::ops::Range<u64>,
        pool: &Pool,
    ) -> io::Result<Buffer> {
        let read = match shard.path().map(|path| self.file(number, path)) {
            Some(Ok(file)) => file.read(range.clone(), pool),
            // A cache may have removed the file, which stays mapped.
            Some(Err(_)) | None => Err(io::ErrorKind::InvalidInput.into()),
        };
        match read {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let mapped = &shard.bytes()[range.start as usize..range.end as usize];
                will_need(mapped);
                populate(mapped)?;
                Ok(Buffer::from(mapped))
            }
            read => read,
        }
    }

    fn file(&self, number: u32, path: &Path) -> io::Result<Arc<DirectFile>> {
        let files = || self.files.lock().expect("no panic while held");
        if let Some(file) = files().get(&number) {
            return Ok(Arc::clone(file));
        }
        // Others read meanwhile: opening takes long in a file system of a network.
        let file = Arc::new(DirectFile::open(path)?);
        let mut files = files();
        if files.len() >= OPEN_FILES
            && let Some(other) = files.keys().next().copied()
        {
            files.remove(&other);
        }
        files.insert(number, Arc::clone(&file));
        Ok(file)
    }
}

fn panicked() -> LoadError {
    LoadError::Threads {
        source: io::Error::other("a thread that reads shards has panicked; see its message"),
    }
}

fn name_of(shard: &Shard) -> String {
    shard.path().map_or_else(String::new, |path| path.display().to_string())
}
