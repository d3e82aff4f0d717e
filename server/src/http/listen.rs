//! The accept loop of the HTTP server: bounded, with a time limit on slow headers, drained on stop.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::{debug, warn};

/// Connections at once; more wait in the system's queue.
const MAX_CONNECTIONS: usize = 8192;
/// How long a client may take to say what it wants. A connection that is kept for later counts as such a client: this is
/// longer than clients keep them (ureq: 15 s), so that none is cut off as it asks again.
const HEADER_PATIENCE: Duration = Duration::from_secs(60);
/// How long requests under way may take to end once the node stops.
const DRAIN: Duration = Duration::from_secs(3);

/// Serves `router` until `stop`; then takes no more connections, lets requests under way end, and cuts those that take
/// longer than three seconds.
pub async fn listen(listener: TcpListener, router: Router, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    let cut = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept(), if tasks.len() < MAX_CONNECTIONS => accepted,
            // Looked at again: a connection may have ended meanwhile.
            () = tokio::time::sleep(Duration::from_millis(10)), if tasks.len() >= MAX_CONNECTIONS => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let (router, stop, cut) = (router.clone(), stop.clone(), cut.clone());
                tasks.spawn(async move {
                    tokio::select! {
                        () = cut.cancelled() => {}
                        () = connection(stream, router, stop) => {}
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

async fn connection(stream: TcpStream, router: Router, stop: CancellationToken) {
    // Small answers go out at once.
    let _ = stream.set_nodelay(true);
    let service =
        router.map_request(|request: axum::http::Request<hyper::body::Incoming>| request.map(Body::new));
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_PATIENCE);
    let serving = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
}
