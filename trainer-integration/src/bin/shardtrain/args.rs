//! The flags of a training, and their translation for the library.

mod values;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, Parser};
use serde_json::Value;
use shardd_api::protocol::RunId;
use shardd_client::launcher::{self, Launcher, Place};
use shardd_client::loader::{LastBatch, Transforms, default_cache_dir};
use shardd_store::connect::Connect;
use shardd_trainer::checkpoint::Resume;
use shardd_trainer::collective::nccl::{NcclError, Transport};
use shardd_trainer::compress::Compression;
use shardd_trainer::data::{Attention, InputOptions};
use shardd_trainer::device::{DeviceError, DeviceName, Precision};
use shardd_trainer::dtype::ReduceDtype;
use shardd_trainer::launch_env::variable;
use shardd_trainer::models::{GptSize, ModelKind, ModelOptions, Norm};
use shardd_trainer::nn::Lora;
use shardd_trainer::optim::{LrDecay, Optimizer, ReduceOnPlateau, Scaling};
use shardd_trainer::reduce::{AllReduce, Reduction};
use shardd_trainer::scaling::LossScale;
use shardd_trainer::train::{GuardConfig, OnBadStep};
use shardd_trainer::{NamePattern, Slicing, Zero};
use shardfmt::DatasetRef;
use thiserror::Error;

use crate::log_to::{Facts, LogTo};
use crate::tls::TlsArgs;
pub(crate) use values::{
    AllReduceName, AttentionName, LrDecayName, ModelName, OnBad, OptimizerName, Prepare, ReduceName, Rest,
    ScalingName, TransportName,
};

/// The headings of the help.
const DATA: &str = "Data";
const RANKS: &str = "Ranks and devices";
const BATCHES: &str = "Epochs and batches";
const MODEL: &str = "Model";
const OPTIMIZER: &str = "Optimizer";
const PARALLEL: &str = "Precision and parallelism";
const CHECKPOINTS: &str = "Checkpoints";
const OUTPUT: &str = "Output";

/// The flags of a training.
#[derive(Parser, Debug)]
#[command(name = "shardtrain")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) connect: Connect,

    /// Plan to train on: its id, or a unique prefix of it
    #[arg(help_heading = DATA, long, value_name = "PLAN", required_unless_present = "dataset")]
    pub(crate) plan: Option<String>,

    /// Dataset to train on; uses its only plan, or creates one with default settings
    #[arg(help_heading = DATA, long, value_name = "NAME", conflicts_with = "plan")]
    pub(crate) dataset: Option<DatasetRef>,

    /// Name of the run
    #[arg(help_heading = RANKS, long, value_name = "NAME", default_value = "train")]
    pub(crate) run: RunId,

    /// Rank of this process, from 0 [default: as torchrun, Slurm or MPI set it, else 0]
    #[arg(help_heading = RANKS, long, default_value_t = 0, hide_default_value = true)]
    pub(crate) rank: u32,

    /// Number of ranks [default: as torchrun, Slurm or MPI set it, else 1]
    #[arg(help_heading = RANKS, long, default_value_t = 1, hide_default_value = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) world: u32,

    /// The place in the launch, by the environment.
    #[arg(skip)]
    pub(crate) place: Option<Place>,

    /// Number of virtual ranks, at least the number of ranks. Each computes a fixed share of every step [default: derived from the
    /// plan's partitions and the global batch size, 8 for 96 and 64]
    #[arg(help_heading = RANKS, long, value_name = "V")]
    pub(crate) virtual_ranks: Option<u32>,

    /// Rendezvous address, where rank 0 listens [default: $MASTER_ADDR:$MASTER_PORT; else published through the nodes; with a store
    /// on the first host of a Slurm step, or 127.0.0.1:29500]
    #[arg(help_heading = RANKS, long, value_name = "HOST:PORT")]
    pub(crate) master: Option<String>,

    /// Seconds to wait for all ranks to join
    #[arg(hide_short_help = true, help_heading = RANKS, long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) join_timeout: u64,

    /// Seconds that a step waits for a rank before it fails
    #[arg(hide_short_help = true, help_heading = RANKS, long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) timeout: u64,

    #[command(flatten, next_help_heading = RANKS)]
    pub(crate) tls: TlsArgs,

    /// Number of epochs
    #[arg(help_heading = BATCHES, long, default_value_t = 10)]
    pub(crate) epochs: u32,

    /// Samples in a step, over all ranks [default: 64, or V times --micro-batch-size]
    #[arg(help_heading = BATCHES, long, value_name = "SAMPLES")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) global_batch_size: Option<u32>,

    /// Most samples of a virtual rank in a step; with --global-batch-size it sets the number of virtual ranks
    #[arg(help_heading = BATCHES, long, value_name = "SAMPLES", visible_alias = "batch-size")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) micro_batch_size: Option<u32>,

    /// How to handle the last, incomplete batch of an epoch
    #[arg(hide_short_help = true, help_heading = DATA, long, value_enum, default_value_t = Rest::Short)]
    pub(crate) last_batch: Rest,

    /// Optimizer
    #[arg(help_heading = OPTIMIZER, long, value_enum, default_value_t = OptimizerName::Sgd)]
    pub(crate) optimizer: OptimizerName,

    /// Peak learning rate [default: 0.1 for sgd, 0.001 for adam and adamw, 0.0001 for lion, 0.01 for lamb, 1 for lars]
    #[arg(help_heading = OPTIMIZER, long, value_name = "RATE")]
    pub(crate) lr: Option<f32>,

    /// Scale --lr with the global batch size, relative to --lr-samples
    #[arg(hide_short_help = true, help_heading = OPTIMIZER, long, value_enum, default_value_t = ScalingName::None)]
    pub(crate) lr_scaling: ScalingName,

    /// Global batch size for which --lr is meant
    #[arg(hide_short_help = true, help_heading = OPTIMIZER, long, value_name = "SAMPLES", default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) lr_samples: u64,

    /// Learning rate schedule after warmup
    #[arg(help_heading = OPTIMIZER, long, value_enum, default_value_t = LrDecayName::Cosine)]
    pub(crate) schedule: LrDecayName,

    /// Epochs between decays with --schedule step [default: 30]
    #[arg(hide_short_help = true, help_heading = OPTIMIZER, long, value_name = "EPOCHS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) step_epochs: Option<u32>,

    /// Decay factor with --schedule step [default: 0.1]
    #[arg(hide_short_help = true, help_heading = OPTIMIZER, long, value_name = "FACTOR")]
    pub(crate) step_factor: Option<f32>,

    /// Decay factor with --schedule plateau [default: 0.1]
    #[arg(hide_short_help = true, help_heading = OPTIMIZER, long, value_name = "FACTOR")]
    pub(crate) plateau_factor: Option<f64>,

    /// Epochs without a lower mean loss before a decay with --schedule plateau [default: 10]
    #[arg(hide_short_help = true, help_heading = OPTIMIZER, long, value_name = "EPOCHS")]
    pub(crate) plateau_patience: Option<u32>,

    /// Share of the lowest mean loss by which a loss must be below it to count as lower, with --schedule plateau
    /// [default: 0.0001]
    #[arg(hide_short_help = true, help_heading = OPTIMIZER, long, value_name = "SHARE")]
    pub(crate) plateau_threshold: Option<f64>,

    /// Epochs after a decay that do not count towards the next one, with --schedule plateau [default: 0]
    #[arg(hide_short_help = true, help_heading = OPTIMIZER, long, value_name = "EPOCHS")]
    pub(crate) plateau_cooldown: Option<u32>,

    /// Lowest learning rate of --schedule plateau [default: 0]
    #[arg(hide_short_help = true, help_heading = OPTIMIZER, long, value_name = "RATE")]
    pub(crate) min_lr: Option<f64>,

    /// Dropout probability before the last layer
    #[arg(hide_short_help = true, help_heading = MODEL, long, value_name = "P", default_value_t = 0.0)]
    pub(crate) dropout: f32,

    /// Order of the gradient sum: fixed, with bit-equal weights for any number of ranks, or the fastest
    #[arg(help_heading = PARALLEL, long, value_name = "HOW", default_value = "exact")]
    pub(crate) reduce: ReduceName,

    /// All-reduce algorithm of --reduce fast: auto (the fastest, measured at the first start and then cached), direct, ring,
    /// doubling, two-tree, hierarchical or compensated. The last bits of the weights depend on it [default: auto]
    #[arg(hide_short_help = true, help_heading = PARALLEL, long, value_name = "ALGORITHM", value_parser = all_reduce)]
    pub(crate) all_reduce: Option<AllReduceName>,

    /// Data type of the gradient all-reduce. bf16 rounds after every addition, and stays bit-equal for any number of ranks with
    /// --reduce exact
    #[arg(hide_short_help = true, help_heading = PARALLEL, long, value_name = "f32|bf16", default_value_t)]
    pub(crate) reduce_dtype: ReduceDtype,

    /// ZeRO stage: shard 1 optimizer state, 2 also gradients, 3 also parameters. The weights are bit-equal to stage 0 with
    /// --reduce exact
    #[arg(help_heading = PARALLEL, long, value_name = "STAGE", default_value = "0")]
    pub(crate) zero: Zero,

    /// Shard within groups of this many ranks, and replicate between them; with --zero 1 to 3 [default: all ranks]
    #[arg(hide_short_help = true, help_heading = PARALLEL, long, value_name = "RANKS")]
    pub(crate) zero_group: Option<NonZeroU32>,

    /// Compress gradients, with error feedback: none, bf16, fp16, int8, 1bit, topk:SHARE or dgc:SHARE; needs --reduce fast
    #[arg(hide_short_help = true, help_heading = PARALLEL, long, value_name = "HOW", default_value_t)]
    pub(crate) compress: Compression,

    /// Model architecture
    #[arg(help_heading = MODEL, long, value_name = "MODEL", default_value = "small")]
    pub(crate) model: ModelName,

    /// Number of transformer layers of --model gpt [default: 4]
    #[arg(hide_short_help = true, help_heading = MODEL, long, value_name = "COUNT")]
    pub(crate) layers: Option<usize>,

    /// Number of attention heads of --model gpt [default: 4]
    #[arg(hide_short_help = true, help_heading = MODEL, long, value_name = "COUNT")]
    pub(crate) heads: Option<usize>,

    /// Hidden size of --model gpt; must be divisible by --heads [default: 128]
    #[arg(hide_short_help = true, help_heading = MODEL, long, value_name = "COUNT")]
    pub(crate) hidden_size: Option<usize>,

    /// Normalization of image models: batch (per virtual rank), sync (over the global batch) or group
    #[arg(hide_short_help = true, help_heading = MODEL, long, value_name = "NORM", default_value_t)]
    pub(crate) norm: Norm,

    /// Augment images: random crop with zero padding, and random horizontal flip (p = 0.5)
    #[arg(help_heading = DATA, long)]
    pub(crate) augment: bool,

    /// File of the transforms of images or sounds, or the JSON itself, with the names of torchvision.transforms.v2 or
    /// torchaudio.transforms
    #[arg(help_heading = DATA, long, value_name = "FILE", value_parser = Transforms::of_argument, conflicts_with = "augment")]
    pub(crate) transforms: Option<Transforms>,

    /// File of the transforms of the images or sounds of --test-dataset, or the JSON itself
    #[arg(hide_short_help = true, help_heading = DATA, long, value_name = "FILE", value_parser = Transforms::of_argument, requires = "test_dataset")]
    pub(crate) test_transforms: Option<Transforms>,

    /// Clip the global gradient norm to this value
    #[arg(help_heading = OPTIMIZER, long, value_name = "NORM")]
    pub(crate) clip_grad_norm: Option<f32>,

    /// Momentum coefficient of SGD and LARS [default: 0.9]
    #[arg(help_heading = OPTIMIZER, long, value_name = "COEFFICIENT")]
    pub(crate) momentum: Option<f32>,

    /// Weight decay; not applied to biases and normalization layers [default: 0.0005 for sgd and lars, 0 for adam, 0.01
    /// for adamw and lamb, 0.1 for lion]
    #[arg(help_heading = OPTIMIZER, long, value_name = "DECAY")]
    pub(crate) weight_decay: Option<f32>,

    /// Trust coefficient of LARS: the length of a layer's step at --lr 1, relative to that of its weights [default:
    /// 0.001]
    #[arg(hide_short_help = true, help_heading = OPTIMIZER, long, value_name = "COEFFICIENT")]
    pub(crate) trust_coefficient: Option<f32>,

    /// Epochs of linear warmup
    #[arg(help_heading = OPTIMIZER, long, value_name = "EPOCHS", default_value_t = 1.0)]
    pub(crate) warmup_epochs: f32,

    /// Action when loss or gradients are NaN or infinite, or the loss exceeds --loss-spike-factor
    #[arg(hide_short_help = true, help_heading = OPTIMIZER, long, value_enum, default_value_t = OnBad::Stop)]
    pub(crate) on_bad_step: OnBad,

    /// Treat a loss above this multiple of the mean of the last 100 steps as bad [default: no limit]
    #[arg(hide_short_help = true, help_heading = OPTIMIZER, long, value_name = "FACTOR")]
    pub(crate) loss_spike_factor: Option<f32>,

    /// Steps between checks that all ranks have the same weights; 0 checks at the start and the end only
    #[arg(hide_short_help = true, help_heading = PARALLEL, long, value_name = "STEPS", default_value_t = 100)]
    pub(crate) desync_check_every: u64,

    /// Seed of the initial weights, and of the plan if --dataset creates one
    #[arg(help_heading = MODEL, long, default_value_t = 0)]
    pub(crate) seed: u64,

    /// Dataset to evaluate on
    #[arg(help_heading = DATA, long, value_name = "NAME")]
    pub(crate) test_dataset: Option<DatasetRef>,

    /// Directory or bucket of --test-dataset, if it differs from that of the training data
    #[arg(hide_short_help = true, help_heading = DATA, long, value_name = "DIR|URL", requires = "test_dataset")]
    pub(crate) test_store: Option<PathBuf>,

    /// Column of class labels: integers from 0, or text
    #[arg(help_heading = DATA, long, value_name = "COLUMN", default_value = "label")]
    pub(crate) label: String,

    /// Number of classes [default: from the dataset]
    #[arg(hide_short_help = true, help_heading = DATA, long, value_name = "COUNT")]
    pub(crate) classes: Option<usize>,

    /// Number of features of a sparse column, one more than its largest index [default: the column's metadata
    /// `shardd.features`, which libsvm data lacks]
    #[arg(hide_short_help = true, help_heading = DATA, long, value_name = "COUNT")]
    pub(crate) features: Option<usize>,

    /// Input value that is scaled to 1 [default: the maximum of the integer type]
    #[arg(hide_short_help = true, help_heading = DATA, long, value_name = "VALUE")]
    pub(crate) input_max: Option<f32>,

    /// Tokens to which a token attends [default: block-causal if sequences are of whole documents (ingest's --packing),
    /// else causal]
    #[arg(hide_short_help = true, help_heading = DATA, long, value_enum)]
    pub(crate) attention: Option<AttentionName>,

    /// Resize encoded images to this width and height; with --transforms, use its Resize or crop instead
    #[arg(hide_short_help = true, help_heading = DATA, long, value_name = "PIXELS", default_value_t = 32, conflicts_with = "transforms")]
    pub(crate) image_size: usize,

    /// Device: cpu; cuda:N, or cuda for GPU LOCAL_RANK, in a build with `--features cuda`; wgpu (the best GPU of Vulkan, Metal or
    /// DirectX 12), wgpu:N or wgpu:cpu in one with `--features wgpu`
    #[arg(help_heading = RANKS, long, default_value_t = DeviceName::Cpu, value_parser = device)]
    pub(crate) device: DeviceName,

    /// Transport of gradients: TCP through host memory, or NCCL between GPUs
    #[arg(hide_short_help = true, help_heading = RANKS, long, value_enum, default_value_t = TransportName::Tcp)]
    pub(crate) transport: TransportName,

    /// Data type of forward and backward passes. f16 uses dynamic loss scaling. Master weights, optimizer state, losses and
    /// statistics are always f32
    #[arg(help_heading = PARALLEL, long, value_name = "f32|bf16|f16", default_value_t)]
    pub(crate) precision: Precision,

    /// Initial dynamic loss scale for f16, a power of two; halved on overflow, which skips the step [default: 65536]
    #[arg(hide_short_help = true, help_heading = PARALLEL, long, value_name = "SCALE")]
    pub(crate) loss_scale: Option<LossScale>,

    /// Where to convert samples to tensors; the values are the same [default: on --device]
    #[arg(hide_short_help = true, help_heading = DATA, long, value_enum, value_name = "WHERE")]
    pub(crate) preprocess_on: Option<Prepare>,

    /// Number of compute threads [default: RAYON_NUM_THREADS, or one per processor]
    #[arg(hide_short_help = true, help_heading = RANKS, long, value_name = "COUNT")]
    pub(crate) threads: Option<usize>,

    /// Do not hash samples for the audit
    #[arg(hide_short_help = true, help_heading = DATA, long)]
    pub(crate) no_audit: bool,

    /// Write a report of the finished training as JSON
    #[arg(help_heading = OUTPUT, long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Write a JSON line after every step, to a file or standard output (-)
    #[arg(hide_short_help = true, help_heading = OUTPUT, long, value_name = "FILE")]
    pub(crate) progress: Option<PathBuf>,

    /// Log loss, learning rate, gradient norm and times of steps; repeatable. tensorboard:DIR writes event files in a folder of the run's
    /// name; mlflow:EXPERIMENT, wandb:PROJECT or wandb:ENTITY/PROJECT, and trackio:PROJECT log with the system's Python package, in
    /// python3 or $SHARDD_PYTHON
    #[arg(hide_short_help = true, help_heading = OUTPUT, long, value_name = "SYSTEM:NAME")]
    pub(crate) log_to: Vec<LogTo>,

    /// Write a trace of all ranks and their nodes, for Perfetto (ui.perfetto.dev); rank 0 writes it, all ranks need the flag
    #[arg(hide_short_help = true, help_heading = OUTPUT, long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Seconds between progress lines of rank 0 on standard error; 0 disables them [default: 10 on a terminal, else 0]
    #[arg(hide_short_help = true, help_heading = OUTPUT, long, value_name = "SECONDS")]
    pub(crate) log_every_s: Option<u64>,

    /// Directory or bucket for checkpoints, under the name of the run; training resumes from the newest
    #[arg(help_heading = CHECKPOINTS, long, value_name = "DIR|URL")]
    pub(crate) checkpoints: Option<PathBuf>,

    /// Steps between checkpoints
    #[arg(help_heading = CHECKPOINTS, long, value_name = "STEPS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) checkpoint_every: Option<u64>,

    /// Seconds between checkpoints [default: 600, without --checkpoint-every]
    #[arg(hide_short_help = true, help_heading = CHECKPOINTS, long, value_name = "SECONDS", requires = "checkpoints")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) checkpoint_seconds: Option<u64>,

    /// Number of newest checkpoints to keep
    #[arg(hide_short_help = true, help_heading = CHECKPOINTS, long, value_name = "COUNT", requires = "checkpoints", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep_checkpoints: u32,

    /// Checkpoint to resume from: auto (the newest, if any), never (fail if there is one), or that of a step
    #[arg(help_heading = CHECKPOINTS, long, value_name = "auto|never|STEP", requires = "checkpoints", default_value = "auto", value_parser = resume)]
    pub(crate) resume: Resume,

    /// Record settings and per-step digests in this directory or bucket, under the name of the run (see `shardctl runs`)
    /// [default place: that of --checkpoints]
    #[arg(hide_short_help = true, help_heading = OUTPUT, long, value_name = "DIR|URL")]
    pub(crate) record: Option<Option<PathBuf>>,

    /// Steps between digests of weights, gradients and inputs in the record
    #[arg(hide_short_help = true, help_heading = OUTPUT, long, value_name = "STEPS", requires = "record", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) record_every: u64,

    /// Freeze the parameters that match, by their names in --save; repeatable. `embed` is all of a module, and *, ? and [0-3]
    /// stand for characters. Frozen parameters have no gradients, no optimizer state and no updates
    #[arg(help_heading = MODEL, long, value_name = "PATTERN")]
    pub(crate) freeze: Vec<NamePattern>,

    /// Train low-rank adapters (LoRA) of this rank beside a transformer's linear layers; all other parameters are frozen
    #[arg(help_heading = MODEL, long, value_name = "RANK")]
    pub(crate) lora: Option<NonZeroU32>,

    /// Factor of the adapters, divided by their rank [default: the rank]
    #[arg(hide_short_help = true, help_heading = MODEL, long, value_name = "ALPHA", requires = "lora")]
    pub(crate) lora_alpha: Option<f32>,

    /// Linear layers that have adapters, by their names; repeatable [default: *.attention]
    #[arg(hide_short_help = true, help_heading = MODEL, long, value_name = "PATTERN", requires = "lora")]
    pub(crate) lora_target: Vec<NamePattern>,

    /// Leave tensors that match out of --init; repeatable. Those of the model begin as without --init, so a new head may have
    /// other dimensions
    #[arg(hide_short_help = true, help_heading = MODEL, long, value_name = "PATTERN", requires = "init")]
    pub(crate) init_skip: Vec<NamePattern>,

    /// Begin with the weights of this file, by their names (every rank reads it); a checkpoint comes first
    #[arg(hide_short_help = true, help_heading = MODEL, long, value_name = "FILE.safetensors")]
    pub(crate) init: Option<PathBuf>,

    /// Exit code after SIGTERM or SIGINT, when all ranks have written a checkpoint: such as 75, by which a script knows that the
    /// training is to be requeued
    #[arg(hide_short_help = true, help_heading = CHECKPOINTS, long, value_name = "CODE", requires = "checkpoints", default_value_t = 0)]
    pub(crate) stopped_exit_code: u8,

    /// Process that started this one: the ranks of a launcher end with it
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) launched_by: Option<u32>,

    /// Save the weights (rank 0 does)
    #[arg(help_heading = MODEL, long, value_name = "FILE.safetensors")]
    pub(crate) save: Option<PathBuf>,

    /// The settings of the training on the command line, for its record
    #[arg(skip)]
    pub(crate) told: Vec<String>,

    /// All settings of the training by their names, for its logs
    #[arg(skip)]
    pub(crate) settings: Facts,
}

/// Flags about who trains where and about outputs, which do not change the trained model. Data and virtual
/// ranks are in a record by themselves.
const ELSEWHERE: [&str; 38] = [
    "server",
    "store",
    "context",
    "token_file",
    "ca",
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
    "tls_cert",
    "tls_key",
    "tls_ca",
    "desync_check_every",
    "test_dataset",
    "test_store",
    "threads",
    "no_audit",
    "report",
    "progress",
    "log_to",
    "trace",
    "log_every_s",
    "launched_by",
    "stopped_exit_code",
    "save",
    "checkpoints",
    "checkpoint_seconds",
    "keep_checkpoints",
    "resume",
];

/// The settings of the training, as arguments that repeat it.
pub(crate) fn told(matches: &ArgMatches) -> Vec<String> {
    let settings = settings_of(matches).into_iter();
    let told = settings.filter(|setting| setting.source == ValueSource::CommandLine);
    told.flat_map(|Setting { name, values, is_switch, .. }| match is_switch {
        true => vec![format!("--{name}")],
        false => values.into_iter().map(|value| format!("--{name}={value}")).collect(),
    })
    .collect()
}

/// The settings of the training by their names, with defaults. Numbers and switches are values of JSON.
pub(crate) fn settings(matches: &ArgMatches) -> Facts {
    let value = |text: String| match serde_json::from_str(&text) {
        Ok(value @ (Value::Number(_) | Value::Bool(_))) => value,
        _ => Value::String(text),
    };
    let settings = settings_of(matches).into_iter();
    settings.map(|Setting { name, values, .. }| (name.replace('-', "_"), value(values.join(", ")))).collect()
}

/// An argument that has a value, given or by default.
struct Setting {
    /// Without the dashes.
    name: String,
    source: ValueSource,
    values: Vec<String>,
    is_switch: bool,
}

fn settings_of(matches: &ArgMatches) -> Vec<Setting> {
    let setting = |argument: &clap::Arg| {
        let id = argument.get_id().as_str();
        let is_elsewhere = ELSEWHERE.contains(&id) || id.starts_with("record");
        let name = argument.get_long().filter(|_| !is_elsewhere)?.to_owned();
        let values = matches.try_get_raw(id).ok()?.into_iter().flatten();
        let values = values.map(|value| value.to_string_lossy().into_owned()).collect();
        let is_switch = matches!(argument.get_action(), ArgAction::SetTrue);
        Some(Setting { name, source: matches.value_source(id)?, values, is_switch })
    };
    Args::command().get_arguments().filter_map(setting).collect()
}

/// Of several ranks of a machine each has the device of its number there.
fn device(text: &str) -> Result<DeviceName, String> {
    if text == "cuda"
        && let Some(number) = local_rank()?
    {
        return Ok(DeviceName::Cuda(number as usize));
    }
    text.parse().map_err(|error: DeviceError| error.to_string())
}

fn local_rank() -> Result<Option<u32>, String> {
    match variable("LOCAL_RANK") {
        Some(local) => {
            local.parse().map(Some).map_err(|_| format!("LOCAL_RANK is {local:?}, which is not a number"))
        }
        None => Ok(launch_place().map_err(|error| error.0)?.and_then(|place| place.rank.local_rank)),
    }
}

fn launch_place() -> Result<Option<Place>, UsageError> {
    launcher::place(variable).map_err(|error| UsageError(error.to_string()))
}

/// A rank among all: by the command line, and for what it leaves open by the environment.
pub(crate) struct Seat {
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) place: Option<Place>,
}

impl Seat {
    pub(crate) fn of(rank: Option<u32>, world: Option<u32>) -> Result<Seat, UsageError> {
        let place = match launch_place() {
            Err(error) if rank.is_none() && world.is_none() => return Err(error),
            // A flag may be the half that the environment lacks.
            place => place.ok().flatten(),
        };
        let found = place.as_ref().map(|place| place.rank);
        let half = |name| variable(name).and_then(|value| value.trim().parse().ok());
        let rank = rank.or(found.map(|found| found.rank)).or_else(|| half("RANK"));
        let world = world.or(found.map(|found| found.world_size)).or_else(|| half("WORLD_SIZE"));
        Ok(Seat { rank: rank.unwrap_or(0), world: world.unwrap_or(1), place })
    }
}

fn all_reduce(text: &str) -> Result<AllReduceName, String> {
    match text {
        "auto" => Ok(AllReduceName::Auto),
        name => name
            .parse()
            .map(AllReduceName::Only)
            .map_err(|error| format!("{error}, or auto to have them measured")),
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

/// Arguments that are well-formed but cannot be meant.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

impl Args {
    /// The checks over several arguments.
    pub(crate) fn check(&self) -> Result<(), UsageError> {
        let complaint = if self.rank >= self.world {
            format!("rank {} is outside a world of {}; ranks count from 0", self.rank, self.world)
        } else if (1..=3).contains(&self.stopped_exit_code) || self.stopped_exit_code > 125 {
            format!(
                "--stopped-exit-code {} has another meaning; use 75, or another from 4 to 125",
                self.stopped_exit_code
            )
        } else if self.image_size == 0 || self.image_size > 4096 {
            format!("--image-size {} is not between 1 and 4096", self.image_size)
        } else if self.input_max.is_some_and(|max| !(max.is_finite() && max > 0.0)) {
            "--input-max must be above 0".to_owned()
        } else if self.model != ModelName::Gpt
            && (self.layers, self.heads, self.hidden_size) != (None, None, None)
        {
            "--layers, --heads and --hidden-size are those of --model gpt".to_owned()
        } else if self.momentum.is_some()
            && !matches!(self.optimizer, OptimizerName::Sgd | OptimizerName::Lars)
        {
            "--momentum is that of --optimizer sgd and lars".to_owned()
        } else if self.trust_coefficient.is_some() && self.optimizer != OptimizerName::Lars {
            "--trust-coefficient is that of --optimizer lars".to_owned()
        } else if self.trust_coefficient.is_some_and(|trust| !(trust.is_finite() && trust > 0.0)) {
            "--trust-coefficient must be above 0".to_owned()
        } else if (self.step_epochs, self.step_factor) != (None, None) && self.schedule != LrDecayName::Step {
            "--step-epochs and --step-factor are those of --schedule step".to_owned()
        } else if self.has_plateau_settings() && self.schedule != LrDecayName::Plateau {
            "--plateau-factor, --plateau-patience, --plateau-threshold, --plateau-cooldown and --min-lr are those of \
             --schedule plateau"
                .to_owned()
        } else if self.plateau_factor.is_some_and(|factor| !(factor > 0.0 && factor < 1.0)) {
            "--plateau-factor must be above 0 and below 1".to_owned()
        } else if self.plateau_threshold.is_some_and(|threshold| !(0.0..1.0).contains(&threshold)) {
            "--plateau-threshold must be at least 0 and below 1".to_owned()
        } else if self.min_lr.is_some_and(|rate| !(rate.is_finite() && rate >= 0.0)) {
            "--min-lr must not be negative".to_owned()
        } else if self.min_lr.zip(self.lr).is_some_and(|(least, rate)| least >= f64::from(rate)) {
            "--min-lr must be below --lr".to_owned()
        } else if self.momentum.is_some_and(|momentum| !(0.0..1.0).contains(&momentum)) {
            "--momentum must be at least 0 and below 1".to_owned()
        } else if self.weight_decay.is_some_and(|decay| !(decay.is_finite() && decay >= 0.0)) {
            "--weight-decay must not be negative".to_owned()
        } else if self.reduce == ReduceName::Exact && self.compress != Compression::None {
            "--compress loses bits, so it needs --reduce fast".to_owned()
        } else if let Some(refusal) = self.all_reduce.and_then(|_| self.all_reduce_refusal()) {
            refusal.to_owned()
        } else if self.zero_group.is_some() && self.zero == Zero::Nothing {
            "--zero-group needs --zero 1, 2 or 3".to_owned()
        } else if self.loss_scale.is_some() && self.precision != Precision::F16 {
            "--loss-scale is for gradients that travel back in 16 bits of f16; give --precision f16, or leave it out".to_owned()
        } else if let Some(refusal) = self.zero.refusal(self.reduction()) {
            refusal.to_owned()
        } else if let Some(refusal) = self.reduce_dtype.refusal(self.reduction()) {
            refusal.to_owned()
        } else if self.transport == TransportName::Nccl && self.device == DeviceName::Cpu {
            NcclError::Device(self.device).to_string()
        } else if self.transport == TransportName::Nccl
            && (self.reduce_dtype != ReduceDtype::F32
                || !matches!(self.reduction(), Reduction::Exact | Reduction::Fast(Compression::None)))
        {
            NcclError::Reduction.to_string()
        } else if !(self.warmup_epochs.is_finite() && self.warmup_epochs >= 0.0) {
            "--warmup-epochs must not be negative".to_owned()
        } else if !self.rate().is_finite() || self.rate() <= 0.0 {
            "--lr must be above 0".to_owned()
        } else if self.step_factor.is_some_and(|factor| !(factor.is_finite() && factor > 0.0)) {
            "--step-factor must be above 0".to_owned()
        } else if !(0.0..1.0).contains(&self.dropout) {
            "--dropout must be at least 0 and below 1".to_owned()
        } else if self.loss_spike_factor.is_some_and(|times| !(times.is_finite() && times > 1.0)) {
            "--loss-spike-factor must be above 1".to_owned()
        } else if self.on_bad_step == OnBad::Rollback
            && (self.checkpoints.is_none() || self.checkpoint_every.is_none())
        {
            "--on-bad-step rollback goes back to checkpoints: give --checkpoints and --checkpoint-every"
                .to_owned()
        } else if self.clip_grad_norm.is_some_and(|clip| !(clip.is_finite() && clip > 0.0)) {
            "--clip-grad-norm must be above 0; leave it out to clip nothing".to_owned()
        } else if self.lora_alpha.is_some_and(|alpha| !(alpha.is_finite() && alpha > 0.0)) {
            "--lora-alpha must be above 0".to_owned()
        } else if let Some(twice) =
            self.log_to.iter().enumerate().find(|(at, to)| self.log_to[..*at].contains(to))
        {
            format!("--log-to {} is given twice", twice.1)
        } else if self.threads == Some(0) {
            "--threads must be at least 1".to_owned()
        } else if self.checkpoint_every.is_some() && self.checkpoints.is_none() {
            "--checkpoint-every needs --checkpoints".to_owned()
        } else if self.record == Some(None) && self.checkpoints.is_none() {
            "--record needs a place: give --record DIR, or --checkpoints".to_owned()
        } else {
            return Ok(());
        };
        Err(UsageError(complaint))
    }

    /// Why another part of the settings decides how gradients are added up.
    fn all_reduce_refusal(&self) -> Option<&'static str> {
        if self.reduce == ReduceName::Exact {
            Some("--reduce exact adds up in one fixed tree; --all-reduce needs --reduce fast")
        } else if self.compress != Compression::None {
            Some("compressed gradients travel in a way of their own; leave --all-reduce or --compress out")
        } else if self.zero != Zero::Nothing {
            Some(
                "with --zero each rank adds up its slice, and --all-reduce has nothing to choose; leave one of the two out",
            )
        } else if self.transport == TransportName::Nccl {
            Some("NCCL chooses the algorithm itself (NCCL_ALGO); leave --all-reduce out")
        } else {
            None
        }
    }

    /// The all-reduce algorithm of gradients, measured at the first start of a group of ranks if none is named.
    pub(crate) fn all_reduce(&self) -> AllReduce {
        match self.all_reduce {
            None | Some(AllReduceName::Auto) => {
                AllReduce::Auto { cache: Some(default_cache_dir().join("all-reduce")) }
            }
            Some(AllReduceName::Only(algorithm)) => AllReduce::Only(algorithm),
        }
    }

    fn rate(&self) -> f32 {
        self.lr.unwrap_or(match self.optimizer {
            OptimizerName::Sgd => 0.1,
            OptimizerName::Adam | OptimizerName::AdamW => 0.001,
            OptimizerName::Lion => 0.0001,
            OptimizerName::Lamb => 0.01,
            OptimizerName::Lars => 1.0,
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
        GuardConfig { on_bad_step, spike: self.loss_spike_factor }
    }

    /// How the rate falls.
    pub(crate) fn lr_decay(&self) -> LrDecay {
        match self.schedule {
            LrDecayName::Cosine => LrDecay::Cosine,
            LrDecayName::Linear => LrDecay::Linear,
            LrDecayName::Constant => LrDecay::Constant,
            LrDecayName::Step => LrDecay::Step {
                epochs: self.step_epochs.unwrap_or(30),
                factor: self.step_factor.unwrap_or(0.1),
            },
            LrDecayName::Plateau => {
                let usual = ReduceOnPlateau::default();
                LrDecay::Plateau(ReduceOnPlateau {
                    factor: self.plateau_factor.unwrap_or(usual.factor),
                    patience: self.plateau_patience.unwrap_or(usual.patience),
                    threshold: self.plateau_threshold.unwrap_or(usual.threshold),
                    cooldown: self.plateau_cooldown.unwrap_or(usual.cooldown),
                    min_lr: self.min_lr.unwrap_or(usual.min_lr),
                })
            }
        }
    }

    fn has_plateau_settings(&self) -> bool {
        let &Args { plateau_factor, plateau_patience, plateau_threshold, plateau_cooldown, min_lr, .. } =
            self;
        [plateau_factor, plateau_threshold, min_lr].iter().any(Option::is_some)
            || [plateau_patience, plateau_cooldown].iter().any(Option::is_some)
    }

    pub(crate) fn optimizer(&self) -> Optimizer {
        let decay = |default| self.weight_decay.unwrap_or(default);
        let momentum = self.momentum.unwrap_or(0.9);
        match self.optimizer {
            OptimizerName::Sgd => Optimizer::Sgd { momentum, weight_decay: decay(5e-4) },
            OptimizerName::Adam => Optimizer::adam(decay(0.0)),
            OptimizerName::AdamW => Optimizer::adamw(decay(0.01)),
            OptimizerName::Lion => Optimizer::lion(decay(0.1)),
            OptimizerName::Lamb => Optimizer::lamb(decay(0.01)),
            OptimizerName::Lars => Optimizer::Lars {
                momentum,
                trust_coefficient: self.trust_coefficient.unwrap_or(1e-3),
                weight_decay: decay(5e-4),
            },
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
            class_names: None,
            input_max: self.input_max,
            image_size: self.image_size,
            features: self.features,
            attention: self.attention.map(Attention::from),
        }
    }

    /// Takes from the place in the launch what the command line leaves open.
    pub(crate) fn take_place(&mut self, matches: &ArgMatches) -> Result<(), UsageError> {
        let is_given = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        let seat = Seat::of(is_given("rank").then_some(self.rank), is_given("world").then_some(self.world))?;
        (self.rank, self.world, self.place) = (seat.rank, seat.world, seat.place);
        Ok(())
    }

    /// Where ranks meet that do not read from nodes.
    pub(crate) fn master(&self) -> Result<String, UsageError> {
        if let Some(master) = self.given_master() {
            return Ok(master);
        }
        match &self.place {
            Some(Place { master: Some(master), .. }) => Ok(master.clone()),
            Some(Place { launcher: Launcher::OpenMpi | Launcher::Mpich, .. }) => Err(UsageError(
                "MPI does not name the host of rank 0: give --master HOST:PORT, or set MASTER_ADDR"
                    .to_owned(),
            )),
            _ => Ok(launcher::LOCAL_MASTER.to_owned()),
        }
    }

    /// The rendezvous address that the user gave.
    pub(crate) fn given_master(&self) -> Option<String> {
        self.master.clone().or_else(|| launcher::master(variable))
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
        let &Args { layers, heads, hidden_size, norm, dropout, .. } = self;
        let usual = GptSize::default();
        let size = GptSize {
            layers: layers.unwrap_or(usual.layers),
            heads: heads.unwrap_or(usual.heads),
            width: hidden_size.unwrap_or(usual.width),
        };
        let kind = match self.model {
            ModelName::Small => ModelKind::Small,
            ModelName::Linear => ModelKind::Linear,
            ModelName::Resnet18 => ModelKind::Resnet18,
            ModelName::Gpt => ModelKind::Gpt(size),
        };
        ModelOptions { kind, norm, dropout }
    }

    pub(crate) fn lora(&self) -> Option<Lora> {
        let usual = Lora::of_rank(self.lora?.get() as usize);
        let targets = if self.lora_target.is_empty() { usual.targets } else { self.lora_target.clone() };
        Some(Lora { alpha: self.lora_alpha.unwrap_or(usual.alpha), targets, ..usual })
    }

    pub(crate) fn timeouts(&self) -> (Duration, Duration) {
        (Duration::from_secs(self.join_timeout), Duration::from_secs(self.timeout.max(1)))
    }
}
