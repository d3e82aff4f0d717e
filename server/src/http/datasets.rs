//! Datasets, their history, and the manifests of their versions.

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap};
use axum::response::IntoResponse;
use serde::Deserialize;
use shardd_client::catalog::CommitNote;
use shardfmt::{DatasetName, DatasetRef, Message, Operation, VersionId};

use super::range::{Wanted, wanted};
use super::{Answer, Asked, MAX_MANIFEST, Named, Posted, State, json, read};

/// The most commits that one answer lists.
const MAX_LOG: usize = 10_000;

/// Makes `version` the present one of a dataset, if that is `expected` now.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Commit {
    expected: Option<VersionId>,
    version: VersionId,
    #[serde(default = "ingest")]
    operation: Operation,
    #[serde(default)]
    message: Message,
}

fn ingest() -> Operation {
    Operation::INGEST
}

/// What is to be removed is at this version.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expecting {
    pub(super) expected: VersionId,
}

/// How much of a history is wanted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Newest {
    #[serde(default = "hundred")]
    limit: usize,
}

fn hundred() -> usize {
    100
}

pub(super) async fn list(state: State) -> Answer {
    json(&state.api.catalog.datasets().await?)
}

pub(super) async fn show(state: State, Named(reference): Named<DatasetRef>) -> Answer {
    json(&state.api.catalog.resolve(&reference).await?)
}

pub(super) async fn log(
    state: State,
    Named(name): Named<DatasetName>,
    Asked(newest): Asked<Newest>,
) -> Answer {
    json(&state.api.catalog.log(&name, newest.limit.min(MAX_LOG)).await?)
}

pub(super) async fn remove(
    state: State,
    Named(name): Named<DatasetName>,
    Asked(expecting): Asked<Expecting>,
) -> Answer {
    state.api.catalog.remove_dataset(&name, expecting.expected).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn commit(
    state: State,
    Named(name): Named<DatasetName>,
    Posted(commit): Posted<Commit>,
) -> Answer {
    let Commit { expected, version, operation, message } = commit;
    let note = CommitNote { operation, message };
    json(&state.api.catalog.commit(&name, expected, version, &note).await?)
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
