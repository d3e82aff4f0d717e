//! What a node counts while it works: for `status`, for the demo's report, and for tests that check predictions.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

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

/// One epoch's exchange of one run, as this node saw it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EpochExchange {
    /// Grains that the plan and the placement move into this node.
    pub expected_grains: u64,
    /// Grains that came in by the exchange and are durable.
    pub received_grains: u64,
    /// Their bytes, proofs included.
    pub received_bytes: u64,
    /// Grains that this node sent and the other side acknowledged.
    pub sent_grains: u64,
    /// Bytes that it sent, proofs included, to nodes that answered.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Grains that should have been sent but were refused or lost their receiver.
    pub unsent_grains: u64,
    /// Time in which this node was sending, in millionths of a second.
    #[serde(default)]
    pub sending_micros: u64,
    /// Time that ranks here waited for grains which had not come when their epoch began: what the exchange did not hide.
    #[serde(default)]
    pub waited_micros: u64,
}

impl EpochExchange {
    /// Adds what another node saw of the same epoch.
    pub fn add_node(&mut self, node: &EpochExchange) {
        self.expected_grains += node.expected_grains;
        self.received_grains += node.received_grains;
        self.received_bytes += node.received_bytes;
        self.sent_grains += node.sent_grains;
        self.sent_bytes += node.sent_bytes;
        self.unsent_grains += node.unsent_grains;
        self.sending_micros += node.sending_micros;
        // What was waited for longer than it was sent was not waiting for the sending.
        self.waited_micros += node.waited_micros.min(node.sending_micros);
    }

    /// Which part of the time of sending was hidden behind reading; `None` if nothing was sent.
    pub fn hidden(&self) -> Option<f64> {
        (self.sending_micros > 0).then(|| 1.0 - self.waited_micros as f64 / self.sending_micros as f64)
    }
}

/// What a node has counted since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CounterView {
    /// Grains read from the store in whole shards and kept here.
    pub fill_grains: u64,
    /// Their bytes.
    pub fill_bytes: u64,
    /// Grains read from the store in whole shards and given to other nodes.
    pub forwarded_grains: u64,
    /// Grains that were not here when wanted and came from another node.
    pub misses_from_peers: u64,
    /// Grains that were not here when wanted and came from the store by range.
    pub misses_from_origin: u64,
    /// Bytes of the misses that came from other nodes, proofs included: what was read remotely, apart from the exchange.
    #[serde(default)]
    pub miss_bytes_from_peers: u64,
    /// Bytes of the misses that came from the store.
    #[serde(default)]
    pub miss_bytes_from_origin: u64,
    /// Grains whose bytes in the cache no longer matched the manifest; dropped and fetched again.
    pub corrupt_on_disk: u64,
    /// Grains that a peer sent wrong; refused.
    pub corrupt_from_peers: u64,
    /// Grains given to peers that asked.
    pub served_grains: u64,
    /// Their bytes, proofs included.
    #[serde(default)]
    pub served_bytes: u64,
    /// Time that loaders waited for grains which the exchange had not brought yet, in seconds.
    pub stalled_s: f64,
    /// Time in which this node was sending a chunk, in seconds.
    pub exchange_s: f64,
    /// The exchange by run and epoch.
    pub exchange: Vec<EpochCount>,
}

/// An [`EpochExchange`] with its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EpochCount {
    /// The run.
    pub run: String,
    /// The epoch after which the grains moved.
    pub epoch: u32,
    /// The counts.
    #[serde(flatten)]
    pub counts: EpochExchange,
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
