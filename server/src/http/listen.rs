//! The accept loop of the HTTP server: bounded, with a time limit on slow headers, drained on stop.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::{debug, warn};

use super::metrics::Metrics;
use super::socket::Socket;
use super::{Api, Limits, router};

/// Connections at once; more wait in the system's queue.
const MAX_CONNECTIONS: usize = 8192;
/// The bytes of the head of a request that are surely taken; as they are read in growing steps, up to twice as many may be...
const MAX_HEAD: usize = 32 << 10;
/// ...and the most headers.
const MAX_HEADERS: usize = 100;
/// How long a node that stops still takes connections, so that whoever asks hears that it is not ready any more.
const NOTICE: Duration = Duration::from_millis(500);
/// How long requests under way may take to end from then on.
const DRAIN: Duration = Duration::from_secs(2);

/// Serves `api` until `stop`. From then on the node says that it is not ready; half a second later no more connections are
/// taken, requests under way may end, and those that take longer than another two seconds are cut.
pub async fn serve(listener: TcpListener, api: Api, stop: CancellationToken) {
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
    listener: TcpListener,
    router: Router,
    metrics: &Arc<Metrics>,
    limits: Limits,
    closing: CancellationToken,
) {
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
            Ok((stream, _)) => {
                let (router, closing, cut) = (router.clone(), closing.clone(), cut.clone());
                let socket = Socket::new(stream, Arc::clone(metrics), limits.stall);
                tasks.spawn(async move {
                    tokio::select! {
                        () = cut.cancelled() => {}
                        () = connection(socket, router, limits, closing) => {}
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

async fn connection(socket: Socket, router: Router, limits: Limits, closing: CancellationToken) {
    let service =
        router.map_request(|request: axum::http::Request<hyper::body::Incoming>| request.map(Body::new));
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
