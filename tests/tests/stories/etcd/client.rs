//! The client alone, against etcds of one member and of three.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shardd::metastore::{MetastoreUrl, open_etcd};
use shardd_store::metastore::{Expected, MetaError, Metastore, conformance};
use shardd_tests::{Etcd, wait_until};
use tokio::time::timeout;

/// The limit of waits.
const TIMEOUT: Duration = Duration::from_secs(180);

fn open(url: &str) -> Arc<dyn Metastore> {
    match url.parse() {
        Ok(MetastoreUrl::Etcd(url)) => open_etcd(&url).expect("no files are named"),
        other => panic!("{url}: {other:?}"),
    }
}

#[tokio::test]
async fn one_member_keeps_the_promises_of_a_metastore() {
    let Some(etcd) = Etcd::start(1) else { return };
    conformance::all(async || open(&etcd.url("one"))).await;
}

#[tokio::test]
async fn three_members_keep_the_promises_of_a_metastore() {
    let Some(etcd) = Etcd::start(3) else { return };
    conformance::all(async || open(&etcd.url("three"))).await;
}

#[tokio::test]
async fn clusters_with_other_prefixes_do_not_see_each_other() {
    let Some(etcd) = Etcd::start(1) else { return };
    let (ours, theirs, longer) = (open(&etcd.url("a")), open(&etcd.url("b")), open(&etcd.url("a/b")));
    let since = ours.list("").await.expect("lists").revision;
    let mut wait = ours.changed("", since);
    assert!(futures::poll!(&mut wait).is_pending());
    theirs.put("k", vec![], Expected::Absent, None).await.expect("absent");
    longer.put("k", vec![], Expected::Absent, None).await.expect("absent");
    assert_eq!(theirs.list("").await.expect("lists").entries.len(), 1);
    assert_eq!(ours.get("k").await, Ok(None));
}

#[tokio::test]
async fn a_listing_of_many_pages_is_of_one_revision() {
    let Some(etcd) = Etcd::start(1) else { return };
    let store = open(&etcd.url("pages"));
    let keys: Vec<String> = (0..1203).map(|n| format!("k/{n:04}")).collect();
    for some in keys.chunks(100) {
        let puts = some.iter().map(|key| store.put(key, key.clone().into(), Expected::Absent, None));
        futures::future::try_join_all(puts).await.expect("absent");
    }
    let listing = store.list("k/").await.expect("lists");
    assert!(listing.entries.iter().map(|(key, _)| key).eq(&keys));
    assert!(listing.entries.iter().all(|(key, entry)| key.as_bytes() == entry.value));
    assert_eq!(listing.entries.iter().map(|(_, entry)| entry.revision).max(), Some(listing.revision));
}

#[tokio::test]
async fn a_wait_for_what_was_compacted_away_wakes() {
    let Some(etcd) = Etcd::start(1) else { return };
    let store = open(&etcd.url("old"));
    let since = store.list("here/").await.expect("lists").revision;
    for _ in 0..5 {
        store.put("there/k", vec![], Expected::Any, None).await.expect("puts");
    }
    etcd.compact();
    let woken = timeout(TIMEOUT, store.changed("here/", since)).await.expect("wakes").expect("answers");
    assert!(woken > since);
    let now = store.list("here/").await.expect("lists").revision;
    let mut wait = store.changed("here/", now);
    assert!(futures::poll!(&mut wait).is_pending());
    store.put("here/k", vec![], Expected::Any, None).await.expect("puts");
    assert!(timeout(TIMEOUT, wait).await.expect("wakes").expect("answers") > now);
}

#[tokio::test]
async fn an_etcd_that_is_away_is_said_to_be_so_and_found_again() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let store = open(&etcd.url("away"));
    let revision = store.put("k", b"1".to_vec(), Expected::Absent, None).await.expect("absent");
    let lease = store.grant(Duration::from_secs(60)).await.expect("grants");
    let mut wait = store.changed("k", revision);
    assert!(futures::poll!(&mut wait).is_pending());
    etcd.kill(0);
    let began = Instant::now();
    let refusals = [
        wait.await.map(drop),
        store.put("k", b"2".to_vec(), Expected::At(revision), None).await.map(drop),
        store.get("k").await.map(drop),
        store.renew(lease).await,
        store.grant(Duration::from_secs(1)).await.map(drop),
        store.list("").await.map(drop),
    ];
    for refusal in refusals {
        let error = refusal.expect_err("no member is there");
        let text = error.to_string();
        assert!(matches!(error, MetaError::Unavailable { .. }), "{text}");
        assert!(
            text.contains("etcd://127.") && text.contains("refused") && text.lines().count() == 1,
            "{text}"
        );
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    etcd.restart(0);
    store.renew(lease).await.expect("leases outlive the process");
    store.put("k", b"3".to_vec(), Expected::At(revision), None).await.expect("unchanged");
}

#[tokio::test]
async fn tls_and_a_user_are_spoken_and_what_is_wrong_about_them_is_named() {
    let Some(etcd) = Etcd::start_secured() else { return };
    let file = |name: &str| etcd.file(name).display().to_string();
    let tls = format!("ca={}&cert={}&key={}", file("ca.pem"), file("cert.pem"), file("key.pem"));
    let plain = etcd.url("safe");
    let with = |user: &str, password: &str, tls: &str| {
        let url = plain.replace("etcd://", &format!("etcd://{user}@"));
        open(&format!("{url}?{tls}&password-file={password}"))
    };
    let store = with(Etcd::USER, &file("password"), &tls);
    let revision = store.put("k", b"1".to_vec(), Expected::Absent, None).await.expect("let in");
    let lease = store.grant(Duration::from_secs(60)).await.expect("let in");
    store.renew(lease).await.expect("let in");
    assert!(store.changed("k", revision - 1).await.expect("let in") >= revision);

    let other = etcd.file("other-password");
    std::fs::write(&other, "catfish").expect("a file can be written");
    let refusals = [
        (with(Etcd::USER, &other.display().to_string(), &tls), "authentication failed"),
        (open(&format!("{plain}?{tls}")), "etcdserver: "),
        (open(&format!("{plain}?ca={}", file("ca.pem"))), ""),
        (open(&plain), ""),
    ];
    for (store, want) in refusals {
        let error =
            store.put("k", b"2".to_vec(), Expected::Any, None).await.expect_err("not let in").to_string();
        println!("{error}");
        assert!(error.contains("is unavailable") && error.contains(want), "{error}");
        assert!(!error.contains("fish") && error.lines().count() == 1, "{error}");
    }
    let MetastoreUrl::Etcd(url) = format!("{plain}?ca=/nowhere").parse().expect("a URL") else {
        panic!("not sled")
    };
    assert!(open_etcd(&url).err().expect("unreadable").to_string().contains("/nowhere"));
}

/// Writers append their numbers to one value, one compare-and-swap each, while the leader is killed twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_the_leader_loses_no_acknowledged_write_and_makes_none_twice() {
    const WRITERS: u64 = 3;
    const EACH: u64 = 200;
    let Some(mut etcd) = Etcd::start(3) else { return };
    let url = etcd.url("leader");
    let (written, unknown) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));

    let killer = std::thread::spawn({
        let written = Arc::clone(&written);
        move || {
            for part in [1, 2] {
                let due = part * WRITERS * EACH / 3;
                wait_until("writers are on their way", || written.load(Ordering::Relaxed) >= due);
                let leader = etcd.leader();
                etcd.kill(leader);
                let (killed, before) = (Instant::now(), written.load(Ordering::Relaxed));
                wait_until("writers continue", || written.load(Ordering::Relaxed) > before + WRITERS);
                println!(
                    "leader killed after {before} writes; writing continued within {:?}",
                    killed.elapsed()
                );
                etcd.restart(leader);
            }
            etcd
        }
    });
    let write = |writer: u64| {
        let (store, written, unknown) = (open(&url), Arc::clone(&written), Arc::clone(&unknown));
        async move {
            for n in 0..EACH {
                append(&*store, writer * EACH + n, &unknown).await;
                written.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(write(writer))).collect();
    let follower = open(&url);
    let follow = async {
        loop {
            let listing = match follower.list("log").await {
                Ok(listing) => listing,
                Err(MetaError::Unavailable { .. }) => continue,
                Err(other) => panic!("{other}"),
            };
            if listing
                .entries
                .first()
                .is_some_and(|(_, entry)| numbers(&entry.value).len() as u64 == WRITERS * EACH)
            {
                return;
            }
            match follower.changed("log", listing.revision).await {
                Ok(_) | Err(MetaError::Unavailable { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
    };
    timeout(TIMEOUT, follow).await.expect("the follower saw all");
    for writer in writers {
        writer.await.expect("every writer reached its end");
    }
    let _etcd =
        tokio::task::spawn_blocking(|| killer.join()).await.expect("joins").expect("the killer did it");
    let log = follower.get("log").await.expect("answers").expect("written");
    let log = numbers(&log.value);
    for writer in 0..WRITERS {
        let own: Vec<u64> = log.iter().copied().filter(|number| number / EACH == writer).collect();
        assert!(own.iter().copied().eq(writer * EACH..(writer + 1) * EACH), "writer {writer}: {own:?}");
    }
    println!("{} writes, {} without an answer", log.len(), unknown.load(Ordering::Relaxed));
}

/// Appends `number` once, whatever happens: after a write without an answer it looks before it writes again.
async fn append(store: &dyn Metastore, number: u64, unknown: &AtomicU64) {
    loop {
        let entry = match store.get("log").await {
            Ok(entry) => entry,
            Err(MetaError::Unavailable { .. }) => continue,
            Err(other) => panic!("{other}"),
        };
        let mut value = entry.as_ref().map_or_else(Vec::new, |entry| entry.value.clone());
        if numbers(&value).contains(&number) {
            return;
        }
        value.extend_from_slice(&number.to_le_bytes());
        match store.put("log", value, Expected::unchanged(entry.map(|entry| entry.revision)), None).await {
            Ok(_) => return,
            Err(MetaError::Conflict { .. }) => {}
            Err(MetaError::Unavailable { .. }) => drop(unknown.fetch_add(1, Ordering::Relaxed)),
            Err(other) => panic!("{other}"),
        }
    }
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect()
}
