//! The objects of a checkpoint, and which numbers each holds. Pure.

use std::ops::Range;

use super::layout::{Kind, Layout};
use super::manifest::{Manifest, PARTS};
use super::part::Part;
use super::pieces::{Piece, Stretch, pieces};

/// An object of a checkpoint, of any format that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) part: Part,
    /// Names of its tensors, and their contents in order.
    pub(super) tensors: Vec<(String, Piece)>,
    /// A virtual rank, and how many numbers its running statistics are, if they are there.
    pub(super) statistics: Option<(u32, usize)>,
}

impl Object {
    /// Its part of the common state of all ranks.
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

/// The places of numbers, if weights, first and second moments of the blocks are thought of as one row.
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

/// Of format 1: which of `count` numbers are in the virtual rank's part.
pub(super) fn share(count: usize, virtual_ranks: u32, virtual_rank: u32) -> Range<usize> {
    let bound = |rank: u32| (count as u128 * u128::from(rank) / u128::from(virtual_ranks)) as usize;
    bound(virtual_rank)..bound(virtual_rank + 1)
}
