//! Where programs put finished shards, and where they find the files of shards again. Implemented by those that do I/O.

use std::io;

use arrow::buffer::Buffer;

use crate::digest::ShardId;
use crate::shard::FinishedShard;

/// Takes finished shards. Called from several threads, in no particular order.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::store::Sink;
/// use shardfmt::{FinishedShard, ShardId};
/// use std::io;
/// use std::path::PathBuf;
///
/// struct Directory(PathBuf);
///
/// impl Sink for Directory {
///     fn put_shard(&self, shard: FinishedShard) -> io::Result<()> {
///         std::fs::write(self.0.join(shard.id.to_string()), &shard.bytes)
///     }
///     fn has_shard(&self, id: &ShardId) -> io::Result<bool> {
///         self.0.join(id.to_string()).try_exists()
///     }
/// }
/// # let dir = tempfile::tempdir()?;
/// assert!(!Directory(dir.path().into()).has_shard(&ShardId::of(b"a shard's file"))?);
/// # Ok(())
/// # }
/// ```
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
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::arrow::buffer::Buffer;
/// use shardfmt::store::Store;
/// use shardfmt::{FinishedShard, ShardId};
/// use std::io;
///
/// struct One(FinishedShard);
///
/// impl Store for One {
///     fn shard(&self, id: ShardId) -> io::Result<Option<Buffer>> {
///         Ok((id == self.0.id).then(|| self.0.bytes.clone().into()))
///     }
///     fn sidecar(&self, id: ShardId) -> io::Result<Option<Buffer>> {
///         Ok((id == self.0.id).then(|| self.0.sidecar.encode().into()))
///     }
/// }
/// # use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// # use std::sync::Arc;
/// # let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
/// # let rows = RecordBatch::try_from_iter([("label", labels)])?;
/// # let mut writer = shardfmt::ShardWriter::new(rows.schema())?;
/// # writer.push(&rows)?;
/// # let finished = writer.finish()?;
/// # let id = finished.id;
/// assert!(One(finished).sidecar(id)?.is_some());
/// # Ok(())
/// # }
/// ```
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
