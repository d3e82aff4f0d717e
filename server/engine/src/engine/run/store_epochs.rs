//! A node's traffic to the store by epoch of a run: the counts of the store's client as each epoch began, and as they were last
//! while ranks read it. Pure.

use std::collections::BTreeMap;
use std::sync::Mutex;

use shardd_api::status::{StoreEpoch, WireCounts};

/// Epochs that are kept; older ones are dropped first.
const EPOCHS_KEPT: usize = 1024;

/// The counts of a run's epochs.
#[derive(Debug, Default)]
pub(crate) struct StoreEpochs(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    /// Before the node read anything for the run.
    opened: WireCounts,
    /// As each epoch began, and the last of it.
    epochs: BTreeMap<u32, (WireCounts, WireCounts)>,
}

impl StoreEpochs {
    /// Of a run that the node opens now.
    pub(crate) fn opened(now: WireCounts) -> Self {
        Self(Mutex::new(Noted { opened: now, epochs: BTreeMap::new() }))
    }

    /// Ranks read in `epoch`. The traffic since they were last noted counts for it; a late word of an earlier epoch changes nothing
    /// but that.
    pub(crate) fn note(&self, epoch: u32, now: WireCounts) {
        let mut noted = self.0.lock().expect("no panic while held");
        let newest = noted.epochs.last_key_value().map(|(newest, (_, last))| (*newest, *last));
        let begun = newest.map_or(noted.opened, |(_, last)| last);
        let epoch = newest.map_or(epoch, |(newest, _)| newest.max(epoch));
        noted.epochs.entry(epoch).or_insert((begun, now)).1 = now;
        if noted.epochs.len() > EPOCHS_KEPT {
            noted.epochs.pop_first();
        }
    }

    /// The traffic of each epoch.
    pub(crate) fn of(&self, run: &str) -> Vec<StoreEpoch> {
        let noted = self.0.lock().expect("no panic while held");
        let epoch = |(epoch, (begun, last)): (&u32, &(WireCounts, WireCounts))| StoreEpoch {
            run: run.to_owned(),
            epoch: *epoch,
            counts: last.since(begun),
        };
        noted.epochs.iter().map(epoch).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(class_b: u64) -> WireCounts {
        WireCounts { requests: class_b, class_b, ..WireCounts::default() }
    }

    #[test]
    fn every_request_between_opening_and_the_last_word_is_of_one_epoch() {
        let store = StoreEpochs::opened(read(5));
        for (epoch, counted) in [(0, 9), (0, 20), (1, 23), (0, 24), (3, 30), (3, 31)] {
            store.note(epoch, read(counted));
        }
        let epochs: Vec<(u32, u64)> =
            store.of("r").iter().map(|epoch| (epoch.epoch, epoch.counts.class_b)).collect();
        assert_eq!(epochs, [(0, 15), (1, 4), (3, 7)]);
    }

    #[test]
    fn old_epochs_are_dropped_first() {
        let store = StoreEpochs::default();
        (0..2000).for_each(|epoch| store.note(epoch, read(epoch.into())));
        let epochs = store.of("r");
        assert_eq!((epochs.len(), epochs[0].epoch, epochs[EPOCHS_KEPT - 1].epoch), (EPOCHS_KEPT, 976, 1999));
    }
}
