//! Datasets and the manifests of their versions.

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap};
use axum::response::IntoResponse;
use serde::Deserialize;
use shardfmt::{DatasetName, VersionId};

use super::range::{Wanted, wanted};
use super::{Answer, MAX_MANIFEST, Named, Posted, State, json, read};

/// Makes a dataset point at `version`, if it points at `expected` now.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Commit {
    expected: Option<VersionId>,
    version: VersionId,
}

pub(super) async fn list(state: State) -> Answer {
    json(&state.api.catalog.datasets().await?)
}

pub(super) async fn show(state: State, Named(name): Named<DatasetName>) -> Answer {
    json(&state.api.catalog.dataset(&name).await?)
}

pub(super) async fn commit(
    state: State,
    Named(name): Named<DatasetName>,
    Posted(commit): Posted<Commit>,
) -> Answer {
    json(&state.api.catalog.commit(&name, commit.expected, commit.version).await?)
}

pub(super) async fn manifest(state: State, Named(id): Named<VersionId>, headers: HeaderMap) -> Answer {
    let bytes = state.api.catalog.origin().manifest_bytes(id).await?;
    let etag = format!("\"{id}\"");
    let known = [(ETAG, etag.clone()), (CACHE_CONTROL, "public, max-age=31536000, immutable".into())];
    if wanted(&headers, &etag, bytes.len() as u64) == Wanted::Nothing {
        return Ok((StatusCode::NOT_MODIFIED, known).into_response());
    }
    Ok((known, [(CONTENT_TYPE, "application/vnd.apache.arrow.file")], bytes).into_response())
}

pub(super) async fn put_manifest(
    state: State,
    Named(id): Named<VersionId>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let _one_of_few = state.uploads.acquire().await.expect("never closed");
    let bytes = read(&headers, body, MAX_MANIFEST).await?;
    state.api.catalog.origin().put_manifest_bytes(id, bytes).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
