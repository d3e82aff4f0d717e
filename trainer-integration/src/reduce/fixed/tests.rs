//! Laws of the sums: one definition for any way to add up.

use proptest::prelude::*;

use shardd_kernels::largest_exponent;

use super::*;
use crate::collective::{Collective, spawn};
use crate::reduce::{Partials, VirtualRanks};

/// A parameter's length, and the limit of its gradients.
const PARAMETERS: [(usize, i32); 3] = [(700, 3), (1, 20), (4_299, -5)];
const LENGTH: usize = 5_000;

fn scales(count: u32) -> Scales {
    let bits = count.next_power_of_two().ilog2() as i32;
    Scales::new(PARAMETERS.map(|(length, limit)| (length, 62 - bits - limit)))
}

/// Magnitudes far apart, so that another order of additions in 32 bits shows.
fn numbers(virtual_rank: u32) -> Vec<f32> {
    let number = |index: u32| {
        let bits = index.wrapping_mul(2_654_435_761).wrapping_add(virtual_rank.wrapping_mul(40_503_701));
        (f64::from(bits & 0xffff) / 32_768.0 - 1.0) * (f64::from(bits >> 28) - 21.0).exp2()
    };
    (0..LENGTH as u32).map(|index| number(index) as f32).collect()
}

/// By the definition, in numbers of 128 bits.
fn defined(count: u32) -> Vec<u32> {
    if count == 1 {
        return numbers(0).iter().map(|number| number.to_bits()).collect();
    }
    let all: Vec<Vec<f32>> = (0..count).map(numbers).collect();
    let mut sums = Vec::new();
    for (part, places) in scales(count).parts(0..LENGTH) {
        for at in part {
            let whole =
                |row: &Vec<f32>| (f64::from(row[at]) * f64::from(places).exp2()).round_ties_even() as i128;
            let sum: i128 = all.iter().map(whole).sum();
            sums.push((sum as f32 * (-places as f32).exp2()).to_bits());
        }
    }
    sums
}

fn mine(ranks: VirtualRanks, rank: u32, ledger: &Ledger) -> FixedSum {
    let hosted = ranks.of(rank);
    let mut mine = FixedSum::new(scales(ranks.count), hosted.len(), ledger);
    hosted.for_each(|virtual_rank| drop(mine.push(numbers(virtual_rank).into())));
    mine
}

#[test]
fn every_world_size_gives_the_bits_of_the_definition() {
    for count in [1, 2, 3, 5, 8, 13] {
        let expected = defined(count);
        for world in 1..=count {
            let ranks = VirtualRanks { count, world };
            let found = spawn(world, |mut collective| {
                let mine = mine(ranks, collective.rank(), &Ledger::default());
                let total = all_reduce(&mut collective, ranks, mine).unwrap();
                total.iter().map(|number| number.to_bits()).collect::<Vec<u32>>()
            });
            assert!(found.iter().all(|total| *total == expected), "V={count} W={world}");
        }
    }
}

/// Each rank's part: stretches of 300 in turn, in an order of its own, and an empty one.
fn owned(rank: u32, world: u32) -> Vec<Range<usize>> {
    let starts = (0..LENGTH).step_by(300).skip(rank as usize).step_by(world as usize);
    let mut ranges: Vec<Range<usize>> = starts.map(|start| start..(start + 300).min(LENGTH)).collect();
    ranges.reverse();
    ranges.push(7..7);
    ranges
}

#[test]
fn a_rank_that_owns_numbers_has_their_sums() {
    for count in [2, 3, 8] {
        let expected = defined(count);
        for world in 1..=count.min(5) {
            let ranks = VirtualRanks { count, world };
            let found = spawn(world, |mut collective| {
                let rank = collective.rank();
                let mine = mine(ranks, rank, &Ledger::default());
                let total = reduce_scatter(&mut collective, ranks, mine, &|rank| owned(rank, world)).unwrap();
                assert!(
                    owned(rank, world).into_iter().flatten().all(|at| total[at].to_bits() == expected[at])
                );
                owned(rank, world).iter().map(ExactSizeIterator::len).sum::<usize>()
            });
            assert_eq!(found.iter().sum::<usize>(), LENGTH, "V={count} W={world}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn groups_of_any_size_give_the_same_bits(groups in 1u32..5, size in 2u32..4, more in 0u32..12) {
        let ranks = VirtualRanks { count: groups * size + more, world: groups * size };
        let expected = defined(ranks.count);
        let kept: Vec<Vec<Range<usize>>> = (0..size).map(|place| owned(place, size)).collect();
        let found = spawn(ranks.world, |mut collective| {
            let rank = collective.rank();
            let mine = mine(ranks, rank, &Ledger::default());
            let total = reduce_scatter_by_groups(&mut collective, ranks, mine, size, &kept).unwrap();
            kept[(rank % size) as usize].iter().cloned().flatten().all(|at| total[at].to_bits() == expected[at])
        });
        prop_assert!(found.into_iter().all(|is_same| is_same));
    }

    #[test]
    fn a_sum_is_the_exact_one_rounded_if_its_numbers_are_not_much_smaller_than_the_limit(
        numbers in prop::collection::vec((any::<u32>(), 0i32..14), 2..200)
    ) {
        // From 2^-14 to 1 in magnitude; the smallest of their bits is 2^-38.
        let numbers: Vec<f32> = numbers.into_iter().map(|(bits, exponent)| {
            f32::from_bits(bits & 0x807f_ffff | ((126 - exponent) as u32) << 23)
        }).collect();
        let count = numbers.len() as u32;
        let places = 62 - count.next_power_of_two().ilog2() as i32 - 16;
        let mut sum = FixedSum::new(Scales::new([(1, places)]), numbers.len(), &Ledger::default());
        numbers.iter().for_each(|number| drop(sum.push(vec![*number].into())));
        let found = spawn(1, |mut collective| {
            let mut again = FixedSum::new(Scales::new([(1, places)]), numbers.len(), &Ledger::default());
            numbers.iter().for_each(|number| drop(again.push(vec![*number].into())));
            all_reduce(&mut collective, VirtualRanks { count, world: 1 }, again).unwrap()[0]
        });
        let exactly: f64 = numbers.iter().map(|number| f64::from(*number)).sum();
        prop_assert_eq!(found[0].to_bits(), (exactly as f32 + 0.0).to_bits());
    }
}

#[test]
fn a_sum_holds_eight_bytes_a_number_whatever_is_added() {
    let ledger = Ledger::default();
    for hosted in [2, 16] {
        let mut sum = FixedSum::new(scales(16), hosted, &ledger);
        for virtual_rank in 0..hosted {
            let numbers = Numbers::of(&ledger, Kind::Gradients, numbers(virtual_rank as u32));
            drop(sum.push(numbers));
            let width = if virtual_rank == 0 { 4 } else { 8 };
            assert_eq!(ledger.now().gradients, width * LENGTH, "{virtual_rank} of {hosted} virtual ranks");
        }
    }
}

#[test]
fn a_rank_sends_four_bytes_for_one_virtual_rank_and_eight_for_more() {
    for (count, width) in [(4, 4), (8, 8), (16, 8)] {
        let ranks = VirtualRanks { count, world: 4 };
        let sent = spawn(4, |mut collective| {
            let mine = mine(ranks, collective.rank(), &Ledger::default());
            all_reduce(&mut collective, ranks, mine).unwrap();
            collective.bytes_sent() as usize
        });
        // Three quarters are sent to be added up, and a quarter, three times, afterwards.
        assert_eq!(
            sent.iter().sum::<usize>(),
            4 * (3 * LENGTH / 4 * width + 3 * LENGTH / 4 * 4),
            "V={count}"
        );
    }
}

/// The middle of the relative errors, and that which 99 of 100 stay below, of sums against doubles.
fn errors(sums: &[f32], exactly: &[f64]) -> (f64, f64) {
    let relative = |(sum, exactly): (&f32, &f64)| (f64::from(*sum) - exactly).abs() / exactly.abs();
    let mut errors: Vec<f64> = sums.iter().zip(exactly).map(relative).collect();
    errors.sort_unstable_by(f64::total_cmp);
    (errors[errors.len() / 2], errors[errors.len() * 99 / 100])
}

#[test]
fn sums_are_nearer_to_the_exact_ones_than_those_of_a_tree_in_32_bits() {
    const COUNT: usize = 40_000;
    // Numbers of a normal distribution by the sum of uniform ones, of a parameter whose numbers differ by seven orders of magnitude.
    let numbers = |virtual_rank: u64| -> Vec<f32> {
        let mut state = virtual_rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
        };
        let magnitude = |at: usize| 10f64.powf(-8.0 + 7.0 * at as f64 / COUNT as f64);
        (0..COUNT).map(|at| (magnitude(at) * (0..6).map(|_| uniform()).sum::<f64>()) as f32).collect()
    };
    println!("| virtual ranks | sums | median error | 99 of 100 below |");
    for count in [16u32, 64] {
        let rows: Vec<Vec<f32>> = (0..u64::from(count)).map(numbers).collect();
        let exactly: Vec<f64> =
            (0..COUNT).map(|at| rows.iter().map(|row| f64::from(row[at])).sum()).collect();
        let mut tree = Partials::new(count);
        (0..count).zip(&rows).for_each(|(virtual_rank, row)| tree.push(virtual_rank, row.clone()));
        let tree = errors(&tree.into_total().expect("all are there"), &exactly);
        println!("| {count} | tree in 32 bits | {:.1e} | {:.1e} |", tree.0, tree.1);
        let largest = rows.iter().map(|row| largest_exponent(Level::best(), row)).max().unwrap();
        let first = GradientRanges::new(1);
        let later = (0..8).fold(first.clone(), |ranges, _| ranges.next(&[largest]));
        let mut found = Vec::new();
        for (name, ranges) in [("first step", first), ("later steps", later)] {
            let scales = Scales::new([(COUNT, ranges.places(0, count))]);
            let sums = spawn(1, |mut collective| {
                let mut sum = FixedSum::new(scales.clone(), rows.len(), &Ledger::default());
                rows.iter().for_each(|row| drop(sum.push(row.clone().into())));
                all_reduce(&mut collective, VirtualRanks { count, world: 1 }, sum).unwrap().to_vec()
            });
            found.push(errors(&sums[0], &exactly));
            let (median, most) = found[found.len() - 1];
            println!("| {count} | whole numbers, {name} | {median:.1e} | {most:.1e} |");
        }
        // Numbers of 24 bits, correctly rounded, are off by 2.1e-8 in the middle.
        assert!(found[1].0 < 3e-8 && found[1].0 < tree.0 && found[1].1 < tree.1);
    }
}
