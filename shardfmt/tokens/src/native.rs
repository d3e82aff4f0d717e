//! The own path: all parts of a byte-level tokenizer, and their use on one text.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::Specials;
use crate::added::{AddedToken, Finder, Part};
use crate::cache::{self, Cache};
use crate::error::{DecodeError, FileError};
use crate::json::template::{Template, Trim};
use crate::merges::{Merge, Merges, Scratch};
use crate::normal::{compose, composed};
use crate::scan::{Splitter, Text, Words};
use crate::sink::{Sink, Word};
use crate::vocabulary::Vocabulary;

/// Merging a word of more bytes leaves so much memory behind that it is given back.
const KEPT_WORD: usize = 1 << 20;

/// The parts that a file describes. Ids and ranks are in the range of [`crate::merges`].
#[derive(Debug)]
pub(crate) struct Parts {
    /// The token of each byte.
    pub(crate) bytes: [u32; 256],
    pub(crate) merges: Vec<Merge>,
    pub(crate) vocabulary: Vocabulary,
    /// A word that is a token needs no merges.
    pub(crate) whole_words: bool,
    pub(crate) splitter: Splitter,
    /// Text is brought into form C.
    pub(crate) compose: bool,
    pub(crate) added: Vec<AddedToken>,
    pub(crate) template: Template,
    pub(crate) trim: Option<Trim>,
}

/// A byte-level tokenizer that is ready for use.
#[derive(Debug)]
pub(crate) struct Core {
    merges: Merges,
    vocabulary: Vocabulary,
    whole_words: bool,
    splitter: Splitter,
    compose: bool,
    /// Added tokens that are looked for in the text as it is, and in the normalized text.
    literal: Finder,
    normalized: Finder,
    added_ids: HashMap<String, u32>,
    added_contents: BTreeMap<u32, String>,
    template: Template,
    pub(crate) trim: Option<Trim>,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Result<Self, FileError> {
        let form = |content: &str| if parts.compose { composed(content) } else { content.to_owned() };
        let added = || parts.added.iter().filter(|token| !token.content.is_empty());
        let added_ids = added().map(|token| (token.content.clone(), token.id)).collect();
        let added_contents = added().map(|token| (token.id, token.content.clone())).collect();
        let (normalized, literal): (Vec<_>, Vec<_>) = added().cloned().partition(|token| token.normalized);
        Ok(Self {
            literal: Finder::new(literal, str::to_owned)?,
            normalized: Finder::new(normalized, form)?,
            merges: Merges::new(parts.bytes, &parts.merges),
            vocabulary: parts.vocabulary,
            whole_words: parts.whole_words,
            splitter: parts.splitter,
            compose: parts.compose,
            added_ids,
            added_contents,
            template: parts.template,
            trim: parts.trim,
        })
    }

    /// Hands the tokens of `text` to `sink`.
    pub(crate) fn encode<S: Sink>(
        &self,
        text: &str,
        specials: Specials,
        cache: &mut Cache,
        scratch: &mut Scratch,
        sink: &mut S,
    ) {
        if specials.template {
            sink.template(&self.template.before);
        }
        let mut run = Run { core: self, cache, scratch, sink: &mut *sink };
        self.literal.split(text, specials.parse, |part| match part {
            Part::Token(id, range) => run.sink.added(id, range.clone(), &text[range]),
            Part::Text(range) => run.text(&text[range.clone()], range.start, specials),
        });
        if specials.template {
            sink.template(&self.template.after);
        }
    }

    /// Puts the tokens of `word` into `scratch`.
    fn encode_word(&self, word: &[u8], scratch: &mut Scratch) {
        let whole = if self.whole_words { self.vocabulary.id(word) } else { None };
        match whole {
            Some(id) => {
                scratch.ids.clear();
                scratch.ids.push(id);
            }
            None => self.merges.encode(word, scratch),
        }
    }

    pub(crate) fn decode(&self, ids: &[u32]) -> Result<Vec<u8>, DecodeError> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for (place, &id) in ids.iter().enumerate() {
            let unknown = DecodeError::Token { id, place, size: self.size() };
            bytes.extend_from_slice(self.token(id).ok_or(unknown)?);
        }
        Ok(bytes)
    }

    pub(crate) fn token(&self, id: u32) -> Option<&[u8]> {
        let added = self.added_contents.get(&id).map(String::as_bytes);
        added.or_else(|| self.vocabulary.token(id))
    }

    /// The bytes of a token of the model.
    pub(crate) fn model_token(&self, id: u32) -> &[u8] {
        self.vocabulary.token(id).unwrap_or_default()
    }

    pub(crate) fn id(&self, token: &[u8]) -> Option<u32> {
        let added = std::str::from_utf8(token).ok().and_then(|token| self.added_ids.get(token).copied());
        added.or_else(|| self.vocabulary.id(token))
    }

    /// One more than the largest id.
    pub(crate) fn size(&self) -> usize {
        let added = self.added_contents.last_key_value().map_or(0, |(&id, _)| id as usize + 1);
        self.vocabulary.size().max(added)
    }
}

/// The encoding of one text.
struct Run<'r, S> {
    core: &'r Core,
    cache: &'r mut Cache,
    scratch: &'r mut Scratch,
    sink: &'r mut S,
}

impl<S: Sink> Run<'_, S> {
    /// Encodes a part of the text, which starts at `base`, between the added tokens that are looked for in the text as
    /// it is.
    fn text(&mut self, text: &str, base: usize, specials: Specials) {
        let composed = if self.core.compose { compose(text, S::OFFSETS) } else { None };
        let (text, origins) = match &composed {
            Some(composed) => (&composed.text[..], S::OFFSETS.then_some(&composed.origins[..])),
            None => (text, None),
        };
        let core = self.core;
        core.normalized.split(text, specials.parse, |part| match part {
            Part::Token(id, range) => {
                let whole = Word { bytes: text.as_bytes(), start: 0, base, origins };
                self.sink.added(id, whole.place(range.start, range.end), &text[range]);
            }
            Part::Text(range) => {
                let origins = origins.map(|origins| &origins[range.clone()]);
                let base = if origins.is_some() { base } else { base + range.start };
                core.splitter.split(&text[range], &mut Piece { run: self, base, origins });
            }
        });
    }
}

/// A part of the normalized text between added tokens.
struct Piece<'p, 'r, S> {
    run: &'p mut Run<'r, S>,
    /// The place in the original text from which places count.
    base: usize,
    /// The ranges of the original text behind each byte, from `base`; none where they are the bytes themselves.
    origins: Option<&'p [Range<usize>]>,
}

impl<S: Sink> Words for Piece<'_, '_, S> {
    #[inline(always)]
    fn word(&mut self, text: Text<'_>, start: usize, end: usize) {
        let place = Word { bytes: text.bytes, start, base: self.base, origins: self.origins };
        if end - start > cache::SHORT {
            return self.run.long_word(&text.bytes[start..end], place);
        }
        let key = cache::key(text.bytes, start, end);
        if let Some(known) = self.run.cache.get(key) {
            return self.run.sink.few(known.ids, known.count as usize, place);
        }
        self.run.new_word(&text.bytes[start..end], key, place);
    }
}

impl<S: Sink> Run<'_, S> {
    /// A word of up to [`cache::SHORT`] bytes that is not in the table of such words.
    #[cold]
    #[inline(never)]
    fn new_word(&mut self, word: &[u8], key: cache::Key, place: Word<'_>) {
        if let Some(ids) = self.cache.long.get(word) {
            return self.sink.tokens(ids, place);
        }
        self.core.encode_word(word, self.scratch);
        let ids = &self.scratch.ids;
        if ids.len() <= cache::INLINE {
            self.cache.insert(key, ids);
        } else {
            self.cache.long.insert(word, ids);
        }
        self.sink.tokens(ids, place);
    }

    #[inline(never)]
    fn long_word(&mut self, word: &[u8], place: Word<'_>) {
        if let Some(ids) = self.cache.long.get(word) {
            return self.sink.tokens(ids, place);
        }
        self.core.encode_word(word, self.scratch);
        if word.len() <= cache::LONGEST {
            self.cache.long.insert(word, &self.scratch.ids);
        }
        self.sink.tokens(&self.scratch.ids, place);
        if word.len() > KEPT_WORD {
            *self.scratch = Scratch::default();
        }
    }
}
