//! A tokenizer: read from a file, then shared by any number of threads.

use std::borrow::Cow;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::encoder::Encoder;
use crate::error::{DecodeError, EncodeError, FileError};
#[cfg(feature = "fallback")]
use crate::fallback::Fallback;
use crate::json::{self, Read};
use crate::native::Core;
use crate::ranks::{self, Ranks};

/// A tokenizer that nothing changes any more. A clone shares the tables.
///
/// The methods that encode make an [`Encoder`] for one call. Keep an encoder in each thread to encode many texts: its
/// cache is much of the speed.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) enum Inner {
    Native(Box<Core>),
    #[cfg(feature = "fallback")]
    Fallback(Fallback),
}

/// What becomes of special tokens.
///
/// ```
/// use shardd_tokens::Specials;
/// assert_eq!(Specials::default(), Specials::TEXT);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Specials {
    /// The text of a special token becomes that token. Otherwise it is text like any other, and becomes several tokens.
    ///
    /// Added tokens that are not special are found in both cases.
    pub parse: bool,
    /// The tokens of the template, such as BOS and EOS, are put around the tokens of the text.
    pub template: bool,
}

impl Specials {
    /// All is text: `encode_ordinary` of tiktoken. Choose it for text from outside, which must not steer the model.
    pub const TEXT: Self = Self { parse: false, template: false };
    /// Special tokens are found, and none is added: `encode` of Hugging Face with `add_special_tokens=False`.
    pub const PARSE: Self = Self { parse: true, template: false };
    /// Special tokens are found, and those of the template added: `encode` of Hugging Face.
    pub const PARSE_AND_TEMPLATE: Self = Self { parse: true, template: true };
    /// All is text, with the tokens of the template around it.
    pub const TEMPLATE: Self = Self { parse: false, template: true };
}

impl Tokenizer {
    /// Reads a `tokenizer.json` or a rank file of tiktoken.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, and as [`Tokenizer::from_bytes`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref();
        let file = fs::read(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
        Self::from_bytes(&file)
    }

    /// Reads the bytes of a `tokenizer.json`, or of a rank file of tiktoken: lines of a token in base64, a space, and its
    /// rank. A rank file has neither pattern nor special tokens. They are those of the known encoding that has these
    /// tokens; of o200k_base and o200k_harmony, which share their ranks, the former.
    ///
    /// Truncation and padding of a `tokenizer.json` are left out: they are for batches.
    ///
    /// # Errors
    ///
    /// If the file is neither, lacks tokens, is a rank file of no known encoding, or needs the feature `fallback`.
    pub fn from_bytes(file: &[u8]) -> Result<Self, FileError> {
        let is_json = file.trim_ascii_start().starts_with(b"{");
        if is_json { Self::from_json(file) } else { Self::from_core(ranks::read(file, None)?) }
    }

    /// Reads a rank file with a pattern and special tokens of the caller's choice, such as those of an
    /// [`Encoding`](crate::Encoding).
    ///
    /// # Errors
    ///
    /// If the file is no rank file, or lacks the token of a byte.
    pub fn from_ranks(file: &[u8], ranks: impl Into<Ranks>) -> Result<Self, FileError> {
        Self::from_core(ranks::read(file, Some(ranks.into()))?)
    }

    fn from_core(core: Core) -> Result<Self, FileError> {
        Ok(Self { inner: Arc::new(Inner::Native(Box::new(core))) })
    }

    fn from_json(file: &[u8]) -> Result<Self, FileError> {
        let text = std::str::from_utf8(file)
            .map_err(|error| FileError::Unknown { reason: format!("the JSON is no UTF-8: {error}") })?;
        let inner = match json::read(text)? {
            Read::Native(core) => Inner::Native(core),
            #[cfg(feature = "fallback")]
            Read::Foreign(reason) => Inner::Fallback(Fallback::new(file, reason)?),
            #[cfg(not(feature = "fallback"))]
            Read::Foreign(reason) => return Err(FileError::NotNative(reason)),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether the own path encodes, and not the crate `tokenizers`.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.fallback_reason().is_none()
    }

    /// The part of the file that only the crate `tokenizers` can carry out, if there is one.
    #[must_use]
    pub fn fallback_reason(&self) -> Option<&str> {
        match &*self.inner {
            Inner::Native(_) => None,
            #[cfg(feature = "fallback")]
            Inner::Fallback(fallback) => Some(&fallback.reason),
        }
    }

    /// An encoder for one thread, with a cache of its own.
    #[must_use]
    pub fn encoder(&self) -> Encoder {
        Encoder::new(self.clone())
    }

    /// Appends the tokens of `text` to `out`.
    ///
    /// # Errors
    ///
    /// If the text is longer than 4 GiB, or the crate `tokenizers` refuses it. Then `out` is as before.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>, specials: Specials) -> Result<(), EncodeError> {
        self.encoder().encode(text, out, specials)
    }

    /// Appends the tokens of `text` to `ids`, and the range of bytes that each one comes from to `offsets`.
    ///
    /// The ranges are those of Hugging Face, in bytes: a token that has a part of a character has the range of all of it,
    /// and a token of the template has the range `0..0`.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode`].
    pub fn encode_with_offsets(
        &self,
        text: &str,
        ids: &mut Vec<u32>,
        offsets: &mut Vec<Range<usize>>,
        specials: Specials,
    ) -> Result<(), EncodeError> {
        self.encoder().encode_with_offsets(text, ids, offsets, specials)
    }

    /// How many tokens `text` has.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode`].
    pub fn count(&self, text: &str, specials: Specials) -> Result<usize, EncodeError> {
        self.encoder().count(text, specials)
    }

    /// The bytes of tokens, one after another; special tokens with their text. They need not be UTF-8, as a token may
    /// have a part of a character.
    ///
    /// # Errors
    ///
    /// If an id is not in the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>, DecodeError> {
        match &*self.inner {
            Inner::Native(core) => core.decode(ids),
            #[cfg(feature = "fallback")]
            Inner::Fallback(fallback) => fallback.decode(ids),
        }
    }

    /// One more than the largest id: the rows that an embedding needs.
    #[must_use]
    pub fn vocabulary_size(&self) -> usize {
        match &*self.inner {
            Inner::Native(core) => core.size(),
            #[cfg(feature = "fallback")]
            Inner::Fallback(fallback) => fallback.size(),
        }
    }

    /// The id of a token, by its bytes; in a fallback by its name in the file.
    #[must_use]
    pub fn token_to_id(&self, token: impl AsRef<[u8]>) -> Option<u32> {
        match &*self.inner {
            Inner::Native(core) => core.id(token.as_ref()),
            #[cfg(feature = "fallback")]
            Inner::Fallback(fallback) => fallback.id(token.as_ref()),
        }
    }

    /// The bytes of a token; in a fallback its name in the file.
    #[must_use]
    pub fn id_to_token(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        match &*self.inner {
            Inner::Native(core) => core.token(id).map(Cow::Borrowed),
            #[cfg(feature = "fallback")]
            Inner::Fallback(fallback) => fallback.token(id).map(Cow::Owned),
        }
    }
}

#[cfg(test)]
mod tests;
