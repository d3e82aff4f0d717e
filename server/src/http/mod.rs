//! The HTTP API: thin routes over the engine and the catalog. Knows how requests are read and answers written, and
//! nothing of how either is found.
//!
//! A route and its documentation are one thing (`openapi.rs`); refusals use the words of one table
//! (`problem.rs`); every request passes `request.rs`, `same_origin.rs`, which refuses pages of other sites,
//! and `access.rs`, which authenticates it.

mod access;
mod balancer;
mod batches;
mod certificates;
mod client;
mod console;
mod contents;
mod cursors;
mod datasets;
mod events;
mod exchange;
mod forget;
mod garbage;
mod immutable;
mod listen;
mod metadata;
mod metrics;
mod nodes;
mod observe;
mod openapi;
mod pages;
mod plan_labels;
mod plans;
mod problem;
mod promote;
mod quota;
mod range;
mod recall;
mod records;
mod recover;
mod rendezvous;
mod request;
mod run_access;
mod runs;
mod same_origin;
mod shards;
mod simulation;
mod socket;
mod strata;
mod tags;
mod uploads;

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, middleware};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shardd_api::node::NodeRecord;
use shardd_api::problem::Kind;
use shardd_engine::engine::Engine;
use shardd_store::catalog::CatalogBackend;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::limit::GlobalConcurrencyLimitLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::keeping::{Keeping, Promotion, Relocator};
use crate::metastore::MetastoreTimes;
use crate::observe::Observer;

pub use access::{Access, TokensAsked};
pub use certificates::Bootstrap;
pub use listen::{HttpListener, serve};
use problem::{Refusal, bad_request, not_found};

/// The longest body of JSON: the plan with the longest schedule, a step's grains.
const MAX_JSON: usize = 8 << 20;
/// The longest manifest, of some million shards, and the longest strata, of some hundred million samples.
const MAX_MANIFEST: usize = 1 << 30;
/// The longest shard or sidecar: four times the largest that ingest makes.
const MAX_SHARD: usize = 256 << 20;
/// Streams of batches at once: each has a thread. More are refused.
const STREAMS: usize = 16;
/// The memory of all streams of batches, by the mean size of a row...
const STREAM_BYTES: u64 = 1 << 30;
/// ...and those of one client. More are refused.
const STREAM_BYTES_A_CLIENT: u64 = STREAM_BYTES / 2;
/// Who may follow events at once. More are refused.
const FOLLOWERS: usize = 256;
/// Lookups at once: each has a thread for some seconds at most. More are refused.
const LOOKUPS: usize = 4;
/// Looks into versions at once: each has a thread for a moment. More wait, as a page of pictures asks for many.
const LOOKS: usize = 8;
/// Requests at once; more wait.
const MAX_REQUESTS: usize = 4096;
/// The least speed of a body from then on, on the whole; of uploads when others wait for a place, up to 64 times that.
const BODY_BYTES_A_SECOND: u64 = 16 << 10;

/// How often it is looked at whether others wait meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long clients may take. A node has the defaults; tests have no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// To send the head of a request. A connection that is kept for later counts as such a client: this is
    /// longer than clients keep them (ureq: 15 s), so that none is cut off as it asks again. 60 s.
    pub head: Duration,
    /// To send a body, before its speed is looked at. 10 s.
    pub body: Duration,
    /// Without taking anything of the answer. 30 s.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let [head, body, stall] = [60, 10, 30].map(Duration::from_secs);
        Self { head, body, stall }
    }
}

/// The state of the routes.
pub struct Api {
    /// This node, as it tells others of itself.
    pub node: NodeRecord,
    /// Answers for runs.
    pub engine: Arc<Engine>,
    /// Answers for datasets and plans.
    pub catalog: CatalogBackend,
    /// The data of the join endpoints.
    pub bootstrap: Bootstrap,
    /// Who may ask.
    pub access: Access,
    /// Of the node that keeps the metadata: that.
    pub keeping: Option<Arc<Keeping>>,
    /// Of one that may be promoted: how.
    pub promotion: Option<Arc<Promotion>>,
    /// Of one whose metadata is in the store or in etcd: moves it.
    pub relocator: Option<Arc<Relocator>>,
    /// Looks at this node and at others.
    pub(crate) observer: Arc<Observer>,
    /// How long this node's requests to the metadata take.
    pub(crate) times: Arc<MetastoreTimes>,
    /// How long clients may take.
    pub limits: Limits,
}

impl Api {
    /// Why the metadata that this node keeps takes no changes, if so.
    fn metadata_trouble(&self) -> Option<String> {
        let trouble = self.keeping.as_ref()?.trouble()?;
        Some(format!("the metadata that node {} keeps takes no changes: {trouble}", self.node.id))
    }
}

struct Shared {
    api: Api,
    uploads: uploads::Uploads,
    streams: Arc<Semaphore>,
    stream_bytes: quota::Quota,
    followers: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
    /// Places for looks into versions.
    looks: Semaphore,
    /// The place of a comparison of versions.
    comparisons: Arc<Semaphore>,
    /// The place of a simulation.
    simulations: Arc<Semaphore>,
    /// Whose runs are, as it was a moment ago.
    standings: run_access::RunFactsCache,
    metrics: Arc<metrics::Metrics>,
    events: Arc<events::Hub>,
    /// The description of this API, as JSON.
    document: Bytes,
    /// Cancelled when the node stops.
    draining: CancellationToken,
}

impl Shared {
    fn new(api: Api, document: Bytes, draining: CancellationToken) -> Self {
        Self {
            events: Arc::new(events::Hub::new(Arc::clone(api.engine.metastore()))),
            api,
            uploads: uploads::Uploads::default(),
            streams: Arc::new(Semaphore::new(STREAMS)),
            stream_bytes: quota::Quota::new(STREAM_BYTES, STREAM_BYTES_A_CLIENT),
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
            looks: Semaphore::new(LOOKS),
            comparisons: Arc::new(Semaphore::new(contents::COMPARISONS)),
            simulations: Arc::new(Semaphore::new(simulation::SIMULATIONS)),
            standings: run_access::RunFactsCache::default(),
            metrics: Arc::default(),
            document,
            draining,
        }
    }
}

type State = axum::extract::State<Arc<Shared>>;
type Answer = Result<Response, Refusal>;

/// All routes, each with its documentation.
fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::with_openapi(openapi::frame())
        .routes(routes!(nodes::health))
        .routes(routes!(nodes::ready))
        .routes(routes!(openapi::document))
        .routes(routes!(datasets::list))
        .routes(routes!(datasets::show, datasets::commit, datasets::remove))
        .routes(routes!(datasets::log, datasets::prune))
        .routes(routes!(tags::of_dataset))
        .routes(routes!(tags::show, tags::put, tags::remove))
        .routes(routes!(tags::all))
        .routes(routes!(datasets::version))
        .routes(routes!(contents::summary))
        .routes(routes!(contents::shards))
        .routes(routes!(contents::samples))
        .routes(routes!(contents::value))
        .routes(routes!(contents::diff))
        .routes(routes!(simulation::simulate))
        .routes(routes!(datasets::manifest, datasets::put_manifest))
        .routes(routes!(datasets::tree))
        .routes(routes!(datasets::provenance, datasets::put_provenance))
        .routes(routes!(shards::shard, shards::put_shard))
        .routes(routes!(shards::rows, shards::put_rows))
        .routes(routes!(plans::list, plans::create))
        .routes(routes!(plans::show, plans::remove))
        .routes(routes!(strata::show, strata::put))
        .routes(routes!(plans::at))
        .routes(routes!(plans::find))
        .routes(routes!(plan_labels::labels))
        .routes(routes!(batches::batches))
        .routes(routes!(garbage::collect))
        .routes(routes!(forget::forget))
        .routes(routes!(recover::recover))
        .routes(routes!(promote::promote))
        .routes(routes!(metadata::backup))
        .routes(routes!(metadata::migrate))
        .routes(routes!(runs::list, runs::create))
        .routes(routes!(runs::show, runs::remove))
        .routes(routes!(runs::placement))
        .routes(routes!(runs::rebalance))
        .routes(routes!(runs::misses))
        .routes(routes!(runs::timeline))
        .routes(routes!(runs::filled))
        .routes(routes!(runs::attach, runs::connect, runs::detach))
        .routes(routes!(runs::locate))
        .routes(routes!(records::list))
        .routes(routes!(records::course))
        .routes(routes!(records::step))
        .routes(routes!(records::losses::show))
        .routes(routes!(records::summary::show))
        .routes(routes!(runs::audits, runs::audit))
        .routes(routes!(cursors::show, cursors::put, cursors::remove))
        .routes(routes!(rendezvous::show, rendezvous::put, rendezvous::remove))
        .routes(routes!(runs::placements))
        .routes(routes!(nodes::list))
        .routes(routes!(nodes::lost))
        .routes(routes!(nodes::drain, nodes::undrain))
        .routes(routes!(balancer::show, balancer::set))
        .routes(routes!(exchange::show, exchange::change))
        .routes(routes!(nodes::evict))
        .routes(routes!(nodes::status))
        .routes(routes!(observe::overview))
        .routes(routes!(observe::rows))
        .routes(routes!(observe::status))
        .routes(routes!(observe::series))
        .routes(routes!(observe::hot_of_node))
        .routes(routes!(observe::hot))
        .routes(routes!(observe::copies))
        .routes(routes!(observe::traffic))
        .routes(routes!(observe::trace))
        .routes(routes!(observe::access))
        .routes(routes!(certificates::authority))
        .routes(routes!(certificates::join))
        .routes(routes!(certificates::create_join_token))
        .routes(routes!(certificates::list))
        .routes(routes!(certificates::rotate))
        .routes(routes!(certificates::revoke))
        .routes(routes!(access::list, access::create))
        .routes(routes!(access::revoke))
        .routes(routes!(events::events))
        .routes(routes!(metrics::metrics))
}

/// All routes with their state, and the layers that every request passes.
fn router(api: Api, draining: CancellationToken) -> (Router, Arc<Shared>) {
    let (router, document) = routes().split_for_parts();
    let shared = Arc::new(Shared::new(api, openapi::finish(document), draining));
    let router = router
        .merge(console::routes())
        .fallback(async |uri: Uri| not_found(format!("there is no {}", uri.path())))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            Refusal::of(Kind::MethodNotAllowed, format!("{} cannot be asked with {method}", uri.path()))
        })
        // Bodies are read, and limited, by the routes.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), access::allowed))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), same_origin::ours))
        .layer(middleware::from_fn(request::in_time))
        .layer(GlobalConcurrencyLimitLayer::new(MAX_REQUESTS))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), request::observed))
        .with_state(Arc::clone(&shared));
    (router, shared)
}

/// The parsed query string.
struct ValidQuery<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for ValidQuery<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let asked = Query::<T>::from_request_parts(parts, state).await;
        asked.map(|Query(asked)| Self(asked)).map_err(|error| bad_request(error.body_text()))
    }
}

/// The parsed first parameter of the path.
struct PathParam<T>(T);

impl<S: Send + Sync, T: FromStr<Err: std::fmt::Display> + Send> FromRequestParts<S> for PathParam<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path(segments) =
            Path::<Vec<String>>::from_request_parts(parts, state).await.map_err(bad_request)?;
        let name = segments.first().ok_or_else(|| bad_request("the path names nothing"))?;
        name.parse().map(PathParam).map_err(bad_request)
    }
}

/// The two parsed parameters of the path.
struct PathPair<A, B>(A, B);

/// The three parsed parameters of the path.
struct PathTriple<A, B, C>(A, B, C);

/// A parameter of the path, or which one is wrong.
fn path_part<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|error| bad_request(format!("{text:?}: {error}")))
}

impl<S, A, B, C> FromRequestParts<S> for PathTriple<A, B, C>
where
    S: Send + Sync,
    A: FromStr<Err: std::fmt::Display> + Send,
    B: FromStr<Err: std::fmt::Display> + Send,
    C: FromStr<Err: std::fmt::Display> + Send,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let path = Path::<(String, String, String)>::from_request_parts(parts, state).await;
        let Path((first, second, third)) = path.map_err(bad_request)?;
        Ok(Self(path_part(&first)?, path_part(&second)?, path_part(&third)?))
    }
}

impl<S, A, B> FromRequestParts<S> for PathPair<A, B>
where
    S: Send + Sync,
    A: FromStr<Err: std::fmt::Display> + Send,
    B: FromStr<Err: std::fmt::Display> + Send,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path((first, second)) =
            Path::<(String, String)>::from_request_parts(parts, state).await.map_err(bad_request)?;
        Ok(Self(path_part(&first)?, path_part(&second)?))
    }
}

/// The parsed JSON body, an object. (To serde a list of a structure's values is the structure, too.)
struct ValidJson<T>(T);

impl<T: DeserializeOwned> FromRequest<Arc<Shared>> for ValidJson<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &Arc<Shared>) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        same_origin::check_json(&parts.headers)?;
        let bytes = read(&state.api.limits, &parts.headers, body, MAX_JSON).await?;
        let wrong = |what: &dyn std::fmt::Display| {
            bad_request(format!("the body is not what {} takes: {what}", parts.uri.path()))
        };
        if bytes.trim_ascii_start().starts_with(b"[") {
            return Err(wrong(&"it is a list, not an object"));
        }
        parsed(&bytes).map(ValidJson).map_err(|error| wrong(&error))
    }
}

/// Reads a body of at most `limit` bytes; a longer one is refused at its first word, if it says how long it is, and one that
/// crawls once it has had its time: its sender holds up others.
async fn read(limits: &Limits, headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, Refusal> {
    read_at(|| BODY_BYTES_A_SECOND, limits, headers, body, limit).await
}

/// The same, at no less than a speed that may change meanwhile.
async fn read_at(
    least_speed: impl Fn() -> u64,
    limits: &Limits,
    headers: &HeaderMap,
    body: Body,
    limit: usize,
) -> Result<Bytes, Refusal> {
    let too_long = || Refusal::of(Kind::TooLong, format!("the body has more than {limit} bytes"));
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|announced| announced > limit as u64) {
        return Err(too_long());
    }
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::with_capacity(announced.unwrap_or(0) as usize);
    let began = Instant::now();
    loop {
        let speed = least_speed();
        let due = began + limits.body + Duration::from_secs(bytes.len() as u64 / speed);
        if Instant::now() >= due {
            let (bytes, took) = (bytes.len(), began.elapsed());
            let detail = format!(
                "{bytes} bytes of the body came in {took:.1?}; at least {speed} a second are waited for, more while others wait"
            );
            return Err(Refusal::of(Kind::TooSlow, detail));
        }
        let look_again = due.min(Instant::now() + LOOK_AGAIN);
        let next = tokio::time::timeout_at(look_again, futures::StreamExt::next(&mut stream)).await;
        let Ok(next) = next else { continue };
        let Some(part) = next else { return Ok(bytes.into()) };
        let part = part.map_err(|error| bad_request(format!("the body broke off: {error}")))?;
        if bytes.len() + part.len() > limit {
            return Err(too_long());
        }
        bytes.extend_from_slice(&part);
    }
}

/// One of few places, or the advice to come back.
fn place(
    places: &Arc<Semaphore>,
    what: &str,
    most: usize,
) -> Result<tokio::sync::OwnedSemaphorePermit, Refusal> {
    Arc::clone(places).try_acquire_owned().map_err(|_| {
        Refusal::of(Kind::TooMany, format!("{most} {what} are under way on this node, and no more are begun"))
    })
}

/// Lends a stream its memory, or advises to come back.
fn stream_memory(shared: &Shared, client: client::Client, bytes: u64) -> Result<quota::Loan, Refusal> {
    shared.stream_bytes.lend(client, bytes).map_err(|short| {
        let (whose, most) = match short {
            quota::Short::OfAll => {
                ("streams of batches hold as much of this node's memory as they may", STREAM_BYTES)
            }
            quota::Short::OfItsPart => (
                "your streams of batches hold as much of this node's memory as one client's may",
                STREAM_BYTES_A_CLIENT,
            ),
        };
        let (bytes, most) = (shardfmt::ByteSize(bytes), shardfmt::ByteSize(most));
        let detail = format!(
            "{whose}, {most}, and this one would hold {bytes} more; end one first, or ask for smaller batches"
        );
        Refusal::of(Kind::TooMany, detail)
    })
}

/// A parameter that is a number from 1 to `most`.
fn within<N>(name: &str, number: N, most: N) -> Result<N, Refusal>
where
    N: Copy + PartialOrd + From<u8> + std::fmt::Display,
{
    match (N::from(1)..=most).contains(&number) {
        true => Ok(number),
        false => Err(bad_request(format!("{name}: {number} is not a number from 1 to {most}"))),
    }
}

/// A text of at most `most` characters, with an ellipsis in the place of the others.
fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Bytes in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A place for a look into a version, once there is one.
async fn look(shared: &Shared) -> Result<tokio::sync::SemaphorePermit<'_>, Refusal> {
    shared.looks.acquire().await.map_err(|_| Refusal::of(Kind::Unavailable, "this node stops"))
}

/// Reads JSON. To it 3.0 is the integer 3, to serde it is none: where that is all that is wrong, it is mended.
fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(bytes).or_else(|error| {
        let Ok(mut value) = serde_json::from_slice(bytes) else { return Err(error) };
        make_whole(&mut value);
        serde_json::from_value(value).map_err(|_| error)
    })
}

/// Makes integers of the numbers that are, where they are exact.
fn make_whole(value: &mut serde_json::Value) {
    const EXACT: f64 = (1u64 << 53) as f64;
    match value {
        serde_json::Value::Number(number) => {
            let whole =
                number.as_f64().filter(|n| !number.is_u64() && n.fract() == 0.0 && (0.0..=EXACT).contains(n));
            if let Some(whole) = whole {
                *value = (whole as u64).into();
            }
        }
        serde_json::Value::Array(elements) => elements.iter_mut().for_each(make_whole),
        serde_json::Value::Object(members) => members.values_mut().for_each(make_whole),
        _ => {}
    }
}

fn json(value: &impl Serialize) -> Answer {
    Ok(Json(value).into_response())
}

#[cfg(test)]
mod tests;
