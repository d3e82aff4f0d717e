//! Datasets, versions and plans by name: what a person or a program looks up before it reads, and writes after ingest.
//!
//! [`Catalog`] is the blocking seam: [`LocalCatalog`] on a directory, [`HttpCatalog`] through a server's API and
//! [`ClusterCatalog`] through whichever of several servers answers. Both end in a [`CatalogBackend`], which puts objects into a store and names into a metastore; servers
//! use it directly. [`conformance`] states what both promise.

mod backend;
mod cluster;
mod conformance;
mod http;
mod local;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use shardfmt::plan::{PlanDocument, PlanError};
use shardfmt::{DatasetName, FinishedShard, Manifest, PlanId, ShardEntry, ShardId, VersionId};

use crate::http::HttpError;
use crate::metastore::MetaError;
use crate::origin::OriginError;
use crate::problem::Problem;

pub use backend::CatalogBackend;
pub use cluster::ClusterCatalog;
pub use conformance::conformance;
pub use http::HttpCatalog;
pub use local::LocalCatalog;

/// Looks up and adds datasets, versions and plans. Blocks; not to be called from async tasks.
///
/// Everything that comes out is verified against its name; everything that goes in is content-addressed, so repeating a
/// call is harmless.
pub trait Catalog: Send + Sync {
    /// All datasets, ordered by name.
    fn datasets(&self) -> Result<Vec<DatasetInfo>, CatalogError>;

    /// What `name` points at.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such dataset.
    fn dataset(&self, name: &DatasetName) -> Result<DatasetInfo, CatalogError>;

    /// The version that `name` points at.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such dataset.
    fn resolve(&self, name: &DatasetName) -> Result<VersionId, CatalogError> {
        Ok(self.dataset(name)?.version)
    }

    /// The manifest of a version.
    fn manifest(&self, version: VersionId) -> Result<Manifest, CatalogError>;

    /// The file of a shard.
    fn shard(&self, entry: &ShardEntry) -> Result<Bytes, CatalogError>;

    /// Stores a shard and then its sidecar; a damaged copy of either is replaced. May be called from several threads.
    fn put_shard(&self, shard: &FinishedShard) -> Result<(), CatalogError>;

    /// Whether the store has the shard and its sidecar, intact or not.
    fn has_shard(&self, id: &ShardId) -> Result<bool, CatalogError>;

    /// Stores the manifest, then makes `name` point at it, if `name` still points at `expected` (`None`: at nothing).
    /// Committing what `name` points at already changes nothing.
    ///
    /// # Errors
    ///
    /// [`CatalogError::Conflict`] when the name points elsewhere, [`CatalogError::Incomplete`] when a shard has not
    /// been put. The name is unchanged then.
    fn commit(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        manifest: &Manifest,
    ) -> Result<DatasetInfo, CatalogError>;

    /// Stores a plan for a version that has been committed.
    ///
    /// # Errors
    ///
    /// [`CatalogError::Plan`] or [`CatalogError::Refused`] when the plan does not fit the version.
    fn put_plan(&self, plan: &PlanDocument) -> Result<PlanId, CatalogError>;

    /// All plans, the oldest first.
    fn plans(&self) -> Result<Vec<PlanInfo>, CatalogError>;

    /// A plan by its id.
    fn plan(&self, id: PlanId) -> Result<PlanDocument, CatalogError>;
}

/// What a dataset's name points at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetInfo {
    /// The name.
    pub name: DatasetName,
    /// The version it points at.
    pub version: VersionId,
    /// Samples of that version.
    pub samples: u64,
    /// Bytes of its shards.
    pub bytes: u64,
    /// How many shards it has.
    pub shards: u64,
    /// When it was committed, in seconds since 1970.
    pub committed_at: u64,
}

/// What is known of a plan without reading it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanInfo {
    /// Its id.
    pub id: PlanId,
    /// The dataset whose version it orders.
    pub dataset: DatasetName,
    /// That version.
    pub version: VersionId,
    /// When it was put, in seconds since 1970.
    pub created: u64,
}

/// Why a catalog did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum CatalogError {
    /// Nothing has that name or id.
    #[error("there is no {what}")]
    NotFound { what: String },
    /// Someone else changed the dataset first. Look at what is there now, then commit on top of it.
    #[error("dataset {dataset} was expected at {}, but is at {}", version(expected), version(actual))]
    Conflict { dataset: DatasetName, expected: Option<VersionId>, actual: Option<VersionId> },
    /// The version names shards that the store does not have. Put them, then commit again.
    #[error("version {version} has {missing} of {shards} shards not in the store, the first is {first}")]
    Incomplete { version: VersionId, missing: usize, shards: usize, first: String },
    /// The plan does not fit its version.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A server sent bytes that do not hash to the name asked for. Ask another.
    #[error("{what} from {server} is corrupt")]
    Corrupt { what: String, server: String },
    /// A server refused, and said why.
    #[error("{detail}")]
    Refused { status: u16, detail: String },
    /// A directory whose names a node keeps: what is written there by another hand it would never show.
    #[error("{} is the data directory of a shardd node; talk to the node with --server, or use another directory", .dir.display())]
    NodesData { dir: std::path::PathBuf },
    /// The store failed.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// The metastore failed.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The server could not be asked.
    #[error(transparent)]
    Http(HttpError),
    /// The catalog's own thread could not be started.
    #[error("cannot start the runtime of a local catalog")]
    Runtime(#[source] std::io::Error),
}

fn version(version: &Option<VersionId>) -> String {
    version.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"))
}

impl CatalogError {
    /// What an HTTP API says of this.
    pub fn to_problem(&self) -> Problem {
        match self {
            Self::NotFound { .. } | Self::Origin(OriginError::NotFound { .. }) => Problem::not_found(self),
            Self::Conflict { actual, .. } => Problem::version_conflict(*actual, self),
            Self::Incomplete { .. } | Self::Plan(_) | Self::Origin(OriginError::Mismatch { .. }) => {
                Problem::invalid(self)
            }
            Self::Refused { status, detail } => Problem::new("about:blank", *status, detail),
            Self::Corrupt { .. } | Self::Origin(OriginError::Corrupt { .. }) => {
                Problem::new(crate::problem::CORRUPT, 500, self)
            }
            Self::Origin(_) | Self::Meta(_) | Self::Http(_) | Self::Runtime(_) | Self::NodesData { .. } => {
                Problem::unavailable(self)
            }
        }
    }
}

#[cfg(test)]
mod tests;
