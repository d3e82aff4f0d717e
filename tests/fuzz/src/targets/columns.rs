//! Transforms of columns from outside.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, FixedSizeListArray, Float32Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use arrow::datatypes::{Int64Type, UInt8Type};
use shardd_columns::{Chain, Transform};

/// Bytes of the widest row that is made here.
const MOST_BYTES: u64 = 1 << 16;

/// A chain as JSON, for a small record batch of the types that tables have. It is one document, and a row has the same values
/// in any batch.
pub(crate) fn columns(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(chain) = text.parse::<Chain>() else { return false };
    let again: Chain = chain.to_json().parse().expect("the JSON of a chain");
    assert_eq!(again.digest(), chain.digest());
    let batch = batch();
    let Ok(transform) = Transform::new(chain, &batch.schema()) else { return false };
    // Wide vectors are no mistake, and take long. One on the way may be wider than the last.
    if transform.bytes() > MOST_BYTES || super::transforms::has_number_over(4, text) {
        return false;
    }
    let part = batch.slice(1, 2);
    let Ok(changed) = transform.apply(&batch) else { return false };
    assert_eq!(changed.schema(), *transform.schema());
    let changed_part = transform.apply(&part).expect("a part of a batch that has results");
    for (whole, part) in changed.columns().iter().zip(changed_part.columns()) {
        assert_eq!(part.to_data(), whole.slice(1, 2).to_data());
    }
    true
}

fn batch() -> RecordBatch {
    let lists = [Some(vec![Some(1), None]), None, Some(vec![]), Some(vec![Some(7)])];
    let fixed = [Some(vec![Some(1), Some(2)]), Some(vec![Some(3), None]), None, Some(vec![Some(5), Some(0)])];
    let columns: [(&str, ArrayRef); 6] = [
        ("i", Arc::new(Int64Array::from(vec![Some(3), None, Some(-1), Some(i64::MAX)]))),
        ("c", Arc::new(Int64Array::from(vec![0, 1, 2, 3]))),
        ("x", Arc::new(Float32Array::from(vec![Some(0.5), Some(f32::NAN), None, Some(f32::INFINITY)]))),
        ("w", Arc::new(StringArray::from(vec![Some("a"), Some(""), None, Some("bc")]))),
        ("l", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))),
        ("f", Arc::new(FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(fixed, 2))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))
        .expect("columns of four rows")
}
