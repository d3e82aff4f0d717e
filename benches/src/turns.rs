//! Steps of several ranks and of several ways to do them, in turns: whatever disturbs the machine disturbs them all alike.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use shardd_trainer::engine::EngineError;

/// The figures of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepFigures {
    /// Until the slowest rank was done.
    pub seconds: f64,
    /// How long the links were in use.
    pub link_s: f64,
    /// How long the ranks waited for sums with nothing else to do.
    pub waited_s: f64,
    /// Bytes that each sent.
    pub sent: f64,
}

/// One way to do a step: on one rank, its figures without its seconds.
pub type Way<'a> = Box<dyn FnMut() -> Result<StepFigures, EngineError> + 'a>;

/// Takes a number of steps in each way, in turns with the other ranks and after two that do not count; by
/// way, then by round.
///
/// # Panics
/// If another rank is gone.
pub fn in_turns(all: &Barrier, rounds: usize, ways: &mut [Way<'_>]) -> Vec<Vec<StepFigures>> {
    const UNCOUNTED: usize = 2;
    let mut figures = vec![Vec::new(); ways.len()];
    for round in 0..rounds + UNCOUNTED {
        for (way, figures) in ways.iter_mut().zip(&mut figures) {
            all.wait();
            let began = Instant::now();
            let step = way().expect("all ranks continue");
            let seconds = began.elapsed().as_secs_f64();
            if round >= UNCOUNTED {
                figures.push(StepFigures { seconds, ..step });
            }
        }
    }
    figures
}

/// Of the figures of all ranks, by way, the slowest rank's time and the mean of the rest; of the rounds the median, each figure by itself.
pub fn medians(ranks: &[Vec<Vec<StepFigures>>]) -> Vec<StepFigures> {
    let count = ranks.len() as f64;
    let of_way = |way: usize| {
        let rounds = ranks[0][way].len();
        let mean = |round: usize, figure: &dyn Fn(&StepFigures) -> f64| {
            ranks.iter().map(|rank| figure(&rank[way][round])).sum::<f64>() / count
        };
        let slowest = |round: usize| ranks.iter().map(|rank| rank[way][round].seconds).fold(0.0, f64::max);
        StepFigures {
            seconds: median((0..rounds).map(slowest).collect()),
            link_s: median((0..rounds).map(|round| mean(round, &|it| it.link_s)).collect()),
            waited_s: median((0..rounds).map(|round| mean(round, &|it| it.waited_s)).collect()),
            sent: median((0..rounds).map(|round| mean(round, &|it| it.sent)).collect()),
        }
    };
    (0..ranks[0].len()).map(of_way).collect()
}

/// The middle one.
///
/// # Panics
/// If there is none.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// How long a duration grew while `work` was done, in seconds.
pub fn growth<R>(of: impl Fn() -> Duration, work: impl FnOnce() -> R) -> (f64, R) {
    let before = of();
    let result = work();
    ((of() - before).as_secs_f64(), result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_as_long_as_its_slowest_rank_and_the_middle_one_counts() {
        let step = |seconds, sent| StepFigures { seconds, sent, ..StepFigures::default() };
        let of_rank = |rank: f64| vec![vec![step(1.0 + rank, 4.0), step(9.0, 4.0 + rank), step(2.0, 4.0)]];
        let [figures] = medians(&[of_rank(0.0), of_rank(1.0)])[..] else { panic!("one way") };
        assert_eq!(figures, step(2.0, 4.0));
    }
}
