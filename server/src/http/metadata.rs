//! The metadata as a whole.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use shardd_api::problem::Kind;
use shardd_api::protocol::{MigrateReply, MigrateRequest};
use shardd_store::metastore::Backup;

use super::problem::invalid;
use super::{Answer, Refusal, State, ValidJson, json};
use crate::keeping::{Relocated, RelocationError};
use crate::metastore::MetastoreUrl;

/// A backup of the metadata: names, tags, plans, runs, tokens' digests, as they are at one moment
///
/// `shardd metastore restore` reads it. It has no keys and no secrets, and nothing of nodes and ranks that live now. The nodes
/// serve meanwhile.
#[utoipa::path(get, path = "/v1/metastore/backup", tag = "cluster", operation_id = "backup",
    responses((status = 200, description = "A line with length and digest, then JSON", content_type = "application/octet-stream"),
        (status = 503)))]
pub(super) async fn backup(state: State) -> Answer {
    let lasting = state.api.catalog.metastore().lasting().await?;
    let backup = Backup::of(state.api.bootstrap.digest, lasting);
    Ok(([(CONTENT_TYPE, "application/octet-stream")], backup.to_bytes()).into_response())
}

/// Move the metadata between the store and etcd, while the nodes serve
///
/// Any node can be asked. Changes wait for some seconds; runs continue. Every node uses the new place from then on, and nodes that
/// do not run now, from their next start on. Repeat an interrupted move, or name the present place to give it up. Metadata
/// in sled is moved by `shardd metastore migrate`.
#[utoipa::path(post, path = "/v1/metastore/migrate", tag = "cluster", operation_id = "migrate",
    request_body = MigrateRequest,
    responses((status = 200, description = "Where it is now", body = MigrateReply), (status = 409), (status = 422), (status = 503)))]
pub(super) async fn migrate(state: State, ValidJson(request): ValidJson<MigrateRequest>) -> Answer {
    let to: MetastoreUrl = request.to.parse().map_err(|reason| invalid(format!("to: {reason}")))?;
    let Some(relocator) = &state.api.relocator else {
        let present = state.api.bootstrap.present();
        let first = present.first.to_string();
        let refused = match present.metastore {
            None => RelocationError::InSled { node: first, to: to.to_string() },
            Some(_) => RelocationError::Through { node: state.api.node.id.to_string(), first },
        };
        return Err(refused.into());
    };
    // A client that goes away does not interrupt the move.
    let moving = tokio::spawn({
        let (relocator, to) = (Arc::clone(relocator), to.clone());
        async move { relocator.migrate(&to).await }
    });
    let moved = moving.await.map_err(|error| Refusal::of(Kind::Unavailable, error.to_string()))??;
    let entries = match moved {
        Relocated::Moved(entries) => Some(entries as u64),
        Relocated::Stayed => None,
    };
    Ok((StatusCode::OK, json(&MigrateReply { at: to.to_string(), entries })?).into_response())
}
