//! Datasets, their history, and the manifests of their versions.

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap,
};
use axum::http::{Method, StatusCode};
use axum::response::IntoResponse;
use serde::Deserialize;
use shardd_client::catalog::CommitNote;
use shardd_client::problem::Problem;
use shardfmt::{DatasetName, DatasetRef, Message, Operation, VersionId};

use super::problem::{Refusal, not_found};
use super::range::{Wanted, wanted};
use super::{Answer, Asked, MAX_MANIFEST, MAX_SHARD, Named, Posted, State, json, read};

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

/// A whole manifest is verified here; a part is by whoever asked for it, with the tree.
pub(super) async fn manifest(
    state: State,
    method: Method,
    Named(id): Named<VersionId>,
    headers: HeaderMap,
) -> Answer {
    let origin = state.api.catalog.origin();
    let Some(size) = origin.manifest_size(id).await? else {
        return Err(not_found(format!("there is no manifest {id} here")));
    };
    let etag = format!("\"{id}\"");
    let known = [
        (ETAG, etag.clone()),
        (CACHE_CONTROL, "public, max-age=31536000, immutable".to_owned()),
        (ACCEPT_RANGES, "bytes".to_owned()),
        (CONTENT_TYPE, "application/vnd.apache.arrow.file".to_owned()),
    ];
    match wanted(&headers, &etag, size) {
        Wanted::Nothing => Ok((StatusCode::NOT_MODIFIED, known).into_response()),
        Wanted::Whole if method == Method::HEAD => {
            Ok((known, [(CONTENT_LENGTH, size.to_string())], Body::empty()).into_response())
        }
        Wanted::Whole => Ok((known, origin.manifest_bytes(id).await?).into_response()),
        Wanted::Part(part) => {
            let range = [(CONTENT_RANGE, format!("bytes {}-{}/{size}", part.start, part.end - 1))];
            let bytes = origin.manifest_part(id, part).await?;
            Ok((StatusCode::PARTIAL_CONTENT, known, range, bytes).into_response())
        }
        Wanted::Unsatisfiable => {
            let detail = format!("manifest {id} has {size} bytes, the range begins after them");
            let refusal = Refusal::from(Problem::new("about:blank", 416, detail));
            Ok(([(CONTENT_RANGE, format!("bytes */{size}"))], refusal).into_response())
        }
    }
}

/// What parts of a manifest are verified by. It may be made anew, so it is not kept for ever.
pub(super) async fn tree(state: State, Named(id): Named<VersionId>, headers: HeaderMap) -> Answer {
    let tree = state.api.catalog.origin().manifest_tree(id).await?;
    let size = tree.len() as u64;
    let known = [(CACHE_CONTROL, "no-cache"), (CONTENT_TYPE, "application/octet-stream")];
    let Wanted::Part(part) = wanted(&headers, "", size) else { return Ok((known, tree).into_response()) };
    let range = [(CONTENT_RANGE, format!("bytes {}-{}/{size}", part.start, part.end - 1))];
    let bytes = tree.slice(part.start as usize..part.end as usize);
    Ok((StatusCode::PARTIAL_CONTENT, known, range, bytes).into_response())
}

pub(super) async fn put_manifest(
    state: State,
    Named(id): Named<VersionId>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    // It takes the room of some shards.
    let room = MAX_MANIFEST.div_ceil(MAX_SHARD) as u32;
    let _some_of_few = state.uploads.acquire_many(room).await.expect("never closed");
    let bytes = read(&headers, body, MAX_MANIFEST).await?;
    state.api.catalog.origin().put_manifest_bytes(id, bytes).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
