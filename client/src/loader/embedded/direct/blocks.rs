//! Memory in blocks of one size, used again once it is dropped.
//!
//! The kernel fills a fresh page with zeros, in the thread that touches it, and looks at each page that a direct read writes to.
//! So blocks keep their pages while they are free, and are cut from huge pages where there is enough memory: a read of megabytes
//! then has a few pages, not a thousand.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use memmap2::{Advice, MmapMut};
use shardfmt::row::{Lent, Memory};

use crate::fork;
use crate::loader::pool::Pool;

pub(super) const PAGE: u64 = 4096;
pub(super) const HUGE: u64 = 2 << 20;

/// Lent bytes begin at a multiple of this.
pub(super) const ALIGNMENT: usize = 64;

/// Blocks that do not fit are kept for the next, up to this number.
const LARGE_FREE: usize = 4;

/// What blocks are cut from, if it is no larger than this part of all memory.
const SLAB: u64 = HUGE;
const SLABS_OF_MEMORY: u64 = 32;

/// Lends blocks, and takes them back from any thread.
#[derive(Debug)]
pub(super) struct Blocks {
    shared: Arc<Shared>,
    /// For pieces that are larger than a block.
    large: Pool,
}

#[derive(Debug)]
struct Shared {
    block_bytes: usize,
    slab_bytes: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    slabs: Vec<MmapMut>,
    /// How many blocks have pages, free or not, and how many may.
    held: usize,
    most: usize,
    /// The last one to come back last: its pages are in the processor's cache.
    free: Vec<Start>,
    /// Free blocks that gave their pages back to the kernel.
    empty: Vec<Start>,
}

/// Where a block begins.
#[derive(Debug)]
struct Start(NonNull<u8>);

// SAFETY: it is an address in a slab, whose bytes belong to the one who has this.
unsafe impl Send for Start {}
// SAFETY: as above, and a shared one gives no access to the bytes.
unsafe impl Sync for Start {}

impl Blocks {
    /// Blocks of this size, a multiple of [`PAGE`], for a part of `memory` bytes. All have pages of `limit` bytes, and more only
    /// while they are in use.
    pub(super) fn new(block_bytes: u64, memory: u64, limit: u64) -> Self {
        debug_assert!(block_bytes > 0 && block_bytes.is_multiple_of(PAGE), "{block_bytes} bytes");
        let is_much = memory / SLABS_OF_MEMORY >= SLAB;
        let slab_bytes = if is_much { block_bytes.next_multiple_of(SLAB) } else { block_bytes };
        let shared = Shared {
            block_bytes: block_bytes as usize,
            slab_bytes: slab_bytes as usize,
            state: Mutex::default(),
        };
        let blocks = Self { shared: Arc::new(shared), large: Pool::of_pages(LARGE_FREE) };
        blocks.limit(limit);
        blocks
    }

    /// Changes how many bytes of pages free blocks may keep, with those in use.
    pub(super) fn limit(&self, bytes: u64) {
        let most = usize::try_from(bytes / self.block_bytes()).unwrap_or(usize::MAX);
        self.shared.lock().most = most;
    }

    pub(super) fn block_bytes(&self) -> u64 {
        self.shared.block_bytes as u64
    }

    /// Memory for what is larger than a block.
    pub(super) fn large(&self) -> &Pool {
        &self.large
    }

    /// A block to put things into.
    pub(super) fn take(&self) -> io::Result<Block<'_>> {
        let start = self.shared.take()?;
        let lease =
            Lease { start: Some(start), home: Arc::clone(&self.shared), generation: fork::generation() };
        Ok(Block { of: self, lease: Arc::new(lease), used: Cell::new(0) })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    fn take(&self) -> io::Result<Start> {
        let mut state = self.lock();
        if let Some(start) = state.free.pop() {
            return Ok(start);
        }
        if let Some(start) = state.empty.pop() {
            state.held += 1;
            return Ok(start);
        }
        let is_huge = self.slab_bytes as u64 >= HUGE;
        let align = if is_huge { HUGE as usize } else { PAGE as usize };
        let more = if is_huge { align } else { 0 };
        let mut slab = MmapMut::map_anon(self.slab_bytes + more)?;
        if is_huge {
            // Only a wish: without huge pages it is slower.
            let _ = slab.advise(Advice::HugePage);
        }
        let skipped = slab.as_ptr().align_offset(align);
        let blocks = slab[skipped..skipped + self.slab_bytes].chunks_exact_mut(self.block_bytes);
        let mut starts: Vec<Start> = blocks.map(|block| Start(NonNull::from(block).cast())).collect();
        let start = starts.pop().expect("a slab has a block");
        state.slabs.push(slab);
        state.held += 1;
        // They take memory once they are written to.
        state.empty.append(&mut starts);
        Ok(start)
    }

    fn give(&self, start: Start) {
        let mut state = self.lock();
        if state.held <= state.most {
            state.free.push(start);
            return;
        }
        state.held -= 1;
        drop(state); // the kernel takes a while
        // SAFETY: whole pages of a slab of anonymous memory, which are mapped while the slab is, and which no code refers to; they
        // are zeros from now on.
        let emptied =
            unsafe { libc::madvise(start.0.as_ptr().cast(), self.block_bytes, libc::MADV_DONTNEED) };
        debug_assert_eq!(emptied, 0, "the kernel takes back pages that it gave");
        self.lock().empty.push(start);
    }
}

/// A block in use.
struct Lease {
    /// Taken when it is dropped.
    start: Option<Start>,
    home: Arc<Shared>,
    generation: u32,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In a process that was forked meanwhile the blocks may stay locked, and no reader takes any.
        if self.generation == fork::generation()
            && let Some(start) = self.start.take()
        {
            self.home.give(start);
        }
    }
}

/// A block whose bytes are lent one piece after the other. It comes back with the last of them.
pub(super) struct Block<'a> {
    of: &'a Blocks,
    lease: Arc<Lease>,
    used: Cell<usize>,
}

impl fmt::Debug for Block<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("used", &self.used).finish_non_exhaustive()
    }
}

impl Block<'_> {
    /// How many of its bytes were lent.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used.get() as u64
    }
}

impl Memory for Block<'_> {
    fn lend(&self, len: usize) -> io::Result<Lent> {
        let (at, whole) = (self.used.get(), self.of.shared.block_bytes);
        let Some(len) = len.checked_next_multiple_of(ALIGNMENT).filter(|len| *len <= whole - at) else {
            return self.of.large.lend(len);
        };
        self.used.set(at + len);
        let start = &self.lease.start.as_ref().expect("there until it is dropped").0;
        // SAFETY: `at` is within the block, or just behind it.
        let start = unsafe { start.add(at) };
        let owner = Arc::clone(&self.lease);
        // SAFETY: a slab is writable and zeroed or written before; its place does not change while its blocks' leases are there. A block
        // begins at a page, pieces are multiples of 64, and each is lent once before the lease is dropped.
        Ok(unsafe { Lent::new(start, len, owner) })
    }
}

#[cfg(test)]
mod tests {
    use arrow::buffer::Buffer;
    use proptest::prelude::*;

    use super::*;

    fn written(block: &Block<'_>, len: usize, with: u8) -> Buffer {
        let mut lent = block.lend(len).expect("memory");
        lent.as_mut_slice().fill(with);
        lent.into_buffer(len)
    }

    proptest! {
        #[test]
        fn no_bytes_are_lent_twice_at_a_time(
            pages in 1u64..40, memory in prop_oneof![Just(0u64), Just(1 << 30)], limit in 0u64..(1 << 20),
            wishes in prop::collection::vec((0usize..50_000, any::<bool>(), any::<prop::sample::Index>(), any::<bool>()), 1..60),
        ) {
            let blocks = Blocks::new(pages * PAGE, memory, limit);
            let mut block = blocks.take().expect("memory");
            let mut held: Vec<(Buffer, u8)> = Vec::new();
            for (number, (len, is_new, which, lets_go)) in wishes.into_iter().enumerate() {
                if is_new {
                    block = blocks.take().expect("memory");
                }
                held.push((written(&block, len, number as u8), number as u8));
                prop_assert!(block.used_bytes() <= blocks.block_bytes());
                if lets_go {
                    held.swap_remove(which.index(held.len()));
                }
                for (buffer, with) in &held {
                    prop_assert!(buffer.iter().all(|byte| byte == with));
                }
            }
            drop(block);
            drop(blocks);
            prop_assert!(held.iter().all(|(buffer, with)| buffer.iter().all(|byte| byte == with)), "they outlive it");
        }
    }

    #[test]
    fn blocks_come_back_and_of_those_beyond_the_limit_the_kernel_has_the_pages() {
        let blocks = Blocks::new(2 * PAGE, 0, 2 * PAGE);
        let lend = || written(&blocks.take().expect("memory"), 8192, 7);
        let (first, second) = (lend(), lend());
        let places = [second.as_ptr().addr(), first.as_ptr().addr()];
        drop((first, second));
        let content = |block: &Block<'_>| block.lend(8192).expect("memory").as_mut_slice()[8191];
        let (warm, empty) = (blocks.take().expect("memory"), blocks.take().expect("memory"));
        assert_eq!((content(&warm), content(&empty)), (7, 0));
        let place = |block: &Block<'_>| block.lease.start.as_ref().expect("in use").0.addr().get();
        assert_eq!([place(&warm), place(&empty)], places, "the same memory");
        blocks.limit(0);
        drop(warm);
        assert_eq!(blocks.shared.lock().held, 1, "less is kept from now on");
    }

    #[test]
    fn blocks_of_much_memory_begin_in_a_huge_page_and_others_take_what_they_have() {
        let huge = Blocks::new(HUGE, 1 << 30, 0);
        let start = huge.take().expect("memory").lend(64).expect("memory").as_mut_slice().as_ptr();
        assert_eq!(start.addr() as u64 % HUGE, 0);
        assert_eq!(Blocks::new(PAGE, 1 << 20, 0).shared.slab_bytes as u64, PAGE);
    }
}
