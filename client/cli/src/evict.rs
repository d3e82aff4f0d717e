//! `shardctl evict`: clears caches of what no run wants.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use shardd_api::drain::NodeState;
use shardd_api::evict::{Evict as Asked, Evicted};
use shardd_api::node::NodeId;
use shardd_store::connect::{Connect, find_version};
use shardd_store::http::HttpClient;
use shardfmt::{ByteSize, DatasetRef};

use crate::failure::Failure;
use crate::human::count;
use crate::nodes::{live_nodes, not_live};
use crate::output;
use crate::table::Table;

/// Drop the grains that no run with attached ranks wants from the nodes' caches, of a version or of all
///
/// Hosted grains of such a run stay, and so do grains that arrived for its next epoch or are still to be
/// sent; files that a loader has open stay readable to it. A segment of which more than half is wanted stays
/// whole. The store keeps everything.
#[derive(Args)]
pub(crate) struct Evict {
    /// The version, such as NAME, NAME@TAG or NAME@~2
    version: Option<DatasetRef>,

    /// Drop grains of all versions
    #[arg(long, conflicts_with = "version")]
    all: bool,

    /// Only at this node [default: at all live ones]
    #[arg(long, value_name = "NODE")]
    node: Option<NodeId>,

    /// Only list the grains that would go
    #[arg(long)]
    dry_run: bool,
}

/// How long a node may take to clear its cache: it may have to move what stays.
const CLEARED_WITHIN: Duration = Duration::from_secs(3600);

/// A node's answer.
#[derive(Serialize)]
struct OfNode {
    node: NodeId,
    evicted: Option<Evicted>,
    /// Why there is none.
    error: Option<String>,
}

impl Evict {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let servers = connect.servers()?;
        let (server, http) = (servers.first_that_answers(), servers.http());
        let version = match &self.version {
            Some(asked) => Some(find_version(&*connect.catalog()?, asked)?.version),
            None if self.all => None,
            None => return Err(Failure::usage("name a version, such as NAME or NAME@TAG, or say --all")),
        };
        let mut nodes = live_nodes(&http, server)?;
        if let Some(node) = &self.node {
            nodes.retain(|state| state.record.id == *node);
            if nodes.is_empty() {
                return Err(not_live(node));
            }
        }
        let asked = Asked { version, dry_run: self.dry_run };
        let patient = servers.http_within(CLEARED_WITHIN);
        let answers: Vec<OfNode> = nodes.iter().map(|node| ask(&patient, node, &asked)).collect();
        match json {
            true => output::json(&answers),
            false => output::print(&render(&answers, self.dry_run)),
        }
        let silent = answers.iter().find_map(|of| Some((&of.node, of.error.as_ref()?)));
        silent.map_or(Ok(()), |(node, error)| Err(Failure::failed(format!("node {node}: {error}"))))
    }
}

fn ask(http: &HttpClient, node: &NodeState, asked: &Asked) -> OfNode {
    let answer = http.post_json(&format!("{}/v1/evict", node.record.http), asked);
    let (evicted, error) = match answer {
        Ok(evicted) => (Some(evicted), None),
        Err(error) => (None, Some(error.to_string())),
    };
    OfNode { node: node.record.id.clone(), evicted, error }
}

fn render(answers: &[OfNode], dry_run: bool) -> String {
    let mut table =
        Table::new(&["node", if dry_run { "would go" } else { "gone" }, "grains", "segments", "left"]);
    for OfNode { node, evicted, .. } in answers {
        let mut cells = vec![node.to_string()];
        match evicted {
            None => cells.push("no answer".to_owned()),
            Some(Evicted { cleared, used_bytes, .. }) => {
                let left = if dry_run { used_bytes.saturating_sub(cleared.bytes) } else { *used_bytes };
                cells.extend([
                    ByteSize(cleared.bytes).to_string(),
                    count(cleared.grains),
                    count(cleared.segments),
                    ByteSize(left).to_string(),
                ]);
            }
        }
        table.row(cells);
    }
    table.render()
}
