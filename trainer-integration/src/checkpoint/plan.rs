//! The owners of a training's numbers, the ranks that write or read each object, and the messages for it.
//! Pure: every rank computes the same.

use std::ops::Range;

use super::layout::{Kind, Layout};
use super::pieces::{Piece, Stretch, length};
use crate::zero::mesh::Mesh;
use crate::zero::slices::Owners;
use crate::zero::{Slicing, Zero};

/// Who has which numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Whether each rank has a slice of the weights, instead of all.
    slices_weights: bool,
    /// And of what the optimizer remembers.
    slices_moments: bool,
    /// By rank its place among those that share the numbers. Several ranks may have the same slices.
    places: Vec<u32>,
    owners: Owners,
}

impl Holding {
    /// Ranks that share the numbers as this mesh says.
    pub(crate) fn of(mesh: &Mesh, slices_weights: bool, slices_moments: bool) -> Holding {
        let world = mesh.size() * mesh.count();
        let places = (0..world).map(|rank| mesh.of(rank).1).collect();
        Holding { slices_weights, slices_moments, places, owners: Owners { count: mesh.size() } }
    }

    /// A world of ranks that each have everything.
    pub(crate) fn everything(world: u32) -> Holding {
        let places = vec![0; world as usize];
        Holding { slices_weights: false, slices_moments: false, places, owners: Owners { count: 1 } }
    }

    /// The first state of ranks on these machines. Where they do not form such groups, which is refused
    /// elsewhere, everything.
    pub(crate) fn needed(slicing: Slicing, hosts: &[u32], rank: u32) -> Holding {
        let Slicing { zero, group } = slicing;
        match Mesh::new(hosts, group, rank) {
            Ok(mesh) if zero != Zero::Nothing => Holding::of(&mesh, zero == Zero::Parameters, true),
            _ => Holding::everything(hosts.len() as u32),
        }
    }

    /// How many ranks there are.
    pub(super) fn world(&self) -> u32 {
        self.places.len() as u32
    }

    /// Whether every rank has all numbers of this kind.
    fn is_by_all(&self, kind: Kind) -> bool {
        match kind {
            Kind::Weights => !self.slices_weights,
            Kind::First | Kind::Second => !self.slices_moments,
        }
    }

    /// Which numbers of this kind the rank has, in order.
    fn ranges(&self, layout: &Layout, block: usize, kind: Kind, rank: u32) -> Vec<Range<usize>> {
        let count = layout.blocks[block].count(kind);
        if self.is_by_all(kind) {
            return vec![0..count; 1];
        }
        let place = self.places[rank as usize];
        let trained = if kind == Kind::Weights { layout.blocks[block].trained.min(count) } else { count };
        let frozen = self.owners.slice(block, count - trained, place);
        let trained_of = self.owners.slice(block, trained, place);
        let mut ranges = vec![trained_of, trained + frozen.start..trained + frozen.end];
        ranges.retain(|range| !range.is_empty());
        ranges
    }

    /// The rank's part of a training: all that it keeps.
    pub(super) fn all_of(&self, layout: &Layout, rank: u32) -> Vec<Stretch> {
        let mut found = Vec::new();
        for block in 0..layout.blocks.len() {
            for kind in Kind::ALL {
                let ranges = self.ranges(layout, block, kind, rank).into_iter();
                let ranges = ranges.filter(|range| !range.is_empty());
                found.extend(ranges.map(|range| Stretch { block, kind, range }));
            }
        }
        found
    }

    /// Which numbers of a piece the rank has, counted from the piece's first: runs in order, none of which touch.
    pub(super) fn runs(&self, layout: &Layout, piece: &[Stretch], rank: u32) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut at = 0;
        for Stretch { block, kind, range } in piece {
            for held in self.ranges(layout, *block, *kind, rank) {
                let (from, to) = (held.start.max(range.start), held.end.min(range.end));
                if from >= to {
                    continue;
                }
                let run = at + from - range.start..at + to - range.start;
                match runs.last_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => runs.push(run),
                }
            }
            at += range.len();
        }
        runs
    }
}

/// Who brings an object together, and of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// Who writes it, or reads it.
    pub(super) rank: u32,
    /// Runs that together are the piece, each with a rank that has it: the writer's own first.
    pub(super) sources: Vec<(u32, Range<usize>)>,
}

/// Who writes which piece: who has most of it, and of these who has been given least so far, and of these the first.
pub(super) fn turns(holding: &Holding, layout: &Layout, pieces: &[Piece]) -> Vec<Turn> {
    let mut given = vec![0; holding.world() as usize];
    let turn = |piece: &Piece| {
        let count = length(piece);
        let is_by_all = piece.iter().all(|stretch| holding.is_by_all(stretch.kind));
        let ranks = 0..holding.world();
        let has: Vec<usize> = match is_by_all {
            true => vec![count; holding.world() as usize],
            false => ranks.clone().map(|rank| total(&holding.runs(layout, piece, rank))).collect(),
        };
        let by_share = |&rank: &u32| {
            let rank = rank as usize;
            (std::cmp::Reverse(has[rank]), given[rank])
        };
        let rank = ranks.clone().min_by_key(by_share).expect("a world has ranks");
        given[rank as usize] += count;
        if is_by_all {
            return Turn { rank, sources: vec![(rank, 0..count)] };
        }
        let mut left = vec![0..count; 1];
        let mut sources = Vec::new();
        for source in std::iter::once(rank).chain(ranks.filter(|other| *other != rank)) {
            let (found, rest) = split(left, &holding.runs(layout, piece, source));
            sources.extend(found.into_iter().map(|run| (source, run)));
            left = rest;
        }
        debug_assert!(left.is_empty(), "every number is somebody's");
        Turn { rank, sources }
    };
    pieces.iter().map(turn).collect()
}

fn total(runs: &[Range<usize>]) -> usize {
    runs.iter().map(ExactSizeIterator::len).sum()
}

/// The parts of some runs that are in others, and the rest. All are in order.
pub(super) fn split(
    of: Vec<Range<usize>>,
    others: &[Range<usize>],
) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    let (mut found, mut rest) = (Vec::new(), Vec::new());
    for mut run in of {
        for other in others {
            let (from, to) = (other.start.max(run.start), other.end.min(run.end));
            if from < to {
                if run.start < from {
                    rest.push(run.start..from);
                }
                found.push(from..to);
                run.start = to;
            }
        }
        if !run.is_empty() {
            rest.push(run);
        }
    }
    (found, rest)
}

/// The stretches of a piece's run, each with its place in the run.
pub(super) fn within(piece: &[Stretch], run: &Range<usize>) -> Vec<(usize, Stretch)> {
    let mut found = Vec::new();
    let mut at = 0;
    for Stretch { block, kind, range } in piece {
        let end = at + range.len();
        let (from, to) = (run.start.clamp(at, end), run.end.clamp(at, end));
        if from < to {
            let range = range.start + from - at..range.start + to - at;
            found.push((from - run.start, Stretch { block: *block, kind: *kind, range }));
        }
        at = end;
    }
    found
}

/// Who writes what of a training.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) pieces: Vec<Piece>,
    /// By piece.
    pub(super) turns: Vec<Turn>,
}

impl Plan {
    pub(super) fn of(holding: &Holding, layout: &Layout, pieces: Vec<Piece>) -> Plan {
        Plan { turns: turns(holding, layout, &pieces), pieces }
    }

    /// The pieces that the rank writes.
    pub(super) fn of_rank(&self, rank: u32) -> impl Iterator<Item = usize> {
        (0..).zip(&self.turns).filter(move |(_, turn)| turn.rank == rank).map(|(index, _)| index)
    }

    /// What `from` sends to `to`: runs of pieces, in the order in which they are sent.
    pub(super) fn sent(&self, from: u32, to: u32) -> impl Iterator<Item = (usize, &Range<usize>)> {
        self.of_rank(to).flat_map(move |index| {
            let sources = self.turns[index].sources.iter();
            sources.filter(move |(source, _)| *source == from).map(move |(_, run)| (index, run))
        })
    }

    /// Whether ranks send each other anything.
    pub(super) fn is_exchanged(&self) -> bool {
        self.turns.iter().any(|turn| turn.sources.iter().any(|(source, _)| *source != turn.rank))
    }
}
