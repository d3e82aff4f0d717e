//! A measurement and its yardstick in turns, in one process. Other work of the machine makes some rounds slower and none
//! faster, so the fastest round of each counts (Chen and Revels, "Robust benchmarking in noisy environments", 2016).

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// The environment variable that slows one benchmark on purpose, such as `gather/784=0.25`.
pub const SLOW: &str = "SHARDD_BENCH_SLOW";
/// How long a round takes, at least: shorter than a turn of the scheduler, so that some are not disturbed.
const ROUND: Duration = Duration::from_millis(3);
/// Rounds of each, at least, however long they take.
const LEAST_ROUNDS: u32 = 3;

/// How to measure one benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pairs {
    budget: Duration,
    repeated: f64,
}

/// Seconds of one call, of the measurement and of its yardstick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Of the measurement.
    pub ours: f64,
    /// Of the yardstick.
    pub yardstick: f64,
}

impl Pairs {
    /// Rounds for about this time. `slow` is the value of [`SLOW`]: the benchmark named there repeats this part of its own
    /// work within the time of each round, as a slower product would. The yardstick repeats nothing.
    ///
    /// # Errors
    /// When `slow` is no name with a number.
    pub fn new(name: &str, budget: Duration, slow: Option<&str>) -> Result<Pairs> {
        let mut repeated = 0.0;
        if let Some(slow) = slow {
            let (slowed, part) =
                slow.split_once('=').with_context(|| format!("{SLOW}={slow}: no NAME=PART"))?;
            let part: f64 = part.parse().with_context(|| format!("{SLOW}={slow}: {part} is not a number"))?;
            ensure!((0.0..=10.0).contains(&part), "{SLOW}={slow}: give a part from 0 to 10");
            repeated = if slowed == name { part } else { 0.0 };
        }
        Ok(Pairs { budget, repeated })
    }

    /// Calls both in turns, after a call of each that does not count.
    pub fn measure<T, U>(&self, mut ours: impl FnMut() -> T, mut yardstick: impl FnMut() -> U) -> Pair {
        let (own_calls, other_calls) = (calls(&mut ours), calls(&mut yardstick));
        let repeated = (f64::from(own_calls) * self.repeated).ceil() as u32;
        let mut best = Pair { ours: f64::INFINITY, yardstick: f64::INFINITY };
        let (began, mut rounds) = (Instant::now(), 0);
        while rounds < LEAST_ROUNDS || began.elapsed() < self.budget {
            // Every other round the other way round.
            for turn in [rounds % 2, 1 - rounds % 2] {
                match turn {
                    0 => {
                        best.ours =
                            best.ours.min(time(&mut ours, own_calls + repeated) / f64::from(own_calls))
                    }
                    _ => {
                        let seconds = time(&mut yardstick, other_calls);
                        best.yardstick = best.yardstick.min(seconds / f64::from(other_calls));
                    }
                }
            }
            rounds += 1;
        }
        best
    }

    /// A pair that was measured in another way, slowed as the others are.
    pub fn slowed(&self, pair: Pair) -> Pair {
        Pair { ours: pair.ours * (1.0 + self.repeated), ..pair }
    }
}

/// How many calls fill a round.
fn calls<T>(work: &mut impl FnMut() -> T) -> u32 {
    black_box(work());
    let seconds = time(work, 1).max(1e-9);
    (ROUND.as_secs_f64() / seconds).ceil().min(1e7) as u32
}

/// Seconds of a number of calls. Their results are used, so that they cannot be optimised away.
fn time<T>(work: &mut impl FnMut() -> T, calls: u32) -> f64 {
    let began = Instant::now();
    for _ in 0..calls {
        black_box(work());
    }
    began.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_the_benchmark_that_is_named_repeats_its_work_and_never_the_yardstick() {
        let slow =
            |name| Pairs::new(name, Duration::ZERO, Some("gather/784=1")).expect("a name and a number");
        let calls_of = |pairs: Pairs| {
            let (ours, yardstick) = (Cell::new(0), Cell::new(0));
            // Long enough that one call fills a round.
            let work = |count: &Cell<u32>| {
                count.set(count.get() + 1);
                let began = Instant::now();
                while began.elapsed() < 2 * ROUND {}
            };
            pairs.measure(|| work(&ours), || work(&yardstick));
            (ours.get(), yardstick.get())
        };
        assert_eq!(calls_of(slow("gather/784")), (2 + 2 * LEAST_ROUNDS, 2 + LEAST_ROUNDS));
        assert_eq!(calls_of(slow("gather/3072")), (2 + LEAST_ROUNDS, 2 + LEAST_ROUNDS));
    }

    #[test]
    fn a_value_that_is_no_name_with_a_number_is_refused() {
        for slow in ["gather/784", "gather/784=much", "gather/784=-1", "gather/784=NaN"] {
            let refused = Pairs::new("gather/784", Duration::ZERO, Some(slow)).expect_err(slow);
            assert!(refused.to_string().contains(SLOW), "{refused}");
        }
    }
}
