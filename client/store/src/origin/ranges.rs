//! Reading ranges of a shard that lie far apart: each by itself, but for those between which there is next to nothing.
//!
//! Clients of services join ranges up to a megabyte apart, for a request is dear. Who reads single rows at random from all of a shard
//! would have most of it sent that way, every time.

use std::ops::Range;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use shardfmt::ShardId;
use tracing::instrument;

use super::{Object, Origin, OriginError};

/// Of the wanted bytes, one part in this number may be read beside it to save requests.
const SPARE: u64 = 50;

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

/// Ascending ranges, the closest of them joined while what lies between them is little beside all that is wanted.
fn joined(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let ranges: Vec<&Range<u64>> = ranges.iter().filter(|range| !range.is_empty()).collect();
    let mut gaps: Vec<(u64, usize)> = (1..)
        .zip(ranges.windows(2))
        .map(|(at, pair)| (pair[1].start.saturating_sub(pair[0].end), at))
        .collect();
    gaps.sort_unstable();
    let mut spare = ranges.iter().map(|range| range.end - range.start).sum::<u64>() / SPARE;
    let mut is_joined = vec![false; ranges.len()];
    for (gap, at) in gaps {
        let Some(left) = spare.checked_sub(gap) else { break };
        spare = left;
        is_joined[at] = true;
    }
    let mut reads: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for (range, is_joined) in ranges.into_iter().zip(is_joined) {
        match reads.last_mut().filter(|_| is_joined) {
            Some(last) => last.end = range.end,
            None => reads.push(range.clone()),
        }
    }
    reads
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_range_is_in_a_read_and_little_else_is(
            steps in prop::collection::vec((0u64..5000, 0u64..3000), 1..100),
        ) {
            let mut end = 0;
            let ranges: Vec<Range<u64>> = steps
                .into_iter()
                .map(|(gap, length)| {
                    let start = end + gap;
                    end = start + length;
                    start..end
                })
                .collect();
            let reads = joined(&ranges);
            let bytes = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum::<u64>();
            prop_assert!(bytes(&reads) <= bytes(&ranges) + bytes(&ranges) / SPARE);
            prop_assert!(reads.is_sorted_by(|one, other| one.end <= other.start));
            for range in ranges.iter().filter(|range| !range.is_empty()) {
                prop_assert!(reads.iter().any(|read| read.start <= range.start && range.end <= read.end));
            }
        }
    }
}
