//! The rate limit of the exchange: a [`Bucket`] and a queue of senders before it. Another rate holds at once,
//! for those who wait, too.

use std::sync::{Mutex, MutexGuard};

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::pace::Bucket;

/// Lets bytes through at a rate.
pub(super) struct Gate {
    began: Instant,
    bucket: Mutex<Bucket>,
    turn: tokio::sync::Mutex<()>,
    /// Counts the changes of the rate.
    changes: watch::Sender<u64>,
}

impl Gate {
    /// A gate for a number of bytes a second; infinite: no caller waits; 0: all do.
    pub(super) fn new(rate: f64) -> Self {
        Self {
            began: Instant::now(),
            bucket: Mutex::new(Bucket::new(rate)),
            turn: tokio::sync::Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }

    pub(super) fn rate(&self) -> f64 {
        self.bucket().rate()
    }

    pub(super) fn set_rate(&self, rate: f64) {
        let now = self.began.elapsed();
        self.bucket().set_rate(now, rate);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Waits until `bytes` may pass. May be dropped: then nothing has.
    pub(super) async fn pass(&self, bytes: u64) {
        let _turn = self.turn.lock().await;
        let mut changes = self.changes.subscribe();
        loop {
            let now = self.began.elapsed();
            let taken = self.bucket().take(now, bytes);
            let Err(wait) = taken else { return };
            let _ = timeout(wait, changes.changed()).await;
        }
    }

    fn bucket(&self) -> MutexGuard<'_, Bucket> {
        self.bucket.lock().expect("no panic while held")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_goes_on_as_soon_as_another_rate_lets_it() {
        let gate = Gate::new(0.0);
        let begun = Instant::now();
        let opened = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            gate.set_rate(1000.0);
        };
        let passed = async {
            gate.pass(2000).await;
            assert_eq!(begun.elapsed().as_secs(), 5, "closed until then");
            gate.pass(10).await;
            assert_eq!(begun.elapsed().as_secs(), 7);
            gate.set_rate(f64::INFINITY);
            gate.pass(1 << 40).await;
            gate.pass(1 << 40).await;
            assert_eq!(begun.elapsed().as_secs(), 7);
        };
        tokio::join!(passed, opened);
    }
}
