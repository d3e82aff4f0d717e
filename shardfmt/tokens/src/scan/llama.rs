//! The words of cl100k_base, Llama 3 and Qwen: one family of regexes that differ in three places.

use super::{Blanks, Scan, Text};
use crate::classes::{LETTER, MARK, NEWLINE, NUMBER, SPACE};

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
///
/// With `WHOLE_TAIL`, `\s++$` stands before `\s*[\r\n]+`. With `MARKS`, `\p{L}` is `[\p{L}\p{M}]` in all places but
/// the first.
pub(crate) struct Llama<const DIGITS: usize, const WHOLE_TAIL: bool, const MARKS: bool>;

impl<const DIGITS: usize, const WHOLE_TAIL: bool, const MARKS: bool> Llama<DIGITS, WHOLE_TAIL, MARKS> {
    const WORD: u8 = if MARKS { LETTER | MARK } else { LETTER };
    const NOT_OTHER: u8 = SPACE | NUMBER | Self::WORD;

    /// The end of `[^\s\p{L}\p{N}]+[\r\n]*`, of which the first character ends at `end`.
    #[inline(always)]
    fn others(text: Text<'_>, end: usize) -> usize {
        text.run(text.run_without(end, Self::NOT_OTHER), NEWLINE)
    }
}

impl<const DIGITS: usize, const WHOLE_TAIL: bool, const MARKS: bool> Scan
    for Llama<DIGITS, WHOLE_TAIL, MARKS>
{
    #[inline(always)]
    fn next(&self, text: Text<'_>, at: usize) -> usize {
        let (class, length) = text.class(at);
        if class & Self::WORD != 0 {
            return text.letters(at, Self::WORD);
        }
        if class & NUMBER != 0 {
            return text.numbers(at + length, DIGITS);
        }
        if let Some(end) = text.contraction(at, true) {
            return end;
        }
        let second = text.class(at + length);
        if class & NEWLINE == 0 && second.0 & Self::WORD != 0 {
            return text.letters(at + length, Self::WORD);
        }
        if class & SPACE == 0 {
            return Self::others(text, at + length);
        }
        if text.byte(at) == Some(b' ') && second.0 & Self::NOT_OTHER == 0 {
            return Self::others(text, at + 1 + second.1);
        }
        text.blanks(at, Blanks { whole_tail: WHOLE_TAIL, newlines: true })
    }
}
