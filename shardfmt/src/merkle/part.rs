//! Parts of a tree that are computed in parallel and merged: a part with consecutive leaves keeps the largest
//! subtrees over them, at most two of each height, and needs no leaf any more.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{NodeHash, root};

/// The subtrees over the leaves `begin..end` of a tree, from left to right. A leaf is whatever hash it is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Part {
    begin: u64,
    end: u64,
    nodes: Vec<NodeHash>,
}

/// Two parts that do not follow each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("leaves {begin} and on do not follow those before {end}")]
pub struct Apart {
    /// Where the first part ends.
    pub end: u64,
    /// Where the second begins.
    pub begin: u64,
}

impl Part {
    /// The part that begins at leaf `begin` and has no leaves yet.
    pub fn at(begin: u64) -> Self {
        Self { begin, end: begin, nodes: Vec::new() }
    }

    /// Which leaves it covers.
    pub fn leaves(&self) -> Range<u64> {
        self.begin..self.end
    }

    /// Takes the next leaf.
    pub fn push(&mut self, leaf: NodeHash) {
        self.add(0, leaf);
    }

    /// Takes the leaves of `next`, which must follow those that are here.
    ///
    /// # Errors
    /// [`Apart`] if they do not; nothing is changed then.
    pub fn join(&mut self, next: &Part) -> Result<(), Apart> {
        if next.begin != self.end {
            return Err(Apart { end: self.end, begin: next.begin });
        }
        heights(next.leaves()).zip(&next.nodes).for_each(|(height, node)| self.add(height, *node));
        Ok(())
    }

    /// The root of the tree whose leaves these are, if they begin with its first.
    pub fn root(&self) -> Option<NodeHash> {
        (self.begin == 0).then(|| self.top())
    }

    /// The hash above all leaves; one of the tree if they are all that its subtree there has.
    fn top(&self) -> NodeHash {
        let joined = |right: NodeHash, left: &NodeHash| NodeHash::of_pair(left, &right);
        let above = self.nodes.split_last().map(|(last, lefts)| lefts.iter().rev().fold(*last, joined));
        above.unwrap_or_else(|| root(&[]))
    }

    /// Takes the next subtree, which is whole and as high as declared, and begins where one of that height
    /// may.
    fn add(&mut self, mut height: u32, mut node: NodeHash) {
        let end = self.end + (1 << height);
        // The subtree on the right is joined with the one on its left, if all of that is here.
        while self.end >> height & 1 == 1 && ((self.end >> height) - 1) << height >= self.begin {
            let left = self.nodes.pop().expect("it covers the leaves before");
            node = NodeHash::of_pair(&left, &node);
            height += 1;
        }
        self.nodes.push(node);
        self.end = end;
    }
}

/// The hashes that lead from leaf `index` of `count` to the root, lowest first: what [`climb`](super::climb) wants.
///
/// # Panics
///
/// If there is no such leaf, or there are not `count` leaves.
pub fn path_among(leaves: impl IntoIterator<Item = NodeHash>, index: u64, count: u64) -> Vec<NodeHash> {
    assert!(index < count, "leaf {index} of {count}");
    let levels = count.next_power_of_two().ilog2();
    let mut beside: Vec<Part> =
        (0..levels).map(|height| Part::at(((index >> height) ^ 1) << height)).collect();
    let mut leaves = leaves.into_iter();
    for at in 0..count {
        let leaf = leaves.next().expect("their count is the declared one");
        if at != index {
            // Where their numbers first differ, the two part.
            beside[(at ^ index).ilog2() as usize].push(leaf);
        }
    }
    beside.iter().filter(|part| !part.leaves().is_empty()).map(Part::top).collect()
}

/// The heights of the subtrees over some leaves, from left to right.
fn heights(leaves: Range<u64>) -> impl Iterator<Item = u32> {
    let mut at = leaves.start;
    std::iter::from_fn(move || {
        let left = leaves.end.checked_sub(at).filter(|left| *left > 0)?;
        let height = at.trailing_zeros().min(left.ilog2());
        at += 1 << height;
        Some(height)
    })
}

/// A part as it is read, before anything is known of it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    begin: u64,
    end: u64,
    nodes: Vec<NodeHash>,
}

impl TryFrom<Written> for Part {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let Written { begin, end, nodes } = written;
        let wanted = heights(begin..end).count();
        if begin > end || nodes.len() != wanted {
            return Err(format!(
                "a part of leaves {begin} to {end} has {wanted} subtrees, not {}",
                nodes.len()
            ));
        }
        Ok(Self { begin, end, nodes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{RowDigest, climb, path};
    use super::*;

    fn rows(count: u64) -> Vec<RowDigest> {
        (0..count).map(|row| RowDigest::of(&row.to_le_bytes())).collect()
    }

    fn part(rows: &[RowDigest], leaves: Range<u64>) -> Part {
        let mut part = Part::at(leaves.start);
        leaves.for_each(|leaf| part.push(NodeHash::of_leaf(&rows[leaf as usize])));
        part
    }

    #[test]
    fn what_does_not_follow_is_not_joined() {
        let rows = rows(9);
        let mut first = part(&rows, 0..4);
        let before = first.clone();
        assert_eq!(first.join(&part(&rows, 5..9)), Err(Apart { end: 4, begin: 5 }));
        assert_eq!(first, before);
        assert_eq!(part(&rows, 5..9).root(), None);
    }

    #[test]
    fn parts_that_cannot_be_are_refused() {
        let whole = serde_json::to_value(part(&rows(7), 0..7)).unwrap();
        for (field, value) in [("begin", 9), ("end", 8), ("end", u64::MAX), ("more", 1)] {
            let mut wrong = whole.clone();
            wrong[field] = value.into();
            assert!(serde_json::from_value::<Part>(wrong).is_err(), "{field} {value}");
        }
        let mut vast = serde_json::json!({ "begin": u64::MAX, "end": u64::MAX, "nodes": [] });
        let mut part: Part = serde_json::from_value(vast.clone()).unwrap();
        assert_eq!(part.join(&part.clone()), Ok(()));
        vast["begin"] = 0.into();
        assert!(serde_json::from_value::<Part>(vast).is_err());
    }

    proptest! {
        #[test]
        fn parts_cut_anywhere_and_joined_in_any_order_make_the_tree(
            count in 0..300u64, cuts in prop::collection::vec(0..300u64, 0..6), backwards: bool,
        ) {
            let rows = rows(count);
            let mut bounds: Vec<u64> = cuts.into_iter().map(|cut| cut.min(count)).chain([0, count]).collect();
            bounds.sort_unstable();
            let parts = bounds.windows(2).map(|pair| part(&rows, pair[0]..pair[1])).collect::<Vec<_>>();
            let join = |mut left: Part, right: &Part| {
                left.join(right).expect("they follow each other");
                left
            };
            let whole = match backwards {
                false => parts.iter().fold(Part::at(0), join),
                true => parts.iter().rev().fold(Part::at(count), |right, left| join(left.clone(), &right)),
            };
            prop_assert_eq!(whole.root(), Some(root(&rows)));
            prop_assert_eq!(&whole, &part(&rows, 0..count));
            let text = serde_json::to_string(&parts).unwrap();
            prop_assert_eq!(serde_json::from_str::<Vec<Part>>(&text).unwrap(), parts);
        }

        #[test]
        fn a_path_among_leaves_is_that_of_the_tree_and_leads_to_its_root(
            count in 1..300u64, index: prop::sample::Index, bit in 0..256usize,
        ) {
            let rows = rows(count);
            let index = index.index(count as usize) as u64;
            let found = path_among(rows.iter().map(NodeHash::of_leaf), index, count);
            prop_assert_eq!(&found, &path(&rows, 1, index as u32));
            let leaf = NodeHash::of_leaf(&rows[index as usize]);
            prop_assert_eq!(climb(leaf, index, count, &found), Some(root(&rows)));
            let mut wrong = leaf;
            wrong.0[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(climb(wrong, index, count, &found), Some(root(&rows)));
            prop_assert_eq!(climb(leaf, count, count, &found), None);
        }
    }
}
