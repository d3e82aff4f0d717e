//! What nodes counted of a run's requests to the store, epoch by epoch.

use std::collections::BTreeMap;

use serde::Serialize;
use shardd_api::protocol::{RunId, RunView};
use shardd_api::status::{NodeStatus, WireCounts};
use shardd_simulation::Asked;
use shardd_store::connect::{Connect, HEALTH_TIMEOUT, Target};

use super::prices::Prices;
use crate::failure::Failure;
use crate::status::NodePicture;

/// A run on nodes, and what they counted.
pub(crate) struct CountedRun {
    /// Nodes that host its partitions.
    pub(crate) nodes: u32,
    /// The smallest of their caches.
    pub(crate) cache_bytes: u64,
    /// Nodes that did not answer.
    pub(crate) silent: Vec<String>,
    /// Epoch by epoch.
    pub(crate) epochs: Vec<CountedEpoch>,
}

/// The requests of all nodes in an epoch. The first has those of the run's begin.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CountedEpoch {
    /// The epoch.
    pub(crate) epoch: u32,
    /// The counts of all nodes together.
    #[serde(flatten)]
    pub(crate) counts: WireCounts,
    /// Their list price.
    pub(crate) price: f64,
}

impl CountedRun {
    /// Asks the nodes.
    pub(crate) fn ask(connect: &Connect, run: &RunId, prices: &Prices) -> Result<CountedRun, Failure> {
        let Target::Servers(servers) = connect.target()? else {
            return Err(Failure::usage(
                "nodes count the requests of a run, and a store has none: use --server",
            ));
        };
        let server = servers.first_that_answers();
        let view: RunView = servers.http().get_json(&format!("{server}/v1/runs/{run}"))?;
        let pictures = NodePicture::all(server, &servers.http_within(HEALTH_TIMEOUT))?;
        let silent = pictures.iter().filter(|node| node.status.is_none());
        let silent = silent.map(|node| node.record.record.id.to_string()).collect();
        let statuses: Vec<&NodeStatus> = pictures.iter().filter_map(|node| node.status.as_ref()).collect();
        let hosts = view.placement.map(|placement| placement.hosts).unwrap_or_default();
        let of_run = statuses.iter().filter(|status| hosts.is_empty() || hosts.contains(&status.node));
        Ok(CountedRun {
            nodes: match hosts.len() {
                0 => statuses.len().max(1) as u32,
                hosts => hosts as u32,
            },
            cache_bytes: of_run.map(|status| status.cache_limit_bytes).min().unwrap_or(u64::MAX),
            silent,
            epochs: epochs(&statuses, run, prices),
        })
    }
}

fn epochs(statuses: &[&NodeStatus], run: &RunId, prices: &Prices) -> Vec<CountedEpoch> {
    let mut epochs: BTreeMap<u32, WireCounts> = BTreeMap::new();
    for epoch in statuses.iter().flat_map(|status| &status.store_epochs) {
        if epoch.run == run.as_str() {
            epochs.entry(epoch.epoch).or_default().add(&epoch.counts);
        }
    }
    let counted = |(epoch, counts)| CountedEpoch { epoch, price: prices.of(asked(&counts)), counts };
    epochs.into_iter().map(counted).collect()
}

/// The counts in the terms of a prediction.
pub(crate) fn asked(counts: &WireCounts) -> Asked {
    Asked { class_a: counts.class_a, class_b: counts.class_b, read_bytes: counts.received }
}
