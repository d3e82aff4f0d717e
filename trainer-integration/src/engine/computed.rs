//! The parameters of a block in the numbers that they are computed in, each in memory of its own.

use std::ops::Range;

use burn::tensor::{DType, Device, Element, Tensor, TensorData};
use half::{bf16, f16};

use super::segments::Ownership;
use crate::collective::sums::gather_pieces;
use crate::collective::{Collective, CollectiveError};
use crate::device::Precision;
use crate::flat_block::to_numbers;

/// By parameter.
#[derive(Clone, Debug)]
pub(super) enum Computed {
    F32(Vec<Vec<f32>>),
    Bf16(Vec<Vec<bf16>>),
    F16(Vec<Vec<f16>>),
}

impl Computed {
    /// All zero.
    pub(super) fn zeros(precision: Precision, parameters: &[Range<usize>]) -> Computed {
        let lengths = parameters.iter().map(ExactSizeIterator::len);
        match precision {
            Precision::F32 => Computed::F32(lengths.map(|length| vec![0.0; length]).collect()),
            Precision::Bf16 => Computed::Bf16(lengths.map(|length| vec![bf16::ZERO; length]).collect()),
            Precision::F16 => Computed::F16(lengths.map(|length| vec![f16::ZERO; length]).collect()),
        }
    }

    /// Bytes of their memory.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Computed::F32(all) => all.iter().map(|numbers| size_of_val(&numbers[..])).sum(),
            Computed::Bf16(all) => all.iter().map(|numbers| size_of_val(&numbers[..])).sum(),
            Computed::F16(all) => all.iter().map(|numbers| size_of_val(&numbers[..])).sum(),
        }
    }

    /// Takes over the numbers that begin at `start` in the block, those that are parameters.
    pub(super) fn copy_from(&mut self, parameters: &[Range<usize>], start: usize, numbers: &[f32]) {
        match self {
            Computed::F32(all) => copy(all, parameters, start, numbers, |number| number),
            Computed::Bf16(all) => copy(all, parameters, start, numbers, bf16::from_f32),
            Computed::F16(all) => copy(all, parameters, start, numbers, f16::from_f32),
        }
    }

    /// As tensors, which have this memory if the device is the host.
    pub(super) fn into_tensors(self, precision: Precision, device: &Device) -> Vec<Tensor<1>> {
        let tensor = |data: TensorData| Tensor::<1>::from_data(data, device).cast(precision.dtype());
        // Asked for by its type: a device's own would be another.
        let half = |data: TensorData, dtype: DType| Tensor::from_data(data, (device, dtype));
        match self {
            Computed::F32(all) => all.into_iter().map(|numbers| tensor(flat(numbers))).collect(),
            Computed::Bf16(all) => all.into_iter().map(|numbers| half(flat(numbers), DType::BF16)).collect(),
            Computed::F16(all) => all.into_iter().map(|numbers| half(flat(numbers), DType::F16)).collect(),
        }
    }

    /// How many numbers each parameter has.
    pub(super) fn lengths(&self) -> Vec<usize> {
        match self {
            Computed::F32(all) => all.iter().map(Vec::len).collect(),
            Computed::Bf16(all) => all.iter().map(Vec::len).collect(),
            Computed::F16(all) => all.iter().map(Vec::len).collect(),
        }
    }

    /// The memory of tensors without other users; a copy otherwise.
    pub(super) fn of_tensors(tensors: Vec<Tensor<1>>, precision: Precision) -> Computed {
        let tensors = tensors.into_iter();
        match precision {
            Precision::F32 => Computed::F32(tensors.map(to_numbers).collect()),
            Precision::Bf16 => Computed::Bf16(
                tensors.map(|it| it.into_data().try_into_vec_as().expect("of this precision")).collect(),
            ),
            Precision::F16 => Computed::F16(
                tensors.map(|it| it.into_data().try_into_vec_as().expect("of this precision")).collect(),
            ),
        }
    }
}

/// Memory of a block, into which what others own of its first numbers is gathered.
#[derive(Debug)]
pub(super) struct Gathering {
    pub(super) memory: Computed,
    pub(super) parameters: Vec<Range<usize>>,
    pub(super) ownership: Ownership,
    /// Of how many numbers.
    pub(super) end: usize,
}

/// Fills in what the others of a group own; all blocks are computed in the same numbers.
pub(super) fn gather(
    collective: &mut dyn Collective,
    group: &[u32],
    blocks: &mut [Gathering],
) -> Result<(), CollectiveError> {
    let (mut full, mut brain, mut half) = (Vec::new(), Vec::new(), Vec::new());
    for Gathering { memory, parameters, ownership, end } in blocks {
        match memory {
            Computed::F32(all) => full.extend(ownership.cut(parameters, all, *end)),
            Computed::Bf16(all) => brain.extend(ownership.cut(parameters, all, *end)),
            Computed::F16(all) => half.extend(ownership.cut(parameters, all, *end)),
        }
    }
    match (brain.is_empty(), half.is_empty()) {
        (true, true) => gather_pieces(collective, group, full),
        (false, _) => gather_pieces(collective, group, brain),
        (true, false) => gather_pieces(collective, group, half),
    }
}

fn flat<E: Element>(numbers: Vec<E>) -> TensorData {
    let length = [numbers.len()];
    TensorData::new(numbers, length)
}

fn copy<T>(
    all: &mut [Vec<T>],
    parameters: &[Range<usize>],
    start: usize,
    numbers: &[f32],
    as_computed: impl Fn(f32) -> T,
) {
    for (range, parameter) in parameters.iter().zip(all) {
        let (from, to) = (range.start.max(start), range.end.min(start + numbers.len()));
        if from < to {
            let places = &mut parameter[from - range.start..to - range.start];
            for (place, number) in places.iter_mut().zip(&numbers[from - start..to - start]) {
                *place = as_computed(*number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_tensors_and_are_themselves_again() {
        let parameters = [0..3, 3..5];
        let numbers = [1.0f32, 2.5, -0.125, 7.0, 1.0 + 1.0 / 512.0 + 1.0 / 4096.0];
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            let mut computed = Computed::zeros(precision, &parameters);
            assert_eq!(computed.bytes(), 5 * precision.bytes());
            computed.copy_from(&parameters, 0, &numbers[..2]);
            computed.copy_from(&parameters, 2, &numbers[2..]);
            let tensors = computed.into_tensors(precision, &Device::flex());
            let values: Vec<f32> = tensors.iter().flat_map(|it| to_numbers(it.clone())).collect();
            // What 16 bits do not hold is rounded.
            let last = match precision {
                Precision::F32 => numbers[4],
                Precision::Bf16 => 1.0,
                Precision::F16 => 1.0 + 1.0 / 512.0,
            };
            assert_eq!(values, [1.0, 2.5, -0.125, 7.0, last]);
            let again = Computed::of_tensors(tensors, precision);
            assert_eq!((again.lengths(), again.bytes()), (vec![3, 2], 5 * precision.bytes()));
        }
    }
}
