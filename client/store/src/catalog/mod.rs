//! Datasets, versions, tags and plans by name: what a person or a program looks up before it reads, and writes after
//! ingest.
//!
//! [`Catalog`] is the blocking seam: [`LocalCatalog`] on a directory or a bucket, [`HttpCatalog`] through a server's API and
//! [`ClusterCatalog`] through whichever of several servers answers. All end in a [`CatalogBackend`], which puts objects
//! into a store and names into a metastore; servers use it directly. [`conformance`] states what all promise, and
//! `docs/VERSIONS.md` what that means to people.

mod backend;
mod cluster;
mod conformance;
mod error;
mod forget;
mod forget_info;
mod gc;
mod guard;
mod history;
mod http;
mod info;
mod local;
mod place;
mod prune;
mod records;
mod recover;
mod run_info;
mod runs;
mod shelf;
mod tags;

use std::ops::Range;

use bytes::Bytes;
use shardd_api::protocol::{AuditReport, RunId, RunRecord};
use shardd_plan::PlanDocument;
use shardfmt::{
    CommitId, DatasetName, DatasetRef, FinishedShard, Manifest, ManifestFile, Message, PlanId, Provenance,
    ShardEntry, ShardId, Sidecar, TagName, VersionId,
};

pub use backend::CatalogBackend;
pub use cluster::ClusterCatalog;
pub use conformance::{conformance, conformance_of_runs};
pub use error::CatalogError;
pub use forget::FORGOTTEN;
pub use forget_info::{Forget, ForgetReport, HoldingDataset, HoldingShard, HoldingVersion};
pub use gc::{GcOptions, GcReport, LostVersion, Tally};
pub use guard::{Guard, Reach, StoreOf, announcements};
pub use http::HttpCatalog;
pub use info::{
    ColumnInfo, CommitNote, DatasetInfo, LogEntry, PlanInfo, Pruned, TagExpected, TagInfo, VersionInfo,
};
pub use local::LocalCatalog;
pub use place::StorePlace;
pub use recover::{CopyFound, LostName, RecoverOptions, RecoverReport, RecoveredDataset};
pub use run_info::{RUN_IDLE_TIMEOUT, RemoveRun, RunDetails, RunInfo, RunState};
pub use shelf::CatalogStore;

/// Looks up, adds and removes datasets, versions, tags and plans. Blocks; not to be called from async tasks.
///
/// Everything that comes out is verified against its name. New objects are content-addressed, and each change
/// names the state it replaces, so repeating a call is harmless.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_store::catalog::{Catalog, CommitNote, LocalCatalog};
/// use shardfmt::{DatasetName, Operation};
///
/// # let (shard, manifest) = numbers()?;
/// # let directory = tempfile::tempdir()?;
/// let catalog = LocalCatalog::open(directory.path())?;
/// catalog.put_shard(&shard)?;
/// let name: DatasetName = "numbers".parse()?;
/// let note = CommitNote::of(Operation::INGEST);
/// let committed = catalog.commit(&name, None, &manifest, &note)?;
///
/// let found = catalog.dataset(&name)?;
/// assert_eq!(found, committed);
/// assert_eq!(catalog.manifest(found.version)?.sample_count(), 300);
/// # Ok(())
/// # }
/// ```
pub trait Catalog: Send + Sync {
    /// All datasets, ordered by name.
    ///
    /// # Errors
    ///
    /// When the names cannot be read.
    fn datasets(&self) -> Result<Vec<DatasetInfo>, CatalogError>;

    /// The present version of `name`.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such dataset.
    fn dataset(&self, name: &DatasetName) -> Result<DatasetInfo, CatalogError> {
        self.resolve(&name.clone().into())
    }

    /// The version that a reference names.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when it names none, [`CatalogError::Ambiguous`] when it begins several.
    fn resolve(&self, reference: &DatasetRef) -> Result<DatasetInfo, CatalogError>;

    /// The last commits of `name`, at most `limit`, the newest first.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such dataset, [`CatalogError::BrokenHistory`] when a commit is missing.
    fn log(&self, name: &DatasetName, limit: usize) -> Result<Vec<LogEntry>, CatalogError>;

    /// The manifest of a version.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such version, and others when it is damaged or cannot be read.
    fn manifest(&self, version: VersionId) -> Result<Manifest, CatalogError>;

    /// The manifest of a version, to be read in part, on request.
    ///
    /// # Errors
    ///
    /// As [`manifest`](Self::manifest).
    fn open_manifest(&self, version: VersionId) -> Result<ManifestFile, CatalogError>;

    /// The provenance of a version: what the first ingest that made it read, and how. `None` if that is not known. The commit
    /// names it by its digest.
    ///
    /// # Errors
    ///
    /// When it is damaged or cannot be read.
    fn provenance(&self, version: VersionId) -> Result<Option<Provenance>, CatalogError>;

    /// The file of a shard.
    ///
    /// # Errors
    ///
    /// When it is missing or damaged, or cannot be read.
    fn shard(&self, entry: &ShardEntry) -> Result<Bytes, CatalogError>;

    /// The bytes of a shard's file as they lie in the store: unlike all else that comes out, not verified.
    ///
    /// # Errors
    ///
    /// When it is missing or cannot be read.
    fn shard_file(&self, id: ShardId) -> Result<Bytes, CatalogError>;

    /// The bytes of a shard's sidecar as they lie in the store, not verified either.
    ///
    /// # Errors
    ///
    /// When it is missing or cannot be read.
    fn sidecar_file(&self, id: ShardId) -> Result<Bytes, CatalogError>;

    /// The row digests of a shard and the map of its file, verified against the manifest's root.
    ///
    /// # Errors
    ///
    /// When it is missing or damaged, or cannot be read.
    fn sidecar(&self, entry: &ShardEntry) -> Result<Sidecar, CatalogError>;

    /// Parts of a shard's file as they lie in the store: the caller verifies the rows by their digests.
    ///
    /// # Errors
    ///
    /// When the file is missing, ends before a range does, or cannot be read.
    fn shard_ranges(&self, id: ShardId, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, CatalogError>;

    /// Stores a manifest, whether or not any name leads to it; a damaged copy is replaced.
    ///
    /// # Errors
    ///
    /// When the store does not take it.
    fn put_manifest(&self, manifest: &Manifest) -> Result<VersionId, CatalogError>;

    /// Stores the provenance of a version, unless there is one: another ingest of the same samples changes nothing.
    ///
    /// # Errors
    ///
    /// When the store does not take it.
    fn put_provenance(&self, version: VersionId, provenance: &Provenance) -> Result<(), CatalogError>;

    /// Stores a shard and then its sidecar; a damaged copy of either is replaced. May be called from several threads.
    ///
    /// # Errors
    ///
    /// When the store does not take it, or it holds rows that were forgotten.
    fn put_shard(&self, shard: &FinishedShard) -> Result<(), CatalogError>;

    /// Whether the store has the shard and its sidecar, intact or not.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked.
    fn has_shard(&self, id: &ShardId) -> Result<bool, CatalogError>;

    /// Stores the manifest and the provenance of the note, then makes it the present version of `name`, in a commit whose parent is the one before: if
    /// the present version still is `expected` (`None`: if there is no such dataset). Committing the present
    /// version again changes nothing.
    ///
    /// # Errors
    ///
    /// [`CatalogError::Conflict`] when the dataset is elsewhere, [`CatalogError::Incomplete`] when a shard has not been
    /// put. The dataset is unchanged then.
    fn commit(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        manifest: &Manifest,
        note: &CommitNote,
    ) -> Result<DatasetInfo, CatalogError>;

    /// As [`commit`](Self::commit), of a version that is in the store already: an older one, or one whose dataset was
    /// removed.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit), and [`CatalogError::NotFound`] when there is no such version.
    fn restore(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        version: VersionId,
        message: &Message,
    ) -> Result<DatasetInfo, CatalogError>;

    /// Removes a name with its history, if its present version is `expected`. Its tags and plans stay, and
    /// keep the objects they name; the rest goes with the next [`gc`](Self::gc).
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such dataset, [`CatalogError::Conflict`] when it is elsewhere.
    fn remove_dataset(&self, name: &DatasetName, expected: VersionId) -> Result<(), CatalogError>;

    /// Cuts off the commits before `oldest` in the history of `name`. Tags, plans and runs keep the versions
    /// that they name; the rest goes with the next [`gc`](Self::gc). Returns how many commits were cut off:
    /// none if `oldest` is the oldest already.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such dataset, or no such commit in its history.
    fn prune(&self, name: &DatasetName, oldest: CommitId) -> Result<u64, CatalogError>;

    /// The tags of a dataset, or all (`None`), ordered by dataset and tag.
    ///
    /// # Errors
    ///
    /// When the names cannot be read.
    fn tags(&self, dataset: Option<&DatasetName>) -> Result<Vec<TagInfo>, CatalogError>;

    /// Tags a commit of `dataset`, if the tag is as expected. Setting it to where it is changes nothing.
    ///
    /// # Errors
    ///
    /// [`CatalogError::TagConflict`] when the tag is elsewhere, [`CatalogError::NotFound`] when the dataset has no such
    /// commit.
    fn put_tag(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
        commit: CommitId,
        expected: TagExpected,
    ) -> Result<TagInfo, CatalogError>;

    /// Removes a tag, if it is at `expected`.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such tag, [`CatalogError::TagConflict`] when it is elsewhere.
    fn remove_tag(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
        expected: VersionId,
    ) -> Result<(), CatalogError>;

    /// Stores a plan for a version that has been committed.
    ///
    /// # Errors
    ///
    /// [`CatalogError::Plan`] or [`CatalogError::Refused`] when the plan does not fit the version.
    fn put_plan(&self, plan: &PlanDocument) -> Result<PlanId, CatalogError>;

    /// All plans, the oldest first.
    ///
    /// # Errors
    ///
    /// When the names cannot be read.
    fn plans(&self) -> Result<Vec<PlanInfo>, CatalogError>;

    /// A plan by its id.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such plan, and others when it is damaged or cannot be read.
    fn plan(&self, id: PlanId) -> Result<PlanDocument, CatalogError>;

    /// Takes a plan off the list, so that it no longer keeps its version.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when it is not on the list, [`CatalogError::InUse`] when a run trains over it.
    fn remove_plan(&self, id: PlanId) -> Result<(), CatalogError>;

    /// A run by its name.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such run.
    fn run(&self, id: &RunId) -> Result<RunRecord, CatalogError>;

    /// All runs, by name: those that nodes know, and those of which records or checkpoints in the store tell.
    ///
    /// # Errors
    ///
    /// When the store or the metastore cannot be asked.
    fn runs(&self) -> Result<Vec<RunInfo>, CatalogError>;

    /// One of them.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such run.
    fn run_info(&self, id: &RunId) -> Result<RunInfo, CatalogError> {
        let found = self.runs()?.into_iter().find(|run| run.id == *id);
        found.ok_or_else(|| CatalogError::NotFound { what: format!("run {id}") })
    }

    /// Removes a run with all that is kept of it: its cursor, its audits, and its training records in the store. Its plan can be
    /// removed then. Checkpoints stay unless [`RemoveRun::checkpoints`] says otherwise. Returns what there was.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such run, [`CatalogError::Running`] when its ranks were heard of lately.
    fn remove_run(&self, id: &RunId, options: RemoveRun) -> Result<RunInfo, CatalogError>;

    /// The samples that the ranks of a run reported as read, by epoch, world and rank.
    ///
    /// # Errors
    ///
    /// When the reports cannot be read.
    fn audits(&self, run: &RunId) -> Result<Vec<AuditReport>, CatalogError>;

    /// Deletes from the store what nothing reaches: no version in the history of a dataset, no tag, no plan, no run, and
    /// nothing that is being committed. With [`GcOptions::dry_run`] only says what that would be.
    ///
    /// # Errors
    ///
    /// Nothing is deleted when the reachable objects cannot be known: [`CatalogError::Unreadable`],
    /// [`CatalogError::SharedStore`]. Objects deleted before another error were unreachable.
    fn gc(&self, options: &GcOptions) -> Result<GcReport, CatalogError>;

    /// Takes rows out of the store, if no present version of a dataset has them: marks the shards with such
    /// rows, so that they are not stored again and caches drop them; cuts the histories that lead to them,
    /// removes tags, runs and plans over their versions; and deletes these shards and versions at once. Of
    /// what an earlier forget has marked it does the rest. With [`Forget::dry_run`] only says what holds the
    /// rows.
    ///
    /// # Errors
    ///
    /// [`CatalogError::StillHeld`] when the present version of a dataset has such rows, [`CatalogError::Running`] when a run over such a
    /// version is trained, [`CatalogError::Wanted`] when another request is about to refer to one; and those of [`gc`](Self::gc).
    fn forget(&self, forget: &Forget) -> Result<ForgetReport, CatalogError>;

    /// Brings back the names, tags and plans that are missing here and that the store knows of: from a copy of the metadata
    /// and from its commits. Existing objects stay unchanged.
    ///
    /// # Errors
    ///
    /// When the store or the metastore cannot be asked, or does not take a name.
    fn recover(&self, options: RecoverOptions) -> Result<RecoverReport, CatalogError>;
}

#[cfg(test)]
mod tests;
