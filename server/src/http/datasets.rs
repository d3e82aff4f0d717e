//! Datasets, their history, and the manifests of their versions.

use axum::body::Body;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::IntoResponse;
use serde::Deserialize;
use shardd_api::schema;
use shardd_store::catalog::{CommitNote, DatasetInfo, LogEntry, Pruned, VersionInfo};
use shardfmt::{CommitId, DatasetName, DatasetRef, Message, Operation, VersionId};
use utoipa::{IntoParams, ToSchema};

use super::access::Datasets;
use super::client::Client;
use super::immutable::{ARROW_FILE, Conditions, Content, Source};
use super::openapi::Binary;
use super::pages::{self, Paged};
use super::problem::{invalid, not_found};
use super::recall::{WithStaleness, aged, or_recalled, told};
use super::{Answer, PathParam, State, ValidJson, ValidQuery, json};

/// Makes `version` the present one of a dataset, if that is `expected` now.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewCommit {
    /// The present version; null if there is no such dataset yet.
    #[schema(value_type = Option<schema::Digest>)]
    expected: Option<VersionId>,
    /// The version, whose manifest and shards have been put.
    #[schema(value_type = schema::Digest)]
    version: VersionId,
    /// The operation that made it.
    #[serde(default = "ingest")]
    #[schema(value_type = schema::Operation)]
    operation: Operation,
    /// Why.
    #[serde(default)]
    #[schema(value_type = schema::Message)]
    message: Message,
}

fn ingest() -> Operation {
    Operation::INGEST
}

/// The dataset to remove is at this version.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Expecting {
    /// The version at which it is expected.
    #[param(value_type = schema::Digest)]
    pub(super) expected: VersionId,
}

/// All datasets, by name
#[utoipa::path(get, path = "/v1/datasets", tag = "datasets", operation_id = "list_datasets", params(Paged),
    responses((status = 200, description = "A page of the list", body = Vec<DatasetInfo>), (status = 422)))]
pub(super) async fn list(
    state: State,
    seen: Datasets,
    uri: Uri,
    ValidQuery(paged): ValidQuery<Paged>,
) -> Answer {
    let (mut all, age) = or_recalled(&state, |catalog| async move { catalog.datasets().await }).await?;
    all.retain(|dataset| seen.0.holds(&dataset.name));
    aged(pages::page(&uri, &paged, told(all, age), |dataset| dataset.what.name.to_string()), age)
}

/// The version that a reference names
#[utoipa::path(get, path = "/v1/datasets/{name}", tag = "datasets", operation_id = "get_dataset",
    params(("name" = schema::DatasetRef, Path, description = "A dataset, or a version of it")),
    responses((status = 200, description = "The version", body = DatasetInfo), (status = 404), (status = 422)))]
pub(super) async fn show(state: State, PathParam(reference): PathParam<DatasetRef>) -> Answer {
    let (found, age) = or_recalled(&state, |catalog| {
        let reference = reference.clone();
        async move { catalog.resolve(&reference).await }
    })
    .await?;
    let found = WithStaleness { what: found, stale: age.is_some() };
    aged(json(&found), age)
}

/// The history of a dataset, the newest commit first
#[utoipa::path(get, path = "/v1/datasets/{name}/log", tag = "datasets", operation_id = "log",
    params(("name" = schema::DatasetName, Path, description = "The dataset"), Paged),
    responses((status = 200, description = "A page of commits", body = Vec<LogEntry>), (status = 422), (status = 404)))]
pub(super) async fn log(
    state: State,
    uri: Uri,
    PathParam(name): PathParam<DatasetName>,
    ValidQuery(paged): ValidQuery<Paged>,
) -> Answer {
    let limit = paged.limit()?;
    let from = match paged.after()? {
        None => None,
        Some(id) => Some(id.parse::<CommitId>().map_err(|error| invalid(format!("page: {error}")))?),
    };
    // One more than fits says where the next page begins.
    let (mut commits, age) = or_recalled(&state, |catalog| {
        let name = name.clone();
        async move { catalog.log_from(&name, from, limit + 1).await }
    })
    .await?;
    let next = commits.split_off(limit.min(commits.len())).first().map(|commit| commit.id.to_string());
    aged(pages::answer(&uri, limit, &commits, next), age)
}

/// Where a history is cut.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Before {
    /// The commit that is to be the oldest.
    #[param(value_type = schema::Digest)]
    before: CommitId,
}

/// Remove the history of a dataset before a commit
///
/// Versions named by tags, plans and runs stay. The rest goes with the next garbage collection.
#[utoipa::path(delete, path = "/v1/datasets/{name}/log", tag = "datasets", operation_id = "prune",
    params(("name" = schema::DatasetName, Path, description = "The dataset"), Before),
    responses((status = 200, description = "The commits that were cut off", body = Pruned), (status = 404)))]
pub(super) async fn prune(
    state: State,
    PathParam(name): PathParam<DatasetName>,
    ValidQuery(Before { before }): ValidQuery<Before>,
) -> Answer {
    json(&Pruned { commits: state.api.catalog.prune(&name, before).await? })
}

/// Remove a name with its history
#[utoipa::path(delete, path = "/v1/datasets/{name}", tag = "datasets", operation_id = "remove_dataset",
    params(("name" = schema::DatasetName, Path, description = "The dataset"), Expecting),
    responses((status = 204, description = "Removed"), (status = 404), (status = 409)))]
pub(super) async fn remove(
    state: State,
    PathParam(name): PathParam<DatasetName>,
    ValidQuery(expecting): ValidQuery<Expecting>,
) -> Answer {
    state.api.catalog.remove_dataset(&name, expecting.expected).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Commit a version
#[utoipa::path(put, path = "/v1/datasets/{name}", tag = "datasets", operation_id = "commit",
    params(("name" = schema::DatasetName, Path, description = "The dataset")), request_body = NewCommit,
    responses((status = 200, description = "The present state of the dataset", body = DatasetInfo),
        (status = 404), (status = 409), (status = 422)))]
pub(super) async fn commit(
    state: State,
    PathParam(name): PathParam<DatasetName>,
    ValidJson(commit): ValidJson<NewCommit>,
) -> Answer {
    let NewCommit { expected, version, operation, message } = commit;
    let note = CommitNote { message, ..CommitNote::of(operation) };
    json(&state.api.catalog.commit(&name, expected, version, &note).await?)
}

/// The contents of a version, and the commits that made it
#[utoipa::path(get, path = "/v1/versions/{id}", tag = "datasets", operation_id = "get_version",
    params(("id" = schema::Digest, Path, description = "The version")),
    responses((status = 200, description = "The version", body = VersionInfo), (status = 404)))]
pub(super) async fn version(state: State, PathParam(id): PathParam<VersionId>) -> Answer {
    json(&state.api.catalog.version(id).await?)
}

/// The manifest of a version: an Arrow file, whole or in parts
#[utoipa::path(get, path = "/v1/manifests/{id}", tag = "objects", operation_id = "get_manifest",
    params(("id" = schema::Digest, Path, description = "The version"), Conditions),
    responses((status = 200, description = "The file", body = Binary, content_type = "application/vnd.apache.arrow.file"),
        (status = 206, description = "The requested ranges", body = Binary,
            content_type = "application/vnd.apache.arrow.file"),
        (status = 304, description = "Not modified"), (status = 404), (status = 416)))]
pub(super) async fn manifest(
    state: State,
    method: Method,
    PathParam(id): PathParam<VersionId>,
    headers: HeaderMap,
) -> Answer {
    let origin = state.api.catalog.origin();
    let Some(size) = origin.manifest_size(id).await? else {
        return Err(not_found(format!("there is no manifest {id} here")));
    };
    let source = Source::Manifest(origin.clone(), id);
    let (what, etag) = (format!("manifest {id}"), id.to_string());
    Content { what, kind: ARROW_FILE, etag, size, forever: true, source }.answer(&method, &headers).await
}

/// The Merkle tree of a manifest, which verifies parts of it
#[utoipa::path(get, path = "/v1/manifests/{id}/tree", tag = "objects", operation_id = "get_manifest_tree",
    params(("id" = schema::Digest, Path, description = "The version"), Conditions),
    responses((status = 200, description = "The tree", body = Binary, content_type = "application/octet-stream"),
        (status = 206, description = "The requested ranges", body = Binary,
            content_type = "application/octet-stream"),
        (status = 304, description = "Not modified"), (status = 404), (status = 416)))]
pub(super) async fn tree(
    state: State,
    method: Method,
    PathParam(id): PathParam<VersionId>,
    headers: HeaderMap,
) -> Answer {
    let tree = state.api.catalog.origin().manifest_tree(id).await?;
    Content::derived(format!("tree of manifest {id}"), tree).answer(&method, &headers).await
}

/// The provenance of a version: its inputs, and how they were read
///
/// The first ingest that makes a version records them. The commit has the digest of the record.
#[utoipa::path(get, path = "/v1/manifests/{id}/provenance", tag = "objects", operation_id = "get_provenance",
    params(("id" = schema::Digest, Path, description = "The version"), Conditions),
    responses((status = 200, description = "The record, a JSON document", body = Binary, content_type = "application/json"),
        (status = 304, description = "Not modified"), (status = 404)))]
pub(super) async fn provenance(
    state: State,
    method: Method,
    PathParam(id): PathParam<VersionId>,
    headers: HeaderMap,
) -> Answer {
    let Some(provenance) = state.api.catalog.origin().provenance(id).await? else {
        return Err(not_found(format!("there is no provenance of version {id} here")));
    };
    let bytes = provenance.to_bytes().into();
    Content::document(format!("provenance of version {id}"), bytes).answer(&method, &headers).await
}

/// Store the provenance of a version, unless it has one
#[utoipa::path(put, path = "/v1/manifests/{id}/provenance", tag = "objects", operation_id = "put_provenance",
    params(("id" = schema::Digest, Path, description = "The version")),
    request_body(content = Binary, content_type = "application/json"),
    responses((status = 204, description = "It has one"), (status = 422)))]
pub(super) async fn put_provenance(
    state: State,
    client: Client,
    PathParam(id): PathParam<VersionId>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let (_place, bytes) = state.uploads.read_metadata(client, &state.api.limits, &headers, body).await?;
    state.api.catalog.origin().put_provenance_bytes(id, bytes).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Store a manifest under its digest
#[utoipa::path(put, path = "/v1/manifests/{id}", tag = "objects", operation_id = "put_manifest",
    params(("id" = schema::Digest, Path, description = "The version")),
    request_body(content = Binary, content_type = "application/octet-stream"),
    responses((status = 204, description = "Stored"), (status = 422)))]
pub(super) async fn put_manifest(
    state: State,
    client: Client,
    PathParam(id): PathParam<VersionId>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let (_place, bytes) = state.uploads.read_metadata(client, &state.api.limits, &headers, body).await?;
    state.api.catalog.origin().put_manifest_bytes(id, bytes).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
