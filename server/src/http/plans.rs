//! Plans: immutable documents, checked against the version they order before they are kept.

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, ETAG};
use axum::response::IntoResponse;
use shardfmt::PlanId;
use shardfmt::plan::PlanDocument;

use super::{Answer, Named, Posted, State, json};

pub(super) async fn list(state: State) -> Answer {
    json(&state.api.catalog.plans().await?)
}

pub(super) async fn create(state: State, Posted(document): Posted<PlanDocument>) -> Answer {
    let info = state.api.catalog.put_plan(&document).await?;
    Ok((StatusCode::CREATED, json(&info)?).into_response())
}

pub(super) async fn show(state: State, Named(id): Named<PlanId>) -> Answer {
    let bytes = state.api.catalog.plan(id).await?.to_bytes();
    Ok(([(CONTENT_TYPE, "application/json".to_owned()), (ETAG, format!("\"{id}\""))], bytes).into_response())
}

pub(super) async fn remove(state: State, Named(id): Named<PlanId>) -> Answer {
    state.api.catalog.remove_plan(id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
