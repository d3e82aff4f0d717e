//! A loader as burn's [`DataLoader`], so that `burn-train` trains on a plan as it trains on anything else.
//!
//! Each [`iter`](DataLoader::iter) is the next epoch of the plan. Items are counted as the plan counts positions, for all ranks
//! together: progress is how far the epoch's order has been read, and it is complete at the last batch, which is when
//! `burn-train` applies what gradients it has accumulated. Knows nothing of models; what a batch becomes is its batcher's.

mod batcher;
mod stretch;

use std::sync::{Arc, Mutex, MutexGuard};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::Device;
use shardd_client::loader::{
    Cursor, Follow, LastBatch, LoadError, Loader, LoaderConfig, LoaderSource, MicroBatch, OrderId, Spans,
};
use thiserror::Error;

use crate::data::{InputError, InputOptions, InputSpec};

pub use batcher::{EachRow, TensorBatch, TensorBatcher};
use stretch::Stretch;

/// Why there is no batch, or no loader.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum BurnLoaderError {
    /// More epochs are trained than the loader has.
    #[error(
        "epoch {epoch} was asked for, and the loader ends before epoch {end}; set end_epoch of its configuration to the number of epochs"
    )]
    Ended { epoch: u32, end: u32 },
    /// A rank of a run is one reader, not several.
    #[error(
        "a loader on nodes cannot be cut into slices: a rank of a run reads whole epochs; start a rank for each device, or read the store without nodes"
    )]
    SliceOfRun,
    /// Rows cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Rows cannot be made into tensors.
    #[error(transparent)]
    Input(#[from] InputError),
}

/// Makes a model's inputs from the rows read in a step: a micro-batch for each virtual rank of this rank,
/// none without rows.
type Make<O> = dyn Fn(Vec<MicroBatch>, &Device) -> Result<O, DatasetError> + Send + Sync;

/// A loader over a plan, as burn's [`DataLoader`].
///
/// - [`iter`](DataLoader::iter) reads the next epoch, the first one from where the configuration starts. An iterator that is
///   dropped early ends its epoch. After the configuration's `end_epoch` it gives an error; a loader that is not shuffled reads the
///   same each time and has no end, as validation wants it.
/// - [`to_device`](DataLoader::to_device) is the same loader for another device: the two share epochs and cursor.
/// - [`slice`](DataLoader::slice) reads these positions of each epoch: slices that cover all items read each sample once, with a loader
///   each and epochs of their own, beginning with the one that would have been next. The last batch of a slice is cut where it ends.
/// - To resume, start the configuration at [`cursor`](Self::cursor), or at (n, 0) beside `checkpoint(n)` of `burn-train`.
///
/// ```no_run
/// use std::sync::Arc;
/// use burn::tensor::Device;
/// use shardd_client::loader::{LoaderConfig, LoaderSource};
/// use shardd_trainer::data::InputOptions;
/// use shardd_trainer::dataloader::BurnLoader;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let plan: shardfmt::PlanId = "0".repeat(64).parse()?;
/// let store = LoaderSource::Store(shardd_store::catalog::StorePlace::Directory("digits-store".into()));
/// let config = LoaderConfig { end_epoch: 10, ..LoaderConfig::new(store, plan, 32) };
/// let train = BurnLoader::tensors(config, &InputOptions::default(), &Device::flex())?;
/// // SupervisedTraining::new(directory, Arc::new(train), …)
/// # Ok(())
/// # }
/// ```
pub struct BurnLoader<O> {
    reader: Arc<Reader>,
    make: Arc<Make<O>>,
    device: Device,
}

/// The common state of loaders of one order and their iterators.
struct Reader {
    config: LoaderConfig,
    stretch: Stretch,
    order: OrderId,
    state: Mutex<State>,
}

struct State {
    /// Where the next iterator begins: (epoch, position).
    next: (u32, u64),
    /// After the batch that was handed out last.
    cursor: (u32, u64),
    /// An idle loader, and where it resumes.
    idle: Option<((u32, u64), Loader)>,
}

impl<O: Send + 'static> BurnLoader<O> {
    /// Opens the loader and has its rows made into batches on `device` by `batcher`, which gets a micro-batch
    /// for each virtual rank of this rank, and none without rows. With [`EachRow`] it may be one of single
    /// items.
    ///
    /// # Errors
    /// As [`Loader::open`], and [`LoadError::Config`] for a stride, which burn has no word for.
    pub fn open(
        config: LoaderConfig,
        batcher: impl Batcher<MicroBatch, O> + 'static,
        device: &Device,
    ) -> Result<Self, LoadError> {
        let make = move |micro_batches, device: &Device| Ok(batcher.batch(micro_batches, device));
        let loader = open_endless(config.clone())?;
        Ok(Self::over(config, loader, Arc::new(make), device))
    }

    fn over(mut config: LoaderConfig, loader: Loader, make: Arc<Make<O>>, device: &Device) -> Self {
        config.end_epoch = end_of(&config);
        config.virtual_ranks = Some(loader.virtual_ranks());
        let spans = Spans { steps: loader.steps(), end_epoch: config.end_epoch };
        let stretch = Stretch { first: 0, spans, is_slice: false };
        let (start, order) = (config.start, loader.order());
        let state = State { next: start, cursor: start, idle: Some((start, loader)) };
        let reader = Reader { config, stretch, order, state: Mutex::new(state) };
        Self { reader: Arc::new(reader), make, device: device.clone() }
    }

    /// How far the batches that were handed out have come: where to start a loader that is to read what follows, in a world of any
    /// size. That of a slice says where its parent began.
    pub fn cursor(&self) -> Cursor {
        let (epoch, position) = self.reader.state().cursor;
        Cursor { order: self.reader.order, epoch, position }
    }

    /// Has the next iterator read this epoch, from its start.
    pub fn set_epoch(&self, epoch: u32) {
        self.reader.state().next = (epoch, self.reader.stretch.first);
    }
}

impl BurnLoader<TensorBatch> {
    /// Opens the loader and has its rows made into tensors as [`InputSpec`] finds them in the schema.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`BurnLoaderError::Input`] when the schema does not say what to learn. Rows that cannot be used
    /// are an error of the iterator, which stops the training.
    pub fn tensors(
        config: LoaderConfig,
        options: &InputOptions,
        device: &Device,
    ) -> Result<Self, BurnLoaderError> {
        let loader = open_endless(config.clone())?;
        let batcher = TensorBatcher::new(InputSpec::from_schema(loader.schema(), options)?);
        let make = move |micro_batches: Vec<MicroBatch>, device: &Device| {
            batcher.try_batch(&micro_batches, device).map_err(DatasetError::new)
        };
        Ok(Self::over(config, loader, Arc::new(make), device))
    }
}

impl<O: Send + 'static> DataLoader<O> for BurnLoader<O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        Box::new(Epoch::begin(&self.reader, &*self.make, &self.device))
    }

    fn num_items(&self) -> usize {
        items(self.reader.stretch.items())
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        let (reader, make) = (Arc::clone(&self.reader), Arc::clone(&self.make));
        Arc::new(BurnLoader { reader, make, device: device.clone() })
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        let stretch = self.reader.stretch.slice(start as u64, end as u64);
        let (next, cursor) = {
            let state = self.reader.state();
            ((state.next.0, state.next.1.max(stretch.first)), state.cursor)
        };
        let config = self.reader.config.clone();
        let state = Mutex::new(State { next, cursor, idle: None });
        let reader = Reader { config, stretch, order: self.reader.order, state };
        Arc::new(BurnLoader {
            reader: Arc::new(reader),
            make: Arc::clone(&self.make),
            device: self.device.clone(),
        })
    }
}

impl Reader {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    /// A loader that reads on from there.
    fn open(&self, from: (u32, u64)) -> Result<Loader, BurnLoaderError> {
        let mut config = LoaderConfig { start: from, ..self.config.clone() };
        if self.stretch.is_slice {
            if matches!(config.follow, Follow::Plan { source: LoaderSource::Nodes { .. }, .. }) {
                return Err(BurnLoaderError::SliceOfRun);
            }
            // Items beyond the slice are cut off here.
            (config.last_batch, config.end_epoch) = (LastBatch::Short, from.0.saturating_add(1));
        }
        Ok(Loader::open(config)?)
    }
}

/// One epoch, or the rest of it.
struct Epoch<'a, O> {
    reader: &'a Reader,
    make: &'a Make<O>,
    device: &'a Device,
    start: (u32, u64),
    /// Up to which position it has been read.
    position: u64,
    /// Up to which it is read.
    end: u64,
    /// Up to which it is read in batches that have rows for this rank; known once the loader is there.
    shown_end: u64,
    /// Opened when the first batch is asked for, if it was not there.
    loader: Option<Loader>,
    /// The place where the loader resumes.
    at: (u32, u64),
    is_over: bool,
}

impl<'a, O> Epoch<'a, O> {
    fn begin(reader: &'a Reader, make: &'a Make<O>, device: &'a Device) -> Self {
        let mut state = reader.state();
        let start = reader.stretch.beginning(state.next);
        state.next = reader.stretch.after(start);
        // One that stands elsewhere ends before another is opened: a run has one reader for each rank.
        let (loader, other) = match state.idle.take() {
            Some((at, loader)) if at == start => (Some(loader), None),
            other => (None, other),
        };
        drop(state);
        drop(other); // outside the lock: it waits for its threads
        let end = reader.stretch.end(start.1);
        Self {
            reader,
            make,
            device,
            start,
            position: start.1,
            end,
            shown_end: end,
            loader,
            at: start,
            is_over: false,
        }
    }

    /// `None` once the epoch is read.
    fn read(&mut self) -> Result<Option<O>, DatasetError> {
        let (reader, (epoch, _)) = (self.reader, self.start);
        let end_epoch = reader.stretch.spans.end_epoch;
        if epoch >= end_epoch {
            return Err(DatasetError::new(BurnLoaderError::Ended { epoch, end: end_epoch }));
        }
        while self.position < self.end {
            let loader = match &mut self.loader {
                Some(loader) => loader,
                None => self.loader.insert(reader.open(self.start).map_err(DatasetError::new)?),
            };
            if self.position == self.start.1 {
                let epoch = self.start.0;
                let own = |positions| loader.shares_of(epoch, positions).iter().any(|samples| *samples > 0);
                self.shown_end = reader.stretch.end_with(self.start, own);
            }
            let Some(step) = loader.next_step().map_err(DatasetError::new)? else { break };
            self.position = step.positions().end.min(self.end);
            self.at = (step.cursor.epoch, step.cursor.position);
            if !reader.stretch.is_slice {
                reader.state().cursor = self.at;
            }
            let mut micro_batches = step.micro_batches;
            if reader.stretch.is_slice {
                micro_batches.iter_mut().for_each(|micro_batch| cut(micro_batch, self.end));
            }
            micro_batches.retain(|micro_batch| !micro_batch.positions.is_empty());
            if !micro_batches.is_empty() {
                return (self.make)(micro_batches, self.device).map(Some);
            }
        }
        Ok(None)
    }

    /// The opened loader goes back, for the next epoch.
    fn put_back(&mut self) {
        let idle = self.loader.take().map(|loader| (self.at, loader));
        if idle.is_some() && !self.reader.stretch.is_slice {
            let _old = std::mem::replace(&mut self.reader.state().idle, idle);
        }
    }
}

impl<O> Iterator for Epoch<'_, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let read = self.read();
        self.is_over = !matches!(read, Ok(Some(_)));
        match &read {
            Ok(None) => self.put_back(),
            Err(_) => self.loader = None,
            Ok(Some(_)) => {}
        }
        read.transpose()
    }
}

impl<O> DataLoaderIterator<O> for Epoch<'_, O> {
    fn progress(&self) -> Progress {
        let first = self.reader.stretch.first;
        let shown = |position: u64| items(position.min(self.shown_end).saturating_sub(first));
        Progress::new(shown(self.position), shown(self.shown_end), Some("items".to_owned()))
    }
}

/// Opens a loader as it is configured, but without an end if it reads the same in each epoch.
fn open_endless(config: LoaderConfig) -> Result<Loader, LoadError> {
    if config.stride != 1 {
        return Err(LoadError::Config(format!(
            "a stride of {}: burn's loaders read every step",
            config.stride
        )));
    }
    Loader::open(LoaderConfig { end_epoch: end_of(&config), ..config })
}

fn end_of(config: &LoaderConfig) -> u32 {
    if config.shuffle { config.end_epoch } else { u32::MAX }
}

/// Leaves out what lies beyond a position.
fn cut(micro_batch: &mut MicroBatch, end: u64) {
    let rows = micro_batch.positions.partition_point(|position| *position < end);
    if rows < micro_batch.positions.len() {
        micro_batch.positions.truncate(rows);
        micro_batch.sources.truncate(rows);
        micro_batch.ends.iter_mut().for_each(|end| *end = rows.min(*end));
        micro_batch.batch = micro_batch.batch.slice(0, rows);
    }
}

fn items(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
