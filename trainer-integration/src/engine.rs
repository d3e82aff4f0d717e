//! One training step: every virtual rank's forward and backward, the reduction of their gradients, the update.
//!
//! Each virtual rank is computed on its own, with its own micro-batch and running numbers, also where one process hosts many: that is what
//! makes the bits independent of the number of processes. Gradients travel in buckets of blocks: while the last virtual rank of this process
//! still goes backward through the earlier blocks, the later ones are already being reduced.

mod block;
mod computed;
mod gather;
mod lengths;
mod losses;
mod memory;
mod passes;
mod scatter;
mod segments;
mod sliced;
mod spare;
mod state;
mod there;
mod update;
mod walk;
mod watched;

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use blake3::Hasher;
use burn::tensor::{Device, Tensor};
use half::bf16;
use shardd_store::record::Digest128;
use thiserror::Error;

use crate::buckets::{BucketSizes, Buckets};
use crate::collective::CollectiveError;
use crate::collective::nccl::DeviceSums;
use crate::collective::sums::TuningTable;
use crate::compress::{Compression, CompressionReport, Compressor};
use crate::device::Precision;
use crate::dtype::ReduceDtype;
use crate::flat_block::{from_numbers, to_numbers};
use crate::ledger::{Ledger, Numbers, Usage};
use crate::loss::{Measured, Objective};
use crate::model::Model;
use crate::optim::{Norm, Optimizer, Rule};
use crate::random::Key;
use crate::reduce::fixed::{Fit, FixedSum, GradientRanges};
use crate::reduce::{Comm, Partials, Pending, Reduction, VirtualRanks, all_reduce};
use crate::scaling::LossScale;
use crate::tensor_tree::{Part, TensorTree, from_parts};
use crate::trace::{Lane, Tracer};
use crate::weights::{Running, Weights};
use crate::zero::mesh::Mesh;
use crate::zero::slices::Owners;
use crate::zero::{Slicing, Zero};
use block::BlockState;
use memory::at_the_end;
use spare::Spare;
use there::{SumThere, Tables, There};
use update::Spread;

/// A model being trained, as one rank holds it.
#[derive(Debug)]
pub struct Engine {
    model: Model,
    compute: Compute,
    ranks: VirtualRanks,
    rule: Rule,
    key: Key,
    slices: Slices,
    blocks: Vec<BlockState>,
    reducer: Reducer,
    /// By virtual rank of this rank.
    running: Vec<RunningThere>,
    comm: Arc<Comm>,
    begun: Option<StepInProgress>,
    ledger: Ledger,
    spare: Spare,
    times: Times,
    notes: Notes,
}

/// The place and the numbers of forward and backward passes.
#[derive(Debug)]
struct Compute {
    device: Device,
    precision: Precision,
    /// Of the next step, where 16 bits have few exponents.
    scale: Option<LossScale>,
    /// Where the first trained parameters are: before that there is nothing to go back for.
    first_trained: usize,
    /// More rows than this go through the model in pieces: the device had no memory for them.
    most_rows: Option<usize>,
    /// As many rows have gone through the model at once.
    proven_rows: usize,
    /// Whether more of them do now: then failures of the device are waited for.
    proves: bool,
}

/// The way of gradients to their sum over all ranks.
#[derive(Debug)]
struct Reducer {
    buckets: Buckets,
    reduction: Reduction,
    /// The data type of sums, and of gradients on their way.
    reduce_dtype: ReduceDtype,
    /// The algorithms of sums in any order; none is the built-in table.
    table: Option<Arc<TuningTable>>,
    /// By bucket; none if nothing is compressed.
    compressors: Vec<Arc<Mutex<Compressor>>>,
    /// Where gradients are added up on the device.
    device_sums: Option<Arc<Mutex<Box<dyn DeviceSums>>>>,
    /// Of the gradients of the next step, by trained parameter of all blocks in order, for exact sums.
    ranges: GradientRanges,
    tables: Tables,
}

/// The parts of weights and state that this rank keeps, and the way of updated weights to the other ranks.
#[derive(Debug)]
struct Slices {
    zero: Zero,
    mesh: Mesh,
    /// By bucket: weights that are on their way to those who keep all of them.
    gathering: Vec<Option<Pending<Spread>>>,
    /// Buckets of which weights of others never came.
    stale: BTreeSet<usize>,
}

/// The times of the last step.
#[derive(Debug)]
struct Times {
    updating: Duration,
    reducing: Duration,
    tracer: Tracer,
}

/// The facts of the last step, for a record.
#[derive(Debug, Default)]
struct Notes {
    /// Whether the gradients of the next step are digested, by virtual rank.
    digests: bool,
    shares: Vec<ShareSum>,
}

/// The result of a virtual rank's part in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ShareSum {
    /// Losses, right answers, samples.
    pub(crate) scalars: [f64; 3],
    /// Of the gradient of the losses' sum, from the last block to the first, whatever buckets it went in.
    pub(crate) gradient: Option<Digest128>,
}

/// The facts of all ranks about a step before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepPlan {
    /// How many steps of the training came before it.
    pub number: u64,
    /// From 0.
    pub epoch: u32,
    /// Learning rate.
    pub rate: f32,
}

/// The outcome of a step, the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLoss {
    /// Sum of the losses of all samples.
    pub sum: f64,
    /// Samples that were answered rightly before the update.
    pub correct: u64,
    /// How many samples there were.
    pub samples: u64,
    /// Length of the gradient of the mean loss, all blocks together, before it was clipped.
    pub gradient_norm: f64,
    /// The factor of gradients on their way, removed at its end ([`LossScale`]).
    pub scale: Option<LossScale>,
    /// A gradient was too large for 16 bits, or for the range of exact sums ([`GradientRanges`]): nothing has changed but the scale,
    /// which is lower for the next step, or the range, which is wider.
    pub is_overflow: bool,
}

impl StepLoss {
    /// Of a sample, on average.
    pub fn mean(&self) -> f64 {
        self.sum / self.samples.max(1) as f64
    }
}

/// A micro-batch: the model's input, and the use of its output.
pub struct MicroBatch<'a> {
    /// The input of the first block, at least one row of it.
    pub input: Vec<Part>,
    /// Measures the output for all rows of the input, or for some of them alone.
    pub measure: Measure<'a>,
    /// Whether rows may go through the model apart from each other, if the device has no memory for all of them.
    pub is_divisible: bool,
}

/// The objective and the target for the output of these rows, of `of` rows.
pub type Measure<'a> = Box<dyn Fn(Vec<Part>, Range<usize>, usize) -> Measured + 'a>;

impl<'a> MicroBatch<'a> {
    /// One whose output is measured by this objective.
    pub(crate) fn new<Output: TensorTree, O: Objective<Output>>(
        input: Vec<Part>,
        objective: &'a O,
        target: O::Target,
    ) -> MicroBatch<'a>
    where
        O::Target: 'a,
    {
        let is_divisible = objective.of_rows(&target, 0..1, 1).is_some();
        let measure = move |output, rows: Range<usize>, of: usize| {
            let part = if rows == (0..of) { None } else { objective.of_rows(&target, rows, of) };
            objective.measure(from_parts(output), part.as_ref().unwrap_or(&target))
        };
        MicroBatch { input, measure: Box::new(measure), is_divisible }
    }

    /// How many rows each tensor of the input has, if they agree.
    pub(crate) fn rows(&self) -> Option<usize> {
        let mut rows = self.input.iter().map(|part| part.shape().first().copied());
        let first = rows.next()??;
        rows.all(|rows| rows == Some(first)).then_some(first)
    }
}

/// Why a step failed.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum EngineError {
    /// Another rank is gone or late.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The device cannot compute this number of rows at once, and they cannot be cut.
    #[error(
        "the device has no memory for {rows} rows at once; make the micro-batches smaller (--micro-batch-size){way_out}"
    )]
    OutOfMemory { rows: usize, way_out: &'static str },
}

/// The micro-batches of a virtual rank, one after the other; none if it has no sample in a step.
pub type Share<'a> = Vec<MicroBatch<'a>>;

/// A step whose gradients are not all there.
#[derive(Debug)]
struct StepInProgress {
    number: u64,
    epoch: u32,
    /// The running numbers before it.
    running: Vec<RunningThere>,
    /// By virtual rank of this rank, then by bucket: the sum over the micro-batches so far.
    carried: Vec<Vec<Option<Numbers<f32>>>>,
    /// By virtual rank of this rank: losses, right answers, samples.
    scalars: Vec<[f64; 3]>,
    /// By virtual rank of this rank: losses and right answers that a device has.
    losses: Vec<Vec<Tensor<1>>>,
    /// By virtual rank of this rank: micro-batches so far.
    micro_batches: Vec<u64>,
    /// By virtual rank of this rank, if gradients are digested.
    hashers: Vec<Hasher>,
    /// Of all ranks, once they are counted, where gradients are compressed.
    samples: Option<Arc<OnceLock<f64>>>,
    /// Where gradients stay on the device.
    there: Option<There>,
    /// By bucket.
    sums: Vec<BucketSum>,
    reductions: Vec<Reducing>,
    /// By bucket: of this rank's slices the sums of all ranks so far, where every call sends its own.
    sliced: Vec<Option<Numbers<f32>>>,
    /// By trained parameter: the largest exponent field of the gradients of this rank's virtual ranks; none where sums are
    /// not in whole numbers.
    largest: Vec<u8>,
}

/// The sums of a bucket over all ranks.
#[derive(Debug)]
enum Reducing {
    UnderWay(Pending<Reduced>),
    Done(Reduced),
}

/// The sums of all ranks.
#[derive(Debug)]
struct Reduced {
    /// The whole bucket, in which this rank's slices at least are sums; where gradients are sliced, just these, block after block.
    sum: Numbers<f32>,
    /// Memory of a whole bucket that is of no use any more.
    spare: Option<Numbers<f32>>,
}

/// The findings of all ranks about a step.
struct Summed {
    gradient: GradientSums,
    /// Losses, right answers, samples.
    totals: Numbers<f64>,
    /// Of the mean gradient.
    norm: Norm,
    /// By which sums become the clipped mean gradient.
    factor: f32,
    /// By block, the trust ratio of each trained parameter; nothing for an optimizer without.
    trust: Vec<Vec<f32>>,
    /// By trained parameter: the largest exponent field of the gradients of all virtual ranks.
    largest: Vec<u8>,
}

/// The sums of gradients, by bucket.
#[derive(Debug)]
enum GradientSums {
    Host(Vec<Numbers<f32>>),
    /// On the device; none of a bucket without numbers.
    There(Vec<Option<Tensor<1>>>),
}

/// The gradients of a bucket, of the virtual ranks so far.
#[derive(Debug)]
enum BucketSum {
    Exact(FixedSum),
    /// In 16 bits.
    Rounded(Partials<bf16>),
    Fast(Option<Numbers<f32>>),
    /// On the device, of all virtual ranks of this rank.
    There(Box<SumThere>),
}

impl Engine {
    /// A model with these first weights (by block, the same on every rank), which draws the random numbers of `key`. Every rank keeps everything.
    ///
    /// # Panics
    /// If the weights are not the model's, or the world larger than the number of virtual ranks.
    pub fn new(
        model: Model,
        weights: Vec<Vec<f32>>,
        device: Device,
        ranks: VirtualRanks,
        rule: impl Into<Rule>,
        key: Key,
        comm: Arc<Comm>,
    ) -> Engine {
        assert_eq!(weights.len(), model.stages.len(), "weights for every block");
        let mut engine = Engine::blank(model, Zero::Nothing, device, ranks, rule, key, comm);
        weights.iter().enumerate().for_each(|(block, weights)| engine.begin_block(block, weights));
        engine
    }

    /// The same with weights that are zero until [`Engine::begin_block`] says otherwise, of which each rank keeps what `slicing` says.
    ///
    /// # Panics
    /// If the world is larger than the number of virtual ranks, or does not form such groups ([`Mesh::new`]).
    pub fn blank(
        model: Model,
        slicing: impl Into<Slicing>,
        device: Device,
        ranks: VirtualRanks,
        rule: impl Into<Rule>,
        key: Key,
        comm: Arc<Comm>,
    ) -> Engine {
        assert_eq!(ranks.world, comm.world(), "the virtual ranks are shared by this world");
        let Slicing { zero, group } = slicing.into();
        let mesh = match zero {
            Zero::Nothing => Mesh::new(comm.hosts(), NonZeroU32::new(1), comm.rank()),
            _ => Mesh::new(comm.hosts(), group, comm.rank()),
        };
        let mesh = mesh.expect("the ranks form such groups");
        let ledger = Ledger::default();
        let blocks = blocks_of(&model, zero, Precision::default(), &mesh, &ledger);
        let running = running_there(&model.initial_running(), &device);
        let running = vec![running; ranks.of(comm.rank()).len()];
        let first_trained = blocks.iter().position(|block| block.trained_len() > 0).unwrap_or(0);
        let rule = rule.into();
        let buckets = buckets_of(&blocks, zero, BucketSizes::default());
        let spare = Spare::new(zero, &ledger);
        let ranges = GradientRanges::new(blocks.iter().map(BlockState::trained_count).sum());
        let precision = Precision::default();
        let mut engine = Engine {
            model,
            compute: Compute {
                device,
                precision,
                scale: None,
                first_trained,
                most_rows: None,
                proven_rows: 0,
                proves: false,
            },
            ranks,
            rule,
            key,
            slices: Slices { zero, mesh, gathering: Vec::new(), stale: BTreeSet::new() },
            blocks,
            reducer: Reducer {
                buckets,
                reduction: Reduction::Exact,
                reduce_dtype: ReduceDtype::default(),
                table: None,
                compressors: Vec::new(),
                device_sums: None,
                ranges,
                tables: Tables::default(),
            },
            running,
            comm,
            begun: None,
            ledger,
            spare,
            times: Times { updating: Duration::ZERO, reducing: Duration::ZERO, tracer: Tracer::off() },
            notes: Notes::default(),
        };
        engine.prepare_spare();
        engine
    }

    /// Gives a block its weights, of which this rank keeps its own.
    ///
    /// # Panics
    /// If they are not the block's.
    pub fn begin_block(&mut self, block: usize, weights: &[f32]) {
        let state = &mut self.blocks[block];
        assert_eq!(weights.len(), state.ownership.all, "weights for every parameter");
        state.begin(0, weights);
        self.model.stages[block].forget_initial();
    }

    /// With a record of the work and its times.
    #[must_use]
    pub fn with_tracer(mut self, tracer: Tracer) -> Engine {
        self.times.tracer = tracer;
        self
    }

    /// Computed in other numbers, which the device must be able to. Weights are zero again.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Engine {
        if precision == self.compute.precision {
            return self;
        }
        self.blocks = blocks_of(&self.model, self.slices.zero, precision, &self.slices.mesh, &self.ledger);
        self.compute.scale = (precision == Precision::F16).then(LossScale::default);
        self.compute.precision = precision;
        self
    }

    /// With another scale for the gradients of the first steps, where they have one at all.
    #[must_use]
    pub fn with_loss_scale(mut self, scale: LossScale) -> Engine {
        self.compute.scale = self.compute.scale.map(|_| scale);
        self
    }

    /// The factor of the gradients of the next step, if any.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.compute.scale
    }

    /// Whether gradients are added up in whole numbers. Those of a single virtual rank are their sum.
    fn sums_whole(&self) -> bool {
        let Reducer { reduction, reduce_dtype, .. } = self.reducer;
        self.ranks.count > 1 && reduction == Reduction::Exact && reduce_dtype == ReduceDtype::F32
    }

    /// With another way to add gradients up, which all ranks choose alike.
    ///
    /// # Panics
    /// If gradients are to be compressed of which ranks keep slices, or that are added up in fewer bits.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Engine {
        assert_eq!(
            self.slices.zero.refusal(reduction).or(self.reducer.reduce_dtype.refusal(reduction)),
            None
        );
        self.reducer.reduction = reduction;
        self.prepare_compressors();
        self.prepare_spare();
        self
    }

    /// With gradients that are added up, and travel, in other numbers, which all ranks choose alike. Sums of one virtual rank's micro-batches have 32 bits
    /// always; where gradients stay on the device, what adds them up there decides.
    ///
    /// # Panics
    /// If gradients are compressed.
    #[must_use]
    pub fn with_reduce_dtype(mut self, reduce_dtype: ReduceDtype) -> Engine {
        assert_eq!(reduce_dtype.refusal(self.reducer.reduction), None);
        self.reducer.reduce_dtype = reduce_dtype;
        self.prepare_spare();
        self
    }

    /// With these algorithms for sums in any order, which all ranks choose alike. Gradients that are compressed, sliced, or
    /// added up on the device travel in ways of their own.
    #[must_use]
    pub fn with_algorithms(mut self, table: TuningTable) -> Engine {
        self.reducer.table = Some(Arc::new(table));
        self
    }

    /// With gradients that stay on the device until they are added up over all ranks, by this.
    ///
    /// # Panics
    /// If they are to be compressed, or exact in fewer bits: this is done on the host.
    #[must_use]
    pub fn with_device_sums(mut self, sums: Box<dyn DeviceSums>) -> Engine {
        assert!(self.reducer.is_for_devices(), "gradients that are added up on the device");
        self.reducer.device_sums = Some(Arc::new(Mutex::new(sums)));
        self
    }

    fn prepare_spare(&mut self) {
        let are_apart = self.sums_whole() && self.virtual_ranks().len() > 1;
        self.spare.outlive(self.slices.zero <= Zero::Moments && !are_apart);
    }

    fn prepare_compressors(&mut self) {
        let compression = match self.reducer.reduction {
            Reduction::Fast(compression) if self.comm.world() > 1 => compression,
            _ => Compression::None,
        };
        let count = if compression == Compression::None { 0 } else { self.reducer.buckets.count() };
        let compressor = |_| Arc::new(Mutex::new(Compressor::new(compression)));
        self.reducer.compressors = (0..count).map(compressor).collect();
    }

    /// The cost and saving of compression on this rank; `None` if nothing is compressed.
    pub fn compression(&self) -> Option<CompressionReport> {
        self.reducer.compressors.iter().map(|it| lock(it).report()).reduce(CompressionReport::with)
    }

    /// With buckets of other sizes. Exactly reduced, the weights do not depend on them. Where parameters are sliced, each block has one of its own.
    #[must_use]
    pub fn with_buckets(mut self, sizes: BucketSizes) -> Engine {
        self.reducer.buckets = buckets_of(&self.blocks, self.slices.zero, sizes);
        self.spare.forget_gradients();
        self.prepare_compressors();
        self
    }

    /// Whether the gradients of the steps that begin from now on are digested by virtual rank. Nothing else depends on it.
    pub(crate) fn digest_gradients(&mut self, digests: bool) {
        self.notes.digests = digests;
    }

    /// The results of this rank's virtual ranks in the last step.
    pub(crate) fn shares(&self) -> &[ShareSum] {
        &self.notes.shares
    }

    /// How much of the last step came after its last backward pass: waiting for the sums of all ranks, and the update.
    pub fn updating(&self) -> Duration {
        self.times.updating
    }

    /// Of this, how much was waiting for the sums of all ranks.
    pub fn reducing(&self) -> Duration {
        self.times.reducing
    }

    /// How many rows go through the model at once, if the device had no memory for more.
    pub fn most_rows(&self) -> Option<usize> {
        self.compute.most_rows
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Where it is computed.
    pub fn device(&self) -> &Device {
        &self.compute.device
    }

    /// The virtual ranks of this rank.
    pub fn virtual_ranks(&self) -> Range<u32> {
        self.ranks.of(self.comm.rank())
    }

    /// V.
    pub(crate) fn virtual_rank_count(&self) -> u32 {
        self.ranks.count
    }

    /// Who shares the numbers with whom.
    pub fn mesh(&self) -> &Mesh {
        &self.slices.mesh
    }

    /// Whether all numbers of a block are on one rank only together with those of others: then all ranks have to call what asks for them.
    pub fn gathers(&self) -> bool {
        self.slices.zero == Zero::Parameters || self.blocks.iter().any(|block| block.computed.is_some())
    }

    /// The state that each rank keeps slices of.
    pub fn zero(&self) -> Zero {
        self.slices.zero
    }

    /// The bytes of the model's numbers that this rank has held at once, at most, since this was last asked.
    pub fn most_memory(&self) -> Usage {
        let most = self.ledger.most();
        self.ledger.forget();
        most
    }

    /// Forward and backward for micro-batches of a step that is not complete with them: one share for each virtual rank of this rank, in
    /// order. Gradients are added up by virtual rank, and nothing is sent (but what blocks sum over all virtual ranks: with such blocks, all
    /// ranks make the same calls).
    ///
    /// # Errors
    /// When another rank is gone or late; when the device has no memory for a micro-batch. Added up in any order, that is cut in halves until they fit.
    ///
    /// # Panics
    /// If there is not one share for each virtual rank, or a step of another number is begun.
    pub fn accumulate(&mut self, shares: Vec<Share<'_>>, plan: StepPlan) -> Result<(), EngineError> {
        self.run(shares, plan, false)?;
        if let Some(mut begun) = self.begun.take() {
            self.collect_slices(&mut begun)?;
            self.begun = Some(begun);
        }
        Ok(())
    }

    /// Trains on a step: one share for each virtual rank of this rank, in order, besides those that were accumulated.
    ///
    /// Gradients are those of the mean loss over the samples of all ranks: a virtual rank with fewer samples weighs less, one without
    /// any adds zeros. The outcome of the step, which is the same on every rank, goes to `take` before
    /// anything is changed: if it says no, weights, moments and running numbers stay as they were. So they do
    /// after an [overflow](StepLoss::is_overflow), of which it is not asked.
    ///
    /// # Errors
    /// As [`Engine::accumulate`]; this rank's state is then that before the step.
    ///
    /// # Panics
    /// As [`Engine::accumulate`].
    pub fn step(
        &mut self,
        shares: Vec<Share<'_>>,
        plan: StepPlan,
        take: impl FnOnce(&StepLoss) -> bool,
    ) -> Result<StepLoss, EngineError> {
        self.run(shares, plan, true)?;
        let computed = Instant::now();
        let tracer = self.times.tracer.clone();
        let waiting = tracer.span(Lane::Compute, || "wait for sums");
        let mut begun = self.begun.take().expect("a step is under way");
        self.square_there(&begun);
        let found = match begun.read() {
            Ok(found) => found,
            Err(error) => {
                self.running = begun.running;
                return Err(at_the_end(&error, self.compute.proven_rows));
            }
        };
        let StepInProgress { running, scalars, reductions, sliced, there, hashers, largest, .. } = begun;
        let digests = hashers.iter().map(|hasher| Some(Digest128::of(hasher))).chain(std::iter::repeat(None));
        let share = |(scalars, gradient): (&[f64; 3], _)| ShareSum { scalars: *scalars, gradient };
        self.notes.shares = scalars.iter().zip(digests).map(share).collect();
        let mut sums = Partials::<f64>::new(self.ranks.count);
        for (virtual_rank, scalars) in self.virtual_ranks().zip(scalars) {
            sums.push(virtual_rank, scalars.to_vec());
        }
        let totals = reduce(&self.comm, self.ranks, sums);
        let summed = match there.zip(found) {
            Some((there, found)) if self.slices.zero == Zero::Nothing => {
                self.sum_up_there(there, found, totals)
            }
            Some((_, found)) => self.sum_up(reductions, sliced, totals, self.by_parameter(&found.largest)),
            None => self.sum_up(reductions, sliced, totals, largest),
        };
        let Summed { gradient, totals, norm, factor, trust, largest } = match summed {
            Ok(summed) => summed,
            Err(error) => {
                self.running = running;
                return Err(error.into());
            }
        };
        drop(waiting);
        let (sum, correct, samples) = (totals[0], totals[1] as u64, totals[2] as u64);
        let scale = self.compute.scale;
        let (gradient_norm, factor, fits) = match self.reducer.judge(&largest) {
            Fit::Fits => (norm.value(), factor, true),
            Fit::TooLarge => (f64::INFINITY, factor, false),
            // Sums in whole numbers show nothing of it.
            Fit::NotFinite => (f64::NAN, f32::NAN, true),
        };
        // Squares are added in double precision: the length is a number if, and only if, every gradient is one.
        let is_finite = gradient_norm.is_finite() || !fits;
        let is_overflow = !fits || !is_finite && scale.is_some_and(LossScale::can_fall);
        let loss = StepLoss { sum, correct, samples, gradient_norm, scale, is_overflow };
        self.times.reducing = computed.elapsed();
        let is_taken = !is_overflow && take(&loss);
        self.compute.scale = scale.map(if is_finite { LossScale::held } else { LossScale::fallen });
        self.reducer.learn(&largest);
        self.reducer.compressors.iter().for_each(|compressor| lock(compressor).conclude(is_taken));
        if is_taken {
            self.update(self.rule_here().optimizer, &gradient, factor, &trust, plan.rate);
        } else {
            self.running = running;
        }
        // What comes from a device brings memory of its own.
        if let GradientSums::Host(sums) = gradient
            && !self.keeps_gradients_there()
        {
            self.spare.keep_gradients(sums);
        }
        self.times.updating = computed.elapsed();
        Ok(loss)
    }

    /// Waits for all that ranks find out together about a step. Nothing is waited for after it: a step is either taken
    /// or as if it had not been.
    fn sum_up(
        &mut self,
        reductions: Vec<Reducing>,
        sliced: Vec<Option<Numbers<f32>>>,
        totals: Pending<Numbers<f64>>,
        largest: Vec<u8>,
    ) -> Result<Summed, CollectiveError> {
        let largest = self.largest_of_all(largest);
        let gradient = self.sums_of_all(reductions, sliced)?;
        self.conclude(gradient, totals, largest)
    }

    /// The same of sums that are there.
    fn conclude(
        &mut self,
        gradient: Vec<Numbers<f32>>,
        totals: Pending<Numbers<f64>>,
        largest: Pending<Vec<u8>>,
    ) -> Result<Summed, CollectiveError> {
        let norm = self.norm(&gradient)?;
        // A rank that had no samples has not waited yet for those of the step before, which must not come after it has
        // moved its own.
        self.settle()?;
        let totals = totals.wait()?;
        let (norm, factor) = self.of_mean(norm, &totals);
        let trust = self.trust_ratios(self.rule_here().optimizer, &gradient, factor)?;
        let (gradient, largest) = (GradientSums::Host(gradient), largest.wait()?);
        Ok(Summed { gradient, totals, norm, factor, trust, largest })
    }

    /// The length of the mean gradient, from that of the sum, and by which the sum becomes the mean, clipped.
    fn of_mean(&self, norm: Norm, totals: &[f64]) -> (Norm, f32) {
        // Compressed gradients arrive as a mean.
        let share = if self.reducer.compressors.is_empty() { 1.0 / totals[2].max(1.0) } else { 1.0 };
        let norm = norm.times(share);
        let clip = self.rule_here().clip;
        (norm, (share * clip.map_or(1.0, |limit| f64::from(norm.factor(limit)))) as f32)
    }

    /// Has all ranks find the largest exponent fields of their gradients together.
    fn largest_of_all(&self, mine: Vec<u8>) -> Pending<Vec<u8>> {
        self.comm.submit(move |collective| {
            if mine.is_empty() || collective.world() == 1 {
                return Ok(mine);
            }
            let all = collective.all_gather(&mine)?;
            let mut largest = mine;
            for (rank, message) in all.iter().enumerate() {
                let theirs = message.bytes();
                if theirs.len() != largest.len() {
                    let what = format!("{} trained parameters, and not {}", theirs.len(), largest.len());
                    return Err(CollectiveError::Malformed { rank: rank as u32, what });
                }
                largest
                    .iter_mut()
                    .zip(theirs)
                    .for_each(|(largest, theirs)| *largest = (*largest).max(*theirs));
            }
            Ok(largest)
        })
    }

    /// The rule without what deep gradient compression does before the gradients are sent: momentum, and clipping. Each
    /// rank applies the weight decay here, divided by 1 - momentum: its steady state with momentum.
    fn rule_here(&self) -> Rule {
        let is_deep = matches!(self.reducer.reduction, Reduction::Fast(Compression::Dgc(_)));
        match self.rule.optimizer {
            Optimizer::Sgd { momentum, weight_decay } if is_deep && !self.reducer.compressors.is_empty() => {
                let weight_decay = weight_decay / (1.0 - momentum);
                Rule { optimizer: Optimizer::Sgd { momentum: 0.0, weight_decay }, clip: None }
            }
            _ => self.rule,
        }
    }

    /// The running numbers averaged over all virtual ranks, in the order of the tree: the same on every rank.
    ///
    /// # Errors
    /// When another rank is gone or late.
    pub fn averaged_running(&self) -> Result<Running, CollectiveError> {
        let mut sums = Partials::<f32>::new(self.ranks.count);
        for (virtual_rank, numbers) in self.virtual_ranks().zip(self.running_numbers()) {
            sums.push(virtual_rank, numbers);
        }
        let total = reduce(&self.comm, self.ranks, sums).wait()?;
        let mut averages = total.iter().map(|sum| sum / self.ranks.count as f32);
        let mut averaged = self.model.initial_running();
        for value in averaged.iter_mut().flatten().flatten() {
            *value = averages.next().expect("as many sums as running numbers");
        }
        Ok(averaged)
    }

    /// The running numbers of each virtual rank of this rank, one after the other.
    fn running_numbers(&self) -> Vec<Vec<f32>> {
        let numbers = |blocks: &RunningThere| match blocks.iter().flatten().cloned().collect::<Vec<_>>() {
            none if none.is_empty() => Vec::new(),
            all => to_numbers(Tensor::cat(all, 0)),
        };
        self.running.iter().map(numbers).collect()
    }

    /// The weights as they stand, with averaged running numbers: those that are hashed, saved and evaluated.
    /// All ranks call it together.
    ///
    /// # Errors
    /// When another rank is gone or late.
    pub fn weights(&mut self) -> Result<Weights, CollectiveError> {
        let parameters = self.parameters()?;
        Ok(self.model.name_weights(parameters, &self.averaged_running()?))
    }

    /// An input as the first block takes it.
    fn at_precision(&self, input: Vec<Part>) -> Vec<Part> {
        let is_full = self.model.stages.first().is_some_and(|stage| stage.wants_full_input());
        let precision = if is_full { Precision::F32 } else { self.compute.precision };
        input.into_iter().map(|part| part.cast(precision.dtype())).collect()
    }
}

impl Reducer {
    /// Whether the sums are right, if they are in whole numbers; [`GradientRanges`].
    fn judge(&self, largest: &[u8]) -> Fit {
        if largest.is_empty() { Fit::Fits } else { self.ranges.fit(largest) }
    }

    fn learn(&mut self, largest: &[u8]) {
        if !largest.is_empty() {
            self.ranges = self.ranges.next(largest);
        }
    }
}

/// Running numbers where they are computed: by block, a flat tensor for each buffer.
type RunningThere = Vec<Vec<Tensor<1>>>;

fn running_there(running: &Running, device: &Device) -> RunningThere {
    let there = |numbers: &Vec<f32>| from_numbers(numbers.clone(), device);
    running.iter().map(|buffers| buffers.iter().map(there).collect()).collect()
}

fn lock(compressor: &Mutex<Compressor>) -> MutexGuard<'_, Compressor> {
    compressor.lock().expect("no panic while gradients are compressed")
}

fn blocks_of(
    model: &Model,
    zero: Zero,
    precision: Precision,
    mesh: &Mesh,
    ledger: &Ledger,
) -> Vec<BlockState> {
    let place = (mesh.place(), mesh.size());
    let stages = model.stages.iter().enumerate();
    stages.map(|(block, stage)| BlockState::new(&**stage, block, (zero, precision), place, ledger)).collect()
}

fn buckets_of(blocks: &[BlockState], zero: Zero, sizes: BucketSizes) -> Buckets {
    // Parameters are gathered by blocks, and no gradient waits for those of other blocks.
    let sizes = if zero == Zero::Parameters { BucketSizes { first: 1, others: 1 } } else { sizes };
    Buckets::new(blocks.iter().map(BlockState::trained_len).collect(), sizes)
}

fn reduce<T: bytemuck::Pod + Send + std::ops::Add<Output = T>>(
    comm: &Comm,
    ranks: VirtualRanks,
    partials: Partials<T>,
) -> Pending<Numbers<T>> {
    comm.submit(move |collective| all_reduce(collective, ranks, partials))
}

#[cfg(test)]
mod tests;
