//! What a loader follows: the order of a plan, that in which a store has the samples, or that of a mixture of plans. Pure: parts of
//! steps in, positions of plans out. Who reads them is worked out by [`shares`](super::shares).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardd_plan::{Epoch, Mixture, MixtureError, Plan, Read, SourceNo, default_virtual_ranks};
use shardfmt::{MixtureId, PlanId};

use super::span::Part;
use super::{BatchSize, LoadError};

/// Of a plan that says nothing of them and has enough samples.
const USUAL_PARTITIONS: u32 = 96;

/// V of a mixture read in steps of `global_batch`, by default.
///
/// ```
/// use shardd_client::loader::mixture_virtual_ranks;
///
/// assert_eq!(mixture_virtual_ranks(256), 16);
/// ```
pub fn mixture_virtual_ranks(global_batch: u64) -> u32 {
    default_virtual_ranks(USUAL_PARTITIONS, global_batch)
}

/// The name of an order: what a position is a position of.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::loader::OrderId;
/// use shardd_client::{Loader, LoaderConfig};
///
/// let loader = Loader::open(LoaderConfig::new(source, plan.clone(), 32))?;
/// assert_eq!(loader.order(), OrderId::Plan(plan.id()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderId {
    /// That of a plan.
    Plan(PlanId),
    /// That of a mixture of plans.
    Mixture(MixtureId),
}

impl std::fmt::Display for OrderId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plan(plan) => write!(f, "plan {plan}"),
            Self::Mixture(mixture) => write!(f, "mixture {mixture}"),
        }
    }
}

/// Where a loader is in its order: the same on every rank and for every world size. Of a plan its JSON is that of
/// [`protocol::Cursor`](shardd_api::protocol::Cursor), which nodes keep for runs.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::{Cursor, Loader, LoaderConfig};
///
/// let config = LoaderConfig::new(source, plan, 32);
/// let mut loader = Loader::open(config.clone())?;
/// let done = loader.next_step()?.ok_or("no step")?;
/// let saved = serde_json::to_string(&done.cursor)?;
///
/// let Cursor { epoch, position, .. } = serde_json::from_str(&saved)?;
/// let mut resumed = Loader::open(LoaderConfig { start: (epoch, position), ..config })?;
/// let next = resumed.next_step()?.ok_or("no step")?;
/// assert_eq!(next.positions(), 32..64);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cursor {
    /// The order that the position belongs to.
    #[serde(flatten)]
    pub order: OrderId,
    /// Epoch of the order, from 0.
    pub epoch: u32,
    /// Samples of the epoch already handed to the user, of all ranks.
    pub position: u64,
}

/// A sample to read, and of which source. Its position is that in the order that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourceRead {
    pub(crate) source: SourceNo,
    pub(crate) read: Read,
}

/// The order of a loader.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    /// Of each source: several in a mixture, else one.
    pub(super) plans: Vec<Arc<Plan>>,
    pub(super) mixture: Option<Mixture>,
    /// Whether each source is read in its plan's order, or in that of its store.
    pub(super) shuffle: bool,
}

/// A position of an order: which source is read, in which of its epochs, and where there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub(super) source: SourceNo,
    pub(super) epoch: Epoch,
    pub(super) position: u64,
}

impl Order {
    /// One plan's.
    pub(crate) fn of_plan(plan: Arc<Plan>, shuffle: bool) -> Self {
        Self { plans: vec![plan], mixture: None, shuffle }
    }

    /// That of a mixture of these plans.
    pub(crate) fn of_mixture(
        mixture: Mixture,
        plans: Vec<Arc<Plan>>,
        shuffle: bool,
    ) -> Result<Self, MixtureError> {
        mixture.check_plans(&plans.iter().map(Arc::as_ref).collect::<Vec<_>>())?;
        Ok(Self { plans, mixture: Some(mixture), shuffle })
    }

    pub(crate) fn id(&self) -> OrderId {
        match &self.mixture {
            Some(mixture) => OrderId::Mixture(mixture.id()),
            None => OrderId::Plan(self.plans[0].id()),
        }
    }

    pub(crate) fn mixture(&self) -> Option<&Mixture> {
        self.mixture.as_ref()
    }

    /// Samples of an epoch.
    pub(crate) fn sample_count(&self) -> u64 {
        self.mixture.as_ref().map_or_else(|| self.plans[0].sample_count(), Mixture::epoch_size)
    }

    /// How many epochs it has: positions of a mixture are counted through all of them.
    pub(crate) fn epochs(&self) -> u32 {
        let epochs = self.mixture.as_ref().map_or(u64::MAX, |mixture| u64::MAX / mixture.epoch_size());
        u32::try_from(epochs).unwrap_or(u32::MAX)
    }

    /// The default V: for steps of a given size a function of that size and the plan alone, so that the
    /// trained model does not depend on the world; where a rank's micro-batch is given, one for each rank. A
    /// mixture has no partitions of its own to be divided, and as many as a plan of the usual number of them.
    pub(crate) fn default_virtual_ranks(&self, batch: BatchSize, world: u32) -> u32 {
        match (batch, &self.mixture) {
            (BatchSize::Global(size), None) => self.plans[0].default_virtual_ranks(size),
            (BatchSize::Global(size), Some(_)) => mixture_virtual_ranks(size),
            (BatchSize::MicroBatch(_), None) => self.plans[0].fewest_virtual_ranks(world),
            (BatchSize::MicroBatch(_), Some(_)) => world.max(1),
        }
    }

    /// Whether `world` ranks can share it as `virtual_ranks`.
    pub(crate) fn check_ranks(&self, world: u32, virtual_ranks: u32) -> Result<(), LoadError> {
        if self.mixture.is_none() {
            return Ok(self.plans[0].check_ranks(world, virtual_ranks)?);
        }
        match (world, virtual_ranks) {
            (1.., 1..) if world <= virtual_ranks => Ok(()),
            _ => Err(LoadError::Config(format!(
                "{world} ranks cannot share {virtual_ranks} virtual ranks of a mixture: use at least one rank, and as many virtual \
                 ranks as there will ever be ranks"
            ))),
        }
    }

    /// The turns of a part, one after the other.
    pub(super) fn turns(&self, part: &Part) -> Vec<Turn> {
        let Some(mixture) = &self.mixture else {
            let turn = |position| Turn { source: SourceNo(0), epoch: Epoch(part.epoch), position };
            return part.positions.clone().map(turn).collect();
        };
        // Who evaluates reads the same in every epoch.
        let epoch = if self.shuffle { part.epoch } else { 0 };
        let start = mixture.position(Epoch(epoch), part.positions.start);
        let reads = mixture.walk(start.expect("no epoch is read that cannot be counted to"));
        let turn = |(_, read): (u64, shardd_plan::MixtureRead)| {
            let (epoch, position) = mixture.in_plan(read.source, read.nth);
            Turn { source: read.source, epoch, position }
        };
        part.positions.clone().zip(reads).map(turn).collect()
    }

    pub(super) fn plan(&self, source: SourceNo) -> &Plan {
        &self.plans[source.0 as usize]
    }

    /// The virtual rank that owns the samples: that of their partition. Unshuffled samples have no owner, and
    /// are dealt in equal stretches.
    pub(super) fn owner(&self, turn: &Turn, virtual_ranks: u32) -> u32 {
        let plan = self.plan(turn.source);
        let owner = || plan.virtual_rank_of(plan.at_position(turn.position).0, virtual_ranks).0;
        if self.shuffle { owner() } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_of_a_plan_is_written_as_that_of_a_run_and_one_of_a_mixture_names_it() {
        let plan = PlanId::of(b"a plan");
        let cursor = Cursor { order: OrderId::Plan(plan), epoch: 3, position: 40 };
        let run = shardd_api::protocol::Cursor { plan, epoch: 3, position: 40 };
        let written = serde_json::to_string(&cursor).expect("JSON");
        assert_eq!(written, serde_json::to_string(&run).expect("JSON"));
        assert_eq!(serde_json::from_str::<Cursor>(&written).expect("a cursor"), cursor);
        let mixture = Cursor { order: OrderId::Mixture(MixtureId::of(b"a mixture")), ..cursor };
        let written = serde_json::to_string(&mixture).expect("JSON");
        assert!(written.starts_with("{\"mixture\":\"") && written.len() < 300, "{written}");
        assert_eq!(serde_json::from_str::<Cursor>(&written).expect("a cursor"), mixture);
    }
}
