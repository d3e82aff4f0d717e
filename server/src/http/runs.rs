//! Runs: what loaders ask of a node. Every route is one call of the engine.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::{Deserialize, Serialize};
use shardd_api::explain::{MissesExplained, PlacementExplained};
use shardd_api::node::NodeId;
use shardd_api::problem::Kind;
use shardd_api::protocol::{
    Attach, AuditReport, CreateRun, LocateReply, LocateRequest, Placement, RunId, RunRecord, RunView,
};
use shardd_api::status::Filled;
use shardd_api::timeline::Timeline;
use shardd_store::catalog::{CatalogBackend, RemoveRun, RunInfo};
use utoipa::{IntoParams, ToSchema};

use super::access::{Bearer, Datasets};
use super::openapi::Binary;
use super::pages::{self, Paged};
use super::problem::Refusal;
use super::recall::{aged, or_recalled, told};
use super::run_access::{Own, OwnRank, Seen, may_create, own};
use super::{Answer, PathParam, State, ValidJson, ValidQuery, json};

/// Who hosts what in one run.
#[derive(Serialize, ToSchema)]
pub(super) struct Placed {
    /// The run.
    run: RunId,
    /// Its placement, as this node knows it.
    placement: Placement,
}

/// What `GET /v1/runs` asks.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WhichRuns {
    /// Elements of a page, 1000 by default.
    #[param(minimum = 1, maximum = 10_000, nullable = false)]
    limit: Option<usize>,
    /// The start of this page: the token in the `link` header of the page before. Only the server reads it.
    #[param(pattern = "^([0-9a-f]{2})+$", nullable = false)]
    page: Option<String>,
    /// Also runs known only from records or checkpoints in the store, and the objects that each has left.
    /// This reads the store.
    #[serde(default)]
    #[param(default = false, required = false)]
    details: bool,
}

/// All runs, by name
#[utoipa::path(get, path = "/v1/runs", tag = "runs", operation_id = "list_runs", params(WhichRuns),
    responses((status = 200, description = "A page of the list", body = Vec<RunInfo>), (status = 422)))]
pub(super) async fn list(
    state: State,
    seen: Datasets,
    uri: Uri,
    ValidQuery(asked): ValidQuery<WhichRuns>,
) -> Answer {
    let WhichRuns { limit, page, details } = asked;
    let paged = Paged::of(limit, page);
    paged.limit()?;
    // Details are not remembered: asked a second time, of what this node remembers, the list is without them.
    let details = AtomicBool::new(details);
    let ask = |catalog: CatalogBackend| {
        let details = details.swap(false, Relaxed);
        async move { catalog.runs(details).await }
    };
    let (mut all, age) = or_recalled(&state, ask).await?;
    all.retain(|run| may_see(&seen, run));
    aged(pages::page(&uri, &paged, told(all, age), |run| run.what.id.to_string()), age)
}

/// Whether a run is over a dataset that the client may see; of one whose dataset is not known, all must be.
fn may_see(seen: &Datasets, run: &RunInfo) -> bool {
    seen.0.is_all() || run.dataset.as_ref().is_some_and(|dataset| seen.0.holds(dataset))
}

/// How often a quiet connection is shown to be alive.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The launch of a rank that connects.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Launch {
    /// The number of ranks, W.
    world: u32,
    /// The epoch that the rank has reached.
    epoch: u32,
}

/// How `DELETE /v1/runs/{id}` is meant.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HowRemoved {
    /// Also if its ranks were heard of in the last 15 minutes.
    #[serde(default)]
    #[param(default = false, required = false)]
    force: bool,
    /// Its checkpoints, too.
    #[serde(default)]
    #[param(default = false, required = false)]
    checkpoints: bool,
}

/// Remove a run with its cursor, its audits and its training records
///
/// Its plan can be removed then. Nodes drop what their caches have for it alone. Checkpoints stay by default.
#[utoipa::path(delete, path = "/v1/runs/{id}", tag = "runs", operation_id = "remove_run",
    params(("id" = RunId, Path, description = "The run"), HowRemoved),
    responses((status = 200, description = "The removed objects of the run", body = RunInfo),
        (status = 404), (status = 409)))]
pub(super) async fn remove(
    state: State,
    seen: Datasets,
    PathParam(run): PathParam<RunId>,
    ValidQuery(how): ValidQuery<HowRemoved>,
) -> Answer {
    if !seen.0.is_all() && !may_see(&seen, &state.api.catalog.run_info(&run).await?) {
        return Err(Refusal::of(Kind::Forbidden, format!("the token is not for the dataset of run {run}")));
    }
    let HowRemoved { force, checkpoints } = how;
    json(&state.api.catalog.remove_run(&run, RemoveRun { force, checkpoints }).await?)
}

/// Register a run; repeating the request is harmless
///
/// Where tokens are asked, the run is this token's: no other of role `read` speaks for its ranks.
#[utoipa::path(post, path = "/v1/runs", tag = "runs", operation_id = "create_run", request_body = CreateRun,
    responses((status = 201, description = "The run", body = RunRecord), (status = 404), (status = 409), (status = 422)))]
pub(super) async fn create(state: State, bearer: Bearer, ValidJson(create): ValidJson<CreateRun>) -> Answer {
    may_create(&state, bearer.0.as_ref(), &create).await?;
    let created = state.api.engine.create_run(create).await?;
    own(&state, bearer.0.as_ref(), &created.id).await?;
    Ok((StatusCode::CREATED, json(&created)?).into_response())
}

/// A run, with all that a loader needs
#[utoipa::path(get, path = "/v1/runs/{id}", tag = "runs", operation_id = "get_run",
    params(("id" = RunId, Path, description = "The run")),
    responses((status = 200, description = "The run, its placement and the nodes", body = RunView), (status = 404)))]
pub(super) async fn show(state: State, Seen(run): Seen) -> Answer {
    json(&state.api.engine.view(&run).await?)
}

/// What `GET /v1/runs/{id}/placement` asks.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WhatIf {
    /// As if this node were drained
    #[param(nullable = false)]
    without: Option<NodeId>,
}

/// The hosts of a run's partitions, the reasons, and the planned moves
#[utoipa::path(get, path = "/v1/runs/{id}/placement", tag = "runs", operation_id = "explain_placement",
    params(("id" = RunId, Path, description = "The run"), WhatIf),
    responses((status = 200, description = "The state known to this node", body = PlacementExplained),
        (status = 404), (status = 409)))]
pub(super) async fn placement(
    state: State,
    Seen(run): Seen,
    ValidQuery(what_if): ValidQuery<WhatIf>,
) -> Answer {
    json(&state.api.engine.explain_placement(&run, what_if.without.as_ref()).await?)
}

/// Compute the placement of a run again, and make the first move
///
/// Nodes do so by themselves whenever something changes. The answer lists the moves to come: a few partitions
/// at a time.
#[utoipa::path(post, path = "/v1/runs/{id}/rebalance", tag = "runs", operation_id = "rebalance",
    params(("id" = RunId, Path, description = "The run")),
    responses((status = 200, description = "The new placement, and the moves to come",
        body = PlacementExplained), (status = 404)))]
pub(super) async fn rebalance(state: State, PathParam(run): PathParam<RunId>) -> Answer {
    json(&state.api.engine.rebalance(&run).await?)
}

/// The number of a run's grains that this node hosts, and how many it holds
#[utoipa::path(get, path = "/v1/runs/{id}/filled", tag = "runs", operation_id = "filled",
    params(("id" = RunId, Path, description = "The run")),
    responses((status = 200, description = "The grains of the epoch that its ranks have reached",
        body = Filled), (status = 404)))]
pub(super) async fn filled(state: State, Seen(run): Seen) -> Answer {
    json(&state.api.engine.filled(&run).await?)
}

/// The misses of a run on this node, and their sources
#[utoipa::path(get, path = "/v1/runs/{id}/misses", tag = "runs", operation_id = "explain_misses",
    params(("id" = RunId, Path, description = "The run")),
    responses((status = 200, description = "The misses since the node started",
        body = MissesExplained), (status = 404)))]
pub(super) async fn misses(state: State, Seen(run): Seen) -> Answer {
    json(&state.api.engine.misses(&run).await?)
}

/// The timeline of a run on this node
///
/// The last of it, since the node started: the grains it filled, sent, received, and fetched for loaders that
/// waited.
#[utoipa::path(get, path = "/v1/runs/{id}/timeline", tag = "runs", operation_id = "timeline",
    params(("id" = RunId, Path, description = "The run")),
    responses((status = 200, description = "The work, in the order of its ends", body = Timeline),
        (status = 404)))]
pub(super) async fn timeline(state: State, Seen(run): Seen) -> Answer {
    json(&state.api.engine.timeline(&run).await?)
}

/// Attach a rank: waits until all ranks of the launch are there, for ten seconds at most
#[utoipa::path(post, path = "/v1/runs/{id}/ranks/{rank}", tag = "runs", operation_id = "attach",
    params(("id" = RunId, Path, description = "The run"), ("rank" = u32, Path, description = "The rank, from 0")), request_body = Attach,
    responses((status = 200, description = "The run", body = RunView), (status = 404), (status = 422)))]
pub(super) async fn attach(
    state: State,
    OwnRank(run, rank): OwnRank,
    ValidJson(attach): ValidJson<Attach>,
) -> Answer {
    json(&state.api.engine.attach(&run, rank, attach).await?)
}

/// Keep a rank attached while its process lives
///
/// The answer does not end: it is an empty line every ten seconds. When the connection ends and the rank neither
/// detaches nor connects again within five seconds, its process is taken for killed, and the rank leaves the run. A
/// rank that cannot reach its node any more connects to another one, which is its node from then on.
#[utoipa::path(get, path = "/v1/runs/{id}/ranks/{rank}", tag = "runs", operation_id = "connect",
    params(("id" = RunId, Path, description = "The run"), ("rank" = u32, Path, description = "The rank, from 0"),
        Launch),
    responses((status = 200, description = "Empty lines", body = String, content_type = "text/plain"),
        (status = 404), (status = 422)))]
pub(super) async fn connect(
    state: State,
    OwnRank(run, rank): OwnRank,
    method: Method,
    ValidQuery(launch): ValidQuery<Launch>,
) -> Answer {
    let answer = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
    if method == Method::HEAD {
        return Ok((answer, Body::empty()).into_response());
    }
    let Launch { world, epoch } = launch;
    let connection = state.api.engine.connect(&run, rank, Attach { world, epoch }).await?;
    let lines = stream::unfold(
        (tokio::time::interval(HEARTBEAT), state.draining.clone(), connection),
        async |(mut beat, draining, connection)| {
            draining.run_until_cancelled(beat.tick()).await?;
            Some((Ok::<_, Infallible>(Bytes::from_static(b"\n")), (beat, draining, connection)))
        },
    );
    Ok((answer, Body::from_stream(lines)).into_response())
}

/// Detach a rank
#[utoipa::path(delete, path = "/v1/runs/{id}/ranks/{rank}", tag = "runs", operation_id = "detach",
    params(("id" = RunId, Path, description = "The run"), ("rank" = u32, Path, description = "The rank, from 0")),
    responses((status = 204, description = "Detached"), (status = 404)))]
pub(super) async fn detach(state: State, OwnRank(run, rank): OwnRank) -> Answer {
    state.api.engine.detach(&run, rank).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Report the progress of a rank, and locate grains
///
/// The answer is a 32-bit little-endian length, that number of bytes of JSON, and the grains that it marks as
/// inline.
#[utoipa::path(post, path = "/v1/runs/{id}/locate", tag = "runs", operation_id = "locate",
    params(("id" = RunId, Path, description = "The run")), request_body = LocateRequest,
    responses((status = 200, description = "Places and grains", body = Binary, content_type = "application/octet-stream"),
        (status = 404), (status = 422)))]
pub(super) async fn locate(
    state: State,
    Own(run): Own,
    ValidJson(request): ValidJson<LocateRequest>,
) -> Answer {
    let (reply, inline) = state.api.engine.locate(&run, request).await?;
    Ok(located(&reply, inline))
}

/// Report the samples that a rank has read in an epoch
///
/// A report stays: the same again is harmless, anything else is refused.
#[utoipa::path(post, path = "/v1/runs/{id}/audit", tag = "runs", operation_id = "put_audit",
    params(("id" = RunId, Path, description = "The run")), request_body = AuditReport,
    responses((status = 204, description = "The report is kept"), (status = 404), (status = 409),
        (status = 422)))]
pub(super) async fn audit(state: State, Own(run): Own, ValidJson(report): ValidJson<AuditReport>) -> Answer {
    state.api.engine.keep_audit(&run, report).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The audit reports of ranks, by epoch, world and rank
#[utoipa::path(get, path = "/v1/runs/{id}/audit", tag = "runs", operation_id = "list_audits",
    params(("id" = RunId, Path, description = "The run"), Paged),
    responses((status = 200, description = "A page of reports", body = Vec<AuditReport>), (status = 422)))]
pub(super) async fn audits(
    state: State,
    uri: Uri,
    Seen(run): Seen,
    ValidQuery(paged): ValidQuery<Paged>,
) -> Answer {
    let key = |report: &AuditReport| {
        let AuditReport { epoch, world, rank, .. } = report;
        format!("{epoch:010}/{world:010}/{rank:010}")
    };
    let mut all = state.api.engine.audits(&run).await?;
    all.sort_by_key(key);
    pages::page(&uri, &paged, all, key)
}

/// The hosts of partitions, by run
#[utoipa::path(get, path = "/v1/placement", tag = "cluster", operation_id = "list_placements", params(Paged),
    responses((status = 200, description = "A page of placements", body = Vec<Placed>), (status = 422)))]
pub(super) async fn placements(
    state: State,
    seen: Datasets,
    uri: Uri,
    ValidQuery(paged): ValidQuery<Paged>,
) -> Answer {
    seen.check_all()?;
    let placements = state.api.engine.placements().into_iter();
    let placed: Vec<Placed> = placements.map(|(run, placement)| Placed { run, placement }).collect();
    pages::page(&uri, &paged, placed, |placed| placed.run.to_string())
}

/// `u32 LE length, JSON, the inline grains one after the other`, without copying the grains together.
fn located(reply: &LocateReply, inline: Vec<Bytes>) -> Response {
    let header = serde_json::to_vec(reply).expect("a reply is plain data");
    let length = u32::try_from(header.len()).expect("shorter than the request allows");
    let head = [&length.to_le_bytes()[..], &header].concat();
    let total = head.len() + inline.iter().map(Bytes::len).sum::<usize>();
    let parts = std::iter::once(Bytes::from(head)).chain(inline).map(Ok::<_, Infallible>);
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (axum::http::header::CONTENT_LENGTH, total.to_string()),
    ];
    (headers, Body::from_stream(stream::iter(parts))).into_response()
}
