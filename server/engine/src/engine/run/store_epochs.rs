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

    /// Ranks have come to a position of an epoch. The traffic since they were last noted counts for the epoch of which they have
    /// read something: the one before, at position 0, where a training also ends. A late word of an earlier epoch counts for the
    /// newest.
    pub(crate) fn note(&self, (epoch, position): (u32, u64), now: WireCounts) {
        let mut noted = self.0.lock().expect("no panic while held");
        let newest = noted.epochs.last_key_value().map(|(newest, (_, last))| (*newest, *last));
        let begun = newest.map_or(noted.opened, |(_, last)| last);
        let epoch = match newest {
            Some((newest, _)) if position == 0 => newest,
            Some((newest, _)) => newest.max(epoch),
            None => epoch,
        };
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
        let reached = [(0, 0), (0, 64), (1, 0), (1, 64), (0, 96), (3, 64), (4, 0)];
        for (at, counted) in reached.into_iter().zip([9, 18, 20, 23, 24, 30, 31]) {
            store.note(at, read(counted));
        }
        let epochs: Vec<(u32, u64)> =
            store.of("r").iter().map(|epoch| (epoch.epoch, epoch.counts.class_b)).collect();
        assert_eq!(epochs, [(0, 15), (1, 4), (3, 7)]);
    }

    #[test]
    fn old_epochs_are_dropped_first() {
        let store = StoreEpochs::default();
        (0..2000).for_each(|epoch| store.note((epoch, 1), read(epoch.into())));
        let epochs = store.of("r");
        assert_eq!((epochs.len(), epochs[0].epoch, epochs[EPOCHS_KEPT - 1].epoch), (EPOCHS_KEPT, 976, 1999));
    }
}
