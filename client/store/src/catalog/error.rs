//! The errors of catalogs, and their problems in the HTTP API.

use std::time::Duration;

use shardd_api::problem::{Kind, Problem};
use shardd_plan::PlanError;
use shardfmt::{CommitId, DatasetName, DatasetRef, PlanId, TagName, VersionId};

use super::run_info::RUN_IDLE_TIMEOUT;
use crate::http::HttpError;
use crate::metastore::MetaError;
use crate::origin::OriginError;
use crate::record::RecordError;

/// The longest that the store may take to delete a slice.
pub(super) const SLICE_TAKES: Duration = Duration::from_secs(30);

/// Why a catalog did not carry out a request.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_store::catalog::{Catalog, CatalogError, LocalCatalog};
///
/// # let directory = tempfile::tempdir()?;
/// let catalog = LocalCatalog::open(directory.path())?;
/// match catalog.dataset(&"digits".parse()?) {
///     Err(CatalogError::NotFound { what }) => assert!(what.contains("digits")),
///     other => panic!("the catalog is empty: {other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum CatalogError {
    /// Nothing has that name or id.
    #[error("there is no {what}")]
    NotFound { what: String },
    /// Several versions fit. Give more of the id.
    #[error("{reference} fits {}: give more digits", versions(.fitting))]
    Ambiguous { reference: DatasetRef, fitting: Vec<VersionId> },
    /// Someone else changed the dataset first. Look at the present version, then commit on top of it.
    #[error(
        "dataset {dataset} was expected at {}, but is at {}: someone else changed it meanwhile; see `shardctl log {dataset}`, and run again to put yours on top",
        version(expected),
        version(actual)
    )]
    Conflict { dataset: DatasetName, expected: Option<VersionId>, actual: Option<VersionId> },
    /// The tag is elsewhere. Look at its commit, then ask to move it from there.
    #[error("tag {tag} of {dataset} was expected at {}, but is at {}", version(expected), version(actual))]
    TagConflict { dataset: DatasetName, tag: TagName, expected: Option<VersionId>, actual: Option<VersionId> },
    /// The version names shards that the store does not have. Put them, then commit again.
    #[error(
        "version {version} has {missing} of {shards} shards not in the store, the first is {first}: put them, or ingest again"
    )]
    Incomplete { version: VersionId, missing: usize, shards: usize, first: String },
    /// The plan does not fit its version.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A run trains over the plan. It can be removed when the run is.
    #[error("plan {} is that of run {run}: `shardctl runs rm {run}` removes that", plan.short())]
    InUse { plan: PlanId, run: String },
    /// Ranks were heard of lately. Stop them first.
    #[error(
        "run {run} is running: stop its ranks first, and it can be removed; if they were killed, it is taken for interrupted {} minutes after they were last heard of, or --force removes it now",
        RUN_IDLE_TIMEOUT.as_secs() / 60
    )]
    Running { run: String },
    /// Rows to be forgotten are in the present version of a dataset. Commit one without them first.
    #[error(
        "the present version of dataset {dataset} has rows that are to be forgotten: `shardctl forget` commits one without them; run it again"
    )]
    StillHeld { dataset: DatasetName },
    /// Another request is about to refer to an object that the forget deletes. Retry.
    #[error(
        "{what} has rows that are to be forgotten, and is about to be committed, tagged, planned or trained \
        on: run the same forget again in a minute; the remains of a crashed command lapse within an hour"
    )]
    Wanted { what: String },
    /// A dataset's commits do not lead back to its first. Restore the commit from a backup of the store.
    #[error("the history of {dataset} is broken at commit {commit}: {reason}")]
    BrokenHistory { dataset: DatasetName, commit: CommitId, reason: String },
    /// The reachable objects cannot be known, so nothing may be deleted. Restore it, or remove the names that
    /// point at it.
    #[error("nothing is deleted: it cannot be known what {root} reaches")]
    Unreadable { root: String, source: Box<CatalogError> },
    /// The objects of these names are in another store.
    #[error("the data sets of this cluster are not in {store}: give the store that they are in")]
    OtherStore { store: String },
    /// Others keep data in the store, and only they know their reachable objects. Collect garbage with them,
    /// not here.
    #[error(
        "nothing is deleted: {store} is also that of catalog {other}, whose names are not here; if that one is gone for good, delete catalogs/{other} from the store"
    )]
    SharedStore { store: String, other: String },
    /// Garbage is being deleted. Ask again in a minute.
    #[error("{what} has to wait for a gc that is deleting objects: try again in a minute")]
    Busy { what: String },
    /// The store takes too long to delete, so that the deleted objects are not known. None of them was
    /// reachable: continue later.
    #[error(
        "{store} has not confirmed within {} s that it deleted some objects: run gc again in two minutes; \
        it continues where this one stopped",
        SLICE_TAKES.as_secs()
    )]
    Slow { store: String },
    /// A server sent bytes that do not hash to the name asked for. Ask another.
    #[error("{what} from {server} is corrupt")]
    Corrupt { what: String, server: String },
    /// A server refused, with a reason.
    #[error("{detail}")]
    Refused { status: u16, detail: String },
    /// A directory whose names a node keeps: it would never show objects written there by another program.
    #[error("{} is the data directory of a shardd node; talk to the node with --server, or use another directory", .dir.display())]
    NodesData { dir: std::path::PathBuf },
    /// The store failed.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// The objects of trainings in the store cannot be listed.
    #[error(transparent)]
    Record(#[from] RecordError),
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

impl From<&CatalogError> for Kind {
    fn from(error: &CatalogError) -> Self {
        match error {
            CatalogError::NotFound { .. } => Self::NotFound,
            CatalogError::Conflict { .. }
            | CatalogError::TagConflict { .. }
            | CatalogError::InUse { .. }
            | CatalogError::Running { .. }
            | CatalogError::SharedStore { .. }
            | CatalogError::StillHeld { .. }
            | CatalogError::OtherStore { .. } => Self::Conflict,
            CatalogError::Ambiguous { .. } | CatalogError::Incomplete { .. } | CatalogError::Plan(_) => {
                Self::Invalid
            }
            CatalogError::Corrupt { .. }
            | CatalogError::BrokenHistory { .. }
            | CatalogError::Unreadable { .. } => Self::Corrupt,
            CatalogError::Refused { status, .. } => Self::of_status(*status),
            CatalogError::Origin(error) | CatalogError::Record(RecordError::Store(error)) => error.into(),
            CatalogError::Record(_) => Self::Corrupt,
            CatalogError::Meta(error) => error.into(),
            CatalogError::Busy { .. }
            | CatalogError::Slow { .. }
            | CatalogError::Wanted { .. }
            | CatalogError::Http(_)
            | CatalogError::Runtime(_)
            | CatalogError::NodesData { .. } => Self::Unavailable,
        }
    }
}

fn version(version: &Option<VersionId>) -> String {
    version.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"))
}

fn versions(versions: &[VersionId]) -> String {
    versions.iter().map(VersionId::short).collect::<Vec<_>>().join(" and ")
}

impl CatalogError {
    /// The answer of an HTTP API.
    pub fn to_problem(&self) -> Problem {
        let problem = Problem::new(self.into(), self);
        match self {
            Self::Conflict { actual, .. } | Self::TagConflict { actual, .. } => {
                problem.with("actual", actual.map(|version| version.to_string()))
            }
            _ => problem,
        }
    }
}
