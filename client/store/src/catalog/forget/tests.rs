//! After a forget no object of the store has a byte of the rows, all other objects are unchanged, and a
//! killed forget is finished.

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::buffer::Buffer;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use proptest::prelude::*;
use shardd_api::protocol::{RanksRecord, RunId, RunRecord};
use shardd_ingest::version::{Base, Store, VersionError, forget};
use shardd_ingest::{NoProgress, Sink};
use shardd_plan::{PlanDocument, PlanOptions, Shape};
use shardfmt::{FinishedShard, Operation, ShardEntry, ShardWriter};
use tokio::runtime::Runtime;

use super::*;
use crate::catalog::records::RUNS;
use crate::catalog::{CommitNote, GcOptions, TagExpected};
use crate::metastore::MemoryMetastore;
use crate::origin::Origin;

const ROWS: usize = 40;

/// A catalog whose objects can be looked into.
struct Here {
    store: Arc<InMemory>,
    catalog: CatalogBackend,
    runtime: Runtime,
}

/// Bytes that no other row has.
fn text(row: usize) -> String {
    format!("row {row:04} of the person")
}

fn shard(rows: &[usize]) -> FinishedShard {
    let texts: ArrayRef = Arc::new(rows.iter().map(|row| Some(text(*row))).collect::<StringArray>());
    let batch = RecordBatch::try_from_iter([("text", texts)]).expect("one column");
    let mut writer = ShardWriter::new(batch.schema()).expect("plain columns");
    writer.push(&batch).expect("rows of the schema");
    writer.finish().expect("rows")
}

fn digest(row: usize) -> RowDigest {
    shard(&[row]).sidecar.rows[0]
}

fn name(dataset: usize) -> DatasetName {
    format!("d{dataset}").parse().expect("a name")
}

fn asked(rows: &BTreeSet<usize>, dry_run: bool) -> Forget {
    Forget { rows: rows.iter().map(|row| digest(*row)).collect(), dry_run, ..Forget::default() }
}

impl Here {
    fn new() -> Self {
        let store = Arc::new(InMemory::new());
        let origin = Arc::new(Origin::over(store.clone(), "memory", None));
        let catalog = CatalogBackend::new(origin, Arc::new(MemoryMetastore::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        Self { store, catalog, runtime }
    }

    fn block<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Commits a version of rows, cut into shards of this many.
    fn commit(&self, dataset: usize, rows: &[usize], length: usize) -> Manifest {
        let shards: Vec<FinishedShard> = rows.chunks(length).map(shard).collect();
        let schema =
            shardfmt::Shard::from_bytes(shards[0].bytes.clone()).expect("own shard").schema().clone();
        let entries = shards.iter().map(|shard| shard.entry.clone()).collect();
        let manifest = Manifest::new(schema, entries, serde_json::json!({}));
        shards.iter().for_each(|shard| self.block(self.catalog.origin().put_shard(shard)).expect("puts"));
        self.commit_manifest(dataset, &manifest, Operation::INGEST);
        manifest
    }

    fn commit_manifest(&self, dataset: usize, manifest: &Manifest, operation: Operation) {
        let version = self.block(self.catalog.origin().put_manifest(manifest)).expect("puts");
        let present = self.present(dataset).map(|(present, _)| present);
        let (name, note) = (name(dataset), CommitNote::of(operation));
        self.block(self.catalog.commit(&name, present, version, &note)).expect("commits");
    }

    fn present(&self, dataset: usize) -> Option<(VersionId, Manifest)> {
        let info = self.block(self.catalog.resolve(&name(dataset).into())).ok()?;
        Some((info.version, self.block(self.catalog.manifest(info.version)).expect("reads")))
    }

    /// The texts of the present version, in order.
    fn texts(&self, dataset: usize) -> Vec<String> {
        let Some((_, manifest)) = self.present(dataset) else { return Vec::new() };
        let of = |entry: &ShardEntry| -> Vec<String> {
            let bytes = self.block(self.catalog.origin().shard(entry)).expect("reads");
            let shard = Shard::from_bytes(bytes).expect("a shard");
            let columns = shard.record_batches().iter().map(|batch| batch.column(0).clone());
            let texts = columns.flat_map(|column| {
                let texts = column.as_any().downcast_ref::<StringArray>().expect("texts");
                texts.iter().map(|text| text.expect("no nulls").to_owned()).collect::<Vec<_>>()
            });
            texts.collect()
        };
        manifest.shards.iter().flat_map(of).collect()
    }

    /// Commits versions without the rows, if present ones have them.
    fn clean(&self, dataset: usize, rows: &BTreeSet<usize>) {
        let Some((id, manifest)) = self.present(dataset) else { return };
        let rows: BTreeSet<RowDigest> = rows.iter().map(|row| digest(*row)).collect();
        match forget(Base { id, manifest: &manifest, provenance: None }, &rows, self, 2, self, &NoProgress) {
            Ok(left) if left.shards == manifest.shards => {}
            Ok(left) => self.commit_manifest(dataset, &left, Operation::FORGET),
            Err(VersionError::NothingLeft) => {
                self.block(self.catalog.remove_dataset(&name(dataset), id)).expect("it is there");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn plan(&self, manifest: &Manifest) -> Option<(PlanId, VersionId)> {
        let shape = Shape { shard_rows: manifest.shard_rows(), row_bytes: manifest.row_bytes() };
        let document = PlanDocument::with_defaults(manifest.id(), &shape, PlanOptions::default()).ok()?;
        let plan = self.block(self.catalog.put_plan(&document)).ok()?;
        Some((plan.id, plan.version))
    }

    fn begin(&self, run: &str, (plan, version): (PlanId, VersionId)) -> RunId {
        let id: RunId = run.parse().expect("a name");
        let record = RunRecord {
            id: id.clone(),
            plan,
            version,
            virtual_ranks: 1,
            began: Some(now() - 9000),
            left: Some(now() - 8000),
            interrupted: false,
            removing: false,
        };
        self.put(format!("{RUNS}{id}"), to_json(&record));
        id
    }

    fn put(&self, key: String, value: Vec<u8>) {
        self.block(self.catalog.metastore().put(&key, value, Expected::Any, None)).expect("puts");
    }

    fn damage(&self, shard: ShardId, damage: Damage) {
        let path = object_store::path::Path::from(shard.sidecar_key());
        let bytes = match damage {
            Damage::None => return,
            Damage::NoSidecar => "no sidecar".into(),
            Damage::OtherRows => {
                let bytes = self.block(self.catalog.origin().sidecar_bytes(shard)).expect("reads");
                let mut sidecar = Sidecar::decode(&bytes).expect("a sidecar");
                sidecar.rows.iter_mut().for_each(|row| row.0[0] ^= 1);
                sidecar.encode()
            }
        };
        self.block(self.store.put(&path, bytes.into())).expect("puts");
    }

    /// The keys of the objects that have one of the texts in them.
    fn holding(&self, rows: &BTreeSet<usize>) -> Vec<String> {
        let metas: Vec<_> = self.block(self.store.list(None).try_collect()).expect("lists");
        let texts: Vec<String> = rows.iter().map(|row| text(*row)).collect();
        let holds = |meta: &object_store::ObjectMeta| {
            let bytes = self.block(async {
                self.store.get(&meta.location).await.expect("it is there").bytes().await.expect("reads")
            });
            let has = |text: &String| bytes.windows(text.len()).any(|window| window == text.as_bytes());
            texts.iter().any(has)
        };
        metas.iter().filter(|meta| holds(meta)).map(|meta| meta.location.to_string()).collect()
    }
}

impl Sink for Here {
    fn put_shard(&self, shard: FinishedShard) -> std::io::Result<()> {
        self.block(self.catalog.origin().put_shard(&shard)).map_err(std::io::Error::other)
    }

    fn has_shard(&self, id: &ShardId) -> std::io::Result<bool> {
        self.block(self.catalog.origin().has_shard(id)).map_err(std::io::Error::other)
    }
}

impl Store for Here {
    fn shard(&self, id: ShardId) -> std::io::Result<Option<Buffer>> {
        self.block(self.catalog.origin().shard_file(id))
            .map(|bytes| Some(bytes.into()))
            .map_err(std::io::Error::other)
    }

    fn sidecar(&self, id: ShardId) -> std::io::Result<Option<Buffer>> {
        let read = self.block(self.catalog.origin().sidecar_bytes(id));
        read.map(|bytes| Some(bytes.into())).map_err(std::io::Error::other)
    }
}

/// The damage of a sidecar.
#[derive(Debug, Clone, Copy)]
enum Damage {
    None,
    NoSidecar,
    OtherRows,
}

/// A version of one of three datasets: its first row, how many there are, how they are cut, and what else names it.
fn version() -> impl Strategy<Value = (usize, usize, usize, usize, [bool; 3])> {
    (0usize..3, 0usize..ROWS - 1, 1usize..30, 2usize..12, any::<[bool; 3]>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_object_has_a_byte_of_the_forgotten_and_all_else_is_as_it_was(
        versions in prop::collection::vec(version(), 1..8),
        forgotten in prop::collection::btree_set(0usize..ROWS, 1..6),
        damage in prop::sample::select(vec![Damage::None, Damage::NoSidecar, Damage::OtherRows]),
    ) {
        let here = Here::new();
        for (number, (dataset, first, count, length, [is_tagged, is_planned, is_run])) in versions.iter().enumerate() {
            let rows: Vec<usize> = (*first..(first + count).min(ROWS)).collect();
            let manifest = here.commit(*dataset, &rows, *length);
            if *is_tagged {
                let info = here.block(here.catalog.resolve(&name(*dataset).into())).expect("just committed");
                let tag = format!("t{number}").parse().expect("a tag");
                let name = name(*dataset);
                here.block(here.catalog.put_tag(&name, &tag, info.commit, TagExpected::Any)).expect("tags");
            }
            if let Some(plan) = is_planned.then(|| here.plan(&manifest)).flatten()
                && *is_run
            {
                here.begin(&format!("r{number}"), plan);
            }
        }
        if let Some((_, manifest)) = here.present(versions[0].0) {
            here.damage(manifest.shards[0].id, damage);
        }
        let before: Vec<Vec<String>> = (0..3).map(|dataset| here.texts(dataset)).collect();
        let is_there = !here.holding(&forgotten).is_empty();
        let shown = here.block(here.catalog.forget(&asked(&forgotten, true))).expect("looks");
        prop_assert_eq!(!shown.shards.is_empty(), is_there);
        prop_assert!(shown.versions.iter().all(|version| version.rows > 0));
        let is_held = shown.datasets.iter().any(|dataset| dataset.is_present);
        let refused = here.block(here.catalog.forget(&asked(&forgotten, false)));
        prop_assert_eq!(matches!(refused, Err(CatalogError::StillHeld { .. })), is_held, "{:?}", refused);
        if !matches!(damage, Damage::None) {
            // Verification mends what a rewrite needs; the digests were read from the shard.
            let (_, manifest) = here.present(versions[0].0).expect("it was committed");
            let entry = &manifest.shards[0];
            let bytes = here.block(here.catalog.origin().shard(entry)).expect("reads");
            let sidecar = Shard::from_bytes(bytes).expect("a shard").sidecar().expect("its rows");
            here.block(here.catalog.origin().put_sidecar(entry.id, sidecar.encode().into())).expect("puts");
        }
        (0..3).for_each(|dataset| here.clean(dataset, &forgotten));
        let done = here.block(here.catalog.forget(&asked(&forgotten, false))).expect("nothing present has them");
        prop_assert_eq!(here.holding(&forgotten), [""; 0]);
        for (dataset, before) in before.iter().enumerate() {
            let is_forgotten = |text: &String| forgotten.iter().any(|row| self::text(*row) == *text);
            let left: Vec<String> = before.iter().filter(|text| !is_forgotten(text)).cloned().collect();
            prop_assert_eq!(here.texts(dataset), left);
        }
        // Nothing dangles, and removed rows cannot come back.
        here.block(here.catalog.gc(&GcOptions { dry_run: false, older_than_s: 0 })).expect("all that is named is there");
        for HoldingShard { shard, .. } in &shown.shards {
            let refused = here.block(async {
                here.catalog.origin().forgotten().await.expect("lists").contains(shard)
            });
            prop_assert!(refused);
        }
        let again = here.block(here.catalog.forget(&asked(&forgotten, false))).expect("twice does no harm");
        prop_assert_eq!((again.shards, again.deleted), (Vec::new(), Tally::default()));
        prop_assert_eq!(done.dry_run, false);
    }
}

#[test]
fn what_holds_rows_is_listed_and_a_run_that_is_running_is_refused() {
    let here = Here::new();
    let rows: Vec<usize> = (0..ROWS).collect();
    let old = here.commit(0, &rows, 10);
    let plan = here.plan(&old).expect("it fits");
    let run = here.begin("r", plan);
    here.commit(0, &rows[1..], 7);
    here.commit(1, &rows[..20], 5);
    let forgotten = BTreeSet::from([0]);
    let shown = here.block(here.catalog.forget(&asked(&forgotten, true))).expect("looks");
    assert_eq!((shown.rows, shown.shards.len(), shown.versions.len()), (1, 2, 2));
    let datasets: Vec<_> =
        shown.datasets.iter().map(|held| (held.name.to_string(), held.is_present)).collect();
    assert_eq!(datasets, [("d0".to_owned(), false), ("d1".to_owned(), true)]);
    assert_eq!(shown.plans.iter().map(|plan| plan.id).collect::<Vec<_>>(), [plan.0]);
    assert_eq!(
        shown.runs.iter().map(|run| (run.id.clone(), run.state)).collect::<Vec<_>>(),
        [(run, RunState::Finished)]
    );

    here.clean(1, &forgotten);
    let nodes = vec![Some("n1".parse().expect("a name"))];
    let ranks =
        RanksRecord { launch: 1, world: 1, epoch: 0, reached: 0, nodes, seen: Some(now()), lost: Vec::new() };
    here.put("ranks/r".to_owned(), to_json(&ranks));
    let refused = here.block(here.catalog.forget(&asked(&forgotten, false))).expect_err("it is running");
    assert!(matches!(refused, CatalogError::Running { .. }), "{refused}");
    assert!(here.block(here.catalog.origin().forgotten()).expect("lists").is_empty(), "nothing was changed");
    let forced = Forget { force: true, ..asked(&forgotten, false) };
    here.block(here.catalog.forget(&forced)).expect("as asked");
    assert_eq!(here.block(here.catalog.runs(true)).expect("lists"), []);
    assert_eq!(here.block(here.catalog.plans()).expect("lists"), []);
    assert_eq!(here.holding(&forgotten), [""; 0]);

    // The same shard is refused, by itself and in a version; so is nothing else.
    let (with, without) = (shard(&rows[..10]), shard(&rows[20..30]));
    let refused =
        here.block(here.catalog.origin().put_shard(&with)).expect_err("it holds the row").to_string();
    assert!(refused.contains("rows that were forgotten"), "{refused}");
    here.block(here.catalog.origin().put_shard(&without)).expect("another one");
}

#[test]
fn a_forget_that_was_killed_is_finished_without_knowing_its_rows() {
    let here = Here::new();
    let rows: Vec<usize> = (0..ROWS).collect();
    let old = here.commit(0, &rows, 10);
    here.commit(0, &rows[1..], 7);
    let nothing = here.block(here.catalog.forget(&asked(&BTreeSet::new(), false))).expect("nothing is begun");
    assert_eq!(nothing, ForgetReport { dry_run: false, ..ForgetReport::default() });
    // It got to its marks.
    here.block(here.catalog.origin().put_forgotten(old.shards[0].id)).expect("puts");
    let refused =
        here.block(here.catalog.commit(&name(2), None, old.id(), &CommitNote::of(Operation::RESTORE)));
    assert!(refused.expect_err("it is marked").to_string().contains("forgotten"));
    let done = here.block(here.catalog.forget(&asked(&BTreeSet::new(), false))).expect("it is finished");
    assert_eq!((done.shards.len(), done.versions.len(), done.datasets[0].cut), (1, 1, 1));
    assert_eq!(here.holding(&BTreeSet::from([0])), [""; 0]);
    // The other objects of the version wait for gc, as pruned ones do.
    here.block(here.catalog.gc(&GcOptions { dry_run: false, older_than_s: 0 })).expect("nothing dangles");
    assert_eq!(here.texts(0).len(), ROWS - 1);
}
