//! Memory of batches, reused once the last reference to the batch is dropped.
//!
//! The kernel hands out a fresh page at a tenth of the speed of a copy (docs/ARCHITECTURE.md), so a loader
//! that took fresh memory for each batch would spend its time there. The pool keeps returned memory while
//! batches have that size.

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};

use memmap2::{Advice, MmapMut};
use shardfmt::row::{Fresh, Lent, Memory};

use crate::fork;

/// Less than this comes from the allocator, which keeps small pieces itself.
const SMALL: usize = 64 << 10;
const PAGE: usize = 4096;
/// From here on huge pages save the processor most of its page tables.
const HUGE: usize = 2 << 20;

/// Lends memory and takes it back, from and on any thread.
#[derive(Debug)]
pub(crate) struct Pool {
    kept: Arc<Kept>,
}

#[derive(Debug)]
struct Kept {
    /// Free blocks, the last one to come back last.
    blocks: Mutex<Vec<MmapMut>>,
    /// How many blocks are kept at most.
    most: usize,
    /// Less than this comes from the allocator.
    small: usize,
}

impl Pool {
    /// Keeps at most `most` free blocks.
    pub(crate) fn new(most: usize) -> Self {
        Self { kept: Arc::new(Kept { blocks: Mutex::default(), most, small: SMALL }) }
    }

    /// As [`new`](Self::new), but all that is a page or more goes back to the kernel, or is kept, and begins at a page. What many
    /// threads take from the allocator and others give back later may stay with it.
    pub(crate) fn of_pages(most: usize) -> Self {
        Self { kept: Arc::new(Kept { blocks: Mutex::default(), most, small: PAGE }) }
    }
}

impl Kept {
    fn take(&self, len: usize) -> Option<MmapMut> {
        let mut blocks = self.blocks.lock().expect("no panic while held");
        // The last one that is neither too small nor far too large: its pages are the warmest.
        let at = blocks.iter().rposition(|block| block.len() >= len && block.len() / 4 <= len)?;
        Some(blocks.remove(at))
    }

    fn give(&self, block: MmapMut) {
        let mut blocks = self.blocks.lock().expect("no panic while held");
        blocks.push(block);
        if blocks.len() > self.most {
            let oldest = blocks.remove(0);
            drop(blocks);
            drop(oldest); // not under the lock: it takes the kernel a while
        }
    }
}

impl Memory for Pool {
    fn lend(&self, len: usize) -> io::Result<Lent> {
        if len < self.kept.small {
            return Fresh.lend(len);
        }
        let mut block = match self.kept.take(len) {
            Some(block) => block,
            None => fresh(len)?,
        };
        let start = NonNull::from(&mut block[..]).cast::<u8>();
        let len = block.len();
        let owner = Arc::new(Lease {
            block: Some(block),
            home: Arc::downgrade(&self.kept),
            generation: fork::generation(),
        });
        // SAFETY: a map begins at a page, is writable and zeroed or written before, and does not move; only this lease has
        // it, and gives it back when it is dropped.
        Ok(unsafe { Lent::new(start, len, owner) })
    }
}

fn fresh(len: usize) -> io::Result<MmapMut> {
    // A little more, so that batches whose rows are not all of one size find room in each other's memory.
    let more = if len < SMALL { 0 } else { len / 8 };
    let block = MmapMut::map_anon(len.checked_add(more).unwrap_or(len).next_multiple_of(PAGE))?;
    if block.len() >= HUGE {
        // Only a wish: without huge pages it is slower.
        let _ = block.advise(Advice::HugePage);
    }
    Ok(block)
}

/// A block in use.
#[derive(Debug)]
struct Lease {
    /// Taken when it is dropped.
    block: Option<MmapMut>,
    home: Weak<Kept>,
    generation: u32,
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In a process that was forked meanwhile the blocks may stay locked, and no reader takes any.
        if self.generation == fork::generation()
            && let (Some(block), Some(home)) = (self.block.take(), self.home.upgrade())
        {
            home.give(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::buffer::Buffer;
    use proptest::prelude::*;

    fn written(pool: &Pool, len: usize, with: u8) -> Buffer {
        let mut lent = pool.lend(len).expect("memory");
        lent.as_mut_slice().fill(with);
        lent.into_buffer(len)
    }

    proptest! {
        #[test]
        fn what_somebody_has_is_never_lent_again(
            wishes in prop::collection::vec((1usize..300_000, any::<prop::sample::Index>(), any::<bool>()), 1..60),
        ) {
            let pool = Pool::new(3);
            let mut held: Vec<(Buffer, u8)> = Vec::new();
            for (number, (len, which, lets_go)) in wishes.into_iter().enumerate() {
                let with = number as u8;
                held.push((written(&pool, len, with), with));
                if lets_go {
                    held.swap_remove(which.index(held.len()));
                }
                for (buffer, with) in &held {
                    prop_assert!(buffer.iter().all(|byte| byte == with));
                }
            }
        }
    }

    #[test]
    fn memory_that_comes_back_is_lent_again_and_no_more_is_kept_than_said() {
        let pool = Pool::new(2);
        let first = written(&pool, 100_000, 1);
        let at = first.as_ptr();
        assert_eq!(at.addr() % 64, 0);
        drop(first);
        let slice = written(&pool, 90_000, 2).slice(8);
        assert_eq!(slice.as_ptr().addr(), at.addr() + 8, "the same memory");
        let other = written(&pool, 90_000, 3);
        assert_ne!(other.as_ptr().addr(), at.addr(), "a slice of it is still somebody's");
        let more = [written(&pool, 100_000, 4), written(&pool, 100_000, 5)];
        drop((slice, other, more));
        assert_eq!(pool.kept.blocks.lock().expect("no panic").len(), 2);
        let last = written(&pool, 100_000, 6);
        drop(pool);
        assert!(last.iter().all(|byte| *byte == 6), "it outlives the pool");
    }
}
