//! Batch normalisation (Ioffe and Szegedy, ICML 2015) by the micro-batch of a virtual rank, or by those of all.

use burn::module::{Module, Param, RunningState};
use burn::nn::{GroupNorm, LayerNorm};
use burn::tensor::module::batch_norm;
use burn::tensor::{DType, Device, FloatDType, Tensor};

use crate::arithmetic::{batch_norm_train, layer_norm_rows};
use crate::block::Pass;

/// How much a micro-batch moves the running statistics.
const MOMENTUM: f32 = 0.1;
const EPSILON: f64 = 1e-5;

/// Batch normalisation over every dimension but the second, by the micro-batch of a virtual rank.
///
/// Running statistics (momentum 0.1, unbiased variance) belong to the virtual rank, and are averaged over all when the model is evaluated or
/// saved. A micro-batch with fewer than two values per channel has no variance: it is normalised by the running statistics and leaves
/// them alone. burn's own layer works too, but keeps the biased variance.
#[derive(Module, Debug)]
pub struct BatchNorm {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
    running_mean: RunningState<Tensor<1>>,
    running_var: RunningState<Tensor<1>>,
}

impl BatchNorm {
    /// For `channels` channels: weight 1, bias 0, mean 0, variance 1.
    pub fn new(channels: usize, device: &Device) -> BatchNorm {
        BatchNorm {
            weight: Param::from_tensor(Tensor::ones([channels], device)),
            bias: Param::from_tensor(Tensor::zeros([channels], device)),
            running_mean: RunningState::new(Tensor::zeros([channels], device)),
            running_var: RunningState::new(Tensor::ones([channels], device)),
        }
    }

    /// The same without a weight and a bias to learn: mean 0, variance 1.
    #[must_use]
    pub fn without_affine(mut self) -> BatchNorm {
        self.weight = self.weight.set_require_grad(false);
        self.bias = self.bias.set_require_grad(false);
        self
    }

    /// Of its parameters.
    pub(crate) fn precision(&self) -> FloatDType {
        FloatDType::from(self.weight.val().dtype())
    }

    /// Of `[rows, channels, ..]`, the same shape.
    pub fn forward<const D: usize>(&self, input: Tensor<D>, pass: &Pass) -> Tensor<D> {
        let values = values_per_channel(&input);
        if !pass.is_training() || values < 2 {
            return self.by(input, self.running_mean.value(), self.running_var.value());
        }
        let precision = FloatDType::from(input.dtype());
        let normalised =
            batch_norm_train(full(input), full(self.weight.val()), full(self.bias.val()), EPSILON);
        let unbiased = normalised.variance * (values as f32 / (values - 1) as f32);
        self.remember(normalised.mean, unbiased);
        normalised.output.cast(precision)
    }

    fn by<const D: usize>(&self, input: Tensor<D>, mean: Tensor<1>, variance: Tensor<1>) -> Tensor<D> {
        let precision = FloatDType::from(input.dtype());
        let (weight, bias) = (full(self.weight.val()), full(self.bias.val()));
        batch_norm(full(input), weight, bias, mean, variance, EPSILON).cast(precision)
    }

    fn remember(&self, mean: Tensor<1>, unbiased_variance: Tensor<1>) {
        let update = |running: &RunningState<Tensor<1>>, batch: Tensor<1>| {
            let moved = running.value_sync().inner() * (1.0 - MOMENTUM) + batch.inner() * MOMENTUM;
            running.update(moved.autodiff());
        };
        update(&self.running_mean, mean);
        update(&self.running_var, unbiased_variance);
    }
}

/// In 32 bits, in which statistics are taken whatever the rest is computed in.
fn full<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    tensor.cast(FloatDType::F32)
}

/// burn's layer normalisation of its default epsilon, computed in 32 bits. On the CPU its bits are [defined](shardd_kernels::LayerNorm).
///
/// ```
/// use burn::nn::LayerNormConfig;
/// use burn::tensor::{Device, Tensor};
/// use shardd_trainer::nn::layer_norm;
///
/// let norm = LayerNormConfig::new(2).init(&Device::flex());
/// let rows = layer_norm(&norm, Tensor::<2>::from_floats([[1.0, 3.0], [9.0, 5.0]], &Device::flex()));
/// let numbers = rows.into_data().try_into_vec::<f32>().unwrap();
/// assert!(numbers.iter().zip([-1.0, 1.0, 1.0, -1.0]).all(|(found, expected)| (found - expected).abs() < 1e-4));
/// ```
pub fn layer_norm<const D: usize>(norm: &LayerNorm, input: Tensor<D>) -> Tensor<D> {
    let precision = FloatDType::from(input.dtype());
    let gamma = full(norm.gamma.val());
    let beta = norm.beta.as_ref().map_or_else(|| gamma.zeros_like(), |beta| full(beta.val()));
    layer_norm_rows(full(input), gamma, beta, EPSILON).cast(precision)
}

/// The same of group normalisation.
pub(crate) fn group_norm<const D: usize>(norm: &GroupNorm, input: Tensor<D>) -> Tensor<D> {
    if input.dtype() == DType::F32 {
        return norm.forward(input);
    }
    let (precision, dims) = (FloatDType::from(input.dtype()), input.dims());
    let grouped = full(input).reshape([dims[0], norm.num_groups, values_in_group(dims, norm.num_groups)]);
    let centred = grouped.clone() - grouped.mean_dim(2);
    let variance = (centred.clone() * centred.clone()).mean_dim(2);
    let mut output = (centred / (variance + EPSILON).sqrt()).reshape(dims);
    let mut shape = [1; D];
    shape[1] = dims[1];
    if let Some(gamma) = &norm.gamma {
        output = output * full(gamma.val()).reshape(shape);
    }
    if let Some(beta) = &norm.beta {
        output = output + full(beta.val()).reshape(shape);
    }
    output.cast(precision)
}

fn values_in_group<const D: usize>(dims: [usize; D], groups: usize) -> usize {
    dims[1..].iter().product::<usize>() / groups
}

/// How many values there are of each channel.
fn values_per_channel<const D: usize>(input: &Tensor<D>) -> usize {
    let dims = input.dims();
    dims.iter().product::<usize>() / dims[1]
}

/// Batch normalisation by the micro-batches of all virtual ranks together: as if the global batch were normalised on one device.
///
/// A block that has one asks for its sums with [`SyncBatchNorm::summarise`] in its own [`Block::summarise`](crate::block::Block::summarise), and passes
/// them on to [`SyncBatchNorm::forward`].
#[derive(Module, Debug)]
pub struct SyncBatchNorm {
    local: BatchNorm,
}

impl SyncBatchNorm {
    /// For `channels` channels.
    pub fn new(channels: usize, device: &Device) -> SyncBatchNorm {
        SyncBatchNorm { local: BatchNorm::new(channels, device) }
    }

    /// How many numbers its summary has: two for each channel, and one for all.
    pub fn summary_len(&self) -> usize {
        2 * self.local.weight.dims()[0] + 1
    }

    /// Per channel the sum of the values of `[rows, channels, ..]` and of their squares, then how many values there are per channel.
    pub fn summarise<const D: usize>(&self, input: Tensor<D>) -> Tensor<1> {
        let count = values_per_channel(&input) as f32;
        let channels = by_channel(full(input));
        let sums = channels.clone().sum_dim(1).squeeze_dim(1);
        let squares = (channels.clone() * channels).sum_dim(1).squeeze_dim(1);
        let count = Tensor::from_floats([count], &sums.device());
        Tensor::cat(vec![sums, squares, count], 0)
    }

    /// Of `[rows, channels, ..]`, the same shape, by the sum of all summaries; in an evaluation by the running statistics.
    ///
    /// # Panics
    /// If a pass that trains has no sum.
    pub fn forward<const D: usize>(&self, input: Tensor<D>, total: Option<Tensor<1>>) -> Tensor<D> {
        let Some(total) = total else {
            let (mean, variance) = (self.local.running_mean.value(), self.local.running_var.value());
            return self.local.by(input, mean, variance);
        };
        let channels = self.local.weight.dims()[0];
        let count = total.clone().slice(2 * channels..2 * channels + 1);
        let mean = total.clone().slice(0..channels) / count.clone();
        let of_squares = total.slice(channels..2 * channels) / count.clone();
        // Rounding may leave less than nothing of a channel that hardly varies.
        let variance = (of_squares - mean.clone() * mean.clone()).clamp_min(0.0);
        // The library's layer takes mean and variance for constants; here the loss depends on the input through them, too.
        let mut shape = [1; D];
        shape[1] = channels;
        let precision = FloatDType::from(input.dtype());
        let weight = full(self.local.weight.val()) / (variance.clone() + EPSILON).sqrt();
        let scaled = (full(input) - mean.clone().reshape(shape)) * weight.reshape(shape);
        let output = scaled + full(self.local.bias.val()).reshape(shape);
        let unbias = count.clone() / (count - 1.0).clamp_min(1.0);
        self.local.remember(mean, variance * unbias);
        output.cast(precision)
    }
}

/// `[channels, values]`.
fn by_channel<const D: usize>(input: Tensor<D>) -> Tensor<2> {
    let (channels, values) = (input.dims()[1], values_per_channel(&input));
    input.swap_dims(0, 1).reshape([channels, values])
}

#[cfg(test)]
mod tests;
