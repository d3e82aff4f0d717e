//! What loaders and nodes say to each other: plain values with a JSON form, the same for the HTTP server, the loader and the
//! metastore. Knows nothing of sockets.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use shardfmt::{DigestSum, PlanId, VersionId};

use crate::local_transport::Transport;
use crate::loop_time::LoopTime;
use crate::node::{NodeId, NodeRecord};
#[cfg(feature = "openapi")]
use crate::schema::text_schema;
use crate::serde_str::as_text;

/// No run has more epochs than this. The limit is for requests that our loaders do not make: an epoch costs more
/// work the more exchanges come before it.
pub const MAX_EPOCH: u32 = 1 << 20;

/// Where a run is in its plan. The same on every rank and for every world size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// The plan the position belongs to; another plan's loader refuses it.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::Digest))]
    pub plan: PlanId,
    /// Epoch, from 0.
    pub epoch: u32,
    /// Samples of the epoch's global order already handed to the user.
    pub position: u64,
}

/// The name of a run: chosen by the user, unique in a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(String);

/// A run's name has other characters than `a-z 0-9 . _ -`, or is empty or too long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("run name {0:?} is not 1 to 63 of a-z, 0-9, '.', '_', '-', starting with a letter or digit")]
pub struct BadRunId(String);

impl FromStr for RunId {
    type Err = BadRunId;

    fn from_str(text: &str) -> Result<Self, BadRunId> {
        let first = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let rest = text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'));
        if first && rest && text.len() <= 63 { Ok(Self(text.into())) } else { Err(BadRunId(text.into())) }
    }
}

as_text!(RunId);

#[cfg(feature = "openapi")]
text_schema! {
    RunId: "^[a-z0-9][a-z0-9._-]{0,62}$", "The name of a run";
}

impl RunId {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Makes a run known. Repeating it is harmless; another plan or V under the same name is a conflict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateRun {
    /// The run's name.
    pub id: RunId,
    /// The plan it trains over.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::Digest))]
    pub plan: PlanId,
    /// V, fixed for the life of the run.
    pub virtual_ranks: u32,
}

/// A run as the metastore keeps it under `runs/<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunRecord {
    /// The run's name.
    pub id: RunId,
    /// The plan it trains over.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::Digest))]
    pub plan: PlanId,
    /// The version that plan is over.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::Digest))]
    pub version: VersionId,
    /// V.
    pub virtual_ranks: u32,
    /// When it was made known, in seconds since 1970; absent of runs from before this was written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub began: Option<u64>,
    /// When the last rank of its last launch detached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub left: Option<u64>,
    /// Whether that launch had lost ranks: their processes ended without detaching.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// Whether it is being removed: no rank attaches any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removing: bool,
}

impl RunRecord {
    /// Whether this is the record of the same run, at whatever time: a name that was removed may be that of another one.
    pub fn is_same_run(&self, other: &RunRecord) -> bool {
        let identity = |run: &RunRecord| (run.plan, run.version, run.virtual_ranks, run.began);
        self.id == other.id && identity(self) == identity(other)
    }
}

/// The rendezvous address of a training, as the metastore keeps it under `rendezvous/<run>` while rank 0 waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Rendezvous {
    /// Where rank 0 listens, as `host:port`.
    pub address: String,
    /// How many ranks it waits for, itself among them.
    pub world: u32,
}

/// A rank tells its node that it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// How many ranks there are.
    pub world: u32,
    /// The epoch in which the rank begins to read: what the nodes fill their caches for.
    pub epoch: u32,
}

/// Where a rank reads, as the metastore keeps it under `ranks/<run>`: one document for all ranks of a launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RanksRecord {
    /// Tells launches of one run apart; later ones have greater numbers.
    pub launch: u64,
    /// How many ranks there are; another world size replaces the document.
    pub world: u32,
    /// The epoch in which they began.
    pub epoch: u32,
    /// The epoch that they have reached: what a node that comes back fills its cache for.
    pub reached: u32,
    /// The node each rank attached to; `None` until it has.
    pub nodes: Vec<Option<NodeId>>,
    /// When a node last wrote down that it hears of ranks, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
    /// Ranks that attached to this launch and whose processes ended without detaching.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<u32>,
}

impl RanksRecord {
    /// A launch of `world` ranks that begin in `epoch`, none of which has attached.
    pub fn begun(launch: u64, world: u32, epoch: u32) -> Self {
        let nodes = vec![None; world as usize];
        Self { launch, world, epoch, reached: epoch, nodes, seen: None, lost: Vec::new() }
    }
}

/// Which node hosts which partition, as the metastore keeps it under `placements/<run>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Placement {
    /// Counts the placements of a run, from 1. Later messages of an older generation are harmless: grains are
    /// verified, and a miss finds its way.
    pub generation: u64,
    /// The hosts, by name.
    pub hosts: Vec<NodeId>,
    /// For each partition the index of its host in `hosts`.
    pub of_partition: Vec<u16>,
    /// The partitions that have another host than in the placement before, ascending: what nodes are copying.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<u32>,
    /// Of hosts that have gone, the partitions that went from them straight to the present hosts: should one
    /// come back, its disk may still have them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub departed: BTreeMap<NodeId, Vec<u32>>,
}

impl Placement {
    /// The host of partition `partition`.
    pub fn host(&self, partition: u32) -> &NodeId {
        &self.hosts[usize::from(self.of_partition[partition as usize])]
    }

    /// The partitions that `node` hosts, ascending.
    pub fn hosted_by<'a>(&'a self, node: &'a NodeId) -> impl Iterator<Item = u32> + 'a {
        let index = self.hosts.iter().position(|host| host == node);
        (0u32..)
            .zip(&self.of_partition)
            .filter(move |(_, at)| Some(usize::from(**at)) == index)
            .map(|(p, _)| p)
    }
}

/// Whether the caches hold a run's grains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Room {
    /// Bytes that all caches of the run's hosts need together, while an exchange is under way.
    pub needed_bytes: u64,
    /// Bytes that they have for it.
    pub cache_bytes: u64,
    /// Bytes that are read from the store in every epoch after the first because they fit nowhere.
    pub from_store_bytes_per_epoch: u64,
    /// Some cache has no room for all that its node hosts: the rest is read row by row.
    #[serde(default)]
    pub by_rows: bool,
}

/// All a loader needs to know to read: the run, who hosts what, where they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunView {
    /// The run.
    pub run: RunRecord,
    /// The placement, once there is one.
    pub placement: Option<Placement>,
    /// The live nodes.
    pub nodes: Vec<NodeRecord>,
    /// Whether their caches hold it, once there is a placement.
    #[serde(default)]
    pub room: Option<Room>,
    /// How many ranks are attached, as the asked node knows it.
    #[serde(default)]
    pub attached: u32,
}

/// Asks a node where grains are; also the report of how far the rank has come, and the renewal of its hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LocateRequest {
    /// Who asks.
    pub rank: u32,
    /// Of how many.
    pub world: u32,
    /// The epoch the rank has consumed up to...
    pub epoch: u32,
    /// ...and the position in it: what the exchange is timed by.
    pub position: u64,
    /// The epoch in which the grains below are read.
    pub for_epoch: u32,
    /// Grain numbers of the plan. Empty: only a report.
    pub grains: Vec<u64>,
    /// How the asker gets grains from this node: to all but a stream, the reply has passes for segments
    /// instead of bytes.
    #[serde(default)]
    pub transport: Transport,
    /// The grains given before were wrong: grains checked lately have to be checked again.
    #[serde(default)]
    pub doubted: bool,
    /// For each grain the rows that are wanted of it, of nodes whose room is short (`by_rows`): they read the
    /// rest from the store, and only the wanted rows. Empty: all rows of all grains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<Vec<u32>>,
    /// Where the time of the rank's loop went, for nodes whose replies say that they take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub loop_time: Option<LoopTime>,
}

/// The header of the answer to a [`LocateRequest`]; inline grains follow it in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocateReply {
    /// The placement generation the node goes by: a loader with an older one refreshes its view.
    pub generation: u64,
    /// One entry per grain asked for, in order.
    pub grains: Vec<Located>,
    /// The node's room is short: from now on it should be asked for rows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_rows: bool,
    /// The node takes reports of a loop's time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_loop_time: bool,
    /// The node takes what a trainer notes of its steps with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_notes: bool,
}

/// Where one grain is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Located {
    /// In a segment. It is never rewritten or truncated; it may be unlinked, which an open map survives.
    File {
        /// The segment's pass, for the node's socket ([`crate::local_transport`]).
        segment: String,
        /// Where the grain begins, in bytes.
        offset: u64,
        /// Its length in bytes.
        len: u32,
    },
    /// In the body of this answer.
    Inline {
        /// Its length in bytes.
        len: u32,
    },
    /// The rows that were asked for are in the body of this answer, with what proves them ([`shardfmt::sparse`]).
    Rows {
        /// The length of all of it in bytes.
        len: u32,
    },
}

impl Located {
    /// The length of what it names, in bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        match self {
            Located::File { len, .. } | Located::Inline { len } | Located::Rows { len } => *len,
        }
    }

    /// Whether that is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The answer of `/v1/health` and `/v1/ready`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    /// `ok` or `ready`.
    pub status: String,
    /// The node's name.
    pub id: NodeId,
    /// Where its peers connect.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub quic: std::net::SocketAddr,
    /// Its release.
    pub release: String,
}

/// Asks a node to host nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// Whether it shall stop as soon as it does.
    #[serde(default)]
    pub leave: bool,
}

/// Asks a node to take over the metadata.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PromoteRequest {}

/// Asks to move the metadata of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MigrateRequest {
    /// The new place: `store`, or the URL of an etcd. The present place gives up a move that was interrupted.
    pub to: String,
}

/// Where the metadata of a cluster is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MigrateReply {
    /// The place.
    pub at: String,
    /// How many entries have moved there; none if a move was given up.
    pub entries: Option<u64>,
}

/// A rank's report at the end of an epoch on its reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AuditReport {
    /// Who reports.
    pub rank: u32,
    /// Of how many.
    pub world: u32,
    /// The epoch it finished.
    pub epoch: u32,
    /// Samples it read.
    pub samples: u64,
    /// The sum of their row digests: with the other ranks' it must equal the manifest's.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::DigestSum))]
    pub digest_sum: DigestSum,
    /// Samples of a step of all ranks, which settle what share of it each reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub global_batch_size: Option<u64>,
}

/// Reports of a run that no node has taken, as a file keeps them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnsentReports {
    /// The run.
    pub run: RunId,
    /// The samples that its ranks read.
    pub reports: Vec<AuditReport>,
}

/// A name for the running kernel of this machine. Processes with the same one may hope to find each other's sockets.
pub fn host_identity() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(boot.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_names_are_checked() {
        for good in ["a", "demo-1", "2026.11", "x_y"] {
            assert_eq!(good.parse::<RunId>().map(|id| id.to_string()), Ok(good.into()));
        }
        let long = "a".repeat(64);
        for bad in ["", "-a", "A", "a b", "a/b", "ä", long.as_str()] {
            assert_eq!(bad.parse::<RunId>(), Err(BadRunId(bad.into())));
        }
    }

    #[test]
    fn a_placement_answers_both_ways() {
        let node = |name: &str| name.parse::<NodeId>().expect("a good name");
        let placement = Placement {
            generation: 1,
            hosts: vec![node("a"), node("b")],
            of_partition: vec![1, 0, 1],
            moved: vec![],
            departed: BTreeMap::new(),
        };
        assert_eq!(placement.host(0), &node("b"));
        assert_eq!(placement.hosted_by(&node("b")).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(placement.hosted_by(&node("c")).count(), 0);
    }
}
