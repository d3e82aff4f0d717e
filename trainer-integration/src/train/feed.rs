//! Steps on their way from the source to the engine: made into what the model takes when they are asked for, or a step ahead, by a thread of
//! their own, which sends them to the device as they are stored.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use shardd_store::record::Digest128;

use crate::data::{Augmentation, InputSpec, Samples, StoredSamples};
use crate::device::DeviceName;
use crate::engine::{MicroBatch, Share};
use crate::error::TrainError;
use crate::loss::{CrossEntropy, SoftCrossEntropy};
use crate::models::InputShape;
use crate::reduce::VirtualRanks;
use crate::source::{self, Audit, Step, StepSource};
use crate::tensor_tree::Part;

/// Where rows become the numbers a model takes. The numbers are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preparation {
    /// On the host, between two steps: for devices that are the host.
    Host,
    /// On the device, from stored values, which are on their way there while the step before is computed.
    Device,
}

impl Preparation {
    /// The best preparation for a device.
    pub fn of(device: DeviceName) -> Preparation {
        match device {
            DeviceName::Cpu => Preparation::Host,
            DeviceName::Cuda(_) | DeviceName::Wgpu(_) => Preparation::Device,
        }
    }
}

/// How this rank's part of a step is made.
#[derive(Debug)]
pub(super) struct Preparer {
    pub(super) spec: InputSpec,
    pub(super) ranks: VirtualRanks,
    pub(super) rank: u32,
    pub(super) augmentation: Augmentation,
    pub(super) seed: u64,
    pub(super) device: Device,
    pub(super) place: Preparation,
    pub(super) digests: Option<InputDigests>,
}

/// Which steps' inputs are digested.
#[derive(Clone, Copy, Debug)]
pub(super) struct InputDigests {
    /// Every so manieth.
    pub(super) every: u64,
    /// Steps of an epoch.
    pub(super) per_epoch: u64,
}

impl InputDigests {
    fn wants(self, step: &Step) -> bool {
        (u64::from(step.epoch) * self.per_epoch + step.step + 1).is_multiple_of(self.every)
    }
}

/// A micro-batch for the model and its labels; none without a sample.
type Batch = Option<(Vec<Part>, Labels)>;

/// The targets of a micro-batch.
#[derive(Debug)]
enum Labels {
    /// The class of each row.
    Classes(Vec<u32>),
    /// The share of each class in each row, of samples that are mixed.
    Shares(Vec<f32>),
}

/// The micro-batches of a step, by virtual rank; and their digests, if they are wanted.
type Batches = (Vec<Batch>, Vec<Digest128>);

impl Preparer {
    /// One for each virtual rank of this rank, checked to be theirs.
    fn prepare(&self, step: &Step) -> Result<Batches, TrainError> {
        let given = step.micro_batches.iter().map(|micro_batch| micro_batch.virtual_rank);
        if !given.clone().eq(self.ranks.of(self.rank)) {
            let (given, expected) = (given.collect::<Vec<_>>(), self.ranks.of(self.rank));
            return Err(TrainError::Share(format!(
                "micro-batches for virtual ranks {given:?}, not {expected:?}"
            )));
        }
        let wants_digests = self.digests.is_some_and(|digests| digests.wants(step));
        let (mut batches, mut digests) = (Vec::new(), Vec::new());
        for micro_batch in &step.micro_batches {
            let stored = self.stored(micro_batch, step.epoch)?;
            if wants_digests {
                digests.push(stored.digest());
            }
            batches.push(self.batch(stored));
        }
        Ok((batches, digests))
    }

    fn stored(&self, batch: &source::MicroBatch, epoch: u32) -> Result<StoredSamples, TrainError> {
        if batch.rows.num_rows() != batch.positions.len() {
            let (rows, positions) = (batch.rows.num_rows(), batch.positions.len());
            return Err(TrainError::Share(format!("{rows} rows at {positions} positions")));
        }
        let stored = self.spec.stored(&batch.rows, &batch.positions)?;
        Ok(stored.augmented(self.augmentation, self.seed, epoch, &batch.positions))
    }

    fn batch(&self, mut stored: StoredSamples) -> Batch {
        if stored.labels().is_empty() {
            return None;
        }
        let shares = stored.take_shares();
        let (input, labels) = match self.place {
            Preparation::Device => stored.on_device(&self.device),
            Preparation::Host => on_host(stored.on_host(), self.spec.shape(), &self.device),
        };
        Some((input, shares.map_or(Labels::Classes(labels), Labels::Shares)))
    }
}

fn on_host(
    Samples { features, labels }: Samples,
    shape: InputShape,
    device: &Device,
) -> (Vec<Part>, Vec<u32>) {
    (shape.parts(features, labels.len() / shape.answers(), device), labels)
}

/// A virtual rank's only micro-batch, if there is one, measured by cross-entropy.
fn share(batch: Batch) -> Share<'static> {
    match batch {
        Some((input, Labels::Classes(labels))) => vec![MicroBatch::new(input, &CrossEntropy, labels)],
        Some((input, Labels::Shares(shares))) => vec![MicroBatch::new(input, &SoftCrossEntropy, shares)],
        None => Vec::new(),
    }
}

/// Samples of this shape as such a share.
pub(crate) fn share_of(samples: Samples, shape: InputShape, device: &Device) -> Share<'static> {
    share((!samples.labels.is_empty()).then(|| {
        let (input, labels) = on_host(samples, shape, device);
        (input, Labels::Classes(labels))
    }))
}

/// The batches of a step: nothing yet, or all of it.
pub(super) struct Prepared(Option<Batches>);

/// The source's steps, from the first to the last.
pub(super) struct Feed<'scope, 'env: 'scope> {
    scope: &'scope Scope<'scope, 'env>,
    /// Where the other thread decodes.
    pool: Option<&'env rayon::ThreadPool>,
    way: Way<'scope, 'env>,
}

enum Way<'scope, 'env> {
    /// No caller has asked for a step.
    Source(&'env mut dyn StepSource),
    Here(&'env mut dyn StepSource, Box<Preparer>),
    Ahead {
        steps: Receiver<Result<Option<(Step, Batches)>, TrainError>>,
        /// Ends with the samples read, and how many were replaced by zeros.
        thread: ScopedJoinHandle<'scope, (Vec<Audit>, u64)>,
        waited: Duration,
    },
    Over,
}

impl<'scope, 'env> Feed<'scope, 'env> {
    /// Of this source. The work ahead is done by the threads of the pool, or the process's.
    pub(super) fn new(
        scope: &'scope Scope<'scope, 'env>,
        source: &'env mut dyn StepSource,
        pool: Option<&'env rayon::ThreadPool>,
    ) -> Feed<'scope, 'env> {
        Feed { scope, pool, way: Way::Source(source) }
    }

    /// The source, until the first step is asked for.
    pub(super) fn source(&self) -> &dyn StepSource {
        let Way::Source(source) = &self.way else { unreachable!("asked about before it is read") };
        &**source
    }

    /// See [`StepSource::schema`].
    pub(super) fn schema(&self) -> SchemaRef {
        self.source().schema()
    }

    /// Begins to read.
    pub(super) fn begin(&mut self, preparer: Preparer) {
        let Way::Source(source) = std::mem::replace(&mut self.way, Way::Over) else {
            unreachable!("begun once")
        };
        self.way = match preparer.place {
            Preparation::Host => Way::Here(source, Box::new(preparer)),
            Preparation::Device => self.ahead(source, preparer),
        };
    }

    /// A thread that has the next step ready while one is computed, and never more.
    fn ahead(&self, source: &'env mut dyn StepSource, preparer: Preparer) -> Way<'scope, 'env> {
        let (ready, steps) = sync_channel(0);
        let pool = self.pool;
        let thread = self.scope.spawn(move || {
            loop {
                let next = source.next_step().map_err(TrainError::Source).and_then(|step| {
                    let Some(step) = step else { return Ok(None) };
                    let prepare = || preparer.prepare(&step);
                    let batches = pool.map_or_else(prepare, |pool| pool.install(prepare))?;
                    Ok(Some((step, batches)))
                });
                let is_last = !matches!(next, Ok(Some(_)));
                // No caller takes it once the training has ended.
                if ready.send(next).is_err() || is_last {
                    return (source.audits(), source.replaced());
                }
            }
        });
        Way::Ahead { steps, thread, waited: Duration::ZERO }
    }

    /// The next step, and its ready batches; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<(Step, Prepared)>, TrainError> {
        match &mut self.way {
            Way::Here(source, _) => {
                let step = source.next_step().map_err(TrainError::Source)?;
                Ok(step.map(|step| (step, Prepared(None))))
            }
            Way::Ahead { steps, waited, .. } => {
                let asked = Instant::now();
                let next = steps.recv().expect("the thread ends with the last step or an error");
                *waited += asked.elapsed();
                Ok(next?.map(|(step, batches)| (step, Prepared(Some(batches)))))
            }
            Way::Source(_) | Way::Over => unreachable!("begun, and not over"),
        }
    }

    /// The engine's inputs of a step, and their digests, if they are wanted.
    pub(super) fn shares(
        &self,
        step: &Step,
        prepared: Prepared,
    ) -> Result<(Vec<Share<'static>>, Vec<Digest128>), TrainError> {
        let (batches, digests) = match (prepared.0, &self.way) {
            (Some(batches), _) => batches,
            (None, Way::Here(_, preparer)) => preparer.prepare(step)?,
            (None, _) => unreachable!("another thread prepares the samples it reads"),
        };
        Ok((batches.into_iter().map(share).collect(), digests))
    }

    /// The samples read, the time of waiting for them, and how many were replaced by zeros.
    pub(super) fn finish(&mut self) -> (Vec<Audit>, Duration, u64) {
        match std::mem::replace(&mut self.way, Way::Over) {
            Way::Source(source) | Way::Here(source, _) => {
                (source.audits(), source.waited(), source.replaced())
            }
            Way::Ahead { steps, thread, waited } => {
                drop(steps);
                match thread.join() {
                    Ok((audits, replaced)) => (audits, waited, replaced),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Way::Over => unreachable!("finished once"),
        }
    }
}
