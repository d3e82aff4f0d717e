//! Grains that this node keeps and that are not here when they are wanted, where room is short: they came while there was none,
//! or have yet to come. They may still lie where they come from, and there may be room for them by now.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use shardd_api::explain::{MissSource, Wanted};
use shardd_plan::GrainNo;

use super::Engine;
use super::misses::Given;
use super::obtain::{Keep, group};
use super::run::RunState;
use crate::peers::{FetchMode, PEER_TIMEOUT};

impl Engine {
    /// Asks the hosts of the epoch before for those of the `grains` that this node keeps in `epoch` and lacks. Returns the bytes
    /// of what there is no room for. Grains that no host has, and that there is no room for, pass by the cache: they are added to
    /// `passing`, if `rows` names their wanted rows.
    pub(super) async fn bring_late(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        epoch: u32,
        grains: &[GrainNo],
        rows: &[Vec<u32>],
        passing: &mut BTreeMap<GrainNo, Vec<u32>>,
    ) -> HashMap<GrainNo, Bytes> {
        let mut loose = HashMap::new();
        if !self.is_short(run, epoch) {
            return loose;
        }
        let is_late = |grain: &GrainNo| self.keeps(run, epoch, *grain) && !self.is_resident(run, *grain);
        let late: BTreeSet<GrainNo> = grains.iter().copied().filter(is_late).collect();
        let mut left = late.clone();
        if let (Some(before), Some(placement), false) =
            (epoch.checked_sub(1), run.placement(), late.is_empty())
        {
            let view = run.epochs.view(before);
            let by_node = group(late.iter().filter_map(|grain| {
                let host = placement.host(view.partition_of(*grain));
                (*host != self.node).then(|| (host.clone(), *grain))
            }));
            let given = Given { epoch, wanted: Wanted::ToRead, source: MissSource::HostBefore, from: None };
            let (keep, effort) = (Keep::All, FetchMode::Cached);
            self.ask(run, given, keep, by_node, effort, PEER_TIMEOUT, &mut left, &mut loose).await;
        }
        passing.retain(|grain, _| !late.contains(grain) || left.contains(grain));
        let mut room = self.cache.free();
        for (grain, rows) in grains.iter().zip(rows) {
            if !left.contains(grain) || passing.contains_key(grain) {
                continue;
            }
            match room.checked_sub(run.resting_bytes(*grain)) {
                Some(rest) => room = rest,
                None => passing.extend(run.some_rows(*grain, rows).map(|rows| (*grain, rows))),
            }
        }
        loose
    }
}
