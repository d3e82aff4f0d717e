//! Commits are found again without the metastore that knew them.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use proptest::prelude::*;
use shardd_plan::{PlanDocument, PlanOptions, Shape};
use shardfmt::{Digest, Manifest, Operation, ShardWriter};

use super::*;
use crate::catalog::{CommitNote, GcOptions, TagExpected};
use crate::metastore::{CopiedEntry, CopyShelf, MemoryMetastore, MetadataCopy, MetastoreAddress};
use crate::origin::Origin;

const WRITE: RecoverOptions = RecoverOptions { dry_run: false };

fn name(text: &str) -> DatasetName {
    text.parse().expect("a name")
}

fn over(origin: &Arc<Origin>) -> CatalogBackend {
    CatalogBackend::new(Arc::clone(origin), Arc::new(MemoryMetastore::new()))
}

fn store() -> Arc<Origin> {
    Arc::new(Origin::open("memory://").expect("opens"))
}

impl CatalogBackend {
    /// Commits a version with this number in it on top of whatever is there.
    async fn next(&self, dataset: &str, number: i64) -> Manifest {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![number; 10]));
        let batch = RecordBatch::try_from_iter([("number", numbers)]).expect("one column");
        let mut writer = ShardWriter::new(batch.schema()).expect("plain columns");
        writer.push(&batch).expect("rows of the schema");
        let shard = writer.finish().expect("rows");
        self.origin().put_shard(&shard).await.expect("puts");
        let manifest = Manifest::new(batch.schema(), vec![shard.entry.clone()], serde_json::json!({}));
        self.origin().put_manifest(&manifest).await.expect("puts");
        let present = self.resolve(&name(dataset).into()).await.ok().map(|info| info.version);
        let note = CommitNote::of(Operation::INGEST);
        self.commit(&name(dataset), present, manifest.id(), &note).await.expect("commits");
        manifest
    }

    async fn planned(&self, manifest: &Manifest) {
        let shard_rows = manifest.shards.iter().map(|shard| shard.rows).collect();
        let shape = Shape { shard_rows, row_bytes: manifest.row_bytes() };
        let plan = PlanDocument::with_defaults(manifest.id(), &shape, PlanOptions::default()).expect("fits");
        self.put_plan(&plan).await.expect("puts");
    }

    /// The objects that a node leaves in the store.
    async fn leave_copy(&self, taken_at: u64) {
        let listing = self.metastore().list("").await.expect("lists");
        let entry = |(key, entry): (String, crate::metastore::Entry)| CopiedEntry {
            key,
            revision: entry.revision,
            value: entry.value,
        };
        let keeper = MetastoreAddress {
            node: "n1".parse().expect("a name"),
            http: "http://127.0.0.1:1".to_owned(),
            quic: "127.0.0.1:1".parse().expect("an address"),
        };
        let copy = MetadataCopy {
            epoch: 1,
            keeper,
            settled: listing.revision,
            revision: listing.revision,
            last_lease: 0,
            taken_at,
            moved_to: None,
            entries: listing.entries.into_iter().map(entry).collect(),
        };
        let shelf = CopyShelf::of(Arc::clone(self.origin()), Digest::of(&taken_at.to_le_bytes()));
        assert!(matches!(shelf.replace(&copy, None).await, crate::metastore::copy::Replaced::Done(_)));
    }

    async fn everything(&self) -> String {
        let (datasets, plans) = (self.datasets().await.expect("lists"), self.plans().await.expect("lists"));
        let plans: Vec<_> = plans.into_iter().map(|plan| (plan.id, plan.dataset, plan.version)).collect();
        let mut logs = Vec::new();
        for info in &datasets {
            logs.push(self.log(&info.name, 100).await.expect("its history is whole"));
        }
        format!("{datasets:?}\n{plans:?}\n{logs:?}")
    }
}

#[tokio::test(start_paused = true)]
async fn commits_alone_bring_back_names_versions_and_plans() {
    let origin = store();
    let before = over(&origin);
    assert!(!before.has_lost_its_names().await.expect("known"));
    for n in 0..3 {
        before.next("digits", n).await;
    }
    let manifest = before.next("words", 7).await;
    before.planned(&manifest).await;
    assert!(!before.has_lost_its_names().await.expect("known"));

    let after = over(&origin);
    assert!(after.has_lost_its_names().await.expect("known"));
    let shown = after.recover(RecoverOptions { dry_run: true }).await.expect("looks");
    assert_eq!((shown.datasets.len(), shown.plans), (2, 1));
    assert!(after.datasets().await.expect("lists").is_empty(), "only shown");
    let report = after.recover(WRITE).await.expect("recovers");
    assert_eq!(RecoverReport { dry_run: true, ..report.clone() }, shown);
    assert!(report.datasets.iter().all(|dataset| dataset.from_commits) && report.lost.is_empty());
    assert_eq!(after.everything().await, before.everything().await);
    assert_eq!(after.recover(WRITE).await.expect("again"), RecoverReport::default());
    // It continues as the same catalog: gc trusts it, and finds nothing to delete.
    let gc = after.gc(&GcOptions { dry_run: false, older_than_s: 0 }).await.expect("alone");
    assert_eq!(gc.total().objects, 0);
}

#[tokio::test(start_paused = true)]
async fn a_copy_brings_back_tags_too_and_commits_what_came_after_it() {
    let origin = store();
    let before = over(&origin);
    before.next("digits", 0).await;
    let first = before.resolve(&name("digits").into()).await.expect("there").commit;
    let tag = "paper".parse().expect("a tag");
    before.put_tag(&name("digits"), &tag, first, TagExpected::Absent).await.expect("tags");
    before.leave_copy(5).await;
    before.next("digits", 1).await;
    before.next("later", 2).await;

    let after = over(&origin);
    let report = after.recover(WRITE).await.expect("recovers");
    assert_eq!((report.copies.len(), report.tags, report.datasets.len()), (1, 1, 2));
    assert_eq!(after.everything().await, before.everything().await);
    assert_eq!(after.tags(None).await.expect("lists"), before.tags(None).await.expect("lists"));
}

#[tokio::test(start_paused = true)]
async fn a_pruned_history_comes_back_from_the_oldest_commit_on_that_is_left() {
    let origin = store();
    let before = over(&origin);
    for n in 0..4 {
        before.next("digits", n).await;
    }
    let log = before.log(&name("digits"), 10).await.expect("its history");
    before.prune(&name("digits"), log[1].id).await.expect("prunes");
    before.gc(&GcOptions { dry_run: false, older_than_s: 0 }).await.expect("alone");
    assert!(origin.commit(log[3].id).await.is_err(), "gc has removed the pruned objects");

    let after = over(&origin);
    let report = after.recover(WRITE).await.expect("recovers");
    assert_eq!((report.datasets.len(), report.lost), (1, Vec::new()));
    assert_eq!(after.everything().await, before.everything().await);
}

#[tokio::test(start_paused = true)]
async fn what_is_there_stays_and_what_leads_nowhere_is_named() {
    let origin = store();
    let before = over(&origin);
    let manifest = before.next("digits", 0).await;
    before.next("digits", 1).await;
    before.next("gone", 2).await;
    let after = over(&origin);
    after.next("digits", 5).await;
    let kept = after.resolve(&name("digits").into()).await.expect("there");
    let gone = before.resolve(&name("gone").into()).await.expect("there").version;
    origin.delete(vec![gone.object_key()]).await.expect("deletes");

    let report = after.recover(WRITE).await.expect("recovers");
    assert_eq!(after.resolve(&name("digits").into()).await.expect("there"), kept);
    assert_eq!(report.datasets, []);
    let [lost] = &report.lost[..] else { panic!("{report:?}") };
    assert!(lost.key == "refs/gone" && lost.reason.contains(&gone.to_string()), "{lost:?}");
    // Its versions are known by their dataset again all the same.
    assert_eq!(after.dataset_of(manifest.id()).await.expect("known"), name("digits"));
}

fn commit(dataset: u8, parent: Option<&Commit>, time: u64) -> Commit {
    Commit {
        format: shardfmt::commit::FORMAT,
        dataset: name(&format!("d{dataset}")),
        version: VersionId::of(&time.to_le_bytes()),
        provenance: None,
        parent: parent.map(Commit::id),
        number: parent.map_or(1, |parent| parent.number + 1),
        time,
        operation: Operation::INGEST,
        message: shardfmt::Message::default(),
        samples: 1,
        bytes: 1,
        shards: 1,
    }
}

proptest! {
    /// However histories fork, and whichever commits are lost, a name leads to the last end, and its history has no gap.
    #[test]
    fn a_name_leads_to_the_last_end_and_a_history_without_a_gap(
        steps in prop::collection::vec((0u8..2, any::<prop::sample::Index>(), any::<bool>()), 1..20),
        lost in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    ) {
        let mut made: Vec<Commit> = Vec::new();
        for (time, (dataset, parent, is_first)) in (1..).zip(steps) {
            let of_dataset: Vec<&Commit> =
                made.iter().filter(|commit| commit.dataset == name(&format!("d{dataset}"))).collect();
            let parent = (!is_first && !of_dataset.is_empty()).then(|| of_dataset[parent.index(of_dataset.len())]);
            let next = commit(dataset, parent, time);
            made.push(next);
        }
        let mut commits: BTreeMap<CommitId, Commit> = made.iter().map(|commit| (commit.id(), commit.clone())).collect();
        for at in lost {
            commits.remove(&made[at.index(made.len())].id());
        }
        for (dataset, history) in histories(&commits) {
            let head = &commits[&history.head];
            prop_assert_eq!(&head.dataset, &dataset);
            for other in commits.values().filter(|other| other.dataset == dataset) {
                let is_followed = commits.values().any(|next| next.parent == Some(other.id()));
                prop_assert!(is_followed || other.time <= head.time);
            }
            let mut first = head;
            while first.number > history.oldest {
                first = &commits[&first.parent.expect("a later commit has a parent")];
            }
            prop_assert!(first.parent.is_none_or(|parent| !commits.contains_key(&parent)));
        }
    }
}
