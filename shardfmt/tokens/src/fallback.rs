//! Files that the own path cannot carry out, by the crate `tokenizers`.

mod bounds;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use tokenizers::Tokenizer as Foreign;

use crate::Specials;
use crate::error::{DecodeError, EncodeError, FileError};

/// A tokenizer of the crate `tokenizers`, without truncation and padding.
#[derive(Debug)]
pub(crate) struct Fallback {
    parsing: Box<Foreign>,
    /// The same, with special tokens as text: made when it is first asked for.
    literal: OnceLock<Box<Foreign>>,
    pub(crate) reason: String,
}

impl Fallback {
    pub(crate) fn new(file: &[u8], reason: String) -> Result<Self, FileError> {
        let refused = |error: tokenizers::Error| FileError::Fallback(error.to_string());
        bounds::check(&serde_json::from_slice(file)?).map_err(FileError::Fallback)?;
        let mut parsing = guarded(|| Foreign::from_bytes(file)).map_err(refused)?;
        parsing.with_truncation(None).map_err(refused)?;
        parsing.with_padding(None);
        Ok(Self { parsing: Box::new(parsing), literal: OnceLock::new(), reason })
    }

    pub(crate) fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, EncodeError> {
        let encoding = guarded(|| self.of(specials).encode_fast(text, specials.template)).map_err(refused)?;
        Ok(encoding.get_ids().to_vec())
    }

    pub(crate) fn encode_with_offsets(
        &self,
        text: &str,
        specials: Specials,
    ) -> Result<(Vec<u32>, Vec<Range<usize>>), EncodeError> {
        let encoding = guarded(|| self.of(specials).encode(text, specials.template)).map_err(refused)?;
        let offsets = encoding.get_offsets().iter().map(|&(start, end)| start..end).collect();
        Ok((encoding.get_ids().to_vec(), offsets))
    }

    pub(crate) fn decode(&self, ids: &[u32]) -> Result<Vec<u8>, DecodeError> {
        if let Some((place, &id)) = ids.iter().enumerate().find(|(_, id)| self.token(**id).is_none()) {
            return Err(DecodeError::Token { id, place, size: self.size() });
        }
        let text = guarded(|| self.parsing.decode(ids, false));
        text.map(String::into_bytes).map_err(|error| DecodeError::Fallback(error.to_string()))
    }

    pub(crate) fn token(&self, id: u32) -> Option<Vec<u8>> {
        self.parsing.id_to_token(id).map(String::into_bytes)
    }

    pub(crate) fn id(&self, token: &[u8]) -> Option<u32> {
        self.parsing.token_to_id(std::str::from_utf8(token).ok()?)
    }

    pub(crate) fn size(&self) -> usize {
        self.parsing.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }

    fn of(&self, specials: Specials) -> &Foreign {
        if specials.parse {
            return &self.parsing;
        }
        self.literal.get_or_init(|| {
            let mut literal = self.parsing.clone();
            literal.set_encode_special_tokens(true);
            literal
        })
    }
}

/// Makes an error of a panic in the crate `tokenizers`: one file must not end a program.
fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    // It keeps nothing between calls but a cache, which a panic leaves unused.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("it panicked".into()))
}

fn refused(error: tokenizers::Error) -> EncodeError {
    EncodeError::Fallback(error.to_string())
}

#[cfg(test)]
mod tests;
