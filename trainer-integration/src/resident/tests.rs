//! Kernels beside the loops of the host, on a device in software.

#![cfg(any(feature = "cuda", feature = "wgpu"))]

use proptest::prelude::*;
use shardd_kernels::{Level, largest_exponent};

use super::*;
use crate::device::{Adapter, DeviceName};
use crate::optim::Stretch;

/// Mesa's lavapipe, if it is installed.
fn device() -> Option<Device> {
    match DeviceName::Wgpu(Adapter::Software).open() {
        Ok(device) => Some(device),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Numbers that look drawn, of both signs and several orders of magnitude.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let key = Key::new(seed);
    let number = |place: u64| {
        let exponent = (key.of(1).uniform(place) * 12.0) as i32 - 10;
        (key.uniform(place) - 0.5) * (exponent as f32).exp2()
    };
    (0..count as u64).map(number).collect()
}

/// Parameters of these lengths, every other one without weight decay.
fn parameters(lengths: &[usize]) -> Vec<(Range<usize>, f32)> {
    let mut end = 0;
    let trained = lengths.iter().enumerate().map(|(index, length)| {
        end += length;
        (end - length..end, (index % 2) as f32)
    });
    trained.collect()
}

#[test]
fn a_device_moves_weights_as_the_host_does() {
    let Some(device) = device() else { return };
    // More numbers than the units of all cubes, and a parameter that nothing trains.
    let trained = parameters(&[1, 700, 64, 300_000, 3]);
    let all = trained.last().unwrap().0.end;
    let rates = [(Optimizer::sgd(0.1), 0.1), (Optimizer::adam(0.1), 0.01), (Optimizer::adamw(0.1), 0.01)];
    for (optimizer, rate) in rates.into_iter().chain([(Optimizer::lion(0.1), 0.01)]) {
        let mut host = numbers(1, all);
        let frozen = numbers(2, 77);
        let by_parameter = |weights: &[f32]| -> Vec<Vec<f32>> {
            let of = trained.iter().map(|(range, _)| weights[range.clone()].to_vec());
            of.chain([frozen.clone()]).collect()
        };
        let begun = by_parameter(&host);
        let begun: Vec<&[f32]> = begun.iter().map(Vec::as_slice).collect();
        let mut moments = Moments::default();
        let mut there = Resident::new(&device, &begun, &trained, &moments);
        for step in 0..3 {
            let gradient = numbers(3 + step, all);
            let mut rest = &mut host[..];
            let stretches = trained.iter().map(|(range, decay)| {
                let (weights, after) = std::mem::take(&mut rest).split_at_mut(range.len());
                rest = after;
                Stretch { weights, decay: *decay, trust: 1.0 }
            });
            moments.update(optimizer, rate, stretches.collect(), &gradient, 0.5);
            // The block is one of several of its bucket.
            let of_bucket = [&[9.0; 5][..], &gradient, &[9.0; 2]].concat();
            there.update(optimizer, rate, (&from_numbers(of_bucket, &device), 5), 0.5);
        }
        let found = there.moments();
        assert_eq!((found.steps, found.second.len()), (3, moments.second.len()), "{optimizer:?}");
        let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
        let weights = there.weights();
        for (found, expected) in weights.iter().zip(by_parameter(&host)) {
            assert_eq!(bits(found), bits(&expected), "{optimizer:?}");
        }
        assert_eq!(bits(&found.first), bits(&moments.first), "{optimizer:?}");
        assert_eq!(bits(&found.second), bits(&moments.second), "{optimizer:?}");
        // What is computed with are the moved weights.
        for precision in [Precision::F32, Precision::F16] {
            for (view, weights) in there.views(precision).iter().zip(&weights) {
                let expected = weights.iter().map(|&weight| match precision {
                    Precision::F32 => weight,
                    _ => half::f16::from_f32(weight).to_f32(),
                });
                assert_eq!(
                    to_numbers(view.clone()),
                    expected.collect::<Vec<_>>(),
                    "{optimizer:?} {precision}"
                );
            }
        }
        // And a device goes on with what another has.
        let weights: Vec<&[f32]> = weights.iter().map(Vec::as_slice).collect();
        let mut again = Resident::new(&device, &weights, &trained, &found);
        let gradient = from_numbers(numbers(9, all), &device);
        there.update(optimizer, rate, (&gradient, 0), 1.0);
        again.update(optimizer, rate, (&gradient, 0), 1.0);
        assert_eq!(again.weights(), there.weights());
    }
}

/// The sums of virtual ranks' numbers on the device, rounded and as they are, beside those of the host.
fn check_sums(device: &Device, parameters: &[(usize, i32)], ranks: &[Vec<f32>]) {
    let mut host = vec![0i64; parameters.last().unwrap().0];
    let findings = Findings::new(parameters.len() + 1, [host.len(), 0].into_iter(), device);
    let table = WholeTable::new(parameters, device);
    let noted = Findings::new(parameters.len(), std::iter::empty(), device);
    let mut there = [WholeSum::new(table.clone()), WholeSum::new(table.clone())];
    let mut largest = vec![0; parameters.len() + 1];
    for numbers in ranks {
        let mut start = 0;
        for (index, &(end, places)) in parameters.iter().enumerate() {
            shardd_kernels::add_whole(Level::best(), &mut host[start..end], &numbers[start..end], places);
            largest[index + 1] =
                largest[index + 1].max(largest_exponent(Level::best(), &numbers[start..end]));
            start = end;
        }
        let numbers = from_numbers(numbers.clone(), device);
        there.iter_mut().for_each(|sum| sum.add(&numbers, &findings, 1));
        noted.note(&numbers, &table, 0);
    }
    let [there, kept] = there;
    assert_eq!(kept.to_sums(), host);
    let mut rounded = vec![0.0; host.len()];
    let mut start = 0;
    for &(end, places) in parameters {
        shardd_kernels::from_whole(Level::best(), &host[start..end], &mut rounded[start..end], places);
        start = end;
    }
    let sum = there.round();
    findings.square(0, &sum, 0..host.len());
    let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&to_numbers(sum)), bits(&rounded));
    let found = findings.read();
    assert_eq!(found.largest, largest);
    assert_eq!(noted.read().largest, largest[1..]);
    let squares: f64 = rounded.iter().map(|&number| f64::from(number).powi(2)).sum();
    assert!((found.squares[0] - squares).abs() <= 1e-5 * squares, "{} {squares}", found.squares[0]);
    assert_eq!(found.squares[1], 0.0, "a frozen block has nothing");
}

#[test]
fn sums_of_large_parameters_are_those_of_the_host() {
    let Some(device) = device() else { return };
    let parameters = [(3, 40), (200_000, 30), (200_001, 50), (450_000, 38)];
    check_sums(&device, &parameters, &[1, 2, 3].map(|seed| numbers(seed, 450_000)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn sums_have_the_bits_of_the_hosts(
        lengths in prop::collection::vec(1usize..400, 1..12),
        places in prop::collection::vec(20i32..61, 12),
        fields in (60u32..130, 1u32..40),
        seed in any::<u64>(),
    ) {
        let Some(device) = device() else { return Ok(()) };
        let mut end = 0;
        let parameters: Vec<(usize, i32)> = lengths.iter().zip(places).map(|(length, places)| {
            end += length;
            (end, places)
        }).collect();
        let key = Key::new(seed);
        let ranks = (0..3).map(|rank| {
            let number = |place: u64| {
                let draw = (key.of(rank).uniform(place) * 16_777_216.0) as u32;
                let mantissa = draw.wrapping_mul(0x9e37_79b9) >> 8 & 0x7f_ffff;
                match draw % 17 {
                    0 => 0.0,
                    1 => -0.0,
                    2 => f32::from_bits(mantissa), // subnormal
                    3 => 0.5 * (draw % 64) as f32,
                    // None is so large that a sum has more than 63 bits.
                    _ => f32::from_bits((fields.0 + draw % fields.1).min(126) << 23 | mantissa | draw << 31),
                }
            };
            (0..end as u64).map(number).collect()
        });
        check_sums(&device, &parameters, &ranks.collect::<Vec<_>>());
    }
}

#[test]
fn numbers_that_are_none_are_noted() {
    let Some(device) = device() else { return };
    let findings = Findings::new(2, [2].into_iter(), &device);
    let mut sum = WholeSum::new(WholeTable::new(&[(1, 40), (2, 40)], &device));
    sum.add(&from_numbers(vec![1.0, f32::NAN], &device), &findings, 0);
    findings.square(0, &from_numbers(vec![9.0, f32::INFINITY, 1.0], &device), 1..3);
    let found = findings.read();
    assert_eq!(found.largest, [127, 255]);
    assert!(!found.squares[0].is_finite());
}

#[test]
fn a_device_leaves_out_the_numbers_that_the_host_does() {
    use crate::block::Pass;
    use crate::nn::Dropout;

    let Some(device) = device() else { return };
    for (share, shape) in [(0.1, [3, 7]), (0.3, [600, 700]), (0.999, [100, 90])] {
        let by = |device: &Device| {
            let mut pass = Pass::new(Some(Key::new(11).of(3)), std::collections::BTreeMap::new(), None);
            let layer = Dropout::new(share);
            let ones = Tensor::<2>::ones(shape, device);
            // The second layer of a block, in a graph, has numbers of its own.
            let [first, second] = [ones.clone(), ones.autodiff()].map(|ones| layer.forward(ones, &mut pass));
            [to_numbers(first), to_numbers(second)]
        };
        assert_eq!(by(&device), by(&Device::flex()), "{share}");
    }
}

#[test]
fn blocks_with_nothing_to_train_are_there_too() {
    let Some(device) = device() else { return };
    let frozen = numbers(1, 5);
    let mut block = Resident::new(&device, &[&frozen], &[], &Moments::default());
    assert_eq!(to_numbers(block.views(Precision::F32)[0].clone()), frozen);
    assert_eq!(block.weights(), [frozen]);
    let mut without = Resident::new(&device, &[], &[], &Moments::default());
    assert!(without.views(Precision::F16).is_empty() && without.weights().is_empty());
    assert!(without.moments().first.is_empty());
}
