//! The two halves of a catalog put together: objects in a store, names in a metastore.
//!
//! Keys: `refs/<dataset>` is the version a name points at, `versions/<version>` the dataset a version was committed to,
//! `plans/<plan>` what a plan orders. Objects are put before the names that point at them, so a name never dangles.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures::{StreamExt, TryStreamExt, stream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shardfmt::plan::{Plan, PlanDocument};
use shardfmt::{DatasetName, Manifest, PlanId, ShardEntry, ShardId, VersionId};

use super::{CatalogError, DatasetInfo, PlanInfo};
use crate::metastore::{Expected, MetaError, Metastore};
use crate::origin::{Origin, OriginError};

const REFS: &str = "refs/";
const VERSIONS: &str = "versions/";
const PLANS: &str = "plans/";

/// How many shards a commit looks for at once.
const LOOKED_FOR_AT_ONCE: usize = 32;

/// A catalog over a store and a metastore. Its futures may be dropped at any time: a commit then happened or did not.
#[derive(Clone)]
pub struct CatalogBackend {
    origin: Arc<Origin>,
    metastore: Arc<dyn Metastore>,
}

#[derive(Serialize, Deserialize)]
struct RefRecord {
    version: VersionId,
    samples: u64,
    bytes: u64,
    shards: u64,
    committed_at: u64,
}

impl RefRecord {
    fn named(self, name: DatasetName) -> DatasetInfo {
        let Self { version, samples, bytes, shards, committed_at } = self;
        DatasetInfo { name, version, samples, bytes, shards, committed_at }
    }
}

#[derive(Serialize, Deserialize)]
struct VersionRecord {
    dataset: DatasetName,
}

#[derive(Serialize, Deserialize)]
struct PlanRecord {
    dataset: DatasetName,
    version: VersionId,
    created: u64,
}

impl CatalogBackend {
    /// A catalog that keeps objects in `origin` and names in `metastore`.
    pub fn new(origin: Arc<Origin>, metastore: Arc<dyn Metastore>) -> Self {
        Self { origin, metastore }
    }

    /// The store.
    pub fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// The metastore.
    pub fn metastore(&self) -> &Arc<dyn Metastore> {
        &self.metastore
    }

    /// See [`Catalog::datasets`](super::Catalog::datasets).
    pub async fn datasets(&self) -> Result<Vec<DatasetInfo>, CatalogError> {
        let refs = self.records::<RefRecord, DatasetName>(REFS).await?;
        Ok(refs.into_iter().map(|(name, record)| record.named(name)).collect())
    }

    /// See [`Catalog::dataset`](super::Catalog::dataset).
    pub async fn dataset(&self, name: &DatasetName) -> Result<DatasetInfo, CatalogError> {
        let record = self.record::<RefRecord>(&format!("{REFS}{name}")).await?;
        let (record, _) = record.ok_or_else(|| CatalogError::NotFound { what: format!("dataset {name}") })?;
        Ok(record.named(name.clone()))
    }

    /// See [`Catalog::manifest`](super::Catalog::manifest).
    pub async fn manifest(&self, version: VersionId) -> Result<Manifest, CatalogError> {
        match self.origin.manifest(version).await {
            Err(OriginError::NotFound { .. }) => {
                Err(CatalogError::NotFound { what: format!("version {version}") })
            }
            other => Ok(other?),
        }
    }

    /// Makes `name` point at `version`, whose manifest and shards are in the store, if it still points at `expected`.
    ///
    /// # Errors
    ///
    /// As [`Catalog::commit`](super::Catalog::commit), and [`CatalogError::NotFound`] without the manifest.
    pub async fn commit(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        version: VersionId,
    ) -> Result<DatasetInfo, CatalogError> {
        let key = format!("{REFS}{name}");
        let present = self.record::<RefRecord>(&key).await?;
        if let Some((present, _)) = present.as_ref().filter(|(present, _)| present.version == version) {
            return Ok(RefRecord { ..*present }.named(name.clone()));
        }
        let actual = present.as_ref().map(|(present, _)| present.version);
        if actual != expected {
            return Err(CatalogError::Conflict { dataset: name.clone(), expected, actual });
        }
        let manifest = self.manifest(version).await?;
        self.check_complete(version, &manifest.shards).await?;

        self.put_once(&format!("{VERSIONS}{version}"), &VersionRecord { dataset: name.clone() }).await?;
        let record = RefRecord {
            version,
            samples: manifest.sample_count(),
            bytes: manifest.bytes(),
            shards: manifest.shards.len() as u64,
            committed_at: seconds_since_1970(),
        };
        let revision = present.map(|(_, revision)| revision);
        match self.metastore.put(&key, to_json(&record), Expected::unchanged(revision), None).await {
            Ok(_) => Ok(record.named(name.clone())),
            Err(MetaError::Conflict { .. }) => match self.record::<RefRecord>(&key).await? {
                // Someone else committed the same: it is as asked.
                Some((record, _)) if record.version == version => Ok(record.named(name.clone())),
                present => {
                    let actual = present.map(|(record, _)| record.version);
                    Err(CatalogError::Conflict { dataset: name.clone(), expected, actual })
                }
            },
            Err(error) => Err(error.into()),
        }
    }

    /// See [`Catalog::put_plan`](super::Catalog::put_plan).
    pub async fn put_plan(&self, document: &PlanDocument) -> Result<PlanInfo, CatalogError> {
        let version = document.version;
        let manifest = self.manifest(version).await?;
        let shard_rows: Vec<u32> = manifest.shards.iter().map(|shard| shard.rows).collect();
        let id = Plan::new(document.clone(), &shard_rows)?.id();
        let dataset = self.dataset_of(version).await?;
        self.origin.put_plan(document).await?;
        let record = PlanRecord { dataset, version, created: seconds_since_1970() };
        let key = format!("{PLANS}{id}");
        self.put_once(&key, &record).await?;
        let (record, _) = self.record::<PlanRecord>(&key).await?.unwrap_or((record, 0));
        Ok(PlanInfo { id, dataset: record.dataset, version, created: record.created })
    }

    /// See [`Catalog::plans`](super::Catalog::plans).
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
    pub async fn plan(&self, id: PlanId) -> Result<PlanDocument, CatalogError> {
        match self.origin.plan(id).await {
            Err(OriginError::NotFound { .. }) => Err(CatalogError::NotFound { what: format!("plan {id}") }),
            other => Ok(other?),
        }
    }

    /// The dataset that `version` was first committed to.
    async fn dataset_of(&self, version: VersionId) -> Result<DatasetName, CatalogError> {
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

    /// Writes a record that never changes, unless it is there.
    async fn put_once(&self, key: &str, record: &impl Serialize) -> Result<(), MetaError> {
        match self.metastore.put(key, to_json(record), Expected::Absent, None).await {
            Ok(_) | Err(MetaError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The record at `key` and its revision.
    async fn record<T: DeserializeOwned>(&self, key: &str) -> Result<Option<(T, u64)>, MetaError> {
        let Some(entry) = self.metastore.get(key).await? else { return Ok(None) };
        Ok(Some((from_json(key, &entry.value)?, entry.revision)))
    }

    /// All records under `prefix`, by what their keys name.
    async fn records<T, K>(&self, prefix: &str) -> Result<Vec<(K, T)>, MetaError>
    where
        T: DeserializeOwned,
        K: std::str::FromStr<Err: std::fmt::Display>,
    {
        let listing = self.metastore.list(prefix).await?;
        let parse = |(key, entry): &(String, crate::metastore::Entry)| {
            let name = key[prefix.len()..].parse().map_err(|error: K::Err| damaged(key, &error))?;
            Ok((name, from_json(key, &entry.value)?))
        };
        listing.entries.iter().map(parse).collect()
    }
}

fn to_json(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("records are plain data")
}

fn from_json<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, MetaError> {
    serde_json::from_slice(value).map_err(|error| damaged(key, &error))
}

fn damaged(key: &str, reason: &dyn std::fmt::Display) -> MetaError {
    MetaError::Damaged {
        store: "of the catalog".to_owned(),
        what: key.to_owned(),
        reason: reason.to_string(),
    }
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
