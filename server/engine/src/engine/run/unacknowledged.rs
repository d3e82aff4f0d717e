//! Grains that left by plan, until their next host has them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use shardd_plan::GrainNo;

/// Grains that left by plan but whose new host has not acknowledged them, by the epoch after which they left.
#[derive(Debug, Default)]
pub(crate) struct Unacknowledged(Mutex<BTreeMap<u32, BTreeSet<GrainNo>>>);

impl Unacknowledged {
    /// These grains leave after `epoch`.
    pub(crate) fn add(&self, epoch: u32, grains: impl IntoIterator<Item = GrainNo>) {
        let mut all = self.0.lock().expect("no panic while held");
        all.entry(epoch).or_default().extend(grains);
    }

    /// Their next host has these grains, which leave after `epoch`.
    pub(crate) fn acknowledge(&self, epoch: u32, grains: &[GrainNo]) {
        let mut all = self.0.lock().expect("no panic while held");
        if let Some(left) = all.get_mut(&epoch) {
            grains.iter().for_each(|grain| {
                left.remove(grain);
            });
        }
    }

    /// Whether the grain left a partition of this node and its next host may not have it yet.
    pub(crate) fn contains(&self, grain: GrainNo) -> bool {
        let all = self.0.lock().expect("no panic while held");
        all.values().any(|grains| grains.contains(&grain))
    }

    /// Takes the unacknowledged grains of the epochs up to `through`.
    pub(crate) fn take(&self, through: u32) -> BTreeSet<GrainNo> {
        let mut all = self.0.lock().expect("no panic while held");
        let later = all.split_off(&(through + 1));
        std::mem::replace(&mut *all, later).into_values().flatten().collect()
    }
}
