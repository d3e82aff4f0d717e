//! Two binary trees at once (Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
//! Parallel Computing 2009; NCCL calls them double binary trees). Each tree adds up one half of the numbers on the way to its
//! root, and passes the sums back down. A rank with children in one tree has at most one child in the other. So no rank sends
//! more than twice its bytes, and the number of rounds grows with the logarithm of the world.
//!
//! Segments of a half follow each other through a tree. In round t a rank of depth d of a tree of depth D sends segment
//! t - (D - d) up and segment t - (D + d) down: it has received both in the round before.

use super::team::Team;
use crate::collective::numbers::{Number, numbers};
use crate::collective::{CollectiveError, Incoming, Outgoing, PIECE_BYTES, Place};

/// The bytes of a segment: few enough that a tree is filled soon, and enough that latency does not count.
pub(super) const SEGMENT_BYTES: usize = PIECE_BYTES;

/// A rank in one of the trees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// `None` at the root.
    pub(super) parent: Option<u32>,
    /// The child whose numbers are added on the left.
    pub(super) left: Option<u32>,
    /// The child whose numbers are added on the right.
    pub(super) right: Option<u32>,
    /// Edges to the root.
    pub(super) depth: u32,
}

impl Node {
    /// Rank `rank` of `world` in tree 0 or 1. Tree 1 is tree 0 with its ranks mirrored, or moved by one in an odd world.
    pub(super) fn of(tree: usize, rank: u32, world: u32) -> Node {
        let is_odd = world % 2 == 1;
        let position = match (tree, is_odd) {
            (0, _) => rank,
            (_, false) => world - 1 - rank,
            (_, true) => (rank + world - 1) % world,
        };
        let rank_of = |position: u32| match (tree, is_odd) {
            (0, _) => position,
            (_, false) => world - 1 - position,
            (_, true) => (position + 1) % world,
        };
        let [left, right] = children(position, world).map(|child| child.map(rank_of));
        let parent = parent(position, world).map(rank_of);
        Node { parent, left, right, depth: depth(position, world) }
    }

    fn children(&self) -> impl Iterator<Item = (u32, bool)> {
        let left = self.left.map(|child| (child, true));
        left.into_iter().chain(self.right.map(|child| (child, false)))
    }
}

/// The parent in the tree whose leaves are the odd positions; position 0 is the root.
fn parent(position: u32, world: u32) -> Option<u32> {
    if position == 0 {
        return None;
    }
    let lowest = position & position.wrapping_neg();
    let above = (position ^ lowest) | (lowest << 1);
    Some(if above < world { above } else { position ^ lowest })
}

/// Left and right child there.
fn children(position: u32, world: u32) -> [Option<u32>; 2] {
    let reach = if position == 0 { world.next_power_of_two() } else { position & position.wrapping_neg() };
    // The root has one child, on its right.
    let left = (position > 0 && reach > 1).then(|| position - reach / 2);
    let mut step = reach / 2;
    while step > 0 && position + step >= world {
        step /= 2;
    }
    [left, (step > 0).then_some(position + step)]
}

fn depth(position: u32, world: u32) -> u32 {
    let mut depth = 0;
    let mut at = position;
    while let Some(above) = parent(at, world) {
        (at, depth) = (above, depth + 1);
    }
    depth
}

/// The depth of both trees, at most log2 of the world, rounded up.
fn height(world: u32) -> u32 {
    (0..world).map(|position| depth(position, world)).max().unwrap_or(0)
}

/// The rounds of `segments` segments.
fn rounds(segments: usize, height: u32) -> usize {
    if segments == 0 { 0 } else { segments + 2 * height as usize - 1 }
}

pub(super) fn all_reduce<T: Number>(team: &mut Team<'_>, all: &mut [T]) -> Result<(), CollectiveError> {
    let (rank, world) = (team.rank(), team.world());
    if world == 1 {
        return Ok(());
    }
    let height = height(world);
    let nodes = [0, 1].map(|tree| Node::of(tree, rank, world));
    let (first, second) = all.split_at_mut(all.len() / 2);
    let segment = SEGMENT_BYTES / size_of::<T>();
    let mut halves: [Vec<&mut [T]>; 2] = [first, second].map(|half| half.chunks_mut(segment).collect());
    let most = halves.iter().map(Vec::len).max().unwrap_or(0);
    for round in 0..rounds(most, height) {
        let (mut outgoing, mut incoming) = (Vec::new(), Vec::new());
        // By expected message: where it is added, and whether on the left; `None` if it replaces a segment.
        let mut added: Vec<Option<(usize, bool)>> = Vec::new();
        let mut sums: Vec<&mut [T]> = Vec::new();
        for (node, half) in nodes.iter().zip(&mut halves) {
            let after = |rounds: u32| round.checked_sub(rounds as usize);
            let up = node.parent.and(after(height - node.depth));
            let gathered = (height > node.depth).then(|| after(height - node.depth - 1)).flatten();
            let down = after(height + node.depth);
            let received = node.parent.and(after(height + node.depth - u32::from(node.parent.is_some())));
            for (index, segment) in half.iter_mut().enumerate() {
                let index = Some(index);
                if index == up {
                    let to = node.parent.expect("only a rank with a parent sends up");
                    outgoing.push(Outgoing { to, bytes: bytemuck::cast_slice(segment) });
                } else if index == down {
                    let bytes = bytemuck::cast_slice(segment);
                    outgoing.extend(node.children().map(|(to, _)| Outgoing { to, bytes }));
                } else if index == received {
                    let from = node.parent.expect("sums come from a parent");
                    let into = Place::Slice(bytemuck::cast_slice_mut(segment));
                    incoming.push(Incoming { from, into });
                    added.push(None);
                } else if index == gathered {
                    let bytes = size_of_val(&**segment);
                    for (from, is_left) in node.children() {
                        incoming.push(Incoming { from, into: Place::Sink(bytes) });
                        added.push(Some((sums.len(), is_left)));
                    }
                    sums.push(segment);
                }
            }
        }
        if outgoing.is_empty() && incoming.is_empty() {
            continue;
        }
        team.transfer(&mut outgoing, &mut incoming, &mut |piece| {
            let (sum, is_left) = added[piece.incoming].expect("only messages of children come in pieces");
            let theirs = numbers::<T>(piece.bytes);
            let start = piece.offset / size_of::<T>();
            for (mine, &theirs) in sums[sum][start..].iter_mut().zip(theirs.iter()) {
                *mine = if is_left { theirs.plus(*mine) } else { mine.plus(theirs) };
            }
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn both_trees_reach_every_rank_and_no_rank_works_in_both(world in 1..300u32) {
            let digits = world.next_power_of_two().ilog2();
            let mut children = vec![[0; 2]; world as usize];
            for tree in [0, 1] {
                let nodes: Vec<Node> = (0..world).map(|rank| Node::of(tree, rank, world)).collect();
                prop_assert_eq!(nodes.iter().filter(|node| node.parent.is_none()).count(), 1);
                for (rank, node) in (0..world).zip(&nodes) {
                    prop_assert!(node.depth <= digits, "rank {} at {} of {}", rank, node.depth, world);
                    for (child, _) in node.children() {
                        let below = &nodes[child as usize];
                        prop_assert_eq!((below.parent, below.depth), (Some(rank), node.depth + 1));
                        children[rank as usize][tree] += 1;
                    }
                    if let Some(parent) = node.parent {
                        prop_assert!(nodes[parent as usize].children().any(|(child, _)| child == rank));
                    }
                }
            }
            for [one, other] in children {
                prop_assert!(one + other <= 2, "{one} children in one tree, {other} in the other");
            }
            prop_assert!(height(world) <= digits);
        }
    }
}
