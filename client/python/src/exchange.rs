//! What the exchange moves: by the plan, and by what nodes have counted.

use std::collections::BTreeMap;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyTypeError};
use pyo3::prelude::*;
use serde_json::json;
use shardd_api::drain::NodeState;
use shardd_api::exchange::EpochExchange;
use shardd_api::status::NodeStatus;
use shardd_plan::Epoch;
use shardd_store::http::{HttpClient, HttpError};
use shardfmt::PlanId;

use crate::errors;
use crate::store::{Place, Store, parse};

/// How long a node may take to say how it is.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// For each epoch `first..end` of a plan: grains, samples and bytes (by the mean size of a sample) that are in another partition
/// after it.
#[pyfunction]
pub(crate) fn moves(
    py: Python<'_>,
    store: &Store,
    plan: &str,
    first: u32,
    end: u32,
) -> PyResult<Vec<(u32, u64, u64, u64)>> {
    let id = PlanId(parse(plan)?);
    py.detach(|| {
        let (plan, manifest) = store.plan(id)?;
        let sample_bytes = manifest.row_bytes() as f64 / manifest.sample_count().max(1) as f64;
        let after = |epoch| {
            let exchange = plan.exchange(Epoch(epoch));
            let moves = (0..plan.document().chunks).flat_map(|chunk| exchange.moves(chunk));
            let grains = moves.filter(|moved| moved.from.0 != moved.to.0).count() as u64;
            // Only whole grains move.
            let samples = grains * u64::from(plan.document().grain_rows);
            (epoch, grains, samples, (samples as f64 * sample_bytes) as u64)
        };
        Ok((first..end).map(after).collect())
    })
}

/// The nodes' counts of a run's exchange, by epoch and in total, and of the misses, as JSON.
#[pyfunction]
pub(crate) fn exchanged(py: Python<'_>, store: &Store, run: &str) -> PyResult<String> {
    let Place::Nodes { servers, credentials } = &store.place else {
        return Err(PyTypeError::new_err("a store without nodes counts nothing"));
    };
    py.detach(|| {
        let http = HttpClient::with(ANSWER_WITHIN, credentials);
        let (nodes, silent) = statuses(&http, servers).map_err(|error| {
            PyOSError::new_err(format!("no node says how it is: {}", errors::message(&error)))
        })?;
        let mut epochs = BTreeMap::<u32, EpochExchange>::new();
        let counted = nodes.iter().flat_map(|status| &status.counters.exchange);
        for count in counted.filter(|count| count.run == run) {
            epochs.entry(count.epoch).or_default().add_node(&count.counts);
        }
        let epochs: Vec<_> = epochs
            .iter()
            .map(|(epoch, counts)| {
                json!({
                    "epoch": epoch,
                    "expected_grains": counts.expected_grains,
                    "grains": counts.received_grains,
                    "bytes": counts.received_bytes,
                    "unsent_grains": counts.unsent_grains,
                    "sending_s": counts.sending_micros as f64 / 1e6,
                    "hidden": counts.hidden(),
                })
            })
            .collect();
        let sum = |of: fn(&NodeStatus) -> u64| nodes.iter().map(of).sum::<u64>();
        Ok(json!({
            "nodes": nodes.len(),
            "silent": silent,
            "epochs": epochs,
            "misses_from_peers": sum(|status| status.counters.misses_from_peers),
            "misses_from_origin": sum(|status| status.counters.misses_from_origin),
            "miss_bytes": sum(|status| status.counters.miss_bytes_from_peers + status.counters.miss_bytes_from_origin),
            "origin_bytes": sum(|status| status.origin_bytes),
            "stalled_s": nodes.iter().map(|status| status.counters.stalled_s).sum::<f64>(),
        })
        .to_string())
    })
}

/// The report of each live node, by the first of `servers` that knows them, and the names of the silent ones.
fn statuses(http: &HttpClient, servers: &[String]) -> Result<(Vec<NodeStatus>, Vec<String>), HttpError> {
    let mut known = Err(None);
    for server in servers {
        let url = format!("{}/v1/nodes", server.trim_end_matches('/'));
        match http.get_list::<NodeState>(&url, usize::MAX) {
            Ok(nodes) => {
                known = Ok(nodes);
                break;
            }
            Err(error) => known = Err(Some(error)),
        }
    }
    let nodes = match known {
        Ok(nodes) => nodes,
        Err(Some(error)) => return Err(error),
        Err(None) => Vec::new(),
    };
    let (mut statuses, mut silent) = (Vec::new(), Vec::new());
    for node in nodes {
        match http.get_json(&format!("{}/v1/status", node.record.http)) {
            Ok(status) => statuses.push(status),
            Err(_) => silent.push(node.record.id.to_string()),
        }
    }
    Ok((statuses, silent))
}
