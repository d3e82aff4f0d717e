//! Sums of gradients on a device, and all that the host has to know of a step before the weights are moved.

use std::ops::Range;

use burn::tensor::{DType, Device, ExecutionError, Int, Tensor, TensorData, Transaction};

use super::{launch, table, upload_words};
use crate::collective::nccl::{DeviceSums, sums_of};
use crate::collective::{Collective, CollectiveError};

/// Where the parameters of a bucket end, and the binary places after the point of their sums.
#[derive(Clone, Debug)]
pub(crate) struct WholeTable {
    words: Tensor<1, Int>,
    parameters: usize,
    length: usize,
}

impl WholeTable {
    /// Of parameters with these ends and places.
    pub(crate) fn new(parameters: &[(usize, i32)], device: &Device) -> WholeTable {
        let words = table(parameters.iter().map(|(end, _)| *end), |index| [parameters[index].1]);
        WholeTable {
            words: upload_words(words, device),
            parameters: parameters.len(),
            length: parameters.last().map_or(0, |(end, _)| *end),
        }
    }

    fn kernels(&self) -> (&Tensor<1, Int>, usize) {
        (&self.words, self.parameters)
    }
}

/// The sum of gradients of one bucket in whole numbers of 64 bits.
#[derive(Debug)]
pub(crate) struct WholeSum {
    table: WholeTable,
    /// Two of each sum, the lower half first.
    words: Tensor<1, Int>,
}

impl WholeSum {
    /// Of nothing yet.
    pub(crate) fn new(table: WholeTable) -> WholeSum {
        let words = Tensor::zeros([2 * table.length], (&table.words.device(), table.words.dtype()));
        WholeSum { table, words }
    }

    /// Adds the numbers of a virtual rank. The largest exponent field of each parameter's is noted, from place `into` on.
    pub(crate) fn add(&mut self, numbers: &Tensor<1>, findings: &Findings, into: usize) {
        assert_eq!(numbers.dims()[0], self.table.length, "all virtual ranks have the same parameters");
        launch::add_whole(Some(&self.words), numbers, (&findings.words, into), self.table.kernels());
    }

    /// The numbers nearest to the sums.
    pub(crate) fn round(&self) -> Tensor<1> {
        let numbers = Tensor::zeros([self.table.length], &self.words.device());
        launch::from_whole(&self.words, &numbers, self.table.kernels());
        numbers
    }

    /// The same sums in memory that nothing is added to any more. Another thread's work on a device waits for the making of what it reads, but
    /// not for what was later written into it.
    pub(crate) fn finished(self) -> WholeSum {
        let words = self.words.clone() + 0;
        WholeSum { table: self.table, words }
    }

    /// The sums themselves, on the host.
    pub(crate) fn to_sums(&self) -> Vec<i64> {
        sums_of(self.words.clone().into_data())
    }

    /// Adds those of the other ranks, which call this together.
    pub(crate) fn all_reduce(
        &mut self,
        sums: &mut dyn DeviceSums,
        collective: &mut dyn Collective,
    ) -> Result<(), CollectiveError> {
        self.words = sums.all_reduce_whole(self.words.clone(), collective)?;
        Ok(())
    }
}

/// The findings of kernels about gradients, which the host reads at once.
#[derive(Debug)]
pub(crate) struct Findings {
    words: Tensor<1, Int>,
    /// By parameter.
    exponents: usize,
    /// The places of the sums of squares, by block.
    squares: Vec<Range<usize>>,
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Found {
    /// The largest exponent field of the gradients of each parameter.
    pub(crate) largest: Vec<u8>,
    /// By block, the sum of the squares of its numbers.
    pub(crate) squares: Vec<f64>,
}

impl Findings {
    /// Of the gradients of a number of parameters, and of blocks of these lengths: nothing yet.
    pub(crate) fn new(exponents: usize, blocks: impl Iterator<Item = usize>, device: &Device) -> Findings {
        let mut end = exponents;
        let squares: Vec<Range<usize>> = blocks
            .map(|length| {
                let start = end;
                end += if length == 0 { 0 } else { launch::squares_len(length) };
                start..end
            })
            .collect();
        Findings { words: Tensor::zeros([end.max(1)], (device, DType::I32)), exponents, squares }
    }

    /// Notes the largest exponent field of each parameter's numbers, from place `into` on.
    pub(crate) fn note(&self, numbers: &Tensor<1>, table: &WholeTable, into: usize) {
        launch::add_whole(None, numbers, (&self.words, into), table.kernels());
    }

    /// Finds the squares of a block, whose numbers are a range of these.
    pub(crate) fn square(&self, block: usize, numbers: &Tensor<1>, range: Range<usize>) {
        if !range.is_empty() {
            launch::squares(numbers, range, &self.words, self.squares[block].start);
        }
    }

    /// Waits for the device.
    pub(crate) fn read(&self) -> Found {
        self.found(&to_words(self.words.clone()))
    }

    fn found(&self, words: &[i32]) -> Found {
        let squares = self.squares.iter().map(|place| {
            let sums = words[place.clone()].iter().map(|&word| f64::from(f32::from_bits(word as u32)));
            sums.sum()
        });
        Found {
            largest: words[..self.exponents].iter().map(|&field| field as u8).collect(),
            squares: squares.collect(),
        }
    }
}

/// The numbers of a tensor and the findings, for which the host waits once.
///
/// # Errors
/// When the device failed to compute them.
pub(crate) fn read_at_once(
    numbers: Option<Tensor<1>>,
    findings: Option<&Findings>,
) -> Result<(Vec<f32>, Option<Found>), ExecutionError> {
    let mut all = Transaction::default();
    if let Some(numbers) = &numbers {
        all = all.register(numbers.clone());
    }
    if let Some(findings) = findings {
        all = all.register(findings.words.clone());
    }
    let mut all = all.try_execute()?.into_iter();
    let mut next = || all.next().expect("it was asked for");
    let numbers = numbers.map(|_| next().try_into_vec_as().expect("of 32 bits")).unwrap_or_default();
    Ok((numbers, findings.map(|findings| findings.found(&words_of(next())))))
}

fn to_words(words: Tensor<1, Int>) -> Vec<i32> {
    words_of(words.into_data())
}

fn words_of(data: TensorData) -> Vec<i32> {
    data.try_into_vec_as().expect("whole numbers of 32 bits")
}
