//! The words of GPT-2: r50k_base, p50k_base and ByteLevel with its own regex.

use super::{Blanks, Scan, Text};
use crate::classes::{LETTER, NUMBER, SPACE};

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub(crate) struct Gpt2;

impl Scan for Gpt2 {
    #[inline(always)]
    fn next(&self, text: Text<'_>, at: usize) -> usize {
        if let Some(end) = text.contraction(at, false) {
            return end;
        }
        let start = at + usize::from(text.byte(at) == Some(b' '));
        let (class, length) = text.class(start);
        if class & LETTER != 0 {
            return text.letters(start, LETTER);
        }
        if class & NUMBER != 0 {
            return text.run(start + length, NUMBER);
        }
        if class & SPACE == 0 {
            return text.run_without(start + length, SPACE | LETTER | NUMBER);
        }
        text.blanks(at, Blanks { whole_tail: false, newlines: false })
    }
}
