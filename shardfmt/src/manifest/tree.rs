//! The BLAKE3 tree of a long file, kept beside it, by which any part of the file is verified against the file's name.
//!
//! BLAKE3 hashes a file as a binary tree; a *chaining value* stands for one subtree. Kept are those of groups
//! of 16 KiB, and, so that no more of them need be read than are used, those of spans of 512 groups. The
//! writer of the tree is not trusted: everything read of it has to lead to the name. Knows nothing of what
//! the file holds.

use std::ops::Range;

use blake3::Hasher;
use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use rayon::prelude::*;

use crate::digest::Digest;

/// Files up to this length have no tree: they are read whole.
pub(crate) const TREE_FROM: u64 = 256 << 10;

/// The unit of verification.
pub(super) const GROUP: u64 = 16 << 10;

/// Groups whose chaining values are read as one.
const GROUPS_PER_SPAN: u64 = 512;
const SPAN: u64 = GROUP * GROUPS_PER_SPAN;

const MAGIC: &[u8; 8] = b"SHARDTRE";
const FORMAT: u32 = 1;
const HEAD: u64 = 20;
const VALUE: u64 = 32;

/// The most that the head of a tree may take: 2 TiB of file.
const LONGEST_HEAD: u64 = 8 << 20;

/// Enough of a tree to know how much of it is needed: all of its head, mostly.
pub(super) const BEGINNING: Range<u64> = 0..4096;

/// The file with the tree of `bytes`; `None` where there is no need of one.
pub fn tree_of(bytes: &[u8]) -> Option<Vec<u8>> {
    let length = bytes.len() as u64;
    if length <= TREE_FROM {
        return None;
    }
    let groups: Vec<ChainingValue> = bytes
        .par_chunks(GROUP as usize)
        .enumerate()
        .map(|(number, group)| chaining_value(number as u64, group))
        .collect();
    let spans = groups.chunks(GROUPS_PER_SPAN as usize).map(merged);
    let mut tree = [&MAGIC[..], &FORMAT.to_le_bytes(), &length.to_le_bytes()].concat();
    // The only span there is would be the file.
    if length > SPAN {
        tree.extend(spans.flatten());
    }
    tree.extend(groups.iter().flatten());
    Some(tree)
}

/// The part read of a tree at first, verified: the declared length of the file, and the chaining values of
/// its spans.
#[derive(Debug)]
pub(super) struct TreeHead {
    /// True when the last byte of the file has been verified.
    pub(super) length: u64,
    spans: Vec<ChainingValue>,
    root: Digest,
}

impl TreeHead {
    /// How long the head of a tree is, by its beginning.
    pub(super) fn extent(beginning: &[u8]) -> Option<u64> {
        let (magic, rest) = beginning.split_first_chunk()?;
        let (format, rest) = rest.split_first_chunk()?;
        let (length, _) = rest.split_first_chunk()?;
        let length = u64::from_le_bytes(*length);
        let known = magic == MAGIC && u32::from_le_bytes(*format) == FORMAT && length > TREE_FROM;
        let extent = HEAD + span_count(length) * VALUE;
        (known && extent <= LONGEST_HEAD).then_some(extent)
    }

    /// Reads the head; `None` unless it leads to the `root`.
    pub(super) fn parse(head: &[u8], root: Digest) -> Option<Self> {
        let extent = Self::extent(head)?;
        let length = u64::from_le_bytes(*head.get(12..)?.first_chunk()?);
        let spans = values_in(head.get(HEAD as usize..usize::try_from(extent).ok()?)?);
        let right = spans.is_empty() || root_of(&spans) == Some(root);
        right.then_some(Self { length, spans, root })
    }

    /// The span that a group lies in.
    pub(super) fn span_of(group: u64) -> u64 {
        group / GROUPS_PER_SPAN
    }

    /// Where in the tree the chaining values of a span's groups lie.
    pub(super) fn groups_place(&self, span: u64) -> Range<u64> {
        let start = HEAD + (self.spans.len() as u64 + span * GROUPS_PER_SPAN) * VALUE;
        let groups = (self.length - span * SPAN).min(SPAN).div_ceil(GROUP);
        start..start + groups * VALUE
    }

    /// The chaining values of a span's groups; `None` unless they lead to the span's.
    pub(super) fn groups(&self, span: u64, read: &[u8]) -> Option<Vec<ChainingValue>> {
        let place = self.groups_place(span);
        if read.len() as u64 != place.end - place.start {
            return None;
        }
        let groups = values_in(read);
        let right = match self.spans.get(span as usize) {
            Some(value) => merged(&groups) == *value,
            None => root_of(&groups) == Some(self.root),
        };
        right.then_some(groups)
    }
}

/// Whether `group` is the one with that number.
pub(super) fn is_group(number: u64, group: &[u8], values: &[ChainingValue]) -> bool {
    values.get((number % GROUPS_PER_SPAN) as usize) == Some(&chaining_value(number, group))
}

fn span_count(length: u64) -> u64 {
    if length > SPAN { length.div_ceil(SPAN) } else { 0 }
}

fn values_in(bytes: &[u8]) -> Vec<ChainingValue> {
    bytes.as_chunks().0.to_vec()
}

fn chaining_value(number: u64, group: &[u8]) -> ChainingValue {
    Hasher::new().set_input_offset(number * GROUP).update(group).finalize_non_root()
}

/// The chaining value of neighbours that are all of the same size, but for the last, which may be smaller.
fn merged(values: &[ChainingValue]) -> ChainingValue {
    match values {
        [] => [0; 32],
        [value] => *value,
        values => {
            let (left, right) = split(values);
            merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

/// The digest of a file of at least two such neighbours.
fn root_of(values: &[ChainingValue]) -> Option<Digest> {
    let (left, right) = if values.len() > 1 { split(values) } else { return None };
    Some(Digest(*merge_subtrees_root(&merged(left), &merged(right), Mode::Hash).as_bytes()))
}

/// On the left lies the largest power of two that leaves something on the right.
fn split(values: &[ChainingValue]) -> (&[ChainingValue], &[ChainingValue]) {
    values.split_at(1 << (values.len() - 1).ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_lead_to_the_digest_of_their_file() {
        let bytes: Vec<u8> = (0..20_000_000u32).map(|at| (at * 7 / 1000) as u8).collect();
        let lengths = [
            TREE_FROM + 1,
            TREE_FROM + GROUP,
            SPAN - 1,
            SPAN,
            SPAN + 1,
            SPAN + GROUP,
            2 * SPAN,
            2 * SPAN + 1,
            bytes.len() as u64,
        ];
        for length in lengths {
            let bytes = &bytes[..length as usize];
            let tree = tree_of(bytes).expect("it is long");
            let extent = TreeHead::extent(&tree[..HEAD as usize]).expect("own tree");
            let head =
                TreeHead::parse(&tree[..extent as usize], Digest::of(bytes)).expect("leads to the digest");
            assert_eq!(head.length, length);
            assert!(
                TreeHead::parse(&tree[..extent as usize], Digest::of(b"another")).is_none() || extent == HEAD
            );
            for span in 0..length.div_ceil(SPAN) {
                let place = head.groups_place(span);
                let read = &tree[place.start as usize..place.end as usize];
                let values = head.groups(span, read).expect("they lead to the digest");
                let first = span * GROUPS_PER_SPAN;
                for number in first..first + values.len() as u64 {
                    let group = &bytes[(number * GROUP) as usize..];
                    let group = &group[..group.len().min(GROUP as usize)];
                    assert!(is_group(number, group, &values), "group {number} of {length} bytes");
                    assert!(!is_group(number + 1, group, &values), "nor is it another");
                }
            }
            assert_eq!(head.groups_place((length - 1) / SPAN).end, tree.len() as u64, "the tree ends there");
        }
        assert_eq!(tree_of(&bytes[..TREE_FROM as usize]), None);
    }

    #[test]
    fn trees_of_impossible_files_are_none() {
        let tree = |length: u64| [&MAGIC[..], &FORMAT.to_le_bytes(), &length.to_le_bytes()].concat();
        assert_eq!(TreeHead::extent(&tree(TREE_FROM + 1)), Some(HEAD));
        for length in [0, TREE_FROM, u64::MAX, 1 << 60] {
            assert_eq!(TreeHead::extent(&tree(length)), None, "{length}");
        }
        assert_eq!(TreeHead::extent(b"SHARDTRE"), None);
    }
}
