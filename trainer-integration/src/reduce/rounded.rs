//! Sums in 16 bits: half the bytes from rank to rank, and the same bits on any number of ranks still.
//!
//! Every number of the fixed tree is rounded, on any rank: a leaf before it is added to anything, and the sum
//! of every node. Two numbers of 16 bits are added in 32 and rounded to the nearest of 16, of two that are
//! equally near to the even one. So whatever passes from rank to rank is of 16 bits already and loses nothing
//! on the way, wherever the tree is cut. PyTorch calls it `reduce_dtype` (`MixedPrecisionPolicy` of its fully
//! sharded training).

use half::bf16;
use half::slice::HalfFloatSliceExt;

use super::Reduction;
use crate::compress::Compression;
use crate::dtype::ReduceDtype;
use crate::ledger::{Kind, Ledger, Numbers};

impl ReduceDtype {
    /// Why gradients that travel in another way are not added up so.
    pub fn refusal(self, reduction: Reduction) -> Option<&'static str> {
        let is_compressed =
            matches!(reduction, Reduction::Fast(compression) if compression != Compression::None);
        (self != ReduceDtype::F32 && is_compressed).then_some(
            "--compress has a format of its own for what travels, and keeps what that leaves out for the next step; --reduce-dtype would round it before; leave one of the two out",
        )
    }
}

/// Each rounded to the nearest of 16 bits, in memory on this ledger.
pub(crate) fn rounded(numbers: &[f32], ledger: &Ledger) -> Numbers<bf16> {
    let mut into = Numbers::with_capacity(ledger, Kind::Gradients, numbers.len());
    into.growing().resize(numbers.len(), bf16::ZERO);
    into.convert_from_f32_slice(numbers);
    into
}

/// The same numbers in 32 bits, at the end of others.
pub(crate) fn widen(numbers: &[bf16], into: &mut Vec<f32>) {
    let start = into.len();
    into.resize(start + numbers.len(), 0.0);
    numbers.convert_to_f32_slice(&mut into[start..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::collective::{Collective, spawn};
    use crate::reduce::{Partials, Span, VirtualRanks, all_reduce};

    /// The definition, word for word.
    fn sum_of(node: Span, leaves: &[f32]) -> bf16 {
        match node.end - node.start {
            1 => bf16::from_f32(leaves[node.start as usize]),
            length => {
                let left = (1..length).rev().find(|below: &u32| below.is_power_of_two()).unwrap();
                let (left, right) = (node.start..node.start + left, node.start + left..node.end);
                bf16::from_f32(sum_of(left, leaves).to_f32() + sum_of(right, leaves).to_f32())
            }
        }
    }

    /// The result on every rank, in 32 bits, and how many bytes they all sent, if each virtual rank has a
    /// multiple of its own number.
    fn reduced(numbers: &[f32], length: usize, world: u32, dtype: ReduceDtype) -> (Vec<Vec<f32>>, u64) {
        let ranks = VirtualRanks { count: numbers.len() as u32, world };
        let of_ranks = spawn(world, |mut collective| {
            let ledger = Ledger::default();
            let hosted = ranks.of(collective.rank());
            let leaf = |it: u32| vec![numbers[it as usize]; length];
            let mut total = Vec::new();
            match dtype {
                ReduceDtype::F32 => {
                    let mut mine = Partials::new(ranks.count);
                    hosted.for_each(|it| mine.push(it, leaf(it)));
                    total.extend_from_slice(&all_reduce(&mut collective, ranks, mine).unwrap());
                }
                ReduceDtype::Bf16 => {
                    let mut mine = Partials::new(ranks.count);
                    hosted.for_each(|it| mine.push(it, rounded(&leaf(it), &ledger)));
                    widen(&all_reduce(&mut collective, ranks, mine).unwrap(), &mut total);
                }
            }
            (total, collective.bytes_sent())
        });
        let sent = of_ranks.iter().map(|(_, sent)| sent).sum();
        (of_ranks.into_iter().map(|(total, _)| total).collect(), sent)
    }

    #[test]
    fn half_the_bytes_go_from_rank_to_rank() {
        let numbers = [0.1, 0.2, -0.3, 0.4, 0.5, -0.6];
        for world in 2..=6 {
            let [(_, full), (_, half)] =
                [ReduceDtype::F32, ReduceDtype::Bf16].map(|dtype| reduced(&numbers, 12_000, world, dtype));
            assert_eq!(full, 2 * half, "W={world}");
        }
    }

    #[test]
    fn what_is_no_number_stays_so() {
        let ledger = Ledger::default();
        for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
            let halves = rounded(&[1.0, bad], &ledger);
            assert!(halves[0] == bf16::ONE && !halves[1].is_finite(), "{halves:?}");
        }
        assert_eq!(ledger.now().gradients, 0, "given back");
        assert!(ledger.most().gradients >= 4);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for dtype in [ReduceDtype::F32, ReduceDtype::Bf16] {
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
            assert_eq!(dtype.refusal(Reduction::Exact), None);
            assert_eq!(dtype.refusal(Reduction::Fast(Compression::None)), None);
        }
        assert!("f16".parse::<ReduceDtype>().unwrap_err().contains("f32 or bf16"));
        assert!(
            ReduceDtype::Bf16.refusal(Reduction::Fast(Compression::Int8)).unwrap().contains("--compress")
        );
        assert_eq!(ReduceDtype::F32.refusal(Reduction::Fast(Compression::Int8)), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_world_size_gives_the_bits_of_the_rounded_tree(
            numbers in prop::collection::vec((-1.0f32..1.0, -12i32..12), 1..=24), length in prop_oneof![1usize..9, 4_000usize..9_000]
        ) {
            let numbers: Vec<f32> = numbers.into_iter().map(|(number, exponent)| number * (exponent as f32).exp2()).collect();
            let expected = sum_of(0..numbers.len() as u32, &numbers).to_f32();
            for world in (1..=numbers.len() as u32).filter(|world| *world <= 5 || *world == numbers.len() as u32) {
                for total in reduced(&numbers, length, world, ReduceDtype::Bf16).0 {
                    prop_assert_eq!(total.len(), length);
                    prop_assert!(total.iter().all(|sum| sum.to_bits() == expected.to_bits()), "W={}", world);
                }
            }
        }

        #[test]
        fn the_error_grows_with_the_depth_of_the_tree(numbers in prop::collection::vec((-1.0f32..1.0, -12i32..12), 1..=96)) {
            let numbers: Vec<f32> = numbers.into_iter().map(|(number, exponent)| number * (exponent as f32).exp2()).collect();
            let exactly: f64 = numbers.iter().map(|number| f64::from(*number)).sum();
            let magnitudes: f64 = numbers.iter().map(|number| f64::from(number.abs())).sum();
            let found = f64::from(sum_of(0..numbers.len() as u32, &numbers).to_f32());
            // Nodes above a leaf, and the leaf itself.
            let depth = 1 + (numbers.len() as u32).next_power_of_two().ilog2();
            prop_assert!((found - exactly).abs() <= f64::from(depth) * 2f64.powi(-8) * magnitudes, "{} against {}", found, exactly);
        }
    }
}
