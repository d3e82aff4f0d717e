//! What a node did for a run, and when: for a trace that shows trainers and nodes side by side.
//!
//! Bounded: the oldest entries are dropped first.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use shardd_api::node::NodeId;
use shardd_api::timeline::{Stretch, Timeline, Work};
use tokio::time::Instant;

use super::counters::micros;

/// How much of a run is kept: some 10 MB/s of exchange in streams of 4 MiB for an hour.
const KEPT: usize = 8192;

/// The kept part of a run's timeline.
#[derive(Debug, Default)]
pub(crate) struct Stretches(Mutex<VecDeque<Kept>>);

#[derive(Debug)]
struct Kept {
    work: Work,
    epoch: u32,
    peer: Option<NodeId>,
    grains: u64,
    began: Instant,
    took: Duration,
}

impl Stretches {
    /// Notes work that has just ended.
    pub(super) fn note(&self, work: Work, epoch: u32, peer: Option<NodeId>, grains: u64, began: Instant) {
        let mut kept = self.0.lock().expect("no panic while held");
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Kept { work, epoch, peer, grains, began, took: began.elapsed() });
    }

    pub(super) fn told(&self, node: NodeId) -> Timeline {
        // The clock on the wall may be set; what lies between then and now may not.
        let (now, wall) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        let tell = |kept: &Kept| Stretch {
            work: kept.work,
            epoch: kept.epoch,
            peer: kept.peer.clone(),
            grains: kept.grains,
            began_micros: micros(wall.saturating_sub(now.saturating_duration_since(kept.began))),
            took_micros: micros(kept.took),
        };
        let kept = self.0.lock().expect("no panic while held");
        Timeline { node, stretches: kept.iter().map(tell).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_latest_is_kept_and_told_with_its_times() {
        let stretches = Stretches::default();
        for grains in 0..KEPT as u64 + 2 {
            let began = Instant::now();
            tokio::time::advance(Duration::from_millis(3)).await;
            stretches.note(Work::Send, 7, Some("n2".parse().expect("a name")), grains, began);
        }
        let told = stretches.told("n1".parse().expect("a name"));
        assert_eq!(told.stretches.len(), KEPT);
        let (first, second) = (&told.stretches[0], &told.stretches[1]);
        assert_eq!((first.grains, first.epoch, first.took_micros), (2, 7, 3000));
        assert_eq!(second.began_micros - first.began_micros, 3000);
        let text = serde_json::to_string(&told).expect("plain data");
        assert_eq!(serde_json::from_str::<Timeline>(&text).expect("the written text"), told);
    }
}
