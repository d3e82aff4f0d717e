//! The partitions of a run whose grains are on this node: those that it hosts, those that an earlier placement
//! left here, and those that it keeps for a silent host. They bound what the run takes of the disk. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use shardd_api::capacity::Needs;

/// What a run has on the disk of this node, by partition.
#[derive(Debug)]
pub(crate) struct Held {
    /// For each partition the last epoch for which one of its grains was kept, plus one; 0: none was.
    until: Vec<AtomicU32>,
    /// Bytes that an earlier process left of partitions that this node did not host when it opened the run,
    /// by the epoch after which they leave.
    found: OnceLock<BTreeMap<u32, u64>>,
}

impl Held {
    pub(crate) fn of(partitions: u32) -> Self {
        Self { until: (0..partitions).map(|_| AtomicU32::new(0)).collect(), found: OnceLock::new() }
    }

    /// A grain that belongs to `partition` in `epoch` is kept.
    pub(crate) fn note(&self, partition: u32, epoch: u32) {
        self.until[partition as usize].fetch_max(epoch.saturating_add(1), Relaxed);
    }

    /// Looks once for bytes that an earlier process left here.
    pub(crate) fn find(&self, look: impl FnOnce() -> BTreeMap<u32, u64>) {
        self.found.get_or_init(look);
    }

    /// The most bytes that the run takes of the disk while its ranks have reached epoch `slowest` or more, and this node
    /// hosts `hosted`.
    ///
    /// A partition counts until all grains that it had have moved elsewhere by the plan, which drops them.
    pub(crate) fn peak_bytes(&self, needs: &Needs, hosted: &BTreeSet<u32>, slowest: u32) -> u64 {
        let is_here = |partition: &u32| {
            let until = self.until[*partition as usize].load(Relaxed);
            let leaves = needs.epochs_to_leave.map_or(u32::MAX, |epochs| until.saturating_add(epochs));
            until > 0 && leaves > slowest
        };
        let held = (0..self.until.len() as u32).filter(|p| hosted.contains(p) || is_here(p)).count() as u64;
        let found = self.found.get().into_iter().flat_map(|found| found.range(slowest..));
        let found = found.map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
        let headers = if held > 0 { needs.segment_bytes() } else { 0 };
        held.saturating_mul(needs.partition_bytes).saturating_add(headers).saturating_add(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of the segments of a run without classes.
    const HEADERS: u64 = 32 * 128;

    fn needs(epochs_to_leave: Option<u32>) -> Needs {
        let mut needs = Needs::of_bytes(100, 80);
        needs.epochs_to_leave = epochs_to_leave;
        needs
    }

    #[test]
    fn a_partition_that_was_taken_over_counts_until_its_grains_have_left() {
        let held = Held::of(6);
        let own = BTreeSet::from([0, 1]);
        for epoch in 0..5 {
            own.iter().for_each(|partition| held.note(*partition, epoch));
        }
        held.note(4, 2);
        held.note(4, 3);
        let peak = |slowest| held.peak_bytes(&needs(Some(10)), &own, slowest);
        assert_eq!(
            [3, 4, 13].map(peak),
            [300 + HEADERS; 3],
            "its grains of epoch 3 leave with epoch 12 at the latest"
        );
        assert_eq!(peak(14), 200 + HEADERS);
        assert_eq!(
            held.peak_bytes(&needs(None), &own, 1000),
            300 + HEADERS,
            "without an exchange nothing leaves"
        );
    }

    #[test]
    fn an_earlier_process_has_left_bytes_that_leave_in_their_turn() {
        let held = Held::of(2);
        held.find(|| BTreeMap::from([(3, 10), (5, 7), (u32::MAX, 1)]));
        held.find(|| panic!("it looks once"));
        let peak = |slowest| held.peak_bytes(&needs(Some(4)), &BTreeSet::from([1]), slowest);
        assert_eq!([0, 3, 4, 6].map(peak), [118, 118, 108, 101].map(|bytes| bytes + HEADERS));
    }

    proptest! {
        #[test]
        fn the_peak_is_at_least_that_of_the_hosted_partitions_and_at_most_that_of_all(
            notes in prop::collection::vec((0..8_u32, 0..20_u32), 0..30), hosted in prop::collection::btree_set(0..8_u32, 0..8),
            slowest in 0..40_u32, epochs in prop::option::of(1..20_u32),
        ) {
            let held = Held::of(8);
            notes.iter().for_each(|(partition, epoch)| held.note(*partition, *epoch));
            let peak = held.peak_bytes(&needs(epochs), &hosted, slowest);
            prop_assert!(peak >= 100 * hosted.len() as u64 && peak <= 800 + HEADERS);
            prop_assert!(held.peak_bytes(&needs(epochs), &hosted, slowest + 1) <= peak);
        }
    }
}
