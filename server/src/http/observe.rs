//! Views of the cluster for people: the overview, lists of nodes, and the answers of any node about itself.

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use futures::stream::{self, StreamExt};
use serde::{Deserialize, Serialize};
use shardd_api::copies::{CachedGrains, Copies};
use shardd_api::hot::{Hot, HotOfCluster, HotOrder};
use shardd_api::node::NodeId;
use shardd_api::overview::OverviewHere;
use shardd_api::overview::rows::{Named, NodeRows, RowOrder};
use shardd_api::problem::Kind;
use shardd_api::protocol::RunId;
use shardd_api::schema;
use shardd_api::series::NodeSeries;
use shardd_api::status::NodeStatus;
use shardd_api::timeline::{DRAWN, NodeTrace, RunTrace, Timeline};
use shardd_api::traffic::{SentTo, Traffic};
use shardfmt::{DatasetName, ShardId};
use utoipa::{IntoParams, ToSchema};

use super::access::{Bearer, Datasets};
use super::problem::{Refusal, bad_request, not_found};
use super::run_access::Seen;
use super::shards::blocking;
use super::{Answer, LOOKUPS, PathParam, State, ValidQuery, json, place};
use crate::access::Role;
use crate::observe::MOST_HOT;
use crate::transport::Look;

/// The default number of points of a series.
const POINTS: usize = 120;
/// The default number of rows, and the most.
const ROWS: usize = 100;
const MOST_ROWS: usize = 1000;
/// The longest name of a node.
const LONGEST_NAME: usize = 40;
/// How many nodes are asked at once.
const ASKED_AT_ONCE: usize = 64;
/// The default number of hosts of a matrix, and the most.
const HOSTS: usize = 16;
const MOST_HOSTS: usize = 64;

/// Whether training waits for data, and what is wrong with the cluster
///
/// In which stage it waits, on which rank, since when, and when the epoch will be done; and each fault with its cause and its
/// remedy. It is at most two seconds old.
#[utoipa::path(get, path = "/v1/overview", tag = "cluster", operation_id = "overview",
    responses((status = 200, description = "The view", body = OverviewHere)))]
pub(super) async fn overview(state: State, seen: Datasets) -> Answer {
    seen.check_all()?;
    let overview = state.api.observer.overview().await;
    json(&OverviewHere {
        node: state.api.node.id.clone(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        overview,
    })
}

/// Which rows of a list of nodes are wanted.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedRows {
    /// By what they are sorted: by name by default.
    #[serde(default)]
    #[param(inline)]
    order: RowOrder,
    /// Only nodes whose names contain this.
    #[serde(default)]
    #[param(max_length = 40)]
    search: String,
    /// Only this node.
    #[param(nullable = false)]
    id: Option<NodeId>,
    /// How many rows come before.
    #[serde(default)]
    offset: usize,
    /// Rows, 100 by default.
    #[param(minimum = 1, maximum = 1000, nullable = false)]
    limit: Option<usize>,
}

/// The nodes of the cluster with their numbers, sorted and cut
#[utoipa::path(get, path = "/v1/cluster/nodes", tag = "cluster", operation_id = "node_rows", params(WantedRows),
    responses((status = 200, description = "Rows of the list", body = NodeRows)))]
pub(super) async fn rows(state: State, seen: Datasets, ValidQuery(wanted): ValidQuery<WantedRows>) -> Answer {
    seen.check_all()?;
    let limit = within(wanted.limit, ROWS, MOST_ROWS)?;
    if wanted.search.len() > LONGEST_NAME {
        return Err(bad_request(format!("search: names have at most {LONGEST_NAME} characters")));
    }
    let reports = state.api.observer.reports().await;
    let named = wanted.id.as_ref().map_or(Named::Containing(&wanted.search), Named::Exactly);
    json(&NodeRows::of(&reports.nodes, &reports.lost, wanted.order, named, wanted.offset, limit))
}

/// The status and the counters of a node
#[utoipa::path(get, path = "/v1/nodes/{id}/status", tag = "cluster", operation_id = "status_of_node",
    params(("id" = NodeId, Path, description = "The node")),
    responses((status = 200, description = "Its state", body = NodeStatus), (status = 404), (status = 503)))]
pub(super) async fn status(state: State, PathParam(node): PathParam<NodeId>) -> Answer {
    ask(&state, &node, Look::Status).await
}

/// Which series of a node are wanted.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedSeries {
    /// Beginnings of their names, with commas between them; all series without it.
    #[serde(default)]
    #[param(nullable = false)]
    names: Option<String>,
    /// Points of each over the last hour, 120 by default.
    #[param(minimum = 1, maximum = 720, nullable = false)]
    points: Option<usize>,
}

/// The values of a node over the last hour
#[utoipa::path(get, path = "/v1/nodes/{id}/series", tag = "cluster", operation_id = "series_of_node",
    params(("id" = NodeId, Path, description = "The node"), WantedSeries),
    responses((status = 200, description = "Its series", body = NodeSeries), (status = 404), (status = 503)))]
pub(super) async fn series(
    state: State,
    seen: Datasets,
    PathParam(node): PathParam<NodeId>,
    ValidQuery(wanted): ValidQuery<WantedSeries>,
) -> Answer {
    seen.check_all()?;
    let names = wanted.names.as_deref().unwrap_or_default();
    let names = names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    ask(&state, &node, Look::Series { names, points: within(wanted.points, POINTS, 720)? }).await
}

/// Which shards and grains are wanted.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedHot {
    /// By what they are sorted: by reads by default.
    #[serde(default)]
    #[param(inline)]
    by: HotOrder,
    /// Shards, and grains, 100 by default.
    #[param(minimum = 1, maximum = 1000, nullable = false)]
    limit: Option<usize>,
}

/// The shards and grains that a node is asked for most
///
/// Counts decay: a read counts half after some minutes. The node keeps the busiest ones.
#[utoipa::path(get, path = "/v1/nodes/{id}/hot", tag = "cluster", operation_id = "hot_of_node",
    params(("id" = NodeId, Path, description = "The node"), WantedHot),
    responses((status = 200, description = "Shards and grains", body = Hot), (status = 404), (status = 503)))]
pub(super) async fn hot_of_node(
    state: State,
    seen: Datasets,
    PathParam(node): PathParam<NodeId>,
    ValidQuery(wanted): ValidQuery<WantedHot>,
) -> Answer {
    seen.check_all()?;
    let look = Look::Hot { by: wanted.by, limit: within(wanted.limit, ROWS, MOST_HOT)? };
    ask(&state, &node, look).await
}

/// The shards and grains that nodes are asked for most, over all nodes
#[utoipa::path(get, path = "/v1/hot", tag = "cluster", operation_id = "hot", params(WantedHot),
    responses((status = 200, description = "Shards and grains", body = HotOfCluster)))]
pub(super) async fn hot(state: State, seen: Datasets, ValidQuery(wanted): ValidQuery<WantedHot>) -> Answer {
    seen.check_all()?;
    let limit = within(wanted.limit, ROWS, MOST_HOT)?;
    let (answers, unanswered) = ask_all::<Hot>(&state, Look::Hot { by: wanted.by, limit }).await;
    let answers = answers.into_iter().map(|(_, hot)| hot).collect();
    json(&HotOfCluster::merged(answers, unanswered, wanted.by, limit))
}

/// Where the grains of a shard are cached, and which runs read it
///
/// Nodes answer for the runs that they know. Bytes are those of the shard in the store.
#[utoipa::path(get, path = "/v1/shards/{id}/copies", tag = "cluster", operation_id = "copies",
    params(("id" = schema::Digest, Path, description = "The shard")),
    responses((status = 200, description = "Nodes and runs", body = Copies), (status = 404)))]
pub(super) async fn copies(state: State, seen: Datasets, PathParam(shard): PathParam<ShardId>) -> Answer {
    seen.check_all()?;
    let Some(bytes) = state.api.catalog.origin().shard_size(&shard).await? else {
        return Err(not_found(format!("there is no shard {shard} here")));
    };
    let (answers, unanswered) = ask_all::<Vec<CachedGrains>>(&state, Look::Copies { shard }).await;
    json(&Copies::of(shard, bytes, answers, unanswered))
}

/// The answers of all live nodes, and those that gave none.
async fn ask_all<T: for<'a> Deserialize<'a>>(state: &State, look: Look) -> (Vec<(NodeId, T)>, Vec<NodeId>) {
    let (observer, look) = (&state.api.observer, &look);
    let ask = |node: NodeId| async move {
        match observer.ask_for(&node, look.clone()).await {
            Ok(answer) => Ok((node, answer)),
            Err(_) => Err(node),
        }
    };
    asked(state.api.engine.live_nodes(), ask).await
}

/// The answers of these nodes, some asked at once, and the nodes that gave none.
async fn asked<T, A: Future<Output = Result<T, NodeId>>>(
    nodes: impl IntoIterator<Item = NodeId>,
    ask: impl Fn(NodeId) -> A,
) -> (Vec<T>, Vec<NodeId>) {
    let results: Vec<Result<T, NodeId>> =
        stream::iter(nodes).map(ask).buffered(ASKED_AT_ONCE).collect().await;
    let (mut answers, mut unanswered) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(answer) => answers.push(answer),
            Err(node) => unanswered.push(node),
        }
    }
    (answers, unanswered)
}

/// The rights of the client.
#[derive(Serialize, ToSchema)]
pub(super) struct OwnAccess {
    /// Whether this node requires tokens.
    required: bool,
    /// The role of the token; none where none is required: everybody may do everything then.
    role: Option<Role>,
    /// Its datasets; none: all.
    #[schema(value_type = Option<Vec<schema::DatasetName>>)]
    datasets: Option<Vec<DatasetName>>,
}

/// The rights of the token that the request shows
#[utoipa::path(get, path = "/v1/access", tag = "access", operation_id = "own_access",
    responses((status = 200, description = "The rights", body = OwnAccess)))]
pub(super) async fn access(state: State, Bearer(grant): Bearer) -> Answer {
    let required = state.api.access.is_required();
    let record = grant.map(|grant| grant.record);
    let role = record.as_ref().map(|record| record.role);
    let datasets = record.and_then(|record| record.datasets.names());
    json(&OwnAccess { required, role, datasets })
}

/// The answer of a node, passed on as it is.
async fn ask(state: &State, node: &NodeId, look: Look) -> Answer {
    if *node != state.api.node.id && !state.api.engine.live_nodes().contains(node) {
        return Err(not_found(format!("there is no live node {node}")));
    }
    let answer: Bytes = state.api.observer.ask(node, look).await.map_err(|error| {
        // Another release does not know the question.
        let kind = match Kind::from(&error) {
            Kind::Malformed => Kind::Unavailable,
            kind => kind,
        };
        Refusal::of(kind, error)
    })?;
    Ok(([(CONTENT_TYPE, "application/json")], answer).into_response())
}

/// A number from 1 to `most`; `usual` without one.
fn within(wanted: Option<usize>, usual: usize, most: usize) -> Result<usize, Refusal> {
    match wanted {
        None => Ok(usual),
        Some(number) if (1..=most).contains(&number) => Ok(number),
        Some(number) => Err(bad_request(format!("{number} is not a number from 1 to {most}"))),
    }
}

/// Which hosts of a run are wanted.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedHosts {
    /// Hosts, the first by name; 16 by default.
    #[param(minimum = 1, maximum = 64, nullable = false)]
    limit: Option<usize>,
}

/// Who sends to whom in a run: the bytes between its hosts, beside those that plan and placement let expect
#[utoipa::path(get, path = "/v1/runs/{id}/traffic", tag = "runs", operation_id = "traffic",
    params(("id" = RunId, Path, description = "The run"), WantedHosts),
    responses((status = 200, description = "Bytes by sender and receiver", body = Traffic), (status = 404)))]
pub(super) async fn traffic(
    state: State,
    Seen(run): Seen,
    ValidQuery(wanted): ValidQuery<WantedHosts>,
) -> Answer {
    let limit = within(wanted.limit, HOSTS, MOST_HOSTS)?;
    let view = state.api.engine.view(&run).await?;
    let Some(placement) = view.placement else {
        return Err(not_found(format!("run {run} has no placement yet")));
    };
    let asked = placement.hosts.iter().take(limit).cloned();
    let answers: Vec<Option<(NodeId, Vec<SentTo>)>> = stream::iter(asked)
        .map(async |node| {
            let look = Look::Receivers { run: run.clone() };
            Some((node.clone(), state.api.observer.ask_for(&node, look).await.ok()?))
        })
        .buffered(ASKED_AT_ONCE)
        .collect()
        .await;
    json(&Traffic::of(&placement, limit, &answers.into_iter().flatten().collect()))
}

/// What all hosts of a run did, and how its ranks read and waited in the last hour: a trace for Perfetto
///
/// In the Trace Event Format, which ui.perfetto.dev and `chrome://tracing` read. Each node is a process: the grains it filled, sent,
/// received and fetched for loaders that waited. The samples per second of each rank and its waits are counters. `otherData` names the
/// nodes that did not answer.
#[utoipa::path(get, path = "/v1/runs/{id}/trace", tag = "runs", operation_id = "trace",
    params(("id" = RunId, Path, description = "The run"), WantedHosts),
    responses((status = 200, description = "The trace", body = RunTrace), (status = 404), (status = 429)))]
pub(super) async fn trace(
    state: State,
    Seen(run): Seen,
    ValidQuery(wanted): ValidQuery<WantedHosts>,
) -> Answer {
    let limit = within(wanted.limit, HOSTS, MOST_HOSTS)?;
    let one_of_few = place(&state.lookups, "lookups", LOOKUPS)?;
    let view = state.api.engine.view(&run).await?;
    let Some(placement) = view.placement else {
        return Err(not_found(format!("run {run} has no placement yet")));
    };
    let (observer, of) = (&state.api.observer, &run);
    let ask = |node: NodeId| async move {
        match observer.ask_for::<Timeline>(&node, Look::Timeline { run: of.clone() }).await {
            Ok(timeline) => {
                let names = DRAWN.map(str::to_owned).to_vec();
                let series = observer.ask_for(&node, Look::Series { names, points: POINTS }).await.ok();
                Ok(NodeTrace { timeline, series })
            }
            Err(_) => Err(node),
        }
    };
    let (nodes, unanswered) = asked(placement.hosts.iter().take(limit).cloned(), ask).await;
    let hosts = placement.hosts.len();
    let written = blocking(move || {
        let _one_of_few = one_of_few;
        let trace = RunTrace::of(&run, hosts, nodes, unanswered);
        Ok(serde_json::to_vec(&trace).expect("a trace is plain data"))
    });
    Ok(([(CONTENT_TYPE, "application/json")], written.await?).into_response())
}
