//! The fill of a cache with the grains that the node hosts, epoch by epoch.

use std::sync::Mutex;

/// The fill under way, and what was tidied before it.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    state: Mutex<State>,
    /// The placement and the epoch for which the cache was last looked through for what this node hosts no more.
    tidied: Mutex<Option<(u64, u32)>>,
}

/// The epoch and the generation for which the hosted grains are fetched, and whether the last attempt at it
/// has ended.
#[derive(Debug, Default)]
struct State {
    attempt: u64,
    goal: Option<(u32, u64)>,
    is_done: bool,
}

impl Filling {
    /// The hosted grains are being fetched for an epoch and a generation: the number of this attempt.
    pub(crate) fn begin(&self, epoch: u32, generation: u64) -> u64 {
        let mut filling = self.state.lock().expect("no panic while held");
        filling.attempt += 1;
        (filling.goal, filling.is_done) = (Some((epoch, generation)), false);
        filling.attempt
    }

    /// An attempt has fetched all it could. It does not count for attempts begun since.
    pub(crate) fn end(&self, attempt: u64) {
        let mut filling = self.state.lock().expect("no panic while held");
        filling.is_done |= filling.attempt == attempt;
    }

    /// No task fetches any more.
    pub(crate) fn stop(&self) {
        let mut filling = self.state.lock().expect("no panic while held");
        filling.attempt += 1;
        (filling.goal, filling.is_done) = (None, false);
    }

    /// Whether the hosted grains of an epoch and generation were fetched, where possible.
    pub(crate) fn has_filled(&self, epoch: u32, generation: u64) -> bool {
        let filling = self.state.lock().expect("no panic while held");
        filling.is_done && filling.goal == Some((epoch, generation))
    }

    /// Whether the cache has not been looked through yet for this placement and epoch; from now on it has.
    pub(crate) fn is_first_tidied(&self, generation: u64, epoch: u32) -> bool {
        let mut tidied = self.tidied.lock().expect("no panic while held");
        tidied.replace((generation, epoch)) != Some((generation, epoch))
    }
}
