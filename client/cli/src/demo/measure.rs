//! What the nodes counted, held against what the plan predicts.

use std::collections::BTreeMap;

use shardd_api::protocol::{Placement, RunView};
use shardd_api::status::NodeStatus;
use shardd_plan::{Epoch, Plan};
use shardd_store::connect::REQUEST_TIMEOUT;
use shardd_store::http::{Credentials, HttpClient};

use super::RUN;
use super::cluster::Node;
use super::report::{ExchangeFacts, MovedFacts};
use crate::failure::Failure;
use crate::partition::moved_share;

/// The counters of all nodes, added up and compared.
pub(crate) struct Measured {
    pub(crate) origin_bytes: u64,
    pub(crate) moved: MovedFacts,
    pub(crate) exchange: ExchangeFacts,
    /// The summed states.
    pub(crate) nodes: Vec<NodeStatus>,
}

/// The demo's nodes need no credentials.
fn http() -> HttpClient {
    HttpClient::with(REQUEST_TIMEOUT, &Credentials::default())
}

/// A node's counters.
pub(crate) fn status(url: &str) -> Result<NodeStatus, Failure> {
    Ok(http().get_json(&format!("{url}/v1/status"))?)
}

/// Who hosts what in the demo's run, once its ranks have attached.
pub(crate) fn placement(url: &str) -> Result<Option<Placement>, Failure> {
    Ok(http().get_json::<RunView>(&format!("{url}/v1/runs/{RUN}"))?.placement)
}

impl Measured {
    /// Asks the nodes that live, and takes the last states of the killed ones.
    pub(crate) fn read(
        nodes: &[Node],
        killed: &BTreeMap<String, NodeStatus>,
        plan: &Plan,
        placement: Option<&Placement>,
        epochs: u32,
    ) -> Result<Measured, Failure> {
        let all = nodes
            .iter()
            .map(|node| killed.get(&node.name).map_or_else(|| status(&node.url), |last| Ok(last.clone())))
            .collect::<Result<Vec<NodeStatus>, Failure>>()?;
        Ok(Measured {
            origin_bytes: all.iter().map(|node| node.origin_bytes).sum(),
            moved: moved(plan, placement, &all, epochs),
            exchange: exchange(&all),
            nodes: all,
        })
    }
}

/// The exchange after the last epoch is nobody's: it is left out on both sides.
fn moved(plan: &Plan, placement: Option<&Placement>, nodes: &[NodeStatus], epochs: u32) -> MovedFacts {
    let exchanges = epochs - 1;
    let document = plan.document();
    let (mut between_partitions, mut between_nodes) = (0u64, 0u64);
    for epoch in (0..exchanges).map(Epoch) {
        for step in (0..document.chunks).flat_map(|chunk| plan.moves(epoch, chunk)) {
            let (from, to) = (step.from.0.0, step.to.0.0);
            between_partitions += u64::from(from != to);
            between_nodes +=
                u64::from(placement.is_some_and(|placement| placement.host(from) != placement.host(to)));
        }
    }
    let received: u64 = nodes
        .iter()
        .flat_map(|node| &node.counters.exchange)
        .filter(|count| count.run == RUN && count.epoch < exchanges)
        .map(|count| count.counts.received_grains)
        .sum();
    let all = (plan.grain_count() * u64::from(exchanges)).max(1) as f64;
    let predicted: f64 =
        (0..exchanges).map(|e| moved_share(document.schedule.after(Epoch(e)), document.partitions)).sum();
    MovedFacts {
        exchanges,
        between_partitions_predicted: predicted / f64::from(exchanges.max(1)),
        between_partitions_planned: between_partitions as f64 / all,
        between_nodes_predicted: between_nodes as f64 / all,
        between_nodes_measured: received as f64 / all,
    }
}

fn exchange(nodes: &[NodeStatus]) -> ExchangeFacts {
    let sum = |value: fn(&NodeStatus) -> u64| nodes.iter().map(value).sum();
    let seconds = |value: fn(&NodeStatus) -> f64| nodes.iter().map(value).sum();
    ExchangeFacts {
        bytes_sent: nodes
            .iter()
            .flat_map(|node| &node.counters.exchange)
            .filter(|count| count.run == RUN)
            .map(|count| count.counts.received_bytes)
            .sum(),
        busy_s: seconds(|node| node.counters.exchange_s),
        exposed_s: seconds(|node| node.counters.stalled_s),
        misses_from_peers: sum(|node| node.counters.misses_from_peers),
        misses_from_origin: sum(|node| node.counters.misses_from_origin),
    }
}
