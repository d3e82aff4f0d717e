//! The trainer: its engine beside a plain loop, and steps of two ranks on a slow link beside steps of one.

use std::time::Duration;

use anyhow::Result;
use burn::tensor::Device;
use shardd_benches::link::{self, LinkSpeed, Links, Shaped, Usage};
use shardd_benches::pairs::{Pair, Pairs};
use shardd_benches::plain_burn::{Plain, classes, floats};
use shardd_benches::stepper::Stepper;
use shardd_benches::timed::TimedModel;
use shardd_benches::together::{Together, Way};
use shardd_trainer::buckets::BucketSizes;
use shardd_trainer::collective::{slice_of, threads};
use shardd_trainer::models::Mlp;
use shardd_trainer::{CrossEntropy, Optimizer, Trainer, Zero};

const RATE: f32 = 1e-3;
const RANKS: u32 = 2;

/// A step of a perceptron with AdamW, beside a step of a plain loop of burn over the same modules.
pub(crate) fn engine(pairs: &Pairs) -> Result<Pair> {
    let mut widths = vec![256; 26];
    widths.push(10);
    let model = Mlp::new(&widths, &Device::flex());
    let mut plain = Plain::new(model.clone(), RATE);
    let alone = threads::world(1, Duration::from_secs(60)).remove(0);
    let mut trainer = Trainer::new(model.into_chain(), CrossEntropy, Box::new(alone))
        .optimizer(Optimizer::adamw(0.01))
        .build()?;
    let labels = classes(32, 10);
    let step = || {
        let mut micro_batch = Some((floats([32, 256]), labels.clone()));
        trainer.step(RATE, |_| micro_batch.take()).expect("no other rank")
    };
    Ok(pairs.measure(step, || plain.step(floats([32, 256]), &labels)))
}

/// Blocks that take a set time by waiting, as on an accelerator; gradients, sums and updates are real.
const TIMED: TimedModel = TimedModel { blocks: 10, block_len: 1 << 18, forward: Duration::from_millis(10) };

/// A step of two ranks in ten buckets, beside a step of each rank alone.
pub(crate) fn overlap(pairs: &Pairs) -> Result<Pair> {
    two_ranks(pairs, Zero::Nothing)
}

/// The same in stage 3 of ZeRO, which goes forward twice and gathers weights.
pub(crate) fn zero(pairs: &Pairs) -> Result<Pair> {
    two_ranks(pairs, Zero::ALL[3])
}

/// Steps of two ranks, whose link is in use for half as long as the blocks compute, beside steps of each rank alone.
fn two_ranks(pairs: &Pairs, zero: Zero) -> Result<Pair> {
    let links = Links::default();
    let travels = slice_of(TIMED.bytes(), 0, RANKS).len() * 2 * (RANKS as usize - 1);
    let bytes_per_s = travels as f64 / (TIMED.time().as_secs_f64() / 2.0);
    links.set(Some(LinkSpeed { bytes_per_s, latency: Duration::ZERO }));
    let rank = |(end, usage): (Shaped, Usage)| {
        move || -> Vec<Way> {
            let bucket = TIMED.bytes() / TIMED.blocks;
            let buckets = BucketSizes { first: bucket, others: bucket };
            let mut together = Stepper::new(TIMED.model(), zero, buckets, Box::new(end), usage);
            let alone = threads::world(1, Duration::from_secs(60)).remove(0);
            let mut alone =
                Stepper::new(TIMED.model(), Zero::Nothing, buckets, Box::new(alone), Usage::default());
            let step = |stepper: &mut Stepper| {
                stepper.steps(1, || TIMED.micro_batch()).expect("both ranks continue");
            };
            vec![Box::new(move || step(&mut together)), Box::new(move || step(&mut alone))]
        }
    };
    let ranks = Together::start(link::world(RANKS, &links).into_iter().map(rank));
    Ok(pairs.measure(|| ranks.step(0), || ranks.step(1)))
}
