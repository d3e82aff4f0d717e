//! Which pages of mapped memory are there, and asking the kernel for those that are not. Knows nothing of shards.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;

use rustix::fs::fadvise;
use rustix::mm::{Advice, madvise};

/// Reads the pages that `bytes` lie in, if they are not in memory, and enters them into the page table: a disk that does not
/// give them is an error here, and not a signal when they are touched. Returns when they are there.
///
/// # Errors
///
/// Those of the disk.
pub fn populate(bytes: &[u8]) -> io::Result<()> {
    match advise(bytes, Advice::LinuxPopulateRead) {
        // Kernels before 5.14 do not know the advice, and memory of other kinds does not take it: pages are then read as
        // they are touched.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        told => told,
    }
}

/// Linux reads no more for one call than the disk's `read_ahead_kb` (128 by default), whatever the range. The rest
/// would be read page by page as it is touched.
const ASKED_AT_ONCE: usize = 128 << 10;

/// Begins to read the pages that `bytes` lie in, and does not wait.
pub fn will_need(bytes: &[u8]) {
    for piece in bytes.chunks(ASKED_AT_ONCE) {
        // A wish: if it is not heard, they are read later.
        let _ = advise(piece, Advice::WillNeed);
    }
}

/// As [`will_need`], of `len` bytes of a file from `offset` on.
pub fn file_will_need(file: &File, offset: u64, len: u64) {
    let (mut at, mut left) = (offset, len);
    while let Some(piece) = NonZeroU64::new(left.min(ASKED_AT_ONCE as u64)) {
        // A wish, as above.
        let _ = fadvise(file, at, Some(piece), rustix::fs::Advice::WillNeed);
        at = at.saturating_add(piece.get());
        left -= piece.get();
    }
}

/// Says of mapped `bytes` that who touches a page wants this page alone. Else the kernel reads as many beside
/// it as its settings say, which may be megabytes, in place of others that were asked for.
pub fn nothing_beside(bytes: &[u8]) {
    let _ = advise(bytes, Advice::Random);
}

fn advise(bytes: &[u8], advice: Advice) -> io::Result<()> {
    let pages = pages_of(bytes);
    if pages.is_empty() {
        return Ok(());
    }
    // SAFETY: the pages are of memory that a slice lies in; these kinds of advice change nothing in it.
    Ok(unsafe { madvise(std::ptr::without_provenance_mut(pages.start), pages.len(), advice) }?)
}

/// Whether the kernel has all pages of mapped `bytes` in memory, by its present answer. It may say yes of
/// files that are not the user's.
pub fn are_resident(bytes: &[u8]) -> bool {
    let pages = pages_of(bytes);
    let mut told = vec![0u8; pages.len() / rustix::param::page_size()];
    told_of(pages, &mut told) && told.iter().all(|page| page & 1 == 1)
}

/// Whether the kernel [has them all](are_resident), as it seems by some, evenly spread: of a file that is read whole, since such files come
/// and go in pieces of many pages, and looking at each takes as long as reading thousands of rows.
pub fn seem_resident(bytes: &[u8]) -> bool {
    let (pages, page) = (pages_of(bytes), rustix::param::page_size());
    let count = pages.len() / page;
    let step = count.div_ceil(LOOKED_AT).max(1);
    (0..count)
        .step_by(step)
        .chain(count.checked_sub(1))
        .all(|number| is_resident(pages.start + number * page))
}

/// How many pages are looked at.
const LOOKED_AT: usize = 16;

fn is_resident(page: usize) -> bool {
    let mut told = [0u8];
    told_of(page..page + rustix::param::page_size(), &mut told) && told[0] & 1 == 1
}

/// Has the kernel say of each page whether it is there.
fn told_of(pages: Range<usize>, told: &mut [u8]) -> bool {
    assert_eq!(told.len(), pages.len() / rustix::param::page_size(), "a byte for every page");
    // SAFETY: the pages are of memory that a slice lies in, and there is a byte in `told` for every one.
    unsafe {
        libc::mincore(std::ptr::without_provenance_mut(pages.start), pages.len(), told.as_mut_ptr()) == 0
    }
}

/// The addresses of the whole pages that `bytes` lie in.
fn pages_of(bytes: &[u8]) -> Range<usize> {
    let (page, at) = (rustix::param::page_size(), bytes.as_ptr_range());
    match bytes.is_empty() {
        true => 0..0,
        false => at.start.addr() / page * page..at.end.addr().next_multiple_of(page),
    }
}
