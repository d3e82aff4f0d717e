//! The ranks of an NCCL communicator. No call waits for another rank: background operations are polled until
//! they are done, and aborted after a time-out.
//!
//! Why `unsafe`: see [`library`](super::library).

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::NcclError;
use super::library::{
    CommPointer, Config, FLOAT32, IN_PROGRESS, INT64, Nccl, NcclResult, SUCCESS, SUM, UniqueId,
};

/// The interval between looks at pending operations: short next to the time that any sum takes.
const PAUSE: Duration = Duration::from_micros(20);

/// How long the ranks may take to part.
const PARTING: Duration = Duration::from_secs(10);

/// What is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summand {
    /// Numbers of 32 bits.
    Float,
    /// Whole numbers of 64 bits.
    Whole,
}

impl Summand {
    /// Bytes of each.
    pub fn bytes(self) -> usize {
        match self {
            Summand::Float => size_of::<f32>(),
            Summand::Whole => size_of::<i64>(),
        }
    }
}

/// One rank's end of a communicator.
#[derive(Debug)]
pub struct Communicator {
    nccl: Arc<Nccl>,
    /// Null once it has been given up.
    pointer: CommPointer,
    timeout: Duration,
}

// SAFETY: NCCL allows a communicator to be used by any thread, one at a time; `&mut self` and `Drop` see to that, and no call is made through
// `&Communicator`.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Joins the others of this identity, on the device that is current on this thread; they call this at the same time.
    ///
    /// # Errors
    /// When NCCL fails, or not all ranks come within the timeout.
    pub fn join(
        nccl: Arc<Nccl>,
        id: UniqueId,
        rank: u32,
        world: u32,
        timeout: Duration,
    ) -> Result<Communicator, NcclError> {
        let mut config = Config::non_blocking();
        let mut communicator = Communicator { nccl, pointer: std::ptr::null_mut(), timeout };
        let init = communicator.nccl.comm_init_rank_config;
        let pointer = &raw mut communicator.pointer;
        // SAFETY: pointer and configuration outlive the call, which copies the latter; `id` came from `ncclGetUniqueId`. Non-blocking, it sets
        // the pointer before it returns.
        let result = unsafe { init(pointer, world as i32, id, rank as i32, &raw mut config) };
        communicator.settle("connect the ranks", result)?;
        Ok(communicator)
    }

    /// Has the sum of all ranks' numbers written to `to` once this rank's stream reaches it: `count` numbers
    /// of this kind on the device.
    ///
    /// # Errors
    /// When NCCL fails, or does not take it within the timeout. Then the communicator is given up.
    ///
    /// # Safety
    /// Both addresses are of `count` such numbers on this communicator's device, which no other code
    /// writes to (or, of `to`, reads) before the stream has got there, or the communicator is gone; `stream`
    /// is a stream of that device.
    pub unsafe fn all_reduce(
        &mut self,
        from: u64,
        to: u64,
        (count, summand): (usize, Summand),
        stream: *mut c_void,
    ) -> Result<(), NcclError> {
        let all_reduce = self.nccl.all_reduce;
        let (from, to) = (from as *const c_void, to as *mut c_void);
        let kind = match summand {
            Summand::Float => FLOAT32,
            Summand::Whole => INT64,
        };
        // SAFETY: the caller's promise; the communicator is there, or NCCL finds that it is null and says so.
        let result = unsafe { all_reduce(from, to, count, kind, SUM, self.pointer, stream) };
        self.settle("add up", result)
    }

    /// Waits until something is done on the device, while NCCL has no error.
    ///
    /// # Errors
    /// NCCL's, the driver's, or that it has taken too long. Then the communicator is given up.
    pub fn wait(
        &mut self,
        what: &'static str,
        mut is_done: impl FnMut() -> Result<bool, NcclError>,
    ) -> Result<(), NcclError> {
        let begun = Instant::now();
        loop {
            match is_done() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    self.give_up();
                    return Err(error);
                }
            }
            match self.state() {
                SUCCESS | IN_PROGRESS => {}
                result => return Err(self.failed(what, result)),
            }
            if begun.elapsed() > self.timeout {
                self.give_up();
                return Err(NcclError::Late { what, waited: self.timeout });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until what a call began is done.
    fn settle(&mut self, what: &'static str, result: NcclResult) -> Result<(), NcclError> {
        let begun = Instant::now();
        let mut result = result;
        while result == IN_PROGRESS {
            if begun.elapsed() > self.timeout {
                self.give_up();
                return Err(NcclError::Late { what, waited: self.timeout });
            }
            std::thread::sleep(PAUSE);
            result = self.state();
        }
        if result == SUCCESS { Ok(()) } else { Err(self.failed(what, result)) }
    }

    /// Its state in the background.
    fn state(&mut self) -> NcclResult {
        let mut state = SUCCESS;
        // SAFETY: `state` outlives the call; of a null pointer NCCL says that it is an invalid argument.
        let result = unsafe { (self.nccl.comm_get_async_error)(self.pointer, &raw mut state) };
        if result == SUCCESS { state } else { result }
    }

    fn failed(&mut self, what: &'static str, result: NcclResult) -> NcclError {
        let message = self.nccl.explain(result);
        self.give_up();
        NcclError::Call { what, message }
    }

    /// Ends pending operations, on this rank: kernels that wait for others return.
    pub fn give_up(&mut self) {
        let pointer = std::mem::replace(&mut self.pointer, std::ptr::null_mut());
        if !pointer.is_null() {
            // SAFETY: it is a communicator that was neither destroyed nor aborted, as both set the pointer to null. Its error would change nothing.
            unsafe { (self.nccl.comm_abort)(pointer) };
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.pointer.is_null() {
            return;
        }
        // SAFETY: it is there, and this is the last use but for the state and the end.
        let mut result = unsafe { (self.nccl.comm_finalize)(self.pointer) };
        let begun = Instant::now();
        while result == IN_PROGRESS && begun.elapsed() < PARTING {
            std::thread::sleep(PAUSE);
            result = self.state();
        }
        if result != SUCCESS {
            return self.give_up();
        }
        let pointer = std::mem::replace(&mut self.pointer, std::ptr::null_mut());
        // SAFETY: finalised, and never used again.
        unsafe { (self.nccl.comm_destroy)(pointer) };
    }
}
