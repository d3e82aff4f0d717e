//! Counts the labels of a shard, so that a plan can be judged without reading any data.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};

/// A column with more values than this in one shard holds no classes, whatever its name.
const MOST_CLASSES: usize = 4096;

/// How often each label occurs: integers in decimal, text as it is; nulls are not counted.
pub(super) struct LabelCounts {
    counts: Option<BTreeMap<String, u64>>,
}

impl LabelCounts {
    pub(super) fn new() -> LabelCounts {
        LabelCounts { counts: Some(BTreeMap::new()) }
    }

    /// Counts the column `label`, if there is one of integers or text.
    pub(super) fn add(&mut self, batch: &RecordBatch) {
        let Some(counts) = &mut self.counts else { return };
        match batch.column_by_name("label").map(|column| (column, column.data_type())) {
            Some((column, data_type)) if data_type.is_integer() => match integers(column) {
                Some(labels) => add_integers(counts, &labels),
                None => self.counts = None,
            },
            Some((column, DataType::Utf8)) => count(counts, column.as_string::<i32>().iter().flatten()),
            Some((column, DataType::LargeUtf8)) => count(counts, column.as_string::<i64>().iter().flatten()),
            _ => self.counts = None,
        }
        if self.counts.as_ref().is_some_and(|counts| counts.len() > MOST_CLASSES) {
            self.counts = None;
        }
    }

    /// The counts, or `None` when the samples have no labels.
    pub(super) fn finish(self) -> Option<BTreeMap<String, u64>> {
        self.counts
    }
}

/// Labels above `i64::MAX` are no classes.
fn integers(column: &dyn Array) -> Option<Int64Array> {
    let cast = cast(column, &DataType::Int64).ok()?;
    (cast.null_count() == column.null_count()).then(|| cast.as_primitive::<Int64Type>().clone())
}

fn add_integers(counts: &mut BTreeMap<String, u64>, labels: &Int64Array) {
    let mut by_number = BTreeMap::<i64, u64>::new();
    labels.iter().flatten().for_each(|label| *by_number.entry(label).or_default() += 1);
    for (label, count) in by_number {
        *counts.entry(label.to_string()).or_default() += count;
    }
}

fn count<'l>(counts: &mut BTreeMap<String, u64>, labels: impl Iterator<Item = &'l str>) {
    for label in labels {
        match counts.get_mut(label) {
            Some(count) => *count += 1,
            None => _ = counts.insert(label.to_owned(), 1),
        }
    }
}
