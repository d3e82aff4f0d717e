//! After any history exactly the reachable objects are there; a commit beside a gc is whole or refused; an
//! unreadable pointer stops gc before it deletes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use futures::future::{join, join_all};
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use proptest::prelude::*;
use shardd_plan::{PlanDocument, PlanOptions, Shape, Strata};
use shardfmt::{Commit, DatasetRef, FinishedShard, Manifest, Operation, ShardWriter, TagName};
use tokio::time::sleep;

use super::*;
use crate::catalog::records::to_json;
use crate::catalog::{CommitNote, TagExpected};
use crate::metastore::{MemoryMetastore, Metastore};
use crate::origin::Origin;

const NOW: GcOptions = GcOptions { dry_run: false, older_than_s: 0 };
const SHARDS: i64 = 5;

/// The shards that all versions of these tests are made of.
fn shards() -> &'static [FinishedShard] {
    static SHARDS_ONCE: OnceLock<Vec<FinishedShard>> = OnceLock::new();
    SHARDS_ONCE.get_or_init(|| {
        let shard = |n: i64| {
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(n * 100..n * 100 + 20));
            let batch = RecordBatch::try_from_iter([("number", numbers)]).expect("one column");
            let mut writer = ShardWriter::new(batch.schema()).expect("plain columns");
            writer.push(&batch).expect("rows of the schema");
            writer.finish().expect("rows")
        };
        (0..SHARDS).map(shard).collect()
    })
}

/// The shards whose bits are set.
fn chosen(mask: u8) -> impl Iterator<Item = &'static FinishedShard> {
    shards().iter().enumerate().filter(move |(n, _)| mask & (1 << n) != 0).map(|(_, shard)| shard)
}

fn manifest(mask: u8) -> Manifest {
    let schema = shardfmt::Shard::from_bytes(shards()[0].bytes.clone()).expect("own shard").schema().clone();
    let shards = chosen(mask).map(|shard| shard.entry.clone()).collect();
    Manifest::new(schema, shards, serde_json::json!({}))
}

fn plan(mask: u8, seed: u64) -> PlanDocument {
    let manifest = manifest(mask);
    let shard_rows = manifest.shards.iter().map(|shard| shard.rows).collect();
    let shape = Shape { shard_rows, row_bytes: manifest.row_bytes() };
    // Some plans are stratified; those of one number of samples have the same strata.
    let strata = (seed == 1).then(|| {
        let names = ["even", "odd"].map(str::to_owned).to_vec();
        let of_sample: Vec<u16> = (0..manifest.sample_count()).map(|sample| (sample % 2) as u16).collect();
        Arc::new(Strata::new("number", names, &of_sample).expect("each is even or odd"))
    });
    let options = PlanOptions { seed, strata, ..PlanOptions::default() };
    PlanDocument::with_defaults(manifest.id(), &shape, options).expect("fits")
}

fn name(n: u8) -> DatasetName {
    format!("d{n}").parse().expect("a name")
}

fn tag(n: u8) -> TagName {
    format!("t{n}").parse().expect("a tag")
}

fn ingested() -> CommitNote {
    CommitNote::of(Operation::INGEST)
}

fn over(origin: Origin) -> CatalogBackend {
    CatalogBackend::new(Arc::new(origin), Arc::new(MemoryMetastore::new()))
}

fn in_memory() -> CatalogBackend {
    over(Origin::open("memory://").expect("opens"))
}

impl CatalogBackend {
    async fn upload(&self, mask: u8) -> VersionId {
        for shard in chosen(mask) {
            self.origin().put_shard(shard).await.expect("puts");
        }
        self.origin().put_manifest(&manifest(mask)).await.expect("puts")
    }

    /// Commits a version on top of whatever is there.
    async fn advance(&self, dataset: u8, mask: u8) -> Result<CommitId, CatalogError> {
        let name = name(dataset);
        let present = self.resolve(&name.clone().into()).await.ok().map(|info| info.version);
        Ok(self.commit(&name, present, manifest(mask).id(), &ingested()).await?.commit)
    }

    /// The keys of all objects that gc may delete.
    async fn keys(&self) -> BTreeSet<String> {
        let objects: Vec<StoredObject> = self.origin().objects().try_collect().await.expect("lists");
        let deletable = |kind| !matches!(kind, ObjectKind::Catalog | ObjectKind::Clock);
        let objects = objects.into_iter().filter(|object| deletable(object.kind));
        objects.map(|object| object.key).collect()
    }

    async fn assert_whole(&self, version: VersionId) {
        for entry in self.manifest(version).await.expect("reads").shards {
            self.origin().shard(&entry).await.expect("reads");
            self.origin().sidecar(&entry).await.expect("reads");
        }
    }
}

/// An event at a catalog.
#[derive(Debug, Clone)]
enum Event {
    Upload { mask: u8 },
    Commit { dataset: u8, mask: u8 },
    Tag { dataset: u8, tag: u8, back: u64 },
    Untag { dataset: u8, tag: u8 },
    Remove { dataset: u8 },
    Prune { dataset: u8, back: usize },
    Plan { mask: u8, seed: u64 },
    RemovePlan { mask: u8, seed: u64 },
    Run { run: u8, mask: u8, seed: u64 },
    Gc,
}

fn event() -> impl Strategy<Value = Event> {
    let (dataset, tag, seed) = (0u8..3, 0u8..2, 0u64..2);
    let mask = 1u8..1 << SHARDS;
    prop_oneof![
        2 => mask.clone().prop_map(|mask| Event::Upload { mask }),
        6 => (dataset.clone(), mask.clone()).prop_map(|(dataset, mask)| Event::Commit { dataset, mask }),
        3 => (dataset.clone(), tag.clone(), 0u64..3).prop_map(|(dataset, tag, back)| Event::Tag { dataset, tag, back }),
        1 => (dataset.clone(), tag).prop_map(|(dataset, tag)| Event::Untag { dataset, tag }),
        2 => dataset.clone().prop_map(|dataset| Event::Remove { dataset }),
        2 => (dataset, 0usize..3).prop_map(|(dataset, back)| Event::Prune { dataset, back }),
        3 => (mask.clone(), seed.clone()).prop_map(|(mask, seed)| Event::Plan { mask, seed }),
        1 => (mask.clone(), seed.clone()).prop_map(|(mask, seed)| Event::RemovePlan { mask, seed }),
        1 => (0u8..2, mask, seed).prop_map(|(run, mask, seed)| Event::Run { run, mask, seed }),
        2 => Just(Event::Gc),
    ]
}

/// The expected objects.
#[derive(Default)]
struct Model {
    histories: BTreeMap<u8, Vec<(CommitId, u8)>>,
    tags: BTreeMap<(u8, u8), (CommitId, u8)>,
    plans: BTreeSet<(u8, u64)>,
    runs: BTreeMap<u8, (u8, u64)>,
}

impl Model {
    fn commits(&self) -> impl Iterator<Item = &(CommitId, u8)> {
        self.histories.values().flatten().chain(self.tags.values())
    }

    fn plans(&self) -> impl Iterator<Item = &(u8, u64)> {
        self.plans.iter().chain(self.runs.values())
    }

    fn masks(&self) -> BTreeSet<u8> {
        self.commits().map(|(_, mask)| *mask).chain(self.plans().map(|(mask, _)| *mask)).collect()
    }

    fn keys(&self) -> BTreeSet<String> {
        let masks = self.masks();
        let commits = self.commits().map(|(id, _)| id.object_key());
        let plans = self.plans().flat_map(|(mask, seed)| {
            let plan = plan(*mask, *seed);
            let strata = plan.strata.as_ref().map(|strata| strata.id().object_key());
            [plan.id().object_key()].into_iter().chain(strata)
        });
        let manifests = masks.iter().map(|mask| manifest(*mask).id().object_key());
        let shards = masks.iter().flat_map(|mask| chosen(*mask)).map(|shard| shard.id);
        let files = shards.flat_map(|id| [id.object_key(), id.sidecar_key()]);
        commits.chain(plans).chain(manifests).chain(files).collect()
    }

    /// Lets it happen to the catalog and here, if it can.
    async fn happens(&mut self, event: &Event, catalog: &CatalogBackend) {
        match *event {
            Event::Upload { mask } => {
                catalog.upload(mask).await;
            }
            Event::Commit { dataset, mask } => {
                catalog.upload(mask).await;
                let commit = catalog.advance(dataset, mask).await.expect("all of it is there");
                let history = self.histories.entry(dataset).or_default();
                if history.last().is_none_or(|(id, _)| *id != commit) {
                    history.push((commit, mask));
                }
            }
            Event::Tag { dataset, tag: n, back } => {
                let reference: DatasetRef =
                    format!("{}@~{back}", name(dataset)).parse().expect("a reference");
                let found = catalog.resolve(&reference).await;
                let index = self.histories.get(&dataset).and_then(|h| h.len().checked_sub(1 + back as usize));
                assert_eq!(found.is_ok(), index.is_some(), "{found:?}");
                if let (Ok(found), Some(index)) = (found, index) {
                    let commit = self.histories[&dataset][index];
                    assert_eq!(found.commit, commit.0);
                    let (dataset_name, tag_name) = (name(dataset), tag(n));
                    let set = catalog.put_tag(&dataset_name, &tag_name, found.commit, TagExpected::Any);
                    set.await.expect("sets");
                    self.tags.insert((dataset, n), commit);
                }
            }
            Event::Untag { dataset, tag: n } => {
                let removed = match self.tags.remove(&(dataset, n)) {
                    Some((_, mask)) => catalog.remove_tag(&name(dataset), &tag(n), manifest(mask).id()).await,
                    None => Ok(()),
                };
                removed.expect("it was there");
            }
            Event::Remove { dataset } => {
                if let Some((_, mask)) =
                    self.histories.remove(&dataset).and_then(|history| history.last().copied())
                {
                    catalog.remove_dataset(&name(dataset), manifest(mask).id()).await.expect("it was there");
                }
            }
            Event::Prune { dataset, back } => {
                let history = self.histories.entry(dataset).or_default();
                if let Some(cut) = history.len().checked_sub(1 + back) {
                    let pruned = catalog.prune(&name(dataset), history[cut].0).await.expect("it is there");
                    assert_eq!(pruned as usize, cut);
                    history.drain(..cut);
                }
                self.histories.retain(|_, history| !history.is_empty());
            }
            Event::Plan { mask, seed } => {
                // A removed version can be planned until it is collected.
                if catalog.put_plan(&plan(mask, seed)).await.is_ok() {
                    self.plans.insert((mask, seed));
                } else {
                    assert!(!self.masks().contains(&mask));
                }
            }
            Event::RemovePlan { mask, seed } => {
                let used = self.runs.values().any(|run| *run == (mask, seed));
                let removed = catalog.remove_plan(plan(mask, seed).id()).await;
                assert_eq!(removed.is_ok(), self.plans.contains(&(mask, seed)) && !used, "{removed:?}");
                if removed.is_ok() {
                    self.plans.remove(&(mask, seed));
                }
            }
            Event::Run { run, mask, seed } => {
                if self.plans.contains(&(mask, seed)) && !self.runs.contains_key(&run) {
                    let plan = plan(mask, seed);
                    let id: shardd_api::protocol::RunId = format!("r{run}").parse().expect("a run");
                    let key = format!("{RUNS}{id}");
                    let (version, plan) = (plan.version, plan.id());
                    let record = RunRecord {
                        id,
                        plan,
                        version,
                        virtual_ranks: 1,
                        began: None,
                        left: None,
                        interrupted: false,
                        removing: false,
                    };
                    let put = catalog.metastore().put(&key, to_json(&record), Expected::Absent, None);
                    put.await.expect("puts");
                    self.runs.insert(run, (mask, seed));
                }
            }
            Event::Gc => self.gc(catalog).await,
        }
    }

    async fn gc(&self, catalog: &CatalogBackend) {
        let before = catalog.keys().await;
        let planned = catalog.gc(&GcOptions { dry_run: true, ..NOW }).await.expect("looks");
        assert_eq!(catalog.keys().await, before, "a dry run changes nothing");
        let done = catalog.gc(&NOW).await.expect("deletes");
        assert_eq!(GcReport { dry_run: true, ..done.clone() }, planned, "and says what will be");
        let after = catalog.keys().await;
        assert_eq!(after, self.keys());
        assert_eq!(done.total().objects as usize, before.len() - after.len());
        for mask in self.masks() {
            catalog.assert_whole(manifest(mask).id()).await;
        }
        for (dataset, history) in &self.histories {
            let log = catalog.log(&name(*dataset), 1000).await.expect("walks");
            assert!(log.iter().rev().map(|entry| entry.id).eq(history.iter().map(|(id, _)| *id)));
        }
    }
}

/// Lets a millisecond of a paused clock pass whenever a thread has had its turn. By itself the clock stands still while a
/// thread works, even one that waits for the clock, as do those that read manifests from a slow store.
async fn passing() {
    loop {
        tokio::task::spawn_blocking(std::thread::yield_now).await.expect("it does nothing");
        tokio::time::advance(Duration::from_millis(1)).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn after_any_history_exactly_what_is_reached_is_there(events in prop::collection::vec(event(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let catalog = in_memory();
            let mut model = Model::default();
            for event in &events {
                model.happens(event, &catalog).await;
            }
            model.gc(&catalog).await;
        });
    }

    /// Commits, tags and plans of what nothing reached a moment before, while it is deleted, in any interleaving.
    #[test]
    fn what_is_pointed_at_beside_a_gc_is_whole_or_refused(
        [put, get, list, delete] in prop::array::uniform4(0u64..12),
        starts in prop::collection::vec((0u64..150, 0u8..3, 1u8..1 << SHARDS), 1..12),
        gcs in prop::collection::vec(0u64..100, 1..3),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let millis = Duration::from_millis;
            let store = Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()));
            let catalog = over(Origin::over(store.clone(), "memory", None));
            for mask in 1..1 << SHARDS {
                catalog.upload(mask).await;
                // Planned versions need to have been committed once.
                catalog.advance(9, mask).await.expect("all of it is there");
            }
            let last = catalog.resolve(&name(9).into()).await.expect("committed").version;
            catalog.remove_dataset(&name(9), last).await.expect("removed");
            store.config_mut(|config| *config = ThrottleConfig {
                wait_put_per_call: millis(put),
                wait_get_per_call: millis(get),
                wait_list_per_call: millis(list),
                wait_delete_per_call: millis(delete),
                ..ThrottleConfig::default()
            });
            let collecting = join_all(gcs.iter().map(async |start| {
                sleep(millis(*start)).await;
                match catalog.gc(&NOW).await {
                    Ok(_) | Err(CatalogError::Busy { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }));
            let pointing = join_all(starts.iter().map(async |(start, what, mask)| {
                sleep(millis(*start)).await;
                let refused = match what {
                    0 => catalog.put_plan(&plan(*mask, 0)).await.err(),
                    _ => catalog.advance(*what, *mask).await.err(),
                };
                match refused {
                    None
                    | Some(
                        CatalogError::NotFound { .. }
                        | CatalogError::Incomplete { .. }
                        | CatalogError::Conflict { .. },
                    ) => {}
                    Some(error) => panic!("{error}"),
                }
            }));
            tokio::select! {
                _ = join(collecting, pointing) => {}
                () = passing() => {}
            }
            for info in catalog.datasets().await.expect("lists") {
                for entry in catalog.log(&info.name, 1000).await.expect("walks") {
                    catalog.assert_whole(entry.commit.version).await;
                }
            }
            for info in catalog.plans().await.expect("lists") {
                catalog.plan(info.id).await.expect("reads");
                catalog.assert_whole(info.version).await;
            }
        });
    }
}

/// A catalog in a directory, where objects can be made older than they are.
struct Aged {
    dir: tempfile::TempDir,
    catalog: CatalogBackend,
}

impl Aged {
    fn new() -> Self {
        let dir = tempfile::TempDir::new().expect("temporary directory");
        let catalog = over(Origin::open_dir(dir.path()).expect("opens"));
        Self { dir, catalog }
    }

    fn age(&self, key: &str, age: Duration) {
        let file = std::fs::File::options().write(true).open(self.dir.path().join(key)).expect("an object");
        file.set_modified(std::time::SystemTime::now() - age).expect("dates it");
    }

    async fn age_all(&self, age: Duration) {
        self.catalog.keys().await.iter().for_each(|key| self.age(key, age));
    }
}

const TWO_HOURS: Duration = Duration::from_secs(7200);
#[tokio::test]
async fn an_ingest_under_way_loses_nothing_to_a_gc_that_is_told_to_spare_nothing() {
    let hour = Duration::from_secs(3600);
    let catalog = in_memory();
    // Garbage of a version that was committed once, one shard of which is in the next version as well.
    catalog.upload(0b0011).await;
    catalog.advance(0, 0b0011).await.expect("all of it is there");
    catalog.remove_dataset(&name(0), manifest(0b0011).id()).await.expect("it is there");
    for shard in chosen(0b1100) {
        catalog.origin().put_shard(shard).await.expect("puts");
    }
    let report = catalog.gc_sparing(&NOW, hour).await.expect("deletes");
    assert_eq!(
        (report.shards.objects, report.manifests.objects, report.young.objects),
        (2, 1, 4),
        "{report:?}"
    );
    catalog.origin().put_manifest(&manifest(0b1100)).await.expect("puts");
    let report = catalog.gc_sparing(&NOW, hour).await.expect("deletes");
    assert_eq!((report.total().objects, report.young.objects), (0, 5), "{report:?}");
    catalog.advance(1, 0b1100).await.expect("nothing of it is missing");
    catalog.assert_whole(manifest(0b1100).id()).await;

    catalog.remove_dataset(&name(1), manifest(0b1100).id()).await.expect("it is there");
    assert_eq!(catalog.gc_sparing(&NOW, hour).await.expect("deletes").shards.objects, 2, "it was committed");
    catalog.upload(0b0001).await;
    assert_eq!(catalog.gc(&NOW).await.expect("deletes").shards.objects, 1, "where no one else can upload");
}

const HOUR: GcOptions = GcOptions { dry_run: false, older_than_s: 3600 };

#[tokio::test]
async fn what_is_young_stays_and_so_does_what_a_young_manifest_names() {
    let aged = Aged::new();
    let catalog = &aged.catalog;
    let version = catalog.upload(0b111).await;
    assert_eq!(catalog.gc(&HOUR).await.expect("deletes").total(), Tally::default());
    aged.age_all(TWO_HOURS).await;
    aged.age(&version.object_key(), Duration::ZERO);
    let report = catalog.gc(&HOUR).await.expect("deletes");
    assert_eq!(
        (report.total().objects, report.young.objects),
        (0, 7),
        "a manifest, three shards and their sidecars"
    );
    aged.age_all(TWO_HOURS).await;
    let report = catalog.gc(&HOUR).await.expect("deletes");
    assert_eq!((report.manifests.objects, report.shards.objects, report.sidecars.objects), (1, 3, 3));
    assert_eq!(catalog.keys().await, BTreeSet::new());
}

#[tokio::test]
async fn what_an_ingest_puts_again_is_young_again() {
    let aged = Aged::new();
    let catalog = &aged.catalog;
    catalog.upload(0b11).await;
    aged.age_all(TWO_HOURS).await;
    catalog.upload(0b11).await;
    assert_eq!(catalog.gc(&HOUR).await.expect("deletes").total(), Tally::default());
    catalog.advance(0, 0b11).await.expect("nothing is missing");
}

#[tokio::test]
async fn a_root_that_cannot_be_followed_stops_gc_and_is_named() {
    let catalog = in_memory();
    for mask in [0b1, 0b11, 0b111] {
        catalog.upload(mask).await;
        catalog.advance(0, mask).await.expect("commits");
    }
    catalog.upload(0b1000).await;
    let log = catalog.log(&name(0), 9).await.expect("walks");
    let [_, middle, first] = &log[..] else { panic!("three") };
    let all = catalog.keys().await;

    let manifest = first.commit.version.object_key();
    let bytes = catalog.origin().manifest_bytes(first.commit.version).await.expect("reads");
    catalog.origin().delete(vec![manifest.clone()]).await.expect("deletes");
    let error = catalog.gc(&NOW).await.expect_err("a version is missing");
    assert!(matches!(&error, CatalogError::Unreadable { root, .. } if root == "dataset d0"), "{error:?}");
    assert_eq!(catalog.keys().await.len(), all.len() - 1, "nothing more was deleted");
    catalog.origin().put_manifest_bytes(first.commit.version, bytes).await.expect("restores");

    catalog.origin().delete(vec![middle.id.object_key()]).await.expect("deletes");
    for error in [
        catalog.gc(&NOW).await.expect_err("a commit is missing"),
        catalog.log(&name(0), 9).await.expect_err("a commit is missing"),
        catalog.resolve(&"d0@~2".parse().expect("a reference")).await.expect_err("a commit is missing"),
    ] {
        let broken = match &error {
            CatalogError::Unreadable { source, .. } => source,
            error => error,
        };
        assert!(
            matches!(broken, CatalogError::BrokenHistory { commit, .. } if *commit == middle.id),
            "{error:?}"
        );
    }
    assert_eq!(catalog.keys().await.len(), all.len() - 1, "nothing more was deleted");
    catalog.origin().put_commit(&middle.commit).await.expect("restores");
    assert_eq!(catalog.gc(&NOW).await.expect("deletes").manifests.objects, 1);
}

#[tokio::test]
async fn commits_that_do_not_lead_back_are_no_history() {
    let catalog = in_memory();
    catalog.upload(0b1).await;
    catalog.advance(0, 0b1).await.expect("commits");
    let entry = catalog.log(&name(0), 1).await.expect("walks").remove(0);
    let forged = [
        (Commit { number: 7, parent: Some(entry.id), ..entry.commit.clone() }, 7, "number 6 should be"),
        (Commit { number: 7, parent: Some(entry.id), ..entry.commit.clone() }, 2, "number 2 should be"),
        (Commit { dataset: name(1), ..entry.commit }, 1, "it is one of d1"),
    ];
    for (commit, commits, said) in forged {
        let id = catalog.origin().put_commit(&commit).await.expect("puts");
        let record = RefRecord { commits, ..RefRecord::of(id, &commit, 1) };
        catalog.metastore().put("refs/d0", to_json(&record), Expected::Any, None).await.expect("puts");
        let error = catalog.log(&name(0), 9).await.expect_err("it leads nowhere").to_string();
        assert!(error.contains("history of d0") && error.contains(said), "{error}");
        assert!(matches!(catalog.gc(&NOW).await, Err(CatalogError::Unreadable { .. })));
    }
}

#[tokio::test]
async fn what_is_not_of_shardd_is_counted_and_stays() {
    let aged = Aged::new();
    for name in ["README", "shards/notes.txt"] {
        let path = aged.dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
        std::fs::write(path, "mine").expect("writes");
    }
    aged.catalog.upload(0b1).await;
    let report = aged.catalog.gc(&NOW).await.expect("deletes");
    assert_eq!(report.unknown, Tally { objects: 2, bytes: 8 });
    assert_eq!(report.unknown_keys, ["README", "shards/notes.txt"]);
    assert_eq!(report.total().objects, 3);
    assert!(aged.dir.path().join("README").exists() && aged.dir.path().join("shards/notes.txt").exists());
}

#[tokio::test]
async fn what_killed_uploads_left_in_a_directory_goes_once_it_is_old() {
    let aged = Aged::new();
    let shard = shards()[0].id.object_key();
    let left = [format!("{shard}#1"), format!("{shard}#23"), "README#1".to_owned()];
    aged.catalog.upload(0b1).await;
    for name in &left {
        std::fs::write(aged.dir.path().join(name), "half").expect("writes");
    }
    let there = || left.each_ref().map(|name| aged.dir.path().join(name).exists());
    aged.age(&left[0], TWO_HOURS);
    aged.age(&left[2], TWO_HOURS);
    let dry = aged.catalog.gc(&GcOptions { dry_run: true, ..HOUR }).await.expect("looks");
    assert_eq!((dry.leftovers, there()), (Tally { objects: 1, bytes: 4 }, [true; 3]));
    let done = aged.catalog.gc(&NOW).await.expect("deletes");
    assert_eq!((done.leftovers, there()), (dry.leftovers, [false, true, true]), "one may still be written");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_slow_to_delete_is_named_and_delays_a_commit_no_longer_than_a_sweep_lives() {
    let store = Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()));
    let catalog = over(Origin::over(store.clone(), "molasses", None));
    catalog.upload(0b1).await;
    store.config_mut(|config| config.wait_delete_per_call = SLICE_TAKES * 2);
    let error = catalog.gc(&NOW).await.expect_err("it is not confirmed").to_string();
    assert!(error.contains("molasses has not confirmed within 30 s"), "{error}");
    catalog.upload(0b10).await;
    catalog.advance(0, 0b10).await.expect("it waits until the sweep has lapsed");
}

#[tokio::test]
async fn a_store_that_another_catalog_uses_is_not_touched() {
    let mine = in_memory();
    let metastore: Arc<dyn Metastore> = Arc::new(MemoryMetastore::new());
    let other = CatalogBackend::new(mine.origin().clone(), metastore);
    mine.upload(0b11).await;
    other.advance(0, 0b11).await.expect("the shards are there");
    for options in [GcOptions { dry_run: true, ..NOW }, NOW] {
        let error = mine.gc(&options).await.expect_err("the other's names are not here").to_string();
        assert!(error.contains("also that of catalog"), "{error}");
    }
    other.assert_whole(manifest(0b11).id()).await;
}

#[tokio::test]
async fn records_from_before_there_were_commits_begin_a_history() {
    let catalog = in_memory();
    let version = catalog.upload(0b11).await;
    let record = serde_json::json!(
        { "version": version, "samples": 40, "bytes": 7, "shards": 2, "committed_at": 1_700_000_000 }
    );
    catalog.metastore().put("refs/d0", to_json(&record), Expected::Absent, None).await.expect("puts");
    let info = catalog.resolve(&name(0).into()).await.expect("reads");
    assert_eq!((info.version, info.commits, info.samples), (version, 1, 40));
    let log = catalog.log(&name(0), 9).await.expect("walks");
    assert_eq!(log.iter().map(|entry| entry.id).collect::<Vec<_>>(), [info.commit]);
    assert_eq!(catalog.gc(&NOW).await.expect("deletes").total(), Tally::default(), "it is reached");

    catalog.put_tag(&name(0), &tag(0), info.commit, TagExpected::Absent).await.expect("tags");
    catalog.upload(0b111).await;
    catalog.advance(0, 0b111).await.expect("commits");
    let log = catalog.log(&name(0), 9).await.expect("walks");
    assert_eq!((log.len(), log[0].commit.parent, log[1].id), (2, Some(info.commit), info.commit));
    assert_eq!(catalog.resolve(&"d0@t0".parse().expect("a reference")).await.expect("reads"), info);
    assert_eq!(catalog.gc(&NOW).await.expect("deletes").total(), Tally::default());
}
