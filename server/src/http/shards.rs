//! Shards and their sidecars: immutable bytes under their own digests, so ranges, conditions and caches are exact.

use axum::body::Body;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::IntoResponse;
use shardd_api::problem::Kind;
use shardd_api::schema::Digest;
use shardfmt::ShardId;
use shardfmt::shard::{Shard, Sidecar};

use super::client::Client;
use super::immutable::{ARROW_FILE, Conditions, Content, Source};
use super::openapi::Binary;
use super::problem::{Refusal, invalid, not_found};
use super::{Answer, MAX_SHARD, PathParam, State};

/// A shard: an Arrow file, whole or in parts
#[utoipa::path(get, path = "/v1/shards/{id}", tag = "objects", operation_id = "get_shard",
    params(("id" = Digest, Path, description = "The shard"), Conditions),
    responses((status = 200, description = "The file", body = Binary, content_type = "application/vnd.apache.arrow.file"),
        (status = 206, description = "The requested ranges", body = Binary,
            content_type = "application/vnd.apache.arrow.file"),
        (status = 304, description = "Not modified"), (status = 404), (status = 416)))]
pub(super) async fn shard(
    state: State,
    method: Method,
    PathParam(id): PathParam<ShardId>,
    headers: HeaderMap,
) -> Answer {
    let origin = state.api.catalog.origin();
    let Some(size) = origin.shard_size(&id).await? else {
        return Err(not_found(format!("there is no shard {id} here")));
    };
    let source = Source::Shard(origin.clone(), id);
    let (what, etag) = (format!("shard {id}"), id.to_string());
    Content { what, kind: ARROW_FILE, etag, size, forever: true, source }.answer(&method, &headers).await
}

/// Store a shard under its digest
#[utoipa::path(put, path = "/v1/shards/{id}", tag = "objects", operation_id = "put_shard",
    params(("id" = Digest, Path, description = "The shard")),
    request_body(content = Binary, content_type = "application/octet-stream"),
    responses((status = 204, description = "Stored"), (status = 422)))]
pub(super) async fn put_shard(
    state: State,
    client: Client,
    PathParam(id): PathParam<ShardId>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let place = state.uploads.place(client, 1).await;
    let bytes = place.read(&state.api.limits, &headers, body, MAX_SHARD).await?;
    // Bytes of another name are refused before anything else is thought of them.
    let hashed = bytes.clone();
    let found = blocking(move || Ok(ShardId::of(&hashed))).await?;
    if found != id {
        let detail = format!("the bytes are those of shard {found}, not of {id}");
        return Err(Refusal::of(Kind::Mismatch, detail));
    }
    let checked = bytes.clone();
    blocking(move || Shard::from_bytes(checked.to_vec()).map(drop).map_err(invalid)).await?;
    state.api.catalog.origin().put_shard_bytes(id, bytes).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The digests of a shard's rows
#[utoipa::path(get, path = "/v1/shards/{id}/rows", tag = "objects", operation_id = "get_rows",
    params(("id" = Digest, Path, description = "The shard"), Conditions),
    responses((status = 200, description = "The sidecar", body = Binary, content_type = "application/octet-stream"),
        (status = 206, description = "The requested ranges", body = Binary,
            content_type = "application/octet-stream"),
        (status = 304, description = "Not modified"), (status = 404), (status = 416)))]
pub(super) async fn rows(
    state: State,
    method: Method,
    PathParam(id): PathParam<ShardId>,
    headers: HeaderMap,
) -> Answer {
    let bytes = state.api.catalog.origin().sidecar_bytes(id).await?;
    Content::derived(format!("sidecar of shard {id}"), bytes).answer(&method, &headers).await
}

/// Store the digests of a shard's rows, after the shard
#[utoipa::path(put, path = "/v1/shards/{id}/rows", tag = "objects", operation_id = "put_rows",
    params(("id" = Digest, Path, description = "The shard")),
    request_body(content = Binary, content_type = "application/octet-stream"),
    responses((status = 204, description = "Stored"), (status = 422)))]
pub(super) async fn put_rows(
    state: State,
    client: Client,
    PathParam(id): PathParam<ShardId>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let place = state.uploads.place(client, 1).await;
    let bytes = place.read(&state.api.limits, &headers, body, MAX_SHARD).await?;
    let origin = state.api.catalog.origin();
    if origin.shard_size(&id).await?.is_none() {
        return Err(invalid(format!("put shard {id} before its rows")));
    }
    let shard = match origin.local_path(&id) {
        Some(path) => blocking(move || Shard::open(&path).map_err(invalid)).await?,
        None => {
            let bytes = origin.shard_bytes(id).await?;
            blocking(move || Shard::from_bytes(bytes.to_vec()).map_err(invalid)).await?
        }
    };
    let offered = bytes.clone();
    blocking(move || {
        let sidecar = Sidecar::decode(&offered).map_err(invalid)?;
        if sidecar.rows != shard.row_digests().map_err(invalid)? {
            return Err(Refusal::of(Kind::Mismatch, format!("these are not the rows of shard {id}")));
        }
        Ok(())
    })
    .await?;
    origin.put_sidecar(id, bytes).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Runs what takes long where blocking is allowed.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Refusal::of(Kind::Unavailable, format!("the check was given up: {error}")))
    })
}
