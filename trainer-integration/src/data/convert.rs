//! Columns as arrays of the types that are read.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float32Array};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::DataType;

use super::error::InputError;

/// As numbers of 32 bits.
pub(super) fn numbers(column: &str, array: &ArrayRef) -> Result<Float32Array, InputError> {
    converted(column, array, &DataType::Float32)
}

/// The column itself, if each row has a value.
pub(super) fn present<'a>(
    name: &str,
    column: &'a ArrayRef,
    positions: &[u64],
) -> Result<&'a ArrayRef, InputError> {
    match (0..column.len()).find(|&row| column.is_null(row)) {
        Some(row) => Err(InputError::Null { column: name.to_owned(), position: positions[row] }),
        None => Ok(column),
    }
}

/// As an array of another type.
pub(super) fn converted<T: Array + Clone + 'static>(
    column: &str,
    array: &ArrayRef,
    to: &DataType,
) -> Result<T, InputError> {
    // A number that does not fit is an error, not a null.
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let converted = cast_with_options(array, to, &strict)
        .map_err(|source| InputError::Numbers { column: column.to_owned(), source })?;
    let array: Option<&T> = Arc::as_ref(&converted).as_any().downcast_ref();
    Ok(array.expect("cast gives the type asked for").clone())
}
