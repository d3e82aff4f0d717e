//! The HTTP API: thin routes over the engine and the catalog. Knows how requests are read and answers written, and
//! nothing of how either is found.

mod datasets;
mod garbage;
mod listen;
mod nodes;
mod plans;
mod problem;
mod range;
mod runs;
mod shards;
mod tags;

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shardd_client::catalog::CatalogBackend;
use shardd_client::engine::Engine;
use shardd_client::node::NodeRecord;
use shardd_client::problem::Problem;
use tokio::sync::Semaphore;
use tower::limit::GlobalConcurrencyLimitLayer;

pub use listen::listen;
pub use nodes::{Desk, Health};
use problem::{Refusal, bad_request, not_found};

/// The longest body of JSON: the plan with the longest schedule, a step's grains.
const MAX_JSON: usize = 8 << 20;
/// The longest manifest: some million shards.
const MAX_MANIFEST: usize = 1 << 30;
/// The longest shard or sidecar: four times the largest that ingest makes.
const MAX_SHARD: usize = 256 << 20;
/// Uploads in memory at once.
const UPLOADS: usize = 8;
/// Requests at once; more wait.
const MAX_REQUESTS: usize = 4096;
/// How long an answer may take to begin. Attaching waits up to ten seconds for other ranks, a miss for the store.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an upload may take, and a gc. One that takes longer ends halfway, which harms no one.
const UPLOAD_PATIENCE: Duration = Duration::from_secs(600);

/// What the routes work on.
pub struct Api {
    /// This node, as it tells others of itself.
    pub node: NodeRecord,
    /// Answers for runs.
    pub engine: Arc<Engine>,
    /// Answers for datasets and plans.
    pub catalog: CatalogBackend,
    /// Where other nodes join.
    pub desk: Desk,
}

struct Shared {
    api: Api,
    uploads: Semaphore,
}

type State = axum::extract::State<Arc<Shared>>;
type Answer = Result<Response, Refusal>;

/// All routes.
pub fn router(api: Api) -> Router {
    let shared = Arc::new(Shared { api, uploads: Semaphore::new(UPLOADS) });
    Router::new()
        .route("/v1/health", get(nodes::health))
        .route("/v1/datasets", get(datasets::list))
        .route("/v1/datasets/{name}", get(datasets::show).put(datasets::commit).delete(datasets::remove))
        .route("/v1/datasets/{name}/log", get(datasets::log))
        .route("/v1/datasets/{name}/tags", get(tags::of_dataset))
        .route("/v1/datasets/{name}/tags/{tag}", get(tags::show).put(tags::put).delete(tags::remove))
        .route("/v1/tags", get(tags::all))
        .route("/v1/manifests/{id}", get(datasets::manifest).put(datasets::put_manifest))
        .route("/v1/manifests/{id}/tree", get(datasets::tree))
        .route("/v1/shards/{id}", get(shards::shard).put(shards::put_shard))
        .route("/v1/shards/{id}/rows", get(shards::rows).put(shards::put_rows))
        .route("/v1/plans", get(plans::list).post(plans::create))
        .route("/v1/plans/{id}", get(plans::show).delete(plans::remove))
        .route("/v1/gc", post(garbage::collect))
        .route("/v1/runs", get(runs::list).post(runs::create))
        .route("/v1/runs/{id}", get(runs::show))
        .route("/v1/runs/{id}/ranks/{rank}", post(runs::attach).delete(runs::detach))
        .route("/v1/runs/{id}/locate", post(runs::locate))
        .route("/v1/runs/{id}/audit", get(runs::audits).post(runs::audit))
        .route("/v1/placement", get(runs::placements))
        .route("/v1/nodes", get(nodes::list))
        .route("/v1/status", get(nodes::status))
        .route("/v1/join", post(nodes::join))
        .fallback(async |uri: Uri| not_found(format!("there is no {}", uri.path())))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            Refusal::from(Problem::new(
                "about:blank",
                405,
                format!("{} cannot be asked with {method}", uri.path()),
            ))
        })
        // Bodies are read, and limited, by the routes.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn(in_time))
        .layer(GlobalConcurrencyLimitLayer::new(MAX_REQUESTS))
        .with_state(shared)
}

/// Ends requests that take too long.
async fn in_time(request: Request, next: Next) -> Response {
    let takes_long = request.method() == Method::PUT || request.uri().path() == "/v1/gc";
    let patience = if takes_long { UPLOAD_PATIENCE } else { PATIENCE };
    match tokio::time::timeout(patience, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            Refusal::from(Problem::unavailable(format!("no answer within {patience:?}"))).into_response()
        }
    }
}

/// What stands after the `?`.
struct Asked<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let asked = Query::<T>::from_request_parts(parts, state).await;
        asked.map(|Query(asked)| Self(asked)).map_err(|error| bad_request(error.body_text()))
    }
}

/// A part of the path that names something.
struct Named<T>(T);

impl<S: Send + Sync, T: FromStr<Err: std::fmt::Display> + Send> FromRequestParts<S> for Named<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path(segments) =
            Path::<Vec<String>>::from_request_parts(parts, state).await.map_err(bad_request)?;
        let name = segments.first().ok_or_else(|| bad_request("the path names nothing"))?;
        name.parse().map(Named).map_err(bad_request)
    }
}

/// A body of JSON.
struct Posted<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Posted<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        let bytes = read(&parts.headers, body, MAX_JSON).await?;
        serde_json::from_slice(&bytes)
            .map(Posted)
            .map_err(|error| bad_request(format!("the body is not what {} takes: {error}", parts.uri.path())))
    }
}

/// Reads a body of at most `limit` bytes; a longer one is refused at its first word, if it says how long it is.
async fn read(headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let too_long =
        || Refusal::from(Problem::new("about:blank", 413, format!("the body has more than {limit} bytes")));
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|announced| announced > limit as u64) {
        return Err(too_long());
    }
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::with_capacity(announced.unwrap_or(0) as usize);
    while let Some(part) = futures::StreamExt::next(&mut stream).await {
        let part = part.map_err(|error| bad_request(format!("the body broke off: {error}")))?;
        if bytes.len() + part.len() > limit {
            return Err(too_long());
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes.into())
}

fn json(value: &impl Serialize) -> Answer {
    Ok(Json(value).into_response())
}

#[cfg(test)]
mod tests;
