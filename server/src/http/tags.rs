//! Tags: lasting names for versions.

use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Deserialize;
use shardd_client::catalog::TagExpected;
use shardfmt::{CommitId, DatasetName, TagName};

use super::datasets::Expecting;
use super::problem::bad_request;
use super::{Answer, Asked, Named, Posted, Refusal, State, json};

/// Tags a commit, if the tag is as expected.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tagging {
    commit: CommitId,
    #[serde(default = "absent")]
    expected: TagExpected,
}

fn absent() -> TagExpected {
    TagExpected::Absent
}

pub(super) async fn all(state: State) -> Answer {
    json(&state.api.catalog.tags(None).await?)
}

pub(super) async fn of_dataset(state: State, Named(dataset): Named<DatasetName>) -> Answer {
    json(&state.api.catalog.tags(Some(&dataset)).await?)
}

pub(super) async fn show(state: State, Path(path): Path<(String, String)>) -> Answer {
    let (dataset, tag) = dataset_and_tag(&path)?;
    json(&state.api.catalog.tag(&dataset, &tag).await?)
}

pub(super) async fn put(
    state: State,
    Path(path): Path<(String, String)>,
    Posted(tagging): Posted<Tagging>,
) -> Answer {
    let (dataset, tag) = dataset_and_tag(&path)?;
    json(&state.api.catalog.put_tag(&dataset, &tag, tagging.commit, tagging.expected).await?)
}

pub(super) async fn remove(
    state: State,
    Path(path): Path<(String, String)>,
    Asked(expecting): Asked<Expecting>,
) -> Answer {
    let (dataset, tag) = dataset_and_tag(&path)?;
    state.api.catalog.remove_tag(&dataset, &tag, expecting.expected).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn dataset_and_tag((dataset, tag): &(String, String)) -> Result<(DatasetName, TagName), Refusal> {
    Ok((dataset.parse().map_err(bad_request)?, tag.parse().map_err(bad_request)?))
}
