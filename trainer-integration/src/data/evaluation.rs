//! Rows for evaluation, read by range.

use std::error::Error;
use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

/// Why rows could not be read; the source's own error.
pub type RowsError = Box<dyn Error + Send + Sync>;

/// A data set that can be read anywhere, for evaluation.
pub trait Rows: Sync {
    /// The columns.
    fn schema(&self) -> SchemaRef;

    /// How many rows there are.
    fn row_count(&self) -> u64;

    /// The rows of a range, in order, cut as the source likes.
    ///
    /// # Errors
    /// Whatever keeps the source from reading them.
    fn read(&self, range: Range<u64>) -> Result<Vec<RecordBatch>, RowsError>;
}

/// Rows that are already in memory.
#[derive(Clone, Debug)]
pub struct MemoryRows(RecordBatch);

impl MemoryRows {
    /// These rows.
    pub fn new(rows: RecordBatch) -> MemoryRows {
        MemoryRows(rows)
    }
}

impl Rows for MemoryRows {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    fn row_count(&self) -> u64 {
        self.0.num_rows() as u64
    }

    fn read(&self, range: Range<u64>) -> Result<Vec<RecordBatch>, RowsError> {
        if range.start > range.end || range.end > self.row_count() {
            return Err(format!("rows {range:?} of {}", self.row_count()).into());
        }
        Ok(vec![self.0.slice(range.start as usize, (range.end - range.start) as usize)])
    }
}
