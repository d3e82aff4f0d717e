//! A cache does what a map of key -> (class, bytes) does, within its limit, through crashes and reopening.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use shardfmt::ShardId;
use tempfile::TempDir;

use super::*;

const LIMIT: u64 = 400 << 10;

fn key(n: u32) -> GrainKey {
    GrainKey { shard: ShardId::of(&[(n % 3) as u8]), rows: 16, index: n }
}

/// Content-addressed: one key always has the same bytes.
fn bytes(n: u32) -> Vec<u8> {
    let len = [0, 1, 100, 1000, 9000, 30_000][n as usize % 6] + n as usize;
    (0..len).map(|at| (at as u32 * 31 + n) as u8).collect()
}

fn class(run: &str, departs: u32) -> Class {
    Class::until(run, departs)
}

fn open(dir: &TempDir) -> Cache {
    open_with(dir, LIMIT)
}

fn open_with(dir: &TempDir, limit: u64) -> Cache {
    Cache::open(dir, CacheConfig { limit: ByteSize(limit) }).expect("opens")
}

fn temp() -> TempDir {
    TempDir::new().expect("temporary directory")
}

fn bytes_on_disk(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir.join("segments")).expect("segments");
    entries.map(|entry| entry.expect("entry").metadata().map_or(0, |metadata| metadata.len())).sum()
}

fn segment_files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join("segments")).expect("segments");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("entry").path()).collect();
    paths.sort();
    paths
}

#[derive(Debug, Clone)]
enum Step {
    Put { n: u32, run: &'static str, departs: u32 },
    Discard(u32),
    DropThrough { run: &'static str, epoch: u32, keep_every: u32 },
    DropLeft { run: &'static str, epoch: u32, need: u64, left_every: u32 },
    Evict { active: &'static str, need: u64 },
    Clear { drop_every: u32 },
    Sync { run: &'static str, departs: u32 },
    Reopen { crash: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let run = || prop::sample::select(vec!["a", "b"]);
    prop_oneof![
        12 => (0..60u32, run(), 0..4u32).prop_map(|(n, run, departs)| Step::Put { n, run, departs }),
        3 => (0..60u32).prop_map(Step::Discard),
        2 => (run(), 0..4u32, 1..4u32)
            .prop_map(|(run, epoch, keep_every)| Step::DropThrough { run, epoch, keep_every }),
        2 => (run(), 0..4u32, 0..LIMIT, 1..4u32)
            .prop_map(|(run, epoch, need, left_every)| Step::DropLeft { run, epoch, need, left_every }),
        1 => (run(), 0..LIMIT).prop_map(|(active, need)| Step::Evict { active, need }),
        1 => (1..4u32).prop_map(|drop_every| Step::Clear { drop_every }),
        1 => (run(), 0..4u32).prop_map(|(run, departs)| Step::Sync { run, departs }),
        2 => any::<bool>().prop_map(|crash| Step::Reopen { crash }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_cache_is_a_map_within_its_limit(steps in prop::collection::vec(step(), 1..80)) {
        let dir = temp();
        let mut cache = open(&dir);
        let mut model = BTreeMap::<u32, Class>::new();
        for step in steps {
            match step {
                Step::Put { n, run, departs } => put_both(&cache, &mut model, n, class(run, departs)),
                Step::Discard(n) => {
                    prop_assert_eq!(cache.discard(&key(n)), model.remove(&n).is_some());
                }
                Step::DropThrough { run, epoch, keep_every } => {
                    let stays = class(run, 9);
                    let wanted = |key: &GrainKey| (key.index % keep_every == 1).then(|| stays.clone());
                    let dropped = cache.drop_through(run, epoch, wanted).expect("drops");
                    let leaves = |class: &Class| class.run == run && class.departs <= epoch;
                    let mut lost = 0;
                    model.retain(|n, class| {
                        if !leaves(class) {
                            return true;
                        }
                        let wanted = wanted(&key(*n)).is_some();
                        let kept = cache.get(&key(*n)).is_some();
                        assert!(wanted || !kept, "{n} is not wanted and stayed");
                        lost += u64::from(wanted && !kept);
                        *class = stays.clone();
                        kept
                    });
                    prop_assert_eq!(dropped.lost, lost, "what cannot be kept is counted");
                }
                Step::DropLeft { run, epoch, need, left_every } => {
                    let has_left = |key: &GrainKey| key.index.is_multiple_of(left_every);
                    let free = cache.free();
                    let dropped = cache.drop_left(run, epoch, need, has_left, has_left).expect("drops");
                    let (mut lost, mut may_go, mut stays) = (0, 0, 0);
                    model.retain(|n, class| {
                        let kept = cache.get(&key(*n)).is_some();
                        let leaves = class.run == run && class.departs == epoch;
                        assert!(leaves || kept, "{n} is of no segment that leaves");
                        lost += u64::from(!kept && !has_left(&key(*n)));
                        let record = format::record_bytes(bytes(*n).len() as u64);
                        may_go += if kept && leaves && has_left(&key(*n)) { record } else { 0 };
                        stays += if kept && leaves && !has_left(&key(*n)) { record } else { 0 };
                        kept
                    });
                    prop_assert_eq!(dropped.lost, lost, "what cannot be kept is counted");
                    prop_assert!(cache.free() >= free);
                    let is_little = may_go == 0 || may_go * LEAST_GAIN < stays;
                    prop_assert!(is_little || cache.free() >= need, "room is made as long as there is too little");
                }
                Step::Evict { active, need } => {
                    let evicted = cache.evict_runs_except(&BTreeSet::from([active.to_owned()]), need);
                    let inactive_left = cache.classes().keys().any(|class| class.run != active);
                    prop_assert!(cache.free() >= need || !inactive_left);
                    prop_assert_eq!(evicted.lost, 0);
                    model.retain(|n, class| class.run == active || cache.get(&key(*n)).is_some());
                }
                Step::Clear { drop_every } => {
                    let stays = |key: &GrainKey, class: &Class| {
                        (!key.index.is_multiple_of(drop_every)).then(|| class.clone())
                    };
                    let used = cache.used();
                    let would = cache.clear(stays, true);
                    prop_assert_eq!((cache.used(), cache.len()), (used, model.len()), "a dry run changes nothing");
                    let cleared = cache.clear(stays, false);
                    prop_assert!(cleared.grains <= would.grains && cleared.bytes <= would.bytes);
                    let before = model.len();
                    model.retain(|n, _| cache.get(&key(*n)).is_some() || !n.is_multiple_of(drop_every));
                    prop_assert_eq!((before - model.len()) as u64, cleared.grains, "what stays is not lost");
                    if drop_every == 1 {
                        prop_assert_eq!((cleared, cache.used()), (would, 0), "all of it goes");
                    }
                }
                Step::Sync { run, departs } => cache.sync(&class(run, departs)).expect("syncs"),
                Step::Reopen { crash: false } => {
                    cache.close().expect("closes");
                    drop(cache);
                    cache = open(&dir);
                    prop_assert!(!cache.was_unclean());
                }
                Step::Reopen { crash: true } => {
                    drop(cache);
                    let found: BTreeMap<u32, Class> =
                        scan(&dir).expect("scans").into_iter().map(|(key, class, _)| (key.index, class)).collect();
                    // Discarded grains may come back; the others are there.
                    prop_assert!(model.keys().all(|n| found.contains_key(n)));
                    model = found;
                    cache = open(&dir);
                    prop_assert_eq!(cache.was_unclean(), !model.is_empty());
                    prop_assert!(cache.keys().iter().all(|key| cache.get(key).expect("a key").needs_verification));
                }
            }
            prop_assert!(bytes_on_disk(dir.path()) <= cache.used());
            prop_assert!(cache.used() <= LIMIT);
            let keys: BTreeSet<u32> = cache.keys().iter().map(|key| key.index).collect();
            prop_assert_eq!(keys, model.keys().copied().collect::<BTreeSet<_>>());
        }
        for n in model.keys() {
            let location = cache.get(&key(*n)).expect("in the model");
            prop_assert_eq!(&cache.read(&location).expect("reads")[..], &bytes(*n)[..]);
        }
    }
}

fn put_both(cache: &Cache, model: &mut BTreeMap<u32, Class>, n: u32, class: Class) {
    let used = cache.used();
    match cache.put(key(n), &class, &bytes(n)) {
        Ok(location) => {
            assert!(!location.needs_verification, "a put grain is verified");
            assert_eq!(cache.read(&location).expect("reads"), bytes(n));
            model.entry(n).or_insert(class);
        }
        Err(CacheError::Full { needed, .. }) => {
            assert!(!model.contains_key(&n), "a present grain needs no room");
            assert!(used + needed > LIMIT);
            assert_eq!(cache.used(), used);
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn what_has_left_makes_room_though_the_cache_is_full_and_its_segment_has_more() {
    let dir = temp();
    let grain = |n: u32| vec![n as u8; 9000];
    let cache = open(&dir);
    let count = (0..).take_while(|n| cache.put(key(*n), &class("a", 1), &grain(*n)).is_ok()).count() as u32;
    let full = cache.free();
    let has_left = |key: &GrainKey| key.index.is_multiple_of(3);

    assert_eq!(cache.drop_left("a", 1, full, has_left, has_left).expect("drops"), Dropped::default());
    let dropped = cache.drop_left("a", 1, LIMIT, has_left, has_left).expect("drops");
    assert!(dropped.relocated > 0 && dropped.lost == 0, "{dropped:?}");
    assert!(cache.free() >= u64::from(count.div_ceil(3)) * 9000);
    for n in 0..count {
        let found = cache.get(&key(n)).map(|at| cache.read(&at).expect("reads").to_vec());
        assert_eq!(found, (!has_left(&key(n))).then(|| grain(n)), "grain {n}");
    }
    // The owner may have found a grain to be corrupt while it was in memory alone.
    let is_suspect = |n: &u32| cache.get(&key(*n)).is_some_and(|at| at.needs_verification);
    assert!(
        (0..count).any(|n| is_suspect(&n)),
        "grains put again after their segment went are verified again"
    );
}

#[test]
fn a_grain_moves_to_another_class_where_there_is_room_and_stays_where_there_is_none() {
    let dir = temp();
    let cache = open(&dir);
    let (before, after) = (class("a", 1), class("b", 2));
    cache.put(key(4), &before, &bytes(4)).expect("room");
    let moved = cache.put_under(key(4), &after, &bytes(4)).expect("room");
    assert_eq!(cache.class_of(&key(4)), Some(after.clone()));
    assert_eq!((cache.read(&moved).expect("reads").to_vec(), moved.needs_verification), (bytes(4), false));
    let used = |class: &Class| cache.classes().get(class).map_or(0, |used| used.grains);
    assert_eq!((used(&before), used(&after)), (0, 1));

    let full = (10..).find(|n| cache.put(key(*n), &before, &[7; 9000]).is_err()).expect("it is full");
    let refused = cache.put_under(key(10), &class("c", 1), &[7; 9000]).expect_err("no room");
    assert!(refused.is_full(), "{refused}");
    assert!((10..full).all(|n| cache.class_of(&key(n)) == Some(before.clone())), "each stays where it was");
}

#[test]
fn what_was_discarded_stays_away_after_an_orderly_stop() {
    let dir = temp();
    let cache = open(&dir);
    for n in 0..4 {
        cache.put(key(n), &class("a", 1), &bytes(n)).expect("room");
    }
    cache.discard(&key(2));
    cache.close().expect("closes");
    drop(cache);
    let cache = open(&dir);
    assert_eq!(cache.keys().len(), 3);
    assert!(cache.get(&key(2)).is_none());
    assert!(!cache.get(&key(1)).expect("kept").needs_verification);
}

#[test]
fn a_saved_index_that_is_not_that_of_the_segments_is_not_believed() {
    let dir = temp();
    let cache = open(&dir);
    for n in 0..20 {
        cache.put(key(n), &class("a", n / 4), &bytes(n)).expect("room");
    }
    cache.discard(&key(2));
    let kept = cache.keys();
    cache.close().expect("closes");
    drop(cache);
    let read = |name: &str| fs::read(dir.path().join(name)).expect("it was left");
    let (index, clean) = (read("index"), read("clean"));
    assert!(clean.windows(5).any(|word| word == b"index"));
    let segment = segment_files(dir.path()).pop().expect("a segment");
    let last = fs::read(&segment).expect("reads");
    // As it was left, cut off or flipped at every place, not there at all; with a segment longer or gone.
    let opened = |index: Option<&[u8]>, segment_bytes: Option<&[u8]>| {
        match index {
            Some(index) => fs::write(dir.path().join("index"), index).expect("writes"),
            None => _ = fs::remove_file(dir.path().join("index")),
        }
        match segment_bytes {
            Some(bytes) => fs::write(&segment, bytes).expect("writes"),
            None => fs::remove_file(&segment).expect("removes"),
        }
        fs::write(dir.path().join("clean"), &clean).expect("writes");
        let cache = open(&dir);
        assert!(!cache.was_unclean() && !dir.path().join("index").exists());
        for key in cache.keys() {
            let at = cache.get(&key).expect("found");
            assert_eq!(cache.read(&at).expect("reads"), bytes(key.index));
        }
        cache.keys()
    };
    assert_eq!(opened(Some(&index), Some(&last)), kept);
    assert_eq!(opened(None, Some(&last)), kept);
    for at in 0..index.len() {
        let mut flipped = index.clone();
        flipped[at] ^= 1 << (at % 8);
        assert_eq!(opened(Some(&flipped), Some(&last)), kept, "byte {at}");
        assert_eq!(opened(Some(&index[..at]), Some(&last)), kept, "cut at {at}");
    }
    assert_eq!(opened(Some(&index), Some(&[&last[..], &[0; 64]].concat())), kept);
    assert!(opened(Some(&index), None).len() < kept.len());
}

#[test]
fn suspicion_outlives_an_orderly_stop_until_someone_verifies() {
    let dir = temp();
    let cache = open(&dir);
    cache.put(key(0), &class("a", 1), &bytes(0)).expect("room");
    cache.put(key(1), &class("b", 1), &bytes(1)).expect("room");
    drop(cache);
    let cache = open(&dir);
    assert!(cache.was_unclean());
    cache.mark_verified(&key(0));
    cache.close().expect("closes");
    drop(cache);
    let cache = open(&dir);
    assert!(!cache.get(&key(0)).expect("kept").needs_verification);
    assert!(cache.get(&key(1)).expect("kept").needs_verification);
    cache.put(key(1), &class("b", 1), &bytes(1)).expect("the same bytes are there");
    assert!(!cache.get(&key(1)).expect("kept").needs_verification, "compared with verified bytes");
}

#[test]
fn verified_bytes_replace_suspect_ones_that_differ() {
    let dir = temp();
    let cache = open(&dir);
    let location = cache.put(key(3), &class("a", 1), &bytes(3)).expect("room");
    drop(cache);
    let file = OpenOptions::new().write(true).open(&location.segment).expect("the segment");
    file.write_all_at(&[0xee; 8], location.offset + 5).expect("damages");
    let cache = open(&dir);
    let suspect = cache.get(&key(3)).expect("its header is intact");
    assert!(suspect.needs_verification);
    let fresh = cache.put(key(3), &class("a", 1), &bytes(3)).expect("room");
    assert_ne!(fresh.segment, suspect.segment, "nothing is rewritten");
    assert_eq!(cache.read(&fresh).expect("reads"), bytes(3));
    assert!(!suspect.segment.exists(), "the damaged segment held nothing else");
}

#[test]
fn a_torn_tail_is_ignored_and_what_lies_before_it_found() {
    for cut in [1, 8, 40, 64, 65, 500, 1100, 1200, 2000, 2300] {
        let dir = temp();
        let cache = open(&dir);
        for n in [3, 9, 2] {
            cache.put(key(n), &class("a", 1), &bytes(n)).expect("room");
        }
        drop(cache);
        let path = &segment_files(dir.path())[0];
        let file = OpenOptions::new().write(true).open(path).expect("the segment");
        let len = file.metadata().expect("metadata").len();
        file.set_len(len - cut.min(len)).expect("tears");
        let cache = open(&dir);
        let kept: Vec<u32> = cache.keys().iter().map(|key| key.index).collect();
        assert!(kept.len() < 3, "cut by {cut}: {kept:?}");
        for key in cache.keys() {
            let location = cache.get(&key).expect("a key");
            assert_eq!(cache.read(&location).expect("reads"), bytes(key.index));
        }
        let location = cache.put(key(4), &class("a", 1), &bytes(4)).expect("room");
        assert_ne!(&*location.segment, path.as_path(), "a torn segment takes nothing more");
        assert!(cache.used() >= bytes_on_disk(dir.path()));
    }
}

#[test]
fn damaged_headers_hide_records_and_break_nothing() {
    let dir = temp();
    let cache = open(&dir);
    let first = cache.put(key(0), &class("a", 1), &bytes(0)).expect("room");
    let second = cache.put(key(1), &class("a", 1), &bytes(1)).expect("room");
    drop(cache);
    let file = OpenOptions::new().write(true).open(&first.segment).expect("the segment");
    file.write_all_at(&[0xff], second.offset - 10).expect("damages");
    let cache = open(&dir);
    assert_eq!(cache.keys(), [key(0)]);
    drop(cache);
    file.write_all_at(&[0xff], 20).expect("damages");
    let cache = open(&dir);
    assert!(cache.is_empty());
    assert_eq!((cache.used(), bytes_on_disk(dir.path())), (0, 0), "an unreadable segment is removed");
}

#[test]
fn a_later_format_is_refused_and_left_alone() {
    let dir = temp();
    drop(open(&dir));
    let path = dir.path().join("segments/00000001-00000000.seg");
    fs::write(&path, format::later_segment_header(&class("a", 1), 2)).expect("writes");
    let error = Cache::open(&dir, CacheConfig::default()).map(|_| ()).expect_err("too new");
    assert!(matches!(error, CacheError::TooNew { found: 2, .. }), "{error}");
    assert!(path.exists());
}

#[test]
fn a_flipped_bit_in_a_header_is_no_later_format() {
    let dir = temp();
    let cache = open(&dir);
    let segment = cache.put(key(0), &class("a", 1), &bytes(0)).expect("room").segment.to_path_buf();
    drop(cache);
    let intact = fs::read(&segment).expect("the segment");
    let header = format::segment_header(&class("a", 1)).len();
    for bit in 0..header * 8 {
        let mut damaged = intact.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&segment, damaged).expect("damages");
        let cache = open(&dir);
        assert!(cache.keys().is_empty() || cache.keys() == [key(0)], "bit {bit}");
    }
}

#[test]
fn one_directory_has_one_cache() {
    let dir = temp();
    let cache = open(&dir);
    let error = Cache::open(&dir, CacheConfig::default()).map(|_| ()).expect_err("in use");
    let text = error.to_string();
    assert!(text.contains(&dir.path().display().to_string()), "{text}");
    assert!(text.contains(&std::process::id().to_string()), "{text}");
    drop(cache);
    open(&dir);
}

#[test]
fn a_lowered_limit_holds_at_once() {
    let dir = temp();
    let cache = open(&dir);
    for n in 0..30 {
        cache.put(key(n), &class("a", n % 3), &bytes(n)).expect("room");
    }
    cache.close().expect("closes");
    drop(cache);
    let cache = open_with(&dir, 80 << 10);
    assert!(cache.used() <= 80 << 10 && bytes_on_disk(dir.path()) <= 80 << 10);
    for key in cache.keys() {
        assert_eq!(cache.read(&cache.get(&key).expect("a key")).expect("reads"), bytes(key.index));
    }
}

#[test]
fn a_failed_write_leaves_the_index_right() {
    let dir = temp();
    let cache = open(&dir);
    let kept = cache.put(key(5), &class("a", 1), &bytes(5)).expect("room");
    // The disk refuses: the open segment's handle is one that cannot write.
    cache.files.forget(&kept.segment);
    let read_only = SegmentReader::new(4);
    let handle = read_only.read(&kept).map(|_| File::open(&kept.segment).expect("opens")).expect("reads");
    cache.files.put_for_test(&kept.segment, handle);
    let error = cache.put(key(4), &class("a", 1), &bytes(4)).expect_err("the disk refused");
    assert!(matches!(&error, CacheError::Io { path, .. } if **path == *kept.segment), "{error}");
    assert_eq!(cache.keys(), [key(5)]);
    assert_eq!(cache.read(&kept).expect("reads"), bytes(5));
    assert!(bytes_on_disk(dir.path()) <= cache.used());
    let next = cache.put(key(4), &class("a", 1), &bytes(4)).expect("another segment");
    assert_ne!(next.segment, kept.segment, "nothing is written behind a hole");
}

#[test]
fn a_full_disk_is_an_error_and_nothing_more() {
    // A directory on a file system of less than 64 MiB, such as a tmpfs.
    let Some(disk) = std::env::var_os("SHARDD_TEST_SMALL_DISK") else {
        eprintln!("skipped: SHARDD_TEST_SMALL_DISK names no small file system");
        return;
    };
    let dir = TempDir::new_in(disk).expect("a directory");
    let cache = open_with(&dir, 1 << 30);
    let large = |n: u32| vec![n as u8; 100_000];
    let (mut kept, mut error) = (0, None);
    while error.is_none() {
        match cache.put(key(kept), &class("a", kept % 5), &large(kept)) {
            Ok(_) => kept += 1,
            Err(refused) => error = Some(refused),
        }
    }
    let error = error.expect("the disk is full");
    assert!(error.is_full() && matches!(error, CacheError::Io { .. }), "{error:?}");
    assert_eq!(cache.len(), kept as usize);
    assert!(cache.drop_through("a", 1, |_| None).expect("drops").segments > 0);
    cache.put(key(kept), &class("b", 0), &large(kept)).expect("there is room again");
    for key in cache.keys() {
        assert_eq!(cache.read(&cache.get(&key).expect("a key")).expect("reads"), large(key.index));
    }
}

#[test]
fn space_of_a_segment_that_could_not_begin_comes_back() {
    let dir = temp();
    let cache = open(&dir);
    fs::remove_dir(dir.path().join("segments")).expect("removes");
    let error = cache.put(key(4), &class("a", 1), &bytes(4)).expect_err("no directory");
    assert!(error.to_string().contains("segments"), "{error}");
    assert_eq!((cache.used(), cache.len()), (0, 0));
    fs::create_dir(dir.path().join("segments")).expect("creates");
    cache.put(key(4), &class("a", 1), &bytes(4)).expect("the disk is back");
}

#[test]
fn a_dropped_segment_is_gone_by_name_and_readable_where_open() {
    let dir = temp();
    let cache = open(&dir);
    let location = cache.put(key(3), &class("a", 1), &bytes(3)).expect("room");
    let (early, late) = (SegmentReader::new(2), SegmentReader::new(2));
    early.read(&location).expect("reads");
    let dropped = cache.drop_through("a", 1, |_| None).expect("drops");
    assert_eq!((dropped.segments, dropped.relocated, cache.used()), (1, 0, 0));
    assert_eq!(early.read(&location).expect("an open file stays"), bytes(3));
    assert!(matches!(late.read(&location), Err(CacheError::Gone { .. })));
    assert!(matches!(cache.read(&location), Err(CacheError::Gone { .. })));
}

#[test]
fn eviction_makes_room_for_the_grain_it_was_asked_for() {
    let dir = temp();
    let cache = open(&dir);
    let filled =
        (0u32..).take_while(|n| cache.put(key(*n), &class("old", n % 4), &bytes(n * 6 + 4)).is_ok()).count();
    let large = vec![7; 30_000];
    assert!(cache.put(key(900), &class("new", 1), &large).is_err_and(|error| error.is_full()));
    let evicted = cache.evict_runs_except(&BTreeSet::from(["new".to_owned()]), large.len() as u64);
    assert!(evicted.segments > 0);
    cache.put(key(900), &class("new", 1), &large).expect("room was made");
    assert!(cache.len() > 1 && cache.len() <= filled, "and no more than needed");
    let evicted = cache.evict(&BTreeSet::new(), LIMIT, |key| (key.index == 900).then(|| class("new", 2)));
    assert_eq!((evicted.relocated, cache.keys()), (1, vec![key(900)]), "wanted grains are kept");
    assert_eq!(cache.read(&cache.get(&key(900)).expect("kept")).expect("reads"), large);
}

#[test]
fn what_is_wanted_no_more_makes_room_for_what_is() {
    let dir = temp();
    let cache = open_with(&dir, 128 << 10);
    // Two full segments, the older one wanted: copying it needs the room of the other.
    let full = vec![1; 60_000];
    cache.put(key(1), &class("a", 1), &full).expect("room");
    cache.put(key(2), &class("a", 2), &full).expect("room");
    let dropped = cache.drop_through("a", 2, |key| (key.index == 1).then(|| class("a", 3))).expect("drops");
    assert_eq!((dropped.relocated, dropped.lost), (1, 0));
    assert_eq!(cache.keys(), [key(1)]);
}

#[test]
fn names_of_segments_never_come_back() {
    let dir = temp();
    let mut names = BTreeSet::new();
    for _ in 0..3 {
        let cache = open(&dir);
        for n in 0..2 {
            let location = cache.put(key(n), &class("a", n), &bytes(n)).expect("room");
            assert!(names.insert(location.segment.clone()), "{:?} again", location.segment);
        }
        cache.drop_through("a", 9, |_| None).expect("drops");
    }
}

#[test]
fn grains_of_one_class_share_segments_and_of_two_do_not() {
    let dir = temp();
    let cache = open_with(&dir, 4 << 20);
    let mut segments = BTreeMap::<Arc<Path>, BTreeSet<u32>>::new();
    for n in 0..60 {
        let location = cache.put(key(n), &class("a", n % 2), &bytes(n)).expect("room");
        segments.entry(location.segment).or_default().insert(n % 2);
    }
    assert!(segments.values().all(|departs| departs.len() == 1));
    assert!(segments.len() > 2, "segments are rolled");
    let classes = cache.classes();
    assert_eq!(classes.values().map(|class| class.grains).sum::<u64>(), 60);
    assert_eq!(classes.values().map(|class| class.bytes).sum::<u64>(), cache.used());
}

#[test]
fn a_closed_cache_takes_nothing_and_still_reads() {
    let dir = temp();
    let cache = open(&dir);
    let location = cache.put(key(1), &class("a", 1), &bytes(1)).expect("room");
    cache.put(key(2), &class("a", 1), &bytes(2)).expect("room");
    cache.close().expect("closes");
    assert!(matches!(cache.put(key(3), &class("a", 1), &bytes(3)), Err(CacheError::Closed { .. })));
    assert_eq!(cache.read(&location).expect("reads"), bytes(1));
    cache.discard(&key(1));
    drop(cache);
    assert!(open(&dir).was_unclean(), "grains discarded late would come back as trusted");
}

#[test]
fn many_threads_keep_the_limit_and_lose_nothing() {
    let dir = temp();
    let cache = open(&dir);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (cache, done) = (&cache, &done);
            scope.spawn(move || {
                for round in 0..60u32 {
                    let n = (thread * 17 + round * 7) % 60;
                    match cache.put(key(n), &class("a", round / 20), &bytes(n)) {
                        // Another thread may have dropped it since.
                        Ok(location) => match cache.read(&location) {
                            Ok(read) => assert_eq!(read, bytes(n)),
                            Err(error) => assert!(matches!(error, CacheError::Gone { .. }), "{error}"),
                        },
                        Err(error) => {
                            assert!(error.is_full() || matches!(error, CacheError::Gone { .. }), "{error}");
                            cache.drop_through("a", round / 20, |_| None).expect("drops");
                        }
                    }
                    if round % 16 == thread {
                        cache.sync(&class("a", round / 20)).expect("syncs");
                    }
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        while done.load(Ordering::SeqCst) < 4 {
            assert!(bytes_on_disk(dir.path()) <= LIMIT);
            assert!(cache.used() <= LIMIT);
        }
    });
    assert!(bytes_on_disk(dir.path()) <= cache.used());
    for key in cache.keys() {
        assert_eq!(cache.read(&cache.get(&key).expect("a key")).expect("reads"), bytes(key.index));
    }
    drop(cache);
    let cache = open(&dir);
    for key in cache.keys() {
        assert_eq!(cache.read(&cache.get(&key).expect("a key")).expect("reads"), bytes(key.index));
    }
}

#[test]
fn of_a_forgotten_shard_no_byte_stays_and_none_comes_again() {
    let dir = temp();
    let marker = |n: u32| format!("grain {n} of the shard that goes").into_bytes();
    let (going, staying) = (key(0).shard, key(1).shard);
    let on_disk = |needle: &[u8]| {
        let holds = |path: &PathBuf| {
            let bytes = fs::read(path).expect("a segment");
            bytes.windows(needle.len()).any(|window| window == needle)
        };
        segment_files(dir.path()).iter().any(holds)
    };
    let of = |shard: ShardId, index: u32| GrainKey { shard, rows: 16, index };
    {
        let cache = open(&dir);
        for index in 0..6 {
            cache.put(of(going, index), &class("r", index % 2), &marker(index)).expect("there is room");
            cache.put(of(staying, index), &class("r", index % 2), &bytes(index)).expect("there is room");
        }
        // Its bytes stay where they were.
        assert!(cache.discard(&of(going, 3)) && on_disk(&marker(3)));
        cache.close().expect("closes");
    }
    let cache = open(&dir);
    let dropped = cache.forget(&BTreeSet::from([going])).expect("the disk obeys");
    assert!(dropped.segments > 0 && dropped.lost == 0, "{dropped:?}");
    assert!((0..6).all(|index| !on_disk(&marker(index))), "nothing of it is left");
    for index in 0..6 {
        assert_eq!(cache.get(&of(going, index)), None);
        let kept = cache.get(&of(staying, index)).expect("it was moved");
        assert_eq!(cache.read(&kept).expect("reads"), bytes(index));
        assert_eq!(cache.class_of(&of(staying, index)), Some(class("r", index % 2)));
    }
    let refused = cache.put(of(going, 9), &class("r", 0), &marker(9)).expect_err("it was forgotten");
    assert!(matches!(refused, CacheError::Forgotten { .. }), "{refused}");
    assert_eq!(cache.forget(&BTreeSet::from([going])).expect("nothing to do"), Dropped::default());
}

#[test]
fn of_a_forgotten_shard_no_byte_stays_behind_a_hole() {
    for stops_in_order in [false, true] {
        let dir = temp();
        let marker = b"a grain of the shard that goes".as_slice();
        let (before, going) = (key(0), key(1));
        let on_disk = || {
            let holds = |path: &PathBuf| {
                let bytes = fs::read(path).expect("a segment");
                bytes.windows(marker.len()).any(|window| window == marker)
            };
            segment_files(dir.path()).iter().any(holds)
        };
        let place = {
            let cache = open(&dir);
            cache.put(before, &class("r", 1), &bytes(0)).expect("room");
            cache.put(going, &class("r", 1), marker).expect("room")
        };
        // The header of its record did not reach the disk before the power went.
        let file = OpenOptions::new().write(true).open(&place.segment).expect("the segment");
        file.write_all_at(&[0; 32], place.offset - format::RECORD_HEADER).expect("damages");
        if stops_in_order {
            open(&dir).close().expect("closes");
        }
        let cache = open(&dir);
        assert!(cache.get(&going).is_none() && on_disk());
        cache.forget(&BTreeSet::from([going.shard])).expect("the disk obeys");
        assert!(!on_disk(), "nothing of it is left");
        let kept = cache.get(&before).expect("it was moved");
        assert_eq!(cache.read(&kept).expect("reads"), bytes(0));
    }
}

#[test]
fn a_segment_that_the_disk_does_not_give_up_is_asked_for_again() {
    let dir = temp();
    let cache = open(&dir);
    let place = cache.put(key(4), &class("r", 1), &bytes(4)).expect("room");
    let used = cache.used();
    // A path that cannot be unlinked: a directory.
    let aside = dir.path().join("aside");
    fs::rename(&place.segment, &aside).expect("renames");
    fs::create_dir(&place.segment).expect("creates");
    let shards = BTreeSet::from([key(4).shard]);
    let refused = cache.forget(&shards).expect_err("it stays").to_string();
    assert!(refused.contains("cannot remove"), "{refused}");
    assert_eq!((cache.used(), cache.get(&key(4))), (used, None));
    cache.forget(&shards).expect_err("it is asked for again");

    fs::remove_dir(&place.segment).expect("removes");
    fs::rename(&aside, &place.segment).expect("renames");
    cache.forget(&shards).expect("the disk obeys");
    assert!(!place.segment.exists() && cache.used() == 0);
}

#[test]
fn what_the_disk_did_not_give_up_is_verified_when_it_is_found_again() {
    let dir = temp();
    let cache = open(&dir);
    let place = cache.put(key(4), &class("r", 1), &bytes(4)).expect("room");
    let aside = dir.path().join("aside");
    fs::rename(&place.segment, &aside).expect("renames");
    fs::create_dir(&place.segment).expect("creates");
    cache.drop_through("r", 1, |_| None).expect_err("it stays");
    fs::remove_dir(&place.segment).expect("removes");
    fs::rename(&aside, &place.segment).expect("renames");
    cache.close().expect("closes");
    drop(cache);
    assert!(open(&dir).get(&key(4)).is_some_and(|kept| kept.needs_verification));
}
