//! `shardctl promote`: another node keeps the metadata, after the one that did is lost.

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use shardd_api::node::NodeId;
use shardd_api::protocol::PromoteRequest;
use shardd_api::status::NodeStatus;
use shardd_store::connect::Connect;

use crate::failure::Failure;
use crate::nodes::{live_nodes, not_live};
use crate::output;

/// How often it is looked whether it has taken over.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long that may take: it stops, reads the copy, and starts again.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Let a node take over the metadata of the lost first node, from its copy in the store
///
/// The node starts again as the one that keeps the metadata; the others find it by themselves, and training
/// continues. The earlier node is fenced: if it comes back, it refuses to serve and explains how it joins.
/// Refused while that node answers.
#[derive(Args)]
pub(crate) struct Promote {
    /// The node that is to keep the metadata
    node: NodeId,
}

impl Promote {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let servers = connect.servers()?;
        let (server, http) = (servers.first_that_answers(), servers.http());
        let nodes = live_nodes(&http, server)?;
        let node = nodes.into_iter().find(|state| state.record.id == self.node);
        let at = node.ok_or_else(|| not_live(&self.node))?.record.http;
        http.post_for_bytes(&format!("{at}/v1/promote"), &PromoteRequest {})?;
        let until = Instant::now() + TIMEOUT;
        loop {
            // It does not answer while it starts again.
            let status = http.get_json::<NodeStatus>(&format!("{at}/v1/status")).ok();
            if let Some(metadata) = status.and_then(|status| status.metadata) {
                match json {
                    true => output::json(&json!({ "node": self.node, "metadata": metadata })),
                    false => output::print(&format!(
                        "{} keeps the metadata now, epoch {}; it signs certificates if it has the authority's key in tls/ca.key: if not, \
                         put a copy there and restart it\n",
                        self.node, metadata.epoch
                    )),
                }
                return Ok(());
            }
            if Instant::now() > until {
                return Err(Failure::failed(format!(
                    "node {} has not taken over the metadata within {} s; its log says why",
                    self.node,
                    TIMEOUT.as_secs()
                )));
            }
            sleep(POLL_INTERVAL);
        }
    }
}
