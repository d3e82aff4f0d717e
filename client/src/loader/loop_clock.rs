//! Where the time of the loop that takes steps goes: waiting, by the stage that was the bottleneck, or its own work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use shardd_api::loop_time::{LoopTime, Stage, Waits};

use super::clocks::{Clocks, On};

/// Seconds that threads of a loader have been busy with each stage, so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Busy {
    pub(crate) network: f64,
    pub(crate) disk: f64,
    pub(crate) decode: f64,
    pub(crate) transform: f64,
}

impl Busy {
    /// What the clocks say: of the threads that gather, the mean.
    pub(crate) fn of(clocks: &Clocks, threads: usize) -> Busy {
        let spent = |on| clocks.spent(on).as_secs_f64();
        let (late, threads) = (spent(On::LateReading), threads as f64);
        let transforming = spent(On::Transforming);
        Busy {
            network: spent(On::Network),
            disk: spent(On::Disk) + late / threads,
            decode: (spent(On::Gathering) - late - transforming).max(0.0) / threads,
            transform: transforming / threads,
        }
    }

    fn since(self, before: Busy) -> Busy {
        Busy {
            network: self.network - before.network,
            disk: self.disk - before.disk,
            decode: self.decode - before.decode,
            transform: self.transform - before.transform,
        }
    }

    /// The stage that had to be faster for steps to be: files are read by one thread and batches gathered by others at the same
    /// time, so the longer of both decides. `None` if no thread was busy.
    fn bottleneck(self) -> Option<Stage> {
        let Busy { network, disk, decode, transform } = self;
        if network + disk + decode + transform <= 0.0 {
            return None;
        }
        Some(if decode + transform > network + disk {
            if decode > transform { Stage::Decode } else { Stage::Transform }
        } else if network > disk {
            Stage::Network
        } else {
            Stage::Disk
        })
    }
}

/// Where a trainer notes how its steps go, from any thread. Clones are the same place.
#[derive(Debug, Clone, Default)]
pub struct TrainerNotes(Arc<Notes>);

#[derive(Debug)]
struct Notes {
    ranks_micros: AtomicU64,
    loss_bits: AtomicU64,
}

/// Stands for the bits of a loss while the trainer has noted none: a NaN that arithmetic does not give.
const NO_LOSS: u64 = u64::MAX;

impl Default for Notes {
    fn default() -> Notes {
        Notes { ranks_micros: AtomicU64::new(0), loss_bits: AtomicU64::new(NO_LOSS) }
    }
}

impl TrainerNotes {
    /// Some of the time between two steps went into waiting for other ranks. It does not count as work of the loop.
    pub fn waited_for_ranks(&self, time: Duration) {
        self.0.ranks_micros.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The loss of the last step.
    pub fn loss(&self, loss: f64) {
        self.0.loss_bits.store(loss.to_bits(), Relaxed);
    }

    fn waits(&self) -> Duration {
        Duration::from_micros(self.0.ranks_micros.load(Relaxed))
    }

    fn last_loss(&self) -> Option<f64> {
        Some(self.0.loss_bits.load(Relaxed)).filter(|bits| *bits != NO_LOSS).map(f64::from_bits)
    }
}

/// The time of one loop.
#[derive(Debug)]
pub(crate) struct LoopClock {
    /// When the loop was last given something; `None` before its first step.
    left: Option<Instant>,
    /// Outside of the loader, and of that in Python code that makes batches.
    outside: Duration,
    python: Duration,
    notes: TrainerNotes,
    /// By stage, as in [`Stage::ALL`].
    waited: [Duration; Stage::ALL.len()],
    busy: Busy,
    stage: Stage,
}

impl Default for LoopClock {
    fn default() -> LoopClock {
        LoopClock {
            left: None,
            outside: Duration::ZERO,
            python: Duration::ZERO,
            notes: TrainerNotes::default(),
            waited: [Duration::ZERO; Stage::ALL.len()],
            busy: Busy::default(),
            stage: Stage::Disk,
        }
    }
}

impl LoopClock {
    /// The loop asked for a step at `asked` and got an answer, which may be to come again, at `given`.
    pub(crate) fn waited(&mut self, asked: Instant, given: Instant, busy: Busy) {
        if let Some(left) = self.left.replace(given) {
            self.outside += asked.saturating_duration_since(left);
        }
        self.stage = busy.since(self.busy).bottleneck().unwrap_or(self.stage);
        self.busy = busy;
        self.waited[self.stage as usize] += given.saturating_duration_since(asked);
    }

    /// Some of the time outside went into Python code that makes batches.
    pub(crate) fn was_in_python(&mut self, time: Duration) {
        self.python += time;
    }

    /// Where the trainer notes how its steps go.
    pub(crate) fn notes(&self) -> TrainerNotes {
        self.notes.clone()
    }

    /// The time so far, of a loop that has taken a number of steps and samples.
    pub(crate) fn time(&self, steps: u64, samples: u64) -> LoopTime {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let waits = Stage::ALL.into_iter().zip(self.waited);
        let waits = waits.fold(Waits::default(), |waits, (stage, time)| waits.with(stage, ms(time)));
        let own = self.outside.saturating_sub(self.python);
        // A trainer may note a wait before the step that it is part of has ended.
        let for_ranks = self.notes.waits().min(own);
        LoopTime {
            steps,
            samples,
            compute_ms: ms(own - for_ranks),
            ranks_ms: ms(for_ranks),
            waits: waits.with(Stage::Python, ms(self.python)),
            loss: self.notes.last_loss(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn waits_go_to_the_stage_that_was_busiest_meanwhile() {
        let mut clock = LoopClock::default();
        let began = Instant::now();
        let at = |ms| began + MS * ms;
        let mut busy = Busy { network: 0.010, disk: 0.004, ..Busy::default() };
        clock.waited(at(0), at(10), busy); // the first step came over the network
        busy.decode = 0.030;
        clock.waited(at(15), at(40), busy);
        busy.transform = 0.005;
        clock.waited(at(40), at(47), busy);
        clock.waited(at(50), at(52), busy); // none was busy: as before
        clock.was_in_python(2 * MS);
        let time = clock.time(4, 64);
        let waits = Waits { network_ms: 10, disk_ms: 0, decode_ms: 25, transform_ms: 9, python_ms: 2 };
        assert_eq!(
            time,
            LoopTime { steps: 4, samples: 64, compute_ms: 5 + 3 - 2, ranks_ms: 0, waits, loss: None }
        );
        clock.notes().waited_for_ranks(4 * MS);
        let time = clock.time(4, 64);
        assert_eq!((time.compute_ms, time.ranks_ms), (2, 4));
        clock.notes().waited_for_ranks(9 * MS);
        let time = clock.time(4, 64);
        assert_eq!((time.compute_ms, time.ranks_ms), (0, 6), "never more than there was");
        clock.notes().loss(0.5);
        assert_eq!(clock.time(4, 64).loss, Some(0.5));
    }

    #[test]
    fn all_time_is_somewhere() {
        let mut clock = LoopClock::default();
        let began = Instant::now();
        let mut at = began;
        for step in 1..100u32 {
            let asked = at + MS * (step % 7);
            at = asked + MS * (step % 11);
            let busy = Busy { network: f64::from(step % 3 * step), disk: f64::from(step), ..Busy::default() };
            clock.waited(asked, at, busy);
        }
        let time = clock.time(99, 99);
        assert_eq!(
            u128::from(time.compute_ms + time.waits.total_ms()),
            (at - began).as_millis() - 1,
            "without the time before"
        );
    }
}
