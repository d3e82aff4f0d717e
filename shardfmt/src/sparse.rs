//! Some rows of a grain, with the digests of its other rows: what proves single rows against the root of their shard.
//!
//! A cache that is smaller than its share reads rows one by one, for the rows of a grain are due at unrelated
//! positions of an epoch. Such rows travel like this and rest nowhere. All integers are little-endian `u32`:
//!
//! ```text
//! row count n | path length p | p x 32 bytes of path, lowest first | n ends of items | a byte for each item | the items
//! ```
//!
//! An item is a canonical row where its byte is 1, and the row's digest of 16 bytes where it is 0.

use crate::grain::{GrainError, GrainKey, take_u32};
use crate::merkle::{self, NodeHash};
use crate::row::RowDigest;

/// The kind of an item.
const DIGEST: u8 = 0;
const ROW: u8 = 1;

/// A row of a grain, or its leaf.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::RowDigest;
/// use shardfmt::sparse::{self, Item, SparseGrain};
///
/// let bytes = sparse::build(&[Item::Digest(RowDigest::of(b"one")), Item::Row(b"two")], &[]);
/// let grain = SparseGrain::parse(&bytes)?;
/// assert_eq!([grain.row(0), grain.row(1)], [None, Some(&b"two"[..])]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// Its canonical bytes.
    Row(&'a [u8]),
    /// Its digest.
    Digest(RowDigest),
}

/// A view of some rows of a grain. What [`SparseGrain::parse`] accepts is well formed; whether it is true,
/// [`SparseGrain::verify`] tells.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::sparse::{self, Item};
/// use shardfmt::{GrainKey, RowDigest, ShardId, SparseGrain, merkle};
///
/// // Row 1 alone, of a grain with all 4 rows of a shard.
/// let rows: Vec<RowDigest> = (0..4_u8).map(|n| RowDigest::of(&[n])).collect();
/// let items = [Item::Digest(rows[0]), Item::Row(&[1]), Item::Digest(rows[2]), Item::Digest(rows[3])];
/// let bytes = sparse::build(&items, &merkle::path(&rows, 4, 0));
///
/// let grain = SparseGrain::parse(&bytes)?;
/// let key = GrainKey { shard: ShardId::of(b"a shard's file"), rows: 4, index: 0 };
/// grain.verify(key, 4, merkle::root(&rows))?;
/// assert_eq!(grain.row(1), Some(&[1][..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct SparseGrain<'a> {
    path: &'a [[u8; 32]],
    ends: &'a [[u8; 4]],
    kinds: &'a [u8],
    items: &'a [u8],
}

/// The bytes of some rows of a grain, which the path leads to the root of their shard.
///
/// # Panics
///
/// If the rows have 4 GiB or more, which no shard has.
pub fn build(items: &[Item<'_>], path: &[NodeHash]) -> Vec<u8> {
    let small = |count: usize| u32::try_from(count).expect("a grain has less than 4 GiB").to_le_bytes();
    let length: usize = items.iter().map(|item| item.bytes().len() + 5).sum();
    let mut bytes = Vec::with_capacity(length + path.len() * 32 + 8);
    bytes.extend_from_slice(&small(items.len()));
    bytes.extend_from_slice(&small(path.len()));
    path.iter().for_each(|node| bytes.extend_from_slice(&node.0));
    let mut end = 0;
    for item in items {
        end += item.bytes().len();
        bytes.extend_from_slice(&small(end));
    }
    bytes.extend(items.iter().map(|item| if matches!(item, Item::Row(_)) { ROW } else { DIGEST }));
    items.iter().for_each(|item| bytes.extend_from_slice(item.bytes()));
    bytes
}

impl Item<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Item::Row(bytes) => bytes,
            Item::Digest(digest) => &digest.0,
        }
    }
}

impl<'a> SparseGrain<'a> {
    /// Reads the layout of the bytes; copies nothing.
    ///
    /// # Errors
    ///
    /// [`GrainError::Malformed`] when the bytes are not laid out as rows of a grain.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GrainError> {
        let malformed = |reason: &'static str| GrainError::Malformed { bytes: bytes.len(), reason };
        let (count, rest) = take_u32(bytes).ok_or_else(|| malformed("it has no row count"))?;
        let (path_length, rest) = take_u32(rest).ok_or_else(|| malformed("it has no path length"))?;
        if path_length > 32 {
            return Err(malformed("its path is longer than any shard's"));
        }
        let (path, rest) =
            rest.split_at_checked(path_length * 32).ok_or_else(|| malformed("its path is cut off"))?;
        let table = count.checked_mul(4).and_then(|length| rest.split_at_checked(length));
        let (ends, rest) = table.ok_or_else(|| malformed("its offset table is cut off"))?;
        let (kinds, items) =
            rest.split_at_checked(count).ok_or_else(|| malformed("its kinds are cut off"))?;
        let grain = Self { path: path.as_chunks().0, ends: ends.as_chunks().0, kinds, items };
        let mut start = 0;
        for (index, kind) in kinds.iter().enumerate() {
            let end = grain.end(index);
            if end < start || end > items.len() {
                return Err(malformed("its offset table leads astray"));
            }
            let is_whole = *kind == ROW || (*kind == DIGEST && end - start == size_of::<RowDigest>());
            if !is_whole {
                return Err(malformed("an item is neither a row nor a digest"));
            }
            start = end;
        }
        if start != items.len() {
            return Err(malformed("its length is not that of its rows"));
        }
        Ok(grain)
    }

    /// The canonical bytes of a row, if they are here.
    pub fn row(&self, index: u32) -> Option<&'a [u8]> {
        match self.item(index as usize)? {
            Item::Row(bytes) => Some(bytes),
            Item::Digest(_) => None,
        }
    }

    /// Checks the rows that are here against the Merkle root of the shard, which has `shard_rows` rows.
    ///
    /// # Errors
    ///
    /// [`GrainError::Corrupt`] when these are not rows that `key` names. Their sender is at fault.
    pub fn verify(&self, key: GrainKey, shard_rows: u32, root: NodeHash) -> Result<(), GrainError> {
        let expected = merkle::rows_in_grain(shard_rows, key.rows, key.index);
        let Some(expected) = expected.filter(|_| key.rows.is_power_of_two()) else {
            return Err(GrainError::NoSuchGrain { key, shard_rows });
        };
        if self.kinds.len() != expected as usize {
            let found = u32::try_from(self.kinds.len()).unwrap_or(u32::MAX);
            return Err(GrainError::WrongRowCount { key, expected, found });
        }
        let digest = |item| match item {
            Item::Row(bytes) => RowDigest::of(bytes),
            Item::Digest(digest) => digest,
        };
        let digests: Vec<RowDigest> =
            (0..self.kinds.len()).filter_map(|index| self.item(index)).map(digest).collect();
        let path: Vec<NodeHash> = self.path.iter().map(|node| NodeHash(*node)).collect();
        match merkle::verify(root, shard_rows, key.rows, key.index, &digests, &path) {
            true => Ok(()),
            false => Err(GrainError::Corrupt { key }),
        }
    }

    fn item(&self, index: usize) -> Option<Item<'a>> {
        let kind = *self.kinds.get(index)?;
        let start = if index == 0 { 0 } else { self.end(index - 1) };
        let bytes = &self.items[start..self.end(index)];
        match kind {
            ROW => Some(Item::Row(bytes)),
            _ => Some(Item::Digest(RowDigest(bytes.try_into().ok()?))),
        }
    }

    fn end(&self, index: usize) -> usize {
        u32::from_le_bytes(self.ends[index]) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::digest::ShardId;
    use crate::merkle::GrainTree;

    /// Some rows, cut into grains; one of them, and which of its rows are wanted.
    fn wanted() -> impl Strategy<Value = (Vec<Vec<u8>>, u32, u32, u32)> {
        let rows = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..40);
        (rows, 0..5u32, any::<prop::sample::Index>(), any::<u32>()).prop_map(|(rows, power, index, some)| {
            let count = rows.len().div_ceil(1 << power);
            (rows, 1 << power, index.index(count) as u32, some)
        })
    }

    fn sparse(rows: &[Vec<u8>], g: u32, index: u32, some: u32) -> (Vec<u8>, GrainKey, NodeHash) {
        let digests: Vec<RowDigest> = rows.iter().map(|row| RowDigest::of(row)).collect();
        let tree = GrainTree::new(&digests, g);
        let range = (index * g) as usize..rows.len().min(((index + 1) * g) as usize);
        let item = |(at, row): (usize, &'_ Vec<u8>)| (some >> (at % 32) & 1 == 1, row.clone());
        let picked: Vec<(bool, Vec<u8>)> = rows[range.clone()].iter().enumerate().map(item).collect();
        let items: Vec<Item<'_>> = picked
            .iter()
            .zip(&digests[range])
            .map(|((is_wanted, row), digest)| if *is_wanted { Item::Row(row) } else { Item::Digest(*digest) })
            .collect();
        let key = GrainKey { shard: ShardId::of(b"x"), rows: g, index };
        (build(&items, &tree.path(index)), key, tree.root())
    }

    proptest! {
        #[test]
        fn what_is_built_is_parsed_and_verified_and_has_the_rows_that_were_wanted((rows, g, index, some) in wanted()) {
            let (bytes, key, root) = sparse(&rows, g, index, some);
            let grain = SparseGrain::parse(&bytes).expect("own rows");
            prop_assert_eq!(grain.verify(key, rows.len() as u32, root), Ok(()));
            let start = (index * g) as usize;
            for (at, row) in rows[start..].iter().take(g as usize).enumerate() {
                let is_wanted = some >> (at % 32) & 1 == 1;
                prop_assert_eq!(grain.row(at as u32), is_wanted.then_some(row.as_slice()));
            }
            prop_assert_eq!(grain.row(g), None);
        }

        #[test]
        fn any_flipped_bit_is_noticed((rows, g, index, some) in wanted(), bit: prop::sample::Index) {
            let (mut bytes, key, root) = sparse(&rows, g, index, some);
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let noticed = SparseGrain::parse(&bytes).and_then(|grain| grain.verify(key, rows.len() as u32, root));
            prop_assert!(noticed.is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), rows: u32, index: u32, shard_rows: u32) {
            if let Ok(grain) = SparseGrain::parse(&bytes) {
                let key = GrainKey { shard: ShardId::of(b"x"), rows, index };
                prop_assert!(grain.verify(key, shard_rows, NodeHash([0; 32])).is_err());
                let _ = grain.row(index);
            }
        }
    }
}
