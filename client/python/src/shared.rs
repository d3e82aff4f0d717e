//! Memory that the workers of PyTorch's loader share with the process that they work for. Batches are gathered into
//! blocks of it, and a worker hands a tensor over by the number of its block, without a copy.
//!
//! The memory is a file without a name that each process maps: a table, then the blocks. A block stays at its place,
//! and is used again when neither process refers to it: the pages of new memory cost more than the bytes in them. The
//! state of a block counts the references of both sides in one atomic number, so processes wait for no lock of another
//! one, which may die at any time. A worker that dies keeps blocks that it has not handed over; others take them once
//! its process is gone.

use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::Path;
use std::process;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use arrow::array::{ArrayRef, UInt8Array};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use shardd_client::fork;
use shardfmt::row::{Fresh, Lent, Memory};

use crate::column::Column;

/// The blocks that a region can have.
const ENTRIES: usize = 4096;

/// The smallest block, a page.
const LEAST: usize = 4096;

/// The smallest block whose pages are worth giving back.
const LEAST_RETURNED: u64 = 64 << 10;

/// Where the blocks begin.
const HEAD: usize = size_of::<Head>().next_multiple_of(LEAST);

/// The table at the beginning of the memory. All zeros are an empty one.
#[repr(C)]
struct Head {
    /// Entries that were given out.
    used: AtomicU64,
    /// Bytes after the head that blocks take.
    taken: AtomicU64,
    entries: [Entry; ENTRIES],
}

#[repr(C)]
struct Entry {
    /// See [`State`].
    state: AtomicU64,
    /// After the head.
    offset: AtomicU64,
    /// A power of two; 0 until there is a block.
    bytes: AtomicU64,
    /// Whether it has been written to since its pages were given back.
    is_written: AtomicU64,
}

/// References to a block, and the process that took it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    /// Of tensors in the process that received it, up to [`MOST`].
    receivers: u16,
    /// Of tensors in the worker, and of messages on their way, up to [`MOST`].
    senders: u16,
    /// Counts the uses of the block, and begins again: a message of an earlier use is refused.
    uses: u8,
    owner: u32,
}

/// The most references of one side, 12 bits.
const MOST: u16 = 0xFFF;

impl State {
    fn of(bits: u64) -> Self {
        let references = |shift: u32| (bits >> shift) as u16 & MOST;
        Self {
            receivers: references(52),
            senders: references(40),
            uses: (bits >> 32) as u8,
            owner: bits as u32,
        }
    }

    fn bits(self) -> u64 {
        (u64::from(self.receivers) << 52)
            | (u64::from(self.senders) << 40)
            | (u64::from(self.uses) << 32)
            | u64::from(self.owner)
    }

    fn is_free(self) -> bool {
        self.receivers == 0 && self.senders == 0
    }

    /// Taken by this process.
    fn own(self) -> Self {
        Self { receivers: 0, senders: 1, uses: self.uses.wrapping_add(1), owner: process::id() }
    }
}

/// `count` and one more reference.
fn one_more(count: u16) -> Option<u16> {
    count.checked_add(1).filter(|more| *more <= MOST)
}

impl Entry {
    /// Changes the state in one go; `false`, without a change, if `change` gives `None`.
    fn change(&self, change: impl Fn(State) -> Option<State>) -> bool {
        self.state.fetch_update(AcqRel, Acquire, |bits| change(State::of(bits)).map(State::bits)).is_ok()
    }

    fn more_senders(&self) -> bool {
        self.change(|state| Some(State { senders: one_more(state.senders)?, ..state }))
    }

    fn fewer_senders(&self) {
        self.change(|state| Some(State { senders: state.senders.checked_sub(1)?, ..state }));
    }

    fn fewer_receivers(&self) {
        self.change(|state| Some(State { receivers: state.receivers.checked_sub(1)?, ..state }));
    }

    /// A message of this use becomes a tensor.
    fn receive(&self, uses: u8) -> bool {
        self.change(|state| {
            let (senders, receivers) = (state.senders.checked_sub(1)?, one_more(state.receivers)?);
            (state.uses == uses).then_some(State { receivers, senders, ..state })
        })
    }

    /// Which use of the block this is.
    fn uses(&self) -> u8 {
        State::of(self.state.load(Acquire)).uses
    }
}

/// The mapped memory.
struct Region {
    start: NonNull<u8>,
    len: usize,
    /// The object that keeps it mapped.
    _map: Py<PyAny>,
}

// SAFETY: the memory is mapped for as long as the region lives; the head is read and written atomically, and the bytes
// of a block by the holders of references to it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}
// A panic leaves nothing half done: each change is one of an atomic number.
impl RefUnwindSafe for Region {}
impl UnwindSafe for Region {}

impl Region {
    fn head(&self) -> &Head {
        // SAFETY: the memory begins at a page, has room for a head, and any bytes are one.
        unsafe { self.start.cast::<Head>().as_ref() }
    }

    /// The entries that have a block, or will have one soon.
    fn entries(&self) -> &[Entry] {
        let used = (self.head().used.load(Acquire) as usize).min(ENTRIES);
        &self.head().entries[..used]
    }

    /// The first byte of a block.
    fn block(&self, entry: &Entry) -> NonNull<u8> {
        let offset = HEAD + entry.offset.load(Relaxed) as usize;
        // SAFETY: blocks lie in the memory, as `append` has checked.
        unsafe { self.start.add(offset) }
    }

    /// A block of at least `len` bytes that this process refers to: a free one, one of a process that is gone, or a
    /// new one. `None` if there is no room.
    fn claim(&self, len: usize) -> Option<usize> {
        let bytes = len.max(LEAST).checked_next_power_of_two()? as u64;
        let take = |may: &dyn Fn(State) -> bool| {
            let has = |entry: &Entry| {
                entry.bytes.load(Acquire) == bytes && entry.change(|state| may(state).then(|| state.own()))
            };
            self.entries().iter().position(has)
        };
        let own = process::id();
        let is_left = |state: State| state.receivers == 0 && state.owner != own && is_gone(state.owner);
        let claimed = take(&State::is_free).or_else(|| take(&is_left)).or_else(|| self.append(bytes))?;
        self.head().entries[claimed].is_written.store(1, Relaxed);
        Some(claimed)
    }

    fn append(&self, bytes: u64) -> Option<usize> {
        let head = self.head();
        let room = (self.len - HEAD) as u64;
        let next = |taken: u64| taken.checked_add(bytes).filter(|end| *end <= room);
        let offset = head.taken.fetch_update(AcqRel, Acquire, next).ok()?;
        let next = |used: u64| (used < ENTRIES as u64).then_some(used + 1);
        let number = head.used.fetch_update(AcqRel, Acquire, next).ok()? as usize;
        let entry = &head.entries[number];
        entry.offset.store(offset, Relaxed);
        entry.state.store(State::of(0).own().bits(), Relaxed);
        entry.bytes.store(bytes, Release); // now others see it
        Some(number)
    }

    /// The block with these bytes, and where in it they begin.
    fn find(&self, address: usize, len: usize) -> Option<(usize, usize)> {
        self.entries().iter().enumerate().find_map(|(number, entry)| {
            let offset = address.checked_sub(self.block(entry).addr().get())?;
            let bytes = entry.bytes.load(Acquire) as usize;
            (offset.checked_add(len)? <= bytes).then_some((number, offset))
        })
    }
}

/// Whether there is no such process. Without `/proc` every process may be there.
fn is_gone(owner: u32) -> bool {
    Path::new("/proc/self").exists() && !Path::new(&format!("/proc/{owner}")).exists()
}

/// A reference to a block. A process that is forked from its own has none.
struct Lease {
    region: Arc<Region>,
    number: usize,
    is_received: bool,
    generation: u32,
}

impl Lease {
    fn new(region: &Arc<Region>, number: usize, is_received: bool) -> Self {
        Self { region: Arc::clone(region), number, is_received, generation: fork::generation() }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            let entry = &self.region.head().entries[self.number];
            if self.is_received { entry.fewer_receivers() } else { entry.fewer_senders() }
        }
    }
}

/// Memory for batches that go to another process; once it is full, of this process alone.
pub(crate) struct SharedMemory(Arc<Region>);

impl Memory for SharedMemory {
    fn lend(&self, len: usize) -> io::Result<Lent> {
        let Some(number) = self.0.claim(len) else { return Fresh.lend(len) };
        let entry = &self.0.head().entries[number];
        let (start, bytes) = (self.0.block(entry), entry.bytes.load(Relaxed) as usize);
        let owner = Arc::new(Lease::new(&self.0, number, false));
        // SAFETY: the block is mapped for as long as the region, which the lease keeps, begins at a page, and was
        // claimed: no other code refers to it before the lease is dropped.
        Ok(unsafe { Lent::new(start, bytes, owner) })
    }
}

/// Blocks of memory that several processes have mapped.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct SharedBlocks(Arc<Region>);

impl SharedBlocks {
    pub(crate) fn memory(&self) -> SharedMemory {
        SharedMemory(Arc::clone(&self.0))
    }

    fn column(&self, number: usize, lease: Lease) -> Column {
        let entry = &self.0.head().entries[number];
        let bytes = entry.bytes.load(Relaxed) as usize;
        // SAFETY: the block is mapped for as long as the lease lives, and no process writes to it but the one that
        // received or claimed it.
        let bytes = unsafe { Buffer::from_custom_allocation(self.0.block(entry), bytes, Arc::new(lease)) };
        let values: ArrayRef = Arc::new(UInt8Array::new(bytes.into(), None));
        Column::new(&Arc::new(Field::new("block", DataType::UInt8, false)), &values)
    }

    fn entry(&self, number: usize) -> PyResult<&Entry> {
        self.0.entries().get(number).ok_or_else(|| {
            PyValueError::new_err(format!("there is no block {number} of {}", self.0.entries().len()))
        })
    }
}

#[pymethods]
impl SharedBlocks {
    /// Of memory that is mapped, writable, and all zeros before its first use.
    #[new]
    fn new(map: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(map)?;
        let start = NonNull::new(buffer.buf_ptr().cast::<u8>());
        let start = start.filter(|start| start.addr().get().is_multiple_of(LEAST) && !buffer.readonly());
        match start {
            Some(start) if buffer.len_bytes() > HEAD => {
                let region = Region { start, len: buffer.len_bytes(), _map: map.clone().unbind() };
                Ok(Self(Arc::new(region)))
            }
            _ => Err(PyValueError::new_err(format!(
                "{} bytes cannot be shared: give writable memory of more than {HEAD} from a multiple of {LEAST} on",
                buffer.len_bytes()
            ))),
        }
    }

    /// For a message the block that has these bytes of a tensor, which use of the block it is, and where in it they
    /// begin. If they lie elsewhere they are copied into a block, without the interpreter; `None` if there is no room.
    /// Each message has to be received once.
    fn send(&self, py: Python<'_>, address: usize, len: usize) -> Option<(usize, u8, usize)> {
        if let Some((number, offset)) = self.0.find(address, len) {
            let entry = &self.0.head().entries[number];
            return entry.more_senders().then(|| (number, entry.uses(), offset));
        }
        let from = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(address))?;
        let number = self.0.claim(len)?;
        let to = self.0.block(&self.0.head().entries[number]);
        let (from, to) = (Copied(from), Copied(to));
        py.detach(move || {
            let (Copied(from), Copied(to)) = (from, to);
            // SAFETY: the caller's tensor has these bytes and is alive meanwhile; the block has room for them, and was
            // claimed.
            unsafe { to.copy_from_nonoverlapping(from, len) };
        });
        Some((number, self.0.head().entries[number].uses(), 0))
    }

    /// A block for `len` bytes or more, which is used again when the last tensor of it is gone; `None` if there is no
    /// room. Its bytes are those of its former use.
    fn claim(&self, len: usize) -> Option<Column> {
        let number = self.0.claim(len)?;
        Some(self.column(number, Lease::new(&self.0, number, false)))
    }

    /// The bytes of the block of a message. It is used again when the last tensor of them is gone.
    fn receive(&self, number: usize, uses: u8) -> PyResult<Column> {
        if !self.entry(number)?.receive(uses) {
            return Err(PyRuntimeError::new_err(format!(
                "block {number} of a batch was received before, or its sender is gone and the block is in use again"
            )));
        }
        Ok(self.column(number, Lease::new(&self.0, number, true)))
    }

    /// Claims the free blocks beyond `keep` of them whose pages can be given back: of each its number, and where it
    /// lies in the memory. `release` makes them free again.
    fn surplus(&self, keep: usize) -> Vec<(usize, usize, usize)> {
        let is_large = |entry: &Entry| {
            entry.bytes.load(Acquire) >= LEAST_RETURNED && entry.is_written.load(Relaxed) == 1
        };
        let is_free = |entry: &Entry| State::of(entry.state.load(Acquire)).is_free();
        let free = self.0.entries().iter().enumerate().filter(|(_, entry)| is_large(entry) && is_free(entry));
        let claimed =
            free.skip(keep).filter(|(_, entry)| entry.change(|state| state.is_free().then(|| state.own())));
        let place = |(number, entry): (usize, &Entry)| {
            (number, HEAD + entry.offset.load(Relaxed) as usize, entry.bytes.load(Relaxed) as usize)
        };
        claimed.map(place).collect()
    }

    /// Makes a claimed block free; `is_empty` if its pages were given back.
    fn release(&self, number: usize, is_empty: bool) -> PyResult<()> {
        let entry = self.entry(number)?;
        if is_empty {
            entry.is_written.store(0, Relaxed);
        }
        entry.fewer_senders();
        Ok(())
    }

    /// How many blocks there are, and how many of them are in use.
    fn counts(&self) -> (usize, usize) {
        let is_used = |entry: &&Entry| !State::of(entry.state.load(Acquire)).is_free();
        (self.0.entries().len(), self.0.entries().iter().filter(is_used).count())
    }
}

/// An address that goes to a closure without the interpreter.
struct Copied(NonNull<u8>);

// SAFETY: it is used while the caller waits.
unsafe impl Send for Copied {}
