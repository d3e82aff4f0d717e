//! First fit and best fit: the sequence of each piece.

use crate::packed::Piece;

use super::rooms::Rooms;
use super::spaces::Spaces;
use super::{Packing, Strategy};

/// A piece that waits in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// The piece.
    pub(crate) piece: Piece,
    /// The windows that it has waited for.
    pub(crate) waits: u8,
}

/// The memory of fits, which one window leaves to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fit {
    /// Per piece of the window, its sequence.
    pub(crate) sequences: Vec<u32>,
    /// Per sequence, in the order of opening, its room.
    pub(crate) room: Vec<u32>,
    order: Vec<u64>,
    spaces: Option<Spaces>,
    rooms: Rooms,
}

impl Fit {
    /// Fits pieces, none longer than a sequence and fewer than 2^32, into `sequences` and `room`.
    pub(crate) fn fit(&mut self, packing: &Packing, window: &[Waiting]) {
        self.order_pieces(packing.strategy, window);
        self.room.clear();
        self.sequences.clear();
        self.sequences.resize(window.len(), 0);
        match packing.strategy {
            Strategy::BestFit | Strategy::BestFitDecreasing => self.best_fit(packing.length, window),
            Strategy::FirstFit | Strategy::FirstFitDecreasing | Strategy::ConcatThenSplit => {
                self.first_fit(packing.length, window);
            }
        }
    }

    /// Sorts the pieces: the lower half of each word is an index, the upper half falls with the length.
    fn order_pieces(&mut self, strategy: Strategy, window: &[Waiting]) {
        let decreasing = matches!(strategy, Strategy::BestFitDecreasing | Strategy::FirstFitDecreasing);
        let word = |(index, waiting): (usize, &Waiting)| {
            let rank = if decreasing { u32::MAX - waiting.piece.length } else { 0 };
            u64::from(rank) << 32 | index as u64
        };
        self.order.clear();
        self.order.extend(window.iter().enumerate().map(word));
        if decreasing {
            self.order.sort_unstable();
        }
    }

    fn best_fit(&mut self, length: u32, window: &[Waiting]) {
        let spaces = self.spaces.get_or_insert_with(|| Spaces::new(length));
        for &word in &self.order {
            let index = word as u32 as usize;
            let needed = window[index].piece.length;
            let (room, sequence) = spaces.take(needed).unwrap_or_else(|| {
                self.room.push(length);
                (length, self.room.len() as u32 - 1)
            });
            self.sequences[index] = sequence;
            self.room[sequence as usize] = room - needed;
            if room > needed {
                spaces.put(room - needed, sequence);
            }
        }
        spaces.clear(&self.room);
    }

    fn first_fit(&mut self, length: u32, window: &[Waiting]) {
        for &word in &self.order {
            let index = word as u32 as usize;
            let needed = window[index].piece.length;
            let sequence = self.rooms.first(needed).unwrap_or_else(|| {
                self.room.push(length);
                self.rooms.open(length);
                self.room.len() as u32 - 1
            });
            self.sequences[index] = sequence;
            self.room[sequence as usize] -= needed;
            self.rooms.set(sequence, self.room[sequence as usize]);
        }
        self.rooms.clear();
    }
}
