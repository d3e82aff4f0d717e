//! Transforms of columns as data: what a model of tables wants of numbers and words, for a whole record batch at once.
//!
//! A [`Chain`] is a document with a list of operations for each column. [`Transform::new`] checks it for a schema, and
//! [`Transform::apply`] changes record batches. An operation changes each value for itself, without random numbers, so a
//! sample has the same values in any batch, on any processor. Knows no loader, order or file.
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow::array::{AsArray, Int64Array, RecordBatch, StringArray};
//! use arrow::datatypes::{Float32Type, Int64Type};
//! use shardd_columns::{Chain, Transform};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let chain: Chain = r#"{"columns": {
//!     "age": [{"type": "FillNull", "value": 40}, {"type": "Normalize", "mean": 40, "std": 10}],
//!     "work": [{"type": "Vocabulary", "words": ["private", "state"], "unknown": 0}]
//! }}"#
//! .parse()?;
//! let batch = RecordBatch::try_from_iter([
//!     ("age", Arc::new(Int64Array::from(vec![Some(25), None])) as _),
//!     ("work", Arc::new(StringArray::from(vec!["state", "never"])) as _),
//! ])?;
//! let batch = Transform::new(chain, &batch.schema())?.apply(&batch)?;
//! assert_eq!(batch["age"].as_primitive::<Float32Type>().values(), &[-1.5, 0.0]);
//! assert_eq!(batch["work"].as_primitive::<Int64Type>().values(), &[2, 0]);
//! # Ok(())
//! # }
//! ```

mod chain;
mod dtype;
mod kind;
mod number;
mod op;
mod operation;
pub mod ops;
pub mod tensor;
mod transform;
mod values;

pub use chain::{Chain, ChainError, Columns};
pub use dtype::{Dtype, Float};
pub use kind::{Form, Kind};
pub use number::{Number, Scalar};
pub use op::Op;
pub use transform::{Transform, ValueError};
