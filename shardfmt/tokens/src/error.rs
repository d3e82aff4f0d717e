//! Errors: of a file that does not become a tokenizer, and of a text or tokens that a tokenizer refuses.

use std::path::PathBuf;

use crate::Encoding;

/// A file from which no tokenizer can be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The bytes are neither a `tokenizer.json` nor a rank file.
    #[error(
        "neither a tokenizer.json, which starts with '{{', nor a rank file, with lines of base64, space, rank: {reason}"
    )]
    Unknown {
        /// The first place where it differs from a rank file.
        reason: String,
    },
    /// A rank file that belongs to none of the known encodings. Name its encoding: `Tokenizer::from_ranks`.
    #[error(
        "a rank file of {tokens} tokens that belongs to no known encoding; name one of {}",
        Encoding::names()
    )]
    Encoding {
        /// How many tokens the file has.
        tokens: usize,
    },
    /// A rank file that lacks tokens which any text may need.
    #[error(
        "the rank file has no token for the byte {byte:#04x}; it is cut off, or not of a byte-level encoding"
    )]
    Byte {
        /// The byte.
        byte: u8,
    },
    /// The JSON is not that of a tokenizer.
    #[error("the tokenizer.json is not valid")]
    Json(#[from] serde_json::Error),
    /// A merge names a token that the vocabulary lacks.
    #[error("merge {number} of the tokenizer.json makes or takes {token:?}, which is not in its vocabulary")]
    Merge {
        /// The number of the merge, from 0.
        number: usize,
        /// The token.
        token: String,
    },
    /// The added tokens are too large to look for.
    #[error("the added tokens cannot be made into one automaton")]
    AddedTokens(#[source] aho_corasick::BuildError),
    /// The crate `tokenizers` refuses the file.
    #[error("the crate `tokenizers` refuses the tokenizer.json: {0}")]
    Fallback(String),
    /// The file needs the crate `tokenizers`, which this build lacks.
    #[error("the tokenizer.json needs the feature `fallback` of shardd-tokens: {0}")]
    NotNative(String),
}

/// A text that does not become tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The text is longer than 4 GiB. Cut it into documents.
    #[error("a text of {bytes} bytes; at most {} can be encoded at once", u32::MAX - 1)]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The crate `tokenizers` refuses the text.
    #[error("the crate `tokenizers` refuses the text: {0}")]
    Fallback(String),
}

/// Tokens that do not become bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The tokenizer has no such token.
    #[error("token {id} at place {place} is not in the vocabulary, of which the largest id is below {size}")]
    Token {
        /// The id.
        id: u32,
        /// Where it stands, from 0.
        place: usize,
        /// `Tokenizer::vocabulary_size`.
        size: usize,
    },
    /// The crate `tokenizers` refuses the tokens.
    #[error("the crate `tokenizers` refuses the tokens: {0}")]
    Fallback(String),
}
