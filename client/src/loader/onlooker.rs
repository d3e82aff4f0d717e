//! A rank's share of an epoch for someone who only reads along: no run, nothing is reported, nothing is held. Rows come from
//! the node's own engine: its cache, the hosts of a run over the same plan if there is one, the store.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use shardfmt::plan::{GrainNo, Plan};
use shardfmt::row::{Fresh, Rows};
use shardfmt::{Grain, PlanId};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::order::{Order, SourceRead};
use super::prefetch::{Prefetch, Share, Task};
use super::source::{Reads, Ready, RowSource};
use super::{LastBatch, LoadError, Step, Steps};
use crate::engine::{Engine, RunState};
use crate::lookup;

/// Steps that wait for whoever reads; the next are read when there is room.
const WAITING: usize = 2;
/// How many steps are prepared at once, at most...
const WINDOW: u64 = 8;
/// ...if they have no more bytes than this, by the mean size of a row.
const WINDOW_BYTES: u64 = 64 << 20;
/// What one step of a rank may come to.
const STEP_BYTES: u64 = 512 << 20;

/// Which part of an epoch is read.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// Begins to read a rank's share of an epoch.
///
/// # Errors
/// A plan that does not exist, numbers that do not fit it, a store that cannot be read.
pub async fn batches(
    engine: &Arc<Engine>,
    plan: PlanId,
    config: BatchesConfig,
) -> Result<Batches, LoadError> {
    let run = engine.onlook(plan).await?;
    let (plan, manifest) = (Arc::clone(&run.plan), Arc::clone(&run.manifest));
    let virtual_ranks =
        config.virtual_ranks.unwrap_or_else(|| plan.default_virtual_ranks(config.global_batch_size));
    plan.check_ranks(config.world, virtual_ranks)?;
    let own = Plan::virtual_ranks_of(config.rank, config.world, virtual_ranks);
    let share_bytes = step_bytes(&plan, manifest.row_bytes(), config.global_batch_size, &own, virtual_ranks);
    check(&config, &plan, share_bytes)?;

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
        window: (WINDOW_BYTES / share_bytes.max(1)).clamp(1, WINDOW) as usize,
        audit: false,
    };
    let schema = Arc::clone(&manifest.schema);
    let rows = EngineRows {
        engine: Arc::clone(engine),
        run: Arc::clone(&run),
        runtime: Handle::current(),
        epoch: config.epoch,
        known: Arc::default(),
    };
    let order = Order::of_plan(Arc::clone(&plan), true);
    let prefetch =
        Prefetch::new(share, order, Arc::clone(&schema), steps, None, Box::new(rows), Box::new(Fresh))?;
    let (give, take) = mpsc::channel(WAITING);
    engine.tasks.spawn_blocking(move || {
        prefetch.run(|task| {
            let step = task.and_then(Task::build);
            let goes_on = step.is_ok();
            give.blocking_send(step).is_ok() && goes_on
        });
    });
    Ok(Batches { schema, plan: plan.id(), virtual_ranks, own, steps: take })
}

/// What a rank reads in one step, by the mean size of a row.
fn step_bytes(
    plan: &Plan,
    row_bytes: u64,
    global_batch: u64,
    own: &std::ops::Range<u32>,
    virtual_ranks: u32,
) -> u64 {
    let rows = u128::from(global_batch.min(plan.sample_count())) * u128::from(own.end - own.start)
        / u128::from(virtual_ranks);
    let bytes = rows * u128::from(row_bytes) / u128::from(plan.sample_count().max(1));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn check(config: &BatchesConfig, plan: &Plan, share_bytes: u64) -> Result<(), LoadError> {
    lookup::check_table(plan, config.epoch)?;
    let complaint = if config.rank >= config.world {
        format!("rank {} is outside a world of {}", config.rank, config.world)
    } else if config.global_batch_size == 0 {
        "a global_batch_size of 0 reads nothing; use at least 1".into()
    } else if config.steps == Some(0) {
        "0 steps read nothing; use at least 1, or leave steps out to read the epoch to its end".into()
    } else if config.position > plan.sample_count() {
        format!("position {} is beyond the {} samples of an epoch", config.position, plan.sample_count())
    } else if share_bytes > STEP_BYTES {
        format!(
            "global_batch_size {} comes to {share_bytes} bytes a step for this rank; at most {STEP_BYTES} are served",
            config.global_batch_size
        )
    } else {
        return Ok(());
    };
    Err(LoadError::Config(complaint))
}

/// Rows by way of the engine. Lives on a thread where blocking is allowed.
struct EngineRows {
    engine: Arc<Engine>,
    run: Arc<RunState>,
    runtime: Handle,
    epoch: u32,
    known: Arc<Grains>,
}

impl RowSource for EngineRows {
    fn prepare(&mut self, _: u32, window: &[&Reads]) -> Result<Arc<dyn Ready>, LoadError> {
        let wanted: BTreeSet<GrainNo> =
            window.iter().copied().flatten().flatten().map(|of| of.read.grain).collect();
        // Those of the window before are let go, but for those that this one needs as well.
        let mut known: HashMap<GrainNo, Bytes> =
            wanted.iter().filter_map(|grain| Some((*grain, self.known.0.get(grain)?.clone()))).collect();
        let missing: Vec<GrainNo> = wanted.into_iter().filter(|grain| !known.contains_key(grain)).collect();
        self.known = Arc::default();
        let read = self.runtime.block_on(async {
            tokio::select! {
                () = self.engine.stop.cancelled() => Err(LoadError::Stopped),
                read = self.engine.bytes_of(&self.run, self.epoch, &missing) => Ok(read?),
            }
        });
        known.extend(read?);
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
