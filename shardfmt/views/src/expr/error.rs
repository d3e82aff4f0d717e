//! What can be wrong with an expression, with a caret under the place.

use std::fmt;
use std::ops::Range;

use arrow::error::ArrowError;

/// Characters of the text that an error shows on either side of the place.
const SHOWN: usize = 60;

/// Why an expression could not become a predicate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExprError {
    /// The text is longer than [`MAX_TEXT_BYTES`](super::MAX_TEXT_BYTES).
    #[error("the expression has {bytes} bytes and the limit is {limit}: join long lists as a column instead")]
    TooLong {
        /// Length of the text.
        bytes: usize,
        /// The most that is read.
        limit: usize,
    },
    /// The tree is deeper than [`MAX_DEPTH`](super::MAX_DEPTH).
    #[error(
        "the expression is nested more than {limit} levels deep: use IN for lists, and fewer parentheses\n{place}"
    )]
    TooDeep {
        /// The most levels of a tree.
        limit: usize,
        /// The first place that is too deep.
        place: Place,
    },
    /// The text does not follow the grammar.
    #[error("{problem}: {way_out}\n{place}")]
    Syntax {
        /// The thing that is wrong.
        problem: String,
        /// What to write instead.
        way_out: String,
        /// Where.
        place: Place,
    },
    /// The schema has no such column, or two of them.
    #[error("{problem}: {way_out}\n{place}")]
    Column {
        /// The thing that is wrong.
        problem: String,
        /// The nearest column, or the columns there are.
        way_out: String,
        /// Where.
        place: Place,
    },
    /// The types of the operands do not go together.
    #[error("{problem}: {way_out}\n{place}")]
    Type {
        /// The thing that is wrong.
        problem: String,
        /// What to write instead.
        way_out: String,
        /// Where.
        place: Place,
    },
}

/// Why a predicate could not be evaluated over a record batch.
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// A number left its range. Rows that an earlier `AND` or `OR` has settled do not count.
    #[error(
        "row {row} of the record batch: {operation} leaves the range of {range}; test the range first, as in \
         x < 1000 AND x * x < y"
    )]
    Overflow {
        /// The row in the record batch, from 0.
        row: usize,
        /// Text of the operation.
        operation: String,
        /// The range, in words.
        range: &'static str,
    },
    /// The record batch has another schema than the predicate was parsed for.
    #[error(
        "column {column} is {found} and the predicate was parsed for {expected}: parse it for this schema"
    )]
    Schema {
        /// Name of the column.
        column: String,
        /// The type that the predicate knows.
        expected: String,
        /// The type in the record batch, or "missing".
        found: String,
    },
    /// An Arrow kernel refused its input.
    #[error("the record batch cannot be evaluated")]
    Arrow(#[from] ArrowError),
}

/// A place in the text of an expression. Shown as the text around it, with carets under the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    shown: String,
    before: usize,
    carets: usize,
    bytes: Range<usize>,
}

impl Place {
    /// The place `bytes` of `text`, cut to the characters around it.
    pub(super) fn new(text: &str, bytes: Range<usize>) -> Self {
        let start = floor_boundary(text, bytes.start);
        let end = floor_boundary(text, bytes.end).max(start);
        let left: Vec<char> = text[..start].chars().rev().take(SHOWN + 1).collect();
        let cut_left = left.len() > SHOWN;
        let mut shown: String = if cut_left { "…".into() } else { String::new() };
        shown.extend(left.iter().take(SHOWN).rev().map(|&c| printable(c)));
        let before = shown.chars().count();
        let inside = text[start..end].chars().count();
        let mut right = text[start..].chars();
        let carets = inside.clamp(1, SHOWN);
        shown.extend(right.by_ref().take(carets + SHOWN).map(printable));
        if right.next().is_some() {
            shown.push('…');
        }
        Self { shown, before, carets, bytes: start..end }
    }

    /// The bytes of the text that are meant. Empty at the end of the text.
    pub fn bytes(&self) -> Range<usize> {
        self.bytes.clone()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {}", self.shown)?;
        write!(f, "  {:before$}{:^<carets$}", "", "", before = self.before, carets = self.carets)
    }
}

/// One line stays one line.
fn printable(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

fn floor_boundary(text: &str, at: usize) -> usize {
    text.floor_char_boundary(at.min(text.len()))
}
