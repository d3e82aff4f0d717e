//! Grains: the runs of rows that are exchanged, cached and verified as one.
//!
//! A grain's bytes are self-contained: the canonical rows, where each ends, and the path that proves them against the
//! Merkle root of their shard. They travel and rest in this one form. All integers are little-endian `u32`:
//!
//! ```text
//! row count n | path length p | p x 32 bytes of path, lowest first | n ends of rows | the rows
//! ```

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::digest::ShardId;
use crate::merkle::{self, NodeHash};
use crate::row::RowDigest;

/// Names a grain: its shard, the rows per grain (a power of two), and which of the shard's grains it is.
///
/// ```
/// use shardfmt::{GrainKey, ShardId};
///
/// let key = GrainKey { shard: ShardId::of(b"a shard's file"), rows: 64, index: 2 };
/// assert_eq!(key.to_string(), format!("{}/2x64", key.shard.short()));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrainKey {
    /// The shard whose rows these are.
    pub shard: ShardId,
    /// Rows per grain, a power of two; the last grain of a shard may have fewer.
    pub rows: u32,
    /// The number of the grain in its shard, from 0.
    pub index: u32,
}

impl fmt::Display for GrainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}x{}", self.shard.short(), self.index, self.rows)
    }
}

/// A view of a grain's bytes. What [`Grain::parse`] accepts is well formed; whether it is true, [`Grain::verify`] tells.
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
/// use shardfmt::{Grain, GrainKey, GrainTree, Shard};
///
/// let shard = Shard::from_bytes(finished.bytes)?;
/// let tree = GrainTree::new(&finished.sidecar.rows, 2);
/// let bytes = shard.grain_in(&tree, 1)?;
///
/// let grain = Grain::parse(&bytes)?;
/// let key = GrainKey { shard: finished.id, rows: 2, index: 1 };
/// grain.verify(key, finished.entry.rows, finished.entry.root)?;
/// assert_eq!(grain.row_count(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Grain<'a> {
    path: &'a [[u8; 32]],
    ends: &'a [[u8; 4]],
    rows: &'a [u8],
}

/// The bytes of a grain with these rows, which the path leads to the root of their shard.
///
/// # Panics
///
/// If the rows have 4 GiB or more, which no shard has.
pub fn build<'r>(rows: impl Iterator<Item = &'r [u8]>, path: &[NodeHash]) -> Vec<u8> {
    let rows: Vec<&[u8]> = rows.collect();
    let length = rows.iter().map(|row| row.len() + 4).sum::<usize>() + path.len() * 32 + 8;
    let small = |count: usize| u32::try_from(count).expect("a grain has less than 4 GiB").to_le_bytes();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&small(rows.len()));
    bytes.extend_from_slice(&small(path.len()));
    for node in path {
        bytes.extend_from_slice(&node.0);
    }
    let mut end = 0;
    for row in &rows {
        end += row.len();
        bytes.extend_from_slice(&small(end));
    }
    for row in rows {
        bytes.extend_from_slice(row);
    }
    bytes
}

impl<'a> Grain<'a> {
    /// Reads the layout of a grain's bytes; copies nothing.
    ///
    /// # Errors
    ///
    /// [`GrainError::Malformed`] when the bytes are not laid out as a grain.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GrainError> {
        let malformed = |reason: &'static str| GrainError::Malformed { bytes: bytes.len(), reason };
        let (row_count, rest) = take_u32(bytes).ok_or_else(|| malformed("it has no row count"))?;
        let (path_length, rest) = take_u32(rest).ok_or_else(|| malformed("it has no path length"))?;
        if path_length > 32 {
            return Err(malformed("its path is longer than any shard's"));
        }
        let (path, rest) =
            rest.split_at_checked(path_length * 32).ok_or_else(|| malformed("its path is cut off"))?;
        let table = row_count.checked_mul(4).and_then(|length| rest.split_at_checked(length));
        let (ends, rows) = table.ok_or_else(|| malformed("its offset table is cut off"))?;
        let grain = Self { path: path.as_chunks().0, ends: ends.as_chunks().0, rows };
        let mut start = 0;
        for index in 0..row_count {
            let end = grain.end(index);
            if end < start || end > rows.len() {
                return Err(malformed("its offset table leads astray"));
            }
            start = end;
        }
        if start != rows.len() {
            return Err(malformed("its length is not that of its rows"));
        }
        Ok(grain)
    }

    /// How many rows the grain has.
    pub fn row_count(&self) -> u32 {
        self.ends.len() as u32 // it was read from 32 bits
    }

    /// The canonical bytes of a row.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    #[inline]
    pub fn row(&self, index: u32) -> &'a [u8] {
        let index = index as usize;
        let start = if index == 0 { 0 } else { self.end(index - 1) };
        &self.rows[start..self.end(index)]
    }

    /// All rows in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        let grain = *self;
        (0..self.row_count()).map(move |index| grain.row(index))
    }

    /// Checks every row against the Merkle root of the shard, which has `shard_rows` rows.
    ///
    /// # Errors
    ///
    /// [`GrainError::Corrupt`] when these are not exactly the rows that `key` names. Their sender is at
    /// fault.
    pub fn verify(&self, key: GrainKey, shard_rows: u32, root: NodeHash) -> Result<(), GrainError> {
        let expected = merkle::rows_in_grain(shard_rows, key.rows, key.index);
        let Some(expected) = expected.filter(|_| key.rows.is_power_of_two()) else {
            return Err(GrainError::NoSuchGrain { key, shard_rows });
        };
        if self.row_count() != expected {
            return Err(GrainError::WrongRowCount { key, expected, found: self.row_count() });
        }
        let digests = RowDigest::of_each(&self.rows().collect::<Vec<_>>());
        let path: Vec<NodeHash> = self.path.iter().map(|node| NodeHash(*node)).collect();
        match merkle::verify(root, shard_rows, key.rows, key.index, &digests, &path) {
            true => Ok(()),
            false => Err(GrainError::Corrupt { key }),
        }
    }

    #[inline]
    fn end(&self, index: usize) -> usize {
        u32::from_le_bytes(self.ends[index]) as usize
    }
}

/// Where the parts of a grain lie in its bytes, in memory of its own: for bytes that may change while they are read.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::grain::{self, Layout};
///
/// let bytes = grain::build([&b"one"[..], b"and two"].into_iter(), &[]);
/// let layout = Layout::read(&bytes)?;
/// assert_eq!(layout.row_count(), 2);
/// assert_eq!(&bytes[layout.row(1)], b"and two");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    path: Box<[NodeHash]>,
    /// Where the rows begin.
    start: usize,
    /// Where each ends, from there on.
    ends: Box<[u32]>,
}

impl Layout {
    /// Reads the layout, each of its bytes once.
    ///
    /// # Errors
    ///
    /// [`GrainError::Malformed`] when the bytes are not laid out as a grain.
    pub fn read(bytes: &[u8]) -> Result<Self, GrainError> {
        let malformed = |reason| GrainError::Malformed { bytes: bytes.len(), reason };
        let counts = bytes.first_chunk::<8>().ok_or_else(|| malformed("it has no row count"))?.to_vec();
        let (row_count, rest) = take_u32(&counts).expect("eight bytes");
        let (path_length, _) = take_u32(rest).expect("four bytes");
        let start = row_count
            .checked_mul(4)
            .and_then(|table| table.checked_add(path_length.checked_mul(32)?)?.checked_add(8));
        let head = start.and_then(|start| bytes.get(..start)).map(<[u8]>::to_vec);
        let mut head = head.ok_or_else(|| malformed("its offset table is cut off"))?;
        let start = head.len();
        // The counts are those by which it was cut.
        head[..8].copy_from_slice(&counts);
        let end_of_rows = u32::try_from(bytes.len() - start).map_err(|_| malformed("it is too long"))?;
        // A grain of these ends and of any rows is well formed if this one is.
        let (path, table) = head[8..].split_at(path_length * 32);
        let ends: Box<[u32]> = table.as_chunks().0.iter().map(|end| u32::from_le_bytes(*end)).collect();
        let is_ordered = ends.is_sorted() && ends.last().copied().unwrap_or(0) == end_of_rows;
        if path_length > 32 || !is_ordered {
            return Err(malformed("its offset table leads astray"));
        }
        let path = path.as_chunks().0.iter().map(|node| NodeHash(*node)).collect();
        Ok(Self { path, start, ends })
    }

    /// How many rows the grain has.
    pub fn row_count(&self) -> u32 {
        self.ends.len() as u32 // it was read from 32 bits
    }

    /// Where the canonical bytes of a row lie.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    #[inline]
    pub fn row(&self, index: u32) -> Range<usize> {
        let index = index as usize;
        let begin = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.start + begin as usize..self.start + self.ends[index] as usize
    }

    /// Whether rows of these digests, all that the grain has, lead to the root of the shard, which has `shard_rows` rows.
    pub fn leads_to(&self, key: GrainKey, shard_rows: u32, root: NodeHash, rows: &[RowDigest]) -> bool {
        key.rows.is_power_of_two()
            && rows.len() == self.ends.len()
            && merkle::verify(root, shard_rows, key.rows, key.index, rows, &self.path)
    }
}

pub(crate) fn take_u32(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (value, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*value) as usize, rest))
}

/// Why some bytes are not the grain that was asked for.
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
/// use shardfmt::{Grain, GrainError, GrainKey, GrainTree, Shard};
///
/// let shard = Shard::from_bytes(finished.bytes)?;
/// let bytes = shard.grain_in(&GrainTree::new(&finished.sidecar.rows, 2), 1)?;
/// // The rows are those of grain 1.
/// let key = GrainKey { shard: finished.id, rows: 2, index: 0 };
/// let refused = Grain::parse(&bytes)?.verify(key, 5, finished.entry.root);
/// assert_eq!(refused, Err(GrainError::Corrupt { key }));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum GrainError {
    /// The bytes are no grain. Ask someone else for it.
    #[error("{bytes} bytes are not a grain: {reason}")]
    Malformed { bytes: usize, reason: &'static str },
    /// The shard has no grain of that number, or its size is no power of two. The key is wrong.
    #[error("there is no grain {key} in a shard of {shard_rows} rows")]
    NoSuchGrain { key: GrainKey, shard_rows: u32 },
    /// The grain has too many rows or too few. Ask someone else for it.
    #[error("grain {key} has {found} rows instead of {expected}")]
    WrongRowCount { key: GrainKey, expected: u32, found: u32 },
    /// The rows are not those of the shard. Ask someone else for them.
    #[error("grain {key} is corrupt: its rows do not lead to the root of its shard")]
    Corrupt { key: GrainKey },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merkle::GrainTree;
    use proptest::prelude::*;

    /// Some rows, cut into grains; and one of them.
    fn grains() -> impl Strategy<Value = (Vec<Vec<u8>>, u32, u32)> {
        let rows = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..40);
        (rows, 0..5u32, any::<prop::sample::Index>()).prop_map(|(rows, power, index)| {
            let count = rows.len().div_ceil(1 << power);
            (rows, 1 << power, index.index(count) as u32)
        })
    }

    fn grain_of(rows: &[Vec<u8>], g: u32, index: u32) -> (Vec<u8>, GrainKey, NodeHash) {
        let digests: Vec<RowDigest> = rows.iter().map(|row| RowDigest::of(row)).collect();
        let tree = GrainTree::new(&digests, g);
        let range = (index * g) as usize..rows.len().min(((index + 1) * g) as usize);
        let bytes = build(rows[range].iter().map(Vec::as_slice), &tree.path(index));
        (bytes, GrainKey { shard: ShardId::of(b"x"), rows: g, index }, tree.root())
    }

    proptest! {
        #[test]
        fn what_is_built_is_parsed_and_verified((rows, g, index) in grains()) {
            let (bytes, key, root) = grain_of(&rows, g, index);
            let grain = Grain::parse(&bytes).expect("own grain");
            let start = (index * g) as usize;
            prop_assert!(grain.rows().eq(rows[start..start + grain.row_count() as usize].iter().map(Vec::as_slice)));
            prop_assert_eq!(grain.verify(key, rows.len() as u32, root), Ok(()));
        }

        /// A layout is read of the same bytes as a grain, and it gives the same rows.
        #[test]
        fn a_layout_is_that_of_the_grain((rows, g, index) in grains(), flip: Option<prop::sample::Index>) {
            let (mut bytes, key, root) = grain_of(&rows, g, index);
            if let Some(bit) = flip.map(|bit| bit.index(bytes.len() * 8)) {
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let (layout, grain) = (Layout::read(&bytes), Grain::parse(&bytes));
            prop_assert_eq!(layout.is_ok(), grain.is_ok());
            if let (Ok(layout), Ok(grain)) = (layout, grain) {
                let rows_of: Vec<&[u8]> = (0..layout.row_count()).map(|row| &bytes[layout.row(row)]).collect();
                prop_assert!(grain.rows().eq(rows_of.iter().copied()));
                let shard_rows = rows.len() as u32;
                let is_genuine = layout.leads_to(key, shard_rows, root, &RowDigest::of_each(&rows_of));
                prop_assert_eq!(is_genuine, grain.verify(key, shard_rows, root).is_ok());
            }
        }

        #[test]
        fn garbage_has_no_layout_and_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(Layout::read(&bytes).is_ok(), Grain::parse(&bytes).is_ok());
        }

        #[test]
        fn any_flipped_bit_is_noticed((rows, g, index) in grains(), bit: prop::sample::Index) {
            let (mut bytes, key, root) = grain_of(&rows, g, index);
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let noticed = Grain::parse(&bytes).and_then(|grain| grain.verify(key, rows.len() as u32, root));
            prop_assert!(noticed.is_err());
        }

        #[test]
        fn cut_or_lengthened_grains_are_refused((rows, g, index) in grains(), cut: prop::sample::Index) {
            let (mut bytes, ..) = grain_of(&rows, g, index);
            prop_assert!(Grain::parse(&bytes[..cut.index(bytes.len())]).is_err());
            bytes.push(0);
            prop_assert!(Grain::parse(&bytes).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), rows: u32, index: u32, shard_rows: u32) {
            if let Ok(grain) = Grain::parse(&bytes) {
                let key = GrainKey { shard: ShardId::of(b"x"), rows, index };
                prop_assert!(grain.verify(key, shard_rows, NodeHash([0; 32])).is_err());
            }
        }
    }

    #[test]
    fn errors_name_the_grain() {
        let (bytes, key, root) = grain_of(&[vec![1], vec![2], vec![3]], 2, 1);
        let grain = Grain::parse(&bytes).expect("own grain");
        let wrong = GrainKey { index: 0, ..key };
        let error = grain.verify(wrong, 3, root).expect_err("it is the other grain").to_string();
        assert!(error.contains(&key.shard.short()) && error.contains("1 rows instead of 2"), "{error}");
        assert!(matches!(
            grain.verify(GrainKey { rows: 3, ..key }, 3, root),
            Err(GrainError::NoSuchGrain { .. })
        ));
    }
}
