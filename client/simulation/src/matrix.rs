//! How a partition's grains are made up, by the partitions that they began in.

use serde::Serialize;

/// A matrix has at most this number of rows: of more partitions, neighbours share one.
pub const MOST_GROUPS: u32 = 64;

/// The grains of an epoch, by where they are and where they began.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MixingMatrix {
    /// The epoch, as it begins.
    pub epoch: u32,
    /// Partitions.
    pub partitions: u32,
    /// A row for each partition, or for each group of neighbours: the shares of its grains that began in each. A row sums to 1,
    /// but for rounding; one without grains has zeros. Fully mixed, all values are the same.
    pub rows: Vec<Vec<f32>>,
    /// Over this number of grains.
    pub of_grains: u64,
}

/// Counts pairs of partitions.
pub(crate) struct Pairs {
    epoch: u32,
    partitions: u32,
    groups: u32,
    counts: Vec<u64>,
}

impl Pairs {
    pub(crate) fn new(epoch: u32, partitions: u32) -> Self {
        let groups = partitions.min(MOST_GROUPS);
        Self { epoch, partitions, groups, counts: vec![0; (groups * groups) as usize] }
    }

    /// A grain that is in one partition and began in another.
    pub(crate) fn count(&mut self, now: u32, first: u32) {
        let group =
            |partition: u32| u64::from(partition) * u64::from(self.groups) / u64::from(self.partitions);
        let at = group(now) * u64::from(self.groups) + group(first);
        self.counts[at as usize] += 1;
    }

    pub(crate) fn matrix(self) -> MixingMatrix {
        let row = |counts: &[u64]| -> Vec<f32> {
            let all = counts.iter().sum::<u64>().max(1) as f64;
            #[expect(clippy::cast_possible_truncation, reason = "seven digits are enough to look at")]
            counts.iter().map(|count| (*count as f64 / all) as f32).collect()
        };
        MixingMatrix {
            epoch: self.epoch,
            partitions: self.partitions,
            rows: self.counts.chunks(self.groups as usize).map(row).collect(),
            of_grains: self.counts.iter().sum(),
        }
    }
}
