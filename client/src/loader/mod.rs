//! The loader: a rank's share of every step, in the plan's order, as Arrow record batches.
//!
//! Its steps are a pure function of the order (a plan's, or a mixture's of several), the virtual ranks and
//! the cursor. The source of the bytes (nodes of a cluster, or the shards of stores without any daemon)
//! changes only the speed. The API blocks; a thread reads ahead and another tells the nodes how far the user
//! has come.

mod asking;
mod batch_stream;
mod change;
mod clocks;
mod columns;
mod companions;
mod config;
mod connection;
mod delivered;
mod direct_file;
mod embedded;
mod error;
mod grains;
mod late;
mod lent;
mod loop_clock;
mod nodes;
mod open_files;
mod open_stores;
mod order;
mod pool;
mod prefetch;
mod ranks;
mod samples;
mod shares;
mod soft_labels;
mod source;
mod sources;
mod span;
mod steps;
mod tables;
mod tensors;
mod transformed;
mod transformed_samples;
mod transforms;
mod whom;
mod workers;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use serde::{Deserialize, Serialize};
use shardd_api::local_transport::Transport;
use shardd_api::loop_time::LoopTime;
use shardd_api::protocol::{AuditReport, CreateRun, RunRecord};
use shardd_plan::{Mixture, Plan, SourceNo, VirtualRank};
use shardfmt::DigestSum;
use shardfmt::row::Memory;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::label_skew::Origins;

pub use asking::Asked;
use asking::Asking;
pub use batch_stream::{BatchStream, Batches, BatchesConfig, GrainReader};
use clocks::Clocks;
pub use columns::common as common_columns;
pub use config::{CacheChoice, Follow, LoaderConfig, LoaderSource, MixedSource, PlanRef, default_cache_dir};
pub use delivered::{Delivered, Deliveries, EpochDelivered};
pub use embedded::Samples;
use embedded::{ShardFiles, Shards, ahead_of_gathering, for_rows, room};
pub use error::{GrainsError, LoadError, OtherColumns, PictureError};
use loop_clock::{Busy, LoopClock};

pub use loop_clock::TrainerNotes;
use nodes::{NodeRows, Nodes};
use order::Order;
pub use order::{Cursor, OrderId, mixture_virtual_ranks};
use pool::Pool;
use prefetch::{Prefetch, Share};
pub use ranks::{BatchSize, DataRank, Layout, MicroBatchPlace, RankError, RankShare, WorldRank};
use source::RowSource;
use sources::Opened;
pub use sources::Source;
pub use span::{Part, Spans, StepSpan, Tally};
pub use steps::{LastBatch, Steps};
pub use transformed::{TRANSFORMS, Transformed};
pub use transformed_samples::{BFLOAT16, Changed, Failed};
pub use transforms::{SampleTransforms, Transforms};
use workers::Ahead;

/// One step's share of this rank.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::{Loader, LoaderConfig};
///
/// let mut loader = Loader::open(LoaderConfig::new(source, plan, 32))?;
/// let step = loader.next_step()?.ok_or("no step")?;
/// assert_eq!((step.epoch, step.step, step.positions()), (0, 0, 0..32));
/// assert_eq!(step.global_samples(), 32);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Step {
    /// The epoch.
    pub epoch: u32,
    /// The step's number in its epoch, if the epoch was read from its start in steps of one size.
    pub step: u64,
    /// The stretches of the global order that all ranks together read in this step: one, but for steps that are filled up
    /// at the end of an epoch.
    pub parts: Vec<Part>,
    /// Where to resume once this step is done: the same on every rank.
    pub cursor: Cursor,
    /// One micro-batch for each of this rank's virtual ranks, in their order.
    pub micro_batches: Vec<MicroBatch>,
    /// How many of this rank's samples are of partitions that other ranks own: these own more of the step than their share.
    pub surplus: u64,
    /// Of each part, what each of this rank's virtual ranks is given.
    delivered: Vec<Vec<Delivered>>,
}

impl Step {
    /// Samples that all ranks together read in this step: what gradients are divided by.
    pub fn global_samples(&self) -> u64 {
        self.parts.iter().map(Part::samples).sum()
    }

    /// The samples that each of this rank's virtual ranks gets of the epoch in which the step begins, each
    /// sample counted once; digest sums are zero unless the audit is on.
    pub fn delivered(&self) -> Vec<Delivered> {
        let mut all = vec![Delivered::default(); self.micro_batches.len()];
        let parts = self.parts.iter().zip(&self.delivered);
        for (_, delivered) in parts.filter(|(part, _)| part.epoch == self.epoch && !part.repeats) {
            all.iter_mut().zip(delivered).for_each(|(all, more)| *all += *more);
        }
        all
    }

    /// The samples whose pictures could not be decoded or changed: they are zeros, or left out.
    pub fn failed(&self) -> impl Iterator<Item = &Failed> {
        self.micro_batches.iter().flat_map(|micro_batch| &micro_batch.failed)
    }

    /// The first of its stretches, which in most steps is the only one.
    pub fn positions(&self) -> Range<u64> {
        self.parts.first().map_or(0..0, |part| part.positions.clone())
    }
}

/// The result of waiting for a step.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::loader::Next;
/// use shardd_client::{Loader, LoaderConfig};
/// use std::time::Duration;
///
/// let mut loader = Loader::open(LoaderConfig::new(source, plan, 32))?;
/// let mut samples = 0;
/// loop {
///     match loader.next_step_within(Duration::from_secs(1))? {
///         Next::Step(step) => samples += step.global_samples(),
///         Next::NotYet => {} // look after something else
///         Next::End => break,
///     }
/// }
/// assert_eq!(samples, 300);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum Next {
    /// It is read.
    Step(Box<Step>),
    /// There are no more.
    End,
    /// It is still on its way.
    NotYet,
}

/// The reads of one virtual rank in a step.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::{Loader, LoaderConfig};
///
/// let config = LoaderConfig { virtual_ranks: Some(3), ..LoaderConfig::new(source, plan, 16) };
/// let step = Loader::open(config)?.next_step()?.ok_or("no step")?;
/// assert_eq!(step.micro_batches.len(), 3);
/// for micro_batch in &step.micro_batches {
///     assert_eq!(micro_batch.batch.num_rows(), 16);
///     assert_eq!(micro_batch.positions.len(), 16);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MicroBatch {
    /// The virtual rank.
    pub virtual_rank: u32,
    /// The position of each row in the global order, ascending in each part of the step.
    pub positions: Vec<u64>,
    /// Of a mixture the source of each row, by its place in the mixture; nothing if one plan is read.
    pub sources: Vec<SourceNo>,
    /// Where the rows of each part of the step end.
    pub ends: Vec<usize>,
    /// The rows, in that order; none at all at the end of an epoch that has too few samples.
    pub batch: RecordBatch,
    /// The samples whose pictures could not be decoded or changed: they are zeros or left out, as the transforms have it.
    pub failed: Vec<Failed>,
}

/// The reads of a rank in an epoch.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::{Loader, LoaderConfig};
///
/// let mut loader = Loader::open(LoaderConfig { audit: true, ..LoaderConfig::new(source, plan, 32) })?;
/// while loader.next_step()?.is_some() {}
/// let audit = loader.audits()[0];
/// assert_eq!(audit.samples, 300);
/// assert_eq!(audit.digest_sum, loader.sources()[0].manifest.digest_sum());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochAudit {
    /// The epoch.
    pub epoch: u32,
    /// Samples handed to the user.
    pub samples: u64,
    /// Of those that filled up a last step a second time: they are not among the samples, nor in the sum.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeats: u64,
    /// The sum of their row digests; over all ranks it equals the manifest's if each sample was read exactly once. Of a mixture
    /// it is that of what the epoch has of each source.
    pub digest_sum: DigestSum,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// How the loader fared.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::{Loader, LoaderConfig};
///
/// let mut loader = Loader::open(LoaderConfig::new(source, plan, 32))?;
/// while loader.next_step()?.is_some() {}
/// let stats = loader.stats();
/// assert_eq!((stats.steps, stats.samples), (10, 300));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LoaderStats {
    /// Steps handed out.
    pub steps: u64,
    /// Samples handed out.
    pub samples: u64,
    /// Of those, samples of partitions that other ranks own, read here because their owners' shares of a step were full.
    #[serde(default)]
    pub surplus: u64,
    /// Time the user waited for steps, in seconds.
    pub waited_s: f64,
    /// Time that the next step lay finished before the user asked for it, in seconds.
    pub kept_s: f64,
    /// Time that was spent on asking the store or nodes and waiting for their data, in seconds.
    pub network_s: f64,
    /// Time that was spent on opening, reading and checking files of this machine, in seconds.
    pub disk_s: f64,
    /// Time that was spent on gathering and decoding, in seconds: the mean of the threads that do so.
    pub decode_s: f64,
    /// Time that was spent on transforms of pictures, in seconds: the mean of the same threads.
    #[serde(default)]
    pub transform_s: f64,
    /// Samples whose pictures could not be decoded or changed and are zeros, as the transforms have it.
    #[serde(default)]
    pub replaced: u64,
    /// Samples that were left out of their batches for the same reasons.
    #[serde(default)]
    pub skipped: u64,
}

/// Reads a rank's share of a run.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_client::{Loader, LoaderConfig, LoaderSource, StorePlace};
///
/// # let (store, plan) = numbers()?;
/// let source = LoaderSource::Store(StorePlace::Directory(store.path().into()));
/// let mut loader = Loader::open(LoaderConfig::new(source, plan, 32))?;
/// let mut rows = 0;
/// while let Some(step) = loader.next_step()? {
///     for micro_batch in &step.micro_batches {
///         rows += micro_batch.batch.num_rows();
///     }
/// }
/// assert_eq!(rows, 300);
/// # Ok(())
/// # }
/// ```
pub struct Loader {
    /// At least one.
    sources: Vec<Source>,
    order: Order,
    schema: SchemaRef,
    config: LoaderConfig,
    virtual_ranks: u32,
    steps: Steps,
    ahead: Option<Ahead>,
    has_failed: bool,
    nodes: Option<Arc<Nodes>>,
    reports: Option<SyncSender<Report>>,
    reporter: Option<JoinHandle<Vec<AuditReport>>>,
    audits: Vec<EpochAudit>,
    stats: LoaderStats,
    clocks: Arc<Clocks>,
    loop_clock: LoopClock,
    /// The last chunk boundary that was reported, as (epoch, chunks due).
    reported: (u32, u32),
}

/// How many reports may wait for slow nodes.
const REPORTS_WAITING: usize = 256;

/// The messages of the reporting thread to the nodes.
enum Report {
    /// A chunk of the exchange is due.
    Position,
    Audit(AuditReport),
}

impl Loader {
    /// Opens the plan, attaches to the run (with nodes) and begins to read ahead.
    ///
    /// With nodes it returns once all ranks of the launch are attached (or after 10 s without them).
    ///
    /// # Errors
    /// A plan that does not exist, ranks that do not fit it, a start outside it, no node that answers, a damaged store.
    pub fn open(config: LoaderConfig) -> Result<Self, LoadError> {
        // The pending batches, and those that the user has or has just dropped.
        let memory = Pool::new(config.read_ahead + config.threads + 2);
        Self::open_into(config, Box::new(memory))
    }

    /// As [`open`](Self::open), with batches gathered into memory that `memory` lends.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_into(config: LoaderConfig, memory: Box<dyn Memory + Send + Sync>) -> Result<Self, LoadError> {
        let Opened { sources, stored, order, schema } =
            Opened::open(&config.follow, config.shuffle, &config.cache)?;
        if let Some(cursor) = config.start_order.filter(|of| *of != order.id()) {
            let (cursor, followed) = (cursor.to_string(), order.id().to_string());
            return Err(LoadError::OtherOrder { cursor, followed });
        }
        let transformed = match &config.transforms {
            Some(chain) => Some(Arc::new(Transformed::new(chain, &schema, sources[0].plan.document().seed)?)),
            None => None,
        };
        let schema = Arc::new(schema);
        let default = || order.default_virtual_ranks(config.batch, config.world);
        let virtual_ranks = config.virtual_ranks.unwrap_or_else(default);
        check(&config, &order, virtual_ranks)?;
        let sizes = config.batch.global(virtual_ranks);
        let global_batch = sizes.map_err(|error| LoadError::Config(error.to_string()))?;
        let micro_batch = u32::try_from(global_batch.div_ceil(virtual_ranks.into())).unwrap_or(u32::MAX);
        if let Some(risk) = batch_norm_risk(&config, &sources, virtual_ranks, micro_batch) {
            warn!("{risk}");
        }
        let steps = Steps {
            sample_count: samples_of_epoch(&config, &order),
            global_batch,
            last_batch: config.last_batch,
        };
        if steps.per_epoch() == 0 {
            return Err(LoadError::Config(format!(
                "no step in an epoch: {} samples do not fill a global batch of {}, and the rest is dropped",
                steps.sample_count, steps.global_batch
            )));
        }

        let stop = CancellationToken::new();
        let clocks = Arc::new(Clocks::default());
        let (mut nodes, mut ahead_bytes) = (None, 0);
        let rows: Box<dyn RowSource> = match &config.follow {
            Follow::Plan { source: LoaderSource::Nodes { servers, run, credentials }, .. } => {
                let Source { plan, manifest } = sources[0].clone();
                let servers: Vec<String> =
                    servers.iter().map(|s| s.trim_end_matches('/').to_owned()).collect();
                let create = CreateRun { id: run.clone(), plan: plan.id(), virtual_ranks };
                let asking = Asking::new(&servers, credentials);
                create_run(&asking, &servers, &create)?;
                let (rank, world) = (config.rank, config.world);
                let attached =
                    Nodes::attach(asking, servers, run.clone(), rank, world, config.start, config.map_files)?;
                let attached = Arc::new(attached);
                nodes = Some(Arc::clone(&attached));
                Box::new(NodeRows::new(attached, plan, manifest, Arc::clone(&clocks), stop.clone()))
            }
            Follow::Plan { source: LoaderSource::Store(_), .. } | Follow::Mixture { .. } => {
                let (cache, clocks) = (Arc::new(config.cache.open()?), Arc::clone(&clocks));
                let (room, loaders) = (room(), loaders_here(&config));
                let files = ShardFiles::new(stored, cache, clocks, stop.clone(), room)?;
                let mut files = files.beside(loaders).reading_late();
                ahead_bytes = ahead_of_gathering(room, loaders, config.threads as u64);
                if steps.sample_count < order.sample_count() {
                    files = files.for_some_samples();
                }
                let plans = sources.iter().map(|source| Arc::clone(&source.plan)).collect();
                let picture = transformed.as_ref().map_or(0, |transformed| transformed.bytes());
                let batches = batches_bytes(&config, &sources, global_batch, picture);
                let memory = for_rows(room, loaders, batches);
                Box::new(Shards::new(files, plans, config.shuffle).past_the_page_cache(memory)?)
            }
        };

        let share = Share {
            rank: config.rank,
            world: config.world,
            virtual_ranks,
            start: config.start,
            end_epoch: config.end_epoch.min(order.epochs()),
            stride: config.stride,
            window: config.read_ahead,
            ahead_bytes,
            audit: config.audit,
        };
        let cache_dir = Some(config.cache.place());
        let prefetch =
            Prefetch::new(share, order.clone(), Arc::clone(&schema), steps, cache_dir, rows, memory)?
                .transformed(transformed.clone());
        let ahead = Ahead::start(prefetch, config.read_ahead, config.threads, Arc::clone(&clocks), stop)?;
        let own = Plan::virtual_ranks_of(config.rank, config.world, virtual_ranks);
        let delivered_before = audit_so_far(&config, &own);
        let delivered_in_full: Vec<AuditReport> = reports_before(&config, &own, global_batch);
        let mut loader = Self {
            sources,
            order,
            schema: transformed.as_ref().map_or(schema, |transformed| Arc::clone(transformed.schema())),
            virtual_ranks,
            steps,
            ahead: Some(ahead),
            has_failed: false,
            nodes: None,
            reports: None,
            reporter: None,
            audits: delivered_before.into_iter().collect(),
            stats: LoaderStats::default(),
            clocks,
            loop_clock: LoopClock::default(),
            reported: (config.start.0, 0),
            config,
        };
        if let Some(nodes) = nodes {
            let (tell, told) = sync_channel(REPORTS_WAITING);
            let partitions = loader.partitions();
            for report in delivered_in_full {
                // There is room for more than there are epochs in a state.
                let _ = tell.try_send(Report::Audit(report));
            }
            loader.reports = Some(tell);
            loader.nodes = Some(Arc::clone(&nodes));
            loader.reporter = Some(spawn("shardd-report", move || report_all(&nodes, &partitions, &told))?);
        }
        Ok(loader)
    }

    /// The next step; `None` when the last epoch is done. Blocks until it is read.
    ///
    /// # Errors
    /// The results of reading; after an error the loader gives no more steps.
    pub fn next_step(&mut self) -> Result<Option<Step>, LoadError> {
        loop {
            match self.next_step_within(Duration::from_secs(3600))? {
                Next::Step(step) => return Ok(Some(*step)),
                Next::End => return Ok(None),
                Next::NotYet => {}
            }
        }
    }

    /// The next step, if it is read within `wait`: for callers that have other things to look after.
    ///
    /// # Errors
    /// As [`next_step`](Self::next_step).
    pub fn next_step_within(&mut self, wait: Duration) -> Result<Next, LoadError> {
        let Some(ahead) = &mut self.ahead else {
            return if self.has_failed { Err(LoadError::Stopped) } else { Ok(Next::End) };
        };
        let began = Instant::now();
        let next = ahead.next(wait);
        let given = Instant::now();
        self.stats.waited_s += given.duration_since(began).as_secs_f64();
        self.loop_clock.waited(began, given, Busy::of(&self.clocks, self.config.threads));
        self.stats.kept_s = ahead.kept().as_secs_f64();
        let step = match next {
            Ok(Next::Step(step)) => step,
            Ok(Next::NotYet) => return Ok(Next::NotYet),
            Ok(Next::End) | Err(_) => {
                self.ahead = None;
                self.has_failed = next.is_err();
                return next;
            }
        };
        self.stats.steps += 1;
        self.stats.surplus += step.surplus;
        self.stats.samples += step.micro_batches.iter().map(|m| m.positions.len() as u64).sum::<u64>();
        for Failed { epoch, position, reason, skipped, .. } in step.failed() {
            *if *skipped { &mut self.stats.skipped } else { &mut self.stats.replaced } += 1;
            debug!(epoch, position, reason, skipped, "a picture cannot be decoded or changed");
        }
        self.note(&step);
        Ok(Next::Step(step))
    }

    /// The samples read so far, by epoch; digest sums are zero unless the audit is on.
    pub fn audits(&self) -> &[EpochAudit] {
        &self.audits
    }

    /// Whether digests of the read samples are summed up.
    pub fn is_audited(&self) -> bool {
        self.config.audit
    }

    /// How the loader fared so far.
    pub fn stats(&self) -> LoaderStats {
        let Busy { network, disk, decode, transform } = Busy::of(&self.clocks, self.config.threads);
        LoaderStats {
            network_s: network,
            disk_s: disk,
            decode_s: decode,
            transform_s: transform,
            ..self.stats
        }
    }

    /// Where the time of the loop that takes the steps went, since the first one.
    ///
    /// Nodes are sent this every few seconds, for `shardctl top` and the console.
    pub fn loop_time(&self) -> LoopTime {
        self.loop_clock.time(self.stats.steps, self.stats.samples)
    }

    /// Says that some of the time between two steps went into code that makes batches, such as transforms and collation in Python.
    /// It counts as waiting for data, and not as work of the loop.
    pub fn note_batch_code(&mut self, time: Duration) {
        self.loop_clock.was_in_python(time);
    }

    /// Where a trainer notes its loss and how long it waited for other ranks. Nodes show both: `shardctl top` and the console tell a
    /// rank that works slowly from one that waits for data.
    pub fn notes(&self) -> TrainerNotes {
        self.loop_clock.notes()
    }

    /// How the grains of each node are got, by the nodes' addresses, for those already got; empty without
    /// nodes.
    pub fn transports(&self) -> BTreeMap<String, Transport> {
        self.nodes.as_ref().map(|nodes| nodes.transports()).unwrap_or_default()
    }

    /// How often each node was asked, by the nodes' addresses; without nodes there are none.
    pub fn asked(&self) -> BTreeMap<String, Asked> {
        self.nodes.as_ref().map(|nodes| nodes.asked()).unwrap_or_default()
    }

    /// The columns of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The data to read: the version and the plan of each source. At least one; a mixture may have several.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// The mixture being followed, if it is not one plan.
    pub fn mixture(&self) -> Option<&Mixture> {
        self.order.mixture()
    }

    /// The name of the order being followed: that of every cursor.
    pub fn order(&self) -> OrderId {
        self.order.id()
    }

    /// V.
    pub fn virtual_ranks(&self) -> u32 {
        self.virtual_ranks
    }

    /// The virtual ranks that this rank reads for.
    pub fn own_virtual_ranks(&self) -> Range<u32> {
        Plan::virtual_ranks_of(self.config.rank, self.config.world, self.virtual_ranks)
    }

    /// How many samples each of this rank's virtual ranks reads of a step of these positions.
    pub fn shares_of(&self, epoch: u32, positions: Range<u64>) -> Vec<u64> {
        let own = self.own_virtual_ranks();
        let part = Part { epoch, positions, repeats: false };
        let sizes = shares::share_sizes(&self.order, &part, self.virtual_ranks);
        sizes[own.start as usize..own.end as usize].to_vec()
    }

    /// How the global order is cut into steps.
    pub fn steps(&self) -> Steps {
        self.steps
    }

    /// The partitions that this rank owns of a run, which has one plan.
    fn partitions(&self) -> Range<u32> {
        let own = self.own_virtual_ranks();
        let plan = &self.sources[0].plan;
        let first = plan.partitions_of(VirtualRank(own.start), self.virtual_ranks).start;
        let end = plan.partitions_of(VirtualRank(own.end - 1), self.virtual_ranks).end;
        first..end
    }

    /// Counts a step that goes to the user, and tells the nodes when a chunk of the exchange has become due.
    fn note(&mut self, step: &Step) {
        for (part, delivered) in step.parts.iter().zip(&step.delivered) {
            let mut all = Delivered::default();
            delivered.iter().for_each(|one| all += *one);
            let Delivered { samples, digest_sum } = all;
            if self.audits.last().is_none_or(|audit| audit.epoch < part.epoch) {
                let (epoch, digest_sum) = (part.epoch, DigestSum::default());
                self.audits.push(EpochAudit { epoch, samples: 0, repeats: 0, digest_sum });
            }
            let audit = self.audits.iter_mut().rfind(|audit| audit.epoch == part.epoch);
            match audit.expect("pushed above") {
                audit if part.repeats => audit.repeats += samples,
                audit => {
                    audit.samples += samples;
                    audit.digest_sum += digest_sum;
                }
            }
        }
        let Some(reports) = &self.reports else { return };
        let is_over = |audit: &&EpochAudit| (step.epoch..step.cursor.epoch).contains(&audit.epoch);
        for audit in self.audits.iter().filter(is_over).filter(|_| self.config.audit) {
            // The reporter ends only with the loader; a send cannot fail before.
            let _ = reports.send(Report::Audit(AuditReport {
                rank: self.config.rank,
                world: self.config.world,
                epoch: audit.epoch,
                samples: audit.samples,
                digest_sum: audit.digest_sum,
                global_batch_size: Some(self.steps.global_batch),
            }));
        }
        let cursor = step.cursor;
        if let Some(nodes) = &self.nodes {
            nodes.reached(cursor.epoch, cursor.position, self.loop_time());
        }
        let plan = &self.sources[0].plan;
        let chunks = plan.document().chunks;
        let due = (0..chunks).take_while(|chunk| plan.chunk_trigger(*chunk) <= cursor.position).count();
        let boundary = (cursor.epoch, u32::try_from(due).expect("at most as many as chunks"));
        if boundary != self.reported {
            self.reported = boundary;
            // If the nodes are so slow that the queue is full, a later report says it as well.
            let _ = reports.try_send(Report::Position);
        }
    }
}

impl Loader {
    /// The addresses of the nodes of its run, the known ones; without nodes there are none.
    pub fn nodes(&self) -> Vec<String> {
        self.nodes.as_ref().map(|nodes| nodes.known()).unwrap_or_default()
    }

    /// Stops reading ahead, tells the nodes how far this rank came, and leaves the run. No node has taken the
    /// returned reports: it is to be sent later, or the audit of those epochs is lost.
    #[must_use = "what no node has taken is lost"]
    pub fn close(mut self) -> Vec<AuditReport> {
        self.end()
    }

    fn end(&mut self) -> Vec<AuditReport> {
        self.ahead = None;
        self.reports = None; // the reporter sends the rest and leaves the run
        self.reporter.take().and_then(|reporter| reporter.join().ok()).unwrap_or_default()
    }
}

impl Drop for Loader {
    /// As [`close`](Loader::close); what no node has taken is lost.
    fn drop(&mut self) {
        for AuditReport { epoch, rank, .. } in self.end() {
            warn!(epoch, rank, "no node took the audit of an epoch");
        }
    }
}

fn create_run(asking: &Asking, servers: &[String], create: &CreateRun) -> Result<(), LoadError> {
    let mut last = LoadError::NoServers;
    for server in asking.in_order(servers.to_vec()) {
        let created = asking.http.post_json::<_, RunRecord>(&format!("{server}/v1/runs"), create);
        asking.said(&server, &created);
        match created {
            Ok(_) => return Ok(()),
            Err(error) if error.is_final() => return Err(error.into()),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

/// The samples that this rank's virtual ranks got of the epoch begun within, if the resumed state has them.
fn audit_so_far(config: &LoaderConfig, own: &Range<u32>) -> Option<EpochAudit> {
    let (epoch, position) = config.start;
    let before = config.delivered.of(epoch).filter(|_| config.audit && position > 0)?;
    let Delivered { samples, digest_sum } = before.of(own.clone());
    Some(EpochAudit { epoch, samples, repeats: 0, digest_sum })
}

/// Of the epoch before the one that is begun in, what this rank has to report: those who read it may have ended before they did.
fn reports_before(config: &LoaderConfig, own: &Range<u32>, global_batch: u64) -> Vec<AuditReport> {
    let before = config.start.0.checked_sub(1).and_then(|epoch| config.delivered.of(epoch));
    let report = |before: &EpochDelivered| {
        let Delivered { samples, digest_sum } = before.of(own.clone());
        AuditReport {
            rank: config.rank,
            world: config.world,
            epoch: before.epoch,
            samples,
            digest_sum,
            global_batch_size: Some(global_batch),
        }
    };
    before.filter(|_| config.audit).map(report).into_iter().collect()
}

/// About how much memory the batches of a loader take that are gathered, or that its user has; `picture` bytes of each sample are
/// those of its transformed picture.
fn batches_bytes(config: &LoaderConfig, sources: &[Source], global_batch: u64, picture: u64) -> u64 {
    let row = |source: &Source| source.manifest.row_bytes() / source.manifest.sample_count().max(1);
    let row_bytes = sources.iter().map(row).max().unwrap_or_default().saturating_add(picture);
    let batches = (config.read_ahead + config.threads + 2) as u64;
    global_batch.div_ceil(config.world.into()).saturating_mul(row_bytes).saturating_mul(batches)
}

/// How many loaders may share this machine's memory: all of the run, but a machine has hardly more than processors.
fn loaders_here(config: &LoaderConfig) -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    u64::from(config.world).saturating_mul(config.stride).min(processors.max(1))
}

/// How many samples an epoch has.
fn samples_of_epoch(config: &LoaderConfig, order: &Order) -> u64 {
    config.limit.unwrap_or(u64::MAX).min(order.sample_count())
}

fn check(config: &LoaderConfig, order: &Order, virtual_ranks: u32) -> Result<(), LoadError> {
    order.check_ranks(config.world, virtual_ranks)?;
    let (epoch, position) = config.start;
    let with_nodes = matches!(config.follow, Follow::Plan { source: LoaderSource::Nodes { .. }, .. });
    let complaint = if config.rank >= config.world {
        format!("rank {} is outside a world of {}", config.rank, config.world)
    } else if config.read_ahead == 0 {
        "reading 0 steps ahead reads nothing; use at least 1".into()
    } else if config.stride == 0 || config.stride > 1 && with_nodes {
        format!("a stride of {}: at least 1, and with nodes exactly that", config.stride)
    } else if !config.shuffle && with_nodes {
        "nodes give the plan's order; read the store without them for its own".into()
    } else if config.threads == 0 {
        "0 threads gather nothing; use at least 1".into()
    } else if config.limit == Some(0) {
        "a limit of 0 samples reads nothing; use at least 1".into()
    } else if position > samples_of_epoch(config, order) {
        format!("position {position} is beyond the {} samples of an epoch", samples_of_epoch(config, order))
    } else if !config.delivered.fits(virtual_ranks) {
        format!(
            "the state counts what other virtual ranks were given than the {virtual_ranks} of this run; give as many as it has"
        )
    } else if epoch > config.end_epoch {
        format!("the start, epoch {epoch}, is after the end, epoch {}", config.end_epoch)
    } else if epoch > order.epochs() {
        format!("epoch {epoch} is beyond the {} that positions of this mixture count to", order.epochs())
    } else {
        return Ok(());
    };
    Err(LoadError::Config(complaint))
}

/// The risk for batch normalisation, logged once for all ranks. A run that has exchanged before has
/// mixed.
fn batch_norm_risk(
    config: &LoaderConfig,
    sources: &[Source],
    virtual_ranks: u32,
    micro_batch: u32,
) -> Option<String> {
    let (Follow::Plan { .. }, [Source { plan, manifest }]) = (&config.follow, sources) else { return None };
    let schedule = &plan.document().schedule;
    let has_mixed = config.start.0 > 0 && schedule.largest().units() > 0;
    // Strata are dealt to the partitions one sample after the other, and labels with them.
    if config.rank > 0 || has_mixed || plan.document().strata.is_some() {
        return None;
    }
    let labels = Origins::at_once(manifest)?;
    labels.spread(plan, virtual_ranks, micro_batch).batch_norm_risk(schedule)
}

fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, LoadError> {
    std::thread::Builder::new().name(name.into()).spawn(body).map_err(|source| LoadError::Threads { source })
}

/// How often nodes hear where the time of the loop goes.
const TIME_EVERY: Duration = Duration::from_secs(5);
/// How long the reports of a rank that ends are offered to nodes that do not take them, and how often.
const LAST_OFFERS: Duration = Duration::from_secs(10);
const OFFER_EVERY: Duration = Duration::from_millis(500);

/// Passes messages on to the nodes, until no more arrive. Returns those that no node has taken.
fn report_all(nodes: &Nodes, partitions: &Range<u32>, told: &Receiver<Report>) -> Vec<AuditReport> {
    let mut unsent: Vec<AuditReport> = Vec::new();
    let mut time_told = Instant::now();
    loop {
        // A report is kept until a node takes it.
        let wait = if unsent.is_empty() { TIME_EVERY } else { OFFER_EVERY };
        let report = told.recv_timeout(wait.min(TIME_EVERY.saturating_sub(time_told.elapsed())));
        let mut is_moved = false;
        match report {
            Ok(Report::Audit(audit)) => unsent.push(audit),
            Ok(Report::Position) => is_moved = true,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        // Only the present place of the rank is sent, and once is enough.
        while let Ok(newer) = told.try_recv() {
            match newer {
                Report::Position => is_moved = true,
                Report::Audit(audit) => unsent.push(audit),
            }
        }
        if is_moved {
            nodes.report(partitions.clone());
        } else if time_told.elapsed() >= TIME_EVERY {
            nodes.report_time();
        }
        if time_told.elapsed() >= TIME_EVERY {
            time_told = Instant::now();
        }
        unsent.retain(|audit| !nodes.report_audit(audit));
    }
    let began = Instant::now();
    unsent.retain(|audit| !nodes.report_audit(audit));
    while !unsent.is_empty() && began.elapsed() < LAST_OFFERS {
        std::thread::sleep(OFFER_EVERY);
        unsent.retain(|audit| !nodes.report_audit(audit));
    }
    unsent
}
