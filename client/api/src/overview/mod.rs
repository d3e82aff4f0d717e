//! One view of a cluster: whether training waits for data, in which stage, on which rank, since when, and when it will be done;
//! and each fault, with its cause and its remedy. Pure: the status of every node in, the view out.
//!
//! The console, `shardctl top` and `shardctl status` show it.

mod findings;
pub mod rows;
mod runs;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::drain::NodeState;
use crate::loop_time::Stage;
use crate::machine::{Forecast, MachineStatus};
use crate::node::NodeId;
use crate::protocol::RunId;
use crate::status::{Lost, NodeStatus};

/// A loop that waits for data for less than this part of its time is not held up by it.
pub const EXPOSED: f64 = 0.05;

/// A node, as the cluster knows it and as it sees itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeReport {
    /// As the cluster knows it.
    #[serde(flatten)]
    pub state: NodeState,
    /// As it sees itself; none if it did not answer...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub status: Option<NodeStatus>,
    /// ...which is why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub unanswered: Option<String>,
}

impl NodeReport {
    /// Its machine, if it says something of that.
    #[must_use]
    pub fn machine(&self) -> Option<&MachineStatus> {
        self.status.as_ref()?.machine.as_ref()
    }
}

/// What is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// The time, in seconds since 1970.
    pub now: u64,
    /// The live nodes.
    pub nodes: &'a [NodeReport],
    /// The members of the cluster that are not live.
    pub lost: &'a [Lost],
    /// Why the metadata cannot be reached, if so.
    pub metadata_trouble: Option<&'a str>,
}

/// One view of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Overview {
    /// When it was made, in seconds since 1970.
    pub at: u64,
    /// How many nodes there are, by state.
    pub nodes: NodeCounts,
    /// The runs that are being read, the one that waits most for data first, at most [`MOST_RUNS`].
    pub runs: Vec<RunOverview>,
    /// How many more runs are being read.
    #[serde(default)]
    pub more_runs: usize,
    /// What is wrong, the worst first, at most [`MOST_FINDINGS`].
    pub findings: Vec<Finding>,
    /// How much more is wrong.
    #[serde(default)]
    pub more_findings: usize,
    /// The bytes of all nodes.
    pub totals: Totals,
}

/// The most runs of an overview.
pub const MOST_RUNS: usize = 50;
/// The most findings of an overview.
pub const MOST_FINDINGS: usize = 100;

/// A view of a cluster, and the node that gives it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OverviewHere {
    /// The node.
    pub node: NodeId,
    /// Its release.
    pub release: String,
    /// The view.
    #[serde(flatten)]
    pub overview: Overview,
}

/// Nodes by state; one may be in several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeCounts {
    /// Live.
    pub live: usize,
    /// Members that are not live.
    pub lost: usize,
    /// Live, and to host nothing.
    pub draining: usize,
    /// Live, and slow, silent or wrong as nodes report.
    pub unhealthy: usize,
    /// Live, and without an answer to the question for this view.
    pub unanswered: usize,
}

/// The bytes of all nodes that answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Totals {
    /// In their caches.
    pub cache_used_bytes: u64,
    /// The limits of these.
    pub cache_limit_bytes: u64,
    /// Read from the store since the nodes started.
    pub origin_bytes: u64,
    /// Sent by the exchange, in the epochs that nodes keep counts of.
    pub exchange_bytes: u64,
    /// Grains that did not match the manifest, on disks and from nodes. Each was fetched again.
    pub corrupt_grains: u64,
}

/// A run that is being read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunOverview {
    /// The run.
    pub run: RunId,
    /// Ranks that read at some node.
    pub ranks: usize,
    /// The epoch of the rank that is ahead, from 0.
    pub epoch: u32,
    /// Samples of it that all ranks together have read, as that rank reports.
    pub position: u64,
    /// Samples of an epoch.
    pub epoch_samples: u64,
    /// Samples that all ranks together read per second; none if no rank reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub samples_per_second: Option<f64>,
    /// When the epoch ends, at the rate of the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub epoch_ends: Option<Forecast>,
    /// What it waits for: of the rank that waits most. None if no rank reports where its time goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub waits: Option<RunWaits>,
    /// The rank that the others wait for although it has its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub slow: Option<SlowRank>,
    /// The ranks, those that wait most first, at most [`MOST_RANKS`].
    pub readers: Vec<RankOverview>,
    /// The exchange before the next epoch.
    pub exchange: RunExchange,
}

/// The most ranks that an overview lists of a run.
pub const MOST_RANKS: usize = 32;

/// How much of its time a run waits for data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunWaits {
    /// The part of the last minute that the rank waited: 0 is best.
    pub exposed_share: f64,
    /// The stage that it waited for most, if it waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub stage: Option<Stage>,
    /// The rank.
    pub rank: u32,
    /// The node that it reports to.
    pub node: NodeId,
    /// Since when it waits for more than [`EXPOSED`] of its time, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub since: Option<u64>,
    /// Whether the other ranks wait much less: then this rank alone slows every step.
    pub is_straggler: bool,
}

/// A rank of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RankOverview {
    /// The rank.
    pub rank: u32,
    /// The node that it reports to.
    pub node: NodeId,
    /// Samples that it takes per second.
    pub samples_per_second: f64,
    /// The part of its time in which its loop works.
    pub compute_share: f64,
    /// The part in which it waits for other ranks, if its trainer notes that.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub ranks_share: f64,
    /// The parts in which it waits, by stage.
    pub wait_shares: std::collections::BTreeMap<Stage, f64>,
}

/// A rank whose own work takes longer than that of the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SlowRank {
    /// The rank.
    pub rank: u32,
    /// The node that it reports to.
    pub node: NodeId,
    /// The part of its time in which it works.
    pub compute_share: f64,
    /// The part of their time that half of the other ranks, or more, wait for ranks.
    pub others_wait_share: f64,
}

/// The exchange of a run before its next epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunExchange {
    /// Bytes that nodes have yet to send.
    pub waiting_bytes: u64,
    /// Nodes that send nothing until an operator lifts it.
    pub paused_nodes: usize,
    /// The part of the sending of the last whole epoch that was hidden behind reading, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub hidden_share: Option<f64>,
    /// Grains that could not be sent in time in the epochs that nodes keep counts of; ranks fetched them.
    pub unsent_grains: u64,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Training is slower than it has to be, or will stop if nothing changes.
    Warning,
    /// Training stops, or data is in danger.
    Critical,
}

impl Severity {
    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Its kind, as alerts have it: `disk_fills_up`, `corrupt_grains`, `straggler`.
    pub kind: String,
    /// In a few words.
    pub title: String,
    /// The cause, with its measurements.
    pub cause: String,
    /// What to do.
    pub remedy: String,
    /// The node that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub node: Option<NodeId>,
    /// The run that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub run: Option<RunId>,
    /// The rank that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub rank: Option<u32>,
    /// Since when, in seconds since 1970, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub since: Option<u64>,
}

/// The view of what was observed.
#[must_use]
pub fn overview(observed: &Observed<'_>) -> Overview {
    let mut runs = runs::runs(observed.nodes);
    let mut findings = findings::findings(observed, &runs);
    let more_runs = runs.len().saturating_sub(MOST_RUNS);
    let more_findings = findings.len().saturating_sub(MOST_FINDINGS);
    runs.truncate(MOST_RUNS);
    findings.truncate(MOST_FINDINGS);
    let (nodes, totals) = (counts(observed), totals(observed.nodes));
    Overview { at: observed.now, nodes, runs, more_runs, findings, more_findings, totals }
}

fn counts(observed: &Observed<'_>) -> NodeCounts {
    let having = |has: fn(&NodeReport) -> bool| observed.nodes.iter().filter(|node| has(node)).count();
    NodeCounts {
        live: observed.nodes.len(),
        lost: observed.lost.len(),
        draining: having(|node| node.state.draining.is_some()),
        unhealthy: having(|node| !node.state.health_issues.is_empty()),
        unanswered: having(|node| node.status.is_none()),
    }
}

fn totals(nodes: &[NodeReport]) -> Totals {
    nodes.iter().filter_map(|node| node.status.as_ref()).fold(Totals::default(), |sum, status| {
        let counters = &status.counters;
        Totals {
            cache_used_bytes: sum.cache_used_bytes + status.cache_used_bytes,
            cache_limit_bytes: sum.cache_limit_bytes + status.cache_limit_bytes,
            origin_bytes: sum.origin_bytes + status.origin_bytes,
            exchange_bytes: sum.exchange_bytes
                + counters.exchange.iter().map(|epoch| epoch.counts.sent_bytes).sum::<u64>(),
            corrupt_grains: sum.corrupt_grains + counters.corrupt_on_disk + counters.corrupt_from_peers,
        }
    })
}
