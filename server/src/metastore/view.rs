//! Recent reads of a metastore, for reading again without a thread or a disk. Holds some megabytes at most,
//! and knows nothing of leases or of time: who keeps it says what may stay.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use shardd_store::metastore::Entry;

/// The most that keys and values may take together.
const MOST_BYTES: usize = 16 << 20;

/// Entries as they are in the metastore. The writer of an entry removes it here before the change is
/// announced; a reader adds only entries without a change under way.
#[derive(Default)]
pub(super) struct View(Mutex<Known>);

#[derive(Default)]
struct Known {
    entries: HashMap<String, Entry>,
    bytes: usize,
}

impl View {
    /// The entry at `key`, if it is known.
    pub(super) fn get(&self, key: &str) -> Option<Entry> {
        self.known().entries.get(key).cloned()
    }

    /// Keeps an entry; when that is too much, it is the only one.
    pub(super) fn keep(&self, key: &str, entry: &Entry) {
        let mut known = self.known();
        known.forget(key);
        let bytes = key.len() + entry.value.len();
        if known.bytes + bytes > MOST_BYTES {
            *known = Known::default();
        }
        known.bytes += bytes;
        known.entries.insert(key.to_owned(), entry.clone());
    }

    /// Does not know `key` any more.
    pub(super) fn forget(&self, key: &str) {
        self.known().forget(key);
    }

    /// Knows nothing any more.
    pub(super) fn clear(&self) {
        *self.known() = Known::default();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("no panic while held")
    }
}

impl Known {
    fn forget(&mut self, key: &str) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= key.len() + entry.value.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_holds_more_than_it_may_and_gives_what_was_kept_last() {
        let view = View::default();
        for n in 0..1000u32 {
            let (key, entry) =
                (format!("refs/{}", n % 400), Entry { value: vec![n as u8; 60_000], revision: 1 });
            view.keep(&key, &entry);
            assert_eq!(view.get(&key), Some(entry));
            let known = view.known();
            assert!(known.bytes <= MOST_BYTES);
            let held = known.entries.iter().map(|(key, entry)| key.len() + entry.value.len());
            assert_eq!(known.bytes, held.sum::<usize>());
        }
        view.forget("refs/1");
        assert_eq!(view.get("refs/1"), None);
    }
}
