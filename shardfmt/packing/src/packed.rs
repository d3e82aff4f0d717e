//! The result of packing: the pieces of each sequence, its padding, and counts.

use serde::{Deserialize, Serialize};

/// Consecutive tokens of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Piece {
    /// The document, counted from 0 in the order of the lengths.
    pub document: u64,
    /// Its first token in the document.
    pub start: u32,
    /// Its number of tokens, at least 1.
    pub length: u32,
}

/// Sequences of pieces in three arrays: all pieces one after the other, and per sequence the end of its pieces and its padding.
///
/// Sequences are in the order of their first documents, and so are the pieces of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Packed {
    pieces: Vec<Piece>,
    ends: Vec<usize>,
    padding: Vec<u32>,
}

impl Packed {
    /// No sequence. Allocates nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of sequences.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The pieces of a sequence, or `None` behind the last.
    pub fn get(&self, sequence: usize) -> Option<&[Piece]> {
        let end = *self.ends.get(sequence)?;
        let start = if sequence == 0 { 0 } else { self.ends[sequence - 1] };
        Some(&self.pieces[start..end])
    }

    /// The pieces of each sequence.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[Piece]> + Clone {
        (0..self.len()).map(|sequence| self.get(sequence).unwrap_or_default())
    }

    /// The pieces of all sequences, one sequence behind the other.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Per sequence, the end of its pieces in [`Packed::pieces`]; they begin where those of the sequence before end.
    pub fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// Per sequence, the tokens that it lacks.
    pub fn padding(&self) -> &[u32] {
        &self.padding
    }

    /// Adds the sequences of `later` behind its own.
    pub fn append(&mut self, later: Self) {
        if self.is_empty() {
            *self = later;
            return;
        }
        let before = self.pieces.len();
        self.pieces.extend_from_slice(&later.pieces);
        self.ends.extend(later.ends.iter().map(|end| before + end));
        self.padding.extend_from_slice(&later.padding);
    }

    /// Adds a sequence.
    pub(crate) fn push(&mut self, pieces: &[Piece], padding: u32) {
        self.pieces.extend_from_slice(pieces);
        self.ends.push(self.pieces.len());
        self.padding.push(padding);
    }

    /// Adds sequences of these sizes and paddings; the pieces come in order with the index of their sequence, from 0.
    pub(crate) fn scatter(
        &mut self,
        sizes: &[usize],
        padding: &[u32],
        pieces: impl Iterator<Item = (usize, Piece)>,
    ) {
        let mut next = Vec::with_capacity(sizes.len());
        let mut end = self.pieces.len();
        for size in sizes {
            next.push(end);
            end += size;
            self.ends.push(end);
        }
        self.padding.extend_from_slice(padding);
        self.pieces.resize(end, Piece { document: 0, start: 0, length: 0 });
        for (sequence, piece) in pieces {
            self.pieces[next[sequence]] = piece;
            next[sequence] += 1;
        }
    }
}

/// Counts of a packing so far. Documents that wait in an open window are in `documents` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stats {
    /// Documents that came.
    pub documents: u64,
    /// Documents of no tokens; they are in no sequence.
    pub empty: u64,
    /// Documents in more than one piece.
    pub cut: u64,
    /// Documents that lost their end, and the tokens of those ends.
    pub truncated: u64,
    /// Tokens behind the ends of truncated documents.
    pub truncated_tokens: u64,
    /// Documents that were dropped.
    pub dropped: u64,
    /// Tokens of dropped documents.
    pub dropped_tokens: u64,
    /// Closed sequences.
    pub sequences: u64,
    /// Tokens of documents in closed sequences.
    pub tokens: u64,
    /// Tokens that closed sequences lack.
    pub padding: u64,
}

impl Stats {
    /// The share of padding in the closed sequences, in `0.0..1.0`; 0 if there is none.
    pub fn padding_share(&self) -> f64 {
        let places = self.tokens + self.padding;
        if places == 0 { 0.0 } else { self.padding as f64 / places as f64 }
    }

    pub(crate) fn largest(&self) -> u64 {
        let documents = [self.documents, self.empty, self.cut, self.truncated, self.dropped, self.sequences];
        let tokens = [self.truncated_tokens, self.dropped_tokens, self.tokens, self.padding];
        documents.into_iter().chain(tokens).max().unwrap_or(0)
    }

    /// The least number of sequences of `length` tokens that any packing of the same tokens has.
    pub fn least_sequences(&self, length: u32) -> u64 {
        self.tokens.div_ceil(u64::from(length.max(1)))
    }
}
