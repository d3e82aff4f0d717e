//! The operations on tensors in no graph, and those that their gradients need.

use burn::backend::flex::FlexTensor;
use burn::backend::ops::{ActivationOps, ConvOptions, FloatTensorOps, ModuleOps};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, TensorMetadata};
use burn::tensor::{DType, FloatDType, IntDType, Shape, TensorData};
use rayon::prelude::*;
use shardd_kernels::{
    BatchNorm, Conv, LayerNorm, Level, Matrix, MaxPool, gelu, gelu_gradient, multiply, softmax,
    softmax_gradient,
};

use super::Windows;

/// Of a backend: burn's own operations, unless it has better ones.
pub(crate) trait Kernels: Backend {
    /// One zero of 32 bits, on the device of a tensor.
    fn zero(like: &FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_zeros(Shape::new([1]), &like.device(), FloatDType::F32)
    }

    fn softmax_rows(input: FloatTensor<Self>) -> FloatTensor<Self> {
        let last = input.shape().num_dims() - 1;
        <Self as ActivationOps<Self>>::softmax(input, last)
    }

    /// The gradient of the input from the output, and the gradient of that.
    fn softmax_rows_back(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        softmax_back::<Self>(output, gradient)
    }

    fn gelu_all(input: FloatTensor<Self>) -> FloatTensor<Self> {
        <Self as ActivationOps<Self>>::gelu(input)
    }

    /// The gradient of the input from it, and the gradient of the output.
    fn gelu_all_back(input: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        <Self as ActivationOps<Self>>::gelu_backward(input, gradient)
    }

    /// Of rows of 32 bits, which are along the last dimension.
    fn layer_norm_rows(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self>;

    /// The gradients of input, scale and shift.
    fn layer_norm_rows_back(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        epsilon: f64,
        gradient: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 3];

    /// Of lists of matrices that are equally long.
    fn multiply(left: FloatTensor<Self>, right: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(left, right)
    }

    fn convolve(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        Self::conv2d(input, weight, None, options)
    }

    fn convolve_back_to_input(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        Self::conv2d_x_backward(input, weight, gradient, options)
    }

    fn convolve_back_to_weight(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        Self::conv2d_weight_backward(input, weight, gradient, options)
    }

    /// The largest number of each window.
    fn largest(input: FloatTensor<Self>, windows: Windows) -> FloatTensor<Self> {
        let Windows { size, stride, padding, dilation } = windows;
        Self::max_pool2d(input, size, stride, padding, dilation, false)
    }

    /// The gradient of the input from it, and the gradient of the output.
    fn largest_back(
        input: FloatTensor<Self>,
        windows: Windows,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let Windows { size, stride, padding, dilation } = windows;
        let dtype = IntDType::I32;
        let places =
            Self::max_pool2d_with_indices(input.clone(), size, stride, padding, dilation, false, dtype)
                .indices;
        Self::max_pool2d_with_indices_backward(
            input, size, stride, padding, dilation, false, gradient, places,
        )
        .x_grad
    }

    /// Output, mean and biased variance.
    fn normalise(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let found = Self::batch_norm_train(input, scale, shift, epsilon);
        (found.output, found.mean, found.variance)
    }

    /// The gradients of input, scale and shift.
    fn normalise_back(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        [mean, variance]: [FloatTensor<Self>; 2],
        epsilon: f64,
        gradient: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 3] {
        let found = Self::batch_norm_train_backward(input, scale, mean, variance, epsilon, gradient);
        [found.x_grad, found.gamma_grad, found.beta_grad]
    }
}

impl Kernels for Flex {
    fn softmax_rows(input: FlexTensor) -> FlexTensor {
        let last = input.shape().num_dims() - 1;
        match input.dtype() {
            DType::F64 => <Flex as ActivationOps<Flex>>::softmax(input, last),
            _ => in_f32([input], |[input]| of_rows(input, |x, columns| softmax(Level::best(), x, columns))),
        }
    }

    fn softmax_rows_back(output: FlexTensor, gradient: FlexTensor) -> FlexTensor {
        if output.dtype() == DType::F64 {
            return softmax_back::<Flex>(output, gradient);
        }
        in_f32([output, gradient], |[output, gradient]| {
            of_both(output, gradient, |y, g, columns| softmax_gradient(Level::best(), y, g, columns))
        })
    }

    fn gelu_all(input: FlexTensor) -> FlexTensor {
        match input.dtype() {
            DType::F64 => <Flex as ActivationOps<Flex>>::gelu(input),
            _ => in_f32([input], |[input]| of_rows(input, |x, _| gelu(Level::best(), x))),
        }
    }

    fn gelu_all_back(input: FlexTensor, gradient: FlexTensor) -> FlexTensor {
        if input.dtype() == DType::F64 {
            return <Flex as ActivationOps<Flex>>::gelu_backward(input, gradient);
        }
        in_f32([input, gradient], |[input, gradient]| {
            of_both(input, gradient, |x, g, _| gelu_gradient(Level::best(), x, g))
        })
    }

    fn layer_norm_rows(input: FlexTensor, scale: FlexTensor, shift: FlexTensor, epsilon: f64) -> FlexTensor {
        let (scale, shift) = (scale.to_contiguous(), shift.to_contiguous());
        of_rows(input, |input, columns| {
            let norm = LayerNorm { columns, epsilon: epsilon as f32 };
            norm.forward(Level::best(), input, numbers(&scale), numbers(&shift))
        })
    }

    fn layer_norm_rows_back(
        input: FlexTensor,
        scale: FlexTensor,
        epsilon: f64,
        gradient: FlexTensor,
    ) -> [FlexTensor; 3] {
        let shape = input.shape();
        let columns = shape[shape.num_dims() - 1];
        let norm = LayerNorm { columns, epsilon: epsilon as f32 };
        let [input, scale, gradient] = [input, scale, gradient].map(|it| it.to_contiguous());
        let found = norm.backward(Level::best(), numbers(&input), numbers(&gradient), numbers(&scale));
        let of_columns = |numbers| tensor(numbers, Shape::new([columns]));
        [tensor(found.input, shape), of_columns(found.scale), of_columns(found.shift)]
    }

    fn multiply(left: FlexTensor, right: FlexTensor) -> FlexTensor {
        if left.dtype() == DType::F64 {
            return Flex::float_matmul(left, right);
        }
        in_f32([left, right], |[left, right]| matrices(left, right))
    }

    fn convolve(input: FlexTensor, weight: FlexTensor, options: ConvOptions<2>) -> FlexTensor {
        let Some(conv) = conv(&input, &weight, &options) else {
            return Flex::conv2d(input, weight, None, options);
        };
        let shape = output_shape(&conv);
        in_f32([input, weight], |[input, weight]| {
            let (input, weight) = (input.to_contiguous(), weight.to_contiguous());
            tensor(conv.forward(Level::best(), numbers(&input), numbers(&weight)).expect(FITS), shape)
        })
    }

    fn convolve_back_to_input(
        input: FlexTensor,
        weight: FlexTensor,
        gradient: FlexTensor,
        options: ConvOptions<2>,
    ) -> FlexTensor {
        let Some(conv) = conv(&input, &weight, &options) else {
            return Flex::conv2d_x_backward(input, weight, gradient, options);
        };
        in_f32([weight, gradient], |[weight, gradient]| {
            let (weight, gradient) = (weight.to_contiguous(), gradient.to_contiguous());
            let found = conv.input_gradient(Level::best(), numbers(&gradient), numbers(&weight));
            tensor(found.expect(FITS), input.shape())
        })
    }

    fn convolve_back_to_weight(
        input: FlexTensor,
        weight: FlexTensor,
        gradient: FlexTensor,
        options: ConvOptions<2>,
    ) -> FlexTensor {
        let Some(conv) = conv(&input, &weight, &options) else {
            return Flex::conv2d_weight_backward(input, weight, gradient, options);
        };
        in_f32([input, gradient], |[input, gradient]| {
            let (input, gradient) = (input.to_contiguous(), gradient.to_contiguous());
            let found = conv.weight_gradient(Level::best(), numbers(&input), numbers(&gradient));
            tensor(found.expect(FITS), weight.shape())
        })
    }

    fn largest(input: FlexTensor, windows: Windows) -> FlexTensor {
        if input.dtype() == DType::F64 {
            let Windows { size, stride, padding, dilation } = windows;
            return Flex::max_pool2d(input, size, stride, padding, dilation, false);
        }
        let (pool, shape) = max_pool(&input.shape(), windows);
        in_f32([input], |[input]| tensor(pool.forward(Level::best(), numbers(&input.to_contiguous())), shape))
    }

    fn largest_back(input: FlexTensor, windows: Windows, gradient: FlexTensor) -> FlexTensor {
        let (pool, shape) = (max_pool(&input.shape(), windows).0, input.shape());
        in_f32([input, gradient], |[input, gradient]| {
            let (input, gradient) = (input.to_contiguous(), gradient.to_contiguous());
            tensor(pool.backward(Level::best(), numbers(&input), numbers(&gradient)), shape)
        })
    }

    fn normalise(
        input: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
        epsilon: f64,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        if input.dtype() != DType::F32 {
            let found = Flex::batch_norm_train(input, scale, shift, epsilon);
            return (found.output, found.mean, found.variance);
        }
        let shape = input.shape();
        let (input, scale, shift) = (input.to_contiguous(), scale.to_contiguous(), shift.to_contiguous());
        let norm = norm(&shape, epsilon);
        let found = norm.forward(Level::best(), numbers(&input), numbers(&scale), numbers(&shift));
        let of_channels = |numbers| tensor(numbers, Shape::new([norm.channels]));
        (tensor(found.output, shape), of_channels(found.mean), of_channels(found.variance))
    }

    fn normalise_back(
        input: FlexTensor,
        scale: FlexTensor,
        [mean, variance]: [FlexTensor; 2],
        epsilon: f64,
        gradient: FlexTensor,
    ) -> [FlexTensor; 3] {
        if input.dtype() != DType::F32 {
            let found = Flex::batch_norm_train_backward(input, scale, mean, variance, epsilon, gradient);
            return [found.x_grad, found.gamma_grad, found.beta_grad];
        }
        let shape = input.shape();
        let (input, gradient, scale) =
            (input.to_contiguous(), gradient.to_contiguous(), scale.to_contiguous());
        let norm = norm(&shape, epsilon);
        let statistics = [numbers(&mean), numbers(&variance)];
        let found =
            norm.backward(Level::best(), numbers(&input), numbers(&gradient), numbers(&scale), statistics);
        let of_channels = |numbers| tensor(numbers, Shape::new([norm.channels]));
        [tensor(found.input, shape), of_channels(found.scale), of_channels(found.shift)]
    }
}

/// The gradient of softmax by burn's own operations, which has none for it.
fn softmax_back<B: Backend>(output: FloatTensor<B>, gradient: FloatTensor<B>) -> FloatTensor<B> {
    let last = output.shape().num_dims() - 1;
    let sum = B::float_sum_dim(B::float_mul(output.clone(), gradient.clone()), last);
    B::float_mul(output, B::float_sub(gradient, sum))
}

/// A function of the numbers of a tensor, and of how many there are in a row.
fn of_rows(input: FlexTensor, function: impl FnOnce(&[f32], usize) -> Vec<f32>) -> FlexTensor {
    let (input, shape) = (input.to_contiguous(), input.shape());
    tensor(function(numbers(&input), shape[shape.num_dims() - 1]), shape)
}

/// The same of two tensors.
fn of_both(
    one: FlexTensor,
    other: FlexTensor,
    function: impl FnOnce(&[f32], &[f32], usize) -> Vec<f32>,
) -> FlexTensor {
    let other = other.to_contiguous();
    of_rows(one, |one, columns| function(one, numbers(&other), columns))
}

/// Why no size is refused.
const FITS: &str = "tensors have the numbers of their shapes";

fn tensor(numbers: Vec<f32>, shape: Shape) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(numbers, shape))
}

/// Of a tensor that is contiguous.
fn numbers(tensor: &FlexTensor) -> &[f32] {
    let (start, end) = tensor.layout().contiguous_offsets().expect("contiguous");
    &tensor.storage()[start..end]
}

/// Computes in 32 bits, and rounds to the 16 bits of the inputs where they have no more.
fn in_f32<const N: usize>(
    inputs: [FlexTensor; N],
    compute: impl FnOnce([FlexTensor; N]) -> FlexTensor,
) -> FlexTensor {
    match inputs[0].dtype() {
        DType::F32 => compute(inputs),
        half => {
            let wide = inputs.map(|input| Flex::float_cast(input, FloatDType::F32));
            Flex::float_cast(compute(wide), FloatDType::from(half))
        }
    }
}

fn matrices(left: FlexTensor, right: FlexTensor) -> FlexTensor {
    let (left, right) = (with_forward_strides(left), with_forward_strides(right));
    let mut shape = left.shape();
    let rank = shape.num_dims();
    let (rows, columns) = (shape[rank - 2], right.shape()[rank - 1]);
    shape[rank - 1] = columns;
    let mut product = vec![0.0; shape.num_elements()];
    if product.is_empty() {
        return tensor(product, shape);
    }
    let all = product.par_chunks_mut(rows * columns).enumerate();
    all.for_each(|(index, product)| {
        multiply(Level::best(), matrix(&left, index), matrix(&right, index), product)
    });
    tensor(product, shape)
}

/// The same numbers, copied if they are laid out backwards.
fn with_forward_strides(tensor: FlexTensor) -> FlexTensor {
    match tensor.layout().strides().iter().all(|&stride| stride >= 0) {
        true => tensor,
        false => tensor.to_contiguous(),
    }
}

/// One of the matrices of a tensor.
fn matrix(tensor: &FlexTensor, mut index: usize) -> Matrix<'_> {
    let (shape, strides) = (tensor.layout().shape(), tensor.layout().strides());
    let rank = shape.num_dims();
    let mut start = tensor.layout().start_offset();
    for axis in (0..rank - 2).rev() {
        start += index % shape[axis] * strides[axis].unsigned_abs();
        index /= shape[axis];
    }
    let strides = [rank - 2, rank - 1].map(|axis| strides[axis].unsigned_abs());
    Matrix::strided(&tensor.storage()[start..], [shape[rank - 2], shape[rank - 1]], strides)
}

/// The convolution, unless it is one that only burn has: in groups, or in 64 bits.
fn conv(input: &FlexTensor, weight: &FlexTensor, options: &ConvOptions<2>) -> Option<Conv> {
    if options.groups != 1 || input.dtype() == DType::F64 {
        return None;
    }
    let (input, weight) = (input.shape(), weight.shape());
    let conv = Conv {
        batch: input[0],
        channels: input[1],
        height: input[2],
        width: input[3],
        outputs: weight[0],
        kernel: [weight[2], weight[3]],
        stride: options.stride,
        padding: options.padding,
        dilation: options.dilation,
    };
    conv.output().is_ok().then_some(conv)
}

fn output_shape(conv: &Conv) -> Shape {
    let [height, width] = conv.output().expect("asked before");
    Shape::new([conv.batch, conv.outputs, height, width])
}

/// Of the images of a shape, and the shape of the output.
fn max_pool(shape: &Shape, windows: Windows) -> (MaxPool, Shape) {
    let Windows { size, stride, padding, dilation } = windows;
    let pool = MaxPool { height: shape[2], width: shape[3], window: size, stride, padding, dilation };
    let [rows, columns] = pool.output().unwrap_or_else(|| panic!("windows {windows:?} of images {shape:?}"));
    (pool, Shape::new([shape[0], shape[1], rows, columns]))
}

fn norm(shape: &Shape, epsilon: f64) -> BatchNorm {
    let (batch, channels) = (shape[0], shape[1]);
    BatchNorm { batch, channels, pixels: shape.num_elements() / (batch * channels), epsilon: epsilon as f32 }
}
