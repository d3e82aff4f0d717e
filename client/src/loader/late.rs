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
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};
use shardfmt::Shard;
use shardfmt::shard::{populate, will_need};

use super::clocks::{Clocks, On};
use super::direct_file::DirectFile;
use super::open_files::most_open_here;
use super::pool::Pool;

/// Rows of at least this size are read without being asked for, and through the page cache.
const LONG_ROW: u64 = 8 << 20;

/// The least that the kernel reads for a value.
const PAGE: u64 = 4096;

/// A value without a file is read from the map in pieces of this size, and a value past the page cache.
const PIECE: usize = 1 << 20;

/// Smaller values are read through the page cache, since it holds those beside them.
const PAST_CACHE: usize = 32 << 10;

/// How many pieces are read past the page cache at once, for each thread that gathers.
const AT_ONCE: usize = 16;

/// Memory of this number of pieces is used again.
const PIECES_KEPT: usize = 2 * AT_ONCE;

/// A mapped shard whose rows are read when they are gathered.
#[derive(Debug)]
pub(crate) struct LateFile {
    shard: Arc<Shard>,
    /// From which values are read; without it from the map.
    file: Option<File>,
    /// From which its large values are read, if past the page cache.
    past_cache: Option<PastCache>,
    has_long_rows: bool,
}

/// A file that is read past the page cache, and memory of whole blocks for it.
#[derive(Debug)]
struct PastCache {
    file: DirectFile,
    memory: Arc<Pool>,
}

impl LateFile {
    /// A shard with rows of `row_bytes` in the mean. Its file is opened again if it `may_open` it, and if it is still there; and
    /// once more to be read past the page cache into `memory`.
    fn new(shard: &Arc<Shard>, row_bytes: u64, may_open: bool, memory: Option<&Arc<Pool>>) -> Self {
        let has_long_rows = row_bytes >= LONG_ROW;
        let open = |path: &Path| {
            let file = File::open(path).ok()?;
            if !has_long_rows {
                // Else the kernel may take a row for the first of many in a row. It is only a wish.
                let _ = fadvise(&file, 0, None, Advice::Random);
            }
            Some(file)
        };
        let file = shard.path().filter(|_| may_open).and_then(open);
        let may_bypass = file.is_some() && !has_long_rows;
        let past_cache = shard.path().zip(memory).filter(|_| may_bypass).and_then(|(path, memory)| {
            Some(PastCache { file: DirectFile::open(path).ok()?, memory: Arc::clone(memory) })
        });
        Self { shard: Arc::clone(shard), file, past_cache, has_long_rows }
    }

    /// How many files it has open.
    fn open(&self) -> usize {
        usize::from(self.file.is_some()) + usize::from(self.past_cache.is_some())
    }

    /// Where a value lies in the file, if it does.
    fn offset_of(&self, value: &[u8]) -> Option<u64> {
        let (all, value) = (self.shard.bytes().as_ptr_range(), value.as_ptr_range());
        let is_within = all.start <= value.start && value.end <= all.end;
        is_within.then(|| (value.start.addr() - all.start.addr()) as u64)
    }

    /// How many bytes the disk is to be asked for ahead of reading a value.
    fn asked_bytes(&self, value: &[u8]) -> u64 {
        let reads_on = self.has_long_rows && self.file.is_some();
        let is_never = reads_on || value.is_empty() || self.is_past_cache(value);
        if is_never || self.offset_of(value).is_none() {
            return 0;
        }
        (value.len() as u64).max(PAGE)
    }

    /// Whether a value is read past the page cache.
    fn is_past_cache(&self, value: &[u8]) -> bool {
        self.past_cache.is_some() && value.len() >= PAST_CACHE
    }

    /// Reads a value past the page cache, or if that fails through it, which tells the error.
    fn read_past_cache(&self, value: &[u8], to: &mut [u8]) -> io::Result<()> {
        if let Some((PastCache { file, memory }, offset)) =
            self.past_cache.as_ref().zip(self.offset_of(value))
            && let Ok(read) = file.read(offset..offset + value.len() as u64, &**memory)
        {
            to.copy_from_slice(&read);
            return Ok(());
        }
        self.read(value, to)
    }

    fn read(&self, value: &[u8], to: &mut [u8]) -> io::Result<()> {
        let Some(offset) = self.offset_of(value) else {
            to.copy_from_slice(value);
            return Ok(());
        };
        let Some(file) = &self.file else {
            for (piece, to) in value.chunks(PIECE).zip(to.chunks_mut(PIECE)) {
                will_need(piece);
                populate(piece)?;
                to.copy_from_slice(piece);
            }
            return Ok(());
        };
        file.read_exact_at(to, offset).map_err(|error| {
            let path = self.shard.path().unwrap_or(Path::new("")).display();
            io::Error::new(error.kind(), format!("{path}, {} bytes from {offset} on: {error}", to.len()))
        })
    }
}

/// The mapped shards whose rows are read when they are gathered, by their numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct LateFiles {
    files: HashMap<u32, Arc<LateFile>>,
    /// How many files they have open.
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
    pub(crate) fn add(&mut self, number: u32, shard: &Arc<Shard>, row_bytes: u64, is_resident: bool) {
        self.remove(number);
        let memory = self.memory.as_ref().filter(|_| !is_resident);
        let file = LateFile::new(shard, row_bytes, self.open < most_open_here(), memory);
        self.open += file.open();
        self.files.insert(number, Arc::new(file));
    }

    /// Reads them before they are gathered.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(file) = self.files.remove(&number) {
            self.open -= file.open();
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

    /// Copies values of a step's rows from number `first` on, one after the other, to `out`. At most `ahead` bytes, and a value, have
    /// been asked for and not been read, and are read past the page cache at once.
    pub(crate) fn copy(
        &self,
        first: usize,
        values: &[&[u8]],
        out: &mut [u8],
        ahead: u64,
        clocks: &Clocks,
    ) -> io::Result<()> {
        let began = Instant::now();
        let file = |at: usize| self.rows.get(first + at).and_then(Option::as_deref);
        let asked = |(at, value): (usize, &&[u8])| file(at).map_or(0, |file| file.asked_bytes(value));
        let asked: Vec<u64> = values.iter().enumerate().map(asked).collect();
        let (mut rest, mut past_cache) = (out, Vec::new());
        for turn in turns(&asked, ahead) {
            match turn {
                Turn::Ask(at) => will_need(values[at]),
                Turn::Read(at) => {
                    let to = rest.split_off_mut(..values[at].len()).expect("as long as all values");
                    match file(at) {
                        Some(file) if file.is_past_cache(values[at]) => {
                            let pieces = values[at].chunks(PIECE).zip(to.chunks_mut(PIECE));
                            past_cache.extend(pieces.map(|(value, to)| Piece { file, value, to }));
                        }
                        Some(file) => file.read(values[at], to)?,
                        None => to.copy_from_slice(values[at]),
                    }
                }
            }
        }
        let read = read_at_once(past_cache, ahead);
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

/// Reads all pieces, several at a time, but for one no more than `most` bytes. Of several errors it gives one.
fn read_at_once(pieces: Vec<Piece<'_>>, most: u64) -> io::Result<()> {
    let largest = pieces.iter().map(|piece| piece.to.len() as u64).max().unwrap_or(0);
    let at_once = usize::try_from(most / largest.max(1)).unwrap_or(AT_ONCE).clamp(1, AT_ONCE);
    let others = pieces.len().clamp(1, at_once) - 1;
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
    use proptest::prelude::*;

    use super::*;

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
