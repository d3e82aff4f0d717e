//! From rows of Python to a dataset: the interpreter's thread hands record batches over, and threads outside it
//! ingest them meanwhile.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arrow::array::{
    Array, ArrayData, ArrayRef, BooleanArray, FixedSizeListArray, LargeBinaryBuilder, LargeStringBuilder,
    ListArray, RecordBatch, StructArray, make_array,
};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use serde_json::json;
use shardd_ingest::{Ingest, IngestConfig, Ingested, Mix, NoProgress, Resources, Source};
use shardd_store::catalog::{Catalog, CatalogStore, CommitNote, LocalCatalog, StorePlace};
use shardfmt::store::Sink;
use shardfmt::{ByteSize, DatasetName, FinishedShard, Manifest, Message, Operation, ShardId, VersionId};

use crate::column::FEATURES;
use crate::errors;
use crate::store::{Place, Store};

/// Batches that wait for the threads that ingest them.
const WAITING: usize = 2;
/// How often a wait for the end of an ingest looks for signals.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// The note of a column with the names of its classes.
const CLASSES: &str = "shardd.classes";

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
    /// Pairs of index and value, as libsvm files give them.
    Sparse {
        item: DataType,
    },
}

/// An ingest of rows of Python, under way in threads of its own.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Rows {
    columns: Vec<Kind>,
    writing: Writing,
}

#[pymethods]
impl Rows {
    /// Begins an ingest into a dataset of a store, as `shardctl ingest` does. Columns are `(name, type, shape)`: types as NumPy
    /// writes them, `bytes` or `text`; the shape of a value, `None` for one number; and the names of the classes that a column
    /// of labels has. `sparse ` before a type stands for sparse rows of such numbers, whose shape is the number of features.
    /// `mix` is `random`, `sequential`, `hash` or the name of the column to stratify by.
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
        let target = Target::new(store, name, message)?;
        let config = config(mix, seed, shard_size)?;
        let mut fields = Vec::new();
        let mut kinds = Vec::new();
        for (name, kind, shape, classes) in columns {
            let (field, kind) = column(&name, &kind, shape)?;
            fields.push(match classes {
                Some(classes) => with_classes(field, &classes),
                None => field,
            });
            kinds.push(kind);
        }
        let writing = Writing::begin("rows", Arc::new(Schema::new(fields)), target, config)?;
        Ok(Self { columns: kinds, writing })
    }

    /// Appends rows, given column by column: numbers as a buffer of bytes, `bytes` and `str` as lists. Sparse rows are the
    /// lengths of all rows (int64), their indices (uint32), and their values, each a buffer of bytes.
    ///
    /// # Errors
    /// Values that do not fit their columns; the error of an ingest that failed meanwhile.
    fn write(&self, py: Python<'_>, rows: usize, values: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let schema = &self.writing.schema;
        let columns: Vec<ArrayRef> = (self.columns.iter().zip(schema.fields()).zip(values))
            .map(|((kind, field), values)| array(kind, field, &values, rows))
            .collect::<PyResult<_>>()?;
        let batch =
            RecordBatch::try_new(Arc::clone(schema), columns).map_err(|error| errors::value(&error))?;
        self.writing.send(py, Some(batch))
    }

    /// Ends the rows, and waits until they are ingested; the version.
    ///
    /// # Errors
    /// Those of the ingest; nothing is committed then.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        self.writing.finish(py)
    }

    /// Ends an ingest without its last rows: nothing is committed.
    fn abandon(&self, py: Python<'_>) {
        self.writing.abandon(py);
    }
}

/// An ingest of record batches, under way in threads of its own.
pub(crate) struct Writing {
    /// That of all batches.
    pub(crate) schema: SchemaRef,
    /// Where batches go, until the last; `None` stands for the end of the rows.
    batches: Mutex<Option<SyncSender<Option<RecordBatch>>>>,
    ingest: Mutex<Option<Running>>,
    /// Set to end the ingest without a commit.
    stopped: Arc<AtomicBool>,
}

/// The thread of an ingest.
struct Running {
    /// Returns the version.
    thread: JoinHandle<PyResult<String>>,
    /// Disconnected when the thread ends.
    ended: Receiver<()>,
}

impl Writing {
    /// Begins the ingest. `source` stands for the batches in messages, and among the inputs of the version.
    pub(crate) fn begin(
        source: &str,
        schema: SchemaRef,
        target: Target,
        config: IngestConfig,
    ) -> PyResult<Self> {
        let (batches, given) = sync_channel(WAITING);
        let source = Source::of_batches(source, Arc::clone(&schema), Given(given), &config)
            .map_err(|error| errors::value(&error))?;
        let stopped = Arc::new(AtomicBool::new(false));
        let (running, ended) = sync_channel(0);
        let stop = Arc::clone(&stopped);
        let run = move || {
            let _running = running;
            target.ingest(source, &config, &stop)
        };
        let thread = thread::Builder::new().name("ingest".to_owned()).spawn(run).map_err(PyErr::from)?;
        let (batches, ingest) = (Mutex::new(Some(batches)), Mutex::new(Some(Running { thread, ended })));
        Ok(Self { schema, batches, ingest, stopped })
    }

    /// Hands a batch over, and waits for room first; `None` after the last.
    ///
    /// # Errors
    /// That of the ingest, if it failed meanwhile.
    pub(crate) fn send(&self, py: Python<'_>, batch: Option<RecordBatch>) -> PyResult<()> {
        let batches = self.batches.lock().expect("no panic while held").clone();
        let batches = batches.ok_or_else(|| PyRuntimeError::new_err("the rows have ended"))?;
        if py.detach(|| batches.send(batch)).is_ok() {
            return Ok(());
        }
        drop(batches);
        // The ingest takes no more: it has failed.
        self.end(py).map(drop)
    }

    /// Waits until all batches are ingested; the version.
    ///
    /// # Errors
    /// Those of the ingest, and of a signal meanwhile; nothing is committed then.
    pub(crate) fn finish(&self, py: Python<'_>) -> PyResult<String> {
        self.send(py, None)?;
        self.end(py)
    }

    /// Ends the ingest without a commit.
    pub(crate) fn abandon(&self, py: Python<'_>) {
        self.stopped.store(true, Ordering::Relaxed);
        // Why it ends is known to its caller.
        let _ = self.end(py);
    }

    fn end(&self, py: Python<'_>) -> PyResult<String> {
        drop(self.batches.lock().expect("no panic while held").take());
        let ingest = self.ingest.lock().expect("no panic while held").take();
        let Running { thread, ended } =
            ingest.ok_or_else(|| PyRuntimeError::new_err("the rows have ended"))?;
        let stopped = &self.stopped;
        let (signal, version) = py.detach(move || {
            let signal = loop {
                if ended.recv_timeout(SIGNALS_EVERY) != Err(RecvTimeoutError::Timeout) {
                    break None;
                }
                if let Err(signal) = Python::attach(|py| py.check_signals()) {
                    stopped.store(true, Ordering::Relaxed);
                    break Some(signal);
                }
            };
            (signal, thread.join())
        });
        let version = version.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (signal, version) {
            (None, version) => version,
            (Some(signal), Ok(version)) => {
                // The signal came too late. A note that cannot be added changes nothing of that.
                let note = format!("version {version} was committed before");
                let _ = signal.value(py).call_method1("add_note", (note,));
                Err(signal)
            }
            (Some(signal), Err(_)) => Err(signal),
        }
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
pub(crate) struct Target {
    place: StorePlace,
    name: DatasetName,
    message: Message,
}

impl Target {
    /// # Errors
    /// A name or a message that is none; nodes in the place of a store.
    pub(crate) fn new(store: &Store, name: &str, message: &str) -> PyResult<Self> {
        let Place::Store(place) = &store.place else {
            return Err(PyValueError::new_err(
                "give a directory or the URL of a store to put a dataset into",
            ));
        };
        let name: DatasetName = name.parse().map_err(|error| errors::value(&error))?;
        let message: Message = message.parse().map_err(|error| errors::value(&error))?;
        Ok(Self { place: place.clone(), name, message })
    }

    fn ingest(self, source: Source, config: &IngestConfig, stopped: &AtomicBool) -> PyResult<String> {
        let failed =
            |error: &(dyn std::error::Error + 'static)| PyRuntimeError::new_err(errors::message(error));
        let resources = Resources::threads(thread::available_parallelism().map_or(1, usize::from));
        let read =
            Ingest::read(source, config, &[], &resources, &NoProgress).map_err(|error| failed(&error))?;
        // Of rows that cannot be kept, nothing is made.
        let catalog = LocalCatalog::open_to_fill(&self.place).map_err(|error| errors::catalog(&error))?;
        let sink = UntilStopped { store: CatalogStore(&catalog), stopped };
        let written = read.write(config.shard_size, &sink, &NoProgress).map_err(|error| failed(&error))?;
        let Ingested { manifest, provenance } = written.versions()[0].clone();
        sink.check().map_err(|error| failed(&error))?;
        let note = CommitNote { provenance: Some(provenance), ..CommitNote::of(Operation::INGEST) };
        let version = self.replace(&catalog, &manifest, note)?;
        written.finish();
        Ok(version)
    }

    /// Makes a version whose shards are stored the present one; its id.
    ///
    /// # Errors
    /// When a shard is missing, or another writer was faster.
    pub(crate) fn commit(self, manifest: &Manifest, note: CommitNote) -> PyResult<String> {
        let catalog = LocalCatalog::open_to_fill(&self.place).map_err(|error| errors::catalog(&error))?;
        self.replace(&catalog, manifest, note)
    }

    /// As [`commit`](Self::commit), in the place of the version `before` alone.
    ///
    /// # Errors
    /// As there, and when another version took its place.
    pub(crate) fn commit_after(
        self,
        before: VersionId,
        manifest: &Manifest,
        note: CommitNote,
    ) -> PyResult<String> {
        let catalog = LocalCatalog::open_to_fill(&self.place).map_err(|error| errors::catalog(&error))?;
        self.put(&catalog, Some(before), manifest, note)
    }

    fn replace(self, catalog: &LocalCatalog, manifest: &Manifest, note: CommitNote) -> PyResult<String> {
        // The version to replace is that of now: rows may have come for hours.
        let datasets = catalog.datasets().map_err(|error| errors::catalog(&error))?;
        let before = datasets.iter().find(|info| info.name == self.name).map(|info| info.version);
        self.put(catalog, before, manifest, note)
    }

    fn put(
        self,
        catalog: &LocalCatalog,
        before: Option<VersionId>,
        manifest: &Manifest,
        note: CommitNote,
    ) -> PyResult<String> {
        let note = CommitNote { message: self.message, ..note };
        let made =
            catalog.commit(&self.name, before, manifest, &note).map_err(|error| errors::catalog(&error))?;
        Ok(made.version.to_string())
    }
}

/// A store that takes no more shards once the ingest is stopped.
struct UntilStopped<'s> {
    store: CatalogStore<'s>,
    stopped: &'s AtomicBool,
}

impl UntilStopped<'_> {
    fn check(&self) -> io::Result<()> {
        if self.stopped.load(Ordering::Relaxed) {
            Err(io::Error::other("the ingest was stopped"))
        } else {
            Ok(())
        }
    }
}

impl Sink for UntilStopped<'_> {
    fn put_shard(&self, shard: FinishedShard) -> io::Result<()> {
        self.check()?;
        self.store.put_shard(shard)
    }

    fn has_shard(&self, id: &ShardId) -> io::Result<bool> {
        self.store.has_shard(id)
    }
}

/// The settings of an ingest. `mix` is `random`, `sequential`, `hash` or the name of the column to stratify by.
///
/// # Errors
/// A size that is none.
pub(crate) fn config(mix: &str, seed: u64, shard_size: Option<&str>) -> PyResult<IngestConfig> {
    let shard_size =
        shard_size.map(str::parse::<ByteSize>).transpose().map_err(|error| errors::value(&error))?;
    let mix = match mix {
        "random" => Mix::Random,
        "sequential" => Mix::Sequential,
        "hash" => Mix::Hash,
        column => Mix::Stratified(column.to_owned()),
    };
    Ok(IngestConfig { mix, seed, shard_size, ..IngestConfig::default() })
}

/// The field of a column of labels, with the names of its classes beside its other notes.
pub(crate) fn with_classes(field: Field, classes: &[String]) -> Field {
    let mut notes = field.metadata().clone();
    notes.insert(CLASSES.to_owned(), json!(classes).to_string());
    field.with_metadata(notes)
}

fn column(name: &str, kind: &str, shape: Option<Vec<usize>>) -> PyResult<(Field, Kind)> {
    match kind {
        "bytes" => return Ok((Field::new(name, DataType::LargeBinary, false), Kind::Bytes)),
        "text" => return Ok((Field::new(name, DataType::LargeUtf8, false), Kind::Text)),
        _ => {}
    }
    let (is_sparse, of) = match kind.strip_prefix("sparse ") {
        Some(of) => (true, of),
        None => (false, kind),
    };
    let item = number(of).ok_or_else(|| {
        PyValueError::new_err(format!(
            "column {name:?} has values of type {of:?}; numbers, booleans, bytes and text can be kept"
        ))
    })?;
    if is_sparse {
        let features = shape.iter().flatten().product::<usize>();
        let notes = HashMap::from([(FEATURES.to_owned(), features.to_string())]);
        let pair = DataType::Struct(pair_fields(&item));
        let field = Field::new(name, DataType::new_list(pair, false), false).with_metadata(notes);
        return Ok((field, Kind::Sparse { item }));
    }
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

/// The type of numbers that NumPy writes so.
fn number(kind: &str) -> Option<DataType> {
    Some(match kind.trim_start_matches(['|', '<', '=']) {
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
        _ => return None,
    })
}

/// A feature of a sparse row, as libsvm files give it.
fn pair_fields(item: &DataType) -> Fields {
    vec![Field::new("index", DataType::UInt32, false), Field::new("value", item.clone(), false)].into()
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
            let bytes = bytes_of(values)?;
            let count = rows * width.unwrap_or(1);
            if bytes.len() != count * item.primitive_width().unwrap_or(1) {
                return Err(refuse());
            }
            if *item == DataType::Boolean {
                return Ok(Arc::new(BooleanArray::from_iter(bytes.iter().map(|byte| Some(*byte != 0)))));
            }
            let items = numbers(item, bytes, count)?;
            match field.data_type() {
                DataType::FixedSizeList(item, size) => Arc::new(
                    FixedSizeListArray::try_new(Arc::clone(item), *size, items, None)
                        .map_err(|error| errors::value(&error))?,
                ),
                _ => items,
            }
        }
        Kind::Sparse { item } => {
            let parts: (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>) = values.extract()?;
            let (lengths, indices, data) = (bytes_of(&parts.0)?, bytes_of(&parts.1)?, bytes_of(&parts.2)?);
            let lengths = lengths.as_chunks::<8>().0.iter().map(|length| i64::from_le_bytes(*length));
            let lengths: Option<Vec<usize>> = lengths.map(|length| usize::try_from(length).ok()).collect();
            let lengths = lengths.ok_or_else(refuse)?;
            let count = lengths.iter().sum::<usize>();
            let width = item.primitive_width().unwrap_or(1);
            if indices.len() != count * size_of::<u32>() || data.len() != count * width {
                return Err(refuse());
            }
            if i32::try_from(count).is_err() {
                return Err(PyValueError::new_err(format!(
                    "column {:?} has {count} values in {rows} rows at once, the most is {}; pass fewer rows at a time",
                    field.name(),
                    i32::MAX
                )));
            }
            let indices = numbers(&DataType::UInt32, indices, count)?;
            let parts = vec![indices, numbers(item, data, count)?];
            let pairs = StructArray::try_new(pair_fields(item), parts, None);
            let pairs = pairs.map_err(|error| errors::value(&error))?;
            let of = Arc::new(Field::new_list_field(pairs.data_type().clone(), false));
            let lists = ListArray::try_new(of, OffsetBuffer::from_lengths(lengths), Arc::new(pairs), None);
            Arc::new(lists.map_err(|error| errors::value(&error))?)
        }
    };
    if array.len() == rows { Ok(array) } else { Err(refuse()) }
}

fn bytes_of(values: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    PyBuffer::<u8>::get(values)?.to_vec(values.py())
}

/// Numbers of this type, of which these are the bytes.
fn numbers(item: &DataType, bytes: Vec<u8>, count: usize) -> PyResult<ArrayRef> {
    let data =
        ArrayData::builder(item.clone()).len(count).add_buffer(Buffer::from_vec(bytes)).align_buffers(true);
    Ok(make_array(data.build().map_err(|error| errors::value(&error))?))
}
