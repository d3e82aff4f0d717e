//! Every HTTP request to a store passes here: it is counted by the class that services bill, made again when the store refuses it
//! because there are too many, made a second time when its answer is late, and held to the bandwidth allowed. The caller sees one
//! request, and retries those that failed in other ways.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::future::{Either, select};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};
use object_store::{Certificate, ClientOptions};
use shardd_api::status::WireCounts;
use shardfmt::ByteSize;
use tokio::time::{Instant, sleep, timeout};

use super::hedge::Hedge;
use super::pace::Pace;
use super::throttle::{self, Throttle};
use super::{ASKED_AGAIN_FOR, Late};
use crate::random::share;

/// The way to one store, shared by all its requests.
#[derive(Debug)]
pub(crate) struct Wire {
    certificates: Vec<Certificate>,
    pace: Option<Pace>,
    late: Late,
    gives_up_soon: bool,
    hedge: Mutex<Hedge>,
    throttle: Throttle,
    requests: AtomicU64,
    class_a: AtomicU64,
    class_b: AtomicU64,
    deletes: AtomicU64,
    throttled: AtomicU64,
    failed: AtomicU64,
    hedged: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    has_answered: AtomicBool,
    first_asked: OnceLock<Instant>,
}

/// How long a store that never answered is tried: its address is wrong more often than it is down.
const FIRST_CONTACT: Duration = Duration::from_secs(5);

impl Wire {
    /// With `gives_up_soon`, an address to which no connection is made is soon given up.
    pub(super) fn new(
        certificates: Vec<Certificate>,
        bandwidth: Option<ByteSize>,
        late: Late,
        gives_up_soon: bool,
    ) -> Wire {
        Wire {
            certificates,
            pace: bandwidth.map(Pace::new),
            late,
            gives_up_soon,
            hedge: Mutex::default(),
            throttle: Throttle::new(),
            requests: AtomicU64::new(0),
            class_a: AtomicU64::new(0),
            class_b: AtomicU64::new(0),
            deletes: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            hedged: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            has_answered: AtomicBool::new(false),
            first_asked: OnceLock::new(),
        }
    }

    /// The certificates that are trusted beside the system's.
    pub(super) fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    pub(crate) fn counts(&self) -> WireCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WireCounts {
            requests: of(&self.requests),
            failed: of(&self.failed),
            hedged: of(&self.hedged),
            sent: of(&self.sent),
            received: of(&self.received),
            class_a: of(&self.class_a),
            class_b: of(&self.class_b),
            deletes: of(&self.deletes),
            throttled: of(&self.throttled),
        }
    }

    fn hedge<T>(&self, ask: impl FnOnce(&mut Hedge) -> T) -> T {
        ask(&mut self.hedge.lock().expect("no panic while held"))
    }

    /// An error after which the caller does not ask again, if no connection was ever made.
    fn final_error(&self, error: HttpError) -> HttpError {
        let is_over = self.first_asked.get().is_some_and(|first| first.elapsed() > FIRST_CONTACT);
        let is_final = is_over
            && self.gives_up_soon
            && error.kind() == HttpErrorKind::Connect
            && !self.has_answered.load(Ordering::Relaxed);
        if is_final { HttpError::new(HttpErrorKind::Unknown, error) } else { error }
    }

    fn count(&self, class: Class) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let of_class = match class {
            Class::A => &self.class_a,
            Class::B => &self.class_b,
            Class::Free => &self.deletes,
        };
        of_class.fetch_add(1, Ordering::Relaxed);
    }

    async fn pass(&self, counter: &AtomicU64, bytes: usize) {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(pace) = &self.pace {
            pace.pass(bytes).await;
        }
    }
}

/// How services bill a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// PUT, COPY, POST and LIST. A deletion of many objects at once is a POST, and counts here: some services bill it.
    A,
    /// GET and HEAD.
    B,
    /// DELETE.
    Free,
}

impl Class {
    /// By the method and the query of a request: listings are GETs of a bucket or container.
    fn of(method: &str, query: &str) -> Class {
        let lists = || query.split('&').any(|pair| ["list-type=2", "comp=list"].contains(&pair));
        match method {
            "GET" if lists() => Class::A,
            "GET" | "HEAD" => Class::B,
            "DELETE" => Class::Free,
            _ => Class::A,
        }
    }
}

/// Makes clients whose requests go over a [`Wire`].
#[derive(Debug)]
pub(super) struct Connector(pub(super) Arc<Wire>);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let trusting = |options: ClientOptions, ca: &Certificate| options.with_root_certificate(ca.clone());
        let options = self.0.certificates.iter().fold(options.clone(), trusting);
        let client = ReqwestConnector::default().connect(&options)?;
        Ok(HttpClient::new(Metered { client, wire: self.0.clone() }))
    }
}

#[derive(Debug)]
struct Metered {
    client: HttpClient,
    wire: Arc<Wire>,
}

#[async_trait]
impl HttpService for Metered {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_read =
            self.wire.late == Late::AskedAgain && ["GET", "HEAD"].contains(&request.method().as_str());
        let response = if is_read { self.read(request).await? } else { self.ask(request).await? };
        let (parts, body) = response.into_parts();
        let wire = self.wire.clone();
        let frames = body.into_data_stream().then(move |part| {
            let wire = wire.clone();
            async move {
                let part = part?;
                wire.pass(&wire.received, part.len()).await;
                Ok(Frame::data(part))
            }
        });
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(StreamBody::new(frames))))
    }
}

impl Metered {
    /// Asks, and if the answer is late, asks again and takes the first good answer.
    async fn read(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let Some(patience) = self.wire.hedge(Hedge::patience) else { return self.ask(request).await };
        let again = request.clone();
        let mut first = Box::pin(self.ask(request));
        if let Ok(answer) = timeout(patience, &mut first).await {
            return answer;
        }
        // A store that refuses requests gets no additional ones.
        if self.wire.throttle.is_limited() || !self.wire.hedge(Hedge::take) {
            return first.await;
        }
        self.wire.hedged.fetch_add(1, Ordering::Relaxed);
        let second = Box::pin(self.ask(again));
        match select(first, second).await {
            Either::Left((answer, other)) | Either::Right((answer, other)) if is_bad(&answer) => other.await,
            Either::Left((answer, _)) | Either::Right((answer, _)) => answer,
        }
    }

    /// Asks, no faster than the store allows, and again for as long as it refuses because there are too many requests.
    async fn ask(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let begun = Instant::now();
        let mut attempt = 0;
        loop {
            // Metadata is one small object, and a node without it counts as dead.
            if !request.uri().path().ends_with("/meta/pointers") {
                self.wire.throttle.pass().await;
            }
            let asked = Instant::now();
            let answer = self.ask_once(request.clone()).await;
            let Some(pause) = answer.as_ref().ok().and_then(refused) else { return answer };
            self.wire.throttled.fetch_add(1, Ordering::Relaxed);
            self.wire.throttle.refused(asked, pause);
            // The caller gives up after this time, and asks again before.
            let left = ASKED_AGAIN_FOR.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return answer;
            }
            sleep(throttle::wait(attempt, share()).max(pause.unwrap_or_default()).min(left)).await;
            attempt += 1;
        }
    }

    async fn ask_once(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.wire.pass(&self.wire.sent, request.body().content_length()).await;
        self.wire.count(Class::of(request.method().as_str(), request.uri().query().unwrap_or_default()));
        let asked = Instant::now();
        self.wire.first_asked.get_or_init(|| asked);
        let is_get = request.method().as_str() == "GET";
        let is_bulk_delete = request.method().as_str() == "POST" && request.uri().query() == Some("delete");
        let answer = match self.client.execute(request).await {
            Ok(answer) if !is_get || is_about_objects(&answer) => complete(answer).await,
            answer => answer,
        };
        let answer = answer.and_then(|answer| implemented(answer, is_bulk_delete));
        if answer.is_ok() {
            self.wire.has_answered.store(true, Ordering::Relaxed);
        }
        if is_bad(&answer) {
            self.wire.failed.fetch_add(1, Ordering::Relaxed);
        } else {
            self.wire.hedge(|hedge| hedge.answered(asked.elapsed()));
        }
        answer.map_err(|error| self.wire.final_error(error))
    }
}

/// The service has no such request: asking again is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotImplemented {
    #[error("the service does not implement this request (501)")]
    Any,
    #[error("the service does not delete several objects at once (501); set AWS_DISABLE_BULK_DELETE=true")]
    BulkDelete,
}

fn implemented(answer: HttpResponse, is_bulk_delete: bool) -> Result<HttpResponse, HttpError> {
    if answer.status().as_u16() != 501 {
        return Ok(answer);
    }
    let missing = if is_bulk_delete { NotImplemented::BulkDelete } else { NotImplemented::Any };
    Err(HttpError::new(HttpErrorKind::Unknown, missing))
}

/// Whether it is something that the service says, and not what an object holds.
fn is_about_objects(answer: &HttpResponse) -> bool {
    let kind = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    !answer.status().is_success() || kind.contains("xml")
}

/// Waits for all of an answer. One that breaks off is as good as none and is asked for again; once it was handed on, it would
/// be too late for that.
async fn complete(answer: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error))?;
    Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body.to_bytes())))
}

/// Whether the store refuses because there are too many requests (429, and 503, which is `SlowDown` on S3); and the pause that it
/// asks for, in seconds. A date in its place is no number, and is passed over.
fn refused(answer: &HttpResponse) -> Option<Option<Duration>> {
    if ![429, 503].contains(&answer.status().as_u16()) {
        return None;
    }
    let pause =
        answer.headers().get("retry-after").and_then(|pause| pause.to_str().ok()?.trim().parse().ok());
    Some(pause.map(|seconds| Duration::from_secs(seconds).min(throttle::MOST_ASKED_FOR)))
}

/// Whether it is no answer to the request, but may be one when it is asked again.
fn is_bad(answer: &Result<HttpResponse, HttpError>) -> bool {
    answer
        .as_ref()
        .map_or(true, |answer| answer.status().is_server_error() || answer.status().as_u16() == 429)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_of_the_class_that_services_bill() {
        let classes = [
            ("GET", "", Class::B),
            ("GET", "versionId=1", Class::B),
            ("HEAD", "", Class::B),
            ("GET", "list-type=2&prefix=x%2F", Class::A),
            ("GET", "prefix=x&comp=list&restype=container", Class::A),
            ("PUT", "", Class::A),
            ("PUT", "partNumber=1&uploadId=u", Class::A),
            ("POST", "uploads=", Class::A),
            ("POST", "delete", Class::A),
            ("DELETE", "", Class::Free),
        ];
        for (method, query, class) in classes {
            assert_eq!(Class::of(method, query), class, "{method} {query}");
        }
    }
}
