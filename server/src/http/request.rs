//! The middleware of every request: it assigns an id, times, counts and logs, and turns refusals into
//! documents.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use shardd_api::problem::Kind;
use tokio::time::Instant;
use tracing::Instrument;

use super::Shared;
use super::metrics::Exemplar;
use super::problem::Refusal;

/// The header that names a request, in both directions.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id taken from a request.
const LONGEST_ID: usize = 64;
/// How long an answer may take to begin. Attaching waits up to ten seconds for other ranks, a miss for the store.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
/// How long an upload or a gc may take. A longer one ends halfway; the next continues it.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a forget may take. It looks at every shard of the store before it changes anything, and would begin with that again.
const FORGET_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Names, counts and logs the request, and writes the document of a refusal.
pub(super) async fn observed(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = id_of(&request);
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    let span = tracing::info_span!("request", id, %method, route);
    let asking = request.headers().get(shardd_telemetry::TRACEPARENT).and_then(|name| name.to_str().ok());
    if let Some(asking) = asking {
        shardd_telemetry::continue_trace(&span, asking);
    }
    let measured = span.clone();
    let answer = async {
        let mut response = next.run(request).await;
        if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
            let headers = std::mem::take(response.headers_mut());
            response = refusal.document(&id);
            // The further headers of the route or the router: `allow`, `content-range`, `etag`.
            for (name, value) in &headers {
                if !response.headers().contains_key(name) && name != axum::http::header::CONTENT_LENGTH {
                    response.headers_mut().insert(name, value.clone());
                }
            }
        }
        tracing::debug!(status = response.status().as_u16(), took = ?began.elapsed(), "answered");
        response
    };
    let mut response = answer.instrument(span).await;
    let status = response.status().as_u16();
    shardd_telemetry::record_status(&measured, status);
    let trace = measured.in_scope(shardd_telemetry::trace_id);
    shared.metrics.answered(route, &method, status, began.elapsed(), Exemplar::of(&id, trace));
    let id = HeaderValue::from_str(&id).expect("made of characters that headers may have");
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Ends requests that take too long.
pub(super) async fn in_time(request: Request, next: Next) -> Response {
    let patience = match (request.method(), request.uri().path()) {
        (_, "/v1/forget") => FORGET_TIMEOUT,
        (_, "/v1/gc") | (&Method::PUT, _) => UPLOAD_TIMEOUT,
        _ => TIMEOUT,
    };
    match tokio::time::timeout(patience, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Refusal::of(Kind::Unavailable, format!("no answer within {patience:?}")).into_response(),
    }
}

/// The id that the request came with, if it is one that can stand in a log and a URN, or one that is unlikely twice.
fn id_of(request: &Request) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let given = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_');
    match given {
        Some(id) if (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(plain) => id.to_owned(),
        _ => format!("{:016x}", RandomState::new().hash_one(COUNT.fetch_add(1, Relaxed))),
    }
}
