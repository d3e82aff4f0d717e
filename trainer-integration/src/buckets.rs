//! Which gradients travel together: consecutive blocks, the last ones first, because their gradients are there first. Pure.

use std::ops::Range;

/// How large buckets are, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSizes {
    /// Of the first to travel, which is small so that communication begins early. Default 1 MiB.
    pub first: usize,
    /// Of the others: large enough that the latency of a message is small next to its length. Default 25 MiB.
    pub others: usize,
}

impl Default for BucketSizes {
    /// Those of PyTorch's DistributedDataParallel (Li et al., VLDB 2020).
    fn default() -> BucketSizes {
        BucketSizes { first: 1 << 20, others: 25 << 20 }
    }
}

/// Where the blocks of a bucket lie among all numbers, and where in the bucket.
pub(crate) type Places = Vec<(Range<usize>, Range<usize>)>;

/// The buckets of a model, in the order in which they travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Buckets {
    buckets: Vec<Range<usize>>,
    /// Numbers of each block.
    lengths: Vec<usize>,
}

impl Buckets {
    /// Fills buckets with blocks of these sizes, from the last block to the first, until each has reached its
    /// size.
    pub(crate) fn new(lengths: Vec<usize>, sizes: BucketSizes) -> Buckets {
        let mut buckets: Vec<Range<usize>> = Vec::new();
        let mut end = lengths.len();
        while end > 0 {
            let size = if buckets.is_empty() { sizes.first } else { sizes.others };
            let (mut start, mut bytes) = (end, 0);
            while start > 0 && (start == end || bytes < size) {
                start -= 1;
                bytes += lengths[start] * size_of::<f32>();
            }
            buckets.push(start..end);
            end = start;
        }
        Buckets { buckets, lengths }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.buckets.len()
    }

    /// The bucket that is complete once this block's gradient is there, if there is one.
    pub(crate) fn completed_by(&self, block: usize) -> Option<usize> {
        self.buckets.iter().position(|blocks| blocks.start == block)
    }

    /// The bucket that this block is in.
    pub(crate) fn with(&self, block: usize) -> usize {
        let found = self.buckets.iter().position(|blocks| blocks.contains(&block));
        found.expect("every block is in a bucket")
    }

    /// Numbers of a bucket.
    pub(crate) fn len(&self, bucket: usize) -> usize {
        self.buckets[bucket].clone().map(|block| self.lengths[block]).sum()
    }

    /// Where the blocks of each bucket lie among all numbers, in the order of the blocks, and in the bucket; and how many numbers
    /// there are.
    pub(crate) fn all_places(&self) -> (Vec<Places>, usize) {
        let mut end = 0;
        let start = |length: &usize| {
            end += length;
            end - length
        };
        let starts: Vec<usize> = self.lengths.iter().map(start).collect();
        let of_bucket = |bucket| {
            let places = self.places(bucket);
            places.map(|(block, range)| (starts[block]..starts[block] + range.len(), range)).collect()
        };
        ((0..self.count()).map(of_bucket).collect(), end)
    }

    /// Where the blocks of a bucket lie in it: the last block first.
    pub(crate) fn places(&self, bucket: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut start = 0;
        self.buckets[bucket].clone().rev().map(move |block| {
            let end = start + self.lengths[block];
            (block, std::mem::replace(&mut start, end)..end)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_bucket_is_small_and_a_large_block_has_one_of_its_own() {
        let buckets = Buckets::new(vec![1, 2, 30, 4, 5, 6], BucketSizes { first: 8 * 4, others: 16 * 4 });
        assert_eq!(buckets.buckets, [4..6, 2..4, 0..2]);
        assert_eq!(buckets.places(1).collect::<Vec<_>>(), [(3, 0..4), (2, 4..34)]);
        assert_eq!(
            [5, 4, 3, 2, 0].map(|block| buckets.completed_by(block)),
            [None, Some(0), None, Some(1), Some(2)]
        );
    }

    proptest! {
        #[test]
        fn every_number_travels_once(lengths in prop::collection::vec(0usize..50, 0..20), first in 0usize..200, others in 0usize..400) {
            let buckets = Buckets::new(lengths.clone(), BucketSizes { first, others });
            let mut seen = Vec::new();
            for bucket in 0..buckets.count() {
                let places: Vec<_> = buckets.places(bucket).collect();
                prop_assert_eq!(places.last().map_or(0, |(_, range)| range.end), buckets.len(bucket));
                prop_assert_eq!(buckets.completed_by(places.last().unwrap().0), Some(bucket));
                for (block, range) in places {
                    prop_assert_eq!(range.len(), lengths[block]);
                    prop_assert_eq!(buckets.with(block), bucket);
                    seen.push(block);
                }
            }
            prop_assert!(seen.into_iter().eq((0..lengths.len()).rev()));
        }
    }
}
