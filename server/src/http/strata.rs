//! The strata of plans: immutable bytes under their own digests, stored before the plan that names them.

use axum::body::Body;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::IntoResponse;
use shardd_api::schema::Digest;
use shardfmt::StrataId;

use super::client::Client;
use super::immutable::{Conditions, Content, Source};
use super::openapi::Binary;
use super::{Answer, PathParam, State};

/// Which samples each label or size of a stratified plan has, whole or in parts
#[utoipa::path(get, path = "/v1/strata/{id}", tag = "objects", operation_id = "get_strata",
    params(("id" = Digest, Path, description = "The strata, as the plan names them"), Conditions),
    responses((status = 200, description = "The strata", body = Binary, content_type = "application/octet-stream"),
        (status = 206, description = "The requested ranges", body = Binary,
            content_type = "application/octet-stream"),
        (status = 304, description = "Not modified"), (status = 404), (status = 416)))]
pub(super) async fn show(
    state: State,
    method: Method,
    PathParam(id): PathParam<StrataId>,
    headers: HeaderMap,
) -> Answer {
    let bytes = state.api.catalog.origin().strata_bytes(id).await?;
    let (what, etag, size) = (format!("strata {id}"), id.to_string(), bytes.len() as u64);
    let (kind, source) = ("application/octet-stream", Source::Bytes(bytes));
    Content { what, kind, etag, size, forever: true, source }.answer(&method, &headers).await
}

/// Store strata under their digest, before the plan that names them
#[utoipa::path(put, path = "/v1/strata/{id}", tag = "objects", operation_id = "put_strata",
    params(("id" = Digest, Path, description = "The strata")),
    request_body(content = Binary, content_type = "application/octet-stream"),
    responses((status = 204, description = "Stored"), (status = 422)))]
pub(super) async fn put(
    state: State,
    client: Client,
    PathParam(id): PathParam<StrataId>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let (_place, bytes) = state.uploads.read_metadata(client, &state.api.limits, &headers, body).await?;
    state.api.catalog.origin().put_strata(id, bytes).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
