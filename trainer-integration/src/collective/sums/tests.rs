use proptest::prelude::*;

use super::*;
use crate::collective::counted::Counted;
use crate::collective::threads::{spawn_on, world_on};
use crate::collective::{DEFAULT_TIMEOUT, PIECE_BYTES, slice_of};

/// Numbers of very different magnitude, so that another order of additions shows.
fn float(rank: u32, at: usize) -> f32 {
    let bits = (at as u32).wrapping_mul(2_654_435_761).wrapping_add(rank.wrapping_mul(40_503_701));
    let scale = (f64::from(bits >> 28) - 8.0).exp2();
    ((f64::from(bits & 0xffff) / 32_768.0 - 1.0) * scale) as f32
}

fn integer(rank: u32, at: usize) -> i64 {
    (at as i64 + 1).wrapping_mul(i64::from(rank) - 3).wrapping_mul(0x0123_4567_89ab_cdef)
}

/// The numbers of every rank after `act`.
fn after<T: Number>(
    hosts: &[u32],
    length: usize,
    number: fn(u32, usize) -> T,
    act: impl Fn(&mut dyn Collective, &mut [T]) -> Result<(), CollectiveError> + Sync,
) -> Vec<Vec<T>> {
    spawn_on(world_on(hosts, DEFAULT_TIMEOUT), |mut collective| {
        let rank = collective.rank();
        let mut numbers: Vec<T> = (0..length).map(|at| number(rank, at)).collect();
        act(&mut collective, &mut numbers).unwrap();
        numbers
    })
}

/// Up to eight ranks on up to three hosts, in any order.
fn any_hosts() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..3u32, 1..=8)
}

/// Nothing, fewer numbers than ranks, some, and several pieces per rank.
fn any_length() -> impl Strategy<Value = usize> {
    prop_oneof![0..10usize, 0..5_000usize, 0..PIECE_BYTES]
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn compensated(ranks: &mut dyn Collective, numbers: &mut [f32]) -> Result<(), CollectiveError> {
    all_reduce_by(Algorithm::Compensated, ranks, numbers)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whole_numbers_sum_exactly(hosts in any_hosts(), length in any_length(), algorithm in prop::sample::select(&Algorithm::ALL[..])) {
        let sum = |at| (0..hosts.len() as u32).fold(0i64, |sum, rank| sum.wrapping_add(integer(rank, at)));
        let expected: Vec<i64> = (0..length).map(sum).collect();
        for sums in after(&hosts, length, integer, |ranks, numbers| all_reduce_by(algorithm, ranks, numbers)) {
            prop_assert!(sums == expected);
        }
    }

    #[test]
    fn floats_have_the_same_bits_on_all_ranks_and_are_near_the_sum(
        hosts in any_hosts(), length in any_length(), algorithm in prop::sample::select(&Algorithm::ALL[..]),
    ) {
        let all = after(&hosts, length, float, |ranks, numbers| all_reduce_by(algorithm, ranks, numbers));
        for sums in &all {
            prop_assert!(bits(sums) == bits(&all[0]));
        }
        for (at, &sum) in all[0].iter().enumerate() {
            let addends = (0..hosts.len() as u32).map(|rank| f64::from(float(rank, at)));
            let (exact, magnitude) = addends.fold((0.0, 0.0), |(sum, all), next| (sum + next, all + next.abs()));
            prop_assert!((f64::from(sum) - exact).abs() <= 8.0 * f64::from(f32::EPSILON) * magnitude);
        }
    }

    #[test]
    fn direct_adds_in_rank_order(world in 1..=8u32, length in any_length()) {
        let hosts = vec![0; world as usize];
        let sum = |at| (1..world).fold(float(0, at), |sum, rank| sum + float(rank, at));
        let expected: Vec<f32> = (0..length).map(sum).collect();
        let all = after(&hosts, length, float, |ranks, numbers| all_reduce_by(Algorithm::Direct, ranks, numbers));
        prop_assert!(bits(&all[0]) == bits(&expected));
    }

    #[test]
    fn scattering_and_gathering_are_the_halves(
        world in 1..=8u32, length in any_length(), algorithm in prop::sample::select(vec![Algorithm::Direct, Algorithm::Ring]),
    ) {
        let hosts = vec![0; world as usize];
        let whole = after(&hosts, length, float, |ranks, numbers| all_reduce_by(algorithm, ranks, numbers));
        let slices = after(&hosts, length, float, |ranks, numbers| reduce_scatter(algorithm, ranks, numbers));
        for (rank, numbers) in slices.iter().enumerate() {
            let own = slice_of(length, rank as u32, world);
            prop_assert!(bits(&numbers[own.clone()]) == bits(&whole[0][own]));
        }
        let gathered = after(&hosts, length, float, |ranks, numbers| {
            reduce_scatter(algorithm, ranks, numbers)?;
            let own = slice_of(length, ranks.rank(), world);
            numbers[..own.start].fill(f32::NAN);
            numbers[own.end..].fill(f32::NAN);
            all_gather(algorithm, ranks, numbers)
        });
        prop_assert!(gathered.iter().all(|numbers| bits(numbers) == bits(&whole[0])));
    }

    #[test]
    fn compensated_sums_are_the_nearest_float_or_its_neighbour(world in 1..=8u32, length in 0..2_000usize) {
        let hosts = vec![0; world as usize];
        let all = after(&hosts, length, float, compensated);
        for sums in &all {
            prop_assert!(bits(sums) == bits(&all[0]));
        }
        for (at, &sum) in all[0].iter().enumerate() {
            let addends = (0..world).map(|rank| f64::from(float(rank, at)));
            let (exact, magnitude) = addends.fold((0.0, 0.0), |(sum, all), next| (sum + next, all + next.abs()));
            let error = (f64::from(sum) - exact).abs();
            let eps = f64::from(f32::EPSILON);
            prop_assert!(error <= eps * exact.abs() + 16.0 * eps * eps * magnitude, "{sum} for {exact}");
        }
    }
}

/// 1 is lost beside 10⁸ in f32, and would be lost seven times.
#[test]
fn compensated_sums_keep_what_plain_ones_lose() {
    let number = |rank, _| match rank {
        0 => 1e8f32,
        7 => -1e8,
        _ => 1.0,
    };
    let hosts = [0; 8];
    let plain = after(&hosts, 3, number, |ranks, numbers| all_reduce_by(Algorithm::Direct, ranks, numbers));
    let compensated = after(&hosts, 3, number, compensated);
    assert_eq!(plain[0], [0.0; 3]);
    assert_eq!(compensated[0], [6.0; 3]);
}

#[test]
fn infinities_and_nans_stay_what_they_are() {
    let number = |rank, at| match (rank, at) {
        (1, 0) => f32::INFINITY,
        (2, 1) => f32::NAN,
        _ => 1.0,
    };
    let sums = after(&[0; 3], 3, number, compensated).remove(0);
    assert!(sums[0] == f32::INFINITY && sums[1].is_nan() && sums[2] == 3.0, "{sums:?}");
}

/// No algorithm for many bytes sends more than the least possible, 2 (N - 1) / N of them.
#[test]
fn long_sums_send_the_least_possible() {
    const BYTES: usize = 64 << 20;
    for world in [2u64, 4] {
        for algorithm in [Algorithm::Ring, Algorithm::Direct] {
            let sent = spawn_on(world_on(&vec![0; world as usize], DEFAULT_TIMEOUT), |mut collective| {
                all_reduce_by(algorithm, &mut collective, &mut vec![1f32; BYTES / 4]).unwrap();
                collective.bytes_sent()
            });
            let least = 2 * (world - 1) * BYTES as u64 / world;
            assert!(
                sent.iter().all(|&sent| sent <= least + least / 50),
                "{algorithm:?}: {sent:?} of {least}"
            );
        }
    }
}

/// No rank sends more than twice its bytes, all together the least possible, in a number of steps that is logarithmic in the world.
#[test]
fn two_trees_share_the_bytes_and_take_logarithmically_many_steps() {
    for world in [2u64, 3, 4, 5, 7, 8, 9, 16] {
        let digits = world.next_power_of_two().ilog2() as usize;
        for segments in [1, 4] {
            let numbers = 2 * segments * two_tree::SEGMENT_BYTES / 4;
            let hosts = vec![0; world as usize];
            let counts = spawn_on(world_on(&hosts, DEFAULT_TIMEOUT), |inner| {
                let (mut counted, sent) = Counted::new(inner, &hosts);
                all_reduce_by(Algorithm::TwoTree, &mut counted, &mut vec![1f32; numbers]).unwrap();
                let sent: u64 = sent.lock().unwrap().iter().sum();
                (sent, counted.transfers())
            });
            let bytes = numbers as u64 * 4;
            assert!(counts.iter().all(|(sent, _)| *sent <= 2 * bytes), "{counts:?} of {bytes}");
            assert_eq!(counts.iter().map(|(sent, _)| sent).sum::<u64>(), 2 * (world - 1) * bytes);
            let steps = counts.iter().map(|(_, steps)| *steps).max().unwrap();
            assert!(steps < segments + 2 * digits, "{steps} steps of {world} ranks, {segments} segments");
        }
    }
}

#[test]
fn names_of_algorithms_are_read_as_they_are_written() {
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        assert_eq!(serde_json::to_value(algorithm).unwrap(), algorithm.name());
    }
    assert!("tree".parse::<Algorithm>().unwrap_err().contains("two-tree"));
}

/// Two hosts of two ranks: a host sends each byte once per direction, shared by its ranks. Without hosts, each rank sends as
/// much across by itself.
#[test]
fn across_hosts_each_slice_travels_once() {
    const NUMBERS: usize = 1 << 20;
    const BYTES: u64 = NUMBERS as u64 * 4;
    let across =
        |hosts: &[u32], reduce: fn(&mut dyn Collective, &mut [f32]) -> Result<(), CollectiveError>| {
            spawn_on(world_on(hosts, DEFAULT_TIMEOUT), |inner| {
                let (mut counted, sent) = Counted::new(inner, hosts);
                reduce(&mut counted, &mut vec![1f32; NUMBERS]).unwrap();
                let own = hosts[counted.rank() as usize];
                let sent = sent.lock().unwrap();
                sent.iter().zip(hosts).filter(|(_, host)| **host != own).map(|(bytes, _)| bytes).sum::<u64>()
            })
        };
    for hosts in [[0, 0, 1, 1], [0, 1, 0, 1], [5, 2, 2, 5]] {
        // Half of a half in each direction.
        let once = across(&hosts, |ranks, numbers| all_reduce(ranks, numbers));
        assert_eq!(once, [BYTES / 2; 4], "{hosts:?}");
        let flat = across(&hosts, |ranks, numbers| all_reduce_by(Algorithm::Direct, ranks, numbers));
        assert_eq!(flat, [BYTES; 4], "{hosts:?}");
    }
}
