//! Rows that equal an earlier one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::{Duplicate, Report};
use crate::key::Digest;

/// Finds rows whose digest came before. Memory: about 60 bytes for each different digest.
///
/// Use [`Key::digests`](crate::key::Key::digests) for some columns, or digests of rows. NULL equals NULL
/// there: to keep rows without a key, leave them out or add a column.
#[derive(Debug, Clone, Default)]
pub struct Exact {
    first: HashMap<Digest, u64, BuildHasherDefault<FirstBytes>>,
    duplicates: Vec<Duplicate>,
    rows: u64,
}

impl Exact {
    /// No rows yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next row, and returns the first row with an equal digest if there is one.
    pub fn insert(&mut self, digest: &Digest) -> Option<u64> {
        let row = self.rows;
        self.rows += 1;
        let kept = *self.first.entry(*digest).or_insert(row);
        if kept == row {
            return None;
        }
        self.duplicates.push(Duplicate { removed: row, kept, similarity: 1.0 });
        Some(kept)
    }

    /// The rows that stay.
    pub fn finish(self) -> Report {
        Report::new(usize::try_from(self.rows).unwrap_or(usize::MAX), self.duplicates, 0, 0)
    }
}

/// A digest is its own hash.
#[derive(Debug, Clone, Copy, Default)]
struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }

    /// The length prefix comes first, and then the digest.
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    fn write_usize(&mut self, _length: usize) {}
}
