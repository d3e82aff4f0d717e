//! Holds the canonical rows of the whole input between the two passes: appended in input order to an unlinked
//! temporary file, read back at random through a map. Only 8 bytes a row stay in memory.

use std::env;
use std::fs::File;
use std::io::{self, BufWriter, Write};

use memmap2::Mmap;

use super::IngestError;

/// A block of encoded rows: their bytes, one after the other, and where each ends.
#[derive(Default)]
pub(super) struct RowBlock {
    pub(super) bytes: Vec<u8>,
    pub(super) ends: Vec<usize>,
    /// Rows of the input that were looked at, kept or not.
    pub(super) seen: u64,
}

/// Rows being written.
pub(super) struct Spill {
    file: BufWriter<File>,
    ends: Vec<u64>,
    bytes: u64,
}

impl Spill {
    /// Opens an unlinked file in the system's directory for temporary files (`TMPDIR`).
    pub(super) fn create() -> Result<Spill, IngestError> {
        let file = tempfile::tempfile().map_err(spill_error)?;
        Ok(Spill { file: BufWriter::with_capacity(1 << 20, file), ends: Vec::new(), bytes: 0 })
    }

    pub(super) fn append(&mut self, block: &RowBlock) -> Result<(), IngestError> {
        self.file.write_all(&block.bytes).map_err(spill_error)?;
        self.ends.extend(block.ends.iter().map(|&end| self.bytes + end as u64));
        self.bytes += block.bytes.len() as u64;
        Ok(())
    }

    /// Ends the writing; the rows can now be read.
    pub(super) fn finish(self) -> Result<SpilledRows, IngestError> {
        let file = self.file.into_inner().map_err(|error| spill_error(error.into_error()))?;
        let map = if self.bytes == 0 {
            None
        } else {
            // SAFETY: the file is unlinked, so no other process can open it, and this one holds its only handle and
            // never writes or truncates it again: the mapped bytes do not change.
            Some(unsafe { Mmap::map(&file) }.map_err(spill_error)?)
        };
        Ok(SpilledRows { map, ends: self.ends, bytes: self.bytes })
    }
}

/// Rows that can be read in any order, from any thread.
pub(super) struct SpilledRows {
    map: Option<Mmap>,
    ends: Vec<u64>,
    bytes: u64,
}

impl SpilledRows {
    pub(super) fn count(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Canonical bytes of all rows together.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The canonical bytes of a row, numbered in input order.
    pub(super) fn row(&self, index: u64) -> &[u8] {
        let index = usize::try_from(index).expect("rows are counted by a Vec");
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        let bytes = self.map.as_deref().unwrap_or_default();
        // The map holds all of the file, so its offsets fit an address.
        &bytes[start as usize..self.ends[index] as usize]
    }
}

fn spill_error(source: io::Error) -> IngestError {
    IngestError::Spill { directory: env::temp_dir(), source }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_come_back_as_they_went_in(blocks in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..5), 0..6)) {
            let mut spill = Spill::create().unwrap();
            for rows in &blocks {
                let mut block = RowBlock::default();
                for row in rows {
                    block.bytes.extend(row);
                    block.ends.push(block.bytes.len());
                }
                spill.append(&block).unwrap();
            }
            let spilled = spill.finish().unwrap();
            let rows: Vec<Vec<u8>> = blocks.concat();
            prop_assert_eq!(spilled.count(), rows.len() as u64);
            prop_assert_eq!(spilled.bytes(), rows.iter().map(|row| row.len() as u64).sum::<u64>());
            for (index, row) in rows.iter().enumerate() {
                prop_assert_eq!(spilled.row(index as u64), row.as_slice());
            }
        }
    }
}
