//! Lists of a cluster for pages: nodes in rows of a few hundred bytes, sorted and cut where they are, so that a page of a cluster of
//! a thousand nodes asks for the rows that it shows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::NodeReport;
use crate::node::NodeId;
use crate::status::Lost;

/// A node in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeRow {
    /// Its name.
    pub id: NodeId,
    /// Where its HTTP API answers.
    pub http: String,
    /// Its state, the worst that applies.
    pub state: RowState,
    /// Whether it is to host nothing, whatever its state.
    #[serde(default)]
    pub draining: bool,
    /// The faults that nodes report of it, in a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub issues: Vec<String>,
    /// Partitions that it hosts, of all runs that are being read.
    pub hosted_partitions: usize,
    /// Ranks whose own node it is.
    pub ranks: usize,
    /// Bytes of its cache in use; with the rest below none if it did not answer.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<RowNumbers>,
    /// When it was last seen live, in seconds since 1970, if it is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub last_seen: Option<u64>,
}

/// The numbers of a node that answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RowNumbers {
    /// Bytes of its cache in use.
    pub cache_used_bytes: u64,
    /// The limit of it.
    pub cache_limit_bytes: u64,
    /// Free bytes of the disk of its cache; 0 if it does not say.
    pub disk_free_bytes: u64,
    /// The size of that disk; 0 if it does not say.
    pub disk_size_bytes: u64,
    /// Bytes read from the store since it started.
    pub origin_bytes: u64,
    /// Bytes sent to nodes on request since it started.
    pub served_bytes: u64,
    /// Grains that its cache lacked since it started.
    pub misses: u64,
    /// Grains of its disk that did not match the manifest since it started.
    pub corrupt_grains: u64,
    /// Processors used in the last seconds.
    pub processors: f64,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// When its process started, in seconds since 1970.
    pub start: u64,
    /// Its release.
    pub release: String,
    /// When its certificate ends, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub certificate_ends: Option<u64>,
}

impl RowNumbers {
    /// The part of its cache that is in use.
    #[must_use]
    pub fn cache_share(&self) -> f64 {
        part(self.cache_used_bytes, self.cache_limit_bytes)
    }

    /// The part of its disk that is in use; 1 if it does not say.
    #[must_use]
    pub fn disk_share(&self) -> f64 {
        1.0 - part(self.disk_free_bytes, self.disk_size_bytes)
    }
}

/// The state of a node in a list, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RowState {
    /// Live and well.
    Live,
    /// Live, and to host nothing.
    Draining,
    /// Live, and slow, silent or wrong as nodes report.
    Unhealthy,
    /// Live, and without an answer.
    Unanswered,
    /// Not live.
    Lost,
}

/// By what a list is sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RowOrder {
    /// By name.
    #[default]
    Name,
    /// By state, the worst first.
    State,
    /// By the part of the cache in use, the fullest first.
    Cache,
    /// By the part of the disk that is free, the fullest disk first.
    Disk,
    /// By bytes read from the store, most first.
    Origin,
    /// By processors used, most first.
    Processors,
}

impl RowOrder {
    /// Its name in requests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RowOrder::Name => "name",
            RowOrder::State => "state",
            RowOrder::Cache => "cache",
            RowOrder::Disk => "disk",
            RowOrder::Origin => "origin",
            RowOrder::Processors => "processors",
        }
    }
}

/// The names of the nodes of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named<'a> {
    /// Those that contain this text; all, if it is empty.
    Containing(&'a str),
    /// This one alone.
    Exactly(&'a NodeId),
}

/// Rows of a list of nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeRows {
    /// How many rows there are, before and after these too.
    pub total: usize,
    /// The number of the first of these, from 0.
    pub offset: usize,
    /// The rows.
    pub rows: Vec<NodeRow>,
}

impl NodeRows {
    /// Those of all nodes with such names, from a place on, at most `limit` of them.
    #[must_use]
    pub fn of(
        nodes: &[NodeReport],
        lost: &[Lost],
        order: RowOrder,
        named: Named<'_>,
        offset: usize,
        limit: usize,
    ) -> NodeRows {
        let mut ranks: BTreeMap<&NodeId, usize> = BTreeMap::new();
        for (node, _) in super::runs::ranks(nodes).values().flat_map(BTreeMap::values) {
            *ranks.entry(node).or_default() += 1;
        }
        let live = nodes.iter().map(|node| row(node, &ranks));
        let mut rows: Vec<NodeRow> = live.chain(lost.iter().map(lost_row)).collect();
        rows.retain(|row| match named {
            Named::Containing(part) => row.id.as_str().contains(part),
            Named::Exactly(id) => row.id == *id,
        });
        rows.sort_by(|one, other| one.id.cmp(&other.id));
        let descending = |rows: &mut Vec<NodeRow>, by: fn(&NodeRow) -> f64| {
            rows.sort_by(|one, other| by(other).total_cmp(&by(one)));
        };
        match order {
            RowOrder::Name => {}
            RowOrder::State => rows.sort_by_key(|row| std::cmp::Reverse(row.state)),
            RowOrder::Cache => descending(&mut rows, |row| number(row, RowNumbers::cache_share)),
            RowOrder::Disk => descending(&mut rows, |row| number(row, RowNumbers::disk_share)),
            RowOrder::Origin => descending(&mut rows, |row| number(row, |of| of.origin_bytes as f64)),
            RowOrder::Processors => descending(&mut rows, |row| number(row, |of| of.processors)),
        }
        let total = rows.len();
        let rows = rows.into_iter().skip(offset).take(limit).collect();
        NodeRows { total, offset, rows }
    }
}

/// A number of a row; less than any for one without.
fn number(row: &NodeRow, of: fn(&RowNumbers) -> f64) -> f64 {
    row.numbers.as_ref().map_or(f64::NEG_INFINITY, of)
}

fn part(of: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { of as f64 / whole as f64 }
}

fn row(node: &NodeReport, ranks: &BTreeMap<&NodeId, usize>) -> NodeRow {
    let state = match node {
        NodeReport { status: None, .. } => RowState::Unanswered,
        node if !node.state.health_issues.is_empty() => RowState::Unhealthy,
        node if node.state.draining.is_some() => RowState::Draining,
        _ => RowState::Live,
    };
    let numbers = node.status.as_ref().map(|status| {
        let machine = status.machine.clone().unwrap_or_default();
        let disk = machine.disks.iter().find(|disk| disk.directory == crate::machine::Directory::Cache);
        RowNumbers {
            cache_used_bytes: status.cache_used_bytes,
            cache_limit_bytes: status.cache_limit_bytes,
            disk_free_bytes: disk.map_or(0, |disk| disk.free_bytes),
            disk_size_bytes: disk.map_or(0, |disk| disk.size_bytes),
            origin_bytes: status.origin_bytes,
            served_bytes: status.counters.served_bytes,
            misses: status.counters.misses_from_peers + status.counters.misses_from_origin,
            corrupt_grains: status.counters.corrupt_on_disk,
            processors: machine.processors,
            resident_bytes: machine.resident_bytes,
            start: machine.start,
            release: machine.release,
            certificate_ends: machine.certificate_ends,
        }
    });
    NodeRow {
        id: node.state.record.id.clone(),
        http: node.state.record.http.clone(),
        state,
        draining: node.state.draining.is_some(),
        issues: node.state.health_issues.iter().map(ToString::to_string).collect(),
        hosted_partitions: node.state.drained.hosted,
        ranks: ranks.get(&node.state.record.id).copied().unwrap_or(0),
        numbers,
        last_seen: None,
    }
}

fn lost_row(lost: &Lost) -> NodeRow {
    NodeRow {
        id: lost.record.id.clone(),
        http: lost.record.http.clone(),
        state: RowState::Lost,
        draining: false,
        issues: Vec::new(),
        hosted_partitions: 0,
        ranks: 0,
        numbers: None,
        last_seen: lost.last_seen,
    }
}
