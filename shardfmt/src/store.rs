//! Where programs put finished shards, and where they find the files of shards again. Implemented by those that do I/O.

use std::io;

use arrow::buffer::Buffer;

use crate::digest::ShardId;
use crate::shard::FinishedShard;

/// Takes finished shards. Called from several threads, in no particular order.
pub trait Sink: Sync {
    /// Stores one shard durably. Storing the same shard twice must be harmless: a repeated ingest does so.
    ///
    /// # Errors
    /// Any error ends the ingest; objects stored before remain valid.
    fn put_shard(&self, shard: FinishedShard) -> io::Result<()>;

    /// Whether the shard was stored before. An ingest that continues after an interruption asks this of the
    /// shards that it has on its list; missing ones are made again.
    ///
    /// # Errors
    /// Any error ends the ingest.
    fn has_shard(&self, id: &ShardId) -> io::Result<bool>;
}

/// Gives the files of shards: a directory, a node, memory. Called from several threads.
pub trait Store: Sync {
    /// The bytes of a shard's file as stored, `None` where there are none. The caller verifies them.
    ///
    /// # Errors
    ///
    /// When they may be there and cannot be read.
    fn shard(&self, id: ShardId) -> io::Result<Option<Buffer>>;

    /// The bytes of a shard's sidecar, likewise.
    ///
    /// # Errors
    ///
    /// As [`shard`](Self::shard).
    fn sidecar(&self, id: ShardId) -> io::Result<Option<Buffer>>;
}
