//! What the benches share: a stopwatch that takes the best of several rounds, and chance that is the same every time.
//!
//! Machines differ, and a shared one differs from minute to minute. So figures are only compared within one
//! run, as ratios; the first figure of a bench is the divisor.

pub mod child;
pub mod exchange;
pub mod figures;
pub mod link;
pub mod pairs;
pub mod plain_burn;
pub mod stepper;
pub mod timed;
pub mod together;
pub mod turns;
pub mod versions;

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How often a measurement is repeated; the fastest counts, since whatever disturbs a run makes it slower.
const ROUNDS: u32 = 100;
/// How long a round takes, at least: shorter than a turn of the scheduler, so that some are not disturbed at all.
const ROUND: Duration = Duration::from_millis(3);

/// Seconds that one call of `work` takes at best. Its result is used, so that it cannot be optimised away.
pub fn seconds<T>(mut work: impl FnMut() -> T) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (began, mut calls) = (Instant::now(), 0_u32);
        while began.elapsed() < ROUND {
            black_box(work());
            calls += 1;
        }
        best = best.min(began.elapsed().as_secs_f64() / f64::from(calls));
    }
    best
}

/// `count` bytes without a pattern, the same on every run.
pub fn noise(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

/// `count` numbers below `bound` without a pattern, the same on every run.
pub fn picks(count: usize, bound: usize) -> Vec<usize> {
    let bytes = noise(count * 8);
    bytes.as_chunks::<8>().0.iter().map(|word| (u64::from_le_bytes(*word) % bound as u64) as usize).collect()
}
