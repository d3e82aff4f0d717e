//! What a node counts while it works: for `status`, for the demo's report, and for tests that check predictions.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use shardd_api::exchange::{EpochCount, EpochExchange};
use shardd_api::node::NodeId;
use shardd_api::status::CounterView;
use shardd_api::traffic::SentTo;

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
    /// By run and receiver, the bytes sent by the exchange and on request.
    sent_to: Mutex<BTreeMap<(String, NodeId), (u64, u64)>>,
}

/// Whole millionths of a second.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// How many epochs of exchange counts are kept; older ones are dropped first.
const EPOCHS_KEPT: usize = 1024;
/// Of how many pairs of run and receiver bytes are kept.
const PAIRS_KEPT: usize = 16_384;

impl Counters {
    /// Changes the counts of one epoch's exchange.
    pub(crate) fn exchange(&self, run: &str, epoch: u32, change: impl FnOnce(&mut EpochExchange)) {
        let mut epochs = self.per_epoch.lock().expect("no panic while held");
        change(epochs.entry((run.to_owned(), epoch)).or_default());
        if epochs.len() > EPOCHS_KEPT {
            epochs.pop_first();
        }
    }

    /// Bytes that the exchange of a run sent to a node, and bytes that the node was given on request.
    pub(crate) fn sent_to(&self, run: &str, node: &NodeId, exchange: u64, served: u64) {
        if exchange + served == 0 {
            return;
        }
        let mut pairs = self.sent_to.lock().expect("no panic while held");
        let (all_exchanged, all_served) = pairs.entry((run.to_owned(), node.clone())).or_default();
        (*all_exchanged, *all_served) = (*all_exchanged + exchange, *all_served + served);
        if pairs.len() > PAIRS_KEPT {
            // All of another run go, so that what is left of a run is whole.
            let other = pairs.keys().map(|(of, _)| of).find(|of| *of != run).cloned();
            pairs.retain(|(of, to), _| other.as_ref().map_or(to != node, |other| of != other));
        }
    }

    /// The receivers of a run's bytes.
    pub(crate) fn receivers(&self, run: &str) -> Vec<SentTo> {
        let pairs = self.sent_to.lock().expect("no panic while held");
        let of_run = pairs.iter().filter(|((of, _), _)| of == run);
        of_run
            .map(|((_, node), (exchange_bytes, served_bytes))| SentTo {
                node: node.clone(),
                exchange_bytes: *exchange_bytes,
                served_bytes: *served_bytes,
            })
            .collect()
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
