//! What of a run was not on this node when it was wanted, and who gave it: for people who ask why reading waited.
//!
//! Bounded: the oldest entries are dropped first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use shardd_api::explain::{MissCount, MissSource, MissedGrain, MissesExplained, Wanted};
use shardd_api::node::NodeId;
use shardd_plan::GrainNo;

/// Counts that are kept, the newest epochs'.
const COUNTS: usize = 4096;
/// Grains that are kept by name.
const LATEST: usize = 64;

/// The misses of a run on this node.
#[derive(Debug, Default)]
pub(crate) struct Misses(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Grains and bytes.
    counts: BTreeMap<Given, (u64, u64)>,
    latest: VecDeque<MissedGrain>,
}

/// A source sends the missed grains.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Given {
    pub(super) epoch: u32,
    pub(super) wanted: Wanted,
    pub(super) source: MissSource,
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
        let Given { epoch, wanted, source, from } = given.clone();
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
                source,
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
            let Given { epoch, wanted, source, from } = given.clone();
            MissCount { epoch, wanted, source, from, grains: *grains, bytes: *bytes }
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
        let given = |epoch, wanted| Given { epoch, wanted, source: MissSource::Store, from: None };
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
