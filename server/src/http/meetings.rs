//! Where the ranks of a training find each other.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use shardd_client::protocol::{Meeting, RunId};

use super::problem::not_found;
use super::run_access::{Own, Seen};
use super::{Answer, Posted, State, json};

/// Where the ranks of a training meet, while rank 0 waits for them
#[utoipa::path(get, path = "/v1/runs/{id}/meeting", tag = "runs", operation_id = "get_meeting",
    params(("id" = RunId, Path, description = "The run")),
    responses((status = 200, body = Meeting), (status = 404)))]
pub(super) async fn show(state: State, Seen(run): Seen) -> Answer {
    match state.api.engine.meeting(&run).await? {
        Some(meeting) => Ok((StatusCode::OK, json(&meeting)?).into_response()),
        None => Err(not_found(format!("no rank 0 of run {run} waits for others"))),
    }
}

/// Say where the ranks of a training meet; rank 0 does
#[utoipa::path(put, path = "/v1/runs/{id}/meeting", tag = "runs", operation_id = "put_meeting",
    params(("id" = RunId, Path, description = "The run")),
    request_body = Meeting,
    responses((status = 204, description = "Said")))]
pub(super) async fn put(state: State, Own(run): Own, Posted(meeting): Posted<Meeting>) -> Answer {
    state.api.engine.put_meeting(&run, &meeting).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Say that all ranks have met
#[utoipa::path(delete, path = "/v1/runs/{id}/meeting", tag = "runs", operation_id = "delete_meeting",
    params(("id" = RunId, Path, description = "The run")),
    responses((status = 204, description = "Nobody is waited for")))]
pub(super) async fn remove(state: State, Own(run): Own) -> Answer {
    state.api.engine.remove_meeting(&run).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
