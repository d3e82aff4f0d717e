//! Where the ranks of a training find each other.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Deserialize;
use shardd_api::protocol::{Rendezvous, RunId};

use super::problem::not_found;
use super::run_access::{Own, Seen};
use super::{Answer, State, ValidJson, ValidQuery, json};

/// Which address is removed.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Removed only if it is still this one, so that a newer rank 0 keeps its own; without it, whatever it is
    address: Option<String>,
}

/// The rendezvous address of a training, while rank 0 waits for the others
#[utoipa::path(get, path = "/v1/runs/{id}/rendezvous", tag = "runs", operation_id = "get_rendezvous",
    params(("id" = RunId, Path, description = "The run")),
    responses((status = 200, body = Rendezvous), (status = 404)))]
pub(super) async fn show(state: State, Seen(run): Seen) -> Answer {
    match state.api.engine.rendezvous(&run).await? {
        Some(rendezvous) => Ok((StatusCode::OK, json(&rendezvous)?).into_response()),
        None => Err(not_found(format!("no rank 0 of run {run} waits for others"))),
    }
}

/// Publish the rendezvous address (rank 0)
#[utoipa::path(put, path = "/v1/runs/{id}/rendezvous", tag = "runs", operation_id = "put_rendezvous",
    params(("id" = RunId, Path, description = "The run")),
    request_body = Rendezvous,
    responses((status = 204, description = "The value is kept")))]
pub(super) async fn put(state: State, Own(run): Own, ValidJson(rendezvous): ValidJson<Rendezvous>) -> Answer {
    state.api.engine.put_rendezvous(&run, &rendezvous).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Remove the rendezvous address, once all ranks have met
#[utoipa::path(delete, path = "/v1/runs/{id}/rendezvous", tag = "runs", operation_id = "delete_rendezvous",
    params(("id" = RunId, Path, description = "The run"), Which),
    responses((status = 204, description = "The group is complete")))]
pub(super) async fn remove(state: State, Own(run): Own, ValidQuery(which): ValidQuery<Which>) -> Answer {
    state.api.engine.remove_rendezvous(&run, which.address.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
