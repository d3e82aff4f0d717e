//! Marks around the text of generation blocks: two characters that occur in no input of a rendering.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::{Map, Value as Json};

/// The supplementary private use area A, which no tokenizer and no template writes.
const PRIVATE: Range<u32> = 0xF_0000..0xF_FFFE;

/// The private characters of texts.
#[derive(Clone, Debug, Default)]
pub(super) struct Used(BTreeSet<char>);

impl Used {
    pub(super) fn add_text(&mut self, text: &str) {
        // UTF-8 of these characters begins with 0xF3: most texts have no such byte.
        if text.bytes().any(|byte| byte == 0xF3) {
            self.0.extend(text.chars().filter(|&character| PRIVATE.contains(&u32::from(character))));
        }
    }

    pub(super) fn add_object(&mut self, entries: &Map<String, Json>) {
        for (key, value) in entries {
            self.add_text(key);
            self.add(value);
        }
    }

    pub(super) fn add(&mut self, value: &Json) {
        match value {
            Json::String(text) => self.add_text(text),
            Json::Array(items) => items.iter().for_each(|item| self.add(item)),
            Json::Object(entries) => self.add_object(entries),
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }
}

/// The characters before and behind a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    open: char,
    close: char,
}

impl Marks {
    /// The first two that are not used; `None` if there are none.
    pub(super) fn unused(used: &Used) -> Option<Self> {
        let mut free = PRIVATE.filter_map(char::from_u32).filter(|character| !used.0.contains(character));
        Some(Self { open: free.next()?, close: free.next()? })
    }

    /// Both, as the argument of the filter.
    pub(super) fn argument(self) -> String {
        [self.open, self.close].into_iter().collect()
    }

    /// The text without marks, and the ranges that were between them; `None` if marks are not in pairs.
    pub(super) fn extract(self, marked: &str) -> Option<(String, Vec<Range<usize>>)> {
        let mut text = String::with_capacity(marked.len());
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let (mut depth, mut start) = (0usize, 0);
        let mut rest = marked;
        while let Some(at) = rest.find([self.open, self.close]) {
            text.push_str(&rest[..at]);
            if rest[at..].starts_with(self.open) {
                if depth == 0 {
                    start = text.len();
                }
                depth += 1;
            } else {
                depth = depth.checked_sub(1)?;
                if depth == 0 && start < text.len() {
                    ranges.push(start..text.len());
                }
            }
            rest = &rest[at + self.open.len_utf8()..];
        }
        text.push_str(rest);
        (depth == 0).then_some((text, ranges))
    }
}

/// What the filter of generation blocks makes of their text.
pub(super) fn mark(text: &str, marks: &str) -> String {
    let mut marks = marks.chars();
    let (open, close) = (marks.next(), marks.next());
    let mut marked = String::with_capacity(text.len() + 8);
    marked.extend(open);
    marked.push_str(text);
    marked.extend(close);
    marked
}
