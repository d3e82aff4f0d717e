//! The node and its cluster: health, counters, the other nodes.

use axum::http::Uri;
use serde::{Deserialize, Serialize};
use shardd_client::engine::NodeStatus;
use shardd_client::node::{NodeId, NodeRecord};
use shardd_client::problem::Kind;
use utoipa::ToSchema;

use super::pages::{self, Paged};
use super::{Answer, Asked, Refusal, State, json};

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

/// Whether the node takes new work: not while it starts, fills its cache, or stops
#[utoipa::path(get, path = "/v1/ready", tag = "node", operation_id = "ready",
    responses((status = 200, description = "It does", body = Health)))]
pub(super) async fn ready(state: State) -> Answer {
    if state.draining.is_cancelled() {
        return Err(Refusal::of(Kind::NotReady, format!("node {} is stopping", state.api.node.id)));
    }
    match state.api.engine.unready() {
        Some(why) => Err(Refusal::of(Kind::NotReady, why)),
        None => json(&Health::of(&state.api.node, "ready")),
    }
}

/// The live nodes, by name, as far as this one knows
#[utoipa::path(get, path = "/v1/nodes", tag = "cluster", operation_id = "list_nodes", params(Paged),
    responses((status = 200, description = "A page of them", body = Vec<NodeRecord>), (status = 422)))]
pub(super) async fn list(state: State, uri: Uri, Asked(paged): Asked<Paged>) -> Answer {
    pages::page(&uri, &paged, state.api.engine.nodes(), |node| node.id.to_string())
}

/// What this node has and has counted
#[utoipa::path(get, path = "/v1/status", tag = "node", operation_id = "status",
    responses((status = 200, description = "Its state", body = NodeStatus)))]
pub(super) async fn status(state: State) -> Answer {
    json(&state.api.engine.status())
}
