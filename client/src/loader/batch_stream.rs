//! A rank's share of an epoch for a reader that takes part in no run: nothing is reported, and nothing is held for it.
//!
//! A [`GrainReader`] supplies the grains. Nodes implement it with their engine to answer `/v1/plans/{id}/batches`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use shardd_api::lookup;
use shardd_plan::{GrainNo, Plan};
use shardfmt::row::{Fresh, Rows};
use shardfmt::{ByteSize, Grain, Manifest, PlanId};
use tokio::sync::mpsc;

use super::clocks::Clocks;
use super::order::{Order, SourceRead};
use super::prefetch::{Prefetch, Share};
use super::source::{Reads, Ready, RowSource};
use super::transformed::Transformed;
use super::{LastBatch, LoadError, Step, Steps, Transforms};

/// Steps that wait in the channel to the reader.
const WAITING: usize = 2;
/// The largest number of steps that are prepared at once.
const WINDOW: u64 = 8;
/// The number of prepared steps shrinks until they hold no more than this.
const WINDOW_BYTES: u64 = 64 << 20;
/// The most memory of one reader. A step that needs more is refused.
const MOST_HELD: u64 = 512 << 20;
/// Steps that are built: those that wait, one that is being handed over, one that is being sent.
const BUILT: u64 = WAITING as u64 + 2;
/// Memory for each row beside its bytes: its source and its destination.
const ROW_OVERHEAD: u64 = 128;

/// Which part of an epoch is read.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// use shardd_client::loader::{BatchStream, BatchesConfig};
/// use shardd_client::{Catalog, LocalCatalog, Plan};
///
/// let manifest = LocalCatalog::open(store.path())?.manifest(plan.version)?;
/// let plan = Plan::new(plan, &manifest.shard_rows())?;
/// let config = BatchesConfig {
///     epoch: 0,
///     position: 0,
///     global_batch_size: 64,
///     rank: 0,
///     world: 1,
///     virtual_ranks: None,
///     steps: Some(2),
///     transforms: None,
/// };
/// assert!(BatchStream::open(plan.into(), &manifest, config)?.held_bytes() > 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct BatchesConfig {
    /// The epoch.
    pub epoch: u32,
    /// The first position.
    pub position: u64,
    /// Positions that all ranks together read in a step.
    pub global_batch_size: u64,
    /// Whose share it is.
    pub rank: u32,
    /// Of how many.
    pub world: u32,
    /// V; `None`: the plan's default for steps of this size.
    pub virtual_ranks: Option<u32>,
    /// How many steps; `None`: to the end of the epoch.
    pub steps: Option<u64>,
    /// Transforms of a column of pictures.
    pub transforms: Option<Transforms>,
}

/// The steps of a rank, as they are read.
#[derive(Debug)]
pub struct Batches {
    /// The columns of every batch.
    pub schema: SchemaRef,
    /// The plan.
    pub plan: PlanId,
    /// V.
    pub virtual_ranks: u32,
    /// The virtual ranks whose micro-batches each step has.
    pub own: std::ops::Range<u32>,
    /// The steps; it ends after the last, or with an error. Dropping it ends the reading.
    pub steps: mpsc::Receiver<Result<Step, LoadError>>,
}

/// Supplies the grains of a plan. Called on a thread where blocking is allowed.
pub trait GrainReader: Send {
    /// The canonical bytes of each of `grains`, verified, as they are in `epoch`.
    ///
    /// # Errors
    /// A grain that cannot be read; see [`LoadError::grains`]. The stream ends with the error.
    fn read(&mut self, epoch: u32, grains: &[GrainNo]) -> Result<HashMap<GrainNo, Bytes>, LoadError>;
}

/// A rank's share of an epoch, opened and not yet read.
pub struct BatchStream {
    plan: Arc<Plan>,
    schema: SchemaRef,
    config: BatchesConfig,
    virtual_ranks: u32,
    step: StepSize,
    transformed: Option<Arc<Transformed>>,
}

impl BatchStream {
    /// A rank's share of an epoch of `plan` over the version that `manifest` lists.
    ///
    /// # Errors
    /// Numbers or transforms that do not fit the plan, and a step that needs too much memory.
    pub fn open(plan: Arc<Plan>, manifest: &Manifest, config: BatchesConfig) -> Result<Self, LoadError> {
        let virtual_ranks =
            config.virtual_ranks.unwrap_or_else(|| plan.default_virtual_ranks(config.global_batch_size));
        plan.check_ranks(config.world, virtual_ranks)?;
        let own = Plan::virtual_ranks_of(config.rank, config.world, virtual_ranks);
        let transformed = config.transforms.as_ref();
        let transformed = transformed
            .map(|chain| Transformed::new(chain, &manifest.schema, plan.document().seed).map(Arc::new))
            .transpose()?;
        let step = StepSize {
            global_batch: config.global_batch_size.min(plan.sample_count()),
            own: own.end - own.start,
            virtual_ranks,
            samples: plan.sample_count(),
            row_bytes: manifest.row_bytes() / plan.sample_count().max(1),
            picture_bytes: transformed.as_ref().map_or(0, |transformed| transformed.bytes()),
            largest_bytes: transformed.as_ref().map_or(0, |transformed| transformed.largest()),
            grain_rows: plan.document().grain_rows,
        };
        check(&config, &plan, &step)?;
        Ok(Self { plan, schema: Arc::clone(&manifest.schema), config, virtual_ranks, step, transformed })
    }

    /// The most memory that reading it takes, in bytes, by the mean size of a row.
    pub fn held_bytes(&self) -> u64 {
        self.step.held(self.step.window())
    }

    /// The batches, and the job that reads them: run it on a thread where blocking is allowed. It ends after the last
    /// step, with the first error, or when the batches are dropped.
    ///
    /// # Errors
    /// Columns that cannot be gathered.
    pub fn begin(
        self,
        reader: Box<dyn GrainReader>,
    ) -> Result<(Batches, impl FnOnce() + Send + 'static), LoadError> {
        let Self { plan, schema, config, virtual_ranks, step, transformed } = self;
        let end = match config.steps {
            None => plan.sample_count(),
            Some(steps) => config.position.saturating_add(steps.saturating_mul(config.global_batch_size)),
        };
        // The epoch of this reader ends with its last step.
        let steps = Steps {
            sample_count: end.min(plan.sample_count()),
            global_batch: config.global_batch_size,
            last_batch: LastBatch::Short,
        };
        let share = Share {
            rank: config.rank,
            world: config.world,
            virtual_ranks,
            start: (config.epoch, config.position),
            end_epoch: config.epoch + 1,
            stride: 1,
            window: step.window() as usize,
            ahead_bytes: 0,
            audit: false,
        };
        let rows = GrainRows { reader, epoch: config.epoch, known: Arc::default() };
        let order = Order::of_plan(Arc::clone(&plan), true);
        let prefetch =
            Prefetch::new(share, order, Arc::clone(&schema), steps, None, Box::new(rows), Box::new(Fresh))?
                .transformed(transformed.clone());
        let schema = transformed.map_or(schema, |transformed| Arc::clone(transformed.schema()));
        let (give, take) = mpsc::channel(WAITING);
        let read = move || {
            prefetch.run(|task| {
                let step = task.and_then(|task| task.build(&Clocks::default()));
                let is_ok = step.is_ok();
                give.blocking_send(step).is_ok() && is_ok
            });
        };
        let own = Plan::virtual_ranks_of(config.rank, config.world, virtual_ranks);
        Ok((Batches { schema, plan: plan.id(), virtual_ranks, own, steps: take }, read))
    }
}

/// How large the steps of a reader are.
#[derive(Clone, Copy, Debug)]
struct StepSize {
    /// Positions of a step, no more than there are.
    global_batch: u64,
    /// Of how many virtual ranks the reader reads the shares...
    own: u32,
    /// ...among how many.
    virtual_ranks: u32,
    /// Samples of an epoch.
    samples: u64,
    /// The mean size of a row.
    row_bytes: u64,
    /// The size of a transformed picture.
    picture_bytes: u64,
    /// The size of the largest picture on its way, of which one is there at a time.
    largest_bytes: u64,
    /// Rows of a grain: the unit of a transfer.
    grain_rows: u32,
}

impl StepSize {
    /// Rows that the reader reads of a step.
    fn rows(&self) -> u64 {
        let rows = u128::from(self.global_batch) * u128::from(self.own);
        u64::try_from(rows.div_ceil(u128::from(self.virtual_ranks.max(1)))).unwrap_or(u64::MAX)
    }

    /// The bytes held at once with a window of this number of steps: the grains in which their rows lie, as
    /// rows that are read one after the other lie in different ones, and the steps that are built.
    fn held(&self, window: u64) -> u64 {
        let rows = self.rows();
        let in_window = rows.saturating_mul(window).min(self.samples);
        let brought = in_window.saturating_mul(u64::from(self.grain_rows)).min(self.samples);
        let built = rows.saturating_mul(BUILT).min(self.samples.saturating_mul(2));
        let bytes = brought.saturating_add(built).saturating_mul(self.row_bytes);
        let bytes = bytes.saturating_add(built.saturating_mul(self.picture_bytes));
        let bytes = bytes.saturating_add(self.largest_bytes);
        bytes.saturating_add(in_window.saturating_add(built).saturating_mul(ROW_OVERHEAD))
    }

    /// How many steps are prepared at once.
    fn window(&self) -> u64 {
        (1..=WINDOW).rev().find(|window| self.held(*window) <= WINDOW_BYTES).unwrap_or(1)
    }

    /// The largest global batch of which a step can be held.
    fn largest(&self) -> u64 {
        let fits = |global_batch| StepSize { global_batch, ..*self }.held(1) <= MOST_HELD;
        let (mut fitting, mut end) = (1, self.global_batch.max(1) + 1);
        while fitting + 1 < end {
            let middle = fitting + (end - fitting) / 2;
            if fits(middle) { fitting = middle } else { end = middle }
        }
        fitting
    }
}

fn check(config: &BatchesConfig, plan: &Plan, step: &StepSize) -> Result<(), LoadError> {
    lookup::check_table(plan, config.epoch)?;
    let complaint = if config.rank >= config.world {
        format!("rank {} is outside a world of {}", config.rank, config.world)
    } else if config.global_batch_size == 0 {
        "a global_batch_size of 0 reads nothing; use at least 1".into()
    } else if config.steps == Some(0) {
        "0 steps read nothing; use at least 1, or leave steps out to read the epoch to its end".into()
    } else if config.position > plan.sample_count() {
        format!("position {} is beyond the {} samples of an epoch", config.position, plan.sample_count())
    } else if step.held(1) > MOST_HELD {
        format!(
            "global_batch_size {}: a step would take {} of this node's memory, and one request has at most {}; use {} or less, \
             or read it as more ranks (rank, world)",
            config.global_batch_size,
            ByteSize(step.held(1)),
            ByteSize(MOST_HELD),
            step.largest()
        )
    } else {
        return Ok(());
    };
    Err(LoadError::Config(complaint))
}

/// Rows by way of a reader of grains.
struct GrainRows {
    reader: Box<dyn GrainReader>,
    epoch: u32,
    known: Arc<Grains>,
}

impl RowSource for GrainRows {
    fn prepare(&mut self, _: u32, window: &[&Reads]) -> Result<Arc<dyn Ready>, LoadError> {
        let wanted: BTreeSet<GrainNo> =
            window.iter().copied().flatten().flatten().map(|of| of.read.grain).collect();
        // Grains of the window before that this one needs as well are kept.
        let mut known: HashMap<GrainNo, Bytes> =
            wanted.iter().filter_map(|grain| Some((*grain, self.known.0.get(grain)?.clone()))).collect();
        let missing: Vec<GrainNo> = wanted.into_iter().filter(|grain| !known.contains_key(grain)).collect();
        self.known = Arc::default();
        known.extend(self.reader.read(self.epoch, &missing)?);
        self.known = Arc::new(Grains(known));
        Ok(Arc::clone(&self.known) as Arc<dyn Ready>)
    }
}

/// The grains of a window.
#[derive(Default)]
struct Grains(HashMap<GrainNo, Bytes>);

impl Ready for Grains {
    fn rows(&self, reads: &[SourceRead]) -> Rows<'_> {
        let row = |SourceRead { read, .. }: &SourceRead| {
            let grain = Grain::parse(&self.0[&read.grain]).expect("verified when it was brought");
            grain.row(read.row)
        };
        Rows::Canonical(reads.iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn size() -> impl Strategy<Value = StepSize> {
        let sizes = (1u64..1 << 40, 0u64..1 << 20, 0u64..1 << 20, 0u32..12, 1u32..64, 0u32..64, any::<u64>());
        sizes.prop_map(|(samples, row_bytes, picture_bytes, grain, virtual_ranks, own, global_batch)| {
            StepSize {
                global_batch: global_batch.clamp(1, samples),
                own: own.min(virtual_ranks),
                virtual_ranks,
                samples,
                row_bytes,
                picture_bytes,
                largest_bytes: 0,
                grain_rows: 1 << grain,
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_held_has_a_bound_and_grows_with_what_is_asked(step in size()) {
            let window = step.window();
            prop_assert!((1..=WINDOW).contains(&window));
            prop_assert!(window == 1 || step.held(window) <= WINDOW_BYTES);
            prop_assert!(step.held(1) <= step.held(2));
            let smaller = StepSize { global_batch: step.global_batch.div_ceil(2), ..step };
            prop_assert!(smaller.held(1) <= step.held(1));
        }

        #[test]
        fn the_batch_that_is_named_instead_is_the_largest_that_is_served(step in size()) {
            let largest = step.largest();
            let held = |global_batch| StepSize { global_batch, ..step }.held(1);
            prop_assert!(largest == 1 || held(largest) <= MOST_HELD);
            prop_assert!(largest >= step.global_batch || held(largest + 1) > MOST_HELD);
        }
    }

    #[test]
    fn usual_steps_are_served() {
        // Pictures of 110 KB, pictures of 3 KB in grains of 4, and a table of a billion rows of 8 bytes in grains of 16 KiB.
        for (row_bytes, grain_rows, global_batch, samples) in
            [(110_000, 1, 512, 1_281_167), (3072, 4, 8192, 60_000), (8, 2048, 1 << 14, 1 << 30)]
        {
            let step = StepSize {
                global_batch,
                own: 1,
                virtual_ranks: 1,
                samples,
                row_bytes,
                picture_bytes: 0,
                largest_bytes: 0,
                grain_rows,
            };
            assert!(step.held(1) <= MOST_HELD, "{step:?}");
        }
    }
}
