//! Packing of a list or a stream: lengths in, closed sequences out.

use serde::{Deserialize, Serialize};

use crate::pack::fit::{Fit, Waiting};
use crate::pack::{Long, PackError, Packing, Strategy};
use crate::packed::{Packed, Piece, Stats};

/// A sequence closes at the end of its window if it lacks at most its length divided by this.
const FULL_SHARE: u32 = 256;
/// Counts of a saved packer are smaller, so that they cannot overflow.
const MOST_SAVED: u64 = 1 << 60;

impl Packing {
    /// Packs the documents of these lengths, in tokens: those of a [`Packer`] that gets one length after the other.
    ///
    /// Takes time in proportion to `n log n` for `n` documents. A document of no tokens is in no sequence.
    ///
    /// # Errors
    /// [`PackError::Length`] and [`PackError::Pieces`] for this packing, [`PackError::Long`] for a document.
    pub fn pack(&self, lengths: &[u32]) -> Result<(Packed, Stats), PackError> {
        let mut packer = Packer::new(*self)?;
        let mut packed = Packed::new();
        packer.extend(lengths.iter().copied(), &mut packed)?;
        let (last, stats) = packer.finish();
        packed.append(last);
        Ok((packed, stats))
    }
}

/// Packs one length after the other, and holds no more than a window of pieces.
///
/// Its sequences are those of [`Packing::pack`], for any way to cut the stream into calls. Serialize it to continue in another
/// process: the deserialized packer closes the same sequences.
///
/// ```
/// use shardd_packing::{Packed, Packer, Packing};
///
/// # fn main() -> Result<(), shardd_packing::PackError> {
/// let packing = Packing { window: 4, ..Packing::new(8) };
/// let mut packer = Packer::new(packing)?;
/// assert!(packer.push(5)?.is_empty());
/// let mut closed = Packed::new();
/// packer.extend([6, 3, 2], &mut closed)?;
/// assert_eq!(closed.len(), 2);
/// let (rest, stats) = packer.finish();
/// assert!(rest.is_empty());
/// assert_eq!(stats.sequences, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Saved", into = "Saved")]
pub struct Packer {
    packing: Packing,
    stats: Stats,
    /// Pieces of the window; with [`Strategy::ConcatThenSplit`], of the open sequence.
    window: Vec<Waiting>,
    tokens: u64,
    fit: Fit,
}

impl Packer {
    /// For this packing; no document yet.
    ///
    /// # Errors
    /// [`PackError::Length`].
    pub fn new(packing: Packing) -> Result<Self, PackError> {
        let packing = packing.checked()?;
        Ok(Self { packing, stats: Stats::default(), window: Vec::new(), tokens: 0, fit: Fit::default() })
    }

    /// Adds the next document, of `length` tokens; the sequences that close with it, mostly none.
    ///
    /// # Errors
    /// [`PackError::Long`] and [`PackError::Pieces`]; the packer is then as before the call.
    pub fn push(&mut self, length: u32) -> Result<Packed, PackError> {
        let mut closed = Packed::new();
        self.add(length, &mut closed)?;
        Ok(closed)
    }

    /// Adds the next documents, and appends the sequences that close with them to `closed`.
    ///
    /// # Errors
    /// As [`Packer::push`], for the first document that has one. Those before it are then in the packer or in `closed`.
    pub fn extend(
        &mut self,
        lengths: impl IntoIterator<Item = u32>,
        closed: &mut Packed,
    ) -> Result<(), PackError> {
        lengths.into_iter().try_for_each(|length| self.add(length, closed))
    }

    /// Closes all sequences, and returns those that were open with the counts of the whole stream.
    pub fn finish(mut self) -> (Packed, Stats) {
        let mut closed = Packed::new();
        if self.packing.strategy == Strategy::ConcatThenSplit {
            self.close_sequence(&mut closed);
        } else {
            self.close_window(true, &mut closed);
        }
        (closed, self.stats)
    }

    /// The counts so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The packing.
    pub fn packing(&self) -> &Packing {
        &self.packing
    }

    /// The pieces that wait, and their tokens.
    pub fn waiting(&self) -> (usize, u64) {
        (self.window.len(), self.tokens)
    }

    fn add(&mut self, length: u32, closed: &mut Packed) -> Result<(), PackError> {
        if length == 0 {
            self.stats.documents += 1;
            self.stats.empty += 1;
        } else if self.packing.strategy == Strategy::ConcatThenSplit {
            self.concatenate(length, closed);
        } else if length <= self.packing.length {
            self.check_pieces(1)?;
            self.stats.documents += 1;
            self.wait(0, length, closed);
        } else {
            self.add_long(length, closed)?;
        }
        Ok(())
    }

    fn add_long(&mut self, tokens: u32, closed: &mut Packed) -> Result<(), PackError> {
        let document = self.stats.documents;
        let length = self.packing.length;
        match self.packing.long {
            Long::Raise => return Err(PackError::Long { document, tokens, length }),
            Long::Drop => {
                self.stats.documents += 1;
                self.stats.dropped += 1;
                self.stats.dropped_tokens += u64::from(tokens);
            }
            Long::Truncate => {
                self.check_pieces(1)?;
                self.stats.documents += 1;
                self.stats.truncated += 1;
                self.stats.truncated_tokens += u64::from(tokens - length);
                self.wait(0, length, closed);
            }
            Long::Split => {
                self.check_pieces(tokens.div_ceil(length))?;
                self.stats.documents += 1;
                self.stats.cut += 1;
                let mut start = 0;
                while start < tokens {
                    let piece = length.min(tokens - start);
                    self.wait(start, piece, closed);
                    start += piece;
                }
            }
        }
        Ok(())
    }

    /// Whether a window without limits can number these pieces more.
    fn check_pieces(&self, more: u32) -> Result<(), PackError> {
        let pieces = self.window.len() as u64 + u64::from(more);
        if pieces > u64::from(u32::MAX) { Err(PackError::Pieces) } else { Ok(()) }
    }

    /// Adds a piece of the latest document to the window.
    fn wait(&mut self, start: u32, length: u32, closed: &mut Packed) {
        let piece = Piece { document: self.stats.documents - 1, start, length };
        self.window.push(Waiting { piece, waits: 0 });
        self.tokens += u64::from(length);
        if self.packing.is_full(self.window.len(), self.tokens) {
            self.close_window(false, closed);
        }
    }

    fn concatenate(&mut self, tokens: u32, closed: &mut Packed) {
        let document = self.stats.documents;
        self.stats.documents += 1;
        let mut start = 0;
        while start < tokens {
            let room = self.packing.length - self.tokens as u32;
            let piece = Piece { document, start, length: room.min(tokens - start) };
            self.window.push(Waiting { piece, waits: 0 });
            self.tokens += u64::from(piece.length);
            start += piece.length;
            if self.tokens == u64::from(self.packing.length) {
                self.close_sequence(closed);
            }
            self.stats.cut += u64::from(piece.start == 0 && start < tokens);
        }
    }

    /// Closes the open sequence of concatenated documents.
    fn close_sequence(&mut self, closed: &mut Packed) {
        if self.window.is_empty() {
            return;
        }
        let pieces: Vec<Piece> = self.window.drain(..).map(|waiting| waiting.piece).collect();
        let padding = self.packing.length - self.tokens as u32;
        closed.push(&pieces, padding);
        self.count(1, self.tokens, u64::from(padding));
        self.tokens = 0;
    }

    /// Packs the window, and keeps the pieces that may wait for the next.
    fn close_window(&mut self, last: bool, closed: &mut Packed) {
        self.fit.fit(&self.packing, &self.window);
        let closes = self.closing(last);
        self.scatter(&closes, closed);
        let sequences = &self.fit.sequences;
        let mut index = 0;
        self.window.retain_mut(|waiting| {
            let stays = !closes[sequences[index] as usize];
            index += 1;
            waiting.waits += u8::from(stays);
            stays
        });
        self.tokens = self.window.iter().map(|waiting| u64::from(waiting.piece.length)).sum();
    }

    /// Per sequence of the window, whether it closes: it is nearly full, or one of its documents waited often enough.
    fn closing(&self, last: bool) -> Vec<bool> {
        if last || !self.packing.carry {
            return vec![true; self.fit.room.len()];
        }
        let full = self.packing.length / FULL_SHARE;
        let mut closes: Vec<bool> = self.fit.room.iter().map(|&room| room <= full).collect();
        for (waiting, &sequence) in self.window.iter().zip(&self.fit.sequences) {
            closes[sequence as usize] |= waiting.waits >= Packing::MOST_WAITS;
        }
        let stay = |(waiting, &sequence): (&Waiting, &u32)| {
            if closes[sequence as usize] { 0 } else { u64::from(waiting.piece.length) }
        };
        let kept = self.window.iter().zip(&self.fit.sequences).map(stay);
        let (pieces, tokens) =
            kept.fold((0, 0), |(pieces, tokens), length| (pieces + usize::from(length > 0), tokens + length));
        // A window that is full of what waits would never take a document.
        if self.packing.is_full(2 * pieces, 2 * tokens) { vec![true; closes.len()] } else { closes }
    }

    /// Moves the pieces of closing sequences out, in the order of documents.
    fn scatter(&mut self, closes: &[bool], closed: &mut Packed) {
        const NONE: usize = usize::MAX;
        let mut numbers = vec![NONE; closes.len()];
        let mut sizes: Vec<usize> = Vec::new();
        let mut padding: Vec<u32> = Vec::new();
        for &sequence in self.fit.sequences.iter().filter(|&&sequence| closes[sequence as usize]) {
            let number = &mut numbers[sequence as usize];
            if *number == NONE {
                *number = sizes.len();
                sizes.push(0);
                padding.push(self.fit.room[sequence as usize]);
            }
            sizes[*number] += 1;
        }
        let pieces = self.window.iter().zip(&self.fit.sequences).filter_map(|(waiting, &sequence)| {
            let number = numbers[sequence as usize];
            (number != NONE).then_some((number, waiting.piece))
        });
        closed.scatter(&sizes, &padding, pieces);
        let padding: u64 = padding.into_iter().map(u64::from).sum();
        let places = sizes.len() as u64 * u64::from(self.packing.length);
        self.count(sizes.len() as u64, places - padding, padding);
    }

    fn count(&mut self, sequences: u64, tokens: u64, padding: u64) {
        self.stats.sequences += sequences;
        self.stats.tokens += tokens;
        self.stats.padding += padding;
    }
}

/// A packer as it is saved.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    packing: Packing,
    stats: Stats,
    /// Pieces with the number of windows that they waited for.
    window: Vec<(Piece, u8)>,
}

impl From<Packer> for Saved {
    fn from(packer: Packer) -> Self {
        let window = packer.window.into_iter().map(|waiting| (waiting.piece, waiting.waits)).collect();
        Self { packing: packer.packing, stats: packer.stats, window }
    }
}

impl TryFrom<Saved> for Packer {
    type Error = PackError;

    fn try_from(saved: Saved) -> Result<Self, PackError> {
        let packing = saved.packing.checked()?;
        let mut packer = Self::new(packing)?;
        packer.stats = saved.stats;
        if packer.stats.largest() > MOST_SAVED {
            return Err(PackError::Saved("a count is too large"));
        }
        for (piece, waits) in saved.window {
            if piece.length == 0 || piece.length > packing.length {
                return Err(PackError::Saved("a piece has no length that the packing allows"));
            }
            if piece.document >= packer.stats.documents || waits > Packing::MOST_WAITS {
                return Err(PackError::Saved("a piece is of a document that did not come"));
            }
            packer.tokens += u64::from(piece.length);
            packer.window.push(Waiting { piece, waits });
        }
        if packer.window.len() > u32::MAX as usize {
            return Err(PackError::Pieces);
        }
        if packing.strategy == Strategy::ConcatThenSplit && packer.tokens >= u64::from(packing.length) {
            return Err(PackError::Saved("its open sequence is full"));
        }
        if packing.strategy != Strategy::ConcatThenSplit
            && packing.is_full(packer.window.len(), packer.tokens)
        {
            return Err(PackError::Saved("its window is full"));
        }
        Ok(packer)
    }
}

#[cfg(test)]
mod tests;
