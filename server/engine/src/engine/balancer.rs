//! Carries out what the balancer decides: at some looks one node reads what all measure, decides, and keeps the record in
//! the metastore, where all placements are computed by it. The first node to see that a look is due makes it; no node
//! is special. The decisions themselves are in `shardd_api::balancer`.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

use shardd_api::balancer::{BalancerRecord, Look, NodeLoad, Settings, Share, caps, decide, slowness};
use shardd_api::duration::now;
use shardd_api::health::{Disk, HealthIssue};
use shardd_api::machine::PressureShares;
use shardd_api::node::NodeId;
use shardd_store::metastore::{Expected, Listing, MetaError};
use tokio::sync::watch;
use tokio::time::{Duration, Instant};
use tracing::{info, warn};

use super::run::RunState;
use super::value::{pack, parse, understood};
use super::{Engine, EngineError};

pub(super) const BALANCER: &str = "balancer/";
/// One document, so that a look is one change.
const KEY: &str = "balancer/record";

/// Looks are not closer than this, in whatever number of nodes.
const LOOKS_APART: Duration = Duration::from_secs(9);

/// Reads the pressure on the machine, in the mean of the last minute.
pub type ReadPressure = Box<dyn Fn() -> Option<PressureShares> + Send + Sync>;

/// The balancer as this node knows it.
#[derive(Default)]
pub(super) struct Balancer {
    pub(super) known: watch::Sender<Known>,
    /// When the record had another look for the last time.
    looked: Mutex<Option<Instant>>,
    pressure: OnceLock<ReadPressure>,
}

/// The record, and its revision in the metastore.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    record: BalancerRecord,
    revision: Option<u64>,
    /// It is of a later release: this node neither goes by it nor changes it.
    is_foreign: bool,
}

impl Engine {
    /// By this the node measures the pressure on its machine. Once only: later calls change nothing.
    pub fn measure_pressure(&self, read: ReadPressure) {
        let _ = self.balancer.pressure.set(read);
    }

    /// The balancer's settings, shares and journal, as this node knows them.
    pub fn balancer(&self) -> BalancerRecord {
        self.balancer.known.borrow().record.clone()
    }

    /// Sets the mode and the budget of the balancer. Returns the record that holds then.
    ///
    /// # Errors
    /// A record of a later release; a lost metastore.
    pub async fn set_balancer(&self, settings: Settings) -> Result<BalancerRecord, EngineError> {
        loop {
            let entry = self.meta.get(KEY).await?;
            let (record, expected) = match &entry {
                None => (BalancerRecord::default(), Expected::Absent),
                Some(entry) => (understood(KEY, entry)?, Expected::At(entry.revision)),
            };
            let next = BalancerRecord::with(record, settings);
            match self.meta.put(KEY, pack(&next), expected, None).await {
                Ok(revision) => {
                    self.know_balancer(Known {
                        record: next.clone(),
                        revision: Some(revision),
                        is_foreign: false,
                    });
                    return Ok(next);
                }
                // A look was made meanwhile.
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// How many partitions of a run nodes may host that the balancer limits, of these.
    pub(super) fn balanced_caps(&self, run: &RunState, nodes: &[NodeId]) -> BTreeMap<NodeId, usize> {
        let known = self.balancer.known.borrow();
        let shares: BTreeMap<NodeId, Share> = match known.is_foreign {
            true => BTreeMap::new(),
            false => known.record.shares_in_force(nodes.iter()),
        };
        caps(run.plan.document().partitions as usize, &shares)
    }

    /// Whether the record is of a later release. Nodes of that one place by it, so this node moves nothing by itself.
    pub(super) fn balancer_is_foreign(&self) -> bool {
        self.balancer.known.borrow().is_foreign
    }

    pub(super) fn take_balancer(&self, listing: &Listing) {
        let entry = listing.entries.iter().find(|(key, _)| key == KEY).map(|(_, entry)| entry);
        self.know_balancer(match entry {
            None => Known::default(),
            Some(entry) => match parse(entry) {
                Some(record) => Known { record, revision: Some(entry.revision), is_foreign: false },
                None => Known { revision: Some(entry.revision), is_foreign: true, ..Known::default() },
            },
        });
    }

    /// Records older than the known one are no news.
    fn know_balancer(&self, now: Known) {
        self.balancer.known.send_if_modified(|known| {
            if now.revision < known.revision && now.revision.is_some() {
                return false;
            }
            if now.record.look != known.record.look {
                *self.balancer.looked.lock().expect("no panic while held") = Some(Instant::now());
            }
            let places_otherwise =
                now.is_foreign != known.is_foreign || in_force(&now.record) != in_force(&known.record);
            *known = now;
            places_otherwise
        });
    }

    /// What this node measures about itself. Beside the disk that is nothing while no run is read: news that nodes
    /// have no use for would cost requests to the metastore.
    pub(super) fn load(&self, disk: Disk) -> NodeLoad {
        let mut load = NodeLoad { disk, ..NodeLoad::default() };
        if self.active_run_states().is_empty() {
            return load;
        }
        load.pressure = self.balancer.pressure.get().and_then(|read| read());
        // The speed of ranks is of use while a node is watched, or a decision waits for its effect.
        let is_wanted = !self.balancer.known.borrow().record.nodes.is_empty();
        if !is_wanted {
            return load;
        }
        let rates = self.readers().into_iter().filter_map(|reader| Some(reader.recent?.samples_per_second));
        load.samples_per_second = rates.reduce(|sum, rate| sum + rate);
        load
    }

    /// Makes the next look, if it is due and there is something to decide or to remember.
    pub(super) async fn balance(
        &self,
        loads: &BTreeMap<NodeId, NodeLoad>,
        issues: &[HealthIssue],
    ) -> Result<(), MetaError> {
        let Known { record, revision, is_foreign } = self.balancer.known.borrow().clone();
        let since = self.balancer.looked.lock().expect("no panic while held").map(|at| at.elapsed());
        if is_foreign || since.is_some_and(|since| since < LOOKS_APART) {
            return Ok(());
        }
        let draining = self.draining();
        let mut look = Look {
            at: now(),
            elapsed: since.unwrap_or(LOOKS_APART),
            nodes: self.live_nodes().into_iter().filter(|node| !draining.contains_key(node)).collect(),
            slowness: slowness(loads, issues),
            samples_per_second: loads
                .values()
                .filter_map(|load| load.samples_per_second)
                .reduce(|sum, rate| sum + rate),
            ..Look::default()
        };
        for run in self.active_run_states() {
            let partitions = run.plan.document().partitions as usize;
            look.partitions += partitions;
            look.bytes = look.bytes.saturating_add(run.needs.read_bytes.saturating_mul(partitions as u64));
        }
        let Some(next) = decide(&record, &look) else { return Ok(()) };
        let expected = revision.map_or(Expected::Absent, Expected::At);
        match self.meta.put(KEY, pack(&next), expected, None).await {
            Ok(revision) => {
                report(&next);
                self.know_balancer(Known { record: next, revision: Some(revision), is_foreign: false });
                Ok(())
            }
            // Another node was faster.
            Err(MetaError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The smaller shares that placements go by.
fn in_force(record: &BalancerRecord) -> BTreeMap<NodeId, Share> {
    let shares = record.shares_in_force(record.nodes.keys());
    shares.into_iter().filter(|(_, share)| !share.is_full()).collect()
}

/// Logs the decisions of the last look.
fn report(record: &BalancerRecord) {
    for decision in record.journal.iter().filter(|decision| decision.look == record.look) {
        let (node, from, to) = (&decision.node, decision.from, decision.to);
        let (signal, times) = (decision.signal, (decision.times * 10.0).round() / 10.0);
        let (bytes, mode) = (decision.forecast.bytes, record.settings.mode);
        if to < from {
            warn!(%node, %from, %to, %signal, times, bytes, %mode, "a node is slow: it gets a smaller share of the partitions");
        } else {
            info!(%node, %from, %to, %signal, times, bytes, %mode, "a node is as fast as others again: it gets a larger share");
        }
    }
}
