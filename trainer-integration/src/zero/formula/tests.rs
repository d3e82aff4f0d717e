//! The formulas: the paper's figures, laws, and real trainings.

use std::sync::Arc;
use std::time::Instant;

use burn::tensor::Device;
use proptest::prelude::*;

use super::*;
use crate::collective::spawn;
use crate::compress::Compression;
use crate::data::Samples;
use crate::engine::{Engine, StepPlan};
use crate::models::{InputShape, gpt};
use crate::profile;
use crate::random::Key;
use crate::reduce::{Comm, Reduction};
use crate::train::feed::share_of;
use crate::zero::Slicing;

#[test]
fn the_papers_example_comes_to_the_papers_figures() {
    for (zero, gigabytes) in Zero::ALL.into_iter().zip([120.0, 31.4, 16.6, 1.9]) {
        let found = states(7.5e9, 64, zero, Widths::PAPER) / 1e9;
        assert!((found - gigabytes).abs() <= 0.05, "{zero:?}: {found} of {gigabytes}");
    }
}

#[test]
fn the_blocks_of_a_gpt_are_those_of_the_model() {
    let size = GptSize { layers: 3, heads: 2, width: 24 };
    let model = gpt(17, 8, size, 0.0, &Device::flex()).into_model();
    assert_eq!(Transformer::gpt(17, 8, size).1, model.parameter_counts().collect::<Vec<_>>());
}

#[test]
fn a_guessed_transformer_has_as_many_parameters() {
    for parameters in [1e6, 125e6, 7.5e9, 175e9] {
        let Transformer { layers, width, .. } = Transformer::guess(parameters, 1_024);
        let found = 12.0 * layers as f64 * (width as f64).powi(2);
        assert!((found / parameters - 1.0).abs() < 0.02, "{found} of {parameters}");
    }
}

fn setting(blocks: &[usize], count: u32, world: u32, is_exact: bool) -> Setting {
    let widths = Widths::of(Optimizer::adam(0.0), Precision::F32);
    Setting::new(blocks, VirtualRanks { count, world }, None, is_exact, widths, BucketSizes::default())
}

proptest! {
    #[test]
    fn a_higher_stage_needs_no_more_but_its_buffers(
        blocks in prop::collection::vec(1usize..3_000_000, 1..12), world in 1u32..20, each in 1u32..6, is_exact: bool
    ) {
        let it = setting(&blocks, world * each, world, is_exact);
        let memory = Zero::ALL.map(|zero| it.memory(zero).all);
        let buckets = 4 * 2 * it.bucket;
        let of_blocks = 4 * (it.hosted + it.most_sent + 4) * it.block;
        prop_assert!(memory[1] <= memory[0]);
        prop_assert!(memory[2] <= memory[1] + buckets);
        prop_assert!(memory[3] <= memory[2] + of_blocks);
        for zero in Zero::ALL {
            let least = states(it.all as f64, world, zero, it.widths);
            prop_assert!(it.memory(zero).all as f64 >= least.floor(), "{:?}", zero);
        }
    }

    #[test]
    fn with_more_ranks_each_has_less_but_for_the_chunks_that_are_not_cut(
        blocks in prop::collection::vec(1usize..3_000_000, 1..12), world in 1u32..20, more in 1u32..20
    ) {
        let of = |world| setting(&blocks, world, world, true);
        let chunks = 16 * crate::optim::CHUNK * blocks.len();
        for zero in Zero::ALL {
            prop_assert!(of(world + more).memory(zero).all <= of(world).memory(zero).all + chunks);
            prop_assert!(of(world + more).wire(zero, true, 1).all() >= of(world).wire(zero, true, 1).all());
        }
    }

    #[test]
    fn what_is_sent_is_what_the_paper_says(length in 1usize..9_000_000, blocks in 4usize..40, world in 2u32..64, calls in 1u32..5) {
        let it = setting(&vec![length; blocks], world, world, true);
        let share = f64::from(world - 1) / f64::from(world) * 4.0 * it.all as f64;
        let shares = |zero, is_exact| it.wire(zero, is_exact, calls).all() / share;
        let calls = f64::from(calls);
        let spared = calls / blocks as f64;
        let close = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-9;
        for (zero, is_exact, expected) in [
            (Zero::Nothing, true, 2.0),
            (Zero::Moments, false, 2.0),
            (Zero::Gradients, true, 2.0),
            (Zero::Gradients, false, calls + 1.0),
            (Zero::Parameters, true, 2.0 * calls + 1.0 - spared),
            (Zero::Parameters, false, 3.0 * calls - spared),
        ] {
            prop_assert!(close(shares(zero, is_exact), expected), "{:?} {} {}", zero, is_exact, shares(zero, is_exact));
        }
    }
}

/// A training in which as many samples as `SAMPLES` are a micro-batch.
#[derive(Clone, Copy, Debug)]
struct Configuration {
    slicing: Slicing,
    ranks: VirtualRanks,
    optimizer: Optimizer,
    is_exact: bool,
    precision: Precision,
}

const SAMPLES: usize = 2;
const VOCABULARY: usize = 64;
const LENGTH: usize = 16;
const SIZE: GptSize = GptSize { layers: 6, heads: 4, width: 128 };
/// A bucket is a layer, or the embedding.
const SIZES: BucketSizes = BucketSizes { first: 1 << 10, others: 1 << 18 };

impl Configuration {
    fn new(stage: u8, (world, count): (u32, u32), optimizer: Optimizer) -> Configuration {
        let zero = Zero::ALL[usize::from(stage)];
        let ranks = VirtualRanks { count, world };
        Configuration { slicing: zero.into(), ranks, optimizer, is_exact: true, precision: Precision::F32 }
    }

    fn fast(self) -> Configuration {
        Configuration { is_exact: false, ..self }
    }

    fn bf16(self) -> Configuration {
        Configuration { precision: Precision::Bf16, ..self }
    }

    fn in_groups(self, size: u32) -> Configuration {
        let group = NonZeroU32::new(size);
        Configuration { slicing: Slicing { group, ..self.slicing }, ..self }
    }

    fn setting(&self) -> Setting {
        let blocks = Transformer::gpt(VOCABULARY, LENGTH, SIZE).1;
        let widths = Widths::of(self.optimizer, self.precision);
        Setting::new(&blocks, self.ranks, self.slicing.group, self.is_exact, widths, SIZES)
    }

    fn name(&self) -> String {
        let optimizer = format!("{:?}", self.optimizer).to_lowercase();
        let optimizer = optimizer.split(' ').next().unwrap_or_default();
        let reduction = if self.is_exact { "exact" } else { "fast" };
        let groups = self.slicing.group.map(|size| format!(", groups of {size}")).unwrap_or_default();
        let VirtualRanks { count, world } = self.ranks;
        let stage = self.slicing.zero;
        format!("{stage} | {world}, {count}{groups} | {optimizer}, {reduction}, {}", self.precision)
    }

    /// The most that a rank held in the last of a few steps, the bytes that a rank sent in it, on average, and seconds of the fastest.
    fn train(&self) -> (Usage, f64, f64) {
        let Configuration { slicing, ranks, optimizer, is_exact, precision } = *self;
        let device = Device::flex();
        let found = spawn(ranks.world, |collective| {
            let comm = Arc::new(Comm::new(Box::new(collective)));
            let model = gpt(VOCABULARY, LENGTH, SIZE, 0.0, &device).into_model();
            let weights = model.initial(5);
            let reduction = if is_exact { Reduction::Exact } else { Reduction::Fast(Compression::None) };
            let key = Key::new(0);
            let mut engine =
                Engine::blank(model, slicing, device.clone(), ranks, optimizer, key, Arc::clone(&comm))
                    .with_precision(precision)
                    .with_buckets(SIZES)
                    .with_reduction(reduction);
            weights.iter().enumerate().for_each(|(block, weights)| engine.begin_block(block, weights));
            let sent = || comm.run(|collective| Ok(collective.bytes_sent())).unwrap();
            let (mut before, mut fastest) = (0, f64::INFINITY);
            for number in 0..4 {
                (_, before) = (engine.most_memory(), sent());
                let share = |_| {
                    let token = |at: usize| at % VOCABULARY;
                    let features = (0..SAMPLES * LENGTH).map(|at| token(at) as f32).collect();
                    let labels = (0..SAMPLES * LENGTH).map(|at| token(at) as u32).collect();
                    share_of(Samples { features, labels }, InputShape::Tokens(LENGTH), &device)
                };
                let shares = ranks.of(comm.rank()).map(share).collect();
                let began = Instant::now();
                engine.step(shares, StepPlan { number, epoch: 0, rate: 0.01 }, |_| true).unwrap();
                engine.settle().unwrap();
                if number > 0 {
                    fastest = fastest.min(began.elapsed().as_secs_f64());
                }
            }
            (engine.most_memory(), sent() - before, fastest)
        });
        let most = found.iter().fold(Usage::default(), |most, (usage, ..)| most.with(*usage));
        let sent = found.iter().map(|(_, sent, _)| *sent as f64).sum::<f64>() / f64::from(ranks.world);
        let seconds = found.iter().map(|(.., seconds)| *seconds).fold(0.0, f64::max);
        (most, sent, seconds)
    }

    /// The time of a step where all ranks share the processors that the profile had for itself, and memory is
    /// the link.
    fn seconds(&self, setting: &Setting) -> f64 {
        let profile = profile::of_gpt(VOCABULARY, LENGTH, SIZE, SAMPLES, self.optimizer, self.precision);
        let profile = profile.unwrap();
        let zero = self.slicing.zero;
        let sample = if zero == Zero::Parameters { profile.sample_again_s } else { profile.sample_s };
        let update = profile.parameter_s * setting.moved(zero) as f64;
        f64::from(self.ranks.count) * SAMPLES as f64 * sample + f64::from(self.ranks.world) * update
    }
}

#[test]
fn trainings_come_to_what_was_predicted() {
    let megabytes = |usage: Usage| {
        let of_kinds = usage.by_kind().map(|(_, bytes)| format!("{:.2}", bytes as f64 / 1e6));
        of_kinds[..4].join(" + ")
    };
    println!(
        "| stage | ranks, virtual | how | predicted MB: weights + gradients + moments + gathered | held | predicted MB sent | sent | predicted ms | took |"
    );
    println!("|---|---|---|---|---|--:|--:|--:|--:|");
    for configuration in [
        Configuration::new(0, (2, 2), Optimizer::sgd(0.0)),
        Configuration::new(0, (2, 8), Optimizer::adam(0.0)),
        Configuration::new(0, (1, 2), Optimizer::sgd(0.0)),
        Configuration::new(0, (2, 4), Optimizer::sgd(0.0)),
        Configuration::new(0, (1, 16), Optimizer::sgd(0.0)),
        Configuration::new(0, (2, 2), Optimizer::adam(0.0)).bf16(),
        Configuration::new(1, (4, 4), Optimizer::adam(0.0)),
        Configuration::new(1, (4, 4), Optimizer::adam(0.0)).bf16().in_groups(2),
        Configuration::new(2, (2, 4), Optimizer::adamw(0.0)),
        Configuration::new(2, (1, 16), Optimizer::sgd(0.0)),
        Configuration::new(2, (4, 8), Optimizer::sgd(0.0)),
        Configuration::new(3, (2, 8), Optimizer::sgd(0.0)),
        Configuration::new(3, (4, 8), Optimizer::sgd(0.0)),
        Configuration::new(3, (1, 4), Optimizer::sgd(0.0)),
        Configuration::new(2, (4, 4), Optimizer::lion(0.0)).fast(),
        Configuration::new(3, (4, 4), Optimizer::adamw(0.0)),
        Configuration::new(3, (2, 4), Optimizer::sgd(0.0)).fast(),
        Configuration::new(3, (4, 4), Optimizer::adamw(0.0)).bf16().in_groups(2),
    ] {
        let zero = configuration.slicing.zero;
        let setting = configuration.setting();
        let (predicted, wire) = (setting.memory(zero), setting.wire(zero, configuration.is_exact, 1).all());
        let (usage, sent, took) = configuration.train();
        let name = configuration.name();
        println!(
            "| {name} | {} | {} | {:.2} | {:.2} | {:.0} | {:.0} |",
            megabytes(predicted),
            megabytes(usage),
            wire / 1e6,
            sent / 1e6,
            1e3 * configuration.seconds(&setting),
            1e3 * took,
        );
        for ((kind, predicted), (_, found)) in predicted.by_kind().into_iter().zip(usage.by_kind()) {
            let (predicted, found) = (predicted as f64, found as f64);
            // Buckets and blocks are not all as large as the largest; slices are counted to the number.
            let padding = 4.0 * 1024.0 * 8.0;
            // Sums travel while others are computed, and may be away before the last slice is there.
            let slice = match (kind, zero) {
                ("gradients", Zero::Parameters) if setting.sums > 1 => 4.0 * 2.0 * setting.block as f64,
                ("gradients", _) if setting.is_exact && setting.hosted == 2 => {
                    4.0 * 2.0 * setting.bucket as f64
                }
                ("gradients", Zero::Parameters) => 4.0 * setting.block as f64 / f64::from(setting.group),
                _ => 0.0,
            };
            let within = predicted - slice - padding..=predicted + padding;
            assert!(
                (within.start() - 0.02 * predicted..=within.end() + 0.02 * predicted).contains(&found),
                "{kind}: {found} of {predicted}: {name}"
            );
        }
        assert!((sent - wire).abs() <= 0.02 * wire, "{sent} bytes sent of {wire}: {name}");
    }
}
