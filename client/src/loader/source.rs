//! Where a loader's rows come from: the one seam of the loader.

use std::sync::Arc;

use bytes::Bytes;
use shardfmt::RowDigest;
use shardfmt::row::Rows;

use super::LoadError;
use super::late::LateFile;
use super::order::SourceRead;

/// Brings rows to where they can be gathered. Its rows have been verified against the manifests, or are in their batches.
pub(crate) trait RowSource: Send {
    /// Makes ready the samples of a window of steps of one epoch; blocks until it is. What earlier windows
    /// read may be let go of, but for what their own [`Ready`] holds.
    fn prepare(&mut self, epoch: u32, window: &[&Reads]) -> Result<Arc<dyn Ready>, LoadError>;

    /// Waits until samples of `epoch` may be prepared; the ones before them end at `from` (epoch, position). Ends early when the
    /// loader is closed.
    fn await_epoch(&mut self, _epoch: u32, _from: (u32, u64)) {}

    /// How many rows it wants to know of beyond those that are prepared: none, if it would do nothing about them.
    fn horizon(&mut self) -> u64 {
        0
    }

    /// Whether rows of the next epoch may be announced before those of this one are all prepared.
    fn looks_beyond_epochs(&self) -> bool {
        false
    }

    /// The reads of a step that will be prepared some time after those announced before. Does not wait for
    /// it.
    fn expect(&mut self, _epoch: u32, _reads: &Reads) {}
}

/// The reads of each of a rank's virtual ranks in one step.
pub(crate) type Reads = Vec<Vec<SourceRead>>;

/// Rows that lie ready, or in files that are open, for as many threads as like to gather them.
pub(crate) trait Ready: Send + Sync {
    /// Where these rows lie; they are among those that were prepared.
    fn rows(&self, reads: &[SourceRead]) -> Rows<'_>;

    /// Whether some rows [may change](Self::may_change).
    fn has_changing(&self) -> bool {
        false
    }

    /// Whether a row may be another than it was, or was not verified yet: it is then checked in its batch.
    fn may_change(&self, _read: &SourceRead) -> bool {
        false
    }

    /// Whether a row that may change has this digest.
    fn is_genuine(&self, _read: &SourceRead, _row: RowDigest) -> bool {
        true
    }

    /// The canonical bytes of rows that were found wrong: verified, and the loader's own. Blocks until they are here.
    fn again(&self, _reads: &[&SourceRead]) -> Result<Vec<Bytes>, LoadError> {
        unreachable!("its rows do not change")
    }

    /// Of each of these rows the file that it is read from when it is gathered, if it is read then; empty if none is.
    fn late(&self, _reads: &[SourceRead]) -> Vec<Option<Arc<LateFile>>> {
        Vec::new()
    }
}
