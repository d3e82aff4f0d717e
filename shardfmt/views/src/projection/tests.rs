//! Stories of projections.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array};

use super::*;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_string()).collect()
}

fn batch(columns: &[&str]) -> RecordBatch {
    let column = |name: &str| -> ArrayRef { Arc::new(Int32Array::from(vec![name.len() as i32, 2])) };
    RecordBatch::try_from_iter(columns.iter().map(|name| (*name, column(name)))).unwrap()
}

#[test]
fn columns_come_in_the_order_of_the_list() {
    let batch = batch(&["a", "b", "c d"]);
    let projection = Projection::new(names(&["c d", "a"]), &batch.schema()).unwrap();
    assert_eq!(projection.to_string(), "\"c d\", a");
    let kept = projection.apply(&batch).unwrap();
    assert_eq!(kept.schema(), *projection.schema());
    assert_eq!((kept.column(0), kept.column(1)), (batch.column(2), batch.column(0)));
    let other: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let other = RecordBatch::try_from_iter([("a", other.clone()), ("c d", other)]).unwrap();
    assert!(matches!(projection.apply(&other), Err(ProjectionError::Schema { column }) if column == "c d"));
}

#[test]
fn a_wrong_list_is_refused_by_name() {
    let schema = batch(&["label", "text"]).schema();
    let error = |list: &[&str]| Projection::new(names(list), &schema).unwrap_err().to_string();
    assert_eq!(error(&["lable", "text", "id"]), "there is no column lable, id: did you mean label?");
    assert_eq!(error(&[]), "no column is left: name at least one");
    assert!(error(&["text", "text"]).starts_with("column text appears twice"));
}
