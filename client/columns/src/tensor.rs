//! Columns of tensors of one shape: Arrow's canonical extension `arrow.fixed_shape_tensor`.

use std::collections::HashMap;

use arrow::datatypes::Field;

const EXTENSION: [&str; 2] = ["ARROW:extension:name", "ARROW:extension:metadata"];
const TENSOR: &str = "arrow.fixed_shape_tensor";

/// The metadata of a column of tensors of this shape.
pub fn metadata(shape: &[usize]) -> HashMap<String, String> {
    HashMap::from([
        (EXTENSION[0].to_owned(), TENSOR.to_owned()),
        (EXTENSION[1].to_owned(), serde_json::json!({ "shape": shape }).to_string()),
    ])
}

/// The shape of the tensors of a column.
pub fn shape(field: &Field) -> Option<Vec<usize>> {
    let metadata = field.metadata();
    if metadata.get(EXTENSION[0])? != TENSOR {
        return None;
    }
    let tensor: serde_json::Value = serde_json::from_str(metadata.get(EXTENSION[1])?).ok()?;
    tensor["shape"].as_array()?.iter().map(|size| usize::try_from(size.as_u64()?).ok()).collect()
}
