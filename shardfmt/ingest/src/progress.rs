//! Reports of progress, which a program shows as it likes.

/// Receives the progress of an ingest. Called from several threads; must return quickly.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::{Ingest, IngestConfig, Inputs, Progress, Resources, Source};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// #[derive(Default)]
/// struct RowsRead(AtomicU64);
///
/// impl Progress for RowsRead {
///     fn advanced(&self, rows: u64, _bytes: u64, phase: &str) {
///         if phase == "reading" {
///             self.0.fetch_add(rows, Ordering::Relaxed);
///         }
///     }
/// }
/// # let (config, progress) = (IngestConfig::default(), RowsRead::default());
/// # let source = Source::new(Inputs::in_memory("words.csv", "word\ncat\ndog\n"), &config)?;
///
/// Ingest::read(source, &config, &[], &Resources::threads(1), &progress)?;
/// assert_eq!(progress.0.into_inner(), 2);
/// # Ok(())
/// # }
/// ```
pub trait Progress: Sync {
    /// `rows` and `bytes` (canonical) more are done in `phase`: `"reading"` first, then `"writing"`. Both phases
    /// count every row kept, so each ends at the number of samples of the version.
    fn advanced(&self, rows: u64, bytes: u64, phase: &str);

    /// An earlier attempt had read this many rows of the input and stored this many shards; the ingest resumes there.
    fn resumed(&self, _rows: u64, _shards: u64) {}
}

/// Ignores progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn advanced(&self, _rows: u64, _bytes: u64, _phase: &str) {}
}
