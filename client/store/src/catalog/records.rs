//! The records of a catalog in a metastore: small JSON documents under keys that name their subjects.
//!
//! | key | contents |
//! |---|---|
//! | `refs/<dataset>` | the present version of a dataset, its commit and its totals |
//! | `tags/<dataset>/<tag>` | the commit and version that bear a tag |
//! | `versions/<version>` | the dataset a version was first committed to |
//! | `plans/<plan>` | the version of a plan, and facts about it |
//! | `runs/<run>` | which plan a run trains over; kept by the engine |
//! | `audits/<run>/<epoch>/<world>-<rank>` | the report of a rank; kept by the engine |
//! | `gc/forgotten` | when rows were last forgotten; whose change tells nodes |
//! | `catalog/id` | the name under which this catalog marks the stores it uses |

use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use shardfmt::{Commit, CommitId, DatasetName, Message, Operation, TagName, VersionId};

use super::{DatasetInfo, TagInfo};
use crate::metastore::MetaError;

pub(super) const REFS: &str = "refs/";
pub(super) const TAGS: &str = "tags/";
pub(super) const VERSIONS: &str = "versions/";
pub(super) const PLANS: &str = "plans/";
pub(super) const RUNS: &str = "runs/";
pub(super) const AUDITS: &str = "audits/";
pub(super) const CATALOG_ID: &str = "catalog/id";

/// The present version of a dataset.
#[derive(Serialize, Deserialize)]
pub(super) struct RefRecord {
    /// Absent in records that were written before there were commits.
    #[serde(default)]
    pub(super) commit: Option<CommitId>,
    #[serde(default = "one")]
    pub(super) commits: u64,
    /// The number of the oldest commit that the history still has: 1 unless it was pruned.
    #[serde(default = "one")]
    pub(super) oldest: u64,
    pub(super) version: VersionId,
    pub(super) samples: u64,
    pub(super) bytes: u64,
    pub(super) shards: u64,
    pub(super) committed_at: u64,
}

fn one() -> u64 {
    1
}

impl RefRecord {
    /// A history that ends with `commit` and begins with the one of number `oldest`.
    pub(super) fn of(id: CommitId, commit: &Commit, oldest: u64) -> Self {
        Self {
            commit: Some(id),
            commits: commit.number,
            oldest,
            version: commit.version,
            samples: commit.samples,
            bytes: commit.bytes,
            shards: commit.shards,
            committed_at: commit.time,
        }
    }

    /// The commit that a record from before there were commits stands for: the first of its dataset, the same
    /// for each caller. `None` for later records, whose commit is in the store.
    pub(super) fn implied_commit(&self, name: &DatasetName) -> Option<Commit> {
        match self.commit {
            Some(_) => None,
            None => Some(Commit {
                format: shardfmt::commit::FORMAT_1,
                dataset: name.clone(),
                version: self.version,
                provenance: None,
                parent: None,
                number: 1,
                time: self.committed_at,
                operation: Operation::INGEST,
                message: Message::default(),
                samples: self.samples,
                bytes: self.bytes,
                shards: self.shards,
            }),
        }
    }

    pub(super) fn named(&self, name: DatasetName) -> DatasetInfo {
        let implied = || self.implied_commit(&name).expect("there is one where none is recorded").id();
        DatasetInfo {
            commit: self.commit.unwrap_or_else(implied),
            name,
            version: self.version,
            commits: self.commits,
            samples: self.samples,
            bytes: self.bytes,
            shards: self.shards,
            committed_at: self.committed_at,
        }
    }
}

/// The commit of a tag.
#[derive(Serialize, Deserialize)]
pub(super) struct TagRecord {
    pub(super) commit: CommitId,
    pub(super) version: VersionId,
    pub(super) tagged_at: u64,
}

impl TagRecord {
    pub(super) fn named(self, dataset: DatasetName, tag: TagName) -> TagInfo {
        let Self { commit, version, tagged_at } = self;
        TagInfo { dataset, tag, version, commit, tagged_at }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct VersionRecord {
    pub(super) dataset: DatasetName,
}

#[derive(Serialize, Deserialize)]
pub(super) struct PlanRecord {
    pub(super) dataset: DatasetName,
    pub(super) version: VersionId,
    pub(super) created: u64,
}

pub(super) fn ref_key(name: &DatasetName) -> String {
    format!("{REFS}{name}")
}

pub(super) fn tag_key(dataset: &DatasetName, tag: &TagName) -> String {
    format!("{TAGS}{dataset}/{tag}")
}

/// The name in the key, after its prefix.
pub(super) fn named<K: FromStr<Err: std::fmt::Display>>(key: &str, prefix: &str) -> Result<K, MetaError> {
    key[prefix.len()..].parse().map_err(|error: K::Err| damaged(key, &error))
}

/// The dataset and the tag that a key under `tags/` names.
pub(super) fn tag_named(key: &str) -> Result<(DatasetName, TagName), MetaError> {
    let (dataset, tag) = key[TAGS.len()..].split_once('/').ok_or_else(|| damaged(key, &"it names no tag"))?;
    let dataset = dataset.parse().map_err(|error| damaged(key, &error))?;
    Ok((dataset, tag.parse().map_err(|error| damaged(key, &error))?))
}

pub(super) fn to_json(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("records are plain data")
}

pub(super) fn from_json<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, MetaError> {
    serde_json::from_slice(value).map_err(|error| damaged(key, &error))
}

pub(super) fn damaged(key: &str, reason: &dyn std::fmt::Display) -> MetaError {
    MetaError::Damaged {
        store: "of the catalog".to_owned(),
        what: key.to_owned(),
        reason: reason.to_string(),
    }
}
