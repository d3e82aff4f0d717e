//! The most that this node's runs take of its disk, computed from their plans and placements.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Engine, RunState};

impl Engine {
    /// The most bytes that all known runs take of the cache: what the node hosts, grains on their way
    /// included, and what earlier placements and processes left here.
    pub(super) fn cache_peak_bytes(&self) -> u64 {
        let runs: Vec<Arc<RunState>> =
            self.runs.states.lock().expect("no panic while held").values().cloned().collect();
        let peak = |run: &Arc<RunState>| {
            let placement = run.placement();
            let hosted: BTreeSet<u32> =
                placement.iter().flat_map(|placement| placement.hosted_by(&self.node)).collect();
            let slowest = run.ranks.progress.borrow().slowest_epoch().unwrap_or(0);
            run.held.peak_bytes(&run.needs, &hosted, slowest)
        };
        runs.iter().map(peak).fold(0, u64::saturating_add)
    }

    /// Looks, once, for what an earlier process left here of partitions that this node does not host in `epoch`.
    pub(super) fn find_left(&self, run: &RunState, epoch: u32) {
        run.held.find(|| {
            let is_hosted =
                |key: &_| run.grain(key).is_some_and(|grain| run.is_hosted_by(&self.node, grain, epoch));
            self.cache.bytes_beside(run.name(), is_hosted)
        });
    }
}
