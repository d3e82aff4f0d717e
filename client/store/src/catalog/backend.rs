//! The two halves of a catalog put together: objects in a store, names in a metastore. Commits and plans; the
//! files beside this one have history, tags and garbage collection.
//!
//! Objects are put before the names that point at them, and names go before the objects, so a name never dangles.

use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shardd_api::duration::now;
use shardd_api::protocol::{AuditReport, RunId, RunRecord};
use shardd_plan::{Plan, PlanDocument};
use shardfmt::{
    Commit, DatasetName, Digest, Manifest, ManifestFile, PlanId, Provenance, ShardEntry, ShardId, VersionId,
};
use tokio::sync::OnceCell;

use super::records::{
    AUDITS, CATALOG_ID, PLANS, PlanRecord, RUNS, RefRecord, VERSIONS, VersionRecord, from_json, named,
    ref_key, to_json,
};
use super::{CatalogError, CommitNote, DatasetInfo, Guard, PlanInfo, Reach, StoreOf};
use crate::metastore::{Entry, Expected, MetaError, Metastore};
use crate::origin::{Origin, OriginError};

/// How many shards a commit looks for at once.
const LOOKED_FOR_AT_ONCE: usize = 32;

/// A catalog over a store and a metastore. Its futures may be dropped at any time: a change then happened or did not.
#[derive(Clone)]
pub struct CatalogBackend {
    origin: Arc<Origin>,
    metastore: Arc<dyn Metastore>,
    /// Where trainings leave records and checkpoints.
    trainings: Arc<Origin>,
    /// The name of this catalog, once it has marked the store.
    marked: Arc<OnceCell<String>>,
}

impl CatalogBackend {
    /// A catalog that keeps objects in `origin` and names in `metastore`.
    pub fn new(origin: Arc<Origin>, metastore: Arc<dyn Metastore>) -> Self {
        Self { trainings: Arc::clone(&origin), origin, metastore, marked: Arc::default() }
    }

    /// The same, whose trainings leave records and checkpoints elsewhere.
    pub(super) fn with_trainings(self, trainings: Arc<Origin>) -> Self {
        Self { trainings, ..self }
    }

    /// Where trainings leave records and checkpoints.
    pub(super) fn trainings(&self) -> &Arc<Origin> {
        &self.trainings
    }

    /// The store.
    pub fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// The metastore.
    pub fn metastore(&self) -> &Arc<dyn Metastore> {
        &self.metastore
    }

    /// See [`Catalog::manifest`](super::Catalog::manifest).
    ///
    /// # Errors
    ///
    /// As [`Catalog::manifest`](super::Catalog::manifest).
    pub async fn manifest(&self, version: VersionId) -> Result<Manifest, CatalogError> {
        self.origin.manifest(version).await.map_err(|error| missing_version(version, error))
    }

    /// See [`Catalog::provenance`](super::Catalog::provenance).
    ///
    /// # Errors
    ///
    /// As [`Catalog::provenance`](super::Catalog::provenance).
    pub async fn provenance(&self, version: VersionId) -> Result<Option<Provenance>, CatalogError> {
        Ok(self.origin.provenance(version).await?)
    }

    /// See [`Catalog::open_manifest`](super::Catalog::open_manifest), and [`Origin::open_manifest`].
    ///
    /// # Errors
    ///
    /// As [`Catalog::open_manifest`](super::Catalog::open_manifest).
    pub async fn open_manifest(&self, version: VersionId) -> Result<ManifestFile, CatalogError> {
        self.origin.open_manifest(version).await.map_err(|error| missing_version(version, error))
    }

    /// Makes `version`, whose manifest and shards are in the store, the present one of `name`, if that still is `expected`.
    ///
    /// # Errors
    ///
    /// As [`Catalog::commit`](super::Catalog::commit), and [`CatalogError::NotFound`] without the manifest.
    pub async fn commit(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        version: VersionId,
        note: &CommitNote,
    ) -> Result<DatasetInfo, CatalogError> {
        let present = self.record::<RefRecord>(&ref_key(name)).await?;
        if let Some((present, _)) = present.as_ref().filter(|(present, _)| present.version == version) {
            return Ok(present.named(name.clone()));
        }
        let actual = present.as_ref().map(|(present, _)| present.version);
        if actual != expected {
            return Err(CatalogError::Conflict { dataset: name.clone(), expected, actual });
        }
        self.mark_store().await?;
        let manifest = self.manifest(version).await?;
        let provenance = self.origin.provenance(version).await?.map(|provenance| provenance.digest());
        let implied = present.as_ref().and_then(|(present, _)| present.implied_commit(name));
        let parent = match (&present, &implied) {
            (_, Some(implied)) => Some(implied.id()),
            (Some((present, _)), None) => present.commit,
            (None, None) => None,
        };
        let commit = Commit {
            format: shardfmt::commit::FORMAT,
            dataset: name.clone(),
            version,
            provenance,
            parent,
            number: present.as_ref().map_or(0, |(present, _)| present.commits).saturating_add(1),
            time: now(),
            operation: note.operation.clone(),
            message: note.message.clone(),
            samples: manifest.sample_count(),
            bytes: manifest.bytes(),
            shards: manifest.shards.len() as u64,
        };
        let reach = Reach { commit: Some(commit.id()), version: Some(version), plan: None };
        let guard = self.guard(&reach, || format!("a commit to {name}")).await?;
        let outcome = self.commit_guarded(&manifest, &commit, implied, present, &guard).await;
        guard.end().await;
        match outcome {
            Ok(()) => Ok(DatasetInfo::of(commit.id(), &commit)),
            Err(CatalogError::Meta(MetaError::Conflict { .. })) => {
                match self.record::<RefRecord>(&ref_key(name)).await? {
                    // Someone else committed the same: it is as asked.
                    Some((record, _)) if record.version == version => Ok(record.named(name.clone())),
                    present => {
                        let actual = present.map(|(record, _)| record.version);
                        Err(CatalogError::Conflict { dataset: name.clone(), expected, actual })
                    }
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the objects that lead to the commit, then the pointer to it, if that is still `present`.
    async fn commit_guarded(
        &self,
        manifest: &Manifest,
        commit: &Commit,
        implied: Option<Commit>,
        present: Option<(RefRecord, u64)>,
        guard: &Guard,
    ) -> Result<(), CatalogError> {
        let version = commit.version;
        let (oldest, revision) =
            present.map_or((1, None), |(present, revision)| (present.oldest, Some(revision)));
        if !self.origin.has_manifest(version).await? {
            return Err(no_version(version));
        }
        self.check_complete(version, &manifest.shards).await?;
        // A shard marked before this announcement is refused; a forget that marks it later finds the commit.
        let forgotten = self.origin.forgotten().await?;
        if let Some(shard) = manifest.shards.iter().find(|shard| forgotten.contains(&shard.id)) {
            return Err(self.origin.forgotten_shard(shard.id).into());
        }
        if let Some(implied) = implied {
            self.origin.put_commit(&implied).await?;
        }
        let id = self.origin.put_commit(commit).await?;
        let record = VersionRecord { dataset: commit.dataset.clone() };
        self.put_once(&format!("{VERSIONS}{version}"), &record).await?;
        guard.renew().await?;
        let record = to_json(&RefRecord::of(id, commit, oldest));
        self.metastore.put(&ref_key(&commit.dataset), record, Expected::unchanged(revision), None).await?;
        Ok(())
    }

    /// See [`Catalog::remove_dataset`](super::Catalog::remove_dataset).
    ///
    /// # Errors
    ///
    /// As [`Catalog::remove_dataset`](super::Catalog::remove_dataset).
    pub async fn remove_dataset(&self, name: &DatasetName, expected: VersionId) -> Result<(), CatalogError> {
        let conflict =
            |actual| CatalogError::Conflict { dataset: name.clone(), expected: Some(expected), actual };
        let (record, revision) = self.reference(name).await?;
        if record.version != expected {
            return Err(conflict(Some(record.version)));
        }
        match self.metastore.delete(&ref_key(name), Expected::At(revision)).await {
            Ok(_) => Ok(()),
            Err(MetaError::Conflict { .. }) => {
                let actual = self.record::<RefRecord>(&ref_key(name)).await?;
                Err(conflict(actual.map(|(record, _)| record.version)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// See [`Catalog::put_plan`](super::Catalog::put_plan).
    ///
    /// # Errors
    ///
    /// As [`Catalog::put_plan`](super::Catalog::put_plan).
    pub async fn put_plan(&self, document: &PlanDocument) -> Result<PlanInfo, CatalogError> {
        let version = document.version;
        let shard_rows = self.origin.ask_manifest(version, |manifest| manifest.shard_rows()).await;
        let shard_rows = shard_rows.map_err(|error| missing_version(version, error))?;
        let mut document = document.clone();
        self.origin.supply_strata(&mut document).await?;
        let id = Plan::new(document.clone(), &shard_rows)?.id();
        let reach = Reach { commit: None, version: Some(version), plan: Some(id) };
        let guard = self.guard(&reach, || "a plan".to_owned()).await?;
        let outcome = self.put_plan_guarded(&document, id, &guard).await;
        guard.end().await;
        outcome
    }

    async fn put_plan_guarded(
        &self,
        document: &PlanDocument,
        id: PlanId,
        guard: &Guard,
    ) -> Result<PlanInfo, CatalogError> {
        let version = document.version;
        let dataset = self.dataset_of(version).await?;
        // Shards go after every manifest that names them: where this is, they are.
        if !self.origin.has_manifest(version).await? {
            return Err(no_version(version));
        }
        self.origin.put_plan(document).await?;
        guard.renew().await?;
        let record = PlanRecord { dataset, version, created: now() };
        let key = format!("{PLANS}{id}");
        self.put_once(&key, &record).await?;
        let (record, _) = self.record::<PlanRecord>(&key).await?.unwrap_or((record, 0));
        Ok(PlanInfo { id, dataset: record.dataset, version, created: record.created })
    }

    /// See [`Catalog::plans`](super::Catalog::plans).
    ///
    /// # Errors
    ///
    /// As [`Catalog::plans`](super::Catalog::plans).
    pub async fn plans(&self) -> Result<Vec<PlanInfo>, CatalogError> {
        let records = self.records::<PlanRecord, PlanId>(PLANS).await?;
        let info = |(id, record): (_, PlanRecord)| {
            let PlanRecord { dataset, version, created } = record;
            PlanInfo { id, dataset, version, created }
        };
        let mut plans: Vec<_> = records.into_iter().map(info).collect();
        plans.sort_by_key(|plan| (plan.created, plan.id));
        Ok(plans)
    }

    /// See [`Catalog::plan`](super::Catalog::plan).
    ///
    /// # Errors
    ///
    /// As [`Catalog::plan`](super::Catalog::plan).
    pub async fn plan(&self, id: PlanId) -> Result<PlanDocument, CatalogError> {
        match self.origin.plan(id).await {
            Err(OriginError::NotFound { .. }) => Err(CatalogError::NotFound { what: format!("plan {id}") }),
            other => Ok(other?),
        }
    }

    /// See [`Catalog::remove_plan`](super::Catalog::remove_plan).
    ///
    /// # Errors
    ///
    /// As [`Catalog::remove_plan`](super::Catalog::remove_plan).
    pub async fn remove_plan(&self, id: PlanId) -> Result<(), CatalogError> {
        let key = format!("{PLANS}{id}");
        if self.metastore.get(&key).await?.is_none() {
            return Err(CatalogError::NotFound { what: format!("plan {id}") });
        }
        for (key, entry) in self.metastore.list(RUNS).await?.entries {
            let run: RunRecord = from_json(&key, &entry.value)?;
            if run.plan == id {
                return Err(CatalogError::InUse { plan: id, run: run.id.to_string() });
            }
        }
        // A run that begins just now keeps its plan by itself.
        self.metastore.delete(&key, Expected::Any).await?;
        Ok(())
    }

    /// See [`Catalog::run`](super::Catalog::run).
    ///
    /// # Errors
    ///
    /// As [`Catalog::run`](super::Catalog::run).
    pub async fn run(&self, id: &RunId) -> Result<RunRecord, CatalogError> {
        let record = self.record(&format!("{RUNS}{id}")).await?;
        record.map(|(run, _)| run).ok_or_else(|| CatalogError::NotFound { what: format!("run {id}") })
    }

    /// See [`Catalog::audits`](super::Catalog::audits).
    ///
    /// # Errors
    ///
    /// As [`Catalog::audits`](super::Catalog::audits).
    pub async fn audits(&self, run: &RunId) -> Result<Vec<AuditReport>, CatalogError> {
        let kept = self.metastore.list(&format!("{AUDITS}{run}/")).await?.entries;
        kept.iter().map(|(key, entry)| Ok(from_json(key, &entry.value)?)).collect()
    }

    /// Keeps gc from deleting what a pointer will reach.
    pub(super) async fn guard(
        &self,
        reach: &Reach,
        doing: impl FnOnce() -> String,
    ) -> Result<Guard, CatalogError> {
        let guard = Guard::announce(&self.metastore, reach, StoreOf::at(&self.origin)).await?;
        guard.ok_or_else(|| CatalogError::Busy { what: doing() })
    }

    /// The name under which this catalog has marked the store as one of its own.
    pub(super) async fn mark_store(&self) -> Result<&str, CatalogError> {
        let mark = || async {
            self.put_once(CATALOG_ID, &unlikely_twice()).await?;
            let (name, _) = self.record::<String>(CATALOG_ID).await?.unwrap_or_default();
            self.origin.put_catalog(&name).await?;
            Ok::<_, CatalogError>(name)
        };
        Ok(self.marked.get_or_try_init(mark).await?)
    }

    /// Whether the store is one that this catalog keeps objects in; a catalog that has none yet takes any.
    ///
    /// # Errors
    /// When it is another; when it cannot be known, as the store or the metastore is unavailable.
    pub async fn check_store(&self) -> Result<(), CatalogError> {
        let Some((name, _)) = self.record::<String>(CATALOG_ID).await? else { return Ok(()) };
        match self.origin.catalogs().await?.contains(&name) {
            true => Ok(()),
            false => Err(CatalogError::OtherStore { store: self.origin.name().to_owned() }),
        }
    }

    /// The dataset that `version` was first committed to.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when it was never committed, and those of the metastore.
    pub async fn dataset_of(&self, version: VersionId) -> Result<DatasetName, CatalogError> {
        let record = self.record::<VersionRecord>(&format!("{VERSIONS}{version}")).await?;
        let what = format!("dataset with version {version}: commit it before planning it");
        record.map(|(record, _)| record.dataset).ok_or(CatalogError::NotFound { what })
    }

    async fn check_complete(&self, version: VersionId, shards: &[ShardEntry]) -> Result<(), CatalogError> {
        // Owned ids: a stream that borrowed them could not be sent to another thread, as servers do.
        let ids: Vec<ShardId> = shards.iter().map(|entry| entry.id).collect();
        let presence = stream::iter(ids)
            .map(|id| async move { Ok::<_, OriginError>((id, self.origin.has_shard(&id).await?)) })
            .buffered(LOOKED_FOR_AT_ONCE);
        let missing: Vec<_> =
            presence.try_filter_map(async |(id, there)| Ok((!there).then_some(id))).try_collect().await?;
        match missing.first() {
            None => Ok(()),
            Some(first) => {
                let (first, shards) = (first.to_string(), shards.len());
                Err(CatalogError::Incomplete { version, missing: missing.len(), shards, first })
            }
        }
    }
}

/// The store's error about the manifest of a version.
fn missing_version(version: VersionId, error: OriginError) -> CatalogError {
    match error {
        OriginError::NotFound { .. } => no_version(version),
        error => error.into(),
    }
}

fn no_version(version: VersionId) -> CatalogError {
    CatalogError::NotFound { what: format!("version {version}") }
}

/// A name that no other catalog has given itself. Decides nothing.
fn unlikely_twice() -> String {
    let random = [RandomState::new().hash_one(0), RandomState::new().hash_one(1)];
    let when = std::time::SystemTime::now();
    Digest::of(format!("{random:?} {when:?} {}", std::process::id()).as_bytes()).short()
}

impl CatalogBackend {
    /// The record at `key` and its revision.
    pub(super) async fn record<T: DeserializeOwned>(&self, key: &str) -> Result<Option<(T, u64)>, MetaError> {
        let Some(entry) = self.metastore().get(key).await? else { return Ok(None) };
        Ok(Some((from_json(key, &entry.value)?, entry.revision)))
    }

    /// All records under `prefix`, by what their keys name.
    pub(super) async fn records<T, K>(&self, prefix: &str) -> Result<Vec<(K, T)>, MetaError>
    where
        T: DeserializeOwned,
        K: FromStr<Err: std::fmt::Display>,
    {
        let listing = self.metastore().list(prefix).await?;
        let parse = |(key, entry): &(String, Entry)| Ok((named(key, prefix)?, from_json(key, &entry.value)?));
        listing.entries.iter().map(parse).collect()
    }

    /// Writes a record that never changes, unless it is there.
    pub(super) async fn put_once(&self, key: &str, record: &impl Serialize) -> Result<(), MetaError> {
        match self.metastore().put(key, to_json(record), Expected::Absent, None).await {
            Ok(_) | Err(MetaError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
