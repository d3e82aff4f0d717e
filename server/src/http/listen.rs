//! The accept loop of the HTTP server: bounded, behind TLS if wanted, with a time limit on handshakes and slow headers,
//! drained on stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use shardd_api::problem::{Kind, Problem};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{ServiceExt, service_fn};
use tracing::{debug, warn};

use super::client::CameFrom;
use super::metrics::Metrics;
use super::same_origin::CameInAt;
use super::socket::Socket;
use super::{Api, Limits, router};

/// Connections at once; more wait in the system's queue.
const MAX_CONNECTIONS: usize = 8192;
/// The most bytes of the head of a request...
const MAX_HEAD: usize = 64 << 10;
/// ...and the most headers.
const MAX_HEADERS: usize = 100;
/// How long a node that stops still takes connections, so that clients hear that it is not ready any more.
const NOTICE: Duration = Duration::from_millis(500);
/// How long requests under way may take to end from then on.
const DRAIN: Duration = Duration::from_secs(2);

/// The first byte of every handshake of TLS (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;

/// The socket of the HTTP API, with or without TLS.
pub struct HttpListener {
    /// The socket.
    pub listener: TcpListener,
    /// The TLS settings, for https.
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

/// Serves `api` until `stop`. From then on the node says that it is not ready; half a second later no more connections are
/// taken, requests under way may end, and those that take longer than another two seconds are cut.
pub async fn serve(listener: HttpListener, api: Api, stop: CancellationToken) {
    let limits = api.limits;
    let (router, shared) = router(api, stop.clone());
    let (closing, ended) = (CancellationToken::new(), CancellationToken::new());
    let close = async {
        stop.cancelled().await;
        tokio::time::sleep(NOTICE).await;
        closing.cancel();
    };
    let listen = async {
        listen(listener, router, &shared.metrics, limits, closing.clone()).await;
        ended.cancel();
    };
    tokio::join!(close, listen, shared.events.run(ended.clone()));
}

async fn listen(
    listener: HttpListener,
    router: Router,
    metrics: &Arc<Metrics>,
    limits: Limits,
    closing: CancellationToken,
) {
    let HttpListener { listener, tls } = listener;
    let acceptor = tls.map(TlsAcceptor::from);
    let tasks = TaskTracker::new();
    let cut = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            () = closing.cancelled() => break,
            accepted = listener.accept(), if tasks.len() < MAX_CONNECTIONS => accepted,
            // Looked at again: a connection may have ended meanwhile.
            () = tokio::time::sleep(Duration::from_millis(10)), if tasks.len() >= MAX_CONNECTIONS => continue,
        };
        match accepted {
            Ok((stream, from)) => {
                let (router, closing, cut) = (router.clone(), closing.clone(), cut.clone());
                let (acceptor, metrics) = (acceptor.clone(), Arc::clone(metrics));
                let way = Way { at: stream.local_addr().ok(), from };
                tasks.spawn(async move {
                    let come_in = async {
                        let Some(acceptor) = acceptor else {
                            let socket = Socket::new(stream, metrics, limits.stall);
                            return connection(socket, way, router, limits, closing).await;
                        };
                        if let Some(stream) = shake_hands(acceptor, stream, metrics, limits).await {
                            connection(stream, way, router, limits, closing).await;
                        }
                    };
                    tokio::select! {
                        () = cut.cancelled() => {}
                        () = come_in => {}
                    }
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: others must end before it is worth trying again.
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    tasks.close();
    if tokio::time::timeout(DRAIN, tasks.wait()).await.is_err() {
        warn!(requests = tasks.len(), "requests outlived the shutdown grace and were cut");
        cut.cancel();
        tasks.wait().await;
    }
}

/// Begins TLS with a client, which has as long for it as for a head. A client that speaks plain HTTP gets an
/// answer in plain HTTP.
async fn shake_hands(
    acceptor: TlsAcceptor,
    mut stream: TcpStream,
    metrics: Arc<Metrics>,
    limits: Limits,
) -> Option<tokio_rustls::server::TlsStream<Socket>> {
    let shaking = async {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
            return say_tls(&mut stream).await.map(|()| None);
        }
        acceptor.accept(Socket::new(stream, metrics, limits.stall)).await.map(Some)
    };
    match tokio::time::timeout(limits.head, shaking).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            debug!(%error, "no TLS");
            None
        }
        Err(_) => None,
    }
}

async fn say_tls(stream: &mut TcpStream) -> std::io::Result<()> {
    let problem = Problem::new(Kind::Malformed, "this node speaks https: ask again with https:// in front");
    let status = problem.kind().map_or(400, |kind| kind.info().status);
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status} Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

/// The two ends of a connection.
#[derive(Clone, Copy)]
struct Way {
    at: Option<SocketAddr>,
    from: SocketAddr,
}

async fn connection(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    way: Way,
    router: Router,
    limits: Limits,
    closing: CancellationToken,
) {
    let at = way.at.map(|at| CameInAt(at.ip().to_canonical()));
    let from = CameFrom(way.from.ip().to_canonical());
    let service = service_fn(move |request: Request<Incoming>| {
        let router = router.clone();
        async move {
            // Heads are read in growing steps, the last of which may take more than was allowed.
            if head_bytes(&request) > MAX_HEAD {
                return Ok(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response());
            }
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(from);
            if let Some(at) = at {
                request.extensions_mut().insert(at);
            }
            router.oneshot(request).await
        }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(limits.head);
    server.max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    let serving = server.serve_connection(TokioIo::new(socket), TowerToHyperService::new(service));
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = closing.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
}

/// About how long the head of a request was: its first line, and a line for each header.
fn head_bytes(request: &Request<Incoming>) -> usize {
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let line = |(name, value): (&axum::http::HeaderName, &axum::http::HeaderValue)| {
        name.as_str().len() + ": ".len() + value.len() + "\r\n".len()
    };
    path + request.headers().iter().map(line).sum::<usize>()
}
