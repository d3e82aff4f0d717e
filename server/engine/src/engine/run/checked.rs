//! The grains whose bytes in the cache were checked against the manifest, and when.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use shardd_plan::GrainNo;

/// For each grain the epoch, plus one, in which its bytes in the cache were last checked.
pub(crate) struct Checked(Vec<AtomicU32>);

impl Checked {
    /// The state before any check, for this number of grains.
    pub(crate) fn of(grains: usize) -> Self {
        Self((0..grains).map(|_| AtomicU32::new(0)).collect())
    }

    pub(crate) fn was_checked(&self, grain: GrainNo, epoch: u32) -> bool {
        self.0[grain.0 as usize].load(Relaxed) > epoch
    }

    pub(crate) fn mark(&self, grain: GrainNo, epoch: u32) {
        self.0[grain.0 as usize].fetch_max(epoch + 1, Relaxed);
    }

    /// Whatever was checked has to be checked again.
    pub(crate) fn doubt(&self, grains: impl IntoIterator<Item = GrainNo>) {
        grains.into_iter().for_each(|grain| self.0[grain.0 as usize].store(0, Relaxed));
    }
}
