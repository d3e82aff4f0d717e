//! The command line, and what it means for the library.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use shardd_client::loader::LastBatch;
use shardd_client::protocol::RunId;
use shardd_client::stores::StoreArgs;
use shardd_trainer::checkpoint::Resume;
use shardd_trainer::collective::nccl::{NcclError, Transport};
use shardd_trainer::compress::Compression;
use shardd_trainer::data::InputOptions;
use shardd_trainer::device::{DeviceError, DeviceName, Precision};
use shardd_trainer::engine::LossScale;
use shardd_trainer::launched::master_of_env;
use shardd_trainer::models::{GptSize, ModelKind, ModelOptions, Norm};
use shardd_trainer::optim::{Decline, Optimizer, Scaling};
use shardd_trainer::reduce::{ReduceDtype, Reduction};
use shardd_trainer::train::{GuardConfig, OnBadStep, Preparation};
use shardd_trainer::{Slicing, Zero};
use shardfmt::DatasetRef;
use thiserror::Error;

use crate::bench_comm::BenchCommArgs;
use crate::export::Export;
use crate::launch::Launch;
use crate::plan::PlanArgs;
use crate::records::{Bisect, Rerun};

/// Trains a small model on a data set of shardd, as one rank of a run
///
/// Start it once per rank with the same settings (RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are understood), or once
/// alone. The weights depend on the data, the plan, the settings and the number of virtual ranks, not on how many ranks there
/// are. Exit codes: 0 trained, 1 failed, 2 asked wrongly, 3 another rank is gone, late or not there.
#[derive(Parser, Debug)]
#[command(name = "shardtrain", version, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    /// Something else than one rank of a training
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Servers to read from, the nearest first
    #[arg(long, value_name = "URL,…", value_delimiter = ',', env = "SHARDD_SERVER")]
    #[arg(default_value = "http://127.0.0.1:7700")]
    pub(crate) server: Vec<String>,

    /// Read a directory or bucket that `shardctl --store` filled, without any server
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) store: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) store_args: StoreArgs,

    /// The plan to follow: its id or the beginning of it
    #[arg(long, value_name = "PLAN", required_unless_present = "dataset")]
    pub(crate) plan: Option<String>,

    /// The data set to train on; its only plan is followed, or one is made with the defaults
    #[arg(long, value_name = "NAME", conflicts_with = "plan")]
    pub(crate) dataset: Option<DatasetRef>,

    /// Name of the run
    #[arg(long, value_name = "NAME", default_value = "train")]
    pub(crate) run: RunId,

    /// This rank, from 0
    #[arg(long, env = "RANK", default_value_t = 0)]
    pub(crate) rank: u32,

    /// How many ranks there are
    #[arg(long, env = "WORLD_SIZE", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) world: u32,

    /// Fixed shares of every step, at least as many as ranks [default: a function of the plan's partitions and the global batch,
    /// 8 for 96 and 64, whatever the number of ranks]
    #[arg(long, value_name = "V")]
    pub(crate) virtual_ranks: Option<u32>,

    /// Where rank 0 listens for the others [default: $MASTER_ADDR:$MASTER_PORT; else where it tells the servers, or with --store
    /// 127.0.0.1:29500]
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) master: Option<String>,

    /// Seconds to wait for all ranks to appear
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) join_timeout: u64,

    /// Seconds a step may wait for a rank before it is called late
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) timeout: u64,

    /// How often to train on every sample
    #[arg(long, default_value_t = 10)]
    pub(crate) epochs: u32,

    /// Samples of a step, of all ranks together [default: 64, or V times --micro-batch-size]
    #[arg(long, value_name = "SAMPLES")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) global_batch_size: Option<u32>,

    /// Samples of a virtual rank in a step, at most; with --global-batch-size it decides how many virtual ranks there are
    #[arg(long, value_name = "SAMPLES", visible_alias = "batch-size")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) micro_batch_size: Option<u32>,

    /// What becomes of samples that do not fill a step
    #[arg(long, value_enum, default_value_t = Rest::Short)]
    pub(crate) last_batch: Rest,

    /// How weights are updated
    #[arg(long, value_enum, default_value_t = OptimizerName::Sgd)]
    pub(crate) optimizer: OptimizerName,

    /// Highest learning rate [default: 0.1 for sgd, 0.001 for adam and adamw, 0.0001 for lion]
    #[arg(long, value_name = "RATE")]
    pub(crate) lr: Option<f32>,

    /// What becomes of the learning rate when a step has other than --lr-samples samples
    #[arg(long, value_enum, default_value_t = ScalingName::None)]
    pub(crate) lr_scaling: ScalingName,

    /// Samples of the steps that --lr was found with
    #[arg(long, value_name = "SAMPLES", default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) lr_samples: u64,

    /// How the learning rate falls after warm-up
    #[arg(long, value_enum, default_value_t = DeclineName::Cosine)]
    pub(crate) schedule: DeclineName,

    /// With --schedule step: epochs after which the learning rate falls [default: 30]
    #[arg(long, value_name = "EPOCHS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) step_epochs: Option<u32>,

    /// With --schedule step: what it is multiplied by [default: 0.1]
    #[arg(long, value_name = "FACTOR")]
    pub(crate) step_factor: Option<f32>,

    /// Leave out this share of what enters the last layer, other numbers in every step
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) dropout: f32,
    /// How gradients are added up: in one order, with the same bits on any number of ranks, or in any
    #[arg(long, value_name = "HOW", default_value = "exact")]
    pub(crate) reduce: ReduceName,

    /// In how many bits gradients are added up and travel: f32, or bf16, rounded after every addition, with the same bits on any number of ranks
    /// with --reduce exact
    #[arg(long, value_name = "f32|bf16", default_value_t)]
    pub(crate) reduce_dtype: ReduceDtype,

    /// Keep slices on each rank, and not all: 1 of what the optimizer remembers, 2 of gradients too, 3 of parameters too (ZeRO). The weights are
    /// the same to the last bit with --reduce exact
    #[arg(long, value_name = "STAGE", default_value = "0")]
    pub(crate) zero: Zero,

    /// With --zero 1 to 3, share slices among so many ranks, of one machine where it has as many; every such group has everything
    /// [default: all ranks]
    #[arg(long, value_name = "RANKS")]
    pub(crate) zero_group: Option<NonZeroU32>,

    /// With --reduce fast, send gradients in fewer bits, and what is left out later: none, bf16, fp16, int8, topk:SHARE or dgc:SHARE
    #[arg(long, value_name = "HOW", default_value_t)]
    pub(crate) compress: Compression,

    /// Which model: the small one for the kind of data, or one of these
    #[arg(long, value_name = "MODEL", default_value = "small")]
    pub(crate) model: ModelName,

    /// Transformer layers of --model gpt [default: 4]
    #[arg(long, value_name = "COUNT")]
    pub(crate) layers: Option<usize>,

    /// Attention heads of --model gpt [default: 4]
    #[arg(long, value_name = "COUNT")]
    pub(crate) heads: Option<usize>,

    /// Numbers per token of --model gpt, a multiple of the heads [default: 128]
    #[arg(long, value_name = "COUNT")]
    pub(crate) width: Option<usize>,

    /// What normalises between the layers of an image model: batch (by virtual rank), sync (by the global batch) or group
    #[arg(long, value_name = "NORM", default_value_t)]
    pub(crate) norm: Norm,

    /// Cut training images out at random places of a margin of black, and mirror every second one
    #[arg(long)]
    pub(crate) augment: bool,

    /// Bring a longer gradient, all layers together, to this length
    #[arg(long, value_name = "LENGTH")]
    pub(crate) clip: Option<f32>,

    /// Share of the last update that sgd keeps [default: 0.9]
    #[arg(long, value_name = "SHARE")]
    pub(crate) momentum: Option<f32>,

    /// Pull of weights (not biases and normalisation) towards zero [default: 0.0005 for sgd, 0 for adam, 0.01 for adamw, 0.1 for lion]
    #[arg(long, value_name = "DECAY")]
    pub(crate) weight_decay: Option<f32>,

    /// Epochs until the highest rate is reached
    #[arg(long, value_name = "EPOCHS", default_value_t = 1.0)]
    pub(crate) warm_up: f32,

    /// What to do about a step whose loss or gradient is infinite or no number, or above --spike
    #[arg(long, value_enum, default_value_t = OnBad::Stop)]
    pub(crate) on_bad_step: OnBad,

    /// A loss is bad that is so many times the mean of the 100 steps before [default: however high it is]
    #[arg(long, value_name = "TIMES")]
    pub(crate) spike: Option<f32>,

    /// Compare the weights of all ranks after every so many steps; 0 for at the start and the end alone
    #[arg(long, value_name = "STEPS", default_value_t = 100)]
    pub(crate) compare_every: u64,

    /// Decides the first weights (and the plan, if --dataset makes one)
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,

    /// Data set to measure accuracy on
    #[arg(long, value_name = "NAME")]
    pub(crate) test_dataset: Option<DatasetRef>,

    /// Directory or bucket of the test data set, if it is not where the training data is
    #[arg(long, value_name = "DIR|URL", requires = "test_dataset")]
    pub(crate) test_store: Option<PathBuf>,

    /// Column of classes, whole numbers from 0
    #[arg(long, value_name = "COLUMN", default_value = "label")]
    pub(crate) label: String,

    /// How many classes there are [default: what the data set says]
    #[arg(long, value_name = "COUNT")]
    pub(crate) classes: Option<usize>,

    /// The value in a tensor that becomes 1 [default: the largest of its integer type]
    #[arg(long, value_name = "VALUE")]
    pub(crate) input_max: Option<f32>,

    /// Width and height that encoded images are brought to
    #[arg(long, value_name = "PIXELS", default_value_t = 32)]
    pub(crate) image_size: usize,

    /// cpu, or in a build with CUDA cuda:N, or cuda for that of LOCAL_RANK
    #[arg(long, default_value_t = DeviceName::Cpu, value_parser = device)]
    pub(crate) device: DeviceName,

    /// What carries gradients from rank to rank: the host, over TCP, or with --reduce fast NCCL, from GPU to GPU
    #[arg(long, value_enum, default_value_t = TransportName::Tcp)]
    pub(crate) transport: TransportName,

    /// In how many bits forward and backward passes are computed: f32, bf16, or f16, with a loss scale that is found while training. Weights, their
    /// updates, losses and statistics have 32 always
    #[arg(long, value_name = "f32|bf16|f16", default_value_t)]
    pub(crate) precision: Precision,

    /// With what gradients are multiplied at first with --precision f16, a power of two; what is too much halves it, at the price of a step [default: 65536]
    #[arg(long, value_name = "SCALE")]
    pub(crate) loss_scale: Option<LossScale>,

    /// Where rows become numbers: on the host, or on the device, of what is stored, a step ahead; the numbers are the same [default: where it is
    /// computed]
    #[arg(long, value_enum, value_name = "WHERE")]
    pub(crate) prepare: Option<Prepare>,

    /// Threads for computing [default: RAYON_NUM_THREADS, or one per processor]
    #[arg(long, value_name = "COUNT")]
    pub(crate) threads: Option<usize>,

    /// Do not fingerprint what was read (saves one hash of every sample)
    #[arg(long)]
    pub(crate) no_audit: bool,

    /// Write what came of it, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Write a line of JSON after every step, to a file or to standard output (-)
    #[arg(long, value_name = "FILE")]
    pub(crate) progress: Option<PathBuf>,

    /// Write what all ranks, and the nodes they read from, did when to this file, for Perfetto (ui.perfetto.dev); only rank 0 writes it, all ranks give it
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Tell on standard error how it is going (rank 0 does), so many seconds apart; 0: never [default: 10 on a terminal, else never]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) status: Option<u64>,

    /// Keep checkpoints in this directory or bucket, by the name of the run, and go on from the newest one that is there
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) checkpoints: Option<PathBuf>,

    /// Write a checkpoint after every so many steps
    #[arg(long, value_name = "STEPS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) checkpoint_every: Option<u64>,

    /// Write a checkpoint when so long has passed since the last one [default: 600, without --checkpoint-every]
    #[arg(long, value_name = "SECONDS", requires = "checkpoints")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) checkpoint_seconds: Option<u64>,

    /// How many checkpoints stay, the newest
    #[arg(long, value_name = "COUNT", requires = "checkpoints", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep: u32,

    /// Where to go on: auto (the newest checkpoint), never (a run that has one is refused), or the checkpoint of a step
    #[arg(long, value_name = "auto|never|STEP", requires = "checkpoints", default_value = "auto", value_parser = resume)]
    pub(crate) resume: Resume,

    /// Write down what the training is and what each step comes to in this directory or bucket, by the name of the run (see `shardctl
    /// runs`); without a place, in that of --checkpoints
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) record: Option<Option<PathBuf>>,

    /// Digest weights, gradients and inputs for the record in every so-many-th step
    #[arg(long, value_name = "STEPS", requires = "record", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) record_every: u64,

    /// Begin with the weights of this file, by their names (every rank reads it); a checkpoint comes first
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) init: Option<PathBuf>,

    /// Process that started this one: the ranks of a launcher end with it
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) launched_by: Option<u32>,

    /// How many ranks the training began with, which decides how many virtual ranks it has where nothing else does
    #[arg(long, value_name = "COUNT", hide = true)]
    pub(crate) launched_ranks: Option<u32>,

    /// Save the weights (rank 0 does)
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) save: Option<PathBuf>,

    /// What was said of the training on the command line, for its record
    #[arg(skip)]
    pub(crate) told: Vec<String>,
}

/// Flags about who trains where and what is written, which decide nothing of what is trained. Data and virtual ranks are in a record by
/// themselves.
const ELSEWHERE: [&str; 31] = [
    "server",
    "store",
    "store_endpoint",
    "store_region",
    "store_ca",
    "store_anonymous",
    "plan",
    "dataset",
    "run",
    "rank",
    "world",
    "virtual_ranks",
    "master",
    "join_timeout",
    "timeout",
    "compare_every",
    "test_dataset",
    "test_store",
    "threads",
    "no_audit",
    "report",
    "progress",
    "trace",
    "status",
    "launched_by",
    "launched_ranks",
    "save",
    "checkpoints",
    "checkpoint_seconds",
    "keep",
    "resume",
];

/// What was said of the training, as it would be said again.
fn told(matches: &ArgMatches) -> Vec<String> {
    let mut told = Vec::new();
    for argument in Args::command().get_arguments() {
        let id = argument.get_id().as_str();
        let is_elsewhere = ELSEWHERE.contains(&id) || id.starts_with("record");
        let Some(long) = argument.get_long().filter(|_| !is_elsewhere) else { continue };
        if matches.try_get_raw(id).is_err() || matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        if matches!(argument.get_action(), ArgAction::SetTrue) {
            told.push(format!("--{long}"));
            continue;
        }
        let values = matches.get_raw(id).into_iter().flatten();
        told.extend(values.map(|value| format!("--{long}={}", value.to_string_lossy())));
    }
    told
}

/// Of several ranks of a machine each has the device of its number there.
fn device(text: &str) -> Result<DeviceName, String> {
    let local = || std::env::var("LOCAL_RANK").ok().filter(|value| !value.is_empty());
    match (text, local()) {
        ("cuda", Some(local)) => {
            let number = local.parse().map_err(|_| format!("LOCAL_RANK is {local:?}, which is no number"))?;
            Ok(DeviceName::Cuda(number))
        }
        _ => text.parse().map_err(|error: DeviceError| error.to_string()),
    }
}

fn resume(text: &str) -> Result<Resume, String> {
    match text {
        "auto" => Ok(Resume::Auto),
        "never" => Ok(Resume::Never),
        step => {
            step.parse().map(Resume::Step).map_err(|_| "use auto, never or the number of a step".to_owned())
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rest {
    /// A smaller step of its own, weighted by samples
    Short,
    /// Left out of the epoch
    Drop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportName {
    /// Through the memory of the host
    Tcp,
    /// NVIDIA's library, a GPU for each rank
    Nccl,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Prepare {
    /// Between two steps
    Host,
    /// While the step before is computed
    Device,
}

impl From<Prepare> for Preparation {
    fn from(place: Prepare) -> Preparation {
        match place {
            Prepare::Host => Preparation::Host,
            Prepare::Device => Preparation::Device,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OptimizerName {
    /// Gradient descent with momentum
    Sgd,
    /// Adam
    Adam,
    /// Adam with its weight decay apart from the gradient
    #[value(name = "adamw")]
    AdamW,
    /// Steps by the sign of the momentum
    Lion,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnBad {
    /// End the training
    Stop,
    /// Go on with the weights from before it; end the training after ten in a row
    Skip,
    /// Go back to the last checkpoint of --checkpoint-every and go on with the data that follows; end the training after three times to
    /// the same one
    Rollback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReduceName {
    /// In one fixed order
    Exact,
    /// In any order
    Fast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelName {
    /// Two convolutions for images, two hidden layers for columns, a small gpt for sequences of tokens
    Small,
    /// ResNet-18 for images
    Resnet18,
    /// A transformer that continues sequences of tokens
    Gpt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeclineName {
    /// Half a cosine to zero
    Cosine,
    /// A line to zero
    Linear,
    /// Not at all
    Constant,
    /// By a factor every few epochs
    Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScalingName {
    /// Nothing
    None,
    /// It grows with them
    Linear,
    /// It grows with their square root
    Sqrt,
}

/// What else it does than being a rank.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Run(Launch),
    BenchComm(BenchCommArgs),
    Plan(PlanArgs),
    Rerun(Rerun),
    Bisect(Bisect),
    Export(Export),
}

/// Arguments that are well-formed but cannot be meant.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

impl Args {
    /// What this process was told; ends it where that is no proper question.
    pub(crate) fn of_command_line() -> Args {
        let matches = Args::command().get_matches();
        let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        Args { told: told(&matches), ..args }
    }

    /// What no single argument shows.
    pub(crate) fn check(&self) -> Result<(), UsageError> {
        let complaint = if self.rank >= self.world {
            format!("rank {} is outside a world of {}; ranks count from 0", self.rank, self.world)
        } else if self.image_size == 0 || self.image_size > 4096 {
            format!("--image-size {} is not between 1 and 4096", self.image_size)
        } else if self.input_max.is_some_and(|max| !(max.is_finite() && max > 0.0)) {
            "--input-max must be above 0".to_owned()
        } else if self.model != ModelName::Gpt && (self.layers, self.heads, self.width) != (None, None, None)
        {
            "--layers, --heads and --width are those of --model gpt".to_owned()
        } else if self.momentum.is_some() && self.optimizer != OptimizerName::Sgd {
            "--momentum is that of --optimizer sgd".to_owned()
        } else if (self.step_epochs, self.step_factor) != (None, None) && self.schedule != DeclineName::Step {
            "--step-epochs and --step-factor are those of --schedule step".to_owned()
        } else if self.momentum.is_some_and(|momentum| !(0.0..1.0).contains(&momentum)) {
            "--momentum must be at least 0 and below 1".to_owned()
        } else if self.weight_decay.is_some_and(|decay| !(decay.is_finite() && decay >= 0.0)) {
            "--weight-decay must not be negative".to_owned()
        } else if self.reduce == ReduceName::Exact && self.compress != Compression::None {
            "--compress loses bits, so it needs --reduce fast".to_owned()
        } else if self.zero_group.is_some() && self.zero == Zero::Nothing {
            "--zero-group needs --zero 1, 2 or 3".to_owned()
        } else if self.loss_scale.is_some() && self.precision != Precision::F16 {
            "--loss-scale is for gradients that travel back in 16 bits of f16; give --precision f16, or leave it out".to_owned()
        } else if let Some(refusal) = self.zero.refusal(self.reduction()) {
            refusal.to_owned()
        } else if let Some(refusal) = self.reduce_dtype.refusal(self.reduction()) {
            refusal.to_owned()
        } else if self.transport == TransportName::Nccl && self.zero != Zero::Nothing {
            "NCCL adds up whole gradients, and --zero has each rank add up its slice on the host; leave one of the two out".to_owned()
        } else if self.transport == TransportName::Nccl && self.device == DeviceName::Cpu {
            NcclError::Device(self.device).to_string()
        } else if self.transport == TransportName::Nccl
            && (self.reduction(), self.reduce_dtype) != (Reduction::Fast(Compression::None), ReduceDtype::F32)
        {
            NcclError::Reduction.to_string()
        } else if !(self.warm_up.is_finite() && self.warm_up >= 0.0) {
            "--warm-up must not be negative".to_owned()
        } else if !self.rate().is_finite() || self.rate() <= 0.0 {
            "--lr must be above 0".to_owned()
        } else if self.step_factor.is_some_and(|factor| !(factor.is_finite() && factor > 0.0)) {
            "--step-factor must be above 0".to_owned()
        } else if !(0.0..1.0).contains(&self.dropout) {
            "--dropout must be at least 0 and below 1".to_owned()
        } else if self.spike.is_some_and(|times| !(times.is_finite() && times > 1.0)) {
            "--spike must be above 1".to_owned()
        } else if self.on_bad_step == OnBad::Rollback
            && (self.checkpoints.is_none() || self.checkpoint_every.is_none())
        {
            "--on-bad-step rollback goes back to checkpoints: give --checkpoints and --checkpoint-every"
                .to_owned()
        } else if self.clip.is_some_and(|clip| !(clip.is_finite() && clip > 0.0)) {
            "--clip must be above 0; leave it out to clip nothing".to_owned()
        } else if self.threads == Some(0) {
            "--threads must be at least 1".to_owned()
        } else if self.checkpoint_every.is_some() && self.checkpoints.is_none() {
            "--checkpoint-every is for those who give --checkpoints".to_owned()
        } else if self.record == Some(None) && self.checkpoints.is_none() {
            "--record without a place is for those who give --checkpoints; say where: --record DIR".to_owned()
        } else {
            return Ok(());
        };
        Err(UsageError(complaint))
    }

    fn rate(&self) -> f32 {
        self.lr.unwrap_or(match self.optimizer {
            OptimizerName::Sgd => 0.1,
            OptimizerName::Adam | OptimizerName::AdamW => 0.001,
            OptimizerName::Lion => 0.0001,
        })
    }

    /// The highest rate for steps of `global_batch` samples.
    pub(crate) fn scaled_rate(&self, global_batch: u64) -> f32 {
        let scaling = match self.lr_scaling {
            ScalingName::None => Scaling::None,
            ScalingName::Linear => Scaling::Linear,
            ScalingName::Sqrt => Scaling::Sqrt,
        };
        scaling.rate(self.rate(), global_batch, self.lr_samples)
    }

    pub(crate) fn guard(&self) -> GuardConfig {
        let on_bad_step = match self.on_bad_step {
            OnBad::Stop => OnBadStep::Stop,
            OnBad::Skip => OnBadStep::Skip,
            OnBad::Rollback => OnBadStep::RollBack,
        };
        GuardConfig { on_bad_step, spike: self.spike }
    }

    /// How the rate falls.
    pub(crate) fn decline(&self) -> Decline {
        match self.schedule {
            DeclineName::Cosine => Decline::Cosine,
            DeclineName::Linear => Decline::Linear,
            DeclineName::Constant => Decline::Constant,
            DeclineName::Step => Decline::Step {
                epochs: self.step_epochs.unwrap_or(30),
                factor: self.step_factor.unwrap_or(0.1),
            },
        }
    }

    pub(crate) fn optimizer(&self) -> Optimizer {
        let decay = |default| self.weight_decay.unwrap_or(default);
        match self.optimizer {
            OptimizerName::Sgd => {
                Optimizer::Sgd { momentum: self.momentum.unwrap_or(0.9), weight_decay: decay(5e-4) }
            }
            OptimizerName::Adam => Optimizer::adam(decay(0.0)),
            OptimizerName::AdamW => Optimizer::adamw(decay(0.01)),
            OptimizerName::Lion => Optimizer::lion(decay(0.1)),
        }
    }

    pub(crate) fn last_batch(&self) -> LastBatch {
        match self.last_batch {
            Rest::Short => LastBatch::Short,
            Rest::Drop => LastBatch::Drop,
        }
    }

    pub(crate) fn input(&self) -> InputOptions {
        InputOptions {
            label: self.label.clone(),
            classes: self.classes,
            input_max: self.input_max,
            image_size: self.image_size,
        }
    }

    pub(crate) fn master(&self) -> String {
        self.given_master().unwrap_or_else(|| "127.0.0.1:29500".to_owned())
    }

    /// The same, if anything says so.
    pub(crate) fn given_master(&self) -> Option<String> {
        self.master.clone().or_else(master_of_env)
    }

    /// When checkpoints are written: after how many steps, after how long.
    pub(crate) fn checkpoint_intervals(&self) -> (Option<u64>, Option<Duration>) {
        let seconds = self.checkpoint_seconds.or(self.checkpoint_every.is_none().then_some(600));
        (self.checkpoint_every, seconds.map(Duration::from_secs))
    }

    pub(crate) fn reduction(&self) -> Reduction {
        match self.reduce {
            ReduceName::Exact => Reduction::Exact,
            ReduceName::Fast => Reduction::Fast(self.compress),
        }
    }

    pub(crate) fn slicing(&self) -> Slicing {
        Slicing { zero: self.zero, group: self.zero_group }
    }

    pub(crate) fn transport(&self) -> Transport {
        match self.transport {
            TransportName::Tcp => Transport::Host,
            TransportName::Nccl => Transport::Nccl { timeout: self.timeouts().1 },
        }
    }

    pub(crate) fn model_options(&self) -> ModelOptions {
        let &Args { layers, heads, width, norm, dropout, .. } = self;
        let usual = GptSize::default();
        let size = GptSize {
            layers: layers.unwrap_or(usual.layers),
            heads: heads.unwrap_or(usual.heads),
            width: width.unwrap_or(usual.width),
        };
        let kind = match self.model {
            ModelName::Small => ModelKind::Small,
            ModelName::Resnet18 => ModelKind::Resnet18,
            ModelName::Gpt => ModelKind::Gpt(size),
        };
        ModelOptions { kind, norm, dropout }
    }

    pub(crate) fn timeouts(&self) -> (Duration, Duration) {
        (Duration::from_secs(self.join_timeout), Duration::from_secs(self.timeout.max(1)))
    }
}
