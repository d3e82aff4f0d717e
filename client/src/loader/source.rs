//! Where a loader's rows come from: the one seam of the loader.

use std::sync::Arc;

use shardfmt::row::Rows;

use super::LoadError;
use super::order::SourceRead;

/// Brings rows to where they can be gathered. What it gives has been verified against the manifests.
pub(crate) trait RowSource: Send {
    /// Makes ready what is read in a window of steps of one epoch; blocks until it is. What earlier windows read may be let
    /// go of, but for what their own [`Ready`] holds.
    fn prepare(&mut self, epoch: u32, window: &[&Reads]) -> Result<Arc<dyn Ready>, LoadError>;
}

/// What each of a rank's virtual ranks reads in one step.
pub(crate) type Reads = Vec<Vec<SourceRead>>;

/// Rows that lie ready, for as many threads as like to gather them.
pub(crate) trait Ready: Send + Sync {
    /// Where these rows lie; they are among those that were prepared.
    fn rows(&self, reads: &[SourceRead]) -> Rows<'_>;
}
