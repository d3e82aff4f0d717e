//! When a read is asked a second time because its answer is late. The tail of a store's latencies is long,
//! and a batch waits for the slowest of many requests. A second request for answers later than most makes the
//! tail short (Dean and Barroso, "The Tail at Scale", 2013). Knows no requests: latencies in, a waiting time
//! out.

use std::time::Duration;

/// Answers that are remembered.
const REMEMBERED: usize = 64;
/// The least number of known reads before it decides.
const LEAST: usize = 16;
/// No answer is late before this.
const MIN_HEDGE_DELAY: Duration = Duration::from_millis(50);
/// Of a hundred reads, this number may be asked twice in the long run: a store that is slow altogether needs
/// no more requests.
const PERCENT: u32 = 5;
/// This number may be asked twice at once, after a time in which none was.
const MOST_SAVED: u32 = 10;

/// The known latency of a store.
#[derive(Debug, Default)]
pub(super) struct Hedge {
    /// The last latencies, the oldest at `next`.
    known: Vec<Duration>,
    next: usize,
    /// Hundredths of requests that may be asked again.
    saved: u32,
}

impl Hedge {
    /// An answer has come after this time.
    pub(super) fn answered(&mut self, after: Duration) {
        match self.known.get_mut(self.next) {
            Some(oldest) => *oldest = after,
            None => self.known.push(after),
        }
        self.next = (self.next + 1) % REMEMBERED;
    }

    /// A read is asked. How long to wait for its answer before asking again, if that is allowed at all.
    pub(super) fn patience(&mut self) -> Option<Duration> {
        self.saved = (self.saved + PERCENT).min(100 * MOST_SAVED);
        if self.known.len() < LEAST || self.saved < 100 {
            return None;
        }
        let mut known = self.known.clone();
        let late = known.len() - 1 - known.len() / 20;
        let (_, late, _) = known.select_nth_unstable(late);
        Some((*late * 2).max(MIN_HEDGE_DELAY))
    }

    /// Whether a read that is late may be asked again now; if so, that is done.
    pub(super) fn take(&mut self) -> bool {
        let may = self.saved >= 100;
        if may {
            self.saved -= 100;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_twice_as_long_as_most_is_late() {
        let mut hedge = Hedge::default();
        for _ in 0..20 {
            assert_eq!(hedge.patience(), None, "too little is known");
        }
        for milliseconds in 1..=100 {
            hedge.answered(Duration::from_millis(milliseconds));
        }
        // Of the last 64, from 37 to 100 ms, all but three take no longer than 97 ms.
        assert_eq!(hedge.patience(), Some(Duration::from_millis(194)));
        (0..REMEMBERED).for_each(|_| hedge.answered(Duration::from_millis(2)));
        assert_eq!(hedge.patience(), Some(MIN_HEDGE_DELAY));
    }

    #[test]
    fn one_in_twenty_is_asked_twice() {
        let mut hedge = Hedge::default();
        (0..LEAST).for_each(|_| hedge.answered(MIN_HEDGE_DELAY));
        let asked = (0..1000).filter(|_| hedge.patience().is_some() && hedge.take()).count();
        assert_eq!(asked, 50);
        (0..1000).for_each(|_| _ = hedge.patience());
        assert_eq!((0..100).filter(|_| hedge.take()).count(), MOST_SAVED as usize);
    }
}
