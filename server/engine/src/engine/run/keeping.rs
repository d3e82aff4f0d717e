//! The grains of a run that this node keeps where there is no room for all, by epoch.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use shardd_plan::GrainNo;
use tokio::sync::Notify;

use shardd_api::capacity::Kept;

/// The choices of the epoch before, the present and the next one, and one more for ranks that are ahead.
const CHOICES: usize = 4;

/// The basis of a choice: the number of the node's news, and the generation of the run's placement.
pub(crate) type News = (u64, u64);

/// The kept grains of a run, by epoch, and those not kept although chosen.
#[derive(Debug, Default)]
pub(crate) struct KeptGrains {
    state: Mutex<State>,
    /// Held while segments of departed grains are dropped or replaced.
    pub(crate) letting_go: Mutex<()>,
    /// Woken when something has made room for arriving grains.
    pub(crate) freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By epoch, each with the reason of the choice.
    chosen: BTreeMap<u32, (News, Arc<Kept>)>,
    /// Grains that left this node with the exchange before its epoch had ended.
    left: BTreeMap<u32, HashSet<GrainNo>>,
    /// Grains that make room before their epoch has ended, as their next host does not keep them.
    ends: BTreeMap<u32, HashSet<GrainNo>>,
    /// Grains that were to be kept and found no room.
    no_room: BTreeMap<u32, HashSet<GrainNo>>,
}

impl KeptGrains {
    /// The choice for an epoch, if it was made by this news.
    pub(crate) fn chosen(&self, epoch: u32, news: News) -> Option<Arc<Kept>> {
        let state = self.state();
        state.chosen.get(&epoch).filter(|(by, _)| *by == news).map(|(_, kept)| Arc::clone(kept))
    }

    pub(crate) fn choose(&self, epoch: u32, news: News, kept: &Arc<Kept>) {
        let mut state = self.state();
        state.chosen.insert(epoch, (news, Arc::clone(kept)));
        while state.chosen.len() > CHOICES {
            let far = state.chosen.keys().copied().max_by_key(|e| e.abs_diff(epoch)).expect("not empty");
            state.chosen.remove(&far);
        }
    }

    /// A launch begins, perhaps in an epoch that was read before: nothing has left it.
    pub(crate) fn begin(&self) {
        let mut state = self.state();
        (state.left, state.ends, state.no_room) = Default::default();
    }

    /// Whether anything has left before `epoch` has ended.
    pub(crate) fn have_some_left(&self, epoch: u32) -> bool {
        self.state().left.contains_key(&epoch)
    }

    /// These have left after `epoch`, and their next hosts have them.
    pub(crate) fn leave(&self, epoch: u32, grains: &[GrainNo]) {
        note(&mut self.state().left, epoch, grains);
    }

    /// Whether a grain has left before `epoch` has ended.
    pub(crate) fn has_left(&self, epoch: u32, grain: GrainNo) -> bool {
        self.state().left.get(&epoch).is_some_and(|left| left.contains(&grain))
    }

    /// A grain's next host does not keep it: where it lies beside others that have left, it goes with them, and the few of its
    /// rows that are left are read past the cache.
    pub(crate) fn may_end(&self, epoch: u32, grain: GrainNo) {
        note(&mut self.state().ends, epoch, &[grain]);
    }

    /// Whether a grain was let go of in `epoch`, and lies nowhere else.
    pub(crate) fn has_ended(&self, epoch: u32, grain: GrainNo) -> bool {
        self.state().ends.get(&epoch).is_some_and(|ends| ends.contains(&grain))
    }

    /// There is no room for a grain in `epoch`.
    pub(crate) fn finds_no_room(&self, epoch: u32, grain: GrainNo) {
        note(&mut self.state().no_room, epoch, &[grain]);
    }

    /// Whether something found no room in `epoch`, under the limit or on the disk.
    pub(crate) fn is_out_of_room(&self, epoch: u32) -> bool {
        self.state().no_room.contains_key(&epoch)
    }

    pub(crate) fn found_no_room(&self, epoch: u32, grain: GrainNo) -> bool {
        self.state().no_room.get(&epoch).is_some_and(|grains| grains.contains(&grain))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }
}

/// Notes grains of an epoch; notes on epochs long before it are dropped.
fn note(noted: &mut BTreeMap<u32, HashSet<GrainNo>>, epoch: u32, grains: &[GrainNo]) {
    noted.entry(epoch).or_default().extend(grains);
    noted.retain(|noted, _| noted.abs_diff(epoch) < CHOICES as u32);
}
