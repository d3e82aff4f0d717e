//! Kernels by rows: a cube has a row at a time, whose numbers its units take in turn.

#![allow(clippy::too_many_arguments, reason = "a kernel has an argument for each buffer and number")]
#![allow(
    unstable_name_collisions,
    reason = "the error function in kernels is not that of numbers on the host"
)]

use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;

use crate::cube::{largest_of_units, sum_of_units};

#[cube(launch)]
pub(super) fn softmax<E: Float>(
    input: &[E],
    output: &mut [E],
    columns: u32,
    #[comptime] units: u32,
    #[define(E)] _dtype: ElemType,
) {
    let mut room = Shared::<[f32]>::new_slice(comptime![units as usize]);
    let columns = columns as usize;
    let mut row = CUBE_POS;
    while row * columns < input.len() {
        let (start, end) = (row * columns, (row + 1) * columns);
        let mut largest = f32::cast_from(input[start]);
        let mut at = start + UNIT_POS as usize;
        while at < end {
            let number = f32::cast_from(input[at]);
            if number > largest {
                largest = number;
            }
            at += comptime![units as usize];
        }
        let largest = largest_of_units(&mut room, largest);
        let mut sum = 0.0f32;
        let mut at = start + UNIT_POS as usize;
        while at < end {
            sum += (f32::cast_from(input[at]) - largest).exp();
            at += comptime![units as usize];
        }
        let sum = sum_of_units(&mut room, sum);
        let mut at = start + UNIT_POS as usize;
        while at < end {
            output[at] = E::cast_from((f32::cast_from(input[at]) - largest).exp() / sum);
            at += comptime![units as usize];
        }
        row += CUBE_COUNT;
    }
}

/// From the output and its gradient.
#[cube(launch)]
pub(super) fn softmax_back<E: Float>(
    output: &[E],
    gradient: &[E],
    of_input: &mut [E],
    columns: u32,
    #[comptime] units: u32,
    #[define(E)] _dtype: ElemType,
) {
    let mut room = Shared::<[f32]>::new_slice(comptime![units as usize]);
    let columns = columns as usize;
    let mut row = CUBE_POS;
    while row * columns < output.len() {
        let (start, end) = (row * columns, (row + 1) * columns);
        let mut sum = 0.0f32;
        let mut at = start + UNIT_POS as usize;
        while at < end {
            sum += f32::cast_from(output[at]) * f32::cast_from(gradient[at]);
            at += comptime![units as usize];
        }
        let sum = sum_of_units(&mut room, sum);
        let mut at = start + UNIT_POS as usize;
        while at < end {
            of_input[at] = E::cast_from(f32::cast_from(output[at]) * (f32::cast_from(gradient[at]) - sum));
            at += comptime![units as usize];
        }
        row += CUBE_COUNT;
    }
}

#[cube(launch)]
pub(super) fn gelu<E: Float>(input: &[E], output: &mut [E], #[define(E)] _dtype: ElemType) {
    let mut place = ABSOLUTE_POS;
    while place < output.len() {
        let x = f32::cast_from(input[place]);
        let root = comptime![std::f32::consts::FRAC_1_SQRT_2].runtime();
        output[place] = E::cast_from(0.5f32 * x * (1.0f32 + (x * root).erf()));
        place += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// From the input and the gradient of the output.
#[cube(launch)]
pub(super) fn gelu_back<E: Float>(
    input: &[E],
    gradient: &[E],
    of_input: &mut [E],
    #[define(E)] _dtype: ElemType,
) {
    let mut place = ABSOLUTE_POS;
    while place < of_input.len() {
        let x = f32::cast_from(input[place]);
        let root = comptime![std::f32::consts::FRAC_1_SQRT_2].runtime();
        let share = 0.5f32 * (1.0f32 + (x * root).erf());
        // The density is 1 / sqrt(2 pi) at 0.
        let slope = share + x * 0.398_942_3f32 * (-0.5f32 * x * x).exp();
        of_input[place] = E::cast_from(f32::cast_from(gradient[place]) * slope);
        place += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// The mean of a row, and the inverse of its standard deviation.
#[cube]
fn statistics(
    input: &[f32],
    room: &mut Shared<[f32]>,
    start: usize,
    end: usize,
    epsilon: f32,
    #[comptime] units: u32,
) -> (f32, f32) {
    let count = f32::cast_from((end - start) as u32);
    let mut sum = 0.0f32;
    let mut at = start + UNIT_POS as usize;
    while at < end {
        sum += input[at];
        at += comptime![units as usize];
    }
    let mean = sum_of_units(room, sum) / count;
    let mut squares = 0.0f32;
    let mut at = start + UNIT_POS as usize;
    while at < end {
        let centred = input[at] - mean;
        squares += centred * centred;
        at += comptime![units as usize];
    }
    let variance = sum_of_units(room, squares) / count;
    (mean, 1.0f32 / (variance + epsilon).sqrt())
}

#[cube(launch)]
pub(super) fn layer_norm(
    input: &[f32],
    scale: &[f32],
    shift: &[f32],
    output: &mut [f32],
    columns: u32,
    epsilon: f32,
    #[comptime] units: u32,
) {
    let mut room = Shared::<[f32]>::new_slice(comptime![units as usize]);
    let columns = columns as usize;
    let mut row = CUBE_POS;
    while row * columns < input.len() {
        let (start, end) = (row * columns, (row + 1) * columns);
        let (mean, inverse) = statistics(input, &mut room, start, end, epsilon, units);
        let mut at = start + UNIT_POS as usize;
        while at < end {
            output[at] = (input[at] - mean) * inverse * scale[at - start] + shift[at - start];
            at += comptime![units as usize];
        }
        row += CUBE_COUNT;
    }
}

/// From the input and the gradient of the output; the normalised input is kept for the gradient of the scale.
#[cube(launch)]
pub(super) fn layer_norm_back(
    input: &[f32],
    scale: &[f32],
    gradient: &[f32],
    of_input: &mut [f32],
    normalised: &mut [f32],
    columns: u32,
    epsilon: f32,
    #[comptime] units: u32,
) {
    let mut room = Shared::<[f32]>::new_slice(comptime![units as usize]);
    let columns = columns as usize;
    let count = f32::cast_from(columns as u32);
    let mut row = CUBE_POS;
    while row * columns < input.len() {
        let (start, end) = (row * columns, (row + 1) * columns);
        let (mean, inverse) = statistics(input, &mut room, start, end, epsilon, units);
        let mut sum = 0.0f32;
        let mut projected = 0.0f32;
        let mut at = start + UNIT_POS as usize;
        while at < end {
            let scaled = gradient[at] * scale[at - start];
            sum += scaled;
            projected += scaled * ((input[at] - mean) * inverse);
            at += comptime![units as usize];
        }
        let sum = sum_of_units(&mut room, sum) / count;
        let projected = sum_of_units(&mut room, projected) / count;
        let mut at = start + UNIT_POS as usize;
        while at < end {
            let of_row = (input[at] - mean) * inverse;
            normalised[at] = of_row;
            of_input[at] = inverse * (gradient[at] * scale[at - start] - sum - of_row * projected);
            at += comptime![units as usize];
        }
        row += CUBE_COUNT;
    }
}

/// Of stretches of rows: for each column the sums of products of two tensors' numbers, and of those of the first.
#[cube(launch)]
pub(super) fn sums_of_columns(
    one: &[f32],
    other: &[f32],
    sums: &mut [f32],
    rows: u32,
    columns: u32,
    stretch: u32,
) {
    let column = CUBE_POS_X * CUBE_DIM_X + UNIT_POS_X;
    if column < columns {
        let mut row = CUBE_POS_Y * stretch;
        let mut end = row + stretch;
        if end > rows {
            end = rows;
        }
        let mut products = 0.0f32;
        let mut plain = 0.0f32;
        while row < end {
            let at = (row * columns + column) as usize;
            products += one[at] * other[at];
            plain += one[at];
            row += 1u32;
        }
        let start = CUBE_POS_Y * 2u32 * columns + column;
        sums[start as usize] = products;
        sums[(start + columns) as usize] = plain;
    }
}

/// The gradient of the loss of each row of logits, and its loss and whether the label's logit is the first of the largest.
#[cube(launch)]
pub(super) fn cross_entropy(
    logits: &[f32],
    labels: &[u32],
    gradient: &mut [f32],
    of_rows: &mut [f32],
    classes: u32,
    #[comptime] units: u32,
) {
    let mut room = Shared::<[f32]>::new_slice(comptime![units as usize]);
    let classes = classes as usize;
    let mut row = CUBE_POS;
    while row * classes < logits.len() {
        let (start, end) = (row * classes, (row + 1) * classes);
        // `IGNORED`; all units of a cube take the same way all the same.
        let is_counted = labels[row] != 0xffff_ffffu32;
        let mut label = start;
        if is_counted {
            label += labels[row] as usize;
        }
        let own = logits[label];
        let mut largest = own;
        // As many logits as keep the label's from being the first of the largest.
        let mut better = 0.0f32;
        let mut at = start + UNIT_POS as usize;
        while at < end {
            let logit = logits[at];
            if logit > largest {
                largest = logit;
            }
            if logit > own || (logit == own && at < label) {
                better += 1.0f32;
            }
            at += comptime![units as usize];
        }
        let largest = largest_of_units(&mut room, largest);
        let better = sum_of_units(&mut room, better);
        let mut sum = 0.0f32;
        let mut at = start + UNIT_POS as usize;
        while at < end {
            sum += (logits[at] - largest).exp();
            at += comptime![units as usize];
        }
        let sum = sum_of_units(&mut room, sum);
        let mut at = start + UNIT_POS as usize;
        while at < end {
            let mut share = (logits[at] - largest).exp() / sum;
            if at == label {
                share -= 1.0f32;
            }
            if !is_counted {
                share = 0.0f32;
            }
            gradient[at] = share;
            at += comptime![units as usize];
        }
        if UNIT_POS == 0 {
            let mut loss = 0.0f32;
            let mut right = 0.0f32;
            if is_counted {
                loss = sum.ln() - (own - largest);
                if better == 0.0f32 {
                    right = 1.0f32;
                }
            }
            of_rows[2 * row] = loss;
            of_rows[2 * row + 1] = right;
        }
        row += CUBE_COUNT;
    }
}
