//! Batch normalisation (Ioffe and Szegedy, ICML 2015) and its gradient.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::level::Level;
use crate::sum::sums;

/// Batch normalisation of `[batch, channels, pixels]`: each channel by the mean and the variance of its numbers in all images.
///
/// Sums over the pixels of an image are [defined](crate#sums); those of the images are added in order, in 64 bits.
///
/// ```
/// use shardd_kernels::{BatchNorm, Level};
///
/// let norm = BatchNorm { batch: 2, channels: 1, pixels: 1, epsilon: 0.0 };
/// let found = norm.forward(Level::best(), &[1.0, 3.0], &[10.0], &[5.0]);
/// assert_eq!((found.mean[0], found.variance[0]), (2.0, 1.0));
/// assert_eq!(found.output, [-5.0, 15.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// Images.
    pub batch: usize,
    /// Of each image.
    pub channels: usize,
    /// Of each channel.
    pub pixels: usize,
    /// Added to the variance.
    pub epsilon: f32,
}

/// What [`BatchNorm::forward`] finds.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalised {
    /// `[batch, channels, pixels]`.
    pub output: Vec<f32>,
    /// Of each channel.
    pub mean: Vec<f32>,
    /// Of each channel, divided by the count of its numbers (biased).
    pub variance: Vec<f32>,
}

/// What [`BatchNorm::backward`] finds.
#[derive(Clone, Debug, PartialEq)]
pub struct NormGradient {
    /// `[batch, channels, pixels]`.
    pub input: Vec<f32>,
    /// Of each channel.
    pub scale: Vec<f32>,
    /// Of each channel.
    pub shift: Vec<f32>,
}

impl BatchNorm {
    /// Normalises, then multiplies each channel by its `scale` and adds its `shift`.
    ///
    /// # Panics
    /// If the numbers do not fit the sizes.
    pub fn forward(&self, level: Level, input: &[f32], scale: &[f32], shift: &[f32]) -> Normalised {
        self.check(input, scale);
        assert_eq!(shift.len(), self.channels, "a shift for each channel");
        let level = level.narrow();
        let count = (self.batch * self.pixels) as f64;
        let mean: Vec<f32> = self
            .by_channel(level, input, input, |_| move |x, _| [x])
            .into_iter()
            .map(|[sum]| (sum / count) as f32)
            .collect();
        let squares = self.by_channel(level, input, input, |channel| {
            let mean = mean[channel];
            move |x, _| [(x - mean) * (x - mean)]
        });
        let variance: Vec<f32> = squares.into_iter().map(|[sum]| (sum / count) as f32).collect();
        let factors: Vec<f32> = (0..self.channels).map(|at| scale[at] * self.inverse(variance[at])).collect();
        let output = self.map(level, input, input, |channel| {
            let (mean, factor, shift) = (mean[channel], factors[channel], shift[channel]);
            move |x, _| (x - mean) * factor + shift
        });
        Normalised { output, mean, variance }
    }

    /// The gradients of input, scale and shift from that of the output, by the mean and the variance that [`forward`](BatchNorm::forward) found.
    ///
    /// # Panics
    /// If the numbers do not fit the sizes.
    pub fn backward(
        &self,
        level: Level,
        input: &[f32],
        output: &[f32],
        scale: &[f32],
        [mean, variance]: [&[f32]; 2],
    ) -> NormGradient {
        self.check(input, scale);
        self.check(output, mean);
        let level = level.narrow();
        let inverse: Vec<f32> = variance.iter().map(|&variance| self.inverse(variance)).collect();
        let found = self.by_channel(level, input, output, |channel| {
            let (mean, inverse) = (mean[channel], inverse[channel]);
            move |x, gradient| [gradient, gradient * ((x - mean) * inverse)]
        });
        let shift: Vec<f32> = found.iter().map(|sums| sums[0] as f32).collect();
        let of_scale: Vec<f32> = found.iter().map(|sums| sums[1] as f32).collect();
        let count = (self.batch * self.pixels) as f64;
        let input = self.map(level, input, output, |channel| {
            let (mean, inverse) = (mean[channel], inverse[channel]);
            let [gradient_mean, projected] = found[channel].map(|sum| (sum / count) as f32);
            let factor = scale[channel] * inverse;
            move |x, gradient| factor * ((gradient - gradient_mean) - (x - mean) * inverse * projected)
        });
        NormGradient { input, scale: of_scale, shift }
    }

    fn check(&self, numbers: &[f32], of_channels: &[f32]) {
        assert_eq!(numbers.len(), self.batch * self.channels * self.pixels, "numbers of all pixels");
        assert_eq!(of_channels.len(), self.channels, "a number for each channel");
    }

    fn inverse(&self, variance: f32) -> f32 {
        1.0 / (variance + self.epsilon).sqrt()
    }

    /// Of each channel, the sums of the values of its function over all pixels of two tensors.
    fn by_channel<const N: usize, F>(
        &self,
        level: Level,
        one: &[f32],
        other: &[f32],
        function: impl Fn(usize) -> F + Sync,
    ) -> Vec<[f64; N]>
    where
        F: Fn(f32, f32) -> [f32; N] + Copy,
    {
        let BatchNorm { batch, channels, pixels, .. } = *self;
        if pixels == 1 {
            let mut totals = vec![[0.0; N]; channels];
            let functions: Vec<F> = (0..channels).map(function).collect();
            for (one, other) in one.chunks_exact(channels).zip(other.chunks_exact(channels)) {
                for channel in 0..channels {
                    add(&mut totals[channel], functions[channel](one[channel], other[channel]));
                }
            }
            return totals;
        }
        let of_channel = |channel: usize| {
            let function = function(channel);
            let mut total = [0.0; N];
            for image in 0..batch {
                let start = (image * channels + channel) * pixels;
                let (one, other) = (&one[start..start + pixels], &other[start..start + pixels]);
                add(&mut total, level.run(Sums { one, other, function }));
            }
            total
        };
        (0..channels).into_par_iter().with_min_len(4).map(of_channel).collect()
    }

    /// The value of each channel's function of two tensors.
    fn map<F>(
        &self,
        level: Level,
        one: &[f32],
        other: &[f32],
        function: impl Fn(usize) -> F + Sync,
    ) -> Vec<f32>
    where
        F: Fn(f32, f32) -> f32 + Copy + Send + Sync,
    {
        let image = self.channels * self.pixels;
        let functions: Vec<F> = (0..self.channels).map(&function).collect();
        let mut values = vec![0.0; one.len()];
        if values.is_empty() {
            return values;
        }
        let images = values.par_chunks_mut(image).zip(one.par_chunks(image)).zip(other.par_chunks(image));
        images.for_each(|((values, one), other)| {
            level.run(Map { values, one, other, functions: &functions, pixels: self.pixels });
        });
        values
    }
}

fn add<const N: usize>(totals: &mut [f64; N], sums: [f32; N]) {
    totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += f64::from(sum));
}

struct Sums<'a, F> {
    one: &'a [f32],
    other: &'a [f32],
    function: F,
}

impl<const N: usize, F: Fn(f32, f32) -> [f32; N]> WithSimd for Sums<'_, F> {
    type Output = [f32; N];

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> [f32; N] {
        let Sums { one, other, function } = self;
        let other = &other[..one.len()];
        sums(one.len(), |at| function(one[at], other[at]))
    }
}

/// Of one image.
struct Map<'a, F> {
    values: &'a mut [f32],
    one: &'a [f32],
    other: &'a [f32],
    functions: &'a [F],
    pixels: usize,
}

impl<F: Fn(f32, f32) -> f32> WithSimd for Map<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Map { values, one, other, functions, pixels } = self;
        let channels =
            values.chunks_exact_mut(pixels).zip(one.chunks_exact(pixels)).zip(other.chunks_exact(pixels));
        for (((values, one), other), function) in channels.zip(functions) {
            for ((value, one), other) in values.iter_mut().zip(one).zip(other) {
                *value = function(*one, *other);
            }
        }
    }
}

#[cfg(test)]
mod tests;
