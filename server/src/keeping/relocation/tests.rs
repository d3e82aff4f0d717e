//! A move loses no change that was acknowledged, wherever it is interrupted, and whichever process repeats it. It leaves one place
//! open for changes at most.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use shardd_store::metastore::{BucketMetastore, LeaseId};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::*;

/// A place over a store of its own.
fn place() -> Arc<BucketMetastore> {
    opened(&Arc::new(Origin::open("memory://").expect("opens")))
}

fn opened(origin: &Arc<Origin>) -> Arc<BucketMetastore> {
    Arc::new(BucketMetastore::of_cluster(Arc::clone(origin), cluster()))
}

fn cluster() -> Digest {
    Digest::of(b"authority")
}

fn names(at: &str, to: &str) -> Names {
    Names { at: at.to_owned(), to: to.to_owned(), cluster: cluster() }
}

async fn put(place: &dyn Metastore, key: &str) -> Result<u64, MetaError> {
    place.put(key, key.as_bytes().to_vec(), Expected::Any, None).await
}

/// What a node does that sees where the metadata has gone: it lets changes in there.
async fn arrive(place: &dyn Metastore) {
    let note = place.get(RELOCATION).await.expect("reads").expect("there is a note");
    let is_arriving = matches!(Relocation::of(&note), Ok(Relocation { step: Step::Arriving { .. }, .. }));
    assert!(is_arriving, "{note:?}");
    place.delete(RELOCATION, Expected::At(note.revision)).await.expect("the note goes");
}

async fn keys(place: &dyn Metastore) -> BTreeSet<String> {
    let lasting = place.lasting().await.expect("lists");
    values(lasting).into_keys().collect()
}

/// A place of which one operation, and all that follow, find no answer. The first may have had its effect.
struct Cut {
    inner: Arc<BucketMetastore>,
    remaining: AtomicUsize,
    has_effect: bool,
    /// Its puts wait for this.
    held: Option<Arc<Notify>>,
    /// Its lasting entries, as a process read them long ago.
    stale: Option<Listing>,
}

impl Cut {
    async fn ask<T>(&self, request: impl Future<Output = Result<T, MetaError>>) -> Result<T, MetaError> {
        let before = self.remaining.load(Ordering::Relaxed);
        self.remaining.store(before.saturating_sub(1), Ordering::Relaxed);
        match before {
            0 | 1 => {
                if before == 1 && self.has_effect {
                    let _ = request.await;
                }
                Err(MetaError::Unavailable { store: "cut".to_owned(), reason: "no answer".to_owned() })
            }
            _ => request.await,
        }
    }
}

#[async_trait]
impl Metastore for Cut {
    async fn get(&self, key: &str) -> Result<Option<Entry>, MetaError> {
        self.ask(self.inner.get(key)).await
    }

    async fn put(
        &self,
        key: &str,
        value: Vec<u8>,
        expected: Expected,
        lease: Option<LeaseId>,
    ) -> Result<u64, MetaError> {
        if let Some(held) = &self.held {
            held.notified().await;
        }
        self.ask(self.inner.put(key, value, expected, lease)).await
    }

    async fn delete(&self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        self.ask(self.inner.delete(key, expected)).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        self.ask(self.inner.list(prefix)).await
    }

    async fn lasting(&self) -> Result<Listing, MetaError> {
        match &self.stale {
            Some(stale) => Ok(stale.clone()),
            None => self.ask(self.inner.lasting()).await,
        }
    }

    async fn changed(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        self.ask(self.inner.changed(prefix, since)).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        self.ask(self.inner.grant(ttl)).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.ask(self.inner.renew(lease)).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.ask(self.inner.revoke(lease)).await
    }
}

#[async_trait]
impl Target for Cut {
    async fn take_over(&self, arriving: &Arriving, note: u64) -> Result<u64, MetaError> {
        self.ask(Target::take_over(self.inner.as_ref(), arriving, note)).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_move_takes_all_that_was_acknowledged_and_ends_changes_where_it_was() {
    for writers in [1, 4] {
        let (origin, target) = (Arc::new(Origin::open("memory://").expect("opens")), place());
        let source = opened(&origin);
        let lease = source.grant(Duration::from_secs(60)).await.expect("grants");
        source.put("nodes/n1", vec![1], Expected::Absent, Some(lease)).await.expect("puts");
        let mut tasks = JoinSet::new();
        for writer in 0..writers {
            let node = opened(&origin);
            tasks.spawn(async move {
                let mut acknowledged = BTreeSet::new();
                loop {
                    let key = format!("refs/{writer}-{}", acknowledged.len());
                    match put(node.as_ref(), &key).await {
                        Ok(_) => {
                            acknowledged.insert(key);
                            sleep(Duration::from_millis(20)).await;
                        }
                        Err(error) => return (acknowledged, error.to_string()),
                    }
                }
            });
        }
        while keys(source.as_ref()).await.len() < 5 {
            sleep(Duration::from_millis(20)).await;
        }
        let revision = source.list("").await.expect("lists").revision;
        let entries = relocate(source.as_ref(), target.as_ref(), &names("a", "b")).await.expect("moves");
        let refused = put(target.as_ref(), "refs/early").await.expect_err("it is not open yet").to_string();
        assert!(refused.contains("moving here from a"), "{refused}");
        arrive(target.as_ref()).await;
        let mut all = BTreeSet::new();
        while let Some(ended) = tasks.join_next().await {
            let (acknowledged, refused) = ended.expect("no panic");
            assert!(refused.contains("moving to b") || refused.contains("has moved to b"), "{refused}");
            all.extend(acknowledged);
        }
        assert_eq!(keys(target.as_ref()).await, all);
        assert_eq!(entries, all.len(), "without what hangs on a lease, and what belongs to the place");
        let there = target.list("refs/").await.expect("lists").entries;
        assert!(there.iter().all(|(_, entry)| entry.revision > revision), "no revision is used again");
        assert!(source.list("").await.is_err(), "what was left is not read");
    }
}

#[tokio::test]
async fn a_move_that_is_interrupted_anywhere_is_repeated_or_given_up() {
    let mut interrupted = 0;
    for (cuts_source, has_effect) in [(true, true), (true, false), (false, true), (false, false)] {
        for remaining in 1.. {
            let (source, target) = (place(), place());
            for key in ["refs/a", "refs/b"] {
                put(source.as_ref(), key).await.expect("puts");
            }
            let cut = |of: &Arc<BucketMetastore>| Cut {
                inner: Arc::clone(of),
                remaining: AtomicUsize::new(remaining),
                has_effect,
                held: None,
                stale: None,
            };
            let (at, to) = (cut(&source), cut(&target));
            let moving = match cuts_source {
                true => relocate(&at, target.as_ref(), &names("a", "b")).await,
                false => relocate(source.as_ref(), &to, &names("a", "b")).await,
            };
            let note = source.get(RELOCATION).await.expect("reads");
            let step = note.map(|note| Relocation::of(&note).expect("a note").step);
            let expected = match step {
                // The answer to the last change was lost.
                Some(Step::Left { .. }) => BTreeSet::from(["refs/a", "refs/b"]),
                step => {
                    if moving.is_ok() {
                        panic!("it has moved, and the note says {step:?}");
                    }
                    interrupted += 1;
                    let refused = put(target.as_ref(), "refs/early").await;
                    // Where nothing is noted yet, the place is not this cluster's.
                    assert!(refused.is_err() || keys(target.as_ref()).await.len() == 1, "{step:?}");
                    if refused.is_ok() {
                        target.delete("refs/early", Expected::Any).await.expect("deletes");
                    }
                    if let Some(Step::Leaving { .. }) = step {
                        let refused = put(source.as_ref(), "refs/c").await.expect_err("it is being left");
                        assert!(refused.to_string().contains("moving to b"), "{refused}");
                        let etcd = "etcd://a/p".parse().expect("a URL");
                        assert_eq!(stay(&etcd, source.as_ref()).await.expect("stays"), Relocated::Stayed);
                    }
                    source.delete("refs/a", Expected::Any).await.expect("it is in use again");
                    put(source.as_ref(), "refs/c").await.expect("it is in use again");
                    relocate(source.as_ref(), target.as_ref(), &names("a", "b")).await.expect("moves");
                    BTreeSet::from(["refs/b", "refs/c"])
                }
            };
            arrive(target.as_ref()).await;
            assert_eq!(keys(target.as_ref()).await, expected.into_iter().map(str::to_owned).collect());
            if moving.is_ok() {
                break;
            }
        }
    }
    assert!(interrupted > 20, "{interrupted}");
}

#[tokio::test]
async fn two_who_move_at_once_leave_one_place_open_that_has_everything() {
    for to in [["b", "b"], ["b", "c"]] {
        let (source, origins) =
            (place(), ["b", "c"].map(|_| Arc::new(Origin::open("memory://").expect("opens"))));
        put(source.as_ref(), "refs/a").await.expect("puts");
        let target = |name: &str| opened(&origins[usize::from(name == "c")]);
        let targets = to.map(target);
        let names = to.map(|to| names("a", to));
        let (one, other) = tokio::join!(
            relocate(source.as_ref(), targets[0].as_ref(), &names[0]),
            relocate(source.as_ref(), targets[1].as_ref(), &names[1]),
        );
        let moved: Vec<_> = [&one, &other].into_iter().map(Result::is_ok).collect();
        let winner = match moved[..] {
            [true, false] => 0,
            [false, true] => 1,
            _ => panic!("one of them moves it: {one:?} {other:?}"),
        };
        let note = source.get(RELOCATION).await.expect("reads").expect("there is a note");
        let left = Relocation { cluster: cluster(), step: Step::Left { to: to[winner].to_owned() } };
        assert_eq!(Relocation::of(&note), Ok(left));
        arrive(targets[winner].as_ref()).await;
        assert_eq!(keys(targets[winner].as_ref()).await, BTreeSet::from(["refs/a".to_owned()]));
        if to[0] != to[1] {
            let other = &targets[1 - winner];
            assert!(put(other.as_ref(), "refs/b").await.is_err() || keys(other.as_ref()).await.len() == 1);
        }
    }
}

#[tokio::test]
async fn other_metadata_is_never_replaced_and_what_was_left_is() {
    let (source, target) = (place(), place());
    put(source.as_ref(), "refs/a").await.expect("puts");
    put(target.as_ref(), "refs/other").await.expect("puts");
    let refused =
        relocate(source.as_ref(), target.as_ref(), &names("a", "b")).await.expect_err("it is not empty");
    assert_eq!(
        refused.to_string(),
        "b has other metadata (key refs/other): name an empty place, or another prefix"
    );
    put(source.as_ref(), "refs/b").await.expect("nothing has begun");

    target.delete("refs/other", Expected::Any).await.expect("deletes");
    relocate(source.as_ref(), target.as_ref(), &names("a", "b")).await.expect("moves");
    arrive(target.as_ref()).await;
    target.delete("refs/a", Expected::Any).await.expect("deletes");
    // Back to the place that was left, with its old entries.
    relocate(target.as_ref(), source.as_ref(), &names("b", "a")).await.expect("moves back");
    arrive(source.as_ref()).await;
    assert_eq!(keys(source.as_ref()).await, BTreeSet::from(["refs/b".to_owned()]));
    let there =
        relocate(target.as_ref(), place().as_ref(), &names("b", "c")).await.expect_err("it is not there");
    assert!(matches!(there, RelocationError::Moving { .. }), "{there}");
}

#[tokio::test]
async fn a_process_that_comes_late_puts_no_old_entry_over_a_newer_one() {
    let (source, target) = (place(), place());
    put(source.as_ref(), "refs/a").await.expect("puts");
    let held = Arc::new(Notify::new());
    let of = |inner: &Arc<BucketMetastore>| Cut {
        inner: Arc::clone(inner),
        remaining: AtomicUsize::new(usize::MAX),
        has_effect: true,
        held: None,
        stale: None,
    };
    let late = Cut { stale: Some(source.lasting().await.expect("lists")), ..of(&source) };
    let slow = Cut { held: Some(Arc::clone(&held)), ..of(&target) };
    let names = names("a", "b");
    let second = relocate(&late, &slow, &names);
    let first = async {
        relocate(source.as_ref(), target.as_ref(), &names).await.expect("moves");
        arrive(target.as_ref()).await;
        put(target.as_ref(), "refs/new").await.expect("it is open");
        held.notify_one();
    };
    let (second, ()) = tokio::join!(second, first);
    assert!(matches!(second, Err(RelocationError::Moving { .. })), "{second:?}");
    arrive(target.as_ref()).await;
    let expected = ["refs/a", "refs/new"].map(str::to_owned);
    assert_eq!(keys(target.as_ref()).await, BTreeSet::from(expected));
}

#[tokio::test]
async fn announcements_of_commits_and_of_gc_stand_in_the_new_place() {
    let (source, target) = (place(), place());
    let lease = source.grant(Duration::from_secs(60)).await.expect("grants");
    let announced = ["gc/sweep", "intents/1", "nodes/n1"];
    for key in announced {
        source.put(key, vec![1], Expected::Absent, Some(lease)).await.expect("puts");
    }
    let names = names("a", "b");
    // A node at work until the place is left keeps its lease, as the move may be given up.
    let leaving = names.note(Step::Leaving { to: "b".to_owned() });
    source.put(RELOCATION, leaving, Expected::Absent, None).await.expect("puts");
    source.renew(lease).await.expect("it lives on");
    relocate(source.as_ref(), target.as_ref(), &names).await.expect("moves");
    arrive(target.as_ref()).await;
    let there = target.list("").await.expect("lists").entries;
    let there: Vec<_> = there.into_iter().map(|(key, _)| key).filter(|key| !is_of_place(key)).collect();
    assert_eq!(there, ["gc/sweep", "intents/1"], "nodes put their keys again");
    assert!(keys(target.as_ref()).await.is_empty(), "they lapse");
    let lost = source.renew(lease).await.expect_err("the place was left").to_string();
    assert!(lost.contains("has moved to b"), "{lost}");
}
