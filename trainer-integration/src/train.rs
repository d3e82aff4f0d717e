//! A whole training: agree on the settings, start from the same weights, follow the source step by step, compare at the
//! end. Knows the engine and its neighbours; where data comes from and who connects the ranks is the caller's.

mod account;
pub(crate) mod agree;
mod all_reduce;
pub(crate) mod bits;
pub(crate) mod feed;
pub mod guard;
mod persistence;
pub mod step_losses;
mod steps;
mod tell;
mod train_state;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use shardd_client::loader::TRANSFORMS;
use shardfmt::digest::Digest;
use tracing::info;

use crate::causes::chain;
use crate::checkpoint::{
    Checkpoint, CheckpointBytes, CheckpointCosts, CheckpointManager, Checkpoints, Next, Settings,
};
use crate::collective::nccl::Transport;
use crate::collective::sums::{Tuned, TuningTable};
use crate::collective::{Collective, CollectiveError, Straggler, StragglerWatch, waited_for};
use crate::compress::CompressionReport;
use crate::data::{Augmentation, InputOptions, InputSpec, Rows};
use crate::device::{DeviceName, Precision};
use crate::dtype::ReduceDtype;
use crate::engine::Engine;
use crate::error::TrainError;
use crate::evaluate::{Evaluation, evaluate};
use crate::ledger::Usage;
use crate::model::Model;
use crate::models::{InputShape, ModelError, ModelOptions, Norm, adapted_model};
use crate::name_pattern::NamePattern;
use crate::nn::Lora;
use crate::optim::{LrDecay, Optimizer, Plateau, Rule, Schedule};
use crate::random::Key;
use crate::record::{Beginning, Purpose, Recorder, Recording, digest_of};
use crate::reduce::{AllReduce, Comm, Reduction, VirtualRanks};
use crate::scaling::LossScale;
use crate::source::{Audit, StepSource};
use crate::trace::Tracer;
use crate::weights::{Running, Weights};
use crate::zero::mesh::Mesh;
use crate::zero::{Slicing, Zero};

use account::Account;
pub use agree::agree;
use agree::{ALL_REDUCE, MAY_CHANGE, agree_on, begin, compare, kept, same_training};
use bits::agree_on_bits;
pub use feed::Preparation;
use feed::{Feed, InputDigests, Preparer};
use guard::Guard;
pub use guard::{GuardConfig, OnBadStep};
pub use persistence::{Outcome, Persistence, Start, Stopped};
use steps::{Laps, RankClock, Steps};
pub use train_state::StateTransfer;
use train_state::TrainState;

/// The settings that decide the weights, apart from the data; and those of the computation.
///
/// ```
/// use shardd_trainer::Optimizer;
/// use shardd_trainer::train::TrainConfig;
///
/// let optimizer = Optimizer::adamw(0.01);
/// let config = TrainConfig { epochs: 3, virtual_ranks: 8, rate: 1e-3, optimizer, ..TrainConfig::default() };
/// assert_eq!((config.seed, config.compare_every), (0, 100));
/// ```
#[derive(Clone, Debug)]
pub struct TrainConfig {
    /// Of the first weights. Default 0.
    pub seed: u64,
    /// Length of the schedule in epochs; the source decides how many there are. Default 10.
    pub epochs: u32,
    /// V, at least the world size. Default 1.
    pub virtual_ranks: u32,
    /// How weights move. Default gradient descent with momentum .9 and weight decay 5e-4.
    pub optimizer: Optimizer,
    /// How gradients are added up. Default exactly.
    pub reduction: Reduction,
    /// In what numbers. Default 32 bits.
    pub reduce_dtype: ReduceDtype,
    /// The algorithm that adds them up in any order, where no rank keeps slices and none are compressed. Default a table from
    /// one machine.
    pub all_reduce: AllReduce,
    /// The state that each rank keeps only a slice of, and the size of its group. Default nothing. Exactly
    /// reduced, the weights do not depend on it.
    pub slicing: Slicing,
    /// The action on a step whose loss is NaN, or far too high. Default stop at NaN.
    pub guard: GuardConfig,
    /// After every how many steps ranks compare their weights, besides the first and the last. Default 100; 0 is never.
    pub compare_every: u64,
    /// The length that a longer gradient, all blocks together, is brought to. Default none.
    pub clip: Option<f32>,
    /// The model to train. Default the small model for the kind of data.
    pub model: ModelOptions,
    /// The parameters that stay as they begin, by their names, as with PyTorch's `requires_grad_(False)`: they have no
    /// gradient, no optimizer state, no weight decay and no update. Each pattern matches at least one. Running
    /// statistics move all the same. Default none.
    pub freeze: Vec<NamePattern>,
    /// Adapters of a transformer's linear layers. Only they are trained; all other parameters are frozen. Default none.
    pub lora: Option<Lora>,
    /// The augmentation of images while training. Default nothing.
    pub augmentation: Augmentation,
    /// The highest learning rate. Default 0.1.
    pub rate: f32,
    /// How it falls. Default half a cosine.
    pub decline: LrDecay,
    /// Epochs until it is reached. Default 1.
    pub warm_up_epochs: f32,
    /// The facts that the schema does not have.
    pub input: InputOptions,
    /// Where tensors live. Default the CPU.
    pub device: DeviceName,
    /// In how many bits it is computed there. Default 32.
    pub precision: Precision,
    /// The first factor of gradients in [`Precision::F16`]; after a checkpoint its factor. Default 65,536.
    pub loss_scale: LossScale,
    /// The transport of gradients. Default the run's collective.
    pub transport: Transport,
    /// Where rows become numbers; default: on the device, a step ahead, unless that is the CPU. The numbers do not depend on it.
    pub preparation: Option<Preparation>,
    /// Whether the times of the work are recorded ([`Trained::trace`]). Default not.
    pub traces: bool,
    /// Threads for tensor kernels and image decoding; default: the process's pool (`RAYON_NUM_THREADS`). The weights do
    /// not depend on it.
    pub threads: Option<usize>,
}

impl Default for TrainConfig {
    fn default() -> TrainConfig {
        TrainConfig {
            seed: 0,
            epochs: 10,
            virtual_ranks: 1,
            optimizer: Optimizer::sgd(5e-4),
            reduction: Reduction::default(),
            reduce_dtype: ReduceDtype::default(),
            all_reduce: AllReduce::default(),
            slicing: Slicing::default(),
            guard: GuardConfig::default(),
            compare_every: 100,
            clip: None,
            model: ModelOptions::default(),
            freeze: Vec::new(),
            lora: None,
            augmentation: Augmentation::default(),
            rate: 0.1,
            decline: LrDecay::default(),
            warm_up_epochs: 1.0,
            input: InputOptions::default(),
            device: DeviceName::default(),
            precision: Precision::default(),
            loss_scale: LossScale::default(),
            transport: Transport::default(),
            preparation: None,
            traces: false,
            threads: None,
        }
    }
}

/// How a training is going.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Progress {
    /// Which rank says so.
    pub rank: u32,
    /// From 0.
    pub epoch: u32,
    /// In the epoch, from 0.
    pub step: u64,
    /// Steps of an epoch.
    pub steps: u64,
    /// Mean loss of the step.
    pub loss: f64,
    /// Share of the step's samples answered rightly before the update.
    pub accuracy: f64,
    /// The step was bad, or its gradients too large for 16 bits or for exact sums, and the weights are those before it.
    pub is_skipped: bool,
    /// The factor of gradients on their way through 16 bits ([`LossScale`]); none where they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f32>,
    /// Length of the gradient, all blocks together, before it was clipped.
    pub gradient_norm: f64,
    /// Learning rate.
    pub rate: f32,
    /// The most bytes of the model's numbers that this rank held at once in the step.
    pub memory: Usage,
    /// Whether all ranks that share slices with each other are on one machine; none where nothing is shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups_inside_machines: Option<bool>,
    /// All ranks' samples per second since this process began to train.
    pub samples_per_s: f64,
    /// Seconds until the last step, if the others take as long as those of this process did.
    pub left_s: f64,
    /// Seconds that a checkpoint after the step before held this rank up; they are among those it waited for data.
    pub checkpoint_s: f64,
    /// The bytes of a checkpoint that was completed since the step before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointBytes>,
    /// The rank that the others waited for between the last two comparisons of weights ([`TrainConfig::compare_every`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub straggler: Option<Straggler>,
    /// This rank's work meanwhile.
    #[serde(flatten)]
    pub time: StepTime,
}

/// Where the time of a step went, in seconds. Nothing lies between the parts or between the steps: together they are the time of
/// the training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepTime {
    /// Waiting for the source.
    pub wait_s: f64,
    /// Making numbers of rows, decoding images; 0 where that is done a step ahead ([`Preparation::Device`]), and waited for like the source.
    pub decode_s: f64,
    /// Forward and backward.
    pub compute_s: f64,
    /// Waiting for gradients that were not there when the last backward pass was done, and the update.
    pub update_s: f64,
    /// Of `update_s`, the waiting: time in which there was nothing to do but communication.
    pub reduce_s: f64,
}

/// A finished training.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The weights with averaged running numbers, the same on every rank; where they are [gathered](Engine::gathers), on rank 0 alone.
    pub weights: Option<Weights>,
    /// Their digest.
    pub digest: Digest,
    /// Mean loss of every epoch.
    pub loss_per_epoch: Vec<f64>,
    /// Figures on the test data, if there was any.
    pub evaluation: Option<Evaluation>,
    /// Why there are none, though there was some.
    pub unevaluated: Option<Arc<TrainError>>,
    /// How many rows of a micro-batch went through the model at once, if the device had no memory for more.
    pub most_rows: Option<usize>,
    /// The most bytes of the model's numbers that this rank held at once.
    pub memory: Usage,
    /// Which ranks share slices with each other, if any do.
    pub mesh: Option<Mesh>,
    /// The reads of this rank.
    pub audits: Vec<Audit>,
    /// Steps, those that were skipped among them.
    pub steps: u64,
    /// Of these, how many were bad and left the weights as they were, or had gradients too large for 16 bits or for exact sums.
    pub skipped_steps: u64,
    /// Of these, how many had gradients too large for 16 bits or for exact sums.
    pub overflows: u64,
    /// The factor of the next step's gradients on their way through 16 bits.
    pub loss_scale: Option<LossScale>,
    /// How many were undone by going back to a checkpoint.
    pub undone_steps: u64,
    /// All ranks' samples, all epochs.
    pub samples: u64,
    /// Of these, how many since this process began: fewer than all after a checkpoint.
    pub samples_here: u64,
    /// Samples whose picture or sound this rank replaced by zeros, since this process began.
    pub replaced_here: u64,
    /// Seconds from the first step's beginning to the last step's end: the sum of the parts of all steps in [`StepTime`].
    pub train_s: f64,
    /// Of these, seconds waited for data.
    pub wait_s: f64,
    /// The cost of checkpoints.
    pub checkpoints: CheckpointCosts,
    /// The bytes of each checkpoint that was completed, in order.
    pub checkpoint_bytes: Vec<CheckpointBytes>,
    /// Payload bytes this rank sent to others.
    pub bytes_sent: u64,
    /// The algorithms that added up gradients, where [`TrainConfig::all_reduce`] decided them.
    pub all_reduce: Option<Tuned>,
    /// The cost and saving of compression on this rank.
    pub compression: Option<CompressionReport>,
    /// On rank 0, what all ranks did when, in the Trace Event Format; empty if it was not asked for.
    pub trace: Vec<Value>,
    /// How long all other ranks together waited for each rank in collective operations.
    pub waited_for: Vec<Duration>,
    /// Numbers in the model.
    pub parameters: usize,
    /// Of these, how many are trained; the others are frozen.
    pub trained_parameters: usize,
}

/// Trains on all steps of `source` and evaluates on `test`. All ranks of `collective` call this together.
///
/// # Errors
/// See [`TrainError`]. A rank that fails tells the others why before this returns.
pub fn train(
    config: &TrainConfig,
    collective: Box<dyn Collective>,
    source: &mut dyn StepSource,
    test: Option<&dyn Rows>,
    observe: &mut (dyn FnMut(Progress) + Send),
) -> Result<Trained, TrainError> {
    match train_with(config, Persistence::default(), collective, source, test, observe)? {
        Outcome::Trained(trained) => Ok(*trained),
        Outcome::Stopped(_) | Outcome::Paused(_) => unreachable!("no other thread has the flags"),
    }
}

/// As [`train`], from a checkpoint or other weights, with checkpoints, and until it is asked to stop.
///
/// # Errors
/// See [`TrainError`]. A rank that fails tells the others why before this returns.
pub fn train_with(
    config: &TrainConfig,
    mut persistence: Persistence,
    collective: Box<dyn Collective>,
    source: &mut dyn StepSource,
    test: Option<&dyn Rows>,
    observe: &mut (dyn FnMut(Progress) + Send),
) -> Result<Outcome, TrainError> {
    let comm = Arc::new(Comm::new(collective));
    let mut start = std::mem::take(&mut persistence.start);
    let training = Training { config, persistence, comm: Arc::clone(&comm) };
    let (mut recorder, mut course) = (None, None);
    // The others get the news before a thread is waited for that may be waiting for data.
    let mut follow = |source, pool| {
        std::thread::scope(|scope| {
            let feed = Feed::new(scope, source, pool);
            let outcome = training.run(&mut start, feed, test, observe, &mut recorder, &mut course);
            let outcome = outcome.inspect_err(|error| {
                comm.abort(chain(error));
                if let Some(recorder) = &mut recorder {
                    recorder.fail(chain(error));
                }
            });
            training.leave(&outcome, std::mem::take(&mut start), course.take());
            outcome
        })
    };
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    match config.threads {
        None => follow(source, None),
        // The preparation of the next step has threads of its own: the others may be waiting for it.
        Some(threads) => match (pool(threads), pool(threads)) {
            (Ok(pool), Ok(ahead)) => pool.install(|| follow(source, Some(&ahead))),
            (Err(source), _) | (_, Err(source)) => {
                let error = TrainError::Threads { threads, source };
                comm.abort(chain(&error));
                Err(error)
            }
        },
    }
}

/// The figures of a source that is read to its end.
struct Read {
    audits: Vec<Audit>,
    waited: Duration,
    replaced: u64,
    train_s: f64,
    parameters: usize,
    tuned: Option<Tuned>,
    trained_parameters: usize,
}

struct Training<'a> {
    config: &'a TrainConfig,
    /// All but the start.
    persistence: Persistence,
    comm: Arc<Comm>,
}

impl Training<'_> {
    fn run(
        &self,
        start: &mut Start,
        mut feed: Feed<'_, '_>,
        test: Option<&dyn Rows>,
        observe: &mut (dyn FnMut(Progress) + Send),
        recorder: &mut Option<Recorder>,
        course: &mut Option<(TrainState, Settings)>,
    ) -> Result<Outcome, TrainError> {
        let (config, comm) = (self.config, &self.comm);
        let ranks = self.check()?;
        let spec = InputSpec::from_schema(&feed.schema(), &config.input)?;
        let test_spec = test.map(|test| self.test_spec(&spec, test)).transpose()?;
        let (model, device) = self.model(&spec)?;
        let (parameters, trained_parameters) = (model.parameter_count(), model.trained_count());
        let schedule = self.schedule(feed.source().steps_per_epoch());
        let mut settings = self.agree(start, &spec, feed.source(), test, &model)?;
        let tuned = self.tune(start)?;
        if let Some(tuned) = &tuned {
            // The same on all ranks: each has it of rank 0, or of measurements that all agreed on.
            settings.insert(ALL_REDUCE.to_owned(), json!(tuned.table).to_string());
        }
        let table = tuned.as_ref().map(|tuned| &tuned.table);
        let tracer = match &self.persistence.tracer {
            Some(tracer) => tracer.clone(),
            None if config.traces => Tracer::on(),
            None => Tracer::off(),
        };
        let engine = self.engine(model, device, ranks, start, &settings, table)?.with_tracer(tracer.clone());
        let checkpoint = match std::mem::take(start) {
            Start::Checkpoint(checkpoint) => Some(*checkpoint),
            Start::Seed | Start::Weights(_) | Start::Partly { .. } => None,
        };
        let checkpoint = checkpoint.as_ref();
        // From here on it is this state that is left to another group.
        let (state, settings) = course.insert((self.state(engine, checkpoint), settings));
        compare(comm, &state.engine.digests()?, "at the start")?;
        if let Some(recording) = &self.persistence.recording {
            let engine = &mut state.engine;
            *recorder =
                Some(self.recorder(recording, ranks, settings, engine, checkpoint, schedule.steps)?);
        }
        let per_epoch = schedule.steps_per_epoch;
        let preparer = Preparer {
            spec: spec.clone(),
            ranks,
            rank: comm.rank(),
            augmentation: config.augmentation,
            seed: config.seed,
            device: state.engine.device().clone(),
            place: config.preparation.unwrap_or_else(|| Preparation::of(config.device)),
            digests: recorder.as_ref().map(|recorder| InputDigests { every: recorder.every(), per_epoch }),
        };
        let mesh = (state.engine.zero() != Zero::Nothing).then(|| state.engine.mesh().clone());
        let before = (state.account.steps, state.account.samples);
        let keeper = self.keeper(ranks, checkpoint);
        let started = Instant::now();
        let mut steps = Steps {
            training: self,
            settings,
            state,
            recorder,
            observe,
            keeper,
            schedule,
            ranks,
            shape: spec.shape(),
            tracer,
            mesh,
            most: Usage::default(),
            started,
            laps: Laps(started),
            before,
            stragglers: StragglerWatch::new(started, comm.run(waited_for)?),
            rank_clock: RankClock::of(feed.source()),
            straggler: None,
        };
        if config.guard.on_bad_step == OnBadStep::RollBack && checkpoint.is_none() {
            steps.first_checkpoint()?;
        }
        feed.begin(preparer);
        steps.restart_clocks();
        match steps.run(&mut feed)? {
            Next::Step => {}
            Next::Stop => {
                let trace = gather_trace(&steps.tracer, comm)?;
                let (trained, of) = (steps.state.account.steps, schedule.steps);
                return Ok(Outcome::Stopped(Stopped { steps: trained, of, trace }));
            }
            Next::Pause => {
                steps.state.engine.settle()?;
                return Ok(Outcome::Paused(steps.state.account.steps));
            }
        }
        let train_s = steps.train_s();
        let (audits, waited, replaced) = feed.finish();
        steps.last_checkpoint()?;
        let read = Read { audits, waited, replaced, train_s, parameters, trained_parameters, tuned };
        self.finish(steps, test.zip(test_spec.as_ref()), read)
    }

    /// Refuses settings that contradict each other, or that this number of ranks cannot have.
    fn check(&self) -> Result<VirtualRanks, TrainError> {
        let (config, world) = (self.config, self.comm.world());
        let virtual_ranks = config.virtual_ranks;
        if world > virtual_ranks {
            return Err(TrainError::TooManyRanks { world, virtual_ranks });
        }
        let refusal =
            config.reduction.refusal(config.optimizer).or(config.slicing.zero.refusal(config.reduction));
        if let Some(refusal) = refusal.or(config.reduce_dtype.refusal(config.reduction)) {
            return Err(TrainError::Reduction(refusal));
        }
        check_groups(config.slicing, &self.comm)?;
        let by_steps = self.persistence.checkpoints.as_ref().and_then(|it| it.every_steps);
        if config.guard.on_bad_step == OnBadStep::RollBack && by_steps.is_none() {
            return Err(TrainError::NothingToGoBackTo);
        }
        Ok(VirtualRanks { count: virtual_ranks, world })
    }

    /// The untrained model for samples of this shape, and its device.
    fn model(&self, spec: &InputSpec) -> Result<(Model, burn::tensor::Device), TrainError> {
        let config = self.config;
        let device = config.device.open()?;
        let is_image = matches!(spec.shape(), InputShape::Image(_));
        if let Some(what) = for_images(config).filter(|_| !is_image) {
            return Err(ModelError::NotOfImages { what, given: spec.shape() }.into());
        }
        config.precision.check(&device)?;
        let mut model =
            adapted_model(spec.shape(), spec.classes(), config.model, config.lora.as_ref(), &device)?;
        model.freeze(&config.freeze)?;
        Ok((model, device))
    }

    /// The learning rates of all steps.
    fn schedule(&self, steps_per_epoch: u64) -> Schedule {
        let config = self.config;
        let steps = steps_per_epoch * u64::from(config.epochs);
        let warm_up_steps = (f64::from(config.warm_up_epochs) * steps_per_epoch as f64).round() as u64;
        Schedule {
            peak: config.rate,
            warm_up_steps: warm_up_steps.min(steps),
            steps,
            steps_per_epoch,
            decline: config.decline,
        }
    }

    /// The state of the training before its next step.
    fn state(&self, engine: Engine, checkpoint: Option<&Checkpoint>) -> TrainState {
        let so_far = checkpoint.map(|checkpoint| &checkpoint.manifest.progress);
        TrainState {
            engine,
            account: so_far.map_or_else(Account::default, Account::resumed),
            guard: match so_far {
                None => Guard::new(self.config.guard),
                Some(so_far) => Guard::resumed(self.config.guard, so_far),
            },
            plateau: match self.config.decline {
                LrDecay::Plateau(how) => {
                    let kept = so_far.and_then(|so_far| so_far.plateau);
                    Some(kept.unwrap_or_else(|| Plateau::new(how, self.config.rate.into())))
                }
                _ => None,
            },
            place: checkpoint.map(|checkpoint| checkpoint.manifest.place),
            is_whole: true,
        }
    }

    /// Compares the trained weights, evaluates them, and sums up the training.
    fn finish(
        &self,
        steps: Steps<'_>,
        test: Option<(&dyn Rows, &InputSpec)>,
        read: Read,
    ) -> Result<Outcome, TrainError> {
        let comm = &self.comm;
        let samples_here = steps.samples_here();
        let Steps { state, recorder, keeper, tracer, mesh, most, .. } = steps;
        let TrainState { engine, account, .. } = state;
        let running = engine.averaged_running()?;
        let memory = most.with(engine.most_memory());
        compare(comm, &engine.digests()?, "at the end")?;
        let (weights, digest) = self.last_weights(engine, &running)?;
        if let Some(recorder) = recorder.as_mut() {
            recorder.note_checkpoints(keeper.written());
            recorder.finish(digest)?;
        }
        let trace = gather_trace(&tracer, comm)?;
        let bytes_sent = comm.run(|collective| Ok(collective.bytes_sent()))?;
        let waited_for = comm.run(waited_for)?;
        // Nothing of the trained weights is lost by test data that cannot be read.
        let evaluated = match test {
            Some((test, spec)) if test.row_count() > 0 => {
                evaluate(engine, &running, spec, test, comm).map(Some)
            }
            _ => Ok(None),
        };
        let evaluated = evaluated.inspect_err(|error| comm.abort(chain(error)));
        let (evaluation, unevaluated) = match evaluated {
            Ok(evaluation) => (evaluation, None),
            Err(error) => (None, Some(Arc::new(error))),
        };
        Ok(Outcome::Trained(Box::new(Trained {
            weights,
            digest,
            loss_per_epoch: account.means(),
            evaluation,
            unevaluated,
            most_rows: engine.most_rows(),
            memory,
            mesh,
            audits: read.audits,
            steps: account.steps,
            skipped_steps: account.skipped,
            overflows: account.overflows,
            loss_scale: engine.loss_scale(),
            undone_steps: account.undone,
            samples: account.samples,
            samples_here,
            replaced_here: read.replaced,
            train_s: read.train_s,
            wait_s: read.waited.as_secs_f64(),
            checkpoints: keeper.costs(),
            checkpoint_bytes: keeper.bytes().to_vec(),
            compression: engine.compression(),
            trace,
            bytes_sent,
            all_reduce: read.tuned,
            waited_for,
            parameters: read.parameters,
            trained_parameters: read.trained_parameters,
        })))
    }

    /// Leaves this rank's state of a training, with which another group can continue.
    fn leave(
        &self,
        outcome: &Result<Outcome, TrainError>,
        start: Start,
        course: Option<(TrainState, Settings)>,
    ) {
        let Some(legacy) = &self.persistence.legacy else { return };
        // A record is known to be whole only where a checkpoint is.
        let is_recorded = self.persistence.recording.is_some();
        let is_lost = match outcome {
            Err(error) => matches!(error, TrainError::Collective(_)),
            // Only its evaluation remains.
            Ok(Outcome::Trained(trained)) => {
                matches!(trained.unevaluated.as_deref(), Some(TrainError::Collective(_)))
            }
            Ok(Outcome::Paused(_) | Outcome::Stopped(_)) => false,
        };
        if matches!(outcome, Ok(Outcome::Paused(_))) || is_lost && !is_recorded {
            let run = self.persistence.checkpoints.as_ref().map(|it| it.shelf.run().to_string());
            legacy.leave(match (course, start) {
                (Some((course, settings)), _) => course.remains(run.unwrap_or_default(), &settings),
                // The state it was handed, and had not begun with.
                (None, Start::Checkpoint(handed)) => handed.into_remains(),
                (None, Start::Seed | Start::Weights(_) | Start::Partly { .. }) => None,
            });
        }
    }

    /// The trained weights, and their digest.
    fn last_weights(
        &self,
        engine: &mut Engine,
        running: &Running,
    ) -> Result<(Option<Weights>, Digest), TrainError> {
        let comm = &self.comm;
        if !engine.gathers() {
            let parameters = engine.parameters()?;
            let weights = engine.model().name_weights(parameters, running);
            let digest = weights.digest();
            compare(comm, &[digest], "at the end, with its running numbers")?;
            return Ok((Some(weights), digest));
        }
        let all = engine.parameters_of_first()?;
        let weights = all.map(|parameters| engine.model().name_weights(parameters, running));
        let mine = weights.as_ref().map_or(Vec::new(), |weights| weights.digest().0.to_vec());
        let heard = comm.run(move |collective| collective.broadcast(0, &mine))?;
        let digest = heard.bytes().try_into().map_err(|_| {
            let what = format!("{} bytes of a digest", heard.bytes().len());
            CollectiveError::Malformed { rank: 0, what }
        })?;
        Ok((weights, Digest(digest)))
    }

    /// The engine with the numbers to begin with, which must be of this training.
    fn engine(
        &self,
        model: Model,
        device: burn::tensor::Device,
        ranks: VirtualRanks,
        start: &mut Start,
        settings: &Settings,
        table: Option<&TuningTable>,
    ) -> Result<Engine, TrainError> {
        let config = self.config;
        if let Start::Checkpoint(checkpoint) = start {
            same_training(checkpoint, settings, self.persistence.recording.is_some(), &self.comm)?;
        }
        let rule = Rule { optimizer: config.optimizer, clip: config.clip };
        let sums = self.device_sums(&device)?;
        let (key, comm) = (Key::new(config.seed), Arc::clone(&self.comm));
        let mut engine = Engine::blank(model, config.slicing, device, ranks, rule, key, comm)
            .with_reduction(config.reduction)
            .with_reduce_dtype(config.reduce_dtype)
            .with_precision(config.precision)
            .with_loss_scale(config.loss_scale);
        if let Some(table) = table {
            engine = engine.with_algorithms(table.clone());
        }
        if let Some(sums) = sums {
            engine = engine.with_device_sums(sums);
        }
        match start {
            Start::Checkpoint(checkpoint) => engine.resume(checkpoint)?,
            Start::Weights(weights) if config.lora.is_none() => engine.begin_with(weights, &[])?,
            Start::Seed | Start::Weights(_) | Start::Partly { .. } => {
                begin(&mut engine, config.seed, &self.comm)?;
                match start {
                    Start::Weights(weights) => engine.begin_with(weights, &[])?,
                    Start::Partly { weights, skip } => engine.begin_with(weights, skip)?,
                    Start::Seed | Start::Checkpoint(_) => {}
                }
            }
        }
        Ok(engine)
    }

    fn keeper(&self, ranks: VirtualRanks, checkpoint: Option<&Checkpoint>) -> CheckpointManager {
        let Persistence { checkpoints, stop, pause, .. } = &self.persistence;
        let (slicing, resumed) = (self.config.slicing, checkpoint.and_then(Checkpoint::resumed));
        let keeper = CheckpointManager::new(
            Arc::clone(&self.comm),
            ranks,
            slicing,
            checkpoints.clone(),
            stop.clone(),
            resumed,
        );
        keeper.with_pause(pause.clone())
    }

    /// Notes the outcome of the steps.
    fn recorder(
        &self,
        recording: &Recording,
        ranks: VirtualRanks,
        settings: &Settings,
        engine: &mut Engine,
        checkpoint: Option<&Checkpoint>,
        steps: u64,
    ) -> Result<Recorder, TrainError> {
        let stored = checkpoint.filter(|checkpoint| checkpoint.is_stored).map(|checkpoint| checkpoint.id);
        let (config, id) = (self.config, checkpoint.map(|checkpoint| checkpoint.id));
        let device = config.device.kind();
        let beginning = Beginning {
            step: id.map_or(0, |id| id.step),
            checkpoint: stored,
            weights: digest_of(engine)?,
            of: steps,
            is_exact: config.reduction == Reduction::Exact && device == "cpu",
            device,
        };
        Recorder::begin(recording, &self.comm, ranks, &kept(settings), &MAY_CHANGE, beginning)
    }

    /// The test data may lay its columns out differently, but must look the same to the model.
    fn test_spec(&self, spec: &InputSpec, test: &dyn Rows) -> Result<InputSpec, TrainError> {
        let features = match spec.shape() {
            InputShape::Sparse(features) => Some(features),
            _ => self.config.input.features,
        };
        let options = InputOptions { classes: Some(spec.classes()), features, ..self.config.input.clone() };
        let schema = test.schema();
        let test_spec = InputSpec::from_schema(&schema, &options)?;
        let test_spec = test_spec.for_model_of(spec.shape(), &schema);
        if test_spec.shape() != spec.shape() {
            let (test, train) = (test_spec.shape(), spec.shape());
            let message = format!("its samples have the shape {test:?}, those trained on {train:?}");
            return Err(TrainError::Rows(message.into()));
        }
        if test_spec.has_text_labels() != spec.has_text_labels() {
            let message = "the labels of one are text, and those of the other are numbers";
            return Err(TrainError::Rows(message.into()));
        }
        Ok(test_spec)
    }

    /// Compares everything that must be equal on all ranks before anything is computed.
    fn agree(
        &self,
        start: &Start,
        spec: &InputSpec,
        source: &dyn StepSource,
        test: Option<&dyn Rows>,
        model: &Model,
    ) -> Result<Settings, TrainError> {
        let (config, per_epoch) = (self.config, source.steps_per_epoch());
        let first_weights = match start {
            Start::Weights(weights) => json!(weights.digest()),
            Start::Partly { weights, skip } => {
                let skip: Vec<String> = skip.iter().map(ToString::to_string).collect();
                json!([weights.digest(), skip])
            }
            Start::Seed => json!("of the seed"),
            Start::Checkpoint(checkpoint) => {
                let first = checkpoint.manifest.settings.get("first weights");
                first.and_then(|first| serde_json::from_str(first).ok()).unwrap_or_default()
            }
        };
        let checkpoints = match &self.persistence.checkpoints {
            None => json!("none"),
            Some(Checkpoints { every_steps: None, .. }) => json!("now and then"),
            Some(Checkpoints { every_steps: Some(every), .. }) => json!(every),
        };
        let record = self.persistence.recording.as_ref().map(|recording| match &recording.purpose {
            Purpose::Write(_) => json!(recording.every),
            Purpose::Compare(id, _) => json!([recording.every, id]),
        });
        let mine = json!({
            "version": env!("CARGO_PKG_VERSION"), "seed": config.seed, "epochs": config.epochs,
            "virtual ranks": config.virtual_ranks, "reduction": config.reduction, "optimizer": config.optimizer, "clipping": config.clip, "dropout": config.model.dropout,
            "model": config.model.kind, "normalisation": config.model.norm, "augmentation": config.augmentation,
            "learning rate": config.rate, "schedule": config.decline, "warm-up epochs": config.warm_up_epochs,
            "bad steps": config.guard, "steps between comparisons": config.compare_every,
            "input": format!("{spec:?}"), "steps per epoch": per_epoch, "device": config.device.kind(),
            "data": source.name(), "first weights": first_weights, "checkpoints": checkpoints, "test samples": test.map(|test| test.row_count()),
            "record": record, "zero": [json!(config.slicing.zero), json!(config.slicing.group)],
        });
        // Checkpoints from before there was a choice say nothing of it.
        let mut mine = mine;
        let back = self.persistence.checkpoints.as_ref().and_then(|it| it.every_steps);
        if config.guard.on_bad_step == OnBadStep::RollBack {
            mine["steps gone back by"] = json!(back);
        }
        let (schema, test_schema) = (source.schema(), test.map(|test| test.schema()));
        if let Some(transforms) = schema.metadata().get(TRANSFORMS) {
            mine["transforms"] =
                json!([transforms, test_schema.as_ref().and_then(|test| test.metadata().get(TRANSFORMS))]);
        }
        // With adapters all else is frozen.
        if !config.freeze.is_empty() {
            mine["frozen"] = json!(model.frozen());
        }
        if let Some(Lora { rank, alpha, .. }) = &config.lora {
            let names = model.parameter_names();
            let layers: Vec<&str> = names.iter().filter_map(|name| name.strip_suffix(".lora_a")).collect();
            mine["lora"] = json!({ "rank": rank, "alpha": alpha, "layers": layers });
        }
        if config.precision != Precision::F32 {
            mine["precision"] = json!(config.precision);
        }
        if config.reduce_dtype != ReduceDtype::F32 {
            mine["reduction in"] = json!(config.reduce_dtype);
        }
        if config.precision == Precision::F16 {
            mine["first loss scale"] = json!(config.loss_scale.factor());
        }
        // The table itself is agreed on later, and is then remembered in its place.
        if self.chooses_algorithm() && config.all_reduce != AllReduce::BuiltIn {
            mine[ALL_REDUCE] = json!(config.all_reduce.name());
        }
        if config.transport != Transport::Host {
            mine["transport"] = json!("nccl");
        }
        let settings = agree_on(&self.comm, &mine)?;
        let (on_cpu, is_exact) = (config.device.kind() == "cpu", config.reduction == Reduction::Exact);
        agree_on_bits(&self.comm, on_cpu, is_exact, false)?;
        Ok(settings)
    }
}

/// Whether the ranks form the groups that are asked for; says which, if there are several.
pub(crate) fn check_groups(slicing: Slicing, comm: &Comm) -> Result<(), TrainError> {
    let mesh = Mesh::new(comm.hosts(), slicing.group, comm.rank()).map_err(TrainError::Groups)?;
    if slicing.zero != Zero::Nothing && mesh.count() > 1 && comm.rank() == 0 {
        info!(%mesh, "each group of ranks has all numbers");
    }
    Ok(())
}

/// The requested options that only images have.
fn for_images(config: &TrainConfig) -> Option<&'static str> {
    if config.augmentation != Augmentation::None {
        Some("augmentation (--augment)")
    } else if config.model.norm != Norm::Batch {
        Some("another normalisation (--norm)")
    } else {
        None
    }
}

/// The events of all ranks, on rank 0.
fn gather_trace(tracer: &Tracer, comm: &Comm) -> Result<Vec<Value>, CollectiveError> {
    let mine = serde_json::to_vec(&tracer.to_json(comm.rank())).expect("events serialize");
    comm.run(move |collective| {
        let (rank, world) = (collective.rank(), collective.world());
        let mut outgoing: Vec<&[u8]> = vec![&[]; world as usize];
        outgoing[0] = &mine;
        let received = collective.exchange(&outgoing)?;
        if rank > 0 {
            return Ok(Vec::new());
        }
        let mut events: Vec<Value> = Vec::new();
        for (from, message) in received.iter().enumerate() {
            let theirs: Vec<Value> = serde_json::from_slice(message.bytes()).map_err(|error| {
                let what = format!("a trace that cannot be read: {error}");
                CollectiveError::Malformed { rank: from as u32, what }
            })?;
            events.extend(theirs);
        }
        Ok(events)
    })
}

#[cfg(test)]
mod tests;
