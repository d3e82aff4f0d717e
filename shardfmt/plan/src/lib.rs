//! The order of every epoch: which samples a partition holds, what moves between epochs, who reads what.
//!
//! A [`Plan`] is a pure function of a [`PlanDocument`] and the rows of the version's shards, integer arithmetic only,
//! the same on every machine and in every release. It deliberately knows no nodes, no placement, no files and no time:
//! those change how fast a sample is read, never which. `docs/PLAN.md` describes the algorithm to the bit, and
//! `docs/PROMISES.md` names the tests of these promises.
//!
//! ```
//! use shardd_plan::{Epoch, Plan, PlanDocument, PlanOptions, Shape, SlotTable};
//! # use shardd_plan::digest::{Digest, VersionId};
//! # let version = VersionId(Digest::of(b"a manifest"));
//! let shape = Shape { shard_rows: vec![1000, 1000, 777], row_bytes: 2_777 * 784 };
//! let options = PlanOptions { q: "1,0.1".parse()?, partitions: Some(8), ..PlanOptions::default() };
//! let plan = Plan::new(PlanDocument::with_defaults(version, &shape, options)?, &shape.shard_rows)?;
//!
//! let table = SlotTable::at(&plan, Epoch(3));
//! let shares = plan.step_shares(&table, 0..64, 4, 0..2); // of virtual ranks 0 and 1, of 4
//! assert_eq!([shares[0].len(), shares[1].len()], [16, 16]);
//! # Ok::<(), shardd_plan::PlanError>(())
//! ```

mod deal;
pub mod digest;
mod divisors;
mod document;
mod error;
mod exchange;
mod grains;
mod homes;
mod key;
mod local_order;
mod lookup;
mod members;
mod mixture;
mod order;
mod permutation;
mod ranks;
mod rounds;
mod share;
mod slots;
mod split;
mod step;
mod strata;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod laws;

use std::fmt;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::digest::PlanId;

pub use deal::deal;
pub use divisors::divisors;
pub use document::{FORMAT, InitialPlacement, Order, PlanDocument, PlanOptions, Selection, Shape};
pub use error::PlanError;
pub use exchange::{Exchange, Move, NextMove};
pub use grains::GrainPlace;
use grains::Grains;
use homes::Homes;
pub use lookup::GrainHome;
pub use mixture::{
    Decimal, MIXTURE_FORMAT, Mixture, MixtureDocument, MixtureError, MixturePhase, MixtureRead,
    MixtureSource, SourceNo, Take, Walk,
};
pub use order::{Local, Read};
pub use permutation::Permutation;
pub use ranks::default_virtual_ranks;
use rounds::Rounds;
use share::RunningShares;
pub use share::{Schedule, Share};
pub use slots::{SlotBytes, SlotBytesError, SlotTable};
pub use strata::{Strata, StrataOf};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// One pass over every sample, from 0.
    ///
    /// ```
    /// use shardd_plan::Epoch;
    ///
    /// assert_eq!(Epoch(0).next(), Epoch(1));
    /// ```
    Epoch, u32
);
number!(
    /// One of the plan's P partitions, from 0.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shardd_plan::digest::VersionId;
    /// # use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
    /// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
    /// # let version = VersionId::of(b"a manifest");
    /// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
    /// # let plan = Plan::new(document, &shape.shard_rows)?;
    /// use shardd_plan::Partition;
    ///
    /// let samples: u64 = plan.partitions().map(|partition| plan.partition_samples(partition)).sum();
    /// assert_eq!(samples, plan.sample_count());
    /// assert_eq!(plan.partitions().next(), Some(Partition(0)));
    /// # Ok(())
    /// # }
    /// ```
    Partition, u32
);
number!(
    /// A fixed share of every step, from 0 to V - 1.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shardd_plan::digest::VersionId;
    /// # use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
    /// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
    /// # let version = VersionId::of(b"a manifest");
    /// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
    /// # let plan = Plan::new(document, &shape.shard_rows)?;
    /// use shardd_plan::{Partition, VirtualRank};
    ///
    /// // The plan has 12 partitions: each of 4 virtual ranks owns 3 of them.
    /// assert_eq!(plan.partitions_of(VirtualRank(1), 4), 3..6);
    /// assert_eq!(plan.virtual_rank_of(Partition(5), 4), VirtualRank(1));
    /// # Ok(())
    /// # }
    /// ```
    VirtualRank, u32
);
number!(
    /// A grain, short ones included, counted in manifest order.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shardd_plan::digest::VersionId;
    /// # use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
    /// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
    /// # let version = VersionId::of(b"a manifest");
    /// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
    /// # let plan = Plan::new(document, &shape.shard_rows)?;
    /// use shardd_plan::GrainNo;
    ///
    /// let first_of_second_shard = plan.grain_no(1, 0);
    /// assert_eq!(plan.locate_grain(first_of_second_shard).shard, 1);
    /// assert!(first_of_second_shard < GrainNo(plan.grain_count()));
    /// # Ok(())
    /// # }
    /// ```
    GrainNo, u64
);
number!(
    /// A sample, counted in manifest order.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shardd_plan::digest::VersionId;
    /// # use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
    /// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
    /// # let version = VersionId::of(b"a manifest");
    /// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
    /// # let plan = Plan::new(document, &shape.shard_rows)?;
    /// use shardd_plan::SampleNo;
    ///
    /// // The first shard has 600 rows, so sample 650 is row 50 of the second.
    /// assert_eq!(plan.locate_sample(SampleNo(650)), (1, 50));
    /// # Ok(())
    /// # }
    /// ```
    SampleNo, u64
);

impl Epoch {
    /// The epoch after this one (the last there can be has none and stays).
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }
}

/// A plan document applied to the shards of its version.
///
/// Holds O(partitions + shards), and with strata 5 bytes per sample and some per stratum and partition. Methods that take a
/// position, partition, slot, grain or sample panic when there is no such thing in the plan; check numbers from outside
/// against the counts first.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_plan::digest::VersionId;
/// use shardd_plan::{Epoch, Plan, PlanDocument, PlanOptions, Shape};
///
/// let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// let version = VersionId::of(b"a manifest");
/// let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// let plan = Plan::new(document, &shape.shard_rows)?;
///
/// // An epoch reads every sample of the version once.
/// let order = (0..plan.sample_count()).map(|position| plan.sample_at(Epoch(1), position).0);
/// let mut samples: Vec<u64> = order.collect();
/// samples.sort_unstable();
/// assert!(samples.into_iter().eq(0..1_500));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Plan {
    id: PlanId,
    document: PlanDocument,
    grains: Grains,
    homes: Homes,
    shares: RunningShares,
    rounds: Rounds,
    /// In which order each partition gives up its slots of each stratum when selection is cyclic; made when first needed.
    cycles: Vec<OnceLock<Box<Permutation>>>,
}

impl Plan {
    /// Applies `document` to the shards of its version, given by their rows in manifest order.
    ///
    /// # Errors
    /// [`PlanError`] if the document is out of range, the version too small for it, or its strata were not
    /// [supplied](PlanDocument::supply_strata); the message says what would fit.
    pub fn new(document: PlanDocument, shard_rows: &[u32]) -> Result<Self, PlanError> {
        document.check()?;
        document.check_shape(shard_rows)?;
        let grains = Grains::new(shard_rows, document.grain_rows);
        let homes = Homes::new(&document, &grains);
        let sizes: Vec<u64> = (0..document.partitions)
            .map(|m| {
                let m = Partition(m);
                homes.slots().of(m) * u64::from(document.grain_rows) + homes.short_rows(m)
            })
            .collect();
        Ok(Plan {
            id: document.id(),
            shares: RunningShares::new(&document.schedule),
            rounds: Rounds::new(&sizes),
            cycles: vec![OnceLock::new(); homes.strata() * document.partitions as usize],
            document,
            grains,
            homes,
        })
    }

    /// The digest that names the plan.
    pub fn id(&self) -> PlanId {
        self.id
    }

    /// The document of the plan.
    pub fn document(&self) -> &PlanDocument {
        &self.document
    }

    /// Samples in an epoch.
    pub fn sample_count(&self) -> u64 {
        self.grains.sample_count()
    }

    /// Grains of the version, short ones included.
    pub fn grain_count(&self) -> u64 {
        self.grains.count()
    }

    /// Grains that can move: those with all their rows.
    pub fn full_grain_count(&self) -> u64 {
        self.grains.full_count()
    }

    /// Shards of the version.
    pub fn shard_count(&self) -> u32 {
        self.grains.shard_count()
    }

    /// All partitions in order.
    pub fn partitions(&self) -> impl DoubleEndedIterator<Item = Partition> + ExactSizeIterator + use<> {
        (0..self.document.partitions).map(Partition)
    }

    /// Slots of a partition, each holding a full grain.
    pub fn slot_count(&self, partition: Partition) -> u64 {
        self.homes.slots().of(self.known(partition))
    }

    /// Samples a partition holds in every epoch, those of its short grains included.
    pub fn partition_samples(&self, partition: Partition) -> u64 {
        self.rounds.size(self.known(partition))
    }

    /// The short grains that always belong to a partition, in manifest order.
    pub fn short_grains(&self, partition: Partition) -> &[GrainNo] {
        self.homes.shorts_of(self.known(partition))
    }

    /// Where a grain lies in the version.
    pub fn locate_grain(&self, grain: GrainNo) -> GrainPlace {
        self.grains.place(grain)
    }

    /// The number of grain `index` of shard `shard` of the manifest.
    pub fn grain_no(&self, shard: u32, index: u32) -> GrainNo {
        self.grains.number(shard, index)
    }

    /// The sample in row `row` of a grain.
    pub fn sample(&self, grain: GrainNo, row: u32) -> SampleNo {
        self.grains.sample(grain, row)
    }

    /// The grain a sample lies in, and its row there.
    pub fn grain_of(&self, sample: SampleNo) -> (GrainNo, u32) {
        self.grains.grain_of(sample)
    }

    /// The shard (by its index in the manifest) a sample lies in, and its row there.
    pub fn locate_sample(&self, sample: SampleNo) -> (u32, u32) {
        self.grains.locate(sample)
    }

    fn known(&self, partition: Partition) -> Partition {
        assert!(
            partition.0 < self.document.partitions,
            "no partition {partition} of {}",
            self.document.partitions
        );
        partition
    }
}
