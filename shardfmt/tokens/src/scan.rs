//! Pre-tokenizers by hand: each finds the end of the next match of one regex, in linear time.
//!
//! Every function here takes a text that is valid UTF-8, and positions at boundaries of characters.

mod gpt2;
mod llama;
mod o200k;
mod pattern;
mod splitter;
mod symbols;

pub(crate) use gpt2::Gpt2;
pub(crate) use llama::Llama;
pub(crate) use o200k::O200k;
pub use pattern::Pattern;
pub(crate) use splitter::{Splitter, Stage, Words};
pub(crate) use symbols::DeepSeek;

use crate::classes::{ASCII, Classes, LETTER, LOWER, NEWLINE, NUMBER, SPACE};

/// Cuts a text into words, each of which is a match of a regex.
pub(crate) trait Scan {
    /// The end of the word that starts at `at`: more than `at`, and at most the length of the text.
    fn next(&self, text: Text<'_>, at: usize) -> usize;
}

/// A text beside the classes of its characters.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    pub(crate) bytes: &'a [u8],
    classes: &'static Classes,
}

/// How the end of a run of white space is found, in the order of the alternatives of a regex.
#[derive(Clone, Copy)]
pub(crate) struct Blanks {
    /// `\s++$` comes first: a run that ends the text is one word.
    pub(crate) whole_tail: bool,
    /// `\s*[\r\n]+` comes before `\s+(?!\S)|\s+`.
    pub(crate) newlines: bool,
}

impl<'a> Text<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { bytes: text.as_bytes(), classes: Classes::shared() }
    }

    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.bytes.len()
    }

    #[inline(always)]
    pub(crate) fn byte(self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    /// Class and length in bytes of the character at `at`. The end of the text is a space of length 0.
    #[inline(always)]
    pub(crate) fn class(self, at: usize) -> (u8, usize) {
        match self.byte(at) {
            Some(byte) if byte < 0x80 => (ASCII[usize::from(byte)], 1),
            Some(_) => self.wide_class(at),
            None => (SPACE, 0),
        }
    }

    fn wide_class(self, at: usize) -> (u8, usize) {
        let (c, length) = self.character(at);
        (self.classes.of(c), length)
    }

    /// Code point and length in bytes of the character at `at`.
    #[inline(always)]
    pub(crate) fn character(self, at: usize) -> (u32, usize) {
        let bits = |byte: u8| u32::from(byte & 0x3f);
        match self.bytes[at..] {
            [a, ..] if a < 0x80 => (a.into(), 1),
            [a, b, ..] if a < 0xe0 => (u32::from(a & 0x1f) << 6 | bits(b), 2),
            [a, b, c, ..] if a < 0xf0 => (u32::from(a & 0xf) << 12 | bits(b) << 6 | bits(c), 3),
            [a, b, c, d, ..] => (u32::from(a & 7) << 18 | bits(b) << 12 | bits(c) << 6 | bits(d), 4),
            ref cut => (0xfffd, cut.len()),
        }
    }

    /// The end of the run from `at` of characters with one of the bits `any`.
    #[inline(always)]
    pub(crate) fn run(self, mut at: usize, any: u8) -> usize {
        while let Some(byte) = self.byte(at) {
            let (class, length) =
                if byte < 0x80 { (ASCII[usize::from(byte)], 1) } else { self.wide_class(at) };
            if class & any == 0 {
                break;
            }
            at += length;
        }
        at
    }

    /// The end of the run from `at` of characters with none of the bits `not`.
    #[inline(always)]
    pub(crate) fn run_without(self, mut at: usize, not: u8) -> usize {
        while let Some(byte) = self.byte(at) {
            let (class, length) =
                if byte < 0x80 { (ASCII[usize::from(byte)], 1) } else { self.wide_class(at) };
            if class & not != 0 {
                break;
            }
            at += length;
        }
        at
    }

    /// As `run`, for bits that all ASCII letters have and no other ASCII character: eight at a time.
    #[inline(always)]
    pub(crate) fn letters(self, at: usize, any: u8) -> usize {
        debug_assert!(any & LETTER != 0);
        self.run_by_eight(at, any, ascii_letters)
    }

    /// As `run`, for `LOWER`.
    #[inline(always)]
    pub(crate) fn lowers(self, at: usize) -> usize {
        self.run_by_eight(at, LOWER, ascii_lowers)
    }

    #[inline(always)]
    fn run_by_eight(self, mut at: usize, any: u8, ascii: impl Fn(u64) -> usize) -> usize {
        while let Some(eight) = self.eight(at) {
            let length = ascii(eight);
            at += length;
            if length == 8 {
                continue;
            }
            if self.byte(at).is_none_or(|byte| byte < 0x80) {
                return at;
            }
            let (class, length) = self.wide_class(at);
            if class & any == 0 {
                return at;
            }
            at = self.wide_run(at + length, any);
        }
        self.run(at, any)
    }

    /// The end of the run from `at` of characters that are not ASCII and have one of the bits `any`.
    #[inline(always)]
    fn wide_run(self, mut at: usize, any: u8) -> usize {
        while self.byte(at).is_some_and(|byte| byte >= 0x80) {
            let (class, length) = self.wide_class(at);
            if class & any == 0 {
                break;
            }
            at += length;
        }
        at
    }

    /// Eight bytes from `at`, the first one lowest.
    #[inline(always)]
    fn eight(self, at: usize) -> Option<u64> {
        let bytes = self.bytes.get(at..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    }

    /// The end of one to `most` numbers, of which the first one starts at `at` and ends at `end`.
    #[inline(always)]
    pub(crate) fn numbers(self, mut end: usize, most: usize) -> usize {
        for _ in 1..most {
            let (class, length) = self.class(end);
            if class & NUMBER == 0 {
                break;
            }
            end += length;
        }
        end
    }

    /// The end of `['][sdmt]|['](?:ll|ve|re)` at `at`, if there is one; with `fold` also in capitals.
    ///
    /// `s` has a third form, ſ (U+017F), that equals it without regard to case.
    #[inline(always)]
    pub(crate) fn contraction(self, at: usize, fold: bool) -> Option<usize> {
        if self.byte(at) != Some(b'\'') {
            return None;
        }
        let case = if fold { 0x20 } else { 0 };
        match self.byte(at + 1)? | case {
            b's' | b'd' | b'm' | b't' => Some(at + 2),
            b'l' if self.byte(at + 2)? | case == b'l' => Some(at + 3),
            b'v' | b'r' if self.byte(at + 2)? | case == b'e' => Some(at + 3),
            _ if fold && self.bytes[at + 1..].starts_with("ſ".as_bytes()) => Some(at + 3),
            _ => None,
        }
    }

    /// The end of the word of white space that starts at `at`, where there is some.
    pub(crate) fn blanks(self, at: usize, rules: Blanks) -> usize {
        let (mut end, mut last, mut newline) = (at, 0, None);
        loop {
            let (class, length) = self.class(end);
            if class & SPACE == 0 || length == 0 {
                break;
            }
            (end, last) = (end + length, length);
            if class & NEWLINE != 0 {
                newline = Some(end);
            }
        }
        let tail = end == self.len();
        match newline {
            _ if tail && rules.whole_tail => end,
            Some(newline) if rules.newlines => newline,
            _ if tail || end - last == at => end,
            _ => end - last,
        }
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x80 * ONES;

/// How many of the eight bytes, from the lowest, are ASCII letters.
#[inline(always)]
fn ascii_letters(eight: u64) -> usize {
    // Setting bit 5 makes capitals small, and no other character a small letter.
    between(eight | (0x20 * ONES), eight)
}

/// How many of the eight bytes, from the lowest, are small ASCII letters.
#[inline(always)]
fn ascii_lowers(eight: u64) -> usize {
    between(eight, eight)
}

/// How many bytes, from the lowest, are ASCII in `eight` and between `a` and `z` in `folded`.
#[inline(always)]
fn between(folded: u64, eight: u64) -> usize {
    let seven = folded & !HIGH;
    // Seven bits plus less than 128: no byte carries into the next one.
    let from_a = seven.wrapping_add(u64::from(0x80 - b'a') * ONES);
    let past_z = seven.wrapping_add(u64::from(0x7f - b'z') * ONES);
    let inside = from_a & !past_z & !eight & HIGH;
    ((inside ^ HIGH).trailing_zeros() / 8) as usize
}

#[cfg(test)]
mod tests;
