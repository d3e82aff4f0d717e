//! From rows of Python to a dataset: the interpreter's thread hands record batches over, and threads outside it
//! ingest them meanwhile.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use arrow::array::{
    Array, ArrayData, ArrayRef, BooleanArray, FixedSizeListArray, LargeBinaryBuilder, LargeStringBuilder,
    RecordBatch, make_array,
};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use serde_json::json;
use shardd_ingest::{Ingest, IngestConfig, Mix, NoProgress, Resources, Source};
use shardd_store::catalog::{Catalog, CatalogStore, CommitNote, LocalCatalog, StorePlace};
use shardfmt::{ByteSize, DatasetName, Message, Operation};

use crate::errors;
use crate::store::{Place, Store};

/// Batches that wait for the threads that ingest them.
const WAITING: usize = 2;

/// Name, type, shape of a value, names of classes.
type ColumnOf = (String, String, Option<Vec<usize>>, Option<Vec<String>>);

enum Kind {
    Bytes,
    Text,
    /// Numbers, a fixed count to the row.
    Tensor {
        item: DataType,
        width: Option<usize>,
    },
}

/// An ingest of rows of Python, under way in threads of its own.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Rows {
    schema: SchemaRef,
    columns: Vec<Kind>,
    /// Where batches go, until the last; `None` stands for the end of the rows.
    batches: Mutex<Option<SyncSender<Option<RecordBatch>>>>,
    /// Returns the version.
    ingest: Mutex<Option<JoinHandle<PyResult<String>>>>,
}

#[pymethods]
impl Rows {
    /// Begins an ingest into a dataset of a store, as `shardctl ingest` does. Columns are `(name, type, shape)`: types as NumPy
    /// writes them, `bytes` or `text`; the shape of a value, `None` for one number; and the names of the classes that a column
    /// of labels has. `mix` is `random`, `sequential` or the name of the column to stratify by.
    #[new]
    #[pyo3(signature = (store, name, columns, *, mix="random", seed=0, shard_size=None, message=""))]
    fn new(
        store: &Store,
        name: &str,
        columns: Vec<ColumnOf>,
        mix: &str,
        seed: u64,
        shard_size: Option<&str>,
        message: &str,
    ) -> PyResult<Self> {
        let Place::Store(place) = &store.place else {
            return Err(PyValueError::new_err(
                "give a directory or the URL of a store to put a dataset into",
            ));
        };
        let name: DatasetName = name.parse().map_err(|error| errors::value(&error))?;
        let message: Message = message.parse().map_err(|error| errors::value(&error))?;
        let shard_size =
            shard_size.map(str::parse::<ByteSize>).transpose().map_err(|error| errors::value(&error))?;
        let mix = match mix {
            "random" => Mix::Random,
            "sequential" => Mix::Sequential,
            column => Mix::Stratified(column.to_owned()),
        };
        let config = IngestConfig { mix, seed, shard_size, ..IngestConfig::default() };
        let mut fields = Vec::new();
        let mut kinds = Vec::new();
        for (name, kind, shape, classes) in columns {
            let (field, kind) = column(&name, &kind, shape)?;
            let classes = classes.map(|names| [("shardd.classes".to_owned(), json!(names).to_string())]);
            fields.push(match classes {
                Some(classes) => field.with_metadata(HashMap::from(classes)),
                None => field,
            });
            kinds.push(kind);
        }
        let schema = Arc::new(Schema::new(fields));
        let (batches, given) = sync_channel(WAITING);
        let source = Source::of_batches("rows", Arc::clone(&schema), Given(given), &config)
            .map_err(|error| errors::value(&error))?;
        let target = Target { place: place.clone(), name, message };
        let ingest = thread::Builder::new()
            .name("ingest".to_owned())
            .spawn(move || target.ingest(source, &config))
            .map_err(PyErr::from)?;
        let (batches, ingest) = (Mutex::new(Some(batches)), Mutex::new(Some(ingest)));
        Ok(Self { schema, columns: kinds, batches, ingest })
    }

    /// Appends rows, given column by column: numbers as a buffer of bytes, `bytes` and `str` as lists.
    ///
    /// # Errors
    /// Values that do not fit their columns; the error of an ingest that failed meanwhile.
    fn write(&self, py: Python<'_>, rows: usize, values: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let columns: Vec<ArrayRef> = (self.columns.iter().zip(self.schema.fields()).zip(values))
            .map(|((kind, field), values)| array(kind, field, &values, rows))
            .collect::<PyResult<_>>()?;
        let batch =
            RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(|error| errors::value(&error))?;
        self.send(py, Some(batch))
    }

    /// Ends the rows, and waits until they are ingested; the version.
    ///
    /// # Errors
    /// Those of the ingest; nothing is committed then.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        self.send(py, None)?;
        self.end(py)
    }

    /// Ends an ingest without its last rows: nothing is committed.
    fn abandon(&self, py: Python<'_>) {
        // Why it ends is known to its caller.
        let _ = self.end(py);
    }
}

impl Rows {
    fn send(&self, py: Python<'_>, batch: Option<RecordBatch>) -> PyResult<()> {
        let batches = self.batches.lock().expect("no panic while held").clone();
        let batches = batches.ok_or_else(|| PyRuntimeError::new_err("the rows have ended"))?;
        if py.detach(|| batches.send(batch)).is_ok() {
            return Ok(());
        }
        drop(batches);
        // The ingest takes no more: it has failed.
        self.end(py).map(drop)
    }

    fn end(&self, py: Python<'_>) -> PyResult<String> {
        drop(self.batches.lock().expect("no panic while held").take());
        let ingest = self.ingest.lock().expect("no panic while held").take();
        let ingest = ingest.ok_or_else(|| PyRuntimeError::new_err("the rows have ended"))?;
        py.detach(|| ingest.join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The batches on the side of the ingest.
struct Given(Receiver<Option<RecordBatch>>);

impl Iterator for Given {
    type Item = io::Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let given = self.0.recv().map_err(|_| io::Error::other("the rows ended early"));
        given.transpose()
    }
}

/// Where the rows go.
struct Target {
    place: StorePlace,
    name: DatasetName,
    message: Message,
}

impl Target {
    fn ingest(self, source: Source, config: &IngestConfig) -> PyResult<String> {
        let failed =
            |error: &(dyn std::error::Error + 'static)| PyRuntimeError::new_err(errors::message(error));
        let resources = Resources::threads(thread::available_parallelism().map_or(1, usize::from));
        let read =
            Ingest::read(source, config, &[], &resources, &NoProgress).map_err(|error| failed(&error))?;
        // Of rows that cannot be kept, nothing is made.
        let catalog = LocalCatalog::open_to_fill(&self.place).map_err(|error| errors::catalog(&error))?;
        let written = read
            .write(config.shard_size, &CatalogStore(&catalog), &NoProgress)
            .map_err(|error| failed(&error))?;
        let manifest = written.manifests()[0].clone();
        // The version to replace is that of now: rows may have come for hours.
        let datasets = catalog.datasets().map_err(|error| errors::catalog(&error))?;
        let before = datasets.iter().find(|info| info.name == self.name).map(|info| info.version);
        let note = CommitNote { operation: Operation::INGEST, message: self.message };
        catalog.commit(&self.name, before, &manifest, &note).map_err(|error| errors::catalog(&error))?;
        written.finish();
        Ok(manifest.id().to_string())
    }
}

fn column(name: &str, kind: &str, shape: Option<Vec<usize>>) -> PyResult<(Field, Kind)> {
    let item = match kind.trim_start_matches(['|', '<', '=']) {
        "bytes" => return Ok((Field::new(name, DataType::LargeBinary, false), Kind::Bytes)),
        "text" => return Ok((Field::new(name, DataType::LargeUtf8, false), Kind::Text)),
        "b1" => DataType::Boolean,
        "i1" => DataType::Int8,
        "i2" => DataType::Int16,
        "i4" => DataType::Int32,
        "i8" => DataType::Int64,
        "u1" => DataType::UInt8,
        "u2" => DataType::UInt16,
        "u4" => DataType::UInt32,
        "u8" => DataType::UInt64,
        "f2" => DataType::Float16,
        "f4" => DataType::Float32,
        "f8" => DataType::Float64,
        other => {
            return Err(PyValueError::new_err(format!(
                "column {name:?} has values of type {other:?}; numbers, booleans, bytes and text can be kept"
            )));
        }
    };
    let Some(shape) = shape else {
        return Ok((Field::new(name, item.clone(), false), Kind::Tensor { item, width: None }));
    };
    let width = shape.iter().product::<usize>();
    let size = i32::try_from(width).ok().filter(|size| *size > 0 && item != DataType::Boolean);
    let Some(size) = size else {
        return Err(PyValueError::new_err(format!(
            "column {name:?} has values of shape {shape:?} of {item}, which cannot be kept"
        )));
    };
    let list = DataType::FixedSizeList(Arc::new(Field::new("item", item.clone(), false)), size);
    let tensor = [
        ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
        ("ARROW:extension:metadata".to_owned(), json!({ "shape": shape }).to_string()),
    ];
    let field = Field::new(name, list, false).with_metadata(HashMap::from(tensor));
    Ok((field, Kind::Tensor { item, width: Some(width) }))
}

/// The values of one column of some rows.
fn array(kind: &Kind, field: &Field, values: &Bound<'_, PyAny>, rows: usize) -> PyResult<ArrayRef> {
    let refuse =
        || PyValueError::new_err(format!("column {:?} has values of more than one type", field.name()));
    let array: ArrayRef = match kind {
        Kind::Bytes => {
            let values: Vec<Bound<'_, PyBytes>> = values.extract()?;
            let bytes = values.iter().map(|value| value.as_bytes().len()).sum();
            let mut array = LargeBinaryBuilder::with_capacity(values.len(), bytes);
            values.iter().for_each(|value| array.append_value(value.as_bytes()));
            Arc::new(array.finish())
        }
        Kind::Text => {
            let values: Vec<Bound<'_, PyString>> = values.extract()?;
            let mut array = LargeStringBuilder::new();
            for value in &values {
                array.append_value(value.to_str()?);
            }
            Arc::new(array.finish())
        }
        Kind::Tensor { item, width } => {
            let bytes = PyBuffer::<u8>::get(values)?.to_vec(values.py())?;
            let count = rows * width.unwrap_or(1);
            if bytes.len() != count * item.primitive_width().unwrap_or(1) {
                return Err(refuse());
            }
            if *item == DataType::Boolean {
                return Ok(Arc::new(BooleanArray::from_iter(bytes.iter().map(|byte| Some(*byte != 0)))));
            }
            let data = ArrayData::builder(item.clone())
                .len(count)
                .add_buffer(Buffer::from_vec(bytes))
                .align_buffers(true);
            let items = make_array(data.build().map_err(|error| errors::value(&error))?);
            match field.data_type() {
                DataType::FixedSizeList(item, size) => Arc::new(
                    FixedSizeListArray::try_new(Arc::clone(item), *size, items, None)
                        .map_err(|error| errors::value(&error))?,
                ),
                _ => items,
            }
        }
    };
    if array.len() == rows { Ok(array) } else { Err(refuse()) }
}
