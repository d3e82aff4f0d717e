//! A bucket's metastore keeps the promises of the trait, behaves as the one in memory, reports no change
//! wrongly, and refuses a place where it would get lost.

use std::collections::VecDeque;
use std::fmt;

use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use proptest::prelude::*;
use tokio::task::yield_now;

use super::super::conformance;
use super::super::model::{clock, does_what_memory_does, operation};
use super::*;

fn over(store: &Arc<impl ObjectStore>) -> BucketMetastore {
    let store: Arc<dyn ObjectStore> = store.clone();
    BucketMetastore::new(Arc::new(Origin::over(store, "memory://", None)))
}

/// As a node of a cluster has it.
fn of_node(store: &Arc<impl ObjectStore>, clock: SystemClock) -> BucketMetastore {
    let store: Arc<dyn ObjectStore> = store.clone();
    let origin = Arc::new(Origin::over(store, "memory://", None));
    BucketMetastore::with_clock(origin, Pace::CLUSTER, clock, CLOCKS_DIFFER)
}

#[tokio::test(start_paused = true)]
async fn a_bucket_keeps_the_promises_of_a_metastore() {
    for pace in [Pace::EMBEDDED, Pace::CLUSTER] {
        conformance::all(async || {
            let origin = Arc::new(Origin::open("memory://").expect("opens"));
            Arc::new(BucketMetastore::with_clock(origin, pace, clock(), CLOCKS_DIFFER)) as Arc<dyn Metastore>
        })
        .await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_bucket_does_what_memory_does(operations in prop::collection::vec(operation(), 1..30)) {
        let origin = Arc::new(Origin::open("memory://").expect("opens"));
        does_what_memory_does(operations, |clock| {
            Box::new(BucketMetastore::with_clock(origin.clone(), Pace::EMBEDDED, clock, Duration::ZERO))
        });
    }
}

#[tokio::test(start_paused = true)]
async fn two_openings_of_one_bucket_are_one_store() {
    let store = Arc::new(InMemory::new());
    let (ours, theirs) = (over(&store), over(&store));
    assert!(!ours.is_there().await.expect("answers"));
    let mut wait = ours.changed("k", 0);
    assert!(futures::poll!(&mut wait).is_pending());
    let revision = theirs.put("k", b"1".to_vec(), Expected::Absent, None).await.expect("absent");
    assert!(ours.is_there().await.expect("answers"));
    assert_eq!(tokio::time::timeout(Duration::from_secs(30), wait).await.expect("wakes"), Ok(revision));
    let late = ours.put("k", b"2".to_vec(), Expected::Absent, None).await;
    assert_eq!(late, Err(MetaError::Conflict { key: "k".to_owned(), actual: Some(revision) }));
    theirs.delete("k", Expected::Any).await.expect("deletes");
    assert_eq!(ours.get("k").await, Ok(None), "the known state is checked again");
}

#[tokio::test(start_paused = true)]
async fn a_wait_looks_ever_more_rarely() {
    let store = Arc::new(Scripted::default());
    let metastore = over(&store);
    metastore.put("k", vec![], Expected::Any, None).await.expect("puts");
    let before = store.gets();
    let waited = tokio::time::timeout(Duration::from_secs(600), metastore.changed("other", 1)).await;
    assert!(waited.is_err(), "nothing happened");
    let looks = store.gets() - before;
    assert!((38..60).contains(&looks), "{looks} looks in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn however_many_wait_at_a_node_one_of_them_looks() {
    let store = Arc::new(Scripted::default());
    let (metastore, other) = (of_node(&store, clock()), over(&store));
    metastore.put("k", vec![], Expected::Any, None).await.expect("puts");
    let before = store.gets();
    let waits = (0..50).map(|n| format!("other/{n}/"));
    let waits: Vec<String> = waits.collect();
    let wait_for_all = futures::future::join_all(waits.iter().map(|prefix| metastore.changed(prefix, 1)));
    assert!(tokio::time::timeout(Duration::from_secs(60), wait_for_all).await.is_err(), "nothing happened");
    let looks = store.gets() - before;
    assert!((50 + 55..50 + 65).contains(&looks), "{looks} looks of 50 waits in a minute");

    let begun = tokio::time::Instant::now();
    let all = futures::future::join_all(waits.iter().map(|_| metastore.changed("other/", 1)));
    let change = async {
        sleep(Duration::from_secs(10)).await;
        other.put("other/7/x", vec![], Expected::Any, None).await
    };
    let (woken, revision) = futures::join!(all, change);
    assert!(woken.iter().all(|woken| *woken == revision), "all of them see it");
    assert!(begun.elapsed() < Duration::from_secs(12), "within two seconds: {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_renews_two_leases_every_second_writes_each_every_twenty() {
    let (store, clock) = (Arc::new(Scripted::default()), clock());
    let (node, other) = (of_node(&store, Arc::clone(&clock)), of_node(&store, clock));
    let lease = node.grant(Duration::from_secs(5)).await.expect("grants");
    let second = node.grant(Duration::from_secs(2)).await.expect("grants");
    node.put("nodes/a", vec![], Expected::Any, Some(lease)).await.expect("puts");
    node.put("disks/a", vec![], Expected::Any, Some(second)).await.expect("puts");
    let before = store.puts();
    for _ in 0..300 {
        sleep(Duration::from_secs(1)).await;
        for lease in [lease, second] {
            node.renew(lease).await.expect("it lives");
        }
        assert_eq!(other.list("").await.expect("lists").entries.len(), 2);
    }
    assert!((28..=32).contains(&(store.puts() - before)), "{} puts in 300 s", store.puts() - before);

    // Without renewals both lapse, no earlier than asked for after the last.
    let begun = tokio::time::Instant::now();
    let since = other.list("nodes/").await.expect("lists").revision;
    other.changed("nodes/", since).await.expect("it lapses");
    let lived = begun.elapsed();
    assert!((Duration::from_secs(5)..Duration::from_secs(31)).contains(&lived), "{lived:?}");
    assert_eq!(node.renew(lease).await, Err(MetaError::LeaseLost { lease }));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_writes_nothing_notices_that_another_ended_the_lease() {
    let (store, clock) = (Arc::new(Scripted::default()), clock());
    let (node, other) = (of_node(&store, Arc::clone(&clock)), of_node(&store, clock));
    let lease = node.grant(Duration::from_secs(5)).await.expect("grants");
    node.put("nodes/a", vec![], Expected::Any, Some(lease)).await.expect("puts");
    let puts = store.puts();
    node.renew(lease).await.expect("it lives");
    assert_eq!(store.puts(), puts);
    other.revoke(lease).await.expect("revokes");
    // As soon as one who waits for changes: within a second.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(node.renew(lease).await, Err(MetaError::LeaseLost { lease }));
}

#[tokio::test(start_paused = true)]
async fn a_node_at_rest_looks_once_a_second_whatever_waits_and_is_renewed() {
    let (store, clock) = (Arc::new(Scripted::default()), clock());
    let node = Arc::new(of_node(&store, clock));
    let lease = node.grant(Duration::from_secs(5)).await.expect("grants");
    for prefix in ["nodes/", "plans/"] {
        let node = Arc::clone(&node);
        let since = node.list("").await.expect("lists").revision;
        tokio::spawn(async move { node.changed(prefix, since).await });
    }
    let before = store.gets();
    for _ in 0..15 {
        sleep(Duration::from_secs(1)).await;
        node.renew(lease).await.expect("it lives");
    }
    let looks = store.gets() - before;
    assert!((14..=16).contains(&looks), "{looks} looks in 15 s");
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_who_does_not_renew_ends_though_others_of_the_process_are_renewed() {
    let (store, clock) = (Arc::new(Scripted::default()), clock());
    let node = of_node(&store, clock);
    let (kept, left) = (
        node.grant(Duration::from_secs(5)).await.expect("grants"),
        node.grant(Duration::from_secs(5)).await.expect("grants"),
    );
    for _ in 0..40 {
        sleep(Duration::from_secs(1)).await;
        node.renew(kept).await.expect("it lives");
    }
    assert_eq!(node.renew(left).await, Err(MetaError::LeaseLost { lease: left }));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_begins_during_a_change_is_woken_by_it() {
    for turns in 0..8 {
        let store = Arc::new(Scripted::default());
        let metastore = of_node(&store, clock());
        metastore.put("k", vec![], Expected::Any, None).await.expect("puts");
        let begun = tokio::time::Instant::now();
        let put = async {
            for _ in 0..turns {
                yield_now().await;
            }
            metastore.put("k", vec![1], Expected::Any, None).await
        };
        let (woken, revision) = futures::join!(metastore.changed("k", 1), put);
        assert_eq!(woken, revision);
        assert!(begun.elapsed() < Duration::from_millis(100), "after {turns} turns: {:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn numbers_continue_after_those_of_metadata_that_moved_here() {
    let store = Arc::new(InMemory::new());
    let metastore = over(&store);
    metastore.continue_after(500, 7).await.expect("changes");
    assert!(metastore.put("k", vec![], Expected::Any, None).await.expect("puts") > 500 + (1 << 32));
    assert!(metastore.grant(Duration::from_secs(1)).await.expect("grants") > LeaseId(7 + (1 << 32)));
    let woken = tokio::time::timeout(Duration::from_secs(1), metastore.changed("none/", 400)).await;
    assert!(woken.is_ok(), "who waits since before the move looks again");
}

#[tokio::test]
async fn the_object_can_be_read_by_people_and_damage_is_noticed() {
    let store = Arc::new(InMemory::new());
    let metastore = over(&store);
    metastore.put("refs/mnist", b"{\"version\":\"x\"}".to_vec(), Expected::Any, None).await.expect("puts");
    let place = Path::from("meta/pointers");
    let bytes = store.get(&place).await.expect("there").bytes().await.expect("read").to_vec();
    let text = String::from_utf8(bytes.clone()).expect("text");
    assert!(text.starts_with("shardd-meta 1 ") && text.contains(r#""refs/mnist""#), "{text}");
    for at in [0, 20, bytes.len() - 9] {
        let mut spoiled = bytes.clone();
        spoiled[at] ^= 1;
        store.put(&place, spoiled.into()).await.expect("puts");
        let error = metastore.get("refs/mnist").await.expect_err("it is not the value that was put");
        assert!(matches!(&error, MetaError::Damaged { what, .. } if what == "meta/pointers"), "{error}");
    }
    let high = encode(&Document::high());
    store.put(&place, high.into()).await.expect("puts");
    let error = metastore.put("k", vec![], Expected::Any, None).await.expect_err("it cannot count on");
    assert!(error.to_string().contains("too high to be true"), "{error}");
}

#[tokio::test]
async fn nothing_of_a_race_is_left_and_no_one_races_twice() {
    let store = Arc::new(Scripted::default());
    over(&store).begin().await.expect("it can be kept there");
    let puts = store.puts();
    assert_eq!(puts, 4 * 8 + 1);
    over(&store).put("k", vec![], Expected::Any, None).await.expect("puts");
    assert_eq!(store.puts(), puts + 1);
    let left: Vec<_> = futures::TryStreamExt::try_collect(store.list(None)).await.expect("lists");
    assert_eq!(
        left.iter().map(|meta: &ObjectMeta| meta.location.as_ref()).collect::<Vec<_>>(),
        ["meta/pointers"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_breaks_its_conditions_is_refused() {
    for conditions in
        [Conditions::Ignored, Conditions::LookedAtBefore, Conditions::Unknown, Conditions::NoTags]
    {
        let store = Arc::new(Scripted { conditions, ..Scripted::default() });
        let error = over(&store).put("k", vec![], Expected::Any, None).await.expect_err("refused");
        assert!(matches!(error, MetaError::Unchangeable { .. }), "{conditions:?}: {error}");
        let said = error.to_string();
        let expected = match conditions {
            Conditions::Ignored => "of 8 that raced to replace the same object, 8 were granted",
            Conditions::LookedAtBefore => "do not hold",
            Conditions::Unknown => "a conditional put fails",
            Conditions::NoTags => "no ETag",
            Conditions::Kept => unreachable!("not in the list"),
        };
        assert!(said.contains(expected) && said.lines().count() == 1, "{conditions:?}: {said}");
        assert!(!over(&store).is_there().await.expect("answers"), "{conditions:?} left something");
    }
}

#[tokio::test(start_paused = true)]
async fn who_may_not_write_reads_and_sees_lapsed_leases_gone() {
    let store = Arc::new(Scripted::default());
    let writer = over(&store);
    writer.put("stays", b"1".to_vec(), Expected::Any, None).await.expect("puts");
    let lease = writer.grant(Duration::ZERO).await.expect("grants");
    writer.put("goes", b"2".to_vec(), Expected::Any, Some(lease)).await.expect("puts");
    let store: Arc<dyn ObjectStore> = Arc::new(Scripted {
        inner: store.inner.clone(),
        conditions: Conditions::Unknown,
        ..Scripted::default()
    });
    let later: SystemClock = Arc::new(|| SystemTime::now() + Duration::from_secs(60));
    let origin = Arc::new(Origin::over(store, "s3://closed", None));
    let reader = BucketMetastore::with_clock(origin, Pace::EMBEDDED, later, CLOCKS_DIFFER);
    let keys = |listing: Listing| listing.entries.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(keys(reader.list("").await.expect("reads")), ["stays"]);
    assert_eq!(keys(writer.list("").await.expect("reads")), ["goes", "stays"]);
    let refused = reader.put("k", vec![], Expected::Any, None).await.expect_err("it cannot write");
    assert!(matches!(refused, MetaError::Unchangeable { .. }), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_puts_leaves_the_outcome_open() {
    let store = Arc::new(Scripted::default());
    let metastore = over(&store);
    metastore.put("k", b"1".to_vec(), Expected::Any, None).await.expect("puts");
    store.script.lock().expect("held shortly").extend([Fault::NotDone; 40]);
    let error = metastore.put("k", b"2".to_vec(), Expected::Any, None).await.expect_err("no answer");
    assert!(error.to_string().contains("not known whether a change was made"), "{error}");
}

#[tokio::test]
async fn what_would_not_fit_is_refused_and_what_is_there_stays() {
    let store = Arc::new(InMemory::new());
    let metastore = over(&store);
    metastore.put("k", b"1".to_vec(), Expected::Any, None).await.expect("puts");
    let long = vec![0; MAX_BYTES as usize + 1];
    store.put(&Path::from("meta/pointers"), long.into()).await.expect("puts");
    let error = metastore.get("k").await.expect_err("too long to be read");
    assert!(error.to_string().contains("more than"), "{error}");
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        3 => Just(Fault::None),
        1 => Just(Fault::NotDone),
        1 => Just(Fault::AnswerLost),
        1 => Just(Fault::SaysLost),
        1 => Just(Fault::Late),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn of_every_change_what_is_said_is_true(faults in prop::collection::vec(fault(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("runtime").block_on(count_on(faults));
    }
}

/// Three count on in the same key, over a network that fails: the answers to each add up to the value.
async fn count_on(faults: Vec<Fault>) {
    let store = Arc::new(Scripted::default());
    over(&store).put("count", vec![0], Expected::Absent, None).await.expect("nothing fails yet");
    store.script.lock().expect("held shortly").extend(faults);
    let counter = async |metastore: BucketMetastore| {
        let (mut done, mut open) = (0, 0);
        for _ in 0..6 {
            let entry = metastore.get("count").await.expect("reads do not fail").expect("there");
            let next = vec![entry.value[0] + 1];
            match metastore.put("count", next, Expected::At(entry.revision), None).await {
                Ok(_) => done += 1,
                Err(MetaError::Conflict { .. }) => {}
                Err(MetaError::Unavailable { .. }) => open += 1,
                Err(other) => panic!("{other}"),
            }
        }
        (done, open)
    };
    let counted = futures::future::join_all((0..3).map(|_| counter(over(&store)))).await;
    let (done, open) = counted.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let there = over(&store).get("count").await.expect("reads").expect("there").value[0];
    assert!((done..=done + open).contains(&there), "{done} were done, {open} left open: {there} are there");
}

/// The fate of a put.
#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    /// It gets lost.
    NotDone,
    /// It is done; the answer gets lost.
    AnswerLost,
    /// It is done; the answer gets lost, and is asked for again.
    SaysLost,
    /// It gets lost on the way, and arrives after the next one.
    Late,
}

/// A store's treatment of conditions.
#[derive(Debug, Clone, Copy, Default)]
enum Conditions {
    #[default]
    Kept,
    Ignored,
    LookedAtBefore,
    Unknown,
    NoTags,
}

/// A store in memory that follows a script; everything takes its turn.
#[derive(Debug, Default)]
struct Scripted {
    inner: Arc<InMemory>,
    conditions: Conditions,
    script: Mutex<VecDeque<Fault>>,
    late: Mutex<Vec<(Path, PutPayload, PutOptions)>>,
    counts: Mutex<(usize, usize)>,
}

impl Scripted {
    fn gets(&self) -> usize {
        self.counts.lock().expect("held shortly").0
    }

    fn puts(&self) -> usize {
        self.counts.lock().expect("held shortly").1
    }

    async fn deliver(&self) {
        let late = std::mem::take(&mut *self.late.lock().expect("held shortly"));
        for (path, payload, options) in late {
            // No caller waits for the answer.
            let _ = self.inner.put_opts(&path, payload, options).await;
        }
    }

    async fn put_as_told(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        let put = match (self.conditions, &options.mode) {
            (Conditions::Unknown, PutMode::Create | PutMode::Update(_)) => {
                return Err(Error::NotImplemented {
                    operation: "If-Match".into(),
                    implementer: "test".into(),
                });
            }
            (Conditions::Ignored, _) => self.inner.put(path, payload).await?,
            (Conditions::LookedAtBefore, mode) => {
                let present = self.inner.head(path).await.ok().and_then(|meta| meta.e_tag);
                let holds = match mode {
                    PutMode::Create => present.is_none(),
                    PutMode::Update(version) => present == version.e_tag,
                    PutMode::Overwrite => true,
                };
                if !holds {
                    return Err(Error::Precondition { path: path.to_string(), source: "it differs".into() });
                }
                yield_now().await;
                self.inner.put(path, payload).await?
            }
            _ => self.inner.put_opts(path, payload, options).await?,
        };
        Ok(match self.conditions {
            Conditions::NoTags => PutResult { e_tag: None, ..put },
            _ => put,
        })
    }
}

impl fmt::Display for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("scripted")
    }
}

fn silence() -> Error {
    Error::Generic { store: "test", source: "the connection was reset".into() }
}

#[async_trait]
impl ObjectStore for Scripted {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        self.counts.lock().expect("held shortly").1 += 1;
        yield_now().await;
        let fault = self.script.lock().expect("held shortly").pop_front().unwrap_or(Fault::None);
        let outcome = match fault {
            Fault::None => self.put_as_told(path, payload, options).await,
            Fault::NotDone => Err(silence()),
            Fault::AnswerLost => self.put_as_told(path, payload, options).await.and_then(|_| Err(silence())),
            Fault::SaysLost => {
                self.put_as_told(path, payload.clone(), options.clone()).await?;
                self.put_as_told(path, payload, options).await
            }
            Fault::Late => {
                self.late.lock().expect("held shortly").push((path.clone(), payload, options));
                return Err(silence());
            }
        };
        self.deliver().await;
        yield_now().await;
        outcome
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.counts.lock().expect("held shortly").0 += 1;
        yield_now().await;
        let mut found = self.inner.get_opts(path, options).await;
        if let (Conditions::NoTags, Ok(found)) = (self.conditions, &mut found) {
            found.meta.e_tag = None;
        }
        yield_now().await;
        found
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
