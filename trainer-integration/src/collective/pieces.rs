//! The order in which the pieces of several messages travel. Pure: lengths in, ranges out.

use std::ops::Range;

/// The longest part of a message that is sent, checked and added as one: it fits into a core's own cache beside its sum.
pub const PIECE_BYTES: usize = 256 << 10;

/// The first piece of every message, in order, then the second of each, and so on. An empty message has one empty piece.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    lengths: Vec<usize>,
    offset: usize,
    message: usize,
}

impl Pieces {
    pub(super) fn of(lengths: impl IntoIterator<Item = usize>) -> Pieces {
        Pieces { lengths: lengths.into_iter().collect(), offset: 0, message: 0 }
    }

    /// How long the piece is that begins at `offset` of a message of `length` bytes.
    pub(super) fn length_at(offset: usize, length: usize) -> usize {
        PIECE_BYTES.min(length.saturating_sub(offset))
    }
}

impl Iterator for Pieces {
    type Item = (usize, Range<usize>);

    fn next(&mut self) -> Option<(usize, Range<usize>)> {
        // Whether this round, or the one just begun, has met a message that is not over.
        let mut fresh = self.message == 0;
        loop {
            while self.message < self.lengths.len() {
                let (message, offset) = (self.message, self.offset);
                self.message += 1;
                let length = self.lengths[message];
                if offset < length || (offset == 0 && length == 0) {
                    return Some((message, offset..offset + Pieces::length_at(offset, length)));
                }
            }
            if fresh {
                return None;
            }
            fresh = true;
            self.message = 0;
            self.offset += PIECE_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn longer_messages_go_on_alone() {
        let lengths = [PIECE_BYTES, 2 * PIECE_BYTES + 1, 0];
        let pieces: Vec<_> = Pieces::of(lengths).map(|(message, range)| (message, range.len())).collect();
        assert_eq!(pieces, [(0, PIECE_BYTES), (1, PIECE_BYTES), (2, 0), (1, PIECE_BYTES), (1, 1)]);
        assert_eq!(Pieces::of([]).next(), None);
    }

    proptest! {
        #[test]
        fn every_byte_is_in_one_piece_and_pieces_come_in_rounds(lengths in prop::collection::vec(0..5 * PIECE_BYTES, 0..6)) {
            let mut reached = vec![None; lengths.len()];
            let mut last = (0, 0);
            for (message, range) in Pieces::of(lengths.clone()) {
                prop_assert_eq!(range.start, reached[message].unwrap_or(0));
                prop_assert!(range.len() == PIECE_BYTES || range.end == lengths[message]);
                prop_assert!((range.start, message) >= last, "rounds, and the order of the list in each");
                last = (range.start, message);
                reached[message] = Some(range.end);
            }
            let ends: Vec<_> = lengths.into_iter().map(Some).collect();
            prop_assert_eq!(reached, ends);
        }
    }
}
