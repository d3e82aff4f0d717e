//! The words of o200k_base (GPT-4o, gpt-oss, Llama 4): capitals begin a word, contractions stay with it.

use super::{Blanks, Scan, Text};
use crate::classes::{LETTER, LOWER, NEWLINE, NUMBER, SPACE, UPPER};

/// With `U` for `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, `W` for `[\p{Ll}\p{Lm}\p{Lo}\p{M}]` and `C` for
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`:
/// `[^\r\n\p{L}\p{N}]?U*W+C|[^\r\n\p{L}\p{N}]?U+W*C|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub(crate) struct O200k;

impl O200k {
    /// The end of `U*W+` at `at`.
    #[inline(always)]
    fn small(text: Text<'_>, at: usize) -> Option<usize> {
        let (mut end, mut both) = (at, None);
        loop {
            let (class, length) = text.class(end);
            if class & UPPER == 0 {
                // The run of U is over. If a W follows, there is nothing to give back.
                let follows = class & LOWER != 0;
                // Else U gives back all after its last character that is a W as well.
                return if follows { Some(text.lowers(end)) } else { both };
            }
            end += length;
            if class & LOWER != 0 {
                both = Some(end);
            }
        }
    }

    /// The end of `U+`, where `U*W+` has no match.
    #[inline(always)]
    fn capital(text: Text<'_>, at: usize) -> Option<usize> {
        let end = text.run(at, UPPER);
        (end > at).then_some(end)
    }

    /// The end of the two alternatives of words, without `C`.
    #[inline(always)]
    fn word(text: Text<'_>, at: usize) -> Option<usize> {
        let (class, length) = text.class(at);
        let prefixed = (class & (NEWLINE | LETTER | NUMBER) == 0).then_some(at + length);
        let starts = |of: fn(Text<'_>, usize) -> Option<usize>| {
            prefixed.and_then(|start| of(text, start)).or_else(|| of(text, at))
        };
        starts(Self::small).or_else(|| starts(Self::capital))
    }

    /// The end of `[^\s\p{L}\p{N}]+[\r\n/]*`, of which the first character ends at `end`.
    fn others(text: Text<'_>, end: usize) -> usize {
        let mut end = text.run_without(end, SPACE | LETTER | NUMBER);
        while let Some(b'\r' | b'\n' | b'/') = text.byte(end) {
            end += 1;
        }
        end
    }
}

impl Scan for O200k {
    #[inline(always)]
    fn next(&self, text: Text<'_>, at: usize) -> usize {
        let (class, length) = text.class(at);
        if class & NUMBER != 0 {
            return text.numbers(at + length, 3);
        }
        if let Some(end) = Self::word(text, at) {
            return text.contraction(end, true).unwrap_or(end);
        }
        if class & SPACE == 0 {
            return Self::others(text, at + length);
        }
        let (second, second_length) = text.class(at + length);
        if text.byte(at) == Some(b' ') && second & (SPACE | LETTER | NUMBER) == 0 {
            return Self::others(text, at + 1 + second_length);
        }
        text.blanks(at, Blanks { whole_tail: false, newlines: true })
    }
}
