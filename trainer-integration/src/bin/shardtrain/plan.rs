//! `shardtrain plan`: what a training would need, by stage of ZeRO, and how to start it.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::Serialize;
use shardd_trainer::Zero;
use shardd_trainer::buckets::BucketSizes;
use shardd_trainer::device::Precision;
use shardd_trainer::ledger::Usage;
use shardd_trainer::models::GptSize;
use shardd_trainer::optim::Optimizer;
use shardd_trainer::profile::{self, Profile};
use shardd_trainer::reduce::VirtualRanks;
use shardd_trainer::zero::formula::{Setting, Transformer, Widths, Wire};
use shardfmt::ByteSize;

use crate::args::{OptimizerName, ReduceName, UsageError};

type Failure = Box<dyn Error>;

/// Estimate memory, traffic and step time of a training for each ZeRO stage, and print the flags to start it
///
/// Bytes of weights, gradients and optimizer state equal those of a training on CPUs (`memory` in its report). Activations and seconds are
/// estimates. No data is read. Exit codes: 0 a stage fits, 1 no stage fits, 2 usage error.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Number of parameters of a transformer of typical shape: 7.5e9, 125M
    #[arg(long, value_name = "COUNT", conflicts_with = "model", required_unless_present = "model")]
    params: Option<Count>,

    /// Parameters of the largest block with --params [default: one layer of the typical shape]
    #[arg(long, value_name = "COUNT", requires = "params")]
    largest_block: Option<Count>,

    /// Model of shardtrain
    #[arg(long, value_enum, value_name = "MODEL")]
    model: Option<PlannedModel>,

    /// Number of transformer layers of --model gpt [default: 4]
    #[arg(long, value_name = "COUNT", requires = "model")]
    layers: Option<usize>,

    /// Number of attention heads of --model gpt [default: 4]
    #[arg(long, value_name = "COUNT", requires = "model")]
    heads: Option<usize>,

    /// Hidden size of --model gpt; must be divisible by --heads [default: 128]
    #[arg(long, value_name = "COUNT", requires = "model")]
    hidden_size: Option<usize>,

    /// Vocabulary size of --model gpt [default: 256]
    #[arg(long, value_name = "COUNT", requires = "model")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    vocabulary: Option<u32>,

    /// Sequence length in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    length: u32,

    /// Number of ranks
    #[arg(long, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=16_384))]
    ranks: u32,

    /// Memory of each rank: 80GiB
    #[arg(long, value_name = "SIZE")]
    memory: ByteSize,

    /// Send bandwidth of each rank: 25GB/s, 10Gbit/s
    #[arg(long, value_name = "RATE")]
    link: Rate,

    /// Samples in a step, over all ranks [default: 8 for each rank]
    #[arg(long, value_name = "SAMPLES")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    batch: Option<u64>,

    /// Optimizer
    #[arg(long, value_enum, default_value_t = OptimizerName::AdamW)]
    optimizer: OptimizerName,

    /// Data type of forward and backward passes
    #[arg(long, value_name = "f32|bf16", default_value_t)]
    precision: Precision,

    /// Order of the gradient sum
    #[arg(long, value_name = "HOW", default_value = "exact")]
    reduce: ReduceName,

    /// Shard within groups of this many ranks from stage 1 on [default: all ranks]
    #[arg(long, value_name = "COUNT")]
    zero_group: Option<NonZeroU32>,

    /// Include the copy that each rank makes for a checkpoint
    #[arg(long)]
    checkpoints: bool,

    /// Achieved FLOP/s of a rank: 150T. A step needs 6 FLOP for each parameter and token, and 8 at stage 3 [default: measured on this
    /// machine with a small transformer]
    #[arg(long, value_name = "COUNT", conflicts_with = "measure")]
    flops: Option<Count>,

    /// Measure the time of a few steps of --model on this machine
    #[arg(long, requires = "model")]
    measure: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PlannedModel {
    /// Decoder-only transformer for token sequences
    Gpt,
}

/// A whole number as people write it.
#[derive(Clone, Copy, Debug)]
struct Count(f64);

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Count, String> {
        let scales = [("K", 1e3), ("M", 1e6), ("B", 1e9), ("G", 1e9), ("T", 1e12), ("P", 1e15)];
        let upper = text.trim().to_ascii_uppercase();
        let scale = scales.into_iter().find_map(|(unit, scale)| Some((upper.strip_suffix(unit)?, scale)));
        let (number, scale) = scale.unwrap_or((&upper, 1.0));
        let count = number.parse::<f64>().ok().map(|number| (number * scale).round());
        let count = count.filter(|count| (1.0..=1e18).contains(count));
        count
            .map(Count)
            .ok_or_else(|| format!("{text:?} is no count from 1 to 1e18; write 7.5e9, 125M or 7500000"))
    }
}

/// Bytes in a second.
#[derive(Clone, Copy, Debug)]
struct Rate(f64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let refuse = || format!("{text:?} is no rate; write 25GB/s, 1.5GiB/s or 10Gbit/s");
        let lower = text.trim().to_ascii_lowercase();
        let amount = lower.strip_suffix("/s").ok_or_else(refuse)?;
        let (size, bits) = match amount.strip_suffix("bit") {
            // Of bits, as of bytes with a unit of thousands.
            Some(bits) => (format!("{bits}b"), 8.0),
            None => (amount.to_owned(), 1.0),
        };
        let rate = size.parse::<ByteSize>().ok().map(|ByteSize(bytes)| bytes as f64 / bits);
        rate.filter(|rate| *rate > 0.0).map(Rate).ok_or_else(refuse)
    }
}

/// The planned training.
#[derive(Debug, Serialize)]
struct Plan {
    parameters: usize,
    largest_block: usize,
    ranks: u32,
    memory: u64,
    link_bytes_per_s: f64,
    batch: u64,
    /// Bytes of `activations` and seconds are estimates.
    activations: &'static str,
    profile: Option<Profile>,
    stages: Vec<StageCost>,
    /// The lowest stage that fits.
    proposal: Option<Proposal>,
}

/// A stage, with the largest micro-batch that fits, or of one sample.
#[derive(Clone, Debug, Serialize)]
struct StageCost {
    stage: u8,
    micro_batch: u64,
    accumulation: u64,
    bytes: Usage,
    activation_bytes: f64,
    all_bytes: f64,
    fits: bool,
    sent: Wire,
    /// All that is sent, over a link that is never idle.
    communication_s: f64,
    /// Forward, back and update.
    compute_s: f64,
    /// Communication that does not hide behind them.
    exposed_s: f64,
    step_s: f64,
}

#[derive(Debug, Serialize)]
struct Proposal {
    stage: u8,
    micro_batch: u64,
    accumulation: u64,
    virtual_ranks: u64,
    flags: String,
}

/// Virtual ranks that a plan is made for, at most.
const MOST_VIRTUAL_RANKS: u64 = 1 << 17;

/// Plans, and says so.
pub(crate) fn run(args: &PlanArgs) -> Result<u8, Failure> {
    let plan = args.plan()?;
    let text = if args.json { serde_json::to_string_pretty(&plan)? + "\n" } else { args.table(&plan) };
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    if plan.proposal.is_some() {
        return Ok(0);
    }
    let least = plan.stages.iter().min_by(|one, other| one.all_bytes.total_cmp(&other.all_bytes));
    let least = least.expect("there are four stages");
    Err(format!(
        "nothing fits: stage {} needs least, {}, which is {} too much for each rank; take more ranks, smaller blocks (two of {} parameters are gathered at once), or {}",
        least.stage,
        bytes(least.all_bytes),
        bytes(least.all_bytes - plan.memory as f64),
        plan.largest_block,
        if least.accumulation > 1 { "a smaller --batch" } else { "shorter samples (--length)" },
    )
    .into())
}

fn bytes(count: f64) -> String {
    ByteSize(count as u64).to_string()
}

impl PlanArgs {
    fn is_exact(&self) -> bool {
        self.reduce == ReduceName::Exact
    }

    fn usual_optimizer(&self) -> Optimizer {
        match self.optimizer {
            OptimizerName::Sgd => Optimizer::sgd(0.0),
            OptimizerName::Adam => Optimizer::adam(0.0),
            OptimizerName::AdamW => Optimizer::adamw(0.0),
            OptimizerName::Lion => Optimizer::lion(0.0),
            OptimizerName::Lamb => Optimizer::lamb(0.0),
            OptimizerName::Lars => Optimizer::lars(0.0),
        }
    }

    fn size(&self) -> GptSize {
        let usual = GptSize::default();
        GptSize {
            layers: self.layers.unwrap_or(usual.layers),
            heads: self.heads.unwrap_or(usual.heads),
            width: self.hidden_size.unwrap_or(usual.width),
        }
    }

    fn vocabulary(&self) -> usize {
        self.vocabulary.unwrap_or(256) as usize
    }

    /// The basis for the estimate of activations, and the parameters of each block.
    fn shape(&self) -> Result<(Transformer, Vec<usize>), UsageError> {
        let length = self.length as usize;
        let Some(Count(parameters)) = self.params else {
            let size = self.size();
            if let Some(refusal) = size.refusal() {
                return Err(UsageError(refusal));
            }
            if size.layers > 1 << 16 || size.width > 1 << 20 {
                return Err(UsageError(
                    "more than 65536 layers, or a width above 1048576, cannot be planned".to_owned(),
                ));
            }
            return Ok(Transformer::gpt(self.vocabulary(), length, size));
        };
        let guess = Transformer::guess(parameters, length);
        let all = parameters as usize;
        let largest = match self.largest_block {
            Some(Count(largest)) if largest > parameters => {
                return Err(UsageError(format!(
                    "--largest-block {largest} is more than --params {parameters}"
                )));
            }
            Some(Count(largest)) => largest as usize,
            None => all.div_ceil(guess.layers),
        };
        if all / largest > 1 << 16 {
            return Err(UsageError(
                "more than 65536 blocks cannot be planned; give a larger --largest-block".to_owned(),
            ));
        }
        let full = vec![largest; all / largest];
        let rest = Some(all % largest).filter(|&rest| rest > 0);
        Ok((guess, rest.into_iter().chain(full).collect()))
    }

    fn plan(&self) -> Result<Plan, Failure> {
        // Arguments that exclude each other excuse the arguments they would require.
        let of_model = [self.layers, self.heads, self.hidden_size].iter().any(Option::is_some)
            || self.vocabulary.is_some();
        if self.model.is_none() && (of_model || self.measure) {
            let why = "--layers, --heads, --hidden-size, --vocabulary and --measure are for a model of known shape: give --model gpt instead of --params";
            return Err(UsageError(why.to_owned()).into());
        }
        if self.model.is_some() && self.largest_block.is_some() {
            let why = "--largest-block is for --params; the blocks of --model are known";
            return Err(UsageError(why.to_owned()).into());
        }
        let (transformer, blocks) = self.shape()?;
        let ranks = u64::from(self.ranks);
        let batch = self.batch.unwrap_or(8 * ranks);
        if !batch.is_multiple_of(ranks) {
            let below = batch / ranks * ranks;
            let near = if below == 0 { ranks.to_string() } else { format!("{below} or {}", below + ranks) };
            let why = format!("{ranks} ranks cannot share --batch {batch} evenly; give {near}");
            return Err(UsageError(why).into());
        }
        let each = batch / ranks;
        let micro_batches: Vec<u64> = (0..=each.trailing_zeros()).map(|power| 1 << power).collect();
        let micro_batches: Vec<u64> =
            micro_batches.into_iter().filter(|micro| batch / micro <= MOST_VIRTUAL_RANKS).collect();
        if micro_batches.is_empty() {
            let why = format!(
                "--batch {batch} on {ranks} ranks needs more than {MOST_VIRTUAL_RANKS} virtual ranks; give one that a larger power of two divides"
            );
            return Err(UsageError(why).into());
        }
        if let Some(group) = self.zero_group
            && !self.ranks.is_multiple_of(group.get())
        {
            let why = format!(
                "{ranks} ranks cannot form groups of --zero-group {group}; give a divisor of {ranks}"
            );
            return Err(UsageError(why).into());
        }
        let profile = self.profile(blocks.iter().sum())?;
        let widths = Widths::of(self.usual_optimizer(), self.precision);
        let settings = micro_batches.iter().map(|&micro| {
            let count = (batch / micro) as u32;
            let ranks = VirtualRanks { count, world: self.ranks };
            (
                micro,
                each / micro,
                Setting::new(
                    &blocks,
                    ranks,
                    self.zero_group,
                    self.is_exact(),
                    widths,
                    BucketSizes::default(),
                )
                .with_checkpoints(self.checkpoints),
            )
        });
        let settings: Vec<(u64, u64, Setting)> = settings.collect();
        let stages: Vec<StageCost> = Zero::ALL
            .into_iter()
            .map(|zero| {
                let costs = settings.iter().map(|(micro, accumulation, setting)| {
                    self.cost(zero, setting, &transformer, (*micro, *accumulation), profile)
                });
                let costs: Vec<StageCost> = costs.collect();
                let least = costs.iter().min_by(|one, other| one.all_bytes.total_cmp(&other.all_bytes));
                let found = costs.iter().rfind(|cost| cost.fits).or(least);
                found.cloned().expect("there is a micro-batch")
            })
            .collect();
        let proposal = stages.iter().find(|cost| cost.fits).map(|cost| self.propose(cost));
        Ok(Plan {
            parameters: blocks.iter().sum(),
            largest_block: blocks.iter().copied().max().unwrap_or(0),
            ranks: self.ranks,
            memory: self.memory.0,
            link_bytes_per_s: self.link.0,
            batch,
            activations: "estimated",
            profile,
            stages,
            proposal,
        })
    }

    /// Seconds, of the model itself or as many times those of a small one; none where they follow from --flops.
    fn profile(&self, parameters: usize) -> Result<Option<Profile>, Failure> {
        let (optimizer, length) = (self.usual_optimizer(), self.length as usize);
        Ok(match self.flops {
            Some(_) => None,
            None if self.measure => {
                let (vocabulary, size) = (self.vocabulary(), self.size());
                Some(profile::of_gpt(vocabulary, length, size, 1, optimizer, self.precision)?)
            }
            None => Some(Profile::guess(parameters, length, optimizer, self.precision)?),
        })
    }

    fn cost(
        &self,
        zero: Zero,
        setting: &Setting,
        transformer: &Transformer,
        (micro_batch, accumulation): (u64, u64),
        profile: Option<Profile>,
    ) -> StageCost {
        let used = setting.memory(zero);
        let activations = transformer.activations(zero, self.precision, micro_batch, accumulation);
        let all_bytes = used.all as f64 + activations;
        let sent = setting.wire(zero, self.is_exact(), 1);
        let again = zero == Zero::Parameters;
        let (sample, update) = match (profile, self.flops) {
            (Some(profile), _) => {
                let sample = if again { profile.sample_again_s } else { profile.sample_s };
                (sample, profile.parameter_s * setting.moved(zero) as f64)
            }
            (None, flops) => {
                let Count(flops) = flops.expect("there is a profile where operations are not known");
                let operations = if again { 8.0 } else { 6.0 };
                (operations * setting.parameters() as f64 * f64::from(self.length) / flops, 0.0)
            }
        };
        let pass = sample * micro_batch as f64;
        let compute_s = pass * accumulation as f64 + update;
        let exposed_s = setting.exposed(zero, sent, self.link.0, pass);
        StageCost {
            stage: zero.stage(),
            micro_batch,
            accumulation,
            bytes: used,
            activation_bytes: activations,
            all_bytes,
            fits: all_bytes <= self.memory.0 as f64,
            sent,
            communication_s: sent.all() / self.link.0,
            compute_s,
            exposed_s,
            step_s: compute_s + exposed_s,
        }
    }

    /// The flags of a training with this stage.
    fn propose(&self, cost: &StageCost) -> Proposal {
        let virtual_ranks = u64::from(self.ranks) * cost.accumulation;
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        let mut flags = format!(
            "--virtual-ranks {virtual_ranks} --batch-size {} --zero {} --optimizer {}",
            cost.micro_batch,
            cost.stage,
            name(self.optimizer.to_possible_value()),
        );
        if let Some(group) = self.zero_group.filter(|_| cost.stage > 0) {
            // Writing to a string cannot fail.
            let _ = write!(flags, " --zero-group {group}");
        }
        if !self.is_exact() {
            flags += " --reduce fast";
        }
        if self.precision != Precision::F32 {
            let _ = write!(flags, " --precision {}", self.precision);
        }
        if self.checkpoints {
            flags += " --checkpoints PLACE";
        }
        if self.model.is_some() {
            let GptSize { layers, heads, width } = self.size();
            let _ = write!(flags, " --model gpt --layers {layers} --heads {heads} --hidden-size {width}");
        }
        let StageCost { stage, micro_batch, accumulation, .. } = *cost;
        Proposal { stage, micro_batch, accumulation, virtual_ranks, flags }
    }

    fn table(&self, plan: &Plan) -> String {
        let mut text = format!(
            "{} parameters, {} in the largest block{}; {} ranks with {} each; steps of {} samples of {} tokens\n\n",
            grouped(plan.parameters),
            grouped(plan.largest_block),
            if self.params.is_some() && self.largest_block.is_none() { " (a guess)" } else { "" },
            plan.ranks,
            self.memory,
            grouped(plan.batch as usize),
            grouped(self.length as usize),
        );
        let heads = [
            "stage",
            "weights",
            "gradients",
            "moments",
            "gathered",
            "copies",
            "activations",
            "in all",
            "fits",
            "micro-batch",
            "sent",
            "link",
            "compute",
            "step",
        ];
        let rows = plan.stages.iter().map(|cost| {
            let [weights, gradients, moments, gathered, copies] =
                cost.bytes.by_kind().map(|(_, count)| bytes(count as f64));
            [
                cost.stage.to_string(),
                weights,
                gradients,
                moments,
                gathered,
                copies,
                bytes(cost.activation_bytes),
                bytes(cost.all_bytes),
                if cost.fits { "yes" } else { "no" }.to_owned(),
                format!("{} x {}", cost.accumulation, cost.micro_batch),
                bytes(cost.sent.all()),
                seconds(cost.communication_s),
                seconds(cost.compute_s),
                seconds(cost.step_s),
            ]
        });
        let rows: Vec<_> = std::iter::once(heads.map(str::to_owned)).chain(rows).collect();
        for row in &rows {
            let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
            let cells = row.iter().enumerate();
            let cells: Vec<String> =
                cells.map(|(column, cell)| format!("{cell:>width$}", width = width(column))).collect();
            text += &cells.join("  ");
            text.push('\n');
        }
        text += "\nBytes are those of each rank; a micro-batch of 2 x 4 is two virtual ranks for each rank, of 4 samples each. Activations are an estimate (Korthikanti et al., 2023).\n";
        text += "A step takes the compute time, ";
        text += match (self.measure, self.flops) {
            (true, _) => "as a few steps of this model did on this machine just now, ",
            (false, Some(_)) => "6 operations for each parameter and token (8 at stage 3), ",
            (false, None) => {
                "as fast as a small transformer was on this machine's processors just now (--flops tells of others), "
            }
        };
        text += "and what of the link's time does not hide behind it.\n";
        if let Some(proposal) = &plan.proposal {
            let _ = write!(
                text,
                "\nStage {} is the lowest that fits, with micro-batches of {} samples, {} of them for each rank in a step:\n\n    shardtrain run --nproc {} -- --dataset DATASET {}\n\n",
                proposal.stage, proposal.micro_batch, proposal.accumulation, plan.ranks, proposal.flags,
            );
            text += "The number of virtual ranks has to divide the partitions of DATASET's plan.";
            if plan.ranks > 1 {
                text +=
                    " Several machines each start their share of the ranks: see --nodes of shardtrain run.";
            }
            text.push('\n');
        }
        text
    }
}

/// With commas.
fn grouped(count: usize) -> String {
    let digits = count.to_string();
    let comma = |(at, digit): (usize, char)| {
        let is_after = at > 0 && (digits.len() - at).is_multiple_of(3);
        is_after.then_some(',').into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(comma).collect()
}

/// In a unit in which it is easily read.
fn seconds(count: f64) -> String {
    match count {
        ..0.001 => format!("{:.0} us", count * 1e6),
        ..1.0 => format!("{:.0} ms", count * 1e3),
        ..100.0 => format!("{count:.2} s"),
        ..7200.0 => format!("{count:.0} s"),
        _ => format!("{:.1} h", count / 3600.0),
    }
}
