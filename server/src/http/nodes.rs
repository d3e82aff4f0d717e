//! The node and its cluster: health, counters, the other nodes.

use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse;
use shardd_api::drain::{Drain, NodeState};
use shardd_api::evict::{Evict, Evicted};
use shardd_api::node::{NodeId, NodeRecord};
use shardd_api::problem::Kind;
use shardd_api::protocol::{DrainRequest, Health};
use shardd_api::status::{Lost, NodeStatus};

use super::pages::{self, Paged};
use super::{Answer, PathParam, Refusal, State, ValidJson, ValidQuery, json};

fn health_of(node: &NodeRecord, status: &str) -> Health {
    let (status, release) = (status.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    Health { status, id: node.id.clone(), quic: node.quic, release }
}

/// Whether the node runs at all
#[utoipa::path(get, path = "/v1/health", tag = "node", operation_id = "health",
    responses((status = 200, description = "The node runs", body = Health)))]
pub(super) async fn health(state: State) -> Answer {
    json(&health_of(&state.api.node, "ok"))
}

/// Whether the node takes new work: not while it starts, fills its cache, stops, or cannot write the metadata it keeps
#[utoipa::path(get, path = "/v1/ready", tag = "node", operation_id = "ready",
    responses((status = 200, description = "The node takes new work", body = Health)))]
pub(super) async fn ready(state: State) -> Answer {
    if state.draining.is_cancelled() {
        return Err(Refusal::of(Kind::NotReady, format!("node {} is stopping", state.api.node.id)));
    }
    if let Some(trouble) = state.api.metadata_trouble() {
        return Err(Refusal::of(Kind::NotReady, trouble));
    }
    match state.api.engine.unready() {
        Some(why) => Err(Refusal::of(Kind::NotReady, why)),
        None => json(&health_of(&state.api.node, "ready")),
    }
}

/// The live nodes that this node knows, by name
#[utoipa::path(get, path = "/v1/nodes", tag = "cluster", operation_id = "list_nodes", params(Paged),
    responses((status = 200, description = "A page of the list", body = Vec<NodeState>), (status = 422)))]
pub(super) async fn list(state: State, uri: Uri, ValidQuery(paged): ValidQuery<Paged>) -> Answer {
    pages::page(&uri, &paged, state.api.engine.node_states(), |node| node.record.id.to_string())
}

/// The members of the cluster that are not live, by name
///
/// They ceased to renew their leases without leaving: they hang, or died. Such a node is gone from this list once it is back,
/// was asked to leave, or its certificate was revoked.
#[utoipa::path(get, path = "/v1/lost-nodes", tag = "cluster", operation_id = "list_lost_nodes", params(Paged),
    responses((status = 200, description = "A page of the list", body = Vec<Lost>), (status = 422)))]
pub(super) async fn lost(state: State, uri: Uri, ValidQuery(paged): ValidQuery<Paged>) -> Answer {
    pages::page(&uri, &paged, state.api.engine.lost_nodes(), |lost| lost.record.id.to_string())
}

/// Drain a node: its partitions move to others, a few at a time
///
/// `hosted` and `copying` of the node in the list of nodes say how far it is: at 0 no reader misses it. A
/// node that was asked to leave stops then.
#[utoipa::path(put, path = "/v1/nodes/{id}/drain", tag = "cluster", operation_id = "drain",
    params(("id" = NodeId, Path, description = "The node")), request_body = DrainRequest,
    responses((status = 204, description = "The node drains"), (status = 404), (status = 409)))]
pub(super) async fn drain(
    state: State,
    PathParam(node): PathParam<NodeId>,
    ValidJson(asked): ValidJson<DrainRequest>,
) -> Answer {
    let drain = if asked.leave { Drain::Leaving } else { Drain::Asked };
    state.api.engine.drain(&node, Some(drain)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// End the drain of a node
#[utoipa::path(delete, path = "/v1/nodes/{id}/drain", tag = "cluster", operation_id = "undrain",
    params(("id" = NodeId, Path, description = "The node")),
    responses((status = 204, description = "The node may host again")))]
pub(super) async fn undrain(state: State, PathParam(node): PathParam<NodeId>) -> Answer {
    state.api.engine.drain(&node, None).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Drop grains from this node's cache that no run with attached ranks needs
///
/// Hosted grains of such a run stay, and so do grains that arrived for its next epoch or are still to be
/// sent.
#[utoipa::path(post, path = "/v1/evict", tag = "node", operation_id = "evict", request_body = Evict,
    responses((status = 200, description = "The evicted grains, or those to evict", body = Evicted),
        (status = 404)))]
pub(super) async fn evict(state: State, ValidJson(evict): ValidJson<Evict>) -> Answer {
    json(&state.api.engine.evict(evict).await?)
}

/// The status and the counters of this node
#[utoipa::path(get, path = "/v1/status", tag = "node", operation_id = "status",
    responses((status = 200, description = "Its state", body = NodeStatus)))]
pub(super) async fn status(state: State) -> Answer {
    json(&state.api.observer.status())
}
