//! What a catalog says of datasets, commits, tags and plans. Plain values with one JSON form, for people, scripts and the
//! HTTP API alike.

use serde::{Deserialize, Serialize};
use shardfmt::{
    Commit, CommitId, DatasetName, DigestSum, Message, Operation, PlanId, Provenance, TagName, VersionId,
};

/// A version of a dataset, as a name or a reference finds it.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_store::catalog::{Catalog, LocalCatalog};
/// # let (shard, manifest) = numbers()?;
/// # let directory = tempfile::tempdir()?;
/// # let catalog = LocalCatalog::open(directory.path())?;
/// # catalog.put_shard(&shard)?;
/// # let name: shardfmt::DatasetName = "numbers".parse()?;
/// # let note = shardd_store::catalog::CommitNote::of(shardfmt::Operation::INGEST);
/// # let dataset = catalog.commit(&name, None, &manifest, &note)?;
/// let dataset = catalog.dataset(&"numbers".parse()?)?;
/// assert_eq!(dataset.version, manifest.id());
/// assert_eq!((dataset.samples, dataset.shards, dataset.commits), (300, 1, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DatasetInfo {
    /// The dataset.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::DatasetName))]
    pub name: DatasetName,
    /// The version.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub version: VersionId,
    /// The commit that made it this dataset's.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub commit: CommitId,
    /// How many commits there are up to that one.
    pub commits: u64,
    /// Samples of the version.
    pub samples: u64,
    /// Bytes of its shards.
    pub bytes: u64,
    /// How many shards it has.
    pub shards: u64,
    /// When it was committed, in seconds since 1970.
    pub committed_at: u64,
}

impl DatasetInfo {
    /// What `commit`, of that id, says.
    pub(crate) fn of(id: CommitId, commit: &Commit) -> Self {
        Self {
            name: commit.dataset.clone(),
            version: commit.version,
            commit: id,
            commits: commit.number,
            samples: commit.samples,
            bytes: commit.bytes,
            shards: commit.shards,
            committed_at: commit.time,
        }
    }
}

/// The committer's note on a commit.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_store::catalog::{Catalog, LocalCatalog};
/// # let (shard, manifest) = numbers()?;
/// # let directory = tempfile::tempdir()?;
/// # let catalog = LocalCatalog::open(directory.path())?;
/// # catalog.put_shard(&shard)?;
/// # let name: shardfmt::DatasetName = "numbers".parse()?;
/// # let note = shardd_store::catalog::CommitNote::of(shardfmt::Operation::INGEST);
/// # let dataset = catalog.commit(&name, None, &manifest, &note)?;
/// use shardd_store::catalog::CommitNote;
/// use shardfmt::Operation;
///
/// let note = CommitNote { message: "larger shards".parse()?, ..CommitNote::of(Operation::RESHARD) };
/// # let manifest = shardfmt::Manifest { config: serde_json::json!({ "size": "64MiB" }), ..manifest };
/// catalog.commit(&name, Some(dataset.version), &manifest, &note)?;
/// let newest = catalog.log(&name, 1)?.remove(0).commit;
/// assert_eq!((newest.operation, newest.message), (note.operation, note.message));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CommitNote {
    /// The operation that made the version.
    pub operation: Operation,
    /// Why.
    pub message: Message,
    /// What the version was made of, if that is known: stored beside it, unless there is one.
    pub provenance: Option<Provenance>,
}

impl CommitNote {
    /// A note without a message and a provenance.
    pub fn of(operation: Operation) -> Self {
        Self { operation, message: Message::default(), provenance: None }
    }
}

/// One step in the history of a dataset.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_store::catalog::{Catalog, LocalCatalog};
/// # let (shard, manifest) = numbers()?;
/// # let directory = tempfile::tempdir()?;
/// # let catalog = LocalCatalog::open(directory.path())?;
/// # catalog.put_shard(&shard)?;
/// # let name: shardfmt::DatasetName = "numbers".parse()?;
/// # let note = shardd_store::catalog::CommitNote::of(shardfmt::Operation::INGEST);
/// # let dataset = catalog.commit(&name, None, &manifest, &note)?;
/// let log = catalog.log(&"numbers".parse()?, 10)?;
/// assert_eq!(log.len(), 1);
/// assert_eq!((log[0].id, log[0].commit.parent), (dataset.commit, None));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogEntry {
    /// The commit's id.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub id: CommitId,
    /// The commit.
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Commit))]
    pub commit: Commit,
}

/// A tag, and its commit.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_store::catalog::{Catalog, LocalCatalog};
/// # let (shard, manifest) = numbers()?;
/// # let directory = tempfile::tempdir()?;
/// # let catalog = LocalCatalog::open(directory.path())?;
/// # catalog.put_shard(&shard)?;
/// # let name: shardfmt::DatasetName = "numbers".parse()?;
/// # let note = shardd_store::catalog::CommitNote::of(shardfmt::Operation::INGEST);
/// # let dataset = catalog.commit(&name, None, &manifest, &note)?;
/// use shardd_store::catalog::TagExpected;
///
/// let tag = catalog.put_tag(&name, &"v1".parse()?, dataset.commit, TagExpected::Absent)?;
/// assert_eq!(tag.version, dataset.version);
/// assert_eq!(catalog.resolve(&"numbers@v1".parse()?)?.version, dataset.version);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TagInfo {
    /// The dataset.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::DatasetName))]
    pub dataset: DatasetName,
    /// The tag.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::TagName))]
    pub tag: TagName,
    /// The version that bears it.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub version: VersionId,
    /// The commit of that version.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub commit: CommitId,
    /// When it was set, in seconds since 1970.
    pub tagged_at: u64,
}

/// The expected state of a tag that is to be set.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_store::catalog::{Catalog, LocalCatalog};
/// # let (shard, manifest) = numbers()?;
/// # let directory = tempfile::tempdir()?;
/// # let catalog = LocalCatalog::open(directory.path())?;
/// # catalog.put_shard(&shard)?;
/// # let name: shardfmt::DatasetName = "numbers".parse()?;
/// # let note = shardd_store::catalog::CommitNote::of(shardfmt::Operation::INGEST);
/// # let dataset = catalog.commit(&name, None, &manifest, &note)?;
/// use shardd_store::catalog::{CatalogError, TagExpected};
///
/// # let manifest = shardfmt::Manifest { config: serde_json::json!({ "seed": 1 }), ..manifest };
/// # let newer = catalog.commit(&name, Some(dataset.version), &manifest, &note)?;
/// let tag = "latest".parse()?;
/// catalog.put_tag(&name, &tag, dataset.commit, TagExpected::Absent)?;
///
/// let refused = catalog.put_tag(&name, &tag, newer.commit, TagExpected::Absent);
/// assert!(matches!(refused, Err(CatalogError::TagConflict { .. })));
/// let moved = catalog.put_tag(&name, &tag, newer.commit, TagExpected::At(dataset.version))?;
/// assert_eq!(moved.version, newer.version);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TagExpected {
    /// There is no such tag.
    Absent,
    /// It is at this version.
    At(VersionId),
    /// Nothing: it is moved from wherever it is.
    Any,
}

impl TagExpected {
    /// The version at which the tag is expected.
    pub(crate) fn version(self) -> Option<VersionId> {
        match self {
            Self::At(version) => Some(version),
            Self::Absent | Self::Any => None,
        }
    }
}

/// The facts about a plan that need no reading of it.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_store::catalog::{Catalog, LocalCatalog};
/// # let (shard, manifest) = numbers()?;
/// # let directory = tempfile::tempdir()?;
/// # let catalog = LocalCatalog::open(directory.path())?;
/// # catalog.put_shard(&shard)?;
/// # let name: shardfmt::DatasetName = "numbers".parse()?;
/// # let note = shardd_store::catalog::CommitNote::of(shardfmt::Operation::INGEST);
/// # let dataset = catalog.commit(&name, None, &manifest, &note)?;
/// # let shape = shardd_plan::Shape { shard_rows: manifest.shard_rows(), row_bytes: manifest.row_bytes() };
/// # let options = shardd_plan::PlanOptions::default();
/// # let plan = shardd_plan::PlanDocument::with_defaults(dataset.version, &shape, options)?;
/// let id = catalog.put_plan(&plan)?;
/// let listed = catalog.plans()?;
/// assert_eq!((listed[0].id, listed[0].version), (id, dataset.version));
/// assert_eq!(catalog.plan(id)?, plan);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlanInfo {
    /// Its id.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub id: PlanId,
    /// The dataset whose version it orders.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::DatasetName))]
    pub dataset: DatasetName,
    /// That version.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub version: VersionId,
    /// When it was put, in seconds since 1970.
    pub created: u64,
}

/// The commits that pruning cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pruned {
    /// How many commits.
    pub commits: u64,
}

/// A version: its content, and how its dataset reached it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VersionInfo {
    /// The version.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub version: VersionId,
    /// The dataset it was first committed to; null if it never was.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<shardd_api::schema::DatasetName>))]
    pub dataset: Option<DatasetName>,
    /// The commits of that dataset that led to it, with their parents, the newest first.
    pub commits: Vec<LogEntry>,
    /// Samples.
    pub samples: u64,
    /// Bytes of its shards.
    pub bytes: u64,
    /// Bytes of its rows in their canonical form.
    pub row_bytes: u64,
    /// How many shards it has.
    pub shards: u64,
    /// How many inputs it was made of, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub inputs: Option<u64>,
    /// How many files and rows were left out.
    pub skipped: u64,
    /// The sum of all row digests.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::DigestSum))]
    pub digest_sum: DigestSum,
    /// The columns.
    pub columns: Vec<ColumnInfo>,
    /// How samples were laid into shards, and what the version was made of another one by.
    pub config: serde_json::Value,
    /// The settings of the ingest, if they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub settings: Option<serde_json::Value>,
}

/// A column of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ColumnInfo {
    /// Its name.
    pub name: String,
    /// Its Arrow type.
    #[serde(rename = "type")]
    pub data_type: String,
    /// Whether values may be missing.
    pub nullable: bool,
}
