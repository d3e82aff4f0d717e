//! All operations of all nodes, with their times and answers, and whether one order explains them. Revisions name that order:
//! so a check needs no search.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use crate::metastore::{Expected, Listing};

/// A request.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Get {
        key: String,
    },
    /// Each puts another value.
    Put {
        key: String,
        value: u64,
        expected: Expected,
    },
    Delete {
        key: String,
        at: u64,
    },
    List,
}

/// An answer.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// None yet, or one that does not say whether it was done.
    Unknown,
    Found(Option<(u64, u64)>),
    Listed(BTreeMap<String, (u64, u64)>, u64),
    Done(u64),
    Conflict(Option<u64>),
}

#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) node: usize,
    pub(super) call: Call,
    pub(super) begun: Instant,
    pub(super) ended: Option<Instant>,
    pub(super) answer: Answer,
}

/// The change that a revision names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    key: String,
    /// `None` for a deletion.
    value: Option<u64>,
}

/// A listing as values and revisions.
pub(super) fn listed(listing: &Listing) -> BTreeMap<String, (u64, u64)> {
    let entries = listing.entries.iter();
    entries.map(|(key, entry)| (key.clone(), (number(&entry.value), entry.revision))).collect()
}

pub(super) fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).expect("text").parse().expect("a number")
}

/// Checks that one order of all changes, that of their revisions, explains every answer, and agrees with the times.
pub(super) fn check(operations: &[Operation]) {
    let history = History::of(operations);
    for operation in operations {
        history.check_answer(operation);
    }
    history.check_times();
}

struct History<'a> {
    operations: &'a [Operation],
    changes: BTreeMap<u64, Change>,
    /// Keys of deletions of which it is not known whether they were done.
    perhaps_deleted: BTreeSet<&'a str>,
}

impl<'a> History<'a> {
    fn of(operations: &'a [Operation]) -> History<'a> {
        let mut changes: BTreeMap<u64, Change> = BTreeMap::new();
        let mut open: BTreeMap<u64, &str> = BTreeMap::new();
        let mut perhaps_deleted = BTreeSet::new();
        for operation in operations {
            let change = match (&operation.call, &operation.answer) {
                (Call::Put { key, value, .. }, Answer::Done(revision)) => {
                    Some((*revision, Change { key: key.clone(), value: Some(*value) }))
                }
                (Call::Delete { key, .. }, Answer::Done(revision)) => {
                    Some((*revision, Change { key: key.clone(), value: None }))
                }
                (Call::Put { key, value, .. }, Answer::Unknown) => {
                    open.insert(*value, key);
                    None
                }
                (Call::Delete { key, .. }, Answer::Unknown) => {
                    perhaps_deleted.insert(&key[..]);
                    None
                }
                _ => None,
            };
            if let Some((revision, change)) = change {
                let before = changes.insert(revision, change.clone());
                assert_eq!(before, None, "revision {revision} is given out twice, now for {change:?}");
            }
        }
        // Of a change without an answer, what others read tells whether it was done, and when.
        let read = operations.iter().flat_map(|operation| match (&operation.call, &operation.answer) {
            (Call::Get { key }, Answer::Found(Some(found))) => vec![(key.clone(), *found)],
            (_, Answer::Listed(entries, _)) => entries.clone().into_iter().collect(),
            _ => vec![],
        });
        for (key, (value, revision)) in read {
            let change = Change { key: key.clone(), value: Some(value) };
            if let Some(known) = changes.get(&revision) {
                assert_eq!(*known, change, "revision {revision} is two changes");
                continue;
            }
            let asked = open.remove(&value);
            assert_eq!(
                asked,
                Some(&key[..]),
                "{value} at {key} was refused, or is read at a second revision"
            );
            changes.insert(revision, change);
        }
        History { operations, changes, perhaps_deleted }
    }

    /// The newest known change of the key up to a revision.
    fn newest(&self, key: &str, up_to: u64) -> Option<(u64, Option<u64>)> {
        let mut changes = self.changes.range(..=up_to).rev();
        let (revision, change) = changes.find(|(_, change)| change.key == key)?;
        Some((*revision, change.value))
    }

    fn may_be_absent(&self, key: &str, at: u64) -> bool {
        self.perhaps_deleted.contains(key) || self.newest(key, at).is_none_or(|(_, value)| value.is_none())
    }

    fn check_answer(&self, operation: &Operation) {
        match (&operation.call, &operation.answer) {
            (Call::List, Answer::Listed(entries, at)) => {
                let keys: BTreeSet<&String> = self.changes.values().map(|change| &change.key).collect();
                for key in keys {
                    match entries.get(key) {
                        Some((_, revision)) => {
                            let newest = self.newest(key, *at).map(|(revision, _)| revision);
                            assert_eq!(
                                newest,
                                Some(*revision),
                                "{key} is not of revision {at}: {operation:?}"
                            );
                        }
                        None => assert!(self.may_be_absent(key, *at), "{key} is missing: {operation:?}"),
                    }
                }
            }
            (Call::Put { key, expected: Expected::At(base), .. }, Answer::Done(revision))
            | (Call::Delete { key, at: base }, Answer::Done(revision)) => {
                let before = self.newest(key, revision - 1).map(|(revision, _)| revision);
                assert_eq!(
                    before,
                    Some(*base),
                    "a change of {key} in between was overwritten: {operation:?}"
                );
            }
            (Call::Put { key, expected: Expected::Absent, .. }, Answer::Done(revision)) => {
                assert!(self.may_be_absent(key, revision - 1), "{key} was there: {operation:?}");
            }
            (Call::Put { key, expected, .. }, Answer::Conflict(actual)) => {
                assert_ne!(*expected, Expected::unchanged(*actual), "{key} was as expected: {operation:?}");
                assert!(
                    actual.is_none_or(|at| self.changes.get(&at).is_none_or(|change| change.key == *key)),
                    "{key} never was at that revision: {operation:?}"
                );
            }
            _ => {}
        }
    }

    /// An operation sees all changes that were answered before it began.
    fn check_times(&self) {
        let ended: Vec<&Operation> = self.operations.iter().filter(|it| it.ended.is_some()).collect();
        let mut by_end = ended.clone();
        by_end.sort_by_key(|operation| operation.ended);
        let mut by_begin = ended;
        by_begin.sort_by_key(|operation| operation.begun);
        let mut earlier = by_end.into_iter().peekable();
        let (mut floor, mut of_keys) = (0u64, BTreeMap::<String, u64>::new());
        for operation in by_begin {
            while let Some(before) = earlier.next_if(|it| it.ended < Some(operation.begun)) {
                match (&before.call, &before.answer) {
                    (Call::Put { key, .. } | Call::Delete { key, .. }, Answer::Done(at))
                    | (Call::Get { key }, Answer::Found(Some((_, at)))) => {
                        floor = floor.max(*at);
                        let of_key = of_keys.entry(key.clone()).or_default();
                        *of_key = (*of_key).max(*at);
                    }
                    (_, Answer::Listed(entries, at)) => {
                        floor = floor.max(*at);
                        for (key, (_, at)) in entries {
                            let of_key = of_keys.entry(key.clone()).or_default();
                            *of_key = (*of_key).max(*at);
                        }
                    }
                    _ => {}
                }
            }
            match (&operation.call, &operation.answer) {
                (Call::Put { .. } | Call::Delete { .. }, Answer::Done(at)) => {
                    assert!(*at > floor, "revision {floor} was known before: {operation:?}");
                }
                (Call::List, Answer::Listed(_, at)) => {
                    assert!(*at >= floor, "revision {floor} was known before: {operation:?}");
                }
                (Call::Get { key }, Answer::Found(found)) => {
                    let known = of_keys.get(key).copied().unwrap_or(0);
                    match found {
                        Some((_, at)) => assert!(*at >= known, "{known} was known before: {operation:?}"),
                        None => assert!(
                            self.perhaps_deleted.contains(&key[..])
                                || known == 0
                                || self
                                    .changes
                                    .range(known..)
                                    .any(|(_, change)| { change.key == *key && change.value.is_none() }),
                            "{key} was there at {known}, and no one deleted it: {operation:?}"
                        ),
                    }
                }
                _ => {}
            }
        }
    }
}
