//! Whether an exchange hides behind the training of an epoch: a closed form. Pure; it knows seconds and counts.
//!
//! An epoch has S steps of t seconds, so training takes C = S t. A node's part of the exchange keeps its link busy for X seconds:
//! the larger of the sent and the received bytes, over the link's goodput. The exchange is cut into T chunks. Chunk k is due when
//! ranks have read k/T of the first nine tenths of the epoch (`Plan::chunk_due`). Ranks report the end of a step when they begin
//! it, so chunk k is sent in step
//!
//! ```text
//! s_k = max(0, ceil(0.9 S k/T) - 1),   at s_k t seconds.
//! ```
//!
//! The link serves chunks in order, and each takes X/T. Chunk k and all after it have left when T - k of them have passed, at
//! s_k t + X (T - k)/T or later, and the latest of these bounds is exact for a queue with one server (the Lindley recursion, D. V.
//! Lindley 1952). A node does not use the whole link: it sends a chunk 1.25 times as fast as it must for the chunk to have gone
//! when the next one is due (`engine/pace.rs`). So the last chunk leaves at (0.2 s_(T-1) + 0.72 S) t if the link does not make it
//! later. L seconds after it left, a chunk can be read.
//!
//! The next epoch reads the samples of all chunks from its first steps on. So training waits for
//!
//! ```text
//! max(0, L - C + max(X (T - k)/T + s_k t for k < T, (0.2 s_(T-1) + 0.72 S) t)).
//! ```
//!
//! For large S this is max(0, X + L - C, L - 0.1 C or so). An exchange hides while the link is faster than the training (X < C)
//! and the epoch is longer than ten times the latency. In the second case more bandwidth changes nothing.

use std::time::Duration;

/// The part of a link's bandwidth that is left for samples: the rest is headers, proofs, acknowledgements, and the time in which
/// congestion control finds the rate. `benches/paper/hiding` measures it.
const GOODPUT: f64 = 0.93;
/// The time to verify and store a chunk, and to report and notice positions, without the network's.
const HANDLING: Duration = Duration::from_millis(10);
/// Round trips after a chunk is due, until its last grain is there.
const ROUND_TRIPS: f64 = 1.5;
/// A node sends this many times as fast as it must.
const HEADROOM: f64 = 1.25;
/// The part of an epoch in which an exchange is sent, as tenths: a float's rounding would put a chunk that is due at the end of a
/// step into the next one.
const WINDOW_TENTHS: u64 = 9;
/// Exchanges of up to this part of what the closed form hides hid in measurements, too, in epochs of [`MEASURED_STEPS`] or more
/// (`benches/paper/hiding`; the table that `benches/paper/report` makes counts them).
pub const MEASURED: f64 = 0.7;
/// In shorter epochs some did not: a node then exchanges few grains, and a late one is a large part.
pub const MEASURED_STEPS: u64 = 20;

/// An epoch's exchange as the node with the most bytes sees it, beside the steps of the epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hiding {
    /// X: seconds that the node's link is busy.
    link: f64,
    /// L: seconds from the last byte's departure until it can be read.
    latency: f64,
    /// T, at least 1.
    chunks: u32,
    /// S, at least 1.
    steps: u64,
}

impl Hiding {
    /// An exchange that would take `link_time` at the full bandwidth of the node's link, over a network with this `round_trip`
    /// time. Zero chunks or steps count as one.
    pub fn new(link_time: Duration, round_trip: Duration, chunks: u32, steps: u64) -> Self {
        Self {
            link: link_time.as_secs_f64() / GOODPUT,
            latency: (HANDLING + round_trip.mul_f64(ROUND_TRIPS)).as_secs_f64(),
            chunks: chunks.max(1),
            steps: steps.max(1),
        }
    }

    /// Seconds that training waits for the exchange in each epoch, with steps of this time.
    pub fn exposed_s(&self, step: Duration) -> f64 {
        let step = step.as_secs_f64();
        let slack = |bound: Bound| bound.steps_left * step - bound.link_shares * self.link - self.latency;
        self.bounds().map(slack).fold(0.0, |exposed: f64, slack| exposed.max(-slack))
    }

    /// The part of the exchange that costs no time, from 0 to 1: without the exchange's own training, all of X would be waiting.
    pub fn hidden_share(&self, step: Duration) -> f64 {
        match self.link {
            0.0 => 1.0,
            link => (1.0 - self.exposed_s(step) / link).clamp(0.0, 1.0),
        }
    }

    /// The shortest step, in seconds, that hides all.
    pub fn hiding_step_s(&self) -> f64 {
        let needed = |bound: Bound| (bound.link_shares * self.link + self.latency) / bound.steps_left;
        self.bounds().map(needed).fold(0.0, f64::max)
    }

    /// How many times the bytes would still be hidden by steps of this time: 0 if no exchange is, infinite if there are no bytes.
    pub fn hidden_multiple(&self, step: Duration) -> f64 {
        let step = step.as_secs_f64();
        let multiple = |bound: Bound| {
            let left = bound.steps_left * step - self.latency;
            match bound.link_shares * self.link {
                _ if left < 0.0 => 0.0,
                0.0 => f64::INFINITY,
                needed => left / needed,
            }
        };
        self.bounds().map(multiple).fold(f64::INFINITY, f64::min)
    }

    /// What must fit into an epoch: none, if nothing is exchanged.
    fn bounds(&self) -> impl Iterator<Item = Bound> {
        let Self { chunks, steps, .. } = *self;
        let epoch = steps as f64;
        let sent_in = move |chunk: u32| {
            let due = u128::from(WINDOW_TENTHS) * u128::from(steps) * u128::from(chunk);
            due.div_ceil(10 * u128::from(chunks)).saturating_sub(1) as f64
        };
        let queued = (0..chunks).map(move |chunk| Bound {
            steps_left: epoch - sent_in(chunk),
            link_shares: f64::from(chunks - chunk) / f64::from(chunks),
        });
        let (last, window) = (sent_in(chunks - 1), WINDOW_TENTHS as f64 / 10.0 * epoch);
        let paced = last + (window - last).max(0.0) / HEADROOM;
        let paced = Bound { steps_left: epoch - paced, link_shares: 0.0 };
        queued.chain([paced]).filter(|_| self.link > 0.0)
    }
}

/// This number of parts of the exchange, and the latency, have to fit into this number of steps.
struct Bound {
    steps_left: f64,
    link_shares: f64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NEAR: f64 = 1e-9;

    fn hiding(link_s: f64, round_trip_ms: u64, chunks: u32, steps: u64) -> Hiding {
        Hiding::new(Duration::from_secs_f64(link_s), Duration::from_millis(round_trip_ms), chunks, steps)
    }

    /// From exchanges that only latency makes late, to those that take many epochs.
    fn link_s() -> impl Strategy<Value = f64> {
        (-4.0..2.0_f64).prop_map(|power| 10_f64.powf(power))
    }

    /// The same found by playing an epoch, chunk after chunk.
    fn played(hiding: &Hiding, step: f64) -> f64 {
        let Hiding { link, latency, chunks, steps } = *hiding;
        let position = |chunk: u32| steps as f64 * 9.0 * f64::from(chunk) / (10.0 * f64::from(chunks));
        // The first step that ends at the position or after it.
        let sent_in =
            |chunk| (0..steps).find(|it| (it + 1) as f64 >= position(chunk)).expect("one does") as f64;
        let mut free = 0.0_f64;
        for chunk in 0..chunks {
            free = free.max(sent_in(chunk) * step) + link / f64::from(chunks);
        }
        let begun = sent_in(chunks - 1) * step;
        let paced = begun + (position(chunks) * step - begun).max(0.0) / 1.25;
        (free.max(paced) + latency - steps as f64 * step).max(0.0)
    }

    proptest! {
        #[test]
        fn the_closed_form_is_what_a_queue_of_chunks_does(
            link_s in link_s(), round_trip_ms in 0..500_u64, chunks in 1..40_u32, steps in 1..300_u64, step_ms in 1..2000_u64,
        ) {
            let (hiding, step) = (hiding(link_s, round_trip_ms, chunks, steps), Duration::from_millis(step_ms));
            let (exposed, played) = (hiding.exposed_s(step), played(&hiding, step.as_secs_f64()));
            prop_assert!((exposed - played).abs() < 1e-6 * (1.0 + played), "{exposed} {played}");
        }

        #[test]
        fn more_steps_longer_steps_and_fewer_bytes_expose_no_more(
            link_s in link_s(), round_trip_ms in 0..500_u64, chunks in 1..40_u32, steps in 1..300_u64, step_ms in 1..2000_u64,
            more in 1..100_u64, faster in 1.0..10.0_f64,
        ) {
            let step = Duration::from_millis(step_ms);
            let exposed = hiding(link_s, round_trip_ms, chunks, steps).exposed_s(step);
            prop_assert!(hiding(link_s / faster, round_trip_ms, chunks, steps).exposed_s(step) <= exposed + NEAR);
            prop_assert!(hiding(link_s, round_trip_ms, chunks, steps + more).exposed_s(step) <= exposed + NEAR);
            let longer = step + Duration::from_millis(more);
            prop_assert!(hiding(link_s, round_trip_ms, chunks, steps).exposed_s(longer) <= exposed + NEAR);
            prop_assert!(hiding(link_s, round_trip_ms + more, chunks, steps).exposed_s(step) >= exposed - NEAR);
            let share = hiding(link_s, round_trip_ms, chunks, steps).hidden_share(step);
            prop_assert!((0.0..=1.0).contains(&share) && (share < 1.0) == (exposed > 0.0), "{share} {exposed}");
        }

        #[test]
        fn the_hiding_step_and_the_hidden_multiple_are_where_waiting_begins(
            link_s in link_s(), round_trip_ms in 0..500_u64, chunks in 1..40_u32, steps in 1..300_u64, step_ms in 1..2000_u64,
        ) {
            let it = hiding(link_s, round_trip_ms, chunks, steps);
            let least = it.hiding_step_s();
            prop_assert!(it.exposed_s(Duration::from_secs_f64(least * 1.0001)) <= 1e-6 * least * steps as f64);
            prop_assert!(it.exposed_s(Duration::from_secs_f64(least * 0.99)) > 0.0);
            let step = Duration::from_millis(step_ms);
            let multiple = it.hidden_multiple(step);
            prop_assert_eq!(multiple >= 1.0, it.exposed_s(step) <= 0.0);
            if multiple > 1e-3 {
                prop_assert!(hiding(link_s * multiple * 0.999, round_trip_ms, chunks, steps).exposed_s(step) <= NEAR);
                prop_assert!(hiding(link_s * multiple * 1.01, round_trip_ms, chunks, steps).exposed_s(step) > 0.0);
            }
        }

        /// With a slow link all that remains is the difference between its time and that of training.
        #[test]
        fn a_link_that_is_slower_than_training_exposes_the_difference(
            step_ms in 1..2000_u64, chunks in 1..40_u32, steps in 1..300_u64, times in 2.0..100.0_f64,
        ) {
            let step = Duration::from_millis(step_ms);
            let epoch = steps as f64 * step.as_secs_f64();
            let it = hiding(times * epoch * GOODPUT, 0, chunks, steps);
            let exposed = it.exposed_s(step) - HANDLING.as_secs_f64();
            prop_assert!((exposed - (times - 1.0) * epoch).abs() < 1e-6 * epoch, "{exposed}");
        }
    }

    /// 0.9 * 31 * 30 / 31 is a little more than 27 in floating point.
    #[test]
    fn a_chunk_that_is_due_at_the_end_of_a_step_is_sent_in_it() {
        let (hiding, step) = (hiding(1.0, 451, 31, 31), 0.039);
        let exposed = hiding.exposed_s(Duration::from_secs_f64(step));
        assert!((exposed - played(&hiding, step)).abs() < NEAR, "{exposed}");
    }

    #[test]
    fn where_nothing_moves_nothing_waits() {
        let it = hiding(0.0, 500, 16, 1);
        let step = Duration::from_millis(1);
        assert_eq!((it.exposed_s(step), it.hidden_share(step), it.hiding_step_s()), (0.0, 1.0, 0.0));
        assert_eq!(it.hidden_multiple(step), f64::INFINITY);
    }

    #[test]
    fn a_short_epoch_waits_for_the_network_at_any_bandwidth() {
        // Five steps of 10 ms, and 200 ms of latency.
        let it = hiding(1e-6, 127, 16, 5);
        assert!(it.exposed_s(Duration::from_millis(10)) > 0.15);
        assert_eq!(it.hidden_multiple(Duration::from_millis(10)), 0.0);
        assert_eq!(it.exposed_s(Duration::from_secs(1)), 0.0);
    }
}
