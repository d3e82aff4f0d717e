//! The trainer for your own models.

use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::Device;
use serde_json::json;

use crate::buckets::BucketSizes;
use crate::causes::chain;
use crate::checkpoint::{
    CheckpointBytes, CheckpointCosts, CheckpointManager, Checkpoints, Next, Place, Resume, Settings,
    StopFlag, load,
};
use crate::collective::{Collective, CollectiveError};
use crate::device::Precision;
use crate::dtype::ReduceDtype;
use crate::engine::{Engine, MicroBatch, Share, StepLoss, StepPlan};
use crate::error::{BadStep, TrainError};
use crate::ledger::Usage;
use crate::loss::Objective;
use crate::model::Chain;
use crate::name_pattern::NamePattern;
use crate::optim::{Optimizer, Rule};
use crate::progress::ProgressSoFar;
use crate::random::Key;
use crate::reduce::{Comm, Reduction, VirtualRanks};
use crate::scaling::LossScale;
use crate::tensor_tree::{TensorTree, from_parts, parts_of};
use crate::train::agree::{agree_on, begin, compare, kept as kept_settings, same_training};
use crate::train::bits::agree_on_bits;
use crate::train::check_groups;
use crate::weights::Weights;
use crate::zero::Slicing;

/// Trains your own model, together with the other ranks of a world: the same weights to the last bit on any
/// number of ranks.
///
/// A step is made of V virtual ranks' micro-batches, on any ranks; every rank is asked for those of its own.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor, activation::relu};
/// use shardd_trainer::nn::linear_layer;
/// use shardd_trainer::{Chain, CrossEntropy, Optimizer, Trainer, block, spawn};
///
/// #[derive(Module, Debug)]
/// struct Hidden {
///     linear: Linear,
/// }
/// block!(Hidden, |self, input: Tensor<2>| -> Tensor<2> { relu(linear_layer(&self.linear, input)) });
///
/// #[derive(Module, Debug)]
/// struct Logits {
///     linear: Linear,
/// }
/// block!(Logits, |self, input: Tensor<2>| -> Tensor<2> { linear_layer(&self.linear, input) });
///
/// /// Which of two numbers is larger: inputs `[rows, 2]`, and the answers.
/// fn rows(step: u64, virtual_rank: u32) -> (Tensor<2>, Vec<u32>) {
///     let at = |row: u64| ((step * 64 + u64::from(virtual_rank) * 16 + row) as f32 * 0.7).sin();
///     let inputs: Vec<[f32; 2]> = (0..16).map(|row| [at(row), at(row + 1)]).collect();
///     let answers = inputs.iter().map(|[one, other]| u32::from(other > one)).collect();
///     (Tensor::<1>::from_floats(inputs.as_flattened(), &Device::flex()).reshape([16, 2]), answers)
/// }
///
/// let train = |world| {
///     spawn(world, |collective| {
///         let linear = |from, to| LinearConfig::new(from, to).init(&Device::flex());
///         let model = Chain::start(Hidden { linear: linear(2, 16) }).then(Logits { linear: linear(16, 2) });
///         let mut trainer = Trainer::new(model, CrossEntropy, Box::new(collective))
///             .virtual_ranks(4)
///             .optimizer(Optimizer::adam(0.0))
///             .build()?;
///         let mut loss = f64::INFINITY;
///         for step in 0..100 {
///             loss = trainer.step(0.02, |virtual_rank| [rows(step, virtual_rank)])?.mean();
///         }
///         Ok::<_, shardd_trainer::TrainError>((loss, trainer.weights()?))
///     })
/// };
/// let (loss, weights) = train(2).remove(0).unwrap();
/// assert!(loss < 0.3, "{loss}");
/// assert_eq!(weights.0.len(), 4);
/// ```
#[derive(Debug)]
pub struct Trainer<Input, Output, O> {
    engine: Engine,
    comm: Arc<Comm>,
    objective: O,
    number: u64,
    epoch: u32,
    samples: u64,
    keeping: CheckpointSettings,
    types: PhantomData<fn(Input) -> Output>,
}

/// A trainer's checkpoints, and their common settings.
#[derive(Debug)]
struct CheckpointSettings {
    keeper: CheckpointManager,
    run: String,
    settings: Settings,
    /// The place where the source resumes after the trained steps.
    place: Place,
}

/// How a [`Trainer`] trains.
#[must_use = "nothing happens before `build`"]
pub struct TrainerBuilder<Input, Output, O> {
    chain: Chain<Input, Output>,
    objective: O,
    collective: Box<dyn Collective>,
    virtual_ranks: Option<u32>,
    rule: Rule,
    seed: u64,
    device: Device,
    precision: Precision,
    loss_scale: LossScale,
    buckets: BucketSizes,
    reduction: Reduction,
    reduce_dtype: ReduceDtype,
    slicing: Slicing,
    checkpoints: Option<(Checkpoints, Resume)>,
    stop: StopFlag,
    freeze: Vec<NamePattern>,
}

impl<Input: TensorTree, Output: TensorTree, O: Objective<Output>> Trainer<Input, Output, O> {
    /// A trainer for this model, which all ranks of the collective make in the same way. Rank 0's weights are everyone's.
    #[expect(clippy::new_ret_no_self, reason = "a trainer has settings")]
    pub fn new(
        model: Chain<Input, Output>,
        objective: O,
        collective: Box<dyn Collective>,
    ) -> TrainerBuilder<Input, Output, O> {
        TrainerBuilder {
            chain: model,
            objective,
            collective,
            virtual_ranks: None,
            rule: Optimizer::sgd(0.0).into(),
            seed: 0,
            device: Device::flex(),
            precision: Precision::default(),
            loss_scale: LossScale::default(),
            buckets: BucketSizes::default(),
            reduction: Reduction::default(),
            reduce_dtype: ReduceDtype::default(),
            slicing: Slicing::default(),
            checkpoints: None,
            stop: StopFlag::default(),
            freeze: Vec::new(),
        }
    }

    /// Steps that were trained, those before a checkpoint among them.
    pub fn steps(&self) -> u64 {
        self.number
    }

    /// Where the source resumes: the end of the checkpoint that this one resumes from, or the place last
    /// [kept](Trainer::keep).
    pub fn place(&self) -> Place {
        self.keeping.place
    }

    /// The bytes of the model's numbers that this rank has held at once, at most, since this was last asked.
    pub fn most_memory(&self) -> Usage {
        self.engine.most_memory()
    }

    /// The cost of checkpoints up to now.
    pub fn checkpoint_costs(&self) -> CheckpointCosts {
        self.keeping.keeper.costs()
    }

    /// The bytes of each checkpoint that was completed up to now, in order.
    pub fn checkpoint_bytes(&self) -> &[CheckpointBytes] {
        self.keeping.keeper.bytes()
    }

    /// The virtual ranks that this rank is asked for.
    pub fn virtual_ranks(&self) -> Range<u32> {
        self.engine.virtual_ranks()
    }

    /// One update at this learning rate, on the micro-batches that each virtual rank of this rank has: an input and its target, or several, or
    /// none. Those of [`Trainer::no_sync`] before it count as well. A step with gradients that are much larger than those before may result
    /// only in a wider range for the next, and so may one in [`Precision::F16`] ([`StepLoss::is_overflow`]).
    ///
    /// # Errors
    /// When another rank is gone or late, or the device has no memory for a micro-batch; the weights are then of no further use. When gradients are
    /// too large for 16 bits with any scale; the weights are then those before the step.
    pub fn step<B>(&mut self, rate: f32, batches: impl FnMut(u32) -> B) -> Result<StepLoss, TrainError>
    where
        B: IntoIterator<Item = (Input, O::Target)>,
    {
        let plan = self.plan(rate);
        self.number += 1;
        let shares = shares(&self.objective, self.engine.virtual_ranks(), batches);
        let mut too_large = None;
        let outcome = self.engine.step(shares, plan, |loss| {
            too_large = BadStep::too_large(loss);
            too_large.is_none()
        });
        let loss = outcome.inspect_err(|error| self.comm.abort(error.to_string()))?;
        if let Some(what) = too_large {
            return Err(TrainError::BadStep { epoch: self.epoch, step: plan.number, what });
        }
        self.samples += loss.samples;
        Ok(loss)
    }

    /// After a step, sets the place where the source resumes: a checkpoint is begun, if one is due, and is
    /// written while training continues. With `Break` the training ends here, because it was [asked
    /// to](TrainerBuilder::stop); its checkpoint is there then. Without checkpoints nothing is done.
    ///
    /// # Errors
    /// When another rank is gone or late, or the last checkpoint of a training that is to stop cannot be written.
    pub fn keep(&mut self, place: Place) -> Result<ControlFlow<()>, TrainError> {
        self.keeping.place = place;
        let progress = self.progress();
        let CheckpointSettings { keeper, run, settings, .. } = &mut self.keeping;
        let next = keeper.after_step(self.number, || {
            Ok(self.engine.snapshot(run.clone(), settings.clone(), place, progress)?)
        });
        let next = next.inspect_err(|error| self.comm.abort(chain(error)))?;
        Ok(if next == Next::Stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Writes the checkpoint of the end, and waits until it is there. A store that does not take it is a warning.
    ///
    /// # Errors
    /// When another rank is gone or late.
    pub fn finish(&mut self) -> Result<(), TrainError> {
        let progress = self.progress();
        let CheckpointSettings { keeper, run, settings, place } = &mut self.keeping;
        let finished = keeper.finish(self.number, || {
            Ok(self.engine.snapshot(run.clone(), settings.clone(), *place, progress)?)
        });
        Ok(finished.inspect_err(|error| self.comm.abort(chain(error)))?)
    }

    /// Forward and backward for a part of the next step, as a rule without a word to other ranks: gradients are added up here until [`Trainer::step`] or
    /// [`Trainer::sync_now`].
    ///
    /// # Errors
    /// As [`Trainer::step`]; of other ranks only where all ranks make the same calls: with blocks that sum something over all virtual ranks, with
    /// [`Zero::Parameters`](crate::Zero::Parameters), and with [`Zero::Gradients`](crate::Zero::Gradients) where gradients are added up in any order.
    pub fn no_sync<B>(&mut self, batches: impl FnMut(u32) -> B) -> Result<(), TrainError>
    where
        B: IntoIterator<Item = (Input, O::Target)>,
    {
        let shares = shares(&self.objective, self.engine.virtual_ranks(), batches);
        let outcome = self.engine.accumulate(shares, self.plan(0.0));
        Ok(outcome.inspect_err(|error| self.comm.abort(error.to_string()))?)
    }

    /// One update at this learning rate, on what [`Trainer::no_sync`] has added up.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn sync_now(&mut self, rate: f32) -> Result<StepLoss, TrainError> {
        self.step(rate, |_| [])
    }

    fn progress(&self) -> ProgressSoFar {
        ProgressSoFar { steps: self.number, samples: self.samples, ..ProgressSoFar::default() }
    }

    /// Of the next step.
    fn plan(&self, rate: f32) -> StepPlan {
        StepPlan { number: self.number, epoch: self.epoch, rate }
    }

    /// Says that another epoch begins, which only [deep gradient compression](crate::compress::Compression::Dgc) asks for.
    pub fn next_epoch(&mut self) {
        self.epoch += 1;
    }

    /// Returns once all ranks have come here.
    ///
    /// # Errors
    /// When another rank is gone or late.
    pub fn barrier(&self) -> Result<(), CollectiveError> {
        self.comm.run(|collective| collective.barrier())
    }

    /// The model's output for an input, with its running numbers averaged over all virtual ranks; all ranks
    /// call it together.
    ///
    /// # Errors
    /// When another rank is gone or late.
    pub fn output(&mut self, input: Input) -> Result<Output, CollectiveError> {
        let running = self.engine.averaged_running()?;
        let output = self.engine.output(Some(parts_of(input)), &running)?;
        Ok(from_parts(output.expect("what goes in comes out")))
    }

    /// All parameters and averaged running numbers, the same on every rank, which compare them here.
    ///
    /// # Errors
    /// [`TrainError::Diverged`] if they are not, and as [`Trainer::step`].
    pub fn weights(&mut self) -> Result<Weights, TrainError> {
        compare(&self.comm, &self.engine.digests()?, &format!("after step {}", self.number))?;
        Ok(self.engine.weights()?)
    }
}

fn shares<'a, Input: TensorTree, Output: TensorTree, O: Objective<Output>, B>(
    objective: &'a O,
    virtual_ranks: Range<u32>,
    mut batches: impl FnMut(u32) -> B,
) -> Vec<Share<'a>>
where
    B: IntoIterator<Item = (Input, O::Target)>,
    O::Target: 'a,
{
    let micro_batch =
        |(input, target): (Input, O::Target)| MicroBatch::new(parts_of(input), objective, target);
    // Of an input without rows there is nothing to learn.
    let share = |virtual_rank| {
        let micro_batches = batches(virtual_rank).into_iter().map(micro_batch);
        micro_batches.filter(|micro_batch| micro_batch.rows() != Some(0)).collect()
    };
    virtual_ranks.map(share).collect()
}

impl<Input: TensorTree, Output: TensorTree, O: Objective<Output>> TrainerBuilder<Input, Output, O> {
    /// V: of how many micro-batches a step is made, on any ranks. The weights depend on it, and not on the
    /// number of ranks, which may be any up to V. Default the number of ranks.
    pub fn virtual_ranks(self, count: u32) -> Self {
        TrainerBuilder { virtual_ranks: Some(count), ..self }
    }

    /// How a gradient moves the weights. Default gradient descent with momentum 0.9.
    pub fn optimizer(self, rule: impl Into<Rule>) -> Self {
        TrainerBuilder { rule: rule.into(), ..self }
    }

    /// Brings a longer gradient, all blocks together, to this length. Default none.
    pub fn clip(mut self, length: f32) -> Self {
        self.rule.clip = Some(length);
        self
    }

    /// Freezes the parameters whose names match, besides those that the model has frozen itself
    /// ([`Chain::freeze`]): they have no gradient, no optimizer state, no weight decay and no update. Default none.
    pub fn freeze(self, patterns: impl IntoIterator<Item = NamePattern>) -> Self {
        TrainerBuilder { freeze: patterns.into_iter().collect(), ..self }
    }

    /// Of random numbers, and of first weights that blocks leave to the trainer. Default 0.
    pub fn seed(self, seed: u64) -> Self {
        TrainerBuilder { seed, ..self }
    }

    /// Where it is computed; the model and its inputs are there. Default the CPU.
    pub fn device(self, device: Device) -> Self {
        TrainerBuilder { device, ..self }
    }

    /// In how many bits forward and backward passes are computed; objectives are given 32, and weights have them. A block computes in the
    /// numbers it is given; where it makes tensors of its own, it makes them of the same. Default 32.
    pub fn precision(self, precision: Precision) -> Self {
        TrainerBuilder { precision, ..self }
    }

    /// With what gradients are multiplied at first in [`Precision::F16`]. Default 65,536.
    pub fn loss_scale(self, loss_scale: LossScale) -> Self {
        TrainerBuilder { loss_scale, ..self }
    }

    /// How much travels at once. Default 25 MiB, the first time 1 MiB.
    pub fn buckets(self, buckets: BucketSizes) -> Self {
        TrainerBuilder { buckets, ..self }
    }

    /// How gradients are added up. Default exactly: with the same bits on any number of ranks.
    pub fn reduction(self, reduction: Reduction) -> Self {
        TrainerBuilder { reduction, ..self }
    }

    /// In what numbers gradients are added up and travel; with 16 bits half as many bytes do, and the weights are still the same on any number of
    /// ranks. Default 32 bits.
    pub fn reduce_dtype(self, reduce_dtype: ReduceDtype) -> Self {
        TrainerBuilder { reduce_dtype, ..self }
    }

    /// The state that each rank keeps only a slice of ([`Zero`](crate::Zero)), and the size of its group
    /// ([`Slicing`]); nothing else changes. With [`Zero::Parameters`](crate::Zero::Parameters),
    /// [`Trainer::output`] and [`Trainer::weights`] gather all parameters for a while. Default nothing.
    pub fn zero(self, slicing: impl Into<Slicing>) -> Self {
        TrainerBuilder { slicing: slicing.into(), ..self }
    }

    /// Where checkpoints are kept, and from which of them it resumes; the same on all ranks. They are written
    /// as [`Trainer::keep`] gets the place of the source. Default none.
    pub fn checkpoints(self, checkpoints: Checkpoints, resume: Resume) -> Self {
        TrainerBuilder { checkpoints: Some((checkpoints, resume)), ..self }
    }

    /// By which it can be asked to stop ([`Trainer::keep`]); enough to raise that of one rank. Default by none.
    pub fn stop(self, stop: StopFlag) -> Self {
        TrainerBuilder { stop, ..self }
    }

    /// The trainer, once all ranks have the same weights.
    ///
    /// # Errors
    /// When there are more ranks than virtual ranks, ranks have other settings or models, or compute other bits, a block would compute other numbers elsewhere, there is a
    /// checkpoint of another training, a pattern freezes nothing or all of them everything, or another rank is gone or late.
    pub fn build(self) -> Result<Trainer<Input, Output, O>, TrainError> {
        self.precision.check(&self.device)?;
        let comm = Arc::new(Comm::new(self.collective));
        // Before anything that ranks do together by it.
        let checkpoints = self.checkpoints.as_ref().map(|(kept, resume)| {
            let Checkpoints { shelf, every_steps, every, keep } = kept;
            json!([shelf.run(), every_steps, every.is_some(), keep, format!("{resume:?}")])
        });
        agree_on(
            &comm,
            &json!({ "zero": [json!(self.slicing.zero), json!(self.slicing.group)], "checkpoints": checkpoints }),
        )?;
        let checkpoint = match &self.checkpoints {
            Some((kept, resume)) => {
                let (shelf, resume, slicing) = (kept.shelf.clone(), resume.clone(), self.slicing);
                comm.run(move |collective| Ok(load(collective, &shelf, &resume, slicing)))??
            }
            None => None,
        };
        let world = comm.world();
        let kept = checkpoint.as_ref().map(|checkpoint| checkpoint.manifest.virtual_ranks);
        let virtual_ranks = self.virtual_ranks.or(kept).unwrap_or(world);
        if world > virtual_ranks {
            return Err(TrainError::TooManyRanks { world, virtual_ranks });
        }
        let refusal =
            self.reduction.refusal(self.rule.optimizer).or(self.slicing.zero.refusal(self.reduction));
        if let Some(refusal) = refusal.or(self.reduce_dtype.refusal(self.reduction)) {
            return Err(TrainError::Reduction(refusal));
        }
        check_groups(self.slicing, &comm)?;
        let mut model = self.chain.into_model();
        model.freeze(&self.freeze).inspect_err(|error| comm.abort(error.to_string()))?;
        if let Some(objection) = model.objection() {
            return Err(TrainError::Block(objection));
        }
        let parameters: Vec<(&str, &[usize], f32)> =
            (model.stages.iter().flat_map(|stage| stage.parameters()))
                .map(|parameter| (parameter.name.as_str(), &parameter.shape[..], parameter.decay))
                .collect();
        let BucketSizes { first, others } = self.buckets;
        let settings = json!({
            "virtual ranks": virtual_ranks, "optimizer": self.rule.optimizer, "clipping": self.rule.clip, "seed": self.seed,
            "reduction": self.reduction, "buckets": [first, others], "precision": self.precision, "parameters": parameters, "zero": [json!(self.slicing.zero), json!(self.slicing.group)],
        });
        let mut settings = settings;
        if !self.freeze.is_empty() {
            settings["frozen"] = json!(model.frozen());
        }
        if self.reduce_dtype != ReduceDtype::F32 {
            settings["reduction in"] = json!(self.reduce_dtype);
        }
        if self.precision == Precision::F16 {
            settings["first loss scale"] = json!(self.loss_scale.factor());
        }
        let settings = kept_settings(&agree_on(&comm, &settings)?);
        agree_on_bits(&comm, self.device == Device::flex(), self.reduction == Reduction::Exact, true)?;
        if let Some(checkpoint) = &checkpoint {
            same_training(checkpoint, &settings, true, &comm)?;
        }
        let ranks = VirtualRanks { count: virtual_ranks, world };
        let (key, engine_comm) = (Key::new(self.seed), Arc::clone(&comm));
        let mut engine = Engine::blank(model, self.slicing, self.device, ranks, self.rule, key, engine_comm)
            .with_buckets(self.buckets)
            .with_reduction(self.reduction)
            .with_reduce_dtype(self.reduce_dtype)
            .with_precision(self.precision)
            .with_loss_scale(self.loss_scale);
        let (mut so_far, mut place) = (ProgressSoFar::default(), Place::default());
        let mut resumed = None;
        if let Some(mut checkpoint) = checkpoint {
            engine.resume(&mut checkpoint)?;
            resumed = checkpoint.resumed();
            (so_far, place) = (checkpoint.manifest.progress, checkpoint.manifest.place);
        } else {
            begin(&mut engine, self.seed, &comm)?;
        }
        compare(&comm, &engine.digests()?, "at the start")?;
        let checkpoints = self.checkpoints.map(|(checkpoints, _)| checkpoints);
        let run = checkpoints.as_ref().map(|it| it.shelf.run().to_string()).unwrap_or_default();
        let keeper =
            CheckpointManager::new(Arc::clone(&comm), ranks, self.slicing, checkpoints, self.stop, resumed);
        Ok(Trainer {
            engine,
            comm,
            objective: self.objective,
            number: so_far.steps,
            epoch: place.epoch,
            samples: so_far.samples,
            keeping: CheckpointSettings { keeper, run, settings, place },
            types: PhantomData,
        })
    }
}

#[cfg(test)]
mod tests;
