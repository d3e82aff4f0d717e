//! Grains that tasks of this node are fetching, so that no grain is fetched twice at a time.

use std::collections::HashSet;
use std::sync::Mutex;

use shardd_plan::GrainNo;
use tokio::sync::Notify;

/// The set of grains that tasks on this node are fetching.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    grains: Mutex<HashSet<GrainNo>>,
    done: Notify,
}

impl InFlight {
    /// Claims those of `wanted` that no task fetches yet; the others are returned beside the claim.
    pub(crate) fn claim(&self, wanted: impl IntoIterator<Item = GrainNo>) -> (Claim<'_>, Vec<GrainNo>) {
        let mut grains = self.grains.lock().expect("no panic while held");
        let (mine, others) = wanted.into_iter().partition(|grain| grains.insert(*grain));
        (Claim { in_flight: self, grains: mine }, others)
    }

    /// Waits until none of `grains` is in flight.
    pub(crate) async fn landed(&self, grains: &[GrainNo]) {
        loop {
            let mut notified = std::pin::pin!(self.done.notified());
            notified.as_mut().enable();
            let busy = {
                let flying = self.grains.lock().expect("no panic while held");
                grains.iter().any(|grain| flying.contains(grain))
            };
            if !busy {
                return;
            }
            notified.await;
        }
    }
}

/// Grains that the holder fetches. Dropping it, also halfway, lets others try.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    in_flight: &'a InFlight,
    pub(crate) grains: Vec<GrainNo>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut grains = self.in_flight.grains.lock().expect("no panic while held");
        for grain in &self.grains {
            grains.remove(grain);
        }
        drop(grains);
        self.in_flight.done.notify_waiters();
    }
}
