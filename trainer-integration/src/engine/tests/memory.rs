//! Micro-batches for which a device has no memory. Such a device is a stage here that fails as one does: by a panic, in whichever pass it is.

use std::cell::Cell;

use burn::tensor::Gradients;

use super::*;
use crate::flat_block::{FlatBlock, Loaded, Use};
use crate::weights::{Buffer, Parameter};

/// In which pass the memory is at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Forward,
    Backward,
}

/// A stage on a device that holds at most a number of rows.
#[derive(Debug)]
struct Tight {
    stage: Box<dyn FlatBlock>,
    most: usize,
    at: At,
}

impl FlatBlock for Tight {
    fn parameters(&self) -> &[Parameter] {
        self.stage.parameters()
    }

    fn buffers(&self) -> &[Buffer] {
        self.stage.buffers()
    }

    fn summary_len(&self) -> usize {
        self.stage.summary_len()
    }

    fn initial(&self, seed: u64) -> Vec<f32> {
        self.stage.initial(seed)
    }

    fn forget_initial(&mut self) {
        self.stage.forget_initial();
    }

    fn objection(&self) -> Option<String> {
        self.stage.objection()
    }

    fn load(&self, parameters: &[Tensor<1>], buffers: &[Tensor<1>], used: Use) -> Box<dyn Loaded> {
        let loaded = self.stage.load(parameters, buffers, used);
        Box::new(TightLoaded { loaded, most: self.most, at: self.at, rows: Cell::new(0) })
    }

    fn rename(&mut self, name: &str) {
        self.stage.rename(name);
    }

    fn decay(&mut self, share: &dyn Fn(&str, &[usize]) -> f32) {
        self.stage.decay(share);
    }

    fn freeze(&mut self, is_frozen: &dyn Fn(&str) -> bool) {
        self.stage.freeze(is_frozen);
    }
}

#[derive(Debug)]
struct TightLoaded {
    loaded: Box<dyn Loaded>,
    most: usize,
    at: At,
    rows: Cell<usize>,
}

impl TightLoaded {
    fn needs_memory(&self, at: At) {
        assert!(at != self.at || self.rows.get() <= self.most, "out of device memory allocating 1 bytes");
    }
}

impl Loaded for TightLoaded {
    fn forward(&self, input: Vec<Part>, pass: &mut Pass) -> Vec<Part> {
        self.rows.set(input[0].shape()[0]);
        self.needs_memory(At::Forward);
        self.loaded.forward(input, pass)
    }

    fn summarise(&self, input: Vec<Part>) -> Tensor<1> {
        self.loaded.summarise(input)
    }

    fn take_gradient(&self, found: Option<&mut Gradients>, into: &mut Vec<f32>) {
        self.needs_memory(At::Backward);
        self.loaded.take_gradient(found, into);
    }

    fn take_gradient_there(&self, found: Option<&mut Gradients>, into: &mut Vec<Tensor<1>>) {
        self.needs_memory(At::Backward);
        self.loaded.take_gradient_there(found, into);
    }

    fn buffers(&self) -> Vec<Tensor<1>> {
        self.loaded.buffers()
    }
}

/// The model, with its first block on a device that holds `most` rows.
fn tight(mut model: Model, most: usize, at: At) -> Model {
    let stage = model.stages.remove(0);
    model.stages.insert(0, Box::new(Tight { stage, most, at }));
    model
}

/// Three layers, each a bucket, with weights that are always the same; the first on a device that holds `most` rows.
fn layers(most: usize, at: At) -> Model {
    tight(conv_net([1, 8, 8], 10, Norm::Group, 0.0, &Device::flex()).into_model(), most, at)
}

/// The outcome of two virtual ranks with two micro-batches each: losses, answers, and how each number moves.
fn step(
    most: usize,
    at: At,
    reduction: Reduction,
) -> Result<(StepLoss, Vec<f32>, Option<usize>), EngineError> {
    let ranks = VirtualRanks { count: 2, world: 1 };
    let sizes = BucketSizes { first: 1, others: 1 };
    let mut engine =
        engine(layers(most, at), ranks, PLAIN, &alone()).with_reduction(reduction).with_buckets(sizes);
    let before = engine.parameters().unwrap().concat();
    let shares = (0..2).map(|seed| [share(16, seed), share(11, seed + 7)].into_iter().flatten().collect());
    let loss = engine.step(shares.collect(), plan(0), |_| true)?;
    let moved =
        before.iter().zip(engine.parameters().unwrap().concat()).map(|(before, after)| before - after);
    Ok((loss, moved.collect(), engine.most_rows()))
}

#[test]
fn a_micro_batch_is_cut_until_its_pieces_fit_and_gives_the_same_gradient() {
    let fast = Reduction::Fast(Compression::None);
    let (whole, expected, _) = step(16, At::Forward, fast).unwrap();
    for at in [At::Forward, At::Backward] {
        for most in [1, 3, 8, 15] {
            let (loss, moved, most_rows) = step(most, at, fast).unwrap();
            assert!(most_rows.is_some_and(|rows| rows <= most), "{most_rows:?} of {most}");
            assert_eq!((loss.samples, loss.correct), (whole.samples, whole.correct));
            assert!((loss.sum - whole.sum).abs() < 1e-4 * whole.sum, "{} and {}", loss.sum, whole.sum);
            assert_close(&moved, &expected, 1e-4);
        }
    }
}

#[test]
fn what_cannot_be_cut_is_an_error_with_the_way_out() {
    let exact = step(8, At::Backward, Reduction::Exact).unwrap_err().to_string();
    assert!(exact.contains("no memory for 16 rows") && exact.contains("--reduce fast"), "{exact}");
    let single = step(0, At::Forward, Reduction::Fast(Compression::None)).unwrap_err().to_string();
    assert!(single.contains("no memory for 1 rows at once") && !single.contains("--reduce"), "{single}");
}

#[test]
fn so_is_what_goes_through_the_blocks_side_by_side() {
    let ranks = VirtualRanks { count: 2, world: 1 };
    let shares = || (0..2).map(|seed| share(16, seed)).collect();
    let message = |mut engine: Engine| {
        let before = engine.running_numbers();
        let message = engine.step(shares(), plan(0), |_| true).unwrap_err().to_string();
        assert_eq!(engine.running_numbers(), before);
        message
    };
    let tight = |norm| tight(model(norm), 8, At::Forward);
    let summing = engine(tight(Norm::Sync), ranks, PLAIN, &alone());
    let weights = model(Norm::Batch).initial(5);
    let blank = Engine::blank(
        tight(Norm::Batch),
        Zero::Parameters,
        Device::flex(),
        ranks,
        PLAIN,
        Key::new(0),
        alone(),
    );
    for message in [message(summing), message(zero::with_weights(blank, &weights))] {
        assert!(message.contains("no memory for 32 rows") && message.contains("more ranks"), "{message}");
    }
}

#[test]
fn other_panics_are_passed_on() {
    let panic = std::panic::catch_unwind(|| {
        let ranks = VirtualRanks { count: 1, world: 1 };
        let mut engine = engine(model(Norm::Group), ranks, PLAIN, &alone());
        let measure = Box::new(|_: Vec<Part>, _: Range<usize>, _: usize| -> Measured { panic!("a bug") });
        let input = share(4, 1).remove(0).input;
        let _ = engine.step(vec![vec![MicroBatch { input, measure, is_divisible: true }]], plan(0), |_| true);
    });
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"a bug"));
}
