//! Columns of tensors of one shape, as the loader makes them.

use arrow::error::ArrowError;
pub(super) use shardd_columns::tensor::{metadata, shape};

use super::error::LoadError;

/// Arrow refuses arrays whose parts do not fit together: those of a loader are made to fit.
pub(super) fn refused(error: ArrowError) -> LoadError {
    LoadError::Config(format!("the transformed samples make no column: {error}"))
}
