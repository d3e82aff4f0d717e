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
use shardfmt::row::{Memory, RowEncoder, Rows};
use shardfmt::shard::{StoredBatch, populate, will_need};
use shardfmt::{Shard, ShardError};

use super::super::super::open_files::most_open_here;
use super::super::super::pool::Pool;
use super::super::super::{LoadError, spawn};
use super::blocks::{Block, Blocks};
use super::bundles::{Bundle, Filled};
use super::probe;
use super::sweeps::Pick;
use super::way::{Data, Disk, is_clear};
use crate::loader::direct_file::{DirectFile, FileId};

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
    Row { number: u32, pick: Pick, shard: Arc<Shard>, reserved: u64 },
    /// Reads record batches that follow each other, and keeps the picked rows of them.
    Part {
        number: u32,
        shard: Arc<Shard>,
        first: usize,
        batches: Vec<StoredBatch>,
        picks: Vec<Pick>,
        reserved: u64,
    },
    /// Measures the disk by some of its shards, to choose a way for this data with this memory.
    Probe { shards: Vec<Arc<Shard>>, data: Data, memory: u64 },
}

/// What came of it.
pub(super) enum Done {
    Rows {
        /// Each with its place in the order, and its number among the rows of its bundle.
        rows: Vec<(u64, Arc<Kept>, u32)>,
        is_part: bool,
    },
    Failed(LoadError),
    /// `None`: these files cannot be read past the page cache.
    Probed(Option<Disk>),
    /// No file could be opened now, as the process has too many open.
    Unprobed,
}

/// The threads. Dropping them ends what they are at, which is waited for.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    jobs: Mutex<Jobs>,
    /// There are more rows to read, or nothing ever again.
    more_rows: Condvar,
    /// The same for parts.
    more_parts: Condvar,
    /// Something is done.
    done: Condvar,
    files: Mutex<Files>,
    of_rows: Pool,
    of_parts: Blocks,
    of_bundles: Blocks,
    sizes: Sizes,
    meter: Arc<Meter>,
}

/// The files of shards, by their numbers.
#[derive(Debug)]
struct Files {
    /// How many are open at most.
    most: usize,
    /// Of each shard whose rows are read the file that was mapped.
    known: HashMap<u32, FileId>,
    /// Those of them that are open.
    open: HashMap<u32, Arc<DirectFile>>,
}

impl Files {
    fn of(most: usize) -> Self {
        Self { most, known: HashMap::new(), open: HashMap::new() }
    }

    /// Keeps a file open, unless its shard was removed meanwhile: a job that was given before may read it still.
    fn keep(&mut self, number: u32, file: &Arc<DirectFile>) {
        if !self.known.contains_key(&number) {
            return;
        }
        if self.open.len() >= self.most
            && let Some(other) = self.open.keys().next().copied()
        {
            self.open.remove(&other);
        }
        self.open.insert(number, Arc::clone(file));
    }
}

/// How much is read at once, and the memory for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// How many rows are read at once, and how many parts.
    pub(super) rows_at_once: usize,
    pub(super) parts_at_once: usize,
    /// The memory for a part.
    pub(super) part_bytes: u64,
    pub(super) bundle: Bundle,
    /// All memory, and the part of it that may be free.
    pub(super) memory: u64,
    pub(super) free: u64,
    /// Of a row on average, at least 1.
    pub(super) row_bytes: u64,
}

#[derive(Default)]
struct Jobs {
    rows: VecDeque<Job>,
    parts: VecDeque<Job>,
    done: Vec<Done>,
    is_over: bool,
}

/// What a thread does. Rows that a reader waits for do not wait for parts, nor parts for them: the more parts were read, the
/// fewer rows have to be read alone.
#[derive(Debug, Clone, Copy)]
enum Duty {
    Rows,
    Parts,
}

impl Jobs {
    fn of(&mut self, duty: Duty) -> &mut VecDeque<Job> {
        match duty {
            Duty::Rows => &mut self.rows,
            Duty::Parts => &mut self.parts,
        }
    }
}

impl Workers {
    /// Threads that read rows and parts.
    pub(super) fn start(sizes: Sizes, meter: Arc<Meter>) -> Result<Self, LoadError> {
        let Sizes { rows_at_once, parts_at_once, part_bytes, bundle, memory, free, row_bytes } = sizes;
        let free_rows = (free / row_bytes).clamp(FEWEST_FREE, MOST_FREE);
        let shared = Shared {
            jobs: Mutex::default(),
            more_rows: Condvar::new(),
            more_parts: Condvar::new(),
            done: Condvar::new(),
            files: Mutex::new(Files::of(most_open_here())),
            of_rows: Pool::of_pages(free_rows as usize),
            of_bundles: Blocks::new(bundle.bytes, memory, memory),
            of_parts: Blocks::new(part_bytes, memory, part_bytes * parts_at_once as u64),
            sizes,
            meter,
        };
        let threads = Vec::with_capacity(rows_at_once + parts_at_once);
        let mut workers = Self { shared: Arc::new(shared), threads };
        let parts = std::iter::repeat_n(Duty::Parts, parts_at_once);
        for duty in parts.chain(std::iter::repeat_n(Duty::Rows, rows_at_once)) {
            let shared = Arc::clone(&workers.shared);
            workers.threads.push(spawn("shardd-disk", move || shared.work(duty))?);
        }
        Ok(workers)
    }

    /// Rows that are kept take no more than this from now on, those that are free counted.
    pub(super) fn limit(&self, bytes: u64) {
        self.shared.of_bundles.limit(bytes);
    }

    /// Reads rows of this shard from now on, past the page cache from the file that was mapped, if its path still names that.
    pub(super) fn know(&self, number: u32, shard: &Shard) {
        let id = shard.path().and_then(|path| FileId::at(path).ok());
        if let Some(id) = id.filter(|id| id.bytes == shard.bytes().len() as u64) {
            self.shared.files().known.insert(number, id);
        }
    }

    /// Closes the file of a shard for good: one that was removed takes room on the disk while it is open.
    pub(super) fn forget(&self, number: u32) {
        let mut files = self.shared.files();
        files.known.remove(&number);
        files.open.remove(&number);
    }

    pub(super) fn give(&self, jobs: impl IntoIterator<Item = Job>) {
        let Sizes { rows_at_once, parts_at_once, .. } = self.shared.sizes;
        let (mut rows, mut parts) = (0, 0);
        let mut waiting = self.shared.lock();
        for job in jobs {
            let (queue, count) = match job {
                Job::Row { .. } => (&mut waiting.rows, &mut rows),
                Job::Part { .. } | Job::Probe { .. } => (&mut waiting.parts, &mut parts),
            };
            queue.push_back(job);
            *count += 1;
        }
        drop(waiting);
        (0..rows_at_once.min(rows)).for_each(|_| self.shared.more_rows.notify_one());
        (0..parts_at_once.min(parts)).for_each(|_| self.shared.more_parts.notify_one());
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
        self.shared.more_rows.notify_all();
        self.shared.more_parts.notify_all();
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

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().expect("no panic while held")
    }

    fn work(&self, duty: Duty) {
        let more = match duty {
            Duty::Rows => &self.more_rows,
            Duty::Parts => &self.more_parts,
        };
        let mut jobs = self.lock();
        loop {
            jobs = match jobs.of(duty).pop_front() {
                Some(job) => {
                    drop(jobs);
                    // A reader would wait for ever for one that is gone.
                    let done = catch_unwind(AssertUnwindSafe(|| self.carry_out(job)));
                    let done = done.unwrap_or_else(|_| Err(panicked())).unwrap_or_else(Done::Failed);
                    let mut jobs = self.lock();
                    jobs.done.push(done);
                    self.done.notify_one();
                    jobs
                }
                None if jobs.is_over => return,
                None => more.wait(jobs).expect("no panic while held"),
            };
        }
    }

    fn carry_out(&self, job: Job) -> Result<Done, LoadError> {
        match job {
            Job::Row { number, pick, shard, reserved } => {
                let kept = self.row(number, pick.row, &shard)?;
                self.meter.take(reserved);
                Ok(Done::Rows { rows: vec![(pick.seq, kept, 0)], is_part: false })
            }
            Job::Part { number, shard, first, batches, picks, reserved } => {
                let rows = self.part(number, &shard, first, &batches, &picks)?;
                self.meter.take(reserved);
                Ok(Done::Rows { rows, is_part: true })
            }
            Job::Probe { shards, data, memory } => {
                let opened = shards.iter().filter_map(|shard| shard.path()).map(DirectFile::open);
                let Some(files) = those_open(opened) else { return Ok(Done::Unprobed) };
                let is_enough = |disk: &Disk| is_clear(&data, memory, disk);
                let disk = probe::measure(&files, data.row_bytes, self.sizes.rows_at_once, is_enough);
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
    ) -> Result<Vec<(u64, Arc<Kept>, u32)>, LoadError> {
        let ([start, ..], [.., end]) = (batches, batches) else { return Ok(Vec::new()) };
        let range = start.bytes.start..end.bytes.end;
        let failed = |source| ShardError::Io { shard: name_of(shard), source };
        let memory = self.of_parts.take().map_err(failed)?;
        let bytes = self.read(number, shard, range.clone(), &memory).map_err(failed)?;
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
        let sizes = |pick: &Pick| {
            let (encoder, row) = place(pick);
            encoder.memory_of(row..row + 1).map(|value| value.len() as u64)
        };
        for Filled { picks, bytes } in self.sizes.bundle.of(picks, sizes) {
            let gathered = Rows::Columns(picks.iter().map(place).collect());
            let fits = bytes <= self.of_bundles.block_bytes();
            let block = fits.then(|| self.of_bundles.take()).transpose().map_err(failed)?;
            let memory = block.as_ref().map_or(self.of_bundles.large() as &dyn Memory, |block| block);
            let bundle = shard.codec().gather(&gathered, memory)?;
            let in_block = block.as_ref().map_or(0, Block::used_bytes);
            let beside = (bundle.get_array_memory_size() as u64).saturating_sub(in_block);
            let block_bytes = if fits { self.of_bundles.block_bytes() } else { 0 };
            let kept = Kept::new(shard.codec().encoder(&bundle)?, block_bytes + beside, &self.meter);
            rows.extend((0u32..).zip(picks).map(|(at, pick)| (pick.seq, Arc::clone(&kept), at)));
        }
        Ok(rows)
    }

    /// Bytes of a shard's file: past the page cache, or where that is not to be had, of its map.
    fn read(
        &self,
        number: u32,
        shard: &Shard,
        range: std::ops::Range<u64>,
        memory: &dyn Memory,
    ) -> io::Result<Buffer> {
        let read = match shard.path().map(|path| self.file(number, path)) {
            Some(Ok(file)) => file.read(range.clone(), memory),
            // A cache may have removed the file, or put another in its place: that which was checked stays mapped.
            Some(Err(_)) | None => Err(io::ErrorKind::InvalidInput.into()),
        };
        match read {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let mapped = &shard.bytes()[range.start as usize..range.end as usize];
                will_need(mapped);
                populate(mapped).map_err(|error| {
                    let reason = format!("its map cannot be read, as if the file was cut off: {error}");
                    io::Error::new(error.kind(), reason)
                })?;
                Ok(Buffer::from(mapped))
            }
            read => read,
        }
    }

    /// The file that was mapped.
    fn file(&self, number: u32, path: &Path) -> io::Result<Arc<DirectFile>> {
        let files = self.files();
        if let Some(file) = files.open.get(&number) {
            return Ok(Arc::clone(file));
        }
        let Some(id) = files.known.get(&number).copied() else { return Err(io::ErrorKind::NotFound.into()) };
        drop(files); // others read meanwhile: opening takes long in a file system of a network
        let file = Arc::new(DirectFile::open(path)?);
        if file.id()? != id {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.files().keep(number, &file);
        Ok(file)
    }
}

/// The files that were opened; `None` if there are none now, and may be later: the process has too many open.
fn those_open<T>(opened: impl Iterator<Item = io::Result<T>>) -> Option<Vec<T>> {
    let (mut files, mut are_too_many) = (Vec::new(), false);
    for opened in opened {
        match opened {
            Ok(file) => files.push(file),
            Err(error) => {
                are_too_many |= matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
            }
        }
    }
    (!files.is_empty() || !are_too_many).then_some(files)
}

fn panicked() -> LoadError {
    LoadError::Threads {
        source: io::Error::other("a thread that reads shards has panicked; see its message"),
    }
}

fn name_of(shard: &Shard) -> String {
    shard.path().map_or_else(String::new, |path| path.display().to_string())
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::hash::{DefaultHasher, Hash, Hasher};

    use arrow::array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
    use shardfmt::ShardWriter;
    use tempfile::TempDir;

    use super::super::super::super::open_files::most_open;
    use super::*;

    /// Of the rows of shards of tests.
    pub(in super::super) const ROW: u64 = 3000;

    pub(in super::super) fn directory() -> TempDir {
        tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory on the disk")
    }

    /// A shard of rows of half to one and a half times their average size.
    pub(in super::super) fn shard(dir: &TempDir, number: u32, rows: u32) -> Arc<Shard> {
        let bytes = |row: u32| {
            let mut spread = DefaultHasher::new();
            (number, row).hash(&mut spread);
            let length = ROW / 2 + spread.finish() % (ROW + 1);
            (0..length as u32).map(|at| (number * 17 + row * 7 + at * 13) as u8).collect::<Vec<u8>>()
        };
        let values: Vec<Vec<u8>> = (0..rows).map(bytes).collect();
        let labels = Int64Array::from_iter_values((0..rows).map(|row| (number * 100_003 + row).into()));
        let batch = RecordBatch::try_from_iter([
            ("bytes", Arc::new(BinaryArray::from_iter_values(&values)) as ArrayRef),
            ("label", Arc::new(labels)),
        ]);
        let batch = batch.expect("as many of each");
        let mut writer = ShardWriter::new(batch.schema()).expect("plain columns");
        writer.push(&batch).expect("rows of the schema");
        let path = dir.path().join(number.to_string());
        fs::write(&path, writer.finish().expect("rows").bytes).expect("writes");
        Arc::new(Shard::open(&path).expect("own shard"))
    }

    fn workers() -> Workers {
        workers_of(Bundle::new(ROW, 350))
    }

    fn workers_of(bundle: Bundle) -> Workers {
        let sizes = Sizes {
            rows_at_once: 2,
            parts_at_once: 1,
            part_bytes: 4 << 20,
            bundle,
            memory: 16 << 20,
            free: 1 << 20,
            row_bytes: ROW,
        };
        Workers::start(sizes, Arc::default()).expect("threads")
    }

    fn done(workers: &Workers, job: Job) -> Done {
        workers.give([job]);
        workers.await_done(Duration::from_mins(1)).pop().expect("it is done in time")
    }

    fn row(shard: &Arc<Shard>, row: u32) -> Job {
        Job::Row { number: 0, pick: Pick { seq: 0, row }, shard: Arc::clone(shard), reserved: 0 }
    }

    /// All of its rows, or every second.
    fn part(shard: &Arc<Shard>, step: usize) -> Job {
        let rows = (0..shard.rows()).step_by(step);
        let picks = rows.map(|row| Pick { seq: row.into(), row }).collect();
        let batches = shard.stored().collect();
        Job::Part { number: 0, shard: Arc::clone(shard), first: 0, batches, picks, reserved: 0 }
    }

    /// The rows that a job gave, whose places in the order are their numbers in the shard.
    fn check(done: Done, shard: &Shard, only: Option<u32>) -> Vec<Arc<Kept>> {
        let Done::Rows { rows, .. } = done else { panic!("it failed") };
        for (seq, kept, at) in &rows {
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            kept.encoder.encode(*at as usize, &mut found).expect("a row");
            shard.encode_row(only.unwrap_or(*seq as u32), &mut expected).expect("a row");
            assert!(found == expected, "row {seq}");
        }
        rows.into_iter().map(|(_, kept, _)| kept).collect()
    }

    #[test]
    fn rows_of_many_sizes_lie_in_their_blocks() {
        let dir = directory();
        let (shard, workers) = (shard(&dir, 0, 700), workers());
        workers.know(0, &shard);
        let mut kept = check(done(&workers, part(&shard, 2)), &shard, None);
        assert_eq!(kept.len(), 350);
        kept.dedup_by(|one, other| Arc::ptr_eq(one, other));
        let (block, all) = (workers.shared.of_bundles.block_bytes(), workers.shared.meter.bytes());
        for kept in &kept {
            assert!(kept.bytes <= block + 2048, "{} bytes, more than a block and its offsets", kept.bytes);
        }
        let foreseen = workers.shared.sizes.bundle.bytes_of(350, 1);
        assert!(all <= foreseen, "{all} bytes instead of {foreseen}");
        drop(kept);
        assert_eq!(workers.shared.meter.bytes(), 0);
    }

    #[test]
    fn rows_that_are_larger_than_a_block_take_none() {
        let dir = directory();
        let shard = shard(&dir, 0, 30);
        let workers = workers_of(Bundle { rows: 2, bytes: 4096 });
        let mut kept = check(done(&workers, part(&shard, 1)), &shard, None);
        kept.dedup_by(|one, other| Arc::ptr_eq(one, other));
        // In whole pages.
        assert!(kept.iter().any(|kept| kept.bytes >= 2 * 4096), "some are larger");
        assert!(kept.iter().all(|kept| kept.bytes <= 2 * 4096 + 1024), "and take no block beside");
    }

    #[test]
    fn the_file_of_a_removed_shard_is_not_kept_open() {
        let dir = directory();
        let (shard, workers) = (shard(&dir, 0, 30), workers());
        if DirectFile::open(shard.path().expect("a file")).is_err() {
            return; // this file system knows no reading past its cache
        }
        workers.know(0, &shard);
        check(done(&workers, row(&shard, 3)), &shard, Some(3));
        let is_open = || workers.shared.files().open.contains_key(&0);
        assert!(is_open());
        workers.forget(0);
        assert!(!is_open());
        // A job that was given before.
        check(done(&workers, row(&shard, 4)), &shard, Some(4));
        assert!(!is_open(), "it would take room on the disk for ever");
        let file = Arc::new(DirectFile::open(shard.path().expect("a file")).expect("opens"));
        workers.shared.files().keep(0, &file);
        assert!(!is_open(), "it was removed while its file was being opened");
    }

    #[test]
    fn files_are_open_up_to_a_part_of_what_the_process_may() {
        let most = [None, Some(u64::MAX), Some(1024), Some(7), Some(0)].map(most_open);
        assert_eq!(most, [256, 256, 128, 1, 1]);
        let dir = directory();
        let shards: Vec<_> = (0..3).map(|number| shard(&dir, number, 10)).collect();
        let mut files = Files::of(most_open(Some(16)));
        for (number, shard) in (0u32..).zip(&shards) {
            let path = shard.path().expect("a file");
            files.known.insert(number, FileId::at(path).expect("is there"));
            let Ok(file) = DirectFile::open(path) else { return };
            files.keep(number, &Arc::new(file));
            assert!(files.open.len() <= 2 && files.open.contains_key(&number));
        }
    }

    #[test]
    fn rows_are_those_of_the_checked_file_after_another_took_its_path() {
        let dir = directory();
        let (shard, workers) = (shard(&dir, 0, 200), workers());
        workers.know(0, &shard);
        let (path, other) = (shard.path().expect("a file"), dir.path().join("other"));
        fs::write(&other, vec![7; shard.bytes().len()]).expect("writes");
        fs::rename(&other, path).expect("takes its place");
        check(done(&workers, row(&shard, 11)), &shard, Some(11));
        check(done(&workers, part(&shard, 2)), &shard, None);
    }

    #[test]
    fn a_disk_is_measured_without_the_files_that_do_not_open() {
        let dir = directory();
        let shards: Vec<_> = (0..3).map(|number| shard(&dir, number, 200)).collect();
        if DirectFile::open(shards[0].path().expect("a file")).is_err() {
            return; // this file system knows no reading past its cache
        }
        fs::remove_file(shards[1].path().expect("a file")).expect("is removed");
        let data = Data { bytes: 1 << 20, row_bytes: ROW, kept_bytes: ROW, rows: 600, shards: 3 };
        let workers = workers();
        let measured = done(&workers, Job::Probe { shards: shards.clone(), data, memory: 1 << 20 });
        assert!(matches!(measured, Done::Probed(Some(_))));
        shards.iter().for_each(|shard| _ = fs::remove_file(shard.path().expect("a file")));
        let measured = done(&workers, Job::Probe { shards, data, memory: 1 << 20 });
        assert!(matches!(measured, Done::Probed(None)));
    }

    #[test]
    fn a_disk_is_measured_again_if_too_many_files_were_open() {
        let failed = |number| Err(io::Error::from_raw_os_error(number));
        let of = |opened: Vec<io::Result<u8>>| those_open(opened.into_iter());
        assert_eq!(of(vec![failed(libc::EMFILE), Ok(1), failed(libc::EINVAL), Ok(2)]), Some(vec![1, 2]));
        assert_eq!(of(vec![failed(libc::ENOENT), failed(libc::EMFILE)]), None);
        assert_eq!(of(vec![failed(libc::EINVAL), failed(libc::EINVAL)]), Some(Vec::new()));
    }
}
