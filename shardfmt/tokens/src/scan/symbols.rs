//! The words of DeepSeek V3 and R1, after its numbers and its Chinese and Japanese runs have been cut out.

use super::{Blanks, Scan, Text};
use crate::classes::{LETTER, MARK, NEWLINE, SPACE, SYMBOL};

/// ``[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``
///
/// Characters that no alternative matches, such as numbers and control characters, are a word as far as they reach.
pub(crate) struct DeepSeek;

const WORD: u8 = LETTER | MARK;

impl DeepSeek {
    /// The end of the match at `at`, if the regex has one there.
    #[inline(always)]
    fn matched(text: Text<'_>, at: usize) -> Option<usize> {
        let (class, length) = text.class(at);
        let (second, second_length) = text.class(at + length);
        if class & WORD != 0 {
            return Some(text.letters(at, WORD));
        }
        if class & SYMBOL != 0 {
            let ascii = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphabetic());
            if length == 1 && ascii(text.byte(at + 1)) {
                return Some(ascii_letters_end(text, at + 1));
            }
            return Some(symbols(text, at + length));
        }
        if class & NEWLINE == 0 && second & WORD != 0 {
            return Some(text.letters(at + length, WORD));
        }
        if text.byte(at) == Some(b' ') && second & SYMBOL != 0 {
            return Some(symbols(text, at + 1 + second_length));
        }
        (class & SPACE != 0 && length > 0)
            .then(|| text.blanks(at, Blanks { whole_tail: false, newlines: true }))
    }
}

/// The end of `[\p{P}\p{S}]+[\r\n]*`, of which the first character ends at `end`.
fn symbols(text: Text<'_>, end: usize) -> usize {
    text.run(text.run(end, SYMBOL), NEWLINE)
}

fn ascii_letters_end(text: Text<'_>, mut at: usize) -> usize {
    while text.byte(at).is_some_and(|byte| byte.is_ascii_alphabetic()) {
        at += 1;
    }
    at
}

impl Scan for DeepSeek {
    #[inline(always)]
    fn next(&self, text: Text<'_>, at: usize) -> usize {
        if let Some(end) = Self::matched(text, at) {
            return end;
        }
        let mut end = at + text.class(at).1;
        while end < text.len() && Self::matched(text, end).is_none() {
            end += text.class(end).1;
        }
        end
    }
}
