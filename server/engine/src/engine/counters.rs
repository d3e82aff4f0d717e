//! What a node counts while it works: for `status`, for the demo's report, and for tests that check predictions.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use shardd_api::exchange::{EpochCount, EpochExchange};
use shardd_api::status::CounterView;

/// Counters of a node since its start. Relaxed: each is right by itself, together they are a moment's picture.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) fill_grains: AtomicU64,
    pub(crate) fill_bytes: AtomicU64,
    pub(crate) forwarded_grains: AtomicU64,
    pub(crate) misses_from_peers: AtomicU64,
    pub(crate) misses_from_origin: AtomicU64,
    pub(crate) miss_bytes_from_peers: AtomicU64,
    pub(crate) miss_bytes_from_origin: AtomicU64,
    pub(crate) served_bytes: AtomicU64,
    pub(crate) corrupt_on_disk: AtomicU64,
    pub(crate) corrupt_from_peers: AtomicU64,
    pub(crate) served_grains: AtomicU64,
    pub(crate) stalled_micros: AtomicU64,
    pub(crate) exchange_micros: AtomicU64,
    per_epoch: Mutex<BTreeMap<(String, u32), EpochExchange>>,
}

/// Whole millionths of a second.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// How many epochs of exchange counts are kept; older ones are dropped first.
const EPOCHS_KEPT: usize = 1024;

impl Counters {
    /// Changes the counts of one epoch's exchange.
    pub(crate) fn exchange(&self, run: &str, epoch: u32, change: impl FnOnce(&mut EpochExchange)) {
        let mut epochs = self.per_epoch.lock().expect("no panic while held");
        change(epochs.entry((run.to_owned(), epoch)).or_default());
        if epochs.len() > EPOCHS_KEPT {
            epochs.pop_first();
        }
    }

    pub(crate) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn add_time(counter: &AtomicU64, time: Duration) {
        counter.fetch_add(micros(time), Relaxed);
    }

    /// A picture of now.
    pub(crate) fn view(&self) -> CounterView {
        let seconds = |micros: &AtomicU64| micros.load(Relaxed) as f64 / 1e6;
        let epochs = self.per_epoch.lock().expect("no panic while held");
        CounterView {
            fill_grains: self.fill_grains.load(Relaxed),
            fill_bytes: self.fill_bytes.load(Relaxed),
            forwarded_grains: self.forwarded_grains.load(Relaxed),
            misses_from_peers: self.misses_from_peers.load(Relaxed),
            misses_from_origin: self.misses_from_origin.load(Relaxed),
            miss_bytes_from_peers: self.miss_bytes_from_peers.load(Relaxed),
            miss_bytes_from_origin: self.miss_bytes_from_origin.load(Relaxed),
            corrupt_on_disk: self.corrupt_on_disk.load(Relaxed),
            corrupt_from_peers: self.corrupt_from_peers.load(Relaxed),
            served_grains: self.served_grains.load(Relaxed),
            served_bytes: self.served_bytes.load(Relaxed),
            stalled_s: seconds(&self.stalled_micros),
            exchange_s: seconds(&self.exchange_micros),
            exchange: epochs
                .iter()
                .map(|((run, epoch), counts)| EpochCount { run: run.clone(), epoch: *epoch, counts: *counts })
                .collect(),
        }
    }
}
