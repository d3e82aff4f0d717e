//! The console: a page that shows a cluster, from the files of `server/console/dist`, which are part of the program.
//!
//! The files need no token, the page's requests do. They run no script but the page's own, and ask no other host.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, IF_NONE_MATCH,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::Shared;

/// The page may run its own script and style, and ask its own node; nothing else, and it is in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; \
                      media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// The paths of the console, with their files.
const FILES: [(&str, &str, &[u8]); 5] = [
    ("/", HTML, include_bytes!("../../console/dist/index.html")),
    ("/console.js", SCRIPT, include_bytes!("../../console/dist/console.js")),
    ("/charts.js", SCRIPT, include_bytes!("../../console/dist/charts.js")),
    ("/console.css", STYLE, include_bytes!("../../console/dist/console.css")),
    ("/LICENSES.txt", TEXT, include_bytes!("../../console/dist/LICENSES.txt")),
];

/// The digests of the files, in quotes.
static TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| {
    let tag = |bytes: &[u8]| format!("\"{}\"", &blake3::hash(bytes).to_hex()[..32]);
    FILES.iter().map(|(.., bytes)| HeaderValue::from_str(&tag(bytes)).expect("hexadecimal digits")).collect()
});

/// The routes of the files.
pub(super) fn routes() -> Router<Arc<Shared>> {
    FILES.iter().enumerate().fold(Router::new(), |router, (number, (path, ..))| {
        router.route(path, get(async move |headers: HeaderMap| file(number, &headers)))
    })
}

fn file(number: usize, headers: &HeaderMap) -> Response {
    let (_, kind, bytes) = FILES[number];
    let tag = &TAGS[number];
    let is_known = headers.get(IF_NONE_MATCH).is_some_and(|known| known == tag);
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(CONTENT_TYPE, kind)], bytes).into_response(),
    };
    let set: [(HeaderName, HeaderValue); 5] = [
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // Another release has another page: the browser asks each time, and is answered in a few bytes.
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (ETAG, tag.clone()),
    ];
    response.headers_mut().extend(set);
    response
}
