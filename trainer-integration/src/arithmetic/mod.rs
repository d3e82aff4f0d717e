//! Operations whose bits are the same on every processor: those of [`shardd_kernels`] on the CPU. On other devices products and convolutions
//! are burn's, and what burn would make of many launches has a kernel.
//!
//! burn's products follow the size of the first-level cache, and its sums the width of the vectors. Two machines of one architecture may
//! therefore compute different bits. [`probe`] finds that out before ranks train together.

mod autodiff;
mod kernels;
pub(crate) mod probe;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod there;

#[cfg(any(feature = "cuda", feature = "wgpu"))]
use burn::backend::Cube;
use burn::backend::ops::ConvOptions;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Dispatch, Flex, backend_extension};
use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;
use burn::nn::{Linear, PaddingConfig2d};
use burn::tensor::{Int, Tensor};

use kernels::Kernels;

/// The windows of a pooling layer, of rows and of columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    size: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
}

/// What burn dispatches to the device of a tensor.
#[backend_extension(Flex, Cube: cfg(any(feature = "cuda", feature = "wgpu")), Autodiff)]
pub(crate) trait Arithmetic: burn::backend::Backend {
    fn product(left: FloatTensor<Self>, right: FloatTensor<Self>) -> FloatTensor<Self>;

    fn convolution(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self>;

    fn largest_of_windows(input: FloatTensor<Self>, windows: Windows) -> FloatTensor<Self>;

    /// The output, then mean and biased variance of each channel, which are constants to gradients.
    fn normalise(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Of rows of 32 bits, which are along the last dimension.
    fn layer_norm_of_rows(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self>;

    /// Of rows, which are along the last dimension.
    fn softmax_of_rows(input: FloatTensor<Self>) -> FloatTensor<Self>;

    fn gelu_of(input: FloatTensor<Self>) -> FloatTensor<Self>;

    /// A zero of 32 bits, whose gradient with respect to `output` is `gradient`.
    fn seed(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self>;
}

macro_rules! without_gradients {
    ($($(#[$cfg:meta])? $backend:ty),*) => {
        $($(#[$cfg])?
        impl Arithmetic for $backend {
            fn product(left: FloatTensor<Self>, right: FloatTensor<Self>) -> FloatTensor<Self> {
                <Self as Kernels>::multiply(left, right)
            }

            fn convolution(
                input: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                options: ConvOptions<2>,
            ) -> FloatTensor<Self> {
                <Self as Kernels>::convolve(input, weight, options)
            }

            fn largest_of_windows(input: FloatTensor<Self>, windows: Windows) -> FloatTensor<Self> {
                <Self as Kernels>::largest(input, windows)
            }

            fn normalise(
                input: FloatTensor<Self>,
                scale: FloatTensor<Self>,
                shift: FloatTensor<Self>,
                epsilon: f64,
            ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
                <Self as Kernels>::normalise(input, scale, shift, epsilon)
            }

            fn layer_norm_of_rows(
                input: FloatTensor<Self>,
                scale: FloatTensor<Self>,
                shift: FloatTensor<Self>,
                epsilon: f64,
            ) -> FloatTensor<Self> {
                <Self as Kernels>::layer_norm_rows(input, scale, shift, epsilon)
            }

            fn softmax_of_rows(input: FloatTensor<Self>) -> FloatTensor<Self> {
                <Self as Kernels>::softmax_rows(input)
            }

            fn gelu_of(input: FloatTensor<Self>) -> FloatTensor<Self> {
                <Self as Kernels>::gelu_all(input)
            }

            fn seed(output: FloatTensor<Self>, _: FloatTensor<Self>) -> FloatTensor<Self> {
                <Self as Kernels>::zero(&output)
            }
        })*
    };
}

without_gradients!(
    Flex,
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    Cube
);

/// The product of two matrices, or of two equally long lists of them (`[.., rows, depth]` and `[.., depth, columns]`).
///
/// On the CPU its bits are [defined](shardd_kernels#definition), also where the lists have to be repeated.
///
/// # Panics
/// If the shapes do not fit.
pub fn matmul<const D: usize>(left: Tensor<D>, right: Tensor<D>) -> Tensor<D> {
    let (ours, theirs) = (left.dims(), right.dims());
    let (left, right) = match ours[..D - 2] == theirs[..D - 2] {
        true => (left, right),
        false => {
            let common: [usize; D] =
                std::array::from_fn(|axis| if ours[axis] == 1 { theirs[axis] } else { ours[axis] });
            let repeated = |tensor: Tensor<D>, own: [usize; D]| {
                tensor.expand(std::array::from_fn::<usize, D, _>(|axis| {
                    if axis < D - 2 { common[axis] } else { own[axis] }
                }))
            };
            (repeated(left, ours), repeated(right, theirs))
        }
    };
    Tensor::from_dispatch(<Dispatch as Arithmetic>::product(left.into_dispatch(), right.into_dispatch()))
}

/// `[.., inputs]` to `[.., outputs]` by a matrix `[inputs, outputs]` and a bias, as [`matmul`].
pub fn linear<const D: usize>(input: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let (mut dims, [inputs, outputs]) = (input.dims(), weight.dims());
    let rows = dims[..D - 1].iter().product();
    let mut output = matmul(input.reshape([rows, inputs]), weight);
    if let Some(bias) = bias {
        output = output + bias.unsqueeze();
    }
    dims[D - 1] = outputs;
    output.reshape(dims)
}

/// burn's linear layer, computed by [`linear`](fn@linear).
pub fn linear_layer<const D: usize>(layer: &Linear, input: Tensor<D>) -> Tensor<D> {
    linear(input, layer.weight.val(), layer.bias.as_ref().map(burn::module::Param::val))
}

/// burn's convolution layer, with bits that are [defined](shardd_kernels::Conv) on the CPU. Convolutions in groups are burn's own.
///
/// # Panics
/// If the input has other channels than the layer.
pub fn conv2d_layer(layer: &Conv2d, input: Tensor<4>) -> Tensor<4> {
    let [_, channels, height, width] = input.dims();
    let wanted = layer.weight.dims()[1] * layer.groups;
    assert_eq!(channels, wanted, "channels of the input and of the layer");
    let padding = padding(layer, [height, width]);
    let options = ConvOptions::new_with_padding(layer.stride, padding, layer.dilation, layer.groups);
    let output = Tensor::from_dispatch(<Dispatch as Arithmetic>::convolution(
        input.into_dispatch(),
        layer.weight.val().into_dispatch(),
        options,
    ));
    match &layer.bias {
        Some(bias) => {
            let outputs = bias.dims()[0];
            output + bias.val().reshape([1, outputs, 1, 1])
        }
        None => output,
    }
}

/// burn's layer of the largest number of each window. A gradient goes to the first of equal numbers. Layers that
/// pad one side more than the other, or count cut windows, are burn's own.
///
/// ```
/// use burn::nn::pool::MaxPool2dConfig;
/// use burn::tensor::{Device, Tensor};
/// use shardd_trainer::nn::max_pool2d_layer;
///
/// let layer = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
/// let image = Tensor::<4>::from_floats([[[[1.0, 2.0], [4.0, 3.0]]]], &Device::flex());
/// assert_eq!(max_pool2d_layer(&layer, image).into_scalar::<f32>(), 4.0);
/// ```
///
/// # Panics
/// If a window is larger than the image with its padding.
pub fn max_pool2d_layer(layer: &MaxPool2d, input: Tensor<4>) -> Tensor<4> {
    let padding = match layer.padding {
        PaddingConfig2d::Valid => [0, 0],
        PaddingConfig2d::Explicit(top, left, bottom, right) if (top, left) == (bottom, right) => [top, left],
        PaddingConfig2d::Explicit(..) | PaddingConfig2d::Same => return layer.forward(input),
    };
    if layer.ceil_mode {
        return layer.forward(input);
    }
    let (size, stride, dilation) = (layer.kernel_size, layer.stride, layer.dilation);
    let windows = Windows { size, stride, padding, dilation };
    Tensor::from_dispatch(<Dispatch as Arithmetic>::largest_of_windows(input.into_dispatch(), windows))
}

/// Softmax of the last dimension. On the CPU its bits are [defined](shardd_kernels::softmax).
pub fn softmax<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as Arithmetic>::softmax_of_rows(input.into_dispatch()))
}

/// The unit of the error function. On the CPU its bits are [defined](shardd_kernels::gelu).
pub fn gelu<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as Arithmetic>::gelu_of(input.into_dispatch()))
}

/// Layer normalisation of the last dimension, in 32 bits. On the CPU its bits are [defined](shardd_kernels::LayerNorm).
pub(crate) fn layer_norm_rows<const D: usize>(
    input: Tensor<D>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let (input, scale, shift) = (input.into_dispatch(), scale.into_dispatch(), shift.into_dispatch());
    Tensor::from_dispatch(<Dispatch as Arithmetic>::layer_norm_of_rows(input, scale, shift, epsilon))
}

/// Cross-entropy where the logits are, in no graph and of 32 bits: the gradient of the sum of losses, flat; that sum and how many labels are
/// the first of the largest, `[2]`.
///
/// # Panics
/// If the logits are on the CPU.
pub(crate) fn cross_entropy_there(logits: Tensor<2>, labels: Tensor<1, Int>) -> (Tensor<1>, Tensor<1>) {
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    {
        use burn::backend::Cube;
        let count = logits.dims().iter().product::<usize>();
        let logits = logits.try_into_primitive::<Cube>().expect("logits of a device, in no graph");
        let labels = labels.try_into_primitive::<Cube>().expect("labels of a device");
        let (gradient, sums) = there::cross_entropy(logits, labels);
        (Tensor::<2>::from_primitive::<Cube>(gradient).reshape([count]), Tensor::from_primitive::<Cube>(sums))
    }
    #[cfg(not(any(feature = "cuda", feature = "wgpu")))]
    unreachable!("logits on the CPU have a loss of their own: {:?} {:?}", logits.dims(), labels.dims())
}

/// The root of a graph in which the gradient of `output` is `gradient`: no sum over the output has to be made, nor anything multiplied by it.
pub(crate) fn seed(output: Tensor<1>, gradient: Tensor<1>) -> Tensor<1> {
    let (output, gradient) = (output.into_dispatch(), gradient.autodiff().into_dispatch());
    Tensor::from_dispatch(<Dispatch as Arithmetic>::seed(output, gradient))
}

/// Zeros before and after, of rows and of columns.
fn padding(layer: &Conv2d, size: [usize; 2]) -> [(usize, usize); 2] {
    match layer.padding {
        PaddingConfig2d::Valid => [(0, 0); 2],
        PaddingConfig2d::Explicit(top, left, bottom, right) => [(top, bottom), (left, right)],
        PaddingConfig2d::Same => [0, 1].map(|axis| {
            let (stride, size) = (layer.stride[axis], size[axis]);
            let covered = (size.div_ceil(stride).max(1) - 1) * stride + layer.kernel_size[axis];
            let zeros = covered.saturating_sub(size);
            (zeros / 2, zeros - zeros / 2)
        }),
    }
}

/// What [`batch_norm_train`] finds.
pub(crate) struct Normalised<const D: usize> {
    pub(crate) output: Tensor<D>,
    pub(crate) mean: Tensor<1>,
    /// Biased.
    pub(crate) variance: Tensor<1>,
}

/// Batch normalisation of `[rows, channels, ..]` by its own mean and variance.
pub(crate) fn batch_norm_train<const D: usize>(
    input: Tensor<D>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    epsilon: f64,
) -> Normalised<D> {
    let (input, scale, shift) = (input.into_dispatch(), scale.into_dispatch(), shift.into_dispatch());
    let (output, mean, variance) = <Dispatch as Arithmetic>::normalise(input, scale, shift, epsilon);
    Normalised {
        output: Tensor::from_dispatch(output),
        mean: Tensor::from_dispatch(mean),
        variance: Tensor::from_dispatch(variance),
    }
}

#[cfg(test)]
mod tests;
