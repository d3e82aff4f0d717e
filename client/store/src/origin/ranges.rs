//! Reading ranges of a shard that lie far apart: each by itself, but for those between which there is next to nothing.
//!
//! Clients of services join ranges up to a megabyte apart, for a request is dear. Who reads single rows at random from all of a shard
//! would have most of it sent that way, every time.

use std::ops::Range;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use shardfmt::ShardId;
use shardfmt::joined::joined;
use tracing::instrument;

use super::{Object, Origin, OriginError};

/// How many ranges of a shard are asked for at once.
const AT_ONCE: usize = 32;

impl Origin {
    /// Byte ranges of a shard's file as they are in the store, unverified, in the order asked for: with no more than a fiftieth of
    /// their bytes beside them. They ascend and do not overlap.
    ///
    /// # Errors
    ///
    /// [`OriginError::Corrupt`] when the file ends before them.
    pub async fn read_ranges_apart(
        &self,
        id: &ShardId,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>, OriginError> {
        if self.remote.is_none() {
            return self.read_ranges(id, ranges).await; // a file is read as it is asked for
        }
        let object = Object::shard(*id);
        let reads = joined(ranges);
        let asked: Vec<_> = reads.iter().map(|read| self.read_range(&object, read.clone())).collect();
        let fetched: Vec<Bytes> = stream::iter(asked).buffered(AT_ONCE).try_collect().await?;
        let part = |range: &Range<u64>| {
            if range.is_empty() {
                return Bytes::new();
            }
            let at = reads.partition_point(|read| read.start <= range.start) - 1;
            let start = (range.start - reads[at].start) as usize;
            fetched[at].slice(start..start + (range.end - range.start) as usize)
        };
        Ok(ranges.iter().map(part).collect())
    }

    #[instrument(name = "read_store", level = "debug", skip_all, fields(object = %object.what, start = range.start, end = range.end))]
    async fn read_range(&self, object: &Object, range: Range<u64>) -> Result<Bytes, OriginError> {
        let end = range.end;
        let bytes = self.store.get_range(&object.path, range.clone()).await;
        let bytes = bytes.map_err(|error| self.failed("read", object, error))?;
        self.data.count(1, bytes.len() as u64);
        match bytes.len() as u64 == end - range.start {
            true => Ok(bytes),
            false => Err(self.corrupt(object, format!("it ends before {end}"))),
        }
    }
}
