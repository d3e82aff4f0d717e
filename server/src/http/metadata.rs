//! The metadata as a whole.

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use shardd_store::metastore::Backup;

use super::{Answer, State};

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
