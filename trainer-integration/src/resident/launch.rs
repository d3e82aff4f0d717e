//! Kernels on burn's tensors. They write into the memory of tensors, which their caller keeps from being copied lazily: a clone of such a
//! tensor has the same memory.

use std::ops::Range;

use burn::backend::Cube;
use burn::cubecl::prelude::*;
use burn::tensor::{Int, Shape, Tensor};

use super::Turn;
use super::kernels;
use crate::cube::{CUBES, DeviceTensor, UNITS, cubes};
use crate::optim::Optimizer;

fn floats(tensor: &Tensor<1>) -> DeviceTensor {
    tensor.clone().try_into_primitive::<Cube>().expect("a tensor in no graph, of a device")
}

fn words(tensor: &Tensor<1, Int>) -> DeviceTensor {
    tensor.clone().try_into_primitive::<Cube>().expect("a tensor of a device")
}

/// How many bytes apart two tensors in one memory begin, at least: each a multiple of it.
pub(super) fn alignment(tensor: &Tensor<1>) -> usize {
    floats(tensor).client.properties().memory.alignment as usize
}

/// A stretch of a tensor, in the same memory. It begins where memory is aligned.
pub(super) fn view(tensor: &Tensor<1>, range: Range<usize>) -> Tensor<1> {
    let (mut all, length) = (floats(tensor), tensor.dims()[0]);
    let size = tensor.dtype().size();
    let (before, behind) = (range.start * size, (length - range.end) * size);
    all.handle = all.handle.offset_start(before as u64).offset_end(behind as u64);
    all.meta.shape = Shape::new([range.len()]);
    Tensor::from_primitive::<Cube>(all)
}

/// Moves weights against the numbers of a gradient from `start` on, as [`Moments::update`](crate::optim::Moments::update) does.
pub(super) fn update(
    turn: &Turn,
    weights: &Tensor<1>,
    first: &Tensor<1>,
    second: Option<&Tensor<1>>,
    (gradient, start): (&Tensor<1>, usize),
    (table, count): (&Tensor<1, Int>, usize),
) {
    let Turn { optimizer, rate, factor, corrections: [correct1, correct2] } = *turn;
    let length = first.dims()[0];
    if length == 0 {
        return;
    }
    let weights = floats(weights);
    let (client, dim, cubes) = (weights.client.clone(), CubeDim::new_1d(UNITS), cubes(length, 1));
    let (weights, first) = (weights.into_buffer_arg(), floats(first).into_buffer_arg());
    let (gradient, table) = (floats(gradient).into_buffer_arg(), words(table).into_buffer_arg());
    let (count, start) = (count as u32, start as u32);
    let zero = 0;
    match optimizer {
        Optimizer::Sgd { momentum, weight_decay } => kernels::sgd::launch(
            &client,
            cubes,
            dim,
            weights,
            first,
            gradient,
            table,
            count,
            start,
            rate,
            factor,
            momentum,
            weight_decay,
            zero,
        ),
        Optimizer::Lion { beta1, beta2, weight_decay } => kernels::lion::launch(
            &client,
            cubes,
            dim,
            weights,
            first,
            gradient,
            table,
            count,
            start,
            rate,
            factor,
            beta1,
            beta2,
            weight_decay,
            zero,
        ),
        Optimizer::Adam { beta1, beta2, epsilon, weight_decay }
        | Optimizer::AdamW { beta1, beta2, epsilon, weight_decay } => {
            let second = floats(second.expect("an optimizer of two moments has both")).into_buffer_arg();
            let is_apart = matches!(optimizer, Optimizer::AdamW { .. });
            kernels::adam::launch(
                &client,
                cubes,
                dim,
                weights,
                first,
                second,
                gradient,
                table,
                count,
                start,
                rate,
                factor,
                beta1,
                beta2,
                epsilon,
                weight_decay,
                correct1,
                correct2,
                zero,
                is_apart,
            );
        }
        Optimizer::Lamb { .. } | Optimizer::Lars { .. } => {
            unreachable!("their trust ratios are found on the host")
        }
    }
}

/// How many sums [`squares`] makes.
pub(super) fn squares_len(length: usize) -> usize {
    /// Numbers of a unit: there are a few thousand sums at most.
    const EACH: usize = 16;
    length.div_ceil(UNITS as usize * EACH).clamp(1, CUBES)
}

/// Sums of squares of the numbers of a range, as the bits of `sums` from `into` on.
pub(super) fn squares(numbers: &Tensor<1>, range: Range<usize>, sums: &Tensor<1, Int>, into: usize) {
    let numbers = floats(numbers);
    let (client, count) = (numbers.client.clone(), CubeCount::new_1d(squares_len(range.len()) as u32));
    let (start, length) = (range.start as u32, range.len() as u32);
    let (numbers, sums) = (numbers.into_buffer_arg(), words(sums).into_buffer_arg());
    kernels::squares::launch(
        &client,
        count,
        CubeDim::new_1d(UNITS),
        numbers,
        sums,
        start,
        length,
        into as u32,
    );
}

/// Notes the largest exponent fields of numbers in `largest` from `into` on, and adds the numbers to sums in whole numbers, two words each,
/// if there are any.
pub(super) fn add_whole(
    sums: Option<&Tensor<1, Int>>,
    numbers: &Tensor<1>,
    (largest, into): (&Tensor<1, Int>, usize),
    (table, count): (&Tensor<1, Int>, usize),
) {
    let (numbers, length) = (floats(numbers), numbers.dims()[0]);
    let client = numbers.client.clone();
    let adds = sums.is_some();
    let sums = match sums {
        Some(sums) => words(sums),
        // Memory that the kernel takes no notice of, and that is none of the others'.
        None => words(&Tensor::empty([2], &table.device())),
    };
    let (sums, largest) = (sums.into_buffer_arg(), words(largest).into_buffer_arg());
    let (numbers, table) = (numbers.into_buffer_arg(), words(table).into_buffer_arg());
    let (cubes, dim) = (cubes(length, 4), CubeDim::new_1d(UNITS));
    let (count, length, into) = (count as u32, length as u32, into as u32);
    kernels::add_whole::launch(&client, cubes, dim, sums, largest, numbers, table, count, length, into, adds);
}

/// The numbers nearest to such sums.
pub(super) fn from_whole(
    sums: &Tensor<1, Int>,
    numbers: &Tensor<1>,
    (table, count): (&Tensor<1, Int>, usize),
) {
    let (numbers, length) = (floats(numbers), numbers.dims()[0]);
    let client = numbers.client.clone();
    let (sums, table) = (words(sums).into_buffer_arg(), words(table).into_buffer_arg());
    let (cubes, dim) = (cubes(length, 1), CubeDim::new_1d(UNITS));
    kernels::from_whole::launch(&client, cubes, dim, sums, numbers.into_buffer_arg(), table, count as u32);
}

/// Fills a tensor with 0 where a number of a key is below the threshold, in steps of 2^-24, and with `kept` elsewhere.
pub(super) fn dropout(factors: &Tensor<1>, key: u64, threshold: u32, kept: f32) {
    let (factors, length) = (floats(factors), factors.dims()[0]);
    let (client, cubes, dim) = (factors.client.clone(), cubes(length, 4), CubeDim::new_1d(UNITS));
    let (low, high) = (key as u32, (key >> 32) as u32);
    kernels::dropout::launch(&client, cubes, dim, factors.into_buffer_arg(), low, high, threshold, kept);
}
