//! Which part of every step a training process reads, and how it weighs it. Pure: numbers in, numbers out; the environment
//! is asked through a function.
//!
//! Processes that hold parts of one model (tensor, pipeline or context parallel) read the same samples, so what counts is a
//! process's *data rank*: its group's number, or a coordinate of a mesh that is given. A data rank owns some of the run's V
//! virtual ranks, and reads a micro-batch for each, one after the other where it owns several (W < V): it accumulates their
//! gradients and lets the last one synchronise.
//!
//! **Weights.** A micro-batch of n of the step's B samples has weight W n / B, W the number of data ranks. If each process
//! multiplies the *mean* loss of each micro-batch with its weight, adds up the gradients, and all take the *mean* over data
//! ranks (what DDP and FSDP do), the result is the gradient of the mean loss over all B samples: the factors are
//! (1/W) (W n / B) (1/n) = 1/B for every sample. That holds however unequal the shares are: where W does not divide V, where
//! B does not divide by V, in a short last step. With equal shares, the weight is 1 / accumulation, as one would expect.

use std::ops::Range;

use shardd_plan::{Plan, PlanError};

/// How large a step is.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_client::BatchSize;
///
/// assert_eq!(BatchSize::Global(64).global(8)?, 64);
/// assert_eq!(BatchSize::MicroBatch(64).global(8)?, 512);
/// assert_eq!(BatchSize::from(64), BatchSize::MicroBatch(64));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchSize {
    /// Samples of a virtual rank's micro-batch; a step has V times this.
    MicroBatch(u64),
    /// Samples of a step, whatever V is.
    Global(u64),
}

/// One process among all of a launch.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_client::loader::WorldRank;
///
/// assert_eq!(WorldRank::new(1, 2, None)?.world_size, 2);
/// assert!(WorldRank::new(2, 2, None).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorldRank {
    /// Its number, from 0.
    pub rank: u32,
    /// How many there are.
    pub world_size: u32,
    /// Its number on its machine, if known.
    pub local_rank: Option<u32>,
}

/// Which processes read the same samples.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_client::loader::{Layout, RankError};
///
/// assert_eq!(Layout::new(None, None)?, Layout::Replicated(1));
/// assert_eq!(Layout::new(None, Some((1, 4)))?, Layout::Mesh { index: 1, size: 4 });
/// assert_eq!(Layout::new(Some(2), Some((1, 4))), Err(RankError::BothLayouts { replication: 2 }));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Groups of this many consecutive ranks; 1 if each reads its own.
    Replicated(u32),
    /// Those with the same coordinate along the data-parallel dimension of a mesh.
    Mesh {
        /// The coordinate, from 0.
        index: u32,
        /// How many there are.
        size: u32,
    },
}

/// A process in its role as a reader of data: those with the same index read the same.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_client::loader::{DataRank, Layout, WorldRank};
///
/// // Ranks 2 and 3 of 4 hold parts of one model, and read the same samples.
/// let rank = WorldRank::new(3, 4, None)?;
/// let data_rank = DataRank::new(Some(rank), Layout::Replicated(2))?;
/// assert_eq!(data_rank, DataRank { index: 1, size: 2 });
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataRank {
    /// Its number, from 0: what the plan calls a rank.
    pub index: u32,
    /// How many there are: what the plan calls the world size, W.
    pub size: u32,
}

/// The part of every step that a data rank reads.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// use shardd_client::loader::{DataRank, RankShare};
/// use shardd_client::{BatchSize, Plan};
///
/// let plan = Plan::new(plan, &[300])?;
/// let second = DataRank { index: 1, size: 3 };
/// let share = RankShare::new(&plan, second, Some(3), BatchSize::MicroBatch(20))?;
/// assert_eq!(share.owned, 1..2);
/// assert_eq!(share.global_batch, 60);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankShare {
    /// Whose it is.
    pub data_rank: DataRank,
    /// V, of which [`owned`](Self::owned) are its own.
    pub virtual_ranks: u32,
    /// Its virtual ranks.
    pub owned: Range<u32>,
    /// B, samples of a full step.
    pub global_batch: u64,
}

/// One of the micro-batches that a data rank reads in a step, in order.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// use shardd_client::loader::{DataRank, RankShare};
/// use shardd_client::{BatchSize, Plan};
///
/// let plan = Plan::new(plan, &[300])?;
/// let alone = DataRank { index: 0, size: 1 };
/// let share = RankShare::new(&plan, alone, Some(3), BatchSize::Global(10))?;
/// let places = share.micro_batches(0, 10, &[4, 3, 3], false);
/// assert!(places[2].is_last_micro);
/// assert_eq!(places.iter().map(|place| place.weight).sum::<f64>(), 1.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MicroBatchPlace {
    /// The step's number.
    pub step: u64,
    /// Whose it is.
    pub virtual_rank: u32,
    /// How many micro-batches this data rank has in this step, at least 1.
    pub accumulation: u32,
    /// Whether it is the last of them: the one whose backward pass synchronises gradients.
    pub is_last_micro: bool,
    /// Samples in it. 0 makes it a stand-in, which a process computes only because others wait for it: on any rows that are
    /// at hand, of which nothing is left, its weight being 0. No audit counts them.
    pub samples: u64,
    /// The factor for its mean loss.
    pub weight: f64,
}

/// Numbers that fit no run, and the way out.
///
/// ```
/// use shardd_client::BatchSize;
/// use shardd_client::loader::RankError;
///
/// assert_eq!(BatchSize::new(None, None), Err(RankError::NoSize));
/// assert_eq!(BatchSize::new(None, Some(64)), Ok(BatchSize::Global(64)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum RankError {
    /// Both sizes of a batch.
    #[error(
        "batch_size {batch_size} and global_batch_size {global_batch_size} are both given: give batch_size (samples of a virtual rank) or global_batch_size (samples of a step)"
    )]
    BothSizes { batch_size: u64, global_batch_size: u64 },
    /// No size of a batch.
    #[error(
        "no batch size: give batch_size (samples of a virtual rank) or global_batch_size (samples of a step)"
    )]
    NoSize,
    /// A batch of nothing.
    #[error("{name} 0 reads nothing: use at least 1")]
    EmptyBatch { name: &'static str },
    /// A step larger than can be counted.
    #[error(
        "batch_size {batch_size} times {virtual_ranks} virtual ranks is more than 2^32 samples a step: use less"
    )]
    BatchTooLarge { batch_size: u64, virtual_ranks: u32 },
    /// A step that leaves some virtual ranks without samples.
    #[error(
        "global_batch_size {global_batch_size} leaves some of {virtual_ranks} virtual ranks without samples: use {virtual_ranks} or more, or fewer virtual ranks"
    )]
    BatchTooSmall { global_batch_size: u64, virtual_ranks: u32 },
    /// A variable that is not a number.
    #[error(
        "{name}={value:?} in the environment is not a whole number from 0 to 4294967295: correct or unset it"
    )]
    NotANumber { name: &'static str, value: String },
    /// Half of what a launcher sets.
    #[error("{given} is set in the environment, but {missing} is not: set both (torchrun does), or neither")]
    HalfSet { given: &'static str, missing: &'static str },
    /// More tasks than machines, each of which would start the ranks of its machine.
    #[error(
        "Slurm started {tasks} tasks on {machines} machines, and each would start the ranks of its machine: use one task per \
         machine (--ntasks-per-node=1), or give --nodes and --node"
    )]
    SeveralTasks { tasks: u32, machines: u32 },
    /// A machine that is not there.
    #[error("machine {number} is outside of {machines}: machines count from 0")]
    OutsideMachines { number: u32, machines: u32 },
    /// A rank that is not there.
    #[error("rank {rank} is outside a world of {world_size}: ranks count from 0")]
    OutsideWorld { rank: u32, world_size: u32 },
    /// More ranks on a machine than there are.
    #[error(
        "LOCAL_RANK {local_rank} is outside a world of {world_size}: it counts the ranks of one machine from 0"
    )]
    OutsideMachine { local_rank: u32, world_size: u32 },
    /// Groups that the world does not divide into.
    #[error("replication {replication} does not divide {world_size} ranks into groups: use {fitting}")]
    Replication { replication: u32, world_size: u32, fitting: String },
    /// A coordinate that is not there, or a mesh larger than the world.
    #[error(
        "data-parallel index {index} of {size} does not fit a world of {world_size}: the index counts from 0 to size - 1, and size divides the world size"
    )]
    Mesh { index: u32, size: u32, world_size: u32 },
    /// Both ways to say who reads the same.
    #[error(
        "replication {replication} and a mesh coordinate are both given: the coordinate says already which ranks read the same, so leave replication out"
    )]
    BothLayouts { replication: u32 },
    /// Ranks that do not fit the plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl From<u32> for BatchSize {
    /// A virtual rank's.
    fn from(batch_size: u32) -> Self {
        BatchSize::MicroBatch(batch_size.into())
    }
}

impl BatchSize {
    /// From what a user gave of the two, which must be exactly one.
    ///
    /// # Errors
    /// [`RankError`] for both, neither, or 0.
    pub fn new(batch_size: Option<u64>, global_batch_size: Option<u64>) -> Result<Self, RankError> {
        match (batch_size, global_batch_size) {
            (Some(0), None) => Err(RankError::EmptyBatch { name: "batch_size" }),
            (None, Some(0)) => Err(RankError::EmptyBatch { name: "global_batch_size" }),
            (Some(size), None) => Ok(BatchSize::MicroBatch(size)),
            (None, Some(size)) => Ok(BatchSize::Global(size)),
            (None, None) => Err(RankError::NoSize),
            (Some(batch_size), Some(global_batch_size)) => {
                Err(RankError::BothSizes { batch_size, global_batch_size })
            }
        }
    }

    /// Samples of a full step of `virtual_ranks`.
    ///
    /// # Errors
    /// [`RankError`] if it is out of range, or less than one for each virtual rank.
    pub fn global(self, virtual_ranks: u32) -> Result<u64, RankError> {
        match self {
            BatchSize::MicroBatch(0) => Err(RankError::EmptyBatch { name: "batch_size" }),
            BatchSize::MicroBatch(batch_size) => batch_size
                .checked_mul(virtual_ranks.into())
                .filter(|global| *global <= 1 << 32)
                .ok_or(RankError::BatchTooLarge { batch_size, virtual_ranks }),
            BatchSize::Global(global_batch_size) if global_batch_size < u64::from(virtual_ranks) => {
                Err(RankError::BatchTooSmall { global_batch_size, virtual_ranks })
            }
            BatchSize::Global(batch_size) if batch_size > 1 << 32 => {
                Err(RankError::BatchTooLarge { batch_size, virtual_ranks: 1 })
            }
            BatchSize::Global(size) => Ok(size),
        }
    }
}

impl WorldRank {
    /// The only process of a launch.
    pub const ALONE: WorldRank = WorldRank { rank: 0, world_size: 1, local_rank: None };

    /// A process with this rank.
    ///
    /// # Errors
    /// [`RankError`] if the world has no such rank.
    pub fn new(rank: u32, world_size: u32, local_rank: Option<u32>) -> Result<Self, RankError> {
        match local_rank {
            _ if rank >= world_size => Err(RankError::OutsideWorld { rank, world_size }),
            Some(local_rank) if local_rank >= world_size => {
                Err(RankError::OutsideMachine { local_rank, world_size })
            }
            _ => Ok(WorldRank { rank, world_size, local_rank }),
        }
    }
}

impl Layout {
    /// From what a user gave: nothing, groups of `replication` consecutive ranks, or a coordinate (index, size).
    ///
    /// # Errors
    /// [`RankError::BothLayouts`] for both.
    pub fn new(replication: Option<u32>, mesh: Option<(u32, u32)>) -> Result<Self, RankError> {
        match (replication, mesh) {
            (Some(replication), Some(_)) => Err(RankError::BothLayouts { replication }),
            (None, Some((index, size))) => Ok(Layout::Mesh { index, size }),
            (replication, None) => Ok(Layout::Replicated(replication.unwrap_or(1))),
        }
    }
}

impl DataRank {
    /// Which part of the data a process reads. `None`: it knows of no others, so it is alone, or what its coordinate says.
    ///
    /// # Errors
    /// [`RankError`] if the world does not divide into such groups, or has no such coordinate.
    pub fn new(world: Option<WorldRank>, layout: Layout) -> Result<Self, RankError> {
        let WorldRank { rank, world_size, .. } = match (world, layout) {
            (Some(world), _) => world,
            (None, Layout::Replicated(_)) => WorldRank::ALONE,
            (None, Layout::Mesh { index, size }) => {
                WorldRank { rank: index, world_size: size, local_rank: None }
            }
        };
        match layout {
            Layout::Replicated(replication)
                if replication == 0 || !world_size.is_multiple_of(replication) =>
            {
                let (below, above) = divisors_around(world_size, replication);
                let fitting: Vec<String> =
                    below.into_iter().chain(above).map(|size| size.to_string()).collect();
                Err(RankError::Replication { replication, world_size, fitting: fitting.join(" or ") })
            }
            Layout::Replicated(replication) => {
                Ok(DataRank { index: rank / replication, size: world_size / replication })
            }
            Layout::Mesh { index, size } if index >= size || !world_size.is_multiple_of(size) => {
                Err(RankError::Mesh { index, size, world_size })
            }
            Layout::Mesh { index, size } => Ok(DataRank { index, size }),
        }
    }
}

impl RankShare {
    /// The part of a run that a data rank reads over `plan` in steps of `batch`, with V virtual ranks: by
    /// default the plan's for a global batch, and the fewest that all data ranks can share where a virtual
    /// rank's micro-batch is given.
    ///
    /// # Errors
    /// [`RankError`] if the ranks do not fit the plan, or the batch not the ranks.
    pub fn new(
        plan: &Plan,
        data_rank: DataRank,
        virtual_ranks: Option<u32>,
        batch: BatchSize,
    ) -> Result<Self, RankError> {
        let DataRank { index, size } = data_rank;
        let virtual_ranks = virtual_ranks.unwrap_or_else(|| match batch {
            BatchSize::Global(samples) => plan.default_virtual_ranks(samples),
            BatchSize::MicroBatch(_) => plan.fewest_virtual_ranks(size),
        });
        plan.check_ranks(size, virtual_ranks)?;
        if index >= size {
            return Err(RankError::Mesh { index, size, world_size: size });
        }
        let owned = Plan::virtual_ranks_of(index, size, virtual_ranks);
        Ok(RankShare { data_rank, virtual_ranks, owned, global_batch: batch.global(virtual_ranks)? })
    }

    /// The micro-batches of a step of `step_samples` in all, of which each of the [`owned`](Self::owned) virtual ranks, in
    /// order, has `samples`.
    ///
    /// Those without samples are left out, but for one if there are no others: gradients are synchronised once by each
    /// process or by none. With `lockstep` nothing is left out, and data ranks that own fewer virtual ranks than others get
    /// stand-ins, so that all have as many micro-batches: FSDP and pipelines synchronise within each.
    ///
    /// # Panics
    /// If `samples` are not as many as virtual ranks are owned, or more than the step's.
    pub fn micro_batches(
        &self,
        step: u64,
        step_samples: u64,
        samples: &[u64],
        lockstep: bool,
    ) -> Vec<MicroBatchPlace> {
        let owned = self.owned.len();
        assert!(samples.len() == owned, "{} counts for {owned} virtual ranks", samples.len());
        assert!(samples.iter().sum::<u64>() <= step_samples, "a share is larger than its step");
        let mut micro_batches: Vec<(u32, u64)> = self.owned.clone().zip(samples.iter().copied()).collect();
        let least = if lockstep {
            self.virtual_ranks.div_ceil(self.data_rank.size) as usize
        } else {
            micro_batches.retain(|(_, samples)| *samples > 0);
            1
        };
        let last = self.owned.end.saturating_sub(1);
        if micro_batches.len() < least {
            micro_batches.resize(least, (last, 0));
        }
        let count = micro_batches.len();
        let place = |(at, (virtual_rank, samples)): (usize, (u32, u64))| MicroBatchPlace {
            step,
            virtual_rank,
            accumulation: count as u32,
            is_last_micro: at + 1 == count,
            samples,
            // 0 of 0 samples is none.
            weight: f64::from(self.data_rank.size) * samples as f64 / step_samples.max(1) as f64,
        };
        micro_batches.into_iter().enumerate().map(place).collect()
    }
}

/// The divisors of `n` next to a number that is none: below and above it.
fn divisors_around(n: u32, number: u32) -> (Option<u32>, Option<u32>) {
    let pairs = (1..=n.isqrt()).filter(|divisor| n.is_multiple_of(*divisor));
    let divisors: Vec<u32> = pairs.flat_map(|divisor| [divisor, n / divisor]).collect();
    let below = divisors.iter().copied().filter(|divisor| *divisor < number).max();
    (below, divisors.into_iter().filter(|divisor| *divisor > number).min())
}

#[cfg(test)]
mod tests;
