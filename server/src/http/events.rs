//! Changes as they happen: server-sent events of datasets, tags, plans, runs, nodes, placements and health_issues.
//!
//! One task looks at the metastore for all who follow, and begins when the first one does. An event's id is a
//! revision up to which the stream is complete, so a client that returns with it misses nothing, and may
//! receive an event twice. The history for that is bounded, and so is the queue of a slow reader: at either
//! limit the reader gets a notice, and has to list the objects again.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Method};
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::future::select_all;
use futures::{StreamExt, stream};
use serde::Serialize;
use shardd_store::metastore::{MetaError, Metastore};
use tokio::sync::{Notify, OwnedSemaphorePermit, broadcast};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::access::Datasets;
use super::problem::bad_request;
use super::{Answer, FOLLOWERS, State, place};

/// The kinds of events, and their keys in the metastore.
const KINDS: [(&str, &str); 7] = [
    ("dataset", "refs/"),
    ("tag", "tags/"),
    ("plan", "plans/"),
    ("run", "runs/"),
    ("node", "nodes/"),
    ("placement", "placements/"),
    ("health", "health/"),
];
/// Changes that are kept for clients that come back.
const KEPT: usize = 4096;
/// Changes that may wait for a slow reader.
const WAITING: usize = 1024;
/// Changes within this time are looked up together.
const TOGETHER: Duration = Duration::from_millis(50);
/// How long to wait before asking a lost metastore again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often a quiet connection is shown to be alive.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Something has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub(super) struct Change {
    /// The kind of thing: also the name of the event.
    kind: &'static str,
    /// Its name: `DATASET`, `DATASET/TAG`, the id of a plan, a run, a node, the run of a placement, or `NODE/BY`: a node that
    /// is slow, silent or wrong, and the one that says so.
    name: String,
    /// Whether it is gone.
    removed: bool,
    /// The revision of the metadata at which that was so.
    revision: u64,
}

/// Changes that were found together, and the revision up to which all have been sent once these are.
#[derive(Debug, Clone)]
struct Found {
    changes: Arc<[Change]>,
    told: u64,
}

/// Tells all who follow.
pub(super) struct Hub {
    metastore: Arc<dyn Metastore>,
    wanted: Notify,
    sender: broadcast::Sender<Found>,
    kept: Mutex<Kept>,
}

/// The changes sent lately.
#[derive(Debug, Default)]
struct Kept {
    changes: VecDeque<Change>,
    /// Nothing after this revision is missing.
    since: Option<u64>,
    /// All changes up to this revision are sent.
    told: u64,
}

impl Kept {
    fn add(&mut self, found: &Found) {
        self.changes.extend(found.changes.iter().cloned());
        self.told = found.told;
        while self.changes.len() > KEPT {
            let dropped = self.changes.pop_front().expect("more than none");
            self.since = self.since.max(Some(dropped.revision));
        }
    }

    /// The changes after `revision`; `None` if they are not known any more, or not yet.
    fn after(&self, revision: u64) -> Option<Vec<Change>> {
        let known = self.since.is_some_and(|since| since <= revision) && revision <= self.told;
        known.then(|| self.changes.iter().filter(|change| change.revision > revision).cloned().collect())
    }
}

impl Hub {
    pub(super) fn new(metastore: Arc<dyn Metastore>) -> Self {
        let (sender, _) = broadcast::channel(WAITING);
        Self { metastore, wanted: Notify::new(), sender, kept: Mutex::default() }
    }

    /// How many follow now.
    pub(super) fn followers(&self) -> usize {
        self.sender.receiver_count()
    }

    /// Looks at the metastore from the first follower's coming until `stop`.
    pub(super) async fn run(&self, stop: CancellationToken) {
        let follow = async {
            self.wanted.notified().await;
            let mut seen: Option<Seen> = None;
            loop {
                match self.look(&mut seen).await {
                    Ok(()) => {}
                    Err(error) => {
                        warn!(%error, "changes cannot be followed; trying again");
                        tokio::time::sleep(AGAIN_AFTER).await;
                    }
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = follow => {}
        }
    }

    /// Waits for a change since the state `seen`, and sends it. The first look only notes what there is.
    async fn look(&self, seen: &mut Option<Seen>) -> Result<(), MetaError> {
        if let Some(seen) = seen {
            let waits = KINDS.iter().map(|(_, prefix)| self.metastore.changed(prefix, seen.revision));
            select_all(waits).await.0?;
            tokio::time::sleep(TOGETHER).await;
        }
        let mut next = Seen { revision: u64::MAX, entries: BTreeMap::new() };
        let mut latest = 0;
        for (kind, prefix) in KINDS {
            let listing = self.metastore.list(prefix).await?;
            // The lists are not of one instant: all are complete up to the earliest.
            next.revision = next.revision.min(listing.revision);
            latest = latest.max(listing.revision);
            for (key, entry) in listing.entries {
                let name = key.strip_prefix(prefix).unwrap_or(&key).to_owned();
                next.entries.insert((kind, name), entry.revision);
            }
        }
        let mut kept = self.kept.lock().expect("no panic while held");
        match seen {
            None => (kept.since, kept.told) = (Some(next.revision), next.revision),
            Some(seen) => {
                let changes = changes(seen, &next, latest);
                let found = Found { changes: changes.into(), told: next.revision };
                kept.add(&found);
                // There may be no follower just now.
                let _ = self.sender.send(found);
            }
        }
        *seen = Some(next);
        Ok(())
    }

    /// The changes after a revision, if they are still known, and those to come. `None` for the changes: they
    /// are not known.
    fn follow(&self, after: Option<u64>) -> (Option<Vec<Change>>, u64, broadcast::Receiver<Found>) {
        self.wanted.notify_one();
        let kept = self.kept.lock().expect("no panic while held");
        let missed = match after {
            None => Some(Vec::new()),
            Some(after) => kept.after(after),
        };
        (missed, kept.told, self.sender.subscribe())
    }
}

/// The state at one look: revisions by kind and name.
struct Seen {
    revision: u64,
    entries: BTreeMap<(&'static str, String), u64>,
}

/// The differences, in the order of revisions. A removed key has no revision of its own: it gets that of the
/// look.
fn changes(before: &Seen, after: &Seen, latest: u64) -> Vec<Change> {
    let put = after.entries.iter().filter(|(key, revision)| before.entries.get(key) != Some(revision));
    let put = put.map(|((kind, name), revision)| (*kind, name, false, *revision));
    let gone = before.entries.keys().filter(|key| !after.entries.contains_key(key));
    let gone = gone.map(|(kind, name)| (*kind, name, true, latest));
    let mut changes: Vec<Change> = put
        .chain(gone)
        .map(|(kind, name, removed, revision)| Change { kind, name: name.clone(), removed, revision })
        .collect();
    changes.sort_by_key(|change| change.revision);
    changes
}

/// Follow changes of datasets, tags, plans, runs, nodes, placements and the health of nodes
///
/// Each event is named after the kind of thing and says which one. An `id` comes with an event when all
/// changes up to it have been sent; with it as `Last-Event-ID` a later request continues from there. The
/// event `reset` says that what happened since that id is not known any more, `lagged` that this reader was
/// too slow, and ends the stream: list the entries, then follow again.
#[utoipa::path(get, path = "/v1/events", tag = "cluster", operation_id = "events",
    params(("last-event-id" = Option<String>, Header, description = "The last id that was seen", nullable = false,
        pattern = "^[0-9]{1,19}$")),
    responses((status = 200, description = "Server-sent events", body = String, content_type = "text/event-stream")))]
pub(super) async fn events(state: State, seen: Datasets, method: Method, headers: HeaderMap) -> Answer {
    seen.check_all()?;
    let after = match headers.get("last-event-id") {
        None => None,
        Some(id) => {
            let id = id.to_str().ok().and_then(|id| id.trim().parse().ok());
            Some(id.ok_or_else(|| bad_request("last-event-id: not an id that this server gave"))?)
        }
    };
    if method == Method::HEAD {
        return Ok(([(axum::http::header::CONTENT_TYPE, "text/event-stream")], Body::empty()).into_response());
    }
    let follower = place(&state.followers, "streams of events", FOLLOWERS)?;
    let (missed, told, receiver) = state.events.follow(after);
    let first = match missed {
        Some(missed) if missed.is_empty() => Vec::new(),
        Some(missed) => written(&missed, told),
        None => vec![Event::default().event("reset").data("what happened since is not known any more")],
    };
    let live = stream::unfold(
        Some((receiver, follower, state.draining.clone())),
        |following: Option<(broadcast::Receiver<Found>, OwnedSemaphorePermit, CancellationToken)>| async {
            let (mut receiver, follower, draining) = following?;
            let found = tokio::select! {
                () = draining.cancelled() => return None,
                found = receiver.recv() => found,
            };
            match found {
                Ok(found) => {
                    Some((written(&found.changes, found.told), Some((receiver, follower, draining))))
                }
                Err(broadcast::error::RecvError::Closed) => None,
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    let lagged = Event::default().event("lagged").data(
                        "too slow: list the entries, then follow the \
                            changes",
                    );
                    Some((vec![lagged], None))
                }
            }
        },
    );
    let all = stream::once(async { first }).chain(live);
    let events = all.flat_map(|events| stream::iter(events.into_iter().map(Ok::<_, Infallible>)));
    let beat = KeepAlive::new().interval(HEARTBEAT).text("still here");
    Ok(Sse::new(events).keep_alive(beat).into_response())
}

/// Events; the last one has the revision up to which all have been sent.
fn written(changes: &[Change], told: u64) -> Vec<Event> {
    let last = changes.len().saturating_sub(1);
    let event = |(at, change): (usize, &Change)| {
        let event = Event::default()
            .event(change.kind)
            .json_data(change)
            .expect("a change is plain data without line breaks");
        if at == last { event.id(told.to_string()) } else { event }
    };
    changes.iter().enumerate().map(event).collect()
}

#[cfg(test)]
mod tests {
    use shardd_store::metastore::{Expected, MemoryMetastore};

    use super::*;

    async fn put(hub: &Hub, key: &str) {
        hub.metastore.put(key, b"{}".to_vec(), Expected::Any, None).await.expect("written");
    }

    fn names(changes: &[Change]) -> Vec<(&str, &str, bool)> {
        changes.iter().map(|change| (change.kind, change.name.as_str(), change.removed)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_follows_is_told_each_change_and_can_go_on_where_it_stopped() {
        let hub = Hub::new(Arc::new(MemoryMetastore::new()));
        put(&hub, "refs/old").await;
        let mut seen = None;
        hub.look(&mut seen).await.expect("a first look");
        let (missed, _, mut live) = hub.follow(None);
        assert_eq!(missed, Some(vec![]));

        put(&hub, "refs/d").await;
        put(&hub, "tags/d/v1").await;
        put(&hub, "intents/7").await;
        hub.look(&mut seen).await.expect("a look");
        let found = live.recv().await.expect("told");
        assert_eq!(names(&found.changes), [("dataset", "d", false), ("tag", "d/v1", false)]);

        hub.metastore.delete("refs/old", Expected::Any).await.expect("removed");
        hub.look(&mut seen).await.expect("a look");
        assert_eq!(names(&live.recv().await.expect("told").changes), [("dataset", "old", true)]);

        let (missed, _, _) = hub.follow(Some(found.told));
        assert_eq!(names(&missed.expect("known")), [("dataset", "old", true)]);
        assert!(hub.follow(Some(0)).0.is_none(), "before the first look");
        assert!(hub.follow(Some(1000)).0.is_none(), "of another metastore");
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_was_dropped_is_not_claimed_to_be_known() {
        let mut kept = Kept { since: Some(0), ..Kept::default() };
        let change =
            |revision: u64| Change { kind: "run", name: revision.to_string(), removed: false, revision };
        for revision in 1..=KEPT as u64 + 10 {
            kept.add(&Found { changes: [change(revision)].into(), told: revision });
        }
        assert_eq!(kept.changes.len(), KEPT);
        assert_eq!(kept.after(9), None);
        assert_eq!(kept.after(10).map(|changes| changes.len()), Some(KEPT));
    }
}
