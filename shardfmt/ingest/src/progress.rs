//! Reports of progress, which a program shows as it likes.

/// Receives the progress of an ingest. Called from several threads; must return quickly.
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
