//! Exact sums of gradients, in whole numbers of 64 bits.
//!
//! Each number of a virtual rank's gradient is rounded to a multiple of its parameter's smallest step
//! ([`GradientRanges`]). The multiples are whole numbers, whose sum is exact, so any rank may add them up in any order; the
//! sum is rounded to 32 bits once. A rank holds one sum for each number, however many virtual ranks it has.
//!
//! The sum of numbers that are not much smaller than the largest of their parameter is the exact one, rounded correctly. (Demmel and Nguyen,
//! "Parallel reproducible summation", IEEE Transactions on Computers 2015, choose the steps from the numbers themselves; here
//! they are known before the first number is there.)

mod exchange;
mod ranges;

use std::ops::Range;
use std::sync::Arc;

use shardd_kernels::{Level, add_whole, from_whole};

pub(crate) use exchange::reduce_scatter_by_groups;
pub use exchange::{all_reduce, reduce_scatter};
pub use ranges::{Fit, GradientRanges};

use crate::ledger::{Kind, Ledger, Numbers};

/// Binary places after the point of the sums of a bucket, parameter by parameter.
#[derive(Clone, Debug)]
pub struct Scales(Arc<[(usize, i32)]>);

impl Scales {
    /// Of parameters of these lengths with these places, in the order of the bucket.
    pub fn new(parameters: impl IntoIterator<Item = (usize, i32)>) -> Scales {
        let mut end = 0;
        let ends = parameters.into_iter().map(|(length, places)| {
            end += length;
            (end, places)
        });
        Scales(ends.collect())
    }

    /// The parts of a range that have the same places.
    fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, i32)> {
        let first = self.0.partition_point(|(end, _)| *end <= range.start);
        let mut start = range.start;
        self.0[first..].iter().map_while(move |&(end, places)| {
            let part = start..end.min(range.end);
            start = end;
            (!part.is_empty()).then_some((part, places))
        })
    }

    /// Adds numbers that begin at `start` in the bucket.
    fn add(&self, start: usize, sums: &mut [i64], numbers: &[f32]) {
        for (part, places) in self.parts(start..start + numbers.len()) {
            let part = part.start - start..part.end - start;
            add_whole(Level::best(), &mut sums[part.clone()], &numbers[part], places);
        }
    }

    /// Rounds sums that begin at `start` in the bucket.
    fn round(&self, start: usize, sums: &[i64], numbers: &mut [f32]) {
        for (part, places) in self.parts(start..start + sums.len()) {
            let part = part.start - start..part.end - start;
            from_whole(Level::best(), &sums[part.clone()], &mut numbers[part], places);
        }
    }
}

/// The sum of the gradients of a rank's virtual ranks, of one bucket.
#[derive(Debug)]
pub struct FixedSum {
    scales: Scales,
    ledger: Ledger,
    /// Virtual ranks that are still to come.
    missing: usize,
    added: Added,
}

/// The numbers so far.
#[derive(Debug)]
enum Added {
    /// Those of the first virtual rank, as they are: half the bytes of sums.
    One(Numbers<f32>),
    Several(Numbers<i64>),
}

impl FixedSum {
    /// Of a number of virtual ranks of this rank, none of which is there yet. Its memory is on the ledger.
    pub fn new(scales: Scales, hosted: usize, ledger: &Ledger) -> FixedSum {
        FixedSum { scales, ledger: ledger.clone(), missing: hosted, added: Added::One(Numbers::default()) }
    }

    /// Whether one virtual rank is still to come, and none came before it.
    pub(crate) fn is_of_one(&self) -> bool {
        self.missing == 1 && matches!(&self.added, Added::One(numbers) if numbers.is_empty())
    }

    /// Takes the sums of all virtual ranks of this rank, which were made elsewhere with the same scales.
    pub(crate) fn begin_with(&mut self, sums: Vec<i64>) {
        self.missing = 0;
        self.added = Added::Several(Numbers::of(&self.ledger, Kind::Gradients, sums));
    }

    /// Adds the numbers of a virtual rank; the memory that is not needed any more.
    ///
    /// # Panics
    /// If there are more virtual ranks than there were to come, or numbers than parameters have.
    pub fn push(&mut self, numbers: Numbers<f32>) -> Vec<Numbers<f32>> {
        let length = self.scales.0.last().map_or(0, |(end, _)| *end);
        assert_eq!(numbers.len(), length, "all virtual ranks have the same parameters");
        self.missing = self.missing.checked_sub(1).expect("no more virtual ranks than were to come");
        match &mut self.added {
            Added::One(one) if one.is_empty() => {
                *one = numbers;
                Vec::new()
            }
            Added::One(one) => {
                let mut sums = zeros(&self.ledger, length);
                self.scales.add(0, &mut sums, one);
                self.scales.add(0, &mut sums, &numbers);
                let one = std::mem::take(one);
                self.added = Added::Several(sums);
                vec![one, numbers]
            }
            Added::Several(sums) => {
                self.scales.add(0, sums, &numbers);
                vec![numbers]
            }
        }
    }
}

fn zeros(ledger: &Ledger, count: usize) -> Numbers<i64> {
    let mut sums = Numbers::with_capacity(ledger, Kind::Gradients, count);
    sums.growing().resize(count, 0);
    sums
}

#[cfg(test)]
mod tests;
