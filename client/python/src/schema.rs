//! Columns for other libraries, by the Arrow PyCapsule interface.
//! <https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html>

use arrow::datatypes::SchemaRef;
use arrow::ffi::FFI_ArrowSchema;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors;

/// Columns with their Arrow types, for other libraries.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct ArrowSchema(pub(crate) SchemaRef);

#[pymethods]
impl ArrowSchema {
    /// The schema by the interface.
    ///
    /// # Errors
    /// A type that the interface lacks.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(&*self.0).map_err(|error| errors::value(&error))?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }
}
