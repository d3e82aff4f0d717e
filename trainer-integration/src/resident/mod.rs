//! Weights, moments and sums of gradients in the memory of a device, where they are computed: nothing of them crosses to the host in a
//! step.
//!
//! The kernels are written in the language of burn's own ([`kernels`]), for CUDA and wgpu alike. Sums in whole numbers and the factors of
//! dropout have the bits of the host's loops, since kernels make them of integers. So have weights and moments where a
//! device rounds additions, products, quotients and roots as IEEE 754 says, as CUDA and Mesa do; Vulkan does not ask for it.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod kernels;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod launch;
#[cfg(not(any(feature = "cuda", feature = "wgpu")))]
#[path = "absent.rs"]
mod launch;

mod sums;

use std::ops::Range;

pub(crate) use sums::{Findings, Found, WholeSum, WholeTable, read_at_once};

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::device::Precision;
use crate::flat_block::{from_numbers, to_numbers};
use crate::optim::{Moments, Optimizer};
use crate::random::Key;

/// How weights are moved in a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    optimizer: Optimizer,
    rate: f32,
    /// By which the gradient is multiplied.
    factor: f32,
    corrections: [f32; 2],
}

/// The numbers of a block, all of its parameters.
#[derive(Debug)]
pub(crate) struct Resident {
    /// In 32 bits. Each parameter begins where memory is aligned, so that a tensor can have its part of it.
    weights: Tensor<1>,
    /// The place of each parameter in them.
    places: Vec<Range<usize>>,
    /// The parameters in the numbers they are computed in, unless the weights have moved since.
    views: Option<(Precision, Vec<Tensor<1>>)>,
    first: Option<Tensor<1>>,
    second: Option<Tensor<1>>,
    steps: u32,
    /// How many numbers are trained.
    trained: usize,
    /// Of the trained parameters: the ends, the distances of the weights, the bits of the shares of the weight decay.
    table: Tensor<1, Int>,
    parameters: usize,
}

impl Resident {
    /// Whether an optimizer's state can be on a device.
    pub(crate) fn supports(optimizer: Optimizer) -> bool {
        !matches!(optimizer, Optimizer::Lamb { .. } | Optimizer::Lars { .. })
    }

    /// On a device: the weights by parameter, and an optimizer's state of the trained ones. These come first; they have their
    /// ranges in the block, and shares of the weight decay.
    pub(crate) fn new(
        device: &Device,
        weights: &[&[f32]],
        trained: &[(Range<usize>, f32)],
        moments: &Moments,
    ) -> Resident {
        let align = launch::alignment(&Tensor::zeros([1], device));
        let mut end = 0;
        let places: Vec<Range<usize>> = weights
            .iter()
            .map(|weights| {
                let start = end;
                // As many numbers as bytes would do: then numbers of 16 bits are aligned, too.
                end = (start + weights.len()).next_multiple_of(align / size_of::<u16>());
                start..start + weights.len()
            })
            .collect();
        // A device has no memory without a number.
        let mut all = vec![0.0; end.max(1)];
        for (place, weights) in places.iter().zip(weights) {
            all[place.clone()].copy_from_slice(weights);
        }
        let table = table(trained.iter().map(|(range, _)| range.end), |index| {
            let (range, decay) = &trained[index];
            [(places[index].start - range.start) as i32, decay.to_bits() as i32]
        });
        let count = trained.last().map_or(0, |(range, _)| range.end);
        let on_device =
            |numbers: &[f32]| (!numbers.is_empty()).then(|| from_numbers(numbers.to_vec(), device));
        Resident {
            weights: from_numbers(all, device),
            places,
            views: None,
            first: on_device(&moments.first),
            second: on_device(&moments.second),
            steps: moments.steps,
            trained: count,
            table: upload_words(table, device),
            parameters: trained.len(),
        }
    }

    /// The parameters as tensors of this precision, which are of no use after the next update.
    pub(crate) fn views(&mut self, precision: Precision) -> &[Tensor<1>] {
        let is_there = self.views.as_ref().is_some_and(|(of, _)| *of == precision);
        if !is_there {
            let all = match precision {
                Precision::F32 => self.weights.clone(),
                _ => self.weights.clone().cast(precision.dtype()),
            };
            let views = self.places.iter().map(|place| launch::view(&all, place.clone()));
            self.views = Some((precision, views.collect()));
        }
        self.views.as_ref().map(|(_, views)| &views[..]).unwrap_or_default()
    }

    /// Moves the trained weights against the numbers of a gradient from `start` on, multiplied by `factor`.
    pub(crate) fn update(
        &mut self,
        optimizer: Optimizer,
        rate: f32,
        (gradient, start): (&Tensor<1>, usize),
        factor: f32,
    ) {
        let device = self.weights.device();
        self.steps += 1;
        self.views = None;
        let zeros = || Tensor::zeros([self.trained], (&device, DType::F32));
        let first = self.first.get_or_insert_with(zeros);
        let second = optimizer.has_second_moment().then(|| &*self.second.get_or_insert_with(zeros));
        let turn = Turn { optimizer, rate, factor, corrections: optimizer.corrections(self.steps) };
        let table = (&self.table, self.parameters);
        launch::update(&turn, &self.weights, first, second, (gradient, start), table);
    }

    /// The weights, by parameter.
    pub(crate) fn weights(&self) -> Vec<Vec<f32>> {
        let all = to_numbers(self.weights.clone());
        self.places.iter().map(|place| all[place.clone()].to_vec()).collect()
    }

    /// The optimizer's state.
    pub(crate) fn moments(&self) -> Moments {
        let of = |numbers: &Option<Tensor<1>>| numbers.clone().map(to_numbers).unwrap_or_default();
        Moments { first: of(&self.first), second: of(&self.second), steps: self.steps }
    }

    /// Bytes of weights and of moments.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let of = |tensor: &Tensor<1>| tensor.dims()[0] * tensor.dtype().size();
        // All views have the memory of one copy in fewer bits.
        let copy = match &self.views {
            Some((precision, _)) if *precision != Precision::F32 => {
                self.weights.dims()[0] * precision.bytes()
            }
            _ => 0,
        };
        (of(&self.weights) + copy, self.first.iter().chain(&self.second).map(of).sum())
    }
}

/// The factors of a [`Dropout`](crate::nn::Dropout) that leaves out a share of the numbers of a key, and multiplies the others by `kept`: those of
/// the host, bit for bit.
pub(crate) fn dropout(key: Key, share: f32, kept: f32, count: usize, device: &Device) -> Tensor<1> {
    // Of 2^24 numbers, those below the share.
    let threshold = (f64::from(share) * f64::from(1u32 << 24)).ceil() as u32;
    let factors = Tensor::empty([count], &device.clone().inner());
    launch::dropout(&factors, key.bits(), threshold, kept);
    if device.is_autodiff() { factors.autodiff() } else { factors }
}

/// A table of parameters for kernels: where the numbers of each end, and then one fact of all of them after the other.
fn table<const N: usize>(
    ends: impl ExactSizeIterator<Item = usize>,
    facts: impl Fn(usize) -> [i32; N],
) -> Vec<i32> {
    let facts: Vec<[i32; N]> = (0..ends.len()).map(facts).collect();
    let by_fact = (0..N).flat_map(|fact| facts.iter().map(move |of| of[fact]));
    ends.map(|end| end as i32).chain(by_fact).collect()
}

fn upload_words(mut words: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    if words.is_empty() {
        words.push(0);
    }
    let count = [words.len()];
    Tensor::from_data(TensorData::new(words, count), (device, DType::I32))
}

#[cfg(test)]
mod tests;
