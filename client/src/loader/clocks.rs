//! Where a loader's time goes: what the thread that reads and those that gather are busy with.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time spent so far, from any thread.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    network: AtomicU64,
    disk: AtomicU64,
    gathering: AtomicU64,
    late_reading: AtomicU64,
    transforming: AtomicU64,
}

/// The uses of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    /// Asking the store or nodes, and waiting for their data.
    Network,
    /// Opening, reading and checking files of this machine.
    Disk,
    /// Gathering the rows of a step.
    Gathering,
    /// The part of this that was spent on reading rows.
    LateReading,
    /// The part that was spent on transforms of pictures.
    Transforming,
}

impl Clocks {
    fn clock(&self, on: On) -> &AtomicU64 {
        match on {
            On::Network => &self.network,
            On::Disk => &self.disk,
            On::Gathering => &self.gathering,
            On::LateReading => &self.late_reading,
            On::Transforming => &self.transforming,
        }
    }

    pub(crate) fn add(&self, on: On, time: Duration) {
        self.clock(on).fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn spent(&self, on: On) -> Duration {
        Duration::from_nanos(self.clock(on).load(Relaxed))
    }

    /// Does something and counts how long it takes.
    pub(crate) fn time<T>(&self, on: On, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        self.add(on, began.elapsed());
        done
    }

    /// Counts `wall`, in which several threads did what `of_threads` has counted: network and disk get parts of it in proportion.
    pub(crate) fn add_shared(&self, wall: Duration, of_threads: &Clocks) {
        let [network, disk] = [On::Network, On::Disk].map(|on| of_threads.spent(on).as_secs_f64());
        if network + disk > 0.0 {
            let of_network = wall.mul_f64(network / (network + disk));
            self.add(On::Network, of_network);
            self.add(On::Disk, wall.saturating_sub(of_network));
        } else {
            self.add(On::Disk, wall);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_did_side_by_side_is_counted_as_the_time_that_passed() {
        let (threads, clocks) = (Clocks::default(), Clocks::default());
        threads.add(On::Network, Duration::from_secs(6));
        threads.add(On::Disk, Duration::from_secs(2));
        clocks.add_shared(Duration::from_secs(1), &threads);
        assert_eq!([On::Network, On::Disk].map(|on| clocks.spent(on).as_millis()), [750, 250]);
        clocks.add_shared(Duration::from_secs(1), &Clocks::default());
        assert_eq!(clocks.spent(On::Disk).as_millis(), 1250, "opened at once, by the only thread");
    }
}
