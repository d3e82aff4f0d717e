//! The promises of [`Metastore`] as checks that every implementation passes: memory, files and bucket here, others
//! in `server`.
//!
//! Each check panics with the broken promise. Each keeps to its own keys, so all may run on one store. Time
//! is tokio's: with a paused clock the suite takes none, otherwise about four seconds.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use tokio::time::{Instant, timeout};

use super::{Entry, Expected, LeaseId, MAX_KEY_BYTES, MAX_VALUE_BYTES, MetaError, Metastore};

/// The wait after which something promised has not happened.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs every check, each on a store that `make` gives.
pub async fn all(make: impl AsyncFn() -> Arc<dyn Metastore>) {
    what_is_put_is_read(&*make().await).await;
    swaps_happen_only_as_expected(&*make().await).await;
    deletes_happen_only_as_expected(&*make().await).await;
    lists_are_ordered_and_keep_to_their_prefix(&*make().await).await;
    revisions_only_grow(&*make().await).await;
    unfit_keys_and_values_are_refused(&*make().await).await;
    of_concurrent_creates_exactly_one_wins(&*make().await).await;
    concurrent_swaps_lose_no_update(&*make().await).await;
    a_change_wakes_those_who_wait_for_it(&*make().await).await;
    a_change_between_list_and_wait_is_not_missed(&*make().await).await;
    a_change_elsewhere_wakes_no_one(&*make().await).await;
    a_dropped_wait_harms_no_one(&*make().await).await;
    a_lapsed_lease_takes_its_keys_along(&*make().await).await;
    a_renewed_lease_lives_on(&*make().await).await;
    a_revoked_lease_takes_its_keys_along(&*make().await).await;
    a_later_put_decides_about_the_lease(&*make().await).await;
    what_hangs_on_no_lease_is_lasting(&*make().await).await;
}

/// Values come back as they were put, under any key that is allowed.
pub async fn what_is_put_is_read(store: &dyn Metastore) {
    assert_eq!(get(store, "read/none").await, None);
    let long = format!("read/{}", "x".repeat(MAX_KEY_BYTES - 5));
    let keys = ["read/a", "read/a/b", "read/A", "read/ü %2F..", "read/../x", "read/a.tmp", &long];
    for (n, key) in keys.iter().enumerate() {
        let value = vec![n as u8, 0, b'\n', 0xff];
        let revision = put(store, key, &value).await;
        assert_eq!(get(store, key).await, Some(Entry { value, revision }), "{key}");
    }
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(get(store, key).await.expect("still there").value[0], n as u8, "{key} was overwritten");
    }
    put(store, "read/empty", b"").await;
    assert_eq!(get(store, "read/empty").await.expect("an empty value is a value").value, b"");
    put(store, "read/full", &vec![7; MAX_VALUE_BYTES]).await;
    assert_eq!(get(store, "read/full").await.expect("there").value.len(), MAX_VALUE_BYTES);
}

/// Lasting are the entries that were last put without a lease, at one revision.
pub async fn what_hangs_on_no_lease_is_lasting(store: &dyn Metastore) {
    let lease = store.grant(TIMEOUT).await.expect("grants");
    for (key, lease) in [("last/a", None), ("last/b", Some(lease)), ("last/c", Some(lease)), ("last/d", None)]
    {
        store.put(key, b"1".to_vec(), Expected::Absent, lease).await.expect("puts");
    }
    let kept = put(store, "last/c", b"2").await;
    store.put("last/d", b"2".to_vec(), Expected::Any, Some(lease)).await.expect("puts");
    let listing = store.lasting().await.expect("lists");
    let found = listing.entries.into_iter().filter(|(key, _)| key.starts_with("last/"));
    let found: Vec<(String, Vec<u8>)> = found.map(|(key, entry)| (key, entry.value)).collect();
    assert_eq!(found, [("last/a".to_owned(), b"1".to_vec()), ("last/c".to_owned(), b"2".to_vec())]);
    assert!(listing.revision > kept, "it was read after the last change");
}

/// Compare-and-swap: absent, at a revision, any; a refusal reports the actual revision and changes nothing.
pub async fn swaps_happen_only_as_expected(store: &dyn Metastore) {
    let key = "swap/k";
    let conflict = |actual| MetaError::Conflict { key: key.to_owned(), actual };
    let swap = |value: &'static [u8], expected| store.put(key, value.to_vec(), expected, None);

    assert_eq!(swap(b"0", Expected::At(1)).await, Err(conflict(None)), "there is nothing to swap yet");
    let first = swap(b"1", Expected::Absent).await.expect("the key is absent");
    assert_eq!(swap(b"2", Expected::Absent).await, Err(conflict(Some(first))));
    assert_eq!(swap(b"2", Expected::At(first + 1)).await, Err(conflict(Some(first))));
    assert_eq!(get(store, key).await, Some(Entry { value: b"1".to_vec(), revision: first }));
    let second = swap(b"2", Expected::At(first)).await.expect("unchanged since");
    assert_eq!(swap(b"3", Expected::At(first)).await, Err(conflict(Some(second))), "one base, one successor");
    let third = swap(b"3", Expected::Any).await.expect("anything is expected");
    assert_eq!(get(store, key).await, Some(Entry { value: b"3".to_vec(), revision: third }));
}

/// Deletes compare like puts; deleting a missing key is harmless.
pub async fn deletes_happen_only_as_expected(store: &dyn Metastore) {
    let key = "delete/k";
    let conflict = |actual| MetaError::Conflict { key: key.to_owned(), actual };
    let revision = put(store, key, b"1").await;
    assert_eq!(store.delete(key, Expected::Absent).await, Err(conflict(Some(revision))));
    assert_eq!(store.delete(key, Expected::At(revision + 1)).await, Err(conflict(Some(revision))));
    let deleted = store.delete(key, Expected::At(revision)).await.expect("as expected");
    assert!(deleted > revision, "a deletion is a change");
    assert_eq!(get(store, key).await, None);
    assert_eq!(store.delete(key, Expected::At(revision)).await, Err(conflict(None)));
    assert_eq!(store.delete(key, Expected::Any).await, Ok(deleted), "nothing changed");
    store.put(key, b"2".to_vec(), Expected::Absent, None).await.expect("absent again");
}

/// A listing has every key under the prefix and no other, ordered bytewise.
pub async fn lists_are_ordered_and_keep_to_their_prefix(store: &dyn Metastore) {
    assert_eq!(list(store, "list/in/").await, Vec::<String>::new());
    for key in
        ["list/in/b", "list/in/a", "list/in/a/c", "list/in/Z", "list/in/ä", "list/in", "list/int", "list/io"]
    {
        put(store, key, key.as_bytes()).await;
    }
    store.delete("list/in/b", Expected::Any).await.expect("deletes");
    assert_eq!(list(store, "list/in/").await, ["list/in/Z", "list/in/a", "list/in/a/c", "list/in/ä"]);
    assert_eq!(list(store, "list/in/a").await, ["list/in/a", "list/in/a/c"], "a prefix may end anywhere");
    let listing = store.list("list/").await.expect("lists");
    for (key, entry) in &listing.entries {
        assert_eq!(entry.value, key.as_bytes());
        assert!(entry.revision <= listing.revision);
        assert_eq!(get(store, key).await.as_ref(), Some(entry), "list and get agree");
    }
    let all = store.list("").await.expect("the empty prefix lists everything");
    assert!(all.entries.len() >= listing.entries.len());
}

/// One counter orders all changes of all keys.
pub async fn revisions_only_grow(store: &dyn Metastore) {
    let mut last = store.list("grow/").await.expect("lists").revision;
    for round in 0..5 {
        for key in ["grow/a", "grow/b"] {
            let revision = put(store, key, &[round]).await;
            assert!(revision > last, "{revision} after {last}");
            last = revision;
        }
        let deleted = store.delete("grow/a", Expected::Any).await.expect("deletes");
        assert!(deleted > last, "{deleted} after {last}");
        last = deleted;
        let listed = store.list("grow/").await.expect("lists").revision;
        assert!(listed >= last, "a listing knows all that happened before it");
    }
}

/// A value that is too large or malformed is refused by name, and leaves nothing behind.
pub async fn unfit_keys_and_values_are_refused(store: &dyn Metastore) {
    let key = "unfit/large";
    let error = store.put(key, vec![0; MAX_VALUE_BYTES + 1], Expected::Any, None).await;
    let limit = MAX_VALUE_BYTES as u64;
    assert_eq!(error, Err(MetaError::TooLarge { key: key.to_owned(), bytes: limit + 1, limit }));
    assert!(error.expect_err("refused").to_string().contains(key));
    assert_eq!(get(store, key).await, None);
    for bad in ["", "unfit/\n", "unfit/\0", &"x".repeat(MAX_KEY_BYTES + 1)] {
        let refused = store.put(bad, vec![], Expected::Any, None).await;
        assert!(matches!(refused, Err(MetaError::BadKey { .. })), "{bad:?} gave {refused:?}");
    }
    let lost = LeaseId(u64::MAX);
    let refused = store.put("unfit/lease", vec![], Expected::Any, Some(lost)).await;
    assert_eq!(refused, Err(MetaError::LeaseLost { lease: lost }));
    assert_eq!(get(store, "unfit/lease").await, None);
}

/// Creation is a race with one winner.
pub async fn of_concurrent_creates_exactly_one_wins(store: &dyn Metastore) {
    for round in 0..4 {
        let key = format!("create/{round}");
        let tries = (0..8u8).map(|who| store.put(&key, vec![who], Expected::Absent, None));
        let outcomes = join_all(tries).await;
        let winners: Vec<usize> = (0..8).filter(|who| outcomes[*who].is_ok()).collect();
        assert_eq!(winners.len(), 1, "winners of {key}: {winners:?}");
        let entry = get(store, &key).await.expect("created");
        assert_eq!(usize::from(entry.value[0]), winners[0], "the winner's value stays");
        for lost in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            assert_eq!(*lost, MetaError::Conflict { key: key.clone(), actual: Some(entry.revision) });
        }
    }
}

/// Read, decide, swap, and again on conflict: no one's update is lost.
pub async fn concurrent_swaps_lose_no_update(store: &dyn Metastore) {
    let increment = async || {
        loop {
            let entry = get(store, "count").await;
            let count = entry.as_ref().map_or(0, |entry| entry.value[0]);
            let expected = Expected::unchanged(entry.map(|entry| entry.revision));
            match store.put("count", vec![count + 1], expected, None).await {
                Ok(_) => return,
                Err(MetaError::Conflict { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
    };
    join_all((0..6).map(|_| increment())).await;
    assert_eq!(get(store, "count").await.expect("counted").value, [6]);
}

/// Puts and deletes wake a wait that began before them.
pub async fn a_change_wakes_those_who_wait_for_it(store: &dyn Metastore) {
    let mut since = store.list("wake/").await.expect("lists").revision;
    for round in 0..4 {
        let mut waits = [store.changed("wake/", since), store.changed("wake/k", since)];
        for wait in &mut waits {
            assert!(poll!(wait).is_pending(), "nothing has changed yet");
        }
        let revision = match round {
            3 => store.delete("wake/k", Expected::Any).await.expect("deletes"),
            _ => put(store, "wake/k", &[round]).await,
        };
        for wait in waits {
            let woken = within(wait).await.expect("waits");
            assert!(woken >= revision, "woken at {woken} by revision {revision}");
        }
        since = store.list("wake/").await.expect("lists").revision;
    }
}

/// A wait for a past change returns at once.
pub async fn a_change_between_list_and_wait_is_not_missed(store: &dyn Metastore) {
    let before = store.list("missed/").await.expect("lists").revision;
    put(store, "missed/k", b"1").await;
    assert!(within(store.changed("missed/", before)).await.expect("waits") > before);
    let between = store.list("missed/").await.expect("lists").revision;
    store.delete("missed/k", Expected::Any).await.expect("deletes");
    assert!(within(store.changed("missed/", between)).await.expect("waits") > between, "deletes count");
    assert!(within(store.changed("missed/", before)).await.expect("waits") > before);
}

/// Waits are for a prefix.
pub async fn a_change_elsewhere_wakes_no_one(store: &dyn Metastore) {
    put(store, "here/k", b"1").await;
    let since = store.list("here/").await.expect("lists").revision;
    let mut here = store.changed("here/", since);
    assert!(poll!(&mut here).is_pending());
    let there = put(store, "there/k", b"1").await;
    store.delete("there/k", Expected::Any).await.expect("deletes");
    // Once a wait for "there/" has been served, one for "here/" that is still pending was not woken by it.
    within(store.changed("there/", there)).await.expect("waits");
    assert!(poll!(&mut here).is_pending(), "a change elsewhere is none here");
    put(store, "here/k", b"2").await;
    within(here).await.expect("waits");
}

/// Futures may be dropped halfway.
pub async fn a_dropped_wait_harms_no_one(store: &dyn Metastore) {
    let since = store.list("drop/").await.expect("lists").revision;
    let mut kept = store.changed("drop/", since);
    assert!(poll!(&mut kept).is_pending());
    for _ in 0..10 {
        let mut dropped = store.changed("drop/", since);
        assert!(poll!(&mut dropped).is_pending());
    }
    put(store, "drop/k", b"1").await;
    within(kept).await.expect("waits");
}

/// When no one renews, the keys vanish, with revisions, and those who wait hear of it.
pub async fn a_lapsed_lease_takes_its_keys_along(store: &dyn Metastore) {
    put(store, "lapse/stays", b"").await;
    let ttl = Duration::from_millis(400);
    let lease = store.grant(ttl).await.expect("grants");
    for key in ["lapse/a", "lapse/b"] {
        store.put(key, vec![1], Expected::Absent, Some(lease)).await.expect("the lease is fresh");
    }
    await_listing(store, "lapse/", &["lapse/stays"]).await;
    assert_eq!(store.renew(lease).await, Err(MetaError::LeaseLost { lease }));
    let late = store.put("lapse/a", vec![2], Expected::Any, Some(lease)).await;
    assert_eq!(late, Err(MetaError::LeaseLost { lease }));
    store.put("lapse/a", vec![3], Expected::Absent, None).await.expect("the key is absent");
    let other = store.grant(ttl).await.expect("grants");
    assert_ne!(other, lease, "leases are not named twice");
}

/// A renewal gives the whole time to live again.
pub async fn a_renewed_lease_lives_on(store: &dyn Metastore) {
    let ttl = Duration::from_secs(2);
    let lease = store.grant(ttl).await.expect("grants");
    let revision = store.put("renew/k", vec![1], Expected::Absent, Some(lease)).await.expect("fresh");
    assert!(timeout(ttl / 4, store.changed("renew/", revision)).await.is_err(), "nothing changes so early");
    let renewed = Instant::now();
    store.renew(lease).await.expect("the lease lives");
    within(store.changed("renew/", revision)).await.expect("waits");
    let lived = renewed.elapsed();
    assert!(lived >= ttl - Duration::from_millis(10), "lapsed {lived:?} after a renewal for {ttl:?}");
    assert_eq!(get(store, "renew/k").await, None);
}

/// A revocation is a lapse now.
pub async fn a_revoked_lease_takes_its_keys_along(store: &dyn Metastore) {
    let lease = store.grant(TIMEOUT * 100).await.expect("grants");
    store.put("revoke/k", vec![1], Expected::Absent, Some(lease)).await.expect("the lease lives");
    let since = store.list("revoke/").await.expect("lists").revision;
    let wait = store.changed("revoke/", since);
    store.revoke(lease).await.expect("revokes");
    assert!(within(wait).await.expect("waits") > since);
    assert_eq!(get(store, "revoke/k").await, None);
    assert_eq!(store.renew(lease).await, Err(MetaError::LeaseLost { lease }));
    store.revoke(lease).await.expect("once more is harmless");
}

/// The last put says whether a key is leased, and by which lease.
pub async fn a_later_put_decides_about_the_lease(store: &dyn Metastore) {
    let first = store.grant(TIMEOUT * 100).await.expect("grants");
    let second = store.grant(TIMEOUT * 100).await.expect("grants");
    for key in ["later/freed", "later/moved", "later/gone", "later/again"] {
        store.put(key, vec![1], Expected::Absent, Some(first)).await.expect("the lease lives");
    }
    put(store, "later/freed", b"2").await;
    store.put("later/moved", vec![2], Expected::Any, Some(second)).await.expect("the lease lives");
    store.put("later/again", vec![2], Expected::Any, Some(first)).await.expect("the lease lives");
    store.delete("later/gone", Expected::Any).await.expect("deletes");
    put(store, "later/gone", b"3").await;
    store.revoke(first).await.expect("revokes");
    assert_eq!(list(store, "later/").await, ["later/freed", "later/gone", "later/moved"]);
    store.revoke(second).await.expect("revokes");
    assert_eq!(list(store, "later/").await, ["later/freed", "later/gone"]);
}

async fn get(store: &dyn Metastore, key: &str) -> Option<Entry> {
    store.get(key).await.expect("the store answers")
}

async fn put(store: &dyn Metastore, key: &str, value: &[u8]) -> u64 {
    store.put(key, value.to_vec(), Expected::Any, None).await.expect("any state is expected")
}

async fn list(store: &dyn Metastore, prefix: &str) -> Vec<String> {
    store.list(prefix).await.expect("the store answers").entries.into_iter().map(|(key, _)| key).collect()
}

/// Follows `prefix` until it holds exactly `keys`.
async fn await_listing(store: &dyn Metastore, prefix: &str, keys: &[&str]) {
    within(async {
        loop {
            let listing = store.list(prefix).await.expect("the store answers");
            if listing.entries.iter().map(|(key, _)| key.as_str()).eq(keys.iter().copied()) {
                return;
            }
            store.changed(prefix, listing.revision).await.expect("the store answers");
        }
    })
    .await;
}

async fn within<T>(promised: impl Future<Output = T>) -> T {
    timeout(TIMEOUT, promised).await.expect("the promised change did not happen in time")
}
