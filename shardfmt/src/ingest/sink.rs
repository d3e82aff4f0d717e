//! Where finished shards go and who is told how far things are. The ends of the ingest that do I/O elsewhere.

use std::io;

use crate::digest::ShardId;
use crate::shard::FinishedShard;

/// Takes finished shards. Called from several threads, in no particular order.
pub trait Sink: Sync {
    /// Stores one shard durably. Storing the same shard twice must be harmless: a repeated ingest does so.
    ///
    /// # Errors
    /// Any error ends the ingest; what was stored before remains valid.
    fn put_shard(&self, shard: FinishedShard) -> io::Result<()>;

    /// Whether the shard was stored before. An ingest that goes on after an interruption asks this of the shards that it
    /// has on its list; what is not there is made again.
    ///
    /// # Errors
    /// Any error ends the ingest.
    fn has_shard(&self, id: &ShardId) -> io::Result<bool>;
}

/// Is told how far an ingest is. Called from several threads; must return quickly.
pub trait Progress: Sync {
    /// `rows` and `bytes` (canonical) more are done in `phase`: `"reading"` first, then `"writing"`. Both phases
    /// count every row kept, so each ends at the number of samples of the version.
    fn advanced(&self, rows: u64, bytes: u64, phase: &str);

    /// An earlier attempt had read this many rows of the input and stored this many shards; the ingest goes on from there.
    fn went_on(&self, _rows: u64, _shards: u64) {}
}

/// Ignores progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn advanced(&self, _rows: u64, _bytes: u64, _phase: &str) {}
}
