//! Record batches of other libraries, by the Arrow PyCapsule interface, without a copy: one at a time or as a stream; and
//! an ingest of them. <https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html>

use std::collections::HashMap;
use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use arrow::array::{Array, RecordBatch, RecordBatchOptions, StructArray};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors;
use crate::ingest::{Target, Writing, config, with_classes};
use crate::store::Store;

/// A record batch in the memory of the library that made it.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Batch(pub(crate) RecordBatch);

#[pymethods]
impl Batch {
    /// Takes data with `__arrow_c_array__`.
    ///
    /// # Errors
    /// An array that is no record batch.
    #[new]
    fn new(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let given = data.call_method0("__arrow_c_array__")?;
        let (schema, array): (Bound<'_, PyCapsule>, Bound<'_, PyCapsule>) = given.extract()?;
        let schema = pointer::<FFI_ArrowSchema>(&schema, c"arrow_schema")?;
        let array = pointer::<FFI_ArrowArray>(&array, c"arrow_array")?;
        // SAFETY: by the interface, a capsule of this name has such a struct. The taken one is marked as released in the capsule,
        // so that nothing else releases it.
        let schema = unsafe { FFI_ArrowSchema::from_raw(schema.as_ptr()) };
        // SAFETY: as above.
        let array = unsafe { FFI_ArrowArray::from_raw(array.as_ptr()) };
        if array.is_released() {
            return Err(PyValueError::new_err("the record batch was taken before; pass a new one"));
        }
        let columns = Schema::try_from(&schema).map_err(|_| no_batch(data))?;
        // SAFETY: the array is of that schema, by the interface.
        let array = unsafe { from_ffi(array, &schema) };
        let array = StructArray::from(array.map_err(|error| errors::value(&error))?);
        if array.null_count() > 0 {
            return Err(PyValueError::new_err("rows of a struct array are null; drop these rows"));
        }
        let rows = RecordBatchOptions::new().with_row_count(Some(array.len()));
        let batch = RecordBatch::try_new_with_options(without_notes(&columns), array.into_parts().1, &rows);
        batch.map(Self).map_err(|error| errors::value(&error))
    }

    /// How many rows it has.
    fn __len__(&self) -> usize {
        self.0.num_rows()
    }

    /// The names of its columns.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.0.schema_ref().fields().iter().map(|field| field.name().clone()).collect()
    }
}

/// A stream of record batches, an iterator. Its batches are made while they are asked for, without the interpreter's lock.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct BatchStream(Mutex<Reading>);

struct Reading {
    stream: RecordBatchStreamReader,
    /// The number of the next batch.
    next: usize,
}

#[pymethods]
impl BatchStream {
    /// Takes data with `__arrow_c_stream__`.
    ///
    /// # Errors
    /// A stream of arrays that are no record batches.
    #[new]
    fn new(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let given = data.call_method0("__arrow_c_stream__")?;
        let stream = pointer::<FFI_ArrowArrayStream>(given.cast::<PyCapsule>()?, c"arrow_array_stream")?;
        // SAFETY: as for a batch.
        let stream = unsafe { FFI_ArrowArrayStream::from_raw(stream.as_ptr()) };
        match py.detach(move || RecordBatchStreamReader::try_new(stream)) {
            Ok(stream) => Ok(Self(Mutex::new(Reading { stream, next: 0 }))),
            Err(ArrowError::CDataInterface(reason)) if reason.starts_with(NO_STRUCT) => Err(no_batch(data)),
            Err(error) => {
                Err(PyRuntimeError::new_err(format!("the stream gives no columns: {}", reason_of(&error))))
            }
        }
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    /// # Errors
    /// What the producer of the stream says, with the number of the batch.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let (batch, number) = py.detach(|| {
            let mut reading = self.0.lock().expect("no panic while held");
            reading.next += 1;
            (reading.stream.next().transpose(), reading.next - 1)
        });
        let batch = batch.map_err(|error| {
            let reason = reason_of(&error);
            PyRuntimeError::new_err(format!("record batch {number} of the stream cannot be read: {reason}"))
        })?;
        let Some(batch) = batch else { return Ok(None) };
        let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let columns = batch.columns().to_vec();
        let batch = RecordBatch::try_new_with_options(without_notes(batch.schema_ref()), columns, &rows);
        batch.map(|batch| Some(Batch(batch))).map_err(|error| errors::value(&error))
    }
}

/// An ingest of record batches, under way in threads of its own.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Batches {
    writing: Writing,
}

#[pymethods]
impl Batches {
    /// Begins an ingest of batches with the columns of `first`, which is not written by this. `classes` has the names of the classes
    /// of columns of labels; the other arguments are those of `Rows`.
    #[new]
    #[pyo3(signature = (store, name, first, classes, *, mix="random", seed=0, shard_size=None, message=""))]
    #[expect(clippy::too_many_arguments, reason = "each is a choice of the user's, given by name")]
    fn new(
        store: &Store,
        name: &str,
        first: &Batch,
        classes: HashMap<String, Vec<String>>,
        mix: &str,
        seed: u64,
        shard_size: Option<&str>,
        message: &str,
    ) -> PyResult<Self> {
        let with_names = |field: &FieldRef| match classes.get(field.name()) {
            Some(names) => Arc::new(with_classes(Field::clone(field), names)),
            None => Arc::clone(field),
        };
        let schema = Schema::new(first.0.schema_ref().fields().iter().map(with_names).collect::<Vec<_>>());
        let target = Target::new(store, name, message)?;
        let config = config(mix, seed, shard_size)?;
        Ok(Self { writing: Writing::begin("batches", Arc::new(schema), target, config)? })
    }

    /// Appends the rows of a batch, which is the `number`th.
    ///
    /// # Errors
    /// Other columns than those of the first batch; the error of an ingest that failed meanwhile.
    fn write(&self, py: Python<'_>, batch: &Batch, number: usize) -> PyResult<()> {
        let (schema, batch) = (&self.writing.schema, &batch.0);
        if let Some(difference) = difference(schema, batch.schema_ref()) {
            return Err(PyValueError::new_err(format!(
                "record batch {number}: {difference}; give all batches the columns and types of the first"
            )));
        }
        let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(schema), batch.columns().to_vec(), &rows);
        let batch = batch.map_err(|error| {
            PyValueError::new_err(format!("record batch {number}: {}", errors::message(&error)))
        })?;
        self.writing.send(py, Some(batch))
    }

    /// Ends the batches, and waits until they are ingested; the version.
    ///
    /// # Errors
    /// Those of the ingest; nothing is committed then.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        self.writing.finish(py)
    }

    /// Ends an ingest without its last batches: nothing is committed.
    fn abandon(&self, py: Python<'_>) {
        self.writing.abandon(py);
    }
}

/// How Arrow begins its message about a stream of arrays that are no structs.
const NO_STRUCT: &str = "Unable to interpret C data struct as a Schema";

fn pointer<T>(capsule: &Bound<'_, PyCapsule>, name: &CStr) -> PyResult<NonNull<T>> {
    Ok(capsule.pointer_checked(Some(name))?.cast())
}

fn no_batch(data: &Bound<'_, PyAny>) -> PyErr {
    let kind = data.get_type().name().map_or_else(|_| "it".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "{kind} has the values of one column, and no columns with names: pass a table or record batches, such as \
         pyarrow.table({{\"name\": values}})"
    ))
}

/// The same columns without the notes of the library about the table as a whole, which a version does not keep.
fn without_notes(schema: &Schema) -> SchemaRef {
    Arc::new(Schema::new(schema.fields().clone()))
}

/// The message of a producer, without the words that Arrow puts before it.
fn reason_of(error: &ArrowError) -> String {
    let text = errors::message(error);
    text.split_once("Producer error: ").map_or(text.clone(), |(_, reason)| reason.trim_end().to_owned())
}

/// The first thing in which a batch differs from the first one. A column may be nullable or not, and the notes of its field do
/// not count, apart from the type that they stand for.
fn difference(first: &Schema, found: &Schema) -> Option<String> {
    let names = |schema: &Schema| {
        schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>().join(", ")
    };
    if names(first) != names(found) {
        return Some(format!("it has the columns {}, and the first batch {}", names(found), names(first)));
    }
    let kind = |field: &Field| -> (DataType, Option<String>, Option<String>) {
        let note = |name: &str| field.metadata().get(name).map(|note| note.to_string());
        (field.data_type().clone(), note("ARROW:extension:name"), note("ARROW:extension:metadata"))
    };
    first.fields().iter().zip(found.fields()).find_map(|(first, found)| {
        if kind(first) == kind(found) {
            return None;
        }
        let (name, new, old) = (found.name(), found.data_type(), first.data_type());
        Some(match new == old {
            true => format!("column {name:?} has another extension type than in the first batch"),
            false => format!("column {name:?} is {new}, and {old} in the first batch"),
        })
    })
}
