//! Numbers the grains and samples of a version: which shard, which rows. Knows nothing of partitions.

use super::{GrainNo, SampleNo};

/// Where a grain is in the version.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # let version = VersionId::of(b"a manifest");
/// use shardd_plan::{GrainNo, GrainPlace, Plan, PlanDocument, PlanOptions, Shape};
///
/// let shape = Shape { shard_rows: vec![100, 50], row_bytes: 150 * 784 };
/// let options = PlanOptions { grain_rows: Some(32), partitions: Some(2), ..PlanOptions::default() };
/// let plan = Plan::new(PlanDocument::with_defaults(version, &shape, options)?, &shape.shard_rows)?;
/// // 100 rows are three grains of 32, and a short one.
/// assert_eq!(plan.locate_grain(GrainNo(3)), GrainPlace { shard: 0, index: 3, rows: 4 });
/// assert_eq!(plan.locate_grain(GrainNo(4)), GrainPlace { shard: 1, index: 0, rows: 32 });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrainPlace {
    /// Index of the shard in the manifest.
    pub shard: u32,
    /// Index of the grain in the shard.
    pub index: u32,
    /// How many rows it has: the plan's grain, or less in the last grain of a shard.
    pub rows: u32,
}

/// Running counts over the shards; entry i is what lies before shard i.
#[derive(Clone, Debug)]
pub(crate) struct Grains {
    grain_rows: u64,
    samples: Vec<u64>,
    all: Vec<u64>,
    full: Vec<u64>,
}

impl Grains {
    pub(crate) fn new(shard_rows: &[u32], grain_rows: u32) -> Self {
        let running = |count: &dyn Fn(u32) -> u32| {
            let counts = shard_rows.iter().scan(0, |sum, rows| {
                *sum += u64::from(count(*rows));
                Some(*sum)
            });
            std::iter::once(0).chain(counts).collect()
        };
        Grains {
            grain_rows: grain_rows.into(),
            samples: running(&|rows| rows),
            all: running(&|rows| rows.div_ceil(grain_rows)),
            full: running(&|rows| rows / grain_rows),
        }
    }

    pub(crate) fn shard_count(&self) -> u32 {
        (self.samples.len() - 1) as u32
    }

    pub(crate) fn sample_count(&self) -> u64 {
        self.samples[self.samples.len() - 1]
    }

    pub(crate) fn count(&self) -> u64 {
        self.all[self.all.len() - 1]
    }

    pub(crate) fn full_count(&self) -> u64 {
        self.full[self.full.len() - 1]
    }

    pub(crate) fn place(&self, grain: GrainNo) -> GrainPlace {
        let shard = find(&self.all, grain.0);
        let index = grain.0 - self.all[shard];
        let shard_rows = self.samples[shard + 1] - self.samples[shard];
        let rows = (shard_rows - index * self.grain_rows).min(self.grain_rows);
        GrainPlace { shard: shard as u32, index: index as u32, rows: rows as u32 }
    }

    pub(crate) fn number(&self, shard: u32, index: u32) -> GrainNo {
        let shard = shard as usize;
        let grain = self.all[shard] + u64::from(index);
        assert!(grain < self.all[shard + 1], "shard {shard} has no grain {index}");
        GrainNo(grain)
    }

    pub(crate) fn sample(&self, grain: GrainNo, row: u32) -> SampleNo {
        let place = self.place(grain);
        assert!(row < place.rows, "grain {grain} has {} rows, no row {row}", place.rows);
        let first = self.samples[place.shard as usize] + u64::from(place.index) * self.grain_rows;
        SampleNo(first + u64::from(row))
    }

    pub(crate) fn grain_of(&self, sample: SampleNo) -> (GrainNo, u32) {
        let (shard, row) = self.locate(sample);
        let (index, row) = (u64::from(row) / self.grain_rows, u64::from(row) % self.grain_rows);
        (GrainNo(self.all[shard as usize] + index), row as u32)
    }

    pub(crate) fn locate(&self, sample: SampleNo) -> (u32, u32) {
        let shard = find(&self.samples, sample.0);
        (shard as u32, (sample.0 - self.samples[shard]) as u32)
    }

    /// The number among all grains of the `full`-th full one.
    pub(crate) fn of_full(&self, full: u64) -> GrainNo {
        if self.full_count() == self.count() {
            return GrainNo(full);
        }
        let shard = find(&self.full, full);
        GrainNo(self.all[shard] + full - self.full[shard])
    }

    /// The number among full grains, or `None` for a short one.
    pub(crate) fn full_index(&self, grain: GrainNo) -> Option<u64> {
        let shard = find(&self.all, grain.0);
        let full = self.full[shard] + grain.0 - self.all[shard];
        (full < self.full[shard + 1]).then_some(full)
    }

    /// How many full grains there are up to the end of the grain's shard.
    pub(crate) fn full_before_end(&self, grain: GrainNo) -> u64 {
        self.full[find(&self.all, grain.0) + 1]
    }

    /// All short grains in manifest order, with their rows and the number of full grains before them.
    pub(crate) fn short_grains(&self) -> impl Iterator<Item = (GrainNo, u32, u64)> {
        (0..self.shard_count() as usize).filter_map(|shard| {
            let rows = (self.samples[shard + 1] - self.samples[shard]) % self.grain_rows;
            (rows > 0).then(|| (GrainNo(self.all[shard + 1] - 1), rows as u32, self.full[shard + 1]))
        })
    }
}

/// The entry of ascending running counts that `at` falls into.
fn find(running: &[u64], at: u64) -> usize {
    assert!(at < running[running.len() - 1], "{at} outside 0..{}", running[running.len() - 1]);
    running.partition_point(|before| *before <= at) - 1
}
