//! The status of a node: its cache, its store, its counters, the ranks that read there.

use serde::{Deserialize, Serialize};

use crate::exchange::{EpochCount, ExchangeNow};
use crate::health::{HealthIssue, Measured};
use crate::local_transport::Transport;
use crate::loop_time::{LoopTime, RecentTime};
use crate::machine::MachineStatus;
use crate::node::{NodeId, NodeRecord};
use crate::protocol::RunId;

/// A node's state for `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeStatus {
    /// The node.
    pub node: NodeId,
    /// Bytes of its cache in use.
    pub cache_used_bytes: u64,
    /// The cache's limit.
    pub cache_limit_bytes: u64,
    /// Grains in the cache.
    pub cache_grains: u64,
    /// The most bytes of its cache that its runs take at any instant, computed from their plans and placements.
    /// Partitions that another node hosts by now count until their grains have left.
    #[serde(default)]
    pub cache_peak_bytes: u64,
    /// Bytes of shard data read from the store.
    pub origin_bytes: u64,
    /// Requests for shard data made to the store.
    pub origin_requests: u64,
    /// Objects read a second time because their bytes were wrong the first time.
    #[serde(default)]
    pub origin_reread: u64,
    /// The traffic to the store, if the store is a service elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_wire: Option<WireCounts>,
    /// The same by run and epoch, of the last runs and epochs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub store_epochs: Vec<StoreEpoch>,
    /// Its recent measurements of its disk and its peers.
    #[serde(default)]
    pub measured: Measured,
    /// Its findings on itself and on them.
    #[serde(default)]
    pub health_issues: Vec<HealthIssue>,
    /// The pace of its exchange.
    #[serde(default)]
    pub exchange_now: ExchangeNow,
    /// The ranks that read here, and their transports.
    #[serde(default)]
    pub readers: Vec<Reader>,
    /// Of the node that keeps the metadata: how that is, and its copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<MetadataStatus>,
    /// Its machine and its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineStatus>,
    /// The counts of the engine.
    #[serde(flatten)]
    pub counters: CounterView,
}

impl NodeStatus {
    /// Ranks whose own node it is: they report to it where the time of their loops goes.
    #[must_use]
    pub fn own_ranks(&self) -> usize {
        self.readers.iter().filter(|reader| reader.loop_time.is_some()).count()
    }
}

/// A node's counts since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
    /// Bytes of the misses that came from other nodes, proofs included: the remote reads, apart from the
    /// exchange.
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

/// How much of what a node hosts of a run is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Filled {
    /// The node.
    pub node: NodeId,
    /// The epoch that it is filled for: the one that the run's ranks have reached.
    pub epoch: u32,
    /// The placement's generation; 0: there is none yet.
    pub generation: u64,
    /// Grains that the node hosts in that epoch.
    pub hosted_grains: u64,
    /// Those of them that are in its cache.
    pub held_grains: u64,
    /// Whether it has fetched all it could: the missing grains have no room, or could not be read.
    pub is_done: bool,
}

/// A node that is not among the live ones, though it has not left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Lost {
    /// Its own record.
    #[serde(flatten)]
    pub record: NodeRecord,
    /// When the node that is asked last saw it live, in seconds since 1970; `None` if it has not since it started itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub last_seen: Option<u64>,
}

/// A rank that reads at a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reader {
    /// The run.
    pub run: RunId,
    /// The rank.
    pub rank: u32,
    /// The epoch that it has reached.
    pub epoch: u32,
    /// How it gets this node's grains.
    pub transport: Transport,
    /// Samples of the epoch that all ranks together have read, as it reports.
    #[serde(default)]
    pub position: u64,
    /// Samples of an epoch; 0 from an older release.
    #[serde(default)]
    pub epoch_samples: u64,
    /// Where the time of its loop went since its loader began, if it reports that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub loop_time: Option<LoopTime>,
    /// Where it went in the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub recent: Option<RecentTime>,
    /// How fast all ranks together read, as it reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub run_rate: Option<RunRate>,
    /// Since when it waits for data for more than a twentieth of its time, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub exposed_since: Option<u64>,
}

/// Samples that all ranks of a run read per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunRate {
    /// In the slower half of the last minute.
    pub least: f64,
    /// In the faster half.
    pub most: f64,
}

impl RunRate {
    /// Between both.
    #[must_use]
    pub fn middle(&self) -> f64 {
        f64::midpoint(self.least, self.most)
    }
}

impl Reader {
    /// Samples of its epoch that no rank has read.
    #[must_use]
    pub fn samples_left(&self) -> u64 {
        self.epoch_samples.saturating_sub(self.position)
    }
}

/// The traffic to a store and back, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WireCounts {
    /// Requests made, those that were made again included.
    pub requests: u64,
    /// Requests that failed: no answer, or one with status 429 or 5xx. Most were made again.
    pub failed: u64,
    /// Reads that were asked a second time because an answer was late.
    pub hedged: u64,
    /// Bytes of bodies sent.
    pub sent: u64,
    /// Bytes of bodies received.
    pub received: u64,
    /// Of the requests, those that services bill as class A: PUT, COPY, POST and LIST.
    #[serde(default)]
    pub class_a: u64,
    /// Of the requests, those that services bill as class B: GET and HEAD.
    #[serde(default)]
    pub class_b: u64,
    /// Of the requests, DELETE, which services do not bill.
    #[serde(default)]
    pub deletes: u64,
    /// Of the failed requests, those that the store refused because there were too many: 429 and 503.
    #[serde(default)]
    pub throttled: u64,
}

impl WireCounts {
    /// The counts since `before`, of the same store.
    #[must_use]
    pub fn since(&self, before: &WireCounts) -> WireCounts {
        WireCounts {
            requests: self.requests.saturating_sub(before.requests),
            failed: self.failed.saturating_sub(before.failed),
            hedged: self.hedged.saturating_sub(before.hedged),
            sent: self.sent.saturating_sub(before.sent),
            received: self.received.saturating_sub(before.received),
            class_a: self.class_a.saturating_sub(before.class_a),
            class_b: self.class_b.saturating_sub(before.class_b),
            deletes: self.deletes.saturating_sub(before.deletes),
            throttled: self.throttled.saturating_sub(before.throttled),
        }
    }

    /// Adds the counts of another node.
    pub fn add(&mut self, node: &WireCounts) {
        self.requests += node.requests;
        self.failed += node.failed;
        self.hedged += node.hedged;
        self.sent += node.sent;
        self.received += node.received;
        self.class_a += node.class_a;
        self.class_b += node.class_b;
        self.deletes += node.deletes;
        self.throttled += node.throttled;
    }
}

/// A node's traffic to the store while its ranks of a run were in an epoch. Traffic for other runs at the same time is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreEpoch {
    /// The run.
    pub run: String,
    /// The epoch. The first of a launch begins when the node opens the run.
    pub epoch: u32,
    /// The traffic.
    #[serde(flatten)]
    pub counts: WireCounts,
}

/// How the metadata is that a node keeps, and its copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MetadataStatus {
    /// Counts the nodes that have kept the metadata one after the other, from 1.
    pub epoch: u64,
    /// Why nothing can be changed at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// When the newest copy was taken, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_at: Option<u64>,
    /// Bytes of its keys and values.
    pub copy_bytes: u64,
    /// Whether something has changed since.
    pub is_behind: bool,
    /// For how many seconds such changes have waited.
    pub lag_s: u64,
    /// Why the store takes no copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_trouble: Option<String>,
}
