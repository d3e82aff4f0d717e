//! How documents are packed, as data.

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(crate) mod fit;
mod rooms;
mod spaces;

/// The longest sequence: positions are `i32`.
const LONGEST: u32 = i32::MAX as u32;

/// Documents cannot be packed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PackError {
    /// The sequences have no length, or one without positions.
    #[error("sequences of {0} tokens cannot be packed: choose a length of 1 to {LONGEST}")]
    Length(u32),
    /// A document is too long, and [`Long::Raise`] was chosen.
    #[error(
        "document {document} has {tokens} tokens, and a sequence {length}: split it, or choose long = split, truncate or drop"
    )]
    Long {
        /// Its number, from 0.
        document: u64,
        /// Its tokens.
        tokens: u32,
        /// The length of sequences.
        length: u32,
    },
    /// A window has more pieces than can be numbered.
    #[error("a window has more than {} pieces: choose a smaller window", u32::MAX)]
    Pieces,
    /// A saved packer was changed, or is that of another version.
    #[error("the saved packer is not one that this program wrote: {0}")]
    Saved(&'static str),
}

/// Which documents share a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Documents one behind the other, cut where a sequence is full. A document may continue in the next sequence, and only
    /// the last sequence has padding. Windows and [`Long`] have no effect.
    ConcatThenSplit,
    /// Each document, in order, joins the first sequence that has room for it.
    FirstFit,
    /// First fit, from the longest document to the shortest.
    FirstFitDecreasing,
    /// Each document, in order, joins the sequence in which it leaves the least room.
    BestFit,
    /// Best fit, from the longest document to the shortest: `bfd` in TRL (Ding et al., "Fewer Truncations Improve Language
    /// Modeling", ICML 2024).
    #[default]
    #[serde(alias = "bfd")]
    BestFitDecreasing,
}

/// What happens with a document that is longer than a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Long {
    /// It is cut into pieces of the sequences' length and a rest, and each piece is packed as a document of its own.
    #[default]
    Split,
    /// Its first tokens fill a sequence; [`Stats`](crate::Stats) counts the others.
    Truncate,
    /// It is left out; [`Stats`](crate::Stats) counts it.
    Drop,
    /// Packing ends with [`PackError::Long`].
    Raise,
}

/// How documents become sequences: all that the result depends on but the documents' lengths.
///
/// Equal documents and ties have a fixed order. Of sequences with equal room the first opened one is taken, and of documents
/// of equal length the first one.
///
/// ```
/// use shardd_packing::{Packing, Strategy};
///
/// let packing: Packing = serde_json::from_str(r#"{"length": 2048, "strategy": "bfd", "window": 1000}"#)?;
/// assert_eq!(packing.strategy, Strategy::BestFitDecreasing);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packing {
    /// Tokens of a sequence, 1 to 2^31 - 1.
    pub length: u32,
    /// Which documents share a sequence.
    #[serde(default)]
    pub strategy: Strategy,
    /// What happens with documents longer than a sequence.
    #[serde(default)]
    pub long: Long,
    /// The documents, or pieces of split documents, that are packed together; 0 for all.
    #[serde(default)]
    pub window: usize,
    /// A window closes with the document that brings its tokens to this number; 0 for no limit.
    #[serde(default)]
    pub window_tokens: u64,
    /// Whether the documents of sequences with much room wait for the next window, up to [`Packing::MOST_WAITS`] times.
    #[serde(default = "Packing::carry")]
    pub carry: bool,
}

impl Packing {
    /// How often a document may wait for the next window.
    pub const MOST_WAITS: u8 = 3;

    /// Best fit from the longest to the shortest of all documents; long ones are split.
    pub fn new(length: u32) -> Self {
        Self {
            length,
            strategy: Strategy::default(),
            long: Long::default(),
            window: 0,
            window_tokens: 0,
            carry: true,
        }
    }

    fn carry() -> bool {
        true
    }

    /// Itself, if its length is one.
    pub(crate) fn checked(self) -> Result<Self, PackError> {
        if (1..=LONGEST).contains(&self.length) { Ok(self) } else { Err(PackError::Length(self.length)) }
    }

    /// Whether a window of this size is complete.
    pub(crate) fn is_full(&self, pieces: usize, tokens: u64) -> bool {
        (self.window > 0 && pieces >= self.window) || (self.window_tokens > 0 && tokens >= self.window_tokens)
    }
}

#[cfg(test)]
mod tests;
