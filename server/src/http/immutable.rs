//! Answers with immutable objects, or with data computed from them: whole, in one part or in several, or not
//! at all where the client has it.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap,
};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryStreamExt};
use shardd_api::problem::Kind;
use shardd_store::origin::Origin;
use shardfmt::{ShardId, VersionId};
use utoipa::IntoParams;

use super::problem::Refusal;
use super::range::{Wanted, wanted};

/// How much is in memory at once while it is sent.
const PIECE: u64 = 1 << 20;
/// Clients may cache immutable objects without limit.
const FOREVER: &str = "public, max-age=31536000, immutable";
/// Clients ask again for objects that may be remade.
const ASK_AGAIN: &str = "no-cache";

/// The media type of Arrow files.
pub(super) const ARROW_FILE: &str = "application/vnd.apache.arrow.file";

/// The other headers of a request for it.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it describes headers that are read where ranges are")]
pub(super) struct Conditions {
    /// Only these bytes: one range, or up to 16 that do not overlap.
    #[param(nullable = false, example = "bytes=0-7")]
    range: Option<String>,
    /// Only if it is not the one with this tag.
    #[param(rename = "if-none-match", nullable = false)]
    if_none_match: Option<String>,
    /// The range only if it is the one with this tag, else all.
    #[param(rename = "if-range", nullable = false)]
    if_range: Option<String>,
}

/// Where bytes come from.
pub(super) enum Source {
    /// A shard in the store; the client verifies it.
    Shard(Arc<Origin>, ShardId),
    /// A manifest: the whole is verified here, a part by the client, with the tree.
    Manifest(Arc<Origin>, VersionId),
    /// Bytes in memory.
    Bytes(Bytes),
}

/// Something that can be asked for by range.
pub(super) struct Content {
    /// Its description, for people.
    pub(super) what: String,
    /// Its media type.
    pub(super) kind: &'static str,
    /// Its strong tag.
    pub(super) etag: String,
    /// Its length in bytes.
    pub(super) size: u64,
    /// Whether it is the only thing that can ever have its name.
    pub(super) forever: bool,
    /// Its bytes.
    pub(super) source: Source,
}

impl Content {
    /// An object made of something named by a digest, and could be made a little differently another time.
    pub(super) fn derived(what: String, bytes: Bytes) -> Self {
        let etag = shardfmt::Digest::of(&bytes).to_string();
        let size = bytes.len() as u64;
        let source = Source::Bytes(bytes);
        Self { what, kind: "application/octet-stream", etag, size, forever: false, source }
    }

    /// A JSON document that was made for the answer.
    pub(super) fn document(what: String, bytes: Bytes) -> Self {
        Self { kind: "application/json", ..Self::derived(what, bytes) }
    }

    /// The answer to a request for it.
    pub(super) async fn answer(self, method: &Method, headers: &HeaderMap) -> Result<Response, Refusal> {
        let etag = format!("\"{}\"", self.etag);
        let cache = if self.forever { FOREVER } else { ASK_AGAIN };
        let known = [(ETAG, etag.clone()), (CACHE_CONTROL, cache.into()), (ACCEPT_RANGES, "bytes".into())];
        let size = self.size;
        let content_range = |part: &Range<u64>| format!("bytes {}-{}/{size}", part.start, part.end - 1);
        let (status, kind, range, length, parts) = match wanted(headers, &etag, size) {
            Wanted::Nothing => return Ok((StatusCode::NOT_MODIFIED, known).into_response()),
            Wanted::Unsatisfiable => {
                let detail = format!("{} has {size} bytes, the range begins after them", self.what);
                let refusal = Refusal::of(Kind::RangeNotSatisfiable, detail);
                return Ok(([(CONTENT_RANGE, format!("bytes */{size}"))], refusal).into_response());
            }
            Wanted::Whole => {
                (StatusCode::OK, self.kind.to_owned(), None, size, vec![(Bytes::new(), 0..size)])
            }
            Wanted::Part(part) => {
                let (range, length) = (content_range(&part), part.end - part.start);
                let parts = vec![(Bytes::new(), part)];
                (StatusCode::PARTIAL_CONTENT, self.kind.to_owned(), Some(range), length, parts)
            }
            Wanted::Parts(parts) => {
                let boundary = boundary();
                let mut parts: Vec<(Bytes, Range<u64>)> = parts
                    .into_iter()
                    .map(|part| (head(&boundary, self.kind, &content_range(&part)), part))
                    .collect();
                parts.push((format!("\r\n--{boundary}--\r\n").into(), 0..0));
                let length = parts.iter().map(|(head, part)| head.len() as u64 + part.end - part.start).sum();
                let kind = format!("multipart/byteranges; boundary={boundary}");
                (StatusCode::PARTIAL_CONTENT, kind, None, length, parts)
            }
        };
        let body = if method == Method::HEAD { Body::empty() } else { self.source.body(parts, size).await? };
        let length = [(CONTENT_TYPE, kind), (CONTENT_LENGTH, length.to_string())];
        let mut response = (status, known, length, body).into_response();
        if let Some(range) = range {
            response.headers_mut().insert(CONTENT_RANGE, range.parse().expect("digits and a slash"));
        }
        Ok(response)
    }
}

/// A line that is unlikely to be in the content.
fn boundary() -> String {
    format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1))
}

/// The bytes before a part.
fn head(boundary: &str, kind: &str, range: &str) -> Bytes {
    format!("\r\n--{boundary}\r\ncontent-type: {kind}\r\ncontent-range: {range}\r\n\r\n").into()
}

impl Source {
    /// Parts of something of `size` bytes, with what stands before each, as the client takes them.
    async fn body(self, parts: Vec<(Bytes, Range<u64>)>, size: u64) -> Result<Body, Refusal> {
        match (&self, parts.as_slice()) {
            (Source::Bytes(bytes), [(_, part)]) => {
                Ok(Body::from(bytes.slice(part.start as usize..part.end as usize)))
            }
            (Source::Manifest(origin, id), [(_, part)]) if *part == (0..size) => {
                Ok(Body::from(origin.manifest_bytes(*id).await?))
            }
            // The first bytes are looked for before the answer begins: without them it is another answer.
            (_, [(_, part)]) => {
                let part = self.part(part.clone()).await?;
                Ok(Body::from_stream(part))
            }
            _ => {
                let source = Arc::new(self);
                let pieces = stream::iter(parts).then(move |(head, part)| {
                    let source = Arc::clone(&source);
                    async move {
                        let head = stream::once(async { Ok(head) });
                        let part = source.part(part).await.map_err(std::io::Error::other)?;
                        Ok::<_, std::io::Error>(head.chain(part))
                    }
                });
                Ok(Body::from_stream(pieces.try_flatten()))
            }
        }
    }

    /// One part, piece by piece. Files are read directly: bytes served to others do not count as this node's
    /// reads from the store.
    async fn part(
        &self,
        part: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes, std::io::Error>>, PartError> {
        Ok(match self {
            Source::Bytes(bytes) => {
                let bytes = bytes.slice(part.start as usize..part.end as usize);
                stream::once(async { Ok(bytes) }).boxed()
            }
            Source::Manifest(_, _) if part.is_empty() => stream::empty().boxed(),
            Source::Manifest(origin, id) => {
                let bytes = origin.manifest_part(*id, part).await.map_err(PartError::Origin)?;
                stream::once(async { Ok(bytes) }).boxed()
            }
            Source::Shard(origin, id) => match origin.local_path(id) {
                None => pieces(Arc::clone(origin), *id, part).map_err(std::io::Error::other).boxed(),
                Some(path) => {
                    let opened = async {
                        let mut file = tokio::fs::File::open(&path).await?;
                        tokio::io::AsyncSeekExt::seek(&mut file, std::io::SeekFrom::Start(part.start))
                            .await?;
                        Ok::<_, std::io::Error>(file)
                    };
                    let file = opened.await.map_err(|error| PartError::File(*id, error))?;
                    let part = tokio::io::AsyncReadExt::take(file, part.end - part.start);
                    tokio_util::io::ReaderStream::with_capacity(part, PIECE as usize).boxed()
                }
            },
        })
    }
}

/// Why a part cannot be had.
#[derive(Debug, thiserror::Error)]
enum PartError {
    #[error(transparent)]
    Origin(shardd_store::origin::OriginError),
    #[error("shard {0} cannot be opened")]
    File(ShardId, #[source] std::io::Error),
}

impl From<PartError> for Refusal {
    fn from(error: PartError) -> Refusal {
        match error {
            PartError::Origin(error) => error.into(),
            error @ PartError::File(..) => Refusal::of(Kind::Unavailable, super::problem::chain(&error)),
        }
    }
}

fn pieces(
    origin: Arc<Origin>,
    id: ShardId,
    bytes: Range<u64>,
) -> impl Stream<Item = Result<Bytes, shardd_store::origin::OriginError>> {
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
