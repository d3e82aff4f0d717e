//! Makes tokens of text: with a tokenizer of Hugging Face or of tiktoken, or the bytes as they are. Knows nothing of documents'
//! order or of sequences.

use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use arrow::datatypes::DataType;
use shardd_tokens::{EncodeError, Encoder, Specials};
use shardfmt::InputDigest;
use shardfmt::digest::Digest;

use super::caught;
use crate::IngestError;
use crate::error::one_line;
use crate::input::InputFile;

const LARGEST_FILE: u64 = 256 << 20;
/// The bytes tokenized at a time: a tokenizer takes a hundred times as much memory. Longer documents are cut.
pub(super) const STRETCH: usize = 256 << 10;
/// Texts of which every tokenizer makes some token, to see the tokens it puts around it.
const PROBES: [&str; 3] = ["a", "the", "0"];

/// A tokenizer, and the tokens it puts around each document.
pub(super) struct Tokenizer {
    inner: shardd_tokens::Tokenizer,
    /// Encoders that no thread uses: what each remembers of words makes it fast.
    idle: Mutex<Vec<Encoder>>,
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
    /// The largest token there is.
    pub(super) largest: u32,
    pub(super) input: InputDigest,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tokenizer").field(&self.input.name).finish()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, or ranks of tiktoken.
    pub(super) fn read(file: &InputFile) -> Result<Tokenizer, IngestError> {
        let bytes = file.read_all(LARGEST_FILE)?;
        let input =
            InputDigest { name: file.name.clone(), bytes: bytes.len() as u64, digest: Digest::of(&bytes) };
        Self::parse(&bytes, input).map_err(|reason| refused(&file.path, &reason))
    }

    fn parse(bytes: &[u8], input: InputDigest) -> Result<Tokenizer, String> {
        let inner = caught(|| shardd_tokens::Tokenizer::from_bytes(bytes)).ok_or(GAVE_UP)?;
        let inner = inner.map_err(one_line)?;
        let largest = inner.vocabulary_size().checked_sub(1).ok_or("it knows no token")? as u32;
        let (before, after, idle) = (Vec::new(), Vec::new(), Mutex::default());
        let mut tokenizer = Tokenizer { inner, idle, before, after, largest, input };
        for probe in PROBES {
            let (plain, full) = (tokenizer.ids(probe, false)?, tokenizer.ids(probe, true)?);
            if plain.is_empty() {
                continue;
            }
            let start = full.windows(plain.len()).position(|part| part == plain);
            let start = start.ok_or("it changes the tokens of a text when it adds special ones")?;
            tokenizer.before = full[..start].to_vec();
            tokenizer.after = full[start + plain.len()..].to_vec();
            return Ok(tokenizer);
        }
        Err(format!("it makes no token of {:?}", PROBES[0]))
    }

    /// The tokens of a part of a document.
    pub(super) fn encode(&self, text: &[u8]) -> Result<Vec<u32>, String> {
        let text = std::str::from_utf8(text).map_err(|_| "is not UTF-8")?;
        let ids = self.ids(text, false)?;
        self.check(&ids)?;
        Ok(ids)
    }

    /// The tokens of a text that has the special tokens around it already, and the bytes of the text that each comes from.
    pub(super) fn with_places(&self, text: &str) -> Result<(Vec<u32>, Vec<Range<usize>>), String> {
        let (mut ids, mut places) = (Vec::new(), Vec::new());
        let mut start = 0;
        while start < text.len() {
            let part = &text[start..];
            let part = stretch(part.as_bytes()).map_or(part, |at| &part[..at]);
            let known = places.len();
            self.with_encoder(|encoder| {
                encoder.encode_with_offsets(part, &mut ids, &mut places, Specials::PARSE)
            })?;
            for place in &mut places[known..] {
                *place = start + place.start..start + place.end;
            }
            start += part.len();
        }
        self.check(&ids)?;
        Ok((ids, places))
    }

    /// Refuses tokens that have no place in the vocabulary.
    fn check(&self, ids: &[u32]) -> Result<(), String> {
        match ids.iter().find(|&&id| id > self.largest) {
            Some(id) => Err(format!("has token {id}, which is not in the vocabulary")),
            None => Ok(()),
        }
    }

    /// The tokens of a whole document.
    pub(super) fn document(&self, mut text: &[u8]) -> Result<Vec<u32>, String> {
        let mut tokens = self.before.clone();
        while let Some(at) = stretch(text) {
            let (part, rest) = text.split_at(at);
            tokens.append(&mut self.encode(part)?);
            text = rest;
        }
        tokens.append(&mut self.encode(text)?);
        tokens.extend_from_slice(&self.after);
        Ok(tokens)
    }

    fn ids(&self, text: &str, with_special: bool) -> Result<Vec<u32>, String> {
        let specials = if with_special { Specials::PARSE_AND_TEMPLATE } else { Specials::PARSE };
        let mut ids = Vec::new();
        self.with_encoder(|encoder| encoder.encode(text, &mut ids, specials))?;
        Ok(ids)
    }

    fn with_encoder(
        &self,
        encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> Result<(), String> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut encoder = idle().pop().unwrap_or_else(|| self.inner.encoder());
        let encoded = caught(|| encode(&mut encoder)).ok_or(GAVE_UP)?;
        encoded.map_err(|error| format!("cannot be tokenized ({})", one_line(error)))?;
        idle().push(encoder);
        Ok(())
    }
}

/// The smallest type of the tokens of a tokenizer, or of bytes.
pub(super) fn token_type(tokenizer: Option<&Tokenizer>) -> DataType {
    match tokenizer.map_or(0, |tokenizer| tokenizer.largest) {
        0..=0xff => DataType::UInt8,
        0x100..=0xffff => DataType::UInt16,
        _ => DataType::UInt32,
    }
}

const GAVE_UP: &str = "the tokenizer gave up";

fn refused(path: &Path, reason: &str) -> IngestError {
    IngestError::Config {
        setting: "tokenizer",
        reason: format!("{}: {}", path.display(), one_line(reason)),
        way_out: "give a tokenizer.json of Hugging Face, or ranks of tiktoken",
    }
}

/// Where to cut a long document so that common tokenizers make the same tokens of the parts as of the whole: where a line
/// begins, or before a space, between two characters that are not blank. `None` for what need not be cut.
pub(super) fn stretch(text: &[u8]) -> Option<usize> {
    if text.len() <= STRETCH {
        return None;
    }
    let is_text = |index: usize| text.get(index).is_some_and(|byte| !byte.is_ascii_whitespace());
    let places = || (STRETCH / 2..STRETCH).rev();
    let line = places().find(|&at| text[at - 1] == b'\n' && is_text(at - 2) && is_text(at));
    let space = || places().find(|&at| text[at] == b' ' && is_text(at - 1) && is_text(at + 1));
    let character = || places().find(|&at| text[at] & 0xc0 != 0x80);
    Some(line.or_else(space).or_else(character).unwrap_or(STRETCH))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(mut text: &[u8]) -> Vec<&[u8]> {
        let mut parts = Vec::new();
        while let Some(at) = stretch(text) {
            let (part, rest) = text.split_at(at);
            parts.push(part);
            text = rest;
        }
        parts.push(text);
        parts
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn long_documents_are_cut_between_characters_and_lose_nothing(words in prop::collection::vec("[a-zé€𝄞]{1,9}[ \\n]{0,2}", 1..9), copies in 1..60_000usize) {
            let text = words.concat().repeat(copies);
            let parts = cut(text.as_bytes());
            prop_assert_eq!(parts.concat(), text.as_bytes());
            for part in parts {
                prop_assert!(part.len() <= STRETCH && std::str::from_utf8(part).is_ok());
            }
        }
    }

    #[test]
    fn a_cut_is_where_a_line_begins_if_there_is_one() {
        let text = "one two\nthree\n\nfour ".repeat(STRETCH / 8);
        let parts = cut(text.as_bytes());
        assert!(parts.len() > 2);
        assert!(parts[..parts.len() - 1].iter().all(|part| part.ends_with(b"two\n")));
        let words = "one two ".repeat(STRETCH / 4);
        let parts = cut(words.as_bytes());
        assert!(parts[1..].iter().all(|part| part.starts_with(b" ")));
    }
}
