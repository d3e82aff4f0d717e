//! What of a run was not on this node when it was wanted, and who gave it: for people who ask why reading waited.
//!
//! Bounded: what was long ago is forgotten first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use shardfmt::plan::GrainNo;

use crate::node::NodeId;

/// Counts that are kept, the newest epochs'.
const COUNTS: usize = 4096;
/// Grains that are kept by name.
const LATEST: usize = 64;

/// Who gave a grain that was not here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Giver {
    /// The host of its partition in this epoch.
    Host,
    /// The host of the partition that it was in in the epoch before.
    HostBefore,
    /// Who hosted its partition by the placement before.
    FormerHost,
    /// The host of the partition that it is in in the next epoch, which had it already: where room is short, it lies there only.
    HostNext,
    /// The reader of its shard.
    Reader,
    /// A node that had it by chance.
    Neighbour,
    /// The store.
    Store,
}

/// Whom it was brought for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// A loader, which waited.
    ToRead,
    /// This node's cache, or the exchange: before anybody waited.
    ToKeep,
}

/// Grains that were not here, by epoch, reason and giver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MissCount {
    /// The epoch that they were wanted for.
    pub epoch: u32,
    /// What for.
    pub wanted: Wanted,
    /// Who gave them.
    pub giver: Giver,
    /// Its name, if it is a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub from: Option<NodeId>,
    /// How many.
    pub grains: u64,
    /// Their bytes, proofs included.
    pub bytes: u64,
}

/// A grain that a loader waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MissedGrain {
    /// The epoch.
    pub epoch: u32,
    /// Its number in the plan.
    pub grain: u64,
    /// The partition that has it in that epoch.
    pub partition: u32,
    /// Who gave it.
    pub giver: Giver,
    /// Its name, if it is a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub from: Option<NodeId>,
}

/// What of a run was not on a node when it was wanted, since the node started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MissesExplained {
    /// The node.
    pub node: NodeId,
    /// By epoch, reason and giver.
    pub counts: Vec<MissCount>,
    /// The last of those that a loader waited for, the newest last.
    pub latest: Vec<MissedGrain>,
}

/// What a run has missed on this node.
#[derive(Debug, Default)]
pub(crate) struct Misses(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Grains and bytes.
    counts: BTreeMap<Given, (u64, u64)>,
    latest: VecDeque<MissedGrain>,
}

/// Somebody gives what was missed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Given {
    pub(super) epoch: u32,
    pub(super) wanted: Wanted,
    pub(super) giver: Giver,
    pub(super) from: Option<NodeId>,
}

impl Misses {
    /// Notes grains that were given, good ones; `partition_of` says where each belongs.
    pub(super) fn note(
        &self,
        given: Given,
        grains: impl ExactSizeIterator<Item = GrainNo>,
        bytes: usize,
        partition_of: impl Fn(GrainNo) -> u32,
    ) {
        if grains.len() == 0 {
            return;
        }
        let Given { epoch, wanted, giver, from } = given.clone();
        let mut kept = self.0.lock().expect("no panic while held");
        let count = kept.counts.entry(given).or_default();
        *count = (count.0 + grains.len() as u64, count.1 + bytes as u64);
        while kept.counts.len() > COUNTS {
            kept.counts.pop_first();
        }
        if wanted == Wanted::ToRead {
            let skipped = grains.len().saturating_sub(LATEST);
            kept.latest.extend(grains.skip(skipped).map(|grain| MissedGrain {
                epoch,
                grain: grain.0,
                partition: partition_of(grain),
                giver,
                from: from.clone(),
            }));
            let too_many = kept.latest.len().saturating_sub(LATEST);
            kept.latest.drain(..too_many);
        }
    }

    /// A picture of now, as `node` saw it.
    pub(super) fn explained(&self, node: NodeId) -> MissesExplained {
        let kept = self.0.lock().expect("no panic while held");
        let count = |(given, (grains, bytes)): (&Given, &(u64, u64))| {
            let Given { epoch, wanted, giver, from } = given.clone();
            MissCount { epoch, wanted, giver, from, grains: *grains, bytes: *bytes }
        };
        MissesExplained {
            node,
            counts: kept.counts.iter().map(count).collect(),
            latest: kept.latest.iter().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_ones_are_forgotten_and_only_what_was_waited_for_is_named() {
        let misses = Misses::default();
        let given = |epoch, wanted| Given { epoch, wanted, giver: Giver::Store, from: None };
        for epoch in 0..COUNTS as u32 + 10 {
            misses.note(given(epoch, Wanted::ToKeep), [GrainNo(1), GrainNo(2)].into_iter(), 10, |_| 0);
        }
        let told = misses.explained("n1".parse().expect("a name"));
        assert_eq!((told.counts.len(), told.latest.len()), (COUNTS, 0));
        assert_eq!((told.counts[0].epoch, told.counts[0].grains, told.counts[0].bytes), (10, 2, 10));

        let many: Vec<GrainNo> = (0..1000).map(GrainNo).collect();
        misses.note(given(9000, Wanted::ToRead), many.into_iter(), 1, |grain| grain.0 as u32);
        let told = misses.explained("n1".parse().expect("a name"));
        assert_eq!((told.latest.len(), told.latest[LATEST - 1].partition), (LATEST, 999));
    }
}
