//! A rank's share of a plan, step by step.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use arrow::datatypes::FieldRef;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use shardd_api::protocol::RunId;
use shardd_client::fork::Own;
use shardd_client::loader::{
    self, BatchSize, CacheChoice, Follow, LastBatch, LoaderConfig, LoaderSource, Next, TrainerNotes,
};
use shardfmt::row::Memory;
use shardfmt::{ByteSize, PlanId};

use crate::column::Column;
use crate::errors;
use crate::memory::TorchMemory;
use crate::mixture::Mixture;
use crate::shared::SharedBlocks;
use crate::store::{Place, Store, parse};
use crate::transforms::Chain;

/// How long the interpreter is kept from checks for an interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Reads a rank's share of a plan, or of a mixture.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Loader {
    /// `None` once it is closed.
    inner: Own<Mutex<Option<loader::Loader>>>,
    /// The memory for batches, if it is not the loader's own.
    memory: Own<Option<TorchMemory>>,
    /// Time in Python code that makes batches, since the last step.
    batch_code_micros: AtomicU64,
    notes: TrainerNotes,
    seed: u64,
    virtual_ranks: u32,
    samples: u64,
    steps_per_epoch: u64,
}

/// The order of a loader: a mixture, or a plan of a store or of nodes.
#[derive(FromPyObject)]
enum Order {
    Mixture(Py<Mixture>),
    Plan(Py<Store>, String),
}

impl Order {
    /// With nodes as part of `run`.
    fn follow(&self, run: Option<&str>) -> PyResult<Follow> {
        let (store, plan) = match self {
            Self::Mixture(mixture) => return Ok(mixture.get().follow()),
            Self::Plan(store, plan) => (store.get(), plan),
        };
        let source = match &store.place {
            Place::Store(place) => LoaderSource::Store(place.clone()),
            Place::Nodes { servers, credentials } => LoaderSource::Nodes {
                servers: servers.clone(),
                run: run.unwrap_or("python").parse::<RunId>().map_err(|error| errors::value(&error))?,
                credentials: credentials.clone(),
            },
        };
        Ok(Follow::Plan { source, plan: store.plan_ref(PlanId(parse(plan)?)) })
    }
}

/// The samples all ranks read in a step, and this rank's part of it.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Step {
    step: loader::Step,
    seed: u64,
    memory: Option<TorchMemory>,
}

#[pymethods]
impl Loader {
    #[new]
    #[pyo3(signature = (order, *, batch_size=None, global_batch_size=None, rank=0, world=1, virtual_ranks=None, last_batch="short", shuffle=true, limit=None, epoch=0, position=0, stride=1,
                        read_ahead=8, threads=2, audit=false, cache_dir=None, cache_limit=None, run=None, transforms=None, allocate=None, shared=None))]
    #[expect(clippy::too_many_arguments, reason = "each is a choice of the user's, given by name")]
    fn new(
        py: Python<'_>,
        order: Order,
        batch_size: Option<u64>,
        global_batch_size: Option<u64>,
        rank: u32,
        world: u32,
        virtual_ranks: Option<u32>,
        last_batch: &str,
        shuffle: bool,
        limit: Option<u64>,
        epoch: u32,
        position: u64,
        stride: u64,
        read_ahead: usize,
        threads: usize,
        audit: bool,
        cache_dir: Option<PathBuf>,
        cache_limit: Option<&str>,
        run: Option<&str>,
        transforms: Option<Py<Chain>>,
        allocate: Option<Py<PyAny>>,
        shared: Option<Py<SharedBlocks>>,
    ) -> PyResult<Self> {
        let batch = BatchSize::new(batch_size, global_batch_size).map_err(|error| errors::value(&error))?;
        let mut config = LoaderConfig::following(order.follow(run)?, batch);
        config.rank = rank;
        config.world = world;
        config.virtual_ranks = virtual_ranks;
        config.last_batch = match last_batch {
            "short" => LastBatch::Short,
            "drop" => LastBatch::Drop,
            "wrap" => LastBatch::Wrap,
            "carry" => LastBatch::Carry,
            other => {
                return Err(pyo3::exceptions::PyValueError::new_err(format!(
                    "last_batch={other:?}: use \"short\", \"drop\", \"wrap\" or \"carry\""
                )));
            }
        };
        config.start = (epoch, position);
        config.end_epoch = u32::MAX;
        config.stride = stride;
        config.read_ahead = read_ahead;
        config.threads = threads;
        config.audit = audit;
        config.shuffle = shuffle;
        config.limit = limit;
        config.transforms = transforms.map(|chain| chain.get().inner.clone());
        config.cache = cache(cache_dir, cache_limit)?;
        let memory = allocate.map(TorchMemory::new);
        let opened = open(
            py,
            config,
            match (&memory, shared) {
                (Some(memory), _) => Some(Box::new(memory.clone())),
                (None, Some(shared)) => Some(Box::new(shared.get().memory())),
                (None, None) => None,
            },
        )?;
        Ok(Self {
            seed: opened.sources()[0].plan.document().seed,
            virtual_ranks: opened.virtual_ranks(),
            samples: opened.steps().sample_count,
            steps_per_epoch: opened.steps().per_epoch(),
            batch_code_micros: AtomicU64::new(0),
            notes: opened.notes(),
            inner: Own::new(Mutex::new(Some(opened))),
            memory: Own::new(memory),
        })
    }

    /// Says that some seconds since the last step went into Python code that makes batches: they count as waiting for data.
    fn note_batch_code(&self, seconds: f64) {
        let micros = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_micros();
        self.batch_code_micros.fetch_add(u64::try_from(micros).unwrap_or(0), Relaxed);
    }

    /// Says that some seconds went into waiting for other ranks: they do not count as the loop's own work.
    fn note_rank_waits(&self, seconds: f64) {
        self.notes.waited_for_ranks(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    }

    /// Says what the loss of the last step was.
    fn note_loss(&self, loss: f64) {
        self.notes.loss(loss);
    }

    /// The next step; `None` after the last epoch. Waits without holding the interpreter, and can be interrupted.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Step>> {
        let inner = self.inner()?;
        loop {
            let next = py.detach(|| {
                let mut inner = inner.lock().expect("no panic while held");
                if let Some(inner) = inner.as_mut() {
                    inner.note_batch_code(Duration::from_micros(self.batch_code_micros.swap(0, Relaxed)));
                }
                inner.as_mut().map(|inner| inner.next_step_within(LOOK_EVERY))
            });
            match next {
                None => return Err(PyRuntimeError::new_err("the loader is closed")),
                Some(Ok(Next::Step(step))) => {
                    let memory = self.memory.get().cloned().flatten();
                    if let Some(memory) = &memory {
                        memory.fill(py)?;
                    }
                    return Ok(Some(Step { step: *step, seed: self.seed, memory }));
                }
                Some(Ok(Next::End)) => return Ok(None),
                Some(Ok(Next::NotYet)) => py.check_signals()?,
                Some(Err(error)) => return Err(errors::load(&error)),
            }
        }
    }

    /// Ends its threads. The returned batches stay.
    fn close(&self, py: Python<'_>) {
        if let Some(inner) = self.inner.get() {
            py.detach(|| drop(inner.lock().expect("no panic while held").take()));
        }
    }

    /// Whether it was opened by this process, and not by one that this was forked from.
    fn is_own(&self) -> bool {
        self.inner.get().is_some()
    }

    /// V.
    #[getter]
    fn virtual_ranks(&self) -> u32 {
        self.virtual_ranks
    }

    /// Samples of an epoch.
    #[getter]
    fn samples(&self) -> u64 {
        self.samples
    }

    /// Steps of an epoch that is read from its beginning.
    #[getter]
    fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }

    /// Steps and samples handed out, and what time went by with, in seconds.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.inner()?;
        // Another thread may be waiting for a step.
        let stats = py.detach(|| {
            let inner = inner.lock().expect("no panic while held");
            inner.as_ref().map(loader::Loader::stats).unwrap_or_default()
        });
        let counted = PyDict::new(py);
        counted.set_item("steps", stats.steps)?;
        counted.set_item("samples", stats.samples)?;
        counted.set_item("surplus", stats.surplus)?;
        counted.set_item("waited_s", stats.waited_s)?;
        counted.set_item("kept_s", stats.kept_s)?;
        counted.set_item("network_s", stats.network_s)?;
        counted.set_item("disk_s", stats.disk_s)?;
        counted.set_item("decode_s", stats.decode_s)?;
        counted.set_item("transform_s", stats.transform_s)?;
        counted.set_item("replaced", stats.replaced)?;
        counted.set_item("skipped", stats.skipped)?;
        Ok(counted)
    }
}

/// Where shards are kept on this machine.
pub(crate) fn cache(dir: Option<PathBuf>, limit: Option<&str>) -> PyResult<CacheChoice> {
    let limit = limit.map(str::parse::<ByteSize>).transpose().map_err(|error| errors::value(&error))?;
    Ok(CacheChoice { dir, limit })
}

/// Opens it on a thread of its own: a store out of reach is asked for a minute, and the user may not want to wait that long.
fn open(
    py: Python<'_>,
    config: LoaderConfig,
    memory: Option<Box<dyn Memory + Send + Sync>>,
) -> PyResult<loader::Loader> {
    let (give, opened) = sync_channel(1);
    let opened = Mutex::new(opened);
    // No caller takes it after an interruption.
    let work = move || {
        drop(give.send(match memory {
            Some(memory) => loader::Loader::open_into(config, memory),
            None => loader::Loader::open(config),
        }));
    };
    let _detached = thread::Builder::new().name("shardd-open".to_owned()).spawn(work)?;
    loop {
        match py.detach(|| opened.lock().expect("no panic while held").recv_timeout(LOOK_EVERY)) {
            Ok(opened) => return opened.map_err(|error| errors::load(&error)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err(
                    "the loader could not be opened: its thread stopped unexpectedly",
                ));
            }
        }
    }
}

impl Drop for Loader {
    /// Ends its threads, one of which may be waiting for the interpreter.
    fn drop(&mut self) {
        if let Some(inner) = self.inner.get() {
            let close = || drop(inner.lock().expect("no panic while held").take());
            let _ = Python::try_attach(|py| py.detach(close));
        }
    }
}

impl Loader {
    fn inner(&self) -> PyResult<&Mutex<Option<loader::Loader>>> {
        let forked = || PyRuntimeError::new_err("the loader was opened before this process was forked");
        self.inner.get().ok_or_else(forked)
    }
}

#[pymethods]
impl Step {
    #[getter]
    fn epoch(&self) -> u32 {
        self.step.epoch
    }

    /// The seed of its order, which is that of transforms.
    #[getter]
    fn seed(&self) -> u64 {
        self.seed
    }

    /// Its number in the epoch.
    #[getter]
    fn number(&self) -> u64 {
        self.step.step
    }

    /// The reads of all ranks together: epoch, positions, and whether these were read before.
    #[getter]
    fn parts(&self) -> Vec<(u32, u64, u64, bool)> {
        let part = |part: &loader::Part| (part.epoch, part.positions.start, part.positions.end, part.repeats);
        self.step.parts.iter().map(part).collect()
    }

    /// How many samples all ranks together read.
    #[getter]
    fn samples(&self) -> u64 {
        self.step.global_samples()
    }

    /// The place of the next step: epoch and position.
    #[getter]
    fn next(&self) -> (u32, u64) {
        (self.step.cursor.epoch, self.step.cursor.position)
    }

    /// How many micro-batches this rank has.
    fn __len__(&self) -> usize {
        self.step.micro_batches.len()
    }

    /// The virtual rank of a micro-batch, and how many samples it has.
    fn micro_batch(&self, index: usize) -> PyResult<(u32, usize)> {
        let micro_batch = self.at(index)?;
        Ok((micro_batch.virtual_rank, micro_batch.batch.num_rows()))
    }

    /// The position of each of its samples.
    fn positions_of(&self, index: usize) -> PyResult<Vec<u64>> {
        Ok(self.at(index)?.positions.clone())
    }

    /// The epoch and the position of each of its samples.
    fn places_of(&self, index: usize) -> PyResult<Vec<(u32, u64)>> {
        let micro_batch = self.at(index)?;
        let epoch = |row| self.step.parts[micro_batch.ends.partition_point(|end| *end <= row)].epoch;
        Ok(micro_batch.positions.iter().enumerate().map(|(row, position)| (epoch(row), *position)).collect())
    }

    /// Of a mixture the number of each of its samples' source; else nothing.
    fn sources_of(&self, index: usize) -> PyResult<Vec<u32>> {
        Ok(self.at(index)?.sources.iter().map(|source| source.0).collect())
    }

    /// The samples of a micro-batch whose pictures could not be decoded or changed: epoch, position, reason, and whether they are left
    /// out.
    fn failed(&self, index: usize) -> PyResult<Vec<(u32, u64, String, bool)>> {
        let failed = self.at(index)?.failed.iter();
        Ok(failed.map(|one| (one.epoch, one.position, one.reason.clone(), one.skipped)).collect())
    }

    /// The columns of a micro-batch.
    fn columns(&self, py: Python<'_>, index: usize) -> PyResult<Vec<Column>> {
        let batch = &self.at(index)?.batch;
        let schema = batch.schema();
        let memory = self.memory.as_ref();
        let column = |(field, array): (&FieldRef, _)| Column::new(field, array).lies_in(py, memory);
        Ok(schema.fields().iter().zip(batch.columns()).map(column).collect())
    }
}

impl Step {
    fn at(&self, index: usize) -> PyResult<&loader::MicroBatch> {
        self.step.micro_batches.get(index).ok_or_else(|| {
            pyo3::exceptions::PyIndexError::new_err(format!(
                "no micro-batch {index} of {}",
                self.step.micro_batches.len()
            ))
        })
    }
}
