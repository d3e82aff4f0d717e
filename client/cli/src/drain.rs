//! `shardctl drain`, `join` and `leave`: nodes that host nothing any more, or again.

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use shardd_api::drain::{Drained, NodeState};
use shardd_api::node::NodeId;
use shardd_api::protocol::DrainRequest;
use shardd_store::connect::Connect;
use shardd_store::http::HttpClient;

use crate::failure::Failure;
use crate::human::{parse_duration, plural};
use crate::nodes::{live_nodes, not_live};
use crate::output;

/// How often it is looked how far a node is.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Drain a node: others take over its partitions, a few at a time, and then no reader misses it
///
/// Training continues meanwhile. It lasts, also over restarts, until `shardctl join`.
#[derive(Args)]
pub(crate) struct Drain {
    /// The node
    node: NodeId,

    #[command(flatten)]
    waiting: Waiting,
}

/// End the drain of a node, so that it hosts partitions again
#[derive(Args)]
pub(crate) struct Join {
    /// The node
    node: NodeId,
}

/// Remove a node for good: others take over its partitions, then it stops
#[derive(Args)]
pub(crate) struct Leave {
    /// The node
    node: NodeId,

    #[command(flatten)]
    waiting: Waiting,
}

#[derive(Args)]
struct Waiting {
    /// Only request it, and do not wait for the end
    #[arg(long)]
    no_wait: bool,

    /// Wait at most this time, such as 90s, 10m or 1h; the drain continues in any case
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_duration, conflicts_with = "no_wait")]
    timeout: Duration,
}

impl Drain {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let cluster = Cluster::of(connect)?;
        cluster.drain(&self.node, false)?;
        let done = |state: Option<&NodeState>| state.is_none_or(|state| state.drained.is_done());
        match self.waiting.no_wait {
            true => Progress { node: &self.node, json, last: None }.end("is being drained"),
            false => {
                cluster.follow(&self.node, &self.waiting, json, done)?.end("hosts nothing any more");
            }
        }
        Ok(())
    }
}

impl Join {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let cluster = Cluster::of(connect)?;
        if cluster.states()?.iter().all(|state| state.record.id != self.node) {
            return Err(not_live(&self.node));
        }
        cluster.http.delete(&cluster.url(&self.node))?;
        Progress { node: &self.node, json, last: None }.end("may host partitions again");
        Ok(())
    }
}

impl Leave {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let mut cluster = Cluster::of(connect)?;
        // A node that leaves cannot report that it has left.
        let others = cluster.states()?.into_iter().filter(|state| state.record.id != self.node);
        cluster.others = others.map(|state| state.record.http).collect();
        cluster.drain(&self.node, true)?;
        match self.waiting.no_wait {
            true => Progress { node: &self.node, json, last: None }.end("is leaving"),
            false => {
                cluster.follow(&self.node, &self.waiting, json, |state| state.is_none())?.end("has left");
            }
        }
        Ok(())
    }
}

/// Where nodes are asked of.
struct Cluster {
    http: HttpClient,
    server: String,
    others: Vec<String>,
}

impl Cluster {
    fn of(connect: &Connect) -> Result<Cluster, Failure> {
        let servers = connect.servers()?;
        let server = servers.first_that_answers().to_owned();
        Ok(Cluster { http: servers.http(), server, others: vec![] })
    }

    fn url(&self, node: &NodeId) -> String {
        format!("{}/v1/nodes/{node}/drain", self.server)
    }

    fn drain(&self, node: &NodeId, leave: bool) -> Result<(), Failure> {
        self.http.put_json(&self.url(node), &DrainRequest { leave })?;
        Ok(())
    }

    /// The live nodes, as the first of the cluster says that answers.
    fn states(&self) -> Result<Vec<NodeState>, Failure> {
        let list = |server: &str| live_nodes(&self.http, server);
        let others = self.others.iter().find_map(|server| list(server).ok());
        others.map_or_else(|| Ok(list(&self.server)?), Ok)
    }

    /// Looks until it is done, and says how far it is.
    fn follow<'n>(
        &self,
        node: &'n NodeId,
        waiting: &Waiting,
        json: bool,
        done: impl Fn(Option<&NodeState>) -> bool,
    ) -> Result<Progress<'n>, Failure> {
        let until = Instant::now() + waiting.timeout;
        let mut progress = Progress { node, json, last: None };
        loop {
            let states = self.states()?;
            let state = states.iter().find(|state| state.record.id == *node);
            if done(state) {
                return Ok(progress);
            }
            if let Some(state) = state {
                progress.say(state.drained);
            }
            if Instant::now() > until {
                return Err(Failure::failed(format!(
                    "node {node} still hosts partitions after {:?}; the drain continues; `shardctl status` \
                    shows its progress",
                    waiting.timeout
                )));
            }
            sleep(POLL_INTERVAL);
        }
    }
}

/// The progress shown for a node.
struct Progress<'n> {
    node: &'n NodeId,
    json: bool,
    last: Option<Drained>,
}

impl Progress<'_> {
    fn say(&mut self, drained: Drained) {
        if self.last == Some(drained) {
            return;
        }
        self.last = Some(drained);
        let (node, Drained { hosted, copying }) = (self.node, drained);
        match self.json {
            true => output::json(&json!({ "node": node, "hosted": hosted, "copying": copying })),
            false => output::print(&format!(
                "{node} hosts {}, {copying} being copied\n",
                plural(hosted as u64, "partition")
            )),
        }
    }

    fn end(self, what: &str) {
        match self.json {
            true => output::json(&json!({ "node": self.node, "done": what })),
            false => output::print(&format!("{} {what}\n", self.node)),
        }
    }
}
