//! A whole training: agree on the settings, start from the same weights, follow the source step by step, compare at the
//! end. Knows the engine and its neighbours; where data comes from and who connects the ranks is the caller's.

pub mod guard;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use shardfmt::digest::Digest;
use thiserror::Error;
use tracing::warn;

pub use guard::{BadStep, GuardConfig, OnBadStep};

use crate::collective::{Collective, CollectiveError, waited_for};
use crate::data::{InputError, InputOptions, InputSpec, Rows, RowsError, Samples};
use crate::device::{DeviceError, DeviceName};
use crate::engine::{Engine, StepPlan};
use crate::evaluate::{Evaluation, evaluate};
use crate::model::Model;
use crate::optim::{Decline, Optimizer, Rule, Schedule};
use crate::random::Key;
use crate::reduce::{Comm, VirtualRanks};
use crate::source::{Audit, SourceError, Step, StepSource};
use crate::weights::Weights;
use guard::{Guard, Verdict};

/// What decides the weights, apart from the data; and how they are computed.
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
    /// What to do about a step whose loss is no number, or far too high. Default stop at what is no number.
    pub guard: GuardConfig,
    /// After every how many steps ranks compare their weights, besides the first and the last. Default 100; 0 is never.
    pub compare_every: u64,
    /// The length that a longer gradient, all blocks together, is brought to. Default none.
    pub clip: Option<f32>,
    /// Which share of what enters the last layer is left out while training, from 0 and below 1. Default 0.
    pub dropout: f32,
    /// The highest learning rate. Default 0.1.
    pub rate: f32,
    /// How it falls. Default half a cosine.
    pub decline: Decline,
    /// Epochs until it is reached. Default 1.
    pub warm_up_epochs: f32,
    /// What the schema does not say.
    pub input: InputOptions,
    /// Where tensors live. Default the CPU.
    pub device: DeviceName,
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
            guard: GuardConfig::default(),
            compare_every: 100,
            clip: None,
            dropout: 0.0,
            rate: 0.1,
            decline: Decline::default(),
            warm_up_epochs: 1.0,
            input: InputOptions::default(),
            device: DeviceName::default(),
            threads: None,
        }
    }
}

/// Why a training ended without weights.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum TrainError {
    /// More processes than shares of a step; start fewer, or begin a run with more virtual ranks.
    #[error(
        "{world} ranks cannot share {virtual_ranks} virtual ranks; start at most {virtual_ranks} ranks, or give --virtual-ranks {world} or more to a new run"
    )]
    TooManyRanks { world: u32, virtual_ranks: u32 },
    /// Ranks were started with different settings or data.
    #[error("rank {rank} differs from rank 0 in {differences}; start all ranks with the same settings")]
    Settings { rank: u32, differences: String },
    /// Ranks hold different weights though they must not: a fault in hardware or in this program.
    #[error(
        "rank {rank} holds other weights than rank 0 in block {block} of the model {moment} ({theirs} against {ours}); the machines compute differently"
    )]
    Diverged { rank: u32, block: usize, moment: String, ours: Digest, theirs: Digest },
    /// A step came to nothing that can be learnt from; the weights are those before it.
    #[error("epoch {epoch}, step {step}: {what}")]
    BadStep { epoch: u32, step: u64, what: BadStep },
    /// Another rank is gone or late.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// Rows cannot be trained on.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Training data cannot be read.
    #[error("training data cannot be read")]
    Source(#[source] SourceError),
    /// Test data cannot be read.
    #[error("test data cannot be read")]
    Rows(#[source] RowsError),
    /// The source gives other shares than this rank's, or counts its samples wrongly.
    #[error("the data source is at odds with the trainer: {0}")]
    Share(String),
    /// The device is not there.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The system has no threads to give.
    #[error("no thread pool of {threads} threads")]
    Threads { threads: usize, source: rayon::ThreadPoolBuildError },
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
    /// The step was bad, and the weights are those before it.
    pub is_skipped: bool,
    /// Length of the gradient, all blocks together, before it was clipped.
    pub gradient_norm: f64,
    /// Learning rate.
    pub rate: f32,
    /// All ranks' samples per second since training began.
    pub samples_per_s: f64,
    /// What this rank did meanwhile.
    #[serde(flatten)]
    pub time: StepTime,
}

/// Where the time of a step went, in seconds. Nothing lies between the parts or between the steps: together they are the time of
/// the training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepTime {
    /// Waiting for the source.
    pub wait_s: f64,
    /// Making numbers of rows, decoding images.
    pub decode_s: f64,
    /// Forward and backward.
    pub compute_s: f64,
    /// Waiting for gradients that were not there when the last backward pass was done, and the update.
    pub update_s: f64,
}

/// A finished training.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The weights with averaged statistics, the same on every rank.
    pub weights: Weights,
    /// Their digest.
    pub digest: Digest,
    /// Mean loss of every epoch.
    pub loss_per_epoch: Vec<f64>,
    /// Figures on the test data, if there was any.
    pub evaluation: Option<Evaluation>,
    /// What this rank read.
    pub audits: Vec<Audit>,
    /// Steps, those that were skipped among them.
    pub steps: u64,
    /// Of these, how many were bad and left the weights as they were.
    pub skipped_steps: u64,
    /// All ranks' samples, all epochs.
    pub samples: u64,
    /// Seconds from the first step to the last.
    pub train_s: f64,
    /// Of these, seconds waited for data.
    pub wait_s: f64,
    /// Payload bytes this rank sent to others.
    pub bytes_sent: u64,
    /// How long all other ranks together waited for each rank in collective operations.
    pub waited_for: Vec<Duration>,
    /// Numbers in the model.
    pub parameters: usize,
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
    let comm = Arc::new(Comm::new(collective));
    let training = Training { config, comm: Arc::clone(&comm) };
    let outcome = match config.threads {
        None => training.run(source, test, observe),
        Some(threads) => match rayon::ThreadPoolBuilder::new().num_threads(threads).build() {
            Ok(pool) => pool.install(|| training.run(source, test, observe)),
            Err(source) => Err(TrainError::Threads { threads, source }),
        },
    };
    outcome.inspect_err(|error| comm.abort(chain(error)))
}

struct Training<'a> {
    config: &'a TrainConfig,
    comm: Arc<Comm>,
}

impl Training<'_> {
    fn run(
        &self,
        source: &mut dyn StepSource,
        test: Option<&dyn Rows>,
        observe: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Trained, TrainError> {
        let (config, comm) = (self.config, &self.comm);
        let (world, virtual_ranks) = (comm.world(), config.virtual_ranks);
        if world > virtual_ranks {
            return Err(TrainError::TooManyRanks { world, virtual_ranks });
        }
        let ranks = VirtualRanks { count: virtual_ranks, world };
        let spec = InputSpec::from_schema(&source.schema(), &config.input)?;
        let test_spec = test.map(|test| self.test_spec(&spec, test)).transpose()?;
        let model = Model::for_input(spec.shape(), spec.classes()).with_dropout(config.dropout);
        let parameters = model.parameter_count();
        let per_epoch = source.steps_per_epoch();
        self.agree(&spec, per_epoch)?;

        let weights = self.first_weights(&model)?;
        let device = config.device.open()?;
        let rule = Rule { optimizer: config.optimizer, clip: config.clip };
        let mut engine =
            Engine::new(model, weights, device, ranks, rule, Key::new(config.seed), Arc::clone(comm));
        let steps = per_epoch * u64::from(config.epochs);
        let warm_up_steps = (f64::from(config.warm_up_epochs) * per_epoch as f64).round() as u64;
        let warm_up_steps = warm_up_steps.min(steps);
        let schedule = Schedule {
            peak: config.rate,
            warm_up_steps,
            steps,
            steps_per_epoch: per_epoch,
            decline: config.decline,
        };

        let started = Instant::now();
        let (mut account, mut guard) = (Account::default(), Guard::new(config.guard));
        let mut laps = Laps(started);
        while let Some(step) = source.next_step().map_err(TrainError::Source)? {
            let wait_s = laps.next();
            let number = u64::from(step.epoch) * per_epoch + step.step;
            let plan = StepPlan { number, samples: step.global_samples, rate: schedule.rate(number) };
            let shares = read_shares(&step, &spec, ranks, comm.rank())?;
            let decode_s = laps.next();
            let mut verdict = Verdict::Take;
            let loss = engine.step(&shares, plan, |loss| {
                verdict = guard.judge(loss);
                verdict == Verdict::Take
            })?;
            let update_s = engine.updating().as_secs_f64();
            let compute_s = laps.next() - update_s;
            if loss.samples != step.global_samples {
                let message = format!("{} samples read of a step of {}", loss.samples, step.global_samples);
                return Err(TrainError::Share(message));
            }
            let mean = loss.sum / loss.samples as f64;
            match verdict {
                Verdict::Take => account.add(&step, loss.sum),
                Verdict::Skip(what) => {
                    warn!(epoch = step.epoch, step = step.step, %what, "a step is skipped");
                    account.skip(&step);
                }
                Verdict::Stop(what) => {
                    return Err(TrainError::BadStep { epoch: step.epoch, step: step.step, what });
                }
            }
            if config.compare_every > 0 && account.steps.is_multiple_of(config.compare_every) {
                let moment = format!("after step {} of epoch {}", step.step, step.epoch);
                compare(comm, &engine.digests(), &moment)?;
            }
            observe(Progress {
                rank: comm.rank(),
                epoch: step.epoch,
                step: step.step,
                steps: per_epoch,
                loss: mean,
                accuracy: loss.correct as f64 / loss.samples as f64,
                is_skipped: verdict != Verdict::Take,
                gradient_norm: loss.gradient_norm,
                rate: plan.rate,
                samples_per_s: account.samples as f64 / started.elapsed().as_secs_f64(),
                time: StepTime { wait_s, decode_s, compute_s, update_s },
            });
        }
        let train_s = started.elapsed().as_secs_f64();

        let statistics = engine.averaged_statistics()?;
        let weights = engine.model().name_weights(&engine.parameters(), &statistics);
        let digest = weights.digest();
        compare(comm, &engine.digests(), "at the end")?;
        compare(comm, &[digest], "at the end, with its statistics")?;
        let evaluation = match (test, &test_spec) {
            (Some(test), Some(spec)) if test.row_count() > 0 => {
                Some(evaluate(&engine, &statistics, spec, test, comm)?)
            }
            _ => None,
        };
        Ok(Trained {
            weights,
            digest,
            loss_per_epoch: account.means(),
            evaluation,
            audits: source.audits(),
            steps: account.steps,
            skipped_steps: account.skipped,
            samples: account.samples,
            train_s,
            wait_s: source.waited().as_secs_f64(),
            bytes_sent: comm.run(|collective| Ok(collective.bytes_sent()))?,
            waited_for: comm.run(waited_for)?,
            parameters,
        })
    }

    /// The test data may lay its columns out differently, but must look the same to the model.
    fn test_spec(&self, spec: &InputSpec, test: &dyn Rows) -> Result<InputSpec, TrainError> {
        let options = InputOptions { classes: Some(spec.classes()), ..self.config.input.clone() };
        let test_spec = InputSpec::from_schema(&test.schema(), &options)?;
        if test_spec.shape() != spec.shape() {
            let (test, train) = (test_spec.shape(), spec.shape());
            let message = format!("its samples have the shape {test:?}, those trained on {train:?}");
            return Err(TrainError::Rows(message.into()));
        }
        Ok(test_spec)
    }

    /// Compares everything that must be equal on all ranks before anything is computed.
    fn agree(&self, spec: &InputSpec, per_epoch: u64) -> Result<(), TrainError> {
        let config = self.config;
        let mine = json!({
            "version": env!("CARGO_PKG_VERSION"), "seed": config.seed, "epochs": config.epochs,
            "virtual ranks": config.virtual_ranks, "optimizer": config.optimizer, "clipping": config.clip, "dropout": config.dropout,
            "learning rate": config.rate, "schedule": config.decline, "warm-up epochs": config.warm_up_epochs,
            "bad steps": config.guard, "steps between comparisons": config.compare_every,
            "input": format!("{spec:?}"), "steps per epoch": per_epoch, "device": config.device.to_string(),
        });
        let bytes = mine.to_string().into_bytes();
        let all = self.comm.run(move |collective| collective.all_gather(&bytes))?;
        let settings: Vec<BTreeMap<String, Value>> =
            all.iter().map(|theirs| serde_json::from_slice(theirs.bytes()).unwrap_or_default()).collect();
        for (rank, theirs) in settings.iter().enumerate() {
            let differences: Vec<String> = settings[0]
                .iter()
                .filter(|(name, ours)| theirs.get(*name) != Some(ours))
                .map(|(name, ours)| {
                    format!("{name} ({} against {ours})", theirs.get(name).unwrap_or(&Value::Null))
                })
                .collect();
            if !differences.is_empty() {
                return Err(TrainError::Settings { rank: rank as u32, differences: differences.join(", ") });
            }
        }
        Ok(())
    }

    /// Rank 0's, by block, compared on all ranks.
    fn first_weights(&self, model: &Model) -> Result<Vec<Vec<f32>>, TrainError> {
        let mine = if self.comm.rank() == 0 { model.initial(self.config.seed).concat() } else { Vec::new() };
        let received =
            self.comm.run(move |collective| collective.broadcast(0, bytemuck::cast_slice(&mine)))?;
        let count = model.parameter_count();
        let flat = received.numbers::<f32>().filter(|numbers| numbers.len() == count).ok_or_else(|| {
            let what = format!("{} bytes for {count} parameters", received.bytes().len());
            CollectiveError::Malformed { rank: 0, what }
        })?;
        let mut flat = flat.iter().copied();
        let mut take = |count: usize| flat.by_ref().take(count).collect::<Vec<f32>>();
        let lengths = model.blocks.iter().map(|block| block.parameters().iter().map(|it| it.len()).sum());
        let weights: Vec<Vec<f32>> = lengths.map(&mut take).collect();
        let digests: Vec<Digest> =
            weights.iter().map(|block| Digest::of(bytemuck::cast_slice(block))).collect();
        compare(&self.comm, &digests, "at the start")?;
        Ok(weights)
    }
}

/// Compares the digests of all blocks on all ranks.
fn compare(comm: &Comm, ours: &[Digest], moment: &str) -> Result<(), TrainError> {
    let mine: Vec<u8> = ours.iter().flat_map(|digest| digest.0).collect();
    let all = comm.run(move |collective| collective.all_gather(&mine))?;
    let digest = |bytes: &[u8]| Digest(bytes.try_into().unwrap_or_default());
    for (rank, theirs) in all.iter().enumerate() {
        let pairs = all[0].bytes().chunks(32).zip(theirs.bytes().chunks(32)).enumerate();
        if let Some((block, (ours, theirs))) = pairs.into_iter().find(|(_, (ours, theirs))| ours != theirs) {
            let (ours, theirs) = (digest(ours), digest(theirs));
            return Err(TrainError::Diverged {
                rank: rank as u32,
                block,
                moment: moment.to_owned(),
                ours,
                theirs,
            });
        }
    }
    Ok(())
}

/// The samples of this rank's virtual ranks, checked to be theirs.
fn read_shares(
    step: &Step,
    spec: &InputSpec,
    ranks: VirtualRanks,
    rank: u32,
) -> Result<Vec<Samples>, TrainError> {
    let given = step.micro_batches.iter().map(|micro_batch| micro_batch.virtual_rank);
    if !given.clone().eq(ranks.of(rank)) {
        let (given, expected) = (given.collect::<Vec<_>>(), ranks.of(rank));
        return Err(TrainError::Share(format!(
            "micro-batches for virtual ranks {given:?}, not {expected:?}"
        )));
    }
    let read = |batch: &crate::source::MicroBatch| {
        if batch.rows.num_rows() != batch.positions.len() {
            let (rows, positions) = (batch.rows.num_rows(), batch.positions.len());
            return Err(TrainError::Share(format!("{rows} rows at {positions} positions")));
        }
        Ok(spec.read(&batch.rows, &batch.positions)?)
    };
    step.micro_batches.iter().map(read).collect()
}

/// Times that follow each other without a gap, in seconds; holds when the last one ended.
struct Laps(Instant);

impl Laps {
    fn next(&mut self) -> f64 {
        let now = Instant::now();
        (now - std::mem::replace(&mut self.0, now)).as_secs_f64()
    }
}

/// What has been trained on so far.
#[derive(Debug, Default)]
struct Account {
    steps: u64,
    skipped: u64,
    samples: u64,
    /// By epoch: sum of losses, samples.
    epochs: BTreeMap<u32, (f64, u64)>,
}

impl Account {
    fn add(&mut self, step: &Step, loss: f64) {
        self.steps += 1;
        self.samples += step.global_samples;
        let (sum, samples) = self.epochs.entry(step.epoch).or_default();
        *sum += loss;
        *samples += step.global_samples;
    }

    /// A step that nothing was learnt from: it is counted, its loss is not.
    fn skip(&mut self, step: &Step) {
        self.steps += 1;
        self.skipped += 1;
        self.samples += step.global_samples;
    }

    fn means(&self) -> Vec<f64> {
        self.epochs.values().map(|(sum, samples)| sum / *samples as f64).collect()
    }
}

/// The error with its causes, for ranks that see only text.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
