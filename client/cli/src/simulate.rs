//! `shardctl simulate`: plays a plan for a dataset and a cluster that need not exist. No place is asked.

use std::time::Duration;

use clap::{Args, value_parser};
use indicatif::{ProgressBar, ProgressDrawTarget};
use shardd_plan::{Plan, PlanDocument};
use shardfmt::digest::Digest;
use shardfmt::{ByteSize, VersionId};

use crate::failure::Failure;
use crate::human::{count, duration, percent, plural};
use crate::imagined;
use crate::output;
use crate::partition::{PlanChoices, make_plan};
use crate::progress::style;
use crate::table::{Table, facts};
use shardd_simulation::{EpochReport, Event, LinkRate, Report, Scenario, simulate};

/// Epochs that are listed one by one; of more, those that tell most.
const LISTED: usize = 14;

/// Simulate a plan on a cluster, before you have either: traffic, connections, disks and mixing
///
/// Computes what the plan moves and the placement hosts, for all nodes, and counts it. Without --partitions there are
/// as many as nodes, or the default where that is more.
#[derive(Args)]
#[command(override_usage = "shardctl simulate [OPTIONS] --samples <N> --sample-bytes <N>
                         --nodes <N> --epochs <N> --q <SHARE[,SHARE...]>")]
pub(crate) struct Simulate {
    /// Samples of the dataset
    #[arg(long)]
    samples: u64,

    /// Bytes of a sample
    #[arg(long)]
    sample_bytes: u64,

    /// Nodes, each with one rank of the run
    #[arg(long)]
    nodes: u32,

    /// Epochs of the training; an exchange follows each
    #[arg(long)]
    epochs: u32,

    /// Nodes that come, leave (drained) or die before an epoch: join:EPOCH:NODES, leave:EPOCH:NODES, death:EPOCH:NODES
    #[arg(long, value_name = "EVENT", value_delimiter = ',')]
    events: Vec<Event>,

    #[command(flatten)]
    choices: PlanChoices,

    #[command(flatten)]
    pace: Pace,
}

/// The speed of exchange and training.
#[derive(Args)]
pub(crate) struct Pace {
    /// Bandwidth of a node, in each direction
    #[arg(long, visible_alias = "bandwidth", value_name = "RATE", default_value = "10Gbit/s")]
    pub(crate) link: LinkRate,

    /// Milliseconds of a round trip between nodes
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = value_parser!(u32).range(..=60_000))]
    round_trip_ms: u32,

    /// Milliseconds of a step, to show whether it hides the exchange
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(1..))]
    step_ms: Option<u32>,

    /// Samples in a step, all ranks together [default: 32 for each node]
    #[arg(long)]
    global_batch_size: Option<u64>,
}

impl Pace {
    pub(crate) fn scenario(&self, nodes: u32, epochs: u32, events: Vec<Event>) -> Scenario {
        Scenario {
            nodes,
            epochs,
            events,
            link: self.link,
            round_trip: self.round_trip(),
            step: self.step(),
            global_batch_size: self.batch_of(nodes),
        }
    }

    /// The time of a step, if it is known.
    pub(crate) fn step(&self) -> Option<Duration> {
        self.step_ms.map(|ms| Duration::from_millis(ms.into()))
    }

    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_millis(self.round_trip_ms.into())
    }

    /// The samples of a step on so many nodes.
    pub(crate) fn batch_of(&self, nodes: u32) -> u64 {
        self.global_batch_size.unwrap_or(32 * u64::from(nodes.max(1)))
    }
}

impl Simulate {
    pub(crate) fn run(self, json: bool) -> Result<(), Failure> {
        let scenario = self.pace.scenario(self.nodes, self.epochs, self.events);
        let nodes = scenario.most_nodes().map_err(Failure::wrong)?;
        if nodes > self.samples && self.samples > 0 {
            let said = format!("{nodes} nodes cannot share {}", plural(self.samples, "sample"));
            return Err(Failure::usage(format!("{said}: use fewer nodes")));
        }
        let shape = imagined::shape(self.samples, self.sample_bytes).map_err(Failure::wrong)?;
        // A name for imaginary samples, so that equal questions are about equal plans.
        let version = VersionId(Digest::of(format!("{} of {}", self.samples, self.sample_bytes).as_bytes()));
        let mut options = self.choices.options();
        if options.partitions.is_none() {
            let usual =
                PlanDocument::with_defaults(version, &shape, options.clone()).map_err(Failure::wrong)?;
            options.partitions = Some(usual.partitions.max(u32::try_from(nodes).unwrap_or(u32::MAX)));
        }
        let plan = make_plan(version, &shape, options)?;
        let report = play(&plan, shape.row_bytes, &scenario)?;
        match json {
            true => output::json(&report),
            false => output::print(&render(&report)),
        }
        Ok(())
    }
}

/// Plays the scenario; on a terminal a bar shows how far it is.
pub(crate) fn play(plan: &Plan, row_bytes: u64, scenario: &Scenario) -> Result<Report, Failure> {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(style("counting {wide_bar} {human_pos}/{human_len} moves, {rate}, {eta} left"));
    let report = simulate(plan, row_bytes, scenario, &|done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    report.map_err(Failure::wrong)
}

/// The report for people.
pub(crate) fn render(report: &Report) -> String {
    format!("{}\n{}", facts(&summary(report)), epochs(report))
}

fn summary(report: &Report) -> Vec<(&'static str, String)> {
    let whole = &report.summary;
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let time = |seconds: f64| Duration::try_from_secs_f64(seconds).map_or("without end".to_owned(), duration);
    let counted = match whole.counted_epochs == whole.epochs {
        true => "of all epochs, move by move".to_owned(),
        false => format!(
            "of {} of {} epochs, move by move; traffic of the others (marked ~) is estimated from the one before",
            whole.counted_epochs, whole.epochs
        ),
    };
    let looked_at =
        report.epochs.iter().filter_map(|epoch| epoch.home_share).map(|home| home.of_grains).max();
    let grains = match looked_at {
        Some(some) if some < report.grains => format!("; mixing of {} grains", count(some)),
        _ => String::new(),
    };
    let nodes = report.epochs.iter().map(|epoch| u64::from(epoch.nodes)).max().unwrap_or(1);
    let hiding = match whole.hiding_step_seconds {
        step if step < 1e-4 => "any step hides it".to_owned(),
        step => format!("steps of {} or more hide it", time(step)),
    };
    let mut facts = vec![
        ("dataset", format!("{} of {}", plural(report.samples, "sample"), size(report.row_bytes))),
        (
            "plan",
            format!(
                "{}, {} of {}, {} per exchange",
                plural(report.partitions.into(), "partition"),
                plural(report.grains, "grain"),
                plural(report.grain_rows.into(), "sample"),
                plural(report.chunks.into(), "chunk")
            ),
        ),
        ("counted", counted + &grains),
        (
            "moved",
            format!(
                "{} of the samples change partition in an exchange, {} predicted",
                percent(whole.moved_share),
                percent(whole.predicted_moved_share)
            ),
        ),
        (
            "exchange",
            format!(
                "{} over {}, {} predicted; {} per node and epoch, at most {}",
                size(whole.exchanged_bytes),
                plural(whole.epochs.into(), "epoch"),
                size(whole.predicted_exchanged_bytes),
                size(whole.exchanged_bytes / u64::from(whole.epochs) / nodes),
                size(whole.largest_node_bytes)
            ),
        ),
        ("connections", format!("at most {} of a node in an exchange", count(whole.most_peers.into()))),
        (
            "disk",
            format!(
                "at most {} on a node ({}), {} in the mean",
                size(whole.peak_node_bytes),
                plural(whole.peak_node_samples, "sample"),
                size(whole.mean_held_bytes)
            ),
        ),
        ("remote reads", format!("{} over all epochs", size(whole.remote_read_bytes))),
        (
            "time",
            format!(
                "{} for the slowest exchange at {}; {} ({} of {} samples)",
                time(whole.slowest_exchange_seconds),
                report.link_bytes_per_second,
                hiding,
                plural(report.steps_per_epoch, "step"),
                count(report.global_batch_size)
            ),
        ),
    ];
    if let (Some(hidden), Some(exposed)) = (whole.hidden_share, whole.exposed_seconds) {
        let waits =
            if exposed > 0.0 { format!("; each epoch waits {}", time(exposed)) } else { String::new() };
        facts.push(("hidden", format!("{}{waits}", percent(hidden))));
    }
    if report.epochs.iter().any(|epoch| epoch.change.is_some()) {
        facts.push((
            "changes",
            format!(
                "{} moved: {} from other nodes, {} from the store",
                plural(whole.partitions_moved, "partition"),
                size(whole.refetched_from_peers),
                size(whole.refetched_from_store)
            ),
        ));
    }
    facts
}

/// The epochs, or of many those with changes and ever fewer of the others.
fn epochs(report: &Report) -> String {
    let mut table = Table::new(&[
        "epoch",
        "nodes",
        "exchanged",
        "node max",
        "peers",
        "max",
        "disk max",
        "time",
        "home",
        "predicted",
        "moves",
    ]);
    let listed: Vec<&EpochReport> = match report.epochs.len() <= LISTED {
        true => report.epochs.iter().collect(),
        false => report.epochs.iter().filter(|epoch| is_telling(epoch, report)).collect(),
    };
    for epoch in &listed {
        let size = |bytes: u64| ByteSize(bytes).to_string();
        let unless = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.row([
            epoch.epoch.to_string(),
            count(epoch.nodes.into()),
            format!("{}{}", if epoch.is_counted { "" } else { "~" }, size(epoch.exchanged_bytes)),
            unless(epoch.largest_node_bytes.map(size)),
            unless(epoch.peers.map(|peers| format!("{:.1}", peers.mean))),
            unless(epoch.peers.map(|peers| count(peers.largest.into()))),
            unless(epoch.peak_node_bytes.map(size)),
            unless(epoch.exchange_seconds.map(|s| duration(Duration::from_secs_f64(s)))),
            unless(epoch.home_share.map(|home| format!("{:.4}", home.counted))),
            unless(epoch.home_share.map(|home| format!("{:.4}", home.predicted))),
            epoch.change.map(|change| count(change.partitions_moved)).unwrap_or_default(),
        ]);
    }
    match report.epochs.len() - listed.len() {
        0 => table.render(),
        more => format!("{}and {} between: --json lists all\n", table.render(), plural(more as u64, "epoch")),
    }
}

/// 0, 1, 2, 5, 10, 20, 50, …, the last, and those before which nodes came or went.
fn is_telling(epoch: &EpochReport, report: &Report) -> bool {
    let e = epoch.epoch;
    let unit = 10_u32.pow(e.checked_ilog10().unwrap_or(0));
    let is_round = e.is_multiple_of(unit) && [0, 1, 2, 5].contains(&(e / unit));
    is_round || e as usize + 1 == report.epochs.len() || epoch.change.is_some()
}
