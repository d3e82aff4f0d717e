use proptest::prelude::*;

use super::*;
use crate::testkit::{bits, numbers, plainly};

impl BatchNorm {
    fn rows<'a>(&self, numbers: &'a [f32], channel: usize) -> impl Iterator<Item = &'a [f32]> {
        numbers.chunks(self.pixels).skip(channel).step_by(self.channels)
    }

    /// The sum over a channel's rows of the sums of two tensors' numbers.
    fn total(&self, channel: usize, one: &[f32], other: &[f32], value: impl Fn(f32, f32) -> f32) -> f64 {
        let rows = self.rows(one, channel).zip(self.rows(other, channel));
        rows.map(|(one, other)| f64::from(plainly(one.iter().zip(other).map(|(a, b)| value(*a, *b))))).sum()
    }
}

fn norms() -> impl Strategy<Value = BatchNorm> {
    (1_usize..5, 1_usize..9, prop_oneof![Just(1_usize), 2_usize..70, Just(256_usize)])
        .prop_map(|(batch, channels, pixels)| BatchNorm { batch, channels, pixels, epsilon: 1e-5 })
}

proptest! {
    #[test]
    fn every_level_computes_the_definition(norm in norms(), seed in any::<u64>()) {
        let len = norm.batch * norm.channels * norm.pixels;
        let (input, gradient) = (numbers(seed, len), numbers(!seed, len));
        let (scale, shift) = (numbers(seed ^ 2, norm.channels), numbers(seed ^ 4, norm.channels));
        let count = (norm.batch * norm.pixels) as f64;
        let mean: Vec<f32> = (0..norm.channels)
            .map(|channel| (norm.total(channel, &input, &input, |x, _| x) / count) as f32)
            .collect();
        let variance: Vec<f32> = (0..norm.channels)
            .map(|channel| {
                let mean = mean[channel];
                (norm.total(channel, &input, &input, |x, _| (x - mean) * (x - mean)) / count) as f32
            })
            .collect();
        let of_shift: Vec<f32> =
            (0..norm.channels).map(|channel| norm.total(channel, &gradient, &gradient, |g, _| g) as f32).collect();
        let inverse: Vec<f32> = variance.iter().map(|variance| 1.0 / (variance + norm.epsilon).sqrt()).collect();
        let channel_of = |at: usize| at / norm.pixels % norm.channels;
        let output: Vec<f32> = (0..len)
            .map(|at| {
                let channel = channel_of(at);
                (input[at] - mean[channel]) * (scale[channel] * inverse[channel]) + shift[channel]
            })
            .collect();
        let totals: Vec<[f64; 2]> = (0..norm.channels)
            .map(|channel| {
                let normal = |x: f32| (x - mean[channel]) * inverse[channel];
                [
                    norm.total(channel, &gradient, &gradient, |g, _| g),
                    norm.total(channel, &input, &gradient, |x, g| g * normal(x)),
                ]
            })
            .collect();
        let of_scale: Vec<f32> = totals.iter().map(|total| total[1] as f32).collect();
        let of_input: Vec<f32> = (0..len)
            .map(|at| {
                let channel = channel_of(at);
                let [of_gradient, projected] = totals[channel].map(|total| (total / count) as f32);
                let normal = (input[at] - mean[channel]) * inverse[channel];
                (scale[channel] * inverse[channel]) * ((gradient[at] - of_gradient) - normal * projected)
            })
            .collect();
        for level in Level::available() {
            let found = norm.forward(level, &input, &scale, &shift);
            prop_assert_eq!(bits(&found.mean), bits(&mean), "{}", level);
            prop_assert_eq!(bits(&found.variance), bits(&variance), "{}", level);
            prop_assert_eq!(bits(&found.output), bits(&output), "{}", level);
            let back = norm.backward(level, &input, &gradient, &scale, [&mean, &variance]);
            prop_assert_eq!(bits(&back.shift), bits(&of_shift), "{}", level);
            prop_assert_eq!(bits(&back.input), bits(&of_input), "{}", level);
            prop_assert_eq!(bits(&back.scale), bits(&of_scale), "{}", level);
        }
    }

    /// The gradient against differences of the loss, computed in 64 bits.
    #[test]
    fn gradients_are_those_of_the_output(seed in any::<u64>(), at in 0_usize..24) {
        let norm = BatchNorm { batch: 3, channels: 2, pixels: 4, epsilon: 1e-2 };
        let (input, upstream) = (numbers(seed, 24), numbers(!seed, 24));
        let (scale, shift) = (numbers(seed ^ 2, 2), numbers(seed ^ 4, 2));
        let loss = |input: &[f64]| -> f64 {
            (0..2).map(|channel| {
                let of_channel = |index: &usize| index / 4 % 2 == channel;
                let places: Vec<usize> = (0..24).filter(of_channel).collect();
                let mean = places.iter().map(|&at| input[at]).sum::<f64>() / 12.0;
                let variance = places.iter().map(|&at| (input[at] - mean).powi(2)).sum::<f64>() / 12.0;
                let factor = f64::from(scale[channel]) / (variance + f64::from(norm.epsilon)).sqrt();
                places.iter().map(|&at| (input[at] - mean) * factor * f64::from(upstream[at])).sum::<f64>()
            }).sum()
        };
        let wide: Vec<f64> = input.iter().map(|x| f64::from(*x)).collect();
        let moved = |by: f64| {
            let mut moved = wide.clone();
            moved[at] += by;
            loss(&moved)
        };
        let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
        let found = norm.forward(Level::best(), &input, &scale, &shift);
        let back = norm.backward(Level::best(), &input, &upstream, &scale, [&found.mean, &found.variance]);
        let size = upstream.iter().map(|number| f64::from(number.abs())).fold(1.0, f64::max)
            * scale.iter().map(|number| f64::from(number.abs())).fold(1e-3, f64::max) * 10.0;
        prop_assert!((f64::from(back.input[at]) - expected).abs() < 1e-4 * size, "{} {expected}", back.input[at]);
    }
}

#[test]
fn a_sum_follows_its_definition() {
    for count in [0, 1, 31, 32, 33, 64, 1000, 100_003] {
        let row = numbers(5, count);
        for level in Level::available() {
            assert_eq!(
                crate::sum(level, &row).to_bits(),
                plainly(row.iter().copied()).to_bits(),
                "{count} {level}"
            );
        }
    }
}
