//! The node and its cluster: health, counters, the other nodes, and the desk where new ones join.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use shardd_client::node::NodeId;
use shardd_client::problem::{self, Problem};

use super::problem::bad_request;
use super::{Answer, Posted, Refusal, State, json};
use crate::identity::{Authority, Cluster, JoinReply, JoinRequest, Secret};
use crate::membership;

/// What a node says of itself to whoever asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// The node's name.
    pub id: NodeId,
    /// Where its peers connect.
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

pub(super) async fn health(state: State) -> Answer {
    let node = &state.api.node;
    json(&Health {
        status: "ok".into(),
        id: node.id.clone(),
        quic: node.quic,
        release: env!("CARGO_PKG_VERSION").into(),
    })
}

pub(super) async fn list(state: State) -> Answer {
    json(&state.api.engine.nodes())
}

pub(super) async fn status(state: State) -> Answer {
    json(&state.api.engine.status())
}

pub(super) async fn join(state: State, Posted(request): Posted<JoinRequest>) -> Answer {
    let (authority, secret, cluster) = match &state.api.desk {
        Desk::Here { authority, secret, cluster } => (authority, secret, cluster),
        Desk::Elsewhere { cluster } => {
            let detail = format!("nodes join at the first one, {} at http://{}", cluster.first, cluster.http);
            return Err(Refusal::from(Problem::new("about:blank", 421, detail)));
        }
    };
    if !secret.is(&request.secret) {
        let detail = "the secret is not that of this cluster's join token; copy the first node's join-token file again";
        return Err(Refusal::from(Problem::new("about:blank", 403, detail)));
    }
    let (certificate, key) = authority
        .sign(&request.id, &request.csr)
        .map_err(|error| bad_request(format!("the certificate request: {error}")))?;
    if let Some(other) =
        membership::other_holder(state.api.engine.metastore().as_ref(), &request.id, key).await?
    {
        return Err(Refusal::from(Problem::new(problem::CONFLICT, 409, other)));
    }
    tracing::info!(node = %request.id, "a node joined");
    let reply = JoinReply { certificate, authority: authority.pem().to_owned(), cluster: cluster.clone() };
    Ok((StatusCode::OK, json(&reply)?).into_response())
}
