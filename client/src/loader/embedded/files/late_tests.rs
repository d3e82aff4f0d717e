//! Rows that are read when they are gathered are those that were stored, also where the kernel has dropped their pages meanwhile, and
//! past the page cache.

use std::fs::File;

use arrow::array::RecordBatch;
use rustix::fs::Advice;
use rustix::mm::madvise;
use shardfmt::RowCodec;
use shardfmt::row::{Fresh, Rows};
use shardfmt::shard::FinishedShard;

use super::direct_tests::{Directory, directory};
use super::*;
use crate::loader::direct_file::DirectFile;
use crate::loader::late::Late;

const WIDTH: usize = 60_000;

fn opened(directory: &Directory, room: u64, unit: u32, reads_late: bool) -> ShardFiles {
    let cache = Arc::new(SharedCache::open(directory.dir.path().join("cache"), None).expect("opens"));
    let (stored, stop) = (vec![directory.stored.clone()], CancellationToken::new());
    let files = ShardFiles::new(stored, cache, Arc::default(), stop, room).expect("opens");
    let files = files.in_units([Unit { rows: unit, stay: 0 }]);
    if reads_late { files.reading_late() } else { files }
}

/// Reads past the page cache also what lies in it.
fn past_the_page_cache(mut files: ShardFiles) -> ShardFiles {
    files.leaves_resident = false;
    files.past_the_page_cache(0).expect("reads")
}

/// The shards, in memory.
fn stored(directory: &Directory) -> Vec<Shard> {
    let shard = |shard: &FinishedShard| Shard::from_bytes(shard.bytes.clone()).expect("a shard");
    directory.shards.iter().map(shard).collect()
}

fn reference(codec: &RowCodec, shards: &[Shard], rows: &[(u32, u32)]) -> RecordBatch {
    let places = rows.iter().map(|(shard, row)| shards[*shard as usize].place(*row));
    codec.gather(&Rows::Columns(places.collect()), &Fresh).expect("own rows")
}

/// Gathers rows as a loader does; also how many of them were read then.
fn gather(codec: &RowCodec, open: &Open, rows: &[(u32, u32)]) -> (RecordBatch, usize) {
    let files: Vec<_> = rows.iter().map(|(shard, row)| open.late(*shard, *row).cloned()).collect();
    let count = files.iter().flatten().count();
    let mut late = Late::default();
    late.add(0, files);
    let places = Rows::Columns(rows.iter().map(|(shard, row)| open.place(*shard, *row)).collect());
    let clocks = Clocks::default();
    let copy = |first: usize, values: &[&[u8]], out: Option<&mut [u8]>| {
        late.copy(first, values, out, 1 << 20, &clocks)
    };
    (codec.gather_with(&places, &Fresh, &copy).expect("reads"), count)
}

#[test]
fn rows_that_are_read_when_they_are_gathered_are_those_that_were_stored() {
    let directory = directory(&[7, 12, 1], WIDTH);
    directory.verify();
    let stored = stored(&directory);
    let codec = RowCodec::new(directory.stored.manifest.schema.clone()).expect("plain columns");
    let of_files = [(0, 1), (0, 4), (u64::MAX, 1), (u64::MAX, 4)].map(|place| (place, false));
    for ((room, unit), past_cache) in of_files.into_iter().chain([((0, 1), true)]) {
        let mut files = opened(&directory, room, unit, true);
        if past_cache {
            files = past_the_page_cache(files);
        }
        for (epoch, rows) in directory.windows(unit as u8, 4, 6) {
            let open = files.prepare(epoch, rows.iter().copied()).expect("prepares");
            let (batch, late) = gather(&codec, &open, &rows);
            assert_eq!(batch, reference(&codec, &stored, &rows));
            assert!(late == rows.len() || room > 0, "what finds no room is read late");
        }
        // What the memory has room for is left there as soon as it is found there.
        assert_eq!(files.open.has_late(), room == 0);
    }
}

#[test]
fn rows_that_the_kernel_has_dropped_are_not_read_page_by_page() {
    let directory = directory(&[8], WIDTH);
    directory.verify();
    let rows: Vec<(u32, u32)> = (0..8).map(|row| (0, row)).collect();
    let codec = RowCodec::new(directory.stored.manifest.schema.clone()).expect("plain columns");
    let faults = [(true, false), (true, true), (false, false)].map(|(reads_late, past_cache)| {
        let files = opened(&directory, 0, 1, reads_late);
        let mut files = if past_cache { past_the_page_cache(files) } else { files };
        let open = files.prepare(0, rows.iter().copied()).expect("prepares");
        let shard = open.shards[0].as_ref().expect("is open");
        if !is_dropped(shard) {
            return None;
        }
        let before = major_faults();
        gather(&codec, &open, &rows);
        Some(major_faults() - before)
    });
    let [Some(late), Some(past_cache), Some(mapped)] = faults else {
        println!("skipped: a directory of temporary files on a disk");
        return;
    };
    let pages = (rows.len() * WIDTH / 4096) as i64;
    assert!(late < pages / 8 && mapped > pages / 2, "{late} and {mapped} of {pages} pages");
    assert!(past_cache < pages / 8, "{past_cache} of {pages} pages: a column with missing values, too");
}

#[test]
fn rows_that_are_read_past_the_page_cache_leave_nothing_in_it() {
    // More than are read at once, and one that is read in pieces.
    for (count, width) in [(24, WIDTH), (5, 2 << 20)] {
        let directory = directory(&[count], width);
        directory.verify();
        let stored = stored(&directory);
        let codec = RowCodec::new(directory.stored.manifest.schema.clone()).expect("plain columns");
        let rows: Vec<(u32, u32)> = (0..count as u32).map(|row| (0, row)).collect();
        let cached = [false, true].map(|past_cache| {
            let files = opened(&directory, 0, 1, true);
            let mut files = if past_cache { past_the_page_cache(files) } else { files };
            let open = files.prepare(0, rows.iter().copied()).expect("prepares");
            let shard = open.shards[0].as_ref().expect("is open");
            is_dropped(shard).then(|| {
                assert_eq!(gather(&codec, &open, &rows).0, reference(&codec, &stored, &rows));
                let of_a_large_value = shard.bytes().len() / 4;
                shardfmt::shard::are_resident(&shard.bytes()[of_a_large_value..=of_a_large_value])
            })
        });
        let path = directory.path(&directory.shards[0]);
        if DirectFile::open(&path).is_ok() && cached.iter().all(Option::is_some) {
            assert_eq!(cached, [Some(true), Some(false)], "of {width} bytes");
        } else {
            println!("skipped: a directory of temporary files on a disk");
        }
    }
}

#[test]
fn a_file_that_was_cut_off_before_its_rows_are_gathered_is_an_error_that_names_it() {
    for past_cache in [false, true] {
        let files = |directory: &Directory| {
            let files = opened(directory, 0, 1, true);
            if past_cache { past_the_page_cache(files) } else { files }
        };
        a_cut_off_file_is_named(files);
    }
}

fn a_cut_off_file_is_named(files: impl Fn(&Directory) -> ShardFiles) {
    let directory = directory(&[8], WIDTH);
    directory.verify();
    let codec = RowCodec::new(directory.stored.manifest.schema.clone()).expect("plain columns");
    let mut files = files(&directory);
    let open = files.prepare(0, [(0, 7)].into_iter()).expect("prepares");
    let path = directory.path(&directory.shards[0]);
    File::options().write(true).open(&path).and_then(|file| file.set_len(1 << 16)).expect("is cut off");
    let mut late = Late::default();
    late.add(0, vec![open.late(0, 7).cloned()]);
    let copy = |first: usize, values: &[&[u8]], out: Option<&mut [u8]>| {
        late.copy(first, values, out, 1 << 20, &Clocks::default())
    };
    let error = codec.gather_with(&Rows::Columns(vec![open.place(0, 7)]), &Fresh, &copy);
    let error =
        std::error::Error::source(&error.expect_err("its rows are not there")).map(ToString::to_string);
    assert!(error.as_ref().is_some_and(|error| error.contains(&path.display().to_string())), "{error:?}");
}

/// Has the kernel forget the pages of a shard, if it can.
fn is_dropped(shard: &Shard) -> bool {
    let bytes = shard.bytes();
    let file = File::open(shard.path().expect("is mapped")).expect("opens");
    file.sync_all().expect("writes");
    // SAFETY: the pages are mapped from a file that is not written to, so they have the same bytes when they are read again.
    unsafe { madvise(bytes.as_ptr().cast_mut().cast(), bytes.len(), rustix::mm::Advice::LinuxDontNeed) }
        .expect("begins at a page");
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("is a file");
    let middle = bytes.len() / 2;
    !shardfmt::shard::are_resident(&bytes[middle..middle + 1])
}

/// How often this thread has waited for the disk because it touched a page.
fn major_faults() -> i64 {
    // SAFETY: all bytes of it may be zero, and the kernel fills it in.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it is a place for the answer.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    usage.ru_majflt
}
