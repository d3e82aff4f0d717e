//! A model whose passes take a set time, as an accelerator's would, and leave the processor to others meanwhile: so the ranks of a machine with few
//! cores do not compute in each other's way. Parameters, gradients, sums and updates are real.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use burn::tensor::{Device, Gradients, Tensor};
use shardd_trainer::block::Pass;
use shardd_trainer::engine::MicroBatch;
use shardd_trainer::flat_block::{FlatBlock, Loaded, Use};
use shardd_trainer::loss::{Losses, Measured};
use shardd_trainer::model::Model;
use shardd_trainer::tensor_tree::Part;
use shardd_trainer::weights::{Buffer, Init, Parameter};

/// Numbers that go in, and through all blocks.
const WIDTH: usize = 16;

/// How large a timed model is, and how long a micro-batch takes in it.
#[derive(Clone, Copy, Debug)]
pub struct TimedModel {
    /// Blocks of equal size.
    pub blocks: usize,
    /// Numbers of each.
    pub block_len: usize,
    /// Of all blocks together; half as long as their backward pass.
    pub forward: Duration,
}

impl TimedModel {
    /// Bytes of its parameters.
    pub fn bytes(self) -> usize {
        self.blocks * self.block_len * size_of::<f32>()
    }

    /// How long a micro-batch takes, forward and backward.
    pub fn time(self) -> Duration {
        3 * self.forward
    }

    /// The model.
    pub fn model(self) -> Model {
        let block = |index| -> Box<dyn FlatBlock> {
            Box::new(TimedStage {
                parameters: vec![parameter(&format!("{index}"), self.block_len)],
                forward: self.forward / self.blocks as u32,
            })
        };
        Model { stages: (0..self.blocks).map(block).collect() }
    }

    /// A micro-batch of one sample.
    pub fn micro_batch(self) -> MicroBatch<'static> {
        let device = Device::flex();
        let measure = |_: Vec<Part>, _: Range<usize>, _: usize| {
            let gradient = Tensor::<1>::zeros([WIDTH], &Device::flex());
            let losses = Losses::Here { sum: 1.0, correct: 0 };
            Measured { losses, samples: 1, gradient: vec![Some(gradient)] }
        };
        let input = vec![Part::floats(vec![1.0; WIDTH], &[1, WIDTH], &device)];
        MicroBatch { input, measure: Box::new(measure), is_divisible: false }
    }
}

fn parameter(block: &str, length: usize) -> Parameter {
    let init = Some(Init::Zeros);
    Parameter { name: format!("{block}.weight"), shape: vec![length], init, decay: 1.0, is_trained: true }
}

#[derive(Debug)]
struct TimedStage {
    parameters: Vec<Parameter>,
    forward: Duration,
}

impl FlatBlock for TimedStage {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn buffers(&self) -> &[Buffer] {
        &[]
    }

    fn summary_len(&self) -> usize {
        0
    }

    fn initial(&self, _seed: u64) -> Vec<f32> {
        vec![0.0; self.parameters[0].len()]
    }

    fn objection(&self) -> Option<String> {
        None
    }

    fn forget_initial(&mut self) {}

    fn load(&self, _parameters: &[Tensor<1>], _buffers: &[Tensor<1>], _used: Use) -> Box<dyn Loaded> {
        let trained = self.parameters.iter().filter(|parameter| parameter.is_trained);
        Box::new(TimedPass { length: trained.map(Parameter::len).sum(), forward: self.forward })
    }

    fn decay(&mut self, of: &dyn Fn(&str, &[usize]) -> f32) {
        for Parameter { name, shape, decay, .. } in &mut self.parameters {
            *decay = of(name, shape);
        }
    }

    fn freeze(&mut self, is_frozen: &dyn Fn(&str) -> bool) {
        for Parameter { name, is_trained, .. } in &mut self.parameters {
            *is_trained &= !is_frozen(name);
        }
    }

    fn rename(&mut self, name: &str) {
        self.parameters = vec![parameter(name, self.parameters[0].len())];
    }
}

#[derive(Debug)]
struct TimedPass {
    length: usize,
    forward: Duration,
}

impl Loaded for TimedPass {
    fn forward(&self, input: Vec<Part>, _pass: &mut Pass) -> Vec<Part> {
        thread::sleep(self.forward);
        input
    }

    fn summarise(&self, _input: Vec<Part>) -> Tensor<1> {
        unreachable!("a timed block has no summary")
    }

    fn take_gradient(&self, _found: Option<&mut Gradients>, into: &mut Vec<f32>) {
        thread::sleep(2 * self.forward);
        into.resize(into.len() + self.length, 1e-3);
    }

    fn take_gradient_there(&self, _found: Option<&mut Gradients>, _into: &mut Vec<Tensor<1>>) {
        unreachable!("its gradients are on the host")
    }

    fn buffers(&self) -> Vec<Tensor<1>> {
        Vec::new()
    }
}
