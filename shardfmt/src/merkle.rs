//! The Merkle tree over the rows of a shard: it lets any grain prove that it belongs to a shard of the manifest.
//!
//! The tree has the shape of RFC 6962: the left subtree of n > 1 leaves holds the largest power of two of them that is
//! below n. Leaves are row digests. Grains are aligned and a power of two long, so each is a subtree of its own and the
//! root does not depend on how long they are; proofs do. Knows nothing of rows but their digests.

mod part;

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::{DigestError, from_hex, from_text, to_hex};
use crate::keyed::KeyedHash;
use crate::row::RowDigest;

pub use part::{Apart, Part, path_among};

/// The hash of a subtree.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::{NodeHash, RowDigest, merkle};
///
/// let root = merkle::root(&[RowDigest::of(b"a row"), RowDigest::of(b"another")]);
/// assert_eq!(root.to_string().parse::<NodeHash>()?, root);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeHash(pub [u8; 32]);

static LEAF: LazyLock<KeyedHash> = LazyLock::new(|| KeyedHash::new("shardfmt 2026 merkle leaf v1"));
static NODE: LazyLock<KeyedHash> = LazyLock::new(|| KeyedHash::new("shardfmt 2026 merkle node v1"));

impl NodeHash {
    fn of_leaf(row: &RowDigest) -> Self {
        Self(LEAF.of(&row.0))
    }

    fn of_pair(left: &Self, right: &Self) -> Self {
        Self(NODE.of([left.0, right.0].as_flattened()))
    }
}

impl fmt::Display for NodeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl fmt::Debug for NodeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0[..6]))
    }
}

impl FromStr for NodeHash {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let mut bytes = [0; 32];
        from_hex(text, &mut bytes)?;
        Ok(Self(bytes))
    }
}

impl Serialize for NodeHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NodeHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// The part of a shard's tree above its grains: made once, it gives the path of every grain.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// # use std::sync::Arc;
/// # let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
/// # let rows = RecordBatch::try_from_iter([("label", labels)])?;
/// # let mut writer = shardfmt::ShardWriter::new(rows.schema())?;
/// # writer.push(&rows)?;
/// # let finished = writer.finish()?;
/// use shardfmt::GrainTree;
///
/// // 5 rows in grains of 2: the root is the shard's, with grains of any size.
/// let tree = GrainTree::new(&finished.sidecar.rows, 2);
/// assert_eq!(tree.grain_count(), 3);
/// assert_eq!(tree.root(), finished.entry.root);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct GrainTree {
    grain_rows: u32,
    /// From the grains up to the root. A node without a partner is its own parent.
    levels: Vec<Vec<NodeHash>>,
}

impl GrainTree {
    /// The tree of a shard whose rows have the given digests, cut into grains of `grain_rows`.
    ///
    /// # Panics
    ///
    /// If `grain_rows` is not a power of two.
    pub fn new(rows: &[RowDigest], grain_rows: u32) -> Self {
        assert!(grain_rows.is_power_of_two(), "a grain of {grain_rows} rows is no power of two");
        let grains = rows.chunks(grain_rows as usize).map(root).collect();
        Self { grain_rows, levels: levels_above(grains) }
    }

    /// How many rows a grain has; the last may have fewer.
    pub fn grain_rows(&self) -> u32 {
        self.grain_rows
    }

    /// How many grains there are.
    pub fn grain_count(&self) -> u32 {
        u32::try_from(self.levels[0].len()).expect("a shard has fewer than 2^32 rows")
    }

    /// The root of the shard.
    pub fn root(&self) -> NodeHash {
        self.levels[self.levels.len() - 1].first().copied().unwrap_or_else(|| root(&[]))
    }

    /// The hashes that lead from the grain at `index` to the root, lowest first.
    ///
    /// # Panics
    ///
    /// If there is no such grain.
    pub fn path(&self, index: u32) -> Vec<NodeHash> {
        assert!(index < self.grain_count(), "grain {index} of {}", self.grain_count());
        let mut at = index as usize;
        let mut path = Vec::with_capacity(self.levels.len());
        for level in &self.levels {
            path.extend(level.get(at ^ 1));
            at /= 2;
        }
        path
    }
}

/// The root of the tree over `rows`.
pub fn root(rows: &[RowDigest]) -> NodeHash {
    /// The root of no rows at all: a leaf key over nothing, which no row has.
    fn of_none() -> NodeHash {
        NodeHash(LEAF.of(&[]))
    }
    if let [row] = rows {
        return NodeHash::of_leaf(row); // as in grains of one row
    }
    let rows: Vec<&[u8]> = rows.iter().map(|row| row.0.as_slice()).collect();
    let mut level: Vec<NodeHash> = LEAF.of_each(&rows).into_iter().map(NodeHash).collect();
    while level.len() > 1 {
        level = parents(&level);
    }
    level.first().copied().unwrap_or_else(of_none)
}

/// The hashes that lead from one grain to the root, lowest first. For many grains make a [`GrainTree`].
///
/// # Panics
///
/// If `grain_rows` is not a power of two or there is no such grain.
pub fn path(rows: &[RowDigest], grain_rows: u32, index: u32) -> Vec<NodeHash> {
    GrainTree::new(rows, grain_rows).path(index)
}

/// Whether `rows_of_grain` are the rows of grain `index` of the shard with this root and number of rows.
///
/// ```
/// use shardfmt::{RowDigest, merkle};
///
/// let rows: Vec<RowDigest> = (0..5_u8).map(|n| RowDigest::of(&[n])).collect();
/// let (root, path) = (merkle::root(&rows), merkle::path(&rows, 2, 1));
/// assert!(merkle::verify(root, 5, 2, 1, &rows[2..4], &path));
/// assert!(!merkle::verify(root, 5, 2, 1, &rows[0..2], &path));
/// ```
pub fn verify(
    root: NodeHash,
    shard_rows: u32,
    grain_rows: u32,
    index: u32,
    rows_of_grain: &[RowDigest],
    path: &[NodeHash],
) -> bool {
    if rows_in_grain(shard_rows, grain_rows, index) != u32::try_from(rows_of_grain.len()).ok() {
        return false;
    }
    let grains = shard_rows.div_ceil(grain_rows);
    climb(self::root(rows_of_grain), index.into(), grains.into(), path) == Some(root)
}

/// The root that `path` leads to from node `at` of `count` on a level; `None` if that node has no such path.
pub fn climb(mut node: NodeHash, mut at: u64, mut count: u64, path: &[NodeHash]) -> Option<NodeHash> {
    if at >= count {
        return None;
    }
    let mut path = path.iter();
    while count > 1 {
        let has_partner = at % 2 == 1 || at + 1 < count;
        if has_partner {
            let partner = path.next()?;
            node = match at % 2 {
                1 => NodeHash::of_pair(partner, &node),
                _ => NodeHash::of_pair(&node, partner),
            };
        }
        (at, count) = (at / 2, count.div_ceil(2));
    }
    path.next().is_none().then_some(node)
}

/// How many rows grain `index` has; `None` when the shard has no such grain.
pub fn rows_in_grain(shard_rows: u32, grain_rows: u32, index: u32) -> Option<u32> {
    let start = index.checked_mul(grain_rows).filter(|start| grain_rows > 0 && *start < shard_rows)?;
    Some(grain_rows.min(shard_rows - start))
}

fn levels_above(lowest: Vec<NodeHash>) -> Vec<Vec<NodeHash>> {
    let mut levels = vec![lowest];
    while let Some(level) = levels.last().filter(|level| level.len() > 1) {
        let above = parents(level);
        levels.push(above);
    }
    levels
}

fn parents(level: &[NodeHash]) -> Vec<NodeHash> {
    let (pairs, alone) = level.as_chunks::<2>();
    let pairs: Vec<[[u8; 32]; 2]> = pairs.iter().map(|[left, right]| [left.0, right.0]).collect();
    let pairs: Vec<&[u8]> = pairs.iter().map(|pair| pair.as_flattened()).collect();
    NODE.of_each(&pairs).into_iter().map(NodeHash).chain(alone.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digests(count: usize) -> Vec<RowDigest> {
        (0..count).map(|row| RowDigest::of(&(row as u64).to_le_bytes())).collect()
    }

    /// The definition of RFC 6962, section 2.1, word for word.
    fn root_by_definition(rows: &[RowDigest]) -> NodeHash {
        match rows.len() {
            0 => root(&[]),
            1 => NodeHash::of_leaf(&rows[0]),
            n => {
                let split = (1usize << n.ilog2()).min(n - 1).next_power_of_two();
                let split = if split < n { split } else { split / 2 };
                NodeHash::of_pair(&root_by_definition(&rows[..split]), &root_by_definition(&rows[split..]))
            }
        }
    }

    /// The audit path of RFC 6962, section 2.1.1.
    fn path_by_definition(rows: &[RowDigest], index: usize) -> Vec<NodeHash> {
        if rows.len() == 1 {
            return Vec::new();
        }
        let split = rows.len().next_power_of_two() / 2;
        let (left, right) = rows.split_at(split);
        let (mut path, other) = match index < split {
            true => (path_by_definition(left, index), right),
            false => (path_by_definition(right, index - split), left),
        };
        path.push(root_by_definition(other));
        path
    }

    #[test]
    fn seven_leaves_have_the_shape_of_rfc_6962() {
        let rows = digests(7);
        let leaf: Vec<_> = rows.iter().map(NodeHash::of_leaf).collect();
        let pair = |a: &NodeHash, b: &NodeHash| NodeHash::of_pair(a, b);
        // Section 2.1.3: the names of the nodes are those of the RFC's figure.
        let (g, h, i, j) =
            (pair(&leaf[0], &leaf[1]), pair(&leaf[2], &leaf[3]), pair(&leaf[4], &leaf[5]), leaf[6]);
        let (k, l) = (pair(&g, &h), pair(&i, &j));
        assert_eq!(root(&rows), pair(&k, &l));
        assert_eq!(path(&rows, 1, 0), [leaf[1], h, l]);
        assert_eq!(path(&rows, 1, 3), [leaf[2], g, l]);
        assert_eq!(path(&rows, 1, 4), [leaf[5], j, k]);
        assert_eq!(path(&rows, 1, 6), [i, k]);
        assert_eq!(path(&rows, 4, 1), [k]);
        assert_eq!(path(&rows, 8, 0), []);
    }

    #[test]
    fn roots_are_what_the_format_document_says() {
        let shown = |count| root(&digests(count)).to_string();
        assert_eq!(shown(0), "721f52cb1cb568cf1283647a08e571973abe410ab6dee3335ad526c588eec6bf");
        assert_eq!(shown(1), "7a88841e000f417ce868514f0751ebdf52533609c06b9a381f9cead548291b0b");
        assert_eq!(shown(7), "6ba73701a517978d5e0cce3f58581ec7b3e4b8e181be4e8ccf5b22433ab53715");
    }

    #[test]
    fn grains_past_the_end_have_no_rows() {
        assert_eq!(rows_in_grain(10, 4, 1), Some(4));
        assert_eq!(rows_in_grain(10, 4, 2), Some(2));
        assert_eq!(rows_in_grain(10, 4, 3), None);
        assert_eq!(rows_in_grain(10, 0, 0), None);
        assert_eq!(rows_in_grain(u32::MAX, 1 << 31, u32::MAX), None);
    }

    proptest! {
        #[test]
        fn the_tree_is_that_of_the_rfc(count in 1..200usize, index: prop::sample::Index) {
            let rows = digests(count);
            let index = index.index(count);
            prop_assert_eq!(root(&rows), root_by_definition(&rows));
            prop_assert_eq!(path(&rows, 1, index as u32), path_by_definition(&rows, index));
        }

        #[test]
        fn the_root_does_not_depend_on_the_grain(count in 1..500usize, power in 0..10u32) {
            let rows = digests(count);
            prop_assert_eq!(GrainTree::new(&rows, 1 << power).root(), root(&rows));
        }

        #[test]
        fn every_grain_proves_itself_and_nothing_else(
            count in 1..300u32, power in 0..8u32, index: prop::sample::Index, other: prop::sample::Index, bit in 0..256usize,
        ) {
            let (rows, g) = (digests(count as usize), 1 << power);
            let tree = GrainTree::new(&rows, g);
            let index = index.index(tree.grain_count() as usize) as u32;
            let range = (index * g) as usize..((index + 1) * g).min(count) as usize;
            let (grain, path, root) = (&rows[range.clone()], tree.path(index), tree.root());
            prop_assert!(verify(root, count, g, index, grain, &path));
            prop_assert!(!verify(root, count, g, index, &rows[range.start..range.end - 1], &path));
            let other = other.index(tree.grain_count() as usize) as u32;
            prop_assert!(other == index || !verify(root, count, g, other, grain, &path));
            prop_assert!(!verify(root, count, g, index, grain, &[&path[..], &[root]].concat()));
            if let Some((_, shorter)) = path.split_last() {
                prop_assert!(!verify(root, count, g, index, grain, shorter));
                let mut wrong = path.clone();
                wrong[bit % path.len()].0[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(!verify(root, count, g, index, grain, &wrong));
            }
            let mut wrong = grain.to_vec();
            wrong[bit % grain.len()].0[bit / 16] ^= 1 << (bit % 8);
            prop_assert!(!verify(root, count, g, index, &wrong, &path));
        }
    }
}
