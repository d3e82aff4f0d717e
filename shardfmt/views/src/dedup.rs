//! Removes rows that repeat earlier ones: exactly, by the digest of a key, or nearly, by the words of a text.
//!
//! Of rows that belong together the first by row order stays.
//!
//! Near-duplicates are found as datatrove, text-dedup and BigCode do. Texts become sets of n-grams
//! ([`MinHash`] has the normalisation), sets become signatures of minima, and bands of signatures become
//! candidates. In contrast to those tools each candidate is verified: two rows are joined only if the
//! similarity that their signatures estimate reaches the threshold. Joined rows form clusters, through others
//! too.
//!
//! [`MinHasher::signature`] looks at one text and may run on many threads. [`Clusters`] gets the signatures
//! in row order.

mod banding;
mod clusters;
mod exact;
mod minhash;
mod shingles;
#[cfg(test)]
mod tests;

use arrow::buffer::BooleanBuffer;

pub use banding::Banding;
pub use clusters::Clusters;
pub use exact::Exact;
pub use minhash::{MinHash, MinHasher, Signature, Unit};

/// Why rows could not be deduplicated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DedupError {
    /// A parameter is out of range.
    #[error("{parameter} is {value}: {way_out}")]
    Parameter {
        /// Its name in documents.
        parameter: &'static str,
        /// The value that it had.
        value: String,
        /// The values that there are.
        way_out: &'static str,
    },
    /// Rows came in another order than that of the version.
    #[error("row {row} came after row {after}: insert rows in the order of the version, each once")]
    Order {
        /// The row that came.
        row: u64,
        /// The row before it.
        after: u64,
    },
    /// A signature has another length.
    #[error("a signature has {found} values and {expected} are wanted: use one MinHash for all rows")]
    Signature {
        /// Values of the signature.
        found: usize,
        /// Values of others.
        expected: usize,
    },
    /// There are more rows than row numbers.
    #[error("more than {limit} rows have a text: deduplicate parts of the version first")]
    TooMany {
        /// The most rows.
        limit: u32,
    },
    /// The version ends before a row that was inserted.
    #[error("row {row} was inserted and the version has {rows} rows: give the number of all its rows")]
    Rows {
        /// The last row.
        row: u64,
        /// Rows of the version.
        rows: u64,
    },
}

/// Which rows stay, and why the others go.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// A bit for each row of the version, set for rows that stay.
    pub kept: BooleanBuffer,
    /// One entry for each row that goes, by row.
    pub duplicates: Vec<Duplicate>,
    /// Pairs of signatures that were compared; 0 for exact duplicates.
    pub comparisons: u64,
    /// Rows that were not remembered in a band of too many different rows; see [`Clusters`].
    pub crowded: u64,
}

/// A row that goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Duplicate {
    /// The row that goes, from 0.
    pub removed: u64,
    /// The earlier row that stays.
    pub kept: u64,
    /// Their similarity, from 0 to 1: the estimate of the signatures, or 1 for exact duplicates. Below the
    /// threshold, if other rows of the cluster connect the two.
    pub similarity: f64,
}

impl Report {
    fn new(rows: usize, duplicates: Vec<Duplicate>, comparisons: u64, crowded: u64) -> Self {
        let mut next = duplicates.iter().map(|duplicate| duplicate.removed).peekable();
        // Rows are visited in order, and so are duplicates.
        let kept = BooleanBuffer::collect_bool(rows, |row| next.next_if_eq(&(row as u64)).is_none());
        Self { kept, duplicates, comparisons, crowded }
    }
}
