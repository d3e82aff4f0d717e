//! Peers that did not answer in time: requests skip them until they have answered a small probe.

use std::sync::Arc;

use shardd_api::node::NodeId;
use shardd_plan::GrainNo;
use tokio::time::{Duration, Instant, sleep, timeout};
use tracing::{debug, info};

use super::Engine;
use super::run::RunState;
use crate::peers::{FetchMode, PEER_TIMEOUT};

/// How soon a silent peer is asked something small again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

impl Engine {
    /// Whether a peer is waited for: it has answered since it last did not.
    pub(super) fn talks(&self, node: &NodeId) -> bool {
        !self.neighbours.silent.lock().expect("no panic while held").contains_key(node)
    }

    /// A peer did not answer in the time that is fair. It is asked in the background until it does, or is no member any more.
    pub(super) fn fell_silent(self: &Arc<Self>, run: &RunState, node: &NodeId) {
        let since =
            self.neighbours.silent.lock().expect("no panic while held").insert(node.clone(), Instant::now());
        if since.is_some() {
            return; // it is being asked
        }
        info!(peer = %node, "a peer is silent; it is left alone until it answers");
        let (engine, node) = (Arc::clone(self), node.clone());
        let small = run.request(0, &[GrainNo(0)], FetchMode::Probe);
        self.lifecycle.tasks.spawn(async move {
            let until_it_talks = async {
                while engine.live_nodes().contains(&node) {
                    if let Ok(Ok(_)) = timeout(PEER_TIMEOUT, engine.peers.fetch(&node, small.clone())).await {
                        break;
                    }
                    sleep(ASK_AGAIN).await;
                }
            };
            engine.lifecycle.stop.run_until_cancelled(until_it_talks).await;
            debug!(peer = %node, "a peer is asked again");
            engine.neighbours.silent.lock().expect("no panic while held").remove(&node);
        });
    }
}
