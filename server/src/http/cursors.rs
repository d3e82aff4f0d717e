//! Cursors of runs, changed by compare-and-swap: the tag of the one that was read is sent with the next.

use axum::http::StatusCode;
use axum::http::header::{ETAG, HeaderMap, IF_MATCH, IF_NONE_MATCH};
use axum::response::{IntoResponse, Response};
use shardd_api::problem::Kind;
use shardd_api::protocol::{Cursor, RunId};
use shardd_engine::engine::EngineError;
use shardd_store::metastore::{Expected, MetaError};

use super::problem::{Refusal, invalid, not_found};
use super::run_access::{Own, Seen};
use super::{Answer, State, ValidJson, json};

/// The cursor of a run
#[utoipa::path(get, path = "/v1/runs/{id}/cursor", tag = "runs", operation_id = "get_cursor",
    params(("id" = RunId, Path, description = "The run")),
    responses((status = 200, description = "With its `etag`", body = Cursor), (status = 404)))]
pub(super) async fn show(state: State, Seen(run): Seen) -> Answer {
    match state.api.engine.cursor(&run).await? {
        Some((cursor, revision)) => tagged(StatusCode::OK, revision, &cursor),
        None => Err(none(&run)),
    }
}

/// Store the cursor of a run, in place of the one that `if-match` names, or as the first (`if-none-match: *`)
#[utoipa::path(put, path = "/v1/runs/{id}/cursor", tag = "runs", operation_id = "put_cursor",
    params(
        ("id" = RunId, Path, description = "The run"),
        ("if-match" = Option<String>, Header, description = "The tag of the cursor it replaces", nullable = false),
        ("if-none-match" = Option<String>, Header, description = "`*`: there is none yet", nullable = false, pattern = "^\\*$")),
    request_body = Cursor,
    responses((status = 200, description = "With its `etag`", body = Cursor),
        (status = 404), (status = 412), (status = 422), (status = 428)))]
pub(super) async fn put(
    state: State,
    headers: HeaderMap,
    Own(run): Own,
    ValidJson(cursor): ValidJson<Cursor>,
) -> Answer {
    let expected = expected(&headers)?;
    match state.api.engine.put_cursor(&run, cursor, expected).await {
        Ok(revision) => tagged(StatusCode::OK, revision, &cursor),
        Err(error) => refused(&run, error),
    }
}

/// Delete the cursor of a run, if it is the one that `if-match` names
#[utoipa::path(delete, path = "/v1/runs/{id}/cursor", tag = "runs", operation_id = "delete_cursor",
    params(
        ("id" = RunId, Path, description = "The run"),
        ("if-match" = Option<String>, Header, description = "The tag of the cursor", nullable = false)),
    responses((status = 204, description = "The cursor is deleted"), (status = 404), (status = 412),
        (status = 422), (status = 428)))]
pub(super) async fn remove(state: State, headers: HeaderMap, Own(run): Own) -> Answer {
    let Expected::At(revision) = expected(&headers)? else { return Err(none(&run)) };
    if state.api.engine.cursor(&run).await?.is_none() {
        return Err(none(&run));
    }
    match state.api.engine.remove_cursor(&run, Expected::At(revision)).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT.into_response()),
        Err(error) => refused(&run, error),
    }
}

/// The state of the cursor that the request expects.
fn expected(headers: &HeaderMap) -> Result<Expected, Refusal> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default().trim());
    match (text(IF_MATCH), text(IF_NONE_MATCH)) {
        (None, Some("*")) => Ok(Expected::Absent),
        (Some(tag), None) => {
            let revision = tag.strip_prefix("\"r").and_then(|tag| tag.strip_suffix('"')?.parse().ok());
            let detail = || format!("if-match: {tag:?} is not the tag of this cursor");
            let wrong = || Refusal::of(Kind::PreconditionFailed, detail());
            revision.map(Expected::At).ok_or_else(wrong)
        }
        (None, Some(_)) => Err(invalid("if-none-match: only * says something here: that there is no cursor")),
        (Some(_), Some(_)) => Err(invalid("if-match and if-none-match: one of the two, not both")),
        (None, None) => {
            let detail = "say which cursor it replaces: if-match with the etag of the last one, or if-none-match: * for the first";
            Err(Refusal::of(Kind::PreconditionRequired, detail))
        }
    }
}

fn none(run: &RunId) -> Refusal {
    not_found(format!("there is no cursor of run {run}"))
}

/// A conflict is a failed precondition; the present tag comes along, if there is one.
fn refused(run: &RunId, error: EngineError) -> Answer {
    let EngineError::Meta(MetaError::Conflict { actual, .. }) = error else { return Err(error.into()) };
    let now =
        actual.map_or_else(|| "there is none".to_owned(), |revision| format!("it is at \"r{revision}\""));
    let refusal =
        Refusal::of(Kind::PreconditionFailed, format!("the cursor of run {run} is not as expected: {now}"));
    match actual {
        Some(revision) => Ok(([(ETAG, tag(revision))], refusal).into_response()),
        None => Err(refusal),
    }
}

fn tag(revision: u64) -> String {
    format!("\"r{revision}\"")
}

fn tagged(status: StatusCode, revision: u64, cursor: &Cursor) -> Result<Response, Refusal> {
    Ok((status, [(ETAG, tag(revision))], json(cursor)?).into_response())
}
