//! What the bytes on a stream look like, and how they are read from someone who may be hostile.
//!
//! ```text
//! u32 LE length, JSON head            who wants what; then, as the head says, one of
//!   count x (32-byte shard, u32 g, u32 index)                      the keys of a fetch
//!   (32-byte shard, u32 g, u32 index, u32 length, bytes) ... end   grains, to the end of the stream
//!   bytes                                                          values of the metastore
//! ```
//! Lengths are checked against limits before anything is allocated, and memory grows only as bytes arrive.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shardfmt::digest::{Digest, ShardId};
use shardfmt::grain::GrainKey;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest head of a request.
pub(super) const MAX_HEAD: u32 = 1 << 20;
/// The longest head of an answer: that of a listing names every key.
pub(super) const MAX_REPLY_HEAD: u32 = 64 << 20;
/// The longest body of a metastore request (one value), and of its answer (a listing has many).
pub(super) const MAX_BODY: u32 = 1 << 20;
pub(super) const MAX_REPLY_BODY: u32 = 1 << 30;
/// The most grains that one fetch may ask for.
pub(super) const MAX_KEYS: u32 = 1 << 16;
/// The longest grain: a row of 64 MiB and its proof.
pub(super) const MAX_GRAIN: u32 = 65 << 20;

const KEY_BYTES: usize = 40;
const PREFIX_BYTES: usize = KEY_BYTES + 4;

/// Why a stream could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The connection or the stream was lost or closed.
    #[error("the stream broke: {}", reasons(.0))]
    Broken(io::Error),
    /// The stream ended where more was announced.
    #[error("the stream ended in the middle of {0}")]
    Cut(&'static str),
    /// Something is longer than it may be.
    #[error("{what} of {bytes} bytes, the limit is {limit}")]
    TooLong { what: &'static str, bytes: u32, limit: u32 },
    /// The head is not what belongs here.
    #[error("bad head: {0}")]
    BadHead(serde_json::Error),
}

/// An error and what caused it: a connection that was lost says by what.
fn reasons(error: &io::Error) -> String {
    let mut said = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        said = format!("{said}: {error}");
        cause = error.source();
    }
    said
}

/// A head as the stream carries it.
pub(super) fn head(value: &impl Serialize) -> Bytes {
    let json = serde_json::to_vec(value).expect("heads are plain data");
    let mut bytes = BytesMut::with_capacity(4 + json.len());
    bytes.put_u32_le(json.len().try_into().expect("heads are short"));
    bytes.put_slice(&json);
    bytes.freeze()
}

/// Reads the head that opens a request or an answer.
pub(super) async fn read_head<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    limit: u32,
) -> Result<T, FrameError> {
    let mut length = [0; 4];
    exact(stream, &mut length, "a head").await?;
    let bytes = read_bytes(stream, u32::from_le_bytes(length), limit, "a head").await?;
    serde_json::from_slice(&bytes).map_err(FrameError::BadHead)
}

/// Keys as the stream carries them.
pub(super) fn keys<'a>(keys: impl ExactSizeIterator<Item = &'a GrainKey>) -> Bytes {
    let mut bytes = BytesMut::with_capacity(keys.len() * KEY_BYTES);
    keys.for_each(|key| put_key(&mut bytes, key));
    bytes.freeze()
}

/// Reads `count` keys.
pub(super) async fn read_keys(
    stream: &mut (impl AsyncRead + Unpin),
    count: u32,
) -> Result<Vec<GrainKey>, FrameError> {
    if count > MAX_KEYS {
        return Err(FrameError::TooLong { what: "a list of keys", bytes: count, limit: MAX_KEYS });
    }
    let mut keys = Vec::new();
    for _ in 0..count {
        let mut key = [0; KEY_BYTES];
        exact(stream, &mut key, "a key").await?;
        keys.push(take_key(&key));
    }
    Ok(keys)
}

/// The head before a grain's bytes.
pub(super) fn grain_prefix(key: &GrainKey, bytes: &Bytes) -> Bytes {
    let mut prefix = BytesMut::with_capacity(PREFIX_BYTES);
    put_key(&mut prefix, key);
    prefix.put_u32_le(bytes.len().try_into().expect("grains are short"));
    prefix.freeze()
}

/// The next grain, or `None` at the end of the stream.
pub(super) async fn read_grain(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<(GrainKey, Bytes)>, FrameError> {
    let mut prefix = [0; PREFIX_BYTES];
    let first = stream.read(&mut prefix).await.map_err(FrameError::Broken)?;
    if first == 0 {
        return Ok(None);
    }
    exact(stream, &mut prefix[first..], "a grain").await?;
    let (key, length) = prefix.split_at(KEY_BYTES);
    let length = u32::from_le_bytes(length.try_into().expect("four bytes remain"));
    let bytes = read_bytes(stream, length, MAX_GRAIN, "a grain").await?;
    Ok(Some((take_key(key.try_into().expect("split at its length")), bytes)))
}

/// Reads exactly `length` bytes, if no more than `limit`.
pub(super) async fn read_bytes(
    stream: &mut (impl AsyncRead + Unpin),
    length: u32,
    limit: u32,
    what: &'static str,
) -> Result<Bytes, FrameError> {
    if length > limit {
        return Err(FrameError::TooLong { what, bytes: length, limit });
    }
    let wanted = length as usize;
    // A liar gets one MiB; the rest grows with what arrives.
    let mut bytes = Vec::with_capacity(wanted.min(1 << 20));
    let mut part = stream.take(u64::from(length));
    while bytes.len() < wanted {
        if bytes.len() == bytes.capacity() {
            bytes.reserve_exact(bytes.len().min(wanted - bytes.len()));
        }
        if part.read_buf(&mut bytes).await.map_err(FrameError::Broken)? == 0 {
            return Err(FrameError::Cut(what));
        }
    }
    Ok(bytes.into())
}

async fn exact(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut [u8],
    what: &'static str,
) -> Result<(), FrameError> {
    match stream.read_exact(bytes).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(FrameError::Cut(what)),
        Err(error) => Err(FrameError::Broken(error)),
    }
}

fn put_key(bytes: &mut BytesMut, key: &GrainKey) {
    bytes.put_slice(&key.shard.0.0);
    bytes.put_u32_le(key.rows);
    bytes.put_u32_le(key.index);
}

fn take_key(bytes: &[u8; KEY_BYTES]) -> GrainKey {
    let (shard, rest) = bytes.split_first_chunk::<32>().expect("a key has 40 bytes");
    let (rows, index) = rest.split_first_chunk::<4>().expect("a key has 40 bytes");
    GrainKey {
        shard: ShardId(Digest(*shard)),
        rows: u32::from_le_bytes(*rows),
        index: u32::from_le_bytes(index.try_into().expect("a key has 40 bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wait<T>(future: impl Future<Output = T>) -> T {
        futures::executor::block_on(future)
    }

    fn key(index: u32) -> GrainKey {
        GrainKey { shard: ShardId::of(b"a shard"), rows: 16, index }
    }

    proptest! {
        #[test]
        fn grains_come_out_as_they_went_in(lengths in prop::collection::vec(0..5000usize, 0..8)) {
            let grains: Vec<_> = (0..).zip(&lengths).map(|(i, n)| (key(i), Bytes::from(vec![i as u8; *n]))).collect();
            let mut stream = Vec::new();
            for (key, bytes) in &grains {
                stream.extend_from_slice(&grain_prefix(key, bytes));
                stream.extend_from_slice(bytes);
            }
            let mut stream = stream.as_slice();
            for grain in grains {
                prop_assert_eq!(wait(read_grain(&mut stream)).unwrap(), Some(grain));
            }
            prop_assert!(wait(read_grain(&mut stream)).unwrap().is_none());
        }

        #[test]
        fn any_bytes_give_an_answer_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = wait(read_head::<super::super::Request>(&mut bytes.as_slice(), MAX_HEAD));
            let _ = wait(read_keys(&mut bytes.as_slice(), 3));
            let mut stream = bytes.as_slice();
            while let Ok(Some(_)) = wait(read_grain(&mut stream)) {}
        }

        #[test]
        fn a_cut_grain_is_an_error(length in 0..300usize, cut in 1..44usize) {
            let bytes = Bytes::from(vec![7; length]);
            let whole = [grain_prefix(&key(1), &bytes), bytes].concat();
            let mut stream = &whole[..whole.len().saturating_sub(cut).max(1)];
            prop_assert!(matches!(wait(read_grain(&mut stream)), Err(FrameError::Cut(_))));
        }
    }

    #[test]
    fn lengths_over_the_limit_are_refused_before_they_are_read() {
        let mut stream: &[u8] = &(MAX_HEAD + 1).to_le_bytes();
        let head = wait(read_head::<serde_json::Value>(&mut stream, MAX_HEAD));
        assert!(matches!(head, Err(FrameError::TooLong { what: "a head", .. })));
        let mut grain = grain_prefix(&key(0), &Bytes::new()).to_vec();
        grain[KEY_BYTES..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(wait(read_grain(&mut grain.as_slice())), Err(FrameError::TooLong { .. })));
        assert!(matches!(wait(read_keys(&mut [].as_slice(), MAX_KEYS + 1)), Err(FrameError::TooLong { .. })));
    }
}
