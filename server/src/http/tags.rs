//! Tags: lasting names for versions.

use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse;
use serde::Deserialize;
use shardd_api::schema;
use shardd_store::catalog::{TagExpected, TagInfo};
use shardfmt::{CommitId, DatasetName, TagName};
use utoipa::ToSchema;

use super::access::Datasets;
use super::datasets::Expecting;
use super::pages::{self, Paged};
use super::{Answer, PathPair, PathParam, State, ValidJson, ValidQuery, json};

/// Tags a commit, if the tag is as expected.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Tagging {
    /// The commit of the version.
    #[schema(value_type = schema::Digest)]
    commit: CommitId,
    /// The expected state of the tag.
    #[serde(default = "absent")]
    #[schema(value_type = schema::TagExpected)]
    expected: TagExpected,
}

fn absent() -> TagExpected {
    TagExpected::Absent
}

/// All tags of all datasets
#[utoipa::path(get, path = "/v1/tags", tag = "datasets", operation_id = "list_all_tags", params(Paged),
    responses((status = 200, description = "A page of the list", body = Vec<TagInfo>), (status = 422)))]
pub(super) async fn all(
    state: State,
    seen: Datasets,
    uri: Uri,
    ValidQuery(paged): ValidQuery<Paged>,
) -> Answer {
    let mut all = state.api.catalog.tags(None).await?;
    all.retain(|tag| seen.0.holds(&tag.dataset));
    pages::page(&uri, &paged, all, key)
}

/// The tags of a dataset
#[utoipa::path(get, path = "/v1/datasets/{name}/tags", tag = "datasets", operation_id = "list_tags",
    params(("name" = schema::DatasetName, Path, description = "The dataset"), Paged),
    responses((status = 200, description = "A page of the list", body = Vec<TagInfo>), (status = 422)))]
pub(super) async fn of_dataset(
    state: State,
    uri: Uri,
    PathParam(dataset): PathParam<DatasetName>,
    ValidQuery(paged): ValidQuery<Paged>,
) -> Answer {
    pages::page(&uri, &paged, state.api.catalog.tags(Some(&dataset)).await?, key)
}

/// Orders as the two names do: the character between them is before all that names may have.
fn key(tag: &TagInfo) -> String {
    format!("{}\u{1}{}", tag.dataset, tag.tag)
}

/// A tag and its commit
#[utoipa::path(get, path = "/v1/datasets/{name}/tags/{tag}", tag = "datasets", operation_id = "get_tag",
    params(("name" = schema::DatasetName, Path, description = "The dataset"),
        ("tag" = schema::TagName, Path, description = "The tag")),
    responses((status = 200, description = "The tag", body = TagInfo), (status = 404)))]
pub(super) async fn show(state: State, PathPair(dataset, tag): PathPair<DatasetName, TagName>) -> Answer {
    json(&state.api.catalog.tag(&dataset, &tag).await?)
}

/// Tag a commit of a dataset
#[utoipa::path(put, path = "/v1/datasets/{name}/tags/{tag}", tag = "datasets", operation_id = "put_tag",
    params(("name" = schema::DatasetName, Path, description = "The dataset"),
        ("tag" = schema::TagName, Path, description = "The tag")),
    request_body = Tagging,
    responses((status = 200, description = "The tag", body = TagInfo), (status = 404), (status = 409)))]
pub(super) async fn put(
    state: State,
    PathPair(dataset, tag): PathPair<DatasetName, TagName>,
    ValidJson(tagging): ValidJson<Tagging>,
) -> Answer {
    json(&state.api.catalog.put_tag(&dataset, &tag, tagging.commit, tagging.expected).await?)
}

/// Remove a tag
#[utoipa::path(delete, path = "/v1/datasets/{name}/tags/{tag}", tag = "datasets", operation_id = "remove_tag",
    params(("name" = schema::DatasetName, Path, description = "The dataset"),
        ("tag" = schema::TagName, Path, description = "The tag"), Expecting),
    responses((status = 204, description = "Removed"), (status = 404), (status = 409)))]
pub(super) async fn remove(
    state: State,
    PathPair(dataset, tag): PathPair<DatasetName, TagName>,
    ValidQuery(expecting): ValidQuery<Expecting>,
) -> Answer {
    state.api.catalog.remove_tag(&dataset, &tag, expecting.expected).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
