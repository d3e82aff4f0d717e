//! The facts about one shard that a manifest lists.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::digest::ShardId;
use crate::merkle::NodeHash;
use crate::row::DigestSum;
use crate::statistics::Statistics;

/// The column that holds the class labels of a classification dataset.
pub const LABEL_COLUMN: &str = "label";

/// The number of rows of each label. Entries that were read together share the label texts.
pub type Labels = BTreeMap<Arc<str>, u64>;

/// The entry of one shard in a manifest.
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
/// let entry = finished.entry;
/// assert_eq!(entry.rows, 5);
/// assert_eq!(entry.bytes, finished.bytes.len() as u64);
/// // The column `label` has a histogram: label 1 occurs twice.
/// assert_eq!(entry.labels.and_then(|labels| labels.get("1").copied()), Some(2));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardEntry {
    /// The digest of the shard's file.
    pub id: ShardId,
    /// How many samples it has.
    pub rows: u32,
    /// The bytes of its file.
    pub bytes: u64,
    /// The bytes of its canonical rows.
    pub row_bytes: u64,
    /// The Merkle root over its rows.
    pub root: NodeHash,
    /// The sum of the digests of its rows.
    pub digest_sum: DigestSum,
    /// How often each label occurs, where samples have labels; missing labels are not counted.
    pub labels: Option<Labels>,
    /// Statistics of each column, in the order of the schema; missing in shards that were written without them.
    pub statistics: Option<Statistics>,
}
