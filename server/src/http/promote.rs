//! A node that takes over the metadata.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use shardd_api::problem::Kind;
use shardd_api::protocol::PromoteRequest;

use super::{Answer, Refusal, State, ValidJson};

/// Make this node the metastore node, in place of one that is lost
///
/// It stops and starts again as the node that keeps the metadata, from its copy in the store. The node before is fenced: should
/// it come back, it refuses to serve. Refused while that node answers.
#[utoipa::path(post, path = "/v1/promote", tag = "cluster", operation_id = "promote", request_body = PromoteRequest,
    responses((status = 202, description = "The node takes over"), (status = 409)))]
pub(super) async fn promote(state: State, ValidJson(_): ValidJson<PromoteRequest>) -> Answer {
    let node = &state.api.node.id;
    let Some(promotion) = &state.api.promotion else {
        let why = match &state.api.keeping {
            Some(_) => format!("node {node} keeps the metadata already"),
            None => "the metadata is in etcd or in the store, and outlives any node".to_owned(),
        };
        return Err(Refusal::of(Kind::Conflict, why));
    };
    match promotion.ask().await {
        Ok(()) => Ok(StatusCode::ACCEPTED.into_response()),
        Err(error) => Err(Refusal::of(Kind::Conflict, error.to_string())),
    }
}
