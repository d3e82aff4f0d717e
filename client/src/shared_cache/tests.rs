//! Laws and stories of a cache that several share. Each opening stands for a process: locks of one opening hold against the
//! others, as those of processes do.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

type Error = SharedCacheError;

fn shard(number: u8, len: usize) -> (ShardId, Bytes) {
    let bytes = Bytes::from(vec![number; len]);
    (ShardId::of(&bytes), bytes)
}

fn open(dir: &TempDir, limit: u64) -> SharedCache {
    SharedCache::open(dir.path(), Some(ByteSize(limit))).expect("opens")
}

fn get(cache: &SharedCache, (id, bytes): &(ShardId, Bytes)) -> Fetched {
    let got = cache
        .get(*id, bytes.len() as u64, || Ok(()), || Ok::<_, Error>(bytes.clone()))
        .expect("no errors here");
    if let Fetched::Here(path) = &got {
        assert_eq!(fs::read(path).expect("it is there"), **bytes);
    }
    got
}

fn is_here(got: &Fetched) -> bool {
    matches!(got, Fetched::Here(_))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn the_limit_holds_and_what_is_held_stays(
        doings in prop::collection::vec((0usize..3, 0u8..8, any::<bool>()), 1..40),
    ) {
        let dir = TempDir::new().expect("a temporary directory");
        let caches: Vec<_> = (0..3).map(|_| open(&dir, 3000)).collect();
        let mut held: Vec<Vec<(ShardId, PathBuf)>> = vec![Vec::new(); 3];
        for (who, number, lets_go) in doings {
            let wanted = shard(number, 500 + 100 * usize::from(number));
            let got = get(&caches[who], &wanted);
            if let Fetched::Here(path) = got {
                held[who].push((wanted.0, path));
            } else {
                let others: u64 = held.iter().flatten().map(|(id, path)| (*id, path)).collect::<std::collections::BTreeMap<_, _>>()
                    .values().map(|path| fs::metadata(path).expect("held").len()).sum();
                prop_assert!(others + wanted.1.len() as u64 > 3000, "there was room beside the held shards");
            }
            if lets_go {
                for (id, _) in held[who].drain(..) {
                    caches[who].release(id);
                }
            }
            prop_assert!(caches[who].used().expect("reads") <= 3000);
            for (_, path) in held.iter().flatten() {
                prop_assert!(path.exists(), "what a process reads is not removed");
            }
        }
    }
}

#[test]
fn a_shard_is_fetched_once_however_many_ask() {
    let dir = TempDir::new().expect("a temporary directory");
    let (wanted, fetched) = (shard(1, 1 << 20), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let cache = open(&dir, 1 << 30);
                let fetch = || {
                    fetched.fetch_add(1, Relaxed);
                    Ok::<_, Error>(wanted.1.clone())
                };
                let got =
                    cache.get(wanted.0, wanted.1.len() as u64, || Ok(()), fetch).expect("no errors here");
                assert!(is_here(&got));
            });
        }
    });
    assert_eq!(fetched.load(Relaxed), 1);
}

#[test]
fn what_a_dead_process_left_stands_in_nobodys_way() {
    let dir = TempDir::new().expect("a temporary directory");
    let cache = open(&dir, 2000);
    let (old, wanted) = (shard(1, 1500), shard(2, 1500));
    // It held a shard and was fetching two, one of them the wanted one, when it was killed: its locks are gone.
    assert!(is_here(&get(&cache, &old)));
    let hold =
        fs::read_dir(dir.path().join("holds")).expect("lists").next().expect("one").expect("reads").path();
    let dead = dir.path().join("holds/4194303-0");
    fs::copy(&hold, &dead).expect("copies");
    cache.release(old.0);
    let shards = dir.path().join("shards");
    fs::write(shards.join(format!("{}.part", wanted.0)), vec![9; 700]).expect("writes");
    fs::write(shards.join(format!("{}.part", shard(3, 1).0)), vec![9; 600]).expect("writes");
    assert!(is_here(&get(&cache, &wanted)));
    assert!(!dead.exists() && cache.used().expect("reads") == 1500);
}

#[test]
fn what_cannot_be_fetched_leaves_nothing() {
    let dir = TempDir::new().expect("a temporary directory");
    let cache = open(&dir, 2000);
    let (id, bytes) = shard(1, 1500);
    let failed =
        cache.get(id, 1500, || Ok(()), || Err(cache.failed("store", io::ErrorKind::TimedOut.into())));
    assert!(failed.is_err() && cache.used().expect("reads") == 0);
    assert_eq!(get(&cache, &shard(2, 2001)), Fetched::NoRoom);
    assert!(is_here(&get(&cache, &(id, bytes))));
    assert!(cache.check(1000).is_ok());
    let refused = cache.check(1001).expect_err("two do not fit").to_string();
    assert!(refused.contains("allow at least"), "{refused}");
}

#[test]
fn asking_for_a_shard_does_not_make_it_another_file() {
    let dir = TempDir::new().expect("a temporary directory");
    let (first, wanted) = (open(&dir, 2000), shard(1, 100));
    let Fetched::Here(path) = get(&first, &wanted) else { panic!("there is room") };
    first.note_verified(wanted.0, &path, Seen::now(&path));
    let second = open(&dir, 2000);
    assert!(is_here(&get(&second, &wanted)) && second.is_verified(wanted.0, &path));
}

#[test]
fn a_file_is_believed_until_it_changes() {
    let dir = TempDir::new().expect("a temporary directory");
    let (first, second) = (open(&dir, 2000), dir.path().join("x"));
    let (id, bytes) = shard(1, 100);
    fs::write(&second, &bytes).expect("writes");
    assert!(!first.is_verified(id, &second));
    first.note_verified(id, &second, Seen::now(&second));
    assert!(first.is_verified(id, &second) && !first.is_verified(shard(2, 1).0, &second));
    assert!(open(&dir, 2000).is_verified(id, &second), "the others learn of it");
    fs::write(&second, vec![2; 101]).expect("writes");
    assert!(!first.is_verified(id, &second) && !open(&dir, 2000).is_verified(id, &second));
}

#[test]
fn who_waits_for_another_can_be_told_not_to() {
    let dir = TempDir::new().expect("a temporary directory");
    let (one, other, wanted) = (open(&dir, 2000), open(&dir, 2000), shard(1, 100));
    let fetch = || {
        let given_up =
            || Err(SharedCacheError::TooSmall { limit: ByteSize(0), shard: ByteSize(0), least: ByteSize(0) });
        let waited = other.get(wanted.0, 100, given_up, || panic!("it is on its way"));
        assert!(matches!(waited, Err(SharedCacheError::TooSmall { .. })));
        Ok::<_, Error>(wanted.1.clone())
    };
    assert!(is_here(&one.get(wanted.0, 100, || Ok(()), fetch).expect("no errors here")));
    assert!(one.has(wanted.0, 100) && !one.has(wanted.0, 99));
}

#[test]
fn a_forgotten_shard_goes_though_a_process_reads_it() {
    let dir = TempDir::new().expect("a temporary directory");
    let (one, other) = (open(&dir, 2000), open(&dir, 2000));
    let (going, staying, coming) = (shard(1, 100), shard(2, 100), shard(3, 100));
    for wanted in [&going, &staying] {
        assert!(is_here(&get(&one, wanted)));
    }
    let half = dir.path().join("shards").join(format!("{}.part", coming.0));
    fs::write(&half, &coming.1[..50]).expect("writes");
    assert_eq!(other.forget(&[going.0, coming.0, shard(4, 1).0].into()).expect("the disk obeys"), 2);
    assert!(!one.has(going.0, 100) && one.has(staying.0, 100) && !half.exists());
    assert_eq!(other.forget(&[going.0].into()).expect("nothing to do"), 0);
}
