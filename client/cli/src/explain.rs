//! `shardctl explain`: explains the hosts of partitions, the moves of a sample, misses, and the samples of a step.

mod step;

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde::Serialize;
use shardd_api::drain::NodeState;
use shardd_api::explain::{
    MissSource, MissesExplained, PartitionExplained, PlacementExplained, Waits, Wanted,
};
use shardd_api::lookup::{self, Stop};
use shardd_api::node::NodeId;
use shardd_api::placement::explain::{Because, Why};
use shardd_api::protocol::RunId;
use shardd_plan::Plan;
use shardd_store::connect::Connect;
use shardfmt::ByteSize;

use crate::failure::Failure;
use crate::human::{count, plural};
use crate::nodes::live_nodes;
use crate::output;
use crate::table::{Table, facts};

/// Lines of a table that people are shown.
const LISTED: usize = 64;

/// Explain where the parts of a run are, and why, and what a step read
#[derive(Args)]
pub(crate) struct Explain {
    #[command(subcommand)]
    command: ExplainCommand,
}

#[derive(Subcommand)]
enum ExplainCommand {
    /// Which node hosts which partition and why, its cost in each epoch, and the moves to come
    Placement(Placement),
    /// Where a sample was, is and will be, by plan and present placement, and which node sends it to which
    Move(Move),
    /// The missing grains, and the nodes that sent them: since each node started
    Misses(Misses),
    /// The samples that each rank read in a step of a recorded training, and its loss
    Step(step::ExplainStep),
}

#[derive(Args)]
struct Placement {
    /// The run
    run: RunId,
}

#[derive(Args)]
struct Move {
    /// The run
    run: RunId,

    /// Number of the sample in the order of the dataset, from 0
    sample: u64,

    /// First epoch to show [default: the one before the present one]
    #[arg(long, value_name = "EPOCH")]
    from: Option<u32>,

    /// How many epochs to show
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    epochs: u32,
}

#[derive(Args)]
struct Misses {
    /// The run
    run: RunId,
}

impl Explain {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        match self.command {
            ExplainCommand::Placement(placement) => placement.run(connect, json),
            ExplainCommand::Move(moved) => moved.run(connect, json),
            ExplainCommand::Misses(misses) => misses.run(connect, json),
            ExplainCommand::Step(step) => step.run(connect, json),
        }
    }
}

impl Placement {
    fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let explained = explained(connect, &self.run)?;
        match json {
            true => output::json(&explained),
            false => output::print(&render(&explained)),
        }
        Ok(())
    }
}

fn explained(connect: &Connect, run: &RunId) -> Result<PlacementExplained, Failure> {
    let servers = connect.servers()?;
    let url = format!("{}/v1/runs/{run}/placement", servers.first_that_answers());
    Ok(servers.http().get_json(&url)?)
}

fn render(explained: &PlacementExplained) -> String {
    let PlacementExplained { run, generation, partitions, partition_bytes, .. } = explained;
    if *generation == 0 {
        return format!("run {run} has no placement yet: it is made when its ranks attach\n");
    }
    let mut page = facts(&[
        ("run", run.to_string()),
        ("placement", format!("generation {generation}, epoch {}", explained.epoch)),
        (
            "partitions",
            format!("{}, of about {} each", count(partitions.len() as u64), ByteSize(*partition_bytes)),
        ),
        ("read elsewhere", format!("{} an epoch", ByteSize(explained.remote_bytes_per_epoch))),
    ]);
    let mut nodes = Table::new(&["node", "hosts", "room for", "ranks", "state"]);
    for node in &explained.nodes {
        let state = match (node.is_live, node.draining) {
            (false, _) => "gone",
            (true, Some(_)) => "draining",
            (true, None) => "",
        };
        nodes.row([
            node.node.to_string(),
            count(node.hosts),
            count(node.room),
            node.ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            state.to_owned(),
        ]);
    }
    page.push_str(&format!("\n{}\n", nodes.render()));
    let mut table = Table::new(&["partitions", "node", "rank", "reads at", "why"]);
    let alike = |one: &PartitionExplained, other: &PartitionExplained| {
        (&one.node, one.rank, one.why) == (&other.node, other.rank, other.why)
    };
    let groups: Vec<_> = partitions.chunk_by(alike).collect();
    for group in groups.iter().take(LISTED) {
        let (first, last) = (&group[0], &group[group.len() - 1]);
        let numbers = match group.len() {
            1 => first.partition.to_string(),
            _ => format!("{}-{}", first.partition, last.partition),
        };
        table.row([
            numbers,
            first.node.to_string(),
            first.rank.map(|rank| rank.to_string()).unwrap_or_default(),
            first.reads_at.as_ref().map(ToString::to_string).unwrap_or_default(),
            why(first.why).to_owned(),
        ]);
    }
    page.push_str(&table.render());
    page.push_str(&more(groups.len()));
    page.push_str(&format!("\n{}", moves(explained)));
    page
}

fn more(lines: usize) -> String {
    match lines.saturating_sub(LISTED) {
        0 => String::new(),
        more => format!("and {} more: --json lists all\n", plural(more as u64, "line")),
    }
}

/// The moves to come, their cost once, and their saving from then on.
pub(crate) fn moves(explained: &PlacementExplained) -> String {
    let PlacementExplained { moves, remote_bytes_per_epoch: now, remote_bytes_per_epoch_then: then, .. } =
        explained;
    if moves.is_empty() {
        return "nothing is to move\n".to_owned();
    }
    let copied: u64 = moves.iter().map(|step| step.copied_bytes).sum();
    let mut table = Table::new(&["partition", "from", "to", "because"]);
    for step in moves.iter().take(LISTED) {
        let because = because(step.because).to_owned();
        table.row([step.partition.to_string(), step.from.to_string(), step.to.to_string(), because]);
    }
    let saves = match (now.saturating_sub(*then), then.saturating_sub(*now)) {
        (0, 0) => "nothing is saved by it: as much is read elsewhere as before".to_owned(),
        (0, more) => format!("{} more are read elsewhere in each epoch", ByteSize(more)),
        (less, _) => format!(
            "{} less are read elsewhere in each epoch: paid back after {:.1}",
            ByteSize(less),
            copied as f64 / less as f64
        ),
    };
    let waits = match explained.waits {
        Some(Waits::Copying) => "\nthe next step waits until the last one's are copied",
        Some(Waits::Gathering) => "\nit waits until all ranks of the launch are attached",
        Some(Waits::NoRanks) | None => "",
    };
    format!(
        "{}{}{} to move, {} to copy once; {saves}{waits}\n",
        table.render(),
        more(moves.len()),
        plural(moves.len() as u64, "partition"),
        ByteSize(copied),
    )
}

fn why(why: Why) -> &'static str {
    match why {
        Why::ItsRank => "its rank reads there",
        Why::Moves => "is to move, see below",
        Why::NoRank => "no rank is attached: it stays where it was",
        Why::RankGone => "the node where its rank reads is gone",
        Why::RankDraining => "the node where its rank reads is to host nothing",
        Why::RankFull => "the node where its rank reads has no room for more",
        Why::RankShare => {
            "not moved: its rank's node hosts an even share, a swap costs two copies and saves nothing"
        }
    }
}

fn because(because: Because) -> &'static str {
    match because {
        Because::HostGone => "its host is gone",
        Because::HostDrains => "its host is to host nothing",
        Because::ItsRank => "its rank reads there",
        Because::HostFull => "its host has no room for its partitions",
        Because::EvenShares => "all nodes host the same number",
    }
}

/// An epoch of a sample, with nodes' names.
#[derive(Serialize)]
struct NamedEpoch {
    #[serde(flatten)]
    stop: Stop,
    /// The host of its partition.
    node: NodeId,
    /// The rank that reads it, and where, if one is attached.
    rank: Option<u32>,
    reads_at: Option<NodeId>,
    /// The node that its grain is sent to after the epoch; `None` if it stays on its node.
    sent_to: Option<NodeId>,
}

impl Move {
    fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let explained = explained(connect, &self.run)?;
        if explained.partitions.is_empty() {
            return Err(Failure::failed(format!(
                "run {} has no placement yet: it is made when its ranks attach; `shardctl plan where` tells by plan alone",
                self.run
            )));
        }
        let catalog = connect.catalog()?;
        let document = catalog.plan(explained.plan)?;
        let manifest = catalog.open_manifest(document.version)?;
        let plan = Plan::new(document, &manifest.shard_rows()?)?;
        let from = self.from.unwrap_or_else(|| explained.epoch.saturating_sub(1));
        let epochs = from..from.saturating_add(self.epochs);
        let stops = lookup::journey(&plan, &manifest, epochs, self.sample).map_err(Failure::wrong)?;
        let placed = |partition: u32| &explained.partitions[partition as usize];
        let tell = |stop: Stop| {
            let PartitionExplained { node, rank, reads_at, .. } = placed(stop.found.partition).clone();
            let to = stop.leaves.map(|leave| placed(leave.to).node.clone());
            NamedEpoch { stop, rank, reads_at, sent_to: to.filter(|to| *to != node), node }
        };
        let told: Vec<NamedEpoch> = stops.into_iter().map(tell).collect();
        if json {
            output::json(&told);
            return Ok(());
        }
        let mut table = Table::new(&["epoch", "position", "partition", "node", "read by", "after the epoch"]);
        for NamedEpoch { stop: Stop { found, leaves }, node, rank, reads_at, sent_to } in &told {
            let read_by = match (rank, reads_at) {
                (Some(rank), Some(at)) => format!("rank {rank} at {at}"),
                _ => String::new(),
            };
            let after = match (leaves, sent_to) {
                (None, _) => "stays".to_owned(),
                (Some(leave), None) => format!("to partition {}, on the same node", leave.to),
                (Some(leave), Some(to)) => format!(
                    "to partition {}: {node} sends it to {to} in chunk {}, from position {} on",
                    leave.to,
                    leave.chunk,
                    count(leave.due)
                ),
            };
            let (epoch, position) = (found.epoch.to_string(), count(found.position));
            table.row([epoch, position, found.partition.to_string(), node.to_string(), read_by, after]);
        }
        let about = format!(
            "run {} is in epoch {}; by the placement of generation {}, past and coming epochs, too\n",
            self.run, explained.epoch, explained.generation
        );
        output::print(&format!("{}\n{about}", table.render()));
        Ok(())
    }
}

impl Misses {
    fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let servers = connect.servers()?;
        let (server, http) = (servers.first_that_answers(), servers.http());
        let nodes = live_nodes(&http, server)?;
        let url = |at: &str| format!("{at}/v1/runs/{}/misses", self.run);
        // Whether there is such a run.
        let _: MissesExplained = http.get_json(&url(server))?;
        let ask = |node: &NodeState| http.get_json(&url(&node.record.http));
        let misses: Vec<MissesExplained> = nodes.iter().filter_map(|node| ask(node).ok()).collect();
        match json {
            true => output::json(&misses),
            false => output::print(&tell_misses(&misses)),
        }
        Ok(())
    }
}

fn tell_misses(misses: &[MissesExplained]) -> String {
    let mut sums = BTreeMap::<_, (u64, u64)>::new();
    for (node, of) in misses.iter().flat_map(|of| of.counts.iter().map(move |count| (&of.node, count))) {
        let sum = sums.entry((of.epoch, of.wanted, node, of.source, &of.from)).or_default();
        *sum = (sum.0 + of.grains, sum.1 + of.bytes);
    }
    if sums.is_empty() {
        return "nothing was missed, and nothing brought\n".to_owned();
    }
    let mut table = Table::new(&["epoch", "at node", "wanted", "given by", "grains", "size"]);
    for ((epoch, wanted, node, from_whom, from), (grains, bytes)) in sums.iter().rev().take(LISTED) {
        let given_by = match from {
            Some(from) => format!("{from}, {}", source(*from_whom)),
            None => source(*from_whom).to_owned(),
        };
        let wanted = match wanted {
            Wanted::ToRead => "by a loader, which waited",
            Wanted::ToKeep => "for the cache",
        };
        let size = ByteSize(*bytes).to_string();
        table.row([epoch.to_string(), node.to_string(), wanted.to_owned(), given_by, count(*grains), size]);
    }
    let mut page = table.render() + &more(sums.len());
    let latest: Vec<_> =
        misses.iter().flat_map(|of| of.latest.iter().map(move |grain| (&of.node, grain))).collect();
    if !latest.is_empty() {
        let mut table = Table::new(&["epoch", "grain", "partition", "at node", "given by"]);
        for (node, missed) in latest.iter().rev().take(LISTED) {
            let (epoch, partition) = (missed.epoch.to_string(), missed.partition.to_string());
            let from = missed.from.as_ref().map_or_else(|| "the store".to_owned(), ToString::to_string);
            table.row([epoch, count(missed.grain), partition, node.to_string(), from]);
        }
        page.push_str(&format!("\nloaders waited lately for\n{}", table.render()));
    }
    page
}

fn source(source: MissSource) -> &'static str {
    match source {
        MissSource::Host => "the host",
        MissSource::HostBefore => "the host in the epoch before",
        MissSource::FormerHost => "the host by the placement before",
        MissSource::HostNext => "the host in the next epoch",
        MissSource::Reader => "the reader of the shard",
        MissSource::Neighbour => "which had it by chance",
        MissSource::Store => "the store",
    }
}
