//! The operations on GPUs that burn would make of many launches: one for each, or a few, in 32 bits whatever the tensors have. Products are
//! burn's, and convolutions are products.

#![allow(clippy::too_many_arguments, reason = "a kernel has an argument for each buffer and number")]

mod batch_norm;
mod convolution;
mod kernels;

use burn::backend::ops::{ConvOptions, FloatTensorOps, ModuleOps};
use burn::backend::{Cube, TensorMetadata};
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Shape, Slice};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;

use self::convolution::Convolution;
use super::kernels::Kernels;
use crate::cube::{CUBES, DeviceTensor, UNITS, cubes, element};

/// Rows whose gradients of scale and shift one unit adds up.
const STRETCH: usize = 64;

impl Kernels for Cube {
    fn convolve(input: DeviceTensor, weight: DeviceTensor, options: ConvOptions<2>) -> DeviceTensor {
        match Convolution::new(&input, &weight, &options) {
            Some(convolution) => convolution.forward(input, weight),
            None => Cube::conv2d(input, weight, None, options),
        }
    }

    fn convolve_back_to_input(
        input: DeviceTensor,
        weight: DeviceTensor,
        gradient: DeviceTensor,
        options: ConvOptions<2>,
    ) -> DeviceTensor {
        match Convolution::new(&input, &weight, &options) {
            Some(convolution) => convolution.input_gradient(weight, gradient),
            None => Cube::conv2d_x_backward(input, weight, gradient, options),
        }
    }

    fn convolve_back_to_weight(
        input: DeviceTensor,
        weight: DeviceTensor,
        gradient: DeviceTensor,
        options: ConvOptions<2>,
    ) -> DeviceTensor {
        match Convolution::new(&input, &weight, &options) {
            Some(convolution) => convolution.weight_gradient(input, gradient),
            None => Cube::conv2d_weight_backward(input, weight, gradient, options),
        }
    }

    fn normalise(
        input: DeviceTensor,
        scale: DeviceTensor,
        shift: DeviceTensor,
        epsilon: f64,
    ) -> (DeviceTensor, DeviceTensor, DeviceTensor) {
        batch_norm::forward(input, scale, shift, epsilon)
    }

    fn normalise_back(
        input: DeviceTensor,
        scale: DeviceTensor,
        statistics: [DeviceTensor; 2],
        epsilon: f64,
        gradient: DeviceTensor,
    ) -> [DeviceTensor; 3] {
        batch_norm::backward(input, scale, statistics, epsilon, gradient)
    }

    fn softmax_rows(input: DeviceTensor) -> DeviceTensor {
        let input = contiguous(input);
        let output = like(&input);
        let (count, dim, columns) = by_rows(&input);
        let (client, dtype) = (input.client.clone(), element(input.dtype));
        let (from, to) = (input.into_buffer_arg(), output.clone().into_buffer_arg());
        kernels::softmax::launch(&client, count, dim, from, to, columns, dim.x, dtype);
        output
    }

    fn softmax_rows_back(output: DeviceTensor, gradient: DeviceTensor) -> DeviceTensor {
        let (output, gradient) = (contiguous(output), contiguous(gradient));
        let found = like(&output);
        let (count, dim, columns) = by_rows(&output);
        let (client, dtype) = (output.client.clone(), element(output.dtype));
        let (output, gradient) = (output.into_buffer_arg(), gradient.into_buffer_arg());
        let to = found.clone().into_buffer_arg();
        kernels::softmax_back::launch(&client, count, dim, output, gradient, to, columns, dim.x, dtype);
        found
    }

    fn gelu_all(input: DeviceTensor) -> DeviceTensor {
        let input = contiguous(input);
        let output = like(&input);
        let (count, dim) = (cubes(input.shape().num_elements(), 1), CubeDim::new_1d(UNITS));
        let (client, dtype) = (input.client.clone(), element(input.dtype));
        kernels::gelu::launch(
            &client,
            count,
            dim,
            input.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            dtype,
        );
        output
    }

    fn gelu_all_back(input: DeviceTensor, gradient: DeviceTensor) -> DeviceTensor {
        let (input, gradient) = (contiguous(input), contiguous(gradient));
        let found = like(&input);
        let (count, dim) = (cubes(input.shape().num_elements(), 1), CubeDim::new_1d(UNITS));
        let (client, dtype) = (input.client.clone(), element(input.dtype));
        let (input, gradient) = (input.into_buffer_arg(), gradient.into_buffer_arg());
        kernels::gelu_back::launch(
            &client,
            count,
            dim,
            input,
            gradient,
            found.clone().into_buffer_arg(),
            dtype,
        );
        found
    }

    fn layer_norm_rows(
        input: DeviceTensor,
        scale: DeviceTensor,
        shift: DeviceTensor,
        epsilon: f64,
    ) -> DeviceTensor {
        let (input, scale, shift) = (contiguous(input), contiguous(scale), contiguous(shift));
        let output = like(&input);
        let (count, dim, columns) = by_rows(&input);
        let client = input.client.clone();
        let (from, to) = (input.into_buffer_arg(), output.clone().into_buffer_arg());
        let (scale, shift) = (scale.into_buffer_arg(), shift.into_buffer_arg());
        kernels::layer_norm::launch(
            &client,
            count,
            dim,
            from,
            scale,
            shift,
            to,
            columns,
            epsilon as f32,
            dim.x,
        );
        output
    }

    fn layer_norm_rows_back(
        input: DeviceTensor,
        scale: DeviceTensor,
        epsilon: f64,
        gradient: DeviceTensor,
    ) -> [DeviceTensor; 3] {
        let (input, scale, gradient) = (contiguous(input), contiguous(scale), contiguous(gradient));
        let (rows, columns) = rows_of(&input);
        let client = input.client.clone();
        let (of_input, normalised) = (like(&input), like(&input));
        let stretches = rows.div_ceil(STRETCH);
        let of_columns = empty(&gradient, Shape::new([stretches, 2 * columns]), DType::F32);
        let (count, dim, _) = by_rows(&input);
        let width = columns as u32;
        let (input, scale) = (input.into_buffer_arg(), scale.into_buffer_arg());
        let [to, also] = [&of_input, &normalised].map(|it| it.clone().into_buffer_arg());
        let from = gradient.clone().into_buffer_arg();
        let epsilon = epsilon as f32;
        kernels::layer_norm_back::launch(
            &client, count, dim, input, scale, from, to, also, width, epsilon, dim.x,
        );
        let count = CubeCount::new_2d(columns.div_ceil(UNITS as usize) as u32, stretches as u32);
        let (gradient, normalised) = (gradient.into_buffer_arg(), normalised.into_buffer_arg());
        let sums = of_columns.clone().into_buffer_arg();
        let stretch = STRETCH as u32;
        kernels::sums_of_columns::launch(
            &client,
            count,
            CubeDim::new_1d(UNITS),
            gradient,
            normalised,
            sums,
            rows as u32,
            width,
            stretch,
        );
        let sums = Cube::float_reshape(Cube::float_sum_dim(of_columns, 0), Shape::new([2 * columns]));
        let of = |range: std::ops::Range<usize>| Cube::float_slice(sums.clone(), &[Slice::from(range)]);
        [of_input, of(0..columns), of(columns..2 * columns)]
    }
}

/// Of logits in 32 bits: the gradient of the loss, and the sum of the losses and of right answers, `[2]`.
pub(super) fn cross_entropy(logits: DeviceTensor, labels: DeviceTensor) -> (DeviceTensor, DeviceTensor) {
    let (logits, labels) = (contiguous(logits), contiguous(labels));
    let (rows, _) = rows_of(&logits);
    let client = logits.client.clone();
    let gradient = like(&logits);
    let of_rows = empty(&logits, Shape::new([rows, 2]), DType::F32);
    let (count, dim, columns) = by_rows(&logits);
    let (logits, labels) = (logits.into_buffer_arg(), labels.into_buffer_arg());
    let (to, also) = (gradient.clone().into_buffer_arg(), of_rows.clone().into_buffer_arg());
    kernels::cross_entropy::launch(&client, count, dim, logits, labels, to, also, columns, dim.x);
    (gradient, Cube::float_reshape(Cube::float_sum_dim(of_rows, 0), Shape::new([2])))
}

fn contiguous(tensor: DeviceTensor) -> DeviceTensor {
    if tensor.is_contiguous() { tensor } else { burn_cubecl::kernel::into_contiguous(tensor) }
}

/// Memory for as many numbers.
fn like(tensor: &DeviceTensor) -> DeviceTensor {
    empty(tensor, tensor.shape(), tensor.dtype)
}

/// Memory on the device of a tensor, of numbers one after the other: that of burn's own operations may have gaps behind rows.
fn empty(on: &DeviceTensor, shape: Shape, dtype: DType) -> DeviceTensor {
    empty_device_contiguous_dtype(on.client.clone(), on.device.clone(), shape, dtype)
}

/// Rows, which are along the last dimension, and the numbers of each.
fn rows_of(tensor: &DeviceTensor) -> (usize, usize) {
    let shape = tensor.shape();
    let columns = shape[shape.num_dims() - 1];
    (shape.num_elements() / columns.max(1), columns)
}

/// A cube for each row, or for each of several rounds; its units; and the numbers of a row.
fn by_rows(tensor: &DeviceTensor) -> (CubeCount, CubeDim, u32) {
    let (rows, columns) = rows_of(tensor);
    let units = columns.next_power_of_two().clamp(32, UNITS as usize) as u32;
    (CubeCount::new_1d(rows.clamp(1, 64 * CUBES - 1) as u32), CubeDim::new_1d(units), columns as u32)
}

#[cfg(test)]
mod tests;
