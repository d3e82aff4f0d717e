//! A web server whose manners can be chosen by the first step of the path.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path as Steps, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// Who does not say it gets nothing.
pub(crate) const TOKEN: &str = "let-me-in";

pub(crate) struct Web {
    pub(crate) address: String,
    _runtime: Runtime,
}

#[derive(Clone)]
struct Served {
    root: PathBuf,
    /// How often what changes was asked for.
    changing: Arc<AtomicU64>,
}

#[derive(serde::Deserialize)]
struct Asked {
    token: String,
}

impl Web {
    /// Serves the files below `root`, until it is dropped.
    pub(crate) fn start(root: &Path) -> Web {
        let runtime = Runtime::new().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let served = Served { root: root.to_owned(), changing: Arc::default() };
        let router = Router::new().route("/{manner}/{*path}", get(answer)).with_state(served);
        runtime.spawn(async move { axum::serve(listener, router).await });
        Web { address, _runtime: runtime }
    }
}

async fn answer(
    State(served): State<Served>,
    Steps((manner, path)): Steps<(String, String)>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Response {
    if asked.token != TOKEN {
        return StatusCode::FORBIDDEN.into_response();
    }
    let Ok(bytes) = fs::read(served.root.join(&path)) else { return StatusCode::NOT_FOUND.into_response() };
    let bytes = Bytes::from(bytes);
    match manner.as_str() {
        // As nginx and most others.
        "parts" => part(&bytes, &headers, Some("\"one\"")),
        // Without a tag to recognise the file by.
        "bare-parts" => part(&bytes, &headers, None),
        // As Python's http.server.
        "whole" => bytes.into_response(),
        // As what makes its answers while it sends them.
        "endless" => Body::from_stream(pieces(bytes)).into_response(),
        "moved" => Redirect::temporary(&format!("/parts/{path}?token={TOKEN}")).into_response(),
        // Looks at no condition.
        "changing" => {
            let number = served.changing.fetch_add(1, Ordering::Relaxed);
            part(&bytes, &headers, Some(if number < 2 { "\"one\"" } else { "\"two\"" }))
        }
        // Ends before the end.
        "broken" => {
            let half = bytes.slice(..bytes.len() / 2);
            let stream = futures::stream::iter([Ok(half), Err(std::io::Error::other("gone"))]);
            Body::from_stream(stream).into_response()
        }
        other => panic!("no manner is called {other}"),
    }
}

fn pieces(bytes: Bytes) -> impl futures::Stream<Item = std::io::Result<Bytes>> {
    let starts = (0..bytes.len()).step_by(100_000);
    futures::stream::iter(starts.map(move |start| Ok(bytes.slice(start..bytes.len().min(start + 100_000)))))
}

/// The part that the request names.
fn part(bytes: &Bytes, headers: &HeaderMap, tag: Option<&'static str>) -> Response {
    let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok()?.strip_prefix("bytes="));
    let range = range.and_then(|range| range.split_once('-'));
    let mut answer = match range.map(|(start, end)| (start.parse::<usize>(), end.parse::<usize>())) {
        Some((Ok(start), _)) if start >= bytes.len() => StatusCode::RANGE_NOT_SATISFIABLE.into_response(),
        Some((Ok(start), Ok(end))) => {
            let end = bytes.len().min(end + 1);
            let content_range = format!("bytes {start}-{}/{}", end - 1, bytes.len());
            let part = bytes.slice(start..end);
            (StatusCode::PARTIAL_CONTENT, [(header::CONTENT_RANGE, content_range)], part).into_response()
        }
        _ => bytes.clone().into_response(),
    };
    if let Some(tag) = tag {
        answer.headers_mut().insert(header::ETAG, HeaderValue::from_static(tag));
    }
    answer
}
