//! The digests of rows of tables of steps, kept in memory for the next question about their records.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use shardfmt::Digest;

/// Parts of tables whose rows' digests are kept in memory, some 50 KB each.
const PARTS_KEPT: usize = 64;

/// The digests of rows by step, of the parts that were read last. A part never changes.
#[derive(Debug, Default)]
pub(crate) struct RowDigests(Mutex<BTreeMap<Digest, Arc<BTreeMap<u64, Digest>>>>);

impl RowDigests {
    pub(crate) fn get(&self, part: Digest) -> Option<Arc<BTreeMap<u64, Digest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&part).cloned()
    }

    pub(crate) fn keep(&self, part: Digest, rows: Arc<BTreeMap<u64, Digest>>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= PARTS_KEPT {
            known.clear();
        }
        known.insert(part, rows);
    }
}
