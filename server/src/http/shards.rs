//! Shards and their sidecars: immutable bytes under their own digests, so ranges, conditions and caches are exact.

use std::ops::Range;

use axum::body::{Body, Bytes};
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap,
};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::{Stream, stream};
use shardd_client::origin::Origin;
use shardd_client::problem::{self, Problem};
use shardfmt::ShardId;
use shardfmt::shard::{Shard, Sidecar};
use std::sync::Arc;

use super::problem::{Refusal, bad_request, invalid, not_found};
use super::range::{Wanted, wanted};
use super::{Answer, MAX_SHARD, Named, State, read};

/// How much of a shard is in memory at once while it is sent.
const PIECE: u64 = 1 << 20;
/// What never changes may be kept for ever.
const FOREVER: &str = "public, max-age=31536000, immutable";

pub(super) async fn shard(
    state: State,
    method: Method,
    Named(id): Named<ShardId>,
    headers: HeaderMap,
) -> Answer {
    let origin = state.api.catalog.origin();
    let Some(size) = origin.shard_size(&id).await? else {
        return Err(not_found(format!("there is no shard {id} here")));
    };
    let etag = format!("\"{id}\"");
    let known = [(ETAG, etag.clone()), (CACHE_CONTROL, FOREVER.into()), (ACCEPT_RANGES, "bytes".into())];
    let part = match wanted(&headers, &etag, size) {
        Wanted::Nothing => return Ok((StatusCode::NOT_MODIFIED, known).into_response()),
        Wanted::Unsatisfiable => {
            let detail = format!("shard {id} has {size} bytes, the range begins after them");
            let refusal = Refusal::from(Problem::new("about:blank", 416, detail));
            return Ok(([(CONTENT_RANGE, format!("bytes */{size}"))], refusal).into_response());
        }
        Wanted::Whole => None,
        Wanted::Part(part) => Some(part),
    };
    let (status, bytes) = match &part {
        None => (StatusCode::OK, 0..size),
        Some(part) => (StatusCode::PARTIAL_CONTENT, part.clone()),
    };
    let length = [
        (CONTENT_TYPE, "application/vnd.apache.arrow.file".to_owned()),
        (CONTENT_LENGTH, (bytes.end - bytes.start).to_string()),
    ];
    let range = part.map(|part| [(CONTENT_RANGE, format!("bytes {}-{}/{size}", part.start, part.end - 1))]);
    let body =
        if method == Method::HEAD { Body::empty() } else { body(Arc::clone(origin), id, bytes).await? };
    let mut response: Response = (status, known, length, body).into_response();
    if let Some([(name, value)]) = range {
        response.headers_mut().insert(name, value.parse().expect("digits and a slash"));
    }
    Ok(response)
}

/// The bytes, piece by piece, as the client takes them. Files are read directly: what is served to others is not what
/// this node's caches read from the store.
async fn body(origin: Arc<Origin>, id: ShardId, bytes: Range<u64>) -> Result<Body, Refusal> {
    let Some(path) = origin.local_path(&id) else { return Ok(Body::from_stream(pieces(origin, id, bytes))) };
    let opened = async {
        let mut file = tokio::fs::File::open(&path).await?;
        tokio::io::AsyncSeekExt::seek(&mut file, std::io::SeekFrom::Start(bytes.start)).await?;
        Ok::<_, std::io::Error>(file)
    };
    let file =
        opened.await.map_err(|error| Refusal::from(Problem::unavailable(format!("shard {id}: {error}"))))?;
    let part = tokio::io::AsyncReadExt::take(file, bytes.end - bytes.start);
    Ok(Body::from_stream(tokio_util::io::ReaderStream::with_capacity(part, PIECE as usize)))
}

fn pieces(
    origin: Arc<Origin>,
    id: ShardId,
    bytes: Range<u64>,
) -> impl Stream<Item = Result<Bytes, shardd_client::origin::OriginError>> {
    stream::try_unfold((origin, bytes), move |(origin, bytes)| async move {
        if bytes.is_empty() {
            return Ok(None);
        }
        let end = bytes.end.min(bytes.start + PIECE);
        let range = bytes.start..end;
        let piece = origin.read_ranges(&id, std::slice::from_ref(&range)).await?.concat();
        Ok(Some((piece.into(), (origin, end..bytes.end))))
    })
}

pub(super) async fn put_shard(
    state: State,
    Named(id): Named<ShardId>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let _one_of_few = state.uploads.acquire().await.expect("never closed");
    let bytes = read(&headers, body, MAX_SHARD).await?;
    // Bytes of another name are refused before anything else is thought of them.
    let hashed = bytes.clone();
    let found = blocking(move || Ok(ShardId::of(&hashed))).await?;
    if found != id {
        let detail = format!("the bytes are those of shard {found}, not of {id}");
        return Err(Refusal::from(Problem::new(problem::CORRUPT, 422, detail)));
    }
    let checked = bytes.clone();
    blocking(move || Shard::from_bytes(checked.to_vec()).map(drop).map_err(invalid)).await?;
    state.api.catalog.origin().put_shard_bytes(id, bytes).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn rows(state: State, Named(id): Named<ShardId>) -> Answer {
    let bytes = state.api.catalog.origin().sidecar_bytes(id).await?;
    Ok(([(CONTENT_TYPE, "application/octet-stream"), (CACHE_CONTROL, "no-cache")], bytes).into_response())
}

pub(super) async fn put_rows(
    state: State,
    Named(id): Named<ShardId>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let _one_of_few = state.uploads.acquire().await.expect("never closed");
    let bytes = read(&headers, body, MAX_SHARD).await?;
    let origin = state.api.catalog.origin();
    if origin.shard_size(&id).await?.is_none() {
        return Err(bad_request(format!("put shard {id} before its rows")));
    }
    let shard = match origin.local_path(&id) {
        Some(path) => blocking(move || Shard::open(&path).map_err(invalid)).await?,
        None => {
            let bytes = origin.shard_bytes(id).await?;
            blocking(move || Shard::from_bytes(bytes.to_vec()).map_err(invalid)).await?
        }
    };
    let offered = bytes.clone();
    blocking(move || {
        let sidecar = Sidecar::decode(&offered).map_err(invalid)?;
        if sidecar.rows != shard.row_digests().map_err(invalid)? {
            return Err(Refusal::from(Problem::new(
                problem::CORRUPT,
                422,
                format!("these are not the rows of shard {id}"),
            )));
        }
        Ok(())
    })
    .await?;
    origin.put_sidecar(id, bytes).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Runs what takes long where blocking is allowed.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Refusal::from(Problem::unavailable(format!("the check was given up: {error}"))))
    })
}
