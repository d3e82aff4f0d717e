//! What a training needs, before there is one: bytes that a rank holds and bytes that it sends, by stage. Pure.
//!
//! The paper's table (Rajbhandari et al., SC 2020, figure 1) is [`states`]: what must be somewhere.
//! [`Setting::memory`] and [`Setting::wire`] describe the engine, with its buffers and its slices as they are
//! cut; they equal the peak of a [`Ledger`](crate::ledger::Ledger) and the bytes sent. Activations are an
//! estimate ([`Transformer`]).

use std::num::NonZeroU32;

use serde::Serialize;

use crate::buckets::{BucketSizes, Buckets};
use crate::device::Precision;
use crate::ledger::Usage;
use crate::models::GptSize;
use crate::optim::Optimizer;
use crate::reduce::VirtualRanks;
use crate::zero::Zero;
use crate::zero::slices::Owners;

/// Bytes for each parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Widths {
    /// Of the parameter that is moved; sliced from stage 3, and from stage 1 where there are copies.
    pub weights: usize,
    /// Of its gradient; sliced from stage 2.
    pub gradients: usize,
    /// Of all that the optimizer keeps for it; sliced from stage 1.
    pub moments: usize,
    /// Of a copy to compute with, where that is in other numbers, or 0; of all parameters before stage 3.
    pub copies: usize,
}

impl Widths {
    /// Of the paper: parameters and gradients in 16 bits, and with Adam a copy and two moments in 32.
    pub const PAPER: Widths = Widths { weights: 2, gradients: 2, moments: 12, copies: 0 };

    /// Of this trainer on a CPU: all that stays has 32 bits, and computed values have those of the precision.
    pub fn of(optimizer: Optimizer, precision: Precision) -> Widths {
        let moments = match optimizer {
            Optimizer::Sgd { .. } | Optimizer::Lion { .. } | Optimizer::Lars { .. } => 1,
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } | Optimizer::Lamb { .. } => 2,
        };
        let copies = if precision == Precision::F32 { 0 } else { precision.bytes() };
        Widths { weights: 4, gradients: 4, moments: 4 * moments, copies }
    }

    /// From which stage on a rank keeps slices of the weights.
    fn weights_from(self) -> Zero {
        if self.copies == 0 { Zero::Parameters } else { Zero::Moments }
    }

    /// Of a parameter as it is computed with and travels.
    fn computed(self) -> usize {
        if self.copies == 0 { self.weights } else { self.copies }
    }
}

/// Bytes of a number of parameters, with their gradients and moments, on each of a number of ranks: the table
/// of the paper. Buffers come on top.
pub fn states(parameters: f64, world: u32, zero: Zero, widths: Widths) -> f64 {
    let share = |from| if zero >= from { 1.0 / f64::from(world) } else { 1.0 };
    let copies = if zero == Zero::Parameters { 0 } else { widths.copies };
    let each = widths.weights as f64 * share(widths.weights_from())
        + widths.gradients as f64 * share(Zero::Gradients)
        + widths.moments as f64 * share(Zero::Moments)
        + copies as f64;
    each * parameters
}

/// A model whose parameters are all trained, and who trains it how.
#[derive(Clone, Debug)]
pub struct Setting {
    widths: Widths,
    world: u32,
    /// How many ranks share the numbers.
    group: u32,
    /// Parameters.
    all: usize,
    /// Of the largest block, and of the last.
    block: usize,
    last: usize,
    /// Of the largest bucket, and of the one that is complete last.
    bucket: usize,
    final_bucket: usize,
    /// Numbers that the first two buckets do not fill of the memory of the largest, which they may get where buckets do not outlive their sums.
    unfilled: usize,
    /// At most in the slices of a rank.
    slices: usize,
    /// Virtual ranks of a rank, at most.
    hosted: usize,
    is_exact: bool,
    /// Numbers of 32 bits that a sum over several virtual ranks of a rank takes: one, or two where it is exact.
    sums: usize,
    /// Numbers of 32 bits that a rank sends for each of its gradient, on average and at most.
    sent: f64,
    most_sent: usize,
    /// Whether checkpoints are kept.
    is_kept: bool,
}

/// The bytes a rank sends in a step, on average over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Wire {
    /// Bytes of gradients.
    pub gradients: f64,
    /// Bytes of parameters.
    pub parameters: f64,
}

impl Wire {
    /// Bytes.
    pub fn all(self) -> f64 {
        self.gradients + self.parameters
    }
}

impl Setting {
    /// For blocks of these numbers of parameters, whose slices all ranks share, or groups of this size.
    ///
    /// # Panics
    /// If the world is larger than the number of virtual ranks, or does not form such groups.
    pub fn new(
        blocks: &[usize],
        ranks: VirtualRanks,
        group: Option<NonZeroU32>,
        is_exact: bool,
        widths: Widths,
        sizes: BucketSizes,
    ) -> Setting {
        let world = ranks.world;
        let group = group.map_or(world, NonZeroU32::get);
        assert!(world.is_multiple_of(group), "groups of {group} in a world of {world}");
        let owners = Owners { count: group };
        let slices_of = |place| {
            let slices =
                blocks.iter().enumerate().map(|(block, &length)| owners.slice(block, length, place).len());
            slices.sum::<usize>()
        };
        let buckets = Buckets::new(blocks.to_vec(), sizes);
        let lengths: Vec<usize> = (0..buckets.count()).map(|bucket| buckets.len(bucket)).collect();
        let hosted: Vec<usize> = (0..world).map(|rank| ranks.of(rank).len()).collect();
        let width = |hosted: &usize| if is_exact && *hosted > 1 { 2 } else { 1 };
        let most_sent = hosted.iter().map(width).max().unwrap_or(1);
        let sent: usize = hosted.iter().map(width).sum();
        let bucket = lengths.iter().copied().max().unwrap_or(0);
        Setting {
            widths,
            world,
            group,
            all: blocks.iter().sum(),
            block: blocks.iter().copied().max().unwrap_or(0),
            last: blocks.last().copied().unwrap_or(0),
            bucket,
            unfilled: lengths.iter().take(2).map(|length| bucket - length).sum(),
            final_bucket: lengths.last().copied().unwrap_or(0),
            slices: (0..group).map(slices_of).max().unwrap_or(0),
            hosted: hosted.into_iter().max().unwrap_or(0),
            is_exact,
            sums: most_sent,
            sent: sent as f64 / f64::from(world),
            most_sent,
            is_kept: false,
        }
    }

    /// Of a training that keeps checkpoints, for which each rank copies its part of weights and moments.
    #[must_use]
    pub fn with_checkpoints(self, is_kept: bool) -> Setting {
        Setting { is_kept, ..self }
    }

    /// Parameters.
    pub fn parameters(&self) -> usize {
        self.all
    }

    /// Parameters that a rank moves, at most.
    pub fn moved(&self, zero: Zero) -> usize {
        if zero == Zero::Nothing { self.all } else { self.slices }
    }

    /// The most bytes of the model's numbers that a rank holds at once. `all` adds up the kinds, as if they had their peaks together.
    ///
    /// Gradients: without slices, their sum over the virtual ranks so far, which takes twice the memory of a gradient where it is exact, and
    /// a bucket of the one under way, or two; with slices, at stage 2 at least two buckets besides the slices; at stage 3 a block of each virtual rank, and of the sums that are on their way,
    /// which may be away before the last slice is there: what a rank holds may be less by that.
    pub fn memory(&self, zero: Zero) -> Usage {
        let Widths { weights, gradients, moments, copies } = self.widths;
        let computed = self.widths.computed();
        // What is rounded takes the place of whole sums, once others have their parts of these.
        let rounded = if self.is_exact && self.world == 1 { self.bucket } else { self.apart(self.bucket) };
        let waiting = match self.hosted {
            0..=1 => self.all + self.apart(self.bucket),
            // The first virtual rank's numbers become sums bucket by bucket, which leave at once.
            2 if self.is_exact => self.all + 5 * self.bucket,
            _ => self.sums * self.all + self.bucket + rounded,
        };
        let numbers = match zero {
            Zero::Nothing | Zero::Moments => waiting,
            Zero::Gradients => {
                let two = self.slices + 2 * self.bucket.min(self.all) + self.apart(self.bucket);
                let unfilled = if self.is_exact { 0 } else { self.unfilled };
                if self.hosted > 1 { (waiting + unfilled).max(two) } else { two }
            }
            // The whole sum of a block is made while that of the block before is on its way, or rounded.
            Zero::Parameters if self.sums > 1 => self.slices + (self.hosted + 4) * self.block,
            Zero::Parameters => {
                self.slices + (self.hosted + self.most_sent).max(2) * self.block + self.apart(self.block)
            }
        };
        let usage = Usage {
            // A copy of all of them stays where the weights themselves do not.
            weights: match zero {
                Zero::Nothing => weights * self.all,
                Zero::Moments | Zero::Gradients if copies > 0 => copies * self.all + weights * self.slices,
                Zero::Moments | Zero::Gradients => weights * self.all,
                Zero::Parameters => weights * self.slices,
            },
            gradients: gradients * numbers,
            moments: moments * self.moved(zero),
            gathered: match zero {
                Zero::Nothing => copies * self.all,
                Zero::Moments | Zero::Gradients => 0,
                Zero::Parameters => 2 * computed * self.block,
            },
            copies: match self.is_kept {
                true => (size_of::<f32>() + moments) * self.all.div_ceil(self.world as usize),
                false => 0,
            },
            all: 0,
        };
        Usage { all: usage.by_kind().iter().map(|(_, bytes)| bytes).sum(), ..usage }
    }

    /// Numbers of 32 bits in the whole sums of a bucket's parts that a rank adds up, besides the bucket: none where all bring the numbers of
    /// one virtual rank, which are added a piece at a time.
    fn apart(&self, bucket: usize) -> usize {
        let (world, group) = (self.world as usize, self.group as usize);
        match (self.is_exact, self.is_grouped(), self.sums) {
            (true, true, _) => 2 * bucket.div_ceil(group) + 2 * bucket.div_ceil(world),
            (true, false, 2..) if world > 1 => 2 * bucket.div_ceil(world),
            _ => 0,
        }
    }

    /// Whether groups add up their own numbers first.
    fn is_grouped(&self) -> bool {
        self.group > 1 && self.group < self.world
    }

    /// The bytes a rank sends in a step of a number of calls, of which all but the last accumulate; a step of
    /// `shardtrain` is one call.
    ///
    /// Added up exactly, nothing is sent before a step is complete, and a rank with several virtual ranks sends sums of twice the bytes. Each rank adds up a part of the numbers and sends the sums to those that keep them: to all at stage 0, to one of each other group from stage 1. Parameters
    /// travel inside groups; at stage 3 they are gathered twice in every call, those of the last block once.
    pub fn wire(&self, zero: Zero, is_exact: bool, calls: u32) -> Wire {
        let share = |count: u32| f64::from(count - 1) / f64::from(count);
        let (calls, all) = (f64::from(calls), self.all as f64);
        let is_sent_at_once = !is_exact && zero >= Zero::Gradients;
        let times = if is_sent_at_once { calls } else { self.sent };
        let sums = if is_exact && self.is_grouped() && zero != Zero::Nothing {
            // Sums leave a group in whole numbers.
            share(self.group) * times + 2.0 * share(self.world / self.group) / f64::from(self.group)
        } else {
            share(self.world) * times
        };
        let (spread, gathered) = match zero {
            Zero::Nothing => (share(self.world), 0.0),
            Zero::Moments | Zero::Gradients => (self.replicated(), all),
            Zero::Parameters => (self.replicated(), calls * (2.0 * all - self.last as f64)),
        };
        let spread = if is_sent_at_once { calls * spread } else { spread };
        Wire {
            gradients: (sums + spread) * all * self.widths.gradients as f64,
            parameters: share(self.group) * gathered * self.widths.computed() as f64,
        }
    }

    /// How many numbers of the sums a rank sends to those that keep the same, of one for each parameter.
    fn replicated(&self) -> f64 {
        f64::from(self.world / self.group - 1) / f64::from(self.world)
    }

    /// How many of a step's seconds nothing is computed: because of a link of this speed in bytes per second,
    /// while a micro-batch takes this time forward and back.
    ///
    /// An estimate. Up to stage 2 gradients travel while the last virtual rank goes back, two thirds of its
    /// time, all but the bucket that is complete last, and the weights gathered after an update while the
    /// next step goes forward, but for the first block's. At stage 3 all travels while others are computed,
    /// but for the first block's parameters and its gradient.
    pub fn exposed(&self, zero: Zero, wire: Wire, link: f64, micro_batch: f64) -> f64 {
        if self.world == 1 {
            return 0.0;
        }
        let share = f64::from(self.world - 1) / f64::from(self.world);
        let (gradients, parameters) = (wire.gradients / link, wire.parameters / link);
        let of = |numbers: usize, width: usize| share * (numbers * width) as f64 / link;
        let (forward, back) = (micro_batch / 3.0, micro_batch * 2.0 / 3.0);
        let (gradient, computed) = (self.widths.gradients, self.widths.computed());
        match zero {
            Zero::Nothing => (gradients - back).max(2.0 * of(self.final_bucket, gradient)),
            Zero::Moments | Zero::Gradients => {
                let gradients = (gradients - back).max(of(self.final_bucket, gradient));
                gradients + (parameters - forward).max(of(self.final_bucket, computed))
            }
            Zero::Parameters => {
                let ends = of(self.block, gradient) + of(self.block, computed);
                (gradients + parameters - self.hosted as f64 * micro_batch).max(ends)
            }
        }
    }
}

/// A transformer, of which activations can be estimated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Transformer {
    /// Layers.
    pub layers: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Numbers per token.
    pub width: usize,
    /// Tokens per sample.
    pub length: usize,
    /// Different tokens, for logits and, if they are to be counted, embeddings.
    pub vocabulary: usize,
}

impl Transformer {
    /// One that could have this number of parameters: with a width of 128 times its layers and heads of width
    /// 128, near that of GPT-3's models, and without embeddings, so that 12 width^2 parameters are in each
    /// layer.
    pub fn guess(parameters: f64, length: usize) -> Transformer {
        let layers = (parameters / (12.0 * 128.0 * 128.0)).cbrt().round().max(1.0);
        let width = (parameters / (12.0 * layers)).sqrt().round().max(1.0) as usize;
        Transformer { layers: layers as usize, heads: width.div_ceil(128), width, length, vocabulary: 0 }
    }

    /// Parameters of each block of [`gpt`](crate::models::gpt).
    pub fn gpt(
        vocabulary: usize,
        length: usize,
        GptSize { layers, heads, width }: GptSize,
    ) -> (Transformer, Vec<usize>) {
        let layer = 12 * width * width + 13 * width;
        let mut blocks = vec![layer; layers + 2];
        blocks[0] = (vocabulary + length) * width;
        blocks[layers + 1] = 2 * width;
        (Transformer { layers, heads, width, length, vocabulary }, blocks)
    }

    /// Bytes of activations for a micro-batch of `samples` samples, at most at once, where a rank has several
    /// virtual ranks: an estimate.
    ///
    /// A layer keeps 16 numbers per token and width and two per token and head for each other token, besides masks of a byte each (Korthikanti et al., "Reducing
    /// activation recomputation in large transformer models", MLSys 2023); logits and their gradients have 32
    /// bits each. Before stage 3 one virtual rank at a time has those of all layers; there, every one has what enters each layer, and one has a layer's,
    /// and the matrix of the tokens stays gathered for the logits.
    pub fn activations(&self, zero: Zero, precision: Precision, samples: u64, hosted: u64) -> f64 {
        let Transformer { layers, heads, width, length, vocabulary } = self;
        let [layers, heads, width, length, vocabulary] =
            [layers, heads, width, length, vocabulary].map(|&count| count as f64);
        let (bytes, tokens) = (precision.bytes() as f64, samples as f64 * length);
        let layer = tokens * (width * (16.0 * bytes + 2.0) + heads * length * (2.0 * bytes + 1.0));
        let logits = tokens * vocabulary * 8.0;
        match zero {
            Zero::Parameters => {
                let tied = vocabulary * width * bytes;
                hosted as f64 * layers * tokens * width * bytes + layer + logits + tied
            }
            _ => layers * layer + logits,
        }
    }
}

#[cfg(test)]
mod tests;
