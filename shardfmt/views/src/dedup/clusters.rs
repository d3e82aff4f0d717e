//! Joins rows with similar signatures.

use super::minhash::{MinHasher, Signature, equal_values};
use super::shingles::mix;
use super::{Banding, DedupError, Duplicate, Report};

/// Different rows that a band remembers under one hash. It bounds the comparisons of a row by this number for
/// each band.
const MAX_DIFFERENT: usize = 256;

/// Collects signatures in row order, and joins rows whose estimated similarity reaches the threshold.
///
/// Memory: 2 bytes for each value of a signature and 12 bytes more for each row with a text, so 524 bytes a
/// row at 256 values; [`Clusters::finish`] takes 16 bytes a row more. Time: one sort of the rows for each
/// band.
///
/// Rows with equal bands are compared with each row that came before under the same hash and was not joined
/// to one of those. At most 256 such rows are remembered for each hash. More happen only where a band is
/// equal for very many rows that are not duplicates, such as forms with one long preamble;
/// [`Report::crowded`] counts the rows that were not remembered.
#[derive(Debug, Clone)]
pub struct Clusters {
    banding: Banding,
    num_perm: usize,
    /// Equal values of two signatures from which rows are joined.
    needed: usize,
    rows: Vec<u64>,
    values: Vec<u16>,
}

impl Clusters {
    /// Clusters of signatures that `hasher` makes.
    pub fn new(hasher: &MinHasher) -> Self {
        let parameters = hasher.parameters();
        let needed = parameters.threshold.ceil_of(parameters.num_perm.into());
        Self {
            banding: hasher.banding(),
            num_perm: parameters.num_perm.into(),
            needed: usize::try_from(needed).unwrap_or(usize::MAX),
            rows: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Takes the signature of a row. Rows without a text can be left out; they stay.
    ///
    /// # Errors
    /// [`DedupError::Order`], [`DedupError::Signature`] and [`DedupError::TooMany`]; the clusters are as
    /// before.
    pub fn insert(&mut self, row: u64, signature: &Signature) -> Result<(), DedupError> {
        if let Some(&after) = self.rows.last().filter(|last| **last >= row) {
            return Err(DedupError::Order { row, after });
        }
        if signature.is_empty() {
            return Ok(());
        }
        let found = signature.values().len();
        if found != self.num_perm {
            return Err(DedupError::Signature { found, expected: self.num_perm });
        }
        if u32::try_from(self.rows.len() + 1).is_err() {
            return Err(DedupError::TooMany { limit: u32::MAX });
        }
        self.rows.push(row);
        self.values.extend_from_slice(signature.values());
        Ok(())
    }

    /// The rows that stay, of a version of `rows` rows.
    ///
    /// # Errors
    /// [`DedupError::Rows`] if a row was inserted that the version lacks.
    pub fn finish(self, rows: u64) -> Result<Report, DedupError> {
        if let Some(&row) = self.rows.last().filter(|last| **last >= rows) {
            return Err(DedupError::Rows { row, rows });
        }
        let mut joined = Joined::new(self.rows.len());
        let mut keyed: Vec<(u64, u32)> = Vec::with_capacity(self.rows.len());
        for band in 0..self.banding.bands {
            keyed.clear();
            keyed.extend((0..self.rows.len()).map(|row| (self.band_hash(row, band), number(row))));
            keyed.sort_unstable();
            for bucket in keyed.chunk_by(|a, b| a.0 == b.0).filter(|bucket| bucket.len() > 1) {
                self.join(bucket, &mut joined);
            }
        }
        let duplicates = self.duplicates(&mut joined);
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        Ok(Report::new(rows, duplicates, joined.comparisons, joined.crowded))
    }

    fn signature(&self, row: usize) -> &[u16] {
        &self.values[row * self.num_perm..][..self.num_perm]
    }

    fn band_hash(&self, row: usize, band: usize) -> u64 {
        let values = &self.signature(row)[band * self.banding.rows..][..self.banding.rows];
        values.iter().fold(0, |hash, value| mix(hash ^ u64::from(*value)).wrapping_add(1))
    }

    /// Compares the rows of one bucket, which come in row order.
    fn join(&self, bucket: &[(u64, u32)], joined: &mut Joined) {
        let mut different: Vec<u32> = Vec::new();
        for &(_, row) in bucket {
            let mut is_new = true;
            for &other in &different {
                if joined.root(other) == joined.root(row) {
                    is_new = false;
                    continue;
                }
                joined.comparisons += 1;
                if self.equal(other, row) >= self.needed {
                    joined.unite(other, row);
                    is_new = false;
                }
            }
            if is_new && different.len() < MAX_DIFFERENT {
                different.push(row);
            } else if is_new {
                joined.crowded += 1;
            }
        }
    }

    fn equal(&self, a: u32, b: u32) -> usize {
        equal_values(self.signature(a as usize), self.signature(b as usize))
    }

    #[expect(clippy::cast_precision_loss, reason = "a signature has at most 1024 values")]
    fn duplicates(&self, joined: &mut Joined) -> Vec<Duplicate> {
        let rows = 0..self.rows.len();
        let pairs =
            rows.map(|row| (row, joined.root(number(row)))).filter(|(row, root)| number(*row) != *root);
        pairs
            .map(|(row, root)| Duplicate {
                removed: self.rows[row],
                kept: self.rows[root as usize],
                similarity: self.equal(number(row), root) as f64 / self.num_perm as f64,
            })
            .collect()
    }
}

/// Disjoint sets of rows, each with its first row as root (Tarjan's union-find, with path halving).
struct Joined {
    parents: Vec<u32>,
    comparisons: u64,
    crowded: u64,
}

impl Joined {
    fn new(rows: usize) -> Self {
        Self { parents: (0..rows).map(number).collect(), comparisons: 0, crowded: 0 }
    }

    fn root(&mut self, mut row: u32) -> u32 {
        while self.parents[row as usize] != row {
            let above = self.parents[self.parents[row as usize] as usize];
            self.parents[row as usize] = above;
            row = above;
        }
        row
    }

    fn unite(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        self.parents[a.max(b) as usize] = a.min(b);
    }
}

/// Rows are counted in 32 bits; [`Clusters::insert`] refuses more.
fn number(row: usize) -> u32 {
    u32::try_from(row).unwrap_or(u32::MAX)
}
