//! Tells a process from those it was forked from. A child has its parent's memory and none of its threads, so what threads
//! work on is left alone there: neither waited for nor let go of.

use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

static FORKS: AtomicU32 = AtomicU32::new(0);
static COUNTED: Once = Once::new();

/// How often this process was forked, itself or those it comes from, since this was first asked: unlike the number of a
/// process it is never used again.
///
/// # Panics
/// If there is no memory to count forks with.
pub fn generation() -> u32 {
    COUNTED.call_once(|| {
        // SAFETY: the function that the child calls only adds to a number.
        let counted = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        assert_eq!(counted, 0, "no memory");
    });
    FORKS.load(Relaxed)
}

unsafe extern "C" fn in_child() {
    FORKS.fetch_add(1, Relaxed);
}

/// Something that threads work on: a process that is forked from its own can neither use nor end it.
///
/// ```
/// use shardd_client::fork::Own;
///
/// let own = Own::new("threads of this process");
/// assert_eq!(own.get(), Some(&"threads of this process"));
/// ```
#[derive(Debug)]
pub struct Own<T> {
    inner: ManuallyDrop<T>,
    generation: u32,
}

impl<T> Own<T> {
    /// It belongs to this process.
    pub fn new(inner: T) -> Self {
        Self { inner: ManuallyDrop::new(inner), generation: generation() }
    }

    /// It, if this is the process that it belongs to.
    pub fn get(&self) -> Option<&T> {
        (self.generation == generation()).then_some(&*self.inner)
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.generation == generation() {
            // SAFETY: this is the end of it.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}
