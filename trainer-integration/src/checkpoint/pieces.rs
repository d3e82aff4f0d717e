//! Which numbers of a training lie in which object of its checkpoints. Pure.
//!
//! The numbers of a block are rows: its trained weights, its frozen weights, the first and the second moment. A long row is cut at multiples of
//! [`PIECE`] numbers, each piece an object; the cuts depend on the length of the row and on nothing else. Short rows (under [`SMALL`])
//! share objects of up to [`GROUP`] numbers with the next short ones, or a model of many small blocks would be thousands of tiny
//! objects. Trained and frozen rows never share one, because one kind changes in every step and the other never does; and only what is
//! small shares one at all, so that a block that changes has at most a megabyte of its neighbours written again.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::manifest::{BlockLayout, Layout, Manifest, PARTS};
use super::part::{Part, share};

/// Numbers of a piece: 4 MiB.
pub(super) const PIECE: usize = 1 << 20;

/// Rows that are shorter share objects: 256 KiB.
pub(super) const SMALL: usize = 1 << 16;

/// Numbers that short rows share an object up to: 1 MiB.
pub(super) const GROUP: usize = 1 << 18;

/// What the numbers of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Its parameters, the trained ones first.
    Weights,
    /// The optimizer's first moment, of the trained ones.
    First,
    /// Its second.
    Second,
}

impl Kind {
    /// All, in the order in which they are kept.
    pub const ALL: [Kind; 3] = [Kind::Weights, Kind::First, Kind::Second];

    /// What it is called in files.
    fn name(self) -> &'static str {
        match self {
            Kind::Weights => "weights",
            Kind::First => "first",
            Kind::Second => "second",
        }
    }
}

impl BlockLayout {
    /// Numbers of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Weights => self.weights,
            Kind::First => self.first,
            Kind::Second => self.second,
        }
    }
}

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
    /// What its tensor is called: block, kind, and where it begins.
    pub(super) fn name(&self) -> String {
        format!("{}.{}.{}", self.block, self.kind.name(), self.range.start)
    }
}

/// What lies in an object, in order.
pub(super) type Piece = Vec<Stretch>;

/// Numbers of a piece.
pub(super) fn length(piece: &[Stretch]) -> usize {
    piece.iter().map(|stretch| stretch.range.len()).sum()
}

/// The objects of what all ranks have in common, in the order in which a manifest names them. Every number is in one of them.
pub(super) fn pieces(layout: &Layout) -> Vec<Piece> {
    let mut pieces = Vec::new();
    // Of the short rows so far: what is trained, what is frozen.
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

/// An object of a checkpoint, of any format that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) part: Part,
    /// Names of its tensors, and what they hold one after the other.
    pub(super) tensors: Vec<(String, Piece)>,
    /// A virtual rank, and how many numbers its running statistics are, if they are there.
    pub(super) statistics: Option<(u32, usize)>,
}

impl Object {
    /// What it holds of what all ranks have in common.
    pub(super) fn piece(&self) -> Piece {
        self.tensors.iter().flat_map(|(_, piece)| piece).cloned().collect()
    }
}

/// The objects of a checkpoint whose manifest has been checked.
pub(super) fn objects(manifest: &Manifest) -> Vec<Object> {
    let Manifest { layout, virtual_ranks, .. } = manifest;
    let statistics = layout.statistics();
    if manifest.format == PARTS {
        let of = |(rank, &part): (u32, &Part)| {
            let common = cut(layout, share(layout.common(), *virtual_ranks, rank));
            Object {
                part,
                tensors: vec![("common".to_owned(), common)],
                statistics: Some((rank, statistics)),
            }
        };
        return (0..).zip(&manifest.parts).map(of).collect();
    }
    let common = pieces(layout).into_iter().zip(&manifest.pieces).map(|(piece, &part)| {
        let tensors = piece.into_iter().map(|stretch| (stretch.name(), vec![stretch])).collect();
        Object { part, tensors, statistics: None }
    });
    let own = (0..).zip(&manifest.statistics).map(|(rank, &part)| Object {
        part,
        tensors: Vec::new(),
        statistics: Some((rank, statistics)),
    });
    common.chain(own).collect()
}

/// What lies where, if weights, first and second moments of the blocks are thought of as one row.
fn cut(layout: &Layout, range: Range<usize>) -> Piece {
    let mut piece = Piece::new();
    let mut start = 0;
    for (block, layout) in layout.blocks.iter().enumerate() {
        for kind in Kind::ALL {
            let end = start + layout.count(kind);
            let (from, to) = (range.start.clamp(start, end), range.end.clamp(start, end));
            if from < to {
                piece.push(Stretch { block, kind, range: from - start..to - start });
            }
            start = end;
        }
    }
    piece
}
