use proptest::prelude::*;

use super::reduce::Circumstances;
use super::*;
use crate::collective::spawn;

const ALL: [Compression; 7] = [
    Compression::Bf16,
    Compression::Fp16,
    Compression::Int8,
    Compression::OneBit,
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
        (Compression::OneBit, 32.0 / (1.0 + 64.0 / 2048.0)),
        (Compression::TopK(0.01), 50.0),
        (Compression::Dgc(0.001), 500.0),
    ] {
        let found = ratio(compression);
        assert!((found / expected - 1.0).abs() < 0.01, "{compression}: {found} instead of {expected}");
    }
    let larger = CompressionReport { plain_bytes: 10, sent_bytes: 20, ..CompressionReport::default() };
    assert_eq!(larger.pays_below(), None);
}

/// The steps of a rank: its gradient, the sums that it received, and its residual afterwards.
type Steps = Vec<(Vec<f32>, Vec<f32>, Residual)>;

/// By rank.
fn steps_of(
    compression: Compression,
    world: u32,
    steps: u32,
    momentum: f32,
    gradient: &(dyn Fn(u32, u32) -> Vec<f32> + Sync),
) -> Vec<Steps> {
    spawn(world, |mut collective| {
        let rank = crate::collective::Collective::rank(&collective);
        let circumstances = Circumstances { momentum, ..PLAIN };
        let mut compressor = Compressor::new(compression);
        let step = |step| {
            let own = gradient(rank, step);
            let sums = compressor.all_reduce(&mut collective, own.clone(), circumstances).unwrap();
            compressor.conclude(true);
            (own, sums, compressor.residual().clone())
        };
        (0..steps).map(step).collect()
    })
}

/// The number at a place; 0 of a residual before the first step.
fn at(numbers: &[f32], place: usize) -> f32 {
    numbers.get(place).copied().unwrap_or_default()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn any_gradients() -> impl Strategy<Value = (u32, u32, usize, u64)> {
    (1..5u32, 1..6u32, 1..200usize, any::<u64>())
}

/// A rank's numbers in a step, of very different magnitudes.
fn drawn(seed: u64, count: usize, rank: u32, step: u32) -> Vec<f32> {
    let key = crate::random::Key::new(seed).of(rank.into()).of(step.into());
    let number = |place| (key.uniform(2 * place) - 0.5) * (key.uniform(2 * place + 1) * 20.0 - 10.0).exp2();
    (0..count as u64).map(number).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Sent + kept = kept before + gradient, bit for bit: with momentum, the velocity instead of the gradient.
    #[test]
    fn of_the_largest_each_number_is_sent_whole_or_kept_whole(
        (world, steps, count, seed) in any_gradients(), share in 0.01f32..1.0, momentum in prop::sample::select(vec![0.0f32, 0.5, 0.9]),
        is_deep: bool,
    ) {
        let (compression, momentum) =
            if is_deep { (Compression::Dgc(share), momentum) } else { (Compression::TopK(share), 0.0) };
        let ranks = steps_of(compression, world, steps, momentum, &|rank, step| drawn(seed, count, rank, step));
        for step in 0..steps as usize {
            let mut total = vec![0.0f32; count];
            for steps in &ranks {
                let nothing = Residual::default();
                let before = step.checked_sub(1).map_or(&nothing, |before| &steps[before].2);
                let (gradient, _, after) = &steps[step];
                let mut sent = 0;
                for place in 0..count {
                    let velocity = momentum * at(&before.velocity, place) + gradient[place];
                    let whole = if is_deep { at(&before.gradients, place) + velocity } else { gradient[place] + at(&before.gradients, place) };
                    let kept = (after.gradients[place].to_bits(), at(&after.velocity, place).to_bits());
                    if kept == (whole.to_bits(), if is_deep { velocity.to_bits() } else { 0 }) {
                        continue;
                    }
                    prop_assert_eq!(kept, (0, 0), "{} is neither sent nor kept", whole);
                    total[place] += whole;
                    sent += 1;
                }
                prop_assert!(sent <= (f64::from(share) * count as f64).ceil() as usize);
                prop_assert!(after.sums.is_empty());
            }
            for steps in &ranks {
                prop_assert_eq!(bits(&steps[step].1), bits(&total), "all that is not kept is received");
            }
        }
    }

    /// Over any number of steps: received + kept by all ranks = all gradients. Whole numbers make every addition exact.
    #[test]
    fn all_gradients_are_received_or_kept((world, steps, count, seed) in any_gradients(), share in 0.01f32..1.0, is_deep: bool) {
        let compression = if is_deep { Compression::Dgc(share) } else { Compression::TopK(share) };
        let whole = |rank, step| drawn(seed, count, rank, step).into_iter().map(f32::round).collect::<Vec<f32>>();
        let ranks = steps_of(compression, world, steps, 0.0, &whole);
        for place in 0..count {
            let gradients: f32 = ranks.iter().flatten().map(|(gradient, ..)| gradient[place]).sum();
            let received: f32 = ranks[0].iter().map(|(_, sums, _)| sums[place]).sum();
            let kept: f32 = ranks.iter().map(|steps| steps.last().unwrap().2.gradients[place]).sum();
            prop_assert_eq!(received + kept, gradients);
        }
    }

    /// The same of formats that round: each step rounds a number of a rank twice, and that of its owner W + 2 times, by 2⁻²⁴
    /// of the largest of them.
    #[test]
    fn all_gradients_are_received_or_kept_but_for_rounding(
        (world, steps, count, seed) in any_gradients(),
        compression in prop::sample::select(vec![Compression::OneBit, Compression::Int8, Compression::Bf16, Compression::Fp16]),
    ) {
        let ranks = steps_of(compression, world, steps, 0.0, &|rank, step| drawn(seed, count, rank, step));
        let slices: Vec<_> = (0..world).map(|rank| crate::collective::slice_of(count, rank, world)).collect();
        for (owner, slice) in slices.into_iter().enumerate() {
            for place in slice.clone() {
                let (mut gradients, mut received, mut largest) = (0.0, 0.0, 0.0f64);
                let mut meet = |number: f32| {
                    largest = largest.max(f64::from(number.abs()));
                    f64::from(number)
                };
                for (rank, step) in ranks.iter().enumerate().flat_map(|(rank, steps)| steps.iter().map(move |step| (rank, step))) {
                    gradients += meet(step.0[place]);
                    meet(step.2.gradients[place]);
                    if rank == owner {
                        received += meet(step.1[place]);
                        meet(step.2.sums[place - slice.start]);
                    }
                }
                let last = |rank: usize| &ranks[rank].last().unwrap().2;
                let kept: f64 = (0..ranks.len()).map(|rank| f64::from(last(rank).gradients[place])).sum();
                let missing = gradients - received - kept - f64::from(last(owner).sums[place - slice.start]);
                // The sent numbers are at most the sum of three of them, and of all ranks W times that.
                let roundings = f64::from(steps * world * 2 + steps * (world + 2));
                let bound = roundings * f64::from(3 * (world + 1)) * largest / f64::from(1u32 << 24);
                prop_assert!(missing.abs() <= bound, "{compression}: {missing} of {largest}, bound {bound}");
            }
        }
    }
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
