//! The state of an engine, by the concern that owns it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

use shardd_api::exchange::ExchangeSettings;
use shardd_api::node::{NodeId, NodeRecord};
use shardd_api::protocol::{Placement, RanksRecord, RunId};
use shardd_store::metastore::Recalled;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::drain::DrainRecord;
use super::gate::Gate;
use super::{RunState, away, exchange, health, lost, obtain, overrides, rendezvous};

/// Permits for whole shards in memory. A shard takes as many as [`obtain::permits_of`] says.
const WHOLE_SHARDS: usize = *obtain::SHARDS_AT_ONCE.end() as usize;

/// The metastore's records that the engine follows, as they were last seen.
#[derive(Default)]
pub(super) struct Watched {
    pub(super) nodes: watch::Sender<BTreeMap<NodeId, NodeRecord>>,
    pub(super) launches: watch::Sender<BTreeMap<RunId, RanksRecord>>,
    /// Nodes that are to host nothing.
    pub(super) draining: watch::Sender<BTreeMap<NodeId, DrainRecord>>,
    /// The generation up to which nodes have copied the partitions moved to them.
    pub(super) copied: watch::Sender<BTreeMap<(RunId, NodeId), u64>>,
    pub(super) placements: watch::Sender<BTreeMap<RunId, Placement>>,
}

/// The runs that this node takes part in.
#[derive(Default)]
pub(super) struct RunTable {
    pub(super) states: Mutex<BTreeMap<RunId, Arc<RunState>>>,
    /// The runs whose exchange is driven here, and how each is stopped.
    pub(super) driven: Mutex<BTreeMap<RunId, CancellationToken>>,
    /// Counts changes of the room that a run has here: other nodes, other runs, other placements.
    pub(super) news: AtomicU64,
    /// The number of runs whose hosted grains are being fetched.
    pub(super) filling: AtomicUsize,
}

/// The exchange of all runs together.
pub(super) struct ExchangeParts {
    pub(super) settings: watch::Sender<ExchangeSettings>,
    /// The own settings of the exchange, and its overrides.
    pub(super) overrides: Mutex<overrides::EffectiveSettings>,
    /// The rate of all runs together.
    pub(super) gate: Gate,
    pub(super) unsynced: Mutex<exchange::Unsynced>,
    pub(super) sync_turn: tokio::sync::Mutex<exchange::SyncTurn>,
}

impl Default for ExchangeParts {
    fn default() -> Self {
        Self {
            settings: watch::Sender::default(),
            overrides: Mutex::default(),
            gate: Gate::new(f64::INFINITY),
            unsynced: Mutex::default(),
            sync_turn: tokio::sync::Mutex::default(),
        }
    }
}

/// The condition of other nodes.
#[derive(Default)]
pub(super) struct Neighbours {
    /// Slow, silent and corrupt nodes.
    pub(super) health: health::Health,
    /// Nodes that are expected and not there.
    pub(super) absent: lost::Absent,
    /// Peers that did not answer in time, and since when; until they do.
    pub(super) silent: Mutex<BTreeMap<NodeId, Instant>>,
}

/// State for a time in which the metastore cannot be reached.
pub(super) struct Outage {
    /// The last known records.
    pub(super) recalled: Arc<Recalled>,
    /// The changes to send afterwards.
    pub(super) away: away::Away,
    /// The announcements of ranks 0 to this node.
    pub(super) announced: rendezvous::Announced,
}

impl Default for Outage {
    fn default() -> Self {
        let recalled = Arc::new(Recalled::new(away::REMEMBERED));
        Self { recalled, away: away::Away::default(), announced: rendezvous::Announced::default() }
    }
}

/// Limits and locks of work on the cache.
pub(super) struct Upkeep {
    pub(super) whole_shards: Semaphore,
    /// Held by the caller that clears the cache.
    pub(super) clearing: tokio::sync::Mutex<()>,
    /// Whether trouble with the cache is logged already: once, not for every grain.
    pub(super) trouble_logged: AtomicBool,
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            whole_shards: Semaphore::new(WHOLE_SHARDS),
            clearing: tokio::sync::Mutex::default(),
            trouble_logged: AtomicBool::new(false),
        }
    }
}

/// The tasks of an engine, from its start to its stop.
pub(crate) struct Lifecycle {
    pub(crate) tasks: TaskTracker,
    pub(super) started: Instant,
    /// Cancelled when the node stops: the tasks that the engine started end soon.
    pub(crate) stop: CancellationToken,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self { tasks: TaskTracker::new(), started: Instant::now(), stop: CancellationToken::new() }
    }
}
