//! Runs: what loaders ask of a node. Every route is one call of the engine.

use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;
use shardd_client::protocol::{Attach, AuditReport, CreateRun, LocateReply, LocateRequest, Placement, RunId};

use super::problem::bad_request;
use super::{Answer, Named, Posted, Refusal, State, json};

/// Who hosts what in one run.
#[derive(Serialize)]
struct Placed {
    run: RunId,
    placement: Placement,
}

pub(super) async fn list(state: State) -> Answer {
    json(&state.api.engine.runs().await?)
}

pub(super) async fn create(state: State, Posted(create): Posted<CreateRun>) -> Answer {
    Ok((StatusCode::CREATED, json(&state.api.engine.create_run(create).await?)?).into_response())
}

pub(super) async fn show(state: State, Named(run): Named<RunId>) -> Answer {
    json(&state.api.engine.view(&run).await?)
}

pub(super) async fn attach(
    state: State,
    Path(path): Path<(String, String)>,
    Posted(attach): Posted<Attach>,
) -> Answer {
    let (run, rank) = run_and_rank(&path)?;
    json(&state.api.engine.attach(&run, rank, attach).await?)
}

pub(super) async fn detach(state: State, Path(path): Path<(String, String)>) -> Answer {
    let (run, rank) = run_and_rank(&path)?;
    state.api.engine.detach(&run, rank).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn locate(
    state: State,
    Named(run): Named<RunId>,
    Posted(request): Posted<LocateRequest>,
) -> Answer {
    let (reply, inline) = state.api.engine.locate(&run, request).await?;
    Ok(located(&reply, inline))
}

pub(super) async fn audit(
    state: State,
    Named(run): Named<RunId>,
    Posted(report): Posted<AuditReport>,
) -> Answer {
    state.api.engine.keep_audit(&run, report).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn audits(state: State, Named(run): Named<RunId>) -> Answer {
    json(&state.api.engine.audits(&run).await?)
}

pub(super) async fn placements(state: State) -> Answer {
    let placements = state.api.engine.placements().into_iter();
    let placed: Vec<Placed> = placements.map(|(run, placement)| Placed { run, placement }).collect();
    json(&placed)
}

/// `u32 LE length, JSON, the inline grains one after the other`, without copying the grains together.
fn located(reply: &LocateReply, inline: Vec<Bytes>) -> Response {
    let header = serde_json::to_vec(reply).expect("a reply is plain data");
    let length = u32::try_from(header.len()).expect("shorter than the request allows");
    let head = [&length.to_le_bytes()[..], &header].concat();
    let total = head.len() + inline.iter().map(Bytes::len).sum::<usize>();
    let parts = std::iter::once(Bytes::from(head)).chain(inline).map(Ok::<_, std::convert::Infallible>);
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (axum::http::header::CONTENT_LENGTH, total.to_string()),
    ];
    (headers, Body::from_stream(stream::iter(parts))).into_response()
}

fn run_and_rank((run, rank): &(String, String)) -> Result<(RunId, u32), Refusal> {
    let run = run.parse().map_err(bad_request)?;
    let rank = rank.parse().map_err(|_| bad_request(format!("{rank:?} is not the number of a rank")))?;
    Ok((run, rank))
}
