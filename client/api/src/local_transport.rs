//! What a loader and a node of its machine say to each other over the node's Unix-domain socket: the loader shows the passes
//! that its questions over HTTP were answered with, and is lent the segments' descriptors, or has grains copied into memory that
//! both have. Plain values and their bytes; knows nothing of sockets.
//!
//! The node begins with [`MAGIC`] and a [`Hello`]; then each [`Ask`] has one [`Answer`]. Each message is a
//! frame: a 32-bit little-endian length and that number of bytes of JSON.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::node::NodeId;

/// The first bytes of a node's stream.
pub const MAGIC: [u8; 8] = *b"shrdlend";
/// The format of what follows.
pub const FORMAT: u32 = 1;
/// No frame is longer, in bytes.
pub const MAX_FRAME: usize = 256 << 10;
/// No question asks for more pieces.
pub const MAX_PIECES: usize = 512;
/// The size of a ring in bytes. Grains copied through it are taken out again at once: one that fits into a
/// processor's cache is faster than a large one.
pub const RING_BYTES: u64 = 16 << 20;

/// The form in which a node lends to loaders of its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Share {
    /// Read-only descriptors of the segments of its cache, or a ring.
    #[default]
    Files,
    /// A ring: memory into which it copies the grains that are asked for.
    Ring,
    /// Nothing: they are sent bytes, as loaders elsewhere.
    None,
}

/// How a loader gets a node's grains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// It maps the node's segments, whose descriptors it was passed.
    Files,
    /// It reads them out of memory into which the node copies them.
    Ring,
    /// They are sent as bytes over HTTP.
    #[default]
    Stream,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Files => "files",
            Self::Ring => "ring",
            Self::Stream => "stream",
        })
    }
}

/// A node's first word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`FORMAT`].
    pub format: u32,
    /// Which node it is.
    pub node: NodeId,
    /// The lent share.
    pub share: Share,
}

/// A loader's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Ask {
    /// The descriptor of a segment, which comes with [`Answer::File`].
    File {
        /// The segment's pass.
        segment: String,
    },
    /// A ring, whose descriptor comes with [`Answer::Ring`]. A connection has one.
    Ring,
    /// That these be copied into the connection's ring. Where there, is for the asker to say, who knows the
    /// grains it has read.
    Copy {
        /// At most [`MAX_PIECES`], and no more bytes of them together than [`RING_BYTES`].
        pieces: Vec<Piece>,
    },
}

/// A stretch of a segment, and where in the ring it goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// The segment's pass.
    pub segment: String,
    /// Where in the segment it begins, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u32,
    /// Where in the ring it goes, in bytes.
    pub at: u64,
}

impl Piece {
    /// Whether it lies in the ring as a whole.
    pub fn fits(&self) -> bool {
        self.at.checked_add(self.len.into()).is_some_and(|end| end <= RING_BYTES)
    }
}

/// A node's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Answer {
    /// The segment's descriptor comes with this. It can be read, and its bytes stay.
    File,
    /// The segment has been dropped: ask over HTTP again where the grain is.
    Gone,
    /// The ring's descriptor comes with this.
    Ring {
        /// Its size.
        bytes: u64,
    },
    /// Which of the pieces are in the ring, in the order of the question. The others could not be read.
    Copied {
        /// One for each piece.
        done: Vec<bool>,
    },
    /// It is not given.
    Refused {
        /// Why, in one line.
        reason: String,
    },
}

/// Bytes that are no frame, or not one that was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// No frame of ours is that long.
    #[error("a frame of {0} bytes is announced, and {MAX_FRAME} is the most")]
    TooLong(usize),
    /// Not a frame of this protocol.
    #[error("a frame is not understood: {0}")]
    Garbage(String),
}

/// The bytes of a frame.
///
/// # Panics
/// When the message is longer than the limit.
pub fn frame(said: &impl Serialize) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, said).expect("plain data");
    let len = bytes.len() - 4;
    assert!(len <= MAX_FRAME, "a frame of {len} bytes");
    bytes[..4].copy_from_slice(&u32::try_from(len).expect("checked above").to_le_bytes());
    bytes
}

/// The length of the frame that begins so.
///
/// # Errors
/// [`BadFrame::TooLong`].
pub fn frame_len(head: [u8; 4]) -> Result<usize, BadFrame> {
    let len = u32::from_le_bytes(head) as usize;
    if len <= MAX_FRAME { Ok(len) } else { Err(BadFrame::TooLong(len)) }
}

/// The content of a frame.
///
/// # Errors
/// [`BadFrame::Garbage`].
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, BadFrame> {
    serde_json::from_slice(body).map_err(|error| BadFrame::Garbage(error.to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn piece() -> impl Strategy<Value = Piece> {
        ("[ -~]{0,90}", any::<u64>(), any::<u32>(), any::<u64>())
            .prop_map(|(segment, offset, len, at)| Piece { segment, offset, len, at })
    }

    fn ask() -> impl Strategy<Value = Ask> {
        prop_oneof![
            "\\PC{0,90}".prop_map(|segment| Ask::File { segment }),
            Just(Ask::Ring),
            proptest::collection::vec(piece(), 0..=MAX_PIECES).prop_map(|pieces| Ask::Copy { pieces }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_asked_is_what_is_understood(asked in ask()) {
            let bytes = frame(&asked);
            let len = frame_len(bytes[..4].try_into().expect("four bytes")).expect("of a length that may be");
            prop_assert_eq!(len, bytes.len() - 4);
            prop_assert_eq!(parse(&bytes[4..]), Ok(asked));
        }

        #[test]
        fn garbage_is_an_error_and_nothing_worse(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(head) = bytes.first_chunk() {
                prop_assert!(frame_len(*head).map_or_else(|_| true, |len| len <= MAX_FRAME));
            }
            if let Ok(ask) = parse::<Ask>(&bytes) {
                prop_assert_eq!(parse(&frame(&ask)[4..]), Ok(ask));
            }
            let _ = (parse::<Answer>(&bytes), parse::<Hello>(&bytes));
        }

        #[test]
        fn damage_to_a_question_never_makes_it_reach_outside_the_ring(
            asked in ask(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let mut bytes = frame(&asked).split_off(4);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(Ask::Copy { pieces }) = parse(&bytes) {
                for piece in pieces.iter().filter(|piece| piece.fits()) {
                    prop_assert!(piece.at + u64::from(piece.len) <= RING_BYTES);
                }
            }
        }
    }
}
