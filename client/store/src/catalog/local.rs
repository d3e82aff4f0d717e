//! A catalog without any server. In a directory: objects in `store/`, names in `meta/`, shared by the
//! processes of one machine. In a bucket: names beside the objects, shared by all users of the bucket.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use shardd_api::protocol::{AuditReport, RunId, RunRecord};
use shardd_plan::PlanDocument;
use shardfmt::{
    CommitId, DatasetName, DatasetRef, FinishedShard, Manifest, ManifestFile, Message, Operation, PlanId,
    Provenance, ShardEntry, ShardId, Sidecar, TagName, VersionId,
};
use tokio::runtime::Runtime;

use super::{
    Catalog, CatalogBackend, CatalogError, CommitNote, DatasetInfo, Forget, ForgetReport, GcOptions,
    GcReport, LogEntry, PlanInfo, RecoverOptions, RecoverReport, RemoveRun, RunInfo, StorePlace, TagExpected,
    TagInfo,
};
use crate::metastore::{BucketMetastore, FilesMetastore, MemoryMetastore, Metastore};
use crate::origin::{Origin, OriginError};
use crate::stores::StoreOptions;

/// A [`Catalog`] in a directory or a bucket. Owns a small runtime, so it can neither be used nor dropped in async tasks.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_store::catalog::{Catalog, LocalCatalog};
///
/// let directory = tempfile::tempdir()?;
/// assert!(!LocalCatalog::is_at(directory.path()));
/// let catalog = LocalCatalog::open(directory.path())?;
/// assert_eq!(catalog.datasets()?, []);
/// assert!(LocalCatalog::is_at(directory.path()));
/// # Ok(())
/// # }
/// ```
pub struct LocalCatalog {
    backend: CatalogBackend,
    runtime: Runtime,
}

impl LocalCatalog {
    /// Opens the catalog in `dir`, which is created when missing. One that may only be read is read, and changes are refused.
    ///
    /// # Errors
    ///
    /// When the directory can be neither made nor read, or belongs to a node, which keeps its own names.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, CatalogError> {
        let dir = dir.as_ref();
        if dir.join("tls").exists() {
            return Err(CatalogError::NodesData { dir: dir.to_owned() });
        }
        let origin = Arc::new(Origin::open_dir(&dir.join("store"))?);
        let metastore = Arc::new(FilesMetastore::open(dir.join("meta"))?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let opened = Self::of(origin, metastore, runtime)?;
        // Beside the objects, where `shardtrain --record DIR` puts them.
        let backend = opened.backend.with_trainings(Arc::new(Origin::open_dir(dir)?));
        Ok(Self { backend, ..opened })
    }

    /// Opens a place that has nothing but what trainings left there: a directory that exists, or a bucket.
    ///
    /// # Errors
    ///
    /// As [`Origin::open_with`].
    pub fn of_trainings(place: &StorePlace) -> Result<Self, CatalogError> {
        let origin = match place {
            StorePlace::Directory(directory) => Origin::open_dir(directory)?,
            StorePlace::Url { url, options } => Origin::open_with(url, options)?,
        };
        Self::of(Arc::new(origin), Arc::new(MemoryMetastore::new()), networked())
    }

    /// Opens the catalog in the store at `url`. Nothing is asked of it yet.
    ///
    /// # Errors
    ///
    /// As [`Origin::open_with`].
    pub fn open_url(url: &str, options: &StoreOptions) -> Result<Self, CatalogError> {
        Ok(Self::open_bucket(url, options)?.0)
    }

    /// Opens the catalog at a place. A directory is made when missing; of a store elsewhere nothing is asked yet.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open) and [`open_url`](Self::open_url).
    pub fn open_at(place: &StorePlace) -> Result<Self, CatalogError> {
        match place {
            StorePlace::Directory(directory) => Self::open(directory),
            StorePlace::Url { url, options } => Self::open_url(url, options),
        }
    }

    /// Opens the catalog at a place to put something into it.
    ///
    /// # Errors
    ///
    /// As [`open_at`](Self::open_at), and when names cannot be kept there.
    pub fn open_to_fill(place: &StorePlace) -> Result<Self, CatalogError> {
        let StorePlace::Url { url, options } = place else { return Self::open_at(place) };
        let (opened, metastore) = Self::open_bucket(url, options)?;
        opened.runtime.block_on(metastore.begin())?;
        Ok(opened)
    }

    /// Opens the catalog at a place; `None` if nothing was ever put there.
    ///
    /// # Errors
    ///
    /// As [`open_at`](Self::open_at), and when a store elsewhere cannot be asked.
    pub fn find(place: &StorePlace) -> Result<Option<Self>, CatalogError> {
        match place {
            StorePlace::Directory(directory) => match Self::is_there(directory) {
                Ok(true) => Self::open(directory).map(Some),
                Ok(false) => Ok(None),
                Err(error) => {
                    let store = directory.display().to_string();
                    let way_out = match error.kind() {
                        io::ErrorKind::NotADirectory => "a store is a directory, made by `shardctl ingest`",
                        _ => "ask its owner for the right to read it",
                    };
                    let source = format!("{error}; {way_out}").into();
                    Err(OriginError::Unusable { store, source }.into())
                }
            },
            StorePlace::Url { url, options } => {
                let (found, metastore) = Self::open_bucket(url, options)?;
                let is_there = found.runtime.block_on(metastore.is_there())?;
                Ok(is_there.then_some(found))
            }
        }
    }

    fn open_bucket(url: &str, options: &StoreOptions) -> Result<(Self, Arc<BucketMetastore>), CatalogError> {
        let origin = Arc::new(Origin::open_with(url, options)?);
        let metastore = Arc::new(BucketMetastore::new(origin.clone()));
        Ok((Self::of(origin, metastore.clone(), networked())?, metastore))
    }

    fn of(
        origin: Arc<Origin>,
        metastore: Arc<dyn Metastore>,
        runtime: io::Result<Runtime>,
    ) -> Result<Self, CatalogError> {
        let backend = CatalogBackend::new(origin, metastore);
        Ok(Self { backend, runtime: runtime.map_err(CatalogError::Runtime)? })
    }

    /// Whether there is one in `dir`, or what a node left.
    pub fn is_at(dir: impl AsRef<Path>) -> bool {
        Self::is_there(dir.as_ref()).unwrap_or(false)
    }

    fn is_there(dir: &Path) -> io::Result<bool> {
        for part in ["meta", "store", "tls"] {
            if dir.join(part).try_exists()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes away what [`open`](Self::open) makes in `dir`, as long as nothing was put there: after a failure that left
    /// nothing to keep. What holds anything stays as it is.
    pub fn remove_unused(dir: impl AsRef<Path>) {
        // Of a directory that has something in it, nothing is removed.
        if std::fs::remove_dir(dir.as_ref().join("store")).is_ok() {
            FilesMetastore::remove_unused(dir.as_ref().join("meta"));
        }
    }

    /// The shards of this store that hold rows which were forgotten.
    ///
    /// # Errors
    ///
    /// As [`Origin::forgotten`].
    pub fn forgotten(&self) -> Result<BTreeSet<ShardId>, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().forgotten())?)
    }

    /// The store of this catalog.
    pub fn origin(&self) -> Arc<Origin> {
        self.backend.origin().clone()
    }
}

impl Catalog for LocalCatalog {
    fn datasets(&self) -> Result<Vec<DatasetInfo>, CatalogError> {
        self.runtime.block_on(self.backend.datasets())
    }

    fn resolve(&self, reference: &DatasetRef) -> Result<DatasetInfo, CatalogError> {
        self.runtime.block_on(self.backend.resolve(reference))
    }

    fn log(&self, name: &DatasetName, limit: usize) -> Result<Vec<LogEntry>, CatalogError> {
        self.runtime.block_on(self.backend.log(name, limit))
    }

    fn manifest(&self, version: VersionId) -> Result<Manifest, CatalogError> {
        self.runtime.block_on(self.backend.manifest(version))
    }

    fn open_manifest(&self, version: VersionId) -> Result<ManifestFile, CatalogError> {
        self.runtime.block_on(self.backend.open_manifest(version))
    }

    fn provenance(&self, version: VersionId) -> Result<Option<Provenance>, CatalogError> {
        self.runtime.block_on(self.backend.provenance(version))
    }

    fn shard(&self, entry: &ShardEntry) -> Result<Bytes, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().shard(entry))?)
    }

    fn shard_file(&self, id: ShardId) -> Result<Bytes, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().shard_file(id))?)
    }

    fn sidecar_file(&self, id: ShardId) -> Result<Bytes, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().sidecar_bytes(id))?)
    }

    fn sidecar(&self, entry: &ShardEntry) -> Result<Sidecar, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().sidecar(entry))?)
    }

    fn shard_ranges(&self, id: ShardId, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().read_ranges(&id, ranges))?)
    }

    fn put_manifest(&self, manifest: &Manifest) -> Result<VersionId, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().put_manifest(manifest))?)
    }

    fn put_provenance(&self, version: VersionId, provenance: &Provenance) -> Result<(), CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().put_provenance(version, provenance))?)
    }

    fn put_shard(&self, shard: &FinishedShard) -> Result<(), CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().put_shard(shard))?)
    }

    fn has_shard(&self, id: &ShardId) -> Result<bool, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().has_shard(id))?)
    }

    fn commit(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        manifest: &Manifest,
        note: &CommitNote,
    ) -> Result<DatasetInfo, CatalogError> {
        self.runtime.block_on(async {
            let version = self.backend.origin().put_manifest(manifest).await?;
            if let Some(provenance) = &note.provenance {
                self.backend.origin().put_provenance(version, provenance).await?;
            }
            self.backend.commit(name, expected, version, note).await
        })
    }

    fn restore(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        version: VersionId,
        message: &Message,
    ) -> Result<DatasetInfo, CatalogError> {
        let note = CommitNote { message: message.clone(), ..CommitNote::of(Operation::RESTORE) };
        self.runtime.block_on(self.backend.commit(name, expected, version, &note))
    }

    fn remove_dataset(&self, name: &DatasetName, expected: VersionId) -> Result<(), CatalogError> {
        self.runtime.block_on(self.backend.remove_dataset(name, expected))
    }

    fn prune(&self, name: &DatasetName, oldest: CommitId) -> Result<u64, CatalogError> {
        self.runtime.block_on(self.backend.prune(name, oldest))
    }

    fn tags(&self, dataset: Option<&DatasetName>) -> Result<Vec<TagInfo>, CatalogError> {
        self.runtime.block_on(self.backend.tags(dataset))
    }

    fn put_tag(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
        commit: CommitId,
        expected: TagExpected,
    ) -> Result<TagInfo, CatalogError> {
        self.runtime.block_on(self.backend.put_tag(dataset, tag, commit, expected))
    }

    fn remove_tag(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
        expected: VersionId,
    ) -> Result<(), CatalogError> {
        self.runtime.block_on(self.backend.remove_tag(dataset, tag, expected))
    }

    fn put_plan(&self, plan: &PlanDocument) -> Result<PlanId, CatalogError> {
        Ok(self.runtime.block_on(self.backend.put_plan(plan))?.id)
    }

    fn plans(&self) -> Result<Vec<PlanInfo>, CatalogError> {
        self.runtime.block_on(self.backend.plans())
    }

    fn plan(&self, id: PlanId) -> Result<PlanDocument, CatalogError> {
        self.runtime.block_on(self.backend.plan(id))
    }

    fn remove_plan(&self, id: PlanId) -> Result<(), CatalogError> {
        self.runtime.block_on(self.backend.remove_plan(id))
    }

    fn run(&self, id: &RunId) -> Result<RunRecord, CatalogError> {
        self.runtime.block_on(self.backend.run(id))
    }

    fn runs(&self) -> Result<Vec<RunInfo>, CatalogError> {
        self.runtime.block_on(self.backend.runs(true))
    }

    fn run_info(&self, id: &RunId) -> Result<RunInfo, CatalogError> {
        self.runtime.block_on(self.backend.run_info(id))
    }

    fn remove_run(&self, id: &RunId, options: RemoveRun) -> Result<RunInfo, CatalogError> {
        self.runtime.block_on(self.backend.remove_run(id, options))
    }

    fn audits(&self, run: &RunId) -> Result<Vec<AuditReport>, CatalogError> {
        self.runtime.block_on(self.backend.audits(run))
    }

    fn gc(&self, options: &GcOptions) -> Result<GcReport, CatalogError> {
        self.runtime.block_on(self.backend.gc(options))
    }

    fn forget(&self, forget: &Forget) -> Result<ForgetReport, CatalogError> {
        self.runtime.block_on(self.backend.forget(forget))
    }

    fn recover(&self, options: RecoverOptions) -> Result<RecoverReport, CatalogError> {
        self.runtime.block_on(self.backend.recover(options))
    }
}

/// Connections stay open between requests, and uploads of several threads side by side.
fn networked() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::super::{conformance, conformance_of_runs};
    use super::*;
    use crate::metastore::Expected;

    #[test]
    fn runs_are_listed_and_removed_in_a_directory_and_in_a_bucket() {
        let dir = tempfile::TempDir::new().expect("temporary directory");
        let in_bucket = LocalCatalog::open_url("memory://", &StoreOptions::default()).expect("opens");
        for catalog in [LocalCatalog::open(&dir).expect("opens"), in_bucket] {
            conformance(&catalog);
            conformance_of_runs(&catalog, &|key, value| {
                let put = catalog.backend.metastore().put(&key, value, Expected::Any, None);
                catalog.runtime.block_on(put).expect("puts");
            });
        }
    }
}
