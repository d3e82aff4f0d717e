//! Normalization form C, with the tables of Unicode 9 that `tokenizers` has, and only where a text needs it.

use std::ops::Range;

use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// Text in form C, and for each of its bytes the range of the original text behind it.
#[derive(Debug, Default)]
pub(crate) struct Composed {
    pub(crate) text: String,
    pub(crate) origins: Vec<Range<usize>>,
}

/// `text` in form C, if that may differ from `text`; `origins` are kept on request.
pub(crate) fn compose(text: &str, with_origins: bool) -> Option<Composed> {
    let mut open = first_open(text, 0)?;
    let (mut composed, mut done) = (Composed::default(), 0);
    composed.text.reserve(text.len());
    while open < text.len() {
        // The character before may be composed with those that follow.
        let start = text[..open].char_indices().next_back().map_or(0, |(at, _)| at).max(done);
        composed.keep(text, done..start, with_origins);
        done =
            text[open..].char_indices().find(|(_, c)| is_closed(*c)).map_or(text.len(), |(at, _)| open + at);
        composed.compose(text, start..done, with_origins);
        open = first_open(text, done).unwrap_or(text.len());
    }
    composed.keep(text, done..text.len(), with_origins);
    Some(composed)
}

/// The text `content` in form C.
pub(crate) fn composed(content: &str) -> String {
    compose(content, false).map_or_else(|| content.to_owned(), |composed| composed.text)
}

/// The place of the first character from `at` on that may change, or change the character before it.
fn first_open(text: &str, mut at: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    while at < bytes.len() {
        while bytes.get(at..)?.first_chunk::<8>().is_some_and(|eight| eight.is_ascii()) {
            at += 8;
        }
        let c = text[at..].chars().next()?;
        if !is_closed(c) {
            return Some(at);
        }
        at += c.len_utf8();
    }
    None
}

/// Whether `c` is itself in form C, and nothing before it changes it or is changed by it.
fn is_closed(c: char) -> bool {
    match c {
        // Latin, Cyrillic, kana, ideographs and Hangul syllables: most text, without a look into tables.
        '\0'..='\u{2ff}' | '\u{400}'..='\u{482}' => true,
        '\u{3041}'..='\u{3096}'
        | '\u{30a1}'..='\u{30fa}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}' => true,
        _ => canonical_combining_class(c) == 0 && is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes,
    }
}

impl Composed {
    fn keep(&mut self, text: &str, range: Range<usize>, with_origins: bool) {
        self.text.push_str(&text[range.clone()]);
        if with_origins {
            for (at, c) in text[range.clone()].char_indices() {
                let start = range.start + at;
                self.origins.extend(std::iter::repeat_n(start..start + c.len_utf8(), c.len_utf8()));
            }
        }
    }

    /// Composes a stretch of `text`. Each new character stands for the first of those that it replaces, and one that
    /// a decomposition adds for the last of those before it.
    fn compose(&mut self, text: &str, range: Range<usize>, with_origins: bool) {
        let mut old = text[range.clone()].char_indices().map(|(at, c)| {
            let start = range.start + at;
            start..start + c.len_utf8()
        });
        let mut last = 0..0;
        for (c, change) in text[range.clone()].nfc() {
            self.text.push(c);
            if !with_origins {
                continue;
            }
            let origin = if change > 0 { last.clone() } else { old.next().unwrap_or(last.clone()) };
            last = origin.clone();
            for _ in change..0 {
                last = old.next().unwrap_or(last);
            }
            self.origins.extend(std::iter::repeat_n(origin, c.len_utf8()));
        }
    }
}

#[cfg(test)]
mod tests;
