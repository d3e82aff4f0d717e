//! An encoder: a tokenizer with the cache and the memory of one thread.

use std::ops::Range;

use crate::cache::Cache;
use crate::error::EncodeError;
use crate::merges::Scratch;
use crate::sink::{Count, Ids, Offsets};
use crate::tokenizer::{Inner, Specials, Tokenizer};

/// Encodes texts one after another.
///
/// It remembers the tokens of words in at most 14 MiB. That makes it fast, and changes no result: encoders with any
/// history give the same tokens. It holds no lock.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_tokens::{Specials, Tokenizer};
///
/// let tokenizer = Tokenizer::from_file("tokenizer.json")?;
/// let mut encoder = tokenizer.encoder();
/// let mut ids = Vec::new();
/// for document in ["One.", "Two."] {
///     ids.clear();
///     encoder.encode(document, &mut ids, Specials::PARSE_AND_TEMPLATE)?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Encoder {
    tokenizer: Tokenizer,
    cache: Cache,
    scratch: Scratch,
}

impl Encoder {
    pub(crate) fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, cache: Cache::new(), scratch: Scratch::default() }
    }

    /// The tokenizer of this encoder.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Appends the tokens of `text` to `out`.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode`].
    pub fn encode(&mut self, text: &str, out: &mut Vec<u32>, specials: Specials) -> Result<(), EncodeError> {
        check_length(text)?;
        match &*self.tokenizer.inner {
            Inner::Native(core) => {
                core.encode(text, specials, &mut self.cache, &mut self.scratch, &mut Ids(out));
            }
            #[cfg(feature = "fallback")]
            Inner::Fallback(fallback) => out.append(&mut fallback.encode(text, specials)?),
        }
        Ok(())
    }

    /// Appends the tokens of `text` to `ids`, and the range of bytes that each one comes from to `offsets`, as
    /// [`Tokenizer::encode_with_offsets`] does.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode`].
    pub fn encode_with_offsets(
        &mut self,
        text: &str,
        ids: &mut Vec<u32>,
        offsets: &mut Vec<Range<usize>>,
        specials: Specials,
    ) -> Result<(), EncodeError> {
        check_length(text)?;
        match &*self.tokenizer.inner {
            Inner::Native(core) => {
                let mut sink = Offsets { core, ids, offsets, count: 0 };
                core.encode(text, specials, &mut self.cache, &mut self.scratch, &mut sink);
            }
            #[cfg(feature = "fallback")]
            Inner::Fallback(fallback) => {
                let (mut more_ids, mut more_offsets) = fallback.encode_with_offsets(text, specials)?;
                ids.append(&mut more_ids);
                offsets.append(&mut more_offsets);
            }
        }
        Ok(())
    }

    /// How many tokens `text` has. Memory does not grow with the text.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode`].
    pub fn count(&mut self, text: &str, specials: Specials) -> Result<usize, EncodeError> {
        check_length(text)?;
        match &*self.tokenizer.inner {
            Inner::Native(core) => {
                let mut count = Count(0);
                core.encode(text, specials, &mut self.cache, &mut self.scratch, &mut count);
                Ok(count.0)
            }
            #[cfg(feature = "fallback")]
            Inner::Fallback(fallback) => Ok(fallback.encode(text, specials)?.len()),
        }
    }
}

/// Places in a word are kept in 32 bits.
fn check_length(text: &str) -> Result<(), EncodeError> {
    if text.len() >= u32::MAX as usize { Err(EncodeError::TooLong { bytes: text.len() }) } else { Ok(()) }
}
