//! From rows of Python to a dataset: rows are written to an Arrow file, which is ingested as any other.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use arrow::array::{
    ArrayData, ArrayRef, BooleanArray, FixedSizeListArray, LargeBinaryArray, LargeStringArray, RecordBatch,
    make_array,
};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::ipc::writer::FileWriter;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde_json::json;
use shardd_ingest::{Ingest, IngestConfig, Links, Mix, NoProgress, Resources, Source};
use shardd_store::catalog::{Catalog, CatalogStore, CommitNote, LocalCatalog};
use shardfmt::{ByteSize, DatasetName, Message, Operation};

use crate::errors;
use crate::store::{Place, Store};

/// An Arrow file in the making.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Rows {
    schema: SchemaRef,
    columns: Vec<Kind>,
    writer: Mutex<Option<FileWriter<File>>>,
}

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

/// The values of one column of some rows.
#[derive(FromPyObject)]
pub(crate) enum Values {
    /// Numbers one after the other, as they lie in memory.
    Tensor(#[pyo3(from_py_with = owned_bytes)] Vec<u8>),
    Text(Vec<String>),
    Bytes(Vec<Vec<u8>>),
}

fn owned_bytes(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    Ok(value.cast::<pyo3::types::PyBytes>()?.as_bytes().to_vec())
}

#[pymethods]
impl Rows {
    /// Columns are `(name, type, shape)`: types as NumPy writes them, `bytes` or `text`; the shape of a value, `None` for one
    /// number; and the names of the classes that a column of labels has.
    #[new]
    fn new(path: PathBuf, columns: Vec<ColumnOf>) -> PyResult<Self> {
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
        let file = File::create(&path)?;
        let writer = FileWriter::try_new(file, &schema).map_err(|error| errors::value(&error))?;
        Ok(Self { schema, columns: kinds, writer: Mutex::new(Some(writer)) })
    }

    /// Appends rows, given column by column.
    fn write(&self, py: Python<'_>, rows: usize, values: Vec<Values>) -> PyResult<()> {
        py.detach(|| {
            let columns: Vec<ArrayRef> = (self.columns.iter().zip(self.schema.fields()).zip(values))
                .map(|((kind, field), values)| array(kind, field, values, rows))
                .collect::<PyResult<_>>()?;
            let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)
                .map_err(|error| errors::value(&error))?;
            let mut writer = self.writer.lock().expect("no panic while held");
            let writer = writer.as_mut().ok_or_else(|| PyRuntimeError::new_err("the file is finished"))?;
            writer.write(&batch).map_err(|error| errors::value(&error))
        })
    }

    /// Ends the file.
    fn finish(&self) -> PyResult<()> {
        let writer = self.writer.lock().expect("no panic while held").take();
        writer.map_or(Ok(()), |mut writer| writer.finish()).map_err(|error| errors::value(&error))
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

fn array(kind: &Kind, field: &Field, values: Values, rows: usize) -> PyResult<ArrayRef> {
    let refuse =
        || PyValueError::new_err(format!("column {:?} has values of more than one type", field.name()));
    Ok(match (kind, values) {
        (Kind::Bytes, Values::Bytes(values)) => Arc::new(LargeBinaryArray::from_iter_values(values)),
        (Kind::Text, Values::Text(values)) => Arc::new(LargeStringArray::from_iter_values(values)),
        (Kind::Tensor { item: DataType::Boolean, width: None }, Values::Tensor(bytes)) => {
            Arc::new(BooleanArray::from(bytes.iter().map(|byte| *byte != 0).collect::<Vec<_>>()))
        }
        (Kind::Tensor { item, width }, Values::Tensor(bytes)) => {
            let count = rows * width.unwrap_or(1);
            if bytes.len() != count * item.primitive_width().unwrap_or(0) {
                return Err(refuse());
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
        // An empty list is a list of anything.
        (Kind::Bytes, Values::Text(values)) if values.is_empty() => {
            Arc::new(LargeBinaryArray::from_iter_values([[0u8; 0]; 0]))
        }
        _ => return Err(refuse()),
    })
}

/// Ingests files into a dataset of a store, as `shardctl ingest` does, and returns the version. `mix` is `random`,
/// `sequential` or the name of the column to stratify by.
#[pyfunction]
#[pyo3(signature = (store, name, paths, *, mix="random", seed=0, shard_size=None, message=""))]
#[expect(clippy::too_many_arguments, reason = "each is a choice of the user's, given by name")]
pub(crate) fn ingest(
    py: Python<'_>,
    store: &Store,
    name: &str,
    paths: Vec<PathBuf>,
    mix: &str,
    seed: u64,
    shard_size: Option<&str>,
    message: &str,
) -> PyResult<String> {
    let Place::Store(place) = &store.place else {
        return Err(PyValueError::new_err("give a directory or the URL of a store to put a dataset into"));
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
    py.detach(|| {
        let failed =
            |error: &(dyn std::error::Error + 'static)| PyRuntimeError::new_err(errors::message(error));
        let resources = Resources::threads(std::thread::available_parallelism().map_or(1, usize::from));
        let inputs = shardd_inputs::open(&paths, None, Links::Within).map_err(|error| failed(&error))?;
        let source = resources.install(|| Source::new(inputs, &config)).map_err(|error| failed(&error))?;
        let source = source.map_err(|error| failed(&error))?;
        let catalog = LocalCatalog::open_to_fill(place).map_err(|error| errors::catalog(&error))?;
        let datasets = catalog.datasets().map_err(|error| errors::catalog(&error))?;
        let before = datasets.iter().find(|info| info.name == name).map(|info| info.version);
        let read =
            Ingest::read(source, &config, &[], &resources, &NoProgress).map_err(|error| failed(&error))?;
        let written =
            read.write(shard_size, &CatalogStore(&catalog), &NoProgress).map_err(|error| failed(&error))?;
        let manifest = written.manifests()[0].clone();
        let note = CommitNote { operation: Operation::INGEST, message };
        catalog.commit(&name, before, &manifest, &note).map_err(|error| errors::catalog(&error))?;
        written.finish();
        Ok(manifest.id().to_string())
    })
}
