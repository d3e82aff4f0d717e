//! The rate of the exchange: fast enough to send the due grains before the next chunk is due, and no faster,
//! so that training does not feel it. Pure: times and counts in, times and rates out; `outbox` waits.
//!
//! A run's clock is the position of the rank that is ahead. Its speed is measured, so the time until a
//! position is known well enough, and with it the rate for the remaining grains. A node's setting is a limit
//! on top.

use std::time::Duration;

/// How much faster than it must be: ranks speed up, and grains are not all of one size.
const HEADROOM: f64 = 1.25;
/// No reader feels less than this, in bytes a second; it holds also until it is known how fast ranks read.
pub(super) const LEAST: f64 = 1024.0 * 1024.0;
/// A sample older than this hardly counts...
const MEMORY: f64 = 10.0;
/// ...a sample counts for no longer than this, so that an evaluation between epochs is no tempo...
const LONGEST: f64 = 2.0;
/// ...and reports that come sooner are taken together.
const SHORTEST: Duration = Duration::from_millis(100);
/// Unused sending time of this length may be made up for at once.
const SLACK: f64 = 0.005;
/// No caller waits for longer without looking again.
const LONG: Duration = Duration::from_secs(3600);

/// Lets bytes through at a rate. A caller that comes while it is not in debt passes, and leaves it in debt.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    /// Bytes a second; infinite: all of it at once; 0: nothing.
    rate: f64,
    /// Bytes that may pass; below 0 others have to wait.
    level: f64,
    at: Duration,
}

impl Bucket {
    pub(super) fn new(rate: f64) -> Self {
        Self { rate, level: 0.0, at: Duration::ZERO }
    }

    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// From `now` on another rate holds.
    pub(super) fn set_rate(&mut self, now: Duration, rate: f64) {
        self.advance(now);
        self.rate = rate;
    }

    /// Lets `bytes` pass `now`, or says how long to wait before asking again.
    pub(super) fn take(&mut self, now: Duration, bytes: u64) -> Result<(), Duration> {
        self.advance(now);
        if self.rate.is_infinite() {
            self.level = 0.0;
            return Ok(());
        }
        if self.rate <= 0.0 || self.level < 0.0 {
            // Rounded up: a caller that wakes finds it so.
            let seconds = (-self.level).max(0.0) / self.rate;
            let wait = Duration::try_from_secs_f64(seconds).unwrap_or(LONG).min(LONG);
            return Err(wait + Duration::from_nanos(1));
        }
        self.level -= bytes as f64;
        Ok(())
    }

    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        if self.rate.is_finite() {
            self.level = (self.level + self.rate * passed.as_secs_f64()).min(self.rate * SLACK);
        }
    }
}

/// A run's clock: where the rank that is ahead is, and how fast it reads.
#[derive(Debug, Clone, Default)]
pub(super) struct Tempo {
    seen: Option<(Duration, u64)>,
    /// Positions a second.
    speed: Option<f64>,
}

impl Tempo {
    /// The rank that is ahead has reached `place`, in positions since the run's beginning. One that goes back
    /// starts again.
    pub(super) fn note(&mut self, now: Duration, place: u64) {
        let Some((at, before)) = self.seen else {
            self.seen = Some((now, place));
            return;
        };
        if place < before {
            *self = Self { seen: Some((now, place)), speed: None };
        } else if place > before && now >= at + SHORTEST {
            let passed = (now - at).as_secs_f64();
            let seen = (place - before) as f64 / passed;
            let weight = 1.0 - (-passed.min(LONGEST) / MEMORY).exp();
            self.speed = Some(self.speed.map_or(seen, |speed| speed + weight * (seen - speed)));
            self.seen = Some((now, place));
        }
    }

    /// The rate, in bytes a second, at which `backlog` bytes have gone when the clock reaches `due`. A late
    /// backlog has half the time that `interval` positions take.
    pub(super) fn rate_for(&self, now: Duration, backlog: u64, due: u64, interval: u64) -> f64 {
        let (Some((at, place)), Some(speed)) = (self.seen, self.speed) else { return LEAST };
        let until_due = due.saturating_sub(place) as f64 / speed - now.saturating_sub(at).as_secs_f64();
        let left = until_due.max(interval as f64 / speed / 2.0);
        (backlog as f64 * HEADROOM / left).max(LEAST)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As many bytes as ask at once.
    const PIECE: u64 = 32 << 10;

    /// A caller that asks, waits for the given time, and asks again. Returns when each of `pieces` passed.
    fn pass(bucket: &mut Bucket, from: Duration, pieces: &[u64]) -> Vec<(Duration, u64)> {
        let mut now = from;
        let mut passed = Vec::new();
        for bytes in pieces {
            while let Err(wait) = bucket.take(now, *bytes) {
                now += wait;
            }
            passed.push((now, *bytes));
        }
        passed
    }

    proptest! {
        #[test]
        fn no_window_holds_more_than_the_rate_allows(
            rate in 1_000.0..1e9_f64,
            comings in prop::collection::vec((0..2_000_u64, prop::collection::vec(1..300_000_u64, 1..20)), 1..10),
        ) {
            let mut bucket = Bucket::new(rate);
            let mut now = Duration::ZERO;
            let mut passed = Vec::new();
            for (idle_ms, pieces) in comings {
                now += Duration::from_millis(idle_ms);
                passed.extend(pass(&mut bucket, now, &pieces));
                now = passed.last().map_or(now, |(at, _)| *at);
            }
            let largest = passed.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0) as f64;
            for first in 0..passed.len() {
                let mut sum = 0.0;
                for (at, bytes) in &passed[first..] {
                    sum += *bytes as f64;
                    let window = (*at - passed[first].0).as_secs_f64();
                    let most = rate * (window + SLACK) + largest;
                    prop_assert!(sum <= most * 1.000_001 + 1.0, "{sum} in {window} s, {most} may");
                }
            }
        }

        #[test]
        fn a_queue_is_served_at_the_rate(rate in 1_000.0..1e9_f64, pieces in prop::collection::vec(1..300_000_u64, 2..50)) {
            let passed = pass(&mut Bucket::new(rate), Duration::ZERO, &pieces);
            let before_last: u64 = pieces[..pieces.len() - 1].iter().sum();
            let last = passed[passed.len() - 1].0.as_secs_f64();
            prop_assert!(last <= before_last as f64 / rate + 1e-6 * pieces.len() as f64, "{last}");
        }

        /// A rank reads at one speed and reports in steps; a chunk's bytes come due when it is at the chunk's position, and have
        /// gone when it is at the next one's: no later, and not at once.
        #[test]
        fn what_is_due_has_gone_when_the_next_is(
            speed in 100.0..100_000.0_f64,
            interval_s in 1.0..60.0_f64,
            steps in 20..200_u64,
            chunks in prop::collection::vec(0..2_000_000_000_u64, 2..8),
        ) {
            let interval = (speed * interval_s) as u64;
            let step = interval.div_ceil(steps);
            let (mut tempo, mut bucket) = (Tempo::default(), Bucket::new(LEAST));
            let (mut backlog, mut queued, mut due) = (0_u64, 0, interval);
            let (mut now, mut place, mut next_report) = (Duration::ZERO, 0, 0);
            let mut fastest = 0.0_f64;
            // The first chunk is there to see how fast the rank reads.
            let end = interval * (chunks.len() as u64 + 1);
            while place < end {
                if place >= next_report {
                    tempo.note(now, place);
                    let fresh = queued < chunks.len() && place >= (queued as u64 + 1) * interval;
                    if fresh {
                        prop_assert_eq!(backlog, 0, "chunk {} has not gone when {} is due", queued, queued + 1);
                        backlog = chunks[queued];
                        queued += 1;
                        due = (queued as u64 + 1) * interval;
                    }
                    let needed = tempo.rate_for(now, backlog, due, interval);
                    if fresh || needed > bucket.rate() {
                        bucket.set_rate(now, needed);
                    }
                    next_report += step;
                }
                // Until the rank reports again.
                let report_at = Duration::from_secs_f64(next_report as f64 / speed);
                while now < report_at && backlog > 0 {
                    let piece = PIECE.min(backlog);
                    match bucket.take(now, piece) {
                        Ok(()) => {
                            backlog -= piece;
                            fastest = fastest.max(bucket.rate());
                        }
                        Err(wait) => now += wait,
                    }
                }
                now = now.max(report_at);
                place = next_report;
            }
            prop_assert_eq!(backlog, 0, "the last chunk has not gone");
            let largest = chunks.iter().copied().max().unwrap_or(0) as f64;
            prop_assert!(fastest <= (2.0 * HEADROOM * largest / interval_s).max(LEAST) * 1.1, "{fastest}: a burst");
        }
    }

    #[test]
    fn a_pause_changes_nothing_and_who_goes_back_begins_anew() {
        let at = Duration::from_secs;
        let mut tempo = Tempo::default();
        tempo.note(at(0), 0);
        assert_eq!(tempo.rate_for(at(0), 1 << 30, 100, 100), LEAST, "nothing is known yet");
        tempo.note(at(1), 1000);
        let before = tempo.rate_for(at(1), 100_000_000, 11_000, 10_000);
        assert!((before - 12_500_000.0).abs() < 1.0, "{before}");
        // No position, no news, and a late backlog does not go all at once.
        tempo.note(at(600), 1000);
        let late = tempo.rate_for(at(600), 100_000_000, 11_000, 10_000);
        assert!((late - 25_000_000.0).abs() < 1.0, "{late}");
        tempo.note(at(601), 2000);
        let after = tempo.rate_for(at(601), 100_000_000, 12_000, 10_000);
        assert!(after > before * 0.8, "{after}");
        tempo.note(at(602), 0);
        assert_eq!(tempo.rate_for(at(602), 1 << 30, 100, 100), LEAST);
    }
}
