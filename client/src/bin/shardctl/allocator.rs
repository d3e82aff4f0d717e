//! Memory for large buffers, over and over: that of the system's allocator is fresh each time, which for gigabytes costs
//! more than all computing. mimalloc takes huge pages and uses them again.

use std::ffi::{c_int, c_long};

use libmimalloc_sys::{mi_option_get, mi_option_set};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mi_option_purge_delay` of mimalloc.h, which the binding does not name: how many milliseconds free memory is kept
/// before the system gets it back.
const PURGE_DELAY: c_int = 15;

/// The default is 10: shards are made, and their buffers needed again, less often than that.
const KEPT: c_long = 1000;

/// Keeps free memory a little longer than mimalloc does, unless `MIMALLOC_PURGE_DELAY` is set.
pub(crate) fn keep_buffers() {
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
        // SAFETY: it must not be called by two threads at once, and no other has been started.
        unsafe { mi_option_set(PURGE_DELAY, KEPT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_the_one_that_is_meant() {
        // SAFETY: options are numbers, which are read one by one.
        assert_eq!(unsafe { mi_option_get(PURGE_DELAY) }, 10, "the default of this option");
    }
}
