//! The use of tokens as they are found: kept, counted, or kept with their places in the text.

use std::ops::Range;

use crate::cache::INLINE;
use crate::json::template::Trim;
use crate::native::Core;

/// Takes the tokens of a text from left to right.
pub(crate) trait Sink {
    /// Whether places in the original text are asked for.
    const OFFSETS: bool;

    /// The tokens of a word.
    fn tokens(&mut self, ids: &[u32], word: Word<'_>);

    /// The first `count` of `ids`, which are the tokens of a word.
    fn few(&mut self, ids: [u32; INLINE], count: usize, word: Word<'_>);

    /// An added token, the original range of its text, and its text.
    fn added(&mut self, id: u32, place: Range<usize>, text: &str);

    /// Tokens that are not in the text.
    fn template(&mut self, ids: &[u32]);
}

/// Where a word is.
#[derive(Clone, Copy)]
pub(crate) struct Word<'a> {
    /// The normalized text, and the place of the word in it.
    pub(crate) bytes: &'a [u8],
    pub(crate) start: usize,
    /// The place of the text in the original one.
    pub(crate) base: usize,
    /// The ranges of the original text behind each byte, from `base`; none where they are the bytes themselves.
    pub(crate) origins: Option<&'a [Range<usize>]>,
}

impl Word<'_> {
    /// The original range of the bytes from `from` to `to` of this word, with all of each character.
    pub(crate) fn place(self, from: usize, to: usize) -> Range<usize> {
        let (mut from, mut to) = (self.start + from, self.start + to);
        while self.continues(from) {
            from -= 1;
        }
        while self.continues(to) {
            to += 1;
        }
        match self.origins {
            None => self.base + from..self.base + to,
            Some(origins) if from < to => self.base + origins[from].start..self.base + origins[to - 1].end,
            Some(_) => self.base..self.base,
        }
    }

    /// Whether the byte at `at` is inside a character.
    fn continues(self, at: usize) -> bool {
        self.bytes.get(at).is_some_and(|byte| byte & 0xc0 == 0x80)
    }
}

/// Appends the ids to a vector.
pub(crate) struct Ids<'a>(pub(crate) &'a mut Vec<u32>);

impl Sink for Ids<'_> {
    const OFFSETS: bool = false;

    #[inline(always)]
    fn tokens(&mut self, ids: &[u32], _: Word<'_>) {
        self.0.extend_from_slice(ids);
    }

    /// Without a branch on the count: all are appended, and those that don't count are cut off.
    #[inline(always)]
    fn few(&mut self, ids: [u32; INLINE], count: usize, _: Word<'_>) {
        let length = self.0.len();
        self.0.extend_from_slice(&ids);
        self.0.truncate(length + count);
    }

    fn added(&mut self, id: u32, _: Range<usize>, _: &str) {
        self.0.push(id);
    }

    fn template(&mut self, ids: &[u32]) {
        self.0.extend_from_slice(ids);
    }
}

/// Counts the ids.
pub(crate) struct Count(pub(crate) usize);

impl Sink for Count {
    const OFFSETS: bool = false;

    #[inline(always)]
    fn tokens(&mut self, ids: &[u32], _: Word<'_>) {
        self.0 += ids.len();
    }

    #[inline(always)]
    fn few(&mut self, _: [u32; INLINE], count: usize, _: Word<'_>) {
        self.0 += count;
    }

    fn added(&mut self, _: u32, _: Range<usize>, _: &str) {
        self.0 += 1;
    }

    fn template(&mut self, ids: &[u32]) {
        self.0 += ids.len();
    }
}

/// Appends the ids and their places to two vectors.
pub(crate) struct Offsets<'a> {
    pub(crate) core: &'a Core,
    pub(crate) ids: &'a mut Vec<u32>,
    pub(crate) offsets: &'a mut Vec<Range<usize>>,
    /// How many tokens of the text came before.
    pub(crate) count: usize,
}

impl Offsets<'_> {
    /// Appends a token with `leading` and `trailing` spaces, which it loses if the tokenizer trims offsets.
    fn push(&mut self, id: u32, mut place: Range<usize>, leading: usize, trailing: usize) {
        if let Some(Trim { keep_first_space }) = self.core.trim {
            let first = self.count == 0 || place.start == 0;
            if !(first && keep_first_space && leading == 1) {
                place.start = place.end.min(place.start + leading);
            }
            if place.end >= trailing {
                place.end = place.start.max(place.end - trailing);
            }
        }
        self.count += 1;
        self.ids.push(id);
        self.offsets.push(place);
    }
}

impl Sink for Offsets<'_> {
    const OFFSETS: bool = true;

    fn tokens(&mut self, ids: &[u32], word: Word<'_>) {
        let mut from = 0;
        for &id in ids {
            let token = self.core.model_token(id);
            let to = from + token.len();
            let is_blank = |byte: &&u8| **byte == b' ';
            let leading = token.iter().take_while(is_blank).count();
            let trailing = token.iter().rev().take_while(is_blank).count();
            self.push(id, word.place(from, to), leading, trailing);
            from = to;
        }
    }

    fn few(&mut self, ids: [u32; INLINE], count: usize, word: Word<'_>) {
        self.tokens(&ids[..count], word);
    }

    fn added(&mut self, id: u32, place: Range<usize>, text: &str) {
        // Ġ is the form of a space in byte-level tokens.
        let is_blank = |c: &char| *c == 'Ġ' || c.is_whitespace();
        let leading = text.chars().take_while(is_blank).count();
        let trailing = text.chars().rev().take_while(is_blank).count();
        self.push(id, place, leading, trailing);
    }

    fn template(&mut self, ids: &[u32]) {
        self.ids.extend_from_slice(ids);
        self.offsets.extend(ids.iter().map(|_| 0..0));
    }
}
