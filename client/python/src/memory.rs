//! Memory that PyTorch allocates, for batches to be gathered into: pinned memory has to be PyTorch's own, since it alone knows
//! which copies to a device still read it when the last tensor is gone.
//!
//! So a block is never used twice here. The tensors of a batch view the block, and PyTorch gets it back with
//! the last of them. New blocks are allocated by the thread that takes steps, which holds the interpreter
//! anyway, as many as the last step took; a gathering thread that finds none asks the interpreter itself.

use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use shardd_client::fork;
use shardfmt::row::{Lent, Memory};

/// Blocks that a function of Python's allocates.
#[derive(Clone)]
pub(crate) struct TorchMemory(Arc<Blocks>);

struct Blocks {
    /// Gives a one-dimensional tensor of a number of bytes.
    allocate: Py<PyAny>,
    /// Free blocks.
    stock: Mutex<Vec<Block>>,
    /// The blocks lent since the stock was last filled, in bytes.
    wanted: Mutex<Vec<usize>>,
    /// The tensors of blocks that batches lie in, by their addresses.
    lent: Mutex<HashMap<usize, Py<PyAny>>>,
}

struct Block {
    tensor: Py<PyAny>,
    address: usize,
    bytes: usize,
}

impl TorchMemory {
    pub(crate) fn new(allocate: Py<PyAny>) -> Self {
        Self(Arc::new(Blocks {
            allocate,
            stock: Mutex::default(),
            wanted: Mutex::default(),
            lent: Mutex::default(),
        }))
    }

    /// The tensor of the block that begins at this address, if a batch lies in it.
    pub(crate) fn tensor(&self, py: Python<'_>, address: usize) -> Option<Py<PyAny>> {
        let lent = self.0.lent.lock().expect("no panic while held");
        lent.get(&address).map(|tensor| tensor.clone_ref(py))
    }

    /// Allocates as many blocks of each size as were lent since the last time, and lets go of others.
    pub(crate) fn fill(&self, py: Python<'_>) -> PyResult<()> {
        let wanted = std::mem::take(&mut *self.0.wanted.lock().expect("no panic while held"));
        if wanted.is_empty() {
            return Ok(());
        }
        let mut old = std::mem::take(&mut *self.0.stock.lock().expect("no panic while held"));
        let mut stock = Vec::with_capacity(wanted.len());
        for bytes in wanted {
            stock.push(match old.iter().position(|block| block.bytes == bytes) {
                Some(at) => old.swap_remove(at),
                None => self.0.allocate(py, bytes)?,
            });
        }
        self.0.stock.lock().expect("no panic while held").extend(stock);
        Ok(())
    }
}

impl Blocks {
    fn allocate(&self, py: Python<'_>, bytes: usize) -> PyResult<Block> {
        let tensor = self.allocate.call1(py, (bytes,))?;
        let address: usize = tensor.call_method0(py, "data_ptr")?.extract(py)?;
        let given: usize = tensor.call_method0(py, "numel")?.extract(py)?;
        if given < bytes || address == 0 || !address.is_multiple_of(64) {
            return Err(PyValueError::new_err(format!(
                "{given} bytes at {address:#x} were allocated for a batch, which needs {bytes} from a multiple of 64 on"
            )));
        }
        Ok(Block { tensor, address, bytes })
    }
}

impl Memory for TorchMemory {
    fn lend(&self, len: usize) -> io::Result<Lent> {
        // As PyTorch rounds pinned memory anyway: batches that differ a little in size take blocks of one.
        let bytes = len.max(64).checked_next_power_of_two().ok_or(io::ErrorKind::OutOfMemory)?;
        let kept = {
            let mut stock = self.0.stock.lock().expect("no panic while held");
            stock.iter().rposition(|block| block.bytes == bytes).map(|at| stock.swap_remove(at))
        };
        let block = match kept {
            Some(block) => block,
            None => Python::try_attach(|py| self.0.allocate(py, bytes))
                .ok_or_else(|| io::Error::other("the interpreter is ending"))?
                .map_err(|error| io::Error::other(error.to_string()))?,
        };
        self.0.wanted.lock().expect("no panic while held").push(bytes);
        let Block { tensor, address, bytes } = block;
        self.0.lent.lock().expect("no panic while held").insert(address, tensor);
        let start = NonNull::new(ptr::with_exposed_provenance_mut(address)).expect("looked at above");
        let owner = Lease { home: Arc::clone(&self.0), address, bytes, generation: fork::generation() };
        // SAFETY: PyTorch has allocated these bytes, begins them at a multiple of 64, and keeps them for as long as the tensor
        // is referred to: by `lent`, until the lease is dropped. No caller has seen the tensor before the
        // batch is handed out.
        Ok(unsafe { Lent::new(start, bytes, Arc::new(owner)) })
    }
}

// What Arrow asks of owners of memory. Nothing is left half done here by a panic: each lock is held for one operation on a map.
impl RefUnwindSafe for Blocks {}
impl UnwindSafe for Blocks {}

/// A block that a batch lies in.
struct Lease {
    home: Arc<Blocks>,
    address: usize,
    bytes: usize,
    generation: u32,
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as in `lend`.
        unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(self.address), self.bytes) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In a process that was forked meanwhile the map may stay locked, and the memory is the parent's.
        if self.generation == fork::generation() {
            let tensor = self.home.lent.lock().expect("no panic while held").remove(&self.address);
            drop(tensor); // not under the lock: it may run Python
        }
    }
}
