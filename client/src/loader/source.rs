//! Where a loader's rows come from: the one seam of the loader.

use std::borrow::Cow;

use shardfmt::plan::GrainNo;

use super::LoadError;

/// A grain that a window of steps needs, and the partition it is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wanted {
    pub(crate) grain: GrainNo,
    pub(crate) partition: u32,
}

/// Gives the canonical rows of grains. What it gives has been verified against the manifest.
pub(crate) trait RowSource: Send {
    /// Makes the grains ready for [`RowSource::row`]; blocks until they are. Grains of an earlier epoch may be let go.
    fn prepare(&mut self, epoch: u32, wanted: &[Wanted]) -> Result<(), LoadError>;

    /// A row of a grain that was prepared.
    fn row(&self, grain: GrainNo, row: u32) -> Result<Cow<'_, [u8]>, LoadError>;
}
