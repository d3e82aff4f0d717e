//! What this node knows of itself and asks of others, for people who look at a cluster: the console, `shardctl top`, metrics.
//!
//! A [`Look`] is a question that any node answers about itself; [`Observer`] answers it here, and asks other nodes over QUIC. A view of
//! the whole cluster asks all of them once, however many watch, and no more often than every two seconds.

mod recorder;
mod series;
pub(crate) mod usage;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use serde::Deserialize;
use shardd_api::duration::now;
use shardd_api::node::NodeId;
use shardd_api::overview::{NodeReport, Observed, Overview, overview};
use shardd_api::status::{Lost, NodeStatus};
use shardd_engine::engine::Engine;
use shardd_engine::peers::PeerError;
use tokio::time::Instant;

pub(crate) use recorder::{Recorder, WatchedDisk};

use crate::keeping::Keeping;
use crate::transport::{Look, LookService, Transport};

/// How old a view of all nodes may be.
const FRESH: Duration = Duration::from_secs(2);
/// How many nodes are asked at once, and how long each may take.
const ASKED_AT_ONCE: usize = 64;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The most points of a series, and the most shards and grains of a list.
const MOST_POINTS: usize = 720;
pub(crate) const MOST_HOT: usize = 1000;

/// All nodes, as they were a moment ago.
#[derive(Debug)]
pub(crate) struct Reports {
    pub(crate) nodes: Vec<NodeReport>,
    /// The members that were not live then.
    pub(crate) lost: Vec<Lost>,
    taken: Instant,
}

/// Looks at this node and at others.
pub(crate) struct Observer {
    node: NodeId,
    engine: Arc<Engine>,
    keeping: Option<Arc<Keeping>>,
    recorder: Arc<Recorder>,
    /// The way to other nodes; none where there are none.
    transport: Option<Arc<Transport>>,
    reports: Mutex<Option<Arc<Reports>>>,
    /// Held by the one that asks all nodes.
    collecting: tokio::sync::Mutex<()>,
}

impl Observer {
    pub(crate) fn new(
        node: NodeId,
        engine: Arc<Engine>,
        keeping: Option<Arc<Keeping>>,
        recorder: Arc<Recorder>,
        transport: Option<Arc<Transport>>,
    ) -> Observer {
        let (reports, collecting) = (Mutex::default(), tokio::sync::Mutex::default());
        Observer { node, engine, keeping, recorder, transport, reports, collecting }
    }

    /// The status of this node.
    pub(crate) fn status(&self) -> NodeStatus {
        let metadata = self.keeping.as_ref().map(|keeping| keeping.status());
        NodeStatus { metadata, machine: Some(self.recorder.machine()), ..self.engine.status() }
    }

    /// The answer of any node, as JSON.
    ///
    /// # Errors
    /// Another node that cannot be asked, or does not answer in two seconds.
    pub(crate) async fn ask(&self, node: &NodeId, look: Look) -> Result<Bytes, PeerError> {
        if *node == self.node {
            return Ok(self.answer(&look));
        }
        let Some(transport) = &self.transport else {
            return Err(PeerError::Unreachable {
                peer: node.clone(),
                reason: "this node has no peers".into(),
            });
        };
        let late = |_| PeerError::TimedOut { peer: node.clone(), waited: ANSWER_TIMEOUT };
        tokio::time::timeout(ANSWER_TIMEOUT, transport.ask_look(node, look)).await.map_err(late)?
    }

    /// The parsed answer of any node.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), and an answer of another kind.
    pub(crate) async fn ask_for<T: for<'a> Deserialize<'a>>(
        &self,
        node: &NodeId,
        look: Look,
    ) -> Result<T, PeerError> {
        let answer = self.ask(node, look).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| PeerError::Protocol { peer: node.clone(), reason: error.to_string() })
    }

    /// All live nodes with their answers, at most two seconds old.
    pub(crate) async fn reports(&self) -> Arc<Reports> {
        if let Some(reports) = self.fresh() {
            return reports;
        }
        let _turn = self.collecting.lock().await;
        if let Some(reports) = self.fresh() {
            return reports;
        }
        let nodes: Vec<NodeReport> = stream::iter(self.engine.node_states())
            .map(async |state| {
                let (status, unanswered) = match self.ask_for(&state.record.id, Look::Status).await {
                    Ok(status) => (Some(status), None),
                    Err(error) => (None, Some(error.to_string())),
                };
                NodeReport { state, status, unanswered }
            })
            .buffered(ASKED_AT_ONCE)
            .collect()
            .await;
        // A node may be lost while it is asked: it is in one of the lists.
        let is_live =
            |lost: &Lost| nodes.iter().any(|node: &NodeReport| node.state.record.id == lost.record.id);
        let lost = self.engine.lost_nodes().into_iter().filter(|lost| !is_live(lost)).collect();
        let reports = Arc::new(Reports { nodes, lost, taken: Instant::now() });
        *self.reports.lock().expect("no panic while held") = Some(Arc::clone(&reports));
        reports
    }

    fn fresh(&self) -> Option<Arc<Reports>> {
        let reports = self.reports.lock().expect("no panic while held").clone()?;
        // Large clusters are asked less often.
        let age = FRESH.max(Duration::from_millis(reports.nodes.len() as u64 * 10));
        (reports.taken.elapsed() < age).then_some(reports)
    }

    /// The view of the cluster.
    pub(crate) async fn overview(&self) -> Overview {
        let reports = self.reports().await;
        let trouble = self.engine.metadata_trouble();
        overview(&Observed {
            now: now(),
            nodes: &reports.nodes,
            lost: &reports.lost,
            metadata_trouble: trouble.as_deref(),
        })
    }
}

impl LookService for Observer {
    fn answer(&self, look: &Look) -> Bytes {
        let json = match look {
            Look::Status => serde_json::to_vec(&self.status()),
            Look::Series { names, points } => {
                let points = (*points).min(MOST_POINTS);
                serde_json::to_vec(&self.recorder.series(self.node.clone(), names, points))
            }
            Look::Hot { by, limit } => serde_json::to_vec(&self.engine.hot(*by, (*limit).min(MOST_HOT))),
            Look::Copies { shard } => serde_json::to_vec(&self.engine.cached_grains(*shard)),
            Look::Timeline { run } => serde_json::to_vec(&self.engine.timeline_here(run)),
            Look::Receivers { run } => serde_json::to_vec(&self.engine.receivers(run)),
        };
        json.expect("an answer is plain data").into()
    }
}
