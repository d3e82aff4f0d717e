//! One training step: every virtual rank's forward and backward, the reduction of their gradients, the update.
//!
//! Each virtual rank is computed on its own, with its own micro-batch and running numbers, also where one process hosts many: that is what
//! makes the bits independent of the number of processes. Gradients travel in buckets of blocks: while the last virtual rank of this process
//! still goes backward through the earlier blocks, the later ones are already being reduced.

mod buckets;
mod walk;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor, TensorData};
use shardfmt::digest::Digest;

use crate::block::Pass;
use crate::checkpoint::{BlockLayout, Layout, State};
use crate::collective::{CollectiveError, sums};
use crate::compress::{Circumstances, Compression, CompressionReport, Compressor};
use crate::flow::Part;
use crate::loss::Measured;
use crate::model::Model;
use crate::optim::{Moments, Norm, Optimizer, Rule};
use crate::random::Key;
use crate::reduce::{Comm, Partials, Pending, Reduction, VirtualRanks, all_reduce};
use crate::stage::{Stage, to_numbers};
use crate::trace::{Lane, Tracer};
use crate::weights::{Running, Weights, WeightsError, ranges};
pub use buckets::BucketSizes;
use buckets::Buckets;
use walk::{Open, Walk};

/// A model being trained, as one rank holds it.
#[derive(Debug)]
pub struct Engine {
    model: Model,
    device: Device,
    ranks: VirtualRanks,
    rule: Rule,
    key: Key,
    blocks: Vec<BlockState>,
    buckets: Buckets,
    reduction: Reduction,
    /// By bucket; none if nothing is compressed.
    compressors: Vec<Arc<Mutex<Compressor>>>,
    /// By virtual rank of this rank.
    running: Vec<Running>,
    comm: Arc<Comm>,
    begun: Option<Begun>,
    updating: Duration,
    reducing: Duration,
    tracer: Tracer,
}

/// The numbers of one block.
#[derive(Debug)]
struct BlockState {
    /// The trained ones, then the frozen ones.
    weights: Vec<f32>,
    /// The trained parameters, and whether weight decay applies.
    trained: Vec<(Range<usize>, bool)>,
    moments: Moments,
}

impl BlockState {
    /// How many of its numbers are trained.
    fn trained_len(&self) -> usize {
        self.trained.last().map_or(0, |(range, _)| range.end)
    }
}

/// What all ranks know of a step before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepPlan {
    /// How many steps of the training came before it.
    pub number: u64,
    /// From 0.
    pub epoch: u32,
    /// Learning rate.
    pub rate: f32,
}

/// What a step came to, on all ranks alike.
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
}

impl StepLoss {
    /// Of a sample, on average.
    pub fn mean(&self) -> f64 {
        self.sum / self.samples.max(1) as f64
    }
}

/// A micro-batch: what goes into the model, and what is made of its output.
pub struct MicroBatch<'a> {
    /// What the first block is given, at least one row of it.
    pub input: Vec<Part>,
    /// By which objective the output is measured against what.
    pub measure: Box<dyn FnOnce(Vec<Part>) -> Measured + 'a>,
}

/// The micro-batches of a virtual rank, one after the other; none if it has no sample in a step.
pub type Share<'a> = Vec<MicroBatch<'a>>;

/// A step whose gradients are not all there.
#[derive(Debug)]
struct Begun {
    number: u64,
    epoch: u32,
    /// The running numbers before it.
    running: Vec<Running>,
    /// By virtual rank of this rank, then by bucket: the sum over the micro-batches so far.
    carried: Vec<Vec<Option<Vec<f32>>>>,
    /// By virtual rank of this rank: losses, right answers, samples.
    scalars: Vec<[f64; 3]>,
    /// By virtual rank of this rank: micro-batches so far.
    micro_batches: Vec<u64>,
    /// By bucket.
    sums: Vec<BucketSum>,
    reductions: Vec<Pending<Vec<f32>>>,
}

/// The gradients of a bucket, of the virtual ranks so far.
#[derive(Debug)]
enum BucketSum {
    Exact(Partials<f32>),
    Fast(Vec<f32>),
}

impl Engine {
    /// A model with these first weights (by block, the same on every rank), which draws the random numbers of `key`.
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
        assert_eq!(ranks.world, comm.world(), "the virtual ranks are shared by this world");
        assert_eq!(weights.len(), model.stages.len(), "weights for every block");
        let state = |stage: &dyn Stage, weights: Vec<f32>| {
            let parameters = stage.parameters().iter();
            let count: usize = parameters.clone().map(|parameter| parameter.len()).sum();
            assert_eq!(weights.len(), count, "weights for every parameter");
            let trained = parameters.zip(ranges(stage.parameters())).filter(|(it, _)| it.is_trained);
            let trained = trained.map(|(parameter, range)| (range, parameter.decays)).collect();
            BlockState { weights, trained, moments: Moments::default() }
        };
        let stages = model.stages.iter().zip(weights);
        let blocks: Vec<BlockState> = stages.map(|(stage, weights)| state(&**stage, weights)).collect();
        let running = ranks.of(comm.rank()).map(|_| model.initial_running()).collect();
        let rule = rule.into();
        let buckets = buckets_of(&blocks, BucketSizes::default());
        let (updating, reducing) = (Duration::ZERO, Duration::ZERO);
        let (reduction, compressors) = (Reduction::Exact, Vec::new());
        Engine {
            model,
            device,
            ranks,
            rule,
            key,
            blocks,
            buckets,
            reduction,
            compressors,
            running,
            comm,
            begun: None,
            updating,
            reducing,
            tracer: Tracer::off(),
        }
    }

    /// With a record of what is done when.
    #[must_use]
    pub fn with_tracer(self, tracer: Tracer) -> Engine {
        Engine { tracer, ..self }
    }

    /// With another way to add gradients up, which all ranks choose alike.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Engine {
        self.reduction = reduction;
        self.prepare_compressors();
        self
    }

    fn prepare_compressors(&mut self) {
        let compression = match self.reduction {
            Reduction::Fast(compression) if self.comm.world() > 1 => compression,
            _ => Compression::None,
        };
        let count = if compression == Compression::None { 0 } else { self.buckets.count() };
        let compressor = |_| Arc::new(Mutex::new(Compressor::new(compression)));
        self.compressors = (0..count).map(compressor).collect();
    }

    /// What compression has cost and saved on this rank; `None` if nothing is compressed.
    pub fn compression(&self) -> Option<CompressionReport> {
        self.compressors.iter().map(|it| lock(it).report()).reduce(CompressionReport::with)
    }

    /// With buckets of other sizes. The weights do not depend on them.
    #[must_use]
    pub fn with_buckets(mut self, sizes: BucketSizes) -> Engine {
        self.buckets = buckets_of(&self.blocks, sizes);
        self.prepare_compressors();
        self
    }

    /// How much of the last step came after its last backward pass: waiting for the sums of all ranks, and the update.
    pub fn updating(&self) -> Duration {
        self.updating
    }

    /// Of this, how much was waiting for the sums of all ranks.
    pub fn reducing(&self) -> Duration {
        self.reducing
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Where it is computed.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The virtual ranks of this rank.
    pub fn virtual_ranks(&self) -> Range<u32> {
        self.ranks.of(self.comm.rank())
    }

    /// The parameters, by block.
    pub fn parameters(&self) -> Vec<Vec<f32>> {
        self.blocks.iter().map(|block| block.weights.clone()).collect()
    }

    /// Forward and backward for micro-batches of a step that is not complete with them: one share for each virtual rank of this rank, in
    /// order. Gradients are added up by virtual rank, and nothing is sent (but what blocks sum over all virtual ranks).
    ///
    /// # Errors
    /// When another rank is gone or late.
    ///
    /// # Panics
    /// If there is not one share for each virtual rank, or a step of another number is begun.
    pub fn accumulate(&mut self, shares: Vec<Share<'_>>, plan: StepPlan) -> Result<(), CollectiveError> {
        self.run(shares, plan, false)
    }

    /// Trains on a step: one share for each virtual rank of this rank, in order, besides those that were accumulated.
    ///
    /// Gradients are those of the mean loss over the samples of all ranks: a virtual rank with fewer samples weighs less, one without
    /// any adds zeros. What the step came to, which is the same on every rank, is shown to `take` before anything is changed: if it says
    /// no, weights, moments and running numbers stay as they were.
    ///
    /// # Errors
    /// When another rank is gone or late; the weights are then of no further use.
    ///
    /// # Panics
    /// As [`Engine::accumulate`].
    pub fn step(
        &mut self,
        shares: Vec<Share<'_>>,
        plan: StepPlan,
        take: impl FnOnce(&StepLoss) -> bool,
    ) -> Result<StepLoss, CollectiveError> {
        self.run(shares, plan, true)?;
        let computed = Instant::now();
        let waiting = self.tracer.span(Lane::Compute, || "wait for sums");
        let Begun { running, scalars, reductions, .. } = self.begun.take().expect("a step is under way");
        let mut sums = Partials::<f64>::new(self.ranks.count);
        for (virtual_rank, scalars) in self.virtual_ranks().zip(scalars) {
            sums.push(virtual_rank, scalars.to_vec());
        }
        let totals = reduce(&self.comm, self.ranks, sums);
        let mut norm = Norm::default();
        let mut gradient = Vec::with_capacity(reductions.len());
        for (bucket, reduction) in reductions.into_iter().enumerate() {
            let sum = reduction.wait()?;
            self.buckets.places(bucket).for_each(|(_, range)| norm.add(&sum[range]));
            gradient.push(sum);
        }
        let totals = totals.wait()?;
        drop(waiting);
        let (sum, correct, samples) = (totals[0], totals[1] as u64, totals[2] as u64);
        let share = 1.0 / samples.max(1) as f64;
        let norm = norm.times(share);
        let loss = StepLoss { sum, correct, samples, gradient_norm: norm.value() };
        self.reducing = computed.elapsed();
        let is_taken = take(&loss);
        self.compressors.iter().for_each(|compressor| lock(compressor).conclude(is_taken));
        if is_taken {
            let rule = self.rule_here();
            let factor = share * rule.clip.map_or(1.0, |limit| f64::from(norm.factor(limit)));
            self.update(rule.optimizer, gradient, factor as f32, plan.rate);
        } else {
            self.running = running;
        }
        self.updating = computed.elapsed();
        Ok(loss)
    }

    /// The rule without what deep gradient compression does before the gradients are sent: momentum, and clipping.
    fn rule_here(&self) -> Rule {
        let is_deep = matches!(self.reduction, Reduction::Fast(Compression::Dgc(_)));
        match self.rule.optimizer {
            Optimizer::Sgd { weight_decay, .. } if is_deep && !self.compressors.is_empty() => {
                Rule { optimizer: Optimizer::Sgd { momentum: 0.0, weight_decay }, clip: None }
            }
            _ => self.rule,
        }
    }

    /// Moves the weights against the gradient.
    fn update(&mut self, optimizer: Optimizer, gradient: Vec<Vec<f32>>, factor: f32, rate: f32) {
        let _span = self.tracer.span(Lane::Compute, || "update");
        for (bucket, sum) in gradient.into_iter().enumerate() {
            for (block, range) in self.buckets.places(bucket) {
                let BlockState { weights, trained, moments } = &mut self.blocks[block];
                let weights = &mut weights[..range.len()];
                moments.update(optimizer, rate, trained, weights, &sum[range], factor);
            }
        }
    }

    /// Forward and backward of these micro-batches.
    fn run(
        &mut self,
        shares: Vec<Share<'_>>,
        plan: StepPlan,
        is_complete: bool,
    ) -> Result<(), CollectiveError> {
        assert_eq!(shares.len(), self.virtual_ranks().len(), "a share for every virtual rank");
        let mut begun = self.begun.take().unwrap_or_else(|| self.begin(plan));
        assert_eq!(begun.number, plan.number, "the step begun is completed first");
        let parameters = self.tensors();
        if self.model.stages.iter().any(|stage| stage.summary_len() > 0) {
            self.run_side_by_side(shares, &parameters, &mut begun, is_complete)?;
        } else {
            self.run_one_by_one(shares, &parameters, &mut begun, is_complete);
        }
        self.begun = Some(begun);
        Ok(())
    }

    fn begin(&self, StepPlan { number, epoch, .. }: StepPlan) -> Begun {
        let (hosted, buckets) = (self.virtual_ranks().len(), self.buckets.count());
        Begun {
            number,
            epoch,
            running: self.running.clone(),
            carried: vec![vec![None; buckets]; hosted],
            scalars: vec![[0.0; 3]; hosted],
            micro_batches: vec![0; hosted],
            sums: (0..buckets).map(|bucket| self.no_sum(bucket)).collect(),
            reductions: Vec::with_capacity(buckets),
        }
    }

    /// A virtual rank goes all the way forward and back before the next one begins: only one graph exists at a time.
    fn run_one_by_one(
        &mut self,
        shares: Vec<Share<'_>>,
        parameters: &[Vec<Tensor<1>>],
        begun: &mut Begun,
        is_complete: bool,
    ) {
        for (index, share) in shares.into_iter().enumerate() {
            let last = share.len().wrapping_sub(1);
            if share.is_empty() && is_complete {
                (0..self.buckets.count()).for_each(|bucket| self.deliver(begun, index, bucket, None, true));
            }
            for (at, micro_batch) in share.into_iter().enumerate() {
                let is_last = is_complete && at == last;
                let key = self.next_key(begun, index);
                let mut walk = Walk::new(micro_batch.input, key);
                for (block, parameters) in parameters.iter().enumerate() {
                    self.forward(&mut walk, index, block, parameters, None);
                }
                begun.measure(index, walk.turn(micro_batch.measure));
                for block in (0..self.model.stages.len()).rev() {
                    let open = self.backward(&mut walk, block);
                    debug_assert!(open.is_none(), "no block has a summary");
                    if let Some(bucket) = self.buckets.completed_by(block) {
                        self.deliver(begun, index, bucket, Some(std::mem::take(&mut walk.gradient)), is_last);
                    }
                }
            }
        }
    }

    /// All virtual ranks, of this rank and of the others, go through a block before any enters the next: for blocks that need sums over
    /// them all.
    fn run_side_by_side(
        &mut self,
        shares: Vec<Share<'_>>,
        parameters: &[Vec<Tensor<1>>],
        begun: &mut Begun,
        is_complete: bool,
    ) -> Result<(), CollectiveError> {
        let longest = shares.iter().map(Vec::len).max().unwrap_or(0);
        let rounds = self.largest(longest as u64)?;
        let mut shares: Vec<_> = shares.into_iter().map(Vec::into_iter).collect();
        for round in 0..rounds {
            let is_last = is_complete && round + 1 == rounds;
            let (mut walks, mut measures) = (Vec::new(), Vec::new());
            for (index, share) in shares.iter_mut().enumerate() {
                let (walk, measure) = match share.next() {
                    Some(MicroBatch { input, measure }) => {
                        (Some(Walk::new(input, self.next_key(begun, index))), Some(measure))
                    }
                    None => (None, None),
                };
                walks.push(walk);
                measures.push(measure);
            }
            for (block, parameters) in parameters.iter().enumerate() {
                let total = self.summary(block, parameters, &walks)?;
                for (index, walk) in walks.iter_mut().enumerate() {
                    let Some(walk) = walk else { continue };
                    self.forward(walk, index, block, parameters, total.clone());
                }
            }
            for (index, (walk, measure)) in walks.iter_mut().zip(measures).enumerate() {
                if let (Some(walk), Some(measure)) = (walk, measure) {
                    begun.measure(index, walk.turn(measure));
                }
            }
            for block in (0..self.model.stages.len()).rev() {
                let back = |walk: &mut Option<Walk>| self.backward(walk.as_mut()?, block);
                let open: Vec<Option<Open>> = walks.iter_mut().map(back).collect();
                self.close(block, &mut walks, open)?;
                let Some(bucket) = self.buckets.completed_by(block) else { continue };
                for (index, walk) in walks.iter_mut().enumerate() {
                    let gradient = walk.as_mut().map(|walk| std::mem::take(&mut walk.gradient));
                    self.deliver(begun, index, bucket, gradient, is_last);
                }
            }
        }
        if rounds == 0 && is_complete {
            for bucket in 0..self.buckets.count() {
                for index in 0..shares.len() {
                    self.deliver(begun, index, bucket, None, true);
                }
            }
        }
        Ok(())
    }

    /// The largest of what all ranks bring.
    fn largest(&self, mine: u64) -> Result<u64, CollectiveError> {
        let all = self.comm.run(move |collective| collective.all_gather(&mine.to_le_bytes()))?;
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes);
        let malformed = |rank: usize| CollectiveError::Malformed {
            rank: rank as u32,
            what: "not a number of micro-batches".to_owned(),
        };
        let numbers =
            all.iter().enumerate().map(|(rank, it)| number(it.bytes()).map_err(|_| malformed(rank)));
        numbers.collect::<Result<Vec<u64>, _>>().map(|all| all.into_iter().max().unwrap_or(mine))
    }

    /// Of a block that asks for one, the sum over all virtual ranks.
    fn summary(
        &self,
        block: usize,
        parameters: &[Tensor<1>],
        walks: &[Option<Walk>],
    ) -> Result<Option<Tensor<1>>, CollectiveError> {
        let stage = &self.model.stages[block];
        let length = stage.summary_len();
        if length == 0 {
            return Ok(None);
        }
        let summary = |(index, walk): (usize, &Option<Walk>)| match walk {
            Some(walk) => {
                let loaded = stage.load(parameters, &self.running[index][block], true);
                to_numbers(walk.summary(&*loaded))
            }
            None => vec![0.0; length],
        };
        self.sum_over_all(walks.iter().enumerate().map(summary)).map(Some)
    }

    /// Sends back what flows through the sums of a block's summaries.
    fn close(
        &self,
        block: usize,
        walks: &mut [Option<Walk>],
        open: Vec<Option<Open>>,
    ) -> Result<(), CollectiveError> {
        let length = self.model.stages[block].summary_len();
        if length == 0 {
            return Ok(());
        }
        let shares = open.iter().map(|open| match open {
            Some(open) => to_numbers(open.share.clone()),
            None => vec![0.0; length],
        });
        let gradient = self.sum_over_all(shares)?;
        for (walk, open) in walks.iter_mut().zip(open) {
            if let (Some(walk), Some(open)) = (walk, open) {
                walk.close(open, gradient.clone());
            }
        }
        Ok(())
    }

    /// The sum of the numbers of all virtual ranks, in the order of the tree.
    fn sum_over_all(&self, mine: impl Iterator<Item = Vec<f32>>) -> Result<Tensor<1>, CollectiveError> {
        let mut partials = Partials::new(self.ranks.count);
        for (virtual_rank, numbers) in self.virtual_ranks().zip(mine) {
            partials.push(virtual_rank, numbers);
        }
        let total = reduce(&self.comm, self.ranks, partials).wait()?;
        let count = [total.len()];
        Ok(Tensor::from_data(TensorData::new(total, count), &self.device))
    }

    /// The key of a virtual rank's next micro-batch: of the training, the step, the virtual rank, and the place in the step.
    fn next_key(&self, begun: &mut Begun, index: usize) -> Key {
        let virtual_rank = self.virtual_ranks().start + index as u32;
        let place = &mut begun.micro_batches[index];
        *place += 1;
        self.key.of(begun.number).of(virtual_rank.into()).of(*place - 1)
    }

    fn forward(
        &mut self,
        walk: &mut Walk,
        index: usize,
        block: usize,
        parameters: &[Tensor<1>],
        total: Option<Tensor<1>>,
    ) {
        let _span = self.tracer.span(Lane::Compute, || format!("forward {block}"));
        let running = &mut self.running[index][block];
        let loaded = self.model.stages[block].load(parameters, running, true);
        // Before the first trained parameters there is nothing to go back for.
        let first = self.blocks.iter().position(|block| !block.trained.is_empty()).unwrap_or(0);
        *running = walk.forward(loaded, block > first, total);
    }

    fn backward(&self, walk: &mut Walk, block: usize) -> Option<Open> {
        let _span = self.tracer.span(Lane::Compute, || format!("backward {block}"));
        walk.backward()
    }

    /// Takes a micro-batch's gradient of a bucket (`None` without a sample). With the last micro-batch of the last virtual rank, the bucket
    /// goes to the other ranks.
    fn deliver(
        &self,
        begun: &mut Begun,
        index: usize,
        bucket: usize,
        gradient: Option<Vec<f32>>,
        is_last: bool,
    ) {
        let carried = &mut begun.carried[index][bucket];
        let sum = match (carried.take(), gradient) {
            (Some(mut sum), Some(gradient)) => {
                sum.iter_mut().zip(gradient).for_each(|(sum, number)| *sum += number);
                Some(sum)
            }
            (one, other) => one.or(other),
        };
        if !is_last {
            *carried = sum;
            return;
        }
        let hosted = self.virtual_ranks();
        let virtual_rank = hosted.start + index as u32;
        let sum = sum.unwrap_or_else(|| vec![0.0; self.buckets.len(bucket)]);
        match &mut begun.sums[bucket] {
            BucketSum::Exact(partials) => partials.push(virtual_rank, sum),
            BucketSum::Fast(total) => total.iter_mut().zip(sum).for_each(|(total, number)| *total += number),
        }
        if virtual_rank + 1 == hosted.end {
            let sum = std::mem::replace(&mut begun.sums[bucket], self.no_sum(bucket));
            let samples: f64 = begun.scalars.iter().map(|[_, _, samples]| samples).sum();
            begun.reductions.push(self.reduce(bucket, sum, begun.epoch, samples));
        }
    }

    /// Of no virtual rank.
    fn no_sum(&self, bucket: usize) -> BucketSum {
        match self.reduction {
            Reduction::Exact => BucketSum::Exact(Partials::new(self.ranks.count)),
            Reduction::Fast(_) => BucketSum::Fast(vec![0.0; self.buckets.len(bucket)]),
        }
    }

    /// Sends a bucket on its way, with the gradients of so many samples of this rank.
    fn reduce(&self, bucket: usize, sum: BucketSum, epoch: u32, samples: f64) -> Pending<Vec<f32>> {
        let (ranks, tracer) = (self.ranks, self.tracer.clone());
        // The moment at which it is handed over lies among what is computed.
        drop(self.tracer.span(Lane::Compute, || format!("send bucket {bucket}")));
        let sum = match sum {
            BucketSum::Exact(partials) => {
                return self.comm.submit(move |collective| {
                    let _span = tracer.span(Lane::Communication, || format!("reduce bucket {bucket}"));
                    all_reduce(collective, ranks, partials)
                });
            }
            BucketSum::Fast(sum) => sum,
        };
        let Some(compressor) = self.compressors.get(bucket).map(Arc::clone) else {
            return self.comm.submit(move |collective| {
                let _span = tracer.span(Lane::Communication, || format!("reduce bucket {bucket}"));
                let mut sum = sum;
                sums::all_reduce(collective, &mut sum)?;
                Ok(sum)
            });
        };
        let momentum = match self.rule.optimizer {
            Optimizer::Sgd { momentum, .. } => momentum,
            _ => 0.0,
        };
        // The limit is for the mean over the samples of all ranks, of which this rank knows its own.
        let all = samples * f64::from(self.comm.world());
        let clip = self.rule.clip.map(|limit| (f64::from(limit) * all) as f32);
        let circumstances = Circumstances { epoch, momentum, clip };
        self.comm.submit(move |collective| {
            let _span = tracer.span(Lane::Communication, || format!("compress and reduce bucket {bucket}"));
            lock(&compressor).all_reduce(collective, sum, circumstances)
        })
    }

    /// The running numbers averaged over all virtual ranks, in the order of the tree: the same on every rank.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn averaged_running(&self) -> Result<Running, CollectiveError> {
        let mut sums = Partials::new(self.ranks.count);
        for (virtual_rank, blocks) in self.virtual_ranks().zip(&self.running) {
            sums.push(virtual_rank, blocks.iter().flatten().flatten().copied().collect());
        }
        let total = reduce(&self.comm, self.ranks, sums).wait()?;
        let mut averages = total.iter().map(|sum| sum / self.ranks.count as f32);
        let mut averaged = self.model.initial_running();
        for value in averaged.iter_mut().flatten().flatten() {
            *value = averages.next().expect("as many sums as running numbers");
        }
        Ok(averaged)
    }

    /// Makes the weights those of the same names, and the running numbers of every virtual rank, as far as they are among them.
    ///
    /// # Errors
    /// When they are of another model; then nothing has changed.
    pub(crate) fn begin_with(&mut self, weights: &Weights) -> Result<(), WeightsError> {
        let mut running = self.model.initial_running();
        let named = self.model.name_weights(&self.parameters(), &running);
        let parameters: usize = self.model.stages.iter().map(|stage| stage.parameters().len()).sum();
        let wanted: Vec<(String, Vec<usize>, bool)> = (named.0.iter().enumerate())
            .map(|(index, named)| (named.name.clone(), named.shape.clone(), index >= parameters))
            .collect();
        let mut values = weights.pick(&wanted)?.into_iter().zip(&named.0);
        let mut next = || values.next().map(|(found, ours)| found.unwrap_or(&ours.values).to_vec());
        for (stage, state) in self.model.stages.iter().zip(&mut self.blocks) {
            state.weights = stage.parameters().iter().flat_map(|_| next().unwrap_or_default()).collect();
        }
        for buffer in running.iter_mut().flatten() {
            *buffer = next().unwrap_or_default();
        }
        self.running.fill(running);
        Ok(())
    }

    /// What this rank would have to be given to go on from here: the layout of the numbers, and the numbers, as they lie.
    pub(crate) fn state(&self) -> (Layout, Vec<&[f32]>, Vec<Vec<f32>>) {
        let running = self.running.iter().map(|blocks| blocks.iter().flatten().flatten().copied().collect());
        let mut numbers = Vec::with_capacity(3 * self.blocks.len());
        for BlockState { weights, moments, .. } in &self.blocks {
            numbers.extend([&weights[..], &moments.first, &moments.second]);
        }
        (self.layout(), numbers, running.collect())
    }

    fn layout(&self) -> Layout {
        let layout = |stage: &dyn Stage, state: &BlockState| BlockLayout {
            parameters: stage.parameters().iter().map(|it| (it.name.clone(), it.shape.clone())).collect(),
            weights: state.weights.len(),
            first: state.moments.first.len(),
            second: state.moments.second.len(),
            updates: state.moments.steps,
            statistics: stage.buffers().iter().map(|buffer| buffer.initial.len()).sum(),
        };
        let blocks = self.model.stages.iter().zip(&self.blocks);
        Layout { blocks: blocks.map(|(stage, state)| layout(&**stage, state)).collect() }
    }

    /// Makes this what [`Engine::state`] said of some engine, in the numbers of its layout. The running numbers are those of this rank's
    /// virtual ranks, in order.
    ///
    /// # Errors
    /// What of the model differs from the layout; then nothing has changed.
    pub(crate) fn restore(&mut self, layout: &Layout, state: &State) -> Result<(), String> {
        let ours = self.layout();
        if ours.blocks.len() != layout.blocks.len() {
            return Err(format!("{} blocks, and not {}", layout.blocks.len(), ours.blocks.len()));
        }
        for (index, (ours, theirs)) in ours.blocks.iter().zip(&layout.blocks).enumerate() {
            let trained = self.blocks[index].trained_len();
            let fits = |count: usize| count == 0 || count == trained;
            if (&ours.parameters, ours.statistics) != (&theirs.parameters, theirs.statistics) {
                let (ours, theirs) = (&ours.parameters, &theirs.parameters);
                return Err(format!("block {index} of {theirs:?}, and not of {ours:?}"));
            }
            if theirs.weights != ours.weights || !fits(theirs.first) || !fits(theirs.second) {
                return Err(format!("block {index} with other numbers than its parameters have"));
            }
        }
        if !state.statistics.iter().map(|(rank, _)| *rank).eq(self.virtual_ranks())
            || state.statistics.iter().any(|(_, numbers)| numbers.len() != layout.statistics())
            || state.common.len() != layout.common()
        {
            return Err("other numbers than its layout says".to_owned());
        }
        let mut left = &state.common[..];
        for (block, layout) in self.blocks.iter_mut().zip(&layout.blocks) {
            block.weights = take(&mut left, layout.weights);
            let (first, second) = (take(&mut left, layout.first), take(&mut left, layout.second));
            block.moments = Moments { first, second, steps: layout.updates };
        }
        for (blocks, (_, numbers)) in self.running.iter_mut().zip(&state.statistics) {
            let mut left = &numbers[..];
            for buffer in blocks.iter_mut().flatten() {
                *buffer = take(&mut left, buffer.len());
            }
        }
        Ok(())
    }

    /// The digest of each block's parameters.
    pub fn digests(&self) -> Vec<Digest> {
        self.blocks.iter().map(|block| Digest::of(bytemuck::cast_slice(&block.weights))).collect()
    }

    /// The weights as they stand, with averaged running numbers: what is hashed, saved and evaluated.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn weights(&self) -> Result<Weights, CollectiveError> {
        Ok(self.model.name_weights(&self.parameters(), &self.averaged_running()?))
    }

    /// What the model makes of an input, by these running numbers.
    pub fn output(&self, input: Vec<Part>, running: &Running) -> Vec<Part> {
        let (mut activation, mut shelf) = (input, std::collections::BTreeMap::new());
        for ((stage, parameters), running) in self.model.stages.iter().zip(self.tensors()).zip(running) {
            let mut pass = Pass::new(None, shelf, None);
            activation = stage.load(&parameters, running, false).forward(activation, &mut pass);
            (shelf, _) = pass.leave();
        }
        activation
    }

    /// One flat tensor per parameter, by block.
    fn tensors(&self) -> Vec<Vec<Tensor<1>>> {
        let tensors = |stage: &dyn Stage, state: &BlockState| {
            let tensor = |range: Range<usize>| {
                let values = state.weights[range].to_vec();
                let length = values.len();
                Tensor::from_data(TensorData::new(values, [length]), &self.device)
            };
            ranges(stage.parameters()).into_iter().map(tensor).collect()
        };
        self.model.stages.iter().zip(&self.blocks).map(|(stage, state)| tensors(&**stage, state)).collect()
    }
}

impl Begun {
    fn measure(&mut self, index: usize, Measured { sum, correct, samples, .. }: Measured) {
        let scalars = &mut self.scalars[index];
        for (scalar, more) in scalars.iter_mut().zip([sum, correct as f64, samples as f64]) {
            *scalar += more;
        }
    }
}

fn lock(compressor: &Mutex<Compressor>) -> MutexGuard<'_, Compressor> {
    compressor.lock().expect("no panic while gradients are compressed")
}

fn buckets_of(blocks: &[BlockState], sizes: BucketSizes) -> Buckets {
    Buckets::new(blocks.iter().map(BlockState::trained_len).collect(), sizes)
}

/// The next `count` numbers.
fn take(left: &mut &[f32], count: usize) -> Vec<f32> {
    let (taken, rest) = left.split_at(count);
    *left = rest;
    taken.to_vec()
}

fn reduce<T: bytemuck::Pod + Send + std::ops::Add<Output = T>>(
    comm: &Comm,
    ranks: VirtualRanks,
    partials: Partials<T>,
) -> Pending<Vec<T>> {
    comm.submit(move |collective| all_reduce(collective, ranks, partials))
}

#[cfg(test)]
mod tests;
