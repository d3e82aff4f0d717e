//! All steps of a pre-tokenizer: each step cuts the pieces of the step before it.

use fancy_regex::Regex;

use super::{DeepSeek, Gpt2, Llama, O200k, Pattern, Scan, Text};
use crate::classes::NUMBER;

/// A step: it cuts a text into pieces, and loses nothing of it.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Matches of a regex, and the gaps between them.
    Regex(Box<Regex>),
    /// Numbers of the standard library, each by itself or as long as they reach, and the gaps between them.
    Digits { individual: bool },
    /// Words of a known pattern.
    Pattern(Pattern),
    /// `\p{N}{1,most}` and the gaps between the matches.
    Numbers { most: usize },
    /// `[一-龥぀-ゟ゠-ヿ]+` and the gaps between the matches.
    Kanji,
}

/// The steps of a pre-tokenizer, of which the last one often is a known pattern.
#[derive(Debug)]
pub(crate) struct Splitter {
    pub(crate) stages: Vec<Stage>,
    pub(crate) last: Option<Pattern>,
}

/// Takes the words of a text.
pub(crate) trait Words {
    /// The word of `text` between `start` and `end`, which is not empty.
    fn word(&mut self, text: Text<'_>, start: usize, end: usize);

    /// All words of `text` from `start` on.
    #[inline(always)]
    fn words(&mut self, scan: &impl Scan, text: Text<'_>, start: usize) {
        let mut at = start;
        while at < text.len() {
            let end = scan.next(text, at);
            self.word(text, at, end);
            at = end;
        }
    }
}

impl Splitter {
    /// A splitter for one known pattern.
    pub(crate) fn of(pattern: Pattern) -> Self {
        Self { stages: Vec::new(), last: Some(pattern) }
    }

    /// Hands the words of `piece` to `words`, from left to right.
    pub(crate) fn split(&self, piece: &str, words: &mut impl Words) {
        self.split_from(&self.stages, piece, 0, words);
    }

    /// Cuts the part of `piece` from `start` on.
    fn split_from(&self, stages: &[Stage], piece: &str, start: usize, words: &mut impl Words) {
        let Some((stage, rest)) = stages.split_first() else { return self.finish(piece, start, words) };
        stage.cut(piece, start, |start, end| self.split_from(rest, &piece[..end], start, words));
    }

    fn finish(&self, piece: &str, start: usize, words: &mut impl Words) {
        let text = Text::new(piece);
        match self.last {
            None => words.word(text, start, piece.len()),
            Some(pattern) => pattern.split(text, start, words),
        }
    }
}

impl Pattern {
    /// Hands the words of `text` from `start` on to `words`.
    fn split(self, text: Text<'_>, start: usize, words: &mut impl Words) {
        match self {
            Self::Gpt2 => words.words(&Gpt2, text, start),
            Self::Cl100k => words.words(&Llama::<3, true, false>, text, start),
            Self::Llama3 => words.words(&Llama::<3, false, false>, text, start),
            Self::Qwen2 => words.words(&Llama::<1, false, false>, text, start),
            Self::Qwen35 => words.words(&Llama::<1, false, true>, text, start),
            Self::O200k => words.words(&O200k, text, start),
            Self::DeepSeek3 => words.words(&DeepSeek, text, start),
        }
    }
}

/// Hands the ends of words to a function.
struct Each<F>(F);

impl<F: FnMut(usize, usize)> Words for Each<F> {
    fn word(&mut self, _: Text<'_>, start: usize, end: usize) {
        (self.0)(start, end);
    }
}

impl Stage {
    /// The step that isolates the matches of `regex`, by hand if it is known.
    ///
    /// # Errors
    ///
    /// If `regex` is not valid, with the reason.
    pub(crate) fn of_regex(regex: &str) -> Result<Self, String> {
        Ok(match regex {
            r"\p{N}{1,3}" => Self::Numbers { most: 3 },
            r"\p{N}" => Self::Numbers { most: 1 },
            "[一-龥\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+" => Self::Kanji,
            other => Self::Regex(Box::new(Regex::new(other).map_err(|error| error.to_string())?)),
        })
    }

    /// Hands the pieces of the part of `piece` from `start` on to `each`. None is empty.
    fn cut(&self, piece: &str, start: usize, mut each: impl FnMut(usize, usize)) {
        if let Self::Regex(regex) = self {
            return cut_regex(regex, piece, start, each);
        }
        let text = Text::new(piece);
        if let Self::Pattern(pattern) = self {
            return pattern.split(text, start, &mut Each(each));
        }
        let mut at = start;
        while at < piece.len() {
            let end = match *self {
                Self::Regex(_) | Self::Pattern(_) => piece.len(),
                Self::Digits { individual: true } => cut_runs(text, at, 1, is_numeric),
                Self::Digits { individual: false } => cut_runs(text, at, usize::MAX, is_numeric),
                Self::Numbers { most } => cut_runs(text, at, most, |text, at| text.class(at).0 & NUMBER != 0),
                Self::Kanji => cut_runs(text, at, usize::MAX, is_kanji),
            };
            each(at, end);
            at = end;
        }
    }
}

/// The end of up to `most` characters that are `inside` from `at` on, or else of all that are not.
fn cut_runs(text: Text<'_>, at: usize, most: usize, inside: impl Fn(Text<'_>, usize) -> bool) -> usize {
    let first = inside(text, at);
    let most = if first { most } else { usize::MAX };
    let (mut end, mut count) = (at, 0);
    while end < text.len() && count < most && inside(text, end) == first {
        end += text.character(end).1;
        count += 1;
    }
    end
}

fn is_numeric(text: Text<'_>, at: usize) -> bool {
    char::from_u32(text.character(at).0).is_some_and(char::is_numeric)
}

fn is_kanji(text: Text<'_>, at: usize) -> bool {
    matches!(text.character(at).0, 0x4e00..=0x9fa5 | 0x3040..=0x30ff)
}

/// A match that fails, as one that would take too many steps does, ends the cutting: as `tokenizers` has it.
fn cut_regex(regex: &Regex, piece: &str, start: usize, mut each: impl FnMut(usize, usize)) {
    let part = &piece[start..];
    let mut done = 0;
    for found in regex.find_iter(part).map_while(Result::ok) {
        if done < found.start() {
            each(start + done, start + found.start());
        }
        if found.start() < found.end() {
            each(start + found.start(), start + found.end());
        }
        done = found.end();
    }
    if done < part.len() {
        each(start + done, piece.len());
    }
}
