//! Limits the bytes per second.

use std::sync::Mutex;
use std::time::Duration;

use shardfmt::ByteSize;
use tokio::time::{Instant, sleep_until};

/// Unused bandwidth of this time may be made up for.
const SLACK: Duration = Duration::from_millis(100);

/// Lets bytes through at a rate; those who wait are served in turn.
#[derive(Debug)]
pub(super) struct Pace {
    rate: f64,
    /// When all that was let through so far is through.
    free: Mutex<Instant>,
}

impl Pace {
    pub(super) fn new(rate: ByteSize) -> Pace {
        Pace { rate: rate.0.max(1) as f64, free: Mutex::new(Instant::now()) }
    }

    /// Waits until this number of bytes may pass.
    pub(super) async fn pass(&self, bytes: usize) {
        let begin = {
            let mut free = self.free.lock().expect("no panic while held");
            let now = Instant::now();
            let begin = (*free).max(now.checked_sub(SLACK).unwrap_or(now));
            *free = begin + Duration::from_secs_f64(bytes as f64 / self.rate);
            *free
        };
        sleep_until(begin).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_pass_at_the_rate_however_they_come() {
        let begun = Instant::now();
        let pace = Pace::new(ByteSize(1000));
        for bytes in [1, 99, 400, 0, 500, 1000] {
            pace.pass(bytes).await;
        }
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(1900) && took <= Duration::from_millis(2010), "{took:?}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let begun = Instant::now();
        pace.pass(1000).await;
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(900) && took <= Duration::from_millis(910), "{took:?}");
    }
}
