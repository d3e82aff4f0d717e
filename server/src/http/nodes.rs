//! The node and its cluster: health, counters, the other nodes, and the desk where new ones join.

use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use shardd_client::engine::NodeStatus;
use shardd_client::node::{NodeId, NodeRecord};
use shardd_client::problem::Kind;
use utoipa::ToSchema;

use super::pages::{self, Paged};
use super::problem::bad_request;
use super::{Answer, Asked, Posted, Refusal, State, json};
use crate::identity::{Authority, Cluster, JoinReply, JoinRequest, Secret};
use crate::membership;

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

/// Where new nodes join: on the first node only.
pub enum Desk {
    /// This node signs.
    Here {
        /// Signs the keys of those who join.
        authority: Authority,
        /// What they have to show.
        secret: Secret,
        /// What they are told of the cluster.
        cluster: Cluster,
    },
    /// Another node signs.
    Elsewhere {
        /// That node.
        cluster: Cluster,
    },
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

/// Join the cluster: a certificate for a new node's key
#[utoipa::path(post, path = "/v1/join", tag = "cluster", operation_id = "join", request_body = JoinRequest,
    responses((status = 200, description = "The certificate", body = JoinReply),
        (status = 403), (status = 409), (status = 421)))]
pub(super) async fn join(state: State, Posted(request): Posted<JoinRequest>) -> Answer {
    let (authority, secret, cluster) = match &state.api.desk {
        Desk::Here { authority, secret, cluster } => (authority, secret, cluster),
        Desk::Elsewhere { cluster } => {
            let detail = format!("nodes join at the first one, {} at http://{}", cluster.first, cluster.http);
            return Err(Refusal::of(Kind::Misdirected, detail));
        }
    };
    if !secret.is(&request.secret) {
        let detail = "the secret is not that of this cluster's join token; copy the first node's join-token file again";
        return Err(Refusal::of(Kind::Forbidden, detail));
    }
    let (certificate, key) = authority
        .sign(&request.id, &request.csr)
        .map_err(|error| bad_request(format!("the certificate request: {error}")))?;
    if let Some(other) =
        membership::other_holder(state.api.engine.metastore().as_ref(), &request.id, key).await?
    {
        return Err(Refusal::of(Kind::Conflict, other));
    }
    tracing::info!(node = %request.id, "a node joined");
    let reply = JoinReply { certificate, authority: authority.pem().to_owned(), cluster: cluster.clone() };
    Ok((StatusCode::OK, json(&reply)?).into_response())
}
