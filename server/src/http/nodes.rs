//! The node and its cluster: health, counters, the other nodes.

use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use shardd_client::engine::{Drain, Evict, Evicted, Lost, NodeState, NodeStatus};
use shardd_client::node::{NodeId, NodeRecord};
use shardd_client::problem::Kind;
use shardd_client::protocol::DrainRequest;
use utoipa::ToSchema;

use super::pages::{self, Paged};
use super::{Answer, Asked, Named, Posted, Refusal, State, json};

/// What a node says of itself to whoever asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// The node's name.
    pub id: NodeId,
    /// Where its peers connect.
    #[schema(value_type = String)]
    pub quic: std::net::SocketAddr,
    /// Its release.
    pub release: String,
}

impl Health {
    fn of(node: &NodeRecord, status: &str) -> Self {
        let (status, release) = (status.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Self { status, id: node.id.clone(), quic: node.quic, release }
    }
}

/// Whether the node runs at all
#[utoipa::path(get, path = "/v1/health", tag = "node", operation_id = "health",
    responses((status = 200, description = "It does", body = Health)))]
pub(super) async fn health(state: State) -> Answer {
    json(&Health::of(&state.api.node, "ok"))
}

/// Whether the node takes new work: not while it starts, fills its cache, stops, or cannot write the metadata it keeps
#[utoipa::path(get, path = "/v1/ready", tag = "node", operation_id = "ready",
    responses((status = 200, description = "It does", body = Health)))]
pub(super) async fn ready(state: State) -> Answer {
    if state.draining.is_cancelled() {
        return Err(Refusal::of(Kind::NotReady, format!("node {} is stopping", state.api.node.id)));
    }
    if let Some(trouble) = state.api.metadata_trouble() {
        return Err(Refusal::of(Kind::NotReady, trouble));
    }
    match state.api.engine.unready() {
        Some(why) => Err(Refusal::of(Kind::NotReady, why)),
        None => json(&Health::of(&state.api.node, "ready")),
    }
}

/// The live nodes, by name, as far as this one knows
#[utoipa::path(get, path = "/v1/nodes", tag = "cluster", operation_id = "list_nodes", params(Paged),
    responses((status = 200, description = "A page of them", body = Vec<NodeState>), (status = 422)))]
pub(super) async fn list(state: State, uri: Uri, Asked(paged): Asked<Paged>) -> Answer {
    pages::page(&uri, &paged, state.api.engine.node_states(), |node| node.record.id.to_string())
}

/// The nodes that are expected and not live, by name, as far as this one knows
///
/// They ceased to renew their leases without leaving: they hang, or died. Such a node is gone from this list once it is back,
/// was asked to leave, or its certificate was revoked.
#[utoipa::path(get, path = "/v1/lost-nodes", tag = "cluster", operation_id = "list_lost_nodes", params(Paged),
    responses((status = 200, description = "A page of them", body = Vec<Lost>), (status = 422)))]
pub(super) async fn lost(state: State, uri: Uri, Asked(paged): Asked<Paged>) -> Answer {
    pages::page(&uri, &paged, state.api.engine.lost_nodes(), |lost| lost.record.id.to_string())
}

/// Let a node host nothing: what it hosts moves to others, a few partitions at a time
///
/// `hosted` and `copying` of the node in the list of nodes say how far it is: at 0 nobody misses it. A node that was asked to
/// leave stops then.
#[utoipa::path(put, path = "/v1/nodes/{id}/drain", tag = "cluster", operation_id = "drain",
    params(("id" = NodeId, Path, description = "The node")), request_body = DrainRequest,
    responses((status = 204, description = "It drains"), (status = 404), (status = 409)))]
pub(super) async fn drain(
    state: State,
    Named(node): Named<NodeId>,
    Posted(asked): Posted<DrainRequest>,
) -> Answer {
    let drain = if asked.leave { Drain::Leaving } else { Drain::Asked };
    state.api.engine.drain(&node, Some(drain)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Let a node host again
#[utoipa::path(delete, path = "/v1/nodes/{id}/drain", tag = "cluster", operation_id = "undrain",
    params(("id" = NodeId, Path, description = "The node")),
    responses((status = 204, description = "It may host again")))]
pub(super) async fn undrain(state: State, Named(node): Named<NodeId>) -> Answer {
    state.api.engine.drain(&node, None).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Drop from this node's cache what no run with attached ranks wants
///
/// What such a run hosts stays, and so does what came for its next epoch or is still to be given to others.
#[utoipa::path(post, path = "/v1/evict", tag = "node", operation_id = "evict", request_body = Evict,
    responses((status = 200, description = "What went, or would go", body = Evicted), (status = 404)))]
pub(super) async fn evict(state: State, Posted(evict): Posted<Evict>) -> Answer {
    json(&state.api.engine.evict(evict).await?)
}

/// What this node has and has counted
#[utoipa::path(get, path = "/v1/status", tag = "node", operation_id = "status",
    responses((status = 200, description = "Its state", body = NodeStatus)))]
pub(super) async fn status(state: State) -> Answer {
    let metadata = state.api.keeping.as_ref().map(|keeping| keeping.status());
    json(&NodeStatus { metadata, ..state.api.engine.status() })
}
