//! Which numbers of a training lie in which object of its checkpoints. Pure.
//!
//! The numbers of a block are rows: its trained weights, its frozen weights, the first and the second moment.
//! A long row is cut at multiples of [`PIECE`] numbers, each piece an object; the cuts depend on the length
//! of the row and on nothing else. Short rows (under [`SMALL`]) share objects of up to [`GROUP`] numbers with
//! the next short ones, or a model of many small blocks would be thousands of tiny objects. Trained and
//! frozen rows never share one, because one kind changes in every step and the other never does; and only
//! small rows share one at all, so that a changed block has at most a megabyte of its neighbours written
//! again.

use std::ops::Range;

use super::layout::{Kind, Layout};

/// Numbers of a piece: 4 MiB.
pub(super) const PIECE: usize = 1 << 20;

/// Rows that are shorter share objects: 256 KiB.
pub(super) const SMALL: usize = 1 << 16;

/// Numbers that short rows share an object up to: 1 MiB.
pub(super) const GROUP: usize = 1 << 18;

/// Some of a block's numbers of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Which block.
    pub block: usize,
    /// Which numbers.
    pub kind: Kind,
    /// Which of these.
    pub range: Range<usize>,
}

impl Stretch {
    /// The name of its tensor: block, kind, and where it begins.
    pub(super) fn name(&self) -> String {
        format!("{}.{}.{}", self.block, self.kind.name(), self.range.start)
    }
}

/// The contents of an object, in order.
pub(super) type Piece = Vec<Stretch>;

/// Numbers of a piece.
pub(super) fn length(piece: &[Stretch]) -> usize {
    piece.iter().map(|stretch| stretch.range.len()).sum()
}

/// The objects of what all ranks have in common, in the order in which a manifest names them. Every number is in one of them.
pub(super) fn pieces(layout: &Layout) -> Vec<Piece> {
    let mut pieces = Vec::new();
    // Of the short rows so far: the trained ones, and the frozen ones.
    let mut groups = [Piece::new(), Piece::new()];
    for (block, layout) in layout.blocks.iter().enumerate() {
        let trained = layout.trained.min(layout.weights);
        let rows = [
            (0, Kind::Weights, 0..trained),
            (0, Kind::First, 0..layout.first),
            (0, Kind::Second, 0..layout.second),
            (1, Kind::Weights, trained..layout.weights),
        ];
        for (group, kind, row) in rows {
            if row.len() >= SMALL {
                for start in row.clone().step_by(PIECE) {
                    let range = start..row.end.min(start + PIECE);
                    pieces.push(vec![Stretch { block, kind, range }]);
                }
            } else if !row.is_empty() {
                let group = &mut groups[group];
                if length(group) + row.len() > GROUP {
                    pieces.push(std::mem::take(group));
                }
                group.push(Stretch { block, kind, range: row });
            }
        }
    }
    pieces.extend(groups.into_iter().filter(|group| !group.is_empty()));
    pieces
}
