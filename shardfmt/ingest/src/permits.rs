//! How many threads compute at a time, where there are more because some wait for a store.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A number of permits to compute.
pub(super) struct Permits {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Permits {
    pub(super) fn new(count: usize) -> Permits {
        Permits { free: Mutex::new(count), freed: Condvar::new() }
    }

    /// Does the work once there is a permit. It must not ask for another, nor wait for anyone who does.
    pub(super) fn with<T>(&self, work: impl FnOnce() -> T) -> T {
        let waited = self.freed.wait_while(self.free(), |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        let _given_back = Permit(self);
        work()
    }

    fn free(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Given back when it is dropped, by a panic too.
struct Permit<'p>(&'p Permits);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.free() += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn no_more_work_at_a_time_than_there_are_permits() {
        let (permits, at_work, most) = (Permits::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        permits.with(|| {
                            most.fetch_max(at_work.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            std::thread::yield_now();
                            at_work.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                });
            }
        });
        assert!((1..=2).contains(&most.into_inner()));
        assert_eq!(*permits.free(), 2);
    }
}
