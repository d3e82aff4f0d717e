//! Tokens that were added to a model: they are found in the text before it is cut into words.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use crate::error::FileError;

/// A token beside the model's, as `added_tokens` of a `tokenizer.json` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedToken {
    /// The text that becomes this token.
    pub content: String,
    /// Its id.
    pub id: u32,
    /// It is found only where no letter, number, mark or `_` stands beside it.
    pub single_word: bool,
    /// White space to its left belongs to it.
    pub lstrip: bool,
    /// White space to its right belongs to it.
    pub rstrip: bool,
    /// It is looked for in the normalized text, and in its own normalized form.
    pub normalized: bool,
    /// It steers the model: [`Specials`](crate::Specials) may have it taken for text.
    pub special: bool,
}

impl AddedToken {
    /// A special token that is found wherever `content` is.
    #[must_use]
    pub fn special(content: impl Into<String>, id: u32) -> Self {
        Self {
            content: content.into(),
            id,
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: true,
        }
    }
}

/// Added tokens that are looked for in one pass; of those that start at one place, the longest is found.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    /// None where there are no tokens.
    automaton: Option<AhoCorasick>,
    tokens: Vec<AddedToken>,
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The text of an added token.
    Token(u32, Range<usize>),
    /// Text for the model, never empty.
    Text(Range<usize>),
}

impl Finder {
    /// A finder of `tokens`, each of which is looked for in the form that `form` gives to its content.
    pub(crate) fn new(tokens: Vec<AddedToken>, form: impl Fn(&str) -> String) -> Result<Self, FileError> {
        if tokens.is_empty() {
            return Ok(Self::default());
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| form(&token.content)))
            .map_err(FileError::AddedTokens)?;
        Ok(Self { automaton: Some(automaton), tokens })
    }

    /// Hands the parts of `text` to `each`, from left to right. Unless `specials`, special tokens are text.
    pub(crate) fn split(&self, text: &str, specials: bool, mut each: impl FnMut(Part)) {
        let mut done = 0;
        if let Some(automaton) = &self.automaton {
            for found in automaton.find_iter(text) {
                let token = &self.tokens[found.pattern().as_usize()];
                let skipped = token.special && !specials;
                if skipped || token.single_word && !stands_alone(text, found.range()) {
                    continue;
                }
                let Range { start, end } = token.with_blanks(text, found.range(), done);
                if done < start {
                    each(Part::Text(done..start));
                }
                each(Part::Token(token.id, start..end));
                done = end;
            }
        }
        if done < text.len() {
            each(Part::Text(done..text.len()));
        }
    }
}

impl AddedToken {
    /// The range of a match with the white space that belongs to it, but not before `done`.
    fn with_blanks(
        &self,
        text: &str,
        Range { mut start, mut end }: Range<usize>,
        done: usize,
    ) -> Range<usize> {
        if self.lstrip {
            start = text[..start].trim_end().len().max(done);
        }
        if self.rstrip {
            end = text.len() - text[end..].trim_start().len();
        }
        start..end
    }
}

fn stands_alone(text: &str, range: Range<usize>) -> bool {
    let is_word = |c: Option<char>| c.is_some_and(regex_syntax::is_word_character);
    !is_word(text[..range.start].chars().next_back()) && !is_word(text[range.end..].chars().next())
}

#[cfg(test)]
mod tests;
