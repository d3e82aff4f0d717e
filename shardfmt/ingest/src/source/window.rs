//! Documents that wait until it is decided which of them share a sequence. Pure: tokens in, sequences out.

use std::collections::BTreeMap;
use std::mem;

use shardd_packing::{Long, PackError, Packed, Packer, Packing, Stats};

/// A window closes with this number of tokens: enough documents to fill sequences, in memory that every machine has.
const TOKENS: u64 = 16 << 20;

/// Takes documents in order, and gives packed sequences out.
pub(super) struct Window<T> {
    packer: Packer,
    /// The tokens of documents that are not yet in sequences, and how many are still to come into one.
    waiting: BTreeMap<u64, (Vec<T>, usize)>,
    closed: Packed,
    /// How many of these were given out.
    given: usize,
    /// The counts of all documents, once no other follows.
    all: Option<Stats>,
}

/// Sequences of one length, one behind the other.
pub(super) struct Sequences<T> {
    /// The tokens, and 0 behind the last document of each sequence.
    pub(super) tokens: Vec<T>,
    /// Of each sequence, the places where documents begin, from 0 in each.
    pub(super) starts: Vec<u32>,
    /// How many documents each has.
    pub(super) documents: Vec<usize>,
    /// How many tokens each has.
    pub(super) lengths: Vec<u32>,
}

impl<T: Copy + Default> Window<T> {
    /// # Errors
    /// [`PackError::Length`].
    pub(super) fn new(packing: Packing) -> Result<Self, PackError> {
        let packer = Packer::new(Packing { window_tokens: TOKENS, ..packing })?;
        Ok(Self { packer, waiting: BTreeMap::new(), closed: Packed::new(), given: 0, all: None })
    }

    /// Takes the next document.
    ///
    /// # Errors
    /// [`PackError::Long`] for a document that is too long, if that is to be an error; it is then left out.
    pub(super) fn push(&mut self, mut tokens: Vec<T>) -> Result<(), PackError> {
        let Packing { length, long, .. } = *self.packer.packing();
        let number = self.packer.stats().documents;
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let closed = self.packer.push(count)?;
        match long {
            Long::Truncate => tokens.truncate(length as usize),
            Long::Drop if count > length => tokens.clear(),
            Long::Drop | Long::Split | Long::Raise => {}
        }
        if !tokens.is_empty() {
            let left = tokens.len();
            self.waiting.insert(number, (tokens, left));
        }
        self.closed.append(closed);
        Ok(())
    }

    /// Whether all sequences are closed.
    pub(super) fn is_closed(&self) -> bool {
        self.all.is_some()
    }

    /// Closes all sequences: no document follows.
    pub(super) fn close(&mut self) {
        let empty = Packer::new(*self.packer.packing()).expect("a length that was checked");
        let (closed, stats) = mem::replace(&mut self.packer, empty).finish();
        self.closed.append(closed);
        self.all = Some(stats);
    }

    /// The length to which longer documents are cut, each part being a document of its own.
    pub(super) fn cut_at(&self) -> Option<usize> {
        let Packing { length, long, .. } = *self.packer.packing();
        (long == Long::Split).then_some(length as usize)
    }

    /// Counts of what came so far.
    pub(super) fn stats(&self) -> Stats {
        self.all.unwrap_or(*self.packer.stats())
    }

    /// How many sequences are closed and not given out.
    pub(super) fn count(&self) -> usize {
        self.closed.len() - self.given
    }

    /// Takes this number of closed sequences, or all if there are fewer.
    pub(super) fn take(&mut self, count: usize) -> Sequences<T> {
        let length = self.packer.packing().length as usize;
        let end = self.closed.len().min(self.given + count);
        let mut sequences = Sequences {
            tokens: Vec::with_capacity((end - self.given) * length),
            starts: Vec::new(),
            documents: Vec::with_capacity(end - self.given),
            lengths: Vec::with_capacity(end - self.given),
        };
        for sequence in self.given..end {
            let pieces = self.closed.get(sequence).expect("a closed sequence");
            let begin = sequences.tokens.len();
            for piece in pieces {
                sequences.starts.push((sequences.tokens.len() - begin) as u32);
                let (start, count) = (piece.start as usize, piece.length as usize);
                let (tokens, left) = self.waiting.get_mut(&piece.document).expect("a document that waits");
                sequences.tokens.extend_from_slice(&tokens[start..start + count]);
                *left -= count;
                if *left == 0 {
                    self.waiting.remove(&piece.document);
                }
            }
            sequences.documents.push(pieces.len());
            sequences.lengths.push((sequences.tokens.len() - begin) as u32);
            sequences.tokens.resize(begin + length, T::default());
        }
        self.given = end;
        if self.given == self.closed.len() {
            (self.closed, self.given) = (Packed::new(), 0);
        }
        sequences
    }
}

#[cfg(test)]
mod tests;
