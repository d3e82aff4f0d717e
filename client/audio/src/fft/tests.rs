//! Transforms beside their definition.

use std::f64::consts::TAU;

use proptest::prelude::*;

use super::*;

/// The squares of the magnitudes, by the definition, in double precision.
fn slow_squares(signal: &[f32]) -> Vec<f64> {
    let bin = |k: usize| {
        let [mut re, mut im] = [0.0, 0.0];
        for (i, &x) in signal.iter().enumerate() {
            let angle = TAU * ((k * i) % signal.len()) as f64 / signal.len() as f64;
            re += f64::from(x) * angle.cos();
            im -= f64::from(x) * angle.sin();
        }
        re * re + im * im
    };
    (0..=signal.len() / 2).map(bin).collect()
}

fn squares(signals: &[Vec<f32>; LANES]) -> Vec<Lanes> {
    let len = signals[0].len();
    let fft = RealFft::new(len);
    let mut buffer = fft.buffer();
    let mut squares = vec![Lanes::default(); fft.bins()];
    fft.fill(from_fn(|lane| &signals[lane][..]), &vec![1.0; len], &mut buffer);
    fft.squares(&mut buffer, &mut squares);
    squares
}

fn noise(seed: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

#[test]
fn all_short_and_the_usual_lengths_follow_the_definition() {
    for len in (1..=130).chain([200, 256, 400, 401, 441, 480, 512, 640, 1000, 1021, 1024, 2048]) {
        let signals: [Vec<f32>; LANES] = from_fn(|lane| noise(lane, len));
        let fast = squares(&signals);
        for lane in [0, LANES - 1] {
            let slow = slow_squares(&signals[lane]);
            let scale = slow.iter().fold(1e-3, |most: f64, &x| most.max(x));
            for (k, &expected) in slow.iter().enumerate() {
                let got = f64::from(fast[k].0[lane]);
                assert!(
                    (got - expected).abs() <= 3e-6 * scale,
                    "length {len}, bin {k}: {got}, not {expected}"
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn a_signal_does_not_depend_on_its_neighbours(seed in 0usize..1000, len in 1usize..300) {
        let alone: [Vec<f32>; LANES] = from_fn(|lane| if lane == 2 { noise(seed, len) } else { vec![0.0; len] });
        let beside: [Vec<f32>; LANES] = from_fn(|lane| noise(seed + lane - lane.min(2), len));
        let beside: [Vec<f32>; LANES] = from_fn(|lane| if lane == 2 { noise(seed, len) } else { beside[lane].clone() });
        for (one, two) in squares(&alone).iter().zip(&squares(&beside)) {
            prop_assert_eq!(one.0[2].to_bits(), two.0[2].to_bits());
        }
    }
}
