//! Rows of mapped files that are read when they are gathered, and not before.
//!
//! Where memory is short, the kernel also drops pages that were asked for and not used yet, most of all those of rows that lay
//! in memory already. A dropped page of a mapped row is read by itself when its address is touched, and the thread
//! waits for each. So threads ask for large rows a little ahead of those that they gather, and read them from their files into
//! the batch: the missing part of a row comes with one request. Rows of many megabytes are not asked for, because a kernel that
//! sees a file being read on reads ahead in larger pieces.
//!
//! Where the kernel's cache holds too little to be of use, it also costs most of the processor's time. There large values are read
//! past it, several at a time by as many threads, and copied into the batch: a direct read fills whole blocks, and a value
//! begins anywhere in one. Rows of many megabytes gain nothing by that.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use arrow::buffer::Buffer;
use rustix::fs::{Advice, fadvise};
use shardfmt::Shard;
use shardfmt::shard::{populate, will_need};

use super::clocks::{Clocks, On};
use super::direct_file::{DirectFile, FileId};
use super::open_files::most_open_here;
use super::pool::Pool;

/// Rows of at least this size are read without being asked for, and through the page cache.
const LONG_ROW: u64 = 8 << 20;

/// The least that the kernel reads for a value.
const PAGE: u64 = 4096;

/// A value without a file is read from the map in pieces of this size.
const PIECE: usize = 1 << 20;

/// Smaller values are read through the page cache, since it holds those beside them.
const PAST_CACHE: usize = 32 << 10;

/// How many pieces of values are read past the page cache at once, for each thread that gathers.
const AT_ONCE: usize = 16;

/// Memory of this number of pieces is used again: of all that are read at once, but for very many threads.
const PIECES_KEPT: usize = 256;

/// A mapped shard whose rows are read when they are gathered.
#[derive(Debug)]
pub(crate) struct LateFile {
    shard: Arc<Shard>,
    /// From which values are read; without it from the map.
    file: Option<File>,
    /// Large values are read past the page cache, if it is there.
    past_cache: Option<PastCache>,
    has_long_rows: bool,
}

/// How a file is read past the page cache.
#[derive(Debug)]
struct PastCache {
    /// Without it the file is opened for each read, which takes a tenth of the time of a read.
    file: Option<DirectFile>,
    /// Which file that is: a cache may have put another in its place.
    id: FileId,
    /// Memory of whole blocks.
    memory: Arc<Pool>,
    /// The file system gives nothing past its cache.
    is_refused: AtomicBool,
}

impl PastCache {
    fn read(&self, path: Option<&Path>, range: Range<u64>) -> io::Result<Buffer> {
        if let Some(file) = &self.file {
            return file.read(range, &*self.memory);
        }
        let file = DirectFile::open(path.ok_or(io::ErrorKind::NotFound)?)?;
        if file.id()? != self.id {
            return Err(io::ErrorKind::NotFound.into());
        }
        file.read(range, &*self.memory)
    }
}

impl LateFile {
    /// A shard with rows of `row_bytes` in the mean. Its file is opened again if it `may_open` it, and if it is still there. With
    /// `memory` large values are read into that past the page cache.
    fn new(shard: &Arc<Shard>, row_bytes: u64, may_open: bool, memory: Option<&Arc<Pool>>) -> Self {
        let has_long_rows = row_bytes >= LONG_ROW;
        let path = shard.path();
        let past_cache = path.zip(memory.filter(|_| !has_long_rows)).and_then(|(path, memory)| {
            let file = DirectFile::open(path).ok()?;
            let (id, memory) = (file.id().ok()?, Arc::clone(memory));
            Some(PastCache { file: may_open.then_some(file), id, memory, is_refused: AtomicBool::new(false) })
        });
        let open = |path: &Path| {
            let file = File::open(path).ok()?;
            if !has_long_rows {
                // Else the kernel may take a row for the first of many in a row. It is only a wish.
                let _ = fadvise(&file, 0, None, Advice::Random);
            }
            Some(file)
        };
        // One file is open for each: small values beside those that are read past the page cache are read from the map.
        let file = path.filter(|_| may_open && past_cache.is_none()).and_then(open);
        Self { shard: Arc::clone(shard), file, past_cache, has_long_rows }
    }

    /// Whether it has a file open.
    fn is_open(&self) -> bool {
        self.file.is_some() || self.past_cache.as_ref().is_some_and(|past_cache| past_cache.file.is_some())
    }

    /// Where a value lies in the file, if it does.
    fn offset_of(&self, value: &[u8]) -> Option<u64> {
        let (all, value) = (self.shard.bytes().as_ptr_range(), value.as_ptr_range());
        let is_within = all.start <= value.start && value.end <= all.end;
        is_within.then(|| (value.start.addr() - all.start.addr()) as u64)
    }

    /// How many bytes the disk is to be asked for ahead of reading a value through the page cache.
    fn asked_bytes(&self, value: &[u8]) -> u64 {
        let reads_on = self.has_long_rows && self.file.is_some();
        if reads_on || value.is_empty() || self.offset_of(value).is_none() {
            return 0;
        }
        (value.len() as u64).max(PAGE)
    }

    /// Whether a value is read past the page cache.
    fn is_past_cache(&self, value: &[u8]) -> bool {
        let is_open = |past_cache: &PastCache| !past_cache.is_refused.load(Relaxed);
        value.len() >= PAST_CACHE && self.past_cache.as_ref().is_some_and(is_open)
    }

    /// Reads a part of a value past the page cache, or if that fails through it, which tells the error.
    fn read_past_cache(&self, value: &[u8], to: &mut [u8]) -> io::Result<()> {
        let Some((past_cache, offset)) = self.past_cache.as_ref().zip(self.offset_of(value)) else {
            return self.read(value, to);
        };
        match past_cache.read(self.shard.path(), offset..offset + value.len() as u64) {
            Ok(read) => {
                to.copy_from_slice(&read);
                Ok(())
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::InvalidInput {
                    past_cache.is_refused.store(true, Relaxed);
                }
                self.read(value, to)
            }
        }
    }

    fn read(&self, value: &[u8], to: &mut [u8]) -> io::Result<()> {
        let Some(offset) = self.offset_of(value) else {
            to.copy_from_slice(value);
            return Ok(());
        };
        let read = match &self.file {
            Some(file) => file.read_exact_at(to, offset),
            None => read_mapped(value, to),
        };
        read.map_err(|error| {
            let path = self.shard.path().unwrap_or(Path::new("")).display();
            io::Error::new(error.kind(), format!("{path}, {} bytes from {offset} on: {error}", value.len()))
        })
    }
}

/// Copies mapped bytes once the kernel has read them.
fn read_mapped(value: &[u8], to: &mut [u8]) -> io::Result<()> {
    for (piece, to) in value.chunks(PIECE).zip(to.chunks_mut(PIECE)) {
        will_need(piece);
        populate(piece)?;
        to.copy_from_slice(piece);
    }
    Ok(())
}

/// The mapped shards whose rows are read when they are gathered, by their numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct LateFiles {
    files: HashMap<u32, Arc<LateFile>>,
    /// How many of them have a file open.
    open: usize,
    /// For reads past the page cache, if there are any.
    memory: Option<Arc<Pool>>,
}

impl LateFiles {
    /// Reads large values of shards that are [added](Self::add) from now on past the page cache.
    pub(crate) fn read_past_the_page_cache(&mut self) {
        self.memory = Some(Arc::new(Pool::of_pages(PIECES_KEPT)));
    }

    /// Reads rows of this shard, which are of `row_bytes` in the mean, when they are gathered; those of a shard that `is_resident`
    /// from the page cache.
    pub(crate) fn add(
        &mut self,
        number: u32,
        shard: &Arc<Shard>,
        row_bytes: u64,
        is_resident: impl FnOnce() -> bool,
    ) {
        self.remove(number);
        // Where all are read through the cache, there is nothing to look for.
        let memory = self.memory.as_ref().filter(|_| !is_resident());
        let file = LateFile::new(shard, row_bytes, self.open < most_open_here(), memory);
        self.open += usize::from(file.is_open());
        self.files.insert(number, Arc::new(file));
    }

    /// Reads them before they are gathered.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(file) = self.files.remove(&number) {
            self.open -= usize::from(file.is_open());
        }
    }

    pub(crate) fn of(&self, number: u32) -> Option<&Arc<LateFile>> {
        self.files.get(&number)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

/// Which rows of a step are read when they are gathered, by their places in it.
#[derive(Debug, Default)]
pub(crate) struct Late {
    rows: Vec<Option<Arc<LateFile>>>,
}

impl Late {
    /// That the rows from number `from` on are these; no rows, if none of them is late.
    pub(crate) fn add(&mut self, from: usize, rows: Vec<Option<Arc<LateFile>>>) {
        if !rows.is_empty() {
            self.rows.resize(from, None);
            self.rows.extend(rows);
        }
    }

    /// Whether there is nothing to be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.iter().all(Option::is_none)
    }

    /// Copies values of a step's rows from number `first` on, one after the other, to `out`; or without that has them read where they
    /// are mapped. At most `ahead` bytes, and a value, have been asked for and not been read, or are read past the page cache at once.
    pub(crate) fn copy(
        &self,
        first: usize,
        values: &[&[u8]],
        out: Option<&mut [u8]>,
        ahead: u64,
        clocks: &Clocks,
    ) -> io::Result<()> {
        let began = Instant::now();
        let file = |at: usize| self.rows.get(first + at).and_then(Option::as_deref);
        let is_past_cache = |(at, value): (usize, &&[u8])| {
            out.is_some() && file(at).is_some_and(|file| file.is_past_cache(value))
        };
        let is_past_cache: Vec<bool> = values.iter().enumerate().map(is_past_cache).collect();
        let asked = |at: usize| match file(at) {
            Some(file) if !is_past_cache[at] => file.asked_bytes(values[at]),
            _ => 0,
        };
        let asked: Vec<u64> = (0..values.len()).map(asked).collect();
        // What the kernel has read for a file's reader is there for its map, too.
        let mut scratch = Vec::new();
        let mut rest = out.unwrap_or_else(|| {
            scratch.resize(values.iter().map(|value| value.len()).sum(), 0);
            &mut scratch
        });
        let mut pieces = Vec::new();
        let piece_bytes = usize::try_from(ahead).unwrap_or(usize::MAX) / AT_ONCE;
        let piece_bytes = piece_bytes.clamp(PAST_CACHE, PIECE);
        for turn in turns(&asked, ahead) {
            match turn {
                Turn::Ask(at) => will_need(values[at]),
                Turn::Read(at) => {
                    let to = rest.split_off_mut(..values[at].len()).expect("as long as all values");
                    match file(at) {
                        Some(file) if is_past_cache[at] => {
                            let parts = values[at].chunks(piece_bytes).zip(to.chunks_mut(piece_bytes));
                            pieces.extend(parts.map(|(value, to)| Piece { file, value, to }));
                        }
                        Some(file) => file.read(values[at], to)?,
                        None => to.copy_from_slice(values[at]),
                    }
                }
            }
        }
        let read = read_at_once(pieces);
        clocks.add(On::LateReading, began.elapsed());
        read
    }
}

/// A part of a value that is read past the page cache.
struct Piece<'a> {
    file: &'a LateFile,
    value: &'a [u8],
    to: &'a mut [u8],
}

/// Reads all pieces, several at a time. Of several errors it gives one.
fn read_at_once(pieces: Vec<Piece<'_>>) -> io::Result<()> {
    let others = pieces.len().clamp(1, AT_ONCE) - 1;
    let left = Mutex::new(pieces.into_iter());
    let next = || left.lock().expect("no panic while held").next();
    let read =
        || std::iter::from_fn(next).try_for_each(|Piece { file, value, to }| file.read_past_cache(value, to));
    thread::scope(|scope| {
        let named = || thread::Builder::new().name("shardd-read".into());
        // With fewer threads it takes longer.
        let others: Vec<_> = (0..others).map_while(|_| named().spawn_scoped(scope, read).ok()).collect();
        let own = read();
        others.into_iter().map(|other| other.join().expect("reading does not panic")).fold(own, Result::and)
    })
}

/// What is done with a value, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Ask(usize),
    Read(usize),
}

/// Asks for values, of which each takes that many bytes (0: none is asked for), and reads them in their order. Those that were
/// asked for and not read have `ahead` bytes at most, but for the last.
fn turns(asked_bytes: &[u64], ahead: u64) -> impl Iterator<Item = Turn> {
    let (mut asked, mut read, mut coming) = (0, 0, 0);
    std::iter::from_fn(move || {
        while asked < asked_bytes.len() && (coming < ahead || asked == read) {
            let bytes = asked_bytes[asked];
            (asked, coming) = (asked + 1, coming + bytes);
            if bytes > 0 {
                return Some(Turn::Ask(asked - 1));
            }
        }
        let bytes = asked_bytes.get(read)?;
        (read, coming) = (read + 1, coming - bytes);
        Some(Turn::Read(read - 1))
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, BinaryArray, RecordBatch};
    use proptest::prelude::*;
    use shardfmt::ShardWriter;

    use super::*;

    fn shard_bytes(with: u8) -> Vec<u8> {
        let value = Arc::new(BinaryArray::from_vec(vec![&[with; 3 * PAST_CACHE]])) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("value", value)]).expect("one column");
        let mut writer = ShardWriter::new(batch.schema()).expect("plain columns");
        writer.push(&batch).expect("rows of the schema");
        writer.finish().expect("rows").bytes.to_vec()
    }

    #[test]
    fn of_a_file_that_another_has_replaced_the_mapped_bytes_are_read() {
        for may_open in [true, false] {
            let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory on the disk");
            let (path, other) = (dir.path().join("shard"), dir.path().join("other"));
            std::fs::write(&path, shard_bytes(1)).expect("writes");
            std::fs::write(&other, shard_bytes(2)).expect("writes");
            let shard = Arc::new(Shard::open_with(&path, |_| Ok(())).expect("opens"));
            let memory = Arc::new(Pool::of_pages(1));
            let late = LateFile::new(&shard, 100_000, may_open, Some(&memory));
            std::fs::rename(&other, &path).expect("replaces it");
            for value in shard.memory_of(0..1).filter(|value| late.is_past_cache(value)) {
                let mut read = vec![0; value.len()];
                late.read_past_cache(value, &mut read).expect("reads");
                assert!(read == value, "bytes of the other file");
            }
        }
    }

    proptest! {
        #[test]
        fn each_value_is_asked_for_before_it_is_read_and_no_more_than_may_be_is_asked_ahead(
            sizes in prop::collection::vec(prop_oneof![Just(0u64), 1u64..5, 90u64..110], 0..40), ahead in 0u64..300,
        ) {
            let (mut asked, mut read) = (Vec::new(), Vec::new());
            for turn in turns(&sizes, ahead) {
                match turn {
                    Turn::Ask(at) => asked.push(at),
                    Turn::Read(at) => {
                        prop_assert!(sizes[at] == 0 || asked.contains(&at));
                        read.push(at);
                    }
                }
                let coming: Vec<u64> = asked.iter().filter(|at| !read.contains(at)).map(|at| sizes[*at]).collect();
                if let Some((last, others)) = coming.split_last() {
                    prop_assert!(others.iter().sum::<u64>() <= ahead.max(*last));
                }
            }
            prop_assert_eq!(asked, (0..sizes.len()).filter(|at| sizes[*at] > 0).collect::<Vec<_>>());
            prop_assert_eq!(read, (0..sizes.len()).collect::<Vec<_>>());
        }
    }
}
