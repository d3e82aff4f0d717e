//! How fast a store is asked that refuses requests because there are too many (503 `SlowDown`, 429): additive increase,
//! multiplicative decrease (Chiu and Jain, "Analysis of the increase and decrease algorithms for congestion avoidance in
//! computer networks", 1989). Processes that share a store know nothing of each other, and reach equal shares: each
//! refusal halves the difference between them, and the increase leaves it as it is.
//!
//! A store that never refused is asked without any limit. Knows no requests: refusals in, times to ask out.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The rate after a refusal, as a part of the one before.
const DECREASE: f64 = 0.5;
/// By this number of requests per second the rate grows in each second without a refusal.
const INCREASE: f64 = 20.0;
/// Requests per second at least.
const LEAST: f64 = 1.0;
/// A rate is cut at most once in this time: refusals that come together have one cause.
const SETTLES: Duration = Duration::from_millis(250);
/// Over this time the rate is measured of a store that has not refused yet.
const MEASURED: Duration = Duration::from_secs(1);
/// A store that did not refuse for this time has no limit any more.
const FORGOTTEN: Duration = Duration::from_secs(300);

/// The longest wait before the first repetition of a refused request; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait there is, unless the store asks for more.
const LONGEST_WAIT: Duration = Duration::from_secs(4);
/// What a store may ask for with `Retry-After`.
pub(super) const MOST_ASKED_FOR: Duration = Duration::from_secs(30);

/// How long to wait before a refused request is made again: exponential, with full jitter. `attempt` counts from 0, and `share`
/// is drawn between 0 and 1.
pub(super) fn wait(attempt: u32, share: f64) -> Duration {
    (FIRST_WAIT * 2_u32.saturating_pow(attempt.min(16))).min(LONGEST_WAIT).mul_f64(share)
}

/// The rate at which a store is asked.
#[derive(Debug)]
pub(super) struct Rate {
    /// Requests per second; `None` before the first refusal.
    rate: Option<f64>,
    /// Until when the rate has grown.
    grown: Instant,
    /// When it was last cut.
    cut: Option<Instant>,
    /// When the next request may be made.
    next: Instant,
    /// Nothing is asked before.
    held: Instant,
    /// Since when requests are counted, and how many were made: those before, and in the present time.
    since: Instant,
    made: [u32; 2],
}

impl Rate {
    pub(super) fn new(now: Instant) -> Rate {
        Rate { rate: None, grown: now, cut: None, next: now, held: now, since: now, made: [0; 2] }
    }

    /// When a request may be made that waits now.
    pub(super) fn due(&mut self, now: Instant) -> Instant {
        self.grow(now);
        self.next.max(self.held).max(now)
    }

    /// When a request may be made that is due now; that time is taken.
    pub(super) fn take(&mut self, now: Instant) -> Instant {
        self.measure(now);
        self.made[1] += 1;
        let at = self.due(now);
        if let Some(rate) = self.rate {
            self.next = at + Duration::from_secs_f64(1.0 / rate);
        }
        at
    }

    #[cfg(test)]
    fn held(&self) -> Instant {
        self.held
    }

    /// Whether the store has refused requests lately.
    pub(super) fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// A request that was made at `asked` was refused; the store wants none before `retry_after` has passed.
    pub(super) fn refused(&mut self, asked: Instant, now: Instant, retry_after: Option<Duration>) {
        if let Some(pause) = retry_after {
            self.held = self.held.max(now + pause.min(MOST_ASKED_FOR));
        }
        self.measure(now);
        self.grow(now);
        // What was on its way when the rate was cut says nothing of the new one.
        if self.cut.is_some_and(|cut| asked < cut || now < cut + SETTLES) {
            return;
        }
        let before = self.rate.unwrap_or_else(|| f64::from(self.made[0].max(self.made[1])));
        self.rate = Some((before * DECREASE).max(LEAST));
        (self.cut, self.grown) = (Some(now), now);
        // Requests that are waiting have their times; those that follow go by the new rate from now on.
        self.next = self.next.max(now);
    }

    fn grow(&mut self, now: Instant) {
        if self.cut.is_some_and(|cut| now >= cut + FORGOTTEN) {
            (self.rate, self.cut, self.next) = (None, None, now);
        }
        if let Some(rate) = &mut self.rate {
            *rate += INCREASE * now.saturating_duration_since(self.grown).as_secs_f64();
        }
        self.grown = self.grown.max(now);
    }

    fn measure(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed >= MEASURED {
            let was_made = if elapsed < 2 * MEASURED { self.made[1] } else { 0 };
            (self.since, self.made) = (now, [was_made, 0]);
        }
    }
}

/// A [`Rate`] that all requests to a store share.
#[derive(Debug)]
pub(super) struct Throttle {
    rate: Mutex<Rate>,
    /// Held by the request that waits for its time: the others queue behind it. So one that is dropped leaves no gap.
    queue: tokio::sync::Mutex<()>,
}

impl Throttle {
    pub(super) fn new() -> Throttle {
        Throttle { rate: Mutex::new(Rate::new(Instant::now())), queue: tokio::sync::Mutex::default() }
    }

    /// Waits until a request may be made.
    pub(super) async fn pass(&self) {
        let try_now = |rate: &mut Rate| {
            let now = Instant::now();
            let due = rate.due(now);
            if due <= now {
                rate.take(now);
                return None;
            }
            Some(due)
        };
        if !self.is_limited() && self.rate(try_now).is_none() {
            return;
        }
        let _first = self.queue.lock().await;
        // In the meantime the store may ask for a pause.
        while let Some(due) = self.rate(try_now) {
            sleep_until(due).await;
        }
    }

    pub(super) fn refused(&self, asked: Instant, retry_after: Option<Duration>) {
        self.rate(|rate| rate.refused(asked, Instant::now(), retry_after));
    }

    pub(super) fn is_limited(&self) -> bool {
        self.rate(|rate| rate.is_limited())
    }

    fn rate<T>(&self, ask: impl FnOnce(&mut Rate) -> T) -> T {
        ask(&mut self.rate.lock().expect("no panic while held"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A store that allows a rate, and requests that were saved up for a second.
    struct Bucket {
        rate: f64,
        tokens: f64,
        filled: Instant,
    }

    impl Bucket {
        fn admits(&mut self, now: Instant) -> bool {
            let filled = self.rate * now.saturating_duration_since(self.filled).as_secs_f64();
            (self.tokens, self.filled) = ((self.tokens + filled).min(self.rate), now);
            let admits = self.tokens >= 1.0;
            self.tokens -= f64::from(admits);
            admits
        }
    }

    /// What happens to a request of a client next.
    enum Next {
        Asks,
        Arrives,
        /// It was made then, and is refused or not.
        Answered(Instant, bool),
    }

    /// Clients that always have something to ask, one of which is `ahead` seconds; of each, the requests that were admitted and
    /// those that were refused after `warm` seconds, over `seconds`.
    fn shares(clients: usize, allowed: f64, ahead: u64, warm: u64, seconds: u64) -> Vec<(u32, u32)> {
        let begun = Instant::now();
        let mut bucket = Bucket { rate: allowed, tokens: allowed, filled: begun };
        let mut rates: Vec<Rate> = (0..clients).map(|_| Rate::new(begun)).collect();
        // An answer takes ten milliseconds, and each client has eight requests at once.
        let late = |client: usize| Duration::from_secs(if client == 0 { 0 } else { ahead });
        let mut due: Vec<(Instant, Next)> =
            (0..clients * 8).map(|n| (begun + late(n % clients), Next::Asks)).collect();
        let mut counted = vec![(0, 0); clients];
        let from = begun + Duration::from_secs(ahead + warm);
        let end = from + Duration::from_secs(seconds);
        loop {
            let next = (0..due.len()).min_by_key(|n| due[*n].0).expect("there are clients");
            let (now, client) = (due[next].0, next % clients);
            if now > end {
                return counted;
            }
            due[next] = match due[next].1 {
                Next::Asks => (rates[client].take(now), Next::Arrives),
                Next::Arrives => (now + Duration::from_millis(10), Next::Answered(now, bucket.admits(now))),
                Next::Answered(asked, admitted) => {
                    if !admitted {
                        rates[client].refused(asked, now, None);
                    }
                    if asked > from {
                        let (all, refused) = &mut counted[client];
                        *(if admitted { all } else { refused }) += 1;
                    }
                    (now, Next::Asks)
                }
            };
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

        #[test]
        fn clients_of_a_store_come_to_equal_shares(
            clients in 2..5usize, allowed in 50..400u32, ahead in prop_oneof![Just(0u64), Just(20)],
        ) {
            let allowed = f64::from(allowed);
            let counted = shares(clients, allowed, ahead, 60, 120);
            let admitted: u32 = counted.iter().map(|(admitted, _)| admitted).sum();
            let fair = f64::from(admitted) / clients as f64;
            for (own, _) in &counted {
                prop_assert!((f64::from(*own) / fair - 1.0).abs() < 0.2, "{:?}", counted);
            }
            let refused: u32 = counted.iter().map(|(_, refused)| refused).sum();
            prop_assert!(f64::from(refused) < 0.25 * f64::from(admitted), "{:?}", counted);
            prop_assert!(f64::from(admitted) > 0.5 * allowed * 120.0, "{:?}", counted);
        }

        #[test]
        fn a_wait_is_drawn_from_all_of_a_time_that_doubles(attempt in 0..40u32, share in 0.0..1.0f64) {
            let longest = wait(attempt, 1.0);
            prop_assert!(wait(attempt, share) <= longest && wait(attempt, 0.0).is_zero());
            prop_assert!(longest <= LONGEST_WAIT && longest >= FIRST_WAIT);
            prop_assert_eq!(wait(attempt + 1, 1.0), (longest * 2).min(LONGEST_WAIT));
        }
    }

    #[test]
    fn a_store_that_never_refused_is_asked_at_once() {
        let now = Instant::now();
        let mut rate = Rate::new(now);
        assert!((0..10_000).all(|_| rate.take(now) == now) && !rate.is_limited());
    }

    #[test]
    fn nothing_is_asked_before_the_store_wants_it() {
        let now = Instant::now();
        let mut rate = Rate::new(now);
        rate.take(now);
        rate.refused(now, now, Some(Duration::from_secs(3)));
        assert_eq!(rate.take(now), now + Duration::from_secs(3));
        rate.refused(now, now, Some(Duration::from_secs(3600)));
        assert_eq!(rate.held(), now + MOST_ASKED_FOR);
    }

    #[test]
    fn a_store_that_has_not_refused_for_long_has_no_limit() {
        let now = Instant::now();
        let mut rate = Rate::new(now);
        rate.take(now);
        rate.refused(now, now, None);
        assert!(rate.is_limited());
        let later = now + FORGOTTEN;
        assert_eq!(rate.take(later), later);
        assert!(!rate.is_limited() && rate.take(later) == later);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_are_dropped_leave_no_gap() {
        let throttle = Throttle::new();
        for _ in 0..4 {
            throttle.pass().await;
        }
        throttle.refused(Instant::now(), None); // two a second, and more with each second
        let waiting: Vec<_> = (0..200).map(|_| Box::pin(throttle.pass())).collect();
        let all = futures::future::join_all(waiting);
        assert!(tokio::time::timeout(Duration::from_millis(100), all).await.is_err());
        let begun = Instant::now();
        throttle.pass().await;
        assert!(begun.elapsed() <= Duration::from_secs(1), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_wait_wait_for_a_pause_as_well() {
        let throttle = Throttle::new();
        let begun = Instant::now();
        for _ in 0..4 {
            throttle.pass().await;
        }
        throttle.refused(begun, None); // two a second
        throttle.pass().await;
        let waiting = throttle.pass();
        let refuse = async { throttle.refused(begun, Some(Duration::from_secs(5))) };
        tokio::join!(waiting, refuse);
        assert!(begun.elapsed() >= Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}
