//! A shard written from rows that other shards hold, and compared with the digests that their sidecars list.

use arrow::datatypes::SchemaRef;
use shardfmt::manifest::ShardEntry;
use shardfmt::row::RowDigest;
use shardfmt::shard::{Compression, Shard, ShardWriter};

use super::VersionError;
use crate::Sink;

/// A shard of a new version while it is being written.
pub(super) struct Rewrite {
    /// Its number in the version.
    index: usize,
    writer: ShardWriter,
    expected: Vec<RowDigest>,
    row: Vec<u8>,
}

impl Rewrite {
    pub(super) fn new(
        index: usize,
        schema: SchemaRef,
        compression: Compression,
    ) -> Result<Self, VersionError> {
        let writer = ShardWriter::with_compression(schema, compression)
            .map_err(|source| VersionError::Shard { index, source })?;
        Ok(Self { index, writer, expected: Vec::new(), row: Vec::new() })
    }

    /// Adds the row with this number in `shard`; `digest` is the one that the shard's sidecar lists.
    pub(super) fn push(&mut self, shard: &Shard, number: u32, digest: RowDigest) -> Result<(), VersionError> {
        let failed = |source| VersionError::Shard { index: self.index, source };
        self.row.clear();
        shard.encode_row(number, &mut self.row).map_err(failed)?;
        self.writer.push_row(&self.row).map_err(failed)?;
        self.expected.push(digest);
        Ok(())
    }

    /// Gives the shard to the sink.
    ///
    /// # Errors
    ///
    /// [`VersionError::Changed`] when a row is not the one that its digest names.
    pub(super) fn put(self, sink: &dyn Sink) -> Result<ShardEntry, VersionError> {
        let failed = |source| VersionError::Shard { index: self.index, source };
        let finished = self.writer.finish().map_err(failed)?;
        if finished.sidecar.rows != self.expected {
            return Err(VersionError::Changed { shard: finished.id });
        }
        let entry = finished.entry.clone();
        sink.put_shard(finished).map_err(|source| VersionError::Sink { shard: entry.id, source })?;
        Ok(entry)
    }
}
