//! Without a device but the CPU, nothing is launched.

use std::ops::Range;

use burn::tensor::{Int, Tensor};

use super::Turn;

const NONE: &str = "the program was built for the CPU alone";

pub(super) fn alignment(_: &Tensor<1>) -> usize {
    unreachable!("{NONE}")
}

pub(super) fn view(_: &Tensor<1>, _: Range<usize>) -> Tensor<1> {
    unreachable!("{NONE}")
}

pub(super) fn update(
    Turn { optimizer, rate, factor, corrections }: &Turn,
    _: &Tensor<1>,
    _: &Tensor<1>,
    _: Option<&Tensor<1>>,
    _: (&Tensor<1>, usize),
    _: (&Tensor<1, Int>, usize),
) {
    unreachable!("{NONE}: {optimizer:?}, {rate}, {factor}, {corrections:?}")
}

pub(super) fn squares_len(_: usize) -> usize {
    unreachable!("{NONE}")
}

pub(super) fn squares(_: &Tensor<1>, _: Range<usize>, _: &Tensor<1, Int>, _: usize) {
    unreachable!("{NONE}")
}

pub(super) fn add_whole(
    _: Option<&Tensor<1, Int>>,
    _: &Tensor<1>,
    _: (&Tensor<1, Int>, usize),
    _: (&Tensor<1, Int>, usize),
) {
    unreachable!("{NONE}")
}

pub(super) fn from_whole(_: &Tensor<1, Int>, _: &Tensor<1>, _: (&Tensor<1, Int>, usize)) {
    unreachable!("{NONE}")
}

pub(super) fn dropout(_: &Tensor<1>, _: u64, _: u32, _: f32) {
    unreachable!("{NONE}")
}
