//! An engine, step by step, on a link whose use is counted.

use std::sync::Arc;

use burn::tensor::Device;
use shardd_trainer::buckets::BucketSizes;
use shardd_trainer::collective::Collective;
use shardd_trainer::engine::{Engine, EngineError, MicroBatch, StepPlan};
use shardd_trainer::model::Model;
use shardd_trainer::random::Key;
use shardd_trainer::reduce::{Comm, VirtualRanks};
use shardd_trainer::{Optimizer, Slicing};

use crate::link::Usage;
use crate::turns::{StepFigures, growth};

/// One rank of a training by plain gradient descent.
#[derive(Debug)]
pub struct Stepper {
    engine: Engine,
    usage: Usage,
    number: u64,
}

impl Stepper {
    /// The rank at this end of a link.
    pub fn new(
        model: Model,
        slicing: impl Into<Slicing>,
        buckets: BucketSizes,
        end: Box<dyn Collective>,
        usage: Usage,
    ) -> Stepper {
        let ranks = VirtualRanks { count: end.world(), world: end.world() };
        let (comm, weights) = (Arc::new(Comm::new(end)), model.initial(0));
        let (rule, key) = (Optimizer::sgd(0.0), Key::new(0));
        let mut engine =
            Engine::blank(model, slicing, Device::flex(), ranks, rule, key, comm).with_buckets(buckets);
        weights.iter().enumerate().for_each(|(block, weights)| engine.begin_block(block, weights));
        Stepper { engine, usage, number: 0 }
    }

    /// Takes `count` steps one after the other, to the end of their background work: figures of one.
    ///
    /// # Errors
    /// When another rank is gone.
    pub fn steps(
        &mut self,
        count: u32,
        micro_batch: impl Fn() -> MicroBatch<'static>,
    ) -> Result<StepFigures, EngineError> {
        let usage = self.usage.clone();
        let (link_s, steps) = growth(
            || usage.total(),
            || {
                (0..count).try_for_each(|_| self.step(micro_batch()).map(drop))?;
                Ok(self.engine.settle()?)
            },
        );
        steps.map(|()| StepFigures { link_s, ..StepFigures::default() })
    }

    /// Takes a step: how long the link was in use, and how long there was nothing to do but wait for it at the end.
    ///
    /// # Errors
    /// When another rank is gone.
    pub fn step(&mut self, micro_batch: MicroBatch<'static>) -> Result<StepFigures, EngineError> {
        let plan = StepPlan { number: self.number, epoch: 0, rate: 1e-3 };
        self.number += 1;
        let usage = self.usage.clone();
        let (link_s, step) =
            growth(|| usage.total(), || self.engine.step(vec![vec![micro_batch]], plan, |_| true));
        step?;
        let waited_s = self.engine.reducing().as_secs_f64();
        Ok(StepFigures { link_s, waited_s, ..StepFigures::default() })
    }
}
