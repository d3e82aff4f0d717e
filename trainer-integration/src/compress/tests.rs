use proptest::prelude::*;

use super::reduce::Circumstances;
use super::*;
use crate::collective::spawn;

const ALL: [Compression; 6] = [
    Compression::Bf16,
    Compression::Fp16,
    Compression::Int8,
    Compression::TopK(0.1),
    Compression::TopK(1.0),
    Compression::Dgc(0.01),
];
const PLAIN: Circumstances = Circumstances { epoch: 9, momentum: 0.0, clip: None };

/// A gradient of a rank in a step, some of whose numbers are much larger than others.
fn gradient(count: usize, rank: u32, step: u32) -> Vec<f32> {
    let key = crate::random::Key::new(7).of(rank.into()).of(step.into());
    let number = |place| (key.uniform(place) - 0.5) * if place % 17 == 0 { 100.0 } else { 1.0 };
    (0..count as u64).map(number).collect()
}

/// The gradients that all ranks have received after these steps, and the sum of all gradients.
fn received(compression: Compression, world: u32, count: usize, steps: u32) -> (Vec<f64>, Vec<f64>) {
    let all = spawn(world, |mut collective| {
        let mut compressor = Compressor::new(compression);
        let mut received = vec![0.0f64; count];
        for step in 0..steps {
            let own = gradient(count, crate::collective::Collective::rank(&collective), step);
            let sum = compressor.all_reduce(&mut collective, own, PLAIN).unwrap();
            compressor.conclude(true);
            received.iter_mut().zip(sum).for_each(|(total, number)| *total += f64::from(number));
        }
        received
    });
    assert!(all.iter().all(|rank| *rank == all[0]), "{compression}: ranks received other numbers");
    let mut expected = vec![0.0f64; count];
    for (rank, step) in (0..world).flat_map(|rank| (0..steps).map(move |step| (rank, step))) {
        let numbers = gradient(count, rank, step);
        expected.iter_mut().zip(numbers).for_each(|(total, number)| *total += f64::from(number));
    }
    (all.into_iter().next().unwrap(), expected)
}

#[test]
fn names_are_read_as_they_are_written() {
    for compression in ALL.into_iter().chain([Compression::None]) {
        assert_eq!(compression.to_string().parse(), Ok(compression));
    }
    for name in ["", "int4", "topk", "topk:0", "topk:2", "topk:x", "zip:0.5"] {
        assert!(name.parse::<Compression>().is_err(), "{name}");
    }
}

#[test]
fn what_is_not_sent_now_is_sent_later() {
    for compression in ALL {
        let distance = |steps: u32| {
            let (received, expected) = received(compression, 3, 500, steps);
            let length = |numbers: &[f64]| numbers.iter().map(|number| number * number).sum::<f64>().sqrt();
            let missing: Vec<f64> = received.iter().zip(&expected).map(|(one, other)| one - other).collect();
            length(&missing)
        };
        // Without feedback, the error would grow with the steps (or their root); with it, it stays the
        // remainder of one step, or the numbers that wait for their turn.
        let (early, late) = (distance(100), distance(400));
        assert!(late < early * 1.5 + 1e-2, "{compression}: {early} after 100 steps, {late} after 400");
    }
}

#[test]
fn a_step_that_is_not_taken_is_as_if_it_had_never_been() {
    for compression in ALL {
        let sums = |with_refused: bool| {
            spawn(2, |mut collective| {
                let rank = crate::collective::Collective::rank(&collective);
                let mut compressor = Compressor::new(compression);
                let mut last = Vec::new();
                for step in 0..5 {
                    if with_refused {
                        let bad = vec![f32::NAN; 100];
                        let _ = compressor.all_reduce(&mut collective, bad, PLAIN).unwrap();
                        compressor.conclude(false);
                    }
                    last = compressor.all_reduce(&mut collective, gradient(100, rank, step), PLAIN).unwrap();
                    compressor.conclude(true);
                }
                last
            })
        };
        assert_eq!(sums(false), sums(true), "{compression}");
    }
}

#[test]
fn the_report_says_what_was_saved() {
    let ratio = |compression: Compression| {
        let reports = spawn(2, |mut collective| {
            let mut compressor = Compressor::new(compression);
            let own = gradient(100_000, 0, 0);
            compressor.all_reduce(&mut collective, own, PLAIN).unwrap();
            compressor.report()
        });
        assert!(reports[0].pays_below().is_some_and(|rate| rate > 0.0));
        reports[0].ratio()
    };
    for (compression, expected) in [
        (Compression::Bf16, 2.0),
        (Compression::Fp16, 2.0),
        (Compression::Int8, 4.0 / (1.0 + 4.0 / 1024.0)),
        (Compression::TopK(0.01), 50.0),
        (Compression::Dgc(0.001), 500.0),
    ] {
        let found = ratio(compression);
        assert!((found / expected - 1.0).abs() < 0.01, "{compression}: {found} instead of {expected}");
    }
    let larger = CompressionReport { plain_bytes: 10, sent_bytes: 20, ..CompressionReport::default() };
    assert_eq!(larger.pays_below(), None);
}

proptest! {
    #[test]
    fn with_nothing_left_out_the_sum_is_whole(world in 1u32..5, count in 0usize..60) {
        let (received, expected) = received(Compression::TopK(1.0), world, count, 1);
        for (received, expected) in received.iter().zip(&expected) {
            prop_assert!((received - expected).abs() <= 1e-4, "{} instead of {}", received, expected);
        }
    }
}
