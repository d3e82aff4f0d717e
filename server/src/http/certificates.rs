//! How nodes come in, and how they are put out: join tokens, the certificates that were signed, keys that are revoked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use shardd_api::node::NodeId;
use shardd_api::problem::Kind;
use shardfmt::digest::Digest;
use utoipa::ToSchema;

use super::pages::{self, Paged};
use super::problem::{invalid, not_found};
use super::{Answer, PathParam, Refusal, State, ValidJson, ValidQuery, json};
use crate::ca::{CertificateIssuer, CertificateRecord, IssueError, JoinSecrets, Register, Rotation, Signing};
use crate::identity::{self, Cluster, JoinReply, JoinRequest, JoinToken, Revoked};
use crate::membership::{self, Finder};
use crate::metastore::{MetastoreUrl, MovableMetastore};

/// The default lifetime of a join token.
const JOIN_LIFETIME: u64 = 3600;
/// The longest that one may be good: a month.
const LONGEST_JOIN: u64 = 31 * 24 * 3600;

/// The data of the join endpoints. Every node has it; the first one also issues certificates.
pub struct Bootstrap {
    /// The authority's certificate (PEM).
    pub authority: String,
    /// Its digest, which join tokens pin.
    pub digest: Digest,
    /// The first node's address, and the cluster's settings, at the start of this node.
    pub cluster: Cluster,
    /// Issues certificates, on the first node only.
    pub issuer: Option<Arc<CertificateIssuer>>,
    /// Finds the first node after a promotion, on the others.
    pub(crate) finder: Option<Arc<Finder>>,
    /// Where the metadata is, on the first node.
    pub(crate) movable: Arc<MovableMetastore>,
}

impl Bootstrap {
    /// The first node's address, and the cluster's settings. A promotion or a move of the metadata changes them.
    pub(super) fn present(&self) -> Cluster {
        match &self.finder {
            Some(finder) => finder.known(),
            None => {
                let place = Some(self.movable.place()).filter(|place| *place != MetastoreUrl::Sled);
                Cluster { metastore: place.map(Box::new), ..self.cluster.clone() }
            }
        }
    }
}

/// The certificate (PEM) of the cluster's authority
///
/// It needs no token. Compare its digest before you trust it.
#[utoipa::path(get, path = "/v1/authority", tag = "access", operation_id = "authority",
    responses((status = 200, description = "The certificate", body = String,
        content_type = "application/x-pem-file")))]
pub(super) async fn authority(state: State) -> Answer {
    Ok(([(CONTENT_TYPE, "application/x-pem-file")], state.api.bootstrap.authority.clone()).into_response())
}

/// Join the cluster: a certificate for a new node's key
#[utoipa::path(post, path = "/v1/join", tag = "cluster", operation_id = "join", request_body = JoinRequest,
    responses((status = 200, description = "The certificate", body = JoinReply),
        (status = 403), (status = 409), (status = 421), (status = 422)))]
pub(super) async fn join(state: State, ValidJson(request): ValidJson<JoinRequest>) -> Answer {
    let Some(issuer) = &state.api.bootstrap.issuer else {
        let cluster = state.api.bootstrap.present();
        let detail = format!("nodes join at the first one, {} at {}", cluster.first, cluster.site());
        return Err(Refusal::of(Kind::Misdirected, detail));
    };
    let mut reply = issuer.join(request).await?;
    // The present rule: the first token may have been made since this node started.
    reply.cluster.asks_tokens = state.api.access.is_required();
    reply.cluster.metastore = state.api.bootstrap.present().metastore;
    Ok((StatusCode::OK, json(&reply)?).into_response())
}

/// The join token to make.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewJoinToken {
    /// After how many seconds it ends; an hour by default.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 2_678_400)]
    lifetime_seconds: Option<u64>,
}

/// A join token that was just made.
#[derive(Serialize, ToSchema)]
pub(super) struct MadeJoinToken {
    /// The line that one new node is started with. It appears here, and never again.
    token: String,
    /// When it ends, in seconds since 1970.
    expires_at: u64,
}

/// Make a join token, with which one node can join
#[utoipa::path(post, path = "/v1/join-tokens", tag = "access", operation_id = "create_join_token",
    request_body = NewJoinToken,
    responses((status = 201, description = "The token", body = MadeJoinToken), (status = 421), (status = 422)))]
pub(super) async fn create_join_token(state: State, ValidJson(new): ValidJson<NewJoinToken>) -> Answer {
    let seconds = new.lifetime_seconds.unwrap_or(JOIN_LIFETIME);
    if seconds == 0 || seconds > LONGEST_JOIN {
        return Err(invalid(format!("lifetime_seconds: {seconds} is not between 1 and {LONGEST_JOIN}")));
    }
    if let Some(signing) = signing(&state).await?.filter(Signing::lacks_its_key) {
        return Err(IssueError::Keyless(signing.node).into());
    }
    let secrets = JoinSecrets::in_metastore(Arc::clone(state.api.engine.metastore()));
    let (secret, expires_at) = secrets.create(Duration::from_secs(seconds)).await?;
    let bootstrap = &state.api.bootstrap;
    let token = JoinToken { site: bootstrap.present().site(), authority: bootstrap.digest, secret };
    let made = MadeJoinToken { token: token.reveal(), expires_at };
    Ok((StatusCode::CREATED, json(&made)?).into_response())
}

/// Whether the first node signs, as far as that is known.
async fn signing(state: &State) -> Result<Option<Signing>, Refusal> {
    let register = Register::in_metastore(Arc::clone(state.api.engine.metastore()));
    let noted = register.signing().await?;
    // The first node itself knows better than the last note.
    Ok(match &state.api.bootstrap.issuer {
        Some(issuer) => Some(Signing::of(&state.api.node.id, issuer.authority.is_some(), noted.as_ref())),
        None => noted,
    })
}

/// The newest certificate of each node and key
#[utoipa::path(get, path = "/v1/certificates", tag = "access", operation_id = "list_certificates", params(Paged),
    responses((status = 200, description = "A page of the list", body = Vec<CertificateRecord>),
        (status = 422)))]
pub(super) async fn list(state: State, uri: Uri, ValidQuery(paged): ValidQuery<Paged>) -> Answer {
    let register = Register::in_metastore(Arc::clone(state.api.engine.metastore()));
    pages::page(&uri, &paged, register.list().await?, |record| format!("{}/{}", record.node, record.key))
}

/// Have the certificate of a node renewed now
///
/// The node does it itself, within seconds if it runs, else when it runs again: then the list has one that was made later
/// than `issued_until`.
#[utoipa::path(post, path = "/v1/certificates/{node}/rotate", tag = "access", operation_id = "rotate_certificate",
    params(("node" = NodeId, Path, description = "The node")),
    responses((status = 202, description = "The renewal is requested", body = Rotation),
        (status = 404), (status = 421)))]
pub(super) async fn rotate(state: State, PathParam(node): PathParam<NodeId>) -> Answer {
    match signing(&state).await? {
        Some(signing) if signing.lacks_its_key() => return Err(IssueError::Keyless(signing.node).into()),
        Some(signing) if !signing.signs => return Err(IssueError::NoAuthority(node).into()),
        _ => {}
    }
    let register = Register::in_metastore(Arc::clone(state.api.engine.metastore()));
    match register.rotate(&node).await? {
        Some(rotation) => Ok((StatusCode::ACCEPTED, json(&rotation)?).into_response()),
        None => Err(unknown(&node)),
    }
}

/// Which of a node's keys.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichKey {
    /// Only this one; all that were signed for it by default.
    #[param(value_type = Option<shardd_api::schema::Digest>)]
    key: Option<Digest>,
}

/// Revoke the keys of a node: other nodes refuse connections with them
#[utoipa::path(delete, path = "/v1/certificates/{node}", tag = "access", operation_id = "revoke_certificate",
    params(("node" = NodeId, Path, description = "The node"), WhichKey),
    responses((status = 204, description = "The certificates are revoked"), (status = 404), (status = 409)))]
pub(super) async fn revoke(
    state: State,
    PathParam(node): PathParam<NodeId>,
    ValidQuery(which): ValidQuery<WhichKey>,
) -> Answer {
    if node == state.api.bootstrap.present().first {
        let detail =
            format!("{node} is the first node, which signs for all others: start a new cluster instead");
        return Err(Refusal::of(Kind::Conflict, detail));
    }
    let metastore = state.api.engine.metastore();
    let register = Register::in_metastore(Arc::clone(metastore));
    let holder = identity::holder(metastore.as_ref(), &node).await?;
    let signed = register.of(&node).await?.into_iter().map(|record| record.key);
    let keys: BTreeSet<Digest> =
        signed.chain(holder).filter(|key| which.key.is_none_or(|only| only == *key)).collect();
    if keys.is_empty() {
        return Err(unknown(&node));
    }
    for key in keys {
        Revoked::revoke(metastore.as_ref(), &node, key).await?;
        if holder == Some(key) {
            membership::expel(metastore.as_ref(), &node).await?;
        }
        register.forget(&node, key).await?;
        tracing::warn!(%node, %key, "the key of a node was revoked");
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn unknown(node: &NodeId) -> Refusal {
    not_found(format!("no certificate of node {node} is known"))
}
